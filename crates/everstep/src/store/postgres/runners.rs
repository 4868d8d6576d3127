//! Runners and their shards.
//!
//! The row of a runner is the fence of its batches: they hold it `FOR KEY SHARE` until they commit.
//! A takeover first raises the epoch, which does not wait and refuses every new batch, in a
//! transaction of its own; then it locks the row, which waits for the batches under way; then it
//! moves all shards.

use std::time::Duration;

use uuid::Uuid;

use super::{
    Sql, columns,
    error::Trouble,
    session::{Op, Session},
    value::{Value, params},
};
use crate::{
    store::{
        Fence, Gone, NewRunner, ShardSet,
        memory::DEAD_RUNNER_KEPT,
        rules::pools::Said,
        sql::{pools, reads::listed, runners::fence_holds},
    },
    time::Timestamp,
};

/// The time of leases: that of the database, so that all machines mean the same, or that of the
/// caller, in tests whose clock stands still.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    Database,
    Caller(Timestamp),
}

impl Clock {
    /// As a number in SQL.
    fn now(self) -> String {
        match self {
            Clock::Database => {
                "(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)".to_owned()
            }
            Clock::Caller(now) => format!("({}::bigint)", now.as_millis()),
        }
    }
}

pub(super) fn register(
    session: &Session<'_>,
    runner: &NewRunner,
    clock: Clock,
) -> Result<Fence, Trouble> {
    let now = clock.now();
    // Waits for batches of an earlier incarnation that are under way: its shards are free only when
    // nothing of it can change a run any more.
    let sql = "SELECT 1 FROM everstep_runners WHERE id = $1 FOR UPDATE";
    session.execute(sql, params![runner.id]);
    session.execute("DELETE FROM everstep_shards WHERE runner = $1", params![runner.id]);
    for pool in &runner.pools {
        pools::pool_no(session, pool)?;
    }
    let sql = format!(
        "DELETE FROM everstep_runners WHERE lease_until <= {now} - $1 \
         AND id NOT IN (SELECT runner FROM everstep_shards)"
    );
    session.execute(sql, params![DEAD_RUNNER_KEPT.as_millis()]);
    // Of two registrations at once the later one must have the higher epoch: it is drawn behind the lock.
    let sql = format!(
        "INSERT INTO everstep_runners (id, epoch, name, lease_until, lease, workflows, pools, weight) \
         VALUES ($1, nextval('everstep_epochs'), $2, {now} + $3, $3, $4, $5, $6) \
         ON CONFLICT (id) DO UPDATE SET epoch = nextval('everstep_epochs'), name = excluded.name, \
         lease_until = excluded.lease_until, lease = excluded.lease, workflows = excluded.workflows, \
         pools = excluded.pools, weight = excluded.weight RETURNING epoch"
    );
    let said = Said::by(runner);
    let workflows = columns::to_json(&said.workflows);
    let pools = columns::to_json(&said.pools);
    let lease = runner.lease.as_millis();
    let params = params![runner.id, runner.name, lease, workflows, pools, runner.weight];
    let epoch = session.row(sql, params, |row| row.get(0))?;
    Ok(Fence { runner: runner.id, epoch: epoch.unwrap_or(0) })
}

/// The statement that prolongs a lease; it gives a row if the fence holds.
pub(super) fn heartbeat(fence: Fence, clock: Clock, lease: Duration) -> Op {
    let sql = format!(
        "UPDATE everstep_runners SET lease_until = {} + $3 WHERE id = $1 AND epoch = $2 RETURNING 1",
        clock.now()
    );
    Op::new(sql, params![fence.runner, fence.epoch, lease.as_millis()])
}

/// Raises the epoch of those holders of wanted shards whose lease is over, or who are gone, and ends
/// their leases: from then on none of their batches can begin. In a transaction of its own.
pub(super) fn oust_expired(
    session: &Session<'_>,
    fence: Fence,
    clock: Clock,
    wanted: &ShardSet,
    gone: &[Gone],
) -> Result<Vec<Uuid>, Trouble> {
    if !fence_holds(session, fence)? {
        return Ok(Vec::new());
    }
    let now = clock.now();
    let ids = Value::uuids(gone.iter().map(|it| it.runner));
    let leases = Value::ints(gone.iter().map(|it| it.lease_until.as_millis()));
    let wanted = listed(wanted);
    let params = params![wanted, fence.runner, ids, leases];
    // In the order of ids, so that two who do this do not wait for each other.
    let sql = format!(
        "WITH expired AS (SELECT id FROM everstep_runners WHERE id <> $2 \
         AND (lease_until <= {now} \
         OR (id, lease_until) IN (SELECT * FROM unnest($3::bytea[], $4::bigint[]))) \
         AND id IN (SELECT runner FROM everstep_shards WHERE shard = ANY ($1)) \
         ORDER BY id FOR NO KEY UPDATE) \
         UPDATE everstep_runners SET epoch = nextval('everstep_epochs'), \
         lease_until = least(lease_until, {now}) FROM expired \
         WHERE everstep_runners.id = expired.id RETURNING everstep_runners.id"
    );
    session.rows(sql, params, |row| row.get(0).map(Uuid::from_bytes))
}

/// Takes what is free, after the shards of those who were ousted have become so. `None` if the fence
/// does not hold.
pub(super) fn take_shards(
    session: &Session<'_>,
    fence: Fence,
    clock: Clock,
    wanted: &ShardSet,
    ousted: &[Uuid],
) -> Result<Option<ShardSet>, Trouble> {
    if ousted.is_empty() {
        if !fence_holds(session, fence)? {
            return Ok(None);
        }
    } else if !free_shards_of(session, fence, clock, ousted)? {
        return Ok(None);
    }
    // Shards of runners whose row is gone are free.
    let sql = "WITH freed AS (DELETE FROM everstep_shards WHERE shard = ANY ($1) \
               AND runner NOT IN (SELECT id FROM everstep_runners) RETURNING shard) \
               UPDATE everstep_runs SET recoveries = recoveries + 1 \
               WHERE status IN (1, 3) AND shard IN (SELECT shard FROM freed)";
    session.execute(sql, params![listed(wanted)]);
    let sql = "INSERT INTO everstep_shards (shard, runner) SELECT number, $1 FROM unnest($2::bigint[]) \
               AS number ORDER BY number ON CONFLICT DO NOTHING";
    session.execute(sql, params![fence.runner, listed(wanted)]);
    columns::shards_of(session, fence.runner).map(Some)
}

/// Frees the shards of those who were ousted and have not come back since. Whether the fence holds.
fn free_shards_of(
    session: &Session<'_>,
    fence: Fence,
    clock: Clock,
    ousted: &[Uuid],
) -> Result<bool, Trouble> {
    let bytes = |id: &Uuid| Some(id.as_bytes().to_vec());
    let mut ids: Vec<_> = ousted.iter().map(bytes).collect();
    ids.push(bytes(&fence.runner));
    // Waits for their batches under way; then nothing of theirs can change a run any more. In the
    // order of ids, our own row among them, so that two who take over from each other do not wait
    // for each other.
    let sql = format!(
        "SELECT id, epoch, lease_until <= {} FROM everstep_runners \
         WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
        clock.now()
    );
    let rows = session.rows(sql, params![Value::Blobs(ids)], |row| {
        let id = row.get(0)?;
        Ok((id, row.get(1)?, row.get::<bool>(2)?))
    })?;
    let me = (fence.runner, fence.epoch);
    if !rows.iter().any(|(id, epoch, _)| (*id, *epoch) == me) {
        return Ok(false);
    }
    // One that has registered again since it was ousted has a lease, and an epoch that holds.
    let gone = rows.iter().filter(|(id, _, is_over)| *is_over && *id != fence.runner);
    let gone = Value::uuids(gone.map(|(id, ..)| *id));
    let sql = "UPDATE everstep_runners SET epoch = nextval('everstep_epochs') WHERE id = ANY ($1)";
    session.execute(sql, params![gone]);
    // All that they held, whoever takes it: what was given back in good order does not count.
    let sql = "WITH freed AS (DELETE FROM everstep_shards WHERE runner = ANY ($1) RETURNING shard) \
               UPDATE everstep_runs SET recoveries = recoveries + 1 \
               WHERE status IN (1, 3) AND shard IN (SELECT shard FROM freed)";
    session.execute(sql, params![gone]);
    Ok(true)
}
