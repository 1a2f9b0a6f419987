//! The seam between a PCI function and whatever hosts it: an in-process machine, or a virtual machine behind
//! vfio-user. The function is the same object in both, and reaches memory, interrupts, wire and clock through the
//! [`Bus`] that it is handed for the length of a call, and in no other way.
//!
//! Everything runs to completion: a call returns at once, and what takes time asks for a timer. The host calls one
//! method at a time, so a function needs no lock and never sees itself re-entered: `Bus` never calls back.

use super::Ledger;
use core::fmt;
use core_ib::Instant;
use core_ib::platform::DmaAddr;
use std::any::Any;

/// A PCI function: configuration space, BARs, interrupts, and (since these are HCAs) ports with a wire each.
///
/// Offsets and lengths come from a guest. None of them may make a function panic: an access that hardware would not
/// answer reads as all ones, a store to nowhere is lost, and both go into the [`Ledger`].
///
/// `Any` is for tests, which get at the concrete model by its type.
pub trait PciFunction: Any + Send {
    /// What it is, for reports: `InfiniHost MT23108`, say.
    fn name(&self) -> &str;

    /// Loads `data.len()` (1, 2 or 4) bytes of configuration space, as they lie on the bus (little-endian). Offsets
    /// go up to 4095; one that is not implemented reads as zero.
    fn config_read(&mut self, bus: &mut dyn Bus, offset: u16, data: &mut [u8]);
    /// Stores 1, 2 or 4 bytes. Read-only bits stay. Command register, BARs and capabilities are the function's own:
    /// it keeps them, and obeys them (BARs answer only if memory is on, no DMA unless bus master, no pin when disabled).
    fn config_write(&mut self, bus: &mut dyn Bus, offset: u16, data: &[u8]);

    /// Bytes of memory BAR `bar` (0 to 5; the lower of the two for a 64-bit BAR), a power of two; `None` if there is
    /// none. Never changes.
    fn bar_len(&self, bar: u8) -> Option<u64>;
    /// Loads from BAR `bar`, `offset` bytes in, `data.len()` bytes as they lie on the bus. Widths 1, 2, 4 and 8
    /// come naturally aligned and within the BAR; anything else the host refuses itself. A host may split a load of
    /// 8 into two of 4, lower address first.
    fn mmio_read(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &mut [u8]);
    /// Stores there. Loads and stores of one processor come in its order. Where a processor gathers stores (write
    /// combining), up to 64 bytes come at once, aligned to 4.
    fn mmio_write(&mut self, bus: &mut dyn Bus, bar: u8, offset: u64, data: &[u8]);

    /// Number of ports; they count from 1, as the field does.
    fn ports(&self) -> u8;
    /// A packet has arrived whole at `port`: LRH to VCRC, perhaps corrupt.
    fn receive(&mut self, bus: &mut dyn Bus, port: u8, packet: &[u8]);
    /// Physical state of the link at `port`: trained to these parameters (`LinkUp`), or down. A function starts
    /// with all links down.
    fn link_changed(&mut self, bus: &mut dyn Bus, port: u8, up: Option<LinkParameters>);
    /// A queue that refused a packet of virtual lane `vl` has room again.
    fn send_room(&mut self, bus: &mut dyn Bus, port: u8, vl: u8);

    /// The timer `id` is due. It is no longer set.
    fn timer(&mut self, bus: &mut dyn Bus, id: TimerId);

    /// Conventional reset (power-on, bus reset, the host's reset button): everything as it was when made. A reset
    /// that software asks for through a register is the function's own business. Timers that were set are gone.
    fn reset(&mut self, bus: &mut dyn Bus);

    /// Names a live object through which the device can still reach any of `len` bytes at `at`: asked when a driver
    /// gives memory back. `None` also if the function does not keep track. The bus is for a function whose tables lie in
    /// host memory.
    fn reaches(&self, bus: &mut dyn Bus, at: DmaAddr, len: u64) -> Option<String> {
        let _ = (bus, at, len);
        None
    }

    /// What a driver used and this model does not act on.
    fn ledger(&self) -> &Ledger;
}

/// What a [`PciFunction`] is handed: its way to memory, interrupts, wire and clock. Valid for one call.
pub trait Bus {
    /// The machine's clock. Does not move during a call in virtual time.
    fn now(&self) -> Instant;

    /// Reads host memory. Nothing is copied unless all of it is mapped. Each naturally aligned 4-byte word is read
    /// whole.
    fn dma_read(&mut self, at: DmaAddr, data: &mut [u8]) -> Result<(), DmaFault>;
    /// Writes host memory. Nothing is copied unless all of it is mapped. Writes are seen in their order, and ahead
    /// of a [`message`](Self::message) sent after them.
    fn dma_write(&mut self, at: DmaAddr, data: &[u8]) -> Result<(), DmaFault>;

    /// Drives the interrupt pin (level). Saying the same twice is harmless. The function leaves the pin released
    /// while its command register disables it.
    fn set_intx(&mut self, asserted: bool);
    /// Sends a message-signalled interrupt: the store that a table entry describes. Table, masks and pending bits
    /// are the function's own (see [`PciCore`](super::PciCore), which does all of it), so a message that comes here is
    /// delivered.
    fn message(&mut self, message: Message);

    /// Queues a packet (LRH to VCRC) on the wire of `port`. The queue of each virtual lane holds a few packets: when
    /// it is full nothing is taken, and [`PciFunction::send_room`] tells when to try again. On a link that is down
    /// packets are taken and lost.
    fn send(&mut self, port: u8, packet: &[u8]) -> Result<(), SendQueueFull>;
    /// What the port's physical layer is to do: train, or stay down. The answer is
    /// [`PciFunction::link_changed`], some time later. After a reset a port polls with everything enabled.
    fn set_link(&mut self, port: u8, control: LinkControl);

    /// Calls [`PciFunction::timer`] with `id` at `at`, or as soon as may be if that has passed. Setting a timer that
    /// is set moves it.
    fn set_timer(&mut self, id: TimerId, at: Instant);
    /// Forgets a timer; harmless if it is not set.
    fn cancel_timer(&mut self, id: TimerId);

    /// Is anyone listening to [`trace`](Self::trace)?
    fn tracing(&self) -> bool {
        false
    }
    /// For the machine's trace: something worth reading when a run is debugged.
    fn trace(&mut self, what: fmt::Arguments<'_>) {
        let _ = what;
    }
    /// For the machine's report: the driver did what silicon would not have forgiven (a descriptor changed while
    /// the device owns it, a register with the wrong width). Name the object.
    fn report(&mut self, what: fmt::Arguments<'_>);
}

/// Which timer; the function's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

/// The store that makes a message-signalled interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where to, as the machine wrote it into the table entry.
    pub address: u64,
    /// What.
    pub data: u32,
}

/// A DMA access that did not happen. The machine has it in its report already, with the object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmaFault {
    /// Not all of it is mapped for this device.
    NotMapped {
        /// First byte asked for.
        at: DmaAddr,
        /// Bytes asked for.
        len: usize,
    },
    /// Mapped for the other direction.
    Direction {
        /// First byte asked for.
        at: DmaAddr,
        /// Bytes asked for.
        len: usize,
    },
    /// The machine is gone: switched off, or the device was taken out.
    Gone,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotMapped { at, len } => write!(f, "{len} bytes at {at} are not mapped"),
            Self::Direction { at, len } => {
                write!(f, "{len} bytes at {at} are mapped for the other direction")
            }
            Self::Gone => write!(f, "the machine is gone"),
        }
    }
}

impl core::error::Error for DmaFault {}

/// The send queue of this port and virtual lane is full; the packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueueFull;

/// Lanes of a link, by the bit that PortInfo gives them (protocols, PortInfo LinkWidthActive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkWidth(pub u8);

impl LinkWidth {
    /// 1x.
    pub const X1: Self = Self(1);
    /// 4x.
    pub const X4: Self = Self(2);
    /// 8x.
    pub const X8: Self = Self(4);
    /// 12x.
    pub const X12: Self = Self(8);
    /// 2x.
    pub const X2: Self = Self(16);

    /// How many lanes; 0 for a value that is not one width.
    pub const fn lanes(self) -> u32 {
        match self.0 {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        }
    }
}

/// Speed of a lane, by the bit that PortInfo gives it: bits 0 to 2 are those of LinkSpeedActive, bits 4 to 7 those of
/// LinkSpeedExtActive, and bit 3 is the FDR10 that only Mellanox's own attribute shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkSpeed(pub u8);

impl LinkSpeed {
    /// 2.5 Gbit/s on the wire, 2 Gbit/s of data.
    pub const SDR: Self = Self(1);
    /// 5 Gbit/s on the wire, 4 Gbit/s of data.
    pub const DDR: Self = Self(2);
    /// 10 Gbit/s on the wire, 8 Gbit/s of data.
    pub const QDR: Self = Self(4);
    /// 10.3125 Gbit/s on the wire, 10 Gbit/s of data.
    pub const FDR10: Self = Self(8);
    /// 14.0625 Gbit/s on the wire.
    pub const FDR: Self = Self(0x10);
    /// 25.78125 Gbit/s on the wire.
    pub const EDR: Self = Self(0x20);
    /// 53.125 Gbit/s on the wire.
    pub const HDR: Self = Self(0x40);
    /// 106.25 Gbit/s on the wire.
    pub const NDR: Self = Self(0x80);

    /// Data of one lane in Mbit/s, the coding (8b/10b, 64b/66b, the latter with error correction from HDR on) taken
    /// off; 0 for a value that is not one speed.
    pub const fn mbit(self) -> u32 {
        match self.0 {
            1 => 2000,
            2 => 4000,
            4 => 8000,
            8 => 10_000,
            0x10 => 13_636,
            0x20 => 25_000,
            0x40 => 50_000,
            0x80 => 100_000,
            _ => 0,
        }
    }
}

/// What a link was trained to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkParameters {
    /// Exactly one width.
    pub width: LinkWidth,
    /// Exactly one speed.
    pub speed: LinkSpeed,
}

impl LinkParameters {
    /// 4x SDR: the InfiniHost's.
    pub const X4_SDR: Self = Self {
        width: LinkWidth::X4,
        speed: LinkSpeed::SDR,
    };

    /// Data rate in Mbit/s.
    pub const fn mbit(self) -> u32 {
        self.width.lanes() * self.speed.mbit()
    }
}

/// What a port wants of its physical layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkControl {
    /// No link: PortPhysicalState Disabled or Sleep.
    Disabled,
    /// Train with whoever is at the other end. A link that is up with parameters outside of these trains anew.
    Polling {
        /// Widths allowed, as a set.
        widths: LinkWidth,
        /// Speeds allowed, as a set.
        speeds: LinkSpeed,
    },
}
