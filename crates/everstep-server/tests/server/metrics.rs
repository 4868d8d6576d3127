//! `/metrics`, `/healthz` and `/readyz`, and the Grafana dashboard that reads the first.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header},
};
use everstep::{
    Client, Engine, RunStatus,
    prelude::*,
    store::{MemoryStore, Store},
    telemetry::EngineMetrics,
};
use everstep_server::{Role, Server, Token};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// With everything that has to be escaped.
const ODD_NAME: &str = "odd \"one\" \\ two";
const ODD: Workflow<u32, u32> = Workflow::new(ODD_NAME);

#[workflow]
async fn shaky(ctx: Ctx, fails: bool) -> everstep::Result<u32> {
    let step = ctx.step_with("work", async move |step| match (step.attempt(), fails) {
        (_, true) => Err(everstep::Error::fatal("no")),
        (1, _) => Err(everstep::Error::msg("not yet")),
        (attempt, _) => Ok(attempt),
    });
    step.retry(Retry::fixed(2, Duration::ZERO)).await
}

#[workflow]
async fn patient(ctx: Ctx) -> everstep::Result<u32> {
    ctx.listen("number").await
}

async fn engine(store: &Arc<dyn Store>) -> Engine {
    let builder = Engine::on(store.clone()).register(shaky).register(patient);
    let builder = builder
        .register_fn(ODD, |ctx, n| async move { ctx.step("work", async move || Ok(n + 1)).await });
    builder.start().await.unwrap()
}

async fn ask(app: &Router, path: &str, token: Option<&str>) -> (StatusCode, String, String) {
    let mut request = Request::builder().uri(path);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.map_or("", |kind| kind.to_str().unwrap()).to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

type Labels = BTreeMap<String, String>;

/// A text in the format of Prometheus, checked while it is read.
#[derive(Debug, Default)]
struct Scrape {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

impl Scrape {
    fn parse(text: &str) -> Scrape {
        let mut scrape = Scrape::default();
        let (mut helped, mut family) = (BTreeSet::new(), String::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.ends_with('.') && !help.contains('\\'), "{line}");
                assert!(helped.insert(name.to_owned()), "{name} is begun twice");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(helped.contains(name), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert!(scrape.types.insert(name.into(), kind.into()).is_none());
                name.clone_into(&mut family);
            } else {
                let (name, labels, value) = sample(line);
                scrape.check_name(&family, &name, &labels);
                let before = scrape.samples.insert((name, labels), value);
                assert!(before.is_none(), "said twice: {line}");
            }
        }
        scrape.check_histograms();
        scrape
    }

    fn check_name(&self, family: &str, name: &str, labels: &Labels) {
        let suffix = name.strip_prefix(family).unwrap_or_else(|| {
            panic!("{name} is not of {family}, the family that was begun last");
        });
        let is_histogram = self.types[family] == "histogram";
        match (suffix, is_histogram) {
            ("", false) | ("_sum" | "_count", true) => assert!(!labels.contains_key("le")),
            ("_bucket", true) => assert!(labels.contains_key("le"), "{name}"),
            _ => panic!("{name} has no place in {family}"),
        }
    }

    fn check_histograms(&self) {
        let mut buckets = BTreeMap::<(String, Labels), Vec<(f64, f64)>>::new();
        for ((name, labels), value) in &self.samples {
            let Some(family) = name.strip_suffix("_bucket") else {
                continue;
            };
            let mut labels = labels.clone();
            let bound = labels.remove("le").unwrap();
            let bound = bound.replace("+Inf", "inf").parse().unwrap();
            let series = buckets.entry((family.to_owned(), labels)).or_default();
            series.push((bound, *value));
        }
        for ((family, labels), mut series) in buckets {
            series.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(series.is_sorted_by_key(|(_, count)| *count), "{family}: {series:?}");
            let (bound, all) = series[series.len() - 1];
            assert!(bound.is_infinite(), "{family} {labels:?} has no last bucket");
            let of = |suffix: &str| self.samples[&(format!("{family}{suffix}"), labels.clone())];
            assert_eq!(of("_count"), all, "{family}");
            assert!(of("_sum") >= 0.0);
        }
    }

    fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let key = (name.to_owned(), labels.collect());
        *self.samples.get(&key).unwrap_or_else(|| panic!("no {key:?}"))
    }
}

/// One line of samples: a name, labels with escaped values, a number.
fn sample(line: &str) -> (String, Labels, f64) {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
    let (name, rest) = match head.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap()),
        None => (head, ""),
    };
    let is_word = |text: &str| {
        let letters = text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        !text.is_empty() && letters
    };
    assert!(is_word(name), "{line}");
    let (mut labels, mut letters) = (Labels::new(), rest.chars().peekable());
    while letters.peek().is_some() {
        let label: String = letters.by_ref().take_while(|c| *c != '=').collect();
        assert!(is_word(&label), "{line}");
        assert_eq!(letters.next(), Some('"'), "{line}");
        let mut text = String::new();
        loop {
            match letters.next().unwrap() {
                '"' => break,
                '\\' => text.push(match letters.next().unwrap() {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    other => panic!("`\\{other}` in {line}"),
                }),
                letter => text.push(letter),
            }
        }
        assert!(labels.insert(label, text).is_none(), "{line}");
        if let Some(comma) = letters.next() {
            assert_eq!(comma, ',', "{line}");
        }
    }
    (name.to_owned(), labels, value)
}

async fn scrape(app: &Router) -> Scrape {
    let (status, kind, text) = ask(app, "/metrics", None).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    Scrape::parse(&text)
}

/// Waits until the numbers of the engine are so: a result is known a moment before its run is out of
/// memory.
async fn until(engine: &Engine, is_so: impl Fn(&EngineMetrics) -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so(&engine.metrics()) {
        assert!(std::time::Instant::now() < limit, "{:?}", engine.metrics());
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_is_sound_and_its_numbers_move_as_runs_are_made() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = engine(&store).await;
    let client = engine.client();
    let before = scrape(&Server::new(client.clone()).router()).await;
    assert_eq!(before.get("everstep_store_up", &[]), 1.0);
    assert_eq!(before.get("everstep_engine_ready", &[]), 1.0);
    assert!(before.get("everstep_shards_owned", &[]) > 0.0);
    let names = |scrape: &Scrape| scrape.samples.keys().map(|(name, _)| name.clone()).collect();
    let quiet: BTreeSet<String> = names(&before);
    assert!(!quiet.contains("everstep_runs"), "there are none");

    for fails in [false, false, true] {
        _ = client.start(shaky, fails).await.unwrap().result().await;
    }
    client.start(ODD, 1).await.unwrap().result().await.unwrap();
    let waiting = client.start(patient, ()).await.unwrap();
    until(&engine, |m| m.runs_moving == 0 && m.runs_hot == 1).await;

    // A server of its own: the first has kept what the store had.
    let app = Server::new(client.clone()).router();
    let after = scrape(&app).await;
    let runs = |workflow: &str, status: &str| {
        let labels = [("workflow", workflow), ("status", status)];
        after.get("everstep_runs", &labels)
    };
    assert_eq!(runs("shaky", "completed"), 2.0);
    assert_eq!(runs("shaky", "failed"), 1.0);
    assert_eq!(runs("shaky", "paused"), 0.0);
    assert_eq!(runs("patient", "sleeping"), 1.0);
    assert_eq!(runs(ODD_NAME, "completed"), 1.0, "its name is escaped");
    let ended = [("workflow", "shaky"), ("status", "failed")];
    assert_eq!(after.get("everstep_runs_ended_total", &ended), 1.0);
    let attempts = |outcome: &str| {
        let labels = [("workflow", "shaky"), ("outcome", outcome)];
        after.get("everstep_step_attempts_total", &labels)
    };
    assert_eq!(attempts("completed"), 2.0);
    assert_eq!(attempts("retried"), 2.0);
    assert_eq!(attempts("failed"), 1.0);
    let of_shaky = [("workflow", "shaky")];
    assert_eq!(after.get("everstep_step_duration_seconds_count", &of_shaky), 5.0);
    assert_eq!(after.get("everstep_runs_in_memory", &[("state", "hot")]), 1.0);
    assert_eq!(after.get("everstep_runs_cold", &[]), 0.0);
    let batches = |scrape: &Scrape| scrape.get("everstep_commit_batch_writes_count", &[]);
    assert!(batches(&after) > batches(&before));

    assert!(engine.evict(waiting.id()).await);
    until(&engine, |m| m.runs_hot == 0).await;
    let again = scrape(&app).await;
    assert_eq!(again.get("everstep_runs_cold", &[]), 1.0);
    waiting.send("number", &7u32).await.unwrap();
    assert_eq!(waiting.result().await.unwrap(), 7);
    until(&engine, |m| m.workflows["patient"].ended[&RunStatus::Completed] == 1).await;
    let last = scrape(&app).await;
    assert!(last.get("everstep_runs_loaded_total", &[]) >= 1.0);
    assert_eq!(last.get("everstep_inbox_lag_seconds_count", &[]), 1.0);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_an_engine_counts_the_runs_of_the_store() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = engine(&store).await;
    let run = engine.client().start(ODD, 1).await.unwrap();
    run.result().await.unwrap();
    engine.shutdown().await;
    let client = Client::on(store).unwrap();
    let app = Server::new(client).router();
    let alone = scrape(&app).await;
    let labels = [("workflow", ODD_NAME), ("status", "completed")];
    assert_eq!(alone.get("everstep_runs", &labels), 1.0);
    assert!(!alone.types.contains_key("everstep_engine_ready"));
    assert_eq!(ask(&app, "/readyz", None).await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_need_a_token_where_there_is_one_and_probes_do_not() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = engine(&store).await;
    let secret = "a-long-secret-for-reading-only";
    let server = Server::new(engine.client()).token(Token::new("prometheus", Role::Read, secret));
    let app = server.router();
    let (status, _, body) = ask(&app, "/metrics", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(!body.contains("everstep_"));
    let (status, _, body) = ask(&app, "/metrics", Some(secret)).await;
    assert_eq!(status, StatusCode::OK);
    Scrape::parse(&body);
    for path in ["/healthz", "/readyz"] {
        let (status, _, body) = ask(&app, path, None).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "ok\n"), "{path}");
    }
    engine.shutdown().await;
    let (status, _, body) = ask(&app, "/readyz", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "not ready: the engine shuts down\n");
    assert_eq!(ask(&app, "/healthz", None).await.0, StatusCode::OK);
}

/// Every name of ours in a query of Grafana.
fn names_in(json: &serde_json::Value, names: &mut BTreeSet<String>) {
    match json {
        serde_json::Value::Object(map) => map.values().for_each(|it| names_in(it, names)),
        serde_json::Value::Array(list) => list.iter().for_each(|it| names_in(it, names)),
        serde_json::Value::String(text) => {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let ours = words.filter(|word| word.starts_with("everstep_"));
            names.extend(ours.map(str::to_owned));
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grafana_dashboard_asks_for_what_there_is_and_shows_all_of_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = engine(&store).await;
    let run = engine.client().start(shaky, false).await.unwrap();
    run.result().await.unwrap();
    let scrape = scrape(&Server::new(engine.client()).router()).await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboards/everstep.json");
    let text = std::fs::read_to_string(path).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();

    let mut asked = BTreeSet::new();
    names_in(&dashboard, &mut asked);
    let there: BTreeSet<String> = scrape.samples.keys().map(|(name, _)| name.clone()).collect();
    let unknown: Vec<_> = asked.difference(&there).collect();
    assert!(unknown.is_empty(), "the dashboard asks for {unknown:?}");
    let is_shown = |family: &&String| asked.iter().any(|name| name.starts_with(family.as_str()));
    let hidden: Vec<_> = scrape.types.keys().filter(|family| !is_shown(family)).collect();
    assert!(hidden.is_empty(), "the dashboard does not show {hidden:?}");

    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let count = |c: char| query.matches(c).count();
            assert_eq!(count('('), count(')'), "{query}");
            assert_eq!(count('{'), count('}'), "{query}");
        }
    }
    engine.shutdown().await;
}
