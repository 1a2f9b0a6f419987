//! The send queue of a queue pair: what is posted and not yet begun. infinihost 2.8, 2.9, 5.4.
//!
//! In T-mode a doorbell names the first entry of a chain, and the chain says itself how far it goes. In M-mode entries
//! stand in a ring, and a doorbell says how many were added; each still describes the one behind it.

use super::variant::Mode;
use super::wqe::Position;
use hca_abi::infinihost::doorbell::{MSendDoorbell, SendDoorbell};
use hca_abi::infinihost::qp::QpContext;
use hca_abi::infinihost::wqe::{MAX_UNITS, NextSegment, WqeOpcode};
use std::collections::VecDeque;

/// Log2 of the largest work queue of M-mode. infinihost 10.2.
pub const MAX_LOG_QUEUE: u8 = 14;
/// Doorbells that one queue remembers; a queue of the largest size cannot use more.
const MAX_DOORBELLS: usize = 1 << 16;

/// Where the entries of an M-mode queue stand.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Low 32 bits of the address of the first.
    base: u32,
    log_size: u32,
    log_stride: u32,
}

impl Ring {
    /// As a context says it: its strides are less 4.
    pub const fn new(base: u32, log_size: u8, log_stride: u8) -> Self {
        Self {
            base: base & !0x3f,
            log_size: log_size as u32 & 0xf,
            log_stride: (log_stride as u32 & 7) + 4,
        }
    }

    /// Entries.
    pub const fn size(&self) -> u32 {
        1 << self.log_size
    }

    /// Low 32 bits of the address of the entry that was the `counter`th to be posted.
    pub const fn place(&self, counter: u16) -> u32 {
        let index = counter as u32 & (self.size() - 1);
        self.base.wrapping_add(index << self.log_stride)
    }

    /// Room of an entry in units of 16 bytes, as far as entries can be fetched.
    pub const fn units(&self) -> u8 {
        let units = 1_u32 << (self.log_stride - 4);
        if units < MAX_UNITS as u32 {
            units as u8
        } else {
            MAX_UNITS
        }
    }
}

/// A send doorbell of either mode.
#[derive(Clone, Copy, Debug)]
pub enum Added {
    /// T: a chain of entries.
    Chain(SendDoorbell),
    /// M: so many entries.
    Counted(MSendDoorbell),
}

impl Added {
    /// The QP that it is for.
    pub const fn qpn(&self) -> u32 {
        match self {
            Self::Chain(doorbell) => doorbell.qpn,
            Self::Counted(doorbell) => doorbell.qpn,
        }
    }
}

/// An entry that a queue which stops gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// Which.
    pub at: Position,
    /// T: doorbells (send) or entries (receive) behind it, for which no completion of their own is made. M: none.
    pub behind: u16,
}

/// How one entry leads to the next.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// T: by a link, unless that asks for a doorbell.
    Linked,
    /// M: by its place, until the doorbell's count is used up.
    Ring(Ring),
}

/// What is left of one doorbell.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: Position,
    /// M: which entry this is, counted from the first ever posted.
    counter: u16,
    /// M: entries behind it.
    behind: u8,
}

/// Send requests: the run that is being carried out, and those that wait.
pub struct SendQueue {
    order: Order,
    current: Option<Run>,
    waiting: VecDeque<Run>,
    /// M: entries posted since RESET.
    posted: u16,
    /// M: entries that wait or are being carried out.
    outstanding: u32,
    /// The model has it on its list of work.
    pub scheduled: bool,
}

impl SendQueue {
    /// Of a queue pair with this context, nothing posted.
    pub fn new(mode: Mode, context: &QpContext) -> Self {
        Self {
            order: match mode {
                Mode::T => Order::Linked,
                Mode::M => Order::Ring(Ring::new(
                    context.sq_address(),
                    context.log_sq_size(),
                    context.log_sq_stride(),
                )),
            },
            current: None,
            waiting: VecDeque::new(),
            posted: 0,
            outstanding: 0,
            scheduled: false,
        }
    }

    /// Takes a doorbell; false if there are too many, or more entries than the queue has.
    pub fn ring(&mut self, added: &Added) -> bool {
        if self.waiting.len() >= MAX_DOORBELLS {
            return false;
        }
        let run = match (added, self.order) {
            (Added::Chain(doorbell), _) => Run {
                at: Position {
                    nda: doorbell.nda,
                    nds: doorbell.nds,
                    opcode: WqeOpcode(doorbell.opcode),
                    fence: doorbell.fence,
                },
                counter: 0,
                behind: 0,
            },
            (Added::Counted(doorbell), Order::Ring(ring)) => {
                let total = self.outstanding + u32::from(doorbell.count);
                if total > ring.size() || doorbell.count == 0 {
                    return false;
                }
                let counter = self.posted;
                self.posted = counter.wrapping_add(u16::from(doorbell.count));
                self.outstanding = total;
                Run {
                    at: Position {
                        nda: ring.place(counter),
                        nds: doorbell.nds,
                        opcode: WqeOpcode(doorbell.opcode),
                        fence: doorbell.fence,
                    },
                    counter,
                    behind: doorbell.count - 1,
                }
            }
            (Added::Counted(_), Order::Linked) => return false,
        };
        self.waiting.push_back(run);
        true
    }

    /// M: entries posted since RESET, modulo 65536.
    pub fn posted(&self) -> u16 {
        self.posted
    }

    /// The entry that is to be carried out next. Its doorbell counts as begun.
    pub fn begin(&mut self) -> Option<Position> {
        if self.current.is_none() {
            self.current = self.waiting.pop_front();
        }
        self.current.map(|run| run.at)
    }

    /// The entry that [`begin`](Self::begin) gave is done: on to the one behind it, which its `next` segment describes, or
    /// to the next doorbell.
    pub fn advance(&mut self, next: &NextSegment) {
        let described = |nda| Position {
            nda,
            nds: next.nds(),
            opcode: next.next_opcode(),
            fence: next.fence(),
        };
        self.current = match (self.order, self.current.take()) {
            (Order::Linked, _) => (next.nds() != 0 && !next.dbd()).then(|| Run {
                at: described(next.nda()),
                counter: 0,
                behind: 0,
            }),
            (Order::Ring(ring), Some(run)) => {
                self.outstanding = self.outstanding.saturating_sub(1);
                let counter = run.counter.wrapping_add(1);
                run.behind.checked_sub(1).map(|behind| Run {
                    at: described(ring.place(counter)),
                    counter,
                    behind,
                })
            }
            (Order::Ring(_), None) => None,
        };
    }

    /// The first entry that is not done, without beginning it.
    pub fn first(&self) -> Option<Position> {
        let run = self.current.or_else(|| self.waiting.front().copied());
        run.map(|run| run.at)
    }

    /// Nothing is posted.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Forgets everything and says what that was: in T-mode the first entry, and how many doorbells were not begun
    /// behind it, which stands for all; in M-mode each entry. infinihost 5.8.
    pub fn flush(&mut self) -> Vec<Flushed> {
        let first = self.begin();
        let runs = self
            .current
            .take()
            .into_iter()
            .chain(self.waiting.drain(..));
        self.outstanding = 0;
        let Order::Ring(ring) = self.order else {
            let behind = runs.count().saturating_sub(1);
            let behind = u16::try_from(behind).unwrap_or(u16::MAX);
            return first.map(|at| Flushed { at, behind }).into_iter().collect();
        };
        let entries = runs.flat_map(|run| {
            let rest = (1..=u16::from(run.behind)).map(move |ahead| Position {
                nda: ring.place(run.counter.wrapping_add(ahead)),
                ..run.at
            });
            core::iter::once(run.at).chain(rest)
        });
        entries.map(|at| Flushed { at, behind: 0 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_ring(log_size: u8) -> SendQueue {
        let mut context = QpContext::ZERO;
        context
            .set_sq_address(0x1000)
            .set_log_sq_size(log_size)
            .set_log_sq_stride(2);
        SendQueue::new(Mode::M, &context)
    }

    fn counted(count: u8) -> Added {
        Added::Counted(MSendDoorbell {
            count,
            counter: 0,
            fence: false,
            opcode: WqeOpcode::SEND.0,
            qpn: 1,
            nds: 3,
        })
    }

    #[test]
    fn an_entry_of_a_ring_is_where_its_counter_says_and_none_is_fetched_beyond_63_units() {
        let ring = Ring::new(0x1_0040, 6, 2);
        assert_eq!((ring.size(), ring.units()), (64, 4));
        assert_eq!(
            [0, 1, 63, 64].map(|at| ring.place(at)),
            [0x1_0040, 0x1_0080, 0x1_1000, 0x1_0040]
        );
        assert_eq!(Ring::new(0, 0, 7).units(), 63);
    }

    #[test]
    fn a_chain_goes_on_until_a_link_asks_for_a_doorbell() {
        let mut queue = SendQueue::new(Mode::T, &QpContext::ZERO);
        let chain = |nda| {
            Added::Chain(SendDoorbell {
                nda,
                fence: false,
                opcode: 0x0a,
                qpn: 1,
                nds: 3,
            })
        };
        assert!(queue.ring(&chain(0x40)) && queue.ring(&chain(0x200)));
        assert!(!queue.ring(&counted(1)), "of the other mode");
        let mut next = NextSegment::ZERO;
        next.set_nda(0x80)
            .set_nds(2)
            .set_next_opcode(WqeOpcode::NOP);
        queue.begin();
        queue.advance(&next);
        let at = queue.begin().unwrap();
        assert_eq!((at.nda, at.nds, at.opcode), (0x80, 2, WqeOpcode::NOP));
        queue.advance(next.set_dbd(true));
        assert_eq!(queue.begin().map(|at| at.nda), Some(0x200));
        queue.advance(&NextSegment::ZERO);
        assert!(queue.is_empty());
    }

    proptest! {
        /// Whatever the entries say of each other.
        #[test]
        fn what_is_posted_to_a_ring_is_begun_once_and_in_order_or_flushed(
            steps in prop::collection::vec((0..4_u8, any::<u8>(), any::<[u32; 2]>()), 0..200), log_size in 0..9_u8,
        ) {
            let mut queue = in_ring(log_size);
            let size = 1_usize << log_size;
            let (mut posted, mut done) = (0_usize, 0_usize);
            let place = |counter: usize| 0x1000 + (counter % size * 64) as u32;
            for (step, count, [nda, nds]) in steps {
                match step {
                    0 => {
                        let fits = count != 0 && posted - done + usize::from(count) <= size;
                        prop_assert_eq!(queue.ring(&counted(count)), fits);
                        if fits {
                            posted += usize::from(count);
                        }
                    }
                    1 => {
                        let flushed = queue.flush();
                        let places: Vec<_> = flushed.iter().map(|one| (one.at.nda, one.behind)).collect();
                        let expected: Vec<_> = (done..posted).map(|counter| (place(counter), 0)).collect();
                        prop_assert_eq!(places, expected);
                        done = posted;
                    }
                    _ => {
                        let at = queue.begin().map(|at| at.nda);
                        prop_assert_eq!(at, (done < posted).then(|| place(done)));
                        if at.is_some() {
                            let mut next = NextSegment::ZERO;
                            queue.advance(next.set_nda(nda).set_nds(nds as u8).set_dbd(nds & 64 != 0));
                            done += 1;
                        }
                    }
                }
                prop_assert_eq!(queue.is_empty(), done == posted);
                prop_assert_eq!(usize::from(queue.posted()), posted & 0xffff);
            }
        }
    }
}
