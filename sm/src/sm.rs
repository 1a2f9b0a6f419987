//! The subnet manager as its owner sees it.

use crate::api::{Action, Event, Report, Role};
use crate::config::Config;
use crate::error::SmError;
use crate::manager::{Books, Manager, Marks, State};
use crate::profile::Profile;
use crate::store::Store;
use core_ib::wire::mad::{AttributeId, Mad, Method, MgmtClass, Smp};
use core_ib::{Guid, Instant, Lid};
use ib_mad::{Methods, Received, Registration, SpecialQp, Tracking};

/// What the owner of a [`Dispatch`](ib_mad::Dispatch) registers for a manager: SMPs by LID and by directed route, whose
/// first agent is [`Config::smi_agent`], and subnet administration, whose agent is [`Config::sa_agent`].
pub const REGISTRATIONS: [Registration; 3] = [
    serve(SpecialQp::Smi, MgmtClass::SUBN_LID, 1, SMI),
    serve(SpecialQp::Smi, MgmtClass::SUBN_DR, 1, SMI),
    serve(SpecialQp::Gsi, MgmtClass::SUBN_ADM, 2, Methods::SA_SERVER),
];

/// What other managers and nodes send unasked.
const SMI: Methods = Methods::GET_SET.and(Method::TRAP);

const fn serve(qp: SpecialQp, class: MgmtClass, version: u8, methods: Methods) -> Registration {
    Registration {
        tracking: Tracking::Agent,
        ..Registration::server(qp, class, version, methods)
    }
}

/// A subnet manager and administrator on one port.
///
/// Any context that may hold its owner's lock, soft interrupts included; no call blocks. See the crate.
pub struct Sm<'c, S: Store> {
    config: Config<'c>,
    books: Books<S>,
    state: State,
    marks: Marks,
}

impl<'c, S: Store> Sm<'c, S> {
    /// A manager that waits for its port to come up. Set-up only; may block, since it takes its memory.
    ///
    /// # Errors
    ///
    /// The configuration or the profile is out of range, or there is not enough memory; all that was taken is given
    /// back.
    #[inline(always)]
    pub fn new(store: &S, profile: &Profile, config: Config<'c>) -> Result<Self, SmError> {
        profile.check()?;
        config.check()?;
        Ok(Self {
            config,
            books: Books::new(store, profile)?,
            state: State::new(profile),
            marks: Marks::default(),
        })
    }

    fn open(&mut self, now: Instant) -> Manager<'_> {
        let (st, marks) = (&mut self.state, &mut self.marks);
        self.books.open(st, marks, &self.config, now.on_the_clock())
    }

    /// Takes note. Never blocks.
    pub fn handle(&mut self, event: Event<'_>, now: Instant) {
        let mut manager = self.open(now);
        match event {
            Event::Received(received) => manager.received(received),
            // The request waits for its answer as if it were lost: at once would be too soon if the port is down.
            Event::SendFailed { .. } => {}
            Event::Port { up } => manager.port_changed(up),
            Event::Sweep => {
                manager.sweep_again();
                manager.st.sweep_at = now;
            }
            Event::Resign => manager.resign(),
        }
    }

    /// Says what is due at `now`. Call it until it says to wait, then after each event, and at the instant given;
    /// calling early or late is harmless.
    pub fn poll(&mut self, now: Instant) -> Action {
        self.open(now).poll()
    }

    /// What the manager is.
    pub fn role(&self) -> Role {
        self.state.role
    }

    /// The subnet is configured and the administrator answers.
    pub fn is_serving(&self) -> bool {
        self.state.serving
    }

    /// Keeps `lid` for the port with this GUID, from an earlier life: its owner stored what [`Sm::lids`] said. Before
    /// the port is up. Says whether it could.
    pub fn remember(&mut self, guid: Guid, lid: Lid) -> bool {
        self.open(Instant(0)).remember(guid, lid)
    }

    /// Every LID that is kept for a port, by its base.
    pub fn lids(&self) -> impl Iterator<Item = (Guid, Lid)> {
        self.books.lids()
    }
}

impl<S: Store> core::fmt::Debug for Sm<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sm")
            .field("config", &self.config)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Manager<'_> {
    fn received(&mut self, received: &Received) {
        if !self.st.port_up {
            return;
        }
        let class = received.header().class;
        if class == MgmtClass::SUBN_ADM {
            self.sa_received(received);
        } else if class.is_smp() {
            self.smp_received(received);
        }
    }

    fn smp_received(&mut self, received: &Received) {
        let smp = Smp::from_bytes(&received.mad.0);
        match (smp.header.method, smp.header.attribute) {
            (Method::GET_RESP, _) => self.response(&smp),
            (Method::TRAP, AttributeId::NOTICE) => self.trap(received, &smp),
            (Method::GET | Method::SET, AttributeId::SM_INFO) => {
                if let Some(reply) = self.asked_for_sm_info(&smp, received.wc.slid) {
                    let mad = Mad(reply.to_bytes());
                    self.answer(received.reply(mad));
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self) -> Action {
        if let Some(report) = self.reports.pop() {
            return Action::Log(report);
        }
        if self.st.lost_reports != 0 {
            let count = core::mem::take(&mut self.st.lost_reports);
            return Action::Log(Report::Lost { count });
        }
        let (told, is_sm) = self.st.is_sm;
        if told != is_sm {
            self.st.is_sm.0 = is_sm;
            return Action::SetIsSm(is_sm);
        }
        if !self.st.port_up {
            return Action::WaitUntil(Instant::NEVER);
        }
        loop {
            let reply = self.replies.pop().and_then(|reply| reply.get());
            let due = reply.or_else(|| self.next_join());
            let due = due.or_else(|| self.next_retry());
            let due = due.or_else(|| self.next_request());
            let due = due.or_else(|| self.next_segment());
            if let Some(outgoing) = due.or_else(|| self.next_report()) {
                return Action::Send(outgoing);
            }
            if !self.advance() {
                break;
            }
        }
        if let Some(report) = self.reports.pop() {
            return Action::Log(report);
        }
        if self.st.is_sm.0 != self.st.is_sm.1 {
            return self.poll();
        }
        let at = self.advance_at().min(self.st.next_timeout);
        let at = at.min(self.st.transfer_at).min(self.st.report_at);
        Action::WaitUntil(at)
    }
}
