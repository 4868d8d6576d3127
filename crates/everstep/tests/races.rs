//! Two things at the same instant, in both orders.
//!
//! A store that stops before or after a chosen kind of commit lets the test do the other thing at
//! exactly that point, so each order is made and not hoped for.

use std::sync::{Arc, Mutex};

use everstep::{
    Clock, RunStatus,
    prelude::*,
    store::MemoryStore,
    testing::{Ledger, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<(), Json> = Workflow::new("run");

/// What was given to the gate of a body.
type Gate = Arc<Mutex<Option<tokio::sync::oneshot::Receiver<()>>>>;

async fn engine<R>(
    clock: &Arc<VirtualClock>,
    gate: Gate,
    code: impl Fn(Ctx, ()) -> R + Send + Sync + 'static,
) -> Engine
where
    R: Future<Output = Result<Json>> + 'static,
{
    Engine::on(Arc::new(MemoryStore::new()))
        .clock(clock.clone())
        .provide(Ledger::new())
        .provide(gate)
        .register_fn(RUN, code)
        .start()
        .await
        .unwrap()
}

/// A body that waits for its gate.
async fn gated(ctx: &Ctx, name: &str) -> Result<u32> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        let gate = step.get::<Gate>().lock().unwrap().take();
        if let Some(gate) = gate {
            _ = gate.await;
        }
        Ok(1)
    })
    .await
}

fn gate() -> (tokio::sync::oneshot::Sender<()>, Gate) {
    let (open, gate) = tokio::sync::oneshot::channel();
    (open, Arc::new(Mutex::new(Some(gate))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_before_the_timeout_wins_and_one_after_it_waits() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let engine = engine(&clock, Gate::default(), |ctx, ()| async move {
            let first: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            let second: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            Ok(json!([first, second]))
        })
        .await;
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        drop(clock.quiet().await);
        if before {
            run.send("word", &1).await.unwrap();
            // The time of the wait has come when the message is looked at.
            clock.advance(hours(1));
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([1, null]));
        } else {
            drop(held);
            let held = clock.sleep(hours(1)).await;
            drop(clock.quiet().await);
            run.send("word", &1).await.unwrap();
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([null, 1]));
        }
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_race_with_parking_are_all_read_once() {
    let clock = VirtualClock::new();
    let engine = engine(&clock, Gate::default(), |ctx, ()| async move {
        let mut all = Vec::new();
        while all.len() < 200 {
            all.push(ctx.listen::<u32>("word").await?);
        }
        Ok(json!(all))
    })
    .await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    // Not settled in between: some find the run parked, some while it parks, some while it moves.
    for n in 0..200u32 {
        run.send("word", &n).await.unwrap();
    }
    let expected: Vec<u32> = (0..200).collect();
    assert_eq!(run.result().await.unwrap(), json!(expected));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_while_a_body_runs_keeps_its_result_and_starts_no_other() {
    let clock = VirtualClock::new();
    let (open, gate) = gate();
    let engine = engine(&clock, gate, |ctx, ()| async move {
        gated(&ctx, "slow").await?;
        gated(&ctx, "never").await?;
        Ok(json!(null))
    })
    .await;
    let _held = clock.hold();
    let run = engine.client().start(RUN, ()).await.unwrap();
    drop(clock.quiet().await);
    assert!(run.cancel().await.unwrap());
    _ = open.send(());
    assert!(run.result().await.is_err());
    assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
    let history = run.history().await.unwrap();
    assert!(history.iter().all(|entry| entry.location != "never"), "{history:?}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_while_a_body_runs_records_its_result() {
    let clock = VirtualClock::new();
    let (open, gate) = gate();
    let engine = engine(&clock, gate, |ctx, ()| async move {
        gated(&ctx, "slow").await?;
        gated(&ctx, "next").await?;
        Ok(json!(ctx.get::<Ledger>().count("slow")))
    })
    .await;
    let held = clock.hold();
    let run = engine.client().start(RUN, ()).await.unwrap();
    drop(clock.quiet().await);
    run.pause().await.unwrap();
    _ = open.send(());
    drop(clock.quiet().await);
    assert_eq!(run.status().await.unwrap(), RunStatus::Paused);
    let history = run.history().await.unwrap();
    assert!(history.iter().all(|entry| entry.location != "next"), "{history:?}");
    run.resume().await.unwrap();
    drop(held);
    assert_eq!(run.result().await.unwrap(), json!(1), "the body does not run again");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_meets_the_end_of_a_run_is_honest() {
    for _ in 0..50 {
        let clock = VirtualClock::new();
        let engine = engine(&clock, Gate::default(), |ctx, ()| async move {
            gated(&ctx, "work").await?;
            Ok(json!("done"))
        })
        .await;
        let run = engine.client().start(RUN, ()).await.unwrap();
        let cancelled = run.cancel().await.unwrap();
        let result = run.result().await;
        assert_eq!(cancelled, result.is_err(), "{result:?}");
        engine.shutdown().await;
    }
    _ = VirtualClock::new().now();
}
