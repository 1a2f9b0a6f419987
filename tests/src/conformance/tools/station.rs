//! One side, ready to work: a PD, a CQ and memory on it, and short words for what cases do all the time.

use super::super::{Rig, Side};
use super::steps::way;
use super::{Buffer, ON_ITS_WAY, PATIENCE, QUIET, lid, wait_for};
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, AhAttr, AhHandle, AsyncEvent, CompletionQueue, CqHandle, CqInit, Device, Imm,
    NotifyKind, Owner, PdHandle, PostError, QpAttr, QpAttrMask as M, QpCaps, QpHandle, QpInfo,
    QpInit, QpState, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, Signaling, Verbs,
    VerbsError, WcStatus, WorkCompletion,
};
use core_ib::{Mtu, Psn, QKey, Qpn, Sl};

/// Q_Key of the datagram QPs, unless said otherwise.
pub const QKEY: QKey = QKey(0x1111_2222);
/// Bytes ahead of the payload in the receive buffer of a datagram.
pub const GRH: u32 = 40;

/// A send request with these bytes.
pub fn send_wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        sges,
        inline: &[],
        flags: SendFlags::SIGNALED,
    }
}

/// A QP of moderate size, all of whose completions go to `cq`.
pub fn qp_init(qp_type: QpType, cq: CqHandle) -> QpInit {
    let special = matches!(qp_type, QpType::Smi | QpType::Gsi);
    QpInit {
        qp_type,
        port: 1,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: if special { 0 } else { 64 },
        },
        signaling: Signaling::PerRequest,
        owner: Owner::Kernel,
    }
}

/// See the module.
pub struct Station<'r, R: Rig> {
    /// Where it stands.
    pub rig: &'r R,
    /// Which end.
    pub side: Side,
    /// What everything is in.
    pub pd: PdHandle,
    /// 64 entries, where everything completes unless said otherwise.
    pub cq: CqHandle,
    /// 64 KiB with all local rights.
    pub buffer: Buffer<'r, R::Machine>,
}

impl<'r, R: Rig> Station<'r, R> {
    /// Both stations, with the cable Active between them.
    pub fn pair(rig: &'r R) -> [Self; 2] {
        super::activate(rig);
        Side::BOTH.map(|side| Self::new(rig, side))
    }

    /// One of them; says nothing about the cable.
    pub fn new(rig: &'r R, side: Side) -> Self {
        let (hca, machine) = (rig.hca(side), rig.machine(side));
        let pd = hca.alloc_pd().unwrap();
        let buffer = Buffer::new(machine, hca, pd, 64 << 10, Access::LOCAL_WRITE);
        let cq = Self::make_cq(hca, 64);
        Self {
            rig,
            side,
            pd,
            cq,
            buffer,
        }
    }

    /// The HCA.
    pub fn hca(&self) -> &'r R::Hca {
        self.rig.hca(self.side)
    }

    /// The machine.
    pub fn machine(&self) -> &'r R::Machine {
        self.rig.machine(self.side)
    }

    fn make_cq(hca: &R::Hca, cqe: u32) -> CqHandle {
        let init = CqInit {
            cqe,
            vector: 0,
            owner: Owner::Kernel,
        };
        hca.create_cq(&init).unwrap().handle
    }

    /// Another CQ of at least `cqe` entries.
    pub fn another_cq(&self, cqe: u32) -> CqHandle {
        Self::make_cq(self.hca(), cqe)
    }

    /// A QP in RESET.
    pub fn create(&self, init: &QpInit) -> QpInfo {
        self.hca().create_qp(self.pd, init).unwrap()
    }

    /// A UD QP in RESET.
    pub fn ud_in_reset(&self) -> QpInfo {
        self.create(&qp_init(QpType::Ud, self.cq))
    }

    /// A UD QP in RTS.
    pub fn ud(&self) -> QpInfo {
        self.ready(&qp_init(QpType::Ud, self.cq))
    }

    /// A QP made so, in RTS.
    pub fn ready(&self, init: &QpInit) -> QpInfo {
        let qp = self.create(init);
        self.bring_to(init.qp_type, qp.handle, QpState::Rts);
        qp
    }

    /// Modifies a QP.
    pub fn modify(
        &self,
        qp: QpHandle,
        state: QpState,
        mask: M,
        change: impl FnOnce(&mut QpAttr),
    ) -> Result<(), VerbsError> {
        let mut attr = QpAttr::EMPTY;
        change(&mut attr);
        attr.state = state;
        self.hca().modify_qp(qp, &attr, mask | M::STATE)
    }

    /// Takes a QP from RESET to `state`, with values that [`Station::values`] has.
    pub fn bring_to(&self, service: QpType, qp: QpHandle, state: QpState) {
        for (to, mask) in way(service, state) {
            let done = self.modify(qp, to, mask, |attr| *attr = self.values());
            assert_eq!(done, Ok(()), "{service:?} to {to:?}");
        }
        if state == QpState::Sqd {
            self.drain(qp);
        }
    }

    /// Waits until a QP in SQD has drained.
    pub fn drain(&self, qp: QpHandle) {
        let drained = wait_for(self.machine(), PATIENCE, || {
            !self.hca().query_qp(qp).unwrap().sq_draining
        });
        assert!(drained, "the send queue does not drain");
    }

    /// A legal value for each attribute. The connection, if it is one, leads to the other side, where nobody is.
    pub fn values(&self) -> QpAttr {
        QpAttr {
            access: Access::REMOTE_WRITE,
            port: 1,
            qkey: QKEY,
            path: self.address_of(self.side.peer()),
            path_mtu: Mtu::Mtu1024,
            timeout: 14,
            retry_count: 3,
            rnr_retry: 2,
            rq_psn: Psn::new(0x65_4321),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            alt_path: self.address_of(self.side.peer()),
            alt_timeout: 14,
            min_rnr_timer: 5,
            sq_psn: Psn::new(0x12_3456),
            dest_qpn: Qpn::new(0x77_7777),
            ..QpAttr::EMPTY
        }
    }

    /// State of a QP, as the HCA has it.
    pub fn state(&self, qp: QpHandle) -> QpState {
        self.hca().query_qp(qp).unwrap().state
    }

    /// Address of port 1 of that side.
    pub fn address_of(&self, side: Side) -> AhAttr {
        AhAttr {
            port: 1,
            dlid: lid(side),
            sl: Sl::new(0),
            ..AhAttr::default()
        }
    }

    /// Address handle for port 1 of that side.
    pub fn ah(&self, side: Side) -> AhHandle {
        let attr = self.address_of(side);
        self.hca().create_ah(self.pd, &attr).unwrap()
    }

    /// The datagram request for `to` on the other side.
    pub fn to(&self, to: &QpInfo) -> SendOp {
        self.datagram(self.ah(self.side.peer()), to)
    }

    /// The datagram request for `to` by way of `ah`.
    pub fn datagram(&self, ah: AhHandle, to: &QpInfo) -> SendOp {
        SendOp::Datagram {
            ah,
            remote_qpn: to.qpn,
            remote_qkey: QKEY,
            imm: None,
            pkey_index: 0,
        }
    }

    /// The same with immediate data.
    pub fn to_with_imm(&self, to: &QpInfo, bytes: [u8; 4]) -> SendOp {
        let SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            pkey_index,
            ..
        } = self.to(to)
        else {
            unreachable!("`to` makes datagrams")
        };
        SendOp::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            imm: Some(Imm(bytes)),
            pkey_index,
        }
    }

    /// Posts sends.
    pub fn post_send(&self, qp: QpHandle, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.hca().qp(qp).unwrap().post_send(wrs)
    }

    /// Posts one send of `sges`, signalled.
    pub fn send(&self, qp: QpHandle, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_send(qp, &[send_wr(wr_id, op, sges)]).unwrap();
    }

    /// Posts one receive into `sges`.
    pub fn receive(&self, qp: QpHandle, wr_id: u64, sges: &[Sge]) {
        self.post_recv(qp, &[RecvWr { wr_id, sges }]).unwrap();
    }

    /// Posts receives, and waits until the HCA knows: what the other side sends now is not too early.
    pub fn post_recv(&self, qp: QpHandle, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let posted = self.hca().qp(qp).unwrap().post_recv(wrs);
        self.machine().sleep(ON_ITS_WAY);
        posted
    }

    /// What a CQ has at this moment, up to `room`.
    pub fn poll(&self, cq: CqHandle, room: usize) -> Vec<WorkCompletion> {
        let mut completions = vec![WorkCompletion::EMPTY; room];
        let got = self.hca().cq(cq).unwrap().poll(&mut completions).unwrap();
        completions.truncate(got);
        completions
    }

    /// Waits for `count` completions of a CQ.
    pub fn completions_of(&self, cq: CqHandle, count: usize) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        let came = wait_for(self.machine(), PATIENCE, || {
            all.extend(self.poll(cq, count - all.len()));
            all.len() == count
        });
        assert!(came, "{count} completions expected, got {all:?}");
        all
    }

    /// Waits for `count` completions of the station's CQ.
    pub fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        self.completions_of(self.cq, count)
    }

    /// Waits for one completion of the station's CQ.
    pub fn completion(&self) -> WorkCompletion {
        self.completions(1)[0]
    }

    /// Waits for one completion of the station's CQ, which must be a success with this identifier.
    pub fn success(&self, wr_id: u64) -> WorkCompletion {
        let wc = self.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{wc:?}");
        wc
    }

    /// Waits a while, in which the station's CQ stays empty.
    pub fn stays_quiet(&self) {
        self.machine().sleep(QUIET);
        assert_eq!(self.poll(self.cq, 8), []);
    }

    /// Waits for an asynchronous event that `wanted` says yes to; others are passed over.
    pub fn event(&self, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
        let mut found = None;
        let mut others = Vec::new();
        wait_for(self.machine(), PATIENCE, || {
            while let Some(event) = self.hca().next_async_event() {
                if wanted(&event) {
                    found = Some(event);
                    return true;
                }
                others.push(event);
            }
            false
        });
        found.unwrap_or_else(|| panic!("the event did not come; came: {others:?}"))
    }

    /// Waits a while and gives the asynchronous events of it.
    pub fn events(&self) -> Vec<AsyncEvent> {
        self.machine().sleep(QUIET);
        core::iter::from_fn(|| self.hca().next_async_event()).collect()
    }

    /// Arms a CQ.
    pub fn arm(&self, cq: CqHandle, kind: NotifyKind) {
        self.hca().cq(cq).unwrap().req_notify(kind).unwrap();
    }

    /// Does the CQ's "armed and fired" flag come within the patience of a case? Takes it.
    pub fn fires(&self, cq: CqHandle) -> bool {
        wait_for(self.machine(), PATIENCE, || self.hca().take_cq_event(cq))
    }

    /// Waits a while, in which the flag does not come.
    pub fn does_not_fire(&self, cq: CqHandle) {
        self.machine().sleep(QUIET);
        assert!(!self.hca().take_cq_event(cq), "the CQ fired");
    }
}
