//! The send queue of a connection: from a WQE to a request of the engine, from the engine to packets, and back to a
//! completion. infinihost 5.3 to 5.7.

use super::super::flush::Side;
use super::super::qp::Qp;
use super::super::wqe::Wqe;
use super::super::{InfiniHost, wqe::Piece};
use super::{Connected, End, InFlight, Moved};
use crate::machine::Bus;
use crate::transport::{AtomicOp, Failure, MAX_MESSAGE, Request, RequestOp, SendError, Transmit};
use core_ib::RKey;
use core_ib::wire::packet::ImmDt;
use hca_abi::infinihost::cqe::{Cqe, Syndrome};
use hca_abi::infinihost::qp::{QpState, ServiceType};
use hca_abi::infinihost::wqe::{AtomicSegment, NextSegment, RemoteAddressSegment, WqeOpcode};

/// Where the segment of the remote address begins.
const REMOTE: usize = size_of::<NextSegment>();
/// Where the list of data begins, if there is one of those.
const RDMA_DATA: usize = REMOTE + size_of::<RemoteAddressSegment>();
/// Where the one data entry of an atomic is.
const ATOMIC_DATA: usize = RDMA_DATA + size_of::<AtomicSegment>();

/// Where the list of data of a WQE with this opcode begins.
pub fn data_of(opcode: WqeOpcode) -> usize {
    match opcode {
        WqeOpcode::SEND | WqeOpcode::SEND_IMM => REMOTE,
        WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => ATOMIC_DATA,
        _ => RDMA_DATA,
    }
}

/// What a WQE asks for. `reliable`: on an RC queue.
fn parse(qp: &Qp, wqe: &Wqe) -> Result<Request, Failure> {
    const MALFORMED: Failure = Failure::LocalOperation;
    let opcode = wqe.at.opcode;
    let reliable = qp.context.service() == ServiceType::RC;
    let next = wqe.next();
    let imm = ImmDt(next.immediate().to_be_bytes());
    let solicited = next.solicited();
    let remote = || -> Result<(u64, RKey), Failure> {
        let segment: RemoteAddressSegment = wqe.segment(REMOTE).ok_or(MALFORMED)?;
        Ok((segment.address(), RKey(segment.rkey())))
    };
    let mut written = true;
    let op = match opcode {
        WqeOpcode::SEND => RequestOp::Send {
            imm: None,
            solicited,
        },
        WqeOpcode::SEND_IMM => RequestOp::Send {
            imm: Some(imm),
            solicited,
        },
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM => {
            let (va, r_key) = remote()?;
            RequestOp::Write {
                va,
                r_key,
                imm: (opcode == WqeOpcode::RDMA_WRITE_IMM).then_some(imm),
                solicited,
            }
        }
        WqeOpcode::RDMA_READ if reliable && qp.context.sre() => {
            written = false;
            let (va, r_key) = remote()?;
            RequestOp::Read { va, r_key }
        }
        WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA if reliable && qp.context.sae() => {
            written = false;
            let (va, r_key) = remote()?;
            let operands: AtomicSegment = wqe.segment(RDMA_DATA).ok_or(MALFORMED)?;
            let op = match opcode {
                WqeOpcode::ATOMIC_CS => AtomicOp::CompareSwap {
                    compare: operands.compare(),
                    swap: operands.swap_add(),
                },
                _ => AtomicOp::FetchAdd {
                    add: operands.swap_add(),
                },
            };
            RequestOp::Atomic { va, r_key, op }
        }
        _ => return Err(MALFORMED),
    };
    let mut len = 0_u64;
    for piece in wqe.pieces(data_of(opcode)) {
        len += match piece.map_err(|_| MALFORMED)? {
            Piece::Pointer { len, .. } => len as u64,
            Piece::Inline(data) if written => data.len() as u64,
            Piece::Inline(_) => return Err(MALFORMED),
        };
    }
    let most = u64::from(MAX_MESSAGE).min(1 << qp.context.msg_max());
    let len = match op {
        RequestOp::Atomic { .. } if len < 8 => return Err(Failure::LocalLength),
        RequestOp::Atomic { .. } => 8,
        _ if len > most => return Err(Failure::LocalLength),
        _ => len as u32, // at most 2^31
    };
    Ok(Request { op, len })
}

/// What a syndrome of the HCA's own checks means to the engine.
fn failure(syndrome: Syndrome) -> Failure {
    match syndrome {
        Syndrome::LOCAL_LENGTH => Failure::LocalLength,
        Syndrome::LOCAL_PROTECTION => Failure::LocalProtection,
        Syndrome::MW_BIND => Failure::Bind,
        _ => Failure::LocalOperation,
    }
}

impl InfiniHost {
    /// Sends the next packet of QP `qpn`'s requests, or begins a request.
    pub(super) fn request(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
    ) -> Moved {
        let Some(state) = self.qps.get(qpn).map(Qp::state) else {
            return Moved::Idle;
        };
        let sends = matches!(state, QpState::RTS | QpState::SQ_DRAINING);
        if !sends {
            return Moved::Idle;
        }
        if let Some(transmit) = connected.requester.transmit(bus.now()) {
            return self.send_part(bus, qpn, connected, &transmit);
        }
        if state == QpState::RTS && connected.requester.is_open() && !connected.waits {
            return self.begin_request(bus, qpn, connected);
        }
        Moved::Idle
    }

    /// Begins the request at the front of the send queue, if it may.
    fn begin_request(&mut self, bus: &mut dyn Bus, qpn: u32, connected: &mut Connected) -> Moved {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Moved::Idle;
        };
        let Some(at) = qp.sq.begin() else {
            return Moved::Idle;
        };
        let (key, high) = (qp.wqe_key(), qp.context.wqe_base_high());
        let wqe = match Wqe::fetch(&self.chip, bus, key, high, at) {
            Ok(wqe) => wqe,
            Err(error) => {
                bus.report(format_args!("QP {qpn:#x}: send WQE {:#x}: {error}", at.nda));
                connected.ended = Some(End::QueueFailed);
                return Moved::Idle;
            }
        };
        if wqe.next().event() {
            self.chip.ledger.count("WQE: event bit");
        }
        let asked = match at.opcode {
            _ if at.nds == 0 => Err(Failure::LocalOperation),
            WqeOpcode::NOP | WqeOpcode::BIND => Ok(Request {
                op: RequestOp::Local,
                len: 0,
            }),
            _ => parse(qp, &wqe),
        };
        let fence = at.fence && qp.context.service() == ServiceType::RC;
        if let Ok(request) = &asked
            && !connected.requester.may_begin(request, fence)
        {
            connected.waits = true;
            return Moved::Idle;
        }
        let next = wqe.next();
        let rung = !connected.chained;
        connected.chained = next.nds() != 0 && !next.dbd();
        qp.sq.advance(&next);
        let done = match at.opcode {
            WqeOpcode::BIND => self.bind(bus, qpn, &wqe).map_err(failure),
            _ => Ok(()),
        };
        let one = InFlight { wqe, rung };
        match asked.and_then(|request| done.map(|()| request)) {
            Ok(request) => connected.requester.begin(request, one),
            Err(failure) => connected.requester.begin_doomed(failure, one),
        }
        Moved::On
    }

    /// Makes a packet of a request and puts it on the wire.
    fn send_part(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
        transmit: &Transmit,
    ) -> Moved {
        let mut scratch = core::mem::take(&mut self.scratch);
        let moved = self.send_part_in(bus, qpn, connected, transmit, &mut scratch);
        self.scratch = scratch;
        moved
    }

    fn send_part_in(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        connected: &mut Connected,
        transmit: &Transmit,
        scratch: &mut [u8],
    ) -> Moved {
        let packet = &transmit.packet;
        let (Some(qp), Some(one)) = (self.qps.get(qpn), connected.requester.tag(transmit.slot))
        else {
            return Moved::Idle;
        };
        let (port, pd) = (qp.port(), qp.context.pd());
        let Some(state) = self.ports.node.port_mut(port) else {
            return Moved::Idle;
        };
        let connection = qp.connection();
        let headers = connection.headers(state, packet.operation, transmit.psn, packet.extended);
        let mut headers = match headers {
            Ok(headers) => headers,
            Err(SendError::Discard(_)) => {
                state.counts.xmit_discards.bump();
                connected.requester.sent(transmit, bus.now());
                return Moved::On;
            }
            Err(error) => {
                if bus.tracing() {
                    bus.trace(format_args!("QP {qpn:#x}: {error}"));
                }
                connected
                    .requester
                    .fail(transmit.slot, Failure::LocalOperation);
                return Moved::On;
            }
        };
        headers.bth.ack_req = transmit.ack_req;
        headers.bth.solicited = packet.solicited;
        let Ok(mut frame) = headers.frame(packet.len as usize, scratch) else {
            connected
                .requester
                .fail(transmit.slot, Failure::LocalOperation);
            return Moved::On;
        };
        let list = data_of(one.wqe.at.opcode);
        let (skip, room) = (u64::from(packet.offset), frame.payload());
        let gathered = one.wqe.gather_part(&self.chip, bus, pd, list, skip, room);
        if let Err(syndrome) = gathered {
            connected.requester.fail(transmit.slot, failure(syndrome));
            return Moved::On;
        }
        let vl = match self.emit(bus, port, frame.seal()) {
            Ok(()) => {
                connected.requester.sent(transmit, bus.now());
                return Moved::On;
            }
            Err(vl) => vl,
        };
        Moved::Blocked { port, vl }
    }

    /// The completion of a request, if it makes one. infinihost 4.5.1.
    pub(super) fn request_completed(
        &mut self,
        bus: &mut dyn Bus,
        qpn: u32,
        request: &Request,
        wqe: &Wqe,
    ) {
        let signaled = wqe.next().signaled();
        let quiet = |qp: &Qp| !qp.context.all_signaled() && !signaled;
        if self.qps.get(qpn).is_none_or(quiet) {
            return;
        }
        let mut cqe = Cqe::ZERO;
        cqe.set_qpn(qpn)
            .set_wqe_address(wqe.at.nda)
            .set_wqe_size(wqe.at.nds)
            .set_opcode(wqe.at.opcode.0)
            .set_is_send(true);
        if request.brings_data() {
            cqe.set_byte_count(request.len);
        }
        self.complete(bus, qpn, Side::Send, &cqe, false);
    }
}
