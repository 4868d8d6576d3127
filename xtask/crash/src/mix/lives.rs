//! `continue_as` over many generations, while messages come all the time.
//!
//! The messages are numbered, so that one that is lost, read twice or out of turn is seen.

use std::{rc::Rc, time::Duration};

use everstep::{ClientError, EngineBuilder, Sent, prelude::*};
use serde::{Deserialize, Serialize};

use super::{Outside, ask, pause, until_ok};
use crate::bodies::Trace;

/// How many messages a run is sent.
const MESSAGES: u64 = 24;

/// How many it reads in one life.
const IN_A_LIFE: usize = 4;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Life {
    heard: Vec<u64>,
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(life).register(afterlife)
}

#[workflow]
pub(crate) async fn life(ctx: Ctx, before: Life) -> Result<Vec<u64>> {
    let now = live(&ctx, before).await?;
    match now.heard.len() as u64 {
        MESSAGES.. => Ok(now.heard),
        _ => ctx.continue_with(afterlife, now).await,
    }
}

/// The same as a run of another workflow.
#[workflow]
pub(crate) async fn afterlife(ctx: Ctx, before: Life) -> Result<Vec<u64>> {
    let now = live(&ctx, before).await?;
    match now.heard.len() as u64 {
        MESSAGES.. => Ok(now.heard),
        heard if heard.is_multiple_of(3) => ctx.continue_with(life, now).await,
        _ => ctx.continue_as(now).await,
    }
}

async fn live(ctx: &Ctx, mut now: Life) -> Result<Life> {
    let trace = Trace::new(ctx);
    for turn in 0..IN_A_LIFE {
        // A wait that runs out may do so while the message comes, and has then read nothing.
        let limit = Duration::from_millis(10);
        let heard: u64 = match ctx.listen("number").timeout(limit).await? {
            Some(heard) => heard,
            None => ctx.listen("number").await?,
        };
        trace.mix(heard);
        now.heard.push(heard);
        ctx.emit("heard", &heard)?;
        if turn % 2 == 0 {
            trace.run(ctx, "work").await?;
        }
    }
    ctx.set_state("heard", &now.heard)?;
    trace.end(ctx)?;
    Ok(now)
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("lives", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = outside.start(life, "life", n, Life::default()).await;
        for number in 0..MESSAGES {
            let key = format!("number-{number}");
            let send = async || match run.send("number", &number).dedupe(&key).await {
                Err(ClientError::Finished { .. }) => Ok(None),
                other => other.map(Some),
            };
            match until_ok(send).await {
                Some(Sent::Delivered) => outside.messages.set(outside.messages.get() + 1),
                Some(sent) => {
                    outside.wrong(format!("promise 4: life {n}: number {number} was {sent:?}"));
                }
                // What it has heard is looked at below.
                None => break,
            }
            pause(&random, 0, 60).await;
        }
        let Some(heard) = outside.result(&run).await else {
            continue;
        };
        outside.count("generations", MESSAGES / IN_A_LIFE as u64);
        if let Some(lost) = not_all(&heard) {
            let what = format!("promise 4: life {n} heard {heard:?}");
            match lost {
                true => outside.wrong(what),
                false => outside.broken("messages_twice", what),
            }
        }
        match ask(async || run.state::<Vec<u64>>("heard").await).await {
            Ok(Some(state)) if state == heard => {}
            other => outside.wrong(format!("life {n}: its value `heard` is {other:?}")),
        }
        let info = ask(async || run.info().await).await;
        let generation = info.map(|info| u64::from(info.generation));
        if !generation.as_ref().is_ok_and(|g| *g == MESSAGES / IN_A_LIFE as u64) {
            outside.wrong(format!("life {n} ended in generation {generation:?}"));
        }
        match ask(async || run.stream_page::<u64>("heard", 0, 1_000).await).await {
            Ok(page) => {
                let items: Vec<u64> = page.items.iter().map(|item| item.value).collect();
                if let Some(lost) = not_all(&items) {
                    let name = if lost { "items_lost" } else { "items_twice" };
                    outside.broken(name, format!("life {n} gave out {items:?}"));
                }
            }
            Err(error) => outside.wrong(format!("life {n}: its stream: {error:?}")),
        }
    }
}

/// Whether one is missing, if this is not every number once, in order.
fn not_all(numbers: &[u64]) -> Option<bool> {
    let all: Vec<u64> = (0..MESSAGES).collect();
    let lost = all.iter().any(|number| !numbers.contains(number));
    (numbers != all).then_some(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_missing_or_come_again_are_told_apart() {
        let all: Vec<u64> = (0..MESSAGES).collect();
        assert_eq!(not_all(&all), None);
        assert_eq!(not_all(&all[1..]), Some(true));
        assert_eq!(not_all(&[&all[..], &[3]].concat()), Some(false));
    }
}
