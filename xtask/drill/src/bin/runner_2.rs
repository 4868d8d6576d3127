//! The second version of the program: it has the code of version 2, and no other. Its steps are not
//! those of the first, so a run of version 1 would not get far in it.

use std::{process::ExitCode, time::Duration};

use everstep::prelude::*;
use everstep_drill::{
    order::{Between, GO, ORDER, Order, PARCEL, Sent},
    runner::{self, Maker},
};

const PROGRAM: u32 = 2;

fn main() -> ExitCode {
    runner::main(|engine| {
        let engine = engine.register_fn(ORDER.version(2), order);
        engine.register_fn(PARCEL.version(2), parcel)
    })
}

async fn order(ctx: Ctx, order: Order) -> Result<Sent> {
    let maker = Maker::new(&ctx, &order, PROGRAM);
    maker.step(&ctx, 0, "pay").await?;
    match order.between {
        Between::Nothing => {}
        Between::Sleeps(ms) => {
            ctx.sleep("pause", Duration::from_millis(ms)).await?;
        }
        Between::Waits => ctx.listen::<()>(GO).await?,
        Between::HasChildren | Between::HasSleepers(_) => {
            let mut sent = Vec::new();
            for _ in 0..2 {
                let parcel = ctx.child(PARCEL.version(2), order.for_child());
                sent.push(parcel.await?);
            }
            runner::same_program(PROGRAM, sent)?;
        }
    }
    maker.step(&ctx, 1, "announce").await?;
    maker.step(&ctx, 2, "deliver").await?;
    Ok(order.sent_by(PROGRAM))
}

async fn parcel(ctx: Ctx, order: Order) -> Result<Sent> {
    let maker = Maker::new(&ctx, &order, PROGRAM);
    if let Between::Sleeps(ms) = order.between {
        ctx.sleep("pause", Duration::from_millis(ms)).await?;
    }
    maker.step(&ctx, 0, "pack and hand over").await?;
    Ok(order.sent_by(PROGRAM))
}
