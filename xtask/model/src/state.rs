//! What the model is made of: the store, what is on its way to it, and the runners.
//!
//! Everything is small and plain, because every state that can be reached is kept. An epoch counts
//! per runner's row and not over all of them, which makes no difference: epochs are only ever
//! compared within a row.

use std::fmt;

use crate::normal;

/// How many runners there are. The third is not registered at the start: it joins.
pub(crate) const RUNNERS: usize = 3;
/// How many shards there are, each with one run in it.
pub(crate) const SHARDS: usize = 2;

/// The number of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunnerNo(pub(crate) u8);

/// The number of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardNo(pub(crate) u8);

/// Everything at one moment. States that differ in nothing but absolute numbers have the same hash
/// ([`normal`]), and so are one to the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The store's time, in ticks.
    pub(crate) now: u8,
    /// The rows of the runners, as stored.
    pub(crate) rows: [Option<Row>; RUNNERS],
    /// Who holds each shard, as stored.
    pub(crate) shards: [Option<Owner>; SHARDS],
    /// How many commits the run of each shard has seen, as stored.
    pub(crate) versions: [u8; SHARDS],
    /// The lanes of each runner, as stored. A run is always in the same lane: that of its shard.
    pub(crate) lanes: [[LaneRow; SHARDS]; RUNNERS],
    /// Batches that were sent and are neither committed nor refused, sorted.
    pub(crate) batches: Vec<Batch>,
    /// Takeovers under way, by who takes over.
    pub(crate) takes: [Option<Take>; RUNNERS],
    /// Heartbeats that were sent and have not arrived.
    pub(crate) beats: [Option<Beat>; RUNNERS],
    /// What is in the memory of each process.
    pub(crate) runners: [Runner; RUNNERS],
    /// What may still happen.
    pub(crate) left: Left,
    /// What must not happen, and has.
    pub(crate) wrong: Option<Wrong>,
}

/// The row of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) epoch: u8,
    pub(crate) lease_until: u8,
    /// For how long it was not prolonged, up to the length of a lease. Whoever looks at it can have watched
    /// that by a clock of its own. Not counted where all go by the store's time.
    pub(crate) silent: u8,
}

/// The holder of a shard. The store has only the runner; with which epoch it took the shard is
/// remembered here to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) runner: RunnerNo,
    pub(crate) epoch: u8,
}

/// The row of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LaneRow {
    pub(crate) epoch: u8,
    pub(crate) last: u8,
}

/// What a batch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A commit of the run of the shard.
    Commit,
    /// Gives the shard back.
    Release,
}

/// One transaction on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Batch {
    pub(crate) runner: RunnerNo,
    pub(crate) shard: ShardNo,
    pub(crate) kind: Kind,
    /// The epoch of the runner that sent it.
    pub(crate) fence: u8,
    /// The epoch of its lane; none if the process that sent it is gone, and nobody will ever raise
    /// the epoch of that lane.
    pub(crate) lane: Option<u8>,
    /// Its number in the lane. A batch that is sent again keeps it.
    pub(crate) number: u8,
    /// The version of the run that the commit was made from.
    pub(crate) base: u8,
    /// Whether the store has begun it: it has passed the fence, and holds `KEY SHARE` on the row of
    /// its runner until it is committed.
    pub(crate) begun: bool,
}

/// One takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Take {
    pub(crate) victim: RunnerNo,
    /// The epoch of who takes over.
    pub(crate) fence: u8,
    /// Whether its second transaction has passed the fence of who takes over, holds `KEY SHARE` on
    /// that row, and waits for the row of the victim. If that row comes first, it holds nothing
    /// while it waits.
    pub(crate) begun: bool,
}

/// One heartbeat that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Beat {
    pub(crate) fence: u8,
    /// When it was sent, by the sender's clock.
    pub(crate) begun: u8,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Runs,
    Paused,
    Crashed,
    /// It has left in good order.
    Left,
}

/// A process, and what it remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runner {
    pub(crate) process: Process,
    /// The epoch that it has registered with, as far as it knows.
    pub(crate) fence: Option<u8>,
    /// Until when it has its lease, by its own clock.
    pub(crate) valid_until: u8,
    /// The shards that it has, as far as it knows.
    pub(crate) owned: [bool; SHARDS],
    /// The run of each shard, on its way from the store into memory.
    pub(crate) reads: [Option<Read>; SHARDS],
    /// The version of the run of each shard that is in memory.
    pub(crate) held: [Option<u8>; SHARDS],
    /// The commit of each run that is made and not sent yet.
    pub(crate) queued: [Option<Queued>; SHARDS],
    /// What each lane waits for.
    pub(crate) busy: [Option<Busy>; SHARDS],
}

/// A run that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub(crate) version: u8,
    /// The shard has been the reader's ever since.
    pub(crate) current: bool,
}

/// A commit that waits for its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    /// The epoch of the runner when it was made.
    pub(crate) fence: u8,
    pub(crate) base: u8,
}

/// The batch that a lane has sent and has no answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Busy {
    pub(crate) fence: u8,
    pub(crate) kind: Kind,
    pub(crate) number: u8,
    pub(crate) base: u8,
    /// The connection was lost; nobody knows whether the batch has landed.
    pub(crate) lost: bool,
}

/// What may still happen, so that every path ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    /// Crashes, starts of a crashed process, pauses, late heartbeats, lost connections, takeovers by a
    /// clock that is ahead.
    pub(crate) faults: u8,
    /// Shards given back, and runners that leave.
    pub(crate) moves: u8,
    /// New commits.
    pub(crate) commits: u8,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wrong {
    /// A commit was accepted from a runner that does not hold the shard.
    NotOwner,
    /// A commit was accepted that was made from an older state than the stored one.
    OldState,
    /// A batch was applied a second time.
    Twice,
    /// A runner that fences itself has sent a batch after it was taken over.
    SentTooLate,
}

impl RunnerNo {
    pub(crate) fn all() -> impl Iterator<Item = RunnerNo> {
        (0..RUNNERS as u8).map(RunnerNo)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ShardNo {
    pub(crate) fn all() -> impl Iterator<Item = ShardNo> {
        (0..SHARDS as u8).map(ShardNo)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        let state = normal::form(self);
        (state.now, state.rows, state.shards, state.versions).hash(hasher);
        (state.lanes, state.batches, state.takes, state.beats).hash(hasher);
        (state.runners, state.left, state.wrong).hash(hasher);
    }
}

impl State {
    pub(crate) fn runner(&self, runner: RunnerNo) -> &Runner {
        &self.runners[runner.index()]
    }

    pub(crate) fn row(&self, runner: RunnerNo) -> Option<Row> {
        self.rows[runner.index()]
    }

    /// Whether the row of the runner has this epoch.
    pub(crate) fn fence_holds(&self, runner: RunnerNo, fence: u8) -> bool {
        self.row(runner).is_some_and(|row| row.epoch == fence)
    }

    /// Whether a transaction has begun that holds `KEY SHARE` on the row of this runner.
    pub(crate) fn is_shared(&self, runner: RunnerNo) -> bool {
        let take = self.takes[runner.index()].is_some_and(|take| take.begun);
        let mut batches = self.batches.iter();
        take || batches.any(|batch| batch.runner == runner && batch.begun)
    }

    pub(crate) fn holds_shards(&self, runner: RunnerNo) -> bool {
        let mut owners = self.shards.iter().flatten();
        owners.any(|owner| owner.runner == runner)
    }

    /// Whether the sender of this batch still waits for its answer. It does not after its connection
    /// was lost, nor for a copy that its settler has shut out.
    pub(crate) fn is_awaited(&self, batch: &Batch) -> bool {
        let lane = self.lanes[batch.runner.index()][batch.shard.index()];
        let busy = self.runner(batch.runner).busy[batch.shard.index()];
        let this = |busy: Busy| busy.number == batch.number && busy.fence == batch.fence;
        batch.lane == Some(lane.epoch) && busy.is_some_and(|busy| !busy.lost && this(busy))
    }

    pub(crate) fn add(&mut self, batch: Batch) {
        self.batches.push(batch);
        self.batches.sort_unstable();
    }

    pub(crate) fn remove(&mut self, batch: &Batch) {
        if let Some(place) = self.batches.iter().position(|other| other == batch) {
            self.batches.remove(place);
        }
    }
}

impl Runner {
    pub(crate) const NEW: Runner = Runner {
        process: Process::Runs,
        fence: None,
        valid_until: 0,
        owned: [false; SHARDS],
        reads: [None; SHARDS],
        held: [None; SHARDS],
        queued: [None; SHARDS],
        busy: [None; SHARDS],
    };

    pub(crate) fn runs(&self) -> bool {
        self.process == Process::Runs
    }

    /// Its memory is there, whether or not it runs just now.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.process, Process::Runs | Process::Paused)
    }

    /// It has learnt that another has taken over: everything is dropped from memory. What is on its
    /// way, into memory or out of it, is not.
    pub(crate) fn lose(&mut self) {
        self.fence = None;
        self.valid_until = 0;
        ShardNo::all().for_each(|shard| self.let_go(shard));
    }

    /// The shard is no longer its own.
    pub(crate) fn let_go(&mut self, shard: ShardNo) {
        self.owned[shard.index()] = false;
        self.held[shard.index()] = None;
        if let Some(read) = &mut self.reads[shard.index()] {
            read.current = false;
        }
    }
}

impl fmt::Display for RunnerNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runner {}", char::from(b'A' + self.0))
    }
}

impl fmt::Display for ShardNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runner, fence, shard) = (self.runner, self.fence, self.shard);
        match self.kind {
            Kind::Commit => write!(f, "the commit to {shard} (from version {})", self.base)?,
            Kind::Release => write!(f, "the release of {shard}")?,
        }
        write!(f, " by {runner} with epoch {fence}")
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wrong::NotOwner => "it was accepted, and its runner does not hold the shard",
            Wrong::OldState => "it was accepted, and was made from an older state than is stored",
            Wrong::Twice => "it was applied a second time",
            Wrong::SentTooLate => "it was sent after the takeover by a runner that fences itself",
        })
    }
}

/// What is stored, in a line: what a reader of a trace needs to follow it.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "time {}", self.now)?;
        for runner in RunnerNo::all() {
            if let Some(row) = self.row(runner) {
                let (epoch, until) = (row.epoch, row.lease_until);
                write!(f, "; {runner} epoch {epoch} until {until}")?;
            }
        }
        for shard in ShardNo::all() {
            write!(f, "; {shard} version {}", self.versions[shard.index()])?;
            match self.shards[shard.index()] {
                Some(owner) => write!(f, " of {}", owner.runner)?,
                None => write!(f, " free")?,
            }
        }
        match self.wrong {
            Some(wrong) => write!(f, "; {wrong}"),
            None => Ok(()),
        }
    }
}
