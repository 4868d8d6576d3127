//! Deletes, tags and forks in SQL, and the sweep that removes what deletes have left.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    batch::Applier,
    columns,
    writer::{Memory, Swept},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        rules::{self, Head, Tagged, Tombstone, pools::Pools},
        *,
    },
    time::Timestamp,
};

/// The tables that hold something of a run under its number, with the columns that name one row.
/// What a run leaves in them is swept; `runs`, `keys` and `tags` are cleared by the delete itself.
pub(crate) const LEFT_BY_RUNS: &[(&str, &str)] = &[
    ("deferreds", "run, generation, tag"),
    ("deferred_waits", "run, generation, tag, key"),
    ("history", "run, generation, key"),
    ("inbox", "run, seq"),
    ("dedupes", "run, key"),
    ("requests", "id"),
    ("state", "run, key"),
    ("dead_letters", "no"),
    ("streams", "run, stream, pos"),
    ("event_cursors", "run, name, matching"),
    ("limit_places", "run, generation, operation"),
];

/// The `run` of a key whose run was deleted. No run has this number.
const NO_RUN: i64 = -1;

/// What stands under a key.
pub(crate) enum Keyed {
    Run(RunNo),
    Deleted(Tombstone),
}

pub(crate) fn keyed(
    conn: &Connection,
    workflow: &str,
    key: &str,
) -> rusqlite::Result<Option<Keyed>> {
    let sql = "SELECT run, deleted_id, deleted_at, kept_until FROM keys \
               WHERE workflow = ?1 AND key = ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([workflow, key], |row| {
        let Some(kept_until) = columns::optional_time(row, 3)? else {
            return row.get(0).map(|no| Keyed::Run(RunNo(no)));
        };
        Ok(Keyed::Deleted(Tombstone {
            run: columns::run_id(row, 1)?,
            deleted_at: columns::time(row, 2)?,
            kept_until,
        }))
    });
    found.optional()
}

/// Of a row, what a delete has to know.
struct Leaving {
    workflow: String,
    key: Option<String>,
    finished_at: Option<Timestamp>,
    tags: Vec<(String, String)>,
}

impl Applier<'_> {
    /// Whether this number is that of a deleted run of which something is still stored.
    pub(super) fn is_grave(&mut self, run: RunNo) -> rusqlite::Result<bool> {
        let swept = match self.memory.swept {
            Some(swept) => swept,
            None => {
                let sql = "SELECT 1 FROM graves LIMIT 1";
                let any = self.conn.prepare_cached(sql)?.exists([])?;
                let swept = if any { Swept::No } else { Swept::Clean };
                *self.memory.swept.insert(swept)
            }
        };
        if swept == Swept::Clean {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM graves WHERE run = ?1";
        self.conn.prepare_cached(sql)?.exists([run.0])
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> rusqlite::Result<Deleted> {
        let Some(head) = self.find(&delete.target)? else {
            return Ok(Deleted::Unknown);
        };
        let no = head.id.no();
        let leaving = self.leaving(no)?;
        if let Some(refused) = rules::refuse_delete(&head, leaving.finished_at, delete) {
            return Ok(refused);
        }
        if let Some(key) = &leaving.key {
            self.bury_key(&head, &leaving.workflow, key, delete)?;
        }
        for (name, value) in &leaving.tags {
            let sql = "DELETE FROM tags WHERE name = ?1 AND value = ?2 AND run = ?3";
            self.execute(sql, params![name, value, no.0])?;
        }
        self.execute("DELETE FROM runs WHERE no = ?1", [no.0])?;
        self.execute("INSERT OR IGNORE INTO graves (run) VALUES (?1)", [no.0])?;
        self.memory.swept = Some(Swept::No);
        self.memory.forget(no);
        Ok(Deleted::Done { run: head.id })
    }

    fn leaving(&self, no: RunNo) -> rusqlite::Result<Leaving> {
        let sql = "SELECT workflow, key, finished_at, tags FROM runs WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row([no.0], |row| {
            Ok(Leaving {
                workflow: row.get(0)?,
                key: row.get(1)?,
                finished_at: columns::optional_time(row, 2)?,
                tags: columns::tags(row, 3)?,
            })
        })
    }

    /// Removes the key of a run, or leaves a tombstone under it. The key of another run stays.
    fn bury_key(
        &self,
        head: &Head,
        workflow: &str,
        key: &str,
        delete: &Delete,
    ) -> rusqlite::Result<()> {
        let no = head.id.no().0;
        // What has continued may have begun as another workflow.
        let begun_as = match head.generation {
            1 => Some(workflow.to_owned()),
            _ => {
                let mut statement = self.conn.prepare_cached(rules::WORKFLOW_OF_KEY)?;
                let found = statement.query_row(params![key, no], |row| row.get(0));
                found.optional()?
            }
        };
        let Some(workflow) = begun_as else {
            return Ok(());
        };
        let Some(tombstone) = Tombstone::of(head.id, delete, self.now()) else {
            let sql = "DELETE FROM keys WHERE workflow = ?1 AND key = ?2 AND run = ?3";
            return self.execute(sql, params![workflow, key, no]).map(drop);
        };
        let sql = "UPDATE keys SET run = ?4, deleted_id = ?5, deleted_at = ?6, kept_until = ?7 \
                   WHERE workflow = ?1 AND key = ?2 AND run = ?3";
        let id = head.id.as_uuid();
        let params = params![
            workflow,
            key,
            no,
            NO_RUN,
            id.as_bytes(),
            tombstone.deleted_at.as_millis(),
            tombstone.kept_until.as_millis(),
        ];
        self.execute(sql, params).map(drop)
    }

    pub(super) fn tag(&mut self, tagging: &Tagging) -> rusqlite::Result<Outcome> {
        let Some(head) = self.find(&tagging.target)? else {
            return Ok(Outcome::Controlled(Controlled::Unknown));
        };
        let (run, status) = (head.id, head.status);
        let tagged = self.set_tag(run.no(), &tagging.name, tagging.value.as_deref())?;
        if tagged == Tagged::Changed {
            let sql = "UPDATE runs SET updated_at = ?2 WHERE no = ?1";
            self.execute(sql, params![run.no().0, self.now().as_millis()])?;
        }
        Ok(match tagged {
            Tagged::Changed => Outcome::Controlled(Controlled::Done { run }),
            Tagged::Unchanged => Outcome::Controlled(Controlled::Already { run, status }),
            Tagged::Full => Outcome::Refused(Refusal::TagsFull {
                limit: rules::TAGS_MAX,
            }),
        })
    }

    pub(super) fn set_tag(
        &self,
        no: RunNo,
        name: &str,
        value: Option<&str>,
    ) -> rusqlite::Result<Tagged> {
        let sql = "SELECT tags FROM runs WHERE no = ?1";
        let mut tags = self
            .conn
            .prepare_cached(sql)?
            .query_row([no.0], |row| columns::tags(row, 0))?;
        let before = tags.clone();
        let tagged = rules::set_tag(&mut tags, name, value);
        if tagged != Tagged::Changed {
            return Ok(tagged);
        }
        for (name, value) in before.iter().filter(|(other, _)| other == name) {
            let sql = "DELETE FROM tags WHERE name = ?1 AND value = ?2 AND run = ?3";
            self.execute(sql, params![name, value, no.0])?;
        }
        if let Some(value) = value {
            let sql = "INSERT OR IGNORE INTO tags (name, value, run) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![name, value, no.0])?;
        }
        let json = (!tags.is_empty()).then(|| columns::to_json(&tags));
        self.execute(
            "UPDATE runs SET tags = ?2 WHERE no = ?1",
            params![no.0, json],
        )?;
        Ok(tagged)
    }

    pub(super) fn fork(&mut self, fork: &Fork) -> rusqlite::Result<Outcome> {
        // Never claimed: it has a history to be loaded.
        let new = NewRun {
            claim: false,
            ..fork.new.clone()
        };
        let outcome = self.start(&new)?;
        let Outcome::Started(Started {
            attached: false,
            available_at: Some(at),
            ..
        }) = outcome
        else {
            return Ok(outcome);
        };
        let head = rules::fork_head(fork, self.pool_no(&new.pool)?, at);
        self.write_head(&head, None)?;
        self.write_entries(new.id.no(), head.generation, &[], &fork.history)?;
        self.write_state(new.id.no(), &fork.state)?;
        self.memory.remember(new.id.no(), head);
        Ok(outcome)
    }
}

/// Whether deletes have left anything.
pub(crate) fn is_left(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM graves) OR EXISTS (SELECT 1 FROM keys \
               INDEXED BY tombstones WHERE kept_until IS NOT NULL AND kept_until <= ?1)";
    conn.prepare_cached(sql)?
        .query_row([now.as_millis()], |row| row.get(0))
}

/// Removes about `limit` rows of what deletes have left. Whether there is more.
pub(crate) fn sweep(
    conn: &Connection,
    memory: &mut Memory,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<bool> {
    let mut left = limit.max(1);
    let sql = "DELETE FROM keys WHERE (workflow, key) IN (SELECT workflow, key FROM keys \
               INDEXED BY tombstones WHERE kept_until IS NOT NULL AND kept_until <= ?1 LIMIT ?2)";
    let params = params![now.as_millis(), columns::limit(left)];
    left -= conn.prepare_cached(sql)?.execute(params)?.min(left);
    while left > 0 {
        let sql = "SELECT run FROM graves ORDER BY run LIMIT 1";
        let next = conn
            .prepare_cached(sql)?
            .query_row([], |row| row.get::<_, i64>(0))
            .optional()?;
        let Some(run) = next else {
            memory.swept = Some(Swept::Clean);
            return Ok(false);
        };
        left -= sweep_run(conn, run, left)?.min(left);
    }
    Ok(true)
}

/// How many rows it has removed, the grave itself included.
fn sweep_run(conn: &Connection, run: i64, limit: usize) -> rusqlite::Result<usize> {
    let mut removed = 0;
    for (table, row) in LEFT_BY_RUNS {
        let sql = format!(
            "DELETE FROM {table} WHERE ({row}) IN \
             (SELECT {row} FROM {table} WHERE run = ?1 LIMIT ?2)"
        );
        let rest = columns::limit(limit - removed);
        removed += conn.prepare_cached(&sql)?.execute(params![run, rest])?;
        if removed >= limit {
            return Ok(removed);
        }
    }
    conn.prepare_cached("DELETE FROM graves WHERE run = ?1")?
        .execute([run])?;
    Ok(removed + 1)
}

pub(crate) fn finished_before(
    conn: &Connection,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<(RunId, Timestamp)>> {
    let sql = "SELECT id, finished_at FROM runs INDEXED BY finished \
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
        store::sqlite::{SqliteStore, testing::Directory},
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
        "event_waiters",
        "queue_waits",
        "keys",
        "tags",
        "graves",
        "watchers",
        "children",
        "old_generations",
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
        let end = format!("UPDATE runs SET status = 5, available_at = NULL WHERE no = {no}");
        conn.execute_batch(&end).expect("end");
        for n in 0..5 {
            let rows = format!(
                "INSERT INTO history VALUES ({no}, 1, x'0{n}', x'');
                 INSERT INTO inbox (run, seq, name, body, sent_at) VALUES ({no}, {n}, '', x'', 0);
                 INSERT INTO dedupes VALUES ({no}, '{n}');
                 INSERT INTO requests (id, run, state) VALUES (randomblob(16), {no}, 1);
                 INSERT INTO state VALUES ({no}, '{n}', x'');
                 INSERT INTO deferreds (run, generation, tag, body, at)
                 VALUES ({no}, 1, x'0{n}', x'', 0);
                 INSERT INTO deferred_waits (run, generation, tag, key)
                 VALUES ({no}, 1, x'0{n}', x'');
                 INSERT INTO limit_places VALUES ({no}, 1, x'0{n}', '', '', 0, 0);
                 INSERT INTO event_cursors VALUES ({no}, '{n}', '', 0);
                 INSERT INTO streams (run, stream, pos, at, generation, body)
                 VALUES ({no}, '', {n}, 0, 1, x'');
                 INSERT INTO dead_letters (run, name, body, reason, at)
                 VALUES ({no}, '', x'', '', 0);"
            );
            conn.execute_batch(&rows).expect("a row of each");
        }
    }
}
