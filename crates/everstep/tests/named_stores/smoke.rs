//! A workflow from its start to its result, on every store.
#![allow(clippy::unwrap_used)]

use everstep::{prelude::*, testing::VirtualClock};

use crate::stores;

use stores::on_each_store;

#[workflow]
async fn greet(ctx: Ctx, name: String) -> Result<String> {
    let greeting = ctx.step("greet", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("think", hours(24)).await?;
    let (a, b) = ctx
        .join(
            "both",
            (
                branch("a", async |ctx| ctx.step("work", async || Ok(1u32)).await),
                branch("b", async |ctx| ctx.step("work", async || Ok(2u32)).await),
            ),
        )
        .await?;
    let word: String = ctx.listen("word").await?;
    Ok(format!("{greeting} {a} {b} {word}"))
}

async fn check(builder: everstep::EngineBuilder) {
    let engine = builder.register(greet).clock(VirtualClock::new()).start().await.unwrap();
    let run = engine.client().start(greet, "Ada".to_owned()).key("k").await.unwrap();
    run.send("word", &"yes").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "Hello, Ada! 1 2 yes");
    for entry in run.history().await.unwrap() {
        println!("{:?} {} {:?} {:?}", entry.number, entry.location, entry.kind, entry.value);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_runs_to_its_end_on_every_store() {
    on_each_store(async |place| check(place.engine()).await).await;
}
