//! A machine made of software: PCI, memory, interrupts, virtual time, InfiniHost device models and an InfiniBand
//! fabric.
//!
//! The rooms, each of which imports only from those below it:
//!
//! * `serve`: device models for virtual machines (vfio-user);
//! * [`hca`]: the device models, PCI functions that speak the language of `hca-abi`;
//! * `transport`: the engines behind every model (RC, UC, UD, the raw path of QP0 and QP1);
//! * `fabric`: links, switches, faults, capture: packets from LRH to VCRC;
//! * [`machine`]: memory, PCI, interrupts, scheduler, clock, and the traits between a PCI function and its host.
//!
//! Nothing here knows a driver or a protocol.

pub mod contract;
pub mod fabric;
pub mod hca;
pub mod machine;
pub mod serve;
pub mod transport;
