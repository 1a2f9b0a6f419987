//! Firmware commands: from the call of a verb to its return, with one command (MAD_IFC with both mailboxes) inside.

use super::table::{Cell, Row};
use core::time::Duration;
use core_ib::Guid;
use core_ib::platform::{NoWake, Platform};
use core_ib::verbs::{Device, MadFlags};
use core_ib::wire::mad::{AttributeId, Mad, Method, Smp};
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost};
use platform_sim::machine::{Cable, LinkParameters, SimPlatform, WireEnd, World};

/// Commands of a measurement.
const COUNT: u32 = 2000;

/// The rows of the commands.
pub fn run() -> Result<Vec<Row>, String> {
    let ways = [
        ("polled", Interrupts::None),
        ("by events, MSI-X", Interrupts::Messages),
        ("by events, INTx", Interrupts::Pin),
    ];
    ways.into_iter()
        .map(|(name, interrupts)| {
            let (virtual_time, real) = measure(interrupts)?;
            let micros = |time: Duration| {
                let micros = time.as_secs_f64() * 1e6 / f64::from(COUNT);
                Cell::Text(format!("{micros:.2} us"))
            };
            Ok(Row {
                name: name.into(),
                cells: vec![micros(virtual_time), micros(real)],
            })
        })
        .collect()
}

/// The time of all commands, by the clock of the machine and by the wall's.
fn measure(interrupts: Interrupts) -> Result<(Duration, Duration), String> {
    let cable = Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(50));
    let mut world = World::new(1, cable);
    let hca = Box::new(InfiniHost::new(Config::new(Guid(0x0002_c900_0000_0100))));
    let host = world.add_host("host", hca, &[WireEnd(0), WireEnd(1)]);
    let task = world.spawn(host, "driver", move |machine: &SimPlatform| {
        let profile = Profile {
            interrupts,
            ..Profile::SMALL
        };
        let hca = Hca::open(machine, &NoWake, &profile).map_err(|error| error.to_string())?;
        let mut request = Mad::ZERO;
        let get = Smp::lid_routed(Method::GET, AttributeId::NODE_INFO, 0);
        let _ = request.set_front(&get);
        let (start, real) = (machine.now(), std::time::Instant::now());
        for _ in 0..COUNT {
            let mut response = [0; 256];
            let flags = MadFlags::empty();
            hca.process_mad(1, flags, None, &request.0, &mut response)
                .map_err(|error| error.to_string())?;
        }
        let times = (machine.now().since(start), real.elapsed());
        hca.close().map_err(|(_, error)| error.to_string())?;
        Ok(times)
    });
    world.finish(task).map_err(|stuck| stuck.to_string())?
}
