//! A run that has ended and is begun again.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] =
    checks![a_finished_run_can_be_reopened, a_reopening_that_does_not_fit_is_refused,];

fn reopening(id: RunId) -> Reopen {
    Reopen {
        run: id.no(),
        status: RunStatus::Failed,
        attempts: 1,
        puts: vec![put("b", "new")],
        deletes: vec![range("b", "d")],
    }
}

fn failed(world: &World) -> RunId {
    let id = world.running();
    let puts = vec![put("a", "1"), put("b", "2"), put("c", "3")];
    world.control(id, Control::Cancel { rollback: true });
    world.accept(Commit { patch: roll_back(), puts, last_number: 3, numbers: 3, ..commit(id) });
    let error = Some(b"failure".to_vec());
    let patch = Patch::Finish { status: RunStatus::Failed, output: None, error };
    world.accept(Commit { patch, last_number: 3, ..commit(id) });
    id
}

fn a_finished_run_can_be_reopened(world: &World) {
    let id = failed(world);
    let outcome = world.one(9, Write::Reopen(Box::new(reopening(id))));
    assert_eq!(outcome, Outcome::Committed(Vec::new()));
    let row = world.row(id);
    assert_eq!((row.status, row.attempts, row.generation), (RunStatus::Pending, 2, 1));
    assert_eq!((row.available_at, row.finished_at), (Some(AT_ONCE), None));
    assert_eq!((row.error, row.output, row.ending), (None, None, None));
    assert_eq!((row.cancel_requested, row.waiting), (None, None));
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a", "1"), put("b", "new")]);
    assert_eq!(world.due(9), [id]);
    // How many numbers are left is known to the owner alone.
    let run = Patch::Run { inbox_seq: 0 };
    world.accept(Commit { last_number: 2, numbers: 1, patch: run, ..commit(id) });
    assert_eq!(world.row(id).last_number, 2);
}

fn a_reopening_that_does_not_fit_is_refused(world: &World) {
    let (id, live) = (failed(world), world.running());
    let before = world.store.load(id.no()).expect("load");
    let wrong = [
        Reopen { attempts: 2, ..reopening(id) },
        Reopen { status: RunStatus::Completed, ..reopening(id) },
        Reopen { status: RunStatus::Running, ..reopening(live) },
        reopening(world.ids.next(START)),
    ];
    for reopen in wrong {
        let outcome = world.one(9, Write::Reopen(Box::new(reopen)));
        assert_eq!(outcome, Outcome::Refused(Refusal::Gone));
    }
    assert_eq!(world.store.load(id.no()).expect("load"), before);
}
