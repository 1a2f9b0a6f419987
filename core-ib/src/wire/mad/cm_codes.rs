//! Numbers that only communication management has: identities, services, reasons. protocols 5.1, 5.2, 5.5 to 5.8.

use super::layout::{bits, constants, number};
use crate::Qpn;
use core::fmt;

/// Communication ID: one end's name of a connection, chosen by that end. protocols 5.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl CommId {
    /// Nobody's: what a rejecter gives who has none.
    pub const NONE: Self = Self(0);
}

/// Service ID: by which a listener is found. protocols 5.2.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// TCP's number among IP protocols: the port space of reliable connections over IP addresses.
    pub const PROTOCOL_TCP: u8 = 0x06;
    /// UDP's: datagrams over IP addresses.
    pub const PROTOCOL_UDP: u8 = 0x11;
    /// What Linux calls the "IB" port space.
    pub const PROTOCOL_IB: u8 = 0x3f;

    /// IP addressing over CM: `protocol` and `port` of an IP address. protocols 5.11.
    pub const fn ip(protocol: u8, port: u16) -> Self {
        Self(0x0100_0000 | (protocol as u64) << 16 | port as u64)
    }

    /// Sockets Direct Protocol, by its port.
    pub const fn sdp(port: u16) -> Self {
        Self(0x0001_0000 | port as u64)
    }

    /// IPoIB connected mode as RFC 4755 has it, by the QPN of the datagram QP.
    pub const fn ipoib_rfc(qpn: Qpn) -> Self {
        Self(0x0100_0000_0000_0000 | qpn.get() as u64)
    }

    /// IPoIB connected mode as Linux has it. protocols 6.9.
    pub const fn ipoib_linux(qpn: Qpn) -> Self {
        Self(0x1000_0000_0000_0000 | qpn.get() as u64)
    }

    /// The protocol and port of an ID of the RDMA IP CM service.
    pub const fn as_ip(self) -> Option<(u8, u16)> {
        if self.0 >> 24 == 1 {
            Some(((self.0 >> 16) as u8, self.0 as u16))
        } else {
            None
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Transport service of a REQ, two bits. protocols 5.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CmService(pub u8);

constants! { CmService:
    /// Reliable connected.
    RC = 0;
    /// Unreliable connected.
    UC = 1;
    /// Reliable datagram.
    RD = 2;
    /// As the extended transport type says.
    EXTENDED = 3;
}

/// Which message an MRA or a REJ is about, two bits. protocols 5.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CmSubject(pub u8);

constants! { CmSubject:
    /// A REQ.
    REQ = 0;
    /// A REP.
    REP = 1;
    /// MRA: a LAP. REJ: none, but a timeout or a connection that is stale.
    OTHER = 2;
}

/// Whether the recipient of a REQ took the alternate path, two bits of the REP. protocols 5.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Failover(pub u8);

constants! { Failover:
    /// Taken.
    ACCEPTED = 0;
    /// It cannot fail over.
    UNSUPPORTED = 1;
    /// It can, but not to that path.
    REJECTED = 2;
}

/// Why a REJ was sent. An open set. protocols 5.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

constants! { RejReason:
    /// No QP available.
    NO_QP = 1;
    /// No EE context available.
    NO_EEC = 2;
    /// No resources.
    NO_RESOURCES = 3;
    /// The peer did not answer in time. ARI: CA GUID of the rejecter.
    TIMEOUT = 4;
    /// The request is of a kind not served.
    UNSUPPORTED = 5;
    /// No such communication ID.
    INVALID_COMM_ID = 6;
    /// No such communication instance.
    INVALID_COMM_INSTANCE = 7;
    /// Nobody listens there.
    INVALID_SERVICE_ID = 8;
    /// Not that transport service.
    INVALID_TRANSPORT = 9;
    /// The QP, as far as the rejecter knows, is in another connection, or was until a moment ago.
    STALE_CONNECTION = 10;
    /// No such RDC.
    NO_RDC = 11;
    /// ARI: a GID that would do.
    PRIMARY_GID = 12;
    /// ARI: a LID that would do.
    PRIMARY_LID = 13;
    /// ARI: a service level that would do.
    PRIMARY_SL = 14;
    /// ARI: a traffic class that would do.
    PRIMARY_TRAFFIC_CLASS = 15;
    /// ARI: a hop limit that would do.
    PRIMARY_HOP_LIMIT = 16;
    /// ARI: a packet rate that would do.
    PRIMARY_RATE = 17;
    /// ARI: a GID that would do.
    ALTERNATE_GID = 18;
    /// ARI: a LID that would do.
    ALTERNATE_LID = 19;
    /// ARI: a service level that would do.
    ALTERNATE_SL = 20;
    /// ARI: a traffic class that would do.
    ALTERNATE_TRAFFIC_CLASS = 21;
    /// ARI: a hop limit that would do.
    ALTERNATE_HOP_LIMIT = 22;
    /// ARI: a packet rate that would do.
    ALTERNATE_RATE = 23;
    /// Ask another port or QP. ARI: ClassPortInfo.
    CM_REDIRECT = 24;
    /// Connect to another port. ARI: its GID.
    PORT_REDIRECT = 25;
    /// ARI: the largest path MTU that would do.
    INVALID_MTU = 26;
    /// Too few responder resources.
    RESPONDER_RESOURCES = 27;
    /// The consumer does not want to; he says why in ARI or private data.
    CONSUMER = 28;
    /// RNR retry count.
    RNR_RETRY = 29;
    /// The communication ID is in use for another connection.
    DUPLICATE_COMM_ID = 30;
    /// ARI: the highest class version served.
    CLASS_VERSION = 31;
    /// ARI: a flow label that would do.
    PRIMARY_FLOW_LABEL = 32;
    /// ARI: a flow label that would do.
    ALTERNATE_FLOW_LABEL = 33;
    /// A vendor's option is not served.
    VENDOR_OPTION = 35;
}

/// Answer to a LAP. protocols 5.7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AprStatus(pub u8);

constants! { AprStatus:
    /// Loaded.
    OK = 0;
    /// No such communication ID.
    INVALID_COMM_ID = 1;
    /// No alternate paths here.
    UNSUPPORTED = 2;
    /// Not wanted.
    REJECTED = 3;
    /// Ask elsewhere.
    REDIRECT = 4;
    /// It is the path in use.
    IS_CURRENT = 5;
    /// No such QPN.
    INVALID_QPN = 6;
    /// Not that LID.
    INVALID_LID = 7;
    /// Not that GID.
    INVALID_GID = 8;
    /// Not that flow label.
    INVALID_FLOW_LABEL = 9;
    /// Not that traffic class.
    INVALID_TRAFFIC_CLASS = 10;
    /// Not that hop limit.
    INVALID_HOP_LIMIT = 11;
    /// Not that packet rate.
    INVALID_RATE = 12;
    /// Not that service level.
    INVALID_SL = 13;
}

/// Answer to a SIDR_REQ. protocols 5.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

constants! { SidrStatus:
    /// The QPN and Q_Key are good.
    OK = 0;
    /// Nobody listens there.
    UNSUPPORTED = 1;
    /// The service does not want to.
    REJECTED = 2;
    /// It has no QP.
    NO_QP = 3;
    /// Ask elsewhere.
    REDIRECT = 4;
    /// Not that version.
    UNSUPPORTED_VERSION = 5;
}

number! {
    CommId, 4, |bits| Self(bits as u32), |id| id.0.into();
    ServiceId, 8, |bits| Self(bits), |id| id.0;
    RejReason, 2, |bits| Self(bits as u16), |reason| reason.0.into();
    AprStatus, 1, |bits| Self(bits as u8), |status| status.0.into();
    SidrStatus, 1, |bits| Self(bits as u8), |status| status.0.into();
}

bits! {
    CmService, |bits| Self(bits as u8 & 3), |service| service.0.into();
    CmSubject, |bits| Self(bits as u8 & 3), |subject| subject.0.into();
    Failover, |bits| Self(bits as u8 & 3), |failover| failover.0.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// protocols 5.2.
    #[test]
    fn a_service_id_says_whose_it_is() {
        let tcp = ServiceId::ip(ServiceId::PROTOCOL_TCP, 7174);
        assert_eq!(tcp, ServiceId(0x0000_0000_0106_1c06));
        assert_eq!(tcp.as_ip(), Some((6, 7174)));
        let ib = ServiceId::ip(ServiceId::PROTOCOL_IB, 0xabcd);
        assert_eq!(ib, ServiceId(0x0000_0000_013f_abcd));
        let qpn = Qpn::new(0x12_3456);
        assert_eq!(ServiceId::ipoib_rfc(qpn), ServiceId(0x0100_0000_0012_3456));
        assert_eq!(
            ServiceId::ipoib_linux(qpn),
            ServiceId(0x1000_0000_0012_3456)
        );
        assert_eq!(ServiceId::sdp(5), ServiceId(0x0001_0005));
        assert_eq!(ServiceId::ipoib_rfc(qpn).as_ip(), None);
        assert_eq!(ServiceId::sdp(5).as_ip(), None);
    }
}
