//! Where connections, listeners and requests of services are kept: arrays, or tables of a platform.

use crate::conn::Conn;
use crate::listen::Listener;
use crate::sidr::Sidr;
use core::fmt;
use core_ib::platform::{Platform, PlatformError, Table};

/// A place for a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnPlace(pub(crate) Option<Conn>);
/// A place for a listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenPlace(pub(crate) Option<Listener>);
/// A place for a request of a service.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrPlace(pub(crate) Option<Sidr>);

/// The places of a [`Cm`](crate::Cm): as many as there are at once, ever.
pub trait Store {
    /// Those of connections; what is beyond 4096 is not used.
    fn conns(&self) -> &[ConnPlace];
    /// The same, to change.
    fn conns_mut(&mut self) -> &mut [ConnPlace];
    /// Those of listeners.
    fn listeners(&self) -> &[ListenPlace];
    /// The same, to change.
    fn listeners_mut(&mut self) -> &mut [ListenPlace];
    /// Those of requests of services, asked and served.
    fn sidrs(&self) -> &[SidrPlace];
    /// The same, to change.
    fn sidrs_mut(&mut self) -> &mut [SidrPlace];
}

/// Places in arrays: `C` connections (about a kibibyte each), `L` listeners, `S` requests of services.
#[derive(Clone, Debug)]
pub struct ArrayStore<const C: usize, const L: usize, const S: usize> {
    conns: [ConnPlace; C],
    listeners: [ListenPlace; L],
    sidrs: [SidrPlace; S],
}

impl<const C: usize, const L: usize, const S: usize> ArrayStore<C, L, S> {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            conns: [const { ConnPlace(None) }; C],
            listeners: [const { ListenPlace(None) }; L],
            sidrs: [const { SidrPlace(None) }; S],
        }
    }
}

impl<const C: usize, const L: usize, const S: usize> Default for ArrayStore<C, L, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const C: usize, const L: usize, const S: usize> Store for ArrayStore<C, L, S> {
    fn conns(&self) -> &[ConnPlace] {
        &self.conns
    }
    fn conns_mut(&mut self) -> &mut [ConnPlace] {
        &mut self.conns
    }
    fn listeners(&self) -> &[ListenPlace] {
        &self.listeners
    }
    fn listeners_mut(&mut self) -> &mut [ListenPlace] {
        &mut self.listeners
    }
    fn sidrs(&self) -> &[SidrPlace] {
        &self.sidrs
    }
    fn sidrs_mut(&mut self) -> &mut [SidrPlace] {
        &mut self.sidrs
    }
}

/// How many places there are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Connections, those in timewait among them; at most 4096.
    pub connections: u16,
    /// Listeners.
    pub listeners: u16,
    /// Requests of services, asked and served.
    pub sidrs: u16,
}

impl Profile {
    /// 64 connections, 16 listeners, 16 requests.
    pub const DEFAULT: Self = Self {
        connections: 64,
        listeners: 16,
        sidrs: 16,
    };
}

impl Default for Profile {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Places in a platform's memory for tables.
pub struct TableStore<'p, P: Platform> {
    conns: Table<'p, ConnPlace, P>,
    listeners: Table<'p, ListenPlace, P>,
    sidrs: Table<'p, SidrPlace, P>,
}

impl<P: Platform> fmt::Debug for TableStore<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableStore")
            .field("conns", &self.conns.len())
            .field("listeners", &self.listeners.len())
            .field("sidrs", &self.sidrs.len())
            .finish()
    }
}

impl<'p, P: Platform> TableStore<'p, P> {
    /// As many as `profile` says. Set-up only; may block.
    pub fn new(machine: &'p P, profile: &Profile) -> Result<Self, PlatformError> {
        let conns = usize::from(profile.connections.min(4096));
        let listeners = usize::from(profile.listeners);
        let sidrs = usize::from(profile.sidrs);
        Ok(Self {
            conns: Table::new(machine, conns, |_| ConnPlace(None))?,
            listeners: Table::new(machine, listeners, |_| ListenPlace(None))?,
            sidrs: Table::new(machine, sidrs, |_| SidrPlace(None))?,
        })
    }
}

impl<P: Platform> Store for TableStore<'_, P> {
    fn conns(&self) -> &[ConnPlace] {
        &self.conns
    }
    fn conns_mut(&mut self) -> &mut [ConnPlace] {
        &mut self.conns
    }
    fn listeners(&self) -> &[ListenPlace] {
        &self.listeners
    }
    fn listeners_mut(&mut self) -> &mut [ListenPlace] {
        &mut self.listeners
    }
    fn sidrs(&self) -> &[SidrPlace] {
        &self.sidrs
    }
    fn sidrs_mut(&mut self) -> &mut [SidrPlace] {
        &mut self.sidrs
    }
}
