//! What is asked and answered.

use super::super::capabilities::proposes;
use super::super::message::{IndexBody, InfoBody, RegionInfoBody};
use super::*;

const EINVAL: u32 = 22;
const ENOSYS: u32 = 38;

#[test]
fn the_reply_to_an_introduction_is_of_no_later_version_and_offers_no_capability_that_was_not_proposed()
 {
    let mut talk = Talk::stranger();
    let body = talk.ask(Command::VERSION, &[0, 0, 0, 0]).unwrap();
    assert_eq!(body[..4], [0, 0, 0, 0]);
    assert_eq!(body.last(), Some(&0), "text ends with NUL");
    assert!(!proposes(&body[4..], b"write_multiple"));
    let mut talk = Talk::stranger();
    let mut body = vec![0, 0, 7, 0];
    body.extend_from_slice(b"{\"capabilities\":{\"write_multiple\":true}}\0");
    let body = talk.ask(Command::VERSION, &body).unwrap();
    assert_eq!(body[..4], [0, 0, 1, 0], "0.1 is the newest that is spoken");
    assert!(proposes(&body[4..], b"write_multiple"));
}

#[test]
fn a_client_that_speaks_another_version_may_try_again() {
    let mut talk = Talk::stranger();
    assert_eq!(talk.ask(Command::VERSION, &[1, 0, 0, 0]), Err(71), "EPROTO");
    assert!(talk.ask(Command::VERSION, &[0, 0, 0, 0]).is_ok());
    let again = talk.ask(Command::VERSION, &[0, 0, 0, 0]);
    assert_eq!(again, Err(EINVAL), "once is enough");
}

#[test]
fn who_does_not_introduce_himself_is_not_served() {
    let mut talk = Talk::stranger();
    let header = Header::command_of(9, Command::RESET, 0, true);
    let mut out = Vec::new();
    let result = talk.session.handle(&header, &[], &mut Vec::new(), &mut out);
    assert!(result.is_err(), "the session ends");
    let reply: Header = view(&out);
    assert_eq!((reply.id.get(), reply.error()), (9, Some(EINVAL)));
}

#[test]
fn the_device_is_a_pci_device_that_can_be_reset_with_nine_regions_and_five_kinds_of_interrupt() {
    let mut talk = Talk::new();
    let body = talk.ask(Command::GET_INFO, &[16, 0, 0, 0]).unwrap();
    let info: InfoBody = view(&body);
    let words = [info.argsz, info.flags, info.regions, info.irqs].map(|word| word.get());
    assert_eq!(words, [16, 3, 9, 5]);
}

#[test]
fn regions_are_as_long_as_the_bars_and_cannot_be_mapped() {
    let mut talk = Talk::new();
    let lens: Vec<(u64, u32)> = (0..9_u32)
        .map(|index| {
            let body = [32, 0, index, 0].map(u32::to_ne_bytes).concat();
            let body = talk.ask(Command::GET_REGION_INFO, &body).unwrap();
            let info: RegionInfoBody = view(&body);
            assert_eq!((info.argsz.get(), info.index.get()), (32, index));
            (info.size.get(), info.flags.get())
        })
        .collect();
    let none = (0, 0);
    let expected = [
        (4096, 3),
        none,
        none,
        none,
        none,
        none,
        none,
        (256, 3),
        none,
    ];
    assert_eq!(lens, expected);
    let body = [32, 0, 9, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(talk.ask(Command::GET_REGION_INFO, &body), Err(EINVAL));
}

#[test]
fn interrupts_are_a_pin_that_masks_itself_and_four_messages() {
    let mut talk = Talk::new();
    let kinds: Vec<(u32, u32)> = (0..5_u32)
        .map(|index| {
            let body = [16, 0, index, 0].map(u32::to_ne_bytes).concat();
            let body = talk.ask(Command::GET_IRQ_INFO, &body).unwrap();
            let info: IndexBody = view(&body);
            (info.count.get(), info.flags.get())
        })
        .collect();
    assert_eq!(kinds, [(1, 7), (0, 0), (4, 1), (1, 1), (0, 0)]);
}

#[test]
fn no_files_stand_for_stores() {
    let mut talk = Talk::new();
    let body = [16, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let body = talk.ask(Command::GET_REGION_IO_FDS, &body).unwrap();
    let info: IndexBody = view(&body);
    assert_eq!((info.argsz.get(), info.count.get()), (16, 0));
}

#[test]
fn configuration_space_is_read_in_any_pieces() {
    let mut talk = Talk::new();
    let whole = talk.load(7, 0, 256).unwrap();
    assert_eq!(whole[..4], [0x36, 0x1b, 5, 0]);
    for (offset, count) in [(1, 2), (3, 7), (0, 3), (61, 1), (255, 1)] {
        let part = talk.load(7, offset, count).unwrap();
        let range = offset as usize..offset as usize + count as usize;
        assert_eq!(part, whole[range], "{count} bytes at {offset}");
    }
    assert_eq!(talk.load(7, 255, 2), Err(EINVAL));
    assert_eq!(talk.load(7, u64::MAX, 1), Err(EINVAL));
}

#[test]
fn a_bar_is_reached_by_what_a_processor_can_do_and_by_nothing_else() {
    let mut talk = Talk::new();
    talk.enable();
    talk.store(0, 0x10, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(talk.load(0, 0x12, 2), Ok(vec![3, 4]));
    assert_eq!(talk.load(0, 0x17, 1), Ok(vec![8]));
    for (offset, count) in [
        (0x11, 2),
        (0x12, 4),
        (0, 3),
        (0, 16),
        (4096, 1),
        (4092, 8),
        (0, 0),
    ] {
        assert_eq!(
            talk.load(0, offset, count),
            Err(EINVAL),
            "{count} at {offset:#x}"
        );
    }
    assert_eq!(talk.store(1, 0, &[0; 4]), Err(EINVAL), "there is no BAR 1");
    assert_eq!(talk.store(8, 0, &[0; 4]), Err(EINVAL));
}

#[test]
fn a_posted_store_is_carried_out_and_never_answered() {
    let mut talk = Talk::new();
    talk.enable();
    let mut body = access(0, 0x10, 4).as_bytes().to_vec();
    body.extend_from_slice(&[9, 8, 7, 6]);
    let mut out = Vec::new();
    for offset in [0x10_u8, 0x11] {
        body[0] = offset;
        let header = Header::command_of(1, Command::REGION_WRITE, body.len(), false);
        let result = talk
            .session
            .handle(&header, &body, &mut Vec::new(), &mut out);
        assert!(result.is_ok(), "an error does not end the session");
    }
    assert!(out.is_empty());
    assert_eq!(talk.load(0, 0x10, 4), Ok(vec![9, 8, 7, 6]));
    assert_eq!(talk.session.traffic.refused, 1);
}

#[test]
fn several_stores_in_one_message_are_made_in_their_order() {
    let mut talk = Talk::new();
    talk.enable();
    let write = |offset: u64, data: [u8; 4]| {
        let mut write = access(0, offset, 4).as_bytes().to_vec();
        write.extend_from_slice(&data);
        write.extend_from_slice(&[0; 4]);
        write
    };
    let mut body = 3_u64.to_ne_bytes().to_vec();
    body.extend(write(0x10, [1; 4]));
    body.extend(write(0x14, [2; 4]));
    body.extend(write(0x10, [3; 4]));
    let done = talk.ask(Command::REGION_WRITE_MULTI, &body).unwrap();
    assert_eq!(done, 3_u64.to_ne_bytes());
    assert_eq!(talk.load(0, 0x10, 8), Ok(vec![3, 3, 3, 3, 2, 2, 2, 2]));
    body[0] = 4;
    assert_eq!(talk.ask(Command::REGION_WRITE_MULTI, &body), Err(EINVAL));
}

#[test]
fn a_reset_is_the_power_on_state_and_ends_no_mapping() {
    let mut talk = Talk::new();
    talk.enable();
    let file = memory_file(4096, true);
    talk.map(3, 0, 4096, 0, Some(&file)).unwrap();
    talk.store(0, 0x10, &[1; 4]).unwrap();
    talk.ask(Command::RESET, &[]).unwrap();
    assert_eq!(talk.load(0, 0x10, 4), Ok(vec![0; 4]));
    assert_eq!(talk.bench.client.usage().regions, 1);
}

#[test]
fn unknown_commands_and_replies_are_refused() {
    let mut talk = Talk::new();
    for command in [0, 11, 12, 14, 16, 17, 18, 999] {
        assert_eq!(
            talk.ask(Command(command), &[0; 32]),
            Err(ENOSYS),
            "{command}"
        );
    }
}

#[test]
fn a_body_of_the_wrong_length_is_refused() {
    let mut talk = Talk::new();
    let all = [2, 3, 4, 5, 6, 7, 8, 9, 10, 15].map(Command);
    for command in all {
        assert_eq!(talk.ask(command, &[0; 3]), Err(EINVAL), "{command:?}");
    }
    assert_eq!(talk.ask(Command::DMA_MAP, &[0; 33]), Err(EINVAL));
    let mut body = access(0, 0, 8).as_bytes().to_vec();
    body.extend_from_slice(&[0; 4]);
    assert_eq!(
        talk.ask(Command::REGION_WRITE, &body),
        Err(EINVAL),
        "4 bytes are not 8"
    );
}

#[test]
fn a_device_whose_client_has_gone_has_no_power_and_no_memory() {
    let mut talk = Talk::new();
    talk.enable();
    let file = memory_file(4096, true);
    talk.map(3, 0, 4096, 0, Some(&file)).unwrap();
    let Talk { bench, session, .. } = talk;
    session.end();
    assert_eq!(bench.client.usage().regions, 0);
    let last = bench.links.borrow().last().copied();
    assert_eq!(last, Some(LinkControl::Disabled));
    let mut door = Door(bench.client.clone());
    assert!(door.dma_read(DmaAddr::new(0), &mut [0; 4]).is_err());
}
