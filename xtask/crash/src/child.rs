//! The children: an engine, or a worker without one, until it is killed.

use std::{path::PathBuf, sync::Arc, time::Duration};

use everstep::{Client, Engine, Sabotage, store::PostgresStore};

use crate::{
    Problem,
    bodies::Bodies,
    mix::{self, Xor, tasks},
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

const SABOTAGES: [(&str, Sabotage); 3] = [
    ("no-barrier", Sabotage::NoBarrier),
    ("no-fence", Sabotage::NoFence),
    ("double-consume", Sabotage::DoubleConsume),
];

/// What is broken on purpose, by its name.
pub(crate) fn sabotage(name: &str) -> Result<Sabotage, Problem> {
    let found = SABOTAGES.iter().find(|(known, _)| *known == name);
    Ok(found.ok_or_else(|| format!("`{name}` is no sabotage"))?.1)
}

/// The arguments of a child. `place` is the file of the store, or the URL of its server.
pub(crate) fn arguments(
    directory: &std::path::Path,
    place: &str,
    role: Role,
    sabotage: Option<Sabotage>,
) -> Vec<String> {
    let name = SABOTAGES.iter().find(|(_, known)| Some(*known) == sabotage);
    let name = name.map_or("none", |(name, _)| name);
    let role = match role {
        Role::Engine(Latest(latest), Fencing::OfItself) => latest.to_string(),
        Role::Engine(Latest(latest), Fencing::ByStoreAlone) => format!("{latest}{UNFENCED}"),
        Role::Worker => WORKER.to_owned(),
    };
    let directory = directory.display().to_string();
    vec![
        CHILD.to_owned(),
        directory,
        place.to_owned(),
        role,
        name.to_owned(),
    ]
}

const WORKER: &str = "worker";
const UNFENCED: &str = "-unfenced";

pub(crate) fn run(arguments: &[String]) -> Result<(), Problem> {
    let [directory, place, role, broken] = arguments else {
        return Err("a child wants a directory, a store, what it is, and what is broken".into());
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let directory = PathBuf::from(directory);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let bodies = Bodies::open(&directory.join("ledger"))?;
        loop {
            let done = match role.as_str() {
                WORKER => work(place, &bodies).await,
                role => run_engine(place, role, broken, &bodies).await,
            };
            match done {
                // A server that is not there comes back.
                Err(problem) if is_url(place) => eprintln!("trying again: {problem}"),
                done => return done,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

fn is_url(place: &str) -> bool {
    place.starts_with("postgres://")
}

async fn work(place: &str, bodies: &Bodies) -> Result<(), Problem> {
    let client = Client::open(place).await?.codec(Xor);
    let _worker = tasks::work(&client, bodies)?;
    std::future::pending().await
}

async fn run_engine(place: &str, role: &str, broken: &str, bodies: &Bodies) -> Result<(), Problem> {
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
        .provide(bodies.clone())
        .codec(Xor)
        .settings(|set| {
            set.lease = LEASE;
            set.heartbeat = Some(LEASE / 5);
            set.safety_poll = LEASE;
            set.sabotage = sabotage(broken).ok();
        });
    let builder = match role.ends_with(UNFENCED) && broken == "none" {
        true => builder.without_self_fencing(),
        false => builder,
    };
    let engine = mix::register(builder, bodies).start().await?;
    match store {
        None => std::future::pending().await,
        Some(store) => report(&engine, &store, bodies).await,
    }
}

/// How often what was counted is written down: what was counted since is lost with the process.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Writes what the engine and its store count into the ledger, as it happens.
async fn report(engine: &Engine, store: &PostgresStore, bodies: &Bodies) -> Result<(), Problem> {
    let mut before = [0; COUNTED.len()];
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let counters = engine.counters();
        let now = [
            counters.takeovers,
            counters.self_fenced,
            store.stale_batches_refused(),
            store.unknown_outcomes_settled(),
        ];
        for ((name, before), now) in COUNTED.iter().zip(&mut before).zip(now) {
            if now > *before {
                bodies.note(&format!("counted\t{name}\t{}", now - *before))?;
                *before = now;
            }
        }
        if let Some(error) = engine.stopped() {
            bodies.note(&format!("stopped-engine\t{error:?}"))?;
            return Err(format!("the engine has stopped: {error:?}").into());
        }
    }
}

/// What runners on a server count.
pub(crate) const COUNTED: [&str; 4] = [
    "takeovers",
    "self_fenced",
    "stale_commits_refused",
    "unknown_outcomes_settled",
];
