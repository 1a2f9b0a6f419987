//! The messages of communication management beside a connection's beginning and end: another path for it (LAP, APR),
//! resolving a service of datagrams (SIDR), and the header of IP addressing. protocols 5.7, 5.8, 5.11.

use super::layout::layout;
use super::{AprStatus, AttributeId, CommId, ServiceId, SidrStatus, TimeCode};
use crate::types::{Gid, Lid, PKey, QKey, Qpn, Rate, Sl};
use crate::wire::FlowLabel;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

layout! {
    /// Load alternate path. protocols 5.7.
    pub struct CmLap, CmLapView: 232, AttributeId::CM_LAP;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// The recipient's QP (or EE context).
    remote_qpn: Qpn = 12,
    /// In which the recipient has to answer.
    remote_timeout: TimeCode = 15 [7:3],
    /// LID of the sender.
    local_lid: Lid = 20,
    /// LID of the recipient.
    remote_lid: Lid = 22,
    /// GID of the sender.
    local_gid: Gid = 24,
    /// GID of the recipient.
    remote_gid: Gid = 40,
    /// Flow label.
    flow_label: FlowLabel = 56/3 [23:4],
    /// Traffic class.
    traffic_class: u8 = 59,
    /// Hop limit.
    hop_limit: u8 = 60,
    /// Packet rate.
    rate: Rate = 61 [5:0],
    /// Service level.
    sl: Sl = 62 [7:4],
    /// The LIDs are good at both ends.
    subnet_local: bool = 62 [3:3],
    /// Local ACK timeout, for the recipient's QP.
    ack_timeout: TimeCode = 63 [7:3],
    /// Private data.
    private: [u8; 168] = 64,
}

layout! {
    /// Response to a LAP. protocols 5.7.
    pub struct CmApr, CmAprView: 232, AttributeId::CM_APR;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// Bytes of `info` that count.
    info_len: u8 = 8,
    /// What became of it.
    status: AprStatus = 9,
    /// Additional information; what, the status says.
    info: [u8; 72] = 12,
    /// Private data.
    private: [u8; 148] = 84,
}

layout! {
    /// Request to resolve a service ID to a datagram QP. protocols 5.8.
    pub struct CmSidrReq, CmSidrReqView: 232, AttributeId::CM_SIDR_REQ;
    /// The requester's name of the request.
    request_id: CommId = 0,
    /// Partition.
    p_key: PKey = 4,
    /// ServiceID.
    service_id: ServiceId = 8,
    /// Private data.
    private: [u8; 216] = 16,
}

layout! {
    /// Answer to a SIDR_REQ. protocols 5.8.
    pub struct CmSidrRep, CmSidrRepView: 232, AttributeId::CM_SIDR_REP;
    /// The requester's name of the request.
    request_id: CommId = 0,
    /// What became of it.
    status: SidrStatus = 4,
    /// Bytes of `info` that count.
    info_len: u8 = 5,
    /// Of a vendor's extension, bits 23 to 8.
    vendor_id_high: u16 = 6,
    /// The service's QP.
    qpn: Qpn = 8,
    /// Of a vendor's extension, bits 7 to 0.
    vendor_id_low: u8 = 11,
    /// ServiceID.
    service_id: ServiceId = 12,
    /// Q_Key of the QP.
    q_key: QKey = 20,
    /// Additional information; what, the status says.
    info: [u8; 72] = 24,
    /// Private data.
    private: [u8; 136] = 96,
}

layout! {
    /// What the private data of a REQ or SIDR_REQ begins with where addresses are those of IP. protocols 5.11.
    pub struct IpCmHeader, IpCmHeaderView: 36;
    /// 0.
    major_version: u8 = 0 [7:4],
    /// 0.
    minor_version: u8 = 0 [3:0],
    /// 4 or 6.
    ip_version: u8 = 1 [7:4],
    /// The sender's port.
    src_port: u16 = 2,
    /// The sender's address; of IPv4 in the last four bytes.
    src: [u8; 16] = 4,
    /// The recipient's address.
    dst: [u8; 16] = 20,
}

impl IpCmHeader {
    /// From `src`:`src_port` to `dst`. `None` if one is IPv4 and the other IPv6.
    pub fn new(src: IpAddr, src_port: u16, dst: IpAddr) -> Option<Self> {
        let (ip_version, src, dst) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (4, in_last(src), in_last(dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => (6, src.octets(), dst.octets()),
            _ => return None,
        };
        Some(Self {
            ip_version,
            src_port,
            src,
            dst,
            ..Self::default()
        })
    }

    /// Source and destination; `None` if the header is of another version or of no IP version.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let addresses = [self.src, self.dst];
        let [src, dst] = match (self.major_version, self.ip_version) {
            (0, 4) => addresses.map(|[.., a, b, c, d]| IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            (0, 6) => addresses.map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes))),
            _ => return None,
        };
        Some((src, dst))
    }
}

fn in_last(address: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = address.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}
