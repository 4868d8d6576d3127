//! What a workflow is: a name, a version, types, and somewhere a function.
//!
//! A client needs only a [`WorkflowRef`] (a `const` will do); an engine also needs the function,
//! which it keeps in its [`Registry`] under name and version. Registration is explicit.

use std::{
    collections::HashMap, future::Future, marker::PhantomData, ops::RangeInclusive, pin::Pin,
    sync::Arc, time::Duration,
};

use serde::Serialize;

use crate::{
    codec::{Value, payload},
    ctx::Ctx,
    error::{Error, Failure, FailureKind, Result},
    limit::{Limit, StartLimit},
    name::{NameError, check_name, check_pool},
    pool::{DEFAULT_POOL, Serves},
    retention::Retention,
    retry::Retry,
    run::Halt,
    settings::SettingsError,
};

/// Names a workflow and its types. What a client needs to start one.
pub trait WorkflowRef {
    /// What it is started with.
    type Input: Value;
    /// What it gives.
    type Output: Value;

    /// Its name.
    fn name(&self) -> &str;

    /// The version that a start asks for.
    fn version(&self) -> u32 {
        1
    }

    /// The key that a run gets when its starter gives none.
    fn default_key(&self, input: &Self::Input) -> Option<String> {
        let _ = input;
        None
    }
}

/// A workflow with its function. `#[workflow]` implements it.
pub trait WorkflowFn: WorkflowRef + Send + Sync + 'static {
    /// How it is run.
    fn options(&self) -> WorkflowOptions {
        WorkflowOptions::new()
    }

    /// Its code.
    fn call(ctx: Ctx, input: Self::Input) -> impl Future<Output = Result<Self::Output>> + 'static;
}

/// A workflow as a constant, without its code.
///
/// ```
/// use everstep::Workflow;
/// const CHECKOUT: Workflow<String, u64> = Workflow::new("checkout").version(2);
/// ```
pub struct Workflow<I, O> {
    name: &'static str,
    version: u32,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Workflow<I, O> {
    /// The workflow of this name, in version 1.
    pub const fn new(name: &'static str) -> Workflow<I, O> {
        Workflow {
            name,
            version: 1,
            types: PhantomData,
        }
    }

    /// The same workflow in another version.
    pub const fn version(mut self, version: u32) -> Workflow<I, O> {
        self.version = version;
        self
    }
}

impl<I, O> Clone for Workflow<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Workflow<I, O> {}

impl<I, O> std::fmt::Debug for Workflow<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workflow({} v{})", self.name, self.version)
    }
}

impl<I: Value, O: Value> WorkflowRef for Workflow<I, O> {
    type Input = I;
    type Output = O;

    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> u32 {
        self.version
    }
}

/// What becomes of a run whose workflow returns an error for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is rolled back, and failed.
    #[default]
    Fail,
    /// It is paused as it is, with the error as the reason; nothing is compensated. `resume` tries
    /// what failed again.
    Pause,
}

/// How a workflow is run.
#[derive(Clone, Debug)]
#[must_use]
pub struct WorkflowOptions {
    pub(crate) accepts: Option<RangeInclusive<u32>>,
    pub(crate) retry: Retry,
    pub(crate) deadline: Option<Duration>,
    pub(crate) pool: Arc<str>,
    pub(crate) on_failure: OnFailure,
    pub(crate) describe: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) retain: Option<Retention>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) limit: Option<StartLimit>,
}

impl WorkflowOptions {
    /// The defaults.
    pub fn new() -> WorkflowOptions {
        WorkflowOptions {
            accepts: None,
            retry: Retry::never(),
            deadline: None,
            pool: Arc::from(DEFAULT_POOL),
            on_failure: OnFailure::Fail,
            describe: None,
            owner: None,
            retain: None,
            labels: Vec::new(),
            limit: None,
        }
    }

    /// Which versions of a run this code serves; only its own if this is not said.
    pub fn accepts(mut self, versions: RangeInclusive<u32>) -> WorkflowOptions {
        self.accepts = Some(versions);
        self
    }

    /// How often a run is tried as a whole; once if this is not said.
    pub fn retry(mut self, retry: Retry) -> WorkflowOptions {
        self.retry = retry;
        self
    }

    /// How long a run may take from its start, unless its starter says otherwise.
    pub fn deadline(mut self, deadline: Duration) -> WorkflowOptions {
        self.deadline = Some(deadline);
        self
    }

    /// The pool whose runners run it.
    pub fn pool(mut self, pool: impl Into<Arc<str>>) -> WorkflowOptions {
        self.pool = pool.into();
        self
    }

    /// What becomes of a run that fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> WorkflowOptions {
        self.on_failure = on_failure;
        self
    }

    /// Its runs are under this [`Limit`] as a whole: a run waits for its place before its code is
    /// called, and holds it until it ends, is paused, begins its rollback, waits to be tried again as
    /// a whole, or continues as a new one; after the last three it stands in line again. A run that
    /// sleeps holds its place.
    pub fn limit(mut self, limit: Limit) -> WorkflowOptions {
        self.limit = Some(StartLimit::new(limit));
        self
    }

    /// As [`limit`](WorkflowOptions::limit), with a key made from the input: each key is limited on
    /// its own.
    ///
    /// ```
    /// use everstep::{Limit, WorkflowOptions};
    /// const TENANT: Limit = Limit::new("tenant").concurrency(2);
    /// let options = WorkflowOptions::new().limit_key(TENANT, |(tenant, _): &(u64, String)| *tenant);
    /// ```
    pub fn limit_key<I: Value, K: std::fmt::Display>(
        mut self,
        limit: Limit,
        key: impl Fn(&I) -> K + Send + Sync + 'static,
    ) -> WorkflowOptions {
        self.limit = Some(StartLimit::with_key(limit, key));
        self
    }

    /// A sentence for people.
    pub fn describe(mut self, text: impl Into<String>) -> WorkflowOptions {
        self.describe = Some(text.into());
        self
    }

    /// Who to ask about it.
    pub fn owner(mut self, owner: impl Into<String>) -> WorkflowOptions {
        self.owner = Some(owner.into());
        self
    }

    /// How long its runs are kept after their end, instead of what the engine's settings say.
    pub fn retain(mut self, retention: Retention) -> WorkflowOptions {
        self.retain = Some(retention);
        self
    }

    /// A tag that every run of it gets.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> WorkflowOptions {
        self.labels.push((name.into(), value.into()));
        self
    }
}

impl WorkflowOptions {
    /// Refuses options with which every run would fail.
    fn check(&self) -> Result<(), SettingsError> {
        SettingsError::check_count("retry", self.retry.attempts().into())?;
        let deadline = self.deadline.unwrap_or(DEADLINE_MIN);
        SettingsError::check_time("deadline", deadline, DEADLINE_MIN)
    }
}

/// The shortest deadline of a run.
const DEADLINE_MIN: Duration = Duration::from_millis(1);

impl Default for WorkflowOptions {
    fn default() -> WorkflowOptions {
        WorkflowOptions::new()
    }
}

/// The future of a run: its output as a payload, or why it has none.
pub(crate) type RunFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, RunEnd>>>>;

/// How the code of a run can end without an output.
pub(crate) enum RunEnd {
    /// With an error.
    Error(Error),
    /// It cannot go on with this code.
    Halt(Halt),
}

type Begin = dyn Fn(Ctx, Vec<u8>) -> RunFuture + Send + Sync;

/// One registered workflow.
pub(crate) struct Definition {
    pub(crate) name: Arc<str>,
    pub(crate) version: u32,
    pub(crate) options: WorkflowOptions,
    begin: Box<Begin>,
}

impl Definition {
    pub(crate) fn new<I, O, F, R>(
        name: &str,
        version: u32,
        options: WorkflowOptions,
        function: F,
    ) -> Definition
    where
        I: Value,
        O: Value,
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O>> + 'static,
    {
        let function = Arc::new(function);
        // Nothing of the user's code, not even decoding, runs before the first poll: there a panic
        // is caught.
        let begin = move |ctx: Ctx, input: Vec<u8>| -> RunFuture {
            let (function, core) = (function.clone(), ctx.core().clone());
            Box::pin(async move {
                let codecs = &core.env.settings.codecs;
                let input = codecs.read(&input, Some(core.facts.id));
                let input = input.map_err(|error| {
                    RunEnd::Halt(Halt::unreadable("its input".to_owned(), error))
                })?;
                let output = function(ctx, input).await.map_err(RunEnd::Error)?;
                let limit = core.env.settings.payload_bytes_max;
                let output = encode_output(&output, limit).map_err(RunEnd::Error)?;
                codecs.seal(output, None).map_err(|error| {
                    RunEnd::Halt(Halt::Unsealable {
                        what: "its output".to_owned(),
                        error: error.to_string(),
                    })
                })
            })
        };
        Definition {
            name: Arc::from(name),
            version,
            options,
            begin: Box::new(begin),
        }
    }

    /// Calls the code. The future has not been polled yet.
    pub(crate) fn begin(&self, ctx: Ctx, input: Vec<u8>) -> RunFuture {
        (self.begin)(ctx, input)
    }

    /// How a runner that has it says so.
    pub(crate) fn serves(&self) -> Serves {
        let RegisterCheck(accepts) = RegisterCheck::of(self);
        Serves {
            workflow: self.name.to_string(),
            version: self.version,
            accepts,
            pool: self.options.pool.to_string(),
        }
    }

    pub(crate) fn accepts(&self, version: u32) -> bool {
        match &self.options.accepts {
            Some(versions) => versions.contains(&version),
            None => version == self.version,
        }
    }
}

fn encode_output<O: Serialize>(output: &O, limit: usize) -> Result<Vec<u8>> {
    let bytes = payload::to_vec(output).map_err(Error::fatal)?;
    if bytes.len() > limit {
        let mut failure = Failure::new(
            FailureKind::Limit,
            format!(
                "the output has {} bytes, and the limit for a payload is {limit}; return less, or \
                 raise `payload_bytes_max`",
                bytes.len()
            ),
        );
        failure.attempts = 1;
        return Err(Error::recorded(failure, Vec::new()));
    }
    Ok(bytes)
}

/// The workflows that an engine can run, by name and version.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    by_name: HashMap<Arc<str>, Vec<Arc<Definition>>>,
}

impl Registry {
    /// Fails if there is one of this name that serves one of the same versions.
    pub(crate) fn insert(&mut self, definition: Definition) -> Result<(), RegisterError> {
        let RegisterCheck(range) = RegisterCheck::of(&definition);
        check_name(&definition.name).map_err(RegisterError::Name)?;
        check_pool(&definition.options.pool).map_err(RegisterError::Name)?;
        let checked = definition.options.check();
        checked.map_err(|problem| RegisterError::Options {
            name: definition.name.to_string(),
            problem,
        })?;
        let versions = self.by_name.entry(definition.name.clone()).or_default();
        for other in versions.iter() {
            let RegisterCheck(taken) = RegisterCheck::of(other);
            if range.start() <= taken.end() && taken.start() <= range.end() {
                return Err(RegisterError::Twice {
                    name: definition.name.to_string(),
                    version: *range.start().max(taken.start()),
                });
            }
        }
        versions.push(Arc::new(definition));
        Ok(())
    }

    /// The code for runs of this workflow and version.
    pub(crate) fn find(&self, name: &str, version: u32) -> Option<&Arc<Definition>> {
        self.by_name
            .get(name)?
            .iter()
            .find(|definition| definition.accepts(version))
    }

    /// The newest version of the workflow that is here.
    pub(crate) fn newest(&self, name: &str) -> Option<&Arc<Definition>> {
        self.by_name
            .get(name)?
            .iter()
            .max_by_key(|definition| definition.version)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.by_name.values().flatten()
    }
}

/// The versions that a definition serves.
struct RegisterCheck(RangeInclusive<u32>);

impl RegisterCheck {
    fn of(definition: &Definition) -> RegisterCheck {
        let own = definition.version..=definition.version;
        RegisterCheck(definition.options.accepts.clone().unwrap_or(own))
    }
}

/// Why a workflow cannot be registered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// There is one already.
    #[error(
        "workflow `{name}` is registered twice for version {version}; give one of them another \
             name or version, or narrow what it `accepts`"
    )]
    Twice {
        /// The workflow.
        name: String,
        /// A version that both serve.
        version: u32,
    },
    /// Its name cannot be used.
    #[error("a workflow cannot be registered")]
    Name(#[source] NameError),
    /// A number or a time among its options cannot work.
    #[error("workflow `{name}` cannot be registered")]
    Options {
        /// The workflow.
        name: String,
        /// The option.
        #[source]
        problem: SettingsError,
    },
}
