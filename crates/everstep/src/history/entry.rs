//! An entry: what is known about one operation of a run.
//!
//! Always true:
//! - Completion is a status, never "there is a value": a step may return `()`.
//! - An entry in a terminal status changes in one way only: it gets its number when the workflow
//!   takes it.

use crate::{
    commit::{InboxKind, ItemId},
    error::Failure,
    run_id::RunId,
    time::Timestamp,
};

/// What is known about one operation of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// What kind of operation it is.
    pub kind: EntryKind,
    /// How far it is.
    pub status: EntryStatus,
    /// The place of its completion in the order of the run; given when the workflow takes it.
    pub number: Option<u64>,
    /// The highest number that was taken when the operation was made.
    pub born: u64,
    /// Whether it has a rollback that must be found again before it can be left behind.
    pub compensable: bool,
    /// How many attempts were made, the first included.
    pub attempts: u32,
    /// How often the owner died while this body was recorded as the one that runs.
    pub deaths: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its (last) body began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// When it goes on by itself: the end of a sleep, the deadline of a wait, the next attempt.
    pub wake_at: Option<Timestamp>,
    /// The errors of the last failed attempts, oldest first, at most [`ERRORS_KEPT`].
    pub errors: Vec<AttemptError>,
    /// The result.
    pub value: EntryValue,
}

impl Entry {
    /// The operation has ended with this value.
    pub(crate) fn complete(&mut self, now: Timestamp, value: EntryValue) {
        self.status = EntryStatus::Completed;
        self.completed_at = Some(now);
        self.wake_at = None;
        self.value = value;
    }
}

/// How many errors of failed attempts an entry keeps.
pub(crate) const ERRORS_KEPT: usize = 10;

listed! {
    /// What kind of operation an entry belongs to. The codes are stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum EntryKind {
        /// `ctx.step`
        Step = 0,
        /// `ctx.sleep`
        Sleep = 1,
        /// `ctx.listen`, `ctx.receive`
        Listen = 2,
        /// `ctx.join`
        Join = 3,
        /// `ctx.map`
        Map = 4,
        /// `ctx.race`
        Race = 5,
        /// `ctx.attempt`
        Attempt = 6,
        /// `ctx.repeat`
        Repeat = 7,
        /// The start of an iteration of `ctx.repeat`; its value is the state.
        Iteration = 8,
        /// `ctx.scope`
        Scope = 9,
        /// `ctx.version`
        Version = 10,
        /// `ctx.removed`
        Removed = 11,
        /// `ctx.send`
        Send = 12,
        /// The compensation of a step.
        Rollback = 13,
        /// `ctx.event`
        Event = 14,
        /// `ctx.publish`
        Publish = 15,
        /// `ctx.deferred`
        Deferred = 16,
        /// A look at a deferred, without a wait.
        Peek = 17,
        /// `ctx.child`
        Child = 18,
        /// `ctx.finished`
        Finished = 19,
        /// `ctx.enqueue`
        Enqueue = 20,
        /// The wait for a limit.
        Limit = 21,
        /// `ctx.transaction`
        Transaction = 22,
        /// `ctx.continue_as`. Never stored: what comes after it has a history of its own.
        Continue = 23,
    }
}

impl EntryKind {
    /// Whether an operation of this kind ends without a number: the code goes on with that of something
    /// below it, or at once.
    pub(crate) const fn is_structure(self) -> bool {
        matches!(
            self,
            EntryKind::Join
                | EntryKind::Map
                | EntryKind::Race
                | EntryKind::Attempt
                | EntryKind::Repeat
                | EntryKind::Version
        )
    }

    /// What an operation of this kind waits for, if it registers with the store and is then handed
    /// an answer.
    pub(crate) const fn answered_by(self) -> Option<InboxKind> {
        match self {
            EntryKind::Event => Some(InboxKind::Event),
            EntryKind::Deferred | EntryKind::Peek => Some(InboxKind::Deferred),
            EntryKind::Child | EntryKind::Finished => Some(InboxKind::RunEnded),
            EntryKind::Enqueue => Some(InboxKind::QueueResult),
            EntryKind::Limit => Some(InboxKind::LimitGrant),
            EntryKind::Step
            | EntryKind::Sleep
            | EntryKind::Listen
            | EntryKind::Join
            | EntryKind::Map
            | EntryKind::Race
            | EntryKind::Attempt
            | EntryKind::Repeat
            | EntryKind::Iteration
            | EntryKind::Scope
            | EntryKind::Version
            | EntryKind::Removed
            | EntryKind::Send
            | EntryKind::Rollback
            | EntryKind::Publish
            | EntryKind::Transaction
            | EntryKind::Continue => None,
        }
    }
}

listed! {
    /// How far an operation is. The codes are stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum EntryStatus {
        /// A body runs, or the operation only gives structure to others.
        Running = 0,
        /// It waits for a time, a message, or its next attempt.
        Waiting = 1,
        /// It gave a value.
        Completed = 2,
        /// It failed with an error that is not tried again.
        Failed = 3,
        /// All its attempts failed.
        Exhausted = 4,
        /// Its time ran out.
        TimedOut = 5,
        /// It was given up.
        Cancelled = 6,
    }
}

impl EntryStatus {
    /// Whether it is final.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, EntryStatus::Running | EntryStatus::Waiting)
    }
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EntryValue {
    /// None yet, or none at all.
    None,
    /// A payload (CBOR).
    Payload(Vec<u8>),
    /// Why it failed for good.
    Failure(Box<Failure>),
    /// Messages that were taken.
    Messages(Vec<TakenMessage>),
    /// The version that a gate gave.
    Version(u32),
    /// What became of a message that was sent: the code of a [`crate::store::Receipt`]. Always
    /// the last byte of the encoded entry, since the store fills it in.
    Receipt(u8),
    /// The answer that an operation waited for, as its kind has it.
    Answer(Vec<u8>),
    /// The run that was started, with flags. Always the last 17 bytes of the encoded entry, since
    /// the store fills them in.
    Started(RunId, u8),
    /// The item that was put into a queue. Always the last 8 bytes of the encoded entry, since the
    /// store fills them in.
    Item(ItemId),
}

/// A message that was taken from the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenMessage {
    /// Its place in the inbox.
    pub seq: u64,
    /// The name that it was sent by.
    pub name: String,
    /// The body (CBOR).
    pub body: Vec<u8>,
    /// The id under which a reply is filed, if one is wanted.
    pub request: Option<uuid::Uuid>,
    /// When it was delivered.
    pub sent_at: Timestamp,
}

/// Why one attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptError {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When it failed.
    pub at: Timestamp,
    /// Why.
    pub message: String,
}
