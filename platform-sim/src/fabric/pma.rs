//! The performance management agent: shows and sets what the ports count. protocols 3.13.2.

use super::counters::{Counter, PortCounts};
use super::node::NodeState;
use core_ib::wire::mad::{
    AttributeId, ClassPortInfo, CounterSelect, GmpCapability, Mad, MadHeader, MadStatus, Method,
    MgmtClass, PortCounters, TimeCode,
};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PortCountersExtended, as far as every device has it: the counters of traffic.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PortCountersExtended {
    _reserved: u8,
    port_select: u8,
    select: U16,
    select2: U32,
    xmit_data: U64,
    rcv_data: U64,
    xmit_pkts: U64,
    rcv_pkts: U64,
    unicast_xmit_pkts: U64,
    unicast_rcv_pkts: U64,
    multicast_xmit_pkts: U64,
    multicast_rcv_pkts: U64,
}
const _: () = assert!(size_of::<PortCountersExtended>() == 72);

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
    let data = answer.data_mut();
    let (shown, rest) =
        PortCountersExtended::mut_from_prefix(data).map_err(|_| MadStatus::INVALID_FIELD)?;
    let ports = selected(node, in_port, shown.port_select)?;
    let select = shown.select.get();
    let mut show = |counter: fn(&mut PortCounts) -> &mut Counter, bit: u16, value: &mut U64| {
        let mut sum: u64 = 0;
        for &port in &ports {
            let Some(state) = node.port_mut(port) else {
                continue;
            };
            let counter = counter(&mut state.counts);
            if is_set && select & 1 << bit != 0 {
                counter.set_extended(value.get());
            }
            sum = sum.saturating_add(counter.extended());
        }
        value.set(sum);
    };
    show(|c| &mut c.xmit_data, 0, &mut shown.xmit_data);
    show(|c| &mut c.rcv_data, 1, &mut shown.rcv_data);
    show(|c| &mut c.xmit_pkts, 2, &mut shown.xmit_pkts);
    show(|c| &mut c.rcv_pkts, 3, &mut shown.rcv_pkts);
    show(
        |c| &mut c.unicast_xmit_pkts,
        4,
        &mut shown.unicast_xmit_pkts,
    );
    show(|c| &mut c.unicast_rcv_pkts, 5, &mut shown.unicast_rcv_pkts);
    show(
        |c| &mut c.multicast_xmit_pkts,
        6,
        &mut shown.multicast_xmit_pkts,
    );
    show(
        |c| &mut c.multicast_rcv_pkts,
        7,
        &mut shown.multicast_rcv_pkts,
    );
    shown.select2 = U32::ZERO;
    rest.fill(0);
    Ok(())
}

/// Is this MAD one of the performance class?
pub fn is_perf(mad: &Mad) -> bool {
    mad.view().class() == MgmtClass::PERF
}

#[cfg(test)]
mod tests;
