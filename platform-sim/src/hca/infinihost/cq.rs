//! Completion queues: rings of completions in host memory, and when one of them makes an event. infinihost 4.4, 4.5.
//!
//! How far software has consumed a ring it says by doorbell (T-mode), or in a record that is looked at when the ring
//! seems full (M-mode).

use super::chip::Chip;
use super::eq::{Events, Rung};
use super::mpt::{AccessError, Key};
use super::record::RecordId;
use super::variant::Mode;
use crate::machine::Bus;
use hca_abi::infinihost::cmd::CmdStatus;
use hca_abi::infinihost::cq::{CqContext, CqState};
use hca_abi::infinihost::cqe::Cqe;
use hca_abi::infinihost::doorbell::{CqCommand, CqDoorbell, MArm, MCqDoorbell};
use hca_abi::infinihost::eq::QueueStatus;
use hca_abi::infinihost::eqe::{CqSyndrome, Eqe, EventType};
use hca_abi::infinihost::resize_cq::ResizeCq;
use std::collections::BTreeMap;

/// Log2 of the largest ring.
pub const MAX_LOG_SIZE: u8 = 17;

/// One ring.
struct Cq {
    mode: Mode,
    context: CqContext,
    /// Running; modulo the size they are places in the ring.
    producer: u32,
    consumer: u32,
    /// Behind the last entry that was solicited or an error.
    solicited: u32,
    /// Behind the last entry that was there when an event was made: software has been told of those.
    announced: u32,
    /// M: number of the arming in force, and of the one that made the last event.
    armed: u8,
    fired: u8,
}

/// No entry was written, and none will be: the queue pair that has this CQ is in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqLost {
    /// The ring has just failed, by overrun or for want of access.
    Failed,
    /// It had failed before, or is not the HCA's.
    Gone,
}

impl Cq {
    fn size(&self) -> u32 {
        1 << self.context.log_size()
    }

    fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    fn armed_state(&self) -> CqState {
        match self.mode {
            Mode::T => CqState::ARMED,
            Mode::M => CqState::M_ARMED,
        }
    }

    fn armed_solicited_state(&self) -> CqState {
        match self.mode {
            Mode::T => CqState::ARMED_SOLICITED,
            Mode::M => CqState::M_ARMED_SOLICITED,
        }
    }

    /// M-mode: looks at what software says it has consumed. A counter that is not between what was known and what was
    /// written says nothing.
    fn refresh(&mut self, chip: &Chip, bus: &mut dyn Bus) {
        if self.mode == Mode::T {
            return;
        }
        let (uar, index) = (self.context.uar_page(), self.context.set_ci_record());
        let counter = chip.record(bus, RecordId { uar, index }).counter();
        if counter.wrapping_sub(self.consumer) <= self.waiting() {
            self.consumer = counter;
        }
    }

    /// M-mode rings are always reached by key.
    fn key(&self) -> Option<Key> {
        let translate = self.context.translate() || self.mode == Mode::M;
        translate.then_some(Key {
            key: self.context.lkey(),
            pd: self.context.pd(),
        })
    }

    fn write(&mut self, chip: &mut Chip, bus: &mut dyn Bus, cqe: &Cqe) -> Result<(), AccessError> {
        let place = u64::from(self.producer & (self.size() - 1)) * size_of::<Cqe>() as u64;
        let at = self.context.start_address().wrapping_add(place);
        let key = self.key();
        let mut cqe = *cqe;
        cqe.set_owned_by_hw(false);
        let bytes: &[u8; 32] = zerocopy::transmute_ref!(&cqe);
        chip.write_entry(bus, key, at, bytes)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Entries that were not consumed when the consumer index was `consumer`, and that no event told of: is there one that
    /// the arming asks for?
    fn has(&self, solicited_only: bool, consumer: u32) -> bool {
        let unconsumed = self.producer.wrapping_sub(consumer);
        let told = self.announced.wrapping_sub(consumer);
        let known = if told <= unconsumed {
            self.announced
        } else {
            consumer
        };
        let last = if solicited_only {
            self.solicited
        } else {
            self.producer
        };
        let ahead = last.wrapping_sub(known);
        ahead != 0 && ahead <= self.producer.wrapping_sub(known)
    }

    /// Indices are shown modulo the size in T-mode, as counters in M-mode.
    fn index_mask(&self) -> u32 {
        match self.mode {
            Mode::T => self.size() - 1,
            Mode::M => u32::MAX,
        }
    }

    /// As a driver may query it.
    fn context(&self) -> CqContext {
        let mask = self.index_mask();
        let mut context = self.context;
        context
            .set_producer_index(self.producer & mask)
            .set_consumer_index(self.consumer & mask)
            .set_solicit_producer_index(self.solicited & mask);
        context
    }

    /// Software has consumed all before `consumer` and wants to be told of the next, or at once.
    fn arm(
        &mut self,
        chip: &mut Chip,
        events: &mut Events,
        bus: &mut dyn Bus,
        solicited_only: bool,
        consumer: u32,
    ) {
        if self.has(solicited_only, consumer) {
            self.fire(chip, events, bus);
        } else if solicited_only {
            self.context.set_state(self.armed_solicited_state());
        } else {
            self.context.set_state(self.armed_state());
        }
    }

    /// Tells the EQ of completions.
    fn fire(&mut self, chip: &mut Chip, events: &mut Events, bus: &mut dyn Bus) {
        let index = self.producer & self.index_mask();
        self.context.set_state(CqState::FIRED);
        self.context.set_last_notified_index(index);
        self.announced = self.producer;
        self.fired = self.armed;
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::COMPLETION)
            .set_number(self.context.cqn());
        events.post_to(chip, bus, self.context.completion_eqn(), &eqe);
    }
}

/// All CQs.
#[derive(Default)]
pub struct Cqs {
    cqs: BTreeMap<u32, Cq>,
    mask: u32,
}

impl Cqs {
    /// Of a table of `count` contexts, a power of two.
    pub fn new(count: u32) -> Self {
        Self {
            cqs: BTreeMap::new(),
            mask: count.wrapping_sub(1),
        }
    }

    /// CQs that are the HCA's.
    pub fn count(&self) -> usize {
        self.cqs.len()
    }

    /// The place of `cqn` in the table.
    pub fn index(&self, cqn: u32) -> u32 {
        cqn & self.mask
    }

    /// Is the place of `cqn` taken, by whatever generation?
    pub fn is_taken(&self, cqn: u32) -> bool {
        self.cqs.contains_key(&self.index(cqn))
    }

    fn get(&mut self, cqn: u32) -> Option<&mut Cq> {
        let cq = self.cqs.get_mut(&(cqn & self.mask));
        cq.filter(|cq| cq.context.cqn() == cqn)
    }

    /// Is CQ `cqn`, of this generation, the HCA's?
    pub fn contains(&self, cqn: u32) -> bool {
        let cq = self.cqs.get(&self.index(cqn));
        cq.is_some_and(|cq| cq.context.cqn() == cqn)
    }

    /// Takes CQ `cqn` over from software.
    pub fn create(&mut self, mode: Mode, cqn: u32, mut context: CqContext) {
        context.set_cqn(cqn).set_status(QueueStatus::OK);
        // Drivers write 0 or "fired" at creation; both mean not armed.
        context.set_state(CqState::DISARMED);
        let cq = Cq {
            mode,
            producer: context.producer_index(),
            consumer: context.consumer_index(),
            solicited: context.producer_index(),
            announced: context.producer_index(),
            armed: 0,
            fired: 0,
            context,
        };
        self.cqs.insert(self.index(cqn), cq);
    }

    /// Gives it back: nothing is written there any more.
    pub fn destroy(&mut self, cqn: u32) -> Option<CqContext> {
        self.contains(cqn)
            .then(|| self.cqs.remove(&self.index(cqn)))?
            .map(|cq| cq.context())
    }

    /// As it is.
    pub fn query(&mut self, chip: &Chip, bus: &mut dyn Bus, cqn: u32) -> Option<CqContext> {
        let cq = self.get(cqn)?;
        cq.refresh(chip, bus);
        Some(cq.context())
    }

    /// Writes an entry and tells, if the CQ is armed for it. `solicited` are errors, and receives of packets that said so.
    pub fn complete(
        &mut self,
        chip: &mut Chip,
        events: &mut Events,
        bus: &mut dyn Bus,
        cqn: u32,
        cqe: &Cqe,
        solicited: bool,
    ) -> Result<(), CqLost> {
        let Some(cq) = self.get(cqn) else {
            bus.report(format_args!(
                "completion for CQ {cqn:#x}, which is not the HCA's"
            ));
            return Err(CqLost::Gone);
        };
        if cq.context.status() != QueueStatus::OK {
            return Err(CqLost::Gone);
        }
        if cq.waiting() >= cq.size() {
            cq.refresh(chip, bus);
        }
        let full = cq.waiting() >= cq.size() && !cq.context.ignore_overrun();
        let (status, syndrome) = if full {
            bus.report(format_args!(
                "CQ {cqn:#x} overran its {} entries",
                cq.size()
            ));
            (QueueStatus::OVERFLOW, CqSyndrome::OVERRUN)
        } else if let Err(error) = cq.write(chip, bus, cqe) {
            bus.report(format_args!("CQ {cqn:#x} could not be written: {error}"));
            (QueueStatus::WRITE_FAILURE, CqSyndrome::ACCESS_VIOLATION)
        } else {
            if solicited {
                cq.solicited = cq.producer;
            }
            let state = cq.context.state();
            if state == cq.armed_state() || solicited && state == cq.armed_solicited_state() {
                cq.fire(chip, events, bus);
            }
            return Ok(());
        };
        cq.context.set_status(status);
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::CQ_ERROR)
            .set_number(cqn)
            .set_syndrome(syndrome.0);
        match cq.mode {
            Mode::T => events.post_to(chip, bus, cq.context.error_eqn(), &eqe),
            Mode::M => events.post(chip, bus, &eqe),
        }
        Err(CqLost::Failed)
    }

    /// Rings the doorbell of a CQ through UAR page `page`.
    pub fn ring(
        &mut self,
        chip: &mut Chip,
        events: &mut Events,
        bus: &mut dyn Bus,
        page: u32,
        doorbell: CqDoorbell,
    ) -> Rung {
        let Some(cq) = self.get(doorbell.cqn) else {
            return Rung::NoSuchQueue;
        };
        if cq.context.uar_page() != page {
            return Rung::WrongPage;
        }
        let mask = cq.size() - 1;
        let parameter = doorbell.parameter;
        let consumed = match doorbell.command {
            CqCommand::INCREMENT => parameter.wrapping_add(1),
            CqCommand::SET_INDEX => parameter.wrapping_sub(cq.consumer) & mask,
            CqCommand::ARM | CqCommand::ARM_SOLICITED => {
                let consumer = match parameter {
                    CqDoorbell::KNOWN_INDEX => cq.consumer,
                    // Index of the last entry polled, modulo the size.
                    last => {
                        let ahead = last.wrapping_add(1).wrapping_sub(cq.consumer) & mask;
                        cq.consumer.wrapping_add(ahead)
                    }
                };
                let solicited_only = doorbell.command == CqCommand::ARM_SOLICITED;
                cq.arm(chip, events, bus, solicited_only, consumer);
                return Rung::Done;
            }
            _ => return Rung::Unmodelled,
        };
        if consumed == 0 && doorbell.command == CqCommand::INCREMENT
            || consumed > cq.waiting() && !cq.context.ignore_overrun()
        {
            return Rung::Overrun;
        }
        cq.consumer = cq.consumer.wrapping_add(consumed);
        Rung::Done
    }

    /// M-mode: rings the doorbell that arms a CQ. One with the number of an arming that has made its event already is a
    /// repeat of that. infinihost 4.5.4.
    pub fn arm(
        &mut self,
        chip: &mut Chip,
        events: &mut Events,
        bus: &mut dyn Bus,
        page: u32,
        doorbell: MCqDoorbell,
    ) -> Rung {
        let Some(cq) = self.get(doorbell.cqn) else {
            return Rung::NoSuchQueue;
        };
        if cq.context.uar_page() != page {
            return Rung::WrongPage;
        }
        let solicited_only = match doorbell.arm {
            MArm::SOLICITED => true,
            MArm::ANY => false,
            _ => return Rung::Unmodelled,
        };
        if doorbell.sequence != cq.fired {
            cq.armed = doorbell.sequence;
            cq.arm(chip, events, bus, solicited_only, doorbell.counter);
        }
        Rung::Done
    }

    /// The EQ doorbell that disarms a CQ. One that is gone is disarmed: its last event may come after it.
    pub fn disarm(&mut self, cqn: u32) -> Rung {
        if let Some(cq) = self.get(cqn) {
            cq.context.set_state(CqState::DISARMED);
        }
        Rung::Done
    }

    /// Which CQ can still write into `len` bytes at bus address `at`.
    pub fn reaches(&self, chip: &Chip, bus: &mut dyn Bus, at: u64, len: u64) -> Option<u32> {
        let touches = |cq: &&Cq| {
            let ring = (cq.context.start_address(), cq.size());
            chip.ring_touches(bus, cq.key(), ring, at, len)
        };
        self.cqs.values().find(touches).map(|cq| cq.context.cqn())
    }

    /// Goes on in another ring, behind as many entries as wait in this one. infinihost 4.5.5: T-mode keeps its producer
    /// index modulo the old size.
    pub fn resize(
        &mut self,
        chip: &Chip,
        bus: &mut dyn Bus,
        cqn: u32,
        new: &ResizeCq,
    ) -> Result<(), CmdStatus> {
        let cq = self.get(cqn).ok_or(CmdStatus::BAD_RES_STATE)?;
        cq.refresh(chip, bus);
        if new.log_size() > MAX_LOG_SIZE {
            return Err(CmdStatus::EXCEED_LIM);
        }
        if cq.waiting() > 1 << new.log_size() {
            return Err(CmdStatus::BAD_SIZE);
        }
        let shift = match cq.mode {
            Mode::T => cq.producer & !(cq.size() - 1),
            Mode::M => 0,
        };
        cq.producer = cq.producer.wrapping_sub(shift);
        cq.consumer = cq.consumer.wrapping_sub(shift);
        cq.solicited = cq.solicited.wrapping_sub(shift);
        cq.announced = cq.announced.wrapping_sub(shift);
        cq.context
            .set_log_size(new.log_size())
            .set_start_address(new.start_address())
            .set_lkey(new.lkey());
        Ok(())
    }
}
