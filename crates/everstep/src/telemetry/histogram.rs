//! A histogram with fixed buckets: filled by many threads, read by anybody.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How many things were how large, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Histogram {
    /// The upper bound of each bucket but the last, which has none; ascending. In seconds where it is
    /// about time.
    pub bounds: Vec<f64>,
    /// How many were in each bucket: above the bound before it, up to and including its own. One more
    /// than there are bounds.
    pub counts: Vec<u64>,
    /// All of them added up.
    pub sum: f64,
}

impl Histogram {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many were not above each bound, and that bound; the last is infinity, and all of them.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut so_far = 0;
        bounds.zip(&self.counts).map(move |(bound, count)| {
            so_far += count;
            (bound, so_far)
        })
    }

    /// Adds what another has counted with the same bounds.
    pub(crate) fn add(&mut self, other: &Histogram) {
        if self.counts.is_empty() {
            self.clone_from(other);
            return;
        }
        debug_assert_eq!(self.bounds, other.bounds, "they are of the same kind");
        for (mine, other) in self.counts.iter_mut().zip(&other.counts) {
            *mine += other;
        }
        self.sum += other.sum;
    }
}

/// Where a histogram is filled.
pub(crate) struct Cells {
    scale: &'static Scale,
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The buckets of a histogram, in whole units.
pub(crate) struct Scale {
    bounds: &'static [u64],
    /// How many units are one of what is published.
    unit: f64,
}

/// A millisecond and a second, in microseconds.
const MS: u64 = 1_000;
const S: u64 = 1_000 * MS;

/// How long something takes that a program does, in microseconds.
#[rustfmt::skip]
pub(crate) const WORK: Scale = Scale {
    bounds: &[
        100, 250, 500, MS, 5 * MS / 2, 5 * MS, 10 * MS, 25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS,
        S, 5 * S / 2, 5 * S, 10 * S, 30 * S, 60 * S, 300 * S,
    ],
    unit: 1e6,
};

/// How late something is, in microseconds.
#[rustfmt::skip]
pub(crate) const LAG: Scale = Scale {
    bounds: &[
        MS, 5 * MS, 10 * MS, 25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS,
        S, 5 * S / 2, 5 * S, 10 * S, 30 * S, 60 * S, 300 * S, 1_800 * S, 3_600 * S, 86_400 * S,
    ],
    unit: 1e6,
};

/// How many there are of something.
pub(crate) const MANY: Scale =
    Scale { bounds: &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000], unit: 1.0 };

impl Cells {
    pub(crate) fn new(scale: &'static Scale) -> Cells {
        let counts = (0..=scale.bounds.len()).map(|_| AtomicU64::new(0));
        Cells { scale, counts: counts.collect(), sum: AtomicU64::new(0) }
    }

    pub(crate) fn note(&self, units: u64) {
        let bucket = self.scale.bounds.partition_point(|bound| *bound < units);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(units, Ordering::Relaxed);
    }

    /// Of a scale in microseconds.
    pub(crate) fn note_time(&self, took: Duration) {
        self.note(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn read(&self) -> Histogram {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let bounds = self.scale.bounds.iter();
        Histogram {
            bounds: bounds.map(|bound| *bound as f64 / self.scale.unit).collect(),
            counts: self.counts.iter().map(read).collect(),
            sum: read(&self.sum) as f64 / self.scale.unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_in_the_bucket_below_it() {
        let cells = Cells::new(&MANY);
        for value in [0, 1, 2, 3, 5_000, 5_001] {
            cells.note(value);
        }
        let histogram = cells.read();
        assert_eq!(histogram.counts, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.count(), 6);
        assert!((histogram.sum - 10_007.0).abs() < 1e-9);
        let last = histogram.cumulative().last();
        assert_eq!(last, Some((f64::INFINITY, 6)));
        assert_eq!(histogram.cumulative().nth(2), Some((5.0, 4)));
    }

    #[test]
    fn time_is_published_in_seconds() {
        let cells = Cells::new(&WORK);
        cells.note_time(Duration::from_millis(1_500));
        let mut twice = cells.read();
        twice.add(&cells.read());
        assert!((twice.sum - 3.0).abs() < 1e-9);
        assert_eq!(twice.cumulative().find(|(_, n)| *n > 0), Some((2.5, 2)));
    }
}
