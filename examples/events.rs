//! Orders that wait for their payment, parcels that one of several packers takes, and a message that
//! comes too late.
//!
//! ```text
//! cargo run --release --example events
//! ```
//!
//! A payment is a broadcast with a key: whoever waits for that order sees it, also if it was
//! published first. A parcel is for one: however many packers wait, one gets it, and the next one
//! goes to the next packer.

use everstep::{Deliver, IfFinished, PublishedEvent, Replayed, Sent, prelude::*};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Payment {
    cents: u64,
}

const PAID: Event<Payment> = Event::new("paid");
const PARCEL: Event<String> = Event::new("parcel").delivery(Deliver::One);
const LATE: Event<String> = Event::new("late-word");

#[workflow]
async fn order(ctx: Ctx, id: String) -> Result<String> {
    let paid = ctx.event(PAID).matching(&id).timeout(days(14)).await?;
    let Some(payment) = paid else {
        return Ok(format!("{id} was never paid"));
    };
    ctx.publish(PARCEL, &id).await?;
    Ok(format!("{id} is paid: {} cents", payment.cents))
}

#[workflow]
async fn packer(ctx: Ctx, name: String) -> Result<Vec<String>> {
    let mut packed = Vec::new();
    // Until nothing has come for a day.
    while let Some(parcel) = ctx.event(PARCEL).timeout(days(1)).await? {
        ctx.step("pack", async || {
            println!("{name} packs {parcel}");
            Ok(())
        })
        .await?;
        packed.push(parcel);
    }
    Ok(packed)
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Virtual time, so that two weeks pass in a moment.
    let clock = everstep::testing::VirtualClock::new();
    let engine =
        Engine::in_memory().register(order).register(packer).clock(clock.clone()).start().await?;
    let client = engine.client();
    let held = clock.hold();
    let mut packers = Vec::new();
    for name in ["Ada", "Grace"] {
        packers.push(client.start(packer, name.to_owned()).await?);
    }

    // Before the order waits, and after.
    let early = client.publish(PAID, &Payment { cents: 1250 }).key("order-1");
    assert!(matches!(early.await?, PublishedEvent::Published { told: 0, kept: true, .. }));
    let first = client.start(order, "order-1".to_owned()).await?;
    let second = client.start(order, "order-2".to_owned()).await?;
    let third = client.start(order, "order-3".to_owned()).await?;
    client.publish(PAID, &Payment { cents: 300 }).key("order-2").dedupe("payment-2").await?;
    let again = client.publish(PAID, &Payment { cents: 300 });
    let again = again.key("order-2").dedupe("payment-2").await?;
    assert_eq!(again, PublishedEvent::Duplicate);
    drop(held);
    for run in [&first, &second, &third] {
        println!("{}", run.result().await?);
    }
    let mut packed = Vec::new();
    for run in &packers {
        packed.extend(run.result().await?);
    }
    packed.sort();
    assert_eq!(packed, ["order-1", "order-2"]);

    // A message to a run that has ended: an event for whoever cares, or a dead letter.
    let policy = IfFinished::Publish(LATE.name().to_owned());
    let sent = first.send("word", &"thanks").if_finished(policy).await?;
    assert_eq!(sent, Sent::Published);
    let dead = first.send("word", &"hello?").if_finished(IfFinished::DeadLetter);
    assert_eq!(dead.await?, Sent::DeadLettered);
    for letter in client.dead_letters().run(first.id()).await?.letters {
        println!("letter {}: {} ({})", letter.no, letter.body, letter.reason);
        let replayed = client.replay_dead_letter(letter.no).as_event(LATE.name());
        assert!(matches!(replayed.await?, Replayed::Published { .. }));
    }
    engine.shutdown().await;
    Ok(())
}
