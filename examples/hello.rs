//! A workflow from its start to its result.
//!
//! ```text
//! cargo run --release --example hello
//! ```

use everstep::prelude::*;

#[workflow]
async fn hello(ctx: Ctx, name: String) -> Result<String> {
    let greeting = ctx.step("greet", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("think", seconds(1)).await?;
    Ok(greeting)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("hello.db").register(hello).start().await?;
    let run = engine.client().start(hello, "Ada".to_owned()).await?;
    println!("{}", run.result().await?);
    engine.shutdown().await;
    Ok(())
}
