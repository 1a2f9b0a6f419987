//! A connection: its two ends, the way between them, and which packets came that way. protocols 2.3.

use super::port::{Destination, Discard, DropReason, Incoming};
use super::ud::{AddressVector, SendError};
use crate::fabric::{BadKey, KeyViolation, PortState};
use core_ib::wire::packet::{Bth, Extended, Headers, Opcode, Operation, Service};
use core_ib::{Psn, Qpn};

/// The two ends of a connection, as one of them knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// RC or UC.
    pub service: Service,
    /// This end.
    pub qpn: Qpn,
    /// The other end.
    pub dest_qp: Qpn,
    /// The way there, and with it the way that packets have to come.
    pub path: AddressVector,
    /// Entry of the port's P_Key table.
    pub p_key_index: usize,
    /// How far path migration is.
    pub migration: Migration,
}

/// State of automatic path migration. Who has none is for ever [`Migrated`](Self::Migrated). protocols 2.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Migration {
    /// On its path.
    #[default]
    Migrated,
    /// An alternate path is loaded, and the peer is not known to be ready.
    Rearm,
    /// Both are ready.
    Armed,
}

/// One of the paths of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// The one in use.
    Primary,
    /// The other.
    Alternate,
}

impl Migration {
    /// By which path a packet with this MigReq has to have come, and the state that follows if it did.
    pub const fn on_packet(self, mig_req: bool) -> (PathChoice, Self) {
        match (self, mig_req) {
            (Self::Armed, true) => (PathChoice::Alternate, Self::Migrated),
            (Self::Rearm, false) => (PathChoice::Primary, Self::Armed),
            (state, _) => (PathChoice::Primary, state),
        }
    }
}

impl Connection {
    /// Headers of a packet to the other end. [`SendError::Discard`]: the packet is lost, and nothing wrong with the request.
    pub fn headers(
        &self,
        port: &PortState,
        operation: Operation,
        psn: Psn,
        extended: Extended,
    ) -> Result<Headers, SendError> {
        let index = self.p_key_index;
        let key = port.p_keys.get(index).copied();
        let key = key.ok_or(SendError::PKeyIndex(index))?;
        if key.base() == 0 {
            return Err(SendError::Discard(Discard::NoPKey(index)));
        }
        let opcode = Opcode::new(self.service, operation);
        let mut bth = Bth::new(opcode, key, self.dest_qp, psn);
        bth.mig_req = self.migration == Migration::Migrated;
        Ok(Headers {
            lrh: self.path.lrh(port)?,
            grh: self.path.grh(port)?,
            bth,
            extended,
        })
    }

    /// May a packet that `port` took in come over this connection? Checks 6 (service), 8 and 10 of protocols 2.2.
    pub fn accepts(&self, port: &PortState, incoming: &Incoming<'_>) -> Result<(), DropReason> {
        let Incoming { lrh, transport, .. } = incoming;
        let opcode = transport.bth.opcode;
        if opcode.service() != self.service {
            return Err(DropReason::Opcode(opcode.0));
        }
        let p_key = transport.bth.p_key;
        let entry = port.p_keys.get(self.p_key_index);
        if !entry.is_some_and(|entry| entry.matches(p_key)) {
            return Err(DropReason::Key(KeyViolation {
                key: BadKey::P(p_key),
                slid: lrh.slid,
                dlid: lrh.dlid,
                sl: lrh.sl,
                // The packet does not say.
                src_qp: self.dest_qp,
                dest_qp: self.qpn,
                gids: transport.grh.map(|grh| (grh.sgid, grh.dgid)),
            }));
        }
        let same_way = match (&self.path.grh, transport.grh, incoming.to) {
            (None, None, _) => true,
            (Some(route), Some(grh), Destination::Unicast { gid_index, .. }) => {
                grh.sgid == route.dgid && gid_index == Some(route.sgid_index)
            }
            _ => false,
        };
        if same_way && lrh.slid == self.path.dlid {
            Ok(())
        } else {
            Err(DropReason::Path(lrh.slid))
        }
    }
}
