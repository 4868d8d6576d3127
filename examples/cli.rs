//! A program with the commands of `everstep`, and its own workflows in them.
//!
//! ```text
//! cargo run --example cli -- worker --listen 127.0.0.1:7878
//! cargo run --example cli -- start greet '"Ada"' --wait
//! cargo run --example cli -- runs list
//! cargo run --example cli -- preflight
//! ```
//!
//! `preflight` belongs before every deploy: it tries each run that has not ended against the code of the
//! new program, changes nothing, and fails if one does not fit.

use everstep::prelude::*;
use everstep_cli::{EngineCli as _, Exit};

#[workflow]
async fn greet(ctx: Ctx, name: String) -> Result<String> {
    let greeting = ctx.step("greet", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("think", seconds(2)).await?;
    Ok(greeting)
}

#[tokio::main]
async fn main() -> Exit {
    Engine::open("cli.db").register(greet).cli().await
}
