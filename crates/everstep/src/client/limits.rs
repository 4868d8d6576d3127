//! Limits, as clients see them.

use std::time::Duration;

use super::{Client, ClientError};
use crate::{
    store::{LimitRow, rules::limits::next_free},
    time::Timestamp,
};

/// How many limits are listed at most.
const LIMITS_MAX: usize = 10_000;

/// One key of a limit, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitInfo {
    /// The name of the limit.
    pub name: String,
    /// The key; none for what uses the limit without one.
    pub key: Option<String>,
    /// How many it lets in at a time.
    pub concurrency: Option<u32>,
    /// How often it lets somebody in: so many times in so much time.
    pub rate: Option<(u32, Duration)>,
    /// How many have a place.
    pub in_use: u64,
    /// How many wait for one.
    pub waiting: u64,
    /// When the next one would be let in; absent if that takes somebody who gives a place back.
    pub next_free: Option<Timestamp>,
}

impl LimitInfo {
    fn new(row: LimitRow, now: Timestamp) -> LimitInfo {
        let concurrency = row.rule.concurrency;
        let full = concurrency.is_some_and(|max| row.held >= u64::from(max));
        let rate = row.rule.rate;
        LimitInfo {
            concurrency,
            rate: rate.map(|rate| (rate.count, Duration::from_millis(rate.per_ms))),
            in_use: row.held,
            waiting: row.waiting,
            next_free: (!full).then(|| next_free(&row, now)),
            key: Some(row.key).filter(|key| !key.is_empty()),
            name: row.name,
        }
    }
}

impl Client {
    /// The limits that somebody uses, waits for, or has used not long ago, by name and key; at most
    /// 10 000. What a limit allows is what the code said when it was last asked for.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn limits(&self) -> Result<Vec<LimitInfo>, ClientError> {
        let rows = self.read(|store| store.limits(None, LIMITS_MAX)).await?;
        let now = self.shared.now();
        let limits = rows.into_iter().map(|row| LimitInfo::new(row, now));
        Ok(limits.collect())
    }
}
