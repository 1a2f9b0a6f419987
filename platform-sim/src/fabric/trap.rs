//! Notices of a node on their way to the subnet manager: one trap at a time, repeated until it is repressed.
//!
//! protocols 3.10.

use super::node::NodeState;
use core_ib::wire::mad::{
    Attribute, Capability, MKey, Notice, NoticeType, PortState as State, Smp,
};
use core_ib::wire::mad::{AttributeId, Method, NodeType, ProducerType, TrapNumber};
use core_ib::{Instant, Lid};
use std::collections::VecDeque;

/// Notices that wait; one more is lost.
const MAX_QUEUED: usize = 16;
/// How often a trap is sent before the node gives up.
const MAX_TRIES: u32 = 16;

/// Notices of a node, and the trap that is out.
#[derive(Clone, Debug, Default)]
pub struct Traps {
    queue: VecDeque<(u8, Notice)>,
    out: Option<Outstanding>,
    last_tid: u64,
    count: u16,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    tid: u64,
    due: Instant,
    tries: u32,
}

/// Puts `bytes` at `offset` of the Notice, which is 10 more than where they lie in its details.
fn put(notice: &mut Notice, offset: usize, bytes: &[u8]) {
    let details = notice.details.get_mut(offset.saturating_sub(10)..);
    if let Some(place) = details.and_then(|details| details.get_mut(..bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

impl NodeState {
    /// A notice of this node without details, to be sent from `port`.
    fn notice(&mut self, number: TrapNumber) -> Notice {
        self.traps.count = self.traps.count.wrapping_add(1) & 0x7fff;
        Notice {
            is_generic: true,
            kind: number.kind().unwrap_or(NoticeType::INFO),
            producer: ProducerType(u32::from(self.node_type.0)),
            number,
            count: self.traps.count,
            ..Notice::default()
        }
    }

    /// Queues a notice to be sent from `port` (0 of a switch). The same news is not queued twice.
    fn report(&mut self, port: u8, notice: Notice) {
        let same = |(queued_port, queued): &(u8, Notice)| {
            let count = notice.count;
            *queued_port == port && Notice { count, ..*queued } == notice
        };
        // The one at the front may be out already, and then says what was before.
        let waiting = usize::from(self.traps.out.is_some());
        if self.traps.queue.iter().skip(waiting).any(same) {
            return;
        }
        if self.traps.queue.len() < MAX_QUEUED {
            self.traps.queue.push_back((port, notice));
        }
    }

    fn end_lid(&self, port: u8) -> Lid {
        self.port(port).map_or(Lid::NONE, |port| port.info.lid)
    }

    /// Trap 128: the state of a link of this switch changed.
    pub(super) fn link_state_notice(&mut self) {
        let mut notice = self.notice(TrapNumber::LINK_STATE_CHANGE);
        put(&mut notice, 10, &self.end_lid(0).0.to_be_bytes());
        self.report(0, notice);
    }

    /// Trap 256: an SMP with a wrong M_Key came from `slid`.
    pub(super) fn m_key_notice(&mut self, port: u8, slid: Lid, smp: &Smp) {
        let mut notice = self.notice(TrapNumber::BAD_M_KEY);
        put(&mut notice, 12, &slid.0.to_be_bytes());
        put(&mut notice, 16, &[smp.header.method.0]);
        put(&mut notice, 18, &smp.header.attribute.0.to_be_bytes());
        put(&mut notice, 20, &smp.header.modifier.to_be_bytes());
        put(&mut notice, 24, &smp.m_key.0.to_be_bytes());
        if smp.is_directed() {
            let hops = usize::from(smp.header.hop_count.min(63));
            put(&mut notice, 14, &smp.dr_slid.0.to_be_bytes());
            let truncated = u8::from(hops > 30) << 6;
            put(&mut notice, 33, &[0x80 | truncated | hops as u8]);
            let path = smp.return_path.iter().skip(1).take(hops.min(30));
            let path: Vec<u8> = path.copied().collect();
            put(&mut notice, 34, &path);
        }
        self.report(port, notice);
    }

    /// Trap 144: the capability mask of `port` changed, or what `flags` says (ChangeFlags, protocols 3.10.2). For the owner of
    /// the node, who changed it; then ask [`NodeState::next_trap`].
    pub fn local_changes(&mut self, port: u8, flags: u16) {
        let end_port = self.end_port(port);
        let Some(capability) = self.port(end_port).map(|port| port.info.capability) else {
            return;
        };
        let mut notice = self.notice(TrapNumber::LOCAL_CHANGES);
        put(&mut notice, 12, &self.end_lid(end_port).0.to_be_bytes());
        put(&mut notice, 15, &[u8::from(flags != 0)]);
        put(&mut notice, 16, &capability.bits().to_be_bytes());
        put(&mut notice, 20, &flags.to_be_bytes());
        self.report(end_port, notice);
    }

    /// Trap 257 or 258: a packet with a wrong P_Key or Q_Key came to `port`, whose counter is raised too.
    pub fn key_violation(&mut self, port: u8, violation: &KeyViolation) {
        let number = match violation.key {
            BadKey::P(_) => TrapNumber::BAD_P_KEY,
            BadKey::Q(_) => TrapNumber::BAD_Q_KEY,
        };
        if let Some(state) = self.port_mut(port) {
            let counter = match violation.key {
                BadKey::P(_) => &mut state.info.p_key_violations,
                BadKey::Q(_) => &mut state.info.q_key_violations,
            };
            *counter = counter.saturating_add(1);
        }
        let key = match violation.key {
            BadKey::P(key) => u32::from(key.0),
            BadKey::Q(key) => key.0,
        };
        let mut notice = self.notice(number);
        put(&mut notice, 12, &violation.slid.0.to_be_bytes());
        put(&mut notice, 14, &violation.dlid.0.to_be_bytes());
        put(&mut notice, 16, &key.to_be_bytes());
        put(&mut notice, 20, &[violation.sl.get() << 4]);
        put(&mut notice, 21, &violation.src_qp.to_wire());
        put(&mut notice, 25, &violation.dest_qp.to_wire());
        if let Some((sgid, dgid)) = violation.gids {
            put(&mut notice, 28, &sgid.0);
            put(&mut notice, 44, &dgid.0);
        }
        self.report(self.end_port(port), notice);
    }

    /// Trap 259: a packet with a P_Key that external port `port` of this switch does not let through.
    pub(super) fn external_p_key_notice(&mut self, port: u8, violation: &KeyViolation) {
        let BadKey::P(key) = violation.key else {
            return;
        };
        let mut notice = self.notice(TrapNumber::BAD_P_KEY_SWITCH);
        // DataValid: a bit for each of LIDs, P_Key, SL, QPs, and for the GIDs if there is a GRH.
        let valid: u16 = if violation.gids.is_some() { 0xff } else { 0x3f };
        put(&mut notice, 10, &valid.to_be_bytes());
        put(&mut notice, 12, &violation.slid.0.to_be_bytes());
        put(&mut notice, 14, &violation.dlid.0.to_be_bytes());
        put(&mut notice, 16, &key.0.to_be_bytes());
        put(&mut notice, 18, &[violation.sl.get() << 4]);
        put(&mut notice, 19, &violation.src_qp.to_wire());
        put(&mut notice, 23, &violation.dest_qp.to_wire());
        if let Some((sgid, dgid)) = violation.gids {
            put(&mut notice, 26, &sgid.0);
            put(&mut notice, 42, &dgid.0);
        }
        put(&mut notice, 58, &self.end_lid(0).0.to_be_bytes());
        put(&mut notice, 60, &[port]);
        self.report(0, notice);
    }

    /// May `port` send a trap? protocols 3.10.3.
    fn may_trap(&self, port: u8) -> bool {
        self.port(port).is_some_and(|port| {
            let info = &port.info;
            info.state == State::ACTIVE
                && info.lid != Lid::NONE
                && info.master_sm_lid != Lid::NONE
                && info.capability.contains(Capability::TRAP)
        })
    }

    /// When [`NodeState::poll_trap`] will have something to send, `now` at the earliest; none if nothing waits, or if the
    /// port may not send.
    pub fn next_trap(&self, now: Instant) -> Option<Instant> {
        let (port, _) = self.traps.queue.front()?;
        if !self.may_trap(*port) {
            return None;
        }
        let due = self.traps.out.map_or(now, |out| out.due);
        Some(if due < now { now } else { due })
    }

    /// The trap that is to be sent now, if there is one: from which port, and the SMP, whose destination is that port's
    /// MasterSMLID. The same trap comes again once a SubnetTimeOut until it is repressed, or given up.
    pub fn poll_trap(&mut self, now: Instant) -> Option<(u8, Smp)> {
        let (port, _) = *self.traps.queue.front()?;
        if !self.may_trap(port) {
            return None;
        }
        match &self.traps.out {
            Some(out) if out.due > now => return None,
            Some(out) if out.tries >= MAX_TRIES => {
                self.traps.out = None;
                self.traps.queue.pop_front();
                return self.poll_trap(now);
            }
            _ => {}
        }
        let due = now.after(self.trap_interval(port));
        if self.traps.out.is_none() {
            self.traps.last_tid = self.traps.last_tid.wrapping_add(1);
        }
        let fresh = Outstanding {
            tid: self.traps.last_tid,
            due,
            tries: 0,
        };
        let out = self.traps.out.get_or_insert(fresh);
        out.due = due;
        out.tries += 1;
        let tid = out.tid;
        let lid = self.end_lid(port);
        let is_switch = self.node_type == NodeType::SWITCH;
        let (_, notice) = self.traps.queue.front_mut()?;
        notice.issuer_lid = lid;
        if notice.number == TrapNumber::LINK_STATE_CHANGE && is_switch {
            put(notice, 10, &lid.0.to_be_bytes()); // it may have come later than the news
        }
        let notice = *notice;
        let mut smp = Smp::lid_routed(Method::TRAP, AttributeId::NOTICE, 0);
        smp.header.tid = tid;
        smp.m_key = MKey(0);
        smp.put(&notice).ok()?;
        Some((port, smp))
    }

    /// A TrapRepress came: the trap that it names is done.
    pub(super) fn repress(&mut self, tid: u64) {
        if self.traps.out.is_some_and(|out| out.tid == tid) {
            self.traps.out = None;
            self.traps.queue.pop_front();
        }
    }

    /// The notice at the front, as Get(Notice) shows it; an empty one if there is none.
    pub(super) fn front_notice(&self) -> Notice {
        let empty = Notice {
            kind: NoticeType::EMPTY,
            is_generic: true,
            ..Notice::default()
        };
        self.traps
            .queue
            .front()
            .map_or(empty, |(_, notice)| *notice)
    }

    /// Set(Notice) takes the notice at the front away.
    pub(super) fn clear_notice(&mut self) {
        self.traps.out = None;
        self.traps.queue.pop_front();
    }
}

/// Which key was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// P_Key.
    P(core_ib::PKey),
    /// Q_Key.
    Q(core_ib::QKey),
}

/// A packet that was refused for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// Which key, and what it was.
    pub key: BadKey,
    /// Whence.
    pub slid: Lid,
    /// Whither.
    pub dlid: Lid,
    /// Service level.
    pub sl: core_ib::Sl,
    /// QP of the sender, if the packet tells.
    pub src_qp: core_ib::Qpn,
    /// QP that it was for.
    pub dest_qp: core_ib::Qpn,
    /// SGID and DGID, if the packet has a GRH.
    pub gids: Option<(core_ib::Gid, core_ib::Gid)>,
}

const _: () = assert!(Notice::ID.0 == AttributeId::NOTICE.0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::node::PortCaps;
    use crate::machine::LinkParameters;
    use core_ib::{Gid, Guid, PKey, QKey, Qpn, Sl};

    fn switch() -> NodeState {
        let mut node = NodeState::switch(Guid(1), Guid(1), 4, &PortCaps::SDR_4X, false);
        let port0 = node.port_mut(0).unwrap();
        port0.info.lid = Lid(7);
        port0.info.master_sm_lid = Lid(3);
        node
    }

    fn up(node: &mut NodeState, port: u8) {
        node.link_changed(port, Some(LinkParameters::X4_SDR), &mut Vec::new());
    }

    #[test]
    fn a_trap_is_repeated_once_a_subnet_timeout_until_it_is_repressed() {
        let mut node = switch();
        up(&mut node, 1);
        let start = Instant(5);
        assert_eq!(node.next_trap(start), Some(start));
        let (port, smp) = node.poll_trap(start).unwrap();
        assert_eq!((port, smp.header.method), (0, Method::TRAP));
        let notice: Notice = smp.get().unwrap();
        assert_eq!((notice.number.0, notice.issuer_lid), (128, Lid(7)));
        assert_eq!(notice.details[..2], [0, 7]);
        assert_eq!(node.poll_trap(start), None);
        let again = start.after(node.trap_interval(0));
        assert_eq!(node.next_trap(start), Some(again));
        let (_, second) = node.poll_trap(again).unwrap();
        assert_eq!(second, smp);
        node.repress(smp.header.tid + 1);
        assert!(node.next_trap(again).is_some(), "another trap's answer");
        node.repress(smp.header.tid);
        assert_eq!(node.next_trap(again), None);
    }

    #[test]
    fn news_while_a_trap_is_out_make_one_more_trap_and_not_many() {
        let mut node = switch();
        up(&mut node, 1);
        let (_, first) = node.poll_trap(Instant(0)).unwrap();
        up(&mut node, 2);
        up(&mut node, 3);
        node.repress(first.header.tid);
        let (_, second) = node.poll_trap(Instant(1)).unwrap();
        assert_ne!(second.header.tid, first.header.tid);
        node.repress(second.header.tid);
        assert_eq!(node.poll_trap(Instant(2)), None);
    }

    #[test]
    fn a_switch_without_a_lid_keeps_its_news_until_it_has_one() {
        let mut node = switch();
        node.port_mut(0).unwrap().info.lid = Lid::NONE;
        up(&mut node, 1);
        assert_eq!(node.next_trap(Instant(0)), None);
        assert_eq!(node.poll_trap(Instant(0)), None);
        node.port_mut(0).unwrap().info.lid = Lid(9);
        let (_, smp) = node.poll_trap(Instant(1)).unwrap();
        assert_eq!(smp.get::<Notice>().unwrap().details[..2], [0, 9]);
    }

    #[test]
    fn a_trap_that_nobody_represses_is_given_up() {
        let mut node = switch();
        up(&mut node, 1);
        let mut now = Instant(0);
        let mut sent = 0;
        while let Some(due) = node.next_trap(now) {
            now = due;
            sent += u32::from(node.poll_trap(now).is_some());
            assert!(sent < 100);
        }
        assert_eq!(sent, MAX_TRIES);
    }

    #[test]
    fn a_change_of_the_node_is_told_with_its_capability_mask() {
        let mut node = switch();
        node.local_changes(3, 1);
        let (port, smp) = node.poll_trap(Instant(0)).unwrap();
        let capability = node.port(0).unwrap().info.capability.bits().to_be_bytes();
        assert_eq!((port, &smp.data[4..6]), (0, [0, 144].as_slice()));
        assert_eq!(smp.data[12..16], [0, 7, 0, 1]);
        assert_eq!(
            (&smp.data[16..20], &smp.data[20..22]),
            (&capability[..], [0, 1].as_slice())
        );
    }

    #[test]
    fn a_p_key_barred_at_an_external_port_is_told_with_the_port() {
        let mut node = switch();
        let violation = KeyViolation {
            key: BadKey::P(PKey(0x8005)),
            slid: Lid(2),
            dlid: Lid(3),
            sl: Sl::new(1),
            src_qp: Qpn::new(0x48),
            dest_qp: Qpn::new(0x49),
            gids: None,
        };
        node.external_p_key_notice(4, &violation);
        let (_, smp) = node.poll_trap(Instant(0)).unwrap();
        let head = [0x82, 0, 0, 2, 1, 3, 0, 7];
        assert_eq!(smp.data[..8], head);
        let expected = [0, 2, 0, 3, 0x80, 5, 0x10, 0, 0, 0x48, 0, 0, 0, 0x49];
        assert_eq!(smp.data[12..26], expected);
        assert_eq!(smp.data[58..61], [0, 7, 4]);
    }

    #[test]
    fn a_wrong_q_key_is_counted_and_told_with_both_ends() {
        let mut node = NodeState::ca(Guid(1), &[Guid(2)], &PortCaps::SDR_4X);
        let port = node.port_mut(1).unwrap();
        port.info.state = State::ACTIVE;
        (port.info.lid, port.info.master_sm_lid) = (Lid(4), Lid(1));
        let violation = KeyViolation {
            key: BadKey::Q(QKey(0x1122_3344)),
            slid: Lid(0x0506),
            dlid: Lid(4),
            sl: Sl::new(3),
            src_qp: Qpn::new(0x48),
            dest_qp: Qpn::new(0x49),
            gids: Some((Gid([0xaa; 16]), Gid([0xbb; 16]))),
        };
        node.key_violation(1, &violation);
        assert_eq!(node.port(1).unwrap().info.q_key_violations, 1);
        let (port, smp) = node.poll_trap(Instant(0)).unwrap();
        assert_eq!(port, 1);
        let data = smp.data;
        assert_eq!(data[..8], [0x82, 0, 0, 1, 1, 2, 0, 4]);
        let expected = [
            5, 6, 0, 4, 0x11, 0x22, 0x33, 0x44, 0x30, 0, 0, 0x48, 0, 0, 0, 0x49,
        ];
        assert_eq!(data[12..28], expected);
        assert_eq!(
            (data[28], data[43], data[44], data[59]),
            (0xaa, 0xaa, 0xbb, 0xbb)
        );
        let other = KeyViolation {
            key: BadKey::P(PKey(5)),
            gids: None,
            ..violation
        };
        node.key_violation(1, &other);
        assert_eq!(node.port(1).unwrap().info.p_key_violations, 1);
        node.repress(smp.header.tid);
        let (_, smp) = node.poll_trap(Instant(1)).unwrap();
        assert_eq!(smp.data[4..6], [1, 1], "257");
        assert_eq!(smp.data[16..20], [0, 0, 0, 5]);
    }
}
