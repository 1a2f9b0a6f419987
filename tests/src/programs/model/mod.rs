//! The reference model: what `docs/reference/verbs.md` ("verbs") says that two HCAs on a cable do, call by call. It is
//! written from that page and knows no driver. What is a number of the device's choice (keys, QP numbers, sizes) it
//! [learns](Model::learn) from the answers.
//!
//! After each call the model has run until nothing more can happen, as the executor waits until it has: work is done in
//! an order that the page allows, and where the page allows several that a consumer could tell apart, or says nothing,
//! the call is [`Open`], and the executor leaves it out on both.

mod control;
mod migrate;
mod modify;
mod post;
mod run;
mod state;
mod traffic;

use super::super::conformance::{Declared, Side};
use super::call::{Call, Key, Name};
use core::ops::Range;
use core_ib::verbs::{DeviceAttr, PostCause, QpEvent, QpState, SrqEvent, VerbsError, WcStatus};
pub use migrate::{ALTERNATE, PRIMARY, other};
pub use post::{immediate, inline, operands};
pub use state::{Armed, Completion, Half, Id, Migration, Table};

/// Bytes of the memory of each side.
pub const ARENA: usize = 8 * 4096;
/// Address of its first byte in every region, so that a piece has one address whichever key names it.
pub const BASE: u64 = 0x0007_1234_0000;

/// The page does not say what comes of this call, or leaves it to chance. Why, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open(pub &'static str);

/// Kinds of immediate errors: verbs 0.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Handle,
    Attr,
    Mask,
    State,
    Port,
    Resources,
    Busy,
    Unsupported,
    Permission,
    NotFound,
    /// None that a program here should see.
    Other,
}

impl From<VerbsError> for Error {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::InvalidHandle { .. } => Self::Handle,
            VerbsError::InvalidAttr { .. } => Self::Attr,
            VerbsError::InvalidMask { .. } => Self::Mask,
            VerbsError::InvalidState { .. } => Self::State,
            VerbsError::InvalidPort { .. } => Self::Port,
            VerbsError::NoResources { .. } => Self::Resources,
            VerbsError::Busy { .. } => Self::Busy,
            VerbsError::Unsupported { .. } => Self::Unsupported,
            VerbsError::NotPermitted { .. } => Self::Permission,
            VerbsError::NotFound { .. } => Self::NotFound,
            _ => Self::Other,
        }
    }
}

/// Path in use, other path, state of migration.
pub type Paths = (u8, Option<u8>, Migration);

/// What a call must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Success.
    Done,
    /// One of these errors, and nothing has changed: a call with several mistakes may name any of them.
    Fails(Vec<Error>),
    /// All of the list is posted.
    Posted,
    /// So many are posted, and the next is refused for one of these causes.
    Stops(usize, Vec<PostCause>),
    /// So many completions.
    Polls(usize),
    /// State, whether the send queue is draining, and the paths if they mean something.
    State(QpState, bool, Option<Paths>),
    /// Limit in force.
    Limit(u32),
}

/// An asynchronous event that may come, or must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub side: usize,
    pub what: Affiliated,
    pub must: bool,
}

/// An event of an object, in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affiliated {
    /// One of these of a QP.
    Qp(usize, Vec<QpEvent>),
    /// Of an SRQ.
    Srq(usize, SrqEvent),
}

/// Two HCAs.
#[derive(Clone, Debug)]
pub struct Model {
    pub sides: [Half; 2],
    declared: Declared,
    limits: DeviceAttr,
    next_id: Id,
    epoch: u32,
    /// Identifier of the next request.
    pub wr_id: u64,
    /// Memory whose content the page does not say since the last call.
    pub unknown: Vec<(usize, Range<usize>)>,
    /// Events since the last call.
    pub events: Vec<Expected>,
    /// Packets of this service level get lost on the cable.
    pub lost: Option<u8>,
}

impl Model {
    /// Two HCAs with nothing on them, of which this is known.
    pub fn new(declared: &Declared, limits: DeviceAttr) -> Self {
        let half = || Half::new(ARENA);
        Self {
            sides: [half(), half()],
            declared: *declared,
            limits,
            next_id: 1,
            epoch: 0,
            wr_id: 1,
            unknown: Vec::new(),
            events: Vec::new(),
            lost: None,
        }
    }

    fn id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }

    /// The call is made on `side`. On [`Open`] the model is worth nothing any more: ask a copy.
    pub fn call(&mut self, side: Side, call: &Call) -> Result<Want, Open> {
        self.unknown.clear();
        self.events.clear();
        let side = side.index();
        let want = match call {
            Call::PostSend { qp, wrs } => self.post_send(side, *qp, wrs)?,
            Call::PostRecv { qp, wrs } => self.post_recv(side, *qp, wrs)?,
            Call::PostSrq { srq, wrs } => self.post_srq(side, *srq, wrs)?,
            Call::Modify { qp, to, twist } => self.modify(side, *qp, *to, *twist)?,
            _ => self.control(side, call)?,
        };
        self.run()?;
        Ok(want)
    }

    /// Number that a key names for the side that uses it: `owner` is the side that made it.
    pub fn key(&self, owner: usize, key: Key, remote: bool) -> Option<u32> {
        const WILD: u32 = 0xdead_be00;
        let own = |name: Name| -> Option<(usize, usize)> {
            let place = usize::from(name.0 % super::call::PLACES);
            let side = if name.0 < super::call::PLACES {
                owner
            } else {
                1 - owner
            };
            Some((side, place))
        };
        match key {
            Key::Wild => Some(WILD),
            Key::Mr(name) => {
                let (side, place) = own(name)?;
                let keys = self.sides[side].mr_keys[place]?;
                Some(if remote { keys.1 } else { keys.0 })
            }
            Key::Fmr(name) => {
                let (side, place) = own(name)?;
                let keys = self.sides[side].fmr_keys[place]?;
                Some(if remote { keys.1 } else { keys.0 })
            }
            Key::Mw(name) => {
                let (side, place) = own(name)?;
                self.sides[side].mw_keys[place]
            }
        }
    }

    fn expect(&mut self, side: usize, what: Affiliated, must: bool) {
        self.events.push(Expected { side, what, must });
    }
}

/// Is it one of the errors?
pub const fn is_error(status: WcStatus) -> bool {
    !matches!(status, WcStatus::Success)
}
