//! The acknowledge header (AETH): 4 bytes in which a responder says how far it got, or what is wrong.
//!
//! Coding of the syndrome: protocols 2.4.

use super::super::WireError;
use super::view::HeaderView;
use core::fmt;
use core::time::Duration;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Message sequence number, 24 bits: messages that the responder has completed. protocols 2.4.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` messages later, modulo 2^24.
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Messages from `earlier` to `self`, modulo 2^24.
    pub const fn since(self, earlier: Msn) -> u32 {
        self.0.wrapping_sub(earlier.0) & 0xff_ffff
    }
}

/// Value of a 5-bit code that doubles every second step: 0, 1, 2, 3, 4, 6, 8, 12, 16 …
const fn stepped(code: u8) -> u32 {
    match code & 0x1f {
        code @ 0..=1 => code as u32,
        code if code % 2 == 0 => 1 << (code / 2),
        code => 3 << (code / 2 - 1),
    }
}

/// End-to-end credits as coded in an ACK, 5 bits. protocols 2.4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditCode(u8);

impl CreditCode {
    /// "Not reporting credits": lifts the limit.
    pub const NONE: Self = Self(31);

    /// Keeps the low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The largest code that promises no more than `count` receive work requests.
    pub const fn at_most(count: u32) -> Self {
        let mut code = 30;
        while stepped(code) > count {
            code -= 1;
        }
        Self(code)
    }

    /// The number of credits; `None` if the responder does not report them.
    pub const fn credits(self) -> Option<u32> {
        match self.0 {
            31 => None,
            code => Some(stepped(code)),
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// How long a requester waits after "receiver not ready", 5 bits. protocols 2.4.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Keeps the low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The shortest timer of at least `wait`; the longest there is, 655.36 ms, if all are shorter.
    pub const fn at_least(wait: Duration) -> Self {
        let wait = wait.as_nanos();
        let mut code = 1;
        while code < 32 {
            if Self(code).duration().as_nanos() >= wait {
                return Self(code);
            }
            code += 1;
        }
        Self(0)
    }

    /// The time to wait, at least.
    pub const fn duration(self) -> Duration {
        let tens_of_micros = match self.0 {
            0 => 65_536,
            code => stepped(code) as u64,
        };
        Duration::from_micros(tens_of_micros * 10)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Reason of a negative acknowledge, 5 bits. An open set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NakCode(u8);

impl NakCode {
    /// A packet is missing before this one.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request makes no sense to the responder.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The key or the range does not allow it.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder could not do it.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// RD only.
    pub const INVALID_RD_REQUEST: Self = Self(4);

    /// Keeps the low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// First byte of an AETH as it lies there; [`Syndrome::kind`] takes it apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(pub u8);

/// What a syndrome means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyndromeKind {
    /// All well up to this PSN.
    Ack(CreditCode),
    /// No receive work request; try again after this time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
    /// Bit 7 set, or the reserved kind: to be treated as a bad response.
    Reserved,
}

impl Syndrome {
    /// An ACK.
    pub const fn ack(credits: CreditCode) -> Self {
        Self(credits.0)
    }

    /// Receiver not ready.
    pub const fn rnr_nak(timer: RnrTimer) -> Self {
        Self(0x20 | timer.0)
    }

    /// A refusal.
    pub const fn nak(code: NakCode) -> Self {
        Self(0x60 | code.0)
    }

    /// What it means.
    pub const fn kind(self) -> SyndromeKind {
        match self.0 >> 5 {
            0 => SyndromeKind::Ack(CreditCode::new(self.0)),
            1 => SyndromeKind::RnrNak(RnrTimer::new(self.0)),
            3 => SyndromeKind::Nak(NakCode::new(self.0)),
            _ => SyndromeKind::Reserved,
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome({:#04x}, {:?})", self.0, self.kind())
    }
}

/// The header as it lies in a packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AethView {
    syndrome: u8,
    msn: [u8; 3],
}
const_assert_eq!(size_of::<AethView>(), 4);

impl HeaderView for AethView {
    const NAME: &'static str = "AETH";
}

/// What the header means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

impl From<&AethView> for Aeth {
    fn from(view: &AethView) -> Self {
        let [high, mid, low] = view.msn;
        Self {
            syndrome: Syndrome(view.syndrome),
            msn: Msn(u32::from_be_bytes([0, high, mid, low])),
        }
    }
}

impl From<&Aeth> for AethView {
    fn from(aeth: &Aeth) -> Self {
        let [_, high, mid, low] = aeth.msn.0.to_be_bytes();
        Self {
            syndrome: aeth.syndrome.0,
            msn: [high, mid, low],
        }
    }
}

impl Aeth {
    /// Reads the header at the front of `bytes`; gives back what follows it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (view, rest) = AethView::split(bytes)?;
        Ok((Self::from(view), rest))
    }

    /// Writes the header to the front of `out`; gives back the room behind it.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        AethView::from(self).put(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn credit_codes_stand_for_the_numbers_of_the_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, credits) in (0..31).zip(table) {
            assert_eq!(CreditCode::new(code).credits(), Some(credits));
            assert_eq!(CreditCode::at_most(credits).code(), code);
        }
        assert_eq!(CreditCode::NONE.credits(), None);
        assert_eq!(CreditCode::at_most(5).code(), 4);
        assert_eq!(CreditCode::at_most(u32::MAX).code(), 30);
    }

    #[test]
    fn rnr_codes_stand_for_the_times_of_the_table() {
        let hundredths_of_ms = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        for (code, hundredths) in (0..32).zip(hundredths_of_ms) {
            let wait = Duration::from_micros(hundredths * 10);
            assert_eq!(RnrTimer::new(code).duration(), wait);
            assert_eq!(RnrTimer::at_least(wait).code(), code);
        }
        assert_eq!(RnrTimer::at_least(Duration::ZERO).code(), 1);
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).code(), 0);
    }

    #[test]
    fn nak_bytes_are_those_of_the_table() {
        let codes = [
            NakCode::PSN_SEQUENCE_ERROR,
            NakCode::INVALID_REQUEST,
            NakCode::REMOTE_ACCESS_ERROR,
            NakCode::REMOTE_OPERATIONAL_ERROR,
            NakCode::INVALID_RD_REQUEST,
        ];
        assert_eq!(
            codes.map(|code| Syndrome::nak(code).0),
            [0x60, 0x61, 0x62, 0x63, 0x64]
        );
    }

    #[test]
    fn a_reserved_syndrome_is_none_of_the_three_kinds() {
        for byte in (0x40..0x60).chain(0x80..=0xff) {
            assert_eq!(Syndrome(byte).kind(), SyndromeKind::Reserved);
        }
        assert_eq!(Syndrome(0x1f).kind(), SyndromeKind::Ack(CreditCode::NONE));
        assert_eq!(
            Syndrome(0x2c).kind(),
            SyndromeKind::RnrNak(RnrTimer::new(12))
        );
    }

    proptest! {
        #[test]
        fn what_is_read_writes_back_the_same(bytes: [u8; 4], len in 0..5_usize) {
            match Aeth::read(&bytes[..len]) {
                Ok((aeth, _)) => {
                    let mut again = [0; 4];
                    aeth.write(&mut again).unwrap();
                    prop_assert_eq!(again, bytes);
                }
                Err(error) => prop_assert_eq!(
                    error,
                    WireError::Truncated { header: "AETH", need: 4, have: len }
                ),
            }
        }
    }
}
