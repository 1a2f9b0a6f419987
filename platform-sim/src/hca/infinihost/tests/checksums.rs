//! Checksums of what IPoIB carries, by a card of M-mode that is told to. infinihost 5.11.

use super::memfree::*;
use super::verbs::*;
use super::*;
use crate::hca::infinihost::{Config, Variant};
use crate::machine::PciFunction;
use core_ib::Guid;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::dev_lim::{DevLim, features};
use hca_abi::infinihost::wqe::{DataSegment, WqeOpcode, next};

const LID: u16 = 0x15;
const DATA: u64 = 0x4000;
const BUFFER: u64 = 0x5000;
const BOTH: u32 = next::IP_CHECKSUM | next::L4_CHECKSUM;

/// A datagram of UDP behind the header of IPoIB: 10.0.0.1 port 1 to 10.0.0.2 port 2, "hi!", without checksums.
const UNSUMMED: [u8; 35] = [
    8, 0, 0, 0, 0x45, 0, 0, 31, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2,
    0, 11, 0, 0, b'h', b'i', b'!',
];
/// Its checksums: of the header, of UDP.
const HEADER: [u8; 2] = [0x26, 0xcb];
const SEGMENT: [u8; 2] = [0x62, 0x69];

fn summed() -> [u8; 35] {
    let mut whole = UNSUMMED;
    whole[14..16].copy_from_slice(&HEADER);
    whole[30..32].copy_from_slice(&SEGMENT);
    whole
}

/// An active card, told to do checksums or not; a CQ and a QP.
fn rig(variant: Variant, offered: bool, told: bool) -> (Rig, Cq, Qp) {
    let config = Config {
        checksums: offered,
        ..Config::of(variant, Guid(0x0002_c900_0000_0010))
    };
    let mut rig = Rig::new(config);
    let mut tables = m_tables();
    tables
        .set_checksum(told)
        .set_send_pseudo_header(true)
        .set_receive_pseudo_header(true);
    rig.m_init_by(&tables);
    rig.m_hear(true);
    rig.activate(1, LID);
    let cq = rig.m_create_cq(0x20);
    let qp = rig.m_ud_qp(0x30, &cq);
    (rig, cq, qp)
}

/// Sends `data` to itself: what arrived, and its completion.
fn round<const N: usize>(
    (rig, cq, qp): &mut (Rig, Cq, Qp),
    data: [u8; N],
    flags: u32,
) -> ([u8; N], Cqe) {
    rig.store(DATA, &data);
    rig.m_post_receive(qp, &[(BUFFER, 200)]);
    let segment = DataSegment::new(N as u32, ALL_M, DATA);
    let body = m_datagram(&av(1, LID), 0x30, Q_KEY, segment);
    rig.m_post_send(qp, WqeOpcode::SEND, &[body], next::ALWAYS_ONE | flags);
    assert!(!rig.m_poll(cq).unwrap().is_error());
    (rig.load(BUFFER + 40), rig.m_poll(cq).unwrap())
}

#[test]
fn what_is_asked_for_is_put_in_and_what_arrives_right_is_said_to_be() {
    for variant in [Variant::Arbel, Variant::Sinai] {
        let mut card = rig(variant, true, true);
        let (arrived, cqe) = round(&mut card, UNSUMMED, BOTH);
        assert_eq!(arrived, summed());
        assert!(cqe.checksum_ok());
        let (arrived, cqe) = round(&mut card, UNSUMMED, next::IP_CHECKSUM);
        assert_eq!(
            (&arrived[14..16], &arrived[30..32]),
            (&HEADER[..], &[0; 2][..])
        );
        assert!(cqe.ip_ok() && !cqe.checksum_ok());
        let (arrived, cqe) = round(&mut card, UNSUMMED, next::L4_CHECKSUM);
        assert_eq!(
            (&arrived[14..16], &arrived[30..32]),
            (&[0; 2][..], &SEGMENT[..])
        );
        assert!(!cqe.ip_ok());
        let (arrived, cqe) = round(&mut card, summed(), 0);
        assert_eq!(arrived, summed());
        assert!(cqe.checksum_ok());
        let mut spoilt = summed();
        spoilt[34] ^= 1;
        let (arrived, cqe) = round(&mut card, spoilt, 0);
        assert_eq!(arrived, spoilt);
        assert!(cqe.ip_ok() && !cqe.checksum_ok());
        let (arrived, cqe) = round(&mut card, [0xab; 100], BOTH);
        assert_eq!(arrived, [0xab; 100], "no IPv4");
        assert!(!cqe.ip_ok());
        assert_eq!(card.0.bus.reports, [""; 0]);
        assert!(card.0.hca.ledger().is_empty(), "{}", card.0.hca.ledger());
    }
}

#[test]
fn a_card_that_is_not_told_to_does_nothing_and_notes_that_it_was_asked() {
    for (offered, told) in [(true, false), (false, true), (false, false)] {
        let mut card = rig(Variant::Sinai, offered, told);
        let (arrived, cqe) = round(&mut card, UNSUMMED, BOTH);
        assert_eq!(arrived, UNSUMMED);
        let (_, right) = round(&mut card, summed(), 0);
        for cqe in [cqe, right] {
            assert_eq!(
                (cqe.ip_ok(), cqe.checksum_high(), cqe.checksum_low()),
                (false, 0, 0)
            );
        }
        let ledger = card.0.hca.ledger().to_string();
        assert!(
            ledger.contains("datagram: checksums not enabled"),
            "{ledger}"
        );
        assert_eq!(ledger.contains("INIT_HCA: checksum offload"), !offered);
    }
}

#[test]
fn the_feature_is_offered_by_cards_of_m_mode_whose_firmware_has_it() {
    let of = |variant| Config::of(variant, Guid(0x0002_c900_0000_0010));
    let old = Config {
        checksums: false,
        ..of(Variant::Arbel)
    };
    for (config, offered) in [
        (of(Variant::Tavor), false),
        (of(Variant::ArbelCompat), false),
        (of(Variant::Arbel), true),
        (of(Variant::Sinai), true),
        (of(Variant::SinaiOld), false),
        (old, false),
    ] {
        let variant = config.variant;
        let mut rig = Rig::new(config);
        match variant {
            Variant::Arbel | Variant::Sinai | Variant::SinaiOld => rig.lend(),
            _ => assert_eq!(rig.plain(Opcode::SYS_EN, 0), CmdStatus::OK),
        }
        rig.command(Opcode::QUERY_DEV_LIM, 0, 0, OUT);
        let limits: DevLim = rig.load(OUT);
        assert_ne!(limits.features(), 0);
        assert_eq!(limits.features() & features::IPOIB_CHECKSUM != 0, offered);
    }
}
