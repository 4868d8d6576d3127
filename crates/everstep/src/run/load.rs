//! From what is stored to a run in memory: a new one, a recovered one, one to be tried again, one
//! to be rolled back.

use std::{collections::VecDeque, rc::Rc, sync::Arc, task::Waker};

use super::{
    Halt, Run, Stage,
    core::{Core, Env, Mode, RunFacts, State},
    flush::{Flush, Next, Origins, RowView, decode_origins},
    fork::Lineage,
    wakers::{RootWaker, WakeSink},
};
use crate::{
    commit::{Commit, InboxRow, KeyRange, LoadedRun, NewRun, Patch, Put, RunStatus},
    ctx::{
        emit::{Mark, RunStreams},
        rollback,
    },
    hash::{FastMap, FastSet},
    history::{Entry, EntryKind, EntryStatus, History, Key, decode_entry, encode_entry},
    location::keys,
    run::Definition,
    sabotage::Sabotage,
    schedule,
    telemetry::trace,
    time::Timestamp,
};

/// What a run is made from.
pub(crate) struct RunSeed {
    pub(crate) facts: RunFacts,
    pub(crate) key: Option<String>,
    pub(crate) input: Vec<u8>,
    status: RunStatus,
    ending: Option<RunStatus>,
    error: Option<Vec<u8>>,
    recoveries: u32,
    /// Its row counts it as due, since something has come for it.
    is_due: bool,
    parked: Option<(Option<Timestamp>, String)>,
    last_number: u64,
    inbox_seq: u64,
    history: Vec<Put>,
    inbox: Vec<InboxRow>,
    streams: Vec<String>,
}

impl From<LoadedRun> for RunSeed {
    fn from(loaded: LoadedRun) -> RunSeed {
        let row = loaded.row;
        let parked = (row.status == RunStatus::Sleeping)
            .then(|| (row.available_at, row.waiting.clone().unwrap_or_default()));
        RunSeed {
            facts: RunFacts {
                scheduled_at: schedule::tick_of(row.key.as_deref(), &row.tags),
                id: row.id,
                workflow: row.workflow,
                version: row.version,
                generation: row.generation,
                attempts: row.attempts,
                created_at: row.created_at,
                deadline_at: row.deadline_at,
                trace: row.trace,
            },
            key: row.key,
            input: row.input,
            status: row.status,
            ending: row.ending,
            error: row.error,
            recoveries: row.recoveries,
            is_due: row.available_at.is_some(),
            parked,
            last_number: row.last_number,
            inbox_seq: row.inbox_seq,
            history: loaded.history,
            inbox: loaded.inbox,
            streams: loaded.streams,
        }
    }
}

impl RunSeed {
    /// How often one of the run's bodies was recorded as running when its owner died.
    pub(crate) fn deaths(loaded: &LoadedRun) -> u32 {
        let entries = loaded.history.iter();
        let decoded = entries.filter_map(|put| decode_entry(&put.value).ok());
        decoded.map(|entry| entry.deaths).max().unwrap_or(0)
    }

    /// The span of its stay in memory: see [`crate::telemetry`].
    pub(crate) fn span(&self) -> tracing::Span {
        let facts = &self.facts;
        let span = tracing::info_span!(
            target: "everstep",
            parent: None,
            "everstep.run",
            run = %facts.id,
            workflow = &*facts.workflow,
            version = facts.version,
            key = self.key.as_deref(),
            generation = facts.generation,
            attempt = facts.attempts,
            recovered = self.recoveries,
            replayed = self.history.len(),
            status = tracing::field::Empty,
        );
        trace::adopt_stored(&span, facts.trace.as_deref());
        span
    }

    /// A run that was just created and claimed: nothing of it needs to be read.
    pub(crate) fn claimed(new: NewRun, created_at: Timestamp) -> RunSeed {
        RunSeed {
            facts: RunFacts {
                scheduled_at: schedule::tick_of(new.key.as_deref(), &new.tags),
                id: new.id,
                workflow: new.workflow,
                version: new.version,
                generation: 1,
                attempts: 1,
                created_at,
                deadline_at: new.deadline_at,
                trace: new.trace,
            },
            key: new.key,
            input: new.input,
            status: RunStatus::Running,
            ending: None,
            error: None,
            recoveries: 0,
            is_due: false,
            parked: None,
            last_number: 0,
            inbox_seq: 0,
            history: Vec::new(),
            inbox: Vec::new(),
            streams: Vec::new(),
        }
    }
}

/// The entries of a run, decoded.
pub(super) struct Records {
    pub(super) entries: FastMap<Key, Entry>,
    /// Where the code has ended, if the run has failed, is rolled back or is to be tried again.
    pub(super) origins: Option<Origins>,
    /// The last item of the workflow's own code that is in its stream.
    emitted: Mark,
    /// Of a fork.
    pub(super) lineage: Option<Lineage>,
}

/// Recovered this often without progress, a run is a suspect.
pub(crate) const SUSPECT_AFTER: u32 = 3;

impl Run {
    pub(crate) fn new(
        mut seed: RunSeed,
        definition: Arc<Definition>,
        env: Rc<Env>,
        sink: Arc<dyn WakeSink>,
        token: u64,
    ) -> Run {
        let mut st = State::new(seed.facts.created_at);
        let mut flush = Flush::new(row_view(&seed), seed.last_number);
        (flush.ending, flush.error) = (seed.ending, seed.error.clone());
        let mut stage = Stage::Forward;
        match Records::decode(&seed.history) {
            Err(halt) => {
                st.halt = Some(halt);
                flush.stored_number = highest_number(&seed.history).max(seed.last_number);
            }
            Ok(mut records) => {
                st.entries = records.entries.len() as u64;
                if let Some(lineage) = records.lineage.take() {
                    st.descend(lineage);
                }
                if env.settings.breaks(Sabotage::ForgetAttempts) {
                    let open = records.entries.values_mut();
                    let open = open.filter(|entry| !entry.status.is_terminal());
                    open.for_each(|entry| entry.attempts = 0);
                }
                let again = records.origins.take();
                if seed.ending.is_some() {
                    stage = Stage::Collecting;
                } else if let Some(origins) = again {
                    let entries = &mut records.entries;
                    let mut change = make_fresh(entries, &origins, seed.facts.attempts);
                    let emitted = records.emitted.before(change.lowest);
                    if emitted != records.emitted {
                        records.emitted = emitted;
                        change.puts.push(Put { key: keys::emitted(), value: emitted.encode() });
                    }
                    flush.unsent = change.puts;
                    st.deletes = change.deletes;
                    // Nothing starts before the history is rewritten.
                    st.revision = 1;
                    st.firm = 1;
                }
                st.emitted = records.emitted;
                fill(&mut st, &mut flush, records, stage);
            }
        }
        if !seed.streams.is_empty() {
            let streams = RunStreams::new(std::mem::take(&mut seed.streams));
            st.streams = Some(Arc::new(streams));
        }
        st.suspect = seed.recoveries >= SUSPECT_AFTER;
        st.inbox.set_seen(first_unseen(&seed));
        let root = RootWaker::new(token, sink);
        let waker = Waker::from(root.clone());
        let core = Rc::new(Core {
            facts: seed.facts,
            env,
            root,
            state: std::cell::RefCell::new(st),
            telemetry: std::cell::OnceCell::new(),
            polled_body: std::cell::Cell::new(None),
            life: std::cell::Cell::new(None),
        });
        core.deliver(seed.inbox);
        core.state.borrow_mut().inbox.set_seen(seed.inbox_seq);
        let mut run = Run {
            core,
            definition,
            input_bytes: seed.input.len(),
            root: None,
            waker,
            stage,
            end: None,
            gate: None,
            flush,
            stopping: None,
            drained: false,
            on_trial: false,
        };
        run.put_gate(&seed.input);
        if run.end.is_none() && run.core.state.borrow().halt.is_none() {
            run.root = Some(run.definition.begin(run.ctx(), seed.input));
        }
        run
    }

    /// The end of the run is durable, its code is gone: its rollbacks begin.
    pub(super) fn begin_rollback(&mut self) -> Next {
        self.root = None;
        self.end = None;
        // Rollbacks have bodies too.
        self.stopping = None;
        self.hold_still();
        let missing = {
            let st = self.core.state.borrow();
            to_compensate(&st.history).any(|(key, _)| !st.undo.contains_key(key))
        };
        if missing {
            // The code that has them has not run in this process: it is found by a replay.
            return Next::Reload;
        }
        self.stage = Stage::Collecting;
        self.collected();
        Next::Drive
    }

    /// All rollbacks that the code has are known: they are run, last done first undone.
    pub(super) fn collected(&mut self) {
        let mut list = Vec::new();
        {
            let st = &mut *self.core.state.borrow_mut();
            st.mode = Mode::Live;
            st.quiet_effects = false;
            st.replay.clear();
            // Of the workflow's own operations nothing is left.
            st.starters.clear();
            st.sends.clear();
            st.timeouts.clear();
            st.effects.clear();
            for (key, number) in to_compensate(&st.history) {
                match st.undo.get(key) {
                    Some(undo) => list.push((number, key.clone(), undo.clone())),
                    None => {
                        let at = Core::location(key);
                        st.halt.get_or_insert(Halt::RollbackMissing { at });
                    }
                }
            }
            st.taken = st.taken.max(self.flush.stored_number);
        }
        // What was never taken has no number and was done last, as far as anybody knows.
        list.sort_by_key(|(number, key, _)| (number.unwrap_or(u64::MAX), key.clone()));
        list.reverse();
        let list = list.into_iter().map(|(_, key, undo)| (key, undo)).collect();
        self.stage = Stage::RollingBack;
        self.root = Some(rollback::run_all(self.core.clone(), list));
    }
}

fn row_view(seed: &RunSeed) -> Option<RowView> {
    match (&seed.parked, seed.status) {
        (Some((at, waiting)), _) => Some(RowView::Parked(*at, waiting.clone())),
        (None, RunStatus::Running) if seed.recoveries == 0 => {
            // Otherwise the next commit puts it right.
            (!seed.is_due).then_some(RowView::Running)
        }
        (None, RunStatus::Running | RunStatus::RollingBack) if seed.recoveries > 0 => {
            Some(RowView::Recovered)
        }
        _ => None,
    }
}

/// Everything before the first unread message has been read.
fn first_unseen(seed: &RunSeed) -> u64 {
    seed.inbox.first().map_or(seed.inbox_seq, |row| row.seq - 1)
}

impl Records {
    pub(super) fn decode(history: &[Put]) -> Result<Records, Halt> {
        let mut records = Records {
            entries: FastMap::with_capacity_and_hasher(history.len(), Default::default()),
            origins: None,
            emitted: Mark::default(),
            lineage: None,
        };
        for put in history {
            if put.key.starts_with(keys::SET_ASIDE) {
                continue;
            }
            if put.key == keys::failure_origins() {
                records.origins = decode_origins(&put.value);
                continue;
            }
            if put.key == keys::emitted() {
                let mark = Mark::decode(&put.value);
                records.emitted = mark.map_err(|error| Halt::Undecodable {
                    what: "the mark of the last item that was emitted".to_owned(),
                    error,
                })?;
                continue;
            }
            if put.key == keys::lineage() {
                records.lineage = Lineage::decode(&put.value);
                continue;
            }
            let entry = decode_entry(&put.value).map_err(|error| Halt::Undecodable {
                what: format!("the entry of `{}`", Core::location(&put.key)),
                error,
            })?;
            records.entries.insert(Key::from(put.key.as_slice()), entry);
        }
        Ok(records)
    }
}

/// The highest number of a stored history, as far as it can be read. The row of a run that moves, was
/// resumed or was imported has only a lower bound of it.
pub(crate) fn highest_number(history: &[Put]) -> u64 {
    let is_entry =
        |put: &&Put| put.key.starts_with(keys::HISTORY) || put.key.starts_with(keys::ROLLBACKS);
    let entries = history.iter().filter(is_entry).filter_map(|put| decode_entry(&put.value).ok());
    entries.filter_map(|entry| entry.number).max().unwrap_or(0)
}

/// A commit that changes only the row of a run that was read and is not taken into memory.
pub(crate) fn commit_unloaded(loaded: &LoadedRun, patch: Patch) -> Commit {
    let commit = Commit::of_row(&loaded.row, patch);
    let last_number = highest_number(&loaded.history).max(commit.last_number);
    Commit { last_number, ..commit }
}

/// Puts the entries into the state, and the recorded numbers into the order of their replay.
fn fill(st: &mut State, flush: &mut Flush, records: Records, stage: Stage) {
    st.loops = loop_iterations(&records.entries);
    st.reruns = loops_to_rerun(&records.entries, &st.loops);
    let reruns = &st.reruns;
    let jumps = st.loops.iter().filter(|(key, _)| !reruns.contains(*key));
    let jumps = jumps.filter_map(|(key, all)| Some((key.clone(), *all.last()?)));
    let jumps: FastMap<Vec<u8>, u64> = jumps.collect();
    let mut order = Vec::new();
    let mut highest = 0;
    let resumed = !records.entries.is_empty();
    let mut has_moved = false;
    for (key, entry) in records.entries {
        let past = stage == Stage::Forward && is_past(&key, &jumps);
        highest = highest.max(entry.number.unwrap_or(0));
        has_moved |= !is_bare_result(&entry);
        if let (Some(number), false) = (entry.number, past) {
            order.push((number, key.clone()));
        }
        // Of an iteration that is jumped over, only what may have to be undone is needed.
        if !past || entry.compensable || key.starts_with(keys::ROLLBACKS) {
            st.history.load(key, entry, past);
        }
    }
    order.sort();
    st.replay = VecDeque::from(order);
    // A run that was paused in its first body has the result, and nothing of what its code did before:
    // that is set again. In any other run the first commit has stored it, and a client may have changed a
    // tag since.
    st.quiet_effects = has_moved;
    if stage == Stage::Collecting {
        st.mode = Mode::Collect;
    } else if resumed {
        st.mode = Mode::Replay;
    }
    flush.stored_number = highest;
}

/// Whether this may have been stored without what the code had set before: a gate, or the result of a
/// body that nobody has taken.
fn is_bare_result(entry: &Entry) -> bool {
    let has_body =
        matches!(entry.kind, EntryKind::Step | EntryKind::Rollback | EntryKind::Transaction);
    let is_untaken = entry.status.is_terminal() && entry.number.is_none();
    is_untaken && (has_body || entry.kind == EntryKind::Version)
}

/// The iterations that each loop has begun, in order, by the key of the loop.
fn loop_iterations(entries: &FastMap<Key, Entry>) -> FastMap<Vec<u8>, Vec<u64>> {
    let mut loops: FastMap<Vec<u8>, Vec<u64>> = FastMap::default();
    for (key, entry) in entries {
        if entry.kind != EntryKind::Iteration || entry.number.is_none() {
            continue;
        }
        if let Some((loop_len, n)) = keys::loop_iterations_of(key).last() {
            loops.entry(key[..loop_len].to_vec()).or_default().push(n);
        }
    }
    loops.values_mut().for_each(|iterations| iterations.sort_unstable());
    loops
}

/// The loops that replay does not jump in: a step with a rollback has completed in an iteration
/// before the last, and a race that the loop loses has to compensate it.
fn loops_to_rerun(
    entries: &FastMap<Key, Entry>,
    loops: &FastMap<Vec<u8>, Vec<u64>>,
) -> FastSet<Vec<u8>> {
    let mut reruns = FastSet::default();
    if loops.is_empty() {
        return reruns;
    }
    let undone = entries
        .iter()
        .filter(|(_, entry)| entry.compensable && entry.status == EntryStatus::Completed);
    for (key, _) in undone {
        for (loop_len, n) in keys::loop_iterations_of(key) {
            let newest = loops.get(&key[..loop_len]).and_then(|all| all.last());
            if newest.is_some_and(|newest| n < *newest) {
                reruns.insert(key[..loop_len].to_vec());
            }
        }
    }
    reruns
}

/// Whether the entry belongs to an iteration that replay jumps over. `newest` has the last
/// iteration of each loop that it jumps in.
fn is_past(key: &[u8], newest: &FastMap<Vec<u8>, u64>) -> bool {
    if newest.is_empty() {
        return false;
    }
    // A rollback belongs to the iteration of the step that it undoes.
    let step = key.strip_prefix(keys::ROLLBACKS).map(|rest| [keys::HISTORY, rest].concat());
    let key = step.as_deref().unwrap_or(key);
    let mut iterations = keys::loop_iterations_of(key);
    iterations.any(|(loop_len, n)| newest.get(&key[..loop_len]).is_some_and(|newest| n < *newest))
}

/// Whether the rollback of this step is done.
fn is_compensated(history: &History, key: &[u8]) -> bool {
    key.starts_with(keys::HISTORY)
        && history
            .get(&keys::rollback_key(key))
            .is_some_and(|slot| slot.entry.status == EntryStatus::Completed)
}

/// The steps that are to be compensated, with their numbers.
pub(crate) fn to_compensate(history: &History) -> impl Iterator<Item = (&Key, Option<u64>)> {
    let compensable = history.iter().filter(|(key, slot)| {
        key.starts_with(keys::HISTORY)
            && slot.entry.compensable
            && slot.entry.status == EntryStatus::Completed
            && !is_compensated(history, key)
    });
    compensable.map(|(key, slot)| (key, slot.entry.number))
}

/// A change to a stored history.
#[derive(Default)]
pub(super) struct Rewrite {
    puts: Vec<Put>,
    deletes: Vec<KeyRange>,
    /// The lowest number that does not stand.
    pub(super) lowest: u64,
}

/// Makes a history fit to be tried again: what failed, and what was compensated, is made fresh.
///
/// With k the lowest of their numbers, numbers below k stand, entries born before k keep their
/// result without a number, and what was born later is set aside for people to see.
pub(super) fn make_fresh(
    entries: &mut FastMap<Key, Entry>,
    origins: &Origins,
    attempts: u32,
) -> Rewrite {
    let mut rewrite = Rewrite::default();
    let (fresh, lowest) = what_is_fresh(entries, origins);
    rewrite.lowest = lowest;
    rewrite.deletes.push(exactly(&keys::failure_origins()));
    entries.retain(|key, entry| {
        // What it was registered for was given up with the end of the run: it registers again.
        let given_up = matches!(entry.status, EntryStatus::Waiting | EntryStatus::Cancelled);
        if given_up && entry.kind.answered_by().is_some() {
            rewrite.deletes.push(exactly(key));
            return false;
        }
        let stands = entry.number.is_some_and(|number| number < lowest);
        if !fresh.contains(key) && (stands || entry.born < lowest) {
            let unfinished = matches!(
                entry.kind,
                EntryKind::Join | EntryKind::Map | EntryKind::Race | EntryKind::Attempt
            ) && entry.status == EntryStatus::Failed;
            if !stands && (entry.number.is_some() || unfinished) {
                entry.number = None;
                if unfinished {
                    entry.status = EntryStatus::Running;
                }
                let value = encode_entry(entry);
                rewrite.puts.push(Put { key: key.to_vec(), value });
            }
            return true;
        }
        rewrite.deletes.push(exactly(key));
        let aside = keys::set_aside_key(attempts, key);
        rewrite.puts.push(Put { key: aside, value: encode_entry(entry) });
        false
    });
    rewrite
}

/// The keys of what is made fresh, and the lowest of their numbers.
///
/// A rollback below that number stands, and so does the step that it has undone: it was the loser
/// of a race that is over. Any other makes its step fresh, which may lower the number.
fn what_is_fresh(entries: &FastMap<Key, Entry>, origins: &Origins) -> (FastSet<Key>, u64) {
    let keys = origins.keys.iter();
    let mut fresh: FastSet<Key> = keys.map(|key| Key::from(key.as_slice())).collect();
    let number = |key: &Key| entries.get(key).and_then(|entry| entry.number);
    let mut lowest = fresh.iter().filter_map(number).min().unwrap_or(u64::MAX);
    // A failure without a number leaves everything as it was, but for the rollbacks after it.
    let bound = lowest.min(origins.taken + 1);
    let rollbacks = entries.iter().filter(|(key, _)| key.starts_with(keys::ROLLBACKS));
    let mut rollbacks: Vec<(&Key, &Entry)> = rollbacks.collect();
    // From the last one down: each can only add to those before it.
    rollbacks.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.number.unwrap_or(u64::MAX)));
    for (key, entry) in rollbacks {
        if entry.number.is_some_and(|number| number < bound.min(lowest)) {
            continue;
        }
        fresh.insert(key.clone());
        if entry.status == EntryStatus::Completed {
            let step = Key::from([keys::HISTORY, &key[keys::ROLLBACKS.len()..]].concat());
            lowest = number(&step).map_or(lowest, |number| number.min(lowest));
            fresh.insert(step);
        }
    }
    (fresh, lowest)
}

/// The range of one key.
fn exactly(key: &[u8]) -> KeyRange {
    KeyRange { start: key.to_vec(), end: [key, &[0]].concat() }
}
