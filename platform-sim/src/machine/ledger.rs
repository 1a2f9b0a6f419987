//! The ledger of a device model: every register, command, context field and descriptor form that a driver used and
//! the model does not act on, counted by name. Shown at the end of a run.

use core::fmt;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Counts by name, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    counts: BTreeMap<Cow<'static, str>, u64>,
}

impl Ledger {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            counts: BTreeMap::new(),
        }
    }

    /// One more of `what`.
    pub fn count(&mut self, what: impl Into<Cow<'static, str>>) {
        let count = self.counts.entry(what.into()).or_default();
        *count = count.saturating_add(1);
    }

    /// How often `what` was counted.
    pub fn get(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Nothing counted: the model acts on all that the driver used.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// All names and counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(what, &count)| (&**what, count))
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in self.iter() {
            writeln!(f, "{count:>10}  {what}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_counted_as_often_as_it_was_used() {
        let mut ledger = Ledger::new();
        assert!(ledger.is_empty());
        ledger.count("SYS_DIS");
        ledger.count(format!("register {:#x}", 0x10));
        ledger.count("SYS_DIS");
        assert_eq!(ledger.get("SYS_DIS"), 2);
        assert_eq!(ledger.get("register 0x10"), 1);
        assert_eq!(ledger.get("RUN_FW"), 0);
        assert_eq!(
            ledger.to_string(),
            "         2  SYS_DIS\n         1  register 0x10\n"
        );
    }
}
