//! The numbers of an engine: filled where things happen, added up when somebody asks.
//!
//! Each engine thread has cells of its own for its workflows, so that threads do not share a cache
//! line on the path of a step. Nothing here is locked there: a run is given the cells of its workflow
//! when it comes into memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::histogram::{Cells, Histogram, LAG, MANY, WORK};
use crate::{commit::RunStatus, history::EntryStatus};

/// Workflows beyond this many are counted together, under [`OTHER`].
const WORKFLOWS_MAX: usize = 200;

/// The name under which those are counted.
const OTHER: &str = "other";

/// The numbers of an engine since its start: see [`Engine::metrics`](crate::Engine::metrics).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EngineMetrics {
    /// By the name of the workflow; beyond 200 of them, the rest are together as `other`.
    pub workflows: BTreeMap<String, WorkflowMetrics>,
    /// How many writes were made durable together.
    pub batch_writes: Histogram,
    /// How many seconds the store took for each batch.
    pub batch_seconds: Histogram,
    /// How many seconds after their time runs were taken up: sleeps and waits that ended, retries,
    /// delayed starts, runs that a message made due.
    pub timer_lag_seconds: Histogram,
    /// How many seconds messages and answers lay in an inbox before a run took them.
    pub inbox_lag_seconds: Histogram,
    /// Runs in memory that move.
    pub runs_moving: u64,
    /// Parked runs that are kept in memory, so that waking them costs no replay.
    pub runs_hot: u64,
    /// About how many bytes those take.
    pub hot_bytes: u64,
    /// Parked runs that were dropped from memory to make room; they come back by replay.
    pub runs_cooled: u64,
    /// Runs that were read from the store, and replayed.
    pub runs_loaded: u64,
    /// The shards that this process has.
    pub shards: u64,
    /// Takeovers, lost leases, refused commits.
    pub counters: EngineCounters,
}

/// How often something has happened in this engine since it started: see
/// [`Engine::counters`](crate::Engine::counters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineCounters {
    /// Shards of another runner were taken because its lease was over or it had died.
    pub takeovers: u64,
    /// It found its own lease to be over, or lost, before it wrote under it, and held still.
    pub self_fenced: u64,
    /// A commit or an emission was refused by the store because the shard was no longer its own.
    pub stale_commits_refused: u64,
    /// A run was handed over to another pool.
    pub handed_over: u64,
}

/// The numbers of one workflow.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkflowMetrics {
    /// How many seconds each attempt at a step took.
    pub step_seconds: Histogram,
    /// How many attempts have ended, by how.
    pub attempts: BTreeMap<AttemptOutcome, u64>,
    /// How many runs have ended, by how.
    pub ended: BTreeMap<RunStatus, u64>,
}

listed! {
    /// How an attempt at a step has ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum AttemptOutcome {
        /// With a result.
        Completed as "completed",
        /// With an error, after which it is made again.
        Retried as "retried",
        /// With an error, for good.
        Failed as "failed",
        /// Its time ran out, for good.
        TimedOut as "timed_out",
    }
}

impl AttemptOutcome {
    fn of(status: EntryStatus) -> AttemptOutcome {
        match status {
            EntryStatus::Completed => AttemptOutcome::Completed,
            EntryStatus::Waiting => AttemptOutcome::Retried,
            EntryStatus::TimedOut => AttemptOutcome::TimedOut,
            _ => AttemptOutcome::Failed,
        }
    }
}

/// How a run can end.
const ENDINGS: [RunStatus; 3] = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];

/// The cells of one workflow on one engine thread.
pub(crate) struct WorkflowCells {
    step: Cells,
    attempts: [AtomicU64; AttemptOutcome::ALL.len()],
    ended: [AtomicU64; ENDINGS.len()],
    /// Shared by all workflows.
    inbox_lag: Arc<Cells>,
}

impl WorkflowCells {
    fn new(inbox_lag: Arc<Cells>) -> WorkflowCells {
        WorkflowCells {
            step: Cells::new(&WORK),
            attempts: Default::default(),
            ended: Default::default(),
            inbox_lag,
        }
    }

    /// An attempt at a body has ended so.
    pub(crate) fn attempt_ended(&self, status: EntryStatus, took: Duration) {
        self.step.note_time(took);
        self.attempts[AttemptOutcome::of(status) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A run has ended so, durably.
    pub(crate) fn run_ended(&self, status: RunStatus) {
        if let Some(place) = ENDINGS.iter().position(|ending| *ending == status) {
            self.ended[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Something was taken from an inbox this long after it was sent.
    pub(crate) fn message_taken(&self, lag: Duration) {
        self.inbox_lag.note_time(lag);
    }

    fn read(&self) -> WorkflowMetrics {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let attempts = AttemptOutcome::ALL.iter().copied();
        let ended = ENDINGS.iter().copied();
        WorkflowMetrics {
            step_seconds: self.step.read(),
            attempts: attempts.zip(self.attempts.iter().map(read)).collect(),
            ended: ended.zip(self.ended.iter().map(read)).collect(),
        }
    }
}

impl WorkflowMetrics {
    fn add(&mut self, other: &WorkflowMetrics) {
        self.step_seconds.add(&other.step_seconds);
        for (outcome, n) in &other.attempts {
            *self.attempts.entry(*outcome).or_default() += n;
        }
        for (status, n) in &other.ended {
            *self.ended.entry(*status).or_default() += n;
        }
    }
}

/// The cells of one engine thread.
pub(crate) struct ThreadCells {
    /// Read and written by its thread, and read by who asks for numbers.
    workflows: Mutex<BTreeMap<Arc<str>, Arc<WorkflowCells>>>,
    timer_lag: Cells,
    inbox_lag: Arc<Cells>,
    moving: AtomicUsize,
    hot: AtomicUsize,
    hot_bytes: AtomicUsize,
    cooled: AtomicU64,
    loaded: AtomicU64,
}

impl Default for ThreadCells {
    fn default() -> ThreadCells {
        ThreadCells {
            workflows: Mutex::default(),
            timer_lag: Cells::new(&LAG),
            inbox_lag: Arc::new(Cells::new(&LAG)),
            moving: AtomicUsize::new(0),
            hot: AtomicUsize::new(0),
            hot_bytes: AtomicUsize::new(0),
            cooled: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
        }
    }
}

impl ThreadCells {
    /// The cells of a workflow.
    pub(crate) fn of_workflow(&self, name: &Arc<str>) -> Arc<WorkflowCells> {
        let mut all = self.workflows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cells) = all.get(name) {
            return cells.clone();
        }
        let name = if all.len() < WORKFLOWS_MAX { name.clone() } else { Arc::from(OTHER) };
        let make = || Arc::new(WorkflowCells::new(self.inbox_lag.clone()));
        all.entry(name).or_insert_with(make).clone()
    }

    /// A run was taken up this long after its time.
    pub(crate) fn taken_up(&self, lag: Duration) {
        self.timer_lag.note_time(lag);
    }

    /// A parked run was dropped to make room.
    pub(crate) fn cooled(&self) {
        self.cooled.fetch_add(1, Ordering::Relaxed);
    }

    /// A run was read from the store.
    pub(crate) fn loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// What the thread has in memory.
    pub(crate) fn in_memory(&self, moving: usize, hot: usize, hot_bytes: usize) {
        self.moving.store(moving, Ordering::Relaxed);
        self.hot.store(hot, Ordering::Relaxed);
        self.hot_bytes.store(hot_bytes, Ordering::Relaxed);
    }
}

/// Where an engine's numbers are gathered.
pub(crate) struct Metrics {
    /// One for each engine thread.
    pub(crate) threads: Vec<Arc<ThreadCells>>,
    batch_writes: Cells,
    batch_time: Cells,
}

impl Metrics {
    pub(crate) fn new(threads: usize) -> Metrics {
        Metrics {
            threads: (0..threads).map(|_| Arc::default()).collect(),
            batch_writes: Cells::new(&MANY),
            batch_time: Cells::new(&WORK),
        }
    }

    /// A batch of so many writes was made durable.
    pub(crate) fn batch_made(&self, writes: usize) {
        self.batch_writes.note(writes as u64);
    }

    /// The store took this long for a batch.
    pub(crate) fn batch_took(&self, took: Duration) {
        self.batch_time.note_time(took);
    }

    pub(crate) fn read(&self, shards: u64, counters: EngineCounters) -> EngineMetrics {
        let mut metrics = EngineMetrics {
            batch_writes: self.batch_writes.read(),
            batch_seconds: self.batch_time.read(),
            timer_lag_seconds: Cells::new(&LAG).read(),
            inbox_lag_seconds: Cells::new(&LAG).read(),
            shards,
            counters,
            ..EngineMetrics::default()
        };
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let gauge = |cell: &AtomicUsize| cell.load(Ordering::Relaxed) as u64;
        for thread in &self.threads {
            metrics.timer_lag_seconds.add(&thread.timer_lag.read());
            metrics.inbox_lag_seconds.add(&thread.inbox_lag.read());
            metrics.runs_moving += gauge(&thread.moving);
            metrics.runs_hot += gauge(&thread.hot);
            metrics.hot_bytes += gauge(&thread.hot_bytes);
            metrics.runs_cooled += read(&thread.cooled);
            metrics.runs_loaded += read(&thread.loaded);
            let workflows = thread.workflows.lock();
            for (name, cells) in &*workflows.unwrap_or_else(PoisonError::into_inner) {
                let of_name = metrics.workflows.entry(name.to_string()).or_default();
                of_name.add(&cells.read());
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_labels_are_bounded() {
        let metrics = Metrics::new(2);
        for thread in &metrics.threads {
            for no in 0..WORKFLOWS_MAX + 50 {
                let cells = thread.of_workflow(&Arc::from(format!("w{no:04}")));
                cells.attempt_ended(EntryStatus::Completed, Duration::from_millis(2));
                cells.run_ended(RunStatus::Failed);
            }
            thread.in_memory(3, 4, 500);
        }
        let read = metrics.read(7, EngineCounters::default());
        assert_eq!(read.workflows.len(), WORKFLOWS_MAX + 1);
        assert_eq!(read.workflows[OTHER].ended[&RunStatus::Failed], 100);
        let first = &read.workflows["w0000"];
        assert_eq!(first.attempts[&AttemptOutcome::Completed], 2);
        assert_eq!(first.step_seconds.count(), 2);
        assert_eq!((read.runs_moving, read.runs_hot, read.hot_bytes), (6, 8, 1_000));
        assert_eq!(read.shards, 7);
    }

    #[test]
    fn every_outcome_has_a_place_of_its_own() {
        for (place, outcome) in AttemptOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
    }
}
