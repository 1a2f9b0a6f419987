//! Memory windows of type 1, as far as the side that binds sees them: verbs 1.2, 7.7, 7.9. That a peer may do what the
//! window lends, and no more, is among the cases about the memory of the peer.

use super::tools::{Buffer, Station, is_busy, is_invalid_handle, is_unsupported, qp_init};
use super::{Features, Rig, Side};
use core_ib::verbs::{
    Access, Device, MwHandle, MwKind, PdHandle, PostCause, QpInfo, QpState, QpType, SendOp,
    WcOpcode, WcStatus,
};

/// Rights of a region that windows may be bound to.
pub const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

/// A connected QP of one side, that leads nowhere, and a window and a region in its PD.
struct Desk<'r, R: Rig> {
    station: Station<'r, R>,
    qp: QpInfo,
    service: QpType,
    window: MwHandle,
    region: Buffer<'r, R::Machine>,
}

impl<'r, R: Rig> Desk<'r, R> {
    /// `None`, proven, if there are no windows or no such service.
    fn new(rig: &'r R, service: QpType) -> Option<Self> {
        let station = Station::new(rig, Side::A);
        let window = station.hca().alloc_mw(station.pd, MwKind::Type1);
        if !rig.declared().has(Features::WINDOWS_1) {
            is_unsupported(window);
            return None;
        }
        let feature = match service {
            QpType::Rc => Features::RC,
            _ => Features::UC,
        };
        let init = qp_init(service, station.cq);
        if !rig.declared().has(feature) {
            is_unsupported(station.hca().create_qp(station.pd, &init));
            return None;
        }
        super::tools::activate(rig);
        let qp = station.ready(&init);
        let (machine, hca) = (station.machine(), station.hca());
        let region = Buffer::new(machine, hca, station.pd, 8192, BINDABLE);
        Some(Self {
            qp,
            service,
            window: window.unwrap().0,
            region,
            station,
        })
    }

    /// `length` bytes from `offset` of the region.
    fn lend(&self, offset: u64, length: u64, access: Access) -> SendOp {
        SendOp::BindMw {
            mw: self.window,
            mr: self.region.mr.handle,
            addr: self.region.iova.wrapping_add(offset),
            length,
            access,
        }
    }

    fn unbind(&self) -> SendOp {
        self.lend(0, 0, Access::empty())
    }

    fn carry_out(&self, op: SendOp) -> WcStatus {
        self.station.send(self.qp.handle, 3, op, &[]);
        let wc = self.station.completion();
        assert_eq!((wc.wr_id, wc.qpn), (3, self.qp.qpn));
        if wc.status == WcStatus::Success {
            assert_eq!(wc.opcode, WcOpcode::BindMw);
        }
        wc.status
    }

    /// The bind is refused, which the QP does not survive as it was; another life for it.
    fn is_refused(&self, op: SendOp, what: &str) {
        let hca = self.station.hca();
        assert_eq!(self.carry_out(op), WcStatus::MwBind, "{what}");
        let state = match self.service {
            QpType::Rc => QpState::Error,
            _ => QpState::Sqe,
        };
        assert_eq!(self.station.state(self.qp.handle), state, "{what}");
        let none = core_ib::verbs::QpAttrMask::empty();
        let reset = self
            .station
            .modify(self.qp.handle, QpState::Reset, none, |_| ());
        assert_eq!(reset, Ok(()));
        while hca.next_async_event().is_some() {}
        self.station
            .bring_to(self.service, self.qp.handle, QpState::Rts);
    }
}

/// verbs 1.2, 7.7, T006.
pub fn a_region_with_a_window_bound_to_it_is_busy_until_it_is_unbound<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig, QpType::Rc) else {
        return;
    };
    let (hca, mr) = (desk.station.hca(), desk.region.mr.handle);
    let bind = desk.lend(8, 64, Access::REMOTE_READ);
    assert_eq!(desk.carry_out(bind), WcStatus::Success);
    is_busy(hca.dereg_mr(mr));
    // SAFETY: no memory is given.
    is_busy(unsafe { hca.rereg_mr(mr, None, None, Some(BINDABLE)) });
    let again = desk.carry_out(desk.lend(0, 8, Access::REMOTE_READ));
    assert_eq!(again, WcStatus::Success, "still usable");
    assert_eq!(desk.carry_out(desk.unbind()), WcStatus::Success);
    assert_eq!(hca.dereg_mr(mr), Ok(()));
}

/// verbs 1.2, 7.9: a window that goes is unbound.
pub fn a_region_is_free_once_its_window_is_gone<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig, QpType::Rc) else {
        return;
    };
    let hca = desk.station.hca();
    let bind = desk.lend(8, 64, Access::REMOTE_READ);
    assert_eq!(desk.carry_out(bind), WcStatus::Success);
    is_busy(hca.dereg_mr(desk.region.mr.handle));
    assert_eq!(hca.dealloc_mw(desk.window), Ok(()));
    is_invalid_handle(hca.dealloc_mw(desk.window));
    is_invalid_handle(hca.mw_rkey(desk.window));
    assert_eq!(hca.dereg_mr(desk.region.mr.handle), Ok(()));
    let stale = [super::tools::send_wr(4, bind, &[])];
    let refused = desk.station.post_send(desk.qp.handle, &stale).unwrap_err();
    assert_eq!(refused.cause, PostCause::InvalidHandle);
}

/// verbs 7.9: no two binds of a window have the same key.
pub fn each_bind_gives_the_window_another_key<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig, QpType::Uc) else {
        return;
    };
    let hca = desk.station.hca();
    let mut keys = std::collections::BTreeSet::new();
    keys.insert(hca.mw_rkey(desk.window).unwrap().0);
    for length in [8, 16, 0, 16, 0] {
        let bind = desk.lend(0, length, Access::REMOTE_WRITE);
        assert_eq!(desk.carry_out(bind), WcStatus::Success);
        assert!(keys.insert(hca.mw_rkey(desk.window).unwrap().0), "{length}");
    }
}

/// A window in another PD, or a region there.
fn in_another_pd<R: Rig>(desk: &Desk<'_, R>) -> (PdHandle, MwHandle) {
    let hca = desk.station.hca();
    let pd = hca.alloc_pd().unwrap();
    (pd, hca.alloc_mw(pd, MwKind::Type1).unwrap().0)
}

/// verbs 6.1, 7.9, T130.
pub fn a_bind_that_region_window_or_pd_do_not_allow_ends_with_mw_bind<R: Rig>(rig: &R) {
    for service in [QpType::Rc, QpType::Uc] {
        let Some(desk) = Desk::new(rig, service) else {
            continue;
        };
        let (hca, station) = (desk.station.hca(), &desk.station);
        let make = |pd, access| Buffer::new(station.machine(), hca, pd, 4096, access);
        let (other_pd, foreign_window) = in_another_pd(&desk);
        let foreign = make(other_pd, BINDABLE);
        let closed = make(station.pd, Access::LOCAL_WRITE);
        let read_only = make(station.pd, Access::MW_BIND);
        let to = |buffer: &Buffer<'_, R::Machine>, access| SendOp::BindMw {
            mw: desk.window,
            mr: buffer.mr.handle,
            addr: buffer.iova,
            length: 8,
            access,
        };
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        desk.is_refused(desk.lend(8192 - 7, 8, read), "one byte beyond");
        desk.is_refused(desk.lend(1_u64.wrapping_neg(), 8, read), "one byte before");
        desk.is_refused(desk.lend(0, 8193, read), "longer");
        desk.is_refused(to(&closed, read), "no bind right");
        desk.is_refused(to(&read_only, write), "written though read only");
        desk.is_refused(to(&foreign, read), "region of another PD");
        let theirs = SendOp::BindMw {
            mw: foreign_window,
            mr: desk.region.mr.handle,
            addr: desk.region.iova,
            length: 8,
            access: read,
        };
        desk.is_refused(theirs, "window of another PD");
        if rig.declared().has(Features::ATOMICS) {
            let atomic = Access::REMOTE_ATOMIC;
            desk.is_refused(to(&read_only, atomic), "atomics though read only");
        }
        let fits = desk.carry_out(desk.lend(8192 - 8, 8, read | write));
        assert_eq!(fits, WcStatus::Success);
        assert_eq!(desk.carry_out(to(&read_only, read)), WcStatus::Success);
    }
}

/// verbs 4.2, 4.3, 7.9: what cannot be asked for is refused at once.
pub fn a_bind_of_local_rights_or_on_a_datagram_qp_is_not_posted<R: Rig>(rig: &R) {
    let Some(desk) = Desk::new(rig, QpType::Rc) else {
        return;
    };
    let refused = |qp, op| {
        let posted = desk
            .station
            .post_send(qp, &[super::tools::send_wr(5, op, &[])]);
        posted.unwrap_err().cause
    };
    for access in [Access::LOCAL_WRITE, Access::MW_BIND, Access::ZERO_BASED] {
        let op = desk.lend(0, 8, access | Access::REMOTE_READ);
        assert_eq!(refused(desk.qp.handle, op), PostCause::InvalidAttr);
    }
    let ud = desk.station.ud();
    let op = desk.lend(0, 8, Access::REMOTE_READ);
    assert_eq!(refused(ud.handle, op), PostCause::InvalidOpcode);
    desk.station.stays_quiet();
    assert_eq!(desk.station.state(desk.qp.handle), QpState::Rts);
}
