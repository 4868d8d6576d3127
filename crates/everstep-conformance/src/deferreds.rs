//! Deferreds: the first value counts, and no wait misses it.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    the_secret_of_a_store_stays,
    a_value_before_the_wait_answers_it,
    a_value_during_the_wait_answers_it_and_makes_the_run_due,
    a_value_and_a_wait_in_one_batch_meet,
    the_first_value_counts_and_the_second_is_told,
    all_that_wait_for_a_value_are_answered,
    a_value_is_for_its_run_and_its_tag_alone,
    a_look_is_answered_at_once,
    an_abandoned_wait_is_not_answered_and_the_value_stays,
    an_answer_that_was_not_taken_goes_with_the_wait,
    a_value_for_another_generation_is_refused,
    a_value_for_a_run_that_is_over_is_refused,
    a_finished_run_leaves_no_answers,
    a_run_that_is_tried_again_finds_its_values,
    a_deadline_is_refused_when_a_value_has_come,
];

const TAG: [u8; 16] = [5; 16];

fn wait(key: &str) -> Effect {
    Effect::AwaitDeferred(DeferredWait { key: key.into(), tag: TAG, looks: false })
}

fn look(key: &str) -> Effect {
    Effect::AwaitDeferred(DeferredWait { key: key.into(), tag: TAG, looks: true })
}

fn abandon(key: &str) -> Effect {
    Effect::Abandon { kind: InboxKind::Deferred, key: key.into() }
}

fn value(id: RunId, body: &str) -> Resolution {
    Resolution { run: id, generation: Some(1), tag: TAG, body: body.into() }
}

/// A commit that parks the run with this effect.
fn parking(id: RunId, effect: Effect) -> Commit {
    Commit { effects: vec![effect], patch: park(None), ..commit(id) }
}

fn doing(id: RunId, effect: Effect) -> Commit {
    Commit { effects: vec![effect], ..commit(id) }
}

impl World {
    fn resolve(&self, resolution: Resolution) -> Settled {
        match self.one(4, Write::Resolve(Box::new(resolution))) {
            Outcome::Settled(settled) => settled,
            other => panic!("a value was answered with {other:?}"),
        }
    }

    /// Who was answered, and with what.
    fn answers_of(&self, id: RunId) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let rows = self.store.inbox(id.no(), 0).expect("inbox").into_iter();
        let answers = rows.filter(|row| row.kind == InboxKind::Deferred);
        answers.map(|row| (text(row.wait.unwrap_or_default()), text(row.body))).collect()
    }
}

fn answered(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(wait, body): &(&str, &str)| ((*wait).to_owned(), (*body).to_owned());
    pairs.iter().map(owned).collect()
}

fn the_secret_of_a_store_stays(world: &World) {
    let secret = world.store.secret().expect("secret");
    world.store.migrate().expect("migrate");
    assert_eq!(world.store.secret().expect("secret"), secret);
    assert_ne!(secret, Secret::new([0; 32]), "it must be random");
}

fn a_value_before_the_wait_answers_it(world: &World) {
    let id = world.running();
    assert_eq!(world.resolve(value(id, "yes")), Settled::First);
    assert!(world.answers_of(id).is_empty(), "nobody waits yet");
    world.accept(parking(id, wait("gate")));
    assert_eq!(world.answers_of(id), answered(&[("gate", "yes")]));
    assert_eq!(world.due(5), [id]);
}

fn a_value_during_the_wait_answers_it_and_makes_the_run_due(world: &World) {
    let id = world.running();
    world.accept(parking(id, wait("gate")));
    assert!(world.due(5).is_empty());
    let batch =
        Batch { fence: None, now: at(4), writes: vec![Write::Resolve(Box::new(value(id, "yes")))] };
    let applied = world.store.commit(&batch).expect("commit");
    assert_eq!(applied.outcomes, [Outcome::Settled(Settled::First)]);
    let [Notice::Inbox { run, row }] = &applied.notices[..] else {
        panic!("the owner is told: {:?}", applied.notices);
    };
    assert_eq!((*run, row.kind, row.seq), (id, InboxKind::Deferred, 1));
    assert_eq!(row.wait.as_deref(), Some(&b"gate"[..]));
    assert_eq!(world.answers_of(id), answered(&[("gate", "yes")]));
    assert_eq!(world.due(5), [id]);
}

fn a_value_and_a_wait_in_one_batch_meet(world: &World) {
    for value_first in [true, false] {
        let id = world.running();
        let wait = Write::Commit(Box::new(parking(id, wait("gate"))));
        let value = Write::Resolve(Box::new(value(id, "yes")));
        let writes = match value_first {
            true => vec![value, wait],
            false => vec![wait, value],
        };
        world.batch(4, writes);
        assert_eq!(world.answers_of(id), answered(&[("gate", "yes")]));
        assert!(world.due(5).contains(&id));
    }
}

fn the_first_value_counts_and_the_second_is_told(world: &World) {
    let id = world.running();
    let writes = ["first", "second"].map(|body| Write::Resolve(Box::new(value(id, body))));
    let outcomes = world.batch(7, writes.into());
    let already = Settled::Already { at: at(7) };
    assert_eq!(outcomes, [Settled::First, already].map(Outcome::Settled), "two in one batch");
    assert_eq!(world.resolve(value(id, "third")), already);
    world.accept(doing(id, wait("gate")));
    assert_eq!(world.resolve(value(id, "fourth")), already);
    assert_eq!(world.answers_of(id), answered(&[("gate", "first")]));
}

fn all_that_wait_for_a_value_are_answered(world: &World) {
    let id = world.running();
    world.accept(doing(id, wait("b")));
    world.accept(doing(id, wait("a")));
    world.resolve(value(id, "yes"));
    assert_eq!(world.answers_of(id), answered(&[("a", "yes"), ("b", "yes")]));
}

fn a_value_is_for_its_run_and_its_tag_alone(world: &World) {
    let (id, other) = (world.running(), world.running());
    world.accept(doing(id, wait("gate")));
    assert_eq!(world.resolve(value(other, "other run")), Settled::First);
    let other_tag = Resolution { tag: [6; 16], ..value(id, "other tag") };
    assert_eq!(world.resolve(other_tag), Settled::First);
    assert!(world.answers_of(id).is_empty());
    let unknown = world.new_run().id;
    assert_eq!(world.resolve(value(unknown, "nobody")), Settled::Unknown);
}

fn a_look_is_answered_at_once(world: &World) {
    let id = world.running();
    world.accept(doing(id, look("first look")));
    let unknown = "\u{1}\0\u{3}";
    assert_eq!(world.answers_of(id), answered(&[("first look", unknown)]));
    world.resolve(value(id, "yes"));
    assert_eq!(world.answers_of(id).len(), 1, "it does not wait for the value");
    world.accept(doing(id, look("second look")));
    let both = answered(&[("first look", unknown), ("second look", "yes")]);
    assert_eq!(world.answers_of(id), both);
}

fn an_abandoned_wait_is_not_answered_and_the_value_stays(world: &World) {
    let id = world.running();
    world.accept(doing(id, wait("given up")));
    world.accept(doing(id, abandon("given up")));
    assert_eq!(world.resolve(value(id, "yes")), Settled::First);
    assert!(world.answers_of(id).is_empty());
    world.accept(doing(id, wait("later")));
    assert_eq!(world.answers_of(id), answered(&[("later", "yes")]));
}

fn an_answer_that_was_not_taken_goes_with_the_wait(world: &World) {
    let id = world.running();
    world.accept(doing(id, wait("gate")));
    world.resolve(value(id, "yes"));
    world.accept(doing(id, abandon("gate")));
    assert!(world.answers_of(id).is_empty());
    assert_eq!(world.resolve(value(id, "again")), Settled::Already { at: at(4) });
}

fn a_value_for_another_generation_is_refused(world: &World) {
    let id = world.running();
    let later = Resolution { generation: Some(2), ..value(id, "yes") };
    let refused = Settled::OldGeneration { current: 1 };
    assert_eq!(world.resolve(later), refused);
    let current = Resolution { generation: None, ..value(id, "yes") };
    assert_eq!(world.resolve(current), Settled::First);
}

fn a_value_for_a_run_that_is_over_is_refused(world: &World) {
    let id = world.running();
    let end = Write::Commit(Box::new(Commit { patch: finish(RunStatus::Completed), ..commit(id) }));
    let resolve = Write::Resolve(Box::new(value(id, "too late")));
    let outcomes = world.batch(4, vec![resolve, end]);
    let status = RunStatus::Completed;
    assert_eq!(
        outcomes[0],
        Outcome::Settled(Settled::Finished { status }),
        "commits come first in a batch"
    );
    let undone = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(undone) });
    let status = RunStatus::RollingBack;
    let finished = Settled::Finished { status };
    assert_eq!(world.resolve(value(undone, "too late")), finished);
}

fn a_finished_run_leaves_no_answers(world: &World) {
    for status in [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled] {
        let id = world.running();
        world.accept(doing(id, wait("gate")));
        world.resolve(value(id, "yes"));
        world.accept(Commit { patch: finish(status), ..commit(id) });
        assert!(world.answers_of(id).is_empty(), "{status}");
        assert!(world.letters(Some(id)).is_empty(), "an answer is no message");
    }
}

fn a_run_that_is_tried_again_finds_its_values(world: &World) {
    let reopened = world.running();
    world.resolve(value(reopened, "yes"));
    world.accept(Commit { patch: finish(RunStatus::Failed), ..commit(reopened) });
    let reopen = Reopen {
        run: reopened.no(),
        status: RunStatus::Failed,
        attempts: 1,
        puts: Vec::new(),
        deletes: Vec::new(),
    };
    world.one(5, Write::Reopen(Box::new(reopen)));
    let again = world.running();
    world.accept(doing(again, wait("gate")));
    world.resolve(value(again, "yes"));
    world.accept(Commit {
        patch: Patch::Park {
            status: RunStatus::Pending,
            available_at: Some(at(5)),
            waiting: "its next attempt".to_owned(),
            attempts: 2,
        },
        ..commit(again)
    });
    assert!(world.answers_of(again).is_empty(), "nobody waits any more");
    for id in [reopened, again] {
        world.accept(doing(id, wait("gate")));
        assert_eq!(world.answers_of(id), answered(&[("gate", "yes")]));
    }
}

fn a_deadline_is_refused_when_a_value_has_come(world: &World) {
    let id = world.running();
    world.accept(doing(id, wait("gate")));
    world.resolve(value(id, "yes"));
    let timeout = Commit { inbox_seq: Some(0), ..doing(id, abandon("gate")) };
    let Refusal::InboxMoved { rows, .. } = world.refuse(timeout) else {
        panic!("the answer was not seen");
    };
    assert_eq!(rows[0].wait.as_deref(), Some(&b"gate"[..]));
    assert_eq!(world.answers_of(id), answered(&[("gate", "yes")]));
}
