//! Automatic path migration over one cable: the alternate path differs from the primary one in its service level, so that
//! the rig can cut either. verbs 11.

use super::tools::{Link, QUIET};
use super::{Features, Rig, Side};
use core_ib::Sl;
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AhAttr, AsyncEvent, Device, PathMigration, QpAttr, QpAttrMask as M, QpEvent, QpState, QpType,
    SendOp,
};

const PRIMARY: u8 = 0;
const ALTERNATE: u8 = 3;

/// A connection in RTS with an alternate path on both sides, not armed; `None` if there is no such thing.
fn link<R: Rig>(rig: &R, service: QpType) -> Option<Link<'_, R>> {
    if !rig.declared().has(Features::PATH_MIGRATION) {
        return None; // what is declared is proven by a case of `hca_and_port`
    }
    // So that it takes no long time to give a path up.
    let link = Link::with(rig, service, |_, attr| {
        (attr.timeout, attr.retry_count) = (10, 2);
    })?;
    for side in Side::BOTH {
        rearm(&link, side, ALTERNATE);
    }
    Some(link)
}

/// The path of a side by that service level.
fn path<R: Rig>(link: &Link<'_, R>, side: Side, sl: u8) -> AhAttr {
    AhAttr {
        sl: Sl::new(sl),
        ..link.station(side).address_of(side.peer())
    }
}

fn query<R: Rig>(link: &Link<'_, R>, side: Side) -> QpAttr {
    let qp = link.qp(side).handle;
    link.station(side).hca().query_qp(qp).unwrap()
}

/// Loads an alternate path, and asks for it to be armed.
fn rearm<R: Rig>(link: &Link<'_, R>, side: Side, sl: u8) {
    let alternate = path(link, side, sl);
    let mask = M::ALT_PATH | M::PATH_MIG_STATE;
    let qp = link.qp(side).handle;
    let done = link.station(side).modify(qp, QpState::Rts, mask, |attr| {
        (attr.alt_path, attr.alt_timeout) = (alternate, 10);
        attr.path_migration = PathMigration::Rearm;
    });
    assert_eq!(done, Ok(()), "{side:?}");
    let now = query(link, side);
    assert_eq!(now.path_migration, PathMigration::Rearm);
    assert_eq!((now.alt_path, now.alt_timeout), (alternate, 10));
}

/// A message each way.
fn traffic<R: Rig>(link: &Link<'_, R>) {
    for side in Side::BOTH {
        let (from, to) = (link.station(side), link.station(side.peer()));
        to.receive(link.qp(side.peer()).handle, 5, &[to.buffer.sge(256, 64)]);
        let message = SendOp::Send { imm: None };
        let qp = link.qp(side).handle;
        from.send(qp, 6, message, &[from.buffer.sge(0, 64)]);
        from.success(6);
        to.success(5);
    }
}

/// Messages go on both ways until both sides are armed.
fn arm<R: Rig>(link: &Link<'_, R>) {
    traffic(link);
    traffic(link);
    for side in Side::BOTH {
        assert_eq!(query(link, side).path_migration, PathMigration::Armed);
        assert_eq!(link.station(side).events(), [], "arming is not told");
    }
}

/// Both sides use the path `now`, have been told so once, and keep `before` as the other one.
fn has_migrated<R: Rig>(link: &Link<'_, R>, now: u8, before: u8, told: &[Side]) {
    for side in Side::BOTH {
        let attr = query(link, side);
        assert_eq!(attr.path_migration, PathMigration::Migrated, "{side:?}");
        assert_eq!(attr.path, path(link, side, now), "{side:?}");
        assert_eq!(attr.alt_path, path(link, side, before), "{side:?}");
        let event = AsyncEvent::Qp(link.qp(side).handle, QpEvent::PathMigrated);
        let events = link.station(side).events();
        // Whether a side that was asked to by its consumer is told of it is open: verbs 15.
        if told.contains(&side) || !events.is_empty() {
            assert_eq!(events, [event], "{side:?}");
        }
    }
}

/// Loses all that goes by service level `sl`.
fn cut<R: Rig>(rig: &R, sl: u8) {
    rig.filter(Some(Box::new(move |_, packet: &[u8]| {
        packet.get(1).is_none_or(|byte| byte >> 4 != sl)
    })));
}

/// verbs 11, T150: the primary path is cut.
pub fn an_armed_connection_goes_on_by_its_other_path<R: Rig>(rig: &R) {
    let Some(link) = link(rig, QpType::Rc) else {
        return;
    };
    arm(&link);
    cut(rig, PRIMARY);
    traffic(&link);
    has_migrated(&link, ALTERNATE, PRIMARY, &Side::BOTH);
    rig.filter(None);
    traffic(&link);
}

/// verbs 11, T151: and back, with the alternate path loaded anew.
pub fn a_connection_that_is_armed_again_migrates_back<R: Rig>(rig: &R) {
    let Some(link) = link(rig, QpType::Rc) else {
        return;
    };
    arm(&link);
    cut(rig, PRIMARY);
    traffic(&link);
    has_migrated(&link, ALTERNATE, PRIMARY, &Side::BOTH);
    rig.filter(None);
    for side in Side::BOTH {
        rearm(&link, side, PRIMARY);
    }
    arm(&link);
    cut(rig, ALTERNATE);
    traffic(&link);
    has_migrated(&link, PRIMARY, ALTERNATE, &Side::BOTH);
}

/// verbs 11, T152: a consumer asks for it, and the peer follows. UC has no other way of its own.
pub fn a_peer_follows_who_is_told_to_migrate<R: Rig>(rig: &R) {
    for service in [QpType::Rc, QpType::Uc] {
        let Some(link) = link(rig, service) else {
            return;
        };
        arm(&link);
        let mask = M::PATH_MIG_STATE;
        let done = link.a.modify(link.qa.handle, QpState::Rts, mask, |attr| {
            attr.path_migration = PathMigration::Migrated;
        });
        assert_eq!(done, Ok(()));
        link.a.machine().sleep(QUIET);
        traffic(&link);
        has_migrated(&link, ALTERNATE, PRIMARY, &[Side::B]);
    }
}
