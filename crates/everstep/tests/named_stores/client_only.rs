//! A process without an engine: it starts runs, and waits for their results, with few questions to
//! the store.
#![allow(clippy::unwrap_used)]
#![cfg(any(feature = "sqlite", feature = "postgres"))]

use std::{sync::Arc, time::Duration};

use everstep::{ClientError, RunError, prelude::*, store::Store, testing};
use futures::future::join_all;

const DOUBLE: Workflow<u32, u32> = Workflow::new("double");
const RUNS: u32 = 1_000;

fn engine(store: Arc<dyn Store>) -> everstep::EngineBuilder {
    Engine::on(store)
        .register_fn(DOUBLE, |ctx, n| async move { ctx.step("double", async || Ok(2 * n)).await })
}

/// A thousand results at once: `engines` and `clients` are stores of their own on the same data, as
/// in two processes.
async fn costs_a_question_per_round(engines: Arc<dyn Store>, clients: Arc<dyn Store>) {
    engines.migrate().unwrap();
    let client = Client::on(clients.clone()).unwrap();
    // Started before anybody is there to run them, so that all are waited for.
    let starts = (0..RUNS).map(|n| client.start(DOUBLE, n).into_future());
    let handles: Vec<_> = join_all(starts).await.into_iter().map(Result::unwrap).collect();
    let written = clients.counters();
    assert!(written.batches < 200, "{written:?}: starts go in batches");
    let waiting = tokio::spawn(async move {
        let results = join_all(handles.iter().map(|run| run.result())).await;
        (handles, results)
    });
    // Some rounds with nothing to tell.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = clients.counters().reads - written.reads;
    assert!((1..=30).contains(&idle), "{idle} questions in half a second");
    let begun = std::time::Instant::now();
    let engine = engine(engines).start().await.unwrap();
    let (handles, results) = waiting.await.unwrap();
    let took = begun.elapsed();
    for (n, result) in (0..).zip(results) {
        assert_eq!(result.unwrap(), 2 * n);
    }
    // At most one each 10 ms; on a machine with nothing else to do there are some ten.
    let reads = clients.counters().reads - written.reads - idle;
    let rounds = took.as_millis() as u64 / 10 + 2;
    assert!(reads <= rounds, "{reads} questions in {took:?}");
    assert!(reads < 300, "{reads} questions for {RUNS} results");
    // Those that have ended already are asked for together, too, and at once.
    let before = clients.counters().reads;
    let fresh = Client::on(clients.clone()).unwrap();
    let ids = handles.iter().map(RunHandle::id);
    let found = join_all(ids.map(|id| fresh.get_typed(DOUBLE, id))).await;
    let got = clients.counters().reads - before;
    let found: Vec<_> = found.into_iter().map(|run| run.unwrap().unwrap()).collect();
    let results = join_all(found.iter().map(|run| run.result())).await;
    assert!(results.into_iter().all(|result| result.is_ok()));
    let reads = clients.counters().reads - before - got;
    assert!(reads <= 20, "{reads} questions for {RUNS} results that are there");
    // One that is not there any more is told so.
    let gone = found.first().unwrap();
    gone.delete().await.unwrap();
    let error = gone.result().await.unwrap_err();
    assert!(matches!(error, RunError::Client(ClientError::UnknownRun { .. })), "{error:?}");
    engine.shutdown().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_results_cost_a_question_per_round_on_sqlite() {
    use everstep::store::SqliteStore;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let open = || Arc::new(SqliteStore::create(&path).unwrap());
    costs_a_question_per_round(open(), open()).await;
    testing::ran_on("SQLite");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_results_cost_a_question_per_round_on_postgres() {
    use everstep::store::PostgresStore;
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let open = || Arc::new(PostgresStore::open(&url).unwrap());
    costs_a_question_per_round(open(), open()).await;
    testing::ran_on("PostgreSQL");
}

/// The client was opened, and the first call failed; the docs say that opening it does.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_not_opened_on_a_database_without_our_schema() {
    use everstep::store::{PostgresStore, StoreError};
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let error = Client::open(&url).await.err().unwrap();
    let ClientError::Store(error) = error else {
        panic!("{error:?}");
    };
    assert!(
        matches!(&*error, StoreError::CannotOpen { source, .. } if source.to_string().contains("no tables of everstep")),
        "{error:?}"
    );
    // And nothing was made.
    let error = PostgresStore::open(&url).unwrap().runners().unwrap_err();
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&url).unwrap());
    store.migrate().unwrap();
    Client::open(&url).await.unwrap();
    testing::ran_on("PostgreSQL");
}
