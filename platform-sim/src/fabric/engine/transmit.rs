//! What leaves by a port, when, and what becomes of the room that it takes.

use super::event::Event;
use super::{Fabric, Kind};
use crate::fabric::arbiter::Tables;
use crate::fabric::buffer::Buffered;
use crate::fabric::link::Arrival;
use crate::fabric::port::{Charge, Item};
use crate::machine::Wire;
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::packet::{HeaderView, LrhView, Vl, set_vl};

/// How long a lost packet's credits are missing: 65 536 symbols of 4 ns.
const RESYNC: Duration = Duration::from_nanos(65_536 * 4);

impl Fabric {
    /// Sends what can be sent by a port, now.
    pub(super) fn pump(&mut self, index: usize) {
        while let Some(port) = self.ports.get_mut(index) {
            if port.up.is_none() || !port.has_queued() {
                return;
            }
            if port.busy_until > self.now {
                if !port.wake {
                    port.wake = true;
                    let at = port.busy_until;
                    self.push(at, Event::Wake { port: index });
                }
                break;
            }
            match self.choose(index) {
                Some(vl) => self.transmit(index, vl),
                None => break,
            }
        }
        self.watch_heads(index);
    }

    /// The lane that sends next by a port whose line is free.
    pub(super) fn choose(&mut self, index: usize) -> Option<u8> {
        let port = self.ports.get_mut(index)?;
        if port.head_len(15) != 0 {
            return Some(15);
        }
        let (ready, waits) = port.ready();
        let state = match &self.nodes.get(port.node)?.kind {
            Kind::Inside(inside) => inside.state.port(port.number),
            Kind::Outside => None,
        };
        let tables = state.filter(|s| !s.vl_arb_low.is_empty()).map(|s| Tables {
            high: &s.vl_arb_high,
            low: &s.vl_arb_low,
            limit: s.info.vl_high_limit,
        });
        let mut arbiter = core::mem::take(&mut port.arbiter);
        let vl = arbiter.choose(tables, ready, |vl| port.head_len(vl));
        port.arbiter = arbiter;
        if vl.is_none() && waits && port.waits_since.is_none() {
            port.waits_since = Some(self.now);
        }
        vl
    }

    /// Puts the head of a lane on the line. The line is free, and the credits are there.
    pub(super) fn transmit(&mut self, index: usize, vl: u8) {
        let now = self.now;
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let Some(queued) = port.pop(vl, now) else {
            return;
        };
        let (node, number) = (port.node, port.number);
        if self.is_too_old(node, queued.arrived) {
            return self.discard(index, queued);
        }
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let charge = port.charge(vl, queued.len);
        let end = port.occupy(queued.len, now);
        let waited = port.waits_since.take();
        if let Some(stall) = port.stalls.get_mut(usize::from(vl)) {
            stall.drops = 0;
        }
        let bit = 1_u16 << (vl & 15);
        let refused = port.refused & bit;
        port.refused &= !bit;
        let Some((cable, side)) = port.cable else {
            return;
        };
        self.room(index, refused);
        let mut packet = match queued.item {
            Item::Own(packet) => packet,
            Item::Slot(slot) => {
                let packet = self.take(node, slot);
                self.done(node, slot, end);
                packet
            }
        };
        let lrh = LrhView::split(&packet).map(|(view, _)| *view);
        if let Ok(lrh) = lrh
            && let Some(inside) = self.inside_mut(node)
            && let Some(state) = inside.state.port_mut(number)
        {
            if vl != 15 {
                let words = lrh.pkt_len().words();
                state.counts.sent(words, lrh.dlid().is_multicast());
            }
            if let Some(since) = waited {
                let ticks = now.since(since).as_nanos() as u64;
                state.counts.xmit_wait.add(ticks);
            }
            if lrh.vl() != Vl::new(vl) {
                let _ = set_vl(&mut packet, Vl::new(vl)); // it has an LRH, so it can
            }
        }
        self.put_on_line(cable, side, packet, end, charge);
    }

    pub(super) fn put_on_line(
        &mut self,
        index: usize,
        side: usize,
        packet: Vec<u8>,
        end: Instant,
        charge: Option<Charge>,
    ) {
        let now = self.now;
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        let epoch = cable.epoch;
        let sender = cable.ends.get(side).copied().unwrap_or(usize::MAX);
        let port = cable.ends.get(side ^ 1).copied().unwrap_or(usize::MAX);
        if let Some(line) = cable.lines.get_mut(side) {
            line.send(packet, now, end, &mut arrivals);
        }
        let mut charge = charge;
        for Arrival { at, packet } in arrivals.drain(..) {
            let charge = charge.take(); // a second copy has not been paid for
            let event = Event::Arrive {
                port,
                epoch,
                packet,
                charge,
            };
            self.push(at, event);
        }
        self.arrivals = arrivals;
        if let Some(charge) = charge {
            let at = end.after(self.options.delay * 2).after(RESYNC);
            let event = Event::Credit {
                port: sender,
                epoch,
                charge,
            };
            self.push(at, event);
        }
    }

    /// The packet of a buffer, for one of those who wait for it.
    pub(super) fn take(&mut self, node: usize, slot: usize) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        if let Some(inside) = self.inside_mut(node) {
            inside.buffers.take(slot, &mut copy);
        }
        copy
    }

    /// One of those who wait for a buffered packet is done with it at `at`: when all are, its room is given back.
    pub(super) fn done(&mut self, node: usize, slot: usize, at: Instant) {
        let freed = self
            .inside_mut(node)
            .and_then(|inside| inside.buffers.done(slot));
        let Some(Buffered {
            packet,
            from: Some(from),
            ..
        }) = freed
        else {
            return;
        };
        self.recycle(packet);
        if from.is_smp
            && let Some(port) = self.ports.get_mut(from.port)
        {
            port.vl15_held = port.vl15_held.saturating_sub(1);
        }
        if let Some(charge) = from.charge {
            self.return_credit(from.port, from.epoch, charge, at);
        }
    }

    /// Tells the peer of `port` that room has become free at `at`.
    pub(super) fn return_credit(&mut self, port: usize, epoch: u32, charge: Charge, at: Instant) {
        if let Some(peer) = self.peer(port) {
            let at = at.after(self.options.delay);
            let event = Event::Credit {
                port: peer,
                epoch,
                charge,
            };
            self.push(at, event);
        }
    }
}
