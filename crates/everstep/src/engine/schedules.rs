//! The chore that deals with the ticks of schedules.
//!
//! Every engine tries every due tick: the write that starts its run is refused for all but the
//! first. So nobody has to own a schedule, and none waits for an owner that has died. Those who have
//! the workflow's code come before the rest, since they know what its runs are to be like; and lest
//! all try at the same moment, one of them is first, and the others come a little later.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    keeper::{self, Chore},
    peers,
    shared::Shared,
};
use crate::{
    commit::{
        Fire, FireCause, Fired, NewRun, Outcome, ScheduleOutcome, ScheduleRow, ScheduleWrite,
        Target, Write,
    },
    pool::DEFAULT_POOL,
    random,
    sabotage::Sabotage,
    schedule::{self, Overlap, Ticks},
    store::{RunnerRow, Store, StoreError},
    telemetry::trace,
    time::{Timestamp, minutes},
};

/// How many schedules are read at a time.
const PAGE: usize = 500;

/// How many ticks of a schedule are dealt with at a time. With one, a schedule whose interval is
/// shorter than a commit takes would never catch up.
const TICKS: usize = 20;

/// How long others leave a tick to the one that is first, at most.
const GRACE_MAX: Duration = Duration::from_secs(1);

/// Deals with all ticks that are due, and with those that have waited for the end of a run.
pub(super) fn deal_with_ticks(
    shared: &Shared,
    _now: Timestamp,
) -> Result<Option<Timestamp>, Arc<StoreError>> {
    loop {
        let due = deal_with_due(shared)?;
        let queued = deal_with_queued(shared)?;
        if !(due.moved || queued.moved) || shared.keeper.is_closed() {
            let next = [due.next_at, queued.next_at].into_iter().flatten();
            return Ok(next.min());
        }
    }
}

/// How far one look at the due schedules has come.
struct Looked {
    /// Whether anything was done, so that there may be more to do.
    moved: bool,
    next_at: Option<Timestamp>,
}

impl Looked {
    fn come_back(&mut self, at: Timestamp) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }
}

fn deal_with_due(shared: &Shared) -> Result<Looked, Arc<StoreError>> {
    let now = shared.now();
    let mut looked = Looked { moved: false, next_at: None };
    let mut after: Option<(Timestamp, String)> = None;
    loop {
        let place = after.as_ref().map(|(at, name)| (*at, name.as_str()));
        let page = shared.store.due_schedules(now, place, PAGE)?;
        let mut fires = Vec::new();
        for row in &page.rows {
            if let Some(later) = others_first(shared, row, now) {
                looked.come_back(later);
                continue;
            }
            match ticks_of(shared, row, now) {
                Ok(due) => fires.extend(due),
                Err(problem) => {
                    tracing::error!(schedule = row.name, problem, "a schedule cannot be read");
                    // Another version of the program may have written it, and may be about to come.
                    looked.come_back(now + minutes(1));
                }
            }
        }
        looked.moved |= fire_all(shared, fires)?;
        let is_last = page.rows.len() < PAGE;
        after = page.rows.into_iter().next_back().and_then(|row| Some((row.next_at?, row.name)));
        if is_last {
            page.next_at.into_iter().for_each(|at| looked.come_back(at));
            return Ok(looked);
        }
    }
}

/// Until when others may deal with the tick of a schedule that is due, if it is theirs.
///
/// It is for those who have the workflow's code, and know what its runs are to be like, while any of
/// them is alive; else for anybody. One of them is first.
fn others_first(shared: &Shared, row: &ScheduleRow, now: Timestamp) -> Option<Timestamp> {
    let alive = shared.peers.alive();
    let me = shared.me?;
    let able = able(row, &alive);
    let grace = shared.settings.heartbeat().min(GRACE_MAX);
    if !able.is_empty() && !able.contains(&me) {
        return Some(now + grace);
    }
    let all = alive.iter().map(|runner| runner.id).collect();
    let candidates: Vec<Uuid> = if able.is_empty() { all } else { able };
    let first = first_of(&row.name, candidates.into_iter());
    let later = row.next_at? + grace;
    (first.is_some() && first != Some(me) && now < later).then_some(later)
}

/// Those who have the code for the runs of a schedule.
fn able(row: &ScheduleRow, alive: &[RunnerRow]) -> Vec<Uuid> {
    let able = alive.iter().filter(|runner| runner.serves(&row.workflow, row.version));
    able.map(|runner| runner.id).collect()
}

/// The one of these runners that deals with a schedule first.
fn first_of(schedule: &str, runners: impl Iterator<Item = Uuid>) -> Option<Uuid> {
    let name = random::hash(0, schedule.as_bytes());
    runners.max_by_key(|runner| (random::hash(name, runner.as_bytes()), *runner))
}

/// What is to be done about ticks of a schedule that are due; or what is wrong with the schedule.
fn ticks_of(shared: &Shared, row: &ScheduleRow, now: Timestamp) -> Result<Vec<Fire>, String> {
    let ticks = Ticks::from_text(&row.spec, row.anchor)?;
    let home = home(shared, row);
    let fires = causes(row, &ticks, now).into_iter().map(|(cause, tick)| Fire {
        name: row.name.clone(),
        revision: row.revision,
        cause,
        run: tick.map(|tick| Box::new(run_of_tick(shared, row, tick, home.clone()))),
    });
    Ok(fires.collect())
}

/// The ticks that are due, one after another: each is decided about by itself, and is the next one
/// when those before it are done. Where one depends on the end of another, only the first.
fn causes(row: &ScheduleRow, ticks: &Ticks, now: Timestamp) -> Vec<(FireCause, Option<Timestamp>)> {
    let most = match row.overlap {
        Overlap::Allow => TICKS,
        Overlap::Skip | Overlap::Queue | Overlap::CancelOld => 1,
    };
    let mut causes = Vec::new();
    let mut next = row.next_at;
    while let Some(next_at) = next.filter(|at| *at <= now && causes.len() < most) {
        let due = schedule::due(ticks, next_at, now, row.catch_up);
        let (missed, tick, then) = (due.missed, due.tick, due.next);
        let cause = FireCause::Tick { next_at, missed, tick, then };
        causes.push((cause, tick));
        next = then;
    }
    causes
}

/// Starts the first waiting tick of every schedule whose last run has ended.
fn deal_with_queued(shared: &Shared) -> Result<Looked, Arc<StoreError>> {
    let now = shared.now();
    let mut looked = Looked { moved: false, next_at: None };
    let mut queued = Vec::new();
    loop {
        let after = queued.last().map(|row: &ScheduleRow| row.name.as_str());
        let page = shared.store.queued_schedules(after, PAGE)?;
        let is_last = page.len() < PAGE;
        queued.extend(page);
        if is_last {
            break;
        }
    }
    let last_runs = queued.iter().filter_map(|row| row.last_run);
    let last_runs: Vec<_> = last_runs.map(|run| run.no()).collect();
    // Watched before it is looked whether they have ended, so that no end is missed in between.
    shared.keeper.watch(Chore::Schedules, last_runs.iter().copied());
    if queued.is_empty() {
        return Ok(looked);
    }
    let ended = shared.store.finished(&last_runs)?;
    let has_ended = |row: &ScheduleRow| match row.last_run {
        Some(run) => ended.iter().any(|(no, _)| *no == run.no()),
        None => true,
    };
    let alive = shared.peers.alive();
    let is_theirs = |row: &ScheduleRow| {
        let able = able(row, &alive);
        !able.is_empty() && shared.me.is_some_and(|me| !able.contains(&me))
    };
    let (theirs, ours): (Vec<_>, Vec<_>) =
        queued.iter().filter(|row| has_ended(row)).partition(|row| is_theirs(row));
    if !theirs.is_empty() {
        looked.come_back(now + GRACE_MAX);
    }
    let fires = ours.into_iter().filter_map(|row| {
        let tick = *row.queue.first()?;
        Some(Fire {
            name: row.name.clone(),
            revision: row.revision,
            cause: FireCause::Queued { tick },
            run: Some(Box::new(match tick.is_trigger {
                true => run_of_trigger(shared, row, tick.at, home(shared, row)),
                false => run_of_tick(shared, row, tick.at, home(shared, row)),
            })),
        })
    });
    looked.moved = fire_all(shared, fires.collect())?;
    Ok(looked)
}

/// Writes these, in batches with whatever else is written; whether there were any.
fn fire_all(shared: &Shared, fires: Vec<Fire>) -> Result<bool, Arc<StoreError>> {
    if fires.is_empty() {
        return Ok(false);
    }
    if shared.settings.breaks(Sabotage::TickWithoutRow) {
        return fire_apart(shared, fires);
    }
    let ticks: Vec<_> = fires.iter().map(|fire| (fire.name.clone(), fire.cause)).collect();
    let writes = fires.into_iter().map(|fire| Write::Schedule(Box::new(ScheduleWrite::Fire(fire))));
    let outcomes = keeper::write_all(shared, writes)?;
    for ((schedule, cause), outcome) in ticks.into_iter().zip(outcomes) {
        report(&schedule, cause, &outcome);
    }
    Ok(true)
}

/// The mistake that [`Sabotage::TickWithoutRow`] makes: a process that dies between the two writes has
/// taken the ticks and started nothing.
fn fire_apart(shared: &Shared, mut fires: Vec<Fire>) -> Result<bool, Arc<StoreError>> {
    let runs: Vec<_> = fires.iter_mut().map(|fire| fire.run.take()).collect();
    let fire = |fire| Write::Schedule(Box::new(ScheduleWrite::Fire(fire)));
    let outcomes = keeper::write_all(shared, fires.into_iter().map(fire))?;
    let is_taken =
        |outcome: &Outcome| matches!(outcome, Outcome::Scheduled(ScheduleOutcome::Fired(_)));
    let taken = runs.into_iter().zip(outcomes).filter(|(_, outcome)| is_taken(outcome));
    keeper::write_all(shared, taken.filter_map(|(run, _)| run).map(Write::Start))?;
    Ok(true)
}

fn report(schedule: &str, cause: FireCause, outcome: &Outcome) {
    let Outcome::Scheduled(ScheduleOutcome::Fired(fired)) = outcome else {
        return;
    };
    if let FireCause::Tick { missed: missed @ 1.., .. } = cause {
        tracing::warn!(schedule, missed, "ticks came too late and were missed");
    }
    match fired {
        Fired::Started(run) => tracing::debug!(schedule, run = %run.id, "started"),
        Fired::Skipped { by } => {
            tracing::info!(schedule, ?by, "a tick was skipped: a run has not ended");
        }
        Fired::Queued | Fired::Missed => {}
    }
}

/// The run of a tick. There is one, whoever starts it.
pub(crate) fn run_of_tick(
    shared: &Shared,
    row: &ScheduleRow,
    tick: Timestamp,
    home: Arc<str>,
) -> NewRun {
    let mut new = run_of(shared, row, home);
    new.key = Some(schedule::run_key(&row.name, tick));
    new
}

/// A run that somebody has asked for. Two at the same instant are two.
pub(crate) fn run_of_trigger(
    shared: &Shared,
    row: &ScheduleRow,
    tick: Timestamp,
    home: Arc<str>,
) -> NewRun {
    let mut new = run_of(shared, row, home);
    new.key = Some(format!("{}/{}", schedule::run_key(&row.name, tick), new.id));
    new
}

/// The pool of the runs of a schedule, as the keeper knows it.
fn home(shared: &Shared, row: &ScheduleRow) -> Arc<str> {
    let alive = shared.peers.alive();
    home_among(shared, &*shared.store, row, &alive)
}

/// The pool of the runs of a schedule: as the workflow's code says, here or elsewhere. If nobody has
/// it, that of the last run.
pub(crate) fn home_among(
    shared: &Shared,
    store: &dyn Store,
    row: &ScheduleRow,
    runners: &[RunnerRow],
) -> Arc<str> {
    let here = shared.registry.find(&row.workflow, row.version);
    let here = here.map(|code| code.options.pool.clone());
    let said = || peers::home(&row.workflow, row.version, runners);
    let last = || {
        let run = store.run(&Target::Id(row.last_run?)).ok()??;
        Some(run.pool)
    };
    let home = here.or_else(said).or_else(last);
    home.unwrap_or_else(|| Arc::from(DEFAULT_POOL))
}

fn run_of(shared: &Shared, row: &ScheduleRow, pool: Arc<str>) -> NewRun {
    let now = shared.now();
    let definition = shared.registry.find(&row.workflow, row.version);
    let options = definition.map(|definition| &definition.options);
    let mut tags = row.tags.clone();
    if let Some(options) = options {
        options.add_labels(&mut tags);
    }
    tags.retain(|(name, _)| name != schedule::TAG);
    tags.push((schedule::TAG.to_owned(), row.name.clone()));
    NewRun {
        id: shared.new_id(now, &row.workflow, row.version, &pool),
        workflow: row.workflow.clone(),
        version: row.version,
        key: None,
        pool,
        available_at: None,
        deadline_at: options.and_then(|options| options.deadline).map(|limit| now + limit),
        tags,
        // Of who triggers it, or asks for what was missed. A tick has nobody.
        trace: trace::current(),
        input: row.input.clone(),
        parent: None,
        claim: false,
    }
}

/// Tells those who keep time, here and elsewhere, that a schedule is no longer as they have seen it.
///
/// The engine that has the last run must know that ticks wait for its end. Each has looked when the
/// tick came; but not when a trigger did, or when a tick that waited became the last run.
pub(super) fn tell(shared: &Shared, write: &ScheduleWrite, outcome: &ScheduleOutcome) {
    let cause = match write {
        ScheduleWrite::Fire(fire) => Some(fire.cause),
        _ => None,
    };
    let is_changed = matches!(
        (outcome, cause),
        (ScheduleOutcome::Created | ScheduleOutcome::Replaced | ScheduleOutcome::Done, _)
            | (ScheduleOutcome::Fired(Fired::Queued), Some(FireCause::Trigger { .. }))
            | (ScheduleOutcome::Fired(Fired::Started(_)), Some(FireCause::Queued { .. }))
    );
    if is_changed {
        shared.keeper.poke(Chore::Schedules);
        shared.store.wake_others(shared.me, &[]);
    }
}

/// About how many bytes a write has.
pub(super) fn size_of_write(write: &ScheduleWrite) -> usize {
    match write {
        ScheduleWrite::Put(new) => 256 + new.input.len(),
        ScheduleWrite::Fire(fire) => 256 + fire.run.as_ref().map_or(0, |run| run.input.len()),
        _ => 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A schedule of every second whose next tick is at second 1.
    fn secondly(overlap: Overlap) -> (ScheduleRow, Ticks) {
        let spec = schedule::ScheduleSpec::Every(Duration::from_secs(1));
        let ticks = Ticks::new(&spec, at(0)).expect("an interval");
        let row = ScheduleRow {
            name: "secondly".to_owned(),
            revision: 1,
            workflow: "tick".into(),
            version: 1,
            input: Vec::new(),
            tags: Vec::new(),
            spec: String::new(),
            anchor: at(0),
            overlap,
            catch_up: Duration::from_secs(3_600),
            paused: false,
            next_at: Some(at(1_000)),
            queue: Vec::new(),
            last_tick: None,
            last_run: None,
            started: 0,
            skipped: 0,
            missed: 0,
            created_at: at(0),
            updated_at: at(0),
        };
        (row, ticks)
    }

    /// Schedules of a busy cluster fell behind for good: one tick was dealt with in each commit, and
    /// a commit took longer than their interval.
    #[test]
    fn ticks_that_are_owed_are_dealt_with_together_where_runs_may_overlap() {
        let (row, ticks) = secondly(Overlap::Allow);
        let owed = causes(&row, &ticks, at(3_500));
        let times: Vec<_> = owed.iter().map(|(_, tick)| *tick).collect();
        assert_eq!(times, [1_000, 2_000, 3_000].map(|ms| Some(at(ms))));
        // Each takes up where the one before it has left off.
        let mut next = row.next_at;
        for (cause, _) in owed {
            let FireCause::Tick { next_at, then, .. } = cause else {
                unreachable!("they are ticks");
            };
            assert_eq!(Some(next_at), next);
            next = then;
        }
        assert_eq!(next, Some(at(4_000)));
        assert_eq!(causes(&row, &ticks, at(3_600_000)).len(), TICKS);
        assert!(causes(&row, &ticks, at(999)).is_empty());
        let (row, ticks) = secondly(Overlap::Skip);
        assert_eq!(causes(&row, &ticks, at(3_500)).len(), 1);
    }

    #[test]
    fn every_schedule_has_one_runner_that_is_first() {
        let runners: Vec<Uuid> = (1..=3).map(Uuid::from_u128).collect();
        let mut firsts = Vec::new();
        for n in 0..30 {
            let name = format!("schedule {n}");
            let first = first_of(&name, runners.iter().copied());
            assert_eq!(first, first_of(&name, runners.iter().rev().copied()));
            firsts.extend(first);
        }
        assert!(runners.iter().all(|runner| firsts.contains(runner)));
        assert_eq!(first_of("alone", std::iter::empty()), None);
    }
}
