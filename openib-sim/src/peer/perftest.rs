//! `ib_atomic_bw`, `ib_read_bw` and `ib_write_bw` of perftest, both ends of each: one end works on the memory of the other.
//!
//! Over TCP the ends go through a list of messages in step, the client first in each: versions, sizes, MTUs, where their
//! QPs and memory are (three times), and after the work that again, five figures, and that again. The tool looks at no
//! result. Of atomics a server of ours sums its memory up, and a client of ours looks at each value that was there before.
//! Of reads a client reads all of the peer's memory once, and then pieces of it, each of which is to be what was there.
//! Of writes a server finds its memory written over; what a client writes it cannot read back, since the tool does not let it.

use super::line::{Area, Line, Terms, Whereabouts};
use super::pingpong::Kind;
use super::play::{Game, PATIENCE, Wish};
use crate::ip::{IpHost, Talk, TalkState};
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, CompletionQueue, CqHandle, CqInit, Device, NotifyKind, Owner, PdHandle, QpType,
    QueuePair, RemoteAddr, SendFlags, SendOp, SendWr, Verbs, WcStatus, WorkCompletion,
};
use core_ib::{Instant, Mtu, QKey, RKey};
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;

/// Bytes of the messages, in order: those before the atomics, then those behind them.
const SCRIPT: [usize; 14] = [
    16, 4, 4, 2, PLACE, PLACE, PLACE, PLACE, 8, 8, 8, 8, 8, PLACE,
];
/// Where the QPs are said first, where the work is over, and where it is said how much there was.
const WHERE: usize = 4;
const AFTER: usize = 7;
const COUNT: usize = 9;
const PLACE: usize = 59;
/// Bytes that the peer may work on, at least: the tools go through a page of small messages. The results come behind them.
const MEMORY: usize = 8192;
/// What memory is filled with that is to be read into, or written.
const NOTHING: u8 = 0xee;
/// What each word of it is in the beginning. The tool adds 1, or swaps 0 with 0 where it finds that: then nothing changes.
const FIRST: u64 = 1;

/// What the peer may do.
const fn right(kind: Kind) -> Access {
    match kind {
        Kind::Read => Access::REMOTE_READ,
        Kind::Write => Access::REMOTE_WRITE,
        _ => Access::REMOTE_ATOMIC,
    }
}

const fn terms(kind: Kind) -> Terms {
    Terms {
        service: QpType::Rc,
        mtu: Mtu::Mtu1024,
        qkey: QKey(0),
        access: right(kind),
    }
}

/// Is there something of a peer's in each block of what it wrote?
fn written(memory: &[u8]) -> Result<(), String> {
    let mut blocks = memory.chunks(64).enumerate();
    // A few bytes may be the same by chance.
    let bare =
        blocks.find(|(_, block)| block.len() >= 8 && block.iter().all(|byte| *byte == NOTHING));
    bare.map_or(Ok(()), |(block, _)| {
        Err(format!("nothing was written at byte {}", block * 64))
    })
}

/// The piece of `size` bytes that operation `number` is about: all of them first.
const fn piece(number: u32, size: usize) -> (usize, usize) {
    if number == 0 {
        return (0, size);
    }
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let at = (mixed >> 40) as usize % size;
    (at, 1 + (mixed >> 8) as u32 as usize % (size - at))
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// Do these words add up to so many additions of 1?
fn check(words: &[u64], count: u64) -> Result<(), String> {
    let sum = words
        .iter()
        .fold(0, |sum: u64, word| sum.wrapping_add(*word));
    let more = sum.wrapping_sub(FIRST.wrapping_mul(words.len() as u64));
    match more == count {
        true => Ok(()),
        false => Err(format!("{more} were added, and {count} were to be")),
    }
}

/// See the module.
pub(super) struct Perftest<'h> {
    wish: Wish,
    talk: Option<Talk>,
    at: usize,
    /// The client has said its part.
    said: bool,
    pd: PdHandle,
    cq: CqHandle,
    area: Area<'h>,
    line: Line,
    remote: RemoteAddr,
    /// Bytes that the peer may work on.
    memory: usize,
    /// What the peer's word holds.
    value: u64,
    /// What the peer's memory held when it was read first.
    before: Vec<u8>,
    /// One is under way.
    waits: bool,
    over: bool,
    /// What the memory of a server did not hold.
    wrong: Result<(), String>,
    limit: Instant,
    status: usize,
    sent: u32,
    checked: u32,
}

impl<'h> Perftest<'h> {
    pub(super) fn new(
        machine: &'h SimPlatform,
        hca: &Hca<'_, SimPlatform>,
        (pd, port, psn): (PdHandle, u8, u32),
        (wish, status): (Wish, usize),
    ) -> Result<Self, String> {
        let access = Access::LOCAL_WRITE | right(wish.kind);
        let size = wish.size as usize;
        let memory = MEMORY.max(size.next_multiple_of(64));
        let area = Area::new(machine, hca, pd, (memory + size.max(64), access))?;
        let first: Vec<u8> = match wish.kind {
            Kind::Atomic => (0..memory / 8).flat_map(|_| FIRST.to_ne_bytes()).collect(),
            _ => vec![NOTHING; memory],
        };
        let filled = area.memory.copy_in(0, &first).map_err(text);
        if let Err(error) = filled {
            area.end(hca)?;
            return Err(error);
        }
        let init = CqInit {
            cqe: 16,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = match hca.create_cq(&init) {
            Ok(cq) => cq.handle,
            Err(error) => {
                area.end(hca)?;
                return Err(text(error));
            }
        };
        let line = match Line::new(hca, (pd, cq, port), (None, 4), (&terms(wish.kind), psn)) {
            Ok(line) => line,
            Err(error) => {
                hca.destroy_cq(cq).map_err(text)?;
                area.end(hca)?;
                return Err(error);
            }
        };
        Ok(Self {
            wish,
            talk: None,
            at: 0,
            said: false,
            pd,
            cq,
            area,
            line,
            remote: RemoteAddr {
                addr: 0,
                rkey: RKey(0),
            },
            memory,
            value: 0,
            before: Vec::new(),
            waits: false,
            over: false,
            wrong: Ok(()),
            limit: match wish.peer {
                Some(_) => machine.now().after(PATIENCE),
                None => Instant::NEVER,
            },
            status,
            sent: 0,
            checked: 0,
        })
    }

    /// Our part of the message at hand; a server that has nothing to add says what it heard.
    fn words(&self, lid: u16, heard: Option<&[u8]>) -> Vec<u8> {
        let len = SCRIPT.get(self.at).copied().unwrap_or_default();
        let mut words = match (self.at, len) {
            (_, PLACE) => {
                let (qpn, psn, rkey) = (self.line.qpn.get(), self.line.psn, self.area.rkey);
                let (reads, addr, srq) = (1, 0, 0);
                format!(
                    "{lid:04x}:{reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:{srq:08x}"
                )
                .into_bytes()
            }
            (3, _) => b"3".to_vec(),
            (_, _) if heard.is_some() => heard.unwrap_or_default().to_vec(),
            (0, _) => b"6.06".to_vec(),
            (1, _) => 4096_u32.to_be_bytes().to_vec(),
            (2, _) => 64_u32.to_be_bytes().to_vec(),
            (8, _) => 8_u64.to_be_bytes().to_vec(),
            (COUNT, _) => u64::from(self.wish.count).to_be_bytes().to_vec(),
            _ => Vec::new(),
        };
        words.resize(len, 0);
        words
    }

    fn heard(&mut self, hca: &Hca<'_, SimPlatform>, heard: &[u8]) -> Result<(), String> {
        if self.at == WHERE {
            let said = core::str::from_utf8(heard).map_err(text)?;
            let words = said.trim_end_matches('\0').split(':');
            let numbers: Option<Vec<u64>> = words
                .map(|word| u64::from_str_radix(word, 16).ok())
                .collect();
            let Some([lid, _, qpn, psn, rkey, addr, _]) = numbers.as_deref() else {
                return Err(format!("the peer says no place: {said}"));
            };
            self.remote = RemoteAddr {
                addr: *addr,
                rkey: RKey(*rkey as u32),
            };
            let there = Whereabouts {
                lid: *lid as u16,
                qpn: *qpn as u32 & 0xff_ffff,
                psn: *psn as u32 & 0xff_ffff,
            };
            self.line
                .connect(hca, (self.pd, &terms(self.wish.kind)), there)?;
        }
        if self.at == COUNT && self.wish.peer.is_none() {
            let count = heard
                .first_chunk()
                .map_or(0, |count| u64::from_be_bytes(*count));
            // The peer is to come to its end all the same.
            self.wrong = self.holds_what_it_should(count);
            self.checked = count as u32;
        }
        Ok(())
    }

    /// Is our memory what so many operations of the peer have made of it?
    fn holds_what_it_should(&self, count: u64) -> Result<(), String> {
        let Wish { kind, size, .. } = self.wish;
        match kind {
            Kind::Write => written(&self.area.bytes(0, size as usize)?),
            Kind::Read => match self
                .area
                .bytes(0, self.memory)?
                .iter()
                .all(|byte| *byte == NOTHING)
            {
                true => Ok(()),
                false => Err("memory that was read is another".into()),
            },
            _ => {
                let bytes = self.area.bytes(0, MEMORY)?;
                let (words, _) = bytes.as_chunks();
                let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                check(&words, self.wish.count.into())
            }
        }?;
        match kind == Kind::Atomic || count >= u64::from(self.wish.count) {
            true => Ok(()),
            false => Err(format!(
                "{count} operations, and {} were to be",
                self.wish.count
            )),
        }
    }

    /// The next operation of ours. Of atomics an addition, a swap, and a swap that finds something else, in turn; an
    /// addition of nothing first. Of reads and writes everything first, then pieces.
    fn operate(&mut self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        let remote = self.remote;
        let number = u64::from(self.sent).wrapping_mul(0x0001_0203_0405_0607);
        let (at, len) = piece(self.sent, self.wish.size as usize);
        let there = RemoteAddr {
            addr: remote.addr.wrapping_add(at as u64),
            ..remote
        };
        let (op, len) = match (self.wish.kind, self.sent % 3) {
            (Kind::Read, _) => (SendOp::RdmaRead { remote: there }, len),
            (Kind::Write, _) => {
                let remote = there;
                (SendOp::RdmaWrite { remote, imm: None }, len)
            }
            (_, 0) => {
                let add = number;
                (SendOp::FetchAdd { remote, add }, 8)
            }
            (_, kind) => {
                let compare = if kind == 1 { self.value } else { !self.value };
                let swap = number;
                let op = SendOp::CompareSwap {
                    remote,
                    compare,
                    swap,
                };
                (op, 8)
            }
        };
        if self.wish.kind != Kind::Atomic {
            let byte = if self.wish.kind == Kind::Read {
                NOTHING
            } else {
                self.sent as u8
            };
            let first = vec![byte; len];
            self.area
                .memory
                .copy_in(self.memory, &first)
                .map_err(text)?;
        }
        let request = SendWr {
            wr_id: 0,
            op,
            sges: &[self.area.sge(self.memory, len)],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        self.waits = true;
        let qp = hca.qp(self.line.qp).map_err(text)?;
        qp.post_send(&[request]).map_err(text)
    }

    /// It is done.
    fn operated(&mut self) -> Result<(), String> {
        match self.wish.kind {
            Kind::Read => self.has_read()?,
            Kind::Write => {}
            _ => self.was_atomic()?,
        }
        self.waits = false;
        self.sent += 1;
        self.checked += u32::from(self.wish.kind != Kind::Write);
        Ok(())
    }

    fn has_read(&mut self) -> Result<(), String> {
        let (at, len) = piece(self.sent, self.wish.size as usize);
        let found = self.area.bytes(self.memory, len)?;
        if self.sent == 0 {
            self.before = found;
            return Ok(());
        }
        match self.before.get(at..at + len) == Some(&*found) {
            true => Ok(()),
            false => Err(format!(
                "read {}: {len} bytes at {at} are others",
                self.sent
            )),
        }
    }

    fn was_atomic(&mut self) -> Result<(), String> {
        let bytes = self.area.bytes(self.memory, 8)?;
        let before = bytes
            .first_chunk()
            .map_or(0, |word| u64::from_ne_bytes(*word));
        let number = u64::from(self.sent).wrapping_mul(0x0001_0203_0405_0607);
        if self.sent == 0 {
            self.value = before;
        }
        if before != self.value {
            let value = self.value;
            return Err(format!(
                "operation {} found {before:#x} and not {value:#x}",
                self.sent
            ));
        }
        match self.sent % 3 {
            0 => self.value = before.wrapping_add(number),
            1 => self.value = number,
            _ => {}
        }
        Ok(())
    }

    fn step(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (ip, talk, lid): (&mut IpHost, Talk, u16),
    ) -> Result<bool, String> {
        let Some(&len) = SCRIPT.get(self.at) else {
            // The word at the end is not waited for.
            self.over = ip.say(talk, b"done\0");
            return self.wrong.clone().map(|()| true);
        };
        let client = self.wish.peer.is_some();
        if client && !self.said {
            if self.at == AFTER && self.sent < self.wish.count {
                if !self.waits {
                    self.operate(hca)?;
                    return Ok(true);
                }
                return Ok(false);
            }
            self.said = ip.say(talk, &self.words(lid, None));
            return Ok(self.said);
        }
        let Some(heard) = ip.hear(talk, len) else {
            return match ip.talk_state(talk) {
                TalkState::Over => Err("the peer hung up".into()),
                _ => Ok(false),
            };
        };
        self.heard(hca, &heard)?;
        if !client {
            ip.say(talk, &self.words(lid, Some(&heard)));
        }
        self.at += 1;
        self.said = false;
        Ok(true)
    }
}

impl<'h> Game<'h> for Perftest<'h> {
    fn turn(
        &mut self,
        hca: &Hca<'_, SimPlatform>,
        (ip, port, lid): (&mut IpHost, u16, u16),
        now: Instant,
    ) -> Result<bool, String> {
        if self.over {
            return Ok(false);
        }
        let talk = *self.talk.get_or_insert_with(|| match self.wish.peer {
            Some(peer) => ip.call(peer),
            None => ip.await_call(port),
        });
        let mut any = false;
        let mut found = [WorkCompletion::EMPTY; 4];
        let cq = hca.cq(self.cq).map_err(text)?;
        let count = cq.poll(&mut found).map_err(text)?;
        drop(cq);
        for wc in found.iter().take(count) {
            if wc.status != WcStatus::Success {
                return Err(format!("{:?} of operation {}", wc.status, self.sent));
            }
            self.operated()?;
            any = true;
        }
        match ip.talk_state(talk) {
            TalkState::Waiting => {}
            TalkState::Over if self.at == 0 => return Err("the peer takes no connection".into()),
            _ => {
                while !self.over && self.step(hca, (ip, talk, lid))? {
                    any = true;
                }
            }
        }
        if self.over {
            self.hang_up(ip);
            self.limit = now;
        } else if any {
            self.limit = now.after(PATIENCE);
        } else if self.limit <= now && !(self.wish.peer.is_none() && self.at == AFTER) {
            return Err(format!("the peer is silent: nothing for {PATIENCE:?}"));
        }
        if self.wish.peer.is_none() && self.at == AFTER && !self.over {
            // The HCA alone knows of what the peer does; its TCP connection tells of its end.
            self.limit = Instant::NEVER;
        }
        Ok(any)
    }

    fn arm(&self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        let cq = hca.cq(self.cq).map_err(text)?;
        cq.req_notify(NotifyKind::Any).map_err(text)
    }

    fn end(self: Box<Self>, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        self.line.end(hca)?;
        hca.destroy_cq(self.cq).map_err(text)?;
        self.area.end(hca)
    }

    fn waits(&self) -> bool {
        self.wish.peer.is_none() && self.at == 0
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

    fn is_over(&self) -> bool {
        self.over
    }

    fn runs(&self) -> bool {
        self.at >= AFTER - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_in_the_memory_and_the_first_is_all_of_it() {
        for size in [1, 2, 64, 4097, 1 << 20] {
            assert_eq!(piece(0, size), (0, size));
            for number in 1..200 {
                let (at, len) = piece(number, size);
                assert!(len > 0 && at + len <= size, "{at} {len} of {size}");
            }
        }
    }

    #[test]
    fn memory_that_was_not_written_is_found() {
        let mut memory = vec![7; 300];
        assert_eq!(written(&memory), Ok(()));
        memory[64..128].fill(NOTHING);
        assert!(written(&memory).is_err());
        memory[100] = 0;
        assert_eq!(written(&memory), Ok(()));
    }

    #[test]
    fn memory_adds_up_to_all_additions_and_no_more() {
        assert_eq!(check(&[3, 1, 2], 3), Ok(()));
        assert!(check(&[3, 1, 2], 4).is_err());
        assert_eq!(check(&[1, 1, 1], 0), Ok(()));
        assert!(check(&[0, 1, 1], 0).is_err());
    }
}
