//! Firmware commands: opcodes, statuses, time limits, modifiers, and the command block as bytes. infinihost 3.

number_set! {
    /// Command opcode, 12 bits. infinihost 3.5.
    pub struct Opcode(u16) {
        /// Brings up attached memory and firmware. T.
        SYS_EN = 0x001;
        /// Undoes SYS_EN. T; on M-mode parts the drivers use it for DISABLE_LAM.
        SYS_DIS = 0x002;
        /// Limits.
        QUERY_DEV_LIM = 0x003;
        /// Firmware version, areas, registers.
        QUERY_FW = 0x004;
        /// Attached memory. T.
        QUERY_DDR = 0x005;
        /// Interrupt pin, board.
        QUERY_ADAPTER = 0x006;
        /// Starts the HCA with the tables given.
        INIT_HCA = 0x007;
        /// Stops everything.
        CLOSE_HCA = 0x008;
        /// Brings up a port.
        INIT_IB = 0x009;
        /// Takes down a port.
        CLOSE_IB = 0x00a;
        /// What INIT_HCA was given.
        QUERY_HCA = 0x00b;
        /// Changes a port's capabilities.
        SET_IB = 0x00c;
        /// Gives a memory protection entry to the HCA.
        SW2HW_MPT = 0x00d;
        /// Shows one.
        QUERY_MPT = 0x00e;
        /// Takes one back.
        HW2SW_MPT = 0x00f;
        /// Reads translations.
        READ_MTT = 0x010;
        /// Writes translations.
        WRITE_MTT = 0x011;
        /// Routes event types to an EQ.
        MAP_EQ = 0x012;
        /// Gives an EQ to the HCA.
        SW2HW_EQ = 0x013;
        /// Takes one back.
        HW2SW_EQ = 0x014;
        /// Shows one.
        QUERY_EQ = 0x015;
        /// Gives a CQ to the HCA.
        SW2HW_CQ = 0x016;
        /// Takes one back.
        HW2SW_CQ = 0x017;
        /// Shows one.
        QUERY_CQ = 0x018;
        /// RESET to INIT.
        RST2INIT_QPEE = 0x019;
        /// INIT to RTR.
        INIT2RTR_QPEE = 0x01a;
        /// RTR to RTS.
        RTR2RTS_QPEE = 0x01b;
        /// Changes attributes in RTS.
        RTS2RTS_QPEE = 0x01c;
        /// SQ error to RTS.
        SQERR2RTS_QPEE = 0x01d;
        /// Any state to ERR.
        TO_ERR_QPEE = 0x01e;
        /// RTS to SQ drained.
        RTS2SQD_QPEE = 0x01f;
        /// SQ drained to RTS.
        SQD2RTS_QPEE = 0x020;
        /// Any state to RESET; see [`ToReset`]. Its name in the field is ERR2RST.
        ERR2RST_QPEE = 0x021;
        /// Shows a QP.
        QUERY_QPEE = 0x022;
        /// Names or releases the special QPs.
        CONF_SPECIAL_QP = 0x023;
        /// Asks the firmware's management agents.
        MAD_IFC = 0x024;
        /// Reads a multicast entry.
        READ_MGM = 0x025;
        /// Writes a multicast entry.
        WRITE_MGM = 0x026;
        /// Bucket of a multicast GID.
        MGID_HASH = 0x027;
        /// Node table; refused.
        CONF_NTU = 0x028;
        /// Node table; refused.
        QUERY_NTU = 0x029;
        /// Debugging; refused.
        QUERY_DEBUG_MSG = 0x02a;
        /// Debugging; refused.
        SET_DEBUG_MSG = 0x02b;
        /// Gives a CQ another ring.
        RESIZE_CQ = 0x02c;
        /// Changes attributes in INIT.
        INIT2INIT_QPEE = 0x02d;
        /// Attached memory; refused.
        ACCESS_DDR = 0x02e;
        /// Drops cached protection and translation entries.
        SYNC_TPT = 0x02f;
        /// Diagnostics; refused.
        DIAG_RPRT = 0x030;
        /// Nothing.
        NOP = 0x031;
        /// Suspends a QP; refused.
        SUSPEND_QPEE = 0x032;
        /// Resumes a QP; refused.
        UNSUSPEND_QPEE = 0x033;
        /// Static configuration.
        MOD_STAT_CFG = 0x034;
        /// Gives an SRQ to the HCA.
        SW2HW_SRQ = 0x035;
        /// Takes one back.
        HW2SW_SRQ = 0x036;
        /// Shows one.
        QUERY_SRQ = 0x037;
        /// Changes attributes in SQD.
        SQD2SQD_QPEE = 0x038;
        /// Changes a memory protection entry. T.
        MODIFY_MPT = 0x039;
        /// Sets an SRQ's limit.
        ARM_SRQ = 0x040;
        /// Starts the firmware. M.
        RUN_FW = 0xff6;
        /// Turns off attached memory. M.
        DISABLE_LAM = 0xff7;
        /// Turns on attached memory. M.
        ENABLE_LAM = 0xff8;
        /// Takes back ICM pages. M.
        UNMAP_ICM = 0xff9;
        /// Gives ICM pages. M.
        MAP_ICM = 0xffa;
        /// Takes back auxiliary pages. M.
        UNMAP_ICM_AUX = 0xffb;
        /// Gives auxiliary pages. M.
        MAP_ICM_AUX = 0xffc;
        /// Says how much ICM is used, asks how much auxiliary memory that takes. M.
        SET_ICM_SIZE = 0xffd;
        /// Takes back the firmware area. M.
        UNMAP_FA = 0xffe;
        /// Gives pages to the firmware area. M.
        MAP_FA = 0xfff;
    }
}

number_set! {
    /// Command status. infinihost 3.3.
    pub struct CmdStatus(u8) {
        /// Done.
        OK = 0x00;
        /// Firmware internal error.
        INTERNAL_ERR = 0x01;
        /// Opcode unknown or not supported.
        BAD_OP = 0x02;
        /// A parameter is invalid.
        BAD_PARAM = 0x03;
        /// Not in this state of the system.
        BAD_SYS_STATE = 0x04;
        /// Resource does not exist or is reserved.
        BAD_RESOURCE = 0x05;
        /// Resource in use.
        RESOURCE_BUSY = 0x06;
        /// Attached memory failed.
        DDR_MEM_ERR = 0x07;
        /// Limit exceeded.
        EXCEED_LIM = 0x08;
        /// Resource in the wrong state: not owned by software, say.
        BAD_RES_STATE = 0x09;
        /// Index out of range.
        BAD_INDEX = 0x0a;
        /// Flash contents bad.
        BAD_NVMEM = 0x0b;
        /// The QP is in the wrong state for this transition.
        BAD_QPEE_STATE = 0x10;
        /// Bad segment parameter.
        BAD_SEG_PARAM = 0x20;
        /// Windows are bound to the region.
        REG_BOUND = 0x21;
        /// There is no attached memory.
        LAM_NOT_PRE = 0x22;
        /// The MAD was invalid; there is no response.
        BAD_PKT = 0x30;
        /// The size to change to is too small.
        BAD_SIZE = 0x40;
    }
}

/// Nominal time limit of a command. Firmware may be starved under load, so this is information, not a deadline.
/// infinihost 3.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutClass {
    /// 1 ms.
    A,
    /// 10 ms.
    B,
    /// 100 ms.
    C,
    /// 60 s.
    D,
}

impl TimeoutClass {
    /// The limit in milliseconds.
    pub const fn milliseconds(self) -> u32 {
        match self {
            Self::A => 1,
            Self::B => 10,
            Self::C => 100,
            Self::D => 60_000,
        }
    }
}

/// Opcode modifier of SYS_EN. infinihost 3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SysEn {
    /// Without a memory check.
    Normal = 0,
    /// With one.
    MemoryCheck = 1,
    /// What is in the memory stays.
    PreserveMemory = 2,
}

/// Opcode modifier of CLOSE_HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CloseHca {
    /// In order.
    Normal = 0,
    /// Halt without cleaning up.
    Panic = 1,
}

/// Opcode modifier of HW2SW_MPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hw2SwMpt {
    /// The entry goes to the output mailbox.
    WithEntry = 0,
    /// There is no output mailbox.
    WithoutEntry = 1,
}

/// Opcode modifier of ERR2RST_QPEE: from any state, with or without the old context in an output mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ToReset {
    /// From any state, context to the output mailbox.
    WithContext = 2,
    /// From any state, no output.
    WithoutContext = 3,
}

/// Opcode modifier of CONF_SPECIAL_QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpecialQp {
    /// QP0.
    Smi = 0,
    /// QP1.
    Gsi = 1,
    /// Raw IPv6.
    RawIpv6 = 2,
    /// Raw Ethertype.
    RawEthertype = 3,
}

/// Opcode modifier of RESIZE_CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResizeCqKind {
    /// The first variant.
    Legacy = 0,
    /// The corrected one that drivers use.
    Corrected = 1,
}

/// Opcode modifier of MODIFY_MPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ModifyMpt {
    /// Start, length and translations.
    Resize = 3,
    /// The whole entry.
    Replace = 5,
}

/// Bits of MAD_IFC's opcode modifier (infinihost 3.13).
pub mod mad_ifc_flags {
    /// The M_Key is not checked.
    pub const IGNORE_M_KEY: u8 = 1 << 0;
    /// The B_Key is not checked.
    pub const IGNORE_B_KEY: u8 = 1 << 1;
    /// The mailbox says how the MAD arrived.
    pub const EXTENDED_INFO: u8 = 1 << 2;
}

/// Input modifier of MAD_IFC: the port, and the source LID of the MAD (0 if it is our own).
pub const fn mad_ifc_modifier(port: u8, source_lid: u16) -> u32 {
    (source_lid as u32) << 16 | port as u32
}

/// Input modifier of the QP commands. infinihost 3.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpModifier {
    /// Full 24-bit number.
    pub qpn: u32,
    /// An EE context, not a QP.
    pub ee: bool,
    /// RTS2SQD: tell by an event when the SQ is drained.
    pub sqd_event: bool,
}

impl QpModifier {
    /// A QP, no event.
    pub const fn new(qpn: u32) -> Self {
        Self {
            qpn,
            ee: false,
            sqd_event: false,
        }
    }

    /// As a register value.
    pub const fn encode(self) -> u32 {
        (self.sqd_event as u32) << 31 | (self.ee as u32) << 24 | self.qpn & 0xff_ffff
    }

    /// From a register value.
    pub const fn decode(dword: u32) -> Self {
        Self {
            qpn: dword & 0xff_ffff,
            ee: dword >> 24 & 1 != 0,
            sqd_event: dword >> 31 != 0,
        }
    }
}

/// Input modifier of MAP_EQ. infinihost 3.5, 3.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEqModifier {
    /// Six bits.
    pub eqn: u8,
    /// Detach instead of attach.
    pub unmap: bool,
}

impl MapEqModifier {
    /// As a register value.
    pub const fn encode(self) -> u32 {
        (self.unmap as u32) << 31 | self.eqn as u32 & 0x3f
    }

    /// From a register value.
    pub const fn decode(dword: u32) -> Self {
        Self {
            eqn: (dword & 0x3f) as u8,
            unmap: dword >> 31 != 0,
        }
    }
}

/// Input modifier that drivers give to NOP; it has no meaning.
pub const NOP_MODIFIER: u32 = 0x1f;

/// What DIMM failed: the low dword of SYS_EN's immediate result, valid with
/// [`DDR_MEM_ERR`](CmdStatus::DDR_MEM_ERR) only. infinihost 3.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimmFault {
    /// ECC syndrome, 4 bits.
    pub syndrome: u8,
    /// Socket, 2 bits.
    pub socket: u8,
    /// Address of the DIMM's EEPROM, 3 bits.
    pub slave_address: u8,
    /// The description came from flash, not from the DIMM.
    pub spd_from_flash: bool,
}

impl DimmFault {
    /// As a register value.
    pub const fn encode(self) -> u32 {
        (self.syndrome as u32 & 0xf) << 6
            | (self.socket as u32 & 3) << 4
            | (self.slave_address as u32 & 7) << 1
            | self.spd_from_flash as u32
    }

    /// From a register value.
    pub const fn decode(dword: u32) -> Self {
        Self {
            syndrome: (dword >> 6 & 0xf) as u8,
            socket: (dword >> 4 & 3) as u8,
            slave_address: (dword >> 1 & 7) as u8,
            spd_from_flash: dword & 1 != 0,
        }
    }
}

layout! {
    /// The command register block as bytes, for one that copies it whole; single dwords are in
    /// [`regs`](super::regs). infinihost 2.2.
    pub struct Hcr[0x1c] {
        /// Immediate, or bus address of the input mailbox.
        in_param / set_in_param: u64 = quad(0x00);
        /// Mostly the number of the object concerned.
        input_modifier / set_input_modifier: u32 = bits(0x08, 31, 0);
        /// Bus address of the output mailbox, or the immediate result.
        out_param / set_out_param: u64 = quad(0x0c);
        /// Repeated in the EQE.
        token / set_token: u16 = bits(0x14, 31, 16);
        /// See [`HcrControl`](super::regs::HcrControl).
        control / set_control: u32 = bits(0x18, 31, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_command_block_is_laid_out_as_published() {
        let block = *Hcr::default()
            .set_in_param(0x0102_0304_0506_0708)
            .set_input_modifier(0x090a_0b0c)
            .set_out_param(0x0d0e_0f10_1112_1314)
            .set_token(0x1516)
            .set_control(0x00c0_0031);
        let bytes = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0x15, 0x16, 0,
            0, 0, 0xc0, 0, 0x31,
        ];
        assert_eq!(block.as_bytes(), bytes);
    }

    #[test]
    fn the_modifiers_have_their_bits_where_the_reference_says() {
        let drained = QpModifier {
            sqd_event: true,
            ..QpModifier::new(0xff00_0404)
        };
        assert_eq!(drained.encode(), 0x8000_0404);
        assert!(QpModifier::decode(0x0100_0001).ee);
        let unmap = MapEqModifier {
            eqn: 2,
            unmap: true,
        };
        assert_eq!(unmap.encode(), 0x8000_0002);
        assert_eq!(mad_ifc_modifier(2, 0xc001), 0xc001_0002);
        // syndrome 9, socket 2, slave 5, from flash: 1001 10 101 1
        assert_eq!(DimmFault::decode(0x26b).syndrome, 9);
        assert_eq!(DimmFault::decode(0x26b).socket, 2);
        assert_eq!(DimmFault::decode(0x26b).slave_address, 5);
        assert!(DimmFault::decode(0x26b).spd_from_flash);
    }

    #[test]
    fn a_number_without_a_name_keeps_its_value() {
        assert_eq!(Opcode(0x777).name(), None);
        assert_eq!(Opcode::NOP.name(), Some("NOP"));
        extern crate std;
        assert_eq!(
            std::format!("{:?} {:?}", CmdStatus(0x7f), CmdStatus::OK),
            "CmdStatus(0x7f) OK"
        );
    }

    proptest! {
        #[test]
        fn modifiers_survive_decoding_but_for_reserved_bits(dword: u32) {
            prop_assert_eq!(QpModifier::decode(dword).encode(), dword & 0x81ff_ffff);
            prop_assert_eq!(MapEqModifier::decode(dword).encode(), dword & 0x8000_003f);
            prop_assert_eq!(DimmFault::decode(dword).encode(), dword & 0x3ff);
        }

        #[test]
        fn the_rows_of_the_command_block_are_where_they_say(bytes: [u8; 0x1c]) {
            each_field_stands_where_its_row_says::<Hcr>(&bytes, &[]);
        }
    }
}
