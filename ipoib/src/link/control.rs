//! The half that blocks: carries out what a link wishes.

use super::event::{Done, Outcome, Wish};
use core_ib::verbs::{Device, QpAttr, QpAttrMask, QpHandle, QpState, VerbsError};
use core_ib::{PKey, Psn, QKey};

/// Carries out the wishes of one interface. Plain data that borrows the device alone, so that it can be used where
/// blocking is allowed while the interface lies under its lock.
#[derive(Debug)]
pub struct Control<'a, D: ?Sized> {
    device: &'a D,
    qp: QpHandle,
    port: u8,
}

impl<D: ?Sized> Clone for Control<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: ?Sized> Copy for Control<'_, D> {}

impl<'a, D: Device + ?Sized> Control<'a, D> {
    /// For the UD QP `qp`, which sends by `port`.
    pub const fn new(device: &'a D, qp: QpHandle, port: u8) -> Self {
        Self { device, qp, port }
    }

    /// Does what is wished and says what became of it. Control context; blocks.
    pub fn carry_out(&self, wish: Wish) -> Done {
        let kept = |()| Outcome::Kept;
        let result = match wish {
            Wish::Start { pkey_index, q_key } => self.start(pkey_index, q_key),
            Wish::Mend { pkey_index, q_key } => self.mend(pkey_index, q_key),
            Wish::SetQKey(q_key) => self.set_q_key(q_key).map(kept),
            Wish::Attach { mgid, mlid } => self.device.attach_mcast(self.qp, mgid, mlid).map(kept),
            Wish::Detach { mgid, mlid } => self.device.detach_mcast(self.qp, mgid, mlid).map(kept),
        };
        Done { wish, result }
    }

    fn modify(&self, attr: QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.device
            .modify_qp(self.qp, &attr, mask.union(QpAttrMask::STATE))
    }

    fn start(&self, pkey_index: u16, q_key: QKey) -> Result<Outcome, VerbsError> {
        let to = |state| QpAttr {
            state,
            ..QpAttr::EMPTY
        };
        self.modify(to(QpState::Reset), QpAttrMask::empty())?;
        let init = QpAttr {
            pkey_index,
            port: self.port,
            qkey: q_key,
            ..to(QpState::Init)
        };
        let mask = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        self.modify(init, mask)?;
        self.modify(to(QpState::Rtr), QpAttrMask::empty())?;
        let rts = QpAttr {
            sq_psn: Psn::new(0), // nobody looks at the PSN of a datagram: protocols 2.8.1
            ..to(QpState::Rts)
        };
        self.modify(rts, QpAttrMask::SQ_PSN)?;
        Ok(Outcome::Restarted)
    }

    /// The HCA knows better than we in which state the QP is.
    fn mend(&self, pkey_index: u16, q_key: QKey) -> Result<Outcome, VerbsError> {
        match self.device.query_qp(self.qp)?.state {
            QpState::Rts => Ok(Outcome::Kept),
            QpState::Sqe => {
                let resume = QpAttr {
                    state: QpState::Rts,
                    cur_state: QpState::Sqe,
                    ..QpAttr::EMPTY
                };
                self.modify(resume, QpAttrMask::CUR_STATE)?;
                Ok(Outcome::Kept)
            }
            _ => self.start(pkey_index, q_key),
        }
    }

    fn set_q_key(&self, q_key: QKey) -> Result<(), VerbsError> {
        let attr = QpAttr {
            state: QpState::Rts,
            qkey: q_key,
            ..QpAttr::EMPTY
        };
        self.modify(attr, QpAttrMask::QKEY)
    }

    /// Where the partition's key is in the port's table, asked of the HCA: for owners without a cache. Blocks.
    pub fn find_pkey(&self, p_key: PKey) -> Result<Option<u16>, VerbsError> {
        let len = self.device.query_port(self.port)?.pkey_table_len;
        let mut found = None;
        for index in 0..len {
            let entry = self.device.query_pkey(self.port, index)?;
            if entry.base() == p_key.base() && entry.base() != 0 {
                if entry.is_full_member() {
                    return Ok(Some(index));
                }
                found = found.or(Some(index));
            }
        }
        Ok(found)
    }
}
