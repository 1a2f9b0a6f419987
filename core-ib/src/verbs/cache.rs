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

#[cfg(test)]
mod tests {
    use super::super::slab::tests::Spin;
    use super::*;
    use crate::{Lid, Mtu, Sl};

    const PORT: PortAttr = PortAttr {
        state: 4,
        phys_state: 5,
        max_mtu: Mtu::Mtu2048,
        active_mtu: Mtu::Mtu2048,
        gid_table_len: 4,
        pkey_table_len: 6,
        max_msg_size: 1 << 31,
        lid: Lid(7),
        lmc: 0,
        sm_lid: Lid(1),
        sm_sl: Sl::new(0),
        subnet_timeout: 18,
        capability_mask: 0,
        bad_pkey_counter: 0,
        qkey_violation_counter: 0,
        max_vl: 1,
        active_width: 2,
        active_speed: 1,
        gid_prefix: Gid::DEFAULT_PREFIX,
    };

    fn cache(pkeys: [u16; 6]) -> PortCache<Spin, 4, 6> {
        let cache = PortCache::new(Spin::default(), 1);
        let gid = |guid| Gid::unicast(Gid::DEFAULT_PREFIX, crate::Guid(guid));
        let gids = [gid(1), Gid::NONE, gid(2), gid(2)];
        let tables = PortTables {
            port: PORT,
            gids,
            pkeys: pkeys.map(PKey),
        };
        cache.install(Ok(tables)).unwrap();
        cache
    }

    #[test]
    fn a_full_member_entry_is_preferred_and_of_equal_ones_the_lowest() {
        let cache = cache([0x7fff, 0x0001, 0x8001, 0x8001, 0x0002, 0x0000]);
        assert_eq!(
            cache.find_pkey(PKey(0x8001)),
            Ok(2),
            "not the limited one before"
        );
        assert_eq!(cache.find_pkey(PKey(0x0001)), Ok(2), "by the number alone");
        assert_eq!(
            cache.find_pkey(PKey(0xffff)),
            Ok(0),
            "limited is better than none"
        );
        assert_eq!(cache.find_pkey(PKey(0x8002)), Ok(4));
        for none in [PKey(0x8003), PKey(0), PKey(0x8000)] {
            assert!(matches!(
                cache.find_pkey(none),
                Err(VerbsError::NotFound { .. })
            ));
        }
    }

    #[test]
    fn the_lowest_entry_of_a_gid_is_found_and_an_empty_one_never() {
        let cache = cache([0xffff; 6]);
        assert_eq!(
            cache.find_gid(Gid::unicast(Gid::DEFAULT_PREFIX, crate::Guid(2))),
            Ok(2)
        );
        assert!(cache.find_gid(Gid::NONE).is_err());
        assert_eq!((cache.gid(1), cache.gid(4)), (Some(Gid::NONE), None));
        assert_eq!((cache.pkey(5), cache.pkey(6)), (Some(PKey(0xffff)), None));
    }

    #[test]
    fn a_failed_refresh_is_counted_and_leaves_what_was_there() {
        let cache = cache([0xffff; 6]);
        let failed = cache.install(Err(VerbsError::DeviceFailed));
        assert_eq!(failed, Err(VerbsError::DeviceFailed));
        assert_eq!((cache.failures(), cache.port()), (1, Some(PORT)));
        let empty = PortCache::<Spin, 4, 6>::new(Spin::default(), 1);
        assert_eq!((empty.port(), empty.gid(0)), (None, None));
        assert!(empty.find_pkey(PKey(0xffff)).is_err());
    }
}
