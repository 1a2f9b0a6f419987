//! GMPs from hosts, and the answers that come back.

use super::Fabric;
use core_ib::Qpn;
use core_ib::wire::mad::{Mad, SaHeader};
use ib_mad::{ReceiverNext, RmppReceiver};
use std::time::Duration;

impl Fabric {
    /// A GMP from a host to the master's administrator.
    pub fn ask(&mut self, node: usize, mad: Mad) {
        let info = self.nodes[node].port(1).unwrap().info;
        self.send(node, 1, mad, info.master_sm_lid, info.lid, Qpn::GSI);
    }

    /// As [`Fabric::ask`]; waits for the answer, which has the same TransactionID.
    pub fn ask_and_wait(&mut self, node: usize, mad: Mad) -> Option<Mad> {
        self.inbox.clear();
        self.ask(node, mad);
        let tid = mad.header().tid;
        let mine = |fabric: &Self| {
            let mut all = fabric.inbox.iter();
            all.find(|(to, received)| {
                *to == node
                    && received.header().tid == tid
                    && received.header().method.is_response()
            })
            .map(|(_, received)| received.mad)
        };
        self.run_until(Duration::from_millis(20), |fabric| mine(fabric).is_some());
        mine(self)
    }

    /// GetTable: the whole message, reassembled, with every segment acknowledged: its first header and its data.
    #[expect(clippy::result_large_err, reason = "it is one MAD")]
    pub fn ask_table(&mut self, node: usize, mad: Mad) -> Result<(Mad, Vec<u8>), Option<Mad>> {
        self.inbox.clear();
        self.ask(node, mad);
        let tid = mad.header().tid;
        let mut receiver: Option<RmppReceiver> = None;
        let mut data = vec![0; 1 << 20];
        let mut first = None;
        for _ in 0..20_000 {
            self.run_for(Duration::from_micros(200));
            for (to, received) in core::mem::take(&mut self.inbox) {
                if to != node || received.header().tid != tid {
                    continue;
                }
                let header: SaHeader = received.mad.front().unwrap();
                if !header.rmpp.is_active() {
                    return Err(Some(received.mad));
                }
                first = first.or(Some(received.mad));
                if receiver.is_none() {
                    receiver = Some(RmppReceiver::new(&received.mad, 8, self.now).unwrap());
                }
                let now = self.now;
                receiver
                    .as_mut()
                    .unwrap()
                    .handle(&received.mad, &mut data, now);
            }
            let Some(receiver) = receiver.as_mut() else {
                continue;
            };
            loop {
                match receiver.poll(self.now) {
                    ReceiverNext::Control(mad) => self.ask(node, mad),
                    ReceiverNext::Complete { len } => {
                        data.truncate(len);
                        self.run_for(Duration::from_millis(1));
                        return Ok((first.unwrap(), data));
                    }
                    ReceiverNext::Failed(error) => panic!("{error}"),
                    _ => break,
                }
            }
        }
        Err(None)
    }
}
