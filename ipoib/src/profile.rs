//! What the owner of an interface chooses: capacities and times.
//!
//! Capacities are fixed when the interface is made, since nothing allocates afterwards. Where one is exceeded, the
//! error or the counter names the entry here that is to be raised.

use crate::link::GroupParams;
use core::time::Duration;
use core_ib::Mtu;
use core_ib::wire::ipoib::Scope;

/// Capacities and times of one interface. `Profile::default()` suits a host with some dozens of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Largest InfiniBand MTU that buffers are made for; those of a port with a smaller one are smaller. A broadcast
    /// group of a larger MTU is not joined ([`DownCause::GroupMtu`](crate::link::DownCause::GroupMtu)).
    pub max_mtu: Mtu,
    /// Frames to be sent or parked at the same time; 2 to 32768.
    pub send_frames: u16,
    /// Receive buffers; 1 to 32768.
    pub recv_frames: u16,
    /// Completion vector of the HCA that announces completions.
    pub vector: u16,
    /// Scope of the broadcast group, and so of all.
    pub scope: Scope,
    /// If the subnet manager has no broadcast group: create it so. As a rule it does; protocols 9.8.
    pub create_broadcast: Option<GroupParams>,
    /// Multicast groups, the broadcast group among them; at least 2. Half of them at most are joined only to send.
    pub groups: u16,
    /// Destinations to which a path is kept; at least 1. Of a full table the one not used for longest goes.
    pub paths: u16,
    /// Frames that wait for a path or a group at the same time; keep it well below `send_frames`.
    pub parked: u16,
    /// Of these, for one path: the fragments of a large packet are as many.
    pub parked_per_path: u16,
    /// Of these, for one group.
    pub parked_per_group: u16,
    /// Requests to the SA outstanding at the same time; at least 1.
    pub sa_outstanding: u16,
    /// IP neighbours; at least 1. Of a full table the one not used for longest goes. `neigh` only.
    pub neighbours: u16,
    /// Packets that wait for a neighbour at the same time. `neigh` only.
    pub parked_for_neighbours: u16,
    /// Of these, for one neighbour. `neigh` only.
    pub parked_per_neighbour: u16,
    /// Multicast addresses that are listened to: those that come with the host's addresses, those joined by name, and
    /// those that the host's IP stack joined by IGMP and MLD. `neigh` only.
    pub memberships: u16,
    /// Ask whether somebody has an IPv6 address before answering for it (RFC 4862). `neigh` only.
    pub duplicate_address_detection: bool,
    /// Connected mode, if it is wanted; needs a communication manager beside the interface.
    pub connected: Option<ConnectedProfile>,
    /// Times.
    pub timers: Timers,
}

/// Capacities of connected mode. protocols 6.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedProfile {
    /// Bytes of the longest datagram, at most 65520. Each of the frames below is as long as that.
    pub mtu: u16,
    /// Connections, to peers and from peers together. Beyond that peers are rejected, and sent datagrams.
    pub connections: u16,
    /// Frames to be sent at the same time.
    pub send_frames: u16,
    /// Receive buffers, shared by all connections.
    pub recv_frames: u16,
    /// A connection that was not used for so long is ended.
    pub idle: Duration,
}

impl ConnectedProfile {
    /// 64 KiB, 32 connections, 3 MiB of frames; idle ones live as long as Linux's.
    pub const DEFAULT: Self = Self {
        mtu: 65520,
        connections: 32,
        send_frames: 16,
        recv_frames: 32,
        idle: Duration::from_secs(512),
    };
}

impl Default for ConnectedProfile {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long things take and last. All are at least 1 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// A request to the SA without an answer by then counts as timed out. The SA client's own time-out and retries
    /// are shorter, so this is for an owner that loses one.
    pub sa_limit: Duration,
    /// First pause after a failed request; doubles with every further one.
    pub backoff: Duration,
    /// Where doubling ends. protocols 6.4: 16 s.
    pub backoff_limit: Duration,
    /// Age at which a path that is in use is asked for anew, beside its use.
    pub path_refresh: Duration,
    /// A path that was not used for so long is forgotten.
    pub path_idle: Duration,
    /// A group joined only to send that was not used for so long is left.
    pub group_idle: Duration,
    /// A neighbour heard of is taken for reachable for so long. RFC 4861, 10.
    pub reachable: Duration,
    /// Time for upper layers to confirm a neighbour before it is probed. RFC 4861, 10.
    pub delay: Duration,
    /// Between two solicitations. RFC 4861, 10.
    pub retransmit: Duration,
    /// A neighbour that was not used for so long is forgotten.
    pub neighbour_idle: Duration,
}

impl Timers {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        sa_limit: Duration::from_secs(60),
        backoff: Duration::from_secs(1),
        backoff_limit: Duration::from_secs(16),
        path_refresh: Duration::from_secs(600),
        path_idle: Duration::from_secs(120),
        group_idle: Duration::from_secs(300),
        reachable: Duration::from_secs(30),
        delay: Duration::from_secs(5),
        retransmit: Duration::from_secs(1),
        neighbour_idle: Duration::from_secs(600),
    };
}

impl Default for Timers {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Profile {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        max_mtu: Mtu::Mtu2048,
        send_frames: 128,
        recv_frames: 256,
        vector: 0,
        scope: Scope::LINK_LOCAL,
        create_broadcast: None,
        groups: 32,
        paths: 64,
        parked: 48,
        parked_per_path: 32,
        parked_per_group: 16,
        sa_outstanding: 4,
        neighbours: 64,
        parked_for_neighbours: 48,
        parked_per_neighbour: 32,
        memberships: 32,
        duplicate_address_detection: true,
        connected: None,
        timers: Timers::DEFAULT,
    };
}

impl Default for Profile {
    fn default() -> Self {
        Self::DEFAULT
    }
}
