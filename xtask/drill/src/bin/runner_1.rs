//! The first version of the program: it has the code of version 1, and no other.

use std::{process::ExitCode, time::Duration};

use everstep::prelude::*;
use everstep_drill::{
    order::{Between, GO, ORDER, Order, PARCEL, Sent},
    runner::{self, Maker},
};

const PROGRAM: u32 = 1;

fn main() -> ExitCode {
    runner::main(|engine| {
        let engine = engine.register_fn(ORDER.version(1), order);
        engine.register_fn(PARCEL.version(1), parcel)
    })
}

async fn order(ctx: Ctx, order: Order) -> Result<Sent> {
    let maker = Maker::new(&ctx, &order, PROGRAM);
    maker.step(&ctx, 0, "reserve").await?;
    maker.step(&ctx, 1, "charge").await?;
    match order.between {
        Between::Nothing => {}
        Between::Sleeps(ms) => {
            ctx.sleep("until later", Duration::from_millis(ms)).await?;
        }
        Between::Waits => ctx.listen::<()>(GO).await?,
        Between::HasChildren | Between::HasSleepers(_) => {
            let parcel = ctx.child(PARCEL.version(1), order.for_child());
            let another = ctx.child(PARCEL.version(1), order.for_child());
            let (parcel, another) = tokio::join!(parcel, another);
            runner::same_program(PROGRAM, [parcel?, another?])?;
        }
    }
    maker.step(&ctx, 2, "ship").await?;
    Ok(order.sent_by(PROGRAM))
}

async fn parcel(ctx: Ctx, order: Order) -> Result<Sent> {
    let maker = Maker::new(&ctx, &order, PROGRAM);
    maker.step(&ctx, 0, "pack").await?;
    if let Between::Sleeps(ms) = order.between {
        ctx.sleep("until it is fetched", Duration::from_millis(ms)).await?;
    }
    maker.step(&ctx, 1, "hand over").await?;
    Ok(order.sent_by(PROGRAM))
}
