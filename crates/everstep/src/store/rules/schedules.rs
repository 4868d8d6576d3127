//! What is decided about schedules, over the few things that a store must be able to do.
//!
//! All of it happens inside of the transaction of a batch, after its commits. So whether the last
//! run of a schedule has ended is known, and a tick is dealt with once however many try: whoever
//! comes second finds another `next_at`.

use super::{runs, tables};
use crate::{
    run_id::RunId,
    schedule::{Overlap, QUEUE_MAX},
    store::{
        Fire, FireCause, Fired, NewRun, NewSchedule, Outcome, QueuedTick, ScheduleOutcome,
        ScheduleRow, ScheduleWrite, Target, rows::ScheduleTables,
    },
    time::Timestamp,
};

/// Does what is asked, or says why not.
pub(crate) fn apply<T: ScheduleTables>(
    tables: &mut T,
    write: &ScheduleWrite,
) -> Result<ScheduleOutcome, T::Error> {
    let now = tables.now();
    let name = match write {
        ScheduleWrite::Put(new) => &new.name,
        ScheduleWrite::Fire(fire) => &fire.name,
        ScheduleWrite::Pause { name }
        | ScheduleWrite::Resume { name, .. }
        | ScheduleWrite::Delete { name } => name,
    };
    let row = tables.schedule(name)?;
    let (outcome, row) = match (write, row) {
        (ScheduleWrite::Put(new), row) => put(new, row, now),
        (_, None) => return Ok(ScheduleOutcome::Unknown),
        (ScheduleWrite::Delete { name }, _) => {
            tables.delete_schedule(name)?;
            return Ok(ScheduleOutcome::Done);
        }
        (ScheduleWrite::Fire(fire), Some(row)) => return deal_with(tables, fire, row),
        (ScheduleWrite::Pause { .. }, Some(row)) => pause(row, now),
        (ScheduleWrite::Resume { revision, next_at, .. }, Some(row)) => {
            resume(row, *revision, *next_at, now)
        }
    };
    if let Some(row) = row {
        tables.write_schedule(&row)?;
    }
    Ok(outcome)
}

/// The row to be written, if there is anything to write.
type Change = (ScheduleOutcome, Option<ScheduleRow>);

fn put(new: &NewSchedule, old: Option<ScheduleRow>, now: Timestamp) -> Change {
    let Some(old) = old else {
        return (ScheduleOutcome::Created, Some(made(new, now)));
    };
    let mut row = ScheduleRow {
        workflow: new.workflow.clone(),
        version: new.version,
        input: new.input.clone(),
        tags: new.tags.clone(),
        overlap: new.overlap,
        catch_up: new.catch_up,
        ..old.clone()
    };
    if old.spec != new.spec {
        // Ticks that the old one still owes are those of another schedule.
        row.spec.clone_from(&new.spec);
        (row.anchor, row.next_at) = (new.anchor, new.first_at);
    }
    if row == old {
        return (ScheduleOutcome::Unchanged, None);
    }
    changed(&mut row, now);
    (ScheduleOutcome::Replaced, Some(row))
}

fn made(new: &NewSchedule, now: Timestamp) -> ScheduleRow {
    ScheduleRow {
        name: new.name.clone(),
        revision: 1,
        workflow: new.workflow.clone(),
        version: new.version,
        input: new.input.clone(),
        tags: new.tags.clone(),
        spec: new.spec.clone(),
        anchor: new.anchor,
        overlap: new.overlap,
        catch_up: new.catch_up,
        paused: new.paused,
        next_at: new.first_at,
        queue: Vec::new(),
        last_tick: None,
        last_run: None,
        started: 0,
        skipped: 0,
        missed: 0,
        created_at: now,
        updated_at: now,
    }
}

fn changed(row: &mut ScheduleRow, now: Timestamp) {
    row.revision += 1;
    row.updated_at = now;
}

fn pause(mut row: ScheduleRow, now: Timestamp) -> Change {
    if row.paused {
        return (ScheduleOutcome::Already, None);
    }
    row.paused = true;
    changed(&mut row, now);
    (ScheduleOutcome::Done, Some(row))
}

fn resume(
    mut row: ScheduleRow,
    revision: u64,
    next_at: Option<Timestamp>,
    now: Timestamp,
) -> Change {
    if !row.paused {
        return (ScheduleOutcome::Already, None);
    }
    if row.revision != revision {
        return (ScheduleOutcome::Stale, None);
    }
    (row.paused, row.next_at) = (false, next_at);
    changed(&mut row, now);
    (ScheduleOutcome::Done, Some(row))
}

fn deal_with<T: ScheduleTables>(
    tables: &mut T,
    fire: &Fire,
    mut row: ScheduleRow,
) -> Result<ScheduleOutcome, T::Error> {
    if row.revision != fire.revision {
        return Ok(ScheduleOutcome::Stale);
    }
    let is_live = match row.last_run {
        Some(run) => {
            let head = tables::find(tables, &Target::Id(run))?;
            head.is_some_and(|head| !head.status.is_terminal())
        }
        None => false,
    };
    let Some(tick) = take(&mut row, fire.cause, is_live) else {
        return Ok(ScheduleOutcome::Stale);
    };
    let blocker = row.last_run.filter(|_| is_live);
    let fired = match (tick, &fire.run) {
        (Some(tick), Some(new)) => match decide(&row, fire.cause, is_live) {
            Decision::Start { cancel } => {
                let cancel = blocker.filter(|_| cancel);
                match start(tables, &mut row, tick, new, cancel)? {
                    Some(fired) => fired,
                    None => return Ok(ScheduleOutcome::Stale),
                }
            }
            Decision::Wait => {
                row.queue.push(QueuedTick {
                    at: tick,
                    is_trigger: matches!(fire.cause, FireCause::Trigger { .. }),
                });
                Fired::Queued
            }
            Decision::Skip => {
                row.skipped += 1;
                Fired::Skipped { by: blocker }
            }
        },
        _ => Fired::Missed,
    };
    tables.write_schedule(&row)?;
    Ok(ScheduleOutcome::Fired(fired))
}

/// Takes the tick from the row, if it is still there to be taken.
fn take(row: &mut ScheduleRow, cause: FireCause, is_live: bool) -> Option<Option<Timestamp>> {
    match cause {
        FireCause::Tick { next_at, missed, tick, then } => {
            if row.paused || row.next_at != Some(next_at) {
                return None;
            }
            row.next_at = then;
            row.missed += missed;
            Some(tick)
        }
        FireCause::Queued { tick } => {
            if row.paused || is_live || row.queue.first() != Some(&tick) {
                return None;
            }
            row.queue.remove(0);
            Some(Some(tick.at))
        }
        FireCause::Trigger { tick } => Some(Some(tick)),
    }
}

/// What becomes of a tick.
enum Decision {
    Start { cancel: bool },
    Wait,
    Skip,
}

fn decide(row: &ScheduleRow, cause: FireCause, is_live: bool) -> Decision {
    let its_turn = matches!(cause, FireCause::Queued { .. }) || row.queue.is_empty();
    match row.overlap {
        Overlap::Allow => Decision::Start { cancel: false },
        Overlap::CancelOld => Decision::Start { cancel: true },
        Overlap::Skip if is_live => Decision::Skip,
        Overlap::Skip => Decision::Start { cancel: false },
        Overlap::Queue if !is_live && its_turn => Decision::Start { cancel: false },
        Overlap::Queue if row.queue.len() < QUEUE_MAX => Decision::Wait,
        Overlap::Queue => Decision::Skip,
    }
}

/// Starts the run of a tick; `None` if its number is taken, and then nothing was changed.
fn start<T: ScheduleTables>(
    tables: &mut T,
    row: &mut ScheduleRow,
    tick: Timestamp,
    new: &NewRun,
    cancel: Option<RunId>,
) -> Result<Option<Fired>, T::Error> {
    let Outcome::Started(run) = runs::start(tables, new)? else {
        return Ok(None);
    };
    // Attached, if somebody has asked for the run of this very tick before.
    row.started += u64::from(!run.attached);
    (row.last_tick, row.last_run) = (Some(tick), Some(run.id));
    tables::notice_start(tables, &run, new.clone());
    if let Some(old) = cancel.filter(|old| *old != run.id) {
        tables::cancel(tables, old.no(), false)?;
    }
    Ok(Some(Fired::Started(run)))
}
