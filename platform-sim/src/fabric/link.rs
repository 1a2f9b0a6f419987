//! One direction of a cable, as a chain: the bare line, and whatever is wrapped around it.
//!
//! A link knows nothing of credits, lanes and ports: it takes a packet at the instant at which its first bit leaves, and
//! says when its last bit comes out at the other end. Faults ([`Faulty`](super::Faulty)) and captures
//! ([`Tap`](super::Tap)) are links around a link.

use core::time::Duration;
use core_ib::Instant;

/// A packet that comes out of a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit is there.
    pub at: Instant,
    /// LRH to VCRC, perhaps corrupt.
    pub packet: Vec<u8>,
}

/// One direction of a cable.
pub trait Link: Send {
    /// Puts a packet (LRH to VCRC) on the wire. Its first bit leaves at `now`, its last at `end`. Adds to `out` what comes
    /// out at the other end: mostly one packet, at times none or two.
    fn send(&mut self, packet: Vec<u8>, now: Instant, end: Instant, out: &mut Vec<Arrival>);
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(&mut self, packet: Vec<u8>, now: Instant, end: Instant, out: &mut Vec<Arrival>) {
        (**self).send(packet, now, end, out);
    }
}

/// A perfect line: everything comes out, some time later.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Time from end to end: 5 ns a metre.
    pub delay: Duration,
}

impl Link for Line {
    fn send(&mut self, packet: Vec<u8>, _: Instant, end: Instant, out: &mut Vec<Arrival>) {
        let at = end.after(self.delay);
        out.push(Arrival { at, packet });
    }
}
