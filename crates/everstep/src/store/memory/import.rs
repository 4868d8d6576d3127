//! Runs from other stores.

use std::sync::Arc;

use super::{Data, Run};
use crate::{
    store::{Imported, ImportedRun, Outcome, rules},
    time::Timestamp,
};

impl Data {
    pub(super) fn import(&mut self, imported: &ImportedRun, now: Timestamp) -> Outcome {
        let row = &imported.row;
        let no = row.id.no();
        // What a deleted run of this number has left will be swept, and nothing else must be.
        if self.runs.contains_key(&no) || self.graves.contains(&no) {
            return Outcome::Imported(Imported::IdTaken);
        }
        let key = row.key.clone().map(|key| (Arc::clone(&row.workflow), key));
        if let Some(run) = key.as_ref().and_then(|key| self.keys.get(key)) {
            return Outcome::Imported(Imported::KeyTaken { run: *run });
        }
        let head = rules::import(row, self.pools.no(&row.pool), now);
        let available_at = head.available_at;
        if let Some(key) = key {
            self.tombstones.remove(&key);
            self.keys.insert(key, no);
        }
        available_at.map(|at| self.due.insert((at, no)));
        let run = Run {
            head,
            workflow: Arc::clone(&row.workflow),
            version: row.version,
            key: row.key.clone(),
            pool: Arc::clone(&row.pool),
            deadline_at: row.deadline_at,
            created_at: row.created_at,
            updated_at: now,
            finished_at: row.finished_at,
            recoveries: 0,
            waiting: row.waiting.clone(),
            tags: row.tags.clone(),
            trace: None,
            parent: row.parent,
            input: row.input.clone(),
            output: row.output.clone(),
            error: row.error.clone(),
            history: imported
                .history
                .iter()
                .map(|put| (put.key.clone(), put.value.clone()))
                .collect(),
            inbox: imported
                .inbox
                .iter()
                .map(|row| (row.seq, row.clone()))
                .collect(),
            dedupes: Default::default(),
            state: imported.state.iter().cloned().collect(),
            streams: Default::default(),
        };
        self.rows_written += 1 + (imported.history.len() + imported.inbox.len()) as u64;
        self.runs.insert(no, Arc::new(run));
        Outcome::Imported(Imported::Done { available_at })
    }
}
