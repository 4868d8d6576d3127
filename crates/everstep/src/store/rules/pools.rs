//! How runs come to be in a pool, and move to another.

use super::{Head, forget_number, make_due, tables::Tables};
use crate::{
    commit::{HandOver, Notice, Outcome, Refusal, RunStatus},
    pool::PoolNo,
    run_id::ShardId,
    time::Timestamp,
};

/// The rows of pools and shards, within one batch.
pub(crate) trait Pools: Tables {
    /// The number of the pool with this name, which is made if there is none: the one after the
    /// greatest.
    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Self::Error>;

    /// Whether the runner that writes the batch has this shard, and its fence holds.
    fn owns(&mut self, shard: ShardId) -> Result<bool, Self::Error>;

    /// Writes the shard of a run that has moved, with the status, the time and the number that are
    /// in `head`.
    fn write_shard(&mut self, head: &Head) -> Result<(), Self::Error>;
}

/// Moves a run to the shard with the same index of another pool.
pub(crate) fn hand_over<T: Pools>(tables: &mut T, what: &HandOver) -> Result<Outcome, T::Error> {
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
    tables.write_shard(&head)?;
    if let Some(at) = head.available_at {
        let run = head.id;
        tables.notice(Notice::Due { run, at });
    }
    Ok(Outcome::Committed(Vec::new()))
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

/// What a runner serves, as it is stored.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) type ServesJson = (String, u32, u32, u32);

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn serves_json(serves: &crate::store::Serves) -> ServesJson {
    let accepts = &serves.accepts;
    let workflow = serves.workflow.clone();
    (workflow, serves.version, *accepts.start(), *accepts.end())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn serves((workflow, version, first, last): ServesJson) -> crate::store::Serves {
    crate::store::Serves {
        workflow,
        version,
        accepts: first..=last,
    }
}
