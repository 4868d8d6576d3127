//! Runners and their shards, within the writer's transaction.

use std::time::Duration;

use rusqlite::{Connection, params};
use uuid::Uuid;

use super::{batch::fence_holds, columns, pools};
use crate::{
    store::{Fence, NewRunner, ShardSet, memory::DEAD_RUNNER_KEPT, rules},
    time::Timestamp,
};

pub(crate) fn register(
    conn: &Connection,
    runner: &NewRunner,
    address: Option<&str>,
) -> rusqlite::Result<Fence> {
    let id = runner.id.as_bytes();
    conn.execute("DELETE FROM everstep_shards WHERE runner = ?1", [id])?;
    let sql = "DELETE FROM everstep_runners \
               WHERE lease_until <= ?1 AND id NOT IN (SELECT runner FROM everstep_shards)";
    conn.execute(sql, [(runner.now - DEAD_RUNNER_KEPT).as_millis()])?;
    for pool in &runner.pools {
        pools::pool_no(conn, pool)?;
    }
    let epoch = next_epoch(conn)?;
    let sql = "INSERT OR REPLACE INTO everstep_runners \
               (id, epoch, name, lease_until, workflows, address, pools, weight) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let lease_until = (runner.now + runner.lease).as_millis();
    let said = rules::pools::Said::by(runner);
    let workflows = columns::to_json(&said.workflows);
    let pools = columns::to_json(&said.pools);
    conn.execute(
        sql,
        params![
            id,
            epoch,
            runner.name,
            lease_until,
            workflows,
            address,
            pools,
            runner.weight
        ],
    )?;
    Ok(Fence {
        runner: runner.id,
        epoch: epoch as u64,
    })
}

fn next_epoch(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row(
        "UPDATE everstep_epochs SET last = last + 1 RETURNING last",
        [],
        |row| row.get(0),
    )
}

pub(crate) fn heartbeat(
    conn: &Connection,
    fence: Fence,
    now: Timestamp,
    lease: Duration,
) -> rusqlite::Result<bool> {
    let sql = "UPDATE everstep_runners SET lease_until = ?3 WHERE id = ?1 AND epoch = ?2";
    let lease_until = (now + lease).as_millis();
    let params = params![fence.runner.as_bytes(), fence.epoch as i64, lease_until];
    Ok(conn.prepare_cached(sql)?.execute(params)? > 0)
}

pub(crate) fn take_shards(
    conn: &Connection,
    fence: Fence,
    now: Timestamp,
    wanted: &ShardSet,
    dead: &[Uuid],
) -> rusqlite::Result<Option<ShardSet>> {
    if !fence_holds(conn, fence)? {
        return Ok(None);
    }
    let list = columns::to_json(&wanted.iter().map(|shard| shard.0).collect::<Vec<_>>());
    oust_expired(conn, fence.runner, now, &list, dead)?;
    let sql = "INSERT INTO everstep_shards (shard, runner) SELECT value, ?1 FROM json_each(?2) WHERE TRUE \
               ON CONFLICT DO NOTHING";
    conn.execute(sql, params![fence.runner.as_bytes(), list])?;
    columns::shards_of(conn, fence.runner).map(Some)
}

/// Frees all shards of those holders of wanted shards whose lease is over, or who are dead, and
/// counts a recovery on the runs that they had in memory.
fn oust_expired(
    conn: &Connection,
    me: Uuid,
    now: Timestamp,
    wanted: &str,
    dead: &[Uuid],
) -> rusqlite::Result<()> {
    let sql = "SELECT DISTINCT runner FROM everstep_shards LEFT JOIN everstep_runners ON id = runner \
               WHERE shard IN (SELECT value FROM json_each(?1)) AND runner <> ?2 \
               AND (id IS NULL OR lease_until <= ?3 \
               OR lower(hex(runner)) IN (SELECT value FROM json_each(?4)))";
    let mut statement = conn.prepare(sql)?;
    let dead: Vec<String> = dead.iter().map(|id| id.simple().to_string()).collect();
    let dead = columns::to_json(&dead);
    let params = params![wanted, me.as_bytes(), now.as_millis(), dead];
    let expired = statement.query_map(params, |row| row.get::<_, [u8; 16]>(0))?;
    for runner in expired.collect::<rusqlite::Result<Vec<_>>>()? {
        let epoch = next_epoch(conn)?;
        conn.execute(
            "UPDATE everstep_runners SET epoch = ?2 WHERE id = ?1",
            params![runner, epoch],
        )?;
        let sql = "UPDATE everstep_runs SET recoveries = recoveries + 1 WHERE no IN ( \
                   SELECT no FROM everstep_runs INDEXED BY everstep_runs_live WHERE status IN (1, 3) \
                   AND shard IN (SELECT shard FROM everstep_shards WHERE runner = ?1))";
        conn.execute(sql, [runner])?;
        conn.execute("DELETE FROM everstep_shards WHERE runner = ?1", [runner])?;
    }
    Ok(())
}

pub(crate) fn release_shards(
    conn: &Connection,
    fence: Fence,
    shards: &ShardSet,
) -> rusqlite::Result<()> {
    if fence_holds(conn, fence)? {
        let list = columns::to_json(&shards.iter().map(|shard| shard.0).collect::<Vec<_>>());
        let sql = "DELETE FROM everstep_shards \
                   WHERE runner = ?1 AND shard IN (SELECT value FROM json_each(?2))";
        conn.execute(sql, params![fence.runner.as_bytes(), list])?;
    }
    Ok(())
}

pub(crate) fn deregister(conn: &Connection, fence: Fence) -> rusqlite::Result<()> {
    if fence_holds(conn, fence)? {
        let id = fence.runner.as_bytes();
        conn.execute("DELETE FROM everstep_shards WHERE runner = ?1", [id])?;
        conn.execute("DELETE FROM everstep_runners WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// Enters the address at which a runner is woken. A runner without a row gets it when it registers.
pub(crate) fn set_address(conn: &Connection, id: Uuid, address: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE everstep_runners SET address = ?2 WHERE id = ?1";
    conn.execute(sql, params![id.as_bytes(), address]).map(drop)
}
