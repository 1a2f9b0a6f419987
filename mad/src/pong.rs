//! Who answers pings of the open diagnostics (`ibping`): a Get of vendor class 0x32 comes back with the name of whoever
//! was asked. protocols 3.13.4.

use crate::{Methods, Outgoing, Received, Registration, SpecialQp};
use core_ib::wire::mad::{Mad, Method, MgmtClass, VendorHeader};

/// Where the data of a vendor class with OUI begins. protocols 3.2.
const DATA: usize = 40;
/// Bytes of a name, a zero behind it.
const NAME: usize = 64;

/// Answers with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    name: [u8; NAME],
}

impl Pong {
    /// What it takes: Gets of its class.
    pub const REGISTRATION: Registration = {
        let [_, oui @ ..] = VendorHeader::OUI_OPENIB.to_be_bytes();
        let gets = Methods::NONE.and(Method::GET);
        Registration {
            oui,
            ..Registration::server(SpecialQp::Gsi, MgmtClass(0x32), 1, gets)
        }
    };

    /// Of this name, of which 63 bytes are told.
    pub fn new(name: &str) -> Self {
        let mut own = [0; NAME];
        for (place, byte) in own.iter_mut().take(NAME - 1).zip(name.bytes()) {
            *place = byte;
        }
        Self { name: own }
    }

    /// The answer to a ping.
    pub fn answer(&self, ping: &Received) -> Outgoing {
        let mut mad: Mad = ping.mad;
        mad.0[3] = Method::GET_RESP.0;
        (mad.0[4], mad.0[5]) = (0, 0);
        for (place, byte) in mad.0.iter_mut().skip(DATA).zip(self.name) {
            *place = byte;
        }
        ping.reply(mad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delivery, Dispatch};
    use core_ib::{Instant, Lid};
    use std::vec::Vec;

    /// As `ibping` asks: base version 1, class 0x32, class version 1, Get, transaction 7, OUI 00-14-05.
    fn ping() -> Received {
        let mut mad = Mad::ZERO;
        (mad.0[0], mad.0[1], mad.0[2], mad.0[3]) = (1, 0x32, 1, 1);
        mad.0[15] = 7;
        mad.0[37..40].copy_from_slice(&[0x00, 0x14, 0x05]);
        let mut received = Received::looped_back(SpecialQp::Gsi, mad);
        received.wc.slid = Lid(9);
        received
    }

    #[test]
    fn a_ping_comes_back_to_who_sent_it_with_a_name_and_the_transaction_of_the_question() {
        let answer = Pong::new("host of ours").answer(&ping());
        assert_eq!(answer.to.lid, Lid(9));
        assert_eq!(answer.mad.0[..6], [1, 0x32, 1, 0x81, 0, 0]);
        assert_eq!(
            (answer.mad.0[15], &answer.mad.0[37..40]),
            (7, &[0x00, 0x14, 0x05][..])
        );
        assert_eq!(&answer.mad.0[40..53], b"host of ours\0");
    }

    #[test]
    fn a_name_that_is_too_long_ends_before_its_zero() {
        let name: Vec<u8> = [b'x'; 100].to_vec();
        let answer = Pong::new(core::str::from_utf8(&name).unwrap()).answer(&ping());
        assert_eq!((answer.mad.0[40 + 62], answer.mad.0[40 + 63]), (b'x', 0));
    }

    #[test]
    fn it_is_given_pings_and_nothing_of_another_vendor() {
        let mut dispatch = Dispatch::<2, 2>::new();
        let agent = dispatch.register(Pong::REGISTRATION).unwrap();
        let taken = dispatch.handle(&ping(), Instant(0));
        assert_eq!(taken, Delivery::Request { agent });
        let mut other = ping();
        other.mad.0[39] = 6;
        let taken = dispatch.handle(&other, Instant(0));
        assert!(!matches!(taken, Delivery::Request { .. }), "{taken:?}");
    }
}
