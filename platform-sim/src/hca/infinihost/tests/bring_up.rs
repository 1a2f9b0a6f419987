//! From reset to INIT_HCA, and what is refused on the way. infinihost 1.5, 3.1, 3.6.

use super::*;
use crate::hca::infinihost::Config;
use crate::machine::PciFunction;
use core::time::Duration;
use core_ib::{Guid, Instant};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::dev_lim::DevLim;
use hca_abi::infinihost::fw::{AdapterInfo, DdrInfo, FwInfo};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::regs;

#[test]
fn the_card_tells_what_a_driver_asks_before_init_hca() {
    let mut rig = Rig::card(1);
    assert_eq!(rig.plain(Opcode::SYS_EN, 0), CmdStatus::OK);
    let fw: FwInfo = rig.ask(Opcode::QUERY_FW, 0);
    assert_eq!((fw.major(), fw.minor(), fw.subminor()), (3, 5, 0));
    assert_eq!(fw.error_buffer(), BAR0 + 0xf_0800);
    assert_eq!(fw.error_buffer_dwords(), 16);
    assert!(!fw.command_doorbells());
    let ddr: DdrInfo = rig.ask(Opcode::QUERY_DDR, 0);
    assert_eq!((ddr.start(), ddr.end()), (BAR4, BAR4 + (128 << 20) - 1));
    assert!(!ddr.hidden() && fw.fw_start() > ddr.start() && fw.fw_end() == ddr.end());
    let limits: DevLim = rig.ask(Opcode::QUERY_DEV_LIM, 0);
    assert_eq!(
        (
            limits.ports(),
            limits.reserved_uars(),
            limits.reserved_eqs()
        ),
        (2, 1, 0)
    );
    assert_eq!((limits.log_max_gids(), limits.log_uar_megabytes()), (5, 3));
    let adapter: AdapterInfo = rig.ask(Opcode::QUERY_ADAPTER, 0);
    assert_eq!(adapter.inta_pin(), 31);
    assert_eq!(&adapter.board_id()[..13], b"MT_0030000001");
    let raw: [u8; 4] = rig.load(OUT + 0xf0);
    assert_eq!(&raw, b"0_TM", "each group of four bytes is reversed");
}

#[test]
fn no_query_writes_beyond_its_256_bytes() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    for opcode in [
        Opcode::QUERY_FW,
        Opcode::QUERY_DDR,
        Opcode::QUERY_DEV_LIM,
        Opcode::QUERY_ADAPTER,
    ] {
        rig.store(OUT, &[0xee_u8; 512]);
        rig.plain(opcode, 0);
        assert_eq!(rig.load::<[u8; 256]>(OUT + 256), [0xee; 256], "{opcode:?}");
    }
}

#[test]
fn each_state_refuses_what_is_not_for_it() {
    let mut rig = Rig::card(1);
    let statuses = |rig: &mut Rig, opcodes: &[Opcode]| -> Vec<CmdStatus> {
        opcodes.iter().map(|&opcode| rig.plain(opcode, 0)).collect()
    };
    let early = [
        Opcode::QUERY_DDR,
        Opcode::INIT_HCA,
        Opcode::NOP,
        Opcode::SYS_DIS,
        Opcode::MAP_EQ,
    ];
    assert_eq!(statuses(&mut rig, &early), [CmdStatus::BAD_SYS_STATE; 5]);
    assert_eq!(statuses(&mut rig, &[Opcode::QUERY_FW]), [CmdStatus::OK]);
    rig.init();
    assert_eq!(
        statuses(&mut rig, &[Opcode::SYS_EN, Opcode::INIT_HCA]),
        [CmdStatus::BAD_SYS_STATE; 2]
    );
    assert_eq!(
        statuses(&mut rig, &[Opcode::NOP, Opcode::QUERY_DDR]),
        [CmdStatus::OK; 2]
    );
    assert_eq!(statuses(&mut rig, &[Opcode::CLOSE_HCA]), [CmdStatus::OK]);
    assert_eq!(
        statuses(&mut rig, &[Opcode::NOP, Opcode::CLOSE_HCA]),
        [CmdStatus::BAD_SYS_STATE; 2]
    );
    assert_eq!(
        rig.give(Opcode::INIT_HCA, 0, 0, &tables()),
        CmdStatus::OK,
        "a second time"
    );
    rig.plain(Opcode::CLOSE_HCA, 0);
    assert_eq!(
        statuses(&mut rig, &[Opcode::SYS_DIS, Opcode::QUERY_DDR]),
        [CmdStatus::OK, CmdStatus::BAD_SYS_STATE]
    );
}

#[test]
fn an_opcode_that_the_firmware_does_not_know_is_refused_in_every_state_and_counted() {
    let mut rig = Rig::card(1);
    let unknown = [
        Opcode::RUN_FW,
        Opcode::DIAG_RPRT,
        Opcode::ACCESS_DDR,
        Opcode::MODIFY_MPT,
        Opcode(0x777),
    ];
    for _ in 0..2 {
        for opcode in unknown {
            assert_eq!(rig.plain(opcode, 0), CmdStatus::BAD_OP, "{opcode:?}");
        }
        rig.hca.reset(&mut rig.bus);
        rig.configure();
        rig.init();
    }
    assert_eq!(rig.hca.ledger().get("command RUN_FW"), 2);
    assert_eq!(rig.hca.ledger().get("command Opcode(0x777)"), 2);
}

#[test]
fn init_hca_refuses_tables_that_are_not_in_its_memory_and_shows_those_that_are() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    let bad: [(Change<InitHca>, CmdStatus); 6] = [
        (|init| init.set_mpt_base(0x1_0000), CmdStatus::BAD_PARAM),
        (
            |init| init.set_qpc_base(BAR4 + (124 << 20)),
            CmdStatus::BAD_PARAM,
        ),
        (|init| init.set_mtt_base(u64::MAX), CmdStatus::BAD_PARAM),
        (|init| init.set_mc_hash_size(129), CmdStatus::BAD_PARAM),
        (|init| init.set_log_qps(25), CmdStatus::EXCEED_LIM),
        (|init| init.set_log_eqs(7), CmdStatus::EXCEED_LIM),
    ];
    for (change, status) in bad {
        let mut init = tables();
        change(&mut init);
        assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), status);
    }
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &tables()), CmdStatus::OK);
    let mut shown: InitHca = rig.ask(Opcode::QUERY_HCA, 0);
    assert_eq!(shown.uar_base(), BAR2);
    shown.set_uar_base(0);
    assert_eq!(shown, tables());
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn tables_that_share_memory_are_reported() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    let mut init = tables();
    init.set_cqc_base(tables().mpt_base() + 0x8000);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    assert_eq!(rig.bus.reports, ["INIT_HCA: tables MPT and CQC overlap"]);
}

#[test]
fn the_profile_of_linux_fits_into_128_megabytes() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    let mut init = InitHca::ZERO;
    init.set_mtt_base(BAR4)
        .set_qpc_base(BAR4 + 0x400_0000)
        .set_log_qps(16)
        .set_rdb_base(BAR4 + 0x500_0000)
        .set_mpt_base(BAR4 + 0x580_0000)
        .set_log_mpts(17)
        .set_cqc_base(BAR4 + 0x600_0000)
        .set_log_cqs(16)
        .set_eqpc_base(BAR4 + 0x640_0000)
        .set_mc_base(BAR4 + 0x660_0000)
        .set_log_mc_entry_size(8)
        .set_mc_hash_size(4096)
        .set_log_mc_table_size(13)
        .set_srqc_base(BAR4 + 0x691_0000)
        .set_log_srqs(13)
        .set_eqc_base(BAR4 + 0x695_0000)
        .set_log_eqs(5);
    assert_eq!(rig.give(Opcode::INIT_HCA, 0, 0, &init), CmdStatus::OK);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn attached_memory_is_ram_of_any_width_once_it_is_enabled() {
    let mut rig = Rig::card(1);
    assert_eq!(rig.read32(4, 0x100), u32::MAX);
    rig.plain(Opcode::SYS_EN, 0);
    let bus = &mut rig.bus;
    rig.hca
        .mmio_write(bus, 4, 0x7ff_fff8, &[1, 2, 3, 4, 5, 6, 7, 8]);
    rig.hca.mmio_write(bus, 4, 0x7ff_fffe, &[9]);
    let mut data = [0; 2];
    rig.hca.mmio_read(bus, 4, 0x7ff_fffe, &mut data);
    assert_eq!(data, [9, 8]);
}

#[test]
fn hidden_memory_lies_where_no_host_memory_does() {
    let mut config = Config::new(Guid(1));
    config.hidden_ddr = true;
    let mut rig = Rig::new(config);
    rig.plain(Opcode::SYS_EN, 0);
    let ddr: DdrInfo = rig.ask(Opcode::QUERY_DDR, 0);
    assert!(ddr.hidden() && ddr.start() >= 1 << 63);
    assert_eq!(rig.hca.bar_len(4), None);
}

#[test]
fn the_reset_register_takes_back_everything_and_the_driver_restores_its_configuration() {
    let mut config = Config::new(Guid(1));
    config.reset_time = Duration::from_millis(3);
    let mut rig = Rig::new(config);
    rig.start(true);
    rig.write32(0, regs::RESET as u64, 0x0100_0000);
    assert_eq!(
        rig.plain(Opcode::NOP, 0),
        CmdStatus::OK,
        "the value is 1, big-endian"
    );
    rig.write32(0, regs::RESET as u64, 1);
    assert_eq!(rig.config_read32(0), u32::MAX);
    rig.bus.now = rig.bus.now.after(Duration::from_millis(3));
    assert_eq!(rig.config_read32(0), 0x5a44_15b3);
    assert_eq!(
        rig.read32(0, regs::HCR_CONTROL as u64),
        u32::MAX,
        "memory space is off"
    );
    rig.configure();
    assert_eq!(rig.config_read32(0x40) >> 31, 0, "so are messages");
    assert_eq!(rig.read32(0, regs::HCR_CONTROL as u64), 0);
    assert_eq!(rig.plain(Opcode::NOP, 0), CmdStatus::BAD_SYS_STATE);
    rig.start(true);
    assert_eq!(rig.bus.reports, [""; 0]);
}

#[test]
fn a_mailbox_that_cannot_be_reached_is_a_bad_parameter() {
    let mut rig = Rig::card(1);
    rig.plain(Opcode::SYS_EN, 0);
    assert_eq!(
        rig.command(Opcode::INIT_HCA, 0, 0, HOST_END).status,
        CmdStatus::BAD_PARAM
    );
    rig.config_write(0x04, &[0x02, 0]);
    assert_eq!(
        rig.plain(Opcode::QUERY_FW, 0),
        CmdStatus::BAD_PARAM,
        "not bus master"
    );
}

#[test]
fn a_card_that_takes_its_time_holds_the_block_until_the_command_is_done() {
    let mut config = Config::new(Guid(1));
    config.command_time = Duration::from_micros(50);
    let mut rig = Rig::new(config);
    rig.post(Opcode::SYS_EN, 0, 0, 0, None);
    assert_eq!(rig.read32(0, regs::HCR_CONTROL as u64), 0x0080_0001);
    rig.write32(0, regs::HCR as u64, 1);
    assert_eq!(rig.bus.reports.len(), 1, "the block is the card's");
    let before = rig.bus.now;
    rig.settle();
    assert_eq!(rig.bus.now, Instant(before.0 + 50_000));
    assert_eq!(rig.read32(0, regs::HCR_CONTROL as u64), 1);
}

#[test]
fn byte_accesses_to_registers_are_lost_and_reported() {
    let mut rig = Rig::card(1);
    let bus = &mut rig.bus;
    rig.hca
        .mmio_write(bus, 0, regs::HCR_CONTROL as u64 + 1, &[0x80]);
    let mut data = [0; 2];
    rig.hca
        .mmio_read(bus, 0, regs::HCR_CONTROL as u64, &mut data);
    assert_eq!(data, [0xff; 2]);
    assert_eq!(rig.bus.reports.len(), 2);
    assert_eq!(rig.read32(0, regs::HCR_CONTROL as u64), 0);
}
