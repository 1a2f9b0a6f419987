//! What an entry says: its words, and the completion that becomes of them. verbs 5.3, infinihost 4.5.
//!
//! The words that every entry needs are looked at alone, each loaded once; a receive needs more of them the more its QP's
//! service says of the sender.

use crate::qp::{QpPlace, Queue};
use core_ib::platform::{Platform, RingEntry};
use core_ib::verbs::{Imm, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use core_ib::{Lid, Qpn, Sl};
use hca_abi::infinihost::cqe::{Cqe, ErrorCqe, Syndrome};
use hca_abi::infinihost::wqe::WqeOpcode;

/// Words of an entry.
pub(super) const WORDS: usize = size_of::<Cqe>() / 4;
/// An entry.
pub(super) type CqWords<'q> = RingEntry<'q, WORDS>;
/// The word that says which QP.
pub(super) const QP_WORD: usize = 0;
/// The word with immediate data.
const IMMEDIATE_WORD: usize = 4;
/// The word that says how many bytes.
const BYTES_WORD: usize = 5;
/// The word that says which WQE.
const WQE_WORD: usize = 6;
/// The word with the owner bit.
pub(super) const OWNER_WORD: usize = 7;
/// The owner bit in it.
pub(super) const OWNED_BY_HW: u32 = 0x80;
/// Of the send queue, in the same word.
pub(super) const IS_SEND: u32 = 1 << 23;
/// Opcodes are just above it, in the same word.
const OPCODE_SHIFT: u32 = 24;

/// Does the entry whose last word this is report an error?
#[inline(always)]
pub(super) const fn is_error(last: u32) -> bool {
    last >> (OPCODE_SHIFT + 1) == (Cqe::ERROR_RECEIVE >> 1) as u32
}

/// Of the send queue, if it does: which queue is in the opcode then. infinihost 4.5.2.
#[inline(always)]
pub(super) const fn is_error_of_send(last: u32) -> bool {
    last >> OPCODE_SHIFT & 1 != 0
}

/// Address of its WQE.
#[inline(always)]
pub(super) fn wqe_address(words: CqWords<'_>) -> u32 {
    words.get(WQE_WORD) & !0x3f
}

/// The words from `FROM` to `TO` as they lie, the others zero.
#[inline(always)]
fn part<const FROM: usize, const TO: usize>(words: CqWords<'_>) -> Cqe {
    let mut all = [0_u32; WORDS];
    for (index, word) in all.iter_mut().enumerate() {
        if FROM <= index && index <= TO {
            *word = words.get(index).to_be();
        }
    }
    zerocopy::transmute!(all)
}

/// What a request was, and whether there is immediate data: by the low five bits of the opcode, and whether it is a send.
const MEANS: [(WcOpcode, WcFlags); 64] = {
    let mut table = [(WcOpcode::Unknown, WcFlags::empty()); 64];
    let mut opcode = 0;
    while opcode < 32 {
        table[opcode * 2] = received(opcode as u8);
        table[opcode * 2 + 1] = (sent(opcode as u8), WcFlags::empty());
        opcode += 1;
    }
    table
};

const fn sent(opcode: u8) -> WcOpcode {
    match WqeOpcode(opcode) {
        WqeOpcode::SEND | WqeOpcode::SEND_IMM => WcOpcode::Send,
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM => WcOpcode::RdmaWrite,
        WqeOpcode::RDMA_READ => WcOpcode::RdmaRead,
        WqeOpcode::ATOMIC_CS => WcOpcode::CompareSwap,
        WqeOpcode::ATOMIC_FA => WcOpcode::FetchAdd,
        WqeOpcode::BIND => WcOpcode::BindMw,
        _ => WcOpcode::Unknown,
    }
}

/// By the opcode of the last packet: "with immediate" is odd here. infinihost 4.5.1.
const fn received(opcode: u8) -> (WcOpcode, WcFlags) {
    match opcode {
        0x03 | 0x05 => (WcOpcode::Recv, WcFlags::IMM),
        0x09 | 0x0b => (WcOpcode::RecvRdmaWithImm, WcFlags::IMM),
        _ => (WcOpcode::Recv, WcFlags::empty()),
    }
}

/// Makes the completion of a good entry, of which `last` is the last word; `queue` counts if it is a receive. `SENDS`: that
/// it is none is known.
#[inline(always)]
pub(super) fn completed<const SENDS: bool>(
    words: CqWords<'_>,
    last: u32,
    wr_id: u64,
    qpn: Qpn,
    queue: Queue,
    wc: &mut WorkCompletion,
) {
    let means = MEANS.get((last / IS_SEND % 64) as usize).copied();
    let (opcode, flags) = means.unwrap_or((WcOpcode::Unknown, WcFlags::empty()));
    *wc = WorkCompletion {
        wr_id,
        byte_len: words.get(BYTES_WORD),
        qpn,
        opcode,
        ..WorkCompletion::EMPTY
    };
    if !SENDS && last & IS_SEND == 0 {
        let flags = match queue {
            Queue::CONNECTED => flags,
            _ => note_source(words, queue, flags, wc),
        };
        if flags.contains(WcFlags::IMM) {
            wc.imm = Imm(words.get(IMMEDIATE_WORD).to_be_bytes());
        }
        wc.flags = flags;
    }
}

/// What datagrams say besides; the flags that become of those given.
#[inline(always)]
fn note_source(
    words: CqWords<'_>,
    queue: Queue,
    flags: WcFlags,
    wc: &mut WorkCompletion,
) -> WcFlags {
    let cqe = part::<1, 3>(words);
    wc.src_qp = Qpn::new(cqe.remote_qpn());
    wc.slid = Lid(cqe.slid());
    wc.sl = Sl::new(cqe.sl());
    wc.dlid_path_bits = cqe.path_bits();
    let also = |flag, so: bool| if so { flag } else { WcFlags::empty() };
    let flags = flags | also(WcFlags::GRH, cqe.grh());
    match queue {
        Queue::SPECIAL => {
            // The field is the P_Key index, whatever the opcode says.
            wc.pkey_index = (words.get(IMMEDIATE_WORD) >> 16) as u16;
            flags.difference(WcFlags::IMM)
        }
        Queue::VERIFIED => flags | also(WcFlags::CHECKSUM_OK, cqe.checksum_ok()),
        _ => flags,
    }
}

/// The completion of a request that an entry says has failed.
#[inline(always)]
pub(super) fn failed(error: &ErrorCqe, wr_id: u64, qpn: Qpn) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status: status(error.syndrome()),
        vendor_error: error.vendor_error(),
        qpn,
        ..WorkCompletion::EMPTY
    }
}

/// What an error entry says of itself.
#[inline(always)]
pub(super) fn error_of(words: CqWords<'_>) -> ErrorCqe {
    *part::<IMMEDIATE_WORD, IMMEDIATE_WORD>(words).as_error()
}

/// The completion of a request that was never executed.
pub(super) fn flushed<P: Platform>(place: &QpPlace<'_, P>, wr_id: u64) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status: WcStatus::Flushed,
        qpn: place.wire_qpn(),
        ..WorkCompletion::EMPTY
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
        assert_eq!(words(&cqe)[QP_WORD], 0x14);
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
