//! What the model remembers.

use super::super::super::conformance::tools::QKEY;
use super::super::call::{Address, Name, PLACES};
use core_ib::QKey;
use core_ib::verbs::{Access, QpCaps, QpState, QpType, WcOpcode, WcStatus};
use std::collections::{BTreeMap, VecDeque};

/// An object, never the same twice.
pub type Id = u32;

/// A place of a table: never used, used by what is gone, or used.
#[derive(Clone, Debug)]
pub struct Place<T> {
    pub used: bool,
    pub object: Option<T>,
}

/// Objects of a kind on a side.
#[derive(Clone, Debug)]
pub struct Table<T>([Place<T>; PLACES as usize]);

impl<T> Table<T> {
    fn new() -> Self {
        Self(
            [const {
                Place {
                    used: false,
                    object: None,
                }
            }; PLACES as usize],
        )
    }

    pub fn place(&self, place: usize) -> &Place<T> {
        &self.0[place]
    }

    pub fn get(&self, place: usize) -> Option<&T> {
        self.0[place].object.as_ref()
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.0[place].object.as_mut()
    }

    pub fn put(&mut self, place: usize, object: T) {
        self.0[place] = Place {
            used: true,
            object: Some(object),
        };
    }

    pub fn take(&mut self, place: usize) -> Option<T> {
        self.0[place].object.take()
    }

    pub fn live(&self) -> impl Iterator<Item = (usize, &T)> {
        let places = self.0.iter().enumerate();
        places.filter_map(|(at, place)| Some((at, place.object.as_ref()?)))
    }

    /// Is there something with that name on the side whose table this is?
    pub fn has(&self, name: Name) -> bool {
        name.0 < PLACES && self.get(usize::from(name.0)).is_some()
    }
}

/// One HCA and its memory.
#[derive(Clone, Debug)]
pub struct Half {
    pub pds: Table<Pd>,
    pub cqs: Table<Cq>,
    pub srqs: Table<Srq>,
    pub qps: Table<Qp>,
    pub mrs: Table<Mr>,
    pub mws: Table<Mw>,
    pub fmrs: Table<Fmr>,
    pub ahs: Table<Ah>,
    /// Keys that were told last, local and remote, of what may be gone.
    pub mr_keys: [Option<(u32, u32)>; PLACES as usize],
    pub fmr_keys: [Option<(u32, u32)>; PLACES as usize],
    pub mw_keys: [Option<u32>; PLACES as usize],
    pub arena: Vec<u8>,
}

impl Half {
    pub fn new(arena: usize) -> Self {
        Self {
            pds: Table::new(),
            cqs: Table::new(),
            srqs: Table::new(),
            qps: Table::new(),
            mrs: Table::new(),
            mws: Table::new(),
            fmrs: Table::new(),
            ahs: Table::new(),
            mr_keys: Default::default(),
            fmr_keys: Default::default(),
            mw_keys: Default::default(),
            arena: vec![0; arena],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Pd;

/// verbs 5.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Clone, Debug)]
pub struct Cq {
    pub size: u32,
    /// By queue: the QP, and whether it is its receive queue.
    pub waiting: BTreeMap<(Id, bool), VecDeque<Completion>>,
    pub armed: Armed,
    /// Whether it has fired since somebody looked; `None`: it may have.
    pub fired: Option<bool>,
}

impl Cq {
    pub fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a completion must say. verbs 5.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: u64,
    /// One of these.
    pub status: Vec<WcStatus>,
    pub qpn: u32,
    /// Of a success.
    pub opcode: WcOpcode,
    pub byte_len: Option<u32>,
    /// Of a receive: the flag, and the four bytes.
    pub imm: Option<Option<[u8; 4]>>,
    /// Of a datagram: the sender, by its number and the side that it is on.
    pub from: Option<(u32, usize)>,
    pub grh: Option<bool>,
    /// For the retirement of the queue: how many were posted before it.
    pub position: u32,
    /// Of a receive of an SRQ: which.
    pub srq: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Srq {
    pub pd: usize,
    pub size: u32,
    pub sges: u32,
    pub limit: u32,
    pub posted: VecDeque<Receive>,
    /// Entries in use: posted, and not seen in a completion.
    pub used: u32,
}

/// A piece of local memory as the HCA knows it: key, offset in the arena, bytes.
pub type Memory = (u32, usize, usize);

#[derive(Clone, Debug)]
pub struct Receive {
    pub wr_id: u64,
    pub pieces: Vec<Memory>,
    pub position: u32,
    pub srq: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub wr_id: u64,
    pub verb: super::post::Work,
    pub pieces: Vec<Memory>,
    pub inline: Option<Vec<u8>>,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub position: u32,
}

/// First PSNs of a life: far from each other, and later ones ahead.
pub const PSN: fn(u32) -> u32 = |epoch| 0x40_0000 + epoch * 0x1000;

#[derive(Clone, Debug)]
pub struct Qp {
    pub id: Id,
    pub service: QpType,
    pub pd: usize,
    pub cqs: [usize; 2],
    pub srq: Option<usize>,
    pub caps: QpCaps,
    pub all: bool,
    pub qpn: u32,
    pub state: QpState,
    /// Counts the lives: RESET to RESET.
    pub life: u32,
    pub access: Access,
    pub rnr_retry: u8,
    pub reads: u8,
    pub serves: u8,
    /// The peer: side, place, object, its life. `None`: nobody.
    pub peer: Option<(usize, usize, Id, u32)>,
    pub epoch: u32,
    pub sq: VecDeque<Request>,
    pub posted: u32,
    pub retired: u32,
    pub rq: VecDeque<Receive>,
    pub recv_posted: u32,
    pub recv_retired: u32,
    /// The head of the send queue waits for a receive of the peer.
    pub waits: bool,
    /// In ERR, where the HCA has taken it from RTR.
    pub moved_early: bool,
    /// In SQD: the head was started before and is not done; whether its end is to be told.
    pub drains: Option<bool>,
    pub groups: Vec<super::super::call::Group>,
    /// Of a connection: service level of the path in use, and of the other one if one was loaded.
    pub path: u8,
    pub alternate: Option<u8>,
    pub migration: Migration,
}

/// verbs 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    Migrated,
    Rearm,
    Armed,
}

impl Qp {
    pub const fn is_connected(&self) -> bool {
        matches!(self.service, QpType::Rc | QpType::Uc)
    }

    /// UD, or the GSI.
    pub const fn is_datagram(&self) -> bool {
        matches!(self.service, QpType::Ud | QpType::Gsi)
    }

    /// The Q_Key that it has from INIT on.
    pub fn qkey(&self) -> QKey {
        match self.service {
            QpType::Gsi => QKey::GSI,
            _ => QKEY,
        }
    }

    /// Does it take messages? verbs 3.2.
    pub const fn hears(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }
}

#[derive(Clone, Debug)]
pub struct Mr {
    pub id: Id,
    pub pd: usize,
    pub lo: usize,
    pub hi: usize,
    pub access: Access,
    pub keys: (u32, u32),
}

#[derive(Clone, Debug)]
pub struct Mw {
    pub pd: usize,
    pub rkey: u32,
    /// Region, range, rights.
    pub bound: Option<(Id, usize, usize, Access)>,
    /// A bind was refused or flushed: nobody says what its keys do.
    pub spoilt: bool,
}

#[derive(Clone, Debug)]
pub struct Fmr {
    pub pd: usize,
    pub pages: u32,
    pub maps: u32,
    pub used: u32,
    pub access: Access,
    /// Range, keys.
    pub mapped: Option<(usize, usize, (u32, u32))>,
    /// Keys of mappings before it, until the unmap.
    pub old: Vec<(u32, u32)>,
}

#[derive(Clone, Debug)]
pub struct Ah {
    pub pd: usize,
    pub to: Address,
}
