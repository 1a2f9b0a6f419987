//! Handles: the names of verbs objects.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Names one object of kind `K`. Plain data without a lifetime, so that C may store it; worth nothing once the
/// object is gone, even if its place has a new tenant.
pub struct Handle<K> {
    index: u32,
    generation: u32,
    device: u32,
    kind: PhantomData<fn() -> K>,
}

impl<K> Handle<K> {
    /// For who keeps the objects: place `index` in the table of HCA `device`, in its life number `generation`.
    pub const fn new(device: u32, index: u32, generation: u32) -> Self {
        Self {
            index,
            generation,
            device,
            kind: PhantomData,
        }
    }

    /// Place in the table of the HCA.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Which tenant of that place.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// Which HCA.
    pub const fn device(self) -> u32 {
        self.device
    }
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Handle<K> {}
impl<K> PartialEq for Handle<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.device, self.index, self.generation) == (other.device, other.index, other.generation)
    }
}
impl<K> Eq for Handle<K> {}
impl<K> Hash for Handle<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.device, self.index, self.generation).hash(state);
    }
}
impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}@{}", self.index, self.generation, self.device)
    }
}

/// The kinds of objects, for [`Handle`].
pub mod kind {
    macro_rules! kinds {
        ($($(#[$doc:meta])* $name:ident),* $(,)?) => { $($(#[$doc])* #[derive(Clone, Copy, Debug)] pub enum $name {})* };
    }
    kinds! {
        /// Protection domain.
        Pd,
        /// Address handle.
        Ah,
        /// Completion queue.
        Cq,
        /// Queue pair.
        Qp,
        /// Shared receive queue.
        Srq,
        /// Memory region.
        Mr,
        /// Memory window.
        Mw,
        /// Fast memory region.
        Fmr,
        /// User context.
        User,
    }
}

/// Names a protection domain.
pub type PdHandle = Handle<kind::Pd>;
/// Names an address handle.
pub type AhHandle = Handle<kind::Ah>;
/// Names a completion queue.
pub type CqHandle = Handle<kind::Cq>;
/// Names a queue pair.
pub type QpHandle = Handle<kind::Qp>;
/// Names a shared receive queue.
pub type SrqHandle = Handle<kind::Srq>;
/// Names a memory region.
pub type MrHandle = Handle<kind::Mr>;
/// Names a memory window.
pub type MwHandle = Handle<kind::Mw>;
/// Names a fast memory region.
pub type FmrHandle = Handle<kind::Fmr>;
/// Names a user context.
pub type UserHandle = Handle<kind::User>;
