//! Questions to the administrator, asked from hosts.

use super::Fabric;
use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{
    Attribute, ComponentMask, JoinState, Mad, MadStatus, McMemberRecord, Method, PathRecord,
    Records, SaHeader, SmKey,
};
use core_ib::{Gid, PKey, QKey};
use ib_sm::{Broadcast, Config};
use platform_sim::fabric::Topology;
use platform_sim::fabric::topology::build;
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);
pub const FULL: JoinState = JoinState::FULL_MEMBER;

pub fn up(topology: Topology, config: Config<'static>) -> Fabric {
    let mut fabric = Fabric::managed(topology, config);
    assert!(fabric.run_until(20 * SECOND, |fabric| fabric.seats[0].sm.is_serving()));
    fabric.run_for(SECOND / 10);
    fabric
}

pub fn tree() -> Topology {
    build::fat_tree(build::FatTree {
        radix: 8,
        levels: 2,
        parts: 4,
    })
    .unwrap()
}

pub fn gid(fabric: &Fabric, node: usize) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, fabric.guid(node))
}

pub fn request<R: Attribute>(tid: u64, method: Method, record: &R, mask: ComponentMask) -> Mad {
    let mut header = SaHeader::request(method, R::ID, mask);
    header.header.tid = 0x5_0000_0000 + tid;
    let mut mad = Mad::ZERO;
    mad.set_front(&header).unwrap();
    mad.put(record).unwrap();
    mad
}

/// Asks from a host; the record in the answer, or its status.
pub fn ask<R: Attribute>(
    fabric: &mut Fabric,
    node: usize,
    method: Method,
    record: &R,
    mask: ComponentMask,
) -> Result<R, MadStatus> {
    let tid = fabric.now.0;
    let answer = fabric
        .ask_and_wait(node, request(tid, method, record, mask))
        .expect("an answer");
    let header: SaHeader = answer.front().unwrap();
    assert_eq!(header.header.attribute, R::ID);
    assert_eq!(Some(header.header.method), method.response());
    assert_eq!(header.sm_key, SmKey(0));
    if header.header.status != MadStatus::OK {
        return Err(header.header.status);
    }
    Ok(answer.get().unwrap())
}

pub fn table<R: Attribute>(
    fabric: &mut Fabric,
    node: usize,
    record: &R,
    mask: ComponentMask,
) -> Vec<R> {
    let tid = fabric.now.0;
    let mad = request(tid, Method::GET_TABLE, record, mask);
    let (first, data) = fabric.ask_table(node, mad).expect("a table");
    let header: SaHeader = first.front().unwrap();
    assert_eq!(header.header.method, Method::GET_TABLE_RESP);
    assert_eq!(
        data.len(),
        data.len() / (R::SIZE.div_ceil(8) * 8) * (R::SIZE.div_ceil(8) * 8)
    );
    Records::<R>::new(&data, header.attribute_offset).collect()
}

pub fn all<R: Attribute + Default>(fabric: &mut Fabric) -> Vec<R> {
    let node = fabric.hosts()[1];
    table(fabric, node, &R::default(), ComponentMask::NONE)
}

pub fn path_query(fabric: &Fabric, from: usize, to: usize) -> (PathRecord, ComponentMask) {
    let record = PathRecord {
        sgid: gid(fabric, from),
        dgid: gid(fabric, to),
        numb_path: 1,
        ..PathRecord::default()
    };
    (
        record,
        PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH,
    )
}

pub fn group(
    fabric: &Fabric,
    node: usize,
    mgid: Gid,
    join_state: JoinState,
) -> (McMemberRecord, ComponentMask) {
    let record = McMemberRecord {
        mgid,
        port_gid: gid(fabric, node),
        join_state,
        q_key: QKey(0x0b1b),
        p_key: PKey(0xffff),
        flow_label: FlowLabel::new(0),
        ..McMemberRecord::default()
    };
    use McMemberRecord as M;
    let join = M::MGID | M::PORT_GID | M::JOIN_STATE;
    (
        record,
        join | M::Q_KEY | M::P_KEY | M::TCLASS | M::SL | M::FLOW_LABEL,
    )
}

pub fn mgid(low: u8) -> Gid {
    let mut mgid = Gid([0; 16]);
    (mgid.0[0], mgid.0[1], mgid.0[2], mgid.0[3], mgid.0[15]) = (0xff, 0x12, 0x12, 0x34, low);
    mgid
}

pub fn broadcast() -> Gid {
    Broadcast::DEFAULT.mgid(ib_sm::DEFAULT_BASE)
}

pub fn join(
    fabric: &mut Fabric,
    node: usize,
    mgid: Gid,
    state: JoinState,
) -> Result<McMemberRecord, MadStatus> {
    let (record, mask) = group(fabric, node, mgid, state);
    ask(fabric, node, Method::SET, &record, mask)
}

pub fn leave(
    fabric: &mut Fabric,
    node: usize,
    mgid: Gid,
    state: JoinState,
) -> Result<McMemberRecord, MadStatus> {
    let (record, _) = group(fabric, node, mgid, state);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    ask(fabric, node, Method::DELETE, &record, mask)
}
