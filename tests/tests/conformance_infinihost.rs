//! The conformance suite over the InfiniHost driver on the models of the family: two machines of one world, on a cable.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use core_ib::platform::{Platform as _, Wake};
use core_ib::{Guid, Instant};
use hca_abi::infinihost::regs::CatasKind;
use mthca_hw::{Hca, Profile};
use openib_tests::conformance;
use openib_tests::conformance::{Declared, Features, Filter, Hears, Refusal, Rig, Side, TooLong};
use platform_sim::hca::infinihost::{Config, InfiniHost, Variant};
use platform_sim::machine::{
    self, Cable, Delivery, LinkControl, LinkParameters, OnReport, SendQueueFull, SimPlatform, Wire,
    WireEnd, World,
};
use std::sync::{Arc, Mutex};

/// What the driver and the model are.
const DECLARED: Declared = Declared {
    features: Features::RC
        .union(Features::UC)
        .union(Features::SRQ)
        .union(Features::CQ_RESIZE)
        .union(Features::ATOMICS)
        .union(Features::WINDOWS_1)
        .union(Features::FMR)
        .union(Features::MODIFY_AH)
        .union(Features::USERS)
        .union(Features::PATH_MIGRATION)
        .union(Features::REREGISTER)
        .union(Features::NODE_DESCRIPTION)
        .union(Features::PORT_CAPABILITIES)
        .union(Features::GSI_IMMEDIATE)
        .union(Features::SM_CHANGE)
        .union(Features::GID_CHANGE),
    ah_of_another_pd: Refusal::AtPost,
    datagram_too_long: TooLong::InCompletion,
    receive_too_short: Hears::Error,
    send_error_is_fatal: false,
    late_flush: Duration::from_millis(2100),
};

/// The same without attached memory in reach, which fast regions need.
const POOR: Declared = Declared {
    features: DECLARED.features.difference(Features::FMR),
    ..DECLARED
};

/// Late firmware of mem-free cards.
const SUMMING: Declared = Declared {
    features: DECLARED.features.union(Features::CHECKSUMS),
    ..DECLARED
};

/// The least, and a few of what is there only if somebody wants it.
const PROFILE: Profile = Profile {
    mws: 4,
    fmrs: 4,
    users: 2,
    ..Profile::SMALL
};

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicU64);

impl Wake for Counter {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A cable that can be pulled out and plugged in again.
struct Plug {
    cable: Cable,
    plugged: bool,
    /// What both ends want of their links.
    wants: [LinkControl; 2],
    filter: Arc<Mutex<Option<Filter>>>,
}

impl Plug {
    fn new(filter: Arc<Mutex<Option<Filter>>>) -> Self {
        Self {
            filter,
            cable: Cable::new(LinkParameters::X4_SDR, Duration::from_nanos(20)),
            plugged: true,
            wants: [LinkControl::Disabled; 2],
        }
    }

    fn plug(&mut self, plugged: bool, now: Instant) {
        self.plugged = plugged;
        for (end, want) in (0..).zip(self.wants) {
            let control = if plugged { want } else { LinkControl::Disabled };
            self.cable.set_link(WireEnd(end), control, now);
        }
    }
}

impl Wire for Plug {
    fn send(&mut self, end: WireEnd, packet: &[u8], now: Instant) -> Result<(), SendQueueFull> {
        let side = Side::BOTH[(end.0 & 1) as usize];
        let mut filter = self.filter.lock().unwrap();
        if filter.as_mut().is_none_or(|passes| passes(side, packet)) {
            return self.cable.send(end, packet, now);
        }
        Ok(())
    }

    fn set_link(&mut self, end: WireEnd, control: LinkControl, now: Instant) {
        self.wants[(end.0 & 1) as usize] = control;
        if self.plugged {
            self.cable.set_link(end, control, now);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        self.cable.next_event()
    }

    fn poll(&mut self, now: Instant) -> Option<Delivery> {
        self.cable.poll(now)
    }
}

/// What a case asks of the world that it runs in.
#[derive(Default)]
struct Wishes {
    /// The cable is to be out.
    unplugged: AtomicBool,
    /// The model may report offences: they are on purpose.
    offends: AtomicBool,
    /// By side: the HCA is to break, and to be pulled out.
    breaks: [AtomicBool; 2],
    goes: [AtomicBool; 2],
    over: AtomicBool,
    filter: Arc<Mutex<Option<Filter>>>,
}

impl Wishes {
    /// Is there something new to do?
    fn pending(&self, unplugged: bool) -> bool {
        let asked = self.breaks.iter().chain(&self.goes);
        let mut asked = asked.map(|flag| flag.load(Ordering::Relaxed));
        self.unplugged.load(Ordering::Relaxed) != unplugged || asked.any(|flag| flag)
    }
}

/// See [`Rig`].
struct InfiniHosts<'m> {
    hcas: [Hca<'m, SimPlatform>; 2],
    machines: [&'m SimPlatform; 2],
    wakes: [&'m Counter; 2],
    wishes: &'m Wishes,
    declared: &'static Declared,
}

impl<'m> Rig for InfiniHosts<'m> {
    type Machine = SimPlatform;
    type Hca = Hca<'m, SimPlatform>;

    fn hca(&self, side: Side) -> &Self::Hca {
        &self.hcas[side.index()]
    }

    fn machine(&self, side: Side) -> &SimPlatform {
        self.machines[side.index()]
    }

    fn declared(&self) -> &Declared {
        self.declared
    }

    fn together<'a>(&'a self, one: &'a (dyn Fn() + Sync), other: &'a (dyn Fn() + Sync)) {
        self.machine(Side::A).scope(|scope| {
            scope.spawn("one", move |_| one());
            scope.spawn("other", move |_| other());
        });
    }

    fn offends(&self) {
        self.wishes.offends.store(true, Ordering::Relaxed);
    }

    fn wakes(&self, side: Side) -> u64 {
        self.wakes[side.index()].0.load(Ordering::Relaxed)
    }

    fn break_down(&self, side: Side) {
        self.offends();
        self.wishes.breaks[side.index()].store(true, Ordering::Relaxed);
        self.machine(Side::A).sleep(Duration::from_micros(10));
    }

    fn pull_out(&self, side: Side) {
        self.offends();
        self.wishes.goes[side.index()].store(true, Ordering::Relaxed);
        self.machine(Side::A).sleep(Duration::from_micros(10));
    }

    fn filter(&self, filter: Option<Filter>) {
        *self.wishes.filter.lock().unwrap() = filter;
    }

    fn plug(&self, plugged: bool) {
        self.wishes.unplugged.store(!plugged, Ordering::Relaxed);
        self.machine(Side::A).sleep(Duration::from_millis(1));
    }
}

/// The run's seed; another by `CONFORMANCE_SEED`.
fn seed() -> u64 {
    let given = std::env::var("CONFORMANCE_SEED");
    given.map_or(1, |seed| {
        seed.parse().expect("CONFORMANCE_SEED is a number")
    })
}

/// Longer than any case takes, in the world's time.
const LIMIT: Duration = Duration::from_secs(3600);

/// Two whole machines.
fn rig(case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    run(&|_| (), false, &DECLARED, case);
}

/// The least that a machine and a card can be: 32-bit accesses, an interrupt pin, attached memory out of reach, one
/// port, commands that take their time.
fn poor(case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    let make_poor = |card: &mut Config| {
        (card.ports, card.msix, card.hidden_ddr) = (1, false, true);
        card.command_time = Duration::from_micros(30);
    };
    run(&make_poor, true, &POOR, case);
}

/// Two machines whose cards are of this variant, which is mem-free.
fn of(variant: Variant, case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    let change = move |card: &mut Config| *card = Config::of(variant, card.node_guid);
    run(&change, false, &SUMMING, case);
}

/// The MT25208 as it is without an MT23108's firmware: mem-free, two ports.
fn arbel(case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    of(Variant::Arbel, case);
}

/// The MT25204: mem-free, one port, keys of its own.
fn sinai(case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    of(Variant::Sinai, case);
}

/// The least that a mem-free card and its machine can be: under its old number, 32-bit accesses, an interrupt pin,
/// commands that take their time.
fn poor_sinai(case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static) {
    let make_poor = |card: &mut Config| {
        *card = Config::of(Variant::SinaiOld, card.node_guid);
        card.msix = false;
        card.command_time = Duration::from_micros(30);
    };
    run(&make_poor, true, &DECLARED, case);
}

/// Runs `case` in a rig of its own.
fn run(
    change: &dyn Fn(&mut Config),
    narrow: bool,
    declared: &'static Declared,
    case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static,
) {
    let config = machine::Config {
        seed: seed(),
        narrow,
        ..machine::Config::default()
    };
    run_in(config, change, declared, case);
}

/// The same in a world that is configured so.
fn run_in(
    config: machine::Config,
    change: &dyn Fn(&mut Config),
    declared: &'static Declared,
    case: impl FnOnce(&InfiniHosts<'_>) + Send + 'static,
) {
    let config = machine::Config {
        on_report: OnReport::Collect,
        ..config
    };
    let wishes = Arc::new(Wishes::default());
    let mut world = World::with(config, Plug::new(wishes.filter.clone()));
    let [a, b] = [(0, "host-a"), (1, "host-b")].map(|(end, name)| {
        let mut card = Config::new(Guid(0x0002_c900_0000_0100 + (u64::from(end) << 8)));
        change(&mut card);
        world.add_host(name, Box::new(InfiniHost::new(card)), &[WireEnd(end)])
    });
    let peer = world.platform(b);
    let asked = wishes.clone();
    let task = world.spawn(a, "case", move |machine| {
        let machines = [machine, &peer];
        let counters = [Counter::default(), Counter::default()];
        let open = |at: usize| Hca::open(machines[at], &counters[at], &PROFILE).unwrap();
        let rig = InfiniHosts {
            hcas: [open(0), open(1)],
            machines,
            wakes: [&counters[0], &counters[1]],
            wishes: &asked,
            declared,
        };
        case(&rig);
        drop(rig);
        asked.over.store(true, Ordering::Relaxed);
    });
    let mut unplugged = false;
    let goes_on = || !wishes.over.load(Ordering::Relaxed);
    while goes_on() && world.now() < Instant(0).after(LIMIT) {
        world.run_while(LIMIT, || goes_on() && !wishes.pending(unplugged));
        if wishes.unplugged.load(Ordering::Relaxed) != unplugged {
            unplugged = !unplugged;
            world.with_wire(|plug: &mut Plug, now| plug.plug(!unplugged, now));
        }
        for (at, host) in [a, b].into_iter().enumerate() {
            if wishes.breaks[at].swap(false, Ordering::Relaxed) {
                world.with_model(host, |hca: &mut InfiniHost, _| {
                    hca.break_down(CatasKind::INTERNAL);
                });
            }
            if wishes.goes[at].swap(false, Ordering::Relaxed) {
                world.remove_function(host);
            }
        }
    }
    if let Err(stuck) = world.finish(task) {
        panic!("{stuck}");
    }
    let reports = world.take_reports();
    let offends = wishes.offends.load(Ordering::Relaxed);
    assert!(offends || reports.is_empty(), "{reports:#?}");
}

conformance!(infinihost, rig);
conformance!(poor_infinihost, poor);
conformance!(arbel_infinihost, arbel);
conformance!(sinai_infinihost, sinai);
conformance!(poor_sinai_infinihost, poor_sinai);
conformance!(infinihost_connections, rig, connections);
conformance!(poor_infinihost_connections, poor, connections);
conformance!(arbel_infinihost_connections, arbel, connections);
conformance!(sinai_infinihost_connections, sinai, connections);
conformance!(poor_sinai_infinihost_connections, poor_sinai, connections);

#[path = "user/mod.rs"]
mod user;

#[test]
fn a_process_sends_receives_polls_and_sleeps_by_its_own_page() {
    rig(|rig| user::a_process_sends_receives_polls_and_sleeps_by_its_own_page(rig, false));
    poor(|rig| user::a_process_sends_receives_polls_and_sleeps_by_its_own_page(rig, false));
    arbel(|rig| user::a_process_sends_receives_polls_and_sleeps_by_its_own_page(rig, true));
    poor_sinai(|rig| user::a_process_sends_receives_polls_and_sleeps_by_its_own_page(rig, true));
}

#[test]
fn a_process_rings_for_nobody_elses_queue() {
    rig(|rig| user::a_process_rings_for_nobody_elses_queue(rig, false));
    sinai(|rig| user::a_process_rings_for_nobody_elses_queue(rig, true));
}

/// The cases of several contexts at once, ours and the interrupts', in one world after the other: by the wall's clock, and
/// in virtual time with as many seeds, where a processor may be taken away at any point.
fn several_at_once(config: &machine::Config) {
    use conformance::{churn, cq, fmr, posting, qp_states};
    type Case = fn(&InfiniHosts<'_>);
    let cases: [Case; 6] = [
        |rig| churn::connections_come_and_go_beside_others(rig),
        |rig| cq::two_pollers_share_the_completions_and_neither_sees_one_twice(rig),
        |rig| cq::who_arms_and_then_polls_until_empty_never_misses_a_completion(rig),
        |rig| fmr::contexts_that_map_at_once_share_no_key_and_an_unmap_leaves_none(rig),
        |rig| posting::lists_of_two_posters_do_not_mix(rig),
        |rig| qp_states::two_who_modify_one_qp_get_the_results_of_some_order(rig),
    ];
    for variant in [Variant::Tavor, Variant::Arbel] {
        let change = move |card: &mut Config| *card = Config::of(variant, card.node_guid);
        for case in cases {
            run_in(config.clone(), &change, &DECLARED, case);
        }
    }
}

#[test]
fn several_contexts_at_once_by_the_clock_of_the_wall() {
    for _ in 0..if openib_tests::scenario::long() {
        20
    } else {
        2
    } {
        several_at_once(&machine::Config {
            mode: machine::Mode::RealTime,
            ..machine::Config::default()
        });
    }
}

#[test]
fn several_contexts_at_once_in_many_interleavings() {
    for seed in 0..u64::from(openib_tests::scenario::cases(2, 500)) {
        several_at_once(&machine::Config {
            seed,
            stalls: 20_000,
            ..machine::Config::default()
        });
    }
}

/// Contexts that make, use and end objects, beside each other and the interrupts, for some time of the wall's: a few
/// seconds, or ten minutes. All requests complete, and nothing is left in HCA or driver.
fn a_crowd(variant: Variant) {
    let time = Duration::from_secs(if openib_tests::scenario::long() {
        600
    } else {
        2
    });
    let config = machine::Config {
        mode: machine::Mode::RealTime,
        ..machine::Config::default()
    };
    let change = move |card: &mut Config| *card = Config::of(variant, card.node_guid);
    run_in(config, &change, &DECLARED, move |rig| {
        conformance::tools::activate(rig);
        let before = [rig.hcas[0].left(), rig.hcas[1].left()];
        let begin = std::time::Instant::now();
        let tallies = Mutex::new(Vec::new());
        rig.machine(Side::A).scope(|scope| {
            for (who, name) in (1..).zip(["one", "two", "three", "four"]) {
                let tallies = &tallies;
                scope.spawn(name, move |_| {
                    let tally = conformance::crowd::live(rig, who, &|| begin.elapsed() < time);
                    tallies.lock().unwrap().push(tally);
                });
            }
        });
        for tally in tallies.into_inner().unwrap() {
            println!("{variant:?}: {tally:?}");
            assert!(tally.lives > 1);
        }
        for (hca, before) in rig.hcas.iter().zip(before) {
            assert_eq!(hca.left(), before);
        }
    });
}

#[test]
fn a_crowd_of_contexts_leaves_nothing_behind_on_tavor() {
    a_crowd(Variant::Tavor);
}

#[test]
fn a_crowd_of_contexts_leaves_nothing_behind_on_arbel() {
    a_crowd(Variant::Arbel);
}
