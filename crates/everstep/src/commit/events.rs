//! What the engine and a store say to each other about events and dead letters.

use std::time::Duration;

use super::{Delivered, RunStatus, Target};
use crate::{run_id::RunId, run_id::RunNo, time::Timestamp};

/// Who gets an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deliver {
    /// Everybody who waits for it; and, while it is kept, everybody who waits later.
    #[default]
    Broadcast,
    /// The one who has waited longest; without anybody, the first to come.
    One,
}

/// An event to be published.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// Who waits for this key, or for none, gets it.
    pub key: Option<String>,
    /// The body, as a payload.
    pub body: Vec<u8>,
    /// Who gets it.
    pub deliver: Deliver,
    /// How long it is kept for those who wait later.
    pub retain: Duration,
    /// How many events of this name are kept; then the oldest is dropped.
    pub max_pending: u64,
    /// A second event of the same name with an equal key is not published, as long as the first
    /// would be kept.
    pub dedupe: Option<String>,
}

/// What became of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Its place among the events of its name; none if it is a duplicate.
    pub seq: Option<u64>,
    /// How many were told in the transaction that published it.
    pub told: u64,
    /// Whether more are told after it, page by page.
    pub spreading: bool,
    /// Whether it is kept for those who wait later.
    pub kept: bool,
    /// How many older events were dropped to make room for it.
    pub dropped: u64,
}

/// An operation begins to wait for an event.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The name of the event.
    pub name: String,
    /// Only events with this key; all if absent.
    pub matching: Option<String>,
    /// Which events from before the wait count.
    pub since: SeenSince,
    /// The key of the operation.
    pub key: Vec<u8>,
}

/// Which events from before a wait count for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenSince {
    /// All that are kept, and that the run has not seen.
    Any,
    /// Of those, the ones that were published at or after this instant.
    At(Timestamp),
    /// None.
    Wait,
}

/// What becomes of a message to a run that has ended, and of one that is unread when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnEnd {
    /// The sender is told so; what is unread becomes a dead letter.
    #[default]
    Error,
    /// A dead letter.
    DeadLetter,
    /// An event.
    Publish(Box<Fallback>),
}

/// The event that a message becomes which no run will read: a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The name of the event.
    pub event: String,
    /// How long it is kept.
    pub retain: Duration,
    /// How many events of this name are kept.
    pub max_pending: u64,
}

impl Fallback {
    /// The event that a message with this body becomes.
    pub(crate) fn publication(&self, body: Vec<u8>) -> Publication {
        Publication {
            name: self.event.clone(),
            key: None,
            body,
            deliver: Deliver::Broadcast,
            retain: self.retain,
            max_pending: self.max_pending,
            dedupe: None,
        }
    }
}

/// What is done with dead letters.
#[derive(Clone, Debug)]
pub enum LetterWrite {
    /// Delivers one as if it were sent now. If it is taken, it is a dead letter no more.
    Replay {
        /// Its number.
        no: u64,
        /// Where it goes.
        to: ReplayTo,
        /// How many unread messages a run may have, this one included.
        inbox_max: u64,
    },
    /// Removes these.
    Drop(Vec<u64>),
}

/// Where a dead letter goes that is replayed.
#[derive(Clone, Debug)]
pub enum ReplayTo {
    /// To the run that it was sent to.
    Same,
    /// To this run.
    Run(Target),
    /// To whoever waits for this event.
    Event(Box<Fallback>),
}

/// What became of dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterDone {
    /// Of a replay to a run. The letter is still there unless the receipt is
    /// [`Receipt::Delivered`](super::Receipt::Delivered).
    Delivered(Delivered),
    /// Of a replay as an event.
    Published(Published),
    /// There is no letter of this number.
    Unknown,
    /// How many were removed.
    Dropped(u64),
}

/// What is left to do about events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    /// How many waiters were told, and events removed.
    pub done: u64,
    /// Whether there is more to do at once.
    pub more: bool,
}

/// The events of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// The name.
    pub name: String,
    /// How many were ever published.
    pub published: u64,
    /// How many are kept for those who wait later.
    pub kept: u64,
    /// How many were dropped because there were too many.
    pub dropped: u64,
    /// How many operations wait for one.
    pub waiting: u64,
}

/// A message that no run will read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number in the list, in order of arrival.
    pub no: u64,
    /// The run that it was sent to, if there was one.
    pub run: Option<RunNo>,
    /// The id of that run, if it is still there.
    pub run_id: Option<RunId>,
    /// What that run is now, if it is still there.
    pub status: Option<RunStatus>,
    /// Whom it was sent to, as the sender had it; absent if that was not recorded.
    pub target: Option<Target>,
    /// The name that it was sent by.
    pub name: String,
    /// The body, as a payload.
    pub body: Vec<u8>,
    /// Why it was not read, in words.
    pub reason: String,
    /// When it became a dead letter.
    pub at: Timestamp,
}

/// Which dead letters are meant. Everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Sent to this run.
    pub run: Option<RunNo>,
    /// Sent by this name.
    pub name: Option<String>,
}
