//! Measures, in a guest, what a load from a register and a store to a doorbell cost: `probe BAR0 BAR2`, files of sysfs.
//! Not part of any test: a program of its own, made by `cargo xtask vm bench` with nothing but the standard library.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Of the two files.
const LEN: usize = 0x10_0000;
/// HCR, whose words can be read at any time.
const REGISTER: usize = 0x8_0680;
/// CQ doorbell of the first page.
const DOORBELL: usize = 0x20;

unsafe extern "C" {
    fn mmap(at: *mut u8, len: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
}

fn map(path: &str) -> *mut u8 {
    let file = File::options().read(true).write(true).open(path);
    let file = file.unwrap_or_else(|error| panic!("{path}: {error}"));
    // SAFETY: a new mapping, shared, to be read and written, which nobody else of this program knows.
    let at = unsafe { mmap(std::ptr::null_mut(), LEN, 3, 1, file.as_raw_fd(), 0) };
    assert!(at as isize != -1, "{path} cannot be mapped");
    at
}

/// Microseconds of each of `count` calls.
fn time(count: u32, mut step: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| step());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, bar0, bar2] = &words[..] else {
        panic!("probe BAR0 BAR2");
    };
    let (registers, doorbells) = (map(bar0), map(bar2));
    // SAFETY: within the mapping, aligned; a device's register has any value.
    let load = || _ = unsafe { registers.add(REGISTER).cast::<u32>().read_volatile() };
    // SAFETY: as above.
    let store = || unsafe { doorbells.add(DOORBELL).cast::<u64>().write_volatile(0) };
    time(100, load);
    println!("{:.2} us a load", time(5000, load));
    // What a store costs its processor, when none is on its way; then what a stream of them does; the load waits for all.
    let mut alone = 0.0;
    for _ in 0..500 {
        alone += time(1, store);
        load();
    }
    println!("{:.2} us a doorbell alone", alone / 500.0);
    let batch = time(500, || {
        (0..16).for_each(|_| store());
        load();
    });
    println!("{batch:.2} us 16 doorbells and a load");
    let count = 50_000;
    let start = Instant::now();
    time(count, store);
    load();
    let stream = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    println!("{stream:.2} us a doorbell of many");
}
