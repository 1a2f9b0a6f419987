//! The subnet as the manager knows it: nodes, ports, switches, and what they said of themselves.
//!
//! A node that vanished keeps its rows until another needs them, so that it finds everything as it was when it
//! returns. *Present* is what the last whole sweep has seen; the administrator answers from that.

use crate::manager::Manager;
use crate::table::{Id, MemberId, NodeId, PortId, SwitchId};
use bitflags::bitflags;
use core_ib::wire::mad::{
    MtuCode, NodeInfo, NodeInfoView, NodeType, PortInfo, PortInfoView, PortState, SwitchInfo,
    SwitchInfoView,
};
use core_ib::{Gid, Guid, Instant, Lid, Rate};

bitflags! {
    /// What is to be asked of a node, or written into it; the lower bit first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct NodeTodo: u8 {
        /// Get(SwitchInfo), then its ports.
        const SWITCH_INFO = 1 << 0;
        /// Set(SwitchInfo) to clear PortStateChange, then its ports.
        const CLEAR_CHANGE = 1 << 1;
        /// Get(NodeDescription).
        const DESCRIPTION = 1 << 2;
        /// Get(SwitchInfo) of a light sweep.
        const CHECK = 1 << 3;
        /// Set(SwitchInfo) with all that is to be set.
        const SET_SWITCH = 1 << 4;
        /// Blocks of the forwarding table.
        const LFT = 1 << 5;
        /// Blocks of the multicast forwarding table.
        const MFT = 1 << 6;
    }

    /// What is to be asked of a port, or written into it; the lower bit first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct PortTodo: u16 {
        /// Get(PortInfo).
        const INFO = 1 << 0;
        /// Get(NodeInfo) of what is behind it.
        const PROBE = 1 << 1;
        /// Get(SMInfo).
        const SM_INFO = 1 << 2;
        /// Get(P_KeyTable), block by block.
        const P_KEYS = 1 << 3;
        /// Set(P_KeyTable) of the block at hand.
        const SET_P_KEYS = 1 << 10;
        /// Set(PortInfo) of parameters, state unchanged.
        const CONFIGURE = 1 << 4;
        /// Set(SLtoVLMappingTable), input port by input port.
        const SL_TO_VL = 1 << 5;
        /// Set(VLArbitrationTable).
        const VL_ARB = 1 << 6;
        /// Set(PortInfo) with state Down: the link is to train anew.
        const BOUNCE = 1 << 7;
        /// Set(PortInfo) with parameters and state Armed.
        const ARM = 1 << 8;
        /// Set(PortInfo) with state Active.
        const ACTIVATE = 1 << 9;
    }

    /// What is known of a port beside its PortInfo.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct PortFlags: u16 {
        /// An end port that is in service: the last sweep has seen it.
        const PRESENT = 1 << 0;
        /// Subscribers were told that it is.
        const ANNOUNCED = 1 << 1;
        /// Its clients are to register anew.
        const REREGISTER = 1 << 2;
        /// Its P_Key table is as it should be.
        const P_KEYS_DONE = 1 << 3;
        /// Its tables of virtual lanes are as they should be.
        const QOS_DONE = 1 << 4;
        /// It confirmed its LID.
        const LID_SET = 1 << 5;
        /// The link is up, but nobody answers.
        const UNANSWERED = 1 << 6;
        /// It gave too many errors.
        const UNHEALTHY = 1 << 7;
        /// What is behind it claims the GUID of another node.
        const DUPLICATE = 1 << 8;
        /// Its link was made to train anew because its ends did not agree. That is tried once.
        const BOUNCED = 1 << 9;
    }
}

/// An adapter, a router or a switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) guid: Guid,
    pub(crate) kind: NodeType,
    pub(crate) num_ports: u8,
    /// Row of its lowest port: 0 of a switch, 1 of others.
    pub(crate) first: PortId,
    /// Rows that are its own from there on.
    pub(crate) room: u16,
    pub(crate) switch: Option<SwitchId>,
    /// Port of the node before it on the way from here; none for our own node.
    pub(crate) via: Option<PortId>,
    /// Hops from here when it was reached by `via`, or more.
    pub(crate) hops: u8,
    /// The last sweep that has seen it.
    pub(crate) sweep: u32,
    pub(crate) present: bool,
    /// It was there once and vanished: its rows may be given to another.
    pub(crate) vacant: bool,
    /// Its NodeDescription was read.
    pub(crate) described: bool,
    pub(crate) todo: NodeTodo,
    /// It waits in the queue of work.
    pub(crate) queued: bool,
    /// NodeInfo as it came first.
    pub(crate) info: [u8; 40],
    pub(crate) description: [u8; 64],
}

impl Node {
    pub(crate) fn is_switch(&self) -> bool {
        self.kind == NodeType::SWITCH
    }

    pub(crate) fn info(&self) -> &NodeInfoView {
        zerocopy::transmute_ref!(&self.info)
    }

    /// Number of its lowest port.
    pub(crate) fn lowest(&self) -> u8 {
        u8::from(!self.is_switch())
    }
}

/// A port of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) node: NodeId,
    pub(crate) number: u8,
    /// Of an end port; zero otherwise.
    pub(crate) guid: Guid,
    /// Base LID that it was given; of an end port.
    pub(crate) lid: Lid,
    /// Port at the other end of the cable.
    pub(crate) peer: Option<PortId>,
    /// The sweep in which the cable was seen.
    pub(crate) link_sweep: u32,
    /// The sweep in which PortInfo was read.
    pub(crate) sweep: u32,
    pub(crate) todo: PortTodo,
    pub(crate) queued: bool,
    pub(crate) flags: PortFlags,
    /// How often its neighbour contradicted what was known, in this sweep.
    pub(crate) contradictions: u8,
    /// Next block of the P_Key table to be read.
    pub(crate) p_key_block: u8,
    /// Next input port, then block, of the tables of virtual lanes to be written.
    pub(crate) qos_next: u8,
    /// Traps of failing links in a row.
    pub(crate) traps: u8,
    /// The last of them.
    pub(crate) trap_at: Instant,
    /// Its first membership of a group.
    pub(crate) members: Option<MemberId>,
    /// Rate of its link.
    pub(crate) rate: Rate,
    /// PortInfo as it came last: see [`set_info`](Self::set_info).
    info: [u8; 64],
}

impl Port {
    pub(crate) const fn new(node: NodeId, number: u8) -> Self {
        Self {
            node,
            number,
            guid: Guid(0),
            lid: Lid::NONE,
            peer: None,
            link_sweep: 0,
            sweep: 0,
            todo: PortTodo::empty(),
            queued: false,
            flags: PortFlags::empty(),
            contradictions: 0,
            p_key_block: 0,
            qos_next: 0,
            traps: 0,
            trap_at: Instant(0),
            members: None,
            rate: Rate::PORT,
            info: [0; 64],
        }
    }

    /// It said this of itself.
    pub(crate) fn set_info(&mut self, info: [u8; 64]) {
        self.info = info;
        self.rate = self.info().rate().unwrap_or(Rate::PORT);
    }

    /// MTU of its link.
    pub(crate) fn mtu(&self) -> MtuCode {
        self.view().neighbor_mtu()
    }

    pub(crate) fn view(&self) -> &PortInfoView {
        zerocopy::transmute_ref!(&self.info)
    }

    pub(crate) fn info(&self) -> PortInfo {
        PortInfo::from_bytes(&self.info)
    }

    pub(crate) fn state(&self) -> PortState {
        self.view().state()
    }

    pub(crate) fn has(&self, flags: PortFlags) -> bool {
        self.flags.contains(flags)
    }
}

/// A switch among switches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    pub(crate) node: NodeId,
    /// SwitchInfo as it came last.
    pub(crate) info: [u8; 20],
    /// The sweep in which it was read.
    pub(crate) sweep: u32,
    /// What is in its tables is not known: all is to be written.
    pub(crate) rewrite: bool,
    /// Its PortStateChange was found set by a manager that may not clear it.
    pub(crate) changed: bool,
}

impl Switch {
    /// No switch.
    pub(crate) const BLANK: Self = Self {
        node: NodeId::FIRST,
        info: [0; 20],
        sweep: 0,
        rewrite: true,
        changed: false,
    };

    pub(crate) fn view(&self) -> &SwitchInfoView {
        zerocopy::transmute_ref!(&self.info)
    }

    pub(crate) fn info(&self) -> SwitchInfo {
        SwitchInfo::from_bytes(&self.info)
    }
}

/// One LID: whose it is, and who is there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LidRow {
    /// The port GUID that it is kept for.
    pub(crate) guid: Guid,
    /// The port, if it is present.
    pub(crate) port: Option<PortId>,
}

impl Manager<'_> {
    /// Port `number` of `node`; port 0 of a node that is no switch does not exist.
    pub(crate) fn port_at(&self, node: NodeId, number: u8) -> Option<PortId> {
        let row = self.nodes.get(node)?;
        let offset = number.checked_sub(row.lowest())?;
        if number > row.num_ports {
            return None;
        }
        PortId::new(row.first.index() + usize::from(offset))
    }

    /// All ports of `node`, lowest first.
    pub(crate) fn ports_of(&self, node: NodeId) -> impl Iterator<Item = PortId> + use<> {
        let row = self.nodes.get(node);
        let range = row.map(|row| {
            (
                row.first.index(),
                usize::from(row.num_ports - row.lowest()) + 1,
            )
        });
        let (first, count) = range.unwrap_or((0, 0));
        (first..first + count).filter_map(PortId::new)
    }

    /// The node of `port`.
    pub(crate) fn node_of(&self, port: PortId) -> Option<&Node> {
        self.nodes.get(self.ports.get(port)?.node)
    }

    /// A port that has LIDs: of an adapter or a router, or port 0 of a switch.
    pub(crate) fn is_end_port(&self, port: PortId) -> bool {
        let Some(row) = self.ports.get(port) else {
            return false;
        };
        let node = self.nodes.get(row.node);
        node.is_some_and(|node| row.number == 0 || !node.is_switch())
    }

    /// All rows of ports in use, of whatever kind.
    pub(crate) fn all_ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.st.ports_used).filter_map(PortId::new)
    }

    /// All rows of nodes in use, present or not.
    pub(crate) fn all_nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.st.nodes_used).filter_map(NodeId::new)
    }

    /// All rows of switches in use, present or not.
    pub(crate) fn all_switches(&self) -> impl Iterator<Item = SwitchId> + use<> {
        (0..self.st.switches_used).filter_map(SwitchId::new)
    }

    /// The end port of `port`: itself, or port 0 of its switch.
    pub(crate) fn end_port_of(&self, port: PortId) -> Option<PortId> {
        if self.is_end_port(port) {
            return Some(port);
        }
        self.port_at(self.ports.get(port)?.node, 0)
    }

    /// The end port that answers to `lid`, if it is present. LMC counts.
    pub(crate) fn port_of_lid(&self, lid: Lid) -> Option<PortId> {
        self.lids.get(usize::from(lid.0))?.port
    }

    /// The end port with this port GUID, if it is present.
    pub(crate) fn port_of_guid(&self, guid: Guid) -> Option<PortId> {
        let port = PortId::new(self.port_map.get(guid)? as usize)?;
        self.ports
            .get(port)
            .filter(|row| row.has(PortFlags::PRESENT))?;
        Some(port)
    }

    /// The end port with this GID, if it is present and of this subnet.
    pub(crate) fn port_of_gid(&self, gid: Gid) -> Option<PortId> {
        let prefix = gid.prefix();
        if prefix != self.config.subnet_prefix && prefix != Gid::DEFAULT_PREFIX {
            return None;
        }
        self.port_of_guid(gid.guid())
    }

    /// GID of an end port.
    pub(crate) fn gid_of(&self, port: PortId) -> Gid {
        let guid = self.ports.get(port).map_or(Guid(0), |row| row.guid);
        Gid::unicast(self.config.subnet_prefix, guid)
    }

    /// LMC of an end port: port 0 of a switch has one LID only.
    pub(crate) fn lmc_of(&self, port: PortId) -> u8 {
        match self.node_of(port) {
            Some(node) if !node.is_switch() => self.config.lmc,
            _ => 0,
        }
    }

    /// The switch that an end port hangs on, and its port there; of a switch's own port 0, the switch.
    pub(crate) fn leaf_of(&self, port: PortId) -> Option<(SwitchId, u8)> {
        let row = self.ports.get(port)?;
        let node = self.nodes.get(row.node)?;
        if let Some(switch) = node.switch {
            return (row.number == 0).then_some((switch, 0));
        }
        let peer = self.ports.get(row.peer?)?;
        Some((self.nodes.get(peer.node)?.switch?, peer.number))
    }

    /// Rows for a node that was not known: those of one that vanished, or new ones. Its ports are blank.
    pub(crate) fn add_node(&mut self, info: &NodeInfo) -> Option<NodeId> {
        let is_switch = info.node_type == NodeType::SWITCH;
        let need = u16::from(info.num_ports) + u16::from(is_switch);
        let id = self.vacant_node(need, is_switch, true);
        let id = id.or_else(|| self.new_node(need, is_switch));
        let id = id.or_else(|| self.vacant_node(need, is_switch, false));
        let Some(id) = id else {
            self.no_room_for_node(need, is_switch);
            return None;
        };
        if !self.node_map.insert(info.node_guid, id.index() as u32) {
            return None;
        }
        let node = self.nodes.get_mut(id)?;
        *node = Node {
            guid: info.node_guid,
            kind: info.node_type,
            num_ports: info.num_ports,
            via: None,
            hops: u8::MAX,
            sweep: 0,
            present: false,
            vacant: false,
            described: false,
            todo: NodeTodo::empty(),
            info: info.to_bytes(),
            description: [0; 64],
            ..*node
        };
        let (lowest, switch) = (node.lowest(), node.switch);
        for (port, number) in self.ports_of(id).zip(lowest..=u8::MAX) {
            if let Some(row) = self.ports.get_mut(port) {
                *row = Port {
                    queued: row.queued,
                    ..Port::new(id, number)
                };
            }
        }
        if let Some(switch) = switch {
            self.forget_tables(switch);
        }
        Some(id)
    }

    /// A node that vanished whose rows fit.
    fn vacant_node(&mut self, need: u16, is_switch: bool, exactly: bool) -> Option<NodeId> {
        if self.st.vacant == 0 {
            return None;
        }
        let sweep = self.st.sweep;
        let fits = |node: &Node| {
            node.vacant
                && node.sweep != sweep
                && node.switch.is_some() == is_switch
                && if exactly {
                    node.room == need
                } else {
                    node.room > need
                }
        };
        let (id, guid) = self
            .nodes
            .iter()
            .take(self.st.nodes_used)
            .find_map(|(id, node)| fits(node).then_some((id, node.guid)))?;
        self.st.vacant -= 1;
        for port in self.ports_of(id) {
            let Some(row) = self.ports.get(port) else {
                continue;
            };
            if row.guid.0 != 0 && self.port_map.get(row.guid) == Some(port.index() as u32) {
                self.port_map.remove(row.guid);
            }
        }
        self.node_map.remove(guid);
        Some(id)
    }

    fn new_node(&mut self, need: u16, is_switch: bool) -> Option<NodeId> {
        let st = &mut *self.st;
        let node = NodeId::new(st.nodes_used)?;
        let first = PortId::new(st.ports_used)?;
        let switch = SwitchId::new(st.switches_used).filter(|_| is_switch);
        let ports = st.ports_used + usize::from(need);
        if ports > self.ports.capacity()
            || (is_switch && st.switches_used >= self.switches.capacity())
        {
            return None;
        }
        let row = self.nodes.get_mut(node)?;
        *row = Node {
            first,
            room: need,
            switch,
            ..Node::BLANK
        };
        if let Some(row) = switch.and_then(|switch| self.switches.get_mut(switch)) {
            row.node = node;
        }
        st.nodes_used += 1;
        st.ports_used = ports;
        st.switches_used += usize::from(is_switch);
        Some(node)
    }

    fn no_room_for_node(&mut self, need: u16, is_switch: bool) {
        let (entry, limit) = if self.st.nodes_used >= self.nodes.capacity() {
            ("nodes", self.nodes.capacity())
        } else if self.st.ports_used + usize::from(need) > self.ports.capacity() {
            ("ports", self.ports.capacity())
        } else if is_switch {
            ("switches", self.switches.capacity())
        } else {
            ("nodes", self.nodes.capacity())
        };
        self.no_room(entry, limit);
    }

    /// Takes the cable between `port` and its peer out of the books.
    pub(crate) fn unlink(&mut self, port: PortId) {
        let peer = self.ports.get_mut(port).and_then(|row| row.peer.take());
        self.st.reroute |= peer.is_some();
        if let Some(row) = peer.and_then(|peer| self.ports.get_mut(peer))
            && row.peer == Some(port)
        {
            row.peer = None;
        }
    }
}

impl Node {
    /// No node.
    pub(crate) const BLANK: Self = Self {
        guid: Guid(0),
        kind: NodeType(0),
        num_ports: 0,
        first: PortId::FIRST,
        room: 0,
        switch: None,
        via: None,
        hops: u8::MAX,
        sweep: 0,
        present: false,
        vacant: false,
        described: false,
        todo: NodeTodo::empty(),
        queued: false,
        info: [0; 40],
        description: [0; 64],
    };
}
