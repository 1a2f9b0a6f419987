//! Records that show what the books hold of nodes, ports, switches and managers. protocols 4.7 to 4.9.

use super::query::{Enough, Query, Source};
use super::transfer::Kind;
use crate::manager::Manager;
use crate::subnet::PortFlags;
use crate::table::{Id, PortId, SwitchId};
use core_ib::wire::mad::{
    GuidInfo, GuidInfoRecord, InformInfoRecord, LinearForwardingTable, LinearForwardingTableRecord,
    LinkRecord, MKey, MulticastForwardingTable, MulticastForwardingTableRecord, NodeDescription,
    NodeInfo, NodeRecord, PKeyTableRecord, PortInfo, PortInfoRecord, Record,
    SlToVlMappingTableRecord, SmInfo, SmInfoRecord, SmKey, SwitchInfoRecord, VlArbitrationTable,
    VlArbitrationTableRecord,
};
use core_ib::{Gid, Guid, Lid};

type Each<'e> = &'e mut dyn FnMut(u32) -> Enough;

impl Manager<'_> {
    /// Every port of a present node: all of them, or those of the node with this LID.
    fn each_port(&self, lid: Option<Lid>, mut each: impl FnMut(PortId) -> Enough) {
        if let Some(lid) = lid {
            let node = self.port_of_lid(lid).and_then(|port| self.ports.get(port));
            for port in node.into_iter().flat_map(|row| self.ports_of(row.node)) {
                if each(port) == Enough(true) {
                    return;
                }
            }
            return;
        }
        for port in self.all_ports() {
            let present = self.node_of(port).is_some_and(|node| node.present);
            if present && each(port) == Enough(true) {
                return;
            }
        }
    }

    /// The same of end ports in service.
    fn each_end_port(&self, lid: Option<Lid>, mut each: impl FnMut(PortId) -> Enough) {
        self.each_port(lid, |port| {
            let here = self
                .ports
                .get(port)
                .is_some_and(|row| row.has(PortFlags::PRESENT));
            if here { each(port) } else { Enough(false) }
        });
    }

    /// The same of switches.
    fn each_switch(&self, lid: Option<Lid>, mut each: impl FnMut(SwitchId) -> Enough) {
        self.each_end_port(lid, |port| {
            match self.node_of(port).and_then(|node| node.switch) {
                Some(switch) => each(switch),
                None => Enough(false),
            }
        });
    }

    /// LID of the end port that a port belongs to.
    fn lid_of(&self, port: PortId) -> Option<Lid> {
        let end = self.end_port_of(port)?;
        self.ports
            .get(end)
            .map(|row| row.lid)
            .filter(|&lid| lid != Lid::NONE)
    }

    fn lid_of_switch(&self, switch: SwitchId) -> Option<Lid> {
        self.lid_of(self.port_at(self.switches.get(switch)?.node, 0)?)
    }
}

/// The LID that a query names, if it does.
fn lid_in<R>(
    query: &Query<'_, R>,
    component: core_ib::wire::mad::ComponentMask,
    lid: Lid,
) -> Option<Lid> {
    query.has(component).then_some(lid)
}

fn number(port: PortId) -> u32 {
    port.index() as u32
}

fn port(number: u32) -> Option<PortId> {
    PortId::new(number as usize)
}

/// A row and a place in one of its tables.
fn pair(row: usize, place: u32) -> u32 {
    (row as u32) << 8 | (place & 0xff)
}

fn port_and_place(number: u32) -> Option<(PortId, u8)> {
    Some((PortId::new((number >> 8) as usize)?, number as u8))
}

fn switch_and_place(number: u32) -> Option<(SwitchId, u16)> {
    Some((SwitchId::new((number >> 16) as usize)?, number as u16))
}

impl Source for NodeRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_end_port(lid, |port| each(number(port)));
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let port = port(number)?;
        let row = manager.ports.get(port)?;
        let node = manager.nodes.get(row.node)?;
        let info = NodeInfo::from_bytes(&node.info);
        let local_port_num = if row.number == 0 {
            info.local_port_num
        } else {
            row.number
        };
        Some(Self {
            lid: row.lid,
            info: NodeInfo {
                port_guid: row.guid,
                local_port_num,
                ..info
            },
            description: NodeDescription {
                text: node.description,
            },
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        let mut record = query.record;
        if query.has(Self::LID) {
            record.lid = self.lid; // found by it; of several LIDs of a port any will do
        }
        self.matches(&record, query.mask)
    }
}

impl Source for PortInfoRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let by_lid = lid_in(query, Self::LID, query.record.lid);
        let lid = by_lid.or(lid_in(query, Self::BASE_LID, query.record.info.lid));
        manager.each_port(lid, |port| each(number(port)));
    }

    fn make(manager: &Manager<'_>, what: &Kind, number: u32) -> Option<Self> {
        let port = port(number)?;
        let row = manager.ports.get(port).filter(|row| row.sweep != 0)?;
        let info = row.info();
        let m_key = if what.trusted { info.m_key } else { MKey(0) };
        Some(Self {
            lid: manager.lid_of(port)?,
            port_num: row.number,
            options: 0,
            info: PortInfo {
                m_key,
                client_reregister: false,
                ..info
            },
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        let mut record = query.record;
        if query.has(Self::LID) {
            record.lid = self.lid;
        }
        let at_least = query.request.header.header.modifier & Self::AT_LEAST_CAPABILITIES != 0;
        if at_least && query.has(Self::CAPABILITY) {
            if !self.info.capability.contains(record.info.capability) {
                return false;
            }
            record.info.capability = self.info.capability;
        }
        self.matches(&record, query.mask)
    }
}

impl Source for SwitchInfoRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_switch(lid, |switch| each(switch.index() as u32));
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let switch = SwitchId::new(number as usize)?;
        let lid = manager.lid_of_switch(switch)?;
        Some(Self {
            lid,
            info: manager.switches.get(switch)?.info(),
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for LinearForwardingTableRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        let blocks = u32::from(manager.st.top) / 64 + 1;
        manager.each_switch(lid, |switch| {
            let row = (switch.index() as u32) << 16;
            Enough((0..blocks).any(|block| each(row | block) == Enough(true)))
        });
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let (switch, block) = switch_and_place(number)?;
        let row = manager.lft(switch).get(usize::from(block) * 64..)?;
        let table = LinearForwardingTable {
            ports: *row.first_chunk()?,
        };
        Some(Self {
            lid: manager.lid_of_switch(switch)?,
            block,
            table,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for MulticastForwardingTableRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        let used = manager.mlids.iter().rposition(|row| row.groups != 0);
        let blocks = used.map_or(0, |top| top as u32 / 32 + 1);
        let parts = blocks * manager.st.positions as u32;
        manager.each_switch(lid, |switch| {
            let row = (switch.index() as u32) << 16;
            Enough((0..parts).any(|part| each(row | part) == Enough(true)))
        });
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let (switch, part) = switch_and_place(number)?;
        let positions = manager.st.positions as u16;
        let row = manager.mft(switch).get(usize::from(part) * 32..)?;
        Some(Self {
            lid: manager.lid_of_switch(switch)?,
            position: part.checked_rem(positions)? as u8,
            block: part.checked_div(positions)?,
            table: MulticastForwardingTable {
                masks: *row.first_chunk()?,
            },
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for GuidInfoRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_end_port(lid, |port| each(number(port)));
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let row = manager.ports.get(port(number)?)?;
        let mut guids = [Guid(0); 8];
        guids[0] = row.guid; // no others are given
        Some(Self {
            lid: row.lid,
            block: 0,
            info: GuidInfo { guids },
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for PKeyTableRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_end_port(lid, |port| {
            let blocks = u32::from(manager.p_key_cap(port)).div_ceil(32);
            Enough((0..blocks).any(|block| each(pair(port.index(), block)) == Enough(true)))
        });
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let (port, block) = port_and_place(number)?;
        Some(Self {
            lid: manager.lid_of(port)?,
            block: block.into(),
            port: manager.ports.get(port)?.number,
            table: manager.p_keys_wanted(port, block)?,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for SlToVlMappingTableRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        if manager.config.qos.is_none() {
            return; // they are as their makers left them, and not known
        }
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_port(lid, |port| {
            let last = match manager.node_of(port) {
                Some(node) if node.is_switch() => u32::from(node.num_ports),
                _ => 0,
            };
            Enough((0..=last).any(|input| each(pair(port.index(), input)) == Enough(true)))
        });
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let (port, in_port) = port_and_place(number)?;
        Some(Self {
            lid: manager.lid_of(port)?,
            in_port,
            out_port: manager
                .ports
                .get(port)
                .filter(|row| row.peer.is_some())?
                .number,
            table: manager.sl_to_vl_wanted(port)?,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for VlArbitrationTableRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        if manager.config.qos.is_none() {
            return;
        }
        let lid = lid_in(query, Self::LID, query.record.lid);
        manager.each_port(lid, |port| {
            let blocks = [VlArbitrationTable::LOW, VlArbitrationTable::HIGH];
            let mut numbers = blocks.iter().map(|&block| pair(port.index(), block.into()));
            Enough(numbers.any(|number| each(number) == Enough(true)))
        });
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let (port, block) = port_and_place(number)?;
        Some(Self {
            lid: manager.lid_of(port)?,
            out_port: manager
                .ports
                .get(port)
                .filter(|row| row.peer.is_some())?
                .number,
            block,
            table: manager.vl_arb_wanted(port, block)?,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for LinkRecord {
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: Each<'_>) {
        let lid = lid_in(query, Self::FROM_LID, query.record.from_lid);
        manager.each_port(lid, |port| each(number(port)));
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let from = port(number)?;
        let row = manager.ports.get(from)?;
        let to = row.peer?;
        Some(Self {
            from_lid: manager.lid_of(from)?,
            from_port: row.number,
            to_port: manager.ports.get(to)?.number,
            to_lid: manager.lid_of(to)?,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

/// The record of our own manager; those of the others follow.
const OWN: u32 = 0;

impl Source for SmInfoRecord {
    fn numbers(manager: &Manager<'_>, _: &Query<'_, Self>, each: Each<'_>) {
        let count = 1 + manager.peers.len() as u32;
        (OWN..count).any(|number| each(number) == Enough(true));
    }

    fn make(manager: &Manager<'_>, what: &Kind, number: u32) -> Option<Self> {
        if number == OWN {
            let info = manager.sm_info(what.trusted);
            return Some(Self {
                lid: manager.own_lid(),
                info,
            });
        }
        let peer = manager
            .peers
            .get(number.checked_sub(1)? as usize)
            .copied()
            .flatten()?;
        let info = SmInfo {
            sm_key: SmKey(0),
            ..peer.info
        };
        Some(Self {
            lid: manager.lid_of(peer.port)?,
            info,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}

impl Source for InformInfoRecord {
    fn numbers(manager: &Manager<'_>, _: &Query<'_, Self>, each: Each<'_>) {
        let count = manager.subscriptions.len() as u32;
        (0..count).any(|number| each(number) == Enough(true));
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        let row = manager.subscriptions.get(number as usize)?;
        let subscriber_gid: Gid = manager.gid_of(row.port?);
        Some(Self {
            subscriber_gid,
            index: number as u16,
            info: row.info,
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        self.matches(&query.record, query.mask)
    }
}
