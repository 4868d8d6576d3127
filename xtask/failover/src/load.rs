//! What runs meanwhile: orders that take steps, wait for a message and sleep.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use everstep::{RunHandle, Workflow, prelude::*};

use crate::ledger::{Ledger, Note};

/// How many steps an order has; after half of them it waits for its message.
pub(crate) const STEPS: usize = 12;

/// What an order gives: what its steps gave, and its message.
pub(crate) type Results = (Vec<u64>, u64);

/// The workflow, by name.
pub(crate) const ORDER: Workflow<u64, Results> = Workflow::new("order");

/// Its code.
pub(crate) async fn order(ctx: Ctx, no: u64, ledger: Arc<Ledger>) -> Result<Results> {
    let (mut results, mut message) = (Vec::new(), 0);
    for step in 0..STEPS {
        let ledger = ledger.clone();
        let body = async move || {
            ledger.note(no, Note::Begun { step });
            tokio::time::sleep(Duration::from_millis(no % 20)).await;
            let value = next_value();
            ledger.note(no, Note::Ended { step, value });
            Ok(value)
        };
        results.push(ctx.step(&format!("step {step}"), body).await?);
        if step == STEPS / 2 {
            message = ctx.listen("word").await?;
            ctx.sleep("rest", Duration::from_millis(30)).await?;
        }
    }
    Ok((results, message))
}

/// No two bodies give the same.
fn next_value() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The message of an order.
pub(crate) fn word(no: u64) -> u64 {
    no.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Starts an order and sends its message. Both are tried until they are answered: with a key and a
/// dedupe key that does no harm.
pub(crate) async fn place(client: &Client, no: u64) -> RunHandle<Results> {
    let run = loop {
        match client.start(ORDER, no).key(format!("order-{no}")).await {
            Ok(run) => break run,
            Err(error) => again("starting", &error).await,
        }
    };
    loop {
        match run.send("word", &word(no)).dedupe(format!("word-{no}")).await {
            Ok(_) => return run,
            Err(error) => again("sending", &error).await,
        }
    }
}

pub(crate) async fn again(what: &str, error: &impl std::error::Error) {
    eprintln!("{what}: {error}; trying again");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
