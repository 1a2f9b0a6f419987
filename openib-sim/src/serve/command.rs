//! What can be asked of a fabric while it runs: a line each, answered with a line that begins `ok` or `error`.

use super::plan::node;
use crate::peer::messages::MOST;
use crate::peer::pingpong::{self, Kind};
use crate::peer::play::Wish;
use crate::peer::rping::{LARGEST, SMALLEST};
use platform_sim::fabric::topology::{PortRef, Topology};
use platform_sim::fabric::{FaultHandle, Faults};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// A command. Names of nodes are those of the topology, or descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// `show`: use, ledger and holdings of each HCA.
    Show,
    /// `stop`.
    Stop,
    /// `down PORT NODE`, `up PORT NODE`: pulls the cable, or puts it back.
    Plug { port: PortRef, plugged: bool },
    /// `faults PORT NODE drop=N corrupt=N duplicate=N delay=N:MICROS`, in a million packets, of what leaves the port.
    Faults { port: PortRef, faults: Faults },
    /// `off NODE`, `on NODE`: switches a switch or a host of ours off and on. It comes back as from the factory.
    Power { node: usize, on: bool },
    /// `ping NODE ADDRESS [COUNT [SIZE]]`: a host of ours sends echo requests over IPoIB, with so many bytes of data.
    Ping {
        node: usize,
        peer: IpAddr,
        count: u16,
        size: u16,
    },
    /// `mode NODE datagram`, `mode NODE connected`: a host of ours starts again, with IPoIB in this mode.
    Mode { node: usize, connected: bool },
    /// `rping NODE`: a host of ours answers `rping` clients, and says what became of all its connections.
    /// `rping NODE ADDRESS [COUNT [SIZE]]`: it is one.
    Rping {
        node: usize,
        client: Option<(IpAddr, u32, u32)>,
    },
    /// `messages NODE`: what became of all connections for messages.
    /// `messages NODE COUNT SIZE`: a host of ours serves so many each way to `ucmatose`, or to `rdma_client` (1 of 16).
    /// `messages NODE COUNT SIZE ADDRESS`: it is the client, of `ucmatose` or `rdma_server`, to the end of it.
    Messages {
        node: usize,
        of: Option<((u32, u32), Option<IpAddr>)>,
    },
    /// `pingpong NODE`: what became of all pingpongs of a host of ours.
    /// `pingpong NODE rc|uc|ud|srq COUNT SIZE [ADDRESS]`: it serves the next client with so many messages of that size;
    /// or it is one, to the end of it.
    /// `atomics NODE COUNT [ADDRESS]`: the same with `ib_atomic_bw`; the memory of a server is to have
    /// so many additions of 1 in the end.
    /// `reads NODE COUNT SIZE [ADDRESS]`, `writes …`: the same with `ib_read_bw` and `ib_write_bw`.
    Pingpong { node: usize, wish: Option<Wish> },
}

impl Command {
    pub(super) fn read(line: &str, topology: &Topology) -> Result<Self, String> {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let port = || port(rest, topology);
        match word {
            "show" => Ok(Self::Show),
            "stop" => Ok(Self::Stop),
            "down" | "up" => {
                let (port, _) = port()?;
                let plugged = word == "up";
                Ok(Self::Plug { port, plugged })
            }
            "faults" => {
                let (port, settings) = port()?;
                let faults = faults(&settings)?;
                Ok(Self::Faults { port, faults })
            }
            "off" | "on" => Ok(Self::Power {
                node: node(topology, rest.trim())?,
                on: word == "on",
            }),
            "ping" => ping(rest, topology),
            "rping" => rping(rest, topology),
            "messages" => messages(rest, topology),
            "pingpong" => pingpong(rest, topology),
            "atomics" => perftest(Kind::Atomic, rest, topology),
            "reads" => perftest(Kind::Read, rest, topology),
            "writes" => perftest(Kind::Write, rest, topology),
            "mode" => {
                let (name, mode) = rest.trim().rsplit_once(' ').unwrap_or((rest.trim(), ""));
                let connected = match mode {
                    "connected" => true,
                    "datagram" => false,
                    _ => return Err("mode takes a host of ours, and datagram or connected".into()),
                };
                let node = node(topology, name)?;
                Ok(Self::Mode { node, connected })
            }
            _ => Err(format!(
                "\"{word}\" is none of show, stop, down, up, faults, off, on, ping, mode, rping, messages, pingpong, atomics, reads, writes"
            )),
        }
    }
}

fn ping(text: &str, topology: &Topology) -> Result<Command, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, address, count, size) = match words[..] {
        [name, address] => (name, address, "4", "56"),
        [name, address, count] => (name, address, count, "56"),
        [name, address, count, size] => (name, address, count, size),
        _ => return Err("ping takes a host of ours, an address, a count and a size".into()),
    };
    let (to, times, bytes) = (address.parse(), count.parse(), size.parse());
    Ok(Command::Ping {
        node: node(topology, name)?,
        peer: to.map_err(|_| format!("\"{address}\" is no IP address"))?,
        count: times.map_err(|_| format!("\"{count}\" is no count"))?,
        size: bytes.map_err(|_| format!("\"{size}\" is no size"))?,
    })
}

fn rping(text: &str, topology: &Topology) -> Result<Command, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, address, count, size) = match words[..] {
        [name] => {
            let node = node(topology, name)?;
            return Ok(Command::Rping { node, client: None });
        }
        [name, address] => (name, address, "10", "64"),
        [name, address, count] => (name, address, count, "64"),
        [name, address, count, size] => (name, address, count, size),
        _ => return Err("rping takes a host of ours, an address, a count and a size".into()),
    };
    let to = address.parse();
    let number = |text: &str| {
        let number = text.parse::<u32>();
        number.map_err(|_| format!("\"{text}\" is no number"))
    };
    let to = to.map_err(|_| format!("\"{address}\" is no IP address"))?;
    let bytes = number(size)?;
    if !(SMALLEST..=LARGEST).contains(&(bytes as usize)) {
        return Err(format!(
            "a size is {SMALLEST} to {LARGEST} bytes, and not {bytes}"
        ));
    }
    Ok(Command::Rping {
        node: node(topology, name)?,
        client: Some((to, number(count)?, bytes)),
    })
}

fn messages(text: &str, topology: &Topology) -> Result<Command, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, count, size, address) = match words[..] {
        [name] => {
            let node = node(topology, name)?;
            return Ok(Command::Messages { node, of: None });
        }
        [name, count, size] => (name, count, size, None),
        [name, count, size, address] => (name, count, size, Some(address)),
        _ => return Err("messages takes a host of ours, a count, a size and an address".into()),
    };
    let within = |text: &str, most: u32| {
        let number = text.parse::<u32>().ok();
        let number = number.filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| format!("\"{text}\" is none of 1 to {most}"))
    };
    let to = address.map(|address| {
        let to = address.parse::<IpAddr>();
        to.map_err(|_| format!("\"{address}\" is no IP address"))
    });
    let of = (within(count, MOST)?, within(size, LARGEST as u32)?);
    Ok(Command::Messages {
        node: node(topology, name)?,
        of: Some((of, to.transpose()?)),
    })
}

fn pingpong(text: &str, topology: &Topology) -> Result<Command, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, kind, count, size, address) = match words[..] {
        [name] => {
            let node = node(topology, name)?;
            return Ok(Command::Pingpong { node, wish: None });
        }
        [name, kind, count, size] => (name, kind, count, size, None),
        [name, kind, count, size, address] => (name, kind, count, size, Some(address)),
        _ => {
            return Err(
                "pingpong takes a host of ours, a kind, a count, a size, an address".into(),
            );
        }
    };
    let number = |text: &str| {
        let number = text.parse::<u32>().ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("\"{text}\" is no number"))
    };
    let to = address.map(|address| {
        let to = address.parse::<IpAddr>();
        to.map_err(|_| format!("\"{address}\" is no IP address"))
    });
    let kind = Kind::of(kind).ok_or_else(|| format!("\"{kind}\" is none of rc, uc, ud, srq"))?;
    let wish = Wish {
        kind,
        count: number(count)?,
        size: number(size)?,
        peer: to.transpose()?.map(|to| (to, pingpong::PORT).into()),
    };
    let largest = kind.largest();
    if wish.size > largest {
        return Err(format!("{largest} bytes are the most, and not {size}"));
    }
    let (node, wish) = (node(topology, name)?, Some(wish));
    Ok(Command::Pingpong { node, wish })
}

/// Work of one of perftest's programs: how often, of how many bytes unless they are atomics, and with whom.
fn perftest(kind: Kind, text: &str, topology: &Topology) -> Result<Command, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (name, count, size, address) = match (kind, &words[..]) {
        (Kind::Atomic, [name, count, rest @ ..]) if rest.len() < 2 => {
            (name, count, "8", rest.first())
        }
        (Kind::Read | Kind::Write, [name, count, size, rest @ ..]) if rest.len() < 2 => {
            (name, count, *size, rest.first())
        }
        (Kind::Atomic, _) => {
            return Err("atomics takes a host of ours, a count and an address".into());
        }
        _ => {
            let word = kind.name();
            return Err(format!(
                "{word} takes a host of ours, a count, a size and an address"
            ));
        }
    };
    let to = address.map(|address| {
        let to = address.parse::<IpAddr>();
        to.map_err(|_| format!("\"{address}\" is no IP address"))
    });
    let number = |text: &str| {
        let number = text.parse::<u32>();
        number.map_err(|_| format!("\"{text}\" is no number"))
    };
    let wish = Wish {
        kind,
        count: number(count)?,
        size: number(size)?,
        peer: to.transpose()?.map(|to| (to, pingpong::PORT).into()),
    };
    let largest = kind.largest();
    if wish.size == 0 || wish.size > largest {
        return Err(format!("1 to {largest} bytes, and not {size}"));
    }
    let (node, wish) = (node(topology, name)?, Some(wish));
    Ok(Command::Pingpong { node, wish })
}

/// A port number, a node, and the settings behind them.
fn port(text: &str, topology: &Topology) -> Result<(PortRef, Vec<(String, String)>), String> {
    let (number, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let number: u8 = number
        .parse()
        .map_err(|_| format!("\"{number}\" is no port number"))?;
    let mut settings = Vec::new();
    let mut name = Vec::new();
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some((key, value)) => settings.push((key.into(), value.into())),
            None => name.push(word),
        }
    }
    let name = name.join(" ");
    let node = node(topology, &name)?;
    let count = topology.nodes.get(node).map_or(0, |node| node.port_count());
    if number == 0 || number > count {
        return Err(format!("{name} has ports 1 to {count}, not {number}"));
    }
    Ok((PortRef::new(node, number), settings))
}

fn faults(settings: &[(String, String)]) -> Result<Faults, String> {
    let mut faults = Faults::default();
    for (key, value) in settings {
        let (count, micros) = value.split_once(':').unwrap_or((value, "0"));
        let number = |text: &str| {
            let number = text.parse::<u32>();
            number.map_err(|_| format!("\"{text}\" is no number, in {key}"))
        };
        let (count, micros) = (number(count)?, number(micros)?);
        match key.as_str() {
            "drop" => faults.drop = count,
            "corrupt" => faults.corrupt = count,
            "duplicate" => faults.duplicate = count,
            "delay" => {
                faults.delay = count;
                faults.delay_max = Duration::from_micros(micros.into());
            }
            _ => {
                return Err(format!(
                    "\"{key}\" is none of drop, corrupt, duplicate, delay"
                ));
            }
        }
    }
    Ok(faults)
}

/// The faults of each direction of each cable, by the port that sends.
pub(super) type Handles = BTreeMap<PortRef, FaultHandle>;

#[cfg(test)]
mod tests {
    use super::*;
    use platform_sim::fabric::topology::build;

    fn read(line: &str) -> Result<Command, String> {
        Command::read(line, &build::star(2))
    }

    #[test]
    fn a_port_is_named_by_its_number_and_by_name_or_description_of_its_node() {
        let port = PortRef::new(0, 2);
        let down = Command::Plug {
            port,
            plugged: false,
        };
        assert_eq!(read("down 2 switch-1"), Ok(down));
        let name = &build::star(2).nodes[0].id;
        assert_eq!(read(&format!(" down 2 {name}\n")), Ok(down));
        assert!(read("down 3 switch-1").unwrap_err().contains("1 to 2"));
        assert!(read("down 0 switch-1").is_err());
        assert!(read("down 1 nobody").is_err());
        assert!(read("down").is_err());
    }

    #[test]
    fn faults_that_are_not_named_are_none() {
        let faults = Faults {
            drop: 10_000,
            delay: 5,
            delay_max: Duration::from_micros(30),
            ..Faults::default()
        };
        let port = PortRef::new(0, 1);
        let expected = Command::Faults { port, faults };
        let line = "faults 1 switch-1 drop=10000 delay=5:30";
        assert_eq!(read(line), Ok(expected));
        assert!(read("faults 1 switch-1 loss=1").is_err());
        assert!(read("faults 1 switch-1 drop=x").is_err());
    }

    #[test]
    fn whoever_pings_is_named_and_an_address_must_be_one() {
        let expected = Command::Ping {
            node: 1,
            peer: IpAddr::from([10, 9, 0, 1]),
            count: 4,
            size: 56,
        };
        assert_eq!(read("ping host-1 10.9.0.1"), Ok(expected));
        let large = Command::Ping {
            node: 1,
            peer: IpAddr::from([10, 9, 0, 1]),
            count: 7,
            size: 60000,
        };
        assert_eq!(read("ping host-1 10.9.0.1 7 60000"), Ok(large));
        assert!(read("ping host-1 10.9.0").is_err());
        assert!(read("ping host-1").is_err());
        assert!(read("ping nobody 10.9.0.1").is_err());
    }

    #[test]
    fn a_node_is_switched_off_and_on_by_name() {
        assert_eq!(
            read("off switch-1"),
            Ok(Command::Power { node: 0, on: false })
        );
        assert_eq!(
            read("on switch-1"),
            Ok(Command::Power { node: 0, on: true })
        );
        assert!(read("off").is_err());
    }

    #[test]
    fn a_mode_of_ipoib_is_one_of_two() {
        let connected = Command::Mode {
            node: 1,
            connected: true,
        };
        assert_eq!(read("mode host-1 connected"), Ok(connected));
        assert!(read("mode host-1 fast").is_err());
        assert!(read("mode host-1").is_err());
    }

    #[test]
    fn a_pingpong_has_a_kind_a_count_and_a_size_that_fits() {
        let asked = |text: &str| read(text).unwrap_or(Command::Stop);
        let Command::Pingpong {
            wish: Some(wish), ..
        } = asked("pingpong host-1 ud 5 2048")
        else {
            panic!("no pingpong");
        };
        assert_eq!((wish.kind, wish.count, wish.size), (Kind::Ud, 5, 2048));
        assert_eq!(wish.peer, None);
        let Command::Pingpong {
            wish: Some(wish), ..
        } = asked("pingpong host-1 rc 5 9 10.9.1.1")
        else {
            panic!("no pingpong");
        };
        assert_eq!(wish.peer, Some(([10, 9, 1, 1], 18515).into()));
        assert!(matches!(
            asked("pingpong host-1"),
            Command::Pingpong { wish: None, .. }
        ));
        assert!(read("pingpong host-1 ud 5 2049").is_err());
        assert!(read("pingpong host-1 xc 5 64").is_err());
        assert!(read("pingpong host-1 rc 0 64").is_err());
        assert!(read("pingpong host-1 rc 5 64 nowhere").is_err());
        assert!(read("pingpong host-1 rc 5").is_err());
        let Command::Pingpong {
            wish: Some(wish), ..
        } = asked("atomics host-1 7")
        else {
            panic!("no atomics");
        };
        assert_eq!((wish.kind, wish.count, wish.size), (Kind::Atomic, 7, 8));
        assert!(read("atomics host-1 many").is_err());
        assert!(read("atomics host-1 7 10.9.1.1 8").is_err());
        let Command::Pingpong {
            wish: Some(wish), ..
        } = asked("reads host-1 7 65536 10.9.1.1")
        else {
            panic!("no reads");
        };
        assert_eq!((wish.kind, wish.count, wish.size), (Kind::Read, 7, 65536));
        assert_eq!(wish.peer, Some(([10, 9, 1, 1], 18515).into()));
        assert!(read("reads host-1 7").is_err());
        assert!(read("writes host-1 7 0").is_err());
        assert!(read("writes host-1 7 1048577").is_err());
    }

    #[test]
    fn messages_are_served_or_asked_for_by_number_and_size() {
        let node = 1;
        let of = |of| Ok(Command::Messages { node, of });
        assert_eq!(read("messages host-1"), of(None));
        assert_eq!(read("messages host-1 10 100"), of(Some(((10, 100), None))));
        let to = Some(IpAddr::from([10, 9, 1, 1]));
        let asks = of(Some(((1, 16), to)));
        assert_eq!(read("messages host-1 1 16 10.9.1.1"), asks);
        for bad in [
            "",
            " 10",
            " 0 16",
            " 17 16",
            " 1 0",
            " 1 65537",
            " 1 16 nowhere",
            " 1 16 10.9.1.1 2",
        ] {
            let bad = format!(
                "messages {}{bad}",
                if bad.is_empty() { "nobody" } else { "host-1" }
            );
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_answers_rping_or_asks_an_address() {
        let (node, client) = (1, None);
        assert_eq!(read("rping host-1"), Ok(Command::Rping { node, client }));
        let client = Some((IpAddr::from([10, 9, 1, 1]), 5, 4096));
        let asks = Ok(Command::Rping { node, client });
        assert_eq!(read("rping host-1 10.9.1.1 5 4096"), asks);
        assert!(read("rping host-1 10.9.1.1 many").is_err());
        assert!(read("rping host-1 nowhere").is_err());
        assert!(read("rping host-1 10.9.1.1 5 23").is_err());
        assert!(read("rping host-1 10.9.1.1 5 65537").is_err());
        assert!(read("rping").is_err());
    }

    #[test]
    fn a_word_that_is_no_command_is_answered_with_those_that_are() {
        assert!(read("halt").unwrap_err().contains("show, stop"));
        assert!(read("").is_err());
    }
}
