//! What a switch does with a packet: who may come in, where it goes, who may go out. protocols 2.17.
//!
//! Decisions only; buffers, queues and time are the engine's.

use super::node::{Effect, NodeState};
use super::trap::{BadKey, KeyViolation};
use core_ib::wire::WireError;
use core_ib::wire::mad::PortState as State;
use core_ib::wire::packet::{
    BthView, Deth, GrhView, HeaderView, Lnh, Lrh, LrhView, PktLen, VCRC_LEN, Vl, check_vcrc,
};
use core_ib::wire::{Bth, Grh};
use core_ib::{PKey, Qpn};

/// Output ports of a packet, as a set of all 256 numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortSet([u64; 4]);

impl PortSet {
    pub(super) fn one(port: u8) -> Self {
        let mut set = Self::default();
        set.insert(port);
        set
    }

    pub(super) fn insert(&mut self, port: u8) {
        if let Some(word) = self.0.get_mut(usize::from(port / 64)) {
            *word |= 1 << (port % 64);
        }
    }

    pub(super) fn contains(self, port: u8) -> bool {
        let word = self.0.get(usize::from(port / 64));
        word.is_some_and(|word| word & 1 << (port % 64) != 0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    pub(super) fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The ports, lowest first.
    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        let words = [0, 64, 128, 192_u8].into_iter().zip(self.0);
        words.flat_map(|(first, mut word)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as u8;
                let rest = word.checked_sub(1)?;
                word &= rest;
                Some(first + bit)
            })
        })
    }
}

/// Steps 1, 3 and 4: reads the header of a packet that came in by `in_port`, or drops it and counts why.
pub(super) fn admit(
    node: &mut NodeState,
    in_port: u8,
    bytes: &[u8],
    effects: &mut Vec<Effect>,
) -> Option<Lrh> {
    let port = node.port_mut(in_port)?;
    let whole = || -> Result<Lrh, WireError> {
        let (lrh, _) = Lrh::read(bytes)?;
        check_vcrc(bytes)?;
        let claimed = lrh.pkt_len.bytes() + VCRC_LEN;
        let most = PktLen::max(port.neighbor_mtu());
        if claimed != bytes.len() || lrh.pkt_len < PktLen::MIN || lrh.pkt_len > most {
            return Err(WireError::Length {
                header: LrhView::NAME,
                claimed,
                have: bytes.len(),
            });
        }
        Ok(lrh)
    };
    let lrh = match whole() {
        Ok(lrh) if port.is_operational(lrh.vl) => lrh,
        _ => {
            port.counts.rcv_errors.bump();
            return None;
        }
    };
    if lrh.vl.is_management() {
        return (port.info.state != State::DOWN).then_some(lrh);
    }
    if !matches!(port.info.state, State::ARMED | State::ACTIVE) {
        return None;
    }
    let words = lrh.pkt_len.words();
    port.counts.received(words, lrh.dlid.is_multicast());
    if port.info.filter_raw_inbound && !lrh.lnh.is_iba() {
        port.counts.rcv_constraint_errors.bump();
        return None;
    }
    if port.info.partition_enforcement_inbound
        && let Some(p_key) = p_key_of(&lrh, bytes)
        && port.p_key_index(p_key).is_none()
    {
        port.counts.rcv_constraint_errors.bump();
        p_key_violation(node, in_port, &lrh, bytes, p_key);
        effects.push(Effect::Notice);
        return None;
    }
    node.data_received(in_port, effects);
    Some(lrh)
}

/// Where the BTH begins.
fn bth_at(lrh: &Lrh) -> Option<usize> {
    match lrh.lnh {
        Lnh::Local => Some(LrhView::LEN),
        Lnh::Global => Some(LrhView::LEN + GrhView::LEN),
        Lnh::RawEther | Lnh::RawIpv6 => None,
    }
}

/// The P_Key of a packet; a raw packet has none.
fn p_key_of(lrh: &Lrh, bytes: &[u8]) -> Option<PKey> {
    let (bth, _) = BthView::split(bytes.get(bth_at(lrh)?..)?).ok()?;
    Some(Bth::try_from(bth).ok()?.p_key)
}

fn p_key_violation(node: &mut NodeState, port: u8, lrh: &Lrh, bytes: &[u8], p_key: PKey) {
    let grh = match lrh.lnh {
        Lnh::Global => bytes.get(LrhView::LEN..).and_then(|b| Grh::read(b).ok()),
        _ => None,
    };
    let bth = bth_at(lrh).and_then(|at| bytes.get(at..));
    let bth = bth.and_then(|bytes| Bth::read(bytes).ok());
    let dest_qp = bth.map_or(Qpn::new(0), |(bth, _)| bth.dest_qp);
    let src_qp = bth.and_then(|(bth, rest)| {
        let is_ud = bth.opcode.service() == core_ib::wire::packet::Service::Ud;
        let deth = Deth::read(rest).ok().filter(|_| is_ud);
        deth.map(|(deth, _)| deth.src_qp)
    });
    node.external_p_key_notice(
        port,
        &KeyViolation {
            key: BadKey::P(p_key),
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            src_qp: src_qp.unwrap_or(Qpn::new(0)),
            dest_qp,
            gids: grh.map(|(grh, _)| (grh.sgid, grh.dgid)),
        },
    );
}

/// Steps 5 and 6: output ports of a packet that came in by `in_port` (0: that this switch made). An empty set is a packet
/// that does not go on, counted at the port.
pub(super) fn route(node: &mut NodeState, in_port: u8, lrh: &Lrh) -> PortSet {
    let ports = find(node, in_port, lrh);
    if ports.is_empty()
        && let Some(port) = node.port_mut(in_port)
    {
        port.counts.rcv_switch_relay_errors.bump();
    }
    ports
}

fn find(node: &NodeState, in_port: u8, lrh: &Lrh) -> PortSet {
    let none = PortSet::default();
    let Some(switch) = &node.switch else {
        return none;
    };
    let (dlid, last) = (lrh.dlid, node.port_count());
    // Its own LID reaches port 0 whatever the table says.
    if node.port(0).is_some_and(|port| port.has_lid(dlid)) {
        return PortSet::one(0);
    }
    if dlid.is_unicast() {
        return match switch.unicast_port(dlid) {
            // An entry that sends the packet back where it came from is a loop.
            Some(port) if port <= last && (port != in_port || in_port == 0) => PortSet::one(port),
            _ => none,
        };
    }
    if !dlid.is_multicast() || lrh.vl.is_management() {
        return none;
    }
    if switch.multicast_is_empty(dlid) {
        let primary = switch.info.default_mc_primary_port;
        let port = if in_port == primary {
            switch.info.default_mc_not_primary_port
        } else {
            primary
        };
        return if port <= last && port != in_port {
            PortSet::one(port)
        } else {
            none
        };
    }
    let mut ports = PortSet::default();
    (0..=last)
        .filter(|&port| port != in_port && switch.multicast_has(dlid, port))
        .for_each(|port| ports.insert(port));
    ports
}

/// Steps 8 to 11: the lane on which a packet from `in_port` leaves by `out_port`; none if it may not, counted at the output
/// port.
pub(super) fn release(
    node: &mut NodeState,
    in_port: u8,
    out_port: u8,
    lrh: &Lrh,
    bytes: &[u8],
) -> Option<Vl> {
    let port = node.port_mut(out_port)?;
    let is_smp = lrh.vl.is_management();
    let state_allows = match port.info.state {
        State::ACTIVE => true,
        State::INIT | State::ARMED => is_smp,
        _ => false,
    };
    let vl = if is_smp {
        Some(Vl::MANAGEMENT)
    } else {
        port.vl_of(in_port, lrh.sl)
    };
    let fits = lrh.pkt_len <= PktLen::max(port.neighbor_mtu());
    let Some(vl) = vl.filter(|_| state_allows && fits) else {
        port.counts.xmit_discards.bump();
        return None;
    };
    let raw_barred = port.info.filter_raw_outbound && !lrh.lnh.is_iba();
    let p_key = p_key_of(lrh, bytes).filter(|_| port.info.partition_enforcement_outbound);
    let key_barred = p_key.filter(|&key| !is_smp && port.p_key_index(key).is_none());
    if raw_barred || key_barred.is_some() {
        port.counts.xmit_constraint_errors.bump();
        if let Some(p_key) = key_barred {
            p_key_violation(node, out_port, lrh, bytes, p_key);
        }
        return None;
    }
    Some(vl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::node::PortCaps;
    use core_ib::wire::mad::{AttributeId, Layout, LinearForwardingTable, Method, MtuCode, Smp};
    use core_ib::wire::mad::{MulticastForwardingTable, SlToVlMappingTable};
    use core_ib::wire::packet::{
        Extended, Headers, MAX_PACKET, Opcode, RawPacket, Rwh, refresh_vcrc,
    };
    use core_ib::{Guid, Instant, Lid, Mtu, Psn, QKey, Sl};

    fn set<A: Layout + core_ib::wire::mad::Attribute>(node: &mut NodeState, value: &A, at: u32) {
        let mut smp = Smp::lid_routed(Method::SET, A::ID, at);
        smp.put(value).unwrap();
        let context = crate::fabric::SmpContext {
            in_port: 1,
            slid: Lid(1),
            ignore_m_key: false,
            now: Instant(0),
        };
        crate::fabric::process_smp(node, &smp, &context, &mut Vec::new());
        assert_eq!(A::ID.0 & 0xfff0, AttributeId::NODE_DESCRIPTION.0);
    }

    #[test]
    fn a_set_of_ports_lists_what_was_put_in() {
        let ports = [0, 1, 63, 64, 127, 128, 200, 255];
        let mut set = PortSet::default();
        assert!(set.is_empty());
        ports.iter().rev().for_each(|&port| set.insert(port));
        assert!(set.iter().eq(ports), "lowest first");
        assert_eq!(set.len(), ports.len());
        assert!(!set.contains(2) && set.contains(255));
    }

    /// Four active ports, LID 4, LID 7 behind port 2, group 0xC000 at ports 0, 1 and 3.
    fn node() -> NodeState {
        let mut node = NodeState::switch(Guid(1), Guid(1), 4, &PortCaps::SDR_4X, false);
        for port in 1..=4 {
            node.port_mut(port).unwrap().info.state = State::ACTIVE;
        }
        node.port_mut(0).unwrap().info.lid = Lid(4);
        let mut table = LinearForwardingTable { ports: [0xff; 64] };
        (table.ports[7], table.ports[8], table.ports[9]) = (2, 5, 3);
        set(&mut node, &table, 0);
        node.switch.as_mut().unwrap().info.linear_fdb_top = Lid(8);
        let mut groups = MulticastForwardingTable::default();
        groups.masks[0] = 0b1011;
        set(&mut node, &groups, 0);
        node
    }

    fn packet(dlid: u16, payload: usize) -> Vec<u8> {
        let lrh = Lrh {
            vl: Vl::new(0),
            sl: Sl::new(1),
            lnh: Lnh::Local,
            dlid: Lid(dlid),
            pkt_len: PktLen::default(),
            slid: Lid(9),
        };
        let headers = Headers {
            lrh,
            grh: None,
            bth: Bth::new(
                Opcode::UD_SEND_ONLY,
                PKey(0x8005),
                Qpn::new(0x48),
                Psn::new(0),
            ),
            extended: Extended::datagram(Deth {
                q_key: QKey(1),
                src_qp: Qpn::new(0x49),
            }),
        };
        let mut room = [0; MAX_PACKET];
        headers
            .write(&vec![0; payload], &mut room)
            .unwrap()
            .to_vec()
    }

    fn lrh(bytes: &[u8]) -> Lrh {
        Lrh::read(bytes).unwrap().0
    }

    fn ways(node: &mut NodeState, in_port: u8, dlid: u16) -> Vec<u8> {
        route(node, in_port, &lrh(&packet(dlid, 0)))
            .iter()
            .collect()
    }

    #[test]
    fn unicast_goes_by_the_table_and_nowhere_else() {
        let node = &mut node();
        assert_eq!(ways(node, 1, 7), [2]);
        assert_eq!(ways(node, 1, 4), [0], "its own LID");
        let nowhere = [
            (2, 7, "back where it came from"),
            (1, 6, "unreachable"),
            (1, 8, "no such port"),
            (1, 9, "above the top"),
            (1, 0xffff, "permissive"),
            (1, 0, "no LID"),
        ];
        for (in_port, dlid, why) in nowhere {
            let before = node.port(in_port).unwrap().counts.rcv_switch_relay_errors;
            assert_eq!(ways(node, in_port, dlid), [], "{why}");
            let after = node.port(in_port).unwrap().counts.rcv_switch_relay_errors;
            assert_eq!(after.total(), before.total() + 1);
        }
    }

    #[test]
    fn multicast_goes_to_all_members_but_the_one_it_came_from() {
        let node = &mut node();
        assert_eq!(ways(node, 1, 0xc000), [0, 3]);
        assert_eq!(ways(node, 2, 0xc000), [0, 1, 3]);
    }

    #[test]
    fn an_empty_group_goes_to_the_default_ports() {
        let node = &mut node();
        assert_eq!(ways(node, 1, 0xc001), [], "none set");
        let info = &mut node.switch.as_mut().unwrap().info;
        info.default_mc_primary_port = 3;
        info.default_mc_not_primary_port = 2;
        assert_eq!(ways(node, 1, 0xc001), [3]);
        assert_eq!(ways(node, 3, 0xc001), [2]);
    }

    fn admitted(node: &mut NodeState, bytes: &[u8]) -> bool {
        admit(node, 1, bytes, &mut Vec::new()).is_some()
    }

    #[test]
    fn what_is_broken_too_long_or_on_a_wrong_lane_does_not_come_in() {
        let node = &mut node();
        let good = packet(7, 400);
        assert!(admitted(node, &good));
        let mut flipped = good.clone();
        flipped[30] ^= 4;
        assert!(!admitted(node, &flipped));
        let mut lane = good.clone();
        lane[0] = 0x90;
        refresh_vcrc(&mut lane).unwrap();
        assert!(!admitted(node, &lane));
        node.port_mut(1).unwrap().info.neighbor_mtu = MtuCode::from(Mtu::Mtu256);
        assert!(!admitted(node, &good));
        let counts = &node.port(1).unwrap().counts;
        assert_eq!((counts.rcv_errors.total(), counts.rcv_pkts.total()), (3, 1));
    }

    #[test]
    fn data_arms_to_active_and_a_port_that_is_not_armed_takes_none() {
        let node = &mut node();
        node.port_mut(1).unwrap().info.state = State::INIT;
        assert!(!admitted(node, &packet(7, 0)));
        node.port_mut(1).unwrap().info.state = State::ARMED;
        assert!(admitted(node, &packet(7, 0)));
        assert_eq!(node.port(1).unwrap().info.state, State::ACTIVE);
    }

    #[test]
    fn partitions_are_kept_apart_at_the_ports_that_say_so() {
        let node = &mut node();
        let bytes = packet(7, 0);
        let port = node.port_mut(1).unwrap();
        port.info.partition_enforcement_inbound = true;
        assert!(!admitted(node, &bytes));
        let port = node.port_mut(1).unwrap();
        assert_eq!(port.counts.rcv_constraint_errors.total(), 1);
        port.p_keys[1] = PKey(0x0005);
        assert!(admitted(node, &bytes), "a limited member meets a full one");
        let port = node.port_mut(2).unwrap();
        port.info.partition_enforcement_outbound = true;
        assert_eq!(release(node, 1, 2, &lrh(&bytes), &bytes), None);
        let port = node.port_mut(2).unwrap();
        assert_eq!(port.counts.xmit_constraint_errors.total(), 1);
        port.p_keys[0] = PKey(0x8005);
        assert!(release(node, 1, 2, &lrh(&bytes), &bytes).is_some());
    }

    #[test]
    fn raw_packets_are_kept_out_by_their_filters() {
        let node = &mut node();
        let raw = RawPacket {
            lrh: lrh(&packet(7, 0)),
            rwh: Some(Rwh { ether_type: 0x800 }),
            payload: &[0; 16],
        };
        let mut room = [0; 64];
        let bytes = raw.write(&mut room).unwrap().to_vec();
        assert!(admitted(node, &bytes));
        node.port_mut(1).unwrap().info.filter_raw_inbound = true;
        assert!(!admitted(node, &bytes));
        node.port_mut(2).unwrap().info.filter_raw_outbound = true;
        assert_eq!(release(node, 1, 2, &lrh(&bytes), &bytes), None);
    }

    #[test]
    fn data_leaves_an_active_port_on_the_lane_of_its_service_level() {
        let node = &mut node();
        let bytes = packet(7, 400);
        let out = |node: &mut NodeState| release(node, 1, 2, &lrh(&bytes), &bytes);
        node.port_mut(2).unwrap().sl_to_vl[1] = SlToVlMappingTable::new([3; 16]);
        assert_eq!(out(node), Some(Vl::new(3)));
        node.port_mut(2).unwrap().sl_to_vl[1] = SlToVlMappingTable::new([15; 16]);
        assert_eq!(out(node), None, "15 is to drop");
        node.port_mut(2).unwrap().sl_to_vl[1] = SlToVlMappingTable::new([0; 16]);
        node.port_mut(2).unwrap().info.neighbor_mtu = MtuCode::from(Mtu::Mtu256);
        assert_eq!(out(node), None, "too long");
        node.port_mut(2).unwrap().info.neighbor_mtu = MtuCode::from(Mtu::Mtu512);
        assert_eq!(out(node), Some(Vl::new(0)));
        node.port_mut(2).unwrap().info.state = State::ARMED;
        assert_eq!(out(node), None, "armed");
        let counts = &node.port(2).unwrap().counts;
        assert_eq!(counts.xmit_discards.total(), 3);
    }
}
