//! Memory and interrupts of the client, as the device reaches them.

use super::*;
use proptest::prelude::*;

const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ENOENT: u32 = 2;

fn door(talk: &Talk) -> Door {
    Door(talk.bench.client.clone())
}

fn not_mapped(at: u64, len: usize) -> Result<(), DmaFault> {
    let at = DmaAddr::new(at);
    Err(DmaFault::NotMapped { at, len })
}

#[test]
fn what_the_device_writes_is_in_the_clients_file_sealed_or_not() {
    for sealed in [true, false] {
        let mut talk = Talk::new();
        let file = memory_file(3 * 4096, sealed);
        talk.map(3, 0x10_0000, 8192, 4096, Some(&file)).unwrap();
        let mut door = door(&talk);
        let to = DmaAddr::new(0x10_0003);
        door.dma_write(to, b"eleven bytes").unwrap();
        assert_eq!(at(&file, 4096 + 3, 12), b"eleven bytes", "{sealed}");
        file.write_all_at(b"ELEVEN", 4096 + 3).unwrap();
        let mut back = [0; 12];
        door.dma_read(to, &mut back).unwrap();
        assert_eq!(&back, b"ELEVEN bytes");
    }
}

#[test]
fn an_access_that_leaves_what_is_mapped_copies_nothing() {
    let mut talk = Talk::new();
    let file = memory_file(8192, true);
    talk.map(3, 0x8000, 4096, 0, Some(&file)).unwrap();
    let mut door = door(&talk);
    let bytes = [7; 16];
    assert_eq!(
        door.dma_write(DmaAddr::new(0x8ff8), &bytes),
        not_mapped(0x8ff8, 16)
    );
    assert_eq!(at(&file, 0xff0, 32), [0; 32]);
    assert_eq!(
        door.dma_write(DmaAddr::new(0x7fff), &bytes),
        not_mapped(0x7fff, 16)
    );
    assert_eq!(
        door.dma_write(DmaAddr::new(u64::MAX - 3), &bytes),
        not_mapped(u64::MAX - 3, 16)
    );
    assert_eq!(talk.bench.client.usage().faults, 3);
}

#[test]
fn an_access_goes_on_from_one_region_into_the_next() {
    let mut talk = Talk::new();
    let (low, high) = (memory_file(4096, true), memory_file(4096, false));
    talk.map(3, 0x2000, 4096, 0, Some(&high)).unwrap();
    talk.map(3, 0x1000, 4096, 0, Some(&low)).unwrap();
    let mut door = door(&talk);
    let bytes: Vec<u8> = (0..=99).collect();
    door.dma_write(DmaAddr::new(0x1fce), &bytes).unwrap();
    assert_eq!(at(&low, 0xfce, 50), bytes[..50]);
    assert_eq!(at(&high, 0, 50), bytes[50..]);
    let mut back = [0; 100];
    door.dma_read(DmaAddr::new(0x1fce), &mut back).unwrap();
    assert_eq!(back[..], bytes);
}

#[test]
fn memory_that_may_only_be_read_is_not_written() {
    let mut talk = Talk::new();
    let file = memory_file(4096, true);
    talk.map(1, 0, 4096, 0, Some(&file)).unwrap();
    let mut door = door(&talk);
    let here = DmaAddr::new(16);
    let wrong = DmaFault::Direction { at: here, len: 4 };
    assert_eq!(door.dma_write(here, &[1; 4]), Err(wrong));
    assert_eq!(door.dma_read(here, &mut [1; 4]), Ok(()));
}

#[test]
fn a_region_without_a_file_is_known_and_not_reached() {
    let mut talk = Talk::new();
    let file = memory_file(4096, true);
    talk.map(3, 0xe_0000, 4096, 0, None).unwrap();
    assert_eq!(talk.map(3, 0xe_0000, 4096, 0, Some(&file)), Err(EEXIST));
    let mut bytes = [0; 4];
    let read = door(&talk).dma_read(DmaAddr::new(0xe_0000), &mut bytes);
    assert_eq!(read, not_mapped(0xe_0000, 4));
}

#[test]
fn what_is_unmapped_is_not_reached_any_more_and_only_whole_regions_are_unmapped() {
    let mut talk = Talk::new();
    let file = memory_file(8192, true);
    talk.map(3, 0, 8192, 0, Some(&file)).unwrap();
    assert_eq!(talk.unmap(0, 0, 4096), Err(ENOENT));
    assert_eq!(talk.unmap(0, 4096, 4096), Err(ENOENT));
    let echo = talk.unmap(0, 0, 8192).unwrap();
    assert_eq!(echo.len(), 24);
    assert_eq!(
        door(&talk).dma_write(DmaAddr::new(0), &[0; 4]),
        not_mapped(0, 4)
    );
    talk.map(3, 0, 4096, 0, Some(&file)).unwrap();
    talk.map(3, 4096, 4096, 4096, Some(&file)).unwrap();
    talk.unmap(2, 0, 0).unwrap();
    assert_eq!(talk.bench.client.usage().regions, 0);
}

/// What a QEMU with an IOMMU for its guest says when a domain ends: powers of two, whatever is in them.
#[test]
fn a_range_is_unmapped_with_all_that_is_in_it_and_may_be_empty() {
    let mut talk = Talk::new();
    let file = memory_file(16384, true);
    for at in [0x1000, 0x2000, 0x8000] {
        talk.map(3, at, 4096, 0, Some(&file)).unwrap();
    }
    talk.map(3, 0xa000, 8192, 0, Some(&file)).unwrap();
    assert_eq!(talk.unmap(0, 0, 0xb000), Err(ENOENT));
    assert_eq!(talk.unmap(0, 0xb000, 0x5000), Err(ENOENT));
    assert_eq!(talk.unmap(0, 0x2000, 0), Err(ENOENT));
    assert_eq!(talk.unmap(0, 0x2000, u64::MAX), Err(ENOENT));
    assert_eq!(talk.bench.client.usage().regions, 4);
    talk.unmap(0, 0, 0x8000).unwrap();
    assert_eq!(talk.bench.client.usage().regions, 2);
    talk.unmap(0, 0, 0x8000).unwrap();
    talk.unmap(0, 1 << 47, 1 << 47).unwrap();
    assert_eq!(
        door(&talk).dma_write(DmaAddr::new(0x1000), &[0; 4]),
        not_mapped(0x1000, 4)
    );
    door(&talk)
        .dma_write(DmaAddr::new(0xb000), &[0; 4])
        .unwrap();
    talk.unmap(0, 0x8000, 0x4000).unwrap();
    assert_eq!(talk.bench.client.usage().regions, 0);
}

#[test]
fn a_map_that_overlaps_wraps_or_is_not_in_its_file_is_refused() {
    let mut talk = Talk::new();
    let file = memory_file(8192, true);
    talk.map(3, 0x1000, 8192, 0, Some(&file)).unwrap();
    for (at, len) in [(0, 8192), (0x1000, 4096), (0x2000, 4096), (0, 0x10_0000)] {
        assert_eq!(
            talk.map(3, at, len, 0, None),
            Err(EEXIST),
            "{len:#x} at {at:#x}"
        );
    }
    let outside = 0x10_0000;
    assert_eq!(talk.map(3, outside, 0, 0, None), Err(EINVAL), "empty");
    assert_eq!(talk.map(3, outside, 100, 0, None), Err(EINVAL), "no pages");
    assert_eq!(talk.map(3, !0xfff, 8192, 0, None), Err(EINVAL), "wraps");
    assert_eq!(talk.map(4, outside, 4096, 0, None), Err(EINVAL), "flags");
    for (len, offset) in [(12288, 0), (4096, 8192), (4096, !0xfff), (4096, 100)] {
        let result = talk.map(3, outside, len, offset, Some(&file));
        assert_eq!(result, Err(EINVAL), "{len} from {offset}");
    }
    let event = File::from(event());
    assert_eq!(
        talk.map(3, outside, 4096, 0, Some(&event)),
        Err(EINVAL),
        "no file"
    );
    talk.map(3, 0, 4096, 0, None).unwrap();
    talk.map(3, !0xfff, 4096, 0, None).unwrap();
}

#[test]
fn an_unsealed_file_that_is_cut_short_gives_faults_and_kills_nobody() {
    let mut talk = Talk::new();
    let file = memory_file(8192, false);
    talk.map(3, 0, 8192, 0, Some(&file)).unwrap();
    file.set_len(4096).unwrap();
    let mut door = door(&talk);
    assert_eq!(
        door.dma_read(DmaAddr::new(4096), &mut [0; 4]),
        not_mapped(4096, 4)
    );
    assert_eq!(door.dma_read(DmaAddr::new(0), &mut [0; 4]), Ok(()));
}

#[test]
fn a_message_signals_its_file_and_no_other() {
    let mut talk = Talk::new();
    talk.enable();
    let events = [event(), event()];
    let files = events.iter().map(|event| event.try_clone().unwrap());
    talk.set_irqs([4 | 32, 2, 1, 2], &[], files.collect())
        .unwrap();
    talk.store(7, 0x42, &[0, 0x80]).unwrap(); // MSI-X on
    talk.store(0, 0x54, &[0, 0, 0, 2]).unwrap(); // raise message 2
    assert_eq!(events.each_ref().map(signals), [0, 1]);
    talk.set_irqs([4 | 32, 2, 2, 1], &[], Vec::new()).unwrap(); // without files: give up
    talk.store(0, 0x54, &[0, 0, 0, 2]).unwrap();
    talk.store(0, 0x54, &[0, 0, 0, 1]).unwrap();
    assert_eq!(events.each_ref().map(signals), [1, 0]);
}

#[test]
fn a_message_that_was_masked_goes_out_when_its_file_comes() {
    let mut talk = Talk::new();
    talk.enable();
    talk.store(7, 0x42, &[0, 0x80]).unwrap();
    talk.store(0, 0x54, &[0, 0, 0, 3]).unwrap();
    let event = event();
    let file = event.try_clone().unwrap();
    talk.set_irqs([4 | 32, 2, 3, 1], &[], vec![file]).unwrap();
    assert_eq!(signals(&event), 1);
}

#[test]
fn the_pin_signals_once_until_it_is_unmasked_and_again_if_it_is_still_up() {
    let mut talk = Talk::new();
    talk.enable();
    let event = event();
    let file = event.try_clone().unwrap();
    talk.set_irqs([4 | 32, 0, 0, 1], &[], vec![file]).unwrap();
    talk.store(0, 0x54, &[0; 4]).unwrap(); // raise
    talk.store(0, 0x54, &[0; 4]).unwrap();
    assert_eq!(signals(&event), 1);
    talk.set_irqs([1 | 16, 0, 0, 1], &[], Vec::new()).unwrap(); // unmask
    assert_eq!(signals(&event), 1, "still up");
    talk.store(0, 0x58, &[0, 0, 0, 1]).unwrap(); // release
    talk.set_irqs([1 | 16, 0, 0, 1], &[], Vec::new()).unwrap();
    assert_eq!(signals(&event), 0);
    talk.store(0, 0x54, &[0; 4]).unwrap();
    assert_eq!(signals(&event), 1);
    assert_eq!(talk.bench.client.usage().interrupts, 2);
}

#[test]
fn a_pin_that_is_up_signals_when_its_file_comes() {
    let mut talk = Talk::new();
    talk.enable();
    talk.store(0, 0x54, &[0; 4]).unwrap();
    let event = event();
    let file = event.try_clone().unwrap();
    talk.set_irqs([4 | 32, 0, 0, 1], &[], vec![file]).unwrap();
    assert_eq!(signals(&event), 1);
}

#[test]
fn settings_of_interrupts_that_are_not_there_or_mean_nothing_are_refused() {
    let mut talk = Talk::new();
    let wrong = [
        [4 | 32, 2, 4, 1],        // four messages
        [4 | 32, 2, 0, u32::MAX], // all of them, and more
        [4 | 32, 2, u32::MAX, 1], // wraps
        [4 | 32, 1, 0, 1],        // no MSI
        [1 | 32, 9, 0, 0],        // no such kind
        [1 | 2 | 32, 2, 0, 1],    // two kinds of data
        [1 | 8 | 16, 0, 0, 1],    // two actions
        [32, 2, 0, 1],            // no kind of data
        [1, 2, 0, 1],             // no action
        [1 | 8, 2, 0, 1],         // messages are not masked here
        [4 | 16, 0, 0, 1],        // nobody knows when the guest unmasks
        [0x41 | 32, 2, 0, 1],     // unknown flag
        [2 | 32, 2, 0, 3],        // three flags are missing
    ];
    for words in wrong {
        assert_eq!(
            talk.set_irqs(words, &[], Vec::new()),
            Err(EINVAL),
            "{words:?}"
        );
    }
    let files = vec![event(), event()];
    assert_eq!(talk.set_irqs([4 | 32, 2, 0, 3], &[], files), Err(EINVAL));
    assert_eq!(
        talk.set_irqs([1 | 32, 2, 0, 0], &[], Vec::new()),
        Ok(Vec::new())
    );
}

#[test]
fn a_client_may_trigger_interrupts_itself() {
    let mut talk = Talk::new();
    let events = [event(), event()];
    let files = events.iter().map(|event| event.try_clone().unwrap());
    talk.set_irqs([4 | 32, 2, 0, 2], &[], files.collect())
        .unwrap();
    talk.set_irqs([2 | 32, 2, 0, 2], &[0, 1], Vec::new())
        .unwrap();
    assert_eq!(events.each_ref().map(signals), [0, 1]);
    talk.set_irqs([1 | 32, 2, 0, 2], &[], Vec::new()).unwrap();
    assert_eq!(events.each_ref().map(signals), [1, 1]);
    talk.set_irqs([1 | 32, 2, 0, 0], &[], Vec::new()).unwrap(); // give all up
    talk.set_irqs([1 | 32, 2, 0, 2], &[], Vec::new()).unwrap();
    assert_eq!(events.each_ref().map(signals), [0, 0]);
}

proptest! {
    #[test]
    fn bytes_arrive_whole_at_any_offset_and_length(start in 0..64_u64, len in 0..80_usize, sealed: bool) {
        let mut talk = Talk::new();
        let file = memory_file(4096, sealed);
        talk.map(3, 0x4000, 4096, 0, Some(&file)).unwrap();
        let mut door = door(&talk);
        let bytes: Vec<u8> = (1..=80).take(len).collect();
        let to = DmaAddr::new(0x4000 + start);
        door.dma_write(to, &bytes).unwrap();
        let mut expected = vec![0; 160];
        expected[start as usize..start as usize + len].copy_from_slice(&bytes);
        prop_assert_eq!(at(&file, 0, 160), expected);
        let mut back = vec![0; len];
        door.dma_read(to, &mut back).unwrap();
        prop_assert_eq!(back, bytes);
    }
}
