//! The memory attached to the HCA (DDR, "LAM"): sparse, backed at first touch.
//!
//! Owned by the model's [`Memory`](super::memory::Memory), which knows where on the bus it lies; offsets here count from its start. infinihost
//! 1.2, 6.1.

/// Bytes that are backed together.
const PAGE: usize = 4096;

/// Reads as zero where nothing was written.
pub struct Ddr {
    pages: Box<[Option<Box<[u8; PAGE]>>]>,
}

/// Not all of an access lies within the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// First byte asked for, from the start of the memory.
    pub offset: u64,
    /// Bytes asked for.
    pub len: usize,
}

impl Ddr {
    /// `len` bytes, rounded down to whole pages of 4 KB.
    pub fn new(len: u64) -> Self {
        let pages = (0..len / PAGE as u64).map(|_| None).collect();
        Self { pages }
    }

    /// How large it is, in bytes.
    pub fn len(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), Outside> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Outside { offset, len }),
        }
    }

    /// Copies out of it. On error `data` is as it was.
    pub fn read(&self, offset: u64, mut data: &mut [u8]) -> Result<(), Outside> {
        self.check(offset, data.len())?;
        let mut at = offset;
        while !data.is_empty() {
            let within = at as usize % PAGE;
            let (piece, rest) = data.split_at_mut(data.len().min(PAGE - within));
            match self.pages.get(at as usize / PAGE) {
                Some(Some(page)) => {
                    for (to, from) in piece.iter_mut().zip(page.iter().skip(within)) {
                        *to = *from;
                    }
                }
                _ => piece.fill(0),
            }
            at += piece.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// Copies into it. On error nothing is written.
    pub fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), Outside> {
        self.check(offset, data.len())?;
        let mut at = offset;
        while !data.is_empty() {
            let within = at as usize % PAGE;
            let (piece, rest) = data.split_at(data.len().min(PAGE - within));
            if let Some(page) = self.pages.get_mut(at as usize / PAGE) {
                let page = page.get_or_insert_with(|| Box::new([0; PAGE]));
                for (to, from) in page.iter_mut().skip(within).zip(piece) {
                    *to = *from;
                }
            }
            at += piece.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// Zeroes `len` bytes; whole pages are given back.
    pub fn clear(&mut self, offset: u64, len: u64) -> Result<(), Outside> {
        self.check(offset, len as usize)?;
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let within = at as usize % PAGE;
            let piece = (PAGE - within).min((end - at) as usize);
            if let Some(page) = self.pages.get_mut(at as usize / PAGE) {
                if piece == PAGE {
                    *page = None;
                } else if let Some(page) = page {
                    page.iter_mut()
                        .skip(within)
                        .take(piece)
                        .for_each(|byte| *byte = 0);
                }
            }
            at += piece as u64;
        }
        Ok(())
    }

    /// Forgets everything: what a reset does to memory that nobody refreshes.
    pub fn forget(&mut self) {
        self.pages.fill(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_backed_where_it_was_touched_and_nowhere_else() {
        let mut ddr = Ddr::new(128 << 20);
        ddr.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
        assert_eq!(ddr.pages.iter().flatten().count(), 2);
        let mut data = [0xee; 6];
        ddr.read(0x1ffd, &mut data).unwrap();
        assert_eq!(data, [0, 1, 2, 3, 4, 0]);
        ddr.clear(0x1fff, 0x1001).unwrap();
        assert_eq!(ddr.pages.iter().flatten().count(), 1);
        ddr.read(0x1ffd, &mut data).unwrap();
        assert_eq!(data, [0, 1, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn it_is_an_array_of_bytes_that_ends_where_it_ends(
            stores in prop::collection::vec((0..0x3100_u64, prop::collection::vec(any::<u8>(), 0..70)), 0..30),
            near in any::<bool>(),
        ) {
            let base = if near { 0 } else { u64::MAX - 0x3000 };
            let mut ddr = Ddr::new(0x3000);
            let mut array = vec![0; 0x3000];
            for (offset, data) in &stores {
                let offset = base.saturating_add(*offset);
                let place = usize::try_from(offset).ok().and_then(|at| array.get_mut(at..at.checked_add(data.len())?));
                prop_assert_eq!(ddr.write(offset, data).is_ok(), place.is_some());
                if let Some(place) = place {
                    place.copy_from_slice(data);
                }
            }
            let mut all = vec![0xee; 0x3000];
            ddr.read(0, &mut all).unwrap();
            prop_assert_eq!(all, array);
        }
    }
}
