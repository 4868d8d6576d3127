//! Engines, each in a process of its own that is started again whenever it has ended.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    Client, Engine, EngineBuilder, EngineTools, Retry, Sabotage, WorkflowOptions,
    testing::simulation::{self, Server, SimStore, SimThread},
};

use super::clients::Outside;
use crate::{
    oracle::{
        Promise,
        ledger::{Ledger, note},
    },
    plan::{EnginePlan, Plan},
    work::{
        PERFORM,
        perform::{Code, perform},
    },
};

/// The engines of a life.
pub(crate) struct Engines {
    pub(crate) plan: Arc<Plan>,
    pub(crate) server: Arc<Server>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sabotage: Option<Sabotage>,
    /// No engine is started any more.
    pub(crate) closing: AtomicBool,
    /// All runs have ended, so nothing may be left in memory.
    pub(crate) expects_nothing: AtomicBool,
    /// What is left of engines for the count of what they did.
    tools: Mutex<Vec<EngineTools>>,
    /// Those that are to leave.
    leaving: Mutex<Vec<bool>>,
    /// The processes that have shut down while nothing was wrong any more.
    signed_off: Mutex<BTreeSet<String>>,
    /// How many processes have the code before the change.
    unchanged: AtomicUsize,
}

/// Which code an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// None for any run of the life.
    None,
    /// The first version alone.
    Old,
    /// The second one, which accepts the first.
    New,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engines {
    pub(crate) fn new(
        plan: Arc<Plan>,
        server: Arc<Server>,
        ledger: Arc<Ledger>,
        sabotage: Option<Sabotage>,
    ) -> Arc<Engines> {
        let leaving = vec![false; plan.engines.len()];
        Arc::new(Engines {
            plan,
            server,
            ledger,
            sabotage,
            closing: AtomicBool::new(false),
            expects_nothing: AtomicBool::new(false),
            tools: Mutex::default(),
            leaving: Mutex::new(leaving),
            signed_off: Mutex::default(),
            unchanged: AtomicUsize::new(0),
        })
    }

    /// Starts them. Each has a thread in this process that starts it again.
    pub(crate) fn begin(self: &Arc<Engines>) -> Vec<SimThread> {
        let begin = |number: usize| {
            let engines = self.clone();
            let name = format!("supervisor-{number}");
            simulation::this_process().spawn(&name, move || engines.supervise(number))
        };
        (0..self.plan.engines.len()).map(begin).collect()
    }

    /// Has them leave, and starts none any more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Whether this process has shut down while nothing was wrong any more.
    pub(crate) fn has_signed_off(&self, process: &str) -> bool {
        lock(&self.signed_off).contains(process)
    }

    pub(crate) fn takeovers(&self) -> u64 {
        let tools = lock(&self.tools);
        tools.iter().map(|it| it.counters().takeovers).sum()
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    fn is_calm(&self) -> bool {
        self.plan.sky.is_calm(simulation::time())
    }

    /// Whether processes that begin now have the code after the change.
    fn is_changed(&self) -> bool {
        self.plan.changes_at.is_none_or(|at| simulation::time() >= at)
    }

    fn supervise(self: &Arc<Engines>, number: usize) {
        let plan = &self.plan.engines[number];
        simulation::sleep(plan.begins);
        for life in 1.. {
            if self.is_closing() {
                return;
            }
            self.live(number, plan, life);
            let pause = match simulation::random() % 3 {
                0 => 0,
                _ => simulation::random() % 3_000,
            };
            simulation::sleep(Duration::from_millis(pause));
        }
    }

    /// One process from its start to its end.
    fn live(self: &Arc<Engines>, number: usize, plan: &EnginePlan, life: u32) {
        let version = match plan.is_steady || self.is_calm() {
            true => Version::New,
            false => [Version::None, Version::Old, Version::New, Version::New]
                [(simulation::random() % 4) as usize],
        };
        let stays = plan.stays.filter(|_| !self.is_calm());
        let is_changed = self.is_changed();
        match is_changed {
            true => {
                while self.unchanged.load(Ordering::Relaxed) > 0 {
                    simulation::sleep(LOOK);
                }
            }
            false => _ = self.unchanged.fetch_add(1, Ordering::Relaxed),
        }
        let process = simulation::new_process(&format!("engine-{number}.{life}"));
        process.set_clocks(plan.clocks);
        note(|| format!("engine-{number}.{life} begins, with version {version:?}"));
        lock(&self.leaving)[number] = false;
        let (engines, of) = (self.clone(), process.clone());
        let host = process.spawn("host", move || {
            let name = format!("engine-{number}.{life}");
            let code = engines.code(number, name, is_changed);
            let builder = engines.builder(number, version, code.clone());
            let store = engines.server.open(&of, false);
            engines.host(number, &code, builder(store));
        });
        let begun = simulation::time();
        while !process.is_dead() && !host.is_finished() {
            simulation::sleep(LOOK);
            let must_leave = self.is_closing()
                || (self.is_calm() && version != Version::New)
                || (self.is_changed() && !is_changed)
                || stays.is_some_and(|stays| simulation::time() > begun + stays);
            if must_leave {
                lock(&self.leaving)[number] = true;
            }
        }
        // What is left of it ends with it.
        process.exit();
        if !is_changed {
            self.unchanged.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The code of a process.
    fn code(&self, number: usize, process: String, is_changed: bool) -> Arc<Code> {
        Arc::new(Code {
            programs: self.plan.programs.clone(),
            ledger: self.ledger.clone(),
            process,
            is_fenced: self.plan.engines[number].is_fenced,
            gate: self.plan.gate,
            queue: self.plan.queue,
            is_changed,
            client: OnceLock::new(),
        })
    }

    fn builder(
        &self,
        number: usize,
        version: Version,
        code: Arc<Code>,
    ) -> impl FnOnce(Arc<SimStore>) -> EngineBuilder {
        let plan = self.plan.engines[number].clone();
        let (lease, sabotage) = (self.plan.lease, self.sabotage);
        let (gate, queue, run_retry) = (self.plan.gate, self.plan.queue, self.plan.run_retry);
        let (ledger, name) = (self.ledger.clone(), code.process.clone());
        move |store| {
            let builder = Engine::on(store).settings(|settings| {
                settings.threads = plan.threads;
                settings.lease = lease;
                settings.max_live_runs = plan.max_live_runs;
                settings.batch_commits_max = plan.batch_commits_max;
                if !plan.keeps_hot {
                    settings.hot_bytes = 0;
                }
                settings.shutdown_limit = lease;
                let unfenced = (!plan.is_fenced).then_some(Sabotage::NoSelfFencing);
                settings.sabotage = sabotage.or(unfenced);
            });
            let builder = match queue.filter(|_| plan.workers > 0) {
                Some(queue) => queue.work(builder, plan.workers, ledger, name),
                None => builder,
            };
            let code = move |ctx, order| perform(code.clone(), ctx, order);
            let options = WorkflowOptions::new();
            let options = gate.map_or(options.clone(), |gate| gate.on_runs(options));
            let options = match run_retry {
                Some(retry) => options.retry(Retry::fixed(retry.attempts, retry.delay)),
                None => options,
            };
            match version {
                Version::None => builder,
                Version::Old => builder.register_fn_with(PERFORM, options, code),
                Version::New => {
                    let options = options.accepts(1..=2);
                    builder.register_fn_with(PERFORM.version(2), options, code)
                }
            }
        }
    }

    /// Starts the run of a program in the process of an engine, which claims it.
    fn start_here(&self, process: &str, client: Client) {
        let program = simulation::random() as usize % self.plan.programs.len();
        let outside = Outside {
            client,
            name: process.to_owned(),
            plan: self.plan.clone(),
            ledger: self.ledger.clone(),
        };
        outside.start(program);
    }

    /// Starts the engine, and shuts it down when it is to leave.
    fn host(&self, number: usize, code: &Code, builder: EngineBuilder) {
        let engine = match simulation::block_on(builder.start()) {
            Ok(engine) => engine,
            Err(error) => return note(|| format!("the engine does not start: {error:?}")),
        };
        note(|| "the engine has started".to_owned());
        lock(&self.tools).push(engine.shared_for_tools());
        _ = code.client.set(engine.client());
        self.start_here(&code.process, engine.client());
        while !lock(&self.leaving)[number] {
            simulation::sleep(LOOK);
            if let Some(error) = engine.stopped() {
                let what = format!("engine-{number} has stopped: {error:?}");
                return self.ledger.violate(Promise::EnginesLive, what);
            }
        }
        // A thread that was stalled before the calm may have to let go of runs that others have ended.
        let is_settled = self.plan.sky.is_settled(simulation::time());
        if self.expects_nothing.load(Ordering::Relaxed) && is_settled {
            let census = simulation::block_on(engine.census());
            if (census.moving, census.hot) != (0, 0) {
                let what = format!("engine-{number} has {census:?} after the end of all runs");
                self.ledger.violate(Promise::NothingIsLeft, what);
            }
        }
        note(|| "the engine shuts down".to_owned());
        simulation::block_on(engine.shutdown());
        note(|| "the engine has shut down".to_owned());
        if is_settled {
            lock(&self.signed_off).insert(code.process.clone());
        }
    }
}

/// How often it is looked whether an engine is to leave.
const LOOK: Duration = Duration::from_millis(500);
