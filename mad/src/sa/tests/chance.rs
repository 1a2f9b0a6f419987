//! What chance does.

use super::*;
use proptest::prelude::*;

/// Something that a user or the subnet does.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Join(u8, u8, u8),
    Leave(u8, u8, u8),
    Reregister,
    Lid(u16),
    Down,
    Wait(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let bits = prop_oneof![Just(1_u8), Just(4), Just(8), Just(5)];
    prop_oneof![
        6 => (0..3_u8, 0..3_u8, bits.clone()).prop_map(|(u, g, b)| Deed::Join(u, g, b)),
        4 => (0..3_u8, 0..3_u8, bits).prop_map(|(u, g, b)| Deed::Leave(u, g, b)),
        1 => Just(Deed::Reregister),
        1 => (5..8_u16).prop_map(Deed::Lid),
        1 => Just(Deed::Down),
        6 => (1..60_u64).prop_map(Deed::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_users_do_the_sa_has_in_the_end_what_they_were_promised(
        deeds in proptest::collection::vec(deed(), 1..40),
        loses in prop_oneof![Just(0_u32), 2..7_u32],
    ) {
        let mut world = World::new();
        world.loses = loses;
        let mut promised: BTreeMap<(u8, u8), u8> = BTreeMap::new();
        let mut asked: BTreeMap<u64, (u8, u8, u8)> = BTreeMap::new();
        let mut finished = 0;
        let mut cookie = 0;
        let keep_book = |world: &mut World, promised: &mut BTreeMap<(u8, u8), u8>, asked: &BTreeMap<u64, (u8, u8, u8)>| {
            let mut done = 0;
            for (cookie, result) in world.answers() {
                done += 1;
                if let (Some((u, g, bits)), Ok(SaAnswer::Joined(record))) = (asked.get(&cookie), result) {
                    assert!(record.join_state.bits() & bits == *bits);
                    *promised.entry((*u, *g)).or_default() |= bits;
                }
            }
            for news in core::mem::take(&mut world.news) {
                if let SaNext::Regrouped { mgid: lost, users, result: Err(_) } = news {
                    promised.retain(|(u, g), _| lost != mgid(*g) || !users.contains(user(*u)));
                }
            }
            done
        };
        for deed in deeds {
            let now = ms(world.now);
            match deed {
                Deed::Join(u, g, bits) => {
                    let record = member(g, JoinState::from_bits_retain(bits));
                    cookie += 1;
                    if world.sa.join(cookie, user(u), &record, JOIN_MASK).is_ok() {
                        asked.insert(cookie, (u, g, bits));
                    }
                }
                Deed::Leave(u, g, bits) => {
                    cookie += 1;
                    let bits = JoinState::from_bits_retain(bits);
                    if world.sa.leave(cookie, user(u), mgid(g), bits).is_ok() {
                        asked.insert(cookie, (u, g, 0));
                        *promised.entry((u, g)).or_default() &= !bits.bits();
                    }
                }
                Deed::Reregister => {
                    world.peer.members.clear();
                    world.sa.reregister();
                }
                Deed::Lid(lid) => {
                    world.peer.members.clear();
                    world.wire.clear();
                    let lid = Lid(lid);
                    let port = SaPort { lid, ..PORT };
                    world.sa.reregister();
                    world.sa.port_changed(&port, now);
                }
                Deed::Down => {
                    world.peer.members.clear();
                    world.wire.clear();
                    world.sa.port_changed(&SaPort { active: false, ..PORT }, now);
                    world.millisecond();
                    finished += keep_book(&mut world, &mut promised, &asked);
                    world.sa.port_changed(&PORT, ms(world.now));
                }
                Deed::Wait(millis) => {
                    world.run(millis);
                }
            }
            finished += keep_book(&mut world, &mut promised, &asked);
        }
        world.loses = 0;
        world.run(3000);
        finished += keep_book(&mut world, &mut promised, &asked);
        prop_assert_eq!(finished, asked.len(), "each request ends, and once");
        for g in 0..3 {
            let all = (0..3).filter_map(|u| promised.get(&(u, g)));
            let all = all.fold(0, |all, bits| all | bits);
            prop_assert_eq!(world.bits(g), all, "group {}", g);
        }
    }

    #[test]
    fn nothing_that_an_sa_can_send_upsets_the_client(
        mads in proptest::collection::vec(
            (any::<[u8; 16]>(), 0..8_u32, prop_oneof![Just(0x81_u8), Just(0x92), Just(0x06), any::<u8>()],
             0..5_u8, 0..8_u8, 0..4_u32, prop_oneof![0..260_u32, any::<u32>()], any::<u16>()),
            1..40
        ),
    ) {
        let mut world = World::new();
        world.peer.mood = Mood::Silent;
        let (path, mask) = path_query();
        world.sa.get(1, &path, mask, ms(0)).unwrap();
        world.sa.get_table(2, &path, mask).unwrap();
        world.sa.join(3, user(0), &member(1, JoinState::FULL_MEMBER), JOIN_MASK).unwrap();
        world.run(2);
        for (junk, serial, method, kind, flags, segment, length, offset) in mads {
            let mut mad = Mad::ZERO;
            mad.0[..16].copy_from_slice(&junk);
            mad.0[..4].copy_from_slice(&[1, 3, 2, method]);
            mad.0[4..6].copy_from_slice(&[0, 0]);
            mad.0[8..16].copy_from_slice(&AGENT.tid(serial).to_be_bytes());
            mad.0[24..28].copy_from_slice(&[1, kind, flags, 0]);
            mad.0[28..32].copy_from_slice(&segment.to_be_bytes());
            mad.0[32..36].copy_from_slice(&length.to_be_bytes());
            mad.0[44..46].copy_from_slice(&offset.to_be_bytes());
            let received = world.received(mad);
            let now = ms(world.now);
            world.sa.handle(&received, now);
            world.millisecond();
        }
        for _ in 0..900 {
            world.millisecond();
            world.now += 49;
        }
        let mut ended: Vec<_> = world.answers().iter().map(|(cookie, _)| *cookie).collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, [1, 2, 3], "each request ends, and once");
    }
}
