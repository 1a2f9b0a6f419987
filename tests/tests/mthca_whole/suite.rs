//! The InfiniHost driver on a model of the family, in the simulator's world: bring-up, interrupts, datagrams, verbs errors.

use core::time::Duration;
use core_ib::platform::{Completion, DmaBuf, LetGo, NoWake, Platform, Wake};
use core_ib::verbs::{
    Access, AhAttr, AsyncEvent, CompletionQueue, CqHandle, CqInit, Device, GlobalRoute, MadFlags,
    MadOutcome, Mr, MrInit, NotifyKind, Owner, PdHandle, PortEvent, QpAttr, QpAttrMask as M,
    QpCaps, QpHandle, QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Signaling, Verbs, VerbsError, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};
use core_ib::wire::mad::{Mad, MadHeader, Method, PortInfo, PortPhysState, PortState, Smp};
use core_ib::{Gid, Guid, LKey, Lid, Psn, QKey, Qpn};
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{
    Cable, Config as WorldConfig, HostId, LinkParameters, SimCompletion, SimPlatform, WireEnd,
    World,
};

const SECOND: Duration = Duration::from_secs(1);
const QKEY: QKey = QKey(0x1234);

fn card(number: u64) -> Config {
    Config::of(super::VARIANT, Guid(0x0002_c900_0000_0000 + number * 0x100))
}

/// The version that the card's firmware says it has.
fn firmware() -> [u16; 3] {
    let version = card(1).firmware;
    [version.major, version.minor, version.sub_minor]
}

fn add(world: &mut World, name: &str, config: Config, ends: &[WireEnd]) -> HostId {
    world.add_host(name, Box::new(InfiniHost::new(config)), ends)
}

fn cable() -> Cable {
    Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50))
}

/// Both ends of the cable.
const ENDS: [WireEnd; 2] = [WireEnd(0), WireEnd(1)];

/// Runs `f` on the only host of a world, whose two ports are connected, and looks whether anything was left behind.
fn alone<T: Send + 'static>(
    config: Config,
    f: impl FnOnce(&SimPlatform) -> T + Send + 'static,
) -> T {
    let mut world = World::new(1, cable());
    let host = add(&mut world, "host-a", config, &ENDS);
    let task = world.spawn(host, "driver", f);
    let result = world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
    world.check_leaks(host);
    result
}

fn profile(interrupts: Interrupts) -> Profile {
    Profile {
        interrupts,
        ..Profile::SMALL
    }
}

fn close(hca: Hca<'_, SimPlatform>) {
    hca.close().map_err(|(_, error)| error).unwrap();
}

// Bring-up.

#[test]
fn the_hca_comes_up_by_messages_by_the_pin_or_polled_and_leaves_nothing_behind() {
    let without = Config {
        msix: false,
        ..card(1)
    };
    for (config, wanted, got) in [
        (card(1), Interrupts::Messages, Interrupts::Messages),
        (card(1), Interrupts::Pin, Interrupts::Pin),
        (without, Interrupts::Messages, Interrupts::Pin),
        (card(1), Interrupts::None, Interrupts::None),
    ] {
        let how = alone(config, move |machine| {
            let hca = Hca::open(machine, &NoWake, &profile(wanted)).unwrap();
            let attr = hca.query_device();
            assert_eq!(attr.node_guid, Guid(0x0002_c900_0000_0100));
            assert_eq!((attr.port_count, attr.fw_version), (2, firmware()));
            // A command by whatever tells of its end.
            let pd = hca.alloc_pd().unwrap();
            hca.dealloc_pd(pd).unwrap();
            let how = hca.interrupts();
            close(hca);
            how
        });
        assert_eq!(how, got);
    }
}

#[test]
fn an_hca_that_is_closed_can_be_opened_again() {
    alone(card(1), |machine| {
        for _ in 0..3 {
            close(Hca::open(machine, &NoWake, &Profile::SMALL).unwrap());
        }
    });
}

#[test]
fn an_hca_with_hidden_memory_comes_up_and_works() {
    if super::VARIANT != Variant::Tavor {
        return; // there is none to hide
    }
    let hidden = Config {
        hidden_ddr: true,
        ..card(1)
    };
    alone(hidden, |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SERVER).unwrap();
        exchange(machine, &hca);
        close(hca);
    });
}

#[test]
fn an_mt25208_with_compatible_firmware_comes_up_and_works() {
    let compatible = Config::of(Variant::ArbelCompat, Guid(0x0002_c900_0000_0100));
    alone(compatible, |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        assert_eq!(hca.query_device().fw_version, [4, 8, 200]);
        exchange(machine, &hca);
        close(hca);
    });
}

#[test]
fn slow_firmware_and_a_slow_reset_are_waited_for() {
    let slow = Config {
        command_time: Duration::from_millis(30),
        reset_time: Duration::from_millis(2500),
        ..card(1)
    };
    alone(slow, |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        exchange(machine, &hca);
        close(hca);
    });
}

#[test]
fn the_driver_fits_a_kernel_stack() {
    // Unoptimised frames are several times those of a release build, for which the budget of a world is 16 KiB.
    let budget = if cfg!(debug_assertions) {
        64 << 10
    } else {
        16 << 10
    };
    let config = WorldConfig {
        stack_budget: Some(budget),
        ..WorldConfig::default()
    };
    let mut world = World::with(config, cable());
    let host = add(&mut world, "host-a", card(1), &ENDS);
    let task = world.spawn(host, "driver", |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        exchange(machine, &hca);
        close(hca);
    });
    world.finish(task).unwrap_or_else(|stuck| panic!("{stuck}"));
}

// Ports, as a subnet manager on the host sets them.

fn smp<D: Device>(hca: &D, port: u8, smp: &Smp) -> Mad {
    let mut request = Mad::ZERO;
    request.set_front(smp).unwrap();
    let mut response = [0; 256];
    let flags = MadFlags::empty();
    let outcome = hca.process_mad(port, flags, None, &request.0, &mut response);
    assert_eq!(outcome, Ok(MadOutcome::Reply));
    Mad(response)
}

fn set_port<D: Device>(hca: &D, port: u8, change: impl FnOnce(&mut PortInfo)) -> MadHeader {
    let modifier = PortInfo::modifier(port);
    let get = Smp::lid_routed(
        Method::GET,
        core_ib::wire::mad::AttributeId::PORT_INFO,
        modifier,
    );
    let mut info: PortInfo = smp(hca, port, &get).get().unwrap();
    info.state = PortState::NO_CHANGE;
    info.phys_state = PortPhysState::NO_CHANGE;
    info.client_reregister = false;
    change(&mut info);
    let mut set = Smp {
        header: MadHeader {
            method: Method::SET,
            ..get.header
        },
        ..get
    };
    set.put(&info).unwrap();
    smp(hca, port, &set).header()
}

/// Waits for the link, then gives the port `lid` and makes it active.
fn activate(machine: &SimPlatform, hca: &Hca<'_, SimPlatform>, port: u8, lid: Lid) {
    while hca.query_port(port).unwrap().state < 2 {
        machine.sleep(Duration::from_millis(1));
    }
    for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
        let header = set_port(hca, port, |info| {
            info.lid = lid;
            info.master_sm_lid = lid;
            info.state = state;
        });
        assert_eq!(header.status.0, 0, "{header:?}");
    }
    assert!(hca.query_port(port).unwrap().is_active());
}

// Traffic.

/// One end of a conversation: a QP with its CQ and a page of memory.
struct End<'h, 'm> {
    hca: &'h Hca<'m, SimPlatform>,
    pd: PdHandle,
    cq: CqHandle,
    qp: QpHandle,
    qpn: Qpn,
    memory: DmaBuf<'m, SimPlatform>,
    mr: Mr,
}

fn caps() -> QpCaps {
    QpCaps {
        max_send_wr: 15,
        max_recv_wr: 15,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 0,
    }
}

impl<'h, 'm> End<'h, 'm> {
    fn new(
        machine: &'m SimPlatform,
        hca: &'h Hca<'m, SimPlatform>,
        service: QpType,
        port: u8,
    ) -> Self {
        Self::at_vector(machine, hca, service, port, 0)
    }

    fn at_vector(
        machine: &'m SimPlatform,
        hca: &'h Hca<'m, SimPlatform>,
        service: QpType,
        port: u8,
        vector: u16,
    ) -> Self {
        let pd = hca.alloc_pd().unwrap();
        let owner = Owner::Kernel;
        let cq_init = CqInit {
            cqe: 63,
            vector,
            owner,
        };
        let cq = hca.create_cq(&cq_init).unwrap().handle;
        let init = QpInit {
            qp_type: service,
            port,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: caps(),
            signaling: Signaling::All,
            owner,
        };
        let qp = hca.create_qp(pd, &init).unwrap();
        let memory = DmaBuf::new(machine, 8192, 4096).unwrap();
        let mr_init = MrInit {
            iova: 0x10_0000,
            length: 8192,
            pages: &[memory.addr(), memory.addr().plus(4096)],
            page_shift: 12,
            access: Access::LOCAL_WRITE,
        };
        // SAFETY: the memory is given back behind the region, and read and written meanwhile as it likes.
        let mr = unsafe { hca.reg_mr(pd, &mr_init) }.unwrap();
        let end = Self {
            hca,
            pd,
            cq,
            qp: qp.handle,
            qpn: qp.qpn,
            memory,
            mr,
        };
        end.ready(service, port);
        end
    }

    fn ready(&self, service: QpType, port: u8) {
        let special = matches!(service, QpType::Smi | QpType::Gsi);
        let init = if special {
            M::PKEY_INDEX | M::QKEY
        } else {
            M::PKEY_INDEX | M::QKEY | M::PORT
        };
        let attr = QpAttr {
            port,
            qkey: if special { QKey::GSI } else { QKEY },
            sq_psn: Psn::new(77),
            ..QpAttr::EMPTY
        };
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ] {
            let attr = QpAttr { state, ..attr };
            self.hca.modify_qp(self.qp, &attr, mask | M::STATE).unwrap();
        }
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: 0x10_0000 + offset,
            length,
            lkey: self.mr.lkey,
        }
    }

    fn post_recv(&self, wr_id: u64, offset: u64, length: u32) {
        let sges = [self.sge(offset, 40), self.sge(offset + 40, length - 40)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.hca.qp(self.qp).unwrap().post_recv(&[wr]).unwrap();
    }

    fn send(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            sges,
            inline: &[],
            flags: SendFlags::SOLICITED,
        };
        self.hca.qp(self.qp).unwrap().post_send(&[wr]).unwrap();
    }

    fn to(&self, attr: &AhAttr, qpn: Qpn, qkey: QKey) -> SendOp {
        SendOp::Datagram {
            ah: self.hca.create_ah(self.pd, attr).unwrap(),
            remote_qpn: qpn,
            remote_qkey: qkey,
            imm: None,
            pkey_index: 0,
        }
    }

    fn poll(&self) -> Option<WorkCompletion> {
        let mut one = [WorkCompletion::EMPTY];
        let count = self.hca.cq(self.cq).unwrap().poll(&mut one).unwrap();
        (count == 1).then_some(one[0])
    }

    /// Polls until there is something.
    fn wait(&self, machine: &SimPlatform) -> WorkCompletion {
        let deadline = machine.now().after(10 * SECOND);
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(machine.now() < deadline, "no completion");
            self.hca.poll_events();
            machine.sleep(Duration::from_micros(20));
        }
    }

    fn end(self) {
        self.hca.destroy_qp(self.qp).unwrap();
        self.hca.dereg_mr(self.mr.handle).unwrap();
        self.hca.destroy_cq(self.cq).unwrap();
        // SAFETY: the region over it is gone.
        self.memory.free(unsafe { LetGo::claim() });
    }

    /// The PD, once the handles in it are gone.
    fn end_with(self, ahs: &[SendOp]) {
        for op in ahs {
            if let SendOp::Datagram { ah, .. } = op {
                self.hca.destroy_ah(*ah).unwrap();
            }
        }
        let (hca, pd) = (self.hca, self.pd);
        self.end();
        hca.dealloc_pd(pd).unwrap();
    }
}

fn address(port: u8, dlid: Lid) -> AhAttr {
    AhAttr {
        port,
        dlid,
        ..AhAttr::default()
    }
}

/// QP0 of both ports, which brings them up, and the ports themselves made active with LIDs 1 and 2.
struct Active<'h, 'm>([End<'h, 'm>; 2]);

impl<'h, 'm> Active<'h, 'm> {
    fn new(machine: &'m SimPlatform, hca: &'h Hca<'m, SimPlatform>) -> Self {
        let smis = [1, 2].map(|port| End::new(machine, hca, QpType::Smi, port));
        for port in [1, 2] {
            activate(machine, hca, port, Lid(port.into()));
        }
        Self(smis)
    }

    fn end(self) {
        self.0.into_iter().for_each(|smi| smi.end_with(&[]));
    }
}

fn gid_of(hca: &Hca<'_, SimPlatform>, port: u8) -> Gid {
    hca.query_gid(port, 0).unwrap()
}

/// Datagrams between QPs of one HCA whose ports are connected: to its own port, and over the cable.
fn exchange<'m>(machine: &'m SimPlatform, hca: &Hca<'m, SimPlatform>) {
    let active = Active::new(machine, hca);
    let [a, b, c] = [1, 1, 2].map(|port| End::new(machine, hca, QpType::Ud, port));
    for (to, dlid) in [(&b, Lid(1)), (&c, Lid(2))] {
        let op = a.to(&address(1, dlid), to.qpn, QKEY);
        to.post_recv(1, 0, 2048);
        a.memory.copy_in(4096, b"hello").unwrap();
        a.send(2, op, &[a.sge(4096, 5)]);
        let sent = a.wait(machine);
        let expected = (2, WcStatus::Success, WcOpcode::Send, a.qpn);
        assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.qpn), expected);
        let got = to.wait(machine);
        let expected = (1, WcStatus::Success, WcOpcode::Recv, to.qpn);
        assert_eq!((got.wr_id, got.status, got.opcode, got.qpn), expected);
        let expected = (45, a.qpn, Lid(1), WcFlags::empty());
        assert_eq!((got.byte_len, got.src_qp, got.slid, got.flags), expected);
        let mut text = [0; 5];
        to.memory.copy_out(40, &mut text).unwrap();
        assert_eq!(&text, b"hello");
        let SendOp::Datagram { ah, .. } = op else {
            panic!("{op:?}")
        };
        hca.destroy_ah(ah).unwrap();
    }
    [a, b, c].into_iter().for_each(|end| end.end_with(&[]));
    active.end();
    assert_eq!(hca.strays(), mthca_hw::StrayCounts::default());
}

#[test]
fn datagrams_reach_qps_of_the_same_port_and_of_the_other_end_of_the_cable() {
    for interrupts in [Interrupts::Messages, Interrupts::Pin, Interrupts::None] {
        alone(card(1), move |machine| {
            let hca = Hca::open(machine, &NoWake, &profile(interrupts)).unwrap();
            exchange(machine, &hca);
            close(hca);
        });
    }
}

/// Wakes a context.
struct Doorbell(SimCompletion);

impl Wake for Doorbell {
    fn wake(&self) {
        self.0.fire();
    }
}

impl Doorbell {
    fn new(machine: &SimPlatform) -> Self {
        Self(machine.completion().unwrap())
    }

    /// Waits until `ready` says so, looking whenever something woke us.
    fn until(&self, machine: &SimPlatform, mut ready: impl FnMut() -> bool) {
        let deadline = machine.now().after(SECOND);
        while !ready() {
            let woken = self.0.wait_until(deadline);
            assert!(woken || ready(), "nobody woke us within a second");
        }
    }
}

#[test]
fn an_armed_cq_fires_once_and_wakes() {
    for interrupts in [Interrupts::Messages, Interrupts::Pin] {
        alone(card(1), move |machine| {
            let bell = Doorbell::new(machine);
            let hca = Hca::open(machine, &bell, &profile(interrupts)).unwrap();
            let active = Active::new(machine, &hca);
            let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
            let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
            let cq = hca.cq(b.cq).unwrap();
            for round in 0..20 {
                cq.req_notify(NotifyKind::Any).unwrap();
                assert!(b.poll().is_none());
                b.post_recv(round, 0, 2048);
                a.send(round, op, &[]);
                bell.until(machine, || hca.take_cq_event(b.cq));
                assert_eq!(b.poll().unwrap().wr_id, round);
                assert!(!hca.take_cq_event(b.cq), "once");
                assert_eq!(a.wait(machine).wr_id, round);
            }
            drop(cq);
            a.end_with(&[op]);
            b.end_with(&[]);
            active.end();
            close(hca);
        });
    }
}

#[test]
fn a_cq_of_any_vector_fires_and_those_of_the_others_do_not() {
    for interrupts in [Interrupts::Messages, Interrupts::Pin, Interrupts::None] {
        alone(card(1), move |machine| {
            let profile = Profile {
                completion_vectors: 4,
                ..profile(interrupts)
            };
            let bell = Doorbell::new(machine);
            let hca = Hca::open(machine, &bell, &profile).unwrap();
            let messages = [0, 1, 2, 3, 4].map(|vector| hca.message_of(vector));
            let expected = match interrupts {
                Interrupts::Messages => [Some(0), Some(3), Some(4), Some(5), None],
                _ => [None; 5],
            };
            assert_eq!(messages, expected);
            let active = Active::new(machine, &hca);
            let a = End::new(machine, &hca, QpType::Ud, 1);
            let ends =
                [0, 1, 2, 3].map(|vector| End::at_vector(machine, &hca, QpType::Ud, 2, vector));
            for end in &ends {
                hca.cq(end.cq).unwrap().req_notify(NotifyKind::Any).unwrap();
            }
            for (wr_id, b) in (0..).zip(&ends) {
                let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
                b.post_recv(wr_id, 0, 2048);
                a.send(wr_id, op, &[]);
                let ready = || {
                    if interrupts == Interrupts::None {
                        hca.poll_events();
                        machine.sleep(Duration::from_micros(50));
                    }
                    hca.take_cq_event(b.cq)
                };
                if interrupts == Interrupts::None {
                    assert!((0..1000).any(|_| ready()), "nothing was told");
                } else {
                    bell.until(machine, ready);
                }
                assert_eq!(b.poll().unwrap().wr_id, wr_id);
                assert_eq!(a.wait(machine).wr_id, wr_id);
                for other in &ends {
                    assert!(!hca.take_cq_event(other.cq), "once, and nobody else");
                }
                if let SendOp::Datagram { ah, .. } = op {
                    hca.destroy_ah(ah).unwrap();
                }
            }
            a.end_with(&[]);
            ends.into_iter().for_each(|end| end.end_with(&[]));
            active.end();
            close(hca);
        });
    }
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_message() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
        hca.cq(b.cq)
            .unwrap()
            .req_notify(NotifyKind::Solicited)
            .unwrap();
        for (flags, fires) in [(SendFlags::empty(), false), (SendFlags::SOLICITED, true)] {
            b.post_recv(1, 0, 2048);
            let wr = SendWr {
                wr_id: 1,
                op,
                sges: &[],
                inline: &[],
                flags,
            };
            hca.qp(a.qp).unwrap().post_send(&[wr]).unwrap();
            b.wait(machine);
            machine.sleep(Duration::from_millis(1));
            assert_eq!(hca.take_cq_event(b.cq), fires);
        }
        a.end_with(&[op]);
        b.end_with(&[]);
        active.end();
        close(hca);
    });
}

#[test]
fn a_port_that_changes_says_so_in_order() {
    alone(card(1), |machine| {
        let bell = Doorbell::new(machine);
        let hca = Hca::open(machine, &bell, &Profile::SMALL).unwrap();
        let smis = [1, 2].map(|port| End::new(machine, &hca, QpType::Smi, port));
        activate(machine, &hca, 1, Lid(5));
        let mut events = Vec::new();
        bell.until(machine, || {
            while let Some(AsyncEvent::Port(port, event)) = hca.next_async_event() {
                events.push((port, event));
            }
            events.contains(&(1, PortEvent::Active))
        });
        let expected = [PortEvent::LidChange, PortEvent::SmChange, PortEvent::Active];
        assert_eq!(events, expected.map(|event| (1, event)));
        assert_eq!(hca.query_port(1).unwrap().lid, Lid(5));
        // The same once more is no change; a prefix and a wish to register anew are.
        set_port(&hca, 1, |info| {
            info.gid_prefix = 0xfec0_0000_0000_0001;
            info.client_reregister = true;
        });
        let mut more = core::iter::from_fn(|| hca.next_async_event());
        let port = |event| Some(AsyncEvent::Port(1, event));
        assert_eq!(more.next(), port(PortEvent::GidChange));
        assert_eq!(more.next(), port(PortEvent::ClientReregister));
        assert_eq!(more.next(), None);
        assert_eq!(gid_of(&hca, 1).prefix(), 0xfec0_0000_0000_0001);
        // The other end goes, and so does the link.
        let [one, two] = smis;
        two.end_with(&[]);
        bell.until(machine, || {
            matches!(
                hca.next_async_event(),
                Some(AsyncEvent::Port(1, PortEvent::Error))
            )
        });
        one.end_with(&[]);
        close(hca);
    });
}

#[test]
fn a_mad_goes_from_qp1_to_qp1_with_and_without_a_grh() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Gsi, port));
        let route = GlobalRoute {
            dgid: gid_of(&hca, 2),
            hop_limit: 1,
            ..GlobalRoute::default()
        };
        for (grh, flags) in [(None, WcFlags::empty()), (Some(route), WcFlags::GRH)] {
            let attr = AhAttr {
                grh,
                ..address(1, Lid(2))
            };
            let op = a.to(&attr, Qpn::GSI, QKey::GSI);
            b.post_recv(8, 0, 296);
            a.memory.fill(4096, 256, 0x5a).unwrap();
            a.send(7, op, &[a.sge(4096, 100), a.sge(4196, 156)]);
            let sent = a.wait(machine);
            assert_eq!(
                (sent.wr_id, sent.status, sent.qpn),
                (7, WcStatus::Success, Qpn::GSI)
            );
            let got = b.wait(machine);
            assert_eq!(
                (got.status, got.byte_len, got.flags),
                (WcStatus::Success, 296, flags)
            );
            assert_eq!(
                (got.src_qp, got.slid, got.pkey_index),
                (Qpn::GSI, Lid(1), 0)
            );
            let mut mad = [0; 256];
            b.memory.copy_out(40, &mut mad).unwrap();
            assert_eq!(mad, [0x5a; 256]);
            if grh.is_some() {
                let mut gids = [0; 32];
                b.memory.copy_out(8, &mut gids).unwrap();
                assert_eq!(gids[..16], gid_of(&hca, 1).0);
                assert_eq!(gids[16..], route.dgid.0);
            }
            let SendOp::Datagram { ah, .. } = op else {
                panic!("{op:?}")
            };
            hca.destroy_ah(ah).unwrap();
        }
        [a, b].into_iter().for_each(|end| end.end_with(&[]));
        active.end();
        close(hca);
    });
}

#[test]
fn an_smp_reaches_the_neighbour_before_anybody_has_a_lid() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Smi, port));
        while hca.query_port(1).unwrap().state < 2 {
            machine.sleep(Duration::from_millis(1));
        }
        let op = a.to(&address(1, Lid::PERMISSIVE), Qpn::SMI, QKey(0));
        b.post_recv(8, 0, 296);
        a.memory.fill(4096, 256, 0x81).unwrap();
        a.send(7, op, &[a.sge(4096, 256)]);
        assert_eq!(a.wait(machine).status, WcStatus::Success);
        let got = b.wait(machine);
        assert_eq!(
            (got.byte_len, got.src_qp, got.qpn),
            (296, Qpn::SMI, Qpn::SMI)
        );
        assert_eq!(got.slid, Lid::PERMISSIVE);
        a.end_with(&[op]);
        b.end_with(&[]);
        close(hca);
    });
}

// Errors. verbs 6, 9.3.

#[test]
fn a_send_that_may_not_read_its_memory_fails_and_the_queue_can_be_started_again() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
        let good = [a.sge(0, 5)];
        let bad = [Sge {
            lkey: LKey(0x00ff_0001),
            ..good[0]
        }];
        let wr = |wr_id, sges| SendWr {
            wr_id,
            op,
            sges,
            inline: &[],
            flags: SendFlags::empty(),
        };
        let list = [wr(1, &good), wr(2, &bad), wr(3, &good), wr(4, &good)];
        let qp = hca.qp(a.qp).unwrap();
        qp.post_send(&list).unwrap();
        drop(qp);
        let all: Vec<_> = (0..4)
            .map(|_| a.wait(machine))
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let flushed = WcStatus::Flushed;
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::LocalProtection),
            (3, flushed),
            (4, flushed),
        ];
        assert_eq!(all, expected);
        assert_eq!(hca.query_qp(a.qp).unwrap().state, QpState::Sqe);
        // Posted in SQE: flushed, too.
        a.send(5, op, &good);
        let late = a.wait(machine);
        assert_eq!((late.wr_id, late.status), (5, flushed));
        let attr = QpAttr {
            state: QpState::Rts,
            cur_state: QpState::Sqe,
            ..QpAttr::EMPTY
        };
        hca.modify_qp(a.qp, &attr, M::STATE | M::CUR_STATE).unwrap();
        b.post_recv(9, 0, 2048);
        a.send(6, op, &good);
        let again = a.wait(machine);
        assert_eq!((again.wr_id, again.status), (6, WcStatus::Success));
        assert_eq!(b.wait(machine).wr_id, 9);
        assert_eq!(hca.strays(), mthca_hw::StrayCounts::default());
        a.end_with(&[op]);
        b.end_with(&[]);
        active.end();
        close(hca);
    });
}

#[test]
fn a_message_longer_than_the_buffer_ends_the_receiver_and_all_its_receives() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
        (0..5).for_each(|wr_id| b.post_recv(wr_id, 0, 100));
        a.send(1, op, &[a.sge(0, 100)]);
        a.wait(machine);
        let all: Vec<_> = (0..5)
            .map(|_| b.wait(machine))
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let flushed = WcStatus::Flushed;
        let expected = [
            (0, WcStatus::LocalLength),
            (1, flushed),
            (2, flushed),
            (3, flushed),
            (4, flushed),
        ];
        assert_eq!(all, expected);
        assert_eq!(hca.query_qp(b.qp).unwrap().state, QpState::Error);
        b.post_recv(7, 0, 100);
        let late = b.wait(machine);
        assert_eq!((late.wr_id, late.status), (7, flushed));
        a.end_with(&[op]);
        b.end_with(&[]);
        active.end();
        close(hca);
    });
}

#[test]
fn a_datagram_with_the_wrong_qkey_is_dropped_and_nobody_is_told() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let wrong = a.to(&address(1, Lid(2)), b.qpn, QKey(0x4321));
        let own = a.to(&address(1, Lid(2)), b.qpn, QKey(QKey::CONTROLLED));
        b.post_recv(9, 0, 2048);
        a.send(1, wrong, &[]);
        assert_eq!(a.wait(machine).status, WcStatus::Success);
        machine.sleep(Duration::from_millis(1));
        assert!(b.poll().is_none());
        assert_eq!(hca.query_port(2).unwrap().qkey_violation_counter, 1);
        a.send(2, own, &[]);
        assert_eq!(b.wait(machine).wr_id, 9, "bit 31: the QP's own");
        a.wait(machine);
        a.end_with(&[wrong, own]);
        b.end_with(&[]);
        active.end();
        close(hca);
    });
}

#[test]
fn requests_outstanding_are_flushed_by_error_and_forgotten_by_reset() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let end = End::new(machine, &hca, QpType::Ud, 1);
        let to = |state| {
            let attr = QpAttr {
                state,
                ..QpAttr::EMPTY
            };
            hca.modify_qp(end.qp, &attr, M::STATE).unwrap();
        };
        (0..9).for_each(|wr_id| end.post_recv(wr_id, 0, 100));
        to(QpState::Error);
        for wr_id in 0..9 {
            let wc = end.wait(machine);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Flushed));
        }
        to(QpState::Reset);
        end.ready(QpType::Ud, 1);
        (0..9).for_each(|wr_id| end.post_recv(wr_id, 0, 100));
        to(QpState::Reset);
        machine.sleep(Duration::from_millis(1));
        assert!(end.poll().is_none());
        end.ready(QpType::Ud, 1);
        (0..15).for_each(|wr_id| end.post_recv(wr_id, 0, 100));
        end.end_with(&[]);
        close(hca);
    });
}

#[test]
fn every_copy_of_a_multicast_reaches_its_member_and_the_sender_too_if_it_is_one() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let ends = [1, 2, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let mlid = Lid(0xc005);
        // Sixteen buckets: these groups share some, and chains are walked.
        let groups: Vec<Gid> = (0..24)
            .map(|n| {
                let mut gid = [0; 16];
                (gid[0], gid[1], gid[15]) = (0xff, 0x12, n);
                Gid(gid)
            })
            .collect();
        for (n, group) in groups.iter().enumerate() {
            let end = &ends[n % 3];
            assert_eq!(hca.attach_mcast(end.qp, *group, mlid), Ok(()));
            assert_eq!(
                hca.attach_mcast(end.qp, *group, mlid),
                Ok(()),
                "twice is once"
            );
        }
        let ours = groups[5];
        for end in &ends {
            hca.attach_mcast(end.qp, ours, mlid).unwrap();
        }
        let attr = AhAttr {
            grh: Some(GlobalRoute {
                dgid: ours,
                ..GlobalRoute::default()
            }),
            ..address(1, mlid)
        };
        let [a, b, c] = &ends;
        let op = a.to(&attr, Qpn::MULTICAST, QKEY);
        ends.iter().for_each(|end| end.post_recv(3, 0, 2048));
        a.send(4, op, &[a.sge(4096, 10)]);
        let mut own = [a.wait(machine).wr_id, a.wait(machine).wr_id];
        own.sort_unstable();
        assert_eq!(own, [3, 4], "its own copy, and the send");
        for end in [b, c] {
            let wc = end.wait(machine);
            assert_eq!((wc.byte_len, wc.flags), (50, WcFlags::GRH));
        }
        let busy = hca.destroy_qp(b.qp);
        assert!(
            matches!(busy, Err(VerbsError::Busy { object: "QP", .. })),
            "{busy:?}"
        );
        for end in &ends {
            for group in &groups {
                let _ = hca.detach_mcast(end.qp, *group, mlid);
            }
            let twice = hca.detach_mcast(end.qp, ours, mlid);
            assert!(
                matches!(twice, Err(VerbsError::InvalidAttr { .. })),
                "{twice:?}"
            );
        }
        // With the table empty again, as many groups as it has buckets find room.
        for group in &groups[..16] {
            hca.attach_mcast(a.qp, *group, mlid).unwrap();
            hca.detach_mcast(a.qp, *group, mlid).unwrap();
        }
        let [a, b, c] = ends;
        a.end_with(&[op]);
        b.end_with(&[]);
        c.end_with(&[]);
        active.end();
        close(hca);
    });
}

#[test]
fn a_cq_is_resized_both_ways_while_traffic_runs_and_nothing_is_lost() {
    alone(card(1), |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let active = Active::new(machine, &hca);
        let [a, b] = [1, 2].map(|port| End::new(machine, &hca, QpType::Ud, port));
        let op = a.to(&address(1, Lid(2)), b.qpn, QKEY);
        let mut expected = 0;
        for (round, cqe) in [200, 20, 500, 31, 63, 15].into_iter().enumerate() {
            for wr_id in 0..12 {
                b.post_recv(round as u64 * 12 + wr_id, 0, 2048);
            }
            for _ in 0..10 {
                a.send(0, op, &[]);
                a.wait(machine);
            }
            // Some are waiting, some are on their way.
            b.wait(machine);
            b.wait(machine);
            let size = hca.resize_cq(b.cq, cqe).unwrap();
            assert!(size >= cqe);
            for _ in 0..2 {
                a.send(0, op, &[]);
                a.wait(machine);
            }
            let _ = expected;
            expected += 12;
            let mut last = Vec::new();
            while last.len() < 10 {
                last.push(b.wait(machine).wr_id);
            }
            let first = round as u64 * 12 + 2;
            assert_eq!(last, (first..first + 10).collect::<Vec<_>>());
        }
        b.post_recv(0, 0, 100);
        (0..12).for_each(|wr_id| b.post_recv(wr_id, 0, 2048));
        for _ in 0..13 {
            a.send(0, op, &[]);
            a.wait(machine);
        }
        machine.sleep(Duration::from_millis(1));
        let too_small = hca.resize_cq(b.cq, 3);
        assert!(
            matches!(too_small, Err(VerbsError::InvalidAttr { .. })),
            "{too_small:?}"
        );
        assert_eq!(
            (0..13)
                .map(|_| b.wait(machine).status)
                .filter(|s| *s == WcStatus::Success)
                .count(),
            13
        );
        a.end_with(&[op]);
        b.end_with(&[]);
        active.end();
        close(hca);
    });
}
