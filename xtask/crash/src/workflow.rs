//! A workflow that uses every primitive of a single run.

use std::time::Duration;

use everstep::{Outcome, prelude::*};
use serde::{Deserialize, Serialize};

use crate::bodies::{Kind, Trace, fail, unbook, work};

/// What a run is started with. Runs come in pairs: the second sends to the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Input {
    pub(crate) pair: u64,
    pub(crate) first: bool,
    /// Whether it fails at its end, and rolls back.
    pub(crate) fails: bool,
}

/// The key of one run of a pair.
pub(crate) fn key(pair: u64, first: bool) -> String {
    format!("pair-{pair}-{}", if first { "first" } else { "second" })
}

/// How many words are sent to each run.
pub(crate) const WORDS: u64 = 3;

#[workflow]
pub(crate) async fn every(ctx: Ctx, input: Input) -> Result<u64> {
    let trace = Trace::new(&ctx);
    let mut heard: Vec<u64> = Vec::new();

    trace.run(&ctx, "plain").await?;
    let booked = trace.step(&ctx, "book").rollback(unbook).await?;
    trace.take(booked);

    // The first attempt fails.
    let made = trace.made();
    let flaky = ctx
        .step_with("flaky", async |step| match step.attempt() {
            1 => Err(fail(&step, &made, "the first attempt").await),
            _ => work(&step, &made, Kind::Firm).await,
        })
        .retry(Retry::fixed(5, Duration::from_millis(5)))
        .timeout(seconds(30));
    trace.take(flaky.await?);

    // A name that is used again.
    for _ in 0..2 {
        trace.run(&ctx, "again").await?;
    }

    ctx.join(
        "join",
        (
            branch("left", async |ctx| {
                trace.run(&ctx, "one").await?;
                trace.run(&ctx, "two").await
            }),
            branch("right", async |ctx| {
                trace.run(&ctx, "one").await?;
                ctx.sleep("nap", Duration::from_millis(3)).await?;
                trace.run(&ctx, "two").await
            }),
        ),
    )
    .await?;

    ctx.map("map", 0..4u64, async |ctx, _| trace.run(&ctx, "item").await).concurrency(3).await?;

    // One arm may complete a step and lose all the same: that is rolled back.
    let first = ctx
        .race(
            "race",
            (
                branch("short", async |ctx| trace.run(&ctx, "only").await),
                branch("long", async |ctx| {
                    let done = trace.step(&ctx, "begun").rollback(unbook).await?;
                    trace.take(done);
                    trace.run(&ctx, "ended").await
                }),
            ),
        )
        .await?;
    trace.mix(match first {
        First2::A(value) => value,
        First2::B(value) => value ^ 1,
    });

    for i in 1..WORDS {
        let word: Option<u64> = ctx.listen("word").timeout(seconds(600)).await?;
        let word = word.ok_or_else(|| Error::fatal(format!("word {i} did not come")))?;
        trace.mix(word);
        heard.push(word);
    }
    let nobody: Option<u64> = ctx.listen("nobody").timeout(Duration::from_millis(10)).await?;
    trace.mix(u64::from(nobody.is_some()));

    let asked = ctx.receive::<u64>("ask").await?;
    trace.mix(asked.body);
    asked.reply(&(asked.body * 2))?;
    trace.run(&ctx, "answered").await?;

    let looped = ctx
        .repeat("loop", (0u64, trace.seen()), async |ctx, (turn, mut seen)| {
            let made = trace.made_from(seen.clone());
            let body = async |step: Step| work(&step, &made, Kind::Firm).await;
            seen.take(&ctx.step_with("turn", body).await?);
            Ok(match turn {
                4 => ControlFlow::Break(seen),
                _ => ControlFlow::Continue((turn + 1, seen)),
            })
        })
        .commit_every(2)
        .history_every(2)
        .history_keep(1)
        .await?;
    trace.become_seen(looped);

    ctx.sleep("pause", Duration::from_millis(5)).await?;

    // Failures as values, recorded like results.
    let made = trace.made();
    let tried = ctx
        .attempt("tried", async |ctx| {
            let body = async |step: Step| -> Result<u64> {
                Err(Error::fatal(fail(&step, &made, "for good").await))
            };
            ctx.step_with("fails", body).await
        })
        .await?;
    trace.take_failed("tried/fails");
    trace.mix(u64::from(tried.is_err()));
    let made = trace.made();
    let body = async |step: Step| -> Result<u64> { Err(fail(&step, &made, "each time").await) };
    let outcome = ctx
        .step_with("exhausted", body)
        .retry(Retry::fixed(2, Duration::from_millis(2)))
        .outcome()
        .await?;
    trace.take_failed("exhausted");
    trace.mix(u64::from(matches!(outcome, Outcome::Failed { .. })));

    // Results that ride on the next write. They may be lost with it, so they must come out equal.
    for name in ["cheap", "cheaper"] {
        let made = trace.made();
        let body = async |step: Step| work(&step, &made, Kind::Ephemeral).await;
        trace.take(ctx.step_with(name, body).ephemeral().await?);
    }

    // Plain Rust concurrency.
    let (left, right) = (ctx.scope("plain-left"), ctx.scope("plain-right"));
    let (a, b) = tokio::join!(trace.run(&left, "work"), trace.run(&right, "work"));
    trace.mix(a? ^ b?);
    let nap = ctx.sleep("limit", Duration::from_millis(10));
    let won = tokio::select! {
        value = trace.run(&ctx, "hurried") => value?,
        fired = nap => { fired?; 0 }
    };
    trace.mix(won);

    // Between runs.
    if input.first {
        let peer: u64 = ctx.listen("peer").await?;
        trace.mix(peer);
        heard.push(peer);
    } else {
        let to = key(input.pair, true);
        ctx.send(("every", to.as_str()), "peer", &input.pair).await?;
    }
    let word: u64 = ctx.listen("word").await?;
    trace.mix(word);
    heard.push(word);
    ctx.set_state("heard", &heard)?;

    trace.run(&ctx, "last").await?;
    let booked = trace.step(&ctx, "book").rollback(unbook).await?;
    trace.take(booked);
    trace.end(&ctx)?;
    if input.fails {
        return Err(Error::rollback("on purpose"));
    }
    Ok(trace.digest())
}
