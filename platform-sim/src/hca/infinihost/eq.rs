//! Event queues: rings of events in host memory, who gets which event, and the interrupts that they raise. infinihost
//! 4.1 to 4.3, 7.
//!
//! An event that finds its ring full waits in the HCA until software has consumed one (infinihost 4.1). A ring of T-mode is
//! full with one entry to spare: its consumer index is told modulo the size, so that an index which did not move could
//! mean none consumed or all.

use super::chip::Chip;
use super::mpt::{AccessError, Key};
use super::regs::Half;
use super::variant::Mode;
use crate::machine::Bus;
use hca_abi::infinihost::doorbell::{EqCommand, EqDoorbell};
use hca_abi::infinihost::eq::{EqContext, EqState, QueueStatus};
use hca_abi::infinihost::eqe::{Eqe, EventType, LocalSyndrome};
use hca_abi::infinihost::regs::CatasKind;
use std::collections::{BTreeMap, VecDeque};

/// Events that wait for room in one ring before the ring counts as overflowed.
const BACKLOG: usize = 4096;
/// Log2 of the largest ring.
pub const MAX_LOG_SIZE: u8 = 17;
/// Interrupt pin of the card: `intr` of an EQ, bit in CLR_INT. infinihost 10.2.
pub const INTA_PIN: u8 = 31;

/// One ring.
struct Eq {
    mode: Mode,
    context: EqContext,
    /// Running; modulo the size they are places in the ring.
    producer: u32,
    consumer: u32,
    backlog: VecDeque<Eqe>,
}

impl Eq {
    fn new(mode: Mode, context: EqContext) -> Self {
        Self {
            mode,
            producer: context.producer_index(),
            consumer: context.consumer_index(),
            context,
            backlog: VecDeque::new(),
        }
    }

    fn size(&self) -> u32 {
        1 << self.context.log_size()
    }

    fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    fn has_room(&self) -> bool {
        let room = match self.mode {
            Mode::T => self.size() - 1,
            Mode::M => self.size(),
        };
        self.context.ignore_overrun() || self.waiting() < room
    }

    fn pd(&self) -> u32 {
        match self.mode {
            Mode::T => self.context.pd(),
            Mode::M => self.context.m_pd(),
        }
    }

    fn state(&self) -> EqState {
        EqState(self.context.state().0 & 3)
    }

    /// Into one of the three states, as the context of this mode has it.
    fn enter(&mut self, state: EqState) {
        self.context.set_state(match (self.mode, state) {
            (Mode::T, state) => state,
            (Mode::M, EqState::ARMED) => EqState::M_ARMED,
            (Mode::M, EqState::FIRED) => EqState::M_FIRED,
            (Mode::M, _) => EqState::M_ALWAYS_ARMED,
        });
    }

    fn key(&self) -> Option<Key> {
        self.context.translate().then_some(Key {
            key: self.context.lkey(),
            pd: self.pd(),
        })
    }

    fn write(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqe: &Eqe) -> Result<(), AccessError> {
        let place = u64::from(self.producer & (self.size() - 1)) * size_of::<Eqe>() as u64;
        let at = self.context.start_address().wrapping_add(place);
        let key = self.key();
        let mut eqe = *eqe;
        eqe.set_owned_by_hw(false);
        let bytes: &[u8; 32] = zerocopy::transmute_ref!(&eqe);
        chip.write_entry(bus, key, at, bytes)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// As a driver may query it.
    fn context(&self) -> EqContext {
        let mask = match self.mode {
            Mode::T => self.size() - 1,
            Mode::M => u32::MAX,
        };
        let mut context = self.context;
        context
            .set_owner(1)
            .set_producer_index(self.producer & mask)
            .set_consumer_index(self.consumer & mask);
        context
    }
}

/// All EQs, and what they share.
#[derive(Default)]
pub struct Events {
    eqs: BTreeMap<u8, Eq>,
    /// By event type: which EQ.
    routes: BTreeMap<u8, u8>,
    /// Event cause register.
    ecr: u64,
    /// Interrupt pins that are asserted.
    pins: u64,
}

impl Events {
    /// EQs that are the HCA's.
    pub fn count(&self) -> usize {
        self.eqs.len()
    }

    /// Is EQ `eqn` the HCA's?
    pub fn contains(&self, eqn: u8) -> bool {
        self.eqs.contains_key(&eqn)
    }

    /// Takes EQ `eqn` over from software.
    pub fn create(&mut self, mode: Mode, eqn: u8, context: EqContext) {
        self.eqs.insert(eqn, Eq::new(mode, context));
    }

    /// Gives it back: nothing is written there any more. Its events that waited are lost.
    pub fn destroy(&mut self, eqn: u8) -> Option<EqContext> {
        self.ecr &= !(1 << (eqn & 63));
        let mut context = self.eqs.remove(&eqn)?.context();
        context.set_owner(0);
        Some(context)
    }

    /// As it is.
    pub fn query(&self, eqn: u8) -> Option<EqContext> {
        Some(self.eqs.get(&eqn)?.context())
    }

    /// Directs the event types in `mask` to `eqn`, or away from it.
    pub fn map(&mut self, mask: u64, eqn: u8, unmap: bool) {
        for event in (0..64).filter(|event| mask & 1 << event != 0) {
            if !unmap {
                self.routes.insert(event, eqn);
            } else if self.routes.get(&event) == Some(&eqn) {
                self.routes.remove(&event);
            }
        }
    }

    /// Puts an event into the EQ that its type is directed to; without one it is lost.
    pub fn post(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqe: &Eqe) {
        let event = eqe.event_type();
        match self.routes.get(&event.0) {
            Some(&eqn) => self.post_to(chip, bus, eqn, eqe),
            None => chip
                .ledger
                .count(format!("event {event:?} lost: not mapped to an EQ")),
        }
    }

    /// Puts an event into EQ `eqn`.
    pub fn post_to(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqn: u8, eqe: &Eqe) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            let event = eqe.event_type();
            return chip
                .ledger
                .count(format!("event {event:?} lost: no EQ {eqn}"));
        };
        if eq.context.status() != QueueStatus::OK {
            if eq.mode == Mode::T {
                let lost = eq.context.m_pd().wrapping_add(1); // M-mode has its domain there
                eq.context.set_m_pd(lost);
            }
            return;
        }
        eq.backlog.push_back(*eqe);
        if eq.backlog.len() > BACKLOG {
            eq.context.set_status(QueueStatus::OVERFLOW);
            return self.local_catastrophic(chip, bus, eqn, LocalSyndrome::EQ_OVERFLOW);
        }
        self.drain(chip, bus, eqn);
    }

    /// Writes what waits, as far as there is room.
    fn drain(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqn: u8) {
        let mut failure = None;
        while let Some(eq) = self.eqs.get_mut(&eqn) {
            if eq.context.status() != QueueStatus::OK || !eq.has_room() {
                break;
            }
            let Some(eqe) = eq.backlog.pop_front() else {
                break;
            };
            match eq.write(chip, bus, &eqe) {
                Ok(()) if eq.state() == EqState::ARMED => {
                    eq.enter(EqState::FIRED);
                    self.fire(chip, bus, eqn);
                }
                Ok(()) if eq.state() == EqState::ALWAYS_ARMED => self.fire(chip, bus, eqn),
                Ok(()) => {}
                Err(error) => {
                    eq.context.set_status(QueueStatus::WRITE_FAILURE);
                    eq.backlog.clear();
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure {
            bus.report(format_args!("EQ {eqn} could not be written: {error}"));
            self.local_catastrophic(chip, bus, eqn, LocalSyndrome::UPLINK);
        }
    }

    /// EQ `broken` cannot tell of itself; another may. Without one the error buffer does.
    fn local_catastrophic(
        &mut self,
        chip: &mut Chip,
        bus: &mut dyn Bus,
        broken: u8,
        syndrome: LocalSyndrome,
    ) {
        let event = EventType::LOCAL_CATASTROPHIC;
        let route = self.routes.get(&event.0).and_then(|eqn| self.eqs.get(eqn));
        if route.is_some_and(|eq| eq.context.status() == QueueStatus::OK) {
            let mut eqe = Eqe::ZERO;
            eqe.set_event_type(event)
                .set_number(u32::from(broken))
                .set_syndrome(syndrome.0);
            // At most one level for each EQ: the EQ that fails here is not OK any more.
            self.post(chip, bus, &eqe);
        } else if syndrome == LocalSyndrome::UPLINK {
            chip.catas.raise(CatasKind::UPLINK);
        } else {
            chip.catas.raise(CatasKind::INTERNAL);
        }
    }

    /// Raises the interrupt of EQ `eqn`. infinihost 7.1.
    fn fire(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqn: u8) {
        let Some(eq) = self.eqs.get(&eqn) else {
            return;
        };
        match eq.context.intr() {
            EqContext::NO_INTERRUPT => {}
            pin @ 0..64 => {
                self.ecr |= 1 << (eqn & 63);
                self.pins |= 1 << pin;
                chip.pci.set_pin(bus, true);
            }
            intr => {
                let vector = u16::from(intr & !EqContext::MSIX);
                if !chip.pci.raise_message(bus, vector) {
                    chip.ledger
                        .count(format!("message {vector} lost: not in use"));
                }
            }
        }
    }

    /// Rings the doorbell of an EQ through UAR page `page`. Disarming a CQ is the CQ's business.
    pub fn ring(
        &mut self,
        chip: &mut Chip,
        bus: &mut dyn Bus,
        page: u32,
        doorbell: EqDoorbell,
    ) -> Rung {
        let eqn = doorbell.eqn;
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return Rung::NoSuchQueue;
        };
        if eq.context.uar_page() != page {
            return Rung::WrongPage;
        }
        let consumed = match doorbell.command {
            EqCommand::ARM => {
                self.arm_one(chip, bus, eqn);
                return Rung::Done;
            }
            EqCommand::ALWAYS_ARM => {
                eq.enter(EqState::ALWAYS_ARMED);
                if eq.waiting() != 0 {
                    self.fire(chip, bus, eqn);
                }
                return Rung::Done;
            }
            EqCommand::INCREMENT => 1,
            EqCommand::SET_INDEX => doorbell.parameter.wrapping_sub(eq.consumer) & (eq.size() - 1),
            _ => return Rung::Unmodelled,
        };
        self.consume(chip, bus, eqn, consumed)
    }

    /// M-mode: the register of consumed events says `counter`, which is not reduced by the size.
    pub fn set_counter(
        &mut self,
        chip: &mut Chip,
        bus: &mut dyn Bus,
        eqn: u8,
        counter: u32,
    ) -> Rung {
        let Some(eq) = self.eqs.get(&eqn) else {
            return Rung::NoSuchQueue;
        };
        let consumed = counter.wrapping_sub(eq.consumer);
        self.consume(chip, bus, eqn, consumed)
    }

    fn consume(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqn: u8, consumed: u32) -> Rung {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return Rung::NoSuchQueue;
        };
        if consumed > eq.waiting() && !eq.context.ignore_overrun() {
            return Rung::Overrun;
        }
        eq.consumer = eq.consumer.wrapping_add(consumed);
        self.drain(chip, bus, eqn);
        Rung::Done
    }

    /// M-mode: a store to the register that arms. Zeros have no effect.
    pub fn arm(&mut self, chip: &mut Chip, bus: &mut dyn Bus, half: Half, ones: u32) {
        let ones = half.place(ones);
        for eqn in (0..64).filter(|eqn| ones & 1 << eqn != 0) {
            self.arm_one(chip, bus, eqn);
        }
    }

    /// What software has not consumed yet interrupts at once. infinihost 7.1.
    fn arm_one(&mut self, chip: &mut Chip, bus: &mut dyn Bus, eqn: u8) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        match (eq.state(), eq.waiting()) {
            (EqState::ALWAYS_ARMED, _) if eq.mode == Mode::M => {}
            (_, 0) => eq.enter(EqState::ARMED),
            _ => {
                eq.enter(EqState::FIRED);
                self.fire(chip, bus, eqn);
            }
        }
    }

    /// Event cause register.
    pub fn cause(&self, half: Half) -> u32 {
        half.of(self.ecr)
    }

    /// A store to CLR_ECR: ones clear.
    pub fn clear_cause(&mut self, half: Half, ones: u32) {
        self.ecr &= !half.place(ones);
    }

    /// A store to CLR_INT: ones release interrupt pins.
    pub fn clear_pins(&mut self, chip: &mut Chip, bus: &mut dyn Bus, half: Half, ones: u32) {
        self.pins &= !half.place(ones);
        chip.pci.set_pin(bus, self.pins != 0);
    }

    /// Which EQ can still write into `len` bytes at bus address `at`.
    pub fn reaches(&self, chip: &Chip, bus: &mut dyn Bus, at: u64, len: u64) -> Option<u8> {
        let mut touches = |eq: &Eq| {
            let ring = (eq.context.start_address(), eq.size());
            chip.ring_touches(bus, eq.key(), ring, at, len)
        };
        let mut eqs = self.eqs.iter();
        eqs.find(|(_, eq)| touches(eq)).map(|(&eqn, _)| eqn)
    }
}

/// What became of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// It was obeyed.
    Done,
    /// The queue it names does not exist.
    NoSuchQueue,
    /// The queue belongs to another UAR page.
    WrongPage,
    /// More is said to be consumed than there is.
    Overrun,
    /// The queue is in a state in which such a doorbell is lost.
    State,
    /// The queue holds all the doorbells it can.
    Full,
    /// A command that the model does not act on.
    Unmodelled,
}
