//! Workflows with something of everything in them.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use everstep::{Deferred, Limit, Overlap, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

pub(crate) const REVIEW: Deferred<Json, Json> = Deferred::new("review");
pub(crate) const PAID: Event<Json> = Event::new("paid");
/// Nobody works on it.
pub(crate) const MAILS: Queue<Json, Json> = Queue::new("mails");
/// Somebody works on it, and fails.
pub(crate) const THUMBNAILS: Queue<Json, Json> = Queue::new("thumbnails").attempts(1);
const BANK: Limit = Limit::new("bank").concurrency(1).rate(50, Duration::from_secs(1));

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) customer: String,
    pub(crate) items: Vec<String>,
    pub(crate) cents: u64,
}

/// The order with this number.
pub(crate) fn order(id: u64) -> Order {
    let customers = ["ada", "grace", "edsger", "barbara", "leslie", "tony"];
    let items = ["teapot", "kettle", "cups for six", "a very long spoon"];
    let [first, second] = [id, id + 1].map(|n| items[n as usize % items.len()].to_owned());
    Order {
        id,
        customer: customers[id as usize % customers.len()].to_owned(),
        items: vec![first, second],
        cents: 1_250 + id * 370 % 9_000,
    }
}

/// A saga that waits for its parcel, and is undone if it is cancelled so. Order 13 cannot be shipped.
#[workflow]
pub(crate) async fn checkout(ctx: Ctx, order: Order) -> everstep::Result<String> {
    let (id, cents) = (order.id, order.cents);
    let hold = ctx
        .step("reserve stock", async move || {
            moment(40).await;
            Ok(format!("hold-{id}"))
        })
        .rollback(async |_, _: String| Ok(()))
        .await?;
    ctx.join(
        "pay and pack",
        (
            branch("pay", async |ctx: Ctx| {
                ctx.step_with("charge", async move |step| {
                    moment(60).await;
                    if step.attempt() == 1 {
                        return Err(Error::msg("503: the bank is busy, come back later"));
                    }
                    Ok(json!({"payment": format!("pay-{id}"), "cents": cents}))
                })
                .retry(Retry::fixed(3, Duration::from_millis(80)))
                .rollback(async |_, _: Json| Ok(()))
                .await
            }),
            branch("pack", async |ctx: Ctx| {
                ctx.step("pick", async || {
                    moment(90).await;
                    Ok(4)
                })
                .await?;
                ctx.step("wrap", async || {
                    moment(50).await;
                    Ok(())
                })
                .await
            }),
        ),
    )
    .await?;
    ctx.sleep("cool off", Duration::from_millis(150)).await?;
    if id == 13 {
        ctx.step("ship", async || -> everstep::Result<()> {
            moment(30).await;
            let cause = std::io::Error::other("the van has broken down on the way to the depot");
            Err(Error::fatal("no van today").with_details(&json!({"cause": cause.to_string()})))
        })
        .await?;
    }
    if id % 2 == 1 {
        let parcel: Json = ctx.listen("parcel arrived").timeout(days(3)).await?.unwrap_or_default();
        return Ok(format!("{hold} for {}: {parcel}", order.customer));
    }
    Ok(format!("{hold} for {}", order.customer))
}

/// Waits for a person, who has a token.
#[workflow]
pub(crate) async fn approval(ctx: Ctx, expense: Json) -> everstep::Result<Json> {
    let review = ctx.deferred(REVIEW);
    ctx.set_state("token", &review.token())?;
    ctx.set_state("phase", "waiting for a reviewer")?;
    ctx.set_state("expense", &expense)?;
    let verdict = review.await?;
    verdict.map_err(|reason| Error::fatal(reason.to_string()))
}

/// Says how far it is, until it is told to stop.
#[workflow]
pub(crate) async fn import(ctx: Ctx, rows: u64) -> everstep::Result<u64> {
    ctx.set_state("phase", "reading")?;
    ctx.step_with("read", async move |step| {
        for row in 0..rows {
            step.emit("progress", &json!({"row": row, "of": rows, "note": "read and checked"}))
                .await?;
            moment(150).await;
        }
        Ok(rows)
    })
    .await
}

/// The invoices that somebody has tried to send.
static TRIED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Cannot send its invoice until it is tried again.
#[workflow]
pub(crate) async fn invoice(ctx: Ctx, no: u64) -> everstep::Result<String> {
    ctx.step("number", async move || Ok(format!("2026-{no}"))).await?;
    ctx.step("send", async move || {
        let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
        match tried.insert(no) {
            true => {
                Err(Error::fatal("the mail server does not know the address `nobody@example.org`"))
            }
            false => Ok(format!("invoice 2026-{no} was sent")),
        }
    })
    .await
}

/// Has children, and waits for them.
#[workflow]
pub(crate) async fn report(ctx: Ctx, parts: u64) -> everstep::Result<u64> {
    let children = (0..parts).map(|part| ctx.child(import, part + 1).key(format!("part-{part}")));
    let rows = ctx.join("parts", children.collect::<Vec<_>>()).await?;
    let last: u64 = ctx.child(import, 100_000).await?;
    Ok(rows.iter().sum::<u64>() + last)
}

/// Waits for an event.
#[workflow]
pub(crate) async fn subscription(ctx: Ctx, customer: String) -> everstep::Result<Json> {
    let paid = ctx.event(PAID).matching(&customer).timeout(days(30)).await?;
    Ok(paid.unwrap_or_default())
}

/// Wants a place that only one can have, and keeps it.
#[workflow]
pub(crate) async fn transfer(ctx: Ctx, cents: u64) -> everstep::Result<u64> {
    let call = ctx.step("call the bank", async move || {
        std::future::pending::<()>().await;
        Ok(cents)
    });
    call.limit(BANK).await
}

/// Cannot be undone in a lifetime.
#[workflow]
pub(crate) async fn deposit(ctx: Ctx) -> everstep::Result<()> {
    ctx.step("put", async || Ok(1))
        .rollback(async |_, _: i32| {
            std::future::pending::<()>().await;
            Ok(())
        })
        .await?;
    ctx.listen::<Json>("never").await?;
    Ok(())
}

/// What a schedule starts.
#[workflow]
pub(crate) async fn heartbeat(ctx: Ctx) -> everstep::Result<()> {
    ctx.step("beat", async || Ok(())).await
}

/// Has a step with whatever name it is given, shows and says it, and fails with it.
#[workflow]
pub(crate) async fn echo(ctx: Ctx, text: String) -> everstep::Result<String> {
    ctx.set_state(&text, &text)?;
    let said = text.clone();
    ctx.step_with(&text, async move |step| {
        step.emit("said", &said).await?;
        Ok(json!({ said.clone(): said }))
    })
    .await?;
    ctx.step("fail", async move || Err(Error::fatal(text.clone()))).await
}

/// Does so many times two steps, many at a time.
#[workflow]
pub(crate) async fn crowd(ctx: Ctx, pairs: u64) -> everstep::Result<usize> {
    let done = ctx.map("people", 0..pairs, async |ctx, person| {
        let name = ctx.step("greet", async move || Ok(format!("person {person}")));
        name.await?;
        ctx.step("seat", async move || Ok(person)).await
    });
    Ok(done.concurrency(500).await?.len())
}

async fn moment(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Schedules of each kind.
pub(crate) async fn schedules(client: &Client) -> Result<(), everstep::ClientError> {
    client.schedule("pulse of the system", heartbeat, ()).every(hours(1)).await?;
    client
        .schedule("nightly report", report, 1)
        .cron("30 2 * * MON-FRI")
        .time_zone("Europe/Berlin")
        .overlap(Overlap::Queue)
        .tag("team", "finance")
        .await?;
    let rarely = client.schedule("yearly audit", heartbeat, ());
    rarely.cron("0 9 2 1 *").paused().await?;
    Ok(())
}
