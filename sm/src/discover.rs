//! What answers teach: the walk through the fabric, and the fate of every request. protocols 9.3.
//!
//! Each answer leads to the next requests, so that the walk spreads as wide as the window allows. A node is what its
//! NodeGUID says, a cable is what NodeInfo says at its far end; where that contradicts what was seen in the same sweep,
//! both ends are asked again, and in the end the second one is left out.

use crate::api::Report;
use crate::manager::Manager;
use crate::smp::{Failure, Op};
use crate::subnet::{NodeTodo, PortFlags, PortTodo};
use crate::sweep::Phase;
use crate::table::{Id, NodeId, PortId};
use crate::{Role, smp};
use core_ib::Guid;
use core_ib::wire::mad::{
    Capability, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SmInfo, Smp, SwitchInfo,
};

/// How often two ends of contradicting cables are asked again. protocols 9.3.
const CONTRADICTIONS: u8 = 5;

impl Manager<'_> {
    /// A request was answered well.
    pub(crate) fn answered(&mut self, op: Op, smp: &Smp) {
        match op {
            Op::OwnNode => self.own_node(smp),
            Op::Probe(port) => self.neighbour(port, smp),
            Op::Description(node) => self.description(node, smp),
            Op::SwitchInfo(node) | Op::ClearChange(node) => self.switch_info(node, smp),
            Op::SetSwitch(node) => self.switch_set(node, smp),
            Op::Check(node) => self.switch_checked(node, smp),
            Op::PortInfo(port) => self.port_info(port, smp),
            Op::SmInfo(port) => self.sm_info_of(port, smp),
            Op::Command(port, command) => self.commanded(port, command),
            Op::PKeys(port, block) => self.p_keys_read(port, block, smp),
            Op::SetPKeys(port, block) => self.p_keys_next(port, block),
            Op::Configure(port) => self.configured(port, smp),
            Op::Bounce(port) => self.bounced(port),
            Op::Arm(port) => self.state_set(port, smp, PortState::ARMED),
            Op::Activate(port) => self.state_set(port, smp, PortState::ACTIVE),
            Op::SlToVl(port, input) => self.sl_to_vl_next(port, input),
            Op::VlArb(port, block) => self.vl_arb_next(port, block),
            Op::Lft(..) | Op::Mft(..) => {}
        }
    }

    /// A request got no answer, or was refused.
    pub(crate) fn failed(&mut self, op: Op, why: Failure) {
        match op {
            Op::OwnNode => {
                self.complain(op, why);
                self.st.failures += 1;
            }
            Op::Probe(port) => self.no_neighbour(port, op, why),
            Op::Description(_) => self.fail(op, why),
            Op::Check(_) => self.sweep_again(), // it may be gone: look
            Op::SmInfo(port) => self.no_sm_info(port),
            Op::Command(port, command) => self.not_commanded(port, command),
            Op::Lft(node, block) => {
                self.lft_again(node, block);
                self.give_up_node(node, NodeTodo::LFT);
                self.fail(op, why);
            }
            Op::Mft(node, part) => {
                self.mft_again(node, part);
                self.give_up_node(node, NodeTodo::MFT);
                self.fail(op, why);
                if self.st.phase == Phase::Idle {
                    self.sweep_again();
                }
            }
            Op::Bounce(_) => self.sweep_again(),
            Op::SlToVl(port, _) | Op::VlArb(port, _) if why != Failure::NoAnswer => {
                // It has not that many lanes. Nothing is to be gained by asking again.
                self.complain(op, why);
                if let Some(row) = self.ports.get_mut(port) {
                    row.flags.insert(PortFlags::QOS_DONE);
                }
            }
            _ => self.fail(op, why),
        }
    }

    fn fail(&mut self, op: Op, why: smp::Failure) {
        self.complain(op, why);
        self.st.failures += 1;
    }

    /// Writes no more blocks into a switch that does not take them; the next sweep tries again.
    fn give_up_node(&mut self, node: NodeId, todo: NodeTodo) {
        if let Some(row) = self.nodes.get_mut(node) {
            row.todo.remove(todo);
        }
    }

    /// A sweep has seen this node.
    fn seen(&mut self, node: NodeId) {
        let sweep = self.st.sweep;
        let Some(row) = self.nodes.get_mut(node).filter(|row| row.sweep != sweep) else {
            return;
        };
        row.sweep = sweep;
        let (described, is_switch) = (row.described, row.is_switch());
        if !described {
            self.node_todo(node, NodeTodo::DESCRIPTION);
        }
        if is_switch {
            self.node_todo(node, NodeTodo::SWITCH_INFO);
        }
    }

    /// The node of this NodeInfo, a new one if need be.
    fn node_of_info(&mut self, info: &NodeInfo) -> Option<NodeId> {
        let known = self
            .node_map
            .get(info.node_guid)
            .and_then(|index| NodeId::new(index as usize));
        let Some(node) = known else {
            return self.add_node(info);
        };
        let row = self.nodes.get(node)?;
        if row.kind == info.node_type && row.num_ports == info.num_ports {
            return Some(node);
        }
        // Not the node that it was. One seen in this sweep has the older right to the GUID.
        if row.sweep == self.st.sweep {
            self.report(Report::DuplicateGuid {
                guid: info.node_guid,
            });
            return None;
        }
        self.node_gone(node);
        self.node_map.remove(info.node_guid);
        if let Some(row) = self.nodes.get_mut(node) {
            row.guid = Guid(0);
        }
        self.add_node(info)
    }

    /// NodeInfo that makes sense.
    fn node_info(smp: &Smp) -> Option<NodeInfo> {
        let info = NodeInfo::from_bytes(smp.data.first_chunk()?);
        let kind = matches!(
            info.node_type,
            NodeType::CA | NodeType::SWITCH | NodeType::ROUTER
        );
        let lowest = u8::from(info.node_type != NodeType::SWITCH);
        let port = (lowest..=info.num_ports).contains(&info.local_port_num);
        let ports = (1..=254).contains(&info.num_ports);
        (kind && port && ports && info.node_guid.0 != 0 && info.port_guid.0 != 0).then_some(info)
    }

    /// Our own node said who it is.
    fn own_node(&mut self, smp: &Smp) {
        let Some(info) = Self::node_info(smp) else {
            self.st.failures += 1;
            return;
        };
        let Some(node) = self.node_of_info(&info) else {
            self.st.failures += 1;
            return;
        };
        if let Some(row) = self.nodes.get_mut(node) {
            (row.via, row.hops) = (None, 0);
        }
        let is_switch = info.node_type == NodeType::SWITCH;
        let number = if is_switch { 0 } else { info.local_port_num };
        let Some(own) = self.port_at(node, number) else {
            return;
        };
        self.st.own = Some(own);
        self.st.guid = info.port_guid;
        self.seen(node);
        self.end_port_seen(own, info.port_guid);
    }

    /// An end port is there: notes its GUID, asks for its PortInfo. Says whether the GUID is its own.
    fn end_port_seen(&mut self, port: PortId, guid: Guid) -> bool {
        let holder = self
            .port_map
            .get(guid)
            .and_then(|index| PortId::new(index as usize));
        if let Some(holder) = holder.filter(|&holder| holder != port) {
            let alive = self.ports.get(holder).is_some_and(|row| {
                row.guid == guid && (row.sweep == self.st.sweep || row.has(PortFlags::PRESENT))
            });
            if alive {
                self.report(Report::DuplicateGuid { guid });
                return false;
            }
        }
        if !self.port_map.insert(guid, port.index() as u32) {
            self.no_room("guids", self.config_guids());
            return false;
        }
        if let Some(row) = self.ports.get_mut(port) {
            row.guid = guid;
        }
        self.port_todo(port, PortTodo::INFO);
        true
    }

    fn config_guids(&self) -> usize {
        self.port_map.slots() / 2
    }

    /// What is behind `port` said who it is.
    fn neighbour(&mut self, port: PortId, smp: &Smp) {
        let Some(info) = Self::node_info(smp) else {
            self.no_neighbour(port, Op::Probe(port), Failure::NoAnswer);
            return;
        };
        if self.st.phase != Phase::Discover {
            self.sweep_again(); // one that had not answered does now
            return;
        }
        let Some(node) = self.node_of_info(&info) else {
            self.leave_out(port);
            return;
        };
        let Some(far) = self.port_at(node, info.local_port_num) else {
            return;
        };
        if far == port {
            return; // a plug that loops
        }
        if !self.link(port, far) {
            return;
        }
        if let Some(row) = self.ports.get_mut(port) {
            row.flags
                .remove(PortFlags::UNANSWERED | PortFlags::DUPLICATE);
        }
        self.reached(node, port);
        self.seen(node);
        if self.is_end_port(far) && !self.end_port_seen(far, info.port_guid) {
            self.leave_out(port);
        }
    }

    /// The directed route to `node` may now lead over `port`, if that is no longer.
    fn reached(&mut self, node: NodeId, port: PortId) {
        let before = self.node_of(port).map_or(u8::MAX, |row| row.hops);
        let sweep = self.st.sweep;
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        let hops = before.saturating_add(1);
        // A route of an earlier sweep may lead over what is no more.
        if row.sweep != sweep || hops < row.hops {
            (row.via, row.hops) = (Some(port), hops);
        }
    }

    /// A cable between two ports. Says whether that can be.
    fn link(&mut self, port: PortId, far: PortId) -> bool {
        let sweep = self.st.sweep;
        let seen = |id: PortId, other: PortId| {
            self.ports
                .get(id)
                .is_some_and(|row| row.link_sweep == sweep && row.peer != Some(other))
        };
        if seen(far, port) || seen(port, far) {
            return self.contradiction(port, far);
        }
        for (id, other) in [(port, far), (far, port)] {
            if self
                .ports
                .get(id)
                .is_some_and(|row| row.peer != Some(other))
            {
                self.unlink(id);
            }
        }
        for (id, other) in [(port, far), (far, port)] {
            if let Some(row) = self.ports.get_mut(id) {
                self.st.reroute |= row.peer != Some(other);
                (row.peer, row.link_sweep) = (Some(other), sweep);
            }
        }
        true
    }

    /// `port` leads to `far`, which was seen behind another port in this very sweep: somebody moved a cable, or a GUID
    /// is there twice. Both are asked again, the older claim first.
    fn contradiction(&mut self, port: PortId, far: PortId) -> bool {
        let guid = self.node_of(far).map_or(Guid(0), |row| row.guid);
        let Some(row) = self.ports.get_mut(port) else {
            return false;
        };
        row.contradictions = row.contradictions.saturating_add(1);
        if row.contradictions > CONTRADICTIONS {
            if !row.has(PortFlags::DUPLICATE) {
                self.report(Report::DuplicateGuid { guid });
            }
            self.leave_out(port);
            return false;
        }
        for end in [far, port] {
            let older = self.ports.get(end).and_then(|row| row.peer);
            self.unlink(end);
            for id in [Some(end), older].into_iter().flatten() {
                if let Some(row) = self.ports.get_mut(id) {
                    row.link_sweep = 0;
                }
            }
            let by = older
                .filter(|&older| self.leads_on(older))
                .or(older.map(|_| end));
            if let Some(by) = by.filter(|&by| self.leads_on(by)) {
                self.port_todo(by, PortTodo::PROBE);
            }
        }
        self.port_todo(port, PortTodo::PROBE);
        false
    }

    /// Something can be behind it for us: a switch's external port, or our own adapter's.
    fn leads_on(&self, port: PortId) -> bool {
        match (self.ports.get(port), self.node_of(port)) {
            (Some(row), Some(node)) if node.is_switch() => row.number != 0,
            _ => self.st.own == Some(port),
        }
    }

    /// What is behind `port` does not become part of the subnet.
    fn leave_out(&mut self, port: PortId) {
        if let Some(row) = self.ports.get_mut(port) {
            row.flags.insert(PortFlags::DUPLICATE);
            row.link_sweep = 0;
        }
        self.unlink(port);
    }

    /// Nobody answers behind `port`, although its link is up.
    fn no_neighbour(&mut self, port: PortId, op: Op, why: Failure) {
        if self.st.phase != Phase::Discover {
            return; // a light sweep asked once more, in vain
        }
        if self.path_behind(port).is_none() {
            let guid = self.node_of(port).map_or(Guid(0), |row| row.guid);
            self.report(Report::TooFar { guid });
            return;
        }
        let fresh = self
            .ports
            .get(port)
            .is_some_and(|row| !row.has(PortFlags::UNANSWERED));
        if fresh {
            self.complain(op, why);
        }
        if let Some(row) = self.ports.get_mut(port) {
            row.flags.insert(PortFlags::UNANSWERED);
        }
    }

    fn description(&mut self, node: NodeId, smp: &Smp) {
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        if let Some(text) = smp.data.first_chunk::<{ NodeDescription::SIZE }>() {
            row.description = *text;
            row.described = true;
        }
    }

    /// SwitchInfo as found, or after PortStateChange was cleared: now its ports, in this order, so that no change
    /// between is missed.
    fn switch_info(&mut self, node: NodeId, smp: &Smp) {
        let sweep = self.st.sweep;
        let Some(id) = self.nodes.get(node).and_then(|row| row.switch) else {
            return;
        };
        let (Some(row), Some(bytes)) = (self.switches.get_mut(id), smp.data.first_chunk()) else {
            return;
        };
        let info = SwitchInfo::from_bytes(bytes);
        let cleared = row.sweep == sweep; // the second time in a sweep
        let odd = row.sweep == 0 && info.linear_fdb_cap == 0;
        let top_before = row.view().linear_fdb_top();
        let lost = row.sweep != 0 && !row.rewrite && info.linear_fdb_top != top_before;
        (row.info, row.sweep) = (info.to_bytes(), sweep);
        if lost {
            row.rewrite = true; // somebody else has written it, or nobody since it started
        }
        if info.port_state_change && !cleared {
            if self.st.role == Role::Master {
                self.node_todo(node, NodeTodo::CLEAR_CHANGE);
                return;
            }
            row.changed = true;
        }
        if odd {
            let guid = self.nodes.get(node).map_or(Guid(0), |row| row.guid);
            self.report(Report::NoLinearTable { guid });
        }
        for port in self.ports_of(node) {
            self.port_todo(port, PortTodo::INFO);
        }
        if let Some(port) = self.port_at(node, 0) {
            let guid = self
                .nodes
                .get(node)
                .map_or(Guid(0), |row| row.info().port_guid());
            self.end_port_seen(port, guid);
        }
    }

    /// SwitchInfo was written.
    fn switch_set(&mut self, node: NodeId, smp: &Smp) {
        let Some(id) = self.nodes.get(node).and_then(|row| row.switch) else {
            return;
        };
        let Some(row) = self.switches.get_mut(id) else {
            return;
        };
        if let Some(bytes) = smp.data.first_chunk() {
            row.info = *bytes;
        }
        if core::mem::take(&mut row.changed) {
            // The change was cleared after the ports were read. A port that came up between would be forgotten.
            for port in self.ports_of(node) {
                if self
                    .ports
                    .get(port)
                    .is_some_and(|row| row.state() <= PortState::DOWN)
                {
                    self.port_todo(port, PortTodo::INFO);
                }
            }
        }
    }

    /// SwitchInfo of a light sweep.
    fn switch_checked(&mut self, node: NodeId, smp: &Smp) {
        let Some(bytes) = smp.data.first_chunk() else {
            return;
        };
        let found = SwitchInfo::from_bytes(bytes);
        let id = self.nodes.get(node).and_then(|row| row.switch);
        let known = id.and_then(|id| self.switches.get(id));
        let top = known.map(|row| row.view().linear_fdb_top());
        if found.port_state_change || top != Some(found.linear_fdb_top) {
            self.sweep_again();
        }
    }

    /// PortInfo as found.
    fn port_info(&mut self, port: PortId, smp: &Smp) {
        let Some(bytes) = smp.data.first_chunk() else {
            return;
        };
        let info = PortInfo::from_bytes(bytes);
        let sweep = self.st.sweep;
        let is_end = self.is_end_port(port);
        let own_node = self
            .st
            .own
            .and_then(|own| self.ports.get(own))
            .map(|row| row.node);
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        let up = info.state >= PortState::INIT;
        if self.st.phase != Phase::Discover {
            if up && row.state() < PortState::INIT {
                self.sweep_again();
            }
            return;
        }
        row.set_info(*bytes);
        row.sweep = sweep;
        if info.state <= PortState::INIT {
            // It came up anew: what was written into it is lost.
            row.flags
                .remove(PortFlags::P_KEYS_DONE | PortFlags::QOS_DONE);
        }
        if info.state == PortState::DOWN {
            self.st.reroute |= row.has(PortFlags::UNHEALTHY);
            row.flags
                .remove(PortFlags::UNHEALTHY | PortFlags::UNANSWERED);
            row.traps = 0;
        }
        if is_end && info.lid != row.lid {
            row.flags.remove(PortFlags::LID_SET);
        }
        let (number, node, linked) = (row.number, row.node, row.link_sweep == sweep);
        let is_switch = self.nodes.get(node).is_some_and(|row| row.is_switch());
        if up && !linked && self.leads_on(port) {
            self.port_todo(port, PortTodo::PROBE);
        }
        if is_end && info.capability.contains(Capability::SM) && Some(node) != own_node {
            self.port_todo(port, PortTodo::SM_INFO);
        }
        if is_switch && number == 0 {
            self.check_switch_reset(node, &info);
        }
    }

    /// A switch whose own LID is not the one that it was given has started anew, and its tables are empty.
    fn check_switch_reset(&mut self, node: NodeId, info: &PortInfo) {
        let lid = self
            .port_at(node, 0)
            .and_then(|port| self.ports.get(port))
            .map(|row| row.lid);
        if lid != Some(info.lid)
            && let Some(id) = self.nodes.get(node).and_then(|row| row.switch)
        {
            self.forget_tables(id);
        }
    }

    fn sm_info_of(&mut self, port: PortId, smp: &Smp) {
        if let Some(bytes) = smp.data.first_chunk::<{ SmInfo::SIZE }>() {
            self.peer_answered(port, &SmInfo::from_bytes(bytes));
        }
    }
}
