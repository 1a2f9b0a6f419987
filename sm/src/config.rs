//! What the subnet is to look like: keys, times, partitions, quality of service.

use crate::SmError;
use core::time::Duration;
use core_ib::wire::mad::{MKey, SmKey, TimeCode, VlCode, VlWeight};
use core_ib::{Gid, Guid, Mtu, PKey, QKey, Rate, Sl};
use ib_mad::{AgentId, Patience};

/// Everything a person may decide. [`Config::default`] is what the field is used to (protocols 9.2, 9.4, 9.8).
#[derive(Clone, Copy, Debug)]
pub struct Config<'c> {
    /// Upper half of every TransactionID of an SMP: the identity that the owner's MAD layer routes answers by.
    pub smi_agent: AgentId,
    /// The same for reports to subscribers.
    pub sa_agent: AgentId,
    /// Priority in the election, 0 to 15; the highest wins.
    pub priority: u8,
    /// Key that other managers must show, and that makes a requester trusted; 0 is none.
    pub sm_key: SmKey,
    /// Written into every port, and shown to it afterwards; 0 is none.
    pub m_key: MKey,
    /// Protection, 0 to 3. protocols 3.9.
    pub m_key_protect: u8,
    /// Seconds; 0 never expires.
    pub m_key_lease: u16,
    /// Upper half of all unicast GIDs.
    pub subnet_prefix: u64,
    /// Every adapter port gets 2^LMC LIDs; 0 to 7.
    pub lmc: u8,
    /// Service level on which the manager is reached.
    pub sm_sl: Sl,
    /// SubnetTimeOut of every port.
    pub subnet_timeout: TimeCode,
    /// PacketLifeTime of every path.
    pub packet_lifetime: TimeCode,
    /// No link uses more data virtual lanes.
    pub max_op_vls: VlCode,
    /// No link uses a larger MTU.
    pub max_mtu: Mtu,
    /// Head-of-queue lifetime at ports between switches.
    pub hoq_life: TimeCode,
    /// The same at switch ports toward end ports.
    pub leaf_hoq_life: TimeCode,
    /// Drops in a row after which a virtual lane counts as stalled, 0 to 7.
    pub vl_stall_count: u8,
    /// Thresholds of traps 129 and 130, 0 to 15.
    pub error_threshold: u8,
    /// SMPs in flight at most.
    pub window: u16,
    /// How long to wait for the answer to an SMP, and how often to ask again.
    pub patience: Patience,
    /// The same for a report to a subscriber.
    pub report_patience: Patience,
    /// The same for the acknowledgement of a segment of a long answer.
    pub rmpp_patience: Patience,
    /// Time between light sweeps.
    pub sweep_interval: Duration,
    /// Time between two looks at the master.
    pub poll_interval: Duration,
    /// Looks in a row without an answer after which a master counts as gone.
    pub poll_retries: u8,
    /// How long changes of multicast groups are gathered before they are written into the switches.
    pub multicast_delay: Duration,
    /// Reach nodes by their LIDs once the forwarding tables are written, and by directed routes only before.
    pub lid_routed: bool,
    /// Partitions beside the default one; or with it, to change its membership.
    pub partitions: &'c [Partition<'c>],
    /// Tables of virtual lanes to write into every port; none leaves them as they are.
    pub qos: Option<Qos>,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            smi_agent: AgentId::new(0),
            sa_agent: AgentId::new(0),
            priority: 0,
            sm_key: SmKey(0),
            m_key: MKey(0),
            m_key_protect: 0,
            m_key_lease: 0,
            subnet_prefix: Gid::DEFAULT_PREFIX,
            lmc: 0,
            sm_sl: Sl::new(0),
            subnet_timeout: TimeCode(18),
            packet_lifetime: TimeCode(18),
            max_op_vls: VlCode(5),
            max_mtu: Mtu::Mtu4096,
            hoq_life: TimeCode(18),
            leaf_hoq_life: TimeCode(16),
            vl_stall_count: 7,
            error_threshold: 8,
            window: 32,
            patience: Patience::SMP,
            report_patience: Patience::QUERY,
            rmpp_patience: Patience::QUERY,
            sweep_interval: Duration::from_secs(10),
            poll_interval: Duration::from_secs(10),
            poll_retries: 4,
            multicast_delay: Duration::from_millis(2),
            lid_routed: true,
            partitions: &[],
            qos: None,
        }
    }
}

/// How a port belongs to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Talks to everybody in it.
    Full,
    /// Talks to full members only.
    Limited,
}

/// One partition: who is in it, and the IPoIB network over it.
#[derive(Clone, Copy, Debug)]
pub struct Partition<'c> {
    /// Partition number, 15 bits; 0x7FFF is the default partition.
    pub base: u16,
    /// Ports that are not named below; `None` keeps them out. In the default partition they are limited members at
    /// least, for they could not ask the administrator anything else.
    pub others: Option<Membership>,
    /// Ports by GUID, ascending.
    pub members: &'c [(Guid, Membership)],
    /// The broadcast group to be made at start; `None` for no IP over this partition.
    pub ipoib: Option<Broadcast>,
}

impl Partition<'_> {
    /// Everybody is a full member, and IP runs over it.
    pub const fn open(base: u16) -> Self {
        Self {
            base,
            others: Some(Membership::Full),
            members: &[],
            ipoib: Some(Broadcast::DEFAULT),
        }
    }

    /// The P_Key of `port`, if it is in.
    pub fn key_of(&self, port: Guid) -> Option<PKey> {
        let named = self.members.binary_search_by_key(&port, |member| member.0);
        let named = named.ok().and_then(|at| self.members.get(at));
        let membership = named.map(|member| member.1).or(self.others);
        let default = self.base == DEFAULT_BASE;
        Some(match membership {
            Some(Membership::Full) => PKey(self.base | 0x8000),
            Some(Membership::Limited) => PKey(self.base & 0x7fff),
            None if default => PKey(DEFAULT_BASE),
            None => return None,
        })
    }
}

/// Number of the default partition.
pub const DEFAULT_BASE: u16 = 0x7fff;

/// Parameters of an IPoIB broadcast group. protocols 9.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Q_Key of the network.
    pub q_key: QKey,
    /// Its MTU.
    pub mtu: Mtu,
    /// Its rate: slower ports cannot join. Adapters of the partition that are there when the group is made, at the start of
    /// the manager, are not shut out: the group is as slow as the slowest of them.
    pub rate: Rate,
    /// Its service level.
    pub sl: Sl,
    /// Scope of its groups: 2 is link-local.
    pub scope: u8,
}

impl Broadcast {
    /// What the field is used to.
    pub const DEFAULT: Self = Self {
        q_key: QKey(0x0b1b),
        mtu: Mtu::Mtu2048,
        rate: Rate::GBPS_10,
        sl: Sl::new(0),
        scope: 2,
    };

    /// MGID of the broadcast group of partition `base`: `ff1s:401b:pkey::ffff:ffff`.
    pub const fn mgid(&self, base: u16) -> Gid {
        let key = (base | 0x8000).to_be_bytes();
        let mut mgid = [0; 16];
        mgid[0] = 0xff;
        mgid[1] = 0x10 | (self.scope & 0x0f);
        (mgid[2], mgid[3]) = (0x40, 0x1b);
        (mgid[4], mgid[5]) = (key[0], key[1]);
        (mgid[12], mgid[13], mgid[14], mgid[15]) = (0xff, 0xff, 0xff, 0xff);
        Gid(mgid)
    }
}

/// Quality of service: the same in every port. protocols 3.8.7, 3.8.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Virtual lane of each service level; 15 drops. Lanes that a link has not are folded onto those it has.
    pub sl_to_vl: [u8; 16],
    /// High-priority entries; as many are written as the port takes, up to 16.
    pub high: [VlWeight; 16],
    /// Low-priority entries.
    pub low: [VlWeight; 16],
    /// VLHighLimit: units of 4096 bytes of high priority before one packet of low.
    pub high_limit: u8,
}

impl Config<'_> {
    /// Names the first value that is out of range.
    pub fn check(&self) -> Result<(), SmError> {
        let bounds = [
            ("priority", u64::from(self.priority), 0, 15),
            ("m_key_protect", self.m_key_protect.into(), 0, 3),
            ("lmc", self.lmc.into(), 0, 7),
            ("subnet_timeout", self.subnet_timeout.0.into(), 0, 31),
            ("packet_lifetime", self.packet_lifetime.0.into(), 0, 31),
            ("max_op_vls", self.max_op_vls.0.into(), 1, 5),
            ("hoq_life", self.hoq_life.0.into(), 0, 31),
            ("leaf_hoq_life", self.leaf_hoq_life.0.into(), 0, 31),
            ("vl_stall_count", self.vl_stall_count.into(), 0, 7),
            ("error_threshold", self.error_threshold.into(), 0, 15),
            ("window", self.window.into(), 1, 256),
            ("partitions", self.partitions.len() as u64, 0, 31),
        ];
        for (entry, found, min, max) in bounds {
            if found < min || found > max {
                return Err(SmError::Config { entry, found });
            }
        }
        for (at, partition) in self.partitions.iter().enumerate() {
            let base = partition.base;
            let earlier = self.partitions.iter().take(at);
            let twice = earlier.into_iter().any(|other| other.base == base);
            let sorted = partition.members.is_sorted_by(|a, b| a.0 < b.0);
            if twice || !sorted || base == 0 || base > DEFAULT_BASE {
                return Err(SmError::Partition { base });
            }
        }
        Ok(())
    }

    /// The P_Key table of `port`: the default partition first, then the others in their order.
    pub fn p_keys_of(&self, port: Guid) -> impl Iterator<Item = PKey> {
        let default = self
            .partitions
            .iter()
            .find(|partition| partition.base == DEFAULT_BASE);
        let first = default.map_or(Some(PKey::DEFAULT), |partition| partition.key_of(port));
        let others = self
            .partitions
            .iter()
            .filter(|partition| partition.base != DEFAULT_BASE);
        first
            .into_iter()
            .chain(others.filter_map(move |partition| partition.key_of(port)))
    }

    /// The key of `port` in the partition of `key`, if it is in.
    pub fn p_key_in(&self, port: Guid, key: PKey) -> Option<PKey> {
        self.p_keys_of(port).find(|own| own.base() == key.base())
    }

    /// The broadcast groups to be made: partition number and parameters.
    pub fn broadcasts(&self) -> impl Iterator<Item = (u16, Broadcast)> {
        let named = self
            .partitions
            .iter()
            .any(|partition| partition.base == DEFAULT_BASE);
        let default = (!named).then_some((DEFAULT_BASE, Broadcast::DEFAULT));
        let others = self.partitions.iter();
        let others = others.filter_map(|partition| Some((partition.base, partition.ipoib?)));
        default.into_iter().chain(others)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn without_partitions_everybody_is_a_full_member_of_the_default_one() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        let keys: Vec<_> = config.p_keys_of(Guid(7)).collect();
        assert_eq!(keys, [PKey(0xffff)]);
        let groups: Vec<_> = config
            .broadcasts()
            .map(|(base, group)| group.mgid(base))
            .collect();
        assert_eq!(std::format!("{}", groups[0]), "ff12:401b:ffff::ffff:ffff");
        assert_eq!(groups.len(), 1);
    }

    #[test]
    fn a_port_has_the_keys_of_the_partitions_it_is_in() {
        let members = [(Guid(3), Membership::Full), (Guid(7), Membership::Limited)];
        let partitions = [
            Partition {
                base: 0x0001,
                others: None,
                members: &members,
                ipoib: None,
            },
            Partition::open(0x0002),
        ];
        let config = Config {
            partitions: &partitions,
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
        let keys = |guid| {
            config
                .p_keys_of(Guid(guid))
                .map(|key| key.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(3), [0xffff, 0x8001, 0x8002]);
        assert_eq!(keys(7), [0xffff, 0x0001, 0x8002]);
        assert_eq!(keys(8), [0xffff, 0x8002]);
        assert_eq!(config.p_key_in(Guid(7), PKey(0x8001)), Some(PKey(0x0001)));
        assert_eq!(config.p_key_in(Guid(8), PKey(0x8001)), None);
    }

    #[test]
    fn a_port_kept_out_of_the_default_partition_is_a_limited_member() {
        let partitions = [Partition {
            others: None,
            ..Partition::open(DEFAULT_BASE)
        }];
        let config = Config {
            partitions: &partitions,
            ..Config::default()
        };
        assert_eq!(
            config.p_keys_of(Guid(1)).collect::<Vec<_>>(),
            [PKey(0x7fff)]
        );
    }

    #[test]
    fn unsorted_members_and_partitions_named_twice_are_refused() {
        let members = [(Guid(7), Membership::Full), (Guid(3), Membership::Full)];
        let unsorted = [Partition {
            members: &members,
            ..Partition::open(1)
        }];
        let twice = [Partition::open(5), Partition::open(5)];
        for (partitions, base) in [
            (&unsorted[..], 1),
            (&twice[..], 5),
            (&[Partition::open(0)], 0),
        ] {
            let config = Config {
                partitions,
                ..Config::default()
            };
            assert_eq!(config.check(), Err(SmError::Partition { base }));
        }
    }
}
