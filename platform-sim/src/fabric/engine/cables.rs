//! Links come and go, and their owners hear of it.

use super::event::Event;
use super::{Cable, Fabric};
use crate::fabric::agent;
use crate::fabric::node::{Effect, best};
use crate::fabric::port::Item;
use crate::machine::{Delivery, LinkControl, LinkParameters, LinkSpeed, LinkWidth};
use core::time::Duration;

/// How long a port still works after its agent was told to take it down, so that the answer gets out.
const LAST_WORD: Duration = Duration::from_micros(10);

impl Fabric {
    pub(super) fn epoch_of(&self, port: usize) -> Option<u32> {
        let (cable, _) = self.ports.get(port)?.cable?;
        Some(self.cables.get(cable)?.epoch)
    }

    /// The port at the other end.
    pub(super) fn peer(&self, port: usize) -> Option<usize> {
        let (cable, side) = self.ports.get(port)?.cable?;
        self.cables.get(cable)?.ends.get(side ^ 1).copied()
    }

    pub(super) fn control(&mut self, port: usize, control: LinkControl) {
        let Some(state) = self.ports.get_mut(port) else {
            return;
        };
        state.wants = control;
        if let Some((cable, _)) = state.cable {
            self.evaluate(cable);
        }
    }

    /// Widths and speeds that both ends and the cable allow; none if an end does not want a link.
    pub(super) fn common(&self, cable: &Cable) -> Option<(LinkWidth, LinkSpeed)> {
        let mut both = (cable.widths.0, cable.speeds.0);
        for end in cable.ends {
            match self.ports.get(end)?.wants {
                LinkControl::Polling { widths, speeds } => {
                    both.0 &= widths.0;
                    both.1 &= speeds.0;
                }
                LinkControl::Disabled => return None,
            }
        }
        let possible = cable.plugged && both.0 != 0 && both.1 != 0;
        possible.then_some((LinkWidth(both.0), LinkSpeed(both.1)))
    }

    /// Something about a cable changed: takes the link down, or begins to train.
    pub(super) fn evaluate(&mut self, index: usize) {
        let Some(cable) = self.cables.get(index) else {
            return;
        };
        let common = self.common(cable);
        let [first, _] = cable.ends;
        let up = self.ports.get(first).and_then(|port| port.up);
        if let Some(up) = up {
            let stays = common.is_some_and(|(widths, speeds)| {
                up.width.0 & widths.0 != 0 && up.speed.0 & speeds.0 != 0
            });
            if stays {
                return;
            }
            self.take_down(index);
        }
        let now = self.now;
        let training = self.options.training;
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        match (common.is_some(), cable.training) {
            (true, false) => {
                cable.training = true;
                let epoch = cable.epoch;
                self.push(
                    now.after(training),
                    Event::Trained {
                        cable: index,
                        epoch,
                    },
                );
            }
            (false, true) => {
                cable.training = false;
                cable.epoch += 1;
            }
            _ => {}
        }
    }

    pub(super) fn trained(&mut self, index: usize, epoch: u32) {
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        if cable.epoch != epoch || !cable.training {
            return;
        }
        cable.training = false;
        let ends = cable.ends;
        let Some(cable) = self.cables.get(index) else {
            return;
        };
        let Some(common) = self.common(cable) else {
            return;
        };
        let (width, speed) = best(common);
        let parameters = LinkParameters { width, speed };
        let (room, now) = (self.options.buffer_blocks, self.now);
        for end in ends {
            if let Some(port) = self.ports.get_mut(end) {
                port.begin(parameters, room, now);
            }
        }
        for end in ends {
            self.tell_owner(end, Some(parameters));
        }
    }

    pub(super) fn take_down(&mut self, index: usize) {
        let Some(cable) = self.cables.get_mut(index) else {
            return;
        };
        cable.epoch += 1;
        cable.training = false;
        let ends = cable.ends;
        for end in ends {
            if let Some(port) = self.ports.get_mut(end) {
                port.up = None;
            }
            self.flush(end, 0xffff);
        }
        for end in ends {
            self.tell_owner(end, None);
        }
    }

    /// Loses everything that waits on these lanes, a set.
    pub(super) fn flush(&mut self, index: usize, lanes: u16) {
        let Some(port) = self.ports.get_mut(index) else {
            return;
        };
        let node = port.node;
        let number = port.number;
        let mut lost = Vec::new();
        for (vl, queue) in (0_u16..).zip(&mut port.queues) {
            if lanes & 1 << vl != 0 {
                lost.extend(queue.drain(..));
            }
        }
        let refused = core::mem::take(&mut port.refused);
        self.room(index, refused);
        for queued in lost {
            if let Item::Slot(slot) = queued.item {
                if let Some(inside) = self.inside_mut(node)
                    && let Some(state) = inside.state.port_mut(number)
                {
                    state.counts.xmit_discards.bump();
                }
                self.done(node, slot, self.now);
            }
        }
    }

    /// Tells an outside port that these lanes, a set, have room again.
    pub(super) fn room(&mut self, index: usize, lanes: u16) {
        let end = self.ports.get(index).and_then(|port| port.end);
        if let Some(end) = end {
            let rooms = (0..16_u8)
                .filter(|vl| lanes & 1 << vl != 0)
                .map(|vl| Delivery::Room { end, vl });
            self.outbox.extend(rooms);
        }
    }

    pub(super) fn tell_owner(&mut self, index: usize, up: Option<LinkParameters>) {
        let Some(port) = self.ports.get(index) else {
            return;
        };
        let (node, number, end) = (port.node, port.number, port.end);
        if let Some(inside) = self.inside_mut(node) {
            let mut effects = Vec::new();
            inside.state.link_changed(number, up, &mut effects);
            self.apply(node, &effects);
        } else if let Some(end) = end {
            self.outbox.push_back(Delivery::Link { end, up });
        }
    }

    /// Carries out what an agent of a node inside asks for.
    pub(super) fn apply(&mut self, node: usize, effects: &[Effect]) {
        let Some(first) = self.nodes.get(node).map(|node| node.first) else {
            return;
        };
        let at = self.now.after(LAST_WORD);
        for effect in effects {
            if let Effect::SetLink { port, control } = *effect {
                let port = first + usize::from(port.saturating_sub(1));
                self.push(at, Event::Control { port, control });
            }
        }
        self.schedule_trap(node);
    }

    pub(super) fn schedule_trap(&mut self, node: usize) {
        let now = self.now;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        let Some(due) = inside.state.next_trap(now) else {
            return;
        };
        if inside.trap_at.is_none_or(|at| due < at) {
            inside.trap_at = Some(due);
            self.push(due, Event::Trap { node });
        }
    }

    pub(super) fn trap(&mut self, node: usize) {
        let now = self.now;
        let Some(inside) = self.inside_mut(node) else {
            return;
        };
        if inside.trap_at != Some(now) {
            return;
        }
        inside.trap_at = None;
        let trap = inside.state.poll_trap(now);
        let packet = trap.and_then(|(port, smp)| agent::trap(&inside.state, port, &smp));
        if let Some(outgoing) = packet {
            self.emit(node, outgoing);
        }
        self.schedule_trap(node);
    }
}
