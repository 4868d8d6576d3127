//! What `cargo xtask crash` has found, each by a test of its own.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use everstep::prelude::*;

#[derive(Clone, Default)]
struct Undone(Arc<Mutex<Vec<String>>>);

/// The long arm completes a step and loses; then the run fails.
#[workflow]
async fn lost_then_failed(ctx: Ctx, _: ()) -> Result<()> {
    let undo = async |undo: everstep::Rollback, what: String| {
        undo.get::<Undone>().0.lock().unwrap().push(what);
        Ok(())
    };
    ctx.step("book", async || Ok("book".to_owned())).rollback(undo).await?;
    ctx.race(
        "race",
        (
            branch("long", async |ctx| {
                ctx.step("begun", async || Ok("begun".to_owned())).rollback(undo).await?;
                ctx.sleep("hours", hours(1)).await
            }),
            branch("short", async |ctx| ctx.sleep("moment", Duration::from_millis(50)).await),
        ),
    )
    .await?;
    ctx.step("last", async || Ok(())).await?;
    Err(Error::rollback("on purpose"))
}

#[tokio::test(flavor = "multi_thread")]
async fn loser_that_was_compensated_in_its_race_is_not_compensated_again() {
    let undone = Undone::default();
    // On virtual time the short sleep does not end before the step beside it.
    let engine = Engine::in_memory()
        .clock(everstep::testing::VirtualClock::new())
        .register(lost_then_failed)
        .provide(undone.clone())
        .start()
        .await
        .unwrap();
    let run = engine.client().start(lost_then_failed, ()).await.unwrap();
    run.result().await.unwrap_err();
    assert_eq!(*undone.0.lock().unwrap(), ["begun", "book"]);
    engine.shutdown().await;
}

#[workflow]
async fn answering(ctx: Ctx, n: u64) -> Result<u64> {
    let asked = ctx.receive::<u64>("ask").await?;
    asked.reply(&(asked.body + n))?;
    Ok(asked.body)
}

/// A client in another process asks the store for its answers, and may do so between a request's
/// registration and its delivery.
#[tokio::test(flavor = "multi_thread")]
async fn request_is_not_taken_for_unknown_while_it_is_being_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = Engine::open(&path).register(answering).start().await.unwrap();
    let client = Client::open(&path).await.unwrap();
    let mut asking = Vec::new();
    for n in 0..200u64 {
        let client = client.clone();
        asking.push(tokio::spawn(async move {
            let run = client.start(answering, n).await.unwrap();
            let ended = tokio::spawn({
                let run = run.clone();
                async move { run.result().await }
            });
            let answer: u64 = run.request("ask", &1u64).await.unwrap();
            assert_eq!(answer, n + 1);
            assert_eq!(ended.await.unwrap().unwrap(), 1);
        }));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for asked in asking {
        asked.await.unwrap();
    }
    engine.shutdown().await;
}
