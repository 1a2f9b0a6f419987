//! Sweeps: what is done in which order, and when again. protocols 9.2, 9.3.
//!
//! A heavy sweep has phases, each of which ends when nothing is in flight and nothing waits: walk the fabric; then
//! (a master only) write LIDs, keys and tables; then arm the links; then make them active. A light sweep asks the
//! switches whether anything changed.

use crate::api::Report;
use crate::manager::Manager;
use crate::subnet::{NodeTodo, PortFlags, PortTodo};
use crate::table::{NodeId, PortId};
use crate::{Role, smp::Op};
use core::time::Duration;
use core_ib::wire::mad::{NodeType, PortState};
use core_ib::{Instant, Lid};

/// Between the end of a heavy sweep and the next one that something asked for.
const PAUSE: Duration = Duration::from_millis(20);
/// After the first incomplete sweep; doubled after each further one, up to the sweep interval.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where a heavy sweep is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// Nodes and cables are looked for.
    Discover,
    /// LIDs, keys and tables are written.
    Configure,
    /// Links become armed.
    Arm,
    /// Links become active.
    Activate,
    /// The subnet is being handed over.
    Handover,
}

impl Manager<'_> {
    /// Something changed: a heavy sweep as soon as may be.
    pub(crate) fn sweep_again(&mut self) {
        self.st.again = true;
        if self.st.phase == Phase::Idle {
            self.st.sweep_at = self.st.sweep_at.min(self.now.after(PAUSE));
        }
    }

    /// Begins a heavy sweep now.
    pub(crate) fn start_sweep(&mut self) {
        self.drop_requests();
        self.st.sweep = self.st.sweep.wrapping_add(1).max(1);
        self.st.failures = 0;
        self.st.again = false;
        self.st.sweep_at = Instant::NEVER;
        self.st.phase = Phase::Discover;
        for port in self.all_ports() {
            if let Some(row) = self.ports.get_mut(port) {
                row.contradictions = 0;
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            peer.seen = false;
        }
        self.st.urgent = Some(Op::OwnNode);
    }

    /// Does what is due now, apart from sending. Says whether something changed.
    pub(crate) fn advance(&mut self) -> bool {
        if !self.st.port_up {
            return false;
        }
        if self.st.phase != Phase::Idle && self.is_quiet() {
            self.next_phase();
            return true;
        }
        if self.st.phase == Phase::Idle && self.now >= self.st.sweep_at {
            let first = self.st.role == Role::Discovering;
            match self.st.role {
                Role::Master if !self.st.again => self.light_sweep(),
                Role::Master | Role::Discovering if self.st.again || first => self.start_sweep(),
                _ => self.st.sweep_at = Instant::NEVER,
            }
            return true;
        }
        if self.st.role == Role::Master && self.now >= self.groups_at() {
            self.write_groups();
            return true;
        }
        self.expire_services() || self.poll_master()
    }

    /// When [`advance`](Self::advance) has something to do again.
    pub(crate) fn advance_at(&self) -> Instant {
        if !self.st.port_up {
            return Instant::NEVER;
        }
        let mut at = self.st.poll_at.min(self.st.lease_at);
        if self.st.phase == Phase::Idle {
            at = at.min(self.st.sweep_at);
        }
        if self.st.role == Role::Master {
            at = at.min(self.groups_at());
        }
        at
    }

    fn next_phase(&mut self) {
        match self.st.phase {
            Phase::Idle => {}
            Phase::Discover => self.walked(),
            Phase::Configure => {
                self.st.routed = true;
                self.st.mft_dropped = false;
                self.st.phase = Phase::Arm;
                self.links_todo(PortState::INIT, PortTodo::ARM);
            }
            Phase::Arm => {
                self.st.phase = Phase::Activate;
                // LIDs and routes are in, and whoever becomes Active asks at once.
                self.st.answering = true;
                self.links_todo(PortState::ARMED, PortTodo::ACTIVATE);
            }
            Phase::Activate => self.finish(),
            Phase::Handover => self.handed_over(),
        }
    }

    /// The walk is over: takes note of who is there and who is not, then master or not.
    fn walked(&mut self) {
        let own_seen = self.st.own.and_then(|own| self.ports.get(own));
        if own_seen.is_none_or(|row| row.sweep != self.st.sweep) {
            // Not even our own node answers.
            self.st.phase = Phase::Idle;
            self.try_later();
            return;
        }
        self.take_note();
        self.elect();
    }

    /// Drops what was not seen, admits what was. protocols 9.3 (3).
    fn take_note(&mut self) {
        let sweep = self.st.sweep;
        for port in self.all_ports() {
            let Some(row) = self.ports.get(port) else {
                continue;
            };
            if row.peer.is_some() && row.link_sweep != sweep {
                self.unlink(port);
            }
        }
        for node in self.all_nodes() {
            let Some(row) = self.nodes.get(node) else {
                continue;
            };
            let switch = row.switch.and_then(|id| self.switches.get(id));
            let info = switch.is_none_or(|switch| switch.sweep == sweep);
            let seen = row.sweep == sweep && info && row.guid.0 != 0;
            if !seen {
                self.node_gone(node);
                continue;
            }
            if let Some(row) = self.nodes.get_mut(node)
                && !row.present
            {
                row.present = true;
                self.st.reroute = true;
                // A blank row was taken from the vacant ones before, one that returns is no longer vacant now.
                self.st.vacant = self.st.vacant.saturating_sub(usize::from(row.vacant));
                row.vacant = false;
            }
            for port in self.ports_of(node) {
                self.port_seen_or_not(port);
            }
        }
        for slot in self.peers.iter_mut() {
            if slot.is_some_and(|peer| !peer.seen) {
                *slot = None;
            }
        }
    }

    fn port_seen_or_not(&mut self, port: PortId) {
        let sweep = self.st.sweep;
        let is_end = self.is_end_port(port);
        let is_own = self.st.own == Some(port);
        let Some(row) = self.ports.get(port) else {
            return;
        };
        if !is_end {
            return;
        }
        let cable = row.number == 0 || row.peer.is_some() || is_own;
        let here = row.sweep == sweep && cable && row.guid.0 != 0;
        let was = row.has(PortFlags::PRESENT);
        if !here && was {
            self.port_gone(port);
        } else if here
            && !was
            && let Some(row) = self.ports.get_mut(port)
        {
            row.flags.insert(PortFlags::PRESENT | PortFlags::REREGISTER);
            self.st.reroute = true;
        }
    }

    /// A node is no more: what depends on it goes, but its rows and its LID are kept.
    pub(crate) fn node_gone(&mut self, node: NodeId) {
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        let fresh = !row.vacant;
        self.st.reroute |= row.present;
        row.present = false;
        row.vacant = true;
        row.todo = NodeTodo::empty();
        self.st.vacant += usize::from(fresh);
        for port in self.ports_of(node) {
            self.unlink(port);
            self.port_gone(port);
            if let Some(row) = self.ports.get_mut(port) {
                row.todo = PortTodo::empty();
                row.flags = PortFlags::empty();
                row.set_info([0; 64]);
            }
        }
        if let Some(switch) = self.nodes.get(node).and_then(|row| row.switch) {
            self.forget_tables(switch);
        }
    }

    /// An end port is out of service. Harmless if it was before.
    fn port_gone(&mut self, port: PortId) {
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        let (guid, lid, flags) = (row.guid, row.lid, row.flags);
        row.flags
            .remove(PortFlags::PRESENT | PortFlags::ANNOUNCED | PortFlags::LID_SET);
        if !flags.contains(PortFlags::PRESENT) {
            return;
        }
        self.st.reroute = true;
        self.leave_all(port);
        self.unsubscribe_all(port);
        let first = usize::from(lid.0);
        for row in self.lids.iter_mut().skip(first).take(1 << self.config.lmc) {
            if row.port == Some(port) {
                row.port = None;
            }
        }
        for slot in self.peers.iter_mut() {
            if slot.is_some_and(|peer| peer.port == port) {
                *slot = None;
            }
        }
        if flags.contains(PortFlags::ANNOUNCED) {
            self.report(Report::PortOut { guid, lid });
            self.gid_event(false, port);
        }
    }

    /// A master begins to write.
    pub(crate) fn configure(&mut self) {
        self.st.phase = Phase::Configure;
        self.assign_lids();
        self.route();
        self.route_groups();
        for node in self.all_nodes() {
            if self.nodes.get(node).is_some_and(|row| row.present) {
                self.configure_node(node);
            }
        }
    }

    fn configure_node(&mut self, node: NodeId) {
        for port in self.ports_of(node) {
            if self
                .ports
                .get(port)
                .is_some_and(|row| row.has(PortFlags::PRESENT))
            {
                self.configure_end_port(port);
            }
            self.configure_link(port);
        }
        let Some(id) = self.nodes.get(node).and_then(|row| row.switch) else {
            return;
        };
        if self.switch_needs_set(id) {
            self.node_todo(node, NodeTodo::SET_SWITCH);
        }
        if self.lft_dirty_mut(id).iter().any(|&word| word != 0) {
            self.node_todo(node, NodeTodo::LFT);
        }
        if self.mft_dirty_mut(id).iter().any(|&word| word != 0) {
            self.node_todo(node, NodeTodo::MFT);
        }
    }

    /// Every port of a cable of the subnet that is in state `from`, and those switches' ports 0 that have states.
    fn links_todo(&mut self, from: PortState, todo: PortTodo) {
        for port in self.all_ports() {
            let Some(row) = self.ports.get(port) else {
                continue;
            };
            let present = self.nodes.get(row.node).is_some_and(|node| node.present);
            let cable = row.peer.is_some() || (row.number == 0 && self.is_end_port(port));
            if present && cable && row.state() == from && !row.has(PortFlags::DUPLICATE) {
                self.port_todo(port, todo);
            }
        }
    }

    /// The sweep is over.
    fn finish(&mut self) {
        self.st.phase = Phase::Idle;
        let (mut end_ports, mut switches) = (0, 0);
        for port in self.all_ports() {
            let Some(row) = self.ports.get_mut(port) else {
                continue;
            };
            if !row.has(PortFlags::PRESENT) {
                continue;
            }
            end_ports += 1;
            let (guid, lid) = (row.guid, row.lid);
            if row.has(PortFlags::LID_SET) && !row.has(PortFlags::ANNOUNCED) {
                row.flags.insert(PortFlags::ANNOUNCED);
                self.report(Report::PortIn { guid, lid });
                self.gid_event(true, port);
            }
            switches += u32::from(
                self.node_of(port)
                    .is_some_and(|node| node.kind == NodeType::SWITCH),
            );
        }
        let first = !self.st.serving;
        self.st.serving = true;
        self.st.answering = true;
        if self.st.failures == 0 {
            if first || self.st.incomplete != 0 {
                self.report(Report::SubnetUp {
                    end_ports,
                    switches,
                });
            }
            self.st.incomplete = 0;
            let wait = if self.st.again {
                PAUSE
            } else {
                self.config.sweep_interval
            };
            self.st.sweep_at = self.now.after(wait);
        } else {
            let failures = self.st.failures;
            self.report(Report::SubnetIncomplete { failures });
            self.try_later();
        }
    }

    /// After an incomplete sweep: soon, but ever less often.
    fn try_later(&mut self) {
        let wait = PATIENCE.saturating_mul(1 << self.st.incomplete.min(10));
        self.st.incomplete = self.st.incomplete.saturating_add(1);
        self.st.again = true;
        let wait = wait.min(self.config.sweep_interval).max(PAUSE);
        self.st.sweep_at = self.now.after(wait);
    }

    /// Asks every switch, every other manager, and everybody who did not answer. protocols 9.2.
    fn light_sweep(&mut self) {
        self.st.sweep_at = self.now.after(self.config.sweep_interval);
        for id in self.all_switches() {
            let Some(node) = self.switches.get(id).map(|row| row.node) else {
                continue;
            };
            if self.nodes.get(node).is_some_and(|row| row.present) {
                self.node_todo(node, NodeTodo::CHECK);
            }
        }
        for port in self.all_ports() {
            if self
                .ports
                .get(port)
                .is_some_and(|row| row.has(PortFlags::UNANSWERED))
            {
                self.port_todo(port, PortTodo::PROBE);
            }
        }
        for at in 0..self.peers.len() {
            if let Some(&Some(peer)) = self.peers.get(at) {
                self.port_todo(peer.port, PortTodo::SM_INFO);
            }
        }
    }

    /// The port went down or came up, or the HCA was reset.
    pub(crate) fn port_changed(&mut self, up: bool) {
        if self.st.port_up == up {
            return;
        }
        self.drop_requests();
        self.st.port_up = up;
        self.st.phase = Phase::Idle;
        self.st.routed = false;
        if self.st.role == Role::NotActive {
            return;
        }
        self.become_role(Role::Discovering);
        self.st.again = true;
        self.st.sweep_at = self.now;
    }

    /// Our own LID, once we have one.
    pub(crate) fn own_lid(&self) -> Lid {
        let own = self.st.own.and_then(|own| self.ports.get(own));
        own.map_or(Lid::NONE, |row| row.lid)
    }
}
