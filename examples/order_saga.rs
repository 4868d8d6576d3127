//! A saga: when a later step fails for good, what was done before it is undone, last first.
//!
//! ```text
//! cargo run --release --example order_saga
//! ```

use everstep::{RunError, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    item: String,
    cents: u64,
}

#[workflow]
async fn order_saga(ctx: Ctx, order: Order) -> Result<String> {
    ctx.step("reserve", async || said(format!("reserve a {}", order.item)))
        .rollback(async |_, done: String| said(format!("   undo: {done}")).map(drop))
        .await?;

    ctx.step("charge", async || said(format!("charge {} cents", order.cents)))
        .rollback(async |undo, done: String| {
            // A refund is a call to the outside world too: it has a key of its own.
            let key = undo.idempotency_key().len();
            said(format!("   undo: {done} (with a key of {key} letters)")).map(drop)
        })
        .await?;

    // No rollback: there is nothing to take back.
    ctx.step("notify", async || said("notify the warehouse".to_owned())).await?;

    ctx.step("ship", async || {
        println!("ship it .. the van has broken down");
        Err(Error::fatal("no van today"))
    })
    .await
}

fn said(what: String) -> Result<String> {
    println!("{what}");
    Ok(what)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("order_saga.db").register(order_saga).start().await?;
    let order = Order { item: "teapot".to_owned(), cents: 4_200 };
    let run = engine.client().start(order_saga, order).await?;
    match run.result().await {
        Err(RunError::Failed { failure, .. }) => println!("the order failed: {}", failure.full()),
        other => return Err(format!("it should have failed, and gave {other:?}").into()),
    }
    engine.shutdown().await;
    Ok(())
}
