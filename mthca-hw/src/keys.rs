//! How a memory key is made of the index of its MPT entry, and found back in it. infinihost 4.10.
//!
//! An entry holds the *form* of its key: the index, and above it a life number, so that no key comes back soon. In
//! T-mode the form is the key; in M-mode the key is the form, rotated. Sinai is quicker with forms of a certain shape.

use crate::chip::{Chip, Mode};
use hca_abi::infinihost::mpt::{m_index_of_key, m_key_of_index, sinai_index};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rule {
    #[default]
    Plain,
    Rotated,
    Sinai,
}

/// Above the largest table for which Sinai's shape is possible: bit 23 is taken.
const SINAI_LIMIT: u8 = 23;
/// Where the life number of a fast region stands in Sinai's shape.
const SINAI_FAST: u32 = 24;

/// Makes and reads keys. Constant for the life of the HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    rule: Rule,
    log_size: u8,
}

impl Keys {
    /// For an MPT of `1 << log_size` entries.
    pub const fn new(chip: &Chip, log_size: u8) -> Self {
        let rule = match chip.mode {
            Mode::T => Rule::Plain,
            Mode::M if chip.sinai && log_size <= SINAI_LIMIT => Rule::Sinai,
            Mode::M => Rule::Rotated,
        };
        Self { rule, log_size }
    }

    /// INIT_HCA is to be told that all forms have Sinai's shape.
    pub const fn is_sinai(&self) -> bool {
        matches!(self.rule, Rule::Sinai)
    }

    /// The form of entry `index` in its life number `life`.
    #[inline]
    pub const fn form(&self, index: u32, life: u32) -> u32 {
        let form = index | life.unbounded_shl(self.log_size as u32);
        match self.rule {
            Rule::Sinai => sinai_index(form),
            Rule::Plain | Rule::Rotated => form,
        }
    }

    /// The same of a fast region. infinihost 4.11.
    #[inline]
    pub const fn fast_form(&self, index: u32, life: u32) -> u32 {
        match self.rule {
            Rule::Sinai => sinai_index(index) | life << SINAI_FAST,
            Rule::Plain | Rule::Rotated => self.form(index, life),
        }
    }

    /// Mappings that a fast region can have before a key comes again.
    pub const fn fast_lives(&self) -> u32 {
        let bits = match self.rule {
            Rule::Sinai => u32::BITS - SINAI_FAST,
            Rule::Plain | Rule::Rotated => u32::BITS.saturating_sub(self.log_size as u32),
        };
        match 1_u32.checked_shl(bits) {
            Some(keys) => keys - 1,
            None => u32::MAX,
        }
    }

    /// The key of a form.
    #[inline]
    pub const fn key(&self, form: u32) -> u32 {
        match self.rule {
            Rule::Plain => form,
            Rule::Rotated | Rule::Sinai => m_key_of_index(form),
        }
    }

    /// The entry that a key names; whether it has that key now is yet to be asked.
    pub const fn index(&self, key: u32) -> u32 {
        let form = match self.rule {
            Rule::Plain => key,
            Rule::Rotated | Rule::Sinai => m_index_of_key(key),
        };
        form & 1_u32.unbounded_shl(self.log_size as u32).wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const fn chip(mode: Mode, sinai: bool) -> Chip {
        Chip {
            name: "",
            mode,
            sinai,
        }
    }

    #[test]
    fn the_published_keys_come_out() {
        // infinihost 13.1
        let keys = Keys::new(&chip(Mode::M, false), 24);
        assert_eq!(keys.key(keys.form(0x123, 0)), 0x12300);
        assert_eq!(keys.key(keys.form(0x123, 1)), 0x12301);
        let keys = Keys::new(&chip(Mode::M, true), 17);
        assert_eq!(keys.key(keys.form(8, 0)), 0x8000_0800);
        assert!(keys.is_sinai() && keys.fast_lives() == 255);
        let large = Keys::new(&chip(Mode::M, true), 24);
        assert!(!large.is_sinai(), "there is no bit left for the shape");
        let tavor = Keys::new(&chip(Mode::T, false), 17);
        assert_eq!(tavor.key(tavor.form(0x123, 1)), 0x2_0123);
        assert_eq!(tavor.fast_lives(), (1 << 15) - 1);
    }

    #[test]
    fn no_key_of_a_fast_region_comes_again_within_its_lives() {
        for (mode, sinai, log_size) in [
            (Mode::T, false, 20),
            (Mode::M, false, 22),
            (Mode::M, true, 12),
        ] {
            let keys = Keys::new(&chip(mode, sinai), log_size);
            let lives = 0..=keys.fast_lives();
            let all: BTreeSet<u32> = lives
                .clone()
                .map(|life| keys.key(keys.fast_form(77, life)))
                .collect();
            assert_eq!(all.len(), lives.count());
        }
    }

    proptest! {
        #[test]
        fn a_key_names_its_entry_whatever_its_life(
            index: u32, life: u32, log_size in 4..24_u8, m: bool, sinai: bool,
        ) {
            let mode = if m { Mode::M } else { Mode::T };
            let keys = Keys::new(&chip(mode, sinai), log_size);
            let index = index & ((1 << log_size) - 1);
            for form in [keys.form(index, life), keys.fast_form(index, life)] {
                // At 2^23 entries and more Sinai's bit is one of the index.
                prop_assert_eq!(keys.index(keys.key(form)), index);
            }
            if keys.is_sinai() {
                let form = keys.form(index, life);
                prop_assert_eq!((form >> 24, form >> 23 & 1), (0, form >> 3 & 1));
            }
        }
    }
}
