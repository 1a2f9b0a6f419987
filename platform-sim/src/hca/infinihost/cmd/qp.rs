//! The commands of queue pairs. infinihost 3.11, 4.7.

use super::super::hcr::Command;
use super::super::qp::Qp;
use super::super::queue::MAX_LOG_QUEUE;
use super::super::transition::Transition;
use super::super::variant::Mode;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::{LOG_PKEYS, RESERVED};
use crate::machine::Bus;
use hca_abi::infinihost::cmd::{CmdStatus, QpModifier, ToReset};
use hca_abi::infinihost::eqe::EventType;
use hca_abi::infinihost::qp::{PathMigration, QpContext, QpMailbox, QpState, ServiceType};

impl InfiniHost {
    /// The full number; its low bits say which context, the others which generation.
    fn qpn(&mut self, command: &Command) -> Result<u32, CmdStatus> {
        let modifier = QpModifier::decode(command.input_modifier);
        if modifier.ee {
            self.chip.ledger.count("EE context");
            return Err(CmdStatus::BAD_PARAM);
        }
        let qps = self.params().map_or(0, Params::qps);
        Self::object(self.qps.index(modifier.qpn), qps, RESERVED)?;
        Ok(modifier.qpn)
    }

    /// Every transition that takes fields.
    pub(super) fn modify_qp(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let row = Transition::of(command.opcode).ok_or(CmdStatus::BAD_OP)?;
        let qpn = self.qpn(command)?;
        let input: QpMailbox = self.input(bus, command)?;
        let mask = input.opt_param_mask();
        if row.from == QpState::RST {
            if self.qps.is_taken(qpn) {
                return Err(CmdStatus::BAD_QPEE_STATE);
            }
            self.check_new(&input.context)?;
            self.check_backed(bus, qpn)?;
            let mut context = QpContext::ZERO;
            row.apply(&mut context, &input.context, mask);
            context.set_local_qpn(qpn);
            self.qps.insert(Qp::new(self.mode(), context));
        } else {
            let qp = self.qps.get_mut(qpn).ok_or(CmdStatus::BAD_QPEE_STATE)?;
            if qp.state() != row.from {
                return Err(CmdStatus::BAD_QPEE_STATE);
            }
            let mut context = qp.context;
            let armed = context.path_migration() == PathMigration::ARMED;
            row.apply(&mut context, &input.context, mask);
            let sends = matches!(row.from, QpState::RTS | QpState::SQD);
            let migrated = context.path_migration() == PathMigration::MIGRATED;
            let migrates = sends && armed && migrated;
            self.check_path(&context)?;
            let resumes = context.state() == QpState::RTS;
            if context.primary_path().static_rate() != 0 {
                self.chip.ledger.count("QP path: static rate");
            }
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.context = context;
                qp.context_changed(row.from);
                if migrates {
                    qp.migrate();
                }
            }
            if migrates {
                self.qp_event(bus, EventType::PATH_MIGRATED, qpn);
            }
            if resumes {
                self.schedule_send(qpn);
            }
        }
        for bit in (0..17).filter(|bit| row.ignored(mask) & 1 << bit != 0) {
            let opcode = command.opcode;
            self.chip
                .ledger
                .count(format!("{opcode:?}: opt_param_mask bit {bit}"));
        }
        Ok(None)
    }

    /// A context that is to leave RESET.
    fn check_new(&self, context: &QpContext) -> Result<(), CmdStatus> {
        let services = [
            ServiceType::RC,
            ServiceType::UC,
            ServiceType::UD,
            ServiceType::MLX,
        ];
        let pages = self.params().map_or(0, Params::uar_pages);
        if !services.contains(&context.service()) || context.uar_page() >= pages {
            return Err(CmdStatus::BAD_PARAM);
        }
        self.check_path(context)?;
        if self.mode() == Mode::M {
            let sizes = [context.log_sq_size(), context.log_rq_size()];
            if sizes.into_iter().any(|log| log > MAX_LOG_QUEUE) {
                return Err(CmdStatus::EXCEED_LIM);
            }
            let records = [context.sq_record(), context.rq_record()];
            if !records
                .into_iter()
                .all(|index| self.chip.records.has(index))
            {
                return Err(CmdStatus::BAD_PARAM);
            }
        }
        let has_cqs =
            self.cqs.contains(context.send_cqn()) && self.cqs.contains(context.receive_cqn());
        let has_srq = !context.has_srq() || self.srqs.contains(context.srqn());
        if has_cqs && has_srq {
            Ok(())
        } else {
            Err(CmdStatus::BAD_RESOURCE)
        }
    }

    /// There is memory for both parts of a context.
    fn check_backed(&self, bus: &mut dyn Bus, qpn: u32) -> Result<(), CmdStatus> {
        let params = self.params().ok_or(CmdStatus::BAD_SYS_STATE)?;
        let index = self.qps.index(qpn);
        self.backed(bus, params.raw.qpc_base(), index, 256)?;
        self.backed(bus, params.raw.eqpc_base(), index, 32)
    }

    fn check_path(&self, context: &QpContext) -> Result<(), CmdStatus> {
        let path = context.primary_path();
        let has_port = self.ports.node.port(path.port()).is_some();
        if has_port && path.pkey_index() < 1 << LOG_PKEYS {
            Ok(())
        } else {
            Err(CmdStatus::BAD_PARAM)
        }
    }

    /// 2ERR. Succeeds in every state.
    pub(super) fn qp_to_error(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let qpn = self.qpn(command)?;
        if !self.qps.is_taken(qpn) {
            let mut context = QpContext::ZERO;
            context.set_local_qpn(qpn).set_state(QpState::ERR);
            self.qps.insert(Qp::new(self.mode(), context));
        }
        self.stop_qp(bus, qpn);
        Ok(None)
    }

    /// RTS2SQD. But for connections no send request is ever half done between two calls, so that the queue is drained at
    /// once.
    pub(super) fn drain_qp(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let qpn = self.qpn(command)?;
        let qp = self.qps.get_mut(qpn).ok_or(CmdStatus::BAD_QPEE_STATE)?;
        if qp.state() != QpState::RTS {
            return Err(CmdStatus::BAD_QPEE_STATE);
        }
        let tell = QpModifier::decode(command.input_modifier).sqd_event;
        if let Some(connected) = qp.connected.as_deref_mut().filter(|one| !one.is_drained()) {
            connected.drain(tell);
            qp.context.set_state(QpState::SQ_DRAINING);
            return Ok(None);
        }
        qp.context.set_state(QpState::SQD);
        if tell {
            self.qp_event(bus, EventType::SQ_DRAINED, qpn);
        }
        Ok(None)
    }

    /// ERR2RST, from any state. What is posted is forgotten without completions.
    pub(super) fn reset_qp(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let qpn = self.qpn(command)?;
        let context = self
            .qps
            .remove(qpn)
            .map_or(QpContext::ZERO, |qp| qp.shown());
        if command.opcode_modifier == ToReset::WithoutContext as u8 {
            return Ok(None);
        }
        self.output(bus, command, &QpMailbox::new(0, context))
    }

    /// A QP that is not the HCA's is shown in RESET.
    pub(super) fn query_qp(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let qpn = self.qpn(command)?;
        let context = self.qps.get(qpn).map_or(QpContext::ZERO, Qp::shown);
        self.output(bus, command, &QpMailbox::new(0, context))
    }
}
