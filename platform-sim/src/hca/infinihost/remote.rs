//! What a peer does to memory by an R_Key: the responder's side of RDMA read, RDMA write and atomics. infinihost 4.9,
//! 5.7, 5.12, verbs 7.4, protocols 2.5.1.
//!
//! The engine of a connected service calls [`Chip::remote_check`] with the range of the whole operation at its first
//! packet, and then moves the data piece by piece with [`Chip::remote_read`] and [`Chip::remote_write`]. Each piece is
//! checked again: the key may be gone by then, and nothing is remembered here.
//!
//! An R_Key names a region or a window. A window has rights and bounds of its own, and the translations of the region
//! it is bound to, which must still be valid.

use super::chip::Chip;
use super::mpt::{AccessError, Key, Right};
use super::qp::Qp;
use crate::machine::Bus;
use crate::transport::AtomicOp;
use core::fmt;
use core_ib::wire::packet::NakCode;
use hca_abi::infinihost::init_hca::InitHca;
use hca_abi::infinihost::mpt::Mpt;

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOp {
    /// RDMA read.
    Read,
    /// RDMA write, with or without immediate data.
    Write,
    /// Compare and swap, fetch and add.
    Atomic,
}

impl RemoteOp {
    const fn right(self) -> Right {
        match self {
            Self::Read => Right::RemoteRead,
            Self::Write => Right::RemoteWrite,
            Self::Atomic => Right::RemoteAtomic,
        }
    }
}

/// A key that came in a packet, and the QP that the packet was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// R_Key of the RETH or AtomicETH.
    pub rkey: u32,
    /// Domain of the QP.
    pub pd: u32,
    /// Full number of the QP.
    pub qpn: u32,
    /// The QP lets peers read.
    pub read: bool,
    /// The QP lets peers write.
    pub write: bool,
    /// The QP lets peers do atomics.
    pub atomic: bool,
}

impl Remote {
    /// `rkey` used on `qp`, with the access flags (RRE, RWE, RAE) that its context has now.
    pub fn of(qp: &Qp, rkey: u32) -> Self {
        Self {
            rkey,
            pd: qp.context.pd(),
            qpn: qp.qpn(),
            read: qp.context.rre(),
            write: qp.context.rwe(),
            atomic: qp.context.rae(),
        }
    }

    const fn enabled(&self, op: RemoteOp) -> bool {
        match op {
            RemoteOp::Read => self.read,
            RemoteOp::Write => self.write,
            RemoteOp::Atomic => self.atomic,
        }
    }
}

/// Why a peer may not do what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteError {
    /// The QP does not let peers do this.
    NotEnabled {
        /// What was wanted.
        op: RemoteOp,
        /// The QP.
        qpn: u32,
    },
    /// An atomic whose address is not a multiple of 8.
    Misaligned {
        /// The address.
        at: u64,
    },
    /// Key, domain, right, bounds or translation.
    Access(AccessError),
}

impl RemoteError {
    /// What the peer is told. protocols 2.5.1, verbs 6.3.
    pub const fn nak(&self) -> NakCode {
        match self {
            Self::NotEnabled { .. } | Self::Misaligned { .. } => NakCode::INVALID_REQUEST,
            Self::Access(AccessError::Memory(_)) => NakCode::REMOTE_OPERATIONAL_ERROR,
            Self::Access(_) => NakCode::REMOTE_ACCESS_ERROR,
        }
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnabled { op, qpn } => write!(f, "QP {qpn:#x} allows no remote {op:?}"),
            Self::Misaligned { at } => write!(f, "atomic at {at:#x}, not a multiple of 8"),
            Self::Access(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RemoteError {}

impl From<AccessError> for RemoteError {
    fn from(error: AccessError) -> Self {
        Self::Access(error)
    }
}

/// How the host stores the numbers of atomics; made from what INIT_HCA said. infinihost 5.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOrder {
    /// x86.
    Little,
    /// Power, SPARC.
    Big,
}

impl From<&InitHca> for HostOrder {
    fn from(init: &InitHca) -> Self {
        if init.big_endian_host() {
            Self::Big
        } else {
            Self::Little
        }
    }
}

impl HostOrder {
    /// A number as it lies in memory. The requester stores the answer of an atomic in this way too.
    pub const fn bytes(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The number that lies in memory.
    pub const fn value(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

impl Chip {
    /// May the peer do `op` to all of `len` bytes at `at`? An operation of no bytes needs the QP's permission and no
    /// key.
    pub fn remote_check(
        &self,
        bus: &mut dyn Bus,
        who: &Remote,
        op: RemoteOp,
        at: u64,
        len: u64,
    ) -> Result<(), RemoteError> {
        self.remote_region(bus, who, op, at, len).map(|_| ())
    }

    /// The region whose translations lead to the bytes; `None` if there are none to be reached.
    fn remote_region(
        &self,
        bus: &mut dyn Bus,
        who: &Remote,
        op: RemoteOp,
        at: u64,
        len: u64,
    ) -> Result<Option<Mpt>, RemoteError> {
        if !who.enabled(op) {
            let qpn = who.qpn;
            return Err(RemoteError::NotEnabled { op, qpn });
        }
        if len == 0 {
            return Ok(None);
        }
        let (keys, memory) = (&self.keys, &self.memory);
        let key = Key {
            key: who.rkey,
            pd: who.pd,
        };
        let entry = keys.check(memory, bus, key, op.right(), at, len)?;
        if entry.region() {
            return Ok(Some(entry));
        }
        if entry.window_type2() && entry.window_qpn() != who.qpn {
            let (key, qpn, owner) = (who.rkey, who.qpn, entry.window_qpn());
            return Err(AccessError::Window { key, qpn, owner }.into());
        }
        let region = keys.valid(memory, bus, entry.lkey())?;
        if !region.region() {
            return Err(AccessError::Key { key: entry.lkey() }.into());
        }
        Ok(Some(region))
    }

    /// Reads what a peer asked for. After an error, part of `data` may have been read.
    pub fn remote_read(
        &self,
        bus: &mut dyn Bus,
        who: &Remote,
        at: u64,
        data: &mut [u8],
    ) -> Result<(), RemoteError> {
        match self.remote_region(bus, who, RemoteOp::Read, at, data.len() as u64)? {
            Some(region) => Ok(self.keys.fetch(&self.memory, bus, &region, at, data)?),
            None => Ok(()),
        }
    }

    /// Writes what a peer sent. After an error, part of it may have been written.
    pub fn remote_write(
        &mut self,
        bus: &mut dyn Bus,
        who: &Remote,
        at: u64,
        data: &[u8],
    ) -> Result<(), RemoteError> {
        match self.remote_region(bus, who, RemoteOp::Write, at, data.len() as u64)? {
            Some(region) => Ok(self.keys.store(&mut self.memory, bus, &region, at, data)?),
            None => Ok(()),
        }
    }

    /// Does an atomic on the 8 bytes at `at`, and returns the number that was there. Nothing else of this HCA comes
    /// between. The key is looked at before the alignment.
    pub fn remote_atomic(
        &mut self,
        bus: &mut dyn Bus,
        who: &Remote,
        at: u64,
        op: AtomicOp,
        order: HostOrder,
    ) -> Result<u64, RemoteError> {
        let Some(region) = self.remote_region(bus, who, RemoteOp::Atomic, at, 8)? else {
            return Ok(0);
        };
        if !at.is_multiple_of(8) {
            return Err(RemoteError::Misaligned { at });
        }
        let mut bytes = [0; 8];
        self.keys
            .fetch(&self.memory, bus, &region, at, &mut bytes)?;
        let value = order.value(bytes);
        let new = order.bytes(op.apply(value));
        if new != bytes {
            self.keys.store(&mut self.memory, bus, &region, at, &new)?;
        }
        Ok(value)
    }
}
