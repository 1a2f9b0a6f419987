//! What tests of whole fabrics do again and again: bring a simulation up, ping between pairs of hosts, send streams,
//! wait until all is as it should be; and say what every host is at if it is not.

use core::time::Duration;
use openib_sim::host::{Command, Phase};
use openib_sim::ip::{Echo, Transfer};
use openib_sim::sim::{Settings, SimHost, Simulation};
use platform_sim::fabric::topology::Topology;
use std::net::IpAddr;

/// Is the long form of the tests asked for, by `OPENIB_LONG=1`?
pub fn long() -> bool {
    std::env::var("OPENIB_LONG").is_ok_and(|value| value != "0" && !value.is_empty())
}

/// `quick`, or in the long form `long`.
pub fn cases(quick: u32, thorough: u32) -> u32 {
    if long() { thorough } else { quick }
}

/// A simulation of which tests are easily made.
pub struct Scenario {
    /// The simulation.
    pub sim: Simulation,
    /// TCP port of the next stream.
    port: u16,
}

/// Between two addresses of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Address of `host`.
    pub fn of(self, host: &SimHost) -> Option<IpAddr> {
        match self {
            Self::V4 => host.ipv4(),
            Self::V6 => host.ipv6(),
        }
    }
}

impl Scenario {
    /// A simulation with these settings; nothing runs yet.
    pub fn new(settings: Settings) -> Self {
        let sim = Simulation::new(settings).expect("a simulation");
        Self { sim, port: 5001 }
    }

    /// Hosts on `topology` that are up.
    pub fn up(topology: Topology, seed: u64) -> Self {
        let mut scenario = Self::new(Settings::new(topology, seed));
        scenario.sim.start_all();
        scenario.wait_up(Duration::from_secs(60));
        scenario.settle();
        scenario
    }

    /// Runs until the multicast trees are written and hosts have looked for others with their IPv6 addresses (a second,
    /// RFC 4862).
    pub fn settle(&mut self) {
        self.sim.run_for(Duration::from_millis(1200));
    }

    /// Number of hosts.
    pub fn len(&self) -> usize {
        self.sim.hosts.len()
    }

    /// Are there no hosts?
    pub fn is_empty(&self) -> bool {
        self.sim.hosts.is_empty()
    }

    /// Runs until `done`, and panics with what every host is at if that is not within `limit`.
    pub fn wait(&mut self, what: &str, limit: Duration, done: impl FnMut(&[SimHost]) -> bool) {
        if !self.reach(limit, done) {
            let log = self.log();
            let hosts = self.sim.describe();
            panic!("{what}: not within {limit:?} (virtual)\n{hosts}\n{log}");
        }
    }

    /// Runs until `done`, for at most `limit`. Looks every five virtual milliseconds. Says whether it was.
    pub fn reach(&mut self, limit: Duration, mut done: impl FnMut(&[SimHost]) -> bool) -> bool {
        let end = self.sim.now().after(limit);
        loop {
            if done(&self.sim.hosts) {
                return true;
            }
            if self.sim.now() >= end {
                return false;
            }
            self.sim.run_for(Duration::from_millis(5));
        }
    }

    /// What the hosts noted last.
    pub fn log(&self) -> String {
        let mut lines = Vec::new();
        for host in &self.sim.hosts {
            for (at, what) in host.remote.take_log() {
                lines.push((
                    at,
                    format!("{:>12} us {}: {what}\n", at.0 / 1000, host.name),
                ));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        let skip = lines.len().saturating_sub(200);
        lines.into_iter().skip(skip).map(|(_, line)| line).collect()
    }

    /// Waits until all hosts' interfaces are up.
    pub fn wait_up(&mut self, limit: Duration) {
        self.wait("all interfaces up", limit, |hosts| {
            Simulation::all_up(hosts)
        });
    }

    /// Waits until the interfaces of these hosts are up.
    pub fn wait_these_up(&mut self, which: &[usize], limit: Duration) {
        self.wait("some interfaces up", limit, |hosts| {
            which.iter().all(|index| is_up(&hosts[*index]))
        });
    }

    /// Each first of `pairs` sends `count` echo requests to the second. Gives what came of it, in the order of `pairs`.
    pub fn ping(
        &mut self,
        pairs: &[(usize, usize)],
        family: Family,
        count: u16,
        patience: Duration,
    ) -> Vec<Vec<Echo>> {
        for (from, to) in pairs {
            let peer = family.of(&self.sim.hosts[*to]).expect("an address");
            let host = &self.sim.hosts[*from];
            host.remote.tell(Command::Ping {
                peer,
                count,
                interval: Duration::from_millis(10),
                patience,
            });
        }
        let limit =
            patience + Duration::from_millis(10) * u32::from(count) + Duration::from_secs(1);
        let mut echoes: Vec<Vec<Echo>> = pairs.iter().map(|_| Vec::new()).collect();
        self.wait("echoes, or that none came", limit, |hosts| {
            for ((from, to), into) in pairs.iter().zip(&mut echoes) {
                let peer = family.of(&hosts[*to]);
                let status = hosts[*from].remote.status();
                *into = status.echoes;
                into.retain(|echo| Some(echo.peer) == peer);
            }
            echoes
                .iter()
                .all(|echoes| echoes.len() >= usize::from(count))
        });
        for (from, _) in pairs {
            self.sim.hosts[*from].remote.take_echoes();
        }
        echoes
    }

    /// As [`Scenario::ping`], and all must be answered, five each (more than wait for an address to be resolved), in both
    /// families.
    pub fn ping_all(&mut self, pairs: &[(usize, usize)]) {
        for family in [Family::V4, Family::V6] {
            let echoes = self.ping(pairs, family, 5, Duration::from_secs(2));
            for (pair, echoes) in pairs.iter().zip(echoes) {
                let answered = echoes.iter().filter(|echo| echo.round_trip.is_some());
                let answered = answered.count();
                assert_eq!(
                    answered,
                    5,
                    "{family:?} {pair:?}\n{}\n{}",
                    self.sim.describe(),
                    self.log()
                );
            }
        }
    }

    /// Host `from` sends a TCP stream of `length` bytes to `to`; gives both ends' view, once it is over or `limit` has
    /// passed.
    pub fn stream(
        &mut self,
        from: usize,
        to: usize,
        family: Family,
        length: u64,
        limit: Duration,
    ) -> (Transfer, Transfer) {
        let started = self.start_stream(from, to, family, length);
        let over = self.reach(limit, |hosts| started.is_over(hosts));
        let ends = started.ends(&self.sim.hosts);
        assert!(over, "{ends:?}\n{}", self.sim.describe());
        ends
    }

    /// Starts a TCP stream.
    pub fn start_stream(
        &mut self,
        from: usize,
        to: usize,
        family: Family,
        length: u64,
    ) -> StreamEnds {
        let hosts = &self.sim.hosts;
        let peer = family.of(&hosts[to]).expect("an address");
        self.port += 1;
        let (port, expected) = (self.port, length);
        let number = |index: usize| hosts[index].remote.look(|status| status.transfers.len());
        let ends = StreamEnds {
            sender: (from, number(from)),
            receiver: (to, number(to)),
        };
        hosts[to].remote.tell(Command::Listen { port, expected });
        hosts[from]
            .remote
            .tell(Command::Send { peer, port, length });
        // Both know of it before the next one is asked for.
        self.sim.run_for(Duration::from_millis(1));
        ends
    }

    /// Host `index` closes its stack and its HCA; nothing is left behind.
    pub fn stop(&mut self, index: usize) {
        self.sim.hosts[index].remote.tell(Command::Stop);
        self.wait("a host stops", Duration::from_secs(10), |hosts| {
            let remote = &hosts[index].remote;
            remote.look(|status| status.phase == Phase::Stopped)
        });
        let id = self.sim.hosts[index].id;
        assert_eq!(self.sim.world.platform(id).memory_in_use(), (0, 0));
    }
}

/// A stream between two hosts: who, and the number of the transfer there.
#[derive(Clone, Copy, Debug)]
pub struct StreamEnds {
    sender: (usize, usize),
    receiver: (usize, usize),
}

impl StreamEnds {
    /// Sender's and receiver's view.
    pub fn ends(&self, hosts: &[SimHost]) -> (Transfer, Transfer) {
        let of = |(host, number): (usize, usize)| {
            let transfer = |status: &openib_sim::host::HostStatus| {
                let transfer = status.transfers.get(number);
                transfer.copied().unwrap_or_default()
            };
            hosts[host].remote.look(transfer)
        };
        (of(self.sender), of(self.receiver))
    }

    /// Has either end failed, or have both ended?
    pub fn is_over(&self, hosts: &[SimHost]) -> bool {
        let (sent, received) = self.ends(hosts);
        sent.failed || received.failed || (sent.complete && received.complete)
    }
}

/// All that was sent arrived, and is what was sent.
pub fn assert_exact((sent, received): (Transfer, Transfer), length: u64) {
    assert!(sent.complete && received.complete, "{sent:?}\n{received:?}");
    assert_eq!((sent.bytes, received.bytes), (length, length));
    assert_eq!(sent.checksum, received.checksum);
}

/// Is this host's interface up?
pub fn is_up(host: &SimHost) -> bool {
    host.remote
        .look(|status| status.interface.is_some_and(|state| state.is_up()))
}

/// Its LID.
pub fn lid(host: &SimHost) -> u16 {
    host.remote.look(|status| status.port.lid.0)
}

/// LIDs of all hosts.
pub fn lids(hosts: &[SimHost]) -> Vec<u16> {
    hosts.iter().map(lid).collect()
}
