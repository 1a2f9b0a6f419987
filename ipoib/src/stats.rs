//! What is counted. Nothing that is dropped goes uncounted; every counter sticks at its end.

use crate::link::DropCause;

/// Adds one.
pub(crate) const fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// Counters of the state machine of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Dropped: the interface is not up.
    pub down: u64,
    /// Dropped: an address that is none of this link.
    pub bad_address: u64,
    /// Dropped: no path, no group, or no answer.
    pub unreachable: u64,
    /// Dropped: `parked`, `parked_per_path` or `parked_per_group` of the profile.
    pub parked_full: u64,
    /// Dropped: `paths` of the profile.
    pub paths_full: u64,
    /// Dropped, or a listener refused: `groups` of the profile.
    pub groups_full: u64,
    /// Dropped: the QP is being repaired.
    pub repair: u64,
    /// Paths asked for.
    pub path_queries: u64,
    /// Joins asked for.
    pub joins: u64,
    /// Leaves asked for.
    pub leaves: u64,
    /// Requests to the SA that failed.
    pub sa_failures: u64,
    /// Answers of the SA that made no sense.
    pub bad_answers: u64,
    /// Answers to a request that is not outstanding (any more).
    pub stale_answers: u64,
    /// Wishes that failed.
    pub failed_wishes: u64,
    /// Times that the QP had to be repaired.
    pub repairs: u64,
    /// Times that the interface came up.
    pub ups: u64,
}

impl LinkStatistics {
    pub(crate) const fn dropped(&mut self, cause: DropCause) {
        count(match cause {
            DropCause::Down => &mut self.down,
            DropCause::BadAddress => &mut self.bad_address,
            DropCause::Unreachable => &mut self.unreachable,
            DropCause::ParkedFull => &mut self.parked_full,
            DropCause::PathsFull => &mut self.paths_full,
            DropCause::GroupsFull => &mut self.groups_full,
            DropCause::Repair => &mut self.repair,
        });
    }
}

/// Counters of the rings of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStatistics {
    /// Frames whose send completed.
    pub sent: u64,
    /// Bytes posted, the 4-byte headers included.
    pub sent_bytes: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Of these, frames to a group.
    pub received_multicast: u64,
    /// Own frames that came back from a group; dropped.
    pub own_copies: u64,
    /// Sends that ended in error.
    pub send_errors: u64,
    /// Receives that ended in error, other than by a flush.
    pub receive_errors: u64,
    /// Received frames too short for a header, too long to be true, or with a GRH that makes no sense.
    pub malformed: u64,
    /// Sends that were lost when the QP was reset.
    pub lost_in_reset: u64,
    /// Frames that found all `send_frames` in use.
    pub no_frame: u64,
    /// Frames that found no address handle to send with.
    pub no_address_handle: u64,
    /// Posts that the HCA refused.
    pub refused_posts: u64,
    /// Completions of what was not posted. A defect of the HCA or its driver.
    pub stray_completions: u64,
}

/// Counters of the neighbour half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourStatistics {
    /// Packets that are neither IPv4 nor IPv6, or too short for their header.
    pub malformed: u64,
    /// Packets to an address that is not on the link, without a gateway.
    pub no_route: u64,
    /// Packets to an address that is our own, or to none.
    pub bad_destination: u64,
    /// Packets to a neighbour that did not answer.
    pub unreachable: u64,
    /// `parked_for_neighbours` or `parked_per_neighbour` of the profile.
    pub parked_full: u64,
    /// `neighbours` of the profile: all were being resolved.
    pub neighbours_full: u64,
    /// `memberships` of the profile, or no room for the group in the link.
    pub groups_full: u64,
    /// Packets dropped because the link is down.
    pub down: u64,
    /// ARP and neighbour discovery messages sent.
    pub messages_sent: u64,
    /// The same, received and understood.
    pub messages_received: u64,
    /// The same, received and not understood.
    pub bad_messages: u64,
    /// Messages that claim one of our addresses for somebody else.
    pub conflicts: u64,
    /// Answers that found too many waiting to be sent.
    pub replies_full: u64,
    /// Received frames of a protocol that is neither IP nor ARP.
    pub unknown_protocol: u64,
}

/// Counters of connected mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectedStatistics {
    /// Connections that came up, to peers and from peers.
    pub opened: u64,
    /// Connections that were given up.
    pub ended: u64,
    /// Peers that were rejected.
    pub rejected: u64,
    /// `connections` of the profile.
    pub connections_full: u64,
    /// QPs that could not be made.
    pub failed_wishes: u64,
    /// Messages whose send completed.
    pub sent: u64,
    /// Messages that came.
    pub received: u64,
    /// Sends that failed.
    pub send_errors: u64,
    /// Receives that failed, or were of no connection.
    pub receive_errors: u64,
    /// Dropped: longer than the peer takes.
    pub too_long: u64,
    /// Not sent by a connection, because there was none yet: short packets go as datagrams, others are dropped.
    pub no_connection: u64,
    /// Dropped: `send_frames` of connected mode.
    pub no_frame: u64,
    /// Dropped: the QP did not take them.
    pub refused_posts: u64,
    /// Completions of nothing that was posted.
    pub stray_completions: u64,
}

/// Everything that an interface counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The state machine of the link.
    pub link: LinkStatistics,
    /// The rings.
    pub rings: RingStatistics,
    /// Connected mode; all zero where there is none.
    pub connected: ConnectedStatistics,
    /// The neighbour half; all zero where there is none.
    pub neighbours: NeighbourStatistics,
}
