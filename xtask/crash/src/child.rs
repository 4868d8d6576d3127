//! The child: an engine, until it is killed.

use std::{path::PathBuf, time::Duration};

use everstep::{Engine, Sabotage};

use crate::{
    Problem,
    workflow::{Bodies, every},
};

/// The first argument of a child.
pub(crate) const CHILD: &str = "--child";

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
pub(crate) fn arguments(directory: &std::path::Path, sabotage: Option<Sabotage>) -> Vec<String> {
    let name = SABOTAGES.iter().find(|(_, known)| Some(*known) == sabotage);
    let name = name.map_or("none", |(name, _)| name);
    let directory = directory.display().to_string();
    vec![CHILD.to_owned(), directory, name.to_owned()]
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Problem> {
    let [directory, broken] = arguments else {
        return Err("a child wants a directory, and what is broken".into());
    };
    let directory = PathBuf::from(directory);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let bodies = Bodies::open(&directory.join("ledger"))?;
        let _engine = Engine::open(directory.join("crash.db"))
            .register(every)
            .provide(bodies)
            .settings(|set| {
                set.lease = LEASE;
                set.heartbeat = LEASE / 5;
                set.safety_poll = LEASE;
                set.sabotage = sabotage(broken).ok();
            })
            .start()
            .await?;
        std::future::pending::<()>().await;
        Ok(())
    })
}
