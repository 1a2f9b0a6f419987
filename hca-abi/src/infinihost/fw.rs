//! What the firmware says of itself: QUERY_FW, QUERY_DDR and ENABLE_LAM, QUERY_ADAPTER. infinihost 3.7.

layout! {
    /// Output of QUERY_FW.
    pub struct FwInfo[256] {
        /// M: 4 KB pages that the firmware needs.
        fw_pages / set_fw_pages: u16 = bits(0x00, 31, 16);
        /// Version, major.
        major / set_major: u16 = bits(0x00, 15, 0);
        /// Version, sub-minor: stands ahead of the minor.
        subminor / set_subminor: u16 = bits(0x04, 31, 16);
        /// Version, minor.
        minor / set_minor: u16 = bits(0x04, 15, 0);
        /// M: zero-based work queues and CQs.
        zero_based_queues / set_zero_based_queues: bool = bits(0x08, 31, 31);
        /// Revision of the command interface.
        command_revision / set_command_revision: u16 = bits(0x08, 15, 0);
        /// Debug trace supported.
        debug_trace / set_debug_trace: bool = bits(0x0c, 31, 31);
        /// Logarithm of the commands that may be outstanding.
        log_max_commands / set_log_max_commands: u8 = bits(0x0c, 7, 0);
        /// Commands may be posted by doorbell.
        command_doorbells / set_command_doorbells: bool = bits(0x10, 0, 0);
        /// T: first byte of the firmware's area in DDR. M: address of CLR_INT.
        fw_start / set_fw_start: u64 = quad(0x20);
        /// T: last byte of the firmware's area in DDR.
        fw_end / set_fw_end: u64 = quad(0x28);
        /// Address of the catastrophic error buffer.
        error_buffer / set_error_buffer: u64 = quad(0x30);
        /// Dwords of it.
        error_buffer_dwords / set_error_buffer_dwords: u32 = bits(0x38, 31, 0);
        /// M: address of EQ_ARM.
        eq_arm / set_eq_arm: u64 = quad(0x40);
        /// M: address of the EQ_SET_CI table.
        eq_set_ci / set_eq_set_ci: u64 = quad(0x48);
        /// Base of the command doorbells.
        command_doorbell_base / set_command_doorbell_base: u64 = quad(0x60);
    }
}

impl FwInfo {
    /// M: address of CLR_INT; the place of [`fw_start`](Self::fw_start).
    pub const fn clr_int(&self) -> u64 {
        self.fw_start()
    }

    /// Writes [`clr_int`](Self::clr_int).
    pub const fn set_clr_int(&mut self, address: u64) -> &mut Self {
        self.set_fw_start(address)
    }
}

layout! {
    /// Output of QUERY_DDR (T) and ENABLE_LAM (M). DIMM descriptors follow at 0x40; nobody needs them.
    pub struct DdrInfo[256] {
        /// First byte of the attached memory, as the HCA addresses it.
        start / set_start: u64 = quad(0x00);
        /// Last byte.
        end / set_end: u64 = quad(0x08);
        /// Not reachable through BAR 4.
        hidden / set_hidden: bool = bits(0x10, 4, 4);
        /// Auto-precharge mode.
        auto_precharge / set_auto_precharge: u8 = bits(0x10, 3, 2);
        /// Data integrity: 0 none, 1 parity, 2 ECC detect, 3 ECC correct.
        integrity / set_integrity: u8 = bits(0x10, 1, 0);
        /// First DIMM: disabled.
        dimm0_disabled / set_dimm0_disabled: bool = bits(0x40, 24, 24);
        /// First DIMM: size in MB.
        dimm0_megabytes / set_dimm0_megabytes: u16 = bits(0x40, 15, 0);
        /// First DIMM: start address.
        dimm0_start / set_dimm0_start: u64 = quad(0x50);
    }
}

layout! {
    /// Output of QUERY_ADAPTER.
    pub struct AdapterInfo[256] {
        /// T: vendor ID.
        vendor_id / set_vendor_id: u32 = bits(0x00, 31, 0);
        /// T: device ID.
        device_id / set_device_id: u32 = bits(0x04, 31, 0);
        /// T: revision.
        revision_id / set_revision_id: u32 = bits(0x08, 31, 0);
        /// Interrupt pin: the `intr` of an EQ context and the bit of CLR_INT.
        inta_pin / set_inta_pin: u8 = bits(0x10, 31, 24);
        /// Board id, each group of four bytes reversed: use [`board_id`](Self::board_id).
        raw_board_id / set_raw_board_id: [u8; 16] = raw(0xf0);
    }
}

const fn reverse_groups(bytes: [u8; 16]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
    [d, c, b, a, h, g, f, e, l, k, j, i, p, o, n, m]
}

impl AdapterInfo {
    /// Board id, padded with zeros.
    pub const fn board_id(&self) -> [u8; 16] {
        reverse_groups(self.raw_board_id())
    }

    /// Writes [`board_id`](Self::board_id).
    pub const fn set_board_id(&mut self, id: [u8; 16]) -> &mut Self {
        self.set_raw_board_id(reverse_groups(id))
    }
}

layout! {
    /// Immediate output of SYS_EN, as its low dword; means something when the status is DDR_MEM_ERR.
    pub struct SysEnResult[4] {
        /// ECC syndrome.
        syndrome / set_syndrome: u8 = bits(0x00, 9, 6);
        /// DIMM socket.
        socket / set_socket: u8 = bits(0x00, 5, 4);
        /// Slave address of the DIMM's EEPROM.
        slave_address / set_slave_address: u8 = bits(0x00, 3, 1);
        /// SPD source: flash and not DIMM.
        from_flash / set_from_flash: bool = bits(0x00, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_sub_minor_version_comes_before_the_minor() {
        let mut info = FwInfo::ZERO;
        info.set_major(3)
            .set_minor(5)
            .set_subminor(0x10)
            .set_log_max_commands(4);
        assert_eq!(info.as_bytes()[..8], [0, 0, 0, 3, 0, 0x10, 0, 5]);
        assert_eq!(info.as_bytes()[0x0f], 4);
    }

    #[test]
    fn the_end_of_the_memory_follows_its_start() {
        let mut info = DdrInfo::ZERO;
        info.set_start(0x1_0000_0000)
            .set_end(0x1_07ff_ffff)
            .set_hidden(true);
        assert_eq!(
            info.as_bytes()[..16],
            [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 7, 0xff, 0xff, 0xff]
        );
        assert_eq!(info.as_bytes()[0x13], 0x10);
    }

    #[test]
    fn a_board_id_is_stored_in_reversed_groups_of_four() {
        let mut info = AdapterInfo::ZERO;
        info.set_board_id(*b"MT_0030000001\0\0\0").set_inta_pin(31);
        assert_eq!(&info.as_bytes()[0xf0..], b"0_TM00300000\0\0\x001");
        assert_eq!(&info.board_id(), b"MT_0030000001\0\0\0");
        assert_eq!(info.as_bytes()[0x10], 31);
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 256)) {
            each_field_stands_where_its_row_says::<FwInfo>(&bytes, &[]);
            each_field_stands_where_its_row_says::<DdrInfo>(&bytes, &[]);
            each_field_stands_where_its_row_says::<AdapterInfo>(&bytes, &[]);
            each_field_stands_where_its_row_says::<SysEnResult>(&bytes[..4], &[]);
        }
    }
}
