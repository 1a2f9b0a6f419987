//! What the caller wants of the HCA: every fixed capacity of this driver is an entry of [`Profile`].
//!
//! Nothing is allocated behind the caller's back: the tables are made once, when the HCA is opened, from these numbers,
//! and a call that finds a table full names its entry ([`VerbsError::NoResources`](core_ib::verbs::VerbsError)). The
//! numbers are checked against what the HCA can ([`plan`](crate::plan)); nothing is silently reduced.

use core::fmt;
use core::time::Duration;

/// Where address vectors lie, which the HCA reads for each datagram. infinihost 4.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvPlace {
    /// In the memory attached to the HCA if the host can reach it, else in host memory. Sends are quicker.
    AttachedMemory,
    /// In host memory.
    HostMemory,
}

/// How the HCA announces events. infinihost 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// By MSI-X messages; by the pin if there are none, or if they do not arrive.
    Messages,
    /// By the interrupt pin.
    Pin,
    /// Not at all: the owner calls [`poll_events`](core_ib::verbs::Device::poll_events), commands are polled.
    None,
}

/// Sizes and choices for one HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// QPs of all services together. Host memory: about half a kilobyte each, queues apart.
    pub qps: u32,
    /// CQs.
    pub cqs: u32,
    /// SRQs. 0 where none are needed.
    pub srqs: u32,
    /// Memory regions of consumers; those of the driver's own queues are extra.
    pub mrs: u32,
    /// Memory windows. 0 where none are needed.
    pub mws: u32,
    /// Fast memory regions. 0 where none are needed; their pages are part of `mtt_pages`.
    pub fmrs: u32,
    /// User contexts, each a doorbell page. 0 where none are needed.
    pub users: u32,
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub ahs: u32,
    /// Pages (MTT entries) that all regions have together, those of queues included (1 to 2 each, as a rule). Whole
    /// segments of 8 are given out.
    pub mtt_pages: u32,
    /// Places in all work queues together: a queue takes its length, rounded up to a power of two. 16 bytes of host
    /// memory each.
    pub work_requests: u32,
    /// Multicast groups: so many hash buckets, and so many entries to overflow to.
    pub mcast_groups: u32,
    /// Reads and atomics that a QP can serve at a time; rounded up to a power of two.
    pub responder_depth: u32,
    /// Entries of the queue of asynchronous events and of that of command completions; rounded up to a power of two.
    pub event_entries: u32,
    /// Completion vectors, 1 to 16: event queues among which the consumers share out their CQs, each with an interrupt
    /// message of its own as far as the machine has messages.
    pub completion_vectors: u16,
    /// Commands in flight, 1 to 32. 8 KB of DMA memory each.
    pub commands: u8,
    /// How long a command may take before the HCA counts as dead. infinihost 3.4.
    pub command_limit: Duration,
    /// How long the interrupt test waits. infinihost 3.2.
    pub interrupt_test: Duration,
    /// How far apart the looks at the error buffer are. infinihost 2.6.
    pub error_poll: Duration,
    /// Where address vectors lie.
    pub address_vectors: AvPlace,
    /// How events are announced.
    pub interrupts: Interrupts,
}

impl Profile {
    /// For a host with memory to spare: about a megabyte of tables.
    pub const SERVER: Self = Self {
        qps: 1024,
        cqs: 1024,
        srqs: 128,
        mrs: 4096,
        mws: 256,
        fmrs: 1024,
        users: 64,
        pds: 256,
        ahs: 2048,
        mtt_pages: 1 << 17,
        work_requests: 1 << 17,
        mcast_groups: 1024,
        responder_depth: 4,
        event_entries: 256,
        completion_vectors: 4,
        commands: 16,
        command_limit: Duration::from_secs(60),
        interrupt_test: Duration::from_millis(100),
        error_poll: Duration::from_secs(5),
        address_vectors: AvPlace::AttachedMemory,
        interrupts: Interrupts::Messages,
    };

    /// For a machine with one fixed arena of a few hundred kilobytes: IPoIB and management on both ports, and a few
    /// QPs more.
    pub const SMALL: Self = Self {
        qps: 16,
        cqs: 16,
        srqs: 2,
        mrs: 32,
        mws: 0,
        fmrs: 0,
        users: 0,
        pds: 8,
        ahs: 64,
        mtt_pages: 1024,
        work_requests: 4096,
        mcast_groups: 16,
        responder_depth: 4,
        event_entries: 64,
        completion_vectors: 1,
        commands: 2,
        ..Self::SERVER
    };
}

impl Default for Profile {
    fn default() -> Self {
        Self::SERVER
    }
}

/// An entry of the profile that this HCA, or this driver, cannot satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileError {
    /// The HCA has fewer.
    TooMany {
        /// The entry.
        entry: &'static str,
        /// What it says.
        wanted: u32,
        /// What there is.
        limit: u32,
    },
    /// None at all would make an HCA that cannot be used.
    Zero {
        /// The entry.
        entry: &'static str,
    },
    /// The tables do not fit the memory attached to the HCA.
    DdrTooSmall {
        /// Bytes that the tables take.
        needed: u64,
        /// Bytes there are below the firmware.
        available: u64,
    },
    /// The tables do not fit the address space that the HCA has for lent memory.
    IcmTooSmall {
        /// Bytes that the tables take.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooMany {
                entry,
                wanted,
                limit,
            } => write!(
                f,
                "the profile's `{entry}` is {wanted}, this HCA allows {limit}"
            ),
            Self::Zero { entry } => write!(f, "the profile's `{entry}` is 0: raise it"),
            Self::DdrTooSmall { needed, available } => write!(
                f,
                "the tables take {needed} bytes of attached memory and there are {available}: lower the profile"
            ),
            Self::IcmTooSmall { needed, available } => write!(
                f,
                "the tables take {needed} bytes of ICM and there are {available}: lower the profile"
            ),
        }
    }
}

impl core::error::Error for ProfileError {}
