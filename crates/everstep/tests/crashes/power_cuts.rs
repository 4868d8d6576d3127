//! The power is cut on a SQLite file, after each operation on its files in turn.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use everstep::{
    prelude::*,
    store::{SqliteOptions, SqliteStore, Store},
    testing::{
        CrashingStore, Ledger, VirtualClock, crash_everywhere,
        vfs::{FaultVfs, FileKind},
    },
};

#[workflow]
async fn payment(ctx: Ctx, amount: u32) -> Result<u32> {
    let charge = ctx
        .step_with("charge", async |step: Step| {
            step.get::<Ledger>().ran(step.location());
            Ok(amount)
        })
        .rollback(async |_, _| Ok(()))
        .await?;
    ctx.sleep("settle", days(1)).await?;
    let tip: u32 = ctx.listen("tip").await?;
    ctx.step_with("book", async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(charge + tip)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_acknowledged_is_lost() {
    let report = crash_everywhere(payment, 40).send("tip", &2u32).power_cuts().await;
    assert_eq!(report.expected.output, Some(42.into()));
    assert!(report.points > 20, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_sync_made_before_its_answer() {
    let dir = tempfile::tempdir().unwrap();
    let vfs = FaultVfs::register();
    let mut options = SqliteOptions::default();
    (options.create, options.vfs) = (true, Some(vfs.name().to_owned()));
    let sqlite = SqliteStore::open_with(dir.path().join("app.db"), options).unwrap();
    let store = Arc::new(CrashingStore::counting(sqlite));
    let clock = VirtualClock::new();
    let held = clock.hold();
    let engine = Engine::on(store.clone() as Arc<dyn Store>)
        .clock(clock.clone())
        .provide(Ledger::new())
        .register(payment)
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let counted = || (store.commits(), vfs.counts(FileKind::Wal).syncs);
    let before = counted();
    let run = client.start(payment, 40).await.unwrap();
    let started = counted();
    assert!(started.1 > before.1, "the start was acknowledged before it was synced");
    // A batch in which everything is refused writes nothing: there is none if nothing races.
    drop(clock.quiet().await);
    run.send("tip", &2u32).await.unwrap();
    drop(clock.quiet().await);
    drop(held);
    assert_eq!(run.result().await.unwrap(), 42);
    let after = counted();
    assert_eq!(after.0 - before.0, after.1 - before.1);
    engine.shutdown().await;
}
