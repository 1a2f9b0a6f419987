//! What a host of ours has for the RDMA programs of others to talk to: connections by the RDMA connection manager, each
//! with a program of its own at the end (`rping`, or messages both ways as `ucmatose` has them), and QPs that programs agree on by TCP (the pingpongs of
//! `ibverbs-utils`, three programs of perftest). Either end of each.
//!
//! Belongs to a host and lives in its context; the host turns it in each of its rounds.

mod endpoint;
mod line;
pub mod messages;
mod perftest;
pub mod pingpong;
pub mod play;
pub mod rping;

use crate::ip::IpHost;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use core_ib::platform::Platform;
use core_ib::verbs::{
    CompletionQueue, CqHandle, CqInit, Device, NotifyKind, Owner, PdHandle, Verbs, WcStatus,
    WorkCompletion,
};
use core_ib::wire::mad::{RejReason, ServiceId};
use core_ib::{Instant, PKey, Psn};
use endpoint::{Done, Endpoint};
use ib_stack::ib_cm::{self, Accept, ConnId, Connect, Event, Listen, ip};
use ib_stack::{CmNews, Stack};
use messages::Messages;
use mthca_hw::Hca;
use perftest::Perftest;
use platform_sim::machine::SimPlatform;
use play::{Game, Play, PlayStatus, Wish};
use rping::{Action, Advert, Client, Server};

/// Entries of the CQ, for all connections together.
const ENTRIES: u32 = 512;
/// So many connections at once.
const CONNECTIONS: usize = 16;
/// A neighbour is looked for so often, so long apart.
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(200);
/// A client without a step for so long has no server any more; nor has an end of messages a peer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How far a connection has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It is being set up.
    #[default]
    Connecting,
    /// Its program runs.
    Running,
    /// It is over, as one end wanted.
    Ended,
    /// It is over: why.
    Failed(String),
}

impl Stage {
    /// Has it ended, one way or the other?
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Ended | Self::Failed(_))
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Running => f.write_str("running"),
            Self::Ended => f.write_str("ended"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// One connection, as it is seen from outside; it stays after its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its program is not `rping`, but sends messages both ways; those are its rounds.
    pub messages: bool,
    /// We asked for it.
    pub client: bool,
    /// How far it has come.
    pub stage: Stage,
    /// Rounds of its program.
    pub rounds: u32,
    /// Bytes of the last of them.
    pub bytes: u32,
}

impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.client { "client" } else { "server" };
        let Self { rounds, bytes, .. } = self;
        match self.messages {
            true => write!(f, "messages {end}: {rounds} each way of {bytes} bytes, ")?,
            false => write!(f, "rping {end}: {rounds} rounds of {bytes} bytes, ")?,
        }
        self.stage.fmt(f)
    }
}

#[derive(Clone)]
enum Program {
    Server(Server),
    Client(Client),
    /// Messages, and whether we asked.
    Messages(Messages, bool),
}

impl Program {
    /// Receives that it has posted, and bytes of each.
    fn receives(&self) -> (usize, usize) {
        match self {
            Self::Messages(it, _) => (it.count as usize, it.len as usize),
            _ => (endpoint::SLOTS, Advert::SIZE),
        }
    }

    /// Is it cut short if it ends now, short of being over?
    const fn is_under_way(&self) -> bool {
        match self {
            Self::Server(_) => false,
            Self::Client(_) => true,
            Self::Messages(it, _) => !it.is_through(),
        }
    }
}

/// One connection.
struct End<'h> {
    conn: ConnId,
    place: Endpoint<'h>,
    program: Program,
    /// The QP may send.
    open: bool,
    /// It has been given up; completions are of no interest any more.
    over: bool,
    /// The peer has disconnected.
    left: bool,
    /// What came before the QP could send.
    early: Vec<WorkCompletion>,
    /// Which status is its own.
    status: usize,
    /// A client, or an end of messages, that has not come any further by then gives up.
    limit: Instant,
}

/// A connection that is wanted.
struct Wanted {
    peer: SocketAddr,
    program: Program,
    status: usize,
    looks: u32,
    next: Instant,
    asked: bool,
}

/// See the module.
pub struct Peers<'h, 'p> {
    machine: &'h SimPlatform,
    hca: &'h Hca<'p, SimPlatform>,
    port: u8,
    pd: PdHandle,
    cq: CqHandle,
    ends: Vec<End<'h>>,
    wanted: Vec<Wanted>,
    psn: u32,
    plays: Vec<Box<dyn Game<'h> + 'h>>,
    /// What is served at the port of messages.
    messages: Option<Messages>,
    /// All connections there have been.
    pub statuses: Vec<PeerStatus>,
    /// All pingpongs there have been.
    pub played: Vec<PlayStatus>,
}

type HostStack<'h, 'p> = Stack<'h, Hca<'p, SimPlatform>, SimPlatform>;

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

fn no_manager() -> String {
    "the host has no communication manager".into()
}

impl<'h, 'p> Peers<'h, 'p> {
    /// For connections of `port`.
    pub fn new(
        machine: &'h SimPlatform,
        hca: &'h Hca<'p, SimPlatform>,
        port: u8,
    ) -> Result<Box<Self>, String> {
        let pd = hca.alloc_pd().map_err(text)?;
        let init = CqInit {
            cqe: ENTRIES,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = match hca.create_cq(&init) {
            Ok(cq) => cq.handle,
            Err(error) => {
                hca.dealloc_pd(pd).map_err(text)?;
                return Err(text(error));
            }
        };
        Ok(Box::new(Self {
            machine,
            hca,
            port,
            pd,
            cq,
            ends: Vec::new(),
            wanted: Vec::new(),
            psn: machine.now().0 as u32,
            plays: Vec::new(),
            messages: None,
            statuses: Vec::new(),
            played: Vec::new(),
        }))
    }

    /// Ends all that it has, once the stack is closed.
    pub fn close(self) -> Result<(), String> {
        let Self {
            hca, ends, plays, ..
        } = self;
        plays.into_iter().try_for_each(|play| play.end(hca))?;
        ends.into_iter().try_for_each(|end| end.place.end(hca))?;
        hca.destroy_cq(self.cq).map_err(text)?;
        hca.dealloc_pd(self.pd).map_err(text)
    }

    /// Takes connections to this port of TCP's.
    pub fn listen(&mut self, stack: &mut HostStack<'h, 'p>, port: u16) -> Result<(), String> {
        let service = ip::service(ServiceId::PROTOCOL_TCP, port);
        let cm = stack.cm(self.port).ok_or_else(no_manager)?;
        match cm.listen(&Listen::to(service, 0)) {
            Ok(_) | Err(ib_cm::CmError::Taken { .. }) => Ok(()),
            Err(error) => Err(text(error)),
        }
    }

    /// Wants a connection to `peer`, for so many rounds with so many bytes.
    pub fn connect(&mut self, peer: SocketAddr, (rounds, len): (u32, u32), now: Instant) {
        let client = Client::new(rounds, len);
        let bytes = client.len;
        self.want(peer, Program::Client(client), bytes, now);
    }

    /// Serves so many messages of so many bytes each way, to all who ask from now on.
    pub fn serve_messages(
        &mut self,
        stack: &mut HostStack<'h, 'p>,
        of: (u32, u32),
    ) -> Result<(), String> {
        self.messages = Some(Messages::new(of.0, of.1));
        self.listen(stack, messages::PORT)
    }

    /// Wants a connection to `peer`, for so many messages of so many bytes each way.
    pub fn ask_messages(&mut self, peer: SocketAddr, (count, len): (u32, u32), now: Instant) {
        let program = Program::Messages(Messages::new(count, len), true);
        self.want(peer, program, len, now);
    }

    fn want(&mut self, peer: SocketAddr, program: Program, bytes: u32, now: Instant) {
        let messages = matches!(program, Program::Messages(..));
        self.wanted.push(Wanted {
            peer,
            program,
            status: self.statuses.len(),
            looks: 0,
            next: now,
            asked: false,
        });
        self.statuses.push(PeerStatus {
            messages,
            client: true,
            bytes,
            ..PeerStatus::default()
        });
    }

    /// The neighbour that is to be looked for now, if there is one: send it a packet.
    pub fn stranger(&mut self, stack: &mut HostStack<'h, 'p>, now: Instant) -> Option<IpAddr> {
        let at = self
            .wanted
            .iter()
            .position(|wanted| !wanted.asked && wanted.next <= now)?;
        let wanted = self.wanted.get_mut(at)?;
        let peer = wanted.peer.ip();
        let known = stack.ip(0).and_then(|ip| ip.link_address(peer));
        let Some(known) = known else {
            wanted.looks += 1;
            wanted.next = now.after(LOOK);
            if wanted.looks <= LOOKS {
                return Some(peer);
            }
            self.give_up(at, format!("{peer} does not answer"));
            return None;
        };
        wanted.asked = true;
        let cookie = wanted.status as u32;
        let asked = stack.ask_path(self.port, known.gid, PKey::DEFAULT, cookie, now);
        if let Err(error) = asked {
            self.give_up(at, text(error));
        }
        None
    }

    fn give_up(&mut self, at: usize, why: String) {
        let wanted = self.wanted.remove(at);
        self.stage(wanted.status, Stage::Failed(why));
    }

    fn stage(&mut self, status: usize, stage: Stage) {
        if let Some(status) = self.statuses.get_mut(status)
            && !matches!(status.stage, Stage::Failed(_))
        {
            status.stage = stage;
        }
    }

    /// When there is something to do without being woken.
    pub fn next(&self) -> Instant {
        let waits = self.wanted.iter().filter(|wanted| !wanted.asked);
        let ends = self.ends.iter().filter(|end| !end.over);
        waits
            .map(|wanted| wanted.next)
            .chain(ends.map(|end| end.limit))
            .chain(self.plays.iter().map(|play| play.limit()))
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// Takes what the stack and the CQ have. Says whether there was anything.
    pub fn turn(&mut self, stack: &mut HostStack<'h, 'p>, now: Instant) -> Result<bool, String> {
        let mut any = false;
        while let Some(news) = stack.next_cm_news() {
            any = true;
            match news {
                CmNews::Event(_, event) => self.event(stack, event, now),
                CmNews::Path { cookie, path } => self.path(stack, cookie, path.map_err(text), now),
                _ => {}
            }
        }
        any |= self.drain(stack, now)?;
        Ok(self.silent(stack, now) || any)
    }

    /// Takes what the CQ has. Says whether there was anything.
    fn drain(&mut self, stack: &mut HostStack<'h, 'p>, now: Instant) -> Result<bool, String> {
        let mut any = false;
        loop {
            let mut found = [WorkCompletion::EMPTY; 8];
            let cq = self.hca.cq(self.cq).map_err(text)?;
            let count = cq.poll(&mut found).map_err(text)?;
            drop(cq);
            if count == 0 {
                return Ok(any);
            }
            any = true;
            for wc in found.iter().take(count) {
                self.completed(stack, *wc, now);
            }
        }
    }

    /// Gives up the clients that have heard nothing for too long. Says whether there are any.
    fn silent(&mut self, stack: &mut HostStack<'h, 'p>, now: Instant) -> bool {
        let mut any = false;
        let late = |end: &&End<'h>| !end.over && end.limit <= now;
        while let Some(conn) = self.ends.iter().find(late).map(|end| end.conn) {
            let why = format!("the peer is silent: nothing for {PATIENCE:?}");
            self.failed(stack, conn, why, now);
            any = true;
        }
        any
    }

    /// Arms the CQ; [`turn`](Self::turn) once more before sleeping.
    pub fn arm(&self) -> Result<(), String> {
        let cq = self.hca.cq(self.cq).map_err(text)?;
        cq.req_notify(NotifyKind::Any).map_err(text)?;
        self.plays.iter().try_for_each(|play| play.arm(self.hca))
    }

    fn psn(&mut self) -> Psn {
        self.psn = self.psn.wrapping_add(0x01_2345);
        Psn::new(self.psn)
    }
}

/// Pingpongs.
impl<'h> Peers<'h, '_> {
    /// Plays; a server that nobody has called meanwhile gives way to this one.
    pub fn play(&mut self, wish: Wish, ip: &mut IpHost) {
        let status = self.played.len();
        self.played.push(PlayStatus {
            wish,
            stage: Stage::Connecting,
            sent: 0,
            checked: 0,
        });
        if wish.peer.is_none() {
            while let Some(at) = self.plays.iter().position(|play| play.waits()) {
                self.leave(at, Err("another one serves".into()), ip);
            }
        }
        let psn = self.psn().get();
        let with = (self.pd, self.port, psn);
        let (machine, hca) = (self.machine, self.hca);
        let made: Result<Box<dyn Game<'h> + 'h>, String> = match wish.kind {
            kind if kind.is_perftest() => Perftest::new(machine, hca, with, (wish, status))
                .map(|game| Box::new(game) as Box<_>),
            _ => Play::new(machine, hca, with, (wish, status)).map(|game| Box::new(game) as Box<_>),
        };
        match made {
            Ok(play) => self.plays.push(play),
            Err(why) => self.stage_of_play(status, Stage::Failed(why)),
        }
    }

    fn stage_of_play(&mut self, status: usize, stage: Stage) {
        if let Some(status) = self.played.get_mut(status) {
            status.stage = stage;
        }
    }

    /// Ends one.
    fn leave(&mut self, at: usize, how: Result<(), String>, ip: &mut IpHost) {
        let mut play = self.plays.remove(at);
        play.hang_up(ip);
        self.stage_of_play(
            play.status(),
            how.map_or_else(Stage::Failed, |()| Stage::Ended),
        );
        if let Err(error) = play.end(self.hca) {
            log::warn!("a pingpong is over, and what it had is not: {error}");
        }
    }

    /// Goes on with all of them, on a port with this LID. Says whether anything was done.
    pub fn go_on(&mut self, ip: &mut IpHost, lid: u16, now: Instant) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(play) = self.plays.get_mut(at) {
            let went = play.turn(self.hca, (ip, pingpong::PORT, lid), now);
            let (sent, checked) = play.counts();
            if let Some(status) = self.played.get_mut(play.status()) {
                (status.sent, status.checked) = (sent, checked);
                if play.is_over() {
                    status.stage = Stage::Ended;
                } else if play.runs() {
                    status.stage = Stage::Running;
                }
            }
            let late = play.is_over() && play.limit() <= now;
            match went {
                Ok(_) if late => self.leave(at, Ok(()), ip),
                Err(why) => self.leave(at, Err(why), ip),
                Ok(done) => {
                    any |= done;
                    at += 1;
                    continue;
                }
            }
            any = true;
        }
        any
    }
}

/// News of connections, and completions.
impl<'h, 'p> Peers<'h, 'p> {
    fn place(&self, conn: ConnId) -> Option<usize> {
        self.ends.iter().position(|end| end.conn == conn)
    }

    fn event(&mut self, stack: &mut HostStack<'h, 'p>, event: Event, now: Instant) {
        match event {
            Event::Request { conn, req, .. } => {
                if let Err(reason) = self.request(stack, conn, &req, now)
                    && let Some(cm) = stack.cm(self.port)
                {
                    // Whoever asked has given up meanwhile, else.
                    let _ = cm.reject(conn, reason, &[], &[], now);
                }
            }
            Event::Reply { conn, .. } => {
                if let Some(cm) = stack.cm(self.port)
                    && let Err(error) = cm.ready(conn, &[])
                {
                    self.failed(stack, conn, text(error), now);
                }
            }
            Event::Established { conn, .. } => self.established(stack, conn, now),
            Event::Rejected { conn, rej, .. } => {
                let why = format!("rejected: {:?}", rej.reason);
                self.over(conn, Stage::Failed(why));
            }
            Event::Failed { conn, why, .. } => {
                self.over(conn, Stage::Failed(format!("no connection: {why:?}")));
            }
            Event::Disconnecting { conn, .. } => {
                if let Some(at) = self.place(conn)
                    && let Some(end) = self.ends.get_mut(at)
                {
                    end.left = true;
                }
                // The last message came before.
                if let Err(error) = self.drain(stack, now) {
                    log::warn!("what came before the end is not known: {error}");
                }
                let end = self.place(conn).and_then(|at| self.ends.get(at));
                let cut = end.is_some_and(|end| !end.over && end.program.is_under_way());
                let stage = match cut {
                    true => Stage::Failed("the peer disconnected".into()),
                    false => Stage::Ended,
                };
                self.over(conn, stage);
                if let Some(cm) = stack.cm(self.port) {
                    // It was released, else.
                    let _ = cm.release(conn, &[], now);
                }
            }
            Event::Disconnected { conn, .. } => self.over(conn, Stage::Ended),
            Event::Gone { conn, .. } => {
                if let Some(at) = self.place(conn) {
                    let end = self.ends.remove(at);
                    self.stage(end.status, Stage::Ended);
                    if let Err(error) = end.place.end(self.hca) {
                        log::warn!("a connection is over, and its QP is not: {error}");
                    }
                }
            }
            _ => {}
        }
    }

    /// Somebody wants to connect.
    fn request(
        &mut self,
        stack: &mut HostStack<'h, 'p>,
        conn: ConnId,
        req: &core_ib::wire::mad::CmReq,
        now: Instant,
    ) -> Result<(), RejReason> {
        ip::IpRequest::of(req).map_err(|_| RejReason::CONSUMER)?;
        let local = stack.local_of(self.port, req)?;
        if self.ends.len() >= CONNECTIONS {
            return Err(RejReason::NO_RESOURCES);
        }
        let of_messages = ip::service(ServiceId::PROTOCOL_TCP, messages::PORT);
        let program = match &self.messages {
            Some(of) if req.service_id == of_messages => Program::Messages(of.clone(), false),
            _ => Program::Server(Server::default()),
        };
        let place = self.endpoint(&program);
        let place = place.map_err(|error| {
            log::warn!("a connection is refused: {error}");
            RejReason::NO_QP
        })?;
        let with = Accept::new(Some(place.qp), place.qpn, self.psn(), local);
        let accepted = match stack.cm(self.port) {
            Some(cm) => cm.accept(conn, &with, now).map_err(text),
            None => Err(no_manager()),
        };
        if let Err(error) = accepted {
            log::warn!("a connection is refused: {error}");
            return place.end(self.hca).map_err(|_| RejReason::NO_QP);
        }
        let status = self.statuses.len();
        self.statuses.push(PeerStatus {
            messages: matches!(program, Program::Messages(..)),
            ..PeerStatus::default()
        });
        self.ends.push(End::new(conn, place, program, status));
        Ok(())
    }

    fn endpoint(&self, program: &Program) -> Result<Endpoint<'h>, String> {
        let at = (self.pd, self.cq, self.port);
        Endpoint::new(self.machine, self.hca, at, program.receives())
    }

    /// The path that a connection was waiting for.
    fn path(
        &mut self,
        stack: &mut HostStack<'h, 'p>,
        cookie: u32,
        path: Result<(ib_cm::Path, core_ib::wire::mad::PathRecord), String>,
        now: Instant,
    ) {
        let at = self
            .wanted
            .iter()
            .position(|wanted| wanted.asked && wanted.status == cookie as usize);
        let Some(at) = at else { return };
        match path.and_then(|path| self.begin(stack, at, path, now)) {
            Ok(()) => drop(self.wanted.remove(at)),
            Err(error) => self.give_up(at, error),
        }
    }

    fn begin(
        &mut self,
        stack: &mut HostStack<'h, 'p>,
        at: usize,
        (path, record): (ib_cm::Path, core_ib::wire::mad::PathRecord),
        now: Instant,
    ) -> Result<(), String> {
        let wanted = self.wanted.get(at).ok_or("nobody wants it")?;
        let (peer, program, status) = (wanted.peer, wanted.program.clone(), wanted.status);
        let ours = stack.ip(0).and_then(|ip| {
            let mut own = ip.neighbours().addresses();
            let fits = |own: &(IpAddr, bool)| own.0.is_ipv4() == peer.is_ipv4() && own.1;
            own.find(fits).map(|own| own.0)
        });
        let from = SocketAddr::new(ours.ok_or("no address of that family")?, 0);
        let private: [u8; 92] = ip::private(from, peer.ip(), &[]).map_err(text)?;
        let mtu = record.mtu.mtu().ok_or("the path has no MTU")?;
        let place = self.endpoint(&program)?;
        let service = ip::service(ServiceId::PROTOCOL_TCP, peer.port());
        let with = Connect {
            qp: Some(place.qp),
            qpn: place.qpn,
            psn: self.psn(),
            private: &private,
            ..Connect::new(service, path, mtu)
        };
        let cm = stack.cm(self.port).ok_or_else(no_manager);
        match cm.and_then(|cm| cm.connect(&with, now).map_err(text)) {
            Ok(conn) => {
                self.ends.push(End::new(conn, place, program, status));
                Ok(())
            }
            Err(error) => {
                place.end(self.hca)?;
                Err(error)
            }
        }
    }

    fn established(&mut self, stack: &mut HostStack<'h, 'p>, conn: ConnId, now: Instant) {
        let Some(end) = self.ends.iter_mut().find(|end| end.conn == conn) else {
            return;
        };
        end.open = true;
        let status = end.status;
        let begun = match &mut end.program {
            Program::Server(_) => Ok(false),
            Program::Client(client) => {
                end.limit = now.after(PATIENCE);
                let action = client.begin();
                end.go(self.hca, action)
            }
            Program::Messages(messages, _) => {
                end.limit = now.after(PATIENCE);
                let data = messages.data();
                let filled = end.place.fill(&data);
                filled
                    .and_then(|()| end.place.send(self.hca, messages.len))
                    .map(|()| false)
            }
        };
        let early = core::mem::take(&mut end.early);
        self.stage(status, Stage::Running);
        self.went(stack, conn, begun, now);
        for wc in early {
            self.completed(stack, wc, now);
        }
    }

    fn completed(&mut self, stack: &mut HostStack<'h, 'p>, wc: WorkCompletion, now: Instant) {
        let mut ends = self.ends.iter_mut();
        let Some(end) = ends.find(|end| end.place.qpn == wc.qpn && !end.over) else {
            return;
        };
        if !end.open && wc.status == WcStatus::Success {
            // The data may be here before the word that the QP may send.
            return end.early.push(wc);
        }
        let conn = end.conn;
        if !matches!(end.program, Program::Server(_)) {
            end.limit = now.after(PATIENCE);
        }
        let went = end.done(self.hca, &wc);
        let (rounds, bytes) = match &end.program {
            Program::Server(server) => (server.rounds, server.len()),
            Program::Client(client) => (client.rounds, client.len),
            Program::Messages(it, _) => (it.sent.min(it.received), it.len),
        };
        if let Some(status) = self.statuses.get_mut(end.status) {
            (status.rounds, status.bytes) = (rounds, bytes);
        }
        self.went(stack, conn, went, now);
    }

    /// A program went on: it is through, or gives up, or neither.
    fn went(
        &mut self,
        stack: &mut HostStack<'h, 'p>,
        conn: ConnId,
        went: Result<bool, String>,
        now: Instant,
    ) {
        match went {
            Ok(false) => {}
            Ok(true) => {
                if let Some(at) = self.place(conn)
                    && let Some(end) = self.ends.get_mut(at)
                {
                    end.over = true;
                    if end.left {
                        return;
                    }
                }
                self.disconnect(stack, conn, now);
            }
            Err(why) => self.failed(stack, conn, why, now),
        }
    }

    fn failed(&mut self, stack: &mut HostStack<'h, 'p>, conn: ConnId, why: String, now: Instant) {
        self.over(conn, Stage::Failed(why));
        self.disconnect(stack, conn, now);
    }

    fn disconnect(&mut self, stack: &mut HostStack<'h, 'p>, conn: ConnId, now: Instant) {
        if let Some(cm) = stack.cm(self.port)
            && cm.disconnect(conn, &[], now).is_err()
        {
            // Not connected yet, or not any more: the first is to end, the second is ending.
            let _ = cm.abandon(conn, now);
        }
    }

    fn over(&mut self, conn: ConnId, stage: Stage) {
        if let Some(end) = self.ends.iter_mut().find(|end| end.conn == conn) {
            end.over = true;
            let status = end.status;
            self.stage(status, stage);
        }
    }
}

impl<'h> End<'h> {
    const fn new(conn: ConnId, place: Endpoint<'h>, program: Program, status: usize) -> Self {
        Self {
            conn,
            place,
            program,
            open: false,
            over: false,
            left: false,
            early: Vec::new(),
            status,
            limit: Instant::NEVER,
        }
    }

    /// A request of ours is done. Says whether all is.
    fn done(&mut self, hca: &Hca<'_, SimPlatform>, wc: &WorkCompletion) -> Result<bool, String> {
        if wc.status != WcStatus::Success {
            return Err(format!("{:?} of {:?}", wc.status, Done::of(wc.wr_id)));
        }
        if let Program::Messages(messages, client) = &mut self.program {
            match Done::of(wc.wr_id) {
                Done::Received(slot) => {
                    let found = self.place.message(slot, wc.byte_len)?;
                    messages.came(wc.byte_len, &found)?;
                }
                _ => {
                    messages.sent += 1;
                    if messages.sent < messages.count {
                        self.place.send(hca, messages.len)?;
                    }
                }
            }
            // The server disconnects: a client of `ucmatose` waits for that.
            return Ok(!*client && messages.is_through());
        }
        let action = match (Done::of(wc.wr_id), &mut self.program) {
            (Done::Received(slot), program) => {
                if wc.byte_len as usize != Advert::SIZE {
                    return Err(format!("a message of {} bytes", wc.byte_len));
                }
                let advert = self.place.received(slot)?;
                self.place.receive(hca, slot)?;
                match program {
                    Program::Server(server) => server.heard(advert).map_err(text)?,
                    Program::Client(client) => client.heard(),
                    Program::Messages(..) => return Ok(false),
                }
            }
            (Done::Read, Program::Server(server)) => {
                let found = self.place.in_source(server.len())?;
                server.read(&found).map_err(text)?
            }
            (Done::Written, Program::Server(server)) => server.written(),
            _ => return Ok(false),
        };
        self.go(hca, action)
    }

    fn go(&mut self, hca: &Hca<'_, SimPlatform>, mut action: Action) -> Result<bool, String> {
        loop {
            match (action, &mut self.program) {
                (Action::Offer(round), Program::Client(client)) => {
                    let len = client.len;
                    self.place.fill(&rping::data(round, len as usize))?;
                    self.place.say(hca, self.place.source(len))?;
                }
                (Action::Ask, Program::Client(client)) => {
                    self.place.say(hca, self.place.sink(client.len))?;
                }
                (Action::Compare(_), Program::Client(client)) => {
                    let found = self.place.in_sink(client.len)?;
                    action = client.compared(&found).map_err(text)?;
                    continue;
                }
                (Action::Read(advert), _) => self.place.read(hca, advert)?,
                (Action::Write(advert), _) => self.place.write(hca, advert)?,
                (Action::Answer, _) => self.place.say(hca, Advert::default())?,
                _ => return Ok(true),
            }
            return Ok(false);
        }
    }
}
