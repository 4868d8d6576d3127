//! What happens to a SQLite file under an engine: it is moved, deleted, linked or locked.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::mpsc};

use everstep::{
    Client, ClientError, StartError,
    prelude::*,
    rusqlite::Connection,
    store::{SqliteOptions, SqliteStore, StoreError},
    telemetry::NotReady,
};
use tracing_subscriber::{Layer, layer::SubscriberExt};

#[workflow]
async fn one(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.step("one", async || Ok(n)).await
}

async fn engine(path: &Path) -> Engine {
    Engine::open(path).register(one).start().await.unwrap()
}

fn is_displaced(error: &ClientError) -> bool {
    matches!(error, ClientError::Store(error) if matches!(**error, StoreError::Displaced { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_file_was_moved_stops_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (dir.path().join("app.db"), dir.path().join("elsewhere.db"));
    let first = engine(&path).await;
    let run = first.client().start(one, 1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    first.monitor().ready().unwrap();
    std::fs::rename(&path, &elsewhere).unwrap();
    let error = first.client().start(one, 2).await.unwrap_err();
    assert!(is_displaced(&error), "{error:?}");
    let not_ready = first.monitor().ready().unwrap_err();
    assert!(matches!(not_ready, NotReady::Stopped(_)), "{not_ready}");
    first.shutdown().await;
    // What was confirmed is there once the file is back beside its log.
    std::fs::rename(&elsewhere, &path).unwrap();
    let second = engine(&path).await;
    let run = second.client().get_typed(one, run.id()).await.unwrap().unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_file_was_replaced_neither_reads_nor_writes_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("app.db"), dir.path().join("other.db"));
    for path in [&path, &other] {
        engine(path).await.shutdown().await;
    }
    let client = Client::open(&path).await.unwrap();
    let run = client.start(one, 1).await.unwrap();
    std::fs::rename(&other, &path).unwrap();
    let read = client.get(run.id()).await.map(drop).unwrap_err();
    let written = client.start(one, 2).await.map(drop).unwrap_err();
    assert!(is_displaced(&read) && is_displaced(&written), "{read:?}, {written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_second_hard_link_gets_no_engine_and_a_symbolic_link_is_fine() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let first = engine(&at("app.db")).await;
    std::os::unix::fs::symlink(at("app.db"), at("soft.db")).unwrap();
    let second = engine(&at("soft.db")).await;
    assert_eq!(second.client().cluster().await.unwrap().runners.len(), 2);
    second.shutdown().await;
    first.shutdown().await;
    std::fs::hard_link(at("app.db"), at("hard.db")).unwrap();
    for name in ["app.db", "hard.db", "soft.db"] {
        let refused = Engine::open(at(name)).start().await.map(drop).unwrap_err();
        let StartError::Store(error) = &refused else {
            panic!("{refused}");
        };
        assert!(matches!(**error, StoreError::Displaced { .. }), "{error}");
        assert!(error.to_string().contains("2 hard links"), "{error}");
    }
}

/// Sends on what is warned of, with its fields.
struct Warnings(mpsc::Sender<String>);

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        _ = self.0.send(text.0);
    }
}

/// A process was stopped while it held the write lock. The start failed with `Busy`, and its program
/// ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_waits_with_its_start_for_the_write_lock_and_says_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    engine(&path).await.shutdown().await;
    let (sender, warned) = mpsc::channel();
    let subscriber = tracing_subscriber::registry().with(Warnings(sender));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut options = SqliteOptions::default();
    options.busy_timeout = std::time::Duration::from_millis(1);
    let store = SqliteStore::open_with(&path, options).unwrap();
    let starting = tokio::spawn(Engine::on(std::sync::Arc::new(store)).start());
    let waits = tokio::task::spawn_blocking(move || {
        let mut waits = warned.into_iter().filter(|it| it.contains("waits with its start"));
        // Its second warning: it goes on waiting.
        waits.nth(1)
    });
    let said = waits.await.unwrap().unwrap();
    assert!(!starting.is_finished());
    if cfg!(target_os = "linux") {
        assert!(said.contains(&format!("({})", std::process::id())), "{said}");
    }
    holder.execute_batch("ROLLBACK").unwrap();
    starting.await.unwrap().unwrap().shutdown().await;
}
