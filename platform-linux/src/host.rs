//! One host in a kernel: the machine, the open HCA, and the stack over it, in memory that does not move.
//!
//! Interrupt handlers note and wake; what is due is done in rounds, in a soft interrupt or a thread, under the host's
//! lock; what blocks is done by jobs, in a thread, without it. See `entry` for who calls what.

use crate::counters;
use crate::lock::OsLock;
use crate::machine::{Machine, OsWake};
use crate::os::{self, LockKind};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core_ib::platform::{Lock, Placed, Platform, Room};
use core_ib::verbs::{Device as _, VerbsError};
use core_ib::wire::ipoib::{EtherType, LinkAddress};
use core_ib::{Gid, Instant, PKey};
use ib_stack::ipoib::link::{Arrival, DownCause, Event, FrameInfo, LinkInterface, LinkState};
use ib_stack::ipoib::{self, GroupError, SendError};
use ib_stack::{
    CmConfig, Config, InterfaceConfig, InterfaceKind, MAX_INTERFACES, Stack, StackError, StackEvent,
};
use mthca_hw::{Hca, Interrupts, OpenCause, OpenError, Profile};

type HostStack = Stack<'static, Hca<'static, Machine>, Machine>;
type HostLink = LinkInterface<'static, Hca<'static, Machine>, Machine>;

/// Between two looks at what the HCA does not announce: its error buffer, an interrupt that was lost.
const LOOK: core::time::Duration = core::time::Duration::from_secs(1);
/// With so many rounds at most a poll ends, even if more has come meanwhile.
const ROUNDS: u32 = 8;

/// What an HCA of a kernel is to have room for: IPoIB and management on both ports.
const PROFILE: Profile = Profile {
    qps: 32,
    cqs: 64,
    mrs: 64,
    pds: 32,
    ahs: 2048,
    mtt_pages: 8192,
    work_requests: 1 << 16,
    mcast_groups: 512,
    commands: 8,
    ..Profile::SMALL
};

/// What connected mode takes of it: connections, and a shared receive queue for each interface.
const CONNECTED: Profile = Profile {
    qps: 128,
    srqs: 8,
    mrs: 96,
    ..PROFILE
};

/// Connected mode of an interface. The frames of each way are below a power of two together: they lie together.
const CONNECTIONS: ipoib::ConnectedProfile = ipoib::ConnectedProfile {
    send_frames: 15,
    recv_frames: 31,
    ..ipoib::ConnectedProfile::DEFAULT
};

/// The same for an interface.
const LINK: ipoib::Profile = ipoib::Profile {
    groups: 64,
    paths: 128,
    ..ipoib::Profile::DEFAULT
};

/// A host.
pub struct Host {
    /// Some from when it is open until it is closed.
    hca: UnsafeCell<Option<Hca<'static, Machine>>>,
    /// What the stack was opened with: one interface after the other.
    interfaces: UnsafeCell<heapless::Vec<InterfaceConfig, MAX_INTERFACES>>,
    /// The kernel's side of each.
    nets: UnsafeCell<[*mut os::Net; MAX_INTERFACES]>,
    /// GID 0 of the port of each, as it was at the start: that of an interface whose port was not looked at yet.
    gids: UnsafeCell<[Gid; MAX_INTERFACES]>,
    description: [u8; 64],
    frames: [u16; 2],
    connected: bool,
    stack: Lock<Option<Placed<'static, HostStack, Machine>>, OsLock>,
    /// When the HCA is to be looked at.
    look: AtomicU64,
    wake: OsWake,
    machine: Machine,
}

// SAFETY: the cells are written by the one context that opens, starts and closes, while nobody else uses the host (the
// promise of the entries); the rest is made to be shared.
unsafe impl Sync for Host {}

/// What a host is to be.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Node description.
    pub description: &'a [u8],
    /// Ask for MSI-X.
    pub messages: bool,
    /// Frames of each interface to be sent, and to receive into.
    pub frames: [u16; 2],
    /// Interfaces take connections of peers, and can be told to send by them.
    pub connected: bool,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Poll again then at the latest.
    pub next: Instant,
    /// Datagrams that came.
    pub received: u32,
    /// Jobs wait.
    pub jobs: bool,
    /// Interfaces, bit by bit, of which something changed.
    pub changed: u32,
    /// All datagrams that the round was allowed have come: there may be more.
    pub more: bool,
}

/// How an interface stands.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// State.
    pub state: LinkState,
    /// Its address.
    pub address: LinkAddress,
    /// That of the broadcast group.
    pub broadcast: LinkAddress,
    /// Base LID of its port.
    pub lid: u16,
}

impl Host {
    /// Opens the HCA of `device`. Control context; blocks.
    ///
    /// # Safety
    ///
    /// `device` stays one of the kernel's until the host is closed.
    pub(crate) unsafe fn open(
        device: *mut os::Device,
        wanted: &Wanted<'_>,
    ) -> Result<NonNull<Self>, OpenError> {
        let (len, align) = (size_of::<Self>(), align_of::<Self>());
        let no_memory = OpenError {
            step: "memory of the host",
            cause: OpenCause::Platform(core_ib::platform::PlatformError::NoTableMemory { len }),
        };
        // SAFETY: the alignment of a type.
        let at = unsafe { os::openib_os_alloc(len, align) }.cast::<Self>();
        let at = NonNull::new(at).ok_or(no_memory)?;
        let mut description = [0; 64];
        for (to, from) in description.iter_mut().zip(wanted.description) {
            *to = *from;
        }
        // SAFETY: memory for a host, and none is there yet; the device stays, the caller promises.
        unsafe {
            at.write(Self {
                hca: UnsafeCell::new(None),
                interfaces: UnsafeCell::new(heapless::Vec::new()),
                nets: UnsafeCell::new([core::ptr::null_mut(); MAX_INTERFACES]),
                gids: UnsafeCell::new([Gid::NONE; MAX_INTERFACES]),
                description,
                frames: wanted.frames,
                connected: wanted.connected,
                stack: Lock::new(OsLock::new(LockKind::Host, "host"), None),
                look: AtomicU64::new(0),
                wake: OsWake(device),
                machine: Machine::new(device),
            });
        }
        // SAFETY: made just now, and it stays where it is until it is freed.
        let host: &'static Self = unsafe { at.as_ref() };
        let profile = Profile {
            interrupts: match wanted.messages {
                true => Interrupts::Messages,
                false => Interrupts::Pin,
            },
            ..match wanted.connected {
                true => CONNECTED,
                false => PROFILE,
            }
        };
        match Hca::open(&host.machine, &host.wake, &profile) {
            Ok(hca) => {
                // SAFETY: nobody else uses the host yet.
                unsafe { *host.hca.get() = Some(hca) };
                Ok(at)
            }
            Err(error) => {
                // SAFETY: nothing of the host is in use.
                unsafe { Self::free(at) };
                Err(error)
            }
        }
    }

    /// Drops the host and gives its memory back.
    ///
    /// # Safety
    ///
    /// Nobody refers to it any more, its HCA least of all.
    unsafe fn free(at: NonNull<Self>) {
        // SAFETY: made by `open`; not used after this.
        unsafe { at.drop_in_place() };
        // SAFETY: allocated so.
        unsafe { os::openib_os_free(at.as_ptr().cast(), size_of::<Self>(), align_of::<Self>()) };
    }

    /// Ends it all, and says the first error. Control context; blocks.
    ///
    /// # Safety
    ///
    /// `at` came from `open`; nobody else uses it any more.
    pub(crate) unsafe fn close(at: NonNull<Self>) -> Result<(), VerbsError> {
        // SAFETY: made by `open`.
        let host = unsafe { at.as_ref() };
        let stack = host.stack.with(Option::take);
        let closed = stack.map_or(Ok(()), |stack| Placed::into_inner(stack).close());
        // SAFETY: nobody else uses the host, and no stack refers to the HCA.
        let hca = unsafe { (*host.hca.get()).take() };
        // One that is still in use is ended with all that is on it when it is dropped.
        let ended = hca.map_or(Ok(()), |hca| hca.close().map_err(|(_, error)| error));
        // SAFETY: nothing of the host is in use.
        unsafe { Self::free(at) };
        closed.and(ended)
    }

    /// The HCA; `None` while the host is being opened.
    pub(crate) fn hca(&self) -> Option<&Hca<'static, Machine>> {
        // SAFETY: written only while nobody else uses the host.
        unsafe { (*self.hca.get()).as_ref() }
    }

    /// How its messages begin.
    pub(crate) fn name(&self) -> &str {
        self.machine.name()
    }

    /// Adds an interface, before the stack is opened. Control context.
    ///
    /// # Safety
    ///
    /// `net` stays one of the kernel's until the host is closed; nobody else uses the host yet.
    pub(crate) unsafe fn add(
        &self,
        net: *mut os::Net,
        port: u8,
        p_key: PKey,
    ) -> Result<(), StackError> {
        // SAFETY: nobody else uses the host, the caller promises.
        let (interfaces, nets) = unsafe { (&mut *self.interfaces.get(), &mut *self.nets.get()) };
        let (what, limit) = ("IP interfaces", MAX_INTERFACES);
        let place = nets.get_mut(interfaces.len());
        let place = place.ok_or(StackError::TooMany { what, limit })?;
        let [send_frames, recv_frames] = self.frames;
        let profile = ipoib::Profile {
            send_frames,
            recv_frames,
            connected: self.connected.then_some(CONNECTIONS),
            ..LINK
        };
        let kind = InterfaceKind::Link;
        let interface = InterfaceConfig {
            port,
            p_key,
            kind,
            profile,
        };
        let added = interfaces.push(interface);
        added.map_err(|_| StackError::TooMany { what, limit })?;
        *place = net;
        Ok(())
    }

    /// Opens the stack with the interfaces that were added; they are wanted down. Control context; blocks.
    ///
    /// # Safety
    ///
    /// Nobody else uses the host yet; it is not closed before all others have stopped using it.
    pub(crate) unsafe fn start(&self) -> Result<(), StackError> {
        // SAFETY: a host stays where it is, and what refers to it ends before it does: `close` sees to that.
        let host: &'static Self = unsafe { NonNull::from(self).as_ref() };
        let gone = StackError::Verbs(VerbsError::DeviceGone);
        let hca = host.hca().ok_or(gone)?;
        // SAFETY: nobody changes them any more.
        let interfaces = unsafe { &*host.interfaces.get() };
        let end = host.description.iter().position(|byte| *byte == 0);
        let described = host.description.get(..end.unwrap_or(64)).unwrap_or(&[]);
        let config = Config {
            description: core::str::from_utf8(described).unwrap_or(""),
            interfaces,
            // Another life has other IDs.
            cm: self.connected.then(|| {
                let guid = hca.query_device().node_guid.0 as u32;
                let now = (host.machine.now().0 >> 10) as u32;
                CmConfig::new(now ^ guid.rotate_left(16))
            }),
            ..Config::default()
        };
        // SAFETY: nobody else uses the host yet.
        let gids = unsafe { &mut *host.gids.get() };
        for (gid, interface) in gids.iter_mut().zip(interfaces) {
            *gid = hca.query_gid(interface.port, 0)?;
        }
        let room = Room::new(&host.machine)?;
        let mut stack = room.put(Stack::open(&host.machine, hca, &config)?);
        let now = host.machine.now();
        for index in 0..interfaces.len() {
            if let Some(link) = stack.link(index) {
                link.handle(Event::Admin { up: false }, now);
                link.send_by_connections(false);
            }
        }
        host.stack.with(|place| *place = Some(stack));
        Ok(())
    }

    fn with<R>(&self, f: impl FnOnce(&mut HostStack) -> R) -> Option<R> {
        self.stack.with(|stack| stack.as_deref_mut().map(f))
    }

    fn with_link<R>(&self, index: usize, f: impl FnOnce(&mut HostLink, Instant) -> R) -> Option<R> {
        let now = self.machine.now();
        self.with(|stack| stack.link(index).map(|link| f(link, now)))?
    }

    /// Does what is due, and hands at most `budget` datagrams on. Soft interrupt or thread.
    pub(crate) fn poll(&self, budget: u32) -> Result<Round, VerbsError> {
        self.look();
        let done: Option<Result<Round, VerbsError>> = self.with(|stack| {
            let mut round = Round::default();
            for _ in 0..ROUNDS {
                let now = self.machine.now();
                round.next = stack.poll(now)?;
                self.receive(stack, budget, &mut round, now);
                self.news(stack, &mut round);
                round.jobs = stack.has_jobs();
                round.more = round.received >= budget;
                // Announced from now on, but for what came meanwhile.
                if round.more || round.jobs || !stack.arm()? {
                    break;
                }
                // Looked at once more, now or, after the last of these rounds, when polled again.
                round.more = true;
            }
            if round.jobs {
                // Whoever runs them has the host polled again.
                round.next = Instant::NEVER;
            }
            Ok(round)
        });
        let mut round = done.unwrap_or(Ok(Round {
            next: Instant::NEVER,
            ..Round::default()
        }))?;
        let look = Instant(self.look.load(Ordering::Relaxed));
        round.next = round.next.min(look);
        Ok(round)
    }

    /// Looks at what the HCA does not announce, now and then.
    fn look(&self) {
        let now = self.machine.now();
        if now.0 < self.look.load(Ordering::Relaxed) {
            return;
        }
        self.look.store(now.after(LOOK).0, Ordering::Relaxed);
        if let Some(hca) = self.hca() {
            hca.poll_events();
        }
    }

    fn receive(&self, stack: &mut HostStack, budget: u32, round: &mut Round, now: Instant) {
        // SAFETY: written before the stack was opened.
        let nets = unsafe { &*self.nets.get() };
        for (index, net) in nets.iter().enumerate() {
            let Some(link) = stack.link(index) else {
                return;
            };
            while round.received < budget {
                let taken = link.receive(now, |info, datagram| hand_on(*net, info, datagram));
                if taken.is_none() {
                    break;
                }
                round.received = round.received.wrapping_add(1);
            }
        }
    }

    fn news(&self, stack: &mut HostStack, round: &mut Round) {
        while let Some(event) = stack.next_event() {
            match event {
                StackEvent::Interface(index, state) => {
                    round.changed |= 1_u32.checked_shl(index as u32).unwrap_or(0);
                    match state {
                        LinkState::Up { mtu } => {
                            log::debug!("{}: interface {index} is up, MTU {mtu}", self.name());
                        }
                        LinkState::Down(cause) => {
                            let why = words(cause);
                            log::debug!("{}: interface {index} is down: {why}", self.name());
                        }
                    }
                }
                // An address may have changed.
                StackEvent::Port(..) => round.changed = u32::MAX,
                _ => {}
            }
        }
    }

    /// Runs a job, if one waits; says whether one did. Control context; blocks.
    pub(crate) fn run_job(&self) -> bool {
        let Some(hca) = self.hca() else { return false };
        let job = self.with(HostStack::next_job).flatten();
        let Some(job) = job else { return false };
        let done = job.run(hca);
        let now = self.machine.now();
        self.with(|stack| stack.job_done(done, now));
        self.machine.wake();
        true
    }

    /// Sends a datagram of `len` bytes, to be taken from `packet`. With `more`, another one follows at once.
    pub(crate) fn send(
        &self,
        index: usize,
        to: &LinkAddress,
        ether_type: EtherType,
        (packet, len): (*mut os::Packet, usize),
        more: bool,
    ) -> Result<(), SendError> {
        let sent = self.with_link(index, |link, now| {
            let offered = link.has_checksums(len);
            let (frame, room) = link.begin(ether_type, len, now)?;
            let to_fill = room.as_mut_ptr();
            // SAFETY: the packet is the caller's, and the room is as long as the datagram.
            let unsummed = unsafe { os::openib_os_fill(packet, to_fill, room.len(), offered) };
            if unsummed && offered {
                link.leave_checksums(frame);
            }
            let sent = link.finish(to, frame, now);
            if !more {
                link.flush();
            }
            // A frame that waits needs a path, which the next round asks for.
            sent.map(|()| link.link().is_due())
        });
        if sent.unwrap_or(Err(SendError::Down))? {
            self.machine.wake();
        }
        Ok(())
    }

    /// What was sent with `more` goes out now.
    pub(crate) fn flush(&self, index: usize) {
        self.with_link(index, |link, _| link.flush());
    }

    /// The administrator wants interface `index` up or down.
    pub(crate) fn set_up(&self, index: usize, up: bool) {
        self.with_link(index, |link, now| link.handle(Event::Admin { up }, now));
        self.machine.wake();
    }

    /// Interface `index` sends by connections from now on, or by datagrams alone; says whether it can.
    pub(crate) fn send_by_connections(&self, index: usize, on: bool) -> bool {
        let can = self.with_link(index, |link, _| link.send_by_connections(on));
        self.machine.wake();
        can.unwrap_or(false)
    }

    /// Receives datagrams to a group from now on.
    pub(crate) fn listen(&self, index: usize, mgid: Gid) -> Result<(), GroupError> {
        let nowhere = GroupError::NotOfThisLink { mgid };
        let heard = self.with_link(index, |link, now| link.listen(mgid, now));
        self.machine.wake();
        heard.unwrap_or(Err(nowhere))
    }

    /// Ends that.
    pub(crate) fn ignore(&self, index: usize, mgid: Gid) {
        self.with_link(index, |link, now| link.ignore(mgid, now));
        self.machine.wake();
    }

    /// How interface `index` stands.
    pub(crate) fn view(&self, index: usize) -> Option<View> {
        self.with_link(index, |link, _| {
            let link = link.link();
            let mut address = link.address();
            if address.gid.is_none() {
                // SAFETY: written before the stack was opened.
                let gids = unsafe { &*self.gids.get() };
                address.gid = gids.get(index).copied().unwrap_or(Gid::NONE);
            }
            View {
                state: link.state(),
                address,
                broadcast: LinkAddress::multicast(link.broadcast()),
                lid: link.port().lid.0,
            }
        })
    }

    /// The counters of interface `index`, in the order of `counters`.
    pub(crate) fn statistics(&self, index: usize) -> Option<counters::Values> {
        self.with_link(index, |link, _| counters::values(&link.statistics()))
    }
}

fn hand_on(net: *mut os::Net, info: &FrameInfo, datagram: &[u8]) {
    let arrival = match info.arrival {
        Arrival::Broadcast => os::Arrival::Broadcast,
        Arrival::Multicast => os::Arrival::Multicast,
        Arrival::Host | Arrival::Own => os::Arrival::Host,
    };
    let (ether_type, data, len) = (info.ether_type.0, datagram.as_ptr(), datagram.len());
    // SAFETY: the interface stays until the host is closed; the datagram is there for the length of the call.
    unsafe { os::openib_os_receive(net, arrival, ether_type, data, len, info.verified) };
}

/// Why an interface is down, for the log.
const fn words(cause: DownCause) -> &'static str {
    match cause {
        DownCause::Admin { .. } => "it is wanted down",
        DownCause::PortDown => "its port is not Active",
        DownCause::NoPKey { .. } => "its P_Key is not in the port's table",
        DownCause::Starting => "its QP is being started",
        DownCause::QpFailed(_) => "its QP does not start; tried again",
        DownCause::Joining => "the broadcast group is being joined",
        DownCause::JoinFailed(_) => "the broadcast group cannot be joined; tried again",
        DownCause::GroupMtu { .. } => "the broadcast group's MTU is too large",
        DownCause::DeviceFailed => "the HCA has failed",
        _ => "for another reason",
    }
}
