//! The history of a fork: that of another run, up to the completion of one step.
//!
//! The rule is the one by which a run is tried again ([`load::make_fresh`]): with k the number of
//! the step, numbers below k stand, entries born before k keep their result without a number, and
//! what was born later is left out. What was rolled back at the end of the run is fresh, too.
//!
//! Always true: while the code of a fork takes the numbers that it has from another run, it sees
//! that run's time and randomness ([`Lineage`]). Otherwise it could not make the same operations.

use super::{
    flush::Origins,
    load::{self, Records},
};
use crate::{
    codec::bare::{Reader, Writer},
    commit::{LoadedRun, Put},
    hash::FastMap,
    history::{Entry, EntryKind, EntryStatus, EntryValue, Key, encode_entry},
    location::{Location, keys},
    run_id::RunId,
    time::Timestamp,
};

/// Whose time and randomness a fork has, and up to which number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// When the first run of the line was started.
    pub(crate) created_at: Timestamp,
    /// The runs of the line, the first one first: each counts while fewer numbers than this are
    /// taken. After the last of them the fork is on its own.
    pub(crate) spans: Vec<(u64, RunId)>,
}

const LINEAGE_VERSION: u16 = 1;

impl Lineage {
    /// The run whose randomness counts after so many numbers; none if it is the fork's own.
    pub(crate) fn identity(&self, taken: u64) -> Option<RunId> {
        let mut spans = self.spans.iter();
        spans.find(|(until, _)| taken < *until).map(|(_, run)| *run)
    }

    /// The line of a fork of this run that keeps the numbers below `until`.
    fn extended(
        parent: Option<&Lineage>,
        run: RunId,
        created_at: Timestamp,
        until: u64,
    ) -> Lineage {
        let mut spans = parent.map_or(Vec::new(), |parent| parent.spans.clone());
        spans.retain(|(other, _)| *other < until);
        match parent.and_then(|parent| parent.identity(until - 1)) {
            Some(inherited) => spans.push((until, inherited)),
            None => spans.push((until, run)),
        }
        Lineage { created_at: parent.map_or(created_at, |parent| parent.created_at), spans }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.u16(LINEAGE_VERSION);
        writer.int(self.created_at.as_millis());
        writer.list(&self.spans, |writer, (until, run)| {
            writer.uint(*until);
            writer.fixed(run.as_uuid().as_bytes());
        });
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Lineage> {
        let mut reader = Reader::new(bytes);
        if reader.u16().ok()? != LINEAGE_VERSION {
            return None;
        }
        let created_at = Timestamp::from_millis(reader.int().ok()?);
        let spans = reader.list(|reader| Ok((reader.uint()?, reader.fixed::<16>()?)));
        reader.finish().ok()?;
        let spans = spans.ok()?.into_iter().map(|(until, id)| {
            let run = RunId::from_uuid(uuid::Uuid::from_bytes(id))?;
            Some((until, run))
        });
        Some(Lineage { created_at, spans: spans.collect::<Option<_>>()? })
    }
}

/// What a fork begins with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Forked {
    pub(crate) history: Vec<Put>,
    pub(crate) last_number: u64,
}

/// Why a fork cannot be made like this.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ForkProblem {
    /// The history has nothing at this location.
    NoSuchStep(String),
    /// This location was reached after the place of the fork.
    AfterTheFork(String),
    /// This location was reached after a step that is run again: it was rolled back, or is a part of
    /// what is forked from.
    AfterAnother(String),
    /// What is at this location has no result that could be another.
    NoResult(String),
    /// The history cannot be read.
    Undecodable(String),
}

/// The history of a fork of `loaded`, up to the completion of `from` (or, without it, of the first
/// of `results`), with these results put in.
pub(crate) fn fork(
    loaded: &LoadedRun,
    from: Option<&Location>,
    results: &[(Location, Vec<u8>)],
    now: Timestamp,
) -> Result<Forked, ForkProblem> {
    let records = Records::decode(&loaded.history)
        .map_err(|halt| ForkProblem::Undecodable(halt.to_string()))?;
    let mut entries = records.entries;
    let taken = records.origins.map_or_else(|| last_number(&entries), |origins| origins.taken);
    let origins = Origins { taken, keys: where_to_fork(&entries, from, results)? };
    if origins.keys.is_empty() {
        return Ok(Forked::default());
    }
    let edited = edited(&entries, results, now)?;
    let fresh = load::make_fresh(&mut entries, &origins, 0);
    entries.retain(|_, entry| stands_in_another_run(entry));
    put_in(&mut entries, edited, &origins, fresh.lowest)?;
    let last_number = last_number(&entries);
    let row = &loaded.row;
    let parent = records.lineage.as_ref();
    let lineage = Lineage::extended(parent, row.id, row.created_at, last_number + 1);
    let mut history: Vec<Put> = entries
        .iter()
        .map(|(key, entry)| Put { key: key.to_vec(), value: encode_entry(entry) })
        .collect();
    history.push(Put { key: keys::lineage(), value: lineage.encode() });
    history.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Forked { history, last_number })
}

/// The highest number of these.
fn last_number(entries: &FastMap<Key, Entry>) -> u64 {
    entries.values().filter_map(|entry| entry.number).max().unwrap_or(0)
}

/// The keys of what is not taken over.
fn where_to_fork(
    entries: &FastMap<Key, Entry>,
    from: Option<&Location>,
    results: &[(Location, Vec<u8>)],
) -> Result<Vec<Vec<u8>>, ForkProblem> {
    let Some(from) = from else {
        // Whatever came after another result may have come of it.
        let known = results
            .iter()
            .map(|(location, _)| location)
            .filter(|location| entries.contains_key(location.as_key()));
        let first = known.min_by_key(|location| {
            let entry = entries.get(location.as_key());
            entry.and_then(|entry| entry.number).unwrap_or(u64::MAX)
        });
        return Ok(first.map(|first| first.as_key().to_vec()).into_iter().collect());
    };
    // A join, a loop or a scope is run again as a whole.
    let under: Vec<Vec<u8>> = entries
        .keys()
        .filter(|key| keys::is_under(key, from.as_key()))
        .map(|key| key.to_vec())
        .collect();
    if under.is_empty() {
        return Err(ForkProblem::NoSuchStep(from.to_string()));
    }
    Ok(under)
}

/// The entries with their new results.
fn edited(
    entries: &FastMap<Key, Entry>,
    results: &[(Location, Vec<u8>)],
    now: Timestamp,
) -> Result<Vec<(Location, Entry)>, ForkProblem> {
    let edit = |(location, bytes): &(Location, Vec<u8>)| {
        let Some(entry) = entries.get(location.as_key()) else {
            return Err(ForkProblem::NoSuchStep(location.to_string()));
        };
        let has_result =
            entry.kind == EntryKind::Step || matches!(entry.value, EntryValue::Payload(_));
        if !has_result || entry.kind == EntryKind::Iteration {
            return Err(ForkProblem::NoResult(location.to_string()));
        }
        let entry = Entry {
            status: EntryStatus::Completed,
            completed_at: entry.completed_at.or(Some(now)),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(bytes.clone()),
            ..entry.clone()
        };
        Ok((location.clone(), entry))
    };
    results.iter().map(edit).collect()
}

/// Puts the results in. Numbers from `lowest` on do not stand, so the code makes nothing that was born
/// after them before it has gone on by itself.
fn put_in(
    entries: &mut FastMap<Key, Entry>,
    edited: Vec<(Location, Entry)>,
    origins: &Origins,
    lowest: u64,
) -> Result<(), ForkProblem> {
    for (location, mut entry) in edited {
        let key = location.as_key();
        // What the fork begins with is not run again if it was given a result: it is available
        // from the beginning, and has no number yet.
        let begins = origins.keys.iter().any(|fresh| fresh == key);
        match entries.get(key) {
            Some(kept) => entry.number = kept.number,
            None if begins && entry.born < lowest => entry.number = None,
            None if begins => return Err(ForkProblem::AfterAnother(location.to_string())),
            None => return Err(ForkProblem::AfterTheFork(location.to_string())),
        }
        entries.insert(Key::from(key), entry);
    }
    Ok(())
}

/// Whether an entry means the same in another run. What waits for an answer was registered for the
/// run that it was made in, so it is made anew.
fn stands_in_another_run(entry: &Entry) -> bool {
    entry.status.is_terminal()
        || entry.kind == EntryKind::Listen
        || entry.kind.answered_by().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_id::RunIds;

    const T: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_lineage_has_a_fixed_format() {
        let run = RunIds::new(1).next(T);
        let lineage = Lineage { created_at: Timestamp::from_millis(-2), spans: vec![(300, run)] };
        let bytes = lineage.encode();
        let expected = [&[1, 0, 3, 1, 0xAC, 2][..], run.as_uuid().as_bytes()].concat();
        assert_eq!(bytes, expected);
        assert_eq!(Lineage::decode(&bytes), Some(lineage));
        assert_eq!(Lineage::decode(&bytes[1..]), None);
    }

    #[test]
    fn a_fork_of_a_fork_has_the_randomness_of_each_in_its_part() {
        let ids = RunIds::new(1);
        let (a, b, c) = (ids.next(T), ids.next(T), ids.next(T));
        let of_a = Lineage::extended(None, a, T, 5);
        let later = Timestamp::from_millis(T.as_millis() + 9);
        let beyond = Lineage::extended(Some(&of_a), b, later, 8);
        assert_eq!(beyond.created_at, T);
        assert_eq!(beyond.spans, [(5, a), (8, b)]);
        assert_eq!(beyond.identity(4), Some(a));
        assert_eq!(beyond.identity(5), Some(b));
        assert_eq!(beyond.identity(8), None);
        let within = Lineage::extended(Some(&beyond), c, later, 3);
        assert_eq!(within.spans, [(3, a)]);
        let between = Lineage::extended(Some(&beyond), c, later, 6);
        assert_eq!(between.spans, [(5, a), (6, b)]);
    }
}
