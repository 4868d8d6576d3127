//! `ctx.child`: a run of its own, started by this one; `ctx.finished`: the end of any run.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{
    Claim, Ctx, Whose, composite::refused, decode, encode, open_failure, send::ToTarget,
    sleep::Until, wait::RawWait,
};
use crate::{
    codec::{Value, hook::Codecs},
    commit::{
        Close, Effect, NewRun, RunStatus, StartChild,
        answer::{self, Answered},
    },
    error::{Error, Failure, FailureKind, Result},
    history::{Entry, EntryKind, EntryValue, Key, encode_started_prefix},
    location::Location,
    name::{check_name, check_pool},
    pool::DEFAULT_POOL,
    run::core::{Core, Turn},
    run_id::RunId,
    telemetry::trace,
    time::Timestamp,
    workflow::WorkflowRef,
};

impl Ctx {
    /// Starts a run of another workflow and waits for its end. The operation has the workflow's
    /// name.
    ///
    /// The child is started exactly once, in the commit that records it, and its end is handed over
    /// in the commit that ends it. It inherits this run's deadline if that is earlier than its own.
    /// If this run ends, is cancelled, or gives the child up (as a loser of a race), the child is
    /// cancelled too, unless [`close`](Child::close) says otherwise.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// const PAY: Workflow<u64, String> = Workflow::new("pay");
    /// # async fn work(ctx: Ctx) -> Result<()> {
    /// let receipt: String = ctx.child(PAY, 100).key("order-1001").await?;
    /// let id = ctx.child(PAY, 200).detach().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the child fails or is cancelled: an error of the kind [`FailureKind::Child`], with the
    /// child's own details. [`outcome`](Child::outcome) gives it as a value instead.
    pub fn child<W: WorkflowRef>(&self, workflow: W, input: W::Input) -> Child<W::Output> {
        let key = workflow.default_key(&input);
        let what = || format!("the input of the child `{}`", workflow.name());
        let encoded = encode(self.core(), &input, Whose::Others, what);
        let claim = match &encoded {
            Ok(_) => self.claim(EntryKind::Child, workflow.name()),
            Err(_) => Err(None),
        };
        let (claim, input) = match encoded {
            Ok(input) => (claim, input),
            Err(error) => (Err(Some(error)), Vec::new()),
        };
        let plan = Plan {
            workflow: workflow.name().to_owned(),
            version: workflow.version(),
            key,
            pool: None,
            deadline: None,
            tags: Vec::new(),
            input,
            close: None,
        };
        Child {
            wait: RawWait::unregistered(claim),
            plan: Some(Box::new(plan)),
            workflow: workflow.name().to_owned(),
            output: PhantomData,
        }
    }

    /// Waits for the end of any run, by id or by workflow and key. One that has ended is answered
    /// at once.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub fn finished(&self, run: impl ToTarget) -> RunFinished {
        let target = run.to_target();
        let claim = self.claim(EntryKind::Finished, "finished");
        let wait = RawWait::new(claim, |_, key, entry| {
            let mut entry = entry.clone();
            entry.value = EntryValue::Started(RunId::nobody(), 0);
            let entry = encode_started_prefix(&entry);
            let key = key.to_vec();
            Some(Effect::Watch { target, key, entry })
        });
        RunFinished { wait }
    }
}

/// What a child is started with.
struct Plan {
    workflow: String,
    version: u32,
    key: Option<String>,
    pool: Option<String>,
    deadline: Option<Until>,
    tags: Vec<(String, String)>,
    input: Vec<u8>,
    close: Option<Close>,
}

impl Plan {
    fn check(&self) -> Result<()> {
        let tags = self.tags.iter().flat_map(|(name, value)| [name, value]);
        for name in self.key.iter().chain(tags) {
            check_name(name).map_err(Error::fatal)?;
        }
        if let Some(pool) = &self.pool {
            check_pool(pool).map_err(Error::fatal)?;
        }
        Ok(())
    }

    /// The effect that starts the child of the operation at `key`.
    fn start(self, core: &Core, key: &Key, entry: &Entry, awaited: bool) -> Effect {
        let now = core.now();
        let owner = core.env.owner.as_ref();
        let options = owner.and_then(|owner| owner.options_of(&self.workflow, self.version));
        let mut tags = self.tags;
        for (name, value) in options.map_or(&[][..], |options| &options.labels) {
            if !tags.iter().any(|(other, _)| other == name) {
                tags.push((name.clone(), value.clone()));
            }
        }
        let limit = options.and_then(|options| options.deadline);
        let deadline = self.deadline.or(limit.map(Until::After));
        let deadline = deadline.map(|deadline| deadline.from(now));
        let close = self
            .close
            .unwrap_or(if awaited { Close::Cancel } else { Close::Leave });
        let home = || owner.map(|owner| owner.home_of(&self.workflow, self.version));
        let pool = self.pool.map(Into::into).or_else(home);
        let pool = pool.unwrap_or_else(|| DEFAULT_POOL.into());
        let new = NewRun {
            id: core.env.new_run_id(&self.workflow, self.version, &pool),
            workflow: self.workflow.into(),
            version: self.version,
            key: self.key,
            pool,
            available_at: None,
            deadline_at: [deadline, core.facts.deadline_at]
                .into_iter()
                .flatten()
                .min(),
            tags,
            trace: trace::current_in(core.facts.trace.as_deref()),
            input: self.input,
            parent: Some(core.facts.id),
            claim: false,
        };
        let mut entry = entry.clone();
        entry.value = EntryValue::Started(new.id, 0);
        Effect::StartChild(Box::new(StartChild {
            new,
            key: key.to_vec(),
            entry: encode_started_prefix(&entry),
            awaited,
            close,
        }))
    }
}

/// A run of another workflow, started by this one. Await it for its output.
#[must_use = "a child is not started unless it is awaited"]
pub struct Child<O> {
    pub(crate) wait: RawWait,
    plan: Option<Box<Plan>>,
    workflow: String,
    output: PhantomData<fn() -> O>,
}

impl<O: Value> Child<O> {
    fn set(mut self, set: impl FnOnce(&mut Plan)) -> Self {
        if let Some(plan) = &mut self.plan {
            set(plan);
        }
        self
    }

    /// Unique per workflow: if there is a run with this key, it is waited for instead of a new one.
    /// It is then not this run's child: it is neither cancelled nor given a deadline.
    pub fn key(self, key: impl Into<String>) -> Self {
        self.set(|plan| plan.key = Some(key.into()))
    }

    /// The version of the workflow, if another than the reference says.
    pub fn version(self, version: u32) -> Self {
        self.set(|plan| plan.version = version)
    }

    /// The pool whose runners run it, if another than its workflow says. A runner that does not have
    /// the workflow's code asks those that do; if none of them is alive, it takes `default` unless
    /// this is said.
    pub fn pool(self, pool: impl Into<String>) -> Self {
        self.set(|plan| plan.pool = Some(pool.into()))
    }

    /// It fails if it has not ended by this instant.
    pub fn deadline(self, at: Timestamp) -> Self {
        self.set(|plan| plan.deadline = Some(Until::At(at)))
    }

    /// It fails if it has not ended after this long.
    pub fn deadline_after(self, limit: Duration) -> Self {
        self.set(|plan| plan.deadline = Some(Until::After(limit)))
    }

    /// Something it can be found by.
    pub fn tag(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|plan| plan.tags.push((name.into(), value.into())))
    }

    /// What becomes of it when this run ends or gives it up: [`Close::Cancel`] if it is awaited,
    /// [`Close::Leave`] if it is detached, unless this is said.
    pub fn close(self, close: Close) -> Self {
        self.set(|plan| plan.close = Some(close))
    }

    /// Does not wait for its end: gives its id as soon as it is started.
    pub fn detach(self) -> Detached {
        Detached {
            claim: self.wait.claim,
            plan: self.plan,
        }
    }

    /// Gives a failure or a cancel of the child as a value instead of an error.
    pub fn outcome(self) -> ChildOutcome<O> {
        ChildOutcome { child: self }
    }

    fn poll_child(&mut self, cx: &mut Context<'_>) -> Poll<Result<Result<O, ChildError>>> {
        if let Some(plan) = self.plan.take() {
            if let Err(error) = plan.check() {
                self.wait.claim = Err(Some(error));
            }
            self.wait
                .register_with(move |core, key, entry| Some(plan.start(core, key, entry, true)));
        }
        let bytes = ready!(self.wait.poll(cx))?.unwrap_or_default();
        let Some((run, answered)) = read_end(&self.wait, &bytes) else {
            // The run is halted; its code is not polled again.
            return Poll::Pending;
        };
        let (status, failure) = match answered {
            Answered::Value(bytes) => {
                let Ok(op) = &self.wait.claim else {
                    return Poll::Pending;
                };
                let what = || format!("the output of the child `{}`", self.workflow);
                return match decode(&op.core, &bytes, what) {
                    Some(output) => Poll::Ready(Ok(Ok(output))),
                    None => Poll::Pending,
                };
            }
            Answered::Failure(failure) => {
                let Some(failure) = opened(&self.wait, *failure) else {
                    return Poll::Pending;
                };
                (RunStatus::Failed, Some(Box::new(failure)))
            }
            Answered::Unknown => {
                let text = "a run with this key has ended and was deleted; use another key";
                let failure = Failure::new(FailureKind::Undeliverable, text);
                (RunStatus::Failed, Some(Box::new(failure)))
            }
            Answered::Cancelled | Answered::Rejected(_) => (RunStatus::Cancelled, None),
        };
        Poll::Ready(Ok(Err(ChildError {
            run,
            workflow: self.workflow.clone(),
            status,
            failure,
        })))
    }
}

impl<O: Value> Future for Child<O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let result = ready!(self.poll_child(cx))?;
        Poll::Ready(result.map_err(|error| error.into_error(self.wait.key())))
    }
}

/// A child whose failure is a value. Await it.
#[must_use = "a child is not started unless it is awaited"]
pub struct ChildOutcome<O> {
    pub(crate) child: Child<O>,
}

impl<O: Value> Future for ChildOutcome<O> {
    type Output = Result<Result<O, ChildError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.child.poll_child(cx)
    }
}

/// How a child ended that did not complete.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChildError {
    /// The child.
    pub run: RunId,
    /// Its workflow.
    pub workflow: String,
    /// `Failed` or `Cancelled`.
    pub status: RunStatus,
    /// Why it failed.
    pub failure: Option<Box<Failure>>,
}

impl ChildError {
    /// The value that was attached to the child's error, if there is one and it is of this type.
    pub fn details<T: DeserializeOwned>(&self) -> Option<T> {
        self.failure.as_ref()?.details()
    }

    fn into_error(self, key: Option<Key>) -> Error {
        let mut failure = Failure::new(FailureKind::Child, self.to_string());
        failure.location = key.as_ref().and_then(|key| Location::from_key(key).ok());
        if let Some(own) = self.failure {
            (failure.causes, failure.details) = (own.causes, own.details);
        }
        let origins = key.iter().map(|key| Box::from(&key[..])).collect();
        Error::recorded(failure, origins)
    }
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChildError { run, workflow, .. } = self;
        match &self.failure {
            Some(failure) => write!(f, "the child `{workflow}` (run {run}) failed: {failure}"),
            None => write!(f, "the child `{workflow}` (run {run}) was cancelled"),
        }
    }
}

impl std::error::Error for ChildError {}

/// A child that is not waited for. Await it for its id.
#[must_use = "a child is not started unless it is awaited"]
pub struct Detached {
    pub(crate) claim: Claim,
    plan: Option<Box<Plan>>,
}

impl Future for Detached {
    type Output = Result<RunId>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<RunId>> {
        let this = &mut *self;
        if let Some(Err(error)) = this.plan.as_ref().map(|plan| plan.check()) {
            this.claim = Err(Some(error));
        }
        let op = match &mut this.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                if let Some(plan) = this.plan.take() {
                    let core = op.core.clone();
                    op.core
                        .activate_send(op.id, |key, entry| plan.start(&core, &key, &entry, false));
                }
                Poll::Pending
            }
            Turn::Take => {
                let started = op.core.take(op.id, |entry| match entry.value {
                    EntryValue::Started(id, _) => Some(id),
                    _ => None,
                });
                match started.flatten() {
                    Some(id) => Poll::Ready(Ok(id)),
                    None => Poll::Pending,
                }
            }
            _ => Poll::Pending,
        }
    }
}

/// A wait for the end of a run. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct RunFinished {
    pub(crate) wait: RawWait,
}

/// A wait for the end of a run that may end without one. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct RunFinishedUntil {
    pub(crate) wait: RawWait,
}

/// How a run ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunEnding {
    /// The run.
    pub run: RunId,
    /// `Completed`, `Failed` or `Cancelled`.
    pub status: RunStatus,
    /// Why it failed, if it did.
    pub failure: Option<Box<Failure>>,
    output: Option<Vec<u8>>,
    codecs: Codecs,
}

impl RunEnding {
    /// What it gave, if it completed.
    ///
    /// # Errors
    ///
    /// If its output is not of this type.
    pub fn output<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let output = self.output.as_deref();
        let output = output.map(|bytes| self.codecs.read(bytes, Some(self.run)));
        output.transpose().map_err(|error| {
            let run = self.run;
            Error::fatal(format!("the output of run {run} cannot be read: {error}"))
        })
    }
}

impl RunFinished {
    /// Gives `None` when it has not ended after this long.
    pub fn timeout(mut self, timeout: Duration) -> RunFinishedUntil {
        self.wait.until = Some(Until::After(timeout));
        RunFinishedUntil { wait: self.wait }
    }

    /// Gives `None` when it has not ended by this instant.
    pub fn until(mut self, at: Timestamp) -> RunFinishedUntil {
        self.wait.until = Some(Until::At(at));
        RunFinishedUntil { wait: self.wait }
    }
}

fn poll_finished(wait: &mut RawWait, cx: &mut Context<'_>) -> Poll<Result<Option<RunEnding>>> {
    let Some(bytes) = ready!(wait.poll(cx))? else {
        return Poll::Ready(Ok(None));
    };
    let Some((run, answered)) = read_end(wait, &bytes) else {
        // The run is halted; its code is not polled again.
        return Poll::Pending;
    };
    let (status, failure, output) = match answered {
        Answered::Value(output) => (RunStatus::Completed, None, Some(output)),
        Answered::Failure(failure) => {
            let Some(failure) = opened(wait, *failure) else {
                return Poll::Pending;
            };
            (RunStatus::Failed, Some(Box::new(failure)), None)
        }
        Answered::Cancelled | Answered::Rejected(_) => (RunStatus::Cancelled, None, None),
        Answered::Unknown => {
            let text =
                "there is no such run; it may have been deleted, or belongs to another store";
            let mut failure = Failure::new(FailureKind::Undeliverable, text);
            let key = wait.key();
            failure.location = key.as_ref().and_then(|key| Location::from_key(key).ok());
            let origins = key.iter().map(|key| Box::from(&key[..])).collect();
            return Poll::Ready(Err(Error::recorded(failure, origins)));
        }
    };
    let codecs = wait.codecs();
    Poll::Ready(Ok(Some(RunEnding {
        run,
        codecs,
        status,
        failure,
        output,
    })))
}

impl Future for RunFinished {
    type Output = Result<RunEnding>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<RunEnding>> {
        match ready!(poll_finished(&mut self.wait, cx))? {
            Some(ending) => Poll::Ready(Ok(ending)),
            // Without a deadline it can only end with an answer.
            None => Poll::Pending,
        }
    }
}

impl Future for RunFinishedUntil {
    type Output = Result<Option<RunEnding>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_finished(&mut self.wait, cx)
    }
}

/// A failure whose details can be read, or the run is halted.
fn opened(wait: &RawWait, failure: Failure) -> Option<Failure> {
    let op = wait.claim.as_ref().ok()?;
    open_failure(&op.core, failure, &wait.location())
}

/// The run that has ended, and how: 16 bytes of its id, and the answer.
fn read_end(wait: &RawWait, bytes: &[u8]) -> Option<(RunId, Answered)> {
    let (id, rest) = bytes.split_at_checked(16).unwrap_or((bytes, &[]));
    let answered = wait.read(answer::decode(rest))?;
    let id = Uuid::from_slice(id).ok().and_then(RunId::from_uuid);
    match (id, &answered) {
        (Some(id), _) => Some((id, answered)),
        // Nobody has this id; it is not shown.
        (None, _) => Some((RunId::nobody(), answered)),
    }
}
