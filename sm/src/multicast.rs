//! Multicast: groups, their members, and the tree of each multicast LID. protocols 4.6, 9.7.
//!
//! A tree is made of the shortest ways from the switches of the members to a root: every switch of the tree has one way
//! toward the root, so a packet reaches every member once, wherever it is sent. Changes are gathered for a moment and
//! then written.

use crate::api::Report;
use crate::config::Broadcast;
use crate::manager::Manager;
use crate::route::{FAR, Graph};
use crate::smp::{Op, Slot};
use crate::subnet::{NodeTodo, PortFlags, Switch};
use crate::table::{GroupId, Id, MemberId, PortId, SwitchId};
use core_ib::wire::FlowLabel;
use core_ib::wire::mad::{JoinState, MtuCode, TimeCode};
use core_ib::{Gid, Instant, Lid, PKey, QKey, Rate, Sl};

/// One multicast LID.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mlid {
    /// Groups that share it; 0 if it is free.
    pub(crate) groups: u32,
    /// The last of them to come.
    first: Option<GroupId>,
    /// Number of their partition: groups of others do not share it.
    pub(crate) base: u16,
    /// Root of the tree when it was made last.
    root: u16,
    /// The tree is to be made anew.
    pub(crate) dirty: bool,
}

impl Mlid {
    pub(crate) const FREE: Self = Self {
        groups: 0,
        first: None,
        base: 0,
        root: 0,
        dirty: false,
    };
}

/// A multicast group. Its members are a list in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// None of a free row.
    pub(crate) mgid: Gid,
    pub(crate) mlid: Lid,
    pub(crate) q_key: QKey,
    pub(crate) p_key: PKey,
    pub(crate) mtu: MtuCode,
    pub(crate) rate: Rate,
    pub(crate) packet_life_time: TimeCode,
    pub(crate) sl: Sl,
    pub(crate) tclass: u8,
    pub(crate) flow_label: FlowLabel,
    pub(crate) hop_limit: u8,
    pub(crate) scope: u8,
    /// Stays without members.
    pub(crate) permanent: bool,
    /// Members that keep it alive.
    pub(crate) full: u32,
    pub(crate) first: Option<MemberId>,
    /// The next group with this multicast LID, or the next free row.
    pub(crate) next: Option<GroupId>,
}

impl Group {
    pub(crate) const FREE: Self = Self {
        mgid: Gid::NONE,
        mlid: Lid::NONE,
        q_key: QKey(0),
        p_key: PKey(0),
        mtu: MtuCode(0),
        rate: Rate::PORT,
        packet_life_time: TimeCode(0),
        sl: Sl::new(0),
        tclass: 0,
        flow_label: FlowLabel::new(0),
        hop_limit: 0,
        scope: 0,
        permanent: false,
        full: 0,
        first: None,
        next: None,
    };
}

/// A port in a group: in the list of the group and in that of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) group: GroupId,
    pub(crate) port: PortId,
    /// Empty of a free row.
    pub(crate) state: JoinState,
    /// Asked for by another port.
    pub(crate) proxy: bool,
    before: Option<MemberId>,
    after: Option<MemberId>,
    /// Next membership of the port, or next free row.
    next: Option<MemberId>,
}

impl Member {
    pub(crate) const FREE: Self = Self {
        group: GroupId::FIRST,
        port: PortId::FIRST,
        state: JoinState::empty(),
        proxy: false,
        before: None,
        after: None,
        next: None,
    };
}

/// States that keep a group alive.
pub(crate) const ALIVE: JoinState = JoinState::FULL_MEMBER.union(JoinState::SEND_ONLY_FULL_MEMBER);
/// States that receive.
const RECEIVES: JoinState = JoinState::FULL_MEMBER.union(JoinState::NON_MEMBER);

impl Manager<'_> {
    pub(crate) fn group_of(&self, mgid: Gid) -> Option<GroupId> {
        GroupId::new(self.group_map.get(mgid)? as usize)
    }

    /// Rows of groups in use, free ones among them.
    pub(crate) fn all_groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.st.groups_used).filter_map(GroupId::new)
    }

    /// The members of a group.
    pub(crate) fn members_of(&self, group: GroupId) -> impl Iterator<Item = (MemberId, &Member)> {
        let mut at = self.groups.get(group).and_then(|row| row.first);
        core::iter::from_fn(move || {
            let id = at?;
            let row = self.members.get(id)?;
            at = row.after;
            Some((id, row))
        })
    }

    /// The membership of a port in a group.
    pub(crate) fn membership(&self, group: GroupId, port: PortId) -> Option<MemberId> {
        let mut at = self.ports.get(port)?.members;
        while let Some(id) = at {
            let row = self.members.get(id)?;
            if row.group == group {
                return Some(id);
            }
            at = row.next;
        }
        None
    }

    /// The groups that exist from the start: the broadcast group of every partition with IP. protocols 9.8.
    pub(crate) fn found_groups(&mut self) {
        self.count_mlids();
        let config = self.config;
        for (base, broadcast) in config.broadcasts() {
            let mgid = broadcast.mgid(base);
            if self.group_of(mgid).is_none() {
                self.add_group(self.broadcast_group(base, &broadcast));
            }
        }
        self.remake_all();
    }

    /// A new master knows no groups.
    pub(crate) fn forget_groups(&mut self) {
        for id in self.all_groups() {
            while let Some(member) = self.groups.get(id).and_then(|row| row.first) {
                self.remove_member(member);
            }
            if self.groups.get(id).is_some_and(|row| !row.mgid.is_none()) {
                self.remove_group(id);
            }
        }
    }

    /// The slowest adapter port in a partition, if it is slower than `rate`.
    fn slowest_in(&self, base: u16, rate: Rate) -> Rate {
        let rows = self.all_ports().filter_map(|port| {
            let row = self.ports.get(port)?;
            let adapter = row.number != 0 && row.has(PortFlags::PRESENT);
            let member = || self.config.p_key_in(row.guid, PKey(base)).is_some();
            (adapter && member()).then_some(row.rate)
        });
        let slower = rows.filter(|row| row.mbps().is_some() && row.mbps() < rate.mbps());
        slower.min_by_key(|row| row.mbps()).unwrap_or(rate)
    }

    fn broadcast_group(&self, base: u16, broadcast: &Broadcast) -> Group {
        Group {
            mgid: broadcast.mgid(base),
            q_key: broadcast.q_key,
            p_key: PKey(base | 0x8000),
            mtu: broadcast.mtu.into(),
            rate: self.slowest_in(base, broadcast.rate),
            packet_life_time: self.config.packet_lifetime,
            sl: broadcast.sl,
            hop_limit: if broadcast.scope == 2 { 0 } else { 0xff },
            scope: broadcast.scope,
            permanent: true,
            ..Group::FREE
        }
    }

    /// A new group; it gets a multicast LID. `None` if there is no room.
    pub(crate) fn add_group(&mut self, group: Group) -> Option<GroupId> {
        let Some(mlid) = self.free_mlid(group.p_key.base()) else {
            self.no_room("mlids", self.mlids.len());
            return None;
        };
        let id = self
            .st
            .free_group
            .or_else(|| GroupId::new(self.st.groups_used));
        let id = id.filter(|&id| self.groups.get(id).is_some());
        let Some(id) = id else {
            self.no_room("groups", self.groups.capacity());
            return None;
        };
        if !self.group_map.insert(group.mgid, id.index() as u32) {
            return None;
        }
        let number = self.mlids.get_mut(usize::from(mlid))?;
        number.groups += 1;
        number.base = group.p_key.base();
        let new = Group {
            mlid: Lid(0xc000 | mlid),
            next: number.first.replace(id),
            ..group
        };
        let recycled = core::mem::replace(self.groups.get_mut(id)?, new);
        if self.st.free_group == Some(id) {
            self.st.free_group = recycled.next;
        } else {
            self.st.groups_used += 1;
        }
        self.group_event(true, group.mgid);
        Some(id)
    }

    /// Notes how many multicast LIDs every switch can hold.
    pub(crate) fn count_mlids(&mut self) {
        let switches = self.switches.iter().take(self.st.switches_used);
        let caps = switches.filter_map(|(_, row)| {
            let present = self.nodes.get(row.node).is_some_and(|node| node.present);
            present.then(|| usize::from(row.view().multicast_fdb_cap()))
        });
        let caps = caps.filter(|&cap| cap != 0);
        self.st.usable_mlids = caps.fold(self.mlids.len(), usize::min);
    }

    /// A multicast LID that no group has, or else one of the same partition with the fewest groups.
    fn free_mlid(&self, base: u16) -> Option<u16> {
        let rows = || self.mlids.iter().take(self.st.usable_mlids).enumerate();
        let free = rows().find(|(_, row)| row.groups == 0);
        let shared = || {
            let same = rows().filter(|(_, row)| row.base == base);
            same.min_by_key(|(_, row)| row.groups)
        };
        let (at, _) = free.or_else(shared)?;
        u16::try_from(at).ok()
    }

    /// A group that was just made and that nobody could join is gone again.
    pub(crate) fn drop_empty(&mut self, id: GroupId) {
        if self
            .groups
            .get(id)
            .is_some_and(|row| row.first.is_none() && !row.permanent)
        {
            self.remove_group(id);
        }
    }

    fn remove_group(&mut self, id: GroupId) {
        let Some(row) = self.groups.get_mut(id) else {
            return;
        };
        let (mgid, mlid, next) = (row.mgid, row.mlid, row.next);
        *row = Group {
            next: self.st.free_group,
            ..Group::FREE
        };
        self.st.free_group = Some(id);
        self.group_map.remove(mgid);
        self.give_up_mlid(usize::from(mlid.0 & 0x3fff), id, next);
        self.group_event(false, mgid);
    }

    /// Takes a group out of the list of those that share a multicast LID.
    fn give_up_mlid(&mut self, mlid: usize, id: GroupId, next: Option<GroupId>) {
        let Some(number) = self.mlids.get_mut(mlid) else {
            return;
        };
        number.groups = number.groups.saturating_sub(1);
        if number.first == Some(id) {
            number.first = next;
            return;
        }
        let mut at = number.first;
        while let Some(row) = at.and_then(|at| self.groups.get_mut(at)) {
            if row.next == Some(id) {
                row.next = next;
                return;
            }
            at = row.next;
        }
    }

    /// A port joins, or takes on further states. `None` if there is no room.
    pub(crate) fn join(
        &mut self,
        group: GroupId,
        port: PortId,
        state: JoinState,
        proxy: bool,
    ) -> Option<JoinState> {
        let id = match self.membership(group, port) {
            Some(id) => id,
            None => self.add_member(group, port, proxy)?,
        };
        let row = self.members.get_mut(id)?;
        let (before, after) = (row.state, row.state | state);
        row.state = after;
        if after != before {
            self.count_full(group, before, after);
            self.remake(group);
        }
        Some(after)
    }

    /// A port gives up states; without any it is no member any more, and a group that nobody keeps alive is gone.
    pub(crate) fn leave(&mut self, id: MemberId, state: JoinState) {
        let Some(row) = self.members.get_mut(id) else {
            return;
        };
        let (group, before, after) = (row.group, row.state, row.state - state);
        row.state = after;
        self.count_full(group, before, after);
        self.remake(group);
        if after.is_empty() {
            self.remove_member(id);
        }
        let alone = self
            .groups
            .get(group)
            .is_some_and(|row| row.full == 0 && !row.permanent);
        if alone {
            while let Some(id) = self.groups.get(group).and_then(|row| row.first) {
                self.remove_member(id);
            }
            self.remove_group(group);
        }
    }

    /// A port is out of service: it leaves every group.
    pub(crate) fn leave_all(&mut self, port: PortId) {
        while let Some(id) = self.ports.get(port).and_then(|row| row.members) {
            self.leave(id, JoinState::all());
            if self.ports.get(port).and_then(|row| row.members) == Some(id) {
                break; // cannot be: it was removed
            }
        }
    }

    fn count_full(&mut self, group: GroupId, before: JoinState, after: JoinState) {
        if let Some(row) = self.groups.get_mut(group) {
            row.full += u32::from(after.intersects(ALIVE));
            row.full = row.full.saturating_sub(u32::from(before.intersects(ALIVE)));
        }
    }

    fn add_member(&mut self, group: GroupId, port: PortId, proxy: bool) -> Option<MemberId> {
        let id = self
            .st
            .free_member
            .or_else(|| MemberId::new(self.st.members_used));
        let Some(id) = id.filter(|&id| self.members.get(id).is_some()) else {
            self.no_room("members", self.members.capacity());
            return None;
        };
        self.ports.get(port)?;
        let head = self.groups.get_mut(group)?;
        let after = head.first.replace(id);
        let own = self.ports.get_mut(port)?;
        let next = own.members.replace(id);
        let row = self.members.get_mut(id)?;
        let member = Member {
            group,
            port,
            state: JoinState::empty(),
            proxy,
            before: None,
            after,
            next,
        };
        let recycled = core::mem::replace(row, member);
        if self.st.free_member == Some(id) {
            self.st.free_member = recycled.next;
        } else {
            self.st.members_used += 1;
        }
        if let Some(row) = after.and_then(|after| self.members.get_mut(after)) {
            row.before = Some(id);
        }
        Some(id)
    }

    fn remove_member(&mut self, id: MemberId) {
        let Some(&Member {
            group,
            port,
            before,
            after,
            next,
            ..
        }) = self.members.get(id)
        else {
            return;
        };
        match before.and_then(|before| self.members.get_mut(before)) {
            Some(row) => row.after = after,
            None => {
                if let Some(row) = self.groups.get_mut(group) {
                    row.first = after;
                }
            }
        }
        if let Some(row) = after.and_then(|after| self.members.get_mut(after)) {
            row.before = before;
        }
        self.unchain(port, id, next);
        if let Some(row) = self.members.get_mut(id) {
            *row = Member {
                next: self.st.free_member,
                ..Member::FREE
            };
            self.st.free_member = Some(id);
        }
    }

    /// Takes a membership out of the list of its port.
    fn unchain(&mut self, port: PortId, id: MemberId, next: Option<MemberId>) {
        let Some(row) = self.ports.get_mut(port) else {
            return;
        };
        if row.members == Some(id) {
            row.members = next;
            return;
        }
        let mut at = row.members;
        while let Some(row) = at.and_then(|at| self.members.get_mut(at)) {
            if row.next == Some(id) {
                row.next = next;
                return;
            }
            at = row.next;
        }
    }

    /// The tree of a group is to be made anew, soon.
    fn remake(&mut self, group: GroupId) {
        let Some(mlid) = self.groups.get(group).map(|row| row.mlid) else {
            return;
        };
        if let Some(row) = self.mlids.get_mut(usize::from(mlid.0 & 0x3fff)) {
            row.dirty = true;
        }
        self.trees_soon();
    }

    /// Trees are to be looked at, soon.
    pub(crate) fn trees_soon(&mut self) {
        let soon = self.now.after(self.config.multicast_delay);
        self.st.multicast_at = self.st.multicast_at.min(soon);
    }

    /// All trees are to be made anew: the switches are not what they were.
    pub(crate) fn remake_all(&mut self) {
        for row in self.mlids.iter_mut() {
            row.dirty |= row.groups != 0;
        }
    }

    /// Makes the trees that are due after a routing.
    pub(crate) fn route_groups(&mut self) {
        self.st.multicast_at = Instant::NEVER;
        self.make_trees();
    }

    /// Makes the trees that are due between sweeps, and has them written.
    pub(crate) fn write_groups(&mut self) {
        self.st.multicast_at = Instant::NEVER;
        if !self.st.routed {
            return; // the sweep at hand makes all of them
        }
        self.make_trees();
        for id in self.all_switches() {
            let dirty = self.mft_dirty_mut(id).iter().any(|&word| word != 0);
            if let Some(node) = self.switches.get(id).map(|row| row.node).filter(|_| dirty)
                && self.nodes.get(node).is_some_and(|row| row.present)
            {
                self.node_todo(node, NodeTodo::MFT);
                if self.switch_needs_set(id) {
                    self.node_todo(node, NodeTodo::SET_SWITCH);
                }
            }
        }
    }

    /// What was last made of trees has arrived in the switches, or was given up.
    pub(crate) fn trees_are_written(&self) -> bool {
        let under_way = |slot: &Slot| matches!(slot.op, Some(Op::Mft(..)));
        let waits = |id| {
            let row: Option<&Switch> = self.switches.get(id);
            let node = row.and_then(|row| self.nodes.get(row.node));
            node.is_some_and(|node| node.todo.contains(NodeTodo::MFT))
        };
        !self.st.mft_dropped && !self.slots.iter().any(under_way) && !self.all_switches().any(waits)
    }

    /// Trees are due, and nobody waits for those before.
    pub(crate) fn groups_at(&self) -> Instant {
        if self.st.joins_made > 0 && !self.trees_are_written() {
            return Instant::NEVER;
        }
        self.st.multicast_at
    }

    fn make_trees(&mut self) {
        self.st.joins_made = self.joins.len();
        for at in 0..self.mlids.len() {
            if let Some(row) = self.mlids.get_mut(at)
                && core::mem::take(&mut row.dirty)
            {
                self.make_tree(at);
            }
        }
    }

    /// Makes the tree of one multicast LID; what changes in the switches is noted.
    fn make_tree(&mut self, mlid: usize) {
        let count = self.st.switches_used.min(self.graph.count);
        for mask in self.masks.iter_mut().take(self.st.switches_used) {
            *mask = [0; 16];
        }
        let [leaves, joined, _] = &mut self.sets;
        leaves.fill(0);
        joined.fill(0);
        // The switches that members hang on, and the ports of those that receive.
        let mut group = self.mlids.get(mlid).and_then(|row| row.first);
        while let Some(row) = group.and_then(|group| self.groups.get(group)) {
            group = row.next;
            let mut at = row.first;
            while let Some(row) = at.and_then(|at| self.members.get(at)) {
                at = row.after;
                let (port, receives) = (row.port, row.state.intersects(RECEIVES));
                if let Some((switch, number)) = self.leaf_of(port) {
                    self.note_leaf(switch, number, receives);
                }
            }
        }
        let previous = self.mlids.get(mlid).map_or(0, |row| usize::from(row.root));
        if let Some(root) = self.root_of(count, previous, mlid) {
            let [leaves, joined, _] = &mut self.sets;
            grow(
                &self.graph,
                self.hops,
                root,
                mlid,
                leaves,
                joined,
                self.masks,
            );
            if let Some(row) = self.mlids.get_mut(mlid) {
                row.root = u16::try_from(root).unwrap_or(0);
            }
        }
        for id in self.all_switches() {
            let mask = self.masks.get(id.index()).copied().unwrap_or([0; 16]);
            if self.holds(id.index(), mlid) {
                self.set_mft(id, mlid, &mask);
            }
        }
    }

    fn note_leaf(&mut self, switch: SwitchId, port: u8, receives: bool) {
        let [leaves, _, _] = &mut self.sets;
        crate::table::bits::set(leaves, switch.index());
        if receives && let Some(mask) = self.masks.get_mut(switch.index()) {
            set(mask, port);
        }
    }

    /// The root: the switch whose farthest leaf is nearest. The one before is kept if it is as good as any.
    fn root_of(&self, count: usize, previous: usize, mlid: usize) -> Option<usize> {
        let [leaves, _, _] = &self.sets;
        let mut all = crate::table::bits::each(leaves);
        let first = all.next()?;
        if all.next().is_none() {
            return Some(first);
        }
        let farthest = |from: usize| {
            let hops = crate::table::bits::each(leaves).map(|leaf| self.hops_between(from, leaf));
            // A leaf that cannot be reached from here is out of the tree whatever the root is.
            hops.filter(|&hops| hops != FAR).max().unwrap_or(FAR)
        };
        let reaches = |from: usize| self.hops_between(from, first) != FAR;
        let candidates = (0..count).filter(|&from| reaches(from) && self.holds(from, mlid));
        let turn =
            |from: usize| (from + count - mlid.checked_rem(count).unwrap_or(0)) % count.max(1);
        candidates.min_by_key(|&from| (farthest(from), from != previous, turn(from)))
    }

    /// Has the multicast table of a switch a place for this LID?
    fn holds(&self, switch: usize, mlid: usize) -> bool {
        let row = SwitchId::new(switch).and_then(|id| self.switches.get(id));
        row.is_some_and(|row| usize::from(row.view().multicast_fdb_cap()) > mlid)
    }

    /// Tells of a group that came or went.
    fn group_event(&mut self, created: bool, mgid: Gid) {
        self.report(if created {
            Report::GroupCreated { mgid }
        } else {
            Report::GroupDeleted { mgid }
        });
        self.mgid_event(created, mgid);
    }
}

fn set(mask: &mut [u16; 16], port: u8) {
    if let Some(word) = mask.get_mut(usize::from(port) / 16) {
        *word |= 1 << (port % 16);
    }
}

/// Grows a tree from its leaves toward `root`: sets the bits of both ports of every link on the way. Of several ways
/// that are equally short `turn` chooses.
pub(crate) fn grow(
    graph: &Graph<'_>,
    hops: &[u8],
    root: usize,
    turn: usize,
    leaves: &[u64],
    joined: &mut [u64],
    masks: &mut [[u16; 16]],
) {
    use crate::table::bits;
    let to_root = |from: usize| {
        let at = from.saturating_mul(graph.count).saturating_add(root);
        hops.get(at).copied().unwrap_or(FAR)
    };
    bits::set(joined, root);
    for leaf in bits::each(leaves) {
        let mut at = leaf;
        while !bits::get(joined, at) && to_root(at) != FAR {
            let distance = to_root(at);
            let nearer = |to: u16| to_root(to.into()).checked_add(1) == Some(distance);
            let ways = graph.links(at).iter().filter(|link| nearer(link.to));
            let Some(pick) = turn.checked_rem(ways.clone().count()) else {
                break;
            };
            let Some(link) = ways.clone().nth(pick) else {
                break;
            };
            bits::set(joined, at);
            if let Some(mask) = masks.get_mut(at) {
                set(mask, link.port);
            }
            let next = usize::from(link.to);
            if let Some(mask) = masks.get_mut(next) {
                set(mask, link.back);
            }
            at = next;
        }
    }
}
