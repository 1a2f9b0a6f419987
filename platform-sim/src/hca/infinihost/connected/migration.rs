//! By which path packets of a connection come and go: the check of each, and automatic path migration. protocols 2.3.1,
//! verbs 11.

use super::super::{InfiniHost, qp::Qp};
use super::Requester;
use crate::machine::Bus;
use crate::transport::{DropReason, Incoming, Migration, PathChoice};
use core_ib::Qpn;
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{PathMigration, QpState};

impl Qp {
    /// The alternate path becomes the one in use, and the other way round.
    pub fn migrate(&mut self) {
        let (primary, alternate) = (self.context.primary_path(), self.context.alternate_path());
        self.context
            .set_primary_path(alternate)
            .set_alternate_path(primary)
            .set_path_migration(PathMigration::MIGRATED);
        self.context_changed(self.state());
    }
}

impl InfiniHost {
    /// Did the packet that came in at `port` come by a path of QP `qpn`? One that did may make the QP follow its peer.
    pub(super) fn came_by_path(
        &mut self,
        bus: &mut dyn Bus,
        port: u8,
        incoming: &Incoming<'_>,
        qpn: u32,
    ) -> Result<(), DropReason> {
        let not_here = DropReason::QpState(Qpn::new(qpn));
        let qp = self.qps.get_mut(qpn).filter(|qp| qp.receives());
        let (Some(qp), Some(state)) = (qp, self.ports.node.port(port)) else {
            return Err(not_here);
        };
        let connection = qp.connection();
        let (choice, next) = connection
            .migration
            .on_packet(incoming.transport.bth.mig_req);
        let path = match choice {
            PathChoice::Primary => qp.context.primary_path(),
            PathChoice::Alternate => qp.context.alternate_path(),
        };
        let accepted = match path.port() == port {
            true => qp.connection_by(&path).accepts(state, incoming),
            false => Err(not_here),
        };
        if accepted.is_err() && choice == PathChoice::Alternate {
            let connected = qp.connected.as_deref_mut();
            if connected.is_some_and(|one| !core::mem::replace(&mut one.told_astray, true)) {
                self.qp_event(bus, EventType::PATH_MIGRATION_FAILED, qpn);
            }
            return accepted;
        }
        accepted?;
        match (connection.migration, next) {
            (Migration::Armed, Migration::Migrated) => {
                qp.migrate();
                self.qp_event(bus, EventType::PATH_MIGRATED, qpn);
            }
            (Migration::Rearm, Migration::Armed) => {
                qp.context.set_path_migration(PathMigration::ARMED);
            }
            _ => {}
        }
        Ok(())
    }

    /// No answer comes by the path in use: the other is tried, if both ends are ready for that.
    pub(super) fn other_path(&mut self, bus: &mut dyn Bus, qpn: u32) -> bool {
        let armed = |qp: &&mut Qp| {
            let sends = matches!(qp.state(), QpState::RTS | QpState::SQ_DRAINING);
            sends && qp.context.path_migration() == PathMigration::ARMED
        };
        let Some(qp) = self.qps.get_mut(qpn).filter(armed) else {
            return false;
        };
        qp.migrate();
        if let Some(connected) = qp.connected.as_deref_mut()
            && let Requester::Reliable(engine) = &mut connected.requester
        {
            engine.try_anew();
        }
        self.qp_event(bus, EventType::PATH_MIGRATED, qpn);
        self.schedule_send(qpn);
        true
    }
}
