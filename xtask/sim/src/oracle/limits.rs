//! Limits: nothing runs under one without a place, no more places are given than it allows, and a place
//! is not given away while its body runs.

use std::{collections::BTreeMap, sync::PoisonError, time::Duration};

use everstep::{
    Limit, RunId, RunStatus, Timestamp,
    store::{MemoryStore, RunRow, Store, Target},
    testing::internal,
};

use super::{
    Promise,
    ending::is_fork,
    ledger::{Ledger, Place, Stay},
};
use crate::work::limits::Limited;

/// How far the clocks of processes that are never set are apart at most.
pub(super) const CLOCK_ERROR: Duration = Duration::from_secs(1);

/// How often [`crate::work::limits::TURNS`] has a turn after its burst.
const TURN_INTERVAL: Duration = Duration::from_millis(500);

/// How much closer two turns are where the calendars of processes drift.
const INTERVAL_ERROR: Duration = Duration::from_millis(100);

/// A body that runs under a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    limit: &'static str,
    key: String,
    place: Place,
    attempt: u32,
    /// The stay that has started it.
    stay: usize,
    process: String,
}

impl Ledger {
    /// A body starts under a limit. Says how to end it.
    pub(crate) fn limited_body_starts(
        &self,
        stay: &Stay,
        place: &Place,
        limited: Limited,
    ) -> Option<Holder> {
        let data = self.data()?;
        if !stay.is_fenced {
            // It may not own its run any more.
            return None;
        }
        let (limit, key) = (limited.of_step(), limited.key());
        let places = data.limit_places(place.run.no()).unwrap_or_default();
        let is_given = places.iter().any(|it| {
            it.given
                && (it.name == limit.name() && it.key == key)
                && internal::location_of(&it.operation) == place.at
        });
        if !is_given {
            let what = format!("{place} starts in {} without a place", stay.process);
            self.violate(Promise::LimitsAreKept, what);
        }
        self.check_places(data, limit, &key);
        let holder = Holder {
            limit: limit.name(),
            key,
            place: place.clone(),
            attempt: stay.attempt,
            stay: stay.index,
            process: stay.process.clone(),
        };
        self.check_holders(data, limit, &holder);
        self.book().holders.push(holder.clone());
        Some(holder)
    }

    pub(crate) fn limited_body_ends(&self, holder: &Holder) {
        let mut book = self.book();
        if let Some(at) = book.holders.iter().position(|it| it == holder) {
            book.holders.swap_remove(at);
        }
    }

    /// The code of a run is called, which is under a limit as a whole.
    pub(crate) fn limited_run_begins(&self, run: RunId, limit: Limit, key: &str) {
        let Some(data) = self.data() else { return };
        let Some(row) = row_of(data, run) else { return };
        // What collects rollbacks is under none. An owner that has lost its run may call its code, and
        // starts no body.
        let is_live = matches!(row.status, RunStatus::Running | RunStatus::Sleeping);
        let goes_forward = is_live && row.ending.is_none() && row.cancel_requested.is_none();
        let places = data.limit_places(run.no()).unwrap_or_default();
        let is_given = places.iter().any(|it| it.given && it.name == limit.name() && it.key == key);
        if goes_forward && !is_given {
            let what =
                format!("the code of run {run} ({:?}) is called without a place", row.status);
            self.violate(Promise::LimitsAreKept, what);
        }
        self.check_places(data, limit, key);
    }

    /// Never are more places given than the concurrency allows.
    fn check_places(&self, data: &MemoryStore, limit: Limit, key: &str) {
        let rows = data.limits(Some(limit.name()), usize::MAX).unwrap_or_default();
        for row in rows.iter().filter(|row| row.key == key) {
            if row.rule.concurrency.is_some_and(|most| row.held > u64::from(most)) {
                let what = format!("{} places are given under {row:?}", row.held);
                self.violate(Promise::LimitsAreKept, what);
            }
        }
    }

    /// No more bodies run at a time than the concurrency allows. The body of an owner that has lost its
    /// run does not count: it is not heard any more, and its place is that of the next one.
    fn check_holders(&self, data: &MemoryStore, limit: Limit, new: &Holder) {
        let rows = data.limits(Some(limit.name()), usize::MAX).unwrap_or_default();
        let Some(row) = rows.into_iter().find(|row| row.key == new.key) else {
            return;
        };
        let Some(most) = row.rule.concurrency else {
            return;
        };
        let holders = self.book().holders.clone();
        let same = holders.iter().filter(|it| (it.limit, &it.key) == (new.limit, &new.key));
        let others = same.filter(|it| it.place != new.place && self.holds(data, it));
        let others: Vec<&Holder> = others.collect();
        if others.len() as u64 >= u64::from(most) {
            let (limit, place) = (new.limit, &new.place);
            let what = format!("{place} starts under `{limit}` while {others:?} run");
            self.violate(Promise::LimitsAreKept, what);
        }
    }

    /// Whether a body is that of the owner of its run for certain.
    fn holds(&self, data: &MemoryStore, holder: &Holder) -> bool {
        let run = holder.place.run;
        let Some(row) = row_of(data, run) else {
            return false;
        };
        let is_live = matches!(row.status, RunStatus::Running | RunStatus::Sleeping);
        let runners = data.runners().unwrap_or_default();
        let owner = runners.iter().find(|it| it.shards.contains(row.shard));
        let is_owner = owner.is_some_and(|it| it.name == holder.process);
        let book = self.book();
        let newest = book.stays.iter().rev().find(|stay| stay.run == run);
        let is_newest = newest.is_some_and(|stay| stay.index == holder.stay);
        is_live
            && is_owner
            && is_newest
            && row.cancel_requested.is_none()
            && (row.generation, row.attempts) == (holder.place.generation, holder.attempt)
    }

    /// The code of a run goes on with its turn under a rate: it was given one, and it is time.
    pub(crate) fn check_turn(&self, stay: &Stay, at: &str) {
        let Some(server) = self.server().filter(|_| self.clocks_agree && stay.is_fenced) else {
            return;
        };
        let turns = server.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turns = turns.iter().rev();
        let turn = turns.find(|turn| turn.run == stay.run.no() && turn.operation == at);
        let Some(turn) = turn.cloned() else {
            // A fork has taken over the turn of another run.
            if row_of(&server.data, stay.run).is_some_and(|row| !is_fork(&row)) {
                let what = format!("`{at}` of run {} goes on without a turn", stay.run);
                self.violate(Promise::LimitsAreKept, what);
            }
            return;
        };
        let now = server.now();
        if turn.at > now + CLOCK_ERROR {
            let what = format!("`{at}` of run {} goes on at {now}, before {turn:?}", stay.run);
            self.violate(Promise::LimitsAreKept, what);
        }
    }

    /// No more turns were given than the rate allows, in any span of time.
    pub(super) fn check_turns(&self) {
        let Some(server) = self.server().filter(|_| self.clocks_agree) else {
            return;
        };
        let mut all: BTreeMap<(String, String), Vec<Timestamp>> = BTreeMap::new();
        for turn in server.turns.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            all.entry((turn.limit.clone(), turn.key.clone())).or_default().push(turn.at);
        }
        for (limit, mut turns) in all {
            turns.sort_unstable();
            // A bucket of two that gains one each half second.
            for three in turns.windows(3) {
                if three[2] < three[0] + TURN_INTERVAL - INTERVAL_ERROR {
                    let what = format!("turns under {limit:?} at {three:?}");
                    self.violate(Promise::LimitsAreKept, what);
                }
            }
        }
    }

    /// When all has ended, nobody has a place or waits for one.
    pub(crate) fn check_no_places(&self) {
        let Some(data) = self.data() else { return };
        for row in data.limits(None, usize::MAX).unwrap_or_default() {
            if (row.held, row.waiting) != (0, 0) {
                let what = format!("after the end of all runs there is {row:?}");
                self.violate(Promise::LimitsAreKept, what);
            }
        }
    }
}

fn row_of(data: &MemoryStore, run: RunId) -> Option<RunRow> {
    data.run(&Target::Id(run)).ok().flatten()
}
