//! `demo`: lively samples with a dashboard.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use everstep::{Client, Engine, Overlap, Retention, prelude::*};
use everstep_server::Server;
use serde_json::json;

use crate::{
    Exit, output, serve,
    trouble::{Outcome, Trouble},
};

mod samples;
mod visitors;

/// Where the dashboard is if nobody says otherwise, and nobody else is there.
const PORT: u16 = 7878;

#[derive(Debug, Args)]
#[command(after_help = "With `--db` the data is kept there; EVERSTEP_DB alone is not looked at.")]
pub(crate) struct Demo {
    /// The port of the dashboard on this machine; 7878 or any that is free if it is not said.
    #[arg(long)]
    port: Option<u16>,
}

pub(crate) async fn run(said: Demo, db: Option<PathBuf>) -> Outcome {
    let scratch = match db {
        Some(_) => None,
        None => Some(Scratch::new("everstep-demo")?),
    };
    let place = match (&db, &scratch) {
        (Some(db), _) => db.clone(),
        (None, Some(scratch)) => scratch.0.join("demo.db"),
        (None, None) => return Err(Trouble::usage("say `--db`")),
    };
    let engine = samples::register(Engine::open(&place))
        .settings(|settings| {
            // It may go on for days.
            settings.retention =
                Retention::new().completed(minutes(10)).failed(minutes(20)).cancelled(minutes(10));
            settings.shutdown_limit = seconds(3);
        })
        .start()
        .await?;
    let client = engine.client();
    schedules(&client).await?;
    let listening = listen(&client, said.port).await?;
    // Before anybody is told: whoever reads the address may send a signal at once.
    let end = serve::signal();
    let address = format!("http://{}", listening.address());
    let store = client.store_name();
    let text = format!("the dashboard is at {address}\nCtrl-C ends the demo on {store}");
    if output::is_json() {
        let json = json!({"address": address, "store": store});
        output::Shown::Json(json).print_one_of_many();
    } else {
        output::print(&format!("{text}\n"));
    }
    let first = match &scratch {
        Some(_) => 1_000,
        // Those before have had their own numbers.
        None => crate::args::now().as_millis().unsigned_abs() / 1_000,
    };
    let visitors = tokio::spawn(visitors::come_and_go(client, first));
    let served = serve::until(listening, end).await;
    visitors.abort();
    engine.shutdown().await;
    drop(scratch);
    served
}

async fn listen(client: &Client, port: Option<u16>) -> Result<everstep_server::Listening, Trouble> {
    let server = Server::new(client.clone());
    let at = |port: u16| format!("127.0.0.1:{port}");
    match port {
        Some(port) => serve::listen(server, &at(port)).await,
        None => match server.clone().listen(&at(PORT)).await {
            Ok(listening) => Ok(listening),
            Err(_) => serve::listen(server, &at(0)).await,
        },
    }
}

async fn schedules(client: &Client) -> Result<(), Trouble> {
    client
        .schedule("heartbeat", samples::heartbeat, ())
        .every(seconds(2))
        .overlap(Overlap::Skip)
        .await?;
    client
        .schedule("nightly-report", samples::report, 3)
        .cron("0 3 * * *")
        .time_zone("Europe/Berlin")
        .await?;
    Ok(())
}

/// A directory that is removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Scratch, Trouble> {
        Scratch::in_directory(&std::env::temp_dir(), name)
    }

    /// One in this directory.
    pub(crate) fn in_directory(parent: &std::path::Path, name: &str) -> Result<Scratch, Trouble> {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let unique = format!("{name}-{}-{}", std::process::id(), since.subsec_nanos());
        let directory = parent.join(unique);
        std::fs::create_dir_all(&directory).map_err(|error| {
            let text = format!("{} cannot be made: {error}", directory.display());
            Trouble::new(Exit::Failed, text)
        })?;
        Ok(Scratch(directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            output::note(&format!("{} is left: {error}", self.0.display()));
        }
    }
}

/// A while, as work in the real world takes one.
async fn a_while(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
