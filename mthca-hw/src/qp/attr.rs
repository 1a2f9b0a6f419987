//! Which values the attributes of a QP may have. verbs 3.5.
//!
//! Nothing here changes anything; a check that needs the port asks the HCA.

use super::control::{Qp, QpControl};
use crate::inner::Inner;
use core_ib::platform::Platform;
use core_ib::verbs::{
    Access, AhAttr, PathMigration, QpAttr, QpAttrMask as M, QpState, QpType, VerbsError,
};
use hca_abi::infinihost::dev_lim::features;

fn at_most(field: &'static str, found: u64, allowed: u64) -> Result<(), VerbsError> {
    if found > allowed {
        return Err(VerbsError::InvalidAttr {
            field,
            found,
            allowed,
        });
    }
    Ok(())
}

impl<P: Platform> Inner<'_, P> {
    /// Reads and atomics that a QP can serve at a time.
    pub fn max_dest_rd_atomic(&self) -> u8 {
        1 << self
            .plan
            .log_rdb_per_qp
            .min(self.limits.log_max_rd_atomic_dest)
            .min(7)
    }

    /// Reads and atomics that a QP can have outstanding.
    pub fn max_rd_atomic(&self) -> u8 {
        1 << self.limits.log_max_rd_atomic.min(7)
    }

    /// Checks the values that `mask` names, in the order of verbs 3.5. `to` is the state to go to.
    pub(super) fn check_values(
        &self,
        qp: &Qp,
        control: &QpControl<'_, P>,
        attr: &QpAttr,
        mask: M,
        to: QpState,
    ) -> Result<(), VerbsError> {
        if mask.contains(M::PORT) {
            self.check_port(attr.port)?;
        }
        if mask.contains(M::PKEY_INDEX) {
            self.check_pkey_index(attr.pkey_index)?;
        }
        if mask.contains(M::ACCESS) {
            let bits = u64::from(attr.access.bits());
            let allowed = u64::from(Access::REMOTE.bits());
            at_most("remote access of the QP", bits & !allowed, 0)?;
        }
        if mask.contains(M::PATH_MTU) {
            self.check_mtu(control, attr)?;
        }
        if mask.contains(M::MAX_DEST_RD_ATOMIC) {
            let most = u64::from(self.max_dest_rd_atomic());
            at_most("max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), most)?;
        }
        if mask.contains(M::MAX_RD_ATOMIC) {
            let most = u64::from(self.max_rd_atomic());
            at_most("max_rd_atomic", attr.max_rd_atomic.into(), most)?;
        }
        if mask.contains(M::TIMEOUT) {
            at_most("timeout", attr.timeout.into(), 31)?;
        }
        if mask.contains(M::RETRY_COUNT) {
            at_most("retry_count", attr.retry_count.into(), 7)?;
        }
        if mask.contains(M::RNR_RETRY) {
            at_most("rnr_retry", attr.rnr_retry.into(), 7)?;
        }
        if mask.contains(M::MIN_RNR_TIMER) {
            at_most("min_rnr_timer", attr.min_rnr_timer.into(), 31)?;
        }
        if mask.contains(M::AV) {
            let port = if mask.contains(M::PORT) {
                Some(attr.port)
            } else if to == QpState::Sqd {
                None // the path's port becomes the QP's
            } else {
                Some(control.port)
            };
            self.check_path(qp, &attr.path, port)?;
        }
        self.check_migration(qp, control, attr, mask)
    }

    fn check_pkey_index(&self, index: u16) -> Result<(), VerbsError> {
        let last = u64::from(self.limits.pkeys).saturating_sub(1);
        at_most("P_Key index", index.into(), last)
    }

    fn check_mtu(&self, control: &QpControl<'_, P>, attr: &QpAttr) -> Result<(), VerbsError> {
        let active = self.query_port(control.port)?.active_mtu;
        let field = "path MTU";
        at_most(field, attr.path_mtu.code().into(), active.code().into())
    }

    fn check_path(&self, qp: &Qp, path: &AhAttr, port: Option<u8>) -> Result<(), VerbsError> {
        self.check_address(path)?;
        let connected = matches!(qp.service, QpType::Rc | QpType::Uc);
        if connected && !path.dlid.is_unicast() {
            return Err(VerbsError::InvalidAttr {
                field: "destination LID of the path",
                found: path.dlid.0.into(),
                allowed: 0xbfff,
            });
        }
        match port {
            Some(port) if port != path.port => Err(VerbsError::InvalidAttr {
                field: "port of the path",
                found: path.port.into(),
                allowed: port.into(),
            }),
            _ => Ok(()),
        }
    }

    fn check_migration(
        &self,
        qp: &Qp,
        control: &QpControl<'_, P>,
        attr: &QpAttr,
        mask: M,
    ) -> Result<(), VerbsError> {
        if !mask.intersects(M::ALT_PATH | M::PATH_MIG_STATE) {
            return Ok(());
        }
        if !self.limits.can(features::PATH_MIGRATION) {
            return Err(VerbsError::Unsupported {
                feature: "automatic path migration",
            });
        }
        if mask.contains(M::ALT_PATH) {
            self.check_path(qp, &attr.alt_path, None)?;
            self.check_pkey_index(attr.alt_pkey_index)?;
            at_most("alternate timeout", attr.alt_timeout.into(), 31)?;
        }
        if !mask.contains(M::PATH_MIG_STATE) {
            return Ok(());
        }
        let loaded = control.alternate || mask.contains(M::ALT_PATH);
        match attr.path_migration {
            PathMigration::Migrated => Ok(()),
            PathMigration::Rearm if loaded => Ok(()),
            // Armed is the HCA's to say, and without an alternate path there is nothing to rearm.
            other => Err(VerbsError::InvalidAttr {
                field: "path migration state",
                found: other as u64,
                allowed: PathMigration::Migrated as u64,
            }),
        }
    }
}
