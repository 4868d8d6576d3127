//! Schedules: each tick starts one run when it is due, or is counted as skipped or missed, and runs
//! overlap as the schedule says.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use everstep::{
    Filter, Overlap, RunId, Timestamp,
    store::{MemoryStore, RunRow, ScheduleRow, Store, Target},
};

use super::{
    Promise,
    ending::{Judgement, is_fork},
    ledger::{Ledger, Stay},
    limits::CLOCK_ERROR,
    requests::Request,
};
use crate::work::schedules::{self, SCHEDULE_TAG};

/// The runs whose code was called for a tick of a schedule.
pub(crate) type Ticks = BTreeMap<(usize, Timestamp), BTreeSet<RunId>>;

impl Ledger {
    /// A client was told that its schedule is there.
    pub(crate) fn schedule_is_there(&self, number: usize, is_replaced: bool) {
        let row = self.data().and_then(|data| schedule(data, number));
        if row.is_none() || is_replaced {
            // All say the same of it.
            let what =
                format!("schedule {number} was made, and is {row:?}; replaced: {is_replaced}");
            self.violate(Promise::ToldStaysTrue, what);
        }
    }

    /// The code of a run is called: if it is that of a tick, it is due, and no other run is of it.
    pub(super) fn check_tick(&self, stay: &Stay, tick: Option<Timestamp>) {
        let (Some(server), Some(tick)) = (self.server(), tick) else {
            return;
        };
        let row = server.data.run(&Target::Id(stay.run)).ok().flatten();
        let Some(row) = row.filter(|row| !is_fork(row)) else {
            return;
        };
        let Some(number) = schedules::number(&row.tags) else {
            return;
        };
        let violate = |what: String| self.violate(Promise::TicksAreDealtWithOnce, what);
        let now = server.now();
        if self.clocks_agree && tick > now + CLOCK_ERROR {
            violate(format!("run {} is that of {tick}, and it is {now}", stay.run));
        }
        let mut book = self.book();
        let runs = book.ticks.entry((number, tick)).or_default();
        let is_first = runs.insert(stay.run);
        let runs = runs.clone();
        let is_tried_again = book.requests.was_ever_asked(Request::Retry);
        drop(book);
        if runs.len() > 1 {
            violate(format!("the runs {runs:?} are those of {tick}"));
        }
        if is_first && !is_tried_again {
            self.check_overlap(&server.data, number, stay.run);
        }
    }

    /// A run begins while no other of its schedule is live, unless the schedule says otherwise.
    fn check_overlap(&self, data: &MemoryStore, number: usize, run: RunId) {
        let Some(schedule) = schedule(data, number) else {
            return;
        };
        if matches!(schedule.overlap, Overlap::Allow | Overlap::CancelOld) {
            return;
        }
        let rows = runs_of(data, number);
        let mut others = rows.iter().filter(|row| row.id != run && !row.status.is_terminal());
        if let Some(other) = others.next() {
            let what = format!("run {run} of {} begins beside {}", schedule.name, other.id);
            self.violate(Promise::TicksAreDealtWithOnce, what);
        }
    }

    /// While nothing is wrong, ticks are dealt with soon.
    pub(crate) fn check_not_late(&self, number: usize, most: Duration) {
        let Some(server) = self.server() else { return };
        let next_at = schedule(&server.data, number).and_then(|row| row.next_at);
        let now = server.now();
        if next_at.is_some_and(|next_at| next_at + most < now) {
            let what = format!("the tick at {next_at:?} of schedule {number} is due, at {now}");
            self.violate(Promise::TicksAreDealtWithOnce, what);
        }
    }
}

impl Judgement<'_> {
    /// Every tick before the next one was dealt with, once.
    pub(super) fn check_schedules(&self) {
        for (number, plan) in self.plan.schedules.iter().enumerate() {
            let Some(row) = schedule(self.data, number) else {
                continue;
            };
            let violate = |what: String| self.violate(Promise::TicksAreDealtWithOnce, what);
            let Some(next_at) = row.next_at else {
                violate(format!("there is no next tick of {row:?}"));
                continue;
            };
            let every = plan.every.as_millis() as i64;
            let since = |at: Timestamp| at.as_millis() - row.anchor.as_millis();
            let is_tick = |at: Timestamp| since(at) > 0 && since(at) % every == 0;
            let passed = since(next_at) / every - 1;
            let queued = row.queue.len() as u64;
            let dealt_with = row.started + row.skipped + row.missed + queued;
            if !is_tick(next_at) || dealt_with != passed as u64 {
                violate(format!("{passed} ticks have passed, and {dealt_with} are in {row:?}"));
            }
            let is_patient = plan.catch_up > Duration::from_secs(3_600);
            let may_skip = plan.overlap() == Overlap::Skip;
            if is_patient && (row.missed > 0 || (row.skipped > 0 && !may_skip)) {
                violate(format!("ticks were left out of {row:?}"));
            }
            let ticks = self.ledger.book().ticks.clone();
            let own = ticks.keys().filter(|(of, _)| *of == number);
            for (_, tick) in own.filter(|(_, tick)| !is_tick(*tick) || *tick >= next_at) {
                violate(format!("{tick} is no tick of {row:?}"));
            }
            let is_deleted = self.ledger.book().requests.was_ever_asked(Request::Delete);
            let runs = runs_of(self.data, number).len() as u64;
            if runs != row.started && !is_deleted {
                violate(format!("there are {runs} runs of {row:?}"));
            }
        }
    }
}

fn schedule(data: &MemoryStore, number: usize) -> Option<ScheduleRow> {
    data.schedule(&schedules::name(number)).ok().flatten()
}

/// The runs of a schedule, without forks of them.
fn runs_of(data: &MemoryStore, number: usize) -> Vec<RunRow> {
    let filter = Filter::new().tag(SCHEDULE_TAG, schedules::name(number));
    let mut rows = data.list(&filter, None, usize::MAX).unwrap_or_default();
    rows.retain(|row| !is_fork(row));
    rows
}
