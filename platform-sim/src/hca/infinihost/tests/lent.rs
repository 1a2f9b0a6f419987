//! M-mode from reset to INIT_HCA: what the card says of itself, the memory that it is lent, and what is refused.
//! infinihost 3.6, 3.7, 3.10, 10.2.

use super::memfree::*;
use super::*;
use crate::hca::infinihost::{Config, Variant};
use crate::machine::PciFunction;
use core_ib::Guid;
use core_ib::platform::DmaAddr;
use core_ib::wire::mad::NodeInfo;
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::fw::AdapterInfo;
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::port::InitIb;
use hca_abi::infinihost::vpm::VpmEntry;

const M: [Variant; 3] = [Variant::Arbel, Variant::Sinai, Variant::SinaiOld];

/// The dword at byte `at` of the output mailbox.
fn out(rig: &Rig, at: u64) -> u32 {
    u32::from_be_bytes(rig.load(OUT + at))
}

#[test]
fn query_fw_tells_versions_pages_and_registers_before_firmware_runs() {
    let versions = [(5, 3, 0), (1, 2, 0), (1, 2, 0)];
    for (variant, (major, minor, sub)) in M.into_iter().zip(versions) {
        let mut rig = Rig::memfree(variant);
        assert_eq!(rig.plain(Opcode::QUERY_FW, 0), CmdStatus::OK);
        let dwords = [
            0, 4, 8, 0xc, 0x20, 0x24, 0x30, 0x34, 0x38, 0x40, 0x44, 0x48, 0x4c,
        ];
        let bar0 = BAR0 as u32;
        let expected = [
            256 << 16 | major,
            sub << 16 | minor,
            1,
            4,
            0,
            bar0 + 0xf_00d8,
            0,
            bar0 + 0xf_0800,
            16,
            0,
            bar0 + 0xf_0200,
            0,
            bar0 + 0xf_0400,
        ];
        assert_eq!(dwords.map(|at| out(&rig, at)), expected, "{variant:?}");
    }
}

/// infinihost 10.2, byte by byte.
#[test]
fn the_limits_are_the_recommended_ones() {
    for (variant, ports) in M.into_iter().zip([2, 1, 1]) {
        let mut rig = Rig::memfree(variant);
        rig.lend();
        assert_eq!(rig.plain(Opcode::QUERY_DEV_LIM, 0), CmdStatus::OK);
        let bytes: [u8; 256] = rig.load(OUT);
        let rows: [(usize, &[u8]); 15] = [
            (0x10, &[14, 14, 4, 24, 0x40, 13, 0, 0]),
            (0x18, &[0, 17, 4, 24, 17, 24, 0, 6]),
            (0x20, &[0x40, 0, 4, 24, 0, 0, 0, 0]),
            (0x28, &[0, 7, 0, 4, 0x40, 0, 0, 22]),
            (0x30, &[0, 0, 0, 0, 0, 15, 0x43, 0x40 | ports]),
            (0x38, &[0, 0, 0, 5, 0, 0x0f, 0, 6]),
            (0x44, &[0, 0x36, 3, 0x47, 0x10, 3, 0, 12]),
            (0x50, &[0, 60, 0x03, 0xf0, 0, 60, 0x03, 0xf0]),
            (0x60, &[0, 8, 0, 13, 0x40, 24, 0, 0]),
            (0x80, &[1, 0, 1, 0, 0, 32, 0, 32]),
            (0x88, &[0, 64, 0, 64, 0, 32, 0, 32]),
            (0x90, &[0, 8, 0, 64, 0, 0, 0, 0]),
            (0x98, &[0; 8]),
            (0xa0, &[0, 0, 0, 0x40, 0, 0, 0, 0]),
            (0xa8, &[0; 0x58]),
        ];
        // Memory windows are offered as far as the model has them.
        let windows = bytes[0x45] & 1;
        for (at, row) in rows {
            let mut row = row.to_vec();
            if at == 0x44 {
                row[1] |= windows;
                // So are checksums.
                row[3] |= if variant == Variant::SinaiOld {
                    0
                } else {
                    0x80
                };
            }
            assert_eq!(bytes[at..at + row.len()], row, "{variant:?} {at:#x}");
        }
    }
}

#[test]
fn query_adapter_tells_the_pin_and_the_board_and_no_identity() {
    let boards = [*b"MT_0200000001", *b"MT_0230000001", *b"MT_0230000001"];
    for (variant, board) in M.into_iter().zip(boards) {
        let mut rig = Rig::memfree(variant);
        rig.lend();
        let adapter: AdapterInfo = rig.ask(Opcode::QUERY_ADAPTER, 0);
        assert_eq!(
            (adapter.inta_pin(), &adapter.board_id()[..13]),
            (31, &board[..])
        );
        assert_eq!(rig.load::<[u8; 16]>(OUT), [0; 16]);
    }
}

#[test]
fn each_state_refuses_what_is_not_for_it_and_each_mode_what_it_does_not_know() {
    let statuses = |rig: &mut Rig, opcodes: &[Opcode]| -> Vec<CmdStatus> {
        opcodes.iter().map(|&opcode| rig.plain(opcode, 0)).collect()
    };
    let mut rig = Rig::memfree(Variant::Arbel);
    let foreign = [Opcode::SYS_EN, Opcode::QUERY_DDR];
    assert_eq!(statuses(&mut rig, &foreign), [CmdStatus::BAD_OP; 2]);
    let late = [
        Opcode::QUERY_DEV_LIM,
        Opcode::QUERY_ADAPTER,
        Opcode::SET_ICM_SIZE,
        Opcode::MAP_ICM_AUX,
        Opcode::UNMAP_ICM_AUX,
        Opcode::MAP_ICM,
        Opcode::UNMAP_ICM,
        Opcode::INIT_HCA,
        Opcode::NOP,
    ];
    assert_eq!(statuses(&mut rig, &late), [CmdStatus::BAD_SYS_STATE; 9]);
    assert_eq!(
        statuses(&mut rig, &[Opcode::RUN_FW]),
        [CmdStatus::BAD_SYS_STATE],
        "without its pages"
    );
    let lam = [Opcode::ENABLE_LAM, Opcode::DISABLE_LAM, Opcode::SYS_DIS];
    let answers = [CmdStatus::LAM_NOT_PRE, CmdStatus::OK, CmdStatus::OK];
    assert_eq!(statuses(&mut rig, &lam), answers);
    rig.m_init();
    let early = [
        Opcode::RUN_FW,
        Opcode::MAP_FA,
        Opcode::SET_ICM_SIZE,
        Opcode::INIT_HCA,
    ];
    assert_eq!(statuses(&mut rig, &early), [CmdStatus::BAD_SYS_STATE; 4]);
    assert_eq!(rig.plain(Opcode::CLOSE_HCA, 0), CmdStatus::OK);
    let status = rig.give(Opcode::INIT_HCA, 0, 0, &m_tables());
    assert_eq!(status, CmdStatus::OK, "the mappings are still there");

    let mut tavor = Rig::card(1);
    tavor.init();
    let foreign = [
        Opcode::MAP_FA,
        Opcode::RUN_FW,
        Opcode::MAP_ICM,
        Opcode::ENABLE_LAM,
    ];
    assert_eq!(statuses(&mut tavor, &foreign), [CmdStatus::BAD_OP; 4]);
}

#[test]
fn what_is_given_back_in_the_order_of_linux_leaves_nothing_that_the_card_can_reach() {
    let mut rig = Rig::memfree(Variant::Sinai);
    rig.m_start(true);
    let reaches = |rig: &mut Rig, at| rig.hca.reaches(&mut rig.bus, DmaAddr::new(at), 1);
    let names = |rig: &mut Rig| [FIRMWARE, AUX, behind(MPTS)].map(|at| reaches(rig, at));
    let all = ["the firmware area", "the auxiliary area", "ICM"];
    assert_eq!(names(&mut rig), all.map(|name| Some(name.to_string())));
    rig.plain(Opcode::CLOSE_HCA, 0);
    for at in (0..ICM_LEN).step_by(0x4_0000) {
        // Always 64 pages, whatever is mapped there: also beyond the end, and twice.
        for _ in 0..2 {
            let status = rig.command(Opcode::UNMAP_ICM, 0, 64, at + 0x1000).status;
            assert_eq!(status, CmdStatus::OK);
        }
    }
    assert_eq!(reaches(&mut rig, behind(0)), Some("ICM".to_string()));
    rig.command(Opcode::UNMAP_ICM, 0, 1, 0);
    for opcode in [Opcode::UNMAP_ICM_AUX, Opcode::UNMAP_FA] {
        assert_eq!(rig.plain(opcode, 0), CmdStatus::OK);
    }
    assert_eq!(names(&mut rig), [None, None, None]);
    assert_eq!(rig.bus.reports, [""; 0]);
    assert_eq!(rig.plain(Opcode::UNMAP_FA, 0), CmdStatus::OK, "once more");
    rig.m_start(true);
}

#[test]
fn firmware_that_loses_its_area_forgets_what_else_was_mapped_and_says_so() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_init();
    assert_eq!(rig.plain(Opcode::UNMAP_FA, 0), CmdStatus::OK);
    assert_eq!(rig.bus.reports.len(), 1);
    assert_eq!(rig.plain(Opcode::NOP, 0), CmdStatus::BAD_SYS_STATE);
    let at = DmaAddr::new(behind(0));
    assert_eq!(rig.hca.reaches(&mut rig.bus, at, 1 << 20), None);
}

#[test]
fn a_bad_block_maps_nothing_of_its_command() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.lend();
    let good = VpmEntry::new(1 << 30, 0x30_0000, 0);
    for bad in [
        VpmEntry::new(1 << 31, 0x30_1000, 1),
        VpmEntry::new(1 << 38, 0x30_0000, 0),
        VpmEntry::new(0, 0, 63),
    ] {
        assert_eq!(rig.map(Opcode::MAP_ICM, &[good, bad]), CmdStatus::BAD_PARAM);
        let at = DmaAddr::new(0x30_0000);
        assert_eq!(rig.hca.reaches(&mut rig.bus, at, 1), None);
    }
    let many = rig.command(Opcode::MAP_ICM, 0, 257, IN).status;
    assert_eq!(many, CmdStatus::EXCEED_LIM);
    let nowhere = rig.command(Opcode::MAP_ICM, 0, 1, HOST_END).status;
    assert_eq!(nowhere, CmdStatus::BAD_PARAM);
    let huge = rig
        .command(Opcode::SET_ICM_SIZE, 0, 0, (1 << 38) + 1)
        .status;
    assert_eq!(huge, CmdStatus::EXCEED_LIM);
}

#[test]
fn init_hca_refuses_tables_beyond_icm_and_a_multicast_table_without_pages() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.lend();
    let bad: [(Change<InitHca>, CmdStatus); 6] = [
        (|init| init.set_qpc_base(1 << 38), CmdStatus::BAD_PARAM),
        (|init| init.set_mtt_base(u64::MAX), CmdStatus::BAD_PARAM),
        (
            |init| init.set_uarc_base((1 << 38) - 4096),
            CmdStatus::BAD_PARAM,
        ),
        (|init| init.set_log_uarc_pages(63), CmdStatus::EXCEED_LIM),
        (|init| init.set_log_qps(25), CmdStatus::EXCEED_LIM),
        (|init| init.set_mc_base(1 << 30), CmdStatus::BAD_PARAM),
    ];
    for (change, status) in bad {
        let mut init = m_tables();
        change(&mut init);
        assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), status);
    }
    // EE contexts, RDB and scratch are never touched, wherever they are.
    let mut init = m_tables();
    init.set_rdb_base(1 << 31)
        .set_eec_base(1 << 32)
        .set_uar_scratch_base(u64::MAX);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    assert_eq!(rig.ask::<InitHca>(Opcode::QUERY_HCA, 0).rdb_base(), 1 << 31);
    assert_eq!(rig.bus.reports, [""; 0]);
}

/// infinihost 6.3: the default profile of Linux, of which only the chunks with reserved entries are mapped.
#[test]
fn the_profile_of_linux_is_taken_with_a_few_chunks_behind_it() {
    let mut rig = Rig::memfree(Variant::Sinai);
    rig.map(Opcode::MAP_FA, &[VpmEntry::new(0, FIRMWARE, 8)]);
    rig.plain(Opcode::RUN_FW, 0);
    rig.map(Opcode::MAP_ICM_AUX, &[VpmEntry::new(0, AUX, 6)]);
    let mut init = InitHca::ZERO;
    init.set_uarc_base(0)
        .set_log_uarc_pages(6)
        .set_log_uars(11)
        .set_mtt_base(0x2000_0000)
        .set_qpc_base(0x2400_0000)
        .set_log_qps(16)
        .set_rdb_base(0x2500_0000)
        .set_mpt_base(0x2580_0000)
        .set_log_mpts(17)
        .set_cqc_base(0x2600_0000)
        .set_log_cqs(16)
        .set_eqpc_base(0x2640_0000)
        .set_mc_base(0x2660_0000)
        .set_log_mc_entry_size(8)
        .set_mc_hash_size(4096)
        .set_log_mc_table_size(13)
        .set_srqc_base(0x2681_0000)
        .set_log_srqs(10)
        .set_eqc_base(0x2681_a000)
        .set_log_eqs(5)
        .set_sinai_key_optimisation(true);
    let groups: Vec<_> = (0..8)
        .map(|chunk| chunk * 0x4_0000)
        .map(|at| VpmEntry::new(0x2660_0000 + at, ICM + at, 6))
        .collect();
    rig.map(Opcode::MAP_ICM, &groups);
    rig.store(ICM + 0x1000, &[0xee_u8; 64]);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    assert_eq!(
        rig.load::<[u8; 64]>(ICM + 0x1000),
        [0; 64],
        "groups are zeroed"
    );
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn auxiliary_memory_that_is_missing_is_reported() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.lend();
    rig.plain(Opcode::UNMAP_ICM_AUX, 0);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &m_tables()), CmdStatus::OK);
    assert_eq!(
        rig.bus.reports,
        ["INIT_HCA: 0 pages of auxiliary memory are mapped, 64 were asked for"]
    );
}

#[test]
fn a_reset_takes_back_all_that_was_lent() {
    let mut rig = Rig::memfree(Variant::Arbel);
    rig.m_start(true);
    rig.write32(0, hca_abi::infinihost::regs::RESET as u64, 1);
    rig.configure();
    assert_eq!(rig.plain(Opcode::RUN_FW, 0), CmdStatus::BAD_SYS_STATE);
    let at = DmaAddr::new(FIRMWARE);
    assert_eq!(rig.hca.reaches(&mut rig.bus, at, 32 << 20), None);
    rig.m_start(true);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn each_variant_has_its_identity_its_slot_and_its_ports() {
    for variant in Variant::ALL {
        let mut rig = Rig::memfree(variant);
        let (device, express, ports) = match variant {
            Variant::Tavor => (0x5a44, false, 2),
            Variant::ArbelCompat => (0x6278, true, 2),
            Variant::Arbel => (0x6282, true, 2),
            Variant::Sinai => (0x6274, true, 1),
            Variant::SinaiOld => (0x5e8c, true, 1),
        };
        assert_eq!(rig.config_read32(0), device << 16 | 0x15b3);
        assert_eq!(rig.config_read32(8) >> 8, 0x0c_0600);
        let second = rig.config_read32(0x40) >> 8 & 0xff;
        let capability = rig.config_read32(second as u16) & 0xff;
        assert_eq!(capability == 0x10, express, "{variant:?}");
        assert_eq!(capability == 0x07, !express, "{variant:?}");
        let attached = matches!(variant, Variant::Tavor | Variant::ArbelCompat);
        assert_eq!(rig.hca.bar_len(4).is_some(), attached);
        assert_eq!(rig.hca.ports(), ports);
        if attached {
            rig.start(true);
        } else {
            rig.m_start(true);
        }
        let info: NodeInfo = rig.get(1, 0);
        let revision = rig.config_read32(8) & 0xff;
        assert_eq!(u32::from(info.device_id), device);
        assert_eq!((info.revision, info.num_ports), (revision, ports));
        let mut init = InitIb::ZERO;
        init.set_mtu(4).set_port_width(3).set_vls(4);
        let second = rig.give(Opcode::INIT_IB, 0, 2, &init);
        assert_eq!(second == CmdStatus::OK, ports == 2, "{variant:?}");
        assert_eq!(rig.bus.reports, [""; 0]);
    }
}

#[test]
#[should_panic(expected = "has up to 1 ports, not 2")]
fn a_sinai_with_two_ports_does_not_exist() {
    let mut config = Config::of(Variant::Sinai, Guid(1));
    config.ports = 2;
    Rig::new(config);
}

#[test]
#[should_panic(expected = "has no attached memory")]
fn a_native_arbel_with_memory_of_its_own_is_not_modelled() {
    let mut config = Config::of(Variant::Arbel, Guid(1));
    config.ddr_len = 128 << 20;
    Rig::new(config);
}
