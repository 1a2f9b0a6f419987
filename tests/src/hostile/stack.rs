//! A whole host on a liar: special QPs, subnet manager, and an IP interface on each of the two ports of one HCA, which a
//! cable joins. One interface sends to the other, and what comes is looked at as an IP stack would.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use core_ib::platform::Platform;
use core_ib::verbs::{Device, VerbsError};
use ib_stack::{Config, InterfaceConfig, SmProfile, Stack, StackError, SubnetManager};
use mthca_hw::Hca;
use platform_sim::machine::SimPlatform;

/// Bytes of a packet.
const PACKET: usize = 60;
/// The most that an interface may show: the MTU of IPoIB over 2048.
const MTU: usize = 2044;
/// How long it is used.
const LIFE: Duration = Duration::from_millis(400);

const INTERFACES: [InterfaceConfig; 2] = {
    let mut both = [InterfaceConfig::DEFAULT; 2];
    both[1].port = 2;
    both[0].profile.duplicate_address_detection = false;
    both[1].profile.duplicate_address_detection = false;
    both
};

const SM: SmProfile = SmProfile {
    nodes: 4,
    ports: 8,
    lids: 64,
    ..SmProfile::for_hosts(2)
};

/// Opens a host, uses it, and closes it. Gives the packets that came.
pub fn host_it(machine: &SimPlatform, hca: &Hca<'_, SimPlatform>) -> Result<u32, StackError> {
    let config = Config {
        interfaces: &INTERFACES,
        subnet_manager: Some(SubnetManager {
            port: 1,
            profile: SM,
            config: ib_sm::Config::default(),
        }),
        ..Config::default()
    };
    let mut stack = Stack::open(machine, hca, &config)?;
    let came = use_it(machine, hca, &mut stack);
    stack.close()?;
    Ok(came?)
}

fn use_it<'d, 'p>(
    machine: &SimPlatform,
    hca: &'d Hca<'p, SimPlatform>,
    stack: &mut Stack<'d, Hca<'p, SimPlatform>, SimPlatform>,
) -> Result<u32, VerbsError> {
    let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    for (index, address) in addresses.into_iter().enumerate() {
        if let Some(ip) = stack.ip(index) {
            let _ = ip.add_address(IpAddr::V4(address), 24);
        }
    }
    let end = machine.now().after(LIFE);
    let (mut came, mut next) = (0, machine.now());
    while machine.now() < end {
        hca.poll_events();
        let mut wake = stack.poll(machine.now())?;
        // A device that asks without end is not served without end.
        for _ in 0..64 {
            let Some(job) = stack.next_job() else { break };
            let done = job.run(hca);
            stack.job_done(done, machine.now());
            wake = machine.now();
        }
        for index in 0..2 {
            for _ in 0..64 {
                let mut take = |packet: &[u8]| {
                    assert!(packet.len() <= MTU, "{} bytes", packet.len());
                    came += 1;
                };
                if !stack.receive(index, machine.now(), &mut take) {
                    break;
                }
            }
        }
        while stack.next_event().is_some() {}
        if machine.now() >= next {
            next = machine.now().after(LIFE / 100);
            // Until the interface is up there is nobody to take it.
            let _ = stack.send(0, &packet(addresses), machine.now());
        }
        let _ = stack.arm()?;
        let latest = machine.now().after(Duration::from_micros(200));
        let wait = wake.min(latest).since(machine.now());
        machine.sleep(wait.max(Duration::from_micros(5)));
    }
    Ok(came)
}

/// An IPv4 packet of a protocol for experiments. RFC 791.
fn packet([from, to]: [Ipv4Addr; 2]) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(PACKET as u16).to_be_bytes());
    packet[8] = 64;
    packet[9] = 253;
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet
}
