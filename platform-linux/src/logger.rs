//! The log, line by line, to the kernel's. And the last words of a library that finds itself broken.

use crate::os;
use core::fmt::{self, Write};
use core::panic::PanicInfo;

/// Bytes of a line; what is more is cut off.
const LINE: usize = 224;

/// A line of fixed length.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    const fn new() -> Self {
        Self {
            bytes: [0; LINE],
            len: 0,
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.iter_mut().skip(self.len);
        let mut written = 0_usize;
        for (to, from) in room.zip(text.bytes()) {
            *to = from;
            written = written.wrapping_add(1);
        }
        self.len = self.len.wrapping_add(written);
        Ok(())
    }
}

/// To the kernel's log.
struct OsLog;

impl log::Log for OsLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = match record.level() {
            log::Level::Error => os::Level::Error,
            log::Level::Warn => os::Level::Warning,
            log::Level::Info => os::Level::Info,
            log::Level::Debug | log::Level::Trace => os::Level::Debug,
        };
        let mut line = Line::new();
        // Half a line is better than none.
        let _ = line.write_fmt(*record.args());
        // SAFETY: so many bytes of the line were written.
        unsafe { os::openib_os_log(level, line.bytes.as_ptr(), line.len) };
    }

    fn flush(&self) {}
}

/// The first caller says what is logged; harmless when called again.
pub(crate) fn start(debug: bool) {
    // Whoever came first is the same.
    let _ = log::set_logger(&OsLog);
    log::set_max_level(match debug {
        true => log::LevelFilter::Debug,
        false => log::LevelFilter::Info,
    });
}

/// What the panic handler of an archive does: tells the kernel the place, and stops.
pub fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = Line::new();
    if let Some(place) = info.location() {
        // Half a place is better than none.
        let _ = write!(line, "{}:{}: ", place.file(), place.line());
    }
    let _ = write!(line, "{}", info.message());
    // SAFETY: so many bytes of the line were written.
    unsafe { os::openib_os_panic(line.bytes.as_ptr(), line.len) };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an invalid instruction, behind which nothing is.
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    };
    #[cfg(not(target_arch = "x86_64"))]
    loop {
        core::hint::spin_loop();
    }
}
