//! Runs from other stores.

use rusqlite::params;
use uuid::Uuid;

use super::{Applier, columns, find_key, last_number};
use crate::{
    store::{Imported, ImportedRun, Outcome, RunStatus, rules, rules::pools::Pools},
    time::Timestamp,
};

impl Applier<'_> {
    pub(super) fn import(&mut self, imported: &ImportedRun) -> rusqlite::Result<Outcome> {
        let row = &imported.row;
        let no = row.id.no();
        // What a deleted run of this number has left will be swept, and nothing else must be.
        if self.head(no)?.is_some() || self.is_grave(no)? {
            return Ok(Outcome::Imported(Imported::IdTaken));
        }
        if let Some(key) = &row.key {
            if let Some(run) = find_key(self.conn, &row.workflow, key)? {
                return Ok(Outcome::Imported(Imported::KeyTaken { run }));
            }
            // In the place of a key that is kept of a deleted run.
            let sql = "INSERT OR REPLACE INTO keys (workflow, key, run) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![&*row.workflow, key, no.0])?;
        }
        let pool = self.pool_no(&row.pool)?;
        let head = rules::import(row, pool, self.now());
        let sql = "INSERT INTO runs (no, id, workflow, version, key, pool, shard, status, ending, \
                   generation, available_at, deadline_at, created_at, updated_at, finished_at, \
                   attempts, recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, \
                   input, output, error, parent) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
                   ?13, ?14, ?15, ?16, 0, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)";
        let tags = (!row.tags.is_empty()).then(|| columns::to_json(&row.tags));
        let uuid = row.id.as_uuid();
        let params = params![
            no.0,
            uuid.as_bytes(),
            &*row.workflow,
            row.version,
            row.key,
            &*row.pool,
            head.shard.0,
            head.status.code(),
            head.ending.map(RunStatus::code),
            head.generation,
            head.available_at.map(Timestamp::as_millis),
            row.deadline_at.map(Timestamp::as_millis),
            row.created_at.as_millis(),
            self.now,
            row.finished_at.map(Timestamp::as_millis),
            head.attempts,
            head.inbox_seq as i64,
            head.cancel.map(|cancel| cancel.rollback),
            last_number(&head),
            row.waiting,
            tags,
            row.input,
            row.output,
            row.error,
            row.parent.map(|parent| *parent.as_uuid().as_bytes()),
        ];
        self.execute(sql, params)?;
        for (name, value) in &row.tags {
            let sql = "INSERT OR IGNORE INTO tags (name, value, run) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![name, value, no.0])?;
        }
        self.write_entries(no, head.generation, &[], &imported.history)?;
        for message in &imported.inbox {
            let sql = "INSERT INTO inbox (run, seq, name, body, request, sent_at, kind, wait) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
            let request = message.request.as_ref().map(Uuid::as_bytes);
            self.execute(
                sql,
                params![
                    no.0,
                    message.seq as i64,
                    message.name,
                    message.body,
                    request,
                    message.sent_at.as_millis(),
                    message.kind.code(),
                    message.wait,
                ],
            )?;
        }
        for (key, value) in &imported.state {
            let sql = "INSERT INTO state (run, key, value) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![no.0, key, value])?;
        }
        self.memory.remember(no, head);
        let available_at = head.available_at;
        Ok(Outcome::Imported(Imported::Done { available_at }))
    }
}
