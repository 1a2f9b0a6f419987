//! What the library asks of a kernel: functions that the kernel's shim provides.
//!
//! They are called directly and not through a table of pointers, so that there is no indirect call on the data path.
//! `include/openib.h` is generated from this file and from `entry`: a shim includes it, so that one whose functions
//! look otherwise does not compile. `docs/embedding.md` walks through all of it.

use core::ffi::{c_char, c_void};

/// The kernel's side of one HCA. The library hands it back and never looks inside.
#[derive(Debug)]
pub struct Device {
    _private: (),
}

/// The kernel's side of one network interface, likewise.
#[derive(Debug)]
pub struct Net {
    _private: (),
}

/// A packet of the kernel's that is to be sent, likewise.
#[derive(Debug)]
pub struct Packet {
    _private: (),
}

/// One interrupt vector: what the kernel hands to `openib_interrupt`.
#[derive(Debug)]
pub struct Vector {
    _private: (),
}

/// Room for a lock of the kernel's. It is zeroed before `openib_os_lock_init`, and moves while the lock is free.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LockRoom {
    /// The kernel's. One whose locks are larger, or do not move, keeps a pointer here.
    pub words: [usize; 1],
}

/// Who takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LockKind {
    /// Threads and soft interrupts: holding it keeps soft interrupts off this processor.
    Queue = 0,
    /// Interrupt handlers too: holding it keeps interrupts off.
    Interrupt = 1,
    /// As `Queue`; `Queue` and `Interrupt` locks are taken while it is held, one at a time.
    Host = 2,
}

/// Which way data goes through a streaming mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Way {
    /// The device reads.
    ToDevice = 0,
    /// The device writes.
    FromDevice = 1,
    /// Both.
    Both = 2,
}

/// Whose copy a received datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Arrival {
    /// To this host.
    Host = 0,
    /// To the broadcast group.
    Broadcast = 1,
    /// To another group.
    Multicast = 2,
}

/// How grave a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    /// Something failed.
    Error = 0,
    /// Something is not as it should be.
    Warning = 1,
    /// Worth knowing.
    Info = 2,
    /// For whoever looks for an error.
    Debug = 3,
}

#[expect(
    improper_ctypes,
    reason = "what is opaque to the other side is only ever handed back"
)]
unsafe extern "C" {
    /// Names the HCA in messages: a string that ends with 0 and stays as long as the device. Any context.
    pub fn openib_os_name(device: *mut Device) -> *const c_char;

    /// Bytes of memory BAR `bar` (0 to 5, the lower of two for one of 64 bits); 0 if there is none.
    pub fn openib_os_bar_len(device: *mut Device, bar: u32) -> u64;
    /// Maps `len` bytes of it from `at` on; null if that is not possible. `write_combining` says whether stores may be
    /// gathered, and what became of that. May block.
    pub fn openib_os_map(
        device: *mut Device,
        bar: u32,
        at: u64,
        len: usize,
        write_combining: *mut bool,
    ) -> *mut c_void;
    /// Ends a mapping. May block.
    pub fn openib_os_unmap(device: *mut Device, map: *mut c_void);
    /// Loads the big-endian 32-bit register at `offset` of a mapping, as a number. Any context.
    pub fn openib_os_read32(map: *mut c_void, offset: usize) -> u32;
    /// Stores it. Stores arrive in order, and after what was stored to memory before. Any context.
    pub fn openib_os_write32(map: *mut c_void, offset: usize, value: u32);
    /// Loads the big-endian 64-bit word at `offset`. Any context.
    pub fn openib_os_read64(map: *mut c_void, offset: usize) -> u64;
    /// Stores it: one store where the machine has one, else two, high half first, that no other of this device comes
    /// between. Any context.
    pub fn openib_os_write64(map: *mut c_void, offset: usize, value: u64);
    /// Reads a word of configuration space as a number; all ones if the device is gone. May block.
    pub fn openib_os_config_read32(device: *mut Device, offset: u32) -> u32;
    /// Writes it. May block.
    pub fn openib_os_config_write32(device: *mut Device, offset: u32, value: u32);

    /// `len` zeroed bytes of coherent memory (a multiple of 4096) at a multiple of `align` (a power of two, at least
    /// 4096) in both address spaces, and where the device sees them; null if there are none. May block.
    pub fn openib_os_dma_alloc(
        device: *mut Device,
        len: usize,
        align: usize,
        bus: *mut u64,
    ) -> *mut u8;
    /// Gives them back. May block.
    pub fn openib_os_dma_free(device: *mut Device, memory: *mut u8, bus: u64, len: usize);
    /// Makes memory reachable by the device; says whether it is, and where. Not in an interrupt.
    pub fn openib_os_dma_map(
        device: *mut Device,
        memory: *mut u8,
        len: usize,
        way: Way,
        bus: *mut u64,
    ) -> bool;
    /// Ends that. Not in an interrupt.
    pub fn openib_os_dma_unmap(device: *mut Device, bus: u64, len: usize, way: Way);
    /// Hands a piece of a mapping to the device, or back. Not in an interrupt.
    pub fn openib_os_dma_sync(device: *mut Device, bus: u64, len: usize, way: Way, to_device: bool);

    /// `len` zeroed bytes at a multiple of `align`, a power of two of at most 4096; null if there are none. May block.
    pub fn openib_os_alloc(len: usize, align: usize) -> *mut u8;
    /// Gives them back. May block.
    pub fn openib_os_free(memory: *mut u8, len: usize, align: usize);

    /// Nanoseconds of a clock that never goes back. Any context.
    pub fn openib_os_now() -> u64;
    /// Blocks for at least so many nanoseconds.
    pub fn openib_os_sleep(nanoseconds: u64);
    /// Blocks while `word` is `value`, until `openib_os_wake_word(word)` or until the clock shows `deadline` (all ones:
    /// never). May return earlier.
    pub fn openib_os_wait(word: *const u32, value: u32, deadline: u64);
    /// Wakes all who wait at `word`, which was changed before. Any context.
    pub fn openib_os_wake_word(word: *const u32);

    /// Makes a lock. May block. `name`, of `len` bytes without a zero, stays; locks of one name are of one kind to whoever
    /// checks the order in which locks are taken. That order is: the host's, a queue's, an address handle's or the
    /// machine's own.
    pub fn openib_os_lock_init(room: *mut LockRoom, kind: LockKind, name: *const u8, len: usize);
    /// Ends it. May block.
    pub fn openib_os_lock_exit(room: *mut LockRoom, kind: LockKind);
    /// Takes a lock that is not of interrupt handlers.
    pub fn openib_os_lock(room: *mut LockRoom);
    /// Frees it.
    pub fn openib_os_unlock(room: *mut LockRoom);
    /// Takes one that is; gives what is to be handed to `openib_os_unlock_interrupt`.
    pub fn openib_os_lock_interrupt(room: *mut LockRoom) -> usize;
    /// Frees it.
    pub fn openib_os_unlock_interrupt(room: *mut LockRoom, saved: usize);

    /// Asks for `want` MSI-X messages (0: the pin). Gives how many there are, 0 for the pin; negative: neither. May
    /// block.
    pub fn openib_os_alloc_vectors(device: *mut Device, want: u32) -> i32;
    /// Gives them back. May block.
    pub fn openib_os_free_vectors(device: *mut Device);
    /// From now on interrupt `number` calls `openib_interrupt(vector)`: never twice at once. Says whether it does. May
    /// block.
    pub fn openib_os_bind_vector(device: *mut Device, number: u32, vector: *mut Vector) -> bool;
    /// Ends that, and waits for one that runs. May block.
    pub fn openib_os_unbind_vector(device: *mut Device, number: u32);

    /// Have `openib_poll` called soon, in a soft interrupt or a thread. Any context.
    pub fn openib_os_wake(device: *mut Device);

    /// Takes a line for the log: `len` bytes of UTF-8. Any context.
    pub fn openib_os_log(level: Level, text: *const u8, len: usize);
    /// The library has found itself broken at the place that `text` names. If this returns, the processor is stopped by
    /// an invalid instruction. Any context.
    pub fn openib_os_panic(text: *const u8, len: usize);

    /// A datagram came: `len` bytes that are the library's again when this returns. Called from `openib_poll` with the
    /// host locked: it takes a copy and calls nothing of the library. `verified` says that the HCA found the checksums right,
    /// of an IPv4 header and of the TCP or UDP behind it.
    pub fn openib_os_receive(
        net: *mut Net,
        arrival: Arrival,
        ether_type: u16,
        data: *const u8,
        len: usize,
        verified: bool,
    );
    /// Writes the first `len` bytes of `packet` to `to`, which the HCA will read. Called from `openib_send` with the host
    /// locked: it calls nothing of the library. With `offered` it may leave out the checksums of an IPv4 packet with TCP or
    /// UDP that is no fragment, both of them: whether it did is the answer. The HCA puts them in.
    pub fn openib_os_fill(packet: *mut Packet, to: *mut u8, len: usize, offered: bool) -> bool;
}
