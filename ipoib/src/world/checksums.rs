//! Checksums that are left to the HCA, and what it says of those that came.

use super::{Duration, Fabric, NetInterface, Profile, hcas, machines, packet, v4, world};
use core_ib::verbs::DeviceCaps;

/// Everybody's HCA offers checksums, or does not.
fn offer_checksums(fabric: &Fabric, offered: bool) {
    fabric.with(|state| {
        for hca in &mut state.hcas {
            hca.caps.set(DeviceCaps::IP_CHECKSUM, offered);
        }
    });
}

#[test]
fn checksums_are_left_to_an_hca_that_offers_them_and_its_verdict_is_told() {
    for offered in [true, false] {
        let fabric = Fabric::default();
        let machines = machines(2);
        let hcas = hcas(&fabric, 2);
        offer_checksums(&fabric, offered);
        let mut world = world(&fabric, &machines, &hcas, &Profile::DEFAULT);
        let bytes = packet(v4(1), v4(2), b"without");
        assert_eq!(world.hosts[0].interface.has_checksums(bytes.len()), offered);
        assert!(!world.hosts[0].interface.has_checksums(2045));
        // The first waits for its neighbour, and for the path to it.
        for unsummed in [true, true, false] {
            let now = world.now;
            let interface = &mut world.hosts[0].interface;
            let fill = &mut |room: &mut [u8]| room.copy_from_slice(&bytes);
            let sent = match unsummed {
                true => interface.send_unsummed_with(bytes.len(), now, fill),
                false => interface.send_with(bytes.len(), now, fill),
            };
            assert_eq!(sent, Ok(()));
            world.run(Duration::from_secs(1));
            let heard = core::mem::take(&mut world.hosts[1].verdicts);
            assert_eq!(heard, [offered && unsummed]);
            assert_eq!(world.inbox(1).concat(), bytes);
        }
        world.close_all();
    }
}
