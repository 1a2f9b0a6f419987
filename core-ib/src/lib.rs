//! InfiniBand verbs, wire formats and the platform contract: the hardware-agnostic core of an InfiniBand stack.
#![no_std]
