//! What all views of headers share: a cast over the first bytes, checked once.

use super::super::WireError;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A header of fixed size as it lies in a packet: bytes of any value and alignment are a valid view.
///
/// A view believes nothing. What its bytes mean is a value of its own (`BthView` and `Bth`), made with `TryFrom`
/// where some bytes mean nothing, else with `From`.
pub trait HeaderView: Sized + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// As the reference calls it; appears in errors.
    const NAME: &'static str;
    /// Bytes that it takes.
    const LEN: usize = size_of::<Self>();

    /// Splits bytes into this header and what follows.
    fn split(bytes: &[u8]) -> Result<(&Self, &[u8]), WireError> {
        Self::ref_from_prefix(bytes).map_err(|_| WireError::Truncated {
            header: Self::NAME,
            need: Self::LEN,
            have: bytes.len(),
        })
    }

    /// Splits bytes into this header and what follows, to be changed in place.
    fn split_mut(bytes: &mut [u8]) -> Result<(&mut Self, &mut [u8]), WireError> {
        let have = bytes.len();
        Self::mut_from_prefix(bytes).map_err(|_| WireError::Truncated {
            header: Self::NAME,
            need: Self::LEN,
            have,
        })
    }

    /// Copies the header to the front of `out` and returns the room behind it. Without room nothing is written.
    fn put<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let have = out.len();
        match out.split_at_mut_checked(Self::LEN) {
            Some((front, rest)) => {
                front.copy_from_slice(self.as_bytes());
                Ok(rest)
            }
            None => Err(WireError::NoSpace {
                header: Self::NAME,
                need: Self::LEN,
                have,
            }),
        }
    }
}
