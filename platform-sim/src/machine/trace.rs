//! A fingerprint of a run: two runs that did the same have the same, whatever was kept of them.

use core_ib::Instant;

/// Everything that happened, hashed (FNV-1a over 64-bit words), and what people asked to see.
pub(super) struct Trace {
    hash: u64,
    pub(super) listener: Option<Listener>,
}

/// Who reads along: the instant, the host's name, what happened.
pub type Listener = Box<dyn FnMut(Instant, &str, core::fmt::Arguments<'_>) + Send>;

impl Trace {
    pub(super) const fn new() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            listener: None,
        }
    }

    const fn word(&mut self, word: u64) {
        // FNV takes bytes; whole words with a rotation mix as well for our purpose and are eight times as fast.
        self.hash = (self.hash ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }

    /// `kind` of thing happened at `now` on `host`.
    pub(super) const fn note(&mut self, kind: u8, now: Instant, host: u32, what: u64) {
        self.word((kind as u64) << 56 ^ now.0);
        self.word((host as u64) << 48 ^ what);
    }

    /// And these bytes were in it.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.word(u64::from(*byte));
        }
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }
}
