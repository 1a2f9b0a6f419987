//! Messages from anybody, for fuzzing.

use crate::ask::{Accept, CmNext, Connect, Event, LoadPath, Resolve, Served};
use crate::cm::Cm;
use crate::conn::ConnId;
use crate::ip::IpRequest;
use crate::listen::Listen;
use crate::path::{Local, Path};
use crate::sidr::SidrId;
use crate::store::ArrayStore;
use core::time::Duration;
use core_ib::wire::mad::{AprStatus, Mad, MgmtClass, RejReason, ServiceId, SidrStatus, TimeCode};
use core_ib::{Guid, Instant, Lid, Mtu, PKey, Psn, QKey, Qpn};
use ib_mad::{AgentId, Received, SpecialQp};

type SmallCm = Cm<ArrayStore<4, 2, 2>>;

/// Lets a communication manager with a user take `bytes`, which may be anything: two bytes that say when, what the user does
/// and whether the MAD is made to fit, and its 256 bytes. Whatever they are, nothing panics, and whatever is due comes to an
/// end.
pub fn read_untrusted(bytes: &[u8]) {
    let mut now = Instant(0);
    let mut cm = SmallCm::new(AgentId::new(1), Guid(0x11), 0x5eed, ArrayStore::new());
    for id in [ServiceId(0x0106_1c06), ServiceId::ipoib_linux(Qpn::new(4))] {
        let _ = cm.listen(&Listen::to(id, id.0));
    }
    let mut user = User {
        last: None,
        sidr: None,
        steps: 0,
    };
    let (messages, _) = bytes.as_chunks::<258>();
    for [how, what, mad @ ..] in messages {
        now = now.after(Duration::from_millis(u64::from(*how) << (what & 7)));
        let mut mad = Mad(*mad);
        if what & 0x08 != 0 {
            user.aim(&mut mad, how & 1 != 0);
        }
        user.act(&mut cm, *what >> 4, now);
        let mut received = Received::looped_back(SpecialQp::Gsi, mad);
        received.wc.slid = Lid(2);
        cm.handle(&received, now);
        user.drain(&mut cm, *how, now);
    }
    // All that was begun ends by itself once nobody says anything more.
    if let Some(conn) = user.last {
        let _ = cm.abandon(conn, now);
    }
}

/// A user who answers somehow.
struct User {
    last: Option<ConnId>,
    sidr: Option<SidrId>,
    steps: u32,
}

impl User {
    /// Makes the MAD one of the class, about the connection of which one heard last.
    fn aim(&self, mad: &mut Mad, swap: bool) {
        let [.., kind] = mad.view().attribute().0.to_be_bytes();
        let mut header = mad.header();
        (header.base_version, header.class_version) = (1, 2);
        header.class = MgmtClass::CM;
        header.method.0 = 3;
        header.attribute.0 = 0x10 + u16::from(kind % 13);
        mad.set_header(&header);
        if let Some(conn) = self.last {
            let at = if swap { 0 } else { 4 };
            let data = mad
                .data_mut()
                .get_mut(at..)
                .and_then(|data| data.first_chunk_mut());
            if let Some(place) = data {
                *place = conn.0.0.to_be_bytes();
            }
        }
    }

    fn act(&mut self, cm: &mut SmallCm, what: u8, now: Instant) {
        let path = Path {
            port: 1,
            local_lid: Lid(1),
            remote_lid: Lid(2),
            life_time: TimeCode(10),
            ..Path::default()
        };
        let Some(conn) = self.last else {
            let with = Connect {
                max_retries: 2,
                ..Connect::new(ServiceId(u64::from(what)), path, Mtu::Mtu1024)
            };
            self.last = cm.connect(&with, now).ok();
            return;
        };
        let local = Local::default();
        let _ = match what {
            0 | 1 => cm.accept(
                conn,
                &Accept::new(None, Qpn::new(9), Psn::new(1), local),
                now,
            ),
            2 | 3 => cm.ready(conn, &[1]),
            4 => cm.delay(conn, TimeCode(12), &[]),
            5 => cm.reject(conn, RejReason::CONSUMER, &[1], &[2], now),
            6 => cm.disconnect(conn, &[], now),
            7 => cm.release(conn, &[], now),
            8 => cm.answer_path(conn, Ok(local)),
            9 => cm.answer_path(conn, Err(AprStatus::REJECTED)),
            10 => cm.load_path(
                conn,
                &LoadPath {
                    path,
                    pkey_index: 0,
                    ack_delay: TimeCode(1),
                    remote_timeout: TimeCode(10),
                    private: &[],
                },
                now,
            ),
            11 => cm.abandon(conn, now),
            12 => {
                cm.communication_established(conn);
                Ok(())
            }
            13 => cm
                .resolve(
                    &Resolve {
                        cookie: 1,
                        service_id: ServiceId(5),
                        p_key: PKey::DEFAULT,
                        pkey_index: 0,
                        path,
                        timeout: TimeCode(10),
                        max_retries: 1,
                        private: &[],
                    },
                    now,
                )
                .map(|_| ()),
            14 => self.sidr.map_or(Ok(()), |sidr| {
                let (qpn, q_key) = (Qpn::new(3), QKey(4));
                let private = &[];
                cm.serve(
                    sidr,
                    &Served {
                        qpn,
                        q_key,
                        private,
                    },
                )
            }),
            _ => self
                .sidr
                .map_or(Ok(()), |sidr| cm.refuse(sidr, SidrStatus::REJECTED, &[])),
        };
    }

    fn drain(&mut self, cm: &mut SmallCm, how: u8, now: Instant) {
        loop {
            self.steps = self.steps.wrapping_add(1);
            match cm.poll(now) {
                CmNext::WaitUntil(_) => return,
                CmNext::Event(Event::Request { conn, req, .. }) => {
                    let _ = IpRequest::of(&req);
                    self.last = Some(conn);
                }
                CmNext::Event(Event::Gone { conn, .. }) if self.last == Some(conn) => {
                    self.last = None;
                }
                CmNext::Event(Event::ServiceRequest { sidr, req, .. }) => {
                    let _ = IpRequest::of_sidr(&req);
                    self.sidr = Some(sidr);
                }
                CmNext::Wish(wish) if how & 2 == 0 => cm.granted(&wish.granted(Ok(())), now),
                CmNext::Send(_) | CmNext::Wish(_) | CmNext::Event(_) => {}
            }
        }
    }
}
