//! A process with queues of its own on an InfiniHost of either mode: what a user-space driver does, by its memory and its
//! doorbell page alone. infinihost 2.7 to 2.10, 5, 11.

use core_ib::platform::{Caching, DmaAddr, DmaBuf, Platform, Registers};
use core_ib::verbs::{
    Access, AsyncEvent, CqHandle, CqInit, Device, Mr, Owner, QpInfo, QpState, QpType, UserBuffer,
    UserHandle, VerbsError,
};
use hca_abi::infinihost::av::AddressVector;
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::{
    CqCommand, CqDoorbell, DoorbellRecord, MArm, MCqDoorbell, MSendDoorbell, ReceiveDoorbell,
    RecordType, SendDoorbell,
};
use hca_abi::infinihost::pci::BAR_UAR;
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::{DataSegment, MUdTail, NextSegment, UdSegment, WqeOpcode, next};
use openib_tests::conformance::Rig;
use openib_tests::conformance::tools::{
    Buffer, GRH, PATIENCE, QKEY, QUIET, Station, lid, qp_init, wait_for,
};

type Page<R> = <<R as Rig>::Machine as Platform>::Registers;

/// Entries of the CQ, less one.
const MASK: u32 = 15;
/// Requests of either queue: the receive queue has a stride of 64 bytes, the send queue lies behind it with one of 128.
const DEPTH: u32 = 8;
/// Where the send queue begins.
const SENDS: u32 = 64 * DEPTH;
/// The doorbell records of the CQ and of the QP, in a page each: the first of their context, and the last.
const ARM: u32 = 0;
const SEND: u32 = 1;
const LAST_PAGE: u32 = 63 * 512;
const CONSUMER: u32 = LAST_PAGE + 511;
const RECEIVE: u32 = LAST_PAGE + 510;
/// Where the address vector lies in the station's buffer.
const VECTOR: u64 = 0x8000;

/// See the module. What it owns is the station's, which stands for its address space.
struct Process<'r, R: Rig> {
    station: Station<'r, R>,
    user: UserHandle,
    page: Page<R>,
    /// The CQ's entries, and the QP's queues.
    ring: DmaBuf<'r, R::Machine>,
    queues: DmaBuf<'r, R::Machine>,
    /// Doorbell records: the first page of the context, and its last.
    records: [DmaBuf<'r, R::Machine>; 2],
    mem_free: bool,
    regions: [Mr; 2],
    cq: CqHandle,
    cqn: u32,
    qp: QpInfo,
    consumed: u32,
    posted: u32,
    sent: u32,
    sequence: u8,
}

impl<'r, R: Rig> Process<'r, R> {
    fn new(station: Station<'r, R>, mem_free: bool) -> Self {
        let (hca, machine) = (station.hca(), station.machine());
        let user = hca.alloc_user().unwrap();
        let page = map::<R>(&station, user);
        let page_of_memory = |()| DmaBuf::new(machine, 4096, 4096).unwrap();
        let [ring, queues, front, back] = [(); 4].map(page_of_memory);
        for entry in 0..=MASK {
            ring.write_be32(entry as usize * 32 + 28, 0x80).unwrap();
        }
        let register = |memory, access| {
            Buffer::<R::Machine>::register(hca, station.pd, memory, 0, 4096, access).unwrap()
        };
        let regions = [
            register(&ring, Access::LOCAL_WRITE),
            register(&queues, Access::empty()),
        ];
        let pages = if mem_free {
            [front.addr(), back.addr()]
        } else {
            [DmaAddr::new(0); 2]
        };
        let owner = |mr: &Mr, doorbell_indices| {
            Owner::User(UserBuffer {
                context: user,
                lkey: mr.lkey,
                doorbell_pages: pages,
                doorbell_indices,
            })
        };
        let init = CqInit {
            cqe: MASK,
            vector: 0,
            owner: owner(&regions[0], [ARM, CONSUMER]),
        };
        let cq = hca.create_cq(&init).unwrap().handle;
        let mut init = qp_init(QpType::Ud, cq);
        init.owner = owner(&regions[1], [SEND, RECEIVE]);
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (DEPTH, DEPTH);
        (init.caps.max_send_sge, init.caps.max_recv_sge) = (1, 1);
        init.caps.max_inline = 0;
        init.signaling = core_ib::verbs::Signaling::All;
        let qp = station.create(&init);
        station.bring_to(QpType::Ud, qp.handle, QpState::Rts);
        Self {
            user,
            page,
            ring,
            queues,
            records: [front, back],
            mem_free,
            regions,
            cq,
            cqn: hca.cq_number(cq).unwrap(),
            qp,
            consumed: 0,
            posted: 0,
            sent: 0,
            sequence: 1,
            station,
        }
    }

    /// Where record `index` lies.
    fn record(&self, index: u32) -> (&DmaBuf<'r, R::Machine>, usize) {
        let [front, back] = &self.records;
        let page = if index < LAST_PAGE { front } else { back };
        (page, (index % 512) as usize * 8)
    }

    /// Stores a counter, behind what it is about.
    fn count(&self, index: u32, counter: u32) {
        self.station.machine().dma_wmb();
        let (page, at) = self.record(index);
        page.write_be32(at, counter).unwrap();
    }

    fn receive(&mut self, offset: u64, length: u32) {
        let at = 64 * (self.posted % DEPTH);
        let sge = self.station.buffer.sge(offset, length);
        let mut head = NextSegment::ZERO;
        head.set_dbd(true);
        let data = DataSegment::new(sge.length, sge.lkey.0, sge.addr);
        self.queues.write(at as usize, &head).unwrap();
        self.queues.write(at as usize + 16, &data).unwrap();
        if self.mem_free {
            let end = DataSegment::END_OF_LIST;
            self.queues.write(at as usize + 32, &end).unwrap();
            self.posted += 1;
            return self.count(RECEIVE, self.posted & 0xffff);
        }
        let doorbell = ReceiveDoorbell {
            nda: at,
            nds: 2,
            number: self.qp.qpn.get(),
            count: 1,
        };
        self.posted += 1;
        self.ring_through(&self.page, uar::RECEIVE, doorbell.encode());
    }

    /// Sends bytes of the buffer, by the page given.
    fn send_through(&mut self, page: &Page<R>, to: &QpInfo, offset: u64, length: u32) {
        let buffer = &self.station.buffer;
        let mut vector = AddressVector::ZERO;
        vector
            .set_port(1)
            .set_pd(self.station.hca().pd_number(self.station.pd).unwrap())
            .set_dlid(lid(self.station.side.peer()).0)
            .set_message_size(3)
            .set_dgid_last(AddressVector::NO_GRH);
        buffer.memory.write(VECTOR as usize, &vector).unwrap();
        let sge = buffer.sge(offset, length);
        let mut head = NextSegment::ZERO;
        head.set_flags(next::ALWAYS_ONE | next::SIGNALED);
        let data = DataSegment::new(sge.length, sge.lkey.0, sge.addr);
        let at = (SENDS + 128 * (self.sent % DEPTH)) as usize;
        self.queues.write(at, &head).unwrap();
        self.queues.write(at + 64, &data).unwrap();
        if self.mem_free {
            let mut tail = MUdTail::ZERO;
            tail.set_dest_qpn(to.qpn.get()).set_q_key(QKEY.0);
            self.queues.write(at + 16, &vector).unwrap();
            self.queues.write(at + 48, &tail).unwrap();
            let doorbell = MSendDoorbell {
                count: 1,
                counter: self.sent as u16,
                fence: false,
                opcode: WqeOpcode::SEND.0,
                qpn: self.qp.qpn.get(),
                nds: 5,
            };
            self.sent += 1;
            self.count(SEND, self.sent & 0xffff);
            return self.ring_through(page, uar::SEND, doorbell.encode());
        }
        let mut datagram = UdSegment::ZERO;
        datagram
            .set_lkey(buffer.lkey().0)
            .set_av_address(buffer.iova + VECTOR)
            .set_dest_qpn(to.qpn.get())
            .set_q_key(QKEY.0);
        self.queues.write(at + 16, &datagram).unwrap();
        let doorbell = SendDoorbell {
            nda: at as u32,
            fence: false,
            opcode: WqeOpcode::SEND.0,
            qpn: self.qp.qpn.get(),
            nds: 5,
        };
        self.sent += 1;
        self.ring_through(page, uar::SEND, doorbell.encode());
    }

    /// Sends bytes of the buffer, by its own page.
    fn send(&mut self, to: &QpInfo, offset: u64, length: u32) {
        let page = map::<R>(&self.station, self.user);
        self.send_through(&page, to, offset, length);
    }

    fn ring_through(&self, page: &Page<R>, register: usize, doorbell: u64) {
        self.station.machine().dma_wmb();
        page.write_be64(register, doorbell);
    }

    fn arm(&mut self) {
        if self.mem_free {
            let (sequence, counter) = (self.sequence, self.consumed);
            // Told once, so that the next arming is a new one.
            self.sequence = (sequence + 1) & 3;
            let mut record = DoorbellRecord::ZERO;
            record
                .set_counter(counter)
                .set_number(self.cqn)
                .set_record_type(RecordType::CQ_ARM)
                .set_sequence(sequence)
                .set_arm(MArm::ANY);
            let (page, at) = self.record(ARM);
            page.write(at, &record).unwrap();
            let doorbell = MCqDoorbell {
                sequence,
                arm: MArm::ANY,
                cqn: self.cqn,
                counter,
            };
            return self.ring_through(&self.page, uar::CQ, doorbell.encode());
        }
        let doorbell = CqDoorbell {
            command: CqCommand::ARM,
            cqn: self.cqn,
            parameter: CqDoorbell::KNOWN_INDEX,
        };
        self.ring_through(&self.page, uar::CQ, doorbell.encode());
    }

    /// The next completion, as it lies in the process's own memory.
    fn poll(&mut self) -> Option<Cqe> {
        let at = (self.consumed & MASK) as usize * 32;
        let owner = self.ring.read_be32(at + 28).unwrap();
        if owner & 0x80 != 0 {
            return None;
        }
        self.station.machine().dma_rmb();
        let cqe = self.ring.read(at).unwrap();
        self.ring.write_be32(at + 28, 0x80).unwrap();
        self.consumed += 1;
        if self.mem_free {
            self.count(CONSUMER, self.consumed);
            return Some(cqe);
        }
        let doorbell = CqDoorbell {
            command: CqCommand::INCREMENT,
            cqn: self.cqn,
            parameter: 0,
        };
        self.ring_through(&self.page, uar::CQ, doorbell.encode());
        Some(cqe)
    }

    fn completion(&mut self) -> Cqe {
        let mut found = None;
        let machine = self.station.machine();
        wait_for(machine, PATIENCE, || {
            found = self.poll();
            found.is_some()
        });
        let cqe = found.expect("a completion");
        assert!(!cqe.is_error(), "{:?}", cqe.as_error());
        assert_eq!(cqe.qpn() & 0xff_ffff, self.qp.qpn.get());
        cqe
    }

    /// What the kernel does when the process ends.
    fn end(self) {
        let hca = self.station.hca();
        let in_use = hca.dealloc_user(self.user);
        assert!(matches!(in_use, Err(VerbsError::Busy { .. })));
        hca.destroy_qp(self.qp.handle).unwrap();
        hca.destroy_cq(self.cq).unwrap();
        for region in self.regions {
            hca.dereg_mr(region.handle).unwrap();
        }
        assert_eq!(hca.dealloc_user(self.user), Ok(()));
    }
}

/// The doorbell page of a context, as the kernel maps it.
fn map<R: Rig>(station: &Station<'_, R>, user: UserHandle) -> Page<R> {
    let (hca, machine) = (station.hca(), station.machine());
    let [low, high] = [0x18, 0x1c].map(|at| u64::from(machine.config_read32(at)));
    let bar = high << 32 | low & !0xf;
    let at = hca.user_doorbell_page(user).unwrap() - bar;
    machine.map(BAR_UAR, at, 4096, Caching::Uncached).unwrap()
}

/// Data goes both ways; the kernel has no part in it but for the event that the process armed for.
pub fn a_process_sends_receives_polls_and_sleeps_by_its_own_page<R: Rig>(rig: &R, mem_free: bool) {
    let [a, b] = Station::pair(rig);
    let there = b.ud();
    let mut process = Process::new(a, mem_free);
    let hca = process.station.hca();
    for round in 0..40_u8 {
        b.receive(there.handle, 1, &[b.buffer.sge(0, 2048)]);
        process.station.buffer.put(0, &[round; 700]);
        process.send(&there, 0, 700);
        assert!(process.completion().is_send());
        let came = b.success(1);
        assert_eq!((came.src_qp, came.byte_len), (process.qp.qpn, 700 + GRH));
        assert_eq!(b.buffer.bytes(GRH as usize, 700), [round; 700]);

        process.receive(4096, 1024);
        process.arm();
        process.station.machine().sleep(QUIET);
        assert!(!hca.take_cq_event(process.cq), "nothing came yet");
        b.buffer.put(8192, &[!round; 300]);
        let op = b.to(&process.qp);
        b.send(there.handle, 2, op, &[b.buffer.sge(8192, 300)]);
        b.success(2);
        assert!(process.station.fires(process.cq), "the process is woken");
        let got = process.completion();
        assert_eq!((got.is_send(), got.byte_count()), (false, 300 + GRH));
        let text = process.station.buffer.bytes(4096 + GRH as usize, 300);
        assert_eq!(text, [!round; 300]);
    }
    process.end();
}

/// A page rings for the queues of its own context alone, and who tries others hurts nobody.
pub fn a_process_rings_for_nobody_elses_queue<R: Rig>(rig: &R, mem_free: bool) {
    let [a, b] = Station::pair(rig);
    rig.offends();
    let there = b.ud();
    let mut process = Process::new(a, mem_free);
    let hca = process.station.hca();
    let thief = hca.alloc_user().unwrap();
    let page = map::<R>(&process.station, thief);
    b.receive(there.handle, 1, &[b.buffer.sge(0, 2048)]);
    process.send_through(&page, &there, 0, 700);
    b.stays_quiet();
    assert!(process.poll().is_none());
    assert_eq!(hca.check(), Ok(()));
    let fatal = |event: &AsyncEvent| matches!(event, AsyncEvent::DeviceFatal);
    assert!(!process.station.events().iter().any(fatal));
    // In M-mode the doorbell that was dropped has been counted.
    process.sent = 0;
    process.send(&there, 0, 700);
    assert!(process.completion().is_send());
    b.success(1);
}
