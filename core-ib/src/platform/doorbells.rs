//! A page of doorbells: registers that are stored to for every batch of work. That each of them lies in the page is known
//! when the program is compiled, so that ringing one is the store alone.

use super::{Caching, Platform, Registers, Result};

/// One page, mapped uncached, so that doorbells arrive in program order.
#[derive(Debug)]
pub struct DoorbellPage<R> {
    /// [`DoorbellPage::LEN`] bytes, as the only maker asked for.
    registers: R,
}

impl<R: Registers> DoorbellPage<R> {
    /// Bytes of the page.
    pub const LEN: usize = 4096;

    /// Maps the page that begins `at` bytes into BAR `bar`. Set-up only.
    ///
    /// # Errors
    ///
    /// Those of [`Platform::map`].
    pub fn map<P: Platform<Registers = R>>(machine: &P, bar: u8, at: u64) -> Result<Self> {
        let registers = machine.map(bar, at, Self::LEN, Caching::Uncached)?;
        Ok(Self { registers })
    }

    /// Stores 64 bits, big-endian, at `OFFSET` bytes (a multiple of 8) of the page. Any context.
    #[inline(always)]
    pub fn ring<const OFFSET: usize>(&self, value: u64) {
        const {
            assert!(
                OFFSET.is_multiple_of(8) && OFFSET < Self::LEN,
                "no doorbell of the page"
            )
        };
        // SAFETY: `map` asked for `LEN` bytes and the platform gave as many; `OFFSET` is a multiple of 8 among them.
        unsafe { self.registers.write_be64_inside(OFFSET, value) };
    }
}
