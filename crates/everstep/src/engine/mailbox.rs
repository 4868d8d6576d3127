//! How others reach an engine thread: a list of events and a waker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use super::{
    activity::Activity,
    bodies::Bodies,
    committer::{Ack, Settled},
};
use crate::{
    commit::{Control, InboxRow, NewRun},
    history::OpId,
    run::wakers::WakeSink,
    run_id::RunNo,
    seam::{Channel, Leaf},
    store::{DueRun, LoadedRun, RunRow, ShardSet, StoreError},
    time::Timestamp,
};

/// Something that an engine thread must know.
pub(crate) enum Event {
    /// Answers to commits of its runs.
    Acks(Vec<Ack>),
    /// A run that was just created and is now in its hands.
    Started {
        new: Box<NewRun>,
        at: Timestamp,
        /// Of the lease that it was claimed under.
        epoch: u64,
    },
    /// A message was delivered to a run.
    Message(RunNo, Box<InboxRow>),
    /// A run was cancelled, paused or resumed.
    Control(RunNo, Control),
    /// Something happened to a run in another process.
    Look(RunNo),
    /// What was found by looking for this task: the row, and messages that were not seen.
    Looked { run: RunNo, token: u64, found: Option<Box<(RunRow, Vec<InboxRow>)>> },
    /// A body wants to be polled.
    Body { slot: u32, run: u64, op: OpId },
    /// Something that is not durable has woken a run.
    Foreign { slot: u32, run: u64 },
    /// Its timers are due.
    Timer,
    /// Runs that are due. `look`: also those that are in memory may have news.
    Due { runs: Vec<DueRun>, look: bool },
    /// Runs of shards that were just taken, which were in somebody's memory.
    Recovered(Vec<DueRun>),
    /// A run was read from the store, by the read with this number.
    Loaded { run: RunNo, ticket: u64, loaded: Result<Option<Box<LoadedRun>>, StoreError> },
    /// What became of a write about a run that is not in memory.
    Settled(RunNo, Settled),
    /// An item that a body of this run has emitted was not written, or may not have been: why.
    ItemLost { run: RunNo, error: Arc<StoreError> },
    /// Paused runs of shards that were just taken, which the code that is here may mend.
    Reconsider(Vec<RunNo>),
    /// One of them was read from the store.
    Reconsidered(RunNo, Result<Option<Box<LoadedRun>>, StoreError>),
    /// What holds these shards up: bodies that have been in flight for longer than this, and commits.
    /// Answered with both.
    HeldUp(ShardSet, Duration, Channel<(ShardSet, HeldUp)>),
    /// Shards are given up: their runs must leave memory.
    Release(Release),
    /// These shards stay after all.
    Keep(ShardSet),
    /// This run should leave memory. Answered with whether it has.
    Evict(RunNo, oneshot::Sender<bool>),
    /// This run should leave memory, at once or as soon as it waits. Answered with which, if somebody
    /// asks.
    MakeCold(RunNo, Option<oneshot::Sender<Leaves>>),
    /// This run has got another home pool.
    Rehomed(RunNo),
    /// How many runs are in memory.
    Census(oneshot::Sender<ThreadCensus>),
    /// Where a run is, in words.
    #[cfg(feature = "testing")]
    Whereabouts(crate::run_id::RunId, oneshot::Sender<String>),
    /// No body starts any more; answered when nothing is in flight.
    Drain(oneshot::Sender<()>),
    /// The shards were lost: what was read under a lease that is over is dropped, and nothing of it
    /// is written.
    Lost,
    /// The engine has stopped, or its shutdown waits no longer: everything is dropped.
    Forget,
    /// The lease is about to end: bodies in flight are dropped.
    StopBodies,
    /// A run that nobody could run was read: its row, with the highest number of its history, and
    /// whether that is empty.
    Unserved(Box<RunRow>, bool),
    /// A run that nobody could run could not be read.
    Unread(RunNo),
    /// Other runners are alive than before, or serve something else.
    Peers,
}

/// When a run leaves memory that was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// It has left.
    Now,
    /// When it next waits.
    Soon,
    /// It was not there.
    NotHere,
}

/// Shards whose runs must leave memory. Each is named once they have, with the number.
pub(crate) struct Release {
    pub(crate) shards: ShardSet,
    pub(crate) number: u64,
    /// Of the lease that gives them up: when it is over, nobody waits for that any more.
    pub(crate) epoch: u64,
    /// Bodies are dropped; otherwise they may end.
    pub(crate) forced: bool,
    pub(crate) told: Channel<(u64, ShardSet)>,
}

/// Shards that cannot be given back soon.
#[derive(Default)]
pub(crate) struct HeldUp {
    /// They have a long body.
    pub(crate) bodies: ShardSet,
    /// They have a commit that was in flight when they were last asked for.
    pub(crate) commits: ShardSet,
}

/// What an engine thread has in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadCensus {
    pub(crate) moving: usize,
    pub(crate) hot: usize,
    pub(crate) hot_bytes: usize,
}

/// The way to one engine thread.
pub(crate) struct Mailbox {
    events: Leaf<Vec<Event>>,
    waker: AtomicWaker,
    activity: Arc<Activity>,
    /// When its next timer is due, in milliseconds; `i64::MAX` for never.
    pub(crate) next_timer: AtomicI64,
    /// The number of the turn that it is in, odd while it works: for the watchdog.
    pub(crate) turn: AtomicU64,
    /// What it is polling: for the watchdog.
    pub(crate) polling: Leaf<Option<Polling>>,
    /// What it was polling when the watchdog found it blocked, and the number of that turn.
    pub(crate) blocked: Leaf<Option<(u64, Polling)>>,
    /// The bodies of its runs that can be told to stop.
    pub(crate) bodies: Bodies,
}

/// The run, and the body if there is one, that an engine thread is polling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Polling {
    pub(crate) run: crate::run_id::RunId,
    pub(crate) workflow: Arc<str>,
    pub(crate) step: Option<Vec<u8>>,
}

impl Mailbox {
    pub(crate) fn new(activity: Arc<Activity>) -> Arc<Mailbox> {
        Arc::new(Mailbox {
            events: Leaf::default(),
            waker: AtomicWaker::new(),
            activity,
            next_timer: AtomicI64::new(i64::MAX),
            turn: AtomicU64::new(0),
            polling: Leaf::default(),
            blocked: Leaf::default(),
            bodies: Bodies::default(),
        })
    }

    pub(crate) fn push(&self, event: Event) {
        self.activity.begin(1);
        self.events.lock().push(event);
        self.waker.wake();
    }

    pub(crate) fn push_all(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.activity.begin(events.len());
        self.events.lock().extend(events);
        self.waker.wake();
    }

    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// Takes all events. Each counts as activity until [`Mailbox::done`].
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock())
    }

    pub(crate) fn done(&self, events: usize) {
        self.activity.end(events);
    }

    /// Code of a user's is run from now on, or none any more.
    pub(crate) fn set_polling(&self, polling: Option<Polling>) {
        *self.polling.lock() = polling;
    }

    /// The run and the body that block it at this moment, if the watchdog has found that.
    pub(crate) fn blocked(&self) -> Option<Polling> {
        let blocked = self.blocked.lock();
        let (turn, blocked) = blocked.clone()?;
        let polling = self.polling.lock();
        let is_blocked = self.turn.load(Ordering::Acquire) == turn;
        (is_blocked && polling.as_ref() == Some(&blocked)).then_some(blocked)
    }

    pub(crate) fn set_next_timer(&self, at: Option<Timestamp>) {
        let at = at.map_or(i64::MAX, Timestamp::as_millis);
        self.next_timer.store(at, Ordering::Release);
    }
}

impl WakeSink for Mailbox {
    fn body_woken(&self, slot: u32, run: u64, op: OpId) {
        self.push(Event::Body { slot, run, op });
    }

    fn foreign_wake(&self, slot: u32, run: u64) {
        self.push(Event::Foreign { slot, run });
    }
}
