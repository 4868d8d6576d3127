//! How many runs there are. What took long is kept for a while: many may look at the same page, and the store is not to be
//! counted for each of them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use everstep::{Client, ClientError, Filter};

use crate::shapes::run::Counts;

/// What takes no longer than this is counted whenever it is asked for.
const QUICK: Duration = Duration::from_millis(10);

/// What takes longer is kept for so many times as long, so that the store is counted for a tenth of the
/// time, however many ask.
const KEPT_TIMES: u32 = 9;

/// And no longer than this.
const KEPT_MAX: Duration = Duration::from_secs(30);

/// Of how many filters counts are kept.
const FILTERS_MAX: usize = 32;

fn kept_for(took: Duration) -> Option<Duration> {
    (took > QUICK).then(|| (took * KEPT_TIMES).min(KEPT_MAX))
}

/// What was counted, and until when it holds. Whoever counts has it locked.
type Kept = Arc<tokio::sync::Mutex<Option<(Instant, Counts)>>>;

/// Counts runs for all who ask.
#[derive(Clone)]
pub(crate) struct Counter {
    client: Client,
    counted: Arc<Counted>,
}

impl Counter {
    pub(crate) fn new(client: Client) -> Counter {
        let counted = Arc::default();
        Counter { client, counted }
    }

    /// How many runs there are of each status. What takes long may be a little old.
    pub(crate) async fn count(&self, filter: &Filter) -> Result<Counts, ClientError> {
        self.counted.get(filter, self.count_now(filter)).await
    }

    async fn count_now(&self, filter: &Filter) -> Result<Counts, ClientError> {
        let found = self.client.count_by_status(filter.clone()).await?;
        let mut counts = Counts { total: found.total(), ..Counts::default() };
        for (status, count) in found.iter() {
            *counts.counts.of(status) += count;
        }
        Ok(counts)
    }
}

/// What was counted of late, the filter that was asked for last at the end.
#[derive(Default)]
struct Counted(Mutex<Vec<(Filter, Kept)>>);

impl Counted {
    /// What is kept, or what `count` finds: it is called by one of those who ask for the same.
    async fn get(
        &self,
        filter: &Filter,
        count: impl Future<Output = Result<Counts, ClientError>>,
    ) -> Result<Counts, ClientError> {
        let kept = self.of(filter);
        let mut kept = kept.lock().await;
        if let Some((until, counts)) = &*kept
            && Instant::now() < *until
        {
            return Ok(counts.clone());
        }
        let begun = Instant::now();
        let counts = count.await?;
        let now = Instant::now();
        *kept = kept_for(now - begun).map(|rest| (now + rest, counts.clone()));
        Ok(counts)
    }

    fn of(&self, filter: &Filter) -> Kept {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match all.iter().position(|(of, _)| of == filter) {
            Some(place) => all.remove(place).1,
            None => Kept::default(),
        };
        all.push((filter.clone(), kept.clone()));
        if all.len() > FILTERS_MAX {
            all.remove(0);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts, each time one more, and takes its time.
    async fn count(calls: &AtomicU64, takes: Duration) -> Result<Counts, ClientError> {
        let total = calls.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::time::sleep(takes).await;
        Ok(Counts { total, ..Counts::default() })
    }

    #[tokio::test]
    async fn what_takes_long_is_counted_once_for_all_who_ask() {
        let (counted, calls, takes) = (Counted::default(), AtomicU64::new(0), 50 * QUICK);
        let filter = Filter::new().workflow("greet");
        let (a, b) = tokio::join!(
            counted.get(&filter, count(&calls, takes)),
            counted.get(&filter, count(&calls, takes)),
        );
        let c = counted.get(&filter, count(&calls, takes)).await;
        let other = counted.get(&Filter::new(), count(&calls, takes)).await;
        let totals = [a, b, c, other].map(|it| it.unwrap().total);
        assert_eq!(totals, [1, 1, 1, 2]);
    }

    #[test]
    fn counts_are_kept_for_as_long_as_they_are_costly() {
        assert_eq!(kept_for(QUICK), None);
        assert_eq!(kept_for(10 * QUICK), Some(90 * QUICK));
        assert_eq!(kept_for(Duration::from_secs(60)), Some(KEPT_MAX));
    }

    #[test]
    fn no_more_filters_are_kept_than_a_few() {
        let counted = Counted::default();
        let filter = |no: usize| Filter::new().workflow(no.to_string());
        let first = counted.of(&filter(0));
        (1..FILTERS_MAX).for_each(|no| drop(counted.of(&filter(no))));
        assert!(Arc::ptr_eq(&first, &counted.of(&filter(0))), "asked last");
        (1..=FILTERS_MAX).for_each(|no| drop(counted.of(&filter(100 + no))));
        assert!(!Arc::ptr_eq(&first, &counted.of(&filter(0))));
        assert_eq!(counted.0.lock().unwrap().len(), FILTERS_MAX);
    }
}
