//! Memory windows: the bind request, which lends a piece of a region to peers under a key of its own. infinihost 4.9,
//! 5.6, verbs 7.9.
//!
//! A window is an entry of the protection table that says which region it is bound to; a region counts the windows that
//! are bound to it, and is not given back while there are any. The bind request carries the new key, whose low bits say
//! which window is meant. All that is asked of it is checked before anything is changed.

use super::InfiniHost;
use super::chip::Chip;
use super::memory::MemoryFault;
use super::mpt::{AccessError, SENTINEL, holds};
use super::wqe::Wqe;
use crate::machine::Bus;
use core::fmt;
use hca_abi::infinihost::cqe::Syndrome;
use hca_abi::infinihost::mpt::{Mpt, MptStatus};
use hca_abi::infinihost::qp::ServiceType;
use hca_abi::infinihost::wqe::{BindSegment, NextSegment};

/// Why a window was not bound; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindError {
    /// The new key names no valid window.
    NotWindow {
        /// The new key.
        rkey: u32,
    },
    /// The region's key names no valid region.
    NotRegion {
        /// The region's key.
        lkey: u32,
    },
    /// Window, region and QP are not of one domain.
    Domain {
        /// Domain of the QP.
        pd: u32,
        /// Domain of the window or region.
        owner: u32,
    },
    /// The region does not allow windows.
    Right {
        /// The region's key.
        lkey: u32,
    },
    /// Peers are to write what the region's owner may not write.
    ReadOnly {
        /// The region's key.
        lkey: u32,
    },
    /// The window is not within the region.
    Bounds {
        /// First byte of the window.
        start: u64,
        /// Bytes of the window.
        length: u64,
    },
    /// The region has all the windows that it may have.
    Full {
        /// How many that is.
        limit: u32,
    },
    /// Asked for another type than the window is of, or for addresses that count from 0.
    Type {
        /// The new key.
        rkey: u32,
    },
    /// A window of type 2 that is bound already, or is to be unbound by a bind.
    Bound {
        /// The new key.
        rkey: u32,
    },
    /// The table could not be reached.
    Memory(MemoryFault),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotWindow { rkey } => write!(f, "key {rkey:#x} names no window"),
            Self::NotRegion { lkey } => write!(f, "key {lkey:#x} names no region"),
            Self::Domain { pd, owner } => write!(f, "PD {pd:#x} is not {owner:#x}"),
            Self::Right { lkey } => write!(f, "region {lkey:#x} allows no windows"),
            Self::ReadOnly { lkey } => write!(f, "region {lkey:#x} may not be written"),
            Self::Bounds { start, length } => {
                write!(f, "{length:#x} bytes at {start:#x} are not in the region")
            }
            Self::Full { limit } => write!(f, "the region has {limit} windows already"),
            Self::Type { rkey } => write!(f, "window {rkey:#x} is not of the type asked for"),
            Self::Bound { rkey } => write!(f, "window {rkey:#x} of type 2 is bound or never was"),
            Self::Memory(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for BindError {}

impl From<MemoryFault> for BindError {
    fn from(fault: MemoryFault) -> Self {
        Self::Memory(fault)
    }
}

/// Who binds.
#[derive(Clone, Copy, Debug)]
pub struct Binder {
    /// Domain of the QP.
    pub pd: u32,
    /// Full number of the QP.
    pub qpn: u32,
}

impl Chip {
    /// Carries out a bind. A length of 0 unbinds a window of type 1.
    pub fn bind(
        &mut self,
        bus: &mut dyn Bus,
        binder: Binder,
        wanted: &BindSegment,
    ) -> Result<(), BindError> {
        let window = self.check_window(bus, binder, wanted)?;
        let region = match wanted.length() {
            0 => None,
            _ => Some(self.check_region(bus, binder, wanted, &window)?),
        };
        self.unbind(bus, &window)?;
        let mut bound = window;
        bound
            .set_key(self.keys.index_form(wanted.rkey()))
            .set_lkey(0)
            .set_start(wanted.start())
            .set_length(wanted.length())
            .set_remote_read(wanted.remote_read())
            .set_remote_write(wanted.remote_write())
            .set_remote_atomic(wanted.remote_atomic());
        if region.is_some() {
            bound.set_lkey(wanted.lkey());
            self.count_windows(bus, wanted.lkey(), |count| count.saturating_add(1))?;
        }
        if window.window_type2() {
            bound.set_window_qpn(binder.qpn);
        }
        let index = self.keys.index(wanted.rkey());
        Ok(self.keys.replace(&mut self.memory, bus, index, &bound)?)
    }

    /// A window that goes, or is bound elsewhere, is not counted any more by the region that it was bound to.
    pub fn unbind(&mut self, bus: &mut dyn Bus, window: &Mpt) -> Result<(), MemoryFault> {
        match window.lkey() {
            0 => Ok(()),
            lkey => self.count_windows(bus, lkey, |count| count.saturating_sub(1)),
        }
    }

    /// Changes how many windows are bound to region `lkey`, if there is one.
    fn count_windows(
        &mut self,
        bus: &mut dyn Bus,
        lkey: u32,
        change: fn(u32) -> u32,
    ) -> Result<(), MemoryFault> {
        let Ok(mut region) = self.keys.valid(&self.memory, bus, lkey) else {
            return Ok(());
        };
        region.set_window_count(change(region.window_count()));
        let index = self.keys.index(lkey);
        self.keys.replace(&mut self.memory, bus, index, &region)
    }

    /// The window that the new key means.
    fn check_window(
        &self,
        bus: &mut dyn Bus,
        binder: Binder,
        wanted: &BindSegment,
    ) -> Result<Mpt, BindError> {
        let rkey = wanted.rkey();
        let index = self.keys.index(rkey);
        if rkey == SENTINEL || !self.keys.is_handed_over(index) {
            return Err(BindError::NotWindow { rkey });
        }
        let window = self.keys.entry(&self.memory, bus, index)?;
        if window.status() != MptStatus::HARDWARE || window.region() {
            return Err(BindError::NotWindow { rkey });
        }
        same_domain(binder, &window)?;
        if wanted.type2() != window.window_type2() || wanted.zero_based() {
            return Err(BindError::Type { rkey });
        }
        if window.window_type2() && (window.lkey() != 0 || wanted.length() == 0) {
            return Err(BindError::Bound { rkey });
        }
        Ok(window)
    }

    /// The region that it is to be bound to.
    fn check_region(
        &self,
        bus: &mut dyn Bus,
        binder: Binder,
        wanted: &BindSegment,
        window: &Mpt,
    ) -> Result<Mpt, BindError> {
        let lkey = wanted.lkey();
        let region = match self.keys.valid(&self.memory, bus, lkey) {
            Ok(region) if region.region() => region,
            Err(AccessError::Memory(fault)) => return Err(fault.into()),
            Ok(_) | Err(_) => return Err(BindError::NotRegion { lkey }),
        };
        same_domain(binder, &region)?;
        if !region.bind() || region.zero_based() {
            return Err(BindError::Right { lkey });
        }
        if (wanted.remote_write() || wanted.remote_atomic()) && !region.local_write() {
            return Err(BindError::ReadOnly { lkey });
        }
        let (start, length) = (wanted.start(), wanted.length());
        if length == Mpt::NO_LIMIT || !holds(&region, start, length) {
            return Err(BindError::Bounds { start, length });
        }
        let limit = region.window_limit();
        let others = region
            .window_count()
            .saturating_sub(u32::from(window.lkey() == lkey));
        if limit != 0 && others >= limit {
            return Err(BindError::Full { limit });
        }
        Ok(region)
    }
}

fn same_domain(binder: Binder, entry: &Mpt) -> Result<(), BindError> {
    let (pd, owner) = (binder.pd, entry.pd());
    if pd == owner {
        Ok(())
    } else {
        Err(BindError::Domain { pd, owner })
    }
}

impl InfiniHost {
    /// Carries out the bind request `wqe` of QP `qpn`, at its turn. Nothing travels.
    pub(super) fn bind(&mut self, bus: &mut dyn Bus, qpn: u32, wqe: &Wqe) -> Result<(), Syndrome> {
        let qp = self.qps.get(qpn).ok_or(Syndrome::LOCAL_QP_OPERATION)?;
        let connected = matches!(qp.context.service(), ServiceType::RC | ServiceType::UC);
        let segment = wqe.segment::<BindSegment>(size_of::<NextSegment>());
        let segment = segment.filter(|_| connected);
        let segment = segment.ok_or(Syndrome::LOCAL_QP_OPERATION)?;
        let pd = qp.context.pd();
        let bound = self.chip.bind(bus, Binder { pd, qpn }, &segment);
        bound.map_err(|error| {
            if bus.tracing() {
                bus.trace(format_args!("QP {qpn:#x}: bind: {error}"));
            }
            Syndrome::MW_BIND
        })
    }
}
