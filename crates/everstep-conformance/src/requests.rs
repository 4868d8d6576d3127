//! Requests: the first reply is the answer, and the end of the run is one, too.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    the_first_reply_wins,
    a_finished_run_answers_its_open_requests,
    a_reply_in_the_last_commit_counts,
];

fn request(world: &World, id: RunId, name: &str) -> Uuid {
    let request = Uuid::from_name(name);
    let receipt = world.deliver(Delivery { request: Some(request), ..message(id) }).receipt;
    assert_eq!(receipt, Receipt::Delivered);
    request
}

fn reply(request: Uuid, body: &str) -> Effect {
    Effect::Reply { request, body: body.into() }
}

fn the_first_reply_wins(world: &World) {
    let id = world.running();
    let (first, second) = (request(world, id, "first"), request(world, id, "second"));
    let unknown = Uuid::from_name("unknown");
    let answers = || world.store.answers(&[second, unknown, first]).expect("answers");
    assert_eq!(answers(), [(unknown, Answer::Unknown)]);
    let effects = vec![reply(first, "one"), reply(first, "two"), reply(unknown, "lost")];
    world.accept(Commit { effects, ..commit(id) });
    world.accept(Commit { effects: vec![reply(first, "three")], ..commit(id) });
    let mut answered = answers();
    answered.sort_by_key(|(id, _)| *id != first);
    assert_eq!(answered[0], (first, Answer::Reply(b"one".to_vec())));
    assert_eq!(answered[1..], [(unknown, Answer::Unknown)]);
}

fn a_finished_run_answers_its_open_requests(world: &World) {
    let (id, other) = (world.running(), world.running());
    let (open, answered) = (request(world, id, "open"), request(world, id, "answered"));
    let elsewhere = request(world, other, "elsewhere");
    world.accept(Commit { effects: vec![reply(answered, "yes")], ..commit(id) });
    world.finish(id);
    let mut answers = world.store.answers(&[open, answered, elsewhere]).expect("answers");
    answers.sort_by_key(|(id, _)| *id != open);
    let yes = Answer::Reply(b"yes".to_vec());
    assert_eq!(answers, [(open, Answer::RunEnded), (answered, yes)]);
}

fn a_reply_in_the_last_commit_counts(world: &World) {
    let id = world.running();
    let request = request(world, id, "request");
    let (effects, patch) = (vec![reply(request, "bye")], finish(RunStatus::Completed));
    world.accept(Commit { effects, patch, ..commit(id) });
    let answers = world.store.answers(&[request]).expect("answers");
    assert_eq!(answers, [(request, Answer::Reply(b"bye".to_vec()))]);
}
