//! The platform contract: the one seam that every machine implements and every driver is generic over.
//!
//! A [`Platform`] is a machine with one HCA in it: its mapped registers, DMA memory, interrupts, clock, locks,
//! PCI configuration space and memory for long-lived tables. Rules for implementers stand on the traits under
//! *Safety*; what a caller must know (units, errors, context, blocking) stands on each method.
//!
//! # Contexts
//!
//! | context | may block | examples |
//! | --- | --- | --- |
//! | interrupt | no | [`Handler::handle`] |
//! | soft interrupt | no | what [`Wake::wake`] sets going: polling completion queues, protocol state machines |
//! | control | yes | opening the HCA, creating and modifying objects |
//!
//! A platform with neither threads nor interrupts is a valid one: it runs everything in the control context, and
//! its waits ([`Completion::wait_until`], [`Platform::sleep`]) call the bound handlers.

mod dma;
mod doorbells;
mod error;
mod fifo;
mod lock;
mod ring;
mod table;

pub use dma::{Direction, DmaAddr, DmaBuf, LetGo, OutOfBounds, RawDma, Words};
pub use doorbells::DoorbellPage;
pub use error::PlatformError;
pub use fifo::Fifo;
pub use lock::{Gate, Lock, RawGate, RawLock, Saved};
pub use ring::{DmaLong, DmaLongs, DmaRing, RingEntry, RingView};
pub use table::{Blank, Placed, Room, Table, TableMemory};

use crate::Instant;
use core::ptr::NonNull;
use core::time::Duration;

/// What goes wrong with a machine.
pub type Result<T> = core::result::Result<T, PlatformError>;

/// How a mapping of registers is cached by the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Each store goes out alone and in order.
    Uncached,
    /// Stores may be gathered into bursts. An optimisation that some machines cannot give.
    WriteCombining,
}

/// A mapped piece of a BAR. Stores are posted; those through [`Caching::Uncached`] mappings of one HCA arrive in
/// program order. Any context, interrupt handlers included.
///
/// An access outside the mapping, or to a device that is gone, does what a bus does: a load gives all ones, a
/// store is lost.
///
/// # Safety
///
/// Whatever the offset, an access touches nothing but the mapping.
pub unsafe trait Registers: Send + Sync {
    /// What the machine granted, which may be less than was asked for.
    fn caching(&self) -> Caching;
    /// Loads the big-endian 32-bit register at `offset` bytes (a multiple of 4).
    fn read_be32(&self, offset: usize) -> u32;
    /// Stores `value` there as a big-endian number.
    fn write_be32(&self, offset: usize, value: u32);
    /// Loads the big-endian 64-bit word at `offset` (a multiple of 8): one load where the machine has one, else
    /// two, high half first.
    fn read_be64(&self, offset: usize) -> u64;
    /// Stores 64 bits (`offset` a multiple of 8): one store where the machine has one, else two, high half
    /// (lower address) first, that no other `write_be64` of this HCA can come between.
    fn write_be64(&self, offset: usize, value: u64);
    /// [`write_be64`](Self::write_be64) for who knows that the offset is one: doorbells ([`DoorbellPage`]). What is provided
    /// looks all the same; a machine whose doorbell is a store of the processor does without.
    ///
    /// # Safety
    ///
    /// `offset` is a multiple of 8, and 8 bytes from there lie in the mapping.
    #[inline]
    unsafe fn write_be64_inside(&self, offset: usize, value: u64) {
        self.write_be64(offset, value);
    }
}

/// Something that an interrupt handler fires and one caller awaits. Remembers one firing until a wait takes it.
pub trait Completion: Send + Sync {
    /// Any context; never blocks.
    fn fire(&self);
    /// Waits until it is fired or the clock reaches `deadline`; says whether it was fired. Takes the firing.
    /// Control context; blocks. A deadline that has passed makes this a test.
    fn wait_until(&self, deadline: Instant) -> bool;
}

/// Was an interrupt ours? For lines that are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Yes.
    Yes,
    /// The HCA had nothing to say.
    No,
}

/// What runs on an interrupt.
pub trait Handler: Sync {
    /// Interrupt context: short, no waiting, only locks whose maker said that interrupts take them.
    fn handle(&self) -> Handled;
}

/// Sets deferred work going: a soft interrupt, a thread, the owner's loop. This is how an interrupt handler tells
/// consumers that events or completions wait to be pulled.
pub trait Wake: Sync {
    /// Any context; never blocks, never calls back into the driver. Waking twice before the work runs is once.
    fn wake(&self);
}

/// Nobody to wake: for owners that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

/// How the machine delivers this HCA's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// One pin, level triggered, maybe shared with other devices. Its only vector is 0.
    Intx,
    /// Messages `0..count`.
    Msix {
        /// How many of them; at least 1.
        count: u16,
    },
}

/// A machine with one HCA in it. `&self` and not statics: a process may hold many machines.
///
/// When a driver gets it, the PCI function is enabled, is bus master, and may reach all DMA memory given out.
///
/// # Safety
///
/// [`map`](Self::map) gives registers of as many bytes as it was asked for, or an error.
/// [`dma_alloc`](Self::dma_alloc) gives zeroed memory, aligned in both address spaces, that nothing else in the
/// program refers to and the device can reach at `bus .. bus + len`, until [`dma_free`](Self::dma_free).
/// [`table_alloc`](Self::table_alloc) gives zeroed, exclusive memory of the layout asked for.
/// [`unbind_interrupt`](Self::unbind_interrupt) does not return while the handler runs.
pub unsafe trait Platform: Send + Sync + Sized {
    /// A mapped piece of a BAR.
    type Registers: Registers;
    /// What a control path waits on.
    type Completion: Completion;
    /// Short mutual exclusion.
    type RawLock: RawLock;
    /// Long mutual exclusion, on the control path alone.
    type RawGate: RawGate;

    /// Names the HCA in messages, as the machine does (`0000:04:00.0`, `host-a`).
    fn name(&self) -> &str;

    /// Bytes of BAR `bar` (0 to 5; the lower of two for a 64-bit BAR); `None` if there is no such memory BAR.
    fn bar_len(&self, bar: u8) -> Option<u64>;
    /// Maps `len` bytes of BAR `bar`, from `at` on. Set-up only; may block. `want` is a wish.
    fn map(&self, bar: u8, at: u64, len: usize, want: Caching) -> Result<Self::Registers>;
    /// Reads the 32-bit word at `offset` (a multiple of 4, below 4096) of PCI configuration space, as a number.
    /// All ones if the device is gone. Control context.
    fn config_read32(&self, offset: u16) -> u32;
    /// Writes it. Control context.
    fn config_write32(&self, offset: u16, value: u32);

    /// Coherent DMA memory; see *Safety*. Set-up and control path; may block. `align` is a power of two; at
    /// least 4096 is given where less is asked for.
    fn dma_alloc(&self, len: usize, align: usize) -> Result<RawDma>;
    /// Gives memory back.
    ///
    /// # Safety
    ///
    /// `memory` came from `dma_alloc` of this platform, and the device no longer uses it.
    unsafe fn dma_free(&self, memory: RawDma);
    /// Makes `len` bytes of the caller's memory, physically contiguous (a page, or what this machine gives out as
    /// such), reachable by the device. Control or soft-interrupt context.
    ///
    /// # Safety
    ///
    /// The memory stays valid until `dma_unmap`, and between the calls is touched by the program only as
    /// [`dma_sync`](Self::dma_sync) allows.
    unsafe fn dma_map(&self, memory: NonNull<u8>, len: usize, way: Direction) -> Result<DmaAddr>;
    /// Ends a mapping.
    ///
    /// # Safety
    ///
    /// `at`, `len` and `way` are those of one `dma_map`, and the device no longer uses the memory.
    unsafe fn dma_unmap(&self, at: DmaAddr, len: usize, way: Direction);
    /// Hands `len` bytes of a mapping to the device (`to_device`) or back to the program.
    fn dma_sync(&self, at: DmaAddr, len: usize, way: Direction, to_device: bool);
    /// The device sees stores to DMA memory before this ahead of those after it, and ahead of later register
    /// stores. Any context.
    fn dma_wmb(&self);
    /// Loads from DMA memory after this are not satisfied before those ahead of it. Any context.
    fn dma_rmb(&self);

    /// Memory for long-lived tables, zeroed. Set-up only; may block.
    fn table_alloc(&self, layout: core::alloc::Layout) -> Result<NonNull<u8>>;
    /// Gives it back.
    ///
    /// # Safety
    ///
    /// `memory` came from `table_alloc` of this platform with this `layout`; nothing refers to it any more.
    unsafe fn table_free(&self, memory: NonNull<u8>, layout: core::alloc::Layout);

    /// The monotonic clock. Any context.
    fn now(&self) -> Instant;
    /// Control context; blocks for at least `wait`.
    fn sleep(&self, wait: Duration);
    /// Something to wait on. Set-up only.
    fn completion(&self) -> Result<Self::Completion>;
    /// A lock; `name` appears in the machine's reports. `taken_by_interrupt`: an interrupt handler of this
    /// machine may take it, so that holding it masks interrupts. Set-up only.
    fn raw_lock(&self, name: &'static str, taken_by_interrupt: bool) -> Self::RawLock;
    /// A gate; `name` appears in the machine's reports. Set-up only.
    fn raw_gate(&self, name: &'static str) -> Self::RawGate;

    /// Asks for `want` MSI-X messages (0: the pin). Gives what there is, at most that many; the pin if the
    /// machine or the device has no messages. Set-up only; may block.
    fn alloc_vectors(&self, want: u16) -> Result<Vectors>;
    /// Gives the vectors back; all are unbound. May block.
    fn free_vectors(&self);
    /// From now on `vector` calls `handler`: never twice at once for one vector, but beside anything else, on any
    /// processor. Set-up only.
    ///
    /// # Safety
    ///
    /// `handler` stays valid until `unbind_interrupt(vector)` has returned.
    unsafe fn bind_interrupt(&self, vector: u16, handler: NonNull<dyn Handler>) -> Result<()>;
    /// Waits for a running handler; none starts afterwards. Blocks. Harmless on a vector that is not bound.
    fn unbind_interrupt(&self, vector: u16);

    /// A lock around `state`.
    fn lock<T>(
        &self,
        name: &'static str,
        taken_by_interrupt: bool,
        state: T,
    ) -> Lock<T, Self::RawLock> {
        Lock::new(self.raw_lock(name, taken_by_interrupt), state)
    }
    /// A gate around `state`.
    fn gate<T>(&self, name: &'static str, state: T) -> Gate<T, Self::RawGate> {
        Gate::new(self.raw_gate(name), state)
    }
}
