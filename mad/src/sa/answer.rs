//! What comes from the SA.

use super::groups::{Group, Step};
use super::kept::Kept;
use super::query::{Kind, Query, SaAnswer, SaError, SaRecord};
use super::{Sa, TableState, Transfer, finish_where};
use crate::addr::{Outgoing, Received};
use crate::dispatch::AgentId;
use crate::rmpp::{self, ReceiverNext, RmppError, RmppReceiver};
use crate::transaction::{Event, Next, Transaction};
use core_ib::Instant;
use core_ib::wire::mad::{
    Mad, MadHeader, MadStatus, McMemberRecord, Method, MgmtClass, SaHeader, SaNotice,
};

impl<const QUERIES: usize, const GROUPS: usize, const KEPT: usize, const TABLE: usize>
    Sa<QUERIES, GROUPS, KEPT, TABLE>
{
    /// A MAD that the dispatch gave to this agent. What is not awaited is ignored.
    pub fn handle(&mut self, received: &Received, now: Instant) {
        self.stir();
        let header = received.header();
        if header.class != MgmtClass::SUBN_ADM || header.class_version != SaHeader::CLASS_VERSION {
            return;
        }
        if !self.port.is_usable() || !received.is_from(&self.address()) {
            return;
        }
        if header.method == Method::REPORT {
            self.report(received);
        } else if header.is_response() && AgentId::of_tid(header.tid) == self.agent {
            self.response(received, &header, now);
        }
    }

    /// A send of the MAD with this transaction id did not reach the wire. Says whether it was ours.
    pub fn send_failed(&mut self, tid: u64, now: Instant) -> bool {
        self.stir();
        if AgentId::of_tid(tid) != self.agent {
            return false;
        }
        if let Some(transaction) = self.transaction(tid as u32) {
            transaction.handle(Event::SendFailed, now);
        }
        true
    }

    /// The transaction with this lower half of its id.
    fn transaction(&mut self, serial: u32) -> Option<&mut Transaction> {
        let queries = self.queries.iter_mut().flatten();
        let mut queries = queries.filter(|query| query.id.0 == serial);
        if let Some(transaction) = queries.find_map(Query::transaction) {
            return Some(transaction);
        }
        let groups = self.groups.iter_mut().flatten();
        let mut ops = groups.filter_map(|group| group.op.as_mut());
        if let Some(op) = ops.find(|op| op.serial == serial) {
            return Some(&mut op.transaction);
        }
        let mut kept = self.kept.iter_mut().flatten();
        kept.find(|kept| kept.is_asked(serial))?.transaction()
    }

    /// A report is taken if there is room for it; else the SA sends it again. protocols 4.9.
    fn report(&mut self, received: &Received) {
        let mut mad = received.mad;
        let Ok(notice) = mad.get::<SaNotice>() else {
            return;
        };
        mad.0[3] = Method::REPORT_RESP.0;
        if !self.outbox.is_full() && !self.reports.is_full() {
            let _ = self.outbox.push_back(received.reply(mad));
            let _ = self.reports.push_back(notice);
        }
    }

    fn response(&mut self, received: &Received, header: &MadHeader, now: Instant) {
        let serial = header.tid as u32;
        let mad = &received.mad;
        if rmpp::is_active(mad) {
            let transfer = self.transfer.as_ref();
            if transfer.is_some_and(|transfer| transfer.serial == serial) {
                return self.segment(mad, now);
            }
            if rmpp::is_control(mad) {
                return;
            }
            if header.status == MadStatus::OK && self.begin_transfer(serial, mad, now) {
                return self.segment(mad, now);
            }
            self.acknowledge(mad, now);
        }
        self.answered(serial, header, mad, now);
    }

    /// The first segment that came of a table. `false` if no table is awaited with this transaction.
    fn begin_transfer(&mut self, serial: u32, mad: &Mad, now: Instant) -> bool {
        let mut queries = self.queries.iter().flatten();
        if !queries.any(|query| query.asks_table(serial)) {
            return false;
        }
        let receiver = RmppReceiver::new(mad, self.config.window, now);
        self.transfer = receiver.ok().map(|receiver| Transfer { serial, receiver });
        self.transfer.is_some()
    }

    /// A single record that came as a message of one segment: the sender wants to know.
    fn acknowledge(&mut self, mad: &Mad, now: Instant) {
        let Ok(mut receiver) = RmppReceiver::new(mad, 1, now) else {
            return;
        };
        receiver.handle(mad, &mut [0; 200], now);
        if let ReceiverNext::Control(ack) = receiver.poll(now) {
            let (to, mad) = (self.address(), ack);
            let _ = self.outbox.push_back(Outgoing { to, mad }); // else it comes again
        }
    }

    fn segment(&mut self, mad: &Mad, now: Instant) {
        if let Some(transfer) = &mut self.transfer {
            transfer.receiver.handle(mad, &mut self.table, now);
        }
    }

    /// A message of one MAD.
    fn answered(&mut self, serial: u32, header: &MadHeader, mad: &Mad, now: Instant) {
        let Some(transaction) = self.transaction(serial) else {
            return;
        };
        transaction.handle(Event::Response(header.status), now);
        let Next::Done(Ok(status)) = transaction.poll(now) else {
            return; // busy
        };
        let result = if status == MadStatus::OK {
            Ok(())
        } else {
            Err(SaError::Refused { status })
        };
        self.finish(serial, result.map(|()| mad), now);
    }

    /// The transaction `serial` is over.
    pub(super) fn finish(&mut self, serial: u32, result: Result<&Mad, SaError>, now: Instant) {
        let mut queries = self.queries.iter_mut().flatten();
        if let Some(query) = queries.find(|query| query.id.0 == serial) {
            let is_table = query.asks_table(serial);
            let answer = result.map(|mad| SaAnswer::Record(SaRecord::of(mad)));
            match (is_table, result) {
                (true, Ok(mad)) => self.table_of_one(serial, mad),
                (true, Err(error)) => self.table_failed(serial, error),
                (false, _) => query.kind = Kind::Over(answer),
            }
            return;
        }
        let mut groups = self.groups.iter();
        let of_group = |slot: &Option<Group>| {
            let op = slot.as_ref().and_then(|group| group.op.as_ref());
            op.is_some_and(|op| op.serial == serial)
        };
        if let Some(place) = groups.position(of_group) {
            return self.group_finished(place, result);
        }
        let mut kept = self.kept.iter();
        let of_kept = |slot: &Option<Kept>| slot.as_ref().is_some_and(|kept| kept.is_asked(serial));
        if let Some(place) = kept.position(of_kept) {
            self.kept_finished(place, result, now);
        }
    }

    fn group_finished(&mut self, place: usize, result: Result<&Mad, SaError>) {
        let Some(Some(group)) = self.groups.get_mut(place) else {
            return;
        };
        let record = result.and_then(|mad| Ok(mad.get::<McMemberRecord>()?));
        let step = group.finished(record);
        if let (Some(Step::Join(asked)), Err(error)) = (step, record) {
            finish_where(&mut self.queries, Err(error), |query| {
                query
                    .is_joining(place)
                    .is_some_and(|bits| asked.contains(bits))
            });
        }
    }

    fn kept_finished(&mut self, place: usize, result: Result<&Mad, SaError>, now: Instant) {
        let answer = result.map(|mad| SaAnswer::Record(SaRecord::of(mad)));
        let told = finish_where(&mut self.queries, answer, |query| query.is_of_kept(place));
        let Some(slot) = self.kept.get_mut(place) else {
            return;
        };
        match (slot.as_mut(), answer) {
            (Some(kept), Ok(_)) => kept.registered(now),
            (Some(kept), Err(error)) if !told => kept.refused(error),
            _ => *slot = None,
        }
    }

    /// A table came in a single MAD without RMPP: one record, or none.
    fn table_of_one(&mut self, serial: u32, mad: &Mad) {
        let head = mad.front::<SaHeader>().unwrap_or_default();
        let data = mad.data();
        let len = data.len().min(usize::from(head.attribute_offset) * 8);
        for (to, from) in self.table.iter_mut().zip(data.iter().take(len)) {
            *to = *from;
        }
        let (need, room) = (len, TABLE);
        if need > room {
            let error = RmppError::BufferTooSmall { need, room };
            return self.table_failed(serial, SaError::Table(error));
        }
        self.table_arrived(serial, len, head.attribute_offset);
    }

    /// The buffer holds a whole table.
    pub(super) fn table_arrived(&mut self, serial: u32, len: usize, offset: u16) {
        let answer = Ok(SaAnswer::Table);
        if finish_where(&mut self.queries, answer, |query| query.asks_table(serial)) {
            let shown = false;
            self.table_state = TableState::Ready { len, offset, shown };
        }
    }

    fn table_failed(&mut self, serial: u32, error: SaError) {
        finish_where(&mut self.queries, Err(error), |query| {
            query.asks_table(serial)
        });
        self.drop_transfer();
    }
}
