//! Two connected QPs, one on each side, and memory that each lets the other use.

use super::super::{Features, Rig, Side};
use super::steps::way;
use super::{Buffer, MTU, Station, is_unsupported, lid, qp_init};
use core_ib::verbs::{
    Access, Device, QpAttr, QpInfo, QpInit, QpState, QpType, RemoteAddr, SendOp, WcStatus,
    WorkCompletion,
};
use core_ib::{Psn, RKey};

/// All that a peer may be allowed.
pub const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// See the module.
pub struct Link<'r, R: Rig> {
    /// RC or UC.
    pub service: QpType,
    /// Side A.
    pub a: Station<'r, R>,
    /// Side B.
    pub b: Station<'r, R>,
    /// QP of A.
    pub qa: QpInfo,
    /// QP of B.
    pub qb: QpInfo,
    /// 64 KiB of B that A may use.
    pub remote: Buffer<'r, R::Machine>,
}

impl<'r, R: Rig> Link<'r, R> {
    /// A connection in RTS on both sides; `None`, proven, if there is no such service.
    pub fn new(rig: &'r R, service: QpType) -> Option<Self> {
        Self::with(rig, service, |_, _| ())
    }

    /// The same, with some attributes changed on some side.
    pub fn with(rig: &'r R, service: QpType, change: impl Fn(Side, &mut QpAttr)) -> Option<Self> {
        let link = Self::in_reset(rig, service)?;
        for side in Side::BOTH {
            link.bring_to(side, QpState::Rts, |attr| change(side, attr));
        }
        Some(link)
    }

    /// The same in RESET.
    pub fn in_reset(rig: &'r R, service: QpType) -> Option<Self> {
        let [a, b] = Station::pair(rig);
        let feature = if service == QpType::Rc {
            Features::RC
        } else {
            Features::UC
        };
        if !rig.declared().has(feature) {
            is_unsupported(a.hca().create_qp(a.pd, &qp_init(service, a.cq)));
            return None;
        }
        let init = |cq| {
            let mut init = qp_init(service, cq);
            (init.caps.max_send_wr, init.caps.max_recv_wr) = (16, 16);
            init
        };
        let (qa, qb) = (a.create(&init(a.cq)), b.create(&init(b.cq)));
        let atomics = if rig.declared().has(Features::ATOMICS) {
            Access::REMOTE_ATOMIC
        } else {
            Access::empty()
        };
        let remote = Buffer::new(b.machine(), b.hca(), b.pd, 64 << 10, ALL_RIGHTS | atomics);
        Some(Self {
            service,
            a,
            b,
            qa,
            qb,
            remote,
        })
    }

    /// The station of that side.
    pub fn station(&self, side: Side) -> &Station<'r, R> {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// The QP of that side.
    pub fn qp(&self, side: Side) -> &QpInfo {
        match side {
            Side::A => &self.qa,
            Side::B => &self.qb,
        }
    }

    /// First PSN that this side sends.
    pub const fn first_psn(side: Side) -> Psn {
        match side {
            Side::A => Psn::new(0xff_fffd),
            Side::B => Psn::new(0x00_0100),
        }
    }

    /// Takes the QP of that side from RESET on.
    pub fn bring_to(&self, side: Side, state: QpState, change: impl Fn(&mut QpAttr)) {
        let station = self.station(side);
        let limits = station.hca().query_device();
        for (to, mask) in way(self.service, state) {
            let done = station.modify(self.qp(side).handle, to, mask, |attr| {
                *attr = station.values();
                attr.access = ALL_RIGHTS.difference(Access::LOCAL_WRITE) | Access::REMOTE_ATOMIC;
                attr.path.dlid = lid(side.peer());
                attr.path_mtu = MTU;
                attr.dest_qpn = self.qp(side.peer()).qpn;
                attr.sq_psn = Self::first_psn(side);
                attr.rq_psn = Self::first_psn(side.peer());
                (attr.timeout, attr.retry_count, attr.rnr_retry) = (14, 7, 7);
                attr.max_rd_atomic = limits.max_rd_atomic.min(4);
                attr.max_dest_rd_atomic = limits.max_dest_rd_atomic.min(4);
                change(attr);
            });
            assert_eq!(done, Ok(()), "{:?} of {side:?} to {to:?}", self.service);
        }
    }

    /// Where A writes and reads: `offset` in the memory of B.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            addr: self.remote.iova + offset,
            rkey: self.remote.mr.rkey,
        }
    }

    /// The same with another key.
    pub fn at_with(&self, offset: u64, rkey: RKey) -> RemoteAddr {
        RemoteAddr {
            rkey,
            ..self.at(offset)
        }
    }

    /// A carries out `op` with `length` bytes from `offset` of its buffer; how it ended.
    pub fn carry_out(&self, op: SendOp, offset: u64, length: u32) -> WorkCompletion {
        let sges = [self.a.buffer.sge(offset, length)];
        self.a.send(self.qa.handle, 7, op, &sges);
        let wc = self.a.completion();
        assert_eq!((wc.wr_id, wc.qpn), (7, self.qa.qpn));
        wc
    }

    /// A carries out `op`, which succeeds.
    pub fn succeeds(&self, op: SendOp, offset: u64, length: u32) -> WorkCompletion {
        let wc = self.carry_out(op, offset, length);
        assert_eq!(wc.status, WcStatus::Success, "{op:?}");
        wc
    }

    /// Another pair, after an error, on the same stations: both QPs in RESET and up again.
    pub fn start_anew(&self) {
        for side in Side::BOTH {
            let (station, qp) = (self.station(side), self.qp(side).handle);
            let none = core_ib::verbs::QpAttrMask::empty();
            assert_eq!(station.modify(qp, QpState::Reset, none, |_| ()), Ok(()));
            while station.hca().next_async_event().is_some() {}
            assert_eq!(station.poll(station.cq, 8), [], "nothing of the old life");
        }
        for side in Side::BOTH {
            self.bring_to(side, QpState::Rts, |_| ());
        }
    }

    /// An RC QP of B that receives through something else, say.
    pub fn replace_b(&mut self, init: &QpInit) {
        self.b.hca().destroy_qp(self.qb.handle).unwrap();
        self.qb = self.b.create(init);
    }
}
