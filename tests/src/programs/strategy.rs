//! Where programs come from: chance, aimed. Most names are of what there is and most values legal, so that a program
//! gets somewhere; the rest are wrong in one way.

use super::super::conformance::Side;
use super::call::{
    Address, Call, Group, Key, Line, Name, Piece, Program, QKeyOf, Remote, Send, Twist, Verb,
};
use super::lines::ALL;
use super::model::{ALTERNATE, PRIMARY};
use core_ib::verbs::{Access, NotifyKind, QpAttrMask, QpState, QpType};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn side() -> BoxedStrategy<Side> {
    let strategy = { select(Side::BOTH.to_vec()) };
    strategy.boxed()
}

/// Mostly what the prologue made; now and then another, or the peer's.
fn name(most: u8) -> BoxedStrategy<Name> {
    let strategy = { prop_oneof![12 => 0..most, 2 => 0..4_u8, 1 => 4..8_u8].prop_map(Name) };
    strategy.boxed()
}

fn access() -> BoxedStrategy<Access> {
    let strategy = {
        prop_oneof![
            4 => Just(ALL),
            1 => Just(Access::LOCAL_WRITE),
            1 => Just(Access::REMOTE_READ),
            1 => Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            1 => (0..32_u8).prop_map(Access::from_bits_truncate),
        ]
    };
    strategy.boxed()
}

fn key() -> BoxedStrategy<Key> {
    let strategy = {
        prop_oneof![
            20 => Just(Key::Mr(Name(0))),
            6 => name(3).prop_map(Key::Mr),
            3 => name(2).prop_map(Key::Fmr),
            2 => name(2).prop_map(Key::Mw),
            1 => Just(Key::Wild),
        ]
    };
    strategy.boxed()
}

/// Half of the time within the memory of all rights; else somewhere.
fn at() -> BoxedStrategy<u16> {
    let strategy = {
        prop_oneof![6 => (0..0x600_u16).prop_map(|at| at * 8), 2 => 0..0x4000_u16, 1 => 0x3f00..0x8000_u16]
    };
    strategy.boxed()
}

fn len() -> BoxedStrategy<u16> {
    let strategy = {
        prop_oneof![
            8 => 0..200_u16,
            2 => select(vec![0, 1, 8, 255, 256, 257, 1024, 2047, 2048, 2049]),
            1 => 1000..6000_u16,
        ]
    };
    strategy.boxed()
}

fn piece() -> BoxedStrategy<Piece> {
    let strategy = {
        prop_oneof![
            6 => (0..0x600_u16, len()).prop_map(|(at, len)| Piece { key: Key::Mr(Name(0)), at: at * 8, len }),
            2 => (0x4000..0x6000_u16, len()).prop_map(|(at, len)| Piece { key: Key::Mr(Name(1)), at, len }),
            2 => (key(), at(), len()).prop_map(|(key, at, len)| Piece { key, at, len }),
        ]
    };
    strategy.boxed()
}

fn pieces() -> BoxedStrategy<Vec<Piece>> {
    let strategy =
        { prop_oneof![8 => vec(piece(), 1..2), 4 => vec(piece(), 0..4), 1 => vec(piece(), 0..12)] };
    strategy.boxed()
}

/// A receive: one large buffer as a rule.
fn receive() -> BoxedStrategy<Vec<Piece>> {
    let strategy = {
        let large = (0..0x100_u16).prop_map(|at| {
            let (key, at, len) = (Key::Mr(Name(1)), 0x4000 + at * 32, 0x1000);
            vec![Piece { key, at, len }]
        });
        prop_oneof![4 => large, 2 => pieces()]
    };
    strategy.boxed()
}

fn remote() -> BoxedStrategy<Remote> {
    let strategy = { (key(), at()).prop_map(|(key, at)| Remote { key, at }) };
    strategy.boxed()
}

fn group() -> BoxedStrategy<Group> {
    let strategy = {
        prop_oneof![6 => Just(Group::One), 2 => Just(Group::Two), 1 => Just(Group::Unicast), 1 => Just(Group::UnicastLid)]
    };
    strategy.boxed()
}

fn address() -> BoxedStrategy<Address> {
    let strategy = {
        prop_oneof![
            5 => Just(Address::There),
            3 => Just(Address::Here),
            3 => select(vec![Address::Group(Group::One), Address::Group(Group::Two)]),
            1 => select(vec![Address::Nowhere, Address::Bare, Address::NoLid, Address::BadPort, Address::BadGid]),
        ]
    };
    strategy.boxed()
}

fn verb() -> BoxedStrategy<Verb> {
    let strategy = {
        let datagram = (
            name(3),
            0..4_u8,
            prop_oneof![6 => Just(QKeyOf::Right), 1 => Just(QKeyOf::Wrong), 1 => Just(QKeyOf::Own)],
            any::<bool>(),
        );
        prop_oneof![
            8 => any::<bool>().prop_map(|imm| Verb::Send { imm }),
            6 => (remote(), prop::bool::weighted(0.3)).prop_map(|(remote, imm)| Verb::Write { remote, imm }),
            4 => remote().prop_map(|remote| Verb::Read { remote }),
            2 => (remote(), any::<bool>()).prop_map(|(remote, right)| Verb::Swap { remote, right }),
            2 => remote().prop_map(|remote| Verb::Add { remote }),
            8 => datagram.prop_map(|(ah, to, qkey, imm)| Verb::Datagram { ah, to, qkey, imm }),
            2 => (name(2), name(2), at(), len(), access().prop_map(|access| access & Access::REMOTE))
                .prop_map(|(mw, mr, at, len, access)| Verb::Bind { mw, mr, at, len, access }),
            1 => key().prop_map(|remote| Verb::Invalidate { remote }),
            1 => key().prop_map(|key| Verb::LocalInvalidate { key }),
        ]
    };
    strategy.boxed()
}

/// An atomic has eight bytes and a bind none, as a rule.
fn send_of(verb: Verb) -> BoxedStrategy<Send> {
    let strategy = {
        let eight = (0..0x600_u16).prop_map(|at| {
            vec![Piece {
                key: Key::Mr(Name(0)),
                at: at * 8,
                len: 8,
            }]
        });
        let pieces = match verb {
            Verb::Swap { .. } | Verb::Add { .. } => prop_oneof![6 => eight, 1 => pieces()].boxed(),
            Verb::Bind { .. } | Verb::LocalInvalidate { .. } => Just(Vec::new()).boxed(),
            _ => pieces().boxed(),
        };
        let inline = prop_oneof![9 => Just(None), 1 => (0..70_u16).prop_map(Some)];
        let flags = (
            prop::bool::weighted(0.8),
            prop::bool::weighted(0.3),
            prop::bool::weighted(0.4),
            prop::bool::weighted(0.08),
        );
        (pieces, inline, flags).prop_map(
            move |(pieces, inline, (signaled, solicited, fence, stubborn))| Send {
                verb,
                pieces,
                inline,
                signaled,
                solicited,
                fence,
                stubborn,
            },
        )
    };
    strategy.boxed()
}

fn send() -> BoxedStrategy<Send> {
    let strategy = { verb().prop_flat_map(send_of) };
    strategy.boxed()
}

fn twist() -> BoxedStrategy<Twist> {
    let strategy = {
        let bit = (0..21_u32).prop_map(|bit| QpAttrMask::from_bits_truncate(1 << bit));
        prop_oneof![
            10 => Just(Twist::None),
            3 => (0..8_u8).prop_map(Twist::Missing),
            3 => bit.prop_map(Twist::Extra),
            3 => (0..16_u8).prop_map(|bits| Twist::Access(Access::from_bits_truncate(bits))),
            3 => select(vec![0, 1, 7, 8]).prop_map(Twist::RnrRetry),
            2 => (select(vec![0, 1, 4, 200]), select(vec![0, 1, 4, 200])).prop_map(|(a, b)| Twist::Reads(a, b)),
            1 => select(vec![
                Twist::Port(0), Twist::Port(9), Twist::PkeyIndex(u16::MAX), Twist::Mtu4096, Twist::Timeout(32),
                Twist::RetryCount(8), Twist::RnrTimer(32), Twist::MulticastPath, Twist::PathPort,
            ]),
            2 => Just(Twist::Drained),
            2 => any::<bool>().prop_map(|rearm| Twist::Alternate { rearm }),
            1 => Just(Twist::Rearm),
            1 => Just(Twist::Migrate),
        ]
    };
    strategy.boxed()
}

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

fn service() -> BoxedStrategy<QpType> {
    let strategy = {
        prop_oneof![4 => Just(QpType::Rc), 2 => Just(QpType::Uc), 3 => Just(QpType::Ud), 1 => Just(QpType::Gsi)]
    };
    strategy.boxed()
}

fn queues() -> BoxedStrategy<Call> {
    let strategy = {
        prop_oneof![
            8 => (name(4), vec(receive(), 1..4)).prop_map(|(qp, wrs)| Call::PostRecv { qp, wrs }),
            16 => (name(4), vec(send(), 1..5)).prop_map(|(qp, wrs)| Call::PostSend { qp, wrs }),
            3 => (name(1), vec(receive(), 1..5)).prop_map(|(srq, wrs)| Call::PostSrq { srq, wrs }),
            5 => (name(2), 0..12_u8).prop_map(|(cq, room)| Call::Poll { cq, room }),
            2 => (name(2), select(vec![NotifyKind::Any, NotifyKind::Solicited])).prop_map(|(cq, kind)| Call::Arm { cq, kind }),
            5 => (name(4), prop::option::weighted(0.9, select(STATES.to_vec())), twist())
                .prop_map(|(qp, to, twist)| Call::Modify { qp, to, twist }),
            1 => name(4).prop_map(|qp| Call::Query { qp }),
            1 => name(4).prop_map(|qp| Call::DestroyQp { qp }),
        ]
    };
    strategy.boxed()
}

fn new_queues() -> BoxedStrategy<Call> {
    let strategy = {
        let cqs = (name(2), name(2)).prop_map(|(send, recv)| [send, recv]);
        let sizes = (
            prop_oneof![8 => 0..20_u32, 1 => Just(u32::MAX)],
            prop_oneof![8 => 0..6_u32, 1 => Just(1000_u32)],
            prop_oneof![8 => 0..100_u32, 1 => Just(1 << 20)],
        );
        let qp = (
            0..4_u8,
            name(2),
            service(),
            cqs,
            prop::option::weighted(0.3, name(2)),
            sizes,
            any::<bool>(),
        );
        prop_oneof![
            4 => qp.prop_map(|(qp, pd, service, cqs, srq, (wrs, sges, inline), all)| {
                Call::CreateQp { qp, pd, service, cqs, srq, wrs, sges, inline, all }
            }),
            1 => (0..4_u8, prop_oneof![6 => 1..100_u32, 1 => Just(0), 1 => Just(u32::MAX)], prop_oneof![6 => Just(0), 1 => Just(u16::MAX)])
                .prop_map(|(cq, cqe, vector)| Call::CreateCq { cq, cqe, vector }),
            1 => (name(2), prop_oneof![6 => 1..300_u32, 1 => Just(0), 1 => Just(u32::MAX)]).prop_map(|(cq, cqe)| Call::ResizeCq { cq, cqe }),
            1 => name(3).prop_map(|cq| Call::DestroyCq { cq }),
            1 => (0..2_u8, name(2), prop_oneof![6 => 1..20_u32, 1 => Just(0), 1 => Just(u32::MAX)], prop_oneof![6 => 1..4_u32, 1 => Just(1000)])
                .prop_map(|(srq, pd, wrs, sges)| Call::CreateSrq { srq, pd, wrs, sges }),
            2 => (name(2), 0..10_u32).prop_map(|(srq, limit)| Call::ArmSrq { srq, limit }),
            1 => name(2).prop_map(|srq| Call::QuerySrq { srq }),
            1 => name(2).prop_map(|srq| Call::DestroySrq { srq }),
        ]
    };
    strategy.boxed()
}

fn memory() -> BoxedStrategy<Call> {
    let strategy = {
        prop_oneof![
            3 => (0..4_u8, name(2), at(), prop_oneof![6 => 1..0x1000_u16, 1 => Just(0)], access())
                .prop_map(|(mr, pd, at, len, access)| Call::RegMr { mr, pd, at, len, access }),
            2 => (name(3), prop::option::weighted(0.4, name(2)), prop::option::weighted(0.6, access()))
                .prop_map(|(mr, pd, access)| Call::ReregMr { mr, pd, access }),
            2 => name(4).prop_map(|mr| Call::DeregMr { mr }),
            2 => (0..4_u8, name(2)).prop_map(|(mw, pd)| Call::AllocMw { mw, pd }),
            1 => name(2).prop_map(|mw| Call::DeallocMw { mw }),
            2 => (0..2_u8, name(2), 0..4_u32, 0..4_u32, access().prop_map(|access| access.difference(Access::MW_BIND)))
                .prop_map(|(fmr, pd, pages, maps, access)| Call::AllocFmr { fmr, pd, pages, maps, access }),
            4 => (name(2), 0..7_u8, 0..4_u8, prop::bool::weighted(0.9))
                .prop_map(|(fmr, first, pages, aligned)| Call::MapFmr { fmr, first, pages, aligned }),
            2 => vec(name(2), 1..3).prop_map(|fmrs| Call::UnmapFmrs { fmrs }),
            1 => name(2).prop_map(|fmr| Call::DeallocFmr { fmr }),
            3 => (0..0x6000_u16, 0..0x800_u16, any::<u8>()).prop_map(|(at, len, seed)| Call::Fill { at, len, seed }),
        ]
    };
    strategy.boxed()
}

fn others() -> BoxedStrategy<Call> {
    let strategy = {
        let port = || prop_oneof![4 => Just(1_u8), 1 => select(vec![0, 2, 3, 255])];
        let index = || prop_oneof![4 => Just(0_u16), 1 => Just(u16::MAX)];
        prop_oneof![
            2 => (0..4_u8).prop_map(|pd| Call::AllocPd { pd }),
            2 => name(2).prop_map(|pd| Call::DeallocPd { pd }),
            3 => (0..4_u8, name(1), address()).prop_map(|(ah, pd, to)| Call::CreateAh { ah, pd, to }),
            1 => (name(3), address()).prop_map(|(ah, to)| Call::ModifyAh { ah, to }),
            1 => name(3).prop_map(|ah| Call::QueryAh { ah }),
            1 => name(4).prop_map(|ah| Call::DestroyAh { ah }),
            3 => (name(4), group()).prop_map(|(qp, group)| Call::Attach { qp, group }),
            2 => (name(4), group()).prop_map(|(qp, group)| Call::Detach { qp, group }),
            1 => port().prop_map(|port| Call::QueryPort { port }),
            1 => select(vec![None, None, Some(PRIMARY), Some(ALTERNATE)]).prop_map(|path| Call::Lose { path }),
            1 => (port(), index()).prop_map(|(port, index)| Call::QueryGid { port, index }),
            1 => (port(), index()).prop_map(|(port, index)| Call::QueryPkey { port, index }),
        ]
    };
    strategy.boxed()
}

fn datagrams() -> BoxedStrategy<Line> {
    let (srq, special) = (prop::bool::weighted(0.2), prop::bool::weighted(0.3));
    let strategy = (0..4_u8, side(), srq, special);
    strategy
        .prop_map(|(place, side, srq, special)| Line::Datagrams {
            place,
            side,
            srq,
            special,
        })
        .boxed()
}

fn line() -> BoxedStrategy<Line> {
    let strategy = {
        let call = prop_oneof![16 => queues(), 3 => new_queues(), 5 => memory(), 3 => others()];
        let connected = prop_oneof![2 => Just(QpType::Rc), 1 => Just(QpType::Uc)];
        prop_oneof![
            40 => (side(), call).prop_map(|(side, call)| Line::Call(side, call)),
            5 => (connected, 0..4_u8, side(), prop::bool::weighted(0.2), any::<bool>())
                .prop_map(|(service, place, side, srq, all)| Line::Connect { service, place, side, srq, all }),
            2 => datagrams(),
            3 => (side(), 0..4_u8, select(STATES.to_vec())).prop_map(|(side, qp, to)| Line::Bring { side, qp, to }),
            2 => (side(), 0..2_u8).prop_map(|(side, cq)| Line::Drain { side, cq }),
            2 => (side(), 0..4_u8).prop_map(|(side, qp)| Line::Arm { side, qp }),
            3 => (side(), 0..4_u8, prop::bool::weighted(0.7)).prop_map(|(side, qp, lost)| Line::Move { side, qp, lost }),
            2 => (side(), 0..4_u8, any::<bool>()).prop_map(|(side, qp, told)| Line::Stop { side, qp, told }),
        ]
    };
    strategy.boxed()
}

/// A program: connections, then lines of all kinds.
pub fn programs() -> BoxedStrategy<Program> {
    let strategy = {
        let first = (
            vec(
                (
                    prop_oneof![3 => Just(QpType::Rc), 1 => Just(QpType::Uc)],
                    0..3_u8,
                    side(),
                    prop::bool::weighted(0.2),
                    any::<bool>(),
                ),
                0..3,
            ),
            vec(datagrams(), 0..3),
        );
        (first, vec(line(), 5..60)).prop_map(|((connections, datagrams), lines)| {
            let connections = connections
                .into_iter()
                .map(|(service, place, side, srq, all)| Line::Connect {
                    service,
                    place,
                    side,
                    srq,
                    all,
                });
            connections.chain(datagrams).chain(lines).collect()
        })
    };
    strategy.boxed()
}
