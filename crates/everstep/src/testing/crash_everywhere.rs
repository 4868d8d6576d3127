//! Dies at every write of a run in turn, starts again on what has survived, and compares.
//!
//! A *life* is an engine from its start to the death of its store. A test is a list of crash
//! points, one for each life but the last, which runs to the end. The first test has none: it
//! tells what the run gives, and how many writes there are to die at.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::Serialize;
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::{
    CrashPoint, CrashingStore, Hold, Ledger, VirtualClock,
    audit::Audit,
    choice::{CHOICE_SEED, Choice},
};
use crate::{
    client::{Client, ClientError, Resolved, RunError, RunHandle},
    commit::Deliver,
    engine::{Engine, EngineBuilder},
    error::Failure,
    event::Event,
    registry::WorkflowFn,
    run_id::RunId,
    store::{LetterFilter, MemoryStore, RunStatus, Secret, Store, Target},
    time::{Clock, Timestamp},
    workflow::WorkflowRef,
};

/// Runs a workflow, lets its store die before and after every write in turn, starts again on what
/// has survived, and compares. Await it; it panics with a readable text if anything differs.
///
/// What must hold at every crash point:
/// - the run ends, and as it does without a crash: the same status, output, error, state
///   and streams;
/// - no body runs again whose result was durable, by the history and by the [`Ledger`] that every
///   body finds with `ctx.get::<Ledger>()`;
/// - no message is lost, and none is taken twice;
/// - no message to another run is sent twice.
///
/// All of it happens on virtual time and in memory: some hundred points a second.
///
/// ```
/// use everstep::{prelude::*, testing::{crash_everywhere, Ledger}};
///
/// #[workflow]
/// async fn checkout(ctx: Ctx, amount: u32) -> Result<String> {
///     let charge = ctx.step("charge", async || {
///         ctx.get::<Ledger>().ran("charge");
///         Ok(amount + 1)
///     }).await?;
///     ctx.sleep("cool-off", hours(1)).await?;
///     let word: String = ctx.listen("word").await?;
///     Ok(format!("{word} {charge}"))
/// }
///
/// # #[tokio::main]
/// # async fn main() {
/// let report = crash_everywhere(checkout, 41).send("word", &"paid").await;
/// assert!(report.points > 10);
/// assert_eq!(report.expected.output, Some("paid 42".into()));
/// # }
/// ```
pub fn crash_everywhere<W>(workflow: W, input: W::Input) -> CrashTest
where
    W: WorkflowFn + Clone,
    W::Input: Clone + Send + Sync,
    W::Output: Send,
{
    let code = workflow.clone();
    CrashTest::new(workflow, input).engine(move |builder| builder.register(code.clone()))
}

/// A test that crashes a run at every point. Say what else happens to it, then await it.
///
/// [`crash_everywhere`] makes one for a function with `#[workflow]`;
/// [`CrashTest::new`] for any other workflow.
#[must_use = "nothing is tested unless it is awaited"]
pub struct CrashTest {
    start: StartRun,
    engine: Vec<Arc<dyn Fn(EngineBuilder) -> EngineBuilder + Send + Sync>>,
    actions: Vec<Action>,
    check: Option<Check>,
    pub(super) crashes: usize,
    downtime: Duration,
    parallel: usize,
    /// Which writes are died at, where a point takes long; all of them otherwise.
    pub(super) choice: Option<Choice>,
    /// What the points of this test are counted for.
    pub(super) primitives: &'static [&'static str],
    #[cfg(feature = "sqlite")]
    pub(super) power_cuts: bool,
    #[cfg(feature = "sqlite")]
    pub(super) on_file: bool,
    /// The URL of the database that it is made in.
    #[cfg(feature = "postgres")]
    pub(super) on_postgres: Option<String>,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(super) type StartRun =
    Arc<dyn Fn(Client) -> Boxed<'static, Result<StartedRun, ClientError>> + Send + Sync>;
type Check = Arc<dyn Fn(&Ending, &Ledger) -> Result<(), String> + Send + Sync>;

pub(super) struct StartedRun {
    pub(super) id: RunId,
    attached: bool,
    input_differs: bool,
}

/// Starts a run of this workflow, or finds the one that has this key.
pub(super) fn start_run<W>(workflow: W, input: W::Input, key: &'static str) -> StartRun
where
    W: WorkflowRef + Clone + Send + Sync + 'static,
    W::Input: Clone + Send + Sync,
    W::Output: Send,
{
    Arc::new(move |client| {
        let started = client.start(workflow.clone(), input.clone()).key(key);
        Box::pin(async move {
            let run = started.await?;
            Ok(StartedRun {
                id: run.id(),
                attached: run.attached(),
                input_differs: run.input_differs(),
            })
        })
    })
}

/// What happens to the run from outside, in order.
#[derive(Clone)]
enum Action {
    Send {
        name: String,
        body: Json,
    },
    Publish {
        name: String,
        key: Option<String>,
        deliver: Deliver,
        body: Json,
    },
    Settle {
        location: String,
        value: Result<Json, Json>,
    },
    Cancel {
        rollback: bool,
    },
    Pause,
    Resume,
    Retry,
    /// Waits until so long after the start.
    At(Duration),
    /// Waits until the run has ended.
    End,
}

/// What was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct CrashReport {
    /// How often the store died.
    pub points: u64,
    /// How often it was to die in one test.
    pub(super) crashes: u32,
    /// How many points there are to die at, if it dies once.
    pub(super) possible: u64,
    /// How some of them were chosen, if not all were tried.
    pub(super) choice: Option<Choice>,
    /// How many points were not reached, since their life had fewer writes than the one without a
    /// crash: what comes together is written together.
    pub(super) unreached: u64,
    /// How the run ends without a crash.
    pub expected: Ending,
    /// What was different after one.
    pub differences: Vec<Difference>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ending {
    /// Its status. One that is not final means that nothing but a message or an operator can move
    /// the run any more.
    pub status: RunStatus,
    /// What it gave.
    pub output: Option<Json>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// What it waits for, or why it is paused, if it has not ended.
    pub waiting: Option<String>,
    /// The values that it has set for clients.
    pub state: serde_json::Map<String, Json>,
    /// The items that the workflow's own code has emitted, by stream, in order. Those of bodies are
    /// not among them, since a body that runs again emits again.
    pub streams: BTreeMap<String, Vec<Json>>,
}

/// Something that a crash changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// Where the store died.
    pub at: String,
    /// What is different.
    pub what: String,
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.differences.len();
        write!(f, "{}", self.points)?;
        if let Some(choice) = self.choice {
            write!(f, " of {}", self.possible)?;
            write!(f, " (chosen with {CHOICE_SEED}={})", choice.seed)?;
        }
        writeln!(f, " crash points, {n} differences")?;
        for difference in self.differences.iter().take(10) {
            writeln!(f, "- dead {}: {}", difference.at, difference.what)?;
        }
        if n > 10 {
            writeln!(f, "- and {} more", n - 10)?;
        }
        Ok(())
    }
}

/// A point that takes longer than this on the wall hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The key that the run is started with, again and again.
const KEY: &str = "crash-test";

impl CrashTest {
    /// A test of this workflow; [`engine`](CrashTest::engine) must register its code.
    ///
    /// ```
    /// use everstep::{prelude::*, testing::CrashTest};
    ///
    /// const DOUBLE: Workflow<u32, u32> = Workflow::new("double");
    ///
    /// # #[tokio::main]
    /// # async fn main() {
    /// let test = CrashTest::new(DOUBLE, 21).engine(|builder| {
    ///     builder.register_fn(DOUBLE, async |ctx: Ctx, n: u32| {
    ///         ctx.step("double", async || Ok(2 * n)).await
    ///     })
    /// });
    /// assert_eq!(test.await.expected.output, Some(42.into()));
    /// # }
    /// ```
    pub fn new<W>(workflow: W, input: W::Input) -> CrashTest
    where
        W: WorkflowRef + Clone + Send + Sync + 'static,
        W::Input: Clone + Send + Sync,
        W::Output: Send,
    {
        CrashTest {
            start: start_run(workflow, input, KEY),
            engine: Vec::new(),
            actions: Vec::new(),
            check: None,
            crashes: 1,
            downtime: Duration::ZERO,
            parallel: 8,
            choice: None,
            primitives: &[],
            #[cfg(feature = "sqlite")]
            power_cuts: false,
            #[cfg(feature = "sqlite")]
            on_file: false,
            #[cfg(feature = "postgres")]
            on_postgres: None,
        }
    }

    /// Registers, provides and sets what the engine needs, each time that one is started.
    pub fn engine(
        mut self,
        change: impl Fn(EngineBuilder) -> EngineBuilder + Send + Sync + 'static,
    ) -> CrashTest {
        self.engine.push(Arc::new(change));
        self
    }

    fn action(mut self, action: Action) -> CrashTest {
        self.actions.push(action);
        self
    }

    /// Sends a message to the run, as soon as it has nothing else to do. One that was not
    /// acknowledged is sent again, with the same dedupe key, as a real client does.
    pub fn send<T: Serialize>(self, name: &str, body: &T) -> CrashTest {
        let body = serde_json::to_value(body).expect("a message can be written as JSON");
        let name = name.to_owned();
        self.action(Action::Send { name, body })
    }

    /// Publishes an event, as soon as the run has nothing else to do. One that was not
    /// acknowledged is published again, with the same dedupe key, as a real client does.
    pub fn publish<T: Serialize>(self, event: Event<T>, body: &T) -> CrashTest {
        self.publish_keyed(event, None, body)
    }

    /// As [`publish`](CrashTest::publish), with a key.
    pub fn publish_keyed<T: Serialize>(
        self,
        event: Event<T>,
        key: Option<&str>,
        body: &T,
    ) -> CrashTest {
        let body = serde_json::to_value(body).expect("an event can be written as JSON");
        self.action(Action::Publish {
            name: event.name.to_owned(),
            key: key.map(str::to_owned),
            deliver: event.rules.deliver,
            body,
        })
    }

    /// Resolves the deferred of the run at this location, as soon as the run has nothing else to do.
    /// What was not acknowledged is done again, as a real client does.
    pub fn resolve<T: Serialize>(self, location: &str, value: &T) -> CrashTest {
        let value = serde_json::to_value(value).expect("a value can be written as JSON");
        self.settle(location, Ok(value))
    }

    /// As [`resolve`](CrashTest::resolve), but it is rejected.
    pub fn reject<E: Serialize>(self, location: &str, error: &E) -> CrashTest {
        let error = serde_json::to_value(error).expect("an error can be written as JSON");
        self.settle(location, Err(error))
    }

    fn settle(self, location: &str, value: Result<Json, Json>) -> CrashTest {
        let location = location.to_owned();
        self.action(Action::Settle { location, value })
    }

    /// Waits until this long after the start, in virtual time, before what is said next happens.
    pub fn at(self, after_start: Duration) -> CrashTest {
        self.action(Action::At(after_start))
    }

    /// Waits for the end of the run before what is said next happens.
    pub fn ended(self) -> CrashTest {
        self.action(Action::End)
    }

    /// Cancels the run.
    pub fn cancel(self) -> CrashTest {
        self.action(Action::Cancel { rollback: false })
    }

    /// Cancels the run and compensates what it has done.
    pub fn cancel_with_rollback(self) -> CrashTest {
        self.action(Action::Cancel { rollback: true })
    }

    /// Pauses the run.
    pub fn pause(self) -> CrashTest {
        self.action(Action::Pause)
    }

    /// Resumes the run.
    pub fn resume(self) -> CrashTest {
        self.action(Action::Resume)
    }

    /// Tries the failed run again.
    pub fn retry(self) -> CrashTest {
        self.action(Action::Retry)
    }

    /// Compares by this instead of by equality with the run without a crash: for runs whose end
    /// depends on what came first.
    pub fn check(
        mut self,
        check: impl Fn(&Ending, &Ledger) -> Result<(), String> + Send + Sync + 'static,
    ) -> CrashTest {
        self.check = Some(Arc::new(check));
        self
    }

    /// How often the store dies in one test, 1 if this is not said. With 2, every point after
    /// every restart is died at as well, so the number of tests is squared.
    pub fn crashes(mut self, crashes: usize) -> CrashTest {
        self.crashes = crashes;
        self
    }

    /// How much virtual time passes between a death and the next start: none if this is not said.
    pub fn downtime(mut self, downtime: Duration) -> CrashTest {
        self.downtime = downtime;
        self
    }

    /// On a SQLite file instead of memory, with the power cut after every operation on its files
    /// in turn: what was not synced is gone, or torn.
    ///
    /// ```
    /// use everstep::{prelude::*, testing::crash_everywhere};
    ///
    /// #[workflow]
    /// async fn one(ctx: Ctx, _: ()) -> Result<u32> {
    ///     ctx.step("one", async || Ok(1)).await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() {
    /// let report = crash_everywhere(one, ()).power_cuts().await;
    /// assert!(report.points > 5);
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn power_cuts(mut self) -> CrashTest {
        self.power_cuts = true;
        self
    }

    /// On a SQLite file instead of memory, with the store dying before and after every write: what
    /// a workflow needs that uses [`Ctx::transaction`](crate::Ctx::transaction).
    ///
    /// ```
    /// use everstep::{prelude::*, testing::crash_everywhere};
    ///
    /// #[workflow]
    /// async fn count(ctx: Ctx, _: ()) -> Result<u32> {
    ///     ctx.transaction("add", |tx| {
    ///         tx.execute_batch("CREATE TABLE IF NOT EXISTS added (n); INSERT INTO added VALUES (1)")?;
    ///         Ok(())
    ///     })
    ///     .await?;
    ///     ctx.transaction("sum", |tx| Ok(tx.query_row("SELECT sum(n) FROM added", [], |row| row.get(0))?))
    ///         .await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() {
    /// let report = crash_everywhere(count, ()).on_file().await;
    /// assert_eq!(report.expected.output, Some(1.into()));
    /// assert!(report.points > 10);
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn on_file(mut self) -> CrashTest {
        self.on_file = true;
        self
    }

    /// In the PostgreSQL database of this URL instead of memory, with the store dying before and after
    /// every write. Each test has a schema of its own, whose name begins with `everstep_kit_`; they
    /// are emptied and used again, and never removed.
    #[cfg(feature = "postgres")]
    pub fn on_postgres(mut self, url: impl Into<String>) -> CrashTest {
        self.on_postgres = Some(url.into());
        // Each has connections of its own.
        self.parallel = 4;
        self
    }

    /// Runs all tests and reports what was found, without a panic.
    pub async fn report(self) -> CrashReport {
        self.on_each_store().await
    }

    /// Dies before and after every write, on the store that is chosen.
    pub(super) async fn report_of_writes(&self) -> CrashReport {
        let clean = self.test(&[]).await;
        let mut report = CrashReport::of(&clean);
        self.judge("never", &clean, &clean, &mut report);
        if !report.differences.is_empty() {
            return report;
        }
        let mut queue = match self.choice {
            Some(choice) => points_of(choice.of(clean.writes)),
            None => points_of(1..=clean.writes),
        };
        report.possible = 2 * clean.writes;
        report.choice = self.choice;
        let mut open = FuturesUnordered::new();
        loop {
            while open.len() < self.parallel {
                let Some(points) = queue.pop_front() else {
                    break;
                };
                let test = self;
                open.push(async move {
                    let found = test.test(&points).await;
                    (points, found)
                });
            }
            let Some((points, found)) = open.next().await else {
                return report;
            };
            if found.deaths == points.len() {
                report.points += 1;
                if points.len() < self.crashes {
                    queue.extend(points_after(&points, found.writes));
                }
            } else {
                report.unreached += 1;
            }
            let at: Vec<_> = points.iter().map(ToString::to_string).collect();
            self.judge(&at.join(", then "), &clean, &found, &mut report);
        }
    }

    /// Notes what is different in `found`.
    pub(super) fn judge(&self, at: &str, clean: &Found, found: &Found, report: &mut CrashReport) {
        let mut what = found.problems.clone();
        what.extend(found.audit.violations());
        match (&found.ending, &clean.ending, &self.check) {
            (Some(ending), _, Some(check)) => what.extend(check(ending, &found.ledger).err()),
            (Some(ending), Some(expected), None) if ending != expected => {
                what.push(format!("the end differs\n  expected {expected:?}\n  found {ending:?}"));
            }
            _ => {}
        }
        what.extend(self.judge_ledger(clean, found));
        let at = at.to_owned();
        report.differences.extend(what.into_iter().map(|what| Difference { at: at.clone(), what }));
    }

    /// A location has one body in flight when the store dies: that one may run once more.
    fn judge_ledger(&self, clean: &Found, found: &Found) -> Vec<String> {
        let mut names = found.ledger.names();
        names.sort();
        names.dedup();
        let mut problems = Vec::new();
        for name in names {
            let (before, now) = (clean.ledger.count(&name), found.ledger.count(&name));
            if before > 0 && now > before + found.deaths {
                problems.push(format!(
                    "`{name}` ran {now} times; without a crash it runs {before} times"
                ));
            }
        }
        problems
    }

    /// One test: dies at each of these points in turn, then runs to the end.
    async fn test(&self, points: &[CrashPoint]) -> Found {
        #[cfg(feature = "sqlite")]
        if self.on_file {
            return super::power_cut::die_on_file(self, points).await;
        }
        #[cfg(feature = "postgres")]
        if let Some(url) = &self.on_postgres {
            return super::on_postgres::die_on_postgres(self, url, points).await;
        }
        let test = async {
            let (audit, clock) = (Audit::default(), VirtualClock::new());
            let mut life = Life::new(self, clock);
            let mut memory = MemoryStore::with_secret(Secret::new([1; 32]));
            loop {
                let point = points.get(life.deaths).copied();
                let store = CrashingStore::audited(memory, point, audit.clone());
                let store = Arc::new(store);
                life.live(store.clone(), &audit).await;
                life.writes = store.writes();
                if !life.died {
                    return life.found(audit);
                }
                memory = store.inner().fork();
            }
        };
        within_limit(test, || format!("{points:?}")).await
    }
}

/// Runs a test; one that hangs ends with a panic that names it.
pub(super) async fn within_limit<T>(
    test: impl Future<Output = T>,
    what: impl FnOnce() -> String,
) -> T {
    match tokio::time::timeout(HANGS_AFTER, test).await {
        Ok(found) => found,
        Err(_) => panic!("the test with crashes at {} hangs", what()),
    }
}

/// Before and after each of these writes.
fn points_of(writes: impl IntoIterator<Item = u64>) -> VecDeque<Vec<CrashPoint>> {
    let both = writes.into_iter().flat_map(|n| [CrashPoint::Before(n), CrashPoint::After(n)]);
    both.map(|point| vec![point]).collect()
}

/// All points to die at in a life with so many writes, after these.
fn points_after(before: &[CrashPoint], writes: u64) -> Vec<Vec<CrashPoint>> {
    let both = (1..=writes).flat_map(|n| [CrashPoint::Before(n), CrashPoint::After(n)]);
    both.map(|point| [before, &[point]].concat()).collect()
}

impl CrashReport {
    pub(super) fn of(clean: &Found) -> CrashReport {
        CrashReport {
            points: 0,
            crashes: 1,
            possible: 0,
            choice: None,
            unreached: 0,
            expected: clean.ending.clone().unwrap_or_else(Ending::none),
            differences: Vec::new(),
        }
    }
}

impl Ending {
    fn none() -> Ending {
        Ending {
            status: RunStatus::Pending,
            output: None,
            failure: None,
            waiting: None,
            state: serde_json::Map::new(),
            streams: BTreeMap::new(),
        }
    }
}

/// What one test has found.
pub(super) struct Found {
    pub(super) ending: Option<Ending>,
    pub(super) writes: u64,
    pub(super) deaths: usize,
    pub(super) ledger: Ledger,
    pub(super) audit: Audit,
    pub(super) problems: Vec<String>,
}

/// The lives of one run, and what its client knows.
pub(super) struct Life<'a> {
    test: &'a CrashTest,
    pub(super) clock: Arc<VirtualClock>,
    ledger: Ledger,
    pub(super) run: Option<RunId>,
    began: Option<Timestamp>,
    /// How many actions were acknowledged.
    done: usize,
    /// Whether the next action was tried before.
    tried: bool,
    pub(super) deaths: usize,
    pub(super) died: bool,
    pub(super) writes: u64,
    ending: Option<Ending>,
    problems: Vec<String>,
}

impl<'a> Life<'a> {
    pub(super) fn new(test: &'a CrashTest, clock: Arc<VirtualClock>) -> Life<'a> {
        Life {
            test,
            clock,
            ledger: Ledger::new(),
            run: None,
            began: None,
            done: 0,
            tried: false,
            deaths: 0,
            died: false,
            writes: 0,
            ending: None,
            problems: Vec::new(),
        }
    }

    pub(super) fn found(self, audit: Audit) -> Found {
        Found {
            ending: self.ending,
            writes: self.writes,
            deaths: self.deaths,
            ledger: self.ledger,
            audit,
            problems: self.problems,
        }
    }

    /// One life, from the start of an engine to the death of its store or the end of the run.
    pub(super) async fn live(&mut self, store: Arc<CrashingStore<impl Store>>, audit: &Audit) {
        let ended_before = self.run.map_or_else(Vec::new, |run| audit.ended(run.no()));
        self.died = false;
        // A clock of its own, since the threads of the engine that died may still look at theirs.
        self.clock = VirtualClock::at(self.clock.now() + self.pause());
        let (died, mut death) = oneshot::channel::<()>();
        let clock = self.clock.clone();
        store.on_death(move || {
            // Time stands still from here: the next life goes on at this instant.
            std::mem::forget(clock.hold());
            _ = died.send(());
        });
        let ledger = self.ledger.in_life(self.deaths);
        let mut builder = Engine::on(store.clone()).clock(self.clock.clone()).settings(|s| {
            s.threads = 1;
            s.seed = Some(1);
            s.shutdown_limit = Duration::from_secs(2);
        });
        builder = builder.provide(ledger);
        for change in &self.test.engine {
            builder = change(builder);
        }
        // Held from before the start, since an engine goes on with what it finds at once.
        let held = self.clock.hold();
        let lived = match builder.start().await {
            Ok(engine) => {
                let client = engine.client();
                let lived = tokio::select! {
                    biased;
                    lived = self.drive(&client, &*store, audit, held) => lived,
                    _ = &mut death => Err("the store died".to_owned()),
                };
                if let (Ok(()), Some(run)) = (&lived, self.run) {
                    self.note_if_hung(&engine, run).await;
                }
                engine.shutdown().await;
                lived
            }
            Err(error) => Err(format!("the engine did not start: {error:?}")),
        };
        for name in self.ledger.of_life(self.deaths) {
            let remade = self.run.is_some_and(|run| audit.was_deleted(run.no(), &name));
            if ended_before.contains(&name) && !remade {
                let problem = format!("`{name}` ran again although its result was durable");
                self.problems.push(problem);
            }
        }
        match lived {
            // An answer that came before the death counts.
            Ok(()) => {}
            Err(_) if store.is_dead() => {
                self.died = true;
                self.deaths += 1;
            }
            Err(problem) => self.problems.push(problem),
        }
    }

    /// A run that is moving when nothing goes on any more will never move again.
    async fn note_if_hung(&mut self, engine: &Engine, run: RunId) {
        let running = |ending: &Ending| ending.status == RunStatus::Running;
        if self.ending.as_ref().is_some_and(running) {
            let place = engine.whereabouts(run).await;
            self.problems.push(format!("the run hangs; its engine says: {place}"));
        }
    }

    fn pause(&self) -> Duration {
        match self.deaths {
            0 => Duration::ZERO,
            _ => self.test.downtime,
        }
    }

    /// What the client does: the start, the actions, and the wait for the end. An error is either
    /// the death of the store or a problem.
    async fn drive(
        &mut self,
        client: &Client,
        store: &dyn Store,
        audit: &Audit,
        held: Hold,
    ) -> Result<(), String> {
        let mut held = Some(held);
        let run = self.start(client).await?;
        while let Some(action) = self.test.actions.get(self.done).cloned() {
            let still = self.clock.quiet().await;
            // The one before is dropped only now, so that the clock does not jump in between.
            drop(held.take());
            held = Some(self.act(&action, &run, still).await?);
            self.done += 1;
            self.tried = false;
        }
        drop(held);
        self.await_end(&run).await?;
        self.ending = Some(self.read_end(&run).await?);
        self.count_messages(run.id(), store, audit)
    }

    async fn start(&mut self, client: &Client) -> Result<RunHandle<Json>, String> {
        self.began.get_or_insert(self.clock.now());
        let started = (self.test.start)(client.clone()).await;
        let started = started.map_err(|error| format!("the run did not start: {error}"))?;
        if started.input_differs {
            self.problems.push("the input has changed".to_owned());
        }
        if self.run.is_some_and(|run| !started.attached || run != started.id) {
            self.problems.push("a run that was started is lost".to_owned());
        }
        self.run = Some(started.id);
        Ok(client.run(started.id))
    }

    async fn act(
        &mut self,
        action: &Action,
        run: &RunHandle<Json>,
        held: Hold,
    ) -> Result<Hold, String> {
        let again = std::mem::replace(&mut self.tried, true);
        let done = match action {
            Action::Send { name, body } => {
                let key = format!("message {}", self.done);
                run.send(name, body).dedupe(key).await.map(|_| ())
            }
            Action::Publish { name, key, deliver, body } => {
                let event = run.client().publish_json(name, body).delivery(*deliver);
                let event = event.dedupe(format!("event {}", self.done));
                let event = match key {
                    Some(key) => event.key(key.as_str()),
                    None => event,
                };
                event.await.map(|_| ())
            }
            Action::Settle { location, value } => {
                let settle = match value {
                    Ok(value) => run.resolve_json(location, value),
                    Err(error) => run.reject_json(location, error),
                };
                match settle.await {
                    Ok(Resolved::Already { .. }) if !again => {
                        let problem = format!("`{location}` was settled before");
                        self.problems.push(problem);
                        Ok(())
                    }
                    settled => settled.map(drop),
                }
            }
            Action::Cancel { rollback: false } => run.cancel().await.map(|_| ()),
            Action::Cancel { rollback: true } => run.cancel().with_rollback().await.map(|_| ()),
            Action::Pause => run.pause().await.map(|_| ()),
            Action::Resume => run.resume().await,
            Action::Retry => run.retry().await,
            Action::At(after) => {
                let began = self.began.unwrap_or_else(|| self.clock.now());
                return Ok(held.sleep_until(began + *after).await);
            }
            Action::End => {
                drop(held);
                self.await_end(run).await?;
                return Ok(self.clock.quiet().await);
            }
        };
        match done {
            Ok(()) => Ok(held),
            // It was done before the death, and only the answer is lost.
            Err(ClientError::Finished { .. } | ClientError::WrongStatus { .. }) if again => {
                Ok(held)
            }
            Err(error) => Err(format!("action {} failed: {error}", self.done)),
        }
    }

    /// Waits until the run has ended, or nothing can move it any more.
    async fn await_end(&self, run: &RunHandle<Json>) -> Result<(), String> {
        tokio::select! {
            biased;
            result = run.result_json() => match result {
                Err(RunError::Client(error)) => Err(format!("the run cannot be asked: {error}")),
                _ => Ok(()),
            },
            _ = self.clock.stuck() => Ok(()),
        }
    }

    async fn read_end(&self, run: &RunHandle<Json>) -> Result<Ending, String> {
        let info = run.info().await.map_err(|error| error.to_string())?;
        let state = run.state_json().await.map_err(|error| error.to_string())?;
        let waiting = info.waiting.filter(|_| !info.status.is_terminal());
        Ok(Ending {
            status: info.status,
            output: info.output,
            failure: info.failure,
            waiting,
            state,
            streams: read_streams(run).await.map_err(|error| error.to_string())?,
        })
    }

    /// Every message was taken once, or is a dead letter, or is still there.
    fn count_messages(
        &mut self,
        run: RunId,
        store: &dyn Store,
        audit: &Audit,
    ) -> Result<(), String> {
        let read = |error: crate::store::StoreError| error.to_string();
        let row = store.run(&Target::Id(run)).map_err(read)?;
        let Some(row) = row else {
            return Err("the run is gone".to_owned());
        };
        let unread = store.inbox(run.no(), 0).map_err(read)?;
        let unread = unread.iter().filter(|row| row.wait.is_none()).count() as u64;
        let letters = LetterFilter { run: Some(run.no()), ..LetterFilter::default() };
        let dead = store.dead_letters(&letters, 0, usize::MAX).map_err(read)?.len() as u64;
        let taken = audit.consumed(run.no());
        let delivered = row.inbox_seq - audit.answers(run.no());
        if taken + unread + dead != delivered {
            self.problems.push(format!(
                "{delivered} messages were delivered; {taken} were taken, {unread} are unread, \
                 {dead} are dead letters"
            ));
        }
        Ok(())
    }
}

impl IntoFuture for CrashTest {
    type Output = CrashReport;
    type IntoFuture = Boxed<'static, CrashReport>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let report = self.report().await;
            assert!(report.differences.is_empty(), "{report}");
            report
        })
    }
}

/// What the workflow's own code has emitted.
async fn read_streams(run: &RunHandle<Json>) -> Result<BTreeMap<String, Vec<Json>>, ClientError> {
    let mut streams = BTreeMap::new();
    for stream in run.streams().await? {
        let (mut items, mut from) = (Vec::new(), stream.first);
        while from < stream.end {
            let page = run.stream_page_json(&stream.name, from, 1_000).await?;
            from = page.next.max(from + 1);
            let own = page.items.into_iter().filter(|item| item.by.is_none());
            items.extend(own.map(|item| item.value));
        }
        if !items.is_empty() {
            streams.insert(stream.name, items);
        }
    }
    Ok(streams)
}
