//! SYS_EN, SYS_DIS, the queries of what the card is, INIT_HCA, CLOSE_HCA. infinihost 3.7, 3.8, 10.2.

use super::super::config::{FIRMWARE_AREA, LOG_UAR_MB};
use super::super::cq::Cqs;
use super::super::eq::{INTA_PIN, MAX_LOG_SIZE};
use super::super::hcr::Command;
use super::super::icm::FIRMWARE_PAGES;
use super::super::mpt::KeyTable;
use super::super::params::Params;
use super::super::qp::Qps;
use super::super::queue::MAX_LOG_QUEUE;
use super::super::record::Records;
use super::super::regs::{CATAS, CATAS_DWORDS, EQ_ARM, EQ_SET_CI};
use super::super::uar::Uar;
use super::super::variant::Mode;
use super::super::{InfiniHost, System, icm};
use super::{Done, LOG_MAX_COMMANDS};
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, SysEn};
use hca_abi::infinihost::dev_lim::{DevLim, features};
use hca_abi::infinihost::fw::{AdapterInfo, DdrInfo, FwInfo};
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::{pci, regs};

/// Where attached memory lies that the host cannot see.
const HIDDEN_DDR: u64 = 0xffff_0000_0000_0000;
/// Log2 of the QPs, SRQs and CQs that are the firmware's.
pub const LOG_RESERVED: u8 = 4;
/// QPs, SRQs and CQs below this are the firmware's.
pub const RESERVED: u32 = 1 << LOG_RESERVED;
/// Log2 of the protection entries that are the firmware's.
const LOG_RESERVED_MPTS: u8 = 4;
/// Protection entries below this are the firmware's.
pub const RESERVED_MPTS: u32 = 1 << LOG_RESERVED_MPTS;
/// Log2 of the translation segments that are the firmware's.
pub const LOG_RESERVED_MTTS: u8 = 4;
/// Log2 of the GIDs of a port.
pub const LOG_GIDS: u8 = 5;
/// Log2 of the P_Keys of a port.
pub const LOG_PKEYS: u8 = 6;
/// MTU code of 2048 bytes.
pub const MAX_MTU: u8 = 4;
/// Entries of a list of data.
const MAX_SG: u8 = 60;
/// Bytes of a work queue entry.
const MAX_DESCRIPTOR: u16 = 1008;
/// Data lanes.
pub const MAX_VLS: u8 = 4;

impl InfiniHost {
    /// First byte of the firmware's area, at the top of attached memory.
    pub(super) fn firmware_start(&self) -> u64 {
        self.chip.memory.end().saturating_sub(FIRMWARE_AREA)
    }

    pub(super) fn sys_en(&mut self, _bus: &mut dyn Bus, command: &Command) -> Done {
        if command.opcode_modifier > SysEn::PreserveMemory as u8 {
            return Err(CmdStatus::BAD_PARAM);
        }
        if command.opcode_modifier != SysEn::PreserveMemory as u8 {
            self.chip.memory.ddr.forget();
        }
        // A window without an address would lie over host memory.
        let window = self.chip.pci.config.bar_address(pci::BAR_DDR);
        let placed = window.filter(|&address| address != 0);
        self.chip.memory.place(placed.unwrap_or(HIDDEN_DDR));
        self.system = System::Enabled;
        Ok(Some(0))
    }

    pub(super) fn sys_dis(&mut self, bus: &mut dyn Bus, _command: &Command) -> Done {
        self.stop(bus);
        self.system = System::PowerOn;
        Ok(None)
    }

    pub(super) fn query_fw(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let version = self.config.firmware;
        let bar0 = self.chip.pci.config.bar_address(pci::BAR_DCS).unwrap_or(0);
        let mut info = FwInfo::ZERO;
        info.set_major(version.major)
            .set_minor(version.minor)
            .set_subminor(version.sub_minor)
            .set_command_revision(1)
            .set_log_max_commands(LOG_MAX_COMMANDS)
            .set_error_buffer(bar0 + CATAS)
            .set_error_buffer_dwords(CATAS_DWORDS as u32);
        match self.mode() {
            Mode::T => info
                .set_fw_start(self.firmware_start())
                .set_fw_end(self.chip.memory.end().saturating_sub(1)),
            Mode::M => info
                .set_fw_pages(FIRMWARE_PAGES)
                .set_clr_int(bar0 + regs::CLR_INT as u64)
                .set_eq_arm(bar0 + EQ_ARM)
                .set_eq_set_ci(bar0 + EQ_SET_CI),
        };
        self.output(bus, command, &info)
    }

    pub(super) fn query_ddr(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let memory = &self.chip.memory;
        let mut info = DdrInfo::ZERO;
        info.set_start(memory.base())
            .set_end(memory.end().saturating_sub(1))
            .set_hidden(self.config.hidden_ddr)
            .set_integrity(3)
            .set_dimm0_megabytes((memory.ddr.len() >> 20) as u16)
            .set_dimm0_start(memory.base());
        self.output(bus, command, &info)
    }

    pub(super) fn query_adapter(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let mut board_id = [0; 16];
        for (to, from) in board_id.iter_mut().zip(self.config.board_id.bytes()) {
            *to = from;
        }
        let mut info = AdapterInfo::ZERO;
        info.set_inta_pin(INTA_PIN).set_board_id(board_id);
        if self.mode() == Mode::T {
            let facts = self.config.variant.facts();
            info.set_vendor_id(u32::from(pci::VENDOR_MELLANOX))
                .set_device_id(u32::from(facts.device.0))
                .set_revision_id(u32::from(facts.revision));
        }
        self.output(bus, command, &info)
    }

    /// infinihost 10.2.
    pub(super) fn query_dev_lim(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let mut limits = DevLim::ZERO;
        limits
            .set_log_reserved_qps(LOG_RESERVED)
            .set_log_max_qps(24)
            .set_log_reserved_srqs(LOG_RESERVED)
            .set_log_max_srqs(13)
            .set_log_max_cq_size(17)
            .set_log_reserved_cqs(LOG_RESERVED)
            .set_log_max_cqs(24)
            .set_log_max_eq_size(MAX_LOG_SIZE)
            .set_log_max_mpts(24)
            .set_log_max_eqs(6)
            .set_log_reserved_mtts(LOG_RESERVED_MTTS)
            .set_log_reserved_mrws(LOG_RESERVED_MPTS)
            .set_log_max_mtts(24);
        limits
            .set_log_max_ra_requester(7)
            .set_log_max_ra_responder(4)
            .set_log_max_ra_global(22)
            .set_ack_delay(15)
            .set_max_mtu(MAX_MTU)
            .set_port_width(3)
            .set_max_vls(MAX_VLS)
            .set_ports(self.config.ports)
            .set_log_max_gids(LOG_GIDS)
            .set_static_rates(0x000f)
            .set_log_max_pkeys(LOG_PKEYS)
            .set_features(self.features())
            .set_reserved_uars(1)
            .set_log_uar_megabytes(LOG_UAR_MB)
            .set_log_page_size(12)
            .set_max_sg(MAX_SG)
            .set_max_descriptor(MAX_DESCRIPTOR);
        limits
            .set_log_max_qps_per_group(8)
            .set_log_max_groups(13)
            .set_reserved_pds(4)
            .set_log_max_pds(24)
            .set_eec_size(256)
            .set_qpc_size(256)
            .set_eeec_size(32)
            .set_eqpc_size(32)
            .set_eqc_size(64)
            .set_cqc_size(64)
            .set_srqc_size(32)
            .set_uar_scratch_size(32);
        match self.mode() {
            Mode::T => limits
                .set_log_max_srq_size(16)
                .set_log_max_qp_size(16)
                .set_log_max_avs(20),
            Mode::M => limits
                .set_log_max_srq_size(MAX_LOG_QUEUE)
                .set_log_max_qp_size(MAX_LOG_QUEUE)
                .set_log_reserved_rdbs(4)
                .set_max_sg_rq(MAX_SG)
                .set_max_descriptor_rq(MAX_DESCRIPTOR)
                .set_mtt_size(8)
                .set_mpt_size(64)
                .set_max_icm(icm::MAX),
        };
        self.output(bus, command, &limits)
    }

    /// The published word, and what firmware of M-mode has besides.
    fn features(&self) -> u32 {
        let checksums = self.config.checksums;
        FEATURES
            | if checksums {
                features::IPOIB_CHECKSUM
            } else {
                0
            }
    }

    pub(super) fn init_hca(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let raw: InitHca = self.input(bus, command)?;
        let space = match self.mode() {
            Mode::T => self.chip.memory.base()..self.firmware_start(),
            Mode::M => 0..icm::MAX,
        };
        let mut params = Params::new(self.mode(), raw, space)?;
        if let Some((one, other)) = params.overlap() {
            bus.report(format_args!("INIT_HCA: tables {one} and {other} overlap"));
        }
        let groups = u64::from(params.mc_entries) * u64::from(params.mc_entry);
        if !self.chip.memory.table_has(params.mc_base, groups) {
            return Err(CmdStatus::BAD_PARAM);
        }
        let cleared = self.chip.memory.table_clear(bus, params.mc_base, groups);
        cleared.map_err(|_| CmdStatus::BAD_PARAM)?;
        if raw.mc_hash_function() != 0 {
            self.chip.ledger.count("INIT_HCA: hash function");
        }
        if raw.big_endian_host() {
            self.chip.ledger.count("INIT_HCA: big-endian host");
        }
        if raw.ud_av_translate() || raw.ud_av_check() {
            self.chip
                .ledger
                .count("INIT_HCA: UD address vector enforcement");
        }
        if !self.config.checksums {
            params.checksums = None;
            if raw.checksum() || raw.send_pseudo_header() || raw.receive_pseudo_header() {
                self.chip.ledger.count("INIT_HCA: checksum offload");
            }
        }
        if let Some(icm) = self.chip.memory.icm()
            && icm.aux.pages() < icm::AUX_PAGES
        {
            let pages = icm.aux.pages();
            bus.report(format_args!(
                "INIT_HCA: {pages} pages of auxiliary memory are mapped, {} were asked for",
                icm::AUX_PAGES
            ));
        }
        self.chip.keys = match self.mode() {
            Mode::T => KeyTable::new(raw.mpt_base(), params.mpts()),
            Mode::M => KeyTable::rotated(raw.mpt_base(), params.mpts(), raw.mtt_base()),
        };
        self.cqs = Cqs::new(params.cqs());
        self.qps = Qps::new(params.qps());
        if self.mode() == Mode::M {
            self.chip.records = Records::new(raw.uarc_base(), params.uarc_len());
        }
        self.uar = Uar::new(self.mode(), params.page_shift);
        self.system = System::Running(Box::new(params));
        Ok(None)
    }

    pub(super) fn close_hca(&mut self, bus: &mut dyn Bus, _command: &Command) -> Done {
        self.stop(bus);
        self.system = System::Enabled;
        Ok(None)
    }

    pub(super) fn query_hca(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let mut raw = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?.raw;
        raw.set_uar_base(self.chip.pci.config.bar_address(pci::BAR_UAR).unwrap_or(0));
        self.output(bus, command, &raw)
    }
}

const FEATURES: u32 = features::RC
    | features::UC
    | features::UD
    | features::SRQ
    | features::PKEY_COUNTER
    | features::QKEY_COUNTER
    | features::MEMORY_WINDOWS
    | features::PATH_MIGRATION
    | features::ATOMICS
    | features::UD_AV_PORT
    | features::UD_MULTICAST;

#[cfg(test)]
mod tests {
    #[test]
    fn the_features_are_the_published_word() {
        assert_eq!(super::FEATURES, 0x0037_0347);
    }
}
