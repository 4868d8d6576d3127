//! The rows of events and of the operations that wait for them.

use super::{InboxTables, Of, Waiter};
use crate::{commit::Deliver, run_id::RunNo, time::Timestamp};

/// The row of an event name: counters over all events of the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventName {
    /// The sequence number of the last event.
    pub last_seq: u64,
    /// The number of the last waiter.
    pub last_waiter: u64,
    /// How many stored events take up room: all broadcasts, and the events for [one](Deliver::One) that
    /// no waiter was given. The rules compare it with the limit of a publication.
    pub kept: u64,
    /// How many events were dropped to make room for others.
    pub dropped: u64,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The sequence number within the name.
    pub seq: u64,
    /// The key that waiters can ask for.
    pub key: Option<String>,
    /// The encoded body.
    pub body: Vec<u8>,
    /// The time of publication.
    pub published_at: Timestamp,
    /// The time until which the event is kept.
    pub expires_at: Timestamp,
    /// To whom the event goes.
    pub deliver: Deliver,
    /// The number of the waiter that was given the event, if it is for [one](Deliver::One).
    pub given_to: Option<u64>,
    /// The number of the last waiter that was told of a broadcast, as long as there may be more.
    pub told: Option<u64>,
}

/// An operation that waits for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventWaiter {
    /// The name of the event.
    pub name: String,
    /// The number of the waiter within the name, in the order of registration.
    pub no: u64,
    /// The key that an event must have; any event will do without it.
    pub matching: Option<String>,
    /// The operation.
    pub waiter: Waiter,
    /// Broadcasts up to this sequence number are not for the waiter.
    pub after: u64,
    /// Events for one up to this sequence number are not for the waiter.
    pub floor: u64,
    /// The sequence number of the event that the waiter was given.
    pub given: Option<u64>,
}

/// The rows of events and of the operations that wait for them.
///
/// The rules read the row of a name first. A store with several writers locks the name then, and has
/// it locked whenever any other row of the name is written.
pub trait EventTables: InboxTables {
    /// The row of a name, locked, also if there is no row.
    fn event_name(&mut self, name: &str) -> Result<Option<EventName>, Self::Error>;

    /// Writes the row of a name, or makes it.
    fn write_event_name(&mut self, name: &str, row: &EventName) -> Result<(), Self::Error>;

    /// Inserts an event. Its sequence number is new.
    fn insert_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Self::Error>;

    /// Writes `given_to` and `told` of an event.
    fn write_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Self::Error>;

    /// Removes an event.
    fn delete_event(&mut self, name: &str, seq: u64) -> Result<(), Self::Error>;

    /// An event by its sequence number.
    fn stored_event(&mut self, name: &str, seq: u64) -> Result<Option<StoredEvent>, Self::Error>;

    /// The first event after `after` of this delivery, with this key if there is one, that has not
    /// expired and is given to no waiter.
    fn first_event(
        &mut self,
        name: &str,
        matching: Option<&str>,
        deliver: Deliver,
        after: u64,
    ) -> Result<Option<StoredEvent>, Self::Error>;

    /// The sequence number of the last event that was published before this time; 0 if none is
    /// stored.
    fn last_event_before(&mut self, name: &str, at: Timestamp) -> Result<u64, Self::Error>;

    /// The first event that is given to no waiter and not being told.
    fn oldest_kept(&mut self, name: &str) -> Result<Option<StoredEvent>, Self::Error>;

    /// Names and sequence numbers of events that have expired, are given to no waiter and are not
    /// being told: by expiry, name and sequence number, at most `limit`. The names are locked; events
    /// of names that cannot be locked at once may be left out.
    fn expired_events(&mut self, limit: usize) -> Result<Vec<(String, u64)>, Self::Error>;

    /// The first broadcast that is being told (`told` is set), of this name or of any, by name and
    /// sequence number. Its name is locked.
    fn spreading(&mut self, name: Option<&str>) -> Result<Option<(String, u64)>, Self::Error>;

    /// Inserts a waiter. Its number is new.
    fn insert_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Self::Error>;

    /// Writes the sequence number of the event that a waiter is given.
    fn write_given(&mut self, waiter: &EventWaiter, seq: u64) -> Result<(), Self::Error>;

    /// Removes a waiter.
    fn delete_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Self::Error>;

    /// Waiters of a name with exactly this `matching` that were given nothing, after this number, in
    /// order, at most `limit`.
    fn waiters(
        &mut self,
        name: &str,
        matching: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventWaiter>, Self::Error>;

    /// The waiters of one operation (there is one at most) or of a run, by generation and key. The
    /// names of those that were given nothing are locked.
    fn waiters_of(&mut self, of: Of<'_>) -> Result<Vec<EventWaiter>, Self::Error>;

    /// The cursor of a run: the sequence number of the last broadcast of this name that it has taken
    /// with this `matching`; 0 if none.
    fn cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
    ) -> Result<u64, Self::Error>;

    /// Writes a cursor of a run.
    fn write_cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
        seq: u64,
    ) -> Result<(), Self::Error>;

    /// Removes all cursors of a run.
    fn delete_cursors(&mut self, run: RunNo) -> Result<(), Self::Error>;

    /// Notes that no second event with this dedupe key is published until this time. `false` if there
    /// is a note whose time is after now, and then nothing is written.
    fn note_event_dedupe_if_free(
        &mut self,
        name: &str,
        key: &str,
        until: Timestamp,
    ) -> Result<bool, Self::Error>;

    /// Removes dedupe keys whose time is over, of any name, at most `limit`; how many.
    fn delete_event_dedupes(&mut self, limit: usize) -> Result<usize, Self::Error>;
}
