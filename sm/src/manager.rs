//! The manager while it works: all its books at hand for the length of one call.
//!
//! Between calls the books lie in the tables of the [`Store`](crate::Store) and in [`State`]; [`Books::open`] lays rows,
//! maps, sets and queues over them. Everything that the manager does is a method of [`Manager`], in the file of what
//! it is about.

use crate::SmError;
use crate::api::{Level, Report, Role};
use crate::config::Config;
use crate::elect::Peer;
use crate::multicast::{Group, Member, Mlid};
use crate::notice::{Event, Subscription};
use crate::profile::Profile;
use crate::route::{Graph, Leaf, Link};
use crate::sa::{Reply, Service, Transfer};
use crate::smp::{Op, Slot, Work};
use crate::store::Store;
use crate::subnet::{LidRow, Node, Port, Switch};
use crate::sweep::Phase;
use crate::table::{
    GroupId, Id, Map, Mark, MemberId, NodeId, PortId, Ring, Rows, SwitchId, bits, map_slots,
};
use core_ib::{Gid, Guid, Instant, Lid};

/// Ports of one word of a multicast mask.
const POSITION: usize = 16;

/// What is not in a table.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    /// The port can carry SMPs.
    pub(crate) port_up: bool,
    /// What the owner was last told, and is to be told.
    pub(crate) is_sm: (bool, bool),
    /// Our own end port, once its NodeInfo was read.
    pub(crate) own: Option<PortId>,
    /// Its GUID.
    pub(crate) guid: Guid,
    /// Number of the sweep; the first is 1.
    pub(crate) sweep: u32,
    /// Requests of this sweep that failed.
    pub(crate) failures: u32,
    /// Sweeps in a row that were incomplete.
    pub(crate) incomplete: u32,
    /// A heavy sweep is due as soon as this one is over.
    pub(crate) again: bool,
    /// When the next light sweep is due, or the heavy one if `again`.
    pub(crate) sweep_at: Instant,
    /// The forwarding tables are written, so that LIDs work; only a master knows.
    pub(crate) routed: bool,
    /// The subnet was up since we are master.
    pub(crate) serving: bool,
    /// The administrator answers: links become Active, and may have become so before we hear of it.
    pub(crate) answering: bool,
    /// No single LID, and no block of LIDs, is free before these.
    pub(crate) free_lid: [usize; 2],
    /// The highest LID in use.
    pub(crate) top: u16,
    /// Looks at the master without an answer, and when the next is due.
    pub(crate) misses: u8,
    pub(crate) poll_at: Instant,
    /// The manager that is looked at.
    pub(crate) watched: Option<PortId>,
    /// Whom the subnet is being handed over to.
    pub(crate) heir: Option<PortId>,
    /// Stepping down was asked for.
    pub(crate) resigning: bool,
    pub(crate) act_count: u32,
    /// Lower half of the last TransactionID, and of reports.
    pub(crate) serial: u32,
    pub(crate) report_serial: u32,
    pub(crate) in_flight: usize,
    /// No request is due before.
    pub(crate) next_timeout: Instant,
    /// A request ahead of all others.
    pub(crate) urgent: Option<Op>,
    /// When the multicast tables are to be computed anew.
    pub(crate) multicast_at: Instant,
    /// Parts of multicast tables are still to be written that no list names: the sweep at hand will.
    pub(crate) mft_dropped: bool,
    /// How many of the joins that wait are in the trees that were last made.
    pub(crate) joins_made: usize,
    /// When the first service lease runs out.
    pub(crate) lease_at: Instant,
    /// No report to a subscriber is due before.
    pub(crate) report_at: Instant,
    /// No segment of a long answer is due before.
    pub(crate) transfer_at: Instant,
    /// Traps of late: what they say (hashed), how many in a row, when.
    pub(crate) recent_traps: [(u64, u8, Instant); 8],
    /// Number of the next event for subscribers.
    pub(crate) event_serial: u32,
    pub(crate) notice_count: u16,
    /// Number of the last MGID that was made up.
    pub(crate) made_up: u32,
    pub(crate) nodes_used: usize,
    pub(crate) ports_used: usize,
    pub(crate) switches_used: usize,
    /// Rows of nodes that vanished.
    pub(crate) vacant: usize,
    pub(crate) groups_used: usize,
    pub(crate) members_used: usize,
    pub(crate) free_group: Option<GroupId>,
    pub(crate) free_member: Option<MemberId>,
    /// Words of a multicast mask, and blocks of a multicast table.
    pub(crate) positions: usize,
    pub(crate) mft_blocks: usize,
    /// Multicast LIDs that every switch can hold.
    pub(crate) usable_mlids: usize,
    /// Records that fit in one answer.
    pub(crate) records: usize,
    pub(crate) lost_reports: u32,
    /// Switches in the graph of the last routing.
    pub(crate) graph_count: usize,
    /// Something that routes depend on has changed since the last routing.
    pub(crate) reroute: bool,
}

impl State {
    pub(crate) const fn new(profile: &Profile) -> Self {
        Self {
            role: Role::Discovering,
            phase: Phase::Idle,
            port_up: false,
            is_sm: (false, true),
            own: None,
            guid: Guid(0),
            sweep: 0,
            failures: 0,
            incomplete: 0,
            again: false,
            sweep_at: Instant::NEVER,
            routed: false,
            serving: false,
            answering: false,
            free_lid: [0; 2],
            top: 0,
            misses: 0,
            poll_at: Instant::NEVER,
            watched: None,
            heir: None,
            resigning: false,
            act_count: 0,
            serial: 0,
            report_serial: 0,
            in_flight: 0,
            next_timeout: Instant::NEVER,
            urgent: None,
            multicast_at: Instant::NEVER,
            mft_dropped: false,
            joins_made: 0,
            lease_at: Instant::NEVER,
            report_at: Instant::NEVER,
            transfer_at: Instant::NEVER,
            recent_traps: [(0, 0, Instant(0)); 8],
            event_serial: 0,
            notice_count: 0,
            made_up: 0,
            nodes_used: 0,
            ports_used: 0,
            switches_used: 0,
            vacant: 0,
            groups_used: 0,
            members_used: 0,
            free_group: None,
            free_member: None,
            positions: positions(profile),
            mft_blocks: mft_blocks(profile),
            usable_mlids: n(profile.mlids),
            records: n(profile.records),
            lost_reports: 0,
            graph_count: 0,
            reroute: true,
        }
    }
}

/// Makes the tables, their memory and their sizes from one list.
macro_rules! tables {
    ($($name:ident: $type:ty, $entry:literal, |$p:ident| $len:expr, $fill:expr;)*) => {
        /// The books while nobody reads them.
        pub(crate) struct Books<S: Store> {
            $($name: S::Table<$type>,)*
        }

        impl<S: Store> Books<S> {
            /// Takes the memory. Set-up only. In line, so that a manager is made by one frame and not by three.
            #[inline(always)]
            pub(crate) fn new(store: &S, profile: &Profile) -> Result<Self, SmError> {
                Ok(Self {
                    $($name: { let $p = profile; store.table($entry, $len, |_| $fill)? },)*
                })
            }

            fn slices(&mut self) -> Slices<'_> {
                Slices { $($name: &mut self.$name,)* }
            }
        }

        struct Slices<'a> {
            $($name: &'a mut [$type],)*
        }
    };
}

const fn n(count: u32) -> usize {
    count as usize
}

/// Bytes of one row of a forwarding table: whole blocks.
const fn row_len(profile: &Profile) -> usize {
    (n(profile.lids) + 1).next_multiple_of(64)
}

const fn positions(profile: &Profile) -> usize {
    (n(profile.switch_ports) + 1).div_ceil(POSITION)
}

const fn mft_blocks(profile: &Profile) -> usize {
    n(profile.mlids).div_ceil(32)
}

const fn switch_words(profile: &Profile) -> usize {
    bits::words(n(profile.switches))
}

const fn lft_words(profile: &Profile) -> usize {
    bits::words(row_len(profile) / 64)
}

const fn mft_words(profile: &Profile) -> usize {
    bits::words(mft_blocks(profile) * positions(profile))
}

tables! {
    nodes: Node, "nodes", |p| n(p.nodes), Node::BLANK;
    ports: Port, "ports", |p| n(p.ports), Port::new(NodeId::FIRST, 0);
    switches: Switch, "switches", |p| n(p.switches), Switch::BLANK;
    node_map: (Guid, u32), "nodes", |p| map_slots(p.nodes), (Guid(0), 0);
    port_map: (Guid, u32), "guids", |p| map_slots(p.guids), (Guid(0), 0);
    lids: LidRow, "lids", |p| n(p.lids) + 1, LidRow::default();
    lid_map: (Guid, u32), "guids", |p| map_slots(p.guids), (Guid(0), 0);
    lft: u8, "switches", |p| n(p.switches).saturating_mul(row_len(p)), crate::route::UNREACHABLE;
    lft_dirty: u64, "switches", |p| n(p.switches).saturating_mul(lft_words(p)), 0;
    lft_row: u8, "lids", |p| row_len(p), 0;
    mft: u16, "switches", |p| n(p.switches).saturating_mul(mft_blocks(p) * positions(p) * 32), 0;
    mft_dirty: u64, "switches", |p| n(p.switches).saturating_mul(mft_words(p)), 0;
    masks: [u16; 16], "switches", |p| n(p.switches), [0; 16];
    hops: u8, "switches", |p| n(p.switches).saturating_mul(n(p.switches)), 0;
    graph_start: u32, "switches", |p| n(p.switches) + 2, 0;
    graph_links: Link, "ports", |p| n(p.ports), Link::default();
    graph_near: u64, "switches", |p| n(p.switches).saturating_mul(switch_words(p)), 0;
    set_a: u64, "switches", |p| switch_words(p), 0;
    set_b: u64, "switches", |p| switch_words(p), 0;
    set_c: u64, "switches", |p| switch_words(p), 0;
    leaf_start: u32, "switches", |p| n(p.switches) + 2, 0;
    leaves: Leaf, "ports", |p| n(p.ports), Leaf::default();
    switch_lids: u16, "switches", |p| n(p.switches), 0;
    mlids: Mlid, "mlids", |p| n(p.mlids), Mlid::FREE;
    groups: Group, "groups", |p| n(p.groups), Group::FREE;
    group_map: (Gid, u32), "groups", |p| map_slots(p.groups), (Gid::NONE, 0);
    members: Member, "members", |p| n(p.members), Member::FREE;
    services: Service, "services", |p| n(p.services), Service::FREE;
    subscriptions: Subscription, "informs", |p| n(p.informs), Subscription::FREE;
    events: Event, "notices", |p| n(p.notices), Event::NONE;
    peers: Option<Peer>, "managers", |p| n(p.managers), None;
    slots: Slot, "window", |p| n(p.window), Slot::FREE;
    work: Work, "nodes", |p| n(p.nodes) + n(p.ports), Work::Node(NodeId::FIRST);
    transfers: Option<Transfer>, "transfers", |p| n(p.transfers), None;
    records: u32, "records", |p| n(p.transfers).saturating_mul(n(p.records)), 0;
    replies: Reply, "replies", |p| n(p.replies), Reply::NONE;
    joins: Reply, "replies", |p| n(p.replies), Reply::NONE;
    reports: Report, "replies", |_p| 128, Report::Lost { count: 0 };
}

/// The books open, for one call.
pub(crate) struct Manager<'a> {
    pub(crate) config: &'a Config<'a>,
    pub(crate) now: Instant,
    pub(crate) st: &'a mut State,
    pub(crate) nodes: Rows<'a, NodeId, Node>,
    pub(crate) ports: Rows<'a, PortId, Port>,
    pub(crate) switches: Rows<'a, SwitchId, Switch>,
    /// Nodes by NodeGUID, present or not.
    pub(crate) node_map: Map<'a, Guid>,
    /// End ports by PortGUID, present or not.
    pub(crate) port_map: Map<'a, Guid>,
    /// By LID.
    pub(crate) lids: &'a mut [LidRow],
    /// LIDs by the PortGUID that they are kept for.
    pub(crate) lid_map: Map<'a, Guid>,
    pub(crate) lft: &'a mut [u8],
    lft_dirty: &'a mut [u64],
    /// A row of a forwarding table to work with.
    pub(crate) lft_row: &'a mut [u8],
    mft: &'a mut [u16],
    mft_dirty: &'a mut [u64],
    /// A multicast mask for each switch, to work with.
    pub(crate) masks: &'a mut [[u16; 16]],
    /// The square of distances between switches.
    pub(crate) hops: &'a mut [u8],
    pub(crate) graph: Graph<'a>,
    pub(crate) sets: [&'a mut [u64]; 3],
    pub(crate) leaf_start: &'a mut [u32],
    pub(crate) leaves: &'a mut [Leaf],
    pub(crate) switch_lids: &'a mut [u16],
    pub(crate) mlids: &'a mut [Mlid],
    pub(crate) groups: Rows<'a, GroupId, Group>,
    pub(crate) group_map: Map<'a, Gid>,
    pub(crate) members: Rows<'a, MemberId, Member>,
    pub(crate) services: &'a mut [Service],
    pub(crate) subscriptions: &'a mut [Subscription],
    pub(crate) events: Ring<'a, Event>,
    /// Other managers.
    pub(crate) peers: &'a mut [Option<Peer>],
    pub(crate) slots: &'a mut [Slot],
    pub(crate) work: Ring<'a, Work>,
    pub(crate) transfers: &'a mut [Option<Transfer>],
    /// What the transfers are of, `st.records` for each.
    pub(crate) records: &'a mut [u32],
    pub(crate) replies: Ring<'a, Reply>,
    /// Answers to joins whose trees are not in the switches yet.
    pub(crate) joins: Ring<'a, Reply>,
    pub(crate) reports: Ring<'a, Report>,
}

/// Where the queues stand, apart from [`State`] so that both can be lent at once.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    work: Mark,
    reports: Mark,
    replies: Mark,
    joins: Mark,
    events: Mark,
}

impl<S: Store> Books<S> {
    /// Every port GUID that a LID is kept for, with its base LID.
    pub(crate) fn lids(&self) -> impl Iterator<Item = (Guid, Lid)> {
        let used = self.lid_map.iter().filter(|slot| slot.0 != Guid(0));
        used.map(|&(guid, lid)| (guid, Lid(lid as u16)))
    }

    /// Lays everything out.
    pub(crate) fn open<'a>(
        &'a mut self,
        st: &'a mut State,
        marks: &'a mut Marks,
        config: &'a Config<'a>,
        now: Instant,
    ) -> Manager<'a> {
        let t = self.slices();
        let count = st.graph_count;
        Manager {
            config,
            now,
            nodes: Rows::new(t.nodes),
            ports: Rows::new(t.ports),
            switches: Rows::new(t.switches),
            node_map: Map::new(t.node_map),
            port_map: Map::new(t.port_map),
            lids: t.lids,
            lid_map: Map::new(t.lid_map),
            lft: t.lft,
            lft_dirty: t.lft_dirty,
            lft_row: t.lft_row,
            mft: t.mft,
            mft_dirty: t.mft_dirty,
            masks: t.masks,
            hops: t.hops,
            graph: Graph {
                start: t.graph_start,
                links: t.graph_links,
                near: t.graph_near,
                count,
            },
            sets: [t.set_a, t.set_b, t.set_c],
            leaf_start: t.leaf_start,
            leaves: t.leaves,
            switch_lids: t.switch_lids,
            mlids: t.mlids,
            groups: Rows::new(t.groups),
            group_map: Map::new(t.group_map),
            members: Rows::new(t.members),
            services: t.services,
            subscriptions: t.subscriptions,
            events: Ring::new(t.events, &mut marks.events),
            peers: t.peers,
            slots: t.slots,
            work: Ring::new(t.work, &mut marks.work),
            transfers: t.transfers,
            records: t.records,
            replies: Ring::new(t.replies, &mut marks.replies),
            joins: Ring::new(t.joins, &mut marks.joins),
            reports: Ring::new(t.reports, &mut marks.reports),
            st,
        }
    }
}

/// The `count` entries that belong to row `at`.
pub(crate) fn part<T>(all: &[T], at: usize, count: usize) -> &[T] {
    let rest = all.get(at.saturating_mul(count)..).unwrap_or(&[]);
    rest.get(..count).unwrap_or(&[])
}

fn part_mut<T>(all: &mut [T], at: usize, count: usize) -> &mut [T] {
    let rest = all.get_mut(at.saturating_mul(count)..).unwrap_or(&mut []);
    rest.get_mut(..count).unwrap_or(&mut [])
}

impl Manager<'_> {
    /// Tells a person, if there is room. What is only for who looks for something leaves half of it to the rest.
    pub(crate) fn report(&mut self, report: Report) {
        if report.level() == Level::Debug && self.reports.len() * 2 >= self.reports.capacity() {
            return;
        }
        if !self.reports.push(report) {
            self.st.lost_reports = self.st.lost_reports.saturating_add(1);
        }
    }

    /// A table is full.
    pub(crate) fn no_room(&mut self, entry: &'static str, limit: usize) {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        self.report(Report::NoRoom { entry, limit });
    }

    /// The forwarding table of a switch, as it was written or is to be: a byte for every LID.
    pub(crate) fn lft(&self, switch: SwitchId) -> &[u8] {
        part(self.lft, switch.index(), self.lft_row.len())
    }

    /// The port by which `switch` forwards to `lid`.
    pub(crate) fn lft_port(&self, switch: SwitchId, lid: Lid) -> Option<u8> {
        let port = self.lft(switch).get(usize::from(lid.0)).copied()?;
        (port != crate::route::UNREACHABLE).then_some(port)
    }

    /// Blocks of the forwarding table of a switch that are to be written.
    pub(crate) fn lft_dirty_mut(&mut self, switch: SwitchId) -> &mut [u64] {
        let words = bits::words(self.lft_row.len() / 64);
        part_mut(self.lft_dirty, switch.index(), words)
    }

    /// Replaces the forwarding table of a switch, which has `cap` entries, by the row at hand; notes the blocks that
    /// change, and all up to the highest LID if `all`.
    pub(crate) fn replace_lft(&mut self, switch: SwitchId, cap: usize, all: bool) {
        let len = self.lft_row.len();
        let words = bits::words(len / 64);
        let dirty = part_mut(self.lft_dirty, switch.index(), words);
        let row = part_mut(self.lft, switch.index(), len);
        let top = usize::from(self.st.top) / 64;
        let (new, _) = self.lft_row.as_chunks::<64>();
        let (old, _) = row.as_chunks_mut::<64>();
        for (block, (new, old)) in new.iter().zip(old).enumerate().take(cap.div_ceil(64)) {
            if new != old || (all && block <= top) {
                *old = *new;
                bits::set(dirty, block);
            }
        }
    }

    /// All of the multicast table of a switch that is not empty is to be written.
    pub(crate) fn rewrite_mft(&mut self, switch: SwitchId) {
        let (parts, len) = (self.st.mft_blocks * self.st.positions, self.mft_len());
        let table = part(self.mft, switch.index(), len);
        let dirty = part_mut(self.mft_dirty, switch.index(), bits::words(parts));
        let (masks, _) = table.as_chunks::<32>();
        for (part, masks) in masks.iter().enumerate() {
            if masks.iter().any(|&mask| mask != 0) {
                bits::set(dirty, part);
            }
        }
    }

    fn mft_len(&self) -> usize {
        self.st.mft_blocks * self.st.positions * 32
    }

    /// The multicast table of a switch: blocks of positions of 32 masks.
    pub(crate) fn mft(&self, switch: SwitchId) -> &[u16] {
        part(self.mft, switch.index(), self.mft_len())
    }

    /// Parts of the multicast table of a switch that are to be written.
    pub(crate) fn mft_dirty_mut(&mut self, switch: SwitchId) -> &mut [u64] {
        let words = bits::words(self.st.mft_blocks * self.st.positions);
        part_mut(self.mft_dirty, switch.index(), words)
    }

    /// Sets the mask of multicast LID number `mlid` of a switch; notes what of it is to be written.
    pub(crate) fn set_mft(&mut self, switch: SwitchId, mlid: usize, mask: &[u16; 16]) {
        let (positions, len) = (self.st.positions, self.mft_len());
        let words = bits::words(self.st.mft_blocks * positions);
        let table = part_mut(self.mft, switch.index(), len);
        let dirty = part_mut(self.mft_dirty, switch.index(), words);
        for (position, &mask) in mask.iter().enumerate().take(positions) {
            let part = mlid / 32 * positions + position;
            if let Some(place) = table.get_mut(part * 32 + mlid % 32)
                && *place != mask
            {
                *place = mask;
                bits::set(dirty, part);
            }
        }
    }

    /// A switch is new, or has lost its tables: all that is not empty is to be written again.
    pub(crate) fn forget_tables(&mut self, switch: SwitchId) {
        let (lft, mft) = (self.lft_row.len(), self.mft_len());
        let parts = self.st.mft_blocks * self.st.positions;
        part_mut(self.lft, switch.index(), lft).fill(crate::route::UNREACHABLE);
        part_mut(self.mft, switch.index(), mft).fill(0);
        part_mut(self.lft_dirty, switch.index(), bits::words(lft / 64)).fill(0);
        part_mut(self.mft_dirty, switch.index(), bits::words(parts)).fill(0);
        if let Some(row) = self.switches.get_mut(switch) {
            row.rewrite = true;
        }
    }
}
