//! One port of a host: its special QPs, who gets the MADs that come by them, the SA client, the subnet manager.

use crate::job::{Job, What};
use crate::{CmConfig, Config, GIDS, PKEYS, StackError, SubnetManager};
use core_ib::platform::{Fifo, Placed, Platform, Room};
use core_ib::verbs::{PortAttr, PortCache, PortEvent, PortTables, Verbs, VerbsError};
use core_ib::wire::mad::{AttributeId, Method};
use core_ib::{Gid, Instant, Lid, PKey};
use ib_cm::{Cm, CmNext, TableStore};
use ib_mad::{
    AgentId, Delivery, Dispatch, DispatchNext, MadPort, Outgoing, Pong, PortNext, Received,
    Registration, Sa, SaNext, SaPort, SendError, SpecialQp,
};
use ib_sm::{Action, Event as SmEvent, Report, Sm};

/// Receives posted on each special QP. A subnet manager's window of SMPs, that of a long answer, or the joins of a fabric
/// that comes up at once must fit; what does not is asked for again after seconds.
const RECVS: usize = 256;
/// MADs on their way out.
const SENDS: usize = 64;
/// Agents: the SA client, what answers pings, the subnet manager's three, and some for the owner.
const AGENTS: usize = 8;
/// Requests of agents that wait for an answer.
const REQUESTS: usize = 8;
/// SA queries that wait.
const QUERIES: usize = 24;
/// Multicast groups joined.
const GROUPS: usize = 48;
/// Services and subscriptions.
const KEPT: usize = 4;
/// Bytes of an SA table.
const TABLE: usize = 2048;
/// Looks at a port that is not up yet, where nothing announces that it comes up.
const PROBE: core::time::Duration = core::time::Duration::from_millis(50);

type PlacedMads<'d, V, P> = Placed<'d, MadPort<'d, V, P, RECVS, SENDS>, P>;
type PlacedCache<'d, P> = Placed<'d, PortCache<<P as Platform>::RawLock, GIDS, PKEYS>, P>;
pub(crate) type PortCm<'d, P> = Cm<TableStore<'d, P>>;
pub(crate) type PortSa = Sa<QUERIES, GROUPS, KEPT, TABLE>;

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// MADs that came for an agent of this host, or for nobody.
    pub mads_received: u64,
    /// MADs that were given to the special QPs.
    pub mads_sent: u64,
    /// MADs that could not be sent.
    pub mads_not_sent: u64,
    /// MADs that came and were of no use.
    pub mads_dropped: u64,
}

/// How a port stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// 1 Down, 2 Init, 3 Armed, 4 Active; 0 before the first look.
    pub state: u8,
    /// Base LID.
    pub lid: Lid,
    /// The subnet manager's.
    pub sm_lid: Lid,
    /// GID 0.
    pub gid: Gid,
}

/// What the subnet manager is, when there is one.
pub(crate) struct Manager<'d, P: Platform> {
    pub(crate) sm: Placed<'d, Sm<'d, &'d P>, P>,
    /// Takes SMPs by LID, directed SMPs, GMPs to the SA; in this order.
    agents: [AgentId; 3],
    due: Instant,
    /// What it was last told of its port.
    up: Option<bool>,
}

pub(crate) struct Port<'d, V: Verbs, P: Platform> {
    pub(crate) number: u8,
    // What is large is in memory for tables, so that a host is made and moved on a small stack.
    mads: PlacedMads<'d, V, P>,
    pub(crate) cache: PlacedCache<'d, P>,
    dispatch: Placed<'d, Dispatch<AGENTS, REQUESTS>, P>,
    pub(crate) sa: Placed<'d, PortSa, P>,
    pong: (AgentId, Pong),
    pub(crate) manager: Option<Manager<'d, P>>,
    pub(crate) cm: Option<Placed<'d, PortCm<'d, P>, P>>,
    pub(crate) statistics: PortStatistics,
    armed: bool,
    /// A look at the port's state is under way, or due then.
    probing: bool,
    probe_at: Instant,
    refreshing: bool,
    /// IsSM as it is to be, if it is to change, and when to ask for it.
    is_sm: Option<(bool, Instant)>,
}

impl<'d, P: Platform> Manager<'d, P> {
    /// Registers its agents. Set-up only; may block.
    #[inline(never)]
    fn new(
        machine: &'d P,
        wanted: &SubnetManager<'d>,
        dispatch: &mut Dispatch<AGENTS, REQUESTS>,
    ) -> Result<Self, StackError> {
        let [lid_routed, directed, administrator] = ib_sm::REGISTRATIONS;
        let agents = [
            dispatch.register(lid_routed)?,
            dispatch.register(directed)?,
            dispatch.register(administrator)?,
        ];
        let [smi_agent, _, sa_agent] = agents;
        let config = ib_sm::Config {
            smi_agent,
            sa_agent,
            ..wanted.config
        };
        let room = Room::new(machine)?;
        Ok(Self {
            sm: room.put(Sm::new(&machine, &wanted.profile, config)?),
            agents,
            due: Instant(0),
            up: None,
        })
    }
}

/// What came out of a port for others.
pub(crate) enum PortStep {
    /// An answer of the SA.
    Sa(SaNext),
    /// News of the subnet manager.
    Report(Report),
    /// News of a connection.
    Cm(ib_cm::Event),
    /// Nothing before this instant.
    Wait(Instant),
}

impl<'d, V: Verbs, P: Platform> Port<'d, V, P> {
    /// Opens the special QPs. Control context; blocks.
    #[inline(never)]
    pub(crate) fn open(
        device: &'d V,
        machine: &'d P,
        number: u8,
        config: &Config<'d>,
    ) -> Result<Self, StackError> {
        let mut dispatch: Placed<'_, Dispatch<AGENTS, REQUESTS>, P> = Room::new(machine)?.blank();
        let mut sa: Placed<'_, PortSa, P> = Room::new(machine)?.blank();
        let agent = dispatch.register(Registration::sa_client())?;
        sa.set_up(agent, config.sa);
        let pong = dispatch.register(Pong::REGISTRATION)?;
        let manager = match &config.subnet_manager {
            Some(wanted) if wanted.port == number => {
                Some(Manager::new(machine, wanted, &mut dispatch)?)
            }
            _ => None,
        };
        let cm = match &config.cm {
            Some(wanted) => Some(Self::cm(device, machine, number, wanted, &mut dispatch)?),
            None => None,
        };
        let cache = Self::cache(machine, number)?;
        let mads = Self::mads(device, machine, number, config.mad_vector)?;
        Ok(Self {
            number,
            mads,
            cache,
            dispatch,
            sa,
            pong: (pong, Pong::new(config.description)),
            manager,
            cm,
            statistics: PortStatistics::default(),
            armed: false,
            probing: false,
            probe_at: Instant(0),
            refreshing: false,
            is_sm: None,
        })
    }

    // Each part is made in a function of its own, whose frame is gone when the next one is made.

    #[inline(never)]
    fn cm(
        device: &'d V,
        machine: &'d P,
        number: u8,
        wanted: &CmConfig,
        dispatch: &mut Dispatch<AGENTS, REQUESTS>,
    ) -> Result<Placed<'d, PortCm<'d, P>, P>, StackError> {
        let agent = dispatch.register(ib_cm::registration())?;
        let store = TableStore::new(machine, &wanted.profile)?;
        let guid = device.query_device().node_guid;
        let seed = wanted.seed ^ u32::from(number) << 30;
        Ok(Room::new(machine)?.put(Cm::new(agent, guid, seed, store)))
    }

    #[inline(never)]
    fn cache(machine: &'d P, number: u8) -> Result<PlacedCache<'d, P>, StackError> {
        let lock = machine.raw_lock("port cache", false);
        Ok(Room::new(machine)?.put(PortCache::new(lock, number)))
    }

    #[inline(never)]
    fn mads(
        device: &'d V,
        machine: &'d P,
        number: u8,
        vector: u16,
    ) -> Result<PlacedMads<'d, V, P>, StackError> {
        let room = Room::new(machine)?;
        Ok(room.put(MadPort::open(device, machine, number, vector)?))
    }

    pub(crate) fn close(self) -> Result<(), VerbsError> {
        Placed::into_inner(self.mads).close()
    }

    pub(crate) fn status(&self) -> PortStatus {
        self.cache
            .port()
            .map_or_else(PortStatus::default, |port| PortStatus {
                state: port.state,
                lid: port.lid,
                sm_lid: port.sm_lid,
                gid: self.cache.gid(0).unwrap_or(Gid::NONE),
            })
    }

    /// Jobs of the port itself that are due.
    pub(crate) fn jobs(&mut self, jobs: &mut Fifo<'d, Job<'d, V>, P>, now: Instant) {
        let port = self.number;
        let mut add = |what| jobs.push_back(Job { port, what }).is_ok();
        if let Some((is_sm, at)) = self.is_sm
            && at <= now
            && add(What::IsSm(is_sm))
        {
            self.is_sm = None;
        }
        if self.cache.port().is_none() {
            if !self.refreshing && now >= self.probe_at && add(What::Refresh(None)) {
                self.refreshing = true;
            }
        } else if self.manager.is_some()
            && !self.probing
            && !self.refreshing
            && self.status().state < 2
            && now >= self.probe_at
            && add(What::Probe)
        {
            self.probing = true;
        }
    }

    /// When [`Port::jobs`] has something, if nothing happens before.
    fn job_due(&self) -> Instant {
        let looks =
            self.cache.port().is_none() || (self.manager.is_some() && self.status().state < 2);
        if looks && !self.probing && !self.refreshing {
            self.probe_at
        } else {
            Instant::NEVER
        }
    }

    pub(crate) fn probed(&mut self, state: Result<u8, VerbsError>, now: Instant) -> bool {
        self.probing = false;
        self.probe_at = now.after(PROBE);
        state.is_ok_and(|state| state != self.status().state)
    }

    /// The tables were read. The cache is new, the special QPs, the SA client and the subnet manager know; the
    /// interfaces are the caller's.
    pub(crate) fn refreshed(
        &mut self,
        event: Option<PortEvent>,
        tables: Result<PortTables<GIDS, PKEYS>, VerbsError>,
        now: Instant,
    ) {
        self.refreshing = false;
        self.probe_at = now.after(PROBE);
        // A failure is counted in the cache; what it holds stays in force.
        let _ = self.cache.install(tables);
        let Some(port) = self.cache.port() else {
            return;
        };
        let mut gids = [Gid::NONE; GIDS];
        for (index, gid) in (0..).zip(&mut gids) {
            *gid = self.cache.gid(index).unwrap_or(Gid::NONE);
        }
        self.mads.refresh(&port, &gids);
        let sa_port = self.sa_port(&port);
        self.sa.port_changed(&sa_port, now);
        if event == Some(PortEvent::ClientReregister) {
            self.sa.reregister();
        }
        if let Some(manager) = &mut self.manager {
            let up = port.state >= 2;
            if manager.up != Some(up) {
                manager.up = Some(up);
                manager.sm.handle(SmEvent::Port { up }, now);
                manager.due = now;
            }
        }
    }

    fn sa_port(&self, port: &PortAttr) -> SaPort {
        SaPort {
            active: port.is_active(),
            lid: port.lid,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            pkey_index: self.cache.find_pkey(PKey::DEFAULT).unwrap_or(0),
        }
    }

    /// An asynchronous event that may be of the special QPs.
    pub(crate) fn async_event(&mut self, event: &core_ib::verbs::AsyncEvent) {
        self.mads.handle(event);
    }

    /// The HCA refused to change IsSM: it is asked again.
    pub(crate) fn ask_is_sm(&mut self, is_sm: bool, now: Instant) {
        // Unless the manager has changed its mind meanwhile.
        self.is_sm = self.is_sm.or(Some((is_sm, now.after(PROBE))));
    }

    pub(crate) fn granted(&mut self, granted: &ib_mad::Granted) {
        if self.mads.granted(granted).is_err() {
            self.statistics.mads_not_sent = self.statistics.mads_not_sent.saturating_add(1);
        }
    }

    pub(crate) fn take_events(&mut self, device: &V) -> bool {
        let fired = device.take_cq_event(self.mads.cq());
        if fired {
            self.armed = false;
        }
        fired
    }

    /// Arms the CQ if it is not. Says whether it did.
    pub(crate) fn arm(&mut self) -> Result<bool, VerbsError> {
        if self.armed {
            return Ok(false);
        }
        self.mads.arm()?;
        self.armed = true;
        Ok(true)
    }

    /// Does what is due, of connections if their news have room. Call again after anything but `Wait`.
    pub(crate) fn poll(
        &mut self,
        jobs: &mut Fifo<'d, Job<'d, V>, P>,
        cm_room: bool,
        now: Instant,
    ) -> Result<PortStep, VerbsError> {
        // What came. A wish needs a place among the jobs, an answer one among the sends.
        while !jobs.is_full() && self.mads.room() > 0 {
            match self.mads.poll()? {
                PortNext::Received(received) => self.received(&received, now),
                PortNext::SendFailed { tid, .. } => self.send_failed(tid, now),
                PortNext::Wish(wish) => {
                    let what = What::Mad(wish);
                    let port = self.number;
                    // There was room.
                    let _ = jobs.push_back(Job { port, what });
                }
                PortNext::Dropped(_) => {
                    self.statistics.mads_dropped = self.statistics.mads_dropped.saturating_add(1);
                }
                PortNext::Idle => break,
            }
        }
        let mut wake = self.job_due();
        // What is to be sent. One place is left for answers.
        while self.mads.room() > 1 {
            match self.dispatch.poll(now) {
                DispatchNext::Send(outgoing) => {
                    let outgoing = *outgoing;
                    self.send(&outgoing, now);
                }
                DispatchNext::Failed { .. } => {}
                DispatchNext::WaitUntil(at) => {
                    wake = wake.min(at);
                    break;
                }
            }
        }
        while self.mads.room() > 1 {
            match self.sa.poll(now) {
                SaNext::Send(outgoing) => self.send(&outgoing, now),
                SaNext::WaitUntil(at) => {
                    wake = wake.min(at);
                    break;
                }
                other => return Ok(PortStep::Sa(other)),
            }
        }
        while self.mads.room() > 1 {
            let Some(manager) = &mut self.manager else {
                break;
            };
            if manager.due > now {
                wake = wake.min(manager.due);
                break;
            }
            match manager.sm.poll(now) {
                Action::Send(outgoing) => self.send(&outgoing, now),
                Action::SetIsSm(is_sm) => self.is_sm = Some((is_sm, now)),
                Action::Log(report) => return Ok(PortStep::Report(report)),
                Action::WaitUntil(at) => manager.due = at,
                _ => {}
            }
        }
        while cm_room && !jobs.is_full() && self.mads.room() > 1 {
            let Some(cm) = &mut self.cm else {
                break;
            };
            match cm.poll(now) {
                CmNext::Send(outgoing) => self.send(&outgoing, now),
                CmNext::Wish(wish) => {
                    let (port, what) = (self.number, What::Cm(wish));
                    // There was room.
                    let _ = jobs.push_back(Job { port, what });
                }
                CmNext::Event(event) => return Ok(PortStep::Cm(event)),
                CmNext::WaitUntil(at) => {
                    wake = wake.min(at);
                    break;
                }
            }
        }
        if let Some((_, at)) = self.is_sm {
            wake = wake.min(at);
        }
        Ok(PortStep::Wait(wake))
    }

    #[inline(never)]
    fn send(&mut self, outgoing: &Outgoing, now: Instant) {
        let statistics = &mut self.statistics;
        match self.mads.send(outgoing) {
            Ok(()) => statistics.mads_sent = statistics.mads_sent.saturating_add(1),
            Err(error) => {
                statistics.mads_not_sent = statistics.mads_not_sent.saturating_add(1);
                // Nothing would be gained by trying the same at once.
                if !matches!(error, SendError::Full { .. }) {
                    self.send_failed(outgoing.mad.view().tid(), now);
                }
            }
        }
    }

    fn send_failed(&mut self, tid: u64, now: Instant) {
        if self.sa.send_failed(tid, now) || self.dispatch.send_failed(tid, now) {
            return;
        }
        if let Some(manager) = &mut self.manager {
            manager.sm.handle(SmEvent::SendFailed { tid }, now);
            manager.due = now;
        }
    }

    #[inline(never)]
    fn received(&mut self, received: &Received, now: Instant) {
        let statistics = &mut self.statistics;
        statistics.mads_received = statistics.mads_received.saturating_add(1);
        match self.dispatch.handle(received, now) {
            Delivery::Request { agent } | Delivery::Response { agent, .. } => {
                if agent == self.sa.agent() {
                    self.sa.handle(received, now);
                } else if let Some(cm) = &mut self.cm
                    && cm.agent() == agent
                {
                    cm.handle(received, now);
                } else if agent == self.pong.0 {
                    self.send(&self.pong.1.answer(received), now);
                } else {
                    self.for_manager(agent, received, now);
                }
            }
            Delivery::Refused(outgoing) => self.send(&outgoing, now),
            Delivery::Dropped(_) => {
                statistics.mads_dropped = statistics.mads_dropped.saturating_add(1);
            }
        }
    }

    #[inline(never)]
    fn for_manager(&mut self, agent: AgentId, received: &Received, now: Instant) {
        let Some(manager) = &mut self.manager else {
            return;
        };
        if !manager.agents.contains(&agent) {
            return;
        }
        if received.qp == SpecialQp::Smi {
            let header = received.header();
            // Of what others ask, the SMInfo alone is the manager's.
            let asked = matches!(header.method, Method::GET | Method::SET);
            if asked && header.attribute != AttributeId::SM_INFO {
                if let Some(mad) = ib_mad::refusal(&received.mad) {
                    self.send(&received.reply(mad), now);
                }
                return;
            }
        }
        manager.sm.handle(SmEvent::Received(received), now);
        manager.due = now;
    }
}
