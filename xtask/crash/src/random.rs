//! Numbers that are random enough: for moments, for times and for values that must not repeat.

use std::{
    cell::Cell,
    time::{SystemTime, UNIX_EPOCH},
};

/// A seed that differs from call to call.
pub(crate) fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
}

/// A generator (splitmix64).
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(Cell::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `from` up to `to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }
}

thread_local! {
    static HERE: Random = Random::new(seed());
}

/// A number that nobody can foretell.
pub(crate) fn any() -> u64 {
    HERE.with(Random::next)
}
