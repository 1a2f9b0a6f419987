//! The client of the subnet administrator (SA). protocols 4.

mod answer;
mod ask;
mod groups;
mod kept;
mod query;

#[cfg(test)]
mod tests;

pub use query::{GroupUser, GroupUsers, QueryId, SaAnswer, SaConfig, SaError, SaPort, SaRecord};

use crate::addr::{MadAddr, Outgoing};
use crate::dispatch::AgentId;
use crate::rmpp::{ReceiverNext, RmppReceiver};
use crate::transaction::{Next, Transaction};
use core_ib::platform::Blank;
use core_ib::wire::mad::{JoinState, Layout, Mad, McMemberRecord, Records, SaHeader, SaNotice};
use core_ib::{Gid, Instant, Lid, Sl};
use groups::{Group, News, Op};
use heapless::Deque;
use kept::Kept;
use query::{Kind, Query};

/// Reports that wait to be polled; the SA repeats those for which there is no room.
const REPORTS: usize = 8;
/// Answers that wait to be polled; whoever waits for them asks again.
const OUTBOX: usize = 8;

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaNext {
    /// Put this on the wire, then poll again.
    Send(Outgoing),
    /// A request is over. An [`SaAnswer::Table`] is to be read before the next poll.
    Done {
        /// Which.
        query: QueryId,
        /// What its maker gave.
        cookie: u64,
        /// How it went.
        result: Result<SaAnswer, SaError>,
    },
    /// A membership that had been lost (port down, another LID, a subnet manager that starts anew) was asked for again:
    /// these users have it again, maybe with another MLID, or have lost it for good.
    Regrouped {
        /// The group.
        mgid: Gid,
        /// Whose memberships.
        users: GroupUsers,
        /// The group, complete.
        result: Result<McMemberRecord, SaError>,
    },
    /// A subscription or a service could not be registered anew, and is forgotten.
    Unregistered {
        /// What its maker gave.
        cookie: u64,
        /// Why.
        error: SaError,
    },
    /// The SA reports something that was subscribed to.
    Report(SaNotice),
    /// Nothing before this instant, unless an event comes.
    WaitUntil(Instant),
}

/// A table on its way in, or lately arrived.
#[derive(Debug)]
struct Transfer {
    /// Lower half of the transaction id.
    serial: u32,
    receiver: RmppReceiver,
}

/// What the buffer for tables is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    Free,
    /// By the query with this number.
    Busy(u32),
    /// There is a table in it.
    Ready {
        len: usize,
        offset: u16,
        /// The owner has been told, and has until the next poll.
        shown: bool,
    },
}

/// What the port asks of the SA: any query, memberships in multicast groups, services, subscriptions.
///
/// At most `QUERIES` requests wait at once, `GROUPS` groups are joined, `KEPT` services and subscriptions are kept
/// registered, and a table has at most `TABLE` bytes; tables are fetched one at a time. Register the agent with
/// [`Registration::sa_client`](crate::Registration::sa_client).
///
/// When the port goes down, gets another LID, or is asked to reregister, the SA has forgotten it: memberships,
/// services and subscriptions are made anew, as soon as there is an SA. Tell this client of port events
/// ([`port_changed`](Self::port_changed), [`reregister`](Self::reregister)) before its users, so that what they ask
/// then is not answered from before the event.
#[derive(Debug)]
pub struct Sa<const QUERIES: usize, const GROUPS: usize, const KEPT: usize, const TABLE: usize> {
    agent: AgentId,
    config: SaConfig,
    port: SaPort,
    serial: u32,
    queries: [Option<Query>; QUERIES],
    groups: [Option<Group>; GROUPS],
    kept: [Option<Kept>; KEPT],
    transfer: Option<Transfer>,
    table: [u8; TABLE],
    table_state: TableState,
    outbox: Deque<Outgoing, OUTBOX>,
    reports: Deque<SaNotice, REPORTS>,
    /// Polls before this find nothing, unless something is asked, or arrives.
    quiet_until: Instant,
}

// SAFETY: it holds values alone, no owner of anything.
unsafe impl<const QUERIES: usize, const GROUPS: usize, const KEPT: usize, const TABLE: usize> Blank
    for Sa<QUERIES, GROUPS, KEPT, TABLE>
{
    /// Of nobody: [`Sa::set_up`] is to follow.
    const BLANK: &'static Self = &Self::new(AgentId::new(0), SaConfig::DEFAULT);
}

impl<const QUERIES: usize, const GROUPS: usize, const KEPT: usize, const TABLE: usize>
    Sa<QUERIES, GROUPS, KEPT, TABLE>
{
    /// The client that acts as `agent`. It does nothing before [`port_changed`](Self::port_changed).
    pub const fn new(agent: AgentId, config: SaConfig) -> Self {
        Self {
            agent,
            config,
            port: SaPort {
                active: false,
                lid: Lid::NONE,
                sm_lid: Lid::NONE,
                sm_sl: Sl::new(0),
                pkey_index: 0,
            },
            serial: 0,
            queries: [const { None }; QUERIES],
            groups: [const { None }; GROUPS],
            kept: [const { None }; KEPT],
            transfer: None,
            table: [0; TABLE],
            table_state: TableState::Free,
            outbox: Deque::new(),
            reports: Deque::new(),
            quiet_until: Instant(0),
        }
    }

    /// Something may be due now.
    const fn stir(&mut self) {
        self.quiet_until = Instant(0);
    }

    /// Makes a [blank](Blank) client the one that acts as `agent`.
    pub const fn set_up(&mut self, agent: AgentId, config: SaConfig) {
        self.stir();
        self.agent = agent;
        self.config = config;
    }

    /// The agent that it is.
    pub const fn agent(&self) -> AgentId {
        self.agent
    }

    // What the port goes through.

    /// Takes note of where the port stands. Requests go to the new SM; without one they fail.
    pub fn port_changed(&mut self, port: &SaPort, now: Instant) {
        self.stir();
        let before = self.port;
        self.port = *port;
        if !port.is_usable() {
            self.forgotten();
            self.fail_all(SaError::NoSubnetManager);
            return;
        }
        if !before.is_usable() || before.lid != port.lid {
            self.forgotten();
        }
        if (before.sm_lid, before.sm_sl) != (port.sm_lid, port.sm_sl) {
            self.start_over(now);
        }
    }

    /// The subnet manager asks to register everything anew. protocols 9.10.
    pub fn reregister(&mut self) {
        self.stir();
        self.forgotten();
    }

    /// The SA knows nothing of us any more.
    fn forgotten(&mut self) {
        self.groups.iter_mut().flatten().for_each(Group::lose);
        self.kept.iter_mut().flatten().for_each(Kept::lose);
    }

    /// Ends all that users wait for, but for leaves, which have come true.
    fn fail_all(&mut self, error: SaError) {
        for query in self.queries.iter_mut().flatten() {
            match query.kind {
                Kind::Over(_) | Kind::Leave { .. } => continue,
                Kind::Keep { place } => {
                    if let Some(kept) = self.kept.get_mut(place) {
                        *kept = None;
                    }
                }
                _ => {}
            }
            query.kind = Kind::Over(Err(error));
        }
        self.drop_transfer();
    }

    /// Asks another SA what was asked of the one before.
    fn start_over(&mut self, now: Instant) {
        self.drop_transfer();
        let Self {
            config,
            queries,
            groups,
            kept,
            ..
        } = self;
        for query in queries.iter_mut().flatten() {
            if let Some(transaction) = query.transaction() {
                *transaction = Transaction::new(config.query, now);
            }
        }
        let ops = groups
            .iter_mut()
            .flatten()
            .filter_map(|group| group.op.as_mut());
        let ops = ops.map(|op| &mut op.transaction);
        let kept = kept.iter_mut().flatten().filter_map(Kept::transaction);
        ops.chain(kept)
            .for_each(|transaction| *transaction = Transaction::new(config.change, now));
    }

    /// What has come of a table so far is worth nothing.
    fn drop_transfer(&mut self) {
        self.transfer = None;
        let asks = |serial| {
            self.queries
                .iter()
                .flatten()
                .any(|query| query.asks_table(serial))
        };
        if let TableState::Busy(serial) = self.table_state
            && !asks(serial)
        {
            self.table_state = TableState::Free;
        }
    }

    // What the owner polls.

    /// What is due at `now`. Poll again after anything but `WaitUntil`. Ask first whether the port has room: a `Send`
    /// that is thrown away counts as a try.
    pub fn poll(&mut self, now: Instant) -> SaNext {
        let now = now.on_the_clock();
        let quiet_until = self.quiet_until;
        let quiet = now < quiet_until;
        // Tests look in spite of it.
        if quiet && !cfg!(test) {
            return SaNext::WaitUntil(quiet_until);
        }
        let next = self.next(now);
        if let SaNext::WaitUntil(at) = next {
            self.quiet_until = at;
        }
        #[cfg(test)]
        if quiet {
            let expected = SaNext::WaitUntil(quiet_until);
            assert_eq!(next, expected, "somebody forgot to stir");
        }
        next
    }

    fn next(&mut self, now: Instant) -> SaNext {
        if matches!(self.table_state, TableState::Ready { shown: true, .. }) {
            self.table_state = TableState::Free;
        }
        loop {
            if let Some(outgoing) = self.outbox.pop_front() {
                return SaNext::Send(outgoing);
            }
            if let Some(notice) = self.reports.pop_front() {
                return SaNext::Report(notice);
            }
            self.settle();
            if let Some(news) = self.done().or_else(|| self.news()) {
                return news;
            }
            let mut wake = Instant::NEVER;
            if self.port.is_usable() {
                wake = self.begin(now);
                match self.transact(now) {
                    Due::Send(serial, mad) => return self.send(serial, mad),
                    Due::Over(serial, error) => {
                        self.finish(serial, Err(error), now);
                        continue;
                    }
                    Due::Wait(at) => wake = wake.min(at),
                }
            }
            match self.receive_table(now) {
                Due::Send(serial, mad) => return self.send(serial, mad),
                Due::Over(serial, error) => self.finish(serial, Err(error), now),
                Due::Wait(at) if at > now => return SaNext::WaitUntil(wake.min(at)),
                Due::Wait(_) => {}
            }
        }
    }

    /// The records of the last table, which are of type `R`. Empty but between [`SaAnswer::Table`] and the next poll.
    pub fn records<R: Layout>(&self) -> Records<'_, R> {
        let (data, offset) = self.table();
        Records::new(data, offset)
    }

    /// The bytes of the last table, and from one record to the next in units of 8 bytes; likewise.
    pub fn table(&self) -> (&[u8], u16) {
        match self.table_state {
            TableState::Ready { len, offset, .. } => (self.table.get(..len).unwrap_or(&[]), offset),
            _ => (&[], 0),
        }
    }

    /// The SA's address.
    fn address(&self) -> MadAddr {
        MadAddr::gsi(self.port.sm_lid, self.port.sm_sl, self.port.pkey_index)
    }

    fn send(&self, serial: u32, mad: Mad) -> SaNext {
        let to = self.address();
        let mut outgoing = Outgoing { to, mad };
        crate::requests::set_tid(&mut outgoing, self.agent.tid(serial));
        SaNext::Send(outgoing)
    }

    /// Ends the joins and leaves that have come true, and the groups that nobody needs.
    fn settle(&mut self) {
        let Self {
            queries, groups, ..
        } = self;
        for query in queries.iter_mut().flatten() {
            match query.kind {
                Kind::Join { group, user, bits } => {
                    let Some(Some(group)) = groups.get_mut(group) else {
                        continue;
                    };
                    if group.has(bits)
                        && let Some(record) = group.record
                    {
                        group.give(user, bits);
                        query.kind = Kind::Over(Ok(SaAnswer::Joined(record)));
                    }
                }
                Kind::Leave { group, bits } => {
                    let group = groups.get(group).and_then(Option::as_ref);
                    if group.is_none_or(|group| group.is_rid_of(bits)) {
                        query.kind = Kind::Over(Ok(SaAnswer::Left));
                    }
                }
                _ => {}
            }
        }
        for (place, slot) in groups.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(Group::is_over)
                && !queries
                    .iter()
                    .flatten()
                    .any(|query| query.is_of_group(place))
            {
                *slot = None;
            }
        }
    }

    /// A request that is over; of several that which was made first, so that nobody hears that he left before he
    /// hears that he joined.
    fn done(&mut self) -> Option<SaNext> {
        let newest = self.serial;
        let is_over = |slot: &&mut Option<Query>| slot.as_ref().is_some_and(Query::is_over);
        let age = |slot: &&mut Option<Query>| slot.map(|query| newest.wrapping_sub(query.id.0));
        let slot = self.queries.iter_mut().filter(is_over).max_by_key(age)?;
        let Query { id, cookie, kind } = slot.take()?;
        let Kind::Over(result) = kind else {
            return None;
        };
        if let TableState::Ready { shown, .. } = &mut self.table_state
            && result == Ok(SaAnswer::Table)
        {
            *shown = true;
        }
        Some(SaNext::Done {
            query: id,
            cookie,
            result,
        })
    }

    /// What users are to be told that they did not ask.
    fn news(&mut self) -> Option<SaNext> {
        for group in self.groups.iter_mut().flatten() {
            if let Some(News { users, result }) = group.news.take() {
                let mgid = group.mgid;
                return Some(SaNext::Regrouped {
                    mgid,
                    users,
                    result,
                });
            }
        }
        for slot in &mut self.kept {
            if let Some(kept) = slot
                && let Some(error) = kept.lost()
            {
                let cookie = kept.cookie;
                *slot = None;
                return Some(SaNext::Unregistered { cookie, error });
            }
        }
        None
    }

    /// Makes transactions of what is due. Says when something else will be.
    fn begin(&mut self, now: Instant) -> Instant {
        let change = self.config.change;
        for place in 0..GROUPS {
            let pending = self.pending(place);
            let group = self.groups.get(place).and_then(Option::as_ref);
            let Some(step) = group.and_then(|group| group.step(pending)) else {
                continue;
            };
            let serial = self.next_serial();
            if let Some(Some(group)) = self.groups.get_mut(place) {
                group.op = Some(Op {
                    serial,
                    transaction: Transaction::new(change, now),
                    step,
                });
            }
        }
        let mut wake = Instant::NEVER;
        for place in 0..KEPT {
            match self
                .kept
                .get(place)
                .and_then(Option::as_ref)
                .map(|kept| kept.due(now))
            {
                Some(Ok(())) => {
                    let serial = self.next_serial();
                    if let Some(Some(kept)) = self.kept.get_mut(place) {
                        kept.ask(serial, change, now);
                    }
                }
                Some(Err(at)) => wake = wake.min(at),
                None => {}
            }
        }
        if self.table_state == TableState::Free {
            self.begin_table(now);
        }
        wake
    }

    /// Lets the query that has waited longest have the buffer.
    fn begin_table(&mut self, now: Instant) {
        let newest = self.serial;
        let queries = self.queries.iter_mut().flatten();
        let waiting = queries.filter(|query| query.is_waiting_table());
        let oldest = waiting.max_by_key(|query| newest.wrapping_sub(query.id.0));
        if let Some(query) = oldest
            && let Kind::Table { transaction, .. } = &mut query.kind
        {
            *transaction = Some(Transaction::new(self.config.query, now));
            self.transfer = None;
            self.table_state = TableState::Busy(query.id.0);
        }
    }

    /// Bits of a group that those want who wait.
    fn pending(&self, place: usize) -> JoinState {
        let queries = self.queries.iter().flatten();
        queries.fold(JoinState::empty(), |all, query| match query.kind {
            Kind::Join { group, bits, .. } if group == place => all | bits,
            _ => all,
        })
    }

    /// What the transactions want.
    fn transact(&mut self, now: Instant) -> Due {
        let mut wake = Instant::NEVER;
        let receiving = self.transfer.as_ref().map(|transfer| transfer.serial);
        for query in self.queries.iter_mut().flatten() {
            let serial = query.id.0;
            if receiving == Some(serial) {
                continue; // the receiver has its own patience
            }
            let Some(transaction) = query.transaction() else {
                continue;
            };
            let next = transaction.poll(now);
            if let Some(due) = Due::of(serial, next, || query.mad(), &mut wake) {
                return due;
            }
        }
        for group in self.groups.iter_mut().flatten() {
            let Some(op) = &mut group.op else { continue };
            let (serial, step) = (op.serial, op.step);
            let next = op.transaction.poll(now);
            if let Some(due) = Due::of(serial, next, || group.mad(step), &mut wake) {
                return due;
            }
        }
        for kept in self.kept.iter_mut().flatten() {
            let (serial, mad) = (kept.serial, kept.mad);
            let Some(transaction) = kept.transaction() else {
                continue;
            };
            let next = transaction.poll(now);
            if let Some(due) = Due::of(serial, next, || Ok(mad), &mut wake) {
                return due;
            }
        }
        Due::Wait(wake)
    }

    /// What the transfer of a table wants.
    fn receive_table(&mut self, now: Instant) -> Due {
        let Some(Transfer { serial, receiver }) = &mut self.transfer else {
            return Due::Wait(Instant::NEVER);
        };
        let serial = *serial;
        match receiver.poll(now) {
            ReceiverNext::Control(mad) => Due::Send(serial, mad),
            ReceiverNext::WaitUntil(at) => Due::Wait(at),
            ReceiverNext::Over => {
                self.transfer = None;
                Due::Wait(Instant::NEVER)
            }
            ReceiverNext::Complete { len } => {
                let offset = SaHeader::read(receiver.head()).map(|head| head.attribute_offset);
                self.table_arrived(serial, len, offset.unwrap_or(0));
                Due::Wait(now)
            }
            ReceiverNext::Failed(error) => Due::Over(serial, SaError::Table(error)),
        }
    }
}

/// Ends the queries that `are_meant`. Says whether there was one.
fn finish_where(
    queries: &mut [Option<Query>],
    result: Result<SaAnswer, SaError>,
    are_meant: impl Fn(&Query) -> bool,
) -> bool {
    let mut found = false;
    for query in queries
        .iter_mut()
        .flatten()
        .filter(|query| are_meant(query))
    {
        query.kind = Kind::Over(result);
        found = true;
    }
    found
}

/// What is due.
enum Due {
    /// The MAD of this transaction.
    Send(u32, Mad),
    /// This transaction is over.
    Over(u32, SaError),
    /// Nothing before this instant.
    Wait(Instant),
}

impl Due {
    /// `None`: nothing, and `wake` says when.
    fn of(
        serial: u32,
        next: Next,
        mad: impl FnOnce() -> Result<Mad, SaError>,
        wake: &mut Instant,
    ) -> Option<Self> {
        match next {
            Next::Send => Some(match mad() {
                Ok(mad) => Self::Send(serial, mad),
                Err(error) => Self::Over(serial, error),
            }),
            Next::Done(Err(why)) => Some(Self::Over(serial, SaError::NoAnswer(why))),
            Next::Done(Ok(_)) => None, // seen when the answer came
            Next::WaitUntil(at) => {
                *wake = (*wake).min(at);
                None
            }
        }
    }
}
