//! Messages both ways over a connection, as `ucmatose`, `rdma_client` and `rdma_server` of librdmacm have them: each end
//! sends so many of one size, and takes as many. None is answered, so that all receives are posted before the connection is
//! there. The tools look at no data, and say the same in each message: what ours checks is that, and the length.

/// Where the tools listen unless told otherwise.
pub const PORT: u16 = 7471;
/// Messages each way at most: all of them have a receive at once.
pub const MOST: u32 = 16;
/// What a receive's memory is filled with before.
pub(super) const NOTHING: u8 = 0xee;

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Each way.
    pub count: u32,
    /// Bytes of each.
    pub len: u32,
    /// That went.
    pub sent: u32,
    /// That came, each of them checked.
    pub received: u32,
    first: Vec<u8>,
}

impl Messages {
    /// For so many each way, of so many bytes.
    pub fn new(count: u32, len: u32) -> Self {
        Self {
            count: count.min(MOST),
            len,
            sent: 0,
            received: 0,
            first: Vec::new(),
        }
    }

    /// What ours says, each time.
    pub fn data(&self) -> Vec<u8> {
        (0..self.len).map(|at| (at % 251) as u8).collect()
    }

    /// One came, of so many bytes, and this is what its memory holds.
    pub fn came(&mut self, len: u32, found: &[u8]) -> Result<(), String> {
        let number = self.received;
        if number >= self.count {
            return Err(format!("more than {number} messages"));
        }
        if len != self.len || found.len() != len as usize {
            return Err(format!("message {number} has {len} bytes"));
        }
        // A few bytes may be the same by chance.
        if len >= 8 && found.iter().all(|byte| *byte == NOTHING) {
            return Err(format!("nothing came of message {number}"));
        }
        if number == 0 {
            self.first = found.to_vec();
        }
        let mut both = self.first.iter().zip(found);
        if let Some(at) = both.position(|(a, b)| a != b) {
            return Err(format!("message {number}: byte {at} is another"));
        }
        self.received += 1;
        Ok(())
    }

    /// Are all sent, and all there?
    pub const fn is_through(&self) -> bool {
        self.sent >= self.count && self.received >= self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_through_when_all_went_and_all_came() {
        let mut end = Messages::new(2, 16);
        let data = end.data();
        assert_eq!(end.came(16, &data), Ok(()));
        assert_eq!(end.came(16, &data), Ok(()));
        assert!(!end.is_through());
        end.sent = 2;
        assert!(end.is_through());
        assert!(end.came(16, &data).is_err());
    }

    #[test]
    fn a_message_that_is_another_or_short_or_did_not_come_is_found() {
        let mut end = Messages::new(9, 16);
        let mut data = end.data();
        assert!(end.came(15, &data[..15]).is_err());
        assert!(end.came(16, &[NOTHING; 16]).is_err());
        assert_eq!(end.came(16, &data), Ok(()));
        data[9] ^= 1;
        assert!(end.came(16, &data).unwrap_err().contains("byte 9"));
        assert_eq!(end.received, 1);
    }
}
