//! What operators do to runs, from the same processes as clients: they pause, resume, cancel, retry,
//! delete, fork and tag them, one by one or all at once, and do not wait for each other.

use std::time::Duration;

use everstep::{
    BulkError, BulkReport, Client, ClientError, Filter, RunHandle, RunStatus,
    testing::simulation::{self, Rng},
};
use serde::{Deserialize, Serialize};

use super::clients::Outside;
use crate::{
    oracle::{Promise, ledger::note, requests::Request},
    plan::{Act, Deed},
    work::{
        PROGRAM_TAG,
        program::{End, Op},
    },
};

/// Something that is done to the run of a program, or to all runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Pauses it, and lets it go on after a while, if that is said.
    Pause {
        program: usize,
        lasts: Option<Duration>,
    },
    Resume(usize),
    Cancel {
        program: usize,
        rollback: bool,
    },
    Retry(usize),
    Delete {
        program: usize,
        forget_key: bool,
    },
    /// Forks it from one of the steps in its history: the one with this number, modulo how many there
    /// are.
    Fork {
        program: usize,
        from: Option<u64>,
        key: String,
    },
    Tag {
        program: usize,
        value: u32,
    },
    /// Exports it, deletes it, and imports it again, if it has completed or was cancelled.
    Reimport(usize),
    /// The same to all runs.
    Bulk {
        request: Request,
        rollback: bool,
    },
}

/// The kinds of operations, each with how often it is drawn against the others.
const KINDS: [(Kind, u64); 9] = [
    (Kind::Pause, 10),
    (Kind::Resume, 2),
    (Kind::Cancel, 3),
    (Kind::Retry, 4),
    (Kind::Delete, 2),
    (Kind::Fork, 2),
    (Kind::Tag, 2),
    (Kind::Bulk, 2),
    (Kind::Reimport, 2),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pause,
    Resume,
    Cancel,
    Retry,
    Delete,
    Fork,
    Tag,
    Bulk,
    Reimport,
}

/// Draws what the operators of a life do.
pub(crate) struct Draw<'a> {
    rng: &'a mut Rng,
    kinds: Vec<(Kind, u64)>,
    programs: usize,
    lease: Duration,
}

impl<'a> Draw<'a> {
    /// Not all lives that have operators have all that they do.
    pub(crate) fn new(
        rng: &'a mut Rng,
        programs: usize,
        lease: Duration,
        is_operated: bool,
    ) -> Draw<'a> {
        let mut kinds = KINDS.to_vec();
        kinds.retain(|_| is_operated && rng.below(3) > 0);
        Draw { rng, kinds, programs, lease }
    }

    /// Adds operations to the script of a client, before it waits for results.
    pub(crate) fn add_to(&mut self, client: usize, script: &mut Vec<Act>) {
        if self.kinds.is_empty() {
            return;
        }
        for number in 0..self.rng.below(10) {
            let operation = self.operation(client, number);
            let waits = script.iter().position(|act| act.deed.only_waits());
            let end = waits.unwrap_or(script.len()) as u64;
            let at = self.rng.below(end + 1) as usize;
            let after = match self.rng.below(3) {
                0 => Duration::ZERO,
                1 => self.rng.up_to(self.lease / 4),
                _ => self.rng.up_to(self.lease * 2),
            };
            script.insert(at, Act { after, deed: Deed::Operate(operation) });
        }
    }

    fn operation(&mut self, client: usize, number: u64) -> Operation {
        let all: u64 = self.kinds.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.below(all);
        let kind = self.kinds.iter().find(|(_, weight)| {
            let is_drawn = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_drawn
        });
        let kind = kind.map_or(Kind::Tag, |(kind, _)| *kind);
        let rng = &mut *self.rng;
        let program = rng.below(self.programs as u64) as usize;
        match kind {
            Kind::Pause => Operation::Pause {
                program,
                lasts: match rng.below(4) {
                    0 => None,
                    1 => Some(Duration::ZERO),
                    2 => Some(rng.up_to(self.lease / 4)),
                    _ => Some(rng.up_to(self.lease * 3)),
                },
            },
            Kind::Resume => Operation::Resume(program),
            Kind::Reimport => Operation::Reimport(program),
            Kind::Cancel => Operation::Cancel { program, rollback: rng.below(2) == 0 },
            Kind::Retry => Operation::Retry(program),
            Kind::Delete => Operation::Delete { program, forget_key: rng.below(4) == 0 },
            Kind::Fork => Operation::Fork {
                program,
                from: (rng.below(4) > 0).then(|| rng.draw()),
                key: format!("fork-{client}-{number}"),
            },
            Kind::Tag => Operation::Tag { program, value: rng.below(3) as u32 },
            Kind::Bulk => Operation::Bulk {
                request: [
                    Request::Pause,
                    Request::Pause,
                    Request::Resume,
                    Request::Resume,
                    Request::Retry,
                    Request::Retry,
                    Request::Delete,
                    Request::Cancel,
                ][rng.below(8) as usize],
                rollback: rng.below(2) == 0,
            },
        }
    }
}

impl Outside {
    pub(crate) fn operate(&self, operation: &Operation) {
        if self.plan.sky.is_calm(simulation::time()) {
            // From then on nothing is done that keeps runs from their end.
            return;
        }
        match operation {
            Operation::Pause { program, lasts } => self.with_run(*program, |run| {
                self.pause(run);
                if let Some(lasts) = lasts {
                    simulation::sleep(*lasts);
                    self.resume(run);
                }
            }),
            Operation::Resume(program) => self.with_run(*program, |run| self.resume(run)),
            Operation::Cancel { program, rollback } => {
                self.with_run(*program, |run| self.cancel(run, *rollback));
            }
            Operation::Retry(program) => self.with_run(*program, |run| self.retry(*program, run)),
            Operation::Delete { program, forget_key } => {
                self.with_run(*program, |run| self.delete(*program, run, *forget_key));
            }
            Operation::Fork { program, from, key } => {
                self.with_run(*program, |run| self.fork(run, *from, key));
            }
            Operation::Tag { program, value } => {
                self.with_run(*program, |run| self.tag(run, *value))
            }
            Operation::Reimport(program) => {
                self.with_run(*program, |run| self.reimport(*program, run))
            }
            Operation::Bulk { request, rollback } => self.bulk(*request, *rollback),
        }
    }

    /// Asks something of a run, and writes down that it does.
    fn ask<T>(
        &self,
        run: &RunHandle<u64>,
        request: Request,
        asked: impl IntoFuture<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        self.ledger.book().requests.begin(Some(run.id()), request);
        let answer = simulation::block_on(asked);
        self.ledger.book().requests.end(Some(run.id()), request);
        answer
    }

    /// A request was not granted: the run was in another state, is gone, or the store has failed.
    fn refused(
        &self,
        run: &RunHandle<u64>,
        what: &str,
        error: &ClientError,
        fits: fn(RunStatus) -> bool,
    ) {
        match error {
            ClientError::WrongStatus { status, .. } if fits(*status) => {}
            ClientError::UnknownRun { .. } if self.ledger.may_be_deleted(run.id()) => {}
            error => self.expect_store_error(what, error),
        }
    }

    fn pause(&self, run: &RunHandle<u64>) {
        let ends = self.ledger.book().requests.ends_of_pause(run.id());
        match self.ask(run, Request::Pause, run.pause()) {
            Ok(is_new) => {
                note(|| format!("run {} is paused: {is_new}", run.id()));
                if is_new {
                    simulation::sleep(Duration::from_millis(simulation::random() % 500));
                    self.ledger.check_is_paused(run.id(), ends);
                }
            }
            // One that is being cancelled cannot be paused, either.
            Err(error) => self.refused(run, "a pause", &error, |_| true),
        }
    }

    pub(crate) fn resume(&self, run: &RunHandle<u64>) {
        match self.ask(run, Request::Resume, run.resume()) {
            Ok(()) => note(|| format!("run {} is resumed", run.id())),
            Err(error) => {
                self.refused(run, "a resume", &error, |status| status != RunStatus::Paused);
            }
        }
    }

    fn cancel(&self, run: &RunHandle<u64>, rollback: bool) {
        let cancel = match rollback {
            true => run.cancel().with_rollback(),
            false => run.cancel(),
        };
        match self.ask(run, Request::Cancel, cancel) {
            Ok(true) => {
                note(|| format!("run {} is being cancelled", run.id()));
                self.ledger.book().requests.cancelled.insert(run.id());
            }
            Ok(false) => {}
            Err(error) => self.refused(run, "a cancel", &error, |status| !status.is_terminal()),
        }
    }

    fn retry(&self, program: usize, run: &RunHandle<u64>) {
        match self.ask(run, Request::Retry, run.retry()) {
            Ok(()) => {
                note(|| format!("run {} is tried again", run.id()));
                *self.ledger.book().requests.retried.entry(run.id()).or_default() += 1;
                if self.plan.programs[program].end == End::Fails {
                    let what = format!("run {} failed by its own code, and is retried", run.id());
                    self.ledger.violate(Promise::ToldStaysTrue, what);
                }
            }
            // One that has failed may have done so by its own code.
            Err(error) => self.refused(run, "a retry", &error, |_| true),
        }
    }

    /// Exports a run whose end is final, deletes it, and imports it again.
    fn reimport(&self, program: usize, run: &RunHandle<u64>) {
        match simulation::block_on(run.status()) {
            // One that has failed may be tried again meanwhile.
            Ok(RunStatus::Completed | RunStatus::Cancelled) => {}
            Ok(_) => return,
            Err(error) => return self.refused(run, "a look", &error, |_| false),
        }
        let file = match simulation::block_on(run.export()) {
            Ok(file) => file,
            Err(error) => return self.refused(run, "an export", &error, |_| false),
        };
        if self.import(run, &file) == Some(true) && !self.ledger.may_be_deleted(run.id()) {
            let what = format!("run {} was imported beside itself", run.id());
            self.ledger.violate(Promise::ToldStaysTrue, what);
        }
        self.delete(program, run, true);
        let mut book = self.ledger.book();
        let is_deleted = book.requests.deleted.remove(&run.id());
        let deletes = book.requests.count(run.id(), Request::Delete).begun;
        if is_deleted {
            book.requests.imported.insert(run.id(), None);
            drop(book);
            if self.import(run, &file) == Some(true) {
                let imported = Some((file, deletes));
                self.ledger.book().requests.imported.insert(run.id(), imported);
            }
        }
    }

    /// Whether the run was imported; none if the client was not told.
    fn import(&self, run: &RunHandle<u64>, file: &[u8]) -> Option<bool> {
        match simulation::block_on(self.client.import(file)) {
            Ok(imported) => {
                note(|| format!("run {} is imported", run.id()));
                let is_same = imported.id() == run.id();
                if !is_same {
                    let what = format!("run {} was imported as {}", run.id(), imported.id());
                    self.ledger.violate(Promise::ToldStaysTrue, what);
                }
                Some(true)
            }
            Err(ClientError::Taken { .. }) => Some(false),
            Err(error) => {
                self.expect_store_error("an import", &error);
                None
            }
        }
    }

    fn delete(&self, program: usize, run: &RunHandle<u64>, forget_key: bool) {
        self.ledger.book().requests.programs_deleted.insert(program);
        let delete = match forget_key {
            true => run.delete().forget_key(),
            false => run.delete(),
        };
        match self.ask(run, Request::Delete, delete) {
            Ok(()) => {
                note(|| format!("run {} is deleted", run.id()));
                self.ledger.book().requests.deleted.insert(run.id());
            }
            Err(error) => self.refused(run, "a delete", &error, |status| !status.is_terminal()),
        }
    }

    fn fork(&self, run: &RunHandle<u64>, from: Option<u64>, key: &str) {
        let mut ops = self.plan.programs.iter().flat_map(|program| program.all());
        if ops.any(|op| matches!(op, Op::Deferred(_))) {
            // It would wait for a token that was handed out by the body of the other run.
            return;
        }
        let mut fork = run.fork().key(key);
        if let Some(number) = from {
            let history = match simulation::block_on(run.history()) {
                Ok(history) => history,
                Err(error) => return self.refused(run, "a history", &error, |_| false),
            };
            let numbered = history.into_iter().filter(|entry| entry.number.is_some());
            let steps: Vec<String> = numbered.map(|entry| entry.location).collect();
            if let Some(at) = (!steps.is_empty()).then(|| number % steps.len() as u64) {
                note(|| format!("a fork from {}", steps[at as usize]));
                fork = fork.from(steps[at as usize].clone());
            }
        }
        match simulation::block_on(fork.start()) {
            Ok(fork) => note(|| format!("run {} is a fork of run {}", fork.id(), run.id())),
            // What it was to begin with is gone by now.
            Err(ClientError::Fork { problem, .. }) => note(|| format!("no fork: {problem}")),
            Err(error) => self.refused(run, "a fork", &error, |_| false),
        }
    }

    fn tag(&self, run: &RunHandle<u64>, value: u32) {
        let (name, value) = (format!("tag of {}", self.name), value.to_string());
        let of = (run.id(), name.clone());
        self.ledger.book().requests.tags.insert(of.clone(), None);
        match simulation::block_on(run.tag(&name, &value)) {
            Ok(_) => _ = self.ledger.book().requests.tags.insert(of, Some(value)),
            Err(error) => self.refused(run, "a tag", &error, |_| false),
        }
    }

    fn bulk(&self, request: Request, rollback: bool) {
        self.ledger.book().requests.begin(None, request);
        let done = simulation::block_on(bulk(&self.client, request, rollback));
        self.ledger.book().requests.end(None, request);
        match done {
            Ok(report) => note(|| format!("{request:?} of all: {report:?}")),
            Err(BulkError { source, .. }) => {
                self.expect_store_error("something done to all", &source);
            }
        }
    }
}

async fn bulk(client: &Client, request: Request, rollback: bool) -> Result<BulkReport, BulkError> {
    let all = client.bulk(Filter::new().workflow("perform"));
    match request {
        Request::Pause => all.pause().await,
        Request::Resume => all.resume().await,
        Request::Cancel if rollback => all.cancel_with_rollback().await,
        Request::Cancel => all.cancel().await,
        Request::Retry => all.retry().await,
        Request::Delete => all.delete().await,
    }
}

/// The program of a run, by its tags.
pub(crate) fn program_of(tags: &[(String, String)]) -> Option<usize> {
    let tag = tags.iter().find(|(name, _)| name == PROGRAM_TAG)?;
    tag.1.parse().ok()
}
