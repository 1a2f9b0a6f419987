//! Modify QP: the tables of verbs 3.3 to 3.5, and what a transition does to work (3.6 to 3.10).

use super::super::super::conformance::tools::{MTU, lid, steps};
use super::super::super::conformance::{Features, Side};
use super::super::call::{Name, Twist};
use super::state::{Migration, PSN, Qp};
use super::{Affiliated, Error, Model, Open, Want};
use super::{PRIMARY, other};
use core_ib::verbs::{
    Access, AhAttr, PathMigration, QpAttr, QpAttrMask as M, QpEvent, QpState, QpType,
};
use core_ib::{Lid, Mtu, Psn, Qpn, Sl};

/// A QP number that nobody has.
pub const NOBODY: u32 = 0x77_7777;

impl Model {
    /// What the caller gives: legal values for the way from where the QP is, twisted.
    pub fn attributes(
        &self,
        side: usize,
        place: usize,
        to: Option<QpState>,
        twist: Twist,
    ) -> (QpAttr, M) {
        let unknown = QpAttr::EMPTY;
        let Some(qp) = self.sides[side].qps.get(place) else {
            return (unknown, to.map_or(M::empty(), |_| M::STATE));
        };
        let target = to.unwrap_or(qp.state);
        let (required, _) = masks(qp.service, qp.state, target).unwrap_or_default();
        let mut mask = required;
        let path = |lid| AhAttr {
            port: 1,
            dlid: lid,
            ..AhAttr::default()
        };
        let whom = self.peer_of(side, place);
        let (dlid, dest) = match whom {
            Some((side, place, ..)) => {
                let number = self.sides[side].qps.get(place).map_or(NOBODY, |qp| qp.qpn);
                (lid(Side::BOTH[side]), number)
            }
            // Packets of whom it was connected to may go on coming: the path is that way, too.
            None => (lid(Side::BOTH[Self::partner(side, place).0]), NOBODY),
        };
        // What it sends begins where its connection does, whatever became of the peer meanwhile.
        let epoch = match qp.state {
            QpState::Rtr if qp.peer.is_some() => qp.epoch,
            _ => self.epoch_of(side, place),
        };
        let first = PSN(epoch);
        let mut attr = QpAttr {
            state: target,
            cur_state: qp.state,
            access: Access::REMOTE,
            port: 1,
            qkey: qp.qkey(),
            path: path(dlid),
            path_mtu: MTU,
            timeout: 8,
            retry_count: 1,
            rnr_retry: 7,
            // Of nobody nothing is expected, and what an old peer sends is ahead.
            rq_psn: Psn::new(if whom.is_some() { first } else { 0x1000 }),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            alt_path: AhAttr {
                sl: Sl::new(other(qp.path)),
                ..path(dlid)
            },
            alt_timeout: 8,
            min_rnr_timer: 12,
            sq_psn: Psn::new(first),
            dest_qpn: Qpn::new(dest),
            ..QpAttr::EMPTY
        };
        match twist {
            Twist::None => {}
            Twist::Missing(n) => {
                let bits = required.iter().count().max(1);
                let bit = required.iter().nth(usize::from(n) % bits);
                mask.remove(bit.unwrap_or(M::empty()));
            }
            Twist::Extra(extra) => mask |= extra,
            Twist::Access(access) => attr.access = access,
            Twist::RnrRetry(retry) => attr.rnr_retry = retry,
            Twist::Reads(reads, serves) => {
                (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (reads, serves)
            }
            Twist::Port(port) => attr.port = port,
            Twist::PkeyIndex(index) => attr.pkey_index = index,
            Twist::Mtu4096 => attr.path_mtu = Mtu::Mtu4096,
            Twist::Timeout(timeout) => attr.timeout = timeout,
            Twist::RetryCount(count) => attr.retry_count = count,
            Twist::RnrTimer(timer) => attr.min_rnr_timer = timer,
            Twist::MulticastPath => attr.path.dlid = Lid(0xc001),
            Twist::PathPort => attr.path.port = 2,
            Twist::Alternate { rearm } => {
                mask |= M::ALT_PATH;
                if rearm {
                    mask |= M::PATH_MIG_STATE;
                    attr.path_migration = PathMigration::Rearm;
                }
            }
            Twist::Rearm => {
                mask |= M::PATH_MIG_STATE;
                attr.path_migration = PathMigration::Rearm;
            }
            Twist::Migrate => mask |= M::PATH_MIG_STATE,
            Twist::Drained => {
                mask |= M::SQ_DRAINED;
                attr.sq_drained_event = true;
            }
        }
        if qp.state == QpState::Sqe && target == QpState::Rts {
            mask |= M::CUR_STATE;
        }
        if to.is_some() {
            mask |= M::STATE;
        }
        (attr, mask)
    }

    /// Where the peer of a QP in that place is: the same place of the other side, or the neighbour's.
    fn partner(side: usize, place: usize) -> (usize, usize) {
        if place < 2 {
            (1 - side, place)
        } else {
            (side, place ^ 1)
        }
    }

    /// The same, for who makes programs.
    pub fn partner_of(&self, side: usize, place: usize) -> (usize, usize) {
        Self::partner(side, place)
    }

    /// The peer that a QP on its way to RTR is to have: its partner, unless that is at another connection already.
    fn peer_of(&self, side: usize, place: usize) -> Option<(usize, usize, u32, u32)> {
        let own = self.sides[side].qps.get(place)?;
        let (there, at) = Self::partner(side, place);
        let peer = self.sides[there].qps.get(at)?;
        let fresh = matches!(peer.state, QpState::Reset | QpState::Init);
        let life = peer.life + u32::from(peer.state == QpState::Reset);
        let waits_for_us = peer.peer == Some((side, place, own.id, own.life));
        ((fresh || waits_for_us) && peer.service == own.service)
            .then_some((there, at, peer.id, life))
    }

    /// Number of the connection that comes of it.
    fn epoch_of(&self, side: usize, place: usize) -> u32 {
        let of_peer = self.peer_of(side, place).and_then(|(there, at, ..)| {
            let peer = self.sides[there].qps.get(at)?;
            peer.peer.is_some().then_some(peer.epoch)
        });
        of_peer.unwrap_or(self.epoch + 1)
    }

    pub(super) fn modify(
        &mut self,
        side: usize,
        qp: Name,
        to: Option<QpState>,
        twist: Twist,
    ) -> Result<Want, Open> {
        let Some(place) = self.find(side, qp, |half| &half.qps)? else {
            return Ok(Want::Fails(vec![Error::Handle]));
        };
        let (attr, mask) = self.attributes(side, place, to, twist);
        let qp = self.sides[side].qps.get(place).expect("live").clone();
        let from = qp.state;
        let target = to.unwrap_or(from);
        if (from, target) == (QpState::Reset, QpState::Error) {
            return Err(Open("RESET to ERR: a test must not depend on it"));
        }
        let mut faults = Vec::new();
        if qp.drains.is_some() && matches!(target, QpState::Sqd | QpState::Rts) {
            faults.push(Error::State); // verbs 3.7
        }
        match masks(qp.service, from, target) {
            None if to.is_none()
                && mask.is_empty()
                && matches!(from, QpState::Reset | QpState::Error) =>
            {
                return Ok(Want::Done);
            }
            None => faults.push(Error::State),
            Some((required, optional)) => {
                let given = mask.difference(M::STATE | M::CUR_STATE);
                let allowed = required | optional;
                if !given.difference(allowed | M::CAP).is_empty()
                    || !required.difference(given).is_empty()
                {
                    faults.push(Error::Mask);
                }
                if mask.contains(M::CUR_STATE) && !optional.contains(M::CUR_STATE) {
                    faults.push(Error::Mask);
                }
            }
        }
        if mask.contains(M::CAP) {
            faults.push(Error::Unsupported);
        }
        if mask.contains(M::CUR_STATE)
            && matches!(from, QpState::Reset | QpState::Init | QpState::Error)
        {
            faults.push(Error::Attr);
        }
        self.values(&qp, &attr, mask, &mut faults);
        let rearm = mask.contains(M::PATH_MIG_STATE) && attr.path_migration == PathMigration::Rearm;
        if rearm && qp.alternate.is_none() && !mask.contains(M::ALT_PATH) {
            faults.push(Error::Attr);
        }
        if !faults.is_empty() {
            return Ok(Want::Fails(faults));
        }
        if mask.intersects(M::ALT_PATH | M::PATH_MIG_STATE | M::AV) {
            self.paths_may_change(&qp, &attr, mask)?;
        }
        if from == target && matches!(target, QpState::Reset | QpState::Error) {
            return Ok(Want::Done);
        }
        let stops = from == QpState::Rts && target == QpState::Sqd;
        if stops && qp.sq.len() > 1 {
            return Err(Open("which requests have started"));
        }
        let told = mask.contains(M::SQ_DRAINED) && attr.sq_drained_event;
        let drains = (stops && !qp.sq.is_empty()).then_some(told);
        let (peer, epoch) = (self.peer_of(side, place), self.epoch_of(side, place));
        if target == QpState::Reset {
            self.purge(side, place);
        }
        let qp = self.sides[side].qps.get_mut(place).expect("live");
        qp.state = target;
        if mask.contains(M::ACCESS) {
            qp.access = attr.access;
        }
        if mask.contains(M::RNR_RETRY) {
            qp.rnr_retry = attr.rnr_retry;
        }
        if mask.contains(M::MAX_RD_ATOMIC) {
            qp.reads = attr.max_rd_atomic;
        }
        if mask.contains(M::MAX_DEST_RD_ATOMIC) {
            qp.serves = attr.max_dest_rd_atomic;
        }
        if mask.contains(M::AV) && qp.is_connected() {
            qp.path = attr.path.sl.get();
        }
        if mask.contains(M::ALT_PATH) {
            qp.alternate = Some(attr.alt_path.sl.get());
        }
        match attr.path_migration {
            _ if !mask.contains(M::PATH_MIG_STATE) => {}
            PathMigration::Migrated if qp.migration == Migration::Armed => {
                self.migrates((side, place), false);
            }
            PathMigration::Migrated => qp.migration = Migration::Migrated,
            _ => qp.migration = Migration::Rearm,
        }
        let qp = self.sides[side].qps.get_mut(place).expect("live");
        match (from, target) {
            (_, QpState::Reset) => {
                (qp.path, qp.alternate) = (PRIMARY, None);
                qp.migration = Migration::Migrated;
                qp.sq.clear();
                qp.rq.clear();
                (qp.posted, qp.retired, qp.recv_posted, qp.recv_retired) = (0, 0, 0, 0);
                (qp.waits, qp.drains, qp.peer) = (false, None, None);
                // As new: what INIT to RTS gave is to be given again.
                (qp.reads, qp.serves) = (0, 0);
            }
            (QpState::Reset, QpState::Init) => qp.life += 1,
            (QpState::Init, QpState::Rtr) if qp.is_connected() => {
                (qp.peer, qp.epoch) = (peer, epoch);
                self.epoch = self.epoch.max(epoch);
            }
            (QpState::Rts, QpState::Sqd) if drains.is_some() => qp.drains = drains,
            (QpState::Rts, QpState::Sqd) if told => {
                self.expect(side, Affiliated::Qp(place, vec![QpEvent::SqDrained]), true);
            }
            (_, QpState::Error) => self.entered_error(side, place),
            _ => {}
        }
        Ok(Want::Done)
    }

    /// Not while packets are under way, nor where verbs 11 leaves open what comes of it.
    fn paths_may_change(&self, qp: &Qp, attr: &QpAttr, mask: M) -> Result<(), Open> {
        let migrates = mask.intersects(M::ALT_PATH | M::PATH_MIG_STATE);
        if migrates && !self.declared.has(Features::PATH_MIGRATION) {
            return Err(Open("path migration"));
        }
        self.nobody_waits()?;
        let rearm = attr.path_migration == PathMigration::Rearm;
        let state = mask.contains(M::PATH_MIG_STATE);
        if qp.migration != Migration::Migrated && mask.contains(M::ALT_PATH) != (state && rearm) {
            return Err(Open("what a loaded path does to what is armed"));
        }
        Ok(())
    }

    /// An QP with an SRQ says when it takes no more of it. verbs 8.5.
    pub(super) fn entered_error(&mut self, side: usize, place: usize) {
        let qp = self.sides[side].qps.get_mut(place).expect("live");
        qp.moved_early = qp.state == QpState::Rtr;
        (qp.state, qp.drains) = (QpState::Error, None);
        if qp.srq.is_some() {
            self.expect(
                side,
                Affiliated::Qp(place, vec![QpEvent::LastWqeReached]),
                true,
            );
        }
    }

    /// Has the HCA taken this QP from RTR to ERR?
    pub fn was_moved_early(&self, side: Side, qp: Name) -> bool {
        let half = &self.sides[side.index()];
        let known = half.qps.has(qp).then(|| half.qps.get(qp.0.into()));
        known
            .flatten()
            .is_some_and(|qp| qp.state == QpState::Error && qp.moved_early)
    }

    /// verbs 3.5, of what the mask gives.
    fn values(&self, qp: &Qp, attr: &QpAttr, mask: M, faults: &mut Vec<Error>) {
        let limits = &self.limits;
        let mut when = |given: M, wrong: bool, error| {
            if mask.contains(given) && wrong {
                faults.push(error);
            }
        };
        when(
            M::PORT,
            attr.port == 0 || attr.port > limits.port_count,
            Error::Port,
        );
        when(M::PKEY_INDEX, attr.pkey_index == u16::MAX, Error::Attr);
        when(
            M::ACCESS,
            !Access::REMOTE.contains(attr.access),
            Error::Attr,
        );
        when(M::PATH_MTU, attr.path_mtu.code() > MTU.code(), Error::Attr);
        when(
            M::MAX_RD_ATOMIC,
            attr.max_rd_atomic > limits.max_rd_atomic,
            Error::Attr,
        );
        when(
            M::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic > limits.max_dest_rd_atomic,
            Error::Attr,
        );
        when(M::TIMEOUT, attr.timeout > 31, Error::Attr);
        when(M::RETRY_COUNT, attr.retry_count > 7, Error::Attr);
        when(M::RNR_RETRY, attr.rnr_retry > 7, Error::Attr);
        when(M::MIN_RNR_TIMER, attr.min_rnr_timer > 31, Error::Attr);
        when(
            M::AV,
            qp.is_connected() && !attr.path.dlid.is_unicast(),
            Error::Attr,
        );
        when(M::AV, attr.path.port != 1, Error::Attr);
    }
}

/// Required and optional attributes of a transition, or none if there is no such transition.
fn masks(service: QpType, from: QpState, to: QpState) -> Option<(M, M)> {
    use QpState::{Error, Reset, Rts, Sqe};
    match (from, to) {
        (_, Reset) | (_, Error) => return Some((M::empty(), M::empty())),
        (Sqe, Rts) => {
            return match service {
                QpType::Uc => Some((M::empty(), M::CUR_STATE | M::ACCESS)),
                QpType::Ud | QpType::Gsi => Some((M::empty(), M::CUR_STATE | M::QKEY)),
                _ => None,
            };
        }
        _ => {}
    }
    let row = steps::rows(service).find(|row| (row.from, row.to) == (from, to))?;
    Some((row.required, row.optional))
}
