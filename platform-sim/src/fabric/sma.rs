//! The subnet management agent: answers Get and Set of the subnet management class.
//!
//! Shared by the switches of the fabric and by the firmware of HCA models (MAD_IFC). Rules: protocols 3.6 to 3.9.

use super::node::{Effect, MFT_POSITIONS, NodeState, PortState, SwitchState};
use crate::machine::LinkControl;
use core::time::Duration;
use core_ib::wire::mad::{
    Attribute, AttributeId, GuidInfo, LinearForwardingTable, LinkSpeed, LinkSpeedExt, LinkWidth,
    MKey, MadHeader, MadStatus, Method, MulticastForwardingTable, NodeInfo, PKeyTable, PortInfo,
    PortPhysState, PortState as State, SlToVlMappingTable, Smp, SwitchInfo, VlArbitrationTable,
    VlWeight,
};
use core_ib::{Guid, Instant, Lid};

/// Where an SMP came from, and how it is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmpContext {
    /// The port that it came in on; for a node that asks itself, the port that it asks about.
    pub in_port: u8,
    /// LID of the sender, for reports; 0 if it came from this node.
    pub slid: Lid,
    /// The M_Key is not looked at: the owner of the hardware asks.
    pub ignore_m_key: bool,
    /// Now.
    pub now: Instant,
}

/// What the agent does with an SMP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all answers are replies, and none lives long"
)]
pub enum Answer {
    /// Send this back. A directed-route reply has its D bit set and its hop pointer as received.
    Reply(Smp),
    /// Taken note of, nothing to send: TrapRepress, or something that no agent answers.
    Nothing,
    /// The M_Key is wrong: nothing to send, and the violation is counted.
    BadMKey,
}

/// Why a Set or Get is refused, as the status of the reply.
type Outcome = Result<(), MadStatus>;

const UNSUPPORTED: MadStatus = MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE;
const INVALID: MadStatus = MadStatus::INVALID_FIELD;

/// Answers one SMP that has reached this node. Changes `node` as it says, and adds to `effects` what follows for its owner,
/// in order.
///
/// A Set with an invalid field changes nothing; its reply shows what is.
pub fn process_smp(
    node: &mut NodeState,
    smp: &Smp,
    context: &SmpContext,
    effects: &mut Vec<Effect>,
) -> Answer {
    let header = &smp.header;
    let is_set = match header.method {
        Method::GET => false,
        Method::SET => true,
        Method::TRAP_REPRESS => {
            if !m_key_admits(node, smp, context, effects) {
                return Answer::BadMKey;
            }
            node.repress(header.tid);
            effects.push(Effect::Notice);
            return Answer::Nothing;
        }
        // Traps, reports, sends and answers are never answered with an error. protocols 3.4.
        Method::TRAP | Method::SEND | Method::REPORT => return Answer::Nothing,
        method if method.is_response() => return Answer::Nothing,
        _ => return reply(smp, UNSUPPORTED),
    };
    if header.base_version != MadHeader::BASE_VERSION || header.class_version != 1 {
        return reply(smp, MadStatus::BAD_VERSION);
    }
    if node.port(context.in_port).is_none() {
        return Answer::Nothing;
    }
    if !m_key_admits(node, smp, context, effects) {
        return Answer::BadMKey;
    }
    let mut answer = *smp;
    let mut work = Work {
        node,
        smp: &mut answer,
        context,
        effects,
        is_set,
    };
    let status = match work.attribute() {
        Ok(()) => MadStatus::OK,
        Err(status) => status,
    };
    reply(&answer, status)
}

fn reply(smp: &Smp, status: MadStatus) -> Answer {
    match smp.reply(status) {
        Some(reply) => Answer::Reply(reply),
        None => Answer::Nothing,
    }
}

/// Does the M_Key let this SMP in? protocols 3.9.
fn m_key_admits(
    node: &mut NodeState,
    smp: &Smp,
    context: &SmpContext,
    effects: &mut Vec<Effect>,
) -> bool {
    let end_port = node.end_port(context.in_port);
    let Some(port) = node.port_mut(end_port) else {
        return false;
    };
    if port.lease_ends.is_some_and(|end| end <= context.now) {
        port.lease_ends = None;
        port.info.m_key_protect = 0;
    }
    let info = &mut port.info;
    if context.ignore_m_key || info.m_key == MKey(0) {
        return true;
    }
    if smp.m_key == info.m_key {
        port.lease_ends = None;
        return true;
    }
    if smp.header.method == Method::GET && info.m_key_protect <= 1 {
        return true;
    }
    info.m_key_violations = info.m_key_violations.saturating_add(1);
    if info.m_key_lease_period != 0 && port.lease_ends.is_none() {
        let lease = Duration::from_secs(u64::from(info.m_key_lease_period));
        port.lease_ends = Some(context.now.after(lease));
    }
    node.m_key_notice(end_port, context.slid, smp);
    effects.push(Effect::Notice);
    false
}

/// One request being carried out; `smp` becomes the answer.
struct Work<'w> {
    node: &'w mut NodeState,
    smp: &'w mut Smp,
    context: &'w SmpContext,
    effects: &'w mut Vec<Effect>,
    is_set: bool,
}

impl Work<'_> {
    fn attribute(&mut self) -> Outcome {
        match self.smp.header.attribute {
            AttributeId::NODE_DESCRIPTION => self.read_only(|work| work.node.description),
            AttributeId::NODE_INFO => self.read_only(Self::node_info),
            AttributeId::NOTICE => self.notice(),
            AttributeId::SWITCH_INFO => self.switch_info(),
            AttributeId::GUID_INFO => self.guid_info(),
            AttributeId::PORT_INFO => self.port_info(),
            AttributeId::P_KEY_TABLE => self.p_key_table(),
            AttributeId::SL_TO_VL_MAPPING_TABLE => self.sl_to_vl(),
            AttributeId::VL_ARBITRATION_TABLE => self.vl_arbitration(),
            AttributeId::LINEAR_FORWARDING_TABLE => self.linear_forwarding(),
            AttributeId::MULTICAST_FORWARDING_TABLE => self.multicast_forwarding(),
            AttributeId::VENDOR_DIAG => self.vendor_diag(),
            AttributeId::LED_INFO => self.led_info(),
            _ => Err(UNSUPPORTED),
        }
    }

    /// What the request holds.
    fn wanted<A: Attribute>(&self) -> Result<A, MadStatus> {
        self.smp.get().map_err(|_| INVALID)
    }

    /// Puts `attribute` into the answer.
    fn show<A: Attribute>(&mut self, attribute: &A) -> Outcome {
        self.smp.put(attribute).map_err(|_| INVALID)
    }

    fn read_only<A: Attribute>(&mut self, read: impl FnOnce(&Self) -> A) -> Outcome {
        if self.is_set {
            return Err(UNSUPPORTED);
        }
        let attribute = read(self);
        self.show(&attribute)
    }

    fn node_info(&self) -> NodeInfo {
        let node = &*self.node;
        let end_port = node.port(node.end_port(self.context.in_port));
        NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: node.node_type,
            num_ports: node.port_count(),
            sys_image_guid: node.system_image_guid,
            node_guid: node.guid,
            port_guid: end_port
                .and_then(|port| port.guids.first().copied())
                .unwrap_or(Guid(0)),
            partition_cap: end_port.map_or(0, |port| port.p_keys.len() as u16),
            device_id: node.device_id,
            revision: node.revision,
            local_port_num: self.context.in_port,
            vendor_id: node.vendor_id,
        }
    }

    fn notice(&mut self) -> Outcome {
        if self.is_set {
            self.node.clear_notice();
            self.effects.push(Effect::Notice);
        }
        let notice = self.node.front_notice();
        self.show(&notice)
    }

    /// The tables of this switch; what is none refuses the attribute.
    fn switch(&mut self) -> Result<&mut SwitchState, MadStatus> {
        self.node.switch.as_mut().ok_or(UNSUPPORTED)
    }

    fn switch_info(&mut self) -> Outcome {
        let is_set = self.is_set;
        let wanted: SwitchInfo = self.wanted()?;
        let info = &mut self.switch()?.info;
        if is_set {
            let top = wanted.linear_fdb_top;
            if top.0 >= info.linear_fdb_cap {
                return Err(INVALID);
            }
            info.linear_fdb_top = top;
            info.default_port = wanted.default_port;
            info.default_mc_primary_port = wanted.default_mc_primary_port;
            info.default_mc_not_primary_port = wanted.default_mc_not_primary_port;
            info.life_time = wanted.life_time;
            info.port_state_change &= !wanted.port_state_change; // written 1 to clear
            info.optimized_sl_to_vl = wanted.optimized_sl_to_vl;
            info.multicast_fdb_top = wanted.multicast_fdb_top;
        }
        let info = *info;
        self.show(&info)
    }

    fn guid_info(&mut self) -> Outcome {
        let number = self.node.end_port(self.context.in_port);
        let block = self.smp.header.modifier;
        let wanted: GuidInfo = self.wanted()?;
        let (is_set, is_first) = (self.is_set, block == 0);
        let port = self.node.port_mut(number).ok_or(INVALID)?;
        let entries = block_mut(&mut port.guids, block, 8).ok_or(INVALID)?;
        if is_set {
            // Entry 0 of block 0 is the port's own and is not written.
            let both = entries.iter_mut().zip(wanted.guids);
            both.skip(usize::from(is_first))
                .for_each(|(entry, guid)| *entry = guid);
            self.effects.push(Effect::Gids { port: number });
        }
        let guids = padded(entries, Guid(0));
        self.show(&GuidInfo { guids })
    }

    fn p_key_table(&mut self) -> Outcome {
        let (port, block) = PKeyTable::port_and_block(self.smp.header.modifier);
        // Of a CA the table is that of the port by which the SMP came.
        let number = match self.node.switch {
            Some(_) => u8::try_from(port).map_err(|_| INVALID)?,
            None => self.context.in_port,
        };
        let wanted: PKeyTable = self.wanted()?;
        let is_set = self.is_set;
        let port = self.node.port_mut(number).ok_or(INVALID)?;
        let entries = block_mut(&mut port.p_keys, u32::from(block), 32).ok_or(INVALID)?;
        if is_set {
            let changes = entries
                .iter()
                .zip(&wanted.keys)
                .any(|(old, new)| old != new);
            entries
                .iter_mut()
                .zip(wanted.keys)
                .for_each(|(entry, key)| *entry = key);
            if changes {
                self.effects.push(Effect::PKeys { port: number });
            }
        }
        let keys = padded(entries, core_ib::PKey(0));
        self.show(&PKeyTable { keys })
    }

    fn sl_to_vl(&mut self) -> Outcome {
        let (in_port, out_port) = SlToVlMappingTable::ports(self.smp.header.modifier);
        let is_switch = self.node.switch.is_some();
        let number = if is_switch {
            out_port
        } else {
            self.context.in_port
        };
        let wanted: SlToVlMappingTable = self.wanted()?;
        let is_set = self.is_set;
        let port = self.node.port_mut(number).ok_or(INVALID)?;
        if port.sl_to_vl.is_empty() {
            return Err(UNSUPPORTED);
        }
        let index = if is_switch { in_port } else { 0 };
        let table = port.sl_to_vl.get_mut(usize::from(index)).ok_or(INVALID)?;
        if is_set {
            *table = wanted;
        }
        let table = *table;
        self.show(&table)
    }

    fn vl_arbitration(&mut self) -> Outcome {
        let (block, port) = VlArbitrationTable::block_and_port(self.smp.header.modifier);
        let number = match self.node.switch {
            Some(_) => u8::try_from(port).map_err(|_| INVALID)?,
            None => self.context.in_port,
        };
        let wanted: VlArbitrationTable = self.wanted()?;
        let is_set = self.is_set;
        let port = self.node.port_mut(number).ok_or(INVALID)?;
        if port.vl_arb_low.is_empty() && port.vl_arb_high.is_empty() {
            return Err(UNSUPPORTED);
        }
        let (list, half) = match block {
            VlArbitrationTable::LOW => (&mut port.vl_arb_low, 0),
            VlArbitrationTable::LOW_UPPER => (&mut port.vl_arb_low, 1),
            VlArbitrationTable::HIGH => (&mut port.vl_arb_high, 0),
            VlArbitrationTable::HIGH_UPPER => (&mut port.vl_arb_high, 1),
            _ => return Err(INVALID),
        };
        let entries = block_mut(list, half, 32).ok_or(INVALID)?;
        if is_set {
            entries
                .iter_mut()
                .zip(wanted.entries)
                .for_each(|(entry, new)| *entry = new);
        }
        let entries = padded(entries, VlWeight::default());
        self.show(&VlArbitrationTable { entries })
    }

    fn linear_forwarding(&mut self) -> Outcome {
        let block = self.smp.header.modifier as usize;
        let is_set = self.is_set;
        let wanted: LinearForwardingTable = self.wanted()?;
        let switch = self.switch()?;
        let start = block.saturating_mul(64);
        if start >= usize::from(switch.info.linear_fdb_cap) {
            return Err(INVALID);
        }
        if is_set {
            let end = start + 64;
            if switch.linear.len() < end {
                switch
                    .linear
                    .resize(end, LinearForwardingTable::UNREACHABLE);
            }
            if let Some(entries) = switch.linear.get_mut(start..end) {
                entries.copy_from_slice(&wanted.ports);
            }
        }
        let entries = switch.linear.iter().copied().skip(start);
        let mut table = LinearForwardingTable {
            ports: [LinearForwardingTable::UNREACHABLE; 64],
        };
        table
            .ports
            .iter_mut()
            .zip(entries)
            .for_each(|(to, from)| *to = from);
        self.show(&table)
    }

    fn multicast_forwarding(&mut self) -> Outcome {
        let modifier = self.smp.header.modifier;
        let (block, position) = MulticastForwardingTable::block_and_position(modifier);
        let is_set = self.is_set;
        let ports = self.node.port_count();
        let wanted: MulticastForwardingTable = self.wanted()?;
        let switch = self.switch()?;
        let start = usize::from(block) * 32;
        let position = usize::from(position);
        if start >= usize::from(switch.info.multicast_fdb_cap) || position > usize::from(ports / 16)
        {
            return Err(INVALID);
        }
        if is_set {
            let end = start + 32;
            if switch.multicast.len() < end {
                switch.multicast.resize(end, [0; MFT_POSITIONS]);
            }
            let entries = switch.multicast.iter_mut().skip(start);
            for (entry, mask) in entries.zip(wanted.masks) {
                if let Some(place) = entry.get_mut(position) {
                    *place = mask;
                }
            }
        }
        let mut table = MulticastForwardingTable::default();
        let entries = switch.multicast.iter().skip(start);
        for (to, entry) in table.masks.iter_mut().zip(entries) {
            *to = entry.get(position).copied().unwrap_or(0);
        }
        self.show(&table)
    }

    /// No pages of diagnostics: NextIndex 0, and nothing.
    fn vendor_diag(&mut self) -> Outcome {
        if self.is_set {
            return Err(UNSUPPORTED);
        }
        if self.smp.header.modifier != 0 {
            return Err(INVALID);
        }
        self.smp.data = [0; 64];
        Ok(())
    }

    fn led_info(&mut self) -> Outcome {
        let lit = self.smp.data.first().is_some_and(|byte| byte & 0x80 != 0);
        let is_set = self.is_set;
        let number = self.port_number()?;
        let port = self.node.port_mut(number).ok_or(INVALID)?;
        if is_set {
            port.led = lit;
        }
        let byte = u8::from(port.led) << 7;
        self.smp.data = [0; 64];
        if let Some(first) = self.smp.data.first_mut() {
            *first = byte;
        }
        Ok(())
    }

    /// The port that the modifier names: 0 is that of arrival, except on a switch, where it is port 0.
    fn port_number(&self) -> Result<u8, MadStatus> {
        let number = (self.smp.header.modifier & 0xff) as u8;
        let number = match number {
            0 if self.node.switch.is_none() => self.context.in_port,
            number => number,
        };
        self.node.port(number).map(|_| number).ok_or(INVALID)
    }

    fn port_info(&mut self) -> Outcome {
        let number = self.port_number()?;
        let mut reregister = false;
        if self.is_set {
            let wanted: PortInfo = self.wanted()?;
            let extended = self.smp.header.modifier & PortInfo::KNOWS_EXTENDED_SPEEDS != 0;
            let outcome = self.set_port_info(number, &wanted, extended);
            if outcome.is_ok() {
                reregister = wanted.client_reregister && number == self.node.end_port(number);
            } else {
                self.show_port_info(number, false)?;
                return outcome;
            }
        }
        self.show_port_info(number, reregister)?;
        if reregister {
            self.effects.push(Effect::ClientReregister { port: number });
        }
        Ok(())
    }

    fn show_port_info(&mut self, number: u8, reregister: bool) -> Outcome {
        let port = self.node.port(number).ok_or(INVALID)?;
        let mut info = port.info;
        info.local_port_num = self.context.in_port;
        info.client_reregister = reregister;
        let admitted = self.context.ignore_m_key || self.smp.m_key == info.m_key;
        if info.m_key_protect >= 1 && !admitted {
            info.m_key = MKey(0);
        }
        self.show(&info)
    }

    /// Carries out Set(PortInfo). protocols 3.8.5.
    fn set_port_info(&mut self, number: u8, wanted: &PortInfo, extended: bool) -> Outcome {
        let is_end_port = number == self.node.end_port(number);
        let is_switch = self.node.switch.is_some();
        // Port 0 of a switch has no link; a base port 0 has no states either.
        let has_link = number != 0;
        let enhanced = self
            .node
            .switch
            .as_ref()
            .is_some_and(|s| s.info.enhanced_port0);
        let has_state = has_link || enhanced;
        let port = self.node.port_mut(number).ok_or(INVALID)?;

        let mut new = port.info;
        if is_end_port {
            end_port_fields(&mut new, wanted)?;
        }
        if has_link {
            link_fields(&mut new, wanted, extended)?;
        }
        if is_switch && has_link {
            new.partition_enforcement_inbound = wanted.partition_enforcement_inbound;
            new.partition_enforcement_outbound = wanted.partition_enforcement_outbound;
            new.filter_raw_inbound = wanted.filter_raw_inbound;
            new.filter_raw_outbound = wanted.filter_raw_outbound;
        }
        let change = if has_state {
            StateChange::of(port, wanted, has_link)?
        } else {
            StateChange::None
        };

        let old = core::mem::replace(&mut port.info, new);
        if (old.lid, old.lmc) != (new.lid, new.lmc) {
            self.effects.push(Effect::Lid { port: number });
        }
        if (old.master_sm_lid, old.master_sm_sl) != (new.master_sm_lid, new.master_sm_sl) {
            self.effects.push(Effect::Sm { port: number });
        }
        if old.gid_prefix != new.gid_prefix {
            self.effects.push(Effect::Gids { port: number });
        }
        change.apply(port, number, self.effects);
        // A port that has just become able to send may have something to tell.
        self.effects.push(Effect::Notice);
        Ok(())
    }
}

/// Fields that an end port has: its addresses, its manager, its keys.
fn end_port_fields(new: &mut PortInfo, wanted: &PortInfo) -> Outcome {
    for (field, lid) in [
        (&mut new.lid, wanted.lid),
        (&mut new.master_sm_lid, wanted.master_sm_lid),
    ] {
        match lid {
            Lid::NONE => {} // no change
            lid if lid.is_unicast() => *field = lid,
            _ => return Err(INVALID),
        }
    }
    new.m_key = wanted.m_key;
    new.gid_prefix = wanted.gid_prefix;
    new.m_key_lease_period = wanted.m_key_lease_period;
    new.m_key_protect = wanted.m_key_protect;
    new.lmc = wanted.lmc;
    new.master_sm_sl = wanted.master_sm_sl;
    new.init_type_reply = wanted.init_type_reply;
    new.subnet_timeout = wanted.subnet_timeout;
    new.multicast_p_key_trap_suppression = wanted.multicast_p_key_trap_suppression;
    for (counter, wanted) in [
        (&mut new.m_key_violations, wanted.m_key_violations),
        (&mut new.p_key_violations, wanted.p_key_violations),
        (&mut new.q_key_violations, wanted.q_key_violations),
    ] {
        if wanted == 0 {
            *counter = 0;
        }
    }
    Ok(())
}

/// Fields of a port with a link.
fn link_fields(new: &mut PortInfo, wanted: &PortInfo, extended: bool) -> Outcome {
    new.link_width_enabled = match wanted.link_width_enabled {
        none if none.is_empty() => new.link_width_enabled,
        LinkWidth::SUPPORTED => new.link_width_supported,
        some if new.link_width_supported.contains(some) => some,
        _ => return Err(INVALID),
    };
    new.link_speed_enabled = match wanted.link_speed_enabled {
        none if none.is_empty() => new.link_speed_enabled,
        LinkSpeed::SUPPORTED => new.link_speed_supported,
        some if new.link_speed_supported.contains(some) => some,
        _ => return Err(INVALID),
    };
    if extended {
        new.link_speed_ext_enabled = match wanted.link_speed_ext_enabled {
            none if none.is_empty() => new.link_speed_ext_enabled,
            LinkSpeedExt::SUPPORTED => new.link_speed_ext_supported,
            LinkSpeedExt::DISABLE => LinkSpeedExt::DISABLE,
            some if new.link_speed_ext_supported.contains(some) => some,
            _ => return Err(INVALID),
        };
    }
    if wanted.neighbor_mtu.mtu().is_none() || wanted.neighbor_mtu > new.mtu_cap {
        return Err(INVALID);
    }
    new.neighbor_mtu = wanted.neighbor_mtu;
    if wanted.operational_vls > new.vl_cap {
        return Err(INVALID);
    }
    if wanted.operational_vls.0 != 0 {
        new.operational_vls = wanted.operational_vls;
    }
    new.link_down_default_state = match wanted.link_down_default_state {
        PortPhysState::NO_CHANGE => new.link_down_default_state,
        state @ (PortPhysState::SLEEP | PortPhysState::POLLING) => state,
        _ => return Err(INVALID),
    };
    new.vl_high_limit = wanted.vl_high_limit;
    new.vl_stall_count = wanted.vl_stall_count;
    new.hoq_life = wanted.hoq_life;
    new.local_phy_errors = wanted.local_phy_errors;
    new.overrun_errors = wanted.overrun_errors;
    Ok(())
}

/// What a Set asks of the state of a port.
enum StateChange {
    None,
    /// To Armed or Active.
    Logical(State),
    /// Down, and the physical layer to this.
    Down(PortPhysState),
}

impl StateChange {
    /// Reads the request, and refuses what the state machine of the port does not allow.
    fn of(port: &PortState, wanted: &PortInfo, has_link: bool) -> Result<Self, MadStatus> {
        let physical = match wanted.phys_state {
            PortPhysState::NO_CHANGE => None,
            state if state.0 <= PortPhysState::DISABLED.0 && has_link => Some(state),
            _ => return Err(INVALID),
        };
        let now = port.info.state;
        match (wanted.state, physical) {
            (State::NO_CHANGE, None) => Ok(Self::None),
            (State::NO_CHANGE | State::DOWN, Some(physical)) => Ok(Self::Down(physical)),
            (State::DOWN, None) if has_link => Ok(Self::Down(port.info.link_down_default_state)),
            (State::ARMED, None) if matches!(now, State::INIT | State::ARMED) => {
                Ok(Self::Logical(State::ARMED))
            }
            (State::ACTIVE, None) if matches!(now, State::ARMED | State::ACTIVE) => {
                Ok(Self::Logical(State::ACTIVE))
            }
            _ => Err(INVALID),
        }
    }

    fn apply(self, port: &mut PortState, number: u8, effects: &mut Vec<Effect>) {
        let old = port.info.state;
        let set_link = |control| Effect::SetLink {
            port: number,
            control,
        };
        let new = match self {
            Self::None => return,
            Self::Logical(new) => new,
            Self::Down(physical) => {
                port.info.phys_state = physical;
                effects.push(set_link(LinkControl::Disabled));
                if physical == PortPhysState::POLLING {
                    effects.push(set_link(port.polling()));
                }
                State::DOWN
            }
        };
        if old != new {
            port.info.state = new;
            effects.push(Effect::PortState {
                port: number,
                old,
                new,
            });
        }
    }
}

/// Block `block` of a table in blocks of `size`; none if the table has no such block.
fn block_mut<T>(table: &mut [T], block: u32, size: usize) -> Option<&mut [T]> {
    table.chunks_mut(size).nth(block as usize)
}

/// The entries of a block, the rest filled up.
fn padded<T: Copy, const N: usize>(entries: &[T], empty: T) -> [T; N] {
    let mut block = [empty; N];
    block
        .iter_mut()
        .zip(entries)
        .for_each(|(to, from)| *to = *from);
    block
}

#[cfg(test)]
mod tests;
