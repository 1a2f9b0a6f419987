//! A port's special QPs over verbs: the place where MADs enter and leave.

#[cfg(test)]
mod fake;
mod made;
mod queue;
mod rings;
mod slot;
#[cfg(test)]
mod tests;
mod wish;

pub use wish::{Granted, Question, Recovery, Wish};

use crate::addr::{MadAddr, Outgoing, Received, SpecialQp};
use crate::smi::{self, SmiError, Way};
use core::fmt;
use core_ib::platform::{Fifo, LetGo, Platform, Table};
use core_ib::verbs::{
    AsyncEvent, CompletionQueue, CqHandle, DeviceCaps, MadOutcome, NotifyKind, PdHandle, PortAttr,
    PostCause, QpEvent, QueuePair, SendFlags, SendOp, SendWr, Verbs, VerbsError, WcFlags, WcStatus,
    WorkCompletion,
};
use core_ib::wire::Grh;
use core_ib::wire::mad::{Mad, MadHeader, MgmtClass};
use core_ib::{Gid, Lid, Sl};
use made::Made;
use queue::{Health, Queue};
use rings::{RECV_LEN, Rings};
use slot::{Slot, SlotState, WrName};

/// MADs of our own to our own port that wait to be polled.
const LOOPED: usize = 8;
/// GIDs of the port that answers may come from.
const GIDS: usize = 16;

/// Where the port stands in its subnet; see [`MadPort::refresh`].
#[derive(Clone, Copy, Debug)]
struct Place {
    lid: Lid,
    lmc: u8,
    sm_lid: Lid,
    sm_sl: Sl,
    gids: [Gid; GIDS],
}

impl Place {
    fn has(&self, lid: Lid) -> bool {
        let lids = 1_u32 << (self.lmc & 7);
        let first = u32::from(self.lid.0);
        self.lid.is_unicast() && (first..first + lids).contains(&u32::from(lid.0))
    }
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortNext {
    /// A MAD for an agent: give it to [`Dispatch::handle`](crate::Dispatch::handle).
    Received(Received),
    /// A MAD did not leave the port.
    SendFailed {
        /// Its transaction id.
        tid: u64,
        /// Where it was to go.
        to: MadAddr,
        /// Why.
        status: WcStatus,
    },
    /// Carry this out where blocking is allowed, then call [`MadPort::granted`].
    Wish(Wish),
    /// A MAD came that nobody gets. For statistics.
    Dropped(PortDrop),
    /// Nothing, unless the CQ gets a completion or something else is called.
    Idle,
}

/// Why a MAD does not reach an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortDrop {
    /// Not 256 bytes.
    Length {
        /// Bytes received, 40 for the GRH included.
        byte_len: u32,
    },
    /// A base version that is not spoken here.
    Version(u8),
    /// A class that does not come by this QP.
    WrongQp(MgmtClass),
    /// Against the rules of directed routes.
    Smi(SmiError),
    /// A trap of the HCA, while there is no subnet manager to tell.
    NoSubnetManager,
    /// A trap of the HCA for the subnet manager, or the HCA's answer to a MAD, which could not be sent.
    NotSent(SendError),
    /// The HCA could not be asked.
    Firmware(VerbsError),
    /// A completion of something that was not posted: a defect of the device or its driver.
    Stray {
        /// Its name.
        wr_id: u64,
    },
}

/// Why a MAD was not taken to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// All buffers are in use: poll first. [`MadPort::room`] would have told.
    Full {
        /// How many there are.
        limit: usize,
    },
    /// This QP does not carry this class.
    WrongQp(MgmtClass),
    /// The directed route does not begin here.
    Smi(SmiError),
    /// No address handle.
    Address(VerbsError),
    /// The QP does not take it.
    Post(PostCause),
    /// The QP has failed and could not be brought back.
    Dead(SpecialQp),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { limit } => write!(f, "all {limit} MADs to be sent are under way"),
            Self::WrongQp(class) => write!(f, "class {:#04x} does not go by this QP", class.0),
            Self::Smi(error) => error.fmt(f),
            Self::Address(error) => error.fmt(f),
            Self::Post(cause) => write!(f, "the QP refused: {cause:?}"),
            Self::Dead(qp) => write!(f, "{qp:?} has failed: reset the HCA"),
        }
    }
}

impl core::error::Error for SendError {}

impl From<SmiError> for SendError {
    fn from(error: SmiError) -> Self {
        Self::Smi(error)
    }
}

/// QP0 and QP1 of one port, with `RECVS` receives posted on each and at most `SENDS` MADs on their way out.
///
/// [`open`](Self::open) and [`close`](Self::close) block; everything else may run in a soft interrupt, under the
/// owner's lock. What would block comes out of [`poll`](Self::poll) as a [`Wish`].
pub struct MadPort<'v, V: Verbs, P: Platform, const RECVS: usize, const SENDS: usize> {
    device: &'v V,
    port: u8,
    pd: PdHandle,
    cq: V::Cq<'v>,
    rings: Rings<'v, P>,
    queues: [Queue<'v, V::Qp<'v>, P>; 2],
    slots: Table<'v, Slot, P>,
    /// How many of them are in use.
    used: usize,
    /// One of them may have failed.
    failed: bool,
    order: u64,
    looped: Fifo<'v, Received, P>,
    place: Place,
    firmware: bool,
}

impl<V: Verbs, P: Platform, const RECVS: usize, const SENDS: usize> fmt::Debug
    for MadPort<'_, V, P, RECVS, SENDS>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadPort")
            .field("port", &self.port)
            .field("place", &self.place)
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}

/// The CQ and both QPs.
type Started<'v, V, P> = (
    <V as Verbs>::Cq<'v>,
    [Queue<'v, <V as Verbs>::Qp<'v>, P>; 2],
);

impl<'v, V: Verbs, P: Platform, const RECVS: usize, const SENDS: usize>
    MadPort<'v, V, P, RECVS, SENDS>
{
    const FITS: () = assert!(
        RECVS > 0 && SENDS > 0 && RECVS < 1 << 16 && SENDS < 1 << 16,
        "a port has receives and sends, at most 65535 of each"
    );

    /// Opens port `port` (1 or 2): creates and starts both QPs, registers the buffers and posts the receives. `vector`
    /// announces the completions; [`arm`](Self::arm) is left to the owner. Control context; blocks. After an error
    /// everything is as before.
    pub fn open(device: &'v V, machine: &'v P, port: u8, vector: u16) -> Result<Self, VerbsError> {
        let () = Self::FITS;
        let slots = Table::new(machine, SENDS, |_| Slot::FREE)?;
        let looped = Fifo::new(machine, LOOPED)?;
        let mut made = Made::nothing(device);
        let (pd, cq, rings) = match made.memory(machine, vector, RECVS, SENDS) {
            Ok(memory) => memory,
            Err(error) => {
                let _ = made.undo::<P>(None);
                return Err(error);
            }
        };
        let (cq, mut queues) = match Self::start(device, machine, &mut made, port, (pd, cq)) {
            Ok(started) => started,
            Err(error) => {
                let _ = made.undo(Some(rings));
                return Err(error);
            }
        };
        queues.iter_mut().for_each(|queue| queue.fill(&rings));
        let caps = device.query_device().caps;
        Ok(Self {
            device,
            port,
            pd,
            cq,
            rings,
            queues,
            slots,
            used: 0,
            failed: false,
            order: 0,
            looped,
            place: Place {
                lid: Lid::NONE,
                lmc: 0,
                sm_lid: Lid::NONE,
                sm_sl: Sl::new(0),
                gids: [Gid::NONE; GIDS],
            },
            firmware: caps.contains(DeviceCaps::FIRMWARE_MADS),
        })
    }

    /// The two QPs, started, and the references of the data path.
    fn start(
        device: &'v V,
        machine: &'v P,
        made: &mut Made<'_, V>,
        port: u8,
        home: (PdHandle, CqHandle),
    ) -> Result<Started<'v, V, P>, VerbsError> {
        let mut queue = |which| -> Result<_, VerbsError> {
            let qp = made.qp(which, port, home, RECVS, SENDS)?;
            Ok(Queue::new(machine, which, device.qp(qp)?, RECVS)?)
        };
        let queues = [queue(SpecialQp::Smi)?, queue(SpecialQp::Gsi)?];
        let (_, cq) = home;
        Ok((device.cq(cq)?, queues))
    }

    /// Ends the port: destroys the QPs, whatever is under way, and gives all back. Control context; blocks. Goes on
    /// after an error and says the first; then the buffers are lost, since the HCA may still use them.
    pub fn close(self) -> Result<(), VerbsError> {
        let Self {
            device,
            pd,
            cq,
            rings,
            queues,
            slots,
            ..
        } = self;
        let handles = queues.map(|queue| queue.handle); // and the references are gone
        let mut made = Made::all(device, pd, cq.handle(), handles);
        drop(cq);
        let mut result = made.undo_qps();
        for ah in slots.iter().filter_map(|slot| slot.ah) {
            result = result.and(device.destroy_ah(ah));
        }
        result.and(made.undo(Some(rings)))
    }

    /// Ends the port of an HCA that was reset: gives the buffers back without asking it.
    pub fn abandon(self, proof: LetGo) {
        self.rings.abandon(proof);
    }

    /// Takes note of where the port stands: its LIDs, the subnet manager, the first 16 entries of its GID table. To be
    /// called after opening and after each port event, with what the cache has.
    pub fn refresh(&mut self, port: &PortAttr, gids: &[Gid]) {
        let mut place = Place {
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            gids: [Gid::NONE; GIDS],
        };
        let entries = place.gids.iter_mut().zip(gids);
        entries.for_each(|(entry, gid)| *entry = *gid);
        self.place = place;
    }

    /// The CQ of both QPs, for [`Device::take_cq_event`](core_ib::verbs::Device::take_cq_event).
    pub fn cq(&self) -> CqHandle {
        self.cq.handle()
    }

    /// Asks for an event at the next completion. Then poll until idle once more.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.cq.req_notify(NotifyKind::Any)
    }

    /// How many MADs [`send`](Self::send) would take. Ask before asking others what they have to send.
    pub fn room(&self) -> usize {
        let looped = LOOPED.saturating_sub(self.looped.len());
        SENDS.saturating_sub(self.used).min(looped)
    }

    /// Sends a MAD. Directed-route SMPs first go through the SMI (protocols 3.5): one of our own that ends here, as
    /// well as an SMP to a LID of ours, comes back out of [`poll`](Self::poll) without having seen the wire. Never
    /// blocks. After an error nothing is sent; else a failure is reported by [`PortNext::SendFailed`].
    pub fn send(&mut self, outgoing: &Outgoing) -> Result<(), SendError> {
        let Outgoing { to, mut mad } = *outgoing;
        let class = mad.view().class();
        if !to.qp.carries(class) {
            return Err(SendError::WrongQp(class));
        }
        if to.qp == SpecialQp::Smi {
            if smi::send(&mut mad, self.port)? == Way::Local {
                return self.loop_back(mad, Lid::PERMISSIVE, to.sl);
            }
            if class == MgmtClass::SUBN_LID && self.place.has(to.lid) {
                return self.loop_back(mad, to.lid, to.sl);
            }
        }
        self.post(to, &mad)
    }

    fn loop_back(&mut self, mad: Mad, slid: Lid, sl: Sl) -> Result<(), SendError> {
        let mut received = Received::looped_back(SpecialQp::Smi, mad);
        (received.wc.slid, received.wc.sl) = (slid, sl);
        let full = SendError::Full { limit: LOOPED };
        self.looped.push_back(received).map_err(|_| full)
    }

    /// To the wire.
    fn post(&mut self, to: MadAddr, mad: &Mad) -> Result<(), SendError> {
        let well = match self.queue(to.qp).health {
            Health::Dead => return Err(SendError::Dead(to.qp)),
            health => health == Health::Well,
        };
        let mut slots = self.slots.iter_mut().enumerate();
        let free = slots.find(|(_, slot)| slot.state == SlotState::Free);
        let Some((index, slot)) = free else {
            return Err(SendError::Full { limit: SENDS });
        };
        let stored = self.rings.store(index, mad);
        stored.map_err(|error| SendError::Post(error.into()))?;
        let ah = self.device.create_ah(self.pd, &to.ah_attr(self.port));
        let ah = ah.map_err(SendError::Address)?;
        *slot = Slot {
            state: SlotState::Waiting,
            to,
            tid: mad.view().tid(),
            ah: Some(ah),
            order: self.order,
            flushed: 0,
        };
        self.order = self.order.wrapping_add(1);
        self.used = self.used.saturating_add(1);
        if !well {
            return Ok(());
        }
        self.post_slot(index)
            .inspect_err(|_| self.free(index))
            .map_err(SendError::Post)
    }

    fn queue(&mut self, which: SpecialQp) -> &mut Queue<'v, V::Qp<'v>, P> {
        let [smi, gsi] = &mut self.queues;
        match which {
            SpecialQp::Smi => smi,
            SpecialQp::Gsi => gsi,
        }
    }

    /// Posts a send that waits. One that the QP is in no state to take goes on waiting.
    fn post_slot(&mut self, index: usize) -> Result<(), PostCause> {
        let slot = self.slots.get(index).ok_or(PostCause::OutOfBounds)?;
        let ah = slot.ah.ok_or(PostCause::InvalidHandle)?;
        let slot = *slot;
        let wr = SendWr {
            wr_id: WrName::Send(index as u16, slot.order as u32).to_wr_id(),
            op: SendOp::Datagram {
                ah,
                remote_qpn: slot.to.remote_qpn,
                remote_qkey: slot.to.remote_qkey,
                imm: None,
                pkey_index: slot.to.pkey_index,
            },
            sges: &[self.rings.send(index)],
            inline: &[],
            flags: SendFlags::SIGNALED,
        };
        let queue = self.queue(slot.to.qp);
        match queue.qp.post_send(&[wr]) {
            Ok(()) => self.set(index, SlotState::Posted),
            Err(error) if error.cause == PostCause::InvalidState => queue.sicken(false),
            Err(error) => return Err(error.cause),
        }
        Ok(())
    }

    fn set(&mut self, index: usize, state: SlotState) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.state = state;
            self.failed |= matches!(state, SlotState::Failed(_));
        }
    }

    /// A send is over.
    fn free(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            let ah = slot.ah;
            let used = slot.state != SlotState::Free;
            *slot = Slot::FREE;
            self.used = self.used.saturating_sub(used.into());
            if let Some(ah) = ah {
                // It fails only if the HCA has, and then the reset takes the handle back.
                let _ = self.device.destroy_ah(ah);
            }
        }
    }

    /// Posts what waits on a QP that works again, in the order in which it was asked for.
    fn resume(&mut self, which: SpecialQp) {
        while self.queue(which).health == Health::Well {
            let waits = |slot: &Slot| slot.state == SlotState::Waiting && slot.to.qp == which;
            let slots = self.slots.iter().enumerate();
            let waiting = slots.filter(|(_, slot)| waits(slot));
            let Some((index, _)) = waiting.min_by_key(|(_, slot)| slot.order) else {
                return;
            };
            if self.post_slot(index).is_err() {
                self.set(index, SlotState::Failed(WcStatus::LocalQpOperation));
            }
        }
    }

    /// Takes note of an event of one of the QPs; all others are none of its business.
    pub fn handle(&mut self, event: &AsyncEvent) {
        let AsyncEvent::Qp(handle, event) = event else {
            return;
        };
        if matches!(
            event,
            QpEvent::Fatal | QpEvent::RequestError | QpEvent::AccessError
        ) {
            let mut queues = self.queues.iter_mut();
            if let Some(queue) = queues.find(|queue| queue.handle == *handle) {
                queue.sicken(true);
            }
        }
    }

    /// What is due. Poll again until `Idle`. Never blocks.
    ///
    /// # Errors
    ///
    /// The CQ could not be polled: the HCA has failed.
    pub fn poll(&mut self) -> Result<PortNext, VerbsError> {
        loop {
            if let Some(next) = self.pending() {
                return Ok(next);
            }
            let Self { queues, rings, .. } = self;
            queues.iter_mut().for_each(|queue| queue.fill(rings));
            let mut wc = [WorkCompletion::EMPTY];
            if self.cq.poll(&mut wc)? == 0 {
                return Ok(PortNext::Idle);
            }
            let [wc] = wc;
            if let Some(next) = self.completed(&wc) {
                return Ok(next);
            }
        }
    }

    /// What needs no completion.
    fn pending(&mut self) -> Option<PortNext> {
        if self.failed {
            for (index, slot) in self.slots.iter().enumerate() {
                if let SlotState::Failed(status) = slot.state {
                    let Slot { tid, to, .. } = *slot;
                    self.free(index);
                    return Some(PortNext::SendFailed { tid, to, status });
                }
            }
            self.failed = false;
        }
        for queue in &mut self.queues {
            if let Health::Sick { reset, asked } = &mut queue.health
                && !*asked
            {
                *asked = true;
                return Some(PortNext::Wish(Wish::Recover(Recovery {
                    qp: queue.which,
                    handle: queue.handle,
                    reset: *reset,
                })));
            }
        }
        let looped = self.looped.pop_front()?;
        Some(self.arrived(looped, true))
    }

    fn completed(&mut self, wc: &WorkCompletion) -> Option<PortNext> {
        match WrName::of(wc.wr_id) {
            Some(WrName::Send(index, order)) => self.sent(index.into(), order, wc),
            Some(WrName::Recv(which, index)) if self.queue(which).take(index.into()) => {
                self.received(which, index.into(), wc)
            }
            _ => Some(stray(wc)),
        }
    }

    fn sent(&mut self, index: usize, order: u32, wc: &WorkCompletion) -> Option<PortNext> {
        let Some(slot) = self.slots.get_mut(index) else {
            return Some(stray(wc));
        };
        let which = slot.to.qp;
        if slot.state != SlotState::Posted || slot.order as u32 != order {
            return Some(stray(wc));
        }
        match wc.status {
            WcStatus::Success => self.free(index),
            // Another one failed, and has been or will be seen: this one is posted again. verbs 3.8.
            WcStatus::Flushed if slot.flushed < Slot::MAX_FLUSHES => {
                slot.flushed = slot.flushed.saturating_add(1);
                slot.state = SlotState::Waiting;
                self.resume(which);
            }
            WcStatus::Flushed => self.set(index, SlotState::Failed(WcStatus::Flushed)),
            status => {
                self.set(index, SlotState::Failed(status));
                self.queue(which).sicken(false);
            }
        }
        None
    }

    fn received(
        &mut self,
        which: SpecialQp,
        index: usize,
        wc: &WorkCompletion,
    ) -> Option<PortNext> {
        if wc.status != WcStatus::Success {
            self.queue(which).sicken(true); // only a QP in ERR completes a receive so
            return None;
        }
        if wc.byte_len != RECV_LEN {
            let byte_len = wc.byte_len;
            return Some(PortNext::Dropped(PortDrop::Length { byte_len }));
        }
        let Ok((grh, mad)) = self.rings.load(which, index) else {
            return Some(stray(wc));
        };
        let grh = wc.flags.contains(WcFlags::GRH).then_some(grh);
        let route = grh.as_ref().and_then(|grh| Grh::read(grh).ok());
        let sgid_index = route.and_then(|(route, _)| {
            let mut gids = self.place.gids.iter();
            gids.position(|gid| *gid == route.dgid)
        });
        let mut received = Received {
            qp: which,
            wc: *wc,
            grh,
            sgid_index: sgid_index.unwrap_or(0) as u8, // below 16
            mad,
        };
        let header = mad.header();
        let drop = |why| Some(PortNext::Dropped(why));
        if header.base_version != MadHeader::BASE_VERSION {
            return drop(PortDrop::Version(header.base_version));
        }
        if !which.carries(header.class) {
            return drop(PortDrop::WrongQp(header.class));
        }
        if smi::is_own_trap(&header, wc.slid) {
            return self.forward_trap(&mad);
        }
        match smi::receive(&mut received.mad, self.port) {
            Ok(()) => Some(self.arrived(received, false)),
            Err(error) => drop(PortDrop::Smi(error)),
        }
    }

    /// To the firmware, or to an agent.
    fn arrived(&mut self, received: Received, looped: bool) -> PortNext {
        if self.firmware && smi::is_for_firmware(&received.header()) {
            let port = self.port;
            return PortNext::Wish(Wish::Answer(Question {
                port,
                received,
                looped,
            }));
        }
        PortNext::Received(received)
    }

    /// A trap of our own HCA goes to the subnet manager. infinihost 8.1, protocols 3.10.3.
    fn forward_trap(&mut self, mad: &Mad) -> Option<PortNext> {
        if !self.place.sm_lid.is_unicast() {
            return Some(PortNext::Dropped(PortDrop::NoSubnetManager));
        }
        let to = MadAddr::smi(self.place.sm_lid, self.place.sm_sl);
        let sent = self.send(&Outgoing { to, mad: *mad });
        sent.err()
            .map(|error| PortNext::Dropped(PortDrop::NotSent(error)))
    }

    /// Takes the result of a wish, and sends the firmware's answer. Never blocks. Poll again.
    ///
    /// # Errors
    ///
    /// There is no answer, or it could not be sent: for statistics, since whoever asked asks again.
    pub fn granted(&mut self, granted: &Granted) -> Result<(), PortDrop> {
        match granted {
            Granted::Answered {
                question,
                outcome,
                response,
            } => match outcome {
                Ok(MadOutcome::Reply) => {
                    let sent = self.reply(question, *response);
                    sent.map_err(PortDrop::NotSent)
                }
                Ok(_) => Ok(()),
                Err(error) => Err(PortDrop::Firmware(*error)),
            },
            Granted::Recovered { recovery, result } => {
                self.recovered(recovery, result.is_ok());
                Ok(())
            }
        }
    }

    fn reply(&mut self, question: &Question, mut response: Mad) -> Result<(), SendError> {
        smi::turn_back(&mut response);
        let received = &question.received;
        if question.looped {
            if response.view().class() == MgmtClass::SUBN_DR {
                response.0[6] = 0; // at its beginning again
            }
            return self.loop_back(response, received.wc.slid, received.wc.sl);
        }
        smi_reply(&mut response, self.port)?;
        self.post(received.reply_to(), &response)
    }

    fn recovered(&mut self, recovery: &Recovery, works: bool) {
        let which = recovery.qp;
        let queue = self.queue(which);
        let Health::Sick { reset, asked: true } = queue.health else {
            return; // worse has happened meanwhile, and is asked for by itself
        };
        if reset != recovery.reset {
            return;
        }
        queue.health = match (works, reset) {
            (true, _) => Health::Well,
            (false, true) => Health::Dead,
            (false, false) => Health::Sick {
                reset: true,
                asked: false,
            },
        };
        if works && reset {
            queue.forget_receives();
        }
        let dead = queue.health == Health::Dead;
        for slot in self.slots.iter_mut().filter(|slot| slot.to.qp == which) {
            let gone = match slot.state {
                SlotState::Posted => reset, // its completion will never come
                SlotState::Waiting => dead,
                _ => false,
            };
            if gone {
                slot.state = SlotState::Failed(WcStatus::Flushed);
                self.failed = true;
            }
        }
        let Self { queues, rings, .. } = self;
        queues.iter_mut().for_each(|queue| queue.fill(rings));
        self.resume(which);
    }
}

fn stray(wc: &WorkCompletion) -> PortNext {
    PortNext::Dropped(PortDrop::Stray { wr_id: wc.wr_id })
}

/// The SMI over an answer to what came from the wire: it has to go back there.
fn smi_reply(response: &mut Mad, port: u8) -> Result<(), SmiError> {
    let header = response.header();
    match smi::send(response, port)? {
        Way::Wire => Ok(()),
        Way::Local => Err(SmiError::HopPointer {
            hop_pointer: header.hop_pointer,
            hop_count: header.hop_count,
        }),
    }
}
