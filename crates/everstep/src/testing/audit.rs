//! An auditor: watches what is made durable, and notes what must never be.
//!
//! It sees every batch that a store has taken, over all crashes, so it finds what a comparison of
//! results cannot: a completed entry that was written again with another result (its body ran
//! again), a message that was taken twice or without a record, a message that was sent twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    commit::{
        Applied, Batch, Commit, Delivery, Effect, KeyRange, Notice, Outcome, Patch, Put, Receipt,
        Write,
    },
    history::{Entry, EntryKind, EntryValue, decode_entry},
    location::keys,
    run_id::RunNo,
};

/// What was made durable for each run, and what is wrong with it.
#[derive(Clone, Default)]
pub(super) struct Audit(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    runs: HashMap<RunNo, Audited>,
    violations: Vec<String>,
}

/// What is known of one run.
#[derive(Default)]
struct Audited {
    entries: BTreeMap<Vec<u8>, Entry>,
    consumed: HashSet<u64>,
    /// What was put into its inbox for one operation alone, which may take it or not.
    answers: HashSet<u64>,
    /// The rows of its inbox that are grants of limits: no messages, and gone with their place.
    grants: HashSet<u64>,
    sent: HashSet<Vec<u8>>,
    /// The dedupe keys of what was delivered.
    dedupe: HashSet<String>,
    /// What was removed, so that it may be done again.
    deleted: HashSet<String>,
}

impl Audit {
    /// A batch was made durable.
    pub(super) fn committed(&self, batch: &Batch, applied: &Applied) {
        let mut state = self.lock();
        let State { runs, violations } = &mut *state;
        for notice in &applied.notices {
            if let Notice::Inbox { run, row } = notice
                && row.wait.is_some()
            {
                let run = runs.entry(run.no()).or_default();
                run.answers.insert(row.seq);
                if row.is_grant() {
                    run.grants.insert(row.seq);
                }
            }
        }
        for (write, outcome) in batch.writes.iter().zip(&applied.outcomes) {
            if let (Write::Deliver(delivery), Outcome::Delivered(delivered)) = (write, outcome)
                && let (Receipt::Delivered, Some(run)) = (delivered.receipt, delivered.run)
            {
                runs.entry(run.no()).or_default().receive(delivery, violations);
            }
            if let (Write::Fork(fork), Outcome::Started(started)) = (write, outcome)
                && !started.attached
            {
                let run = runs.entry(started.id.no()).or_default();
                run.put(&fork.history, violations);
            }
            if !matches!(outcome, Outcome::Committed(_)) {
                continue;
            }
            match write {
                Write::Commit(commit) => {
                    runs.entry(commit.run).or_default().take(commit, violations);
                }
                Write::Reopen(reopen) => {
                    let run = runs.entry(reopen.run).or_default();
                    run.delete(&reopen.deletes);
                    run.put(&reopen.puts, violations);
                }
                _ => {}
            }
        }
    }

    /// What a store holds of a run, without having seen how it came there.
    #[cfg(feature = "sqlite")]
    pub(super) fn reload(&self, loaded: &crate::store::LoadedRun) {
        let mut state = self.lock();
        let State { runs, violations } = &mut *state;
        let run = runs.entry(loaded.row.id.no()).or_default();
        run.put(&loaded.history, violations);
        let unread: HashSet<u64> = loaded.inbox.iter().map(|row| row.seq).collect();
        let answers = loaded.inbox.iter().filter(|row| row.wait.is_some());
        run.answers = answers.map(|row| row.seq).collect();
        let grants = loaded.inbox.iter().filter(|row| row.is_grant());
        run.grants = grants.map(|row| row.seq).collect();
        run.consumed = (1..=loaded.row.inbox_seq).filter(|seq| !unread.contains(seq)).collect();
    }

    /// How many messages this run has taken.
    pub(super) fn consumed(&self, run: RunNo) -> u64 {
        let state = self.lock();
        let run = state.runs.get(&run);
        run.map_or(0, |run| run.consumed.difference(&run.answers).count() as u64)
    }

    /// How many answers to its own operations this run was handed.
    pub(super) fn answers(&self, run: RunNo) -> u64 {
        let state = self.lock();
        let run = state.runs.get(&run);
        run.map_or(0, |run| run.answers.len() as u64)
    }

    /// The locations of this run whose bodies must not run again.
    pub(super) fn ended(&self, run: RunNo) -> Vec<String> {
        let state = self.lock();
        let entries = state.runs.get(&run).into_iter().flat_map(|run| &run.entries);
        let ended = entries.filter(|(_, entry)| {
            matches!(entry.kind, EntryKind::Step | EntryKind::Rollback | EntryKind::Transaction)
                && entry.status.is_terminal()
        });
        ended.map(|(key, _)| keys::describe(key)).collect()
    }

    /// Whether the entry at this location was ever removed, so that it may be made again.
    pub(super) fn was_deleted(&self, run: RunNo, location: &str) -> bool {
        let state = self.lock();
        state.runs.get(&run).is_some_and(|run| run.deleted.contains(location))
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Audited {
    fn take(&mut self, commit: &Commit, violations: &mut Vec<String>) {
        self.delete(&commit.deletes);
        let (recorded, mut answers) = self.put(&commit.puts, violations);
        for seq in &commit.consumed {
            if !self.consumed.insert(*seq) {
                violations.push(format!("message {seq} was taken twice"));
            }
            if recorded.contains(seq) || self.grants.contains(seq) {
                continue;
            }
            // An answer does not say its number, so there must be as many as were taken.
            match answers {
                0 => violations.push(format!("message {seq} was taken without a record of it")),
                _ => answers -= 1,
            }
        }
        if let Patch::Continue { .. } = commit.patch {
            self.begin_anew();
        }
        for transaction in crate::store::rules::transactions(commit) {
            // One that failed has written nothing.
            if let Some(put) = transaction.written() {
                self.put(&[put], violations);
            }
        }
        for effect in &commit.effects {
            if let Effect::Send { key, .. } | Effect::Publish { key, .. } = effect
                && !self.sent.insert(key.clone())
            {
                let at = keys::describe(key);
                violations.push(format!("the message of `{at}` was sent twice"));
            }
        }
    }

    fn receive(&mut self, delivery: &Delivery, violations: &mut Vec<String>) {
        if let Some(key) = &delivery.dedupe
            && !self.dedupe.insert(key.clone())
        {
            violations.push(format!("the message with the dedupe key `{key}` came twice"));
        }
    }

    /// The next generation has a history of its own.
    fn begin_anew(&mut self) {
        let gone = self.entries.keys().map(|key| keys::describe(key));
        self.deleted.extend(gone);
        self.entries.clear();
        self.sent.clear();
    }

    fn delete(&mut self, ranges: &[KeyRange]) {
        for range in ranges {
            let inside = |key: &Vec<u8>| range.start <= *key && *key < range.end;
            for key in self.entries.keys().filter(|key| inside(key)) {
                self.deleted.insert(keys::describe(key));
            }
            self.entries.retain(|key, _| !inside(key));
            self.sent.retain(|key| !inside(key));
        }
    }

    /// Takes the entries over; gives the messages that are recorded in them, and how many answers.
    fn put(&mut self, puts: &[Put], violations: &mut Vec<String>) -> (HashSet<u64>, usize) {
        let (mut recorded, mut answers) = (HashSet::new(), 0);
        for put in puts {
            if keys::is_of_run(&put.key) || put.key.starts_with(keys::SET_ASIDE) {
                continue;
            }
            let Ok(entry) = decode_entry(&put.value) else {
                violations.push(format!("`{}` cannot be read", keys::describe(&put.key)));
                continue;
            };
            let answered = matches!(entry.value, EntryValue::Answer(_));
            answers += usize::from(answered && entry.kind != EntryKind::Limit);
            if let EntryValue::Messages(messages) = &entry.value {
                recorded.extend(messages.iter().map(|message| message.seq));
            }
            if let Some(before) = self.entries.get(&put.key)
                && !may_follow(before, &entry)
            {
                violations.push(format!(
                    "the entry of `{}` had ended and was changed: its body ran again\n  \
                         before: {before:?}\n  after: {entry:?}",
                    keys::describe(&put.key)
                ));
            }
            self.entries.insert(put.key.clone(), entry);
        }
        (recorded, answers)
    }
}

/// Whether an entry may take the place of another: one that has ended gets its number, loses it
/// when the run is tried again, and changes in no other way.
fn may_follow(before: &Entry, after: &Entry) -> bool {
    let results = matches!(
        before.kind,
        EntryKind::Step
            | EntryKind::Sleep
            | EntryKind::Listen
            | EntryKind::Iteration
            | EntryKind::Version
            | EntryKind::Send
            | EntryKind::Publish
            | EntryKind::Transaction
    ) || before.kind.answered_by().is_some();
    if !results || !before.status.is_terminal() {
        return true;
    }
    let mut same = before.clone();
    same.number = after.number;
    same == *after
}
