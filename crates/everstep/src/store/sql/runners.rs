//! Runners and their shards. How shards change hands is each store's own.

use std::time::Duration;

use super::{
    Sql,
    columns::from_json,
    reads::listed,
    value::{BadValue, Row, params},
};
use crate::{
    run_id::ShardId,
    store::{Fence, RunnerRow, ShardSet, rules::pools::Said},
};

/// The runners, with their leases in the time of the store.
pub(crate) fn list<S: Sql>(sql: &S) -> Result<Vec<RunnerRow>, S::Error> {
    let shards = S::pick("json_group_array(shard)", "coalesce(json_agg(shard)::text, '[]')");
    let text = format!(
        "SELECT id, epoch, name, lease_until, lease, workflows, pools, weight, \
         (SELECT {shards} FROM everstep_shards WHERE runner = everstep_runners.id) \
         FROM everstep_runners ORDER BY id"
    );
    sql.rows(text, &[], runner_row)
}

fn runner_row(row: &dyn Row) -> Result<RunnerRow, BadValue> {
    let shards: Vec<u32> = from_json(&row.get::<String>(8)?)?;
    let said = Said {
        workflows: from_json(&row.get::<String>(5)?)?,
        pools: from_json(&row.get::<String>(6)?)?,
    };
    let (workflows, pools) = said.read();
    Ok(RunnerRow {
        id: row.get(0)?,
        epoch: row.get(1)?,
        name: row.get(2)?,
        lease_until: row.get(3)?,
        lease: Duration::from_millis(row.get(4)?),
        shards: shards.into_iter().map(ShardId).collect(),
        workflows,
        pools,
        weight: row.get(7)?,
    })
}

/// Whether the runner's row has this epoch; it keeps it until the transaction ends.
pub(crate) fn fence_holds<S: Sql>(sql: &S, fence: Fence) -> Result<bool, S::Error> {
    let text = format!(
        "SELECT 1 FROM everstep_runners WHERE id = ?1 AND epoch = ?2{}",
        S::pick("", " FOR KEY SHARE")
    );
    sql.exists(text, params![fence.runner, fence.epoch])
}

/// As [`fence_holds`]. Waits for batches under way, which go by the shards that the runner has.
fn holds_alone<S: Sql>(sql: &S, fence: Fence) -> Result<bool, S::Error> {
    let text = format!(
        "SELECT 1 FROM everstep_runners WHERE id = ?1 AND epoch = ?2{}",
        S::pick("", " FOR UPDATE")
    );
    sql.exists(text, params![fence.runner, fence.epoch])
}

pub(crate) fn release_shards<S: Sql>(
    sql: &S,
    fence: Fence,
    shards: &ShardSet,
) -> Result<(), S::Error> {
    if holds_alone(sql, fence)? {
        let text =
            format!("DELETE FROM everstep_shards WHERE runner = ?1 AND shard {}", S::is_any("?2"));
        sql.execute(text, params![fence.runner, listed(shards)])?;
    }
    Ok(())
}

pub(crate) fn deregister<S: Sql>(sql: &S, fence: Fence) -> Result<(), S::Error> {
    if holds_alone(sql, fence)? {
        let text = "DELETE FROM everstep_shards WHERE runner = ?1";
        sql.execute(text, params![fence.runner])?;
        let text = "DELETE FROM everstep_runners WHERE id = ?1";
        sql.execute(text, params![fence.runner])?;
    }
    Ok(())
}
