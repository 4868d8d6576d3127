//! Pools and what moves between them, in SQL.

use rusqlite::{Connection, OptionalExtension, params};

use super::batch::{Applier, last_number};
use crate::{
    pool::{PoolNo, PoolRow},
    run_id::{RunNo, ShardId},
    store::rules::{Head, pools::Pools},
    time::Timestamp,
};

/// The number of the pool with this name, which is made if there is none.
pub(crate) fn pool_no(conn: &Connection, name: &str) -> rusqlite::Result<PoolNo> {
    let sql = "SELECT no FROM pools WHERE name = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([name], |row| row.get(0));
    if let Some(no) = found.optional()? {
        return Ok(PoolNo(no));
    }
    let sql = "INSERT INTO pools (no, name) SELECT max(no) + 1, ?1 FROM pools RETURNING no";
    conn.query_row(sql, [name], |row| row.get(0).map(PoolNo))
}

pub(crate) fn pools(conn: &Connection) -> rusqlite::Result<Vec<PoolRow>> {
    let mut statement = conn.prepare_cached("SELECT no, name FROM pools ORDER BY no")?;
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
        self.owns_shard(shard)
    }

    fn write_home(&mut self, run: RunNo, pool: &str) -> rusqlite::Result<bool> {
        let sql = "UPDATE runs SET pool = ?2, updated_at = ?3 WHERE no = ?1 AND pool <> ?2";
        let changed = self.execute(sql, params![run.0, pool, self.now])?;
        Ok(changed > 0)
    }

    fn write_shard(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE runs SET shard = ?2, status = ?3, available_at = ?4, last_number = ?5, \
                   updated_at = ?6 WHERE no = ?1";
        let run = head.id.no();
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (shard, status) = (head.shard.0, head.status.code());
        let number = last_number(head);
        let params = params![run.0, shard, status, available_at, number, self.now];
        self.execute(sql, params)?;
        self.memory.remember(run, *head);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::OpenFlags;

    use super::*;
    use crate::store::sqlite::{
        SqliteOptions,
        file::File,
        schema::{MIGRATIONS, migrate},
        testing::Directory,
    };

    #[test]
    fn a_file_from_before_pools_had_numbers_keeps_its_runs_in_their_pools() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        let mut conn = file.connect(OpenFlags::default()).expect("connect");
        let before = MIGRATIONS
            .iter()
            .position(|sql| sql.contains("CREATE TABLE pools"))
            .expect("the migration");
        migrate(&mut conn, &file, &MIGRATIONS[..before]).expect("the format before");
        for (no, pool, shard) in [
            (1, "default", 7),
            (2, "tape", 8),
            (3, "gpu", 9),
            (4, "gpu", 7),
        ] {
            let sql = "INSERT INTO runs (no, id, workflow, version, pool, shard, status, \
                       generation, created_at, updated_at, attempts, recoveries, inbox_seq, input) \
                       VALUES (?1, x'', 'w', 1, ?2, ?3, 5, 1, 0, 0, 1, 0, 0, x'')";
            conn.execute(sql, params![no, pool, shard]).expect("a run");
        }
        let sql =
            "INSERT INTO runners VALUES (zeroblob(16), 1, 'old-host/7', 0, '[[\"w\",1]]', NULL)";
        conn.execute(sql, []).expect("a runner that is gone");
        migrate(&mut conn, &file, MIGRATIONS).expect("this format");
        let names = pools(&conn).expect("pools");
        let names: Vec<&str> = names.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["default", "gpu", "tape"]);
        let mut statement = conn.prepare("SELECT shard FROM runs ORDER BY no").unwrap();
        let shards = statement.query_map([], |row| row.get(0).map(ShardId));
        let shards: Vec<ShardId> = shards.unwrap().collect::<Result<_, _>>().unwrap();
        let shard = |pool, index| ShardId::new(PoolNo(pool), index);
        assert_eq!(shards, [shard(0, 7), shard(2, 8), shard(1, 9), shard(1, 7)]);
        let runners = crate::store::sqlite::reads::runners(&conn);
        let [runner] = &runners.expect("runners")[..] else {
            panic!("one runner");
        };
        assert_eq!((runner.workflows.len(), &*runner.pools[0]), (0, "default"));
    }
}
