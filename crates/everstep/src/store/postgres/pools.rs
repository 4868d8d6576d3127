//! Pools and what moves between them, in SQL.

use super::{
    batch::{Applier, last_number},
    error::Trouble,
    session::Session,
    value::params,
};
use crate::{
    pool::{DEFAULT_POOL, PoolNo, PoolRow},
    run_id::{RunNo, ShardId},
    store::rules::{Head, pools::Pools},
    time::Timestamp,
};

/// The number of the pool with this name, which is made if there is none. Two that make one at the
/// same moment meet in the table: the second begins again and finds it.
pub(super) fn pool_no(session: &Session<'_>, name: &str) -> Result<PoolNo, Trouble> {
    let sql = "SELECT no FROM pools WHERE name = $1";
    let found = session.row(sql, params![name], |row| row.get(0).map(PoolNo))?;
    if let Some(no) = found {
        return Ok(no);
    }
    let sql = "INSERT INTO pools (no, name) SELECT max(no) + 1, $1 FROM pools RETURNING no";
    let made = session.row(sql, params![name], |row| row.get(0).map(PoolNo))?;
    made.ok_or_else(|| Trouble::value("pools", "nothing"))
}

pub(super) fn list(session: &Session<'_>) -> Result<Vec<PoolRow>, Trouble> {
    session.rows(
        "SELECT no, name FROM pools ORDER BY no",
        Vec::new(),
        |row| {
            Ok(PoolRow {
                no: PoolNo(row.get(0)?),
                name: row.get::<String>(1)?.into(),
            })
        },
    )
}

impl Pools for Applier<'_> {
    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Trouble> {
        // Almost every run is in it, and it has the same number in every schema.
        if name == DEFAULT_POOL {
            return Ok(PoolNo::DEFAULT);
        }
        if let Some(no) = self.pools.get(name) {
            return Ok(*no);
        }
        let no = pool_no(self.session, name)?;
        self.pools.insert(name.to_owned(), no);
        Ok(no)
    }

    fn owns(&mut self, shard: ShardId) -> Result<bool, Trouble> {
        self.owns_shard(shard)
    }

    fn write_home(&mut self, run: RunNo, pool: &str) -> Result<bool, Trouble> {
        let sql = "SELECT 1 FROM runs WHERE no = $1 AND pool <> $2";
        if !self.session.exists(sql, params![run.0, pool])? {
            return Ok(false);
        }
        let sql = "UPDATE runs SET pool = $2, updated_at = $3 WHERE no = $1";
        self.execute(sql, params![run.0, pool, self.now]);
        Ok(true)
    }

    fn write_shard(&mut self, head: &Head) -> Result<(), Trouble> {
        let sql = "UPDATE runs SET shard = $2, status = $3, available_at = $4, last_number = $5, \
                   updated_at = $6 WHERE no = $1";
        let run = head.id.no();
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (shard, status) = (head.shard.0, head.status.code());
        let number = last_number(head);
        let params = params![run.0, shard, status, available_at, number, self.now];
        self.execute(sql, params);
        self.remember(run, *head);
        Ok(())
    }
}
