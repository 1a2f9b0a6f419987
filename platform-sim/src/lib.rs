//! A machine made of software: PCI, memory, interrupts, virtual time, InfiniHost device models and an InfiniBand fabric.
