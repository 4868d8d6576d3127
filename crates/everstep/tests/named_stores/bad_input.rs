//! What the world can get wrong, and what is said about it: what happened, to which run and step,
//! and what to do. Nothing is lost and nothing panics.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    ClientError, EngineBuilder, RunId, RunStatus, StartError,
    prelude::*,
    store::{MemoryStore, Put, SqliteOptions, SqliteStore, StoreError, Write},
    testing::around::{Around, Call},
};
use scenario::{until, until_at_rest, until_paused};
use serde::{Serialize, de::DeserializeOwned};

fn on(store: &MemoryStore) -> EngineBuilder {
    Engine::on(Arc::new(store.clone()))
}

/// The error and everything below it, on one line.
fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// A workflow with a type for each place, so that only one of them fails to decode.
async fn places<S, M, L>(ctx: Ctx, n: u32) -> Result<u32>
where
    S: Serialize + DeserializeOwned + From<u32> + 'static,
    M: Serialize + DeserializeOwned + 'static,
    L: Serialize + DeserializeOwned + From<u32> + 'static,
{
    ctx.step("make", async || Ok(S::from(n))).await?;
    ctx.listen::<M>("tell").await?;
    let looped = ctx.repeat("loop", L::from(n), async |ctx, state: L| {
        ctx.listen::<()>("next").await?;
        ctx.step("inside", async || Ok(())).await?;
        Ok(ControlFlow::<L, L>::Continue(state))
    });
    looped.await?;
    Ok(1)
}

const PLACES: Workflow<u32, u32> = Workflow::new("places");

/// What is wrong with each.
const PROBLEM: &str = "cannot be decoded: a payload cannot be read as `named_stores::bad_input::Text` at `.`, \
                       byte 1: invalid type: integer `7`, expected string; deploy code whose types \
                       fit what is stored";

/// A number as it was stored.
type Was = u32;

/// Stored as a text, so that a number cannot be read as one.
#[derive(serde::Serialize, serde::Deserialize)]
struct Text(String);

impl From<u32> for Text {
    fn from(n: u32) -> Text {
        Text(n.to_string())
    }
}

/// Runs the old code into its loop, then new code, which cannot read one thing that is stored: the
/// run is paused for that, kept, and goes on with the old code.
async fn check_place(new: impl Fn(&MemoryStore) -> EngineBuilder, what: &str) {
    let expected = format!("{what} {PROBLEM}");
    let store = MemoryStore::new();
    let old = || on(&store).register_fn(PLACES, places::<Was, Was, Was>);
    let engine = old().start().await.unwrap();
    let run = engine.client().start(PLACES, 7).await.unwrap();
    run.send("tell", &7).await.unwrap();
    run.send("next", &()).await.unwrap();
    let waits = "message for `loop/~1/next`";
    until("the second iteration", async || {
        (run.info().await.unwrap().waiting.as_deref() == Some(waits)).then_some(())
    })
    .await;
    engine.shutdown().await;
    let engine = new(&store).start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    run.send("next", &()).await.unwrap();
    assert_eq!(until_paused(&run).await, expected);
    let before = run.history().await.unwrap().len();
    engine.shutdown().await;
    // It goes on by itself, since this code can read all of it.
    let engine = old().start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    until("the third iteration", async || {
        let waiting = run.info().await.unwrap().waiting;
        (waiting.as_deref() == Some("message for `loop/~2/next`")).then_some(())
    })
    .await;
    assert!(run.history().await.unwrap().len() > before, "nothing is lost");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_does_not_decode_pauses_the_run() {
    let new = |store: &MemoryStore| {
        let code = |ctx, Text(n)| places::<Was, Was, Was>(ctx, n.parse().unwrap_or_default());
        on(store).register_fn(Workflow::<Text, u32>::new("places"), code)
    };
    check_place(new, "its input").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_does_not_decode_pauses_the_run() {
    let new = |store: &MemoryStore| on(store).register_fn(PLACES, places::<Text, Was, Was>);
    check_place(new, "the result of `make`").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_does_not_decode_pauses_the_run() {
    let new = |store: &MemoryStore| on(store).register_fn(PLACES, places::<Was, Text, Was>);
    check_place(new, "the message `tell` (number 1)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_state_that_does_not_decode_pauses_the_run() {
    let new = |store: &MemoryStore| on(store).register_fn(PLACES, places::<Was, Was, Text>);
    check_place(new, "the state of the loop at `loop/~1`").await;
}

const ECHO: Workflow<String, String> = Workflow::new("echo");

fn echo() -> EngineBuilder {
    Engine::in_memory()
        .register_fn(ECHO, |ctx, text| async move {
            let heard: String = ctx.listen("say").await?;
            ctx.step("repeat", async || Ok(heard.repeat(text.len()))).await
        })
        .settings(|settings| settings.payload_bytes_max = 100)
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_over_the_limit_are_refused_with_their_size() {
    let engine = echo().start().await.unwrap();
    let client = engine.client();
    let error = client.start(ECHO, "x".repeat(200)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the input has 202 bytes, and the limit for a payload is 100; store it elsewhere and pass \
         on where it is, or raise `payload_bytes_max`"
    );
    let run = client.start(ECHO, "xxxx".to_owned()).await.unwrap();
    let error = run.send("say", &"y".repeat(200)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the message has 202 bytes, and the limit for a payload is 100; store it elsewhere and \
         pass on where it is, or raise `payload_bytes_max`"
    );
    run.send("say", &"y".repeat(90)).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "run {} failed: a value has 363 bytes, and the limit for a payload is 100; store it \
             elsewhere and pass on where it is, or raise `payload_bytes_max`",
            run.id()
        )
    );
    let failure = error.failure().unwrap();
    assert_eq!(failure.location.as_ref().unwrap().to_string(), "repeat");
    assert_eq!(failure.attempts, 1, "trying again would give the same");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_run_is_named() {
    let engine = echo().start().await.unwrap();
    let client = engine.client();
    let id: RunId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
    let run = client.run::<String>(id);
    let expected =
        format!("there is no run {id}; it may have been deleted, or belongs to another store");
    assert_eq!(run.send("say", &1).await.unwrap_err().to_string(), expected);
    assert_eq!(run.result().await.unwrap_err().to_string(), expected);
    assert_eq!(run.status().await.unwrap_err().to_string(), expected);
    assert_eq!(run.cancel().await.unwrap_err().to_string(), expected);
    assert_eq!(run.pause().await.unwrap_err().to_string(), expected);
    assert_eq!(run.resume().await.unwrap_err().to_string(), expected);
    assert_eq!(run.retry().await.unwrap_err().to_string(), expected);
    let asked = run.request::<_, u32>("say", &1).await;
    assert_eq!(asked.unwrap_err().to_string(), expected);
    assert!(client.get(id).await.unwrap().is_none());
    let error = client.send(("echo", "no-such-key"), "say", &1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no run `no-such-key` of workflow `echo`; it may have been deleted, or belongs \
         to another store"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_finished_run_is_refused() {
    let engine = echo().start().await.unwrap();
    let run = engine.client().start(ECHO, "a".to_owned()).await.unwrap();
    run.send("say", &"b").await.unwrap();
    run.result().await.unwrap();
    let expected = format!("run {} has ended (completed) and takes nothing more", run.id());
    assert_eq!(run.send("say", &"c").await.unwrap_err().to_string(), expected);
    let asked = run.request::<_, u32>("say", &"c").await;
    assert_eq!(asked.unwrap_err().to_string(), expected);
    engine.shutdown().await;
}

async fn start_error(builder: EngineBuilder) -> StartError {
    match builder.start().await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_registration_is_refused() {
    let twice = echo().register_fn(ECHO, |_, text| async move { Ok(text) });
    assert_eq!(
        start_error(twice).await.to_string(),
        "workflow `echo` is registered twice for version 1; give one of them another name or \
         version, or narrow what it `accepts`"
    );
    let accepts = everstep::WorkflowOptions::new().accepts(1..=3);
    let overlaps = echo().register_fn_with(ECHO.version(3), accepts, |_, text| async { Ok(text) });
    assert_eq!(
        start_error(overlaps).await.to_string(),
        "workflow `echo` is registered twice for version 1; give one of them another name or \
         version, or narrow what it `accepts`"
    );
    let other = echo().register_fn(ECHO.version(2), |_, text| async move { Ok(text) });
    other.start().await.unwrap().shutdown().await;
}

const EMPTY: &str = "a name is empty; give every workflow, operation and message a name";

fn too_long(bytes: usize) -> String {
    format!(
        "a name has {bytes} bytes, and the limit is 256: `{}..`; use a shorter one and put the \
         rest into the payload",
        "n".repeat(32)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_and_too_long_names_are_refused_wherever_they_are_given() {
    let long = "n".repeat(300);
    let unnamed =
        Engine::in_memory().register_fn(Workflow::<(), ()>::new(""), |_, ()| async { Ok(()) });
    assert_eq!(
        full(&start_error(unnamed).await),
        format!("a workflow cannot be registered: {EMPTY}")
    );
    let name: &'static str = Box::leak(long.clone().into_boxed_str());
    let named = Workflow::<(), ()>::new(name);
    let named = Engine::in_memory().register_fn(named, |_, ()| async { Ok(()) });
    assert_eq!(
        full(&start_error(named).await),
        format!("a workflow cannot be registered: {}", too_long(300))
    );
    let engine = echo().start().await.unwrap();
    let client = engine.client();
    let text = |error: ClientError| error.to_string();
    let run = client.start(ECHO, "a".to_owned()).await.unwrap();
    for (name, problem) in [("", EMPTY.to_owned()), (&long, too_long(300))] {
        let start = || client.start(ECHO, "a".to_owned());
        let error = start().key(name).await.unwrap_err();
        assert_eq!(text(error), format!("the key cannot be used: {problem}"));
        let error = start().tag(name, "v").await.unwrap_err();
        assert_eq!(text(error), format!("a tag's name cannot be used: {problem}"));
        let error = client.start_json(name, &1.into()).await.unwrap_err();
        assert_eq!(text(error), format!("the workflow's name cannot be used: {problem}"));
        let error = run.send(name, &1).await.unwrap_err();
        assert_eq!(text(error), format!("the message's name cannot be used: {problem}"));
        let error = run.send("say", &1).dedupe(name).await.unwrap_err();
        assert_eq!(text(error), format!("the dedupe key cannot be used: {problem}"));
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_with_a_bad_name_fails_its_run_and_not_the_engine() {
    const NAMES: Workflow<(u8, String), ()> = Workflow::new("names");
    let engine = Engine::in_memory().register_fn(NAMES, |ctx: Ctx, (what, name)| async move {
        match what {
            0 => ctx.step(&name, async || Ok(())).await,
            1 => ctx.sleep(&name, seconds(1)).await.map(drop),
            2 => ctx.listen::<()>(&name).await,
            3 => ctx.join(&name, (branch("a", async |_| Ok(())),)).await.map(drop),
            4 => ctx.attempt(&name, async |_| Ok(())).await.map(drop),
            5 => ctx.set_state(&name, &1),
            6 => ctx.map(&name, vec![1], async |_, _| Ok(())).await.map(drop),
            _ => {
                let done = async |_, _: ()| Ok(ControlFlow::<(), ()>::Break(()));
                ctx.repeat(&name, (), done).await
            }
        }
    });
    let engine = engine.start().await.unwrap();
    for what in 0..8 {
        for (name, problem) in [("".to_owned(), EMPTY.to_owned()), ("n".repeat(257), too_long(257))]
        {
            let run = engine.client().start(NAMES, (what, name)).await.unwrap();
            let ended = until_at_rest(&run).await;
            assert_eq!(ended.status, RunStatus::Failed, "operation {what}: {ended:?}");
            let error = run.result().await.unwrap_err().to_string();
            assert_eq!(error, format!("run {} failed: {problem}", run.id()), "operation {what}");
        }
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_or_foreign_file_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let refused = async |name: &str, what: &str| {
        let before = std::fs::read(path(name)).unwrap();
        let expected = format!(
            "the engine cannot start on its store: SQLite file `{}` {what}",
            path(name).display()
        );
        let error = start_error(Engine::open(path(name))).await;
        assert!(full(&error).starts_with(&expected), "{}", full(&error));
        let error = Client::open(path(name)).await.err().unwrap();
        let expected =
            expected.replace("the engine cannot start on its store", "the store cannot be used");
        assert!(full(&error).starts_with(&expected), "{}", full(&error));
        assert_eq!(std::fs::read(path(name)).unwrap(), before, "{name} was changed");
    };
    std::fs::write(path("letter.txt"), "Dear Ada, ".repeat(2_000)).unwrap();
    let foreign = "is not an everstep database (it is not an SQLite file); nothing was changed, \
                   give another path";
    refused("letter.txt", foreign).await;
    let other = rusqlite::Connection::open(path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE customers (a)").unwrap();
    drop(other);
    // An application's own file: an engine makes its tables beside the others, a client does not.
    let before = std::fs::read(path("other.db")).unwrap();
    let client = Client::open(path("other.db")).await.unwrap();
    let error = client.count().await.unwrap_err();
    drop(client);
    assert!(full(&error).contains("no tables of everstep"), "{}", full(&error));
    assert_eq!(std::fs::read(path("other.db")).unwrap(), before);
    let newer = rusqlite::Connection::open(path("newer.db")).unwrap();
    newer
        .execute_batch(
            "CREATE TABLE everstep_format (version INTEGER, fingerprint TEXT); \
             INSERT INTO everstep_format VALUES (99, 'cafe')",
        )
        .unwrap();
    drop(newer);
    refused("newer.db", "has format 99, and this program knows formats up to").await;
    // Nothing there, and a client does not make it.
    let error = Client::open(path("nothing.db")).await.err().unwrap();
    assert_eq!(
        full(&error),
        format!(
            "the store cannot be used: SQLite file `{}` cannot be opened; check that its directory \
             exists and may be written: there is no such file",
            path("nothing.db").display()
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_and_a_backup_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = Engine::open(&path).register_fn(ECHO, |_, text| async move { Ok(text) });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(ECHO, "a".to_owned()).await.unwrap();
    run.result().await.unwrap();
    engine.shutdown().await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    conn.query_row(checkpoint, [], |_| Ok(())).unwrap();
    drop(conn);
    // Everything after the header is overwritten: the tables are gone, the format is still ours.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8_192..].fill(0xAB);
    std::fs::write(&path, bytes).unwrap();
    let error = start_error(Engine::open(&path)).await;
    let expected = format!(
        "the engine cannot start on its store: SQLite file `{}` is damaged; restore it from a \
         backup: ",
        path.display()
    );
    assert!(full(&error).starts_with(&expected), "{}", full(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_holds_work_up_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let options = |pages| {
        let mut options = SqliteOptions::default();
        (options.create, options.max_page_count) = (true, pages);
        options
    };
    let store = Arc::new(SqliteStore::open_with(&path, options(Some(70))).unwrap());
    let bodies = Arc::new(AtomicUsize::new(0));
    let counted = bodies.clone();
    let engine = Engine::on(store.clone())
        .register_fn(ECHO, move |ctx, text| {
            let counted = counted.clone();
            async move {
                let big = ctx.step("big", async || {
                    counted.fetch_add(1, Ordering::SeqCst);
                    Ok("z".repeat(50_000))
                });
                Ok(format!("{text}{}", big.await?.len()))
            }
        })
        .settings(|settings| settings.store_retry = Duration::from_millis(2));
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let starting = (0..20).map(|n| client.start(ECHO, format!("{n}:")).key(format!("{n}")));
    let started = futures::future::try_join_all(starting.map(|start| start.into_future()));
    let all = async {
        futures::future::try_join_all(started.await.unwrap().iter().map(|run| run.result())).await
    };
    let mut all = std::pin::pin!(all);
    // It cannot all fit. What is in flight waits; nobody is told that it failed.
    let full = tokio::time::timeout(Duration::from_millis(200), &mut all).await;
    assert!(full.is_err(), "it fitted");
    assert!(engine.stopped().is_none());
    store.set_max_page_count(1_000_000).unwrap();
    let results = all.await.unwrap();
    for (n, result) in results.iter().enumerate() {
        assert_eq!(*result, format!("{n}:50000"));
    }
    assert_eq!(bodies.load(Ordering::SeqCst), 20, "each body ran once");
    engine.shutdown().await;
}

/// Root may write everywhere, so the test is run again by a user who may not.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_directory_is_named() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    const CHILD: &str = "EVERSTEP_TEST_READ_ONLY";
    if let Ok(directory) = std::env::var(CHILD) {
        let directory = Path::new(&directory);
        for (name, what) in [
            ("new.db", "cannot be opened; check that its directory exists and may be written"),
            (
                "app.db",
                "is read-only; give this user the right to write the file and its directory",
            ),
        ] {
            let path = directory.join(name);
            let error = start_error(Engine::open(&path)).await;
            let expected = format!(
                "the engine cannot start on its store: SQLite file `{}` {what}",
                path.display()
            );
            assert!(full(&error).starts_with(&expected), "{}", full(&error));
        }
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::open(directory.path().join("app.db")).start().await.unwrap();
    engine.shutdown().await;
    // The binary, too, must be where that user can run it.
    let binary = directory.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(&binary, 0o755);
    mode(&directory.path().join("app.db"), 0o644);
    mode(directory.path(), 0o555);
    let mut child = std::process::Command::new(&binary);
    let test = scenario::name_of(module_path!(), "a_read_only_directory_is_named");
    child.args([&test, "--exact", "--nocapture"]);
    child.env(CHILD, directory.path()).current_dir("/");
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    if root {
        child.uid(65_534);
    }
    let output = child.output().unwrap();
    mode(directory.path(), 0o755);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// A store that says what it is told to say, and then does what it should. `Lost` has made the
/// commit and says that it does not know.
#[derive(Clone, Default)]
struct Saying {
    store: MemoryStore,
    next: Arc<Mutex<VecDeque<Said>>>,
    said: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Busy,
    Full,
    Io,
    /// Made, and not known to be.
    Lost,
    /// Not made, and not known to be.
    NotMade,
    /// Batches with a commit of this number of new entries are rejected as a whole, for ever.
    Poison,
    Corrupt,
    ReadOnly,
    CannotOpen,
    Foreign,
    TooNew,
    InUse,
    Closed,
}

impl Said {
    fn error(self) -> StoreError {
        let (store, source) = ("the test's store".to_owned(), "the test says so".into());
        match self {
            Said::Busy => StoreError::Busy { store, source },
            Said::Full => StoreError::Full { store, source },
            Said::Io => StoreError::Io { store, source },
            Said::Lost | Said::NotMade => StoreError::UnknownOutcome { store, source },
            Said::Poison => StoreError::Rejected { store, source },
            Said::Corrupt => StoreError::Corrupt { store, source },
            Said::ReadOnly => StoreError::ReadOnly { store, source },
            Said::CannotOpen => StoreError::CannotOpen { store, source },
            Said::Foreign => StoreError::Foreign { store, what: "the test says so".into() },
            Said::TooNew => StoreError::TooNew { store, found: 2, known: 1 },
            Said::InUse => StoreError::InUse { store, found: 1, known: 2, runner: "other".into() },
            Said::Closed => StoreError::Closed { store },
        }
    }
}

/// Whether this is a commit whose entry holds the word.
fn is_poison(write: &Write) -> bool {
    let Write::Commit(commit) = write else {
        return false;
    };
    let holds = |put: &Put| put.value.windows(6).any(|bytes| bytes == b"poison");
    commit.puts.iter().any(holds)
}

impl Saying {
    fn say(&self, said: impl IntoIterator<Item = Said>) {
        self.next.lock().unwrap().extend(said);
    }
}

impl Around for Saying {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    fn around<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Call::Commit(batch) = call else {
            return make(&self.store);
        };
        if batch.writes.iter().any(is_poison) {
            self.said.fetch_add(1, Ordering::SeqCst);
            return Err(Said::Poison.error());
        }
        // Starts are let through: what is under test is what becomes of runs.
        let is_start = |write: &Write| !matches!(write, Write::Commit(_));
        if batch.writes.iter().all(is_start) {
            return make(&self.store);
        }
        let said = self.next.lock().unwrap().pop_front();
        let Some(said) = said else {
            return make(&self.store);
        };
        self.said.fetch_add(1, Ordering::SeqCst);
        if said == Said::Lost {
            make(&self.store)?;
        }
        Err(said.error())
    }
}

/// Three steps and a wait, each with its number, for runs that may carry poison.
fn three_steps(store: &Saying, bodies: &Arc<AtomicUsize>) -> EngineBuilder {
    let bodies = bodies.clone();
    Engine::on(Arc::new(store.clone()))
        .register_fn(ECHO, move |ctx, text| {
            let bodies = bodies.clone();
            async move {
                for n in 0..3 {
                    let body = ctx.step("step", async || {
                        bodies.fetch_add(1, Ordering::SeqCst);
                        // Long enough for the commits of several runs to meet.
                        tokio::task::yield_now().await;
                        Ok(format!("{text}{n}"))
                    });
                    body.await?;
                }
                Ok(text)
            }
        })
        .settings(|settings| settings.store_retry = Duration::from_millis(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_pass_are_waited_out_and_nothing_is_lost() {
    for said in [Said::Busy, Said::Full, Said::Io] {
        let (store, bodies) = (Saying::default(), Arc::new(AtomicUsize::new(0)));
        let engine = three_steps(&store, &bodies).start().await.unwrap();
        store.say([said; 7]);
        let run = engine.client().start(ECHO, "a".to_owned()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), "a", "{said:?}");
        assert_eq!(store.said.load(Ordering::SeqCst), 7, "{said:?}");
        assert_eq!(bodies.load(Ordering::SeqCst), 3, "{said:?}: no body ran again");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_unknown_outcome_runs_are_read_again() {
    for (said, expected) in [(Said::Lost, 3), (Said::NotMade, 4)] {
        let (store, bodies) = (Saying::default(), Arc::new(AtomicUsize::new(0)));
        let engine = three_steps(&store, &bodies).start().await.unwrap();
        store.say([said]);
        let run = engine.client().start(ECHO, "a".to_owned()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), "a", "{said:?}");
        // A result that was stored is found; one that was not is lost with its commit.
        assert_eq!(bodies.load(Ordering::SeqCst), expected, "{said:?}");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_the_store_cannot_take_is_paused_and_no_other() {
    let (store, bodies) = (Saying::default(), Arc::new(AtomicUsize::new(0)));
    let engine = three_steps(&store, &bodies).start().await.unwrap();
    let texts = (0..40).map(|n| match n {
        17 => "poison".to_owned(),
        n => n.to_string(),
    });
    let client = engine.client();
    let starts = texts.map(|text| client.start(ECHO, text).into_future());
    let runs = futures::future::try_join_all(starts).await.unwrap();
    for (n, run) in runs.iter().enumerate() {
        if n == 17 {
            let expected = "the store cannot take it: the test's store cannot take a write: the \
                            test says so";
            assert_eq!(until_paused(run).await, expected);
        } else {
            assert_eq!(run.result().await.unwrap(), n.to_string());
        }
    }
    assert!(engine.stopped().is_none());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_do_not_pass_stop_the_engine_and_every_caller_is_told() {
    let all = [
        (Said::Corrupt, "is damaged; restore it from a backup"),
        (
            Said::ReadOnly,
            "is read-only; give this user the right to write the file and its directory",
        ),
        (Said::CannotOpen, "cannot be opened; check that its directory exists and may be written"),
        (
            Said::Foreign,
            "is not an everstep database (the test says so); nothing was changed, give another path",
        ),
        (
            Said::TooNew,
            "has format 2, and this program knows formats up to 1; use a newer everstep",
        ),
        (
            Said::InUse,
            "has format 1 and must be migrated to 2, but the runner `other` is still using it; stop that process first",
        ),
        (Said::Closed, "is closed"),
    ];
    for (said, expected) in all {
        let (store, bodies) = (Saying::default(), Arc::new(AtomicUsize::new(0)));
        let engine = three_steps(&store, &bodies).start().await.unwrap();
        store.say([said]);
        let run = engine.client().start(ECHO, "a".to_owned()).await.unwrap();
        let error = run.result().await.unwrap_err();
        let expected = format!("the test's store {expected}");
        if said == Said::Closed {
            assert_eq!(error.to_string(), "the client is closed: its engine has shut down");
        } else {
            let text = full(&error);
            assert!(text.starts_with(&format!("the store cannot be used: {expected}")), "{text}");
        }
        let stopped = until("the engine to stop", async || engine.stopped()).await;
        assert_eq!(stopped.to_string(), expected);
        engine.client().start(ECHO, "b".to_owned()).await.unwrap_err();
        engine.shutdown().await;
        // The run is kept: an engine on a store that is well again finishes it.
        let engine = three_steps(&store, &bodies).start().await.unwrap();
        let run = engine.client().run::<String>(run.id());
        assert_eq!(run.result().await.unwrap(), "a", "{said:?}");
        engine.shutdown().await;
    }
}
