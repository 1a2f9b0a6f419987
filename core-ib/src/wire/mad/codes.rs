//! Numbers in code that several attributes share: times, MTUs, virtual lanes, selectors. protocols 4.4, A.

use super::layout::{bits, number};
use crate::types::Mtu;
use core::time::Duration;

/// A time of 4.096 µs × 2^n, n in five bits. protocols A.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimeCode(pub u8);

impl TimeCode {
    /// The time, 4.096 µs to 2.4 hours. Bits above the fifth are not looked at.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << (self.0 & 0x1f))
    }

    /// The shortest time of at least `duration`; the longest there is if none is.
    pub const fn at_least(duration: Duration) -> Self {
        let mut code = Self(0);
        while code.0 < 31 && code.duration().as_nanos() < duration.as_nanos() {
            code.0 += 1;
        }
        code
    }

    /// As head-of-queue and switch lifetimes count: `None` is forever.
    pub const fn lifetime(self) -> Option<Duration> {
        if self.0 > 19 {
            None
        } else {
            Some(self.duration())
        }
    }
}

/// Code of an MTU, which may be none of the five that exist. protocols A.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MtuCode(pub u8);

impl MtuCode {
    /// The MTU, if there is one of this code.
    pub const fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.0)
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        Self(mtu.code())
    }
}

/// Code of a number of data virtual lanes: 1 to 5 for 1, 2, 4, 8, 15. protocols 3.8.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlCode(pub u8);

impl VlCode {
    /// VL0 to VL(n−1); `None` for a code without meaning.
    pub const fn lanes(self) -> Option<u8> {
        match self.0 {
            1 => Some(1),
            2 => Some(2),
            3 => Some(4),
            4 => Some(8),
            5 => Some(15),
            _ => None,
        }
    }
}

/// How the value beside it is meant in a query. protocols 4.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selector {
    /// More than the value.
    #[default]
    GreaterThan = 0,
    /// Less than the value.
    LessThan = 1,
    /// The value itself; every answer says so.
    Exactly = 2,
    /// The largest to be had (the shortest packet lifetime); the value does not count.
    Best = 3,
}

impl Selector {
    /// Whether `value` is one that a query for `asked` wants. For rates, of their [speeds](crate::types::Rate::mbps).
    pub fn admits<T: Ord>(self, value: T, asked: T) -> bool {
        match self {
            Self::GreaterThan => value > asked,
            Self::LessThan => value < asked,
            Self::Exactly => value == asked,
            Self::Best => true,
        }
    }
}

/// Key that guards a node against foreign subnet managers; 0 is none. protocols 3.9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MKey(pub u64);

/// Key by which subnet managers and trusted requesters know each other; 0 is untrusted. protocols 3.8.12, 4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SmKey(pub u64);

number! {
    MKey, 8, |bits| Self(bits), |key| key.0;
    SmKey, 8, |bits| Self(bits), |key| key.0;
    TimeCode, 1, |bits| Self(bits as u8), |code| code.0.into();
    MtuCode, 1, |bits| Self(bits as u8), |code| code.0.into();
    VlCode, 1, |bits| Self(bits as u8), |code| code.0.into();
}

bits! {
    Selector, |bits| match bits & 3 {
        0 => Self::GreaterThan,
        1 => Self::LessThan,
        2 => Self::Exactly,
        _ => Self::Best,
    }, |selector| selector as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_code_is_that_of_the_table() {
        assert_eq!(TimeCode(0).duration(), Duration::from_nanos(4096));
        assert_eq!(TimeCode(14).duration(), Duration::from_nanos(67_108_864));
        assert_eq!(TimeCode(31).duration().as_secs(), 8796);
        assert_eq!(TimeCode::at_least(Duration::from_millis(100)), TimeCode(15));
        assert_eq!(TimeCode::at_least(Duration::MAX), TimeCode(31));
        assert_eq!(TimeCode(20).lifetime(), None);
    }

    /// protocols 4.4.
    #[test]
    fn a_selector_admits_what_its_name_says() {
        use Selector::{Best, Exactly, GreaterThan, LessThan};
        let admits = |value| [GreaterThan, LessThan, Exactly, Best].map(|by| by.admits(value, 5));
        assert_eq!(admits(4), [false, true, false, true]);
        assert_eq!(admits(5), [false, false, true, true]);
        assert_eq!(admits(6), [true, false, false, true]);
    }

    #[test]
    fn five_codes_of_virtual_lanes_have_a_meaning() {
        let lanes = [0, 1, 2, 3, 4, 5, 6].map(|code| VlCode(code).lanes());
        assert_eq!(
            lanes,
            [None, Some(1), Some(2), Some(4), Some(8), Some(15), None]
        );
    }
}
