//! A pingpong under way: its TCP connection, its QPs and its memory.

use super::Stage;
use super::line::{Area, Line, Terms, Whereabouts};
use super::pingpong::{Kind, Turn};
use crate::ip::{IpHost, Talk, TalkState};
use core::fmt;
use core::time::Duration;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, CompletionQueue, CqHandle, CqInit, Device, NotifyKind, Owner, PdHandle, QueuePair,
    RecvWr, SendFlags, SendOp, SendWr, SharedReceiveQueue, SrqHandle, SrqInit, Verbs, WcStatus,
    WorkCompletion,
};
use core_ib::{Instant, Mtu, QKey};
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;
use std::net::SocketAddr;

/// Without a step for so long a play that has begun is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// So long its QPs answer what is sent again, after the end.
const LINGER: Duration = Duration::from_millis(500);
const QKEY: QKey = QKey(0x1111_1111);
const READY: &[u8] = b"done\0";
/// The number of a send; receives have that of their slot.
const SENT: u64 = 1 << 32;
/// The sink is filled with this before a receive.
const NOTHING: u8 = 0xee;

/// What is to be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which tool.
    pub kind: Kind,
    /// Messages each way.
    pub count: u32,
    /// Bytes of each.
    pub size: u32,
    /// The server, or we are one.
    pub peer: Option<SocketAddr>,
}

/// One play, as it is seen from outside; it stays after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayStatus {
    /// What was wanted.
    pub wish: Wish,
    /// How far it has come.
    pub stage: Stage,
    /// Messages that went.
    pub sent: u32,
    /// Messages that came, each of them checked.
    pub checked: u32,
}

impl fmt::Display for PlayStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wish {
            kind, size, peer, ..
        } = self.wish;
        let end = if peer.is_some() { "client" } else { "server" };
        let Self { sent, checked, .. } = self;
        let name = kind.name();
        if kind.is_perftest() {
            write!(f, "{name} {end}: {sent} of ours done, {checked} checked, ")?;
            if kind != Kind::Atomic {
                write!(f, "of {size} bytes, ")?;
            }
            return self.stage.fmt(f);
        }
        write!(
            f,
            "{name} pingpong {end}: {sent} sent, {checked} received and checked, of {size} bytes, "
        )?;
        self.stage.fmt(f)
    }
}

/// A program under way that agrees with its peer over TCP.
pub(super) trait Game<'h> {
    /// Takes what there is, on a TCP port, and a port of the HCA with this LID. Says whether there was anything; an error
    /// is its end.
    fn turn(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        at: (&mut IpHost, u16, u16),
        now: Instant,
    ) -> Result<bool, String>;
    /// Arms its CQ.
    fn arm(&self, hca: &Hca<'_, SimPlatform>) -> Result<(), String>;
    /// Ends all that it has.
    fn end(self: Box<Self>, hca: &Hca<'_, SimPlatform>) -> Result<(), String>;
    /// Ends what it says over TCP.
    fn hang_up(&mut self, ip: &mut IpHost);
    /// What it sent, and what it checked.
    fn counts(&self) -> (u32, u32);
    /// To be given up, or to be ended, then.
    fn limit(&self) -> Instant;
    /// Which status is its own.
    fn status(&self) -> usize;
    /// Nobody has called yet.
    fn waits(&self) -> bool;
    /// It has begun.
    fn runs(&self) -> bool;
    /// Nothing more is to be done but to wait for its limit.
    fn is_over(&self) -> bool;
}

/// What stands between two messages over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The connection is not there yet.
    Call,
    /// The peer has not said where it is.
    Where,
    /// The client has not said that it is ready.
    Ready,
    /// Over TCP all is said.
    Play,
    /// All is done.
    Over,
}

/// See the module.
pub(super) struct Play<'h> {
    wish: Wish,
    talk: Option<Talk>,
    step: Step,
    pd: PdHandle,
    cq: CqHandle,
    srq: Option<SrqHandle>,
    area: Area<'h>,
    lines: Vec<(Line, Turn)>,
    /// Bytes of a slot; those received come first, and then one to send from.
    slot: usize,
    slots: usize,
    limit: Instant,
    status: usize,
    sent: u32,
    checked: u32,
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl<'h> Play<'h> {
    pub(super) fn new(
        machine: &'h SimPlatform,
        hca: &Hca<'_, SimPlatform>,
        (pd, port, psn): (PdHandle, u8, u32),
        (wish, status): (Wish, usize),
    ) -> Result<Self, String> {
        let kind = wish.kind;
        let (used, _) = kind.lines();
        // Of each QP one message may be under way; its slot is free again before ours goes.
        let slots = used + 1;
        let slot = (wish.size as usize + kind.front()).next_multiple_of(64);
        let area = Area::new(machine, hca, pd, (slot * (slots + 1), Access::LOCAL_WRITE))?;
        let init = CqInit {
            cqe: 4 * slots as u32,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = hca.create_cq(&init).map(|cq| cq.handle).map_err(text);
        let cq = match cq {
            Ok(cq) => cq,
            Err(error) => {
                area.end(hca)?;
                return Err(error);
            }
        };
        let mut play = Self {
            wish,
            talk: None,
            step: Step::Call,
            pd,
            cq,
            srq: None,
            area,
            lines: Vec::new(),
            slot,
            slots,
            limit: match wish.peer {
                Some(_) => machine.now().after(PATIENCE),
                None => Instant::NEVER,
            },
            status,
            sent: 0,
            checked: 0,
        };
        match play.begin(hca, (port, psn), used) {
            Ok(()) => Ok(play),
            Err(error) => {
                Box::new(play).end(hca)?;
                Err(error)
            }
        }
    }

    const fn terms(&self) -> Terms {
        Terms {
            service: self.wish.kind.service(),
            mtu: Mtu::Mtu1024,
            qkey: QKEY,
            access: Access::empty(),
        }
    }

    fn begin(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (port, psn): (u8, u32),
        used: usize,
    ) -> Result<(), String> {
        let depth = self.slots as u32;
        if self.wish.kind == Kind::Srq {
            let init = SrqInit {
                pd: self.pd,
                max_wr: depth,
                max_sge: 1,
                owner: Owner::Kernel,
            };
            self.srq = Some(hca.create_srq(&init).map_err(text)?.handle);
        }
        let terms = self.terms();
        for number in 0..used {
            let psn = psn.wrapping_mul(number as u32 * 2 + 1);
            let queues = (self.srq, depth);
            let line = Line::new(hca, (self.pd, self.cq, port), queues, (&terms, psn))?;
            self.lines.push((line, Turn::new(self.wish.peer.is_some())));
        }
        (0..self.slots).try_for_each(|slot| self.receive(hca, slot))
    }

    /// Posts the receive of this slot.
    fn receive(&self, hca: &Hca<'_, SimPlatform>, slot: usize) -> Result<(), String> {
        let len = self.wish.size as usize + self.wish.kind.front();
        let at = slot * self.slot;
        self.area.memory.fill(at, len, NOTHING).map_err(text)?;
        let sges = [self.area.sge(at, len)];
        let request = RecvWr {
            wr_id: slot as u64,
            sges: &sges,
        };
        match (self.srq, self.lines.first()) {
            (Some(srq), _) => {
                let srq = hca.srq(srq).map_err(text)?;
                srq.post_recv(&[request]).map_err(text)
            }
            (None, Some((line, _))) => {
                let qp = hca.qp(line.qp).map_err(text)?;
                qp.post_recv(&[request]).map_err(text)
            }
            (None, None) => Ok(()),
        }
    }
}

/// What it does.
impl Play<'_> {
    fn words(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (ip, port, lid): (&mut IpHost, u16, u16),
        now: Instant,
    ) -> Result<bool, String> {
        let talk = *self.talk.get_or_insert_with(|| match self.wish.peer {
            Some(peer) => ip.call(peer),
            None => ip.await_call(port),
        });
        let (_, told) = self.wish.kind.lines();
        let len = told * Whereabouts::SAID;
        let client = self.wish.peer.is_some();
        let state = ip.talk_state(talk);
        let next = match self.step {
            Step::Call if state == TalkState::Open => {
                if client && !ip.say(talk, &self.here(lid)) {
                    return Err("no room for a few words".into());
                }
                Step::Where
            }
            Step::Where => match ip.hear(talk, len) {
                Some(said) => {
                    self.connect(hca, &said)?;
                    let (words, next) = match client {
                        true => (READY.to_vec(), Step::Play),
                        false => (self.here(lid), Step::Ready),
                    };
                    if !ip.say(talk, &words) {
                        return Err("the peer hung up".into());
                    }
                    next
                }
                None => self.step,
            },
            Step::Ready if ip.hear(talk, READY.len()).is_some() => Step::Play,
            step => step,
        };
        if next == self.step {
            let early = matches!(next, Step::Call | Step::Where | Step::Ready);
            return match (early && state == TalkState::Over, next) {
                (true, Step::Call) => Err("the peer takes no connection".into()),
                (true, _) => Err("the peer hung up".into()),
                (false, _) => Ok(false),
            };
        }
        self.step = next;
        self.limit = now.after(PATIENCE);
        if next == Step::Play && client {
            (0..self.lines.len()).try_for_each(|number| self.post(hca, number))?;
        }
        Ok(true)
    }

    /// Where our QPs are, in words.
    fn here(&self, lid: u16) -> Vec<u8> {
        let (_, told) = self.wish.kind.lines();
        let ours = self.lines.iter().map(|(line, _)| Whereabouts {
            lid,
            qpn: line.qpn.get(),
            psn: line.psn,
        });
        let none = core::iter::repeat(Whereabouts::default());
        let said = ours.chain(none).take(told).map(Whereabouts::said);
        said.flatten().collect()
    }

    fn connect(&mut self, hca: &Hca<'_, SimPlatform>, said: &[u8]) -> Result<(), String> {
        let terms = self.terms();
        let peers = said.chunks(Whereabouts::SAID);
        for ((line, _), said) in self.lines.iter_mut().zip(peers) {
            let there = Whereabouts::heard(said).ok_or("the peer says no place")?;
            line.connect(hca, (self.pd, &terms), there)?;
        }
        Ok(())
    }

    /// Sends the next message of this QP.
    fn post(&mut self, hca: &Hca<'_, SimPlatform>, number: usize) -> Result<(), String> {
        let len = self.wish.size as usize;
        let at = self.slots * self.slot;
        let Some((line, turn)) = self.lines.get_mut(number) else {
            return Ok(());
        };
        if self.wish.kind != Kind::Srq || turn.posted == 0 {
            let data = self.wish.kind.data(turn.posted, len);
            self.area.memory.copy_in(at, &data).map_err(text)?;
        }
        let op = match line.ah {
            Some(ah) => SendOp::Datagram {
                ah,
                remote_qpn: core_ib::Qpn::new(line.peer),
                remote_qkey: QKEY,
                imm: None,
                pkey_index: 0,
            },
            None => SendOp::Send { imm: None },
        };
        let request = SendWr {
            wr_id: SENT,
            op,
            sges: &[self.area.sge(at, len)],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        turn.post();
        let qp = hca.qp(line.qp).map_err(text)?;
        qp.post_send(&[request]).map_err(text)
    }

    fn completed(&mut self, hca: &Hca<'_, SimPlatform>, wc: &WorkCompletion) -> Result<(), String> {
        let what = if wc.wr_id == SENT { "send" } else { "receive" };
        if wc.status != WcStatus::Success {
            return Err(format!("{:?} of a {what}", wc.status));
        }
        let mut lines = self.lines.iter_mut().enumerate();
        let Some((number, (_, turn))) = lines.find(|(_, (line, _))| line.qpn == wc.qpn) else {
            return Ok(());
        };
        if wc.wr_id == SENT {
            turn.went();
            self.sent += 1;
        } else {
            let round = turn.came;
            turn.came();
            self.received(hca, wc, round)?;
        }
        let free = self
            .lines
            .get(number)
            .is_some_and(|(_, turn)| turn.is_free());
        if free && self.sent < self.wish.count {
            // A server may be sent to before it hears that the client is ready.
            self.post(hca, number)?;
        }
        Ok(())
    }

    fn received(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        wc: &WorkCompletion,
        round: u32,
    ) -> Result<(), String> {
        let Wish {
            kind, size, peer, ..
        } = self.wish;
        let slot = wc.wr_id as usize;
        let front = kind.front();
        if wc.byte_len as usize != size as usize + front {
            return Err(format!("message {round} has {} bytes", wc.byte_len));
        }
        let found = self.area.bytes(slot * self.slot + front, size as usize)?;
        let checked = kind.check(peer.is_some(), round, &found);
        checked.map_err(|at| format!("message {round}: byte {at} is another"))?;
        self.checked += 1;
        self.receive(hca, slot)
    }
}

impl<'h> Game<'h> for Play<'h> {
    fn turn(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (ip, port, lid): (&mut IpHost, u16, u16),
        now: Instant,
    ) -> Result<bool, String> {
        let mut any = self.words(hca, (ip, port, lid), now)?;
        loop {
            let mut found = [WorkCompletion::EMPTY; 8];
            let cq = hca.cq(self.cq).map_err(text)?;
            let count = cq.poll(&mut found).map_err(text)?;
            drop(cq);
            if count == 0 {
                break;
            }
            any = true;
            if self.step == Step::Over {
                continue;
            }
            self.limit = now.after(PATIENCE);
            for wc in found.iter().take(count) {
                self.completed(hca, wc)?;
            }
        }
        let Wish { count, .. } = self.wish;
        if self.step == Step::Play && self.sent >= count && self.checked >= count {
            self.step = Step::Over;
            self.limit = now.after(LINGER);
            self.hang_up(ip);
            return Ok(true);
        }
        if self.step != Step::Over && self.limit <= now {
            return Err(match self.step {
                Step::Call => "nobody answers".into(),
                _ => format!("the peer is silent: nothing for {PATIENCE:?}"),
            });
        }
        Ok(any)
    }

    fn arm(&self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        let cq = hca.cq(self.cq).map_err(text)?;
        cq.req_notify(NotifyKind::Any).map_err(text)
    }

    fn end(self: Box<Self>, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        let lines = self.lines.into_iter();
        let ended = lines.map(|(line, _)| line.end(hca));
        ended.fold(Ok(()), Result::and)?;
        if let Some(srq) = self.srq {
            hca.destroy_srq(srq).map_err(text)?;
        }
        hca.destroy_cq(self.cq).map_err(text)?;
        self.area.end(hca)
    }

    fn hang_up(&mut self, ip: &mut IpHost) {
        if let Some(talk) = self.talk.take() {
            ip.hang_up(talk);
        }
    }

    fn counts(&self) -> (u32, u32) {
        (self.sent, self.checked)
    }

    fn limit(&self) -> Instant {
        self.limit
    }

    fn status(&self) -> usize {
        self.status
    }

    fn waits(&self) -> bool {
        self.wish.peer.is_none() && self.step == Step::Call
    }

    fn runs(&self) -> bool {
        self.step == Step::Play
    }

    fn is_over(&self) -> bool {
        self.step == Step::Over
    }
}
