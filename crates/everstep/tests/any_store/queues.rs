//! Work queues in one process: items, workers, waits, and the races between them.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use everstep::{
    EngineBuilder, FailureKind, ItemError, ItemId, ItemState, RunStatus,
    prelude::*,
    store::{MemoryStore, SqliteStore, Store},
    testing::{self, CrashingStore, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<(), Json> = Workflow::new("run");
const LEN: Queue<String, u32> = Queue::new("len").attempts(3).visibility(seconds(30));
const NUM: Queue<u32, u32> = Queue::new("num").attempts(3).visibility(seconds(30));

fn builder(clock: &Arc<VirtualClock>) -> EngineBuilder {
    Engine::on(testing::store()).clock(clock.clone())
}

/// Lets a handler go on when the test says so.
#[derive(Clone)]
struct Gate {
    open: tokio::sync::watch::Sender<bool>,
}

impl Gate {
    fn new() -> Gate {
        Gate { open: tokio::sync::watch::channel(false).0 }
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
            let b = ctx.enqueue(LEN, &"four".to_owned()).timeout(hours(1)).await?;
            Ok(json!([a, b]))
        })
        .start()
        .await
        .unwrap();
    engine.work(LEN, 2, async |_job, text: String| Ok(text.len() as u32)).unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([5, 4]));
    // An item that only a workflow waits for is gone with its end.
    assert_eq!(engine.client().queue_stats("len").await.unwrap(), Default::default());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_made_again_and_the_waiter_told_once() {
    let clock = VirtualClock::new();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let engine = builder(&clock)
        .register_fn(RUN, |ctx, ()| async move { Ok(json!(ctx.enqueue(NUM, &1).await?)) })
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
            Ok(json!([failure.attempts, error.details::<u32>(), failure.message, location]))
        })
        .work(NUM, 1, async |_, n: u32| -> Result<u32> { Err(Error::msg("no").with_details(&n)) })
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
    assert_eq!((letters[0].id, &letters[0].input), (bad.id(), &Some(json!(2))));
    assert_eq!(letters[0].error.as_ref().unwrap().message, "refused");
    assert_eq!(client.queue_stats("num").await.unwrap().dead, 1);

    assert!(!good.replay().await.unwrap(), "only a dead letter is replayed");
    works.store(1, Ordering::SeqCst);
    assert!(bad.replay().await.unwrap());
    assert_eq!(bad.result_json().await.unwrap(), json!(20));

    works.store(0, Ordering::SeqCst);
    let dropped = client.enqueue(NUM, &3).await.unwrap();
    assert!(dropped.result().await.is_err());
    assert!(dropped.drop_dead().await.unwrap());
    assert!(dropped.info().await.is_err());
    assert!(client.queue_item::<u32>(ItemId(999)).result().await.is_err());
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
    client.enqueue(NUM, &5).priority(9).delay(hours(1)).await.unwrap();
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
    drop(held.sleep(hours(2)).await);
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
            let race =
                ctx.race("race", (ctx.enqueue(NUM, &2), ctx.sleep("nap", minutes(1)))).await?;
            let slept = matches!(race, First2::B(_));
            let left = ctx.enqueue(NUM, &3).leave().timeout(minutes(1)).await?;
            Ok(json!([none, slept, left]))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([null, true, null]));
    let items = engine.client().queue_items("num", None, None, 10).await.unwrap();
    let inputs: Vec<_> = items.into_iter().map(|item| item.input.unwrap()).collect();
    assert_eq!(inputs, [json!(3)]);
    engine.shutdown().await;
}

/// Another process, as far as the engine can tell: it takes the item and settles it on the store.
mod elsewhere {
    use everstep::store::{
        Batch, ClaimItems, Outcome, QueueDone, QueueWrite, Settle, Settlement, Store, Write,
    };
    use everstep::{ItemId, Timestamp};
    use uuid::Uuid;

    fn write(store: &dyn Store, now: Timestamp, write: QueueWrite) -> QueueDone {
        let batch = Batch { fence: None, now, writes: vec![Write::Queue(Box::new(write))] };
        match store.commit(&batch).unwrap().outcomes.pop() {
            Some(Outcome::Queue(done)) => done,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn claim(store: &dyn Store, now: Timestamp) -> ItemId {
        let wanted = ClaimItems {
            queue: "num".to_owned(),
            claim: Uuid::from_u128(9),
            max: 1,
            attempts_max: 9,
            visibility: std::time::Duration::from_secs(30),
            limit: None,
        };
        match write(store, now, QueueWrite::Claim(wanted)) {
            QueueDone::Claimed(claimed) => claimed.items[0].item,
            other => panic!("{other:?}"),
        }
    }

    /// Settles with this small number; whether the claim held.
    pub(crate) fn settle(store: &dyn Store, now: Timestamp, item: ItemId, n: u8) -> bool {
        let settle = Settle {
            item,
            claim: Uuid::from_u128(9),
            // A small number is its own CBOR.
            settlement: Settlement::Done(vec![n]),
        };
        write(store, now, QueueWrite::Settle(settle)) == QueueDone::Settled(true)
    }

    pub(crate) fn work(store: &dyn Store, now: Timestamp, n: u8) {
        let item = claim(store, now);
        assert!(settle(store, now, item, n));
    }
}

fn now(clock: &VirtualClock) -> Timestamp {
    everstep::Clock::now(clock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_just_before_and_after_the_parking_is_taken_once() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let gate = Gate::new();
        let time = clock.clone();
        let mut store = CrashingStore::counting(MemoryStore::new());
        if before {
            // Register, take shards, start, register the wait; the next write parks the run.
            store = store.meddle_before(5, move |inner| elsewhere::work(inner, now(&time), 7));
        }
        let store = Arc::new(store);
        let passing = gate.clone();
        let engine = Engine::on(store.clone())
            .clock(clock.clone())
            .register_fn(RUN, move |ctx, ()| {
                let gate = passing.clone();
                async move {
                    let body = ctx.step("body", async || {
                        gate.pass().await;
                        Ok(1)
                    });
                    let (a, b) = ctx.join("both", (ctx.enqueue(NUM, &1), body)).await?;
                    Ok(json!([a, b]))
                }
            })
            .start()
            .await
            .unwrap();
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        drop(clock.quiet().await);
        assert_eq!(store.writes(), 4);
        gate.open();
        if !before {
            let parked = scenario::until_status(&run, RunStatus::Sleeping).await;
            assert!(parked.waiting.unwrap().contains("queue item"));
            engine.work(NUM, 1, async |_, _| Ok(7)).unwrap();
        }
        drop(held);
        assert_eq!(run.result().await.unwrap(), json!([7, 1]));
        assert_eq!(store.inner().inbox(run.id().no(), 0).unwrap(), []);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_just_before_the_timeout_wins_and_one_after_it_is_dropped() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let time = clock.clone();
        let mut store = CrashingStore::counting(MemoryStore::new());
        if before {
            // Register, take shards, start, park with the wait; the next write is the timeout.
            store = store.meddle_before(5, move |inner| elsewhere::work(inner, now(&time), 7));
        }
        let store = Arc::new(store);
        let engine = Engine::on(store.clone())
            .clock(clock.clone())
            .register_fn(RUN, |ctx, ()| async move {
                let first = ctx.enqueue(NUM, &1).timeout(hours(1)).await?;
                let second: Option<u32> = ctx.listen("more").timeout(hours(1)).await?;
                Ok(json!([first, second]))
            })
            .start()
            .await
            .unwrap();
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        drop(clock.quiet().await);
        assert_eq!(store.writes(), 4);
        if before {
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([7, null]));
        } else {
            // A worker has it when the time runs out.
            let item = elsewhere::claim(store.inner(), now(&clock));
            let held = held.sleep(hours(1)).await;
            drop(clock.quiet().await);
            assert!(elsewhere::settle(store.inner(), now(&clock), item, 7));
            assert_eq!(store.inner().inbox(run.id().no(), 0).unwrap(), []);
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([null, null]));
        }
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_just_before_and_after_a_cancel_leaves_nothing_behind() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let time = clock.clone();
        let mut store = CrashingStore::counting(MemoryStore::new());
        if before {
            // .., park with the wait, the request; the next write is the end of the run.
            store = store.meddle_before(6, move |inner| elsewhere::work(inner, now(&time), 7));
        }
        let store = Arc::new(store);
        let engine = Engine::on(store.clone())
            .clock(clock.clone())
            .register_fn(RUN, |ctx, ()| async move { Ok(json!(ctx.enqueue(NUM, &1).await?)) })
            .start()
            .await
            .unwrap();
        let _held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        drop(clock.quiet().await);
        let item = (!before).then(|| elsewhere::claim(store.inner(), now(&clock)));
        assert!(run.cancel().await.unwrap());
        assert!(run.result().await.is_err());
        assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
        if let Some(item) = item {
            assert!(elsewhere::settle(store.inner(), now(&clock), item, 7));
        }
        assert_eq!(store.inner().inbox(run.id().no(), 0).unwrap(), []);
        let stats = engine.client().queue_stats("num").await.unwrap();
        assert_eq!(stats, Default::default());
        engine.shutdown().await;
    }
}

/// A handler that awaits is dropped. One that blocks its thread is told, and its result is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_item_is_told_and_its_handler_or_its_result_dropped() {
    for blocks in [false, true] {
        let clock = VirtualClock::new();
        let store = testing::store();
        let (began, cancelled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counted = (began.clone(), cancelled.clone());
        let engine = Engine::on(store.clone())
            .clock(clock.clone())
            .register_fn(RUN, |ctx, ()| async move { Ok(json!(ctx.enqueue(NUM, &1).await?)) })
            .work(NUM, 1, move |job: Job, _: u32| {
                let (began, cancelled) = counted.clone();
                async move {
                    began.fetch_add(1, Ordering::SeqCst);
                    let token = job.cancellation().clone();
                    if blocks {
                        while !token.is_cancelled() {
                            std::thread::yield_now();
                        }
                        cancelled.fetch_add(1, Ordering::SeqCst);
                        return Ok(1);
                    }
                    // What it has begun elsewhere is told.
                    tokio::spawn(async move {
                        token.cancelled().await;
                        cancelled.fetch_add(1, Ordering::SeqCst);
                    });
                    std::future::pending().await
                }
            })
            .start()
            .await
            .unwrap();
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        // A handler that has not begun when its item is lost does not begin.
        scenario::until("the handler to begin", async || {
            (began.load(Ordering::SeqCst) == 1).then_some(())
        })
        .await;
        // This process was stopped for an hour, and another took the item.
        let item = elsewhere::claim(&*store, now(&clock) + hours(1));
        clock.advance(minutes(1));
        scenario::until("the handler to be told", async || {
            (cancelled.load(Ordering::SeqCst) == 1).then_some(())
        })
        .await;
        assert_eq!(run.status().await.unwrap(), RunStatus::Sleeping);
        assert!(elsewhere::settle(&*store, now(&clock), item, 7));
        store.wake_others(None, &[run.id().no()]);
        drop(held);
        assert_eq!(run.result().await.unwrap(), json!(7), "{blocks}");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_takes_long_keeps_its_item() {
    let clock = VirtualClock::new();
    let gate = Gate::new();
    let passing = gate.clone();
    let engine = builder(&clock)
        .work(NUM, 2, move |job: Job, _: u32| {
            let gate = passing.clone();
            async move {
                gate.pass().await;
                Ok(job.attempt())
            }
        })
        .start()
        .await
        .unwrap();
    let item = engine.client().enqueue(NUM, &1).await.unwrap();
    drop(clock.sleep(minutes(5)).await);
    let info = item.info().await.unwrap();
    assert_eq!((info.state, info.attempts), (ItemState::Claimed, 1));
    gate.open();
    assert_eq!(item.result().await.unwrap(), 1);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_gives_back_what_it_has() {
    let clock = VirtualClock::new();
    let engine = builder(&clock).start().await.unwrap();
    let client = engine.client();
    let stubborn = client.enqueue(NUM, &1).await.unwrap();
    let polite = client.enqueue(NUM, &2).await.unwrap();
    let worker = engine
        .work(NUM, 2, async |job: Job, n: u32| -> Result<u32> {
            job.cancellation().cancelled().await;
            match n {
                1 => std::future::pending().await,
                _ => Err(Error::msg("asked to stop")),
            }
        })
        .unwrap();
    scenario::until("both claims", async || {
        let stats = client.queue_stats("num").await.unwrap();
        (stats.claimed == 2).then_some(())
    })
    .await;
    worker.stop_within(Duration::from_millis(50)).await;
    engine.work(NUM, 2, async |job: Job, n: u32| Ok(10 * n + job.attempt())).unwrap();
    // Neither attempt has counted, and nobody waited for the visibility to end.
    assert_eq!(stubborn.result().await.unwrap(), 11);
    assert_eq!(polite.result().await.unwrap(), 21);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_items_go_through_two_workers_once_each() {
    let directory = tempfile::tempdir().unwrap();
    let file = SqliteStore::create(directory.path().join("app.db")).unwrap();
    let stores: [Arc<dyn Store>; 2] = [testing::store(), Arc::new(file)];
    for store in stores {
        let load = everstep::testing::queue_load(store, 500, 2, 20).await.unwrap();
        assert_eq!(load.attempts, vec![1; 500]);
    }
}

/// An item that came while a claim was on its way, or with it in one batch, was claimed and then
/// asked for once more: a write for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_meets_its_item_is_the_only_one() {
    let clock = VirtualClock::new();
    let held = clock.hold();
    let armed = Arc::new(AtomicBool::new(false));
    let (reached, mut at_write) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, gone_on) = std::sync::mpsc::channel();
    let store = CrashingStore::counting(MemoryStore::new()).meddle_until({
        let armed = armed.clone();
        move |_| {
            let stop_here = armed.load(Ordering::SeqCst);
            if stop_here {
                reached.send(()).unwrap();
                gone_on.recv().unwrap();
            }
            stop_here
        }
    });
    let store = Arc::new(store);
    let engine = Engine::on(store.clone()).clock(clock.clone()).start().await.unwrap();
    let client = engine.client();
    drop(clock.quiet().await);
    let before = store.counters().writes;
    armed.store(true, Ordering::SeqCst);
    // While this write is held up, the item and the claim come behind it.
    let first = client.enqueue(LEN, &"nobody works on it".to_owned());
    let first = tokio::spawn(first.into_future());
    at_write.recv().await.unwrap();
    let mut second = std::pin::pin!(client.enqueue(NUM, &3).into_future());
    let waits = std::future::poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "it is written before the one in front of it");
    engine.work(NUM, 2, async |_, n: u32| Ok(n)).unwrap();
    go_on.send(()).unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().result().await.unwrap(), 3);
    drop(clock.quiet().await);
    // Two items, a claim and a settlement.
    assert_eq!(store.counters().writes - before, 4);
    drop(held);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_asks_little() {
    let store = testing::store();
    let client = Client::on(store.clone()).unwrap();
    let worker = client.work(NUM, 2, async |_, n: u32| Ok(n)).unwrap();
    let item = client.enqueue(NUM, &3).await.unwrap();
    assert_eq!(item.result().await.unwrap(), 3);
    let begun = std::time::Instant::now();
    let before = store.counters();
    // The only way to see that nothing happens is to wait: until two looks were made. One more read
    // may be the last question about the item.
    scenario::until("two looks", async || {
        let reads = store.counters().reads - before.reads;
        (reads >= 3).then_some(())
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_millis(900));
    assert_eq!(store.counters().batches, before.batches);
    worker.stop().await;
}
