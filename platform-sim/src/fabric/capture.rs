//! Captures: every packet that passes a link, in a file that a stock Wireshark dissects.
//!
//! pcap with ERF records (link type 197, ERF type 21): a header of 16 bytes, then LRH to VCRC. protocols 11.

use super::link::{Arrival, Link};
use core_ib::Instant;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of an ERF record header.
const ERF_HEADER: usize = 16;
/// ERF type of a packet that begins with an LRH.
const ERF_INFINIBAND: u8 = 21;

/// The header of the record of a packet of `len` bytes, seen at `at` on `interface` (two bits).
fn erf_header(at: Instant, interface: u8, len: usize) -> [u8; ERF_HEADER] {
    let seconds = at.0 / 1_000_000_000;
    let nanos = at.0 % 1_000_000_000;
    let time = (seconds << 32) + (nanos << 32) / 1_000_000_000;
    let mut header = [0; ERF_HEADER];
    let (stamp, rest) = header.split_at_mut(8);
    stamp.copy_from_slice(&time.to_le_bytes());
    let [record_high, record_low] = ((len + ERF_HEADER) as u16).to_be_bytes();
    let [wire_high, wire_low] = (len as u16).to_be_bytes();
    // Flag bit 2: records vary in length.
    let flags = interface & 3 | 4;
    rest.copy_from_slice(&[
        ERF_INFINIBAND,
        flags,
        record_high,
        record_low,
        0,
        0,
        wire_high,
        wire_low,
    ]);
    header
}

struct Sink {
    /// None once the capture is finished.
    pcap: Option<PcapWriter<Box<dyn Write + Send>>>,
    scratch: Vec<u8>,
    error: Option<io::Error>,
    packets: u64,
}

/// A capture file that any number of taps write to, in the order of the run. Clones write to the same file.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<Sink>>);

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({} packets)", self.packets())
    }
}

fn io_error(error: pcap_file::PcapError) -> io::Error {
    match error {
        pcap_file::PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl Capture {
    /// Begins a capture in `out`, which had best be buffered.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let header = PcapHeader {
            datalink: DataLink::ERF,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        let out: Box<dyn Write + Send> = Box::new(out);
        let pcap = PcapWriter::with_header(out, header).map_err(io_error)?;
        Ok(Self(Arc::new(Mutex::new(Sink {
            pcap: Some(pcap),
            scratch: Vec::new(),
            error: None,
            packets: 0,
        }))))
    }

    /// Writes one packet (LRH to VCRC). After a first error nothing more is written; [`Capture::finish`] tells it.
    pub fn packet(&self, at: Instant, interface: u8, packet: &[u8]) {
        self.with(|sink| {
            let Some(pcap) = sink.pcap.as_mut().filter(|_| sink.error.is_none()) else {
                return;
            };
            sink.scratch.clear();
            let header = erf_header(at, interface, packet.len());
            sink.scratch.extend_from_slice(&header);
            sink.scratch.extend_from_slice(packet);
            let time = core::time::Duration::from_nanos(at.0);
            let length = sink.scratch.len() as u32;
            let record = PcapPacket::new(time, length, &sink.scratch);
            match pcap.write_packet(&record) {
                Ok(_) => sink.packets += 1,
                Err(error) => sink.error = Some(io_error(error)),
            }
        });
    }

    /// Packets written.
    pub fn packets(&self) -> u64 {
        self.with(|sink| sink.packets)
    }

    /// Ends the capture: what was buffered is written, what comes later is not. The first error of writing, if there was
    /// one. A capture that is not finished may lack its end for as long as anything in the world holds a clone of it.
    pub fn finish(&self) -> io::Result<()> {
        self.with(|sink| {
            let flushed = match sink.pcap.take() {
                Some(pcap) => pcap.into_writer().flush(),
                None => Ok(()),
            };
            sink.error.take().map_or(flushed, Err)
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Sink) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `inner`, and all that goes into it also goes into a capture, stamped with the instant at which it leaves.
#[derive(Debug)]
pub struct Tap<L> {
    inner: L,
    capture: Capture,
    interface: u8,
}

impl<L: Link> Tap<L> {
    /// Wraps `inner`. `interface` (two bits) tells the two directions of a cable apart in the capture.
    pub fn new(inner: L, capture: Capture, interface: u8) -> Self {
        Self {
            inner,
            capture,
            interface,
        }
    }
}

impl<L: Link> Link for Tap<L> {
    fn send(&mut self, packet: Vec<u8>, now: Instant, end: Instant, out: &mut Vec<Arrival>) {
        self.capture.packet(now, self.interface, &packet);
        self.inner.send(packet, now, end, out);
    }
}

/// A place in memory to capture into; clones see the same bytes.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    /// What was written so far.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.0.lock();
        bytes.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_an_erf_header_and_the_packet() {
        let memory = Memory::default();
        let capture = Capture::new(memory.clone()).unwrap();
        capture.packet(Instant(2_500_000_000), 1, &[0xab; 30]);
        let bytes = memory.bytes();
        // pcap, nanoseconds, 2.4, link type 197
        assert_eq!(bytes[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(bytes[20..24], [197, 0, 0, 0]);
        // seconds, nanoseconds, 46 bytes captured of 46
        let record = [2, 0, 0, 0, 0, 0x65, 0xcd, 0x1d, 46, 0, 0, 0, 46, 0, 0, 0];
        assert_eq!(bytes[24..40], record);
        // 2.5 s, type 21, interface 1, 46 bytes, no loss, 30 bytes on the wire
        let erf = [0, 0, 0, 0x80, 2, 0, 0, 0, 21, 5, 0, 46, 0, 0, 0, 30];
        assert_eq!(bytes[40..56], erf);
        assert_eq!(bytes[56..], [0xab; 30]);
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() == 30 + 16 {
                return Err(io::Error::other("no space"));
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_finished_capture_has_everything_and_takes_no_more() {
        let memory = Memory::default();
        let capture = Capture::new(io::BufWriter::new(memory.clone())).unwrap();
        capture.packet(Instant(0), 0, &[0xab; 30]);
        assert_eq!(memory.bytes(), []);
        assert!(capture.finish().is_ok());
        assert_eq!(memory.bytes().len(), 24 + 16 + 46);
        capture.packet(Instant(1), 0, &[0xab; 30]);
        assert!(capture.finish().is_ok());
        assert_eq!((capture.packets(), memory.bytes().len()), (1, 86));
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_run() {
        let capture = Capture::new(Full).unwrap();
        capture.packet(Instant(0), 0, &[0; 30]);
        capture.packet(Instant(1), 0, &[0; 20]);
        assert_eq!(capture.packets(), 0);
        assert!(capture.finish().is_err());
    }
}
