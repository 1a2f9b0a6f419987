//! Unicast routing: distances between switches, and which port each LID leaves by. protocols 9.5.1.
//!
//! Pure functions over slices. Switches are numbered densely in the order of their rows; a [`Graph`] holds the links
//! between them, a matrix of bytes the hops. A route goes by ports that are one hop nearer to the destination's
//! switch, so that no loop is possible; the LIDs of one switch are spread evenly over such ports; a LID keeps the
//! port that it has as long as this stays so.

use crate::table::bits;

/// Hops between switches that do not reach each other.
pub(crate) const FAR: u8 = 0xff;
/// Entry of a forwarding table for a LID that cannot be reached. protocols 3.8.9.
pub(crate) const UNREACHABLE: u8 = 0xff;

/// A port of a switch that leads to another switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Output port.
    pub(crate) port: u8,
    /// Port at the other end.
    pub(crate) back: u8,
    /// Switch at the other end.
    pub(crate) to: u16,
}

/// Switches and the links between them.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    /// Where the links of each switch begin; one more than there are switches.
    pub(crate) start: &'a mut [u32],
    /// Links, by switch, then by port.
    pub(crate) links: &'a mut [Link],
    /// For each switch the set of its neighbours, [`words`](Self::words) words each.
    pub(crate) near: &'a mut [u64],
    /// Switches there are.
    pub(crate) count: usize,
}

impl Graph<'_> {
    /// Words of a set of switches.
    pub(crate) const fn words(&self) -> usize {
        bits::words(self.count)
    }

    /// The links of switch `at`, by port.
    pub(crate) fn links(&self, at: usize) -> &[Link] {
        let bound = |at: usize| self.start.get(at).map_or(0, |&at| at as usize);
        self.links.get(bound(at)..bound(at + 1)).unwrap_or(&[])
    }

    /// Forgets everything; `count` switches follow, each by its links in turn.
    pub(crate) fn clear(&mut self, count: usize) {
        self.count = count;
        let used = count * bits::words(count);
        self.near.iter_mut().take(used).for_each(|word| *word = 0);
        self.start.fill(0);
    }

    /// Adds a link of switch `at`; the switches come in order. Says whether there was room.
    pub(crate) fn push(&mut self, at: usize, link: Link) -> bool {
        let end = self.start.get(at + 1).copied().unwrap_or(0);
        let Some(place) = self.links.get_mut(end as usize) else {
            return false;
        };
        *place = link;
        if let Some(end) = self.start.get_mut(at + 1) {
            *end += 1;
        }
        let words = self.words();
        let near = self.near.get_mut(at * words..).unwrap_or(&mut []);
        let near = near.get_mut(..words).unwrap_or(&mut []);
        bits::set(near, usize::from(link.to));
        true
    }

    /// All links of switch `at` are there.
    pub(crate) fn finish(&mut self, at: usize) {
        let end = self.start.get(at + 1).copied().unwrap_or(0);
        if let Some(next) = self.start.get_mut(at + 2) {
            *next = end;
        }
    }

    /// Fills `hops`, a square of `count` rows: breadth first from every switch, by whole words of switches.
    /// `front`, `next` and `seen` are sets to work with.
    pub(crate) fn distances(
        &self,
        hops: &mut [u8],
        front: &mut [u64],
        next: &mut [u64],
        seen: &mut [u64],
    ) {
        let words = self.words();
        let (Some(front), Some(next), Some(seen)) = (
            front.get_mut(..words),
            next.get_mut(..words),
            seen.get_mut(..words),
        ) else {
            return;
        };
        if self.count == 0 {
            return;
        }
        for (from, row) in hops
            .chunks_exact_mut(self.count)
            .take(self.count)
            .enumerate()
        {
            row.fill(FAR);
            front.fill(0);
            seen.fill(0);
            bits::set(front, from);
            bits::set(seen, from);
            for distance in 0..FAR {
                next.fill(0);
                for switch in bits::each(front) {
                    if let Some(place) = row.get_mut(switch) {
                        *place = distance;
                    }
                    let near = self.near.get(switch * words..).unwrap_or(&[]);
                    for (next, near) in next.iter_mut().zip(near) {
                        *next |= near;
                    }
                }
                let mut any = 0;
                for ((next, seen), front) in next.iter().zip(&mut *seen).zip(&mut *front) {
                    *front = next & !*seen;
                    *seen |= *front;
                    any |= *front;
                }
                if any == 0 {
                    break;
                }
            }
        }
    }
}

/// What hangs on the switches: for each, the end ports by number of port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaves<'a> {
    /// Where the leaves of each switch begin; one more than there are switches.
    pub(crate) start: &'a [u32],
    /// By switch, then by port.
    pub(crate) leaves: &'a [Leaf],
    /// LID of each switch itself.
    pub(crate) switch_lids: &'a [u16],
    /// Every leaf has 2^LMC LIDs.
    pub(crate) lmc: u8,
}

/// An end port on a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Port of the switch.
    pub(crate) port: u8,
    /// Its base LID.
    pub(crate) lid: u16,
}

impl Leaves<'_> {
    fn of(&self, switch: usize) -> &[Leaf] {
        let bound = |at: usize| self.start.get(at).map_or(0, |&at| at as usize);
        self.leaves
            .get(bound(switch)..bound(switch + 1))
            .unwrap_or(&[])
    }
}

/// Fills `row`, the table of switch `from` by LID. `present` is the row that is in force, of which entries are kept
/// where they are as good as any; `hops` the square of distances.
pub(crate) fn row(
    graph: &Graph<'_>,
    hops: &[u8],
    leaves: Leaves<'_>,
    from: usize,
    present: &[u8],
    row: &mut [u8],
) {
    row.fill(UNREACHABLE);
    let mut load = [0_u32; 256];
    let hops_of = |switch: usize| hops.get(switch * graph.count..).unwrap_or(&[]);
    let own = hops_of(from);
    for to in 0..graph.count {
        let switch_lid = usize::from(leaves.switch_lids.get(to).copied().unwrap_or(0));
        if to == from {
            set(row, switch_lid, 0);
            for leaf in leaves.of(to) {
                for offset in 0..1 << leaves.lmc {
                    set(row, usize::from(leaf.lid) + offset, leaf.port);
                }
            }
            continue;
        }
        let distance = own.get(to).copied().unwrap_or(FAR);
        if distance == FAR {
            continue;
        }
        let mut ports = [0_u8; 255];
        let mut count = 0;
        for link in graph.links(from) {
            let theirs = hops_of(usize::from(link.to))
                .get(to)
                .copied()
                .unwrap_or(FAR);
            if theirs != FAR
                && theirs + 1 == distance
                && let Some(place) = ports.get_mut(count)
            {
                *place = link.port;
                count += 1;
            }
        }
        let ports = ports.get(..count).unwrap_or(&[]);
        spread(ports, leaves, to, present, row, &mut load);
        if switch_lid != 0 {
            let kept = present.get(switch_lid).filter(|port| ports.contains(port));
            let chosen = kept.or_else(|| ports.iter().cycle().nth(to % ports.len().max(1)));
            set(row, switch_lid, chosen.copied().unwrap_or(UNREACHABLE));
        }
    }
}

/// Spreads the leaves of switch `to` over `ports`, all equally near.
fn spread(
    ports: &[u8],
    leaves: Leaves<'_>,
    to: usize,
    present: &[u8],
    row: &mut [u8],
    load: &mut [u32; 256],
) {
    let leaves_there = leaves.of(to);
    if leaves_there.is_empty() || ports.is_empty() {
        return;
    }
    let share = leaves_there.len().div_ceil(ports.len().max(1));
    let mut allowed = [0; 4];
    for &port in ports {
        bits::set(&mut allowed, port.into());
    }
    for offset in 0..1_usize << leaves.lmc {
        // LIDs of this offset on each port, by port number.
        let mut taken = [0_u16; 256];
        for leaf in leaves_there {
            let lid = usize::from(leaf.lid) + offset;
            let kept = present.get(lid).copied();
            let Some(port) = kept.filter(|&port| bits::get(&allowed, port.into())) else {
                continue;
            };
            if earlier(row, lid, offset).contains(&port) && ports.len() > offset {
                continue;
            }
            if let Some(taken) = taken.get_mut(usize::from(port))
                && usize::from(*taken) < share
            {
                *taken += 1;
                set(row, lid, port);
                add(load, port);
            }
        }
        // The others go around, the least loaded port first; one that has more already waits for its level.
        let mut order = [0_u8; 255];
        let order = order.get_mut(..ports.len()).unwrap_or(&mut []);
        order.copy_from_slice(ports);
        let load_of = |port: u8| load.get(usize::from(port)).copied().unwrap_or(0);
        order.sort_unstable_by_key(|&port| (load_of(port), port));
        let mut around = (0..=share).flat_map(|level| order.iter().map(move |&port| (level, port)));
        for leaf in leaves_there {
            let lid = usize::from(leaf.lid) + offset;
            if row.get(lid) != Some(&UNREACHABLE) {
                continue;
            }
            let used = earlier(row, lid, offset);
            let free = around.find(|&(level, port)| {
                let taken = taken.get(usize::from(port)).copied().unwrap_or(0);
                usize::from(taken) <= level && (ports.len() <= offset || !used.contains(&port))
            });
            // Only where the ports of other LIDs of the leaf were passed over can it come to an end too early.
            let any = ports.iter().cycle().nth(lid % ports.len().max(1));
            if let Some(port) = free.map(|(_, port)| port).or(any.copied()) {
                if let Some(taken) = taken.get_mut(usize::from(port)) {
                    *taken += 1;
                }
                set(row, lid, port);
                add(load, port);
            }
        }
    }
}

/// Ports of the LIDs of the same end port before `lid`, which is at `offset`.
fn earlier(row: &[u8], lid: usize, offset: usize) -> &[u8] {
    row.get(lid.saturating_sub(offset)..lid).unwrap_or(&[])
}

fn set(row: &mut [u8], lid: usize, port: u8) {
    if lid != 0
        && let Some(place) = row.get_mut(lid)
    {
        *place = port;
    }
}

fn add(load: &mut [u32; 256], port: u8) {
    if let Some(load) = load.get_mut(usize::from(port)) {
        *load += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};
    use std::vec;
    use std::vec::Vec;

    /// A fabric of switches, and how many end ports hang on each: `(a, port, b, port)` is a cable.
    #[derive(Clone, Debug, Default)]
    struct Fabric {
        switches: usize,
        cables: Vec<(usize, u8, usize, u8)>,
        leaves: Vec<Vec<Leaf>>,
        switch_lids: Vec<u16>,
        lmc: u8,
    }

    impl Fabric {
        fn new(switches: usize, pairs: &[(usize, usize)], hosts: &[usize], lmc: u8) -> Self {
            let mut next_port = vec![1_u8; switches];
            let mut port = |switch: usize| {
                next_port[switch] += 1;
                next_port[switch] - 1
            };
            let cables = pairs
                .iter()
                .map(|&(a, b)| (a, port(a), b, port(b)))
                .collect();
            let mut lid = 1 << lmc;
            let mut leaves = vec![Vec::new(); switches];
            for (switch, leaves) in leaves.iter_mut().enumerate() {
                for _ in 0..hosts[switch] {
                    leaves.push(Leaf {
                        port: port(switch),
                        lid,
                    });
                    lid += 1 << lmc;
                }
            }
            let switch_lids = (0..switches as u16).map(|switch| lid + switch).collect();
            Self {
                switches,
                cables,
                leaves,
                switch_lids,
                lmc,
            }
        }

        /// The rows of all switches, given those in force.
        fn rows(&self, present: Option<&[Vec<u8>]>) -> Vec<Vec<u8>> {
            let n = self.switches;
            let words = bits::words(n);
            let mut start = vec![0; n + 2];
            let mut links = vec![Link::default(); 2 * self.cables.len() + 1];
            let mut near = vec![0; n * words];
            let mut graph = Graph {
                start: &mut start,
                links: &mut links,
                near: &mut near,
                count: n,
            };
            graph.clear(n);
            for at in 0..n {
                let ends = self.cables.iter();
                let ends = ends.flat_map(|&(a, p, b, q)| [(a, p, b, q), (b, q, a, p)]);
                let mut own: Vec<_> = ends.filter(|end| end.0 == at && end.2 != at).collect();
                own.sort_unstable();
                for (_, port, to, back) in own {
                    let to = to as u16;
                    assert!(graph.push(at, Link { port, back, to }));
                }
                graph.finish(at);
            }
            let mut hops = vec![0; n * n];
            let [mut front, mut next, mut seen] = [0, 0, 0].map(|_| vec![0; words]);
            graph.distances(&mut hops, &mut front, &mut next, &mut seen);
            let mut leaf_start = vec![0];
            for leaves in &self.leaves {
                leaf_start.push(leaf_start.last().unwrap() + leaves.len() as u32);
            }
            let all: Vec<_> = self.leaves.iter().flatten().copied().collect();
            let leaves = Leaves {
                start: &leaf_start,
                leaves: &all,
                switch_lids: &self.switch_lids,
                lmc: self.lmc,
            };
            let top = usize::from(*self.switch_lids.iter().max().unwrap());
            let unknown = vec![UNREACHABLE; top + 1];
            let of = |at: usize| {
                let mut new = vec![0; top + 1];
                let present = present.map_or(&unknown, |rows| &rows[at]);
                row(&graph, &hops, leaves, at, present, &mut new);
                new
            };
            (0..n).map(of).collect()
        }

        /// Distances by the textbook.
        fn distances(&self) -> Vec<Vec<Option<usize>>> {
            (0..self.switches)
                .map(|from| {
                    let mut row = vec![None; self.switches];
                    row[from] = Some(0);
                    let mut queue = VecDeque::from([from]);
                    while let Some(at) = queue.pop_front() {
                        for &(a, _, b, _) in &self.cables {
                            for (a, b) in [(a, b), (b, a)] {
                                if a == at && row[b].is_none() {
                                    row[b] = row[at].map(|hops| hops + 1);
                                    queue.push_back(b);
                                }
                            }
                        }
                    }
                    row
                })
                .collect()
        }

        /// Walks from `from` toward `lid`: the switch and the port where it leaves the switches, and the hops.
        fn walk(&self, rows: &[Vec<u8>], from: usize, lid: u16) -> Option<(usize, u8, usize)> {
            let ends = self
                .cables
                .iter()
                .flat_map(|&(a, p, b, q)| [((a, p), b), ((b, q), a)]);
            let far: HashMap<_, _> = ends.collect();
            let mut at = from;
            for hops in 0..=self.switches {
                match rows[at][usize::from(lid)] {
                    UNREACHABLE => return None,
                    port => match far.get(&(at, port)) {
                        Some(&next) => at = next,
                        None => return Some((at, port, hops)),
                    },
                }
            }
            panic!("a loop from switch {from} to LID {lid}");
        }

        fn check(&self, rows: &[Vec<u8>]) {
            for (from, distances) in self.distances().iter().enumerate() {
                for (to, &hops) in distances.iter().enumerate() {
                    let walk = |lid| self.walk(rows, from, lid);
                    assert_eq!(walk(self.switch_lids[to]), hops.map(|hops| (to, 0, hops)));
                    for leaf in &self.leaves[to] {
                        for lid in leaf.lid..leaf.lid + (1 << self.lmc) {
                            assert_eq!(walk(lid), hops.map(|hops| (to, leaf.port, hops)));
                        }
                    }
                }
            }
        }
    }

    fn fabric() -> impl Strategy<Value = Fabric> {
        (1..20_usize, 0..3_u8).prop_flat_map(|(switches, lmc)| {
            let pair = (0..switches, 0..switches);
            let pairs = proptest::collection::vec(pair, 0..3 * switches);
            let hosts = proptest::collection::vec(0..4_usize, switches);
            (pairs, hosts).prop_map(move |(pairs, hosts)| {
                let pairs: Vec<_> = pairs.into_iter().filter(|(a, b)| a != b).collect();
                Fabric::new(switches, &pairs, &hosts, lmc)
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_lid_is_reached_by_a_shortest_way_or_not_at_all(fabric in fabric()) {
            let rows = fabric.rows(None);
            fabric.check(&rows);
            prop_assert_eq!(fabric.rows(Some(&rows)), rows, "nothing changed, so nothing changes");
        }

        #[test]
        fn a_cable_that_goes_moves_only_what_it_carried(
            fabric in fabric(), which: proptest::sample::Index,
        ) {
            if fabric.cables.is_empty() {
                return Ok(());
            }
            let before = fabric.rows(None);
            let mut cut = fabric.clone();
            let (a, _, b, _) = cut.cables.remove(which.index(fabric.cables.len()));
            let after = cut.rows(Some(&before));
            cut.check(&after);
            if fabric.distances() == cut.distances() {
                for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                    // Elsewhere nothing moves: the same ports are as near as before.
                    if at != a && at != b {
                        prop_assert_eq!(before, after);
                    }
                }
            }
        }
    }

    /// Two levels: every leaf switch has a cable to each spine.
    fn tree(leaves: usize, spines: usize, hosts: usize, lmc: u8) -> Fabric {
        let pair = |leaf| (0..spines).map(move |spine| (leaf, leaves + spine));
        let pairs: Vec<_> = (0..leaves).flat_map(pair).collect();
        let mut on = vec![hosts; leaves];
        on.resize(leaves + spines, 0);
        Fabric::new(leaves + spines, &pairs, &on, lmc)
    }

    #[test]
    fn the_hosts_of_a_leaf_are_spread_evenly_over_the_spines() {
        let fabric = tree(4, 6, 6, 0);
        let rows = fabric.rows(None);
        fabric.check(&rows);
        for (from, row) in rows.iter().enumerate().take(4) {
            for to in (0..4).filter(|&to| to != from) {
                let used = fabric.leaves[to]
                    .iter()
                    .map(|leaf| row[usize::from(leaf.lid)]);
                let mut used: Vec<_> = used.collect();
                used.sort_unstable();
                used.dedup();
                assert_eq!(used.len(), 6, "from leaf {from} to leaf {to}");
            }
        }
    }

    #[test]
    fn the_lids_of_one_port_leave_by_different_ports() {
        let fabric = tree(3, 4, 5, 2);
        let rows = fabric.rows(None);
        fabric.check(&rows);
        for leaf in &fabric.leaves[1] {
            let lids = usize::from(leaf.lid)..usize::from(leaf.lid) + 4;
            let mut used = rows[0][lids].to_vec();
            used.sort_unstable();
            assert_eq!(used, [1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_spine_that_returns_is_used_again() {
        let whole = tree(3, 4, 8, 0);
        let mut cut = whole.clone();
        cut.cables.retain(|cable| cable.2 != 3);
        let without = cut.rows(Some(&whole.rows(None)));
        cut.check(&without);
        let again = whole.rows(Some(&without));
        whole.check(&again);
        for (from, row) in again.iter().enumerate().take(3) {
            let by_first_spine = row.iter().filter(|&&port| port == 1).count();
            assert!(
                by_first_spine >= 4,
                "leaf {from} sends {by_first_spine} LIDs that way"
            );
        }
    }
}
