//! Answers that a device may give: for fuzzing, for the property test, and for the replay of the corpus.
//!
//! Here is what can be read without a machine. Completions and events mean something only to a driver that has
//! queues; they are in the hands of a whole driver on a device that lies.

use crate::av::Rates;
use crate::chip::{Chip, Mode};
use crate::limits::Limits;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::qp::context;
use hca_abi::infinihost::dev_lim::DevLim;
use hca_abi::infinihost::fw::{AdapterInfo, DdrInfo, FwInfo};
use hca_abi::infinihost::qp::QpContext;
use zerocopy::{FromBytes, IntoBytes};

/// Takes the next structure; what is missing is zero.
fn next<T: FromBytes + IntoBytes>(bytes: &mut &[u8]) -> T {
    let mut value = T::new_zeroed();
    let len = size_of::<T>().min(bytes.len());
    let (front, rest) = bytes.split_at_checked(len).unwrap_or_default();
    for (to, from) in value.as_mut_bytes().iter_mut().zip(front) {
        *to = *from;
    }
    *bytes = rest;
    value
}

/// What mem-free firmware says of itself, and what is made of it.
fn mem_free_answers(how: u8, mut bytes: &[u8]) {
    let bytes = &mut bytes;
    let chip = Chip {
        mode: Mode::M,
        sinai: how & 1 != 0,
        ..Chip::default()
    };
    let mut limits = Limits::default();
    let firmware = limits.note_m_firmware(&next::<FwInfo>(bytes));
    let dev = next::<DevLim>(bytes);
    let device = limits
        .note_device(&dev, 8 << 20)
        .and_then(|()| limits.note_m_device(&dev, chip.sinai));
    limits.note_adapter(&next::<AdapterInfo>(bytes));
    if firmware.is_err() || device.is_err() {
        return;
    }
    for profile in [Profile::SMALL, Profile::SERVER] {
        if let Ok(plan) = Plan::new(&chip, &profile, &limits) {
            let last = plan.uarc_of(plan.uar.saturating_add(1));
            assert!(plan.icm <= limits.max_icm && last <= plan.icm, "{plan:x?}");
        }
    }
}

/// What the firmware says of itself, and what is made of it.
fn answers(how: u8, mut bytes: &[u8]) {
    let bytes = &mut bytes;
    let mut limits = Limits::default();
    let firmware = limits.note_firmware(&next::<FwInfo>(bytes));
    let bar = (how & 1 != 0).then_some(128 << 20);
    let memory = limits.note_ddr(&next::<DdrInfo>(bytes), bar);
    let device = limits.note_device(&next::<DevLim>(bytes), 8 << 20);
    limits.note_adapter(&next::<AdapterInfo>(bytes));
    if firmware.is_err() || memory.is_err() || device.is_err() {
        return;
    }
    for profile in [Profile::SMALL, Profile::SERVER] {
        let Ok(plan) = Plan::new(&Chip::default(), &profile, &limits) else {
            continue;
        };
        let tables = &plan.tables;
        let all = [
            tables.qpc,
            tables.eqpc,
            tables.cqc,
            tables.eqc,
            tables.rdb,
            tables.mcg,
            tables.mpt,
            tables.mtt,
        ];
        for at in all {
            assert!(at < limits.firmware_start, "{at:#x}: {limits:?}");
        }
    }
}

/// What QUERY_QP says of a QP.
fn queue_pair(mut bytes: &[u8]) {
    let said: QpContext = next(&mut bytes);
    if let Some((state, draining)) = context::state_in(&said) {
        let attr = context::attributes(&said, state, draining, |_| Rates::Parts(4));
        assert!(attr.max_dest_rd_atomic <= 128 && attr.max_rd_atomic <= 128);
    }
}

/// Lets everything of this crate that reads answers of a device without having the device read these, which may be
/// anything. The first byte says which: its high bit, a QP's context; else QUERY_FW, QUERY_DDR, QUERY_DEV_LIM and
/// QUERY_ADAPTER, one behind the other, and its low bit whether there is a BAR 4. With its second bit the HCA is
/// mem-free, and there is no QUERY_DDR; the low bit says then whether it is a Sinai.
///
/// # Panics
///
/// If a table is to lie where the device has no room for it: that is the defect being looked for.
pub fn read_untrusted(bytes: &[u8]) {
    match bytes.split_first() {
        Some((how, bytes)) if how & 0x80 != 0 => queue_pair(bytes),
        Some((how, bytes)) if how & 2 != 0 => mem_free_answers(*how, bytes),
        Some((how, bytes)) => answers(*how, bytes),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_device_says_of_itself_is_taken_or_refused_without_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 1025), sane: bool, mem_free: bool,
        ) {
            bytes[0] = bytes[0] & 0x81 | u8::from(mem_free) << 1;
            if sane && mem_free {
                (bytes[0x101 + 0x37], bytes[0x101 + 0x49], bytes[0x101 + 0x4b]) = (2, 3, 12);
                bytes[0x181..0x195].copy_from_slice(&[
                    1, 0, 1, 0, 0, 32, 0, 32, 0, 64, 0, 64, 0, 32, 0, 32, 0, 8, 0, 64,
                ]);
                for register in [0x21, 0x31, 0x41, 0x49] {
                    bytes[register..register + 8].copy_from_slice(&0xf_0000_u64.to_be_bytes());
                }
            } else if sane { // the ports, the smallest page, the doorbell pages, the firmware
                (bytes[0x201 + 0x37], bytes[0x201 + 0x49], bytes[0x201 + 0x4b]) = (2, 3, 12);
                bytes[0x21..0x29].copy_from_slice(&0x1_0000_0000_u64.to_be_bytes());
                bytes[0x101..0x111].fill(0);
                bytes[0x109] = 1;
            }
            read_untrusted(&bytes);
        }
    }
}
