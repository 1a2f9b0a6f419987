//! One request and its fate: tries, timeouts, a busy peer. protocols 3.2.1, 3.12.
//!
//! No MAD, no timer, nobody to call: [`Transaction::handle`] is told what happened, [`Transaction::poll`] says what
//! is due and when to ask again. [`Requests`](crate::Requests) keeps many of them beside their MADs.

use core::fmt;
use core::time::Duration;
use core_ib::Instant;
use core_ib::wire::mad::MadStatus;

/// How long to wait for an answer, and how often to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Wait after each try.
    pub timeout: Duration,
    /// Tries after the first.
    pub retries: u8,
}

impl Patience {
    /// What a subnet manager gives an SMP: 200 ms, 3 retries. protocols 9.2.
    pub const SMP: Self = Self::new(200, 3);
    /// What joins and other changes at the SA get: 3 s, 3 retries. protocols 4.6.
    pub const JOIN: Self = Self::new(3000, 3);
    /// What queries of the SA and of other agents get: 1 s, 3 retries. protocols 6.5, 3.13.4.
    pub const QUERY: Self = Self::new(1000, 3);

    /// In milliseconds.
    pub const fn new(millis: u64, retries: u8) -> Self {
        let timeout = Duration::from_millis(millis);
        Self { timeout, retries }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// Nobody answered, or only to say "busy".
    TimedOut {
        /// How often the request went out.
        tries: u16,
    },
    /// Taken back by its owner.
    Cancelled,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TimedOut { tries } => write!(f, "no answer to {tries} tries"),
            Self::Cancelled => f.write_str("taken back before an answer came"),
        }
    }
}

impl core::error::Error for NoAnswer {}

/// What can happen to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A response with this status came.
    Response(MadStatus),
    /// The last try did not reach the wire.
    SendFailed,
    /// The owner has lost interest.
    Cancelled,
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Put the request on the wire, then poll again.
    Send,
    /// Finished; drop the transaction.
    Done(Result<MadStatus, NoAnswer>),
    /// Nothing before this instant, unless an event comes.
    WaitUntil(Instant),
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    patience: Patience,
    tries: u16,
    deadline: Instant,
    outcome: Option<Result<MadStatus, NoAnswer>>,
}

impl Transaction {
    /// Due at `now` for the first time.
    pub const fn new(patience: Patience, now: Instant) -> Self {
        Self {
            patience,
            tries: 0,
            deadline: now,
            outcome: None,
        }
    }

    /// Takes note. Any context that may hold the agent's lock; never blocks.
    pub fn handle(&mut self, event: Event, now: Instant) {
        if self.outcome.is_some() {
            return; // a second response is dropped: protocols 3.12
        }
        match event {
            Event::Response(status) if status.is_busy() => {}
            Event::Response(status) => self.outcome = Some(Ok(status)),
            Event::SendFailed => self.deadline = now,
            Event::Cancelled => self.outcome = Some(Err(NoAnswer::Cancelled)),
        }
    }

    /// Says what is due at `now`. Call again after each `Send`, and at the instant returned; calling early or late
    /// is harmless.
    pub fn poll(&mut self, now: Instant) -> Next {
        if let Some(outcome) = self.outcome {
            return Next::Done(outcome);
        }
        if now < self.deadline {
            return Next::WaitUntil(self.deadline);
        }
        if self.tries > u16::from(self.patience.retries) {
            let outcome = Err(NoAnswer::TimedOut { tries: self.tries });
            self.outcome = Some(outcome);
            return Next::Done(outcome);
        }
        self.tries = self.tries.saturating_add(1);
        self.deadline = now.after(self.patience.timeout);
        Next::Send
    }

    /// How often it went out so far.
    pub const fn tries(&self) -> u16 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::Event::*;
    use super::Next::*;
    use super::*;
    use proptest::prelude::*;

    const OK: MadStatus = MadStatus::OK;
    const BUSY: MadStatus = MadStatus::BUSY;

    const fn ms(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// At this millisecond, after this event, polling answers so.
    type Row = (u64, Option<Event>, Next);

    fn runs(rows: &[Row]) {
        let mut transaction = Transaction::new(Patience::new(100, 2), ms(0));
        for (line, &(at, event, expected)) in rows.iter().enumerate() {
            if let Some(event) = event {
                transaction.handle(event, ms(at));
            }
            assert_eq!(transaction.poll(ms(at)), expected, "row {line}, {at} ms");
        }
    }

    #[test]
    fn a_peer_that_stays_busy_is_given_up_after_all_tries() {
        runs(&[
            (0, None, Send),
            (5, Some(Response(BUSY)), WaitUntil(ms(100))),
            (100, None, Send),
            (110, Some(SendFailed), Send), // no use in waiting
            (200, None, WaitUntil(ms(210))),
            (210, None, Done(Err(NoAnswer::TimedOut { tries: 3 }))),
        ]);
    }

    #[test]
    fn an_answer_to_an_earlier_try_still_counts() {
        runs(&[
            (0, None, Send),
            (100, None, Send),
            (101, Some(Response(OK)), Done(Ok(OK))),
            (102, Some(Response(MadStatus::INVALID_FIELD)), Done(Ok(OK))),
            (500, Some(Cancelled), Done(Ok(OK))),
        ]);
    }

    #[test]
    fn what_was_taken_back_stays_taken_back() {
        runs(&[
            (0, None, Send),
            (10, Some(Cancelled), Done(Err(NoAnswer::Cancelled))),
            (20, Some(Response(OK)), Done(Err(NoAnswer::Cancelled))),
        ]);
    }

    fn event() -> impl Strategy<Value = Option<Event>> {
        prop_oneof![
            6 => Just(None),
            2 => Just(Some(Response(BUSY))),
            1 => Just(Some(Response(OK))),
            2 => Just(Some(SendFailed)),
            1 => Just(Some(Cancelled)),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_it_ends_once_and_never_sends_more_than_it_may(
            retries in 0..5_u8,
            moments in proptest::collection::vec((0..150_u64, event()), 1..40),
        ) {
            let mut transaction = Transaction::new(Patience::new(100, retries), ms(0));
            let (mut now, mut sent, mut outcome) = (0, 0, None);
            for (wait, event) in moments {
                now += wait;
                if let Some(event) = event {
                    transaction.handle(event, ms(now));
                }
                match transaction.poll(ms(now)) {
                    Send => {
                        sent += 1;
                        prop_assert_eq!(outcome, None, "sent after the end");
                    }
                    Done(result) => {
                        prop_assert_eq!(*outcome.get_or_insert(result), result);
                    }
                    WaitUntil(at) => prop_assert!(at > ms(now) && at <= ms(now + 100)),
                }
            }
            prop_assert!(sent <= u32::from(retries) + 1);
            let end = ms(now).after(Duration::from_secs(1));
            while let Send = transaction.poll(end) {
                sent += 1;
                transaction.handle(SendFailed, end);
            }
            prop_assert!(sent <= u32::from(retries) + 1);
            prop_assert!(matches!(transaction.poll(end), Done(_)), "it ends");
        }
    }
}
