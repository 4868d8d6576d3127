//! `bench`: how fast the engine is on this kind of store.
//!
//! It measures in a file or a schema of its own, beside the one that is named, so on the same disk or
//! server; what is in the store of the user is not touched.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use everstep::{Client, Engine, prelude::*, store::PostgresStore};
use serde_json::{Value as Json, json};

use crate::{
    Exit, args,
    demo::Scratch,
    output::{Shown, Table, is_json},
    progress::Progress,
    serve,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// How many runs are started at once and one after another, together.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(20..))]
    runs: u64,
    /// How many of them at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    at_once: u64,
    /// How many steps each has.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    steps: u32,
}

/// What is measured: steps that do nothing, so that everything else is seen.
#[workflow]
async fn steps_of_nothing(ctx: Ctx, steps: u32) -> everstep::Result<u32> {
    for n in 0..steps {
        ctx.step("step", async move || Ok(n)).await?;
    }
    Ok(steps)
}

pub(crate) async fn run(db: Option<PathBuf>, said: Bench) -> Outcome {
    let place = Place::beside(db.as_deref())?;
    let measured = tokio::select! {
        measured = measure(&place, &said) => measured,
        () = serve::signal() => Err(Trouble::new(Exit::Failed, "ended by a signal; nothing is left")),
    };
    let removed = place.remove().await;
    measured?.print();
    removed?;
    Ok(Exit::Done)
}

async fn measure(place: &Place, said: &Bench) -> Result<Shown, Trouble> {
    let engine = Engine::open(place.name()).register(steps_of_nothing).start().await?;
    let client = engine.client();
    // One in twenty is enough to see how long one takes that has the engine to itself.
    let alone = said.runs / 20;
    let progress = Arc::new(Progress::of(said.runs, "one by one"));
    let one_by_one = Measured::of(&client, &progress, alone, 1, said.steps).await?;
    progress.message("at once");
    let together = said.runs - alone;
    let at_once = Measured::of(&client, &progress, together, said.at_once, said.steps).await?;
    progress.end();
    engine.shutdown().await;
    Ok(shown(place, said, &one_by_one, &at_once))
}

/// How long runs took, each and together.
struct Measured {
    at_once: u64,
    took: Duration,
    latencies: Vec<Duration>,
}

impl Measured {
    async fn of(
        client: &Client,
        progress: &Arc<Progress>,
        runs: u64,
        at_once: u64,
        steps: u32,
    ) -> Result<Measured, Trouble> {
        let begun = Instant::now();
        let left = Arc::new(AtomicU64::new(runs));
        let mut starters = tokio::task::JoinSet::new();
        for _ in 0..at_once.min(runs) {
            let starter = starter(client.clone(), left.clone(), progress.clone(), steps);
            starters.spawn(starter);
        }
        let mut latencies = Vec::new();
        while let Some(done) = starters.join_next().await {
            let done = done.map_err(Trouble::of)?;
            latencies.extend(done?);
        }
        let took = begun.elapsed();
        latencies.sort();
        Ok(Measured { at_once, took, latencies })
    }

    fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// The latency that this part of the runs did not exceed, in milliseconds.
    fn within(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * part).round() as usize;
        let found = self.latencies.get(at).copied().unwrap_or_default();
        (found.as_secs_f64() * 1e5).round() / 1e2
    }

    fn json(&self, steps: u32) -> Json {
        let runs = self.per_second();
        json!({
            "at_once": self.at_once,
            "runs": self.latencies.len(),
            "runs_per_second": runs.round(),
            "steps_per_second": (runs * f64::from(steps)).round(),
            "latency_ms": {
                "p50": self.within(0.5), "p95": self.within(0.95), "p99": self.within(0.99),
            },
        })
    }
}

/// Starts runs one after another and waits for each, as long as some are left.
async fn starter(
    client: Client,
    left: Arc<AtomicU64>,
    progress: Arc<Progress>,
    count: u32,
) -> Result<Vec<Duration>, Trouble> {
    let mut latencies = Vec::new();
    let next = |left: u64| left.checked_sub(1);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
        let begun = Instant::now();
        client.start(steps_of_nothing, count).await?.result().await?;
        latencies.push(begun.elapsed());
        progress.step();
    }
    Ok(latencies)
}

fn shown(place: &Place, said: &Bench, one_by_one: &Measured, at_once: &Measured) -> Shown {
    let store = place.kind();
    if is_json() {
        return Shown::Json(json!({
            "store": store,
            "steps": said.steps,
            "one_by_one": one_by_one.json(said.steps),
            "at_once": at_once.json(said.steps),
        }));
    }
    let mut table = Table::new(["AT ONCE", "RUNS", "RUNS/S", "STEPS/S", "P50", "P95", "P99"]);
    for measured in [one_by_one, at_once] {
        let runs = measured.per_second();
        let ms = |part| format!("{} ms", measured.within(part));
        table.row([
            measured.at_once.to_string().into(),
            measured.latencies.len().to_string().into(),
            format!("{runs:.0}").into(),
            format!("{:.0}", runs * f64::from(said.steps)).into(),
            ms(0.5).into(),
            ms(0.95).into(),
            ms(0.99).into(),
        ]);
    }
    let text = format!("runs of {} steps on {store}\n", said.steps);
    Shown::Text(text + &table.text(""))
}

/// Where it is measured.
enum Place {
    File(Scratch),
    /// The URL of a schema.
    Schema(String),
}

impl Place {
    /// One of the same kind, on the same disk or server.
    fn beside(db: Option<&Path>) -> Result<Place, Trouble> {
        let Some(db) = db else {
            return Ok(Place::File(Scratch::new("everstep-bench")?));
        };
        let text = db.to_string_lossy();
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        if scheme.is_some_and(args::is_postgres) {
            let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            let unique = format!("{}_{}", std::process::id(), since.subsec_nanos());
            let schema = format!("everstep_bench_{unique}");
            let sign = if text.contains('?') { '&' } else { '?' };
            // What is said last counts.
            return Ok(Place::Schema(format!("{text}{sign}schema={schema}")));
        }
        let parent = db.parent().filter(|it| !it.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        if !parent.is_dir() {
            let text = format!("there is no directory {}", parent.display());
            return Err(Trouble::new(Exit::Unavailable, text));
        }
        Ok(Place::File(Scratch::in_directory(parent, ".everstep-bench")?))
    }

    fn name(&self) -> PathBuf {
        match self {
            Place::File(scratch) => scratch.0.join("bench.db"),
            Place::Schema(url) => PathBuf::from(url),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Place::File(_) => "SQLite",
            Place::Schema(_) => "PostgreSQL",
        }
    }

    async fn remove(self) -> Result<(), Trouble> {
        match self {
            Place::File(scratch) => drop(scratch),
            Place::Schema(url) => {
                let dropping =
                    tokio::task::spawn_blocking(move || PostgresStore::open(&url)?.drop_schema());
                dropping.await.map_err(Trouble::of)??;
            }
        }
        Ok(())
    }
}
