//! The numbers of InfiniBand, each a type of its own, so that two of them exchanged do not compile.
//!
//! All are plain values in host order. Conversions to and from the wire are big-endian and live here too.

use core::fmt;

/// Local identifier: 16 bits that name a port (or a multicast group) within a subnet. protocols 1.2.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lid(pub u16);

impl Lid {
    /// "No LID assigned".
    pub const NONE: Self = Self(0);
    /// Taken by the first port that receives it on VL15.
    pub const PERMISSIVE: Self = Self(0xffff);
    /// First multicast LID.
    pub const MULTICAST_BASE: Self = Self(0xc000);

    /// 0x0001 to 0xBFFF.
    pub const fn is_unicast(self) -> bool {
        self.0 >= 1 && self.0 < 0xc000
    }

    /// 0xC000 to 0xFFFE.
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 != 0xffff
    }

    /// 0xFFFF.
    pub const fn is_permissive(self) -> bool {
        self.0 == 0xffff
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 0xc000 {
            write!(f, "{:#06x}", self.0)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// EUI-64 of a node, a port or a system image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

impl Guid {
    /// Where subnet administration is, under the prefix of any subnet. protocols 4.1, A.4.
    pub const SA: Self = Self(0x0200_0000_0000_0002);
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// Global identifier: 16 bytes, laid out as an IPv6 address. protocols 1.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: unspecified.
    pub const NONE: Self = Self([0; 16]);
    /// fe80::/64, the subnet prefix before a subnet manager says otherwise.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// The unicast GID of `guid` under `prefix`.
    pub const fn unicast(prefix: u64, guid: Guid) -> Self {
        Self((((prefix as u128) << 64) | guid.0 as u128).to_be_bytes())
    }

    /// The upper half: the subnet prefix of a unicast GID.
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half: the GUID of a unicast GID.
    pub const fn guid(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// First byte 0xFF.
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// All zero.
    pub const fn is_none(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from(self.0), f)
    }
}

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// QP0, the subnet management interface.
    pub const SMI: Self = Self(0);
    /// QP1, the general services interface.
    pub const GSI: Self = Self(1);
    /// Destination of multicast packets.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// From three big-endian bytes.
    pub const fn from_wire(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    /// As three big-endian bytes.
    pub const fn to_wire(self) -> [u8; 3] {
        let [_, high, mid, low] = self.0.to_be_bytes();
        [high, mid, low]
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Packet sequence number, 24 bits. Not `Ord`: it wraps, so ask [`Psn::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// From three big-endian bytes.
    pub const fn from_wire(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    /// As three big-endian bytes.
    pub const fn to_wire(self) -> [u8; 3] {
        let [_, high, mid, low] = self.0.to_be_bytes();
        [high, mid, low]
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` packets later, modulo 2^24.
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Packets from `expected` to `self`, modulo 2^24: 0 is the expected one, below 2^23 is
    /// ahead (packets were lost), the rest is a duplicate. protocols 2.3.2.
    pub const fn since(self, expected: Psn) -> u32 {
        self.0.wrapping_sub(expected.0) & 0xff_ffff
    }
}

/// Partition key: 15 bits of partition number, and the top bit for full membership. protocols 1.14.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);
    /// The default partition, limited member.
    pub const DEFAULT_LIMITED: Self = Self(0x7fff);

    /// Bit 15.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// The partition number without the membership bit; 0 is the invalid key.
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// May a packet that carries `self` enter a port that holds `other`? Same partition, and not two limited members.
    pub const fn matches(self, other: PKey) -> bool {
        self.base() != 0
            && self.base() == other.base()
            && (self.is_full_member() || other.is_full_member())
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Queue key of a datagram QP. protocols 1.14.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of every QP1.
    pub const GSI: Self = Self(0x8001_0000);
    /// Datagrams of the RDMA CM. protocols A.4.
    pub const RDMA_CM: Self = Self(0x0123_4567);
    /// What OpenSM gives to IPoIB groups. protocols A.4.
    pub const OPENSM_IPOIB: Self = Self(0x0b1b);
    /// In a send request: "use the QP's own". Bit 31.
    pub const CONTROLLED: u32 = 0x8000_0000;
}

/// Local key of a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LKey(pub u32);

/// Remote key of a memory region or window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RKey(pub u32);

/// Service level, 4 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sl(u8);

impl Sl {
    /// Keeps the low 4 bits of `value`.
    pub const fn new(value: u8) -> Self {
        Self(value & 0x0f)
    }

    /// The number, 0 to 15.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Maximum transfer unit. The discriminant is the code on the wire. protocols 1.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes of payload.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// From the code 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Bytes of payload.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The largest MTU of at most `bytes`.
    pub const fn at_most(bytes: usize) -> Option<Self> {
        match bytes {
            0..256 => None,
            256..512 => Some(Self::Mtu256),
            512..1024 => Some(Self::Mtu512),
            1024..2048 => Some(Self::Mtu1024),
            2048..4096 => Some(Self::Mtu2048),
            _ => Some(Self::Mtu4096),
        }
    }
}

/// Rate code of a path or of a static rate; an open set. protocols A.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rate(pub u8);

impl Rate {
    /// As fast as the port: 0 in an address vector.
    pub const PORT: Self = Self(0);
    /// 1X SDR.
    pub const GBPS_2_5: Self = Self(2);
    /// 4X SDR.
    pub const GBPS_10: Self = Self(3);
    /// 12X SDR.
    pub const GBPS_30: Self = Self(4);
    /// 1X DDR.
    pub const GBPS_5: Self = Self(5);
    /// 4X DDR.
    pub const GBPS_20: Self = Self(6);
    /// 4X QDR.
    pub const GBPS_40: Self = Self(7);
    /// 12X DDR.
    pub const GBPS_60: Self = Self(8);
    /// 8X QDR.
    pub const GBPS_80: Self = Self(9);
    /// 12X QDR.
    pub const GBPS_120: Self = Self(10);

    /// Nominal rate in Mbit/s, by which codes compare: their own order is not that of the rates. `None` for a code that
    /// is not known or is [`Rate::PORT`]. protocols A.2.
    pub const fn mbps(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_000,
            12 => 56_000,
            13 => 112_000,
            14 => 168_000,
            15 => 25_000,
            16 => 100_000,
            17 => 200_000,
            18 => 300_000,
            19 => 28_000,
            20 => 50_000,
            21 => 400_000,
            22 => 600_000,
            23 => 800_000,
            24 => 1_200_000,
            _ => return None,
        })
    }

    /// In units of 2.5 Gbit/s, to the nearest (an FDR lane is 14.0625 Gbit/s, so 56 are 22.5, and 23); `None` for a
    /// code that is not known or is [`Rate::PORT`].
    pub const fn multiple(self) -> Option<u32> {
        Some(match self.0 {
            2 => 1,
            3 => 4,
            4 => 12,
            5 => 2,
            6 => 8,
            7 => 16,
            8 => 24,
            9 => 32,
            10 => 48,
            11 => 6,
            12 => 23,
            13 => 45,
            14 => 68,
            15 => 10,
            16 => 40,
            17 => 80,
            18 => 120,
            19 => 11,
            20 => 20,
            21 => 160,
            22 => 240,
            23 => 320,
            24 => 480,
            _ => return None,
        })
    }
}

/// A point on the machine's monotonic clock, in nanoseconds since some fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// The last that a clock shows, 292 years after its beginning. Everything due later than this can be told from it.
    pub const LAST: Self = Self(u64::MAX / 2);

    /// The same, or the last that a clock shows: for whoever is told what time it is, so that what he plans for later is later.
    pub const fn on_the_clock(self) -> Self {
        self.min(Self::LAST)
    }

    /// `self` plus `wait`, saturating at [`Instant::NEVER`].
    pub const fn after(self, wait: core::time::Duration) -> Self {
        let nanos = wait.as_nanos();
        if nanos > u64::MAX as u128 {
            return Self::NEVER;
        }
        Self(self.0.saturating_add(nanos as u64))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> core::time::Duration {
        core::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The earlier of the two.
    pub const fn min(self, other: Instant) -> Instant {
        if other.0 < self.0 { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_psn_behind_is_more_than_half_the_space_ahead() {
        assert_eq!(Psn::new(5).since(Psn::new(3)), 2);
        assert_eq!(Psn::new(0).since(Psn::new(0xff_ffff)), 1);
        assert!(Psn::new(3).since(Psn::new(5)) > 1 << 23);
    }

    #[test]
    fn a_rate_has_a_multiple_if_and_only_if_it_has_a_speed_and_they_agree() {
        for code in 0..=u8::MAX {
            let rate = Rate(code);
            let (mbps, multiple) = (rate.mbps(), rate.multiple());
            assert_eq!(mbps.is_some(), multiple.is_some(), "{code}");
            if let (Some(mbps), Some(multiple)) = (mbps, multiple) {
                assert!((multiple * 2_500).abs_diff(mbps) <= 2_000, "{code}");
            }
        }
        assert_eq!(Rate(24).multiple(), Some(480));
    }

    #[test]
    fn two_limited_members_do_not_meet() {
        assert!(PKey(0xffff).matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }

    #[test]
    fn an_mtu_code_is_the_logarithm_of_its_bytes() {
        let bytes = [1, 2, 3, 4, 5].map(|code| Mtu::from_code(code).map(Mtu::bytes));
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096].map(Some));
        assert_eq!(Mtu::at_most(2047), Some(Mtu::Mtu1024));
        for mtu in [1, 2, 3, 4, 5].map(Mtu::from_code) {
            assert_eq!(mtu.map(Mtu::bytes).and_then(Mtu::at_most), mtu);
        }
    }

    /// protocols A.2.
    #[test]
    fn rates_compare_by_their_speed_and_not_by_their_code() {
        assert!(Rate::GBPS_5.mbps() < Rate::GBPS_10.mbps());
        assert_eq!(
            [2, 11, 15, 24].map(|code| Rate(code).mbps()),
            [Some(2_500), Some(14_000), Some(25_000), Some(1_200_000)]
        );
        assert_eq!([0, 1, 25].map(|code| Rate(code).mbps()), [None; 3]);
    }

    #[test]
    fn a_gid_is_prefix_and_guid() {
        let gid = Gid::unicast(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
        assert_eq!(gid.prefix(), Gid::DEFAULT_PREFIX);
        assert_eq!(gid.guid(), Guid(0x0002_c903_0000_1001));
        assert_eq!((gid.0[0], gid.0[15]), (0xfe, 0x01));
    }
}
