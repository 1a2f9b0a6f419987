//! What comes before the records of subnet administration: the RMPP header and the SA's own. protocols 4.1, 4.3.

use super::layout::{Layout, constants, layout, number};
use super::{Attribute, AttributeId, MadHeader, Method, MgmtClass, SmKey, TimeCode};
use bitflags::bitflags;
use core::marker::PhantomData;
use core::ops::{BitOr, BitOrAssign};

/// Kind of an RMPP packet. protocols 4.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmppType(pub u8);

constants! { RmppType:
    /// The message is one MAD and no more.
    NONE = 0;
    /// A segment of a message.
    DATA = 1;
    /// Segments have arrived.
    ACK = 2;
    /// The receiver is short of something.
    STOP = 3;
    /// Something is wrong.
    ABORT = 4;
}

bitflags! {
    /// Flags of an RMPP packet. protocols 4.3.1.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RmppFlags: u8 {
        /// The other fields count.
        const ACTIVE = 1;
        /// The first segment.
        const FIRST = 2;
        /// The last segment.
        const LAST = 4;
    }
}

/// Why a transfer was stopped or aborted. protocols 4.3.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmppStatus(pub u8);

constants! { RmppStatus:
    /// It was not.
    NORMAL = 0;
    /// STOP: no resources.
    RESOURCES_EXHAUSTED = 1;
    /// ABORT: the whole took too long.
    TOTAL_TIME_TOO_LONG = 118;
    /// ABORT: Last and PayloadLength contradict each other.
    INCONSISTENT_LAST = 119;
    /// ABORT: First and SegmentNumber contradict each other.
    INCONSISTENT_FIRST = 120;
    /// ABORT: no such RMPPType.
    BAD_TYPE = 121;
    /// ABORT: NewWindowLast is too small.
    NEW_WINDOW_LAST_TOO_SMALL = 122;
    /// ABORT: SegmentNumber is too big.
    SEGMENT_NUMBER_TOO_BIG = 123;
    /// ABORT: no such status.
    ILLEGAL_STATUS = 124;
    /// ABORT: no such version.
    UNSUPPORTED_VERSION = 125;
    /// ABORT: too many retries.
    TOO_MANY_RETRIES = 126;
    /// ABORT: something else.
    UNSPECIFIED = 127;
}

/// Which components of a record a query means. A bit for each field, reserved ones included; the records have
/// constants for theirs. protocols 4.1.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ComponentMask(pub u64);

impl ComponentMask {
    /// No component: everything matches.
    pub const NONE: Self = Self(0);

    /// All of `components` are meant.
    pub const fn has(self, components: Self) -> bool {
        self.0 & components.0 == components.0
    }

    /// The components of both.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for ComponentMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

impl BitOrAssign for ComponentMask {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.or(other);
    }
}

impl core::fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ComponentMask({:#x})", self.0)
    }
}

number! {
    RmppType, 1, |bits| Self(bits as u8), |kind| kind.0.into();
    RmppFlags, 1, |bits| Self::from_bits_retain(bits as u8), |flags| flags.bits().into();
    RmppStatus, 1, |bits| Self(bits as u8), |status| status.0.into();
    ComponentMask, 8, |bits| Self(bits), |mask| mask.0;
}

layout! {
    /// Header of the reliable multi-packet protocol, at 24 of the MADs that have it. protocols 4.3.1.
    pub struct RmppHeader, RmppHeaderView: 12;
    /// 1, or 0 if not active.
    version: u8 = 0,
    /// RMPPType.
    kind: RmppType = 1,
    /// How long the receiver may take: see [`RmppHeader::NO_TIME`].
    resp_time: TimeCode = 2 [7:3],
    /// RMPPFlags.
    flags: RmppFlags = 2 [2:0],
    /// RMPPStatus.
    status: RmppStatus = 3,
    /// Data1: SegmentNumber of DATA and ACK.
    segment: u32 = 4,
    /// Data2: PayloadLength of DATA, NewWindowLast of ACK.
    length_or_window: u32 = 8,
}

impl RmppHeader {
    /// The one version there is.
    pub const VERSION: u8 = 1;
    /// In place of a response time: none given.
    pub const NO_TIME: TimeCode = TimeCode(0x1f);
    /// Bytes of each segment that count as payload: all behind this header.
    pub const SEGMENT_PAYLOAD: usize = 220;

    /// Otherwise the message is one MAD, and the other fields do not count.
    pub fn is_active(&self) -> bool {
        self.flags.contains(RmppFlags::ACTIVE)
    }
}

layout! {
    /// The 56 bytes before the records of subnet administration. protocols 4.1.
    pub struct SaHeader, SaHeaderView: 56;
    /// The common header.
    header: MadHeader = 0,
    /// Of answers in several segments.
    rmpp: RmppHeader = 24,
    /// Shows a trusted requester; 0 in answers.
    sm_key: SmKey = 36,
    /// From one record of a table to the next, in units of 8 bytes.
    attribute_offset: u16 = 44,
    /// The components that are meant.
    component_mask: ComponentMask = 48,
}

impl SaHeader {
    /// Class version of subnet administration.
    pub const CLASS_VERSION: u8 = 2;

    /// A request.
    pub fn request(method: Method, attribute: AttributeId, component_mask: ComponentMask) -> Self {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: MgmtClass::SUBN_ADM,
            class_version: Self::CLASS_VERSION,
            method,
            attribute,
            ..MadHeader::default()
        };
        Self {
            header,
            component_mask,
            ..Self::default()
        }
    }

    /// AttributeOffset of records of `size` bytes, in units of 8.
    pub const fn offset_of(size: usize) -> u16 {
        size.div_ceil(8) as u16
    }
}

/// An attribute that subnet administration keeps and finds again.
pub trait Record: Attribute {
    /// Whether every component of `query` that `mask` means equals that of `self`. Those that go by a [selector] are
    /// not looked at. protocols 4.1.
    ///
    /// [selector]: super::Selector
    fn matches(&self, query: &Self, mask: ComponentMask) -> bool;
}

/// The records of a table, which begin at every AttributeOffset × 8 bytes. A record may be longer than `R`, from who
/// knows more, or shorter, from who knew less: then the missing bytes count as zeros. protocols 4.1, 4.2.
#[derive(Clone, Debug)]
pub struct Records<'a, R> {
    data: &'a [u8],
    stride: usize,
    record: PhantomData<R>,
}

impl<'a, R: Layout> Records<'a, R> {
    /// Over the data of a whole message, with the AttributeOffset of its header. An offset of 0 is an empty table.
    pub fn new(data: &'a [u8], attribute_offset: u16) -> Self {
        Self {
            data,
            stride: usize::from(attribute_offset) * 8,
            record: PhantomData,
        }
    }
}

impl<R: Layout> Iterator for Records<'_, R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        if self.stride == 0 {
            return None;
        }
        if let Some((record, rest)) = self.data.split_at_checked(self.stride) {
            self.data = rest;
            return R::read(record).ok().or_else(|| padded(record));
        }
        // The last one may end where its last field does.
        let last = core::mem::take(&mut self.data);
        R::read(last).ok()
    }
}

/// Reads a record of which the end is missing.
fn padded<R: Layout>(record: &[u8]) -> Option<R> {
    let mut whole = [0; 256];
    whole.get_mut(..record.len())?.copy_from_slice(record);
    R::read(&whole).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{NodeInfo, SmInfo};
    extern crate std;
    use std::vec::Vec;

    round_trip_tests!(RmppHeader, SaHeader);

    /// protocols 4.1, 4.3.1; the single segment of 4.3.2.
    #[test]
    fn the_sa_header_lies_as_the_tables_say() {
        let mut header = SaHeader::request(
            Method::GET_TABLE_RESP,
            AttributeId::PATH_RECORD,
            ComponentMask(0x0102_0304_0506_0708),
        );
        header.header.tid = 9;
        header.rmpp = RmppHeader {
            version: 1,
            kind: RmppType::DATA,
            resp_time: RmppHeader::NO_TIME,
            flags: RmppFlags::all(),
            status: RmppStatus::NORMAL,
            segment: 1,
            length_or_window: 84,
        };
        header.sm_key = SmKey(0x1112_1314_1516_1718);
        header.attribute_offset = 8;
        let bytes = [
            1, 3, 2, 0x92, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0x35, 0, 0, 0, 0, 0,
            0, // 24: RMPP
            1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 84, // 36: SA
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(SaHeader::from_bytes(&bytes), header);
        assert!(header.rmpp.is_active());
    }

    #[test]
    fn a_table_is_read_by_its_own_stride() {
        let sm = |act_count| SmInfo {
            act_count,
            ..SmInfo::default()
        };
        let mut data = [0xee; 72]; // three of 24 bytes, though the record has 21
        for (i, place) in data.chunks_mut(24).enumerate() {
            sm(i as u32).write(place).unwrap();
        }
        let read = |data, offset| Records::<SmInfo>::new(data, offset).collect::<Vec<_>>();
        assert_eq!(read(&data, 3), [sm(0), sm(1), sm(2)]);
        assert_eq!(read(&data[..69], 3), [sm(0), sm(1), sm(2)]);
        assert_eq!(read(&data[..68], 3), [sm(0), sm(1)]);
        assert_eq!(read(&data, 0), []);
        assert_eq!(read(&data, u16::MAX), [sm(0)]);
    }

    #[test]
    fn what_is_missing_of_a_short_record_counts_as_zeros() {
        let data = [0xff; 32];
        let mut read = Records::<NodeInfo>::new(&data, 4);
        let info = read.next().unwrap();
        assert_eq!(
            (info.device_id, info.revision, info.vendor_id),
            (0xffff, 0, 0)
        );
        assert_eq!(read.next(), None);
    }

    #[test]
    fn an_attribute_offset_is_in_units_of_8_rounded_up() {
        assert_eq!(
            [108, 68, 52, 64, 25, 6].map(SaHeader::offset_of),
            [14, 9, 7, 8, 4, 1]
        );
    }
}
