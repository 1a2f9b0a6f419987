//! Doorbells: 64-bit stores to a UAR page; and doorbell records in host memory (M-mode). infinihost 2.8 to 2.10.
//!
//! Each encodes to the number that is stored big-endian at the offset in [`regs::uar`](super::regs::uar): its upper
//! half is dword 0.

/// Send, T-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// Address of the first new WQE, low 32 bits, a multiple of 64.
    pub nda: u32,
    /// Start it only after earlier reads and atomics.
    pub fence: bool,
    /// Its opcode, 5 bits.
    pub opcode: u8,
    /// The QP, 24 bits.
    pub qpn: u32,
    /// Its size in 16-byte units, 6 bits.
    pub nds: u8,
}

impl SendDoorbell {
    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        let high = self.nda & !0x3f | (self.fence as u32) << 5 | (self.opcode & 0x1f) as u32;
        let low = self.qpn << 8 | (self.nds & 0x3f) as u32;
        (high as u64) << 32 | low as u64
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        let (high, low) = ((value >> 32) as u32, value as u32);
        Self {
            nda: high & !0x3f,
            fence: high & 1 << 5 != 0,
            opcode: (high & 0x1f) as u8,
            qpn: low >> 8,
            nds: (low & 0x3f) as u8,
        }
    }
}

/// Receive, T-mode: for a QP, or for an SRQ if `nds` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveDoorbell {
    /// Address of the first new WQE, low 32 bits, a multiple of 64.
    pub nda: u32,
    /// Its size in 16-byte units; 0 for an SRQ.
    pub nds: u8,
    /// The QP or SRQ, 24 bits.
    pub number: u32,
    /// WQEs added, 1 to 256.
    pub count: u16,
}

impl ReceiveDoorbell {
    /// Most WQEs that one doorbell can add.
    pub const MAX_COUNT: u16 = 256;

    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        let high = self.nda & !0x3f | (self.nds & 0x3f) as u32;
        let low = self.number << 8 | (self.count & 0xff) as u32;
        (high as u64) << 32 | low as u64
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        let (high, low) = ((value >> 32) as u32, value as u32);
        let credits = (low & 0xff) as u16;
        Self {
            nda: high & !0x3f,
            nds: (high & 0x3f) as u8,
            number: low >> 8,
            count: if credits == 0 {
                Self::MAX_COUNT
            } else {
                credits
            },
        }
    }
}

number_set! {
    /// Command of a T-mode CQ doorbell.
    pub struct CqCommand(u8) {
        /// Consumer index += parameter + 1.
        INCREMENT = 1;
        /// Notify of the next completion; the parameter is [`CqDoorbell::KNOWN_INDEX`] or the last index polled.
        ARM = 2;
        /// Notify of the next solicited completion or error.
        ARM_SOLICITED = 3;
        /// Consumer index = parameter.
        SET_INDEX = 4;
        /// Notify after several completions.
        ARM_MULTIPLE = 5;
    }
}

/// CQ, T-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqDoorbell {
    /// What to do.
    pub command: CqCommand,
    /// The CQ, 24 bits.
    pub cqn: u32,
    /// Depends on the command.
    pub parameter: u32,
}

impl CqDoorbell {
    /// Parameter of arming: the device's own idea of the consumer index.
    pub const KNOWN_INDEX: u32 = 0xffff_ffff;

    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        (self.command.0 as u64) << 56 | (self.cqn as u64 & 0xff_ffff) << 32 | self.parameter as u64
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        Self {
            command: CqCommand((value >> 56) as u8),
            cqn: (value >> 32) as u32 & 0xff_ffff,
            parameter: value as u32,
        }
    }
}

number_set! {
    /// Command of a T-mode EQ doorbell.
    pub struct EqCommand(u8) {
        /// Consumer index += 1.
        INCREMENT = 1;
        /// Interrupt at the next event.
        ARM = 2;
        /// Disarm the CQ that the parameter names.
        DISARM_CQ = 3;
        /// Consumer index = parameter.
        SET_INDEX = 4;
        /// Interrupt at every event.
        ALWAYS_ARM = 5;
    }
}

/// EQ, T-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqDoorbell {
    /// What to do.
    pub command: EqCommand,
    /// The EQ, 6 bits.
    pub eqn: u8,
    /// Depends on the command.
    pub parameter: u32,
}

impl EqDoorbell {
    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        (self.command.0 as u64) << 56 | (self.eqn as u64 & 0x3f) << 32 | self.parameter as u64
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        Self {
            command: EqCommand((value >> 56) as u8),
            eqn: (value >> 32) as u8 & 0x3f,
            parameter: value as u32,
        }
    }
}

/// Send, M-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MSendDoorbell {
    /// WQEs posted by this doorbell, 1 to 255.
    pub count: u8,
    /// WQEs posted to this queue before these, modulo 65536.
    pub counter: u16,
    /// Fence for the first.
    pub fence: bool,
    /// Opcode of the first, 5 bits.
    pub opcode: u8,
    /// The QP, 24 bits.
    pub qpn: u32,
    /// Size of the first in 16-byte units, 6 bits.
    pub nds: u8,
}

impl MSendDoorbell {
    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        let high = (self.count as u32) << 24
            | (self.counter as u32) << 8
            | (self.fence as u32) << 5
            | (self.opcode & 0x1f) as u32;
        let low = self.qpn << 8 | (self.nds & 0x3f) as u32;
        (high as u64) << 32 | low as u64
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        let (high, low) = ((value >> 32) as u32, value as u32);
        Self {
            count: (high >> 24) as u8,
            counter: (high >> 8) as u16,
            fence: high & 1 << 5 != 0,
            opcode: (high & 0x1f) as u8,
            qpn: low >> 8,
            nds: (low & 0x3f) as u8,
        }
    }
}

number_set! {
    /// What an M-mode CQ is armed for; the same numbers in the doorbell and in the record.
    pub struct MArm(u8) {
        /// Nothing (record only).
        NONE = 0;
        /// The next solicited completion or error.
        SOLICITED = 1;
        /// The next completion.
        ANY = 2;
        /// The completion with the counter given.
        ARM_N = 3;
    }
}

/// CQ arming, M-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MCqDoorbell {
    /// Sequence number of arming, 2 bits.
    pub sequence: u8,
    /// What for.
    pub arm: MArm,
    /// The CQ, 24 bits.
    pub cqn: u32,
    /// Consumer counter.
    pub counter: u32,
}

impl MCqDoorbell {
    /// As the number to store.
    #[inline]
    pub const fn encode(self) -> u64 {
        let high =
            (self.sequence as u32 & 3) << 28 | (self.arm.0 as u32 & 7) << 24 | self.cqn & 0xff_ffff;
        (high as u64) << 32 | self.counter as u64
    }

    /// What the doorbell record says before, as the number to store. infinihost 2.10.
    #[inline]
    pub const fn record(self) -> u64 {
        let about = (self.sequence as u32 & 3) << 3 | self.arm.0 as u32 & 7;
        let low = self.cqn << 8 | (RecordType::CQ_ARM.0 as u32) << 5 | about;
        (self.counter as u64) << 32 | low as u64
    }

    /// What both say besides the counter.
    pub const fn arming(self) -> MArming {
        let without = Self { counter: 0, ..self };
        MArming(without.record() << 32 | without.encode() >> 32)
    }

    /// From that number.
    pub const fn decode(value: u64) -> Self {
        let high = (value >> 32) as u32;
        Self {
            sequence: (high >> 28 & 3) as u8,
            arm: MArm((high >> 24 & 7) as u8),
            cqn: high & 0xff_ffff,
            counter: value as u32,
        }
    }
}

/// A CQ's number, sequence number and kind of arming, as both the doorbell and the record before it say them: lower half
/// of the record, upper half of the doorbell. For who keeps them ready; the counter is added when the CQ is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MArming(pub u64);

impl MArming {
    /// Sequence numbers in both halves.
    const SEQUENCE: u64 = 3 << (32 + 3) | 3 << 28;
    /// One in both.
    const NEXT: u64 = 1 << (32 + 3) | 1 << 28;

    /// The CQ, 24 bits.
    pub const fn cqn(self) -> u32 {
        self.0 as u32 & 0xff_ffff
    }

    /// Its sequence number, 2 bits.
    pub const fn sequence(self) -> u8 {
        (self.0 >> 28) as u8 & 3
    }

    /// With the next sequence number.
    pub const fn next(self) -> Self {
        // Other bits must not see the carry.
        let others = self.0 & !Self::SEQUENCE;
        Self(others | (self.0 & Self::SEQUENCE).wrapping_add(Self::NEXT) & Self::SEQUENCE)
    }

    /// The same for `arm`.
    pub const fn arm(self, arm: MArm) -> Self {
        let kinds = 7 << 32 | 7 << 24;
        let kind = arm.0 as u64 & 7;
        Self(self.0 & !kinds | kind << 32 | kind << 24)
    }

    /// The doorbell, as the number to store.
    #[inline]
    pub const fn doorbell(self, counter: u32) -> u64 {
        self.0 << 32 | counter as u64
    }

    /// The record before it.
    #[inline]
    pub const fn record(self, counter: u32) -> u64 {
        (counter as u64) << 32 | self.0 >> 32
    }
}

number_set! {
    /// Kind of a doorbell record. infinihost 2.10.
    pub struct RecordType(u8) {
        /// Free.
        NONE = 0;
        /// Consumer counter of a CQ. Group 2.
        CQ_SET_CI = 1;
        /// Arming of a CQ. Group 1.
        CQ_ARM = 2;
        /// Send queue counter. Group 1.
        SQ = 3;
        /// Receive queue counter. Group 2.
        RQ = 4;
        /// SRQ counter. Group 2.
        SRQ = 5;
        /// Between the groups.
        GROUP_SEPARATOR = 7;
    }
}

layout! {
    /// A doorbell record in the UAR context, M-mode.
    pub struct DoorbellRecord[8] {
        /// Counter; of SQ, RQ and SRQ the low 16 bits count.
        counter / set_counter: u32 = bits(0x00, 31, 0);
        /// The QP, CQ or SRQ.
        number / set_number: u32 = bits(0x04, 31, 8);
        /// Kind.
        record_type / set_record_type: RecordType = bits(0x04, 7, 5);
        /// CQ_ARM: sequence number.
        sequence / set_sequence: u8 = bits(0x04, 4, 3);
        /// CQ_ARM: what for.
        arm / set_arm: MArm = bits(0x04, 2, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::each_field_stands_where_its_row_says;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    const fn dwords(value: u64) -> [u32; 2] {
        [(value >> 32) as u32, value as u32]
    }

    #[test]
    fn the_published_send_doorbells() {
        // infinihost 13.2
        let mut send = SendDoorbell {
            nda: 0x1040,
            fence: false,
            opcode: 0x0a,
            qpn: 0x404,
            nds: 3,
        };
        assert_eq!(dwords(send.encode()), [0x0000_104a, 0x0004_0403]);
        send.fence = true;
        assert_eq!(dwords(send.encode()), [0x0000_106a, 0x0004_0403]);
        let (count, counter, fence) = (1, 5, false);
        let m = MSendDoorbell {
            count,
            counter,
            fence,
            opcode: 0x0a,
            qpn: 0x404,
            nds: 3,
        };
        assert_eq!(dwords(m.encode()), [0x0100_050a, 0x0004_0403]);
    }

    #[test]
    fn the_published_receive_doorbells() {
        let qp = ReceiveDoorbell {
            nda: 0x80,
            nds: 2,
            number: 0x404,
            count: 3,
        };
        assert_eq!(dwords(qp.encode()), [0x0000_0082, 0x0004_0403]);
        let srq = ReceiveDoorbell {
            nda: 0x100,
            nds: 0,
            number: 0x12,
            count: 256,
        };
        assert_eq!(dwords(srq.encode()), [0x0000_0100, 0x0000_1200]);
        assert_eq!(ReceiveDoorbell::decode(srq.encode()), srq);
    }

    #[test]
    fn the_published_cq_and_eq_doorbells() {
        let cq = |command, parameter| {
            dwords(
                CqDoorbell {
                    command,
                    cqn: 0x85,
                    parameter,
                }
                .encode(),
            )
        };
        assert_eq!(cq(CqCommand::INCREMENT, 2), [0x0100_0085, 2]);
        assert_eq!(
            cq(CqCommand::ARM, CqDoorbell::KNOWN_INDEX),
            [0x0200_0085, 0xffff_ffff]
        );
        let m = MCqDoorbell {
            sequence: 1,
            arm: MArm::ANY,
            cqn: 0x85,
            counter: 7,
        };
        assert_eq!(dwords(m.encode()), [0x1200_0085, 7]);
        let eq = |command, parameter| {
            dwords(
                EqDoorbell {
                    command,
                    eqn: 2,
                    parameter,
                }
                .encode(),
            )
        };
        assert_eq!(eq(EqCommand::ARM, 0), [0x0200_0002, 0]);
        assert_eq!(eq(EqCommand::SET_INDEX, 0x11), [0x0400_0002, 0x11]);
        assert_eq!(eq(EqCommand::DISARM_CQ, 0x85), [0x0300_0002, 0x85]);
    }

    #[test]
    fn the_published_doorbell_records() {
        let mut arm = DoorbellRecord::ZERO;
        arm.set_counter(7)
            .set_number(0x85)
            .set_record_type(RecordType::CQ_ARM);
        arm.set_sequence(1).set_arm(MArm::ANY);
        assert_eq!(arm.as_bytes(), [0, 0, 0, 7, 0, 0, 0x85, 0x4a]);
        let initial = |number, kind| {
            let mut record = DoorbellRecord::ZERO;
            record.set_number(number).set_record_type(kind);
            u64::from_be_bytes(zerocopy::transmute!(record))
        };
        assert_eq!(initial(0x85, RecordType::CQ_SET_CI), 0x8520);
        assert_eq!(initial(0x404, RecordType::SQ), 0x4_0460);
        assert_eq!(initial(0x404, RecordType::RQ), 0x4_0480);
        assert_eq!(initial(0x12, RecordType::SRQ), 0x12a0);
    }

    proptest! {
        #[test]
        fn doorbells_survive_decoding_but_for_reserved_bits(value: u64) {
            let send = SendDoorbell::decode(value).encode();
            prop_assert_eq!(send, value & 0xffff_ffff_ffff_ff3f);
            let receive = ReceiveDoorbell::decode(value).encode();
            prop_assert_eq!(receive, value);
            prop_assert_eq!(CqDoorbell::decode(value).encode(), value);
            prop_assert_eq!(EqDoorbell::decode(value).encode(), value & 0xff00_003f_ffff_ffff);
            prop_assert_eq!(MSendDoorbell::decode(value).encode(), value & 0xffff_ff3f_ffff_ff3f);
            prop_assert_eq!(MCqDoorbell::decode(value).encode(), value & 0x37ff_ffff_ffff_ffff);
        }

        #[test]
        fn the_record_of_arming_is_that_of_the_layout(sequence in 0..4_u8, arm in 0..8_u8, cqn in 0..1_u32 << 24, counter: u32) {
            let arm = MArm(arm);
            let mut record = DoorbellRecord::ZERO;
            record
                .set_counter(counter)
                .set_number(cqn)
                .set_record_type(RecordType::CQ_ARM)
                .set_sequence(sequence)
                .set_arm(arm);
            let doorbell = MCqDoorbell { sequence, arm, cqn, counter };
            prop_assert_eq!(doorbell.record().to_be_bytes(), record.as_bytes());
        }

        #[test]
        fn an_arming_kept_ready_says_what_doorbell_and_record_say(
            sequence in 0..4_u8, arms: [bool; 2], cqn in 0..1_u32 << 24, counter: u32, next in 0..9_u8,
        ) {
            let [first, arm] = arms.map(|any| if any { MArm::ANY } else { MArm::SOLICITED });
            let begun = MCqDoorbell { sequence, arm: first, cqn, counter };
            let arming = (0..next).fold(begun.arming(), |arming, _| arming.next()).arm(arm);
            let doorbell = MCqDoorbell { sequence: (sequence + next) & 3, arm, ..begun };
            prop_assert_eq!(arming.doorbell(counter), doorbell.encode());
            prop_assert_eq!(arming.record(counter), doorbell.record());
            prop_assert_eq!(arming, doorbell.arming());
            prop_assert_eq!((arming.cqn(), arming.sequence()), (cqn, doorbell.sequence));
        }

        #[test]
        fn every_field_of_a_record_stands_alone(bytes: [u8; 8]) {
            each_field_stands_where_its_row_says::<DoorbellRecord>(&bytes, &[]);
        }
    }
}
