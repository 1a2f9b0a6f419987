//! The ports: what their agents know, whether firmware runs them, which QPs are special, who waits for room on the
//! wire. infinihost 3.9, 5.9, 8.3.

use super::config::Config;
use super::{InfiniHost, timers};
use crate::fabric::{Effect, NodeState, PortCaps};
use crate::machine::{Bus, LinkControl, LinkParameters};
use core_ib::Mtu;
use core_ib::wire::mad::{NodeDescription, PortState, VlCode};
use hca_abi::infinihost::eqe::{Eqe, EventType, PortChange};
use std::collections::BTreeMap;

/// IEEE company id of Mellanox.
const OUI: u32 = 0x0002c9;

/// Which special QP, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Special {
    /// QP0.
    Smi = 0,
    /// QP1.
    Gsi = 1,
}

/// All ports of the card.
pub struct Ports {
    /// What the agents know of the node and its ports.
    pub node: NodeState,
    /// INIT_IB was given.
    running: [bool; 2],
    /// What the physical layer has trained to.
    trained: [Option<LinkParameters>; 2],
    /// Base of QP0 and of QP1: of port 1, the next is that of port 2.
    special: [Option<u32>; 2],
    /// By port and lane: QPs that wait for room.
    waiting: BTreeMap<(u8, u8), Vec<u32>>,
}

impl Ports {
    /// As after power-on: down.
    pub fn new(config: &Config) -> Self {
        let caps = PortCaps {
            mtu: Mtu::Mtu2048,
            vl_cap: VlCode(3),
            guids: 1 << super::cmd::LOG_GIDS,
            p_keys: 1 << super::cmd::LOG_PKEYS,
            ..PortCaps::SDR_4X
        };
        let facts = config.variant.facts();
        let ports = usize::from(config.ports);
        let guids = config.port_guids.get(..ports).unwrap_or(&config.port_guids);
        let mut node = NodeState::ca(config.node_guid, guids, &caps);
        node.description = NodeDescription::new(&config.node_description);
        node.system_image_guid = config.system_image_guid;
        node.vendor_id = OUI;
        node.device_id = facts.device.0;
        node.revision = u32::from(facts.revision);
        Self {
            node,
            running: [false; 2],
            trained: [None; 2],
            special: [None; 2],
            waiting: BTreeMap::new(),
        }
    }

    /// The same after a reset; the physical layer keeps what it has.
    pub fn powered_on(&self, config: &Config) -> Self {
        Self {
            trained: self.trained,
            ..Self::new(config)
        }
    }

    /// No QP is special, none waits.
    pub fn forget_queues(&mut self) {
        self.special = [None; 2];
        self.waiting.clear();
    }

    /// INIT_IB was given for `port`.
    pub fn is_running(&self, port: u8) -> bool {
        let index = usize::from(port.wrapping_sub(1));
        self.running.get(index).copied().unwrap_or(false)
    }

    /// Names the QPs that are `special` on the wire, `base` for port 1; none releases.
    pub fn name_special(&mut self, special: Special, base: Option<u32>) {
        self.special[special as usize] = base;
    }

    /// The QP of the HCA that is `special` at `port`.
    pub fn special_qpn(&self, special: Special, port: u8) -> Option<u32> {
        let base = self.special[special as usize]?;
        Some(base.wrapping_add(u32::from(port.wrapping_sub(1))))
    }

    /// Is QP `qpn` special, and at which port?
    pub fn special(&self, qpn: u32) -> Option<(Special, u8)> {
        [Special::Smi, Special::Gsi]
            .into_iter()
            .find_map(|special| {
                let port = self.node.external_ports();
                let mut port = port.filter(|&port| self.special_qpn(special, port) == Some(qpn));
                port.next().map(|port| (special, port))
            })
    }

    /// A QP waits for room.
    pub fn wait(&mut self, port: u8, vl: u8, qpn: u32) {
        let waiting = self.waiting.entry((port, vl)).or_default();
        if !waiting.contains(&qpn) {
            waiting.push(qpn);
        }
    }

    /// Those who waited.
    pub fn waiters(&mut self, port: u8, vl: u8) -> Vec<u32> {
        self.waiting.remove(&(port, vl)).unwrap_or_default()
    }
}

impl InfiniHost {
    /// Starts a port: INIT_IB.
    pub(super) fn start_port(&mut self, bus: &mut dyn Bus, port: u8) {
        let index = usize::from(port.wrapping_sub(1));
        let Some(running) = self.ports.running.get_mut(index) else {
            return;
        };
        if core::mem::replace(running, true) {
            return;
        }
        if let Some(state) = self.ports.node.port(port) {
            bus.set_link(port, state.polling());
        }
        let trained = self.ports.trained.get(index).copied().flatten();
        if trained.is_some() {
            self.link(bus, port, trained);
        }
    }

    /// Takes a port down: CLOSE_IB.
    pub(super) fn stop_port(&mut self, bus: &mut dyn Bus, port: u8) {
        let index = usize::from(port.wrapping_sub(1));
        let Some(running) = self.ports.running.get_mut(index) else {
            return;
        };
        if !core::mem::replace(running, false) {
            return;
        }
        bus.set_link(port, LinkControl::Disabled);
        if let Some(trained) = self.ports.trained.get_mut(index) {
            *trained = None;
        }
        self.logical_link(bus, port, None);
    }

    /// The physical layer has trained, or lost the link.
    pub(super) fn link(&mut self, bus: &mut dyn Bus, port: u8, up: Option<LinkParameters>) {
        let index = usize::from(port.wrapping_sub(1));
        if let Some(trained) = self.ports.trained.get_mut(index) {
            *trained = up;
        }
        if self.ports.is_running(port) {
            self.logical_link(bus, port, up);
        }
        if up.is_none() {
            // What waits would wait for ever: a link that is down takes packets and loses them.
            (0..16).for_each(|vl| self.room(port, vl));
        }
    }

    fn logical_link(&mut self, bus: &mut dyn Bus, port: u8, up: Option<LinkParameters>) {
        let mut effects = Vec::new();
        self.ports.node.link_changed(port, up, &mut effects);
        self.follow(bus, &effects);
    }

    /// What follows after an agent, a packet or a link changed a port.
    pub(super) fn follow(&mut self, bus: &mut dyn Bus, effects: &[Effect]) {
        for effect in effects {
            match *effect {
                Effect::PortState { port, old, new } => {
                    if new == PortState::ACTIVE {
                        self.port_event(bus, port, PortChange::ACTIVE);
                    } else if old == PortState::ACTIVE {
                        self.port_event(bus, port, PortChange::DOWN);
                    }
                }
                Effect::SetLink { port, control } if self.ports.is_running(port) => {
                    bus.set_link(port, control);
                }
                _ => {}
            }
        }
        self.plan_traps(bus);
    }

    /// infinihost 4.3: on entering and leaving ACTIVE, and not on reaching INIT.
    fn port_event(&mut self, bus: &mut dyn Bus, port: u8, change: PortChange) {
        let mut eqe = Eqe::ZERO;
        eqe.set_event_type(EventType::PORT_CHANGE)
            .set_sub_type(change.0)
            .set_port(port);
        self.events.post(&mut self.chip, bus, &eqe);
    }

    /// Sets the timer for the next trap, if there is one to send.
    pub(super) fn plan_traps(&mut self, bus: &mut dyn Bus) {
        match self.ports.node.next_trap(bus.now()) {
            Some(due) => bus.set_timer(timers::TRAP, due),
            None => bus.cancel_timer(timers::TRAP),
        }
    }
}
