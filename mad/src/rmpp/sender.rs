//! The sending end of a transfer. protocols 4.3.3.

use super::{HEAD, PAYLOAD, RmppError, control, control_header, data_of, head_of, header, put};
use crate::transaction::Patience;
use core::ops::Range;
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::mad::{Mad, MgmtClass, RmppFlags, RmppHeader, RmppStatus, RmppType};

/// However much time the receiver claims, no more is given to one acknowledgement. protocols 4.3.3 (Linux).
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What the owner is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderNext {
    /// Make segment `number` with [`RmppSender::segment`] from these bytes of the message, put it on the wire, poll
    /// again.
    Segment {
        /// Counted from 1.
        number: u32,
        /// Which bytes of the message it carries.
        bytes: Range<usize>,
    },
    /// Put this on the wire (an ABORT), then poll again.
    Control(Mad),
    /// Over: everything was acknowledged, or the transfer failed.
    Done(Result<(), RmppError>),
    /// Nothing before this instant, unless an ACK comes.
    WaitUntil(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sending,
    /// An ABORT is due, with this status.
    Aborting(RmppStatus),
    Done(Result<(), RmppError>),
}

/// One message on its way out.
#[derive(Clone, Debug)]
pub struct RmppSender {
    head: [u8; HEAD],
    data_offset: usize,
    data_len: usize,
    len: usize,
    segments: u32,
    /// Highest segment that is acknowledged with all before it.
    acked: u32,
    /// Highest segment that may be sent.
    window_last: u32,
    /// Next to send.
    next: u32,
    /// Highest that was ever sent.
    sent: u32,
    patience: Patience,
    wait: Duration,
    tries: u8,
    deadline: Instant,
    state: State,
}

impl RmppSender {
    /// A message of `len` bytes. `template` has the common header (method, transaction …) and that of the class, which
    /// go into every segment; its data is not looked at.
    pub fn new(
        template: &Mad,
        len: usize,
        patience: Patience,
        now: Instant,
    ) -> Result<Self, RmppError> {
        let (data_offset, data_len) = data_of(MgmtClass(template.0[1]))?;
        let segments = len.div_ceil(data_len.max(1)).max(1);
        // The total payload must fit into PayloadLength, too.
        let total = segments.saturating_mul(RmppHeader::SEGMENT_PAYLOAD);
        if u32::try_from(total).is_err() {
            return Err(RmppError::TooLong { len });
        }
        Ok(Self {
            head: head_of(template, data_offset),
            data_offset,
            data_len,
            len,
            segments: segments as u32,
            acked: 0,
            window_last: 1,
            next: 1,
            sent: 0,
            patience,
            wait: patience.timeout,
            tries: 0,
            deadline: now.after(patience.timeout),
            state: State::Sending,
        })
    }

    /// The same, for the answer to a message that itself came in segments: nothing is sent before the peer says with
    /// an ACK of segment 0 that it is ready. protocols 4.3.3.
    pub fn awaiting_ready(mut self) -> Self {
        self.window_last = 0;
        self
    }

    /// How many segments it has.
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// A MAD of the same transfer that came from the peer. Which transfer it belongs to (transaction, sender) is for
    /// the owner to see.
    pub fn handle(&mut self, mad: &Mad, now: Instant) {
        let header = header(mad);
        if self.state != State::Sending || !header.is_active() {
            return;
        }
        if header.version != RmppHeader::VERSION {
            self.state = State::Aborting(RmppStatus::UNSUPPORTED_VERSION);
            return;
        }
        match header.kind {
            RmppType::ACK => self.acknowledged(&header, now),
            RmppType::STOP => {
                let status = header.status;
                self.state = State::Done(Err(RmppError::Stopped { status }));
            }
            RmppType::ABORT => {
                let status = header.status;
                self.state = State::Done(Err(RmppError::Aborted { status }));
            }
            _ => {}
        }
    }

    fn acknowledged(&mut self, header: &RmppHeader, now: Instant) {
        let (segment, window) = (header.segment, header.length_or_window);
        if header.status != RmppStatus::NORMAL {
            self.state = State::Aborting(RmppStatus::ILLEGAL_STATUS);
        } else if segment > self.sent {
            self.state = State::Aborting(RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        } else if window < segment {
            self.state = State::Aborting(RmppStatus::NEW_WINDOW_LAST_TOO_SMALL);
        } else if segment == self.segments {
            self.state = State::Done(Ok(()));
        } else if segment > self.acked || window > self.window_last {
            if header.resp_time != RmppHeader::NO_TIME {
                let claimed = header.resp_time.duration().min(LONGEST_WAIT);
                self.wait = claimed.max(self.patience.timeout);
            }
            self.acked = self.acked.max(segment);
            self.window_last = self.window_last.max(window);
            self.next = self.next.max(self.acked.saturating_add(1));
            self.tries = 0;
            self.deadline = now.after(self.wait);
        }
    }

    /// What is due at `now`.
    pub fn poll(&mut self, now: Instant) -> SenderNext {
        match self.state {
            State::Done(result) => return SenderNext::Done(result),
            State::Aborting(status) => return self.abort(status),
            State::Sending => {}
        }
        if now >= self.deadline {
            if self.tries >= self.patience.retries {
                return self.abort(RmppStatus::TOO_MANY_RETRIES);
            }
            self.tries = self.tries.saturating_add(1);
            self.next = self.acked.saturating_add(1);
            self.deadline = now.after(self.wait);
        }
        let number = self.next;
        if number > self.segments.min(self.window_last) {
            return SenderNext::WaitUntil(self.deadline);
        }
        self.next = number.saturating_add(1);
        self.sent = self.sent.max(number);
        self.deadline = now.after(self.wait);
        let start = (number as usize - 1).saturating_mul(self.data_len);
        let end = self.len.min(start.saturating_add(self.data_len));
        SenderNext::Segment {
            number,
            bytes: start..end,
        }
    }

    fn abort(&mut self, status: RmppStatus) -> SenderNext {
        self.state = State::Done(Err(RmppError::GaveUp { status }));
        let header = control_header(RmppType::ABORT, status);
        SenderNext::Control(control(&self.head, false, &header))
    }

    /// Segment `number` with `data`, the bytes that [`SenderNext::Segment`] named. Bytes that do not fit are left out.
    pub fn segment(&self, number: u32, data: &[u8]) -> Mad {
        let mut mad = Mad::ZERO;
        let parts = mad.0.iter_mut().zip(&self.head).take(self.data_offset);
        parts.for_each(|(to, from)| *to = *from);
        let places = mad.0.iter_mut().skip(self.data_offset);
        places.zip(data).for_each(|(to, from)| *to = *from);
        let overhead = self.data_offset.saturating_sub(PAYLOAD);
        let (first, last) = (number == 1, number == self.segments);
        let mut flags = RmppFlags::ACTIVE;
        flags.set(RmppFlags::FIRST, first);
        flags.set(RmppFlags::LAST, last);
        let payload = if first {
            self.len + overhead * self.segments as usize // fits: `new` saw to it
        } else if last {
            data.len().min(self.data_len) + overhead
        } else {
            0
        };
        let header = RmppHeader {
            flags,
            segment: number,
            length_or_window: payload as u32,
            ..control_header(RmppType::DATA, RmppStatus::NORMAL)
        };
        put(&mut mad, &header);
        mad
    }
}
