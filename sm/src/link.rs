//! What ports and switches are to hold: PortInfo, partition keys, virtual lanes, SwitchInfo. protocols 9.4.
//!
//! *Wanted* is computed from the configuration and from what both ends of a cable can; it is written only where the port
//! says something else.

use crate::manager::Manager;
use crate::subnet::{PortFlags, PortTodo};
use crate::table::{PortId, SwitchId};
use core_ib::wire::mad::{
    Capability, LinkSpeed, LinkSpeedExt, LinkWidth, MtuCode, PKeyTable, PortInfo, PortPhysState,
    PortState, SlToVlMappingTable, Smp, SwitchInfo, TimeCode, VlArbitrationTable, VlWeight,
};
use core_ib::{Lid, PKey};

/// P_Keys of a block.
const BLOCK: u16 = 32;

impl Manager<'_> {
    /// PortInfo for Set: everything as it should be, state unchanged.
    pub(crate) fn port_wanted(&self, port: PortId) -> Option<PortInfo> {
        let row = self.ports.get(port)?;
        let found = row.info();
        let is_end = self.is_end_port(port);
        let peer = row
            .peer
            .and_then(|peer| self.ports.get(peer))
            .map(|peer| peer.view());
        let mtu_cap = peer.map_or(found.mtu_cap, |peer| peer.mtu_cap().min(found.mtu_cap));
        let vl_cap = peer.map_or(found.vl_cap, |peer| peer.vl_cap().min(found.vl_cap));
        let to_switch = row
            .peer
            .and_then(|peer| self.node_of(peer))
            .is_some_and(|node| node.is_switch());
        let on_switch = self.node_of(port).is_some_and(|node| node.is_switch());
        let mut info = PortInfo {
            // Only what is to change; zero is "no change" here.
            state: PortState::NO_CHANGE,
            phys_state: PortPhysState::NO_CHANGE,
            link_down_default_state: PortPhysState::POLLING,
            link_width_enabled: LinkWidth::empty(),
            link_speed_enabled: LinkSpeed::empty(),
            link_speed_ext_enabled: LinkSpeedExt::empty(),
            client_reregister: false,
            neighbor_mtu: mtu_cap.min(MtuCode::from(self.config.max_mtu)),
            operational_vls: vl_cap.min(self.config.max_op_vls),
            local_phy_errors: self.config.error_threshold,
            overrun_errors: self.config.error_threshold,
            vl_stall_count: self.config.vl_stall_count,
            hoq_life: if to_switch {
                self.config.hoq_life
            } else {
                self.config.leaf_hoq_life
            },
            ..found
        };
        if let Some(qos) = self.config.qos {
            info.vl_high_limit = qos.high_limit;
        }
        if on_switch && !is_end {
            return Some(info); // an external port has neither LID nor M_Key of its own
        }
        info.m_key = self.config.m_key;
        info.m_key_protect = self.config.m_key_protect;
        info.m_key_lease_period = self.config.m_key_lease;
        info.gid_prefix = self.config.subnet_prefix;
        info.lid = row.lid;
        info.lmc = self.lmc_of(port);
        info.master_sm_lid = self.own_lid();
        info.master_sm_sl = self.config.sm_sl;
        info.subnet_timeout = self.config.subnet_timeout;
        info.client_reregister = self.to_reregister(port, &found);
        Some(info)
    }

    fn to_reregister(&self, port: PortId, found: &PortInfo) -> bool {
        found.capability.contains(Capability::CLIENT_REREGISTRATION)
            && (found.master_sm_lid != self.own_lid()
                || self
                    .ports
                    .get(port)
                    .is_some_and(|row| row.has(PortFlags::REREGISTER)))
    }

    /// The fields that a manager writes differ: those of an end port if it is one, those of a cable if there is one.
    fn differs(found: &PortInfo, wanted: &PortInfo, is_end: bool, cable: bool) -> bool {
        let link = |info: &PortInfo| {
            (
                info.neighbor_mtu,
                info.operational_vls,
                info.local_phy_errors,
                info.overrun_errors,
                info.vl_stall_count,
                info.hoq_life,
                info.vl_high_limit,
            )
        };
        let end = |info: &PortInfo| {
            (
                (info.m_key, info.m_key_protect, info.m_key_lease_period),
                (info.gid_prefix, info.lid, info.lmc),
                (info.master_sm_lid, info.master_sm_sl, info.subnet_timeout),
            )
        };
        (cable && link(found) != link(wanted)) || (is_end && end(found) != end(wanted))
    }

    /// What is to be written into an end port in service.
    pub(crate) fn configure_end_port(&mut self, port: PortId) {
        let (Some(row), Some(wanted)) = (self.ports.get(port), self.port_wanted(port)) else {
            return;
        };
        let found = row.info();
        let mut todo = PortTodo::empty();
        if row.lid == Lid::NONE {
            return; // there was none left
        }
        if wanted.client_reregister
            || row.has(PortFlags::REREGISTER)
            || !row.has(PortFlags::LID_SET)
            || Self::differs(&found, &wanted, true, row.peer.is_some())
        {
            todo |= PortTodo::CONFIGURE;
        }
        if !row.has(PortFlags::P_KEYS_DONE) {
            todo |= PortTodo::P_KEYS;
        }
        if let Some(row) = self.ports.get_mut(port) {
            row.p_key_block = 0;
        }
        self.port_todo(port, todo);
    }

    /// What is to be written into a port because of its cable: a link in use whose two ends do not agree has to
    /// train anew; other differences are written at once, or with the state Armed.
    pub(crate) fn configure_link(&mut self, port: PortId) {
        let Some(row) = self.ports.get(port) else {
            return;
        };
        if row.peer.is_none() || row.has(PortFlags::DUPLICATE) {
            return;
        }
        let Some(wanted) = self.port_wanted(port) else {
            return;
        };
        let (found, is_end) = (row.info(), self.is_end_port(port));
        let lanes = found.vl_cap.lanes().is_some_and(|lanes| lanes > 1);
        let qos = self.config.qos.is_some() && lanes && !row.has(PortFlags::QOS_DONE);
        let agreed = |info: &PortInfo| (info.neighbor_mtu, info.operational_vls);
        let (agree, bounced) = (
            agreed(&found) == agreed(&wanted),
            row.has(PortFlags::BOUNCED),
        );
        let mut todo = PortTodo::empty();
        if found.state >= PortState::ARMED {
            if !agree && !bounced {
                // One end is enough: the one that is a switch's.
                let peer_is_switch = row.peer.and_then(|peer| self.node_of(peer));
                let peer_is_switch = peer_is_switch.is_some_and(|node| node.is_switch());
                if !is_end || !peer_is_switch {
                    todo |= PortTodo::BOUNCE;
                }
            } else if !is_end && Self::differs(&found, &wanted, false, true) {
                todo |= PortTodo::CONFIGURE;
            }
        }
        if qos {
            todo |= PortTodo::SL_TO_VL;
        }
        if let Some(row) = self.ports.get_mut(port) {
            row.qos_next = 0;
            if agree && found.state >= PortState::ARMED {
                row.flags.remove(PortFlags::BOUNCED);
            } else if todo.contains(PortTodo::BOUNCE) {
                row.flags.insert(PortFlags::BOUNCED);
            }
        }
        self.port_todo(port, todo);
    }

    /// PortInfo for Set: the link is to go down and train anew.
    pub(crate) fn port_down(&self, port: PortId) -> Option<PortInfo> {
        Some(PortInfo {
            state: PortState::DOWN,
            ..self.port_wanted(port)?
        })
    }

    /// PortInfo for Set: parameters and Armed.
    pub(crate) fn port_armed(&self, port: PortId) -> Option<PortInfo> {
        Some(PortInfo {
            state: PortState::ARMED,
            client_reregister: false,
            ..self.port_wanted(port)?
        })
    }

    /// PortInfo for Set: Active.
    pub(crate) fn port_active(&self, port: PortId) -> Option<PortInfo> {
        Some(PortInfo {
            state: PortState::ACTIVE,
            client_reregister: false,
            ..self.port_wanted(port)?
        })
    }

    /// PortInfo was written, state unchanged.
    pub(crate) fn configured(&mut self, port: PortId, smp: &Smp) {
        let Some(bytes) = smp.data.first_chunk() else {
            return;
        };
        let is_end = self.is_end_port(port);
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        row.set_info(*bytes);
        if is_end {
            let set = row.view().lid() == row.lid;
            row.flags.set(PortFlags::LID_SET, set);
            row.flags.remove(PortFlags::REREGISTER);
            if !set {
                self.st.failures += 1; // it took another one, or none
            }
        }
    }

    /// The state of a port was written.
    pub(crate) fn state_set(&mut self, port: PortId, smp: &Smp, wanted: PortState) {
        let Some(bytes) = smp.data.first_chunk() else {
            return;
        };
        if let Some(row) = self.ports.get_mut(port) {
            row.set_info(*bytes);
            // An armed port may have become active by itself.
            if row.state() < wanted {
                self.st.failures += 1;
            }
        }
    }

    /// A link trains anew; it is found by the next sweep.
    pub(crate) fn bounced(&mut self, port: PortId) {
        self.st.failures += 1;
        let peer = self.ports.get(port).and_then(|row| row.peer);
        for id in [Some(port), peer].into_iter().flatten() {
            if let Some(row) = self.ports.get_mut(id) {
                let info = PortInfo {
                    state: PortState::DOWN,
                    ..row.info()
                };
                row.set_info(info.to_bytes());
            }
        }
    }

    /// Block `block` of the P_Key table of an end port.
    pub(crate) fn p_keys_wanted(&self, port: PortId, block: u8) -> Option<PKeyTable> {
        let guid = self.ports.get(port)?.guid;
        let mut table = PKeyTable {
            keys: [PKey(0); 32],
        };
        let keys = self
            .config
            .p_keys_of(guid)
            .skip(usize::from(block) * usize::from(BLOCK));
        for (place, key) in table.keys.iter_mut().zip(keys) {
            *place = key;
        }
        Some(table)
    }

    /// A block of P_Keys was read: is it right?
    pub(crate) fn p_keys_read(&mut self, port: PortId, block: u8, smp: &Smp) {
        let found = smp.data.first_chunk().map(PKeyTable::from_bytes);
        let cap = self
            .p_key_cap(port)
            .saturating_sub(u16::from(block) * BLOCK);
        let Some(mut wanted) = self.p_keys_wanted(port, block) else {
            return;
        };
        for key in wanted.keys.iter_mut().skip(usize::from(cap)) {
            *key = PKey(0); // there is no such entry
        }
        let same = found.is_some_and(|found| {
            let pairs = found.keys.iter().zip(&wanted.keys).take(usize::from(cap));
            pairs.into_iter().all(|(found, wanted)| found == wanted)
        });
        if same {
            self.p_keys_next(port, block);
        } else {
            // Ahead of the port's other work, which can wait.
            self.port_todo(port, PortTodo::SET_P_KEYS);
        }
    }

    /// A block of P_Keys is as it should be.
    pub(crate) fn p_keys_next(&mut self, port: PortId, block: u8) {
        let next = u16::from(block) + 1;
        let more = next * BLOCK < self.p_key_cap(port);
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        row.p_key_block = next as u8;
        if more {
            self.port_todo(port, PortTodo::P_KEYS);
        } else {
            row.flags.insert(PortFlags::P_KEYS_DONE);
        }
    }

    /// Entries of the P_Key table of an end port; at most those that 256 blocks can hold.
    pub(crate) fn p_key_cap(&self, port: PortId) -> u16 {
        let cap = self
            .node_of(port)
            .map_or(1, |node| node.info().partition_cap());
        cap.clamp(1, 255 * BLOCK)
    }

    /// The lane of every service level on the link of `port`: what it has not is folded onto what it has.
    pub(crate) fn sl_to_vl_wanted(&self, port: PortId) -> Option<SlToVlMappingTable> {
        let qos = self.config.qos?;
        let lanes = self.port_wanted(port)?.operational_vls.lanes().unwrap_or(1);
        Some(SlToVlMappingTable::new(qos.sl_to_vl.map(|vl| {
            if vl == SlToVlMappingTable::DROP {
                vl
            } else {
                vl.checked_rem(lanes).unwrap_or(0)
            }
        })))
    }

    /// One mapping was written; a switch has one for each input port.
    pub(crate) fn sl_to_vl_next(&mut self, port: PortId, input: u8) {
        let last = match self.node_of(port) {
            Some(node) if node.is_switch() => node.num_ports,
            _ => 0,
        };
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        if input < last {
            row.qos_next = input + 1;
            self.port_todo(port, PortTodo::SL_TO_VL);
        } else {
            row.qos_next = VlArbitrationTable::LOW as u8;
            self.port_todo(port, PortTodo::VL_ARB);
        }
    }

    /// Arbitration entries of one priority; lanes that the link has not are passed over.
    pub(crate) fn vl_arb_wanted(&self, port: PortId, block: u8) -> Option<VlArbitrationTable> {
        let qos = self.config.qos?;
        let info = self.port_wanted(port)?;
        let lanes = info.operational_vls.lanes().unwrap_or(1);
        let high = u16::from(block) == VlArbitrationTable::HIGH;
        let (entries, cap) = if high {
            (qos.high, info.vl_arb_high_cap)
        } else {
            (qos.low, info.vl_arb_low_cap)
        };
        let mut table = VlArbitrationTable {
            entries: [VlWeight { vl: 0, weight: 0 }; 32],
        };
        for (place, entry) in table.entries.iter_mut().zip(entries).take(cap.into()) {
            *place = if entry.vl < lanes {
                entry
            } else {
                VlWeight { vl: 0, weight: 0 }
            };
        }
        Some(table)
    }

    /// One arbitration table was written.
    pub(crate) fn vl_arb_next(&mut self, port: PortId, block: u8) {
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        if u16::from(block) == VlArbitrationTable::LOW {
            row.qos_next = VlArbitrationTable::HIGH as u8;
            self.port_todo(port, PortTodo::VL_ARB);
        } else {
            row.flags.insert(PortFlags::QOS_DONE);
        }
    }

    /// SwitchInfo for Set.
    pub(crate) fn switch_wanted(&self, switch: SwitchId) -> Option<SwitchInfo> {
        let row = self.switches.get(switch)?;
        let found = row.info();
        let groups = self.mlids.iter().rposition(|mlid| mlid.groups != 0);
        let top = groups
            .and_then(|top| u16::try_from(top).ok())
            .map(|top| Lid(0xc000 | top));
        let capability = self
            .port_at(row.node, 0)
            .and_then(|port| self.ports.get(port));
        let has_top = capability.is_some_and(|port| {
            port.view()
                .capability()
                .contains(Capability::MULTICAST_FDB_TOP)
        });
        Some(SwitchInfo {
            linear_fdb_top: Lid(self.st.top.min(found.linear_fdb_cap.saturating_sub(1))),
            life_time: TimeCode(self.config.packet_lifetime.0),
            port_state_change: row.changed,
            multicast_fdb_top: if has_top {
                top.unwrap_or(Lid(0xbfff))
            } else {
                found.multicast_fdb_top
            },
            ..found
        })
    }

    pub(crate) fn switch_needs_set(&self, switch: SwitchId) -> bool {
        let (Some(row), Some(wanted)) = (self.switches.get(switch), self.switch_wanted(switch))
        else {
            return false;
        };
        let found = row.info();
        row.changed
            || found.linear_fdb_top != wanted.linear_fdb_top
            || found.life_time != wanted.life_time
            || found.multicast_fdb_top != wanted.multicast_fdb_top
    }
}
