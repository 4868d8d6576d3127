//! Moving a SQLite file with everything in it to PostgreSQL: the work goes on there, nothing is lost,
//! nothing happens again, and one of both is in charge wherever the move stops.
#![allow(clippy::unwrap_used)]
#![cfg(all(unix, feature = "sqlite", feature = "postgres"))]

use crate::scenario;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use everstep::{
    ClientError, Deferred, EngineBuilder, IfFinished, ItemId, Limit, MigrateError, RunId,
    RunStatus, StartError, WorkflowRef,
    prelude::*,
    rusqlite::Connection,
    store::{PostgresOptions, PostgresStore, SqliteStore, Store, StoreError},
    testing::{self, VirtualClock},
};
use scenario::{second_process, until, until_status};
use serde::{Deserialize, Serialize};

const CHILD: &str = "EVERSTEP_TEST_MOVING_CHILD";

const CRASHED: Workflow<u32, u32> = Workflow::new("crashed");
const SLEEPER: Workflow<u32, u32> = Workflow::new("sleeper");
const READER: Workflow<u32, u32> = Workflow::new("reader");
const FAMILY: Workflow<u32, u32> = Workflow::new("family");
const LISTENER: Workflow<u32, u32> = Workflow::new("listener");
const JUDGE: Workflow<u32, u32> = Workflow::new("judge");
const BOSS: Workflow<u32, u32> = Workflow::new("boss");
const LIMITED: Workflow<u32, u32> = Workflow::new("limited");
const TALKER: Workflow<u32, u32> = Workflow::new("talker");
const QUICK: Workflow<u32, u32> = Workflow::new("quick");
const ONE: Limit = Limit::new("one").concurrency(1);
const NEWS: Event<u32> = Event::new("news");
const VERDICT: Deferred<u32, String> = Deferred::new("verdict");
const WORK: Queue<u32, u32> = Queue::new("work").visibility(hours(10));

/// Where bodies write what they have done, beside the file and outside of any store.
fn ledger(path: &Path) -> PathBuf {
    path.with_extension("ledger")
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger(path)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn note(ledger: &Path, line: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(ledger);
    let line = format!("{line}\n");
    file.unwrap().write_all(line.as_bytes()).unwrap();
}

/// What has been done by a step that was recorded: a body that its process did not survive only has
/// begun.
fn done(path: &Path) -> BTreeMap<String, usize> {
    let mut done = BTreeMap::new();
    for line in lines(path).iter().filter(|it| !it.starts_with("begin")) {
        *done.entry(line.clone()).or_default() += 1;
    }
    done
}

/// A body that never ends in the process that is to be killed.
async fn deadly(ledger: &Path, name: &str) -> Result<()> {
    note(ledger, &format!("begin {name}"));
    if std::env::var_os(CHILD).is_some() {
        std::future::pending::<()>().await;
    }
    note(ledger, name);
    Ok(())
}

fn with_workflows(builder: EngineBuilder, path: &Path, clock: &Arc<VirtualClock>) -> EngineBuilder {
    let ledger: &'static Path = Box::leak(ledger(path).into_boxed_path());
    let step = async move |ctx: &Ctx, name: &str, n: u32| {
        let line = format!("{name}/{n}");
        let body = async || {
            note(ledger, &line);
            Ok(())
        };
        ctx.step(name, body).await
    };
    builder
        .clock(clock.clone())
        .settings(|settings| settings.threads = 2)
        .register_fn(CRASHED, move |ctx, n| async move {
            step(&ctx, "before", n).await?;
            ctx.step("deadly", async || deadly(ledger, "deadly").await).await?;
            Ok(n + 1)
        })
        .register_fn(SLEEPER, move |ctx, n| async move {
            step(&ctx, "evening", n).await?;
            ctx.sleep("night", minutes(30)).await?;
            step(&ctx, "morning", n).await?;
            Ok(n + 2)
        })
        .register_fn(READER, move |ctx, n| async move {
            step(&ctx, "open", n).await?;
            let news: u32 = ctx.event(NEWS).await?;
            Ok(n + news)
        })
        .register_fn(FAMILY, move |ctx, n| async move {
            step(&ctx, "marry", n).await?;
            let grown: u32 = ctx.child(LISTENER, n).key("child").await?;
            Ok(grown + 1)
        })
        .register_fn(LISTENER, move |ctx, n| async move {
            let first: u32 = ctx.listen("first").await?;
            step(&ctx, "heard", n).await?;
            let second: u32 = ctx.listen("second").await?;
            Ok(n + first + second)
        })
        .register_fn(JUDGE, move |ctx, n| async move {
            let gate = ctx.deferred(VERDICT);
            ctx.set_state("token", &gate.token())?;
            match gate.await? {
                Ok(verdict) => Ok(n + verdict),
                Err(reason) => Err(Error::msg(reason)),
            }
        })
        .register_fn(BOSS, move |ctx, n| async move {
            step(&ctx, "plan", n).await?;
            ctx.enqueue(WORK, &n).await
        })
        .register_fn(LIMITED, move |ctx, n| async move {
            let name = format!("limited {n}");
            let body = ctx.step("hold", async || deadly(ledger, &name).await);
            body.limit(ONE).await?;
            Ok(n)
        })
        .register_fn(TALKER, move |ctx, n| async move {
            for word in ["one", "two\0three"] {
                ctx.emit("words", word)?;
            }
            ctx.set_state("mood", &n)?;
            step(&ctx, "talk", n).await?;
            ctx.listen::<()>("enough").await?;
            ctx.emit("words", "end")?;
            Ok(n)
        })
        .register_fn(QUICK, move |ctx, n| async move {
            step(&ctx, "quick", n).await?;
            Ok(n)
        })
}

/// What the killed process has left behind, as it knew it.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    /// Their ids, by name.
    runs: BTreeMap<String, String>,
    token: String,
    item: u64,
    letter: u64,
}

impl Left {
    fn run(&self, name: &str) -> RunId {
        self.runs[name].parse().unwrap()
    }
}

/// The process that is to be killed: fills the file and waits.
async fn be_the_first(path: &Path) {
    let clock = VirtualClock::new();
    let _held = clock.hold();
    let engine = with_workflows(Engine::open(path), path, &clock);
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let mut runs = BTreeMap::new();
    macro_rules! start {
        ($workflow:expr, $n:expr) => {{
            let start = client.start($workflow, $n).key(format!("key-{}", $n));
            let run = start.tag("kind", $workflow.name()).await.unwrap();
            let name = format!("{}-{}", $workflow.name(), $n);
            runs.insert(name, run.id().to_string());
            run
        }};
    }
    start!(CRASHED, 1);
    start!(SLEEPER, 1);
    start!(READER, 1);
    let family = start!(FAMILY, 1);
    let heard = start!(LISTENER, 7);
    heard.send("first", &10_u32).await.unwrap();
    heard.send("unread", &1_u32).dedupe("d").await.unwrap();
    let judge = start!(JUDGE, 1);
    let boss = start!(BOSS, 1);
    for n in [1, 2] {
        start!(LIMITED, n);
        // So that the first has the place.
        until("a body that has it", async || {
            lines(path).contains(&"begin limited 1".to_owned()).then_some(())
        })
        .await;
    }
    let talker = start!(TALKER, 3);
    let quick = start!(QUICK, 1);
    assert_eq!(quick.result().await.unwrap(), 1);
    // A message that nobody will read.
    let late = quick.send("late", &1_u32);
    late.if_finished(IfFinished::DeadLetter).await.unwrap();
    let letters = client.dead_letters().await.unwrap();
    // The grave of a run, and the stone on it.
    let deleted = start!(QUICK, 2);
    deleted.result().await.unwrap();
    deleted.delete().await.unwrap();
    let paused = client.start(SLEEPER, 9).key("paused").await.unwrap();
    until_status(&paused, RunStatus::Sleeping).await;
    paused.pause().await.unwrap();
    runs.insert("paused".to_owned(), paused.id().to_string());
    let schedule = client.schedule("hourly", QUICK, 50).every(hours(1));
    let schedule = schedule.await.unwrap();
    schedule.trigger().await.unwrap();
    let delayed = client.enqueue(WORK, &5).delay(minutes(5)).await.unwrap();
    // An event that nobody waits for yet is kept.
    client.publish(Event::<u32>::new("kept"), &4).await.unwrap();
    let mut waiting = vec![&heard, &judge, &boss, &talker, &family];
    while let Some(run) = waiting.pop() {
        until_status(run, RunStatus::Sleeping).await;
    }
    until("bodies and steps", async || {
        let lines = lines(path);
        let all = ["begin deadly", "evening/9", "evening/1", "quick/50", "heard/7"];
        all.iter().all(|it| lines.iter().any(|line| line == it)).then_some(())
    })
    .await;
    let limited = client.get(runs["limited-2"].parse::<RunId>().unwrap()).await.unwrap().unwrap();
    until("a place in line", async || {
        let info = limited.info().await.unwrap();
        info.waiting.filter(|it| it.contains("one"))
    })
    .await;
    let triggered = until("the run of the schedule", async || {
        let page = client.list().tag("everstep.schedule", "hourly").await.unwrap();
        let run = page.runs.into_iter().next()?;
        (run.status == RunStatus::Completed).then_some(run.id)
    })
    .await;
    runs.insert("triggered".to_owned(), triggered.to_string());
    let left = Left {
        runs,
        token: judge.state("token").await.unwrap().unwrap(),
        item: delayed.id().0,
        letter: letters.letters.first().unwrap().no,
    };
    println!("\n=> {}", serde_json::to_string(&left).unwrap());
    std::future::pending::<()>().await;
}

/// Fills a file by a process of its own, which is then killed.
fn fill(test: &str, path: &Path) -> Left {
    let mut child = second_process(module_path!(), test, CHILD, path.to_str().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let left = loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it has ended");
        if let Some(left) = line.strip_prefix("=> ") {
            break serde_json::from_str(left.trim()).unwrap();
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    left
}

/// Whether this is the process that is to be killed; if so it never comes back.
async fn is_first() -> bool {
    let Some(path) = std::env::var_os(CHILD) else {
        return false;
    };
    be_the_first(Path::new(&path)).await;
    true
}

fn fresh_url() -> String {
    everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"))
}

fn postgres(url: &str) -> PostgresStore {
    let mut options = PostgresOptions::default();
    options.database_time = false;
    PostgresStore::open_with(url, options).unwrap()
}

/// The number of rows in each table of the file that is moved.
fn rows_in_file(path: &Path) -> BTreeMap<String, i64> {
    let conn = Connection::open(path).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' \
               AND name GLOB 'everstep_*' AND name NOT IN ('everstep_runners', \
               'everstep_shards', 'everstep_epochs', 'everstep_format', 'everstep_move')";
    let mut statement = conn.prepare(sql).unwrap();
    let names = statement.query_map([], |row| row.get::<_, String>(0));
    let count = |name: String| {
        let sql = format!("SELECT count(*) FROM {name}");
        let rows = conn.query_row(&sql, [], |row| row.get(0)).unwrap();
        (name, rows)
    };
    names.unwrap().map(|name| count(name.unwrap())).collect()
}

/// The same of a schema, as the server has it.
async fn rows_in_schema(url: &str, tables: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let (base, schema) = url.split_once("?schema=").unwrap();
    let (client, connection) = tokio_postgres::connect(base, tokio_postgres::NoTls).await.unwrap();
    let serving = tokio::spawn(connection);
    let mut rows = BTreeMap::new();
    for name in tables.keys() {
        let sql = format!("SELECT count(*) FROM {schema}.{name}");
        let row = client.query_one(&sql, &[]).await.unwrap();
        rows.insert(name.clone(), row.get::<_, i64>(0));
    }
    drop(client);
    serving.await.unwrap().unwrap();
    rows
}

/// An engine on what was moved ends everything as it should be.
async fn goes_on(path: &Path, url: &str, left: &Left) {
    let before = done(path);
    let clock = VirtualClock::new();
    let held = clock.hold();
    let engine = with_workflows(Engine::on(Arc::new(postgres(url))), path, &clock);
    let engine = engine.start().await.unwrap();
    let worked = Arc::new(Mutex::new(Vec::new()));
    let noted = worked.clone();
    let work = engine.work(WORK, 1, move |_: Job, n: u32| {
        noted.lock().unwrap().push(n);
        async move { Ok(10 * n) }
    });
    work.unwrap();
    let client = engine.client();
    let of = |name: &str| left.run(name);
    // Everything that the runs wait for.
    let listener = client.get_typed(LISTENER, of("listener-7")).await.unwrap();
    let listener = listener.unwrap();
    let again = listener.send("unread", &2_u32).dedupe("d").await.unwrap();
    assert_eq!(again, everstep::Sent::Duplicate);
    listener.send("second", &100_u32).await.unwrap();
    assert_eq!(listener.result().await.unwrap(), 117);
    let child = everstep::Target::Key { workflow: LISTENER.name().into(), key: "child".to_owned() };
    client.send(child.clone(), "first", &20_u32).await.unwrap();
    client.send(child, "second", &30_u32).await.unwrap();
    client.publish(NEWS, &8).await.unwrap();
    let settle = client.deferred(VERDICT, &left.token).resolve(&40);
    settle.await.unwrap();
    let talker = client.get_typed(TALKER, of("talker-3")).await.unwrap().unwrap();
    assert_eq!(talker.state::<u32>("mood").await.unwrap(), Some(3));
    talker.send("enough", &()).await.unwrap();
    // All but what sleeps.
    for (name, expected) in [
        ("crashed-1", 2),
        ("reader-1", 9),
        ("family-1", 52),
        ("judge-1", 41),
        ("boss-1", 10),
        ("limited-1", 1),
        ("limited-2", 2),
        ("talker-3", 3),
        ("quick-1", 1),
        ("triggered", 50),
    ] {
        let run = client.get(of(name)).await.unwrap().unwrap();
        let result = run.result().await;
        assert_eq!(result.unwrap(), serde_json::json!(expected), "{name}");
    }
    let mut words = talker.stream::<String>("words");
    for expected in ["one", "two\0three", "end"] {
        let item = words.next().await.unwrap().unwrap();
        assert_eq!(item.value, expected);
    }
    assert!(words.next().await.unwrap().is_none());
    let tagged = client.list().tag("kind", "talker").await.unwrap();
    assert_eq!(tagged.runs.len(), 1);
    // Numbers go on after those that were given out.
    let letters = client.dead_letters().await.unwrap().letters;
    assert!(letters.iter().any(|it| it.no == left.letter && it.name == "late"));
    let last = letters.iter().map(|it| it.no).max().unwrap();
    let quick = client.get(of("quick-1")).await.unwrap().unwrap();
    let late = quick.send("later", &1_u32);
    late.if_finished(IfFinished::DeadLetter).await.unwrap();
    let letters = client.dead_letters().after(last).await.unwrap().letters;
    assert_eq!(letters.len(), 1);
    let item = client.enqueue(WORK, &6).await.unwrap();
    assert!(item.id().0 > left.item);
    assert_eq!(item.result().await.unwrap(), 60);
    // The key of a deleted run is kept.
    let deleted = client.start(QUICK, 2).key("key-2").await;
    assert!(matches!(deleted, Err(ClientError::KeyUsed { .. })), "{deleted:?}");
    // Time passes: one tick of the schedule, the sleeper, the item that was delayed.
    let at = held.sleep(minutes(61)).await;
    let quiet = clock.quiet().await;
    drop(at);
    let sleeper = client.get(of("sleeper-1")).await.unwrap().unwrap();
    assert_eq!(sleeper.result().await.unwrap(), serde_json::json!(3));
    let delayed = client.queue_item::<u32>(ItemId(left.item));
    assert_eq!(delayed.result().await.unwrap(), 50);
    let ticks = client.list().tag("everstep.schedule", "hourly").await.unwrap();
    assert_eq!(ticks.runs.len(), 2, "the trigger and one tick");
    drop(quiet);
    let paused = client.get(of("paused")).await.unwrap().unwrap();
    assert_eq!(paused.status().await.unwrap(), RunStatus::Paused);
    paused.resume().await.unwrap();
    assert_eq!(paused.result().await.unwrap(), serde_json::json!(11));
    // Since the clock jumps now, schedules tick on; each of their ticks is a run of its own.
    client.schedule_named("hourly").delete().await.unwrap();
    engine.shutdown().await;
    assert_eq!(*worked.lock().unwrap(), [1, 6, 5]);
    let mut after = done(path);
    after.retain(|line, _| line != "quick/50");
    for (line, times) in &after {
        assert_eq!(*times, 1, "{line} was done {times} times");
    }
    for line in ["deadly", "limited 1", "limited 2", "morning/1", "morning/9", "heard/1"] {
        assert!(after.contains_key(line) && !before.contains_key(line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_file_goes_on_in_a_database() {
    if is_first().await {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let left = fill("everything_in_a_file_goes_on_in_a_database", &path);
    let before = Client::open(&path).await.unwrap();
    let waiting = before.get(left.run("judge-1")).await.unwrap().unwrap();
    let waiting = tokio::spawn(async move { waiting.result().await });
    let rows = rows_in_file(&path);
    for full in [
        "everstep_runs",
        "everstep_history",
        "everstep_keys",
        "everstep_inbox",
        "everstep_dedupes",
        "everstep_state",
        "everstep_tags",
        "everstep_dead_letters",
        "everstep_watchers",
        "everstep_children",
        "everstep_deferred_waits",
        "everstep_event_names",
        "everstep_events",
        "everstep_event_waiters",
        "everstep_limits",
        "everstep_limit_places",
        "everstep_pools",
        "everstep_queue_items",
        "everstep_queue_waits",
        "everstep_schedules",
        "everstep_secrets",
        "everstep_streams",
    ] {
        assert!(rows.get(full).is_some_and(|rows| *rows > 0), "{full} is empty");
    }
    let url = fresh_url();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let migrate = everstep::migrate(&path, &url);
    let file = path.clone();
    let migrate = migrate.progress(move |at| {
        // Nobody else can write meanwhile.
        let other = Connection::open(&file).unwrap();
        other.busy_timeout(Duration::ZERO).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap_err();
        seen.lock().unwrap().push((at.rows, at.total));
    });
    let moved = migrate.await.unwrap();
    let total = u64::try_from(rows.values().sum::<i64>()).unwrap();
    assert_eq!(moved.rows, total);
    let reports = reports.lock().unwrap().clone();
    assert!(reports.is_sorted() && reports.last() == Some(&(total, total)));
    assert_eq!(rows_in_schema(&url, &rows).await, rows);
    // Whoever had the file open, and whoever opens it, is told where it went.
    let waited = waiting.await.unwrap().unwrap_err();
    assert!(format!("{waited:?}").contains("Moved"), "{waited:?}");
    let refused = before.start(QUICK, 1).await.unwrap_err();
    let ClientError::Store(refused) = refused else {
        panic!("{refused:?}");
    };
    assert!(matches!(*refused, StoreError::Moved { .. }), "{refused:?}");
    let opened = SqliteStore::open(&path).unwrap_err();
    assert!(opened.to_string().contains("was moved to PostgreSQL database"), "{opened}");
    goes_on(&path, &url, &left).await;
    // It was done before, and is not done again.
    let again = everstep::migrate(&path, &url).await.unwrap();
    assert_eq!(again.rows, 0);
    testing::ran_on("PostgreSQL");
}

/// Whether an engine may be started there.
async fn is_in_charge(builder: Result<EngineBuilder, StoreError>) -> bool {
    let clock = VirtualClock::new();
    let started = match builder {
        Ok(builder) => builder.clock(clock).start().await,
        Err(StoreError::HalfMoved { .. }) => return false,
        Err(error) => panic!("{error:?}"),
    };
    match started {
        Ok(engine) => {
            engine.shutdown().await;
            true
        }
        Err(StartError::Store(error)) if matches!(*error, StoreError::Moved { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_store_is_in_charge_wherever_a_move_stops_and_the_next_one_ends_well() {
    let stages = ["noted", "begun", "first page", "copied", "committed", "closed"];
    for stage in stages {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let clock = VirtualClock::new();
        let held = clock.hold();
        let engine = with_workflows(Engine::open(&path), &path, &clock);
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(SLEEPER, 1).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        let id = run.id();
        engine.shutdown().await;
        let url = fresh_url();
        let stopped = everstep::migrate(&path, &url).stop_after(stage).await;
        stopped.unwrap_err();
        let is_closed = stage == "closed";
        if matches!(stage, "committed" | "closed") {
            // What is there belongs to nobody else.
            let other = directory.path().join("other.db");
            SqliteStore::create(&other).unwrap().migrate().unwrap();
            let error = everstep::migrate(&other, &url).await.unwrap_err();
            assert!(matches!(error, MigrateError::NotEmpty { .. }), "{error}");
            // And is not taken for a store.
            let error = PostgresStore::open(&url).unwrap_err();
            assert!(matches!(error, StoreError::HalfMoved { .. }), "{error}");
        }
        assert_eq!(is_in_charge(Ok(Engine::open(&path))).await, !is_closed);
        // In charge means that more may come to it, and it is moved too.
        let mut later = None;
        if !is_closed {
            let client = Client::open(&path).await.unwrap();
            later = Some(client.start(QUICK, 5).await.unwrap().id());
        }
        let moved = everstep::migrate(&path, &url).await.unwrap();
        assert_eq!(moved.rows == 0, is_closed, "{stage:?}");
        assert!(!is_in_charge(Ok(Engine::open(&path))).await);
        let engine = with_workflows(Engine::on(Arc::new(postgres(&url))), &path, &clock);
        let engine = engine.start().await.unwrap();
        drop(held);
        let client = engine.client();
        let run = client.get_typed(SLEEPER, id).await.unwrap().unwrap();
        assert_eq!(run.result().await.unwrap(), 3, "{stage:?}");
        if let Some(later) = later {
            let run = client.get_typed(QUICK, later).await.unwrap().unwrap();
            assert_eq!(run.result().await.unwrap(), 5, "{stage:?}");
        }
        engine.shutdown().await;
        assert!(done(&path).values().all(|times| *times == 1));
        // Nothing is in charge of it twice.
        let elsewhere = everstep::migrate(&path, fresh_url()).await.unwrap_err();
        assert!(matches!(elsewhere, MigrateError::Store(StoreError::Moved { .. })), "{elsewhere}");
    }
    testing::ran_on("PostgreSQL");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_moved_is_refused_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let url = fresh_url();
    let missing = everstep::migrate(&path, &url).await.unwrap_err();
    assert!(matches!(missing, MigrateError::Store(StoreError::CannotOpen { .. })));
    // A runner that lives.
    let engine = Engine::open(&path).start().await.unwrap();
    let error = everstep::migrate(&path, &url).await.unwrap_err();
    assert!(matches!(error, MigrateError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("stop that process"), "{error}");
    engine.shutdown().await;
    // A schema that holds something.
    let taken = fresh_url();
    postgres(&taken).migrate().unwrap();
    let error = everstep::migrate(&path, &taken).await.unwrap_err();
    assert!(matches!(error, MigrateError::NotEmpty { .. }), "{error}");
    // Other ways.
    for (from, to) in [(url.as_str(), taken.as_str()), ("app.db", "other.db")] {
        let error = everstep::migrate(from, to).await.unwrap_err();
        assert!(matches!(error, MigrateError::Unsupported { .. }), "{error}");
    }
    // The file is as it was, and the database has nothing.
    Engine::open(&path).start().await.unwrap().shutdown().await;
    everstep::migrate(&path, &url).await.unwrap();
    testing::ran_on("PostgreSQL");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_only_stopped_stops_for_good_and_its_runs_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    // Its clock stands still, long ago: its lease is over, and it does not know.
    let clock = VirtualClock::new();
    let held = clock.hold();
    let stale = with_workflows(Engine::open(&path), &path, &clock);
    let stale = stale.settings(|settings| settings.heartbeat = Some(Duration::from_millis(50)));
    let stale = stale.start().await.unwrap();
    let run = stale.client().start(LISTENER, 1).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    let url = fresh_url();
    everstep::migrate(&path, &url).await.unwrap();
    let error = until("the end of the engine", async || stale.stopped()).await;
    assert!(matches!(*error, StoreError::Moved { .. }), "{error:?}");
    run.send("first", &1_u32).await.unwrap_err();
    let engine = with_workflows(Engine::on(Arc::new(postgres(&url))), &path, &clock);
    let engine = engine.start().await.unwrap();
    let moved = engine.client().get_typed(LISTENER, run.id()).await.unwrap();
    let moved = moved.unwrap();
    moved.send("first", &1_u32).await.unwrap();
    moved.send("second", &1_u32).await.unwrap();
    assert_eq!(moved.result().await.unwrap(), 3);
    drop(held);
    engine.shutdown().await;
    stale.shutdown().await;
    assert_eq!(done(&path).get("heard/1"), Some(&1));
    testing::ran_on("PostgreSQL");
}
