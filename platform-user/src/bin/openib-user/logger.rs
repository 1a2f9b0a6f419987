//! What the crates say, on the standard error stream.

use log::{LevelFilter, Log, Metadata, Record};

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_lowercase();
        eprintln!("{level}: {}", record.args());
    }

    fn flush(&self) {}
}

/// From now on.
pub fn start(verbose: bool) {
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(match verbose {
            true => LevelFilter::Debug,
            false => LevelFilter::Warn,
        });
    }
}
