//! The runners that were alive when this one last looked, and where a run belongs among them.

use std::sync::{Arc, PoisonError, RwLock};

use super::assign::may_own;
use crate::{
    pool::Overflow,
    store::{DueRun, RunnerRow},
};

/// The runners that are alive, this one included. As old as the last balance.
#[derive(Default)]
pub(crate) struct Peers(RwLock<Arc<Vec<RunnerRow>>>);

impl Peers {
    pub(crate) fn alive(&self) -> Arc<Vec<RunnerRow>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes note of who is alive; whether what they serve has changed.
    pub(crate) fn set(&self, alive: Vec<RunnerRow>) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let said = |row: &RunnerRow| (row.id, row.pools.clone(), row.workflows.clone());
        let changed = !known.iter().map(said).eq(alive.iter().map(said));
        *known = Arc::new(alive);
        changed
    }
}

/// Where a run should be that its owner found in the pool `inside`, and may not have the code for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Where it is.
    Here,
    /// In this pool.
    In(Arc<str>),
    /// Nobody who is alive could run it.
    Nowhere,
}

/// Decides about a run. `is_served` says whether its owner has the code.
pub(crate) fn place_of(run: &DueRun, inside: &str, is_served: bool, alive: &[RunnerRow]) -> Place {
    let is_its_own = match Overflow::parse(inside) {
        Some(pool) => {
            let code = (pool.workflow, pool.version);
            pool.home == &*run.pool && code == (&run.workflow, run.version)
        }
        None => inside == &*run.pool,
    };
    if !is_its_own {
        // It has continued, as a workflow of another pool or as another version. The owners of an
        // overflow pool are those with the code that the pool is for.
        return Place::In(Arc::clone(&run.pool));
    }
    if is_served {
        return Place::Here;
    }
    let overflow = Overflow { home: &run.pool, workflow: &run.workflow, version: run.version };
    let overflow = overflow.to_string();
    let has_candidate = alive.iter().any(|runner| may_own(runner, &overflow));
    if has_candidate && overflow != inside { Place::In(overflow.into()) } else { Place::Nowhere }
}

/// The pool that runs of this workflow are in unless something else is said, as those say who have
/// its code. Versions may differ during a deploy: the newest counts.
pub(crate) fn home(workflow: &str, version: u32, runners: &[RunnerRow]) -> Option<Arc<str>> {
    let served = runners.iter().flat_map(|runner| &runner.workflows);
    let able = served.filter(|serves| serves.accepts(workflow, version));
    let newest = able.max_by_key(|serves| (serves.version, &serves.pool));
    newest.map(|serves| Arc::from(serves.pool.as_str()))
}

/// What a run waits for that nobody could run, in words.
pub(crate) fn missing(run: &DueRun, alive: &[RunnerRow]) -> String {
    let (workflow, version) = (&run.workflow, run.version);
    format!(
        "a runner with workflow `{workflow}` version {version}{}",
        served(workflow, &run.pool, alive)
    )
}

/// What the runners of a pool serve of a workflow, to be appended to what they do not.
pub(crate) fn served(workflow: &str, pool: &str, alive: &[RunnerRow]) -> String {
    let of_pool = |row: &&RunnerRow| row.pools.iter().any(|name| *name == *pool);
    if !alive.iter().any(|row| of_pool(&row)) {
        return format!("; no runner of pool `{pool}` is alive");
    }
    let served = alive.iter().filter(of_pool).flat_map(|row| &row.workflows);
    let served = served.filter(|serves| *serves.workflow == *workflow);
    let mut ranges: Vec<(u32, u32)> =
        served.map(|serves| (*serves.accepts.start(), *serves.accepts.end())).collect();
    ranges.sort_unstable();
    ranges.dedup();
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    match ranges.is_empty() {
        true => String::new(),
        false => {
            let ranges: Vec<String> = ranges.iter().map(text).collect();
            format!("; started runners serve {}", ranges.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commit::RunStatus,
        run_id::{RunId, ShardId},
    };

    /// A run that had continued as another version inside an overflow pool stayed there, and was
    /// nobody's once nobody had the code that the pool was for.
    #[test]
    fn a_run_that_continues_as_another_version_goes_home() {
        let run = DueRun {
            id: RunId::nobody(),
            shard: ShardId(0),
            available_at: None,
            status: RunStatus::Pending,
            workflow: "loop".into(),
            version: 2,
            pool: "default".into(),
        };
        let home = Place::In("default".into());
        for inside in ["default@loop/1", "default@other/2", "gpu@loop/2", "gpu"] {
            assert_eq!(place_of(&run, inside, true, &[]), home, "{inside}");
        }
        for inside in ["default", "default@loop/2"] {
            assert_eq!(place_of(&run, inside, true, &[]), Place::Here, "{inside}");
            assert_eq!(place_of(&run, inside, false, &[]), Place::Nowhere);
        }
    }
}
