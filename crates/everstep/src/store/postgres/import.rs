//! Runs from other stores.

use uuid::Uuid;

use super::{
    batch::{Applier, PUT_INBOX, last_number},
    columns,
    control::Keyed,
    error::Trouble,
    session::Bulk,
    value::params,
};
use crate::{
    store::{Imported, ImportedRun, Outcome, RunStatus, rules, rules::pools::Pools},
    time::Timestamp,
};

static IMPORT_RUN: Bulk = Bulk {
    table: "runs",
    sql: "INSERT INTO runs (no, id, workflow, version, key, pool, shard, status, ending, \
          generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
          recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, \
          error, parent) SELECT no, id, workflow, version, key, pool, shard, status, ending, \
          generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
          0, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, error, \
          parent FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::text[], \
          $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], \
          $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], \
          $17::bigint[], $18::bigint[], $19::bigint[], $20::text[], $21::text[], $22::bytea[], \
          $23::bytea[], $24::bytea[], $25::bytea[]) AS new (no, id, workflow, version, key, \
          pool, shard, status, ending, generation, available_at, deadline_at, created_at, \
          updated_at, finished_at, attempts, inbox_seq, cancel_requested, last_number, waiting, \
          tags, input, output, error, parent) ORDER BY no",
    unique: 1,
};

impl Applier<'_> {
    pub(super) fn import(&mut self, imported: &ImportedRun) -> Result<Outcome, Trouble> {
        let row = &imported.row;
        let no = row.id.no();
        // What a deleted run of this number has left will be swept, and nothing else must be.
        if self.head(no)?.is_some() || self.is_grave(no)? {
            return Ok(Outcome::Imported(Imported::IdTaken));
        }
        if let Some(key) = &row.key {
            let keyed = self.keyed(&row.workflow, key)?;
            if let Some(Keyed::Run(run)) = keyed {
                return Ok(Outcome::Imported(Imported::KeyTaken { run }));
            }
            self.put_key(no, &row.workflow, key, keyed.is_some());
        }
        let pool = self.pool_no(&row.pool)?;
        let head = rules::import(row, pool, self.now());
        let tags = (!row.tags.is_empty()).then(|| columns::to_json(&row.tags));
        let values = params![
            no.0,
            row.id.as_uuid(),
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
        self.session.put(&IMPORT_RUN, values);
        for (name, value) in &row.tags {
            self.put_tag(no, name, value);
        }
        self.write_entries(no, head.generation, &[], &imported.history);
        for message in &imported.inbox {
            let on_end: Option<&str> = None;
            let values = params![
                no.0,
                message.seq as i64,
                message.name,
                message.body,
                message.request.map(Uuid::into_bytes),
                message.sent_at.as_millis(),
                message.kind.code(),
                message.wait,
                on_end,
            ];
            self.session.put(&PUT_INBOX, values);
        }
        self.write_state(no, &imported.state);
        self.remember(no, head);
        let available_at = head.available_at;
        Ok(Outcome::Imported(Imported::Done { available_at }))
    }
}
