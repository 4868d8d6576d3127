//! `ctx.child`: a run of its own, started by this one; `ctx.finished`: the end of any run.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{
    Claim, Ctx, decode, error_at, key_of, open_failure,
    operation::{self, Operation, Until, read_answer, take_answer, timed},
    refuse_if,
    send::ToTarget,
};
use crate::{
    codec::{Value, hook::Codecs},
    commit::{Close, Effect, NewRun, RunStatus, StartChild, Target, answer::Answered},
    error::{Error, Failure, FailureKind, Result},
    history::{Entry, EntryKind, EntryValue, Key, OpId, encode_started_prefix},
    name::{check_name, check_pool},
    pool::DEFAULT_POOL,
    run::core::Core,
    run_id::RunId,
    telemetry::trace,
    time::{Timestamp, When},
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
        let (claim, input) = self.claim_with(EntryKind::Child, workflow.name(), &input, what);
        let plan = Plan {
            workflow: workflow.name().to_owned(),
            version: workflow.version(),
            key: None,
            pool: None,
            deadline: None,
            tags: Vec::new(),
            input,
            close: None,
        };
        let child = Child {
            claim,
            plan: Some(Box::new(plan)),
            workflow: workflow.name().to_owned(),
            output: PhantomData,
        };
        match key {
            Some(key) => child.key(key),
            None => child,
        }
    }

    /// Waits for the end of any run, by id or by workflow and key. One that has ended is answered
    /// at once.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub fn finished(&self, run: impl ToTarget) -> RunFinished {
        RunFinished {
            claim: self.claim(EntryKind::Finished, "finished"),
            target: Some(run.to_target()),
            until: None,
        }
    }
}

/// What a child is started with.
struct Plan {
    workflow: String,
    version: u32,
    key: Option<String>,
    pool: Option<String>,
    deadline: Option<When>,
    tags: Vec<(String, String)>,
    input: Vec<u8>,
    close: Option<Close>,
}

impl Plan {
    /// The effect that starts the child of the operation at `key`.
    fn start(self, core: &Core, key: &Key, entry: &Entry, awaited: bool) -> Effect {
        let now = core.now();
        let owner = core.env.owner.as_ref();
        let options = owner.and_then(|owner| owner.options_of(&self.workflow, self.version));
        let mut tags = self.tags;
        if let Some(options) = options {
            options.add_labels(&mut tags);
        }
        let limit = options.and_then(|options| options.deadline);
        let deadline = self.deadline.or(limit.map(When::After));
        let deadline = deadline.map(|deadline| deadline.from(now));
        let close = self.close.unwrap_or(if awaited { Close::Cancel } else { Close::Leave });
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
            deadline_at: [deadline, core.facts.deadline_at].into_iter().flatten().min(),
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
    pub(crate) claim: Claim,
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
    pub fn key(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        refuse_if(&mut self.claim, check_name(&key));
        self.set(|plan| plan.key = Some(key))
    }

    /// The version of the workflow, if another than the reference says.
    pub fn version(self, version: u32) -> Self {
        self.set(|plan| plan.version = version)
    }

    /// The pool whose runners run it, if another than its workflow says. A runner that does not have
    /// the workflow's code asks those that do; if none of them is alive, it takes `default` unless
    /// this is said.
    pub fn pool(mut self, pool: impl Into<String>) -> Self {
        let pool = pool.into();
        refuse_if(&mut self.claim, check_pool(&pool));
        self.set(|plan| plan.pool = Some(pool))
    }

    /// It fails if it has not ended by this instant.
    pub fn deadline(self, at: Timestamp) -> Self {
        self.set(|plan| plan.deadline = Some(When::At(at)))
    }

    /// It fails if it has not ended after this long.
    pub fn deadline_after(self, limit: Duration) -> Self {
        self.set(|plan| plan.deadline = Some(When::After(limit)))
    }

    /// Something it can be found by.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        let checked = check_name(&name).and_then(|()| check_name(&value));
        refuse_if(&mut self.claim, checked);
        self.set(|plan| plan.tags.push((name, value)))
    }

    /// What becomes of it when this run ends or gives it up: [`Close::Cancel`] if it is awaited,
    /// [`Close::Leave`] if it is detached, unless this is said.
    pub fn close(self, close: Close) -> Self {
        self.set(|plan| plan.close = Some(close))
    }

    /// Does not wait for its end: gives its id as soon as it is started.
    pub fn detach(self) -> Detached {
        Detached { claim: self.claim, plan: self.plan }
    }

    /// Gives a failure or a cancel of the child as a value instead of an error.
    pub fn outcome(self) -> ChildOutcome<O> {
        ChildOutcome { child: self }
    }
}

impl<O: Value> Operation for Child<O> {
    type Output = Result<O, ChildError>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(plan) = self.plan.take() {
            let start = |key: &Key, entry: &Entry| Some(plan.start(core, key, entry, true));
            core.activate_wait(id, None, start);
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Self::Output>> {
        let bytes = take_answer(core, id)?.unwrap_or_default();
        let (run, answered) = read_end(core, id, &bytes)?;
        let (status, failure) = match answered {
            Answered::Value(bytes) => {
                let what = || format!("the output of the child `{}`", self.workflow);
                return Some(Ok(Ok(decode(core, &bytes, what)?)));
            }
            Answered::Failure(failure) => {
                let failure = open_failure(core, *failure, &location_of(core, id))?;
                (RunStatus::Failed, Some(Box::new(failure)))
            }
            Answered::Unknown => {
                let text = "a run with this key has ended and was deleted; use another key";
                let failure = Failure::new(FailureKind::Undeliverable, text);
                (RunStatus::Failed, Some(Box::new(failure)))
            }
            Answered::Cancelled | Answered::Rejected(_) => (RunStatus::Cancelled, None),
        };
        Some(Ok(Err(ChildError { run, workflow: self.workflow.clone(), status, failure })))
    }
}

impl<O: Value> Future for Child<O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let result = ready!(operation::poll(&mut *self, cx))?;
        Poll::Ready(result.map_err(|error| error.into_error(key_of(&self.claim))))
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
        operation::poll(&mut self.child, cx)
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
        if let Some(own) = self.failure {
            (failure.causes, failure.details) = (own.causes, own.details);
        }
        match key {
            Some(key) => error_at(&key, failure),
            None => Error::recorded(failure, Vec::new()),
        }
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

impl Operation for Detached {
    type Output = RunId;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(plan) = self.plan.take() {
            core.activate_send(id, |key, entry| plan.start(core, &key, &entry, false));
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<RunId>> {
        let started = core.take(id, |entry| match entry.value {
            EntryValue::Started(id, _) => Some(id),
            _ => None,
        });
        started.flatten().map(Ok)
    }
}

/// A wait for the end of a run. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct RunFinished {
    pub(crate) claim: Claim,
    target: Option<Target>,
    until: Option<When>,
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

timed!([] RunFinished, "it has not ended", "");

impl Operation for RunFinished {
    type Output = Option<RunEnding>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        let target = self.target.take();
        core.activate_wait(id, self.until, |key, entry| {
            let mut entry = entry.clone();
            entry.value = EntryValue::Started(RunId::nobody(), 0);
            Some(Effect::Watch {
                target: target?,
                key: key.to_vec(),
                entry: encode_started_prefix(&entry),
            })
        });
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Option<RunEnding>>> {
        let key = core.key_of(id)?;
        let Some(bytes) = take_answer(core, id)? else {
            return Some(Ok(None));
        };
        let (run, answered) = read_end(core, id, &bytes)?;
        let (status, failure, output) = match answered {
            Answered::Value(output) => (RunStatus::Completed, None, Some(output)),
            Answered::Failure(failure) => {
                let failure = open_failure(core, *failure, &Core::location(&key))?;
                (RunStatus::Failed, Some(Box::new(failure)), None)
            }
            Answered::Cancelled | Answered::Rejected(_) => (RunStatus::Cancelled, None, None),
            Answered::Unknown => {
                let text =
                    "there is no such run; it may have been deleted, or belongs to another store";
                let failure = Failure::new(FailureKind::Undeliverable, text);
                return Some(Err(error_at(&key, failure)));
            }
        };
        Some(Ok(Some(RunEnding {
            run,
            status,
            failure,
            output,
            codecs: core.env.settings.codecs.clone(),
        })))
    }
}

fn location_of(core: &Core, id: OpId) -> String {
    let key = core.key_of(id);
    key.map(|key| Core::location(&key)).unwrap_or_default()
}

/// The run that has ended, and how: 16 bytes of its id, and the answer. The id is
/// [`nobody`](RunId::nobody) if no run has it.
fn read_end(core: &Core, id: OpId, bytes: &[u8]) -> Option<(RunId, Answered)> {
    let (run, rest) = bytes.split_at_checked(16).unwrap_or((bytes, &[]));
    let what = || format!("the answer for `{}`", location_of(core, id));
    let answered = read_answer(core, rest, what)?;
    let run = Uuid::from_slice(run).ok().and_then(RunId::from_uuid);
    Some((run.unwrap_or_else(RunId::nobody), answered))
}
