//! The messages that set up and end a connection: REQ, REP, RTU, MRA, REJ, DREQ, DREP. protocols 5.3 to 5.6.
//!
//! In each, "local" is the sender's.

use super::layout::layout;
use super::{
    AttributeId, CmService, CmSubject, CommId, Failover, MtuCode, RejReason, ServiceId, TimeCode,
};
use crate::types::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn, Rate, Sl};
use crate::wire::FlowLabel;

layout! {
    /// A path in a REQ, seen from its sender. All zeros for an alternate path: there is none. protocols 5.3.
    pub struct CmPath, CmPathView: 44;
    /// LID of the sender.
    local_lid: Lid = 0,
    /// LID of the recipient.
    remote_lid: Lid = 2,
    /// GID of the sender.
    local_gid: Gid = 4,
    /// GID of the recipient.
    remote_gid: Gid = 20,
    /// Flow label.
    flow_label: FlowLabel = 36/3 [23:4],
    /// Packet rate.
    rate: Rate = 39 [5:0],
    /// Traffic class.
    traffic_class: u8 = 40,
    /// Hop limit.
    hop_limit: u8 = 41,
    /// Service level.
    sl: Sl = 42 [7:4],
    /// The LIDs are good at both ends: no router is between, and no GRH is needed.
    subnet_local: bool = 42 [3:3],
    /// Local ACK timeout, for the recipient's QP.
    ack_timeout: TimeCode = 43 [7:3],
}

impl CmPath {
    /// There is such a path: it has an address at both ends.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

layout! {
    /// Request for communication. protocols 5.3.
    pub struct CmReq, CmReqView: 232, AttributeId::CM_REQ;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Of a vendor's extension of the establishment; 0 without one.
    vendor_id: u32 = 5/3 [23:0],
    /// ServiceID.
    service_id: ServiceId = 8,
    /// Node GUID of the sender's HCA.
    ca_guid: Guid = 16,
    /// Q_Key of the sender's QP, where it has one.
    q_key: QKey = 28,
    /// The sender's QP.
    qpn: Qpn = 32,
    /// Reads and atomics that the sender serves at once.
    responder_resources: u8 = 35,
    /// The sender's EE context; reliable datagrams alone.
    eecn: Qpn = 36,
    /// Reads and atomics that the sender wants under way at once.
    initiator_depth: u8 = 39,
    /// The recipient's EE context; reliable datagrams alone.
    remote_eecn: Qpn = 40,
    /// In which the recipient has to answer.
    remote_timeout: TimeCode = 43 [7:3],
    /// Transport service.
    service: CmService = 43 [2:1],
    /// End-to-end flow control.
    flow_control: bool = 43 [0:0],
    /// The PSN that the sender's receive queue expects first.
    psn: Psn = 44,
    /// In which the sender will answer.
    local_timeout: TimeCode = 47 [7:3],
    /// Transport retries, for the recipient's QP.
    retry_count: u8 = 47 [2:0],
    /// Partition.
    p_key: PKey = 48,
    /// Path MTU.
    mtu: MtuCode = 50 [7:4],
    /// RDC exists; reliable datagrams alone.
    rdc_exists: bool = 50 [3:3],
    /// RNR retries, for the recipient's QP; 7 is for ever.
    rnr_retry: u8 = 50 [2:0],
    /// How often a message is repeated.
    max_cm_retries: u8 = 51 [7:4],
    /// The sender's QP receives through an SRQ.
    srq: bool = 51 [3:3],
    /// With [`CmService::EXTENDED`]: 1 is XRC.
    extended_transport: u8 = 51 [2:0],
    /// The path.
    primary: CmPath = 52,
    /// Another, all zeros for none.
    alternate: CmPath = 96,
    /// Suggesting alternate paths (SAP) is supported.
    sap_supported: bool = 139 [2:2],
    /// Private data.
    private: [u8; 92] = 140,
}

layout! {
    /// Reply to a request for communication. protocols 5.4.
    pub struct CmRep, CmRepView: 232, AttributeId::CM_REP;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// Q_Key of the sender's QP, where it has one.
    q_key: QKey = 8,
    /// The sender's QP.
    qpn: Qpn = 12,
    /// Of a vendor's extension, bits 23 to 16.
    vendor_id_high: u8 = 15,
    /// The sender's EE context; reliable datagrams alone.
    eecn: Qpn = 16,
    /// Of a vendor's extension, bits 15 to 8.
    vendor_id_mid: u8 = 19,
    /// The PSN that the sender's receive queue expects first.
    psn: Psn = 20,
    /// Of a vendor's extension, bits 7 to 0.
    vendor_id_low: u8 = 23,
    /// Reads and atomics that the sender serves at once.
    responder_resources: u8 = 24,
    /// Reads and atomics that the sender will have under way at once.
    initiator_depth: u8 = 25,
    /// How long the sender's HCA takes to acknowledge.
    target_ack_delay: TimeCode = 26 [7:3],
    /// What became of the alternate path.
    failover: Failover = 26 [2:1],
    /// End-to-end flow control.
    flow_control: bool = 26 [0:0],
    /// RNR retries, for the recipient's QP; 7 is for ever.
    rnr_retry: u8 = 27 [7:5],
    /// The sender's QP receives through an SRQ.
    srq: bool = 27 [4:4],
    /// Node GUID of the sender's HCA.
    ca_guid: Guid = 28,
    /// Private data.
    private: [u8; 196] = 36,
}

layout! {
    /// Ready to use. protocols 5.5.
    pub struct CmRtu, CmRtuView: 232, AttributeId::CM_RTU;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// Private data.
    private: [u8; 224] = 8,
}

layout! {
    /// Message receipt acknowledged: the answer takes longer. protocols 5.5.
    pub struct CmMra, CmMraView: 232, AttributeId::CM_MRA;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// Which message.
    subject: CmSubject = 8 [7:6],
    /// In which the answer will come.
    service_timeout: TimeCode = 9 [7:3],
    /// Private data.
    private: [u8; 222] = 10,
}

layout! {
    /// Reject. protocols 5.5.
    pub struct CmRej, CmRejView: 232, AttributeId::CM_REJ;
    /// Local communication ID; 0 if the rejecter has none.
    local_id: CommId = 0,
    /// Remote communication ID; 0 if it is not known.
    remote_id: CommId = 4,
    /// Which message.
    subject: CmSubject = 8 [7:6],
    /// Bytes of `ari` that count.
    ari_len: u8 = 9 [7:1],
    /// Why.
    reason: RejReason = 10,
    /// Additional reject information; what, the reason says.
    ari: [u8; 72] = 12,
    /// Private data.
    private: [u8; 148] = 84,
}

layout! {
    /// Request to disconnect. protocols 5.6.
    pub struct CmDreq, CmDreqView: 232, AttributeId::CM_DREQ;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// The recipient's QP (or EE context).
    remote_qpn: Qpn = 8,
    /// Private data.
    private: [u8; 220] = 12,
}

layout! {
    /// Reply to a request to disconnect. protocols 5.6.
    pub struct CmDrep, CmDrepView: 232, AttributeId::CM_DREP;
    /// Local communication ID.
    local_id: CommId = 0,
    /// Remote communication ID.
    remote_id: CommId = 4,
    /// Private data.
    private: [u8; 224] = 8,
}
