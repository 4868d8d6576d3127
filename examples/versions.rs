//! Changes code under running work, three deploys in one program.
//!
//! ```text
//! cargo run --release --example versions
//! ```
//!
//! An order is reserved, charged, and waits for a day before it is shipped. Each deploy below finds
//! orders of the ones before it under way:
//!
//! 1. The first code.
//! 2. A change inside of version 1, gated: `charge` is replaced by `pay`, and the step `announce` is
//!    gone. Orders that were charged go on with the old name, new ones take the new one.
//! 3. Version 2, another function altogether, registered beside version 1: orders stay on the
//!    version that they were started with.
//!
//! Before each deploy, `preflight` replays every order that is under way against the new code. A
//! deploy that forgets the gate is tried too: it is found before it is made, and when it is made all
//! the same, the orders that it does not fit are paused and go on with the deploy that mends it.

use std::time::Duration;

use everstep::{EngineBuilder, EntryKind, RunStatus, prelude::*, testing::VirtualClock};

/// The code of the first deploy.
mod first {
    use everstep::prelude::*;

    #[workflow(name = "order")]
    pub(crate) async fn order(ctx: Ctx, item: String) -> Result<String> {
        ctx.step("reserve", async || Ok(())).await?;
        let charged = ctx.step("charge", async || Ok("charged".to_owned())).await?;
        ctx.step("announce", async || Ok(())).await?;
        ctx.listen::<()>("packed").await?;
        ctx.step("ship", async || Ok(())).await?;
        Ok(format!("{item}: {charged}"))
    }
}

/// The second deploy, without a gate: orders that were charged have no `pay`.
mod careless {
    use everstep::prelude::*;

    #[workflow(name = "order")]
    pub(crate) async fn order(ctx: Ctx, item: String) -> Result<String> {
        ctx.step("reserve", async || Ok(())).await?;
        let paid = ctx.step("pay", async || Ok("paid".to_owned())).await?;
        ctx.listen::<()>("packed").await?;
        ctx.step("ship", async || Ok(())).await?;
        Ok(format!("{item}: {paid}"))
    }
}

/// The second deploy as it should be: old and new names live at once.
mod gated {
    use super::*;

    #[workflow(name = "order")]
    pub(crate) async fn order(ctx: Ctx, item: String) -> Result<String> {
        ctx.step("reserve", async || Ok(())).await?;
        // 1 for orders that had gone past this place before there was a gate, 2 for all others.
        let paid = match ctx.version("how to pay", 2) {
            1 => ctx.step("charge", async || Ok("charged".to_owned())).await?,
            _ => ctx.step("pay", async || Ok("paid".to_owned())).await?,
        };
        // Orders that have it in their history go on without it.
        ctx.removed("announce", EntryKind::Step).await?;
        ctx.listen::<()>("packed").await?;
        ctx.step("ship", async || Ok(())).await?;
        Ok(format!("{item}: {paid}"))
    }
}

/// The third deploy: a version of its own needs no gates, and shares nothing with the first.
mod second {
    use everstep::prelude::*;

    #[workflow(name = "order", version = 2)]
    pub(crate) async fn order(ctx: Ctx, item: String) -> Result<String> {
        let parcel = ctx.step("all at once", async || Ok("parcel 7".to_owned())).await?;
        Ok(format!("{item}: {parcel}"))
    }
}

const STORE: &str = "versions.db";

fn engine() -> EngineBuilder {
    Engine::open(STORE).clock(VirtualClock::new())
}

/// Waits until the order has this status, and gives what it waits for, or why it is paused.
async fn until(
    run: &RunHandle<String>,
    status: RunStatus,
) -> Result<String, everstep::ClientError> {
    loop {
        let info = run.info().await?;
        if info.status == status {
            return Ok(info.waiting.unwrap_or_default());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("deploy 1: the first code");
    let engine_1 = engine().register(first::order).start().await?;
    let teapot = engine_1.client().start(first::order, "teapot".to_owned()).await?;
    println!("  the teapot waits for: {}", until(&teapot, RunStatus::Sleeping).await?);

    println!("deploy 2, without a gate:");
    let found = engine().register(careless::order).preflight().await?;
    println!("  preflight, beside the first engine: {found}");
    assert!(!found.is_clean(), "the teapot has no `pay`");
    engine_1.shutdown().await;
    let wrong = engine().register(careless::order).start().await?;
    let teapot = wrong.client().run::<String>(teapot.id());
    teapot.send("packed", &()).await?;
    let why = until(&teapot, RunStatus::Paused).await?;
    println!("  the teapot is paused: {why}");
    wrong.shutdown().await;

    println!("deploy 2, with a gate:");
    let found = engine().register(gated::order).preflight().await?;
    assert!(found.is_clean(), "{found}");
    let engine_2 = engine().register(gated::order).start().await?;
    // It was paused, and goes on by itself.
    let teapot = engine_2.client().run::<String>(teapot.id());
    println!("  {}", teapot.result().await?);
    let cup = engine_2.client().start(gated::order, "cup".to_owned()).await?;
    println!("  the cup waits for: {}", until(&cup, RunStatus::Sleeping).await?);
    engine_2.shutdown().await;

    println!("deploy 3, a version beside the first:");
    let engine_3 = engine().register(gated::order).register(second::order);
    assert!(engine_3.preflight().await?.is_clean());
    let engine_3 = engine_3.start().await?;
    let cup = engine_3.client().run::<String>(cup.id());
    cup.send("packed", &()).await?;
    println!("  version 1: {}", cup.result().await?);
    let kettle = engine_3.client().start(second::order, "kettle".to_owned()).await?;
    println!("  version 2: {}", kettle.result().await?);
    engine_3.shutdown().await;
    Ok(())
}
