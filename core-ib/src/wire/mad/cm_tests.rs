//! Byte tests of communication management, written from the tables of protocols 5.3 to 5.8 and 5.11 by hand.

extern crate std;

use super::layout::property::round_trip_tests;
use super::*;
use crate::wire::FlowLabel;
use crate::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn, Rate, Sl};
use core::net::IpAddr;
use std::vec::Vec;

round_trip_tests!(
    CmPath, CmReq, CmRep, CmRtu, CmMra, CmRej, CmDreq, CmDrep, CmLap, CmApr, CmSidrReq, CmSidrRep,
    IpCmHeader,
);

/// 1, 2, 3, …, as many as asked for, from `first` on.
fn count<const N: usize>(first: u8) -> [u8; N] {
    core::array::from_fn(|i| first.wrapping_add(i as u8))
}

fn path(seed: u8) -> CmPath {
    CmPath {
        local_lid: Lid(0x1100 | u16::from(seed)),
        remote_lid: Lid(0x2200 | u16::from(seed)),
        local_gid: Gid([seed; 16]),
        remote_gid: Gid([seed + 1; 16]),
        flow_label: FlowLabel::new(0xa_bcde),
        rate: Rate(0x23),
        traffic_class: 0x45,
        hop_limit: 0x67,
        sl: Sl::new(0x9),
        subnet_local: true,
        ack_timeout: TimeCode(0x15),
    }
}

/// The 44 bytes of [`path`].
fn path_bytes(seed: u8) -> Vec<u8> {
    let mut bytes = std::vec![0x11, seed, 0x22, seed];
    bytes.extend([seed; 16]);
    bytes.extend([seed + 1; 16]);
    bytes.extend([0xab, 0xcd, 0xe0, 0x23, 0x45, 0x67, 0x98, 0xa8]);
    bytes
}

/// protocols 5.3.
#[test]
fn the_req_lies_as_the_table_says() {
    let req = CmReq {
        local_id: CommId(0x0102_0304),
        vendor_id: 0x05_0607,
        service_id: ServiceId(0x0809_0a0b_0c0d_0e0f),
        ca_guid: Guid(0x1011_1213_1415_1617),
        q_key: QKey(0x1819_1a1b),
        qpn: Qpn::new(0x1c_1d1e),
        responder_resources: 0x1f,
        eecn: Qpn::new(0x20_2122),
        initiator_depth: 0x23,
        remote_eecn: Qpn::new(0x24_2526),
        remote_timeout: TimeCode(0x14),
        service: CmService::UC,
        flow_control: true,
        psn: Psn::new(0x28_292a),
        local_timeout: TimeCode(0x15),
        retry_count: 6,
        p_key: PKey(0x8001),
        mtu: MtuCode(4),
        rdc_exists: true,
        rnr_retry: 5,
        max_cm_retries: 0xf,
        srq: true,
        extended_transport: 1,
        primary: path(0x30),
        alternate: path(0x40),
        sap_supported: true,
        private: count(0x50),
    };
    let mut bytes = std::vec![
        1, 2, 3, 4, 0, 5, 6, 7, // ID, vendor
        8, 9, 10, 11, 12, 13, 14, 15, // service
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, // GUID
        0, 0, 0, 0, 0x18, 0x19, 0x1a, 0x1b, // Q_Key
        0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, // 32: QPN, resources, EECN, depth
        0x24, 0x25, 0x26, 0xa3, 0x28, 0x29, 0x2a, 0xae, // 40: EECN, timeout, PSN, timeout
        0x80, 0x01, 0x4d, 0xf9, // 48: P_Key, MTU, retries
    ];
    bytes.extend(path_bytes(0x30));
    bytes.extend(path_bytes(0x40));
    *bytes.last_mut().unwrap() |= 4;
    assert_eq!(bytes.len(), 140);
    bytes.extend(count::<92>(0x50));
    assert_eq!(req.to_bytes()[..], bytes[..]);
    assert_eq!(CmReq::read(&bytes), Ok(req));
    assert!(req.alternate.is_some() && !CmPath::default().is_some());
}

/// protocols 5.4.
#[test]
fn the_rep_lies_as_the_table_says() {
    let rep = CmRep {
        local_id: CommId(0x0102_0304),
        remote_id: CommId(0x0506_0708),
        q_key: QKey(0x090a_0b0c),
        qpn: Qpn::new(0x0d_0e0f),
        vendor_id_high: 0x10,
        eecn: Qpn::new(0x11_1213),
        vendor_id_mid: 0x14,
        psn: Psn::new(0x15_1617),
        vendor_id_low: 0x18,
        responder_resources: 0x19,
        initiator_depth: 0x1a,
        target_ack_delay: TimeCode(0x1f),
        failover: Failover::REJECTED,
        flow_control: true,
        rnr_retry: 6,
        srq: true,
        ca_guid: Guid(0x2021_2223_2425_2627),
        private: count(0x30),
    };
    let bytes = rep.to_bytes();
    let head = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, // to vendor, high
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // 16: EECN, PSN, vendor
        0x19, 0x1a, 0xfd, 0xd0, 0x20, 0x21, 0x22, 0x23, // 24
        0x24, 0x25, 0x26, 0x27,
    ];
    assert_eq!(bytes[..36], head);
    assert_eq!(bytes[36..], count::<196>(0x30));
    assert_eq!(CmRep::read(&bytes), Ok(rep));
}

/// protocols 5.5, 5.6.
#[test]
fn the_short_messages_lie_as_their_tables_say() {
    let (local_id, remote_id) = (CommId(0x0102_0304), CommId(0x0506_0708));
    let ids = [1, 2, 3, 4, 5, 6, 7, 8];
    let rtu = CmRtu {
        local_id,
        remote_id,
        private: count(9),
    };
    let drep = CmDrep {
        local_id,
        remote_id,
        private: count(9),
    };
    for bytes in [rtu.to_bytes(), drep.to_bytes()] {
        assert_eq!(bytes, count::<232>(1));
    }
    let mra = CmMra {
        local_id,
        remote_id,
        subject: CmSubject::REP,
        service_timeout: TimeCode(24),
        private: count(0x20),
    };
    let bytes = mra.to_bytes();
    assert_eq!((&bytes[..8], &bytes[8..10]), (&ids[..], &[0x40, 0xc0][..]));
    assert_eq!(bytes[10..], count::<222>(0x20));
    let dreq = CmDreq {
        local_id,
        remote_id,
        remote_qpn: Qpn::new(0x09_0a0b),
        private: count(0x20),
    };
    let bytes = dreq.to_bytes();
    assert_eq!(
        (&bytes[..8], &bytes[8..12]),
        (&ids[..], &[9, 10, 11, 0][..])
    );
    assert_eq!(bytes[12..], count::<220>(0x20));
}

/// protocols 5.5.
#[test]
fn the_rej_lies_as_the_table_says() {
    let rej = CmRej {
        local_id: CommId(0),
        remote_id: CommId(0x0506_0708),
        subject: CmSubject::OTHER,
        ari_len: 72,
        reason: RejReason::STALE_CONNECTION,
        ari: count(0x20),
        private: count(0x80),
    };
    let bytes = rej.to_bytes();
    assert_eq!(bytes[..12], [0, 0, 0, 0, 5, 6, 7, 8, 0x80, 0x90, 0, 10]);
    assert_eq!(bytes[12..84], count::<72>(0x20));
    assert_eq!(bytes[84..], count::<148>(0x80));
    assert_eq!(CmRej::read(&bytes), Ok(rej));
}

/// protocols 5.7.
#[test]
fn lap_and_apr_lie_as_their_tables_say() {
    let (local_id, remote_id) = (CommId(0x0102_0304), CommId(0x0506_0708));
    let lap = CmLap {
        local_id,
        remote_id,
        remote_qpn: Qpn::new(0x09_0a0b),
        remote_timeout: TimeCode(0x12),
        local_lid: Lid(0x1314),
        remote_lid: Lid(0x1516),
        local_gid: Gid([0x17; 16]),
        remote_gid: Gid([0x18; 16]),
        flow_label: FlowLabel::new(0xa_bcde),
        traffic_class: 0x19,
        hop_limit: 0x1a,
        rate: Rate(0x1b),
        sl: Sl::new(0xc),
        subnet_local: true,
        ack_timeout: TimeCode(0x11),
        private: count(0x20),
    };
    let bytes = lap.to_bytes();
    let head = [
        1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 9, 10, 11, 0x90, 0, 0, 0, 0, 0x13, 0x14, 0x15, 0x16,
    ];
    assert_eq!(bytes[..24], head);
    assert_eq!(
        (&bytes[24..40], &bytes[40..56]),
        (&[0x17; 16][..], &[0x18; 16][..])
    );
    assert_eq!(
        bytes[56..64],
        [0xab, 0xcd, 0xe0, 0x19, 0x1a, 0x1b, 0xc8, 0x88]
    );
    assert_eq!(bytes[64..], count::<168>(0x20));
    let apr = CmApr {
        local_id,
        remote_id,
        info_len: 0x48,
        status: AprStatus::INVALID_SL,
        info: count(0x20),
        private: count(0x80),
    };
    let bytes = apr.to_bytes();
    assert_eq!(bytes[..12], [1, 2, 3, 4, 5, 6, 7, 8, 0x48, 13, 0, 0]);
    assert_eq!(
        (&bytes[12..84], &bytes[84..]),
        (&count::<72>(0x20)[..], &count::<148>(0x80)[..])
    );
}

/// protocols 5.8.
#[test]
fn the_sidr_messages_lie_as_their_tables_say() {
    let request = CmSidrReq {
        request_id: CommId(0x0102_0304),
        p_key: PKey(0x8006),
        service_id: ServiceId(0x0809_0a0b_0c0d_0e0f),
        private: count(0x20),
    };
    let bytes = request.to_bytes();
    assert_eq!(
        bytes[..16],
        [1, 2, 3, 4, 0x80, 6, 0, 0, 8, 9, 10, 11, 12, 13, 14, 15]
    );
    assert_eq!(bytes[16..], count::<216>(0x20));
    let reply = CmSidrRep {
        request_id: CommId(0x0102_0304),
        status: SidrStatus::NO_QP,
        info_len: 6,
        vendor_id_high: 0x0708,
        qpn: Qpn::new(0x09_0a0b),
        vendor_id_low: 0x0c,
        service_id: ServiceId(0x0d0e_0f10_1112_1314),
        q_key: QKey(0x1516_1718),
        info: count(0x20),
        private: count(0x80),
    };
    let bytes = reply.to_bytes();
    assert_eq!(bytes[..8], [1, 2, 3, 4, 3, 6, 7, 8]);
    assert_eq!(bytes[8..24], count::<16>(9));
    assert_eq!(
        (&bytes[24..96], &bytes[96..]),
        (&count::<72>(0x20)[..], &count::<136>(0x80)[..])
    );
    assert_eq!(CmSidrRep::read(&bytes), Ok(reply));
}

/// protocols 5.11.
#[test]
fn the_ip_header_has_the_addresses_where_the_table_says() {
    let (src, dst): (IpAddr, IpAddr) = ("10.1.2.3".parse().unwrap(), "10.4.5.6".parse().unwrap());
    let header = IpCmHeader::new(src, 0x1234, dst).unwrap();
    let mut bytes = [0; 36];
    bytes[..4].copy_from_slice(&[0x00, 0x40, 0x12, 0x34]);
    bytes[16..20].copy_from_slice(&[10, 1, 2, 3]);
    bytes[32..36].copy_from_slice(&[10, 4, 5, 6]);
    assert_eq!(header.to_bytes(), bytes);
    assert_eq!(header.addresses(), Some((src, dst)));
    let (src6, dst6): (IpAddr, IpAddr) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let header = IpCmHeader::new(src6, 5, dst6).unwrap();
    let bytes = header.to_bytes();
    assert_eq!(
        (bytes[1], bytes[4], bytes[19], bytes[20], bytes[35]),
        (0x60, 0xfe, 1, 0xfe, 2)
    );
    assert_eq!(header.addresses(), Some((src6, dst6)));
    assert_eq!(IpCmHeader::new(src, 5, dst6), None);
    for (major_version, ip_version) in [(1, 4), (0, 0), (0, 5)] {
        let strange = IpCmHeader {
            major_version,
            ip_version,
            ..header
        };
        assert_eq!(strange.addresses(), None);
    }
}
