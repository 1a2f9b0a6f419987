//! The receiving end of a transfer. protocols 4.3.3.

use super::{HEAD, PAYLOAD, RmppError, control, control_header, data_of, head_of, header};
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::mad::{Mad, MgmtClass, RmppFlags, RmppHeader, RmppStatus, RmppType};

/// A message that takes longer is aborted. protocols 4.3.3 (Linux).
const TOTAL_TIME: Duration = Duration::from_secs(40);
/// How long a finished transfer still acknowledges what comes again. protocols 4.3.3 (Linux).
const LINGER: Duration = Duration::from_secs(10);

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverNext {
    /// Put this on the wire (an ACK, a STOP, an ABORT), then poll again.
    Control(Mad),
    /// The message is in the buffer, once. The receiver stays, to acknowledge what comes again.
    Complete {
        /// Bytes.
        len: usize,
    },
    /// The message will not come. Said once.
    Failed(RmppError),
    /// Nothing before this instant, unless a segment comes.
    WaitUntil(Instant),
    /// Nothing ever again: drop it.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Receiving,
    Complete { len: usize, reported: bool },
    Failed { error: RmppError, reported: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Ack,
    Stop(RmppStatus),
    Abort(RmppStatus),
}

/// One message on its way in.
#[derive(Clone, Debug)]
pub struct RmppReceiver {
    head: [u8; HEAD],
    data_offset: usize,
    data_len: usize,
    window: u32,
    /// Highest segment that is here with all before it.
    have: u32,
    /// Bit n: segment `have + 1 + n` is here.
    early: u64,
    window_last: u32,
    /// The last segment and its bytes of data, once it is here.
    last: Option<(u32, usize)>,
    /// Segments that the first one promised; 0 if unknown.
    promised: u32,
    due: Option<Due>,
    deadline: Instant,
    state: State,
}

impl RmppReceiver {
    /// Segments that may be under way at once, at most.
    pub const MAX_WINDOW: u32 = 64;

    /// The receiver of a message of which `mad` is a segment; hand it to [`handle`](Self::handle) too. `window`
    /// segments, 1 to [`MAX_WINDOW`](Self::MAX_WINDOW), may be under way at once: an eighth of the receive queue, say.
    pub fn new(mad: &Mad, window: u32, now: Instant) -> Result<Self, RmppError> {
        let (data_offset, data_len) = data_of(MgmtClass(mad.0[1]))?;
        Ok(Self {
            head: head_of(mad, data_offset),
            data_offset,
            data_len,
            window: window.clamp(1, Self::MAX_WINDOW),
            have: 0,
            early: 0,
            window_last: 1,
            last: None,
            promised: 0,
            due: None,
            deadline: now.after(TOTAL_TIME),
            state: State::Receiving,
        })
    }

    /// The receiver of the answer to `request`, a message of our own that went out in segments: tells the peer at once
    /// that the answer may come. protocols 4.3.3.
    pub fn of_answer_to(request: &Mad, window: u32, now: Instant) -> Result<Self, RmppError> {
        let mut receiver = Self::new(request, window, now)?;
        receiver.head[3] ^= 0x80;
        receiver.due = Some(Due::Ack);
        Ok(receiver)
    }

    /// The MAD's bytes before the data: common header, RMPP header, header of the class, padded with zeros. Of the
    /// first segment if it is here, else of the one that came first.
    pub const fn head(&self) -> &[u8; HEAD] {
        &self.head
    }

    /// A MAD of the same transfer that came from the peer. `buffer` is the same every time. Which transfer a MAD
    /// belongs to (transaction, sender) is for the owner to see.
    pub fn handle(&mut self, mad: &Mad, buffer: &mut [u8], now: Instant) {
        let header = header(mad);
        if !header.is_active() {
            return;
        }
        match self.state {
            State::Failed { .. } => {}
            State::Complete { .. } => {
                if header.kind == RmppType::DATA {
                    self.due = Some(Due::Ack);
                }
            }
            State::Receiving => {
                if let Err(due) = self.take(&header, mad, buffer, now) {
                    self.due = Some(due);
                }
            }
        }
    }

    /// `Err` is what to tell the peer at once.
    fn take(
        &mut self,
        header: &RmppHeader,
        mad: &Mad,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), Due> {
        let status = header.status;
        if header.version != RmppHeader::VERSION {
            return Err(self.give_up(RmppStatus::UNSUPPORTED_VERSION));
        }
        match header.kind {
            RmppType::DATA if status == RmppStatus::NORMAL => self.data(header, mad, buffer, now),
            RmppType::DATA => Err(self.give_up(RmppStatus::ILLEGAL_STATUS)),
            RmppType::ACK => Ok(()), // of the message that ours answers, late
            RmppType::STOP => {
                self.fail(RmppError::Stopped { status });
                Ok(())
            }
            RmppType::ABORT => {
                self.fail(RmppError::Aborted { status });
                Ok(())
            }
            _ => Err(self.give_up(RmppStatus::BAD_TYPE)),
        }
    }

    fn data(
        &mut self,
        header: &RmppHeader,
        mad: &Mad,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), Due> {
        let segment = header.segment;
        let first = header.flags.contains(RmppFlags::FIRST);
        if segment == 0 || first != (segment == 1) {
            return Err(self.give_up(RmppStatus::INCONSISTENT_FIRST));
        }
        if segment <= self.have {
            return Err(Due::Ack);
        }
        let ahead = segment - self.have - 1; // 0 is the one expected
        if segment > self.window_last || ahead >= Self::MAX_WINDOW {
            return Ok(()); // more than it may send: dropped
        }
        let payload = header.length_or_window as usize;
        if first {
            self.head = head_of(mad, self.data_offset);
            self.promise(payload, buffer.len())?;
        }
        let len = self.segment_len(segment, header.flags.contains(RmppFlags::LAST), payload)?;
        let start = (segment as usize - 1).saturating_mul(self.data_len);
        let end = start.saturating_add(len);
        let room = buffer.len();
        let Some(place) = buffer.get_mut(start..end) else {
            return Err(self.stop(end, room));
        };
        let data = mad.0.iter().skip(self.data_offset);
        place
            .iter_mut()
            .zip(data)
            .for_each(|(to, from)| *to = *from);
        self.early |= 1 << ahead;
        while self.early & 1 != 0 {
            self.early >>= 1;
            self.have = self.have.saturating_add(1);
        }
        match self.last {
            Some((last, len)) if last == self.have => {
                let before = (last as usize - 1).saturating_mul(self.data_len);
                let len = before.saturating_add(len);
                let reported = false;
                self.state = State::Complete { len, reported };
                self.deadline = now.after(LINGER);
                Err(Due::Ack)
            }
            _ if ahead > 0 || self.have >= self.window_last => Err(Due::Ack),
            _ => Ok(()),
        }
    }

    /// What the first segment says of the whole. 0: nothing.
    fn promise(&mut self, payload: usize, room: usize) -> Result<(), Due> {
        if payload == 0 {
            return Ok(());
        }
        let segments = payload.div_ceil(RmppHeader::SEGMENT_PAYLOAD);
        self.promised = segments as u32; // fits: `payload` had 32 bits
        if self.last.is_some_and(|(last, _)| last != self.promised) {
            return Err(self.give_up(RmppStatus::INCONSISTENT_LAST));
        }
        let overhead = self.data_offset.saturating_sub(PAYLOAD);
        let need = payload.saturating_sub(segments.saturating_mul(overhead));
        if need > room {
            return Err(self.stop(need, room));
        }
        Ok(())
    }

    /// How many bytes of data a segment has.
    fn segment_len(&mut self, segment: u32, last: bool, payload: usize) -> Result<usize, Due> {
        let wrong = RmppStatus::INCONSISTENT_LAST;
        if !last {
            let beyond = |last: u32| last != 0 && segment >= last;
            if beyond(self.promised) || beyond(self.last.map_or(0, |(last, _)| last)) {
                return Err(self.give_up(wrong));
            }
            return Ok(self.data_len);
        }
        let overhead = self.data_offset.saturating_sub(PAYLOAD);
        let len = payload.checked_sub(overhead);
        let Some(len) = len.filter(|&len| len <= self.data_len) else {
            return Err(self.give_up(wrong));
        };
        let other = self.last.is_some_and(|(last, _)| last != segment);
        if other || (self.promised != 0 && self.promised != segment) {
            return Err(self.give_up(wrong));
        }
        self.last = Some((segment, len));
        Ok(len)
    }

    fn fail(&mut self, error: RmppError) {
        let reported = false;
        self.state = State::Failed { error, reported };
    }

    fn give_up(&mut self, status: RmppStatus) -> Due {
        self.fail(RmppError::GaveUp { status });
        Due::Abort(status)
    }

    fn stop(&mut self, need: usize, room: usize) -> Due {
        self.fail(RmppError::BufferTooSmall { need, room });
        Due::Stop(RmppStatus::RESOURCES_EXHAUSTED)
    }

    /// What is due at `now`.
    pub fn poll(&mut self, now: Instant) -> ReceiverNext {
        if self.state == State::Receiving && now >= self.deadline {
            self.due = Some(self.give_up(RmppStatus::TOTAL_TIME_TOO_LONG));
        }
        if let Some(due) = self.due.take() {
            return ReceiverNext::Control(self.control(due));
        }
        match &mut self.state {
            State::Complete { len, reported } if !*reported => {
                *reported = true;
                ReceiverNext::Complete { len: *len }
            }
            State::Failed { error, reported } if !*reported => {
                *reported = true;
                ReceiverNext::Failed(*error)
            }
            State::Failed { .. } => ReceiverNext::Over,
            State::Complete { .. } if now >= self.deadline => ReceiverNext::Over,
            State::Complete { .. } | State::Receiving => ReceiverNext::WaitUntil(self.deadline),
        }
    }

    fn control(&mut self, due: Due) -> Mad {
        let header = match due {
            Due::Ack => {
                let window = self.have.saturating_add(self.window);
                self.window_last = self.window_last.max(window);
                RmppHeader {
                    segment: self.have,
                    length_or_window: self.window_last,
                    ..control_header(RmppType::ACK, RmppStatus::NORMAL)
                }
            }
            Due::Stop(status) => control_header(RmppType::STOP, status),
            Due::Abort(status) => control_header(RmppType::ABORT, status),
        };
        control(&self.head, true, &header)
    }
}
