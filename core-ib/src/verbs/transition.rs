//! Which attributes a QP transition takes: the table of verbs 3.4.

use super::{QpAttr, QpAttrMask as M, QpState, QpType, VerbsError};
use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

const CONNECTED_OPT: M = M::ALT_PATH.union(M::ACCESS).union(M::PATH_MIG_STATE);

const fn any(masks: &[M]) -> M {
    let mut all = 0;
    let mut rest = masks;
    while let [first, more @ ..] = rest {
        all |= first.bits();
        rest = more;
    }
    M::from_bits_truncate(all)
}

/// Required and optional attributes, the target state apart; `None` where the transition does not exist.
const fn masks(from: QpState, to: QpState, service: QpType) -> Option<(M, M)> {
    use QpType::{Gsi, Rc, Smi, Uc, Ud};
    const NONE: M = M::empty();
    const DATAGRAM_OPT: M = M::CUR_STATE.union(M::QKEY);
    Some(match (from, to, service) {
        (Reset, Init, Rc | Uc) => (any(&[M::PKEY_INDEX, M::PORT, M::ACCESS]), NONE),
        (Reset, Init, Ud) => (any(&[M::PKEY_INDEX, M::PORT, M::QKEY]), NONE),
        (Reset, Init, Smi | Gsi) => (any(&[M::PKEY_INDEX, M::QKEY]), NONE),
        (Init, Init, Rc | Uc) => (NONE, any(&[M::PKEY_INDEX, M::PORT, M::ACCESS])),
        (Init, Init, Ud) => (NONE, any(&[M::PKEY_INDEX, M::PORT, M::QKEY])),
        (Init, Init | Rtr, Smi | Gsi) | (Init, Rtr, Ud) => (NONE, any(&[M::PKEY_INDEX, M::QKEY])),
        (Init, Rtr, Rc) => (
            any(&[
                M::AV,
                M::PATH_MTU,
                M::DEST_QPN,
                M::RQ_PSN,
                M::MAX_DEST_RD_ATOMIC,
                M::MIN_RNR_TIMER,
            ]),
            any(&[M::ALT_PATH, M::ACCESS, M::PKEY_INDEX]),
        ),
        (Init, Rtr, Uc) => (
            any(&[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]),
            any(&[M::ALT_PATH, M::ACCESS, M::PKEY_INDEX]),
        ),
        (Rtr, Rts, Rc) => (
            any(&[
                M::SQ_PSN,
                M::TIMEOUT,
                M::RETRY_COUNT,
                M::RNR_RETRY,
                M::MAX_RD_ATOMIC,
            ]),
            any(&[M::CUR_STATE, CONNECTED_OPT, M::MIN_RNR_TIMER]),
        ),
        (Rtr, Rts, Uc) => (M::SQ_PSN, any(&[M::CUR_STATE, CONNECTED_OPT])),
        (Rtr, Rts, Ud | Smi | Gsi) => (M::SQ_PSN, DATAGRAM_OPT),
        (Rts | Sqd, Rts, Rc) => (NONE, any(&[M::CUR_STATE, CONNECTED_OPT, M::MIN_RNR_TIMER])),
        (Rts | Sqd, Rts, Uc) => (NONE, any(&[M::CUR_STATE, CONNECTED_OPT])),
        (Rts | Sqd | Sqe, Rts, Ud | Smi | Gsi) => (NONE, DATAGRAM_OPT),
        (Sqe, Rts, Uc) => (NONE, any(&[M::CUR_STATE, M::ACCESS])),
        (Rts, Sqd, _) => (NONE, M::SQ_DRAINED),
        (Sqd, Sqd, Rc) => (
            NONE,
            any(&[
                M::PORT,
                M::AV,
                M::TIMEOUT,
                M::RETRY_COUNT,
                M::RNR_RETRY,
                M::MAX_RD_ATOMIC,
                M::MAX_DEST_RD_ATOMIC,
                CONNECTED_OPT,
                M::PKEY_INDEX,
                M::MIN_RNR_TIMER,
            ]),
        ),
        (Sqd, Sqd, Uc) => (NONE, any(&[M::AV, CONNECTED_OPT, M::PKEY_INDEX])),
        (Sqd, Sqd, Ud | Smi | Gsi) => (NONE, any(&[M::PKEY_INDEX, M::QKEY])),
        (_, Reset, _) | (Init | Rtr | Rts | Sqd | Sqe | Error, Error, _) => (NONE, NONE),
        _ => return None,
    })
}

/// Checks a modify call against the state that the driver knows, and returns the state to go to.
///
/// `from` is the driver's idea of the current state; a CUR in the mask replaces it, where the table allows that.
/// Values are not looked at here. Pure: any context.
///
/// # Errors
///
/// `Unsupported` for CAP; `InvalidState` for a transition that does not exist; `InvalidMask` for attributes
/// missing or forbidden; `InvalidAttr` for a CUR that may not be assumed.
pub fn check_modify(
    service: QpType,
    from: QpState,
    attr: &QpAttr,
    mask: M,
) -> Result<QpState, VerbsError> {
    if mask.contains(M::CAP) {
        return Err(VerbsError::Unsupported {
            feature: "resizing the queues of a QP",
        });
    }
    let from = if mask.contains(M::CUR_STATE) {
        match attr.cur_state {
            Rtr | Rts | Sqd | Sqe => attr.cur_state,
            other => {
                return Err(VerbsError::InvalidAttr {
                    field: "current QP state",
                    found: other as u64,
                    allowed: Sqe as u64,
                });
            }
        }
    } else {
        from
    };
    let changes = mask.contains(M::STATE);
    let to = if changes { attr.state } else { from };
    let wrong_state = VerbsError::InvalidState { object: "QP" };
    let given = mask.difference(M::STATE);
    if !changes && given.is_empty() && matches!(from, Reset | Error) {
        return Ok(from);
    }
    let (required, optional) = masks(from, to, service).ok_or(wrong_state)?;
    let missing = required.difference(given);
    let forbidden = given.difference(required.union(optional));
    if !missing.is_empty() || !forbidden.is_empty() {
        return Err(VerbsError::InvalidMask {
            missing: missing.bits(),
            forbidden: forbidden.bits(),
        });
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpType::{Gsi, Rc, Smi, Uc, Ud};

    fn go(service: QpType, from: QpState, to: QpState, mask: M) -> Result<QpState, VerbsError> {
        let attr = QpAttr {
            state: to,
            cur_state: from,
            ..QpAttr::EMPTY
        };
        check_modify(service, from, &attr, mask | M::STATE)
    }

    const ALL: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

    #[test]
    fn transitions_at_a_glance_are_those_of_verbs_3_3() {
        for from in ALL {
            for to in ALL {
                let exists = matches!(
                    (from, to),
                    (_, Reset)
                        | (Reset, Init)
                        | (Init, Init | Rtr)
                        | (Rtr, Rts)
                        | (Rts | Sqd | Sqe, Rts)
                        | (Rts | Sqd, Sqd)
                        | (Init | Rtr | Rts | Sqd | Sqe | Error, Error)
                );
                assert_eq!(masks(from, to, Ud).is_some(), exists, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn an_rc_qp_never_leaves_sqe_for_rts() {
        let wrong = Err(VerbsError::InvalidState { object: "QP" });
        assert_eq!(go(Rc, Sqe, Rts, M::empty()), wrong);
        assert_eq!(go(Uc, Sqe, Rts, M::CUR_STATE), Ok(Rts));
    }

    #[test]
    fn what_is_missing_and_what_is_too_much_is_said() {
        let error = go(Ud, Reset, Init, M::PKEY_INDEX | M::PORT | M::AV);
        let expected = VerbsError::InvalidMask {
            missing: M::QKEY.bits(),
            forbidden: M::AV.bits(),
        };
        assert_eq!(error, Err(expected));
    }

    #[test]
    fn what_is_missing_alone_is_refused() {
        let expected = VerbsError::InvalidMask {
            missing: M::QKEY.bits(),
            forbidden: 0,
        };
        let error = go(Ud, Reset, Init, M::PKEY_INDEX | M::PORT);
        assert_eq!(error, Err(expected));
    }

    #[test]
    fn the_current_state_that_is_named_decides_and_not_the_one_that_is_known() {
        let attr = QpAttr {
            state: Rts,
            cur_state: Sqe,
            ..QpAttr::EMPTY
        };
        let mask = M::STATE | M::CUR_STATE;
        assert_eq!(check_modify(Ud, Rtr, &attr, mask), Ok(Rts));
        let wrong = Err(VerbsError::InvalidState { object: "QP" });
        assert_eq!(check_modify(Rc, Rts, &attr, mask), wrong);
    }

    #[test]
    fn a_special_qp_has_no_port_attribute() {
        for service in [Smi, Gsi] {
            assert_eq!(go(service, Reset, Init, M::PKEY_INDEX | M::QKEY), Ok(Init));
            let with_port = go(service, Reset, Init, M::PKEY_INDEX | M::QKEY | M::PORT);
            assert!(matches!(with_port, Err(VerbsError::InvalidMask { .. })));
        }
    }

    #[test]
    fn path_migration_is_not_accepted_on_the_way_to_rtr() {
        let required = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        assert_eq!(go(Uc, Init, Rtr, required), Ok(Rtr));
        let with_mig = go(Uc, Init, Rtr, required | M::PATH_MIG_STATE);
        assert!(matches!(
            with_mig,
            Err(VerbsError::InvalidMask { missing: 0, .. })
        ));
    }

    #[test]
    fn an_empty_mask_is_a_no_op_only_where_nothing_could_be_meant() {
        let keep = |from| check_modify(Rc, from, &QpAttr::EMPTY, M::empty());
        assert_eq!(keep(Reset), Ok(Reset));
        assert_eq!(keep(Error), Ok(Error));
        assert_eq!(keep(Rts), Ok(Rts));
        for from in [Rtr, Sqe] {
            assert!(matches!(keep(from), Err(VerbsError::InvalidState { .. })));
        }
    }

    #[test]
    fn only_four_states_may_be_assumed() {
        let attr = QpAttr {
            state: Rts,
            cur_state: Init,
            ..QpAttr::EMPTY
        };
        let error = check_modify(Ud, Rts, &attr, M::STATE | M::CUR_STATE);
        assert!(matches!(error, Err(VerbsError::InvalidAttr { .. })));
    }

    #[test]
    fn the_queues_cannot_be_resized() {
        let error = go(Rc, Rts, Rts, M::CAP);
        assert!(matches!(error, Err(VerbsError::Unsupported { .. })));
    }
}
