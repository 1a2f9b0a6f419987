//! MADs from anybody, for fuzzing.

use crate::addr::{Received, SpecialQp};
use crate::dispatch::{AgentId, Delivery, Dispatch, Methods, Registration};
use crate::perf::{Perf, PerfAsk, PerfNext};
use crate::rmpp::{ReceiverNext, RmppReceiver, RmppSender, SenderNext};
use crate::sa::{GroupUser, Sa, SaConfig, SaNext, SaPort};
use crate::transaction::Patience;
use crate::{MadAddr, smi};
use core_ib::wire::mad::{
    ComponentMask, JoinState, Mad, McMemberRecord, MgmtClass, NodeRecord, PathRecord, Records,
};
use core_ib::{Instant, Lid, Sl};

/// Lets everything of this crate that reads MADs read `bytes`, which may be anything: a byte that says by which QP and
/// how much later each MAD comes, and its 256 bytes. Whatever they are, nothing panics, and whatever is asked of a
/// machine comes to an end.
pub fn read_untrusted(bytes: &[u8]) {
    let mut now = Instant(0);
    let mut dispatch = Dispatch::<4, 2>::new();
    let sa = Registration::sa_client();
    let perf = Registration::perf_client();
    let server = Registration::server(SpecialQp::Smi, MgmtClass::SUBN_DR, 1, Methods::GET_SET);
    let [Ok(sa), Ok(perf), Ok(_)] = [sa, perf, server].map(|wanted| dispatch.register(wanted))
    else {
        return;
    };
    let mut sa = asking_sa(sa, now);
    let mut perf = Perf::<2>::new(perf, Patience::QUERY);
    let agent = MadAddr::gsi(Lid(1), Sl::new(0), 0);
    let _ = perf.ask(0, &agent, PerfAsk::Counters { port: 1 }, now);
    let mut transfer = Transfer::new(now);
    let (messages, _) = bytes.as_chunks::<257>();
    for [how, mad @ ..] in messages {
        now = now.after(core::time::Duration::from_millis(u64::from(how >> 1)));
        let qp = if how & 1 == 0 {
            SpecialQp::Gsi
        } else {
            SpecialQp::Smi
        };
        let mut mad = Mad(*mad);
        let _ = smi::receive(&mut mad, 1);
        let mut received = Received::looped_back(qp, mad);
        received.wc.slid = Lid(1);
        match dispatch.handle(&received, now) {
            Delivery::Response { agent, .. } | Delivery::Request { agent } => {
                if agent == sa.agent() {
                    sa.handle(&received, now);
                } else if agent == perf.agent() {
                    perf.handle(&received, now);
                }
            }
            Delivery::Refused(refusal) => {
                let mut mad = refusal.mad;
                let _ = smi::send(&mut mad, 1);
            }
            Delivery::Dropped(_) => {}
        }
        transfer.handle(&mad, now);
        drain_sa(&mut sa, now);
        while !matches!(perf.poll(now), PerfNext::WaitUntil(_)) {}
    }
}

/// A client that waits for one of each.
fn asking_sa(agent: AgentId, now: Instant) -> Sa<4, 2, 1, 1000> {
    let mut sa = Sa::new(agent, SaConfig::DEFAULT);
    let port = SaPort {
        active: true,
        lid: Lid(2),
        sm_lid: Lid(1),
        ..SaPort::default()
    };
    sa.port_changed(&port, now);
    let _ = sa.get(1, &PathRecord::default(), ComponentMask::NONE, now);
    let _ = sa.get_table(2, &NodeRecord::default(), ComponentMask::NONE);
    if let Some(user) = GroupUser::new(0) {
        let record = McMemberRecord {
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let _ = sa.join(3, user, &record, ComponentMask::NONE);
    }
    sa
}

fn drain_sa(sa: &mut Sa<4, 2, 1, 1000>, now: Instant) {
    loop {
        match sa.poll(now) {
            SaNext::WaitUntil(_) => return,
            SaNext::Done { .. } => {
                let _ = sa.records::<NodeRecord>().count();
            }
            _ => {}
        }
    }
}

/// Both ends of a transfer, each of which hears everything.
struct Transfer {
    sender: Option<RmppSender>,
    receiver: Option<RmppReceiver>,
    buffer: [u8; 700],
}

impl Transfer {
    fn new(now: Instant) -> Self {
        let mut mad = Mad::ZERO;
        mad.0[1] = MgmtClass::SUBN_ADM.0;
        let sender = RmppSender::new(&mad, 2000, Patience::QUERY, now);
        Self {
            sender: sender.ok(),
            receiver: None,
            buffer: [0; 700],
        }
    }

    fn handle(&mut self, mad: &Mad, now: Instant) {
        if let Some(sender) = &mut self.sender {
            sender.handle(mad, now);
            loop {
                match sender.poll(now) {
                    SenderNext::WaitUntil(_) | SenderNext::Done(_) => break,
                    SenderNext::Segment { number, .. } => drop(sender.segment(number, &[1; 200])),
                    SenderNext::Control(_) => {}
                }
            }
        }
        if self.receiver.is_none() {
            self.receiver = RmppReceiver::new(mad, 8, now).ok();
        }
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        receiver.handle(mad, &mut self.buffer, now);
        loop {
            match receiver.poll(now) {
                ReceiverNext::WaitUntil(_) => break,
                ReceiverNext::Over => {
                    self.receiver = None;
                    break;
                }
                ReceiverNext::Complete { len } => {
                    let data = self.buffer.get(..len).unwrap_or(&[]);
                    let offset = Mad::from_prefix(receiver.head()).map(|_| 0);
                    let _ = Records::<PathRecord>::new(data, offset.unwrap_or(8)).count();
                }
                ReceiverNext::Control(_) | ReceiverNext::Failed(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core_ib::wire::mad::{AttributeId, Method, SaHeader};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A MAD that half of the time is a likely one.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let class = prop_oneof![Just(0x81_u8), Just(3), Just(4), any::<u8>()];
        let method = prop_oneof![Just(1_u8), Just(0x81), Just(0x92), Just(6), any::<u8>()];
        let tid = (0..4_u8, 0..6_u8);
        let rmpp = (
            0..5_u8,
            0..8_u8,
            0..4_u8,
            prop_oneof![Just(84_u8), any::<u8>()],
        );
        let junk = proptest::collection::vec(any::<u8>(), 257);
        (junk, class, method, tid, rmpp, any::<bool>()).prop_map(
            |(mut bytes, class, method, (agent, serial), (kind, flags, segment, len), aimed)| {
                if aimed {
                    bytes[1..7].copy_from_slice(&[1, class, 2, method, 0, 0]);
                    bytes[9..17].copy_from_slice(&[0, 0, 0, agent, 0, 0, 0, serial]);
                    bytes[25..29].copy_from_slice(&[1, kind, flags, 0]);
                    bytes[29..37].copy_from_slice(&[0, 0, 0, segment, 0, 0, 0, len]);
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn no_mad_from_anybody_upsets_anything(
            messages in proptest::collection::vec(message(), 0..20), cut in 0..257_usize,
        ) {
            let mut bytes = messages.concat();
            bytes.truncate(bytes.len().saturating_sub(cut));
            read_untrusted(&bytes);
        }
    }

    #[test]
    fn an_aimed_answer_reaches_the_query_that_waits_for_it() {
        // A table in one segment, as in the corpus of the fuzz target.
        let agent = AgentId::new(1);
        let head = SaHeader::request(
            Method::GET_TABLE_RESP,
            AttributeId::NODE_RECORD,
            ComponentMask::NONE,
        );
        let mut mad = Mad::ZERO;
        mad.set_front(&head).unwrap();
        mad.0[8..16].copy_from_slice(&agent.tid(2).to_be_bytes());
        mad.0[24..36].copy_from_slice(&[1, 1, 7, 0, 0, 0, 0, 1, 0, 0, 0, 132]);
        mad.0[45] = 14;
        let mut sa = asking_sa(agent, Instant(0));
        drain_sa(&mut sa, Instant(0));
        let mut received = Received::looped_back(SpecialQp::Gsi, mad);
        received.wc.slid = Lid(1);
        sa.handle(&received, Instant(0));
        assert!(
            matches!(sa.poll(Instant(0)), SaNext::Send(_)),
            "acknowledged"
        );
        assert!(matches!(
            sa.poll(Instant(0)),
            SaNext::Done { cookie: 2, .. }
        ));
        assert_eq!(sa.records::<NodeRecord>().count(), 1);
    }
}
