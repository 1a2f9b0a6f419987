//! All locks and gates of a world: who holds them, who waits, and in which orders they have been taken.

use super::HostId;
use super::context::ContextId;
use std::collections::{BTreeMap, BTreeSet};

/// Which lock or gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LockId(pub(super) u32);

/// Which kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    /// A lock that interrupt handlers leave alone.
    Plain,
    /// A lock that interrupt handlers may take.
    Masking,
    /// A gate.
    Gate,
}

/// Who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A context.
    Context(ContextId),
    /// Code that runs in no context: a test that sets something up.
    Outside,
}

#[derive(Debug)]
pub(super) struct LockState {
    pub(super) host: HostId,
    pub(super) name: &'static str,
    pub(super) kind: LockKind,
    pub(super) holder: Option<Holder>,
    pub(super) waiters: Vec<ContextId>,
}

impl LockState {
    /// For reports: `lock "CQ 5"`.
    pub(super) fn title(&self) -> String {
        let kind = match self.kind {
            LockKind::Gate => "gate",
            _ => "lock",
        };
        format!("{kind} \"{}\"", self.name)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Locks {
    states: Vec<Option<LockState>>,
    free: Vec<u32>,
    /// What has been taken while holding each.
    after: BTreeMap<u32, BTreeSet<u32>>,
}

impl Locks {
    pub(super) fn make(&mut self, host: HostId, name: &'static str, kind: LockKind) -> LockId {
        let state = LockState {
            host,
            name,
            kind,
            holder: None,
            waiters: Vec::new(),
        };
        if let Some(id) = self.free.pop()
            && let Some(slot) = self.states.get_mut(id as usize)
        {
            *slot = Some(state);
            return LockId(id);
        }
        self.states.push(Some(state));
        LockId(self.states.len() as u32 - 1)
    }

    pub(super) fn drop(&mut self, id: LockId) {
        if let Some(slot) = self.states.get_mut(id.0 as usize) {
            *slot = None;
            self.free.push(id.0);
        }
        self.after.remove(&id.0);
        for taken in self.after.values_mut() {
            taken.remove(&id.0);
        }
    }

    pub(super) fn get(&self, id: LockId) -> Option<&LockState> {
        self.states.get(id.0 as usize)?.as_ref()
    }

    /// For reports; a lock that is gone has none.
    pub(super) fn title(&self, id: LockId) -> String {
        self.get(id).map_or(String::new(), LockState::title)
    }

    pub(super) fn get_mut(&mut self, id: LockId) -> Option<&mut LockState> {
        self.states.get_mut(id.0 as usize)?.as_mut()
    }

    /// Notes that `taken` is taken while `held` is held. True if the other way round has been seen, too, perhaps by
    /// way of others, and this is news.
    pub(super) fn note_order(&mut self, held: LockId, taken: LockId) -> bool {
        if held == taken || !self.after.entry(held.0).or_default().insert(taken.0) {
            return false;
        }
        let mut seen = BTreeSet::from([taken.0]);
        let mut next = vec![taken.0];
        while let Some(lock) = next.pop() {
            if lock == held.0 {
                return true;
            }
            let onward = self.after.get(&lock).into_iter().flatten();
            next.extend(onward.filter(|lock| seen.insert(**lock)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inversion_is_found_across_other_locks_and_told_once() {
        let mut locks = Locks::default();
        let mut make = |name| locks.make(HostId(0), name, LockKind::Plain);
        let (a, b, c) = (make("a"), make("b"), make("c"));
        assert!(!locks.note_order(a, b));
        assert!(!locks.note_order(b, c));
        assert!(!locks.note_order(a, c));
        assert!(locks.note_order(c, a));
        assert!(!locks.note_order(c, a));
        locks.drop(b);
        let b = locks.make(HostId(0), "new", LockKind::Gate);
        assert!(
            !locks.note_order(c, b),
            "orders of the old one are forgotten"
        );
    }
}
