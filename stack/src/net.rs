//! One IP interface of a host, of either kind.

use crate::{InterfaceConfig, InterfaceKind, StackError};
use core_ib::Instant;
use core_ib::PKey;
use core_ib::platform::Platform;
use core_ib::verbs::{AsyncEvent, CqHandle, QpEvent, Verbs, VerbsError};
use ipoib::link::{Control, Event, LinkInterface, LinkState, Step};
use ipoib::neigh::IpInterface;

/// The half of IPoIB that was asked for.
pub(crate) enum Half<'d, V: Verbs, P: Platform> {
    Ip(IpInterface<'d, V, P>),
    Link(LinkInterface<'d, V, P>),
}

/// An interface, and what the stack knows of it.
pub(crate) struct Net<'d, V: Verbs, P: Platform> {
    pub(crate) half: Half<'d, V, P>,
    pub(crate) port: u8,
    pub(crate) p_key: PKey,
    /// Its CQs are armed: sends, receives together, as the interface arms them.
    pub(crate) armed: bool,
    /// It has connected mode, and listens for peers that connect.
    pub(crate) listens: bool,
    pub(crate) connected: bool,
    pub(crate) state: LinkState,
}

impl<'d, V: Verbs, P: Platform> Net<'d, V, P> {
    /// Opens it. Control context; blocks.
    #[inline(never)]
    pub(crate) fn open(
        device: &'d V,
        machine: &'d P,
        config: &InterfaceConfig,
    ) -> Result<Self, StackError> {
        let InterfaceConfig {
            port,
            p_key,
            kind,
            ref profile,
        } = *config;
        let half = match kind {
            InterfaceKind::Ip => {
                Half::Ip(IpInterface::open(device, machine, port, p_key, profile)?)
            }
            InterfaceKind::Link => {
                Half::Link(LinkInterface::open(device, machine, port, p_key, profile)?)
            }
        };
        let state = match &half {
            Half::Ip(ip) => ip.link().link().state(),
            Half::Link(link) => link.link().state(),
        };
        Ok(Self {
            half,
            port,
            p_key,
            armed: false,
            listens: false,
            connected: profile.connected.is_some(),
            state,
        })
    }

    pub(crate) fn close(self) -> Result<(), VerbsError> {
        match self.half {
            Half::Ip(ip) => ip.close(),
            Half::Link(link) => link.close(),
        }
    }

    pub(crate) fn control(&self) -> Control<'d, V> {
        match &self.half {
            Half::Ip(ip) => ip.control(),
            Half::Link(link) => link.control(),
        }
    }

    pub(crate) fn cqs(&self) -> [CqHandle; 2] {
        match &self.half {
            Half::Ip(ip) => ip.cqs(),
            Half::Link(link) => link.cqs(),
        }
    }

    /// The half that has frames.
    pub(crate) fn link(&mut self) -> &mut LinkInterface<'d, V, P> {
        match &mut self.half {
            Half::Ip(ip) => ip.link_mut(),
            Half::Link(link) => link,
        }
    }

    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match &mut self.half {
            Half::Ip(ip) => ip.handle(event, now),
            Half::Link(link) => link.handle(event, now),
        }
    }

    pub(crate) fn poll(&mut self, now: Instant) -> Step {
        match &mut self.half {
            Half::Ip(ip) => ip.poll(now),
            Half::Link(link) => link.poll(now),
        }
    }

    /// An event of its QP?
    pub(crate) fn async_event(&mut self, event: &AsyncEvent, now: Instant) {
        let qp = match &self.half {
            Half::Ip(ip) => ip.qp(),
            Half::Link(link) => link.qp(),
        };
        let AsyncEvent::Qp(of, what) = *event else {
            return;
        };
        let stopped = matches!(
            what,
            QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError
        );
        if of == qp && stopped {
            self.handle(Event::QpTrouble, now);
        }
    }

    /// Takes note of completion events that fired.
    pub(crate) fn take_events(&mut self, device: &V) -> bool {
        let [sends, receives] = self.cqs();
        // Both, whichever fired.
        let fired = [sends, receives].map(|cq| device.take_cq_event(cq));
        let mut fired = fired.contains(&true);
        if let Some(cqs) = self.link().connected_cqs() {
            fired |= cqs.map(|cq| device.take_cq_event(cq)).contains(&true);
        }
        if fired {
            self.armed = false;
        }
        fired
    }

    /// Arms what is not armed. Says whether it did.
    pub(crate) fn arm(&mut self) -> Result<bool, VerbsError> {
        if self.armed {
            return Ok(false);
        }
        match &self.half {
            Half::Ip(ip) => ip.arm()?,
            Half::Link(link) => link.arm()?,
        }
        self.armed = true;
        Ok(true)
    }
}
