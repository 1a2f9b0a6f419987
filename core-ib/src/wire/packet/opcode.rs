//! Opcodes: the first byte of the BTH, which says the service, the operation, and with them the headers and the
//! payload that follow.
//!
//! Table: protocols 1.6.

use crate::types::Mtu;
use bitflags::bitflags;
use core::fmt;

/// Transport service: the upper 3 bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// The maker's own: 6 or 7.
    Manufacturer(u8),
}

bitflags! {
    /// Headers between BTH and payload, in the order in which they lie there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HeaderSet: u16 {
        /// RDETH, 4 bytes.
        const RDETH = 1 << 0;
        /// DETH, 8 bytes.
        const DETH = 1 << 1;
        /// XRCETH, 4 bytes.
        const XRCETH = 1 << 2;
        /// RETH, 16 bytes.
        const RETH = 1 << 3;
        /// AtomicETH, 28 bytes.
        const ATOMIC = 1 << 4;
        /// AETH, 4 bytes.
        const AETH = 1 << 5;
        /// AtomicAckETH, 8 bytes.
        const ATOMIC_ACK = 1 << 6;
        /// IETH, 4 bytes.
        const IETH = 1 << 7;
        /// ImmDt, 4 bytes.
        const IMM_DT = 1 << 8;
    }
}

impl HeaderSet {
    /// Bytes that the headers of the set take together.
    pub const fn bytes(self) -> usize {
        const SIZES: [(HeaderSet, usize); 9] = [
            (HeaderSet::RDETH, 4),
            (HeaderSet::DETH, 8),
            (HeaderSet::XRCETH, 4),
            (HeaderSet::RETH, 16),
            (HeaderSet::ATOMIC, 28),
            (HeaderSet::AETH, 4),
            (HeaderSet::ATOMIC_ACK, 8),
            (HeaderSet::IETH, 4),
            (HeaderSet::IMM_DT, 4),
        ];
        let (mut sum, mut rest) = (0, SIZES.as_slice());
        while let [(header, size), more @ ..] = rest {
            if self.contains(*header) {
                sum += *size;
            }
            rest = more;
        }
        sum
    }
}

/// What an opcode says about the length of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRule {
    /// No payload at all.
    None,
    /// Exactly the path MTU: First and Middle packets.
    ExactlyMtu,
    /// 1 byte to the path MTU: Last packets.
    OneToMtu,
    /// 0 bytes to the path MTU: Only packets.
    UpToMtu,
}

impl PayloadRule {
    /// May the payload of a packet on a path of MTU `mtu` be `len` bytes?
    pub const fn allows(self, len: usize, mtu: Mtu) -> bool {
        match self {
            Self::None => len == 0,
            Self::ExactlyMtu => len == mtu.bytes(),
            Self::OneToMtu => len >= 1 && len <= mtu.bytes(),
            Self::UpToMtu => len <= mtu.bytes(),
        }
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Of several packets the first.
    First,
    /// Neither first nor last.
    Middle,
    /// Of several packets the last.
    Last,
    /// The whole message.
    Only,
}

/// An opcode. An open set: what no table knows is kept, and has no [`Opcode::headers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Operation: the lower 5 bits of an opcode, without the service. An open set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u8);

impl Operation {
    /// SEND, first packet.
    pub const SEND_FIRST: Self = Self(0x00);
    /// SEND, middle packet.
    pub const SEND_MIDDLE: Self = Self(0x01);
    /// SEND, last packet.
    pub const SEND_LAST: Self = Self(0x02);
    /// SEND, last packet, with immediate data.
    pub const SEND_LAST_IMMEDIATE: Self = Self(0x03);
    /// SEND of one packet.
    pub const SEND_ONLY: Self = Self(0x04);
    /// SEND of one packet, with immediate data.
    pub const SEND_ONLY_IMMEDIATE: Self = Self(0x05);
    /// RDMA WRITE, first packet.
    pub const WRITE_FIRST: Self = Self(0x06);
    /// RDMA WRITE, middle packet.
    pub const WRITE_MIDDLE: Self = Self(0x07);
    /// RDMA WRITE, last packet.
    pub const WRITE_LAST: Self = Self(0x08);
    /// RDMA WRITE, last packet, with immediate data.
    pub const WRITE_LAST_IMMEDIATE: Self = Self(0x09);
    /// RDMA WRITE of one packet.
    pub const WRITE_ONLY: Self = Self(0x0a);
    /// RDMA WRITE of one packet, with immediate data.
    pub const WRITE_ONLY_IMMEDIATE: Self = Self(0x0b);
    /// RDMA READ request.
    pub const READ_REQUEST: Self = Self(0x0c);
    /// RDMA READ response, first packet.
    pub const READ_RESPONSE_FIRST: Self = Self(0x0d);
    /// RDMA READ response, middle packet.
    pub const READ_RESPONSE_MIDDLE: Self = Self(0x0e);
    /// RDMA READ response, last packet.
    pub const READ_RESPONSE_LAST: Self = Self(0x0f);
    /// RDMA READ response of one packet.
    pub const READ_RESPONSE_ONLY: Self = Self(0x10);
    /// Acknowledge.
    pub const ACKNOWLEDGE: Self = Self(0x11);
    /// Acknowledge of an atomic operation.
    pub const ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    /// Compare and swap.
    pub const CMP_SWAP: Self = Self(0x13);
    /// Fetch and add.
    pub const FETCH_ADD: Self = Self(0x14);
    /// RESYNC, RD only.
    pub const RESYNC: Self = Self(0x15);
    /// SEND, last packet, with invalidate.
    pub const SEND_LAST_INVALIDATE: Self = Self(0x16);
    /// SEND of one packet, with invalidate.
    pub const SEND_ONLY_INVALIDATE: Self = Self(0x17);

    /// Travels from responder to requester.
    pub const fn is_response(self) -> bool {
        self.0 >= 0x0d && self.0 <= 0x12
    }

    /// Headers of the operation itself, whatever the service: the column "RC view" of the table.
    const fn headers(self) -> HeaderSet {
        match self {
            Self::WRITE_FIRST | Self::WRITE_ONLY | Self::READ_REQUEST => HeaderSet::RETH,
            Self::WRITE_ONLY_IMMEDIATE => HeaderSet::RETH.union(HeaderSet::IMM_DT),
            Self::SEND_LAST_IMMEDIATE | Self::SEND_ONLY_IMMEDIATE | Self::WRITE_LAST_IMMEDIATE => {
                HeaderSet::IMM_DT
            }
            Self::READ_RESPONSE_FIRST
            | Self::READ_RESPONSE_LAST
            | Self::READ_RESPONSE_ONLY
            | Self::ACKNOWLEDGE => HeaderSet::AETH,
            Self::ATOMIC_ACKNOWLEDGE => HeaderSet::AETH.union(HeaderSet::ATOMIC_ACK),
            Self::CMP_SWAP | Self::FETCH_ADD => HeaderSet::ATOMIC,
            Self::SEND_LAST_INVALIDATE | Self::SEND_ONLY_INVALIDATE => HeaderSet::IETH,
            _ => HeaderSet::empty(),
        }
    }
}

impl Opcode {
    /// RC SEND, first packet.
    pub const RC_SEND_FIRST: Self = Self(0x00);
    /// RC SEND, middle packet.
    pub const RC_SEND_MIDDLE: Self = Self(0x01);
    /// RC SEND, last packet.
    pub const RC_SEND_LAST: Self = Self(0x02);
    /// RC SEND, last packet, with immediate data.
    pub const RC_SEND_LAST_IMMEDIATE: Self = Self(0x03);
    /// RC SEND of one packet.
    pub const RC_SEND_ONLY: Self = Self(0x04);
    /// RC SEND of one packet, with immediate data.
    pub const RC_SEND_ONLY_IMMEDIATE: Self = Self(0x05);
    /// RC RDMA WRITE, first packet.
    pub const RC_WRITE_FIRST: Self = Self(0x06);
    /// RC RDMA WRITE, middle packet.
    pub const RC_WRITE_MIDDLE: Self = Self(0x07);
    /// RC RDMA WRITE, last packet.
    pub const RC_WRITE_LAST: Self = Self(0x08);
    /// RC RDMA WRITE, last packet, with immediate data.
    pub const RC_WRITE_LAST_IMMEDIATE: Self = Self(0x09);
    /// RC RDMA WRITE of one packet.
    pub const RC_WRITE_ONLY: Self = Self(0x0a);
    /// RC RDMA WRITE of one packet, with immediate data.
    pub const RC_WRITE_ONLY_IMMEDIATE: Self = Self(0x0b);
    /// RC RDMA READ request.
    pub const RC_READ_REQUEST: Self = Self(0x0c);
    /// RC RDMA READ response, first packet.
    pub const RC_READ_RESPONSE_FIRST: Self = Self(0x0d);
    /// RC RDMA READ response, middle packet.
    pub const RC_READ_RESPONSE_MIDDLE: Self = Self(0x0e);
    /// RC RDMA READ response, last packet.
    pub const RC_READ_RESPONSE_LAST: Self = Self(0x0f);
    /// RC RDMA READ response of one packet.
    pub const RC_READ_RESPONSE_ONLY: Self = Self(0x10);
    /// RC acknowledge.
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// RC acknowledge of an atomic operation.
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    /// RC compare and swap.
    pub const RC_CMP_SWAP: Self = Self(0x13);
    /// RC fetch and add.
    pub const RC_FETCH_ADD: Self = Self(0x14);
    /// RC SEND, last packet, with invalidate.
    pub const RC_SEND_LAST_INVALIDATE: Self = Self(0x16);
    /// RC SEND of one packet, with invalidate.
    pub const RC_SEND_ONLY_INVALIDATE: Self = Self(0x17);
    /// UD SEND of one packet: the only operation of a datagram QP, but for its twin with immediate data.
    pub const UD_SEND_ONLY: Self = Self(0x64);
    /// UD SEND of one packet, with immediate data.
    pub const UD_SEND_ONLY_IMMEDIATE: Self = Self(0x65);
    /// Congestion notification packet.
    pub const CNP: Self = Self(0x80);

    /// Puts service and operation together. Any pair has a code; whether the pair exists, [`Opcode::headers`] says.
    pub const fn new(service: Service, operation: Operation) -> Self {
        let service = match service {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Rd => 2,
            Service::Ud => 3,
            Service::Cnp => 4,
            Service::Xrc => 5,
            Service::Manufacturer(code) => 6 | code & 1,
        };
        Self(service << 5 | operation.0 & 0x1f)
    }

    /// The upper 3 bits.
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            other => Service::Manufacturer(other),
        }
    }

    /// The lower 5 bits.
    pub const fn operation(self) -> Operation {
        Operation(self.0 & 0x1f)
    }

    /// Exists in the table: the service has the operation.
    pub const fn is_known(self) -> bool {
        let operation = self.0 & 0x1f;
        match self.service() {
            Service::Rc | Service::Xrc => {
                operation <= 0x14 || operation == 0x16 || operation == 0x17
            }
            Service::Uc => operation <= 0x0b,
            Service::Rd => operation <= 0x15,
            Service::Ud => operation == 0x04 || operation == 0x05,
            Service::Cnp => operation == 0,
            Service::Manufacturer(_) => false,
        }
    }

    /// Travels from responder to requester (acknowledges, READ responses) rather than the other way.
    pub const fn is_response(self) -> bool {
        self.is_known() && self.operation().is_response()
    }

    /// The headers between BTH and payload; `None` for an opcode that no table knows.
    pub const fn headers(self) -> Option<HeaderSet> {
        if !self.is_known() {
            return None;
        }
        let operation = self.operation();
        let service = match (self.service(), operation.is_response()) {
            (Service::Rd, false) => HeaderSet::RDETH.union(HeaderSet::DETH),
            (Service::Rd, true) => HeaderSet::RDETH,
            (Service::Xrc, false) => HeaderSet::XRCETH,
            (Service::Ud, _) => HeaderSet::DETH,
            (Service::Cnp, _) => return Some(HeaderSet::empty()),
            _ => HeaderSet::empty(),
        };
        Some(service.union(operation.headers()))
    }

    /// What the payload may be; `None` for an opcode that no table knows.
    pub const fn payload(self) -> Option<PayloadRule> {
        if !self.is_known() {
            return None;
        }
        if matches!(self.service(), Service::Cnp) {
            return Some(PayloadRule::UpToMtu);
        }
        Some(match self.position() {
            Some(Position::First | Position::Middle) => PayloadRule::ExactlyMtu,
            Some(Position::Last) => PayloadRule::OneToMtu,
            Some(Position::Only) => PayloadRule::UpToMtu,
            None => PayloadRule::None,
        })
    }

    /// Place in a message; `None` for packets that carry no part of one (requests to read, atomics, acknowledges)
    /// and for an opcode that no table knows.
    pub const fn position(self) -> Option<Position> {
        if !self.is_known() || matches!(self.service(), Service::Cnp) {
            return None;
        }
        Some(match self.0 & 0x1f {
            0x00 | 0x06 | 0x0d => Position::First,
            0x01 | 0x07 | 0x0e => Position::Middle,
            0x02 | 0x03 | 0x08 | 0x09 | 0x0f | 0x16 => Position::Last,
            0x04 | 0x05 | 0x0a | 0x0b | 0x10 | 0x17 => Position::Only,
            _ => return None,
        })
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const OPERATIONS: [&str; 24] = [
            "SEND First",
            "SEND Middle",
            "SEND Last",
            "SEND Last with Immediate",
            "SEND Only",
            "SEND Only with Immediate",
            "RDMA WRITE First",
            "RDMA WRITE Middle",
            "RDMA WRITE Last",
            "RDMA WRITE Last with Immediate",
            "RDMA WRITE Only",
            "RDMA WRITE Only with Immediate",
            "RDMA READ Request",
            "RDMA READ Response First",
            "RDMA READ Response Middle",
            "RDMA READ Response Last",
            "RDMA READ Response Only",
            "Acknowledge",
            "ATOMIC Acknowledge",
            "CmpSwap",
            "FetchAdd",
            "RESYNC",
            "SEND Last with Invalidate",
            "SEND Only with Invalidate",
        ];
        let service = match self.service() {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Rd => "RD",
            Service::Ud => "UD",
            Service::Cnp => return write!(f, "CNP ({:#04x})", self.0),
            Service::Xrc => "XRC",
            Service::Manufacturer(_) => return write!(f, "opcode {:#04x}", self.0),
        };
        match OPERATIONS.get(usize::from(self.0 & 0x1f)) {
            Some(operation) if self.is_known() => write!(f, "{service} {operation}"),
            _ => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    /// Rows of the table in protocols 1.6: operation, services (RC UC RD UD XRC), bytes of headers for RC, payload.
    const TABLE: [(u8, &str, usize, PayloadRule); 24] = {
        use PayloadRule::{ExactlyMtu as M, None as N, OneToMtu as L, UpToMtu as O};
        [
            (0x00, "CUD X", 0, M),
            (0x01, "CUD X", 0, M),
            (0x02, "CUD X", 0, L),
            (0x03, "CUD X", 4, L),
            (0x04, "CUDGX", 0, O),
            (0x05, "CUDGX", 4, O),
            (0x06, "CUD X", 16, M),
            (0x07, "CUD X", 0, M),
            (0x08, "CUD X", 0, L),
            (0x09, "CUD X", 4, L),
            (0x0a, "CUD X", 16, O),
            (0x0b, "CUD X", 20, O),
            (0x0c, "C D X", 16, N),
            (0x0d, "C D X", 4, M),
            (0x0e, "C D X", 0, M),
            (0x0f, "C D X", 4, L),
            (0x10, "C D X", 4, O),
            (0x11, "C D X", 4, N),
            (0x12, "C D X", 12, N),
            (0x13, "C D X", 28, N),
            (0x14, "C D X", 28, N),
            (0x15, "  D  ", 0, N),
            (0x16, "C   X", 4, L),
            (0x17, "C   X", 4, O),
        ]
    };

    #[test]
    fn every_row_of_the_table_holds_for_every_service() {
        let services = [
            Service::Rc,
            Service::Uc,
            Service::Rd,
            Service::Ud,
            Service::Xrc,
        ];
        for operation in 0..32 {
            let row = TABLE.get(usize::from(operation));
            for (service, mark) in services.into_iter().zip(["C", "U", "D", "G", "X"]) {
                let opcode = Opcode::new(service, Operation(operation));
                assert_eq!(
                    (opcode.service(), opcode.operation().0),
                    (service, operation)
                );
                let Some(&(number, _, bytes, payload)) = row.filter(|row| row.1.contains(mark))
                else {
                    assert_eq!(
                        (opcode.headers(), opcode.payload()),
                        (None, None),
                        "{opcode}"
                    );
                    continue;
                };
                assert_eq!(number, operation);
                let response = (0x0d..=0x12).contains(&operation);
                let extra = match (service, response) {
                    (Service::Rd, false) => 12,
                    (Service::Rd, true) | (Service::Xrc, false) => 4,
                    (Service::Ud, _) => 8,
                    _ => 0,
                };
                assert_eq!(opcode.headers().unwrap().bytes(), bytes + extra, "{opcode}");
                assert_eq!(opcode.payload(), Some(payload), "{opcode}");
                assert_eq!(opcode.is_response(), response, "{opcode}");
            }
        }
    }

    #[test]
    fn the_code_points_are_those_of_the_second_table() {
        let code = |service, operation| Opcode::new(service, operation).0;
        assert_eq!(code(Service::Uc, Operation::WRITE_ONLY_IMMEDIATE), 0x2b);
        assert_eq!(code(Service::Ud, Operation::SEND_ONLY), 0x64);
        assert_eq!(code(Service::Xrc, Operation::READ_REQUEST), 0xac);
        assert_eq!(code(Service::Xrc, Operation::SEND_ONLY_INVALIDATE), 0xb7);
        assert_eq!(Opcode::UD_SEND_ONLY.to_string(), "UD SEND Only");
        assert_eq!(Opcode(0x66).to_string(), "opcode 0x66");
    }

    #[test]
    fn only_a_whole_message_may_be_empty() {
        assert!(PayloadRule::UpToMtu.allows(0, Mtu::Mtu256));
        assert!(!PayloadRule::OneToMtu.allows(0, Mtu::Mtu256));
        assert!(!PayloadRule::UpToMtu.allows(257, Mtu::Mtu256));
        assert!(!PayloadRule::ExactlyMtu.allows(255, Mtu::Mtu256));
        assert!(PayloadRule::ExactlyMtu.allows(1024, Mtu::Mtu1024));
        assert!(!PayloadRule::None.allows(1, Mtu::Mtu256));
    }
}
