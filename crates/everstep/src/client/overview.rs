//! What is seen from above: all queues, counts by status, and charts over time.

use std::{fmt, time::Duration};

use super::{Client, ClientError};
use crate::{
    store::{Filter, QueueRow, STATS_BUCKETS_MAX, StatsRange, StatusCounts},
    time::Timestamp,
};

/// How many items of a queue are counted in each state.
const ITEMS_COUNTED: u64 = 100_000;

/// How many queues are listed at most.
const QUEUES_MAX: usize = 1_000;

/// How many there are, as far as was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// So many were counted.
    pub number: u64,
    /// Whether there may be more: that is where counting stopped.
    pub or_more: bool,
}

impl Tally {
    fn up_to(number: u64, most: u64) -> Tally {
        Tally { number: number.min(most), or_more: number > most }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_more = if self.or_more { "+" } else { "" };
        write!(f, "{}{or_more}", self.number)
    }
}

/// A queue that has items, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Items that a worker may take.
    pub ready: Tally,
    /// Items whose time has not come.
    pub delayed: Tally,
    /// Items that a worker has.
    pub claimed: Tally,
    /// Items that have ended and whose result is kept.
    pub done: Tally,
    /// Dead letters.
    pub dead: Tally,
    /// Since when the item that waits longest could have been worked on.
    pub oldest_ready: Option<Timestamp>,
}

impl QueueInfo {
    fn new(row: QueueRow) -> QueueInfo {
        let tally = |number| Tally::up_to(number, ITEMS_COUNTED);
        QueueInfo {
            name: row.name,
            ready: tally(row.stats.ready),
            delayed: tally(row.stats.delayed),
            claimed: tally(row.stats.claimed),
            done: tally(row.stats.done),
            dead: tally(row.stats.dead),
            oldest_ready: row.stats.oldest_ready,
        }
    }
}

/// What has happened in a part of a chart's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsBucket {
    /// Where the part begins.
    pub at: Timestamp,
    /// Whether retention has deleted nothing that belongs here. If it is `false`, runs are missing in
    /// all numbers below: the part begins before the [horizon](Client::retention_horizon).
    pub is_complete: bool,
    /// How many runs were started.
    pub started: u64,
    /// How many have completed.
    pub completed: u64,
    /// How many have failed.
    pub failed: u64,
    /// How many were cancelled.
    pub cancelled: u64,
    /// Half of those that have completed took no longer than this, from their start to their end.
    pub p50: Option<Duration>,
    /// 95 of 100 of those that have completed took no longer than this.
    pub p95: Option<Duration>,
}

impl Client {
    /// The queues that have items, by name, at most 1 000: how many items are in which state, and
    /// since when the oldest waits. Up to 100 000 items of a state are counted, so that it is cheap
    /// however long the queues are; [`queue_stats`](Client::queue_stats) counts one queue to the end.
    ///
    /// A queue is there as long as it has an item, or the result of one is kept.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, ClientError> {
        let rows = self
            // One more than is counted shows whether there are more.
            .read(|store| store.queues(None, QUEUES_MAX, ITEMS_COUNTED + 1))
            .await?;
        Ok(rows.into_iter().map(QueueInfo::new).collect())
    }

    /// How many runs match, by status. If the filter names nothing but a workflow and statuses, those
    /// that have ended are counted by an index: about a tenth of a second for a million.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn count_by_status(&self, filter: Filter) -> Result<StatusCounts, ClientError> {
        self.read(move |store| store.count_by_status(&filter)).await
    }

    /// The retention horizon: all runs that retention has deleted had ended before this instant, so what
    /// is counted from here on is exact. `None` if it has deleted nothing.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn retention_horizon(&self) -> Result<Option<Timestamp>, ClientError> {
        self.read(|store| store.horizon()).await
    }

    /// What has happened between two instants, in parts of this length: at most 200, and the last
    /// may be shorter. Runs are counted as they are in the store now. Where retention has deleted runs,
    /// [`StatsBucket::is_complete`] is `false`; runs that were deleted by hand are not counted either.
    ///
    /// Counts are exact. Percentiles are exact for parts in which up to 1 024 runs have completed;
    /// of more, at least 512 are looked at, evenly chosen. The time it takes goes by the number of
    /// runs that were started or have ended between the two instants.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn nothing(ctx: Ctx, _: ()) -> Result<()> { Ok(()) }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(nothing).start().await?;
    /// # let client = engine.client();
    /// # let run = client.start(nothing, ()).await?;
    /// # run.result().await?;
    /// let from = run.info().await?.created_at;
    /// let hour = client.stats(from, from + hours(1), minutes(15)).await?;
    /// assert_eq!((hour.len(), hour[0].completed), (4, 1));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no time between the two, a part has no length, or there are more than 200 parts.
    pub async fn stats(
        &self,
        from: Timestamp,
        to: Timestamp,
        bucket: Duration,
    ) -> Result<Vec<StatsBucket>, ClientError> {
        let bucket_ms = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX);
        let range = StatsRange::new(from, to, bucket_ms).ok_or_else(|| ClientError::Name {
            what: format!("the time from {from} to {to} in parts of {bucket:?}"),
            problem: format!(
                "it must end after it begins, and have at most {STATS_BUCKETS_MAX} parts of a \
                 millisecond or more"
            ),
        })?;
        // The horizon is read last: runs that are deleted meanwhile are before it.
        let (rows, horizon) =
            self.read(move |store| Ok((store.stats(&range)?, store.horizon()?))).await?;
        let is_complete = |at| horizon.is_none_or(|horizon| at >= horizon);
        let buckets = rows.into_iter().enumerate().map(|(index, row)| StatsBucket {
            at: range.bucket(index).0,
            is_complete: is_complete(range.bucket(index).0),
            started: row.started,
            completed: row.completed,
            failed: row.failed,
            cancelled: row.cancelled,
            p50: row.p50_ms.map(Duration::from_millis),
            p95: row.p95_ms.map(Duration::from_millis),
        });
        Ok(buckets.collect())
    }
}
