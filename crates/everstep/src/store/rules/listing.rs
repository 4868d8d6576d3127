//! How a page of runs is found, newest first, without a look at all of them.
//!
//! What many runs have in common, some of the newest have: they are looked at first, and no more than
//! a bounded number of them. What few runs have is answered by an index, which has them in an order of
//! its own; of what it finds, the newest are taken and looked up. So neither needs an index by number
//! for each thing that can be asked for, which every start and every end of a run would pay for.

use crate::{
    run_id::RunNo,
    store::{Filter, RunStatus},
};

/// How many of the newest runs are looked at. In tests few runs are to be many.
const NEWEST: usize = if cfg!(test) { 3 } else { 10_000 };

/// How many runs an index is asked for at first; it is asked for more if few of them match.
const CANDIDATES: usize = if cfg!(test) { 2 } else { 256 };

/// How many it is asked for at most.
const CANDIDATES_MAX: usize = 1 << 20;

/// How many of them are looked up at a time.
const LOOKED_UP: usize = 256;

/// Which index leads to the runs that a filter means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// None: all runs are walked, in their order, or those with the ids that are asked for.
    Number,
    /// That of tags, by the first one.
    Tag,
    /// That of keys.
    Key,
    /// Those by workflow, status and end.
    Status,
}

impl By {
    pub(crate) fn of(filter: &Filter) -> By {
        let has_end = filter.finished_from.is_some() || filter.finished_before.is_some();
        match filter {
            _ if !filter.ids.is_empty() => By::Number,
            _ if !filter.tags.is_empty() => By::Tag,
            _ if filter.key_prefix.is_some() => By::Key,
            _ if filter.workflow.is_some() || !filter.statuses.is_empty() || has_end => By::Status,
            _ => By::Number,
        }
    }
}

/// Whether an index leads to these runs so directly that the newest need not be looked at first: it has
/// them in their order, or never has many.
fn is_direct(by: By, filter: &Filter) -> bool {
    let in_memory = |status| matches!(status, RunStatus::Running | RunStatus::RollingBack);
    match by {
        By::Tag => true,
        By::Status => !filter.statuses.is_empty() && filter.statuses.iter().copied().all(in_memory),
        By::Number | By::Key => false,
    }
}

/// What a store can find.
pub(crate) trait Listing {
    /// What is told of a run.
    type Row;
    type Error;

    /// The runs that match, from the first to before the second, newest first.
    fn walk(&self, from: RunNo, before: RunNo, limit: usize)
    -> Result<Vec<Self::Row>, Self::Error>;

    /// The oldest of so many runs that are the newest before this one; `None` if there are fewer.
    fn nth_before(&self, before: RunNo, n: usize) -> Result<Option<RunNo>, Self::Error>;

    /// The runs that this index leads to and that may match, before this one, newest first. Every run
    /// that matches is among them.
    fn candidates(&self, by: By, before: RunNo, limit: usize) -> Result<Vec<RunNo>, Self::Error>;

    /// Those of these that match, newest first.
    fn matching(&self, of: &[RunNo], limit: usize) -> Result<Vec<Self::Row>, Self::Error>;
}

/// The runs that match, newest first, after the given one, at most `limit`.
pub(crate) fn page<L: Listing>(
    listing: &L,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<L::Row>, L::Error> {
    const OLDEST: RunNo = RunNo(i64::MIN);
    let mut before = after.unwrap_or(RunNo(i64::MAX));
    let by = By::of(filter);
    let mut rows = Vec::new();
    if !is_direct(by, filter) {
        let from = match by {
            By::Number => None,
            _ => listing.nth_before(before, NEWEST)?,
        };
        rows = listing.walk(from.unwrap_or(OLDEST), before, limit)?;
        match from {
            Some(from) => before = from,
            None => return Ok(rows),
        }
    }
    let mut number = CANDIDATES.max(limit);
    while rows.len() < limit {
        let found = listing.candidates(by, before, number)?;
        for some in found.chunks(LOOKED_UP) {
            let rest = limit - rows.len();
            if rest == 0 {
                break;
            }
            rows.extend(listing.matching(some, rest)?);
        }
        match found.last() {
            Some(last) if found.len() == number => before = *last,
            _ => break,
        }
        number = (number * 8).min(CANDIDATES_MAX);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible};

    use super::*;

    /// Runs from 0 on, of which some match and some are in an index.
    struct Runs {
        number: i64,
        matches: fn(i64) -> bool,
        indexed: fn(i64) -> bool,
        looked_at: Cell<usize>,
    }

    impl Runs {
        fn newest_first(&self, before: RunNo) -> impl Iterator<Item = i64> {
            (0..self.number.min(before.0)).rev()
        }
    }

    impl Listing for Runs {
        type Row = i64;
        type Error = Infallible;

        fn walk(&self, from: RunNo, before: RunNo, limit: usize) -> Result<Vec<i64>, Infallible> {
            let runs = self.newest_first(before).take_while(|no| *no >= from.0);
            let seen = runs.inspect(|_| self.looked_at.set(self.looked_at.get() + 1));
            Ok(seen.filter(|no| (self.matches)(*no)).take(limit).collect())
        }

        fn nth_before(&self, before: RunNo, n: usize) -> Result<Option<RunNo>, Infallible> {
            Ok(self.newest_first(before).nth(n - 1).map(RunNo))
        }

        fn candidates(&self, _: By, before: RunNo, limit: usize) -> Result<Vec<RunNo>, Infallible> {
            let found = self.newest_first(before).filter(|no| (self.indexed)(*no));
            Ok(found.take(limit).map(RunNo).collect())
        }

        fn matching(&self, of: &[RunNo], limit: usize) -> Result<Vec<i64>, Infallible> {
            let all = of.iter().map(|no| no.0);
            let seen = all.inspect(|_| self.looked_at.set(self.looked_at.get() + 1));
            Ok(seen.filter(|no| (self.matches)(*no)).take(limit).collect())
        }
    }

    fn runs(number: i64, matches: fn(i64) -> bool, indexed: fn(i64) -> bool) -> Runs {
        Runs { number, matches, indexed, looked_at: Cell::new(0) }
    }

    fn filters() -> [Filter; 4] {
        let all = Filter::new;
        [
            all().workflow("some"),
            all().tag("name", "value"),
            all().key_prefix("some"),
            all().status(RunStatus::Running),
        ]
    }

    #[test]
    fn pages_together_are_all_that_match_however_they_are_found() {
        let some = |no: i64| no % 7 == 0 || (20..30).contains(&no);
        let indexed = |no: i64| no % 7 == 0 || no % 2 == 0 || (20..30).contains(&no);
        for (number, limit) in [(0, 3), (2, 3), (3, 1), (4, 5), (100, 1), (100, 4), (100, 50)] {
            let runs = runs(number, some, indexed);
            let wanted: Vec<i64> = (0..number).rev().filter(|no| some(*no)).collect();
            for filter in filters() {
                let (mut all, mut after) = (Vec::<i64>::new(), None);
                loop {
                    let Ok(page) = page(&runs, &filter, after, limit);
                    after = page.last().map(|no| RunNo(*no));
                    all.extend(&page);
                    if page.len() < limit {
                        break;
                    }
                }
                assert_eq!(all, wanted, "{filter:?}, {limit} of {number}");
            }
        }
    }

    #[test]
    fn what_few_of_the_oldest_have_is_found_without_a_look_at_the_rest() {
        let oldest = |no: i64| no < 4;
        for filter in filters() {
            let runs = runs(1_000_000, oldest, oldest);
            let Ok(found) = page(&runs, &filter, None, 10);
            assert_eq!(found, [3, 2, 1, 0]);
            assert!(runs.looked_at.get() < 10, "{filter:?}");
        }
    }

    #[test]
    fn what_all_have_is_found_among_the_newest() {
        for filter in filters() {
            let runs = runs(1_000_000, |_| true, |_| true);
            let Ok(found) = page(&runs, &filter, None, 2);
            assert_eq!(found, [999_999, 999_998]);
            assert!(runs.looked_at.get() < 10, "{filter:?}");
        }
    }
}
