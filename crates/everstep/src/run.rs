//! Drives one run: polls its future until it is quiet, offers completions in order, turns what
//! changed into commits, parks it.
//!
//! A [`Run`] belongs to one engine thread and does nothing by itself: it knows neither the store
//! nor the clock nor other runs. Its owner calls [`Run::drive`] when something has happened,
//! sends off what [`Run::next_commit`] gives, and reports the answer with [`Run::committed`] or
//! [`Run::refused`]. So a test can be the owner, and crash it between any two calls.
//!
//! Always true:
//! - At most one commit of a run is in flight.
//! - Commits are made while the run is quiet, so each holds everything that its code has done up
//!   to the numbers in it.
//! - A body starts only after everything that the code has taken by then is durable. It waits for at
//!   most two commits: the one in flight when its step is made, and the next. While that one is in
//!   flight nothing is offered; whatever was taken could only be in the commit after it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    codec::DecodeError,
    ctx::Ctx,
    error::{Error, Failure, FailureKind},
    history::EntryKind,
    panics,
    time::Timestamp,
    workflow::OnFailure,
};

pub(crate) mod core;
mod definition;
mod flush;
pub(crate) mod fork;
pub(crate) mod inbox;
mod limits;
mod load;
mod mended;
pub(crate) mod owner;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
pub(crate) mod waits;
pub(crate) mod wakers;

use self::core::{Core, Mode, Phase};
pub(crate) use definition::{Definition, RunEnd, RunFuture};
pub(crate) use flush::{Next, WAITS_IN_ROW, decode_origins};
pub(crate) use limits::is_at_gate;
pub(crate) use load::{RunSeed, SUSPECT_AFTER, commit_unloaded, highest_number};
pub(crate) use mended::is_mended_by_deploy;

/// Why a run cannot go on with the code that is here. It is paused with this as the reason, and
/// goes on when matching code is back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Halt {
    #[error(
        "the code does not match the history: at `{at}` the history has {recorded:?}, the code \
             makes {code:?}; deploy code that matches, or gate the change with `ctx.version`"
    )]
    AnotherKind { at: String, recorded: EntryKind, code: EntryKind },
    #[error(
        "the code does not match the history: `{at}` was made after completion {recorded} and \
             is now made after completion {code}; operations were inserted or reordered before it. \
             Deploy code that matches, or gate the change with `ctx.version`"
    )]
    Moved { at: String, recorded: u64, code: u64 },
    #[error(
        "the code does not match the history: completion {number} was taken by `{at}`, which \
             the code {why}; open are: {open}. Deploy code that matches, gate the change with \
             `ctx.version`, or name what is gone with `ctx.removed`"
    )]
    NotTaken { number: u64, at: String, why: &'static str, open: String },
    #[error(
        "the code does not match the history: it ended before completion {number} of `{at}`; \
             deploy code that matches, or gate the change with `ctx.version`"
    )]
    EndedEarly { number: u64, at: String },
    #[error(
        "the code does not match the history: `{at}` ({kind:?}) is recorded, and the code does \
             not make it any more; deploy code that matches, gate the change with `ctx.version`, \
             or name it with `ctx.removed`"
    )]
    Unclaimed { at: String, kind: EntryKind },
    #[error("{what} cannot be decoded: {error}; deploy code whose types fit what is stored")]
    Undecodable { what: String, error: DecodeError },
    #[error(
        "{what} cannot be decoded: {error}; start an engine with the codec and the keys that it \
             was written with"
    )]
    Sealed { what: String, error: DecodeError },
    #[error("{what} cannot be encoded: {error}; start an engine whose codec can")]
    Unsealable { what: String, error: String },
    #[error(
        "the workflow awaits something that is not durable{hint}; put it into a `ctx.step`, or \
             use `ctx.sleep`, `ctx.listen` and the other operations"
    )]
    ForeignAwait { hint: String },
    #[error(
        "the body of `{body}` makes {made}: a body does not run again on replay, so this would be \
             missing there. Do it outside of the body, before or after the step; what belongs \
             together can be a `ctx.join`, a `ctx.attempt`, a `ctx.scope`, or a run of its own with \
             `ctx.child`"
    )]
    InsideBody { body: String, made: String },
    #[error(
        "the workflow never comes to rest: it wakes itself in every poll; await only \
             operations of `ctx`"
    )]
    NeverQuiet,
    #[error(
        "`{at}` was running each of the {deaths} times that the process died; mend it, then \
             resume the run"
    )]
    CrashLoop { at: String, deaths: u32 },
    #[error(
        "`{at}` has to be rolled back, and the code has no rollback for it; deploy code that \
             has it"
    )]
    RollbackMissing { at: String },
    #[error(
        "the rollback of `{at}` failed after {attempts} attempts: {error}; mend the cause, then \
             resume the run"
    )]
    RollbackFailed { at: String, attempts: u32, error: String },
    #[error(
        "the workflow failed, and it is set to pause then: {error}; mend the cause, then \
             resume the run"
    )]
    OnFailure { error: String },
}

impl Halt {
    /// What is stored cannot be read: by this code, or without this codec or key.
    pub(crate) fn unreadable(what: String, error: DecodeError) -> Halt {
        match error {
            DecodeError::NoCodec { .. } | DecodeError::Codec { .. } => Halt::Sealed { what, error },
            error => Halt::Undecodable { what, error },
        }
    }
}

/// How the code of a run has ended.
pub(crate) enum End {
    /// With an output.
    Output(Vec<u8>),
    /// With an error.
    Error(Error),
    /// It is not to go on: a cancel was requested.
    Cancel,
    /// Its rollbacks are done.
    RolledBack,
    /// With a new beginning.
    Continue(core::Next),
}

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The workflow's code.
    Forward,
    /// Finding the rollbacks by a replay in which no body starts.
    Collecting,
    /// The rollbacks.
    RollingBack,
}

/// One run in its owner's memory.
pub(crate) struct Run {
    pub(crate) core: Rc<Core>,
    definition: Arc<Definition>,
    input_bytes: usize,
    root: Option<RunFuture>,
    waker: Waker,
    pub(crate) stage: Stage,
    end: Option<End>,
    /// The limit of the whole run, until it has let the run in.
    gate: Option<limits::Gate>,
    flush: flush::Flush,
    /// The run is to end before its code does.
    stopping: Option<Stopping>,
    /// Its owner wants no body to start: shutdown, or a shard that is given back.
    drained: bool,
    /// Only tried against the code that is here: see [`trial`].
    on_trial: bool,
}

/// A run that is to end, and lets its bodies end by themselves before.
#[derive(Clone, Copy)]
struct Stopping {
    cause: Cause,
    /// Until then bodies in flight may end.
    until: Timestamp,
}

/// Why a run is to end before its code does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Cancel,
    Deadline,
}

/// A workflow that is still not quiet after this many polls never will be.
const POLLS_MAX: u32 = 100_000;

impl Run {
    /// Does everything that can be done without a commit or an event: fires due timers, polls the
    /// code, offers completions. After it the run is quiet, at its end, or halted.
    pub(crate) fn drive(&mut self) {
        if self.end.is_some() {
            return;
        }
        let core = self.core.clone();
        self.check_foreign();
        core.fire_timers();
        self.check_deadline();
        if self.ends_if_stopped() || core.state.borrow().halt.is_some() || !self.pass_gate() {
            return;
        }
        loop {
            self.settle();
            core.starts_polled();
            if self.end.is_some() || core.state.borrow().halt.is_some() {
                break;
            }
            let next = core.state.borrow_mut().continuing.take();
            if let Some(next) = next {
                self.finish(End::Continue(next));
                break;
            }
            let mode = core.state.borrow().mode;
            let moved = match mode {
                Mode::Live => self.offer_next(),
                Mode::Replay => self.replay_next(),
                Mode::Collect => self.collect_next(),
            };
            if !moved {
                break;
            }
        }
        core.note_lagging();
        if !self.ends_if_stopped() && !self.on_trial {
            self.check_rest();
        }
    }

    /// The deadline of the run ends it, whatever it is doing; its rollbacks still run. A run that is to
    /// end already goes by the first cause.
    fn check_deadline(&mut self) {
        let deadline = self.core.facts.deadline_at;
        let passed = deadline.is_some_and(|at| at <= self.core.now());
        if passed && self.stage == Stage::Forward && self.stopping.is_none() {
            self.stop(Cause::Deadline);
        }
    }

    /// The code is done: it is dropped, and with it everything that was open.
    fn finish(&mut self, end: End) {
        self.root = None;
        self.end = Some(end);
    }

    /// Ends the run because a cancel was requested.
    pub(crate) fn cancel(&mut self) {
        if self.stage == Stage::Forward && self.end.is_none() {
            self.stop(Cause::Cancel);
        }
    }

    /// Ends the run before its code does. Bodies in flight are told, and may end by themselves for a
    /// while: a result counts, so that its rollback is found. Nothing else moves.
    fn stop(&mut self, cause: Cause) {
        let grace = self.core.env.settings.stop_grace;
        let until = self.stopping.map(|it| it.until);
        let until = until.unwrap_or_else(|| self.core.now() + grace);
        self.stopping = Some(Stopping { cause, until });
        if !self.ends_if_stopped() {
            self.hold_still();
            self.core.tell_bodies();
        }
    }

    /// Ends a run that is to end, once its bodies have ended or have had their time; whether it has.
    fn ends_if_stopped(&mut self) -> bool {
        let stopping = self.stopping.filter(|_| self.end.is_none());
        let now = self.core.now();
        let stopped = stopping.filter(|it| self.bodies() == 0 || it.until <= now);
        let Some(Stopping { cause, .. }) = stopped else {
            return false;
        };
        self.finish(match cause {
            Cause::Cancel => End::Cancel,
            Cause::Deadline => {
                let deadline = self.core.facts.deadline_at.unwrap_or_default();
                let text = format!("the deadline of the run, {deadline}, has passed");
                let failure = Failure::new(FailureKind::Deadline, text);
                End::Error(Error::recorded(failure, Vec::new()))
            }
        });
        true
    }

    /// Lets no body start that may not, and no completion be taken that cannot be written.
    fn hold_still(&self) {
        let is_stopping = self.stopping.is_some();
        let mut st = self.core.state.borrow_mut();
        st.draining = self.drained || self.flush.results_only() || is_stopping;
        st.leaving = self.flush.results_only() || is_stopping;
    }

    /// Polls the root until no wake comes from inside it.
    fn settle(&mut self) {
        let core = self.core.clone();
        for _ in 0..POLLS_MAX {
            let Some(root) = self.root.as_mut() else {
                return;
            };
            core.begin_poll();
            core.root.take_woken();
            let polled = {
                let _polling = wakers::polling(core.root.run());
                let _entered = core.telemetry.get().map(|it| it.span.enter());
                let mut cx = Context::from_waker(&self.waker);
                catch_unwind(AssertUnwindSafe(|| root.as_mut().poll(&mut cx)))
            };
            core.end_poll();
            match polled {
                Ok(Poll::Pending) if core.root.take_woken() => {}
                Ok(Poll::Pending) => {
                    self.check_foreign();
                    return;
                }
                Ok(Poll::Ready(result)) => return self.root_ended(result),
                Err(panic) => {
                    let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
                    let error = Error::recorded(failure, Vec::new());
                    return self.root_ended(Err(RunEnd::Error(error)));
                }
            }
        }
        core.halt(Halt::NeverQuiet);
    }

    fn check_foreign(&self) {
        let Some(found) = self.core.root.foreign() else {
            return;
        };
        let hint = match found {
            wakers::ForeignWake::Outside => ": it was woken from outside",
            wakers::ForeignWake::FromBody => ": it was woken from inside the body of a step",
        };
        self.core.halt(Halt::ForeignAwait { hint: hint.to_owned() });
    }

    /// The code returned or panicked.
    fn root_ended(&mut self, result: Result<Vec<u8>, RunEnd>) {
        self.root = None;
        if self.stage == Stage::Collecting {
            return self.collected();
        }
        // What could not begin has not ended early either.
        let result = match result {
            Err(RunEnd::Halt(halt)) => return self.core.halt(halt),
            Err(RunEnd::Error(error)) => Err(error),
            Ok(output) => Ok(output),
        };
        let next = self.core.state.borrow().replay.front().cloned();
        if let Some((number, key)) = next {
            let at = Core::location(&key);
            return self.core.halt(Halt::EndedEarly { number, at });
        }
        let unclaimed = self.unclaimed();
        if let Some(halt) = unclaimed {
            return self.core.halt(halt);
        }
        match (result, self.stage) {
            (Ok(_), Stage::RollingBack) => self.end = Some(End::RolledBack),
            (Ok(output), _) => self.end = Some(End::Output(output)),
            (Err(error), Stage::RollingBack) => {
                let failure = error.failure();
                let at = failure.location.as_ref().map(ToString::to_string).unwrap_or_default();
                let (attempts, error) = (failure.attempts, failure.full());
                self.core.halt(Halt::RollbackFailed { at, attempts, error });
            }
            (Err(error), _) => self.end = Some(End::Error(error)),
        }
    }

    /// A recorded entry that the code has not asked for.
    fn unclaimed(&self) -> Option<Halt> {
        if self.stage != Stage::Forward {
            return None;
        }
        let st = self.core.state.borrow();
        let key = st.history.any_unclaimed(&[])?;
        let kind = st.history.get(key)?.entry.kind;
        Some(Halt::Unclaimed { at: Core::location(key), kind })
    }

    /// Offers the next new completion that somebody takes.
    fn offer_next(&mut self) -> bool {
        let core = self.core.clone();
        let is_held = |st: &core::State| st.leaving || st.holds_offers;
        if is_held(&core.state.borrow()) {
            return false;
        }
        while let Some((place, id)) = core.next_offer() {
            core.make_offer(id);
            self.settle();
            if core.offer_taken() {
                return true;
            }
            core.withdraw_offer(place, id);
            if self.end.is_some() || core.state.borrow().halt.is_some() {
                return false;
            }
        }
        false
    }

    /// Offers the next recorded completion, or goes live after the last.
    fn replay_next(&mut self) -> bool {
        let core = self.core.clone();
        let next = core.state.borrow().replay.front().cloned();
        let Some((number, key)) = next else {
            if let Some(halt) = self.unclaimed() {
                core.halt(halt);
                return false;
            }
            core.go_live();
            return true;
        };
        if core.state.borrow_mut().pass_removed() {
            return true;
        }
        let op = core.op_at(&key);
        let why = match op {
            None => "does not make, or has dropped",
            Some(id) => {
                core.make_offer(id);
                self.settle();
                if core.offer_taken() {
                    return true;
                }
                "makes, but does not poll"
            }
        };
        let halt = Halt::NotTaken { number, at: Core::location(&key), why, open: self.open_ops() };
        core.halt(halt);
        false
    }

    /// Offers what can be offered, only to meet the rollbacks on the way.
    fn collect_next(&mut self) -> bool {
        let core = self.core.clone();
        let next = core.state.borrow_mut().replay.pop_front();
        let Some((number, key)) = next else {
            self.root = None;
            self.collected();
            return true;
        };
        let op = core.op_at(&key);
        if let Some(id) = op {
            // Taking it reads the number from the front of the queue.
            core.state.borrow_mut().replay.push_front((number, key));
            core.make_offer(id);
            self.settle();
            if !core.offer_taken() {
                core.state.borrow_mut().replay.pop_front();
            }
        }
        true
    }

    /// The open operations, for a message.
    fn open_ops(&self) -> String {
        let st = self.core.state.borrow();
        let open = st.ops.iter().filter(|(_, op)| op.phase != Phase::Taken);
        let mut names: Vec<_> =
            open.map(|(_, op)| format!("`{}`", Core::location(&op.key))).collect();
        names.sort();
        match names.len() {
            0 => "none".to_owned(),
            1..=5 => names.join(", "),
            n => format!("{}, and {} more", names[..5].join(", "), n - 5),
        }
    }

    /// A run that is at rest must have something durable to wait for.
    fn check_rest(&mut self) {
        if self.end.is_some() {
            return;
        }
        let nothing = {
            let st = self.core.state.borrow();
            let moving = st.halt.is_some()
                || st.bodies > 0
                || !st.starters.is_empty()
                || !st.sends.is_empty()
                || !st.transactions.is_empty()
                || !st.timeouts.is_empty()
                || self.flush.in_flight();
            let waiting = |phase: Phase| {
                matches!(
                    phase,
                    Phase::Waiting { .. }
                        | Phase::Listening { .. }
                        | Phase::Awaiting { .. }
                        | Phase::Committing
                        | Phase::WantStart { .. }
                )
            };
            !moving && !st.ops.iter().any(|(_, op)| waiting(op.phase))
        };
        if nothing {
            let st = self.core.state.borrow();
            let ready = st.ops.iter().find(|(_, op)| op.phase == Phase::Ready);
            let hint = match ready {
                Some((_, op)) => {
                    format!(": `{}` is complete, and nothing polls it", Core::location(&op.key))
                }
                None => ": it is at rest with nothing durable to wait for".to_owned(),
            };
            drop(st);
            self.core.halt(Halt::ForeignAwait { hint });
        }
    }

    /// When the run must be driven again without anything from outside.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        if self.end.is_some() {
            return None;
        }
        let deadline = self
            .core
            .facts
            .deadline_at
            .filter(|_| self.stage == Stage::Forward && self.stopping.is_none());
        let turn = self.at_gate().and_then(|(turn, _)| turn);
        let stop = self.stopping.map(|it| it.until);
        [self.core.next_timer(), deadline, turn, stop].into_iter().flatten().min()
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// About how many bytes it takes in memory while it is parked.
    pub(crate) fn memory_bytes(&self) -> usize {
        let root = self.root.as_ref().map_or(0, |root| std::mem::size_of_val(&**root));
        let st = self.core.state.borrow();
        let entries = st.history.len() * 256;
        root + std::mem::size_of::<core::State>() + st.ops.open * 384 + entries + self.input_bytes
    }

    fn ctx(&self) -> Ctx {
        Ctx::root(self.core.clone())
    }

    fn pauses_on_failure(&self) -> bool {
        self.definition.options.on_failure == OnFailure::Pause
    }
}

impl Drop for Run {
    /// Rollbacks may hold a `Ctx`, which holds the core, which holds the rollbacks.
    fn drop(&mut self) {
        self.root = None;
        let undo = std::mem::take(&mut self.core.state.borrow_mut().undo);
        drop(undo);
    }
}
