//! Which lane sends next: the arbitration of virtual lanes at an output port. protocols 1.13.1.

use core_ib::wire::mad::VlWeight;
use core_ib::wire::packet::BLOCK;

/// What a subnet manager wrote into a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'t> {
    pub(super) high: &'t [VlWeight],
    pub(super) low: &'t [VlWeight],
    /// LimitOfHighPriority: in units of 4096 bytes; 0 is one packet, 255 no bound.
    pub(super) limit: u8,
}

/// Place in one of the two lists.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The entry whose turn it is; none at the beginning.
    entry: Option<usize>,
    /// Bytes that the entry may still send; 0 if it is used up.
    left: i64,
}

/// Where a port is in its lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Arbiter {
    high: Turn,
    low: Turn,
    /// Bytes of high priority since low priority last had its turn.
    high_sent: i64,
    /// Lane that sent last, where there are no tables.
    last: u8,
}

/// Bytes that one unit of LimitOfHighPriority stands for.
const LIMIT_UNIT: i64 = 4096;

impl Turn {
    /// The next lane of `list` among `ready`, a set of lanes: the entry whose turn it is as long as its weight lasts, then
    /// the others in their order. Moves to the entry.
    fn next(&mut self, list: &[VlWeight], ready: u16) -> Option<u8> {
        let usable = |entry: &VlWeight| entry.weight != 0 && ready & 1 << (entry.vl & 0xf) != 0;
        let unfinished = self.entry.filter(|_| self.left > 0);
        if let Some(entry) = unfinished.and_then(|entry| list.get(entry))
            && usable(entry)
        {
            return Some(entry.vl);
        }
        let start = unfinished
            .or(self.entry.map(|entry| entry + 1))
            .unwrap_or(0);
        let (before, after) = list.split_at_checked(start).unwrap_or((list, &[]));
        let after = after
            .iter()
            .enumerate()
            .map(|(i, entry)| (start + i, entry));
        let before = before.iter().enumerate();
        let (index, entry) = after.chain(before).find(|(_, entry)| usable(entry))?;
        self.entry = Some(index);
        self.left = i64::from(entry.weight) * BLOCK as i64;
        Some(entry.vl)
    }
}

impl Arbiter {
    /// The lane that sends next, of those in the set `ready`; none if none may. VL15 is not its business. `bytes` says how
    /// long the packet of a lane is.
    pub(super) fn choose(
        &mut self,
        tables: Option<Tables<'_>>,
        ready: u16,
        bytes: impl Fn(u8) -> usize,
    ) -> Option<u8> {
        let Some(tables) = tables else {
            let after = (1..=15).map(|step| (self.last + step) % 15);
            let vl = after.into_iter().find(|vl| ready & 1 << vl != 0)?;
            self.last = vl;
            return Some(vl);
        };
        let names = |list: &[VlWeight]| {
            let lanes = list.iter().filter(|entry| entry.weight != 0);
            lanes.fold(0_u16, |set, entry| set | 1 << (entry.vl & 0xf))
        };
        let low_waits = ready & names(tables.low) != 0;
        let bounded = low_waits && tables.limit != 255;
        let spent = match tables.limit {
            0 => self.high_sent > 0,
            limit => self.high_sent >= i64::from(limit) * LIMIT_UNIT,
        };
        if !(bounded && spent)
            && let Some(vl) = self.high.next(tables.high, ready)
        {
            let len = bytes(vl) as i64;
            self.high.left -= len;
            self.high_sent = if low_waits { self.high_sent + len } else { 0 };
            return Some(vl);
        }
        if let Some(vl) = self.low.next(tables.low, ready) {
            self.low.left -= bytes(vl) as i64;
            self.high_sent = 0;
            return Some(vl);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(list: &[(u8, u8)]) -> Vec<VlWeight> {
        let entry = |&(vl, weight): &(u8, u8)| VlWeight { vl, weight };
        list.iter().map(entry).collect()
    }

    /// Lanes in the order in which they send packets of `len` bytes, all of them always ready.
    fn order(high: &[(u8, u8)], low: &[(u8, u8)], limit: u8, len: usize, count: usize) -> Vec<u8> {
        let (high, low) = (entries(high), entries(low));
        let tables = Tables {
            high: &high,
            low: &low,
            limit,
        };
        let mut arbiter = Arbiter::default();
        let chosen = (0..count).map(|_| arbiter.choose(Some(tables), 0x7fff, |_| len));
        chosen.map(|vl| vl.unwrap()).collect()
    }

    #[test]
    fn lanes_share_by_weight_and_in_turn() {
        let order = order(&[], &[(0, 2), (3, 1), (1, 0)], 0, 64, 7);
        assert_eq!(order, [0, 0, 3, 0, 0, 3, 0]);
    }

    #[test]
    fn a_packet_that_was_begun_is_finished_beyond_its_weight() {
        let order = order(&[], &[(0, 3), (1, 1)], 0, 128, 6);
        assert_eq!(order, [0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn high_priority_goes_first_up_to_its_limit() {
        let one_packet = order(&[(1, 255)], &[(0, 1)], 0, 64, 4);
        assert_eq!(one_packet, [1, 0, 1, 0]);
        let two_units = order(&[(1, 255)], &[(0, 1)], 2, 4096, 6);
        assert_eq!(two_units, [1, 1, 0, 1, 1, 0]);
        let unbounded = order(&[(1, 255)], &[(0, 1)], 255, 4096, 40);
        assert_eq!(unbounded, [1; 40]);
    }

    #[test]
    fn high_priority_alone_is_not_bounded() {
        let high = entries(&[(1, 1)]);
        let low = entries(&[(0, 1)]);
        let tables = Tables {
            high: &high,
            low: &low,
            limit: 0,
        };
        let mut arbiter = Arbiter::default();
        for _ in 0..5 {
            assert_eq!(arbiter.choose(Some(tables), 1 << 1, |_| 64), Some(1));
        }
    }

    #[test]
    fn a_lane_in_no_list_does_not_send() {
        let low = entries(&[(0, 1)]);
        let tables = Tables {
            high: &[],
            low: &low,
            limit: 0,
        };
        assert_eq!(
            Arbiter::default().choose(Some(tables), 1 << 2, |_| 64),
            None
        );
    }

    #[test]
    fn without_tables_all_lanes_take_turns() {
        let mut arbiter = Arbiter::default();
        let ready = 1 << 0 | 1 << 4 | 1 << 14;
        let order: Vec<_> = (0..6)
            .map(|_| arbiter.choose(None, ready, |_| 64))
            .collect();
        assert_eq!(order, [4, 14, 0, 4, 14, 0].map(Some));
    }

    proptest! {
        #[test]
        fn over_time_each_lane_gets_the_share_of_its_weight(
            weights in prop::collection::vec(1..20_u8, 2..6), len in 32..600_usize,
        ) {
            let low: Vec<_> = (0..).zip(weights.iter().copied()).collect();
            let rounds = 400 * low.len();
            let order = order(&[], &low, 0, len, rounds);
            let of = |vl| order.iter().filter(|&&other| other == vl).count();
            // Each turn of an entry sends as many packets as its weight begins.
            let turn = |weight: u8| (usize::from(weight) * 64).div_ceil(len);
            let all: usize = weights.iter().map(|&weight| turn(weight)).sum();
            for (vl, weight) in low {
                let expected = rounds * turn(weight) / all;
                let got = of(vl);
                prop_assert!(got.abs_diff(expected) <= turn(weight), "VL{vl}: {got} of {expected}");
            }
        }

        #[test]
        fn what_is_chosen_is_ready_and_listed(
            high in prop::collection::vec((0..16_u8, any::<u8>()), 0..8),
            low in prop::collection::vec((0..16_u8, any::<u8>()), 0..8),
            limit: u8, ready in prop::collection::vec(0..0x8000_u16, 1..50),
        ) {
            let (high, low) = (entries(&high), entries(&low));
            let tables = Tables { high: &high, low: &low, limit };
            let listed = |vl| high.iter().chain(&low).any(|e| e.vl == vl && e.weight != 0);
            let mut arbiter = Arbiter::default();
            for ready in ready {
                match arbiter.choose(Some(tables), ready, |_| 300) {
                    Some(vl) => prop_assert!(ready & 1 << vl != 0 && listed(vl)),
                    None => prop_assert!((0..15).all(|vl| ready & 1 << vl == 0 || !listed(vl))),
                }
            }
        }
    }
}
