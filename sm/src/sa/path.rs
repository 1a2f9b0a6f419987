//! Path records: how to get from one port to another. protocols 4.5.
//!
//! A path is found by walking the forwarding tables from switch to switch, as a packet will.

use super::query::{Enough, Query, Source};
use super::transfer::Kind;
use crate::manager::Manager;
use crate::table::PortId;
use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{
    MadStatus, Method, MtuCode, PathRecord, Selector, SlToVlMappingTable, TimeCode,
};
use core_ib::{Gid, Guid, Lid, PKey, Rate, Sl};

/// No path is longer: protocols 9.7.
const MAX_SWITCHES: usize = 64;

/// What a path can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mtu: MtuCode,
    pub(crate) rate: Rate,
}

impl Manager<'_> {
    /// Walks from an end port to another by the tables for `dlid`; `None` if that does not end there.
    pub(crate) fn walk(&self, from: PortId, to: PortId, dlid: Lid) -> Option<Way> {
        let row = self.ports.get(from)?;
        let mut way = Way {
            mtu: row.mtu(),
            rate: row.rate,
        };
        if from == to {
            return Some(way);
        }
        let mut out = match self.node_of(from)?.switch {
            Some(switch) => {
                self.port_at(self.ports.get(from)?.node, self.lft_port(switch, dlid)?)?
            }
            None => from,
        };
        for _ in 0..MAX_SWITCHES {
            let near = self.ports.get(out)?;
            let peer = near.peer?;
            let far = self.ports.get(peer)?;
            way.narrow(near); // the ends of a cable agree
            if peer == to {
                return Some(way);
            }
            let node = self.nodes.get(far.node)?;
            let number = self.lft_port(node.switch?, dlid)?;
            out = self.port_at(far.node, number)?;
            if out == to {
                return Some(way); // port 0 of that switch
            }
            if number == 0 {
                return None;
            }
        }
        None
    }

    /// The service level of paths: the one asked for, if there is quality of service and it leads somewhere.
    fn path_sl(&self, asked: Option<Sl>) -> Option<Sl> {
        match (asked, self.config.qos) {
            (None, _) => Some(Sl::new(0)),
            (Some(sl), Some(qos)) => {
                let vl = qos.sl_to_vl.get(usize::from(sl.get()))?;
                (*vl != SlToVlMappingTable::DROP).then_some(sl)
            }
            (Some(sl), None) => (sl.get() == 0).then_some(sl),
        }
    }

    fn guid_of(&self, port: PortId) -> Guid {
        self.ports.get(port).map_or(Guid(0), |row| row.guid)
    }

    /// The key of a path: the one asked for, or any that both ends have.
    fn path_key(&self, from: PortId, to: PortId, asked: Option<PKey>) -> Option<PKey> {
        let (from, to) = (self.guid_of(from), self.guid_of(to));
        match asked {
            Some(key) => self.shared_key_in(from, to, key),
            None => self.shared_key(from, to),
        }
    }

    /// The path to a group, for who asks for one.
    fn path_to_group(&self, from: PortId, query: &PathRecord) -> Option<PathRecord> {
        let group = self.groups.get(self.group_of(query.dgid)?)?;
        self.config.p_key_in(self.guid_of(from), group.p_key)?;
        Some(PathRecord {
            dgid: group.mgid,
            sgid: self.gid_of(from),
            dlid: group.mlid,
            slid: self.ports.get(from)?.lid,
            flow_label: group.flow_label,
            hop_limit: group.hop_limit,
            tclass: group.tclass,
            p_key: group.p_key,
            sl: group.sl,
            mtu_selector: Selector::Exactly,
            mtu: group.mtu,
            rate_selector: Selector::Exactly,
            rate: group.rate,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: group.packet_life_time,
            ..PathRecord::default()
        })
    }
}

impl Way {
    fn narrow(&mut self, port: &crate::subnet::Port) {
        self.mtu = self.mtu.min(port.mtu());
        // Port 0 of a switch may have none.
        let slower = match (port.rate.mbps(), self.rate.mbps()) {
            (Some(port), Some(way)) => port < way,
            (port, _) => port.is_some(),
        };
        if slower {
            self.rate = port.rate;
        }
    }
}

/// The two LIDs of a path in one number.
fn pair(slid: Lid, dlid: Lid) -> u32 {
    u32::from(slid.0) << 16 | u32::from(dlid.0)
}

impl Source for PathRecord {
    fn check(manager: &Manager<'_>, query: &Query<'_, Self>) -> Result<(), MadStatus> {
        let known = |gid: Gid| {
            let group = gid.is_multicast() && manager.group_of(gid).is_some();
            group || manager.port_of_gid(gid).is_some()
        };
        let (sgid, dgid) = (query.record.sgid, query.record.dgid);
        let bad =
            (query.has(Self::SGID) && !known(sgid)) || (query.has(Self::DGID) && !known(dgid));
        if bad {
            Err(MadStatus::SA_INVALID_GID)
        } else {
            Ok(())
        }
    }

    fn numbers(
        manager: &Manager<'_>,
        query: &Query<'_, Self>,
        each: &mut dyn FnMut(u32) -> Enough,
    ) {
        let record = &query.record;
        let named = |gid, lid| {
            let gid = query.has(gid).then_some(if gid == Self::SGID {
                record.sgid
            } else {
                record.dgid
            });
            let lid = query.has(lid).then_some(if lid == Self::SLID {
                record.slid
            } else {
                record.dlid
            });
            manager.named(gid, lid)
        };
        let Ok(from) = named(Self::SGID, Self::SLID) else {
            return;
        };
        if query.has(Self::DGID) && record.dgid.is_multicast() {
            let from = from
                .or(query.request.from)
                .and_then(|port| manager.ports.get(port));
            let group = manager
                .group_of(record.dgid)
                .and_then(|group| manager.groups.get(group));
            if let (Some(from), Some(group)) = (from, group) {
                each(pair(from.lid, group.mlid));
            }
            return;
        }
        let Ok(to) = named(Self::DGID, Self::DLID) else {
            return;
        };
        let ends = |one: Option<PortId>| {
            let all = one.is_none().then(|| manager.present_ports());
            one.into_iter().chain(all.into_iter().flatten())
        };
        let get = query.request.header.header.method == Method::GET;
        let most = match (get, query.has(Self::NUMB_PATH)) {
            (true, _) => 1,
            (false, true) => usize::from(record.numb_path).max(1),
            (false, false) => 127,
        };
        for from in ends(from) {
            for to in ends(to) {
                if manager.each_pair(query, from, to, most, each) == Enough(true) {
                    return;
                }
            }
        }
    }

    fn make(manager: &Manager<'_>, what: &Kind, number: u32) -> Option<Self> {
        let asked = Self::from_bytes(&what.query);
        let (slid, dlid) = (Lid((number >> 16) as u16), Lid(number as u16));
        let from = manager.port_of_lid(slid)?;
        if dlid.is_multicast() {
            return manager.path_to_group(from, &asked);
        }
        let to = manager.port_of_lid(dlid)?;
        let has = |component| what.mask.has(component);
        let way = manager.walk(from, to, dlid)?;
        let back = manager.walk(to, from, slid);
        let life = if from == to {
            TimeCode(0)
        } else {
            manager.config.packet_lifetime
        };
        let flow_label = if has(Self::FLOW_LABEL) {
            asked.flow_label
        } else {
            FlowLabel::new(0)
        };
        Some(Self {
            service_id: if has(Self::SERVICE_ID) {
                asked.service_id
            } else {
                0
            },
            dgid: manager.gid_of(to),
            sgid: manager.gid_of(from),
            dlid,
            slid,
            flow_label,
            tclass: if has(Self::TCLASS) { asked.tclass } else { 0 },
            reversible: back.is_some(),
            numb_path: if has(Self::NUMB_PATH) {
                asked.numb_path
            } else {
                0
            },
            p_key: manager.path_key(from, to, has(Self::P_KEY).then_some(asked.p_key))?,
            qos_class: if has(Self::QOS_CLASS) {
                asked.qos_class
            } else {
                0
            },
            sl: manager.path_sl(has(Self::SL).then_some(asked.sl))?,
            mtu_selector: Selector::Exactly,
            mtu: way.mtu,
            rate_selector: Selector::Exactly,
            rate: way.rate,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: life,
            ..Self::default()
        })
    }

    fn is_wanted(&self, query: &Query<'_, Self>) -> bool {
        let asked = &query.record;
        if query.has(Self::REVERSIBLE) && asked.reversible && !self.reversible {
            return false;
        }
        if query.has(Self::RAW_TRAFFIC) && asked.raw_traffic {
            return false;
        }
        let meant = |selector, value, which| {
            query.has(selector) && (query.has(value) || which == Selector::Best)
        };
        let mtu = meant(Self::MTU_SELECTOR, Self::MTU, asked.mtu_selector);
        let rate = meant(Self::RATE_SELECTOR, Self::RATE, asked.rate_selector);
        let which = asked.packet_life_time_selector;
        let life = meant(
            Self::PACKET_LIFE_TIME_SELECTOR,
            Self::PACKET_LIFE_TIME,
            which,
        );
        // Ends, keys and the like were chosen by the query, so they agree with it.
        (!mtu || asked.mtu_selector.admits(self.mtu, asked.mtu))
            && (!rate
                || asked
                    .rate_selector
                    .admits(self.rate.mbps(), asked.rate.mbps()))
            && (!life || which.admits(self.packet_life_time, asked.packet_life_time))
    }
}

impl Manager<'_> {
    /// The paths from one port to another: one for each pair of LIDs, at most `most`.
    fn each_pair(
        &self,
        query: &Query<'_, PathRecord>,
        from: PortId,
        to: PortId,
        most: usize,
        each: &mut dyn FnMut(u32) -> Enough,
    ) -> Enough {
        let record = &query.record;
        let (Some(source), Some(destination)) = (self.ports.get(from), self.ports.get(to)) else {
            return Enough(false);
        };
        let lids = |port: PortId, base: Lid, named: Option<Lid>| {
            let count = if named.is_some() {
                1
            } else {
                1_u16 << self.lmc_of(port)
            };
            (named.unwrap_or(base), count)
        };
        let slid = query.has(PathRecord::SLID).then_some(record.slid);
        let dlid = query.has(PathRecord::DLID).then_some(record.dlid);
        let (slid, sources) = lids(from, source.lid, slid);
        let (dlid, destinations) = lids(to, destination.lid, dlid);
        let pairs = sources.max(destinations);
        for offset in (0..pairs).take(most) {
            let slid = Lid(slid.0 + (offset & (sources - 1))); // both counts are powers of two
            let dlid = Lid(dlid.0 + (offset & (destinations - 1)));
            if each(pair(slid, dlid)) == Enough(true) {
                return Enough(true);
            }
        }
        Enough(false)
    }
}
