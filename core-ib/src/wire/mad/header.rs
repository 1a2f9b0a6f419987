//! The common header that opens every management datagram (MAD). protocols 3.2 to 3.4.

use super::RmppHeader;
use super::layout::{Field, Layout, constants, layout, number, tail, tail_mut};
use crate::wire::WireError;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Management class. An open set: vendors have classes of their own. protocols 3.3.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MgmtClass(pub u8);

constants! { MgmtClass:
    /// Subnet management, routed by LID. QP0.
    SUBN_LID = 0x01;
    /// Subnet management, directed route. QP0.
    SUBN_DR = 0x81;
    /// Subnet administration.
    SUBN_ADM = 0x03;
    /// Performance management.
    PERF = 0x04;
    /// Baseboard management.
    BM = 0x05;
    /// Device management.
    DEV_MGMT = 0x06;
    /// Communication management.
    CM = 0x07;
    /// SNMP tunnelling.
    SNMP = 0x08;
    /// Device administration.
    DEV_ADM = 0x10;
    /// Boot management.
    BOOT_MGMT = 0x11;
    /// BIS.
    BIS = 0x12;
    /// Vendor class of the open diagnostics' ping. protocols 3.13.4.
    OPENIB_PING = 0x32;
    /// Vendor class of the open diagnostics' system statistics. protocols 3.13.4.
    OPENIB_SYSTEM = 0x33;
    /// Congestion control.
    CONGESTION = 0x21;
}

impl MgmtClass {
    /// Subnet management of either routing: what QP0 carries.
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SUBN_LID | Self::SUBN_DR)
    }

    /// Vendor class without OUI, 0x09 to 0x0F.
    pub const fn is_vendor(self) -> bool {
        matches!(self.0, 0x09..=0x0f)
    }

    /// Vendor class with RMPP header and OUI, 0x30 to 0x4F.
    pub const fn is_vendor_oui(self) -> bool {
        matches!(self.0, 0x30..=0x4f)
    }

    /// Its MADs have an RMPP header at 24.
    pub const fn has_rmpp_header(self) -> bool {
        matches!(self, Self::SUBN_ADM) || self.is_vendor_oui()
    }

    /// The MAD offset at which the data of the class begins. protocols 3.2.
    pub const fn data_offset(self) -> usize {
        match self {
            Self::SUBN_LID | Self::SUBN_DR => 64,
            Self::SUBN_ADM => 56,
            Self::PERF | Self::BM | Self::DEV_MGMT | Self::CONGESTION => 64,
            Self(0x30..=0x4f) => 40,
            _ => 24,
        }
    }

    /// How many bytes of data one MAD holds.
    pub const fn data_len(self) -> usize {
        match self {
            Self::SUBN_LID | Self::SUBN_DR => 64,
            _ => 256 - self.data_offset(),
        }
    }
}

impl fmt::Debug for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MgmtClass({:#04x})", self.0)
    }
}

/// Method, with the response bit in bit 7. protocols 3.4.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Method(pub u8);

constants! { Method:
    /// Read an attribute.
    GET = 0x01;
    /// Write an attribute; answered by [`Method::GET_RESP`].
    SET = 0x02;
    /// Without a response of this level.
    SEND = 0x03;
    /// Unsolicited news, repeated until repressed.
    TRAP = 0x05;
    /// News forwarded by the SA to a subscriber.
    REPORT = 0x06;
    /// Answer to a trap.
    TRAP_REPRESS = 0x07;
    /// All records that match.
    GET_TABLE = 0x12;
    /// The way of a packet.
    GET_TRACE_TABLE = 0x13;
    /// Paths among several ports.
    GET_MULTI = 0x14;
    /// Take a record out.
    DELETE = 0x15;
    /// Answer to Get and Set.
    GET_RESP = 0x81;
    /// Answer to Report.
    REPORT_RESP = 0x86;
    /// Answer to GetTable.
    GET_TABLE_RESP = 0x92;
    /// Answer to GetMulti.
    GET_MULTI_RESP = 0x94;
    /// Answer to Delete.
    DELETE_RESP = 0x95;
}

impl Method {
    /// Bit 7.
    pub const RESPONSE: u8 = 0x80;

    /// The response bit is set, or it is TrapRepress. For the baseboard class see [`MadHeader::is_response`].
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0 || self.0 == Self::TRAP_REPRESS.0
    }

    /// The method of the answer; `None` if there is none (Send, responses).
    pub const fn response(self) -> Option<Self> {
        match self {
            Self::SET => Some(Self::GET_RESP),
            Self::TRAP => Some(Self::TRAP_REPRESS),
            Self::SEND | Self::TRAP_REPRESS => None,
            Self::GET_TRACE_TABLE => Some(Self::GET_TABLE_RESP),
            Self(method) if method & Self::RESPONSE != 0 => None,
            Self(method) => Some(Self(method | Self::RESPONSE)),
        }
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({:#04x})", self.0)
    }
}

/// Status of a response. A directed-route SMP has its D bit on top. protocols 3.2.1, 4.1.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MadStatus(pub u16);

constants! { MadStatus:
    /// Done.
    OK = 0x0000;
    /// Discarded, to be tried again.
    BUSY = 0x0001;
    /// ClassPortInfo tells where to ask instead.
    REDIRECT = 0x0002;
    /// Base or class version not spoken there.
    BAD_VERSION = 0x0004;
    /// Method not known.
    UNSUPPORTED_METHOD = 0x0008;
    /// Method not known with this attribute.
    UNSUPPORTED_METHOD_ATTRIBUTE = 0x000c;
    /// A field of the attribute or its modifier is invalid.
    INVALID_FIELD = 0x001c;
    /// SA: no resources.
    SA_NO_RESOURCES = 0x0100;
    /// SA: request invalid.
    SA_REQUEST_INVALID = 0x0200;
    /// SA: no records.
    SA_NO_RECORDS = 0x0300;
    /// SA: too many records.
    SA_TOO_MANY_RECORDS = 0x0400;
    /// SA: GID of the requester, or PortGID, invalid.
    SA_INVALID_GID = 0x0500;
    /// SA: not enough components.
    SA_INSUFFICIENT_COMPONENTS = 0x0600;
    /// SA: denied.
    SA_DENIED = 0x0700;
    /// SA: priority suggested.
    SA_PRIORITY_SUGGESTED = 0x0800;
}

impl MadStatus {
    /// The D bit of a directed-route SMP: it is on its way back.
    pub const DIRECTION: u16 = 0x8000;

    /// Bit 0.
    pub const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    /// Bit 1.
    pub const fn is_redirect(self) -> bool {
        self.0 & Self::REDIRECT.0 != 0
    }

    /// Bits 4 to 2: what was wrong with the MAD itself; 0 is nothing.
    pub const fn invalid_code(self) -> u16 {
        (self.0 >> 2) & 7
    }

    /// Bits 15 to 8.
    pub const fn class_specific(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl fmt::Debug for MadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadStatus({:#06x})", self.0)
    }
}

/// Attribute of a class. The numbers of several classes overlap. protocols 3.7, 3.13.2, 4.2.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u16);

constants! { AttributeId:
    /// Every GMP class.
    CLASS_PORT_INFO = 0x0001;
    /// Every class.
    NOTICE = 0x0002;
    /// SA, and GMP classes with subscriptions.
    INFORM_INFO = 0x0003;
    /// SMP.
    NODE_DESCRIPTION = 0x0010;
    /// SMP.
    NODE_INFO = 0x0011;
    /// SMP.
    SWITCH_INFO = 0x0012;
    /// SMP.
    GUID_INFO = 0x0014;
    /// SMP.
    PORT_INFO = 0x0015;
    /// SMP.
    P_KEY_TABLE = 0x0016;
    /// SMP.
    SL_TO_VL_MAPPING_TABLE = 0x0017;
    /// SMP.
    VL_ARBITRATION_TABLE = 0x0018;
    /// SMP.
    LINEAR_FORWARDING_TABLE = 0x0019;
    /// SMP.
    RANDOM_FORWARDING_TABLE = 0x001a;
    /// SMP.
    MULTICAST_FORWARDING_TABLE = 0x001b;
    /// SMP.
    LINK_SPEED_WIDTH_PAIRS_TABLE = 0x001c;
    /// SMP.
    VENDOR_SPECIFIC_MADS_TABLE = 0x001d;
    /// SMP.
    HIERARCHY_INFO = 0x001e;
    /// SMP.
    SM_INFO = 0x0020;
    /// SMP.
    VENDOR_DIAG = 0x0030;
    /// SMP.
    LED_INFO = 0x0031;
    /// SMP.
    CABLE_INFO = 0x0032;
    /// SMP.
    PORT_INFO_EXTENDED = 0x0033;
    /// SMP, Mellanox.
    MLNX_EXTENDED_PORT_INFO = 0xff90;
    /// Performance.
    PORT_SAMPLES_CONTROL = 0x0010;
    /// Performance.
    PORT_SAMPLES_RESULT = 0x0011;
    /// Performance.
    PORT_COUNTERS = 0x0012;
    /// Performance.
    PORT_RCV_ERROR_DETAILS = 0x0015;
    /// Performance.
    PORT_XMIT_DISCARD_DETAILS = 0x0016;
    /// Performance.
    PORT_OP_RCV_COUNTERS = 0x0017;
    /// Performance.
    PORT_FLOW_CTL_COUNTERS = 0x0018;
    /// Performance.
    PORT_VL_OP_PACKETS = 0x0019;
    /// Performance.
    PORT_VL_OP_DATA = 0x001a;
    /// Performance.
    PORT_VL_XMIT_FLOW_CTL_UPDATE_ERRORS = 0x001b;
    /// Performance.
    PORT_VL_XMIT_WAIT_COUNTERS = 0x001c;
    /// Performance.
    PORT_COUNTERS_EXTENDED = 0x001d;
    /// Performance.
    PORT_SAMPLES_RESULT_EXTENDED = 0x001e;
    /// Performance.
    SW_PORT_VL_CONGESTION = 0x0030;
    /// Performance.
    PORT_XMIT_DATA_SL = 0x0036;
    /// Performance.
    PORT_RCV_DATA_SL = 0x0037;
    /// Baseboard management.
    B_KEY_INFO = 0x0010;
    /// Baseboard management.
    WRITE_VPD = 0x0020;
    /// Baseboard management.
    READ_VPD = 0x0021;
    /// Baseboard management.
    RESET_IBML = 0x0022;
    /// Baseboard management.
    SET_MODULE_PM_CONTROL = 0x0023;
    /// Baseboard management.
    GET_MODULE_PM_CONTROL = 0x0024;
    /// Baseboard management.
    SET_UNIT_PM_CONTROL = 0x0025;
    /// Baseboard management.
    GET_UNIT_PM_CONTROL = 0x0026;
    /// Baseboard management.
    SET_IOC_PM_CONTROL = 0x0027;
    /// Baseboard management.
    GET_IOC_PM_CONTROL = 0x0028;
    /// Baseboard management.
    SET_MODULE_STATE = 0x0029;
    /// Baseboard management.
    SET_MODULE_ATTENTION = 0x002a;
    /// Baseboard management.
    GET_MODULE_STATUS = 0x002b;
    /// Baseboard management.
    IB2IBML = 0x002c;
    /// Baseboard management.
    IB2CME = 0x002d;
    /// Baseboard management.
    IB2MME = 0x002e;
    /// Baseboard management.
    OEM = 0x002f;
    /// Communication management.
    CM_REQ = 0x0010;
    /// Communication management.
    CM_MRA = 0x0011;
    /// Communication management.
    CM_REJ = 0x0012;
    /// Communication management.
    CM_REP = 0x0013;
    /// Communication management.
    CM_RTU = 0x0014;
    /// Communication management.
    CM_DREQ = 0x0015;
    /// Communication management.
    CM_DREP = 0x0016;
    /// Communication management.
    CM_SIDR_REQ = 0x0017;
    /// Communication management.
    CM_SIDR_REP = 0x0018;
    /// Communication management.
    CM_LAP = 0x0019;
    /// Communication management.
    CM_APR = 0x001a;
    /// Communication management: suggest alternate path.
    CM_SAP = 0x001b;
    /// Communication management: response to that.
    CM_SPR = 0x001c;
    /// SA.
    NODE_RECORD = 0x0011;
    /// SA.
    PORT_INFO_RECORD = 0x0012;
    /// SA.
    SL_TO_VL_MAPPING_TABLE_RECORD = 0x0013;
    /// SA.
    SWITCH_INFO_RECORD = 0x0014;
    /// SA.
    LINEAR_FORWARDING_TABLE_RECORD = 0x0015;
    /// SA.
    RANDOM_FORWARDING_TABLE_RECORD = 0x0016;
    /// SA.
    MULTICAST_FORWARDING_TABLE_RECORD = 0x0017;
    /// SA.
    SM_INFO_RECORD = 0x0018;
    /// SA.
    LINK_RECORD = 0x0020;
    /// SA.
    GUID_INFO_RECORD = 0x0030;
    /// SA.
    SERVICE_RECORD = 0x0031;
    /// SA.
    P_KEY_TABLE_RECORD = 0x0033;
    /// SA.
    PATH_RECORD = 0x0035;
    /// SA.
    VL_ARBITRATION_TABLE_RECORD = 0x0036;
    /// SA.
    MC_MEMBER_RECORD = 0x0038;
    /// SA.
    TRACE_RECORD = 0x0039;
    /// SA.
    MULTI_PATH_RECORD = 0x003a;
    /// SA.
    SERVICE_ASSOCIATION_RECORD = 0x003b;
    /// SA.
    HIERARCHY_INFO_RECORD = 0x003c;
    /// SA.
    CABLE_INFO_RECORD = 0x003d;
    /// SA.
    PORT_INFO_EXTENDED_RECORD = 0x003e;
    /// SA.
    INFORM_INFO_RECORD = 0x00f3;
}

impl fmt::Debug for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttributeId({:#06x})", self.0)
    }
}

/// An attribute: a layout with a number by which its class knows it.
pub trait Attribute: Layout {
    /// That number.
    const ID: AttributeId;
}

number! {
    MgmtClass, 1, |bits| Self(bits as u8), |class| class.0.into();
    Method, 1, |bits| Self(bits as u8), |method| method.0.into();
    MadStatus, 2, |bits| Self(bits as u16), |status| status.0.into();
    AttributeId, 2, |bits| Self(bits as u16), |id| id.0.into();
}

layout! {
    /// The 24 bytes that open every MAD. protocols 3.2.
    pub struct MadHeader, MadHeaderView: 24;
    /// 1.
    base_version: u8 = 0,
    /// Who is meant.
    class: MgmtClass = 1,
    /// 1; 2 for subnet administration and communication management.
    class_version: u8 = 2,
    /// What is to be done, or that it is an answer.
    method: Method = 3,
    /// Of a response. The top bit of a directed-route SMP is the D bit, in requests too.
    status: MadStatus = 4,
    /// Directed-route SMP: HopPointer.
    hop_pointer: u8 = 6,
    /// Directed-route SMP: HopCount, 0 to 63.
    hop_count: u8 = 7,
    /// TransactionID: chosen by the requester, echoed by the responder.
    tid: u64 = 8,
    /// AttributeID.
    attribute: AttributeId = 16,
    /// AttributeModifier.
    modifier: u32 = 20,
}

impl MadHeader {
    /// The one base version there is.
    pub const BASE_VERSION: u8 = 1;

    /// The header of the answer: method and status change, the rest stays; `None` if there is no answer to this
    /// method.
    pub fn reply(&self, status: MadStatus) -> Option<Self> {
        let method = self.method.response()?;
        Some(Self {
            method,
            status,
            ..*self
        })
    }

    /// A response: by its method, or (baseboard management) by bit 0 of the modifier. protocols 3.4.
    pub fn is_response(&self) -> bool {
        self.method.is_response() || (self.class == MgmtClass::BM && self.modifier & 1 != 0)
    }
}

layout! {
    /// The 40 bytes before the data of a vendor class with OUI. protocols 3.2.
    pub struct VendorHeader, VendorHeaderView: 40;
    /// The common header.
    header: MadHeader = 0,
    /// Of messages in several segments.
    rmpp: RmppHeader = 24,
    /// Whose class it is, 24 bits.
    oui: u32 = 37/3 [23:0],
}

impl VendorHeader {
    /// OUI of the classes that open diagnostics use. protocols 3.13.4, A.4.
    pub const OUI_OPENIB: u32 = 0x00_1405;
}

layout! {
    /// The 64 bytes before the data of baseboard management. protocols 3.2, 3.13.3.
    pub struct BmHeader, BmHeaderView: 64;
    /// The common header.
    header: MadHeader = 0,
    /// B_Key: guards the baseboard.
    b_key: u64 = 24,
}

layout! {
    /// The 64 bytes before the data of congestion control. protocols 3.2.
    pub struct CcHeader, CcHeaderView: 64;
    /// The common header.
    header: MadHeader = 0,
    /// CC_Key: guards the class.
    cc_key: u64 = 24,
    /// Log data.
    log: [u8; 32] = 32,
}

/// A MAD by its header and the rest.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Front {
    header: MadHeaderView,
    _rest: [u8; 232],
}

/// A management datagram: 256 bytes, of which any are one. Aligned as bytes are, so that one can be had where it lies.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct Mad(pub [u8; 256]);

impl Mad {
    /// Bytes of every MAD.
    pub const SIZE: usize = 256;
    /// All zeros.
    pub const ZERO: Self = Self([0; 256]);

    /// The MAD at the front of `bytes`.
    pub fn from_prefix(bytes: &[u8]) -> Result<&Self, WireError> {
        let have = bytes.len();
        Self::ref_from_prefix(bytes)
            .map(|(mad, _)| mad)
            .map_err(|_| WireError::Truncated {
                header: "MAD",
                need: Self::SIZE,
                have,
            })
    }

    /// The common header, by the field.
    pub fn view(&self) -> &MadHeaderView {
        let front: &Front = zerocopy::transmute_ref!(self);
        &front.header
    }

    /// The common header.
    pub fn header(&self) -> MadHeader {
        self.view().into()
    }

    /// Replaces the common header.
    pub fn set_header(&mut self, header: &MadHeader) {
        header.put(&mut self.0);
    }

    /// The data, which begins where the class says.
    pub fn data(&self) -> &[u8] {
        let (from, len) = self.data_range();
        tail(&self.0, from).get(..len).unwrap_or(&[])
    }

    /// As [`data`](Self::data), to write.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let (from, len) = self.data_range();
        tail_mut(&mut self.0, from)
            .get_mut(..len)
            .unwrap_or(&mut [])
    }

    fn data_range(&self) -> (usize, usize) {
        let class = self.view().class();
        (class.data_offset(), class.data_len())
    }

    /// Reads what comes first in the MAD: [`SaHeader`](super::SaHeader), [`Smp`](super::Smp) and so on.
    pub fn front<L: Layout>(&self) -> Result<L, WireError> {
        L::read(&self.0)
    }

    /// Writes what comes first in the MAD.
    pub fn set_front<L: Layout>(&mut self, front: &L) -> Result<(), WireError> {
        front.write(&mut self.0)
    }

    /// Reads the data as an attribute.
    pub fn get<L: Layout>(&self) -> Result<L, WireError> {
        L::read(self.data())
    }

    /// Replaces the data; what the attribute does not fill becomes zeros.
    pub fn put<L: Layout>(&mut self, attribute: &L) -> Result<(), WireError> {
        let data = self.data_mut();
        data.fill(0);
        attribute.write(data)
    }
}

impl Default for Mad {
    fn default() -> Self {
        Self::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(MadHeader, VendorHeader, BmHeader, CcHeader);

    /// protocols 3.2.
    #[test]
    fn the_key_of_a_class_is_at_24() {
        let key = 0x0102_0304_0506_0708;
        let header = MadHeader::default();
        let bm = BmHeader { header, b_key: key }.to_bytes();
        let cc = CcHeader {
            header,
            cc_key: key,
            log: [9; 32],
        };
        let cc = cc.to_bytes();
        for bytes in [&bm, &cc] {
            assert_eq!(bytes[24..32], [1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!((&bm[32..], &cc[32..]), (&[0; 32][..], &[9; 32][..]));
    }

    /// protocols 3.2, 3.13.4.
    #[test]
    fn the_oui_of_a_vendor_class_is_at_37() {
        let mut mad = Mad::ZERO;
        let mut header = VendorHeader::from_bytes(&[0; 40]);
        header.header.class = MgmtClass(0x32);
        header.oui = VendorHeader::OUI_OPENIB;
        mad.set_front(&header).unwrap();
        assert_eq!(mad.0[36..41], [0, 0x00, 0x14, 0x05, 0]);
        assert_eq!(mad.front(), Ok(header));
        assert_eq!(mad.data().len(), 216);
    }

    #[test]
    fn an_attribute_lies_where_the_class_has_its_data() {
        use crate::wire::mad::NodeDescription;
        let text = NodeDescription::new("here");
        let mut mad = Mad([0xee; 256]);
        let mut header = mad.header();
        for (class, from, to) in [(0x81, 64, 128), (0x03, 56, 256), (0x04, 64, 256)] {
            header.class = MgmtClass(class);
            mad.set_header(&header);
            mad.put(&text).unwrap();
            assert_eq!(mad.0[from..from + 5], *b"here\0");
            assert!(mad.0[from + 4..to].iter().all(|&byte| byte == 0));
            assert_eq!(mad.get(), Ok(text));
        }
        assert_eq!(mad.header(), header);
        assert!(Mad::from_prefix(&[0; 255]).is_err());
        assert_eq!(Mad::from_prefix(&[0; 300]), Ok(&Mad::ZERO));
    }

    /// protocols 3.2, field by field.
    #[test]
    fn the_common_header_lies_as_the_table_says() {
        let header = MadHeader {
            base_version: 1,
            class: MgmtClass::SUBN_DR,
            class_version: 1,
            method: Method::GET_RESP,
            status: MadStatus(0x801c),
            hop_pointer: 3,
            hop_count: 2,
            tid: 0x0102_0304_0506_0708,
            attribute: AttributeId::PORT_INFO,
            modifier: 0x8000_0001,
        };
        let bytes = [
            0x01, 0x81, 0x01, 0x81, 0x80, 0x1c, 0x03, 0x02, // status, hops
            1, 2, 3, 4, 5, 6, 7, 8, // transaction
            0x00, 0x15, 0, 0, 0x80, 0, 0, 1,
        ];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(MadHeader::from_bytes(&bytes), header);
    }

    #[test]
    fn every_request_but_send_has_one_answer() {
        use Method as M;
        assert_eq!(M::GET.response(), Some(M::GET_RESP));
        assert_eq!(M::SET.response(), Some(M::GET_RESP));
        assert_eq!(M::TRAP.response(), Some(M::TRAP_REPRESS));
        assert_eq!(M::DELETE.response(), Some(M::DELETE_RESP));
        assert_eq!(M::GET_MULTI.response(), Some(M::GET_MULTI_RESP));
        for none in [M::SEND, M::GET_RESP, M::TRAP_REPRESS, M::REPORT_RESP] {
            assert_eq!(none.response(), None);
        }
    }

    #[test]
    fn trap_repress_and_a_marked_baseboard_send_are_responses() {
        assert!(Method::TRAP_REPRESS.is_response());
        let send = MadHeader {
            class: MgmtClass::BM,
            method: Method::SEND,
            modifier: 1,
            ..MadHeader::default()
        };
        assert!(send.is_response());
        assert!(
            !MadHeader {
                modifier: 2,
                ..send
            }
            .is_response()
        );
    }

    #[test]
    fn data_begins_where_the_class_says() {
        let classes = [
            0x01, 0x81, 0x03, 0x04, 0x05, 0x06, 0x07, 0x09, 0x21, 0x2f, 0x30, 0x4f, 0x50,
        ];
        let offsets = classes.map(|class| MgmtClass(class).data_offset());
        assert_eq!(
            offsets,
            [64, 64, 56, 64, 64, 64, 24, 24, 64, 24, 40, 40, 24]
        );
        assert_eq!(MgmtClass::SUBN_DR.data_len(), 64);
        assert_eq!(MgmtClass::SUBN_ADM.data_len(), 200);
        assert_eq!(MgmtClass(0x30).data_len(), 216);
    }
}
