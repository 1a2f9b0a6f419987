//! MultiPathRecord: paths among several ports, asked for at once. protocols 4.9.

use super::layout::{Layout, components, layout};
use super::{AttributeId, MtuCode, Selector, TimeCode};
use crate::types::{Gid, PKey, Rate, Sl};
use crate::wire::{FlowLabel, WireError};

layout! {
    /// The question of GetMulti, before its GIDs; the answer is path records. protocols 4.9.
    pub struct MultiPathRecord, MultiPathRecordView: 24, AttributeId::MULTI_PATH_RECORD;
    /// RawTraffic.
    raw_traffic: bool = 0 [7:7],
    /// FlowLabel.
    flow_label: FlowLabel = 0/4 [27:8],
    /// HopLimit.
    hop_limit: u8 = 3,
    /// Traffic class.
    tclass: u8 = 4,
    /// The way back is the same.
    reversible: bool = 5 [7:7],
    /// How many paths at most.
    numb_path: u8 = 5 [6:0],
    /// P_Key.
    p_key: PKey = 6,
    /// QoSClass.
    qos_class: u16 = 8/2 [15:4],
    /// Service level.
    sl: Sl = 9 [3:0],
    /// How `mtu` is meant.
    mtu_selector: Selector = 10 [7:6],
    /// MTU.
    mtu: MtuCode = 10 [5:0],
    /// How `rate` is meant.
    rate_selector: Selector = 11 [7:6],
    /// Rate.
    rate: Rate = 11 [5:0],
    /// How `packet_life_time` is meant.
    packet_life_time_selector: Selector = 12 [7:6],
    /// How long a packet may be on its way.
    packet_life_time: TimeCode = 12 [5:0],
    /// The most significant 8 bits of ServiceID; see [`MultiPathRecord::service_id`].
    service_id_msb: u8 = 13,
    /// IndependenceSelector.
    independence_selector: u8 = 14 [7:6],
    /// Number of source GIDs, which come first.
    sgid_count: u8 = 15,
    /// Number of destination GIDs.
    dgid_count: u8 = 16,
    /// The other 56 bits of ServiceID.
    service_id_lsb: u64 = 17/7 [55:0],
}

components! { MultiPathRecord:
    RAW_TRAFFIC = 0;
    FLOW_LABEL = 2;
    HOP_LIMIT = 3;
    TCLASS = 4;
    REVERSIBLE = 5;
    NUMB_PATH = 6;
    P_KEY = 7;
    QOS_CLASS = 8;
    SL = 9;
    MTU_SELECTOR = 10;
    MTU = 11;
    RATE_SELECTOR = 12;
    RATE = 13;
    PACKET_LIFE_TIME_SELECTOR = 14;
    PACKET_LIFE_TIME = 15;
    SERVICE_ID = 16 | 21;
    INDEPENDENCE_SELECTOR = 17;
    SGID_COUNT = 19;
    DGID_COUNT = 20;
}

impl MultiPathRecord {
    /// ServiceID.
    pub const fn service_id(&self) -> u64 {
        ((self.service_id_msb as u64) << 56) | (self.service_id_lsb & (u64::MAX >> 8))
    }

    /// Sets both parts of ServiceID.
    pub const fn set_service_id(&mut self, id: u64) {
        self.service_id_msb = (id >> 56) as u8;
        self.service_id_lsb = id & (u64::MAX >> 8);
    }

    /// The sources and the destinations that follow the record in `data`, the data of the whole message.
    pub fn gids<'a>(
        &self,
        data: &'a [u8],
    ) -> Result<
        (
            impl Iterator<Item = Gid> + 'a,
            impl Iterator<Item = Gid> + 'a,
        ),
        WireError,
    > {
        let (sources, destinations) = (usize::from(self.sgid_count), usize::from(self.dgid_count));
        let claimed = Self::SIZE + (sources + destinations) * 16;
        let gids = data.get(Self::SIZE..claimed).ok_or(WireError::Length {
            header: Self::NAME,
            claimed,
            have: data.len(),
        })?;
        let (gids, _) = gids.as_chunks();
        let all = move || gids.iter().copied().map(Gid);
        Ok((all().take(sources), all().skip(sources)))
    }

    /// Writes the record with its counts and the GIDs behind it; says how many bytes that is.
    pub fn write_with(
        &self,
        sources: &[Gid],
        destinations: &[Gid],
        bytes: &mut [u8],
    ) -> Result<usize, WireError> {
        let count = |field, gids: &[Gid]| {
            u8::try_from(gids.len()).map_err(|_| WireError::Field {
                header: Self::NAME,
                field,
                found: gids.len() as u64,
            })
        };
        let record = Self {
            sgid_count: count("SGIDCount", sources)?,
            dgid_count: count("DGIDCount", destinations)?,
            ..*self
        };
        let need = Self::SIZE + (sources.len() + destinations.len()) * 16;
        let have = bytes.len();
        let place = bytes.get_mut(..need).ok_or(WireError::NoSpace {
            header: Self::NAME,
            need,
            have,
        })?;
        record.write(place)?;
        let (places, _) = place
            .get_mut(Self::SIZE..)
            .unwrap_or(&mut [])
            .as_chunks_mut();
        for (place, gid) in places.iter_mut().zip(sources.iter().chain(destinations)) {
            *place = gid.0;
        }
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::types::Mtu;
    use crate::wire::mad::ComponentMask;
    use crate::wire::mad::layout::property::round_trip_tests;
    use std::vec::Vec;

    round_trip_tests!(MultiPathRecord);

    /// protocols 4.9.
    #[test]
    fn the_multi_path_record_lies_as_the_table_says() {
        let mut record = MultiPathRecord {
            raw_traffic: true,
            flow_label: FlowLabel::new(0x1_2345),
            hop_limit: 0x67,
            tclass: 0x89,
            reversible: true,
            numb_path: 2,
            p_key: PKey(0x8001),
            qos_class: 0xabc,
            sl: Sl::new(0xd),
            mtu_selector: Selector::Exactly,
            mtu: Mtu::Mtu2048.into(),
            rate_selector: Selector::LessThan,
            rate: Rate::GBPS_20,
            packet_life_time_selector: Selector::Best,
            packet_life_time: TimeCode(18),
            independence_selector: 1,
            ..MultiPathRecord::default()
        };
        record.set_service_id(0x0102_0304_0506_0708);
        assert_eq!(record.service_id(), 0x0102_0304_0506_0708);
        let bytes = [
            0x81, 0x23, 0x45, 0x67, 0x89, 0x82, 0x80, 0x01, 0xab, 0xcd, 0x84, 0x46, 0xd2, 0x01,
            0x40, 0, 0, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(record.to_bytes(), bytes);
        assert_eq!(MultiPathRecord::from_bytes(&bytes), record);
        assert_eq!(
            MultiPathRecord::SERVICE_ID,
            ComponentMask(1 << 16 | 1 << 21)
        );
    }

    #[test]
    fn the_gids_follow_sources_first() {
        let gids: [Gid; 3] = core::array::from_fn(|i| Gid([i as u8; 16]));
        let mut data = [0xee; 200];
        let record = MultiPathRecord::default();
        let len = record
            .write_with(&gids[..1], &gids[1..], &mut data)
            .unwrap();
        assert_eq!((len, data[15], data[16], data[len]), (72, 1, 2, 0xee));
        let record = MultiPathRecord::read(&data).unwrap();
        let (sources, destinations) = record.gids(&data).unwrap();
        assert_eq!(sources.collect::<Vec<_>>(), gids[..1]);
        assert_eq!(destinations.collect::<Vec<_>>(), gids[1..]);
        let claimed = record.gids(&data[..71]).err();
        let (claimed_bytes, have) = (72, 71);
        assert_eq!(
            claimed,
            Some(WireError::Length {
                header: "MultiPathRecord",
                claimed: claimed_bytes,
                have
            })
        );
        let small = record.write_with(&gids, &gids, &mut data[..100]);
        assert!(matches!(small, Err(WireError::NoSpace { need: 120, .. })));
        let many = record.write_with(&[Gid::NONE; 256], &[], &mut data);
        assert!(matches!(many, Err(WireError::Field { found: 256, .. })));
    }
}
