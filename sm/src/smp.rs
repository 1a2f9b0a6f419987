//! Requests to nodes: which SMP each is, and the window of those in flight.
//!
//! A request is an [`Op`], a few bytes; the SMP is made anew from the books for every try. What is to be done stands as
//! bits in the rows of nodes and ports, and a queue says who has such bits; so the queue never overflows, and a node with
//! much to do waits its turn among the others.

use crate::api::Report;
use crate::manager::Manager;
use crate::subnet::{NodeTodo, PortFlags, PortTodo};
use crate::table::{NodeId, PortId, bits};
use core_ib::wire::mad::{
    Attribute, AttributeId, Capability, LinearForwardingTable, Mad, MadStatus, Method,
    MulticastForwardingTable, NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVlMappingTable,
    SmInfo, Smp, SwitchInfo, VlArbitrationTable,
};
use core_ib::{Instant, Lid};
use ib_mad::{AgentId, MadAddr, Next, Outgoing, Patience, Transaction};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Get(NodeInfo) of our own node.
    OwnNode,
    /// Get(NodeInfo) of what is behind a port.
    Probe(PortId),
    /// Get(NodeDescription).
    Description(NodeId),
    /// Get(SwitchInfo) of a heavy sweep.
    SwitchInfo(NodeId),
    /// Get(SwitchInfo) of a light sweep.
    Check(NodeId),
    /// Set(SwitchInfo), PortStateChange alone.
    ClearChange(NodeId),
    /// Set(SwitchInfo).
    SetSwitch(NodeId),
    /// Get(PortInfo).
    PortInfo(PortId),
    /// Get(SMInfo).
    SmInfo(PortId),
    /// Set(SMInfo) with this command.
    Command(PortId, u8),
    /// Get(P_KeyTable) of this block.
    PKeys(PortId, u8),
    /// Set(P_KeyTable) of this block.
    SetPKeys(PortId, u8),
    /// Set(PortInfo) of parameters.
    Configure(PortId),
    /// Set(PortInfo) with state Down.
    Bounce(PortId),
    /// Set(PortInfo) with state Armed.
    Arm(PortId),
    /// Set(PortInfo) with state Active.
    Activate(PortId),
    /// Set(SLtoVLMappingTable) for this input port.
    SlToVl(PortId, u8),
    /// Set(VLArbitrationTable) of this block.
    VlArb(PortId, u8),
    /// Set(LinearForwardingTable) of this block.
    Lft(NodeId, u16),
    /// Set(MulticastForwardingTable): block times positions, plus position.
    Mft(NodeId, u16),
}

/// Whom a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Our own node.
    Own,
    Node(NodeId),
    /// The node of a port.
    Port(PortId),
    /// Whoever is at the other end of a port's cable.
    Behind(PortId),
}

/// Who waits in the queue of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Node(NodeId),
    Port(PortId),
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) op: Option<Op>,
    /// Lower half of its TransactionID.
    tid: u32,
    transaction: Transaction,
}

impl Slot {
    pub(crate) const FREE: Self = Self {
        op: None,
        tid: 0,
        transaction: Transaction::new(Patience::SMP, Instant(0)),
    };
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoAnswer,
    Refused(MadStatus),
}

impl Op {
    fn target(self) -> Target {
        match self {
            Self::OwnNode => Target::Own,
            Self::Probe(port) => Target::Behind(port),
            Self::Description(node)
            | Self::SwitchInfo(node)
            | Self::Check(node)
            | Self::ClearChange(node)
            | Self::SetSwitch(node)
            | Self::Lft(node, _)
            | Self::Mft(node, _) => Target::Node(node),
            Self::PortInfo(port)
            | Self::SmInfo(port)
            | Self::Command(port, _)
            | Self::PKeys(port, _)
            | Self::SetPKeys(port, _)
            | Self::Configure(port)
            | Self::Bounce(port)
            | Self::Arm(port)
            | Self::Activate(port)
            | Self::SlToVl(port, _)
            | Self::VlArb(port, _) => Target::Port(port),
        }
    }

    fn attribute(self) -> AttributeId {
        match self {
            Self::OwnNode | Self::Probe(_) => NodeInfo::ID,
            Self::Description(_) => NodeDescription::ID,
            Self::SwitchInfo(_) | Self::Check(_) | Self::ClearChange(_) | Self::SetSwitch(_) => {
                SwitchInfo::ID
            }
            Self::PortInfo(_)
            | Self::Configure(_)
            | Self::Bounce(_)
            | Self::Arm(_)
            | Self::Activate(_) => PortInfo::ID,
            Self::SmInfo(_) | Self::Command(..) => SmInfo::ID,
            Self::PKeys(..) | Self::SetPKeys(..) => PKeyTable::ID,
            Self::SlToVl(..) => SlToVlMappingTable::ID,
            Self::VlArb(..) => VlArbitrationTable::ID,
            Self::Lft(..) => LinearForwardingTable::ID,
            Self::Mft(..) => MulticastForwardingTable::ID,
        }
    }

    /// May go by LID once the forwarding tables are there. What discovers and what writes the tables may not.
    fn may_go_by_lid(self) -> bool {
        matches!(
            self,
            Self::Check(_)
                | Self::SmInfo(_)
                | Self::Command(..)
                | Self::Arm(_)
                | Self::Activate(_)
                | Self::Mft(..)
        )
    }
}

/// A directed route: output ports from here on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    hops: [u8; 64],
    len: usize,
}

impl Path {
    fn as_slice(&self) -> &[u8] {
        self.hops.get(..self.len).unwrap_or(&[])
    }
}

impl Manager<'_> {
    /// Adds to what is to be done with a node.
    pub(crate) fn node_todo(&mut self, node: NodeId, todo: NodeTodo) {
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        row.todo |= todo;
        if !row.queued && !row.todo.is_empty() {
            row.queued = self.work.push(Work::Node(node));
        }
    }

    /// Adds to what is to be done with a port.
    pub(crate) fn port_todo(&mut self, port: PortId, todo: PortTodo) {
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        row.todo |= todo;
        if !row.queued && !row.todo.is_empty() {
            row.queued = self.work.push(Work::Port(port));
        }
    }

    /// Nothing is in flight, and nothing waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.st.in_flight == 0 && self.work.len() == 0 && self.st.urgent.is_none()
    }

    /// Takes the next request out of the queue.
    fn next_op(&mut self) -> Option<Op> {
        if let Some(op) = self.st.urgent.take() {
            return Some(op);
        }
        while let Some(work) = self.work.pop() {
            let (op, more) = match work {
                Work::Node(node) => {
                    let Some(row) = self.nodes.get_mut(node) else {
                        continue;
                    };
                    row.queued = false;
                    self.node_op(node)
                }
                Work::Port(port) => {
                    let Some(row) = self.ports.get_mut(port) else {
                        continue;
                    };
                    row.queued = false;
                    self.port_op(port)
                }
            };
            if more {
                match work {
                    Work::Node(node) => self.node_todo(node, NodeTodo::empty()),
                    Work::Port(port) => self.port_todo(port, PortTodo::empty()),
                }
            }
            if op.is_some() {
                return op;
            }
        }
        None
    }

    /// The first thing to be done with a node, and whether there is more.
    fn node_op(&mut self, node: NodeId) -> (Option<Op>, bool) {
        let Some(row) = self.nodes.get_mut(node) else {
            return (None, false);
        };
        let Some(first) = row.todo.iter().next() else {
            return (None, false);
        };
        row.todo.remove(first);
        let op = match first {
            NodeTodo::SWITCH_INFO => Some(Op::SwitchInfo(node)),
            NodeTodo::CLEAR_CHANGE => Some(Op::ClearChange(node)),
            NodeTodo::DESCRIPTION => Some(Op::Description(node)),
            NodeTodo::CHECK => Some(Op::Check(node)),
            NodeTodo::SET_SWITCH => Some(Op::SetSwitch(node)),
            NodeTodo::LFT => self.dirty_lft(node).map(|block| Op::Lft(node, block)),
            _ => self.dirty_mft(node).map(|block| Op::Mft(node, block)),
        };
        let row = self.nodes.get_mut(node);
        let more = row.is_some_and(|row| {
            if op.is_some() && first.intersects(NodeTodo::LFT | NodeTodo::MFT) {
                row.todo |= first; // until no block is left
            }
            !row.todo.is_empty()
        });
        (op, more)
    }

    /// Takes the first block of the forwarding table that is to be written.
    fn dirty_lft(&mut self, node: NodeId) -> Option<u16> {
        let switch = self.nodes.get(node)?.switch?;
        let dirty = self.lft_dirty_mut(switch);
        let block = bits::first(dirty)?;
        bits::clear(dirty, block);
        u16::try_from(block).ok()
    }

    /// The same of the multicast forwarding table.
    fn dirty_mft(&mut self, node: NodeId) -> Option<u16> {
        let switch = self.nodes.get(node)?.switch?;
        let dirty = self.mft_dirty_mut(switch);
        let block = bits::first(dirty)?;
        bits::clear(dirty, block);
        u16::try_from(block).ok()
    }

    /// A block of the forwarding table may not have arrived.
    pub(crate) fn lft_again(&mut self, node: NodeId, block: u16) {
        if let Some(switch) = self.nodes.get(node).and_then(|row| row.switch) {
            bits::set(self.lft_dirty_mut(switch), block.into());
        }
    }

    /// A part of the multicast forwarding table may not have arrived.
    pub(crate) fn mft_again(&mut self, node: NodeId, part: u16) {
        if let Some(switch) = self.nodes.get(node).and_then(|row| row.switch) {
            bits::set(self.mft_dirty_mut(switch), part.into());
        }
    }

    /// The first thing to be done with a port, and whether there is more.
    fn port_op(&mut self, port: PortId) -> (Option<Op>, bool) {
        let Some(row) = self.ports.get_mut(port) else {
            return (None, false);
        };
        let Some(first) = row.todo.iter().next() else {
            return (None, false);
        };
        row.todo.remove(first);
        let more = !row.todo.is_empty();
        let op = match first {
            PortTodo::INFO => Op::PortInfo(port),
            PortTodo::PROBE => Op::Probe(port),
            PortTodo::SM_INFO => Op::SmInfo(port),
            PortTodo::P_KEYS => Op::PKeys(port, row.p_key_block),
            PortTodo::SET_P_KEYS => Op::SetPKeys(port, row.p_key_block),
            PortTodo::CONFIGURE => Op::Configure(port),
            PortTodo::SL_TO_VL => Op::SlToVl(port, row.qos_next),
            PortTodo::VL_ARB => Op::VlArb(port, row.qos_next),
            PortTodo::BOUNCE => Op::Bounce(port),
            PortTodo::ARM => Op::Arm(port),
            _ => Op::Activate(port),
        };
        (Some(op), more)
    }

    /// The next request, if the window allows.
    pub(crate) fn next_request(&mut self) -> Option<Outgoing> {
        let window = usize::from(self.config.window).min(self.slots.len());
        while self.st.in_flight < window {
            let op = self.next_op()?;
            let free = self.slots.iter().position(|slot| slot.op.is_none())?;
            self.st.serial = self.st.serial.wrapping_add(1) & 0xff_ffff;
            let tid = self.st.serial << 8 | (free as u32 & 0xff);
            let Some(outgoing) = self.request(op, tid, true) else {
                self.failed(op, Failure::NoAnswer); // it has vanished meanwhile, or is too far
                continue;
            };
            let mut transaction = Transaction::new(self.config.patience, self.now);
            transaction.poll(self.now); // it goes out at once
            if let Next::WaitUntil(deadline) = transaction.poll(self.now) {
                self.st.next_timeout = self.st.next_timeout.min(deadline);
            }
            if let Some(slot) = self.slots.get_mut(free) {
                *slot = Slot {
                    op: Some(op),
                    tid,
                    transaction,
                };
                self.st.in_flight += 1;
            }
            return Some(outgoing);
        }
        None
    }

    /// A request that is to go out again; those whose tries are used up are given up on the way. A second try never
    /// goes by LID.
    pub(crate) fn next_retry(&mut self) -> Option<Outgoing> {
        if self.now < self.st.next_timeout {
            return None;
        }
        let mut next = Instant::NEVER;
        for index in 0..self.slots.len() {
            let slot = self.slots.get_mut(index)?;
            let Some(op) = slot.op else { continue };
            match slot.transaction.poll(self.now) {
                Next::WaitUntil(deadline) => next = next.min(deadline),
                Next::Send => {
                    let tid = slot.tid;
                    if let Some(outgoing) = self.request(op, tid, false) {
                        return Some(outgoing); // the rest at the next call: `next_timeout` still stands
                    }
                    self.release(index);
                    self.failed(op, Failure::NoAnswer);
                }
                Next::Done(_) => {
                    self.release(index);
                    self.failed(op, Failure::NoAnswer);
                }
            }
        }
        self.st.next_timeout = next;
        None
    }

    fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot)
            && slot.op.take().is_some()
        {
            self.st.in_flight = self.st.in_flight.saturating_sub(1);
        }
    }

    /// Forgets all that is in flight or waits. Whether a block of a table arrived is not known then, so it is to be
    /// written again.
    pub(crate) fn drop_requests(&mut self) {
        for index in 0..self.slots.len() {
            match self.slots.get_mut(index).and_then(|slot| slot.op.take()) {
                Some(Op::Lft(node, block)) => self.lft_again(node, block),
                Some(Op::Mft(node, part)) => {
                    self.mft_again(node, part);
                    self.st.mft_dropped = true;
                }
                _ => {}
            }
        }
        self.st.in_flight = 0;
        self.st.next_timeout = Instant::NEVER;
        self.st.urgent = None;
        while let Some(work) = self.work.pop() {
            match work {
                Work::Node(node) => {
                    if let Some(row) = self.nodes.get_mut(node) {
                        self.st.mft_dropped |= row.todo.contains(NodeTodo::MFT);
                        (row.queued, row.todo) = (false, NodeTodo::empty());
                    }
                }
                Work::Port(port) => {
                    if let Some(row) = self.ports.get_mut(port) {
                        (row.queued, row.todo) = (false, PortTodo::empty());
                    }
                }
            }
        }
    }

    /// An SMP that is a response came.
    pub(crate) fn response(&mut self, smp: &Smp) {
        let header = &smp.header;
        if AgentId::of_tid(header.tid) != self.config.smi_agent {
            return;
        }
        let tid = header.tid as u32;
        let index = (tid & 0xff) as usize;
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        let Some(op) = slot.op.filter(|op| op.attribute() == header.attribute) else {
            return;
        };
        if slot.tid != tid || header.method != Method::GET_RESP {
            return;
        }
        let status = MadStatus(header.status.0 & !MadStatus::DIRECTION);
        if status.is_busy() {
            return; // asked again when the time is up
        }
        self.release(index);
        if status == MadStatus::OK {
            self.answered(op, smp);
        } else {
            self.failed(op, Failure::Refused(status));
        }
    }

    /// Puts a request that failed into words.
    pub(crate) fn complain(&mut self, op: Op, why: Failure) {
        let about = match op.target() {
            Target::Own => None,
            Target::Node(node) => Some((node, 0)),
            Target::Port(port) | Target::Behind(port) => {
                self.ports.get(port).map(|row| (row.node, row.number))
            }
        };
        let guid = about.and_then(|(node, _)| Some(self.nodes.get(node)?.guid));
        let guid = guid.unwrap_or(self.st.guid);
        let port = about.map_or(0, |about| about.1);
        let attribute = op.attribute();
        self.report(match why {
            Failure::NoAnswer => Report::NoAnswer {
                guid,
                port,
                attribute,
            },
            Failure::Refused(status) => Report::Refused {
                guid,
                attribute,
                status,
            },
        });
    }

    /// The node that a request is for; `None` if it is for an unknown one.
    fn node_for(&self, op: Op) -> Option<NodeId> {
        match op.target() {
            Target::Own => self.ports.get(self.st.own?).map(|row| row.node),
            Target::Node(node) => Some(node),
            Target::Port(port) => self.ports.get(port).map(|row| row.node),
            Target::Behind(_) => None,
        }
    }

    /// The LID to reach the node of a request by, if it may go that way.
    fn lid_for(&self, op: Op) -> Option<Lid> {
        if !self.config.lid_routed || !op.may_go_by_lid() {
            return None;
        }
        let node = self.node_for(op)?;
        let own = self.ports.get(self.st.own?)?.node;
        if node == own {
            return None;
        }
        let port = match op.target() {
            Target::Port(port) => self.end_port_of(port)?,
            _ => self.port_at(node, 0)?,
        };
        let row = self.ports.get(port)?;
        if self.st.routed {
            return row.has(PortFlags::LID_SET).then_some(row.lid);
        }
        // Not the master: another one has given the LIDs, or nobody has.
        let (theirs, ours) = (row.view().lid(), self.ports.get(self.st.own?)?.view().lid());
        let poll = matches!(op, Op::SmInfo(_) | Op::Command(..));
        (poll && theirs.is_unicast() && ours.is_unicast()).then_some(theirs)
    }

    /// The directed route to `node`.
    fn path_to(&self, node: NodeId) -> Option<Path> {
        let mut path = Path {
            hops: [0; 64],
            len: 0,
        };
        let mut at = self.nodes.get(node)?;
        while let Some(via) = at.via {
            let port = self.ports.get(via)?;
            if path.len >= Smp::MAX_HOPS {
                return None;
            }
            *path.hops.get_mut(path.len)? = port.number;
            path.len += 1;
            at = self.nodes.get(port.node)?;
        }
        path.hops.get_mut(..path.len)?.reverse();
        Some(path)
    }

    /// The directed route to what is behind `port`; `None` if it is too long.
    pub(crate) fn path_behind(&self, port: PortId) -> Option<Path> {
        let row = self.ports.get(port)?;
        let mut path = self.path_to(row.node)?;
        if path.len >= Smp::MAX_HOPS {
            return None;
        }
        *path.hops.get_mut(path.len)? = row.number;
        path.len += 1;
        Some(path)
    }

    /// The directed route to `port`. An adapter is asked by the port that is meant.
    fn path_to_port(&self, port: PortId) -> Option<Path> {
        let row = self.ports.get(port)?;
        let node = self.nodes.get(row.node)?;
        if node.is_switch() || self.st.own == Some(port) {
            return self.path_to(row.node);
        }
        self.path_behind(row.peer?)
    }

    /// Makes the SMP of `op`. `None` if there is no way to its node.
    fn request(&self, op: Op, tid: u32, by_lid: bool) -> Option<Outgoing> {
        let path = match op.target() {
            Target::Own => Path {
                hops: [0; 64],
                len: 0,
            },
            Target::Node(node) => self.path_to(node)?,
            Target::Port(port) => self.path_to_port(port)?,
            Target::Behind(port) => self.path_behind(port)?,
        };
        let (method, modifier) = self.method_and_modifier(op)?;
        let lid = self.lid_for(op).filter(|_| by_lid);
        let mut smp = match lid {
            Some(_) => Smp::lid_routed(method, op.attribute(), modifier),
            None => Smp::directed(method, op.attribute(), modifier, path.as_slice()).ok()?,
        };
        smp.header.tid = self.config.smi_agent.tid(tid);
        smp.m_key = self.config.m_key;
        if method == Method::SET {
            self.fill(op, &mut smp)?;
        }
        let to = lid.map_or(MadAddr::DIRECTED, |lid| {
            MadAddr::smi(lid, self.config.sm_sl)
        });
        let mad = Mad(smp.to_bytes());
        Some(Outgoing { to, mad })
    }

    /// The port has extended link speeds, so that it understands the bit of who knows them.
    fn knows_extended(&self, port: PortId) -> bool {
        let end = self.end_port_of(port).and_then(|end| self.ports.get(end));
        end.is_some_and(|row| {
            row.view()
                .capability()
                .contains(Capability::EXTENDED_SPEEDS)
        })
    }

    fn method_and_modifier(&self, op: Op) -> Option<(Method, u32)> {
        let port = |port: PortId| self.ports.get(port);
        let node_of = |port: PortId| self.node_of(port);
        let extended = |at| {
            if self.knows_extended(at) {
                PortInfo::KNOWS_EXTENDED_SPEEDS
            } else {
                0
            }
        };
        Some(match op {
            Op::OwnNode | Op::Probe(_) | Op::Description(_) => (Method::GET, 0),
            Op::SwitchInfo(_) | Op::Check(_) | Op::SmInfo(_) => (Method::GET, 0),
            Op::ClearChange(_) | Op::SetSwitch(_) => (Method::SET, 0),
            Op::PortInfo(at) => (Method::GET, port(at)?.number.into()),
            Op::Configure(at) | Op::Bounce(at) | Op::Arm(at) | Op::Activate(at) => {
                (Method::SET, u32::from(port(at)?.number) | extended(at))
            }
            Op::Command(_, command) => (Method::SET, command.into()),
            Op::PKeys(at, block) | Op::SetPKeys(at, block) => {
                let number = if node_of(at)?.is_switch() {
                    port(at)?.number
                } else {
                    0
                };
                let method = if matches!(op, Op::PKeys(..)) {
                    Method::GET
                } else {
                    Method::SET
                };
                (method, PKeyTable::modifier(number, block.into()))
            }
            Op::SlToVl(at, input) => {
                let switch = node_of(at)?.is_switch();
                let modifier = SlToVlMappingTable::modifier(input, port(at)?.number);
                (Method::SET, if switch { modifier } else { 0 })
            }
            Op::VlArb(at, block) => (
                Method::SET,
                VlArbitrationTable::modifier(block.into(), port(at)?.number),
            ),
            Op::Lft(_, block) => (Method::SET, block.into()),
            Op::Mft(_, index) => {
                let positions = self.st.positions as u16;
                let block = index.checked_div(positions)?;
                let position = index.checked_rem(positions)?;
                (
                    Method::SET,
                    MulticastForwardingTable::modifier(block, position as u8),
                )
            }
        })
    }

    /// Fills in what a Set is to write.
    fn fill(&self, op: Op, smp: &mut Smp) -> Option<()> {
        let filled = match op {
            Op::ClearChange(node) => {
                let switch = self.switches.get(self.nodes.get(node)?.switch?)?;
                let info = SwitchInfo {
                    port_state_change: true,
                    ..switch.info()
                };
                smp.put(&info)
            }
            Op::SetSwitch(node) => smp.put(&self.switch_wanted(self.nodes.get(node)?.switch?)?),
            Op::Configure(port) => smp.put(&self.port_wanted(port)?),
            Op::Bounce(port) => smp.put(&self.port_down(port)?),
            Op::Arm(port) => smp.put(&self.port_armed(port)?),
            Op::Activate(port) => smp.put(&self.port_active(port)?),
            Op::Command(..) => smp.put(&self.sm_info(true)),
            Op::SetPKeys(port, block) => smp.put(&self.p_keys_wanted(port, block)?),
            Op::SlToVl(port, _) => smp.put(&self.sl_to_vl_wanted(port)?),
            Op::VlArb(port, block) => smp.put(&self.vl_arb_wanted(port, block)?),
            Op::Lft(node, block) => {
                let switch = self.nodes.get(node)?.switch?;
                let row = self.lft(switch).get(usize::from(block) * 64..)?;
                smp.put(&LinearForwardingTable {
                    ports: *row.first_chunk()?,
                })
            }
            Op::Mft(node, index) => {
                let switch = self.nodes.get(node)?.switch?;
                let row = self.mft(switch).get(usize::from(index) * 32..)?;
                smp.put(&MulticastForwardingTable {
                    masks: *row.first_chunk()?,
                })
            }
            _ => return None,
        };
        filled.ok()
    }
}
