//! What the programs say: lines on the standard output and on the standard error stream.
//!
//! Either may be closed before the program ends (`demo | head -1`). That is no reason to panic, and of the output no
//! error: nothing more is written, and [`state`] tells a program that was run to be read that it may end.

use crate::ended::Stop;
use core::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// Says a line on the standard output.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::out::line(format_args!($($words)*)) };
}

/// Says a line on the standard error stream.
#[macro_export]
macro_rules! complain {
    ($($words:tt)*) => { $crate::out::complaint(format_args!($($words)*)) };
}

/// Why the standard output takes no more; none as long as it does.
static BROKEN: Mutex<Option<ErrorKind>> = Mutex::new(None);

fn broken() -> Option<ErrorKind> {
    *BROKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to `out`, unless it is broken; notes in `broken` if it is from now on.
fn write(out: &mut impl Write, broken: &mut Option<ErrorKind>, words: fmt::Arguments<'_>) {
    if broken.is_none() {
        let written = writeln!(out, "{words}").and_then(|()| out.flush());
        *broken = written.err().map(|error| error.kind());
    }
}

/// See [`say!`](crate::say).
pub fn line(words: fmt::Arguments<'_>) {
    let mut broken = BROKEN.lock().unwrap_or_else(PoisonError::into_inner);
    write(&mut io::stdout().lock(), &mut broken, words);
}

/// See [`complain!`](crate::complain). Nobody is left to be told that it failed.
pub fn complaint(words: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Does the standard output take what is said? A reader that went away ends the program quietly, anything else, like a
/// full disk, is an error.
pub fn state() -> Result<(), Stop> {
    match broken() {
        None => Ok(()),
        Some(ErrorKind::BrokenPipe) => Err(Stop::Closed),
        Some(other) => Err(Stop::Failed(format!("the standard output: {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many lines, then fails so.
    struct Pipe(usize, ErrorKind);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(self.1.into());
            }
            self.0 -= usize::from(bytes.ends_with(b"\n"));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn after_the_first_error_nothing_more_is_written() {
        let mut pipe = Pipe(1, ErrorKind::BrokenPipe);
        let mut broken = None;
        write(&mut pipe, &mut broken, format_args!("one"));
        assert_eq!(broken, None);
        write(&mut pipe, &mut broken, format_args!("two"));
        assert_eq!(broken, Some(ErrorKind::BrokenPipe));
        pipe.0 = 9;
        write(&mut pipe, &mut broken, format_args!("three"));
        assert_eq!(pipe.0, 9);
    }
}
