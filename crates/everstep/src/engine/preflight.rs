//! Preflight: every live run of a store, replayed against the code of this program.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
};

use tokio::sync::oneshot;

use super::{EngineBuilder, StartError, StoreChoice, small_runtime};
use crate::{
    commit::RunStatus,
    panics,
    registry::Registry,
    run::{
        core::Env,
        trial::{self, Verdict},
    },
    run_id::{RunId, RunIds},
    store::{Filter, RunRow, Store, StoreError},
    time::Timestamp,
};

/// What [`EngineBuilder::preflight`] has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preflight {
    /// How many live runs there are.
    pub checked: u64,
    /// How many of them go on with this code.
    pub ok: u64,
    /// Those that would be paused, newest first; no more than the first 1 000 are named.
    pub divergent: Vec<Misfit>,
    /// Those whose workflow, or version of it, this program does not have; likewise. They stay as
    /// they are until a process comes that has it.
    pub unknown_workflow: Vec<Misfit>,
    /// How many would be paused, named or not.
    pub divergent_count: u64,
    /// How many are of workflows or versions that are not here, named or not.
    pub unknown_count: u64,
}

/// A run that cannot go on with this code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misfit {
    /// The run.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: String,
    /// The version it was started with.
    pub version: u32,
    /// Why: the words that it would be paused with.
    pub reason: String,
}

/// How many misfits of a kind are named.
const NAMED_MAX: usize = 1_000;
/// How many rows are read at a time.
const PAGE: usize = 100;

impl Preflight {
    /// Whether every live run goes on with this code.
    pub fn is_clean(&self) -> bool {
        self.ok == self.checked
    }
}

impl std::fmt::Display for Preflight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} live runs go on with this code, {} would be paused, {} are of workflows or \
             versions that are not here",
            self.ok, self.checked, self.divergent_count, self.unknown_count
        )?;
        for misfit in self.divergent.iter().chain(&self.unknown_workflow) {
            let Misfit { run, workflow, version, reason } = misfit;
            write!(f, "\n  {run} ({workflow} version {version}): {reason}")?;
        }
        Ok(())
    }
}

impl EngineBuilder {
    /// Replays every live run of the store against the code that is registered here, and says which
    /// would be paused.
    ///
    /// Nothing is changed: no body runs, nothing is written, no shard and no lease is taken, and a
    /// file is not migrated. So it can be asked beside the process that has the runs, before that is
    /// replaced. Workflow code outside of bodies runs, as it does on every replay; give it what it
    /// needs with [`provide`](EngineBuilder::provide). Runs that start or end meanwhile may be
    /// missed.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn order(ctx: Ctx, _: ()) -> Result<()> {
    /// #     ctx.sleep("a day", days(1)).await.map(drop)
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = testing::engine().register(order);
    /// let found = engine.preflight().await?;
    /// if !found.is_clean() {
    ///     return Err(found.to_string().into());
    /// }
    /// engine.start().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If a workflow cannot be registered, or the store cannot be read.
    pub async fn preflight(&self) -> Result<Preflight, StartError> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        panics::install_hook();
        let check = Check {
            registry: self.registry.clone(),
            now: self.clock.now(),
            report: Preflight::default(),
        };
        let store = self.store.clone();
        let (settings, services) = (self.settings.clone(), self.services.clone());
        let current = tokio::runtime::Handle::try_current().ok();
        let now = self.clock.now();
        let (sender, checked) = oneshot::channel();
        // Code is polled on a thread of its own, inside a runtime, as in an engine.
        let work = move || -> Result<Preflight, StartError> {
            let store = store.open_as_it_is()?;
            let own = match current {
                Some(_) => None,
                None => Some(small_runtime().map_err(StartError::thread)?),
            };
            let runtime = current.or_else(|| own.as_ref().map(|own| own.handle().clone()));
            let secret = store.secret()?;
            let env = Rc::new(Env {
                settings: Arc::new(settings),
                services,
                runtime: runtime.clone(),
                runtime_gone: Arc::new(AtomicBool::new(false)),
                now: Cell::new(now),
                owner: None,
                ids: RunIds::new(0),
                epoch: Cell::new(0),
                children: Cell::new(0),
                stalled: Cell::new(false),
                secret,
            });
            let found = {
                let _inside = runtime.as_ref().map(|runtime| runtime.enter());
                check.all(&*store, &env)
            };
            if let Some(own) = own {
                own.shutdown_background();
            }
            Ok(found?)
        };
        crate::seam::Process::current()
            .spawn("everstep-preflight", move || _ = sender.send(work()))
            .map_err(StartError::thread)?;
        checked.await.unwrap_or_else(|_| Err(StartError::thread(std::io::Error::other("it died"))))
    }
}

impl StoreChoice {
    /// The store, without making a file or migrating it.
    fn open_as_it_is(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            #[cfg(any(feature = "sqlite", feature = "postgres"))]
            StoreChoice::Named(place) => crate::store::open(place, false)?,
            StoreChoice::Given(store) => store.clone(),
        })
    }
}

struct Check {
    registry: Arc<Registry>,
    now: Timestamp,
    report: Preflight,
}

impl Check {
    fn all(mut self, store: &dyn Store, env: &Rc<Env>) -> Result<Preflight, StoreError> {
        let all = RunStatus::ALL.into_iter();
        let live = Filter {
            statuses: all.filter(|status| !status.is_terminal()).collect(),
            ..Filter::default()
        };
        let mut after = None;
        loop {
            let page = store.list(&live, after, PAGE)?;
            after = page.last().map(|row| row.id.no());
            let full = page.len() == PAGE;
            for row in page {
                self.one(&row, store, env)?;
            }
            if !full {
                return Ok(self.report);
            }
        }
    }

    fn one(&mut self, row: &RunRow, store: &dyn Store, env: &Rc<Env>) -> Result<(), StoreError> {
        let Some(definition) = self.registry.find(&row.workflow, row.version).cloned() else {
            let newest = self.registry.newest(&row.workflow);
            let reason = match newest {
                Some(newest) => format!(
                    "version {} is not registered here; the newest that is, is version {}",
                    row.version, newest.version
                ),
                None => "the workflow is not registered here".to_owned(),
            };
            self.report.checked += 1;
            self.report.unknown_count += 1;
            name(&mut self.report.unknown_workflow, row, reason);
            return Ok(());
        };
        // It may have ended since the page was read.
        let loaded = store.load(row.id.no())?;
        let Some(loaded) = loaded.filter(|loaded| !loaded.row.status.is_terminal()) else {
            return Ok(());
        };
        env.now.set(self.now.max(loaded.row.updated_at));
        self.report.checked += 1;
        match trial::try_run(loaded, definition, env.clone()) {
            Verdict::Fits(_) => self.report.ok += 1,
            Verdict::Differs(reason) => {
                self.report.divergent_count += 1;
                name(&mut self.report.divergent, row, reason);
            }
        }
        Ok(())
    }
}

fn name(misfits: &mut Vec<Misfit>, row: &RunRow, reason: String) {
    if misfits.len() < NAMED_MAX {
        misfits.push(Misfit {
            run: row.id,
            workflow: row.workflow.to_string(),
            version: row.version,
            reason,
        });
    }
}
