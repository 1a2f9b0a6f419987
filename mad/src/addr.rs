//! Where a MAD goes and where one came from. protocols 3.1, verbs 9.1.

use core_ib::verbs::{AhAttr, GlobalRoute, Grh40, MadSource, WcOpcode, WcStatus, WorkCompletion};
use core_ib::wire::Grh;
use core_ib::wire::mad::{Mad, MadHeader, MgmtClass};
use core_ib::{Lid, QKey, Qpn, Rate, Sl};

/// One of the two special QPs of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialQp {
    /// QP0: subnet management packets (SMPs).
    Smi,
    /// QP1: everything else (GMPs).
    Gsi,
}

impl SpecialQp {
    /// Its number on the wire.
    pub const fn qpn(self) -> Qpn {
        match self {
            Self::Smi => Qpn::SMI,
            Self::Gsi => Qpn::GSI,
        }
    }

    /// The one with this number.
    pub const fn from_qpn(qpn: Qpn) -> Option<Self> {
        match qpn.get() {
            0 => Some(Self::Smi),
            1 => Some(Self::Gsi),
            _ => None,
        }
    }

    /// Does a MAD of `class` travel between QPs of this kind? protocols 3.3.
    pub const fn carries(self, class: MgmtClass) -> bool {
        matches!(self, Self::Smi) == class.is_smp()
    }
}

/// Where a MAD goes. What leaves by QP0 ignores the P_Key index and the Q_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddr {
    /// The QP that it leaves by.
    pub qp: SpecialQp,
    /// Destination LID; permissive for the directed part of a directed route.
    pub lid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of the source LID, below 2^LMC.
    pub path_bits: u8,
    /// Injection limit.
    pub static_rate: Rate,
    /// Present if the packet carries a GRH.
    pub grh: Option<GlobalRoute>,
    /// QP there: 0 or 1, or the one that the peer redirected to.
    pub remote_qpn: Qpn,
    /// Its Q_Key.
    pub remote_qkey: QKey,
    /// Index of the packet's P_Key in the port's table.
    pub pkey_index: u16,
}

impl MadAddr {
    /// A directed-route SMP without a leading LID-routed part: the way is in the MAD.
    pub const DIRECTED: Self = Self::smi(Lid::PERMISSIVE, Sl::new(0));

    /// QP0 of the port with this LID.
    pub const fn smi(lid: Lid, sl: Sl) -> Self {
        Self {
            qp: SpecialQp::Smi,
            lid,
            sl,
            path_bits: 0,
            static_rate: Rate::PORT,
            grh: None,
            remote_qpn: Qpn::SMI,
            remote_qkey: QKey(0),
            pkey_index: 0,
        }
    }

    /// QP1 of the port with this LID, in the partition at this index.
    pub const fn gsi(lid: Lid, sl: Sl, pkey_index: u16) -> Self {
        Self {
            qp: SpecialQp::Gsi,
            remote_qpn: Qpn::GSI,
            remote_qkey: QKey::GSI,
            pkey_index,
            ..Self::smi(lid, sl)
        }
    }

    /// As an address vector of `port`.
    pub const fn ah_attr(&self, port: u8) -> AhAttr {
        AhAttr {
            port,
            dlid: self.lid,
            sl: self.sl,
            src_path_bits: self.path_bits,
            static_rate: self.static_rate,
            grh: self.grh,
        }
    }
}

/// A MAD with an address, to be given to [`MadPort::send`](crate::MadPort::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub to: MadAddr,
    /// What.
    pub mad: Mad,
}

/// A MAD that came for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The QP that it came by.
    pub qp: SpecialQp,
    /// The completion of its receive. One that never saw the wire has the permissive LID as its source.
    pub wc: WorkCompletion,
    /// Its GRH, if it had one.
    pub grh: Option<Grh40>,
    /// Where the GRH's destination GID stands in the port's GID table; 0 if there is no GRH or no such entry.
    pub sgid_index: u8,
    /// The MAD. Of a directed-route SMP the hop pointer is as the SMI left it.
    pub mad: Mad,
}

impl Received {
    /// A MAD that our own software sent to our own port, as if it had come by `qp`.
    pub const fn looped_back(qp: SpecialQp, mad: Mad) -> Self {
        Self {
            qp,
            wc: WorkCompletion {
                status: WcStatus::Success,
                opcode: WcOpcode::Recv,
                byte_len: 40 + 256,
                qpn: qp.qpn(),
                src_qp: qp.qpn(),
                slid: Lid::PERMISSIVE,
                ..WorkCompletion::EMPTY
            },
            grh: None,
            sgid_index: 0,
            mad,
        }
    }

    /// The MAD's header.
    pub fn header(&self) -> MadHeader {
        self.mad.header()
    }

    /// As the HCA's firmware wants to know it.
    pub fn source(&self) -> MadSource {
        let grh = self.grh.unwrap_or([0; 40]);
        MadSource { wc: self.wc, grh }
    }

    /// Where an answer goes: to whom it came from, in the same partition, by the same service level. verbs 9.1.
    pub fn reply_to(&self) -> MadAddr {
        let mut to = match self.qp {
            SpecialQp::Smi => MadAddr::smi(self.wc.slid, self.wc.sl),
            SpecialQp::Gsi => MadAddr::gsi(self.wc.slid, self.wc.sl, self.wc.pkey_index),
        };
        to.remote_qpn = self.wc.src_qp;
        to.path_bits = self.wc.dlid_path_bits;
        to.grh = self.route().map(|grh| GlobalRoute {
            dgid: grh.sgid,
            sgid_index: self.sgid_index,
            flow_label: grh.flow_label.get(),
            hop_limit: 0xff,
            traffic_class: grh.traffic_class,
        });
        to
    }

    /// An answer on its way back.
    pub fn reply(&self, mad: Mad) -> Outgoing {
        let to = self.reply_to();
        Outgoing { to, mad }
    }

    /// Could this be the answer to something sent to `to`? By LID, or by GID where both have one; the answer to
    /// what left with a directed route may come from anywhere. protocols 3.12.
    pub fn is_from(&self, to: &MadAddr) -> bool {
        if self.qp != to.qp {
            return false;
        }
        if to.lid.is_permissive() || self.wc.slid.is_permissive() {
            return true;
        }
        match (self.route(), to.grh) {
            (Some(grh), Some(route)) => grh.sgid == route.dgid,
            _ => self.wc.slid == to.lid,
        }
    }

    /// What the GRH says; a GRH that makes no sense counts as none.
    fn route(&self) -> Option<Grh> {
        let (grh, _) = Grh::read(self.grh.as_ref()?).ok()?;
        Some(grh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::verbs::{Grh40, WcFlags};
    use core_ib::wire::FlowLabel;
    use core_ib::{Gid, Guid};

    fn received(qp: SpecialQp, grh: Option<Grh>) -> Received {
        let grh = grh.map(|grh| {
            let mut bytes: Grh40 = [0; 40];
            grh.write(&mut bytes).unwrap();
            bytes
        });
        let mut received = Received::looped_back(qp, Mad::ZERO);
        received.grh = grh;
        received.sgid_index = 3;
        received.wc = WorkCompletion {
            slid: Lid(0x12),
            sl: Sl::new(5),
            dlid_path_bits: 1,
            pkey_index: 2,
            flags: WcFlags::GRH,
            ..received.wc
        };
        received
    }

    fn gid(low: u64) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, Guid(low))
    }

    const GRH: Grh = Grh {
        traffic_class: 0xab,
        flow_label: FlowLabel::new(0x1_2345),
        pay_len: 280,
        nxt_hdr: Grh::IBA,
        hop_limit: 64,
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
    };

    #[test]
    fn an_answer_goes_back_the_way_the_question_came() {
        let grh = Grh {
            sgid: gid(7),
            ..GRH
        };
        let to = received(SpecialQp::Gsi, Some(grh)).reply_to();
        let route = GlobalRoute {
            dgid: gid(7),
            sgid_index: 3,
            flow_label: 0x1_2345,
            hop_limit: 0xff,
            traffic_class: 0xab,
        };
        let expected = MadAddr {
            path_bits: 1,
            grh: Some(route),
            ..MadAddr::gsi(Lid(0x12), Sl::new(5), 2)
        };
        assert_eq!(to, expected);
        let ah = to.ah_attr(2);
        assert_eq!((ah.port, ah.dlid, ah.src_path_bits), (2, Lid(0x12), 1));
        assert_eq!(received(SpecialQp::Smi, None).reply_to().pkey_index, 0);
    }

    #[test]
    fn an_answer_comes_from_where_the_question_went() {
        let answer = received(SpecialQp::Gsi, None);
        let to = MadAddr::gsi(Lid(0x12), Sl::new(0), 0);
        assert!(answer.is_from(&to));
        let other = MadAddr {
            lid: Lid(0x13),
            ..to
        };
        assert!(!answer.is_from(&other));
        assert!(!answer.is_from(&MadAddr::smi(Lid(0x12), Sl::new(0))));
        // By GID where both have one, whatever the LIDs of the routers between.
        let grh = Some(GlobalRoute {
            dgid: GRH.sgid,
            ..GlobalRoute::default()
        });
        assert!(received(SpecialQp::Gsi, Some(GRH)).is_from(&MadAddr { grh, ..other }));
        let grh = Some(GlobalRoute::default());
        assert!(!received(SpecialQp::Gsi, Some(GRH)).is_from(&MadAddr { grh, ..to }));
        // A directed route may end anywhere.
        assert!(received(SpecialQp::Smi, None).is_from(&MadAddr::DIRECTED));
    }
}
