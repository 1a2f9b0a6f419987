//! All of `platform-linux` as one static library, and what a library without an operating system needs.
#![no_std]

pub use platform_linux::entry::*;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    platform_linux::panic(info)
}
