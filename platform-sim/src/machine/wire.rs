//! What a machine's ports are plugged into: the fabric, or a single cable.
//!
//! The machine drives it: it sends, asks when something happens next, and at that instant polls for what arrived.
//! Nothing here calls back, so a function may send while it receives.

use super::{LinkControl, LinkParameters, SendQueueFull};
use core::time::Duration;
use core_ib::Instant;
use std::any::Any;
use std::collections::VecDeque;

/// One place where the port of an HCA is plugged in. Numbers are the wire's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireEnd(pub u32);

/// What comes out of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A packet has arrived whole.
    Packet {
        /// At whose port.
        end: WireEnd,
        /// LRH to VCRC, perhaps corrupt.
        packet: Vec<u8>,
    },
    /// A link trained, or went down.
    Link {
        /// At whose port.
        end: WireEnd,
        /// What it was trained to.
        up: Option<LinkParameters>,
    },
    /// A queue that refused a packet has room again.
    Room {
        /// At whose port.
        end: WireEnd,
        /// Of which virtual lane.
        vl: u8,
    },
}

/// A fabric, seen from the machines that are plugged into it. Time is an argument and never goes back.
pub trait Wire: Any + Send {
    /// As [`Bus::send`](super::Bus::send).
    fn send(&mut self, end: WireEnd, packet: &[u8], now: Instant) -> Result<(), SendQueueFull>;
    /// As [`Bus::set_link`](super::Bus::set_link). An end starts, and is after its machine was switched off,
    /// `Disabled`.
    fn set_link(&mut self, end: WireEnd, control: LinkControl, now: Instant);
    /// When [`poll`](Self::poll) will have something, if nothing is sent meanwhile. May be early, never late; `None`
    /// is never.
    fn next_event(&self) -> Option<Instant>;
    /// The next thing that happened up to `now`, oldest first; `None` when there is no more.
    fn poll(&mut self, now: Instant) -> Option<Delivery>;
    /// Takes the memory of a delivered packet back.
    fn recycle(&mut self, packet: Vec<u8>) {
        drop(packet);
    }
}

/// What ports are plugged into that are not plugged in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl Wire for Nowhere {
    fn send(&mut self, _: WireEnd, _: &[u8], _: Instant) -> Result<(), SendQueueFull> {
        Ok(())
    }

    fn set_link(&mut self, _: WireEnd, _: LinkControl, _: Instant) {}

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn poll(&mut self, _: Instant) -> Option<Delivery> {
        None
    }
}

/// One cable between ends 0 and 1, without loss: what two HCAs back to back have. Also the smallest [`Wire`].
#[derive(Debug)]
pub struct Cable {
    parameters: LinkParameters,
    delay: Duration,
    polling: [bool; 2],
    up: bool,
    /// When the sender of each end will have sent all it was given.
    line_free: [Instant; 2],
    /// Bytes given and not yet sent, by end, with the instant at which each packet has left.
    leaving: [VecDeque<Instant>; 2],
    /// Virtual lanes of which a packet was refused, as a set.
    refused: [u16; 2],
    arrivals: VecDeque<(Instant, Delivery)>,
}

impl Cable {
    /// Packets that each end may queue.
    const QUEUE: usize = 16;
    /// How long training takes.
    const TRAINING: Duration = Duration::from_micros(10);

    /// A cable of this speed, on which light takes `delay`.
    pub fn new(parameters: LinkParameters, delay: Duration) -> Self {
        Self {
            parameters,
            delay,
            polling: [false; 2],
            up: false,
            line_free: [Instant(0); 2],
            leaving: [VecDeque::new(), VecDeque::new()],
            refused: [0; 2],
            arrivals: VecDeque::new(),
        }
    }

    fn arrive(&mut self, at: Instant, delivery: Delivery) {
        let place = self.arrivals.partition_point(|(other, _)| *other <= at);
        self.arrivals.insert(place, (at, delivery));
    }
}

impl Wire for Cable {
    fn send(&mut self, end: WireEnd, packet: &[u8], now: Instant) -> Result<(), SendQueueFull> {
        let side = (end.0 & 1) as usize;
        if !self.up {
            return Ok(());
        }
        let leaving = &mut self.leaving[side];
        while leaving.front().is_some_and(|at| *at <= now) {
            leaving.pop_front();
        }
        let vl = packet.first().map_or(0, |byte| byte >> 4);
        if let Some(frees) = leaving.front().copied()
            && leaving.len() >= Self::QUEUE
        {
            if self.refused[side] & 1 << vl == 0 {
                self.refused[side] |= 1 << vl;
                self.arrive(frees, Delivery::Room { end, vl });
            }
            return Err(SendQueueFull);
        }
        let bits = packet.len() as u64 * 8;
        let nanos = (bits * 1000).div_ceil(u64::from(self.parameters.mbit().max(1)));
        let starts = if self.line_free[side] > now {
            self.line_free[side]
        } else {
            now
        };
        let gone = starts.after(Duration::from_nanos(nanos));
        self.line_free[side] = gone;
        self.leaving[side].push_back(gone);
        let delivery = Delivery::Packet {
            end: WireEnd(end.0 ^ 1),
            packet: packet.to_vec(),
        };
        self.arrive(gone.after(self.delay), delivery);
        Ok(())
    }

    fn set_link(&mut self, end: WireEnd, control: LinkControl, now: Instant) {
        let side = (end.0 & 1) as usize;
        self.polling[side] = match control {
            LinkControl::Disabled => false,
            LinkControl::Polling { widths, speeds } => {
                widths.0 & self.parameters.width.0 != 0 && speeds.0 & self.parameters.speed.0 != 0
            }
        };
        let up = self.polling == [true; 2];
        if up == self.up {
            return;
        }
        self.up = up;
        if !up {
            self.arrivals.clear();
            self.leaving.iter_mut().for_each(VecDeque::clear);
            self.refused = [0; 2];
            self.line_free = [now; 2];
        }
        let (up, at) = if up {
            (Some(self.parameters), now.after(Self::TRAINING))
        } else {
            (None, now)
        };
        for end in [WireEnd(0), WireEnd(1)] {
            self.arrive(at, Delivery::Link { end, up });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        self.arrivals.front().map(|(at, _)| *at)
    }

    fn poll(&mut self, now: Instant) -> Option<Delivery> {
        if self.arrivals.front()?.0 > now {
            return None;
        }
        let (_, delivery) = self.arrivals.pop_front()?;
        if let Delivery::Room { end, vl } = delivery {
            self.refused[(end.0 & 1) as usize] &= !(1 << vl);
        }
        Some(delivery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{LinkSpeed, LinkWidth};

    const POLLING: LinkControl = LinkControl::Polling {
        widths: LinkWidth(3),
        speeds: LinkSpeed::SDR,
    };

    fn trained() -> Cable {
        let mut cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(5));
        cable.set_link(WireEnd(0), POLLING, Instant(0));
        assert_eq!(cable.next_event(), None, "nobody at the other end");
        cable.set_link(WireEnd(1), POLLING, Instant(0));
        let at = cable.next_event().unwrap();
        for end in [WireEnd(0), WireEnd(1)] {
            let up = Some(LinkParameters::X4_SDR);
            assert_eq!(cable.poll(at), Some(Delivery::Link { end, up }));
        }
        cable
    }

    #[test]
    fn a_packet_arrives_after_its_bits_and_the_delay() {
        let mut cable = trained();
        let now = Instant(20_000);
        cable.send(WireEnd(0), &[0; 100], now).unwrap();
        cable.send(WireEnd(0), &[1; 100], now).unwrap();
        assert_eq!(cable.next_event(), Some(Instant(20_105)), "8 Gbit/s");
        assert_eq!(cable.poll(Instant(20_104)), None);
        let first = cable.poll(Instant(20_105));
        let (end, packet) = (WireEnd(1), vec![0; 100]);
        assert_eq!(first, Some(Delivery::Packet { end, packet }));
        assert_eq!(cable.next_event(), Some(Instant(20_205)));
    }

    #[test]
    fn a_full_queue_refuses_and_says_once_a_lane_when_there_is_room() {
        let mut cable = trained();
        let now = Instant(20_000);
        let taken = (0..100)
            .take_while(|_| cable.send(WireEnd(1), &[0x30; 1000], now).is_ok())
            .count();
        assert_eq!(taken, Cable::QUEUE);
        assert_eq!(
            cable.send(WireEnd(1), &[0x30; 1000], now),
            Err(SendQueueFull)
        );
        let manager = cable.send(WireEnd(1), &[0xf0; 1000], now);
        assert_eq!(manager, Err(SendQueueFull), "one queue for all lanes");
        let mut rooms = Vec::new();
        let mut packets = 0;
        while let Some(delivery) = cable.poll(Instant(1_000_000)) {
            match delivery {
                Delivery::Room { end, vl } => rooms.push((end.0, vl)),
                _ => packets += 1,
            }
        }
        assert_eq!((rooms, packets), (vec![(1, 3), (1, 15)], Cable::QUEUE));
    }

    #[test]
    fn what_is_on_a_cable_that_goes_down_is_lost() {
        let mut cable = trained();
        cable.send(WireEnd(0), &[0; 100], Instant(20_000)).unwrap();
        cable.set_link(WireEnd(1), LinkControl::Disabled, Instant(20_001));
        for end in [WireEnd(0), WireEnd(1)] {
            let down = Delivery::Link { end, up: None };
            assert_eq!(cable.poll(Instant(30_000)), Some(down));
        }
        assert_eq!(cable.send(WireEnd(0), &[0; 100], Instant(30_000)), Ok(()));
        assert_eq!(cable.next_event(), None);
    }
}
