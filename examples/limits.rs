//! Twelve runs share a limit: three calls at a time, and no more than five a second.
//!
//! ```text
//! cargo run --release --example limits
//! ```
//!
//! A run that waits holds no thread, and `waiting` says for what. Killed and started again, whoever
//! had a place has it still, and the others stand in line as before, in `limits.db`.

use std::time::{Duration, Instant};

use everstep::{Limit, prelude::*};

const BANK: Limit = Limit::new("bank").concurrency(3).rate(5, Duration::from_secs(1)).burst(1);

#[workflow]
async fn transfer(ctx: Ctx, amount: u64) -> Result<u64> {
    let call = ctx.step("call", async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(amount)
    });
    call.limit(BANK).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("limits.db").register(transfer).start().await?;
    let client = engine.client();
    let begun = Instant::now();
    let mut runs = Vec::new();
    for amount in 1..=12 {
        runs.push(client.start(transfer, amount).await?);
    }
    for run in runs {
        let amount = run.result().await?;
        for limit in client.limits().await? {
            let (name, in_use, waiting) = (limit.name, limit.in_use, limit.waiting);
            println!(
                "{:>6.1?} {amount:>2} done; {name}: {in_use} in use, {waiting} wait",
                begun.elapsed()
            );
        }
    }
    engine.shutdown().await;
    Ok(())
}
