//! Why an HCA cannot be had.

use crate::Slot;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// See the module. Nothing has changed, but for what a message on the way says.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No InfiniHost on the PCI bus.
    NoHca,
    /// There are several: which one?
    Several(Vec<Slot>),
    /// This is none.
    NotAnHca(Slot),
    /// The device has no IOMMU, which VFIO is not without. Linux' mode without one is not used here.
    NoIommu(Slot),
    /// Its DMA goes through an IOMMU, which `uio_pci_generic` does not set up.
    BehindIommu(Slot),
    /// The driver did not take the device: see the kernel's log.
    NotTaken {
        /// The device.
        slot: Slot,
        /// The driver.
        driver: &'static str,
    },
    /// Somebody else has it.
    InUse(Slot),
    /// No huge pages: `/proc/sys/vm/nr_hugepages` says how many there are.
    NoHugePages {
        /// Bytes that were asked for.
        len: usize,
        /// Why.
        error: io::Error,
    },
    /// No place in the address space of the device is clear of other devices.
    NoPlace {
        /// Bytes that were asked for.
        len: usize,
    },
    /// The system does not say where memory lies: the right for it is missing.
    NoAddresses,
    /// Something about a file.
    File {
        /// Which.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
    /// Something about VFIO.
    Vfio {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        error: vfio_ioctls::VfioError,
    },
    /// The system refused something else.
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHca => f.write_str("there is no InfiniHost on the PCI bus"),
            Self::Several(slots) => {
                f.write_str("there are several HCAs, of which one is to be named:")?;
                slots.iter().try_for_each(|slot| write!(f, " {slot}"))
            }
            Self::NotAnHca(slot) => write!(f, "{slot} is not an InfiniHost"),
            Self::NoIommu(slot) => write!(
                f,
                "{slot} is not behind an IOMMU, and VFIO is not used without one; there is uio_pci_generic"
            ),
            Self::BehindIommu(slot) => write!(
                f,
                "{slot} is behind an IOMMU, which uio_pci_generic does not set up; there is VFIO"
            ),
            Self::NotTaken { slot, driver } => {
                write!(
                    f,
                    "{driver} did not take {slot}; the kernel's log may say why"
                )
            }
            Self::InUse(slot) => write!(f, "{slot} is in use by another process"),
            Self::NoHugePages { len, error } => write!(
                f,
                "no {len} bytes of huge pages ({error}); see /proc/sys/vm/nr_hugepages"
            ),
            Self::NoPlace { len } => {
                write!(f, "no place for {len} bytes where the device sees memory")
            }
            Self::NoAddresses => {
                f.write_str("the system does not say where memory lies: CAP_SYS_ADMIN is missing")
            }
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Vfio { what, error } => write!(f, "{what}: {error}"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}
