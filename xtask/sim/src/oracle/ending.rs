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
    RunId, RunStatus,
    store::{DeadLetter, InboxRow, MemoryStore, RunRow},
    testing::{
        self,
        simulation::{Report, Server},
    },
};

use super::{
    Promise, Violation,
    ledger::{Got, Ledger, Stay, Taken, Told, digest},
    past,
};
use crate::{
    plan::Plan,
    work::{
        Order, PERFORM, key,
        perform::{Code, perform},
        program::End,
    },
    world::engines::Engines,
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
        let (finals, carries) = finals(plan, ledger, ending);
        let pasts = pasts(ledger, ending, &finals, &carries);
        let data = &left.server.data;
        let judgement = Judgement { plan, ledger, ending, data, finals, carries, pasts };
        judgement.check_seen();
        judgement.check_values();
        judgement.check_told();
        judgement.check_messages();
        judgement.check_events();
        judgement.check_deferreds();
        judgement.check_children();
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

fn finals(plan: &Plan, ledger: &Ledger, ending: &Ending) -> (Finals, Carries) {
    let (mut finals, mut carries) = (Finals::new(), Carries::new());
    for run in &ending.runs {
        let cold = Ledger::new(None);
        let code = Arc::new(Code {
            programs: plan.programs.clone(),
            ledger: cold.clone(),
            process: "replay".to_owned(),
            client: OnceLock::new(),
        });
        let code = move |ctx, order: Order| perform(code.clone(), ctx, order);
        let replay = testing::replay(&run.file);
        let replayed = replay.against_fn(PERFORM.version(run.row.version), code);
        if let Err(error) = replayed {
            let what = format!("a cold replay of run {}: {error}", run.row.id);
            ledger.violate(Promise::ReplayIsExact, what);
        }
        let stays = cold.book().stays.clone();
        let taken = stays.last().map(|stay| stay.all_taken());
        finals.insert(run.row.id, taken.unwrap_or_default());
        let before = (run.row.id, run.row.generation.saturating_sub(1));
        let carry = match stays.last() {
            Some(stay) => Some(stay.order.carry),
            // The code of this generation was not called.
            None => ledger.book().continued.get(&before).and_then(|all| all.first().copied()),
        };
        carries.insert(run.row.id, carry.unwrap_or_default());
    }
    (finals, carries)
}

/// What the code of each run has taken, and in which generation.
type Pasts = BTreeMap<RunId, Vec<(u32, Taken)>>;

/// What the code of each run has taken for good, also where a replay jumps over it.
fn pasts(ledger: &Ledger, ending: &Ending, finals: &Finals, carries: &Carries) -> Pasts {
    let mut pasts = Pasts::new();
    let all = ledger.book().stays.clone();
    for run in &ending.runs {
        let id = run.row.id;
        let (mut last, mut carry) = (finals[&id].clone(), carries[&id]);
        let mut past = Vec::new();
        // From the last generation back: the one before is that which has come to the carry of this one.
        for generation in (1..=run.row.generation).rev() {
            let stays = |generation| {
                let stays = all.iter();
                stays.filter(move |it| (it.run, it.generation) == (id, generation))
            };
            let taken: Vec<_> = stays(generation).map(|stay| stay.all_taken()).collect();
            let whole = past::whole(&last, &taken).unwrap_or_else(|what| {
                ledger.violate(Promise::ReplayIsExact, format!("run {id}: {what}"));
                last.clone()
            });
            past.extend(whole.into_iter().map(|taken| (generation, taken)));
            let has_come_to_it =
                |stay: &&Arc<Stay>| digest(stay.order.carry, &stay.all_taken()) == carry;
            if let Some(before) = stays(generation - 1).find(has_come_to_it) {
                (last, carry) = (before.all_taken(), before.order.carry);
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
    plan: &'a Plan,
    pub(super) ledger: &'a Ledger,
    ending: &'a Ending,
    pub(super) data: &'a MemoryStore,
    finals: Finals,
    carries: Carries,
    /// The finals, and what replays jump over.
    pub(super) pasts: Pasts,
}

impl Judgement<'_> {
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
                let what = format!("run {} is gone", stay.run);
                self.violate(Promise::SeenIsDurable, what);
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
                let mut given = book.given.iter().filter(|(place, _)| place.run == id);
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
                let what = format!("run {run} was said to have ended, and is gone");
                self.violate(Promise::ToldStaysTrue, what);
                continue;
            };
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
        for (number, program) in self.plan.programs.iter().enumerate() {
            let key = key(number);
            let mut runs = self.ending.runs.iter();
            let Some(run) = runs.find(|it| it.row.key.as_deref() == Some(&key)) else {
                let what = format!("there is no run with the key `{key}`");
                self.violate(Promise::ToldStaysTrue, what);
                continue;
            };
            let expected = match program.end {
                End::Completes => RunStatus::Completed,
                End::Fails => RunStatus::Failed,
            };
            let has_ended = matches!(run.row.status, RunStatus::Completed | RunStatus::Failed);
            if has_ended && run.row.status != expected {
                let (id, status) = (run.row.id, run.row.status);
                let what = format!("run {id} is {status:?}, and its program {:?}", program.end);
                self.violate(Promise::ReplayIsExact, what);
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
                deliveries.push((sending.to.clone(), sending.message.clone()));
            }
        }
        drop(book);
        for (_, taken) in self.pasts.values().flatten() {
            if let Got::Receipt(to, _, message, true) = &taken.got {
                deliveries.push((to.clone(), message.clone()));
            }
        }
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut put = |message: &str, place: String| {
            places.entry(message.to_owned()).or_default().push(place);
        };
        for run in &self.ending.runs {
            let id = run.row.id;
            for (_, taken) in &self.pasts[&id] {
                if let Got::Message(_, message) = &taken.got {
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
        for (to, message) in deliveries {
            if !places.contains_key(&message) {
                let what = format!("`{message}` was delivered to `{to}` and is nowhere");
                self.violate(Promise::NothingSentIsLost, what);
            }
        }
        for (message, places) in &places {
            if places.len() > 1 {
                let what = format!("`{message}` is {}", places.join(" and "));
                self.violate(Promise::MessageIsTakenOnce, what);
            }
        }
        self.check_message_order();
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

/// A message that is a text.
fn text_of(payload: &[u8]) -> Option<String> {
    testing::internal::decode_text(payload)
}
