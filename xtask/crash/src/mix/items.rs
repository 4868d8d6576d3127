//! Streams: what the code gives out is there once and in order; what bodies give out is tagged.

use std::{collections::HashSet, rc::Rc, time::Duration};

use everstep::{EngineBuilder, RunHandle, StreamItem, prelude::*};

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
    ctx.step_with("stutter", speaks).retry(Retry::fixed(3, Duration::from_millis(2))).await?;
    trace.run(&ctx, "last").await?;
    trace.end(&ctx)
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

fn expect_said<O>(outside: &Outside, run: &RunHandle<O>, items: &[StreamItem<u64>], step: &str) {
    let of_step = items.iter().filter_map(|item| {
        let by = item.by.as_ref().filter(|by| by.location == step)?;
        Some(((by.attempt, by.life), item.value))
    });
    let said: Vec<(Body, u64)> = of_step.collect();
    if let Some(promise) = broken_promise(&said) {
        let id = run.id();
        outside.broken(promise, format!("run {id}: `{step}` said {said:?}"));
    }
}

/// The attempt of a body, and its life.
type Body = (u32, u64);

/// Each body that spoke has said a beginning of what there is to say, the last one all of it; and none
/// spoke again after another had begun.
fn broken_promise(said: &[(Body, u64)]) -> Option<&'static str> {
    let mut bodies: Vec<(Body, Vec<u64>)> = Vec::new();
    for (body, value) in said {
        match bodies.last_mut() {
            Some((last, said)) if last == body => said.push(*value),
            _ => bodies.push((*body, vec![*value])),
        }
    }
    let all: Vec<u64> = (0..SAID).collect();
    if bodies.last().is_none_or(|(_, said)| *said != all) {
        return Some("items_lost");
    }
    let attempts_rise = bodies.is_sorted_by_key(|((attempt, _), _)| *attempt);
    let different: HashSet<Body> = bodies.iter().map(|(body, _)| *body).collect();
    let is_beginning = |(_, said): &(Body, Vec<u64>)| all.starts_with(said);
    let is_kept =
        attempts_rise && different.len() == bodies.len() && bodies.iter().all(is_beginning);
    (!is_kept).then_some("items_twice")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(bodies: &[(Body, std::ops::Range<u64>)]) -> Vec<(Body, u64)> {
        let items = |(body, values): &(Body, std::ops::Range<u64>)| {
            let body = *body;
            values.clone().map(move |value| (body, value))
        };
        bodies.iter().flat_map(items).collect()
    }

    #[test]
    fn a_body_that_is_begun_again_anywhere_breaks_nothing() {
        // The last owner has registered before the one that was killed.
        let all = said(&[((1, 7), 0..1), ((1, 4), 0..2), ((2, 5), 0..SAID)]);
        assert_eq!(broken_promise(&all), None);
    }

    #[test]
    fn a_body_that_speaks_after_another_has_begun_is_found() {
        let bodies = [((1, 7), 0..2), ((1, 8), 0..1), ((1, 7), 2..SAID)];
        assert_eq!(broken_promise(&said(&bodies)), Some("items_lost"));
        let late = [((1, 7), 0..1), ((1, 8), 0..1), ((1, 7), 0..1), ((2, 9), 0..SAID)];
        assert_eq!(broken_promise(&said(&late)), Some("items_twice"));
        let older = [((2, 7), 0..1), ((1, 8), 0..SAID)];
        assert_eq!(broken_promise(&said(&older)), Some("items_twice"));
        let torn = [((1, 7), 1..2), ((1, 8), 0..SAID)];
        assert_eq!(broken_promise(&said(&torn)), Some("items_twice"));
        assert_eq!(broken_promise(&said(&[((1, 7), 0..2)])), Some("items_lost"));
    }
}
