//! Pause, resume and cancel in quick succession, and a client that outlives its engine.
//!
//! The engine looks for due runs by itself only once in ten minutes, so that a wake-up that is lost
//! is seen.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use everstep::{RunStatus, prelude::*, testing};
use tokio::{sync::Notify, time::timeout};

const WAIT: Workflow<u32, u32> = Workflow::new("wait");
const GATED: Workflow<u32, u32> = Workflow::new("gated");
const SOON: Duration = Duration::from_secs(20);

async fn engine(gate: &Arc<Notify>) -> Engine {
    let gate = gate.clone();
    Engine::on(testing::store())
        .register_fn(WAIT, |ctx, n| async move {
            let add: u32 = ctx.listen("add").await?;
            Ok(n + add)
        })
        .register_fn(GATED, move |ctx, n| {
            let gate = gate.clone();
            async move {
                ctx.step("gated", async || {
                    gate.notified().await;
                    Ok(())
                })
                .await?;
                ctx.step("after", async || Ok(())).await?;
                Ok(n)
            }
        })
        .settings(|settings| settings.safety_poll = Duration::from_secs(600))
        .start()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_paused_and_resumed_at_once_goes_on() {
    let engine = engine(&Arc::default()).await;
    let client = engine.client();
    for n in 0..50 {
        let run = client.start(WAIT, n).await.unwrap();
        for _ in 0..3 {
            run.pause().await.unwrap();
            run.resume().await.unwrap();
        }
        run.send("add", &1_u32).await.unwrap();
        let result = timeout(SOON, run.result()).await;
        assert_eq!(result.expect("it goes on").unwrap(), n + 1);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_resumed_while_its_body_still_runs_goes_on() {
    let gate = Arc::new(Notify::new());
    let engine = engine(&gate).await;
    let run = engine.client().start(GATED, 7).await.unwrap();
    run.pause().await.unwrap();
    run.resume().await.unwrap();
    // It may be at the gate once more, if it had not begun before the pause.
    let open = async {
        loop {
            gate.notify_one();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let result = async { run.result().await.unwrap() };
    let ended = timeout(SOON, async {
        tokio::select! { () = open => 0, n = result => n }
    });
    assert_eq!(ended.await.expect("it goes on"), 7);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_paused_and_cancelled_at_once_ends() {
    let engine = engine(&Arc::default()).await;
    for n in 0..50 {
        let run = engine.client().start(WAIT, n).await.unwrap();
        run.pause().await.unwrap();
        assert!(run.cancel().await.unwrap());
        let result = timeout(SOON, run.result()).await;
        assert!(result.expect("it ends").is_err());
        assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_not_waited_for_after_the_shutdown() {
    let engine = engine(&Arc::default()).await;
    let client = engine.client();
    let id = client.start(WAIT, 1).await.unwrap().id();
    engine.shutdown().await;
    let run = client.run::<u32>(id);
    let result = timeout(SOON, run.result()).await;
    let error = result.expect("it is not waited for").unwrap_err();
    assert_eq!(error.to_string(), "the client is closed: its engine has shut down");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_says_before_it_fails_is_heard() {
    const ASKED: Workflow<bool, ()> = Workflow::new("asked");
    let engine = Engine::on(testing::store())
        .register_fn(ASKED, |ctx, undo| async move {
            let step = ctx.step("hold", async || Ok(()));
            match undo {
                true => step.rollback(async |_, ()| Ok(())).await?,
                false => step.await?,
            }
            let question = ctx.receive::<u32>("question").await?;
            question.reply(&"no")?;
            ctx.set_state("answer", &"no")?;
            Err(Error::rollback("refused"))
        })
        .start()
        .await
        .unwrap();
    for undo in [false, true] {
        let run = engine.client().start(ASKED, undo).await.unwrap();
        let answer: String = run.request("question", &1_u32).await.unwrap();
        assert_eq!(answer, "no");
        assert!(run.result().await.is_err());
        let state: Option<String> = run.state("answer").await.unwrap();
        assert_eq!(state.as_deref(), Some("no"));
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_after_a_body_that_ended_in_a_pause_is_given() {
    // The pause comes to the run before its body ends, or while its next commit is on its way.
    for heard in [true, false] {
        reply_after_a_pause(heard).await;
    }
}

async fn reply_after_a_pause(heard: bool) {
    const ASKED: Workflow<(), ()> = Workflow::new("asked");
    let gate = Arc::new(Notify::new());
    let began = Arc::new(Notify::new());
    let (at_gate, at_begin) = (gate.clone(), began.clone());
    let engine = Engine::on(testing::store())
        .register_fn(ASKED, move |ctx, ()| {
            let (gate, began) = (at_gate.clone(), at_begin.clone());
            async move {
                let question = ctx.receive::<u32>("question").await?;
                let body = ctx.step("think", async || {
                    began.notify_one();
                    gate.notified().await;
                    Ok(())
                });
                body.await?;
                question.reply(&"yes")?;
                ctx.listen::<()>("end").await
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(ASKED, ()).await.unwrap();
    let asking = run.clone();
    let asked = tokio::spawn(async move { asking.request("question", &1_u32).await });
    began.notified().await;
    run.pause().await.unwrap();
    if heard {
        // Until the engine has heard of it.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    gate.notify_one();
    tokio::time::sleep(Duration::from_millis(300)).await;
    run.resume().await.unwrap();
    let answer: String = timeout(SOON, asked).await.expect("it is answered").unwrap().unwrap();
    assert_eq!(answer, "yes");
    run.send("end", &()).await.unwrap();
    run.result().await.unwrap();
    engine.shutdown().await;
}
