//! Answers of many records, on their way. protocols 4.3.

use super::{Answer, RecordBytes, Request};
use crate::manager::Manager;
use core_ib::Instant;
use core_ib::wire::mad::{AttributeId, ComponentMask, Mad, MadStatus, SaHeader, SmKey};
use ib_mad::{MadAddr, Outgoing, Received, RmppSender, SenderNext};

/// One answer on its way. What its records are made of stands in the manager's table of records.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    to: MadAddr,
    tid: u64,
    what: Kind,
    /// Records there are.
    count: usize,
    sender: RmppSender,
    /// When it is due.
    at: Instant,
}

/// What the records of an answer are, apart from their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) attribute: AttributeId,
    pub(crate) trusted: bool,
    /// The query, as far as records depend on it.
    pub(crate) query: [u8; 64],
    pub(crate) mask: ComponentMask,
}

impl Manager<'_> {
    /// Looks for a free transfer; none if the same question is being answered already.
    pub(super) fn free_transfer(&self, request: &Request<'_>) -> Result<Option<usize>, MadStatus> {
        let tid = request.header.header.tid;
        let mut rows = self.transfers.iter().flatten();
        if rows.any(|row| row.tid == tid && request.received.is_from(&row.to)) {
            return Ok(None); // asked again while the answer is on its way
        }
        let free = self.transfers.iter().position(Option::is_none);
        free.map(Some).ok_or(MadStatus::BUSY)
    }

    /// Begins to answer with the `count` records whose numbers stand in place `index`.
    pub(super) fn begin_transfer(
        &mut self,
        request: &Request<'_>,
        index: usize,
        what: Kind,
        count: usize,
        size: usize,
    ) -> Result<Answer, MadStatus> {
        let asked = &request.header;
        let header = asked
            .header
            .reply(MadStatus::OK)
            .ok_or(MadStatus::SA_REQUEST_INVALID)?;
        let offset = if count == 0 {
            0
        } else {
            SaHeader::offset_of(size)
        };
        let front = SaHeader {
            header,
            sm_key: SmKey(0),
            attribute_offset: offset,
            component_mask: asked.component_mask,
            ..SaHeader::default()
        };
        let mut template = Mad::ZERO;
        let _ = template.set_front(&front); // 56 of 256 bytes: there is room
        let len = count.saturating_mul(usize::from(offset) * 8);
        let sender = RmppSender::new(&template, len, self.config.rmpp_patience, self.now);
        let sender = sender.map_err(|_| MadStatus::SA_NO_RESOURCES)?;
        let slot = self
            .transfers
            .get_mut(index)
            .ok_or(MadStatus::SA_NO_RESOURCES)?;
        let (to, at) = (request.received.reply_to(), self.now);
        *slot = Some(Transfer {
            to,
            tid: header.tid,
            what,
            count,
            sender,
            at,
        });
        self.st.transfer_at = self.now;
        Ok(Answer::Begun)
    }

    /// An RMPP packet that is no data came: for one of our transfers.
    pub(super) fn transfer_received(&mut self, received: &Received) {
        let tid = received.header().tid;
        let now = self.now;
        for row in self.transfers.iter_mut().flatten() {
            if row.tid == tid && received.is_from(&row.to) {
                row.sender.handle(&received.mad, now);
                row.at = now;
                self.st.transfer_at = now;
            }
        }
    }

    /// The next segment that is due.
    pub(crate) fn next_segment(&mut self) -> Option<Outgoing> {
        if self.now < self.st.transfer_at {
            return None;
        }
        let mut at = Instant::NEVER;
        for index in 0..self.transfers.len() {
            let now = self.now;
            let Some(Some(row)) = self.transfers.get_mut(index) else {
                continue;
            };
            if now < row.at {
                at = at.min(row.at);
                continue;
            }
            let to = row.to;
            match row.sender.poll(now) {
                SenderNext::Segment { number, bytes } => {
                    let mad = self.segment(index, number, bytes.start, bytes.len())?;
                    return Some(Outgoing { to, mad }); // the others at the next call
                }
                SenderNext::Control(mad) => return Some(Outgoing { to, mad }),
                SenderNext::WaitUntil(next) => {
                    row.at = next;
                    at = at.min(next);
                }
                SenderNext::Done(_) => {
                    if let Some(slot) = self.transfers.get_mut(index) {
                        *slot = None;
                    }
                }
            }
        }
        self.st.transfer_at = at;
        None
    }

    /// Makes one segment: `len` bytes of the records, from byte `start` of them all on.
    fn segment(&self, index: usize, number: u32, start: usize, len: usize) -> Option<Mad> {
        let row = self.transfers.get(index)?.as_ref()?;
        let size = Self::record_size(row.what.attribute);
        let stride = usize::from(SaHeader::offset_of(size)) * 8;
        let mut data = [0; 256];
        let data = data.get_mut(..len)?;
        let first = start.checked_div(stride)?;
        for at in first..row.count {
            let begin = at * stride;
            if begin >= start + len {
                break;
            }
            let number = self.records.get(index * self.st.records + at).copied()?;
            let record = self.record_bytes(&row.what, number);
            copy(data, start, begin, record.as_slice());
        }
        Some(row.sender.segment(number, data))
    }

    /// Nobody waits for answers of one who is not the master.
    pub(crate) fn drop_transfers(&mut self) {
        self.transfers.iter_mut().for_each(|slot| *slot = None);
        while self.replies.pop().or_else(|| self.joins.pop()).is_some() {}
        self.st.joins_made = 0;
        self.st.transfer_at = Instant::NEVER;
    }
}

/// Copies what of `record`, which begins at `begin`, falls into `data`, which begins at `start`.
fn copy(data: &mut [u8], start: usize, begin: usize, record: &[u8]) {
    let (skip, place) = if begin < start {
        (start - begin, 0)
    } else {
        (0, begin - start)
    };
    let record = record.get(skip..).unwrap_or(&[]);
    let places = data.get_mut(place..).unwrap_or(&mut []);
    for (place, byte) in places.iter_mut().zip(record) {
        *place = *byte;
    }
}

impl RecordBytes {
    /// A record that is no more: zeros.
    pub(super) const GONE: Self = Self {
        bytes: [0; 200],
        len: 0,
    };
}
