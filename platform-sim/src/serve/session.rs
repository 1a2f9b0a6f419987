//! One client's conversation: requests in, replies out. No socket, no thread: bytes and files come in, bytes go out,
//! and what the device is to do goes through a [`Device`].

use super::client::{MESSAGE_ADDRESS, Shared};
use super::irq::{self, MSIX};
use super::message::{
    AccessBody, Header, IndexBody, InfoBody, MAX_DATA, RegionInfoBody, Request, SmallWrite,
    VersionBody,
};
use super::{Command, Refusal, capabilities};
use crate::machine::{Bus, PciFunction, Remote};
use core::ops::Range;
use std::os::fd::OwnedFd;
use zerocopy::byteorder::native_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

/// A way to the function that is served. Each call lets `f` at it once; `None` if it is gone.
pub(super) trait Device {
    fn with<R>(&self, f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R) -> Option<R>;
}

impl Device for Remote {
    fn with<R>(&self, f: impl FnOnce(&mut dyn PciFunction, &mut dyn Bus) -> R) -> Option<R> {
        self.with_function(f)
    }
}

/// Index of configuration space among the regions, behind 6 BARs and the ROM.
const CONFIG: u32 = 7;
/// Regions of a PCI device; the ninth, VGA, is always empty.
const REGIONS: u32 = 9;
/// Smaller version spoken here.
const MINOR: u16 = 1;
/// Device information: it can be reset, it is PCI.
const INFO_FLAGS: u32 = 3;
/// Region information: it can be read and written. Nothing can be mapped: a client that maps some of a device stops
/// posting its stores to all of it.
const REGION_FLAGS: u32 = 3;

/// What does not change while a device is served.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    bars: [u64; 6],
    config: u64,
    pin: bool,
    /// Offset of the MSI-X capability, how many messages, which BAR the table is in, and where.
    msix: Option<(u16, u16, u8, u64)>,
}

impl Layout {
    fn of(function: &mut dyn PciFunction, bus: &mut dyn Bus) -> Self {
        let mut bars = [0; 6];
        for (bar, len) in (0..).zip(&mut bars) {
            *len = function.bar_len(bar).unwrap_or(0);
        }
        let mut word = |at: u16| {
            let mut bytes = [0; 4];
            function.config_read(bus, at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        let mut msix = None;
        let mut next = word(0x34) as u8 & 0xfc;
        // No list is longer than what fits; one that is a ring ends, too.
        for _ in 0..48 {
            if next < 0x40 {
                break;
            }
            let at = u16::from(next);
            let head = word(at);
            if head as u8 == 0x11 {
                let table = word(at + 4);
                let count = (head >> 16 & 0x7ff) as u16 + 1;
                msix = Some((at, count, (table & 7) as u8, u64::from(table & !7)));
            }
            next = (head >> 8) as u8 & 0xfc;
        }
        Self {
            bars,
            config: if word(0x100) == 0 { 256 } else { 4096 },
            pin: word(0x3c) >> 8 & 0xff != 0,
            msix,
        }
    }

    fn region(&self, index: u32) -> u64 {
        match index {
            CONFIG => self.config,
            bar => self.bars.get(bar as usize).copied().unwrap_or(0),
        }
    }

    fn irqs(&self, index: u32) -> u32 {
        match index {
            irq::INTX => u32::from(self.pin),
            MSIX => self.msix.map_or(0, |(_, count, _, _)| u32::from(count)),
            irq::ERR => 1,
            _ => 0,
        }
    }
}

/// Messages so far, by what they asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Anything else.
    pub others: u64,
    /// Messages that were refused, of whatever kind.
    pub refused: u64,
}

/// See the module.
pub(super) struct Session<D> {
    device: D,
    client: Shared,
    layout: Layout,
    introduced: bool,
    pub(super) traffic: Traffic,
}

impl<D: Device> Session<D> {
    /// A client has connected; `None` if the device has been taken out. The device is as after power on.
    pub(super) fn new(device: D, client: Shared) -> Option<Self> {
        let layout = device.with(|function, bus| {
            function.reset(bus);
            Layout::of(function, bus)
        })?;
        let messages = layout.irqs(MSIX) as u16;
        let mut inner = client.lock();
        inner.memory.clear();
        inner.interrupts = irq::Interrupts::new(messages);
        drop(inner);
        Some(Self {
            device,
            client,
            layout,
            introduced: false,
            traffic: Traffic::default(),
        })
    }

    /// The client is gone, and its machine with it: the device loses power.
    pub(super) fn end(self) -> Traffic {
        power_off(&self.device);
        let mut client = self.client.lock();
        client.memory.clear();
        client.interrupts.clear();
        drop(client);
        self.traffic
    }

    /// Obeys one message, and appends the reply to `out` if there is one. `files` came with it; those that are not
    /// kept are closed. An error ends the session.
    pub(super) fn handle(
        &mut self,
        header: &Header,
        body: &[u8],
        files: &mut Vec<OwnedFd>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let start = out.len();
        let command = header.command();
        let result = self.obey(header, body, files, out);
        files.clear();
        if let Err(refusal) = result {
            self.traffic.refused += 1;
            log::warn!("a client's message is refused: {refusal}");
            out.truncate(start);
            if header.wants_reply() {
                out.extend_from_slice(header.refusal(refusal.errno()).as_bytes());
            }
            // Who did not introduce himself properly is not spoken to.
            return if self.introduced || command == Command::VERSION {
                Ok(())
            } else {
                Err(refusal)
            };
        }
        if !header.wants_reply() {
            out.truncate(start);
        }
        Ok(())
    }

    fn obey(
        &mut self,
        header: &Header,
        body: &[u8],
        files: &mut Vec<OwnedFd>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let command = header.command();
        if !header.is_command() {
            return Err(Refusal::Command(command)); // we ask nothing, so this answers nothing
        }
        if self.introduced == (command == Command::VERSION) {
            return Err(Refusal::Order(command));
        }
        let request = Request::read(command, body)?;
        match request {
            Request::Read(_) => self.traffic.reads += 1,
            Request::Write(..) => self.traffic.writes += 1,
            Request::WriteMulti(writes) => self.traffic.writes += writes.len() as u64,
            _ => self.traffic.others += 1,
        }
        match request {
            Request::Read(access) => self.read(header, access, out),
            Request::Write(access, data) => {
                self.write(access, data)?;
                reply(out, header, &[access.as_bytes()]);
                Ok(())
            }
            Request::WriteMulti(writes) => {
                for SmallWrite { at, data } in writes {
                    let (region, offset, count) =
                        (at.region.get(), at.offset.get(), at.count.get());
                    let data = data.get(..count as usize).ok_or(Refusal::Access {
                        region,
                        offset,
                        count,
                    })?;
                    self.write(*at, data)?;
                }
                let done = U64::new(writes.len() as u64);
                reply(out, header, &[done.as_bytes()]);
                Ok(())
            }
            Request::Version {
                major,
                minor,
                capabilities,
            } => self.version(header, (major, minor), capabilities, out),
            Request::DmaMap {
                read,
                write,
                offset,
                address,
                len,
            } => {
                let found = files.len();
                if found > 1 {
                    return Err(Refusal::Files { command, found });
                }
                let mut client = self.client.lock();
                let file = files.pop();
                let range = (address, len);
                client.memory.map(file, offset, range, (read, write))?;
                reply(out, header, &[]);
                Ok(())
            }
            Request::DmaUnmap { all, address, len } => {
                let mut client = self.client.lock();
                if all {
                    client.memory.clear();
                } else {
                    client.memory.unmap(address, len)?;
                }
                reply(out, header, &[body]);
                Ok(())
            }
            Request::SetIrqs {
                flags,
                index,
                start,
                count,
                data,
            } => {
                let available = self.layout.irqs(index);
                let which = (index, start, count);
                let mut client = self.client.lock();
                let interrupts = &mut client.interrupts;
                let changed = interrupts.set(flags, which, data, files, available)?;
                drop(client);
                if index == MSIX {
                    self.program(changed)?;
                }
                reply(out, header, &[]);
                Ok(())
            }
            Request::GetInfo | Request::GetRegionInfo { .. } | Request::GetIrqInfo { .. } => {
                self.describe(header, request, out)
            }
            Request::GetRegionIoFds { index } if index < REGIONS => {
                let none = IndexBody {
                    argsz: (size_of::<IndexBody>() as u32).into(),
                    index: index.into(),
                    ..IndexBody::new_zeroed()
                };
                reply(out, header, &[none.as_bytes()]);
                Ok(())
            }
            Request::GetRegionIoFds { index } => Err(Refusal::Index { command, index }),
            Request::Reset => {
                let reset = self.device.with(|function, bus| function.reset(bus));
                reset.ok_or(Refusal::Gone)?;
                self.program_all()?;
                reply(out, header, &[]);
                Ok(())
            }
        }
    }

    fn version(
        &mut self,
        header: &Header,
        (major, minor): (u16, u16),
        theirs: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if major != 0 {
            return Err(Refusal::Version(major));
        }
        let ours = capabilities::ours(capabilities::proposes(theirs, b"write_multiple"));
        let version = VersionBody {
            major: 0.into(),
            minor: minor.min(MINOR).into(),
        };
        reply(out, header, &[version.as_bytes(), ours.as_bytes(), &[0]]);
        self.introduced = true;
        Ok(())
    }

    fn describe(
        &self,
        header: &Header,
        request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let command = header.command();
        match request {
            Request::GetRegionInfo { index } if index < REGIONS => {
                let size = self.layout.region(index);
                let info = RegionInfoBody {
                    argsz: (size_of::<RegionInfoBody>() as u32).into(),
                    flags: if size == 0 { 0 } else { REGION_FLAGS }.into(),
                    index: index.into(),
                    size: size.into(),
                    ..RegionInfoBody::new_zeroed()
                };
                reply(out, header, &[info.as_bytes()]);
            }
            Request::GetIrqInfo { index } if index < irq::KINDS => {
                let info = IndexBody {
                    argsz: (size_of::<IndexBody>() as u32).into(),
                    flags: irq::flags(index).into(),
                    index: index.into(),
                    count: self.layout.irqs(index).into(),
                };
                reply(out, header, &[info.as_bytes()]);
            }
            Request::GetRegionInfo { index } | Request::GetIrqInfo { index } => {
                return Err(Refusal::Index { command, index });
            }
            _ => {
                let info = InfoBody {
                    argsz: (size_of::<InfoBody>() as u32).into(),
                    flags: INFO_FLAGS.into(),
                    regions: REGIONS.into(),
                    irqs: irq::KINDS.into(),
                };
                reply(out, header, &[info.as_bytes()]);
            }
        }
        Ok(())
    }

    /// That an access lies within its region; of a BAR, that it is one that a processor can make.
    fn check(&self, access: AccessBody) -> Result<(u32, u64, usize), Refusal> {
        let (region, offset) = (access.region.get(), access.offset.get());
        let count = access.count.get();
        let size = self.layout.region(region);
        let end = offset.checked_add(u64::from(count));
        let inside = end.is_some_and(|end| end <= size);
        let shaped = region == CONFIG
            || matches!(count, 1 | 2 | 4 | 8) && offset.is_multiple_of(u64::from(count));
        if inside && shaped && count as usize <= MAX_DATA {
            Ok((region, offset, count as usize))
        } else {
            Err(Refusal::Access {
                region,
                offset,
                count,
            })
        }
    }

    fn read(
        &mut self,
        header: &Header,
        access: AccessBody,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let (region, offset, count) = self.check(access)?;
        let reply = header.reply(size_of::<AccessBody>() + count);
        out.extend_from_slice(reply.as_bytes());
        out.extend_from_slice(access.as_bytes());
        let start = out.len();
        out.resize(start + count, 0xff);
        let data = out.get_mut(start..).unwrap_or(&mut []);
        let done = self.device.with(|function, bus| {
            if region != CONFIG {
                return function.mmio_read(bus, region as u8, offset, data);
            }
            for (at, len) in Pieces::of(offset as u16, data.len()) {
                let inside = usize::from(at - offset as u16);
                if let Some(piece) = data.get_mut(inside..inside + len) {
                    function.config_read(bus, at, piece);
                }
            }
        });
        done.ok_or(Refusal::Gone)
    }

    fn write(&mut self, access: AccessBody, data: &[u8]) -> Result<(), Refusal> {
        let (region, offset, _) = self.check(access)?;
        let done = self.device.with(|function, bus| {
            if region != CONFIG {
                return function.mmio_write(bus, region as u8, offset, data);
            }
            for (at, len) in Pieces::of(offset as u16, data.len()) {
                let inside = usize::from(at - offset as u16);
                if let Some(piece) = data.get(inside..inside + len) {
                    function.config_write(bus, at, piece);
                }
            }
        });
        done.ok_or(Refusal::Gone)?;
        // Memory decoding and MSI-X may just have been turned on, after a reset that forgot the table.
        let touches = |register: u16| {
            let register = u64::from(register);
            offset < register + 2 && register < offset + data.len() as u64
        };
        let msix = self.layout.msix;
        if region == CONFIG && (touches(4) || msix.is_some_and(|(at, ..)| touches(at + 2))) {
            self.program_all()?;
        }
        Ok(())
    }

    /// Writes the entries of these messages into the device's table: unmasked if the client has given a file.
    fn program(&self, messages: Range<u16>) -> Result<(), Refusal> {
        let Some((_, count, bar, table)) = self.layout.msix else {
            return Ok(());
        };
        let wanted: Vec<(u16, bool)> = {
            let client = self.client.lock();
            let messages = messages.take_while(|number| *number < count);
            messages
                .map(|number| (number, client.interrupts.wanted(number)))
                .collect()
        };
        let done = self.device.with(|function, bus| {
            for (number, wanted) in wanted {
                let at = table + 16 * u64::from(number);
                function.mmio_write(bus, bar, at, &MESSAGE_ADDRESS.to_le_bytes());
                function.mmio_write(bus, bar, at + 8, &u32::from(number).to_le_bytes());
                let masked = u32::from(!wanted);
                function.mmio_write(bus, bar, at + 12, &masked.to_le_bytes());
            }
        });
        done.ok_or(Refusal::Gone)
    }

    fn program_all(&self) -> Result<(), Refusal> {
        let count = self.layout.irqs(MSIX) as u16;
        self.program(0..count)
    }
}

/// Takes the power from a device: it is reset, and its links are down.
pub(super) fn power_off(device: &impl Device) {
    // If it is gone, it has no power already.
    let _ = device.with(|function, bus| {
        function.reset(bus);
        for port in 1..=function.ports() {
            bus.set_link(port, crate::machine::LinkControl::Disabled);
        }
    });
}

fn reply(out: &mut Vec<u8>, header: &Header, body: &[&[u8]]) {
    let len = body.iter().map(|part| part.len()).sum();
    out.extend_from_slice(header.reply(len).as_bytes());
    body.iter().for_each(|part| out.extend_from_slice(part));
}

/// The naturally aligned accesses of at most 4 bytes that make up a longer one.
struct Pieces {
    at: u16,
    left: usize,
}

impl Pieces {
    fn of(at: u16, left: usize) -> Self {
        Self { at, left }
    }
}

impl Iterator for Pieces {
    type Item = (u16, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let widest = match self.at & 3 {
            0 => 4,
            2 => 2,
            _ => 1,
        };
        let len = match self.left.min(widest) {
            0 => return None,
            3 => 2,
            len => len,
        };
        let piece = (self.at, len);
        self.at = self.at.wrapping_add(len as u16);
        self.left -= len;
        Some(piece)
    }
}

impl Traffic {
    /// Adds that of another session.
    pub(super) fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.refused += other.refused;
    }
}
