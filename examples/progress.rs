//! Follows the words of an agent while it thinks.
//!
//! ```text
//! cargo run --release --example progress
//! ```
//!
//! The agent is a script. Its connection breaks once, in the middle of its answer, so the step is
//! tried again: the words of the first attempt stay in the stream, and the reader is told that they
//! were abandoned.

use std::{io::Write, time::Duration};

use everstep::prelude::*;

const ANSWER: &str = "A step that is recorded never runs again, and no later effect happens before \
                      it is recorded.";

#[workflow]
async fn ask(ctx: Ctx, question: String) -> Result<String> {
    ctx.set_state("phase", "thinking")?;
    let answer = ctx
        .step_with("think", async |step| think(&step, &question).await)
        .retry(Retry::fixed(3, Duration::from_millis(200)))
        .await?;
    ctx.set_state("phase", "done")?;
    ctx.emit("words", "(end)")?;
    Ok(answer)
}

/// The agent: says one word after another. What it says can be read at once, before it is done.
async fn think(step: &Step, question: &str) -> Result<String> {
    for (n, word) in ANSWER.split_whitespace().enumerate() {
        if step.attempt() == 1 && n == 5 {
            return Err(std::io::Error::other("the connection to the agent broke").into());
        }
        tokio::time::sleep(Duration::from_millis(40)).await;
        step.emit("words", word).await?;
    }
    Ok(format!("{question} {ANSWER}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("progress.db").register(ask).start().await?;
    let question = "What does a workflow engine promise?".to_owned();
    let run = engine.client().start(ask, question).await?;
    let mut words = run.stream::<String>("words");
    let mut attempts = 0;
    while let Some(word) = words.next().await? {
        if word.restarted {
            println!(" ... abandoned; once more:");
            attempts += 1;
        }
        print!("{} ", word.value);
        std::io::stdout().flush()?;
    }
    println!();
    let phase = run.state::<String>("phase").await?;
    println!("the run is {}", phase.as_deref().unwrap_or("unknown"));
    // Another reader may come later, and read any part of it.
    let page = run.stream_page::<String>("words", 5, 2).await?;
    println!(
        "{} items are kept; the sixth is {:?}",
        page.end - page.first,
        page.items.first().map(|item| &item.value)
    );
    assert_eq!(attempts, 1, "the first attempt was abandoned");
    assert!(run.result().await?.ends_with(ANSWER));
    engine.shutdown().await;
    Ok(())
}
