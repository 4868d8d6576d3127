//! One run and its history: can it be read, do its numbers fit, and what wakes it?

use super::{Cure, Finding, Severity};
use crate::{
    codec::{DecodeError, hook::Codecs, payload},
    commit::{InboxKind, RunStatus},
    error::decode_failure,
    history::{Entry, EntryKind, EntryStatus, EntryValue, decode_entry},
    location::keys,
    run::WAITS_IN_ROW,
    run_id::{RunId, RunNo, SHARDS, ShardId},
    store::{
        Store, StoreError,
        doctor::{Ask, Check, Facts, RunFacts},
    },
    time::Timestamp,
};

/// How many entries are read at a time.
const PAGE: usize = 500;

/// How often a run that moves while it is read is read again.
const GOES: usize = 3;

/// How many entries of a run that cannot be read are named.
const UNREADABLE_MAX: usize = 5;

/// What was seen of some runs.
#[derive(Default)]
pub(super) struct Page {
    pub(super) findings: Vec<Finding>,
    pub(super) runs: usize,
    pub(super) entries: u64,
    pub(super) without_owner: u64,
    /// The last run.
    pub(super) last: Option<RunNo>,
}

/// Looks at these runs, one after another.
pub(super) fn look_at_page(
    store: &dyn Store,
    codecs: &Codecs,
    runs: Vec<RunNo>,
    now: Timestamp,
) -> Result<Page, StoreError> {
    let runners = store.runners()?;
    let mut page = Page { runs: runs.len(), last: runs.last().copied(), ..Page::default() };
    for run in runs {
        let Some(seen) = read(store, codecs, run)? else {
            continue;
        };
        page.entries += seen.entries;
        let is_in_memory =
            matches!(seen.facts.status, Some(RunStatus::Running | RunStatus::RollingBack))
                && seen.facts.available_at.is_none();
        let shard = ShardId(u32::try_from(seen.facts.shard).unwrap_or(u32::MAX));
        let is_owned =
            runners.iter().any(|runner| runner.lease_until > now && runner.shards.contains(shard));
        page.without_owner += u64::from(is_in_memory && !is_owned);
        page.findings.extend(judge(seen));
    }
    Ok(page)
}

/// What was read of a run.
struct Seen {
    facts: RunFacts,
    entries: u64,
    /// The highest number of an entry.
    last_number: Option<u64>,
    /// What is wrong with what is stored, in words.
    unreadable: Vec<String>,
    /// Operations that wait.
    waits: Vec<Wait>,
}

/// An operation that waits.
struct Wait {
    key: Vec<u8>,
    entry: Entry,
    /// The entry as it is stored.
    value: Vec<u8>,
}

/// Reads a run, page by page; nothing if it is gone, or moves all the time.
fn read(store: &dyn Store, codecs: &Codecs, run: RunNo) -> Result<Option<Seen>, StoreError> {
    for _ in 0..GOES {
        let Facts::Run(Some(facts)) = store.examine(&Ask::Run(run))? else {
            return Ok(None);
        };
        let mut seen = Seen {
            facts: *facts,
            entries: 0,
            last_number: None,
            unreadable: Vec::new(),
            waits: Vec::new(),
        };
        seen.read_row(codecs);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let puts = store.history(run, after.as_deref(), PAGE)?;
            for put in &puts {
                seen.read_entry(codecs, &put.key, &put.value);
            }
            match puts.into_iter().next_back() {
                Some(last) => after = Some(last.key),
                None => break,
            }
        }
        // It has not moved meanwhile, so all pages are of one state.
        let Facts::Run(again) = store.examine(&Ask::Run(run))? else {
            return Ok(None);
        };
        if again.is_some_and(|again| *again == seen.facts) {
            return Ok(Some(seen));
        }
    }
    Ok(None)
}

impl Seen {
    fn read_row(&mut self, codecs: &Codecs) {
        let facts = &self.facts;
        let mut problems = Vec::new();
        let payloads = [("input", Some(&facts.input)), ("output", facts.output.as_ref())];
        for (name, bytes) in payloads {
            let problem = bytes.and_then(|bytes| unreadable(codecs, bytes, facts.id));
            problems.extend(problem.map(|problem| format!("its {name} cannot be read: {problem}")));
        }
        if let Some(error) = &facts.error
            && let Err(problem) = decode_failure(error)
        {
            problems.push(format!("its failure cannot be read: {problem}"));
        }
        self.unreadable = problems;
    }

    fn read_entry(&mut self, codecs: &Codecs, key: &[u8], value: &[u8]) {
        let is_forward = key.starts_with(keys::HISTORY);
        if !is_forward && !key.starts_with(keys::ROLLBACKS) {
            return;
        }
        self.entries += 1;
        let entry = match decode_entry(value) {
            Ok(entry) => entry,
            Err(problem) => return self.cannot_read(key, &problem),
        };
        self.last_number = self.last_number.max(entry.number);
        if let EntryValue::Payload(payload) = &entry.value
            && let Some(problem) = unreadable(codecs, payload, self.facts.id)
        {
            self.cannot_read(key, &problem);
        }
        if is_forward && entry.status == EntryStatus::Waiting {
            self.waits.push(Wait { key: key.to_vec(), entry, value: value.to_vec() });
        }
    }

    fn cannot_read(&mut self, key: &[u8], problem: &DecodeError) {
        if self.unreadable.len() < UNREADABLE_MAX {
            let location = keys::describe(key);
            self.unreadable.push(format!("its entry `{location}` cannot be read: {problem}"));
        }
    }

    fn is_registered(&self, key: &[u8]) -> bool {
        let mut registered = self.facts.registered.iter();
        registered.any(|(_, other)| other == key)
    }
}

/// Why a payload cannot be read. One that is sealed by a codec that is not here is not judged.
fn unreadable(codecs: &Codecs, bytes: &[u8], run: Option<RunId>) -> Option<DecodeError> {
    let read = codecs.open(bytes, run).and_then(|bytes| payload::to_json(&bytes));
    match read {
        Ok(_) | Err(DecodeError::NoCodec { .. } | DecodeError::Codec { .. }) => None,
        Err(problem) => Some(problem),
    }
}

/// What is wrong with a run.
fn judge(mut seen: Seen) -> Vec<Finding> {
    let Some(id) = seen.facts.id else {
        let what = format!(
            "the row of run number {} has an id that is not its own: restore it from a backup",
            seen.facts.no.0
        );
        return vec![Finding::new(Check::Formats, Severity::Error, what, Cure::None)];
    };
    let mut findings = Vec::new();
    let mut say = |check, what: String, cure| {
        let finding = Finding::new(check, Severity::Error, what, cure);
        findings.push(finding.about(Some(id)));
    };
    for problem in std::mem::take(&mut seen.unreadable) {
        let what = format!(
            "run {id}: {problem}; restore it from a backup, or cancel the run and start another"
        );
        say(Check::Formats, what, Cure::None);
    }
    let facts = &seen.facts;
    let index = i64::from(id.shard_index());
    if facts.shard.rem_euclid(i64::from(SHARDS)) != index {
        let is_put_away = matches!(facts.status, Some(RunStatus::Pending | RunStatus::Paused));
        let is_over = facts.status.is_some_and(RunStatus::is_terminal);
        let cure = match is_put_away || is_over {
            true => Cure::Shard {
                run: facts.no,
                from: facts.shard,
                to: facts.shard.div_euclid(i64::from(SHARDS)) * i64::from(SHARDS) + index,
            },
            false => Cure::None,
        };
        let what = format!(
            "run {id} is in shard {}, and its id belongs to shard {index} of a pool{}",
            facts.shard,
            match cure {
                Cure::None => "; pause it, and repair it then",
                _ => "",
            }
        );
        say(Check::Shards, what, cure);
    }
    let is_exact = facts.status != Some(RunStatus::Running);
    if let (Some(stored), Some(found), true) = (facts.last_number, seen.last_number, is_exact)
        && found > stored as u64
    {
        let what = format!(
            "run {id} has an entry with number {found}, and its row says that the last one is \
             {stored}: what it does next is refused"
        );
        let cure = match facts.status {
            Some(RunStatus::RollingBack) => Cure::None,
            _ => Cure::ForgetNumber { run: facts.no, last_number: stored },
        };
        say(Check::Sequences, what, cure);
    }
    for (what, cure) in no_reason(&seen, id) {
        say(Check::Wake, what, cure);
    }
    findings
}

/// What a run that sleeps should be woken by, and will not.
fn no_reason(seen: &Seen, id: RunId) -> Vec<(String, Cure)> {
    let facts = &seen.facts;
    // A run that is in its owner's memory is woken there, and what is paused waits for people.
    if facts.status != Some(RunStatus::Sleeping) || facts.is_ending {
        return Vec::new();
    }
    let mut lost = Vec::new();
    let mut has_reason = facts.available_at.is_some() || seen.is_registered(keys::START);
    for wait in &seen.waits {
        let Wait { key, entry, value } = wait;
        let location = keys::describe(key);
        let in_line = entry.wake_at.is_none()
            && matches!(entry.kind, EntryKind::Step | EntryKind::Transaction);
        let awaited = match entry.kind.answered_by() {
            Some(kind) => Some(kind),
            None => in_line.then_some(InboxKind::LimitGrant),
        };
        match awaited {
            Some(_) if seen.is_registered(key) => has_reason = true,
            // It has lost a race and left the line, which its entry does not say.
            Some(_) if in_line && is_given_up(facts, &location) => {}
            Some(kind) => {
                let (words, asks_again) = remedy(kind, in_line);
                let entries = match asks_again {
                    AsksAgain::ByItself => Some(Vec::new()),
                    AsksAgain::WithoutEntry => Some(vec![(key.clone(), value.clone())]),
                    AsksAgain::Never => None,
                };
                let cure = match entries {
                    Some(entries) => Cure::LoadAnew { run: id, entries },
                    None => Cure::None,
                };
                let advice = match cure {
                    Cure::None => ": cancel it, or fork it from before that",
                    _ => "",
                };
                let what = format!(
                    "run {id} waits for {words} at `{location}`, and is not registered for it, so \
                     it would never be told{advice}"
                );
                lost.push((what, cure));
            }
            None if entry.kind == EntryKind::Listen && !is_given_up(facts, &location) => {
                has_reason = true;
            }
            None => {}
        }
    }
    if lost.is_empty() && !has_reason {
        let what = format!("run {id} sleeps, and nothing will ever wake it");
        let entries = Vec::new();
        lost.push((what, Cure::LoadAnew { run: id, entries }));
    }
    lost
}

/// When an operation asks again for what it waits for.
enum AsksAgain {
    /// Whenever its run is loaded.
    ByItself,
    /// When its run is loaded and its entry is not there.
    WithoutEntry,
    /// It would do something twice.
    Never,
}

/// What is waited for, in words, and when it is asked for again.
fn remedy(kind: InboxKind, in_line: bool) -> (&'static str, AsksAgain) {
    match kind {
        InboxKind::Message => ("a message", AsksAgain::ByItself),
        InboxKind::Event => ("an event", AsksAgain::WithoutEntry),
        InboxKind::Deferred => ("the value of a deferred", AsksAgain::WithoutEntry),
        InboxKind::LimitGrant if in_line => ("a place under a limit", AsksAgain::ByItself),
        InboxKind::LimitGrant => ("its turn under a limit", AsksAgain::WithoutEntry),
        InboxKind::RunEnded => ("the end of another run", AsksAgain::Never),
        InboxKind::QueueResult => ("a queue item", AsksAgain::Never),
    }
}

/// Whether the row of a parked run names all that it waits for, and not this.
fn is_given_up(facts: &RunFacts, location: &str) -> bool {
    let Some(waiting) = facts.waiting.as_deref() else {
        return false;
    };
    let is_all = waiting.matches("; ").count() + 1 < WAITS_IN_ROW;
    is_all && !waiting.contains(&format!("`{location}`"))
}
