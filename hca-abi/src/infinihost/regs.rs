//! The registers of BAR 0 and the doorbell page of BAR 2. infinihost 2.
//!
//! Offsets are bytes; registers are big-endian and take aligned 32-bit accesses only. Those that move (M-mode) are told
//! by QUERY_FW, see [`fw`](super::fw).

use super::cmd::{CmdStatus, Opcode};

/// Length of BAR 0: exactly 1 MB.
pub const BAR0_LEN: u64 = 0x10_0000;

/// The command register block, [`HCR_LEN`] bytes.
pub const HCR: usize = 0x8_0680;
/// Seven dwords.
pub const HCR_LEN: usize = 0x1c;
/// Input parameter: an immediate, or the bus address of the input mailbox. High dword.
pub const HCR_IN_PARAM_HIGH: usize = HCR;
/// Input parameter, low dword.
pub const HCR_IN_PARAM_LOW: usize = HCR + 0x04;
/// Input modifier.
pub const HCR_INPUT_MODIFIER: usize = HCR + 0x08;
/// Output parameter: the bus address of the output mailbox; after completion, an immediate result. High dword.
pub const HCR_OUT_PARAM_HIGH: usize = HCR + 0x0c;
/// Output parameter, low dword.
pub const HCR_OUT_PARAM_LOW: usize = HCR + 0x10;
/// Bits 31:16 hold the token that an event-driven command's EQE repeats; see [`token_dword`].
pub const HCR_TOKEN: usize = HCR + 0x14;
/// [`HcrControl`]; written last.
pub const HCR_CONTROL: usize = HCR + 0x18;

/// Event cause of EQs 63 to 32; T-mode, pin interrupts only. Bit n of the 64 is EQ n.
pub const ECR_HIGH: usize = 0x8_0700;
/// Event cause of EQs 31 to 0.
pub const ECR_LOW: usize = 0x8_0704;
/// Write one to clear [`ECR_HIGH`].
pub const CLR_ECR_HIGH: usize = 0x8_0708;
/// Write one to clear [`ECR_LOW`].
pub const CLR_ECR_LOW: usize = 0x8_070c;

/// Interrupt clear, 64 bits, T-mode (M-mode: where QUERY_FW says). A one in bit p releases interrupt pin p.
pub const CLR_INT: usize = 0xf_00d8;

/// Software reset.
pub const RESET: usize = 0xf_0010;
/// What is written there.
pub const RESET_VALUE: u32 = 1;

/// Distance of two entries of the M-mode EQ_SET_CI table; the counter is the first dword of an entry.
pub const EQ_SET_CI_STRIDE: usize = 8;
/// Entries of the EQ_SET_CI table.
pub const EQ_SET_CI_ENTRIES: usize = 64;

/// Doorbells within a UAR page (infinihost 2.7).
pub mod uar {
    /// RD send, 16 bytes; used by nobody.
    pub const RD_SEND: usize = 0x00;
    /// Send, both modes.
    pub const SEND: usize = 0x10;
    /// Receive and SRQ, T-mode.
    pub const RECEIVE: usize = 0x18;
    /// CQ: both modes; M-mode arms only.
    pub const CQ: usize = 0x20;
    /// EQ, T-mode, of a privileged UAR.
    pub const EQ: usize = 0x28;
}

/// The dword at [`HCR_TOKEN`] for `token`.
pub const fn token_dword(token: u16) -> u32 {
    (token as u32) << 16
}

/// The token in the dword at [`HCR_TOKEN`].
pub const fn token_of(dword: u32) -> u16 {
    (dword >> 16) as u16
}

/// The last dword of the HCR: what to do, who owns the block, how it ended. infinihost 2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HcrControl {
    /// Of the device's making; meaningful once [`go`](Self::go) is clear.
    pub status: CmdStatus,
    /// The block belongs to the device.
    pub go: bool,
    /// Completion is to be told by an EQE.
    pub event: bool,
    /// Four bits.
    pub opcode_modifier: u8,
    /// Twelve bits.
    pub opcode: Opcode,
}

impl HcrControl {
    /// The bit that hands the block to the device.
    pub const GO: u32 = 1 << 23;

    /// What software writes to post a command.
    pub const fn post(opcode: Opcode, opcode_modifier: u8, event: bool) -> Self {
        Self {
            status: CmdStatus::OK,
            go: true,
            event,
            opcode_modifier,
            opcode,
        }
    }

    /// As a register value.
    pub const fn encode(self) -> u32 {
        (self.status.0 as u32) << 24
            | (self.go as u32) << 23
            | (self.event as u32) << 22
            | (self.opcode_modifier as u32 & 0xf) << 12
            | self.opcode.0 as u32 & 0xfff
    }

    /// From a register value.
    pub const fn decode(dword: u32) -> Self {
        Self {
            status: CmdStatus((dword >> 24) as u8),
            go: dword & Self::GO != 0,
            event: dword >> 22 & 1 != 0,
            opcode_modifier: (dword >> 12 & 0xf) as u8,
            opcode: Opcode((dword & 0xfff) as u16),
        }
    }
}

number_set! {
    /// Top byte of the first dword of the catastrophic error buffer, once any of its dwords is not zero. infinihost 2.6.
    pub struct CatasKind(u8) {
        /// Internal error.
        INTERNAL = 0;
        /// Uplink (host bus) error.
        UPLINK = 3;
        /// DDR data error.
        DDR = 4;
        /// Internal parity error.
        PARITY = 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_values_of_the_last_hcr_dword() {
        // infinihost 13.4
        let post = |opcode, modifier, event| HcrControl::post(opcode, modifier, event).encode();
        assert_eq!(post(Opcode::QUERY_FW, 0, false), 0x0080_0004);
        assert_eq!(post(Opcode::MAD_IFC, 3, false), 0x0080_3024);
        assert_eq!(post(Opcode::NOP, 0x0, true), 0x00c0_0031);
        assert_eq!(post(Opcode::MAP_ICM, 0, true), 0x00c0_0ffa);
        let done = HcrControl::decode(0x2200_0ff8);
        assert!(!done.go && !done.event);
        assert_eq!(done.status, CmdStatus::LAM_NOT_PRE);
        assert_eq!(done.opcode, Opcode::ENABLE_LAM);
        assert_eq!(done.encode(), 0x2200_0ff8);
    }

    #[test]
    fn the_block_is_seven_dwords_and_the_token_is_in_the_upper_half() {
        assert_eq!([HCR, HCR_TOKEN, HCR_CONTROL], [0x80680, 0x80694, 0x80698]);
        assert_eq!(HCR_CONTROL + 4 - HCR, HCR_LEN);
        assert_eq!(token_dword(0xbeef), 0xbeef_0000);
        assert_eq!(token_of(0xbeef_1234), 0xbeef);
    }

    proptest! {
        #[test]
        fn the_last_dword_survives_decoding_but_for_its_reserved_bits(dword: u32) {
            prop_assert_eq!(HcrControl::decode(dword).encode(), dword & 0xffc0_ffff);
        }
    }
}
