//! GID and P_Key caches: what the data path and the protocols read instead of asking the HCA. verbs 2.4.

use super::{Device, PortAttr, PortEvent, VerbsError};
use crate::platform::{Lock, RawLock};
use crate::{Gid, PKey};

#[derive(Clone, Copy, Debug)]
struct Snapshot<const GIDS: usize, const PKEYS: usize> {
    port: Option<PortAttr>,
    gids: [Gid; GIDS],
    pkeys: [PKey; PKEYS],
    failures: u32,
}

/// The tables of one port. `GIDS` and `PKEYS` are how many entries are kept; a port with longer tables is refused
/// by [`PortCache::refresh`], so that nothing is silently cut off.
///
/// A reader sees a whole old table or a whole new one, never a mixture.
#[derive(Debug)]
pub struct PortCache<R, const GIDS: usize, const PKEYS: usize> {
    state: Lock<Snapshot<GIDS, PKEYS>, R>,
    port: u8,
}

impl<R: RawLock, const GIDS: usize, const PKEYS: usize> PortCache<R, GIDS, PKEYS> {
    /// An empty cache of `port`. Fill it with [`PortCache::refresh`].
    pub const fn new(raw: R, port: u8) -> Self {
        let empty = Snapshot {
            port: None,
            gids: [Gid::NONE; GIDS],
            pkeys: [PKey(0); PKEYS],
            failures: 0,
        };
        Self {
            state: Lock::new(raw, empty),
            port,
        }
    }

    /// Must the cache be refreshed before `event` is handed on? All but those that only say where the subnet
    /// manager is.
    pub const fn concerns(event: PortEvent) -> bool {
        !matches!(event, PortEvent::SmChange)
    }

    /// Reads everything anew. Control context; blocks. On error the old content stays, and the failure is counted:
    /// the event that asked for the refresh is to be delivered all the same.
    pub fn refresh<D: Device + ?Sized>(&self, device: &D) -> Result<(), VerbsError> {
        let result = self.read(device);
        self.state.with(|state| match result {
            Ok(new) => {
                *state = Snapshot {
                    failures: state.failures,
                    ..new
                };
                Ok(())
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                Err(error)
            }
        })
    }

    fn read<D: Device + ?Sized>(&self, device: &D) -> Result<Snapshot<GIDS, PKEYS>, VerbsError> {
        let port = device.query_port(self.port)?;
        let fits = |field, found: u16, allowed: usize| {
            let (found, allowed) = (u64::from(found), allowed as u64);
            let error = VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            };
            if found > allowed { Err(error) } else { Ok(()) }
        };
        fits("GID table length", port.gid_table_len, GIDS)?;
        fits("P_Key table length", port.pkey_table_len, PKEYS)?;
        let mut new = Snapshot {
            port: Some(port),
            gids: [Gid::NONE; GIDS],
            pkeys: [PKey(0); PKEYS],
            failures: 0,
        };
        for (index, gid) in (0..port.gid_table_len).zip(&mut new.gids) {
            *gid = device.query_gid(self.port, index)?;
        }
        for (index, pkey) in (0..port.pkey_table_len).zip(&mut new.pkeys) {
            *pkey = device.query_pkey(self.port, index)?;
        }
        Ok(new)
    }

    /// The port as of the last refresh; `None` before the first.
    pub fn port(&self) -> Option<PortAttr> {
        self.state.with(|state| state.port)
    }

    /// Entry `index` of the GID table.
    pub fn gid(&self, index: u16) -> Option<Gid> {
        self.state
            .with(|state| state.gids.get(usize::from(index)).copied())
    }

    /// Entry `index` of the P_Key table.
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        self.state
            .with(|state| state.pkeys.get(usize::from(index)).copied())
    }

    /// Index of `gid`.
    pub fn find_gid(&self, gid: Gid) -> Result<u16, VerbsError> {
        let found = self
            .state
            .with(|state| state.gids.iter().position(|&entry| entry == gid));
        match found {
            Some(index) if !gid.is_none() => Ok(index as u16),
            _ => Err(VerbsError::NotFound {
                what: "GID in the port's table",
            }),
        }
    }

    /// Index of the partition of `pkey`: compares the low 15 bits and prefers a full-member entry; of several
    /// equal ones the lowest.
    pub fn find_pkey(&self, pkey: PKey) -> Result<u16, VerbsError> {
        let found = self.state.with(|state| {
            let same = |entry: &&PKey| entry.base() == pkey.base() && pkey.base() != 0;
            let entries = || state.pkeys.iter().enumerate();
            entries()
                .find(|(_, entry)| same(entry) && entry.is_full_member())
                .or_else(|| entries().find(|(_, entry)| same(entry)))
                .map(|(index, _)| index as u16)
        });
        found.ok_or(VerbsError::NotFound {
            what: "P_Key in the port's table",
        })
    }

    /// How many refreshes have failed.
    pub fn failures(&self) -> u32 {
        self.state.with(|state| state.failures)
    }
}
