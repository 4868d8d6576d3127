//! Deletes, tags and forks in memory.

use super::*;
use crate::store::rules::{Tagged, Tombstone};

impl Data {
    pub(super) fn delete(&mut self, delete: &Delete, now: Timestamp) -> Deleted {
        let Some(no) = Data::find(self, &delete.target) else {
            return Deleted::Unknown;
        };
        let run = &self.runs[&no];
        let id = run.head.id;
        if let Some(refused) = rules::refuse_delete(&run.head, run.finished_at, delete) {
            return refused;
        }
        let key = run.key.clone().map(|key| (Arc::clone(&run.workflow), key));
        // What has continued may have begun as another workflow.
        let key = key.and_then(|key| match self.keys.get(&key) {
            Some(found) if *found == no => Some(key),
            _ => {
                let mut keys = self.keys.iter();
                let mine = keys.find(|((_, other), run)| *other == key.1 && **run == no);
                mine.map(|(key, _)| key.clone())
            }
        });
        if let Some(at) = run.head.available_at {
            self.due.remove(&(at, no));
        }
        self.runs.remove(&no);
        if let Some(key) = key {
            self.keys.remove(&key);
            if let Some(tombstone) = Tombstone::of(id, delete, now) {
                self.tombstones.insert(key, tombstone);
            }
        }
        self.requests.retain(|_, request| request.run != no);
        self.forget_deferreds(no);
        self.dead_letters.retain(|_, letter| letter.run != Some(no));
        self.events.forget(no);
        self.graves.insert(no);
        self.rows_written += 1;
        Deleted::Done { run: id }
    }

    /// Everything else was removed at once.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.graves.clear();
        self.tombstones
            .retain(|_, tombstone| !tombstone.is_over(now));
    }

    pub(super) fn tag(&mut self, tagging: &Tagging, now: Timestamp) -> Outcome {
        let Some(no) = Data::find(self, &tagging.target) else {
            return Outcome::Controlled(Controlled::Unknown);
        };
        let (run, status) = (self.runs[&no].head.id, self.runs[&no].head.status);
        let tagged = self.change(no, |run| {
            let tagged = rules::set_tag(&mut run.tags, &tagging.name, tagging.value.as_deref());
            if tagged == Tagged::Changed {
                run.updated_at = now;
            }
            tagged
        });
        match tagged {
            Some(Tagged::Changed) => Outcome::Controlled(Controlled::Done { run }),
            Some(Tagged::Unchanged) => Outcome::Controlled(Controlled::Already { run, status }),
            Some(Tagged::Full) => Outcome::Refused(Refusal::TagsFull {
                limit: rules::TAGS_MAX,
            }),
            None => Outcome::Controlled(Controlled::Unknown),
        }
    }

    pub(super) fn fork(&mut self, fork: &Fork, now: Timestamp) -> Outcome {
        // Without a claimer, so never claimed: it has a history to be loaded.
        let outcome = self.start(&fork.new, None, now);
        if let Outcome::Started(Started {
            attached: false,
            available_at: Some(at),
            ..
        }) = outcome
        {
            self.rows_written += (fork.history.len() + fork.state.len()) as u64;
            let pool = self.pools.no(&fork.new.pool);
            self.change(fork.new.id.no(), |run| {
                run.head = rules::fork_head(fork, pool, at);
                run.write_entries(&[], &fork.history);
                run.state.extend(fork.state.iter().cloned());
            });
        }
        outcome
    }

    pub(super) fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Vec<(RunId, Timestamp)> {
        let of_workflow = self.runs.values().filter(|run| {
            *run.workflow == *workflow && run.head.status == status && status.is_terminal()
        });
        let mut ended: Vec<_> = of_workflow
            .filter_map(|run| Some((run.head.id, run.finished_at.filter(|at| *at < before)?)))
            .collect();
        ended.sort_by_key(|(id, at)| (*at, id.no()));
        ended.truncate(limit);
        ended
    }
}
