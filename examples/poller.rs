//! A durable loop that works through a source, page by page, and forgets what is long done.
//!
//! ```text
//! cargo run --release --example poller
//! ```
//!
//! The state of the loop is its checkpoint. Killed and started again, it goes on with the page it
//! was at, in `poller.db`. Of 25 iterations only the last ones are left in the history.

use std::time::Duration;

use everstep::{RunStatus, prelude::*};
use serde::{Deserialize, Serialize};

/// Where the loop stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Progress {
    cursor: u64,
    processed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Page {
    items: Vec<u64>,
    next: u64,
}

#[workflow]
async fn poller(ctx: Ctx, _: ()) -> Result<u64> {
    ctx.repeat("process-items", Progress::default(), async |ctx, at| {
        let page = ctx.step("fetch", async || fetch(at.cursor).await).await?;
        if page.items.is_empty() {
            return Ok(ControlFlow::Break(at.processed));
        }
        ctx.step("process", async || process(&page.items).await).await?;
        Ok(ControlFlow::Continue(Progress {
            cursor: page.next,
            processed: at.processed + page.items.len() as u64,
        }))
    })
    .commit_every(10) // the state is written at least this often, even if no step is
    .history_every(10) // old iterations are deleted this often
    .history_keep(10) // and this many stay
    .await
}

/// A source of 120 items, five on a page.
async fn fetch(cursor: u64) -> Result<Page> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    let next = (cursor + 5).min(120);
    Ok(Page { items: (cursor..next).collect(), next })
}

async fn process(items: &[u64]) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    println!("  processed {items:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("poller.db").register(poller).start().await?;
    let client = engine.client();
    let ended = client.count().workflow("poller").status(RunStatus::Completed).await?;
    let run = client.start(poller, ()).key(format!("pass-{}", ended + 1)).await?;
    println!("{} items processed", run.result().await?);

    let history = run.history().await?;
    let fetches = history.iter().map(|entry| entry.location.as_str());
    let kept: Vec<&str> = fetches.filter(|at| at.ends_with("fetch")).collect();
    println!("left in the history: {}", kept.join(" "));
    engine.shutdown().await;
    Ok(())
}
