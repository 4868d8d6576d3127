//! The testing kit itself: that it finds what it is meant to find.

use std::sync::atomic::{AtomicU32, Ordering};

use everstep::{
    RunStatus,
    prelude::*,
    testing::{Ledger, crash_everywhere},
};

#[workflow]
async fn forgetful(ctx: Ctx, _: ()) -> Result<usize> {
    ctx.step("work", async || {
        ctx.get::<Ledger>().ran("work");
        Ok(())
    })
    .await?;
    // Not deterministic: it tells how often the body has run.
    Ok(ctx.get::<Ledger>().count("work"))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_result_after_a_crash_is_found() {
    let report = crash_everywhere(forgetful, ()).report().await;
    assert!(!report.differences.is_empty());
    let text = report.to_string();
    assert!(text.contains("before write 4: the end differs"), "{text}");
}

#[workflow]
async fn effect_outside_of_a_step(ctx: Ctx, _: ()) -> Result<()> {
    ctx.step("a", async || Ok(())).await?;
    // Workflow code runs again on every replay: this stands for an effect outside of its step.
    ctx.get::<Ledger>().ran("a");
    ctx.sleep("nap", hours(1)).await?;
    ctx.step("b", async || Ok(())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_done_again_is_found() {
    let report = crash_everywhere(effect_outside_of_a_step, ()).report().await;
    let text = report.to_string();
    assert!(text.contains("`a` ran again although its result was durable"), "{text}");
}

#[workflow]
async fn waits_for_ever(ctx: Ctx, _: ()) -> Result<()> {
    ctx.listen::<()>("never").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_does_not_end_is_told() {
    let report = crash_everywhere(waits_for_ever, ()).await;
    assert_eq!(report.expected.status, RunStatus::Sleeping);
    assert_eq!(report.expected.waiting.as_deref(), Some("message for `never`"));
}

#[workflow]
async fn stuck_after_a_crash(ctx: Ctx, _: ()) -> Result<()> {
    static STARTS: AtomicU32 = AtomicU32::new(0);
    ctx.step("work", async || Ok(())).await?;
    ctx.sleep("nap", hours(1)).await?;
    if STARTS.fetch_add(1, Ordering::SeqCst) > 0 {
        ctx.listen::<()>("never").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_only_ends_without_a_crash_is_found() {
    let report = crash_everywhere(stuck_after_a_crash, ()).report().await;
    let text = report.to_string();
    assert!(text.contains("found Ending { status: Sleeping"), "{text}");
}
