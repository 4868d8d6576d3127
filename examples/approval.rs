//! Waits for a person, who answers from a second terminal.
//!
//! ```text
//! cargo run --release --example approval                 # waits, for as long as it takes
//! cargo run --release --example approval -- approve      # in a second terminal
//! cargo run --release --example approval -- reject
//! ```
//!
//! The first may be killed and started again meanwhile: it goes on waiting. An answer that is given
//! while nobody runs is kept in `approval.db` and heard at the next start.

use everstep::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Expense {
    what: String,
    cents: u64,
}

#[workflow]
async fn approval(ctx: Ctx, expense: Expense) -> Result<String> {
    ctx.set_state("asked", &format!("{} for {} cents", expense.what, expense.cents))?;
    let answer = ctx.receive::<bool>("answer").await?;
    let verdict = match answer.body {
        true => "approved",
        false => "rejected",
    };
    // Whoever answered sees that it was heard, once that is durable.
    answer.reply(&format!("noted: {} is {verdict}", expense.what))?;
    ctx.step("book", async || {
        println!("booking: {} is {verdict}", expense.what);
        Ok(())
    })
    .await?;
    Ok(verdict.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        None => wait().await,
        Some("approve") => answer(true).await,
        Some("reject") => answer(false).await,
        Some(other) => Err(format!("`{other}` is no answer; say `approve` or `reject`").into()),
    }
}

/// The first terminal: has the engine.
async fn wait() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("approval.db").register(approval).start().await?;
    let client = engine.client();
    // The newest run is the one to go on with, unless it has ended.
    let newest = client.list().workflow("approval").limit(1).await?;
    let run = match newest.runs.first().filter(|run| run.finished_at.is_none()) {
        Some(run) => client.run(run.id),
        None => {
            let expense = Expense { what: "a teapot".to_owned(), cents: 4_200 };
            client.start(approval, expense).await?
        }
    };
    println!("waiting for a person; answer in a second terminal, in this directory, with");
    println!("    cargo run --release --example approval -- approve");
    println!("it was {}", run.result().await?);
    engine.shutdown().await;
    Ok(())
}

/// The second terminal: a client on the same file, in a process without an engine.
async fn answer(approve: bool) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::open("approval.db").await?;
    let newest = client.list().workflow("approval").limit(1).await?;
    let Some(open) = newest.runs.first().filter(|run| run.finished_at.is_none()) else {
        return Err("nothing waits for an answer; start the example without arguments".into());
    };
    let run: RunHandle<String> = client.run(open.id);
    let reply: String = run.request("answer", &approve).await?;
    println!("{reply}");
    Ok(())
}
