//! The chore that deals with the ticks of schedules.
//!
//! Every engine tries every due tick: the write that starts its run is refused for all but the
//! first. So nobody has to own a schedule, and none waits for an owner that has died.

use std::sync::Arc;

use super::{
    keeper::{self, Chore},
    shared::Shared,
};
use crate::{
    commit::{
        Fire, FireCause, Fired, NewRun, Outcome, ScheduleOutcome, ScheduleRow, ScheduleWrite, Write,
    },
    schedule::{self, Ticks},
    store::StoreError,
    time::{Timestamp, minutes},
    workflow::DEFAULT_POOL,
};

/// How many schedules are read at a time.
const PAGE: usize = 500;

/// Deals with all ticks that are due, and with those that have waited for the end of a run.
pub(super) fn deal_with_ticks(
    shared: &Shared,
    _now: Timestamp,
) -> Result<Option<Timestamp>, Arc<StoreError>> {
    loop {
        let due = deal_with_due(shared)?;
        let moved = due.moved | deal_with_queued(shared)?;
        if !moved || shared.keeper.is_closed() {
            return Ok(due.next_at);
        }
    }
}

/// How far one look at the due schedules has come.
struct Looked {
    /// Whether anything was done, so that there may be more to do.
    moved: bool,
    next_at: Option<Timestamp>,
}

fn deal_with_due(shared: &Shared) -> Result<Looked, Arc<StoreError>> {
    let now = shared.now();
    let mut looked = Looked {
        moved: false,
        next_at: None,
    };
    let mut after: Option<(Timestamp, String)> = None;
    loop {
        let place = after.as_ref().map(|(at, name)| (*at, name.as_str()));
        let page = shared.store.due_schedules(now, place, PAGE)?;
        let fires = page
            .rows
            .iter()
            .filter_map(|row| match tick(shared, row, now) {
                Ok(fire) => fire,
                Err(problem) => {
                    tracing::error!(schedule = row.name, problem, "a schedule cannot be read");
                    // Another version of the program may have written it, and may be about to come.
                    looked.next_at = Some(now + minutes(1));
                    None
                }
            });
        looked.moved |= fire_all(shared, fires.collect())?;
        let is_last = page.rows.len() < PAGE;
        after = page
            .rows
            .into_iter()
            .next_back()
            .and_then(|row| Some((row.next_at?, row.name)));
        if is_last {
            looked.next_at = [looked.next_at, page.next_at].into_iter().flatten().min();
            return Ok(looked);
        }
    }
}

/// What is to be done about the next tick of a schedule; or what is wrong with the schedule.
fn tick(shared: &Shared, row: &ScheduleRow, now: Timestamp) -> Result<Option<Fire>, String> {
    let Some(next_at) = row.next_at else {
        return Ok(None);
    };
    let ticks = Ticks::from_text(&row.spec, row.anchor)?;
    let due = schedule::due(&ticks, next_at, now, row.catch_up);
    let (missed, then) = (due.missed, due.next);
    let cause = FireCause::Tick {
        next_at,
        missed,
        tick: due.tick,
        then,
    };
    Ok(Some(Fire {
        name: row.name.clone(),
        revision: row.revision,
        cause,
        run: due
            .tick
            .map(|tick| Box::new(run_of_tick(shared, row, tick))),
    }))
}

/// Starts the first waiting tick of every schedule whose last run has ended; whether there was one.
fn deal_with_queued(shared: &Shared) -> Result<bool, Arc<StoreError>> {
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
    shared
        .keeper
        .watch(Chore::Schedules, last_runs.iter().copied());
    if queued.is_empty() {
        return Ok(false);
    }
    let ended = shared.store.finished(&last_runs)?;
    let has_ended = |row: &ScheduleRow| match row.last_run {
        Some(run) => ended.iter().any(|(no, _)| *no == run.no()),
        None => true,
    };
    let fires = queued
        .iter()
        .filter(|row| has_ended(row))
        .filter_map(|row| {
            let tick = *row.queue.first()?;
            Some(Fire {
                name: row.name.clone(),
                revision: row.revision,
                cause: FireCause::Queued { tick },
                run: Some(Box::new(match tick.is_trigger {
                    true => run_of_trigger(shared, row, tick.at),
                    false => run_of_tick(shared, row, tick.at),
                })),
            })
        });
    fire_all(shared, fires.collect())
}

/// Writes these, in batches with whatever else is written; whether there were any.
fn fire_all(shared: &Shared, fires: Vec<Fire>) -> Result<bool, Arc<StoreError>> {
    if fires.is_empty() {
        return Ok(false);
    }
    let ticks: Vec<_> = fires
        .iter()
        .map(|fire| (fire.name.clone(), fire.cause))
        .collect();
    let writes = fires
        .into_iter()
        .map(|fire| Write::Schedule(Box::new(ScheduleWrite::Fire(fire))));
    let outcomes = keeper::write_all(shared, writes)?;
    for ((schedule, cause), outcome) in ticks.into_iter().zip(outcomes) {
        report(&schedule, cause, &outcome);
    }
    Ok(true)
}

fn report(schedule: &str, cause: FireCause, outcome: &Outcome) {
    if let FireCause::Tick { missed, .. } = cause
        && missed > 0
        && matches!(outcome, Outcome::Scheduled(ScheduleOutcome::Fired(_)))
    {
        tracing::warn!(schedule, missed, "ticks came too late and were missed");
    }
    if let Outcome::Scheduled(ScheduleOutcome::Fired(fired)) = outcome {
        match fired {
            Fired::Started(run) => tracing::debug!(schedule, run = %run.id, "started"),
            Fired::Skipped { by } => {
                tracing::info!(schedule, ?by, "a tick was skipped: a run has not ended");
            }
            Fired::Queued | Fired::Missed => {}
        }
    }
}

/// The run of a tick. There is one, whoever starts it.
pub(crate) fn run_of_tick(shared: &Shared, row: &ScheduleRow, tick: Timestamp) -> NewRun {
    let mut new = run_of(shared, row);
    new.key = Some(schedule::run_key(&row.name, tick));
    new
}

/// A run that somebody has asked for. Two at the same instant are two.
pub(crate) fn run_of_trigger(shared: &Shared, row: &ScheduleRow, tick: Timestamp) -> NewRun {
    let mut new = run_of(shared, row);
    new.key = Some(format!("{}/{}", schedule::run_key(&row.name, tick), new.id));
    new
}

fn run_of(shared: &Shared, row: &ScheduleRow) -> NewRun {
    let now = shared.now();
    let definition = shared.registry.find(&row.workflow, row.version);
    let options = definition.map(|definition| &definition.options);
    let mut tags = row.tags.clone();
    for (name, value) in options.map_or(&[][..], |options| &options.labels) {
        if !tags.iter().any(|(other, _)| other == name) {
            tags.push((name.clone(), value.clone()));
        }
    }
    tags.retain(|(name, _)| name != schedule::TAG);
    tags.push((schedule::TAG.to_owned(), row.name.clone()));
    NewRun {
        id: shared.ids.next(now),
        workflow: row.workflow.clone(),
        version: row.version,
        key: None,
        pool: options.map_or_else(|| Arc::from(DEFAULT_POOL), |options| options.pool.clone()),
        available_at: None,
        deadline_at: options
            .and_then(|options| options.deadline)
            .map(|limit| now + limit),
        tags,
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
        (
            ScheduleOutcome::Created | ScheduleOutcome::Replaced | ScheduleOutcome::Done,
            _
        ) | (
            ScheduleOutcome::Fired(Fired::Queued),
            Some(FireCause::Trigger { .. })
        ) | (
            ScheduleOutcome::Fired(Fired::Started(_)),
            Some(FireCause::Queued { .. })
        )
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
