//! Resolving services of datagrams, and serving them: SIDR. protocols 5.8.

use crate::ask::{CmError, CmNext, Event, Resolve, Served};
use crate::cm::Cm;
use crate::listen::ListenerId;
use crate::message::mad_of;
use crate::path::wait;
use crate::sidr::{Sidr, SidrId, SidrState};
use crate::store::{SidrPlace, Store};
use crate::user::fit;
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::mad::{CmSidrRep, CmSidrReq, CommId, Mad, ServiceId, SidrStatus};
use ib_mad::{MadAddr, Outgoing, Received};

/// Seen from here: from the same port.
fn same_place(a: &MadAddr, b: &MadAddr) -> bool {
    match (a.grh, b.grh) {
        (Some(a), Some(b)) => a.dgid == b.dgid,
        _ => a.lid == b.lid,
    }
}

impl<S: Store> Cm<S> {
    /// Asks a peer for the QP of a service of datagrams. [`Event::Resolved`] or [`Event::Unresolved`] comes of it.
    ///
    /// # Errors
    ///
    /// `Full`, `PrivateTooLong`.
    pub fn resolve(&mut self, with: &Resolve<'_>, now: Instant) -> Result<SidrId, CmError> {
        let private = fit(with.private)?;
        let (place, id) = self.sidr_place()?;
        let request = CmSidrReq {
            request_id: id,
            p_key: with.p_key,
            service_id: with.service_id,
            private,
        };
        let patience = wait(with.timeout, with.path.life_time);
        let sidr = Sidr {
            id,
            request_id: id,
            listener: 0,
            cookie: with.cookie,
            state: SidrState::Asked,
            to: with.path.gsi(with.pkey_index),
            mad: mad_of(self.agent.tid(id.0), &request),
            send_due: true,
            retries_left: with.max_retries,
            patience,
            deadline: now.on_the_clock().after(patience),
        };
        self.put_sidr(place, sidr);
        Ok(SidrId(id))
    }

    /// Answers a request of a service with a QP.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`.
    pub fn serve(&mut self, sidr: SidrId, with: &Served<'_>) -> Result<(), CmError> {
        let rep = CmSidrRep {
            qpn: with.qpn,
            q_key: with.q_key,
            private: fit(with.private)?,
            ..CmSidrRep::default()
        };
        self.answer_sidr(sidr, rep)
    }

    /// Answers it with a reason why not. At most 136 bytes of private data.
    ///
    /// # Errors
    ///
    /// `Unknown`, `PrivateTooLong`.
    pub fn refuse(
        &mut self,
        sidr: SidrId,
        status: SidrStatus,
        private: &[u8],
    ) -> Result<(), CmError> {
        let rep = CmSidrRep {
            status,
            private: fit(private)?,
            ..CmSidrRep::default()
        };
        self.answer_sidr(sidr, rep)
    }

    fn answer_sidr(&mut self, sidr: SidrId, rep: CmSidrRep) -> Result<(), CmError> {
        let object = "service request";
        let found = self.find_sidr(sidr.0);
        let found = found.filter(|sidr| sidr.state == SidrState::Told);
        let sidr = found.ok_or(CmError::Unknown { object })?;
        let asked = sidr.mad.get::<CmSidrReq>();
        let service_id = asked.map_or(ServiceId(0), |asked| asked.service_id);
        let rep = CmSidrRep {
            request_id: sidr.request_id,
            service_id,
            ..rep
        };
        sidr.mad = mad_of(sidr.mad.view().tid(), &rep);
        sidr.state = SidrState::Served;
        sidr.send_due = true;
        self.dirty = true;
        Ok(())
    }

    fn find_sidr(&mut self, id: CommId) -> Option<&mut Sidr> {
        let place = self.place_of(id);
        let place = self.store.sidrs_mut().get_mut(place)?;
        place.0.as_mut().filter(|sidr| sidr.id == id)
    }

    fn sidr_place(&mut self) -> Result<(usize, CommId), CmError> {
        let places = self.store.sidrs();
        let limit = places.len();
        let mut places = places.iter().take(1 << crate::cm::PLACE_BITS);
        let free = places.position(|place| place.0.is_none());
        let entry = "sidrs";
        let place = free.ok_or(CmError::Full { entry, limit })?;
        Ok((place, self.fresh_id(place)))
    }

    fn put_sidr(&mut self, place: usize, sidr: Sidr) {
        self.dirty = true;
        if let Some(place) = self.store.sidrs_mut().get_mut(place) {
            *place = SidrPlace(Some(sidr));
        }
    }

    pub(crate) fn sidr_req(&mut self, req: &CmSidrReq, received: &Received) {
        let to = received.reply_to();
        let mut sidrs = self
            .store
            .sidrs()
            .iter()
            .filter_map(|place| place.0.as_ref());
        let again = sidrs.any(|sidr| {
            sidr.state != SidrState::Asked
                && sidr.listener != 0
                && sidr.request_id == req.request_id
                && same_place(&sidr.to, &to)
        });
        if again {
            self.statistics.duplicates = self.statistics.duplicates.saturating_add(1);
            return;
        }
        let Some(listener) = self.listener_for(req.service_id) else {
            self.statistics.no_listener = self.statistics.no_listener.saturating_add(1);
            let rep = CmSidrRep {
                request_id: req.request_id,
                status: SidrStatus::UNSUPPORTED,
                service_id: req.service_id,
                ..CmSidrRep::default()
            };
            let mad = mad_of(received.header().tid, &rep);
            return self.reply(received.reply(mad));
        };
        let Ok((place, id)) = self.sidr_place() else {
            // He asks again.
            self.statistics.no_room = self.statistics.no_room.saturating_add(1);
            return;
        };
        let sidr = Sidr {
            id,
            request_id: req.request_id,
            listener: listener.id.0,
            cookie: listener.what.cookie,
            state: SidrState::Heard,
            to,
            mad: received.mad,
            send_due: false,
            retries_left: 0,
            patience: Duration::ZERO,
            deadline: Instant::NEVER,
        };
        self.put_sidr(place, sidr);
    }

    pub(crate) fn sidr_rep(&mut self, rep: &CmSidrRep, received: &Received) {
        let found = self.find_sidr(rep.request_id);
        match found.filter(|sidr| sidr.state == SidrState::Asked) {
            Some(sidr) => {
                sidr.state = SidrState::Answered;
                sidr.mad = received.mad;
                sidr.send_due = false;
                sidr.deadline = Instant::NEVER;
            }
            None => self.statistics.strays = self.statistics.strays.saturating_add(1),
        }
    }

    pub(crate) fn drop_services_of(&mut self, listener: ListenerId) {
        for place in self.store.sidrs_mut() {
            if place.0.is_some_and(|sidr| sidr.listener == listener.0) {
                *place = SidrPlace(None);
            }
        }
    }

    pub(crate) fn service_due(&mut self, now: Instant, wake: &mut Instant) -> Option<CmNext> {
        for place in self.store.sidrs_mut() {
            let Some(sidr) = &mut place.0 else {
                continue;
            };
            if sidr.state == SidrState::Asked && now >= sidr.deadline {
                if sidr.retries_left == 0 {
                    sidr.state = SidrState::Silent;
                } else {
                    sidr.retries_left = sidr.retries_left.saturating_sub(1);
                    sidr.deadline = now.after(sidr.patience);
                    sidr.send_due = true;
                }
            }
            let (id, cookie, to, mad) = (SidrId(sidr.id), sidr.cookie, sidr.to, sidr.mad);
            match sidr.state {
                SidrState::Asked if core::mem::take(&mut sidr.send_due) => {
                    return Some(CmNext::Send(Outgoing { to, mad }));
                }
                SidrState::Served => {
                    *place = SidrPlace(None);
                    return Some(CmNext::Send(Outgoing { to, mad }));
                }
                SidrState::Heard => {
                    sidr.state = SidrState::Told;
                    let listener = ListenerId(sidr.listener);
                    return service_request(id, listener, cookie, &mad).map(CmNext::Event);
                }
                SidrState::Answered => {
                    *place = SidrPlace(None);
                    let rep = mad.get().unwrap_or_default(); // was read when it came
                    return Some(CmNext::Event(Event::Resolved {
                        sidr: id,
                        cookie,
                        rep,
                    }));
                }
                SidrState::Silent => {
                    *place = SidrPlace(None);
                    return Some(CmNext::Event(Event::Unresolved { sidr: id, cookie }));
                }
                SidrState::Asked => *wake = (*wake).min(sidr.deadline),
                SidrState::Told => {}
            }
        }
        None
    }
}

fn service_request(sidr: SidrId, listener: ListenerId, cookie: u64, mad: &Mad) -> Option<Event> {
    let req = mad.get().ok()?;
    Some(Event::ServiceRequest {
        sidr,
        listener,
        cookie,
        req,
    })
}
