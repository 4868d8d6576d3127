//! What people look at from above: queues, counts by status, charts.
//!
//! Always true: what these cost is bounded, or follows an index, however many runs and items there
//! are. Where a number stops at a bound, its type or the method says so.

use super::Filter;
use crate::{
    commit::{QueueStats, RunStatus},
    time::Timestamp,
};

impl Filter {
    /// Whether runs of this status may match.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn wants(&self, status: RunStatus) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status)
    }

    /// Whether what matches can be counted by the indexes over statuses, workflows and ends.
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        expect(dead_code, reason = "there is an index only in a database")
    )]
    pub(crate) fn is_indexed(&self) -> bool {
        let rest = Filter {
            statuses: Vec::new(),
            workflow: None,
            finished_from: None,
            finished_before: None,
            ..self.clone()
        };
        rest == Filter::default()
    }
}

/// A queue that has items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Its name.
    pub name: String,
    /// How it stands. No number is greater than the bound that was asked for.
    pub stats: QueueStats,
}

/// How many runs there are of each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusCounts([u64; RunStatus::ALL.len()]);

impl StatusCounts {
    /// How many there are of this status.
    pub fn of(&self, status: RunStatus) -> u64 {
        self.0[usize::from(status.code())]
    }

    /// Of each status, in the order of [`RunStatus::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (RunStatus, u64)> + '_ {
        RunStatus::ALL.into_iter().zip(self.0)
    }

    /// How many there are of all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds some of this status.
    pub fn add(&mut self, status: RunStatus, number: u64) {
        self.0[usize::from(status.code())] += number;
    }
}

/// The greatest number of parts that a [`StatsRange`] has.
pub const STATS_BUCKETS_MAX: usize = 200;

/// Of how many runs of a bucket the durations are looked at, at most: twice as many as this. If there
/// are more, every second one is, or every fourth, and so on.
pub const STATS_SAMPLE: usize = 512;

/// A time, in parts of equal length; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRange {
    from: Timestamp,
    to: Timestamp,
    bucket_ms: i64,
}

impl StatsRange {
    /// From an instant to another, which is not part of it. `None` if there is no time between them, a
    /// part has no length, or there are more than [`STATS_BUCKETS_MAX`] parts.
    pub fn new(from: Timestamp, to: Timestamp, bucket_ms: i64) -> Option<StatsRange> {
        let range = StatsRange { from, to, bucket_ms };
        let length = to.as_millis().checked_sub(from.as_millis())?;
        let fits = bucket_ms > 0
            && length > 0
            && length.div_euclid(bucket_ms) <= STATS_BUCKETS_MAX as i64
            && range.len() <= STATS_BUCKETS_MAX;
        fits.then_some(range)
    }

    /// Where it begins.
    pub fn from(&self) -> Timestamp {
        self.from
    }

    /// Where it ends.
    pub fn to(&self) -> Timestamp {
        self.to
    }

    /// The length of a part, in milliseconds.
    pub fn bucket_ms(&self) -> i64 {
        self.bucket_ms
    }

    /// How many parts it has.
    pub fn len(&self) -> usize {
        let length = self.to.as_millis() - self.from.as_millis();
        let whole = length / self.bucket_ms;
        (whole + i64::from(length % self.bucket_ms > 0)) as usize
    }

    /// Always `false`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a part begins and ends.
    pub fn bucket(&self, index: usize) -> (Timestamp, Timestamp) {
        let from = self.from.as_millis() + index as i64 * self.bucket_ms;
        let to = from.saturating_add(self.bucket_ms);
        let at = Timestamp::from_millis;
        (at(from), at(to.min(self.to.as_millis())))
    }

    /// The part that an instant is in.
    pub fn index_of(&self, at: Timestamp) -> Option<usize> {
        let inside = self.from <= at && at < self.to;
        inside.then(|| ((at.as_millis() - self.from.as_millis()) / self.bucket_ms) as usize)
    }
}

/// What has happened in one part of a [`StatsRange`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsRow {
    /// How many runs were started, by the time in their ids.
    pub started: u64,
    /// How many have completed.
    pub completed: u64,
    /// How many have failed.
    pub failed: u64,
    /// How many were cancelled.
    pub cancelled: u64,
    /// Of those that have completed, half took no longer than this many milliseconds.
    pub p50_ms: Option<u64>,
    /// Of those that have completed, 95 of 100 took no longer than this many milliseconds.
    pub p95_ms: Option<u64>,
}

impl StatsRow {
    /// Counts runs that have ended so.
    pub fn count(&mut self, status: RunStatus, number: u64) {
        match status {
            RunStatus::Completed => self.completed += number,
            RunStatus::Failed => self.failed += number,
            RunStatus::Cancelled => self.cancelled += number,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_range_has_parts_of_equal_length_but_for_the_last() {
        let range = StatsRange::new(at(1_000), at(3_500), 1_000).expect("three parts");
        assert_eq!(range.len(), 3);
        assert_eq!(range.bucket(0), (at(1_000), at(2_000)));
        assert_eq!(range.bucket(2), (at(3_000), at(3_500)));
        let index = |ms| range.index_of(at(ms));
        assert_eq!((index(999), index(3_500)), (None, None));
        assert_eq!((index(1_000), index(1_999), index(3_499)), (Some(0), Some(0), Some(2)));
    }

    #[test]
    fn a_range_without_time_or_with_too_many_parts_is_none() {
        let most = STATS_BUCKETS_MAX as i64;
        assert!(StatsRange::new(at(0), at(most * 10), 10).is_some());
        assert_eq!(StatsRange::new(at(0), at(most * 10 + 1), 10), None);
        assert_eq!(StatsRange::new(at(0), at(0), 10), None);
        assert_eq!(StatsRange::new(at(5), at(0), 10), None);
        assert_eq!(StatsRange::new(at(0), at(5), 0), None);
        assert_eq!(StatsRange::new(at(0), at(5), -1), None);
        assert_eq!(StatsRange::new(at(i64::MIN), at(i64::MAX), 1), None);
    }
}
