//! What a store promises about schedules.

use super::*;
use everstep::{Overlap, testing::internal::SCHEDULE_QUEUE_MAX as QUEUE_MAX};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    every_field_of_a_schedule_is_kept,
    a_schedule_put_again_is_unchanged_and_keeps_its_next_tick,
    a_schedule_with_other_ticks_begins_anew,
    a_tick_starts_one_run_and_moves_on,
    a_tick_that_was_dealt_with_is_stale,
    two_fires_of_one_tick_in_one_batch_start_one_run,
    a_fire_for_another_revision_is_stale,
    missed_ticks_are_counted_without_a_run,
    a_tick_whose_run_is_there_attaches_to_it,
    a_tick_with_a_used_number_changes_nothing,
    skipping_leaves_the_live_run_alone,
    a_run_that_ends_in_the_batch_of_a_tick_has_ended,
    allowing_starts_beside_the_live_run,
    cancelling_the_old_run_is_part_of_the_tick,
    queued_ticks_start_in_order_when_the_last_run_has_ended,
    a_queue_has_a_bound,
    a_paused_schedule_has_no_ticks_but_can_be_triggered,
    a_resumed_schedule_goes_on_with_the_given_tick,
    a_deleted_schedule_is_gone_and_its_runs_stay,
    due_schedules_are_paged_in_order,
    schedules_are_listed_by_name,
    schedules_need_no_fence,
];

pub(super) fn new_schedule(name: &str, overlap: Overlap) -> NewSchedule {
    NewSchedule {
        name: name.to_owned(),
        workflow: "checkout".into(),
        version: 3,
        input: b"input".to_vec(),
        tags: vec![("colour".to_owned(), "blue".to_owned())],
        spec: "every 10".to_owned(),
        anchor: at(0),
        first_at: Some(at(10)),
        overlap,
        catch_up: Duration::from_secs(60),
        paused: false,
    }
}

fn write(world: &World, ms: i64, write: ScheduleWrite) -> ScheduleOutcome {
    match world.one(ms, Write::Schedule(Box::new(write))) {
        Outcome::Scheduled(outcome) => outcome,
        other => panic!("a schedule was answered with {other:?}"),
    }
}

fn put(world: &World, new: NewSchedule) -> ScheduleOutcome {
    write(world, 0, ScheduleWrite::Put(new))
}

/// Makes the schedule `s`.
fn make(world: &World, overlap: Overlap) {
    let made = put(world, new_schedule("s", overlap));
    assert_eq!(made, ScheduleOutcome::Created);
}

fn row(world: &World, name: &str) -> ScheduleRow {
    let row = world.store.schedule(name).expect("schedule");
    row.expect("the schedule exists")
}

fn run_of(world: &World, tick: i64) -> Box<NewRun> {
    Box::new(NewRun { key: Some(format!("tick-{tick}")), claim: false, ..world.new_run() })
}

/// The tick at `ms` of the schedule `s`, ten before the one after it.
fn fire_tick(world: &World, ms: i64) -> Fire {
    Fire {
        name: "s".to_owned(),
        revision: row(world, "s").revision,
        cause: FireCause::Tick {
            next_at: at(ms),
            missed: 0,
            tick: Some(at(ms)),
            then: Some(at(ms + 10)),
        },
        run: Some(run_of(world, ms)),
    }
}

fn fire(world: &World, fire: Fire) -> ScheduleOutcome {
    write(world, 5, ScheduleWrite::Fire(fire))
}

fn tick(world: &World, ms: i64) -> Fired {
    match fire(world, fire_tick(world, ms)) {
        ScheduleOutcome::Fired(fired) => fired,
        other => panic!("a tick was answered with {other:?}"),
    }
}

fn started(world: &World, ms: i64) -> RunId {
    match tick(world, ms) {
        Fired::Started(run) => run.id,
        other => panic!("a tick was answered with {other:?}"),
    }
}

/// Ends a run that was started by a tick.
fn end(world: &World, id: RunId) {
    world.accept(Commit { patch: finish(RunStatus::Completed), ..commit(id) });
}

fn waiting(ms: i64) -> QueuedTick {
    QueuedTick { at: at(ms), is_trigger: false }
}

fn queued(world: &World, ms: i64) -> Fire {
    Fire { cause: FireCause::Queued { tick: waiting(ms) }, ..fire_tick(world, ms) }
}

fn every_field_of_a_schedule_is_kept(world: &World) {
    make(world, Overlap::CancelOld);
    let expected = ScheduleRow {
        name: "s".to_owned(),
        revision: 1,
        workflow: "checkout".into(),
        version: 3,
        input: b"input".to_vec(),
        tags: vec![("colour".to_owned(), "blue".to_owned())],
        spec: "every 10".to_owned(),
        anchor: at(0),
        overlap: Overlap::CancelOld,
        catch_up: Duration::from_secs(60),
        paused: false,
        next_at: Some(at(10)),
        queue: Vec::new(),
        last_tick: None,
        last_run: None,
        started: 0,
        skipped: 0,
        missed: 0,
        created_at: at(0),
        updated_at: at(0),
    };
    assert_eq!(row(world, "s"), expected);
    assert_eq!(world.store.schedule("other").expect("schedule"), None);
}

fn a_schedule_put_again_is_unchanged_and_keeps_its_next_tick(world: &World) {
    make(world, Overlap::Skip);
    started(world, 10);
    let before = row(world, "s");
    let again = NewSchedule {
        anchor: at(77),
        first_at: Some(at(87)),
        paused: true,
        ..new_schedule("s", Overlap::Skip)
    };
    assert_eq!(put(world, again.clone()), ScheduleOutcome::Unchanged);
    assert_eq!(row(world, "s"), before);
    let other_input = NewSchedule { input: b"other".to_vec(), ..again };
    assert_eq!(put(world, other_input), ScheduleOutcome::Replaced);
    let after = row(world, "s");
    assert_eq!((after.revision, &*after.input), (2, &b"other"[..]));
    assert_eq!((after.next_at, after.anchor), (before.next_at, at(0)));
    assert_eq!((after.started, after.paused), (1, false));
}

fn a_schedule_with_other_ticks_begins_anew(world: &World) {
    make(world, Overlap::Skip);
    let other = NewSchedule {
        spec: "every 100".to_owned(),
        anchor: at(7),
        first_at: Some(at(107)),
        ..new_schedule("s", Overlap::Skip)
    };
    assert_eq!(put(world, other), ScheduleOutcome::Replaced);
    let after = row(world, "s");
    assert_eq!((after.next_at, after.anchor), (Some(at(107)), at(7)));
    assert_eq!(after.spec, "every 100");
}

fn a_tick_starts_one_run_and_moves_on(world: &World) {
    make(world, Overlap::Skip);
    let id = started(world, 10);
    let run = world.row(id);
    assert_eq!((run.status, run.available_at), (RunStatus::Pending, Some(AT_ONCE)));
    assert_eq!(run.key.as_deref(), Some("tick-10"));
    assert_eq!(world.due(5), [id]);
    let after = row(world, "s");
    assert_eq!((after.next_at, after.revision), (Some(at(20)), 1));
    assert_eq!((after.last_tick, after.last_run), (Some(at(10)), Some(id)));
    assert_eq!((after.started, after.skipped, after.missed), (1, 0, 0));
}

fn a_tick_that_was_dealt_with_is_stale(world: &World) {
    make(world, Overlap::Allow);
    let again = fire_tick(world, 10);
    started(world, 10);
    let before = row(world, "s");
    let late = Fire { run: Some(run_of(world, 999)), ..again };
    assert_eq!(fire(world, late), ScheduleOutcome::Stale);
    assert_eq!(row(world, "s"), before);
    assert_eq!(world.due(100).len(), 1);
    let unknown = Fire { name: "other".to_owned(), ..fire_tick(world, 20) };
    assert_eq!(fire(world, unknown), ScheduleOutcome::Unknown);
}

fn two_fires_of_one_tick_in_one_batch_start_one_run(world: &World) {
    make(world, Overlap::Allow);
    let fires = [fire_tick(world, 10), fire_tick(world, 10)];
    let writes = fires.map(|fire| Write::Schedule(Box::new(ScheduleWrite::Fire(fire))));
    let outcomes = world.batch(5, writes.into());
    assert!(matches!(outcomes[0], Outcome::Scheduled(ScheduleOutcome::Fired(Fired::Started(_)))));
    assert_eq!(outcomes[1], Outcome::Scheduled(ScheduleOutcome::Stale));
    assert_eq!(row(world, "s").started, 1);
}

fn a_fire_for_another_revision_is_stale(world: &World) {
    make(world, Overlap::Allow);
    let old = fire_tick(world, 10);
    let other = NewSchedule { version: 4, ..new_schedule("s", Overlap::Allow) };
    assert_eq!(put(world, other), ScheduleOutcome::Replaced);
    assert_eq!(fire(world, old), ScheduleOutcome::Stale);
    assert!(world.due(100).is_empty());
    started(world, 10);
}

fn missed_ticks_are_counted_without_a_run(world: &World) {
    make(world, Overlap::Allow);
    let missed = Fire {
        cause: FireCause::Tick { next_at: at(10), missed: 7, tick: None, then: Some(at(80)) },
        run: None,
        ..fire_tick(world, 10)
    };
    let outcome = fire(world, missed);
    assert_eq!(outcome, ScheduleOutcome::Fired(Fired::Missed));
    let after = row(world, "s");
    assert_eq!((after.missed, after.started), (7, 0));
    assert_eq!(after.next_at, Some(at(80)));
    assert!(world.due(100).is_empty());
}

fn a_tick_whose_run_is_there_attaches_to_it(world: &World) {
    make(world, Overlap::Allow);
    let there = world.start(*run_of(world, 10)).id;
    assert_eq!(started(world, 10), there);
    let after = row(world, "s");
    assert_eq!((after.started, after.last_run), (0, Some(there)));
    assert_eq!(after.next_at, Some(at(20)));
}

fn a_tick_with_a_used_number_changes_nothing(world: &World) {
    make(world, Overlap::CancelOld);
    let old = started(world, 10);
    let id = world.running();
    // The same number, another id.
    let twin = uuid::Uuid::from_u128(id.as_uuid().as_u128() ^ 1);
    let twin = RunId::from_uuid(twin).expect("a run id");
    assert_eq!(twin.no(), id.no());
    let before = row(world, "s");
    let mut taken = fire_tick(world, 20);
    if let Some(run) = &mut taken.run {
        run.id = twin;
    }
    assert_eq!(fire(world, taken), ScheduleOutcome::Stale);
    assert_eq!(row(world, "s"), before);
    assert_eq!(world.row(old).cancel_requested, None);
}

fn skipping_leaves_the_live_run_alone(world: &World) {
    make(world, Overlap::Skip);
    let old = started(world, 10);
    assert_eq!(tick(world, 20), Fired::Skipped { by: Some(old) });
    let after = row(world, "s");
    assert_eq!((after.skipped, after.last_run), (1, Some(old)));
    assert_eq!((after.next_at, after.last_tick), (Some(at(30)), Some(at(10))));
    assert_eq!(world.row(old).cancel_requested, None);
    end(world, old);
    assert_ne!(started(world, 30), old);
}

fn a_run_that_ends_in_the_batch_of_a_tick_has_ended(world: &World) {
    make(world, Overlap::Skip);
    let old = started(world, 10);
    let last = Commit { patch: finish(RunStatus::Completed), ..commit(old) };
    let writes = vec![
        Write::Schedule(Box::new(ScheduleWrite::Fire(fire_tick(world, 20)))),
        Write::Commit(Box::new(last)),
    ];
    let outcomes = world.batch(5, writes);
    assert!(matches!(outcomes[0], Outcome::Scheduled(ScheduleOutcome::Fired(Fired::Started(_)))));
}

fn allowing_starts_beside_the_live_run(world: &World) {
    make(world, Overlap::Allow);
    let ids = [started(world, 10), started(world, 20), started(world, 30)];
    assert_eq!(world.due(5), ids);
    assert_eq!(row(world, "s").started, 3);
}

fn cancelling_the_old_run_is_part_of_the_tick(world: &World) {
    make(world, Overlap::CancelOld);
    let old = started(world, 10);
    let applied = world.store.commit(&Batch {
        fence: Some(world.fence),
        now: at(5),
        writes: vec![Write::Schedule(Box::new(ScheduleWrite::Fire(fire_tick(world, 20))))],
    });
    let new = row(world, "s").last_run.expect("a run");
    let rollback = false;
    let cancel = Notice::Control { run: old, control: Control::Cancel { rollback } };
    // Its owner is told, and so is the one of the new run.
    let due = Notice::Due { run: new, at: AT_ONCE };
    assert_eq!(applied.expect("commit").notices, [due, cancel]);
    let request = Some(CancelRequest { rollback });
    assert_eq!(world.row(old).cancel_requested, request);
    assert_eq!(world.row(new).cancel_requested, None);
    end_cancelled(world, old);
    end(world, new);
    // One that has ended is not cancelled.
    started(world, 30);
    assert_eq!(world.row(new).cancel_requested, None);
}

fn end_cancelled(world: &World, id: RunId) {
    world.accept(Commit { patch: finish(RunStatus::Cancelled), ..commit(id) });
}

fn queued_ticks_start_in_order_when_the_last_run_has_ended(world: &World) {
    make(world, Overlap::Queue);
    let old = started(world, 10);
    assert_eq!(tick(world, 20), Fired::Queued);
    assert_eq!(tick(world, 30), Fired::Queued);
    let names = |world: &World| {
        let rows = world.store.queued_schedules(None, 10).expect("queued");
        rows.into_iter().map(|row| row.queue).collect::<Vec<_>>()
    };
    assert_eq!(names(world), [vec![waiting(20), waiting(30)]]);
    // Not while it is live, and not out of turn.
    assert_eq!(fire(world, queued(world, 20)), ScheduleOutcome::Stale);
    end(world, old);
    assert_eq!(fire(world, queued(world, 30)), ScheduleOutcome::Stale);
    // A tick that comes now is behind those that wait.
    assert_eq!(tick(world, 40), Fired::Queued);
    let second = fire(world, queued(world, 20));
    let ScheduleOutcome::Fired(Fired::Started(run)) = second else {
        panic!("a waiting tick was answered with {second:?}");
    };
    assert_eq!(fire(world, queued(world, 20)), ScheduleOutcome::Stale);
    end(world, run.id);
    assert_eq!(names(world), [vec![waiting(30), waiting(40)]]);
    assert_eq!(row(world, "s").last_tick, Some(at(20)));
    assert_eq!((row(world, "s").started, row(world, "s").skipped), (2, 0));
}

fn a_queue_has_a_bound(world: &World) {
    make(world, Overlap::Queue);
    let old = started(world, 10);
    for n in 0..QUEUE_MAX as i64 {
        assert_eq!(tick(world, 20 + 10 * n), Fired::Queued);
    }
    let next = 20 + 10 * QUEUE_MAX as i64;
    assert_eq!(tick(world, next), Fired::Skipped { by: Some(old) });
    let after = row(world, "s");
    assert_eq!((after.queue.len(), after.skipped), (QUEUE_MAX, 1));
}

fn a_paused_schedule_has_no_ticks_but_can_be_triggered(world: &World) {
    make(world, Overlap::Queue);
    let name = || "s".to_owned();
    let pause = || ScheduleWrite::Pause { name: name() };
    assert_eq!(write(world, 1, pause()), ScheduleOutcome::Done);
    assert_eq!(write(world, 1, pause()), ScheduleOutcome::Already);
    assert_eq!(fire(world, fire_tick(world, 10)), ScheduleOutcome::Stale);
    let due = world.store.due_schedules(at(1_000), None, 10).expect("due");
    assert_eq!(due, DueSchedules::default());
    let trigger = |ms| Fire { cause: FireCause::Trigger { tick: at(ms) }, ..fire_tick(world, ms) };
    let first = fire(world, trigger(3));
    let ScheduleOutcome::Fired(Fired::Started(run)) = first else {
        panic!("a trigger was answered with {first:?}");
    };
    let second = fire(world, trigger(4));
    assert_eq!(second, ScheduleOutcome::Fired(Fired::Queued));
    assert_eq!(row(world, "s").last_run, Some(run.id));
    let tick = QueuedTick { at: at(4), is_trigger: true };
    assert_eq!(row(world, "s").queue, [tick]);
    end(world, run.id);
    // What waits goes on waiting.
    let its_turn = Fire { cause: FireCause::Queued { tick }, ..fire_tick(world, 4) };
    assert_eq!(fire(world, its_turn), ScheduleOutcome::Stale);
    let listed = world.store.queued_schedules(None, 10).expect("queued");
    assert_eq!(listed, []);
}

fn a_resumed_schedule_goes_on_with_the_given_tick(world: &World) {
    make(world, Overlap::Skip);
    let name = || "s".to_owned();
    let resume =
        |revision| ScheduleWrite::Resume { name: name(), revision, next_at: Some(at(500)) };
    assert_eq!(write(world, 1, resume(1)), ScheduleOutcome::Already);
    write(world, 1, ScheduleWrite::Pause { name: name() });
    assert_eq!(write(world, 2, resume(1)), ScheduleOutcome::Stale);
    assert_eq!(write(world, 2, resume(2)), ScheduleOutcome::Done);
    let after = row(world, "s");
    assert_eq!((after.paused, after.next_at), (false, Some(at(500))));
    assert_eq!((after.revision, after.updated_at), (3, at(2)));
}

fn a_deleted_schedule_is_gone_and_its_runs_stay(world: &World) {
    make(world, Overlap::Skip);
    let id = started(world, 10);
    let old = fire_tick(world, 20);
    let name = "s".to_owned();
    let delete = ScheduleWrite::Delete { name };
    assert_eq!(write(world, 1, delete.clone()), ScheduleOutcome::Done);
    assert_eq!(write(world, 1, delete), ScheduleOutcome::Unknown);
    assert_eq!(world.store.schedule("s").expect("schedule"), None);
    assert_eq!(fire(world, old), ScheduleOutcome::Unknown);
    assert_eq!(world.row(id).status, RunStatus::Pending);
}

fn due_schedules_are_paged_in_order(world: &World) {
    for (name, first_at) in
        [("d", Some(5)), ("b", Some(10)), ("a", Some(10)), ("c", Some(20)), ("e", None)]
    {
        let first_at = first_at.map(at);
        put(world, NewSchedule { first_at, ..new_schedule(name, Overlap::Skip) });
    }
    let names = |now: i64, after: Option<(Timestamp, &str)>, limit| {
        let due = world.store.due_schedules(at(now), after, limit);
        let due = due.expect("due_schedules");
        let names = due.rows.into_iter().map(|row| row.name);
        (names.collect::<Vec<_>>().join(""), due.next_at)
    };
    let text = |names: &str, next: Option<i64>| (names.to_owned(), next.map(at));
    assert_eq!(names(4, None, 9), text("", Some(5)));
    assert_eq!(names(10, None, 9), text("dab", Some(20)));
    assert_eq!(names(10, None, 2), text("da", Some(20)));
    assert_eq!(names(10, Some((at(10), "a")), 9), text("b", Some(20)));
    assert_eq!(names(20, Some((at(10), "b")), 9), text("c", None));
}

fn schedules_are_listed_by_name(world: &World) {
    for name in ["b", "ä", "a", "B"] {
        put(world, new_schedule(name, Overlap::Skip));
    }
    let names = |after, limit| {
        let rows = world.store.schedules(after, limit).expect("schedules");
        let names = rows.into_iter().map(|row| row.name);
        names.collect::<Vec<_>>().join("")
    };
    assert_eq!(names(None, 10), "Babä");
    assert_eq!(names(None, 2), "Ba");
    assert_eq!(names(Some("a"), 10), "bä");
}

fn schedules_need_no_fence(world: &World) {
    let put = ScheduleWrite::Put(new_schedule("s", Overlap::Skip));
    let batch =
        |write| Batch { fence: None, now: at(0), writes: vec![Write::Schedule(Box::new(write))] };
    let outcomes = world.store.commit(&batch(put)).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Scheduled(ScheduleOutcome::Created)]);
    let fire = ScheduleWrite::Fire(fire_tick(world, 10));
    let outcomes = world.store.commit(&batch(fire)).expect("commit").outcomes;
    assert!(matches!(outcomes[0], Outcome::Scheduled(ScheduleOutcome::Fired(Fired::Started(_)))));
}

impl Random {
    /// Ends the run that a queued tick waits for, if there is one and no commit of it yet.
    pub(super) fn end_of_tick(
        &mut self,
        model: &dyn Store,
        committed: &[RunId],
        now: Timestamp,
    ) -> Option<(RunId, Commit)> {
        if !self.one_in(3) {
            return None;
        }
        let rows = model.queued_schedules(None, 10).expect("queued_schedules");
        let place = self.below(rows.len() as u64 + 1) as usize;
        let id = rows.get(place)?.last_run?;
        if committed.contains(&id) {
            return None;
        }
        let commit = Commit {
            results_only: false,
            inbox_seq: None,
            patch: finish(RunStatus::Completed),
            ..self.commit(model, id, now)
        };
        Some((id, commit))
    }

    /// Something about one of three schedules, that often fits what is stored.
    pub(super) fn schedule_write(&mut self, model: &dyn Store, now: Timestamp) -> ScheduleWrite {
        let name = ["x", "y", "z"][self.below(3) as usize].to_owned();
        let row = model.schedule(&name).expect("schedule");
        let Some(row) = row.filter(|_| !self.one_in(12)) else {
            let overlap = Overlap::from_code(self.below(4) as u8).expect("a policy");
            let every = self.below(2) + 1;
            return ScheduleWrite::Put(NewSchedule {
                spec: format!("every {every}"),
                paused: self.one_in(5),
                anchor: now,
                first_at: Some(now + Duration::from_millis(every)),
                ..new_schedule(&name, overlap)
            });
        };
        let revision = row.revision + u64::from(self.one_in(10));
        match self.below(12) {
            0 => ScheduleWrite::Delete { name },
            1 => ScheduleWrite::Pause { name },
            2 | 3 => ScheduleWrite::Resume { name, revision, next_at: Some(now) },
            n => {
                let tick = row.next_at.unwrap_or(now);
                let then = Some(tick + Duration::from_millis(1));
                let cause = match n {
                    4 => FireCause::Trigger { tick: now },
                    5..8 => FireCause::Queued {
                        tick: row
                            .queue
                            .first()
                            .copied()
                            .unwrap_or(QueuedTick { at: now, is_trigger: false }),
                    },
                    _ => FireCause::Tick {
                        next_at: tick,
                        missed: self.below(2),
                        tick: (!self.one_in(8)).then_some(tick),
                        then,
                    },
                };
                let run =
                    Box::new(NewRun { key: Some(format!("{name}/{tick}")), ..self.start(now) });
                // What waits for its end should see it.
                if !self.runs.contains(&run.id) {
                    let place = self.below(self.runs.len() as u64) as usize;
                    self.runs[place] = run.id;
                }
                ScheduleWrite::Fire(Fire { name, revision, cause, run: Some(run) })
            }
        }
    }
}
