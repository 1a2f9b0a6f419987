//! Threads that wait for interrupts, and call what is bound to them.

use core_ib::platform::Handler;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Where the interrupts of one vector come from.
pub(crate) trait Source: Send + Sync {
    /// Readable when one has come.
    fn file(&self) -> BorrowedFd<'_>;
    /// Takes note of those that have come.
    fn take(&self) -> io::Result<()>;
    /// Lets the next one come.
    fn rearm(&self) -> io::Result<()>;
}

/// An event as what can be waited for.
pub(crate) fn event() -> io::Result<EventFd> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
}

/// An event as a file.
pub(crate) fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: open for as long as the event is borrowed.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

struct Bound(NonNull<dyn Handler>);

// SAFETY: a `Handler` is `Sync`, and whoever bound it promised that it stays valid until the thread has ended.
unsafe impl Send for Bound {}

impl Bound {
    fn call(&self) {
        // SAFETY: valid until the thread has ended.
        let _ = unsafe { self.0.as_ref() }.handle();
    }
}

/// A vector that is bound. Dropped, it waits for the handler, which is not called afterwards.
pub(crate) struct Vector {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Vector {
    /// Calls `handler` for each interrupt of `source`.
    ///
    /// # Safety
    ///
    /// `handler` stays valid until this is dropped.
    pub unsafe fn bind(
        name: String,
        source: Arc<dyn Source>,
        handler: NonNull<dyn Handler>,
    ) -> io::Result<Self> {
        let stop = Arc::new(event()?);
        let (bound, until) = (Bound(handler), stop.clone());
        let thread = std::thread::Builder::new().name("openib interrupt".into());
        let thread = thread.spawn(move || {
            let bound = bound;
            if let Err(error) = run(&*source, &until, &bound) {
                log::error!("{name}: its interrupts are not heard any more: {error}");
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

fn run(source: &dyn Source, until: &EventFd, bound: &Bound) -> io::Result<()> {
    loop {
        let mut files = [
            PollFd::from_borrowed_fd(source.file(), PollFlags::IN),
            PollFd::from_borrowed_fd(borrow(until), PollFlags::IN),
        ];
        match poll(&mut files, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [interrupt, stop] = files.map(|file| file.revents());
        if !stop.is_empty() {
            return Ok(());
        }
        if interrupt.is_empty() {
            continue;
        }
        match source.take() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        bound.call();
        source.rearm()?;
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        // Written once: its count has room.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // One that panicked does not call the handler any more either.
            let _ = thread.join();
        }
    }
}

/// An event that the kernel fires, and that needs nothing before the next one.
impl Source for EventFd {
    fn file(&self) -> BorrowedFd<'_> {
        borrow(self)
    }
    fn take(&self) -> io::Result<()> {
        self.read().map(drop)
    }
    fn rearm(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::platform::Handled;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    struct Count(AtomicU32);

    impl Handler for Count {
        fn handle(&self) -> Handled {
            self.0.fetch_add(1, Ordering::SeqCst);
            Handled::Yes
        }
    }

    static COUNT: Count = Count(AtomicU32::new(0));

    #[test]
    fn each_interrupt_calls_the_handler_until_the_vector_is_unbound() {
        let count = || COUNT.0.load(Ordering::SeqCst);
        let source = Arc::new(event().unwrap());
        let handler = NonNull::from(&COUNT as &'static dyn Handler);
        // SAFETY: it stays for good.
        let vector = unsafe { Vector::bind("x".into(), source.clone(), handler) }.unwrap();
        let start = Instant::now();
        for wanted in 1..=3 {
            source.write(1).unwrap();
            while count() < wanted {
                assert!(start.elapsed() < Duration::from_secs(5));
                std::thread::yield_now();
            }
        }
        drop(vector);
        source.write(1).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(count(), 3);
    }
}
