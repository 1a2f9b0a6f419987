//! The extended transport headers between BTH and payload, and the header of a raw packet.
//!
//! All of them are plain fields, so that any bytes mean something; the one with a code in it, AETH, has a file of
//! its own. Layouts: protocols 1.5.

use super::super::WireError;
use super::aeth::{Aeth, AethView};
use super::opcode::{HeaderSet, Opcode};
use super::view::HeaderView;
use crate::types::{QKey, Qpn, RKey};
use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RDETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RdethView {
    _reserved: u8,
    ee_context: [u8; 3],
}
const_assert_eq!(size_of::<RdethView>(), 4);

/// DETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DethView {
    q_key: U32,
    _reserved: u8,
    src_qp: [u8; 3],
}
const_assert_eq!(size_of::<DethView>(), 8);

/// XRCETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct XrcethView {
    _reserved: u8,
    xrc_srq: [u8; 3],
}
const_assert_eq!(size_of::<XrcethView>(), 4);

/// RETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RethView {
    va: U64,
    r_key: U32,
    dma_len: U32,
}
const_assert_eq!(size_of::<RethView>(), 16);

/// AtomicETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicEthView {
    va: U64,
    r_key: U32,
    swap_or_add: U64,
    compare: U64,
}
const_assert_eq!(size_of::<AtomicEthView>(), 28);

/// AtomicAckETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicAckEthView {
    original: U64,
}
const_assert_eq!(size_of::<AtomicAckEthView>(), 8);

/// ImmDt as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ImmDtView {
    data: [u8; 4],
}
const_assert_eq!(size_of::<ImmDtView>(), 4);

/// IETH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IethView {
    r_key: U32,
}
const_assert_eq!(size_of::<IethView>(), 4);

/// RWH as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RwhView {
    _reserved: U16,
    ether_type: U16,
}
const_assert_eq!(size_of::<RwhView>(), 4);

/// Gives a plain header its name, its reader and its writer.
macro_rules! plain_header {
    ($name:literal, $value:ident, $view:ident) => {
        impl HeaderView for $view {
            const NAME: &'static str = $name;
        }

        impl $value {
            /// Reads the header at the front of `bytes`; gives back what follows it.
            pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
                let (view, rest) = $view::split(bytes)?;
                Ok((Self::from(view), rest))
            }

            /// Writes the header to the front of `out`; gives back the room behind it.
            pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
                $view::from(self).put(out)
            }
        }
    };
}

plain_header!("RDETH", Rdeth, RdethView);
plain_header!("DETH", Deth, DethView);
plain_header!("XRCETH", Xrceth, XrcethView);
plain_header!("RETH", Reth, RethView);
plain_header!("AtomicETH", AtomicEth, AtomicEthView);
plain_header!("AtomicAckETH", AtomicAckEth, AtomicAckEthView);
plain_header!("ImmDt", ImmDt, ImmDtView);
plain_header!("IETH", Ieth, IethView);
plain_header!("RWH", Rwh, RwhView);

/// Reliable datagram header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdeth {
    /// Number of the end-to-end context, 24 bits as a QPN has.
    pub ee_context: Qpn,
}

/// Datagram header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must be the receiving QP's.
    pub q_key: QKey,
    /// The sending QP.
    pub src_qp: Qpn,
}

/// XRC header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xrceth {
    /// Number of the shared receive queue, 24 bits as a QPN has.
    pub xrc_srq: Qpn,
}

/// RDMA header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the responder's memory.
    pub r_key: RKey,
    /// Bytes of the whole message, at most 2^31; nobody has looked at it.
    pub dma_len: u32,
}

/// Atomic request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address at the responder; a multiple of 8 if the requester obeys.
    pub va: u64,
    /// Key of the responder's memory.
    pub r_key: RKey,
    /// What to store (CmpSwap) or to add (FetchAdd).
    pub swap_or_add: u64,
    /// What to compare with (CmpSwap).
    pub compare: u64,
}

/// Atomic response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What the responder's memory held before.
    pub original: u64,
}

/// Immediate data: 4 bytes that are the consumers' own, in the order in which they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

/// Invalidate header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The key that the responder is to invalidate.
    pub r_key: RKey,
}

/// Header of a raw packet with an EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rwh {
    /// What the payload is.
    pub ether_type: u16,
}

impl From<&RdethView> for Rdeth {
    fn from(view: &RdethView) -> Self {
        Self {
            ee_context: Qpn::from_wire(view.ee_context),
        }
    }
}

impl From<&Rdeth> for RdethView {
    fn from(rdeth: &Rdeth) -> Self {
        Self {
            _reserved: 0,
            ee_context: rdeth.ee_context.to_wire(),
        }
    }
}

impl From<&DethView> for Deth {
    fn from(view: &DethView) -> Self {
        Self {
            q_key: QKey(view.q_key.get()),
            src_qp: Qpn::from_wire(view.src_qp),
        }
    }
}

impl From<&Deth> for DethView {
    fn from(deth: &Deth) -> Self {
        Self {
            q_key: U32::new(deth.q_key.0),
            _reserved: 0,
            src_qp: deth.src_qp.to_wire(),
        }
    }
}

impl From<&XrcethView> for Xrceth {
    fn from(view: &XrcethView) -> Self {
        Self {
            xrc_srq: Qpn::from_wire(view.xrc_srq),
        }
    }
}

impl From<&Xrceth> for XrcethView {
    fn from(xrceth: &Xrceth) -> Self {
        Self {
            _reserved: 0,
            xrc_srq: xrceth.xrc_srq.to_wire(),
        }
    }
}

impl From<&RethView> for Reth {
    fn from(view: &RethView) -> Self {
        Self {
            va: view.va.get(),
            r_key: RKey(view.r_key.get()),
            dma_len: view.dma_len.get(),
        }
    }
}

impl From<&Reth> for RethView {
    fn from(reth: &Reth) -> Self {
        Self {
            va: U64::new(reth.va),
            r_key: U32::new(reth.r_key.0),
            dma_len: U32::new(reth.dma_len),
        }
    }
}

impl From<&AtomicEthView> for AtomicEth {
    fn from(view: &AtomicEthView) -> Self {
        Self {
            va: view.va.get(),
            r_key: RKey(view.r_key.get()),
            swap_or_add: view.swap_or_add.get(),
            compare: view.compare.get(),
        }
    }
}

impl From<&AtomicEth> for AtomicEthView {
    fn from(atomic: &AtomicEth) -> Self {
        Self {
            va: U64::new(atomic.va),
            r_key: U32::new(atomic.r_key.0),
            swap_or_add: U64::new(atomic.swap_or_add),
            compare: U64::new(atomic.compare),
        }
    }
}

impl From<&AtomicAckEthView> for AtomicAckEth {
    fn from(view: &AtomicAckEthView) -> Self {
        Self {
            original: view.original.get(),
        }
    }
}

impl From<&AtomicAckEth> for AtomicAckEthView {
    fn from(ack: &AtomicAckEth) -> Self {
        Self {
            original: U64::new(ack.original),
        }
    }
}

impl From<&ImmDtView> for ImmDt {
    fn from(view: &ImmDtView) -> Self {
        Self(view.data)
    }
}

impl From<&ImmDt> for ImmDtView {
    fn from(imm: &ImmDt) -> Self {
        Self { data: imm.0 }
    }
}

impl From<&IethView> for Ieth {
    fn from(view: &IethView) -> Self {
        Self {
            r_key: RKey(view.r_key.get()),
        }
    }
}

impl From<&Ieth> for IethView {
    fn from(ieth: &Ieth) -> Self {
        Self {
            r_key: U32::new(ieth.r_key.0),
        }
    }
}

impl From<&RwhView> for Rwh {
    fn from(view: &RwhView) -> Self {
        Self {
            ether_type: view.ether_type.get(),
        }
    }
}

impl From<&Rwh> for RwhView {
    fn from(rwh: &Rwh) -> Self {
        Self {
            _reserved: U16::ZERO,
            ether_type: U16::new(rwh.ether_type),
        }
    }
}

/// All headers between BTH and payload: those that the opcode calls for are there, the others are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// RD.
    pub rdeth: Option<Rdeth>,
    /// UD, and RD requests.
    pub deth: Option<Deth>,
    /// XRC requests.
    pub xrceth: Option<Xrceth>,
    /// RDMA WRITE First and Only, READ requests.
    pub reth: Option<Reth>,
    /// Atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Responses, but for READ Response Middle.
    pub aeth: Option<Aeth>,
    /// Responses to atomics.
    pub atomic_ack: Option<AtomicAckEth>,
    /// SEND with Invalidate.
    pub ieth: Option<Ieth>,
    /// "with Immediate".
    pub imm_dt: Option<ImmDt>,
}

/// Takes the header off the front of `rest` if `wanted` names it.
fn take<'a, V: HeaderView + 'a, T: for<'v> From<&'v V>>(
    wanted: HeaderSet,
    header: HeaderSet,
    rest: &mut &'a [u8],
) -> Result<Option<T>, WireError> {
    if !wanted.contains(header) {
        return Ok(None);
    }
    let (view, behind) = V::split(rest)?;
    *rest = behind;
    Ok(Some(T::from(view)))
}

/// Puts the header, if there is one, to the front of `out`.
fn put<'o, V: HeaderView + for<'v> From<&'v T>, T>(
    header: &Option<T>,
    out: &'o mut [u8],
) -> Result<&'o mut [u8], WireError> {
    match header {
        Some(header) => V::from(header).put(out),
        None => Ok(out),
    }
}

impl Extended {
    /// Those of a UD packet without immediate data.
    pub fn datagram(deth: Deth) -> Self {
        Self {
            deth: Some(deth),
            ..Self::default()
        }
    }

    /// Which headers are there.
    pub fn set(&self) -> HeaderSet {
        let mut set = HeaderSet::empty();
        set.set(HeaderSet::RDETH, self.rdeth.is_some());
        set.set(HeaderSet::DETH, self.deth.is_some());
        set.set(HeaderSet::XRCETH, self.xrceth.is_some());
        set.set(HeaderSet::RETH, self.reth.is_some());
        set.set(HeaderSet::ATOMIC, self.atomic.is_some());
        set.set(HeaderSet::AETH, self.aeth.is_some());
        set.set(HeaderSet::ATOMIC_ACK, self.atomic_ack.is_some());
        set.set(HeaderSet::IETH, self.ieth.is_some());
        set.set(HeaderSet::IMM_DT, self.imm_dt.is_some());
        set
    }

    /// Reads the headers that `opcode` calls for; gives back what follows them. An opcode that no table knows is an
    /// error.
    pub fn read(opcode: Opcode, bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let set = opcode.headers().ok_or(WireError::Field {
            header: "BTH",
            field: "OpCode",
            found: u64::from(opcode.0),
        })?;
        let mut rest = bytes;
        let headers = Self {
            rdeth: take::<RdethView, _>(set, HeaderSet::RDETH, &mut rest)?,
            deth: take::<DethView, _>(set, HeaderSet::DETH, &mut rest)?,
            xrceth: take::<XrcethView, _>(set, HeaderSet::XRCETH, &mut rest)?,
            reth: take::<RethView, _>(set, HeaderSet::RETH, &mut rest)?,
            atomic: take::<AtomicEthView, _>(set, HeaderSet::ATOMIC, &mut rest)?,
            aeth: take::<AethView, _>(set, HeaderSet::AETH, &mut rest)?,
            atomic_ack: take::<AtomicAckEthView, _>(set, HeaderSet::ATOMIC_ACK, &mut rest)?,
            ieth: take::<IethView, _>(set, HeaderSet::IETH, &mut rest)?,
            imm_dt: take::<ImmDtView, _>(set, HeaderSet::IMM_DT, &mut rest)?,
        };
        Ok((headers, rest))
    }

    /// Writes the headers that are there; gives back the room behind them.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let out = put::<RdethView, _>(&self.rdeth, out)?;
        let out = put::<DethView, _>(&self.deth, out)?;
        let out = put::<XrcethView, _>(&self.xrceth, out)?;
        let out = put::<RethView, _>(&self.reth, out)?;
        let out = put::<AtomicEthView, _>(&self.atomic, out)?;
        let out = put::<AethView, _>(&self.aeth, out)?;
        let out = put::<AtomicAckEthView, _>(&self.atomic_ack, out)?;
        let out = put::<IethView, _>(&self.ieth, out)?;
        put::<ImmDtView, _>(&self.imm_dt, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_atomic_request_lies_as_the_table_says() {
        let atomic = AtomicEth {
            va: 0x0102_0304_0506_0708,
            r_key: RKey(0x1112_1314),
            swap_or_add: 0x2122_2324_2526_2728,
            compare: 0x3132_3334_3536_3738,
        };
        let mut bytes = [0; 28];
        atomic.write(&mut bytes).unwrap();
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26,
            0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn the_reth_of_example_a_reads_as_stated() {
        let bytes = [
            0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0, 0, 0, 0x0e,
        ];
        let reth = Reth {
            va: 0x0171_0a1c_015d_4002,
            r_key: RKey(0x38f2_7a05),
            dma_len: 14,
        };
        assert_eq!(Reth::read(&bytes).unwrap().0, reth);
    }

    #[test]
    fn small_headers_lie_as_the_tables_say() {
        let number = Qpn::new(0x12_3456);
        let mut out = [0xee; 12];
        let deth = Deth {
            q_key: QKey(0x8001_0000),
            src_qp: number,
        };
        deth.write(&mut out).unwrap();
        assert_eq!(out[..8], [0x80, 1, 0, 0, 0, 0x12, 0x34, 0x56]);
        Rdeth { ee_context: number }.write(&mut out).unwrap();
        assert_eq!(out[..4], [0, 0x12, 0x34, 0x56]);
        Xrceth { xrc_srq: number }.write(&mut out).unwrap();
        assert_eq!(out[..4], [0, 0x12, 0x34, 0x56]);
        Rwh { ether_type: 0x0800 }.write(&mut out).unwrap();
        assert_eq!(out[..4], [0, 0, 8, 0]);
        let r_key = RKey(0x0102_0304);
        Ieth { r_key }.write(&mut out).unwrap();
        assert_eq!(out[..4], [1, 2, 3, 4]);
        let original = 0x0102_0304_0506_0708;
        AtomicAckEth { original }.write(&mut out).unwrap();
        assert_eq!(out[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_header_without_room_says_how_much_it_wants() {
        let imm = ImmDt([1, 2, 3, 4]);
        let error = imm.write(&mut [0; 3]).unwrap_err();
        let expected = WireError::NoSpace {
            header: "ImmDt",
            need: 4,
            have: 3,
        };
        assert_eq!(error, expected);
    }

    proptest! {
        #[test]
        fn the_headers_of_an_opcode_write_back_as_many_bytes_as_they_were_read_from(
            code: u8, bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let opcode = Opcode(code);
            match Extended::read(opcode, &bytes) {
                Ok((headers, rest)) => {
                    let size = bytes.len() - rest.len();
                    prop_assert_eq!(headers.set().bytes(), size);
                    prop_assert_eq!(Some(headers.set()), opcode.headers());
                    let mut again = [0xee; 64];
                    let room = headers.write(&mut again).unwrap().len();
                    prop_assert_eq!(room, 64 - size);
                    prop_assert_eq!(Extended::read(opcode, &again[..size]).unwrap().0, headers);
                }
                Err(WireError::Field { .. }) => prop_assert!(!opcode.is_known()),
                Err(WireError::Truncated { .. }) => {
                    prop_assert!(opcode.headers().unwrap().bytes() > bytes.len());
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
