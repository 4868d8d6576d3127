//! One failover, from the first run to the last result.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{
    Engine, RunError, RunHandle, WorkflowRef,
    prelude::*,
    store::{PostgresStore, Store},
};
use everstep_pg::{Instance, Settings, fresh_schema, url_of_all};
use tokio::task::JoinSet;

use crate::{
    Problem,
    ledger::Ledger,
    load::{self, ORDER, STEPS, again, order, place},
};

/// How long everything may take to finish after the promotion.
const FINISH_LIMIT: Duration = Duration::from_secs(120);

/// How many orders are placed at a time.
const AT_ONCE: u64 = 20;

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Report {
    settings: String,
    runs: u64,
    bodies: u64,
    again: u64,
    differs: u64,
    messages_sent: u64,
    messages_lost: u64,
    not_finished: u64,
    registered_again: u64,
    settled: u64,
    /// From the promotion to the first body that ended after it, the longest of all rounds.
    resumed_ms: u128,
    /// What was not as it should be.
    pub(crate) wrong: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, other: &Report) {
        self.settings.clone_from(&other.settings);
        self.runs += other.runs;
        self.bodies += other.bodies;
        self.again += other.again;
        self.differs += other.differs;
        self.messages_sent += other.messages_sent;
        self.messages_lost += other.messages_lost;
        self.not_finished += other.not_finished;
        self.registered_again += other.registered_again;
        self.settled += other.settled;
        self.resumed_ms = self.resumed_ms.max(other.resumed_ms);
        self.wrong.extend(other.wrong.iter().cloned());
    }

    /// The line that the drill prints.
    pub(crate) fn line(&self, rounds: u64, took: Duration) -> String {
        format!(
            "{{\"runs\":{},\"failovers\":{rounds},\"steps_completed\":{},\"bodies_run\":{},\
             \"run_again_after_completion\":{},\"messages_sent\":{},\"messages_lost\":{},\
             \"order_differs\":{},\"runs_not_finished\":{},\"registered_again\":{},\
             \"unknown_outcomes_settled\":{},\"resumed_after_ms\":{},\"took_s\":{},{}}}",
            self.runs,
            (self.runs - self.not_finished) * STEPS as u64,
            self.bodies,
            self.again,
            self.messages_sent,
            self.messages_lost,
            self.differs,
            self.not_finished,
            self.registered_again,
            self.settled,
            self.resumed_ms,
            took.as_secs(),
            self.settings
        )
    }

    /// Every promise that was not kept.
    fn judge(&mut self, round: u64) {
        let zeros = [
            ("run_again_after_completion", self.again),
            ("messages_lost", self.messages_lost),
            ("order_differs", self.differs),
            ("runs_not_finished", self.not_finished),
        ];
        for (name, number) in zeros {
            if number > 0 {
                self.wrong.push(format!("round {round}: {name} is {number}"));
            }
        }
        if self.registered_again == 0 {
            let what = "the runner has not registered again, so that its runs were not reloaded";
            self.wrong.push(format!("round {round}: {what}"));
        }
    }
}

/// Both servers, the settings checked.
fn servers() -> Result<(Instance, Instance, Settings), Problem> {
    let primary = Instance::start_new()?;
    let standby = primary.standby()?;
    let settings = primary.settings()?;
    settings.check()?;
    Ok((primary, standby, settings))
}

pub(crate) async fn run(round: u64, many: u64) -> Result<Report, Problem> {
    let (primary, standby, settings) = tokio::task::spawn_blocking(servers).await??;
    eprintln!("round {round}: {settings}, one synchronous standby");
    let both = url_of_all(&[&primary, &standby], "postgres");
    let url = format!("{both}&schema={}", fresh_schema());

    let ledger = Arc::new(Ledger::default());
    let store = Arc::new(PostgresStore::open(&url)?);
    let of_code = ledger.clone();
    let engine = Engine::on(store.clone())
        .register_fn(ORDER, move |ctx, no| order(ctx, no, of_code.clone()))
        .settings(|settings| {
            settings.lease = Duration::from_secs(2);
            settings.heartbeat = Some(Duration::from_millis(400));
        })
        .start()
        .await?;
    let client = Client::open(&url).await?;
    let epoch = epoch_of(&store)?;

    let placed = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut placing = JoinSet::new();
    let count = Arc::new(AtomicU64::new(0));
    for _ in 0..AT_ONCE {
        let (client, placed, stop) = (client.clone(), placed.clone(), stop.clone());
        let count = count.clone();
        placing.spawn(async move {
            let mut runs = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let no = placed.fetch_add(1, Ordering::Relaxed);
                runs.push((no, place(&client, no).await));
                count.fetch_add(1, Ordering::Relaxed);
            }
            runs
        });
    }
    until(|| count.load(Ordering::Relaxed) >= many / 2, "runs are under way").await?;

    let (primary, standby) = tokio::task::spawn_blocking(move || {
        primary.kill9()?;
        standby.promote()?;
        Ok::<_, everstep_pg::Error>((primary, standby))
    })
    .await??;
    let promoted = Instant::now();
    let before = ledger.ended();
    until(|| ledger.ended() > before, "the engine goes on").await?;
    let resumed_ms = promoted.elapsed().as_millis();
    until(|| count.load(Ordering::Relaxed) >= many, "runs are started").await?;
    stop.store(true, Ordering::Relaxed);

    let mut report = Report { settings: json(&settings), resumed_ms, ..Report::default() };
    let deadline = tokio::time::Instant::now() + FINISH_LIMIT;
    while let Some(runs) = placing.join_next().await {
        for (no, run) in runs? {
            check(&mut report, &ledger, no, &run, deadline).await;
        }
    }
    let stored = client.count().workflow(ORDER.name()).await?;
    if stored != report.runs {
        let runs = report.runs;
        let what = format!("round {round}: {runs} orders were placed, and {stored} are there");
        report.wrong.push(what);
    }
    report.registered_again = u64::from(epoch_of(&store)? != epoch);
    report.settled = store.unknown_outcomes_settled();
    engine.shutdown().await;
    drop((primary, standby));
    report.judge(round);
    Ok(report)
}

/// Waits for a run and compares what it gave with what its bodies did.
async fn check(
    report: &mut Report,
    ledger: &Ledger,
    no: u64,
    run: &RunHandle<load::Results>,
    deadline: tokio::time::Instant,
) {
    report.runs += 1;
    report.messages_sent += 1;
    let result = loop {
        match tokio::time::timeout_at(deadline, run.result()).await {
            Ok(Ok(result)) => break Some(result),
            // The database may still be away for whoever asks.
            Ok(Err(RunError::Client(error))) => again("waiting for a result", &error).await,
            Ok(Err(error)) => {
                report.wrong.push(format!("order {no}: {error}"));
                break None;
            }
            Err(_) => {
                report.wrong.push(format!("order {no} has not ended in time"));
                break None;
            }
        }
    };
    let Some((results, message)) = result else {
        report.not_finished += 1;
        return;
    };
    let shown = ledger.show(no, &results);
    report.bodies += shown.bodies;
    report.again += shown.again;
    report.differs += shown.differs;
    report.messages_lost += u64::from(message != load::word(no));
}

/// The epoch of the only runner.
fn epoch_of(store: &PostgresStore) -> Result<u64, Problem> {
    let runners = store.runners()?;
    let first = runners.first().ok_or("the engine is not registered")?;
    Ok(first.epoch)
}

async fn until(mut is_so: impl FnMut() -> bool, what: &str) -> Result<(), Problem> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > FINISH_LIMIT {
            return Err(format!("waited too long until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

fn json(settings: &Settings) -> String {
    format!(
        "\"fsync\":\"{}\",\"synchronous_commit\":\"{}\",\"full_page_writes\":\"{}\"",
        settings.fsync, settings.synchronous_commit, settings.full_page_writes
    )
}
