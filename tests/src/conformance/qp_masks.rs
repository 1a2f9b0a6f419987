//! Which attributes a transition of a QP takes, and which transitions there are: verbs 3.3, 3.4.

use super::tools::steps::{Row, STATES, no_way, rows};
use super::tools::{
    Station, activate, is_invalid_attr, is_invalid_mask, is_invalid_state, is_unsupported, qp_init,
};
use super::{Features, Rig, Side};
use core_ib::verbs::{Device, QpAttr, QpAttrMask as M, QpHandle, QpState, QpType};

/// Runs `f` for the services that there are; that the others are refused is another case. QP0 first: on some HCAs it takes
/// the port down when it goes.
fn services<R: Rig>(rig: &R, f: impl Fn(&Station<'_, R>, QpType)) {
    let station = Station::new(rig, Side::A);
    for service in [QpType::Smi, QpType::Gsi, QpType::Ud] {
        f(&station, service);
    }
    activate(rig);
    for (service, feature) in [(QpType::Rc, Features::RC), (QpType::Uc, Features::UC)] {
        if rig.declared().has(feature) {
            f(&station, service);
        }
    }
}

/// Runs `f` with a QP of each service in each of `states`, and destroys it.
fn each<R: Rig>(
    rig: &R,
    states: &[QpState],
    f: impl Fn(&Station<'_, R>, QpType, QpState, QpHandle),
) {
    services(rig, |station, service| {
        for &state in states {
            with(station, service, state, |qp| f(station, service, state, qp));
        }
    });
}

/// Runs `f` with a QP of this service in `state`, and destroys it.
fn with<R: Rig>(
    station: &Station<'_, R>,
    service: QpType,
    state: QpState,
    f: impl FnOnce(QpHandle),
) {
    let qp = station.create(&qp_init(service, station.cq)).handle;
    station.bring_to(service, qp, state);
    f(qp);
    station.hca().destroy_qp(qp).unwrap();
}

/// Runs `f` for each row of the services that there are, with a QP in the state that the row is from.
fn each_row<R: Rig>(rig: &R, f: impl Fn(&Station<'_, R>, Row, QpHandle)) {
    services(rig, |station, service| {
        for row in rows(service) {
            with(station, service, row.from, |qp| f(station, row, qp));
        }
    });
}

/// The attributes in `mask` have been taken over, or rounded up where that is allowed.
fn are_set(mask: M, given: &QpAttr, found: &QpAttr, row: &Row) {
    let same = |bit: M, same: bool| {
        let right = !mask.contains(bit) || same;
        assert!(right, "{bit:?} of {row:?}: gave {given:?}, found {found:?}");
    };
    same(M::ACCESS, found.access == given.access);
    same(M::PKEY_INDEX, found.pkey_index == given.pkey_index);
    same(M::PORT, found.port == given.port);
    same(M::QKEY, found.qkey == given.qkey);
    same(M::AV, found.path == given.path);
    same(M::PATH_MTU, found.path_mtu == given.path_mtu);
    same(M::TIMEOUT, found.timeout == given.timeout);
    same(M::RETRY_COUNT, found.retry_count == given.retry_count);
    same(M::RNR_RETRY, found.rnr_retry == given.rnr_retry);
    same(M::RQ_PSN, found.rq_psn == given.rq_psn);
    same(M::SQ_PSN, found.sq_psn == given.sq_psn);
    same(M::MIN_RNR_TIMER, found.min_rnr_timer == given.min_rnr_timer);
    same(M::DEST_QPN, found.dest_qpn == given.dest_qpn);
    let rounded = |found: u8, given: u8| found >= given && found <= given.next_power_of_two();
    let (found_max, given_max) = (found.max_rd_atomic, given.max_rd_atomic);
    same(M::MAX_RD_ATOMIC, rounded(found_max, given_max));
    let (found_max, given_max) = (found.max_dest_rd_atomic, given.max_dest_rd_atomic);
    same(M::MAX_DEST_RD_ATOMIC, rounded(found_max, given_max));
}

/// verbs 3.1, T031.
pub fn a_new_qp_is_in_reset<R: Rig>(rig: &R) {
    each(rig, &[QpState::Reset], |station, service, _, qp| {
        assert_eq!(station.state(qp), QpState::Reset, "{service:?}");
    });
}

/// verbs 0.2: a service that there is not.
pub fn a_service_that_there_is_not_is_unsupported<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    for (service, feature) in [(QpType::Rc, Features::RC), (QpType::Uc, Features::UC)] {
        let created = rig
            .hca(Side::A)
            .create_qp(station.pd, &qp_init(service, station.cq));
        if rig.declared().has(feature) {
            created.unwrap();
        } else {
            is_unsupported(created);
        }
    }
}

/// verbs 3.4, T032.
pub fn every_transition_takes_exactly_what_it_requires<R: Rig>(rig: &R) {
    each_row(rig, |station, row, qp| {
        let given = QpAttr {
            cur_state: row.from,
            ..station.values()
        };
        let done = station.modify(qp, row.to, row.required, |attr| *attr = given);
        assert_eq!(done, Ok(()), "{row:?}");
        let found = station.hca().query_qp(qp).unwrap();
        assert_eq!(found.state, row.to, "{row:?}");
        are_set(row.required, &given, &found, &row);
    });
}

/// verbs 3.4, T033.
pub fn every_transition_takes_all_that_is_optional_too<R: Rig>(rig: &R) {
    each_row(rig, |station, row, qp| {
        let mask = row.required | row.optional_without_migration();
        let given = QpAttr {
            cur_state: row.from,
            ..station.values()
        };
        let done = station.modify(qp, row.to, mask, |attr| *attr = given);
        assert_eq!(done, Ok(()), "{row:?}");
        let found = station.hca().query_qp(qp).unwrap();
        assert_eq!(found.state, row.to, "{row:?}");
        are_set(mask, &given, &found, &row);
    });
}

/// verbs 3.4: a transition that keeps the state needs no target.
pub fn a_transition_that_stays_needs_no_target_state<R: Rig>(rig: &R) {
    each_row(rig, |station, row, qp| {
        if row.from != row.to {
            return;
        }
        let mask = row.optional_without_migration().difference(M::CUR_STATE);
        let given = station.values();
        let done = station.hca().modify_qp(qp, &given, mask);
        assert_eq!(done, Ok(()), "{row:?}");
        assert_eq!(station.state(qp), row.to, "{row:?}");
    });
}

/// verbs 3.3: what an empty mask does.
pub fn an_empty_mask_is_nothing_in_reset_and_err_and_refused_in_rtr<R: Rig>(rig: &R) {
    each(rig, &STATES, |station, service, state, qp| {
        let done = station.hca().modify_qp(qp, &QpAttr::EMPTY, M::empty());
        if state == QpState::Rtr {
            is_invalid_state(done);
        } else {
            assert_eq!(done, Ok(()), "{service:?} in {state:?}");
        }
        assert_eq!(station.state(qp), state, "{service:?}");
    });
}

/// verbs 3.4, T034.
pub fn what_a_transition_requires_may_not_be_left_out<R: Rig>(rig: &R) {
    each_row(rig, |station, row, qp| {
        let before = station.hca().query_qp(qp).unwrap();
        for bit in row.required.iter() {
            let mask = row.required.difference(bit);
            let done = station.modify(qp, row.to, mask, |attr| *attr = station.values());
            is_invalid_mask(done);
            let after = station.hca().query_qp(qp).unwrap();
            assert_eq!(after, before, "{row:?} without {bit:?}");
        }
    });
}

/// verbs 3.4, T035.
pub fn what_a_transition_does_not_list_may_not_be_given<R: Rig>(rig: &R) {
    each_row(rig, |station, row, qp| {
        let before = station.hca().query_qp(qp).unwrap();
        for bit in row.forbidden().iter() {
            let mask = row.required | bit;
            let done = station.modify(qp, row.to, mask, |attr| {
                *attr = station.values();
                attr.cur_state = row.from;
            });
            // A state that may not even be assumed is another mistake: verbs 3.3.
            if bit == M::CUR_STATE && matches!(row.from, QpState::Reset | QpState::Init) {
                is_invalid_attr(done);
            } else {
                is_invalid_mask(done);
            }
            let after = station.hca().query_qp(qp).unwrap();
            assert_eq!(after, before, "{row:?} with {bit:?}");
        }
    });
}

/// verbs 3.3: to RESET or ERR goes the target state alone.
pub fn nothing_may_be_given_on_the_way_to_reset_or_err<R: Rig>(rig: &R) {
    let states = [QpState::Init, QpState::Rts, QpState::Error];
    each(rig, &states, |station, _, from, qp| {
        for to in [QpState::Reset, QpState::Error] {
            is_invalid_mask(station.modify(qp, to, M::PKEY_INDEX, |_| ()));
            assert_eq!(station.state(qp), from);
        }
    });
}

/// verbs 3.4: CAP is in no row.
pub fn the_queues_of_a_qp_cannot_be_resized<R: Rig>(rig: &R) {
    each(rig, &[QpState::Rts], |station, _, state, qp| {
        is_unsupported(station.modify(qp, state, M::CAP, |_| ()));
        assert_eq!(station.state(qp), state);
    });
}

/// verbs 3.3, T036.
pub fn a_transition_that_does_not_exist_is_refused<R: Rig>(rig: &R) {
    each(rig, &STATES, |station, service, from, qp| {
        let before = station.hca().query_qp(qp).unwrap();
        for &to in no_way(from) {
            is_invalid_state(station.modify(qp, to, M::empty(), |_| ()));
            let after = station.hca().query_qp(qp).unwrap();
            assert_eq!(after, before, "{service:?}, {from:?} to {to:?}");
        }
    });
}

/// verbs 3.3, T037.
pub fn every_state_leads_to_reset<R: Rig>(rig: &R) {
    each(rig, &STATES, |station, service, from, qp| {
        let done = station.modify(qp, QpState::Reset, M::empty(), |_| ());
        assert_eq!(done, Ok(()), "{service:?} from {from:?}");
        assert_eq!(station.state(qp), QpState::Reset, "{service:?}");
    });
}

/// verbs 3.3, T038.
pub fn every_state_but_reset_leads_to_err<R: Rig>(rig: &R) {
    each(rig, &STATES[1..], |station, service, from, qp| {
        let done = station.modify(qp, QpState::Error, M::empty(), |_| ());
        assert_eq!(done, Ok(()), "{service:?} from {from:?}");
        assert_eq!(station.state(qp), QpState::Error, "{service:?}");
    });
}

/// verbs 3.3, T047.
pub fn only_four_states_may_be_assumed<R: Rig>(rig: &R) {
    each(rig, &[QpState::Rts], |station, service, state, qp| {
        let assume = |cur_state| {
            let change = |attr: &mut QpAttr| attr.cur_state = cur_state;
            station.modify(qp, state, M::CUR_STATE, change)
        };
        for cur_state in [QpState::Reset, QpState::Init, QpState::Error] {
            is_invalid_attr(assume(cur_state));
            assert_eq!(station.state(qp), state, "{service:?}");
        }
        assert_eq!(assume(QpState::Rts), Ok(()), "{service:?}");
    });
}

/// verbs 3.11, T050.
pub fn a_special_qp_has_its_port_from_creation<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    for service in [QpType::Smi, QpType::Gsi] {
        with(&station, service, QpState::Reset, |qp| {
            let mask = M::PKEY_INDEX | M::QKEY;
            is_invalid_mask(
                station.modify(qp, QpState::Init, mask | M::PORT, |attr| attr.port = 1),
            );
            assert_eq!(station.modify(qp, QpState::Init, mask, |_| ()), Ok(()));
        });
    }
}
