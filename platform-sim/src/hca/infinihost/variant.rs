//! Which chip of the family with which firmware: what it says it is, and which of the two interfaces it speaks.
//! infinihost 1.1, 1.3.
//!
//! What differs by chip is a row of a table here; what differs by interface is decided where an object is made, and
//! each object knows its own form from then on.

use super::config::FirmwareVersion;
use hca_abi::infinihost::pci::DeviceId;

/// An HCA of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// MT23108.
    Tavor,
    /// MT25208 whose firmware is compatible to the MT23108's.
    ArbelCompat,
    /// MT25208 native, without memory of its own.
    Arbel,
    /// MT25204.
    Sinai,
    /// MT25204 under its older device number.
    SinaiOld,
}

/// The interface that a driver programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tavor's: tables in attached memory, queues fed by doorbells.
    T,
    /// Mem-free: tables in host pages behind an address space of the HCA's own, queues fed through records in memory.
    M,
}

/// How the chip sits in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// PCI-X.
    PciX,
    /// PCI Express.
    Express,
}

/// What is known of a variant.
pub struct Facts {
    /// Chip and name.
    pub name: &'static str,
    /// NodeDescription unless a configuration says otherwise.
    pub description: &'static str,
    /// PCI device number, also in NodeInfo.
    pub device: DeviceId,
    /// Revision ID, also hw_rev.
    pub revision: u8,
    /// The interface it speaks.
    pub mode: Mode,
    /// Where it sits.
    pub slot: Slot,
    /// Ports that it can have at most.
    pub ports: u8,
    /// Oldest firmware that no driver complains of.
    pub firmware: FirmwareVersion,
    /// What a board with it calls itself.
    pub board_id: &'static str,
}

const TAVOR: Facts = Facts {
    name: "InfiniHost MT23108",
    description: "MT23108 InfiniHost",
    device: DeviceId::TAVOR,
    revision: 0xa1,
    mode: Mode::T,
    slot: Slot::PciX,
    ports: 2,
    firmware: FirmwareVersion::new(3, 5, 0),
    board_id: "MT_0030000001",
};

const ARBEL_COMPAT: Facts = Facts {
    name: "InfiniHost III Ex MT25208 (MT23108 compatible)",
    description: "MT25208 InfiniHostEx",
    device: DeviceId::ARBEL_COMPAT,
    revision: 0xa0,
    slot: Slot::Express,
    firmware: FirmwareVersion::new(4, 8, 200),
    board_id: "MT_0150000001",
    ..TAVOR
};

const ARBEL: Facts = Facts {
    name: "InfiniHost III Ex MT25208",
    device: DeviceId::ARBEL,
    mode: Mode::M,
    firmware: FirmwareVersion::new(5, 3, 0),
    board_id: "MT_0200000001",
    ..ARBEL_COMPAT
};

const SINAI: Facts = Facts {
    name: "InfiniHost III Lx MT25204",
    description: "MT25204 InfiniHostLx",
    device: DeviceId::SINAI,
    revision: 0x20,
    ports: 1,
    firmware: FirmwareVersion::new(1, 2, 0),
    board_id: "MT_0230000001",
    ..ARBEL
};

const SINAI_OLD: Facts = Facts {
    device: DeviceId::SINAI_OLD,
    ..SINAI
};

impl Variant {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tavor,
        Self::ArbelCompat,
        Self::Arbel,
        Self::Sinai,
        Self::SinaiOld,
    ];

    /// Most ports that it can have.
    pub const fn max_ports(self) -> u8 {
        self.facts().ports
    }

    /// Chip and name.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    pub(super) const fn mode(self) -> Mode {
        self.facts().mode
    }

    pub(super) const fn facts(self) -> &'static Facts {
        match self {
            Self::Tavor => &TAVOR,
            Self::ArbelCompat => &ARBEL_COMPAT,
            Self::Arbel => &ARBEL,
            Self::Sinai => &SINAI,
            Self::SinaiOld => &SINAI_OLD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_has_its_published_number_and_interface() {
        let numbers = Variant::ALL.map(|variant| variant.facts().device.0);
        assert_eq!(numbers, [0x5a44, 0x6278, 0x6282, 0x6274, 0x5e8c]);
        let modes = Variant::ALL.map(Variant::mode);
        assert_eq!(modes, [Mode::T, Mode::T, Mode::M, Mode::M, Mode::M]);
        assert_eq!(Variant::ALL.map(Variant::max_ports), [2, 2, 2, 1, 1]);
    }
}
