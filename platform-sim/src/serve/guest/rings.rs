//! Work queues as the guest fills them, in the manner of drivers: rings in host memory, chains of WQEs, doorbells. T-mode;
//! infinihost 2.8, 5.

use super::forms::{self, ALL, AVS, BUFFER, DATA, PAGES_VA, Q_KEY, QPS, Qp, REGION, UAR, WINDOW};
use super::machine::Machine;
use super::program::Script;
use hca_abi::infinihost::doorbell::{
    CqCommand, CqDoorbell, EqCommand, EqDoorbell, ReceiveDoorbell, SendDoorbell,
};
use hca_abi::infinihost::qp::ServiceType;
use hca_abi::infinihost::regs::uar;
use hca_abi::infinihost::wqe::{
    AtomicSegment, BindSegment, DataSegment, INLINE, NextSegment, RemoteAddressSegment, UdSegment,
    WqeOpcode, next,
};
use zerocopy::IntoBytes;

/// Bytes from one WQE to the next.
const STRIDE: u64 = 256;
/// WQEs of one queue.
const WQES: u64 = 8;

/// How far the guest has come with each queue.
#[derive(Default)]
pub struct Rings {
    sent: [u64; QPS.len()],
    received: [u64; QPS.len()],
    shared: u64,
}

/// First byte of a QP's receive queue; the send queue follows.
const fn queue_at(index: usize) -> u64 {
    0x4_0000 + index as u64 * 2 * WQES * STRIDE
}

/// Where the guest may have data.
fn data(script: &mut Script<'_>) -> DataSegment {
    let len = u32::from(script.word());
    match script.byte() & 7 {
        0 => DataSegment::new(len & 0xfff, REGION, PAGES_VA + u64::from(len & 0x3)),
        1 => DataSegment::new(len, ALL, DATA),
        2 => DataSegment::new(len & 0xff, WINDOW, PAGES_VA),
        3 => DataSegment::END_OF_LIST,
        _ => DataSegment::new(len & 0x7ff, ALL, DATA),
    }
}

/// What stands between the control segment and the data of a send WQE.
fn transport(qp: &Qp, opcode: WqeOpcode, script: &mut Script<'_>) -> Vec<u8> {
    let mut remote = RemoteAddressSegment::ZERO;
    remote
        .set_rkey(forms::pick(&[REGION, REGION, ALL, WINDOW], script.byte()))
        .set_address(PAGES_VA + u64::from(script.byte()) * 8);
    match opcode {
        _ if qp.service == ServiceType::MLX => {
            let at = forms::HEADERS[usize::from(qp.qpn != QPS[6].qpn)];
            let header = DataSegment::new(forms::HEADER, ALL, at);
            [header, DataSegment::new(256, ALL, DATA)].as_bytes().into()
        }
        _ if qp.service == ServiceType::UD => {
            let mut ud = UdSegment::ZERO;
            ud.set_lkey(ALL)
                .set_av_address(AVS + u64::from(qp.port & 1) * 32)
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
                .set_rkey(WINDOW)
                .set_lkey(REGION)
                .set_start(PAGES_VA)
                .set_length(0x100);
            bind.as_bytes().into()
        }
        _ => Vec::new(),
    }
}

impl Rings {
    fn ring(machine: &mut Machine, script: &mut Script<'_>, register: usize, value: u64) {
        let mut bytes = value.to_be_bytes();
        script.edit(&mut bytes);
        machine.store(2, u64::from(UAR) * 4096 + register as u64, &bytes);
    }

    /// Links WQEs into a send queue and rings.
    pub fn send(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let which = usize::from(script.byte()) % QPS.len();
        let (Some(qp), Some(sent)) = (QPS.get(which), self.sent.get_mut(which)) else {
            return;
        };
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
            let mut wqe = transport(qp, opcode, script);
            if how & 0x80 == 0 {
                for _ in 0..=how >> 2 & 3 {
                    wqe.extend(data(script).as_bytes());
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
            let queue = queue_at(which) + WQES * STRIDE;
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
        if let Some(doorbell) = first {
            Self::ring(machine, script, uar::SEND, doorbell.encode());
        }
    }

    /// Links WQEs into a receive queue, or into the SRQ, and rings.
    pub fn receive(&mut self, machine: &mut Machine, script: &mut Script<'_>) {
        let which = usize::from(script.byte()) % (QPS.len() + 1);
        let (queue, posted, number) = match (QPS.get(which), self.received.get_mut(which)) {
            (Some(qp), Some(received)) => (queue_at(which), received, qp.qpn),
            _ => (forms::SRQ_AT, &mut self.shared, forms::SRQ),
        };
        let nds = if number == forms::SRQ { 0 } else { 3 };
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
                DataSegment::new(len, ALL, BUFFER),
                DataSegment::new(len, REGION, PAGES_VA),
            ];
            let mut wqe = [control.as_bytes(), pieces.as_bytes()].concat();
            script.edit(&mut wqe);
            machine.write(at, &wqe);
            let before = queue + posted.wrapping_sub(1) % WQES * STRIDE;
            machine.write(before + 4, &(next::DBD | 3).to_be_bytes());
            *posted = posted.wrapping_add(1);
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
    pub fn complete(machine: &mut Machine, script: &mut Script<'_>) {
        let cqn = forms::pick(&forms::CQS, script.byte());
        let how = script.byte();
        if how & 0x80 != 0 {
            (0..16).for_each(|entry| machine.write(forms::cq_at(cqn) + entry * 32 + 31, &[0x80]));
        }
        let doorbell = CqDoorbell {
            command: CqCommand(how & 7),
            cqn,
            parameter: forms::pick(&[0, 1, 15, CqDoorbell::KNOWN_INDEX], how >> 3),
        };
        Self::ring(machine, script, uar::CQ, doorbell.encode());
    }

    /// The same of an EQ.
    pub fn event(machine: &mut Machine, script: &mut Script<'_>) {
        let eqn = forms::pick(&forms::EQS, script.byte());
        let how = script.byte();
        if how & 0x80 != 0 {
            let at = forms::eq_at(eqn.into());
            (0..16).for_each(|entry| machine.write(at + entry * 32 + 31, &[0x80]));
        }
        let doorbell = EqDoorbell {
            command: EqCommand(how & 7),
            eqn,
            parameter: forms::pick(&[0, 1, 15, forms::CQS[0]], how >> 3),
        };
        Self::ring(machine, script, uar::EQ, doorbell.encode());
    }
}
