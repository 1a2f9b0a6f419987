//! What happened, kept with its object until somebody takes it. verbs 10, infinihost 4.3.
//!
//! The interrupt handler writes, consumers pull. Nothing is queued for the whole HCA, so nothing can overflow: a CQ has
//! a ready flag, a QP, an SRQ and a port have one place for each kind of event that they know, in the order in which
//! the kinds came. A kind that is there already is not noted twice (verbs 10.1: at least once).

use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering;
use core_ib::platform::{Platform, PlatformError, Table};
use core_ib::verbs::{PortEvent, QpEvent, SrqEvent};

/// A kind of event, as a number from 1 to 15.
pub trait Kind: Copy {
    /// The number.
    fn code(self) -> u32;
    /// The kind of a number.
    fn from_code(code: u32) -> Option<Self>;
}

macro_rules! codes {
    ($kind:ident: $($name:ident = $code:literal),* $(,)?) => {
        impl Kind for $kind {
            fn code(self) -> u32 {
                match self { $($kind::$name => $code,)* }
            }
            fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some($kind::$name),)* _ => None }
            }
        }
    };
}

codes!(QpEvent: Fatal = 1, RequestError = 2, AccessError = 3, CommunicationEstablished = 4, SqDrained = 5,
    PathMigrated = 6, PathMigrationFailed = 7, LastWqeReached = 8);
codes!(SrqEvent: LimitReached = 1, Error = 2);
codes!(PortEvent: Active = 1, Error = 2, LidChange = 3, PkeyChange = 4, GidChange = 5, SmChange = 6,
    ClientReregister = 7);

/// Events of one object: each kind at most once, oldest first. Four bits a kind below, whose they are above: an event that
/// a handler has in hand while its object goes and another comes to the place is not the other's.
#[derive(Debug)]
pub struct Pending(AtomicU64);

/// Whose events are in a place without an object: nobody's number.
const NOBODY: u32 = u32::MAX;

impl Pending {
    /// None, of nobody.
    pub fn closed() -> Self {
        Self(AtomicU64::new(u64::from(NOBODY) << 32))
    }

    /// From here on events of `owner` are taken, which has none.
    pub fn open(&self, owner: u32) {
        // Not a store, so that it has its turn among those who note and take.
        self.0.swap(u64::from(owner) << 32, Ordering::AcqRel);
    }

    /// Forgets all, and takes no more: for a place whose object goes.
    pub fn close(&self) {
        self.open(NOBODY);
    }

    /// Notes an event of `owner`, if it is still there. Any context.
    pub fn push(&self, owner: u32, event: impl Kind) {
        let append = |word: u64| {
            if word >> 32 != u64::from(owner) || owner == NOBODY {
                return None;
            }
            for place in 0..8 {
                match word as u32 >> (place * 4) & 15 {
                    0 => return Some(word | u64::from(event.code()) << (place * 4)),
                    known if known == event.code() => return None,
                    _ => {}
                }
            }
            None
        };
        // Noted already, or (there are no more than eight kinds) no room: nothing is lost either way.
        let _ = self
            .0
            .try_update(Ordering::AcqRel, Ordering::Acquire, append);
    }

    /// Takes the oldest, and says whose it is. Any context.
    pub fn pop<K: Kind>(&self) -> Option<(u32, K)> {
        let rest = |word: u64| {
            let (owner, queue) = (word >> 32, word as u32);
            (queue != 0).then_some(owner << 32 | u64::from(queue >> 4))
        };
        let word = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, rest);
        let word = word.ok()?;
        Some(((word >> 32) as u32, K::from_code(word as u32 & 15)?))
    }

    /// Is there any?
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) as u32 == 0
    }
}

/// Tells the tenants of a place apart where the number that the HCA knows does not: each gets a number here, and an event
/// counts for those alone that were there when it was taken from its queue.
#[derive(Debug)]
pub struct Tenants(AtomicU32);

impl Tenants {
    /// [`NOBODY`] is none of them.
    const MASK: u32 = 0x7fff_ffff;

    /// None yet. Set-up only.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The number of a new one. Thread.
    pub fn enter(&self) -> u32 {
        self.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1) & Self::MASK
    }

    /// The newest. Under the lock of the queue of events: who ends a tenant empties that queue, so the next one is newer.
    pub fn newest(&self) -> u32 {
        self.0.load(Ordering::Acquire) & Self::MASK
    }

    /// Was `tenant` there when `newest` was the newest?
    pub const fn had(newest: u32, tenant: u32) -> bool {
        newest.wrapping_sub(tenant) & Self::MASK <= Self::MASK / 2
    }
}

/// Which of many objects have something pending: one bit each.
pub struct Marks<'p, P: Platform>(Table<'p, AtomicU64, P>);

impl<'p, P: Platform> Marks<'p, P> {
    /// For `count` objects. Set-up only.
    pub fn new(machine: &'p P, count: usize) -> Result<Self, PlatformError> {
        Table::new(machine, count.div_ceil(64), |_| AtomicU64::new(0)).map(Self)
    }

    /// Marks object `index`. Any context.
    pub fn set(&self, index: u32) {
        if let Some(word) = self.0.get((index / 64) as usize) {
            word.fetch_or(1 << (index % 64), Ordering::AcqRel);
        }
    }

    /// Takes a mark; the lowest index first.
    pub fn take(&self) -> Option<u32> {
        for (index, word) in (0_u32..).zip(self.0.iter()) {
            let bits = word.load(Ordering::Acquire);
            let bit = bits & bits.wrapping_neg();
            if bit != 0 && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                return Some(index * 64 + bit.trailing_zeros());
            }
        }
        None
    }
}

/// What came from the HCA and fits nothing that exists. verbs 14, T168: counted, ignored.
#[derive(Debug, Default)]
pub struct Strays {
    /// Events of a CQ that does not exist (any more).
    pub cqn: AtomicU32,
    /// Events of a QP that does not.
    pub qpn: AtomicU32,
    /// Events of an SRQ that does not.
    pub srqn: AtomicU32,
    /// Events of a port that the HCA does not have.
    pub port: AtomicU32,
    /// Events of a kind that nobody knows.
    pub event_type: AtomicU32,
    /// Doorbells that came through a page which their queue does not have: a user's mischief, as a rule.
    pub doorbell: AtomicU32,
    /// Completions that name no request outstanding.
    pub cqe: AtomicU32,
}

/// What came from the HCA and fitted nothing that exists, counted by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrayCounts {
    /// Events of a CQ that does not exist (any more).
    pub cqn: u32,
    /// Events of a QP that does not.
    pub qpn: u32,
    /// Events of an SRQ that does not.
    pub srqn: u32,
    /// Events of a port that the HCA does not have.
    pub port: u32,
    /// Events of a kind that nobody knows.
    pub event_type: u32,
    /// Doorbells through a page that their queue does not have.
    pub doorbell: u32,
    /// Completions that name no request outstanding.
    pub cqe: u32,
    /// Command completions that nobody waited for.
    pub command: u32,
}

impl Strays {
    /// One more.
    pub fn count(counter: &AtomicU32) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn counts(&self) -> StrayCounts {
        let now = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        StrayCounts {
            cqn: now(&self.cqn),
            qpn: now(&self.qpn),
            srqn: now(&self.srqn),
            port: now(&self.port),
            event_type: now(&self.event_type),
            doorbell: now(&self.doorbell),
            cqe: now(&self.cqe),
            command: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fake::Machine;
    use std::vec::Vec;

    #[test]
    fn events_of_an_object_come_in_order_and_each_kind_once() {
        let pending = Pending::closed();
        pending.open(5);
        for event in [
            QpEvent::LastWqeReached,
            QpEvent::Fatal,
            QpEvent::LastWqeReached,
        ] {
            pending.push(5, event);
        }
        assert_eq!(pending.pop(), Some((5, QpEvent::LastWqeReached)));
        pending.push(5, QpEvent::LastWqeReached); // raised anew after it was taken
        assert_eq!(pending.pop(), Some((5, QpEvent::Fatal)));
        assert_eq!(pending.pop(), Some((5, QpEvent::LastWqeReached)));
        assert_eq!(pending.pop::<QpEvent>(), None);
    }

    #[test]
    fn an_event_of_who_was_there_before_is_not_the_next_ones() {
        let pending = Pending::closed();
        pending.push(u32::MAX, QpEvent::Fatal);
        pending.open(5);
        pending.push(5, QpEvent::Fatal);
        pending.close();
        pending.push(5, QpEvent::Fatal);
        pending.open(6);
        pending.push(5, QpEvent::Fatal);
        assert_eq!(pending.pop::<QpEvent>(), None);
        pending.push(6, QpEvent::SqDrained);
        assert_eq!(pending.pop(), Some((6, QpEvent::SqDrained)));
    }

    #[test]
    fn an_event_counts_for_who_was_there_when_it_was_taken() {
        let tenants = Tenants::new();
        let first = tenants.enter();
        let then = tenants.newest();
        let second = tenants.enter();
        assert!(Tenants::had(then, first) && !Tenants::had(then, second));
        assert!(Tenants::had(tenants.newest(), first) && Tenants::had(tenants.newest(), second));
        let last = Tenants(AtomicU32::new(u32::MAX - 1));
        let (old, new) = (last.enter(), last.enter());
        assert_ne!((old, new), (NOBODY, NOBODY));
        assert!(
            Tenants::had(new, old) && !Tenants::had(old, new),
            "past the end of the numbers"
        );
    }

    #[test]
    fn all_kinds_fit_at_once() {
        let pending = Pending::closed();
        pending.open(5);
        (1..=8)
            .filter_map(QpEvent::from_code)
            .for_each(|event| pending.push(5, event));
        let all: Vec<(u32, QpEvent)> = core::iter::from_fn(|| pending.pop()).collect();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn a_mark_is_taken_once() {
        let machine = Machine::idle();
        let marks = Marks::new(&machine, 130).unwrap();
        for index in [129, 3, 64, 3, 1000] {
            marks.set(index);
        }
        let taken: Vec<u32> = core::iter::from_fn(|| marks.take()).collect();
        assert_eq!(taken, [3, 64, 129]);
    }
}
