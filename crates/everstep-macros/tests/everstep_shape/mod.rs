// The names of everstep that `#[workflow]` writes, in the least form that shows what was written.
//
// A crate that says `extern crate self as everstep;` and includes this file at its root can use the
// attribute without the library, which depends on the macro and so cannot be built before it.

/// Stands for the context that a workflow is handed.
#[derive(Debug)]
pub struct Ctx;

/// Stands for the error of a workflow.
#[derive(Debug)]
pub struct Error;

impl<E: std::error::Error> From<E> for Error {
    fn from(_: E) -> Self {
        Error
    }
}

/// Stands for the result of a workflow.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Stands for a retry policy.
#[derive(Debug, PartialEq)]
pub struct Retry(pub u32);

impl Retry {
    /// So many attempts.
    pub fn exponential(attempts: u32) -> Self {
        Retry(attempts)
    }
}

/// So many hours.
pub fn hours(hours: u64) -> std::time::Duration {
    std::time::Duration::from_secs(hours * 3600)
}

/// Stands for the retention.
#[derive(Debug, PartialEq)]
pub struct Retention(pub std::time::Duration);

/// Stands for the failure policy.
#[derive(Debug, PartialEq)]
pub enum OnFailure {
    /// Fail the run.
    Fail,
    /// Pause the run.
    Pause,
}

/// What a client needs to know of a workflow.
pub trait WorkflowRef {
    /// The input.
    type Input;
    /// The output.
    type Output;
    /// The name.
    fn name(&self) -> &str;
    /// The version of new runs.
    fn version(&self) -> u32;
    /// The key of a run that is started without one.
    fn default_key(&self, _input: &Self::Input) -> Option<String> {
        None
    }
}

/// What an engine needs to know of a workflow.
pub trait WorkflowFn: WorkflowRef + 'static {
    /// The options.
    fn options(&self) -> WorkflowOptions;
    /// Makes the future.
    fn call(
        ctx: Ctx,
        input: Self::Input,
    ) -> impl std::future::Future<Output = Result<Self::Output>> + 'static;
}

/// The options, each as it was set.
#[derive(Debug, Default, PartialEq)]
pub struct WorkflowOptions {
    /// What was set, in order.
    pub set: Vec<String>,
}

impl WorkflowOptions {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    fn note(mut self, text: String) -> Self {
        self.set.push(text);
        self
    }

    /// The versions accepted.
    pub fn accepts(self, versions: std::ops::RangeInclusive<u32>) -> Self {
        self.note(format!("accepts {versions:?}"))
    }

    /// The retry policy.
    pub fn retry(self, retry: Retry) -> Self {
        self.note(format!("retry {}", retry.0))
    }

    /// The deadline.
    pub fn deadline(self, deadline: std::time::Duration) -> Self {
        self.note(format!("deadline {deadline:?}"))
    }

    /// The pool.
    pub fn pool(self, pool: impl Into<String>) -> Self {
        self.note(format!("pool {}", pool.into()))
    }

    /// What becomes of a run that fails.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.note(format!("on_failure {on_failure:?}"))
    }

    /// How long runs are kept.
    pub fn retain(self, retention: Retention) -> Self {
        self.note(format!("retain {:?}", retention.0))
    }

    /// The description.
    pub fn describe(self, describe: impl Into<String>) -> Self {
        self.note(format!("describe {}", describe.into()))
    }

    /// The owner.
    pub fn owner(self, owner: impl Into<String>) -> Self {
        self.note(format!("owner {}", owner.into()))
    }

    /// The limit of whole runs.
    pub fn limit(self, limit: &str) -> Self {
        self.note(format!("limit {limit}"))
    }

    /// The limit of whole runs, with a key.
    pub fn limit_key<I: Default, K: std::fmt::Display>(
        self,
        limit: &str,
        key: impl Fn(&I) -> K,
    ) -> Self {
        self.note(format!("limit {limit} {}", key(&I::default())))
    }

    /// One label.
    pub fn label(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.note(format!("label {} {}", key.into(), value.into()))
    }
}

/// What only the macro uses.
#[doc(hidden)]
pub mod __private {
    /// The type inside of a `Result`, through any alias.
    #[diagnostic::on_unimplemented(
        message = "a workflow returns `everstep::Result<..>`, not `{Self}`",
        label = "this is not a `Result`"
    )]
    pub trait ResultOk {
        /// That type.
        type Ok;
    }

    impl<T, E> ResultOk for std::result::Result<T, E> {
        type Ok = T;
    }

    /// The key that a function makes of an input; it may borrow from it.
    pub fn key_of<'a, I, K: std::fmt::Display>(
        input: &'a I,
        key: impl FnOnce(&'a I) -> K,
    ) -> String {
        key(input).to_string()
    }
}
