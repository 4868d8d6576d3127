//! Why a run is not moving: one sentence, and the chain of what waits for what.
//!
//! What a run waits for is read from its row, its entries that have not ended, and the runners. A
//! wait for another run is followed to that run, and so on; runs that wait for each other in a
//! circle are named.

use std::collections::HashSet;

use super::{ClientError, RunHandle, history};
use crate::{
    commit::{Put, RunStatus, Target},
    engine::served,
    history::{Entry, EntryKind, EntryStatus, EntryValue, decode_entry},
    location::keys,
    run::WAITS_IN_ROW,
    run_id::RunId,
    store::{LimitPlace, RunRow, RunnerRow, Store, StoreError},
    time::Timestamp,
};

mod ended;

/// How many runs of a chain are looked at.
const CHAIN_MAX: usize = 50;

/// How often a run is read again that seems to wait for nothing.
const LOOKS_MAX: usize = 3;

/// How many waits of one run are put into words.
const WAITS_SAID: usize = 3;

/// Why a run is not moving.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// In one sentence.
    pub sentence: String,
    /// What waits for what: the run itself first, then what it waits for, if that is a run, and so
    /// on.
    pub chain: Vec<Because>,
    /// The runs that wait for each other in a circle, if they do: each for the next, and the last
    /// for the first.
    pub cycle: Vec<RunId>,
}

/// One run of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Because {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: String,
    /// Its key, if it was started with one.
    pub key: Option<String>,
    /// Why it is not moving, in one sentence.
    pub sentence: String,
    /// What it waits for.
    pub waits_for: Vec<WaitsFor>,
}

/// Something that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// A body that is running.
    Body {
        /// The step.
        location: String,
        /// Since when.
        since: Option<Timestamp>,
    },
    /// A time.
    Time {
        /// The sleep, or nothing if the run as a whole has a time.
        location: Option<String>,
        /// When it comes.
        at: Timestamp,
    },
    /// The next attempt of a step.
    NextAttempt {
        /// The step.
        location: String,
        /// Which attempt.
        attempt: u32,
        /// When.
        at: Timestamp,
        /// Why the last one failed.
        error: String,
    },
    /// A message.
    Message {
        /// The operation that listens.
        location: String,
        /// Until when, if there is a limit.
        until: Option<Timestamp>,
    },
    /// An answer of another kind: an event, the value of a deferred, a queue item, a limit.
    Answer {
        /// What waits.
        kind: EntryKind,
        /// The operation.
        location: String,
        /// Until when, if there is a limit.
        until: Option<Timestamp>,
    },
    /// A place under a limit, or its turn by the rate.
    Limit {
        /// The limit.
        name: String,
        /// Its key, if it is used with one.
        key: Option<String>,
        /// The step that waits; none if the run as a whole does, before it begins.
        location: Option<String>,
        /// When its turn is, if it has a place.
        turn: Option<Timestamp>,
        /// The run that has had a place for the longest, if this one has none.
        holder: Option<RunId>,
    },
    /// Another run.
    Run {
        /// That run.
        run: RunId,
        /// The operation that waits for it.
        location: String,
    },
    /// Somebody who mends what has paused it, and resumes it.
    Resume {
        /// Why it is paused.
        reason: String,
    },
    /// A runner that takes it up.
    Runner {
        /// Why none has, as far as can be seen.
        problem: String,
    },
    /// The compensations of what it has done.
    Rollback {
        /// How it ends after them.
        ending: RunStatus,
    },
}

impl<O> RunHandle<O> {
    /// Why the run is not moving; for a run that has failed or was cancelled, where it failed, after
    /// how many attempts and with which error, who cancelled it as far as the audit log knows, and what
    /// was rolled back.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn approve(ctx: Ctx, _: ()) -> Result<()> { ctx.listen::<()>("approval").await }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(approve).start().await?;
    /// # let run = engine.client().start(approve, ()).await?;
    /// # while run.status().await? != everstep::RunStatus::Sleeping { tokio::task::yield_now().await }
    /// let why = run.why().await?;
    /// assert!(why.sentence.ends_with("waits for a message at `approval`"));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn why(&self) -> Result<Why, ClientError> {
        let (id, now) = (self.id, self.client.shared.now());
        let walked = self.client.read(move |store| {
            let runners = store.runners()?;
            walk(id, |run| look(store, run, &runners, now))
        });
        walked.await?.ok_or_else(|| ClientError::unknown_run(id))
    }
}

/// Follows the runs that wait for each other. `look` says why one of them is not moving; nothing if
/// there is no such run.
fn walk<E>(
    first: RunId,
    mut look: impl FnMut(RunId) -> Result<Option<Because>, E>,
) -> Result<Option<Why>, E> {
    let mut chain: Vec<Because> = Vec::new();
    let mut met = HashSet::new();
    let mut cycle = Vec::new();
    let mut next = Some(first);
    while let Some(run) = next.filter(|_| chain.len() < CHAIN_MAX) {
        if !met.insert(run) {
            let circle = chain.iter().map(|because| because.run);
            cycle = circle.skip_while(|other| *other != run).collect();
            break;
        }
        let Some(because) = look(run)? else { break };
        next = because.other_run();
        chain.push(because);
    }
    if chain.is_empty() {
        return Ok(None);
    }
    let sentence = in_one_sentence(&chain, &cycle);
    Ok(Some(Why { sentence, chain, cycle }))
}

fn in_one_sentence(chain: &[Because], cycle: &[RunId]) -> String {
    let parts: Vec<&str> = chain.iter().map(|because| because.sentence.as_str()).collect();
    let mut sentence = parts.join("; ");
    if let [only] = cycle {
        sentence += &format!("; run {only} waits for itself and will not go on");
    } else if let Some(first) = cycle.first() {
        let names: Vec<String> = cycle.iter().map(ToString::to_string).collect();
        let circle = names.join(" → ");
        sentence += &format!(
            "; they wait for each other and will not go on: {circle} → {first}; cancel one of them"
        );
    }
    sentence
}

impl Because {
    /// The run that this one waits for, unless something else may move it too.
    fn other_run(&self) -> Option<RunId> {
        let mut runs = self.waits_for.iter().filter_map(|wait| match wait {
            WaitsFor::Run { run, .. } => Some(*run),
            WaitsFor::Limit { holder, .. } => *holder,
            _ => None,
        });
        runs.next()
    }
}

/// Why this run is not moving.
fn look(
    store: &dyn Store,
    run: RunId,
    runners: &[RunnerRow],
    now: Timestamp,
) -> Result<Option<Because>, StoreError> {
    let mut row = store.run(&Target::Id(run))?;
    let mut looks = 0;
    while let Some(found) = row {
        let updated_at = found.updated_at;
        let (because, is_lost) = look_once(store, found, runners, now)?;
        looks += 1;
        if !is_lost || looks == LOOKS_MAX {
            return Ok(Some(because));
        }
        // Row, entries and places are not read at once: the run may have moved in between.
        row = store.run(&Target::Id(run))?;
        if row.as_ref().is_some_and(|row| row.updated_at == updated_at) {
            return Ok(Some(because));
        }
    }
    Ok(None)
}

/// Why the run with this row is not moving, and whether nothing will ever wake it.
fn look_once(
    store: &dyn Store,
    row: RunRow,
    runners: &[RunnerRow],
    now: Timestamp,
) -> Result<(Because, bool), StoreError> {
    let run = row.id;
    if row.status.is_terminal() {
        let how = ended::how(store, &row)?;
        return Ok((because(row, &how, Vec::new()), false));
    }
    let entries = match row.status {
        RunStatus::Running | RunStatus::Sleeping | RunStatus::RollingBack => {
            history::read_all(store, run, None)?
        }
        _ => Vec::new(),
    };
    let places = match row.status {
        RunStatus::Sleeping | RunStatus::Running => store.limit_places(run.no())?,
        _ => Vec::new(),
    };
    Ok(explain(row, &entries, runners, now, &places))
}

/// Why a run with this row and these entries is not moving, and whether it waits in a line in which
/// it does not stand.
fn explain(
    row: RunRow,
    history: &[Put],
    runners: &[RunnerRow],
    now: Timestamp,
    places: &[LimitPlace],
) -> (Because, bool) {
    let (waits_for, unregistered) = waits_of(&row, history, runners, now, places);
    let is_lost = unregistered && row.status == RunStatus::Sleeping && row.available_at.is_none();
    let mut what = if waits_for.is_empty() {
        match row.cancel_requested {
            Some(_) => "is being cancelled".to_owned(),
            None => "is moving: its code is between two operations".to_owned(),
        }
    } else {
        let said = waits_for.iter().take(WAITS_SAID);
        let mut parts: Vec<String> = said.map(ToString::to_string).collect();
        if let Some(more) = waits_for.len().checked_sub(WAITS_SAID).filter(|n| *n > 0) {
            parts.push(format!("{more} more"));
        }
        parts.join(", and ")
    };
    if is_lost {
        what.push_str(
            ", and is not registered for it, so it would never be told; run \
             `everstep doctor --repair`",
        );
    }
    (because(row, &what, waits_for), is_lost)
}

/// A run of the chain, with a sentence that names it and says `what`.
fn because(row: RunRow, what: &str, waits_for: Vec<WaitsFor>) -> Because {
    let name = match &row.key {
        Some(key) => format!("run {} (`{key}` of `{}`)", row.id, row.workflow),
        None => format!("run {} of `{}`", row.id, row.workflow),
    };
    Because {
        run: row.id,
        workflow: row.workflow.to_string(),
        key: row.key,
        sentence: format!("{name} {what}"),
        waits_for,
    }
}

/// What a run waits for, and whether it waits for a limit without a place in its line.
fn waits_of(
    row: &RunRow,
    history: &[Put],
    runners: &[RunnerRow],
    now: Timestamp,
    places: &[LimitPlace],
) -> (Vec<WaitsFor>, bool) {
    let mut waits = Vec::new();
    match row.status {
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => return (waits, false),
        RunStatus::Paused if row.cancel_requested.is_none() || row.ending.is_some() => {
            let reason = row.waiting.clone().unwrap_or_default();
            return (vec![WaitsFor::Resume { reason }], false);
        }
        RunStatus::Pending => {
            if let Some(at) = row.waits_until(now) {
                return (vec![WaitsFor::Time { location: None, at }], false);
            }
        }
        _ => {}
    }
    if let Some(problem) = no_runner(row, runners, now) {
        waits.push(WaitsFor::Runner { problem });
        return (waits, false);
    }
    if let (RunStatus::RollingBack, Some(ending)) = (row.status, row.ending) {
        waits.push(WaitsFor::Rollback { ending });
    }
    let start = places.iter().find(|place| place.operation == keys::START);
    let at_gate = |place: &&LimitPlace| {
        // One that has its place waits for its turn only as long as it says so.
        let waiting = row.waiting.as_deref();
        !place.given || waiting.is_some_and(crate::run::is_at_gate)
    };
    if let Some(place) = start.filter(at_gate) {
        return (vec![wait_for_place(place, None, row)], false);
    }
    let waiting = row.waiting.as_deref().unwrap_or_default();
    if start.is_none() && row.status == RunStatus::Sleeping && crate::run::is_at_gate(waiting) {
        return (vec![wait_without_place(row, None)], true);
    }
    let mut unregistered = false;
    let rolling_back = row.ending.is_some();
    let parked = parked_at(row);
    for put in history {
        let prefix = if rolling_back { keys::ROLLBACKS } else { keys::HISTORY };
        if put.key.starts_with(prefix)
            && let Ok(entry) = decode_entry(&put.value)
        {
            let location = keys::describe(&put.key);
            let given_up =
                parked.is_some_and(|waiting| !waiting.contains(&format!("`{location}`")));
            let place = places.iter().find(|place| place.operation == put.key);
            let in_line = entry.status == EntryStatus::Waiting && entry.wake_at.is_none();
            let has_body = matches!(entry.kind, EntryKind::Step | EntryKind::Transaction);
            match place.filter(|_| in_line) {
                Some(place) => waits.push(wait_for_place(place, Some(location), row)),
                None if given_up => {}
                // Of what has a body, only a wait for a limit has no time. While the run moves, its
                // step may have lost a race and left the line, which its entry does not say.
                None if in_line && has_body => {
                    if row.status == RunStatus::Sleeping {
                        unregistered = true;
                        waits.push(wait_without_place(row, Some(location)));
                    }
                }
                None => waits.extend(wait_of(location, entry)),
            }
        }
    }
    // What a body does is more to the point than what waits beside it.
    waits.sort_by_key(|wait| !matches!(wait, WaitsFor::Body { .. } | WaitsFor::Rollback { .. }));
    (waits, unregistered)
}

/// The wait for a limit in whose line the operation does not stand: the name of the limit is known
/// only from the words of the row.
fn wait_without_place(row: &RunRow, location: Option<String>) -> WaitsFor {
    let at = location.as_ref().map(|location| format!("for `{location}`"));
    let mut parts = row.waiting.as_deref().unwrap_or_default().split("; ");
    let part = parts.find(|part| at.as_ref().is_none_or(|at| part.contains(at)));
    let name = part.and_then(|part| part.strip_prefix("limit `")?.split('`').next());
    match (name, location) {
        (None, Some(location)) => {
            WaitsFor::Answer { kind: EntryKind::Limit, location, until: None }
        }
        (name, location) => WaitsFor::Limit {
            name: name.unwrap_or_default().to_owned(),
            key: None,
            location,
            turn: None,
            holder: None,
        },
    }
}

fn wait_for_place(place: &LimitPlace, location: Option<String>, row: &RunRow) -> WaitsFor {
    WaitsFor::Limit {
        name: place.name.clone(),
        key: Some(place.key.clone()).filter(|key| !key.is_empty()),
        location,
        turn: row.available_at.filter(|_| place.given),
        // A run does not wait for itself because another of its steps has a place.
        holder: place.holder.filter(|run| !place.given && *run != row.id),
    }
}

/// What the row of a parked run says that it waits for, if that is all: an operation that is not
/// named there was given up, as one that has lost a race.
fn parked_at(row: &RunRow) -> Option<&str> {
    let waiting = row.waiting.as_deref()?;
    let is_all = waiting.matches("; ").count() + 1 < WAITS_IN_ROW;
    (row.status == RunStatus::Sleeping && is_all).then_some(waiting)
}

/// What an operation waits for, by its entry. The place where further kinds of waits, and the runs
/// that they wait for, come in.
fn wait_of(location: String, entry: Entry) -> Option<WaitsFor> {
    if entry.status.is_terminal() {
        return None;
    }
    let waits = entry.status == EntryStatus::Waiting;
    Some(match (entry.kind, entry.wake_at) {
        (EntryKind::Sleep, Some(at)) => WaitsFor::Time { location: Some(location), at },
        (EntryKind::Listen, until) => WaitsFor::Message { location, until },
        (EntryKind::Child | EntryKind::Finished, _)
            if matches!(entry.value, EntryValue::Started(..)) =>
        {
            let EntryValue::Started(run, _) = entry.value else {
                return None;
            };
            WaitsFor::Run { run, location }
        }
        (kind, until) if kind.answered_by().is_some() => WaitsFor::Answer { kind, location, until },
        (EntryKind::Step | EntryKind::Rollback, Some(at)) if waits => WaitsFor::NextAttempt {
            location,
            attempt: entry.attempts + 1,
            at,
            error: entry.errors.last().map_or_else(String::new, |error| error.message.clone()),
        },
        (EntryKind::Step | EntryKind::Rollback, _) => {
            WaitsFor::Body { location, since: entry.started_at }
        }
        // Structure: what is below it waits.
        _ => return None,
    })
}

/// Why no runner has a run that is due, or should be in somebody's memory.
fn no_runner(row: &RunRow, runners: &[RunnerRow], now: Timestamp) -> Option<String> {
    let is_due = row.is_due(now);
    let in_memory = matches!(row.status, RunStatus::Running | RunStatus::RollingBack);
    if !is_due && !in_memory {
        return None;
    }
    let live = || runners.iter().filter(|runner| runner.lease_until > now);
    let serves = |runner: &RunnerRow| runner.serves(&row.workflow, row.version);
    let (workflow, version) = (&row.workflow, row.version);
    if live().next().is_none() {
        return Some("no runner is alive; start an engine on this store".to_owned());
    }
    let of_pool = |runner: &&RunnerRow| runner.pools.iter().any(|name| *name == *row.pool);
    if !live().any(|runner| of_pool(&runner)) {
        return Some(format!(
            "no live runner serves its pool `{0}`; start one with `.pools([\"{0}\"])`",
            row.pool
        ));
    }
    let Some(able) = live().filter(of_pool).find(|runner| serves(runner)) else {
        let alive: Vec<RunnerRow> = live().cloned().collect();
        return Some(format!(
            "no live runner knows workflow `{workflow}` version {version}{}; deploy code that has \
             it, or `accepts` it",
            served(workflow, &row.pool, &alive)
        ));
    };
    let Some(owner) = live().find(|runner| runner.shards.contains(row.shard)) else {
        return Some(format!(
            "no live runner owns its shard ({}) yet; one of pool `{}` takes it within a lease",
            row.shard.0, row.pool
        ));
    };
    if !serves(owner) {
        return Some(format!(
            "its owner `{}` does not know workflow `{workflow}` version {version}, and hands it \
             over to runners like `{}`",
            owner.name, able.name
        ));
    }
    if row.status == RunStatus::Pending && is_due {
        return Some(format!(
            "it is due, and its owner `{}` has not taken it up yet: it is busy, or has no room \
             (`max_live_runs`)",
            owner.name
        ));
    }
    None
}

impl std::fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let until = |until: &Option<Timestamp>| match until {
            Some(at) => format!(" until {at}"),
            None => String::new(),
        };
        match self {
            WaitsFor::Body { location, since } => {
                write!(f, "runs the body of `{location}`")?;
                since.map_or(Ok(()), |since| write!(f, " since {since}"))
            }
            WaitsFor::Time { location: Some(location), at } => {
                write!(f, "sleeps at `{location}` until {at}")
            }
            WaitsFor::Time { location: None, at } => write!(f, "does not begin before {at}"),
            WaitsFor::NextAttempt { location, attempt, at, error } => write!(
                f,
                "waits for attempt {attempt} of `{location}` at {at}, because the last one \
                 failed: {error}"
            ),
            WaitsFor::Message { location, until: limit } => {
                write!(f, "waits for a message at `{location}`{}", until(limit))
            }
            WaitsFor::Answer { kind, location, until: limit } => {
                let what = match kind {
                    EntryKind::Event => "an event",
                    EntryKind::Deferred => "the value of a deferred",
                    EntryKind::Child => "a child",
                    EntryKind::Finished => "the end of another run",
                    EntryKind::Enqueue => "an item of a queue",
                    EntryKind::Limit => "a limit",
                    _ => "an answer",
                };
                write!(f, "waits for {what} at `{location}`{}", until(limit))
            }
            WaitsFor::Limit { name, key, location, turn, holder } => {
                write!(f, "waits for limit `{name}`")?;
                key.as_ref().map_or(Ok(()), |key| write!(f, " (`{key}`)"))?;
                match location {
                    Some(location) => write!(f, " at `{location}`")?,
                    None => f.write_str(" before it begins")?,
                }
                match (turn, holder) {
                    (Some(at), _) => write!(f, " until {at}"),
                    (None, Some(run)) => write!(f, ", where run {run} has a place"),
                    (None, None) => Ok(()),
                }
            }
            WaitsFor::Run { run, location } => write!(f, "waits for run {run} at `{location}`"),
            WaitsFor::Resume { reason } => write!(f, "is paused: {reason}"),
            WaitsFor::Runner { problem } => write!(f, "waits for a runner: {problem}"),
            WaitsFor::Rollback { ending } => {
                write!(f, "undoes what it has done, to end as {ending}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_id::RunIds;

    const T: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn because(run: RunId, waits_for: Vec<WaitsFor>) -> Because {
        let said: Vec<String> = waits_for.iter().map(ToString::to_string).collect();
        Because {
            run,
            workflow: "w".to_owned(),
            key: None,
            sentence: format!("run {run} {}", said.join(", and ")),
            waits_for,
        }
    }

    fn waits_for(run: RunId) -> WaitsFor {
        let location = "child".to_owned();
        WaitsFor::Run { run, location }
    }

    /// Walks a chain in which the n-th run waits for what the n-th of `links` says.
    fn walked(runs: &[RunId], links: &[Vec<WaitsFor>]) -> Why {
        let why = walk(runs[0], |run| {
            let at = runs.iter().position(|other| *other == run);
            Ok::<_, ()>(at.map(|at| because(run, links[at].clone())))
        });
        why.expect("no error").expect("a run")
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let ids = RunIds::new(1);
        let runs = [ids.next(T), ids.next(T), ids.next(T)];
        let message = WaitsFor::Message { location: "approval".to_owned(), until: None };
        let links = [vec![waits_for(runs[1])], vec![waits_for(runs[2])], vec![message]];
        let why = walked(&runs, &links);
        let met: Vec<RunId> = why.chain.iter().map(|because| because.run).collect();
        assert_eq!(met, runs);
        assert!(why.cycle.is_empty());
        let [a, b, c] = runs;
        assert_eq!(
            why.sentence,
            format!(
                "run {a} waits for run {b} at `child`; run {b} waits for run {c} at `child`; run \
                 {c} waits for a message at `approval`"
            )
        );
    }

    #[test]
    fn a_cycle_is_named_without_what_leads_to_it() {
        let ids = RunIds::new(1);
        let runs = [ids.next(T), ids.next(T), ids.next(T)];
        let links = [vec![waits_for(runs[1])], vec![waits_for(runs[2])], vec![waits_for(runs[1])]];
        let why = walked(&runs, &links);
        assert_eq!(why.cycle, runs[1..]);
        assert_eq!(why.chain.len(), 3);
        let [_, b, c] = runs;
        let end = format!("will not go on: {b} → {c} → {b}; cancel one of them");
        assert!(why.sentence.ends_with(&end), "{}", why.sentence);
    }

    #[test]
    fn a_run_that_waits_for_itself_is_a_cycle() {
        let runs = [RunIds::new(1).next(T)];
        let why = walked(&runs, &[vec![waits_for(runs[0])]]);
        assert_eq!(why.cycle, runs);
        assert!(why.sentence.contains("waits for itself"));
    }

    #[test]
    fn a_chain_that_leads_nowhere_ends() {
        let ids = RunIds::new(1);
        let (known, deleted) = (ids.next(T), ids.next(T));
        let why = walked(&[known], &[vec![waits_for(deleted)]]);
        assert_eq!(why.chain.len(), 1);
        let nobody: Result<Option<Why>, ()> = walk(deleted, |_| Ok(None));
        assert_eq!(nobody, Ok(None));
    }

    #[test]
    fn a_long_chain_is_cut() {
        let ids = RunIds::new(1);
        let runs: Vec<RunId> = (0..CHAIN_MAX + 20).map(|_| ids.next(T)).collect();
        let mut links: Vec<Vec<WaitsFor>> =
            runs[1..].iter().map(|run| vec![waits_for(*run)]).collect();
        links.push(Vec::new());
        assert_eq!(walked(&runs, &links).chain.len(), CHAIN_MAX);
    }
}
