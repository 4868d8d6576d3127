//! What a workflow is: a name, a version, types and options.
//!
//! A client needs only a [`WorkflowRef`] (a `const` will do); an engine also needs the function, which
//! it keeps in its [registry](crate::registry) under name and version.

use std::{marker::PhantomData, ops::RangeInclusive, sync::Arc, time::Duration};

use crate::{
    codec::Value,
    limit::{Limit, StartLimit},
    pool::DEFAULT_POOL,
    retention::Retention,
    retry::Retry,
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
        Workflow { name, version: 1, types: PhantomData }
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
    /// Adds the labels to the tags of a run, which has another value for a name if it was given one.
    pub(crate) fn add_labels(&self, tags: &mut Vec<(String, String)>) {
        for (name, value) in &self.labels {
            if !tags.iter().any(|(other, _)| other == name) {
                tags.push((name.clone(), value.clone()));
            }
        }
    }

    /// Refuses options with which every run would fail.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
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
