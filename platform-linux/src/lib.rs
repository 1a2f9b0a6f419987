//! The Rust side of the Linux kernel binding of this InfiniBand stack.
#![no_std]
