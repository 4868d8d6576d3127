//! Work queues in one process: items, workers, waits, and the races between them.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use everstep::{
    EngineBuilder, FailureKind, ItemError, ItemId, ItemState, RunStatus, prelude::*,
    store::MemoryStore, testing::VirtualClock,
};
use serde_json::{Value as Json, json};

const RUN: Workflow<(), Json> = Workflow::new("run");
const LEN: Queue<String, u32> = Queue::new("len").attempts(3).visibility(seconds(30));
const NUM: Queue<u32, u32> = Queue::new("num").attempts(3).visibility(seconds(30));

fn builder(clock: &Arc<VirtualClock>) -> EngineBuilder {
    Engine::on(Arc::new(MemoryStore::new())).clock(clock.clone())
}

/// Lets a handler go on when the test says so.
#[derive(Clone)]
struct Gate {
    open: tokio::sync::watch::Sender<bool>,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            open: tokio::sync::watch::channel(false).0,
        }
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_gets_the_result_of_its_item() {
    let clock = VirtualClock::new();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move {
            let a = ctx.enqueue(LEN, &"seven".to_owned()).await?;
            let b = ctx
                .enqueue(LEN, &"four".to_owned())
                .timeout(hours(1))
                .await?;
            Ok(json!([a, b]))
        })
        .start()
        .await
        .unwrap();
    engine
        .work(LEN, 2, async |_job, text: String| Ok(text.len() as u32))
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([5, 4]));
    // An item that only a workflow waits for is gone with its end.
    assert_eq!(
        engine.client().queue_stats("len").await.unwrap(),
        Default::default()
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_made_again_and_the_waiter_told_once() {
    let clock = VirtualClock::new();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move {
            Ok(json!(ctx.enqueue(NUM, &1).await?))
        })
        .work(NUM, 2, move |job: Job, n: u32| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                match job.attempt() {
                    1 => Err(Error::msg("not yet")),
                    2 => panic!("not yet either"),
                    attempt => Ok(n + attempt),
                }
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(4));
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_error_reaches_the_workflow_with_its_details() {
    let clock = VirtualClock::new();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move {
            let error = ctx.enqueue(NUM, &1).await.unwrap_err();
            let failure = error.failure();
            let location = failure.location.as_ref().map(ToString::to_string);
            Ok(json!([
                failure.attempts,
                error.details::<u32>(),
                failure.message,
                location
            ]))
        })
        .work(NUM, 1, async |_, n: u32| -> Result<u32> {
            Err(Error::msg("no").with_details(&n))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([3, 1, "no", "num"]));
    // The workflow was told, so it is no dead letter.
    assert_eq!(engine.client().queue_stats("num").await.unwrap().dead, 0);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_for_its_item_and_a_failed_one_becomes_a_dead_letter() {
    let clock = VirtualClock::new();
    let works = Arc::new(AtomicU32::new(0));
    let allowed = works.clone();
    let engine = builder(&clock)
        .work(NUM, 2, move |_: Job, n: u32| {
            let works = allowed.load(Ordering::SeqCst) == 1 || n == 1;
            async move {
                match works {
                    true => Ok(10 * n),
                    false => Err(Error::fatal("refused")),
                }
            }
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let good = client.enqueue(NUM, &1).await.unwrap();
    assert_eq!(good.result().await.unwrap(), 10);
    // Again: it is kept.
    assert_eq!(good.result_json().await.unwrap(), json!(10));
    assert_eq!(good.status().await.unwrap(), ItemState::Done);

    let bad = client.enqueue_json("num", &json!(2)).await.unwrap();
    let Err(ItemError::Failed { failure, .. }) = bad.result().await else {
        panic!("it fails");
    };
    assert_eq!((failure.kind, failure.attempts), (FailureKind::Fatal, 1));
    let letters = client.queue_dead_letters("num", None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].id, &letters[0].input),
        (bad.id(), &Some(json!(2)))
    );
    assert_eq!(letters[0].error.as_ref().unwrap().message, "refused");
    assert_eq!(client.queue_stats("num").await.unwrap().dead, 1);

    assert!(
        !good.replay().await.unwrap(),
        "only a dead letter is replayed"
    );
    works.store(1, Ordering::SeqCst);
    assert!(bad.replay().await.unwrap());
    assert_eq!(bad.result_json().await.unwrap(), json!(20));

    works.store(0, Ordering::SeqCst);
    let dropped = client.enqueue(NUM, &3).await.unwrap();
    assert!(dropped.result().await.is_err());
    assert!(dropped.drop_dead().await.unwrap());
    assert!(dropped.info().await.is_err());
    assert!(
        client
            .queue_item::<u32>(ItemId(999))
            .result()
            .await
            .is_err()
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn higher_priorities_come_first_and_delays_are_kept() {
    let clock = VirtualClock::new();
    let engine = builder(&clock).start().await.unwrap();
    let client = engine.client();
    let held = clock.hold();
    let began = everstep::Clock::now(&*clock);
    for (n, priority) in [(1, 0), (2, 5), (3, -5), (4, 5)] {
        client.enqueue(NUM, &n).priority(priority).await.unwrap();
    }
    client
        .enqueue(NUM, &5)
        .priority(9)
        .delay(hours(1))
        .await
        .unwrap();
    let stats = client.queue_stats("num").await.unwrap();
    assert_eq!((stats.ready, stats.delayed), (4, 1));
    assert_eq!(stats.oldest_ready, Some(began));
    let order = Arc::new(Mutex::new(Vec::new()));
    let (noted, time) = (order.clone(), clock.clone());
    engine
        .work(NUM, 1, move |_: Job, n: u32| {
            let late = everstep::Clock::now(&*time) >= began + hours(1);
            noted.lock().unwrap().push((n, late));
            async move { Ok(n) }
        })
        .unwrap();
    drop(held);
    drop(clock.sleep(hours(2)).await);
    let expected = [(2, false), (4, false), (1, false), (3, false), (5, true)];
    assert_eq!(*order.lock().unwrap(), expected);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dedupe_key_finds_the_item_that_has_it() {
    let clock = VirtualClock::new();
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move {
            let first = ctx.enqueue(NUM, &1).dedupe("k").detach().await?;
            let again = ctx.enqueue(NUM, &2).dedupe("k").detach().await?;
            let value = ctx.enqueue(NUM, &3).dedupe("k").await?;
            // It has ended, and its result is kept.
            let kept = ctx.enqueue(NUM, &4).dedupe("k").await?;
            Ok(json!([first == again, value, kept]))
        })
        .work(NUM, 4, move |_: Job, n: u32| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(n) }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([true, 1, 1]));
    let attached = engine.client().enqueue(NUM, &5).dedupe("k").await.unwrap();
    assert!(attached.attached());
    assert_eq!(attached.result().await.unwrap(), 1);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    drop(clock.sleep(hours(2)).await);
    let new = engine.client().enqueue(NUM, &6).dedupe("k").await.unwrap();
    assert!(!new.attached(), "its result was kept for an hour");
    assert_eq!(new.result().await.unwrap(), 6);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up_takes_its_unclaimed_item_along() {
    let clock = VirtualClock::new();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move {
            let none = ctx.enqueue(NUM, &1).timeout(minutes(1)).await?;
            let race = ctx
                .race("race", (ctx.enqueue(NUM, &2), ctx.sleep("nap", minutes(1))))
                .await?;
            let slept = matches!(race.value, First2::Second(_));
            let left = ctx.enqueue(NUM, &3).leave().timeout(minutes(1)).await?;
            Ok(json!([none, slept, left]))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([null, true, null]));
    let items = engine
        .client()
        .queue_items("num", None, None, 10)
        .await
        .unwrap();
    let inputs: Vec<_> = items.into_iter().map(|item| item.input.unwrap()).collect();
    assert_eq!(inputs, [json!(3)]);
    engine.shutdown().await;
}
