//! Cancel, pause and resume: what they refuse, and what they leave as it is.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    cancel_refuses_movement_and_takes_results,
    a_cancel_can_be_carried_out,
    a_cancel_makes_every_row_due,
    a_second_cancel_and_a_cancel_of_a_finished_run_say_so,
    a_cancel_in_the_batch_of_the_last_commit_finds_it_finished,
    cancel_refuses_nothing_once_the_end_is_decided,
    pause_refuses_movement_and_takes_results,
    resume_makes_a_paused_run_due_again,
    a_run_paused_in_its_rollback_resumes_in_it,
    a_run_being_cancelled_cannot_be_paused,
    a_delayed_start_keeps_its_time_through_a_pause,
    a_run_waiting_for_its_next_attempt_keeps_its_time_through_a_pause,
    a_sleeping_run_is_due_when_it_is_resumed,
    a_cancel_of_a_paused_rollback_is_refused,
    a_cancel_of_a_rollback_changes_nothing,
];

/// Every patch that moves a run forward.
fn movements() -> Vec<Patch> {
    vec![
        Patch::Keep,
        Patch::Run { inbox_seq: 0 },
        park(None),
        finish(RunStatus::Completed),
        finish(RunStatus::Failed),
        Patch::RollBack { ending: RunStatus::Failed, error: None },
    ]
}

fn cancel_refuses_movement_and_takes_results(world: &World) {
    for rollback in [true, false] {
        let id = world.running();
        let done = world.control(id, Control::Cancel { rollback });
        assert_eq!(done, Controlled::Done { run: id });
        for patch in movements() {
            let commit = Commit { puts: vec![put("a", "")], patch, ..commit(id) };
            assert_eq!(world.refuse(commit), Refusal::CancelRequested { rollback });
        }
        assert!(world.keys(id).is_empty());
        let results = Commit { results_only: true, puts: vec![put("a", "")], ..commit(id) };
        world.accept(results);
        let row = world.row(id);
        assert_eq!(row.cancel_requested, Some(CancelRequest { rollback }));
        assert_eq!((row.status, world.keys(id).len()), (RunStatus::Running, 1));
    }
}

fn a_cancel_can_be_carried_out(world: &World) {
    for patch in [roll_back(), finish(RunStatus::Cancelled), pause()] {
        for is_paused in [false, true] {
            let id = world.running();
            if is_paused {
                world.control(id, Control::Pause);
            }
            world.control(id, Control::Cancel { rollback: true });
            world.accept(Commit { patch: patch.clone(), ..commit(id) });
            assert_eq!(world.row(id).available_at, None);
        }
    }
}

fn a_cancel_makes_every_row_due(world: &World) {
    let delayed = NewRun { claim: false, available_at: Some(at(90_000)), ..world.new_run() };
    let paused = world.parked(None);
    world.control(paused, Control::Pause);
    let (running, parked) = (world.running(), world.parked(Some(at(80_000))));
    for id in [world.start(delayed).id, paused, running, parked] {
        let status = world.row(id).status;
        world.control(id, Control::Cancel { rollback: true });
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (status, Some(AT_ONCE)), "{status}");
    }
    assert_eq!(world.due(3).len(), 4);
}

fn a_second_cancel_and_a_cancel_of_a_finished_run_say_so(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    let again = world.control(id, Control::Cancel { rollback: false });
    assert_eq!(again, Controlled::Already { run: id, status: RunStatus::Running });
    assert_eq!(world.row(id).cancel_requested, Some(CancelRequest { rollback: true }));
    world.accept(Commit { patch: finish(RunStatus::Cancelled), ..commit(id) });
    for control in [Control::Cancel { rollback: true }, Control::Pause, Control::Resume] {
        let finished = Controlled::Finished { run: id, status: RunStatus::Cancelled };
        assert_eq!(world.control(id, control), finished);
    }
    let unknown = world.ids.next(START);
    assert_eq!(world.control(unknown, Control::Cancel { rollback: true }), Controlled::Unknown);
}

fn a_cancel_in_the_batch_of_the_last_commit_finds_it_finished(world: &World) {
    for cancels_first in [true, false] {
        let id = world.running();
        let last = Commit { patch: finish(RunStatus::Completed), ..commit(id) };
        let last = Write::Commit(Box::new(last));
        let cancel = Write::Control(Target::Id(id), Control::Cancel { rollback: true });
        let writes = if cancels_first { vec![cancel, last] } else { vec![last, cancel] };
        let outcomes = world.batch(5, writes);
        let finished = Controlled::Finished { run: id, status: RunStatus::Completed };
        assert!(outcomes.contains(&Outcome::Controlled(finished)), "{outcomes:?}");
        assert_eq!(world.row(id).cancel_requested, None);
    }
}

fn cancel_refuses_nothing_once_the_end_is_decided(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    for patch in [Patch::Keep, Patch::Run { inbox_seq: 0 }, park(Some(at(50)))] {
        let puts = vec![put("compensation", "")];
        world.accept(Commit { puts, patch, ..commit(id) });
        assert_eq!(world.row(id).ending, Some(RunStatus::Cancelled));
    }
    world.accept(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) });
    assert_eq!(world.row(id).status, RunStatus::RollingBack);
    world.accept(Commit { patch: finish(RunStatus::Cancelled), ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending), (RunStatus::Cancelled, None));
}

fn pause_refuses_movement_and_takes_results(world: &World) {
    let id = world.running();
    assert_eq!(world.control(id, Control::Pause), Controlled::Done { run: id });
    for patch in movements().into_iter().chain([roll_back(), pause()]) {
        assert_eq!(world.refuse(Commit { patch, ..commit(id) }), Refusal::Paused);
    }
    world.accept(Commit { results_only: true, puts: vec![put("a", "")], ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Paused, None));
    assert_eq!(row.waiting.as_deref(), Some("paused by request"));
    let again = world.control(id, Control::Pause);
    assert_eq!(again, Controlled::Already { run: id, status: RunStatus::Paused });
}

fn resume_makes_a_paused_run_due_again(world: &World) {
    let id = world.parked(Some(at(90_000)));
    let not_paused = Controlled::Already { run: id, status: RunStatus::Sleeping };
    assert_eq!(world.control(id, Control::Resume), not_paused);
    world.control(id, Control::Pause);
    assert!(world.due(100_000).is_empty());
    assert_eq!(world.control(id, Control::Resume), Controlled::Done { run: id });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(AT_ONCE)));
    assert_eq!((row.waiting, world.due(3)), (None, vec![id]));
    world.accept(commit(id));
}

fn a_run_paused_in_its_rollback_resumes_in_it(world: &World) {
    let id = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    world.control(id, Control::Pause);
    assert_eq!(world.row(id).ending, Some(RunStatus::Cancelled));
    world.control(id, Control::Resume);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::RollingBack, Some(AT_ONCE)));
}

fn a_run_being_cancelled_cannot_be_paused(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    let refused = Controlled::Refused {
        run: id,
        status: RunStatus::Running,
        reason: ControlRefusal::BeingCancelled,
    };
    assert_eq!(world.control(id, Control::Pause), refused);
    assert_eq!(world.row(id).status, RunStatus::Running);
}

fn a_delayed_start_keeps_its_time_through_a_pause(world: &World) {
    let started =
        world.start(NewRun { claim: false, available_at: Some(at(500)), ..world.new_run() });
    let id = started.id;
    world.control(id, Control::Pause);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Paused, None));
    assert_eq!(row.resume_at, Some(at(500)));
    assert!(world.due(1_000).is_empty());
    world.control(id, Control::Resume);
    let row = world.row(id);
    assert_eq!(row.status, RunStatus::Pending);
    assert_eq!((row.available_at, row.resume_at), (Some(at(500)), None));
    assert!(world.due(499).is_empty());
    assert_eq!(world.due(500), [id]);
    // Its time has come while it was paused.
    world.control(id, Control::Pause);
    let resume = Write::Control(Target::Id(id), Control::Resume);
    world.one(600, resume);
    assert_eq!(world.row(id).available_at, Some(at(500)));
}

fn a_run_waiting_for_its_next_attempt_keeps_its_time_through_a_pause(world: &World) {
    let id = world.running();
    world.accept(Commit {
        patch: Patch::Park {
            status: RunStatus::Pending,
            available_at: Some(at(800)),
            waiting: "its next attempt".to_owned(),
            attempts: 2,
        },
        ..commit(id)
    });
    world.control(id, Control::Pause);
    world.control(id, Control::Resume);
    let row = world.row(id);
    assert_eq!(
        (row.status, row.available_at, row.attempts),
        (RunStatus::Pending, Some(at(800)), 2)
    );
}

fn a_sleeping_run_is_due_when_it_is_resumed(world: &World) {
    // Its waits are in its history; the owner parks it again.
    let id = world.parked(Some(at(800)));
    world.control(id, Control::Pause);
    assert_eq!(world.row(id).resume_at, None);
    world.control(id, Control::Resume);
    assert_eq!(world.row(id).available_at, Some(AT_ONCE));
}

fn a_cancel_of_a_paused_rollback_is_refused(world: &World) {
    let id = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    world.accept(Commit { patch: pause(), ..commit(id) });
    let before = world.row(id);
    let refused = Controlled::Refused {
        run: id,
        status: RunStatus::Paused,
        reason: ControlRefusal::RollbackPaused { ending: RunStatus::Cancelled },
    };
    let cancel = Control::Cancel { rollback: false };
    assert_eq!(world.control(id, cancel), refused);
    assert_eq!(world.row(id), before);
}

fn a_cancel_of_a_rollback_changes_nothing(world: &World) {
    let id = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    let before = world.row(id);
    let already = Controlled::Already { run: id, status: RunStatus::RollingBack };
    let cancel = Control::Cancel { rollback: false };
    assert_eq!(world.control(id, cancel), already);
    assert_eq!(world.row(id), before);
}
