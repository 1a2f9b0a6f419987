//! What the link asks of the subnet administrator (SA), and what it wants to know of the answers: plain values, so that
//! nothing here depends on how the SA is reached. Each knows the record that carries it.

use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{ComponentMask, JoinState, McMemberRecord, PathRecord, Selector};
use core_ib::{Gid, Lid, Mtu, PKey, QKey, Rate, Sl};

/// Names one request to the SA. Comes back with the answer; one that is late or unknown is counted and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    pub(super) const fn new(of: TicketOf, slot: u16, serial: u32) -> Self {
        let of = match of {
            TicketOf::Path => 1,
            TicketOf::Group => 2,
        };
        Self(of << 48 | (slot as u64) << 32 | serial as u64)
    }

    pub(super) const fn of(self) -> Option<(TicketOf, u16, u32)> {
        let of = match self.0 >> 48 {
            1 => TicketOf::Path,
            2 => TicketOf::Group,
            _ => return None,
        };
        Some((of, (self.0 >> 32) as u16, self.0 as u32))
    }

    /// The ticket as a number, for the SA client's cookie.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From such a number. Any number is a ticket; one that was never given out is worth nothing.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TicketOf {
    Path,
    Group,
}

/// SubnAdmGet(PathRecord), masks DGID, SGID, NumbPath = 1, TClass, P_Key. protocols 4.5, 6.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuery {
    /// Where to.
    pub dgid: Gid,
    /// This port.
    pub sgid: Gid,
    /// The link's partition, bit 15 set.
    pub p_key: PKey,
    /// Traffic class of the broadcast group.
    pub traffic_class: u8,
}

impl PathQuery {
    /// The record to get, and which of its components count.
    pub fn record(&self) -> (PathRecord, ComponentMask) {
        let record = PathRecord {
            dgid: self.dgid,
            sgid: self.sgid,
            numb_path: 1,
            tclass: self.traffic_class,
            p_key: self.p_key,
            ..PathRecord::default()
        };
        let mask = PathRecord::DGID
            | PathRecord::SGID
            | PathRecord::NUMB_PATH
            | PathRecord::TCLASS
            | PathRecord::P_KEY;
        (record, mask)
    }
}

/// The path that the SA gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAnswer {
    /// Destination LID.
    pub dlid: Lid,
    /// Source LID: the base LID of this port plus path bits.
    pub slid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Rate of the path.
    pub rate: Rate,
    /// The path leaves the subnet if above 1; then packets carry a GRH.
    pub hop_limit: u8,
    /// For the GRH.
    pub flow_label: FlowLabel,
    /// For the GRH.
    pub traffic_class: u8,
}

impl From<&PathRecord> for PathAnswer {
    fn from(record: &PathRecord) -> Self {
        Self {
            dlid: record.dlid,
            slid: record.slid,
            sl: record.sl,
            rate: record.rate,
            hop_limit: record.hop_limit,
            flow_label: record.flow_label,
            traffic_class: record.tclass,
        }
    }
}

/// What a group is created with: those of the broadcast group, as a rule. In the request all selectors say "exactly".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupParams {
    /// Queue key.
    pub q_key: QKey,
    /// MTU.
    pub mtu: Mtu,
    /// Rate.
    pub rate: Rate,
    /// Service level.
    pub sl: Sl,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Hop limit.
    pub hop_limit: u8,
}

/// SubnAdmSet(MCMemberRecord): masks MGID, PortGID, P_Key, JoinState, and, with `create`, Q_Key, MTU and its selector,
/// TClass, rate and its selector, SL, FlowLabel, HopLimit. protocols 4.6, 6.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// The group.
    pub mgid: Gid,
    /// This port.
    pub port_gid: Gid,
    /// The link's partition, bit 15 set.
    pub p_key: PKey,
    /// What we want to be.
    pub join_state: JoinState,
    /// If the group may be created, with what.
    pub create: Option<GroupParams>,
}

impl JoinRequest {
    /// The record to set, and which of its components count.
    pub fn record(&self) -> (McMemberRecord, ComponentMask) {
        let mut record = McMemberRecord {
            mgid: self.mgid,
            port_gid: self.port_gid,
            p_key: self.p_key,
            join_state: self.join_state,
            ..McMemberRecord::default()
        };
        let mut mask = McMemberRecord::MGID
            | McMemberRecord::PORT_GID
            | McMemberRecord::P_KEY
            | McMemberRecord::JOIN_STATE;
        if let Some(params) = self.create {
            record.q_key = params.q_key;
            record.mtu_selector = Selector::Exactly;
            record.mtu = params.mtu.into();
            record.rate_selector = Selector::Exactly;
            record.rate = params.rate;
            record.sl = params.sl;
            record.tclass = params.traffic_class;
            record.flow_label = params.flow_label;
            record.hop_limit = params.hop_limit;
            mask |= McMemberRecord::Q_KEY
                | McMemberRecord::MTU_SELECTOR
                | McMemberRecord::MTU
                | McMemberRecord::TCLASS
                | McMemberRecord::RATE_SELECTOR
                | McMemberRecord::RATE
                | McMemberRecord::SL
                | McMemberRecord::FLOW_LABEL
                | McMemberRecord::HOP_LIMIT;
        }
        (record, mask)
    }
}

/// SubnAdmDelete(MCMemberRecord): masks MGID, PortGID, JoinState.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaveRequest {
    /// The group.
    pub mgid: Gid,
    /// This port.
    pub port_gid: Gid,
    /// What we no longer want to be.
    pub join_state: JoinState,
}

impl LeaveRequest {
    /// The record to delete, and which of its components count.
    pub fn record(&self) -> (McMemberRecord, ComponentMask) {
        let record = McMemberRecord {
            mgid: self.mgid,
            port_gid: self.port_gid,
            join_state: self.join_state,
            ..McMemberRecord::default()
        };
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        (record, mask)
    }
}

/// The group as the SA answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAnswer {
    /// The group.
    pub mgid: Gid,
    /// Its LID.
    pub mlid: Lid,
    /// Its partition.
    pub p_key: PKey,
    /// What this port is now.
    pub join_state: JoinState,
    /// The rest.
    pub params: GroupParams,
}

impl TryFrom<&McMemberRecord> for GroupAnswer {
    type Error = SaFailure;

    /// `BadAnswer` if the MTU is none of the five.
    fn try_from(record: &McMemberRecord) -> Result<Self, SaFailure> {
        Ok(Self {
            mgid: record.mgid,
            mlid: record.mlid,
            p_key: record.p_key,
            join_state: record.join_state,
            params: GroupParams {
                q_key: record.q_key,
                mtu: record.mtu.mtu().ok_or(SaFailure::BadAnswer)?,
                rate: record.rate,
                sl: record.sl,
                traffic_class: record.tclass,
                flow_label: record.flow_label,
                hop_limit: record.hop_limit,
            },
        })
    }
}

/// Why the SA gave no answer that is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaFailure {
    /// No answer after all retries.
    TimedOut,
    /// The SA said no, with this MAD status.
    Refused {
        /// Status of the answer.
        status: u16,
    },
    /// The answer could not be read, or is not one to this question.
    BadAnswer,
    /// The request did not leave: the client had no room, or nobody knows where the SA is. Not counted as a try.
    NotSent,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::Guid;
    use proptest::prelude::*;

    fn request(create: Option<GroupParams>) -> JoinRequest {
        JoinRequest {
            mgid: Gid([0xff; 16]),
            port_gid: Gid::unicast(Gid::DEFAULT_PREFIX, Guid(1)),
            p_key: PKey::DEFAULT,
            join_state: JoinState::FULL_MEMBER,
            create,
        }
    }

    const PARAMS: GroupParams = GroupParams {
        q_key: QKey(0x0b1b),
        mtu: Mtu::Mtu2048,
        rate: Rate::GBPS_10,
        sl: Sl::new(3),
        traffic_class: 4,
        flow_label: FlowLabel::new(5),
        hop_limit: 6,
    };

    /// protocols 4.5, 6.4: component by component.
    #[test]
    fn the_masks_are_those_of_the_reference() {
        let bits = |bits: &[u32]| ComponentMask(bits.iter().map(|bit| 1 << bit).sum());
        let path = PathQuery {
            dgid: Gid::NONE,
            sgid: Gid::NONE,
            p_key: PKey::DEFAULT,
            traffic_class: 0,
        };
        assert_eq!(path.record().1, bits(&[2, 3, 10, 12, 13]));
        assert_eq!(path.record().0.numb_path, 1);
        assert_eq!(request(None).record().1, bits(&[0, 1, 7, 16]));
        let creating = bits(&[0, 1, 2, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16]);
        assert_eq!(request(Some(PARAMS)).record().1, creating);
        let leave = LeaveRequest {
            mgid: Gid::NONE,
            port_gid: Gid::NONE,
            join_state: JoinState::FULL_MEMBER,
        };
        assert_eq!(leave.record().1, bits(&[0, 1, 16]));
    }

    #[test]
    fn a_group_created_with_parameters_answers_with_them() {
        let (record, _) = request(Some(PARAMS)).record();
        let answer = GroupAnswer::try_from(&record).unwrap();
        assert_eq!(answer.params, PARAMS);
        assert_eq!(
            (record.mtu_selector, record.rate_selector),
            (Selector::Exactly, Selector::Exactly)
        );
    }

    #[test]
    fn an_mtu_that_is_none_makes_a_bad_answer() {
        let (record, _) = request(None).record();
        assert_eq!(record.mtu.0, 0);
        assert_eq!(GroupAnswer::try_from(&record), Err(SaFailure::BadAnswer));
    }

    proptest! {
        #[test]
        fn a_ticket_says_what_it_was_given_out_for(slot: u16, serial: u32, path: bool) {
            let of = if path { TicketOf::Path } else { TicketOf::Group };
            let ticket = Ticket::from_bits(Ticket::new(of, slot, serial).to_bits());
            prop_assert_eq!(ticket.of(), Some((of, slot, serial)));
        }

        #[test]
        fn a_number_that_is_no_ticket_is_none(bits: u64) {
            prop_assume!(!matches!(bits >> 48, 1 | 2));
            prop_assert_eq!(Ticket::from_bits(bits).of(), None);
        }
    }
}
