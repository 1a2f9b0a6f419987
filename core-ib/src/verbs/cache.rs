//! GID and P_Key caches: what the data path and the protocols read instead of asking the HCA. verbs 2.4.

use super::{Device, PortAttr, VerbsError};
use crate::platform::{Lock, RawLock};
use crate::{Gid, PKey};

/// The tables of a port as they were read: what a blocking context hands to one that may not block.
#[derive(Clone, Copy, Debug)]
pub struct PortTables<const GIDS: usize, const PKEYS: usize> {
    port: PortAttr,
    gids: [Gid; GIDS],
    pkeys: [PKey; PKEYS],
}

impl<const GIDS: usize, const PKEYS: usize> PortTables<GIDS, PKEYS> {
    /// Asks the HCA for everything of `port`. Control context; blocks.
    pub fn read<D: Device + ?Sized>(device: &D, port: u8) -> Result<Self, VerbsError> {
        let attr = device.query_port(port)?;
        let fits = |field, found: u16, allowed: usize| {
            let (found, allowed) = (u64::from(found), allowed as u64);
            let error = VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            };
            if found > allowed { Err(error) } else { Ok(()) }
        };
        fits("GID table length", attr.gid_table_len, GIDS)?;
        fits("P_Key table length", attr.pkey_table_len, PKEYS)?;
        let mut new = Self {
            port: attr,
            gids: [Gid::NONE; GIDS],
            pkeys: [PKey(0); PKEYS],
        };
        for (index, gid) in (0..attr.gid_table_len).zip(&mut new.gids) {
            *gid = device.query_gid(port, index)?;
        }
        for (index, pkey) in (0..attr.pkey_table_len).zip(&mut new.pkeys) {
            *pkey = device.query_pkey(port, index)?;
        }
        Ok(new)
    }
}

#[derive(Clone, Copy, Debug)]
struct State<const GIDS: usize, const PKEYS: usize> {
    tables: Option<PortTables<GIDS, PKEYS>>,
    failures: u32,
}

/// The tables of one port. `GIDS` and `PKEYS` are how many entries are kept; a port with longer tables is refused
/// by [`PortTables::read`], so that nothing is silently cut off.
///
/// A reader sees a whole old table or a whole new one, never a mixture.
#[derive(Debug)]
pub struct PortCache<R, const GIDS: usize, const PKEYS: usize> {
    state: Lock<State<GIDS, PKEYS>, R>,
    port: u8,
}

impl<R: RawLock, const GIDS: usize, const PKEYS: usize> PortCache<R, GIDS, PKEYS> {
    /// An empty cache of `port`. Fill it with [`PortCache::refresh`].
    pub const fn new(raw: R, port: u8) -> Self {
        let empty = State {
            tables: None,
            failures: 0,
        };
        Self {
            state: Lock::new(raw, empty),
            port,
        }
    }

    /// Reads everything anew. Control context; blocks. On error the old content stays, and the failure is counted:
    /// the event that asked for the refresh is to be delivered all the same.
    pub fn refresh<D: Device + ?Sized>(&self, device: &D) -> Result<(), VerbsError> {
        self.install(PortTables::read(device, self.port))
    }

    /// Takes over what was read elsewhere, or notes that it could not be. Any context.
    pub fn install(
        &self,
        read: Result<PortTables<GIDS, PKEYS>, VerbsError>,
    ) -> Result<(), VerbsError> {
        self.state.with(|state| match read {
            Ok(tables) => {
                state.tables = Some(tables);
                Ok(())
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                Err(error)
            }
        })
    }

    fn with_tables<U>(&self, f: impl FnOnce(&PortTables<GIDS, PKEYS>) -> Option<U>) -> Option<U> {
        self.state.with(|state| f(state.tables.as_ref()?))
    }

    /// The port as of the last refresh; `None` before the first.
    pub fn port(&self) -> Option<PortAttr> {
        self.with_tables(|tables| Some(tables.port))
    }

    /// Entry `index` of the GID table.
    pub fn gid(&self, index: u16) -> Option<Gid> {
        self.with_tables(|tables| tables.gids.get(usize::from(index)).copied())
    }

    /// Entry `index` of the P_Key table.
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        self.with_tables(|tables| tables.pkeys.get(usize::from(index)).copied())
    }

    /// Index of `gid`.
    pub fn find_gid(&self, gid: Gid) -> Result<u16, VerbsError> {
        let found = self.with_tables(|tables| tables.gids.iter().position(|&entry| entry == gid));
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
        let found = self.with_tables(|tables| {
            let same = |entry: &&PKey| entry.base() == pkey.base() && pkey.base() != 0;
            let entries = || tables.pkeys.iter().enumerate();
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
