//! Durations of runs, as many as are looked at, and what is said about them.

use crate::{
    run_id::{RunId, RunNo},
    store::{STATS_SAMPLE, StatsRow},
    time::Timestamp,
};

/// Some of the durations of a bucket: every one, or every second, every fourth, .. in the order in
/// which they come. Deterministic, and never more than twice [`STATS_SAMPLE`].
#[derive(Clone, Debug)]
pub struct Durations {
    kept: Vec<u64>,
    seen: u64,
    /// Every so manieth is kept.
    stride: u64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { kept: Vec::new(), seen: 0, stride: 1 }
    }
}

impl Durations {
    /// Takes in a duration.
    pub fn add(&mut self, ms: u64) {
        if self.seen.is_multiple_of(self.stride) {
            self.kept.push(ms);
        }
        self.seen += 1;
        if self.kept.len() > 2 * STATS_SAMPLE {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Writes the percentiles of the bucket into its row.
    pub fn tell(mut self, row: &mut StatsRow) {
        self.kept.sort_unstable();
        row.p50_ms = percentile(&self.kept, 50);
        row.p95_ms = percentile(&self.kept, 95);
    }
}

/// The least of these, which are in order, that so many of 100 are not greater than.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// How long a run took from the instant in its id to its end.
pub fn duration_ms(run: RunNo, finished_at: Timestamp) -> u64 {
    let started = RunId::started_at(run).as_millis();
    u64::try_from(finished_at.as_millis() - started).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(durations: impl Iterator<Item = u64>) -> StatsRow {
        let mut all = Durations::default();
        durations.for_each(|ms| all.add(ms));
        let mut row = StatsRow::default();
        all.tell(&mut row);
        row
    }

    #[test]
    fn percentiles_are_exact_while_all_are_kept() {
        let row = told((1..=100).rev());
        assert_eq!((row.p50_ms, row.p95_ms), (Some(50), Some(95)));
        let row = told([7].into_iter());
        assert_eq!((row.p50_ms, row.p95_ms), (Some(7), Some(7)));
        let row = told([].into_iter());
        assert_eq!((row.p50_ms, row.p95_ms), (None, None));
    }

    #[test]
    fn of_many_an_even_part_is_kept() {
        let mut all = Durations::default();
        (0..100_000).for_each(|ms| all.add(ms));
        assert!((STATS_SAMPLE..=2 * STATS_SAMPLE).contains(&all.kept.len()));
        let steps = all.kept.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(steps.clone().all(|step| step == all.stride), "evenly");
        let mut row = StatsRow::default();
        all.tell(&mut row);
        let near =
            |found: Option<u64>, wanted: u64| found.is_some_and(|it| it.abs_diff(wanted) < 500);
        assert!(near(row.p50_ms, 50_000) && near(row.p95_ms, 95_000), "{row:?}");
    }
}
