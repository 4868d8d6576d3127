//! `ctx.step`: runs a body once, and records its result.
//!
//! A step is a builder and a future. Polled, it asks the run what to do ([`Turn`]): wait, start its
//! body, poll it, or take the completion that it is being offered.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tracing::Instrument;

use super::{
    Claim, Ctx, decode,
    emit::Emitter,
    key_of, open_failure, refuse_if,
    rollback::{Rollback, Undo},
};
use crate::{
    cancellation::Cancellation,
    codec::Value,
    error::{Error, Failure, FailureKind, Result},
    history::{Entry, EntryKind, EntryStatus, EntryValue, Key},
    limit::{Limit, LimitUse},
    panics,
    retry::Retry,
    run::{
        core::{Core, Turn},
        owner::{InFlight, Permit},
        wakers,
    },
    run_id::RunId,
    seam::{self, Process},
    services::Services,
    settings::SettingsError,
    telemetry::Watch,
};

/// The shortest timeout of an attempt.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

pub(crate) type LocalBox<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A step: run once, its result recorded. Await it.
#[must_use = "a step does nothing unless it is awaited"]
pub struct StepCall<'a, T> {
    pub(crate) raw: RawStep<'a>,
    undo: Option<Undo>,
    value: PhantomData<fn() -> T>,
}

/// What the body of a `step_with` is handed.
#[derive(Clone)]
pub struct Step {
    inner: Arc<StepInner>,
}

struct StepInner {
    run: RunId,
    generation: u32,
    location: String,
    attempt: u32,
    cancellation: Cancellation,
    services: Arc<Services>,
    idempotency_key: String,
    emitter: Emitter,
}

impl Step {
    fn new(core: &Core, key: &[u8], attempt: u32, cancellation: Cancellation) -> Step {
        let (run, generation) = (core.facts.id, core.facts.generation);
        let location = Core::location(key);
        let idempotency_key = idempotency_key(run, generation, &location);
        let services = core.env.services.clone();
        let emitter = Emitter::new(core, key, attempt);
        Step {
            inner: Arc::new(StepInner {
                run,
                generation,
                location,
                attempt,
                cancellation,
                services,
                idempotency_key,
                emitter,
            }),
        }
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// A text that is the same for every attempt of this step and for no other step: give it to
    /// outside systems, so that they do once what is asked of them twice.
    pub fn idempotency_key(&self) -> &str {
        &self.inner.idempotency_key
    }

    /// The run.
    pub fn run_id(&self) -> RunId {
        self.inner.run
    }

    /// Which of the run's lives this is, from 1.
    pub fn generation(&self) -> u32 {
        self.inner.generation
    }

    /// Where in the run this is.
    pub fn location(&self) -> &str {
        &self.inner.location
    }

    pub(crate) fn emitter(&self) -> &Emitter {
        &self.inner.emitter
    }

    /// Says that the body is alive: its timeout counts from here again.
    pub fn heartbeat(&self) {
        self.inner.cancellation.beat();
    }

    /// Fires when the body should stop: cancel, timeout, a lost race, a lost lease, shutdown. How
    /// long the body may go on then, and what becomes of its result, is said at [`Cancellation`].
    pub fn cancellation(&self) -> &Cancellation {
        &self.inner.cancellation
    }

    /// A dependency that the engine was given with `provide`.
    ///
    /// # Panics
    ///
    /// If there is none of this type.
    pub fn get<S: Send + Sync + 'static>(&self) -> &S {
        self.inner.services.get::<S>()
    }
}

pub(crate) fn idempotency_key(run: RunId, generation: u32, location: &str) -> String {
    format!("{run}:{generation}:{location}")
}

impl Ctx {
    /// Runs `body` and records its result, or gives the result recorded earlier.
    ///
    /// When this gives `Ok`, no later body starts before the result is durable. If the process
    /// dies after `body` ends and before the entry is written, `body` runs again: give any outside
    /// system that it calls the key from [`Step::idempotency_key`] (see
    /// [`step_with`](Ctx::step_with)).
    ///
    /// A body makes nothing with `ctx`. On replay it does not run, so an operation inside of it would
    /// be missing there, and the numbers and names after it would be others. A body that makes one,
    /// or calls [`random`](Ctx::random), [`scope`](Ctx::scope), [`version`](Ctx::version),
    /// [`set_state`](Ctx::set_state), [`set_tag`](Ctx::set_tag) or [`emit`](Ctx::emit), pauses the
    /// run at once, with the step and the operation as the reason. To read is fine:
    /// [`get`](Ctx::get), [`run_id`](Ctx::run_id), [`now`](Ctx::now). Steps that belong together are
    /// a [`join`](Ctx::join), an [`attempt`](Ctx::attempt), a [`scope`](Ctx::scope) or a
    /// [`child`](Ctx::child).
    ///
    /// Everything that the workflow has taken when the body starts is durable. What another branch
    /// takes while the body runs is not, so a body should not read cells that other branches set.
    ///
    /// # Errors
    ///
    /// When every attempt has failed, when an error forbids another ([`Error::fatal`],
    /// [`Error::rollback`]), or when its time ran out and the policy says that is final.
    pub fn step<'a, T, F>(&self, name: &str, body: F) -> StepCall<'a, T>
    where
        T: Value,
        F: AsyncFn() -> Result<T> + 'a,
    {
        let (body, sealer) = (Rc::new(body), self.sealer());
        self.make_step(
            name,
            Box::new(move |_| {
                let (body, sealer) = (body.clone(), sealer.clone());
                Box::pin(async move { sealer.encode(&body().await?) })
            }),
        )
    }

    /// As [`step`](Ctx::step), with a [`Step`] for the body.
    pub fn step_with<'a, T, F>(&self, name: &str, body: F) -> StepCall<'a, T>
    where
        T: Value,
        F: AsyncFn(Step) -> Result<T> + 'a,
    {
        let (body, sealer) = (Rc::new(body), self.sealer());
        self.make_step(
            name,
            Box::new(move |attempt| {
                let (body, sealer, step) = (body.clone(), sealer.clone(), attempt.step());
                Box::pin(async move { sealer.encode(&body(step).await?) })
            }),
        )
    }

    /// A step whose body blocks: it runs on a thread that may.
    ///
    /// When the step is given up (timeout, a lost race, a lost lease) the body is told by
    /// [`Step::cancellation`] and cannot be stopped; what it still gives is discarded.
    pub fn blocking<T, F>(&self, name: &str, body: F) -> StepCall<'static, T>
    where
        T: Value + Send,
        F: Fn(Step) -> Result<T> + Send + Sync + 'static,
    {
        let (body, sealer) = (Arc::new(body), self.sealer());
        let runtime = self.core().env.runtime.clone();
        self.make_step(
            name,
            Box::new(move |attempt| {
                let (body, sealer, step) = (body.clone(), sealer.clone(), attempt.step());
                let (span, permit) = (tracing::Span::current(), attempt.core.env.permit());
                let work = move || {
                    // The body may have waited for a thread: its lease may be over since, or its run
                    // may have left memory and gone on elsewhere under a lease that lasts.
                    if !permit.allows() {
                        return refuse(step.cancellation());
                    }
                    if step.cancellation().is_cancelled() {
                        return give_up();
                    }
                    span.in_scope(|| sealer.encode(&body(step)?))
                };
                match &runtime {
                    Some(runtime) => Box::pin(joined(seam::spawn_blocking(runtime, work))),
                    None => Box::pin(async move { work() }),
                }
            }),
        )
    }

    /// A step whose body is spawned on the application's runtime, on any of its threads.
    ///
    /// When the step is given up (timeout, a lost race, a lease that ends) the task is aborted at its
    /// next await.
    pub fn spawn<T, F, R>(&self, name: &str, body: F) -> StepCall<'static, T>
    where
        T: Value + Send,
        F: Fn(Step) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T>> + Send + 'static,
    {
        let sealer = self.sealer();
        let runtime = self.core().env.runtime.clone();
        let body = Arc::new(body);
        self.make_step(
            name,
            Box::new(move |attempt| {
                let step = attempt.step();
                let token = step.cancellation().clone();
                let (sealer, body) = (sealer.clone(), body.clone());
                // The function is called in the task: what it does before its first await is part of
                // the body, and a panic there is a failed attempt.
                let work = async move { sealer.encode(&body(step).await?) };
                let work = work.instrument(tracing::Span::current());
                match &runtime {
                    Some(runtime) => {
                        let work = Leased {
                            work: Some(Box::pin(work)),
                            has_begun: false,
                            token: token.clone(),
                            permit: attempt.core.env.permit(),
                        };
                        let task = seam::spawn_task(&Process::current(), runtime, work);
                        token.set_task(task.abort_handle());
                        Box::pin(joined(AbortOnDrop(task)))
                    }
                    None => Box::pin(work),
                }
            }),
        )
    }

    fn make_step<'a, T>(&self, name: &str, make: MakeBody<'a>) -> StepCall<'a, T> {
        let claim = self.claim(EntryKind::Step, name);
        StepCall::of(RawStep::new(claim, Work::Body(make), self.step_options()))
    }

    /// What holds for a step that says nothing else.
    pub(crate) fn step_options(&self) -> StepOptions {
        let settings = &self.core().env.settings;
        StepOptions {
            retry: settings.default_retry,
            timeout: settings.default_step_timeout,
            retry_on_timeout: false,
            ephemeral: false,
            limit: None,
        }
    }
}

/// Ends a body that may not run any more. The engine thread finds it stopped when it hears of the end
/// of the body, and makes the attempt again.
fn refuse(token: &Cancellation) -> Result<Vec<u8>> {
    token.stop();
    Err(Error::fatal("the lease of its runner is over"))
}

/// Ends a body that was told to stop before it began. It is treated as one that has seen its token: after
/// its timeout the attempt has timed out, else it is made again when the run goes on.
fn give_up() -> Result<Vec<u8>> {
    Err(Error::fatal("its step was given up before its body began"))
}

/// A spawned body. It is polled on another thread than its run, so each poll asks for the lease: a
/// process that was stopped past it goes on in here, before any other thread of it has noticed.
///
/// The first poll also asks for the token. Its step may have been given up while the thread was held up
/// in here, and may have completed in another attempt since; an abort has no effect on a poll that has
/// begun.
struct Leased<F> {
    work: Option<Pin<Box<F>>>,
    has_begun: bool,
    token: Cancellation,
    permit: Permit,
}

impl<F: Future<Output = Result<Vec<u8>>>> Future for Leased<F> {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        // The lease first: while it is asked for, the body may be stopped.
        if !self.permit.allows() || self.token.is_stopped() {
            self.work = None;
        } else if !has_begun && self.token.is_cancelled() {
            self.work = None;
            return Poll::Ready(give_up());
        }
        match &mut self.work {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Ready(refuse(&self.token)),
        }
    }
}

struct AbortOnDrop<T>(seam::Task<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort_handle().abort();
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = std::result::Result<T, seam::NotEnded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// The result of a task. A task that was cancelled went down with its runtime: that is no result
/// at all, so the body never ends and nothing is recorded.
async fn joined(
    task: impl Future<Output = std::result::Result<Result<Vec<u8>>, seam::NotEnded>>,
) -> Result<Vec<u8>> {
    match task.await {
        Ok(result) => result,
        Err(seam::NotEnded::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(seam::NotEnded::Cancelled) => std::future::pending().await,
    }
}

impl<'a, T> StepCall<'a, T> {
    pub(crate) fn of(raw: RawStep<'a>) -> StepCall<'a, T> {
        StepCall { raw, undo: None, value: PhantomData }
    }
}

impl<'a, T: Value> StepCall<'a, T> {
    /// How often it is tried, and how long it waits in between.
    pub fn retry(mut self, retry: Retry) -> Self {
        refuse_if(&mut self.raw.claim, SettingsError::check_retry(&retry));
        self.raw.options.retry = retry;
        self
    }

    /// How long one attempt may take; the body is dropped then. Final, unless
    /// [`retry_on_timeout`](StepCall::retry_on_timeout) is set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let checked = SettingsError::check_time("timeout", timeout, TIMEOUT_MIN);
        refuse_if(&mut self.raw.claim, checked);
        self.raw.options.timeout = Some(timeout);
        self
    }

    /// An attempt whose time ran out counts as a failed one, and is made again like any other.
    pub fn retry_on_timeout(mut self) -> Self {
        self.raw.options.retry_on_timeout = true;
        self
    }

    /// The result is not written by itself but with whatever is written next. After a crash in
    /// between the body runs again, and so do the ephemeral steps after it. For cheap and
    /// repeatable work.
    pub fn ephemeral(mut self) -> Self {
        self.raw.options.ephemeral = true;
        self
    }

    /// Its bodies run under this [`Limit`]: each attempt waits for its place, durably and without a
    /// thread, and gives it back with its result, so that none is held until the next attempt. The
    /// [`timeout`](StepCall::timeout) counts from the start of the body, not from the wait.
    ///
    /// A process that dies while a body runs keeps its place: whoever takes up the run makes the
    /// attempt again in it. A run that is paused holds none, and stands in line again when it goes
    /// on. A step is under one limit; the last that is set counts. It can be added, changed and
    /// taken away under running work.
    pub fn limit(self, limit: Limit) -> Self {
        self.limited(LimitUse::new(limit))
    }

    /// As [`limit`](StepCall::limit), with a key: each key is limited on its own.
    pub fn limit_key(self, limit: Limit, key: impl fmt::Display) -> Self {
        self.limited(LimitUse::with_key(limit, &key))
    }

    fn limited(mut self, limit: LimitUse) -> Self {
        match limit.check() {
            Ok(()) => self.raw.options.limit = Some(Box::new(limit)),
            Err(error) => self.raw.claim = Err(Some(error)),
        }
        self
    }

    /// How to undo it, should the run fail later or be cancelled with rollback.
    ///
    /// It is a recorded step of its own. It must not depend on anything but its arguments and what
    /// it has captured: it may run in another process, after a deploy.
    pub fn rollback<F>(mut self, undo: F) -> Self
    where
        F: AsyncFn(Rollback, T) -> Result<()> + 'static,
    {
        let retry = self.undo.as_ref().map(|undo| undo.retry);
        self.undo = Some(Undo::new(undo, retry));
        self
    }

    /// How often the rollback is tried, and how long it waits in between. Set it after
    /// [`rollback`](StepCall::rollback).
    pub fn rollback_retry(mut self, retry: Retry) -> Self {
        refuse_if(&mut self.raw.claim, SettingsError::check_retry(&retry));
        if let Some(undo) = &mut self.undo {
            undo.retry = Some(retry);
        }
        self
    }

    /// Gives a terminal failure as a value instead of an error. The failure is recorded and does
    /// not change on replay. [`Error::rollback`] still ends the run.
    pub fn outcome(self) -> StepOutcome<'a, T> {
        StepOutcome { step: self }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, StepFailure>> {
        if let (Ok(op), Some(undo)) = (&self.raw.claim, self.undo.take()) {
            op.core.keep_undo(op.id, undo);
        }
        if let Err(error) = &mut self.raw.claim {
            let error = error.take().unwrap_or_else(|| Error::fatal("polled after its end"));
            return Poll::Ready(Err(StepFailure::Refused(error)));
        }
        if self.raw.poll_ready(cx).is_pending() {
            return Poll::Pending;
        }
        let Ok(op) = &self.raw.claim else {
            return Poll::Pending;
        };
        let taken = op.core.take(op.id, |entry| match &entry.value {
            EntryValue::Payload(bytes) => Ok(bytes.clone()),
            _ => Err(Box::new(failed(entry))),
        });
        let Some(taken) = taken else {
            return Poll::Pending;
        };
        match taken {
            Ok(bytes) => {
                let what = || format!("the result of `{}`", self.raw.location());
                match decode(&op.core, &bytes, what) {
                    Some(value) => Poll::Ready(Ok(value)),
                    // The run is halted; its code is not polled again.
                    None => Poll::Pending,
                }
            }
            Err(recorded) => {
                let (status, failure) = *recorded;
                let at = self.raw.location();
                let Some(failure) = open_failure(&op.core, failure, &at) else {
                    return Poll::Pending;
                };
                Poll::Ready(Err(StepFailure::Recorded(status, failure)))
            }
        }
    }
}

fn failed(entry: &Entry) -> (EntryStatus, Failure) {
    let failure = match &entry.value {
        EntryValue::Failure(failure) => (**failure).clone(),
        _ => Failure::new(FailureKind::Error, "it has no result"),
    };
    (entry.status, failure)
}

enum StepFailure {
    /// It was never made.
    Refused(Error),
    /// It failed for good.
    Recorded(EntryStatus, Failure),
}

impl<T: Value> Future for StepCall<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let result = std::task::ready!(self.poll_step(cx));
        Poll::Ready(result.map_err(|failure| match failure {
            StepFailure::Refused(error) => error,
            StepFailure::Recorded(_, failure) => Error::recorded(failure, self.raw.origins()),
        }))
    }
}

/// A step whose terminal failure is a value. Await it.
#[must_use = "a step does nothing unless it is awaited"]
pub struct StepOutcome<'a, T> {
    pub(crate) step: StepCall<'a, T>,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<T> {
    /// It gave this.
    Completed(T),
    /// It failed for good: how, after how many attempts, and why is in the failure.
    Failed {
        /// `Failed`, `Exhausted` or `TimedOut`.
        status: EntryStatus,
        /// Why.
        failure: Failure,
    },
}

impl<T> Outcome<T> {
    /// The value, if it completed.
    pub fn completed(self) -> Option<T> {
        match self {
            Outcome::Completed(value) => Some(value),
            Outcome::Failed { .. } => None,
        }
    }

    /// The failure, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Outcome::Completed(_) => None,
            Outcome::Failed { failure, .. } => Some(failure),
        }
    }
}

impl<T: Value> Future for StepOutcome<'_, T> {
    type Output = Result<Outcome<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match std::task::ready!(self.step.poll_step(cx)) {
            Ok(value) => Ok(Outcome::Completed(value)),
            Err(StepFailure::Refused(error)) => Err(error),
            Err(StepFailure::Recorded(_, failure)) if failure.kind == FailureKind::Rollback => {
                Err(Error::recorded(failure, self.step.raw.origins()))
            }
            Err(StepFailure::Recorded(status, failure)) => Ok(Outcome::Failed { status, failure }),
        })
    }
}

pub(crate) struct StepOptions {
    pub(crate) retry: Retry,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_on_timeout: bool,
    pub(crate) ephemeral: bool,
    pub(crate) limit: Option<Box<LimitUse>>,
}

/// What a body needs to know about its attempt. The [`Step`] is made only if it is asked for.
pub(crate) struct Attempt<'c> {
    pub(crate) core: &'c Core,
    pub(crate) key: &'c [u8],
    pub(crate) attempt: u32,
    cancellation: &'c mut Option<Cancellation>,
    in_flight: &'c mut Option<InFlight>,
    timeout: Option<Duration>,
}

impl Attempt<'_> {
    pub(crate) fn step(&mut self) -> Step {
        let cancellation = self.cancellation.insert(Cancellation::new(self.timeout)).clone();
        // Before the body begins, so that it misses nothing.
        let env = &self.core.env;
        let (owner, epoch) = (env.owner.as_ref(), env.epoch.get());
        *self.in_flight = owner.map(|owner| InFlight::enter(owner, epoch, &cancellation));
        Step::new(self.core, self.key, self.attempt, cancellation)
    }
}

pub(crate) type MakeBody<'a> =
    Box<dyn FnMut(&mut Attempt<'_>) -> LocalBox<'a, Result<Vec<u8>>> + 'a>;

/// What an attempt does.
pub(crate) enum Work<'a> {
    /// Polls a body on the engine thread.
    Body(MakeBody<'a>),
    /// Has a body run in the commit that records it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    Transaction(crate::commit::TransactionBody),
}

/// The part of a step that knows no types: shared with rollbacks.
pub(crate) struct RawStep<'a> {
    pub(crate) claim: Claim,
    work: Work<'a>,
    pub(crate) options: StepOptions,
    body: Option<LocalBox<'a, Result<Vec<u8>>>>,
    waker: Option<Waker>,
    cancellation: Option<Cancellation>,
    in_flight: Option<InFlight>,
    /// The time of the body is over; it has been told, and may end by itself.
    overdue: bool,
    watch: Option<Watch>,
}

impl<'a> RawStep<'a> {
    pub(crate) fn new(claim: Claim, work: Work<'a>, options: StepOptions) -> RawStep<'a> {
        RawStep {
            claim,
            work,
            options,
            body: None,
            waker: None,
            cancellation: None,
            in_flight: None,
            overdue: false,
            watch: None,
        }
    }

    fn key(&self) -> Option<Key> {
        key_of(&self.claim)
    }

    pub(crate) fn location(&self) -> String {
        self.key().map(|key| Core::location(&key)).unwrap_or_default()
    }

    pub(crate) fn origins(&self) -> Vec<Box<[u8]>> {
        self.key().map(|key| Box::from(&*key)).into_iter().collect()
    }

    /// Moves the step on; ready when the completion may be taken.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Ok(op) = &self.claim else {
                return Poll::Pending;
            };
            match op.core.turn(op.id, cx.waker()) {
                Turn::Pending => return Poll::Pending,
                Turn::Take => return Poll::Ready(()),
                Turn::Activate => {
                    let limit = self.options.limit.take();
                    // What a transaction has written cannot be left for later.
                    let ephemeral = self.options.ephemeral && matches!(self.work, Work::Body(_));
                    op.core.activate_step(op.id, ephemeral, limit);
                }
                Turn::Start => {
                    #[cfg(any(feature = "sqlite", feature = "postgres"))]
                    if let Work::Transaction(body) = &self.work {
                        op.start_transaction(body.clone(), &self.options);
                        return Poll::Pending;
                    }
                    self.start_body();
                    if let Some(polled) = self.poll_body(true) {
                        return polled;
                    }
                }
                Turn::Body | Turn::TimedOut if self.must_stop() => self.abandon(),
                Turn::TimedOut if !self.prolonged() && !self.has_grace() => return self.time_out(),
                Turn::Body | Turn::TimedOut => {
                    if let Some(polled) = self.poll_body(false) {
                        return polled;
                    }
                }
            }
        }
    }

    /// Whether the body may not be polled any more, because its lease is over or is about to end.
    fn must_stop(&self) -> bool {
        let is_stopped = self.cancellation.as_ref().is_some_and(|it| it.is_stopped());
        is_stopped || matches!(&self.claim, Ok(op) if !op.core.env.may_go_on())
    }

    /// Drops the body. What it has done does not count, and the attempt is made again when the run
    /// goes on: here if the lease is renewed, or where the run goes on.
    fn abandon(&mut self) {
        self.body = None;
        if let Some(cancellation) = self.cancellation.take() {
            cancellation.stop();
        }
        (self.in_flight, self.watch) = (None, None);
        if let Ok(op) = &self.claim {
            op.core.abandon_body(op.id);
        }
    }

    /// Whether a body whose time is over may end by itself for a while: once, if it can be told.
    fn has_grace(&mut self) -> bool {
        let (Ok(op), Some(cancellation)) = (&self.claim, &self.cancellation) else {
            return false;
        };
        if self.overdue || op.core.env.settings.stop_grace.is_zero() {
            return false;
        }
        self.overdue = true;
        op.core.give_grace(op.id);
        cancellation.cancel();
        true
    }

    fn start_body(&mut self) {
        let Some(key) = self.key() else { return };
        let Ok(op) = &self.claim else { return };
        #[allow(
            clippy::infallible_destructuring_match,
            irrefutable_let_patterns,
            reason = "there is one kind of work without a store that has SQL"
        )]
        let Work::Body(make) = &mut self.work else {
            return;
        };
        let attempt = op.core.start_body(op.id, self.options.timeout);
        let kind = match op.core.state.borrow().ops.get(op.id) {
            Some(op) => op.kind,
            None => return,
        };
        self.watch = op.core.watch(&key, kind, attempt);
        let _entered = self.watch.as_ref().and_then(Watch::enter);
        tracing::trace!(run = %op.core.facts.id, attempt, "a body starts");
        (self.cancellation, self.in_flight, self.overdue) = (None, None, false);
        let mut attempt = Attempt {
            core: &op.core,
            key: &key,
            attempt,
            cancellation: &mut self.cancellation,
            in_flight: &mut self.in_flight,
            timeout: self.options.timeout,
        };
        self.body = Some(make(&mut attempt));
        if let Some(cancellation) = &self.cancellation {
            op.core.keep_token(op.id, cancellation.clone());
        }
        if self.waker.is_none() {
            self.waker = Some(wakers::body_waker(&op.core.root, op.id));
        }
    }

    /// Polls the body. `None` if it has given up, so that the attempt is to be made again.
    fn poll_body(&mut self, first: bool) -> Option<Poll<()>> {
        if let (Some(key), Ok(op)) = (self.key(), &self.claim) {
            op.core.env.name_body(&key);
        }
        let (Ok(op), Some(body), Some(waker)) = (&self.claim, &mut self.body, &self.waker) else {
            return Some(Poll::Pending);
        };
        let is_halted = || op.core.state.borrow().halt.is_some();
        let was_halted = is_halted();
        let polled = {
            let _body = wakers::in_body();
            let _entered = self.watch.as_ref().and_then(Watch::enter);
            let mut cx = Context::from_waker(waker);
            op.core.polled_body.set(Some(op.id));
            let polled = catch_unwind(AssertUnwindSafe(|| body.as_mut().poll(&mut cx)));
            op.core.polled_body.set(None);
            polled
        };
        if is_halted() && !was_halted {
            op.core.body_gave_up(op.id);
            if let Some(cancellation) = self.cancellation.take() {
                cancellation.stop();
            }
            (self.body, self.in_flight, self.watch) = (None, None, None);
            return Some(Poll::Pending);
        }
        let result = match polled {
            Ok(Poll::Pending) => {
                if first {
                    op.core.body_pending(op.id);
                }
                return Some(Poll::Pending);
            }
            Ok(Poll::Ready(result)) => result,
            Err(panic) => {
                let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
                Err(Error::attempt_failed(failure))
            }
        };
        if result.is_err() && op.core.env.runtime_is_gone() {
            // The runtime that the body needs is going away: nothing has been tried.
            self.body = None;
            return Some(Poll::Pending);
        }
        if self.overdue {
            return Some(self.time_out());
        }
        let token = self.cancellation.as_ref();
        if result.is_err() && token.is_some_and(|it| it.is_seen() || it.is_stopped()) {
            self.abandon();
            return None;
        }
        Some(self.end_body(result, first))
    }

    fn end_body(&mut self, result: Result<Vec<u8>>, first: bool) -> Poll<()> {
        (self.body, self.in_flight) = (None, None);
        let Ok(op) = &self.claim else {
            return Poll::Pending;
        };
        let watch = self.watch.take();
        let bytes_max = op.core.env.settings.payload_bytes_max;
        let is_sure = matches!(&result, Ok(bytes) if bytes.len() <= bytes_max);
        let ready = op.core.finish_body(op.id, result, &self.options.retry, first);
        if let Some(watch) = watch {
            // Asked for only where the result does not say it.
            let status = match is_sure {
                true => Some(EntryStatus::Completed),
                false => op.core.status_of(op.id),
            };
            op.core.end_watch(watch, status.unwrap_or(EntryStatus::Failed));
        }
        match ready {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Whether a heartbeat has moved the end of the body's time.
    fn prolonged(&mut self) -> bool {
        let (Ok(op), Some(cancellation)) = (&self.claim, &self.cancellation) else {
            return false;
        };
        !self.overdue
            && cancellation.take_beat()
            && op.core.prolong_body(op.id, self.options.timeout)
    }

    fn time_out(&mut self) -> Poll<()> {
        if let Some(cancellation) = self.cancellation.take() {
            cancellation.cancel();
        }
        let limit = self.options.timeout.unwrap_or_default();
        let failure = Failure::new(
            FailureKind::TimedOut,
            format!(
                "the body was stopped after {limit:?}; give it more time with `.timeout(..)`, or \
                 let it try again with `.retry_on_timeout()`"
            ),
        );
        let error = if self.options.retry_on_timeout {
            Error::attempt_failed(failure)
        } else {
            Error::recorded(failure, Vec::new())
        };
        self.end_body(Err(error), false)
    }
}

impl Drop for RawStep<'_> {
    fn drop(&mut self) {
        if let (Some(cancellation), Some(_)) = (&self.cancellation, &self.body) {
            // A spawned body may be in a poll that an abort does not end: its next one is refused.
            cancellation.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn polls_of(token: &Cancellation, fire: impl Fn(&Cancellation)) -> (u32, bool) {
        let polls = Arc::new(AtomicU32::new(0));
        let counted = polls.clone();
        let work = async move {
            for _ in 0..2 {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
            Ok(Vec::new())
        };
        let (token, permit) = (token.clone(), Permit::of_nobody());
        let mut leased =
            Leased { work: Some(Box::pin(work)), has_begun: false, token: token.clone(), permit };
        let mut cx = Context::from_waker(Waker::noop());
        let first = Pin::new(&mut leased).poll(&mut cx);
        if first.is_pending() {
            fire(&token);
            _ = Pin::new(&mut leased).poll(&mut cx);
        }
        (polls.load(Ordering::SeqCst), first.is_ready())
    }

    /// A thread of the runtime was held up at the beginning of the first poll of a spawned body. Its
    /// attempt timed out, the next one completed, and then the body of the first one began.
    #[test]
    fn a_spawned_body_does_not_begin_after_its_step_was_given_up() {
        let token = Cancellation::new(None);
        token.cancel();
        assert_eq!(polls_of(&token, |_| ()), (0, true));
    }

    /// The body of a step whose time was over was refused as if its lease had been: the attempt was made
    /// again, with a new time limit, and so on for as long as the runtime was slow.
    #[test]
    fn a_body_that_is_given_up_before_it_begins_is_not_taken_for_one_that_lost_its_lease() {
        let token = Cancellation::new(None);
        token.cancel();
        assert_eq!(polls_of(&token, |_| ()), (0, true));
        assert!(token.is_seen() && !token.is_stopped());
    }

    #[test]
    fn a_spawned_body_that_has_begun_goes_on_until_it_is_stopped() {
        assert_eq!(polls_of(&Cancellation::new(None), |_| ()), (2, false));
        assert_eq!(polls_of(&Cancellation::new(None), Cancellation::cancel), (2, false));
        assert_eq!(polls_of(&Cancellation::new(None), Cancellation::stop), (1, false));
    }
}
