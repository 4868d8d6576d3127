//! An order that survives `kill -9`: steps, a join, a message, a sleep and a rollback.
//!
//! ```text
//! cargo run --release --example checkout
//! ```
//!
//! It takes about three and a half seconds. Kill it at any point and start it again: it goes on with the same
//! order, kept in `checkout.db`. Once an order has ended, the next start begins a new one.
//!
//! What the steps did to the outside world is in `checkout.ledger`, one line for each.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    time::Duration,
};

use everstep::{ClientError, RunStatus, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
    item: String,
    cents: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    hold: String,
    charge: String,
    parcel: String,
}

#[workflow]
async fn checkout(ctx: Ctx, order: Order) -> Result<Receipt> {
    let hold = ctx
        .step_with("reserve", async |step| {
            outside(&step, &format!("reserved one {}", order.item)).await
        })
        .retry(Retry::exponential(5))
        .rollback(async |_, hold| {
            println!("  undone: {hold}");
            Ok(())
        })
        .await?;

    let (charge, label) = ctx
        .join(
            "pay-and-pack",
            (
                branch("pay", async |ctx| {
                    ctx.step_with("charge", async |step| {
                        outside(&step, &format!("charged {} cents", order.cents)).await
                    })
                    .await
                }),
                branch("pack", async |ctx| {
                    ctx.step_with("label", async |step| {
                        outside(&step, &format!("printed a label for {}", order.item)).await
                    })
                    .await
                }),
            ),
        )
        .await?;

    // Workflow code is run again after a crash, so this may be printed twice; bodies are not.
    println!("  .. waits for an approval, for two days at most");
    let approval = ctx.listen::<String>("approval").timeout(days(2)).await?;
    if approval.is_none() {
        // What was reserved is released.
        return Err(Error::rollback("nobody approved in two days"));
    }
    println!("  .. sleeps for two seconds");
    ctx.sleep("cool-off", seconds(2)).await?;

    let parcel = ctx
        .step_with("ship", async |step| {
            outside(&step, &format!("shipped it with \"{label}\"")).await
        })
        .await?;
    Ok(Receipt { hold, charge, parcel })
}

/// Stands for a shop's stock, bank and post. It takes a moment, and like any good outside system
/// it does once what it is asked twice: a step that was killed between its work and the record of
/// it runs again, with the same key.
async fn outside(step: &Step, did: &str) -> Result<String> {
    tokio::time::sleep(Duration::from_millis(400)).await;
    let line = format!("{} {did}\n", step.idempotency_key());
    let mut file = OpenOptions::new().create(true).append(true).open(LEDGER)?;
    if !fs::read_to_string(LEDGER)?.contains(&line) {
        file.write_all(line.as_bytes())?;
    }
    println!("  {did}");
    Ok(did.to_owned())
}

const LEDGER: &str = "checkout.ledger";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("checkout.db").register(checkout).start().await?;
    let client = engine.client();

    // Orders are numbered, and the one that has not ended yet is the one to go on with.
    let ended = client
        .count()
        .workflow("checkout")
        .status(RunStatus::Completed)
        .status(RunStatus::Failed)
        .status(RunStatus::Cancelled)
        .await?;
    let order = Order { number: ended + 1, item: "teapot".to_owned(), cents: 4_200 };
    let key = format!("order-{}", order.number);
    let run = client.start(checkout, order).key(&key).await?;
    match run.attached() {
        false => println!("{key} is new; kill me and start me again, and it goes on"),
        true => println!("{key} was not finished; it goes on"),
    }

    // Nobody is here to approve, so the example does it. Told twice, the run hears it once.
    tokio::time::sleep(seconds(1)).await;
    match run.send("approval", &"Ada").dedupe("approval").await {
        Ok(_) => println!("  approved"),
        // It was approved before it was killed, and needed only a moment more.
        Err(ClientError::Finished { .. }) => {}
        Err(error) => return Err(error.into()),
    }

    let receipt = run.result().await?;
    println!("{key} is done: {receipt:#?}");
    println!("the ledger is in {LEDGER}; the next start begins order {}", ended + 2);
    engine.shutdown().await;
    Ok(())
}
