//! The names of a run: its id for people and programs, its number for the store.
//!
//! Always true: the number is a function of the id. A UUID of version 7 starts with 48 bits of
//! milliseconds; the number is the lower 43 of them (enough until the year 2248) followed by the
//! next 20 bits of the id, a counter. So numbers sort by time of creation, a run is found by its
//! id without an index on ids, and an id can be made without asking the store.

use std::{fmt, str::FromStr, sync::Mutex};

use uuid::Uuid;

use crate::{pool::PoolNo, time::Timestamp};

/// A clock that is behind the last id by more than this was set back.
const SET_BACK_MS: u64 = 10_000;

const COUNTER_BITS: u32 = 20;
const MS_BITS: u32 = 43;

/// The id of a run: a UUID of version 7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Uuid);

/// The number of a run: what the store keys everything by. A function of the [`RunId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunNo(pub i64);

impl RunNo {
    /// What others are woken with so that they take the run out of their memory. A number is never
    /// negative, so whoever does not know of it finds no run.
    pub(crate) fn cold_hint(self) -> RunNo {
        RunNo(!self.0)
    }

    /// The run, if this is such a hint.
    pub(crate) fn hinted_cold(self) -> Option<RunNo> {
        (self.0 < 0).then_some(RunNo(!self.0))
    }
}

/// One of the parts that the runs of a pool are divided into; a runner owns whole shards. One
/// integer for each pool and index: 256 times the number of the pool, and the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

/// How many shards a pool has.
pub const SHARDS: u16 = 256;

impl ShardId {
    /// The shard with this index of a pool.
    pub const fn new(pool: PoolNo, index: u8) -> ShardId {
        ShardId(pool.0 * SHARDS as u32 + index as u32)
    }

    /// The pool that it is a shard of.
    pub const fn pool(self) -> PoolNo {
        PoolNo(self.0 / SHARDS as u32)
    }

    /// Which of the shards of its pool it is.
    pub const fn index(self) -> u8 {
        (self.0 % SHARDS as u32) as u8
    }
}

impl RunId {
    /// The id with these parts: milliseconds, the counter, and 54 bits of randomness.
    fn from_parts(ms: u64, counter: u32, random: u64) -> RunId {
        let counter = u128::from(counter);
        let mut bits = u128::from(ms & ((1 << 48) - 1)) << 80;
        bits |= 0x7 << 76;
        bits |= (counter >> 8) << 64;
        bits |= 0b10 << 62;
        bits |= (counter & 0xff) << 54;
        bits |= u128::from(random & ((1 << 54) - 1));
        RunId(Uuid::from_u128(bits))
    }

    /// The number that the store keys this run by.
    pub fn no(self) -> RunNo {
        let bits = self.0.as_u128();
        let ms = (bits >> 80) as i64 & ((1 << MS_BITS) - 1);
        let counter = ((bits >> 64) as i64 & 0xfff) << 8 | (bits >> 54) as i64 & 0xff;
        RunNo(ms << COUNTER_BITS | counter)
    }

    /// The number of an id with these bits; none if they are beyond the times that a number can have.
    pub(crate) fn no_of(bits: u128) -> Option<RunNo> {
        let ms = bits >> 80;
        (ms >> MS_BITS == 0).then(|| RunId(Uuid::from_u128(bits)).no())
    }

    /// The least number of an id that is made at this instant or later.
    pub fn first_no(at: Timestamp) -> RunNo {
        let ms = at.as_millis().clamp(0, (1 << MS_BITS) - 1);
        RunNo(ms << COUNTER_BITS)
    }

    /// When the id of the run with this number was made.
    pub fn started_at(run: RunNo) -> Timestamp {
        Timestamp::from_millis(run.0 >> COUNTER_BITS)
    }

    /// An id that no run has.
    pub(crate) fn nobody() -> RunId {
        RunId::from_parts(0, 0, 0)
    }

    /// The id that comes next: for a run whose number is taken.
    pub(crate) fn following(self) -> RunId {
        let bits = self.0.as_u128();
        let (ms, counter) =
            ((bits >> 80) as u64, ((bits >> 64) as u32 & 0xfff) << 8 | (bits >> 54) as u32 & 0xff);
        let random = bits as u64;
        if (counter + 1) >> COUNTER_BITS == 0 {
            RunId::from_parts(ms, counter + 1, random)
        } else {
            RunId::from_parts(ms + 1, 0, random)
        }
    }

    /// Which of the shards of its pool this run belongs to, for its whole life, whichever pool that
    /// is at the moment.
    pub fn shard_index(self) -> u8 {
        // The lowest bits are random, so runs spread evenly.
        (self.0.as_u128() % u128::from(SHARDS)) as u8
    }

    /// The same id, but for the shard that it belongs to. Its number is the same.
    pub(crate) fn with_shard_index(self, index: u8) -> RunId {
        let bits = self.0.as_u128();
        RunId(Uuid::from_u128(bits - bits % u128::from(SHARDS) + u128::from(index)))
    }

    /// The shard this run belongs to while it is in this pool.
    pub fn shard_in(self, pool: PoolNo) -> ShardId {
        ShardId::new(pool, self.shard_index())
    }

    /// The id as a UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The run id that this UUID is, if it is of version 7.
    pub fn from_uuid(uuid: Uuid) -> Option<RunId> {
        (uuid.get_version_num() == 7).then_some(RunId(uuid))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not the id of a run.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a run id; a run id is a UUID of version 7 such as \
         `019a8a3c-0000-7000-8000-000000000000`"
)]
pub struct ParseRunIdError {
    text: String,
}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<RunId, ParseRunIdError> {
        let uuid = Uuid::try_parse(text).ok().and_then(RunId::from_uuid);
        uuid.ok_or_else(|| ParseRunIdError { text: text.to_owned() })
    }
}

/// Makes run ids: strictly increasing within one process, unless the clock was set back.
///
/// After that they begin anew at the clock's time. A number that was used before is unlikely, since the
/// counter begins at random, and refused by the store.
#[derive(Debug)]
pub(crate) struct RunIds(Mutex<Last>);

#[derive(Debug)]
struct Last {
    ms: u64,
    counter: u32,
    random: u64,
}

impl RunIds {
    pub(crate) fn new(seed: u64) -> RunIds {
        RunIds(Mutex::new(Last { ms: 0, counter: 0, random: seed }))
    }

    pub(crate) fn next(&self, now: Timestamp) -> RunId {
        let mut last = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        last.random = crate::random::mix(last.random.wrapping_add(0x9E37_79B9_7F4A_7C15));
        let ms = u64::try_from(now.as_millis()).unwrap_or(0);
        if ms > last.ms || last.ms - ms > SET_BACK_MS {
            // Starting the counter at random keeps two processes apart within a millisecond; the
            // lower half of its range leaves room for half a million more.
            (last.ms, last.counter) = (ms, (last.random >> 45) as u32);
        } else {
            last.counter += 1;
            if last.counter >> COUNTER_BITS != 0 {
                (last.ms, last.counter) = (last.ms + 1, 0);
            }
        }
        RunId::from_parts(last.ms, last.counter, last.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_ids_and_increase() {
        let ids = RunIds::new(7);
        let mut last = RunNo(0);
        for i in 0..3_000_000i64 {
            // The clock moves on, stands still and jumps back.
            let now = Timestamp::from_millis(1_763_239_620_000 + i / 1_000_000 - (i % 7) * 1_000);
            let id = ids.next(now);
            assert!(id.no() > last);
            last = id.no();
        }
    }

    /// After one glimpse of a clock that was a year ahead, all ids of the process were of that year.
    #[test]
    fn numbers_follow_a_clock_that_was_set_back_and_stay_apart() {
        let ids = RunIds::new(7);
        let at = |ms: i64| Timestamp::from_millis(1_763_239_620_000 + ms);
        let mut seen = std::collections::HashSet::new();
        for jump in 0..100 {
            for _ in 0..100 {
                // Right and an hour ahead by turns, while time goes on.
                let now = at(jump * 1_000 + jump % 2 * 3_600_000);
                let id = ids.next(now);
                assert_eq!(RunId::started_at(id.no()), now);
                assert!(seen.insert(id.no()));
            }
        }
    }

    #[test]
    fn the_shard_of_an_id_is_no_part_of_its_number() {
        let ids = RunIds::new(3);
        for index in 0..=u8::MAX {
            let id = ids.next(Timestamp::from_millis(1_763_239_620_123));
            let placed = id.with_shard_index(index);
            assert_eq!((placed.shard_index(), placed.no()), (index, id.no()));
            assert_eq!(placed.as_uuid().get_version_num(), 7);
            assert_eq!(placed.with_shard_index(id.shard_index()), id);
        }
    }

    #[test]
    fn ids_are_uuids_of_version_7_and_round_trip_as_text() {
        let id = RunIds::new(1).next(Timestamp::from_millis(1_763_239_620_123));
        assert_eq!(id.as_uuid().get_version_num(), 7);
        assert_eq!(id.to_string().parse::<RunId>().expect("its own text"), id);
        let at = Timestamp::from_millis(1_763_239_620_123);
        assert_eq!(RunId::started_at(id.no()), at);
        assert!(RunId::first_no(at) <= id.no());
        assert!(RunId::first_no(Timestamp::from_millis(1_763_239_620_124)) > id.no());
        assert!("018c".parse::<RunId>().is_err());
    }
}
