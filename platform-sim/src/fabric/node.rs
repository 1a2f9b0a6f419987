//! What the agents of a node know: the attributes of the node, of its ports, and the tables of a switch.
//!
//! The same state serves a switch of the fabric, a host that is only simulated on the wire, and the firmware of an HCA
//! model. It is plain data: [`process_smp`](super::process_smp) and [`process_perf`](super::process_perf) read and change it by
//! MADs, its owner by the methods here, and whatever follows for the owner comes back as [`Effect`]s.

use super::counters::PortCounts;
use super::trap::Traps;
use crate::machine::{LinkControl, LinkParameters, LinkSpeed, LinkWidth};
use core::time::Duration;
use core_ib::wire::mad::{
    self, Capability, LinearForwardingTable, LinkSpeedExt, MtuCode, NodeDescription, NodeType,
    PortInfo, PortPhysState, PortState as State, SlToVlMappingTable, SwitchInfo, TimeCode, VlCode,
    VlWeight,
};
use core_ib::wire::packet::Vl;
use core_ib::{Gid, Guid, Instant, Lid, Mtu, PKey, Sl};

/// What its owner has to do, or may want to know, after an agent changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The logical state of a port changed.
    PortState {
        /// Which port.
        port: u8,
        /// Before.
        old: State,
        /// Now.
        new: State,
    },
    /// The physical layer is to do this. Several come in order: a link that is to train anew is disabled first.
    SetLink {
        /// Which port.
        port: u8,
        /// What.
        control: LinkControl,
    },
    /// LID or LMC changed.
    Lid {
        /// Which port.
        port: u8,
    },
    /// Master SM LID or SL changed.
    Sm {
        /// Which port.
        port: u8,
    },
    /// A GID changed: by its prefix or by its GUID.
    Gids {
        /// Which port.
        port: u8,
    },
    /// The P_Key table changed.
    PKeys {
        /// Which port.
        port: u8,
    },
    /// The subnet manager asks that clients register anew.
    ClientReregister {
        /// Which port.
        port: u8,
    },
    /// A notice waits to be sent as a trap: ask [`NodeState::next_trap`].
    Notice,
}

/// Attributes of one port, and what it counts.
#[derive(Clone, Debug)]
pub struct PortState {
    /// PortInfo as a Get shows it, but for what depends on the asker (M_Key, LocalPortNum).
    pub info: PortInfo,
    /// GUIDs of the GID table. Entry 0 is the port GUID. Empty for an external port of a switch.
    pub guids: Vec<Guid>,
    /// The P_Key table.
    pub p_keys: Vec<PKey>,
    /// Lane of each SL: one table for a CA port; for a switch port one for each input port, port 0 included. Empty if the
    /// port has one lane and does not support the attribute.
    pub sl_to_vl: Vec<SlToVlMappingTable>,
    /// Low-priority arbitration, as many entries as VLArbitrationLowCap says.
    pub vl_arb_low: Vec<VlWeight>,
    /// High-priority arbitration.
    pub vl_arb_high: Vec<VlWeight>,
    /// What the port counts.
    pub counts: PortCounts,
    /// The beacon is lit.
    pub led: bool,
    /// When the protection by M_Key ends, if its lease is running out.
    pub(super) lease_ends: Option<Instant>,
}

/// Tables of a switch. They hold as many entries as were ever written; the others are at their default.
#[derive(Clone, Debug)]
pub struct SwitchState {
    /// SwitchInfo as a Get shows it.
    pub info: SwitchInfo,
    /// Output port of each LID.
    pub(super) linear: Vec<u8>,
    /// Output ports of each multicast LID, from 0xC000 on, as a set.
    pub(super) multicast: Vec<[u16; MFT_POSITIONS]>,
}

/// Words of 16 ports in a multicast entry.
pub(super) const MFT_POSITIONS: usize = 16;

impl SwitchState {
    /// Output port of a unicast LID; none if it is beyond the top, or unreachable.
    pub fn unicast_port(&self, dlid: Lid) -> Option<u8> {
        if dlid > self.info.linear_fdb_top {
            return None;
        }
        let port = self.linear.get(usize::from(dlid.0)).copied();
        port.filter(|&port| port != LinearForwardingTable::UNREACHABLE)
    }

    /// Is `port` in the set of the multicast LID?
    pub fn multicast_has(&self, mlid: Lid, port: u8) -> bool {
        let entry = self.multicast.get(usize::from(mlid.0 & 0x3fff));
        let word = entry.and_then(|masks| masks.get(usize::from(port / 16)));
        word.is_some_and(|mask| mask & 1 << (port % 16) != 0)
    }

    /// Is the set of the multicast LID empty?
    pub fn multicast_is_empty(&self, mlid: Lid) -> bool {
        let entry = self.multicast.get(usize::from(mlid.0 & 0x3fff));
        entry.is_none_or(|masks| masks.iter().all(|&mask| mask == 0))
    }
}

/// A node: what its agents know.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// CA, switch or router.
    pub node_type: NodeType,
    /// The text that people see.
    pub description: NodeDescription,
    /// NodeGUID.
    pub guid: Guid,
    /// SystemImageGUID, 0 if not supported.
    pub system_image_guid: Guid,
    /// 24 bits.
    pub vendor_id: u32,
    /// Device.
    pub device_id: u16,
    /// Hardware revision.
    pub revision: u32,
    /// Tables of a switch.
    pub switch: Option<SwitchState>,
    /// Ports by number, from [`NodeState::first_port`] on.
    pub(super) ports: Vec<PortState>,
    pub(super) traps: Traps,
}

/// What a kind of hardware can do: from this the ports of a [`NodeState`] are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// LinkWidthSupported.
    pub widths: LinkWidth,
    /// All kinds of speed together.
    pub speeds: LinkSpeed,
    /// MTUCap.
    pub mtu: Mtu,
    /// VLCap, a code: 1 for VL0 to 5 for VL0 to VL14.
    pub vl_cap: VlCode,
    /// Entries of the GID table.
    pub guids: u8,
    /// Entries of the P_Key table.
    pub p_keys: u16,
    /// Entries of each arbitration list; 0 if there is only one lane.
    pub vl_arb: u8,
    /// CapabilityMask of the end port.
    pub capability: Capability,
}

impl PortCaps {
    /// A 4x SDR port with four lanes, as an InfiniHost or a switch of its day has it.
    pub const SDR_4X: Self = Self {
        widths: LinkWidth(3),
        speeds: LinkSpeed::SDR,
        mtu: Mtu::Mtu2048,
        vl_cap: VlCode(3),
        guids: 32,
        p_keys: 64,
        vl_arb: 8,
        capability: Capability::TRAP
            .union(Capability::NOTICE)
            .union(Capability::SL_MAPPING)
            .union(Capability::AUTO_MIGRATION)
            .union(Capability::SYSTEM_IMAGE_GUID)
            .union(Capability::CLIENT_REREGISTRATION)
            .union(Capability::LED_INFO)
            .union(Capability::CM),
    };
}

/// The part of a set of speeds that stands in LinkSpeed fields.
pub(super) const fn base_speeds(speeds: LinkSpeed) -> mad::LinkSpeed {
    mad::LinkSpeed::from_bits_retain(speeds.0 & 7)
}

/// The part of a set of speeds that stands in LinkSpeedExt fields.
pub(super) const fn ext_speeds(speeds: LinkSpeed) -> LinkSpeedExt {
    LinkSpeedExt::from_bits_retain(speeds.0 >> 4)
}

/// The PortInfo of a port of these capabilities, down.
fn port_info(caps: &PortCaps) -> PortInfo {
    let width = mad::LinkWidth::from_bits_retain(caps.widths.0);
    let ext = ext_speeds(caps.speeds);
    let ext_enabled = if ext.is_empty() {
        LinkSpeedExt::DISABLE
    } else {
        ext
    };
    let mut capability = caps.capability;
    capability.set(Capability::EXTENDED_SPEEDS, !ext.is_empty());
    PortInfo {
        gid_prefix: Gid::DEFAULT_PREFIX,
        capability,
        link_width_enabled: width,
        link_width_supported: width,
        link_width_active: mad::LinkWidth::X1,
        link_speed_supported: base_speeds(caps.speeds),
        state: State::DOWN,
        phys_state: PortPhysState::POLLING,
        link_down_default_state: PortPhysState::POLLING,
        link_speed_active: mad::LinkSpeed::SDR,
        link_speed_enabled: base_speeds(caps.speeds),
        neighbor_mtu: MtuCode::from(caps.mtu),
        vl_cap: caps.vl_cap,
        vl_arb_high_cap: caps.vl_arb,
        vl_arb_low_cap: caps.vl_arb,
        mtu_cap: MtuCode::from(caps.mtu),
        hoq_life: TimeCode(16),
        operational_vls: caps.vl_cap,
        guid_cap: caps.guids,
        subnet_timeout: TimeCode(18),
        resp_time: TimeCode(16),
        local_phy_errors: 8,
        overrun_errors: 8,
        link_speed_ext_supported: ext,
        link_speed_ext_enabled: ext_enabled,
        ..PortInfo::default()
    }
}

/// SLs spread over the lanes that there are.
fn default_sl_to_vl(vl_cap: VlCode) -> SlToVlMappingTable {
    let lanes = vl_cap.lanes().unwrap_or(1);
    let mut table = [0; 16];
    for (sl, vl) in table.iter_mut().enumerate() {
        *vl = sl as u8 % lanes.max(1);
    }
    SlToVlMappingTable::new(table)
}

impl PortState {
    /// A port with `tables` tables from SL to lane.
    fn new(caps: &PortCaps, guid: Option<Guid>, tables: usize) -> Self {
        let mut p_keys = vec![PKey(0); usize::from(caps.p_keys)];
        if let Some(first) = p_keys.first_mut() {
            *first = PKey::DEFAULT;
        }
        let mut guids = Vec::new();
        if let Some(guid) = guid {
            guids = vec![Guid(0); usize::from(caps.guids.max(1))];
            if let Some(first) = guids.first_mut() {
                *first = guid;
            }
        }
        let several = caps.vl_cap.lanes().unwrap_or(1) > 1;
        let tables = if several { tables } else { 0 };
        let mut vl_arb = vec![VlWeight::default(); usize::from(caps.vl_arb)];
        let lanes = caps.vl_cap.lanes().unwrap_or(1);
        for (vl, entry) in (0..lanes).zip(&mut vl_arb) {
            *entry = VlWeight { vl, weight: 64 };
        }
        Self {
            info: port_info(caps),
            guids,
            p_keys,
            sl_to_vl: vec![default_sl_to_vl(caps.vl_cap); tables],
            vl_arb_low: vl_arb.clone(),
            vl_arb_high: vec![VlWeight::default(); usize::from(caps.vl_arb)],
            counts: PortCounts::default(),
            led: false,
            lease_ends: None,
        }
    }

    /// Base LID to the last LID of the port, LMC counted in.
    pub fn has_lid(&self, lid: Lid) -> bool {
        let path_bits = (1_u16 << (self.info.lmc & 7)) - 1;
        self.info.lid != Lid::NONE && lid.0 & !path_bits == self.info.lid.0 & !path_bits
    }

    /// The GID of entry `index`; none beyond the table. An entry without a GUID is the prefix alone.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        let guid = self.guids.get(index)?;
        Some(Gid::unicast(self.info.gid_prefix, *guid))
    }

    /// Index of the entry that `gid` names, by the port's prefix or by the default one.
    pub fn gid_index(&self, gid: Gid) -> Option<usize> {
        if gid.prefix() != self.info.gid_prefix && gid.prefix() != Gid::DEFAULT_PREFIX {
            return None;
        }
        let guid = gid.guid();
        let found = self.guids.iter().position(|&entry| entry == guid);
        found.filter(|_| guid != Guid(0))
    }

    /// Index of the first entry that lets a packet of this key in.
    pub fn p_key_index(&self, p_key: PKey) -> Option<usize> {
        self.p_keys.iter().position(|&entry| entry.matches(p_key))
    }

    /// Does the port serve this lane now? VL15 always.
    pub fn is_operational(&self, vl: Vl) -> bool {
        let lanes = self.info.operational_vls.lanes().unwrap_or(1);
        vl.is_management() || vl.get() < lanes
    }

    /// Lane of `sl` for a packet from `in_port` (0 for a CA); none if it is to be dropped.
    pub fn vl_of(&self, in_port: u8, sl: Sl) -> Option<Vl> {
        let vl = match self.sl_to_vl.get(usize::from(in_port)) {
            Some(table) => Vl::new(table.vl(sl)),
            None => Vl::new(0),
        };
        Some(vl).filter(|&vl| !vl.is_management() && self.is_operational(vl))
    }

    /// The MTU of the link; the smallest there is if the code means nothing.
    pub fn neighbor_mtu(&self) -> Mtu {
        self.info.neighbor_mtu.mtu().unwrap_or(Mtu::Mtu256)
    }

    /// Widths and speeds that training may choose from.
    pub fn enabled(&self) -> (LinkWidth, LinkSpeed) {
        let ext = self.info.link_speed_ext_enabled;
        let ext = if ext == LinkSpeedExt::DISABLE {
            0
        } else {
            ext.bits() & self.info.link_speed_ext_supported.bits()
        };
        let base = self.info.link_speed_enabled & self.info.link_speed_supported;
        let widths = self.info.link_width_enabled & self.info.link_width_supported;
        (
            LinkWidth(widths.bits()),
            LinkSpeed(base.bits() & 7 | ext << 4),
        )
    }

    /// Enables no more than these, as far as the port has them.
    pub fn enable(&mut self, widths: Option<LinkWidth>, speeds: Option<LinkSpeed>) {
        if let Some(widths) = widths {
            let widths = mad::LinkWidth::from_bits_retain(widths.0);
            self.info.link_width_enabled = widths & self.info.link_width_supported;
        }
        if let Some(speeds) = speeds {
            self.info.link_speed_enabled = base_speeds(speeds) & self.info.link_speed_supported;
            let ext = ext_speeds(speeds) & self.info.link_speed_ext_supported;
            self.info.link_speed_ext_enabled = if ext.is_empty() {
                LinkSpeedExt::DISABLE
            } else {
                ext
            };
        }
    }

    /// What the physical layer is asked for when the port polls.
    pub fn polling(&self) -> LinkControl {
        let (widths, speeds) = self.enabled();
        LinkControl::Polling { widths, speeds }
    }
}

impl NodeState {
    /// A channel adapter with `guids.len()` ports of these capabilities and port GUIDs.
    pub fn ca(guid: Guid, guids: &[Guid], caps: &PortCaps) -> Self {
        let ports = guids
            .iter()
            .map(|&guid| PortState::new(caps, Some(guid), 1))
            .collect();
        Self {
            node_type: NodeType::CA,
            description: NodeDescription::new(""),
            guid,
            system_image_guid: guid,
            vendor_id: 0,
            device_id: 0,
            revision: 0,
            switch: None,
            ports,
            traps: Traps::default(),
        }
    }

    /// A switch with `ports` external ports. `guid` is the node's, `port0_guid` that of its management port.
    pub fn switch(
        guid: Guid,
        port0_guid: Guid,
        ports: u8,
        caps: &PortCaps,
        enhanced_port0: bool,
    ) -> Self {
        let tables = usize::from(ports) + 1;
        let mut state = Vec::with_capacity(tables);
        let mut port0 = PortState::new(caps, Some(port0_guid), 0);
        port0.info.phys_state = PortPhysState::LINK_UP;
        port0.info.capability &= !(Capability::AUTO_MIGRATION | Capability::CM);
        port0.info.state = if enhanced_port0 {
            State::INIT
        } else {
            State::ACTIVE
        };
        let (width, speed) = best(port0.enabled());
        set_active(&mut port0.info, LinkParameters { width, speed });
        state.push(port0);
        for _ in 0..ports {
            let mut port = PortState::new(caps, None, tables);
            port.info.guid_cap = 0;
            // What is said of a switch is said of its port 0.
            port.info.capability = Capability::empty();
            port.info.gid_prefix = 0;
            state.push(port);
        }
        let info = SwitchInfo {
            linear_fdb_cap: 0xc000,
            multicast_fdb_cap: 0x1000,
            default_mc_primary_port: 0xff,
            default_mc_not_primary_port: 0xff,
            life_time: TimeCode(18),
            partition_enforcement_cap: caps.p_keys,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            enhanced_port0,
            multicast_fdb_top: Lid(0xbfff),
            ..SwitchInfo::default()
        };
        let mut node = Self::ca(guid, &[], caps);
        node.node_type = NodeType::SWITCH;
        node.ports = state;
        node.switch = Some(SwitchState {
            info,
            linear: Vec::new(),
            multicast: Vec::new(),
        });
        node
    }

    /// 0 for a switch, else 1.
    pub const fn first_port(&self) -> u8 {
        if self.switch.is_some() { 0 } else { 1 }
    }

    /// Number of external ports, and of the last one.
    pub fn port_count(&self) -> u8 {
        (self.ports.len() as u8)
            .wrapping_sub(1)
            .wrapping_add(self.first_port())
    }

    /// Numbers of the external ports.
    pub fn external_ports(&self) -> core::ops::RangeInclusive<u8> {
        1..=self.port_count()
    }

    /// Port `number`; none if there is no such port.
    pub fn port(&self, number: u8) -> Option<&PortState> {
        let index = number.checked_sub(self.first_port())?;
        self.ports.get(usize::from(index))
    }

    /// As [`NodeState::port`].
    pub fn port_mut(&mut self, number: u8) -> Option<&mut PortState> {
        let index = number.checked_sub(self.first_port())?;
        self.ports.get_mut(usize::from(index))
    }

    /// The port that has LID, GIDs and M_Key for what arrives at `in_port`: itself, or port 0 of a switch.
    pub const fn end_port(&self, in_port: u8) -> u8 {
        if self.switch.is_some() { 0 } else { in_port }
    }

    /// The link at `port` trained, or went down: adapts the port and says what followed.
    pub fn link_changed(
        &mut self,
        port: u8,
        up: Option<LinkParameters>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(state) = self.port_mut(port) else {
            return;
        };
        let old = state.info.state;
        match up {
            Some(parameters) => {
                state.info.phys_state = PortPhysState::LINK_UP;
                set_active(&mut state.info, parameters);
            }
            None => {
                if state.info.phys_state == PortPhysState::LINK_UP {
                    state.info.phys_state = PortPhysState::POLLING;
                    state.counts.link_downed.bump();
                }
            }
        }
        let new = if up.is_some() {
            State::INIT
        } else {
            State::DOWN
        };
        if old == new {
            return;
        }
        state.info.state = new;
        effects.push(Effect::PortState { port, old, new });
        if let Some(switch) = &mut self.switch {
            switch.info.port_state_change = true;
            self.link_state_notice();
            effects.push(Effect::Notice);
        }
    }

    /// A data packet has come: a port that is armed becomes active. protocols 3.8.5.
    pub fn data_received(&mut self, port: u8, effects: &mut Vec<Effect>) {
        if let Some(state) = self.port_mut(port)
            && state.info.state == State::ARMED
        {
            state.info.state = State::ACTIVE;
            effects.push(Effect::PortState {
                port,
                old: State::ARMED,
                new: State::ACTIVE,
            });
        }
    }

    /// Shortest time between two sendings of a trap.
    pub(super) fn trap_interval(&self, port: u8) -> Duration {
        let code = self.port(port).map(|port| port.info.subnet_timeout);
        code.unwrap_or(TimeCode(18)).duration()
    }
}

/// The widest and fastest of what is enabled, one bit each.
pub(super) fn best((widths, speeds): (LinkWidth, LinkSpeed)) -> (LinkWidth, LinkSpeed) {
    let all = [1, 2, 4, 8, 16].map(LinkWidth);
    let widths = all.into_iter().filter(|width| width.0 & widths.0 != 0);
    let width = widths.max_by_key(|width| width.lanes());
    let speed = speeds.0.checked_ilog2().map(|bit| LinkSpeed(1 << bit));
    (
        width.unwrap_or(LinkWidth::X1),
        speed.unwrap_or(LinkSpeed::SDR),
    )
}

/// Shows in `info` what the link was trained to.
fn set_active(info: &mut PortInfo, parameters: LinkParameters) {
    let LinkParameters { width, speed } = parameters;
    info.link_width_active = mad::LinkWidth::from_bits_retain(width.0);
    info.link_speed_ext_active = ext_speeds(speed);
    // Beside an extended speed, and for FDR10 which has no bit here, the fastest of the plain ones is shown.
    info.link_speed_active = match base_speeds(speed) {
        none if none.is_empty() => mad::LinkSpeed::QDR,
        plain => plain,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_count_from_1_and_a_switch_has_a_port_0() {
        let ca = NodeState::ca(Guid(1), &[Guid(2), Guid(3)], &PortCaps::SDR_4X);
        assert_eq!((ca.first_port(), ca.port_count()), (1, 2));
        assert_eq!(ca.port(2).unwrap().guids[0], Guid(3));
        assert!(ca.port(0).is_none() && ca.port(3).is_none());
        let switch = NodeState::switch(Guid(1), Guid(1), 8, &PortCaps::SDR_4X, false);
        assert_eq!((switch.first_port(), switch.port_count()), (0, 8));
        assert!(switch.port(8).is_some() && switch.port(9).is_none());
        assert_eq!(switch.port(0).unwrap().info.state, State::ACTIVE);
        assert_eq!(switch.end_port(5), 0);
    }

    #[test]
    fn a_port_has_the_lids_of_its_lmc() {
        let mut ca = NodeState::ca(Guid(1), &[Guid(2)], &PortCaps::SDR_4X);
        let port = ca.port_mut(1).unwrap();
        assert!(!port.has_lid(Lid(0)));
        port.info.lid = Lid(8);
        port.info.lmc = 2;
        let has = [7, 8, 11, 12].map(|lid| port.has_lid(Lid(lid)));
        assert_eq!(has, [false, true, true, false]);
    }

    #[test]
    fn a_gid_is_known_by_either_prefix_and_an_empty_entry_by_none() {
        let mut ca = NodeState::ca(Guid(1), &[Guid(2)], &PortCaps::SDR_4X);
        let port = ca.port_mut(1).unwrap();
        port.info.gid_prefix = 77;
        port.guids[3] = Guid(9);
        assert_eq!(port.gid_index(Gid::unicast(77, Guid(9))), Some(3));
        let default = Gid::unicast(Gid::DEFAULT_PREFIX, Guid(2));
        assert_eq!(port.gid_index(default), Some(0));
        assert_eq!(port.gid_index(Gid::unicast(5, Guid(2))), None);
        assert_eq!(port.gid_index(Gid::unicast(77, Guid(0))), None);
    }

    #[test]
    fn a_link_that_comes_and_goes_moves_the_state_and_sets_the_change_bit_of_a_switch() {
        let mut switch = NodeState::switch(Guid(1), Guid(1), 2, &PortCaps::SDR_4X, false);
        let mut effects = Vec::new();
        switch.link_changed(2, Some(LinkParameters::X4_SDR), &mut effects);
        let (old, new) = (State::DOWN, State::INIT);
        let expected = [Effect::PortState { port: 2, old, new }, Effect::Notice];
        assert_eq!(effects, expected);
        assert!(switch.switch.as_ref().unwrap().info.port_state_change);
        let info = switch.port(2).unwrap().info;
        assert_eq!(info.link_width_active, mad::LinkWidth::X4);
        switch.link_changed(2, None, &mut effects);
        let port = switch.port(2).unwrap();
        assert_eq!(port.counts.link_downed.total(), 1);
        assert_eq!(port.info.state, State::DOWN);
    }

    #[test]
    fn the_best_of_what_is_enabled_is_the_widest_and_the_fastest() {
        let of = |widths, speeds| best((LinkWidth(widths), LinkSpeed(speeds)));
        assert_eq!(of(3, 7), (LinkWidth::X4, LinkSpeed::QDR));
        assert_eq!(of(17, 0x17), (LinkWidth::X2, LinkSpeed::FDR));
    }
}
