//! What a run found out that silicon would not have said: one entry for each offence, by the name of the object.

use core::fmt;
use core_ib::Instant;

/// What kind of offence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ReportKind {
    /// A register access outside its mapping, misaligned, or with the wrong width.
    Register,
    /// The device went for memory that is not mapped for it.
    DmaOutside,
    /// The device went for memory that has been given back.
    DmaAfterFree,
    /// The device went for memory in a direction that it is not mapped for.
    DmaDirection,
    /// Memory was given back while the device could still reach it.
    FreedWhileReachable,
    /// Memory was given back that was not out, or not in this shape.
    BadFree,
    /// A lock was held across something that blocks.
    LockAcrossWait,
    /// A context takes a lock or enters a gate that it holds.
    SelfDeadlock,
    /// Two locks or gates are taken in both orders.
    InvertedOrder,
    /// An interrupt handler takes a lock whose maker did not say so.
    LockInInterrupt,
    /// An interrupt handler does what may block.
    WaitInInterrupt,
    /// A lock or gate is released by who does not hold it.
    NotHeld,
    /// Two contexts wait for one completion.
    TwoWaiters,
    /// A message to nowhere, a line that nobody serves, vectors given back while bound.
    Interrupt,
    /// A register is read over and over and never changes.
    Spin,
    /// A context used more stack than its budget.
    Stack,
    /// Memory was never given back.
    Leak,
    /// The PCI function contradicts itself, or was used against its rules: its own words.
    Device,
}

/// One offence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When.
    pub at: Instant,
    /// On which host.
    pub host: String,
    /// In which context, if in one.
    pub context: Option<String>,
    /// What kind.
    pub kind: ReportKind,
    /// What happened, to what.
    pub text: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.at.0;
        let (secs, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "{secs}.{nanos:09} {}", self.host)?;
        if let Some(context) = &self.context {
            write!(f, " ({context})")?;
        }
        write!(f, ": {:?}: {}", self.kind, self.text)
    }
}

/// What a run does about an offence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReport {
    /// Panics where it happened, so that a test cannot overlook it.
    #[default]
    Panic,
    /// Keeps it for [`World::take_reports`](super::World::take_reports).
    Collect,
}
