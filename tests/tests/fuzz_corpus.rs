//! What the fuzz targets have found worth keeping, once more: each input of the corpus through the body of its target.

use openib_tests::hostile;
use platform_sim::fabric::Topology;
use std::path::Path;

/// A target's name, and its body.
type Target = (&'static str, fn(&[u8]));

/// Every target of `fuzz/fuzz_targets`, and what it calls.
const TARGETS: [Target; 8] = [
    ("driver", hostile::drive_untrusted),
    ("hca_entries", |bytes| {
        hca_abi::read_untrusted(bytes);
        mthca_hw::read_untrusted(bytes);
    }),
    ("ipoib", core_ib::wire::ipoib::read_untrusted),
    ("mad", |bytes| {
        ib_mad::read_untrusted(bytes);
        ib_cm::read_untrusted(bytes);
    }),
    ("model", platform_sim::serve::drive_untrusted),
    ("packet", core_ib::wire::packet::read_untrusted),
    ("topology", |bytes| {
        drop(Topology::parse(&String::from_utf8_lossy(bytes)));
    }),
    ("vfio_user", platform_sim::serve::read_untrusted),
];

/// Names in a folder of `fuzz`, without their extensions, in order.
fn names(folder: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz")
        .join(folder);
    let entries = path
        .read_dir()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn every_target_has_a_corpus_and_no_other_has() {
    let targets = TARGETS.map(|(name, _)| name);
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
}

#[test]
fn no_input_of_the_corpus_finds_anything_any_more() {
    for (name, target) in TARGETS {
        let folder = format!("corpus/{name}");
        let inputs = names(&folder);
        assert!(!inputs.is_empty(), "{folder}");
        for input in inputs {
            let path = format!("{}/../fuzz/{folder}/{input}", env!("CARGO_MANIFEST_DIR"));
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            println!("{folder}/{input}"); // shown if it panics
            target(&bytes);
        }
    }
}
