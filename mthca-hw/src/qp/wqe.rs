//! Parts of WQEs, as all queues write them. infinihost 5.4, 5.5.

use core_ib::platform::{DmaBuf, Platform, RingEntry};
use core_ib::verbs::{PostCause, SendFlags, Sge};
use hca_abi::infinihost::wqe::{
    DataSegment, END_OF_LIST_LKEY, INLINE, UNIT, UdSegment, WqeOpcode, next,
};

/// Bytes of a segment that counts as one.
pub(super) const SEGMENT: u32 = UNIT as u32;

/// Words of a datagram's WQE before its data.
pub(super) const DATAGRAM_WORDS: usize = (UNIT + size_of::<UdSegment>()) / 4;

/// Words of the WQE of a receive with a single entry and the end of the list: the shortest has a unit more.
pub(crate) const RECEIVE: usize = 3 * UNIT / 4;

/// The word of a WQE at `offset` bytes of its second segment.
pub(super) const fn segment(offset: usize) -> usize {
    (UNIT + offset) / 4
}

/// Where writing has come to, and what the doorbell will say.
#[derive(Clone, Copy)]
pub(crate) struct Wqe {
    /// Offset of the WQE in the queue's memory.
    pub at: u32,
    /// Offset behind its last segment.
    pub end: u32,
    pub opcode: WqeOpcode,
    /// The dword of flags.
    pub flags: u32,
    /// The dword behind it.
    pub immediate: u32,
}

/// M: flags that datagrams alone may have.
pub(super) const CHECKSUMS: SendFlags = SendFlags::IP_CHECKSUM.union(SendFlags::L4_CHECKSUM);

/// The dword of flags: `L4_CHECKSUM` is bit 5, `IP_CHECKSUM` bit 4, if they are `offered`; `SIGNALED` is bit 3, `SOLICITED`
/// bit 1, bit 0 is set. infinihost 5.4.
#[inline(always)]
pub(super) fn flags_of(flags: SendFlags, offered: SendFlags) -> u32 {
    let flags = flags & (SendFlags::SIGNALED | SendFlags::SOLICITED | offered);
    let bit = |flag: SendFlags, dword: u32| {
        let scale = dword / u32::from(flag.bits());
        u32::from((flags & flag).bits()) * scale
    };
    next::ALWAYS_ONE
        | bit(SendFlags::SIGNALED, next::SIGNALED)
        | bit(SendFlags::SOLICITED, next::SOLICITED)
        | bit(SendFlags::IP_CHECKSUM, next::IP_CHECKSUM)
        | bit(SendFlags::L4_CHECKSUM, next::L4_CHECKSUM)
}
/// Neither empty (0 is 2^31 there) nor longer than there is.
#[inline(always)]
pub(crate) fn fits(sge: &Sge) -> bool {
    sge.length.wrapping_sub(1) < i32::MAX as u32
}
/// Writes one entry, which [`fits`], at word `at` (even).
#[inline(always)]
pub(crate) fn put_entry<const N: usize>(wqe: RingEntry<'_, N>, at: usize, sge: &Sge) {
    wqe.set_pair(at, sge.length, sge.lkey.0);
    wqe.set_long(at + 2, sge.addr);
}

/// Writes the entries that are not empty, from offset `end` on.
#[inline(always)]
pub(crate) fn put_sges<P: Platform>(
    memory: &DmaBuf<'_, P>,
    end: &mut u32,
    sges: &[Sge],
) -> Result<(), PostCause> {
    for sge in sges {
        if sge.length == 0 {
            continue; // length 0 is 2^31 there
        }
        if sge.length > i32::MAX as u32 {
            return Err(PostCause::InvalidAttr);
        }
        let segment = DataSegment::new(sge.length, sge.lkey.0, sge.addr);
        memory.words::<4>(*end as usize)?.write(&segment);
        *end = end.wrapping_add(SEGMENT);
    }
    Ok(())
}

/// Writes one inline segment from offset `end` on, padded to whole units. No data is no segment.
#[inline(never)]
pub(super) fn put_inline<P: Platform>(
    memory: &DmaBuf<'_, P>,
    end: &mut u32,
    data: &[u8],
) -> Result<(), PostCause> {
    if data.is_empty() {
        return Ok(());
    }
    memory.write_be32(*end as usize, INLINE | data.len() as u32)?;
    memory.copy_in(*end as usize + 4, data)?;
    let taken = (data.len() as u32 + 4).next_multiple_of(SEGMENT);
    *end = end.wrapping_add(taken);
    Ok(())
}

/// Ends a list at word `at` (even). infinihost 5.5.
#[inline(always)]
pub(crate) fn put_end<const N: usize>(wqe: RingEntry<'_, N>, at: usize) {
    wqe.set_pair(at, 0, END_OF_LIST_LKEY);
    wqe.set_long(at + 2, 0);
}
