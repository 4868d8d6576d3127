//! What deletes have left and the sweep that removes it, and the runs that retention deletes.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    columns,
    writer::{Memory, Swept},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        rules::sweep::{self, SweptTables},
        *,
    },
    time::Timestamp,
};

/// Whether deletes have left anything.
pub(crate) fn is_left(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM everstep_graves) OR EXISTS (SELECT 1 FROM everstep_keys \
               INDEXED BY everstep_keys_tombstones WHERE kept_until IS NOT NULL AND kept_until <= ?1)";
    conn.prepare_cached(sql)?
        .query_row([now.as_millis()], |row| row.get(0))
}

/// Deletes about `limit` rows of what deletes have left. Whether there is more.
pub(crate) fn sweep(
    conn: &Connection,
    memory: &mut Memory,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<bool> {
    let is_more = sweep::sweep(&mut Left { conn, now }, limit)?;
    if !is_more {
        memory.swept = Some(Swept::Clean);
    }
    Ok(is_more)
}

struct Left<'a> {
    conn: &'a Connection,
    now: Timestamp,
}

impl SweptTables for Left<'_> {
    type Error = rusqlite::Error;

    fn delete_tombstones(&mut self, limit: usize) -> rusqlite::Result<usize> {
        let sql = "DELETE FROM everstep_keys WHERE (workflow, key) IN (SELECT workflow, key FROM everstep_keys \
                   INDEXED BY everstep_keys_tombstones WHERE kept_until IS NOT NULL AND kept_until <= ?1 \
                   LIMIT ?2)";
        let params = params![self.now.as_millis(), columns::limit(limit)];
        self.conn.prepare_cached(sql)?.execute(params)
    }

    fn next_grave(&mut self) -> rusqlite::Result<Option<RunNo>> {
        let sql = "SELECT run FROM everstep_graves ORDER BY run LIMIT 1";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement
            .query_row([], |row| row.get(0).map(RunNo))
            .optional()
    }

    fn delete_left(&mut self, sql: String, run: RunNo, limit: usize) -> rusqlite::Result<usize> {
        let params = params![run.0, columns::limit(limit)];
        let sql = sql.replace('$', "?");
        self.conn.prepare_cached(&sql)?.execute(params)
    }

    fn delete_grave(&mut self, run: RunNo) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_graves WHERE run = ?1";
        self.conn.prepare_cached(sql)?.execute([run.0]).map(drop)
    }
}

pub(crate) fn finished_before(
    conn: &Connection,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<(RunId, Timestamp)>> {
    let sql = "SELECT id, finished_at FROM everstep_runs INDEXED BY everstep_runs_finished \
               WHERE workflow = ?1 AND status = ?2 AND finished_at IS NOT NULL \
               AND finished_at < ?3 ORDER BY finished_at, no LIMIT ?4";
    let mut statement = conn.prepare_cached(sql)?;
    let params = params![
        workflow,
        status.code(),
        before.as_millis(),
        columns::limit(limit)
    ];
    let rows = statement.query_map(params, |row| {
        Ok((columns::run_id(row, 0)?, columns::time(row, 1)?))
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        run_id::RunIds,
        store::{
            rules::sweep::LEFT_BY_RUNS,
            sqlite::{SqliteStore, testing::Directory},
        },
    };

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn connect(directory: &Directory) -> Connection {
        Connection::open(directory.path("app.db")).expect("connect")
    }

    fn migrated(directory: &Directory) -> SqliteStore {
        let store = SqliteStore::create(directory.path("app.db")).expect("create");
        store.migrate().expect("migrate");
        store
    }

    /// Cleared by the delete itself, or what it leaves; empty once a run has ended; swept by the
    /// chore for old generations.
    const CLEARED: [&str; 8] = [
        "everstep_event_waiters",
        "everstep_queue_waits",
        "everstep_keys",
        "everstep_tags",
        "everstep_graves",
        "everstep_watchers",
        "everstep_children",
        "everstep_old_generations",
    ];

    #[test]
    fn every_table_that_names_a_run_is_swept() {
        let directory = Directory::new();
        drop(migrated(&directory));
        let conn = connect(&directory);
        let sql = "SELECT tables.name FROM sqlite_schema AS tables, \
                   pragma_table_info(tables.name) AS columns \
                   WHERE tables.type = 'table' AND columns.name = 'run' ORDER BY 1";
        let mut statement = conn.prepare(sql).expect("prepare");
        let names = statement.query_map([], |row| row.get::<_, String>(0));
        let names: Vec<String> = names
            .expect("query")
            .map(|name| name.expect("a name"))
            .collect();
        assert!(names.len() > CLEARED.len());
        for name in names {
            let swept = LEFT_BY_RUNS.iter().any(|(table, _)| *table == name);
            assert!(
                swept || CLEARED.contains(&name.as_str()),
                "what a deleted run leaves in `{name}` is not swept: add it to LEFT_BY_RUNS"
            );
        }
    }

    #[test]
    fn a_sweep_removes_every_row_of_a_deleted_run_and_no_other() {
        let directory = Directory::new();
        let store = migrated(&directory);
        let ids = RunIds::new(5);
        let runs = [ids.next(NOW), ids.next(NOW)];
        for id in runs {
            fill(&store, &connect(&directory), id);
        }
        let delete = Delete {
            target: Target::Id(runs[0]),
            finished_before: None,
            key_kept_until: None,
        };
        let batch = Batch {
            fence: None,
            now: NOW,
            writes: vec![Write::Delete(Box::new(delete))],
        };
        store.commit(&batch).expect("commit");
        let mut slices = 1;
        while store.sweep(NOW, 4).expect("sweep") {
            slices += 1;
        }
        assert!(slices > 5, "{slices}");
        let conn = connect(&directory);
        for (table, _) in LEFT_BY_RUNS {
            let count = |id: RunId| {
                let sql = format!("SELECT count(*) FROM {table} WHERE run = ?1");
                let count = conn.query_row(&sql, [id.no().0], |row| row.get::<_, i64>(0));
                count.expect("count")
            };
            assert_eq!((count(runs[0]), count(runs[1])), (0, 5), "`{table}`");
        }
    }

    /// An ended run, with five rows in every table.
    fn fill(store: &SqliteStore, conn: &Connection, id: RunId) {
        let new = NewRun {
            id,
            workflow: "checkout".into(),
            version: 1,
            key: None,
            pool: "default".into(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            trace: None,
            input: Vec::new(),
            parent: None,
            claim: false,
        };
        let batch = Batch {
            fence: None,
            now: NOW,
            writes: vec![Write::Start(Box::new(new))],
        };
        store.commit(&batch).expect("commit");
        let no = id.no().0;
        let end =
            format!("UPDATE everstep_runs SET status = 5, available_at = NULL WHERE no = {no}");
        conn.execute_batch(&end).expect("end");
        for n in 0..5 {
            let rows = format!(
                "INSERT INTO everstep_history VALUES ({no}, 1, x'0{n}', x'');
                 INSERT INTO everstep_inbox (run, seq, name, body, sent_at) VALUES ({no}, {n}, '', x'', 0);
                 INSERT INTO everstep_dedupes VALUES ({no}, '{n}');
                 INSERT INTO everstep_requests (id, run, state) VALUES (randomblob(16), {no}, 1);
                 INSERT INTO everstep_state VALUES ({no}, '{n}', x'');
                 INSERT INTO everstep_deferreds (run, generation, tag, body, at)
                 VALUES ({no}, 1, x'0{n}', x'', 0);
                 INSERT INTO everstep_deferred_waits (run, generation, tag, key)
                 VALUES ({no}, 1, x'0{n}', x'');
                 INSERT INTO everstep_limit_places VALUES ({no}, 1, x'0{n}', '', '', 0, 0);
                 INSERT INTO everstep_event_cursors VALUES ({no}, '{n}', '', 0);
                 INSERT INTO everstep_streams (run, stream, pos, at, generation, body)
                 VALUES ({no}, '', {n}, 0, 1, x'');
                 INSERT INTO everstep_dead_letters (run, name, body, reason, at)
                 VALUES ({no}, '', x'', '', 0);"
            );
            conn.execute_batch(&rows).expect("a row of each");
        }
    }
}
