//! Subnet administration: what the master tells, and what it is told. protocols 4.
//!
//! A request comes in, is looked at, and is answered in the same call: with one MAD in the queue of replies, or with a
//! [`Transfer`] of many records, of which only the numbers are kept; the records themselves are made when their
//! segment is due.

mod group;
mod path;
mod query;
mod records;
mod service;
mod transfer;

pub(crate) use service::Service;
pub(crate) use transfer::Transfer;

use crate::manager::Manager;
use crate::subnet::PortFlags;
use crate::table::PortId;
use core_ib::wire::mad::{
    AttributeId, ClassPortInfo, ComponentMask, GmpCapability, InformInfo, Layout, Mad, MadStatus,
    Method, RmppFlags, RmppType, SaHeader, SmKey, TimeCode,
};
use core_ib::{Gid, Lid, PKey, Qpn};
use ib_mad::{Outgoing, Received};

/// One MAD that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply(Option<Outgoing>);

impl Reply {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn get(self) -> Option<Outgoing> {
        self.0
    }
}

/// A request, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    received: &'r Received,
    header: SaHeader,
    /// Who asks, if it is an end port in service.
    from: Option<PortId>,
    /// It showed the key: sees everything.
    trusted: bool,
}

impl Request<'_> {
    fn mask(&self) -> ComponentMask {
        self.header.component_mask
    }

    /// The record in it.
    fn record<R: Layout>(&self) -> Result<R, MadStatus> {
        self.received
            .mad
            .get()
            .map_err(|_| MadStatus::SA_REQUEST_INVALID)
    }

    fn has(&self, components: ComponentMask) -> bool {
        self.mask().has(components)
    }

    /// The port that asks; an error if it is not known.
    fn asker(&self) -> Result<PortId, MadStatus> {
        self.from.ok_or(MadStatus::SA_INVALID_GID)
    }
}

/// How a request is answered.
pub(crate) enum Answer {
    /// With this one record, or the request's own.
    One(RecordBytes),
    /// With this one, once the trees of multicast are in the switches.
    Joined(RecordBytes),
    /// A transfer was begun.
    Begun,
    /// Not at all.
    Nothing,
}

/// A record on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordBytes {
    bytes: [u8; 200],
    len: usize,
}

impl RecordBytes {
    /// The largest record: a service.
    pub(crate) fn of<R: Layout>(record: &R) -> Self {
        let mut bytes = [0; 200];
        // The largest one takes 176, so this cannot fail.
        let len = record.write(&mut bytes).map_or(0, |()| R::SIZE);
        Self { bytes, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl Manager<'_> {
    /// A MAD that has to wait its turn.
    pub(crate) fn answer(&mut self, outgoing: Outgoing) {
        if !self.replies.push(Reply(Some(outgoing))) {
            self.no_room("replies", self.replies.capacity()); // whoever asked will ask again
        }
    }

    /// A GMP of class 0x03 came.
    pub(crate) fn sa_received(&mut self, received: &Received) {
        let Ok(header) = received.mad.front::<SaHeader>() else {
            return;
        };
        if header.header.method == Method::REPORT_RESP {
            self.report_answered(received);
            return;
        }
        let rmpp = header.rmpp;
        let data = !rmpp.is_active() || rmpp.kind == RmppType::DATA;
        if !data {
            self.transfer_received(received);
            return;
        }
        if header.header.is_response() || !self.st.answering {
            return;
        }
        // A request of several segments: none of those that are served needs that.
        let whole = RmppFlags::FIRST | RmppFlags::LAST;
        if rmpp.is_active() && !rmpp.flags.contains(whole) {
            return;
        }
        let slid = received.wc.slid;
        let own = slid.is_permissive() || slid == Lid::NONE;
        let from = if own {
            self.st.own
        } else {
            self.port_of_lid(slid)
        };
        let key = self.config.sm_key;
        let trusted = key != SmKey(0) && header.sm_key == key;
        let request = Request {
            received,
            header,
            from,
            trusted,
        };
        let answer = self.serve_request(&request);
        self.respond(&request, answer);
    }

    fn serve_request(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let header = &request.header.header;
        if header.base_version != 1 || header.class_version != SaHeader::CLASS_VERSION {
            return Err(MadStatus::BAD_VERSION);
        }
        match (header.method, header.attribute) {
            (Method::GET, AttributeId::CLASS_PORT_INFO) => {
                Ok(Answer::One(RecordBytes::of(&self.class_port_info())))
            }
            (Method::SET, AttributeId::INFORM_INFO) => self.set_inform_info(request),
            (Method::SET, AttributeId::MC_MEMBER_RECORD) => self.set_member(request),
            (Method::DELETE, AttributeId::MC_MEMBER_RECORD) => self.delete_member(request),
            (Method::SET, AttributeId::SERVICE_RECORD) => self.set_service(request),
            (Method::DELETE, AttributeId::SERVICE_RECORD) => self.delete_service(request),
            (Method::GET | Method::GET_TABLE, _) => self.query(request),
            _ => Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE),
        }
    }

    /// Puts the answer into the queue, or begins its transfer.
    fn respond(&mut self, request: &Request<'_>, answer: Result<Answer, MadStatus>) {
        let asked = &request.header;
        let joined = matches!(answer, Ok(Answer::Joined(_)));
        let (status, record) = match answer {
            Ok(Answer::One(record) | Answer::Joined(record)) => (MadStatus::OK, Some(record)),
            Ok(Answer::Begun | Answer::Nothing) => return,
            Err(status) => (status, None),
        };
        let Some(header) = asked.header.reply(status) else {
            return;
        };
        let len = record.map_or(0, |record| record.len);
        let front = SaHeader {
            header,
            sm_key: SmKey(0),
            attribute_offset: SaHeader::offset_of(len),
            component_mask: asked.component_mask,
            ..SaHeader::default()
        };
        let mut mad = Mad::ZERO;
        let head = front.to_bytes();
        // A refusal shows what was asked, as far as it goes.
        let body = record
            .as_ref()
            .map_or(request.received.mad.data(), RecordBytes::as_slice);
        for (place, byte) in mad.0.iter_mut().zip(head.iter().chain(body)) {
            *place = *byte;
        }
        let outgoing = request.received.reply(mad);
        if !joined {
            return self.answer(outgoing);
        }
        self.trees_soon();
        // Too early is better than never.
        if !self.joins.push(Reply(Some(outgoing))) {
            self.answer(outgoing);
        }
    }

    /// The answer to a join whose tree is written.
    pub(crate) fn next_join(&mut self) -> Option<Outgoing> {
        if self.st.joins_made == 0 || !self.trees_are_written() {
            return None;
        }
        self.st.joins_made -= 1;
        self.joins.pop()?.get()
    }

    /// protocols 4.10.
    fn class_port_info(&self) -> ClassPortInfo {
        ClassPortInfo {
            base_version: 1,
            class_version: SaHeader::CLASS_VERSION,
            capability: GmpCapability::SA_OPTIONAL_RECORDS
                | GmpCapability::SA_UD_MULTICAST
                | GmpCapability::SA_CAPABILITY_MASK_MATCH,
            capability2: ClassPortInfo::SA2_SEND_ONLY_FULL_MEMBER
                | ClassPortInfo::SA2_MULTICAST_FDB_TOP,
            resp_time: TimeCode(16),
            trap_gid: self.st.own.map_or(Gid::NONE, |own| self.gid_of(own)),
            trap_lid: self.own_lid(),
            trap_sl: self.config.sm_sl,
            trap_p_key: PKey::DEFAULT,
            trap_qp: Qpn::GSI,
            trap_q_key: core_ib::QKey::GSI,
            ..ClassPortInfo::default()
        }
    }

    /// Set(InformInfo). protocols 4.9.
    fn set_inform_info(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let port = request.asker()?;
        let mut info: InformInfo = request.record()?;
        if info.subscribe {
            // Where the reports go; whoever names nothing means the QP that every host has.
            let asked = info.qpn;
            info.qpn = if asked == Qpn::SMI { Qpn::GSI } else { asked };
        } else if info.qpn == Qpn::SMI {
            info.qpn = request.received.wc.src_qp;
        }
        let from = request.received.reply_to();
        if self.subscribe(port, &info, from) {
            Ok(Answer::One(RecordBytes::of(&info)))
        } else if info.subscribe {
            Err(MadStatus::SA_NO_RESOURCES)
        } else {
            Err(MadStatus::SA_REQUEST_INVALID)
        }
    }

    /// A key of a partition that both ports are in, one of them as a full member: with the bit of full membership.
    pub(crate) fn shared_key(&self, a: core_ib::Guid, b: core_ib::Guid) -> Option<PKey> {
        let config = self.config;
        let both = |key: &PKey| {
            config
                .p_key_in(b, *key)
                .is_some_and(|other| other.matches(*key))
        };
        config.p_keys_of(a).find(both).map(full)
    }

    /// The same in the partition of `key`.
    fn shared_key_in(&self, a: core_ib::Guid, b: core_ib::Guid, key: PKey) -> Option<PKey> {
        let (a, b) = (self.config.p_key_in(a, key)?, self.config.p_key_in(b, key)?);
        a.matches(b).then(|| full(key))
    }

    /// The end port named by a GID or a LID of a request.
    fn named(&self, gid: Option<Gid>, lid: Option<Lid>) -> Result<Option<PortId>, MadStatus> {
        let by_gid = match gid {
            Some(gid) => Some(self.port_of_gid(gid).ok_or(MadStatus::SA_INVALID_GID)?),
            None => None,
        };
        let by_lid = match lid {
            Some(lid) => Some(self.port_of_lid(lid).ok_or(MadStatus::SA_NO_RECORDS)?),
            None => None,
        };
        match (by_gid, by_lid) {
            (Some(a), Some(b)) if a != b => Err(MadStatus::SA_NO_RECORDS),
            (a, b) => Ok(a.or(b)),
        }
    }

    /// All end ports in service.
    fn present_ports(&self) -> impl Iterator<Item = PortId> {
        let here = |port: &PortId| {
            self.ports
                .get(*port)
                .is_some_and(|row| row.has(PortFlags::PRESENT))
        };
        self.all_ports().filter(here)
    }
}

const fn full(key: PKey) -> PKey {
    PKey(key.0 | 0x8000)
}
