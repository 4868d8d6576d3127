//! A quick hash for tables in memory.
//!
//! Keys here are names that the workflow's own code chose and numbers that we made, so nobody can
//! choose them to do harm, and the standard library's hash would cost more than the look-up.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<FastHasher>>;

/// Multiplies and folds, eight bytes at a time.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl FastHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(FACTOR).rotate_left(26);
    }
}

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits and its tag from the high ones.
        let h = self.0.wrapping_mul(FACTOR);
        h ^ (h >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = chunk.try_into().map_or(0, u64::from_le_bytes);
            self.add(word);
        }
        let rest = chunks.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, n: u8) {
        self.add(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.add(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }

    fn write_i64(&mut self, n: i64) {
        self.add(n as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(bytes: &[u8]) -> u64 {
        let mut hasher = FastHasher::default();
        hasher.write(bytes);
        hasher.finish()
    }

    #[test]
    fn similar_keys_spread_over_buckets_and_tags() {
        let mut buckets = HashSet::new();
        let mut tags = HashSet::new();
        for n in 0..4_096u32 {
            let h = hash(format!("charge-card-{n:04}").as_bytes());
            buckets.insert(h & 0xFFF);
            tags.insert(h >> 57);
        }
        assert!(buckets.len() > 2_400, "{} of 4096 buckets", buckets.len());
        assert_eq!(tags.len(), 128);
        assert_ne!(hash(b"a"), hash(b"a\0"));
    }
}
