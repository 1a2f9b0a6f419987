//! What a world leaves behind: alone in its process, since it counts the process's mappings.

use openib_tests::hostile::drive_untrusted;
use std::path::Path;

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

/// Whatever has become of its device: a fuzzer's inputs, some of which were found by a process that had no room for
/// another stack after many thousand lives. In some the machine ends while an interrupt waits for it, in some while it
/// handles one.
#[test]
fn a_machine_that_has_come_to_its_end_leaves_no_stack_behind() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/driver");
    let mut lives: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
        .collect();
    let first = [0x40, 0x02, 0x40, 0x02, 0x2d, 0, 0];
    lives.push(("the first one".into(), first.into()));
    assert!(lives.len() > 20);
    for (name, bytes) in lives {
        drive_untrusted(&bytes);
        let before = mappings();
        (0..4).for_each(|_| drive_untrusted(&bytes));
        let more = mappings().saturating_sub(before);
        assert!(more < 4, "{name}: {more} mappings more after 4 lives");
    }
}
