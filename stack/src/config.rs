//! What a host is to be.

use core_ib::PKey;
use ib_mad::SaConfig;

/// A host. `Config::default()` has one IP interface on port 1, in the default partition, and no subnet manager.
#[derive(Clone, Copy, Debug)]
pub struct Config<'c> {
    /// The node description that others see, at most 64 bytes; what is more is cut off, whole characters. Empty: the HCA's own.
    pub description: &'c str,
    /// IP interfaces; at most [`MAX_INTERFACES`](crate::MAX_INTERFACES).
    pub interfaces: &'c [InterfaceConfig],
    /// The subnet manager on this host, if there is to be one.
    pub subnet_manager: Option<SubnetManager<'c>>,
    /// Times of the SA client.
    pub sa: SaConfig,
    /// Completion vector of the special QPs.
    pub mad_vector: u16,
    /// The communication manager, if there is to be one: on every port.
    pub cm: Option<CmConfig>,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            description: "",
            interfaces: &[InterfaceConfig::DEFAULT],
            subnet_manager: None,
            sa: SaConfig::DEFAULT,
            mad_vector: 0,
            cm: None,
        }
    }
}

/// Which half of IPoIB an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Raw IP packets; ARP and neighbour discovery are done here.
    Ip,
    /// Frames with a 20-byte destination; the IP stack above resolves.
    Link,
}

/// One IP interface.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceConfig {
    /// Port, 1 or 2.
    pub port: u8,
    /// Partition.
    pub p_key: PKey,
    /// Which half.
    pub kind: InterfaceKind,
    /// Capacities and times.
    pub profile: ipoib::Profile,
}

impl InterfaceConfig {
    /// Port 1, the default partition, raw IP packets.
    pub const DEFAULT: Self = Self {
        port: 1,
        p_key: PKey::DEFAULT,
        kind: InterfaceKind::Ip,
        profile: ipoib::Profile::DEFAULT,
    };
}

/// A communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// How much it holds.
    pub profile: ib_cm::Profile,
    /// Where its IDs begin: another number each time that the host starts, so that peers do not take new connections for
    /// old ones.
    pub seed: u32,
}

impl CmConfig {
    /// As many connections as [`ib_cm::Profile::DEFAULT`] says.
    pub const fn new(seed: u32) -> Self {
        Self {
            profile: ib_cm::Profile::DEFAULT,
            seed,
        }
    }
}

/// A subnet manager.
#[derive(Clone, Copy, Debug)]
pub struct SubnetManager<'c> {
    /// The port that it manages from.
    pub port: u8,
    /// How large a subnet it holds.
    pub profile: ib_sm::Profile,
    /// What the subnet is to look like. The agents in it are replaced.
    pub config: ib_sm::Config<'c>,
}
