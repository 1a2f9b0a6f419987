//! Files of our own making, in both dialects, and what the builders build.

use super::build::{FatTree, back_to_back, fat_tree, line, ring, star};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The example of protocols 10.3.2.
const LONG: &str = r#"
vendid=0x1234
devid=0x10
sysimgguid=0x500003
switchguid=0x500000(500000)
Switch  4 "S-0000000000500000"      # "lab switch" base port 0 lid 1 lmc 0
[1]     "H-0000000000600000"[1](600001)     # "host a" lid 2 4xQDR
[2]     "H-0000000000600010"[1](600011)     # "host b" lid 3 4xQDR

vendid=0x1234
devid=0x20
caguid=0x600000
Ca      1 "H-0000000000600000"      # "host a"
[1](600001)     "S-0000000000500000"[1]     # lid 2 lmc 0 "lab switch" lid 1 4xQDR

caguid=0x600010
Ca      1 "H-0000000000600010"      # "host b"
[1](600011)     "S-0000000000500000"[2]     # lid 3 lmc 0 "lab switch" lid 1 4xQDR
"#;

const SHORT: &str = r#"
Switch 4 "sw"
[1] "ha"
[2] "hb"

Hca 1 "ha"
[1] "sw"[1] s=4

Hca 1 "hb"
[1] "sw"[2]
"#;

fn parse(text: &str) -> Topology {
    let parsed = Topology::parse(text).unwrap();
    assert_eq!(parsed.warnings, []);
    parsed.topology
}

fn problem(text: &str) -> (usize, Problem) {
    let error = Topology::parse(text).unwrap_err();
    (error.place.line, error.problem)
}

#[test]
fn the_long_example_reads_as_the_reference_says() {
    let topology = parse(LONG);
    let [switch, a, b] = &topology.nodes[..] else {
        panic!("{topology:?}")
    };
    assert_eq!(
        (switch.kind, switch.guid, switch.port_count()),
        (NodeKind::Switch, Guid(0x50_0000), 4)
    );
    assert_eq!(switch.description, "lab switch");
    assert_eq!((switch.vendor_id, switch.device_id), (0x1234, 0x10));
    assert_eq!(switch.system_image_guid, Some(Guid(0x50_0003)));
    assert_eq!(switch.ports[0].lid, Some(Lid(1)));
    assert!(!switch.enhanced_port0);
    assert_eq!(
        (a.kind, a.guid, a.device_id),
        (NodeKind::Ca, Guid(0x60_0000), 0x20)
    );
    assert_eq!(
        a.system_image_guid, None,
        "a setting is for the next node only"
    );
    assert_eq!((b.vendor_id, b.port_guid(1)), (0, Guid(0x60_0011)));
    assert_eq!(b.ports[1].lid, Some(Lid(3)));
    let cable = topology.cables[0];
    assert_eq!(cable.ends, [PortRef::new(0, 1), PortRef::new(1, 1)]);
    assert_eq!(
        (cable.width, cable.speed),
        (Some(LinkWidth::X4), Some(LinkSpeed::QDR))
    );
    assert_eq!(topology.cables.len(), 2);
    assert_eq!(topology.peer(PortRef::new(2, 1)), Some(PortRef::new(0, 2)));
}

#[test]
fn the_shorthand_says_the_same_cables_with_guids_counted() {
    let topology = parse(SHORT);
    let guids: Vec<_> = topology.nodes.iter().map(|node| node.guid.0).collect();
    assert_eq!(guids, [0x20_0000, 0x10_0000, 0x10_0002]);
    assert_eq!(topology.nodes[1].port_guid(1), Guid(0x10_0001));
    assert_eq!(topology.cables.len(), 2);
    assert_eq!(topology.nodes[1].ports[1].speeds, Some(LinkSpeed::QDR));
    assert_eq!(topology.nodes[2].ports[1].speeds, None);
}

#[test]
fn settings_aliases_prefixes_and_counters_are_obeyed() {
    let topology = parse(
        "width=2\nspeed=3\nextspeed=1\nswitchguid+0x10\nmodule=\"m1-\"\nSwitch 8 \"sw\"\n\
         @[8] \"up\"\n\nHca 2 \"h\"\n[2] \"@up\"\n[1] \"sw\" w=1\n",
    );
    assert_eq!(topology.nodes[0].id, "m1-sw");
    assert_eq!(topology.nodes[0].guid, Guid(0x20_0010));
    assert_eq!(topology.nodes[0].ports[3].widths, Some(LinkWidth::X4));
    assert_eq!(topology.nodes[0].ports[3].speeds, Some(LinkSpeed(0x13)));
    assert_eq!(topology.peer(PortRef::new(1, 2)), Some(PortRef::new(0, 8)));
    assert_eq!(topology.peer(PortRef::new(1, 1)), Some(PortRef::new(0, 1)));
    assert_eq!(topology.nodes[1].ports[1].widths, Some(LinkWidth::X1));
}

#[test]
fn another_file_is_read_where_it_is_included() {
    let mut include = |name: &str| match name {
        "hosts" => Ok("Hca 1 \"h\"\n[1] \"sw\"[2]\n".to_owned()),
        other => Err(format!("no {other}")),
    };
    let text = "include \"hosts\"\nSwitch 2 \"sw\"\n";
    let parsed = Topology::parse_with(text, &mut include).unwrap();
    assert_eq!(parsed.topology.cables.len(), 1);
    let error = Topology::parse_with("\ninclude \"x\"\n", &mut include).unwrap_err();
    assert_eq!(error.to_string(), "line 2: cannot include \"x\": no x");
    let mut endless = |_: &str| Ok("include \"me\"\n".to_owned());
    assert!(Topology::parse_with("include \"me\"\n", &mut endless).is_err());
}

#[test]
fn lines_of_no_known_kind_are_counted_by_kind() {
    let text = "query failed: timed out\nNon-Chassis Nodes\nfoo=3\ndo Link all\n\
                Switch 2 \"sw\" # \"s\"\n[1] \"gone\"[1] # \"x\" lid 3 4xSDR\n";
    let parsed = Topology::parse(text).unwrap();
    let warnings: Vec<_> = parsed
        .warnings
        .iter()
        .map(|w| (w.kind, w.count, w.place.line))
        .collect();
    assert_eq!(
        warnings,
        [
            (WarningKind::UnknownLine, 3, 1),
            (WarningKind::Command, 1, 4),
            (WarningKind::UnknownNode, 1, 6),
        ]
    );
    assert_eq!(parsed.topology.cables, []);
}

#[test]
fn the_lesser_rate_counts_where_the_ends_disagree() {
    let text = "Switch 2 \"a\"\n[1] \"b\"[1] # \"b\" lid 3 4xSDR\n\n\
                Switch 2 \"b\"\n[1] \"a\"[1] # \"a\" lid 6 1xSDR\n";
    let parsed = Topology::parse(text).unwrap();
    assert_eq!(parsed.topology.cables[0].width, Some(LinkWidth::X1));
    assert_eq!(parsed.warnings[0].kind, WarningKind::RateDiffers);
}

#[test]
fn a_file_that_cannot_mean_a_fabric_is_refused_with_line_and_reason() {
    let sw = || "sw".to_owned();
    let line = |line| Place { file: None, line };
    let twice = "Switch 2 \"sw\"\n\nSwitch 2 \"sw\"\n";
    assert_eq!(problem(twice), (3, Problem::DuplicateNode(sw(), line(1))));
    let beyond = "Switch 2 \"sw\"\n[3] \"h\"\n";
    assert_eq!(problem(beyond), (2, Problem::NoSuchPort(sw(), 3)));
    let far = "Switch 2 \"sw\"\n[1] \"h\"[2]\nHca 1 \"h\"\n";
    assert_eq!(problem(far), (2, Problem::NoSuchPort("h".to_owned(), 2)));
    let itself = "Switch 2 \"sw\"\n[1] \"sw\"[1]\n";
    assert_eq!(problem(itself), (2, Problem::SelfLoop(sw(), 1)));
    let forked = "Switch 3 \"sw\"\n[1] \"h\"\n[2] \"h\"\nHca 1 \"h\"\n";
    assert_eq!(
        problem(forked),
        (3, Problem::TwoCables("h".to_owned(), 1, line(2)))
    );
    let many = "Switch 255 \"sw\"\n";
    assert_eq!(problem(many), (1, Problem::PortCount("255".to_owned())));
    let bare = "Switch 4 sw\n";
    assert_eq!(problem(bare), (1, Problem::Name));
    let guid = "caguid=0xzz\n";
    assert_eq!(problem(guid), (1, Problem::GuidText("0xzz".to_owned())));
}

#[test]
fn a_guid_is_somebody_s_and_nobody_else_s() {
    let line = |line| Place { file: None, line };
    let two = "caguid=0x10\nCa 1 \"a\"\n\nSwitch 2 \"S-0000000000000010\"\n";
    assert_eq!(
        problem(two),
        (4, Problem::DuplicateGuid(Guid(0x10), line(2)))
    );
    for none in [0, u64::MAX] {
        let text = format!("\ncaguid={none:#x}\nCa 1 \"a\"\n");
        assert_eq!(problem(&text), (3, Problem::NoGuid(Guid(none))));
    }
    let ports = "Switch 2 \"sw\"\n[1] \"a\"\n[2] \"b\"\n\
                 caguid=0x10\nCa 1 \"a\"\n[1](13)\ncaguid=0x12\nCa 1 \"b\"\n";
    assert_eq!(
        problem(ports),
        (8, Problem::DuplicatePortGuid(Guid(0x13), line(5)))
    );
    // Nobody asks a port that no cable is in, and a port may be called as its node is.
    parse("caguid=0x10\nCa 2 \"a\"\n[1](10)\ncaguid=0x11\nCa 2 \"b\"\n[1](11)\n");
}

#[test]
fn a_fault_that_shows_at_the_end_is_told_with_the_file_that_it_is_in() {
    let mut include = |_: &str| Ok("\nHca 1 \"h\"\n[1] \"sw\"[9]\n".to_owned());
    let error = Topology::parse_with("Switch 2 \"sw\"\ninclude \"hosts\"\n", &mut include);
    assert_eq!(
        error.unwrap_err().to_string(),
        "line 3 of \"hosts\": node \"sw\" has no port 9"
    );
    let text = "include \"hosts\"\nHca 1 \"h\"\n";
    let error = Topology::parse_with(text, &mut include).unwrap_err();
    let told = "line 2: node \"h\" is already described on line 2 of \"hosts\"";
    assert_eq!(error.to_string(), told);
    let mut wrong = |_: &str| Ok("\nSwitch 300 \"sw\"\n".to_owned());
    let error = Topology::parse_with("\ninclude \"x\"\n", &mut wrong).unwrap_err();
    let told = "line 2: cannot include \"x\": line 2: a node has 1 to 254 ports, not \"300\"";
    assert_eq!(error.to_string(), told);
}

#[test]
fn a_file_that_is_not_there_is_told_without_a_line() {
    let error = Topology::load(std::path::Path::new("/nonexistent")).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("cannot be read: No such file"), "{error}");
}

#[test]
fn a_switch_may_be_linked_to_itself_by_two_ports() {
    let text = "Switch 4 \"sw\"\n[1] \"sw\"[2]\n[2] \"sw\"[1]\n";
    assert_eq!(
        parse(text).cables,
        [CableSpec::new(PortRef::new(0, 1), PortRef::new(0, 2))]
    );
}

#[test]
fn blanks_and_hashes_inside_a_name_stay() {
    let text = "Ca 1 \"H#1\" # \"MT4129   a\"\n[1] \"S#1\"[1] # lid 3 lmc 2 \"s # 2\" lid 5 4xEDR\n\n\
                Switch 1 \"S#1\"\n";
    let topology = parse(text);
    assert_eq!(topology.nodes[0].description, "MT4129   a");
    assert_eq!(topology.cables[0].speed, Some(LinkSpeed::EDR));
    assert_eq!(
        (
            topology.nodes[0].ports[1].lid,
            topology.nodes[0].ports[1].lmc
        ),
        (Some(Lid(3)), 2)
    );
}

fn counts(topology: &Topology) -> (usize, usize, usize) {
    (
        topology.of_kind(NodeKind::Ca).count(),
        topology.of_kind(NodeKind::Switch).count(),
        topology.cables.len(),
    )
}

fn fat(radix: u8, levels: u8, parts: u8) -> Topology {
    fat_tree(FatTree {
        radix,
        levels,
        parts,
    })
    .unwrap()
}

#[test]
fn builders_build_the_shapes_that_they_are_named_after() {
    assert_eq!(counts(&back_to_back()), (2, 0, 1));
    assert_eq!(counts(&star(5)), (5, 1, 5));
    assert_eq!(counts(&line(3, 2)), (6, 3, 8));
    assert_eq!(counts(&ring(3, 2)), (6, 3, 9));
    assert_eq!(counts(&fat(36, 2, 6)), (108, 9, 216));
    assert_eq!(counts(&fat(36, 3, 3)), (972, 144, 2916));
    assert_eq!(counts(&fat(4, 3, 4)), (16, 20, 48));
    assert_eq!(
        fat_tree(FatTree {
            radix: 5,
            levels: 2,
            parts: 2
        }),
        None
    );
    assert_eq!(
        fat_tree(FatTree {
            radix: 4,
            levels: 2,
            parts: 5
        }),
        None
    );
}

/// Each port has at most one cable, each cable two different ports that exist, ids and GUIDs are unique.
fn is_sound(topology: &Topology) {
    let mut seen = BTreeSet::new();
    for end in topology.cables.iter().flat_map(|cable| cable.ends) {
        assert!(seen.insert(end), "{end:?} has two cables");
        assert!(end.port >= 1 && end.port <= topology.nodes[end.node].port_count());
    }
    let ids: BTreeSet<_> = topology.nodes.iter().map(|node| &node.id).collect();
    let guids: BTreeSet<_> = topology.nodes.iter().map(|node| node.guid).collect();
    assert_eq!(
        (ids.len(), guids.len()),
        (topology.nodes.len(), topology.nodes.len())
    );
}

proptest! {
    #[test]
    fn what_is_built_is_sound_and_reads_back_as_it_was_written(
        which in 0..4, size in 1..6_u8, hosts in 0..4_u8,
    ) {
        let topology = match which {
            0 => star(size),
            1 => line(size.into(), hosts),
            2 => ring(size.into(), hosts),
            _ => fat(6, 2 + hosts % 2, size),
        };
        is_sound(&topology);
        let text = topology.to_string();
        let again = parse(&text);
        is_sound(&again);
        prop_assert_eq!(counts(&again), counts(&topology));
        prop_assert_eq!(parse(&again.to_string()), again.clone(), "a fixed point of writing");
        for cable in &topology.cables {
            let [a, b] = cable.ends.map(|end| {
                let node = again.node(&topology.nodes[end.node].id).unwrap();
                PortRef::new(node, end.port)
            });
            prop_assert_eq!(again.peer(a), Some(b));
        }
        for node in &topology.nodes {
            let read = &again.nodes[again.node(&node.id).unwrap()];
            prop_assert_eq!((read.guid, &read.description), (node.guid, &node.description));
        }
    }

    #[test]
    fn no_text_whatever_upsets_the_reader(
        lines in prop::collection::vec(
            prop_oneof![
                "\\PC*",
                "(Switch|Hca|Ca|Rt) [0-9]{0,3} \"[a-c]\"( # \"[a-z ]*\" lid [0-9]{0,6})?",
                "\\[[0-9]{0,3}\\](\\([0-9a-f]{0,17}\\))? \"@?[a-d]\"(\\[[0-9]{0,3}\\])?( [wse]=[0-9]{0,3})?( # .*)?",
                "@\\[[0-9]\\] \"[a-d]\"",
                "(vendid|devid|caguid|switchguid|width|speed|extspeed)[=+](0x)?[0-9a-f]{0,17}",
            ],
            0..20,
        ),
    ) {
        if let Ok(parsed) = Topology::parse(&lines.join("\n")) {
            let text = parsed.topology.to_string();
            Topology::parse(&text).unwrap();
        }
    }
}
