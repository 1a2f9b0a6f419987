//! BAR 0 decoded: which register an offset is. infinihost 2.1.
//!
//! All registers are 32-bit words, big-endian on the bus. Register pairs of 64 bits are two of them, upper half first.

use super::variant::Mode;
use hca_abi::infinihost::regs;

/// M-mode: arms EQs, a bit each. QUERY_FW tells its address. infinihost 2.1.
pub const EQ_ARM: u64 = 0xf_0200;
/// M-mode: consumer counters of EQs. QUERY_FW tells its address.
pub const EQ_SET_CI: u64 = 0xf_0400;
/// Catastrophic error buffer. QUERY_FW tells its address.
pub const CATAS: u64 = 0xf_0800;
/// Its size in dwords.
pub const CATAS_DWORDS: usize = 16;

/// Which half of a register of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Bits 63:32, at the lower address.
    Upper,
    /// Bits 31:0.
    Lower,
}

impl Half {
    /// This half of `value`.
    pub const fn of(self, value: u64) -> u32 {
        match self {
            Self::Upper => (value >> 32) as u32,
            Self::Lower => value as u32,
        }
    }

    /// `value` as this half, the other zero.
    pub const fn place(self, value: u32) -> u64 {
        match self {
            Self::Upper => (value as u64) << 32,
            Self::Lower => value as u64,
        }
    }
}

/// A dword of BAR 0 that does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Dword 0 to 6 of the command block.
    Hcr(usize),
    /// T: event cause.
    Ecr(Half),
    /// T: clears event cause.
    ClearEcr(Half),
    /// Releases interrupt pins.
    ClearInt(Half),
    /// M: arms EQs.
    EqArm(Half),
    /// M: consumer counter of an EQ.
    EqSetCi(u8),
    /// Software reset.
    Reset,
    /// Dword of the catastrophic error buffer.
    Catas(usize),
}

impl Register {
    /// The register whose dword is at `offset`, a multiple of 4.
    pub fn at(mode: Mode, offset: u64) -> Option<Self> {
        const HCR_END: usize = regs::HCR + regs::HCR_LEN;
        const CLR_INT_LOW: usize = regs::CLR_INT + 4;
        const CATAS_START: usize = CATAS as usize;
        const CATAS_END: usize = CATAS_START + CATAS_DWORDS * 4;
        let offset = usize::try_from(offset).ok()?;
        Some(match offset {
            regs::HCR..HCR_END => Self::Hcr((offset - regs::HCR) / 4),
            regs::CLR_INT => Self::ClearInt(Half::Upper),
            CLR_INT_LOW => Self::ClearInt(Half::Lower),
            regs::RESET => Self::Reset,
            CATAS_START..CATAS_END => Self::Catas((offset - CATAS_START) / 4),
            _ => return Self::of_events(mode, offset),
        })
    }

    /// Those that make events known: each mode has its own.
    fn of_events(mode: Mode, offset: usize) -> Option<Self> {
        const ARM_HIGH: usize = EQ_ARM as usize;
        const ARM_LOW: usize = ARM_HIGH + 4;
        const CI_START: usize = EQ_SET_CI as usize;
        const CI_END: usize = CI_START + regs::EQ_SET_CI_ENTRIES * regs::EQ_SET_CI_STRIDE;
        Some(match (mode, offset) {
            (Mode::T, regs::ECR_HIGH) => Self::Ecr(Half::Upper),
            (Mode::T, regs::ECR_LOW) => Self::Ecr(Half::Lower),
            (Mode::T, regs::CLR_ECR_HIGH) => Self::ClearEcr(Half::Upper),
            (Mode::T, regs::CLR_ECR_LOW) => Self::ClearEcr(Half::Lower),
            (Mode::M, ARM_HIGH) => Self::EqArm(Half::Upper),
            (Mode::M, ARM_LOW) => Self::EqArm(Half::Lower),
            (Mode::M, CI_START..CI_END) if offset.is_multiple_of(regs::EQ_SET_CI_STRIDE) => {
                Self::EqSetCi(((offset - CI_START) / regs::EQ_SET_CI_STRIDE) as u8)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registers_are_where_the_reference_says_and_nowhere_else() {
        let registers = [
            (0x8_067c, None),
            (0x8_0680, Some(Register::Hcr(0))),
            (0x8_0698, Some(Register::Hcr(6))),
            (0x8_069c, None),
            (0x8_0700, Some(Register::Ecr(Half::Upper))),
            (0x8_0704, Some(Register::Ecr(Half::Lower))),
            (0x8_0708, Some(Register::ClearEcr(Half::Upper))),
            (0x8_070c, Some(Register::ClearEcr(Half::Lower))),
            (0xf_0010, Some(Register::Reset)),
            (0xf_00d8, Some(Register::ClearInt(Half::Upper))),
            (0xf_00dc, Some(Register::ClearInt(Half::Lower))),
            (0xf_0800, Some(Register::Catas(0))),
            (0xf_083c, Some(Register::Catas(15))),
            (0xf_0840, None),
        ];
        for (offset, register) in registers {
            assert_eq!(Register::at(Mode::T, offset), register, "{offset:#x}");
        }
        let all = |mode| {
            let offsets = (0..0x10_0000).step_by(4);
            let registers = offsets.filter_map(|offset| Register::at(mode, offset));
            registers.count()
        };
        assert_eq!(all(Mode::T), 7 + 4 + 2 + 1 + 16);
        assert_eq!(all(Mode::M), 7 + 2 + 64 + 2 + 1 + 16);
    }

    #[test]
    fn m_mode_has_other_registers_for_events() {
        let at = |offset| Register::at(Mode::M, offset);
        assert_eq!(at(0x8_0704), None);
        assert_eq!(at(0xf_0204), Some(Register::EqArm(Half::Lower)));
        assert_eq!(at(0xf_0400), Some(Register::EqSetCi(0)));
        assert_eq!(at(0xf_0404), None);
        assert_eq!(at(0xf_05f8), Some(Register::EqSetCi(63)));
    }
}
