//! What a kernel calls.
//!
//! | function | context | beside |
//! | --- | --- | --- |
//! | `openib_open`, `openib_add`, `openib_start`, `openib_close` | thread; block | nothing else of this host but `openib_interrupt` |
//! | `openib_run_job` | thread; blocks | all others, but one at a time |
//! | `openib_poll` | soft interrupt or thread | all others, but one at a time |
//! | `openib_interrupt` | interrupt | everything |
//! | all others | soft interrupt or thread | each other and the above |

use crate::counters;
use crate::host::{Host, Wanted};
use crate::logger;
use crate::os;
use core::ffi::{CStr, c_char};
use core::ptr::NonNull;
use core_ib::verbs::{Device as _, DeviceCaps, VerbsError};
use core_ib::wire::ipoib::{EtherType, LinkAddress};
use core_ib::{Gid, PKey};
use ib_stack::StackError;
use ib_stack::ipoib::SendError;
use ib_stack::ipoib::link::{DownCause, LinkState};
use mthca_hw::OpenCause;

/// How a call ended. The numbers of Linux's errors, negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    /// Well.
    Ok = 0,
    /// The HCA failed, or says what makes no sense.
    Failed = -5,
    /// No memory.
    NoMemory = -12,
    /// There is no HCA, or none any more.
    NoDevice = -19,
    /// An argument is not right.
    Invalid = -22,
    /// This HCA, or this of it, is not supported yet.
    Unsupported = -95,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sent {
    /// It was taken.
    Taken = 0,
    /// All frames are in use: poll, then try again.
    Full = 1,
    /// It was not taken: the interface is down.
    Down = 2,
    /// It was not taken: longer than the MTU.
    TooLong = 3,
    /// It was not taken; the counters say why.
    Dropped = 4,
}

/// What a host is to be.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostConfig {
    /// Node description, a string that ends with 0; null: the HCA's own.
    pub description: *const c_char,
    /// Ask for MSI-X; the pin if there are no messages.
    pub messages: bool,
    /// Log what is for whoever looks for an error, too.
    pub debug: bool,
    /// Frames of each interface that may be sent or wait at the same time, 2 to 32768.
    pub send_frames: u16,
    /// Frames of each interface to receive into, 1 to 32768.
    pub recv_frames: u16,
    /// Interfaces take connections of peers, and can be told to send by them ([`openib_set_connected`]). Costs 3 MiB of DMA
    /// memory for each.
    pub connected: bool,
}

/// What an HCA is.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Identity {
    /// Its GUID, as a number.
    pub node_guid: u64,
    /// Firmware: major, minor, sub-minor.
    pub firmware: [u16; 3],
    /// Ports.
    pub ports: u8,
    /// Events come by messages.
    pub messages: bool,
    /// It puts in and verifies the checksums of what datagrams carry: see `openib_os_fill`, `openib_os_receive`.
    pub checksums: bool,
}

/// What a poll did, and what is to be done.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PollResult {
    /// Poll again when the clock shows this, unless woken before; all ones: then only.
    pub next: u64,
    /// Datagrams that were handed on.
    pub received: u32,
    /// Of these interfaces, one a bit, something changed: look at their state.
    pub changed: u32,
    /// Have `openib_run_job` called until it says that there was none.
    pub jobs: bool,
    /// Poll again at once: all that the budget allowed has come.
    pub more: bool,
}

/// How an interface stands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InterfaceState {
    /// Datagrams pass.
    pub up: bool,
    /// It was wanted down, and is at rest: its groups are left.
    pub idle: bool,
    /// Base LID of its port.
    pub lid: u16,
    /// Bytes of the largest datagram; 0 while down.
    pub mtu: u32,
    /// Its address. The GID changes with the port's.
    pub address: [u8; 20],
    /// That of the broadcast group.
    pub broadcast: [u8; 20],
}

fn told(name: &str, what: &str, error: &dyn core::fmt::Display) {
    log::error!("{name}: {what}: {error}");
}

const fn of_verbs(error: VerbsError) -> Outcome {
    match error {
        VerbsError::DeviceGone => Outcome::NoDevice,
        VerbsError::Unsupported { .. } => Outcome::Unsupported,
        VerbsError::NoResources { .. } => Outcome::NoMemory,
        _ => Outcome::Failed,
    }
}

const fn of_stack(error: &StackError) -> Outcome {
    match *error {
        StackError::Verbs(error) => of_verbs(error),
        StackError::TooMany { .. }
        | StackError::NoSuchPort { .. }
        | StackError::NoPartition { .. }
        | StackError::SamePartition { .. } => Outcome::Invalid,
        _ => Outcome::Failed,
    }
}

const fn of_open(cause: &OpenCause) -> Outcome {
    match *cause {
        OpenCause::Gone | OpenCause::NotAnInfiniHost { .. } => Outcome::NoDevice,
        OpenCause::Platform(_) => Outcome::NoMemory,
        OpenCause::Query(error) => of_verbs(error),
        _ => Outcome::Failed,
    }
}

/// Opens the HCA of `device`: a second and more. On success `*host` is the host; on failure everything is as before, and
/// the log says why.
///
/// # Safety
///
/// `device` stays until `openib_close`; `config` and what it points to is there for the length of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_open(
    device: *mut os::Device,
    config: *const HostConfig,
    host: *mut *mut Host,
) -> Outcome {
    // SAFETY: there for the length of the call, the caller promises.
    let config = unsafe { *config };
    logger::start(config.debug);
    let description: &[u8] = if config.description.is_null() {
        &[]
    } else {
        // SAFETY: a string that ends with 0, the caller promises.
        unsafe { CStr::from_ptr(config.description) }.to_bytes()
    };
    let wanted = Wanted {
        description,
        messages: config.messages,
        frames: [config.send_frames, config.recv_frames],
        connected: config.connected,
    };
    // SAFETY: the device stays, the caller promises.
    match unsafe { Host::open(device, &wanted) } {
        Ok(at) => {
            // SAFETY: the caller's.
            unsafe { *host = at.as_ptr() };
            Outcome::Ok
        }
        Err(error) => {
            // SAFETY: the device stays.
            let name = unsafe { CStr::from_ptr(os::openib_os_name(device)) };
            let name = name.to_str().unwrap_or("HCA");
            told(name, "the HCA does not open", &error);
            of_open(&error.cause)
        }
    }
}

/// The host behind a pointer of the kernel's.
///
/// # Safety
///
/// `host` came from `openib_open` and was not closed.
unsafe fn host<'a>(host: *const Host) -> &'a Host {
    // SAFETY: the caller's promise.
    unsafe { &*host }
}

/// Says what the HCA of a host is.
///
/// # Safety
///
/// `host` is open; `identity` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_identify(host: *const Host, identity: *mut Identity) {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    let Some(hca) = host.hca() else { return };
    let about = hca.query_device();
    let found = Identity {
        node_guid: about.node_guid.0,
        firmware: about.fw_version,
        ports: about.port_count,
        messages: hca.interrupts() == mthca_hw::Interrupts::Messages,
        checksums: about.caps.contains(DeviceCaps::IP_CHECKSUM),
    };
    // SAFETY: the caller's.
    unsafe { *identity = found };
}

/// Adds an interface in the partition of `p_key` on port `port`, before `openib_start`: interfaces count from 0.
///
/// # Safety
///
/// `host` is open, and not started; `net` stays until `openib_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_add(
    host: *mut Host,
    net: *mut os::Net,
    port: u8,
    p_key: u16,
) -> Outcome {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    // SAFETY: not started, and the interface stays, the caller promises.
    match unsafe { host.add(net, port, PKey(p_key)) } {
        Ok(()) => Outcome::Ok,
        Err(error) => {
            told(host.name(), "the interface cannot be added", &error);
            of_stack(&error)
        }
    }
}

/// Opens the stack over the HCA, with the interfaces that were added; they are down until `openib_set_up`. Poll
/// afterwards. On failure the log says why; `openib_close` is still to be called.
///
/// # Safety
///
/// `host` is open, and not started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_start(host: *mut Host) -> Outcome {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    // SAFETY: not started, the caller promises, and closed only when nobody else uses it.
    match unsafe { host.start() } {
        Ok(()) => Outcome::Ok,
        Err(error) => {
            told(host.name(), "the stack does not start", &error);
            of_stack(&error)
        }
    }
}

/// Ends a host, whatever has become of it, and gives everything back. For an orderly end first have all interfaces set
/// down and polled until they are idle, so that their groups are left.
///
/// # Safety
///
/// `host` is open, and nobody uses it any more but interrupts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_close(host: *mut Host) -> Outcome {
    let Some(host) = NonNull::new(host) else {
        return Outcome::Invalid;
    };
    // SAFETY: open and not used any more, the caller promises.
    match unsafe { Host::close(host) } {
        Ok(()) => Outcome::Ok,
        Err(error) => of_verbs(error),
    }
}

/// What the kernel calls when an interrupt strikes: says whether it was the HCA's.
///
/// # Safety
///
/// `vector` came with `openib_os_bind_vector`, and is still bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_interrupt(vector: *mut os::Vector) -> bool {
    // SAFETY: the caller's promise.
    unsafe { crate::machine::Machine::interrupt(vector) }
}

/// Does what is due, and hands on at most `budget` datagrams. On failure the HCA is at its end: close the host, and open
/// it anew if it is `Failed`.
///
/// # Safety
///
/// `host` is open; `result` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_poll(
    host: *const Host,
    budget: u32,
    result: *mut PollResult,
) -> Outcome {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    match host.poll(budget) {
        Ok(round) => {
            let done = PollResult {
                next: round.next.0,
                received: round.received,
                changed: round.changed,
                jobs: round.jobs,
                more: round.more,
            };
            // SAFETY: the caller's.
            unsafe { *result = done };
            Outcome::Ok
        }
        Err(error) => of_verbs(error),
    }
}

/// Runs a job, if one waits, and has the host polled; says whether there was one.
///
/// # Safety
///
/// `host` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_run_job(host: *const Host) -> bool {
    // SAFETY: open, the caller promises.
    unsafe { self::host(host) }.run_job()
}

/// Sends a datagram of `len` bytes by interface `index` to the address `to`; `openib_os_fill(packet)` gives it. With
/// `more` it may wait for the next one, or for `openib_flush`. With `TOO_LONG`, `mtu` is what the peer takes, or all peers if
/// it is a group.
///
/// # Safety
///
/// `host` is open; `to` is 20 bytes; `packet` is there for the length of the call; `mtu` is the caller's, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_send(
    host: *const Host,
    index: u32,
    to: *const u8,
    ether_type: u16,
    packet: *mut os::Packet,
    len: usize,
    more: bool,
    mtu: *mut u32,
) -> Sent {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    // SAFETY: 20 bytes, the caller promises.
    let to = LinkAddress::from_bytes(unsafe { to.cast::<[u8; 20]>().read_unaligned() });
    let packet = (packet, len);
    match host.send(index as usize, &to, EtherType(ether_type), packet, more) {
        Ok(()) => Sent::Taken,
        Err(SendError::NoFrame) => Sent::Full,
        Err(SendError::Down) => Sent::Down,
        Err(SendError::TooLong { mtu: takes, .. }) => {
            if !mtu.is_null() {
                // SAFETY: the caller's.
                unsafe { *mtu = takes as u32 };
            }
            Sent::TooLong
        }
        Err(_) => Sent::Dropped,
    }
}

/// What was sent with `more` goes out now.
///
/// # Safety
///
/// `host` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_flush(host: *const Host, index: u32) {
    // SAFETY: open, the caller promises.
    unsafe { self::host(host) }.flush(index as usize);
}

/// The administrator wants interface `index` up, or down.
///
/// # Safety
///
/// `host` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_set_up(host: *const Host, index: u32, up: bool) {
    // SAFETY: open, the caller promises.
    unsafe { self::host(host) }.set_up(index as usize, up);
}

/// Interface `index` sends by connections to peers that take them, or by datagrams alone, as at first. The MTU changes with
/// it: see `openib_look` after the next poll. `UNSUPPORTED` without `connected` in `struct openib_config`.
///
/// # Safety
///
/// `host` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_set_connected(
    host: *const Host,
    index: u32,
    connected: bool,
) -> Outcome {
    // SAFETY: open, the caller promises.
    match unsafe { self::host(host) }.send_by_connections(index as usize, connected) {
        true => Outcome::Ok,
        false => Outcome::Unsupported,
    }
}

/// The group of a link-layer address of 20 bytes.
///
/// # Safety
///
/// `address` is 20 bytes.
unsafe fn group(address: *const u8) -> Gid {
    // SAFETY: 20 bytes, the caller promises.
    LinkAddress::from_bytes(unsafe { address.cast::<[u8; 20]>().read_unaligned() }).gid
}

/// Receives datagrams to the group of an address (20 bytes) from now on, as soon as it is joined. Each call needs an
/// `openib_ignore`.
///
/// # Safety
///
/// `host` is open; `address` is 20 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_listen(
    host: *const Host,
    index: u32,
    address: *const u8,
) -> Outcome {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    // SAFETY: 20 bytes, the caller promises.
    let heard = host.listen(index as usize, unsafe { group(address) });
    match heard {
        Ok(()) => Outcome::Ok,
        Err(ib_stack::ipoib::GroupError::NoRoom { .. }) => Outcome::NoMemory,
        Err(_) => Outcome::Invalid,
    }
}

/// Ends that.
///
/// # Safety
///
/// `host` is open; `address` is 20 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_ignore(host: *const Host, index: u32, address: *const u8) {
    // SAFETY: open, the caller promises.
    let host = unsafe { self::host(host) };
    // SAFETY: 20 bytes, the caller promises.
    host.ignore(index as usize, unsafe { group(address) });
}

/// Says how interface `index` stands, and whether there is one.
///
/// # Safety
///
/// `host` is open; `state` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_look(
    host: *const Host,
    index: u32,
    state: *mut InterfaceState,
) -> bool {
    // SAFETY: open, the caller promises.
    let Some(view) = unsafe { self::host(host) }.view(index as usize) else {
        return false;
    };
    let (up, mtu) = match view.state {
        LinkState::Up { mtu } => (true, mtu.into()),
        LinkState::Down(_) => (false, 0),
    };
    let idle = view.state == LinkState::Down(DownCause::Admin { idle: true });
    let found = InterfaceState {
        up,
        idle,
        lid: view.lid,
        mtu,
        address: view.address.to_bytes(),
        broadcast: view.broadcast.to_bytes(),
    };
    // SAFETY: the caller's.
    unsafe { *state = found };
    true
}

/// The name of counter `number` of an interface, a string that stays; null behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn openib_counter_name(number: u32) -> *const c_char {
    let name = counters::NAMES.get(number as usize);
    name.map_or(core::ptr::null(), |name| name.as_ptr())
}

/// Writes the first `count` counters of interface `index` at most, in the order of their names; says how many.
///
/// # Safety
///
/// `host` is open; `values` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openib_counters(
    host: *const Host,
    index: u32,
    values: *mut u64,
    count: u32,
) -> u32 {
    // SAFETY: open, the caller promises.
    let Some(all) = unsafe { self::host(host) }.statistics(index as usize) else {
        return 0;
    };
    let mut written = 0;
    for value in all.iter().take(count as usize) {
        // SAFETY: fewer than `count` were written.
        unsafe { values.add(written as usize).write(*value) };
        written += 1;
    }
    written
}
