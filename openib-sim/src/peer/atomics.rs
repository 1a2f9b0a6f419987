//! `ib_atomic_bw` of perftest, both ends of it: atomic operations of one end on the memory of the other.
//!
//! Over TCP the ends go through a list of messages in step, the client first in each: versions, sizes, MTUs, where their
//! QPs and memory are (three times), and after the atomics that again, five figures, and that again. The tool looks at no
//! result. A server of ours sums its memory up; a client of ours looks at each value that was there before.

use super::line::{Area, Line, Terms, Whereabouts};
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
/// Where the QPs are said first, where the atomics are over, and where it is said how many there were.
const WHERE: usize = 4;
const AFTER: usize = 7;
const COUNT: usize = 9;
const PLACE: usize = 59;
/// Bytes that the peer may work on; the results come behind them.
const MEMORY: usize = 8192;
/// What each word of it is in the beginning. The tool adds 1, or swaps 0 with 0 where it finds that: then nothing changes.
const FIRST: u64 = 1;

const TERMS: Terms = Terms {
    service: QpType::Rc,
    mtu: Mtu::Mtu1024,
    qkey: QKey(0),
    access: Access::REMOTE_ATOMIC,
};

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
pub(super) struct Atomics<'h> {
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
    /// What the peer's word holds.
    value: u64,
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

impl<'h> Atomics<'h> {
    pub(super) fn new(
        machine: &'h SimPlatform,
        hca: &Hca<'_, SimPlatform>,
        (pd, port, psn): (PdHandle, u8, u32),
        (wish, status): (Wish, usize),
    ) -> Result<Self, String> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let area = Area::new(machine, hca, pd, (MEMORY + 64, access))?;
        let words: Vec<u8> = (0..MEMORY / 8).flat_map(|_| FIRST.to_ne_bytes()).collect();
        area.memory.copy_in(0, &words).map_err(text)?;
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
        let line = match Line::new(hca, (pd, cq, port), (None, 4), (&TERMS, psn)) {
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
            value: 0,
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
            self.line.connect(hca, (self.pd, &TERMS), there)?;
        }
        if self.at == COUNT && self.wish.peer.is_none() {
            let count = heard
                .first_chunk()
                .map_or(0, |count| u64::from_be_bytes(*count));
            let bytes = self.area.bytes(0, MEMORY)?;
            let (words, _) = bytes.as_chunks();
            let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            // The peer is to come to its end all the same.
            self.wrong = check(&words, self.wish.count.into());
            self.checked = count as u32;
        }
        Ok(())
    }

    /// The next operation of ours: an addition, a swap, and a swap that finds something else, in turn; an addition of
    /// nothing first.
    fn operate(&mut self, hca: &Hca<'_, SimPlatform>) -> Result<(), String> {
        let remote = self.remote;
        let number = u64::from(self.sent).wrapping_mul(0x0001_0203_0405_0607);
        let op = match self.sent % 3 {
            0 => SendOp::FetchAdd {
                remote,
                add: number,
            },
            kind => SendOp::CompareSwap {
                remote,
                compare: if kind == 1 { self.value } else { !self.value },
                swap: number,
            },
        };
        let request = SendWr {
            wr_id: 0,
            op,
            sges: &[self.area.sge(MEMORY, 8)],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        self.waits = true;
        let qp = hca.qp(self.line.qp).map_err(text)?;
        qp.post_send(&[request]).map_err(text)
    }

    /// It is done.
    fn operated(&mut self) -> Result<(), String> {
        let bytes = self.area.bytes(MEMORY, 8)?;
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
        self.waits = false;
        self.sent += 1;
        self.checked += 1;
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

impl<'h> Game<'h> for Atomics<'h> {
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
    fn memory_adds_up_to_all_additions_and_no_more() {
        assert_eq!(check(&[3, 1, 2], 3), Ok(()));
        assert!(check(&[3, 1, 2], 4).is_err());
        assert_eq!(check(&[1, 1, 1], 0), Ok(()));
        assert!(check(&[0, 1, 1], 0).is_err());
    }
}
