//! Pools and what moves between them, in SQL.

use rusqlite::{Connection, OptionalExtension, params};

use super::{batch::Applier, columns};
use crate::{
    pool::{PoolNo, PoolRow},
    run_id::{RunNo, ShardId},
    store::rules::{Head, pools::Pools},
    time::Timestamp,
};

/// The number of the pool with this name, which is made if there is none.
pub(crate) fn pool_no(conn: &Connection, name: &str) -> rusqlite::Result<PoolNo> {
    let sql = "SELECT no FROM everstep_pools WHERE name = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([name], |row| row.get(0));
    if let Some(no) = found.optional()? {
        return Ok(PoolNo(no));
    }
    let sql = "INSERT INTO everstep_pools (no, name) SELECT max(no) + 1, ?1 FROM everstep_pools RETURNING no";
    conn.query_row(sql, [name], |row| row.get(0).map(PoolNo))
}

pub(crate) fn pools(conn: &Connection) -> rusqlite::Result<Vec<PoolRow>> {
    let mut statement = conn.prepare_cached("SELECT no, name FROM everstep_pools ORDER BY no")?;
    let rows = statement.query_map([], |row| {
        Ok(PoolRow {
            no: PoolNo(row.get(0)?),
            name: row.get::<_, String>(1)?.into(),
        })
    })?;
    rows.collect()
}

impl Pools for Applier<'_> {
    fn pool_no(&mut self, name: &str) -> rusqlite::Result<PoolNo> {
        // Almost every run is in it, and it has the same number in every file.
        if name == crate::pool::DEFAULT_POOL {
            return Ok(PoolNo::DEFAULT);
        }
        pool_no(self.conn, name)
    }

    fn owns(&mut self, shard: ShardId) -> rusqlite::Result<bool> {
        let Some(runner) = self.runner else {
            return Ok(false);
        };
        if let Some((holder, held)) = &self.memory.shards
            && *holder == runner
        {
            return Ok(held.contains(shard));
        }
        let held = columns::shards_of(self.conn, runner)?;
        let owns = held.contains(shard);
        self.memory.shards = Some((runner, held));
        Ok(owns)
    }

    fn write_home(&mut self, run: RunNo, pool: &str) -> rusqlite::Result<bool> {
        let sql =
            "UPDATE everstep_runs SET pool = ?2, updated_at = ?3 WHERE no = ?1 AND pool <> ?2";
        let changed = self.execute(sql, params![run.0, pool, self.now])?;
        Ok(changed > 0)
    }

    fn write_shard(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET shard = ?2, status = ?3, available_at = ?4, last_number = ?5, \
                   updated_at = ?6 WHERE no = ?1";
        let run = head.id.no();
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (shard, status) = (head.shard.0, head.status.code());
        let number = head.stored_number();
        let params = params![run.0, shard, status, available_at, number, self.now];
        self.execute(sql, params)?;
        self.memory.remember(run, *head);
        Ok(())
    }
}
