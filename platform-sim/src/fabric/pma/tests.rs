//! The agent, asked and set.

use super::*;
use crate::fabric::node::PortCaps;
use core_ib::Guid;

fn node() -> NodeState {
    let mut node = NodeState::switch(Guid(1), Guid(1), 3, &PortCaps::SDR_4X, false);
    for port in 1..=3 {
        let counts = &mut node.port_mut(port).unwrap().counts;
        counts.sent(72, false);
        counts.sent(10, true);
        counts.received(100 * u16::from(port), false);
        counts.vl15_dropped.add(70_000);
        counts.qp1_dropped.bump();
    }
    node
}

fn mad(method: Method, attribute: AttributeId) -> Mad {
    let mut mad = Mad::ZERO;
    mad.set_header(&MadHeader {
        base_version: 1,
        class: MgmtClass::PERF,
        class_version: 1,
        method,
        attribute,
        tid: 77,
        ..MadHeader::default()
    });
    mad
}

fn counters(node: &mut NodeState, method: Method, wanted: &PortCounters) -> PortCounters {
    let mut mad = mad(method, AttributeId::PORT_COUNTERS);
    mad.put(wanted).unwrap();
    let answer = process_perf(node, 1, &mad).unwrap();
    assert_eq!(answer.header().status, MadStatus::OK);
    assert_eq!(
        (answer.header().method, answer.header().tid),
        (Method::GET_RESP, 77)
    );
    answer.get().unwrap()
}

fn of_port(port_select: u8) -> PortCounters {
    PortCounters {
        port_select,
        ..PortCounters::default()
    }
}

#[test]
fn counters_show_what_was_counted_and_stop_at_their_maximum() {
    let shown = counters(&mut node(), Method::GET, &of_port(2));
    assert_eq!((shown.xmit_data, shown.xmit_pkts), (82, 2));
    assert_eq!((shown.rcv_data, shown.rcv_pkts), (200, 1));
    assert_eq!((shown.vl15_dropped, shown.qp1_dropped), (0xffff, 1));
}

#[test]
fn all_ports_together_are_the_sum_of_the_external_ones() {
    let shown = counters(&mut node(), Method::GET, &of_port(0xff));
    assert_eq!((shown.xmit_data, shown.rcv_data), (246, 600));
    assert_eq!(shown.vl15_dropped, 0xffff);
}

#[test]
fn a_set_writes_the_selected_counters_and_no_others() {
    let node = &mut node();
    let wanted = PortCounters {
        select: CounterSelect::XMIT_DATA | CounterSelect::VL15_DROPPED,
        xmit_data: 5,
        xmit_pkts: 99,
        ..of_port(1)
    };
    let shown = counters(node, Method::SET, &wanted);
    assert_eq!(
        (shown.xmit_data, shown.xmit_pkts, shown.vl15_dropped),
        (5, 2, 0)
    );
    let other = counters(node, Method::GET, &of_port(2));
    assert_eq!(other.xmit_data, 82);
    let counts = &node.port(1).unwrap().counts;
    assert_eq!(
        counts.xmit_data.extended(),
        82,
        "the other attribute has its own zero"
    );
}

#[test]
fn extended_counters_lie_at_their_offsets_and_are_set_by_their_bits() {
    let node = &mut node();
    let mut get = mad(Method::GET, AttributeId::PORT_COUNTERS_EXTENDED);
    get.data_mut()[1] = 1;
    let answer = process_perf(node, 1, &get).unwrap();
    let at = |mad: &Mad, offset: usize| mad.data()[offset + 7];
    assert_eq!(
        [8, 16, 24, 32].map(|offset| at(&answer, offset)),
        [82, 100, 2, 1]
    );
    assert_eq!(
        [40, 48, 56, 64].map(|offset| at(&answer, offset)),
        [1, 1, 1, 0]
    );
    let mut set = mad(Method::SET, AttributeId::PORT_COUNTERS_EXTENDED);
    set.data_mut()[1] = 1;
    set.data_mut()[3] = 0x02;
    let answer = process_perf(node, 1, &set).unwrap();
    assert_eq!([8, 16].map(|offset| at(&answer, offset)), [82, 0]);
    let vl15_dropped = &answer.data()[160..168];
    assert_eq!(
        vl15_dropped,
        70_000_u64.to_be_bytes(),
        "one of the further counters"
    );
    set.data_mut()[6] = 0x08; // bit 11 of CounterSelect2
    let answer = process_perf(node, 1, &set).unwrap();
    assert_eq!(answer.data()[160..168], [0; 8]);
}

#[test]
fn the_agent_says_what_it_can() {
    let answer = process_perf(
        &mut node(),
        1,
        &mad(Method::GET, AttributeId::CLASS_PORT_INFO),
    );
    let answer = answer.unwrap();
    let info: ClassPortInfo = answer.get().unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 1));
    assert!(info.capability.contains(GmpCapability::PERF_EXTENDED));
}

#[test]
fn what_it_cannot_is_refused_by_status() {
    let node = &mut node();
    let mut status = |method, attribute, port| {
        let mut mad = mad(method, attribute);
        mad.data_mut()[1] = port;
        process_perf(node, 1, &mad).map(|answer| answer.header().status)
    };
    let unsupported = Some(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
    assert_eq!(
        status(Method::GET, AttributeId::PORT_SAMPLES_CONTROL, 1),
        unsupported
    );
    assert_eq!(
        status(Method::SET, AttributeId::CLASS_PORT_INFO, 1),
        unsupported
    );
    let invalid = Some(MadStatus::INVALID_FIELD);
    assert_eq!(status(Method::GET, AttributeId::PORT_COUNTERS, 4), invalid);
    assert_eq!(
        status(Method::GET, AttributeId::PORT_COUNTERS_EXTENDED, 9),
        invalid
    );
    assert_eq!(
        status(Method::GET_RESP, AttributeId::PORT_COUNTERS, 1),
        None
    );
}
