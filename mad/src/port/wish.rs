//! What a port wants done where blocking is allowed: plain data, carried out by the owner.

use crate::addr::{Received, SpecialQp};
use core_ib::verbs::{
    Device, MadFlags, MadOutcome, QpAttr, QpAttrMask, QpHandle, QpState, VerbsError,
};
use core_ib::wire::mad::Mad;
use core_ib::{Psn, QKey};

/// Something that may block. Carry it out with [`grant`](Wish::grant) in a control context, in any order and at any
/// time, and give the result to [`MadPort::granted`](crate::MadPort::granted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The firmware is to answer a MAD.
    Answer(Question),
    /// A special QP has failed and is to work again.
    Recover(Recovery),
}

/// A MAD for an agent in the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub(super) port: u8,
    /// The MAD, and how it came.
    pub(super) received: Received,
    /// It never saw the wire, and its answer will not.
    pub(super) looped: bool,
}

impl Question {
    /// The MAD.
    pub const fn received(&self) -> &Received {
        &self.received
    }
}

/// A QP to be brought back to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    pub(super) qp: SpecialQp,
    pub(super) handle: QpHandle,
    /// Through RESET; else from SQE.
    pub(super) reset: bool,
}

impl Recovery {
    /// Which QP.
    pub const fn qp(&self) -> SpecialQp {
        self.qp
    }
}

/// How a wish went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// What the firmware made of a MAD.
    Answered {
        /// The wish.
        question: Question,
        /// What it made of it.
        outcome: Result<MadOutcome, VerbsError>,
        /// Its response, if the outcome says that there is one.
        response: Mad,
    },
    /// Whether a QP works again.
    Recovered {
        /// The wish.
        recovery: Recovery,
        /// Whether it does.
        result: Result<(), VerbsError>,
    },
}

impl Wish {
    /// Carries it out. Control context; blocks.
    pub fn grant<D: Device + ?Sized>(&self, device: &D) -> Granted {
        match *self {
            Self::Answer(question) => {
                let mut response = Mad::ZERO;
                let source = question.received.source();
                let outcome = device.process_mad(
                    question.port,
                    MadFlags::empty(),
                    Some(&source),
                    &question.received.mad.0,
                    &mut response.0,
                );
                Granted::Answered {
                    question,
                    outcome,
                    response,
                }
            }
            Self::Recover(recovery) => {
                let Recovery { handle, qp, reset } = recovery;
                let result = if reset {
                    restart(device, handle, qp)
                } else {
                    leave_sqe(device, handle)
                };
                Granted::Recovered { recovery, result }
            }
        }
    }
}

/// SQE to RTS. verbs 3.8. Blocks.
fn leave_sqe<D: Device + ?Sized>(device: &D, handle: QpHandle) -> Result<(), VerbsError> {
    let attr = QpAttr {
        state: QpState::Rts,
        cur_state: QpState::Sqe,
        ..QpAttr::EMPTY
    };
    device.modify_qp(handle, &attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE)
}

/// Any state to RTS, through RESET. Blocks.
fn restart<D: Device + ?Sized>(
    device: &D,
    handle: QpHandle,
    qp: SpecialQp,
) -> Result<(), VerbsError> {
    device.modify_qp(handle, &QpAttr::EMPTY, QpAttrMask::STATE)?;
    start(device, handle, qp)
}

/// RESET to RTS. verbs 3.3, 3.11; the first PSN is 0 (protocols 3.1). Blocks.
pub(super) fn start<D: Device + ?Sized>(
    device: &D,
    handle: QpHandle,
    qp: SpecialQp,
) -> Result<(), VerbsError> {
    let qkey = match qp {
        SpecialQp::Smi => QKey(0),
        SpecialQp::Gsi => QKey::GSI,
    };
    let go = |state| QpAttr {
        state,
        qkey,
        sq_psn: Psn::new(0),
        ..QpAttr::EMPTY
    };
    let init = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY;
    device.modify_qp(handle, &go(QpState::Init), init)?;
    device.modify_qp(handle, &go(QpState::Rtr), QpAttrMask::STATE)?;
    let rts = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    device.modify_qp(handle, &go(QpState::Rts), rts)
}
