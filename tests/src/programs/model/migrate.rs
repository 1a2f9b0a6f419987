//! Paths: which one a connection uses, whether the cable carries it, and automatic path migration. verbs 11.

use super::run::Where;
use super::state::{Migration, Qp};
use super::{Affiliated, Model, Open};
use core_ib::verbs::QpEvent;

/// Service level of the path that a connection begins with.
pub const PRIMARY: u8 = 0;
/// Service level of the other one.
pub const ALTERNATE: u8 = 3;

/// The other of the two paths.
pub const fn other(path: u8) -> u8 {
    if path == PRIMARY { ALTERNATE } else { PRIMARY }
}

impl Model {
    /// Does a packet of that service level come from one side to the other?
    pub(super) fn passes(&self, path: u8, from: usize, to: usize) -> bool {
        from == to || self.lost != Some(path)
    }

    fn end(&mut self, at: Where) -> &mut Qp {
        self.sides[at.0].qps.get_mut(at.1).expect("live")
    }

    /// Paths are swapped. `told`: by the HCA, which says so.
    pub(super) fn migrates(&mut self, at: Where, told: bool) {
        let qp = self.end(at);
        let Some(next) = qp.alternate else { return };
        qp.alternate = Some(core::mem::replace(&mut qp.path, next));
        qp.migration = Migration::Migrated;
        self.expect(
            at.0,
            Affiliated::Qp(at.1, vec![QpEvent::PathMigrated]),
            told,
        );
    }

    /// A packet of the peer comes in, who has migrated, or not. Both paths come from the same port, so that it is valid on
    /// either.
    fn sees(&mut self, at: Where, peer: Migration) {
        let asks = peer == Migration::Migrated;
        let qp = self.end(at);
        match qp.migration {
            Migration::Rearm if !asks => qp.migration = Migration::Armed,
            Migration::Armed if asks => self.migrates(at, true),
            _ => {}
        }
    }

    /// A packet of another connection comes in, and is dropped: after its path was looked at, or before.
    pub(super) fn strays(&self, (side, place): Where) -> Result<(), Open> {
        let there = self.sides[side].qps.get(place);
        match there.is_some_and(|qp| qp.migration != Migration::Migrated) {
            true => Err(Open(
                "a packet of another connection, and a path to be armed",
            )),
            false => Ok(()),
        }
    }

    /// Nobody answers by the path in use.
    pub(super) fn tries_the_other_path(&mut self, at: Where) -> bool {
        let armed = self.end(at).migration == Migration::Armed;
        if armed {
            self.migrates(at, true);
        }
        armed
    }

    /// One request goes to the peer, and what answers it back: `false` if nobody ever answers.
    pub(super) fn carried(&mut self, at: Where, peer: Where, answered: bool) -> Result<bool, Open> {
        let mut came = false;
        loop {
            let own = self.end(at).clone();
            let there = self.passes(own.path, at.0, peer.0);
            came |= there;
            if there {
                self.sees(peer, own.migration);
                if !answered {
                    return Ok(true);
                }
                let now = self.end(peer).clone();
                if self.passes(now.path, peer.0, at.0) {
                    self.sees(at, now.migration);
                    return Ok(true);
                }
            } else if !answered {
                return Ok(false);
            }
            if !self.tries_the_other_path(at) {
                // What came and was not answered is done, and fails.
                return match came {
                    false => Ok(false),
                    true => Err(Open("done, and nobody says so")),
                };
            }
        }
    }
}
