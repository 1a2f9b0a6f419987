//! Ports: what the driver keeps of each, queries and changes. verbs 2.2, 2.3, infinihost 3.9, 8.
//!
//! Everything about a port is asked of the firmware's subnet management agent by MAD_IFC. The GID and P_Key tables are
//! kept here too, since handles are made and packets of QP1 are built where nothing may block; who changes them goes
//! through [`process_mad`](core_ib::verbs::Device::process_mad), which reads them again.

use crate::cmd::table::{CloseIb, InitIb, SetIb};
use crate::event::Pending;
use crate::inner::Inner;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::{PortAttr, PortEvent, PortModify, VerbsError};
use core_ib::wire::mad::{GuidInfo, PKeyTable, PortInfo};
use core_ib::{Gid, Guid, Mtu, PKey, Rate};
use hca_abi::infinihost::port as abi;

/// GUIDs of one GUIDInfo block.
const GUIDS: u16 = 8;
/// P_Keys of one block.
const PKEYS: u16 = 32;
/// Bytes of the largest message of a connected QP.
const MAX_MESSAGE: u32 = 1 << 31;

/// A GID in two halves: prefix and GUID change apart from each other.
#[derive(Debug, Default)]
struct GidEntry {
    prefix: AtomicU64,
    guid: AtomicU64,
}

/// What is kept of a port.
pub(crate) struct Port<'p, P: Platform> {
    gids: Table<'p, GidEntry, P>,
    pkeys: Table<'p, AtomicU16, P>,
    /// Its rate as last read, in units of 2.5 Gbit/s; 0 while it is not known.
    multiple: AtomicU32,
    /// What happened and nobody has taken.
    pub events: Pending,
}

impl<'p, P: Platform> Port<'p, P> {
    /// Knows nothing yet. Set-up only.
    pub fn new(machine: &'p P, gids: u16, pkeys: u16) -> Result<Self, PlatformError> {
        Ok(Self {
            gids: Table::new(machine, usize::from(gids), |_| GidEntry::default())?,
            pkeys: Table::new(machine, usize::from(pkeys), |_| AtomicU16::new(0))?,
            multiple: AtomicU32::new(0),
            events: {
                let events = Pending::closed();
                events.open(0);
                events
            },
        })
    }

    /// Its rate as last read, in units of 2.5 Gbit/s; 0 while it is not known. Any context.
    pub fn multiple(&self) -> u32 {
        self.multiple.load(Relaxed)
    }

    /// Entry of the GID table as last read. Any context.
    pub fn gid(&self, index: u16) -> Option<Gid> {
        let entry = self.gids.get(usize::from(index))?;
        let (prefix, guid) = (entry.prefix.load(Relaxed), entry.guid.load(Relaxed));
        Some(if guid == 0 {
            Gid::NONE
        } else {
            Gid::unicast(prefix, Guid(guid))
        })
    }

    /// Entry of the P_Key table as last read. Any context.
    #[inline]
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        let entry = self.pkeys.get(usize::from(index))?;
        Some(PKey(entry.load(Relaxed)))
    }
}

impl<P: Platform> Inner<'_, P> {
    /// Port `port`, counted from 1.
    pub fn check_port(&self, port: u8) -> Result<&Port<'_, P>, VerbsError> {
        let count = self.limits.ports;
        let invalid = VerbsError::InvalidPort { port, count };
        if port == 0 || port > count {
            return Err(invalid);
        }
        self.ports.get(usize::from(port) - 1).ok_or(invalid)
    }

    /// Notes an event of a port; the caller wakes. Any context.
    pub fn port_event(&self, port: u8, event: PortEvent) {
        if let Ok(port) = self.check_port(port) {
            port.events.push(0, event);
        }
    }

    /// PortInfo as it is now.
    pub fn port_info(&self, port: u8) -> Result<PortInfo, VerbsError> {
        let info: PortInfo = self.sma_get(port, PortInfo::modifier(port))?;
        let kept = self.check_port(port)?;
        let multiple = info.rate().and_then(Rate::multiple).unwrap_or(0);
        kept.multiple.store(multiple, Relaxed);
        Ok(info)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        self.check_port(port)?;
        let info = self.port_info(port)?;
        let max_mtu = info.mtu_cap.mtu().or(self.limits.mtu);
        let max_mtu = max_mtu.unwrap_or(Mtu::Mtu256);
        Ok(PortAttr {
            state: info.state.0,
            phys_state: info.phys_state.0,
            max_mtu,
            active_mtu: info.neighbor_mtu.mtu().unwrap_or(max_mtu).min(max_mtu),
            gid_table_len: self.limits.gids,
            pkey_table_len: self.limits.pkeys,
            max_msg_size: MAX_MESSAGE,
            lid: info.lid,
            lmc: info.lmc,
            sm_lid: info.master_sm_lid,
            sm_sl: info.master_sm_sl,
            subnet_timeout: info.subnet_timeout.0,
            capability_mask: info.capability.bits(),
            bad_pkey_counter: info.p_key_violations,
            qkey_violation_counter: info.q_key_violations,
            max_vl: info.vl_cap.0,
            active_width: info.link_width_active.bits(),
            active_speed: info.link_speed_active.bits(),
            gid_prefix: info.gid_prefix,
        })
    }

    pub(crate) fn query_gid(&self, port: u8, index: u16) -> Result<Gid, VerbsError> {
        self.check_port(port)?;
        check_index("GID index", index, self.limits.gids)?;
        let prefix = self.port_info(port)?.gid_prefix;
        let block: GuidInfo = self.sma_get(port, u32::from(index / GUIDS))?;
        let guid = block.guids.get(usize::from(index % GUIDS));
        let guid = guid.copied().unwrap_or_default();
        Ok(if guid.0 == 0 {
            Gid::NONE
        } else {
            Gid::unicast(prefix, guid)
        })
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.check_port(port)?;
        check_index("P_Key index", index, self.limits.pkeys)?;
        let modifier = PKeyTable::modifier(0, index / PKEYS);
        let block: PKeyTable = self.sma_get(port, modifier)?;
        let key = block.keys.get(usize::from(index % PKEYS));
        Ok(key.copied().unwrap_or_default())
    }

    /// Reads the GID table of a port; says whether anything differs from before. On error what was read stays.
    pub fn refresh_gids(&self, port: u8) -> Result<bool, VerbsError> {
        let kept = self.check_port(port)?;
        let prefix = self.port_info(port)?.gid_prefix;
        let mut differs = false;
        for (block, entries) in (0..).zip(kept.gids.chunks(usize::from(GUIDS))) {
            let read: GuidInfo = self.sma_get(port, block)?;
            for (entry, guid) in entries.iter().zip(read.guids) {
                let known = entry.guid.load(Relaxed) != 0 || guid.0 != 0;
                differs |= entry.guid.swap(guid.0, Relaxed) != guid.0;
                differs |= entry.prefix.swap(prefix, Relaxed) != prefix && known;
            }
        }
        Ok(differs)
    }

    /// Reads the P_Key table of a port; says whether anything differs from before.
    pub fn refresh_pkeys(&self, port: u8) -> Result<bool, VerbsError> {
        let kept = self.check_port(port)?;
        let mut differs = false;
        for (block, entries) in (0..).zip(kept.pkeys.chunks(usize::from(PKEYS))) {
            let read: PKeyTable = self.sma_get(port, PKeyTable::modifier(0, block))?;
            for (entry, key) in entries.iter().zip(read.keys) {
                differs |= entry.swap(key.0, Relaxed) != key.0;
            }
        }
        Ok(differs)
    }

    pub(crate) fn modify_port(&self, port: u8, change: &PortModify) -> Result<(), VerbsError> {
        self.check_port(port)?;
        let capabilities = self.port_info(port)?.capability.bits();
        let mut settings = abi::SetIb::ZERO;
        settings
            .set_capability_mask((capabilities | change.set_caps) & !change.clear_caps)
            .set_reset_qkey_counter(change.reset_qkey_counter);
        let settings = &settings;
        self.command(&SetIb { port, settings })?;
        Ok(())
    }

    /// Starts link training. Called when the port's QP0 can receive.
    pub fn open_port(&self, port: u8) -> Result<(), VerbsError> {
        let limits = &self.limits;
        let mut settings = abi::InitIb::ZERO;
        settings
            .set_mtu(limits.mtu.map_or(1, Mtu::code))
            .set_port_width(limits.port_width)
            .set_vls(limits.vls)
            .set_max_gids(limits.gids)
            .set_max_pkeys(limits.pkeys);
        let settings = &settings;
        self.command(&InitIb { port, settings })?;
        Ok(())
    }

    /// Takes the link down. Harmless on a port that is down.
    pub fn close_port(&self, port: u8) -> Result<(), VerbsError> {
        self.command(&CloseIb { port })?;
        Ok(())
    }
}

fn check_index(field: &'static str, index: u16, len: u16) -> Result<(), VerbsError> {
    if index < len {
        return Ok(());
    }
    Err(VerbsError::InvalidAttr {
        field,
        found: u64::from(index),
        allowed: u64::from(len.saturating_sub(1)),
    })
}
