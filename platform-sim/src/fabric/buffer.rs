//! Buffers of a node: packets that came in, or were made here, until the last of those who wait for them is done.

use super::port::Charge;
use core_ib::Instant;

/// Where a buffered packet came from, and what is to be given back when it is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct From {
    /// Index of the port.
    pub(super) port: usize,
    /// Of its cable when the packet came.
    pub(super) epoch: u32,
    /// Room that it takes.
    pub(super) charge: Option<Charge>,
    /// It holds one of the places for management packets.
    pub(super) is_smp: bool,
}

/// A packet in a buffer.
#[derive(Debug)]
pub(super) struct Buffered {
    /// LRH to VCRC.
    pub(super) packet: Vec<u8>,
    /// None if it was made here.
    pub(super) from: Option<From>,
    /// How many wait for it.
    pub(super) waiting: usize,
    /// When it came.
    pub(super) arrived: Instant,
}

/// All buffers of a node.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    slots: Vec<Option<Buffered>>,
    free: Vec<usize>,
}

impl Buffers {
    /// Puts a packet into a free buffer, and says which.
    pub(super) fn put(&mut self, buffered: Buffered) -> usize {
        if let Some(slot) = self.free.pop()
            && let Some(place) = self.slots.get_mut(slot)
        {
            *place = Some(buffered);
            return slot;
        }
        self.slots.push(Some(buffered));
        self.slots.len() - 1
    }

    /// The packet of a buffer.
    pub(super) fn get(&self, slot: usize) -> Option<&Buffered> {
        self.slots.get(slot)?.as_ref()
    }

    /// Puts the packet of a buffer into `out`, for one of those who wait for it: a copy, or for the last of them the packet
    /// itself.
    pub(super) fn take(&mut self, slot: usize, out: &mut Vec<u8>) {
        if let Some(Some(buffered)) = self.slots.get_mut(slot) {
            if buffered.waiting == 1 {
                core::mem::swap(out, &mut buffered.packet);
            } else {
                out.clear();
                out.extend_from_slice(&buffered.packet);
            }
        }
    }

    /// One of those who wait is done. Gives back what was in the buffer when it was the last.
    pub(super) fn done(&mut self, slot: usize) -> Option<Buffered> {
        let place = self.slots.get_mut(slot)?;
        let buffered = place.as_mut()?;
        buffered.waiting = buffered.waiting.saturating_sub(1);
        if buffered.waiting > 0 {
            return None;
        }
        self.free.push(slot);
        place.take()
    }

    /// Buffers in use.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(waiting: usize) -> Buffered {
        Buffered {
            packet: vec![7; 30],
            from: None,
            waiting,
            arrived: Instant(0),
        }
    }

    #[test]
    fn the_last_of_several_gets_the_packet_itself_and_frees_the_buffer() {
        let mut buffers = Buffers::default();
        let slot = buffers.put(packet(2));
        let mut copy = Vec::new();
        buffers.take(slot, &mut copy);
        assert_eq!(copy, [7; 30]);
        assert!(buffers.done(slot).is_none());
        let mut last = vec![1, 2];
        buffers.take(slot, &mut last);
        assert_eq!(last, [7; 30]);
        assert_eq!(buffers.done(slot).unwrap().packet, [1, 2], "exchanged");
        assert_eq!(buffers.held(), 0);
        assert!(buffers.done(slot).is_none(), "twice");
        assert_eq!(buffers.put(packet(1)), slot, "used again");
    }
}
