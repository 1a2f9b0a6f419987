//! What an immediate error must be: one function for each kind. verbs 0.2.

use core::fmt::Debug;
use core_ib::verbs::VerbsError;

/// The answer speaks of an object that is still in use.
#[track_caller]
pub fn is_busy<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::Busy { .. }));
    assert!(right, "{answer:?} is not Busy");
}

/// The answer speaks of a value that may not be.
#[track_caller]
pub fn is_invalid_attr<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::InvalidAttr { .. }));
    assert!(right, "{answer:?} is not InvalidAttr");
}

/// The answer speaks of an object that is not.
#[track_caller]
pub fn is_invalid_handle<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::InvalidHandle { .. }));
    assert!(right, "{answer:?} is not InvalidHandle");
}

/// The answer speaks of an attribute missing or out of place.
#[track_caller]
pub fn is_invalid_mask<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::InvalidMask { .. }));
    assert!(right, "{answer:?} is not InvalidMask");
}

/// The answer speaks of a port that is not.
#[track_caller]
pub fn is_invalid_port<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::InvalidPort { .. }));
    assert!(right, "{answer:?} is not InvalidPort");
}

/// The answer speaks of a state that does not allow it.
#[track_caller]
pub fn is_invalid_state<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::InvalidState { .. }));
    assert!(right, "{answer:?} is not InvalidState");
}

/// The answer speaks of something that has run out.
#[track_caller]
pub fn is_no_resources<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::NoResources { .. }));
    assert!(right, "{answer:?} is not NoResources");
}

/// The answer speaks of what the consumer may not.
#[track_caller]
pub fn is_not_permitted<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::NotPermitted { .. }));
    assert!(right, "{answer:?} is not NotPermitted");
}

/// The answer speaks of what the HCA has not.
#[track_caller]
pub fn is_unsupported<T: Debug>(answer: Result<T, VerbsError>) {
    let right = matches!(answer, Err(VerbsError::Unsupported { .. }));
    assert!(right, "{answer:?} is not Unsupported");
}
