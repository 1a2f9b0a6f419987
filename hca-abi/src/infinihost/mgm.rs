//! Multicast group entry. infinihost 4.12.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Members of an entry of the size that drivers with 256-byte entries use.
pub const MEMBERS: usize = 56;

/// One entry of 256 bytes: a group, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Mgm {
    next: U32,
    reserved: [U32; 3],
    gid: [u8; 16],
    members: [U32; MEMBERS],
}
static_assertions::const_assert_eq!(size_of::<Mgm>(), 256);
static_assertions::const_assert_eq!(core::mem::offset_of!(Mgm, members), 0x20);

impl Mgm {
    /// Unused.
    pub const ZERO: Self = Self {
        next: U32::ZERO,
        reserved: [U32::ZERO; 3],
        gid: [0; 16],
        members: [U32::ZERO; MEMBERS],
    };

    /// Index of the next entry of the chain; 0 ends it.
    pub const fn next(&self) -> u32 {
        self.next.get() >> 6
    }

    /// Writes [`next`](Self::next).
    pub const fn set_next(&mut self, index: u32) -> &mut Self {
        self.next = U32::new(index << 6);
        self
    }

    /// The group; all zero: unused.
    pub const fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// Writes [`gid`](Self::gid).
    pub const fn set_gid(&mut self, gid: [u8; 16]) -> &mut Self {
        self.gid = gid;
        self
    }

    /// Place `at`: the QP if there is a member; `None` also beyond the last place.
    pub fn member(&self, at: usize) -> Option<u32> {
        let dword = self.members.get(at)?.get();
        (dword & 1 << 31 != 0).then_some(dword & 0xff_ffff)
    }

    /// Writes place `at`. Beyond the last place nothing happens.
    pub fn set_member(&mut self, at: usize, qpn: Option<u32>) -> &mut Self {
        if let Some(member) = self.members.get_mut(at) {
            *member = U32::new(qpn.map_or(0, |qpn| 1 << 31 | qpn & 0xff_ffff));
        }
        self
    }

    /// All members, whatever gaps there are.
    pub fn members(&self) -> impl Iterator<Item = u32> + '_ {
        (0..MEMBERS).filter_map(|at| self.member(at))
    }
}

impl Default for Mgm {
    fn default() -> Self {
        Self::ZERO
    }
}

impl core::fmt::Debug for Mgm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut out = f.debug_struct("Mgm");
        out.field("next", &self.next()).field("gid", &self.gid);
        self.members().for_each(|qpn| {
            out.field("member", &qpn);
        });
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_group_with_two_members_byte_by_byte() {
        let mut mgm = Mgm::ZERO;
        mgm.set_next(0x1001).set_gid([0xff; 16]);
        mgm.set_member(0, Some(0x404))
            .set_member(1, Some(0x12_3456));
        let bytes = mgm.as_bytes();
        assert_eq!(bytes[..4], [0, 4, 0, 0x40]);
        assert_eq!(bytes[0x10..0x20], [0xff; 16]);
        assert_eq!(bytes[0x20..0x28], [0x80, 0, 4, 4, 0x80, 0x12, 0x34, 0x56]);
        assert!(bytes[0x28..].iter().all(|&byte| byte == 0));
    }

    proptest! {
        #[test]
        fn a_member_can_be_set_anywhere_and_nowhere_else(at in 0..80_usize, qpn: u32) {
            let mut mgm = Mgm::ZERO;
            mgm.set_member(at, Some(qpn));
            let expected = (at < MEMBERS).then_some(qpn & 0xff_ffff);
            prop_assert_eq!(mgm.member(at), expected);
            prop_assert_eq!(mgm.members().count(), usize::from(at < MEMBERS));
        }
    }
}
