//! Clients that send anything.

use super::super::read_untrusted;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Numbers near which something changes.
fn number() -> impl Strategy<Value = u64> {
    let edge = prop_oneof![
        Just(0_u64),
        Just(4),
        Just(0x42),
        Just(0x50),
        Just(0x1000),
        Just(0x4000),
        Just(u64::MAX),
    ];
    (edge, 0..10_u64).prop_map(|(edge, more)| edge.wrapping_add(more).wrapping_sub(2))
}

/// A packet and the byte before it: a message of the right shape more often than not.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![8 => 1..16_u16, 1 => any::<u16>()];
    let body = prop_oneof![
        4 => vec(number(), 3..5).prop_map(|words| words.iter().flat_map(|word| word.to_ne_bytes()).collect()),
        4 => vec(prop_oneof![0..40_u32, Just(u32::MAX)], 4..8)
            .prop_map(|words| words.iter().flat_map(|word| word.to_ne_bytes()).collect()),
        1 => vec(any::<u8>(), 0..80),
    ];
    (command, body, any::<bool>(), 0..4_u8, 0..20_u8).prop_map(
        |(command, body, reply, file, luck): (u16, Vec<u8>, _, _, _)| {
            let mut header = Header::command_of(1, Command(command), body.len(), reply)
                .as_bytes()
                .to_vec();
            if luck == 0 {
                header[4] ^= 1; // the wrong length
            }
            let len = (HEADER + body.len()).div_ceil(4).min(0x3e) as u8;
            let mut packet = vec![file << 6 | len];
            packet.extend(header);
            packet.extend(body);
            packet
        },
    )
}

proptest! {
    #[test]
    fn no_stream_of_messages_makes_the_server_panic(packets in vec(packet(), 0..30)) {
        // Introduced, or nothing else would be heard.
        let mut bytes = vec![5];
        bytes.extend(Header::command_of(0, Command::VERSION, 4, true).as_bytes());
        bytes.extend([0, 0, 0, 0]);
        packets.iter().for_each(|packet| bytes.extend(packet));
        read_untrusted(&bytes);
    }

    #[test]
    fn no_bytes_make_the_server_panic(bytes in vec(any::<u8>(), 0..400)) {
        read_untrusted(&bytes);
    }

    #[test]
    fn the_device_reaches_nothing_outside_of_what_is_mapped(
        maps in vec((0..8_u64, 1..4_u64, 0..4_u32), 1..6),
        accesses in vec((0..12_u64, number(), 0..9000_usize, any::<bool>()), 1..20),
    ) {
        let mut talk = Talk::new();
        let mut pages = [0_u32; 16];
        for (page, len, flags) in maps {
            let file = memory_file(len * 4096, true);
            let mapped = talk.map(flags, page * 4096, len * 4096, 0, Some(&file));
            let here = &mut pages[page as usize..(page + len) as usize];
            prop_assert_eq!(mapped.is_ok(), here.iter().all(|page| page & 4 == 0));
            if mapped.is_ok() {
                here.fill(flags | 4);
            }
        }
        let mut door = Door(talk.bench.client.clone());
        for (page, more, len, write) in accesses {
            let at = (page * 4096).wrapping_add(more);
            let needs = if write { 4 | 2 } else { 4 | 1 };
            let first = at / 4096;
            let last = at.saturating_add((len as u64).max(1) - 1) / 4096;
            let mut touched = (first..=last.min(first + 16)).map(|page| {
                pages.get(page as usize).copied().unwrap_or(0)
            });
            let allowed = touched.all(|page| page & needs == needs);
            let mut bytes = vec![1; len];
            let result = if write {
                door.dma_write(DmaAddr::new(at), &bytes)
            } else {
                door.dma_read(DmaAddr::new(at), &mut bytes)
            };
            if len > 0 {
                prop_assert_eq!(result.is_ok(), allowed, "{} bytes at {:#x}, write {}", len, at, write);
            }
        }
    }
}
