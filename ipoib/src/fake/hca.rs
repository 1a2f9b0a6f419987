//! A fake HCA: UD and nothing else.

use super::fabric::{Fabric, HcaState, Qp, QpState as State, Recv, Region, Send};
use core_ib::platform::DmaAddr;
use core_ib::verbs::{
    Access, AhAttr, AhHandle, AsyncEvent, CompletionQueue, CqHandle, CqInit, Created, Device,
    DeviceAttr, DeviceModify, FmrHandle, FmrInit, Handle, Mad256, MadFlags, MadOutcome, MadSource,
    Mr, MrHandle, MrInit, MwHandle, MwKind, NotifyKind, PdHandle, PortAttr, PortModify, PostCause,
    PostError, QpAttr, QpAttrMask, QpHandle, QpInfo, QpInit, QpState, QpType, QueuePair, RecvWr,
    SendOp, SendWr, SharedReceiveQueue, SrqAttr, SrqHandle, SrqInit, UserHandle, Verbs, VerbsError,
    WholeMemoryKey, WorkCompletion, check_modify,
};
use core_ib::{Gid, Guid, LKey, Lid, Mtu, PKey, Qpn, RKey, Sl};
use std::collections::VecDeque;

/// The HCA at `place` of a fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hca<'f> {
    pub(crate) fabric: &'f Fabric,
    pub(crate) place: usize,
}

const NOT_HERE: VerbsError = VerbsError::Unsupported { feature: "this" };

fn unknown<T>(object: &'static str) -> Result<T, VerbsError> {
    Err(VerbsError::InvalidHandle { object })
}

impl Hca<'_> {
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut HcaState) -> T) -> T {
        self.fabric.with(|state| f(&mut state.hcas[self.place]))
    }

    fn violates(&self, what: &str) {
        self.fabric.with(|state| state.violations.push(what.into()));
    }

    fn name_of<K>(&self, number: u32) -> Handle<K> {
        Handle::new(self.place as u32, number, 0)
    }

    /// Makes something, if the budget allows.
    fn make<T>(&self, f: impl FnOnce(&mut HcaState, u32) -> T) -> Result<T, VerbsError> {
        self.with(|hca| {
            match &mut hca.budget {
                Some(0) => {
                    return Err(VerbsError::NoResources {
                        entry: "budget",
                        limit: 0,
                    });
                }
                Some(left) => *left -= 1,
                None => {}
            }
            let number = hca.number();
            Ok(f(hca, number))
        })
    }
}

const fn to_fake(state: QpState) -> State {
    match state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts | QpState::Sqd => State::Rts,
        QpState::Sqe => State::Sqe,
        QpState::Error => State::Error,
    }
}

const fn from_fake(state: State) -> QpState {
    match state {
        State::Reset => QpState::Reset,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqe => QpState::Sqe,
        State::Error => QpState::Error,
    }
}

impl Device for Hca<'_> {
    fn name(&self) -> &str {
        "fake"
    }
    fn query_device(&self) -> DeviceAttr {
        DeviceAttr {
            node_guid: Guid(1),
            sys_image_guid: Guid(1),
            fw_version: [0; 3],
            vendor_id: 0,
            vendor_part_id: 0,
            hw_version: 0,
            port_count: 1,
            caps: self.with(|hca| hca.caps),
            max_qp: 100,
            max_qp_wr: 1000,
            max_sge: 1,
            max_inline: 0,
            max_cq: 100,
            max_cqe: 1000,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_mr: 100,
            max_mr_size: 1 << 30,
            page_sizes: 0xffff_f000,
            max_pd: 10,
            max_ah: 1000,
            max_mw: 0,
            max_fmr: 0,
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            max_mcast_groups: 100,
            max_mcast_qp_attach: 8,
            local_ca_ack_delay: 0,
            completion_vectors: 1,
        }
    }
    fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        if port != 1 {
            return Err(VerbsError::InvalidPort { port, count: 1 });
        }
        Ok(self.with(|hca| PortAttr {
            state: if hca.active { 4 } else { 1 },
            phys_state: 5,
            max_mtu: Mtu::Mtu2048,
            active_mtu: Mtu::Mtu2048,
            gid_table_len: 1,
            pkey_table_len: hca.pkeys.len() as u16,
            max_msg_size: 1 << 30,
            lid: hca.lid,
            lmc: 0,
            sm_lid: Lid(1),
            sm_sl: Sl::new(0),
            subnet_timeout: 18,
            capability_mask: 0,
            bad_pkey_counter: 0,
            qkey_violation_counter: 0,
            max_vl: 1,
            active_width: 2,
            active_speed: 1,
            gid_prefix: Gid::DEFAULT_PREFIX,
        }))
    }
    fn query_gid(&self, _: u8, _: u16) -> Result<Gid, VerbsError> {
        Ok(self.with(|hca| hca.gid))
    }
    fn query_pkey(&self, _: u8, index: u16) -> Result<PKey, VerbsError> {
        Ok(self.with(|hca| hca.pkeys[usize::from(index)]))
    }
    fn modify_device(&self, _: &DeviceModify<'_>) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn modify_port(&self, _: u8, _: &PortModify) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn alloc_user(&self) -> Result<UserHandle, VerbsError> {
        Err(NOT_HERE)
    }
    fn user_doorbell_page(&self, _: UserHandle) -> Result<u64, VerbsError> {
        Err(NOT_HERE)
    }
    fn dealloc_user(&self, _: UserHandle) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }

    fn alloc_pd(&self) -> Result<PdHandle, VerbsError> {
        self.make(|hca, number| {
            hca.pds.insert(number);
            self.name_of(number)
        })
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), VerbsError> {
        self.with(|hca| {
            let holders = hca.ahs.len() + hca.qps.len() + hca.regions.len();
            if holders > 0 && hca.pds.len() == 1 {
                return Err(VerbsError::Busy {
                    object: "PD",
                    holders: holders as u32,
                });
            }
            if hca.pds.remove(&pd.index()) {
                Ok(())
            } else {
                unknown("PD")
            }
        })
    }
    fn whole_memory_key(&self, _: PdHandle) -> Result<WholeMemoryKey, VerbsError> {
        Err(NOT_HERE)
    }

    fn create_ah(&self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbsError> {
        assert!(self.with(|hca| hca.pds.contains(&pd.index())));
        self.make(|hca, number| {
            hca.ahs.insert(number, *attr);
            self.name_of(number)
        })
    }
    fn query_ah(&self, _: AhHandle) -> Result<AhAttr, VerbsError> {
        Err(NOT_HERE)
    }
    fn modify_ah(&self, _: AhHandle, _: &AhAttr) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), VerbsError> {
        let in_use = self.with(|hca| {
            let mut sends = hca.qps.values().flat_map(|qp| &qp.sends);
            sends.any(|send| send.ah == ah.index())
        });
        if in_use {
            self.violates("an address handle was destroyed under a send");
        }
        self.with(|hca| match hca.ahs.remove(&ah.index()) {
            Some(_) => Ok(()),
            None => unknown("AH"),
        })
    }

    fn create_cq(&self, init: &CqInit) -> Result<Created<CqHandle>, VerbsError> {
        self.make(|hca, number| {
            hca.cqs.insert(number, (VecDeque::new(), 0));
            Created {
                handle: self.name_of(number),
                size: init.cqe,
            }
        })
    }
    fn resize_cq(&self, _: CqHandle, _: u32) -> Result<u32, VerbsError> {
        Err(NOT_HERE)
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), VerbsError> {
        self.with(|hca| {
            let number = cq.index();
            let used = hca
                .qps
                .values()
                .any(|qp| qp.send_cq == number || qp.recv_cq == number);
            match hca.cqs.get(&number) {
                Some((_, 0)) if !used => {
                    hca.cqs.remove(&number);
                    Ok(())
                }
                Some((_, holders)) => Err(VerbsError::Busy {
                    object: "CQ",
                    holders: *holders,
                }),
                None => unknown("CQ"),
            }
        })
    }

    fn create_qp(&self, _: PdHandle, init: &QpInit) -> Result<QpInfo, VerbsError> {
        assert_eq!(init.qp_type, QpType::Ud);
        self.make(|hca, number| {
            // Numbers are spread, as those of hardware are.
            let qpn = 0x400 + number * 0x11 + (hca.lid.0 as u32 & 7);
            let qp = Qp {
                state: State::Reset,
                pkey_index: 0,
                q_key: core_ib::QKey(0),
                sends: VecDeque::new(),
                recvs: VecDeque::new(),
                max_send: init.caps.max_send_wr as usize,
                max_recv: init.caps.max_recv_wr as usize,
                send_cq: init.send_cq.index(),
                recv_cq: init.recv_cq.index(),
                attached: std::collections::BTreeSet::new(),
                holders: 0,
            };
            hca.qps.insert(qpn, qp);
            QpInfo {
                handle: self.name_of(qpn),
                qpn: Qpn::new(qpn),
                caps: init.caps,
            }
        })
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.with(|hca| {
            let Some(qp) = hca.qps.get_mut(&qp.index()) else {
                return unknown("QP");
            };
            // The driver does not know that the HCA stopped the queue, unless it is told.
            let known = match qp.state {
                State::Sqe => QpState::Rts,
                state => from_fake(state),
            };
            let to = check_modify(QpType::Ud, known, attr, mask)?;
            if qp.state == State::Sqe && to == QpState::Rts && attr.cur_state != QpState::Sqe {
                return Err(VerbsError::InvalidState { object: "QP" });
            }
            qp.state = to_fake(to);
            if mask.contains(QpAttrMask::PKEY_INDEX) {
                qp.pkey_index = attr.pkey_index;
            }
            if mask.contains(QpAttrMask::QKEY) {
                qp.q_key = attr.qkey;
            }
            if to == QpState::Reset {
                qp.sends.clear();
                qp.recvs.clear();
                let (send_cq, recv_cq) = (qp.send_cq, qp.recv_cq);
                for cq in [send_cq, recv_cq] {
                    if let Some((queue, _)) = hca.cqs.get_mut(&cq) {
                        queue.clear();
                    }
                }
            }
            Ok(())
        })
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpAttr, VerbsError> {
        self.with(|hca| match hca.qps.get(&qp.index()) {
            Some(qp) => Ok(QpAttr {
                state: from_fake(qp.state),
                ..QpAttr::EMPTY
            }),
            None => unknown("QP"),
        })
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<(), VerbsError> {
        self.with(|hca| {
            let Some(found) = hca.qps.get(&qp.index()) else {
                return unknown("QP");
            };
            let holders = found.holders + found.attached.len() as u32;
            if holders > 0 {
                return Err(VerbsError::Busy {
                    object: "QP",
                    holders,
                });
            }
            hca.qps.remove(&qp.index());
            Ok(())
        })
    }

    fn create_srq(&self, _: &SrqInit) -> Result<Created<SrqHandle>, VerbsError> {
        Err(NOT_HERE)
    }
    fn arm_srq(&self, _: SrqHandle, _: u32) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn resize_srq(&self, _: SrqHandle, _: u32) -> Result<u32, VerbsError> {
        Err(NOT_HERE)
    }
    fn query_srq(&self, _: SrqHandle) -> Result<SrqAttr, VerbsError> {
        Err(NOT_HERE)
    }
    fn destroy_srq(&self, _: SrqHandle) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }

    unsafe fn reg_mr(&self, _: PdHandle, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        let page = 1_u64 << init.page_shift;
        let mut expected = init.iova & !(page - 1);
        for at in init.pages {
            assert_eq!(at.get(), expected, "pages of one piece, aligned");
            expected += page;
        }
        assert!(
            init.iova + init.length <= expected,
            "the pages cover the region"
        );
        self.make(|hca, number| {
            let region = Region {
                iova: init.iova,
                len: init.length,
                writable: init.access.contains(Access::LOCAL_WRITE),
            };
            hca.regions.insert(number, region);
            Mr {
                handle: self.name_of(number),
                lkey: LKey(number),
                rkey: RKey(number),
            }
        })
    }
    unsafe fn rereg_mr(
        &self,
        _: MrHandle,
        _: Option<PdHandle>,
        _: Option<&MrInit<'_>>,
        _: Option<Access>,
    ) -> Result<Mr, VerbsError> {
        Err(NOT_HERE)
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), VerbsError> {
        self.with(|hca| match hca.regions.remove(&mr.index()) {
            Some(_) => Ok(()),
            None => unknown("MR"),
        })
    }
    fn alloc_mw(&self, _: PdHandle, _: MwKind) -> Result<(MwHandle, RKey), VerbsError> {
        Err(NOT_HERE)
    }
    fn dealloc_mw(&self, _: MwHandle) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn alloc_fmr(&self, _: PdHandle, _: &FmrInit) -> Result<FmrHandle, VerbsError> {
        Err(NOT_HERE)
    }
    unsafe fn map_fmr(
        &self,
        _: FmrHandle,
        _: &[DmaAddr],
        _: u64,
    ) -> Result<(LKey, RKey), VerbsError> {
        Err(NOT_HERE)
    }
    fn unmap_fmrs(&self, _: &[FmrHandle]) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }
    fn dealloc_fmr(&self, _: FmrHandle) -> Result<(), VerbsError> {
        Err(NOT_HERE)
    }

    fn attach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        assert!(mgid.is_multicast() && mlid.is_multicast());
        self.with(|hca| match hca.qps.get_mut(&qp.index()) {
            Some(qp) => {
                qp.attached.insert((mgid, mlid));
                Ok(())
            }
            None => unknown("QP"),
        })
    }
    fn detach_mcast(&self, qp: QpHandle, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.with(|hca| {
            let Some(qp) = hca.qps.get_mut(&qp.index()) else {
                return unknown("QP");
            };
            if qp.attached.remove(&(mgid, mlid)) {
                return Ok(());
            }
            Err(VerbsError::InvalidAttr {
                field: "MGID",
                found: 0,
                allowed: 0,
            })
        })
    }
    fn process_mad(
        &self,
        _: u8,
        _: MadFlags,
        _: Option<&MadSource>,
        _: &Mad256,
        _: &mut Mad256,
    ) -> Result<MadOutcome, VerbsError> {
        Err(NOT_HERE)
    }
    fn next_async_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn take_cq_event(&self, _: CqHandle) -> bool {
        false
    }
    fn poll_events(&self) {}
    fn check(&self) -> Result<(), VerbsError> {
        Ok(())
    }
}

/// A resolved CQ.
pub(crate) struct CqRef<'a>(&'a Hca<'a>, CqHandle);
/// A resolved QP.
pub(crate) struct QpRef<'a>(&'a Hca<'a>, QpHandle);
/// There are none.
pub(crate) enum SrqRef {}

impl Verbs for Hca<'_> {
    type Cq<'a>
        = CqRef<'a>
    where
        Self: 'a;
    type Qp<'a>
        = QpRef<'a>
    where
        Self: 'a;
    type Srq<'a>
        = SrqRef
    where
        Self: 'a;

    fn cq(&self, cq: CqHandle) -> Result<CqRef<'_>, VerbsError> {
        self.with(|hca| match hca.cqs.get_mut(&cq.index()) {
            Some((_, holders)) => {
                *holders += 1;
                Ok(())
            }
            None => unknown("CQ"),
        })?;
        Ok(CqRef(self, cq))
    }
    fn qp(&self, qp: QpHandle) -> Result<QpRef<'_>, VerbsError> {
        self.with(|hca| match hca.qps.get_mut(&qp.index()) {
            Some(qp) => {
                qp.holders += 1;
                Ok(())
            }
            None => unknown("QP"),
        })?;
        Ok(QpRef(self, qp))
    }
    fn srq(&self, _: SrqHandle) -> Result<SrqRef, VerbsError> {
        Err(NOT_HERE)
    }
}

impl Drop for CqRef<'_> {
    fn drop(&mut self) {
        let number = self.1.index();
        self.0.with(|hca| {
            if let Some((_, holders)) = hca.cqs.get_mut(&number) {
                *holders -= 1;
            }
        });
    }
}

impl Drop for QpRef<'_> {
    fn drop(&mut self) {
        let number = self.1.index();
        self.0.with(|hca| {
            if let Some(qp) = hca.qps.get_mut(&number) {
                qp.holders -= 1;
            }
        });
    }
}

impl CompletionQueue for CqRef<'_> {
    fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.0.with(|hca| {
            let Some((queue, _)) = hca.cqs.get_mut(&self.1.index()) else {
                return unknown("CQ");
            };
            let count = queue.len().min(into.len());
            for (slot, completion) in into.iter_mut().zip(queue.drain(..count)) {
                *slot = completion;
            }
            Ok(count)
        })
    }
    fn req_notify(&self, _: NotifyKind) -> Result<(), VerbsError> {
        Ok(())
    }
    fn handle(&self) -> CqHandle {
        self.1
    }
}

impl QueuePair for QpRef<'_> {
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.0.with(|hca| {
            let qp = hca.qps.get_mut(&self.1.index()).unwrap();
            for (index, wr) in wrs.iter().enumerate() {
                let fail = |cause| Err(PostError { index, cause });
                if !matches!(qp.state, State::Rts | State::Sqe | State::Error) {
                    return fail(PostCause::InvalidState);
                }
                if qp.sends.len() >= qp.max_send {
                    return fail(PostCause::QueueFull);
                }
                let SendOp::Datagram {
                    ah,
                    remote_qpn,
                    remote_qkey,
                    ..
                } = wr.op
                else {
                    return fail(PostCause::InvalidOpcode);
                };
                let [sge] = wr.sges else {
                    return fail(PostCause::TooManySge);
                };
                if !hca.ahs.contains_key(&ah.index()) {
                    return fail(PostCause::InvalidHandle);
                }
                qp.sends.push_back(Send {
                    wr_id: wr.wr_id,
                    ah: ah.index(),
                    qpn: remote_qpn,
                    q_key: remote_qkey,
                    flags: wr.flags,
                    addr: sge.addr,
                    len: sge.length,
                    lkey: sge.lkey.0,
                });
            }
            Ok(())
        })
    }
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.with(|hca| {
            let qp = hca.qps.get_mut(&self.1.index()).unwrap();
            for (index, wr) in wrs.iter().enumerate() {
                let fail = |cause| Err(PostError { index, cause });
                if qp.state == State::Reset {
                    return fail(PostCause::InvalidState);
                }
                if qp.recvs.len() >= qp.max_recv {
                    return fail(PostCause::QueueFull);
                }
                let [sge] = wr.sges else {
                    return fail(PostCause::TooManySge);
                };
                qp.recvs.push_back(Recv {
                    wr_id: wr.wr_id,
                    addr: sge.addr,
                    len: sge.length,
                    lkey: sge.lkey.0,
                });
            }
            Ok(())
        })
    }
    fn qpn(&self) -> Qpn {
        Qpn::new(self.1.index())
    }
    fn handle(&self) -> QpHandle {
        self.1
    }
}

impl SharedReceiveQueue for SrqRef {
    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        match *self {}
    }
    fn handle(&self) -> SrqHandle {
        match *self {}
    }
}
