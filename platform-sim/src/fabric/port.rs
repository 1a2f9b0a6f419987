//! One physical port: what waits to leave by it, and the credits that it has of its peer.

use super::arbiter::Arbiter;
use crate::machine::{LinkControl, LinkParameters, WireEnd};
use core_ib::Instant;
use core_ib::wire::packet::blocks;
use std::collections::VecDeque;

/// Lanes that carry data.
pub(super) const DATA_LANES: usize = 15;

/// What waits in a queue.
#[derive(Debug)]
pub(super) enum Item {
    /// A packet of its own.
    Own(Vec<u8>),
    /// A packet in a buffer of the node.
    Slot(usize),
}

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) item: Item,
    /// LRH to VCRC.
    pub(super) len: usize,
    /// When it came to the node.
    pub(super) arrived: Instant,
}

/// Room that a packet takes at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) vl: u8,
    pub(super) blocks: u32,
}

/// Consecutive packets of a lane that waited too long, and until when the lane is stalled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    pub(super) drops: u8,
    pub(super) until: Option<Instant>,
}

/// The port.
#[derive(Debug)]
pub(super) struct Port {
    /// Whose it is.
    pub(super) node: usize,
    /// Its number there.
    pub(super) number: u8,
    /// Which end of the wire it is, if somebody outside plays it.
    pub(super) end: Option<WireEnd>,
    /// Cable, and which end of it.
    pub(super) cable: Option<(usize, usize)>,
    /// What its owner wants of the link.
    pub(super) wants: LinkControl,
    /// What the link was trained to.
    pub(super) up: Option<LinkParameters>,
    pub(super) queues: [VecDeque<Queued>; 16],
    /// Since when the head of each queue is the head.
    pub(super) head_since: [Instant; 16],
    /// Blocks that may still be sent to the peer, by lane.
    pub(super) credits: [u32; DATA_LANES],
    /// Until when the last packet takes the line.
    pub(super) busy_until: Instant,
    /// The port is to be looked at again then.
    pub(super) wake: bool,
    /// Part of a nanosecond that the last packets took beyond `busy_until`, in units of 1/Mbit of one.
    remainder: u64,
    pub(super) arbiter: Arbiter,
    /// Since when data waits for credits.
    pub(super) waits_since: Option<Instant>,
    /// Lanes of which a packet was refused, as a set.
    pub(super) refused: u16,
    /// Management packets in the node's buffers that came by this port.
    pub(super) vl15_held: u16,
    /// Checks of old heads that are due, by lane.
    pub(super) check_due: [bool; DATA_LANES],
    pub(super) stalls: [Stall; DATA_LANES],
}

impl Port {
    pub(super) fn new(node: usize, number: u8) -> Self {
        Self {
            node,
            number,
            end: None,
            cable: None,
            wants: LinkControl::Disabled,
            up: None,
            queues: Default::default(),
            head_since: [Instant(0); 16],
            credits: [0; DATA_LANES],
            busy_until: Instant(0),
            wake: false,
            remainder: 0,
            arbiter: Arbiter::default(),
            waits_since: None,
            refused: 0,
            vl15_held: 0,
            check_due: [false; DATA_LANES],
            stalls: [Stall::default(); DATA_LANES],
        }
    }

    /// A link trained: everything begins anew, with room for `blocks` blocks a lane at the peer.
    pub(super) fn begin(&mut self, parameters: LinkParameters, blocks: u32, now: Instant) {
        self.up = Some(parameters);
        self.credits = [blocks; DATA_LANES];
        self.busy_until = now;
        self.remainder = 0;
        self.arbiter = Arbiter::default();
        self.waits_since = None;
        self.stalls = [Stall::default(); DATA_LANES];
    }

    /// Queues a packet on lane `vl`.
    pub(super) fn push(&mut self, vl: u8, queued: Queued, now: Instant) {
        let Some(queue) = self.queues.get_mut(usize::from(vl)) else {
            return;
        };
        if queue.is_empty()
            && let Some(since) = self.head_since.get_mut(usize::from(vl))
        {
            *since = now;
        }
        queue.push_back(queued);
    }

    /// Takes the head of lane `vl`; the one behind it is head from now on.
    pub(super) fn pop(&mut self, vl: u8, now: Instant) -> Option<Queued> {
        let head = self.queues.get_mut(usize::from(vl))?.pop_front();
        if let Some(since) = self.head_since.get_mut(usize::from(vl)) {
            *since = now;
        }
        head
    }

    /// Bytes of the head of lane `vl`; 0 if nothing waits.
    pub(super) fn head_len(&self, vl: u8) -> usize {
        let queue = self.queues.get(usize::from(vl));
        queue.and_then(VecDeque::front).map_or(0, |head| head.len)
    }

    /// Data lanes whose head has the credits that it needs, as a set; and whether data waits at all.
    pub(super) fn ready(&self) -> (u16, bool) {
        let mut ready = 0;
        let mut waits = false;
        let lanes = (0_u16..).zip(self.queues.iter().zip(&self.credits));
        for (vl, (queue, credits)) in lanes {
            if let Some(head) = queue.front() {
                waits = true;
                if blocks(head.len) as u32 <= *credits {
                    ready |= 1 << vl;
                }
            }
        }
        (ready, waits)
    }

    /// Something waits on some lane.
    pub(super) fn has_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Takes the room of a packet of `len` bytes at the peer; none if there is too little. VL15 has no room to take.
    pub(super) fn charge(&mut self, vl: u8, len: usize) -> Option<Charge> {
        let credits = self.credits.get_mut(usize::from(vl))?;
        let blocks = blocks(len) as u32;
        *credits = credits.checked_sub(blocks)?;
        Some(Charge { vl, blocks })
    }

    /// Gives room back.
    pub(super) fn give_back(&mut self, charge: Charge) {
        if let Some(credits) = self.credits.get_mut(usize::from(charge.vl)) {
            *credits = credits.saturating_add(charge.blocks);
        }
    }

    /// Puts a packet of `len` bytes on the line at `now`, and says when its last bit has left. Parts of nanoseconds add up.
    pub(super) fn occupy(&mut self, len: usize, now: Instant) -> Instant {
        let mbit = u64::from(self.up.map_or(1, LinkParameters::mbit).max(1));
        let work = len as u64 * 8 * 1000 + self.remainder;
        self.remainder = work % mbit;
        self.busy_until = Instant(now.0.saturating_add(work / mbit));
        self.busy_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{LinkSpeed, LinkWidth};

    fn port(speed: LinkSpeed) -> Port {
        let mut port = Port::new(0, 1);
        let width = LinkWidth::X4;
        port.begin(LinkParameters { width, speed }, 10, Instant(0));
        port
    }

    #[test]
    fn a_byte_takes_a_nanosecond_on_4x_sdr_and_parts_of_one_add_up_on_4x_ndr() {
        let mut sdr = port(LinkSpeed::SDR);
        assert_eq!(sdr.occupy(100, Instant(7)), Instant(107));
        let mut ndr = port(LinkSpeed::NDR);
        let mut now = Instant(0);
        for _ in 0..1000 {
            now = ndr.occupy(64, now);
        }
        assert_eq!(now, Instant(1280), "64 000 bytes at 400 Gbit/s");
    }

    #[test]
    fn credits_are_taken_in_blocks_and_never_beyond_what_there_is() {
        let mut port = port(LinkSpeed::SDR);
        let charge = port.charge(3, 65).unwrap();
        assert_eq!(charge, Charge { vl: 3, blocks: 2 });
        assert_eq!(port.charge(3, 9 * 64), None);
        assert_eq!(port.credits[3], 8);
        assert_eq!(port.charge(2, 640).map(|c| c.blocks), Some(10));
        port.give_back(charge);
        assert_eq!(port.credits[3], 10);
        assert_eq!(port.charge(15, 64), None);
    }

    #[test]
    fn a_lane_is_ready_when_its_head_has_its_credits() {
        let mut port = port(LinkSpeed::SDR);
        assert_eq!(port.ready(), (0, false));
        let queued = |len| Queued {
            item: Item::Own(Vec::new()),
            len,
            arrived: Instant(0),
        };
        port.push(1, queued(11 * 64), Instant(0));
        assert_eq!(port.ready(), (0, true));
        port.push(4, queued(64), Instant(5));
        assert_eq!(port.ready(), (1 << 4, true));
        assert_eq!(port.head_since[4], Instant(5));
        assert_eq!(port.pop(4, Instant(9)).unwrap().len, 64);
    }
}
