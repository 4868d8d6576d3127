//! Streams: what the code gives out is there once and in order; what bodies give out is tagged.

use std::{rc::Rc, time::Duration};

use everstep::{EmittedFrom, EngineBuilder, RunHandle, StreamItem, prelude::*};

use super::{Outside, ask, pause};
use crate::{Problem, bodies::Trace, random};

/// How many items the code gives out.
const TOLD: u64 = 10;

/// How many items a body gives out.
const SAID: u64 = 5;

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(tells)
}

#[workflow]
pub(crate) async fn tells(ctx: Ctx, _n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    for item in 0..TOLD {
        ctx.emit("told", &item)?;
        // Several ride on one commit now and then.
        if item % 3 != 1 {
            trace.run(&ctx, "work").await?;
        }
    }
    let speaks = async |step: Step| {
        for item in 0..SAID {
            // The first attempt does not come to its end.
            if item == 2 && step.attempt() == 1 && step.location() == "stutter" {
                return Err(Error::msg("it stutters"));
            }
            step.emit("said", &item).await?;
            tokio::time::sleep(Duration::from_micros(random::any() % 5_000)).await;
        }
        Ok(())
    };
    ctx.step_with("say", speaks).await?;
    ctx.step_with("stutter", speaks)
        .retry(Retry::fixed(3, Duration::from_millis(2)))
        .await?;
    trace.run(&ctx, "last").await?;
    Ok(())
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("items", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = outside.start(tells, "tells", n, n).await;
        // Some are followed while they go on.
        let followed = match n % 2 {
            0 => Some(follow(&run).await),
            _ => None,
        };
        if outside.result(&run).await.is_none() {
            continue;
        }
        outside.items.borrow_mut().push(run.id());
        match followed {
            None => {}
            Some(Ok(items)) => expect_told(&outside, &run, &items),
            Some(Err(error)) => outside.wrong(format!("tells {n} cannot be followed: {error:?}")),
        }
        pause(&random, 0, 50).await;
    }
}

async fn follow<O>(run: &RunHandle<O>) -> Result<Vec<StreamItem<u64>>, everstep::ClientError> {
    let (mut reader, mut items) = (run.stream("told"), Vec::new());
    while let Some(item) = ask(async || reader.next().await).await? {
        items.push(item);
    }
    Ok(items)
}

fn expect_told<O>(outside: &Outside, run: &RunHandle<O>, items: &[StreamItem<u64>]) {
    let values: Vec<u64> = items.iter().map(|item| item.value).collect();
    let positions: Vec<u64> = items.iter().map(|item| item.position).collect();
    let all: Vec<u64> = (0..TOLD).collect();
    if values == all && positions == all && items.iter().all(|item| item.by.is_none()) {
        return;
    }
    let what = format!("run {} told {values:?} at {positions:?}", run.id());
    let lost = all.iter().any(|item| !values.contains(item));
    outside.broken(if lost { "items_lost" } else { "items_twice" }, what);
}

/// Each body that spoke has said a beginning of what there is to say, the last one all of it.
fn expect_said<O>(outside: &Outside, run: &RunHandle<O>, items: &[StreamItem<u64>], step: &str) {
    let mut bodies: Vec<(&EmittedFrom, Vec<u64>)> = Vec::new();
    for item in items {
        let Some(by) = item.by.as_ref().filter(|by| by.location == step) else {
            continue;
        };
        match bodies.last_mut() {
            Some((last, said)) if *last == by => said.push(item.value),
            _ => bodies.push((by, vec![item.value])),
        }
    }
    let what = || format!("run {}: `{step}` said {bodies:?}", run.id());
    let all: Vec<u64> = (0..SAID).collect();
    if bodies.last().is_none_or(|(_, said)| *said != all) {
        outside.broken("items_lost", what());
    }
    let rises = bodies.is_sorted_by(|(a, _), (b, _)| (a.attempt, a.life) < (b.attempt, b.life));
    if !rises || bodies.iter().any(|(_, said)| !all.starts_with(said)) {
        outside.broken("items_twice", what());
    }
}

pub(super) async fn check(outside: &Outside) -> Result<(), Problem> {
    for run in outside.items.take() {
        let run: RunHandle<()> = outside.client.run(run);
        let told = run.stream_page("told", 0, 1_000).await?.items;
        expect_told(outside, &run, &told);
        let said = run.stream_page("said", 0, 1_000).await?.items;
        outside.count("items", (told.len() + said.len()) as u64);
        expect_said(outside, &run, &said, "say");
        expect_said(outside, &run, &said, "stutter");
        if said.iter().any(|item| item.by.is_none()) {
            outside.wrong(format!("run {} said something without a tag", run.id()));
        }
    }
    Ok(())
}
