//! What a world leaves behind: alone in its process, since it counts the process's mappings.

use openib_tests::hostile::drive_untrusted;

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

/// A fuzzer's input, found by a process that had no room for another stack after 16 372 lives.
#[test]
fn a_machine_that_has_come_to_its_end_leaves_no_stack_behind() {
    let live = || drive_untrusted(&[0x40, 0x02, 0x40, 0x02, 0x2d, 0, 0]);
    live();
    let before = mappings();
    (0..20).for_each(|_| live());
    let more = mappings().saturating_sub(before);
    assert!(more < 20, "{more} mappings more after 20 lives");
}
