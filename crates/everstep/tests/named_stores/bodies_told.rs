//! Bodies are told that they should stop: on shutdown, on a cancel, at the deadline of their run and after their
//! timeout. What they
//! do then, and what becomes of it. The end of a lease is tested in `engine/thread/tests/ending.rs`.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    Clock, EngineBuilder, EntryStatus, FailureKind, HistoryEntry, RunHandle, RunStatus, Step,
    prelude::*,
    store::{MemoryStore, Store},
    testing::VirtualClock,
};
use scenario::until;

const RUN: Workflow<(), u32> = Workflow::new("run");

/// How the body of the step runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Async,
    Spawned,
    Blocking,
}

const KINDS: [Kind; 3] = [Kind::Async, Kind::Spawned, Kind::Blocking];

/// What the body does when it is told.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// It succeeds.
    Done,
    /// It returns an error.
    GivesUp,
    /// It goes on for ever.
    Ignores,
}

#[derive(Clone)]
struct Body {
    kind: Kind,
    answer: Answer,
    began: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
    undone: Arc<Mutex<Vec<u32>>>,
    timeout: Option<Duration>,
}

impl Body {
    fn new(kind: Kind, answer: Answer) -> Body {
        Body {
            kind,
            answer,
            began: Arc::default(),
            told: Arc::default(),
            undone: Arc::default(),
            timeout: None,
        }
    }

    fn begin(&self) -> u32 {
        1 + self.began.fetch_add(1, Ordering::SeqCst) as u32
    }

    fn end(&self, n: u32) -> Result<u32> {
        self.told.fetch_add(1, Ordering::SeqCst);
        match self.answer {
            Answer::GivesUp => Err(Error::fatal("it was told to stop")),
            _ => Ok(n),
        }
    }

    /// The body; the second time it ends at once.
    async fn run(self, step: Step) -> Result<u32> {
        let n = self.begin();
        if n > 1 {
            return Ok(n);
        }
        if self.answer == Answer::Ignores {
            std::future::pending::<()>().await;
        }
        step.cancellation().cancelled().await;
        self.end(n)
    }

    fn block(&self, step: &Step) -> Result<u32> {
        let n = self.begin();
        while n == 1 && !step.cancellation().is_cancelled() {
            std::thread::yield_now();
        }
        if n > 1 { Ok(n) } else { self.end(n) }
    }

    fn register(&self, builder: EngineBuilder) -> EngineBuilder {
        let body = self.clone();
        builder.register_fn(RUN, move |ctx, ()| {
            let body = body.clone();
            async move {
                let (work, undone) = (body.clone(), body.undone.clone());
                let step = match body.kind {
                    Kind::Async => {
                        ctx.step_with("body", async move |it| work.clone().run(it).await)
                    }
                    Kind::Spawned => ctx.spawn("body", move |it| work.clone().run(it)),
                    Kind::Blocking => ctx.blocking("body", move |it| work.block(&it)),
                };
                let step = step.retry(Retry::never()).rollback(async move |_, n| {
                    undone.lock().unwrap().push(n);
                    Ok(())
                });
                match body.timeout {
                    Some(timeout) => step.timeout(timeout).await,
                    None => step.await,
                }
            }
        })
    }

    async fn until_begun(&self) {
        until("the body", async || (self.began.load(Ordering::SeqCst) > 0).then_some(())).await;
    }

    fn counts(&self) -> (usize, usize) {
        let count = |it: &AtomicUsize| it.load(Ordering::SeqCst);
        (count(&self.began), count(&self.told))
    }
}

async fn entry(run: &RunHandle<u32>) -> Option<HistoryEntry> {
    let all = run.history().await.unwrap();
    let mut found = all.into_iter();
    found.find(|entry| entry.location == "body")
}

/// The token fired only when the body was dropped, after the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_told_when_the_shutdown_begins_and_its_result_is_recorded() {
    for kind in KINDS {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let body = Body::new(kind, Answer::Done);
        let engine = body.register(Engine::on(store.clone()));
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        engine.shutdown().await;
        assert_eq!(body.counts(), (1, 1), "{kind:?}");
        let engine = body.register(Engine::on(store)).start().await.unwrap();
        let run = engine.client().run::<u32>(run.id());
        assert_eq!(run.result().await.unwrap(), 1, "{kind:?}");
        assert_eq!(body.counts().0, 1, "a completed step never runs again");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_gives_up_when_the_shutdown_begins_has_made_no_attempt() {
    for kind in KINDS {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let body = Body::new(kind, Answer::GivesUp);
        let engine = body.register(Engine::on(store.clone()));
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        engine.shutdown().await;
        assert_eq!(body.counts(), (1, 1), "{kind:?}");
        let engine = body.register(Engine::on(store)).start().await.unwrap();
        let run = engine.client().run::<u32>(run.id());
        // It may be tried once, and has not been tried before.
        assert_eq!(run.result().await.unwrap(), 2, "{kind:?}");
        assert_eq!(entry(&run).await.unwrap().attempts, 1);
        engine.shutdown().await;
    }
}

/// The body was dropped at once, so what it had done was not rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_succeeds_within_the_grace_of_a_cancel_is_completed_and_rolled_back() {
    for kind in KINDS {
        let body = Body::new(kind, Answer::Done);
        let clock = VirtualClock::new();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.start().await.unwrap();
        let _held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        run.cancel().with_rollback().await.unwrap();
        run.result().await.unwrap_err();
        assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
        assert_eq!(body.counts(), (1, 1), "{kind:?}");
        assert_eq!(entry(&run).await.unwrap().status, EntryStatus::Completed);
        assert_eq!(*body.undone.lock().unwrap(), [1], "{kind:?}");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_gives_up_within_the_grace_of_a_cancel_is_not_recorded() {
    for kind in KINDS {
        let body = Body::new(kind, Answer::GivesUp);
        let clock = VirtualClock::new();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.start().await.unwrap();
        let _held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        run.cancel().with_rollback().await.unwrap();
        run.result().await.unwrap_err();
        assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
        assert_eq!(body.counts(), (1, 1), "{kind:?}");
        let entry = entry(&run).await;
        assert!(entry.is_none_or(|it| it.status == EntryStatus::Running));
        assert!(body.undone.lock().unwrap().is_empty());
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_goes_on_is_dropped_after_the_grace_of_a_cancel() {
    for kind in [Kind::Async, Kind::Spawned] {
        let body = Body::new(kind, Answer::Ignores);
        let clock = VirtualClock::new();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.settings(|it| it.stop_grace = minutes(5));
        let engine = engine.start().await.unwrap();
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        let cancelled_at = clock.now();
        run.cancel().await.unwrap();
        drop(held);
        run.result().await.unwrap_err();
        let info = run.info().await.unwrap();
        assert_eq!(info.status, RunStatus::Cancelled);
        assert_eq!(info.finished_at, Some(cancelled_at + minutes(5)), "{kind:?}");
        engine.shutdown().await;
    }
}

/// The bodies of a run past its deadline were dropped at once, so what they had done was not rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_succeeds_within_the_grace_of_a_deadline_is_completed_and_rolled_back() {
    for kind in KINDS {
        let body = Body::new(kind, Answer::Done);
        let clock = VirtualClock::new();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.start().await.unwrap();
        let held = clock.hold();
        let client = engine.client();
        let run = client.start(RUN, ()).deadline_after(minutes(1));
        let run = run.await.unwrap();
        body.until_begun().await;
        let deadline = run.info().await.unwrap().deadline_at;
        drop(held);
        let error = run.result().await.unwrap_err();
        assert!(error.to_string().contains("deadline"), "{error}");
        assert_eq!(run.status().await.unwrap(), RunStatus::Failed);
        assert_eq!(body.counts(), (1, 1), "{kind:?}");
        assert_eq!(entry(&run).await.unwrap().status, EntryStatus::Completed);
        assert_eq!(*body.undone.lock().unwrap(), [1], "{kind:?}");
        assert!(run.info().await.unwrap().finished_at >= deadline);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_goes_on_is_dropped_after_the_grace_of_a_deadline() {
    for (kind, is_cancelled) in
        [Kind::Async, Kind::Spawned].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let body = Body::new(kind, Answer::Ignores);
        let clock = VirtualClock::new();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.settings(|it| it.stop_grace = minutes(5));
        let engine = engine.start().await.unwrap();
        let held = clock.hold();
        let client = engine.client();
        let run = client.start(RUN, ()).deadline_after(minutes(1));
        let run = run.await.unwrap();
        body.until_begun().await;
        let begun = clock.now();
        if is_cancelled {
            // The deadline passes within the grace of the cancel, and changes nothing.
            run.cancel().await.unwrap();
        }
        let deadline = run.info().await.unwrap().deadline_at.unwrap();
        drop(held);
        run.result().await.unwrap_err();
        let info = run.info().await.unwrap();
        let (status, from) = match is_cancelled {
            true => (RunStatus::Cancelled, begun),
            false => (RunStatus::Failed, deadline),
        };
        assert_eq!(info.status, status, "{kind:?}");
        assert_eq!(info.finished_at, Some(from + minutes(5)), "{kind:?}");
        engine.shutdown().await;
    }
}

/// A result that comes after the timeout is too late, whatever it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_told_of_its_timeout_and_what_it_gives_then_is_not_recorded() {
    for (kind, answer) in
        KINDS.into_iter().flat_map(|kind| [(kind, Answer::Done), (kind, Answer::GivesUp)])
    {
        let mut body = Body::new(kind, answer);
        body.timeout = Some(minutes(1));
        let clock = VirtualClock::new();
        let began = clock.now();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.settings(|it| it.stop_grace = hours(1));
        let engine = engine.start().await.unwrap();
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        body.until_begun().await;
        let _held = held.sleep(minutes(1)).await;
        let failed = run.result().await.unwrap_err();
        assert_eq!(failed.failure().unwrap().kind, FailureKind::TimedOut);
        assert_eq!(body.counts(), (1, 1), "{kind:?} {answer:?}");
        let entry = entry(&run).await.unwrap();
        assert_eq!((entry.status, entry.attempts), (EntryStatus::TimedOut, 1));
        assert!(body.undone.lock().unwrap().is_empty());
        // It has ended by itself: the clock stands still.
        assert_eq!(entry.completed_at, Some(began + minutes(1)));
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_goes_on_is_dropped_after_the_grace_of_its_timeout() {
    for kind in [Kind::Async, Kind::Spawned] {
        let mut body = Body::new(kind, Answer::Ignores);
        body.timeout = Some(minutes(1));
        let clock = VirtualClock::new();
        let began = clock.now();
        let engine = body.register(Engine::in_memory().clock(clock.clone()));
        let engine = engine.settings(|it| it.stop_grace = minutes(5));
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(RUN, ()).await.unwrap();
        let failed = run.result().await.unwrap_err();
        assert_eq!(failed.failure().unwrap().kind, FailureKind::TimedOut);
        let ended = entry(&run).await.unwrap().completed_at.unwrap();
        assert_eq!(ended, began + minutes(6), "{kind:?}");
        engine.shutdown().await;
    }
}

/// A future that is dropped is not polled again: there is nothing to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_select_drops_its_body_at_once_and_fires_the_token() {
    let token = Arc::new(Mutex::new(None));
    let kept = token.clone();
    let code = move |ctx: Ctx, ()| {
        let kept = kept.clone();
        async move {
            let slow = ctx.step_with("body", async |step: Step| {
                *kept.lock().unwrap() = Some(step.cancellation().clone());
                std::future::pending::<()>().await;
                Ok(())
            });
            everstep::select! {
                slow = slow => slow?,
                slept = ctx.sleep("nap", minutes(1)) => { slept?; }
            }
            Ok(7)
        }
    };
    let clock = VirtualClock::new();
    let began = clock.now();
    let engine = Engine::in_memory().clock(clock).register_fn(RUN, code);
    let engine = engine.settings(|it| it.stop_grace = hours(1));
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
    let info = run.info().await.unwrap();
    assert_eq!(info.finished_at, Some(began + minutes(1)));
    assert!(token.lock().unwrap().as_ref().unwrap().is_cancelled());
    engine.shutdown().await;
}
