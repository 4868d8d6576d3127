//! The people of the demo: they start things, decide, pay, pause, and change their minds.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use everstep::{Client, ClientError, RunHandle, RunId, Token};

use super::{
    a_while,
    samples::{self, Order},
};
use crate::output;

/// How many come at once in the beginning, so that there is something to see.
const CROWD: u64 = 40;

/// Something that is done later.
enum Later {
    Decide(RunHandle<String>, bool),
    Pay(u64, u64),
    Resume(RunId),
    Cancel(RunId),
}

/// Starts something every now and then, for ever. `first` is the number of the first order.
pub(super) async fn come_and_go(client: Client, first: u64) {
    let mut later = VecDeque::new();
    for n in first.. {
        let done = async {
            visit(&client, n, &mut later).await?;
            see_to(&client, &mut later).await
        };
        if let Err(error) = done.await {
            // Somebody may have deleted or cancelled it: the next one comes all the same.
            turned_away(&error);
        }
        a_while(if n < first + CROWD { 40 } else { 600 }).await;
    }
}

fn turned_away(error: &ClientError) {
    output::note(&format!("a visitor of the demo was turned away: {error}"));
}

type Plans = VecDeque<(Instant, Later)>;

async fn visit(client: &Client, n: u64, later: &mut Plans) -> Result<(), ClientError> {
    const CUSTOMERS: [&str; 6] = ["Ada", "Grace", "Edsger", "Barbara", "Leslie", "Tony"];
    let customer = CUSTOMERS[(n / 3 % 6) as usize];
    let order = Order { id: n, customer: customer.to_owned(), amount: 10 + n * 37 % 490 };
    let mut plan = |seconds: u64, what: Later| {
        later.push_back((Instant::now() + Duration::from_secs(seconds), what));
    };
    match n % 10 {
        0 | 1 | 5 => {
            let start = client.start(samples::checkout, order);
            let start = start.key(format!("order-{n}"));
            start.tag("customer", customer).await?;
        }
        2 => {
            let start = client.start(samples::expense, order);
            let run = start.tag("customer", customer).await?;
            match n / 10 % 4 {
                0 => {
                    run.pause().await?;
                    plan(25, Later::Resume(run.id()));
                    plan(30, Later::Decide(run, true));
                }
                1 => {} // Nobody decides in time.
                other => plan(5 + n % 7, Later::Decide(run, other == 2)),
            }
        }
        3 => {
            let amount = order.amount;
            client.start(samples::invoice, order).await?;
            plan(4, Later::Pay(n, amount));
        }
        4 => _ = client.start(samples::parcel, 4 + n % 9).await?,
        6 => _ = client.start(samples::fetch, n / 10).await?,
        7 => {
            let run = client.start(samples::report, 2 + n / 10 % 3).await?;
            if (n / 10).is_multiple_of(3) {
                plan(2, Later::Cancel(run.id()));
            }
        }
        8 => {
            let names = (0..4).map(|part| format!("picture-{}", n + part));
            client.start(samples::album, names.collect()).await?;
        }
        _ => {
            let question = format!("What does an engine promise to {customer}?");
            client.start(samples::answer, question).await?;
        }
    }
    Ok(())
}

/// Does what was put off until now.
async fn see_to(client: &Client, later: &mut Plans) -> Result<(), ClientError> {
    let now = Instant::now();
    for _ in 0..later.len() {
        let Some((at, what)) = later.pop_front() else {
            break;
        };
        if at > now {
            later.push_back((at, what));
            continue;
        }
        match what {
            Later::Decide(run, verdict) => match run.state::<Token>("token").await? {
                Some(token) => {
                    let gate = client.deferred(samples::VERDICT, &token);
                    gate.resolve(&verdict).await?;
                }
                None => {
                    let soon = now + Duration::from_secs(1);
                    later.push_back((soon, Later::Decide(run, verdict)));
                }
            },
            Later::Pay(order, amount) => {
                let paid = client.publish(samples::PAID, &amount);
                paid.key(order.to_string()).await?;
            }
            Later::Resume(run) => client.run::<()>(run).resume().await?,
            Later::Cancel(run) => _ = client.run::<()>(run).cancel().await?,
        }
    }
    Ok(())
}
