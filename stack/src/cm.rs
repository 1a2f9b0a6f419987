//! Connections of a host's owner: the communication manager of each port, and what it needs to know of the subnet.

use crate::stack::Stack;
use core_ib::platform::Platform;
use core_ib::verbs::Verbs;
use core_ib::wire::mad::{CmReq, PathRecord, RejReason};
use core_ib::{Gid, Instant, PKey};
use ib_cm::{Cm, Local, Path, TableStore};
use ib_mad::{SaAnswer, SaError};

/// In the upper byte of an SA cookie: a path that the owner asked for.
pub(crate) const OWNER: u64 = 0xfe;

/// In the upper byte of a connection's cookie: it is an interface's.
pub(crate) const INTERFACE: u64 = 0xff;

/// News for the owner, about connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmNews {
    /// Of a connection or a service, on this port.
    Event(u8, ib_cm::Event),
    /// Of a path that was asked for.
    Path {
        /// As given with the question, its lower 32 bits.
        cookie: u32,
        /// The path, and its record.
        path: Result<(Path, PathRecord), SaError>,
    },
}

impl<'d, V: Verbs, P: Platform> Stack<'d, V, P> {
    /// The communication manager of port `number`, if the host has one. Poll afterwards. Cookies whose upper byte is 0xFF
    /// are those of the interfaces.
    pub fn cm(&mut self, number: u8) -> Option<&mut Cm<TableStore<'d, P>>> {
        let mut ports = self.ports.iter_mut();
        let port = ports.find(|port| port.number == number)?;
        port.cm.as_deref_mut()
    }

    /// Takes the next piece of news about connections. To be called after each poll: while too many wait, connections make
    /// no progress.
    pub fn next_cm_news(&mut self) -> Option<CmNews> {
        self.cm_news.pop_front()
    }

    /// Asks subnet administration for a path from port `number` to `dgid` in the partition of `p_key`;
    /// [`CmNews::Path`] is the answer. Poll afterwards.
    ///
    /// # Errors
    ///
    /// What the SA client refuses; `Full` for a port that is not there.
    pub fn ask_path(
        &mut self,
        number: u8,
        dgid: Gid,
        p_key: PKey,
        cookie: u32,
        now: Instant,
    ) -> Result<(), SaError> {
        let (entry, limit) = ("ports", self.ports.len());
        let mut ports = self.ports.iter_mut();
        let port = ports
            .find(|port| port.number == number)
            .ok_or(SaError::Full { entry, limit })?;
        let asked = PathRecord {
            dgid,
            sgid: port.cache.gid(0).unwrap_or(Gid::NONE),
            numb_path: 1,
            p_key,
            ..PathRecord::default()
        };
        let mask = PathRecord::DGID | PathRecord::SGID | PathRecord::NUMB_PATH | PathRecord::P_KEY;
        let cookie = OWNER << 56 | u64::from(number) << 32 | u64::from(cookie);
        port.sa.get(cookie, &asked, mask, now).map(|_| ())
    }

    /// The SA answered the owner.
    pub(crate) fn owners_path(&mut self, cookie: u64, result: Result<SaAnswer, SaError>) {
        let number = (cookie >> 32) as u8;
        let mut ports = self.ports.iter();
        let lmc = ports
            .find(|port| port.number == number)
            .and_then(|port| port.cache.port())
            .map_or(0, |port| port.lmc);
        let path = match result {
            Ok(SaAnswer::Record(record)) => match record.read::<PathRecord>() {
                Ok(record) => Ok((Path::of_record(&record, number, 0, lmc), record)),
                Err(_) => return,
            },
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let cookie = cookie as u32;
        // A question that nobody waits for is asked again by who wants to know.
        let _ = self.cm_news.push_back(CmNews::Path { cookie, path });
    }

    /// News of a port's connections: for an interface, or for the owner.
    pub(crate) fn cm_event(&mut self, index: usize, event: ib_cm::Event, now: Instant) {
        let port = self.ports.get_mut(index);
        let number = port.as_ref().map_or(0, |port| port.number);
        if event.cookie() >> 56 == INTERFACE {
            let net = self.nets.get_mut(event.cookie() as u8 as usize);
            if let (Some(net), Some(cm)) = (net, port.and_then(|port| port.cm.as_deref_mut())) {
                net.link().connection_event(&event, cm, now);
                self.stirred = true;
            }
            return;
        }
        // There was room.
        let _ = self.cm_news.push_back(CmNews::Event(number, event));
    }

    /// Where the values of a request are in the tables of port `number`, for [`ib_cm::Accept`].
    ///
    /// # Errors
    ///
    /// The reason to reject it with: not our GID or LID, or no partition of ours.
    pub fn local_of(&self, number: u8, req: &CmReq) -> Result<Local, RejReason> {
        let mut ports = self.ports.iter();
        let port = ports.find(|port| port.number == number);
        let port = port.ok_or(RejReason::UNSUPPORTED)?;
        let attr = port.cache.port().ok_or(RejReason::UNSUPPORTED)?;
        let mut gids = (0..crate::GIDS as u16).map(|index| (index, port.cache.gid(index)));
        let ours = |gid: Gid| gid == req.primary.remote_gid && !gid.is_none();
        let found = gids.find(|(_, gid)| gid.as_ref().is_some_and(|gid| ours(*gid)));
        let (sgid_index, _) = found.ok_or(RejReason::PRIMARY_GID)?;
        let pkey_index = port.cache.find_pkey(req.p_key);
        let lids = 1_u16 << (attr.lmc & 7);
        let path_bits = req.primary.remote_lid.0.wrapping_sub(attr.lid.0);
        if req.primary.subnet_local && path_bits >= lids {
            return Err(RejReason::PRIMARY_LID);
        }
        Ok(Local {
            port: number,
            pkey_index: pkey_index.map_err(|_| RejReason::UNSUPPORTED)?,
            sgid_index: sgid_index as u8,
            path_bits: if path_bits < lids { path_bits as u8 } else { 0 },
        })
    }
}
