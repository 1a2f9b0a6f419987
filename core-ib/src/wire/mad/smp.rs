//! Subnet management packets (SMPs): the whole MAD with its directed route, and the SM's own attribute.
//! protocols 3.5, 3.6, 3.8.12.

use super::layout::{constants, layout, number};
use super::{Attribute, AttributeId, MKey, MadHeader, MadStatus, Method, MgmtClass, SmKey};
use crate::types::{Guid, Lid};
use crate::wire::WireError;

layout! {
    /// A subnet management packet. Of a LID-routed one (protocols 3.6) only the header, the M_Key and the data count.
    pub struct Smp, SmpView: 256;
    /// With HopPointer, HopCount and the D bit.
    header: MadHeader = 0,
    /// Must be that of the port, if it has one. protocols 3.9.
    m_key: MKey = 24,
    /// Where the directed part begins; permissive if at the source.
    dr_slid: Lid = 32,
    /// Where it ends; permissive if at the destination.
    dr_dlid: Lid = 34,
    /// The attribute.
    data: [u8; 64] = 64,
    /// Output port of each hop; element 0 is not used.
    initial_path: [u8; 64] = 128,
    /// Input port of each hop, written on the way.
    return_path: [u8; 64] = 192,
}

impl Smp {
    /// The most hops that a directed route has.
    pub const MAX_HOPS: usize = 63;

    /// A LID-routed request.
    pub fn lid_routed(method: Method, attribute: AttributeId, modifier: u32) -> Self {
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: MgmtClass::SUBN_LID,
            class_version: 1,
            method,
            attribute,
            modifier,
            ..MadHeader::default()
        };
        Self {
            header,
            ..Self::default()
        }
    }

    /// A request by directed route alone. `path` has the output port of each hop, the first at the source; an error
    /// if there are more than [`Smp::MAX_HOPS`].
    pub fn directed(
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
    ) -> Result<Self, WireError> {
        let mut smp = Self::lid_routed(method, attribute, modifier);
        smp.header.class = MgmtClass::SUBN_DR;
        smp.dr_slid = Lid::PERMISSIVE;
        smp.dr_dlid = Lid::PERMISSIVE;
        let (_, hops) = smp
            .initial_path
            .split_first_mut()
            .unwrap_or((&mut 0, &mut []));
        let Some(hops) = hops.get_mut(..path.len()) else {
            return Err(WireError::Field {
                header: "SMP",
                field: "HopCount",
                found: path.len() as u64,
            });
        };
        hops.copy_from_slice(path);
        smp.header.hop_count = path.len() as u8;
        Ok(smp)
    }

    /// The class is that of directed routes.
    pub fn is_directed(&self) -> bool {
        self.header.class == MgmtClass::SUBN_DR
    }

    /// The D bit: it is on its way back.
    pub fn is_returning(&self) -> bool {
        self.header.status.0 & MadStatus::DIRECTION != 0
    }

    /// Output port of hop `hop`, 1 to 63.
    pub fn initial_hop(&self, hop: u8) -> Option<u8> {
        self.initial_path.get(usize::from(hop)).copied()
    }

    /// Input port of hop `hop`, 1 to 63.
    pub fn return_hop(&self, hop: u8) -> Option<u8> {
        self.return_path.get(usize::from(hop)).copied()
    }

    /// The data, read as an attribute.
    pub fn get<A: Attribute>(&self) -> Result<A, WireError> {
        A::read(&self.data)
    }

    /// Replaces the data; what the attribute does not fill becomes zeros.
    pub fn put<A: Attribute>(&mut self, attribute: &A) -> Result<(), WireError> {
        self.data = [0; 64];
        attribute.write(&mut self.data)
    }

    /// The answer with the same data: method, status and, of a directed route, the D bit; `None` if there is none to
    /// this method. protocols 3.5.3.
    pub fn reply(&self, status: MadStatus) -> Option<Self> {
        let mut header = self.header.reply(status)?;
        if self.is_directed() {
            header.status.0 |= MadStatus::DIRECTION;
        }
        Some(Self { header, ..*self })
    }
}

/// State of a subnet manager. protocols 3.11.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SmState(pub u8);

constants! { SmState:
    /// Does nothing.
    NOT_ACTIVE = 0;
    /// Walks the fabric.
    DISCOVERING = 1;
    /// Polls the master.
    STANDBY = 2;
    /// Configures the fabric.
    MASTER = 3;
}

number! {
    SmState, 1, |bits| Self(bits as u8), |state| state.0.into();
}

layout! {
    /// A subnet manager as others see it. protocols 3.8.12.
    pub struct SmInfo, SmInfoView: 21, AttributeId::SM_INFO;
    /// GUID of its port.
    guid: Guid = 0,
    /// Zero for who may not know it.
    sm_key: SmKey = 8,
    /// Grows while it works.
    act_count: u32 = 16,
    /// 15 is the highest.
    priority: u8 = 20 [7:4],
    /// What it does.
    state: SmState = 20 [3:0],
}

/// Command to a subnet manager: the attribute modifier of Set(SMInfo). protocols 3.8.12, 3.11.
impl SmInfo {
    /// Become master.
    pub const HANDOVER: u32 = 1;
    /// The handover was noted.
    pub const ACKNOWLEDGE: u32 = 2;
    /// Become not active.
    pub const DISABLE: u32 = 3;
    /// Leave the not active state.
    pub const STANDBY: u32 = 4;
    /// Walk the fabric again.
    pub const DISCOVER: u32 = 5;

    /// The greater priority wins; of equals the lower GUID. protocols 3.11.1.
    pub fn wins_over(&self, other: &Self) -> bool {
        let rank = |sm: &Self| (sm.priority, core::cmp::Reverse(sm.guid));
        rank(self) > rank(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(Smp, SmInfo);

    /// protocols 3.5.
    #[test]
    fn a_directed_request_lies_as_the_table_says() {
        let mut smp = Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1, 7]).unwrap();
        smp.header.tid = 0x1122_3344_5566_7788;
        smp.m_key = MKey(0x0102_0304_0506_0708);
        smp.return_path[1] = 3;
        let bytes = smp.to_bytes();
        let head = [
            1, 0x81, 1, 1, 0, 0, 0, 2, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x11, 0,
            0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(bytes[..36], head);
        assert_eq!(bytes[36..128], [0; 92]);
        assert_eq!(bytes[128..132], [0, 1, 7, 0]);
        assert_eq!(bytes[192..195], [0, 3, 0]);
        assert_eq!((smp.initial_hop(2), smp.return_hop(1)), (Some(7), Some(3)));
        assert_eq!((smp.initial_hop(64), smp.return_hop(64)), (None, None));
    }

    #[test]
    fn a_directed_route_has_at_most_63_hops() {
        let to =
            |hops: usize| Smp::directed(Method::GET, AttributeId::NODE_INFO, 0, &[1; 64][..hops]);
        assert_eq!(to(63).unwrap().header.hop_count, 63);
        assert!(matches!(to(64), Err(WireError::Field { found: 64, .. })));
    }

    #[test]
    fn a_reply_keeps_the_path_and_a_lid_routed_one_has_no_d_bit() {
        let mut smp = Smp::directed(Method::SET, AttributeId::PORT_INFO, 1, &[1]).unwrap();
        smp.header.hop_pointer = 2;
        let reply = smp.reply(MadStatus::INVALID_FIELD).unwrap();
        assert_eq!(reply.header.status, MadStatus(0x801c));
        assert_eq!(reply.header.method, Method::GET_RESP);
        assert!(reply.is_returning() && !smp.is_returning());
        assert_eq!(
            (reply.header.hop_pointer, reply.initial_path),
            (2, smp.initial_path)
        );
        assert_eq!(reply.reply(MadStatus::OK), None);

        let trap = Smp::lid_routed(Method::TRAP, AttributeId::NOTICE, 0);
        let repress = trap.reply(MadStatus::OK).unwrap();
        assert_eq!(repress.header.method, Method::TRAP_REPRESS);
        assert_eq!(repress.header.status, MadStatus::OK);
    }

    /// protocols 3.8.12.
    #[test]
    fn the_sm_info_lies_as_the_table_says() {
        let info = SmInfo {
            guid: Guid(0x0002_c903_0000_1001),
            sm_key: SmKey(0x1122_3344_5566_7788),
            act_count: 0x0102_0304,
            priority: 14,
            state: SmState::MASTER,
        };
        let bytes = [
            0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x01, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66,
            0x77, 0x88, 1, 2, 3, 4, 0xe3,
        ];
        assert_eq!(info.to_bytes(), bytes);
        assert_eq!(SmInfo::from_bytes(&bytes), info);
        let mut smp = Smp::lid_routed(Method::GET, AttributeId::SM_INFO, 0);
        smp.data = [0xee; 64];
        smp.put(&info).unwrap();
        assert_eq!(smp.get(), Ok(info));
        assert_eq!(smp.data[21..], [0; 43]);
    }

    #[test]
    fn of_two_managers_of_one_priority_the_lower_guid_wins() {
        let sm = |priority, guid| SmInfo {
            priority,
            guid: Guid(guid),
            ..SmInfo::default()
        };
        assert!(sm(3, 9).wins_over(&sm(2, 1)));
        assert!(sm(3, 1).wins_over(&sm(3, 2)));
        assert!(!sm(3, 2).wins_over(&sm(3, 2)));
    }
}
