//! Workflows that await something which is not durable: found at once and paused, and no program
//! that only looks like one is.
//!
//! On replay such an await would not come at the same place again, so the run would differ. A
//! paused run is kept as it is and goes on with mended code.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{pin::Pin, task::Poll, time::Duration};

use everstep::{prelude::*, store::MemoryStore, testing::VirtualClock};
use futures::{StreamExt, stream::FuturesUnordered};
use scenario::{until_at_rest, until_paused};

const WORK: Workflow<(), u32> = Workflow::new("work");

fn engine(store: &MemoryStore) -> everstep::EngineBuilder {
    // On virtual time, so that durable sleeps end at once.
    Engine::on(std::sync::Arc::new(store.clone())).clock(VirtualClock::new())
}

/// The program runs to its end and is not suspected.
async fn runs_clean<F, R>(program: F)
where
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = Result<()>> + 'static,
{
    let engine = engine(&MemoryStore::new()).register_fn(WORK, move |ctx, ()| {
        let program = program(ctx);
        async move {
            program.await?;
            Ok(1)
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, ()).await.unwrap();
    let ended = until_at_rest(&run).await;
    assert_eq!(ended.status, everstep::RunStatus::Completed, "{ended:?}");
    engine.shutdown().await;
}

/// The program is paused for this reason; what it had done stands, and mended code goes on from it.
async fn is_paused<F, R>(reason: &str, program: F)
where
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = Result<()>> + 'static,
{
    let store = MemoryStore::new();
    let broken = engine(&store).register_fn(WORK, move |ctx: Ctx, ()| {
        let program = program(ctx.clone());
        async move {
            ctx.step("before", async || Ok(())).await?;
            program.await?;
            Ok(1)
        }
    });
    let broken = broken.start().await.unwrap();
    let run = broken.client().start(WORK, ()).await.unwrap();
    let expected = format!(
        "the workflow awaits something that is not durable: {reason}; put it into a `ctx.step`, or \
         use `ctx.sleep`, `ctx.listen` and the other operations"
    );
    assert_eq!(until_paused(&run).await, expected);
    broken.shutdown().await;

    let mended = engine(&store).register_fn(WORK, |ctx: Ctx, ()| async move {
        let again = async || -> Result<()> { Err(Error::fatal("a completed step ran again")) };
        ctx.step("before", again).await?;
        // What the broken code had begun is gone from the mended code, and is named.
        let never = ctx.removed("never", everstep::EntryKind::Listen);
        let body = ctx.removed("body", everstep::EntryKind::Step);
        never.await?;
        body.await?;
        Ok(2)
    });
    let mended = mended.start().await.unwrap();
    assert_eq!(mended.recovery().paused, 1);
    // It goes on by itself, since this code does what the history has.
    let run = mended.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 2);
    mended.shutdown().await;
}

const OUTSIDE: &str = "it was woken from outside";
const FROM_BODY: &str = "it was woken from inside the body of a step";
const NOTHING: &str = "it is at rest with nothing durable to wait for";

fn millis(n: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(n))
}

/// A short sleep that is not over when it is first polled, however long that takes on a busy
/// machine: it wakes whoever polls it.
fn short_sleep() -> impl Future<Output = ()> {
    let mut begun: Option<Pin<Box<tokio::time::Sleep>>> = None;
    std::future::poll_fn(move |cx| {
        if let Some(sleep) = &mut begun {
            return sleep.as_mut().poll(cx);
        }
        loop {
            let mut sleep = Box::pin(millis(2));
            if sleep.as_mut().poll(cx).is_pending() {
                begun = Some(sleep);
                return Poll::Pending;
            }
        }
    })
}

/// A sleep that does not end while a test runs.
fn long_sleep() -> tokio::time::Sleep {
    millis(600_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_sleep_on_real_time() {
    runs_clean(async |ctx: Ctx| {
        ctx.step("body", async || {
            let _: () = millis(10).await;
            Ok(())
        })
        .await?;
        ctx.sleep("a", hours(1)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_and_a_durable_wait_may_be_joined() {
    runs_clean(async |ctx: Ctx| {
        let body = ctx.step("body", async || {
            let _: () = millis(20).await;
            Ok(())
        });
        tokio::try_join!(body, ctx.sleep("a", hours(1)))?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_durable_waits_may_be_in_a_futures_unordered() {
    runs_clean(async |ctx: Ctx| {
        let wait = |n| ctx.scope(&format!("{n}")).sleep("a", seconds(n));
        let mut waits: FuturesUnordered<_> = (0..100).map(wait).collect();
        while let Some(fired) = waits.next().await {
            fired?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_steps_may_be_joined() {
    runs_clean(async |ctx: Ctx| {
        let step = |n: u64| {
            let scope = ctx.scope(&format!("{n}"));
            scope.step("body", async move || {
                let _: () = millis(n % 7).await;
                Ok(())
            })
        };
        futures::future::try_join_all((0..100).map(step)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_durable_waits_may_be_selected() {
    runs_clean(async |ctx: Ctx| {
        everstep::select! {
            fired = ctx.sleep("a", hours(2)) => drop(fired?),
            fired = ctx.sleep("b", hours(1)) => drop(fired?),
        }
        ctx.sleep("c", hours(1)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_between_two_branches_of_one_run_is_no_foreign_await() {
    runs_clean(async |ctx: Ctx| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let first = async {
            ctx.sleep("a", hours(1)).await?;
            _ = sender.send(1);
            Ok::<_, Error>(())
        };
        let second = async {
            receiver.await?;
            ctx.sleep("b", hours(1)).await
        };
        tokio::try_join!(first, second)?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_join_a_spawned_task() {
    runs_clean(async |ctx: Ctx| {
        let body = async || Ok(tokio::spawn(async { millis(3).await }).await?);
        ctx.step("body", body).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn yielding_between_two_waits_is_no_foreign_await() {
    runs_clean(async |ctx: Ctx| {
        ctx.sleep("a", hours(1)).await?;
        tokio::task::yield_now().await;
        ctx.sleep("b", hours(1)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_never_wakes_may_lose_against_durable_waits() {
    runs_clean(async |ctx: Ctx| {
        let waits = async {
            for _ in 0..5 {
                ctx.sleep("a", hours(1)).await?;
            }
            Ok::<_, Error>(())
        };
        everstep::select! {
            () = std::future::pending() => {}
            done = waits => done?,
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_that_is_never_contended_is_no_foreign_await() {
    runs_clean(async |ctx: Ctx| {
        let mutex = tokio::sync::Mutex::new(1);
        let _guard = mutex.lock().await;
        ctx.sleep("a", hours(1)).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_wakes_itself_a_few_times_is_no_foreign_await() {
    runs_clean(async |_: Ctx| {
        let mut polls = 0;
        let busy = std::future::poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls > 50 { Poll::Ready(()) } else { Poll::Pending }
        });
        busy.await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_sleep_alone_pauses_the_run() {
    is_paused(NOTHING, async |_: Ctx| {
        let _: () = long_sleep().await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_sleep_beside_a_durable_wait_pauses_the_run() {
    is_paused(OUTSIDE, async |ctx: Ctx| {
        // A message that never comes, so that virtual time does not overtake the real sleep.
        let wait = ctx.listen::<()>("never");
        let (_, never) = tokio::join!(short_sleep(), wait);
        never
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_sleep_beside_a_running_step_pauses_the_run() {
    is_paused(OUTSIDE, async |ctx: Ctx| {
        let body = ctx.step("body", async || {
            let _: () = millis(10_000).await;
            Ok(())
        });
        let (_, done) = tokio::join!(short_sleep(), body);
        done
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_handle_awaited_in_the_workflow_pauses_the_run() {
    is_paused(NOTHING, async |_: Ctx| Ok(tokio::spawn(long_sleep()).await?)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_task_awaited_in_the_workflow_pauses_the_run() {
    is_paused(NOTHING, async |_: Ctx| Ok(tokio::task::spawn_local(long_sleep()).await?)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_fed_by_another_thread_pauses_the_run() {
    is_paused(OUTSIDE, async |ctx: Ctx| {
        let (sender, mut receiver) = tokio::sync::oneshot::channel::<()>();
        let (polled, was_polled) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Not before somebody waits for it.
            was_polled.recv().unwrap();
            sender.send(())
        });
        let receiver = std::future::poll_fn(move |cx| {
            let received = Pin::new(&mut receiver).poll(cx);
            _ = polled.send(());
            received
        });
        let mut all = FuturesUnordered::<Pin<Box<dyn Future<Output = Result<()>>>>>::new();
        all.push(Box::pin(async { Ok(receiver.await?) }));
        all.push(Box::pin(ctx.listen::<()>("never")));
        while let Some(done) = all.next().await {
            done?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_fed_by_a_body_pauses_the_run() {
    is_paused(FROM_BODY, async |ctx: Ctx| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let sender = std::cell::Cell::new(Some(sender));
        let body = ctx.step("body", async || {
            millis(3).await;
            sender.take().map(|sender| sender.send(()));
            let _: () = millis(10_000).await;
            Ok(())
        });
        let (done, told) = tokio::join!(body, receiver);
        told?;
        done
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_never_wakes_pauses_the_run() {
    is_paused(NOTHING, async |_: Ctx| {
        let _: () = std::future::pending().await;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_wakes_itself_for_ever_is_paused() {
    let engine = engine(&MemoryStore::new()).register_fn(WORK, |_, ()| async {
        let busy = std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        busy.await;
        Ok(1)
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, ()).await.unwrap();
    let expected = "the workflow never comes to rest: it wakes itself in every poll; await only \
                    operations of `ctx`";
    assert_eq!(until_paused(&run).await, expected);
    engine.shutdown().await;
}
