//! The communication manager of one port: its connections by every name that they have.

use crate::ask::CmError;
use crate::conn::{Conn, ConnId, State};
use crate::listen::{Listen, Listener, ListenerId};
use crate::store::{ListenPlace, Store};
use core_ib::wire::mad::{CommId, Method, MgmtClass, ServiceId};
use core_ib::{Guid, Instant, Qpn};
use heapless::Deque;
use ib_mad::{AgentId, Methods, Outgoing, Registration, SpecialQp, Tracking};

/// Answers that belong to no connection and wait to be sent; one more is forgotten, and asked for again.
pub(crate) const REPLIES: usize = 4;
/// Bits of an ID that are the place of its connection.
pub(crate) const PLACE_BITS: u32 = 12;

/// How the agent of a [`Cm`] registers with its port's dispatch.
pub const fn registration() -> Registration {
    let methods = Methods::NONE.and(Method::GET).and(Method::SEND);
    Registration {
        tracking: Tracking::Agent,
        ..Registration::server(SpecialQp::Gsi, MgmtClass::CM, crate::CLASS_VERSION, methods)
    }
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages received.
    pub received: u64,
    /// Those sent, repetitions among them.
    pub sent: u64,
    /// Those sent again because no answer came.
    pub repeated: u64,
    /// Those received again.
    pub duplicates: u64,
    /// Those for connections that are not there, or do not stand so.
    pub strays: u64,
    /// Messages that made no sense, or no messages.
    pub malformed: u64,
    /// REQs and REPs of a QP that is in another connection.
    pub stale: u64,
    /// REQs and SIDR_REQs for want of whose listener a refusal went out.
    pub no_listener: u64,
    /// REQs and SIDR_REQs for which there was no place.
    pub no_room: u64,
    /// Answers that were forgotten because too many waited.
    pub replies_lost: u64,
}

/// Connections, listeners and requests of services of one port. See the crate's page.
#[derive(Debug)]
pub struct Cm<S> {
    pub(crate) agent: AgentId,
    pub(crate) ca_guid: Guid,
    pub(crate) store: S,
    seed: u32,
    serial: u32,
    pub(crate) replies: Deque<Outgoing, REPLIES>,
    /// Something is due at once.
    pub(crate) dirty: bool,
    /// Nothing is due before this instant.
    pub(crate) wake: Instant,
    pub(crate) statistics: Statistics,
}

impl<S: Store> Cm<S> {
    /// Nobody connected, nobody listening. `agent` is that of the [`registration`], `ca_guid` the node GUID of the HCA.
    /// `seed` is where IDs begin: another one each time that the host starts, so that peers do not take new connections
    /// for old ones.
    pub const fn new(agent: AgentId, ca_guid: Guid, seed: u32, store: S) -> Self {
        Self {
            agent,
            ca_guid,
            store,
            seed,
            serial: 0,
            replies: Deque::new(),
            dirty: false,
            wake: Instant::NEVER,
            statistics: Statistics {
                received: 0,
                sent: 0,
                repeated: 0,
                duplicates: 0,
                strays: 0,
                malformed: 0,
                stale: 0,
                no_listener: 0,
                no_room: 0,
                replies_lost: 0,
            },
        }
    }

    /// Whose MADs these are.
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    /// The counters.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Connections that there are, those in timewait among them.
    pub fn connections(&self) -> usize {
        let conns = self.store.conns().iter();
        conns.filter(|place| place.0.is_some()).count()
    }

    /// Where a connection stands.
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.find(conn.0).map(|conn| conn.state)
    }

    fn mix(&self, id: u32) -> u32 {
        id ^ self.seed
    }

    /// A name that nothing has now or had lately.
    pub(crate) fn fresh_id(&mut self, place: usize) -> CommId {
        loop {
            self.serial = self.serial.wrapping_add(1);
            let low = place as u32 & ((1 << PLACE_BITS) - 1);
            let id = self.mix(self.serial << PLACE_BITS | low);
            if id != 0 {
                return CommId(id);
            }
        }
    }

    /// A transaction of ours that is not named by its connection.
    pub(crate) fn fresh_tid(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        self.agent.tid(self.serial)
    }

    /// Where a connection of this name would be.
    pub(crate) fn place_of(&self, id: CommId) -> usize {
        (self.mix(id.0) & ((1 << PLACE_BITS) - 1)) as usize
    }

    pub(crate) fn find(&self, id: CommId) -> Option<&Conn> {
        let place = self.store.conns().get(self.place_of(id))?;
        place.0.as_ref().filter(|conn| conn.id == id)
    }

    pub(crate) fn find_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        let place = self.place_of(id);
        let place = self.store.conns_mut().get_mut(place)?;
        place.0.as_mut().filter(|conn| conn.id == id)
    }

    /// The connection of which the user speaks.
    pub(crate) fn conn(&mut self, conn: ConnId) -> Result<&mut Conn, CmError> {
        self.dirty = true;
        self.find_mut(conn.0)
            .filter(|conn| conn.state != State::Idle && !conn.orphan)
            .ok_or(CmError::Unknown {
                object: "connection",
            })
    }

    /// A free place.
    pub(crate) fn free_place(&self) -> Option<usize> {
        let mut places = self.store.conns().iter().take(1 << PLACE_BITS);
        places.position(|place| place.0.is_none())
    }

    fn search(&self, wanted: impl Fn(&Conn) -> bool) -> Option<CommId> {
        let conns = self
            .store
            .conns()
            .iter()
            .filter_map(|place| place.0.as_ref());
        let mut live = conns.filter(|conn| conn.state != State::Idle);
        live.find(|conn| wanted(conn)).map(|conn| conn.id)
    }

    /// The connection that this peer calls so.
    pub(crate) fn by_peer(&self, remote_id: CommId, guid: Guid) -> Option<CommId> {
        self.search(|conn| conn.is_with(remote_id) && conn.remote_guid == guid)
    }

    /// Another connection than `but` with this QP of a peer.
    pub(crate) fn by_qpn(&self, qpn: Qpn, guid: Guid, but: CommId) -> Option<CommId> {
        self.search(|conn| {
            conn.id != but
                && conn.remote_id != CommId::NONE
                && conn.remote_qpn == qpn
                && conn.remote_guid == guid
        })
    }

    /// Sends something that belongs to no connection.
    pub(crate) fn reply(&mut self, outgoing: Outgoing) {
        self.dirty = true;
        if self.replies.push_back(outgoing).is_err() {
            self.statistics.replies_lost = self.statistics.replies_lost.saturating_add(1);
        }
    }

    /// Takes requests of these services from now on.
    pub fn listen(&mut self, what: &Listen) -> Result<ListenerId, CmError> {
        let places = self.store.listeners();
        let mut taken = places.iter().filter_map(|place| place.0.as_ref());
        if let Some(other) = taken.find(|other| other.collides(what)) {
            return Err(CmError::Taken { by: other.id });
        }
        let limit = places.len();
        self.serial = self.serial.wrapping_add(1);
        let id = ListenerId(self.serial);
        let mut places = self.store.listeners_mut().iter_mut();
        let Some(place) = places.find(|place| place.0.is_none()) else {
            let entry = "listeners";
            return Err(CmError::Full { entry, limit });
        };
        *place = ListenPlace(Some(Listener { id, what: *what }));
        Ok(id)
    }

    /// Takes none any more. Requests that were not answered yet are rejected; connections stay.
    pub fn unlisten(&mut self, listener: ListenerId, now: Instant) -> Result<(), CmError> {
        let is_it = |place: &&mut ListenPlace| place.0.is_some_and(|it| it.id == listener);
        let place = self.store.listeners_mut().iter_mut().find(is_it);
        let object = "listener";
        *place.ok_or(CmError::Unknown { object })? = ListenPlace(None);
        for index in 0..self.store.conns().len() {
            let waiting = self.store.conns().get(index).and_then(|place| place.0);
            let Some(conn) = waiting.filter(|conn| conn.listener == Some(listener.0)) else {
                continue;
            };
            self.abandon(ConnId(conn.id), now)?;
        }
        self.drop_services_of(listener);
        Ok(())
    }

    pub(crate) fn listener_for(&self, service_id: ServiceId) -> Option<Listener> {
        let places = self.store.listeners().iter();
        let mut listeners = places.filter_map(|place| place.0);
        listeners.find(|listener| listener.takes(service_id))
    }

    /// Requests that wait for a listener.
    pub(crate) fn waiting_for(&self, listener: ListenerId) -> usize {
        let conns = self
            .store
            .conns()
            .iter()
            .filter_map(|place| place.0.as_ref());
        conns
            .filter(|conn| conn.listener == Some(listener.0))
            .count()
    }
}
