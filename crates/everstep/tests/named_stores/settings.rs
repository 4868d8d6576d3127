//! Settings that cannot work are refused, and the error names them.

#![allow(clippy::unwrap_used)]

use std::{error::Error as _, ops::ControlFlow, time::Duration};

use everstep::{
    EngineBuilder, FailureKind, Queue, Settings, StartError, WorkflowOptions, prelude::*,
    testing::VirtualClock,
};

const RUN: Workflow<u32, u32> = Workflow::new("run");

/// What the start of an engine is refused with, and the cause.
async fn refused(builder: EngineBuilder) -> (StartError, String) {
    let Err(error) = builder.start().await else {
        panic!("the engine has started");
    };
    let mut causes = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    let text = causes.join(": ");
    (error, text)
}

async fn refused_with(change: impl FnOnce(&mut Settings)) -> String {
    let (error, text) = refused(Engine::in_memory().settings(change)).await;
    assert!(matches!(error, StartError::Settings(_)), "{text}");
    text
}

/// Two healthy processes took each other's runs, and one body began three times without a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shorter_than_the_heartbeat_is_refused_at_start() {
    let text = refused_with(|it| {
        it.lease = seconds(2);
        it.heartbeat = Some(seconds(3));
    })
    .await;
    assert!(text.contains("`lease` is 2s and `heartbeat` is 3s"), "{text}");
    // A single late heartbeat must not cost the lease.
    let text = refused_with(|it| {
        it.lease = seconds(2);
        it.heartbeat = Some(Duration::from_millis(1_001));
    })
    .await;
    assert!(text.contains("at least twice the heartbeat"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_set_alone_has_a_heartbeat_that_fits() {
    let engine = Engine::in_memory().settings(|it| it.lease = seconds(2));
    engine.start().await.unwrap().shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zeros_and_impossible_values_are_refused_at_start() {
    let text = refused_with(|it| it.lease = Duration::ZERO).await;
    assert!(text.contains("`lease` is 0ns, and must be at least 100ms"));
    let text = refused_with(|it| it.heartbeat = Some(Duration::ZERO)).await;
    assert!(text.contains("`heartbeat` is 0ns, and must be at least 1ms"));
    let text = refused_with(|it| it.max_live_runs = 0).await;
    assert!(text.contains("`max_live_runs` is 0, and must be at least 1"));
    let text = refused_with(|it| it.threads = 257).await;
    assert!(text.contains("`threads` is 257, and must be at most 256"));
    let text = refused_with(|it| it.default_retry = Retry::exponential(0)).await;
    assert!(text.contains("`default_retry` is 0, and must be at least 1"));
    // Such a limit made the shutdown panic.
    let text = refused_with(|it| it.shutdown_limit = Duration::MAX).await;
    assert!(text.contains("`shutdown_limit` is 18446744073709551615"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_may_never_be_tried_is_refused_at_start() {
    let with = |options: WorkflowOptions| {
        Engine::in_memory().register_fn_with(RUN, options, |_, n| async move { Ok(n) })
    };
    let options = WorkflowOptions::new().retry(Retry::exponential(0));
    let (_, text) = refused(with(options)).await;
    assert!(text.contains("workflow `run` cannot be registered"), "{text}");
    assert!(text.contains("`retry` is 0, and must be at least 1"), "{text}");
    let options = WorkflowOptions::new().deadline(Duration::ZERO);
    let (_, text) = refused(with(options)).await;
    assert!(text.contains("`deadline` is 0ns"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_could_never_work_is_refused() {
    const QUEUE: Queue<u32, u32> = Queue::new("queue");
    let work = |queue: Queue<u32, u32>, concurrency| {
        let code = |_, n| async move { Ok(n) };
        Engine::in_memory().work(queue, concurrency, code)
    };
    let (_, text) = refused(work(QUEUE, 0)).await;
    assert!(text.contains("`concurrency` is 0"), "{text}");
    let (_, text) = refused(work(QUEUE.attempts(0), 1)).await;
    assert!(text.contains("`attempts` is 0"), "{text}");
    let (_, text) = refused(work(QUEUE.visibility(Duration::ZERO), 1)).await;
    assert!(text.contains("`visibility` is 0ns, and must be at least 3ms"), "{text}");
    let engine = Engine::in_memory().start().await.unwrap();
    let error = engine.work(QUEUE, 0, |_, n| async move { Ok(n) }).unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("`concurrency` is 0"), "{cause}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_with_a_value_that_cannot_work_fails_and_names_it() {
    let code = |ctx: Ctx, n: u32| async move {
        let step = || ctx.step("step", async || Ok(1));
        let repeat =
            || ctx.repeat("loop", 0, async |_, n: u32| Ok(ControlFlow::<u32, u32>::Break(n)));
        match n {
            0 => step().retry(Retry::exponential(0)).await,
            1 => step().timeout(Duration::ZERO).await,
            2 => {
                let undone = step().rollback(async |_, _| Ok(()));
                undone.rollback_retry(Retry::fixed(0, seconds(1))).await
            }
            3 => repeat().commit_every(0).await,
            4 => repeat().history_every(0).await,
            5 => repeat().history_keep(0).await,
            6 => {
                let items = ctx.map("map", [1, 2], async |_, n: u32| Ok(n));
                items.concurrency(0).await.map(|all| all[0])
            }
            _ => {
                let batch = ctx.listen::<u32>("go").batch(0).await;
                batch.map(|all| all[0])
            }
        }
    };
    let clock = VirtualClock::new();
    let engine = Engine::in_memory().clock(clock).register_fn(RUN, code);
    let engine = engine.start().await.unwrap();
    for (n, named) in [
        "`attempts` is 0, and must be at least 1",
        "`timeout` is 0ns, and must be at least 1ms",
        "`attempts` is 0, and must be at least 1",
        "`commit_every` is 0, and must be at least 1",
        "`history_every` is 0, and must be at least 1",
        "`history_keep` is 0, and must be at least 1",
        "`concurrency` is 0, and must be at least 1",
        "`batch` is 0, and must be at least 1",
    ]
    .into_iter()
    .enumerate()
    {
        let run = engine.client().start(RUN, n as u32).await.unwrap();
        let error = run.result().await.unwrap_err();
        let failure = error.failure().unwrap();
        assert_eq!(failure.kind, FailureKind::Fatal, "{failure:?}");
        assert!(failure.full().contains(named), "{failure:?}");
    }
    engine.shutdown().await;
}
