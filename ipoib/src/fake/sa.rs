//! A subnet administrator that knows the fabric. Questions and answers go through their records, byte for byte.

use super::fabric::Fabric;
use crate::link::{
    Event, GroupAnswer, JoinRequest, LeaveRequest, PathAnswer, PathQuery, SaFailure, Step,
};
use core_ib::wire::mad::{JoinState, McMemberRecord, PathRecord, Selector};
use core_ib::{Gid, Lid, Mtu, PKey, QKey, Rate, Sl};
use std::collections::BTreeMap;

/// A group: its record without member, and what each port is.
#[derive(Debug)]
struct Group {
    record: McMemberRecord,
    members: BTreeMap<usize, JoinState>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sa {
    groups: BTreeMap<Gid, Group>,
    mlids: u16,
}

const REFUSED: SaFailure = SaFailure::Refused { status: 0x0200 };

impl Sa {
    /// The broadcast group of a partition.
    pub(crate) fn create_broadcast(&mut self, mgid: Gid, p_key: PKey) {
        let record = McMemberRecord {
            mgid,
            q_key: QKey(0x0b1b),
            mtu: Mtu::Mtu2048.into(),
            rate: Rate::GBPS_10,
            p_key,
            sl: Sl::new(0),
            ..McMemberRecord::default()
        };
        self.insert(record);
    }

    fn insert(&mut self, mut record: McMemberRecord) {
        record.mlid = Lid(0xc000 + self.mlids);
        self.mlids += 1;
        let members = BTreeMap::new();
        self.groups.insert(record.mgid, Group { record, members });
    }

    /// Is a port a full member of this group?
    pub(crate) fn is_full_member(&self, mgid: Gid, port: usize) -> bool {
        let member = self
            .groups
            .get(&mgid)
            .and_then(|group| group.members.get(&port));
        member.is_some_and(|state| state.contains(JoinState::FULL_MEMBER))
    }

    /// All groups are forgotten but those of `broadcast`, and have other LIDs: another SM.
    pub(crate) fn forget(&mut self, fabric: &Fabric) {
        self.groups.retain(|mgid, group| {
            group.members.clear();
            mgid.0[12..] == [0xff; 4]
        });
        for group in self.groups.values_mut() {
            group.record.mlid = Lid(0xc000 + self.mlids);
            self.mlids += 1;
        }
        fabric.with(|state| state.routes.clear());
    }

    /// Answers a step of the host at `port` that is a question.
    pub(crate) fn answer(&mut self, fabric: &Fabric, port: usize, step: Step) -> Option<Event> {
        Some(match step {
            Step::QuerySa(ticket, query) => Event::Path(ticket, self.path(fabric, port, &query)),
            Step::Join(ticket, request) => {
                let answer = self.join(port, &request);
                self.route(fabric);
                Event::Joined(ticket, answer)
            }
            Step::Leave(ticket, request) => {
                let answer = self.leave(port, &request);
                self.route(fabric);
                Event::Left(ticket, answer)
            }
            _ => return None,
        })
    }

    fn path(
        &self,
        fabric: &Fabric,
        port: usize,
        query: &PathQuery,
    ) -> Result<PathAnswer, SaFailure> {
        let (record, mask) = query.record();
        assert!(mask.has(PathRecord::DGID | PathRecord::SGID | PathRecord::P_KEY));
        let asked = PathRecord::from_bytes(&record.to_bytes());
        let (slid, dlid) = fabric.with(|state| {
            let to = state
                .hcas
                .iter()
                .find(|hca| hca.gid == asked.dgid && hca.active);
            (state.hcas[port].lid, to.map(|hca| hca.lid))
        });
        let found = PathRecord {
            dlid: dlid.ok_or(SaFailure::Refused { status: 0x0300 })?,
            slid,
            rate: Rate::GBPS_10,
            mtu: Mtu::Mtu2048.into(),
            ..asked
        };
        Ok(PathAnswer::from(&PathRecord::from_bytes(&found.to_bytes())))
    }

    fn join(&mut self, port: usize, request: &JoinRequest) -> Result<GroupAnswer, SaFailure> {
        let (record, mask) = request.record();
        let asked = McMemberRecord::from_bytes(&record.to_bytes());
        if !self.groups.contains_key(&asked.mgid) {
            let keeps_alive = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER;
            let creates = mask.has(McMemberRecord::Q_KEY | McMemberRecord::SL);
            if !creates || !asked.join_state.intersects(keeps_alive) {
                return Err(REFUSED);
            }
            assert_eq!(asked.mtu_selector, Selector::Exactly);
            self.insert(asked);
        }
        let group = self.groups.get_mut(&asked.mgid).ok_or(REFUSED)?;
        if mask.has(McMemberRecord::Q_KEY) && group.record.q_key != asked.q_key {
            return Err(REFUSED);
        }
        let member = group.members.entry(port).or_default();
        *member |= asked.join_state;
        let answer = McMemberRecord {
            port_gid: asked.port_gid,
            join_state: *member,
            ..group.record
        };
        GroupAnswer::try_from(&McMemberRecord::from_bytes(&answer.to_bytes()))
    }

    fn leave(&mut self, port: usize, request: &LeaveRequest) -> Result<(), SaFailure> {
        let (record, _) = request.record();
        let asked = McMemberRecord::from_bytes(&record.to_bytes());
        let group = self.groups.get_mut(&asked.mgid).ok_or(REFUSED)?;
        let member = group.members.get_mut(&port).ok_or(REFUSED)?;
        if !member.contains(asked.join_state) {
            return Err(REFUSED);
        }
        member.remove(asked.join_state);
        if member.is_empty() {
            group.members.remove(&port);
        }
        Ok(())
    }

    /// Who receives what.
    fn route(&self, fabric: &Fabric) {
        let receives = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
        let routes = self.groups.values().map(|group| {
            let members = group
                .members
                .iter()
                .filter(|(_, state)| state.intersects(receives));
            (
                group.record.mlid.0,
                members.map(|(port, _)| *port).collect(),
            )
        });
        let routes = routes.collect();
        fabric.with(|state| state.routes = routes);
    }
}
