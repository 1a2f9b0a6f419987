//! What a case is given: two HCAs, the machines that they are in, and the cable between.

use super::Declared;
use core_ib::platform::Platform;
use core_ib::verbs::Verbs;

/// One end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The HCA under test.
    A,
    /// Its peer.
    B,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The other.
    pub const fn peer(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// Place in an array.
    pub const fn index(self) -> usize {
        match self {
            Side::A => 0,
            Side::B => 1,
        }
    }
}

/// Looks at each packet that a side sends, from LRH to VCRC, and says whether it may pass.
pub type Filter = Box<dyn FnMut(Side, &[u8]) -> bool + Send>;

/// Two HCAs, freshly opened, port 1 of each on one end of a cable, without a subnet manager. A case may block: it runs
/// in the control context of a machine, whose clock and sleep it waits by.
pub trait Rig: Sync {
    /// The machines.
    type Machine: Platform;
    /// The HCAs.
    type Hca: Verbs;

    /// The HCA of that side.
    fn hca(&self, side: Side) -> &Self::Hca;
    /// The machine that it is in.
    fn machine(&self, side: Side) -> &Self::Machine;
    /// What the HCAs can, and which of the allowed choices they made.
    fn declared(&self) -> &Declared;
    /// Runs both at the same time and returns when both have ended. Blocks.
    fn together<'a>(&'a self, one: &'a (dyn Fn() + Sync), other: &'a (dyn Fn() + Sync));
    /// How often the driver has woken its owner so far ([`Wake`](core_ib::platform::Wake)).
    fn wakes(&self, side: Side) -> u64;
    /// What follows breaks a rule for consumers on purpose: a machine that reports such things shall not.
    fn offends(&self);
    /// The HCA fails for good: a catastrophic error. The driver is not told but by the HCA itself. Blocks.
    fn break_down(&self, side: Side);
    /// Somebody pulls the HCA out of its machine, without a word to anybody. Blocks.
    fn pull_out(&self, side: Side);
    /// Packets are lost that the filter does not let pass; `None` lets all pass.
    fn filter(&self, filter: Option<Filter>);
    /// Pulls the cable, or plugs it in again. Blocks.
    fn plug(&self, plugged: bool);
}
