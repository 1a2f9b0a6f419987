//! The performance management agent: shows and sets what the ports count. protocols 3.13.2.

use super::counters::{Counter, PortCounts};
use super::node::NodeState;
use core_ib::wire::mad::{
    AttributeId, ClassPortInfo, CounterSelect, CounterSelectExt as E, CounterSelectExt2 as E2,
    GmpCapability, Mad, MadHeader, MadStatus, Method, MgmtClass, PortCounters,
    PortCountersExtended, TimeCode,
};

/// CapabilityMask2: PortCountersExtended has all counters.
const FURTHER_COUNTERS: u32 = 1 << 1;
/// PortSelect that means all ports.
const ALL_PORTS: u8 = 0xff;

/// Answers one MAD of the performance class that has reached `in_port` of this node; none if it is nothing to be answered.
/// Attributes: ClassPortInfo, PortCounters, PortCountersExtended; the others are refused as unsupported.
pub fn process_perf(node: &mut NodeState, in_port: u8, mad: &Mad) -> Option<Mad> {
    let header = mad.header();
    let is_set = match header.method {
        Method::GET => false,
        Method::SET => true,
        Method::SEND | Method::TRAP | Method::REPORT => return None,
        method if method.is_response() => return None,
        _ => return refuse(mad, MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
    };
    if header.base_version != MadHeader::BASE_VERSION || header.class_version != 1 {
        return refuse(mad, MadStatus::BAD_VERSION);
    }
    let mut answer = *mad;
    let outcome = match header.attribute {
        AttributeId::CLASS_PORT_INFO if !is_set => class_port_info(&mut answer),
        AttributeId::PORT_COUNTERS => port_counters(node, in_port, &mut answer, is_set),
        AttributeId::PORT_COUNTERS_EXTENDED => extended(node, in_port, &mut answer, is_set),
        _ => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
    };
    refuse(&answer, outcome.err().unwrap_or(MadStatus::OK))
}

/// The same MAD as an answer of this status.
pub(super) fn refuse(mad: &Mad, status: MadStatus) -> Option<Mad> {
    let mut answer = *mad;
    answer.set_header(&mad.header().reply(status)?);
    Some(answer)
}

type Outcome = Result<(), MadStatus>;

fn class_port_info(answer: &mut Mad) -> Outcome {
    let info = ClassPortInfo {
        base_version: MadHeader::BASE_VERSION,
        class_version: 1,
        capability: GmpCapability::PERF_ALL_PORT_SELECT
            | GmpCapability::PERF_EXTENDED
            | GmpCapability::PERF_XMIT_WAIT
            | GmpCapability::PERF_QP1_DROPPED,
        capability2: FURTHER_COUNTERS,
        resp_time: TimeCode(16),
        ..ClassPortInfo::default()
    };
    answer.put(&info).map_err(|_| MadStatus::INVALID_FIELD)
}

/// Numbers of the ports that PortSelect means: one, or all of them, which a switch counts without its port 0.
fn selected(node: &NodeState, in_port: u8, select: u8) -> Result<Vec<u8>, MadStatus> {
    match select {
        ALL_PORTS => Ok(node.external_ports().collect()),
        // Of a CA, 0 is the port of arrival.
        0 if node.switch.is_none() => Ok(vec![in_port]),
        port if node.port(port).is_some() => Ok(vec![port]),
        _ => Err(MadStatus::INVALID_FIELD),
    }
}

/// One row of the tables: which counter, and the bits of its field.
type Field = (fn(&mut PortCounts) -> &mut Counter, u32);

fn port_counters(node: &mut NodeState, in_port: u8, answer: &mut Mad, is_set: bool) -> Outcome {
    let wanted: PortCounters = answer.get().map_err(|_| MadStatus::INVALID_FIELD)?;
    let ports = selected(node, in_port, wanted.port_select)?;
    let mut show = |field: Field, chosen: bool, value: u32| {
        let (counter, bits) = field;
        let mut sum: u32 = 0;
        for &port in &ports {
            let Some(state) = node.port_mut(port) else {
                continue;
            };
            let counter = counter(&mut state.counts);
            if is_set && chosen {
                counter.set(value);
            }
            sum = sum.saturating_add(counter.shown(bits));
        }
        sum.min(u32::MAX >> (32 - bits))
    };
    let has = |select| wanted.select.contains(select);
    use CounterSelect as S;
    let shown = PortCounters {
        port_select: wanted.port_select,
        select: wanted.select,
        select_xmit_wait: wanted.select_xmit_wait,
        symbol_errors: show(
            (|c| &mut c.symbol_errors, 16),
            has(S::SYMBOL_ERRORS),
            wanted.symbol_errors.into(),
        ) as u16,
        link_error_recovery: show(
            (|c| &mut c.link_error_recovery, 8),
            has(S::LINK_ERROR_RECOVERY),
            wanted.link_error_recovery.into(),
        ) as u8,
        link_downed: show(
            (|c| &mut c.link_downed, 8),
            has(S::LINK_DOWNED),
            wanted.link_downed.into(),
        ) as u8,
        rcv_errors: show(
            (|c| &mut c.rcv_errors, 16),
            has(S::RCV_ERRORS),
            wanted.rcv_errors.into(),
        ) as u16,
        rcv_remote_physical_errors: show(
            (|c| &mut c.rcv_remote_physical_errors, 16),
            has(S::RCV_REMOTE_PHYSICAL_ERRORS),
            wanted.rcv_remote_physical_errors.into(),
        ) as u16,
        rcv_switch_relay_errors: show(
            (|c| &mut c.rcv_switch_relay_errors, 16),
            has(S::RCV_SWITCH_RELAY_ERRORS),
            wanted.rcv_switch_relay_errors.into(),
        ) as u16,
        xmit_discards: show(
            (|c| &mut c.xmit_discards, 16),
            has(S::XMIT_DISCARDS),
            wanted.xmit_discards.into(),
        ) as u16,
        xmit_constraint_errors: show(
            (|c| &mut c.xmit_constraint_errors, 8),
            has(S::XMIT_CONSTRAINT_ERRORS),
            wanted.xmit_constraint_errors.into(),
        ) as u8,
        rcv_constraint_errors: show(
            (|c| &mut c.rcv_constraint_errors, 8),
            has(S::RCV_CONSTRAINT_ERRORS),
            wanted.rcv_constraint_errors.into(),
        ) as u8,
        local_link_integrity_errors: show(
            (|c| &mut c.local_link_integrity_errors, 4),
            has(S::LOCAL_LINK_INTEGRITY_ERRORS),
            wanted.local_link_integrity_errors.into(),
        ) as u8,
        excessive_buffer_overrun_errors: show(
            (|c| &mut c.excessive_buffer_overrun_errors, 4),
            has(S::EXCESSIVE_BUFFER_OVERRUN_ERRORS),
            wanted.excessive_buffer_overrun_errors.into(),
        ) as u8,
        // There is no bit that selects QP1Dropped: it is cleared with VL15Dropped.
        qp1_dropped: show(
            (|c| &mut c.qp1_dropped, 16),
            has(S::VL15_DROPPED),
            wanted.qp1_dropped.into(),
        ) as u16,
        vl15_dropped: show(
            (|c| &mut c.vl15_dropped, 16),
            has(S::VL15_DROPPED),
            wanted.vl15_dropped.into(),
        ) as u16,
        xmit_data: show(
            (|c| &mut c.xmit_data, 32),
            has(S::XMIT_DATA),
            wanted.xmit_data,
        ),
        rcv_data: show((|c| &mut c.rcv_data, 32), has(S::RCV_DATA), wanted.rcv_data),
        xmit_pkts: show(
            (|c| &mut c.xmit_pkts, 32),
            has(S::XMIT_PKTS),
            wanted.xmit_pkts,
        ),
        rcv_pkts: show((|c| &mut c.rcv_pkts, 32), has(S::RCV_PKTS), wanted.rcv_pkts),
        xmit_wait: show(
            (|c| &mut c.xmit_wait, 32),
            wanted.select_xmit_wait,
            wanted.xmit_wait,
        ),
    };
    answer.put(&shown).map_err(|_| MadStatus::INVALID_FIELD)
}

fn extended(node: &mut NodeState, in_port: u8, answer: &mut Mad, is_set: bool) -> Outcome {
    let mut shown: PortCountersExtended = answer.get().map_err(|_| MadStatus::INVALID_FIELD)?;
    let ports = selected(node, in_port, shown.port_select)?;
    let mut show = |chosen: bool, counter: fn(&mut PortCounts) -> &mut Counter, field: &mut u64| {
        let mut sum: u64 = 0;
        for &port in &ports {
            let Some(state) = node.port_mut(port) else {
                continue;
            };
            let counter = counter(&mut state.counts);
            if is_set && chosen {
                counter.set_extended(*field);
            }
            sum = sum.saturating_add(counter.extended());
        }
        *field = sum;
    };
    let (s, s2) = (shown.select, shown.select2);
    let mut first = |bit, counter, field: &mut u64| show(s.contains(bit), counter, field);
    first(E::XMIT_DATA, |c| &mut c.xmit_data, &mut shown.xmit_data);
    first(E::RCV_DATA, |c| &mut c.rcv_data, &mut shown.rcv_data);
    first(E::XMIT_PKTS, |c| &mut c.xmit_pkts, &mut shown.xmit_pkts);
    first(E::RCV_PKTS, |c| &mut c.rcv_pkts, &mut shown.rcv_pkts);
    first(
        E::UNICAST_XMIT_PKTS,
        |c| &mut c.unicast_xmit_pkts,
        &mut shown.unicast_xmit_pkts,
    );
    first(
        E::UNICAST_RCV_PKTS,
        |c| &mut c.unicast_rcv_pkts,
        &mut shown.unicast_rcv_pkts,
    );
    first(
        E::MULTICAST_XMIT_PKTS,
        |c| &mut c.multicast_xmit_pkts,
        &mut shown.multicast_xmit_pkts,
    );
    first(
        E::MULTICAST_RCV_PKTS,
        |c| &mut c.multicast_rcv_pkts,
        &mut shown.multicast_rcv_pkts,
    );
    let mut further = |bit, counter, field: &mut u64| show(s2.contains(bit), counter, field);
    further(
        E2::SYMBOL_ERRORS,
        |c| &mut c.symbol_errors,
        &mut shown.symbol_errors,
    );
    further(
        E2::LINK_ERROR_RECOVERY,
        |c| &mut c.link_error_recovery,
        &mut shown.link_error_recovery,
    );
    further(
        E2::LINK_DOWNED,
        |c| &mut c.link_downed,
        &mut shown.link_downed,
    );
    further(E2::RCV_ERRORS, |c| &mut c.rcv_errors, &mut shown.rcv_errors);
    further(
        E2::RCV_REMOTE_PHYSICAL_ERRORS,
        |c| &mut c.rcv_remote_physical_errors,
        &mut shown.rcv_remote_physical_errors,
    );
    further(
        E2::RCV_SWITCH_RELAY_ERRORS,
        |c| &mut c.rcv_switch_relay_errors,
        &mut shown.rcv_switch_relay_errors,
    );
    further(
        E2::XMIT_DISCARDS,
        |c| &mut c.xmit_discards,
        &mut shown.xmit_discards,
    );
    further(
        E2::XMIT_CONSTRAINT_ERRORS,
        |c| &mut c.xmit_constraint_errors,
        &mut shown.xmit_constraint_errors,
    );
    further(
        E2::RCV_CONSTRAINT_ERRORS,
        |c| &mut c.rcv_constraint_errors,
        &mut shown.rcv_constraint_errors,
    );
    further(
        E2::LOCAL_LINK_INTEGRITY_ERRORS,
        |c| &mut c.local_link_integrity_errors,
        &mut shown.local_link_integrity_errors,
    );
    further(
        E2::EXCESSIVE_BUFFER_OVERRUN_ERRORS,
        |c| &mut c.excessive_buffer_overrun_errors,
        &mut shown.excessive_buffer_overrun_errors,
    );
    further(
        E2::VL15_DROPPED,
        |c| &mut c.vl15_dropped,
        &mut shown.vl15_dropped,
    );
    further(E2::XMIT_WAIT, |c| &mut c.xmit_wait, &mut shown.xmit_wait);
    further(
        E2::QP1_DROPPED,
        |c| &mut c.qp1_dropped,
        &mut shown.qp1_dropped,
    );
    answer.put(&shown).map_err(|_| MadStatus::INVALID_FIELD)
}

/// Is this MAD one of the performance class?
pub fn is_perf(mad: &Mad) -> bool {
    mad.view().class() == MgmtClass::PERF
}

#[cfg(test)]
mod tests;
