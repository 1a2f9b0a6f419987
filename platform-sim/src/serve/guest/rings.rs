//! Work queues as the guest fills them, in the manner of drivers: rings in host memory, chains of WQEs, doorbells and
//! their records. infinihost 2.8 to 2.10, 5.

use super::forms::{
    self, ALL, BUFFER, Card, DATA, PAGES_VA, Q_KEY, QPS, Qp, REGION, Record, STRIDE, UAR, WINDOW,
    WQES, queue_at,
};
use super::machine::Machine;
use super::program::Script;
use hca_abi::infinihost::doorbell::{
    CqCommand, CqDoorbell, EqCommand, EqDoorbell, MArm, MCqDoorbell, MSendDoorbell,
    ReceiveDoorbell, SendDoorbell,
};
use hca_abi::infinihost::qp::ServiceType;
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::{
    AtomicSegment, BindSegment, DataSegment, INLINE, MUdTail, NextSegment, RemoteAddressSegment,
    UdSegment, WqeOpcode, next,
};
use zerocopy::IntoBytes;

/// Registers that QUERY_FW tells.
const EQ_ARM: u64 = 0xf_0200;
const EQ_SET_CI: u64 = 0xf_0400;

/// How far the guest has come with each queue.
pub struct Rings {
    card: Card,
    sent: [u64; QPS.len()],
    received: [u64; QPS.len()],
    shared: u64,
    /// Of arming CQs.
    sequence: u8,
}

/// Where the guest may have data.
fn data(card: Card, script: &mut Script<'_>) -> DataSegment {
    let len = u32::from(script.word());
    let segment = |len, key, at| DataSegment::new(len, card.key(key), at);
    match script.byte() & 7 {
        0 => segment(len & 0xfff, REGION, PAGES_VA + u64::from(len & 0x3)),
        1 => segment(len, ALL, DATA),
        2 => segment(len & 0xff, WINDOW, PAGES_VA),
        3 => DataSegment::END_OF_LIST,
        _ => segment(len & 0x7ff, ALL, DATA),
    }
}

/// What stands between the control segment and the data of a send WQE.
fn transport(card: Card, qp: &Qp, opcode: WqeOpcode, script: &mut Script<'_>) -> Vec<u8> {
    let mut remote = RemoteAddressSegment::ZERO;
    remote
        .set_rkey(card.key(forms::pick(&[REGION, REGION, ALL, WINDOW], script.byte())))
        .set_address(PAGES_VA + u64::from(script.byte()) * 8);
    match opcode {
        _ if qp.service == ServiceType::MLX => {
            let at = forms::HEADERS[usize::from(qp.qpn != QPS[6].qpn)];
            let key = card.key(ALL);
            let header = DataSegment::new(forms::HEADER, key, at);
            [header, DataSegment::new(256, key, DATA)].as_bytes().into()
        }
        _ if qp.service == ServiceType::UD && card.memfree => {
            let mut tail = MUdTail::ZERO;
            tail.set_dest_qpn(qp.peer).set_q_key(Q_KEY);
            [card.av(qp).as_bytes(), tail.as_bytes()].concat()
        }
        _ if qp.service == ServiceType::UD => {
            let mut ud = UdSegment::ZERO;
            ud.set_lkey(ALL)
                .set_av_address(card.av_at(qp))
                .set_dest_qpn(qp.peer)
                .set_q_key(Q_KEY);
            ud.as_bytes().into()
        }
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM | WqeOpcode::RDMA_READ => {
            remote.as_bytes().into()
        }
        WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => {
            let mut atomic = AtomicSegment::ZERO;
            atomic.set_swap_add(7).set_compare(script.byte().into());
            [remote.as_bytes(), atomic.as_bytes()].concat()
        }
        WqeOpcode::BIND => {
            let mut bind = BindSegment::ZERO;
            bind.set_remote_read(true)
                .set_remote_write(true)
                .set_rkey(card.key(WINDOW))
                .set_lkey(card.key(REGION))
                .set_start(PAGES_VA)
                .set_length(0x100);
            bind.as_bytes().into()
        }
        _ => Vec::new(),
    }
}

impl Rings {
    /// Nothing is posted.
    pub fn new(card: Card) -> Self {
        Self {
            card,
            sent: Default::default(),
            received: Default::default(),
            shared: 0,
            sequence: 0,
        }
    }

    /// Writes the counter of a doorbell record.
    fn record(machine: &Machine, script: &mut Script<'_>, record: Record, counter: u64) {
        let mut bytes = (counter as u32).to_be_bytes();
        script.edit(&mut bytes);
        machine.write(record.at(), &bytes);
    }

    fn ring(machine: &mut Machine, script: &mut Script<'_>, register: usize, value: u64) {
        let mut bytes = value.to_be_bytes();
        script.edit(&mut bytes);
        machine.store(2, u64::from(UAR) * 4096 + register as u64, &bytes);
    }

    /// Links WQEs into a send queue and rings.
    pub fn send(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let which = usize::from(script.byte()) % QPS.len();
        let (card, qp) = (self.card, self.card.qp(which as u8));
        let Some(sent) = self.sent.get_mut(which) else {
            return;
        };
        let counter = *sent as u16;
        let how = script.byte();
        let opcodes = [
            WqeOpcode::SEND,
            WqeOpcode::SEND_IMM,
            WqeOpcode::RDMA_WRITE,
            WqeOpcode::RDMA_WRITE_IMM,
            WqeOpcode::RDMA_READ,
            WqeOpcode::ATOMIC_CS,
            WqeOpcode::ATOMIC_FA,
            WqeOpcode::BIND,
            WqeOpcode::NOP,
        ];
        let mut first = None;
        for _ in 0..=how & 3 {
            let opcode = forms::pick(&opcodes, script.byte());
            let mut wqe = transport(card, &qp, opcode, script);
            if how & 0x80 == 0 {
                for _ in 0..=how >> 2 & 3 {
                    wqe.extend(data(card, script).as_bytes());
                }
            } else {
                wqe.extend((INLINE | u32::from(how & 0x7f)).to_be_bytes());
                wqe.resize(
                    (wqe.len() + usize::from(how & 0x7f)).next_multiple_of(16),
                    how,
                );
            }
            let mut control = NextSegment::ZERO;
            control
                .set_always_one(true)
                .set_signaled(how & 0x10 != 0)
                .set_solicited(how & 0x20 != 0)
                .set_immediate(0xcafe_f00d);
            wqe.splice(..0, control.as_bytes().iter().copied());
            wqe.truncate(STRIDE as usize);
            let nds = (wqe.len() / 16) as u8;
            script.edit(&mut wqe);
            let queue = queue_at(qp.qpn) + WQES * STRIDE;
            let at = queue + *sent % WQES * STRIDE;
            machine.write(at, &wqe);
            let before = queue + sent.wrapping_sub(1) % WQES * STRIDE;
            let dbd = if first.is_none() { next::DBD } else { 0 };
            machine.write(before, &(at as u32 | u32::from(opcode.0)).to_be_bytes());
            machine.write(before + 4, &(dbd | u32::from(nds)).to_be_bytes());
            first.get_or_insert(SendDoorbell {
                nda: at as u32,
                fence: how & 0x40 != 0,
                opcode: opcode.0,
                qpn: qp.qpn,
                nds,
            });
            *sent = sent.wrapping_add(1);
        }
        let Some(doorbell) = first else {
            return;
        };
        if !card.memfree {
            return Self::ring(machine, script, uar::SEND, doorbell.encode());
        }
        Self::record(machine, script, Record::Sq(qp.qpn), *sent & 0xffff);
        let doorbell = MSendDoorbell {
            count: 1 + (how & 3),
            counter,
            fence: doorbell.fence,
            opcode: doorbell.opcode,
            qpn: qp.qpn,
            nds: doorbell.nds,
        };
        Self::ring(machine, script, uar::SEND, doorbell.encode());
    }

    /// Links WQEs into a receive queue, or into the SRQ, and rings.
    pub fn receive(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let which = usize::from(script.byte()) % (QPS.len() + 1);
        let (queue, posted, number) = match (QPS.get(which), self.received.get_mut(which)) {
            (Some(qp), Some(received)) => (queue_at(qp.qpn), received, qp.qpn),
            _ => (forms::SRQ_AT, &mut self.shared, forms::SRQ),
        };
        let key = |index| self.card.key(index);
        let nds = if number == forms::SRQ { 0 } else { 4 };
        let how = script.byte();
        let count = 1 + (how & 3);
        let first = queue + *posted % WQES * STRIDE;
        for _ in 0..count {
            let at = queue + *posted % WQES * STRIDE;
            let following = queue + posted.wrapping_add(1) % WQES * STRIDE;
            let mut control = NextSegment::ZERO;
            control.set_nda(following as u32).set_dbd(true);
            let len = u32::from(how >> 2) * 64;
            let pieces = [
                DataSegment::new(len, key(ALL), BUFFER),
                DataSegment::new(len, key(REGION), PAGES_VA),
                DataSegment::END_OF_LIST,
            ];
            let mut wqe = [control.as_bytes(), pieces.as_bytes()].concat();
            script.edit(&mut wqe);
            machine.write(at, &wqe);
            let before = queue + posted.wrapping_sub(1) % WQES * STRIDE;
            machine.write(before + 4, &(next::DBD | 4).to_be_bytes());
            *posted = posted.wrapping_add(1);
        }
        if self.card.memfree {
            let record = if number == forms::SRQ {
                Record::Srq
            } else {
                Record::Rq(number)
            };
            return Self::record(machine, script, record, *posted & 0xffff);
        }
        let doorbell = ReceiveDoorbell {
            nda: first as u32,
            nds,
            number,
            count: count.into(),
        };
        Self::ring(machine, script, uar::RECEIVE, doorbell.encode());
    }

    /// Gives entries of a CQ back, or arms it.
    pub fn complete(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let cqn = forms::pick(&forms::CQS, script.byte());
        let how = script.byte();
        if how & 0x80 != 0 {
            (0..16).for_each(|entry| machine.write(forms::cq_at(cqn) + entry * 32 + 31, &[0x80]));
        }
        if self.card.memfree {
            let count = u64::from(how & 15);
            Self::record(machine, script, Record::SetCi(cqn), count);
            self.sequence = self.sequence.wrapping_add(how >> 6 & 1);
            let doorbell = MCqDoorbell {
                sequence: self.sequence & 3,
                arm: MArm(how >> 4 & 3),
                cqn,
                counter: count as u32,
            };
            Self::record(machine, script, Record::Arm(cqn), count);
            return Self::ring(machine, script, uar::CQ, doorbell.encode());
        }
        let doorbell = CqDoorbell {
            command: CqCommand(how & 7),
            cqn,
            parameter: forms::pick(&[0, 1, 15, CqDoorbell::KNOWN_INDEX], how >> 3),
        };
        Self::ring(machine, script, uar::CQ, doorbell.encode());
    }

    /// The same of an EQ.
    pub fn event(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let eqn = forms::pick(&forms::EQS, script.byte());
        let how = script.byte();
        if how & 0x80 != 0 {
            let at = forms::eq_at(eqn.into());
            (0..16).for_each(|entry| machine.write(at + entry * 32 + 31, &[0x80]));
        }
        if self.card.memfree {
            let at = EQ_SET_CI + u64::from(eqn) * 8;
            machine.store(0, at, &u32::from(how & 31).to_be_bytes());
            return machine.store(0, EQ_ARM + 4, &u32::from(how >> 3).to_be_bytes());
        }
        let doorbell = EqDoorbell {
            command: EqCommand(how & 7),
            eqn,
            parameter: forms::pick(&[0, 1, 15, forms::CQS[0]], how >> 3),
        };
        Self::ring(machine, script, uar::EQ, doorbell.encode());
    }
}
