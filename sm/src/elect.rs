//! The election: one master among all managers of a subnet. protocols 3.11, 9.10.
//!
//! After each walk through the fabric a manager compares itself with those it found. Whoever loses stands by and looks
//! at the winner from time to time; whoever wins and is not the master yet is handed the subnet by the present one.

use crate::Role;
use crate::api::Report;
use crate::manager::Manager;
use crate::smp::Op;
use crate::subnet::{PortFlags, PortTodo};
use crate::sweep::Phase;
use crate::table::PortId;
use core_ib::wire::mad::{MadStatus, Method, SmInfo, SmKey, SmState, Smp};
use core_ib::{Instant, Lid};

/// Another manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The end port that it sits on.
    pub(crate) port: PortId,
    pub(crate) info: SmInfo,
    /// It answered in this sweep.
    pub(crate) seen: bool,
    /// It did not take the subnet over when asked to.
    pub(crate) refused: bool,
}

impl Manager<'_> {
    /// What we say of ourselves. The key goes only to those who ask for nothing: other managers that we command.
    pub(crate) fn sm_info(&self, with_key: bool) -> SmInfo {
        SmInfo {
            guid: self.st.guid,
            sm_key: if with_key {
                self.config.sm_key
            } else {
                SmKey(0)
            },
            act_count: self.st.act_count,
            priority: self.config.priority,
            state: self.st.role.state(),
        }
    }

    /// Changes what we are; says so.
    pub(crate) fn become_role(&mut self, role: Role) {
        if self.st.role == role {
            return;
        }
        self.st.role = role;
        self.report(Report::State { now: role });
        self.st.routed = false;
        self.st.serving = false;
        self.st.answering = false;
        self.st.poll_at = Instant::NEVER;
        self.st.watched = None;
        self.st.multicast_at = Instant::NEVER;
        if role != Role::Master {
            self.drop_transfers();
        }
        self.st.is_sm.1 = role != Role::NotActive;
    }

    /// From now on we are the master: every client is to register anew. protocols 9.10.
    fn become_master(&mut self) {
        self.become_role(Role::Master);
        for port in self.all_ports() {
            if let Some(row) = self.ports.get_mut(port) {
                row.flags.insert(PortFlags::REREGISTER);
                row.flags
                    .remove(PortFlags::LID_SET | PortFlags::P_KEYS_DONE | PortFlags::QOS_DONE);
            }
        }
        for id in self.all_switches() {
            if let Some(row) = self.switches.get_mut(id) {
                row.rewrite = true;
            }
        }
        // What the last master knew of groups, services and subscribers is not known here: clients tell it again.
        self.forget_groups();
        self.forget_services();
        self.unsubscribe_everybody();
        self.found_groups();
    }

    /// Stands by and looks at the manager on `port`.
    fn stand_by(&mut self, port: PortId) {
        self.st.phase = Phase::Idle;
        self.st.heir = None;
        self.st.sweep_at = Instant::NEVER;
        self.become_role(Role::Standby);
        self.st.watched = Some(port);
        self.st.misses = 0;
        self.st.poll_at = self.now.after(self.config.poll_interval);
    }

    /// Begins anew, as if just started.
    fn discover(&mut self) {
        self.become_role(Role::Discovering);
        self.st.phase = Phase::Idle;
        self.st.again = true;
        self.st.sweep_at = self.now;
    }

    /// Another manager said what it is.
    pub(crate) fn peer_answered(&mut self, port: PortId, info: &SmInfo) {
        if self.st.watched == Some(port) {
            self.watched_answered(info);
        }
        let known = self
            .peers
            .iter_mut()
            .flatten()
            .find(|peer| peer.port == port);
        match known {
            Some(peer) => {
                let news = peer.info.state != info.state || peer.info.priority != info.priority;
                (peer.info, peer.seen) = (*info, true);
                if news && self.st.role == Role::Master && self.st.phase == Phase::Idle {
                    peer.refused = false;
                    self.sweep_again();
                }
            }
            None => {
                let peer = Peer {
                    port,
                    info: *info,
                    seen: true,
                    refused: false,
                };
                let limit = self.peers.len();
                if self.st.role == Role::Master && self.st.phase == Phase::Idle {
                    self.sweep_again();
                }
                match self.peers.iter_mut().find(|slot| slot.is_none()) {
                    Some(slot) => *slot = Some(peer),
                    None => self.no_room("managers", limit),
                }
            }
        }
    }

    /// A port that has a manager did not tell of it.
    pub(crate) fn no_sm_info(&mut self, port: PortId) {
        if self.st.watched == Some(port) {
            self.missed();
        }
        for slot in self.peers.iter_mut() {
            if slot.is_some_and(|peer| peer.port == port) {
                *slot = None;
            }
        }
    }

    /// The walk is over: who is the master? protocols 3.11.2.
    pub(crate) fn elect(&mut self) {
        let own = self.sm_info(false);
        let live = |peer: &Peer| peer.info.state != SmState::NOT_ACTIVE;
        let peers = || self.peers.iter().flatten().filter(|peer| live(peer));
        let best = |best: Option<Peer>, peer: &Peer| match best {
            Some(best) if best.info.wins_over(&peer.info) => Some(best),
            _ => Some(*peer),
        };
        let masters = peers().filter(|peer| peer.info.state == SmState::MASTER);
        let master = masters.fold(None, best);
        let winners = peers().filter(|peer| peer.info.wins_over(&own) || self.st.resigning);
        let winner = winners.clone().fold(None, best);
        let willing = winners.filter(|peer| !peer.refused).fold(None, best);
        match self.st.role {
            Role::Discovering => match master.or(winner) {
                Some(peer) => self.stand_by(peer.port),
                None => {
                    self.become_master();
                    self.configure();
                }
            },
            Role::Master => match (willing, master) {
                (Some(heir), _) => self.hand_over(heir.port),
                (None, _) if self.st.resigning => self.resigned(),
                // Two subnets were joined. The other master has seen us, too, and hands over.
                (None, Some(other)) if own.wins_over(&other.info) && !other.refused => {
                    self.await_handover(other.port);
                }
                _ => self.configure(),
            },
            Role::Standby | Role::NotActive => self.st.phase = Phase::Idle,
        }
    }

    fn await_handover(&mut self, port: PortId) {
        self.st.phase = Phase::Idle;
        self.st.sweep_at = Instant::NEVER;
        self.st.watched = Some(port);
        self.st.misses = 0;
        self.st.poll_at = self.now.after(self.config.poll_interval);
    }

    fn hand_over(&mut self, port: PortId) {
        self.st.phase = Phase::Handover;
        self.st.heir = Some(port);
        self.st.urgent = Some(Op::Command(port, SmInfo::HANDOVER as u8));
    }

    /// The heir has the subnet.
    pub(crate) fn commanded(&mut self, port: PortId, _command: u8) {
        if self.st.heir == Some(port) {
            self.stand_by(port);
            self.resigned();
        }
    }

    /// The heir does not want it. It is not asked again until it says something new.
    pub(crate) fn not_commanded(&mut self, port: PortId, _command: u8) {
        if self.st.heir != Some(port) {
            return;
        }
        self.st.heir = None;
        for peer in self
            .peers
            .iter_mut()
            .flatten()
            .filter(|peer| peer.port == port)
        {
            peer.refused = true;
        }
    }

    /// Nothing is in flight any more, and we are still the master.
    pub(crate) fn handed_over(&mut self) {
        if self.st.resigning {
            self.st.phase = Phase::Idle;
            self.resigned();
        } else {
            self.elect();
        }
    }

    /// Steps down: at once if there is nobody to hand over to.
    pub(crate) fn resign(&mut self) {
        self.st.resigning = true;
        if self.st.role == Role::Master && self.peers.iter().flatten().next().is_some() {
            self.sweep_again(); // the walk finds the heir
            self.st.sweep_at = self.now;
        } else {
            self.resigned();
        }
    }

    fn resigned(&mut self) {
        if !core::mem::take(&mut self.st.resigning) {
            return;
        }
        self.drop_requests();
        self.st.phase = Phase::Idle;
        self.st.sweep_at = Instant::NEVER;
        self.become_role(Role::NotActive);
    }

    /// Looks at the manager that we watch, if it is time. Says whether it was.
    pub(crate) fn poll_master(&mut self) -> bool {
        let Some(port) = self.st.watched.filter(|_| self.now >= self.st.poll_at) else {
            return false;
        };
        self.st.poll_at = self.now.after(self.config.poll_interval);
        self.port_todo(port, PortTodo::SM_INFO);
        true
    }

    fn watched_answered(&mut self, info: &SmInfo) {
        self.st.misses = 0;
        let waits = self.st.role == Role::Master;
        let gave_up = info.state != SmState::MASTER
            && (waits
                || !info.wins_over(&self.sm_info(false))
                || info.state == SmState::NOT_ACTIVE);
        if gave_up {
            self.lost_master();
        }
    }

    fn missed(&mut self) {
        self.st.misses = self.st.misses.saturating_add(1);
        if self.st.misses > self.config.poll_retries {
            self.lost_master();
        } else {
            // No need to wait: the tries of the request took their time.
            self.st.poll_at = self.now.after(self.config.poll_interval / 4);
        }
    }

    /// The manager that we watched is gone, or is the master no more.
    fn lost_master(&mut self) {
        self.st.watched = None;
        self.st.poll_at = Instant::NEVER;
        if self.st.role == Role::Standby {
            self.discover();
        } else {
            self.sweep_again();
            self.st.sweep_at = self.now;
        }
    }

    /// Get or Set of SMInfo came: the answer.
    pub(crate) fn asked_for_sm_info(&mut self, smp: &Smp, slid: Lid) -> Option<Smp> {
        self.st.act_count = self.st.act_count.wrapping_add(1);
        self.look_at(slid);
        let before = self.sm_info(false);
        let status = if smp.header.method == Method::SET {
            let sender = SmInfo::from_bytes(smp.data.first_chunk()?);
            self.command(smp.header.modifier, &sender)
        } else {
            MadStatus::OK
        };
        let mut reply = smp.reply(status)?;
        reply.put(&before).ok()?;
        Some(reply)
    }

    /// Who looks at the master is a manager that stands by. One that started since the last sweep, on a port whose node
    /// does not tell of it by trap 144, is found so.
    fn look_at(&mut self, slid: Lid) {
        if self.st.role != Role::Master || self.st.phase != Phase::Idle {
            return;
        }
        let port = self
            .port_of_lid(slid)
            .filter(|&port| self.st.own != Some(port));
        let known = |port| self.peers.iter().flatten().any(|peer| peer.port == port);
        if let Some(port) = port.filter(|&port| !known(port)) {
            self.port_todo(port, PortTodo::SM_INFO);
        }
    }

    /// Another manager commands. It is answered with what we were before.
    fn command(&mut self, command: u32, sender: &SmInfo) -> MadStatus {
        let key = self.config.sm_key;
        if key != SmKey(0) && sender.sm_key != key {
            return MadStatus::INVALID_FIELD;
        }
        let by_master = sender.state == SmState::MASTER;
        match (command, self.st.role) {
            (SmInfo::HANDOVER, Role::Standby) if by_master => {
                self.become_master();
                self.st.again = true;
                self.st.sweep_at = self.now;
            }
            (SmInfo::HANDOVER, Role::Master | Role::Discovering) if by_master => {
                self.st.watched = None;
                self.st.poll_at = Instant::NEVER;
                self.sweep_again();
            }
            (SmInfo::ACKNOWLEDGE, Role::Standby | Role::Master)
                if sender.state == SmState::STANDBY || by_master => {}
            (SmInfo::DISABLE, Role::Standby) if by_master => {
                self.st.sweep_at = Instant::NEVER;
                self.become_role(Role::NotActive);
                self.st.is_sm.1 = true; // still there, for who wants to wake it
            }
            (SmInfo::STANDBY, Role::NotActive) if by_master => self.discover(),
            (SmInfo::DISCOVER, Role::Standby | Role::Master | Role::NotActive) if by_master => {
                self.discover();
            }
            _ => return MadStatus::INVALID_FIELD,
        }
        MadStatus::OK
    }
}
