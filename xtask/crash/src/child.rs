//! The children: an engine, or a worker without one, until it is killed.

use std::{path::PathBuf, time::Duration};

use everstep::{Client, Engine, Sabotage};

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
    Engine(Latest),
    Worker,
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

/// The arguments of a child.
pub(crate) fn arguments(
    directory: &std::path::Path,
    role: Role,
    sabotage: Option<Sabotage>,
) -> Vec<String> {
    let name = SABOTAGES.iter().find(|(_, known)| Some(*known) == sabotage);
    let name = name.map_or("none", |(name, _)| name);
    let role = match role {
        Role::Engine(Latest(latest)) => latest.to_string(),
        Role::Worker => "worker".to_owned(),
    };
    let directory = directory.display().to_string();
    vec![CHILD.to_owned(), directory, role, name.to_owned()]
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Problem> {
    let [directory, role, broken] = arguments else {
        return Err("a child wants a directory, what it is, and what is broken".into());
    };
    let directory = PathBuf::from(directory);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let bodies = Bodies::open(&directory.join("ledger"))?;
        let file = directory.join(FILE);
        if role == "worker" {
            let client = Client::open(file).await?.codec(Xor);
            let _worker = tasks::work(&client, &bodies)?;
            return std::future::pending().await;
        }
        let engine = Engine::open(file)
            .register(every)
            .provide(Latest(role.parse()?))
            .provide(bodies.clone())
            .codec(Xor)
            .settings(|set| {
                set.lease = LEASE;
                set.heartbeat = LEASE / 5;
                set.safety_poll = LEASE;
                set.sabotage = sabotage(broken).ok();
            });
        let _engine = mix::register(engine, &bodies).start().await?;
        std::future::pending().await
    })
}
