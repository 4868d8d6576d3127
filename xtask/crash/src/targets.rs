//! Workflows that are made to be hit by one kind of fault ([`crate::scenarios`]).

use std::{cell::Cell, thread, time::Duration};

use everstep::{EngineBuilder, Limit, prelude::*};
use tokio::sync::Notify;

use crate::{
    bodies::{Bodies, Kind, Made, Running, Trace},
    orders::{Orders, PIECE, PIECES},
    random,
};

pub(crate) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder
        .register(slow_code)
        .register(slow_bodies)
        .register(prices)
        .register(lines)
        .register(letters)
        .register(naps)
        .register(dozes)
}

/// One piece of something slow, in the ledger: code or a body, and of which run.
fn slow_piece(bodies: &Bodies, what: &str, trace: &Trace) -> Result<()> {
    let process = std::process::id();
    let run = trace.run_name();
    Ok(bodies.note(&format!("slow\t{what}\t{run}\t{process}"))?)
}

/// Code that blocks its thread for longer than a new lease takes, before its first step: that step has
/// nothing to wait for, so its body starts in the same poll.
#[workflow]
pub(crate) async fn slow_code(ctx: Ctx, _n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    let bodies = ctx.get::<Bodies>();
    if ctx.get::<Orders>().are_slow() {
        for _ in 0..PIECES {
            slow_piece(bodies, "code", &trace)?;
            thread::sleep(PIECE);
        }
        slow_piece(bodies, "code", &trace)?;
    }
    for _ in 0..3 {
        trace.run(&ctx, "after").await?;
    }
    trace.end(&ctx)
}

/// Bodies that wait again and again.
#[workflow]
pub(crate) async fn slow_bodies(ctx: Ctx, _n: u64) -> Result<()> {
    let trace = &Trace::new(&ctx);
    for _ in 0..3 {
        let made = trace.made();
        let body = async |step: Step| {
            let running = Running::start(&step, &made, Kind::Firm)?;
            if step.get::<Orders>().are_slow() {
                for _ in 0..PIECES {
                    slow_piece(step.get::<Bodies>(), "body", trace)?;
                    tokio::time::sleep(PIECE).await;
                }
            }
            Ok(running.done()?)
        };
        trace.take(ctx.step_with("slow", body).await?);
    }
    trace.end(&ctx)
}

/// One branch finds out a price, the other one charges what the first has found out by then. The price
/// comes when the step that charges was made and has not begun: it waits for the result before it to
/// be durable. A process that is told to die does so at the start of a step that has seen results which
/// were taken just before.
#[workflow]
pub(crate) async fn prices(ctx: Ctx, _n: u64) -> Result<()> {
    let trace = &Trace::new(&ctx);
    let (price, is_asked) = (&Cell::new(0), &Notify::new());
    ctx.join(
        "sale",
        (
            branch("price", async |ctx| {
                let made = trace.made();
                let body = async |step: Step| {
                    let running = Running::start(&step, &made, Kind::Firm)?;
                    is_asked.notified().await;
                    Ok(running.done()?)
                };
                price.set(trace.take(ctx.step_with("price", body).await?));
                Ok(())
            }),
            branch("charge", async |ctx| {
                trace.run(&ctx, "warm").await?;
                let made = trace.made();
                let charge =
                    ctx.step_with("charge", async |step| charge(&step, &made, price).await);
                is_asked.notify_one();
                trace.take(charge.await?);
                Ok(())
            }),
        ),
    )
    .await?;
    let made = trace.made();
    let last = async |step: Step| {
        let running = Running::start(&step, &made, Kind::Firm)?;
        step.get::<Orders>().die_if_told();
        Ok(running.done()?)
    };
    trace.take(ctx.step_with("last", last).await?);
    trace.end(&ctx)
}

async fn charge(step: &Step, made: &Made, price: &Cell<u64>) -> Result<crate::bodies::Done> {
    let running = Running::start(step, made, Kind::Firm)?;
    if price.get() != 0 {
        step.get::<Orders>().die_if_told();
    }
    tokio::time::sleep(Duration::from_millis(random::any() % 5)).await;
    Ok(running.done()?)
}

/// How many counters there are for [`lines`], with one place each.
const COUNTERS: u64 = 6;
const COUNTER: Limit = Limit::new("counter").concurrency(1);

/// How many steps stand in line in each run.
const TURNS: u64 = 4;

/// The last step, after which a run does not stand in line again.
pub(crate) const LAST_TURN: &str = "turn#4";

/// Steps that stand in line for a place, one after another.
#[workflow]
pub(crate) async fn lines(ctx: Ctx, n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    for _ in 0..TURNS {
        let made = trace.made();
        let body = async |step: Step| {
            let running = Running::start(&step, &made, Kind::Firm)?;
            tokio::time::sleep(Duration::from_millis(40 + random::any() % 40)).await;
            Ok(running.done()?)
        };
        let turn = ctx.step_with("turn", body);
        trace.take(turn.limit_key(COUNTER, n % COUNTERS).await?);
    }
    trace.end(&ctx)
}

/// How many letters a run reads.
pub(crate) const LETTERS: u64 = 4;

#[workflow]
pub(crate) async fn letters(ctx: Ctx, _n: u64) -> Result<Vec<u64>> {
    let trace = Trace::new(&ctx);
    let mut read = Vec::new();
    for _ in 0..LETTERS {
        let letter: u64 = ctx.listen("letter").await?;
        trace.mix(letter);
        read.push(letter);
        trace.run(&ctx, "answer").await?;
    }
    trace.end(&ctx)?;
    Ok(read)
}

/// How long a nap is. At half the pace of time it takes as long again, which a busy machine does not
/// add to it.
pub(crate) const NAP: Duration = Duration::from_secs(8);

#[workflow]
pub(crate) async fn naps(ctx: Ctx, n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    trace.run(&ctx, "lie down").await?;
    ctx.child(dozes, n).await?;
    ctx.sleep("nap", NAP).await?;
    trace.run(&ctx, "get up").await?;
    trace.end(&ctx)
}

/// A child that begins at once.
#[workflow]
pub(crate) async fn dozes(ctx: Ctx, _n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    trace.run(&ctx, "doze").await?;
    trace.end(&ctx)
}
