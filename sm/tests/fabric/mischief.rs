//! What happens to cables and nodes.

use super::{Fabric, Happening, TRAINING};
use core_ib::Instant;
use core_ib::wire::mad::Capability;
use platform_sim::fabric::Topology;
use platform_sim::fabric::topology::PortRef;

impl Fabric {
    /// Pulls a cable, or a node with all its cables.
    pub fn unplug(&mut self, port: PortRef) -> Option<PortRef> {
        let peer = self.cables.remove(&port)?;
        self.cables.remove(&peer);
        self.train(port, false);
        self.train(peer, false);
        Some(peer)
    }

    pub fn plug(&mut self, a: PortRef, b: PortRef) {
        self.cables.insert(a, b);
        self.cables.insert(b, a);
        if self.alive[a.node] && self.alive[b.node] {
            let at = self.now.after(TRAINING);
            for end in [a, b] {
                self.push(
                    at,
                    Happening::Link {
                        node: end.node,
                        port: end.port,
                        up: true,
                    },
                );
            }
        }
    }

    fn ports_of(&self, node: usize) -> Vec<PortRef> {
        let mut ports: Vec<_> = self
            .cables
            .keys()
            .copied()
            .filter(|end| end.node == node)
            .collect();
        ports.sort_unstable();
        ports
    }

    /// Turns a node off: all its links go down, and it forgets everything.
    pub fn power_off(&mut self, node: usize) {
        self.alive[node] = false;
        for port in self.ports_of(node) {
            let peer = self.cables[&port];
            self.train(port, false);
            self.train(peer, false);
        }
        for seat in &mut self.seats {
            seat.alive &= seat.node != node;
        }
        let spec = &self.topology.nodes[node];
        let fresh = Fabric::new(Topology {
            nodes: vec![spec.clone()],
            cables: Vec::new(),
        });
        self.nodes[node] = fresh.nodes.into_iter().next().unwrap();
    }

    /// A switch loses its forwarding tables and nothing else.
    pub fn lose_tables(&mut self, node: usize) {
        let nodes = vec![self.topology.nodes[node].clone()];
        let cables = Vec::new();
        let fresh = Fabric::new(Topology { nodes, cables });
        self.nodes[node].switch = fresh.nodes[0].switch.clone();
    }

    pub fn power_on(&mut self, node: usize) {
        self.alive[node] = true;
        let at = self.now.after(TRAINING);
        for port in self.ports_of(node) {
            let peer = self.cables[&port];
            if self.alive[peer.node] {
                for end in [port, peer] {
                    self.push(
                        at,
                        Happening::Link {
                            node: end.node,
                            port: end.port,
                            up: true,
                        },
                    );
                }
            }
        }
    }

    /// The manager at `seat` is stopped dead: nobody is told.
    pub fn kill(&mut self, seat: usize) {
        self.seats[seat].alive = false;
        self.seats[seat].next = Instant::NEVER;
        let (node, port) = (self.seats[seat].node, self.seats[seat].port);
        if let Some(port) = self.nodes[node].port_mut(port) {
            port.info.capability.remove(Capability::SM);
        }
    }
}
