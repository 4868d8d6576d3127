//! Some of the writes of a run, where to die at each would take too long.
//!
//! The writes are cut into parts of equal length from the first to the last, and one of each part is
//! drawn. Which ones is said by a seed, so that a test can be made again, and others be tried another
//! time.

use crate::random;

/// The variable that names the seed.
pub(super) const CHOICE_SEED: &str = "EVERSTEP_CRASH_SEED";

/// How writes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// How many there are at most.
    pub(super) most: u64,
    pub(super) seed: u64,
}

impl Choice {
    /// At most so many, with the seed from the environment.
    ///
    /// # Panics
    ///
    /// If that is not a number.
    #[cfg(any(test, feature = "postgres"))]
    pub(super) fn at_most(most: u64) -> Choice {
        let seed = match std::env::var(CHOICE_SEED) {
            Ok(seed) => match seed.parse() {
                Ok(seed) => seed,
                Err(_) => panic!("{CHOICE_SEED} is `{seed}`, and not a number"),
            },
            Err(_) => 0,
        };
        Choice { most, seed }
    }

    /// Of the writes 1, 2, .. up to this one: in order, none twice.
    pub(super) fn of(self, writes: u64) -> impl Iterator<Item = u64> {
        let parts = self.most.min(writes);
        (0..parts).map(move |part| {
            let (first, next) = (part * writes / parts, (part + 1) * writes / parts);
            1 + first + random::mix(self.seed ^ random::mix(part)) % (next - first)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_of_each_part_is_chosen() {
        for seed in 0..20 {
            let chosen: Vec<u64> = Choice { most: 4, seed }.of(100).collect();
            let parts: Vec<u64> = chosen.iter().map(|n| (n - 1) / 25).collect();
            assert_eq!(parts, [0, 1, 2, 3], "{chosen:?}");
        }
    }

    #[test]
    fn few_writes_are_all_chosen() {
        let choice = Choice::at_most(8);
        assert_eq!(choice.of(5).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(choice.of(8).count(), 8);
        assert_eq!(choice.of(0).count(), 0);
    }

    #[test]
    fn every_write_is_chosen_by_some_seed() {
        let all = (0..200).flat_map(|seed| Choice { most: 8, seed }.of(50));
        let all: BTreeSet<u64> = all.collect();
        assert_eq!(all, (1..=50).collect());
    }
}
