//! The attribute table of verbs 3.4 and the map of verbs 3.3, written down once more from the page: the one in
//! `core-ib` is what is tested.

use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use QpType::{Gsi, Rc, Smi, Uc, Ud};
use core_ib::verbs::{QpAttrMask as M, QpState, QpType};

/// One transition of one service. The target state goes without saying.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Where the QP is.
    pub from: QpState,
    /// Where it goes.
    pub to: QpState,
    /// For which service.
    pub service: QpType,
    /// Must be given.
    pub required: M,
    /// May be given.
    pub optional: M,
}

impl Row {
    /// What may not be given. CAP is left out: it has a refusal of its own.
    pub fn forbidden(&self) -> M {
        let known = M::STATE | M::CAP | self.required | self.optional;
        M::all().difference(known)
    }

    /// The optional ones but for path migration.
    pub fn optional_without_migration(&self) -> M {
        let migration = M::ALT_PATH | M::PATH_MIG_STATE;
        self.optional.difference(migration)
    }
}

const PKEY: M = M::PKEY_INDEX;
const ACC: M = M::ACCESS;
const CUR: M = M::CUR_STATE;
const ALT: M = M::ALT_PATH;
const RNRT: M = M::MIN_RNR_TIMER;
const MIG: M = M::PATH_MIG_STATE;

/// From, to, services, required, optional.
type Line<'a> = (QpState, QpState, &'a [QpType], &'a [M], &'a [M]);

#[rustfmt::skip]
const TABLE: &[Line<'static>] = &[
    (Reset, Init, &[Rc, Uc], &[PKEY, M::PORT, ACC], &[]),
    (Reset, Init, &[Ud], &[PKEY, M::PORT, M::QKEY], &[]),
    (Reset, Init, &[Smi, Gsi], &[PKEY, M::QKEY], &[]),
    (Init, Init, &[Rc, Uc], &[], &[PKEY, M::PORT, ACC]),
    (Init, Init, &[Ud], &[], &[PKEY, M::PORT, M::QKEY]),
    (Init, Init, &[Smi, Gsi], &[], &[PKEY, M::QKEY]),
    (Init, Rtr, &[Rc], &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, RNRT], &[ALT, ACC, PKEY]),
    (Init, Rtr, &[Uc], &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN], &[ALT, ACC, PKEY]),
    (Init, Rtr, &[Ud, Smi, Gsi], &[], &[PKEY, M::QKEY]),
    (Rtr, Rts, &[Rc], &[M::SQ_PSN, M::TIMEOUT, M::RETRY_COUNT, M::RNR_RETRY, M::MAX_RD_ATOMIC], &[CUR, ALT, ACC, RNRT, MIG]),
    (Rtr, Rts, &[Uc], &[M::SQ_PSN], &[CUR, ALT, ACC, MIG]),
    (Rtr, Rts, &[Ud, Smi, Gsi], &[M::SQ_PSN], &[CUR, M::QKEY]),
    (Rts, Rts, &[Rc], &[], &[CUR, ALT, ACC, RNRT, MIG]),
    (Rts, Rts, &[Uc], &[], &[CUR, ALT, ACC, MIG]),
    (Rts, Rts, &[Ud, Smi, Gsi], &[], &[CUR, M::QKEY]),
    (Rts, Sqd, &[Rc, Uc, Ud, Smi, Gsi], &[], &[M::SQ_DRAINED]),
    (Sqd, Sqd, &[Rc], &[], &[
        M::PORT, M::AV, M::TIMEOUT, M::RETRY_COUNT, M::RNR_RETRY, M::MAX_RD_ATOMIC, M::MAX_DEST_RD_ATOMIC, ALT, ACC,
        PKEY, RNRT, MIG,
    ]),
    (Sqd, Sqd, &[Uc], &[], &[M::AV, ALT, ACC, PKEY, MIG]),
    (Sqd, Sqd, &[Ud, Smi, Gsi], &[], &[PKEY, M::QKEY]),
    (Sqd, Rts, &[Rc], &[], &[CUR, ALT, ACC, RNRT, MIG]),
    (Sqd, Rts, &[Uc], &[], &[CUR, ALT, ACC, MIG]),
    (Sqd, Rts, &[Ud, Smi, Gsi], &[], &[CUR, M::QKEY]),
];

/// The states that a QP can be taken to by modify.
pub const STATES: [QpState; 6] = [Reset, Init, Rtr, Rts, Sqd, Error];

/// The rows of `service` that lead between other states than RESET and ERR; SQE apart, which no modify reaches.
pub fn rows(service: QpType) -> impl Iterator<Item = Row> {
    let lines = TABLE.iter().filter(move |line| line.2.contains(&service));
    lines.map(move |&(from, to, _, required, optional)| Row {
        from,
        to,
        service,
        required: union(required),
        optional: union(optional),
    })
}

fn union(masks: &[M]) -> M {
    masks.iter().copied().collect()
}

/// What is required from RESET on to reach `to`, step by step; ERR by way of RTS.
pub fn way(service: QpType, to: QpState) -> Vec<(QpState, M)> {
    let steps: &[QpState] = match to {
        Reset => &[],
        Init => &[Init],
        Rtr => &[Init, Rtr],
        Rts => &[Init, Rtr, Rts],
        Sqd => &[Init, Rtr, Rts, Sqd],
        Error => &[Init, Rtr, Rts, Error],
        Sqe => panic!("nobody takes a QP to SQE"),
    };
    let mut from = Reset;
    let step = |&to: &QpState| {
        let row = rows(service).find(|row| (row.from, row.to) == (from, to));
        from = to;
        (to, row.map_or(M::empty(), |row| row.required))
    };
    steps.iter().map(step).collect()
}

/// The "–" of verbs 3.3 in the row of `from`, but for RESET to ERR, which is left open.
pub fn no_way(from: QpState) -> &'static [QpState] {
    match from {
        Reset => &[Rtr, Rts, Sqd, Sqe],
        Init => &[Rts, Sqd, Sqe],
        Rtr => &[Init, Rtr, Sqd, Sqe],
        Rts | Sqd => &[Init, Rtr, Sqe],
        Sqe => &[Init, Rtr, Sqd, Sqe],
        Error => &[Init, Rtr, Rts, Sqd, Sqe],
    }
}
