//! Multicast groups: the table in attached memory, read at each packet. infinihost 3.14, 4.12.

use super::InfiniHost;
use crate::machine::Bus;
use core_ib::Gid;
use hca_abi::infinihost::mgm::Mgm;
use zerocopy::IntoBytes;

/// Most bytes of an entry that a command or a packet looks at.
pub const MAX_ENTRY: usize = size_of::<Mgm>();

/// The bucket of a group among `buckets`: XOR of the eight words of its GID.
pub fn bucket(mgid: [u8; 16], buckets: u32) -> u32 {
    let (words, _) = mgid.as_chunks::<2>();
    let hash = words
        .iter()
        .fold(0, |hash, word| hash ^ u16::from_be_bytes(*word));
    u32::from(hash).checked_rem(buckets).unwrap_or(0)
}

impl InfiniHost {
    /// Where entry `index` lies, and how many of its bytes count.
    pub(super) fn group_entry(&self, index: u32) -> Option<(u64, usize)> {
        let params = self.params()?;
        if index >= params.mc_entries {
            return None;
        }
        let place = u64::from(index) * u64::from(params.mc_entry);
        let at = params.mc_base.wrapping_add(place);
        Some((at, MAX_ENTRY.min(params.mc_entry as usize)))
    }

    /// QPs of this HCA that are attached to a group. A chain that runs in circles ends after as many steps as there are
    /// entries.
    pub(super) fn members(&self, bus: &mut dyn Bus, mgid: Gid) -> Vec<u32> {
        let Some(params) = self.params() else {
            return Vec::new();
        };
        let mut index = bucket(mgid.0, params.mc_buckets);
        for _ in 0..params.mc_entries {
            let Some((at, len)) = self.group_entry(index) else {
                break;
            };
            let mut entry = Mgm::ZERO;
            let bytes = entry.as_mut_bytes().get_mut(..len).unwrap_or_default();
            if self.chip.memory.table_read(bus, at, bytes).is_err() {
                break;
            }
            if entry.gid() == mgid.0 {
                return entry.members().collect();
            }
            index = entry.next();
            if index == 0 {
                break;
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_below_their_number(mgid: [u8; 16], buckets in 1..70_000_u32) {
            prop_assert!(bucket(mgid, buckets) < buckets);
        }
    }
}
