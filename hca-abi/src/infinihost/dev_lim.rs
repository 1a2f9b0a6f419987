//! Limits of the device: output of QUERY_DEV_LIM. infinihost 3.7.

layout! {
    /// Limits. "log" is the base-2 logarithm; "reserved" entries belong to the firmware.
    pub struct DevLim[256] {
        /// Log of the largest SRQ.
        log_max_srq_size / set_log_max_srq_size: u8 = bits(0x10, 31, 24);
        /// Log of the largest work queue.
        log_max_qp_size / set_log_max_qp_size: u8 = bits(0x10, 23, 16);
        /// Log of the reserved QPs.
        log_reserved_qps / set_log_reserved_qps: u8 = bits(0x10, 11, 8);
        /// Log of the QPs.
        log_max_qps / set_log_max_qps: u8 = bits(0x10, 4, 0);
        /// Log of the reserved SRQs.
        log_reserved_srqs / set_log_reserved_srqs: u8 = bits(0x14, 31, 28);
        /// Log of the SRQs.
        log_max_srqs / set_log_max_srqs: u8 = bits(0x14, 20, 16);
        /// Log of the reserved EE contexts.
        log_reserved_eecs / set_log_reserved_eecs: u8 = bits(0x14, 11, 8);
        /// Log of the EE contexts.
        log_max_eecs / set_log_max_eecs: u8 = bits(0x14, 4, 0);
        /// Log of the largest CQ.
        log_max_cq_size / set_log_max_cq_size: u8 = bits(0x18, 23, 16);
        /// Log of the reserved CQs.
        log_reserved_cqs / set_log_reserved_cqs: u8 = bits(0x18, 11, 8);
        /// Log of the CQs.
        log_max_cqs / set_log_max_cqs: u8 = bits(0x18, 4, 0);
        /// M: log of the largest EQ.
        log_max_eq_size / set_log_max_eq_size: u8 = bits(0x1c, 31, 24);
        /// Log of the MPT entries.
        log_max_mpts / set_log_max_mpts: u8 = bits(0x1c, 21, 16);
        /// Reserved EQs: a count to some, a logarithm to others; 0 is what suits both.
        reserved_eqs / set_reserved_eqs: u8 = bits(0x1c, 11, 8);
        /// Log of the EQs.
        log_max_eqs / set_log_max_eqs: u8 = bits(0x1c, 2, 0);
        /// Log of the reserved translations: T segments, M entries.
        log_reserved_mtts / set_log_reserved_mtts: u8 = bits(0x20, 31, 28);
        /// Log of the largest region.
        log_max_mr_size / set_log_max_mr_size: u8 = bits(0x20, 23, 16);
        /// Log of the reserved MPT entries.
        log_reserved_mrws / set_log_reserved_mrws: u8 = bits(0x20, 11, 8);
        /// Log of the translations: T segments, M entries.
        log_max_mtts / set_log_max_mtts: u8 = bits(0x20, 5, 0);
        /// T: log of the address vectors.
        log_max_avs / set_log_max_avs: u8 = bits(0x24, 5, 0);
        /// Log of reads and atomics outstanding at a QP as requester.
        log_max_ra_requester / set_log_max_ra_requester: u8 = bits(0x28, 21, 16);
        /// Log of reads and atomics outstanding at a QP as responder.
        log_max_ra_responder / set_log_max_ra_responder: u8 = bits(0x28, 5, 0);
        /// M: log of the reserved RDB entries.
        log_reserved_rdbs / set_log_reserved_rdbs: u8 = bits(0x2c, 31, 28);
        /// Log of reads and atomics outstanding as responder, all QPs.
        log_max_ra_global / set_log_max_ra_global: u8 = bits(0x2c, 5, 0);
        /// M: SRQs can be resized.
        srq_resize / set_srq_resize: bool = bits(0x30, 0, 0);
        /// Local CA ACK delay.
        ack_delay / set_ack_delay: u8 = bits(0x34, 20, 16);
        /// Largest MTU code.
        max_mtu / set_max_mtu: u8 = bits(0x34, 15, 12);
        /// Port width capability.
        port_width / set_port_width: u8 = bits(0x34, 11, 8);
        /// Virtual lanes: 1, 2, 4, 8.
        max_vls / set_max_vls: u8 = bits(0x34, 7, 4);
        /// Ports.
        ports / set_ports: u8 = bits(0x34, 3, 0);
        /// Log of the GIDs of a port.
        log_max_gids / set_log_max_gids: u8 = bits(0x38, 3, 0);
        /// Bit r: static rate code r may be used; 0: old firmware.
        static_rates / set_static_rates: u16 = bits(0x3c, 31, 16);
        /// Log of the P_Keys of a port.
        log_max_pkeys / set_log_max_pkeys: u8 = bits(0x3c, 3, 0);
        /// Features; bits: [`features`].
        features / set_features: u32 = bits(0x44, 31, 0);
        /// Reserved UAR pages.
        reserved_uars / set_reserved_uars: u8 = bits(0x48, 31, 28);
        /// The UAR area has 1 MB * 2^n.
        log_uar_megabytes / set_log_uar_megabytes: u8 = bits(0x48, 21, 16);
        /// Log of the smallest page.
        log_page_size / set_log_page_size: u8 = bits(0x48, 7, 0);
        /// Scatter/gather entries (M: of the send queue).
        max_sg / set_max_sg: u8 = bits(0x50, 23, 16);
        /// Bytes of a descriptor (M: of the send queue); straddles no dword.
        max_descriptor / set_max_descriptor: u16 = bits(0x50, 15, 0);
        /// M: scatter entries of the receive queue.
        max_sg_rq / set_max_sg_rq: u8 = bits(0x54, 23, 16);
        /// M: bytes of a receive descriptor.
        max_descriptor_rq / set_max_descriptor_rq: u16 = bits(0x54, 15, 0);
        /// Log of the QPs of one multicast group.
        log_max_qps_per_group / set_log_max_qps_per_group: u8 = bits(0x60, 23, 16);
        /// Reserved multicast groups.
        reserved_groups / set_reserved_groups: u8 = bits(0x60, 11, 8);
        /// Log of the multicast groups.
        log_max_groups / set_log_max_groups: u8 = bits(0x60, 7, 0);
        /// Reserved PDs.
        reserved_pds / set_reserved_pds: u8 = bits(0x64, 31, 28);
        /// Log of the PDs.
        log_max_pds / set_log_max_pds: u8 = bits(0x64, 21, 16);
        /// Reserved RDDs.
        reserved_rdds / set_reserved_rdds: u8 = bits(0x64, 15, 12);
        /// Log of the RDDs.
        log_max_rdds / set_log_max_rdds: u8 = bits(0x64, 5, 0);
        /// Bytes of an EE context.
        eec_size / set_eec_size: u16 = bits(0x80, 31, 16);
        /// Bytes of a QP context.
        qpc_size / set_qpc_size: u16 = bits(0x80, 15, 0);
        /// Bytes of an extended EE context.
        eeec_size / set_eeec_size: u16 = bits(0x84, 31, 16);
        /// Bytes of an extended QP context.
        eqpc_size / set_eqpc_size: u16 = bits(0x84, 15, 0);
        /// Bytes of an EQ context.
        eqc_size / set_eqc_size: u16 = bits(0x88, 31, 16);
        /// Bytes of a CQ context.
        cqc_size / set_cqc_size: u16 = bits(0x88, 15, 0);
        /// Bytes of an SRQ context.
        srqc_size / set_srqc_size: u16 = bits(0x8c, 31, 16);
        /// Bytes of a UAR scratch entry.
        uar_scratch_size / set_uar_scratch_size: u16 = bits(0x8c, 15, 0);
        /// M: bytes of a translation.
        mtt_size / set_mtt_size: u16 = bits(0x90, 31, 16);
        /// M: bytes of an MPT entry.
        mpt_size / set_mpt_size: u16 = bits(0x90, 15, 0);
        /// M: log of the page-list length.
        log_pbl_size / set_log_pbl_size: u8 = bits(0x94, 13, 8);
        /// M: base memory management.
        memory_management / set_memory_management: u8 = bits(0x94, 7, 0);
        /// M: the reserved key.
        reserved_lkey / set_reserved_lkey: u32 = bits(0x98, 31, 0);
        /// M: attached memory is required.
        lam_required / set_lam_required: bool = bits(0x9c, 0, 0);
        /// M: bytes of ICM.
        max_icm / set_max_icm: u64 = quad(0xa0);
    }
}

/// Bits of [`DevLim::features`].
pub mod features {
    /// Reliable connected.
    pub const RC: u32 = 1 << 0;
    /// Unreliable connected.
    pub const UC: u32 = 1 << 1;
    /// Unreliable datagram.
    pub const UD: u32 = 1 << 2;
    /// Reliable datagram.
    pub const RD: u32 = 1 << 3;
    /// Raw IPv6.
    pub const RAW_IPV6: u32 = 1 << 4;
    /// Raw Ethertype.
    pub const RAW_ETHERTYPE: u32 = 1 << 5;
    /// Shared receive queues.
    pub const SRQ: u32 = 1 << 6;
    /// IPoIB checksum offload.
    pub const IPOIB_CHECKSUM: u32 = 1 << 7;
    /// P_Key violation counter.
    pub const PKEY_COUNTER: u32 = 1 << 8;
    /// Q_Key violation counter.
    pub const QKEY_COUNTER: u32 = 1 << 9;
    /// Memory windows.
    pub const MEMORY_WINDOWS: u32 = 1 << 16;
    /// Automatic path migration.
    pub const PATH_MIGRATION: u32 = 1 << 17;
    /// Atomics.
    pub const ATOMICS: u32 = 1 << 18;
    /// Raw multicast.
    pub const RAW_MULTICAST: u32 = 1 << 19;
    /// The port in a UD address vector is enforced.
    pub const UD_AV_PORT: u32 = 1 << 20;
    /// UD multicast.
    pub const UD_MULTICAST: u32 = 1 << 21;
    /// Paging.
    pub const PAGING: u32 = 1 << 24;
    /// Router mode.
    pub const ROUTER: u32 = 1 << 25;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    type Row = (usize, u8, fn(&DevLim) -> u64, u64);

    /// One non-zero byte, and what the field reads then; from the table by byte offset.
    #[test]
    fn fields_by_byte_offset() {
        let read = |at: usize, byte: u8, field: fn(&DevLim) -> u64| {
            let mut raw = [0; 256];
            raw[at] = byte;
            field(&DevLim::read_from_bytes(&raw).unwrap())
        };
        let rows: &[Row] = &[
            (0x10, 15, |lim| lim.log_max_srq_size().into(), 15),
            (0x11, 16, |lim| lim.log_max_qp_size().into(), 16),
            (0x12, 0xf4, |lim| lim.log_reserved_qps().into(), 4),
            (0x13, 0xf0, |lim| lim.log_max_qps().into(), 16),
            (0x14, 0x60, |lim| lim.log_reserved_srqs().into(), 6),
            (0x15, 13, |lim| lim.log_max_srqs().into(), 13),
            (0x19, 17, |lim| lim.log_max_cq_size().into(), 17),
            (0x1a, 7, |lim| lim.log_reserved_cqs().into(), 7),
            (0x1b, 16, |lim| lim.log_max_cqs().into(), 16),
            (0x1d, 17, |lim| lim.log_max_mpts().into(), 17),
            (0x1e, 3, |lim| lim.reserved_eqs().into(), 3),
            (0x1f, 6, |lim| lim.log_max_eqs().into(), 6),
            (0x20, 0x40, |lim| lim.log_reserved_mtts().into(), 4),
            (0x22, 4, |lim| lim.log_reserved_mrws().into(), 4),
            (0x29, 2, |lim| lim.log_max_ra_requester().into(), 2),
            (0x2b, 3, |lim| lim.log_max_ra_responder().into(), 3),
            (0x35, 15, |lim| lim.ack_delay().into(), 15),
            (0x36, 0x43, |lim| lim.max_mtu().into(), 4),
            (0x36, 0x43, |lim| lim.port_width().into(), 3),
            (0x37, 0x82, |lim| lim.max_vls().into(), 8),
            (0x37, 0x82, |lim| lim.ports().into(), 2),
            (0x3b, 5, |lim| lim.log_max_gids().into(), 5),
            (0x3d, 3, |lim| lim.static_rates().into(), 3),
            (0x3f, 6, |lim| lim.log_max_pkeys().into(), 6),
            (
                0x47,
                0x44,
                |lim| lim.features().into(),
                (features::SRQ | features::UD).into(),
            ),
            (0x48, 0x10, |lim| lim.reserved_uars().into(), 1),
            (0x49, 3, |lim| lim.log_uar_megabytes().into(), 3),
            (0x4b, 12, |lim| lim.log_page_size().into(), 12),
            (0x51, 60, |lim| lim.max_sg().into(), 60),
            (0x53, 0xf0, |lim| lim.max_descriptor().into(), 0xf0),
            (0x61, 8, |lim| lim.log_max_qps_per_group().into(), 8),
            (0x63, 13, |lim| lim.log_max_groups().into(), 13),
            (0x64, 0x40, |lim| lim.reserved_pds().into(), 4),
            (0x65, 24, |lim| lim.log_max_pds().into(), 24),
            (0x82, 1, |lim| lim.qpc_size().into(), 256),
            (0x8b, 64, |lim| lim.cqc_size().into(), 64),
            (0x97, 1, |lim| lim.memory_management().into(), 1),
            (0xa3, 0x40, |lim| lim.max_icm(), 0x40_0000_0000),
        ];
        for (line, &(at, byte, field, expected)) in rows.iter().enumerate() {
            assert_eq!(read(at, byte, field), expected, "row {line}, byte {at:#x}");
        }
    }

    proptest! {
        #[test]
        fn every_field_stands_alone(bytes in proptest::collection::vec(any::<u8>(), 256)) {
            each_field_stands_where_its_row_says::<DevLim>(&bytes, &[]);
        }
    }
}
