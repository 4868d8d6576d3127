//! Asks the store for what waiters in this process wait for and nobody here will tell them: the
//! ends and answers of runs that another process owns. One query per round, however many wait.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::ControlFlow::{Break, Continue},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use uuid::Uuid;

use super::{
    shared::Shared,
    streams::{Followed, Follower},
};
use crate::{
    commit::ItemId,
    run_id::{RunId, RunNo},
    seam::{self, Monitor},
    store::{ShardSet, StoreError},
};

/// The thread that asks. It comes when somebody waits, and goes when nobody does.
#[derive(Default)]
pub(crate) struct Poller(Monitor<State>);

#[derive(Default)]
struct State {
    running: bool,
    /// Whether there is a question that was never asked: its answer may be there already.
    is_new: bool,
}

/// How long it gathers new questions before it asks them all at once.
const GATHER: Duration = Duration::from_millis(2);

/// How often it asks: soon after something was answered, less often later. Nobody tells other
/// processes that a run has ended.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);

impl Poller {
    /// Starts the thread if somebody waits for a run of another process, and it is not there.
    pub(crate) fn ensure(shared: &Arc<Shared>) {
        let mut state = shared.poller.0.lock();
        if state.running || questions(shared).is_none() {
            return;
        }
        state.running = true;
        let asking = shared.clone();
        let work = move || asking.guard("asking", || run(&asking));
        let spawned = shared.process.spawn("everstep-poll", work);
        if let Err(error) = spawned {
            tracing::error!(%error, "a thread cannot be started; results are not asked for");
            state.running = false;
        }
    }

    /// As [`ensure`](Poller::ensure), and asks soon: together with all others that come within a
    /// moment.
    pub(crate) fn ask_soon(shared: &Arc<Shared>) {
        shared.poller.0.change(|state| state.is_new = true);
        Poller::ensure(shared);
    }

    /// Waits for this long, or until there are new questions.
    fn wait(&self, pause: Duration) {
        let until = seam::now() + pause;
        let is_new = self.0.wait("questions", |state| match !state.is_new && seam::now() < until {
            true => Continue(Some(until)),
            false => Break(state.is_new),
        });
        if is_new {
            seam::sleep(GATHER, "more questions");
            // Those that have come meanwhile are asked too.
            self.0.lock().is_new = false;
        }
    }
}

fn run(shared: &Shared) {
    let mut pause = PAUSE_MIN;
    loop {
        shared.poller.wait(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        let questions = {
            // Whoever registers after this look finds the flag down and starts another thread.
            let mut state = shared.poller.0.lock();
            match questions(shared) {
                Some(questions) => questions,
                None => {
                    state.running = false;
                    return;
                }
            }
        };
        let (answered, asked) = ask(shared, &questions);
        if let Err(error) = asked {
            shared.complain(&error, "results, replies and streams cannot be read");
        }
        if answered {
            pause = PAUSE_MIN;
        }
    }
}

/// What is waited for.
struct Questions {
    runs: Vec<RunNo>,
    requests: Vec<Uuid>,
    /// Nobody knows which process works on them.
    items: Vec<ItemId>,
    followers: Vec<Arc<Follower>>,
}

/// Asks once for what is waited for in shards that have just come to this process: what ended
/// before that was told to another one. Asked again if that fails, since nobody else asks for them.
pub(crate) fn ask_about(shared: &Shared, shards: &ShardSet) -> Result<(), StoreError> {
    let indexes: BTreeSet<u8> = shards.iter().map(|shard| shard.index()).collect();
    let questions = questions_where(shared, |run| indexes.contains(&run.shard_index()));
    match questions {
        Some(questions) => ask(shared, &questions).1,
        None => Ok(()),
    }
}

fn questions(shared: &Shared) -> Option<Questions> {
    questions_where(shared, |run| !shared.owned.surely_has(run))
}

fn questions_where(shared: &Shared, meant: impl Fn(RunId) -> bool) -> Option<Questions> {
    let (mut runs, mut requests) = shared.hub.waiting();
    runs.retain(|run| meant(*run));
    requests.retain(|(_, run)| meant(*run));
    let items = shared.hub.waiting_items();
    let mut followers = shared.hub.followers.waiting();
    followers.retain(|follower| meant(follower.run));
    if runs.is_empty() && requests.is_empty() && items.is_empty() && followers.is_empty() {
        return None;
    }
    runs.extend(followers.iter().map(|follower| follower.run));
    Some(Questions {
        runs: runs.into_iter().map(|run| run.no()).collect(),
        requests: requests.into_iter().map(|(request, _)| request).collect(),
        items,
        followers,
    })
}

/// One round of questions: whether anything was answered, and what could not be asked.
///
/// Ends are asked for before answers and told after them: a run that has ended by the first question
/// has given its answers by the second, so nobody is told of an end instead of an answer.
fn ask(shared: &Shared, questions: &Questions) -> (bool, Result<(), StoreError>) {
    let ends = match questions.runs.is_empty() {
        true => Ok(Vec::new()),
        false => shared.store.finished(&questions.runs),
    };
    let answers = match questions.requests.is_empty() {
        true => Ok(Vec::new()),
        false => shared.store.answers(&questions.requests),
    };
    let items = match questions.items.is_empty() {
        true => Ok(Vec::new()),
        false => shared.store.queue_ended(&questions.items),
    };
    let (mut answered, mut asked) = (false, Ok(()));
    match items {
        Ok(items) => {
            for (item, answer) in items {
                answered = true;
                shared.hub.item_ended(item, answer);
            }
        }
        Err(error) => asked = Err(error),
    }
    match (ends, answers) {
        (Ok(ends), Ok(answers)) => {
            for (request, answer) in answers {
                answered = true;
                shared.hub.answered(request, answer);
            }
            for (run, finished) in ends {
                answered = true;
                match finished {
                    Some(finished) => shared.hub.ended_elsewhere(run, || finished),
                    None => {
                        shared.hub.gone(run);
                        // Who follows it finds that out by reading.
                        shared.hub.followers.notify(run);
                    }
                }
            }
        }
        (Err(error @ StoreError::Moved { .. }), _) => shared.hub.stop(&Arc::new(error)),
        (Err(error), _) | (_, Err(error)) => asked = Err(error),
    }
    match tell_followers(shared, &questions.followers) {
        Ok(told) => (answered || told, asked),
        Err(error) => (answered, Err(error)),
    }
}

/// Tells those followers that have something to read; whether there is one.
fn tell_followers(shared: &Shared, followers: &[Arc<Follower>]) -> Result<bool, StoreError> {
    let (mut streams, mut readers, mut told) = (Vec::new(), Vec::new(), false);
    let mut states = BTreeMap::new();
    for follower in followers {
        match &follower.what {
            Followed::Stream { name, next } => {
                let next = next.load(Ordering::Acquire);
                streams.push((follower.run.no(), name.clone(), next));
                readers.push(follower);
            }
            Followed::State { key, seen } => {
                let run = follower.run.no();
                // Read once for all who watch the same run.
                let state = match states.entry(run) {
                    Entry::Occupied(read) => read.into_mut(),
                    Entry::Vacant(unread) => unread.insert(shared.store.state(run)?),
                };
                let value = state.iter().find(|(other, _)| other == key);
                let value = value.map(|(_, value)| value);
                let seen = seen.lock();
                if value != seen.as_ref() {
                    told = true;
                    follower.notify();
                }
            }
        }
    }
    if streams.is_empty() {
        return Ok(told);
    }
    for place in shared.store.streams_grown(&streams)? {
        told = true;
        if let Some(reader) = readers.get(place) {
            reader.notify();
        }
    }
    Ok(told)
}
