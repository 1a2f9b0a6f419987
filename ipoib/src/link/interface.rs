//! A link with its rings: frames with a 20-byte destination in, frames out. What a kernel uses whose IP stack resolves
//! addresses itself.

use super::control::Control;
use super::event::{Action, DropCause, Event, FrameId, LinkState, Outcome, Verdict, Wish};
use super::link::{Arrival, Link};
use super::rings::{Received, Rings};
use super::sa::{JoinRequest, LeaveRequest, PathQuery, Ticket};
use crate::net::{GroupError, SendError};
use crate::profile::Profile;
use crate::room::Room;
use crate::stats::Statistics;
use core_ib::platform::{Placed, Platform, Room as Place};
use core_ib::verbs::{CqHandle, QpHandle, Verbs, VerbsError};
use core_ib::wire::ipoib::{Encapsulation, EtherType, LinkAddress};
use core_ib::{Gid, Instant, Lid, PKey, Qpn};

/// What the owner of an interface is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the SA for a path; answer with [`Event::Path`].
    QuerySa(Ticket, PathQuery),
    /// Ask the SA for membership; answer with [`Event::Joined`].
    Join(Ticket, JoinRequest),
    /// Give membership up; answer with [`Event::Left`].
    Leave(Ticket, LeaveRequest),
    /// Have [`Control::carry_out`] do this where blocking is allowed; answer with [`Event::Done`].
    Wish(Wish),
    /// State, MTU or address changed: tell whoever stands above.
    Changed(LinkState),
    /// Nothing before this instant, unless an event comes, a completion is announced or a packet is sent.
    WaitUntil(Instant),
}

/// How a frame came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// To whom.
    pub arrival: Arrival,
    /// What the datagram is.
    pub ether_type: EtherType,
    /// Sender's QP.
    pub src_qp: Qpn,
    /// Sender's LID.
    pub slid: Lid,
}

/// One interface: [`Link`] and the QP that it drives.
pub struct LinkInterface<'a, V: Verbs, P: Platform> {
    // In memory for tables, so that an interface is made and moved on a small stack.
    link: Placed<'a, Link<&'a P>, P>,
    rings: Placed<'a, Rings<'a, V, P>, P>,
    /// Bytes of each frame that is taken or parked.
    lens: <&'a P as Room>::Of<u16>,
    port: u8,
}

impl<'a, V: Verbs, P: Platform> LinkInterface<'a, V, P> {
    /// An interface of the partition of `p_key` on port `port` (1 or 2) of `device`, whose rings and tables come from
    /// `machine`, the one that the device is in. Control context; blocks. On error nothing is left behind.
    pub fn open(
        device: &'a V,
        machine: &'a P,
        port: u8,
        p_key: PKey,
        profile: &Profile,
    ) -> Result<Self, VerbsError> {
        let mut profile = *profile;
        profile.max_mtu = profile.max_mtu.min(device.query_port(port)?.max_mtu);
        let routes = usize::from(profile.groups.max(2)) + usize::from(profile.paths.max(1));
        let lens = machine.table(usize::from(profile.send_frames.max(1)), |_| 0)?;
        let mut link = Self::link_of(machine, port, p_key, &profile)?;
        let max_mtu = profile.max_mtu.bytes();
        let rings = Rings::open(device, machine, max_mtu, routes, &profile)?;
        link.qpn = rings.qpn();
        Ok(Self {
            link,
            rings,
            lens,
            port,
        })
    }

    /// In a function of its own, so that its frame is gone when the rings are opened.
    #[inline(never)]
    fn link_of(
        machine: &'a P,
        port: u8,
        p_key: PKey,
        profile: &Profile,
    ) -> Result<Placed<'a, Link<&'a P>, P>, VerbsError> {
        let place = Place::new(machine)?;
        Ok(place.put(Link::new(&machine, port, p_key, Qpn::default(), profile)?))
    }

    /// Detaches all groups and ends the QP and all that belongs to it. Groups are not left: for that see the crate's
    /// page. Control context; blocks. On error the rest is ended all the same.
    pub fn close(self) -> Result<(), VerbsError> {
        let device = self.rings.device();
        for (mgid, mlid) in self.link.attached() {
            // An attachment that does not exist does not keep the QP from going.
            let _ = device.detach_mcast(self.rings.qp(), mgid, mlid);
        }
        Placed::into_inner(self.rings).close()
    }

    /// Carries out this interface's wishes.
    pub fn control(&self) -> Control<'a, V> {
        Control::new(self.rings.device(), self.rings.qp(), self.port)
    }

    /// The QP, to tell whose event an asynchronous event is.
    pub fn qp(&self) -> QpHandle {
        self.rings.qp()
    }

    /// The completion queues, to tell whose completions are announced: sends, receives.
    pub fn cqs(&self) -> [CqHandle; 2] {
        self.rings.cqs()
    }

    /// Arms both completion queues. Thread or soft interrupt. What completed before may or may not be announced: look
    /// once more afterwards.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.rings.arm()
    }

    /// The state machine, to look at.
    pub fn link(&self) -> &Link<&'a P> {
        &self.link
    }

    /// Bytes of the largest datagram; 0 while down.
    pub fn mtu(&self) -> usize {
        match self.link.state() {
            LinkState::Up { mtu } => mtu.into(),
            LinkState::Down(_) => 0,
        }
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            link: self.link.statistics(),
            rings: self.rings.statistics(),
            ..Statistics::default()
        }
    }

    /// As [`Link::listen`].
    pub fn listen(&mut self, mgid: Gid, now: Instant) -> Result<(), GroupError> {
        self.link.listen(mgid, now)
    }

    /// As [`Link::ignore`].
    pub fn ignore(&mut self, mgid: Gid, now: Instant) {
        self.link.ignore(mgid, now);
    }

    /// Takes note. Thread or soft interrupt; never blocks.
    pub fn handle(&mut self, event: Event, now: Instant) {
        if let Event::Done(done) = event {
            match (done.wish, done.result) {
                (_, Ok(Outcome::Restarted)) => self.rings.restart(),
                (Wish::Mend { .. }, Ok(Outcome::Kept)) => self.rings.resume(),
                _ => {}
            }
        }
        self.link.handle(event, now);
    }

    /// Says what is due at `now`; call again until it says [`Step::WaitUntil`]. Looks at completions of sends, and sends
    /// what was parked. Thread or soft interrupt; never blocks.
    pub fn poll(&mut self, now: Instant) -> Step {
        if self.rings.reap() {
            self.link.handle(Event::QpTrouble, now);
        }
        let step = loop {
            break match self.link.poll(now) {
                Action::Send { frame, route } => {
                    let len = self.len_of(frame);
                    self.rings.post(frame, len, &route);
                    continue;
                }
                Action::Drop { frame, .. } => {
                    self.rings.release(frame);
                    continue;
                }
                Action::Wish(wish) => {
                    if matches!(wish, Wish::Start { .. } | Wish::Mend { .. }) {
                        self.rings.suspend();
                    }
                    Step::Wish(wish)
                }
                Action::QuerySa(ticket, query) => Step::QuerySa(ticket, query),
                Action::Join(ticket, request) => Step::Join(ticket, request),
                Action::Leave(ticket, request) => Step::Leave(ticket, request),
                Action::Changed(state) => Step::Changed(state),
                Action::WaitUntil(instant) => Step::WaitUntil(instant),
            };
        };
        self.rings.flush();
        step
    }

    fn len_of(&self, frame: FrameId) -> usize {
        let len = self.lens.get(usize::from(frame.0));
        len.copied().unwrap_or(0).into()
    }

    /// Sends a datagram of `len` bytes to `to`; `fill` writes it into the memory that the HCA reads. `fill` is called if
    /// and only if there is room for it, and must fill all of it. Thread or soft interrupt; never blocks.
    pub fn send_with(
        &mut self,
        to: &LinkAddress,
        ether_type: EtherType,
        len: usize,
        now: Instant,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let (frame, room) = self.begin(ether_type, len, now)?;
        fill(room);
        let sent = self.finish(to, frame, now);
        self.rings.flush();
        sent
    }

    /// Takes a frame and writes its header; gives the room for `len` bytes of datagram. The frame is to be given to
    /// [`finish`](Self::finish) or [`abandon`](Self::abandon).
    pub fn begin(
        &mut self,
        ether_type: EtherType,
        len: usize,
        now: Instant,
    ) -> Result<(FrameId, &mut [u8]), SendError> {
        let mtu = self.mtu();
        if mtu == 0 {
            return Err(SendError::Down);
        }
        if len > mtu {
            return Err(SendError::TooLong { len, mtu });
        }
        let frame = match self.rings.take() {
            Some(frame) => frame,
            None => {
                // All are posted or parked: maybe some have completed.
                if self.rings.reap() {
                    self.link.handle(Event::QpTrouble, now);
                }
                self.rings.take().ok_or(SendError::NoFrame)?
            }
        };
        let total = len + Encapsulation::LEN;
        if let Some(place) = self.lens.get_mut(usize::from(frame.0)) {
            *place = total as u16; // at most 4096
        }
        let bytes = self
            .rings
            .bytes(frame)
            .and_then(|bytes| bytes.get_mut(..total));
        let room = bytes.and_then(|bytes| Encapsulation { ether_type }.write(bytes).ok());
        room.map(|room| (frame, room)).ok_or(SendError::NoFrame)
    }

    /// Changes the header of a frame that was begun.
    pub fn set_ether_type(&mut self, frame: FrameId, ether_type: EtherType) {
        if let Some(bytes) = self.rings.bytes(frame) {
            let _ = Encapsulation { ether_type }.write(bytes); // a frame has room for its header
        }
    }

    /// The datagram in a frame that was begun.
    pub fn datagram(&mut self, frame: FrameId) -> &[u8] {
        let len = self.len_of(frame);
        let bytes = self.rings.bytes(frame);
        let datagram = bytes.and_then(|bytes| bytes.get(Encapsulation::LEN..len));
        datagram.unwrap_or(&[])
    }

    /// Sends a frame that was begun, or parks it; it goes out at the next [`poll`](Self::poll) or flush at the latest.
    pub fn finish(
        &mut self,
        to: &LinkAddress,
        frame: FrameId,
        now: Instant,
    ) -> Result<(), SendError> {
        match self.link.send(to, frame, now) {
            Verdict::Send(route) => {
                let len = self.len_of(frame);
                self.rings.post(frame, len, &route);
                Ok(())
            }
            Verdict::Parked => Ok(()),
            Verdict::Drop(cause) => {
                self.rings.release(frame);
                Err(match cause {
                    DropCause::Down => SendError::Down,
                    _ => SendError::Dropped,
                })
            }
        }
    }

    /// Frees a frame that was begun.
    pub fn abandon(&mut self, frame: FrameId) {
        self.rings.release(frame);
    }

    /// Posts what is made up.
    pub fn flush(&mut self) {
        self.rings.flush();
    }

    /// Takes the next frame that came, if there is one, and shows its datagram to `take` where the HCA put it. Own frames
    /// that came back from a group are not shown. Thread or soft interrupt; never blocks.
    pub fn receive<U>(
        &mut self,
        now: Instant,
        take: impl FnOnce(&FrameInfo, &[u8]) -> U,
    ) -> Option<U> {
        let mut trouble = false;
        let next = self.next_frame(&mut trouble);
        if trouble {
            self.link.handle(Event::QpTrouble, now);
        }
        let (received, info) = next?;
        let datagram = self.rings.received(&received).get(Encapsulation::LEN..);
        let result = take(&info, datagram.unwrap_or(&[]));
        self.rings.recycle(&received);
        Some(result)
    }

    /// The next frame that is to be shown.
    fn next_frame(&mut self, trouble: &mut bool) -> Option<(Received, FrameInfo)> {
        loop {
            let received = self.rings.receive(trouble)?;
            let (slid, src_qp) = (received.slid, received.src_qp);
            let arrival = self.link.classify(slid, src_qp, received.grh.as_ref());
            let header = Encapsulation::read(self.rings.received(&received));
            let header = header.map(|(header, _)| header);
            self.rings
                .count_received(&received, arrival, header.is_ok());
            match header {
                Ok(Encapsulation { ether_type }) if arrival != Arrival::Own => {
                    let info = FrameInfo {
                        arrival,
                        ether_type,
                        src_qp,
                        slid,
                    };
                    return Some((received, info));
                }
                _ => self.rings.recycle(&received),
            }
        }
    }
}
