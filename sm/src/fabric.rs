//! Routing the subnet as it is: the graph of switches out of the books, and new tables into them. protocols 9.5.

use crate::manager::{Manager, part};
use crate::route::{self, Leaf, Leaves, Link};
use crate::subnet::PortFlags;
use crate::table::{Id, NodeId, PortId, SwitchId};

impl Manager<'_> {
    /// Computes all forwarding tables, if anything changed that they depend on; what changes in them is noted to be
    /// written.
    pub(crate) fn route(&mut self) {
        let unknown = |id| self.switches.get(id).is_some_and(|row| row.rewrite);
        if !self.st.reroute && !self.all_switches().any(unknown) {
            return;
        }
        self.st.reroute = false;
        self.count_mlids();
        self.remake_all();
        self.build_graph();
        let [a, b, c] = &mut self.sets;
        self.graph.distances(self.hops, a, b, c);
        self.build_leaves();
        for id in self.all_switches() {
            let Some(row) = self.switches.get_mut(id) else {
                continue;
            };
            let (node, rewrite) = (row.node, row.rewrite);
            let cap = usize::from(row.view().linear_fdb_cap());
            if !self.nodes.get(node).is_some_and(|node| node.present) {
                continue;
            }
            if let Some(row) = self.switches.get_mut(id) {
                row.rewrite = false;
            }
            self.route_from(id);
            self.replace_lft(id, cap, rewrite);
            if rewrite {
                self.rewrite_mft(id);
            }
        }
    }

    /// Computes the row of one switch into `lft_row`.
    fn route_from(&mut self, id: SwitchId) {
        let leaves = Leaves {
            start: self.leaf_start,
            leaves: self.leaves,
            switch_lids: self.switch_lids,
            lmc: self.config.lmc,
        };
        let present = part(self.lft, id.index(), self.lft_row.len());
        route::row(
            &self.graph,
            self.hops,
            leaves,
            id.index(),
            present,
            self.lft_row,
        );
    }

    /// Links between switches of the subnet, by switch, by port. Links that fail are left out.
    fn build_graph(&mut self) {
        let count = self.st.switches_used;
        self.graph.clear(count);
        self.st.graph_count = count;
        for id in self.all_switches() {
            let at = id.index();
            let node = self.switches.get(id).map(|row| row.node);
            let node = node.filter(|&node| self.forwards(node));
            let ports = node.map(|node| self.ports_of(node));
            for port in ports.into_iter().flatten() {
                let Some(link) = self.link_of(port, at) else {
                    continue;
                };
                if !self.graph.push(at, link) {
                    self.no_room("ports", self.ports.capacity());
                }
            }
            self.graph.finish(at);
        }
    }

    /// A switch of the subnet that forwards as it is told: with a linear table.
    fn forwards(&self, node: NodeId) -> bool {
        let row = self.nodes.get(node).filter(|row| row.present);
        let switch = row.and_then(|row| self.switches.get(row.switch?));
        switch.is_some_and(|switch| switch.view().linear_fdb_cap() != 0)
    }

    /// The link by which a port leads to another switch.
    fn link_of(&self, port: PortId, at: usize) -> Option<Link> {
        let row = self.ports.get(port)?;
        let peer = self.ports.get(row.peer?)?;
        let bad = PortFlags::UNHEALTHY | PortFlags::DUPLICATE;
        if row.flags.intersects(bad) || peer.flags.intersects(bad) {
            return None;
        }
        let to = self
            .nodes
            .get(peer.node)?
            .switch
            .filter(|_| self.forwards(peer.node))?
            .index();
        (to != at).then_some(())?;
        Some(Link {
            port: row.number,
            back: peer.number,
            to: u16::try_from(to).ok()?,
        })
    }

    /// End ports by the switch that they hang on, by port.
    fn build_leaves(&mut self) {
        let mut end = 0;
        for id in self.all_switches() {
            let at = id.index();
            if let Some(start) = self.leaf_start.get_mut(at) {
                *start = end;
            }
            let Some(node) = self.switches.get(id).map(|row| row.node) else {
                continue;
            };
            let own = self.port_at(node, 0).and_then(|port| self.ports.get(port));
            let own = own
                .filter(|row| row.has(PortFlags::PRESENT))
                .map_or(0, |row| row.lid.0);
            if let Some(place) = self.switch_lids.get_mut(at) {
                *place = own;
            }
            for port in self.ports_of(node) {
                let Some(leaf) = self.leaf_at(port) else {
                    continue;
                };
                if let Some(place) = self.leaves.get_mut(end as usize) {
                    *place = leaf;
                    end += 1;
                }
            }
        }
        let count = self.st.switches_used;
        if let Some(start) = self.leaf_start.get_mut(count) {
            *start = end;
        }
    }

    /// The end port at the other end of a switch port's cable.
    fn leaf_at(&self, port: PortId) -> Option<Leaf> {
        let row = self.ports.get(port).filter(|row| row.number != 0)?;
        let far = self.ports.get(row.peer?)?;
        let adapter = !self.nodes.get(far.node)?.is_switch();
        let here = adapter && far.has(PortFlags::PRESENT) && far.lid.0 != 0;
        here.then_some(Leaf {
            port: row.number,
            lid: far.lid.0,
        })
    }

    /// Distance in hops between two switches, as of the last routing.
    pub(crate) fn hops_between(&self, a: usize, b: usize) -> u8 {
        let at = a.saturating_mul(self.st.graph_count).saturating_add(b);
        self.hops.get(at).copied().unwrap_or(route::FAR)
    }
}
