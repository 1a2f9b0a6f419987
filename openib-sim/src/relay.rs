//! A plain relay between two TUN devices: what the fabric of [`demo_tun`](crate::demo_tun) is measured against.
//!
//! The same two namespaces, devices and addresses; between them a thread that copies packets, and nothing else.

use crate::ended::{Ended, Stop};
use crate::sim::addresses;
use crate::tun::{Child, MTU, Namespace, Tun};
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::time::Instant;

/// Options of the relay.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// What to run in the first namespace, with PEER, PEER6, NS and PEER_NS set.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Between two looks at the command.
const TICK: Duration = Duration::from_millis(20);
/// Packets copied one way before the other has its turn.
const BURST: usize = 64;

/// Runs it until the command ends.
pub fn run(options: &Options) -> Result<(), Stop> {
    let ended = Ended::new()?;
    let host = |index| {
        let name = Namespace::of_host(index);
        let problem = |error: io::Error| format!("network namespace {name}: {error}");
        let namespace = Namespace::new(&name).map_err(problem)?;
        let tun = namespace.tun("ib0", MTU, &addresses(index));
        Ok::<_, String>((tun.map_err(problem)?, namespace))
    };
    let ((one, here), (other, there)) = (host(0)?, host(1)?);
    let mut peer = addresses(1).into_iter().map(|cidr| cidr.address);
    let peer = (peer.next(), peer.next());
    let mut child = Child::start(&options.command, &here, &there, peer)?;
    let mut packet = vec![0; 65536];
    let mut looked = Instant::now();
    loop {
        let copied = copy(&one, &other, &mut packet).and_then(|there| {
            let back = copy(&other, &one, &mut packet)?;
            if !(there || back) {
                wait(&one, &other)?;
            }
            Ok(())
        });
        copied.map_err(|error| format!("the relay: {error}"))?;
        if looked.elapsed() >= TICK {
            looked = Instant::now();
            if let Some(result) = child.result(&ended) {
                return result;
            }
        }
    }
}

/// Copies what waits, at most [`BURST`] packets. Says whether there was one. What the other end has no room for is
/// lost.
fn copy(from: &Tun, to: &Tun, packet: &mut [u8]) -> io::Result<bool> {
    for copied in 0..BURST {
        match from.recv(packet) {
            Ok(length) => match to.send(packet.get(..length).unwrap_or_default()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(copied > 0),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn wait(one: &Tun, other: &Tun) -> io::Result<()> {
    let mut files = [
        PollFd::new(one, PollFlags::IN),
        PollFd::new(other, PollFlags::IN),
    ];
    let limit = Timespec::try_from(TICK).map_err(io::Error::other)?;
    match poll(&mut files, Some(&limit)) {
        Err(error) if error != rustix::io::Errno::INTR => Err(error.into()),
        _ => Ok(()),
    }
}
