//! The children: an engine, or a worker without one, until it is killed.

use std::{path::PathBuf, sync::Arc, time::Duration};

use everstep::{
    Client, Clock, Engine, Sabotage,
    prelude::*,
    store::{PostgresStore, SqliteStore, Store},
    testing::ShiftedClock,
};

use crate::{
    Problem,
    bodies::Bodies,
    mix::{self, Xor, tasks, until_ok},
    orders::Orders,
    sabotage,
    targets::{self, naps},
    workflow::every,
};

/// The first argument of a child.
pub(crate) const CHILD: &str = "--child";

/// The name of the store's file.
pub(crate) const FILE: &str = "crash.db";

/// How new the code is that a child runs: what gates of versions are asked with.
#[derive(Clone, Copy)]
pub(crate) struct Latest(pub(crate) u32);

/// What a child is.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Engine(Latest, Fencing),
    Worker,
}

/// Whether an engine looks at its own clock before it writes and before it starts a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fencing {
    OfItself,
    ByStoreAlone,
}

/// How long a child owns its runs without a heartbeat: short, so that another can take over soon.
pub(crate) const LEASE: Duration = Duration::from_millis(1_000);

/// The arguments of a child. `place` is the file of the store, or the URL of its server.
pub(crate) fn arguments(
    directory: &std::path::Path,
    place: &str,
    role: Role,
    broken: Option<Sabotage>,
) -> Vec<String> {
    let role = match role {
        Role::Engine(Latest(latest), Fencing::OfItself) => latest.to_string(),
        Role::Engine(Latest(latest), Fencing::ByStoreAlone) => format!("{latest}{UNFENCED}"),
        Role::Worker => WORKER.to_owned(),
    };
    let directory = directory.display().to_string();
    vec![CHILD.to_owned(), directory, place.to_owned(), role, sabotage::name(broken).to_owned()]
}

const WORKER: &str = "worker";
const UNFENCED: &str = "-unfenced";

/// Everything that a child is given.
struct Given {
    place: String,
    role: String,
    broken: Option<Sabotage>,
    bodies: Bodies,
    orders: Orders,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Problem> {
    let [directory, place, role, broken] = arguments else {
        return Err("a child wants a directory, a store, what it is, and what is broken".into());
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let directory = PathBuf::from(directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let given = Given {
            place: place.clone(),
            role: role.clone(),
            broken: sabotage::by_name(broken).ok(),
            bodies: Bodies::open(&directory.join("ledger"))?,
            orders: Orders::open(&directory)?,
        };
        loop {
            let done = match role.as_str() {
                WORKER => work(&given).await,
                _ => run_engine(&given).await,
            };
            match done {
                // A server that is not there comes back.
                Err(problem) if is_url(place) => {
                    eprintln!("trying again: {}", crate::shown(&*problem))
                }
                done => return done,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

fn is_url(place: &str) -> bool {
    place.starts_with("postgres://")
}

async fn work(given: &Given) -> Result<(), Problem> {
    let store: Arc<dyn Store> = match is_url(&given.place) {
        true => Arc::new(PostgresStore::open(&given.place)?),
        false => Arc::new(SqliteStore::open(&given.place)?),
    };
    let client = Client::sabotaged(store, clock(given), given.broken)?.codec(Xor);
    let _worker = tasks::work(&client, &given.bodies)?;
    follow_orders(given, &client).await
}

async fn run_engine(given: &Given) -> Result<(), Problem> {
    let Given { place, role, .. } = given;
    let store = match is_url(place) {
        true => Some(Arc::new(PostgresStore::open(place)?)),
        false => None,
    };
    let builder = match &store {
        Some(store) => Engine::on(store.clone()),
        None => Engine::open(place),
    };
    let builder = builder
        .register(every)
        .provide(Latest(role.trim_end_matches(UNFENCED).parse()?))
        .provide(given.bodies.clone())
        .provide(given.orders.clone())
        .codec(Xor)
        .clock(clock(given))
        .settings(|set| {
            set.lease = LEASE;
            set.heartbeat = Some(LEASE / 5);
            set.safety_poll = LEASE;
            set.sabotage = given.broken;
        });
    let builder = match role.ends_with(UNFENCED) && given.broken.is_none() {
        true => builder.without_self_fencing(),
        false => builder,
    };
    let builder = targets::register(mix::register(builder, &given.bodies));
    let engine = builder.start().await?;
    let client = engine.client();
    tokio::select! {
        done = follow_orders(given, &client) => done,
        done = report(&engine, store.as_deref(), given) => done,
    }
}

/// The clock of this process, wrong by what the parent says.
fn clock(given: &Given) -> Arc<dyn Clock> {
    let file = given.orders.clock_file(std::process::id());
    Arc::new(ShiftedClock::by_file(file))
}

/// The key of a nap that a process was told to start.
pub(crate) fn nap_key(process: u32, n: u64) -> String {
    format!("nap-{process}-{n}")
}

/// Every second nap of a process begins so much later than it is started.
const NAP_DELAY: Duration = Duration::from_millis(500);

/// Starts runs when it is told to, until the parent is gone.
async fn follow_orders(given: &Given, client: &Client) -> Result<(), Problem> {
    let (process, mut started) = (std::process::id(), 0);
    let parent = std::os::unix::process::parent_id();
    given.orders.say_up(process)?;
    loop {
        if std::os::unix::process::parent_id() != parent {
            std::process::exit(1);
        }
        while started < given.orders.starts(process) {
            let key = nap_key(process, started);
            // A start without a delay is due whatever its client takes for the time.
            let start = async || {
                let start = client.start(naps, started).key(&key);
                match started.is_multiple_of(2) {
                    true => start.await,
                    false => start.after(NAP_DELAY).await,
                }
            };
            until_ok(start).await;
            started += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How often what was counted is written down: what was counted since is lost with the process.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Writes what the engine and its store count into the ledger, as it happens.
async fn report(
    engine: &Engine,
    store: Option<&PostgresStore>,
    given: &Given,
) -> Result<(), Problem> {
    let Given { bodies, orders, .. } = given;
    let (mut before, mut asked) = ([0; COUNTED.len()], String::new());
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let counters = engine.counters();
        let now = [
            counters.takeovers,
            counters.self_fenced,
            store.map_or(0, PostgresStore::stale_batches_refused),
            store.map_or(0, PostgresStore::unknown_outcomes_settled),
        ];
        for ((name, before), now) in COUNTED.iter().zip(&mut before).zip(now) {
            if now > *before {
                bodies.note(&format!("counted\t{name}\t{}", now - *before))?;
                *before = now;
            }
        }
        let stuck = orders.stuck();
        if stuck != asked {
            for run in stuck.lines().filter_map(|run| run.parse().ok()) {
                let process = std::process::id();
                bodies
                    .note(&format!("where\t{run}\t{process}: {}", engine.whereabouts(run).await))?;
            }
            asked = stuck;
        }
        if let Some(error) = engine.stopped() {
            bodies.note(&format!("stopped-engine\t{error:?}"))?;
            return Err(format!("the engine has stopped: {error:?}").into());
        }
    }
}

/// What runners count; the last two only on a server.
pub(crate) const COUNTED: [&str; 4] =
    ["takeovers", "self_fenced", "stale_commits_refused", "unknown_outcomes_settled"];
