//! What a device declares: its features, and its choices where the reference allows several.

use bitflags::bitflags;
use core::time::Duration;

bitflags! {
    /// What there is. Without it, the calls concerned answer `Unsupported`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u32 {
        /// RC QPs can be made and modified.
        const RC = 1 << 0;
        /// UC QPs can be made and modified.
        const UC = 1 << 1;
        /// SRQs.
        const SRQ = 1 << 2;
        /// SRQs of UC QPs.
        const SRQ_OF_UC = 1 << 3;
        /// SRQs can be resized.
        const SRQ_RESIZE = 1 << 4;
        /// CQs can be resized.
        const CQ_RESIZE = 1 << 5;
        /// Memory windows of type 1.
        const WINDOWS_1 = 1 << 6;
        /// Memory windows of type 2.
        const WINDOWS_2 = 1 << 7;
        /// Fast memory regions of the old kind.
        const FMR = 1 << 8;
        /// Atomics.
        const ATOMICS = 1 << 9;
        /// Automatic path migration.
        const PATH_MIGRATION = 1 << 10;
        /// An address handle can be modified.
        const MODIFY_AH = 1 << 11;
        /// A registered region can be registered anew.
        const REREGISTER = 1 << 12;
        /// Zero-based regions.
        const ZERO_BASED = 1 << 13;
        /// The node description can be set.
        const NODE_DESCRIPTION = 1 << 14;
        /// The system image GUID can be set.
        const SYSTEM_IMAGE = 1 << 15;
        /// Capability bits of a port can be set.
        const PORT_CAPABILITIES = 1 << 16;
        /// Contexts for users.
        const USERS = 1 << 17;
        /// GSI sends immediate data.
        const GSI_IMMEDIATE = 1 << 18;
        /// Send, and invalidate a key of the peer.
        const SEND_INVALIDATE = 1 << 19;
        /// The HCA tells of another subnet manager.
        const SM_CHANGE = 1 << 20;
        /// The HCA tells of another GID table or prefix.
        const GID_CHANGE = 1 << 21;
        /// Checksums of what IPoIB carries. Without it, nobody is refused: they are not made.
        const CHECKSUMS = 1 << 22;
    }
}

/// When a mistake in a request comes to light. verbs 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Posting fails.
    AtPost,
    /// The request completes with an error.
    InCompletion,
    /// Never: the HCA does not look.
    Never,
}

/// What becomes of a datagram longer than the MTU. verbs 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLong {
    /// Posting fails.
    AtPost,
    /// The request completes with an error.
    InCompletion,
    /// The request completes as if it had been sent, and no packet leaves.
    Silently,
}

/// What becomes of a datagram longer than the receive buffer. verbs 9.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hears {
    /// The receive completes with LOC_LEN and the QP goes to ERR.
    Error,
    /// It is dropped, and the receive is kept.
    Nothing,
}

/// What a device declares.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// What there is.
    pub features: Features,
    /// Address handle of another PD than the QP's. verbs 4.3.
    pub ah_of_another_pd: Refusal,
    /// Datagram longer than the MTU. verbs 4.3.
    pub datagram_too_long: TooLong,
    /// Datagram longer than the receive buffer. verbs 9.3.
    pub receive_too_short: Hears,
    /// A send queue error of a datagram QP ends in ERR rather than in SQE. verbs 3.8.
    pub send_error_is_fatal: bool,
    /// How long a receive request that is posted to a queue in ERR may wait for its flush, since the device is not told
    /// and looks now and then. verbs 3.9: however late, without another modify.
    pub late_flush: Duration,
}

impl Declared {
    /// Does the HCA have all of `features`?
    pub const fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }
}
