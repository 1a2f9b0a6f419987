//! How a program ends before it is done: by an error, by a signal, or because nobody reads it any more.

use crate::out;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Why it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed: what the user is told.
    Failed(String),
    /// A signal told it to end: its number.
    Signal(i32),
    /// Whoever read its standard output went away.
    Closed,
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<&str> for Stop {
    fn from(why: &str) -> Self {
        Self::Failed(why.into())
    }
}

impl Stop {
    /// Tells the user, and says what to exit with: 128 and its number for a signal, as shells do.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Failed(why) => {
                crate::complain!("error: {why}");
                ExitCode::FAILURE
            }
            Self::Signal(number) => {
                let name = signal_hook::low_level::signal_name(number).unwrap_or("a signal");
                crate::complain!("ended by {name}");
                ExitCode::from(u8::try_from(128 + number).unwrap_or(255))
            }
            Self::Closed => ExitCode::SUCCESS,
        }
    }
}

/// Was this program told to end?
#[derive(Clone)]
pub struct Ended(Arc<AtomicUsize>);

impl Ended {
    /// From now on Ctrl-C, Ctrl-\, a terminal that goes away and SIGTERM are noted and do nothing else, so that what the
    /// program made (namespaces, a capture) can be put in order. `nohup` still works.
    pub fn new() -> Result<Self, String> {
        let number = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGQUIT, SIGHUP] {
            if signal == SIGHUP && is_ignored(signal) {
                continue;
            }
            let value = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, number.clone(), value)
                .map_err(|error| format!("signals cannot be caught: {error}"))?;
        }
        Ok(Self(number))
    }

    /// The signal that told it to.
    pub fn signal(&self) -> Option<i32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }

    /// An error once there was a signal, or nobody reads the standard output.
    pub fn check(&self) -> Result<(), Stop> {
        match self.signal() {
            Some(number) => Err(Stop::Signal(number)),
            None => out::state(),
        }
    }
}

/// Was this program started with `signal` ignored? Where the system does not say: no.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_that_ends_a_program_is_noted() {
        let ended = Ended::new().unwrap();
        assert_eq!(ended.check(), Ok(()));
        for signal in [SIGINT, SIGTERM, SIGQUIT, SIGHUP] {
            if signal != SIGHUP || !is_ignored(signal) {
                signal_hook::low_level::raise(signal).unwrap();
                assert_eq!(ended.check(), Err(Stop::Signal(signal)));
            }
        }
    }
}
