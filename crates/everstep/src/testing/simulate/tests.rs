//! Workflows that are right in every world, and mistakes that some world must show.

use std::collections::BTreeMap;

use super::*;
use crate::{Rollback, prelude::*};

/// Enough for every mistake below to show.
const SEEDS: u64 = 40;

/// A payment provider: what each idempotency key was charged, and how often requests came in all.
#[derive(Default)]
struct Payments {
    by_key: BTreeMap<String, u32>,
    refunds: u32,
    requests: u32,
}

const ORDER: Workflow<u32, u32> = Workflow::new("order");

/// Charges by key, waits for a word, and refunds if the word is `no`.
async fn order(ctx: Ctx, amount: u32) -> Result<u32> {
    let charge = async |step: Step| {
        let (key, payments) = (step.idempotency_key().to_owned(), ctx.get::<Fake<Payments>>());
        payments.call(|it| _ = it.by_key.insert(key.clone(), amount)).await?;
        Ok(())
    };
    let refund = async |undo: Rollback, ()| {
        let payments = undo.get::<Fake<Payments>>();
        payments.call(|it| it.refunds = 1).await?;
        Ok(())
    };
    ctx.step_with("charge", charge).retry(patient()).rollback(refund).await?;
    let word: String = ctx.listen("word").await?;
    match word.as_str() {
        "no" => Err(Error::rollback("it was cancelled")),
        _ => Ok(amount),
    }
}

fn patient() -> Retry {
    Retry::fixed(50, seconds(1))
}

fn orders() -> Simulation {
    Simulation::new(ORDER, 5)
        .engine(|builder| builder.register_fn(ORDER, order))
        .fake(Payments::default)
}

#[test]
fn a_charge_by_idempotency_key_is_made_once_in_every_world() {
    let report = orders()
        .send("word", &"yes")
        .check("charged once", |end| {
            let payments = end.fake::<Payments>().state();
            let charged: u32 = payments.by_key.values().sum();
            match (end.status, charged, payments.refunds) {
                (RunStatus::Completed, 5, 0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .seeds(0..SEEDS)
        .run();
    assert_eq!(report.seeds, SEEDS);
    assert!(report.crashes > 0 && report.stalls > 0 && report.store_errors > 0, "{report}");
}

#[test]
fn a_failed_order_is_refunded_in_every_world() {
    orders()
        .send("word", &"no")
        .check("refunded", |end| {
            let payments = end.fake::<Payments>().state();
            match (end.status, payments.by_key.len(), payments.refunds) {
                (RunStatus::Failed, 1, 1) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .seeds(0..SEEDS)
        .run();
}

/// Counts requests instead of keys: a request that was repeated is charged twice.
async fn careless(ctx: Ctx, _: u32) -> Result<u32> {
    let charge = async || {
        ctx.get::<Fake<Payments>>().call(|it| it.requests += 1).await?;
        Ok(())
    };
    ctx.step("charge", charge).retry(patient()).await?;
    Ok(0)
}

#[test]
fn a_charge_without_a_key_is_found_and_its_seed_repeats_it() {
    let simulation = Simulation::new(ORDER, 5)
        .engine(|builder| builder.register_fn(ORDER, careless))
        .fake(Payments::default)
        .check("charged once", |end| match end.fake::<Payments>().state().requests {
            1 => Ok(()),
            other => Err(format!("charged {other} times")),
        });
    let found = simulation.clone().seeds(0..SEEDS).report();
    let first = found.failures.first().expect("a network repeats requests");
    assert!(first.what[0].starts_with("charged once: charged "), "{:?}", first.what);
    let again = simulation.seeds(first.seed..first.seed + 1).report();
    let again = again.failures.first().expect("the same seed");
    assert_eq!((&again.what, &again.trace), (&first.what, &first.trace));
}

/// Reads a clock of the process outside of a step, and takes another branch on replay.
async fn unsteady(ctx: Ctx, _: u32) -> Result<u32> {
    let ms = Timestamp::from(simulation::calendar()).as_millis();
    ctx.step(&format!("step-{}", ms % 2), async || Ok(())).await?;
    ctx.sleep("nap", seconds(20)).await?;
    Ok(0)
}

#[test]
fn code_that_is_not_deterministic_is_found() {
    let report = Simulation::new(ORDER, 5)
        .engine(|builder| builder.register_fn(ORDER, unsteady))
        .seeds(0..SEEDS)
        .report();
    let said =
        |failure: &SimulationFailure| failure.what.iter().any(|it| it.contains("does not end"));
    assert!(report.failures.iter().any(said), "{report}");
}

#[test]
fn a_run_that_nobody_answers_hangs() {
    let report = orders().seeds(0..1).report();
    assert!(report.failures[0].what[0].contains("does not end"), "{report}");
}

#[test]
fn sleeps_of_days_are_struck_too() {
    const NAPS: Workflow<u32, u32> = Workflow::new("naps");
    let report = Simulation::new(NAPS, 1)
        .engine(|builder| {
            builder.register_fn(NAPS, async |ctx: Ctx, n: u32| {
                ctx.sleep("first", days(2)).await?;
                ctx.step("work", async || Ok(n)).await?;
                ctx.sleep("second", days(2)).await?;
                Ok(n)
            })
        })
        .lasts(days(5))
        .seeds(0..SEEDS)
        .run();
    assert!(report.crashes > 0, "{report}");
}

/// A test with a range that was written wrong passed, and had simulated nothing.
#[test]
#[should_panic(expected = "the range of seeds 5..5 is empty")]
fn an_empty_range_of_seeds_is_refused() {
    _ = orders().seeds(5..5);
}

/// The second fake of a type replaced the first for bodies, and the checks saw the first.
#[test]
#[should_panic(expected = "there is a fake of")]
fn two_fakes_of_one_type_are_refused() {
    _ = orders().fake(Payments::default);
}
