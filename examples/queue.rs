//! Work for others: a workflow puts items into a queue, workers make thumbnails of them.
//!
//! ```text
//! cargo run --release --example queue                    # the workflow, with a worker of its own
//! cargo run --release --example queue -- work            # more workers, in a second terminal
//! ```
//!
//! Kill a worker while it has an item: after the queue's visibility another has it, as attempt 2,
//! and the workflow is told once.

use std::time::Duration;

use everstep::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Image {
    name: String,
    width: u32,
}

const THUMBS: Queue<Image, String> = Queue::new("thumbs")
    .attempts(3)
    .backoff(Retry::fixed(3, Duration::from_millis(200)))
    .visibility(seconds(5));

#[workflow]
async fn album(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    let images = names.into_iter().zip([300, 2_000, 800]);
    let waits = images.map(|(name, width)| {
        let image = Image { name, width };
        // The large ones first.
        ctx.enqueue(THUMBS, &image).priority(i32::try_from(width).unwrap_or(0))
    });
    ctx.join("thumbs", waits.collect::<Vec<_>>()).await
}

async fn thumbnail(job: Job, image: Image) -> Result<String> {
    println!("{} (attempt {}): {}", job.item(), job.attempt(), image.name);
    if image.width > 1_000 && job.attempt() == 1 {
        return Err(Error::msg("the disk was busy"));
    }
    Ok(format!("{}-{}px", image.name, image.width / 10))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("work") {
        let client = Client::open("queue.db").await?;
        let worker = client.work(THUMBS, 2, thumbnail)?;
        everstep::shutdown_signal().await?;
        worker.stop().await;
        return Ok(());
    }
    let engine = Engine::open("queue.db").register(album).start().await?;
    engine.work(THUMBS, 1, thumbnail)?;
    let names = ["cat", "dog", "emu"].map(str::to_owned).to_vec();
    let run = engine.client().start(album, names).key("album-1").await?;
    println!("{:?}", run.result().await?);
    engine.shutdown().await;
    Ok(())
}
