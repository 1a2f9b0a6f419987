//! Drivers, wires and memory that do what they like. The properties say what must not happen: a panic, a call that does
//! not end, a step outside of what is mapped.

use super::memfree::*;
use super::verbs::*;
use super::*;
use crate::hca::infinihost::Variant;
use crate::machine::{Bus, PciFunction};
use core_ib::wire::mad::Mad;
use core_ib::wire::packet::{FlowLabel, Grh};
use core_ib::{Gid, Lid, QKey, Qpn};
use hca_abi::infinihost::cmd::Opcode;
use hca_abi::infinihost::mgm::Mgm;
use hca_abi::infinihost::qp::ServiceType;
use hca_abi::infinihost::regs;
use hca_abi::infinihost::srq::MSrqContext;
use hca_abi::infinihost::wqe::DataSegment;
use proptest::prelude::*;
use proptest::sample::select;
use zerocopy::IntoBytes;

/// DMA accesses that one call may make: some dozens of WQEs, each of a list of at most 62 pieces, a packet for each, and
/// what a full list of events takes.
const MOST: usize = 40_000;

/// Record of the SRQ in M-mode.
const SRQ_RECORD: u32 = 0x1f0;

/// One thing that happens to the card.
#[derive(Clone, Debug)]
enum Step {
    Config(u16, u32),
    Load(u8, u64, usize),
    Store(u8, u64, Vec<u8>),
    Command(u16, u8, u32, u64, bool),
    Doorbell(u64, u64, u64),
    /// Host memory changes.
    Scribble(u64, Vec<u8>),
    /// Attached memory changes.
    Attached(u64, Vec<u8>),
    Packet(u8, Vec<u8>),
    /// A good packet with one byte changed, its checksums made anew.
    Spoilt(u8, usize, u8),
    /// A datagram to a group that has members, or to one that has none.
    Multicast(bool),
    /// A management datagram: to which QP, class, method, attribute.
    Mad(u32, u8, u8, u16),
    Link(u8, bool),
    Room(u8, u8),
    WireFull(bool),
    Timers,
}

fn number() -> impl Strategy<Value = u32> {
    // Objects that there are, neighbours, other generations, anything.
    prop_oneof![
        4 => select(vec![0x10, 0x12, 0x20, 0x30, 0x31, 0x32, 0x33, 1, 2, 3]),
        1 => select(vec![0x400_0030, 0x8000_0031, 0x50_0020, 0, 32, 1023, 1024]),
        1 => any::<u32>(),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => select(vec![IN, OUT, 0x3000, 0x4000, 0x5000, 0x103_0800, 0x103_0000]),
        // Doorbell records, entries of tables behind ICM.
        2 => select(vec![record(SET_CI + 0x20), record(SQ + 0x30), record(RQ + 0x30), record(SRQ_RECORD), behind(MPTS) + 0x400]),
        1 => select(vec![0, HOST_END - 8, HOST_END, BAR4, BAR4 + (6 << 20), BAR4 + (128 << 20) - 4, u64::MAX - 3]),
        1 => any::<u64>(),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let loose = prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 0..80);
    prop_oneof![
        2 => loose,
        // A next segment: on to somewhere, of some size, at once.
        1 => (select(vec![0x103_0800_u32, 0x103_0900, 0x103_0000, 0]), 0..64_u32, 0..32_u32, any::<u32>()).prop_map(
            |(nda, nds, opcode, flags)| [nda | opcode, nds, flags, 0].map(u32::to_be_bytes).concat()
        ),
        1 => (0..4096_u32, select(vec![ALL, 0x20, 0x100, 0]), address())
            .prop_map(|(len, key, at)| DataSegment::new(len, key, at).as_bytes().to_vec()),
    ]
}

fn doorbell() -> impl Strategy<Value = u64> {
    let word = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    prop_oneof![
        // A send queue or receive queue: address and size, number and size or count.
        4 => (select(vec![0x103_0800_u32, 0x103_0000, 0x103_0840, 0]), 0..64_u32, number(), 0..256_u32)
            .prop_map(move |(at, low, number, rest)| word(at | low, number << 8 | rest)),
        // M-mode: count and counter, number and size; a sequence and a CQ, a counter.
        2 => (0..10_u32, 0..20_u32, 0..64_u32, number(), 0..64_u32)
            .prop_map(move |(count, counter, low, number, nds)| word(count << 24 | counter << 8 | low, number << 8 | nds)),
        2 => (0..64_u32, number(), select(vec![0_u32, 1, 2, 15, u32::MAX]))
            .prop_map(move |(command, number, counter)| word(command << 24 | number & 0xff_ffff, counter)),
        // A CQ or EQ: command and number, parameter.
        2 => (0..7_u32, number(), select(vec![0_u32, 1, 2, 15, u32::MAX]))
            .prop_map(move |(command, number, parameter)| word(command << 24 | number & 0xff_ffff, parameter)),
        1 => any::<u64>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let register = prop_oneof![
        4 => select(vec![regs::HCR as u64, 0x8_0698, 0x8_0700, 0x8_070c, 0xf_00d8, 0xf_0200, 0xf_0204, 0xf_0408, 0xf_0418, 0xf_0800, 0x8_2000, 0x8_2200]),
        1 => 0..0x10_0000_u64,
    ];
    let opcode = prop_oneof![8 => 1..0x41_u16, 2 => 0xff6..0x1000_u16, 1 => 0..0x1000_u16];
    prop_oneof![
        1 => (select(vec![0x04_u16, 0x10, 0x18, 0x20, 0x40, 0x58, 0x70]), any::<u32>())
            .prop_map(|(at, value)| Step::Config(at, value)),
        1 => (0..6_u8, register.clone(), select(vec![1_usize, 2, 4, 8]))
            .prop_map(|(bar, at, len)| Step::Load(bar, at, len)),
        2 => (0..6_u8, register, bytes()).prop_map(|(bar, at, data)| Step::Store(bar, at, data)),
        6 => (opcode, 0..4_u8, number(), address(), any::<bool>())
            .prop_map(|(opcode, modifier, object, at, event)| Step::Command(opcode, modifier, object, at, event)),
        8 => (0..4_u64, select(vec![0x10_u64, 0x18, 0x20, 0x28]), doorbell())
            .prop_map(|(page, register, value)| Step::Doorbell(page, register, value)),
        6 => (address(), bytes()).prop_map(|(at, data)| Step::Scribble(at, data)),
        2 => (prop_oneof![select(vec![6_u64 << 20, (6 << 20) + 0x400, 5 << 20, 7 << 20]), 0..(8_u64 << 20)], bytes())
            .prop_map(|(at, data)| Step::Attached(at, data)),
        1 => (0..4_u8, prop::collection::vec(any::<u8>(), 0..400)).prop_map(|(port, data)| Step::Packet(port, data)),
        3 => (1..3_u8, prop_oneof![0..40_usize, 40..300_usize], any::<u8>()).prop_map(|(port, at, value)| Step::Spoilt(port, at, value)),
        2 => (0..2_u32, select(vec![1_u8, 0x81, 4, 3]), select(vec![1_u8, 2, 5, 7, 0x81]), select(vec![2_u16, 0x10, 0x11, 0x12, 0x15, 0x16]))
            .prop_map(|(qpn, class, method, attribute)| Step::Mad(qpn, class, method, attribute)),
        1 => any::<bool>().prop_map(Step::Multicast),
        1 => (0..4_u8, any::<bool>()).prop_map(|(port, up)| Step::Link(port, up)),
        1 => (0..4_u8, 0..17_u8).prop_map(|(port, vl)| Step::Room(port, vl)),
        1 => any::<bool>().prop_map(Step::WireFull),
        2 => Just(Step::Timers),
    ]
}

/// A card in full use. Software may have taken QP0 over.
fn victim(with_qp0: bool) -> Rig {
    let mut rig = Rig::card(1);
    rig.start(true);
    rig.activate(1, 0x15);
    rig.set_port(1, |info| info.master_sm_lid = core_ib::Lid(3));
    let cq = rig.create_cq(0x20);
    rig.store(0x3000, &av(1, 0x15));
    for qpn in [0x30, 0x31] {
        let mut qp = rig.ud_qp(qpn, 1, &cq);
        rig.post_receive(&mut qp, &[(0x5000, 300), (0x5000, 100), (0x5000, 300)]);
    }
    if with_qp0 {
        rig.command(Opcode::CONF_SPECIAL_QP, 0, 0x10, 0);
        let mut qp = rig.create_qp(0x10, ServiceType::MLX, 1, &cq);
        rig.ready(&qp);
        rig.post_receive(&mut qp, &[(0x5000, 300), (0x5000, 300)]);
    }
    let context = qp_context(ServiceType::RC, 0, 1, 0x20);
    rig.modify(Opcode::RST2INIT_QPEE, 0x32, 0, &context);
    // Connected to itself.
    let mut connected = context;
    let mut path = connected.primary_path();
    path.set_dlid(0x15);
    connected.set_primary_path(path).set_remote_qpn(0x32);
    for opcode in [Opcode::INIT2RTR_QPEE, Opcode::RTR2RTS_QPEE] {
        rig.modify(opcode, 0x32, 0, &connected);
    }
    join(&mut rig);
    rig
}

/// The same in M-mode, with an SRQ.
fn memfree_victim(with_qp0: bool) -> Rig {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(true);
    rig.activate(1, 0x15);
    rig.set_port(1, |info| info.master_sm_lid = core_ib::Lid(3));
    let cq = rig.m_create_cq(0x20);
    let mut srq = MSrqContext::ZERO;
    srq.set_lkey(ALL_M)
        .set_record(SRQ_RECORD)
        .set_log_stride(4)
        .set_uar_page(UAR)
        .set_wqe_address(0x103_0000)
        .set_pd(PD);
    rig.give(Opcode::SW2HW_SRQ, 0, 0x12, &srq);
    for qpn in [0x30, 0x31] {
        let mut qp = rig.m_ud_qp(qpn, &cq);
        rig.m_post_receive(&mut qp, &[(0x5000, 300), (0x5000, 100), (0x5000, 300)]);
    }
    let qp = verbs::Qp::new(0x32, ServiceType::UD);
    let mut context = m_qp_context(&qp, 0x20);
    context.set_has_srq(true).set_srqn(0x12);
    rig.modify(Opcode::RST2INIT_QPEE, 0x32, 0, &context);
    rig.ready(&qp);
    if with_qp0 {
        rig.command(Opcode::CONF_SPECIAL_QP, 0, 0x10, 0);
        let mut qp = rig.m_qp(0x10, ServiceType::MLX, &cq);
        rig.m_post_receive(&mut qp, &[(0x5000, 300), (0x5000, 300)]);
    }
    join(&mut rig);
    rig
}

/// QP 0x30 is in a group, whose entry leads on to where none is.
fn join(rig: &mut Rig) {
    let mut group = Mgm::ZERO;
    group
        .set_gid([0xff; 16])
        .set_member(0, Some(0x30))
        .set_next(70);
    rig.give(Opcode::WRITE_MGM, 0, 0, &group);
    rig.store(IN, &group);
}

/// A datagram that QP 0x30 would take.
fn good_packet() -> Vec<u8> {
    let mut rig = Rig::card(2);
    rig.start(true);
    rig.activate(1, 0x16);
    let cq = rig.create_cq(0x20);
    rig.store(0x3000, &av(1, 0x15));
    let mut qp = rig.ud_qp(0x30, 1, &cq);
    let body = datagram(0x3000, 0x30, Q_KEY, DataSegment::new(200, ALL, 0x4000));
    rig.post_send(
        &mut qp,
        hca_abi::infinihost::wqe::WqeOpcode::SEND,
        &[body],
        1,
    );
    rig.bus.sent.pop().unwrap().1
}

fn take(rig: &mut Rig, step: &Step, good: &[u8]) {
    let (hca, bus) = (&mut rig.hca, &mut rig.bus);
    match step {
        Step::Config(at, value) => hca.config_write(bus, *at, &value.to_le_bytes()),
        Step::Load(bar, at, len) => {
            let mut data = [0; 8];
            hca.mmio_read(bus, *bar, *at, &mut data[..*len]);
        }
        Step::Store(bar, at, data) => hca.mmio_write(bus, *bar, *at, data),
        Step::Command(opcode, modifier, object, at, event) => {
            let event = event.then_some(7);
            rig.post(Opcode(*opcode), *modifier, *object, *at, event);
        }
        Step::Doorbell(page, register, value) => {
            hca.mmio_write(bus, 2, page * 4096 + register, &value.to_be_bytes());
        }
        Step::Scribble(at, data) => drop(bus.memory.write(*at, data)),
        Step::Attached(at, data) => drop(hca.attached_memory().write(*at, data)),
        Step::Packet(port, data) => hca.receive(bus, *port, data),
        Step::Spoilt(port, at, value) => {
            let mut packet = good.to_vec();
            if let Some(byte) = packet.get_mut(*at) {
                *byte = *value;
            }
            let _ = core_ib::wire::packet::seal(&mut packet);
            hca.receive(bus, *port, &packet);
        }
        Step::Mad(qpn, class, method, attribute) => {
            let mut mad = Mad([0; 256]);
            let mut header = mad.header();
            (header.base_version, header.class_version) = (1, 1);
            (header.class.0, header.method.0, header.attribute.0) = (*class, *method, *attribute);
            mad.set_header(&header);
            let lid = if *class == 0x81 { 0xffff } else { 0x15 };
            let headers = management::headers(Lid(4), Lid(lid), Qpn::new(*qpn), QKey::GSI);
            let mut packet = [0; 512];
            let packet = headers.write(&mad.0, &mut packet).unwrap();
            hca.receive(bus, 1, packet);
        }
        Step::Multicast(with_members) => {
            let mut headers = management::headers(Lid(4), Lid(0xc001), Qpn::MULTICAST, QKey(Q_KEY));
            let mgid = if *with_members {
                [0xff; 16]
            } else {
                [0xfe; 16]
            };
            headers.grh = Some(Grh {
                traffic_class: 0,
                flow_label: FlowLabel::new(0),
                pay_len: 0,
                nxt_hdr: 0,
                hop_limit: 1,
                sgid: Gid([0xfe; 16]),
                dgid: Gid(mgid),
            });
            let mut packet = [0; 512];
            let packet = headers.write(&[0x55; 100], &mut packet).unwrap();
            hca.receive(bus, 1, packet);
        }
        Step::Link(port, up) => rig.link(*port, *up),
        Step::Room(port, vl) => hca.send_room(bus, *port, *vl),
        Step::WireFull(full) => bus.full = *full,
        Step::Timers => {
            let due = core::mem::take(&mut bus.timers);
            for (id, at) in due {
                bus.now = if at > bus.now { at } else { bus.now };
                hca.timer(bus, id);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_that_a_driver_or_a_wire_can_do_panics_the_card_or_keeps_it_busy(
        steps in prop::collection::vec(step(), 1..80), with_qp0: bool, memfree: bool,
    ) {
        let mut rig = if memfree { memfree_victim(with_qp0) } else { victim(with_qp0) };
        let good = good_packet();
        for step in &steps {
            let before = rig.bus.accesses;
            take(&mut rig, step, &good);
            let made = rig.bus.accesses - before;
            prop_assert!(made < MOST, "{step:?} made {made} accesses");
            rig.bus.sent.clear();
        }
        // Whatever happened, a reset brings it back.
        rig.hca.reset(&mut rig.bus);
        rig.configure();
        rig.bus.full = false;
        rig.bus.timers.clear();
        if memfree {
            rig.m_start(true);
        } else {
            rig.start(true);
        }
        rig.activate(1, 0x15);
    }
}

#[test]
fn the_packet_that_is_spoilt_is_a_good_one() {
    let mut rig = victim(false);
    let good = good_packet();
    take(&mut rig, &Step::Spoilt(1, usize::MAX, 0), &good);
    assert_eq!(
        rig.load::<[u8; 32]>(0x10_0000 + 0x20 * 0x1000)[31],
        0,
        "it makes a completion"
    );
    assert!(!rig.bus.tracing());
}
