//! Multicast groups as seen from outside: joining, creating, leaving, asking. protocols 4.6.

use super::query::{Enough, Query, Source};
use super::transfer::Kind;
use super::{Answer, RecordBytes, Request};
use crate::manager::Manager;
use crate::multicast::{ALIVE, Group, Member};
use crate::table::{GroupId, Id, MemberId, PortId};
use core_ib::wire::mad::{
    ComponentMask, JoinState, MadStatus, McMemberRecord, MtuCode, Record, Selector,
};
use core_ib::{Gid, Guid, PKey, Rate};

/// Signatures in bytes 2 and 3 of an MGID: IPv4 and IPv6 over InfiniBand, and what an administrator makes up.
const IPV4: [u8; 2] = [0x40, 0x1b];
const IPV6: [u8; 2] = [0x60, 0x1b];
const OWN: [u8; 2] = [0xa0, 0x1b];
/// Link-local scope, and the one that groups get whose MGID is made up: of the site.
const LINK_LOCAL: u8 = 2;
const SITE_LOCAL: u8 = 5;
/// A member's number, as opposed to a group's.
const MEMBER: u32 = 1 << 31;

const INVALID: MadStatus = MadStatus::SA_REQUEST_INVALID;

impl Manager<'_> {
    /// Set: joins, and creates if need be.
    pub(super) fn set_member(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        use McMemberRecord as M;
        let record: M = request.record()?;
        if !request.has(M::MGID | M::PORT_GID | M::JOIN_STATE) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        if record.join_state.is_empty() {
            return Err(INVALID);
        }
        let port = self.member_port(request, &record)?;
        let known = if record.mgid.is_none() {
            None
        } else {
            self.group_of(record.mgid)
        };
        let group = match known {
            Some(group) => {
                let row = self.groups.get(group).ok_or(INVALID)?;
                let agrees = agrees(row, &record, request.mask());
                let able = self.is_able(port, row);
                (agrees && able).then_some(group).ok_or(INVALID)?
            }
            None => self.create_group(request, &record, port)?,
        };
        let proxy = request.from != Some(port);
        let Some(state) = self.join(group, port, record.join_state, proxy) else {
            if known.is_none() {
                self.drop_empty(group);
            }
            return Err(MadStatus::SA_NO_RESOURCES);
        };
        let row = self.groups.get(group).ok_or(INVALID)?;
        let mut answer = show(row);
        (answer.port_gid, answer.join_state) = (record.port_gid, state);
        answer.proxy_join = proxy;
        let record = RecordBytes::of(&answer);
        // Whoever is told that it has joined sends at once: the switches must know it by then.
        let mlid = usize::from(row.mlid.0 & 0x3fff);
        let remade = self.mlids.get(mlid).is_some_and(|row| row.dirty);
        Ok(if remade || !self.trees_are_written() {
            Answer::Joined(record)
        } else {
            Answer::One(record)
        })
    }

    /// The port that a request is about. It asks itself, or by another one that says so.
    fn member_port(
        &self,
        request: &Request<'_>,
        record: &McMemberRecord,
    ) -> Result<PortId, MadStatus> {
        let asker = request.asker()?;
        let port = self
            .port_of_gid(record.port_gid)
            .ok_or(MadStatus::SA_INVALID_GID)?;
        let proxy = request.has(McMemberRecord::PROXY_JOIN) && record.proxy_join;
        if asker == port || request.trusted {
            return Ok(port);
        }
        // Somebody else's membership: only among those who share the partition.
        let group = self
            .group_of(record.mgid)
            .and_then(|group| self.groups.get(group));
        let key = group.map_or(record.p_key, |group| group.p_key);
        let guid = self.ports.get(asker).map_or(Guid(0), |row| row.guid);
        let shares = self.config.p_key_in(guid, key).is_some();
        if proxy && shares {
            Ok(port)
        } else {
            Err(INVALID)
        }
    }

    /// The port is fast enough for the group, takes its packets, and is in its partition.
    fn is_able(&self, port: PortId, group: &Group) -> bool {
        let Some(row) = self.ports.get(port) else {
            return false;
        };
        let fast = row.rate.mbps() >= group.rate.mbps();
        let member = self.config.p_key_in(row.guid, group.p_key).is_some();
        row.mtu() >= group.mtu && fast && member
    }

    /// A new group as the request wants it.
    fn create_group(
        &mut self,
        request: &Request<'_>,
        record: &McMemberRecord,
        port: PortId,
    ) -> Result<GroupId, MadStatus> {
        use McMemberRecord as M;
        let needed = M::Q_KEY | M::TCLASS | M::P_KEY | M::FLOW_LABEL | M::SL;
        if !request.has(needed) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        if !record.join_state.intersects(ALIVE) {
            return Err(INVALID);
        }
        let row = self.ports.get(port).ok_or(INVALID)?;
        let (own_mtu, own_rate, guid) = (row.mtu(), row.rate, row.guid);
        if record.p_key.base() == 0 || self.config.p_key_in(guid, record.p_key).is_none() {
            return Err(INVALID);
        }
        let wish = |selector, value, which: Selector| {
            let meant = request.has(selector) && (request.has(value) || which == Selector::Best);
            if meant { which } else { Selector::Best }
        };
        let mtu = wish(M::MTU_SELECTOR, M::MTU, record.mtu_selector);
        let mtu = best_mtu(mtu, record.mtu, own_mtu).ok_or(INVALID)?;
        let rate = wish(M::RATE_SELECTOR, M::RATE, record.rate_selector);
        let rate = best_rate(rate, record.rate, own_rate).ok_or(INVALID)?;
        let life = M::PACKET_LIFE_TIME_SELECTOR;
        let life = wish(life, M::PACKET_LIFE_TIME, record.packet_life_time_selector);
        let own_life = self.config.packet_lifetime;
        let packet_life_time = match life {
            Selector::Exactly => record.packet_life_time,
            Selector::GreaterThan => {
                let least = record.packet_life_time.0.saturating_add(1).min(31);
                own_life.max(core_ib::wire::mad::TimeCode(least))
            }
            Selector::LessThan if own_life >= record.packet_life_time => return Err(INVALID),
            Selector::LessThan | Selector::Best => own_life,
        };
        let scope = request.has(M::SCOPE).then_some(record.scope);
        let mgid = if record.mgid.is_none() {
            self.made_up_mgid(scope.unwrap_or(SITE_LOCAL))?
        } else {
            record.mgid
        };
        let group = Group {
            mgid,
            q_key: record.q_key,
            p_key: full(record.p_key),
            mtu,
            rate,
            packet_life_time,
            sl: record.sl,
            tclass: record.tclass,
            flow_label: record.flow_label,
            hop_limit: if request.has(M::HOP_LIMIT) {
                record.hop_limit
            } else {
                0
            },
            scope: scope_of(mgid),
            ..Group::FREE
        };
        if !is_valid_mgid(mgid) || !self.suits_broadcast(&group) {
            return Err(INVALID);
        }
        self.add_group(group).ok_or(MadStatus::SA_NO_RESOURCES)
    }

    /// A group of IP over InfiniBand is like the broadcast group of its partition and scope, which must exist.
    fn suits_broadcast(&self, group: &Group) -> bool {
        let signature = [group.mgid.0[2], group.mgid.0[3]];
        if signature != IPV4 && signature != IPV6 {
            return true;
        }
        let mut broadcast = [0; 16];
        (broadcast[0], broadcast[1]) = (0xff, 0x10 | group.scope);
        (broadcast[2], broadcast[3]) = (IPV4[0], IPV4[1]);
        (broadcast[4], broadcast[5]) = (group.mgid.0[4], group.mgid.0[5]);
        (broadcast[12], broadcast[13], broadcast[14], broadcast[15]) = (0xff, 0xff, 0xff, 0xff);
        let broadcast = Gid(broadcast);
        if broadcast == group.mgid {
            return true; // it is the broadcast group itself
        }
        let Some(like) = self
            .group_of(broadcast)
            .and_then(|like| self.groups.get(like))
        else {
            return false;
        };
        let same = |a: &Group| {
            (
                a.q_key,
                a.p_key.base(),
                a.tclass,
                a.sl,
                a.flow_label,
                a.hop_limit,
            )
        };
        same(like) == same(group)
    }

    /// An MGID that no group has: our signature, the subnet, and a number.
    fn made_up_mgid(&mut self, scope: u8) -> Result<Gid, MadStatus> {
        if scope == LINK_LOCAL {
            return Err(INVALID);
        }
        let prefix = self.config.subnet_prefix.to_be_bytes();
        for _ in 0..=self.groups.capacity() {
            self.st.made_up = self.st.made_up.wrapping_add(1);
            let mut mgid = [0; 16];
            (mgid[0], mgid[1]) = (0xff, 0x10 | (scope & 0x0f));
            (mgid[2], mgid[3]) = (OWN[0], OWN[1]);
            let number = self.st.made_up.to_be_bytes();
            for (place, byte) in mgid.iter_mut().skip(4).zip(prefix.iter().chain(&number)) {
                *place = *byte;
            }
            if self.group_of(Gid(mgid)).is_none() {
                return Ok(Gid(mgid));
            }
        }
        Err(MadStatus::SA_NO_RESOURCES)
    }

    /// Delete: gives up states that the port has.
    pub(super) fn delete_member(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        use McMemberRecord as M;
        let record: M = request.record()?;
        if !request.has(M::MGID | M::PORT_GID | M::JOIN_STATE) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let group = self.group_of(record.mgid).ok_or(INVALID)?;
        let port = self
            .port_of_gid(record.port_gid)
            .ok_or(MadStatus::SA_INVALID_GID)?;
        let member = self.membership(group, port).ok_or(INVALID)?;
        let row = self.members.get(member).ok_or(INVALID)?;
        // Who was joined by another one can be taken out by another one.
        if !row.proxy {
            self.member_port(request, &record)?;
        }
        let gone = record.join_state;
        if gone.is_empty() || !row.state.contains(gone) {
            return Err(INVALID);
        }
        let mut answer = show(self.groups.get(group).ok_or(INVALID)?);
        (answer.port_gid, answer.join_state) = (record.port_gid, gone);
        self.leave(member, gone);
        Ok(Answer::One(RecordBytes::of(&answer)))
    }
}

/// The record of a group, without a member.
fn show(group: &Group) -> McMemberRecord {
    McMemberRecord {
        mgid: group.mgid,
        port_gid: Gid::NONE,
        q_key: group.q_key,
        mlid: group.mlid,
        mtu_selector: Selector::Exactly,
        mtu: group.mtu,
        tclass: group.tclass,
        p_key: group.p_key,
        rate_selector: Selector::Exactly,
        rate: group.rate,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: group.packet_life_time,
        sl: group.sl,
        flow_label: group.flow_label,
        hop_limit: group.hop_limit,
        scope: group.scope,
        join_state: JoinState::empty(),
        proxy_join: false,
    }
}

/// What goes by a selector, and what the partition's number decides.
const SPECIAL: ComponentMask = McMemberRecord::MTU_SELECTOR
    .or(McMemberRecord::MTU)
    .or(McMemberRecord::RATE_SELECTOR)
    .or(McMemberRecord::RATE)
    .or(McMemberRecord::PACKET_LIFE_TIME_SELECTOR)
    .or(McMemberRecord::PACKET_LIFE_TIME)
    .or(McMemberRecord::P_KEY);

fn selectors_admit(record: &McMemberRecord, asked: &McMemberRecord, mask: ComponentMask) -> bool {
    use McMemberRecord as M;
    let meant =
        |selector, value, which| mask.has(selector) && (mask.has(value) || which == Selector::Best);
    let mtu = meant(M::MTU_SELECTOR, M::MTU, asked.mtu_selector);
    let rate = meant(M::RATE_SELECTOR, M::RATE, asked.rate_selector);
    let which = asked.packet_life_time_selector;
    let life = meant(M::PACKET_LIFE_TIME_SELECTOR, M::PACKET_LIFE_TIME, which);
    (!mtu || asked.mtu_selector.admits(record.mtu, asked.mtu))
        && (!rate
            || asked
                .rate_selector
                .admits(record.rate.mbps(), asked.rate.mbps()))
        && (!life || which.admits(record.packet_life_time, asked.packet_life_time))
        && (!mask.has(M::P_KEY) || record.p_key.base() == asked.p_key.base())
}

/// A group that exists is what the request says.
fn agrees(group: &Group, asked: &McMemberRecord, mask: ComponentMask) -> bool {
    let record = show(group);
    let mine = McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE | McMemberRecord::PROXY_JOIN;
    let plain = ComponentMask(mask.0 & !SPECIAL.0 & !mine.0 & !McMemberRecord::MLID.0);
    record.matches(asked, plain) && selectors_admit(&record, asked, mask)
}

/// The MTU of a new group: what is asked for, as far as the port can; else the best.
fn best_mtu(which: Selector, asked: MtuCode, own: MtuCode) -> Option<MtuCode> {
    let value = match which {
        Selector::Exactly => asked,
        Selector::LessThan => own.min(MtuCode(asked.0.saturating_sub(1))),
        Selector::GreaterThan | Selector::Best => own,
    };
    let fits = value.mtu().is_some() && value <= own && which.admits(value, asked);
    (fits || (which == Selector::Best && own.mtu().is_some())).then_some(value)
}

/// The same for its rate.
fn best_rate(which: Selector, asked: Rate, own: Rate) -> Option<Rate> {
    let value = match which {
        Selector::Exactly => asked,
        Selector::LessThan => {
            let slower = |rate: &Rate| rate.mbps() < asked.mbps() && rate.mbps() <= own.mbps();
            let rates = (2..=24).map(Rate).filter(slower);
            rates.max_by_key(|rate| rate.mbps())?
        }
        Selector::GreaterThan | Selector::Best => own,
    };
    let possible = value.mbps().is_some() && value.mbps() <= own.mbps();
    (possible && which.admits(value.mbps(), asked.mbps())).then_some(value)
}

/// protocols 4.6: multicast, permanent or not, no flag above that, and what an administrator made up is not of the link.
fn is_valid_mgid(mgid: Gid) -> bool {
    let bytes = mgid.0;
    let own = [bytes[2], bytes[3]] == OWN;
    bytes[0] == 0xff && bytes[1] & 0xe0 == 0 && !(own && scope_of(mgid) == LINK_LOCAL)
}

const fn scope_of(mgid: Gid) -> u8 {
    mgid.0[1] & 0x0f
}

const fn full(key: PKey) -> PKey {
    PKey(key.0 | 0x8000)
}

impl Source for McMemberRecord {
    fn numbers(
        manager: &Manager<'_>,
        query: &Query<'_, Self>,
        each: &mut dyn FnMut(u32) -> Enough,
    ) {
        let trusted = query.request.trusted;
        let asker = query.request.from;
        // One who asks for his own memberships sees them; others see groups.
        let own = asker.filter(|&asker| {
            query.has(Self::PORT_GID) && query.record.port_gid == manager.gid_of(asker)
        });
        let in_partition = |group: &Group| {
            let guid = asker
                .and_then(|asker| manager.ports.get(asker))
                .map_or(Guid(0), |row| row.guid);
            trusted || manager.config.p_key_in(guid, group.p_key).is_some()
        };
        let named = query
            .has(Self::MGID)
            .then(|| manager.group_of(query.record.mgid));
        let all = named.is_none().then(|| manager.all_groups());
        for id in named.flatten().into_iter().chain(all.into_iter().flatten()) {
            let group = manager.groups.get(id).filter(|row| !row.mgid.is_none());
            if !group.is_some_and(in_partition) {
                continue;
            }
            if !trusted && own.is_none() {
                if each(id.index() as u32) == Enough(true) {
                    return;
                }
                continue;
            }
            for (member, row) in manager.members_of(id) {
                if (trusted || own == Some(row.port))
                    && each(MEMBER | member.index() as u32) == Enough(true)
                {
                    return;
                }
            }
        }
    }

    fn make(manager: &Manager<'_>, _: &Kind, number: u32) -> Option<Self> {
        if number & MEMBER == 0 {
            let group = manager.groups.get(GroupId::new(number as usize)?)?;
            return (!group.mgid.is_none()).then(|| show(group));
        }
        let id = MemberId::new((number & !MEMBER) as usize)?;
        let member: &Member = manager
            .members
            .get(id)
            .filter(|row| !row.state.is_empty())?;
        let mut record = show(manager.groups.get(member.group)?);
        record.port_gid = manager.gid_of(member.port);
        record.join_state = member.state;
        record.proxy_join = member.proxy;
        Some(record)
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        let mask = ComponentMask(query.mask.0 & !SPECIAL.0);
        let join = query.has(Self::JOIN_STATE);
        let states = !join || self.join_state.intersects(query.record.join_state);
        let mask = ComponentMask(mask.0 & !Self::JOIN_STATE.0);
        states
            && self.matches(&query.record, mask)
            && selectors_admit(self, &query.record, query.mask)
    }
}
