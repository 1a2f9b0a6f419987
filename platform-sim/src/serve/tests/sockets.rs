//! Clients that come and go, on real sockets.

use super::super::{Server, Socket};
use super::*;
use crate::machine::{Config, Mode, Nowhere, OnReport, WireEnd, World};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("openib-serve-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn serve(&self) -> (World, Server) {
        let config = Config {
            mode: Mode::RealTime,
            on_report: OnReport::Collect,
            ..Config::default()
        };
        let mut world = World::with(config, Nowhere);
        let socket = Socket::bind(&self.0).unwrap();
        let exerciser = Box::new(Exerciser::new());
        let host = world.add_guest("guest", exerciser, socket.guest(), &[WireEnd(0)]);
        let server = socket.serve(world.remote(host)).unwrap();
        (world, server)
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(&self.0).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client
    }
}

fn message(command: Command, body: &[u8]) -> Vec<u8> {
    let mut message = Header::command_of(7, command, body.len(), true)
        .as_bytes()
        .to_vec();
    message.extend_from_slice(body);
    message
}

/// Sends, and waits for the reply: its error number, or its body.
fn ask(client: &mut UnixStream, command: Command, body: &[u8]) -> std::io::Result<Answer> {
    client.write_all(&message(command, body))?;
    answer(client)
}

fn answer(client: &mut UnixStream) -> std::io::Result<Answer> {
    let mut header = [0; HEADER];
    client.read_exact(&mut header)?;
    let header: Header = view(&header);
    let mut body = vec![0; header.size() - HEADER];
    client.read_exact(&mut body)?;
    Ok(header.error().map_or(Ok(body), Err))
}

fn introduced(place: &Place) -> UnixStream {
    let mut client = place.connect();
    let version = ask(&mut client, Command::VERSION, &[0, 0, 0, 0]);
    version.unwrap().unwrap();
    client
}

#[test]
fn messages_in_one_packet_or_in_single_bytes_are_the_same_messages() {
    let place = Place::new("pieces");
    let (_world, server) = place.serve();
    let mut client = introduced(&place);
    let mut store = access(0, 0x10, 4).as_bytes().to_vec();
    store.extend_from_slice(&[1, 2, 3, 4]);
    let mut all = message(Command::REGION_WRITE, &store);
    all.extend(message(Command::REGION_READ, access(0, 0x10, 4).as_bytes()));
    for piece in [all.len(), 1, 5, 17] {
        all.chunks(piece)
            .for_each(|piece| client.write_all(piece).unwrap());
        assert_eq!(answer(&mut client).unwrap().unwrap().len(), 16);
        let loaded = answer(&mut client).unwrap().unwrap();
        assert_eq!(loaded[16..], [1, 2, 3, 4], "in pieces of {piece}");
    }
    drop(client);
    drop(server);
    assert!(!place.0.exists(), "the socket is removed");
}

#[test]
fn a_second_client_is_turned_away_while_the_first_is_there_and_welcome_after() {
    let place = Place::new("second");
    let (_world, server) = place.serve();
    let mut first = introduced(&place);
    let mut second = place.connect();
    let refused = ask(&mut second, Command::VERSION, &[0, 0, 0, 0]);
    assert!(refused.is_err());
    assert!(ask(&mut first, Command::RESET, &[]).unwrap().is_ok());
    drop(first);
    let mut third = introduced(&place);
    assert!(ask(&mut third, Command::RESET, &[]).unwrap().is_ok());
    server.disconnect();
    assert!(ask(&mut third, Command::RESET, &[]).is_err());
    introduced(&place);
}

#[test]
fn messages_are_counted_while_their_session_runs_and_once_when_it_has_ended() {
    let place = Place::new("counted");
    let (_world, server) = place.serve();
    let mut store = access(0, 0x10, 4).as_bytes().to_vec();
    store.extend_from_slice(&[1, 2, 3, 4]);
    let talk = |loads: u64| {
        let mut client = introduced(&place);
        let stored = ask(&mut client, Command::REGION_WRITE, &store);
        stored.unwrap().unwrap();
        let load = access(0, 0x10, 4);
        for _ in 0..loads {
            let loaded = ask(&mut client, Command::REGION_READ, load.as_bytes());
            loaded.unwrap().unwrap();
        }
        client
    };
    let client = talk(3);
    let traffic = server.traffic();
    assert_eq!((traffic.reads, traffic.writes, traffic.others), (3, 1, 1));
    drop(client);
    let _client = talk(2);
    let traffic = server.traffic();
    assert_eq!((traffic.reads, traffic.writes, traffic.others), (5, 2, 2));
    assert_eq!(traffic.refused, 0);
}

#[test]
fn a_message_whose_length_is_nonsense_ends_the_session_and_nothing_else() {
    let place = Place::new("nonsense");
    let (_world, _server) = place.serve();
    for size in [0_u32, 15, 1 << 20, u32::MAX] {
        let mut client = introduced(&place);
        let mut bytes = message(Command::RESET, &[]);
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        client.write_all(&bytes).unwrap();
        assert!(answer(&mut client).is_err(), "{size}");
    }
    introduced(&place);
}

#[test]
fn a_socket_that_is_in_use_is_not_taken_and_one_that_was_left_behind_is() {
    let place = Place::new("left");
    let (_world, server) = place.serve();
    let error = Socket::bind(&place.0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    drop(server);
    let dead = std::os::unix::net::UnixListener::bind(&place.0).unwrap();
    drop(dead);
    let (_world, _server) = place.serve();
    introduced(&place);
}

#[test]
fn files_belong_to_the_message_that_they_came_with() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd;
    let place = Place::new("files");
    let (world, server) = place.serve();
    let mut client = introduced(&place);
    let file = memory_file(4096, true);
    let store = |offset: u64, data: &[u8]| {
        let mut body = access(0, offset, data.len() as u32).as_bytes().to_vec();
        body.extend_from_slice(data);
        message(Command::REGION_WRITE, &body)
    };
    // Two stores at once, then a map with its file, then what uses the memory, without waiting in between.
    let mut before = store(0x10, &[1; 4]);
    before.extend(store(0x14, &[2; 4]));
    client.write_all(&before).unwrap();
    let mut map = [32_u32, 3].map(u32::to_ne_bytes).concat();
    map.extend([0_u64, 0x1_0000, 4096].map(u64::to_ne_bytes).concat());
    let map = message(Command::DMA_MAP, &map);
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let parts = [IoSlice::new(&map)];
    sendmsg(&client, &parts, &mut control, SendFlags::empty()).unwrap();
    client
        .write_all(&store(0x40, &0x1_0000_u64.to_be_bytes()))
        .unwrap();
    for _ in 0..4 {
        assert!(answer(&mut client).unwrap().is_ok());
    }
    assert_eq!(server.usage().regions, 1);
    drop(world);
}
