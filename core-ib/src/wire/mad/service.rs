//! Services that register with subnet administration. protocols 4.9.

use super::AttributeId;
use super::layout::{layout, records};
use crate::types::{Gid, PKey};

layout! {
    /// A service and where it is. protocols 4.9.
    pub struct ServiceRecord, ServiceRecordView: 176, AttributeId::SERVICE_RECORD;
    /// ServiceID.
    id: u64 = 0,
    /// ServiceGID.
    gid: Gid = 8,
    /// ServiceP_Key.
    p_key: PKey = 24,
    /// ServiceLease, in seconds: see [`ServiceRecord::FOREVER`].
    lease: u32 = 28,
    /// ServiceKey: shows who may change the record. Zeros to others.
    key: [u8; 16] = 32,
    /// ServiceName, UTF-8.
    name: [u8; 64] = 48,
    /// ServiceData8.
    data8: [u8; 16] = 112,
    /// ServiceData16.
    data16: [u16; 8] = 128,
    /// ServiceData32.
    data32: [u32; 4] = 144,
    /// ServiceData64.
    data64: [u64; 2] = 160,
}

records! { ServiceRecord:
    ID = 0: id;
    GID = 1: gid;
    P_KEY = 2: p_key;
    LEASE = 4: lease;
    KEY = 5: key;
    NAME = 6: name;
    [data8; 16] = 7: data8;
    [data16; 8] = 23: data16;
    [data32; 4] = 31: data32;
    [data64; 2] = 35: data64;
}

impl ServiceRecord {
    /// A lease that does not end.
    pub const FOREVER: u32 = u32::MAX;

    /// Whether both are the same registration: ServiceID, ServiceGID and ServiceP_Key.
    pub fn is_same_as(&self, other: &Self) -> bool {
        (self.id, self.gid, self.p_key) == (other.id, other.gid, other.p_key)
    }
}

layout! {
    /// A service's key by its name. protocols 4.9.
    pub struct ServiceAssociationRecord, ServiceAssociationRecordView: 80,
        AttributeId::SERVICE_ASSOCIATION_RECORD;
    /// ServiceKey.
    key: [u8; 16] = 0,
    /// ServiceName, UTF-8.
    name: [u8; 64] = 16,
}

records! { ServiceAssociationRecord:
    KEY = 0: key;
    NAME = 1: name;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;
    use crate::wire::mad::{ComponentMask, Record, SaHeader};

    round_trip_tests!(ServiceRecord, ServiceAssociationRecord);

    /// protocols 4.9.
    #[test]
    fn the_service_record_lies_as_the_table_says() {
        let record = ServiceRecord {
            id: 0x0102_0304_0506_0708,
            gid: Gid([0x11; 16]),
            p_key: PKey(0x8002),
            lease: 0x0304_0506,
            key: [0x22; 16],
            name: [0x33; 64],
            data8: core::array::from_fn(|i| i as u8),
            data16: [0x0708, 0, 0, 0, 0, 0, 0, 0x090a],
            data32: [0x0b0c_0d0e, 0, 0, 1],
            data64: [2, 0x0f10_1112_1314_1516],
        };
        let bytes = record.to_bytes();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[8..24], [0x11; 16]);
        assert_eq!(bytes[24..32], [0x80, 2, 0, 0, 3, 4, 5, 6]);
        assert_eq!(bytes[32..48], [0x22; 16]);
        assert_eq!(bytes[48..112], [0x33; 64]);
        assert_eq!(
            bytes[112..128],
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
        );
        assert_eq!(
            bytes[128..144],
            [7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10]
        );
        assert_eq!(
            bytes[144..160],
            [0xb, 0xc, 0xd, 0xe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        let last = [
            0, 0, 0, 0, 0, 0, 0, 2, 0xf, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
        ];
        assert_eq!(bytes[160..], last);
        assert_eq!(ServiceRecord::from_bytes(&bytes), record);

        let association = ServiceAssociationRecord {
            key: [0x22; 16],
            name: [0x33; 64],
        };
        assert_eq!(
            association.to_bytes()[..17],
            *b"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"3"
        );
        let sizes = [ServiceRecord::SIZE, ServiceAssociationRecord::SIZE];
        assert_eq!(sizes.map(SaHeader::offset_of), [22, 10]);
    }

    /// protocols 4.9.
    #[test]
    fn each_element_of_the_service_data_is_a_component() {
        assert_eq!(ServiceRecord::data8(15), ComponentMask(1 << 22));
        assert_eq!(ServiceRecord::data16(0), ComponentMask(1 << 23));
        assert_eq!(ServiceRecord::data32(3), ComponentMask(1 << 34));
        assert_eq!(ServiceRecord::data64(1), ComponentMask(1 << 36));
        let mut record = ServiceRecord::default();
        record.data32[3] = 1;
        let query = ServiceRecord::default();
        assert!(record.matches(&query, ServiceRecord::data32(2) | ServiceRecord::NAME));
        assert!(!record.matches(&query, ServiceRecord::data32(3)));
        record.lease = 5;
        assert!(record.is_same_as(&query));
        record.p_key = PKey(1);
        assert!(!record.is_same_as(&query));
    }
}
