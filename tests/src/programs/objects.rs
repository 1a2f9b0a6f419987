//! The handles that a program's names stand for, on one side.

use super::super::conformance::Side;
use super::super::conformance::tools::{MGID, MLID, lid};
use super::call::{Address, Group, Name, PLACES};
use core_ib::verbs::{
    AhAttr, AhHandle, CqHandle, FmrHandle, GlobalRoute, MrHandle, MwHandle, PdHandle, QpHandle,
    SrqHandle,
};
use core_ib::{Gid, Lid};

/// Handles of a kind, of what may be gone.
pub type Handles<H> = [Option<H>; PLACES as usize];

/// Handles of a side.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub pds: Handles<PdHandle>,
    pub cqs: Handles<CqHandle>,
    pub srqs: Handles<SrqHandle>,
    pub qps: Handles<QpHandle>,
    pub mrs: Handles<MrHandle>,
    pub mws: Handles<MwHandle>,
    pub fmrs: Handles<FmrHandle>,
    pub ahs: Handles<AhHandle>,
}

/// The handle that `name` means on `side`.
pub fn handle<H: Copy>(
    all: &[Objects; 2],
    side: usize,
    name: Name,
    of: fn(&Objects) -> &Handles<H>,
) -> H {
    let owner = if name.0 < PLACES { side } else { 1 - side };
    let handle = of(&all[owner])[usize::from(name.0 % PLACES)];
    handle.expect("the model knows what was ever there")
}

/// GID and LID of a group.
pub fn group(group: Group) -> (Gid, Lid) {
    let Gid(mut second) = MGID;
    second[15] ^= 0xff;
    let mut unicast = MGID.0;
    unicast[0] = 0xfe;
    match group {
        Group::One => (MGID, MLID),
        Group::Two => (Gid(second), Lid(MLID.0 + 1)),
        Group::Unicast => (Gid(unicast), MLID),
        Group::UnicastLid => (MGID, Lid(0x77)),
    }
}

/// An address as the verbs have it.
pub fn address(side: usize, to: Address) -> AhAttr {
    let plain = |dlid| AhAttr {
        port: 1,
        dlid,
        ..AhAttr::default()
    };
    let routed = |dlid, dgid, sgid_index| AhAttr {
        grh: Some(GlobalRoute {
            dgid,
            sgid_index,
            ..GlobalRoute::default()
        }),
        ..plain(dlid)
    };
    let here = lid(Side::BOTH[side]);
    match to {
        Address::Here => plain(here),
        Address::There => plain(lid(Side::BOTH[1 - side])),
        Address::Nowhere => plain(Lid(0x300)),
        Address::Group(which) => {
            let (mgid, mlid) = group(which);
            routed(mlid, mgid, 0)
        }
        Address::Bare => plain(MLID),
        Address::NoLid => plain(Lid(0)),
        Address::BadPort => AhAttr {
            port: 9,
            ..plain(here)
        },
        Address::BadGid => routed(here, MGID, 0xff),
    }
}
