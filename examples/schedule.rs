//! A report for every few seconds: a schedule starts a run at each tick.
//!
//! ```text
//! cargo run --release --example schedule
//! ```
//!
//! The schedule is kept in `schedule.db`. Stop the program and start it again: it makes the schedule
//! again, which changes nothing, and starts the ticks that came while it was down, as far as
//! `catch_up` says. No tick has two runs.

use std::time::Duration;

use everstep::{Overlap, RunStatus, prelude::*};

#[workflow]
async fn report(ctx: Ctx, to: String) -> Result<String> {
    // The tick, however late the run begins: what a report is about does not depend on luck.
    let until = ctx.scheduled_at().unwrap_or_else(|| ctx.now());
    let since = until - seconds(2);
    ctx.step("send", async || {
        println!("  to {to}: what happened from {since} to {until}");
        Ok(format!("report until {until}"))
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("schedule.db").register(report).start().await?;
    let client = engine.client();
    let schedule = client
        .schedule("reports", report, "Ada".to_owned())
        .every(seconds(2))
        .overlap(Overlap::Queue)
        .catch_up(seconds(20))
        .await?;
    // Nights in Berlin are not over while you wait, but there will be one.
    let nightly = client
        .schedule("nightly-report", report, "Grace".to_owned())
        .cron("0 3 * * *")
        .time_zone("Europe/Berlin")
        .await?;
    for tick in nightly.info().await?.upcoming(3) {
        println!("a nightly report comes at {tick}");
    }

    let before = schedule.info().await?.started;
    while schedule.info().await?.started < before + 3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // The runs of a schedule have a tag with its name.
    let sent =
        client.count().tag("everstep.schedule", "reports").status(RunStatus::Completed).await?;
    println!("{sent} reports were sent");
    engine.shutdown().await;
    Ok(())
}
