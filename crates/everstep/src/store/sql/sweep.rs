//! What deletes have left and the sweep that removes it, and the runs that retention deletes.

use super::{Sql, value::params};
use crate::{
    run_id::{RunId, RunNo},
    store::{RunStatus, rules::sweep::SweptTables},
    time::Timestamp,
};

/// Whether deletes have left anything, or connections to PostgreSQL that were last seen before this.
pub(crate) fn is_left<S: Sql>(
    sql: &S,
    now: Timestamp,
    seen_before: Timestamp,
) -> Result<bool, S::Error> {
    let text = format!(
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM everstep_graves) OR EXISTS (SELECT 1 \
         FROM everstep_keys{} WHERE kept_until IS NOT NULL AND kept_until <= ?1){}",
        S::indexed_by("everstep_keys_tombstones"),
        S::pick("", " OR EXISTS (SELECT 1 FROM everstep_lanes WHERE seen_at < ?2)")
    );
    sql.exists(text, params![now, seen_before])
}

/// What deletes have left. Several processes may sweep it: each takes graves of its own.
pub(crate) struct Left<'s, S> {
    pub(crate) sql: &'s S,
    pub(crate) now: Timestamp,
}

impl<S: Sql> SweptTables for Left<'_, S> {
    type Error = S::Error;

    fn delete_tombstones(&mut self, limit: usize) -> Result<usize, S::Error> {
        let text = format!(
            "DELETE FROM everstep_keys WHERE (workflow, key) IN (SELECT workflow, key \
             FROM everstep_keys{} WHERE kept_until IS NOT NULL AND kept_until <= ?1 \
             {} LIMIT ?2{})",
            S::indexed_by("everstep_keys_tombstones"),
            S::pick("", "ORDER BY workflow, key"),
            S::skip_locked(),
        );
        self.sql.execute_now(text, params![self.now, limit])
    }

    fn next_grave(&mut self) -> Result<Option<RunNo>, S::Error> {
        let text =
            format!("SELECT run FROM everstep_graves ORDER BY run LIMIT 1{}", S::skip_locked());
        self.sql.row(text, &[], |row| row.get(0))
    }

    fn delete_left(&mut self, text: String, run: RunNo, limit: usize) -> Result<usize, S::Error> {
        self.sql.execute_now(text, params![run, limit])
    }

    fn delete_grave(&mut self, run: RunNo) -> Result<(), S::Error> {
        let text = "DELETE FROM everstep_graves WHERE run = ?1";
        self.sql.execute(text, params![run])
    }
}

pub(crate) fn finished_before<S: Sql>(
    sql: &S,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> Result<Vec<(RunId, Timestamp)>, S::Error> {
    let text = format!(
        "SELECT id, finished_at FROM everstep_runs{} WHERE workflow = ?1 AND status = ?2 \
         AND finished_at IS NOT NULL AND finished_at < ?3 ORDER BY finished_at, no LIMIT ?4",
        S::indexed_by("everstep_runs_finished")
    );
    sql.rows(text, params![workflow, status, before, limit], |row| Ok((row.get(0)?, row.get(1)?)))
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use rusqlite::Connection;

    use crate::{
        run_id::{RunId, RunIds},
        store::{
            rules::sweep::LEFT_BY_RUNS,
            sqlite::{SqliteStore, testing::Directory},
            *,
        },
        time::Timestamp,
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
        let names: Vec<String> = names.expect("query").map(|name| name.expect("a name")).collect();
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
        let delete =
            Delete { target: Target::Id(runs[0]), finished_before: None, key_kept_until: None };
        let batch = Batch { fence: None, now: NOW, writes: vec![Write::Delete(Box::new(delete))] };
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
        let batch = Batch { fence: None, now: NOW, writes: vec![Write::Start(Box::new(new))] };
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
