//! Services and subscriptions that stay registered with the SA. protocols 4.9.

use super::query::SaError;
use crate::transaction::{Patience, Transaction};
use core::time::Duration;
use core_ib::wire::mad::{InformInfo, Mad, ServiceRecord};
use core_ib::{Gid, Instant, PKey};

/// A lease of this many seconds never ends.
const FOREVER: u32 = u32::MAX;

/// What tells one registration from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Service {
        id: u64,
        gid: Gid,
        p_key: PKey,
    },
    /// With `subscribe` set.
    Subscription(InformInfo),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The SA is to be asked.
    Due,
    /// It was asked.
    Asked(Transaction),
    /// It has said yes; it is to be asked again at this instant.
    Registered(Instant),
    /// It has said no.
    Lost(SaError),
}

/// One registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) cookie: u64,
    /// Lower half of the transaction id, while the SA is asked.
    pub(super) serial: u32,
    pub(super) mad: Mad,
    key: Key,
    lease: Option<Duration>,
    state: State,
}

impl Kept {
    const fn new(cookie: u64, mad: Mad, key: Key, lease: Option<Duration>) -> Self {
        Self {
            cookie,
            serial: 0,
            mad,
            key,
            lease,
            state: State::Due,
        }
    }

    const fn service_key(service: &ServiceRecord) -> Key {
        Key::Service {
            id: service.id,
            gid: service.gid,
            p_key: service.p_key,
        }
    }

    /// A service, which `mad` registers. Its lease is renewed when half of it is over.
    pub(super) const fn service(cookie: u64, mad: Mad, service: &ServiceRecord) -> Self {
        let lease = if service.lease == FOREVER {
            None
        } else {
            Some(Duration::from_secs(service.lease as u64 / 2 + 1))
        };
        Self::new(cookie, mad, Self::service_key(service), lease)
    }

    /// A subscription, which `mad` makes.
    pub(super) const fn subscription(cookie: u64, mad: Mad, info: &InformInfo) -> Self {
        Self::new(cookie, mad, Key::Subscription(*info), None)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.key == other.key
    }

    pub(super) fn is_service(&self, service: &ServiceRecord) -> bool {
        self.key == Self::service_key(service)
    }

    /// `info` is what ends it.
    pub(super) fn is_subscription(&self, info: &InformInfo) -> bool {
        let subscribe = true;
        self.key == Key::Subscription(InformInfo { subscribe, ..*info })
    }

    /// The SA has forgotten it.
    pub(super) fn lose(&mut self) {
        if matches!(self.state, State::Asked(_) | State::Registered(_)) {
            self.state = State::Due;
        }
    }

    /// Is the SA to be asked at `now`? Else the instant when it will be.
    pub(super) fn due(&self, now: Instant) -> Result<(), Instant> {
        match self.state {
            State::Due => Ok(()),
            State::Registered(at) if now >= at => Ok(()),
            State::Registered(at) => Err(at),
            State::Asked(_) | State::Lost(_) => Err(Instant::NEVER),
        }
    }

    pub(super) fn ask(&mut self, serial: u32, patience: Patience, now: Instant) {
        self.serial = serial;
        self.state = State::Asked(Transaction::new(patience, now));
    }

    pub(super) fn transaction(&mut self) -> Option<&mut Transaction> {
        match &mut self.state {
            State::Asked(transaction) => Some(transaction),
            _ => None,
        }
    }

    /// Its transaction, by the lower half of its id.
    pub(super) fn is_asked(&self, serial: u32) -> bool {
        matches!(self.state, State::Asked(_)) && self.serial == serial
    }

    /// The SA said yes.
    pub(super) fn registered(&mut self, now: Instant) {
        let again = self.lease.map_or(Instant::NEVER, |lease| now.after(lease));
        self.state = State::Registered(again);
    }

    /// The SA said no, and nobody waits to hear it: to be reported.
    pub(super) fn refused(&mut self, error: SaError) {
        self.state = State::Lost(error);
    }

    pub(super) const fn lost(&self) -> Option<SaError> {
        match self.state {
            State::Lost(error) => Some(error),
            _ => None,
        }
    }
}
