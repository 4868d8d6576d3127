//! `demo`: lively samples with a dashboard.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use everstep::{Client, Engine, Overlap, prelude::*};
use everstep_server::Server;
use serde::{Deserialize, Serialize};

use crate::{
    Exit, output,
    serve::until_signal,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7878")]
    listen: String,
    /// The file to use. It is kept; without one there is a new one, which is removed at the end.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// End after this many seconds.
    #[arg(long, value_name = "SECONDS", hide = true)]
    seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    id: u64,
    customer: String,
    amount: u64,
}

/// A saga: what was done is undone when a later step cannot be.
#[workflow]
async fn checkout(ctx: Ctx, order: Order) -> everstep::Result<String> {
    let id = order.id;
    let hold = ctx
        .step("reserve stock", async move || {
            tokio::time::sleep(Duration::from_millis(300 + id % 7 * 100)).await;
            Ok(format!("hold-{id}"))
        })
        .rollback(async move |_, hold: String| {
            tokio::time::sleep(Duration::from_millis(800)).await;
            tracing_hint(&hold);
            Ok(())
        })
        .await?;
    let amount = order.amount;
    let payment = ctx
        .step("charge card", async move || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if id % 5 == 3 {
                return Err(Error::rollback(format!(
                    "the card for {amount} was declined"
                )));
            }
            Ok(format!("payment-{id}"))
        })
        .await?;
    ctx.sleep("cool off", seconds(2 + id % 4)).await?;
    ctx.step("ship", async move || {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok(())
    })
    .await?;
    Ok(format!("{hold} and {payment} for {}", order.customer))
}

fn tracing_hint(_hold: &str) {}

/// Waits for a person.
#[workflow]
async fn approval(ctx: Ctx, expense: Order) -> everstep::Result<String> {
    let verdict: Option<bool> = ctx.listen("verdict").timeout(minutes(10)).await?;
    match verdict {
        Some(true) => Ok(format!("{} approved", expense.amount)),
        Some(false) => Err(Error::fatal("the expense was turned down")),
        None => Err(Error::fatal("nobody has decided in time")),
    }
}

/// Asks again and again until something is there.
#[workflow]
async fn poller(ctx: Ctx, rounds: u64) -> everstep::Result<u64> {
    for round in 0..rounds {
        ctx.step(&format!("look {round}"), async move || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(round * 100 / rounds.max(1))
        })
        .await?;
        ctx.sleep(&format!("wait {round}"), seconds(1)).await?;
    }
    Ok(rounds)
}

/// A step that fails a few times, and one that never works.
#[workflow]
async fn flaky(ctx: Ctx, n: u64) -> everstep::Result<u64> {
    let tried = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    ctx.step("call a tired server", async move || {
        let tried = tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if tried < n % 4 {
            return Err(Error::msg("503: come back later"));
        }
        Ok(tried)
    })
    .await?;
    if n % 3 == 2 {
        ctx.step("read the answer", async || -> everstep::Result<u64> {
            Err(Error::fatal("the answer is not JSON"))
        })
        .await?;
    }
    Ok(n)
}

/// Has children, and waits for them.
#[workflow]
async fn report(ctx: Ctx, parts: u64) -> everstep::Result<u64> {
    let mut rounds = 0;
    for part in 0..parts {
        let child: u64 = ctx.child(poller, part + 2).await?;
        rounds += child;
    }
    Ok(rounds)
}

/// What a schedule starts.
#[workflow]
async fn heartbeat(ctx: Ctx, (): ()) -> everstep::Result<()> {
    ctx.step("beat", async || Ok(())).await
}

pub(crate) async fn run(said: Demo) -> Outcome {
    let (file, _directory) = match said.file {
        Some(file) => (file, None),
        None => {
            let directory =
                std::env::temp_dir().join(format!("everstep-demo-{}", std::process::id()));
            std::fs::create_dir_all(&directory).map_err(Trouble::of)?;
            (directory.join("demo.db"), Some(Removed(directory)))
        }
    };
    let engine = Engine::open(&file)
        .register(checkout)
        .register(approval)
        .register(poller)
        .register(flaky)
        .register(report)
        .register(heartbeat)
        .start()
        .await
        .map_err(Trouble::of)?;
    let client = engine.client();
    client
        .schedule("every two seconds", heartbeat, ())
        .every(seconds(2))
        .overlap(Overlap::Skip)
        .await?;
    let server = Server::new(client.clone());
    let listening = server.listen(&said.listen).await.map_err(Trouble::of)?;
    output::note(&format!(
        "the dashboard is at http://{}",
        listening.address()
    ));
    output::note(&format!(
        "the store is {}; Ctrl-C ends the demo",
        file.display()
    ));
    let busy = tokio::spawn(keep_busy(client));
    let end = said.seconds.map(Duration::from_secs);
    let until = async move {
        match end {
            Some(end) => tokio::time::sleep(end).await,
            None => until_signal().await,
        }
    };
    listening.run(until).await.map_err(Trouble::of)?;
    busy.abort();
    engine.shutdown().await;
    Ok(Exit::Done)
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts something every now and then, decides what waits for a person, pauses and cancels.
async fn keep_busy(client: Client) {
    let customers = ["Ada", "Grace", "Edsger", "Barbara", "Leslie", "Tony"];
    for n in 0u64.. {
        let customer = customers[n as usize % customers.len()].to_owned();
        let order = Order {
            id: n,
            customer: customer.clone(),
            amount: 10 + n * 37 % 500,
        };
        let started = one_more(&client, n, &customer, order).await;
        if let Err(error) = started {
            output::note(&format!("the demo cannot start more: {error}"));
            return;
        }
        let pause = if n < 24 { 60 } else { 700 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

async fn one_more(
    client: &Client,
    n: u64,
    customer: &str,
    order: Order,
) -> Result<(), everstep::ClientError> {
    match n % 6 {
        0 | 1 => {
            let key = format!("order-{n}");
            let start = client.start(checkout, order).key(key);
            start.tag("customer", customer).await?;
        }
        2 => {
            let run = client
                .start(approval, order)
                .tag("customer", customer)
                .await?;
            if n % 4 == 0 {
                run.send("verdict", &(n % 8 != 0)).await?;
            } else if n % 12 == 2 {
                run.pause().await?;
            }
        }
        3 => _ = client.start(poller, 5 + n % 5).await?,
        4 => _ = client.start(flaky, n).await?,
        _ => {
            let run = client.start(report, 3).await?;
            if n % 12 == 11 {
                run.cancel().await?;
            }
        }
    }
    Ok(())
}
