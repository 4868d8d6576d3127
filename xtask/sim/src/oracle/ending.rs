//! The judgement at the end of a life.
//!
//! Every run is replayed cold, from what is stored, by the code that it had. What its code takes there,
//! in order, is what has happened for good: everything that bodies have built on must be in it, and what
//! clients were told must follow from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock, PoisonError},
};

use everstep::{
    Overlap, RunId, RunStatus,
    store::{DeadLetter, InboxRow, MemoryStore, RunRow},
    testing::{
        self,
        simulation::{Report, Server},
    },
};

use super::{
    Promise, Violation,
    ledger::{Got, Ledger, Place, Sending, Stay, Taken, Told, digest},
    past,
    requests::Request,
    streams::Shown,
};
use crate::{
    plan::Plan,
    work::{
        Order, PERFORM, key,
        messages::reply,
        perform::{Code, perform},
        program::End,
        schedules,
    },
    world::{engines::Engines, operators::program_of},
};

/// What is left of a life.
pub(crate) struct Left {
    pub(crate) server: Arc<Server>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) engines: Arc<Engines>,
    /// None if the simulation has failed.
    pub(crate) ending: Option<Ending>,
}

/// What is in the store at the end.
pub(crate) struct Ending {
    pub(crate) runs: Vec<Ended>,
    pub(crate) letters: Vec<DeadLetter>,
    /// The operations whose item is a dead letter.
    pub(crate) dead_items: Vec<Place>,
}

/// A run at the end.
pub(crate) struct Ended {
    pub(crate) row: RunRow,
    pub(crate) file: Vec<u8>,
    pub(crate) inbox: Vec<InboxRow>,
}

/// All violations of a life.
pub(crate) fn judge(plan: &Plan, report: &Report, left: &Left) -> Vec<Violation> {
    let ledger = &left.ledger;
    if let Some(failure) = &report.failure {
        ledger.violate(Promise::SimulationGoesOn, failure.clone());
    }
    if let Some(ending) = &left.ending {
        let Replayed { finals, carries, shown, ended } = replay(plan, ledger, ending);
        let pasts = pasts(ledger, ending, &finals, &carries);
        let data = &left.server.data;
        let judgement =
            Judgement { plan, ledger, ending, data, finals, carries, pasts, shown, ended };
        judgement.check_seen();
        judgement.check_values();
        judgement.check_told();
        judgement.check_ends();
        judgement.check_requests();
        judgement.check_messages();
        judgement.check_replies();
        judgement.check_items();
        judgement.check_items_of_clients();
        judgement.check_shown();
        judgement.check_schedules();
        judgement.check_imported();
        judgement.check_children();
        ledger.check_turns();
        judgement.check_events();
        judgement.check_deferreds();
    }
    let mut violations = std::mem::take(&mut ledger.book().violations);
    let passed_over = left.server.passed_over.lock();
    let passed_over = passed_over.unwrap_or_else(PoisonError::into_inner);
    let promise = Promise::NothingSentIsLost;
    let lost = passed_over.iter().map(|what| Violation { promise, what: what.clone() });
    violations.extend(lost);
    violations
}

/// What the code of each run takes in a cold replay, in order.
type Finals = BTreeMap<RunId, Vec<Taken>>;

/// What the last generation of each run has begun with.
type Carries = BTreeMap<RunId, u64>;

/// What the last generation of each run gives out in a cold replay.
type AllShown = BTreeMap<RunId, Vec<Shown>>;

/// A cold replay of one run.
struct Cold {
    stays: Vec<Arc<Stay>>,
    /// Whether its code has come to its end. One that has failed without a step to blame may not: of the
    /// rollbacks after its last completion, a replay does not know which were those of a race.
    has_ended: bool,
}

/// What cold replays come to.
#[derive(Default)]
struct Replayed {
    finals: Finals,
    carries: Carries,
    shown: AllShown,
    /// The runs whose code comes to its end.
    ended: BTreeSet<RunId>,
}

fn replay(plan: &Plan, ledger: &Ledger, ending: &Ending) -> Replayed {
    let mut all = Replayed::default();
    for run in &ending.runs {
        let Cold { stays, has_ended } = replay_file(plan, ledger, &run.row, &run.file);
        all.ended.extend(has_ended.then_some(run.row.id));
        let taken = stays.last().map(|stay| stay.all_taken());
        all.finals.insert(run.row.id, taken.unwrap_or_default());
        let before = (run.row.id, run.row.generation.saturating_sub(1));
        let carry = match stays.last() {
            Some(stay) => Some(stay.order.carry),
            // The code of this generation was not called.
            None => ledger.book().continued.get(&before).and_then(|all| all.first().copied()),
        };
        all.carries.insert(run.row.id, carry.unwrap_or_default());
        let shown = stays.last().map(|stay| stay.all_shown());
        all.shown.insert(run.row.id, shown.unwrap_or_default());
    }
    all
}

/// The stays of a run in a cold replay of this file, by the code that has brought it so far.
fn replay_file(plan: &Plan, ledger: &Ledger, row: &RunRow, file: &[u8]) -> Cold {
    let cold = Ledger::new(None, true);
    let last = ledger.book().stays.iter().rev().find(|stay| stay.run == row.id).cloned();
    let code = Arc::new(Code {
        programs: plan.programs.clone(),
        ledger: cold.clone(),
        process: "replay".to_owned(),
        is_fenced: true,
        gate: None,
        queue: plan.queue,
        is_changed: last.is_none_or(|stay| stay.is_changed),
        client: OnceLock::new(),
    });
    let code = move |ctx, order: Order| perform(code.clone(), ctx, order);
    let replayed = testing::replay(file).against_fn(PERFORM.version(row.version), code);
    let has_ended = replayed.as_ref().is_ok_and(|replayed| replayed.ended);
    if let Err(error) = replayed {
        let what = format!("a cold replay of run {}: {error}", row.id);
        ledger.violate(Promise::ReplayIsExact, what);
    }
    let stays = cold.book().stays.clone();
    Cold { stays, has_ended }
}

/// What the code of each run has taken, and in which generation.
type Pasts = BTreeMap<RunId, Vec<(u32, Taken)>>;

/// What the code of each run has taken for good, also where a replay jumps over it.
fn pasts(ledger: &Ledger, ending: &Ending, finals: &Finals, carries: &Carries) -> Pasts {
    let mut pasts = Pasts::new();
    let all = ledger.book().stays.clone();
    for run in &ending.runs {
        let (id, is_fork) = (run.row.id, is_fork(&run.row));
        let (mut last, mut carry) = (finals[&id].clone(), carries[&id]);
        let mut past = Vec::new();
        // From the last generation back: the one before is that which has come to the carry of this one.
        for generation in (1..=run.row.generation).rev() {
            let stays = |generation| {
                let stays = all.iter();
                stays.filter(move |it| (it.run, it.generation) == (id, generation))
            };
            // A fork has taken over what stays of another run have taken.
            let taken: Vec<_> = match is_fork {
                true => all.iter().map(|stay| stay.all_taken()).collect(),
                false => stays(generation).map(|stay| stay.all_taken()).collect(),
            };
            let whole = past::whole(&last, &taken).unwrap_or_else(|what| {
                ledger.violate(Promise::ReplayIsExact, format!("run {id}: {what}"));
                last.clone()
            });
            past.extend(whole.into_iter().map(|taken| (generation, taken)));
            let has_come_to_it =
                |stay: &&Arc<Stay>| digest(stay.order.carry, &stay.all_taken()) == carry;
            if let Some(before) = stays(generation - 1).find(has_come_to_it) {
                (last, carry) = (before.all_taken(), before.order.carry);
            } else if is_fork {
                // What was before is that of the other run.
                break;
            } else if generation > 1 {
                let what = format!("no stay of run {id} has come to generation {generation}");
                ledger.violate(Promise::GenerationsFollow, what);
                break;
            }
        }
        pasts.insert(id, past);
    }
    pasts
}

pub(super) struct Judgement<'a> {
    pub(super) plan: &'a Plan,
    pub(super) ledger: &'a Ledger,
    ending: &'a Ending,
    pub(super) data: &'a MemoryStore,
    finals: Finals,
    carries: Carries,
    /// The finals, and what replays jump over.
    pub(super) pasts: Pasts,
    shown: AllShown,
    ended: BTreeSet<RunId>,
}

impl Judgement<'_> {
    /// Whether what a run has taken may be gone, or there twice: with a deleted run, in an attempt that was
    /// set aside, or taken over by a fork.
    pub(super) fn may_be_forgotten(&self) -> bool {
        let is_deleted = self.ledger.book().requests.was_ever_asked(Request::Delete);
        let mut runs = self.ending.runs.iter();
        is_deleted || runs.any(|run| is_fork(&run.row) || run.row.attempts > 1)
    }

    /// Whether a run has done by itself, and once, what it has taken.
    pub(super) fn is_original(&self, run: RunId) -> bool {
        self.row(run).is_some_and(|row| !is_fork(row) && row.attempts == 1)
    }

    /// The operations whose item is a dead letter.
    pub(super) fn dead_items(&self) -> &[Place] {
        &self.ending.dead_items
    }

    pub(super) fn violate(&self, promise: Promise, what: String) {
        self.ledger.violate(promise, what);
    }

    /// What a run has come to.
    pub(super) fn digest_of(&self, run: RunId) -> u64 {
        let (carry, last) = (self.carries.get(&run), self.finals.get(&run));
        digest(carry.copied().unwrap_or_default(), last.map_or(&[], Vec::as_slice))
    }

    /// The run with this key.
    pub(super) fn row_of_key(&self, key: &str) -> Option<RunId> {
        let mut runs = self.ending.runs.iter();
        runs.find(|it| it.row.key.as_deref() == Some(key)).map(|it| it.row.id)
    }

    pub(super) fn row(&self, run: RunId) -> Option<&RunRow> {
        let mut runs = self.ending.runs.iter();
        runs.find(|it| it.row.id == run).map(|it| &it.row)
    }

    /// What firm bodies have built on is in the history for good, in its order.
    fn check_seen(&self) {
        let stays = self.ledger.book().stays.clone();
        for stay in stays {
            let Some(row) = self.row(stay.run) else {
                if !self.ledger.may_be_deleted(stay.run) {
                    let what = format!("run {} is gone", stay.run);
                    self.violate(Promise::SeenIsDurable, what);
                }
                continue;
            };
            let is_last = (row.generation, row.attempts) == (stay.generation, stay.attempt);
            if !is_last {
                continue;
            }
            let taken = stay.all_taken();
            let kept = &taken[..stay.kept().min(taken.len())];
            let last = &self.finals[&stay.run];
            let iterations = past::last_iterations(last);
            let kept = past::without_earlier(kept, &iterations);
            let last = past::without_earlier(last, &iterations);
            if last.len() >= kept.len() && last[..kept.len()] == *kept {
                continue;
            }
            let at = last.iter().zip(&kept).position(|(last, kept)| last != kept);
            let at = at.unwrap_or_else(|| last.len().min(kept.len()));
            let what = format!(
                "run {}: a body in {} had started on {:?} as number {at}, where the history has {:?}",
                stay.run,
                stay.process,
                kept.get(at),
                last.get(at)
            );
            self.violate(Promise::SeenIsDurable, what);
        }
    }

    /// A recorded result is one that a body has given, and a run gives what its history says.
    fn check_values(&self) {
        for run in &self.ending.runs {
            let (id, past) = (run.row.id, &self.pasts[&run.row.id]);
            for (_, taken) in past {
                let Got::Value(value) = &taken.got else {
                    continue;
                };
                let book = self.ledger.book();
                // What a fork has taken over was given for the run that it is a fork of.
                let of = |place: &Place| place.run == id || is_fork(&run.row);
                let mut given = book.given.iter().filter(|(place, _)| of(place));
                let is_given =
                    given.any(|(place, given)| place.at == taken.at && given.contains(value));
                drop(book);
                if !is_given {
                    let what = format!("run {id}: no body has given {taken:?}");
                    self.violate(Promise::ReplayIsExact, what);
                }
            }
        }
    }

    /// What clients were told of the end of a run is how it has ended.
    fn check_told(&self) {
        let told = self.ledger.book().told.clone();
        for (run, told) in told {
            let Some(row) = self.row(run) else {
                if !self.ledger.may_be_deleted(run) {
                    let what = format!("run {run} was said to have ended, and is gone");
                    self.violate(Promise::ToldStaysTrue, what);
                }
                continue;
            };
            let is_tried_again = self.ledger.book().requests.was_asked(run, Request::Retry);
            if told == Told::Failed && is_tried_again {
                continue;
            }
            let is_true = row.status == told.status()
                && match told {
                    Told::Completed(value) => value == self.digest_of(run),
                    Told::Failed | Told::Cancelled => true,
                };
            if !is_true {
                let what = format!(
                    "run {run} was said to have ended with {told:?}, and is {:?}, with {}{}",
                    row.status,
                    self.digest_of(run),
                    self.where_it_differs(run, &told)
                );
                self.violate(Promise::ToldStaysTrue, what);
            }
        }
        for number in 0..self.plan.programs.len() {
            let key = key(number);
            let mut runs = self.ending.runs.iter();
            let is_there = runs.any(|it| it.row.key.as_deref() == Some(&key));
            if !is_there && !self.ledger.book().requests.may_be_deleted(number) {
                let what = format!("there is no run with the key `{key}`");
                self.violate(Promise::ToldStaysTrue, what);
            }
        }
    }

    /// A run has ended as its program says, or was cancelled.
    fn check_ends(&self) {
        for run in &self.ending.runs {
            let row = &run.row;
            let Some(program) = program_of(&row.tags) else {
                continue;
            };
            let end = self.plan.programs[program].end;
            let expected = match end {
                End::Completes => RunStatus::Completed,
                End::Fails => RunStatus::Failed,
                End::FailsInStep { attempts } if row.attempts <= attempts => RunStatus::Failed,
                End::FailsInStep { .. } => RunStatus::Completed,
            };
            let has_ended = matches!(row.status, RunStatus::Completed | RunStatus::Failed);
            if has_ended && row.status != expected {
                let (id, status) = (row.id, row.status);
                let what = format!("run {id} is {status:?}, and its program {end:?}");
                self.violate(Promise::ReplayIsExact, what);
            }
            let attempts = self.plan.run_retry.map_or(1, |retry| retry.attempts);
            let may_be_tried = matches!(end, End::FailsInStep { .. }) && row.attempts < attempts;
            if row.status == RunStatus::Failed && may_be_tried {
                let (id, tried) = (row.id, row.attempts);
                let what = format!("run {id} has failed after {tried} attempts of {attempts}");
                self.violate(Promise::RetriesGoOn, what);
            }
        }
    }

    /// What operators were told has come true.
    fn check_requests(&self) {
        let mut broken = Vec::new();
        let book = self.ledger.book();
        let requests = &book.requests;
        for run in &self.ending.runs {
            let (id, status) = (run.row.id, run.row.status);
            let is_asked = requests.was_asked(id, Request::Cancel);
            // The next tick of its schedule may have cancelled it.
            let schedule = schedules::number(&run.row.tags).map(|it| self.plan.schedules[it]);
            let is_asked =
                is_asked || schedule.is_some_and(|it| it.overlap() == Overlap::CancelOld);
            if status == RunStatus::Cancelled && !is_asked && program_of(&run.row.tags).is_some() {
                broken.push(format!("run {id} is cancelled, and nobody has asked for that"));
            }
            if requests.cancelled.contains(&id) && status != RunStatus::Cancelled {
                broken.push(format!("run {id} was said to be cancelled, and is {status:?}"));
            }
            if requests.deleted.contains(&id) {
                broken.push(format!("run {id} was said to be deleted, and is there"));
            }
            let told = requests.retried.get(&id).copied().unwrap_or_default();
            let asked = requests.count(id, Request::Retry).begun;
            // By the policy of its workflow, too.
            let asked = asked + self.plan.run_retry.map_or(0, |retry| retry.attempts - 1);
            let retries = run.row.attempts.saturating_sub(1);
            if !(told..=asked).contains(&retries) {
                broken.push(format!(
                    "run {id} was tried again {retries} times, after {asked} requests, of which \
                     {told} were said to be granted"
                ));
            }
        }
        for ((run, name), value) in &requests.tags {
            let Some(row) = self.row(*run) else { continue };
            let tagged = row.tags.iter().find(|(other, _)| other == name);
            if let Some(value) = value
                && tagged.is_none_or(|(_, tagged)| tagged != value)
            {
                broken.push(format!("run {run} has {tagged:?}, where `{value}` was set"));
            }
        }
        drop(book);
        for what in broken {
            self.violate(Promise::ToldStaysTrue, what);
        }
    }

    /// A run that was imported is there as it was exported, unless it was deleted since.
    fn check_imported(&self) {
        let imported = self.ledger.book().requests.imported.clone();
        for (run, file) in imported {
            let Some((file, deletes)) = file else {
                continue;
            };
            let now = self.ledger.book().requests.count(run, Request::Delete).begun;
            if now > deletes {
                continue;
            }
            let Some(row) = self.row(run) else {
                let what = format!("run {run} was imported, and is gone");
                self.violate(Promise::ToldStaysTrue, what);
                continue;
            };
            let Cold { stays, .. } = replay_file(self.plan, self.ledger, row, &file);
            let taken = stays.last().map(|stay| stay.all_taken()).unwrap_or_default();
            if taken != self.finals[&run] {
                let what = format!("run {run} has taken {taken:?} before it was imported");
                self.violate(Promise::ReplayIsExact, what);
            }
        }
    }

    /// A request that was replied to is taken for good by the run that has replied.
    fn check_replies(&self) {
        let replies = self.ledger.book().replies.clone();
        for (message, told) in replies {
            let of = |run: &&Ended| reply(run.row.id, &message) == told;
            let Some(run) = self.ending.runs.iter().find(of) else {
                if !self.ledger.book().requests.was_ever_asked(Request::Delete) {
                    let what = format!("no run has replied `{told}` to `{message}`");
                    self.violate(Promise::ToldStaysTrue, what);
                }
                continue;
            };
            let is_it =
                |taken: &Taken| matches!(&taken.got, Got::Message(_, other) if *other == message);
            let is_taken = self.pasts[&run.row.id].iter().any(|(_, taken)| is_it(taken));
            if !is_taken && !self.was_set_aside(&message) {
                let what = format!("`{told}` was replied to `{message}`, which is not taken");
                self.violate(Promise::ToldStaysTrue, what);
            }
        }
    }

    /// Where the stay that gave a result has taken something else than a replay does.
    fn where_it_differs(&self, run: RunId, told: &Told) -> String {
        let stays = self.ledger.book().stays.clone();
        let gave = |stay: &&Arc<Stay>| {
            Told::Completed(digest(stay.order.carry, &stay.all_taken())) == *told
        };
        let mut stays = stays.iter().filter(|stay| stay.run == run);
        let Some(stay) = stays.find(gave).map(|stay| stay.all_taken()) else {
            return "; no stay has given that".to_owned();
        };
        let iterations = past::last_iterations(&self.finals[&run]);
        let last = past::without_earlier(&self.finals[&run], &iterations);
        let stay = past::without_earlier(&stay, &iterations);
        let at = stay.iter().zip(&last).position(|(one, other)| one != other);
        let at = at.unwrap_or_else(|| stay.len().min(last.len()));
        format!("; number {at} was {:?}, and is {:?} in a replay", stay.get(at), last.get(at))
    }

    /// What was delivered is taken, unread or a dead letter, once; and taken in the order of its sender.
    fn check_messages(&self) {
        let mut deliveries = Vec::new();
        let book = self.ledger.book();
        for sending in &book.sendings {
            if sending.is_delivered == Some(true) {
                let Sending { to, program, message, .. } = sending.clone();
                deliveries.push((to, program, message));
            }
        }
        drop(book);
        for run in self.ending.runs.iter().filter(|run| !is_fork(&run.row)) {
            for (_, taken) in &self.pasts[&run.row.id] {
                if let Got::Receipt(to, _, message, true) = &taken.got {
                    let mut programs = 0..self.plan.programs.len();
                    let program = programs.find(|number| key(*number) == *to);
                    deliveries.push((to.clone(), program, message.clone()));
                }
            }
        }
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut put = |message: &str, place: String| {
            places.entry(message.to_owned()).or_default().push(place);
        };
        for run in &self.ending.runs {
            let id = run.row.id;
            for (_, taken) in &self.pasts[&id] {
                if let Got::Message(_, message) = &taken.got
                    // A fork has taken over what was taken by the run that it is a fork of.
                    && (!is_fork(&run.row) || message.contains(&id.to_string()))
                {
                    put(message, format!("taken by {id} at {}", taken.at));
                }
            }
            for row in &run.inbox {
                if let Some(message) = text_of(&row.body) {
                    put(&message, format!("unread by {id}"));
                }
            }
        }
        for letter in &self.ending.letters {
            if let Some(message) = text_of(&letter.body) {
                put(&message, "a dead letter".to_owned());
            }
        }
        for (to, program, message) in deliveries {
            let may_be_deleted =
                program.is_some_and(|number| self.ledger.book().requests.may_be_deleted(number));
            let is_there = places.contains_key(&message) || self.was_set_aside(&message);
            if !is_there && !may_be_deleted {
                let what = format!("`{message}` was delivered to `{to}` and is nowhere");
                self.violate(Promise::NothingSentIsLost, what);
            }
        }
        for (message, places) in &places {
            if places.len() > self.times_sent(message) {
                let what = format!("`{message}` is {}", places.join(" and "));
                self.violate(Promise::MessageIsTakenOnce, what);
            }
        }
        self.check_message_order();
    }

    /// Whether an earlier attempt of a run has taken a message: what it has taken after what is made
    /// fresh is set aside, with the message.
    fn was_set_aside(&self, message: &str) -> bool {
        let stays = self.ledger.book().stays.clone();
        stays.iter().any(|stay| {
            let is_earlier = self.row(stay.run).is_some_and(|row| stay.attempt < row.attempts);
            let is_it =
                |taken: &Taken| matches!(&taken.got, Got::Message(_, other) if other == message);
            is_earlier && stay.all_taken().iter().any(is_it)
        })
    }

    /// How often a message or an event may be there: a run that is tried again sends and publishes again
    /// what it had after what is made fresh.
    pub(super) fn times_sent(&self, message: &str) -> usize {
        let sender = message.split_once('.').and_then(|(run, _)| run.parse::<RunId>().ok());
        match sender.map(|run| self.row(run)) {
            Some(Some(row)) => row.attempts as usize,
            // It was deleted.
            Some(None) => usize::MAX,
            None => 1,
        }
    }

    /// Every item that was put in for good was worked on.
    fn check_items(&self) {
        for run in self.ending.runs.iter().filter(|run| !is_fork(&run.row)) {
            let (id, generation) = (run.row.id, run.row.generation);
            for taken in &self.finals[&id] {
                let place = Place { run: id, generation, at: taken.at.clone() };
                let handled = self.ledger.book().items.get(&place).cloned().unwrap_or_default();
                // Its workers may have died before they began.
                let is_dead = self.ending.dead_items.contains(&place);
                if taken.got == Got::Item && handled.begun == 0 && !is_dead {
                    let what = format!("no worker has begun with the item of {place}");
                    self.violate(Promise::ItemsAreDoneOnce, what);
                }
            }
        }
    }

    fn check_shown(&self) {
        for run in self.ending.runs.iter().filter(|_| self.plan.shows) {
            let id = run.row.id;
            // A file has no streams.
            if self.ledger.book().requests.imported.contains_key(&id) {
                continue;
            }
            let (shown, taken) = (&self.shown[&id], &self.finals[&id]);
            let is_whole = self.ended.contains(&id);
            self.ledger.check_shown(&run.row, shown, taken, is_whole);
        }
    }

    /// Clients number their messages, and send one after another.
    fn check_message_order(&self) {
        for (run, last) in &self.finals {
            let mut seen: BTreeMap<(u32, &str), u64> = BTreeMap::new();
            let mut named = BTreeSet::new();
            for taken in last {
                let Got::Message(channel, message) = &taken.got else {
                    continue;
                };
                let Some((client, number)) = message.split_once(':') else {
                    continue;
                };
                let Ok(number) = number.parse::<u64>() else {
                    continue;
                };
                let before = seen.insert((*channel, client), number);
                if before.is_some_and(|before| before > number) && named.insert(client) {
                    let what = format!("run {run} took `{message}` after number {before:?}");
                    self.violate(Promise::MessagesAreInOrder, what);
                }
            }
        }
    }
}

/// Whether a run is a fork of another.
pub(crate) fn is_fork(row: &RunRow) -> bool {
    row.tags.iter().any(|(name, _)| name == "everstep.forked_from")
}

/// A message that is a text.
fn text_of(payload: &[u8]) -> Option<String> {
    testing::internal::decode_text(payload)
}
