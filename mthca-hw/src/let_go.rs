//! The proof that the HCA does not use some memory of ours any more, and the few ways to come by it.
//!
//! Everything that the HCA reaches, it reaches through an MPT entry or through an area that INIT_HCA or a command's
//! mailbox address told it of. So it lets go when it confirms that it took the entry or the object back, when it is
//! closed or reset, and it never held on to what it was never told of, or refused. This file holds all the claims.

use crate::cmd::TakesBack;
use core::marker::PhantomData;
use core_ib::platform::{DmaBuf, LetGo, Platform};

/// The HCA has let go of whatever this was obtained for. Kept only long enough to free that memory.
#[derive(Debug)]
pub struct Released(());

impl Released {
    /// For memory that the HCA was never told of, or whose telling it refused.
    pub const fn never_told() -> Self {
        Self(())
    }

    /// For the memory of the object that a confirmed command took back.
    pub const fn by<C: TakesBack>(_confirmed: PhantomData<C>) -> Self {
        Self(())
    }

    /// For all memory, after a reset. The channel to the HCA is latched dead, so that it is told nothing any more.
    pub(crate) const fn by_reset() -> Self {
        Self(())
    }

    /// Gives one piece of that memory back to the machine.
    pub fn free<P: Platform>(&self, memory: DmaBuf<'_, P>) {
        // SAFETY: see the ways to make a `Released`: the HCA does not use the memory, and it cannot be told of it anew,
        // since `memory` ends here.
        memory.free(unsafe { LetGo::claim() });
    }
}
