//! A hand on the subnet: what a subnet manager would write, by way of the HCA's own agents.

use super::super::{Rig, Side};
use super::steps::way;
use super::{PATIENCE, qp_init, wait_for};
use core_ib::platform::Platform;
use core_ib::verbs::{
    CqInit, Device, MadFlags, MadOutcome, Owner, QpAttr, QpAttrMask, QpState, QpType, VerbsError,
};
use core_ib::wire::mad::{
    Attribute, Mad, MadStatus, Method, PKeyTable, PortInfo, PortPhysState, PortState, Smp,
};
use core_ib::{Gid, Lid, Mtu, PKey};

/// MTU of the cable.
pub const MTU: Mtu = Mtu::Mtu2048;

/// A multicast group: scope of the link, not a well-known one.
pub const MGID: Gid = Gid([
    0xff, 0x12, 0xa0, 0x1b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34,
]);
/// Its LID.
pub const MLID: Lid = Lid(0xc123);

/// LID of port 1 of that side, a multiple of 16.
pub const fn lid(side: Side) -> Lid {
    match side {
        Side::A => Lid(0x10),
        Side::B => Lid(0x20),
    }
}

/// Hands an SMP to the agents of `hca`, and gives what comes back.
fn smp<D: Device, A: Attribute>(
    hca: &D,
    port: u8,
    method: Method,
    modifier: u32,
    attribute: Option<&A>,
) -> Result<A, VerbsError> {
    let mut smp = Smp::lid_routed(method, A::ID, modifier);
    if let Some(attribute) = attribute {
        smp.put(attribute).unwrap();
    }
    let (mut request, mut response) = (Mad::ZERO, Mad::ZERO);
    request.set_front(&smp).unwrap();
    let flags = MadFlags::IGNORE_MKEY;
    let outcome = hca.process_mad(port, flags, None, &request.0, &mut response.0)?;
    assert_eq!(outcome, MadOutcome::Reply, "{method:?} of {:?}", A::ID);
    let status = response.header().status;
    assert_eq!(status, MadStatus::OK, "{method:?} of {:?}", A::ID);
    Ok(response.front::<Smp>().unwrap().get().unwrap())
}

/// An attribute of the node or of port 1, as a subnet manager gets it.
pub fn get<D: Device, A: Attribute>(hca: &D, modifier: u32) -> A {
    smp(hca, 1, Method::GET, modifier, None).unwrap()
}

/// Sets an attribute of port 1, as a subnet manager does; gives what the agent says to it.
pub fn set<D: Device, A: Attribute>(hca: &D, modifier: u32, attribute: &A) -> A {
    smp(hca, 1, Method::SET, modifier, Some(attribute)).unwrap()
}

/// PortInfo of port 1.
pub fn info<D: Device>(hca: &D) -> PortInfo {
    get(hca, PortInfo::modifier(1))
}

/// Reads PortInfo of port 1, changes it and sets it. State and physical state stay, unless changed.
pub fn change_port<D: Device>(hca: &D, change: impl FnOnce(&mut PortInfo)) {
    let mut info = info(hca);
    info.state = PortState::NO_CHANGE;
    info.phys_state = PortPhysState::NO_CHANGE;
    info.client_reregister = false;
    change(&mut info);
    set(hca, PortInfo::modifier(1), &info);
}

/// What any host does first: QP0 of port 1, with which some HCAs start the port. Does nothing the second time.
fn open_qp0<D: Device>(hca: &D, side: Side) {
    let pd = hca.alloc_pd().unwrap();
    let init = CqInit {
        cqe: 16,
        vector: 0,
        owner: Owner::Kernel,
    };
    let cq = hca.create_cq(&init).unwrap().handle;
    match hca.create_qp(pd, &qp_init(QpType::Smi, cq)) {
        Ok(qp) => {
            for (state, mask) in way(QpType::Smi, QpState::Rts) {
                let attr = QpAttr {
                    state,
                    ..QpAttr::EMPTY
                };
                hca.modify_qp(qp.handle, &attr, mask | QpAttrMask::STATE)
                    .unwrap();
            }
        }
        Err(VerbsError::Busy { .. }) => {
            hca.destroy_cq(cq).unwrap();
            hca.dealloc_pd(pd).unwrap();
        }
        Err(error) => panic!("QP0 of {side:?}: {error}"),
    }
}

/// Brings up QP0 of port 1 of both sides, and waits until they have a link.
pub fn train<R: Rig>(rig: &R) {
    let [a, b] = Side::BOTH.map(|side| (rig.hca(side), rig.machine(side)));
    train_pair([a, b]);
}

fn train_pair<D: Device, P: Platform>(pair: [(&D, &P); 2]) {
    for (side, (hca, _)) in Side::BOTH.into_iter().zip(pair) {
        open_qp0(hca, side);
    }
    for (side, (hca, machine)) in Side::BOTH.into_iter().zip(pair) {
        let trained = wait_for(machine, PATIENCE, || hca.query_port(1).unwrap().state >= 2);
        assert!(trained, "port 1 of {side:?} has no link");
    }
}

/// What a subnet manager does to bring up the cable: both ports have their LIDs and are Active. Does
/// nothing the second time.
pub fn bring_up<R: Rig>(rig: &R) {
    bring_up_pair(Side::BOTH.map(|side| (rig.hca(side), rig.machine(side))));
}

/// [`bring_up`] of two HCAs, and the machines that they are in.
pub fn bring_up_pair<D: Device, P: Platform>(pair: [(&D, &P); 2]) {
    train_pair(pair);
    let is_up = |(hca, _): &(&D, &P)| hca.query_port(1).unwrap().is_active();
    if pair.iter().all(is_up) {
        return;
    }
    for (side, (hca, _)) in Side::BOTH.into_iter().zip(pair) {
        change_port(hca, |info| {
            info.state = PortState::ARMED;
            info.lid = lid(side);
            info.lmc = 0;
            info.master_sm_lid = lid(Side::A);
            info.neighbor_mtu = MTU.into();
        });
    }
    for (hca, _) in pair {
        change_port(hca, |info| info.state = PortState::ACTIVE);
    }
    for (side, (hca, machine)) in Side::BOTH.into_iter().zip(pair) {
        let active = wait_for(machine, PATIENCE, || hca.query_port(1).unwrap().is_active());
        assert!(active, "port 1 of {side:?} is not Active");
    }
}

/// [`bring_up`], and the events that it makes are gone.
pub fn activate<R: Rig>(rig: &R) {
    bring_up(rig);
    for side in Side::BOTH {
        rig.machine(side).sleep(super::QUIET);
        while rig.hca(side).next_async_event().is_some() {}
    }
}

/// Writes the first entries of the P_Key table of port 1; the others of its first block become invalid.
pub fn set_pkeys<D: Device>(hca: &D, pkeys: &[PKey]) {
    let mut table = PKeyTable {
        keys: [PKey(0); 32],
    };
    table.keys[..pkeys.len()].copy_from_slice(pkeys);
    set(hca, PKeyTable::modifier(0, 0), &table);
}
