//! What `rping` of librdmacm says over a connection, both ends of it, without the connection.
//!
//! In each round the client names a buffer by a SEND, the server READs it and says so; the client names another, the server
//! WRITEs there what it read, up to and with the first zero byte, and says so; the client compares. Both check the data.

use core_ib::RKey;
use core_ib::verbs::RemoteAddr;

/// Where it listens unless told otherwise.
pub const PORT: u16 = 7174;
/// Bytes of the largest buffer.
pub const LARGEST: usize = 65_536;
/// Bytes of the smallest: the words at the beginning, with any number in them.
pub const SMALLEST: usize = 24;

/// A buffer as it is named to the peer: 16 bytes, big-endian. A server's answer is of the same form and says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advert {
    /// Address in the space of the key.
    pub addr: u64,
    /// The key.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

impl Advert {
    /// Bytes on the wire.
    pub const SIZE: usize = 16;

    /// As on the wire.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        (((self.addr as u128) << 64) | ((self.rkey as u128) << 32) | self.len as u128).to_be_bytes()
    }

    /// From the wire.
    pub const fn read(bytes: [u8; Self::SIZE]) -> Self {
        let all = u128::from_be_bytes(bytes);
        Self {
            addr: (all >> 64) as u64,
            rkey: (all >> 32) as u32,
            len: all as u32,
        }
    }

    /// For a request.
    pub const fn remote(self) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr,
            rkey: RKey(self.rkey),
        }
    }
}

/// The data of a round: words with its number, then characters that go on from another one in each round, then a zero.
pub fn data(round: u32, len: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{round}: ").into_bytes();
    // From 'A' to 'z', and round again.
    let first = u64::from(round);
    let rest = (first..).map(|at| b'A' + (at % 58) as u8);
    data.extend(rest.take(len.saturating_sub(data.len())));
    data.truncate(len);
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

/// What is to be done over the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Name the source to the peer, which has been filled with the data of this round.
    Offer(u32),
    /// Name the sink.
    Ask,
    /// READ `len` bytes from there.
    Read(Advert),
    /// WRITE so many bytes of what was read there.
    Write(Advert),
    /// Say that it is done.
    Answer,
    /// Compare the sink with the data of this round.
    Compare(u32),
    /// All rounds are over: disconnect.
    Finish,
}

/// Why one end gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RpingError {
    /// The peer said something when it was not its turn.
    OutOfTurn,
    /// A buffer that is too large for us, or too small for what was read.
    Length {
        /// Bytes said.
        len: u32,
        /// Bytes that there may be, or must be.
        limit: u32,
    },
    /// The data is not that of the round.
    Data {
        /// The round.
        round: u32,
        /// The first byte that is not as it should be.
        at: usize,
    },
}

impl core::fmt::Display for RpingError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OutOfTurn => f.write_str("the peer spoke out of turn"),
            Self::Length { len, limit } => write!(f, "a buffer of {len} bytes, against {limit}"),
            Self::Data { round, at } => write!(f, "round {round}: byte {at} is another"),
        }
    }
}

impl core::error::Error for RpingError {}

/// Is `found` the data of `round`?
pub fn check(round: u32, found: &[u8]) -> Result<(), RpingError> {
    let expected = data(round, found.len());
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    differs.map_or(Ok(()), |at| Err(RpingError::Data { round, at }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// A source is to be named.
    Source,
    /// It is being read.
    Reading,
    /// A sink is to be named.
    Sink,
    /// It is being written.
    Writing,
}

/// The end that reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    turn: Turn,
    len: u32,
    /// Rounds that are over.
    pub rounds: u32,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            turn: Turn::Source,
            len: 0,
            rounds: 0,
        }
    }
}

impl Server {
    /// The peer named a buffer.
    pub fn heard(&mut self, advert: Advert) -> Result<Action, RpingError> {
        let (len, limit) = (advert.len, LARGEST as u32);
        match self.turn {
            Turn::Source if len > limit => Err(RpingError::Length { len, limit }),
            Turn::Source => {
                (self.turn, self.len) = (Turn::Reading, len);
                Ok(Action::Read(advert))
            }
            Turn::Sink if len < self.len => {
                let limit = self.len;
                Err(RpingError::Length { len, limit })
            }
            Turn::Sink => {
                self.turn = Turn::Writing;
                let len = self.len;
                Ok(Action::Write(Advert { len, ..advert }))
            }
            Turn::Reading | Turn::Writing => Err(RpingError::OutOfTurn),
        }
    }

    /// The READ brought this.
    pub fn read(&mut self, found: &[u8]) -> Result<Action, RpingError> {
        check(self.rounds, found)?;
        self.turn = Turn::Sink;
        Ok(Action::Answer)
    }

    /// The WRITE is done.
    pub fn written(&mut self) -> Action {
        self.turn = Turn::Source;
        self.rounds = self.rounds.wrapping_add(1);
        Action::Answer
    }

    /// Bytes of this round.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Has no round begun?
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The end that names buffers and compares.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    wanted: u32,
    /// Of each buffer.
    pub len: u32,
    asked: bool,
    /// Rounds that are over.
    pub rounds: u32,
}

impl Client {
    /// For so many rounds with so many bytes, which are brought within what a server takes.
    pub fn new(wanted: u32, len: u32) -> Self {
        Self {
            wanted,
            len: len.clamp(SMALLEST as u32, LARGEST as u32),
            asked: false,
            rounds: 0,
        }
    }

    /// The beginning of a round, or the end of all.
    pub const fn begin(&mut self) -> Action {
        self.asked = false;
        if self.rounds >= self.wanted {
            return Action::Finish;
        }
        Action::Offer(self.rounds)
    }

    /// The peer answered.
    pub const fn heard(&mut self) -> Action {
        if self.asked {
            return Action::Compare(self.rounds);
        }
        self.asked = true;
        Action::Ask
    }

    /// The sink holds this.
    pub fn compared(&mut self, found: &[u8]) -> Result<Action, RpingError> {
        check(self.rounds, found)?;
        self.rounds = self.rounds.wrapping_add(1);
        Ok(self.begin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_named_in_sixteen_big_endian_bytes() {
        let advert = Advert {
            addr: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            len: 64,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 64];
        assert_eq!(advert.to_bytes(), bytes);
        assert_eq!(Advert::read(bytes), advert);
    }

    #[test]
    fn the_data_of_a_round_names_it_and_ends_in_a_zero() {
        assert_eq!(data(0, 20), b"rdma-ping-0: ABCDEF\0");
        assert_eq!(data(57, 18), b"rdma-ping-57: zAB\0");
        assert_eq!(data(58, 17), b"rdma-ping-58: AB\0");
        assert_eq!(data(3, 5), b"rdma\0");
        let mut wrong = data(7, 100);
        wrong[40] ^= 1;
        let (round, at) = (7, 40);
        assert_eq!(check(7, &wrong), Err(RpingError::Data { round, at }));
    }

    #[test]
    fn a_client_and_a_server_go_through_all_rounds_and_end() {
        let (mut client, mut server) = (Client::new(3, 100), Server::default());
        let advert = Advert {
            len: 100,
            ..Advert::default()
        };
        let mut action = client.begin();
        for round in 0..3 {
            assert_eq!(action, Action::Offer(round));
            assert_eq!(server.heard(advert), Ok(Action::Read(advert)));
            assert_eq!(server.heard(advert), Err(RpingError::OutOfTurn));
            assert_eq!(server.read(&data(round, 100)), Ok(Action::Answer));
            assert_eq!(client.heard(), Action::Ask);
            assert_eq!(server.heard(advert), Ok(Action::Write(advert)));
            assert_eq!(server.written(), Action::Answer);
            assert_eq!(client.heard(), Action::Compare(round));
            action = client.compared(&data(round, 100)).unwrap();
        }
        assert_eq!((action, server.rounds), (Action::Finish, 3));
    }

    #[test]
    fn a_buffer_that_does_not_fit_is_refused() {
        let mut server = Server::default();
        let (len, limit) = (65_537, 65_536);
        let of = |len| Advert {
            len,
            ..Advert::default()
        };
        let refused = Err(RpingError::Length { len, limit });
        assert_eq!(server.heard(of(len)), refused);
        assert!(server.heard(of(64)).is_ok());
        assert!(server.read(&data(0, 64)).is_ok());
        let (len, limit) = (63, 64);
        assert_eq!(server.heard(of(63)), Err(RpingError::Length { len, limit }));
    }
}
