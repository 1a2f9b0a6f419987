//! How a world behaves, and what it counts.

use super::OnReport;
use core::time::Duration;

/// What time a world keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Time of its own, from one seed: the same seed gives the same run, byte for byte.
    #[default]
    Virtual,
    /// The wall's. Sleeps when idle.
    RealTime,
}

/// How a world behaves. `Config::default()` is what tests want.
#[derive(Clone, Debug)]
pub struct Config {
    /// Chooses everything that is left to chance.
    pub seed: u64,
    /// Which clock.
    pub mode: Mode,
    /// What to do about offences.
    pub on_report: OnReport,
    /// Bytes of stack reserved for each context, beyond which is a guard page. Untouched stack costs nothing.
    pub stack: usize,
    /// Bytes of stack that a context may use before that is an offence. Kernels have 16 KiB; unoptimised code needs
    /// more.
    pub stack_budget: Option<usize>,
    /// Mean time that code takes from one point to the next. Virtual time.
    pub step: Duration,
    /// How often, in parts of a million, a processor is taken away at a point. Virtual time.
    pub stalls: u32,
    /// Longest time for which it is.
    pub stall: Duration,
    /// Longest time that a store to a register is on its way. Virtual time.
    pub posting: Duration,
    /// The machine has no 64-bit accesses: it makes two of 32 bits of each, lower address first.
    pub narrow: bool,
    /// Longest time from an interrupt to its handler. Virtual time.
    pub interrupt_latency: Duration,
    /// How often a register may be read in a row with the same answer.
    pub spin_limit: u32,
    /// How long [`World::finish`](super::World::finish) waits.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            mode: Mode::Virtual,
            on_report: OnReport::Panic,
            stack: 1 << 20,
            stack_budget: if cfg!(debug_assertions) {
                None
            } else {
                Some(16 << 10)
            },
            step: Duration::from_nanos(40),
            stalls: 200,
            stall: Duration::from_micros(20),
            posting: Duration::from_nanos(300),
            narrow: false,
            interrupt_latency: Duration::from_micros(2),
            spin_limit: 1_000_000,
            patience: Duration::from_secs(600),
        }
    }
}

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Loads from registers.
    pub register_reads: u64,
    /// Stores to registers.
    pub register_writes: u64,
    /// Times that a context was resumed.
    pub switches: u64,
    /// Interrupt handlers run.
    pub interrupts: u64,
    /// Of those, on top of other code.
    pub strikes: u64,
    /// Packets handed to the wire.
    pub packets_sent: u64,
    /// Packets handed to a function.
    pub packets_received: u64,
    /// Timers of functions that came due.
    pub timers: u64,
    /// Times that real time put the process to sleep.
    pub sleeps: u64,
    /// Most stack that any context used, in bytes; those that have finished, and all at the end.
    pub stack_used: usize,
}
