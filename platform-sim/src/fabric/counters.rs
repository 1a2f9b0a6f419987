//! What a port counts, and how the two performance attributes show it.
//!
//! Each counter is one number of 64 bits. PortCounters and PortCountersExtended each have a zero of their own in it, so that
//! a Set of one leaves the other alone; the small fields stop at their maximum. protocols 2.18, 3.13.2.

/// One counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    total: u64,
    /// `total` where PortCounters shows 0.
    zero: u64,
    /// `total` where PortCountersExtended shows 0.
    zero_extended: u64,
}

impl Counter {
    /// Counts `more`.
    pub const fn add(&mut self, more: u64) {
        self.total = self.total.wrapping_add(more);
    }

    /// Counts one.
    pub const fn bump(&mut self) {
        self.add(1);
    }

    /// Everything since the node was made, whatever was set meanwhile.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// What PortCounters shows in a field of `bits` bits (at most 32).
    pub const fn shown(&self, bits: u32) -> u32 {
        let count = self.total.wrapping_sub(self.zero);
        let max = (1 << bits) - 1;
        if count > max {
            max as u32
        } else {
            count as u32
        }
    }

    /// Makes PortCounters show `value`.
    pub const fn set(&mut self, value: u32) {
        self.zero = self.total.wrapping_sub(value as u64);
    }

    /// What PortCountersExtended shows.
    pub const fn extended(&self) -> u64 {
        self.total.wrapping_sub(self.zero_extended)
    }

    /// Makes PortCountersExtended show `value`.
    pub const fn set_extended(&mut self, value: u64) {
        self.zero_extended = self.total.wrapping_sub(value);
    }
}

/// All counters of a port. Who moves packets through the port counts; the agents only show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Minor link errors.
    pub symbol_errors: Counter,
    /// Link error recoveries that succeeded.
    pub link_error_recovery: Counter,
    /// Links lost.
    pub link_downed: Counter,
    /// Malformed, bad VCRC, wrong lane, buffer overrun.
    pub rcv_errors: Counter,
    /// Marked bad by the sender.
    pub rcv_remote_physical_errors: Counter,
    /// No way on from here.
    pub rcv_switch_relay_errors: Counter,
    /// Could not be sent: port not active, no lane, too long, too old.
    pub xmit_discards: Counter,
    /// Not allowed out.
    pub xmit_constraint_errors: Counter,
    /// Not allowed in.
    pub rcv_constraint_errors: Counter,
    /// Local link integrity errors.
    pub local_link_integrity_errors: Counter,
    /// More packets than credits.
    pub excessive_buffer_overrun_errors: Counter,
    /// General management packets without a receive request.
    pub qp1_dropped: Counter,
    /// Subnet management packets without a buffer.
    pub vl15_dropped: Counter,
    /// Words sent, LRH to ICRC, all lanes but 15.
    pub xmit_data: Counter,
    /// Words received.
    pub rcv_data: Counter,
    /// Packets sent, all lanes but 15.
    pub xmit_pkts: Counter,
    /// Packets received.
    pub rcv_pkts: Counter,
    /// Ticks (here: nanoseconds) with something to send and no credit.
    pub xmit_wait: Counter,
    /// Unicast packets sent.
    pub unicast_xmit_pkts: Counter,
    /// Unicast packets received.
    pub unicast_rcv_pkts: Counter,
    /// Multicast packets sent.
    pub multicast_xmit_pkts: Counter,
    /// Multicast packets received.
    pub multicast_rcv_pkts: Counter,
}

impl PortCounts {
    /// Counts a data packet of `words` words (PktLen) that left.
    pub const fn sent(&mut self, words: u16, multicast: bool) {
        self.xmit_data.add(words as u64);
        self.xmit_pkts.bump();
        if multicast {
            self.multicast_xmit_pkts.bump();
        } else {
            self.unicast_xmit_pkts.bump();
        }
    }

    /// Counts a data packet of `words` words (PktLen) that came.
    pub const fn received(&mut self, words: u16, multicast: bool) {
        self.rcv_data.add(words as u64);
        self.rcv_pkts.bump();
        if multicast {
            self.multicast_rcv_pkts.bump();
        } else {
            self.unicast_rcv_pkts.bump();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_field_stops_at_its_maximum_and_the_large_one_does_not() {
        let mut counter = Counter::default();
        counter.add(300);
        assert_eq!((counter.shown(4), counter.shown(8)), (15, 255));
        assert_eq!((counter.shown(16), counter.extended()), (300, 300));
        counter.add(u64::from(u32::MAX));
        assert_eq!(counter.shown(32), u32::MAX);
    }

    #[test]
    fn setting_one_view_leaves_the_other_alone() {
        let mut counter = Counter::default();
        counter.add(10);
        counter.set(0);
        assert_eq!((counter.shown(16), counter.extended()), (0, 10));
        counter.set_extended(1000);
        counter.bump();
        assert_eq!((counter.shown(16), counter.extended()), (1, 1001));
        assert_eq!(counter.total(), 11);
    }
}
