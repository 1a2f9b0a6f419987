//! What the pingpongs of `ibverbs-utils` say over TCP and over their QPs, both ends of it, without either.
//!
//! The client says where its QPs are, the server answers with its own, the client says that it is ready. Then either end
//! sends a message and gets one, over each QP by itself, until as many have gone and come in all as were agreed on.
//!
//! The tools look at the first byte of each page alone, which is to be 0. What we send has every byte depend on where it
//! is and, with one QP, on the round; and all of what comes is checked. A server of theirs sends back what it got. A
//! client of theirs begins with memory that was set to one value, and then sends back what it got from us.

use super::line::Whereabouts;
use core_ib::verbs::QpType;

/// Where the tools listen.
pub const PORT: u16 = 18515;
/// Bytes of the largest message.
pub const LARGEST: u32 = 1 << 20;
/// QPs of the one with an SRQ, and how many are said to be.
const SHARED: usize = 16;
const SHARED_SAID: usize = 256;
/// Bytes of a page of the guests'.
const PAGE: usize = 4096;

/// Which of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ibv_rc_pingpong`.
    Rc,
    /// `ibv_uc_pingpong`.
    Uc,
    /// `ibv_ud_pingpong`.
    Ud,
    /// `ibv_srq_pingpong`: RC, several QPs, and an SRQ for all of them.
    Srq,
    /// No pingpong: `ib_atomic_bw` of perftest, which begins like them.
    Atomic,
    /// `ib_read_bw`.
    Read,
    /// `ib_write_bw`.
    Write,
}

impl Kind {
    /// By its name.
    pub fn of(name: &str) -> Option<Self> {
        let all = [Self::Rc, Self::Uc, Self::Ud, Self::Srq];
        all.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
            Self::Atomic => "atomics",
            Self::Read => "reads",
            Self::Write => "writes",
        }
    }

    /// Is it one of perftest's, and no pingpong?
    pub const fn is_perftest(self) -> bool {
        matches!(self, Self::Atomic | Self::Read | Self::Write)
    }

    /// Bytes of the largest message.
    pub const fn largest(self) -> u32 {
        match self {
            Self::Ud => 2048,
            _ => LARGEST,
        }
    }

    /// Of its QPs.
    pub(super) const fn service(self) -> QpType {
        match self {
            Self::Rc | Self::Srq | Self::Atomic | Self::Read | Self::Write => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// QPs that are used, and those that the other end is told of.
    pub(super) const fn lines(self) -> (usize, usize) {
        match self {
            Self::Srq => (SHARED, SHARED_SAID),
            _ => (1, 1),
        }
    }

    /// Bytes in front of a message that was received.
    pub(super) const fn front(self) -> usize {
        match self {
            Self::Ud => 40,
            _ => 0,
        }
    }

    /// What a client's memory holds in the beginning.
    const fn blank(self) -> u8 {
        match self {
            Self::Srq => 0,
            _ => 0x7b,
        }
    }

    /// The message of a round. All QPs with an SRQ have one piece of memory at the tools' end.
    pub fn data(self, round: u32, len: usize) -> Vec<u8> {
        let round = if self == Self::Srq { 0 } else { round };
        let byte = |at: usize| {
            let mixed = (at as u32).wrapping_mul(0x9e37_79b1) ^ round.wrapping_mul(0x85eb_ca6b);
            if at.is_multiple_of(PAGE) {
                0
            } else {
                (mixed >> 16) as u8
            }
        };
        (0..len).map(byte).collect()
    }

    /// Is `found` what may come as message `round`? Says the first byte that is none.
    pub fn check(self, client: bool, round: u32, found: &[u8]) -> Result<(), usize> {
        let own = self.data(round, found.len());
        let differs = |expected: &[u8]| expected.iter().zip(found).position(|(a, b)| a != b);
        let Some(at) = differs(&own) else {
            return Ok(());
        };
        if client {
            return Err(at);
        }
        if let Some(before) = round.checked_sub(1) {
            return differs(&self.data(before, found.len())).map_or(Ok(()), Err);
        }
        // Set to one value but for the first byte of each page; what we sent on another QP may be there already.
        let mut all = found.iter().zip(&own).enumerate();
        let other = all.position(|(at, (&byte, &own))| {
            let first = at.is_multiple_of(PAGE) && byte == 0;
            byte != self.blank() && !first && !(self == Self::Srq && byte == own)
        });
        other.map_or(Ok(()), Err)
    }
}

impl Whereabouts {
    /// Bytes of it as text, with the zero behind it.
    pub(super) const SAID: usize = 52;

    /// As text: LID, QPN and PSN, and no GID.
    pub(super) fn said(self) -> [u8; Self::SAID] {
        let Self { lid, qpn, psn } = self;
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{:032x}", 0);
        let mut said = [0; Self::SAID];
        for (to, from) in said.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        said
    }

    /// From such a text.
    pub(super) fn heard(said: &[u8]) -> Option<Self> {
        let text = said.split(|byte| *byte == 0).next()?;
        let text = core::str::from_utf8(text).ok()?;
        let mut words = text.split(':');
        let mut number = || u32::from_str_radix(words.next()?, 16).ok();
        Some(Self {
            lid: u16::try_from(number()?).ok()?,
            qpn: number()? & 0xff_ffff,
            psn: number()? & 0xff_ffff,
        })
    }
}

/// One QP's turn: a message is sent when the last one went and one came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    waits: bool,
    sends: bool,
    /// Messages that were posted, and that came.
    pub(super) posted: u32,
    pub(super) came: u32,
}

impl Turn {
    pub(super) const fn new(client: bool) -> Self {
        Self {
            waits: !client,
            sends: false,
            posted: 0,
            came: 0,
        }
    }

    pub(super) const fn is_free(&self) -> bool {
        !self.waits && !self.sends
    }

    /// A message is posted.
    pub(super) const fn post(&mut self) {
        (self.waits, self.sends) = (true, true);
        self.posted = self.posted.wrapping_add(1);
    }

    /// It went.
    pub(super) const fn went(&mut self) {
        self.sends = false;
    }

    /// One came.
    pub(super) const fn came(&mut self) {
        self.waits = false;
        self.came = self.came.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_is_named_in_fifty_two_bytes_of_text() {
        let there = Whereabouts {
            lid: 0x1b,
            qpn: 0x40_0406,
            psn: 0x00_abcd,
        };
        let said = there.said();
        let text = b"001b:400406:00abcd:00000000000000000000000000000000\0";
        assert_eq!(&said, text);
        assert_eq!(Whereabouts::heard(&said), Some(there));
        assert_eq!(Whereabouts::heard(b"001b:4004"), None);
        assert_eq!(Whereabouts::heard(b"11001b:400406:00abcd:0"), None);
    }

    #[test]
    fn a_message_has_zeros_where_the_tools_look_and_differs_from_that_of_another_round() {
        let data = Kind::Rc.data(3, 10_000);
        assert_eq!([data[0], data[4096], data[8192]], [0; 3]);
        assert_ne!(data, Kind::Rc.data(4, 10_000));
        assert_eq!(Kind::Srq.data(3, 100), Kind::Srq.data(4, 100));
    }

    #[test]
    fn a_server_takes_blank_memory_first_and_then_what_it_sent_and_a_client_only_its_own() {
        let mut blank = vec![0x7b; 5000];
        (blank[0], blank[4096]) = (0, 0);
        assert_eq!(Kind::Rc.check(false, 0, &blank), Ok(()));
        assert_eq!(Kind::Rc.check(false, 1, &blank), Err(1));
        assert_eq!(Kind::Rc.check(true, 0, &blank), Err(1));
        blank[4000] = 1;
        assert_eq!(Kind::Uc.check(false, 0, &blank), Err(4000));
        let sent = Kind::Rc.data(4, 5000);
        assert_eq!(Kind::Rc.check(false, 5, &sent), Ok(()));
        assert_eq!(Kind::Rc.check(true, 4, &sent), Ok(()));
        assert!(Kind::Rc.check(false, 6, &sent).is_err());
        assert!(Kind::Rc.check(true, 5, &sent).is_err());
    }

    #[test]
    fn a_turn_is_free_when_a_message_went_and_one_came() {
        let mut turn = Turn::new(true);
        assert!(turn.is_free());
        turn.post();
        turn.came();
        assert!(!turn.is_free());
        turn.went();
        assert!(turn.is_free());
        assert!(!Turn::new(false).is_free());
    }
}
