//! Counting for a limited time. protocols 3.13.2.

use super::AttributeId;
use super::layout::{constants, layout, number};

/// What a sampling counter counts. protocols 3.13.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleCounter(pub u16);

constants! { SampleCounter:
    /// PortXmitData.
    XMIT_DATA = 1;
    /// PortRcvData.
    RCV_DATA = 2;
    /// PortXmitPkts.
    XMIT_PKTS = 3;
    /// PortRcvPkts.
    RCV_PKTS = 4;
    /// PortXmitWait.
    XMIT_WAIT = 5;
}

/// How far sampling is. protocols 3.13.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleStatus(pub u8);

constants! { SampleStatus:
    /// Done.
    DONE = 0;
    /// Waits for its start.
    STARTED = 1;
    /// Counts.
    RUNNING = 2;
}

number! {
    SampleCounter, 2, |bits| Self(bits as u16), |counter| counter.0.into();
    SampleStatus, 1, |bits| Self(bits as u8), |status| status.0.into();
}

layout! {
    /// What is to be counted, and for how long. protocols 3.13.2.
    pub struct PortSamplesControl, PortSamplesControlView: 68, AttributeId::PORT_SAMPLES_CONTROL;
    /// OpCode: of the packets that count.
    opcode: u8 = 0,
    /// The port.
    port_select: u8 = 1,
    /// Tick: the unit of the times.
    tick: u8 = 2,
    /// CounterWidth.
    counter_width: u8 = 3 [2:0],
    /// CounterMasks 0 to 9: see [`PortSamplesControl::counter_mask`].
    masks_low: u32 = 4/4 [29:0],
    /// CounterMasks 10 to 14.
    masks_high: u16 = 8/2 [14:0],
    /// SampleMechanisms.
    mechanisms: u8 = 10,
    /// SampleStatus.
    status: SampleStatus = 11 [1:0],
    /// OptionMask.
    option_mask: u64 = 12,
    /// VendorMask.
    vendor_mask: u64 = 20,
    /// SampleStart, in ticks.
    start: u32 = 28,
    /// SampleInterval, in ticks.
    interval: u32 = 32,
    /// Tag: chosen by whoever samples.
    tag: u16 = 36,
    /// CounterSelect: what each counter counts.
    counters: [SampleCounter; 15] = 38,
}

impl PortSamplesControl {
    /// CounterMask of counter `index`, three bits; `None` beyond 14.
    pub const fn counter_mask(&self, index: u8) -> Option<u8> {
        match index {
            0..=9 => Some((self.masks_low >> (27 - 3 * index)) as u8 & 7),
            10..=14 => Some((self.masks_high >> (12 - 3 * (index - 10))) as u8 & 7),
            _ => None,
        }
    }
}

layout! {
    /// What was counted. protocols 3.13.2.
    pub struct PortSamplesResult, PortSamplesResultView: 64, AttributeId::PORT_SAMPLES_RESULT;
    /// Tag: as it was chosen.
    tag: u16 = 0,
    /// SampleStatus.
    status: SampleStatus = 3 [1:0],
    /// The counters.
    counts: [u32; 15] = 4,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mad::layout::property::round_trip_tests;

    round_trip_tests!(PortSamplesControl, PortSamplesResult);

    /// protocols 3.13.2.
    #[test]
    fn the_samples_lie_as_the_table_says() {
        let mut control = PortSamplesControl {
            opcode: 1,
            port_select: 2,
            tick: 3,
            counter_width: 5,
            masks_low: 0b001 << 27 | 0b011 << 24 | 0b110,
            masks_high: 0b101 << 12 | 0b100,
            mechanisms: 7,
            status: SampleStatus::RUNNING,
            option_mask: 0x0102_0304_0506_0708,
            vendor_mask: 0x1112_1314_1516_1718,
            start: 0x2122_2324,
            interval: 0x3132_3334,
            tag: 0x4142,
            counters: [SampleCounter::default(); 15],
        };
        control.counters[0] = SampleCounter::XMIT_WAIT;
        control.counters[14] = SampleCounter(0x5152);
        let bytes = control.to_bytes();
        let head = [
            1, 2, 3, 5, 0x0b, 0, 0, 6, 0x50, 4, 7, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13,
            0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41,
            0x42, 0, 5,
        ];
        assert_eq!(bytes[..40], head);
        assert_eq!(bytes[66..], [0x51, 0x52]);
        assert_eq!(PortSamplesControl::from_bytes(&bytes), control);
        let masks = [0, 1, 2, 9, 10, 14].map(|index| control.counter_mask(index).unwrap());
        assert_eq!(masks, [1, 3, 0, 6, 5, 4]);
        assert_eq!(control.counter_mask(15), None);

        let mut result = PortSamplesResult {
            tag: 0x4142,
            status: SampleStatus::STARTED,
            ..PortSamplesResult::default()
        };
        result.counts[14] = 0x0102_0304;
        let bytes = result.to_bytes();
        assert_eq!(bytes[..8], [0x41, 0x42, 0, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[60..], [1, 2, 3, 4]);
    }
}
