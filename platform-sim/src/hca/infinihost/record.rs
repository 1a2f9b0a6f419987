//! Doorbell records: counters that M-mode software keeps in host memory, behind the UAR context of its page, for the HCA
//! to look at when it needs them. infinihost 2.10.

use super::chip::Chip;
use crate::machine::Bus;
use hca_abi::infinihost::doorbell::DoorbellRecord;
use zerocopy::IntoBytes;

/// Where the UAR contexts lie, as INIT_HCA placed them. There is none in T-mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    /// Of the context of UAR 0.
    base: u64,
    /// Bytes of a context.
    len: u64,
}

/// A record by its owner's page and its place there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordId {
    /// UAR page.
    pub uar: u32,
    /// Place in its context.
    pub index: u32,
}

impl Records {
    /// Contexts of `len` bytes from `base` on.
    pub const fn new(base: u64, len: u64) -> Self {
        Self { base, len }
    }

    /// Is there such a place in a context? One beyond would be another process's.
    pub const fn has(&self, index: u32) -> bool {
        (index as u64) < self.len / size_of::<DoorbellRecord>() as u64
    }

    fn place(&self, id: RecordId) -> Option<u64> {
        let within = u64::from(id.index) * size_of::<DoorbellRecord>() as u64;
        let context = u64::from(id.uar).checked_mul(self.len)?;
        self.has(id.index)
            .then(|| self.base.wrapping_add(context).wrapping_add(within))
    }
}

impl Chip {
    /// What a record says now. Pages of records come and go: one that is not mapped reads as zero.
    pub fn record(&self, bus: &mut dyn Bus, id: RecordId) -> DoorbellRecord {
        let mut record = DoorbellRecord::ZERO;
        let place = self.records.place(id);
        let read = place.map(|at| self.memory.table_read(bus, at, record.as_mut_bytes()));
        match read {
            Some(Ok(())) => record,
            _ => DoorbellRecord::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_lies_in_the_context_of_its_page_or_nowhere() {
        let records = Records::new(0x1000_0000, 0x4_0000);
        let place = |uar, index| records.place(RecordId { uar, index });
        assert_eq!(place(0, 0), Some(0x1000_0000));
        assert_eq!(place(2, 513), Some(0x1008_0000 + 0x1008));
        assert_eq!(place(2, 0x7fff), Some(0x100b_fff8));
        assert_eq!(place(2, 0x8000), None);
        assert_eq!(Records::default().place(RecordId::default()), None);
    }
}
