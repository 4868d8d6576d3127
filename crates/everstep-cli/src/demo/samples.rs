//! The workflows of the demo: one for each thing that is worth a look.

use std::time::Duration;

use everstep::{Deferred, EngineBuilder, Limit, prelude::*};
use serde::{Deserialize, Serialize};

use super::a_while;

/// What somebody has bought.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) customer: String,
    pub(super) amount: u64,
}

/// The verdict of whoever has the token.
pub(super) const VERDICT: Deferred<bool> = Deferred::new("verdict");
/// The payment of an order, by its number.
pub(super) const PAID: Event<u64> = Event::new("paid");
const THUMBS: Queue<String, String> =
    Queue::new("thumbs").attempts(3).backoff(Retry::fixed(3, Duration::from_millis(700)));
const BANK: Limit = Limit::new("bank").concurrency(2);

pub(super) fn register(engine: EngineBuilder) -> EngineBuilder {
    engine
        .register(checkout)
        .register(expense)
        .register(invoice)
        .register(parcel)
        .register(fetch)
        .register(report)
        .register(album)
        .register(answer)
        .register(heartbeat)
        .work(THUMBS, 2, thumbnail)
}

/// A saga: what was done is undone when a later step cannot be.
#[workflow]
pub(super) async fn checkout(ctx: Ctx, order: Order) -> Result<String> {
    let id = order.id;
    let hold = ctx
        .step("reserve stock", async move || {
            a_while(200 + id % 7 * 100).await;
            Ok(format!("hold-{id}"))
        })
        .rollback(async |_, _: String| {
            a_while(1_500).await;
            Ok(())
        })
        .await?;
    let amount = order.amount;
    let payment = ctx
        .step("charge card", async move || {
            a_while(500).await;
            match id % 3 {
                1 => Err(Error::rollback(format!("the card was declined for {amount}"))),
                _ => Ok(format!("payment-{id}")),
            }
        })
        .limit(BANK)
        .await?;
    ctx.sleep("cool off", seconds(2 + id % 4)).await?;
    ctx.step("ship", async || {
        a_while(400).await;
        Ok(())
    })
    .await?;
    Ok(format!("{hold} and {payment} for {}", order.customer))
}

/// Waits for a person who has the token.
#[workflow]
pub(super) async fn expense(ctx: Ctx, order: Order) -> Result<String> {
    let verdict = ctx.deferred(VERDICT);
    let token = verdict.token();
    ctx.step("ask the boss", async || {
        a_while(100).await;
        Ok(())
    })
    .await?;
    // So that the visitors of the demo, who play the boss, can answer.
    ctx.set_state("token", &token)?;
    match verdict.timeout(minutes(1)).await? {
        Some(Ok(true)) => Ok(format!("{} approved for {}", order.amount, order.customer)),
        Some(Ok(false)) => Err(Error::fatal("the expense was turned down")),
        Some(Err(reason)) => Err(Error::fatal(reason)),
        None => Err(Error::fatal("nobody has decided in time")),
    }
}

/// Waits for an event with the key of its order.
#[workflow]
pub(super) async fn invoice(ctx: Ctx, order: Order) -> Result<u64> {
    ctx.step("write", async || Ok(())).await?;
    let key = order.id.to_string();
    let paid = ctx.event(PAID).matching(key).timeout(seconds(30)).await?;
    paid.ok_or_else(|| Error::fatal("it was never paid"))
}

/// A poller: asks again and again until something is there.
#[workflow]
pub(super) async fn parcel(ctx: Ctx, rounds: u64) -> Result<String> {
    ctx.repeat("track", 0, async |ctx, round: u64| {
        let place = ctx
            .step("ask the carrier", async move || {
                a_while(60).await;
                Ok(format!("stop {round}"))
            })
            .await?;
        if round >= rounds {
            return Ok(ControlFlow::Break(place));
        }
        ctx.sleep("later", seconds(1)).await?;
        Ok(ControlFlow::Continue(round + 1))
    })
    .await
}

/// A step that fails a few times, and an answer that is no use for every third.
#[workflow]
pub(super) async fn fetch(ctx: Ctx, n: u64) -> Result<u64> {
    let got = ctx
        .step_with("call a tired server", async |step| {
            a_while(150).await;
            match u64::from(step.attempt()) <= n % 4 {
                true => Err(Error::msg("503: come back later")),
                false => Ok(step.attempt()),
            }
        })
        .retry(Retry::fixed(5, Duration::from_millis(900)))
        .await?;
    if n.is_multiple_of(3) {
        return Err(Error::fatal("the answer is not JSON"));
    }
    Ok(u64::from(got))
}

/// Has children, and waits for all of them.
#[workflow]
pub(super) async fn report(ctx: Ctx, parts: u64) -> Result<Vec<String>> {
    ctx.map("parts", 1..=parts, async |ctx, part| ctx.child(parcel, part).await).await
}

/// Has a queue do its work.
#[workflow]
pub(super) async fn album(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    ctx.map("pictures", names, async |ctx, name| ctx.enqueue(THUMBS, &name).await).await
}

async fn thumbnail(job: Job, name: String) -> Result<String> {
    a_while(500).await;
    match name.ends_with('7') && job.attempt() == 1 {
        true => Err(Error::msg("the disk was busy")),
        false => Ok(format!("{name}-small")),
    }
}

const WORDS: &str = "A step that is recorded never runs again, and no later effect happens before it \
                     is recorded.";

/// Gives out what it has so far, word by word.
#[workflow]
pub(super) async fn answer(ctx: Ctx, question: String) -> Result<String> {
    ctx.set_state("phase", "thinking")?;
    let words = ctx
        .step_with("think", async |step| {
            for word in WORDS.split_whitespace() {
                a_while(180).await;
                step.emit("words", word).await?;
            }
            Ok(WORDS.split_whitespace().count())
        })
        .await?;
    ctx.set_state("phase", "done")?;
    Ok(format!("{question} It took {words} words."))
}

/// What a schedule starts.
#[workflow]
pub(super) async fn heartbeat(ctx: Ctx, (): ()) -> Result<()> {
    ctx.step("beat", async || Ok(())).await
}
