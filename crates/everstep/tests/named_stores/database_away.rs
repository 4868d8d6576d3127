//! An engine whose database goes away: it waits, loses nothing, fails nothing, repeats nothing, and
//! goes on by itself.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{
    RunHandle,
    prelude::*,
    store::{PostgresOptions, PostgresStore, Store},
    testing,
};
use everstep_pg::{Instance, Pgbouncer, Proxy, Shutdown, Which, fresh_schema};

/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

const STEPS: u32 = 6;
const CHAIN: Workflow<u64, u32> = Workflow::new("chain");

/// The steps of each run in the order in which their bodies began.
type Ledger = Arc<Mutex<BTreeMap<u64, Vec<u32>>>>;

async fn chain(ctx: Ctx, no: u64, ledger: Ledger) -> Result<u32> {
    let mut sum = 0;
    for step in 0..STEPS {
        let ledger = ledger.clone();
        let body = async move || {
            ledger.lock().unwrap().entry(no).or_default().push(step);
            Ok(step)
        };
        sum += ctx.step(&format!("step {step}"), body).await?;
    }
    Ok(sum)
}

/// An engine with short leases on this URL.
async fn engine(url: &str, ledger: &Ledger) -> (Engine, Arc<PostgresStore>) {
    let store = Arc::new(PostgresStore::open(url).unwrap());
    let ledger = ledger.clone();
    let engine = Engine::on(store.clone())
        .register_fn(CHAIN, move |ctx, no| chain(ctx, no, ledger.clone()))
        .settings(|settings| {
            settings.lease = Duration::from_secs(1);
            settings.heartbeat = Some(Duration::from_millis(200));
            settings.shutdown_limit = Duration::from_secs(2);
            settings.threads = 2;
        })
        .start()
        .await
        .unwrap();
    (engine, store)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts runs one after another until it is told to stop.
struct Load {
    started: Arc<AtomicU64>,
    stop: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<Vec<RunHandle<u32>>>,
}

impl Load {
    fn begin(client: Client) -> Load {
        let started = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let count = started.clone();
        let task = tokio::spawn(async move {
            let mut runs = Vec::new();
            while !*stopped.borrow() {
                let no = count.load(Ordering::Relaxed);
                runs.push(client.start(CHAIN, no).await.unwrap());
                count.fetch_add(1, Ordering::Relaxed);
            }
            runs
        });
        Load { started, stop, task }
    }

    /// Waits until so many more have been started: the engine works.
    async fn goes_on(&self, more: u64) {
        let before = self.started.load(Ordering::Relaxed);
        let started = &self.started;
        until("runs are started", || started.load(Ordering::Relaxed) >= before + more).await;
    }

    /// Stops and waits until each run has ended well.
    async fn end(self, ledger: &Ledger) -> BTreeMap<u64, Vec<u32>> {
        self.stop.send(true).unwrap();
        let runs = self.task.await.unwrap();
        for run in &runs {
            let result = tokio::time::timeout(PATIENCE, run.result()).await;
            assert_eq!(result.unwrap().unwrap(), (0..STEPS).sum::<u32>());
        }
        let ledger = ledger.lock().unwrap().clone();
        assert_eq!(ledger.len(), runs.len());
        ledger
    }

    /// As [`end`](Self::end), with each body run once.
    async fn end_with_each_body_once(self, ledger: &Ledger) {
        for (no, begun) in self.end(ledger).await {
            assert_eq!(begun, Vec::from_iter(0..STEPS), "run {no}");
        }
    }
}

/// A server that crashes under load, and stays away for longer than the lease: the owner holds
/// still, and takes up again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_goes_on_after_its_database_has_crashed() {
    let server = Arc::new(Instance::start_new().unwrap());
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let ledger = Ledger::default();
    let (engine, _) = engine(&url, &ledger).await;
    let load = Load::begin(engine.client());
    load.goes_on(30).await;
    for away in [Duration::ZERO, Duration::from_millis(2_500)] {
        server.stop(Shutdown::Immediate).unwrap();
        // Not for an event: that this is longer than the lease is what it is about.
        tokio::time::sleep(away).await;
        server.start().unwrap();
        load.goes_on(30).await;
    }
    assert!(engine.stopped().is_none());
    load.end_with_each_body_once(&ledger).await;
    engine.shutdown().await;
    testing::ran_on("PostgreSQL");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_goes_on_after_its_connections_were_cut() {
    let server = Instance::start_new().unwrap();
    let proxy = Proxy::start_before(server.address()).unwrap();
    let url = format!("{}?schema={}", proxy.url_for("postgres"), fresh_schema());
    let ledger = Ledger::default();
    let (engine, store) = engine(&url, &ledger).await;
    let load = Load::begin(engine.client());
    for _ in 0..10 {
        load.goes_on(7).await;
        proxy.cut(&Which::All);
    }
    // And for a time nobody is let in.
    proxy.refuse();
    proxy.cut(&Which::All);
    until("it is noticed", || store.runners().is_err()).await;
    proxy.accept();
    load.goes_on(20).await;
    load.end_with_each_body_once(&ledger).await;
    assert!(engine.stopped().is_none());
    engine.shutdown().await;
    testing::ran_on("PostgreSQL");
}

/// An owner that cannot reach its database any more, while another can: the other takes over, and
/// the first finds that out when it is back, and gets its share again.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_cut_off_takes_up_again() {
    let server = Instance::start_new().unwrap();
    let proxy = Proxy::start_before(server.address()).unwrap();
    let schema = fresh_schema();
    let ledger = Ledger::default();
    let url = format!("{}?schema={schema}", proxy.url_for("postgres"));
    let (first, _) = engine(&url, &ledger).await;
    let url = format!("{}?schema={schema}", server.url());
    let (second, store) = engine(&url, &ledger).await;
    let owners = || {
        let rows = store.runners().unwrap();
        rows.iter().filter(|row| !row.shards.is_empty()).count()
    };
    until("both own shards", || owners() == 2).await;
    // One whose runs are everybody's.
    let load = Load::begin(Client::on(store.clone()).unwrap());
    load.goes_on(20).await;
    proxy.refuse();
    proxy.cut(&Which::All);
    until("the other has them all", || owners() == 1).await;
    load.goes_on(20).await;
    proxy.accept();
    until("both own shards again", || owners() == 2).await;
    load.goes_on(20).await;
    for (no, begun) in load.end(&ledger).await {
        // What was in flight is begun again; what was built on is not.
        assert!(begun.is_sorted(), "run {no}: {begun:?}");
    }
    assert!(first.stopped().is_none() && second.stopped().is_none());
    first.shutdown().await;
    second.shutdown().await;
    testing::ran_on("PostgreSQL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_though_the_database_is_away() {
    let server = Instance::start_new().unwrap();
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let ledger = Ledger::default();
    let (engine, _) = engine(&url, &ledger).await;
    let load = Load::begin(engine.client());
    load.goes_on(10).await;
    server.stop(Shutdown::Immediate).unwrap();
    load.task.abort();
    let begun = Instant::now();
    let ended = tokio::time::timeout(2 * PATIENCE, engine.shutdown()).await;
    assert!(ended.is_ok(), "the shutdown has not ended");
    println!("the shutdown took {:?}", begun.elapsed());
    testing::ran_on("PostgreSQL");
}

/// No session of ours is kept by the pooler, and the listening connection goes past it.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_works_behind_a_pooler() {
    let server = Instance::start_new().unwrap();
    let pooler = Pgbouncer::start_before(&server).unwrap();
    let listen = server.url().replace(':', "%3A").replace('/', "%2F");
    let url = format!(
        "{}?schema={}&pooled=true&listen_url={listen}",
        pooler.url_for("postgres"),
        fresh_schema()
    );
    let ledger = Ledger::default();
    let (engine, _) = engine(&url, &ledger).await;
    let load = Load::begin(engine.client());
    load.goes_on(30).await;
    // The pooler's own connections are lost; ours to it are not.
    let mut session = server.session().unwrap();
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name LIKE 'everstep' AND pid <> pg_backend_pid()";
    for _ in 0..5 {
        session.query(sql).unwrap();
        load.goes_on(10).await;
    }
    assert!(engine.stopped().is_none());
    load.end_with_each_body_once(&ledger).await;
    engine.shutdown().await;
    testing::ran_on("PostgreSQL");
}

/// A server that takes everything and answers nothing. An engine thread with little to do committed by
/// itself, and polled no body until its commit was answered or given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_database_does_not_stop_bodies_from_being_polled() {
    const TICK: Workflow<(), u64> = Workflow::new("tick");
    const NOTE: Workflow<(), u64> = Workflow::new("note");
    let server = Instance::start_new().unwrap();
    let proxy = Proxy::start_before(server.address()).unwrap();
    let mut options = PostgresOptions::default();
    options.schema = fresh_schema();
    // Nobody gives up: what waits for the database does so until the end of the test.
    options.patience = Duration::from_secs(3_600);
    let store = PostgresStore::open_with(&proxy.url_for("postgres"), options).unwrap();
    let ticks = Arc::new(AtomicU64::new(0));
    let (count, stop) = (ticks.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let (go, may_go) = tokio::sync::watch::channel(false);
    let noting = Arc::new(AtomicBool::new(false));
    let begun = noting.clone();
    let engine = Engine::on(Arc::new(store))
        .register_fn(TICK, move |ctx, ()| {
            let (count, stopped) = (count.clone(), stopped.clone());
            async move {
                let body = async || {
                    while !stopped.load(Ordering::SeqCst) {
                        count.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Ok(count.load(Ordering::SeqCst))
                };
                ctx.step("tick", body).await
            }
        })
        .register_fn(NOTE, move |ctx, ()| {
            let (may_go, begun) = (may_go.clone(), begun.clone());
            async move {
                let body = async || {
                    begun.store(true, Ordering::SeqCst);
                    let mut may_go = may_go.clone();
                    _ = may_go.wait_for(|go| *go).await;
                    Ok(1)
                };
                ctx.step("note", body).await
            }
        })
        .settings(|settings| {
            settings.lease = Duration::from_secs(3_600);
            settings.threads = 1;
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let tick = client.start(TICK, ()).await.unwrap();
    let note = client.start(NOTE, ()).await.unwrap();
    until("both bodies run", || noting.load(Ordering::SeqCst) && ticks.load(Ordering::SeqCst) > 0)
        .await;
    proxy.hold(Which::All);
    go.send(true).unwrap();
    assert!(proxy.wait_until_held(PATIENCE, &Which::All));
    for _ in 0..3 {
        let before = ticks.load(Ordering::SeqCst);
        until("the other body goes on", || ticks.load(Ordering::SeqCst) > before + 100).await;
    }
    stop.store(true, Ordering::SeqCst);
    proxy.release_all();
    assert_eq!(note.result().await.unwrap(), 1);
    assert!(tick.result().await.unwrap() > 300);
    engine.shutdown().await;
    testing::ran_on("PostgreSQL");
}
