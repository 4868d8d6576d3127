//! A commit: one run's atomic change, and the other writes that share its transaction.
//!
//! On the path of a step, [`crate::run`] turns what changed into a [`Commit`], the committer
//! gathers the commits of many runs into one [`Batch`], and [`crate::store`] makes that durable in
//! one transaction with one sync. [`RunRow`] and [`LoadedRun`] are the same run as a store reads it.
//!
//! Always true:
//! - A write that is refused changes nothing, and the rest of its batch stands.
//! - Conditions are checked against the state before the batch. Within a batch there is at most
//!   one [`Commit`] per run.
//! - Deliveries are applied after all commits of the batch, in the order of the batch.

use std::sync::Arc;

use uuid::Uuid;

mod events;

pub use events::*;
mod queues;

pub use queues::*;
mod schedule;

pub use schedule::*;

use crate::{
    run_id::{RunId, RunNo},
    time::Timestamp,
};

pub(crate) mod answer;
mod control;
mod mend;
mod row;
mod transaction;

pub use crate::location::KeyRange;
pub use control::{ControlRefusal, Delete, Deleted, Fork, Tagging};
pub use mend::{Cell, Mend};
pub use row::{CancelRequest, LoadedRun, RunRow};
#[cfg(feature = "postgres")]
pub(crate) use transaction::PostgresBody;
#[cfg(feature = "sqlite")]
pub(crate) use transaction::SqliteBody;
pub use transaction::Transaction;
#[cfg(feature = "sqlite")]
pub use transaction::Tx;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use transaction::{TransactionBody, TransactionLimits};

/// Many writes that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Who writes. Without it, or when it no longer holds, every [`Write::Commit`] is refused
    /// with [`Refusal::Fenced`] and nothing can be claimed; the other writes stand.
    pub fence: Option<Fence>,
    /// The time of the batch.
    pub now: Timestamp,
    /// The writes, in order.
    pub writes: Vec<Write>,
}

impl Batch {
    /// The commits, in order.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn commits(&self) -> impl Iterator<Item = &Commit> {
        self.writes.iter().filter_map(Write::as_commit)
    }
}

/// The right of a runner to write, checked in the transaction that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The runner.
    pub runner: Uuid,
    /// Its incarnation: raised by whoever takes its shards away.
    pub epoch: u64,
}

/// One write of a batch; its answer is the [`Outcome`] at the same place.
#[derive(Clone, Debug)]
pub enum Write {
    /// A new run. Answered by [`Outcome::Started`].
    Start(Box<NewRun>),
    /// A message to a run. Answered by [`Outcome::Delivered`].
    Deliver(Box<Delivery>),
    /// Cancel, pause or resume a run. Answered by [`Outcome::Controlled`].
    Control(Target, Control),
    /// Makes a finished run live again with another history. Answered by [`Outcome::Committed`].
    Reopen(Box<Reopen>),
    /// A value for a deferred of a run. Answered by [`Outcome::Settled`].
    Resolve(Box<Resolution>),
    /// What the owner of a run has to say. Answered by [`Outcome::Committed`].
    Commit(Box<Commit>),
    /// Something about the items of a queue. Answered by [`Outcome::Queue`].
    Queue(Box<QueueWrite>),
    /// An event. Answered by [`Outcome::Published`].
    Publish(Box<Publication>),
    /// Tells the next page of waiters of an event, and removes events whose time is over.
    /// Answered by [`Outcome::Tended`].
    TendEvents {
        /// How many waiters are told, and events removed, at most.
        limit: usize,
    },
    /// What is done with dead letters. Answered by [`Outcome::Letter`].
    Letter(Box<LetterWrite>),
    /// Removes up to this many entries of generations that are over. Answered by
    /// [`Outcome::Swept`].
    Sweep(u32),
    /// What a body gives out while it runs. Answered by [`Outcome::Emitted`]. Applied among the
    /// commits, in the order of the batch.
    Emit(Box<Emission>),
    /// Something about a schedule. Answered by [`Outcome::Scheduled`].
    Schedule(Box<ScheduleWrite>),
    /// A run from another store. Answered by [`Outcome::Imported`].
    Import(Box<ImportedRun>),
    /// Forgets a finished run. Answered by [`Outcome::Deleted`].
    Delete(Box<Delete>),
    /// Sets or removes a tag of a run. Answered by [`Outcome::Controlled`], or refused with
    /// [`Refusal::TagsFull`].
    Tag(Box<Tagging>),
    /// A new run that begins with a history. Answered as a [`Write::Start`] is.
    Fork(Box<Fork>),
    /// Moves a run to another pool. Answered by [`Outcome::Committed`], and by [`Notice::Due`] if
    /// it is due.
    HandOver(Box<HandOver>),
    /// Gives a run another home pool. Answered by [`Outcome::Controlled`].
    Rehome(Box<Rehome>),
    /// Mends something that was found in the facts of a store, if it is still so. In a batch of its
    /// own: what is damaged may not let itself be mended, and takes the batch down. Answered by
    /// [`Outcome::Mended`].
    Mend(Box<Mend>),
}

impl Write {
    /// The commit, if it is one.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn as_commit(&self) -> Option<&Commit> {
        match self {
            Write::Commit(commit) => Some(commit),
            _ => None,
        }
    }

    /// What a body gives out, if it is that.
    #[cfg(feature = "postgres")]
    pub(crate) fn as_emission(&self) -> Option<&Emission> {
        match self {
            Write::Emit(emission) => Some(emission),
            _ => None,
        }
    }
}

/// A run whose home is another pool from now on. Anybody may say so.
///
/// It stays in its shard: where it is, its owner finds that it does not belong there, and hands it
/// over ([`HandOver`]) once it is out of its memory. So nobody takes it up while another has it. A run
/// that sleeps is due at once, so that its owner looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehome {
    /// The run.
    pub target: Target,
    /// The name of the pool.
    pub pool: Arc<str>,
}

/// A run that its owner cannot run: it moves to the shard with the same index of another pool, and
/// keeps its home pool. The owner says so, under its fence, once the run is out of its memory.
///
/// What was `Running` is due at once; a run that waits for a time or a message goes on waiting.
/// Refused with [`Refusal::Fenced`] if the writer does not own the shard (any more), and with
/// [`Refusal::Gone`] if the run has ended or is in that pool already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The run.
    pub run: RunNo,
    /// The name of the pool.
    pub pool: Arc<str>,
}

/// A run from another store, with everything that belongs to it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedRun {
    /// The row. A run that was in its owner's memory is in nobody's now: it is due.
    pub row: RunRow,
    /// All entries of its generation.
    pub history: Vec<Put>,
    /// Its unread messages, in order.
    pub inbox: Vec<InboxRow>,
    /// The values that it has set for clients.
    pub state: Vec<(String, Vec<u8>)>,
}

/// What became of a run from another store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It is here, and due at this time if it is due at all.
    Done {
        /// When it is due.
        available_at: Option<Timestamp>,
    },
    /// There is a run with its id (or its number), which was not touched.
    IdTaken,
    /// There is a run of its workflow with its key.
    KeyTaken {
        /// Its number.
        run: RunNo,
    },
}

/// A run to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    /// Its id; its number, and which shard of its pool it belongs to, follow from it.
    pub id: RunId,
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The workflow's version.
    pub version: u32,
    /// Unique per workflow: a second start with it attaches to the first run.
    pub key: Option<String>,
    /// The pool whose runners may own it.
    pub pool: Arc<str>,
    /// When it may begin; the batch's time if absent.
    pub available_at: Option<Timestamp>,
    /// When it fails if it has not ended by then.
    pub deadline_at: Option<Timestamp>,
    /// What it can be found by.
    pub tags: Vec<(String, String)>,
    /// The trace that it belongs to: a W3C `traceparent`, and after a space its `tracestate` if there
    /// is one. A store keeps the text as it is.
    pub trace: Option<String>,
    /// The input, as a payload.
    pub input: Vec<u8>,
    /// The run that starts it, if one does.
    pub parent: Option<RunId>,
    /// Whether the writer, which owns the shard, takes it into memory at once: the row is then
    /// `Running` from the first moment. Not possible together with `available_at`.
    pub claim: bool,
}

/// Which run is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// By id.
    Id(RunId),
    /// By workflow and key.
    Key {
        /// The workflow's name.
        workflow: String,
        /// The key that the run was started with.
        key: String,
    },
}

/// A message to a run.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The run.
    pub target: Target,
    /// The name that the run listens by.
    pub name: String,
    /// The body, as a payload.
    pub body: Vec<u8>,
    /// A second delivery to the same run with an equal key is a no-op, also after the first was
    /// read.
    pub dedupe: Option<String>,
    /// Set if somebody waits for a reply: the id that the reply is filed under.
    pub request: Option<Uuid>,
    /// How many unread messages the run may have, this one included.
    pub inbox_max: u64,
    /// What becomes of it if the run has ended, or ends before it is read.
    pub on_end: OnEnd,
}

/// A value for a deferred of a run. The first counts.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The run.
    pub run: RunId,
    /// The generation that was meant; whichever it is now, if absent.
    pub generation: Option<u32>,
    /// Which deferred of the run.
    pub tag: [u8; 16],
    /// The answer for whoever waits.
    pub body: Vec<u8>,
}

/// What can be done to a run from outside, besides sending to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Asks for the end of the run. The owner carries it out.
    Cancel {
        /// Whether what it has done is compensated.
        rollback: bool,
    },
    /// The run is `Paused` from this moment on.
    Pause,
    /// A paused run becomes due again.
    Resume,
}

/// A finished run that becomes live again, and is due at once.
#[derive(Clone, Debug)]
pub struct Reopen {
    /// The run.
    pub run: RunNo,
    /// Refused unless the run has this status and has been tried this often.
    pub status: RunStatus,
    /// See `status`.
    pub attempts: u32,
    /// Entries to write.
    pub puts: Vec<Put>,
    /// Entries to remove, before `puts` are written.
    pub deletes: Vec<KeyRange>,
}

/// One run's atomic change, made by its owner.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The run.
    pub run: RunNo,
    /// The generation that the owner has in memory; refused if the row has another.
    pub generation: u32,
    /// Set when the commit is only right if no message has arrived that the owner has not seen:
    /// refused with [`Refusal::InboxMoved`] unless this is the row's `inbox_seq`.
    pub inbox_seq: Option<u64>,
    /// Whether the commit only records what has happened (finished bodies). Results are taken
    /// from an owner even after a cancel was requested or the run was paused; everything else is
    /// then refused. Whether the run is put away is in the answer: [`EffectDone::PutAway`].
    pub results_only: bool,
    /// The highest sequence number after this commit, and how many it brings.
    pub last_number: u64,
    /// How many numbers this commit brings: they are the ones up to and including `last_number`.
    pub numbers: u64,
    /// Ranges of entries to remove, before `puts` are written.
    pub deletes: Vec<KeyRange>,
    /// Entries to write.
    pub puts: Vec<Put>,
    /// Messages that were taken, by their place in the inbox. They are removed.
    pub consumed: Vec<u64>,
    /// Values for clients to read.
    pub state: Vec<(String, Vec<u8>)>,
    /// What it does to others.
    pub effects: Vec<Effect>,
    /// What becomes of the row.
    pub patch: Patch,
}

impl Commit {
    /// A commit that changes only the row, for a run that is not in memory. The row must have the
    /// highest number of the history, and often has a lower bound only: where the history was read, use
    /// [`run::commit_unloaded`](crate::run::commit_unloaded).
    pub(crate) fn of_row(row: &RunRow, patch: Patch) -> Commit {
        Commit {
            run: row.id.no(),
            generation: row.generation,
            inbox_seq: None,
            results_only: false,
            last_number: row.last_number,
            numbers: 0,
            deletes: Vec::new(),
            puts: Vec::new(),
            consumed: Vec::new(),
            state: Vec::new(),
            effects: Vec::new(),
            patch,
        }
    }
}

/// One entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// A packed key: a FoundationDB tuple.
    pub key: Vec<u8>,
    /// An encoded entry.
    pub value: Vec<u8>,
}

/// What a commit does to the row of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Nothing.
    Keep,
    /// The run is in memory and moving: `Running`, or `RollingBack` if its end is already known.
    /// It has made progress, so `recoveries` is set to 0. `available_at` is cleared if this is
    /// still the row's `inbox_seq`, otherwise it stays as it is.
    Run {
        /// The last message that the owner has seen.
        inbox_seq: u64,
    },
    /// The run waits: `Sleeping` (or `Pending`, if it is to be tried again as a whole). It has come
    /// to rest, so `recoveries` is set to 0.
    Park {
        /// `Sleeping` or `Pending`.
        status: RunStatus,
        /// When it is due again without anything from outside.
        available_at: Option<Timestamp>,
        /// What it waits for, in words.
        waiting: String,
        /// How often it has been tried as a whole.
        attempts: u32,
    },
    /// Its end is decided; compensations run first: `RollingBack`.
    RollBack {
        /// `Failed` or `Cancelled`.
        ending: RunStatus,
        /// The encoded failure, if there is one.
        error: Option<Vec<u8>>,
    },
    /// It cannot go on until something is mended: `Paused`.
    Pause {
        /// Why, in words.
        reason: String,
    },
    /// It begins anew under the same id: the next generation, with a fresh history. Unread
    /// messages, values for clients and its parent stay.
    Continue {
        /// The workflow that it is from now on.
        workflow: Arc<str>,
        /// Its version.
        version: u32,
        /// The pool whose runners may own it.
        pool: Arc<str>,
        /// The input, as a payload.
        input: Vec<u8>,
    },
    /// The end. Unread messages become dead letters, open requests are answered with an error,
    /// recorded values stay.
    Finish {
        /// `Completed`, `Failed` or `Cancelled`.
        status: RunStatus,
        /// The output, as a payload.
        output: Option<Vec<u8>>,
        /// The encoded failure.
        error: Option<Vec<u8>>,
    },
}

/// What a commit does to others. An effect never refuses its commit.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A message to another run. What became of it is written into the sender's history.
    Send {
        /// The message.
        delivery: Delivery,
        /// Where: an entry of this run that is written with one byte appended to `receipt`, the
        /// [`Receipt::code`] of what became of the message.
        key: Vec<u8>,
        /// See `key`.
        receipt: Vec<u8>,
    },
    /// The answer to a request. The first answer wins.
    Reply {
        /// The request's id.
        request: Uuid,
        /// The answer, as a payload.
        body: Vec<u8>,
    },
    /// An event. What became of it is written into the publisher's history, as for a message.
    Publish {
        /// The event.
        publication: Box<Publication>,
        /// Where: see [`Effect::Send`].
        key: Vec<u8>,
        /// See `key`.
        receipt: Vec<u8>,
    },
    /// An operation of this run begins to wait for an event.
    Subscribe(Box<Subscription>),
    /// An operation of this run has taken the event that it was handed.
    Took {
        /// The key of the operation.
        key: Vec<u8>,
    },
    /// An operation of this run waits for a deferred, or looks at it. It is answered in its inbox.
    AwaitDeferred(DeferredWait),
    /// A run of its own, started on behalf of this one. Which one it is is written into this run's
    /// history.
    StartChild(Box<StartChild>),
    /// An operation of this run waits for the end of another.
    Watch {
        /// The run whose end is waited for.
        target: Target,
        /// The key of the operation.
        key: Vec<u8>,
        /// Its encoded entry, to which the store appends the id of the run and a byte that is 0.
        entry: Vec<u8>,
    },
    /// An item for a stream of this run, which clients follow.
    Emit(Box<Emit>),
    /// Writes of the workflow's own, made in the same transaction. What became of them is in the
    /// [`Transaction`] itself.
    Transaction(Transaction),
    /// A tag of the run itself is set, or removed. Left out if the run has too many.
    Tag {
        /// The name of the tag.
        name: String,
        /// What all tags of this name are replaced by; they are removed if absent.
        value: Option<String>,
    },
    /// An operation of this run wants to go on under a limit. It is answered at once or in its turn,
    /// by a row of the kind [`InboxKind::LimitGrant`].
    Acquire(Box<Acquire>),
    /// An operation of this run does not need its place under a limit any more. The next in line
    /// gets it.
    Release {
        /// The key of the operation.
        key: Vec<u8>,
    },
    /// An operation of this run does not wait any more: it lost a race, was dropped, or its time
    /// ran out. What it had registered is taken back, and what was delivered to it alone and not
    /// taken goes back to where it came from.
    Abandon {
        /// What it waited for.
        kind: InboxKind,
        /// The key of the operation.
        key: Vec<u8>,
    },
    /// An item for a queue.
    Enqueue {
        /// The item.
        item: NewItem,
        /// The key of the operation.
        key: Vec<u8>,
        /// Whether the operation waits for it.
        then: AfterEnqueue,
    },
}

/// What an operation that puts an item into a queue does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterEnqueue {
    /// It waits for the result.
    Wait {
        /// Whether the item stays when the operation is given up before anybody has claimed it.
        leave: bool,
    },
    /// It goes on: its entry is this, with the number of the item appended in 8 bytes, the lowest
    /// first.
    Record(Vec<u8>),
}

/// An operation that waits for a deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredWait {
    /// The key of the operation.
    pub key: Vec<u8>,
    /// Which deferred of the run.
    pub tag: [u8; 16],
    /// Whether it only looks: it is answered at once, value or not.
    pub looks: bool,
}

/// A wish to go on under a limit. Asking again for the same operation, while it has a place under
/// that limit or waits for one, changes nothing.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The name of the limit.
    pub limit: String,
    /// Which of its keys; each is limited on its own.
    pub limit_key: String,
    /// What it allows, as the code says now: it counts from here on.
    pub rule: LimitRule,
    /// Whether the operation has a place until it gives it back. Otherwise it takes only its turn
    /// by the rate.
    pub holds: bool,
    /// The key of the operation.
    pub key: Vec<u8>,
}

/// What a limit allows, for each of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitRule {
    /// How many at a time.
    pub concurrency: Option<u32>,
    /// How often.
    pub rate: Option<LimitRate>,
}

/// How often a limit lets somebody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRate {
    /// This many times ..
    pub count: u32,
    /// .. in this many milliseconds, over time.
    pub per_ms: u64,
    /// How many at once after a time without any.
    pub burst: u32,
}

/// A run that is started by another.
#[derive(Clone, Debug)]
pub struct StartChild {
    /// The run.
    pub new: NewRun,
    /// The key of the operation that starts it.
    pub key: Vec<u8>,
    /// The encoded entry of the operation, to which the store appends the child's id and a byte of
    /// flags: 1 if it was there already, 2 if that one has another input.
    pub entry: Vec<u8>,
    /// Whether the operation waits for its end. Otherwise its id is the answer.
    pub awaited: bool,
    /// What becomes of it when its parent ends or gives it up.
    pub close: Close,
}

listed! {
    /// What becomes of a child when its parent ends, or does not wait for it any more.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Close {
        /// Nothing.
        Leave = 0,
        /// It is cancelled.
        Cancel = 1,
    }
}

/// What a body gives out while it runs, from the owner of its run. Refused with
/// [`Refusal::Gone`] once the run has ended or is of another generation; a cancel or a pause does
/// not refuse it, as it does not refuse results.
#[derive(Clone, Debug)]
pub struct Emission {
    /// The run.
    pub run: RunNo,
    /// The generation that the owner has in memory.
    pub generation: u32,
    /// The items, in order.
    pub items: Vec<Emit>,
}

/// An item for a stream. The store gives it its position: 0, 1, 2, .. in each stream of a run, over
/// its whole life, never twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emit {
    /// The name of the stream.
    pub stream: String,
    /// The body that gave it; absent if the workflow's own code did.
    pub by: Option<EmittedBy>,
    /// The item, as a payload.
    pub body: Vec<u8>,
    /// How many items the stream keeps, this one included; the oldest are dropped.
    pub items_max: u64,
}

/// The body that gave an item of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EmittedBy {
    /// The packed key of the step.
    pub step: Vec<u8>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// In which life of the run in an owner's memory the body ran; no other has the same number. A
    /// body that runs again after a crash has the same attempt and another life.
    pub life: u64,
}

/// What a [`Store`](crate::store::Store) has made of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// One for each write, in order.
    pub outcomes: Vec<Outcome>,
    /// What has happened to others on the way, in order.
    pub notices: Vec<Notice>,
}

/// Something that a write has done to somebody who is not named in its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A row was put into the inbox of a run.
    Inbox {
        /// The run.
        run: RunId,
        /// The row.
        row: Box<InboxRow>,
    },
    /// A run was controlled.
    Control {
        /// The run.
        run: RunId,
        /// What was asked of it.
        control: Control,
    },
    /// A run was created on behalf of another run or of a schedule, and is now in the caller's
    /// hands, as it asked with [`NewRun::claim`]. Its id is the one that it was created with.
    Claimed(Box<NewRun>),
    /// A run was created, or became due.
    Due {
        /// The run.
        run: RunId,
        /// When it is due.
        at: Timestamp,
    },
    /// A queue has got an item, now or for later.
    Queue {
        /// The queue.
        queue: String,
    },
    /// An item has ended whose result can be asked for.
    ItemEnded {
        /// The item.
        item: ItemId,
        /// How, as an operation that waits for it is told.
        answer: Vec<u8>,
    },
}

/// What became of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The run that was created, or found.
    Started(Started),
    /// What became of a message.
    Delivered(Delivered),
    /// What became of a wish to control a run.
    Controlled(Controlled),
    /// What became of a value for a deferred.
    Settled(Settled),
    /// A commit or a reopening that was made. For each effect that has an answer, in order, what
    /// became of it; last, for a commit with [`Commit::results_only`], whether its run is put away.
    Committed(Vec<EffectDone>),
    /// Whether there is more to remove.
    Swept(bool),
    /// The items of a body are in their streams.
    Emitted,
    /// A commit, a reopening, a start, a tag or an emission that was not made.
    Refused(Refusal),
    /// What became of a write to a queue.
    Queue(QueueDone),
    /// What became of a write about a schedule.
    Scheduled(ScheduleOutcome),
    /// What became of a run from another store.
    Imported(Imported),
    /// What became of a delete.
    Deleted(Deleted),
    /// What became of an event.
    Published(Published),
    /// What was done about events.
    Tended(Tended),
    /// What became of dead letters.
    Letter(LetterDone),
    /// How many rows were mended: none if it was no longer so.
    Mended(u64),
}

/// What became of an effect; or, as [`EffectDone::PutAway`], of the run itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectDone {
    /// Of [`Effect::Send`].
    Sent(Delivered),
    /// Of [`Effect::Enqueue`] that is not waited for.
    Enqueued(Enqueued),
    /// Of [`Effect::Publish`].
    Published(Published),
    /// Of an [`Effect::StartChild`] that is not awaited.
    Started(Started),
    /// Of a commit with [`Commit::results_only`]: its run is paused, and not to be cancelled, so
    /// no process has to take it up before it is resumed. Without this answer the run is live, and
    /// its owner reads it again.
    PutAway,
}

/// The run that a start created, or found under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The run.
    pub id: RunId,
    /// Whether it was there already.
    pub attached: bool,
    /// Whether the run that was there has another input. Not known, and `false`, once it has
    /// continued as a new generation.
    pub input_differs: bool,
    /// Whether the run is now in the caller's hands, as it asked with [`NewRun::claim`].
    pub claimed: bool,
    /// When it is due, if it is not claimed. Absent also when attached.
    pub available_at: Option<Timestamp>,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// What happened.
    pub receipt: Receipt,
    /// The run, if there is one.
    pub run: Option<RunId>,
    /// The place of the message in the run's inbox, if it has one.
    pub seq: Option<u64>,
}

listed! {
    /// How a delivery ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Receipt {
        /// It is in the inbox, and the run is due.
        Delivered = 0,
        /// An equal one was delivered before; nothing was done.
        Duplicate = 1,
        /// There is no such run.
        Unknown = 2,
        /// The run has ended; the message is a dead letter if it came from a workflow.
        Finished = 3,
        /// The inbox is full; likewise.
        Full = 4,
        /// The run has ended; the message is a dead letter, as its sender wished.
        DeadLettered = 5,
        /// The run has ended; the message was published as an event, as its sender wished.
        Published = 6,
    }
}

/// What became of a wish to control a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controlled {
    /// Done, and the run's owner has to know.
    Done {
        /// The run.
        run: RunId,
    },
    /// It was so already.
    Already {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
    },
    /// The run has ended.
    Finished {
        /// The run.
        run: RunId,
        /// How.
        status: RunStatus,
    },
    /// It cannot be done to the run as it is now.
    Refused {
        /// The run.
        run: RunId,
        /// Its status.
        status: RunStatus,
        /// Why.
        reason: ControlRefusal,
    },
    /// There is no such run.
    Unknown,
}

/// What became of a value for a deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is the first, and counts.
    First,
    /// There was one already; nothing was done.
    Already {
        /// Since when.
        at: Timestamp,
    },
    /// The run has ended, or is rolled back.
    Finished {
        /// How, or how far it is.
        status: RunStatus,
    },
    /// The run has gone on as another generation.
    OldGeneration {
        /// The one that it is now.
        current: u32,
    },
    /// There is no such run.
    Unknown,
}

/// Why a commit changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The writer does not hold the run's shard, or has lost all: another runner may own the run.
    Fenced,
    /// There is no such run, or it is of another generation, or it has ended.
    Gone,
    /// Something has arrived that the owner has not seen.
    InboxMoved {
        /// What of it is there. The rest was taken back: an answer to an operation that was given up.
        rows: Vec<InboxRow>,
        /// The `inbox_seq` of the row: everything up to it is seen with these rows.
        seq: u64,
    },
    /// A cancel was requested: only results are taken.
    CancelRequested {
        /// Whether what it has done is compensated.
        rollback: bool,
    },
    /// The run was paused from outside: only results are taken.
    Paused,
    /// The numbers do not follow the ones that are stored.
    Gap {
        /// The highest stored number.
        stored: u64,
    },
    /// The run that was started with this key has ended and was deleted, and the key is still
    /// kept, so that a start that comes late does not do everything once more.
    KeyUsed {
        /// The run that had it.
        run: RunId,
        /// When that was deleted.
        deleted_at: Timestamp,
        /// From when on the key can be used again.
        kept_until: Timestamp,
    },
    /// The run has as many tags as it may have.
    TagsFull {
        /// How many that is.
        limit: usize,
    },
}

/// What has come to a run from outside.
///
/// Everything that does is a row in its inbox, so there is one order of arrival, one way to make a
/// parked run due, and one condition under which a wait may run out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// Its place: 1, 2, 3, .. in order of delivery, over the whole life of the run.
    pub seq: u64,
    /// What it is.
    pub kind: InboxKind,
    /// The name that it was sent by; empty if it has none.
    pub name: String,
    /// A message's body, as a payload; otherwise the answer that `kind` says.
    pub body: Vec<u8>,
    /// The key of the operation that it is for. Absent for a message, which is for whoever listens.
    pub wait: Option<Vec<u8>>,
    /// Set if somebody waits for a reply.
    pub request: Option<Uuid>,
    /// When it was delivered.
    pub sent_at: Timestamp,
    /// The event that it becomes if the run ends before it is read; a dead letter if absent.
    pub on_end: Option<Box<Fallback>>,
}

impl InboxRow {
    /// Whether it says that its operation has been let in by a limit.
    pub(crate) fn is_grant(&self) -> bool {
        self.kind == InboxKind::LimitGrant
    }
}

listed! {
    /// What a row of an inbox is. The codes are stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum InboxKind {
        /// A message, for whoever listens to its name.
        Message = 0,
        /// A published event, for one operation that waits for it.
        Event = 1,
        /// The value of a deferred.
        Deferred = 2,
        /// The end of another run.
        RunEnded = 3,
        /// What became of an item of a queue.
        QueueResult = 4,
        /// The right to go on under a limit.
        LimitGrant = 5,
    }
}

listed! {
    /// What a run is doing.
    ///
    /// `Pending` → `Running` ⇄ `Sleeping` → `Completed | Failed | Cancelled`, with `RollingBack` before
    /// the last two and `Paused` from any live state.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum RunStatus {
        /// Nobody has taken it up yet.
        Pending = 0 as "pending",
        /// It is in its owner's memory, and moving.
        Running = 1 as "running",
        /// It waits for a time or a message.
        Sleeping = 2 as "sleeping",
        /// Its end is decided; what it did is being compensated.
        RollingBack = 3 as "rolling_back",
        /// It cannot go on until somebody does something.
        Paused = 4 as "paused",
        /// It returned a value.
        Completed = 5 as "completed",
        /// It returned an error.
        Failed = 6 as "failed",
        /// It was cancelled.
        Cancelled = 7 as "cancelled",
    }
}

impl RunStatus {
    /// Whether it is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled)
    }
}

impl std::str::FromStr for RunStatus {
    type Err = ParseRunStatusError;

    fn from_str(text: &str) -> Result<RunStatus, ParseRunStatusError> {
        let found = RunStatus::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| ParseRunStatusError { text: text.to_owned() })
    }
}

/// A text that is not a status.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a status of a run; these are: pending, running, sleeping, rolling_back, \
         paused, completed, failed, cancelled"
)]
pub struct ParseRunStatusError {
    text: String,
}
