//! INIT_IB, CLOSE_IB, SET_IB, CONF_SPECIAL_QP, MAD_IFC. infinihost 3.9, 3.11, 3.13.

use super::super::hcr::Command;
use super::super::mad::{Arrival, Asked};
use super::super::port::Special;
use super::super::{InfiniHost, Params};
use super::Done;
use super::system::{LOG_GIDS, LOG_PKEYS, MAX_MTU, MAX_VLS, RESERVED};
use crate::machine::Bus;
use core_ib::wire::mad::{Capability, LinkWidth, Mad, MtuCode, SlToVlMappingTable, VlCode};
use core_ib::{Guid, Lid, PKey};
use hca_abi::infinihost::cmd::{CmdStatus, SpecialQp, mad_ifc_flags};
use hca_abi::infinihost::port::{InitIb, SetIb};

impl InfiniHost {
    fn port(&self, number: u32) -> Result<u8, CmdStatus> {
        let port = u8::try_from(number).map_err(|_| CmdStatus::BAD_PARAM)?;
        match self.ports.node.port(port) {
            Some(_) => Ok(port),
            None => Err(CmdStatus::BAD_PARAM),
        }
    }

    pub(super) fn init_ib(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let port = self.port(command.input_modifier)?;
        let input: InitIb = self.input(bus, command)?;
        if self.ports.is_running(port) {
            return Ok(None);
        }
        let lanes = input.vls();
        let vl_cap = match lanes {
            1 => VlCode(1),
            2 => VlCode(2),
            MAX_VLS => VlCode(3),
            _ => return Err(CmdStatus::BAD_PARAM),
        };
        if !(1..=MAX_MTU).contains(&input.mtu()) || !matches!(input.port_width(), 1..=3) {
            return Err(CmdStatus::BAD_PARAM);
        }
        let node = &mut self.ports.node;
        if input.set_system_image() {
            node.system_image_guid = Guid(input.system_image_guid());
        }
        if input.set_node() {
            node.guid = Guid(input.node_guid());
        }
        let state = node.port_mut(port).ok_or(CmdStatus::BAD_PARAM)?;
        let guids = input.max_gids().clamp(1, 1 << LOG_GIDS);
        state.guids.resize(usize::from(guids), Guid(0));
        if input.set_guid0()
            && let Some(first) = state.guids.first_mut()
        {
            *first = Guid(input.guid0());
        }
        let p_keys = input.max_pkeys().clamp(1, 1 << LOG_PKEYS);
        state.p_keys.resize(usize::from(p_keys), PKey(0));
        if vl_cap != state.info.vl_cap {
            let lane = |sl: u8| sl % lanes.max(1);
            let table = SlToVlMappingTable::new(core::array::from_fn(|sl| lane(sl as u8)));
            state.sl_to_vl = if lanes > 1 { vec![table] } else { Vec::new() };
        }
        let info = &mut state.info;
        info.guid_cap = guids as u8;
        info.vl_cap = vl_cap;
        info.operational_vls = vl_cap;
        info.mtu_cap = MtuCode(input.mtu());
        info.neighbor_mtu = info.neighbor_mtu.min(info.mtu_cap);
        info.link_width_supported = LinkWidth::from_bits_retain(input.port_width());
        info.link_width_enabled = info.link_width_supported;
        self.start_port(bus, port);
        Ok(None)
    }

    /// One that is closed already is as good as closed.
    pub(super) fn close_ib(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let port = self.port(command.input_modifier)?;
        self.stop_port(bus, port);
        Ok(None)
    }

    pub(super) fn set_ib(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let port = self.port(command.input_modifier)?;
        let input: SetIb = self.input(bus, command)?;
        let node = &mut self.ports.node;
        if input.set_system_image() {
            node.system_image_guid = Guid(input.system_image_guid());
        }
        let state = node.port_mut(port).ok_or(CmdStatus::BAD_PARAM)?;
        if input.reset_qkey_counter() {
            state.info.q_key_violations = 0;
        }
        let capability = Capability::from_bits_retain(input.capability_mask());
        if core::mem::replace(&mut state.info.capability, capability) != capability {
            node.local_changes(port, 0);
            self.plan_traps(bus);
        }
        Ok(None)
    }

    /// Number 0 releases.
    pub(super) fn conf_special_qp(&mut self, _bus: &mut dyn Bus, command: &Command) -> Done {
        const SMI: u8 = SpecialQp::Smi as u8;
        const GSI: u8 = SpecialQp::Gsi as u8;
        let special = match command.opcode_modifier {
            SMI => Special::Smi,
            GSI => Special::Gsi,
            kind => {
                self.chip
                    .ledger
                    .count(format!("CONF_SPECIAL_QP: type {kind}"));
                return Err(CmdStatus::BAD_PARAM);
            }
        };
        let base = command.input_modifier;
        if base == 0 {
            self.ports.name_special(special, None);
            return Ok(None);
        }
        let qps = self.params().map_or(0, Params::qps);
        Self::object(base, qps.saturating_sub(1), RESERVED)?;
        if !base.is_multiple_of(2) {
            return Err(CmdStatus::BAD_PARAM);
        }
        self.ports.name_special(special, Some(base));
        Ok(None)
    }

    pub(super) fn mad_ifc(&mut self, bus: &mut dyn Bus, command: &Command) -> Done {
        let port = self.port(command.input_modifier & 0xff)?;
        let input: [u8; 256] = self.input(bus, command)?;
        let arrival = Arrival {
            port,
            slid: Lid((command.input_modifier >> 16) as u16),
            trusted: command.opcode_modifier & mad_ifc_flags::IGNORE_M_KEY != 0,
        };
        match self.ask_agent(bus, &Mad(input), arrival) {
            Asked::Reply(reply) => self.output(bus, command, &reply.0),
            // A TrapRepress, whose answer nobody reads.
            Asked::Silent => self.output(bus, command, &input),
            Asked::Refused => Err(CmdStatus::BAD_PKT),
        }
    }
}
