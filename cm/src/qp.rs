//! What a connection makes of its QP: the attributes of each transition, out of what was exchanged, and the wish to carry
//! them out. protocols 5.3.1, 5.4; verbs 3.4.

use core_ib::verbs::{
    Access, AhAttr, Device, PathMigration, QpAttr, QpAttrMask, QpHandle, QpState, QpType,
    VerbsError,
};
use core_ib::wire::mad::CommId;
use core_ib::{Mtu, Psn, Qpn};

/// RESET to INIT, for who makes the QP of a connection: before [`connect`](crate::Cm::connect) or
/// [`accept`](crate::Cm::accept), so that receives can be posted. `access` is what the peer may do.
pub fn init_attr(port: u8, pkey_index: u16, access: Access) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr {
        state: QpState::Init,
        port,
        pkey_index,
        access,
        ..QpAttr::EMPTY
    };
    let mask = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::PKEY_INDEX | QpAttrMask::ACCESS;
    (attr, mask)
}

/// The alternate path of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alternate {
    pub(crate) path: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) timeout: u8,
}

/// All that the transitions need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) service: QpType,
    pub(crate) path: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) timeout: u8,
    pub(crate) alternate: Option<Alternate>,
    pub(crate) mtu: Mtu,
    pub(crate) dest_qpn: Qpn,
    pub(crate) rq_psn: Psn,
    pub(crate) sq_psn: Psn,
    /// As initiator.
    pub(crate) max_rd_atomic: u8,
    /// As responder.
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

impl Facts {
    pub(crate) const NONE: Self = Self {
        service: QpType::Rc,
        path: QpAttr::EMPTY.path,
        pkey_index: 0,
        timeout: 0,
        alternate: None,
        mtu: Mtu::Mtu256,
        dest_qpn: Qpn::new(0),
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        retry_count: 0,
        rnr_retry: 0,
        min_rnr_timer: 0,
    };

    fn is_rc(&self) -> bool {
        self.service == QpType::Rc
    }

    fn with_alternate(&self, attr: &mut QpAttr) -> QpAttrMask {
        let Some(alternate) = self.alternate else {
            return QpAttrMask::empty();
        };
        attr.alt_path = alternate.path;
        attr.alt_pkey_index = alternate.pkey_index;
        attr.alt_timeout = alternate.timeout;
        QpAttrMask::ALT_PATH
    }

    /// INIT to RTR.
    pub(crate) fn rtr(&self) -> (QpAttr, QpAttrMask) {
        let mut attr = QpAttr {
            state: QpState::Rtr,
            path: self.path,
            pkey_index: self.pkey_index,
            path_mtu: self.mtu,
            dest_qpn: self.dest_qpn,
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..QpAttr::EMPTY
        };
        let mut mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN;
        if self.is_rc() {
            mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        }
        mask |= self.with_alternate(&mut attr);
        (attr, mask)
    }

    /// RTR to RTS.
    pub(crate) fn rts(&self) -> (QpAttr, QpAttrMask) {
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: self.sq_psn,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            path_migration: PathMigration::Rearm,
            ..QpAttr::EMPTY
        };
        let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        if self.is_rc() {
            mask |= QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_COUNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_RD_ATOMIC;
        }
        if self.alternate.is_some() {
            mask |= QpAttrMask::PATH_MIG_STATE;
        }
        (attr, mask)
    }

    /// In RTS: another alternate path, and armed again.
    pub(crate) fn rearm(&self) -> (QpAttr, QpAttrMask) {
        let mut attr = QpAttr {
            state: QpState::Rts,
            path_migration: PathMigration::Rearm,
            ..QpAttr::EMPTY
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PATH_MIG_STATE;
        let mask = mask | self.with_alternate(&mut attr);
        (attr, mask)
    }
}

/// Which transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Rtr,
    Rts,
    Rearm,
    Error,
}

impl Step {
    pub(crate) fn attr(self, facts: &Facts) -> (QpAttr, QpAttrMask) {
        match self {
            Self::Rtr => facts.rtr(),
            Self::Rts => facts.rts(),
            Self::Rearm => facts.rearm(),
            Self::Error => {
                let state = QpState::Error;
                let attr = QpAttr {
                    state,
                    ..QpAttr::EMPTY
                };
                (attr, QpAttrMask::STATE)
            }
        }
    }
}

/// A transition of a connection's QP, to be made where blocking is allowed: [`grant`](Self::grant), then
/// [`Cm::granted`](crate::Cm::granted). One at most is outstanding for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub(crate) id: CommId,
    pub(crate) step: Step,
    /// The QP.
    pub qp: QpHandle,
    /// Its attributes.
    pub attr: QpAttr,
    /// Which of them count.
    pub mask: QpAttrMask,
}

impl Wish {
    /// Carries it out. Control context; blocks.
    pub fn grant<D: Device + ?Sized>(&self, device: &D) -> Granted {
        self.granted(device.modify_qp(self.qp, &self.attr, self.mask))
    }

    /// How it went, for who carries it out by himself.
    pub const fn granted(&self, result: Result<(), VerbsError>) -> Granted {
        Granted {
            id: self.id,
            step: self.step,
            result,
        }
    }
}

/// How a wish went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub(crate) id: CommId,
    pub(crate) step: Step,
    pub(crate) result: Result<(), VerbsError>,
}
