//! Device models for virtual machines: a server of the vfio-user protocol for any
//! [`PciFunction`](crate::machine::PciFunction).
//!
//! A [`Socket`] is a place where a virtual machine can plug in (QEMU: `-device vfio-user-pci`). Its world has the
//! function as a guest's: loads and stores come over the socket, on a thread of the server's own, and enter the world
//! through a [`Remote`](crate::machine::Remote); memory is what the client maps, interrupts are the files it gives.
//!
//! What a client sends is not believed: a message that is wrong is answered with an error number, and one that
//! cannot be answered ends its session. Nothing it sends stops the world, other clients, or the next client.

mod capabilities;
mod client;
mod connection;
mod dma;
mod guest;
mod irq;
mod message;
mod refusal;
mod server;
mod session;
mod untrusted;

#[cfg(test)]
mod tests;

pub use client::Usage;
pub use guest::drive_untrusted;
pub use message::Command;
pub use refusal::Refusal;
pub use server::{Server, Socket};
pub use session::Traffic;
pub use untrusted::read_untrusted;
