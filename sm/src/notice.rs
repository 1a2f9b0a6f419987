//! News: traps from nodes, and reports to whoever subscribed. protocols 3.10, 4.9, 4.11, 9.9.
//!
//! Every event goes into one queue, from which each subscription is served in order and at its own pace, one report in
//! flight. When the queue is full the oldest event is dropped, and a subscriber that was so slow does not hear of it.

use crate::Role;
use crate::api::Report;
use crate::manager::Manager;
use crate::subnet::{NodeTodo, PortFlags};
use crate::table::PortId;
use core::time::Duration;
use core_ib::wire::mad::{
    Attribute, ChangeFlags, ComponentMask, GidTrap, InformInfo, LocalChangesTrap, Mad, MadStatus,
    Method, NodeInfo, Notice, PortTrap, ProducerType, SaHeader, SaNotice, Smp, SystemImageTrap,
    TimeCode, TrapDetails, TrapNumber,
};
use core_ib::{Gid, Guid, Instant, Lid, Qpn};
use ib_mad::{AgentId, MadAddr, Next, Outgoing, Received, Transaction};

/// Traps of a failing link in a row after which it is no longer routed over. protocols 9.9.
const UNHEALTHY: u8 = 10;
/// Traps further apart than this are not in a row.
const ROW: Duration = Duration::from_secs(5);

/// Something that subscribers may want to hear of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    notice: [u8; SaNotice::SIZE],
    /// The port that came or went, whose partitions a subscriber must share.
    about: Option<Guid>,
}

impl Event {
    pub(crate) const NONE: Self = Self {
        notice: [0; SaNotice::SIZE],
        about: None,
    };
}

/// Somebody who wants to hear of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription {
    /// The end port that subscribed; none of a free row.
    pub(crate) port: Option<PortId>,
    pub(crate) info: InformInfo,
    to: MadAddr,
    /// Number of the next event to be looked at.
    next: u32,
    flight: Option<Flight>,
}

/// A report in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Lower half of its TransactionID.
    tid: u32,
    transaction: Transaction,
    event: Event,
}

impl Subscription {
    pub(crate) const FREE: Self = Self {
        port: None,
        info: InformInfo {
            gid: Gid::NONE,
            lid_range_begin: Lid::NONE,
            lid_range_end: Lid::NONE,
            is_generic: false,
            subscribe: false,
            kind: 0,
            number: 0,
            qpn: Qpn::GSI,
            resp_time: TimeCode(0),
            producer: 0,
        },
        to: MadAddr::DIRECTED,
        next: 0,
        flight: None,
    };

    /// Is this what it subscribed to?
    fn wants(&self, event: &Event) -> bool {
        let SaNotice { notice, issuer_gid } = SaNotice::from_bytes(&event.notice);
        let info = &self.info;
        let whose = if info.gid.is_none() {
            let range = info.lid_range_begin..=info.lid_range_end;
            info.lid_range_begin == InformInfo::ALL_LIDS || range.contains(&notice.issuer_lid)
        } else if let Some(TrapDetails::Gid(GidTrap { gid })) = notice.trap() {
            info.gid == gid
        } else {
            info.gid == issuer_gid
        };
        let kind = info.kind == InformInfo::ALL || info.kind == u16::from(notice.kind.0);
        let number = info.number == InformInfo::ALL || info.number == notice.number.0;
        let all = info.producer == InformInfo::ALL_PRODUCERS;
        let producer = all || info.producer == notice.producer.0;
        whose && info.is_generic == notice.is_generic && kind && number && producer
    }

    /// The same subscription, whether or not it still is one.
    fn is_same(&self, port: PortId, info: &InformInfo) -> bool {
        let plain = |info: &InformInfo| InformInfo {
            subscribe: true,
            resp_time: TimeCode(0),
            ..*info
        };
        self.port == Some(port) && plain(&self.info) == plain(info)
    }
}

impl Manager<'_> {
    /// A trap came: it is repressed at once, then looked into, then forwarded. protocols 9.9.
    pub(crate) fn trap(&mut self, received: &Received, smp: &Smp) {
        if self.st.role != Role::Master {
            return;
        }
        if let Some(mut repress) = smp.reply(MadStatus::OK) {
            repress.m_key = self.config.m_key;
            self.answer(received.reply(Mad(repress.to_bytes())));
        }
        let Some(bytes) = smp.data.first_chunk() else {
            return;
        };
        let notice = Notice::from_bytes(bytes);
        if self.is_noise(&notice) {
            return;
        }
        match notice.trap() {
            Some(TrapDetails::Switch(_)) => self.sweep_again(),
            Some(TrapDetails::Port(trap)) => self.failing_link(&trap),
            Some(TrapDetails::LocalChanges(trap)) => self.local_changes(&trap),
            Some(TrapDetails::SystemImage(trap)) => self.system_image(&trap),
            _ => {
                let (number, lid) = (notice.number.0, notice.issuer_lid);
                self.report(Report::Trap { number, lid });
            }
        }
        let issuer = self.port_of_lid(notice.issuer_lid);
        let issuer_gid = issuer.map_or(Gid::NONE, |port| self.gid_of(port));
        self.publish(&SaNotice { notice, issuer_gid }, None);
    }

    /// More than ten identical traps, each within 5 s of the one before, are noise until it is quiet. protocols 9.9.
    /// Those that tell of changes are news every time: hosts that start one after another on one switch are no noise.
    fn is_noise(&mut self, notice: &Notice) -> bool {
        let news = [
            TrapNumber::LINK_STATE_CHANGE,
            TrapNumber::LOCAL_CHANGES,
            TrapNumber::SYSTEM_IMAGE_GUID,
        ];
        if notice.is_generic && news.contains(&notice.number) {
            return false;
        }
        let plain = Notice {
            toggle: false,
            count: 0,
            ..*notice
        };
        let hash = plain
            .to_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let now = self.now;
        let known = self
            .st
            .recent_traps
            .iter()
            .position(|&(known, _, _)| known == hash);
        let oldest = self
            .st
            .recent_traps
            .iter()
            .enumerate()
            .min_by_key(|(_, trap)| trap.2);
        let at = known.or(oldest.map(|(at, _)| at)).unwrap_or(0);
        let Some(slot) = self.st.recent_traps.get_mut(at) else {
            return false;
        };
        let in_a_row = slot.0 == hash && now.since(slot.2) <= ROW;
        let count = if in_a_row {
            slot.1.saturating_add(1)
        } else {
            1
        };
        *slot = (hash, count, now);
        count > 10
    }

    /// Traps 129 to 131.
    fn failing_link(&mut self, trap: &PortTrap) {
        let now = self.now;
        let Some(end) = self.port_of_lid(trap.lid) else {
            return;
        };
        let is_switch = self.node_of(end).is_some_and(|node| node.is_switch());
        let node = self.ports.get(end).map(|row| row.node);
        let port = node
            .filter(|_| is_switch)
            .and_then(|node| self.port_at(node, trap.port));
        let port = port.unwrap_or(end);
        let guid = self.node_of(port).map_or(Guid(0), |node| node.guid);
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        let in_a_row = now.since(row.trap_at) <= ROW;
        row.traps = if in_a_row {
            row.traps.saturating_add(1)
        } else {
            1
        };
        row.trap_at = now;
        if row.traps >= UNHEALTHY && !row.has(PortFlags::UNHEALTHY) {
            row.flags.insert(PortFlags::UNHEALTHY);
            self.st.reroute = true;
            let port = row.number;
            self.report(Report::Unhealthy { guid, port });
            self.sweep_again();
        }
    }

    /// Trap 144.
    fn local_changes(&mut self, trap: &LocalChangesTrap) {
        let only_text = trap.other_local_changes && trap.changes == ChangeFlags::NODE_DESCRIPTION;
        let node = self
            .port_of_lid(trap.lid)
            .and_then(|port| self.ports.get(port));
        let Some(node) = node.map(|row| row.node).filter(|_| only_text) else {
            self.sweep_again();
            return;
        };
        if let Some(row) = self.nodes.get_mut(node) {
            row.described = false;
        }
        self.node_todo(node, NodeTodo::DESCRIPTION);
    }

    /// Trap 145.
    fn system_image(&mut self, trap: &SystemImageTrap) {
        let node = self
            .port_of_lid(trap.lid)
            .and_then(|port| self.ports.get(port));
        let node = node.map(|row| row.node);
        if let Some(row) = node.and_then(|node| self.nodes.get_mut(node)) {
            let mut info = NodeInfo::from_bytes(&row.info);
            info.sys_image_guid = trap.sys_image_guid;
            row.info = info.to_bytes();
        }
    }

    /// An end port came into service, or went out of it: traps 64 and 65.
    pub(crate) fn gid_event(&mut self, came: bool, port: PortId) {
        let gid = self.gid_of(port);
        let number = if came {
            TrapNumber::GID_IN_SERVICE
        } else {
            TrapNumber::GID_OUT_OF_SERVICE
        };
        self.own_event(number, gid, Some(gid.guid()));
    }

    /// A group was created or deleted: traps 66 and 67.
    pub(crate) fn mgid_event(&mut self, created: bool, mgid: Gid) {
        let number = if created {
            TrapNumber::GROUP_CREATED
        } else {
            TrapNumber::GROUP_DELETED
        };
        self.own_event(number, mgid, None);
    }

    fn own_event(&mut self, number: TrapNumber, gid: Gid, about: Option<Guid>) {
        let Some(own) = self.st.own else {
            return;
        };
        let details = TrapDetails::Gid(GidTrap { gid });
        let producer = ProducerType::CLASS_MANAGER;
        let mut notice = Notice::new(number, producer, self.own_lid(), &details);
        self.st.notice_count = self.st.notice_count.wrapping_add(1) & 0x7fff;
        notice.count = self.st.notice_count;
        let issuer_gid = self.gid_of(own);
        self.publish(&SaNotice { notice, issuer_gid }, about);
    }

    /// Puts an event into the queue.
    fn publish(&mut self, notice: &SaNotice, about: Option<Guid>) {
        if self.subscriptions.iter().all(|row| row.port.is_none()) {
            self.st.event_serial = self.st.event_serial.wrapping_add(1);
            while self.events.pop().is_some() {}
            return;
        }
        let event = Event {
            notice: notice.to_bytes(),
            about,
        };
        if !self.events.push(event) {
            self.events.pop();
            self.events.push(event);
        }
        self.st.event_serial = self.st.event_serial.wrapping_add(1);
        self.st.report_at = self.now;
    }

    /// Event `number`, if it is still in the queue.
    fn event(&self, number: u32) -> Option<Event> {
        let back = self.st.event_serial.wrapping_sub(number) as usize;
        let offset = self.events.len().checked_sub(back)?;
        self.events.get(offset)
    }

    /// The next report that is due.
    pub(crate) fn next_report(&mut self) -> Option<Outgoing> {
        if self.now < self.st.report_at {
            return None;
        }
        let mut at = Instant::NEVER;
        for index in 0..self.subscriptions.len() {
            if self
                .subscriptions
                .get(index)
                .is_none_or(|row| row.port.is_none())
            {
                continue;
            }
            match self.next_report_of(index) {
                Ok(outgoing) => return Some(outgoing), // the others at the next call
                Err(next) => at = at.min(next),
            }
        }
        self.st.report_at = at;
        None
    }

    /// The report that a subscriber is due, or when to look again.
    fn next_report_of(&mut self, index: usize) -> Result<Outgoing, Instant> {
        let mut row = *self.subscriptions.get(index).ok_or(Instant::NEVER)?;
        let result = self.serve(&mut row);
        if let Some(place) = self.subscriptions.get_mut(index) {
            *place = row;
        }
        result
    }

    fn serve(&mut self, row: &mut Subscription) -> Result<Outgoing, Instant> {
        if let Some(flight) = &mut row.flight {
            match flight.transaction.poll(self.now) {
                Next::WaitUntil(at) => return Err(at),
                Next::Send => return Ok(self.report_mad(row.to, flight.tid, &flight.event)),
                Next::Done(_) => row.flight = None, // whether it was heard or not
            }
        }
        // What has left the queue meanwhile is lost to this subscriber.
        let held = self.events.len() as u32;
        let behind = self.st.event_serial.wrapping_sub(row.next).min(held);
        row.next = self.st.event_serial.wrapping_sub(behind);
        while row.next != self.st.event_serial {
            let event = self.event(row.next);
            row.next = row.next.wrapping_add(1);
            let Some(event) = event.filter(|event| row.wants(event) && self.may_hear(row, event))
            else {
                continue;
            };
            self.st.report_serial = self.st.report_serial.wrapping_add(1);
            let tid = self.st.report_serial;
            let patience = self.config.report_patience;
            let mut transaction = Transaction::new(patience, self.now);
            transaction.poll(self.now); // it goes out at once
            row.flight = Some(Flight {
                tid,
                transaction,
                event,
            });
            return Ok(self.report_mad(row.to, tid, &event));
        }
        Err(Instant::NEVER)
    }

    /// A subscriber hears only of ports that it shares a partition with.
    fn may_hear(&self, row: &Subscription, event: &Event) -> bool {
        match (event.about, row.port.and_then(|port| self.ports.get(port))) {
            (Some(about), Some(port)) => self.shared_key(port.guid, about).is_some(),
            _ => true,
        }
    }

    fn report_mad(&self, to: MadAddr, tid: u32, event: &Event) -> Outgoing {
        let mut header = SaHeader::request(Method::REPORT, SaNotice::ID, ComponentMask::NONE);
        header.header.tid = self.config.sa_agent.tid(tid);
        header.attribute_offset = SaHeader::offset_of(SaNotice::SIZE);
        let mut mad = Mad::ZERO;
        let head = header.to_bytes();
        for (place, byte) in mad.0.iter_mut().zip(head.iter().chain(&event.notice)) {
            *place = *byte;
        }
        Outgoing { to, mad }
    }

    /// A subscriber has heard.
    pub(crate) fn report_answered(&mut self, received: &Received) {
        let header = received.header();
        if AgentId::of_tid(header.tid) != self.config.sa_agent {
            return;
        }
        let (tid, now) = (header.tid as u32, self.now);
        for row in self.subscriptions.iter_mut() {
            if let Some(flight) = &mut row.flight
                && flight.tid == tid
                && received.is_from(&row.to)
            {
                flight
                    .transaction
                    .handle(ib_mad::Event::Response(header.status), now);
                self.st.report_at = now;
            }
        }
    }

    /// Set(InformInfo) came from `port`. Says whether there was room.
    pub(crate) fn subscribe(&mut self, port: PortId, info: &InformInfo, from: MadAddr) -> bool {
        let to = MadAddr {
            remote_qpn: info.qpn,
            ..from
        };
        let event_serial = self.st.event_serial;
        let known = self
            .subscriptions
            .iter()
            .position(|row| row.is_same(port, info));
        if !info.subscribe {
            let known = known.and_then(|at| self.subscriptions.get_mut(at));
            return known.map(|row| *row = Subscription::FREE).is_some();
        }
        let free = known.or_else(|| self.subscriptions.iter().position(|row| row.port.is_none()));
        let Some(row) = free.and_then(|at| self.subscriptions.get_mut(at)) else {
            self.no_room("informs", self.subscriptions.len());
            return false;
        };
        if known.is_none() {
            let port = Some(port);
            *row = Subscription {
                port,
                info: *info,
                to,
                next: event_serial,
                flight: None,
            };
        } else {
            (row.info, row.to) = (*info, to);
        }
        true
    }

    /// A port is out of service, and its subscriptions with it.
    pub(crate) fn unsubscribe_all(&mut self, port: PortId) {
        for row in self
            .subscriptions
            .iter_mut()
            .filter(|row| row.port == Some(port))
        {
            *row = Subscription::FREE;
        }
    }

    /// A new master knows no subscribers.
    pub(crate) fn unsubscribe_everybody(&mut self) {
        self.subscriptions.fill(Subscription::FREE);
        while self.events.pop().is_some() {}
    }
}
