//! Bring-up that undoes itself.
//!
//! Opening the HCA is a table of steps; closing it, a failure on the way and a restart are the table backwards.

use core::fmt;

/// One step. `undo` is never asked to undo what `apply` did not finish, and cannot fail: with a dead HCA it frees what
/// is ours and leaves the rest to the reset at the bottom.
pub struct Step<C, E> {
    /// As the reference calls it; appears in errors.
    pub name: &'static str,
    /// May block.
    pub apply: fn(&mut C) -> Result<(), E>,
    /// May block.
    pub undo: fn(&mut C),
}

impl<C, E> Step<C, E> {
    /// Of these.
    pub const fn new(
        name: &'static str,
        apply: fn(&mut C) -> Result<(), E>,
        undo: fn(&mut C),
    ) -> Self {
        Self { name, apply, undo }
    }
}

/// A step failed; all before it are undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BringUpError<E> {
    /// Its name.
    pub step: &'static str,
    /// Why.
    pub cause: E,
}

impl<E: fmt::Display> fmt::Display for BringUpError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)
    }
}

impl<E: core::error::Error> core::error::Error for BringUpError<E> {}

/// Applies `steps` in order. After an error the HCA is as it was found.
pub fn bring_up<C, E>(hca: &mut C, steps: &[Step<C, E>]) -> Result<(), BringUpError<E>> {
    for (done, step) in steps.iter().enumerate() {
        if let Err(cause) = (step.apply)(hca) {
            steps.iter().take(done).rev().for_each(|s| (s.undo)(hca));
            let step = step.name;
            return Err(BringUpError { step, cause });
        }
    }
    Ok(())
}

/// Undoes `steps`, all of which were applied.
pub fn take_down<C, E>(hca: &mut C, steps: &[Step<C, E>]) {
    steps.iter().rev().for_each(|s| (s.undo)(hca));
}
