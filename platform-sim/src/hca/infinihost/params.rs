//! What INIT_HCA said: where the tables lie and how large they are. infinihost 3.8.

use super::cmd::LOG_RESERVED_MTTS;
use super::config::UAR_LEN;
use super::mpt::MPT_LEN;
use super::variant::Mode;
use core::ops::Range;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::init_hca::InitHca;

/// The parameters in force, checked.
#[derive(Clone, Debug)]
pub struct Params {
    /// Whose tables they are.
    mode: Mode,
    /// Where tables may lie: addresses within attached memory below the firmware's area, or the whole of ICM.
    pub space: Range<u64>,
    /// As given.
    pub raw: InitHca,
    /// Log2 of the bytes of a UAR page.
    pub page_shift: u32,
    /// First byte of the multicast table.
    pub mc_base: u64,
    /// Bytes of a multicast entry, 64 to 1024.
    pub mc_entry: u32,
    /// Hash buckets, at most `mc_entries`.
    pub mc_buckets: u32,
    /// Buckets and overflow area.
    pub mc_entries: u32,
    /// A UD send whose address vector names another port than the QP's fails.
    pub av_port_check: bool,
    /// What is done about the checksums of datagrams, if anything.
    pub checksums: Option<Checksums>,
}

/// Who reckons the pseudo headers of TCP and UDP: the HCA, or software. infinihost 5.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// The HCA, in what is sent.
    pub send_pseudo_header: bool,
    /// The HCA, in what is received.
    pub receive_pseudo_header: bool,
}

/// Largest counts that INIT_HCA may ask for, log2. infinihost 10.2.
const LOG_QPS: u8 = 24;
const LOG_SRQS: u8 = 16;
const LOG_CQS: u8 = 24;
const LOG_EQS: u8 = 6;
const LOG_MPTS: u8 = 24;
const LOG_MCG: u8 = 16;
const LOG_UARC_PAGES: u8 = 16;

/// A table within attached memory: name, first byte, bytes.
type Table = (&'static str, u64, u64);

impl Params {
    /// Checks what INIT_HCA brought: counts, and that every table that somebody uses lies in `space`. EE contexts, RDB
    /// and scratch are used by nobody.
    pub fn new(mode: Mode, raw: InitHca, space: Range<u64>) -> Result<Self, CmdStatus> {
        let limits = [
            (raw.log_qps(), LOG_QPS),
            (raw.log_srqs(), LOG_SRQS),
            (raw.log_cqs(), LOG_CQS),
            (raw.log_eqs(), LOG_EQS),
            (raw.log_mpts(), LOG_MPTS),
            (raw.log_mc_table_size(), LOG_MCG),
            (raw.uar_page_size(), 11),
            (raw.log_uarc_pages(), LOG_UARC_PAGES),
        ];
        if limits.iter().any(|(log, limit)| log > limit) {
            return Err(CmdStatus::EXCEED_LIM);
        }
        let mc_entries = 1 << raw.log_mc_table_size();
        let entry_is_sound = (6..=10).contains(&raw.log_mc_entry_size());
        if !entry_is_sound || raw.mc_hash_size() == 0 || raw.mc_hash_size() > mc_entries {
            return Err(CmdStatus::BAD_PARAM);
        }
        let params = Self {
            mode,
            space,
            raw,
            page_shift: 12 + u32::from(raw.uar_page_size()),
            mc_base: raw.mc_base(),
            mc_entry: 1 << raw.log_mc_entry_size(),
            mc_buckets: raw.mc_hash_size(),
            mc_entries,
            av_port_check: raw.ud_av_port_check(),
            checksums: raw.checksum().then(|| Checksums {
                send_pseudo_header: raw.send_pseudo_header(),
                receive_pseudo_header: raw.receive_pseudo_header(),
            }),
        };
        let fits = |&(_, start, len): &Table| {
            let end = start.checked_add(len);
            start >= params.space.start && end.is_some_and(|end| end <= params.space.end)
        };
        if !params.tables().all(|table| fits(&table)) || !params.space.contains(&raw.mtt_base()) {
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(params)
    }

    fn tables(&self) -> impl Iterator<Item = Table> {
        let raw = &self.raw;
        let table = |name, base, log: u8, len: u64| (name, base, len << log);
        let common = [
            table("QPC", raw.qpc_base(), raw.log_qps(), 256),
            table("EQPC", raw.eqpc_base(), raw.log_qps(), 32),
            table("SRQC", raw.srqc_base(), raw.log_srqs(), 32),
            table("CQC", raw.cqc_base(), raw.log_cqs(), 64),
            table("EQC", raw.eqc_base(), raw.log_eqs(), 64),
            table("MPT", raw.mpt_base(), raw.log_mpts(), MPT_LEN),
            table(
                "multicast",
                raw.mc_base(),
                raw.log_mc_table_size(),
                u64::from(self.mc_entry),
            ),
        ];
        let uarc = table("UARC", raw.uarc_base(), raw.log_uars(), self.uarc_len());
        let own = match self.mode {
            Mode::T => None,
            Mode::M => Some(uarc),
        };
        common.into_iter().chain(own)
    }

    /// Bytes of a UAR context (M-mode).
    pub fn uarc_len(&self) -> u64 {
        4096 << self.raw.log_uarc_pages()
    }

    /// Two tables that share memory, if there are any: silicon would corrupt both.
    pub fn overlap(&self) -> Option<(&'static str, &'static str)> {
        let mut tables: Vec<Table> = self.tables().collect();
        tables.sort_by_key(|&(_, start, _)| start);
        let pairs = tables.iter().zip(tables.iter().skip(1));
        let mut overlaps = pairs.filter(|((_, start, len), (_, next, _))| start + len > *next);
        overlaps
            .next()
            .map(|((one, ..), (other, ..))| (*one, *other))
    }

    /// QPs, a power of two.
    pub fn qps(&self) -> u32 {
        1 << self.raw.log_qps()
    }

    /// SRQs.
    pub fn srqs(&self) -> u32 {
        1 << self.raw.log_srqs()
    }

    /// CQs.
    pub fn cqs(&self) -> u32 {
        1 << self.raw.log_cqs()
    }

    /// EQs.
    pub fn eqs(&self) -> u32 {
        1 << self.raw.log_eqs()
    }

    /// Protection table entries.
    pub fn mpts(&self) -> u32 {
        1 << self.raw.log_mpts()
    }

    /// UAR pages that BAR 2 has and, in M-mode, that have a context.
    pub fn uar_pages(&self) -> u32 {
        let pages = (UAR_LEN >> self.page_shift) as u32;
        match self.mode {
            Mode::T => pages,
            Mode::M => pages.min(1 << self.raw.log_uars()),
        }
    }

    /// Bytes at the front of the translation table that are the firmware's: 16 segments in T-mode, 16 entries in M-mode.
    pub fn reserved_mtts(&self) -> u64 {
        match self.mode {
            Mode::T => 64 << self.raw.mtt_segment_size() << LOG_RESERVED_MTTS,
            Mode::M => 8 << LOG_RESERVED_MTTS,
        }
    }
}
