//! Protection domains, and the two regions that come with each: in T-mode that of the address vectors, through which the
//! HCA reads where datagrams go, and the whole-memory region, made when somebody asks for it. verbs 1.1, infinihost 4.10.

use crate::inner::Inner;
use crate::mr::physical;
use crate::users::Users;
use core::sync::atomic::{AtomicU32, Ordering};
use core_ib::LKey;
use core_ib::platform::Platform;
use core_ib::verbs::{Access, Object, PdHandle, VerbsError, WholeMemoryKey, kind};
use hca_abi::infinihost::mpt::Mpt;

/// One domain.
#[derive(Debug)]
pub struct Pd {
    /// Number, 24 bits.
    pub number: u32,
    /// T: key of the region of address vectors.
    pub vectors: u32,
    /// Key of the whole-memory region; meaningful while `has_whole`.
    whole: AtomicU32,
    has_whole: AtomicU32,
    /// What is in it.
    pub users: Users,
}

impl Object for Pd {
    type Kind = kind::Pd;
    const NAME: &'static str = "PD";
    const PROFILE: &'static str = "pds";
}

impl<P: Platform> Inner<'_, P> {
    /// One more object in `pd`: its index, number, and the key of its address vectors. Any context. Ends with
    /// [`leave_pd`](Self::leave_pd).
    pub(crate) fn enter_pd(&self, pd: PdHandle) -> Result<InPd, VerbsError> {
        let held = self.pds.get(pd)?;
        if !held.users.enter() {
            return Err(VerbsError::InvalidHandle { object: Pd::NAME });
        }
        Ok(InPd {
            index: pd.index(),
            number: held.number,
            vectors: held.vectors,
        })
    }

    /// One less.
    pub(crate) fn leave_pd(&self, index: u32) {
        if let Some(pd) = self.pds.at(index) {
            pd.users.leave();
        }
    }

    pub(crate) fn alloc_pd(&self) -> Result<PdHandle, VerbsError> {
        self.cmd.health().check()?;
        self.pd_gate.with(|()| {
            let place = self.pds.reserve()?;
            // Index 0 of the plan is the driver's own.
            let planned = place.index().wrapping_add(1);
            let number = self.plan.pd.number(planned, place.generation());
            let vectors = match self.av.extent() {
                Some((start, len)) => {
                    let mpt = self.plan.mpt.vectors.wrapping_add(planned);
                    let vectors = physical(number, Access::empty(), start, len);
                    self.begin_region(mpt, vectors)?
                }
                None => 0,
            };
            let users = Users::default();
            Ok(place.fill(Pd {
                number,
                vectors,
                whole: AtomicU32::new(0),
                has_whole: AtomicU32::new(0),
                users,
            }))
        })
    }

    pub(crate) fn dealloc_pd(&self, pd: PdHandle) -> Result<(), VerbsError> {
        self.pd_gate.with(|()| {
            let held = self.pds.get(pd)?;
            let object = Pd::NAME;
            held.users
                .close()
                .map_err(|holders| VerbsError::Busy { object, holders })?;
            let has_whole = held.has_whole.load(Ordering::Acquire) != 0;
            drop(held);
            if let Err(busy) = self.pds.remove(pd) {
                if let Ok(held) = self.pds.get(pd) {
                    held.users.open();
                }
                return Err(busy);
            }
            let planned = pd.index().wrapping_add(1);
            if self.av.extent().is_some() {
                self.end_region(self.plan.mpt.vectors.wrapping_add(planned));
            }
            if has_whole {
                self.end_region(self.plan.mpt.whole.wrapping_add(planned));
            }
            Ok(())
        })
    }

    pub(crate) fn whole_memory_key(&self, pd: PdHandle) -> Result<WholeMemoryKey, VerbsError> {
        self.cmd.health().check()?;
        self.pd_gate.with(|()| {
            let held = self.pds.get(pd)?;
            if held.has_whole.load(Ordering::Acquire) == 0 {
                let planned = pd.index().wrapping_add(1);
                let mpt = self.plan.mpt.whole.wrapping_add(planned);
                let whole = physical(held.number, Access::LOCAL_WRITE, 0, Mpt::NO_LIMIT);
                let key = self.begin_region(mpt, whole)?;
                held.whole.store(key, Ordering::Relaxed);
                held.has_whole.store(1, Ordering::Release);
            }
            Ok(WholeMemoryKey::new(LKey(
                held.whole.load(Ordering::Relaxed),
            )))
        })
    }
}

/// What an object needs to know of the PD that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPd {
    /// Place among the PDs.
    pub index: u32,
    /// Number.
    pub number: u32,
    /// Key of the address vectors.
    pub vectors: u32,
}
