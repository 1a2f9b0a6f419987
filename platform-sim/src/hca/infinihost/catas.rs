//! The catastrophic error buffer: all zero while all is well. infinihost 2.6.

use super::regs::CATAS_DWORDS;
use hca_abi::infinihost::regs::CatasKind;

/// The dwords that a driver looks at every few seconds.
#[derive(Clone, Debug, Default)]
pub struct Catas {
    dwords: [u32; CATAS_DWORDS],
}

impl Catas {
    /// Dword `index`, as a driver reads it.
    pub fn read(&self, index: usize) -> u32 {
        self.dwords.get(index).copied().unwrap_or(0)
    }

    /// From now on the HCA is broken in this way. The first cause stays.
    pub fn raise(&mut self, kind: CatasKind) {
        if !self.is_raised() {
            self.dwords[0] = u32::from(kind.0) << 24;
            self.dwords[1] = 1;
        }
    }

    /// Is the HCA broken?
    pub fn is_raised(&self) -> bool {
        self.dwords.iter().any(|&dword| dword != 0)
    }

    /// All is well again: after a reset.
    pub fn clear(&mut self) {
        self.dwords = [0; CATAS_DWORDS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stands_in_the_top_byte_until_a_reset() {
        let mut catas = Catas::default();
        assert!(!catas.is_raised());
        catas.raise(CatasKind::INTERNAL);
        assert!(catas.is_raised(), "a zero top byte needs another dword");
        catas.clear();
        catas.raise(CatasKind::UPLINK);
        catas.raise(CatasKind::DDR);
        assert_eq!(catas.read(0), 0x0300_0000);
        assert_eq!(catas.read(CATAS_DWORDS), 0);
    }
}
