//! The doctor: each thing that must be true is broken by hand, found, and mended where that is safe;
//! and nothing is found while work goes on.
#![allow(clippy::unwrap_used)]
#![cfg(any(feature = "sqlite", feature = "postgres"))]

use crate::scenario;
use crate::stores;

use std::{sync::Arc, time::Duration};

use everstep::{
    Check, Client, Deliver, DoctorReport, Limit, RepairError, Repaired, RunId, RunStatus,
    Timestamp, WorkflowOptions,
    prelude::*,
    store::{Batch, Mend, Outcome, Store, Write},
};
#[cfg(feature = "sqlite")]
use everstep::{
    store::{SqliteStore, StoreError},
    testing::CrashingStore,
};
use scenario::until_status;
use stores::{Place, on_each_store};
use tokio::sync::Semaphore;

const SLEEPER: Workflow<u32, u32> = Workflow::new("sleeper");
const READER: Workflow<u32, u32> = Workflow::new("reader");
const LISTENER: Workflow<u32, u32> = Workflow::new("listener");
const QUICK: Workflow<u32, u32> = Workflow::new("quick");
const FAMILY: Workflow<u32, u32> = Workflow::new("family");
const GROWING: Workflow<u32, u32> = Workflow::new("growing");
const WORKER: Workflow<u32, u32> = Workflow::new("worker");
const RACER: Workflow<u32, u32> = Workflow::new("racer");
const NEWS: Event<u32> = Event::new("news");
const JOB: Event<u32> = Event::new("job").delivery(Deliver::One);
const TWO: Limit = Limit::new("two").concurrency(2);
const ONE: Limit = Limit::new("one").concurrency(1);

fn with_workflows(place: &Place) -> everstep::EngineBuilder {
    place
        .engine()
        .register_fn(SLEEPER, |ctx, n: u32| async move {
            ctx.step("evening", async || Ok(())).await?;
            ctx.sleep("night", hours(u64::from(n))).await?;
            Ok(n)
        })
        .register_fn(READER, |ctx, n: u32| async move {
            let news: u32 = ctx.event(NEWS).await?;
            Ok(n + news)
        })
        .register_fn(LISTENER, |ctx, n: u32| async move {
            let more: u32 = ctx.listen("more").await?;
            Ok(n + more)
        })
        .register_fn(QUICK, |ctx, n: u32| async move {
            for step in 0..3 {
                let body = async || {
                    tokio::task::yield_now().await;
                    Ok(())
                };
                ctx.step(&format!("step {step}"), body).limit(TWO).await?;
                ctx.sleep(&format!("nap {step}"), std::time::Duration::from_millis(5)).await?;
            }
            ctx.set_state("done", &true)?;
            Ok(n)
        })
        .register_fn(GROWING, |ctx, n: u32| async move {
            ctx.step("childhood", async || Ok(())).await?;
            ctx.continue_with(LISTENER, n).await
        })
        .register_fn(WORKER, |ctx, n: u32| async move {
            let job: u32 = ctx.event(JOB).await?;
            Ok(n + job)
        })
        .register_fn(FAMILY, |ctx, n: u32| async move {
            let first: u32 = ctx.child(QUICK, n).await?;
            let second: u32 = ctx.child(QUICK, n).await?;
            Ok(first + second)
        })
}

/// The runs of a store that is at rest.
struct Runs {
    sleeper: RunId,
    reader: RunId,
}

/// Fills a store with runs that sleep, wait and have ended, and leaves it.
async fn fill(place: &Place) -> Runs {
    let engine = with_workflows(place).start().await.unwrap();
    let client = engine.client();
    let sleeper = client.start(SLEEPER, 5).key("night").await.unwrap();
    let reader = client.start(READER, 1).await.unwrap();
    let listener = client.start(LISTENER, 1).await.unwrap();
    let grown = client.start(GROWING, 1).key("grown").await.unwrap();
    let quick = client.start(QUICK, 1).key("once").tag("a", "b").await.unwrap();
    quick.result().await.unwrap();
    let schedule = client.schedule("hourly", QUICK, 1).every(hours(1));
    schedule.await.unwrap();
    scenario::until_info(&grown, "it to be a listener", |info| info.workflow == "listener").await;
    for run in [&sleeper, &reader, &listener, &grown] {
        until_status(run, RunStatus::Sleeping).await;
    }
    // It waits for another message, so this one stays unread.
    sleeper.send("unread", &1).await.unwrap();
    until_status(&sleeper, RunStatus::Sleeping).await;
    let (sleeper, reader) = (sleeper.id(), reader.id());
    engine.shutdown().await;
    Runs { sleeper, reader }
}

async fn client(place: &Place) -> Option<Client> {
    match place {
        Place::Memory(_) => None,
        #[cfg(feature = "sqlite")]
        Place::File(directory) => {
            Some(Client::open(directory.path().join("app.db")).await.unwrap())
        }
        #[cfg(feature = "postgres")]
        Place::Database(url) => Some(Client::open(url).await.unwrap()),
    }
}

/// The store itself.
fn raw_store(place: &Place) -> Option<Arc<dyn Store>> {
    match place {
        Place::Memory(_) => None,
        #[cfg(feature = "sqlite")]
        Place::File(directory) => {
            let file = directory.path().join("app.db");
            Some(Arc::new(SqliteStore::open(file).unwrap()))
        }
        #[cfg(feature = "postgres")]
        Place::Database(url) => {
            let store = everstep::store::PostgresStore::open(url).unwrap();
            Some(Arc::new(store))
        }
    }
}

/// Changes the tables behind the back of everybody. `{b:00}` is the byte 0.
async fn break_it(place: &Place, sql: &str) {
    let literal = |before: &str, after: &str| {
        let mut text = String::new();
        for (no, part) in sql.split("{b:").enumerate() {
            match part.split_once('}').filter(|_| no > 0) {
                Some((hex, rest)) => text += &format!("{before}{hex}{after}{rest}"),
                None => text += part,
            }
        }
        text
    };
    match place {
        Place::Memory(_) => unreachable!("it has no tables"),
        #[cfg(feature = "sqlite")]
        Place::File(directory) => {
            let file = directory.path().join("app.db");
            let conn = everstep::rusqlite::Connection::open(file).unwrap();
            let sql = literal("x'", "'");
            // Those who had the file open close it in their own time.
            scenario::until("the file to be free", async || {
                let done = conn.execute_batch(&sql);
                let is_busy =
                    done.as_ref().is_err_and(|error| error.to_string().contains("locked"));
                assert!(done.is_ok() || is_busy, "{sql}: {done:?}");
                done.ok()
            })
            .await;
        }
        #[cfg(feature = "postgres")]
        Place::Database(url) => {
            let (base, schema) = url.split_once("?schema=").unwrap();
            let schema = schema.split('&').next().unwrap();
            let connected =
                everstep::tokio_postgres::connect(base, everstep::tokio_postgres::NoTls);
            let (client, connection) = connected.await.unwrap();
            tokio::spawn(connection);
            let path = format!("SET search_path TO \"{schema}\"; ");
            let sql = path + &literal("'\\x", "'::bytea");
            client.batch_execute(&sql).await.unwrap();
        }
    }
}

async fn look(client: &Client) -> DoctorReport {
    client.doctor().await.unwrap()
}

fn words(report: &DoctorReport) -> Vec<String> {
    let findings = report.findings.iter();
    findings.map(|it| format!("{}: {}", it.check, it.what)).collect()
}

/// Repairs what was found, and what is found then, until nothing is left that can be; gives what is.
async fn repair(client: &Client, found: DoctorReport) -> DoctorReport {
    let directory = tempfile::tempdir().unwrap();
    let mut report = found;
    for go in 0..4 {
        if !report.findings.iter().any(|it| it.repairable) {
            return report;
        }
        let backup = directory.path().join(format!("{go}.jsonl"));
        let repaired = client.repair(&report, &backup).await.unwrap();
        assert!(!repaired.mended.is_empty(), "{:?}", words(&report));
        let text = std::fs::read_to_string(&backup).unwrap();
        assert_eq!(text.lines().count(), repaired.saved + 1, "{text}");
        assert!(repaired.saved > 0, "what is changed is in the backup");
        report = look(client).await;
    }
    panic!("it is never done: {:?}", words(&report));
}

/// What is broken, what the doctor says then, and what it is about.
type Case = (&'static str, &'static str, Check);

const REPAIRABLE: &[Case] = &[
    (
        "INSERT INTO everstep_history (run, generation, key, value) VALUES (77, 1, {b:1502}, {b:00})",
        "an entry of the history of run number 77, which does not exist, is left",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_inbox (run, seq, name, body, sent_at) VALUES (77, 4, 'x', {b:00}, 0)",
        "message 4 of run number 77, which does not exist, is left",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_dedupes (run, key) VALUES (77, 'k')",
        "the dedupe key `k` of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_requests (id, run, state) VALUES ({b:01}, 77, 1)",
        "a request of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_state (run, key, value) VALUES (77, 'progress', {b:00})",
        "the state `progress` of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_tags (name, value, run) VALUES ('colour', 'blue', 77)",
        "the tag `colour` of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_dead_letters (run, name, body, reason, at) VALUES (77, 'n', {b:00}, '', 0)",
        "of run number 77, which does not exist, is left",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_streams (run, stream, pos, at, generation, body) \
         VALUES (77, 's', 3, 0, 1, {b:00})",
        "item 3 of the stream `s` of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_event_cursors (run, name, matching, seq) VALUES (77, 'news', '', 1)",
        "the place in the events `news` of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_deferreds (run, generation, tag, body, at) VALUES (77, 1, {b:01}, {b:00}, 0)",
        "the value of a deferred of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_requests (id, run, state) SELECT {b:02}, no, 0 FROM everstep_runs WHERE status = 5",
        "whoever sent it waits for ever",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_inbox (run, seq, name, body, sent_at) SELECT no, inbox_seq, 'x', {b:00}, 0 \
         FROM everstep_runs WHERE status = 5",
        "which has ended and will not read it",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_history (run, generation, key, value) \
         SELECT no, generation - 1, {b:1502}, {b:00} FROM everstep_runs WHERE status = 5",
        "and that generation is over",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_event_waiters (name, no, run, generation, wait, after, floor) \
         SELECT 'news', 900, no, generation, {b:01}, 0, 0 FROM everstep_runs WHERE status = 5",
        "that run does not wait for it any more",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_watchers (run, waiter, generation, key) \
         SELECT no, 77, 1, {b:01} FROM everstep_runs WHERE workflow = 'sleeper'",
        "the wait for the end of another run of run number 77 is left",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_deferred_waits (run, generation, tag, key) \
         SELECT no, generation + 1, {b:01}, {b:02} FROM everstep_runs WHERE workflow = 'sleeper'",
        "the wait for a deferred of run",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_queue_waits (run, generation, key, item, cancels) VALUES (77, 1, {b:01}, 5, 0)",
        "the wait for a queue item of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_limit_places (run, generation, operation, name, key, arrival, given) \
         VALUES (77, 1, {b:01}, 'l', '', 1, 1)",
        "a place under a limit of run number 77",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_limits (name, key, held, waiting, arrivals, turn_us, seen_us) VALUES ('q', '', 1, 0, 1, 0, 0); \
         INSERT INTO everstep_limit_places (run, generation, operation, name, key, arrival, given) \
         VALUES (-2, 0, {b:3939}, 'q', '', 1, 1)",
        "a queue item has a place under a limit, and nobody works on it",
        Check::Limits,
    ),
    (
        "INSERT INTO everstep_children (run, parent, generation, key, close, awaited) \
         SELECT no, 77, 1, {b:01}, 0, 0 FROM everstep_runs WHERE status = 5",
        "is held to be the live child of another run",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_graves (run) SELECT no FROM everstep_runs WHERE workflow = 'sleeper'",
        "is marked as deleted, and is there",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_old_generations (run, generation) SELECT no, generation FROM everstep_runs \
         WHERE workflow = 'sleeper'",
        "is marked as over, and is the current one",
        Check::Sequences,
    ),
    (
        "INSERT INTO everstep_keys (workflow, key, run) VALUES ('sleeper', 'lost', 77)",
        "the key `lost` of workflow `sleeper` leads to run number 77",
        Check::Orphans,
    ),
    (
        "DELETE FROM everstep_keys WHERE key = 'night'",
        "was started with a key that does not lead to it",
        Check::Orphans,
    ),
    (
        "INSERT INTO everstep_event_names (name, last_seq, last_waiter, kept, dropped) \
         VALUES ('n', 1, 5, 0, 0); INSERT INTO everstep_events (name, seq, body, published_at, expires_at, \
         one, given_to) VALUES ('n', 1, {b:00}, 0, 9999999999999, 1, 5)",
        "event 1 of `n` is with somebody who does not wait for it any more",
        Check::Events,
    ),
    (
        "UPDATE everstep_event_names SET kept = 9, last_waiter = 0",
        "the counts of the events `news` are not those of its rows",
        Check::Events,
    ),
    (
        "INSERT INTO everstep_limits (name, key, held, waiting, arrivals, turn_us, seen_us) VALUES ('l', '', 3, 1, 3, 0, 0)",
        "the limit `l` (key ``) counts other places than there are",
        Check::Limits,
    ),
    (
        "INSERT INTO everstep_shards (shard, runner) VALUES (3, {b:0102})",
        "shard 3 is held by a runner that does not exist",
        Check::Shards,
    ),
    (
        "UPDATE everstep_runs SET shard = shard + 1792, pool = 'lost' WHERE workflow = 'sleeper'",
        "is in a shard of a pool that does not exist: nobody takes it up",
        Check::Shards,
    ),
    (
        "UPDATE everstep_runs SET shard = (shard + 1) % 256 WHERE status = 5",
        "and its id belongs to shard",
        Check::Shards,
    ),
    (
        "UPDATE everstep_runs SET status = 0, available_at = NULL WHERE workflow = 'sleeper'",
        "is pending and has no time at which it is taken up",
        Check::Wake,
    ),
    (
        "UPDATE everstep_runs SET available_at = 5 WHERE status = 5",
        "has ended, and is due all the same",
        Check::Wake,
    ),
    (
        "UPDATE everstep_runs SET finished_at = NULL WHERE status = 5",
        "retention never deletes it",
        Check::Sequences,
    ),
    (
        "UPDATE everstep_runs SET inbox_seq = 0 WHERE workflow = 'sleeper'",
        "it does not see them",
        Check::Sequences,
    ),
    (
        "UPDATE everstep_runs SET last_number = 0 WHERE workflow = 'sleeper'",
        "and its row says that the last one is 0",
        Check::Sequences,
    ),
    (
        "UPDATE everstep_schedules SET next_at = NULL",
        "schedule `hourly` is not paused and has no next tick",
        Check::Schedules,
    ),
    (
        "UPDATE everstep_runs SET status = 2, available_at = NULL WHERE workflow = 'sleeper'",
        "sleeps, and nothing will ever wake it",
        Check::Wake,
    ),
    (
        "DELETE FROM everstep_event_waiters",
        "waits for an event at `news`, and is not registered for it",
        Check::Wake,
    ),
];

const NOT_REPAIRABLE: &[Case] = &[
    (
        "UPDATE everstep_history SET value = {b:ffff} WHERE run IN (SELECT no FROM everstep_runs \
         WHERE workflow = 'sleeper')",
        "its entry `evening` cannot be read",
        Check::Formats,
    ),
    (
        "UPDATE everstep_runs SET output = {b:ff} WHERE status = 5",
        "its output cannot be read",
        Check::Formats,
    ),
    (
        "UPDATE everstep_runs SET error = {b:ff} WHERE status = 5",
        "its failure cannot be read",
        Check::Formats,
    ),
    (
        "UPDATE everstep_runs SET status = 9 WHERE status = 5",
        "has a status or a generation that cannot be",
        Check::Formats,
    ),
    (
        "INSERT INTO everstep_history (run, generation, key, value) \
         SELECT no, generation + 1, {b:1502}, {b:00} FROM everstep_runs WHERE status = 5",
        "which it has not come to",
        Check::Sequences,
    ),
    (
        "INSERT INTO everstep_watchers (run, waiter, generation, key) SELECT ended.no, waits.no, 1, {b:01} \
         FROM everstep_runs AS ended, everstep_runs AS waits WHERE ended.status = 5 AND waits.workflow = 'sleeper'",
        "which has ended or does not exist, and was not told",
        Check::Wake,
    ),
    (
        "INSERT INTO everstep_queue_waits (run, generation, key, item, cancels) \
         SELECT no, generation, {b:01}, 99, 0 FROM everstep_runs WHERE workflow = 'sleeper'",
        "waits for a queue item that does not exist",
        Check::Wake,
    ),
    (
        "UPDATE everstep_schedules SET spec = 'often'",
        "schedule `hourly` cannot be read",
        Check::Formats,
    ),
    (
        "INSERT INTO everstep_api_tokens (name, role, hash, created_at) VALUES ('t', 'god', {b:00}, 0)",
        "the token `t` cannot be read",
        Check::Formats,
    ),
    (
        "DELETE FROM everstep_keys WHERE key = 'grown'",
        "was started with a key that does not lead to it any more, and has continued since",
        Check::Orphans,
    ),
    (
        "DELETE FROM everstep_secrets",
        "the secret that tokens of deferreds are made with is lost",
        Check::Integrity,
    ),
    (
        "UPDATE everstep_runs SET shard = (shard + 1) % 256 WHERE workflow = 'sleeper'",
        "pause it, and repair it then",
        Check::Shards,
    ),
];

fn find<'a>(report: &'a DoctorReport, case: &Case) -> &'a everstep::Finding {
    let (sql, said, check) = case;
    let found = report.findings.iter().find(|it| it.check == *check && it.what.contains(said));
    found.unwrap_or_else(|| panic!("after `{sql}`: {:#?}", words(report)))
}

#[tokio::test]
async fn what_is_broken_is_found_and_mended_and_then_nothing_is_found() {
    on_each_store(async |place| {
        fill(place).await;
        let Some(client) = client(place).await else {
            return;
        };
        assert_eq!(words(&look(&client).await), [] as [String; 0]);
        for case in REPAIRABLE {
            break_it(place, case.0).await;
            let report = look(&client).await;
            assert!(find(&report, case).repairable, "{}", case.0);
            let left = repair(&client, report).await;
            assert_eq!(words(&left), [] as [String; 0], "after `{}`", case.0);
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_mended_safely_is_found_and_left() {
    for case in NOT_REPAIRABLE {
        on_each_store(async |place| {
            if matches!(place, Place::Memory(_)) {
                return;
            }
            fill(place).await;
            let client = client(place).await.unwrap();
            break_it(place, case.0).await;
            let report = look(&client).await;
            assert!(!find(&report, case).repairable, "{}", case.0);
            // Whatever else follows from it may be mended; this stays.
            let left = repair(&client, report).await;
            find(&left, case);
        })
        .await;
    }
}

#[tokio::test]
async fn runs_that_were_mended_go_on() {
    on_each_store(async |place| {
        let runs = fill(place).await;
        let Some(client) = client(place).await else {
            return;
        };
        let lost = "DELETE FROM everstep_event_waiters; \
                    UPDATE everstep_runs SET available_at = NULL WHERE workflow = 'sleeper'";
        break_it(place, lost).await;
        let left = repair(&client, look(&client).await).await;
        assert_eq!(words(&left), [] as [String; 0]);
        let engine = with_workflows(place).start().await.unwrap();
        let client = engine.client();
        let sleeper = client.run::<u32>(runs.sleeper);
        until_status(&sleeper, RunStatus::Sleeping).await;
        let row = sleeper.info().await.unwrap();
        assert!(row.available_at.is_some(), "it has its time again");
        let reader = client.run::<u32>(runs.reader);
        until_status(&reader, RunStatus::Sleeping).await;
        client.publish(NEWS, &41).await.unwrap();
        assert_eq!(reader.result().await.unwrap(), 42);
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn nothing_is_found_while_work_goes_on() {
    on_each_store(async |place| {
        let engine = with_workflows(place).start().await.unwrap();
        let client = engine.client();
        let mut runs = Vec::new();
        let mut readers = Vec::new();
        for n in 0..10 {
            runs.push(client.start(QUICK, n).await.unwrap());
            runs.push(client.start(FAMILY, n).await.unwrap());
            readers.push(client.start(READER, n).await.unwrap());
        }
        let grown = client.start(GROWING, 1).key("grown").await.unwrap();
        let mut looked = 0;
        for go in 0..4 {
            let report = look(&client).await;
            assert_eq!(words(&report), [] as [String; 0]);
            looked += report.checked.runs;
            if go == 1 {
                for reader in &readers {
                    until_status(reader, RunStatus::Sleeping).await;
                }
                client.publish(NEWS, &1).await.unwrap();
            }
        }
        assert!(looked > 0);
        grown.send("more", &1).await.unwrap();
        for run in runs.iter().chain(&readers).chain([&grown]) {
            run.result().await.unwrap();
        }
        assert_eq!(words(&look(&client).await), [] as [String; 0]);
        // Its key is still that of the workflow that it began as.
        let again = client.start(GROWING, 1).key("grown").await.unwrap();
        assert_eq!(again.id(), grown.id());
        engine.shutdown().await;
    })
    .await;
}

/// Repairs what was found, once.
async fn repair_once(client: &Client, report: &DoctorReport) -> Repaired {
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.jsonl");
    client.repair(report, backup).await.unwrap()
}

/// A step in line for a place that has lost a race keeps an entry which says that it waits, and was
/// taken for one that nobody would ever let in.
#[tokio::test]
async fn a_step_that_lost_a_race_in_line_for_a_limit_is_not_missed() {
    on_each_store(async |place| {
        let gate = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&gate);
        let engine = place
            .engine()
            .register_fn(QUICK, move |ctx, n: u32| {
                let held = Arc::clone(&held);
                async move {
                    let body = async || {
                        held.acquire().await?.forget();
                        Ok(())
                    };
                    ctx.step("hold", body).limit(ONE).await?;
                    Ok(n)
                }
            })
            .register_fn(RACER, |ctx, n: u32| async move {
                let work = ctx.step("work", async || Ok(n)).limit(ONE);
                let patience = ctx.sleep("patience", Duration::from_millis(1));
                ctx.race("either", (work, patience)).await?;
                let more: u32 = ctx.listen("more").await?;
                Ok(n + more)
            });
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        let holder = client.start(QUICK, 1).await.unwrap();
        scenario::until("the place to be taken", async || {
            let limits = client.limits().await.unwrap();
            limits.iter().any(|it| it.in_use == 1).then_some(())
        })
        .await;
        let racer = client.start(RACER, 1).await.unwrap();
        scenario::until_info(&racer, "the race to be lost", |info| {
            let waiting = info.waiting.as_deref().unwrap_or_default();
            info.status == RunStatus::Sleeping && waiting.contains("`more`")
        })
        .await;
        assert_eq!(words(&look(&client).await), [] as [String; 0]);
        gate.add_permits(1);
        racer.send("more", &2).await.unwrap();
        assert_eq!(racer.result().await.unwrap(), 3);
        holder.result().await.unwrap();
        engine.shutdown().await;
    })
    .await;
}

/// An event that was taken from somebody who is not there was counted by nobody, and given to nobody
/// who waited already: the next who asked for it took the count below nothing.
#[tokio::test]
async fn an_event_that_comes_back_is_counted_and_given_to_whoever_waits() {
    on_each_store(async |place| {
        let engine = with_workflows(place).start().await.unwrap();
        let client = engine.client();
        if matches!(place, Place::Memory(_)) {
            return engine.shutdown().await;
        }
        let lose = async || {
            client.publish(JOB, &41).await.unwrap();
            let sql = "UPDATE everstep_events SET given_to = 900 WHERE name = 'job'; \
                       UPDATE everstep_event_names SET kept = 0, last_waiter = 900 WHERE name = 'job'";
            break_it(place, sql).await;
        };
        let mend = async || {
            let report = look(&client).await;
            assert_eq!(report.findings.len(), 1, "{:?}", words(&report));
            assert_eq!(repair_once(&client, &report).await.mended.len(), 1);
            assert_eq!(words(&look(&client).await), [] as [String; 0]);
        };
        // Somebody asks for it afterwards.
        lose().await;
        mend().await;
        let worker = client.start(WORKER, 1).await.unwrap();
        assert_eq!(worker.result().await.unwrap(), 42);
        // Somebody waits for it already.
        lose().await;
        let worker = client.start(WORKER, 2).await.unwrap();
        until_status(&worker, RunStatus::Sleeping).await;
        mend().await;
        until_status(&worker, RunStatus::Completed).await;
        assert_eq!(worker.result().await.unwrap(), 43);
        // Another one is published.
        lose().await;
        mend().await;
        client.publish(JOB, &1).await.unwrap();
        assert_eq!(words(&look(&client).await), [] as [String; 0]);
        engine.shutdown().await;
    })
    .await;
}

/// The places under a limit were counted, and whoever waited for one went on waiting.
#[tokio::test]
async fn a_run_in_line_for_a_limit_that_was_mended_goes_on() {
    const LIMIT_ROW: &str = "INSERT INTO everstep_limits (name, key, concurrency, held, waiting, arrivals, \
                             turn_us, seen_us) VALUES ('one', '', 1, 1, 0, 1, 0, 0); ";
    const PLACE_ROW: &str = "INSERT INTO everstep_limit_places (run, generation, operation, name, key, \
                             arrival, given) VALUES (77, 1, {b:01}, 'one', '', 1, 1)";
    let with_place = format!("{LIMIT_ROW}{PLACE_ROW}");
    let cases = [
        // A place of a run that is not there.
        (&*with_place, ""),
        // A place that is counted and is not there.
        (LIMIT_ROW, ""),
        // Room that nobody was told of.
        (LIMIT_ROW, "UPDATE everstep_limits SET held = 0 WHERE name = 'one'"),
    ];
    on_each_store(async |place| {
        let engine = place.engine();
        let engine = engine.register_fn(RACER, |ctx, n: u32| async move {
            ctx.step("work", async || Ok(n)).limit(ONE).await
        });
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        if matches!(place, Place::Memory(_)) {
            return engine.shutdown().await;
        }
        for (before, after) in cases {
            break_it(place, before).await;
            let run = client.start(RACER, 7).await.unwrap();
            until_status(&run, RunStatus::Sleeping).await;
            if !after.is_empty() {
                break_it(place, after).await;
            }
            let report = look(&client).await;
            assert_eq!(report.findings.len(), 1, "{:?}", words(&report));
            let repaired = repair_once(&client, &report).await;
            assert_eq!(repaired.mended.len(), 1, "{before}{after}");
            until_status(&run, RunStatus::Completed).await;
            assert_eq!(run.result().await.unwrap(), 7);
            assert_eq!(words(&look(&client).await), [] as [String; 0]);
        }
        engine.shutdown().await;
    })
    .await;
}

/// Of a run that waited for a limit and stood in no line, `why` said that it ran the body.
#[tokio::test]
async fn why_says_that_a_run_waits_for_a_limit_without_being_registered() {
    const HELD: &str = "INSERT INTO everstep_limits (name, key, concurrency, held, waiting, arrivals, \
                        turn_us, seen_us) VALUES ('one', '', 1, 1, 0, 1, 0, 0); \
                        INSERT INTO everstep_limit_places (run, generation, operation, name, key, arrival, \
                        given) VALUES (77, 1, {b:01}, 'one', '', 1, 1)";
    const LOST: &str = "DELETE FROM everstep_limit_places WHERE run <> 77; \
                        UPDATE everstep_limits SET waiting = 0 WHERE name = 'one'";
    on_each_store(async |place| {
        let engine = place.engine();
        let engine = engine
            .register_fn(RACER, |ctx, n: u32| async move {
                ctx.step("work", async || Ok(n)).limit(ONE).await
            })
            .register_fn_with(WORKER, WorkflowOptions::new().limit(ONE), |_, n: u32| async move {
                Ok(n)
            });
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        if matches!(place, Place::Memory(_)) {
            return engine.shutdown().await;
        }
        break_it(place, HELD).await;
        let step = client.start(RACER, 7).await.unwrap();
        let whole = client.start(WORKER, 7).await.unwrap();
        for (run, at) in [(&step, "at `work`"), (&whole, "before it begins")] {
            until_status(run, RunStatus::Sleeping).await;
            let why = run.why().await.unwrap().sentence;
            assert!(why.ends_with(&format!("waits for limit `one` {at}")), "{why}");
        }
        break_it(place, LOST).await;
        for (run, at) in [(&step, "at `work`"), (&whole, "before it begins")] {
            let why = run.why().await.unwrap().sentence;
            let wanted = format!("waits for limit `one` {at}, and is not registered for it");
            assert!(why.contains(&wanted), "{why}");
        }
        let report = look(&client).await;
        assert_eq!(report.findings.len(), 3, "{:?}", words(&report));
        engine.shutdown().await;
    })
    .await;
}

/// A repair went by what the doctor had seen: it resumed runs that somebody had paused meanwhile, and
/// changed what had been mended in another way.
#[tokio::test]
async fn what_is_no_longer_so_is_left_alone() {
    const PUT_AWAY: &str = "CREATE TABLE put_away AS SELECT * FROM ";
    let waiters = format!("{PUT_AWAY} everstep_event_waiters; DELETE FROM everstep_event_waiters");
    let schedules =
        format!("{PUT_AWAY} everstep_schedules; UPDATE everstep_schedules SET next_at = NULL");
    let put_back = |table| {
        format!(
            "DELETE FROM {table}; INSERT INTO {table} SELECT * FROM put_away; DROP TABLE put_away"
        )
    };
    let cases = [
        (&*waiters, put_back("everstep_event_waiters")),
        (&*schedules, put_back("everstep_schedules")),
        (
            "UPDATE everstep_runs SET shard = (shard + 1) % 256 WHERE status = 5",
            "UPDATE everstep_runs SET shard = (shard + 255) % 256 WHERE status = 5".to_owned(),
        ),
        (
            "UPDATE everstep_runs SET last_number = last_number - 1 WHERE workflow = 'sleeper'",
            "UPDATE everstep_runs SET last_number = last_number + 1 WHERE workflow = 'sleeper'"
                .to_owned(),
        ),
    ];
    on_each_store(async |place| {
        let runs = fill(place).await;
        let Some(client) = client(place).await else {
            return;
        };
        for (sql, back) in &cases {
            break_it(place, sql).await;
            let report = look(&client).await;
            assert_eq!(report.findings.len(), 1, "{:?}", words(&report));
            break_it(place, back).await;
            let repaired = repair_once(&client, &report).await;
            assert!(repaired.mended.is_empty(), "after `{sql}`");
            assert_eq!(repaired.left, report.findings);
            assert_eq!(words(&look(&client).await), [] as [String; 0], "{sql}");
        }
        // It is in another shard than the one that was seen.
        let wrong = "UPDATE everstep_runs SET shard = (shard + 1) % 256 WHERE status = 5";
        break_it(place, wrong).await;
        let report = look(&client).await;
        break_it(place, wrong).await;
        assert!(repair_once(&client, &report).await.mended.is_empty());
        repair(&client, look(&client).await).await;
        // Somebody has paused the run.
        break_it(place, "DELETE FROM everstep_event_waiters").await;
        let report = look(&client).await;
        let reader = client.run::<u32>(runs.reader);
        reader.pause().await.unwrap();
        assert!(repair_once(&client, &report).await.mended.is_empty());
        assert_eq!(reader.status().await.unwrap(), RunStatus::Paused);
    })
    .await;
}

/// What may change between the look and the mend is compared in the transaction that mends.
#[tokio::test]
async fn a_mend_is_made_only_if_everything_is_as_it_was_seen() {
    on_each_store(async |place| {
        let runs = fill(place).await;
        let Some(client) = client(place).await else {
            return;
        };
        let store = raw_store(place).unwrap();
        let mend = async |mend: Mend| {
            let store = Arc::clone(&store);
            let batch = Batch {
                fence: None,
                now: Timestamp::from_millis(1_800_000_000_000),
                writes: vec![Write::Mend(Box::new(mend))],
            };
            let applied = tokio::task::spawn_blocking(move || store.commit(&batch));
            match applied.await.unwrap().unwrap().outcomes[..] {
                [Outcome::Mended(rows)] => rows,
                ref other => panic!("a mend was answered with {other:?}"),
            }
        };
        let run = runs.reader.no();
        let history = {
            let store = Arc::clone(&store);
            tokio::task::spawn_blocking(move || store.history(run, None, 10).unwrap())
        };
        let [entry] = &history.await.unwrap()[..] else {
            panic!("it has one entry");
        };
        let remove =
            |value: &[u8]| Mend::RemoveEntry { run, key: entry.key.clone(), value: value.to_vec() };
        break_it(place, "CREATE TABLE put_away AS SELECT * FROM everstep_event_waiters").await;
        break_it(place, "DELETE FROM everstep_event_waiters").await;
        assert_eq!(mend(remove(&entry.value)).await, 0, "it is not paused");
        client.run::<u32>(runs.reader).pause().await.unwrap();
        assert_eq!(mend(remove(b"another")).await, 0, "it is another entry");
        break_it(place, "INSERT INTO everstep_event_waiters SELECT * FROM put_away").await;
        assert_eq!(mend(remove(&entry.value)).await, 0, "it is registered");
        break_it(place, "DELETE FROM everstep_event_waiters").await;
        assert_eq!(mend(remove(&entry.value)).await, 1);
        let (from, to) = (7_777, 3);
        assert_eq!(mend(Mend::Shard { run, from, to }).await, 0);
        let last_number = 77;
        assert_eq!(mend(Mend::ForgetNumber { run, last_number }).await, 0);
    })
    .await;
}

/// A run was paused to be loaded anew, the store failed, and the run stood still with nobody knowing.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_run_that_was_paused_by_a_repair_goes_on_or_is_named() {
    let place = Place::File(tempfile::tempdir().unwrap());
    let runs = fill(&place).await;
    let Place::File(directory) = &place else { unreachable!() };
    break_it(&place, "DELETE FROM everstep_event_waiters").await;
    // The entry cannot be removed; then the run cannot be resumed at once, and then not at all.
    for failures in [1, 2, 3] {
        let store = SqliteStore::open(directory.path().join("app.db")).unwrap();
        let itself: Arc<std::sync::OnceLock<Arc<CrashingStore<SqliteStore>>>> = Arc::default();
        let after_pause = Arc::clone(&itself);
        let store = CrashingStore::counting(store).meddle_after(move |_| {
            let store = after_pause.get().unwrap();
            for _ in 0..failures {
                store.fail_next("commit", || StoreError::UnknownOutcome {
                    store: "the test's store".to_owned(),
                    source: "it is away".into(),
                });
            }
            true
        });
        let store = Arc::new(store);
        itself.set(Arc::clone(&store)).ok().unwrap();
        let client = Client::on(store).unwrap();
        let report = look(&client).await;
        let kept = tempfile::tempdir().unwrap();
        let backup = kept.path().join("backup.jsonl");
        let error = client.repair(&report, backup).await.unwrap_err();
        let status = client.run::<u32>(runs.reader).status().await.unwrap();
        match failures {
            3 => {
                let run = runs.reader.to_string();
                let is_named =
                    matches!(&error, RepairError::Paused { what, .. } if what.contains(&run));
                assert!(is_named, "{error}");
                assert_eq!(status, RunStatus::Paused);
            }
            _ => {
                assert!(matches!(error, RepairError::Client(_)), "{error}");
                assert_ne!(status, RunStatus::Paused);
                // As it was before.
                let back = "UPDATE everstep_runs SET status = 2, available_at = NULL WHERE workflow = 'reader'";
                break_it(&place, back).await;
            }
        }
    }
    everstep::testing::ran_on("SQLite");
}

/// A repair locked whole tables, and waited for everybody who had written to one of them.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_repair_waits_for_nobody_who_is_at_something_else_and_gives_way_to_others() {
    let place = Place::Database(everstep_pg::fresh_url().unwrap());
    fill(&place).await;
    let client = client(&place).await.unwrap();
    let rows = "INSERT INTO everstep_limits (name, key, held, waiting, arrivals, turn_us, seen_us) \
                VALUES ('a', '', 3, 0, 3, 0, 0), ('b', '', 0, 0, 0, 9223372036854775807, 0); \
                UPDATE everstep_event_names SET kept = 9; \
                UPDATE everstep_runs SET inbox_seq = 0 WHERE workflow = 'sleeper'";
    break_it(&place, rows).await;
    let report = look(&client).await;
    assert_eq!(report.findings.len(), 3, "{:?}", words(&report));
    let Place::Database(url) = &place else { unreachable!() };
    let (base, schema) = url.split_once("?schema=").unwrap();
    let schema = schema.split('&').next().unwrap();
    let connected = everstep::tokio_postgres::connect(base, everstep::tokio_postgres::NoTls);
    let (other, connection) = connected.await.unwrap();
    tokio::spawn(connection);
    let sql = format!(
        "SET search_path TO \"{schema}\"; BEGIN; \
         UPDATE everstep_limits SET arrivals = 1 WHERE name = 'b'; \
         INSERT INTO everstep_events (name, seq, body, published_at, expires_at, one) \
         VALUES ('other', 1, '', 0, 0, 1); \
         UPDATE everstep_runs SET updated_at = updated_at WHERE workflow = 'sleeper'"
    );
    other.batch_execute(&sql).await.unwrap();
    let repaired = tokio::time::timeout(scenario::LIMIT, repair_once(&client, &report));
    let repaired = repaired.await.expect("it waits for nobody for long");
    assert_eq!(repaired.mended.len(), 2, "{:?}", repaired.left);
    let said = &repaired.left[0].what;
    assert!(said.contains("others were at it all the time"), "{said}");
    other.batch_execute("ROLLBACK").await.unwrap();
    let left = repair(&client, look(&client).await).await;
    assert_eq!(words(&left), [] as [String; 0]);
    everstep::testing::ran_on("PostgreSQL");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn no_more_is_reported_of_runs_than_can_be_read() {
    let place = Place::File(tempfile::tempdir().unwrap());
    fill(&place).await;
    let columns = "workflow, version, pool, shard, status, generation, created_at, updated_at, \
                   finished_at, attempts, recoveries, inbox_seq, input";
    let sql = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 2500) \
         INSERT INTO everstep_runs (no, id, {columns}) SELECT n, randomblob(15), {columns} FROM numbers, everstep_runs \
         WHERE everstep_runs.status = 5"
    );
    break_it(&place, &sql).await;
    let report = look(&client(&place).await.unwrap()).await;
    let unreadable = report.findings.iter();
    let unreadable = unreadable.filter(|it| it.what.contains("an id that is not its own"));
    let count = unreadable.count();
    assert!((1_000..1_200).contains(&count), "{count}");
    assert!(report.has_more);
    everstep::testing::ran_on("SQLite");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_file_in_another_journal_mode_is_found() {
    let place = Place::File(tempfile::tempdir().unwrap());
    fill(&place).await;
    break_it(&place, "PRAGMA journal_mode = DELETE").await;
    let report = look(&client(&place).await.unwrap()).await;
    find(&report, &("", "the journal mode of the file is `delete`", Check::Integrity));
    everstep::testing::ran_on("SQLite");
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_backup_is_never_written_over_and_nothing_is_mended_without_one() {
    let place = Place::File(tempfile::tempdir().unwrap());
    fill(&place).await;
    let client = client(&place).await.unwrap();
    break_it(&place, "INSERT INTO everstep_dedupes (run, key) VALUES (77, 'k')").await;
    let report = look(&client).await;
    let directory = tempfile::tempdir().unwrap();
    let taken = directory.path().join("taken.jsonl");
    std::fs::write(&taken, "mine").unwrap();
    let refused = client.repair(&report, &taken).await.unwrap_err();
    assert!(matches!(refused, RepairError::Backup { .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&taken).unwrap(), "mine");
    assert_eq!(look(&client).await.findings.len(), 1, "nothing was mended");
    let backup = directory.path().join("backup.jsonl");
    client.repair(&report, &backup).await.unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&backup).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "payloads are in it");
    }
    let text = std::fs::read_to_string(&backup).unwrap();
    assert!(text.contains(r#""table":"everstep_dedupes""#), "{text}");
    assert!(text.contains(r#""key":"k""#), "{text}");
    everstep::testing::ran_on("SQLite");
}
