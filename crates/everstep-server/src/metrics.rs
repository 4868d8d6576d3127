//! `/metrics`, in the text format of Prometheus (0.0.4).
//!
//! Runs by status and workflow come from the store. To count a million of them takes up to a second,
//! so the answer is kept: for five seconds, or twenty times as long as it took. All else comes from
//! the engine that the server's client belongs to, and costs nothing to read; without an engine it is
//! left out.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    http::header,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use everstep::{
    ClientError, Role, RunStatus,
    telemetry::{EngineMetrics, EngineMonitor},
};
use tokio::sync::Mutex;

use crate::{
    App,
    guard::{self, Guarded},
    table::Verb,
};

mod exposition;

use exposition::{Exposition, Kind};

/// How long the counts of the store are kept at least.
const KEPT: Duration = Duration::from_secs(5);

/// And as many times as long as they took.
const KEPT_TIMES: u32 = 20;

/// Workflows beyond this many are counted together, as the engine does with its own.
const WORKFLOWS_MAX: usize = 200;

/// All statuses, in the order of their life.
const STATUSES: [RunStatus; 8] = [
    RunStatus::Pending,
    RunStatus::Running,
    RunStatus::Sleeping,
    RunStatus::RollingBack,
    RunStatus::Paused,
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
];

/// How many runs of a workflow have which status.
type Counts = BTreeMap<String, BTreeMap<RunStatus, u64>>;

/// The counts of the store, as they were.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<(Instant, Counts)>>);

impl Kept {
    /// The counts; asked for by one at a time, and only if they are too old.
    async fn counts(&self, app: &App) -> Result<Counts, ClientError> {
        let mut kept = self.0.lock().await;
        if let Some((until, counts)) = &*kept
            && Instant::now() < *until
        {
            return Ok(counts.clone());
        }
        let begun = Instant::now();
        let mut counts = Counts::new();
        for tally in app.client.tally().await? {
            let is_new = !counts.contains_key(&*tally.workflow);
            let name = match is_new && counts.len() >= WORKFLOWS_MAX {
                true => "other",
                false => &*tally.workflow,
            };
            let of_name = counts.entry(name.to_owned()).or_default();
            *of_name.entry(tally.status).or_default() += tally.runs;
        }
        let until = Instant::now() + kept_for(begun.elapsed());
        *kept = Some((until, counts.clone()));
        Ok(counts)
    }
}

/// How long counts are kept that took so long.
fn kept_for(took: Duration) -> Duration {
    KEPT.max(took * KEPT_TIMES)
}

pub(crate) fn routes(app: &App) -> Router<App> {
    let app = app.clone();
    // Whoever may read runs may read numbers about them.
    let operation = Guarded {
        verb: Verb::Get,
        path: "/metrics",
        name: "get_metrics",
        role: Some(Role::Read),
        declared: Arc::default(),
    };
    let guard = move |request: Request, next: Next| {
        let (app, operation) = (app.clone(), operation.clone());
        async move { guard::guarded(app, operation, request, next).await }
    };
    let route = get(metrics).layer(middleware::from_fn(guard));
    Router::new().route("/metrics", route)
}

async fn metrics(State(app): State<App>) -> Response {
    let counts = app.metrics.counts(&app).await;
    if let Err(error) = &counts {
        tracing::warn!(%error, "the runs cannot be counted for `/metrics`");
    }
    let text = render(counts.ok().as_ref(), app.client.engine().as_ref());
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, text).into_response()
}

/// The whole text. Without counts the store could not be read.
fn render(counts: Option<&Counts>, engine: Option<&EngineMonitor>) -> String {
    let mut out = Exposition::default();
    out.family("everstep_build_info", Kind::Gauge, "The version of everstep.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    out.family(
        "everstep_store_up",
        Kind::Gauge,
        "Whether the store could be read when the runs were last counted.",
    );
    out.sample(&[], f64::from(u8::from(counts.is_some())));
    if let Some(counts) = counts {
        runs(&mut out, counts);
    }
    if let Some(engine) = engine {
        let metrics = engine.metrics();
        in_memory(&mut out, &metrics, counts);
        by_workflow(&mut out, &metrics);
        delays(&mut out, &metrics);
        ownership(&mut out, &metrics, engine.ready().is_ok());
    }
    out.finish()
}

fn runs(out: &mut Exposition, counts: &Counts) {
    out.family("everstep_runs", Kind::Gauge, "Runs in the store, by workflow and status.");
    for (workflow, of_workflow) in counts {
        for status in STATUSES {
            let labels = [("workflow", workflow.as_str()), ("status", status.as_str())];
            let runs = of_workflow.get(&status).copied().unwrap_or(0);
            out.sample(&labels, runs as f64);
        }
    }
}

fn in_memory(out: &mut Exposition, metrics: &EngineMetrics, counts: Option<&Counts>) {
    let in_memory = metrics.runs_moving + metrics.runs_hot;
    out.family(
        "everstep_runs_in_memory",
        Kind::Gauge,
        "Runs in the memory of this process: moving, or parked and hot.",
    );
    out.sample(&[("state", "moving")], metrics.runs_moving as f64);
    out.sample(&[("state", "hot")], metrics.runs_hot as f64);
    if let Some(counts) = counts {
        let all = counts.values().flatten();
        let live = all.filter(|(status, _)| !status.is_terminal());
        let live: u64 = live.map(|(_, runs)| runs).sum();
        out.family(
            "everstep_runs_cold",
            Kind::Gauge,
            "Runs in the store that have not ended and are not in the memory of this process.",
        );
        out.sample(&[], live.saturating_sub(in_memory) as f64);
    }
    out.family(
        "everstep_hot_bytes",
        Kind::Gauge,
        "About how many bytes parked runs take in memory.",
    );
    out.sample(&[], metrics.hot_bytes as f64);
    out.counter(
        "everstep_runs_loaded_total",
        "Runs that were read from the store and replayed.",
        metrics.runs_loaded,
    );
    out.counter(
        "everstep_runs_cooled_total",
        "Parked runs that were dropped from memory to make room.",
        metrics.runs_cooled,
    );
}

fn by_workflow(out: &mut Exposition, metrics: &EngineMetrics) {
    out.family(
        "everstep_runs_ended_total",
        Kind::Counter,
        "Runs that have ended in this process, by workflow and status.",
    );
    for (workflow, of_workflow) in &metrics.workflows {
        for (status, runs) in &of_workflow.ended {
            let labels = [("workflow", workflow.as_str()), ("status", status.as_str())];
            out.sample(&labels, *runs as f64);
        }
    }
    out.family(
        "everstep_step_attempts_total",
        Kind::Counter,
        "Attempts at steps that have ended, by workflow and outcome.",
    );
    for (workflow, of_workflow) in &metrics.workflows {
        for (outcome, attempts) in &of_workflow.attempts {
            let labels = [("workflow", workflow.as_str()), ("outcome", outcome.as_str())];
            out.sample(&labels, *attempts as f64);
        }
    }
    out.family(
        "everstep_step_duration_seconds",
        Kind::Histogram,
        "How long attempts at steps took, by workflow.",
    );
    for (workflow, of_workflow) in &metrics.workflows {
        out.histogram(&[("workflow", workflow)], &of_workflow.step_seconds);
    }
}

fn delays(out: &mut Exposition, metrics: &EngineMetrics) {
    for (name, help, histogram) in [
        (
            "everstep_commit_batch_writes",
            "How many writes were made durable together.",
            &metrics.batch_writes,
        ),
        (
            "everstep_commit_duration_seconds",
            "How long the store took to make a batch durable.",
            &metrics.batch_seconds,
        ),
        (
            "everstep_timer_lag_seconds",
            "How long after their time runs were taken up.",
            &metrics.timer_lag_seconds,
        ),
        (
            "everstep_inbox_lag_seconds",
            "How long messages and answers lay in an inbox before a run took them.",
            &metrics.inbox_lag_seconds,
        ),
    ] {
        out.family(name, Kind::Histogram, help);
        out.histogram(&[], histogram);
    }
}

fn ownership(out: &mut Exposition, metrics: &EngineMetrics, ready: bool) {
    out.family(
        "everstep_engine_ready",
        Kind::Gauge,
        "Whether the engine of this process takes up runs: 0 while it has no lease, or shuts down.",
    );
    out.sample(&[], f64::from(u8::from(ready)));
    out.family("everstep_shards_owned", Kind::Gauge, "Shards that this process has.");
    out.sample(&[], metrics.shards as f64);
    for (name, help, value) in [
        (
            "everstep_takeovers_total",
            "Times that shards of a runner that had died were taken.",
            metrics.counters.takeovers,
        ),
        (
            "everstep_leases_lost_total",
            "Times that this process found its lease to be over, and held still.",
            metrics.counters.self_fenced,
        ),
        (
            "everstep_commits_refused_total",
            "Commits that the store refused since the shard was no longer this process's own.",
            metrics.counters.stale_commits_refused,
        ),
        (
            "everstep_runs_handed_over_total",
            "Runs that were handed over to another pool.",
            metrics.counters.handed_over,
        ),
    ] {
        out.counter(name, help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_takes_at_most_a_twentieth_of_the_time() {
        assert_eq!(kept_for(Duration::from_millis(1)), Duration::from_secs(5));
        assert_eq!(kept_for(Duration::from_secs(1)), Duration::from_secs(20));
    }
}
