//! How runs come to be in a pool, and move to another.

use super::{forget_number, make_due, tables::find};
use crate::{
    commit::{Controlled, HandOver, Notice, Outcome, Refusal, Rehome, RunStatus},
    run_id::ShardId,
    store::rows::{Head, RunChange, RunTables},
    time::Timestamp,
};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::{
    pool::{DEFAULT_POOL, Overflow},
    store::{NewRunner, Serves},
};

/// Moves a run to the shard with the same index of another pool.
pub(crate) fn hand_over<T: RunTables>(
    tables: &mut T,
    what: &HandOver,
) -> Result<Outcome, T::Error> {
    let Some(mut head) = tables.head(what.run)? else {
        return Ok(Outcome::Refused(Refusal::Gone));
    };
    if !tables.owns(head.shard)? {
        return Ok(Outcome::Refused(Refusal::Fenced));
    }
    if head.status.is_terminal() {
        return Ok(Outcome::Refused(Refusal::Gone));
    }
    let shard = head.id.shard_in(tables.pool_no(&what.pool)?);
    if head.shard == shard {
        return Ok(Outcome::Refused(Refusal::Gone));
    }
    let now = tables.now();
    leave(&mut head, shard, now);
    tables.write_run(&head, RunChange::Shard)?;
    if let Some(at) = head.available_at {
        let run = head.id;
        tables.notices().push(Notice::Due { run, at });
    }
    Ok(Outcome::Committed(Vec::new()))
}

/// Gives a run another home. See [`Rehome`].
pub(crate) fn rehome<T: RunTables>(tables: &mut T, what: &Rehome) -> Result<Outcome, T::Error> {
    let Some(mut head) = find(tables, &what.target)? else {
        return Ok(Outcome::Controlled(Controlled::Unknown));
    };
    let (run, status) = (head.id, head.status);
    if status.is_terminal() {
        return Ok(Outcome::Controlled(Controlled::Finished { run, status }));
    }
    let pool = tables.pool_no(&what.pool)?;
    if !tables.write_home_if_new(run.no(), &what.pool)? {
        return Ok(Outcome::Controlled(Controlled::Already { run, status }));
    }
    // One that is due anyway, or moves, is looked at anyway.
    if status == RunStatus::Sleeping && head.shard.pool() != pool {
        let now = tables.now();
        make_due(&mut head, now);
        tables.write_run(&head, RunChange::Shard)?;
        let at = now;
        tables.notices().push(Notice::Due { run, at });
    }
    Ok(Outcome::Controlled(Controlled::Done { run }))
}

/// A run as it leaves for another shard: what was in its owner's memory is in nobody's now.
fn leave(head: &mut Head, to: ShardId, now: Timestamp) {
    head.shard = to;
    match head.status {
        RunStatus::Running => {
            head.status = RunStatus::Pending;
            make_due(head, now);
            // Commits that only add entries do not write the row of a run that is `Running`.
            forget_number(head);
        }
        RunStatus::RollingBack => make_due(head, now),
        _ => {}
    }
}

/// What a runner says about its code and its pools, as it is stored.
///
/// The pool of a workflow's runs came later than the rest, and stands among the pools, where whoever
/// does not know of it passes it over: as the name of an overflow pool, which nobody serves by name.
/// It is left out if it is the default one.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) struct Said {
    pub(crate) workflows: Vec<ServesJson>,
    pub(crate) pools: Vec<String>,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) type ServesJson = (String, u32, u32, u32);

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Said {
    pub(crate) fn by(runner: &NewRunner) -> Said {
        let workflow = |serves: &Serves| {
            let accepts = &serves.accepts;
            let workflow = serves.workflow.clone();
            (workflow, serves.version, *accepts.start(), *accepts.end())
        };
        let elsewhere = runner.workflows.iter();
        let elsewhere = elsewhere.filter(|serves| serves.pool != DEFAULT_POOL);
        let home = |serves: &Serves| {
            Overflow { home: &serves.pool, workflow: &serves.workflow, version: serves.version }
                .to_string()
        };
        Said {
            workflows: runner.workflows.iter().map(workflow).collect(),
            pools: runner.pools.iter().cloned().chain(elsewhere.map(home)).collect(),
        }
    }

    /// The workflows and the pools.
    pub(crate) fn read(self) -> (Vec<Serves>, Vec<String>) {
        let is_home = |pool: &String| Overflow::parse(pool).is_some();
        let (homes, pools): (Vec<_>, Vec<_>) = self.pools.into_iter().partition(is_home);
        let homes: Vec<Overflow<'_>> = homes.iter().filter_map(|it| Overflow::parse(it)).collect();
        let serves = |(workflow, version, first, last): ServesJson| {
            let is_its = |it: &&Overflow<'_>| (it.workflow, it.version) == (&*workflow, version);
            let home = homes.iter().find(is_its).map_or(DEFAULT_POOL, |it| it.home);
            Serves { pool: home.to_owned(), workflow, version, accepts: first..=last }
        };
        (self.workflows.into_iter().map(serves).collect(), pools)
    }
}
