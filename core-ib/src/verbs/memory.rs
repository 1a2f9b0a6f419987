//! Memory regions and windows. verbs 7.

use super::MrHandle;
use crate::platform::DmaAddr;
use crate::{LKey, RKey};
use bitflags::bitflags;

bitflags! {
    /// Access rights. Local read is always granted. verbs 7.2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The HCA may write on behalf of local requests.
        const LOCAL_WRITE = 1;
        /// A peer may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 2;
        /// A peer may read.
        const REMOTE_READ = 4;
        /// A peer may use atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 8;
        /// Windows may be bound.
        const MW_BIND = 16;
        /// Addresses count from 0.
        const ZERO_BASED = 32;
    }
}

impl Access {
    /// Any of the remote rights.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);

    /// Do the remote write rights have the local write right that they need?
    pub const fn is_consistent(self) -> bool {
        self.contains(Self::LOCAL_WRITE)
            || !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// What to register.
#[derive(Clone, Copy, Debug)]
pub struct MrInit<'a> {
    /// Address by which requests name the first byte. Its offset within a page is that of the memory.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// The memory: `1 << page_shift` bytes at each of these, in order.
    pub pages: &'a [DmaAddr],
    /// Logarithm of the page size; at least 12.
    pub page_shift: u8,
    /// Rights.
    pub access: Access,
}

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Its name.
    pub handle: MrHandle,
    /// For local requests.
    pub lkey: LKey,
    /// For the peer.
    pub rkey: RKey,
}

/// The keys of a region, as numbers, for a C structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawKeys {
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// Key of a PD's whole-memory region: every bus address, no bounds. A type of its own, because posting with it
/// gives the HCA any address that the request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeMemoryKey(LKey);

impl WholeMemoryKey {
    /// For drivers, which made the region.
    pub const fn new(lkey: LKey) -> Self {
        Self(lkey)
    }

    /// The key as an ordinary one.
    ///
    /// # Safety
    ///
    /// Every entry posted with it names memory that is mapped for the device and stays so until the request has
    /// completed, and that the program touches meanwhile only as the request allows.
    pub const unsafe fn as_lkey(self) -> LKey {
        self.0
    }
}

/// Kind of a memory window. verbs 7.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Bound by a verb; its key is chosen by the driver.
    Type1,
    /// Bound by a work request; belongs to one QP.
    Type2,
}

/// What to make a fast memory region with. verbs 7.1 (legacy FMR), infinihost 4.11.
#[derive(Clone, Copy, Debug)]
pub struct FmrInit {
    /// Pages that a mapping has at most.
    pub max_pages: u32,
    /// Mappings between two unmaps at most.
    pub max_maps: u32,
    /// Logarithm of the page size.
    pub page_shift: u8,
    /// Rights.
    pub access: Access,
}
