//! Two things at the same instant, in both orders.
//!
//! A held clock, a gate in a body and a store that is meddled with just before a chosen write make
//! each order; none is hoped for.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use everstep::{
    RunStatus,
    prelude::*,
    store::{Batch, Delivery, MemoryStore, Store, Target, Write},
    testing::{self, CrashingStore, Ledger, VirtualClock},
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
    Engine::on(testing::store())
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
            let held = held.sleep(hours(1)).await;
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
}

/// Delivers the message `name` to the run with the key `k`, as another process does.
fn deliver(store: &MemoryStore, name: &str, body: u8) {
    let target = Target::Key { workflow: "run".to_owned(), key: "k".to_owned() };
    let delivery = Delivery {
        target,
        name: name.to_owned(),
        // A small number is one byte of CBOR.
        body: vec![body],
        dedupe: None,
        request: None,
        inbox_max: 100,
        on_end: Default::default(),
    };
    let batch = Batch { writes: vec![Write::Deliver(Box::new(delivery))], ..Batch::default() };
    store.commit(&batch).unwrap();
}

/// Runs two waits with a timeout while a message arrives just before the n-th write, of which the
/// first is the engine's.
async fn heard_with_a_message_before(write: u64, name: &'static str) -> Json {
    let clock = VirtualClock::new();
    let store = CrashingStore::counting(MemoryStore::new())
        .meddle_before(write, move |store| deliver(store, name, 7));
    let engine = Engine::on(Arc::new(store))
        .clock(clock.clone())
        .settings(|settings| settings.threads = 1)
        .register_fn(RUN, |ctx: Ctx, ()| async move {
            let first: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            let at = ctx.now();
            let second: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            Ok(json!([first, second, ctx.now().since(at).as_secs()]))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).key("k").await.unwrap();
    let heard = run.result().await.unwrap();
    engine.shutdown().await;
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_while_a_run_parks_or_times_out_is_heard() {
    // Entering, taking shards and the start are three writes; the fourth parks the run, the fifth
    // is the timeout of the first wait, the sixth parks it again or ends it.
    assert_eq!(heard_with_a_message_before(4, "word").await, json!([7, null, 3600]));
    assert_eq!(heard_with_a_message_before(5, "word").await, json!([7, null, 3600]));
    assert_eq!(heard_with_a_message_before(6, "word").await, json!([null, 7, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_name_does_not_hold_up_a_timeout() {
    for write in 4..8 {
        let heard = heard_with_a_message_before(write, "other").await;
        assert_eq!(heard, json!([null, null, 3600]), "before write {write}");
    }
}
