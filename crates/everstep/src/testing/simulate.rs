//! A workflow of the user's in a simulated world: many lives, each decided by one seed.
//!
//! [`crash_everywhere`](super::crash_everywhere()) lets one engine die at every write. Here several engines
//! share a store, and a seed decides what befalls them: which thread goes on, what the store answers and
//! when, which process is stalled or dies, what the clocks show, and what outside systems ([`Fake`]) do
//! with requests. After a while the faults stop, and the run must come to its end.

mod fake;

use std::{
    any::{Any, TypeId, type_name},
    fmt,
    future::Future,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use serde_json::Value as Json;

use self::fake::Weather;
pub use self::fake::{Fake, FakeError};
use super::{
    crash_everywhere::{StartRun, start_run},
    simulation::{self, Config, Kind, Report, Rng, Server, SimProcess, SimThread, Sky, Trace},
};
use crate::{
    client::{Client, ClientError, RunHandle},
    engine::{Engine, EngineBuilder},
    error::Failure,
    panics,
    registry::WorkflowFn,
    store::RunStatus,
    workflow::WorkflowRef,
};

/// Lets a workflow live in simulated worlds, and checks what must be true of each.
///
/// Each seed is one world. It draws one to three engines and some of these faults: a store that is slow,
/// fails and loses answers; processes that are stalled past their lease or die, at any point; clocks that
/// jump; outside systems ([`Fake`]) that fail, answer late, or do their work and lose the answer. About a
/// quarter of the worlds have no faults of processes and stores. No real time passes, and a failure is
/// repeated by its seed.
///
/// Each world is checked for this: after the faults have stopped the run ends in time, the doctor finds
/// nothing in the store, and no engine has stopped by itself. How the run ends is for you to state with
/// [`check`](Simulation::check): without one, a run that fails in every world passes.
///
/// ```
/// use everstep::{prelude::*, testing::{Fake, simulate}};
/// use std::collections::BTreeMap;
///
/// /// A payment provider that knows idempotency keys.
/// #[derive(Default)]
/// struct Payments {
///     charged: BTreeMap<String, u32>,
/// }
///
/// #[workflow]
/// async fn checkout(ctx: Ctx, amount: u32) -> Result<u32> {
///     ctx.step_with("charge", async |step| {
///         let (key, payments) = (step.idempotency_key().to_owned(), ctx.get::<Fake<Payments>>());
///         payments.call(|it| _ = it.charged.insert(key.clone(), amount)).await?;
///         Ok(())
///     })
///     .retry(Retry::fixed(20, seconds(1)))
///     .await?;
///     Ok(amount)
/// }
///
/// // Requests get lost often, so the step above is given many attempts.
/// let report = simulate(checkout, 5)
///     .fake(Payments::default)
///     .check("the customer is charged once", |end| {
///         let charges: u32 = end.fake::<Payments>().state().charged.values().sum();
///         match charges {
///             5 => Ok(()),
///             other => Err(format!("{other} was charged")),
///         }
///     })
///     .seeds(0..20)
///     .run();
/// assert_eq!(report.seeds, 20);
/// ```
///
/// Bodies run in simulated time. They may call [`Fake`]s and compute; a socket, a timer of tokio or a
/// thread of their own does not exist in a simulated world, and a body that waits for one fails the seed.
pub fn simulate<W>(workflow: W, input: W::Input) -> Simulation
where
    W: WorkflowFn + Clone,
    W::Input: Clone + Send + Sync,
    W::Output: Send,
{
    let code = workflow.clone();
    Simulation::new(workflow, input).engine(move |builder| builder.register(code.clone()))
}

/// A workflow in simulated worlds: see [`simulate`]. Say what else there is, then call
/// [`run`](Simulation::run).
#[must_use = "nothing is simulated before `run`"]
#[derive(Clone)]
pub struct Simulation {
    start: StartRun,
    engine: Vec<Change>,
    fakes: Vec<(TypeId, MakeFake)>,
    acts: Vec<Act>,
    checks: Vec<(String, Check)>,
    seeds: Range<u64>,
    lasts: Duration,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Change = Arc<dyn Fn(EngineBuilder) -> EngineBuilder + Send + Sync>;
type Act = Arc<dyn Fn(RunHandle<Json>) -> Boxed<Result<(), ClientError>> + Send + Sync>;
type Check = Arc<dyn Fn(&Simulated) -> Result<(), String> + Send + Sync>;
type MakeFake = Arc<dyn Fn(Weather) -> (Change, Arc<dyn Any + Send + Sync>) + Send + Sync>;

/// How a run has ended in one simulated world.
#[non_exhaustive]
pub struct Simulated {
    /// The seed of the world.
    pub seed: u64,
    /// The status of the run.
    pub status: RunStatus,
    /// The result of the run.
    pub output: Option<Json>,
    /// Why the run has failed.
    pub failure: Option<Failure>,
    fakes: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Simulated {
    /// An outside system, as it is at the end.
    ///
    /// # Panics
    ///
    /// If [`Simulation::fake`] has not brought it in.
    pub fn fake<T: Send + 'static>(&self) -> &Fake<T> {
        let found = self.fakes.iter().find_map(|fake| fake.downcast_ref::<Fake<T>>());
        let name = type_name::<T>();
        found.unwrap_or_else(|| panic!("there is no fake of `{name}`; add it with `.fake(..)`"))
    }
}

/// The result of a simulation: counts over all worlds, and the failures.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SimulationReport {
    /// How many worlds there were.
    pub seeds: u64,
    /// How many processes died.
    pub crashes: u64,
    /// How often a process or a thread was stalled.
    pub stalls: u64,
    /// How often the store failed.
    pub store_errors: u64,
    /// How often a clock was set.
    pub clock_jumps: u64,
    /// The worlds in which something was wrong.
    pub failures: Vec<SimulationFailure>,
}

/// A world in which something was wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulationFailure {
    /// Its seed: `.seeds(seed..seed + 1)` repeats it.
    pub seed: u64,
    /// The violations that were found, one text each.
    pub what: Vec<String>,
    /// One line for each scheduling step: time, process, thread, and the point where it had stopped.
    pub trace: String,
}

impl fmt::Display for SimulationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimulationReport { seeds, crashes, stalls, store_errors, clock_jumps, failures } = self;
        writeln!(
            f,
            "{seeds} simulated worlds with {crashes} crashes, {stalls} stalls, {store_errors} errors of the \
             store and {clock_jumps} jumps of clocks; {} of them went wrong",
            failures.len()
        )?;
        for failure in failures.iter().take(10) {
            for what in &failure.what {
                writeln!(f, "- seed {}: {what}", failure.seed)?;
            }
        }
        Ok(())
    }
}

/// The key that the run is started with, again and again.
const KEY: &str = "simulated";

/// How many seeds are lived if nothing else is said.
const SEEDS: u64 = 100;

/// How long a run takes if nothing else is said.
const LASTS: Duration = Duration::from_secs(60);

/// How many leases fit into the time that a run takes: faults and takeovers come while it goes on.
const LEASES: u32 = 40;

/// How long engines may take to shut down, in leases.
const SHUTDOWN: u32 = 20;

impl Simulation {
    /// A simulation of this workflow; [`engine`](Simulation::engine) must register its code.
    pub fn new<W>(workflow: W, input: W::Input) -> Simulation
    where
        W: WorkflowRef + Clone + Send + Sync + 'static,
        W::Input: Clone + Send + Sync,
        W::Output: Send,
    {
        Simulation {
            start: start_run(workflow, input, KEY),
            engine: Vec::new(),
            fakes: Vec::new(),
            acts: Vec::new(),
            checks: Vec::new(),
            seeds: 0..SEEDS,
            lasts: LASTS,
        }
    }

    /// Registers, provides and sets what each engine needs.
    pub fn engine(
        mut self,
        change: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> Simulation {
        self.engine.push(Arc::new(change));
        self
    }

    /// Adds an outside system, in this state when a world begins. Bodies find it with
    /// `ctx.get::<Fake<T>>()`.
    ///
    /// # Panics
    ///
    /// If there is a fake of this type: bodies could not tell the two apart. Give two systems two types.
    pub fn fake<T: Send + 'static>(
        mut self,
        new: impl Fn() -> T + Send + Sync + 'static,
    ) -> Simulation {
        let of = TypeId::of::<T>();
        assert!(
            self.fakes.iter().all(|(other, _)| *other != of),
            "there is a fake of `{}` already; give each outside system a type of its own",
            type_name::<T>()
        );
        let make: MakeFake = Arc::new(move |weather| {
            let fake = Fake::in_weather(new(), weather);
            let given = fake.clone();
            let change: Change = Arc::new(move |builder| builder.provide(given.clone()));
            (change, Arc::new(fake))
        });
        self.fakes.push((of, make));
        self
    }

    /// Adds an act: a client sends this message once the acts added before it have succeeded. A message
    /// that was not acknowledged is sent again with the same dedupe key, as a real client does.
    pub fn send<T: Serialize>(self, name: &str, body: &T) -> Simulation {
        let body = serde_json::to_value(body).expect("a message can be written as JSON");
        let (name, dedupe) = (name.to_owned(), format!("message {}", self.acts.len()));
        self.client(move |run| {
            let (name, body, dedupe) = (name.clone(), body.clone(), dedupe.clone());
            async move {
                match run.send(&name, &body).dedupe(dedupe).await {
                    // A run that fails early does not wait for its messages.
                    Ok(_) | Err(ClientError::Finished { .. }) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        })
    }

    /// Adds an act: a client does this once the acts added before it have succeeded. It is done at least
    /// once, and again until it succeeds, since a client may die or not be answered: it should be
    /// idempotent.
    pub fn client<F>(
        mut self,
        act: impl Fn(RunHandle<Json>) -> F + Send + Sync + 'static,
    ) -> Simulation
    where
        F: Future<Output = Result<(), ClientError>> + Send + 'static,
    {
        self.acts.push(Arc::new(move |run| Box::pin(act(run))));
        self
    }

    /// States what must be true at the end, whatever befell the run. The name is for the report.
    pub fn check(
        mut self,
        name: &str,
        check: impl Fn(&Simulated) -> Result<(), String> + Send + Sync + 'static,
    ) -> Simulation {
        self.checks.push((name.to_owned(), Arc::new(check)));
        self
    }

    /// Which seeds are lived: 0 to 99 if nothing is said.
    ///
    /// # Panics
    ///
    /// If the range is empty: a simulation of no world would pass whatever the workflow does.
    pub fn seeds(mut self, seeds: Range<u64>) -> Simulation {
        assert!(
            !seeds.is_empty(),
            "the range of seeds {seeds:?} is empty, so nothing would be simulated; one seed is \
             `.seeds(n..n + 1)`"
        );
        self.seeds = seeds;
        self
    }

    /// An upper bound for the duration of the run in a world without faults, its sleeps and waits
    /// included: a minute if nothing is said. Leases, stalls and outages are scaled to it. A run that takes
    /// more than about four times as long after the faults have stopped is reported as hanging.
    pub fn lasts(mut self, lasts: Duration) -> Simulation {
        self.lasts = lasts;
        self
    }

    /// Lives all seeds.
    ///
    /// # Panics
    ///
    /// If something was wrong in one of them: the message names the seed, and what was wrong.
    pub fn run(self) -> SimulationReport {
        let report = self.report();
        assert!(report.failures.is_empty(), "{report}");
        report
    }

    /// Lives all seeds and reports what was found, without a panic.
    pub fn report(self) -> SimulationReport {
        let mut report = SimulationReport::default();
        for seed in self.seeds.clone() {
            let life = self.live(seed, false);
            report.seeds += 1;
            report.crashes += life.report.kills;
            report.stalls += life.report.stalls;
            report.clock_jumps += life.report.clock_jumps;
            report.store_errors += life.store_errors;
            if !life.wrong.is_empty() {
                // The same once more, with its trace.
                let again = self.live(seed, true);
                let mut what = life.wrong;
                if again.wrong != what {
                    let text = "it did not repeat: the workflow or a fake is not deterministic";
                    what.push(text.to_owned());
                }
                report.failures.push(SimulationFailure { seed, what, trace: again.report.trace });
            }
        }
        report
    }

    fn live(&self, seed: u64, is_traced: bool) -> Life {
        let mut rng = Rng::new(seed ^ 0x5EED);
        let lease = (self.lasts / LEASES).max(Duration::from_secs(1));
        let sky = Sky::draw(&mut rng, lease);
        let weather = Weather::draw(&mut rng, sky.calm_after, lease);
        let kind = match rng.below(2) {
            0 => Kind::File,
            _ => Kind::Database,
        };
        let fakes = self.fakes.iter().map(|(_, make)| make(weather));
        let (changes, fakes): (Vec<Change>, Vec<_>) = fakes.unzip();
        let bound = self.lasts * 4 + lease * 20 + sky.stall_max * 2 + simulation::WRONG_MAX * 4;
        let world = World {
            simulation: self.clone(),
            changes,
            sky: sky.clone(),
            kind,
            lease,
            engines: 1 + rng.below(3) as usize,
            bound,
            closing: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            store_errors: AtomicU64::new(0),
            wrong: Mutex::default(),
            ended: Mutex::default(),
        };
        let world = Arc::new(world);
        let config = Config {
            faults: sky.faults(),
            time_max: sky.calm_after + bound * 3 + lease * (2 * SHUTDOWN),
            clock_points: [0, 50][rng.below(2) as usize],
            goes_on: [0, 400, 800][rng.below(3) as usize],
            trace: match is_traced {
                true => Trace::Steps,
                false => Trace::default(),
            },
        };
        let main = world.clone();
        let report = simulation::simulate(seed, config, move || main.live());
        if let Some(failure) = &report.failure {
            world.wrong(failure.clone());
        }
        if let Some((status, output, failure)) =
            world.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let end = Simulated { seed, status, output, failure, fakes };
            for (name, check) in &self.checks {
                let checked = catch_unwind(AssertUnwindSafe(|| check(&end)));
                let checked =
                    checked.unwrap_or_else(|panic| Err(panics::message(&*panic).to_owned()));
                if let Err(problem) = checked {
                    world.wrong(format!("{name}: {problem}"));
                }
            }
        }
        let mut wrong = world.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let store_errors = world.store_errors.load(Ordering::Relaxed);
        Life { report, store_errors, wrong: std::mem::take(&mut *wrong) }
    }
}

/// The result of one seed.
struct Life {
    report: Report,
    store_errors: u64,
    wrong: Vec<String>,
}

type End = (RunStatus, Option<Json>, Option<Failure>);

/// One world.
struct World {
    simulation: Simulation,
    changes: Vec<Change>,
    sky: Sky,
    kind: Kind,
    lease: Duration,
    engines: usize,
    /// How long after the faults the run must have ended.
    bound: Duration,
    closing: AtomicBool,
    /// How many acts of the client have succeeded.
    done: AtomicUsize,
    store_errors: AtomicU64,
    wrong: Mutex<Vec<String>>,
    ended: Mutex<Option<End>>,
}

/// How often a supervisor and the main process look.
const LOOKS: u32 = 4;

impl World {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// The process that nothing befalls.
    fn live(self: Arc<World>) {
        let server = Server::new(self.kind, self.sky.clone(), 0, 0, false);
        let supervisors: Vec<SimThread> = (0..self.engines)
            .map(|number| {
                let (world, server) = (self.clone(), server.clone());
                let name = format!("supervisor-{number}");
                simulation::this_process().spawn(&name, move || world.supervise(number, &server))
            })
            .collect();
        let mortal = self.begin_client(&server);
        simulation::sleep(self.sky.calm_after);
        // A client that was stalled must not act after this process has.
        mortal.exit();
        let store = server.open(&simulation::this_process(), true);
        let client = Client::on(store).expect("a simulation always has threads");
        if let Some(run) = self.act(&client) {
            self.await_end(&run);
        }
        self.close(&supervisors);
        match simulation::block_on(client.doctor()) {
            Ok(report) => {
                for finding in report.findings {
                    self.wrong(format!(
                        "the store is not sound: {}: {}",
                        finding.check, finding.what
                    ));
                }
            }
            Err(error) => self.wrong(format!("the store cannot be examined: {error}")),
        }
        self.store_errors.store(server.counts.errors.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A client that may die half-way: the main process does the rest.
    fn begin_client(self: &Arc<World>, server: &Arc<Server>) -> SimProcess {
        let process = simulation::new_process("client");
        let (world, store) = (self.clone(), server.open(&process, false));
        process.spawn("client", move || {
            if let Ok(client) = Client::on(store) {
                world.act(&client);
            }
        });
        process
    }

    /// Starts the run and does every act that has not succeeded yet, in order; none if one never does.
    fn act(&self, client: &Client) -> Option<RunHandle<Json>> {
        let run = self.insist("the start", || {
            let started = simulation::block_on((self.simulation.start)(client.clone()))?;
            Ok(client.run(started.id))
        })?;
        while let Some(act) = self.simulation.acts.get(self.done.load(Ordering::Relaxed)) {
            let name = format!("act {} of the client", self.done.load(Ordering::Relaxed) + 1);
            self.insist(&name, || simulation::block_on(act(run.clone())))?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Some(run)
    }

    /// Does something again and again until it succeeds, or the time of the run is over.
    fn insist<T>(&self, what: &str, mut act: impl FnMut() -> Result<T, ClientError>) -> Option<T> {
        let until = simulation::time().max(self.sky.calm_after) + self.bound;
        loop {
            match act() {
                Ok(done) => return Some(done),
                Err(error) if simulation::time() > until => {
                    self.wrong(format!("{what} still fails: {error}"));
                    return None;
                }
                Err(error) => simulation::note(&format!("{what} is tried again: {error:?}")),
            }
            simulation::sleep(self.lease / LOOKS);
        }
    }

    fn await_end(&self, run: &RunHandle<Json>) {
        let until = simulation::time() + self.bound;
        loop {
            let Some(info) = self.insist("a look", || simulation::block_on(run.info())) else {
                return;
            };
            if info.status.is_terminal() {
                let end = (info.status, info.output, info.failure);
                *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                return;
            }
            if simulation::time() > until {
                let why = simulation::block_on(run.why());
                let why = why.map_or_else(|error| error.to_string(), |why| why.sentence);
                return self.wrong(format!("the run does not end: {}: {why}", info.status));
            }
            simulation::sleep(self.lease / LOOKS);
        }
    }

    /// Keeps an engine alive: each of its processes that dies is followed by another.
    fn supervise(self: &Arc<World>, number: usize, server: &Arc<Server>) {
        for life in 0.. {
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            let process = simulation::new_process(&format!("engine-{number}.{life}"));
            let (world, store) = (self.clone(), server.open(&process, false));
            let host = process.spawn("host", move || world.host(number, store));
            while !process.is_dead() && !host.is_finished() {
                simulation::sleep(self.lease / LOOKS);
            }
            process.exit();
        }
    }

    fn host(&self, number: usize, store: Arc<simulation::SimStore>) {
        let mut builder = Engine::on(store).settings(|settings| {
            settings.threads = 1 + number % 2;
            settings.lease = self.lease;
            settings.safety_poll = self.lease / LOOKS;
            settings.shutdown_limit = self.lease;
            // The watchdog looks several times in this time, also while a run sleeps for days.
            settings.blocked_after = self.lease;
        });
        for change in self.changes.iter().chain(&self.simulation.engine) {
            builder = change(builder);
        }
        let engine = match simulation::block_on(builder.start()) {
            Ok(engine) => engine,
            Err(error) => {
                return simulation::note(&format!("the engine does not start: {error:?}"));
            }
        };
        while !self.closing.load(Ordering::Relaxed) {
            simulation::sleep(self.lease / LOOKS);
            if let Some(error) = engine.stopped() {
                return self.wrong(format!("an engine has stopped by itself: {error}"));
            }
        }
        simulation::block_on(engine.shutdown());
    }

    fn close(&self, supervisors: &[SimThread]) {
        self.closing.store(true, Ordering::Relaxed);
        let until = simulation::time() + self.lease * SHUTDOWN;
        while !supervisors.iter().all(SimThread::is_finished) {
            if simulation::time() > until {
                return self.wrong("an engine does not shut down".to_owned());
            }
            simulation::sleep(self.lease / LOOKS);
        }
    }
}

#[cfg(test)]
mod tests;
