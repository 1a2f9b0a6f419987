//! Polling and arming: the data path of a CQ. verbs 5.2 to 5.4, infinihost 4.5.
//!
//! An entry names a QP and a WQE by number. Both are looked up: what names no request outstanding is counted and
//! skipped. In T-mode an error entry stands for a chain of requests; the chain is expanded from what the driver knows
//! of the queue, not from what the HCA could have written over.

use super::ring::{Chain, CqQueue, Entries, OWNED_BY_HW, OWNER_WORD};
use super::{Cq, CqPlace, FIRED};
use crate::bells::Bells;
use crate::event::Strays;
use crate::inner::{Inner, NOBODY};
use crate::qp::{QpPlace, Queue};
use core::sync::atomic::Ordering;
use core_ib::platform::{Platform, RingEntry};
use core_ib::verbs::{
    CompletionQueue, CqHandle, Held, Imm, NotifyKind, VerbsError, WcFlags, WcOpcode, WcStatus,
    WorkCompletion,
};
use core_ib::{Lid, Qpn, Sl};
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::doorbell::{CqCommand, CqDoorbell, MArm, MCqDoorbell};
use hca_abi::infinihost::wqe::WqeOpcode;

/// A resolved CQ.
pub struct CqRef<'a, 'p, P: Platform> {
    core: &'a Inner<'p, P>,
    place: &'a CqPlace<'p, P>,
    held: Held<'a, Cq>,
    handle: CqHandle,
    /// T: the doorbell that arms it for any completion.
    arm: u64,
}

impl<'p, P: Platform> Inner<'p, P> {
    pub(crate) fn cq(&self, handle: CqHandle) -> Result<CqRef<'_, 'p, P>, VerbsError> {
        let held = self.cqs.get(handle)?;
        crate::user::refuse_user("CQ", held.user)?;
        let place = self.cq_places.get(handle.index() as usize);
        Ok(CqRef {
            core: self,
            place: place.ok_or(super::STALE)?,
            arm: arm_doorbell(CqCommand::ARM, held.number),
            held,
            handle,
        })
    }
}

/// T: the doorbell that arms a CQ.
const fn arm_doorbell(command: CqCommand, cqn: u32) -> u64 {
    CqDoorbell {
        command,
        cqn,
        parameter: CqDoorbell::KNOWN_INDEX,
    }
    .encode()
}

impl<P: Platform> CompletionQueue for CqRef<'_, '_, P> {
    #[inline]
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let number = self.held.number;
        Ok(match into {
            [wc] => CqQueue::poll_one(self.core, self.place, number, wc),
            _ => CqQueue::poll(self.core, self.place, number, into),
        })
    }

    #[inline]
    fn req_notify(&self, kind: NotifyKind) -> Result<(), VerbsError> {
        if kind == NotifyKind::Any {
            self.place.armed_any.store(true, Ordering::Relaxed);
        } else if self.place.armed_any.load(Ordering::Relaxed) {
            // Arming for less does not take back arming for more (verbs 5.4), and the HCA would.
            return Ok(());
        }
        match (&self.core.bells, kind) {
            (None, NotifyKind::Any) => self.core.uar.ring_cq(self.arm),
            _ => self.arm_otherwise(kind),
        }
        if !self.core.cmd.health().is_alive() {
            self.arm_by_software();
        }
        Ok(())
    }

    fn handle(&self) -> CqHandle {
        self.handle
    }
}

impl<'p, P: Platform> CqRef<'_, 'p, P> {
    /// For a solicited completion, or in M-mode.
    #[inline(never)]
    fn arm_otherwise(&self, kind: NotifyKind) {
        let (command, arm) = match kind {
            NotifyKind::Any => (CqCommand::ARM, MArm::ANY),
            NotifyKind::Solicited => (CqCommand::ARM_SOLICITED, MArm::SOLICITED),
        };
        match &self.core.bells {
            None => {
                let doorbell = arm_doorbell(command, self.held.number);
                self.core.uar.ring_cq(doorbell);
            }
            Some(bells) => self.arm_by_record(bells, arm),
        }
    }

    /// M: the record says what the doorbell says, and the doorbell that it does. infinihost 2.10, 2.11. Under the lock of
    /// the queue, so that the counter is the right one and two that arm do not mix.
    #[inline]
    fn arm_by_record(&self, bells: &Bells<'p, P>, arm: MArm) {
        let number = self.held.number;
        self.place.queue.with(|queue| {
            let (counter, sequence) = (queue.consumer, self.place.sequence());
            let doorbell = MCqDoorbell {
                sequence,
                arm,
                cqn: number,
                counter,
            };
            bells.set(bells.arm(queue.index), doorbell.record());
            self.core.machine.dma_wmb();
            self.core.uar.arm_cq(doorbell);
        });
    }

    /// The HCA has ended: the CQ fires for what there is.
    #[cold]
    fn arm_by_software(&self) {
        let fired = self.place.ready.fetch_or(FIRED, Ordering::AcqRel);
        if fired & FIRED == 0 {
            self.core.wake.wake();
        }
    }
}

/// An entry.
type CqWords<'q> = RingEntry<'q, { size_of::<Cqe>() / 4 }>;
/// The word that says how many bytes.
const BYTES_WORD: usize = 5;
/// The word that says which WQE.
const WQE_WORD: usize = 6;
/// Of the send queue, in the word of the owner.
const IS_SEND: u32 = 1 << 23;

/// Retires the request whose WQE is at `address`, of one of the queues of `place`, if its completions belong to CQ `cq`.
/// What its poster called it, and its count in its queue, unless that is an SRQ.
#[inline(always)]
fn retire<'p, P: Platform>(
    core: &Inner<'p, P>,
    place: &QpPlace<'p, P>,
    cq: u32,
    send: bool,
    address: u32,
) -> Option<(u64, Option<u32>)> {
    let half = place.half(send);
    if half.cq() != cq {
        return None;
    }
    if !send && place.srq() != NOBODY {
        return Some((core.complete_srq(place.srq(), address)?, None));
    }
    let (counter, wr_id) = half.take(address, &core.records)?;
    Some((wr_id, Some(counter)))
}

/// Makes a completion of a good entry; false if it is about nothing outstanding.
fn complete<'p, P: Platform>(
    core: &Inner<'p, P>,
    place: &QpPlace<'p, P>,
    cq: u32,
    cqe: &Cqe,
    wc: &mut WorkCompletion,
) -> bool {
    let send = cqe.is_send();
    let Some((wr_id, _)) = retire(core, place, cq, send, cqe.wqe_address()) else {
        return false;
    };
    *wc = WorkCompletion {
        wr_id,
        byte_len: cqe.byte_count(),
        qpn: place.wire_qpn(),
        opcode: send_opcode(cqe.opcode()),
        ..WorkCompletion::EMPTY
    };
    if !send {
        note_receive(cqe, place, wc);
    }
    true
}

/// What is next in a CQ.
enum Next {
    /// Nothing.
    Nothing,
    /// A good completion of a request outstanding, which is retired, and the entry given back.
    Good,
    /// Something else, untouched.
    Odd,
}

/// The QP of the completion before, by its number; at first by one that no QP has.
struct Known<'c, 'p, P: Platform> {
    number: u32,
    place: Option<&'c QpPlace<'p, P>>,
}

impl<'p, P: Platform> CqQueue<'p, P> {
    /// Fills `into` from the start; how many. Never blocks, allocates or panics.
    #[inline(never)]
    fn poll(
        core: &Inner<'p, P>,
        place: &CqPlace<'p, P>,
        number: u32,
        into: &mut [WorkCompletion],
    ) -> usize {
        place.queue.with(|queue| {
            let (good, odd) = queue.poll_good(core, number, into);
            if good == into.len() || (!odd && core.cmd.health().is_alive()) {
                return good;
            }
            let rest = into.get_mut(good..).unwrap_or_default();
            good + queue.poll_rest(core, number, rest)
        })
    }

    /// One completion: without all that several need.
    #[inline(never)]
    fn poll_one(
        core: &Inner<'p, P>,
        place: &CqPlace<'p, P>,
        number: u32,
        wc: &mut WorkCompletion,
    ) -> usize {
        place.queue.with(|queue| {
            let ring = queue.entries.as_ref().and_then(Entries::view);
            if let Some(ring) = ring.filter(|_| !queue.is_odd()) {
                let mut known = Known {
                    number: u32::MAX,
                    place: None,
                };
                let consumer = queue.consumer;
                match queue.next_good(core, ring.at(consumer), &mut known, wc) {
                    Next::Good => {
                        queue.consumer = consumer.wrapping_add(1);
                        queue.tell(core, number, 1);
                        return 1;
                    }
                    Next::Nothing if core.cmd.health().is_alive() => return 0,
                    _ => {}
                }
            }
            queue.poll_rest(core, number, core::slice::from_mut(wc))
        })
    }

    /// The completions that a CQ is made for: good ones of requests outstanding. How many, and whether it stopped ahead
    /// of something else.
    #[inline(always)]
    fn poll_good(
        &mut self,
        core: &Inner<'p, P>,
        number: u32,
        into: &mut [WorkCompletion],
    ) -> (usize, bool) {
        if self.is_odd() {
            return (0, true);
        }
        let Some(ring) = self.entries.as_ref().and_then(Entries::view) else {
            return (0, false);
        };
        let mut consumer = self.consumer;
        let mut known = Known {
            number: u32::MAX,
            place: None,
        };
        let mut odd = false;
        for wc in into.iter_mut() {
            match self.next_good(core, ring.at(consumer), &mut known, wc) {
                Next::Good => consumer = consumer.wrapping_add(1),
                Next::Nothing => break,
                Next::Odd => {
                    odd = true;
                    break;
                }
            }
        }
        let good = consumer.wrapping_sub(self.consumer);
        if good > 0 {
            self.consumer = consumer;
            self.tell(core, number, good);
        }
        (good as usize, odd)
    }

    /// Makes a completion of an entry, if it is there and a good one of a request outstanding. What it takes of the entry is
    /// loaded once.
    #[inline(always)]
    fn next_good<'c>(
        &self,
        core: &'c Inner<'p, P>,
        words: CqWords<'_>,
        known: &mut Known<'c, 'p, P>,
        wc: &mut WorkCompletion,
    ) -> Next {
        let last = words.get(OWNER_WORD);
        if last & OWNED_BY_HW != 0 {
            return Next::Nothing;
        }
        core.machine.dma_rmb();
        let opcode = (last >> 24) as u8;
        if opcode & Cqe::ERROR_RECEIVE == Cqe::ERROR_RECEIVE {
            return Next::Odd;
        }
        let qpn = words.get(0);
        if known.number != qpn {
            *known = Known {
                number: qpn,
                place: core.qp_by_number(qpn).map(|(_, place)| place),
            };
        }
        let Some(place) = known.place else {
            return Next::Odd;
        };
        let address = words.get(WQE_WORD) & !0x3f;
        let send = last & IS_SEND != 0;
        let Some((wr_id, _)) = retire(core, place, self.index, send, address) else {
            return Next::Odd;
        };
        *wc = WorkCompletion {
            wr_id,
            byte_len: words.get(BYTES_WORD),
            qpn: place.wire_qpn(),
            opcode: send_opcode(opcode),
            ..WorkCompletion::EMPTY
        };
        if !send {
            note_receive(&words.read(), place, wc);
        }
        Entries::<P>::give_words(words);
        Next::Good
    }

    /// Everything else: errors and what they stand for, entries that name nothing, the middle of a resize, the end.
    #[cold]
    #[inline(never)]
    fn poll_rest(
        &mut self,
        core: &Inner<'p, P>,
        number: u32,
        into: &mut [WorkCompletion],
    ) -> usize {
        let mut filled = 0;
        let mut taken = 0_u32;
        // An HCA that writes nonsense without end is not followed without end.
        let limit = self.capacity().saturating_add(into.len() as u32);
        'fill: for wc in into.iter_mut() {
            if self.chain.is_some() && self.follow(core, wc) {
                filled += 1;
                continue;
            }
            loop {
                if self.by_software || taken > limit {
                    break 'fill;
                }
                let Some(cqe) = self.take() else { break 'fill };
                taken = taken.wrapping_add(1);
                if self.translate(core, &cqe, wc) {
                    break;
                }
                Strays::count(&core.strays.cqe);
            }
            filled += 1;
        }
        if taken != 0 {
            self.tell(core, number, taken);
        }
        if filled < into.len() && !core.cmd.health().is_alive() {
            self.by_software = true;
            let rest = into.get_mut(filled..).unwrap_or_default();
            filled += core.flush(self.index, rest);
        }
        filled
    }

    /// Makes a completion of an entry; false if there is nothing that it could be about.
    fn translate(&mut self, core: &Inner<'p, P>, cqe: &Cqe, wc: &mut WorkCompletion) -> bool {
        if !cqe.is_error() {
            let place = core.qp_by_number(cqe.qpn());
            return place.is_some_and(|(_, place)| complete(core, place, self.index, cqe, wc));
        }
        let error = cqe.as_error();
        let Some((index, place)) = core.qp_by_number(error.qpn()) else {
            return false;
        };
        // Which queue is in the opcode here: infinihost 4.5.2.
        let send = error.opcode() & 1 != 0;
        let retired = retire(core, place, self.index, send, error.wqe_address());
        let Some((wr_id, counter)) = retired else {
            return false;
        };
        *wc = WorkCompletion {
            wr_id,
            status: status(error.syndrome()),
            vendor_error: error.vendor_error(),
            qpn: place.wire_qpn(),
            ..WorkCompletion::EMPTY
        };
        // In M-mode each request has an entry of its own. infinihost 5.8.
        if let Some(counter) = counter.filter(|_| !core.chip.is_mem_free()) {
            self.begin_chain(error, index, send, counter);
        }
        true
    }

    #[cold]
    fn begin_chain(&mut self, cqe: &ErrorCqe, qp: u32, send: bool, last: u32) {
        self.chain = Some(Chain {
            qp,
            send,
            last,
            doorbells: u32::from(cqe.doorbell_count()),
            vendor_error: cqe.vendor_error(),
        });
    }

    /// Makes a completion of the next request of a chain; false if the chain has ended. infinihost 5.8.
    #[cold]
    fn follow(&mut self, core: &Inner<'p, P>, wc: &mut WorkCompletion) -> bool {
        let Some(mut chain) = self.chain.take() else {
            return false;
        };
        let Some(place) = core.qp_places.get(chain.qp as usize) else {
            return false;
        };
        let half = place.half(chain.send);
        let next = chain.last.wrapping_add(1);
        if !half.is_outstanding(next) {
            return false;
        }
        // Every receive waits for its doorbell; of the sends, the first of each call.
        let by_doorbell = !chain.send || half.waits_for_doorbell(next, &core.records);
        if by_doorbell {
            let Some(left) = chain.doorbells.checked_sub(1) else {
                return false;
            };
            chain.doorbells = left;
        }
        *wc = flushed(place, half.retire(next, &core.records));
        wc.vendor_error = chain.vendor_error;
        chain.last = next;
        self.chain = Some(chain);
        true
    }
}

fn flushed<P: Platform>(place: &QpPlace<'_, P>, wr_id: u64) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status: WcStatus::Flushed,
        qpn: place.wire_qpn(),
        ..WorkCompletion::EMPTY
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Completes by software what is outstanding on the queues of CQ `cq`, since the HCA has ended. verbs 13.2. Nothing
    /// comes after it: who posts is either done before it looks, or sees the end.
    #[cold]
    fn flush(&self, cq: u32, into: &mut [WorkCompletion]) -> usize {
        let mut filled = 0;
        let places = self.qp_places.iter().filter(|place| place.number() != 0);
        for (place, send) in places.flat_map(|place| [(place, true), (place, false)]) {
            let half = place.half(send);
            if half.cq() != cq {
                continue;
            }
            // Posting looks for the end, and counts, under this lock: so what it took is counted now, and whoever gets
            // the lock from here on takes nothing.
            if send {
                place.sq.with(|_| ());
            } else {
                place.rq.with(|_| ());
            }
            while let Some(next) = half.oldest() {
                let Some(wc) = into.get_mut(filled) else {
                    return filled;
                };
                *wc = flushed(place, half.retire(next, &self.records));
                filled += 1;
            }
        }
        filled
    }
}

/// The status of a syndrome. verbs 6, infinihost 4.5.2.
const fn status(syndrome: Syndrome) -> WcStatus {
    match syndrome {
        Syndrome::LOCAL_LENGTH => WcStatus::LocalLength,
        Syndrome::LOCAL_QP_OPERATION => WcStatus::LocalQpOperation,
        Syndrome::LOCAL_PROTECTION => WcStatus::LocalProtection,
        Syndrome::FLUSHED => WcStatus::Flushed,
        Syndrome::MW_BIND => WcStatus::MwBind,
        Syndrome::BAD_RESPONSE => WcStatus::BadResponse,
        Syndrome::LOCAL_ACCESS => WcStatus::LocalAccess,
        Syndrome::REMOTE_INVALID_REQUEST => WcStatus::RemoteInvalidRequest,
        Syndrome::REMOTE_ACCESS => WcStatus::RemoteAccess,
        Syndrome::REMOTE_OPERATION => WcStatus::RemoteOperation,
        Syndrome::RETRY_EXCEEDED => WcStatus::RetryExceeded,
        Syndrome::RNR_RETRY_EXCEEDED => WcStatus::RnrRetryExceeded,
        Syndrome(other) => WcStatus::General(other),
    }
}

#[inline]
const fn send_opcode(opcode: u8) -> WcOpcode {
    match WqeOpcode(opcode & 0x1f) {
        WqeOpcode::SEND | WqeOpcode::SEND_IMM => WcOpcode::Send,
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM => WcOpcode::RdmaWrite,
        WqeOpcode::RDMA_READ => WcOpcode::RdmaRead,
        WqeOpcode::ATOMIC_CS => WcOpcode::CompareSwap,
        WqeOpcode::ATOMIC_FA => WcOpcode::FetchAdd,
        WqeOpcode::BIND => WcOpcode::BindMw,
        _ => WcOpcode::Unknown,
    }
}

#[inline]
fn note_receive<P: Platform>(cqe: &Cqe, place: &QpPlace<'_, P>, wc: &mut WorkCompletion) {
    // The low five bits of the last packet's opcode: "with immediate" is odd here. infinihost 4.5.1.
    let (opcode, immediate) = match cqe.opcode() & 0x1f {
        0x03 | 0x05 => (WcOpcode::Recv, true),
        0x09 | 0x0b => (WcOpcode::RecvRdmaWithImm, true),
        _ => (WcOpcode::Recv, false),
    };
    wc.opcode = opcode;
    match place.queue() {
        Queue::Connected => {}
        Queue::Special => {
            // The field is the P_Key index, whatever the opcode says.
            wc.pkey_index = (cqe.immediate() >> 16) as u16;
            note_source(cqe, wc);
            return;
        }
        Queue::Datagram => note_source(cqe, wc),
        Queue::Verified => {
            note_source(cqe, wc);
            wc.flags.set(WcFlags::CHECKSUM_OK, cqe.checksum_ok());
        }
    }
    if immediate {
        wc.flags |= WcFlags::IMM;
        wc.imm = Imm(cqe.immediate().to_be_bytes());
    }
}

#[inline]
fn note_source(cqe: &Cqe, wc: &mut WorkCompletion) {
    wc.flags.set(WcFlags::GRH, cqe.grh());
    wc.src_qp = Qpn::new(cqe.remote_qpn());
    wc.slid = Lid(cqe.slid());
    wc.sl = Sl::new(cqe.sl());
    wc.dlid_path_bits = cqe.path_bits();
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// One entry as its words.
    fn words(cqe: &Cqe) -> [u32; 8] {
        let (words, _) = cqe.as_bytes().as_chunks::<4>();
        core::array::from_fn(|at| u32::from_be_bytes(words[at]))
    }

    #[test]
    fn the_words_that_are_looked_at_alone_are_those_of_the_layout() {
        let mut cqe = Cqe::ZERO;
        cqe.set_qpn(0x14)
            .set_byte_count(0x1234)
            .set_wqe_address(0xabcd_ef40)
            .set_wqe_size(0x3f);
        assert_eq!(words(&cqe)[0], 0x14);
        assert_eq!(words(&cqe)[BYTES_WORD], 0x1234);
        assert_eq!(words(&cqe)[WQE_WORD] & !0x3f, 0xabcd_ef40);
        let last = |change: fn(&mut Cqe) -> &mut Cqe| {
            let mut cqe = Cqe::ZERO;
            change(&mut cqe);
            words(&cqe)[OWNER_WORD]
        };
        assert_eq!(last(|cqe| cqe.set_is_send(true)), IS_SEND);
        assert_eq!(last(|cqe| cqe.set_owned_by_hw(true)), OWNED_BY_HW);
        assert_eq!(last(|cqe| cqe.set_opcode(0x5a)) >> 24, 0x5a);
    }
}
