//! A link with its rings: frames with a 20-byte destination in, frames out. What a kernel uses whose IP stack resolves
//! addresses itself.

use super::connected::{Carried, ConnDone, ConnWish, Connected, Here};
use super::control::Control;
use super::event::{Action, DropCause, Event, FrameId, LinkState, Outcome, Route, Verdict, Wish};
use super::link::{Arrival, Link};
use super::rings::{Received, Rings};
use super::sa::{JoinRequest, LeaveRequest, PathQuery, Ticket};
use crate::net::{GroupError, SendError};
use crate::profile::Profile;
use crate::room::Room;
use crate::stats::Statistics;
use core::time::Duration;
use core_ib::platform::{Placed, Platform, Room as Place};
use core_ib::verbs::{CqHandle, QpHandle, Verbs, VerbsError};
use core_ib::wire::ipoib::{Encapsulation, EtherType, LinkAddress};
use core_ib::{Gid, Instant, Lid, PKey, Qpn};
use ib_cm::{Cm, CmError, Store};

/// Sends that are on their way are looked at after so long, if nothing else leads to it before.
const LOOK: Duration = Duration::from_millis(20);

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
    /// The HCA found the checksums right, of the IPv4 header and of the TCP or UDP in it.
    pub verified: bool,
}

/// What is kept of a frame that is taken or parked.
#[derive(Clone, Copy)]
struct Kept {
    /// Bytes.
    len: u16,
    /// The HCA is to put in its checksums.
    unsummed: bool,
    /// Where it goes.
    to: LinkAddress,
}

impl Kept {
    /// Of a frame that was just taken.
    fn new(len: u16) -> Self {
        let to = LinkAddress::default();
        Self {
            len,
            unsummed: false,
            to,
        }
    }
}

/// One interface: [`Link`] and the QP that it drives.
pub struct LinkInterface<'a, V: Verbs, P: Platform> {
    // In memory for tables, so that an interface is made and moved on a small stack.
    link: Placed<'a, Link<&'a P>, P>,
    rings: Placed<'a, Rings<'a, V, P>, P>,
    connected: Option<Placed<'a, Connected<'a, V, P>, P>>,
    /// Of each frame that is taken or parked. Behind the frames of the rings are those of connected mode.
    kept: <&'a P as Room>::Of<Kept>,
    /// How many frames the rings have.
    ring_frames: u16,
    port: u8,
}

impl<'a, V: Verbs, P: Platform> LinkInterface<'a, V, P> {
    /// An interface of the partition of `p_key` on port `port` (1 or 2) of `device`, whose rings and tables come from
    /// `machine`, the one that the device is in. Control context; blocks. On error nothing is left behind.
    #[inline(never)]
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
        let ring_frames = profile.send_frames.max(1);
        let wanted = profile.connected.as_ref();
        let frames =
            ring_frames.saturating_add(wanted.map_or(0, |wanted| wanted.send_frames.max(1)));
        let kept = machine.table(usize::from(frames), |_| Kept::new(0))?;
        let mut link = Self::link_of(machine, port, p_key, &profile)?;
        let max_mtu = profile.max_mtu.bytes();
        let rings = Rings::open(device, machine, max_mtu, routes, &profile)?;
        link.qpn = rings.qpn();
        let connected = match wanted {
            None => None,
            Some(wanted) => match Connected::open(device, machine, profile.vector, wanted) {
                Ok(connected) => Some(connected),
                Err(error) => {
                    Self::close_rings(rings);
                    return Err(error);
                }
            },
        };
        link.connected_mtu = connected.as_ref().map(|connected| connected.mtu());
        Ok(Self {
            link,
            rings,
            connected,
            kept,
            ring_frames,
            port,
        })
    }

    /// After an error, which is the one to be told. What is taken out of its place needs a frame of its own.
    #[cold]
    #[inline(never)]
    fn close_rings(rings: Placed<'a, Rings<'a, V, P>, P>) {
        let _ = Placed::into_inner(rings).close();
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
        let connected = self
            .connected
            .map_or(Ok(()), |connected| Placed::into_inner(connected).close());
        connected.and(Placed::into_inner(self.rings).close())
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

    /// The completion queues of connected mode, likewise.
    pub fn connected_cqs(&self) -> Option<[CqHandle; 2]> {
        self.connected.as_ref().map(|connected| connected.cqs())
    }

    /// Arms the completion queues of receives. Thread or soft interrupt. What completed before may or may not be announced:
    /// look once more afterwards. Sends that complete are announced only if somebody waits for a frame
    /// ([`SendError::NoFrame`]); else they are looked at by the way, or when [`poll`](Self::poll) is due for them.
    pub fn arm(&self) -> Result<(), VerbsError> {
        if let Some(connected) = &self.connected {
            connected.arm()?;
        }
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
            connected: self
                .connected
                .as_ref()
                .map_or_else(Default::default, |connected| connected.statistics()),
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
        self.reap(now);
        let step = loop {
            break match self.link.poll(now) {
                Action::Send { frame, route } => {
                    let _ = self.go(frame, &route, now); // counted
                    continue;
                }
                Action::Drop { frame, .. } => {
                    self.abandon(frame);
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
        match step {
            // Nobody announces that they are done, or failed.
            Step::WaitUntil(at) if self.is_sending() => Step::WaitUntil(at.min(now.after(LOOK))),
            step => step,
        }
    }

    fn len_of(&self, frame: FrameId) -> usize {
        let kept = self.kept.get(usize::from(frame.0));
        kept.map_or(0, |kept| kept.len).into()
    }

    /// The name of a frame of connected mode there, if it is one.
    fn of_connected(&self, frame: FrameId) -> Option<FrameId> {
        frame.0.checked_sub(self.ring_frames).map(FrameId)
    }

    /// The bytes of a frame of ours.
    fn bytes(&mut self, frame: FrameId) -> Option<&mut [u8]> {
        match (self.of_connected(frame), &mut self.connected) {
            (Some(frame), Some(connected)) => connected.bytes(frame),
            _ => self.rings.bytes(frame),
        }
    }

    /// Sends a frame whose route is known: by a connection where the peer takes them, else as a datagram.
    fn go(&mut self, frame: FrameId, route: &Route, now: Instant) -> Result<(), SendError> {
        let kept = self.kept.get(usize::from(frame.0)).copied();
        let Kept { len, unsummed, to } = kept.unwrap_or_else(|| Kept::new(0));
        let len = usize::from(len);
        let mtu = usize::from(self.link.datagram_mtu());
        let takes = to.rc && !to.gid.is_multicast() && self.link.by_connections;
        let of_connected = self.of_connected(frame);
        let Some(connected) = self.connected.as_mut() else {
            self.rings.post(frame, len, unsummed, route);
            return Ok(());
        };
        let datagram = len.saturating_sub(Encapsulation::LEN);
        if let Some(frame) = of_connected {
            let carried = match takes {
                true => connected.carry(&to, &route.attr, frame, len, now),
                false => connected.refuse(mtu),
            };
            let error = match carried {
                Carried::Taken => return Ok(()),
                Carried::NotYet => SendError::Dropped,
                Carried::TooLong(mtu) => SendError::TooLong { len: datagram, mtu },
            };
            connected.release(frame);
            return Err(error);
        }
        if takes && !unsummed && connected.is_up(&to, &route.attr, now) {
            let bytes = self.rings.bytes(frame).and_then(|bytes| bytes.get(..len));
            let header = bytes.and_then(|bytes| Encapsulation::read(bytes).ok());
            let is_arp = header.is_none_or(|(header, _)| header.ether_type == EtherType::ARP);
            if !is_arp && let Some(copy) = connected.take() {
                let room = connected.bytes(copy).and_then(|room| room.get_mut(..len));
                if let (Some(room), Some(bytes)) = (room, bytes) {
                    room.copy_from_slice(bytes);
                }
                if connected.carry(&to, &route.attr, copy, len, now) == Carried::Taken {
                    self.rings.release(frame);
                    return Ok(());
                }
                connected.release(copy);
            }
        }
        self.rings.post(frame, len, unsummed, route);
        Ok(())
    }

    /// Sends by connections from now on, as at first, or by datagrams alone; the MTU follows at the next
    /// [`poll`](Self::poll). Connections of peers are taken either way, and those of ours end when they were not used for
    /// a while. Says whether it can be: nothing goes by connections without connected mode.
    pub fn send_by_connections(&mut self, on: bool) -> bool {
        if on && self.connected.is_none() {
            return false;
        }
        self.link.by_connections = on;
        self.link.next = Instant(0); // tells of the MTU
        true
    }

    /// Listens for peers that want to send by connections, with this cookie. Does nothing without connected mode.
    ///
    /// # Errors
    ///
    /// What the communication manager refuses.
    pub fn listen_for_connections<S: Store>(
        &mut self,
        cm: &mut Cm<S>,
        cookie: u64,
        now: Instant,
    ) -> Result<(), CmError> {
        self.look_around(now);
        match &self.connected {
            Some(connected) => connected.listen(cm, cookie),
            None => Ok(()),
        }
    }

    /// Connected mode learns where the link stands.
    fn look_around(&mut self, now: Instant) {
        let Some(connected) = &mut self.connected else {
            return;
        };
        let port = self.link.port();
        let here = Here {
            port: self.port,
            pkey_index: port.pkey_index.unwrap_or(0),
            p_key: self.link.p_key(),
            lid: port.lid,
            gid: port.gid,
            qpn: self.link.address().qpn,
            mtu: self.link.link_mtu(),
            up: self.link.state().is_up(),
        };
        connected.stands(here, now);
    }

    /// Opens and ends connections: what is due at `now`, by the communication manager of the port. Gives the next thing to
    /// be done where blocking is allowed ([`ConnWish::carry_out`], then [`connection_done`](Self::connection_done)), or
    /// when to be called again. Thread or soft interrupt; never blocks.
    pub fn poll_connections<S: Store>(
        &mut self,
        cm: &mut Cm<S>,
        cookie: u64,
        now: Instant,
    ) -> Result<ConnWish, Instant> {
        self.look_around(now);
        match &mut self.connected {
            Some(connected) => connected.drive(cm, cookie, now),
            None => Err(Instant::NEVER),
        }
    }

    /// The communication manager has news of a connection with this interface's cookie.
    pub fn connection_event<S: Store>(
        &mut self,
        event: &ib_cm::Event,
        cm: &mut Cm<S>,
        now: Instant,
    ) {
        if let Some(connected) = &mut self.connected {
            connected.event(event, cm, now);
        }
    }

    /// A wish of [`poll_connections`](Self::poll_connections) was carried out.
    pub fn connection_done(&mut self, done: ConnDone, now: Instant) {
        if let Some(connected) = &mut self.connected {
            connected.done(done, now);
        }
    }

    /// Takes a frame for `len` bytes of datagram.
    fn take(&mut self, len: usize, now: Instant) -> Option<FrameId> {
        if len > usize::from(self.link.datagram_mtu())
            && let Some(connected) = &mut self.connected
        {
            connected.reap(now);
            let mut frame = connected.take();
            if frame.is_none() && connected.arm_sends().is_ok() {
                connected.reap(now); // what completed before is not announced
                frame = connected.take();
            }
            return frame?.0.checked_add(self.ring_frames).map(FrameId);
        }
        // Half of them at once: looking is no cheaper for one.
        if self.rings.sending() > self.ring_frames / 2 {
            self.reap(now);
        }
        if let Some(frame) = self.rings.take() {
            return Some(frame);
        }
        if self.rings.arm_sends().is_ok() {
            self.reap(now); // what completed before is not announced
        }
        self.rings.take()
    }

    /// Looks at completions of sends.
    fn reap(&mut self, now: Instant) {
        if self.rings.reap() {
            self.link.handle(Event::QpTrouble, now);
        }
    }

    /// Sends are on their way.
    fn is_sending(&self) -> bool {
        let connected = self.connected.as_ref();
        let sending = connected.map_or(0, |connected| connected.sending());
        self.rings.sending() > 0 || sending > 0
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
        let frame = self.take(len, now).ok_or(SendError::NoFrame)?;
        let total = len + Encapsulation::LEN;
        if let Some(kept) = self.kept.get_mut(usize::from(frame.0)) {
            *kept = Kept::new(total as u16); // at most 65524
        }
        let bytes = self.bytes(frame).and_then(|bytes| bytes.get_mut(..total));
        let room = bytes.and_then(|bytes| Encapsulation { ether_type }.write(bytes).ok());
        room.map(|room| (frame, room)).ok_or(SendError::NoFrame)
    }

    /// Can the HCA put in the checksums of a datagram of `len` bytes ([`leave_checksums`](Self::leave_checksums))? Not if it
    /// may go by a connection.
    pub fn has_checksums(&self, len: usize) -> bool {
        let by_connections = self.link.by_connections && self.connected.is_some();
        self.rings.has_checksums()
            && !by_connections
            && len <= usize::from(self.link.datagram_mtu())
    }

    /// The HCA is to put the checksums into a frame that was begun, of a length for which
    /// [`has_checksums`](Self::has_checksums): of the header, and of TCP or UDP. It is IPv4 and no fragment; other datagrams
    /// are left as they are.
    pub fn leave_checksums(&mut self, frame: FrameId) {
        if let Some(kept) = self.kept.get_mut(usize::from(frame.0)) {
            kept.unsummed = true;
        }
    }

    /// Changes the header of a frame that was begun.
    pub fn set_ether_type(&mut self, frame: FrameId, ether_type: EtherType) {
        if let Some(bytes) = self.bytes(frame) {
            let _ = Encapsulation { ether_type }.write(bytes); // a frame has room for its header
        }
    }

    /// The datagram in a frame that was begun.
    pub fn datagram(&mut self, frame: FrameId) -> &[u8] {
        let len = self.len_of(frame);
        let bytes = self.bytes(frame);
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
        if let Some(kept) = self.kept.get_mut(usize::from(frame.0)) {
            kept.to = *to;
        }
        match self.link.send(to, frame, now) {
            Verdict::Send(route) => self.go(frame, &route, now),
            Verdict::Parked => Ok(()),
            Verdict::Drop(cause) => {
                self.abandon(frame);
                Err(match cause {
                    DropCause::Down => SendError::Down,
                    _ => SendError::Dropped,
                })
            }
        }
    }

    /// Frees a frame that was begun.
    pub fn abandon(&mut self, frame: FrameId) {
        match (self.of_connected(frame), &mut self.connected) {
            (Some(frame), Some(connected)) => connected.release(frame),
            _ => self.rings.release(frame),
        }
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
        let Some((received, info)) = next else {
            return self.receive_by_connection(now, take);
        };
        let datagram = self.rings.received(&received).get(Encapsulation::LEN..);
        let result = take(&info, datagram.unwrap_or(&[]));
        self.rings.recycle(&received);
        Some(result)
    }

    /// As [`receive`](Self::receive), what came by connections.
    fn receive_by_connection<U>(
        &mut self,
        now: Instant,
        take: impl FnOnce(&FrameInfo, &[u8]) -> U,
    ) -> Option<U> {
        let connected = self.connected.as_mut()?;
        let (frame, len, src_qp) = connected.receive(now)?;
        let read = Encapsulation::read(connected.received(frame, len)).ok();
        let result = read.map(|(Encapsulation { ether_type }, datagram)| {
            let info = FrameInfo {
                arrival: Arrival::Host,
                ether_type,
                src_qp,
                slid: Lid::NONE,
                verified: false,
            };
            take(&info, datagram)
        });
        connected.recycle(frame);
        result
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
                        verified: received.verified,
                    };
                    return Some((received, info));
                }
                _ => self.rings.recycle(&received),
            }
        }
    }
}
