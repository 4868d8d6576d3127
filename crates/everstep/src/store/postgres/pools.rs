//! Pools and what moves between them, in SQL.

use super::{
    batch::{Applier, last_number},
    error::Trouble,
    locks::Lock,
    session::{Bulk, Session},
    value::params,
};
use crate::{
    pool::{PoolNo, PoolRow},
    run_id::ShardId,
    store::rules::{Head, pools::Pools},
    time::Timestamp,
    workflow::DEFAULT_POOL,
};

static WRITE_SHARD: Bulk = Bulk {
    table: "runs",
    sql: "UPDATE runs SET shard = new.shard, status = new.status, \
          available_at = new.available_at, last_number = new.last_number, updated_at = new.now \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
          $6::bigint[]) AS new (no, shard, status, available_at, last_number, now) \
          WHERE runs.no = new.no",
    unique: 1,
};

pub(super) fn list(session: &Session<'_>) -> Result<Vec<PoolRow>, Trouble> {
    let sql = "SELECT no, name FROM pools ORDER BY no";
    session.rows(sql, Vec::new(), |row| {
        Ok(PoolRow {
            no: PoolNo(row.get(0)?),
            name: row.get::<String>(1)?.into(),
        })
    })
}

/// Makes those of these pools that there are not yet, in a transaction that does nothing else: it
/// may wait for the lock.
pub(super) fn make(session: &Session<'_>, names: &[String], schema: u32) -> Result<(), Trouble> {
    for name in names {
        if find(session, name)?.is_none() {
            let number = Lock::Pools.advisory(schema);
            session.execute("SELECT pg_advisory_xact_lock($1)", params![number]);
            insert(session, name)?;
        }
    }
    Ok(())
}

fn find(session: &Session<'_>, name: &str) -> Result<Option<PoolNo>, Trouble> {
    let sql = "SELECT no FROM pools WHERE name = $1";
    session.row(sql, params![name], |row| row.get(0).map(PoolNo))
}

/// Under the lock, so that nobody else takes the number.
fn insert(session: &Session<'_>, name: &str) -> Result<PoolNo, Trouble> {
    if let Some(no) = find(session, name)? {
        return Ok(no);
    }
    let sql = "INSERT INTO pools (no, name) SELECT max(no) + 1, $1 FROM pools RETURNING no";
    let made = session.row(sql, params![name], |row| row.get(0).map(PoolNo))?;
    made.ok_or_else(|| Trouble::value("pool", name))
}

impl Pools for Applier<'_> {
    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Trouble> {
        // Almost every run is in it, and it has the same number everywhere.
        if name == DEFAULT_POOL {
            return Ok(PoolNo::DEFAULT);
        }
        if let Some(no) = find(self.session, name)? {
            return Ok(no);
        }
        self.lock(Lock::Pools)?;
        insert(self.session, name)
    }

    fn owns(&mut self, shard: ShardId) -> Result<bool, Trouble> {
        self.owns_shard(shard)
    }

    fn write_shard(&mut self, head: &Head) -> Result<(), Trouble> {
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, status) = (head.id.no(), head.status.code());
        let number = last_number(head);
        let row = params![run.0, head.shard.0, status, available_at, number, self.now];
        self.session.put(&WRITE_SHARD, row);
        self.remember(run, *head);
        Ok(())
    }
}
