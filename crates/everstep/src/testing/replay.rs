//! A run that was exported, replayed against the code of a test.

use std::{cell::Cell, fmt, future::Future, rc::Rc, sync::Arc, sync::atomic::AtomicBool};

use crate::{
    client::transfer::run_file,
    codec::{Value, hook::Codec},
    commit::{ImportedRun, RunStatus},
    ctx::Ctx,
    error::Result as UserResult,
    panics,
    registry::WorkflowFn,
    run::{
        Definition,
        core::Env,
        trial::{self, Standing, Verdict},
    },
    run_id::RunId,
    services::Services,
    settings::Settings,
    store::LoadedRun,
    workflow::{Workflow, WorkflowOptions, WorkflowRef},
};

/// Replays a run that [`RunHandle::export`](crate::RunHandle::export) has written against code: the
/// test that a change does not break runs that are under way.
///
/// No body runs, no engine is started and nothing is written. Keep the files of typical runs beside
/// the tests, and add one whenever a run in production was surprising.
///
/// ```
/// use everstep::{prelude::*, testing};
///
/// #[workflow]
/// async fn order(ctx: Ctx, item: String) -> Result<String> {
///     ctx.step("reserve", async || Ok(())).await?;
///     ctx.listen::<()>("paid").await?;
///     Ok(item)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = testing::engine().register(order).start().await?;
/// # let run = engine.client().start(order, "teapot".to_owned()).await?;
/// # while run.status().await? != everstep::RunStatus::Sleeping { tokio::task::yield_now().await }
/// let file = run.export().await?; // in a test: include_bytes!("order.run")
/// let replayed = testing::replay(&file).against(order)?;
/// assert_eq!(replayed.completions, 1);
/// assert_eq!(replayed.open, ["paid"]);
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub fn replay(file: impl AsRef<[u8]>) -> Replay {
    Replay {
        file: file.as_ref().to_vec(),
        services: Services::default(),
        settings: Settings::default(),
    }
}

/// A run to be replayed: say against what.
#[must_use = "nothing is replayed before it is said against what"]
pub struct Replay {
    file: Vec<u8>,
    services: Services,
    settings: Settings,
}

/// A run that fits the code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// The run.
    pub run: RunId,
    /// The version it was started with.
    pub version: u32,
    /// What it was doing when it was exported.
    pub status: RunStatus,
    /// How many recorded completions the code has taken.
    pub completions: usize,
    /// Where it stands: the operations that are open, by location, in order.
    pub open: Vec<String>,
    /// Whether the code has returned.
    pub ended: bool,
}

/// Why a run cannot be replayed against this code.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It is not a run, or of a later version.
    #[error("the file cannot be read: {problem}")]
    File {
        /// What is wrong.
        problem: String,
    },
    /// It is of another workflow, or of a version that the code does not serve.
    #[error(
        "run {run} is of `{workflow}` version {version}, and the code is `{code}`, which serves \
         versions {serves}"
    )]
    Other {
        /// The run.
        run: RunId,
        /// Its workflow.
        workflow: String,
        /// Its version.
        version: u32,
        /// The workflow of the code.
        code: String,
        /// What it serves.
        serves: String,
    },
    /// The code does not fit the run.
    #[error("run {run} would be paused: {reason}")]
    Diverged {
        /// The run.
        run: RunId,
        /// The words that it would be paused with.
        reason: String,
    },
}

/// As it reads: a test that ends with `?` or `unwrap` shows this.
impl fmt::Debug for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Replay {
    /// Gives the code a dependency: `ctx.get::<T>()` outside of bodies.
    pub fn provide<T: Send + Sync + 'static>(mut self, dependency: T) -> Replay {
        self.services.insert(dependency);
        self
    }

    /// Opens payloads that were written with a codec.
    pub fn codec(mut self, codec: impl Codec) -> Replay {
        self.settings.codecs.push(Arc::new(codec));
        self
    }

    /// Changes settings, where the engine's are not the defaults: limits count on replay too.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Replay {
        change(&mut self.settings);
        self
    }

    /// Replays the run against a workflow.
    ///
    /// # Errors
    ///
    /// If the code does not do what the history has: the error says where, with both sides named.
    pub fn against<W: WorkflowFn>(self, workflow: W) -> Result<Replayed, ReplayError> {
        let (name, version) = (workflow.name().to_owned(), workflow.version());
        self.try_it(Definition::new::<W::Input, W::Output, _, _>(
            &name,
            version,
            workflow.options(),
            |ctx, input| W::call(ctx, input),
        ))
    }

    /// Replays the run against a function that is registered under a constant.
    ///
    /// # Errors
    ///
    /// As [`against`](Replay::against).
    pub fn against_fn<I, O, F, R>(
        self,
        workflow: Workflow<I, O>,
        code: F,
    ) -> Result<Replayed, ReplayError>
    where
        I: Value,
        O: Value,
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + 'static,
    {
        let version = WorkflowRef::version(&workflow);
        let options = WorkflowOptions::new();
        self.try_it(Definition::new(workflow.name(), version, options, code))
    }

    fn try_it(self, definition: Definition) -> Result<Replayed, ReplayError> {
        let file = run_file::decode_run(&self.file)
            .map_err(|error| ReplayError::File { problem: error.to_string() })?;
        let ImportedRun { row, history, inbox, .. } = file;
        let (run, version, status) = (row.id, row.version, row.status);
        if *row.workflow != *definition.name || !definition.accepts(version) {
            return Err(ReplayError::Other {
                run,
                workflow: row.workflow.to_string(),
                version,
                code: definition.name.to_string(),
                serves: match &definition.options.accepts {
                    Some(all) => format!("{} to {}", all.start(), all.end()),
                    None => format!("{} only", definition.version),
                },
            });
        }
        panics::install_hook();
        let env = Rc::new(Env {
            settings: Arc::new(self.settings),
            services: Arc::new(self.services),
            runtime: tokio::runtime::Handle::try_current().ok(),
            runtime_gone: Arc::new(AtomicBool::new(false)),
            now: Cell::new(row.updated_at),
            owner: None,
            ids: crate::run_id::RunIds::new(0),
            epoch: Cell::new(0),
            children: Cell::new(0),
            stalled: Cell::new(false),
            // Tokens are of no use here: nothing of what the code does with them leaves the replay.
            secret: crate::store::Secret::new([0; 32]),
        });
        let loaded = LoadedRun { row, history, inbox, streams: Vec::new() };
        match trial::try_run(loaded, Arc::new(definition), env) {
            Verdict::Fits(Standing { completions, open, ended }) => {
                Ok(Replayed { run, version, status, completions, open, ended })
            }
            Verdict::Differs(reason) => Err(ReplayError::Diverged { run, reason }),
        }
    }
}
