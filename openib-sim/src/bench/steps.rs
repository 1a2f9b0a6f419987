//! Counts instructions of a function by letting the processor stop after each (x86-64's trap flag).
//!
//! Exact and repeatable, whatever else the machine does; needs no counter of the processor, which virtual machines
//! often hide. The signal's handler counts; a region that spans nothing but a call of an empty function is the zero.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);
static HANDLER: Once = Once::new();

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn install() -> bool {
    const SIGTRAP: i32 = 5;
    HANDLER.call_once(|| {
        // SAFETY: the handler does one atomic addition.
        let done = unsafe {
            signal_hook::low_level::register(SIGTRAP, || {
                STEPS.fetch_add(1, Ordering::Relaxed);
            })
        };
        if let Err(error) = done {
            crate::complain!("instructions cannot be counted: {error}");
        }
    });
    HANDLER.is_completed()
}

/// Instructions of `f(arguments)`, from its first to its return. `f` is not inlined. `None` where they cannot be
/// counted.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn count<A>(f: fn(&mut A), arguments: &mut A) -> Option<u64> {
    fn nothing<A>(_: &mut A) {}
    if !install() {
        return None;
    }
    let empty = stepped(std::hint::black_box(nothing::<A>), arguments);
    let all = stepped(std::hint::black_box(f), arguments);
    // The empty function is one instruction: its return.
    (empty > 0).then(|| (all + 1).saturating_sub(empty))
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(never)]
fn stepped<A>(f: fn(&mut A), arguments: &mut A) -> u64 {
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag, whose signal is handled; the word pushed is popped. Without a red zone in the way:
    // this function calls, so the compiler keeps nothing below its stack pointer.
    unsafe {
        core::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
    }
    f(arguments);
    // SAFETY: clears the trap flag; the word pushed is popped.
    unsafe {
        core::arch::asm!("pushfq", "and qword ptr [rsp], -257", "popfq");
    }
    STEPS.load(Ordering::Relaxed)
}

/// Instructions cannot be counted here.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn count<A>(_: fn(&mut A), _: &mut A) -> Option<u64> {
    let _ = (&STEPS, &HANDLER);
    None
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::count;
    use core::arch::asm;

    #[test]
    fn a_function_of_six_instructions_and_a_return_is_seven() {
        fn six(_: &mut ()) {
            // SAFETY: does nothing.
            unsafe { asm!("nop", "nop", "nop", "nop", "nop", "nop", options(nostack)) };
        }
        fn two(_: &mut ()) {
            // SAFETY: does nothing.
            unsafe { asm!("nop", "nop", options(nostack)) };
        }
        // An unoptimised build adds its own, the same to both.
        let (six, two) = (count(six, &mut ()), count(two, &mut ()));
        assert_eq!(six.zip(two).map(|(six, two)| six - two), Some(4));
    }
}
