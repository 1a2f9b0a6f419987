//! A path of a connection as this end sees it, and what of it goes into a message, an address vector, a QP. protocols
//! 4.5, 5.3.

use core::time::Duration;
use core_ib::verbs::{AhAttr, GlobalRoute};
use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{CmLap, CmPath, PathRecord, TimeCode};
use core_ib::{Gid, Lid, Rate, Sl};
use ib_mad::MadAddr;

/// A path from a port of ours to a peer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Our port, 1 or 2.
    pub port: u8,
    /// Our LID.
    pub local_lid: Lid,
    /// Low bits of it that make the path; below 2^LMC.
    pub path_bits: u8,
    /// The peer's LID.
    pub remote_lid: Lid,
    /// Our GID.
    pub local_gid: Gid,
    /// Where it is in the port's table.
    pub sgid_index: u8,
    /// The peer's GID.
    pub remote_gid: Gid,
    /// Service level.
    pub sl: Sl,
    /// The least rate on the way.
    pub rate: Rate,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Traffic class.
    pub traffic_class: u8,
    /// More than 1: through a router, so with a GRH.
    pub hop_limit: u8,
    /// How long a packet may be on its way.
    pub life_time: TimeCode,
}

impl Path {
    /// What subnet administration answered, from `port`, whose GID of the record is at `sgid_index` and which has 2^`lmc`
    /// LIDs.
    pub fn of_record(record: &PathRecord, port: u8, sgid_index: u8, lmc: u8) -> Self {
        let mask = (1_u16 << (lmc & 7)).wrapping_sub(1);
        Self {
            port,
            local_lid: record.slid,
            path_bits: (record.slid.0 & mask) as u8,
            remote_lid: record.dlid,
            local_gid: record.sgid,
            sgid_index,
            remote_gid: record.dgid,
            sl: record.sl,
            rate: record.rate,
            flow_label: record.flow_label,
            traffic_class: record.tclass,
            hop_limit: record.hop_limit,
            life_time: record.packet_life_time,
        }
    }

    /// Through a router.
    pub const fn is_global(&self) -> bool {
        self.hop_limit > 1
    }

    /// As an address vector.
    pub fn ah_attr(&self) -> AhAttr {
        let grh = self.is_global().then_some(GlobalRoute {
            dgid: self.remote_gid,
            sgid_index: self.sgid_index,
            flow_label: self.flow_label.get(),
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        });
        AhAttr {
            port: self.port,
            dlid: self.remote_lid,
            sl: self.sl,
            src_path_bits: self.path_bits,
            static_rate: self.rate,
            grh,
        }
    }

    /// QP1 at its end, in the partition at `pkey_index`.
    pub fn gsi(&self, pkey_index: u16) -> MadAddr {
        let ah = self.ah_attr();
        MadAddr {
            path_bits: ah.src_path_bits,
            static_rate: ah.static_rate,
            grh: ah.grh,
            ..MadAddr::gsi(ah.dlid, ah.sl, pkey_index)
        }
    }

    /// As it stands in a REQ. Through a router the LIDs mean nothing to the peer. protocols 5.3.1.
    pub(crate) fn to_wire(self, ack_timeout: TimeCode) -> CmPath {
        let local = !self.is_global();
        let lid = |lid| if local { lid } else { Lid::PERMISSIVE };
        CmPath {
            local_lid: lid(self.local_lid),
            remote_lid: lid(self.remote_lid),
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: self.flow_label,
            rate: self.rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: local,
            ack_timeout,
        }
    }

    /// The path of a REQ, back: we are its remote end. `slid` is where the REQ came from, for what passed a router.
    pub(crate) fn back(path: &CmPath, local: &Local, slid: Lid) -> Self {
        let through_router = !path.subnet_local || path.local_lid.is_permissive();
        Self {
            port: local.port,
            local_lid: path.remote_lid,
            path_bits: local.path_bits,
            remote_lid: if through_router { slid } else { path.local_lid },
            local_gid: path.remote_gid,
            sgid_index: local.sgid_index,
            remote_gid: path.local_gid,
            sl: path.sl,
            rate: path.rate,
            flow_label: path.flow_label,
            traffic_class: path.traffic_class,
            // The flag decides, and not the number: protocols 5.3.1.
            hop_limit: if path.subnet_local {
                path.hop_limit.min(1)
            } else {
                path.hop_limit.max(2)
            },
            life_time: life_of(path.ack_timeout),
        }
    }
}

/// The path of a LAP, as a REQ has it.
pub(crate) fn path_of_lap(lap: &CmLap) -> CmPath {
    CmPath {
        local_lid: lap.local_lid,
        remote_lid: lap.remote_lid,
        local_gid: lap.local_gid,
        remote_gid: lap.remote_gid,
        flow_label: lap.flow_label,
        rate: lap.rate,
        traffic_class: lap.traffic_class,
        hop_limit: lap.hop_limit,
        sl: lap.sl,
        subnet_local: lap.subnet_local,
        ack_timeout: lap.ack_timeout,
    }
}

/// What of a path only its own end knows: where the message's values are in the tables of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Our port, 1 or 2.
    pub port: u8,
    /// Where the message's P_Key is in the port's table.
    pub pkey_index: u16,
    /// Where our GID is in the port's table.
    pub sgid_index: u8,
    /// Low bits of our LID that make the path; below 2^LMC.
    pub path_bits: u8,
}

/// Local ACK timeout of a path whose packets live for `life`, to a peer that takes `delay`: about twice the one and the
/// other, in powers of two. protocols 5.4.
pub const fn ack_timeout(life: TimeCode, delay: TimeCode) -> TimeCode {
    let q = (life.0 & 31) + 1;
    let d = delay.0 & 31;
    let code = if q >= d {
        q + (d + 1 >= q) as u8
    } else {
        d + (q + 1 >= d) as u8
    };
    TimeCode(if code > 31 { 31 } else { code })
}

/// The packet lifetime of which an ACK timeout was made, to all that can be said of it.
pub(crate) const fn life_of(ack_timeout: TimeCode) -> TimeCode {
    TimeCode((ack_timeout.0 & 31).saturating_sub(1))
}

/// How long to wait for an answer that takes `response`, over a path whose packets live for `life`. protocols 5.9.
pub(crate) fn wait(response: TimeCode, life: TimeCode) -> Duration {
    let trip = life.duration().saturating_mul(2);
    response.duration().saturating_add(trip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// protocols 5.4, its three cases.
    #[test]
    fn an_ack_timeout_is_about_two_lifetimes_and_the_delay() {
        let code = |life, delay| ack_timeout(TimeCode(life), TimeCode(delay)).0;
        assert_eq!(code(18, 0), 19);
        assert_eq!(code(18, 17), 19);
        assert_eq!(code(18, 18), 20); // as much again
        assert_eq!(code(18, 19), 20);
        assert_eq!(code(14, 16), 17);
        assert_eq!(code(14, 17), 17); // the path counts for nothing
        assert_eq!(code(31, 31), 31);
    }

    #[test]
    fn a_path_goes_back_where_it_came_from() {
        let there = Path {
            port: 1,
            local_lid: Lid(3),
            path_bits: 1,
            remote_lid: Lid(7),
            local_gid: Gid([1; 16]),
            remote_gid: Gid([2; 16]),
            sl: Sl::new(4),
            rate: Rate::GBPS_10,
            hop_limit: 0,
            life_time: TimeCode(14),
            ..Path::default()
        };
        let local = Local {
            port: 2,
            ..Local::default()
        };
        let wire = there.to_wire(TimeCode(15));
        let back = Path::back(&wire, &local, Lid(99));
        assert_eq!(
            (back.port, back.local_lid, back.remote_lid),
            (2, Lid(7), Lid(3))
        );
        assert_eq!(
            (back.local_gid, back.remote_gid),
            (Gid([2; 16]), Gid([1; 16]))
        );
        assert_eq!((back.life_time, back.ah_attr().grh), (TimeCode(14), None));
        let routed = Path {
            hop_limit: 64,
            ..there
        };
        let wire = routed.to_wire(TimeCode(15));
        assert_eq!(
            (wire.local_lid, wire.subnet_local),
            (Lid::PERMISSIVE, false)
        );
        let back = Path::back(&wire, &local, Lid(99));
        assert_eq!(back.remote_lid, Lid(99), "the router");
        assert_eq!(back.ah_attr().grh.map(|grh| grh.dgid), Some(Gid([1; 16])));
    }
}
