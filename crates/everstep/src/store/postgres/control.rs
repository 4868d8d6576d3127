//! Keys, deletes, tags and forks in SQL, and the sweep that removes what deletes have left.

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    session::{Bulk, Session},
    value::{Row, params},
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
pub(super) const LEFT_BY_RUNS: &[(&str, &str)] = &[
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
#[derive(Clone, Debug)]
pub(super) enum Keyed {
    Run(RunNo),
    Deleted(Tombstone),
}

/// What stands under the keys of a batch: two arrays of equal length.
pub(super) const KEYS_OF_BATCH: &str = "SELECT keys.workflow, keys.key, run, deleted_id, \
    deleted_at, kept_until FROM keys JOIN unnest($1::text[], $2::text[]) AS asked (w, k) \
    ON keys.workflow = w AND keys.key = k ORDER BY keys.workflow, keys.key FOR UPDATE OF keys";

pub(super) fn read_keyed(row: &Row, first: usize) -> Result<Keyed, Trouble> {
    let Some(kept_until) = columns::optional_time(row, first + 3)? else {
        return row.get(first).map(|no| Keyed::Run(RunNo(no)));
    };
    Ok(Keyed::Deleted(Tombstone {
        run: columns::run_id(row, first + 1)?,
        deleted_at: columns::time(row, first + 2)?,
        kept_until,
    }))
}

/// The run of a key, for a reader.
pub(super) fn find_key(
    session: &Session<'_>,
    workflow: &str,
    key: &str,
) -> Result<Option<RunNo>, Trouble> {
    let sql = "SELECT run FROM keys WHERE workflow = $1 AND key = $2 AND kept_until IS NULL";
    session.row(sql, params![workflow, key], |row| row.get(0).map(RunNo))
}

static PUT_KEY: Bulk = Bulk {
    table: "keys",
    sql: "INSERT INTO keys (run, workflow, key) \
          SELECT run, workflow, key FROM unnest($1::bigint[], $2::text[], $3::text[]) \
          AS new (run, workflow, key) ORDER BY workflow, key",
    unique: 3,
};

/// Of a row, what a delete has to know.
struct Leaving {
    workflow: String,
    key: Option<String>,
    finished_at: Option<Timestamp>,
    tags: Vec<(String, String)>,
}

impl Applier<'_> {
    /// What stands under a key now.
    pub(super) fn keyed(&mut self, workflow: &str, key: &str) -> Result<Option<Keyed>, Trouble> {
        let name = (workflow.to_owned(), key.to_owned());
        if let Some(known) = self.keys.get(&name) {
            return Ok(known.clone());
        }
        let sql = "SELECT run, deleted_id, deleted_at, kept_until FROM keys \
                   WHERE workflow = $1 AND key = $2 FOR UPDATE";
        let params = params![workflow, key];
        let found = self.session.row(sql, params, |row| read_keyed(row, 0))?;
        self.keys.insert(name, found.clone());
        Ok(found)
    }

    /// Enters the key of a new run: a second one that does so at the same moment is refused by the
    /// table, and finds it when it begins again.
    pub(super) fn put_key(&mut self, run: RunNo, workflow: &str, key: &str, replaces: bool) {
        if replaces {
            let sql = "UPDATE keys SET run = $3, deleted_id = NULL, deleted_at = NULL, \
                       kept_until = NULL WHERE workflow = $1 AND key = $2";
            self.execute(sql, params![workflow, key, run.0]);
        } else {
            self.session.put(&PUT_KEY, params![run.0, workflow, key]);
        }
        let name = (workflow.to_owned(), key.to_owned());
        self.keys.insert(name, Some(Keyed::Run(run)));
    }

    /// Whether this number is that of a deleted run of which something is still stored.
    pub(super) fn is_grave(&mut self, run: RunNo) -> Result<bool, Trouble> {
        if self.graves.contains(&run) {
            return Ok(true);
        }
        if self.is_named_new(run) {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM graves WHERE run = $1";
        self.session.exists(sql, params![run.0])
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> Result<Deleted, Trouble> {
        let Some(head) = self.find(&delete.target)? else {
            return Ok(Deleted::Unknown);
        };
        let no = head.id.no();
        let Some(leaving) = self.leaving(no)? else {
            return Ok(Deleted::Unknown);
        };
        if let Some(refused) = rules::refuse_delete(&head, leaving.finished_at, delete) {
            return Ok(refused);
        }
        if let Some(key) = &leaving.key {
            self.bury_key(&head, &leaving.workflow, key, delete)?;
        }
        for (name, value) in &leaving.tags {
            self.delete_tag(no, name, value);
        }
        self.execute("DELETE FROM runs WHERE no = $1", params![no.0]);
        let sql = "INSERT INTO graves (run) VALUES ($1) ON CONFLICT DO NOTHING";
        self.execute(sql, params![no.0]);
        self.graves.insert(no);
        self.forget(no);
        Ok(Deleted::Done { run: head.id })
    }

    fn leaving(&self, no: RunNo) -> Result<Option<Leaving>, Trouble> {
        let sql = "SELECT workflow, key, finished_at, tags FROM runs WHERE no = $1";
        self.session.row(sql, params![no.0], |row| {
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
        &mut self,
        head: &Head,
        workflow: &str,
        key: &str,
        delete: &Delete,
    ) -> Result<(), Trouble> {
        let no = head.id.no().0;
        // What has continued may have begun as another workflow.
        let begun_as = match head.generation {
            1 => Some(workflow.to_owned()),
            _ => {
                let found = self
                    .session
                    .row(rules::WORKFLOW_OF_KEY, params![key, no], |row| row.get(0));
                found?
            }
        };
        let Some(workflow) = begun_as else {
            return Ok(());
        };
        match Tombstone::of(head.id, delete, self.now()) {
            None => {
                let sql = "DELETE FROM keys WHERE workflow = $1 AND key = $2 AND run = $3";
                self.execute(sql, params![workflow, key, no]);
            }
            Some(tombstone) => {
                let sql = "UPDATE keys SET run = $4, deleted_id = $5, deleted_at = $6, \
                           kept_until = $7 WHERE workflow = $1 AND key = $2 AND run = $3";
                let params = params![
                    workflow,
                    key,
                    no,
                    NO_RUN,
                    head.id.as_uuid(),
                    tombstone.deleted_at.as_millis(),
                    tombstone.kept_until.as_millis(),
                ];
                self.execute(sql, params);
            }
        }
        // It is read again if it is asked for.
        self.keys.remove(&(workflow, key.to_owned()));
        Ok(())
    }

    pub(super) fn tag(&mut self, tagging: &Tagging) -> Result<Outcome, Trouble> {
        let Some(head) = self.find(&tagging.target)? else {
            return Ok(Outcome::Controlled(Controlled::Unknown));
        };
        let (run, status) = (head.id, head.status);
        let tagged = self.set_tag(run.no(), &tagging.name, tagging.value.as_deref())?;
        if tagged == Tagged::Changed {
            let sql = "UPDATE runs SET updated_at = $2 WHERE no = $1";
            self.execute(sql, params![run.no().0, self.now]);
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
        &mut self,
        no: RunNo,
        name: &str,
        value: Option<&str>,
    ) -> Result<Tagged, Trouble> {
        let sql = "SELECT tags FROM runs WHERE no = $1";
        let found = self
            .session
            .row(sql, params![no.0], |row| columns::tags(row, 0))?;
        let mut tags = found.unwrap_or_default();
        let before = tags.clone();
        let tagged = rules::set_tag(&mut tags, name, value);
        if tagged != Tagged::Changed {
            return Ok(tagged);
        }
        for (name, value) in before.iter().filter(|(other, _)| other == name) {
            self.delete_tag(no, name, value);
        }
        if let Some(value) = value {
            self.put_tag(no, name, value);
        }
        let json = (!tags.is_empty()).then(|| columns::to_json(&tags));
        self.execute(
            "UPDATE runs SET tags = $2 WHERE no = $1",
            params![no.0, json],
        );
        Ok(tagged)
    }

    pub(super) fn fork(&mut self, fork: &Fork) -> Result<Outcome, Trouble> {
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
        self.write_head(&head, None);
        self.write_entries(new.id.no(), head.generation, &[], &fork.history);
        self.write_state(new.id.no(), &fork.state);
        self.remember(new.id.no(), head);
        Ok(outcome)
    }
}

/// Whether deletes have left anything.
pub(super) fn is_left(
    session: &Session<'_>,
    now: Timestamp,
    lanes_before: i64,
) -> Result<bool, Trouble> {
    let sql = "SELECT EXISTS (SELECT 1 FROM graves) OR EXISTS (SELECT 1 FROM keys \
               WHERE kept_until IS NOT NULL AND kept_until <= $1) \
               OR EXISTS (SELECT 1 FROM lanes WHERE seen_at < $2)";
    let params = params![now.as_millis(), lanes_before];
    let left = session.row(sql, params, |row| row.get(0))?;
    Ok(left.unwrap_or(false))
}

/// Removes about `limit` rows of what deletes have left. Whether there is more.
pub(super) fn sweep(session: &Session<'_>, now: Timestamp, limit: usize) -> Result<bool, Trouble> {
    let mut left = limit.max(1);
    let sql = "DELETE FROM keys WHERE (workflow, key) IN (SELECT workflow, key FROM keys \
               WHERE kept_until IS NOT NULL AND kept_until <= $1 \
               ORDER BY workflow, key LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let params = params![now.as_millis(), columns::limit(left)];
    left -= session.execute_now(sql, params)?.min(left);
    while left > 0 {
        // Several processes may sweep: each takes a grave of its own.
        let sql = "SELECT run FROM graves ORDER BY run LIMIT 1 FOR UPDATE SKIP LOCKED";
        let next = session.row(sql, Vec::new(), |row| row.get::<i64>(0))?;
        let Some(run) = next else {
            return Ok(false);
        };
        left -= sweep_run(session, run, left)?.min(left);
    }
    Ok(true)
}

/// How many rows it has removed, the grave itself included.
fn sweep_run(session: &Session<'_>, run: i64, limit: usize) -> Result<usize, Trouble> {
    let mut removed = 0;
    for (table, row) in LEFT_BY_RUNS {
        let sql = format!(
            "DELETE FROM {table} WHERE ({row}) IN \
             (SELECT {row} FROM {table} WHERE run = $1 LIMIT $2)"
        );
        let rest = columns::limit(limit - removed);
        removed += session.execute_now(sql, params![run, rest])?;
        if removed >= limit {
            return Ok(removed);
        }
    }
    session.execute("DELETE FROM graves WHERE run = $1", params![run]);
    Ok(removed + 1)
}

pub(super) fn finished_before(
    session: &Session<'_>,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> Result<Vec<(RunId, Timestamp)>, Trouble> {
    let sql = "SELECT id, finished_at FROM runs \
               WHERE workflow = $1 AND status = $2 AND finished_at IS NOT NULL \
               AND finished_at < $3 ORDER BY finished_at, no LIMIT $4";
    let params = params![
        workflow,
        status.code(),
        before.as_millis(),
        columns::limit(limit)
    ];
    session.rows(sql, params, |row| {
        Ok((columns::run_id(row, 0)?, columns::time(row, 1)?))
    })
}
