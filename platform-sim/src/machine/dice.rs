//! Chance from a seed. Whoever needs some has dice of its own, so that nobody's throws move anybody else's.

/// SplitMix64: 64 bits of state, every seed good, one multiplication chain a throw.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The dice of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The dice that belong to `name` in the run of `seed`.
    pub fn named(seed: u64, name: &str) -> Self {
        let mut mixed = Self::new(seed);
        for byte in name.bytes() {
            mixed.state = mixed.next_u64() ^ u64::from(byte);
        }
        Self::new(mixed.next_u64())
    }

    /// 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`, all alike; 0 if `limit` is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        ((self.next_u64() as u128 * limit as u128) >> 64) as u64
    }

    /// True in `parts` of a million throws. 0 throws no dice.
    pub const fn hits(&mut self, parts: u32) -> bool {
        parts != 0 && self.below(1_000_000) < parts as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throws_are_those_of_the_published_generator() {
        let mut dice = SplitMix64::new(1_234_567);
        let throws: Vec<u64> = (0..3).map(|_| dice.next_u64()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(throws, published);
    }

    #[test]
    fn dice_of_other_names_and_seeds_throw_otherwise() {
        let throw = |seed, name| SplitMix64::named(seed, name).next_u64();
        assert_eq!(throw(1, "host-a"), throw(1, "host-a"));
        assert_ne!(throw(1, "host-a"), throw(1, "host-b"));
        assert_ne!(throw(1, "host-a"), throw(2, "host-a"));
    }

    #[test]
    fn a_throw_below_a_limit_is_below_it_and_reaches_all() {
        let mut dice = SplitMix64::new(5);
        let mut seen = [0; 6];
        for _ in 0..600 {
            seen[dice.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
        assert_eq!(dice.below(0), 0);
        assert!(!dice.hits(0) && dice.hits(1_000_000));
    }
}
