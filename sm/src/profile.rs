//! How large a subnet the manager can hold: every capacity by name.

use crate::SmError;

/// Capacities. All memory is taken at set-up; a table that overflows later is reported by the names here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Nodes: channel adapters, routers and switches. A node that vanished keeps its place until it is needed.
    pub nodes: u32,
    /// Ports: one for each port of an adapter, and one more than it has ports for every switch.
    pub ports: u32,
    /// Switches; at most 4096.
    pub switches: u32,
    /// Ports of the largest switch, at most 254.
    pub switch_ports: u32,
    /// Unicast LIDs 1 to this are given out; at most 0xBFFF. A row of every forwarding table.
    pub lids: u32,
    /// Port GUIDs whose LID is remembered, present or not.
    pub guids: u32,
    /// Multicast LIDs 0xC000 and up; at most 16383. Groups share them when there are more.
    pub mlids: u32,
    /// Multicast groups.
    pub groups: u32,
    /// Members of all groups together.
    pub members: u32,
    /// Service records.
    pub services: u32,
    /// Subscriptions to events.
    pub informs: u32,
    /// Events that wait to be forwarded to the slowest subscriber.
    pub notices: u32,
    /// Other subnet managers.
    pub managers: u32,
    /// SMPs in flight at most; the configuration may ask for fewer.
    pub window: u32,
    /// Answers of many records on their way at once, each to one requester.
    pub transfers: u32,
    /// Records in one such answer.
    pub records: u32,
    /// Answers of one datagram that wait to be sent; and as many again that wait for a multicast tree.
    pub replies: u32,
}

impl Profile {
    /// Enough for `hosts` adapter ports in a fat tree of 36-port switches, or in a handful of switches each with a
    /// few of them. Raise what is different; for a million hosts the entries are more than
    /// [`check`](Self::check) admits.
    pub const fn for_hosts(hosts: u32) -> Self {
        let switches = clamp(hosts / 4 + 20, 8, 4096);
        let end_ports = hosts.saturating_add(switches);
        Self {
            nodes: end_ports.saturating_add(8),
            ports: (switches * 37).saturating_add(hosts).saturating_add(16),
            switches,
            switch_ports: 36,
            lids: clamp(
                end_ports.saturating_add(end_ports / 4).saturating_add(64),
                128,
                0xbfff,
            ),
            guids: end_ports.saturating_mul(2),
            mlids: clamp(hosts.saturating_add(64), 64, 1024),
            groups: hosts.saturating_mul(2).saturating_add(32),
            members: hosts.saturating_mul(8).saturating_add(64),
            services: 256,
            informs: clamp(hosts / 4, 32, 1024),
            notices: 256,
            managers: 16,
            window: 128,
            transfers: 8,
            records: clamp(end_ports.saturating_mul(2), 512, 1 << 20),
            replies: clamp(hosts.saturating_mul(8), 128, 1 << 13),
        }
    }

    /// Names the first entry that is out of range.
    pub fn check(&self) -> Result<(), SmError> {
        let entries = [
            ("nodes", self.nodes, 1, 1 << 20),
            ("ports", self.ports, 1, 1 << 24),
            ("switches", self.switches, 1, 4096),
            ("switch_ports", self.switch_ports, 1, 254),
            ("lids", self.lids, 1, 0xbfff),
            ("guids", self.guids, 1, 1 << 20),
            ("mlids", self.mlids, 1, 16383),
            ("groups", self.groups, 1, 1 << 20),
            ("members", self.members, 1, 1 << 24),
            ("services", self.services, 1, 1 << 20),
            ("informs", self.informs, 1, 1 << 16),
            ("notices", self.notices, 1, 1 << 16),
            ("managers", self.managers, 1, 256),
            ("window", self.window, 1, 256),
            ("transfers", self.transfers, 1, 256),
            ("records", self.records, 1, 1 << 24),
            ("replies", self.replies, 1, 1 << 14),
        ];
        for (entry, found, min, max) in entries {
            if found < min || found > max {
                return Err(SmError::Profile {
                    entry,
                    found,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

const fn clamp(value: u32, min: u32, max: u32) -> u32 {
    if value < min {
        min
    } else if value > max {
        max
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_for_any_number_of_hosts_is_in_range() {
        for hosts in [0, 1, 2, 16, 256, 1024, 5184, 11664] {
            assert_eq!(Profile::for_hosts(hosts).check(), Ok(()), "{hosts} hosts");
        }
    }

    #[test]
    fn a_profile_for_more_hosts_than_there_can_be_is_refused_and_not_less_than_asked_for() {
        for hosts in [1 << 20, u32::MAX / 2, u32::MAX] {
            let refused = Profile::for_hosts(hosts).check();
            assert!(
                matches!(refused, Err(SmError::Profile { .. })),
                "{hosts} hosts"
            );
        }
    }

    #[test]
    fn an_entry_out_of_range_is_named() {
        let profile = Profile {
            mlids: 20000,
            ..Profile::for_hosts(4)
        };
        let error = profile.check().unwrap_err();
        assert!(matches!(
            error,
            SmError::Profile {
                entry: "mlids",
                found: 20000,
                ..
            }
        ));
    }
}
