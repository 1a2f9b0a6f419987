//! The program as its user sees it: what it says, what it exits with, and what becomes of files.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // It is there from an earlier run, or it is not.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn simulator(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openib-sim"));
    command.current_dir(folder).args(words.split_whitespace());
    command
}

fn run(folder: &Path, words: &str) -> Output {
    simulator(folder, words).output().unwrap()
}

/// What it says and exits with when it is refused.
fn refused(folder: &Path, words: &str) -> (Option<i32>, String) {
    let output = run(folder, words);
    assert_eq!(output.stdout, [], "{words}: it began");
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

/// Packets of a capture that ends where its last packet ends.
fn packets(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[24..];
    let mut count = 0;
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        rest = &rest[16 + length..];
        count += 1;
    }
    count
}

#[test]
fn an_option_that_cannot_be_is_refused_before_anything_runs() {
    let here = folder("options");
    for (words, because) in [
        ("demo --loss 101", "not a number from 0 to 100"),
        ("demo --loss nan", "not a number from 0 to 100"),
        ("demo --loss inf", "not a number from 0 to 100"),
        ("demo --mib 0", "not in 1..=65536"),
        ("demo --mib 17592186044416", "not in 1..=65536"),
        ("demo --hosts 1", "not in 2..=35"),
        ("demo --hosts 3 --topology f", "cannot be used with"),
        ("demo --tun --mib 3", "cannot be used with"),
        ("demo --tun --drawing f", "cannot be used with"),
        (
            "demo --tun --flap inf -- true",
            "not a number from 0 to 86400",
        ),
        (
            "demo --tun --flap 1e300 -- true",
            "not a number from 0 to 86400",
        ),
        ("demo --tun --flap 1", "required arguments"),
        ("demo --flap 1", "required arguments"),
        ("demo --pcap-all", "required arguments"),
    ] {
        let (code, said) = refused(&here, words);
        assert_eq!(code, Some(2), "{words}");
        assert!(said.contains(because), "{words}: {said}");
    }
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0);
}

#[test]
fn a_file_that_cannot_be_is_refused_before_anything_runs_and_no_other_is_touched() {
    let here = folder("files");
    let write = |name: &str, text: &str| std::fs::write(here.join(name), text).unwrap();
    write("old", "old");
    write("broken", "\nSwitch 300 \"s\"\n");
    write("two", "Ca 1 \"H1\"\n[1] \"H2\"[1]\nCa 1 \"H2\"\n");
    write("large", "Ca 254 \"H1\"\n[1] \"H2\"[1]\nCa 1 \"H2\"\n");
    write(
        "apart",
        "Ca 1 \"H1\"\n[1] \"S\"[1]\nCa 1 \"H2\"\n[1] \"S\"[2]\nSwitch 3 \"S\"\nCa 2 \"H3\"\n",
    );
    for (words, said) in [
        (
            "demo --pcap old --topology nothing",
            "error: nothing: cannot be read: No such file or directory (os error 2)\n",
        ),
        (
            "demo --pcap old --topology broken",
            "error: broken: line 2: a node has 1 to 254 ports, not \"300\"\n",
        ),
        (
            "demo --pcap old --topology large",
            "error: large: a demonstration takes two hosts; of 2 channel adapters 1 can be one: an InfiniHost has 1 or 2 \
             ports\n",
        ),
        (
            "demo --pcap old --topology apart",
            "error: apart: no cable joins \"H3\" to \"H1\", the host of the subnet manager\n",
        ),
        (
            "demo --pcap old --drawing nowhere/f.svg",
            "error: nowhere/f.svg: No such file or directory (os error 2)\n",
        ),
        (
            "demo --pcap old --drawing ./old",
            "error: ./old: --pcap and --drawing are one file\n",
        ),
        (
            "demo --pcap ./two --topology two",
            "error: ./two: --topology and --pcap are one file\n",
        ),
        (
            "demo --pcap nowhere/f",
            "error: nowhere/f: No such file or directory (os error 2)\n",
        ),
    ] {
        assert_eq!(refused(&here, words), (Some(1), said.into()), "{words}");
        assert_eq!(std::fs::read(here.join("old")).unwrap(), b"old", "{words}");
    }
}

#[test]
fn a_run_that_fails_leaves_a_whole_capture_with_what_was_lost_and_a_drawing() {
    let here = folder("failed");
    let output = run(&here, "demo --loss 100 --pcap lost.pcap --drawing lost.svg");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said == "error: TCP, 4 MiB, host-1 to host-2: 0 of 4194304 bytes arrived\n",
        "{said}"
    );
    let lost = packets(&here.join("lost.pcap"));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.contains(&format!("capture: {lost} packets in lost.pcap\n")),
        "{told}"
    );
    assert!(here.join("lost.svg").metadata().unwrap().len() > 1000);
    let arp = |bytes: &[u8]| bytes.windows(8).filter(|eight| *eight == ARP).count();
    let capture = std::fs::read(here.join("lost.pcap")).unwrap();
    assert!(arp(&capture) >= 2, "the requests that nobody heard");
}

/// Ethertype of ARP, IPoIB's reserved field, hardware type 32, protocol IPv4.
const ARP: [u8; 8] = [0x08, 0x06, 0, 0, 0, 0x20, 0x08, 0x00];

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let here = folder("pipe");
    let mut command = simulator(&here, "demo --verbose --pcap f.pcap");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("A fabric of 2 hosts"), "{line}");
    drop(stdout);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), &*said), (Some(0), ""));
    packets(&here.join("f.pcap"));
}

#[test]
fn a_full_disk_behind_the_standard_output_is_an_error_of_one_line() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = simulator(&folder("full"), "demo");
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "error: the standard output: no storage space\n");
}

#[test]
fn a_signal_ends_it_with_its_number_and_a_whole_capture() {
    // It stays ignored where it was, as under nohup.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:\t"));
    let no_hup = u64::from_str_radix(ignored.unwrap(), 16).unwrap() & 1 != 0;
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3)] {
        if number == 1 && no_hup {
            continue;
        }
        let here = folder(&format!("signal-{signal}"));
        let mut command = simulator(&here, "demo --mib 60000 --pcap f.pcap");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ping over IPv6") {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0);
        }
        let id = child.id().to_string();
        let sent = Command::new("kill")
            .args(["-s", signal, &id])
            .status()
            .unwrap();
        assert!(sent.success());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(said, format!("ended by SIG{signal}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(128 + number));
        assert!(packets(&here.join("f.pcap")) > 50);
    }
}

#[test]
fn two_hosts_at_the_ends_of_thirty_switches_hear_each_other() {
    let here = folder("line");
    let mut text = String::new();
    for index in 0..30 {
        let next = index + 1;
        text += &format!("Switch 3 \"S{index}\"\n[1] \"S{next}\"[2]\n");
    }
    text += "Switch 3 \"S30\"\n\nCa 1 \"H1\"\n[1] \"S0\"[3]\nCa 1 \"H2\"\n[1] \"S30\"[3]\n";
    std::fs::write(here.join("line"), text).unwrap();
    let output = run(&here, "demo --mib 1 --topology line");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*said), (Some(0), ""));
}

#[test]
fn a_host_on_its_second_port_is_captured_there() {
    let here = folder("second");
    let text = "Ca 2 \"H1\"\n[2] \"H2\"[2]\nCa 2 \"H2\"\n";
    std::fs::write(here.join("two"), text).unwrap();
    let output = run(&here, "demo --mib 1 --topology two --pcap f.pcap");
    assert_eq!(output.status.code(), Some(0));
    let capture = std::fs::read(here.join("f.pcap")).unwrap();
    let arp = capture.windows(8).filter(|eight| *eight == ARP).count();
    assert!(arp >= 2, "{arp}");
    assert!(packets(&here.join("f.pcap")) > 1000);
}
