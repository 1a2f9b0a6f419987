//! Time and sleep. The only file that knows the wall clock.

#![expect(
    clippy::disallowed_methods,
    reason = "real time is the wall's, and is read here"
)]

use super::{Mode, context::ContextId};
use core_ib::Instant;
use polling::{Event, Events, Poller};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The wall clock in real time, nothing in virtual time.
pub(super) struct Clock {
    start: Option<std::time::Instant>,
}

impl Clock {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            start: match mode {
                Mode::Virtual => None,
                Mode::RealTime => Some(std::time::Instant::now()),
            },
        }
    }

    /// Time since the world was made, if that is the wall's to say.
    pub(super) fn read(&self) -> Option<Instant> {
        let passed = self.start?.elapsed();
        Some(Instant(0).after(passed))
    }
}

/// Ends the sleep of a world in real time, from any thread. Cheap to clone. In virtual time there is nothing to end.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Option<Arc<Sleeper>>,
}

#[derive(Debug)]
struct Sleeper {
    poller: Poller,
    woken: AtomicBool,
}

impl Waker {
    pub(super) fn new(mode: Mode) -> std::io::Result<Self> {
        let inner = match mode {
            Mode::Virtual => None,
            Mode::RealTime => Some(Arc::new(Sleeper {
                poller: Poller::new()?,
                woken: AtomicBool::new(false),
            })),
        };
        Ok(Self { inner })
    }

    /// The world looks around again. Any thread; never blocks.
    pub fn wake(&self) {
        if let Some(sleeper) = &self.inner
            && !sleeper.woken.swap(true, Ordering::AcqRel)
        {
            // It fails only if the poller is broken, and then `sleep` says so.
            let _ = sleeper.poller.notify();
        }
    }

    /// Was it called since this was last asked?
    pub(super) fn take_woken(&self) -> bool {
        let sleeper = self.inner.as_ref();
        sleeper.is_some_and(|sleeper| sleeper.woken.swap(false, Ordering::AcqRel))
    }

    /// Sleeps for `at_most` (`None` is for ever), or until woken, or a file is ready. Gives the contexts whose files
    /// are.
    pub(super) fn sleep(
        &self,
        at_most: Option<core::time::Duration>,
    ) -> std::io::Result<Vec<ContextId>> {
        let Some(sleeper) = &self.inner else {
            return Ok(Vec::new());
        };
        let mut events = Events::new();
        sleeper.poller.wait(&mut events, at_most)?;
        let ready = events.iter().map(|event| ContextId(event.key as u32));
        Ok(ready.collect())
    }

    /// From now on `context` is among those that `sleep` gives, once, when `file` can be read (or written). False in
    /// virtual time.
    pub(super) fn watch<'a>(
        &self,
        file: BorrowedFd<'a>,
        write: bool,
        context: ContextId,
    ) -> std::io::Result<Option<Watch<'a>>> {
        let Some(sleeper) = &self.inner else {
            return Ok(None);
        };
        let key = context.0 as usize;
        let interest = if write {
            Event::writable(key)
        } else {
            Event::readable(key)
        };
        let sleeper = sleeper.clone();
        // SAFETY: the source must be deleted before it is closed. The borrow keeps it open as long as the `Watch`
        // lives, and dropping that deletes it; a `Watch` that is never dropped keeps the borrow for ever.
        unsafe { sleeper.poller.add(&file, interest)? };
        Ok(Some(Watch { sleeper, file }))
    }
}

/// A file that a context waits for.
pub(super) struct Watch<'a> {
    sleeper: Arc<Sleeper>,
    file: BorrowedFd<'a>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // It fails only if the file is gone from the poller, which is what is wanted.
        let _ = self.sleeper.poller.delete(self.file);
    }
}
