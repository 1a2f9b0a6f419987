//! LIDs: who gets which, and who keeps his. protocols 9.4.

use crate::manager::Manager;
use crate::subnet::PortFlags;
use crate::table::PortId;
use core_ib::{Guid, Lid};

impl Manager<'_> {
    /// Gives every end port in service a LID: the one that is kept for its GUID, or the one that it has, or a free
    /// one. The highest in use is noted.
    pub(crate) fn assign_lids(&mut self) {
        if let Some(own) = self.st.own {
            self.assign(own, true);
            self.assign(own, false);
        }
        for keep in [true, false] {
            for port in self.all_ports() {
                if self
                    .ports
                    .get(port)
                    .is_some_and(|row| row.has(PortFlags::PRESENT))
                {
                    self.assign(port, keep);
                }
            }
        }
        let used = self.lids.iter().rposition(|row| row.port.is_some());
        self.st.top = used.and_then(|top| u16::try_from(top).ok()).unwrap_or(0);
    }

    /// With `keep` only the LID that the port has some right to, else any.
    fn assign(&mut self, port: PortId, keep: bool) {
        let Some(row) = self.ports.get(port) else {
            return;
        };
        let (guid, has) = (row.guid, row.view().lid());
        let size = 1 << self.lmc_of(port);
        if row.lid != Lid::NONE && self.owns(row.lid, size, guid) {
            let lid = row.lid;
            return self.give(port, lid, size);
        }
        let remembered = self.lid_map.get(guid).map(|lid| Lid(lid as u16));
        let lid = remembered.filter(|&lid| self.owns(lid, size, guid));
        let lid = lid.or_else(|| Some(has).filter(|&lid| self.is_free(lid, size, guid)));
        let lid = if keep {
            lid
        } else {
            lid.or_else(|| self.free_block(size))
        };
        match lid {
            Some(lid) => self.give(port, lid, size),
            None if keep => {}
            None => self.no_room("lids", self.lids.len().saturating_sub(1)),
        }
    }

    fn block(&self, lid: Lid, size: usize) -> Option<&[crate::subnet::LidRow]> {
        let first = usize::from(lid.0);
        (first != 0 && first % size.max(1) == 0).then_some(())?;
        self.lids.get(first..first + size)
    }

    /// All of the block is kept for `guid`.
    fn owns(&self, lid: Lid, size: usize, guid: Guid) -> bool {
        let block = self.block(lid, size);
        block.is_some_and(|block| block.iter().all(|row| row.guid == guid))
    }

    /// None of the block is kept for anybody else.
    fn is_free(&self, lid: Lid, size: usize, guid: Guid) -> bool {
        let block = self.block(lid, size);
        block.is_some_and(|block| block.iter().all(|row| row.guid == guid || row.guid.0 == 0))
    }

    /// The first free block; if there is none, the first one kept for ports that are not there.
    fn free_block(&mut self, size: usize) -> Option<Lid> {
        let aligned = |from: usize| (from..self.lids.len()).step_by(size.max(1));
        let hint = self
            .st
            .free_lid
            .get(usize::from(size > 1))
            .copied()
            .unwrap_or(0);
        let from = hint.next_multiple_of(size.max(1)).max(size);
        let lid = |at: usize| u16::try_from(at).ok().map(Lid);
        let mut free = aligned(from).filter_map(lid);
        if let Some(lid) = free.find(|&lid| self.is_free(lid, size, Guid(0))) {
            if let Some(hint) = self.st.free_lid.get_mut(usize::from(size > 1)) {
                *hint = usize::from(lid.0);
            }
            return Some(lid);
        }
        let mut absent = aligned(size).filter_map(lid);
        absent.find(|&lid| {
            let block = self.block(lid, size);
            block.is_some_and(|block| block.iter().all(|row| row.port.is_none()))
        })
    }

    fn give(&mut self, port: PortId, lid: Lid, size: usize) {
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        let (guid, old) = (row.guid, core::mem::replace(&mut row.lid, lid));
        if old != lid {
            self.st.reroute = true;
            row.flags.remove(PortFlags::LID_SET);
            self.forget_lids(old, guid);
        }
        let first = usize::from(lid.0);
        for at in first..first + size {
            let Some(row) = self.lids.get_mut(at) else {
                return;
            };
            let before = core::mem::replace(&mut row.guid, guid);
            row.port = Some(port);
            if before != guid && before.0 != 0 {
                self.lid_map.remove(before); // evicted
            }
        }
        if self.lid_map.get(guid) != Some(u32::from(lid.0))
            && !self.lid_map.insert(guid, u32::from(lid.0))
        {
            self.no_room("guids", self.lid_map.slots() / 2);
        }
    }

    /// What was kept for `guid` from `lid` on is free.
    fn forget_lids(&mut self, lid: Lid, guid: Guid) {
        let from = usize::from(lid.0);
        if from == 0 {
            return;
        }
        for row in self
            .lids
            .iter_mut()
            .skip(from)
            .take_while(|row| row.guid == guid)
        {
            *row = crate::subnet::LidRow::default();
        }
        self.st.free_lid = self.st.free_lid.map(|hint| hint.min(from));
    }

    /// Keeps `lid` for the port with this GUID, which need not be there. Says whether it could.
    pub(crate) fn remember(&mut self, guid: Guid, lid: Lid) -> bool {
        if guid.0 == 0 || self.lid_map.get(guid).is_some() {
            return false;
        }
        // How many LIDs the port is to have is known when it comes; a switch has one.
        let size = 1 << self.config.lmc;
        let size = if self.is_free(lid, size, Guid(0)) {
            size
        } else {
            1
        };
        if !self.is_free(lid, size, Guid(0)) || !self.lid_map.insert(guid, lid.0.into()) {
            return false;
        }
        let first = usize::from(lid.0);
        for row in self.lids.iter_mut().skip(first).take(size) {
            row.guid = guid;
        }
        true
    }
}
