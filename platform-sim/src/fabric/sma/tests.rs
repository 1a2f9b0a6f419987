//! The agent of a CA and of a switch, asked attribute by attribute.

use super::*;
use crate::fabric::node::PortCaps;
use crate::machine::LinkParameters;
use core_ib::wire::mad::{MtuCode, Notice, NoticeType, TimeCode, VlCode};
use core_ib::{Mtu, PKey, Sl};
use proptest::prelude::*;

const NOW: Instant = Instant(1_000);

fn ca() -> NodeState {
    let mut node = NodeState::ca(Guid(0x10), &[Guid(0x11), Guid(0x12)], &PortCaps::SDR_4X);
    node.vendor_id = 0x2c9;
    node.device_id = 0x5a44;
    node.revision = 0xa1;
    node
}

fn switch() -> NodeState {
    NodeState::switch(Guid(0x20), Guid(0x20), 20, &PortCaps::SDR_4X, false)
}

fn context(in_port: u8) -> SmpContext {
    SmpContext {
        in_port,
        slid: Lid(5),
        ignore_m_key: false,
        now: NOW,
    }
}

struct Asked {
    smp: Smp,
    status: MadStatus,
    effects: Vec<Effect>,
}

impl Asked {
    fn get<A: Attribute>(&self) -> A {
        assert_eq!(self.status, MadStatus::OK);
        self.smp.get().unwrap()
    }
}

fn ask(node: &mut NodeState, in_port: u8, smp: &Smp) -> Asked {
    let mut effects = Vec::new();
    match process_smp(node, smp, &context(in_port), &mut effects) {
        Answer::Reply(smp) => {
            assert_eq!(smp.header.method, Method::GET_RESP);
            let status = MadStatus(smp.header.status.0 & !MadStatus::DIRECTION);
            Asked {
                smp,
                status,
                effects,
            }
        }
        other => panic!("{other:?}"),
    }
}

fn get_at(node: &mut NodeState, in_port: u8, attribute: AttributeId, modifier: u32) -> Asked {
    ask(
        node,
        in_port,
        &Smp::lid_routed(Method::GET, attribute, modifier),
    )
}

fn set_at<A: Attribute>(node: &mut NodeState, in_port: u8, attribute: &A, modifier: u32) -> Asked {
    let mut smp = Smp::lid_routed(Method::SET, A::ID, modifier);
    smp.put(attribute).unwrap();
    ask(node, in_port, &smp)
}

fn port_info(node: &mut NodeState, port: u8) -> PortInfo {
    get_at(node, 1, AttributeId::PORT_INFO, port.into()).get()
}

/// A Set(PortInfo) of what Get shows, but for `change`; no state is asked for unless `change` does.
fn set_port(node: &mut NodeState, port: u8, change: impl FnOnce(&mut PortInfo)) -> Asked {
    let mut info = node.port(port).unwrap().info;
    (info.state, info.phys_state) = (State::NO_CHANGE, PortPhysState::NO_CHANGE);
    change(&mut info);
    set_at(node, 1, &info, port.into())
}

fn up(node: &mut NodeState, port: u8) {
    node.link_changed(port, Some(LinkParameters::X4_SDR), &mut Vec::new());
}

#[test]
fn node_info_names_the_port_that_was_asked() {
    let info: NodeInfo = get_at(&mut ca(), 2, AttributeId::NODE_INFO, 0).get();
    assert_eq!((info.node_guid, info.port_guid), (Guid(0x10), Guid(0x12)));
    assert_eq!((info.num_ports, info.local_port_num), (2, 2));
    assert_eq!(
        (info.vendor_id, info.device_id, info.revision),
        (0x2c9, 0x5a44, 0xa1)
    );
    assert_eq!(info.partition_cap, 64);
    let info: NodeInfo = get_at(&mut switch(), 7, AttributeId::NODE_INFO, 0).get();
    assert_eq!(
        (info.port_guid, info.num_ports, info.local_port_num),
        (Guid(0x20), 20, 7)
    );
}

#[test]
fn a_directed_route_reply_turns_round_and_keeps_its_path() {
    let mut smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 7]).unwrap();
    smp.header.hop_pointer = 3;
    let asked = ask(&mut ca(), 1, &smp);
    assert!(asked.smp.is_returning());
    assert_eq!(asked.smp.header.hop_pointer, 3);
    assert_eq!(asked.smp.initial_path, smp.initial_path);
}

#[test]
fn what_the_agent_does_not_know_is_refused_with_the_right_status() {
    let node = &mut ca();
    let status = |node: &mut _, smp: &Smp| ask(node, 1, smp).status;
    for attribute in [
        AttributeId::SM_INFO,
        AttributeId::SWITCH_INFO,
        AttributeId(0xff90),
    ] {
        let smp = Smp::lid_routed(Method::GET, attribute, 0);
        assert_eq!(status(node, &smp), UNSUPPORTED, "{attribute:?}");
    }
    let set = Smp::lid_routed(Method::SET, AttributeId::NODE_INFO, 0);
    assert_eq!(status(node, &set), UNSUPPORTED);
    let mut old = Smp::lid_routed(Method::GET, AttributeId::NODE_INFO, 0);
    old.header.class_version = 2;
    assert_eq!(status(node, &old), MadStatus::BAD_VERSION);
    let beyond = Smp::lid_routed(Method::GET, AttributeId::PORT_INFO, 3);
    assert_eq!(status(node, &beyond), INVALID);
    for method in [Method::TRAP, Method::GET_RESP, Method::SEND, Method::REPORT] {
        let smp = Smp::lid_routed(method, AttributeId::NODE_INFO, 0);
        let answer = process_smp(node, &smp, &context(1), &mut Vec::new());
        assert_eq!(answer, Answer::Nothing, "{method:?}");
    }
}

#[test]
fn a_port_is_brought_up_in_the_steps_of_a_subnet_manager() {
    let node = &mut ca();
    let info = port_info(node, 1);
    assert_eq!(
        (info.state, info.phys_state),
        (State::DOWN, PortPhysState::POLLING)
    );
    up(node, 1);
    assert_eq!(port_info(node, 1).state, State::INIT);
    let asked = set_port(node, 1, |info| {
        (info.lid, info.lmc) = (Lid(8), 2);
        (info.master_sm_lid, info.master_sm_sl) = (Lid(1), Sl::new(3));
        info.gid_prefix = 0xfec0_0000_0000_0000;
        info.neighbor_mtu = MtuCode::from(Mtu::Mtu1024);
        info.operational_vls = VlCode(2);
        info.subnet_timeout = TimeCode(17);
        info.client_reregister = true;
    });
    let port = 1;
    let expected = [
        Effect::Lid { port },
        Effect::Sm { port },
        Effect::Gids { port },
        Effect::Notice,
        Effect::ClientReregister { port },
    ];
    assert_eq!(asked.effects, expected);
    let reply: PortInfo = asked.get();
    assert!(reply.client_reregister, "echoed");
    assert_eq!(
        (reply.lid, reply.lmc, reply.neighbor_mtu),
        (Lid(8), 2, MtuCode(3))
    );
    assert_eq!(
        (reply.state, reply.operational_vls),
        (State::INIT, VlCode(2))
    );
    assert!(!port_info(node, 1).client_reregister);
    for (old, new) in [(State::INIT, State::ARMED), (State::ARMED, State::ACTIVE)] {
        let asked = set_port(node, 1, |info| info.state = new);
        let moved = Effect::PortState { port, old, new };
        assert_eq!(asked.effects, [moved, Effect::Notice]);
        assert_eq!(asked.get::<PortInfo>().state, new);
    }
    let again = set_port(node, 1, |info| info.state = State::ACTIVE);
    assert_eq!(again.effects, [Effect::Notice], "active already");
}

#[test]
fn a_step_is_not_left_out() {
    let node = &mut ca();
    let down = set_port(node, 1, |info| info.state = State::ARMED);
    assert_eq!(down.status, INVALID);
    up(node, 1);
    let skipped = set_port(node, 1, |info| info.state = State::ACTIVE);
    assert_eq!((skipped.status, skipped.effects), (INVALID, vec![]));
    assert_eq!(skipped.smp.get::<PortInfo>().unwrap().state, State::INIT);
    let init = set_port(node, 1, |info| info.state = State::INIT);
    assert_eq!(init.status, INVALID);
    set_port(node, 1, |info| info.state = State::ARMED);
    set_port(node, 1, |info| info.state = State::ACTIVE);
    let back = set_port(node, 1, |info| info.state = State::ARMED);
    assert_eq!(back.status, INVALID);
}

#[test]
fn a_port_set_down_trains_anew_or_stays_down_as_the_physical_state_says() {
    let control = |effects: &[Effect]| -> Vec<bool> {
        let polls = effects.iter().filter_map(|effect| match effect {
            Effect::SetLink { control, .. } => Some(*control != LinkControl::Disabled),
            _ => None,
        });
        polls.collect()
    };
    let node = &mut ca();
    up(node, 1);
    let asked = set_port(node, 1, |info| info.state = State::DOWN);
    assert_eq!(
        control(&asked.effects),
        [false, true],
        "LinkDownDefaultState is Polling"
    );
    let (old, new) = (State::INIT, State::DOWN);
    assert!(
        asked
            .effects
            .contains(&Effect::PortState { port: 1, old, new })
    );
    let asked = set_port(node, 1, |info| info.phys_state = PortPhysState::DISABLED);
    assert_eq!(control(&asked.effects), [false]);
    node.link_changed(1, None, &mut Vec::new());
    assert_eq!(port_info(node, 1).phys_state, PortPhysState::DISABLED);
    let asked = set_port(node, 1, |info| info.phys_state = PortPhysState::POLLING);
    assert_eq!(control(&asked.effects), [false, true]);
    let training = set_port(node, 1, |info| info.phys_state = PortPhysState::TRAINING);
    assert_eq!(training.status, INVALID);
}

#[test]
fn a_set_with_one_bad_field_changes_nothing() {
    let node = &mut ca();
    up(node, 1);
    let before = port_info(node, 1);
    let bad: [fn(&mut PortInfo); 8] = [
        |info| info.lid = Lid(0xc000),
        |info| info.master_sm_lid = Lid::PERMISSIVE,
        |info| info.neighbor_mtu = MtuCode(5),
        |info| info.neighbor_mtu = MtuCode(0),
        |info| info.operational_vls = VlCode(4),
        |info| info.link_width_enabled = LinkWidth::X12,
        |info| info.link_speed_enabled = LinkSpeed::QDR,
        |info| info.link_down_default_state = PortPhysState::DISABLED,
    ];
    for change in bad {
        let asked = set_port(node, 1, |info| {
            info.gid_prefix = 7;
            change(info);
        });
        assert_eq!((asked.status, &asked.effects[..]), (INVALID, [].as_slice()));
        assert_eq!(port_info(node, 1), before);
        assert_eq!(asked.smp.get::<PortInfo>().unwrap(), before, "what is");
    }
}

#[test]
fn the_codes_for_no_change_and_for_all_supported_are_obeyed() {
    let mut caps = PortCaps::SDR_4X;
    caps.speeds = crate::machine::LinkSpeed(0x37);
    let node = &mut NodeState::ca(Guid(1), &[Guid(2)], &caps);
    set_port(node, 1, |info| {
        info.link_width_enabled = LinkWidth::X1;
        info.link_speed_enabled = LinkSpeed::SDR;
        info.link_speed_ext_enabled = LinkSpeedExt::DISABLE;
    });
    let info = port_info(node, 1);
    assert_eq!(
        (info.link_width_enabled, info.link_speed_enabled),
        (LinkWidth::X1, LinkSpeed::SDR)
    );
    assert_eq!(
        info.link_speed_ext_enabled,
        LinkSpeedExt::FDR | LinkSpeedExt::EDR,
        "bit 31 clear"
    );
    set_port(node, 1, |info| {
        info.lid = Lid::NONE;
        info.link_width_enabled = LinkWidth::empty();
        info.link_speed_enabled = LinkSpeed::empty();
        info.operational_vls = VlCode(0);
    });
    let same = port_info(node, 1);
    assert_eq!(same, info);
    let mut wanted = same;
    (wanted.state, wanted.phys_state) = (State::NO_CHANGE, PortPhysState::NO_CHANGE);
    wanted.link_width_enabled = LinkWidth::SUPPORTED;
    wanted.link_speed_enabled = LinkSpeed::SUPPORTED;
    wanted.link_speed_ext_enabled = LinkSpeedExt::DISABLE;
    let modifier = PortInfo::KNOWS_EXTENDED_SPEEDS | 1;
    let all: PortInfo = set_at(node, 1, &wanted, modifier).get();
    assert_eq!(all.link_width_enabled, all.link_width_supported);
    assert_eq!(all.link_speed_enabled, all.link_speed_supported);
    assert_eq!(all.link_speed_ext_enabled, LinkSpeedExt::DISABLE);
    let (_, speeds) = node.port(1).unwrap().enabled();
    assert_eq!(speeds.0, 7, "no extended ones");
}

#[test]
fn violation_counters_are_cleared_by_zero_and_by_nothing_else() {
    let node = &mut ca();
    node.port_mut(1).unwrap().info.p_key_violations = 9;
    set_port(node, 1, |info| info.p_key_violations = 3);
    assert_eq!(port_info(node, 1).p_key_violations, 9);
    set_port(node, 1, |info| info.p_key_violations = 0);
    assert_eq!(port_info(node, 1).p_key_violations, 0);
}

#[test]
fn the_first_guid_is_the_ports_own_and_is_not_written() {
    let node = &mut ca();
    let mut wanted = GuidInfo {
        guids: [Guid(0x99); 8],
    };
    let asked = set_at(node, 2, &wanted, 0);
    assert_eq!(asked.effects, [Effect::Gids { port: 2 }]);
    wanted.guids[0] = Guid(0x12);
    assert_eq!(asked.get::<GuidInfo>(), wanted);
    let other: GuidInfo = get_at(node, 1, AttributeId::GUID_INFO, 0).get();
    assert_eq!(other.guids[..2], [Guid(0x11), Guid(0)]);
    let last: GuidInfo = get_at(node, 1, AttributeId::GUID_INFO, 3).get();
    assert_eq!(last.guids, [Guid(0); 8]);
    let beyond = get_at(node, 1, AttributeId::GUID_INFO, 4);
    assert_eq!(beyond.status, INVALID);
}

#[test]
fn partition_keys_are_by_port_of_arrival_on_a_ca_and_by_modifier_on_a_switch() {
    let node = &mut ca();
    let mut table: PKeyTable = get_at(node, 1, AttributeId::P_KEY_TABLE, 0).get();
    assert_eq!(table.keys[..2], [PKey::DEFAULT, PKey(0)]);
    table.keys[1] = PKey(0x8001);
    let asked = set_at(node, 1, &table, 0);
    assert_eq!(asked.effects, [Effect::PKeys { port: 1 }]);
    assert_eq!(set_at(node, 1, &table, 0).effects, [], "the same again");
    assert_eq!(node.port(1).unwrap().p_key_index(PKey(1)), Some(1));
    let second: PKeyTable = get_at(node, 2, AttributeId::P_KEY_TABLE, 0).get();
    assert_eq!(second.keys[1], PKey(0));
    assert_eq!(get_at(node, 1, AttributeId::P_KEY_TABLE, 2).status, INVALID);
    let node = &mut switch();
    set_at(node, 1, &table, PKeyTable::modifier(5, 1));
    assert_eq!(node.port(5).unwrap().p_keys[33], PKey(0x8001));
    let beyond = get_at(
        node,
        1,
        AttributeId::P_KEY_TABLE,
        PKeyTable::modifier(21, 0),
    );
    assert_eq!(beyond.status, INVALID);
}

#[test]
fn lanes_are_by_input_and_output_port_of_a_switch() {
    let node = &mut switch();
    let table = SlToVlMappingTable::new([3; 16]);
    let modifier = SlToVlMappingTable::modifier(2, 5);
    let asked = set_at(node, 1, &table, modifier);
    assert_eq!(asked.get::<SlToVlMappingTable>(), table);
    let port = node.port(5).unwrap();
    let lanes = [1, 2].map(|input| port.vl_of(input, Sl::new(4)).map(|vl| vl.get()));
    assert_eq!(lanes, [Some(0), Some(3)]);
    let beyond = get_at(node, 1, AttributeId::SL_TO_VL_MAPPING_TABLE, 0x1505);
    assert_eq!(beyond.status, INVALID);
    let mut caps = PortCaps::SDR_4X;
    caps.vl_cap = VlCode(1);
    let node = &mut NodeState::ca(Guid(1), &[Guid(2)], &caps);
    let one_lane = get_at(node, 1, AttributeId::SL_TO_VL_MAPPING_TABLE, 0);
    assert_eq!(one_lane.status, UNSUPPORTED);
}

#[test]
fn arbitration_lists_have_the_entries_that_the_port_info_promises() {
    let node = &mut switch();
    let table = VlArbitrationTable {
        entries: [VlWeight { vl: 1, weight: 9 }; 32],
    };
    let modifier = VlArbitrationTable::modifier(VlArbitrationTable::HIGH, 4);
    let shown: VlArbitrationTable = set_at(node, 1, &table, modifier).get();
    let high = &node.port(4).unwrap().vl_arb_high;
    assert_eq!((high.len(), high[7]), (8, VlWeight { vl: 1, weight: 9 }));
    assert_eq!(shown.entries[8], VlWeight::default());
    let upper = VlArbitrationTable::modifier(VlArbitrationTable::LOW_UPPER, 4);
    assert_eq!(
        get_at(node, 1, AttributeId::VL_ARBITRATION_TABLE, upper).status,
        INVALID
    );
}

#[test]
fn forwarding_tables_are_written_in_blocks() {
    let node = &mut switch();
    let mut table = LinearForwardingTable { ports: [0xff; 64] };
    table.ports[2] = 9;
    set_at(node, 1, &table, 2);
    let mut info: SwitchInfo = get_at(node, 1, AttributeId::SWITCH_INFO, 0).get();
    let lid = Lid(130);
    assert_eq!(
        node.switch.as_ref().unwrap().unicast_port(lid),
        None,
        "above the top"
    );
    info.linear_fdb_top = lid;
    set_at(node, 1, &info, 0);
    let ports = [129, 130].map(|lid| node.switch.as_ref().unwrap().unicast_port(Lid(lid)));
    assert_eq!(ports, [None, Some(9)]);
    let empty: LinearForwardingTable =
        get_at(node, 1, AttributeId::LINEAR_FORWARDING_TABLE, 5).get();
    assert_eq!(empty.ports, [0xff; 64]);
    let beyond = get_at(node, 1, AttributeId::LINEAR_FORWARDING_TABLE, 768);
    assert_eq!(beyond.status, INVALID);
    info.linear_fdb_top = Lid(0xc000);
    assert_eq!(set_at(node, 1, &info, 0).status, INVALID);
}

#[test]
fn a_multicast_set_is_written_sixteen_ports_at_a_time() {
    let node = &mut switch();
    let mut table = MulticastForwardingTable::default();
    table.masks[1] = 1 << 4;
    set_at(node, 1, &table, MulticastForwardingTable::modifier(1, 1));
    table.masks[1] = 1 << 2;
    set_at(node, 1, &table, MulticastForwardingTable::modifier(1, 0));
    let switch = node.switch.as_ref().unwrap();
    let mlid = Lid(0xc021);
    let ports: Vec<u8> = (0..=20)
        .filter(|&port| switch.multicast_has(mlid, port))
        .collect();
    assert_eq!(ports, [2, 20]);
    assert!(!switch.multicast_is_empty(mlid) && switch.multicast_is_empty(Lid(0xc020)));
    let position = MulticastForwardingTable::modifier(0, 2);
    let beyond = get_at(node, 1, AttributeId::MULTICAST_FORWARDING_TABLE, position);
    assert_eq!(beyond.status, INVALID, "there is no port 32");
}

#[test]
fn the_change_bit_of_a_switch_is_cleared_by_writing_one() {
    let node = &mut switch();
    up(node, 3);
    let mut info: SwitchInfo = get_at(node, 1, AttributeId::SWITCH_INFO, 0).get();
    assert!(info.port_state_change);
    info.port_state_change = false;
    let kept: SwitchInfo = set_at(node, 1, &info, 0).get();
    assert!(kept.port_state_change);
    info.port_state_change = true;
    let cleared: SwitchInfo = set_at(node, 1, &info, 0).get();
    assert!(!cleared.port_state_change);
}

#[test]
fn a_base_port_0_has_no_states_and_an_enhanced_one_has() {
    let node = &mut switch();
    let asked = set_port(node, 0, |info| {
        info.lid = Lid(4);
        info.state = State::ARMED;
        info.neighbor_mtu = MtuCode(0);
    });
    let info: PortInfo = asked.get();
    assert_eq!((info.lid, info.state), (Lid(4), State::ACTIVE));
    let node = &mut NodeState::switch(Guid(1), Guid(1), 4, &PortCaps::SDR_4X, true);
    assert_eq!(port_info(node, 0).state, State::INIT);
    assert_eq!(
        set_port(node, 0, |info| info.state = State::ACTIVE).status,
        INVALID
    );
    set_port(node, 0, |info| info.state = State::ARMED);
    let active: PortInfo = set_port(node, 0, |info| info.state = State::ACTIVE).get();
    assert_eq!(active.state, State::ACTIVE);
}

#[test]
fn an_external_port_of_a_switch_has_neither_lid_nor_m_key() {
    let node = &mut switch();
    let info: PortInfo = set_port(node, 3, |info| {
        (info.lid, info.m_key) = (Lid(9), MKey(5));
        info.partition_enforcement_inbound = true;
    })
    .get();
    assert_eq!((info.lid, info.m_key), (Lid::NONE, MKey(0)));
    assert!(info.partition_enforcement_inbound);
}

/// Attributes that a wrong M_Key tells from a right one.
fn try_key(node: &mut NodeState, key: u64, method: Method, now: u64) -> Answer {
    let mut smp = Smp::lid_routed(method, AttributeId::PORT_INFO, 1);
    smp.m_key = MKey(key);
    let mut info = node.port(1).unwrap().info;
    (info.state, info.phys_state) = (State::NO_CHANGE, PortPhysState::NO_CHANGE);
    smp.put(&info).unwrap();
    let context = SmpContext {
        now: Instant(now),
        ..context(1)
    };
    process_smp(node, &smp, &context, &mut Vec::new())
}

fn shown_key(answer: &Answer) -> Option<MKey> {
    match answer {
        Answer::Reply(smp) => Some(smp.get::<PortInfo>().unwrap().m_key),
        _ => None,
    }
}

#[test]
fn the_protect_bits_say_what_a_wrong_m_key_may_do() {
    // protect bits, key shown by Get (none: no answer), Set answered
    let rows = [
        (0, Some(MKey(7)), false),
        (1, Some(MKey(0)), false),
        (2, None, false),
        (3, None, false),
    ];
    for (protect, shown, set) in rows {
        let node = &mut ca();
        let info = &mut node.port_mut(1).unwrap().info;
        (info.m_key, info.m_key_protect) = (MKey(7), protect);
        let get = try_key(node, 1, Method::GET, 0);
        assert_eq!(shown_key(&get), shown, "protect {protect}");
        let answered = try_key(node, 1, Method::SET, 0) != Answer::BadMKey;
        assert_eq!(answered, set);
        let violations = node.port(1).unwrap().info.m_key_violations;
        assert_eq!(violations, 1 + u16::from(shown.is_none()));
        let right = try_key(node, 7, Method::GET, 0);
        assert_eq!(shown_key(&right), Some(MKey(7)));
        assert_eq!(node.front_notice().number.0, 256);
    }
}

#[test]
fn an_m_key_of_zero_protects_nothing() {
    let node = &mut ca();
    node.port_mut(1).unwrap().info.m_key_protect = 3;
    assert_ne!(try_key(node, 99, Method::SET, 0), Answer::BadMKey);
}

#[test]
fn a_lease_that_runs_out_lifts_the_protection_unless_the_right_key_comes() {
    let second = 1_000_000_000;
    let protected = || {
        let mut node = ca();
        let info = &mut node.port_mut(1).unwrap().info;
        (info.m_key, info.m_key_protect, info.m_key_lease_period) = (MKey(7), 2, 3);
        node
    };
    let node = &mut protected();
    assert_eq!(try_key(node, 1, Method::GET, second), Answer::BadMKey);
    assert_eq!(try_key(node, 1, Method::GET, 3 * second), Answer::BadMKey);
    let after = try_key(node, 1, Method::GET, 4 * second);
    assert_eq!(shown_key(&after), Some(MKey(7)), "the key itself stays");
    let node = &mut protected();
    assert_eq!(try_key(node, 1, Method::GET, second), Answer::BadMKey);
    assert_ne!(try_key(node, 7, Method::GET, 2 * second), Answer::BadMKey);
    assert_eq!(try_key(node, 1, Method::GET, 4 * second), Answer::BadMKey);
}

#[test]
fn the_owner_of_the_hardware_needs_no_key() {
    let node = &mut ca();
    let info = &mut node.port_mut(1).unwrap().info;
    (info.m_key, info.m_key_protect) = (MKey(7), 3);
    let smp = Smp::lid_routed(Method::GET, AttributeId::PORT_INFO, 1);
    let context = SmpContext {
        ignore_m_key: true,
        ..context(1)
    };
    let answer = process_smp(node, &smp, &context, &mut Vec::new());
    assert_eq!(shown_key(&answer), Some(MKey(7)));
}

#[test]
fn a_repressed_trap_makes_room_for_the_next_notice() {
    let node = &mut switch();
    (
        node.port_mut(0).unwrap().info.lid,
        node.port_mut(0).unwrap().info.master_sm_lid,
    ) = (Lid(4), Lid(1));
    up(node, 1);
    let (_, trap) = node.poll_trap(NOW).unwrap();
    let shown: Notice = get_at(node, 1, AttributeId::NOTICE, 0).get();
    assert_eq!(shown.number.0, 128);
    let repress = trap.reply(MadStatus::OK).unwrap();
    let answer = process_smp(node, &repress, &context(1), &mut Vec::new());
    assert_eq!(answer, Answer::Nothing);
    let shown: Notice = get_at(node, 1, AttributeId::NOTICE, 0).get();
    assert_eq!(shown.kind, NoticeType::EMPTY);
}

#[test]
fn the_led_is_lit_and_put_out() {
    let node = &mut ca();
    let mut smp = Smp::lid_routed(Method::SET, AttributeId::LED_INFO, 1);
    smp.data[0] = 0x80;
    assert_eq!(ask(node, 1, &smp).smp.data[0], 0x80);
    assert!(node.port(1).unwrap().led);
    let other = get_at(node, 1, AttributeId::LED_INFO, 2);
    assert_eq!(other.smp.data[0], 0);
}

proptest! {
    /// Any Set and Get whatever: every answer is the request's, a refused Set changes nothing, and no state is invented.
    #[test]
    fn no_smp_whatever_upsets_the_agent(
        sequence in prop::collection::vec(
            (
                prop_oneof![8 => 0x10..0x1c_u16, 1 => any::<u16>()],
                prop_oneof![1..3_u8, any::<u8>()],
                prop_oneof![2 => 0..9_u32, 1 => any::<u32>()],
                prop::array::uniform32(prop_oneof![any::<u8>(), 0..5_u8]),
                1..=4_u8,
                any::<bool>(),
            ),
            1..12,
        ),
        is_switch: bool,
    ) {
        let caps = PortCaps::SDR_4X;
        let mut node = if is_switch {
            NodeState::switch(Guid(1), Guid(1), 4, &caps, false)
        } else {
            NodeState::ca(Guid(1), &[Guid(2), Guid(3), Guid(4), Guid(5)], &caps)
        };
        for (attribute, method, modifier, data, in_port, link) in sequence {
            if link {
                up(&mut node, in_port);
            }
            let mut smp = Smp::lid_routed(Method(method), AttributeId(attribute), modifier);
            smp.data[..32].copy_from_slice(&data);
            smp.data[32..].copy_from_slice(&data);
            let before = format!("{node:?}");
            let mut effects = Vec::new();
            match process_smp(&mut node, &smp, &context(in_port), &mut effects) {
                Answer::Reply(reply) => {
                    prop_assert_eq!(reply.header.tid, smp.header.tid);
                    prop_assert!(reply.header.method.is_response());
                    if reply.header.status != MadStatus::OK {
                        prop_assert_eq!(format!("{node:?}"), before, "refused, and yet changed");
                        prop_assert!(effects.is_empty());
                    }
                }
                Answer::Nothing | Answer::BadMKey => {}
            }
            for port in node.first_port()..=node.port_count() {
                let info = &node.port(port).unwrap().info;
                prop_assert!((1..=4).contains(&info.state.0), "{:?}", info.state);
                prop_assert!(info.neighbor_mtu.mtu().is_some());
                prop_assert!(info.operational_vls.lanes().is_some());
                prop_assert!(!info.lid.is_multicast() && !info.lid.is_permissive());
            }
        }
    }
}
