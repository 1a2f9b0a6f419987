//! A message of communication management by its kind, out of a MAD and into one. protocols 5.1.

use core_ib::wire::mad::{
    Attribute, AttributeId, CmApr, CmDrep, CmDreq, CmLap, CmMra, CmRej, CmRep, CmReq, CmRtu,
    CmSidrRep, CmSidrReq, Mad, MadHeader, Method, MgmtClass,
};

/// A message, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication.
    Req(CmReq),
    /// Reply to it.
    Rep(CmRep),
    /// Ready to use.
    Rtu(CmRtu),
    /// Message receipt acknowledged.
    Mra(CmMra),
    /// Reject.
    Rej(CmRej),
    /// Request to disconnect.
    Dreq(CmDreq),
    /// Reply to it.
    Drep(CmDrep),
    /// Load alternate path.
    Lap(CmLap),
    /// Response to it.
    Apr(CmApr),
    /// Request to resolve a service.
    SidrReq(CmSidrReq),
    /// Answer to it.
    SidrRep(CmSidrRep),
}

impl Message {
    /// What the MAD holds; `None` if it is none of these, SAP and SPR among them.
    pub fn read(mad: &Mad) -> Option<Self> {
        let header = mad.header();
        if header.class != MgmtClass::CM || header.method != Method::SEND {
            return None;
        }
        let message = match header.attribute {
            AttributeId::CM_REQ => mad.get().map(Self::Req),
            AttributeId::CM_REP => mad.get().map(Self::Rep),
            AttributeId::CM_RTU => mad.get().map(Self::Rtu),
            AttributeId::CM_MRA => mad.get().map(Self::Mra),
            AttributeId::CM_REJ => mad.get().map(Self::Rej),
            AttributeId::CM_DREQ => mad.get().map(Self::Dreq),
            AttributeId::CM_DREP => mad.get().map(Self::Drep),
            AttributeId::CM_LAP => mad.get().map(Self::Lap),
            AttributeId::CM_APR => mad.get().map(Self::Apr),
            AttributeId::CM_SIDR_REQ => mad.get().map(Self::SidrReq),
            AttributeId::CM_SIDR_REP => mad.get().map(Self::SidrRep),
            _ => return None,
        };
        message.ok()
    }
}

/// A message as a MAD with the transaction id `tid`.
pub fn mad_of<A: Attribute>(tid: u64, message: &A) -> Mad {
    let mut mad = Mad::ZERO;
    mad.set_header(&MadHeader {
        base_version: MadHeader::BASE_VERSION,
        class: MgmtClass::CM,
        class_version: CLASS_VERSION,
        method: Method::SEND,
        tid,
        attribute: A::ID,
        ..MadHeader::default()
    });
    // Every message of the class is as long as its data.
    let _ = mad.put(message);
    mad
}

/// Of the class. protocols 3.2.
pub const CLASS_VERSION: u8 = 2;

/// Private data in a field of fixed length: as much as there is, then zeros. `Err` with the length of the field if it
/// does not fit.
pub(crate) fn private<const N: usize>(data: &[u8]) -> Result<[u8; N], usize> {
    let mut field = [0; N];
    let place = field.get_mut(..data.len()).ok_or(N)?;
    place.copy_from_slice(data);
    Ok(field)
}
