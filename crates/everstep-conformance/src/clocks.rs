//! Writers whose clocks are ahead of those of others.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    what_a_clock_that_is_ahead_makes_due_is_due_at_once,
    a_run_whose_id_is_from_the_future_is_made_due_at_once,
    a_time_is_kept_through_everything_that_a_clock_beyond_it_does,
];

/// What the clock shows that is ahead, and a time beyond that.
const AHEAD: i64 = 3_600_000;
const LATER: i64 = 2 * AHEAD;

/// A run that has failed.
fn failed(world: &World) -> RunId {
    let id = world.running();
    world.accept(Commit { patch: finish(RunStatus::Failed), ..commit(id) });
    id
}

fn control(id: RunId, control: Control) -> Write {
    Write::Control(Target::Id(id), control)
}

fn reopen(id: RunId) -> Write {
    Write::Reopen(Box::new(Reopen {
        run: id.no(),
        status: RunStatus::Failed,
        attempts: 1,
        puts: Vec::new(),
        deletes: Vec::new(),
    }))
}

/// Nobody took up such a run before the other clocks had come to that time.
fn what_a_clock_that_is_ahead_makes_due_is_due_at_once(world: &World) {
    let started = world.new_run();
    let [sent, cancelled, resumed] = [(); 3].map(|()| world.parked(None));
    let (reopened, again, sender) = (failed(world), world.running(), world.running());
    let receiver = world.parked(None);
    let claim = false;
    let start = NewRun { claim, ..started };
    let mut wanted = vec![start.id, sent, cancelled, resumed, reopened, again, receiver];
    let cancel = Control::Cancel { rollback: false };
    let writes = vec![
        Write::Start(Box::new(start)),
        Write::Deliver(Box::new(message(sent))),
        control(cancelled, cancel),
        control(resumed, Control::Pause),
        control(resumed, Control::Resume),
        reopen(reopened),
        // An attempt at a run that follows the last one without a delay.
        Write::Commit(Box::new(Commit {
            patch: Patch::Park {
                status: RunStatus::Pending,
                available_at: Some(at(AHEAD)),
                waiting: "its next attempt".to_owned(),
                attempts: 2,
            },
            ..commit(again)
        })),
        Write::Commit(Box::new(Commit { effects: vec![send(receiver, "sent")], ..commit(sender) })),
    ];
    let outcomes = world.batch(AHEAD, writes);
    let refused = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_));
    assert!(!outcomes.iter().any(refused), "{outcomes:?}");
    let mut due = world.due(10);
    due.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(due, wanted);
}

fn a_run_whose_id_is_from_the_future_is_made_due_at_once(world: &World) {
    let from_the_future = || {
        let id = world.ids.next(at(AHEAD));
        let new = NewRun { id, ..world.new_run() };
        let parks = Commit { inbox_seq: Some(0), patch: park(Some(at(LATER))), ..commit(id) };
        world.one(AHEAD, Write::Start(Box::new(new)));
        world.one(AHEAD, Write::Commit(Box::new(parks)));
        id
    };
    let [sleeps, sent, cancelled, resumed] = [(); 4].map(|()| from_the_future());
    assert!(world.due(10).is_empty());
    let cancel = Control::Cancel { rollback: false };
    world.one(AHEAD, Write::Deliver(Box::new(message(sent))));
    world.one(AHEAD, control(cancelled, cancel));
    world.one(AHEAD, control(resumed, Control::Pause));
    world.one(AHEAD, control(resumed, Control::Resume));
    let mut at_once = [sent, cancelled, resumed];
    at_once.sort_unstable();
    assert_eq!(world.due(10), at_once);
    assert_eq!(world.due(LATER), [&at_once[..], &[sleeps]].concat());
}

fn a_time_is_kept_through_everything_that_a_clock_beyond_it_does(world: &World) {
    let delayed = NewRun { available_at: Some(at(500)), ..world.new_run() };
    let id = world.start(delayed).id;
    world.one(AHEAD, Write::Deliver(Box::new(message(id))));
    world.one(AHEAD, control(id, Control::Pause));
    world.one(AHEAD, control(id, Control::Resume));
    assert_eq!((world.due(499), world.due(500)), (vec![], vec![id]));
}
