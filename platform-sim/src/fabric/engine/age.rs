//! Packets that wait too long at a switch are lost. protocols 2.17, step 12.

use super::Fabric;
use super::event::Event;
use crate::fabric::port::{DATA_LANES, Item, Queued, Stall};
use core::time::Duration;
use core_ib::Instant;

impl Fabric {
    /// HOQLife of a port and LifeTimeValue of its switch; nothing grows old at an outside port or at a host.
    pub(super) fn lives(&self, node: usize, number: u8) -> (Option<Duration>, Option<Duration>) {
        let Some(state) = self.node(node) else {
            return (None, None);
        };
        let (Some(switch), Some(port)) = (&state.switch, state.port(number)) else {
            return (None, None);
        };
        let life = switch.info.life_time.lifetime();
        (port.info.hoq_life.lifetime(), life)
    }

    pub(super) fn is_too_old(&self, node: usize, arrived: Instant) -> bool {
        let (_, life) = self.lives(node, 0);
        life.is_some_and(|life| arrived.after(life) <= self.now)
    }

    /// When the head of a lane will have grown too old.
    pub(super) fn deadline(&self, index: usize, vl: u8) -> Option<Instant> {
        let port = self.ports.get(index)?;
        let head = port.queues.get(usize::from(vl))?.front()?;
        let since = *port.head_since.get(usize::from(vl))?;
        let (hoq, life) = self.lives(port.node, port.number);
        let by_hoq = hoq.map_or(Instant::NEVER, |hoq| since.after(hoq));
        let by_life = life.map_or(Instant::NEVER, |life| head.arrived.after(life));
        let deadline = by_hoq.min(by_life);
        (deadline != Instant::NEVER).then_some(deadline)
    }

    /// Sees to it that old heads are looked at.
    pub(super) fn watch_heads(&mut self, index: usize) {
        for vl in 0..DATA_LANES as u8 {
            let waits = self.ports.get(index).is_some_and(|port| {
                port.head_len(vl) != 0 && port.check_due.get(usize::from(vl)) == Some(&false)
            });
            if !waits {
                continue;
            }
            if let Some(at) = self.deadline(index, vl) {
                if let Some(port) = self.ports.get_mut(index)
                    && let Some(due) = port.check_due.get_mut(usize::from(vl))
                {
                    *due = true;
                }
                self.push(at, Event::Check { port: index, vl });
            }
        }
    }

    pub(super) fn check(&mut self, index: usize, vl: u8) {
        let now = self.now;
        if let Some(port) = self.ports.get_mut(index)
            && let Some(due) = port.check_due.get_mut(usize::from(vl))
        {
            *due = false;
        }
        while self.deadline(index, vl).is_some_and(|at| at <= now) {
            let Some(port) = self.ports.get_mut(index) else {
                return;
            };
            let (node, number) = (port.node, port.number);
            let Some(queued) = port.pop(vl, now) else {
                return;
            };
            self.discard(index, queued);
            let (hoq, _) = self.lives(node, number);
            let limit = self.node(node).and_then(|state| state.port(number));
            let limit = limit.map_or(0, |port| port.info.vl_stall_count);
            let stall = self
                .ports
                .get_mut(index)
                .and_then(|port| port.stalls.get_mut(usize::from(vl)));
            if let Some(stall) = stall {
                stall.drops = stall.drops.saturating_add(1);
                if limit != 0 && stall.drops >= limit {
                    let until = hoq.map(|hoq| now.after(hoq * 8));
                    *stall = Stall { drops: 0, until };
                    self.flush(index, 1 << vl);
                }
            }
        }
        self.pump(index);
    }

    /// Loses a packet that was to leave by a port of a node inside.
    pub(super) fn discard(&mut self, index: usize, queued: Queued) {
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number) = (port.node, port.number);
        if let Some(inside) = self.inside_mut(node)
            && let Some(state) = inside.state.port_mut(number)
        {
            state.counts.xmit_discards.bump();
        }
        if let Item::Slot(slot) = queued.item {
            self.done(node, slot, self.now);
        }
    }
}
