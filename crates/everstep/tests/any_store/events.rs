//! Events and dead letters, through the whole engine.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use everstep::{
    Clock, Deliver, IfFinished, PublishedEvent, Replayed, RunStatus, Sent, Since, Workflow,
    prelude::*,
    store::{Batch, Control, MemoryStore, Publication, Store, Target, Write},
    testing::{self, CrashTest, CrashingStore, Ledger, VirtualClock},
};
use scenario::{until, until_status};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");
const OTHER: Workflow<u32, Json> = Workflow::new("other");
const PAID: Event<u32> = Event::new("paid");
const JOB: Event<u32> = Event::new("job").delivery(Deliver::One);
const NEWS: Event<u32> = Event::new("news").since(Since::Wait);

async fn engine_on<R>(
    store: Arc<dyn Store>,
    clock: &Arc<VirtualClock>,
    code: impl Fn(Ctx, u32) -> R + Send + Sync + 'static,
) -> Engine
where
    R: Future<Output = Result<Json>> + 'static,
{
    Engine::on(store)
        .clock(clock.clone())
        .provide(Ledger::new())
        .register_fn(RUN, code)
        .register_fn(OTHER, |ctx: Ctx, _| async move {
            let first: u32 = ctx.event(JOB).await?;
            Ok(json!(first))
        })
        .start()
        .await
        .unwrap()
}

macro_rules! engine {
    ($clock:expr, |$ctx:ident, $n:ident| $code:block) => {
        engine_on(testing::store(), $clock, |$ctx: Ctx, $n: u32| async move {
            _ = $n;
            $code
        })
        .await
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_reaches_a_run_before_and_after_it_waits() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        let mine: u32 = ctx.event(PAID).matching(format!("order-{n}")).await?;
        let none: Option<u32> = ctx.event(PAID).matching("never").timeout(hours(1)).await?;
        Ok(json!([mine, none]))
    });
    let client = engine.client();
    let held = clock.hold();
    let waiting = client.start(RUN, 1).await.unwrap();
    until_status(&waiting, RunStatus::Sleeping).await;
    let told = client.publish(PAID, &10).key("order-1").await.unwrap();
    assert!(matches!(told, PublishedEvent::Published { told: 1, kept: true, .. }), "{told:?}");
    let kept = client.publish(PAID, &20).key("order-2").await.unwrap();
    assert!(matches!(kept, PublishedEvent::Published { told: 0, kept: true, .. }), "{kept:?}");
    let late = client.start(RUN, 2).await.unwrap();
    drop(held);
    assert_eq!(waiting.result().await.unwrap(), json!([10, null]));
    assert_eq!(late.result().await.unwrap(), json!([20, null]));
    let row = client.event("paid").await.unwrap().unwrap();
    assert_eq!((row.published, row.waiting), (2, 0));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_sees_every_event_once_and_in_order() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        let mut seen = Vec::new();
        while seen.len() < n as usize {
            seen.push(ctx.event(PAID).await?);
            ctx.step("between", async || Ok(())).await?;
        }
        Ok(json!(seen))
    });
    let client = engine.client();
    client.publish_json("paid", &json!(0)).await.unwrap();
    let run = client.start(RUN, 50).await.unwrap();
    for n in 1..50 {
        client.publish(PAID, &n).await.unwrap();
    }
    let expected: Vec<u32> = (0..50).collect();
    assert_eq!(run.result().await.unwrap(), json!(expected));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn since_wait_sees_only_what_comes_later() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        Ok(json!(ctx.event(NEWS).timeout(hours(u64::from(n))).await?))
    });
    let client = engine.client();
    client.publish(NEWS, &1).await.unwrap();
    let never = client.start(RUN, 1).await.unwrap();
    assert_eq!(never.result().await.unwrap(), json!(null));
    let held = clock.hold();
    let later = client.start(RUN, 1).await.unwrap();
    until_status(&later, RunStatus::Sleeping).await;
    client.publish(NEWS, &2).await.unwrap();
    drop(held);
    assert_eq!(later.result().await.unwrap(), json!(2));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_publishes_what_another_waits_for() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        ctx.publish(JOB, &n).key("any").await?;
        Ok(json!(null))
    });
    let client = engine.client();
    let worker = client.start(OTHER, 0).await.unwrap();
    client.start(RUN, 7).await.unwrap().result().await.unwrap();
    assert_eq!(worker.result().await.unwrap(), json!(7));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_loses_a_race_leaves_the_event_to_the_next() {
    // The winner is a message that was sent before, the loser has its event in hand.
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        let first = ctx.race("either", (ctx.listen::<u32>("word"), ctx.event(JOB))).await?;
        let again = select_again(&ctx, n).await?;
        Ok(match first {
            First2::A(word) => json!(["word", word, again]),
            First2::B(job) => json!(["job", job, again]),
        })
    });
    let client = engine.client();
    let held = clock.hold();
    // The word wins, and the event stays for the run itself, which asks again.
    let run = client.start(RUN, 1).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    run.pause().await.unwrap();
    run.send("word", &1).await.unwrap();
    client.publish(JOB, &2).await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(["word", 1, 2]));
    // The same, and another run has waited longer than the second wait of the first.
    let run = client.start(RUN, 0).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    let other = client.start(OTHER, 0).await.unwrap();
    until_status(&other, RunStatus::Sleeping).await;
    run.pause().await.unwrap();
    run.send("word", &1).await.unwrap();
    client.publish(JOB, &3).await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(other.result().await.unwrap(), json!(3));
    // And the other way round: the event wins, and no word is missed.
    let run = client.start(RUN, 0).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    client.publish(JOB, &4).await.unwrap();
    drop(held);
    assert_eq!(run.result().await.unwrap(), json!(["job", 4, null]));
    engine.shutdown().await;
}

/// Waits again for a job, in a plain `select!`, for `n` hours.
async fn select_again(ctx: &Ctx, n: u32) -> Result<Option<u32>> {
    if n == 0 {
        return Ok(None);
    }
    everstep::select! {
        job = ctx.event(JOB) => job.map(Some),
        _ = ctx.sleep("patience", hours(u64::from(n))) => Ok(None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_passes_its_event_on() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| { Ok(json!([n, ctx.event(JOB).await?])) });
    let client = engine.client();
    let _held = clock.hold();
    let first = client.start(RUN, 1).await.unwrap();
    until_status(&first, RunStatus::Sleeping).await;
    let second = client.start(RUN, 2).await.unwrap();
    until_status(&second, RunStatus::Sleeping).await;
    // It has the event and cannot take it; then it is cancelled.
    first.pause().await.unwrap();
    client.publish(JOB, &5).await.unwrap();
    assert_eq!(second.status().await.unwrap(), RunStatus::Sleeping);
    assert!(first.cancel().await.unwrap());
    assert_eq!(second.result().await.unwrap(), json!([2, 5]));
    assert_eq!(first.status().await.unwrap(), RunStatus::Cancelled);
    engine.shutdown().await;
}

/// Publishes as another process does.
fn publish(store: &MemoryStore, deliver: Deliver, body: u8) {
    let publication = Publication {
        name: if deliver == Deliver::One { "job" } else { "paid" }.to_owned(),
        key: None,
        // A small number is one byte of CBOR.
        body: vec![body],
        deliver,
        retain: days(1),
        max_pending: 100,
        dedupe: None,
    };
    write(store, Write::Publish(Box::new(publication)));
}

fn write(store: &MemoryStore, write: Write) {
    // The virtual clock begins later, so what is kept is kept from then on.
    let now = VirtualClock::new().now();
    let writes = vec![write];
    let batch = Batch { now, writes, ..Batch::default() };
    store.commit(&batch).unwrap();
}

fn cancel(store: &MemoryStore) {
    let target = Target::Key { workflow: "run".to_owned(), key: "k".to_owned() };
    write(store, Write::Control(target, Control::Cancel { rollback: false }));
}

/// Runs two waits for an event while something happens to the store just before the n-th write.
async fn seen_with(write: u64, meddle: impl FnOnce(&MemoryStore) + Send + 'static) -> (Json, u64) {
    let clock = VirtualClock::new();
    let store = CrashingStore::counting(MemoryStore::new()).meddle_before(write, meddle);
    let engine = engine_on(Arc::new(store), &clock, |ctx, _| async move {
        let first = ctx.event(JOB).timeout(hours(1)).await?;
        let at = ctx.now();
        let second = ctx.event(JOB).timeout(hours(1)).await?;
        Ok(json!([first, second, ctx.now().since(at).as_secs()]))
    })
    .await;
    let client = engine.client();
    let run = client.start(RUN, 0).key("k").await.unwrap();
    let seen = match run.result().await {
        Ok(seen) => seen,
        Err(_) => json!("cancelled"),
    };
    let row = client.event("job").await.unwrap();
    engine.shutdown().await;
    (seen, row.map_or(0, |row| row.kept))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_while_a_run_subscribes_parks_times_out_or_ends_is_neither_lost_nor_doubled() {
    // Entering, taking shards and the start are three writes; the fourth registers the wait and
    // parks the run, the fifth is the timeout of the first wait, the sixth registers the second
    // and parks, the seventh is its timeout, and the end.
    let job = |store: &MemoryStore| publish(store, Deliver::One, 7);
    assert_eq!(seen_with(4, job).await, (json!([7, null, 3600]), 0));
    assert_eq!(seen_with(5, job).await, (json!([7, null, 3600]), 0));
    assert_eq!(seen_with(6, job).await, (json!([null, 7, 0]), 0));
    assert_eq!(seen_with(7, job).await, (json!([null, 7, 3600]), 0));
    let (seen, kept) = seen_with(8, job).await;
    assert_eq!(seen, json!([null, null, 3600]));
    assert!(kept <= 1, "it came after the end, or not at all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_meets_an_event_in_both_orders() {
    // Both before the fifth write, in one order and in the other: the run is cancelled, and the
    // event is nobody's.
    let event_first = |store: &MemoryStore| {
        publish(store, Deliver::One, 7);
        cancel(store);
    };
    assert_eq!(seen_with(5, event_first).await, (json!("cancelled"), 1));
    let cancel_first = |store: &MemoryStore| {
        cancel(store);
        publish(store, Deliver::One, 7);
    };
    assert_eq!(seen_with(5, cancel_first).await, (json!("cancelled"), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broadcast_reaches_1000_waiters_and_more_than_a_page() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| { Ok(json!(n + ctx.event(PAID).await?)) });
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..1_100 {
        runs.push(client.start(RUN, n).await.unwrap());
    }
    until("all to wait", async || {
        let row = client.event("paid").await.unwrap()?;
        (row.waiting == 1_100).then_some(())
    })
    .await;
    let published = client.publish(PAID, &5).await.unwrap();
    assert!(
        matches!(published, PublishedEvent::Published { told: 1_000, spreading: true, .. }),
        "{published:?}"
    );
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), json!(n + 5));
    }
    engine.shutdown().await;
}

/// Workers that take three jobs each.
fn workers(path: &Path) -> everstep::EngineBuilder {
    Engine::open(path)
        .register_fn(RUN, |ctx: Ctx, n: u32| async move {
            let mut taken = Vec::new();
            while taken.len() < n as usize {
                taken.push(ctx.event(JOB).await?);
                ctx.step("work", async || Ok(())).await?;
            }
            Ok(json!(taken))
        })
        .settings(|settings| {
            settings.heartbeat = Some(Duration::from_millis(50));
            settings.threads = 1;
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_for_one_has_one_receiver_over_restarts_and_two_engines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let first = workers(&path).start().await.unwrap();
    let second = workers(&path).start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..40 {
        let client = if n % 2 == 0 { first.client() } else { second.client() };
        let key = format!("worker-{n}");
        runs.push(client.start(RUN, 3).key(key).await.unwrap().id());
    }
    for job in 0..40 {
        second.client().publish(JOB, &job).await.unwrap();
    }
    // One engine goes, another comes, and the rest is published in between.
    first.shutdown().await;
    for job in 40..80 {
        second.client().publish(JOB, &job).await.unwrap();
    }
    let third = workers(&path).start().await.unwrap();
    second.shutdown().await;
    let client = third.client();
    for job in 80..120 {
        client.publish(JOB, &job).await.unwrap();
    }
    let mut taken = Vec::new();
    for run in runs {
        let jobs: Vec<u32> =
            serde_json::from_value(client.run::<Json>(run).result().await.unwrap()).unwrap();
        taken.extend(jobs);
    }
    assert_eq!(taken.len(), 120);
    let distinct: BTreeSet<u32> = taken.into_iter().collect();
    assert_eq!(distinct, (0..120).collect(), "each job once");
    let row = client.event("job").await.unwrap().unwrap();
    assert_eq!((row.kept, row.dropped), (0, 0));
    third.shutdown().await;
}

macro_rules! crash {
    ($primitives:expr, |$ctx:ident| $code:block) => {
        CrashTest::new(RUN, 7)
            .of(&$primitives)
            .engine(|builder| builder.register_fn(RUN, |$ctx: Ctx, _: u32| async move { $code }))
    };
}

fn waiting_and_publishing() -> CrashTest {
    crash!(["event", "publish"], |ctx| {
        ctx.publish(PAID, &1).key("own").await?;
        let own: u32 = ctx.event(PAID).matching("own").await?;
        let job: u32 = ctx.event(JOB).await?;
        ctx.step_with("work", async |step: Step| {
            step.get::<Ledger>().ran(step.location());
            Ok(())
        })
        .await?;
        let late = ctx.event(JOB).timeout(hours(1)).await?;
        let won = ctx.race("either", (ctx.event(PAID), ctx.sleep("nap", hours(1)))).await?;
        let first = match won {
            First2::A(first) => json!(first),
            First2::B(_) => json!("nap"),
        };
        Ok(json!([own, job, late, first]))
    })
    .publish(JOB, &2)
    .at(hours(3))
    .publish(PAID, &3)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_publishing_survive_every_crash() {
    let report = waiting_and_publishing().await;
    // The race sees the first broadcast, which the run had only seen under its key.
    assert_eq!(report.expected.output, Some(json!([1, 2, null, 1])));
    assert!(report.has_more_than(20), "{report}");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_publishing_survive_every_power_cut() {
    let report = waiting_and_publishing().power_cuts().await;
    assert!(report.points > 20, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_that_an_event_loses_survives_every_crash() {
    let report = crash!(["event"], |ctx| {
        let won = ctx.race("either", (ctx.event(JOB), ctx.listen::<u32>("word"))).await?;
        let second: u32 = ctx.event(JOB).await?;
        Ok(match won {
            First2::A(job) => json!(["job", job, second]),
            First2::B(word) => json!(["word", word, second]),
        })
    })
    .send("word", &1)
    .publish(JOB, &2)
    .await;
    assert_eq!(report.expected.output, Some(json!(["word", 1, 2])));
    assert!(report.has_more_than(10), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_that_is_retried_waits_again() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        let first: u32 = ctx.event(PAID).await?;
        let ledger = ctx.get::<Ledger>().clone();
        let step = ctx.step("fails", async || {
            ledger.ran("try");
            if ledger.count("try") == 1 {
                return Err(Error::fatal("not yet"));
            }
            Ok(())
        });
        let (second, third, ()) = tokio::try_join!(ctx.event(PAID), ctx.event(JOB), step)?;
        Ok(json!([first, second, third]))
    });
    let client = engine.client();
    let run = client.start(RUN, 0).await.unwrap();
    client.publish(PAID, &1).await.unwrap();
    run.result().await.unwrap_err();
    for name in ["paid", "job"] {
        let row = client.event(name).await.unwrap().unwrap();
        assert_eq!(row.waiting, 0, "{row:?}");
    }
    // Nobody waits; what comes now is kept until the run is tried again.
    client.publish(PAID, &2).await.unwrap();
    client.publish(JOB, &3).await.unwrap();
    run.retry().await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([1, 2, 3]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_generation_sees_only_what_the_run_has_not_seen() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        let seen: u32 = ctx.event(PAID).await?;
        ctx.event(PAID).await?;
        if n < 2 {
            return ctx.continue_as(n + 1).await;
        }
        Ok(json!([n, seen]))
    });
    let client = engine.client();
    for n in [10, 11, 12, 13, 14, 15] {
        client.publish(PAID, &n).await.unwrap();
    }
    let run = client.start(RUN, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([2, 14]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_finished_run_follows_its_policy() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        match n {
            // Ends at once.
            0 => Ok(json!(null)),
            1 => Ok(json!(ctx.event(PAID).await?)),
            _ => {
                let ended: u32 = ctx.listen("ended").await?;
                let run = ("run", "ended");
                let plain = ctx.send(run, "word", &ended).await.is_err();
                ctx.send(run, "word", &(ended + 1)).if_finished(IfFinished::DeadLetter).await?;
                ctx.send(run, "word", &(ended + 2))
                    .if_finished(IfFinished::Publish("paid".to_owned()))
                    .await?;
                Ok(json!(plain))
            }
        }
    });
    let client = engine.client();
    let ended = client.start(RUN, 0).key("ended").await.unwrap();
    ended.result().await.unwrap();
    let waiter = client.start(RUN, 1).await.unwrap();
    let sender = client.start(RUN, 2).await.unwrap();
    sender.send("ended", &10).await.unwrap();
    assert_eq!(sender.result().await.unwrap(), json!(true));
    assert_eq!(waiter.result().await.unwrap(), json!(12));
    let outside = ended.send("word", &1).if_finished(IfFinished::DeadLetter);
    assert_eq!(outside.await.unwrap(), Sent::DeadLettered);
    ended.send("word", &2).await.unwrap_err();
    let letters = client.dead_letters().run(ended.id()).await.unwrap().letters;
    let bodies: Vec<Json> = letters.iter().map(|letter| letter.body.clone()).collect();
    assert_eq!(bodies, [json!(10), json!(11), json!(1)]);
    assert_eq!(letters[0].reason, "the run had ended");
    assert_eq!(letters[0].status, Some(RunStatus::Completed));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_replayed_and_dropped() {
    let clock = VirtualClock::new();
    let engine = engine!(&clock, |ctx, n| {
        if n == 0 {
            return Ok(json!(null));
        }
        Ok(json!(ctx.listen::<u32>("word").await?))
    });
    let client = engine.client();
    let ended = client.start(RUN, 0).await.unwrap();
    ended.result().await.unwrap();
    for n in 1..=5 {
        let dead = ended.send("word", &n).if_finished(IfFinished::DeadLetter);
        dead.await.unwrap();
    }
    let page = client.dead_letters().name("word").limit(2).await.unwrap();
    assert_eq!(page.letters.len(), 2);
    let rest = client.dead_letters().after(page.next.unwrap()).await.unwrap();
    assert_eq!((rest.letters.len(), rest.next), (3, None));
    let no = page.letters[0].no;
    let refused = client.replay_dead_letter(no).await.unwrap();
    assert_eq!(refused, Replayed::Refused { reason: "the run had ended" });
    let live = client.start(RUN, 1).await.unwrap();
    let replayed = client.replay_dead_letter(no).to(live.id()).await.unwrap();
    assert_eq!(replayed, Replayed::Delivered { run: live.id() });
    assert_eq!(live.result().await.unwrap(), json!(1));
    assert_eq!(client.replay_dead_letter(no).await.unwrap(), Replayed::Unknown);
    let worker = client.start(OTHER, 0).await.unwrap();
    let event = client.replay_dead_letter(page.letters[1].no).as_event("job");
    assert!(matches!(event.await.unwrap(), Replayed::Published { .. }));
    assert_eq!(worker.result().await.unwrap(), json!(2));
    let all = client.dead_letters().replay_all().await.unwrap();
    assert_eq!((all.replayed, all.refused), (0, 3));
    assert!(client.drop_dead_letter(rest.letters[0].no).await.unwrap());
    assert!(!client.drop_dead_letter(rest.letters[0].no).await.unwrap());
    assert_eq!(client.dead_letters().name("word").drop_all().await.unwrap(), 2);
    assert!(client.dead_letters().await.unwrap().letters.is_empty());
    engine.shutdown().await;
}
