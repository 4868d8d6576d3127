//! Runs as files: out of one store, into another, or into a test.

use std::{collections::HashSet, sync::Arc};

pub(crate) mod run_file;

use super::{Client, ClientError, RunHandle};
use crate::{
    codec::payload,
    commit::{Imported, ImportedRun, InboxKind, RunStatus, Target, Write},
    history::{EntryKind, EntryStatus, decode_entry},
    location::keys,
    name::check_name,
    run::highest_number,
    run_id::RunId,
    store::RunRow,
};

impl<O> RunHandle<O> {
    /// The run as one file: its row, its history, its unread messages and the values it has set.
    ///
    /// The file is read by [`Client::import`], and by [`testing::replay`](crate::testing::replay),
    /// which tells whether code fits the run. Its format is versioned: later versions of everstep
    /// read it. It holds payloads as they are stored, so what a [codec](crate::Codec) has encrypted
    /// stays encrypted. The run is not changed, and may be live.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn export(&self) -> Result<Vec<u8>, ClientError> {
        let id = self.id;
        let found = self.client.read(move |store| {
            // The values come last: what the history says that it has set is among them.
            let loaded = store.load(id.no())?;
            Ok((loaded, store.state(id.no())?))
        });
        match found.await? {
            (Some(loaded), state) if loaded.row.id == id => {
                Ok(run_file::encode_run(&ImportedRun {
                    row: loaded.row,
                    history: loaded.history,
                    inbox: loaded.inbox,
                    state,
                }))
            }
            _ => Err(ClientError::unknown_run(id)),
        }
    }
}

/// Removes what says that the run is registered with its old store, and makes it due: it registers
/// when it is replayed.
fn register_again(run: &mut ImportedRun) {
    let before = (run.history.len(), run.inbox.len());
    // A place under a limit is its old store's, and so is one in line.
    run.inbox.retain(|row| !row.is_grant());
    let waiting = run.row.waiting.as_deref();
    let mut in_line = waiting.is_some_and(crate::run::is_at_gate);
    let answered = |key: &[u8]| run.inbox.iter().any(|row| row.wait.as_deref() == Some(key));
    run.history.retain(|put| {
        let Ok(entry) = decode_entry(&put.value) else {
            return true;
        };
        let waits = entry.status == EntryStatus::Waiting;
        let has_body = matches!(entry.kind, EntryKind::Step | EntryKind::Transaction);
        in_line |= has_body && waits && entry.wake_at.is_none();
        let by_name =
            matches!(entry.kind, EntryKind::Event | EntryKind::Deferred | EntryKind::Limit);
        !by_name || !waits || answered(&put.key)
    });
    let changed = (run.history.len(), run.inbox.len()) != before;
    if (changed || in_line) && run.row.status == RunStatus::Sleeping {
        // At once, whatever the clocks say: the rules of the store say the same.
        run.row.available_at = Some(RunId::started_at(run.row.id.no()));
    }
}

/// Why a run cannot be as the file has it: a store would refuse it, or nobody could go on with it. What is
/// read is bounded by the length of the file.
fn check(run: &ImportedRun, history_entries_max: u64) -> Result<(), String> {
    let row = &run.row;
    let named = |what: &str, name: &str| {
        check_name(name).map_err(|problem| format!("{what} cannot be: {problem}"))
    };
    named("the workflow's name", &row.workflow)?;
    named("the pool's name", &row.pool)?;
    row.key.as_deref().map_or(Ok(()), |key| named("the key", key))?;
    for (name, value) in &row.tags {
        named("a tag's name", name)?;
        named("a tag's value", value)?;
    }
    if row.waiting.as_deref().is_some_and(|text| text.contains('\0')) {
        return Err("what the run waits for holds a zero byte".to_owned());
    }
    if row.generation == 0 || row.attempts == 0 {
        return Err("the run has no generation, or was never tried".to_owned());
    }
    if row.status.is_terminal() && row.available_at.is_some() {
        return Err("the run has ended, and is due".to_owned());
    }
    if row.inbox_seq.max(row.last_number) > i64::MAX as u64 {
        return Err("the run has more messages or entries than there can be".to_owned());
    }
    let payload = |what: &str, bytes: &[u8]| {
        payload::check(bytes).map_err(|problem| format!("{what} cannot be read: {problem}"))
    };
    payload("the input", &row.input)?;
    row.output.as_deref().map_or(Ok(()), |output| payload("the output", output))?;
    check_history(run, history_entries_max)?;
    let mut before = 0;
    for message in &run.inbox {
        if message.seq <= before || message.seq > row.inbox_seq {
            return Err(format!("message {} is not in its place", message.seq));
        }
        before = message.seq;
        if message.kind == InboxKind::Message {
            named("the message's name", &message.name)?;
            payload("the body of a message", &message.body)?;
        } else if message.name.contains('\0') {
            return Err(format!("the name of message {} holds a zero byte", message.seq));
        }
    }
    let mut keys = HashSet::new();
    for (key, value) in &run.state {
        named("the name of a value", key)?;
        payload("a value", value)?;
        if !keys.insert(key) {
            return Err(format!("the value `{key}` is there twice"));
        }
    }
    Ok(())
}

fn check_history(run: &ImportedRun, entries_max: u64) -> Result<(), String> {
    let entries = run.history.len();
    if entries as u64 > entries_max {
        return Err(format!("the run has {entries} entries, and the limit is {entries_max}"));
    }
    let mut keys = HashSet::new();
    for put in &run.history {
        let at = || keys::describe(&put.key);
        if put.key.is_empty() || !keys.insert(&put.key[..]) {
            return Err(format!("the entry of `{}` is there twice", at()));
        }
        if keys::is_of_run(&put.key) {
            continue;
        }
        decode_entry(&put.value).map_err(|error| format!("the entry of `{}`: {error}", at()))?;
    }
    Ok(())
}

impl Client {
    /// Puts a run that was [exported](RunHandle::export) into this store, under its own id.
    ///
    /// It goes on from where it was: one that was in its owner's memory is due at once, and what it
    /// waits for by name (an event, a deferred, a limit) it asks this store for. What belongs to
    /// others stays behind: the keys of messages that were sent to it, who waits for an answer or
    /// for its end, and the children, other runs and queue items that it waits for itself. See to it
    /// that only one of the two copies goes on, or the steps that both have before them are run by
    /// both.
    ///
    /// # Errors
    ///
    /// If these bytes are not an exported run, or not a whole one, or there is a run with its id or its
    /// key: nothing is changed then. A file from elsewhere takes no more memory than some times its
    /// length. Its input, output, messages and values must be payloads; whether they fit the types of the code,
    /// and whether a codec can open them, shows when they are used.
    pub async fn import(&self, file: impl AsRef<[u8]>) -> Result<RunHandle, ClientError> {
        let unreadable =
            |problem: String| ClientError::Decode { what: "the file".to_owned(), problem };
        let decoded = run_file::decode_run(file.as_ref());
        let mut run = decoded.map_err(|error| unreadable(error.to_string()))?;
        // The row of a run that has ended knows it, unless `doctor` has repaired that row.
        run.row.last_number = run.row.last_number.max(highest_number(&run.history));
        check(&run, self.shared.settings.history_entries_max).map_err(unreadable)?;
        register_again(&mut run);
        let RunRow { id, .. } = run.row;
        let (workflow, key) = (run.row.workflow.clone(), run.row.key.clone());
        let taken = |run: RunId, what: String| ClientError::Taken { run: run.to_string(), what };
        match self.ask(Write::Import(Box::new(run))).await? {
            Imported::Done { .. } => Ok(self.handle(id, None)),
            Imported::IdTaken => Err(taken(id, "its id".to_owned())),
            Imported::KeyTaken { .. } => Err(self.key_taken(id, workflow, key).await),
        }
    }

    async fn key_taken(&self, id: RunId, workflow: Arc<str>, key: Option<String>) -> ClientError {
        let key = key.unwrap_or_default();
        let target = Target::Key { workflow: workflow.to_string(), key: key.clone() };
        let row = self.read(move |store| store.run(&target)).await;
        let by = row.ok().flatten().map_or(id, |row| row.id);
        ClientError::Taken { run: id.to_string(), what: format!("its key `{key}`, by run {by},") }
    }
}
