//! The host: its ports, its interfaces, and the jobs that they wish done.

use crate::cm::{CmNews, INTERFACE, OWNER};
use crate::job::{Job, JobDone, Outcome, What};
use crate::net::{Half, Net};
use crate::port::{Port, PortStatistics, PortStatus, PortStep};
use crate::{Config, MAX_INTERFACES, MAX_PORTS, StackError};
use core_ib::Instant;
use core_ib::platform::{Fifo, Placed, Platform, Room};
use core_ib::verbs::{AsyncEvent, DeviceModify, PortEvent, QpEvent, Verbs, VerbsError};
use core_ib::wire::mad::PathRecord;
use heapless::Vec;
use ib_mad::{GroupUser, NoAnswer, SaAnswer, SaError, SaNext};
use ib_sm::{Report, Role};
use ipoib::link::{Event, GroupAnswer, LinkState, PortView, SaFailure, Step, Ticket};
use ipoib::neigh::IpInterface;
use ipoib::{NetInterface, SendError};

/// Jobs that wait. MADs for the firmware are most of them.
const JOBS: usize = 32;
/// News that wait to be taken; the oldest is dropped for a new one, and counted.
const NEWS: usize = 32;

/// News of connections that wait to be taken. What would be one more waits in the communication manager.
const CM_NEWS: usize = 16;

/// News of a host, for whoever watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackEvent {
    /// Something happened to a port; its cache was refreshed.
    Port(u8, PortEvent),
    /// An interface came up or went down.
    Interface(usize, LinkState),
    /// The subnet manager says something.
    Manager(Report),
}

/// One host. See the crate's page for how it is driven.
pub struct Stack<'d, V: Verbs, P: Platform> {
    device: &'d V,
    pub(crate) ports: Vec<Port<'d, V, P>, MAX_PORTS>,
    pub(crate) nets: Vec<Placed<'d, Net<'d, V, P>, P>, MAX_INTERFACES>,
    jobs: Fifo<'d, Job<'d, V>, P>,
    news: Fifo<'d, StackEvent, P>,
    news_lost: u32,
    /// An interface has heard of a connection since it was polled.
    pub(crate) stirred: bool,
    /// Of the owner's connections.
    pub(crate) cm_news: Fifo<'d, CmNews, P>,
}

/// An SA request's cookie: whose it is, and the interface's own ticket.
fn cookie(net: usize, ticket: Ticket) -> u64 {
    (net as u64) << 56 | ticket.to_bits()
}

fn of_cookie(cookie: u64) -> (usize, Ticket) {
    let ticket = Ticket::from_bits(cookie & (u64::MAX >> 8));
    ((cookie >> 56) as usize, ticket)
}

fn failure(error: SaError) -> SaFailure {
    match error {
        SaError::NoAnswer(NoAnswer::TimedOut { .. }) => SaFailure::TimedOut,
        SaError::Refused { status } => SaFailure::Refused { status: status.0 },
        SaError::Record(_) => SaFailure::BadAnswer,
        _ => SaFailure::NotSent,
    }
}

/// As many whole characters as 64 bytes hold, and zeros.
fn node_description(text: &str) -> [u8; 64] {
    let mut description = [0; 64];
    let whole = (0..=description.len()).rev();
    let whole = whole.filter_map(|len| text.get(..len)).next();
    let bytes = whole.unwrap_or(text).bytes();
    description
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    description
}

impl<'d, V: Verbs, P: Platform> Stack<'d, V, P> {
    /// Opens the special QPs of all ports of `device`, which is in `machine`, and the interfaces. Control context;
    /// blocks. On error everything is as before, but for the node description, which may have been set.
    pub fn open(machine: &'d P, device: &'d V, config: &Config<'d>) -> Result<Self, StackError> {
        let count = device.query_device().port_count;
        let known = |port: u8| match port {
            port if port >= 1 && port <= count => Ok(()),
            port => Err(StackError::NoSuchPort { port }),
        };
        if config.interfaces.len() > MAX_INTERFACES {
            let (what, limit) = ("IP interfaces", MAX_INTERFACES);
            return Err(StackError::TooMany { what, limit });
        }
        if let Some(manager) = &config.subnet_manager {
            known(manager.port)?;
        }
        config
            .interfaces
            .iter()
            .try_for_each(|net| known(net.port))?;
        for (index, net) in config.interfaces.iter().enumerate() {
            let (port, p_key) = (net.port, net.p_key);
            if p_key.base() == 0 {
                return Err(StackError::NoPartition { p_key });
            }
            if net.profile.connected.is_some() && config.cm.is_none() {
                return Err(StackError::NoCommunicationManager { port });
            }
            let mut before = config.interfaces.iter().take(index);
            if before.any(|other| other.port == port && other.p_key.base() == p_key.base()) {
                return Err(StackError::SamePartition { port, p_key });
            }
        }
        if !config.description.is_empty() {
            let description = node_description(config.description);
            let node_description = Some(&description);
            let change = DeviceModify {
                node_description,
                ..DeviceModify::default()
            };
            device.modify_device(&change)?;
        }
        let mut stack = Self {
            device,
            ports: Vec::new(),
            nets: Vec::new(),
            jobs: Fifo::new(machine, JOBS)?,
            news: Fifo::new(machine, NEWS)?,
            news_lost: 0,
            stirred: false,
            cm_news: Fifo::new(machine, CM_NEWS)?,
        };
        match stack.fill(machine, count, config) {
            Ok(()) => Ok(stack),
            Err(error) => {
                // The first error is the one to be told.
                let _ = stack.close();
                Err(error)
            }
        }
    }

    #[inline(never)]
    fn fill(&mut self, machine: &'d P, count: u8, config: &Config<'d>) -> Result<(), StackError> {
        for number in 1..=count {
            let port = Port::open(self.device, machine, number, config)?;
            if let Err(port) = self.ports.push(port) {
                port.close()?;
                let (what, limit) = ("ports", MAX_PORTS);
                return Err(StackError::TooMany { what, limit });
            }
        }
        for interface in config.interfaces {
            let room = Room::new(machine)?;
            let net = room.put(Net::open(self.device, machine, interface)?);
            if let Err(net) = self.nets.push(net) {
                Placed::into_inner(net).close()?;
            }
        }
        Ok(())
    }

    /// Ends it all, and says the first error. Groups are not left: the subnet manager finds out. Control context;
    /// blocks.
    pub fn close(mut self) -> Result<(), VerbsError> {
        let mut result = Ok(());
        while let Some(net) = self.nets.pop() {
            result = result.and(Placed::into_inner(net).close());
        }
        while let Some(port) = self.ports.pop() {
            result = result.and(port.close());
        }
        result
    }

    /// The HCA.
    pub const fn device(&self) -> &'d V {
        self.device
    }

    /// Does whatever is due at `now`, and says when to poll again at the latest. Before going to sleep, look for
    /// [jobs](Self::next_job), take what was [received](Self::receive), and [arm](Self::arm). Never blocks.
    ///
    /// # Errors
    ///
    /// The HCA has failed or is gone. Close the stack and open both anew.
    pub fn poll(&mut self, now: Instant) -> Result<Instant, VerbsError> {
        let now = now.on_the_clock();
        self.device.check()?;
        while !self.jobs.is_full()
            && let Some(event) = self.device.next_async_event()
        {
            self.async_event(&event, now);
        }
        for port in &mut self.ports {
            port.take_events(self.device);
        }
        for net in &mut self.nets {
            net.take_events(self.device);
        }
        // The interfaces ask the ports and the ports answer the interfaces: two rounds settle what is there.
        let mut wake = Instant::NEVER;
        for _ in 0..2 {
            wake = self.poll_nets(now);
            wake = wake.min(self.poll_ports(now)?);
        }
        if !self.jobs.is_empty() || core::mem::take(&mut self.stirred) {
            wake = now;
        }
        Ok(wake)
    }

    fn async_event(&mut self, event: &AsyncEvent, now: Instant) {
        match *event {
            AsyncEvent::Port(port, what) => {
                let what = What::Refresh(Some(what));
                // There was room.
                let _ = self.jobs.push_back(Job { port, what });
            }
            _ => {
                for port in &mut self.ports {
                    port.async_event(event);
                    if let AsyncEvent::Qp(qp, QpEvent::CommunicationEstablished) = *event
                        && let Some(cm) = &mut port.cm
                        && let Some(conn) = cm.of_qp(qp)
                    {
                        cm.communication_established(conn);
                    }
                }
                self.nets
                    .iter_mut()
                    .for_each(|net| net.async_event(event, now));
            }
        }
    }

    fn poll_ports(&mut self, now: Instant) -> Result<Instant, VerbsError> {
        let mut wake = Instant::NEVER;
        for index in 0..self.ports.len() {
            while let Some(port) = self.ports.get_mut(index) {
                port.jobs(&mut self.jobs, now);
                let cm_room = !self.cm_news.is_full();
                match port.poll(&mut self.jobs, cm_room, now)? {
                    PortStep::Sa(next) => self.sa_answer(next, now),
                    PortStep::Cm(event) => self.cm_event(index, event, now),
                    PortStep::Report(report) => self.tell(StackEvent::Manager(report)),
                    PortStep::Wait(at) => {
                        wake = wake.min(at);
                        break;
                    }
                }
            }
        }
        Ok(wake)
    }

    fn sa_answer(&mut self, next: SaNext, now: Instant) {
        // Memberships that were renewed, services and reports concern nobody yet: an interface asks anew by itself.
        let SaNext::Done { cookie, result, .. } = next else {
            return;
        };
        if cookie >> 56 == OWNER {
            return self.owners_path(cookie, result);
        }
        let (net, ticket) = of_cookie(cookie);
        let Some(net) = self.nets.get_mut(net) else {
            return;
        };
        let event = match result {
            Ok(SaAnswer::Record(record)) => {
                let path = record.read::<PathRecord>();
                let path = path.map(|path| (&path).into());
                Event::Path(ticket, path.map_err(|_| SaFailure::BadAnswer))
            }
            Ok(SaAnswer::Joined(record)) => Event::Joined(ticket, GroupAnswer::try_from(&record)),
            Ok(SaAnswer::Left) => Event::Left(ticket, Ok(())),
            Ok(SaAnswer::Table) => return,
            Err(error) => Event::SaFailed(ticket, failure(error)),
        };
        net.handle(event, now);
    }

    fn poll_nets(&mut self, now: Instant) -> Instant {
        let mut wake = Instant::NEVER;
        for index in 0..self.nets.len() {
            while !self.jobs.is_full() {
                let Some(net) = self.nets.get_mut(index) else {
                    break;
                };
                let port = net.port;
                match net.poll(now) {
                    Step::WaitUntil(at) => {
                        wake = wake.min(at);
                        break;
                    }
                    Step::Wish(wish) => {
                        let what = What::Link(index as u8, net.control(), wish);
                        // There was room.
                        let _ = self.jobs.push_back(Job { port, what });
                    }
                    Step::Changed(state) => {
                        if core::mem::replace(&mut net.state, state) != state {
                            self.tell(StackEvent::Interface(index, state));
                        }
                    }
                    asks => self.ask(index, port, asks, now),
                }
            }
            wake = wake.min(self.poll_connections(index, now));
        }
        wake
    }

    /// What an interface has to do about its connections.
    fn poll_connections(&mut self, index: usize, now: Instant) -> Instant {
        let Self {
            ports, nets, jobs, ..
        } = self;
        let Some(net) = nets.get_mut(index).filter(|net| net.connected) else {
            return Instant::NEVER;
        };
        let number = net.port;
        let port = ports.iter_mut().find(|port| port.number == number);
        let Some(cm) = port.and_then(|port| port.cm.as_deref_mut()) else {
            return Instant::NEVER;
        };
        let cookie = INTERFACE << 56 | index as u64;
        if !net.listens {
            // The names are those of a QP of ours: nobody else has them.
            net.listens = net.link().listen_for_connections(cm, cookie, now).is_ok();
        }
        while !jobs.is_full() {
            match net.link().poll_connections(cm, cookie, now) {
                Ok(wish) => {
                    let (port, what) = (number, What::Conn(index as u8, wish));
                    // There was room.
                    let _ = jobs.push_back(Job { port, what });
                }
                Err(wake) => return wake,
            }
        }
        now
    }

    /// To the SA client of the port. What it does not take is answered at once.
    fn ask(&mut self, index: usize, port: u8, step: Step, now: Instant) {
        let mut ports = self.ports.iter_mut();
        let Some(port) = ports.find(|other| other.number == port) else {
            return;
        };
        let sa = &mut port.sa;
        let user = GroupUser::new(index as u8);
        let nobody = SaError::Full {
            entry: "interfaces",
            limit: GroupUser::COUNT,
        };
        let (result, refused) = match step {
            Step::QuerySa(ticket, query) => {
                let (record, mask) = query.record();
                let asked = sa.get(cookie(index, ticket), &record, mask, now);
                (asked, Refused::Path(ticket))
            }
            Step::Join(ticket, request) => {
                let (record, mask) = request.record();
                let asked = user
                    .ok_or(nobody)
                    .and_then(|user| sa.join(cookie(index, ticket), user, &record, mask));
                (asked, Refused::Join(ticket))
            }
            Step::Leave(ticket, request) => {
                let asked = user.ok_or(nobody).and_then(|user| {
                    let bits = request.join_state;
                    sa.leave(cookie(index, ticket), user, request.mgid, bits)
                });
                (asked, Refused::Leave(ticket))
            }
            Step::Wish(_) | Step::Changed(_) | Step::WaitUntil(_) => return,
        };
        let Err(error) = result else { return };
        let error = failure(error);
        let event = match refused {
            Refused::Path(ticket) => Event::Path(ticket, Err(error)),
            Refused::Join(ticket) => Event::Joined(ticket, Err(error)),
            Refused::Leave(ticket) => Event::Left(ticket, Err(error)),
        };
        if let Some(net) = self.nets.get_mut(index) {
            net.handle(event, now);
        }
    }

    fn tell(&mut self, event: StackEvent) {
        if self.news.is_full() {
            self.news.pop_front();
            self.news_lost = self.news_lost.saturating_add(1);
        }
        // There is room now.
        let _ = self.news.push_back(event);
    }

    /// The next thing to be done where blocking is allowed.
    pub fn next_job(&mut self) -> Option<Job<'d, V>> {
        self.jobs.pop_front()
    }

    /// Are there jobs that nobody has taken?
    pub const fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Takes a job's result. Never blocks. Poll afterwards.
    pub fn job_done(&mut self, done: JobDone, now: Instant) {
        let mut ports = self.ports.iter_mut();
        let Some(port) = ports.find(|port| port.number == done.port) else {
            return;
        };
        match done.what {
            Outcome::Mad(granted) => port.granted(&granted),
            Outcome::Conn(index, done) => {
                if let Some(net) = self.nets.get_mut(usize::from(index)) {
                    net.link().connection_done(done, now);
                }
            }
            Outcome::Cm(granted) => {
                if let Some(cm) = &mut port.cm {
                    cm.granted(&granted, now);
                }
            }
            Outcome::Link(index, done) => {
                if let Some(net) = self.nets.get_mut(usize::from(index)) {
                    net.handle(Event::Done(done), now);
                }
            }
            Outcome::Refresh(event, tables) => {
                port.refreshed(event, tables, now);
                let number = port.number;
                for net in self.nets.iter_mut().filter(|net| net.port == number) {
                    let view = PortView::of(&port.cache, net.p_key);
                    let event = match event {
                        Some(event) => Event::PortChanged(event, view),
                        None => Event::Port(view),
                    };
                    net.handle(event, now);
                }
                if let Some(event) = event {
                    self.tell(StackEvent::Port(number, event));
                }
            }
            Outcome::Probe(state) => {
                if port.probed(state, now) {
                    let (port, what) = (port.number, What::Refresh(None));
                    // Without room it is looked at again soon.
                    let _ = self.jobs.push_back(Job { port, what });
                }
            }
            Outcome::IsSm(is_sm, result) => {
                if result.is_err() {
                    port.ask_is_sm(is_sm, now);
                }
            }
        }
    }

    /// Arms the completion queues that are not armed. Says whether it did: then poll and receive once more, since
    /// what completed meanwhile is not announced. Never blocks.
    pub fn arm(&mut self) -> Result<bool, VerbsError> {
        let mut any = false;
        for port in &mut self.ports {
            any |= port.arm()?;
        }
        for net in &mut self.nets {
            any |= net.arm()?;
        }
        Ok(any)
    }

    /// Takes the next piece of news.
    pub fn next_event(&mut self) -> Option<StackEvent> {
        self.news.pop_front()
    }

    /// News that were lost because nobody took them.
    pub const fn events_lost(&self) -> u32 {
        self.news_lost
    }

    /// How port `number` stands, as of the last event.
    pub fn port_status(&self, number: u8) -> Option<PortStatus> {
        self.ports
            .iter()
            .find(|port| port.number == number)
            .map(Port::status)
    }

    /// Counters of port `number`.
    pub fn port_statistics(&self, number: u8) -> Option<PortStatistics> {
        let mut ports = self.ports.iter();
        ports
            .find(|port| port.number == number)
            .map(|port| port.statistics)
    }

    /// What the subnet manager on this host is, if there is one.
    pub fn manager_role(&self) -> Option<Role> {
        let mut managers = self.ports.iter().filter_map(|port| port.manager.as_ref());
        managers.next().map(|manager| manager.sm.role())
    }

    /// State of interface `index`.
    pub fn interface_state(&self, index: usize) -> Option<LinkState> {
        self.nets.get(index).map(|net| net.state)
    }

    /// Interface `index`, if it is one for raw IP packets.
    pub fn ip(&mut self, index: usize) -> Option<&mut IpInterface<'d, V, P>> {
        match &mut self.nets.get_mut(index)?.half {
            Half::Ip(ip) => Some(ip),
            Half::Link(_) => None,
        }
    }

    /// Interface `index`, if it is one for frames.
    pub fn link(&mut self, index: usize) -> Option<&mut ipoib::link::LinkInterface<'d, V, P>> {
        match &mut self.nets.get_mut(index)?.half {
            Half::Ip(_) => None,
            Half::Link(link) => Some(link),
        }
    }

    /// Sends an IP packet by interface `index`. Poll afterwards.
    pub fn send(&mut self, index: usize, packet: &[u8], now: Instant) -> Result<(), SendError> {
        self.ip(index).ok_or(SendError::Down)?.send(packet, now)
    }

    /// Takes the next IP packet that came by interface `index`; says whether there was one.
    pub fn receive(&mut self, index: usize, now: Instant, take: &mut dyn FnMut(&[u8])) -> bool {
        self.ip(index).is_some_and(|ip| ip.receive(now, take))
    }

    /// The same, and tells `take` whether the HCA found its checksums right: see [`NetInterface::receive_judged`].
    pub fn receive_judged(
        &mut self,
        index: usize,
        now: Instant,
        take: &mut dyn FnMut(&[u8], bool),
    ) -> bool {
        self.ip(index)
            .is_some_and(|ip| ip.receive_judged(now, take))
    }
}

enum Refused {
    Path(Ticket),
    Join(Ticket),
    Leave(Ticket),
}

#[cfg(test)]
mod tests {
    use super::node_description;

    #[test]
    fn a_node_description_is_64_bytes_of_whole_characters() {
        let full = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_eq!(node_description(full), full.as_bytes());
        assert_eq!(
            node_description("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefg"),
            full.as_bytes()
        );
        let mut cut = node_description(full);
        cut[63] = 0;
        assert_eq!(
            node_description("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeé"),
            cut
        );
        assert_eq!(node_description("ab")[..3], *b"ab\0");
        assert_eq!(node_description(""), [0; 64]);
    }
}
