//! The platform contract in a process of Linux: the HCA is reached without a kernel module of ours, by way of VFIO or of
//! `uio_pci_generic`. Takes the rights of an administrator.
//!
//! | file | what |
//! | --- | --- |
//! | `machine` | the platform contract, over either way |
//! | `vfio`, `uio` | the two ways to a device |
//! | `pci` | the device as sysfs shows it; which driver it is bound to, before and after |
//! | `arena`, `pages` | DMA memory: what is free, and where the device sees it |
//! | `registers`, `sync`, `interrupts` | a mapped BAR; locks and waiting; threads that wait for interrupts |
//!
//! VFIO is the way to choose: an IOMMU keeps the device to the memory that it was lent, there are messages, and whatever
//! becomes of the process, the kernel ends its DMA. With `uio_pci_generic` nothing of this is so; it is there for machines
//! without an IOMMU. The program `openib-user` (feature `program`) is an IPoIB interface over either.
//!
//! Only x86-64: elsewhere loads and stores would need barriers that are not written.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod arena;
mod error;
mod interrupts;
mod machine;
mod pages;
mod pci;
mod registers;
mod sync;
mod uio;
mod vfio;

pub use error::Error;
pub use machine::{Machine, Registers, Wanted, Way};
pub use pci::Slot;
pub use sync::{Completion, Mutual};
