//! What is free of DMA memory. The account is kept beside the memory and not in it: the device may write there.

use std::collections::BTreeMap;

/// The least that is given out.
pub(crate) const PAGE: usize = 4096;

/// A span that lies in one piece for the processor and for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where the processor sees it.
    pub at: usize,
    /// Where the device sees it.
    pub bus: u64,
    /// Bytes.
    pub len: usize,
}

/// See the module. All numbers are multiples of [`PAGE`].
#[derive(Debug)]
pub(crate) struct Arena {
    spans: Vec<Span>,
    /// Free runs, none over the end of a span: where each begins, and its length.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// Of spans that do not overlap. Those that follow each other both ways are one.
    pub fn new(parts: impl IntoIterator<Item = Span>) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        for part in parts {
            match spans.last_mut() {
                Some(last)
                    if last.at + last.len == part.at && last.bus + last.len as u64 == part.bus =>
                {
                    last.len += part.len;
                }
                _ => spans.push(part),
            }
        }
        let free = spans.iter().map(|span| (span.at, span.len)).collect();
        Self { spans, free }
    }

    /// Where the device sees `len` bytes, if they lie in one span.
    pub fn bus(&self, at: usize, len: usize) -> Option<u64> {
        let span = self.span(at)?;
        let offset = at - span.at;
        (span.len - offset >= len).then(|| span.bus.wrapping_add(offset as u64))
    }

    fn span(&self, at: usize) -> Option<&Span> {
        let holds = |span: &&Span| at >= span.at && at - span.at < span.len;
        self.spans.iter().find(holds)
    }

    /// Takes `len` bytes, rounded up to whole pages, at a multiple of `align`, a power of two, both ways.
    pub fn take(&mut self, len: usize, align: usize) -> Option<(usize, u64)> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let align = align.max(PAGE);
        let fits = |(&start, &room): (&usize, &usize)| {
            let at = start.checked_next_multiple_of(align)?;
            let bus = self.bus(at, len)?;
            let skipped = at - start;
            (room >= skipped && room - skipped >= len && bus & (align as u64 - 1) == 0)
                .then_some((start, room, at, bus))
        };
        let (start, room, at, bus) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        let skipped = at - start;
        let rest = room - skipped - len;
        if skipped > 0 {
            self.free.insert(start, skipped);
        }
        if rest > 0 {
            self.free.insert(at + len, rest);
        }
        Some((at, bus))
    }

    /// Takes back what [`take`](Self::take) gave for `len`. What is free already, or was never here, stays as it is.
    pub fn give(&mut self, at: usize, len: usize) {
        let Some(len) = len.max(1).checked_next_multiple_of(PAGE) else {
            return;
        };
        let Some(&Span { at: first, .. }) = self.span(at) else {
            return;
        };
        let before = self.free.range(..=at).next_back();
        let before = before.map(|(&start, &room)| (start, room));
        let after = self
            .free
            .range(at..)
            .next()
            .map(|(&start, &room)| (start, room));
        if before.is_some_and(|(start, room)| start + room > at)
            || after.is_some_and(|(start, _)| start < at + len)
            || self.bus(at, len).is_none()
        {
            return;
        }
        let (mut start, mut room) = (at, len);
        if let Some((below, size)) = before
            && below + size == at
            && below >= first
        {
            self.free.remove(&below);
            (start, room) = (below, room + size);
        }
        if let Some((above, size)) = after
            && above == at + len
            && self.bus(at, len + size).is_some()
        {
            self.free.remove(&above);
            room += size;
        }
        self.free.insert(start, room);
    }

    /// Bytes that are free.
    pub fn free(&self) -> usize {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn span(at: usize, bus: u64, len: usize) -> Span {
        Span { at, bus, len }
    }

    /// Three huge pages, of which the second and the third are neighbours both ways.
    fn arena() -> Arena {
        Arena::new([
            span(64 * MIB, 0x4000_0000, 2 * MIB),
            span(66 * MIB, 0x7000_0000, 2 * MIB),
            span(68 * MIB, 0x7020_0000, 2 * MIB),
        ])
    }

    #[test]
    fn memory_over_two_pages_is_given_out_only_where_they_are_neighbours_for_the_device() {
        let mut arena = arena();
        assert_eq!(arena.take(3 * MIB, PAGE), Some((66 * MIB, 0x7000_0000)));
        assert_eq!(arena.take(3 * MIB, PAGE), None);
        assert_eq!(arena.take(2 * MIB, PAGE), Some((64 * MIB, 0x4000_0000)));
        assert_eq!(arena.bus(65 * MIB, MIB), Some(0x4010_0000));
        assert_eq!(arena.bus(65 * MIB, MIB + 1), None);
        assert_eq!(arena.bus(70 * MIB, 1), None);
    }

    #[test]
    fn memory_is_not_given_out_where_the_two_address_spaces_disagree_on_the_alignment() {
        let mut arena = Arena::new([span(64 * MIB, 0x1000, MIB)]);
        assert_eq!(arena.take(1, 2 * PAGE), None);
        assert_eq!(arena.take(1, PAGE), Some((64 * MIB, 0x1000)));
    }

    #[test]
    fn what_is_given_back_twice_is_free_once() {
        let mut arena = arena();
        let before = arena.free();
        let (at, _) = arena.take(100, 1).unwrap();
        arena.give(at, 100);
        arena.give(at, 100);
        arena.give(0, 100);
        assert_eq!(arena.free(), before);
    }

    proptest! {
        #[test]
        fn no_byte_is_given_out_twice_and_all_come_back(
            wishes in prop::collection::vec((1usize..300_000, 12u32..22, any::<bool>()), 1..60)
        ) {
            let mut arena = arena();
            let whole = arena.free();
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (len, align, give) in wishes {
                let align = 1 << align;
                if let Some((at, bus)) = arena.take(len, align) {
                    prop_assert_eq!(at % align, 0);
                    prop_assert_eq!(bus % align as u64, 0);
                    prop_assert_eq!(arena.bus(at, len), Some(bus));
                    let apart = |&(other, size): &(usize, usize)| at + len <= other || other + size <= at;
                    prop_assert!(taken.iter().all(apart));
                    taken.push((at, len));
                }
                if give && !taken.is_empty() {
                    let (at, len) = taken.swap_remove(taken.len() / 2);
                    arena.give(at, len);
                }
            }
            for (at, len) in taken {
                arena.give(at, len);
            }
            prop_assert_eq!(arena.free(), whole);
            prop_assert_eq!(arena.take(4 * MIB, PAGE).map(|(at, _)| at), Some(66 * MIB));
        }
    }
}
