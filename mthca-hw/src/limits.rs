//! What this HCA can and where its parts are: the answers of QUERY_FW, QUERY_DDR, QUERY_DEV_LIM and QUERY_ADAPTER, as
//! plain numbers. infinihost 3.7. What an HCA of the M-mode says otherwise has functions of its own.
//!
//! The HCA is not believed blindly: what would make the driver's own arithmetic meaningless is refused here, by name.

use crate::chip::Chip;
use crate::plan::MTT_ENTRY;
use core::fmt;
use core_ib::Mtu;
use hca_abi::infinihost::dev_lim::{DevLim, features};
use hca_abi::infinihost::fw::{AdapterInfo, DdrInfo, FwInfo};
use hca_abi::infinihost::mpt::Mpt;
use hca_abi::infinihost::regs::{BAR0_LEN, EQ_SET_CI_ENTRIES, EQ_SET_CI_STRIDE};
use hca_abi::infinihost::wqe::{MAX_UNITS, UNIT};

/// Bytes of table entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntrySizes {
    /// QP context.
    pub qpc: u64,
    /// Extended QP context.
    pub eqpc: u64,
    /// SRQ context.
    pub srqc: u64,
    /// CQ context.
    pub cqc: u64,
    /// EQ context.
    pub eqc: u64,
    /// UAR scratch.
    pub uar_scratch: u64,
    /// MPT entry.
    pub mpt: u64,
}

/// Offsets in BAR 0 of the registers that an HCA of the M-mode tells of. infinihost 2.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventRegisters {
    /// Interrupt clear.
    pub clr_int: usize,
    /// Arming of EQs.
    pub eq_arm: usize,
    /// Consumer indices of EQs.
    pub eq_set_ci: usize,
}

/// The numbers. "Reserved" entries of a table, the first ones, belong to the firmware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Firmware version: major, minor, sub-minor.
    pub firmware: [u16; 3],
    /// Commands in flight.
    pub commands: u32,
    /// Offset of the error buffer in BAR 0.
    pub error_buffer: usize,
    /// Dwords of it.
    pub error_dwords: usize,
    /// First byte of attached memory.
    pub ddr_start: u64,
    /// Last byte of attached memory.
    pub ddr_end: u64,
    /// Attached memory can be reached through BAR 4.
    pub ddr_visible: bool,
    /// First byte of the firmware's part of it.
    pub firmware_start: u64,
    /// M: pages that the firmware wants.
    pub firmware_pages: u16,
    /// M: where the registers of events are.
    pub registers: EventRegisters,
    /// M: bytes of ICM.
    pub max_icm: u64,
    /// See the type.
    pub reserved_qps: u32,
    /// Logarithm of the table's entries, as for the others.
    pub log_max_qps: u8,
    /// See the type.
    pub reserved_cqs: u32,
    /// Logarithm.
    pub log_max_cqs: u8,
    /// See the type.
    pub reserved_srqs: u32,
    /// Logarithm.
    pub log_max_srqs: u8,
    /// See the type.
    pub reserved_eqs: u32,
    /// See the type.
    pub reserved_mpts: u32,
    /// Logarithm.
    pub log_max_mpts: u8,
    /// See the type.
    pub reserved_segments: u32,
    /// Logarithm.
    pub log_max_mtt_segments: u8,
    /// See the type.
    pub reserved_pds: u32,
    /// Logarithm.
    pub log_max_pds: u8,
    /// See the type.
    pub reserved_uars: u32,
    /// UAR pages of 4 KB.
    pub uar_pages: u32,
    /// Logarithm.
    pub log_max_avs: u8,
    /// Logarithm.
    pub log_max_mcgs: u8,
    /// Requests of a work queue.
    pub max_wr: u32,
    /// Requests of an SRQ.
    pub max_srq_wr: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Bytes of a WQE.
    pub max_wqe: u32,
    /// Logarithm of reads and atomics of a QP as initiator.
    pub log_max_rd_atomic: u8,
    /// The same as responder.
    pub log_max_rd_atomic_dest: u8,
    /// Local CA ACK delay.
    pub ack_delay: u8,
    /// Largest MTU.
    pub mtu: Option<Mtu>,
    /// Port width capability.
    pub port_width: u8,
    /// Virtual lanes.
    pub vls: u8,
    /// Ports, 1 or 2.
    pub ports: u8,
    /// Entries of a port's GID table.
    pub gids: u16,
    /// Entries of a port's P_Key table.
    pub pkeys: u16,
    /// Bit r: static rate code r may be used.
    pub static_rates: u16,
    /// Feature flags of the HCA.
    pub features: u32,
    /// The HCA has SRQs.
    pub has_srq: bool,
    /// Bytes of table entries.
    pub entries: EntrySizes,
    /// Interrupt pin, as EQ contexts and CLR_INT know it.
    pub inta_pin: u8,
    /// IEEE OUI or PCI vendor, as the HCA says.
    pub vendor_id: u32,
    /// Number of the part.
    pub device_id: u32,
    /// Revision.
    pub revision: u32,
    /// The board's name, padded with zeros.
    pub board_id: [u8; 16],
}

/// Something in the HCA's answers that this driver cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsError {
    /// Neither 1 nor 2.
    Ports {
        /// What was said.
        found: u8,
    },
    /// The smallest page is larger than 4 KB.
    PageSize {
        /// Its logarithm.
        log: u8,
    },
    /// The UAR area is larger than BAR 2.
    Uar {
        /// Bytes that the HCA speaks of.
        bytes: u64,
        /// Bytes of the BAR.
        bar: u64,
    },
    /// The firmware does not lie in attached memory.
    Firmware {
        /// Its first byte.
        start: u64,
    },
    /// The error buffer does not lie in BAR 0.
    ErrorBuffer {
        /// Its address.
        address: u64,
    },
    /// Registers do not lie in BAR 0.
    Registers {
        /// Which.
        register: &'static str,
        /// Their address.
        address: u64,
    },
    /// Entries of a table in ICM of a size that cannot be.
    EntrySize {
        /// Of which table.
        table: &'static str,
        /// Bytes.
        found: u64,
    },
    /// The firmware wants more memory for itself than anybody would give.
    Auxiliary {
        /// Pages of 4 KB.
        pages: u64,
    },
    /// A logarithm beyond all reason.
    Logarithm {
        /// Of what.
        field: &'static str,
        /// What was said.
        found: u8,
    },
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ports { found } => write!(f, "the HCA says that it has {found} ports"),
            Self::PageSize { log } => write!(f, "the HCA's smallest page has 2^{log} bytes"),
            Self::Uar { bytes, bar } => {
                write!(f, "{bytes} bytes of doorbell pages in a BAR of {bar}")
            }
            Self::Firmware { start } => {
                write!(f, "the firmware at {start:#x} is outside attached memory")
            }
            Self::ErrorBuffer { address } => {
                write!(f, "the error buffer at {address:#x} is outside BAR 0")
            }
            Self::Registers { register, address } => {
                write!(f, "{register} at {address:#x} is outside BAR 0")
            }
            Self::EntrySize { table, found } => {
                write!(
                    f,
                    "{found} bytes of an entry of the {table} table cannot be"
                )
            }
            Self::Auxiliary { pages } => write!(f, "the firmware wants {pages} pages for itself"),
            Self::Logarithm { field, found } => write!(f, "{field}: 2^{found} cannot be"),
        }
    }
}

impl core::error::Error for LimitsError {}

/// `1 << log`, for a logarithm that the HCA gave.
fn power(field: &'static str, log: u8) -> Result<u32, LimitsError> {
    let found = log;
    1_u32
        .checked_shl(u32::from(log))
        .filter(|_| log < 31)
        .ok_or(LimitsError::Logarithm { field, found })
}

/// Most auxiliary memory that is taken for an honest answer: 1 GB.
const MAX_AUX_PAGES: u64 = 1 << 18;
/// Longest work queue: sixteen bits count what stands behind an error, and say the limit of an SRQ. infinihost 4.5.2, 3.12.
const MOST_REQUESTS: u32 = 1 << 16;
/// Logarithm of the longest work queue of the M-mode: four bits in its context.
const M_LOG_MAX_QUEUE: u8 = 15;
/// Most UAR pages of the M-mode: their logarithm has four bits in INIT_HCA.
const M_MAX_UARS: u32 = 1 << 15;
/// Logarithm of MTT entries in a segment.
const LOG_SEGMENT: u8 = 3;

/// Offset in BAR 0 of `bytes` bytes of registers at `address`.
fn in_bar0(register: &'static str, address: u64, bytes: u64) -> Result<usize, LimitsError> {
    let offset = address & (BAR0_LEN - 1);
    if !offset.is_multiple_of(4) || bytes > BAR0_LEN - offset {
        return Err(LimitsError::Registers { register, address });
    }
    Ok(offset as usize)
}

impl Limits {
    /// Takes note of QUERY_FW, from an HCA of the M-mode.
    pub fn note_m_firmware(&mut self, fw: &FwInfo) -> Result<(), LimitsError> {
        self.note_firmware(fw)?;
        self.firmware_start = 0;
        self.firmware_pages = fw.fw_pages();
        let table = (EQ_SET_CI_STRIDE * EQ_SET_CI_ENTRIES) as u64;
        self.registers = EventRegisters {
            clr_int: in_bar0("CLR_INT", fw.clr_int(), 8)?,
            eq_arm: in_bar0("EQ_ARM", fw.eq_arm(), 8)?,
            eq_set_ci: in_bar0("EQ_SET_CI", fw.eq_set_ci(), table)?,
        };
        Ok(())
    }

    /// Takes note of what QUERY_DEV_LIM says in addition, or otherwise, in M-mode; after
    /// [`note_device`](Self::note_device).
    pub fn note_m_device(&mut self, dev: &DevLim, sinai: bool) -> Result<(), LimitsError> {
        let longest = |log: u8| power("work requests", log.min(M_LOG_MAX_QUEUE));
        self.max_wr = longest(dev.log_max_qp_size())?.saturating_sub(1);
        self.max_srq_wr = longest(dev.log_max_srq_size())?.saturating_sub(1);
        // Of both queues, whichever is worse.
        let max_wqe = u32::from(dev.max_descriptor_rq()).min(self.max_wqe);
        self.max_wqe = max_wqe;
        let room = max_wqe.saturating_sub(16 + 48) / 16;
        self.max_sge = u32::from(dev.max_sg_rq()).min(self.max_sge).min(room);
        // Translations are counted one by one here, and reserved ones rounded up to segments.
        self.reserved_segments =
            power("reserved MTT entries", dev.log_reserved_mtts())?.div_ceil(8);
        self.log_max_mtt_segments = dev.log_max_mtts().saturating_sub(LOG_SEGMENT).min(27);
        self.log_max_avs = 24; // they lie in the driver's own memory
        self.uar_pages = self.uar_pages.min(M_MAX_UARS);
        self.max_icm = dev.max_icm();
        if dev.static_rates() == 0 && sinai {
            self.static_rates = 0xf;
        }
        self.entries.mpt = dev.mpt_size().into();
        let entries = &self.entries;
        let power_of_two = |size: u64| size.is_power_of_two() && (8..=4096).contains(&size);
        for (table, found) in [
            ("QP", entries.qpc),
            ("extended QP", entries.eqpc),
            ("CQ", entries.cqc),
            ("EQ", entries.eqc),
            ("SRQ", if self.has_srq { entries.srqc } else { 32 }),
        ] {
            if !power_of_two(found) {
                return Err(LimitsError::EntrySize { table, found });
            }
        }
        for (table, found, needed) in [
            ("MPT", entries.mpt, size_of::<Mpt>() as u64),
            ("MTT", dev.mtt_size().into(), MTT_ENTRY),
        ] {
            if found != needed {
                return Err(LimitsError::EntrySize { table, found });
            }
        }
        Ok(())
    }

    /// Takes the answer to SET_ICM_SIZE: pages that the firmware wants for itself.
    pub fn check_auxiliary(pages: u64) -> Result<u32, LimitsError> {
        if pages > MAX_AUX_PAGES {
            return Err(LimitsError::Auxiliary { pages });
        }
        Ok(pages as u32)
    }

    /// Takes note of QUERY_FW.
    pub fn note_firmware(&mut self, fw: &FwInfo) -> Result<(), LimitsError> {
        self.firmware = [fw.major(), fw.minor(), fw.subminor()];
        self.commands = power("outstanding commands", fw.log_max_commands())?;
        self.firmware_start = fw.fw_start();
        let address = fw.error_buffer();
        let offset = address & (BAR0_LEN - 1);
        let bytes = u64::from(fw.error_buffer_dwords()) * 4;
        if !offset.is_multiple_of(4) || bytes > BAR0_LEN - offset {
            return Err(LimitsError::ErrorBuffer { address });
        }
        self.error_buffer = offset as usize;
        self.error_dwords = fw.error_buffer_dwords() as usize;
        Ok(())
    }

    /// Takes note of QUERY_DDR, after QUERY_FW. `bar` is the length of BAR 4, if there is one.
    pub fn note_ddr(&mut self, ddr: &DdrInfo, bar: Option<u64>) -> Result<(), LimitsError> {
        self.ddr_start = ddr.start();
        self.ddr_end = ddr.end();
        let start = self.firmware_start;
        if start < self.ddr_start || start > self.ddr_end {
            return Err(LimitsError::Firmware { start });
        }
        let used = start - self.ddr_start;
        self.ddr_visible = !ddr.hidden() && bar.is_some_and(|bytes| bytes >= used);
        Ok(())
    }

    /// Takes note of QUERY_DEV_LIM. `bar` is the length of BAR 2.
    pub fn note_device(&mut self, dev: &DevLim, bar: u64) -> Result<(), LimitsError> {
        let found = dev.ports();
        if !(1..=2).contains(&found) {
            return Err(LimitsError::Ports { found });
        }
        let log = dev.log_page_size();
        if log > 12 {
            return Err(LimitsError::PageSize { log });
        }
        let bytes = 1_u64.checked_shl(20 + u32::from(dev.log_uar_megabytes()));
        let bytes = bytes.unwrap_or(u64::MAX);
        if bytes > bar || bytes > 1 << 32 {
            return Err(LimitsError::Uar { bytes, bar });
        }
        self.ports = dev.ports();
        self.uar_pages = (bytes >> 12) as u32;
        self.reserved_uars = u32::from(dev.reserved_uars());
        self.reserved_qps = power("reserved QPs", dev.log_reserved_qps())?;
        self.log_max_qps = dev.log_max_qps();
        self.reserved_cqs = power("reserved CQs", dev.log_reserved_cqs())?;
        self.log_max_cqs = dev.log_max_cqs();
        self.reserved_srqs = power("reserved SRQs", dev.log_reserved_srqs())?;
        self.log_max_srqs = dev.log_max_srqs();
        // Some say that this is a count: the larger reading leaves everybody in peace. infinihost 3.7, 12.
        self.reserved_eqs = power("reserved EQs", dev.reserved_eqs())?;
        self.reserved_mpts = power("reserved MPT entries", dev.log_reserved_mrws())?;
        self.log_max_mpts = dev.log_max_mpts().min(30);
        self.reserved_segments = power("reserved MTT segments", dev.log_reserved_mtts())?;
        self.log_max_mtt_segments = dev.log_max_mtts().min(27);
        self.reserved_pds = u32::from(dev.reserved_pds());
        self.log_max_pds = dev.log_max_pds().min(24);
        self.log_max_avs = dev.log_max_avs().min(24);
        self.log_max_mcgs = dev.log_max_groups().min(24);
        // One WQE of a queue is never used: infinihost 5.1.
        let longest = |field, log| {
            power(field, log).map(|requests| requests.min(MOST_REQUESTS).saturating_sub(1))
        };
        self.max_wr = longest("work requests", dev.log_max_qp_size())?;
        self.max_srq_wr = longest("SRQ requests", dev.log_max_srq_size())?;
        self.max_cqe = power("CQ entries", dev.log_max_cq_size())?.saturating_sub(1);
        let max_wqe = u32::from(dev.max_descriptor());
        self.max_wqe = max_wqe.min(u32::from(MAX_UNITS) * UNIT as u32);
        // The widest transport segment is that of a datagram. infinihost 3.7.
        let room = self.max_wqe.saturating_sub(16 + 48) / 16;
        self.max_sge = u32::from(dev.max_sg()).min(room);
        self.log_max_rd_atomic = dev.log_max_ra_requester().min(7);
        self.log_max_rd_atomic_dest = dev.log_max_ra_responder().min(7);
        self.ack_delay = dev.ack_delay();
        self.mtu = Mtu::from_code(dev.max_mtu());
        self.port_width = dev.port_width();
        self.vls = dev.max_vls();
        self.gids = 1 << dev.log_max_gids().min(6); // six bits in an address path
        self.pkeys = 1 << dev.log_max_pkeys().min(7); // seven
        self.static_rates = match dev.static_rates() {
            0 => 0x3,
            rates => rates,
        };
        self.features = dev.features();
        self.has_srq = self.can(features::SRQ);
        self.entries = EntrySizes {
            qpc: u64::from(dev.qpc_size()),
            eqpc: u64::from(dev.eqpc_size()),
            srqc: u64::from(dev.srqc_size()),
            cqc: u64::from(dev.cqc_size()),
            eqc: u64::from(dev.eqc_size()),
            uar_scratch: u64::from(dev.uar_scratch_size()),
            mpt: size_of::<Mpt>() as u64,
        };
        Ok(())
    }

    /// Takes note of QUERY_ADAPTER.
    pub fn note_adapter(&mut self, adapter: &AdapterInfo) {
        self.inta_pin = adapter.inta_pin();
        self.vendor_id = adapter.vendor_id();
        self.device_id = adapter.device_id();
        self.revision = adapter.revision_id();
        self.board_id = adapter.board_id();
    }

    /// Has the HCA this feature? Bits: `hca_abi::infinihost::dev_lim::features`.
    pub const fn can(&self, feature: u32) -> bool {
        self.features & feature == feature
    }

    /// M: computes and verifies the checksums of what IPoIB carries. In T-mode the bit means nothing. infinihost 5.11.
    pub const fn has_checksums(&self, chip: &Chip) -> bool {
        chip.is_mem_free() && self.can(features::IPOIB_CHECKSUM)
    }
}

#[cfg(test)]
impl Limits {
    /// Those of the HCA that the tests speak of: the values that infinihost 10.2 recommends.
    pub const EXAMPLE: Self = Self {
        firmware: [3, 5, 0],
        commands: 16,
        error_buffer: 0xf0800,
        error_dwords: 16,
        ddr_start: 0x8000_0000,
        ddr_end: 0x87ff_ffff,
        ddr_visible: true,
        firmware_start: 0x87c0_0000,
        firmware_pages: 0,
        registers: EventRegisters {
            clr_int: 0,
            eq_arm: 0,
            eq_set_ci: 0,
        },
        max_icm: 0,
        reserved_qps: 16,
        log_max_qps: 24,
        reserved_cqs: 16,
        log_max_cqs: 24,
        reserved_srqs: 16,
        log_max_srqs: 13,
        reserved_eqs: 1,
        reserved_mpts: 16,
        log_max_mpts: 24,
        reserved_segments: 16,
        log_max_mtt_segments: 24,
        reserved_pds: 4,
        log_max_pds: 24,
        reserved_uars: 1,
        uar_pages: 2048,
        log_max_avs: 20,
        log_max_mcgs: 13,
        max_wr: 65535,
        max_srq_wr: 65535,
        max_cqe: 131071,
        max_sge: 59,
        max_wqe: 1008,
        log_max_rd_atomic: 7,
        log_max_rd_atomic_dest: 4,
        ack_delay: 15,
        mtu: Some(Mtu::Mtu2048),
        port_width: 3,
        vls: 4,
        ports: 2,
        gids: 32,
        pkeys: 64,
        static_rates: 0xf,
        features: 0x0036_0347,
        has_srq: true,
        entries: EntrySizes {
            qpc: 256,
            eqpc: 32,
            srqc: 32,
            cqc: 64,
            eqc: 64,
            uar_scratch: 32,
            mpt: 64,
        },
        inta_pin: 31,
        vendor_id: 0x2c9,
        device_id: 0x5a44,
        revision: 0xa1,
        board_id: [0; 16],
    };

    /// The same of one that is mem-free.
    pub const MEM_FREE: Self = Self {
        ddr_start: 0,
        ddr_end: 0,
        ddr_visible: false,
        firmware_start: 0,
        firmware_pages: 256,
        registers: EventRegisters {
            clr_int: 0xf00d8,
            eq_arm: 0xf0200,
            eq_set_ci: 0xf0400,
        },
        max_icm: 1 << 38,
        reserved_segments: 2,
        log_max_mtt_segments: 21,
        log_max_avs: 24,
        max_wr: 16383,
        max_srq_wr: 16383,
        ..Self::EXAMPLE
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::Chip;
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    #[test]
    fn the_firmware_version_is_in_the_order_of_the_mailbox_and_not_of_the_number() {
        let mut limits = Limits::default();
        let mut fw = FwInfo::ZERO;
        fw.set_major(3).set_subminor(200).set_minor(5);
        limits.note_firmware(&fw).unwrap();
        assert_eq!(limits.firmware, [3, 5, 200]);
    }

    #[test]
    fn a_device_with_more_ports_than_it_can_have_is_refused() {
        let mut dev = DevLim::ZERO;
        dev.set_ports(3);
        let refused = Limits::default().note_device(&dev, 8 << 20);
        assert_eq!(refused, Err(LimitsError::Ports { found: 3 }));
    }

    #[test]
    fn no_queue_is_longer_than_sixteen_bits_can_count() {
        let mut dev = DevLim::ZERO;
        dev.set_ports(1)
            .set_log_max_qp_size(20)
            .set_log_max_srq_size(20);
        let mut limits = Limits::default();
        limits.note_device(&dev, 8 << 20).unwrap();
        assert_eq!((limits.max_wr, limits.max_srq_wr), (65535, 65535));
    }

    proptest! {
        #[test]
        fn whatever_the_firmware_answers_is_taken_or_refused_without_a_panic(
            mut dev: [u8; 256], fw: [u8; 256], ddr: [u8; 256], sane: bool,
        ) {
            if sane { // else the ports are right in one of eight, and the rest is rarely reached
                dev[0x37] = dev[0x37] & 0xf0 | 2;
                dev[0x49] = 3;
                dev[0x4b] = 12;
                dev[0x80..0x94].copy_from_slice(&[
                    1, 0, 1, 0, 0, 32, 0, 32, 0, 64, 0, 64, 0, 32, 0, 32, 0, 8, 0, 64,
                ]);
            }
            let mut limits = Limits::default();
            let dev = DevLim::read_from_bytes(&dev).unwrap();
            let fw = FwInfo::read_from_bytes(&fw).unwrap();
            let ddr = DdrInfo::read_from_bytes(&ddr).unwrap();
            let _ = limits.note_firmware(&fw);
            let _ = limits.note_ddr(&ddr, Some(1 << 27));
            if limits.note_device(&dev, 8 << 20).is_ok() {
                for profile in [crate::Profile::SMALL, crate::Profile::SERVER] {
                    let _ = crate::plan::Plan::new(&Chip::default(), &profile, &limits);
                }
            }
            let mut limits = Limits::default();
            let firmware = limits.note_m_firmware(&fw);
            if firmware.is_ok() {
                prop_assert!(limits.registers.eq_set_ci + 512 <= BAR0_LEN as usize);
            }
            let device = limits.note_device(&dev, 8 << 20);
            if device.and_then(|()| limits.note_m_device(&dev, true)).is_ok() {
                for profile in [crate::Profile::SMALL, crate::Profile::SERVER] {
                    let chip = Chip { mode: crate::chip::Mode::M, ..Chip::default() };
                    let _ = crate::plan::Plan::new(&chip, &profile, &limits);
                }
            }
        }
    }
}
