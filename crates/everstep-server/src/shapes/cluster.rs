//! The processes that run things, and what they can run.

use std::{collections::BTreeMap, ops::RangeInclusive};

use everstep::Cluster;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, as_millis};

/// The processes that run things, and how they share the work.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClusterShape {
    /// The processes.
    pub(crate) runners: Vec<Runner>,
    /// The pools.
    pub(crate) pools: Vec<Pool>,
}

/// A process that runs things.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Runner {
    /// Its id.
    pub(crate) id: String,
    /// Its name: where it is.
    pub(crate) name: String,
    /// Whether its lease lasts.
    pub(crate) alive: bool,
    /// Until when.
    pub(crate) lease_until: Time,
    /// How long ago it was renewed, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease_age_ms: Option<u64>,
    /// The pools that it serves.
    pub(crate) pools: Vec<String>,
    /// How much it takes beside others.
    pub(crate) weight: u32,
    /// What it has the code for.
    pub(crate) workflows: Vec<Served>,
    /// How many shards it has.
    pub(crate) shards: usize,
}

/// A workflow that a runner has the code for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Served {
    /// Its name.
    pub(crate) name: String,
    /// The versions of the code, the newest last.
    pub(crate) versions: Vec<u32>,
    /// The first version of runs that it may run.
    pub(crate) from: u32,
    /// The last one.
    pub(crate) to: u32,
}

/// What a runner has the code for, by name.
fn served(workflows: impl Iterator<Item = (String, u32, RangeInclusive<u32>)>) -> Vec<Served> {
    let mut found: BTreeMap<String, Served> = BTreeMap::new();
    for (name, version, accepts) in workflows {
        let (from, to) = (*accepts.start(), *accepts.end());
        let served = found.entry(name.clone()).or_insert_with(|| Served {
            name,
            versions: Vec::new(),
            from,
            to,
        });
        served.versions.push(version);
        served.versions.sort_unstable();
        (served.from, served.to) = (served.from.min(from), served.to.max(to));
    }
    found.into_values().collect()
}

/// A pool.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Pool {
    /// Its name.
    pub(crate) name: String,
    /// How many of its shards somebody has.
    pub(crate) owned: usize,
    /// How many there are.
    pub(crate) of: usize,
    /// Who has each, as a place in the list of runners; `null` is nobody.
    pub(crate) shards: Vec<Option<usize>>,
}

impl From<Cluster> for ClusterShape {
    fn from(cluster: Cluster) -> ClusterShape {
        let runners = cluster.runners.into_iter().map(|runner| Runner {
            id: runner.id.to_string(),
            name: runner.name,
            alive: runner.alive,
            lease_until: runner.lease_until.into(),
            lease_age_ms: runner.lease_age.map(as_millis),
            pools: runner.pools,
            weight: runner.weight,
            workflows: served(
                runner.workflows.into_iter().map(|it| (it.workflow, it.version, it.accepts)),
            ),
            shards: runner.shards,
        });
        let pools = cluster.pools.into_iter().map(|pool| Pool {
            name: pool.name,
            owned: pool.owned,
            of: pool.shards.len(),
            shards: pool.shards,
        });
        ClusterShape { runners: runners.collect(), pools: pools.collect() }
    }
}

/// The workflows that can be started.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkflowList {
    /// By name.
    pub(crate) workflows: Vec<WorkflowShape>,
}

/// A workflow that some runner has the code for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkflowShape {
    /// Its name.
    pub(crate) name: String,
    /// The versions of the code, the newest last.
    pub(crate) versions: Vec<u32>,
    /// How many runners have it.
    pub(crate) runners: usize,
}
