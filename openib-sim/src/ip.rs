//! The IP side of a simulated host: `smoltcp` as its stack, and the few programs that a demonstration needs: ping,
//! a TCP sender, a TCP receiver.
//!
//! No thread and no clock: the owner hands packets in, takes packets out, and says what time it is.

mod talk;

use crate::sums;
use core::time::Duration;
use core_ib::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::{icmp, tcp};
use smoltcp::wire::{
    HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr,
    IpEndpoint,
};
use std::collections::VecDeque;
use std::net::IpAddr;
pub use talk::{Talk, TalkState};

/// Packets that wait in either direction; more are dropped, as a full queue does.
const QUEUE: usize = 256;

/// Bytes of the TCP windows.
const WINDOW: usize = 256 * 1024;

/// Where the stack's packets come from and go to.
struct Wire {
    mtu: usize,
    received: VecDeque<Vec<u8>>,
    to_send: VecDeque<Vec<u8>>,
    /// Packets that found no room, or whose checksum was wrong.
    dropped: u64,
    /// The checksums of TCP and UDP are left to whoever carries the packets.
    leaves_sums: bool,
}

struct Incoming(Vec<u8>);

impl phy::RxToken for Incoming {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Outgoing<'w>(&'w mut VecDeque<Vec<u8>>);

impl phy::TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl phy::Device for Wire {
    type RxToken<'a> = Incoming;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Incoming, Outgoing<'_>)> {
        if self.to_send.len() >= QUEUE {
            return None;
        }
        let packet = self.received.pop_front()?;
        Some((Incoming(packet), Outgoing(&mut self.to_send)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Outgoing<'_>> {
        (self.to_send.len() < QUEUE).then_some(Outgoing(&mut self.to_send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = ChecksumCapabilities::default();
        if self.leaves_sums {
            capabilities.checksum.tcp = Checksum::None;
            capabilities.checksum.udp = Checksum::None;
        }
        capabilities
    }
}

/// An echo that was answered, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Whom was asked.
    pub peer: IpAddr,
    /// Number of the request.
    pub sequence: u16,
    /// Time to the answer; `None` if there was none in time.
    pub round_trip: Option<Duration>,
}

struct Pinging {
    peer: IpAddr,
    left: u16,
    sequence: u16,
    interval: Duration,
    patience: Duration,
    next: Instant,
    outstanding: Vec<(u16, Instant)>,
    /// Bytes of data.
    size: usize,
}

/// A stream whose bytes are a function of their position, so that both ends know them.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    state: u64,
    left: u64,
}

impl Pattern {
    const fn new(length: u64) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            left: length,
        }
    }

    /// The next bytes, as many as are left and fit.
    fn fill(&mut self, into: &mut [u8]) -> usize {
        let count = into
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        for byte in into.iter_mut().take(count) {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.state >> 56) as u8;
        }
        self.left -= count as u64;
        count
    }
}

/// How a transfer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes sent or received.
    pub bytes: u64,
    /// CRC-32 of them.
    pub checksum: u32,
    /// All of it, and the stream was closed in order.
    pub complete: bool,
    /// Reset, or closed too early.
    pub failed: bool,
    /// First and last byte.
    pub span: Option<(Instant, Instant)>,
}

enum Way {
    Sending(Pattern),
    Receiving { expected: u64 },
}

struct Stream {
    socket: SocketHandle,
    way: Way,
    crc: u32,
    transfer: Transfer,
}

/// One host's IP stack and programs.
pub struct IpHost {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    ping: SocketHandle,
    pinging: Vec<Pinging>,
    /// Bytes of data of the echo requests that are asked for from now on.
    ping_size: usize,
    echoes: Vec<Echo>,
    streams: Vec<Stream>,
    /// Talks that were ended here.
    hung_up: Vec<SocketHandle>,
    next_port: u16,
}

const IDENT: u16 = 0x1b;

fn at(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

impl IpHost {
    /// A host with these addresses. `seed` makes its port numbers and sequence numbers.
    pub fn new(addresses: &[crate::tun::Cidr], mtu: u16, seed: u64, now: Instant) -> Self {
        let mut wire = Wire {
            mtu: usize::from(mtu),
            received: VecDeque::new(),
            to_send: VecDeque::new(),
            dropped: 0,
            leaves_sums: false,
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, at(now));
        interface.update_ip_addrs(|list| {
            for address in addresses {
                // More than the stack holds are left out; a demonstration has two.
                let _ = list.push(IpCidr::new(address.address.into(), address.prefix));
            }
        });
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 64], vec![0; 65536]);
        let mut sockets = SocketSet::new(Vec::new());
        let mut socket = icmp::Socket::new(buffer(), buffer());
        // Fails for an endpoint of port 0 or a socket that is bound already.
        let _ = socket.bind(icmp::Endpoint::Ident(IDENT));
        let ping = sockets.add(socket);
        Self {
            wire,
            interface,
            sockets,
            ping,
            pinging: Vec::new(),
            ping_size: 56,
            echoes: Vec::new(),
            streams: Vec::new(),
            hung_up: Vec::new(),
            next_port: 49152 + (seed % 8192) as u16,
        }
    }

    /// From now on the checksums of TCP and UDP are left out of the packets that it [sends](Self::pop), in both versions of IP:
    /// its owner has them put in.
    pub fn leave_sums(&mut self, now: Instant) {
        if core::mem::replace(&mut self.wire.leaves_sums, true) {
            return;
        }
        // It asks what its wire can do once, when it is made.
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(self.next_port) << 32 | now.0 & 0xffff_ffff;
        let addresses = self.interface.ip_addrs().to_vec();
        self.interface = Interface::new(config, &mut self.wire, at(now));
        self.interface.update_ip_addrs(|list| {
            for address in addresses {
                let _ = list.push(address); // there was room before
            }
        });
    }

    /// Does it leave them?
    pub const fn leaves_sums(&self) -> bool {
        self.wire.leaves_sums
    }

    /// A packet came; `verified` if the checksum of TCP or UDP in it is known to be right.
    pub fn receive(&mut self, packet: &[u8], verified: bool) {
        let mut packet = packet.to_vec();
        let is_looked_at = !self.wire.leaves_sums || verified;
        if self.wire.received.len() < QUEUE && (is_looked_at || sums::is_right(&mut packet)) {
            self.wire.received.push_back(packet);
        } else {
            self.wire.dropped += 1;
        }
    }

    /// Takes the next packet that is to be sent.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.wire.to_send.pop_front()
    }

    /// Puts a packet that could not be sent back to where [`IpHost::pop`] found it.
    pub fn put_back(&mut self, packet: Vec<u8>) {
        self.wire.to_send.push_front(packet);
    }

    /// Packets that came and found no room, or were wrong.
    pub const fn dropped(&self) -> u64 {
        self.wire.dropped
    }

    /// Echo requests that are asked for from now on have so many bytes of data, 8 at least; 56 before.
    pub fn set_ping_size(&mut self, size: usize) {
        self.ping_size = size.max(8);
    }

    /// Sends `count` echo requests to `peer`, one each `interval`; an answer counts for `patience`.
    pub fn ping(
        &mut self,
        peer: IpAddr,
        count: u16,
        interval: Duration,
        patience: Duration,
        now: Instant,
    ) {
        self.pinging.push(Pinging {
            peer,
            left: count,
            sequence: 0,
            interval,
            patience,
            next: now,
            outstanding: Vec::new(),
            size: self.ping_size,
        });
    }

    /// Are echoes under way?
    pub fn is_pinging(&self) -> bool {
        !self.pinging.is_empty()
    }

    /// Takes the results so far.
    pub fn take_echoes(&mut self) -> Vec<Echo> {
        core::mem::take(&mut self.echoes)
    }

    fn tcp(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::Reno);
        self.sockets.add(socket)
    }

    /// Waits for a connection to `port` and takes `expected` bytes from it. Returns the number of the transfer.
    pub fn listen(&mut self, port: u16, expected: u64) -> usize {
        let socket = self.tcp();
        // Fails for port 0 or a socket in use.
        let _ = self.sockets.get_mut::<tcp::Socket<'_>>(socket).listen(port);
        self.stream(socket, Way::Receiving { expected })
    }

    /// Connects to `peer` and sends `length` bytes. Returns the number of the transfer.
    pub fn send(&mut self, peer: IpAddr, port: u16, length: u64) -> usize {
        let socket = self.tcp();
        let local = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(49152);
        let remote = IpEndpoint::new(IpAddress::from(peer), port);
        let context = self.interface.context();
        let result = self
            .sockets
            .get_mut::<tcp::Socket<'_>>(socket)
            .connect(context, remote, local);
        let number = self.stream(socket, Way::Sending(Pattern::new(length)));
        if result.is_err()
            && let Some(stream) = self.streams.get_mut(number)
        {
            stream.transfer.failed = true;
        }
        number
    }

    fn stream(&mut self, socket: SocketHandle, way: Way) -> usize {
        self.streams.push(Stream {
            socket,
            way,
            crc: crc32_start(),
            transfer: Transfer::default(),
        });
        self.streams.len() - 1
    }

    /// How transfer `number` stands.
    pub fn transfer(&self, number: usize) -> Transfer {
        self.streams
            .get(number)
            .map_or_else(Transfer::default, |stream| stream.transfer)
    }

    /// Does what is due at `now`; says when to be called again at the latest.
    pub fn poll(&mut self, now: Instant) -> Instant {
        self.forget_talks();
        // Two rounds: what the programs write after the stack has run is sent at once.
        for _ in 0..2 {
            self.interface
                .poll(at(now), &mut self.wire, &mut self.sockets);
            self.receive_echoes(now);
            self.send_echoes(now);
            for index in 0..self.streams.len() {
                self.serve(index, now);
            }
        }
        self.interface
            .poll(at(now), &mut self.wire, &mut self.sockets);
        let mut wake = match self.interface.poll_at(at(now), &self.sockets) {
            Some(due) => Instant(
                u64::try_from(due.total_micros())
                    .unwrap_or(0)
                    .saturating_mul(1000),
            ),
            None => Instant::NEVER,
        };
        for pinging in &self.pinging {
            if pinging.left > 0 {
                wake = wake.min(pinging.next);
            }
            for (_, sent) in &pinging.outstanding {
                wake = wake.min(sent.after(pinging.patience));
            }
        }
        wake
    }

    fn send_echoes(&mut self, now: Instant) {
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.ping);
        let checksums = ChecksumCapabilities::default();
        for pinging in &mut self.pinging {
            while pinging.left > 0 && pinging.next <= now && socket.can_send() {
                let sequence = pinging.sequence;
                let mut data = vec![0; pinging.size];
                data[..8].copy_from_slice(&now.0.to_be_bytes());
                let peer = IpAddress::from(pinging.peer);
                match pinging.peer {
                    IpAddr::V4(_) => {
                        let (ident, seq_no) = (IDENT, sequence);
                        let echo = Icmpv4Repr::EchoRequest {
                            ident,
                            seq_no,
                            data: &data,
                        };
                        let Ok(space) = socket.send(echo.buffer_len(), peer) else {
                            break;
                        };
                        echo.emit(&mut Icmpv4Packet::new_unchecked(space), &checksums);
                    }
                    IpAddr::V6(to) => {
                        let (ident, seq_no) = (IDENT, sequence);
                        let echo = Icmpv6Repr::EchoRequest {
                            ident,
                            seq_no,
                            data: &data,
                        };
                        let from = self.interface.get_source_address_ipv6(&to);
                        let Ok(space) = socket.send(echo.buffer_len(), peer) else {
                            break;
                        };
                        echo.emit(
                            &from,
                            &to,
                            &mut Icmpv6Packet::new_unchecked(space),
                            &checksums,
                        );
                    }
                }
                pinging.outstanding.push((sequence, now));
                pinging.sequence = pinging.sequence.wrapping_add(1);
                pinging.left -= 1;
                pinging.next = pinging.next.after(pinging.interval);
            }
        }
    }

    fn receive_echoes(&mut self, now: Instant) {
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(self.ping);
        while let Ok((bytes, from)) = socket.recv() {
            let sequence = match from {
                IpAddress::Ipv4(_) => Icmpv4Packet::new_checked(bytes)
                    .ok()
                    .map(|p| p.echo_seq_no()),
                IpAddress::Ipv6(_) => Icmpv6Packet::new_checked(bytes)
                    .ok()
                    .map(|p| p.echo_seq_no()),
            };
            let from = IpAddr::from(from);
            for pinging in self
                .pinging
                .iter_mut()
                .filter(|pinging| pinging.peer == from)
            {
                let known = |(number, _): &(u16, Instant)| Some(*number) == sequence;
                if let Some(index) = pinging.outstanding.iter().position(known) {
                    let (sequence, sent) = pinging.outstanding.swap_remove(index);
                    let round_trip = Some(now.since(sent));
                    self.echoes.push(Echo {
                        peer: from,
                        sequence,
                        round_trip,
                    });
                }
            }
        }
        let echoes = &mut self.echoes;
        self.pinging.retain_mut(|pinging| {
            let (peer, patience) = (pinging.peer, pinging.patience);
            pinging.outstanding.retain(|&(sequence, sent)| {
                let late = sent.after(patience) <= now;
                if late {
                    echoes.push(Echo {
                        peer,
                        sequence,
                        round_trip: None,
                    });
                }
                !late
            });
            pinging.left > 0 || !pinging.outstanding.is_empty()
        });
    }

    fn serve(&mut self, index: usize, now: Instant) {
        let Some(stream) = self.streams.get_mut(index) else {
            return;
        };
        let transfer = &mut stream.transfer;
        if transfer.complete || transfer.failed {
            return;
        }
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(stream.socket);
        let touch = |transfer: &mut Transfer| {
            let first = transfer.span.map_or(now, |(first, _)| first);
            transfer.span = Some((first, now));
        };
        match &mut stream.way {
            Way::Sending(pattern) => {
                while socket.can_send() && pattern.left > 0 {
                    let crc = &mut stream.crc;
                    let sent = socket.send(|space| {
                        let count = pattern.fill(space);
                        *crc = crc32_more(*crc, &space[..count]);
                        (count, count)
                    });
                    match sent {
                        Ok(0) | Err(_) => break,
                        Ok(count) => transfer.bytes += count as u64,
                    }
                    touch(transfer);
                }
                if pattern.left == 0 && socket.may_send() {
                    socket.close();
                }
                transfer.complete = pattern.left == 0
                    && matches!(
                        socket.state(),
                        tcp::State::FinWait2 | tcp::State::TimeWait | tcp::State::Closed
                    )
                    && socket.send_queue() == 0;
                transfer.failed = pattern.left > 0 && !socket.is_active();
            }
            Way::Receiving { expected } => {
                while socket.can_recv() {
                    let crc = &mut stream.crc;
                    let got = socket.recv(|bytes| {
                        *crc = crc32_more(*crc, bytes);
                        (bytes.len(), bytes.len())
                    });
                    match got {
                        Ok(0) | Err(_) => break,
                        Ok(count) => transfer.bytes += count as u64,
                    }
                    touch(transfer);
                }
                let ended = socket.state() == tcp::State::CloseWait;
                if ended {
                    socket.close();
                }
                transfer.complete = transfer.bytes == *expected && (ended || !socket.is_open());
                transfer.failed = transfer.bytes != *expected && (ended || !socket.is_open());
            }
        }
        transfer.checksum = crc32_end(stream.crc);
    }
}

const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

const fn crc32_start() -> u32 {
    0xffff_ffff
}

fn crc32_more(state: u32, bytes: &[u8]) -> u32 {
    // The digest's initial value is in its own bit order, hence the reversal.
    let mut digest = CRC.digest_with_initial(state.reverse_bits());
    digest.update(bytes);
    digest.finalize() ^ 0xffff_ffff
}

const fn crc32_end(state: u32) -> u32 {
    state ^ 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [IpHost; 2] {
        [1, 2].map(|n| {
            let addresses = [format!("10.0.0.{n}/24"), format!("fd00::{n}/64")];
            let addresses = addresses.map(|text| text.parse().unwrap());
            IpHost::new(&addresses, 2044, n, Instant(0))
        })
    }

    /// Carries packets between the two for `time`; every `lose`-th is lost.
    fn run(hosts: &mut [IpHost; 2], time: Duration, lose: u64) {
        let mut now = Instant(0);
        let mut count = 0;
        while now < Instant(0).after(time) {
            let mut next = now.after(Duration::from_millis(50));
            for side in 0..2 {
                next = next.min(hosts[side].poll(now));
                while let Some(packet) = hosts[side].pop() {
                    count += 1;
                    if lose == 0 || count % lose != 0 {
                        hosts[1 - side].receive(&packet, false);
                    }
                }
            }
            now = now
                .after(Duration::from_micros(100))
                .min(Instant(next.0.max(now.0 + 1000)));
        }
    }

    #[test]
    fn a_checksum_in_pieces_is_that_of_the_whole() {
        let whole = CRC.checksum(b"123456789");
        let pieces = crc32_more(crc32_more(crc32_start(), b"1234"), b"56789");
        assert_eq!(crc32_end(pieces), whole);
        assert_eq!(whole, 0xcbf4_3926);
    }

    #[test]
    fn echoes_are_answered_in_both_families_and_missed_ones_are_told() {
        let mut hosts = pair();
        let (interval, patience) = (Duration::from_millis(10), Duration::from_millis(200));
        hosts[0].ping(
            "10.0.0.2".parse().unwrap(),
            3,
            interval,
            patience,
            Instant(0),
        );
        hosts[0].ping(
            "fd00::2".parse().unwrap(),
            3,
            interval,
            patience,
            Instant(0),
        );
        hosts[0].ping(
            "10.0.0.9".parse().unwrap(),
            1,
            interval,
            patience,
            Instant(0),
        );
        run(&mut hosts, Duration::from_millis(400), 0);
        let echoes = hosts[0].take_echoes();
        assert_eq!(
            echoes
                .iter()
                .filter(|echo| echo.round_trip.is_some())
                .count(),
            6
        );
        assert_eq!(echoes.len(), 7);
        assert!(!hosts[0].is_pinging());
    }

    #[test]
    fn what_leaves_its_checksums_out_takes_nothing_that_is_wrong() {
        let mut hosts = pair();
        hosts
            .iter_mut()
            .for_each(|host| host.leave_sums(Instant(0)));
        assert!(hosts[0].leaves_sums());
        for peer in ["10.0.0.2", "fd00::2"] {
            hosts[0].send(peer.parse().unwrap(), 5001, 10);
        }
        let mut versions = Vec::new();
        hosts[0].poll(Instant(0));
        while let Some(mut packet) = hosts[0].pop() {
            versions.push(packet[0] >> 4);
            let before = hosts[1].dropped();
            hosts[1].receive(&packet, false);
            assert_eq!(hosts[1].dropped(), before + 1, "without a checksum");
            sums::fill(&mut packet);
            hosts[1].receive(&packet, false);
            assert_eq!(hosts[1].dropped(), before + 1, "with one");
        }
        assert_eq!(versions, [4, 6]);
    }

    #[test]
    fn a_stream_arrives_whole_though_packets_are_lost() {
        let mut hosts = pair();
        let length = 300_000;
        let receiving = hosts[1].listen(5001, length);
        let sending = hosts[0].send("10.0.0.2".parse().unwrap(), 5001, length);
        run(&mut hosts, Duration::from_secs(20), 29);
        let (sent, received) = (hosts[0].transfer(sending), hosts[1].transfer(receiving));
        assert!(received.complete && !received.failed, "{received:?}");
        assert_eq!((received.bytes, received.checksum), (length, sent.checksum));
    }
}
