//! Runners and their shards, within the writer's transaction: nobody else writes meanwhile.

use std::time::Duration;

use uuid::Uuid;

use super::session::Session;
use crate::{
    store::{
        Fence, Gone, NewRunner, ShardSet,
        memory::DEAD_RUNNER_KEPT,
        rules::pools::Said,
        sql::{
            Sql,
            columns::{shards_of, to_json},
            pools,
            reads::listed,
            runners::fence_holds,
            value::params,
        },
    },
    time::Timestamp,
};

pub(super) fn register(
    session: &Session<'_>,
    runner: &NewRunner,
    address: Option<&str>,
) -> rusqlite::Result<Fence> {
    let sql = "DELETE FROM everstep_shards WHERE runner = ?1";
    session.execute(sql, params![runner.id])?;
    let sql = "DELETE FROM everstep_runners \
               WHERE lease_until <= ?1 AND id NOT IN (SELECT runner FROM everstep_shards)";
    session.execute(sql, params![runner.now - DEAD_RUNNER_KEPT])?;
    for pool in &runner.pools {
        pools::pool_no(session, pool)?;
    }
    let epoch = next_epoch(session)?;
    let sql = "INSERT OR REPLACE INTO everstep_runners \
               (id, epoch, name, lease_until, lease, workflows, address, pools, weight) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let said = Said::by(runner);
    let (workflows, pools) = (to_json(&said.workflows), to_json(&said.pools));
    let (lease_until, lease) = (runner.now + runner.lease, runner.lease.as_millis());
    let params = params![
        runner.id,
        epoch,
        runner.name,
        lease_until,
        lease,
        workflows,
        address,
        pools,
        runner.weight,
    ];
    session.execute(sql, params)?;
    Ok(Fence { runner: runner.id, epoch })
}

fn next_epoch(session: &Session<'_>) -> rusqlite::Result<u64> {
    let sql = "UPDATE everstep_epochs SET last = last + 1 RETURNING last";
    session.count(sql, &[])
}

pub(super) fn heartbeat(
    session: &Session<'_>,
    fence: Fence,
    now: Timestamp,
    lease: Duration,
) -> rusqlite::Result<bool> {
    let sql = "UPDATE everstep_runners SET lease_until = ?3 WHERE id = ?1 AND epoch = ?2";
    Ok(session.execute_now(sql, params![fence.runner, fence.epoch, now + lease])? > 0)
}

pub(super) fn take_shards(
    session: &Session<'_>,
    fence: Fence,
    now: Timestamp,
    wanted: &ShardSet,
    gone: &[Gone],
) -> rusqlite::Result<Option<ShardSet>> {
    if !fence_holds(session, fence)? {
        return Ok(None);
    }
    oust_expired(session, fence.runner, now, wanted, gone)?;
    let sql = "INSERT INTO everstep_shards (shard, runner) SELECT value, ?1 FROM json_each(?2) \
               WHERE TRUE ON CONFLICT DO NOTHING";
    session.execute(sql, params![fence.runner, listed(wanted)])?;
    shards_of(session, fence.runner).map(Some)
}

/// Frees all shards of those holders of wanted shards whose lease is over, or who are gone, and
/// counts a recovery on the runs that they had in memory.
fn oust_expired(
    session: &Session<'_>,
    me: Uuid,
    now: Timestamp,
    wanted: &ShardSet,
    gone: &[Gone],
) -> rusqlite::Result<()> {
    let sql = "SELECT DISTINCT runner, lease_until FROM everstep_shards \
               LEFT JOIN everstep_runners ON id = runner \
               WHERE shard IN (SELECT value FROM json_each(?1)) AND runner <> ?2";
    let holders: Vec<(Uuid, Option<Timestamp>)> =
        session.rows(sql, params![listed(wanted), me], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_over = |(runner, lease_until): &(Uuid, Option<Timestamp>)| {
        let (runner, until) = (*runner, *lease_until);
        until.is_none_or(|lease_until| {
            lease_until <= now || gone.contains(&Gone { runner, lease_until })
        })
    };
    for (runner, _) in holders.into_iter().filter(is_over) {
        let sql = "UPDATE everstep_runners SET epoch = ?2, lease_until = min(lease_until, ?3) \
                   WHERE id = ?1";
        session.execute(sql, params![runner, next_epoch(session)?, now])?;
        let sql = "UPDATE everstep_runs SET recoveries = recoveries + 1 WHERE no IN ( \
                   SELECT no FROM everstep_runs INDEXED BY everstep_runs_live WHERE status IN (1, 3) \
                   AND shard IN (SELECT shard FROM everstep_shards WHERE runner = ?1))";
        session.execute(sql, params![runner])?;
        let sql = "DELETE FROM everstep_shards WHERE runner = ?1";
        session.execute(sql, params![runner])?;
    }
    Ok(())
}

/// Enters the address at which a runner is woken. A runner without a row gets it when it registers.
pub(super) fn set_address(session: &Session<'_>, id: Uuid, address: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE everstep_runners SET address = ?2 WHERE id = ?1";
    session.execute(sql, params![id, address])
}

/// The other runners that have an address, with it.
pub(super) fn addresses(session: &Session<'_>) -> rusqlite::Result<Vec<(Uuid, String)>> {
    let sql = "SELECT id, address FROM everstep_runners WHERE address IS NOT NULL";
    session.rows(sql, &[], |row| Ok((row.get(0)?, row.get(1)?)))
}
