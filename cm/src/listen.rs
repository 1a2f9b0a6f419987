//! Listeners: who takes requests of which services. protocols 5.2.

use core_ib::wire::mad::ServiceId;

/// Names a listener of one [`Cm`](crate::Cm). Not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u32);

/// What to listen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The service, by ID.
    pub service_id: ServiceId,
    /// Which bits of the ID count; all, as a rule.
    pub mask: u64,
    /// REQs that may wait for the listener's answer; what is beyond is rejected for want of resources.
    pub backlog: u16,
    /// Comes back with each request.
    pub cookie: u64,
}

impl Listen {
    /// This service alone, sixteen waiting.
    pub const fn to(service_id: ServiceId, cookie: u64) -> Self {
        Self {
            service_id,
            mask: u64::MAX,
            backlog: 16,
            cookie,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) what: Listen,
}

impl Listener {
    pub(crate) const fn takes(&self, service_id: ServiceId) -> bool {
        (self.what.service_id.0 ^ service_id.0) & self.what.mask == 0
    }

    /// Would some ID be taken by both?
    pub(crate) const fn collides(&self, other: &Listen) -> bool {
        (self.what.service_id.0 ^ other.service_id.0) & self.what.mask & other.mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_listeners_collide_if_and_only_if_some_service_is_of_both() {
        let listener = |id, mask| Listener {
            id: ListenerId(1),
            what: Listen {
                mask,
                ..Listen::to(ServiceId(id), 0)
            },
        };
        for a in [0_u64, 0x11, 0x12, 0x21] {
            for b in [0_u64, 0x11, 0x12, 0x21] {
                for (m, n) in [(0xff, 0xff), (0xf0, 0xff), (0xf0, 0x0f), (0, 0xff)] {
                    let m = m | !0xff;
                    let n = n | !0xff;
                    let (one, two) = (listener(a, m), listener(b, n));
                    let both = |id| one.takes(ServiceId(id)) && two.takes(ServiceId(id));
                    assert_eq!(
                        one.collides(&two.what),
                        (0..256).any(both),
                        "{a:x} {b:x} {m:x} {n:x}"
                    );
                }
            }
        }
    }
}
