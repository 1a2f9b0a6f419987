//! The InfiniHost driver on the MT23108 model, in the simulator's world: bring-up, interrupts, datagrams.

use core::time::Duration;
use core_ib::Guid;
use core_ib::platform::NoWake;
use core_ib::verbs::Device;
use mthca_hw::{Hca, Interrupts, Profile};
use platform_sim::hca::infinihost::{Config, InfiniHost};
use platform_sim::machine::{HostId, Nowhere, World};

fn host(world: &mut World, config: Config) -> HostId {
    world.add_host("host-a", Box::new(InfiniHost::new(config)), &[])
}

fn card() -> Config {
    Config::new(Guid(0x0002_c900_0000_0100))
}

#[test]
fn the_hca_comes_up_by_messages_and_leaves_nothing_behind() {
    let mut world = World::new(1, Nowhere);
    let a = host(&mut world, card());
    let task = world.spawn(a, "driver", |machine| {
        let hca = Hca::open(machine, &NoWake, &Profile::SMALL).unwrap();
        let attr = hca.query_device();
        assert_eq!(attr.node_guid, Guid(0x0002_c900_0000_0100));
        assert_eq!(attr.fw_version, [3, 5, 0]);
        let how = hca.interrupts();
        hca.close().map_err(|(_, error)| error).unwrap();
        how
    });
    assert_eq!(world.finish(task).unwrap(), Interrupts::Messages);
    world.check_leaks(a);
    let _ = Duration::ZERO;
}
