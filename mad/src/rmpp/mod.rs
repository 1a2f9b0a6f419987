//! The reliable multi-packet protocol (RMPP): messages of many MADs. protocols 4.3.
//!
//! [`RmppSender`] and [`RmppReceiver`] are the two ends of one transfer. Neither holds the data: the sender asks for
//! the bytes of a segment when it is due (so that a server can make them on the fly), the receiver is handed the
//! buffer with every segment. The class decides how much a segment carries: 200 bytes with subnet administration,
//! 216 with a vendor class of 0x30 to 0x4F.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use receiver::{ReceiverNext, RmppReceiver};
pub use sender::{RmppSender, SenderNext};

use core::fmt;
use core_ib::wire::mad::{Layout, Mad, MgmtClass, RmppFlags, RmppHeader, RmppStatus, RmppType};

/// Bytes before the data of a segment, at most.
const HEAD: usize = 56;
/// Where the RMPP header is.
const RMPP: usize = 24;
/// Where what counts as payload begins.
const PAYLOAD: usize = 36;

/// Why a message did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RmppError {
    /// The class has no RMPP header.
    NotRmpp {
        /// The class.
        class: MgmtClass,
    },
    /// More bytes than segments can be numbered.
    TooLong {
        /// Bytes.
        len: usize,
    },
    /// Longer than the buffer given. The peer was told.
    BufferTooSmall {
        /// Bytes needed, as far as is known by now.
        need: usize,
        /// Bytes there are.
        room: usize,
    },
    /// The peer is out of something.
    Stopped {
        /// What it said.
        status: RmppStatus,
    },
    /// The peer gave up.
    Aborted {
        /// What it said.
        status: RmppStatus,
    },
    /// We gave up, and told the peer so.
    GaveUp {
        /// What we said.
        status: RmppStatus,
    },
}

impl fmt::Display for RmppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotRmpp { class } => write!(f, "class {:#04x} has no RMPP", class.0),
            Self::TooLong { len } => write!(f, "{len} bytes are too long for one message"),
            Self::BufferTooSmall { need, room } => {
                write!(f, "the message has {need} bytes or more, the buffer {room}")
            }
            Self::Stopped { status } => write!(f, "the peer stopped, status {}", status.0),
            Self::Aborted { status } => write!(f, "the peer aborted, status {}", status.0),
            Self::GaveUp { status } => write!(f, "aborted with status {}", status.0),
        }
    }
}

impl core::error::Error for RmppError {}

/// The RMPP header of a MAD; all zero if its class has none.
pub fn header(mad: &Mad) -> RmppHeader {
    if !MgmtClass(mad.0[1]).has_rmpp_header() {
        return RmppHeader::default();
    }
    let bytes = mad.0.get(RMPP..).unwrap_or(&[]);
    RmppHeader::read(bytes).unwrap_or_default()
}

/// Is this MAD part of a transfer, rather than a message of its own?
pub fn is_active(mad: &Mad) -> bool {
    header(mad).is_active()
}

/// Does this MAD answer a segment (ACK, STOP, ABORT), rather than carry one? Such a one has the method of the other
/// direction: what acknowledges a GetTableResp looks like a GetTable (protocols 4.3.3), and is no request.
pub fn is_control(mad: &Mad) -> bool {
    let header = header(mad);
    header.is_active() && header.kind != RmppType::DATA
}

/// Puts an RMPP header in its place.
fn put(mad: &mut Mad, header: &RmppHeader) {
    if let Some(place) = mad.0.get_mut(RMPP..) {
        let _ = header.write(place); // 232 bytes hold 12
    }
}

/// What a segment of `class` carries: its offset in the MAD, and its length.
fn data_of(class: MgmtClass) -> Result<(usize, usize), RmppError> {
    if !class.has_rmpp_header() {
        return Err(RmppError::NotRmpp { class });
    }
    Ok((class.data_offset(), class.data_len()))
}

/// A MAD that opens with `head` and carries no data.
fn control(head: &[u8; HEAD], toggle: bool, header: &RmppHeader) -> Mad {
    let mut mad = Mad::ZERO;
    if let Some(place) = mad.0.first_chunk_mut() {
        *place = *head;
    }
    mad.0[3] ^= if toggle { 0x80 } else { 0 };
    (mad.0[4], mad.0[5]) = (0, 0);
    put(&mut mad, header);
    mad
}

/// Header of an ACK, STOP or ABORT.
fn control_header(kind: RmppType, status: RmppStatus) -> RmppHeader {
    RmppHeader {
        version: RmppHeader::VERSION,
        kind,
        resp_time: RmppHeader::NO_TIME,
        flags: RmppFlags::ACTIVE,
        status,
        segment: 0,
        length_or_window: 0,
    }
}

/// The bytes before the data of a MAD of `class`.
fn head_of(mad: &Mad, offset: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    for (to, from) in head.iter_mut().zip(mad.0.iter().take(offset)) {
        *to = *from;
    }
    head
}
