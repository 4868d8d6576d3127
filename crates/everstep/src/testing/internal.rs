//! What `everstep-conformance` and our own tests need of the library's inside. Not part of the
//! interface.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

#[cfg(feature = "postgres")]
use crate::store::PostgresStore;
#[cfg(feature = "sqlite")]
use crate::store::SqliteStore;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::store::StoreError;
use crate::{
    commit::{Commit, Patch, Transaction},
    error::{Error, Failure},
    history::{EntryStatus, EntryValue},
    run_id::RunId,
    store::{Put, RunRow},
    time::Timestamp,
};

/// How many runs one write tells of an event.
pub const EVENT_PAGE: usize = crate::store::rules::events::PAGE;

/// How many ticks a schedule keeps while its last run has not ended.
pub const SCHEDULE_QUEUE_MAX: usize = crate::schedule::QUEUE_MAX;

/// A number that depends on every bit of another.
pub fn mix(number: u64) -> u64 {
    crate::random::mix(number)
}

/// A number that depends on every bit of these bytes.
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    crate::random::hash(seed, bytes)
}

/// Ids of runs, as an engine makes them.
pub struct RunIds(crate::run_id::RunIds);

impl RunIds {
    /// Always the same ones for a seed.
    pub fn new(seed: u64) -> RunIds {
        RunIds(crate::run_id::RunIds::new(seed))
    }

    /// An id that was not given before.
    pub fn next(&self, now: Timestamp) -> RunId {
        self.0.next(now)
    }
}

/// The answer with this value that an operation finds in the inbox.
pub fn answer_with_value(payload: &[u8]) -> Vec<u8> {
    crate::commit::answer::value(payload)
}

/// The answer with this failure.
pub fn answer_with_failure(encoded: &[u8]) -> Vec<u8> {
    crate::commit::answer::failure(encoded)
}

/// The answer that what was waited for is cancelled.
pub fn answer_of_cancelled() -> Vec<u8> {
    crate::commit::answer::cancelled()
}

/// The instant of a turn under a rate; `None` if these bytes are none.
pub fn decode_turn(bytes: &[u8]) -> Option<Timestamp> {
    crate::commit::answer::decode_turn(bytes).ok()
}

/// A commit that changes only the row of a run that nobody has in memory.
pub fn commit_of_row(row: &RunRow, patch: Patch) -> Commit {
    Commit::of_row(row, patch)
}

/// A failure that is stored; `None` if these bytes are none.
pub fn decode_failure(bytes: &[u8]) -> Option<Failure> {
    crate::error::decode_failure(bytes).ok()
}

/// The payload of an entry that is stored; `None` if it has none.
pub fn payload_of_entry(bytes: &[u8]) -> Option<Vec<u8>> {
    match crate::history::decode_entry(bytes).ok()?.value {
        EntryValue::Payload(payload) => Some(payload),
        _ => None,
    }
}

/// The text that is the whole of a payload; `None` if it is none.
pub fn decode_text(payload: &[u8]) -> Option<String> {
    crate::codec::payload::from_slice(payload).ok()
}

/// The location of the operation with this key, for people.
pub fn location_of(key: &[u8]) -> String {
    crate::location::keys::describe(key)
}

/// Whether this is the entry of an operation at this location, and says that it has completed.
pub fn is_completed_at(put: &Put, location: &str) -> bool {
    location_of(&put.key) == location
        && crate::history::decode_entry(&put.value)
            .is_ok_and(|entry| entry.status == EntryStatus::Completed)
}

/// The location of the operation that this entry says to have run out of time, and whether the code has
/// taken that; `None` if it says something else. An entry that a retry sets aside is a copy: its operation
/// ran out of time in an earlier attempt of the run.
pub fn timed_out_at(put: &Put) -> Option<(String, bool)> {
    if put.key.starts_with(crate::location::keys::SET_ASIDE) {
        return None;
    }
    let entry = crate::history::decode_entry(&put.value).ok()?;
    let is_over = entry.status == EntryStatus::TimedOut;
    is_over.then(|| (crate::location::keys::describe(&put.key), entry.number.is_some()))
}

/// A transaction of a workflow, at the key `pay`, that counts how often it was run.
pub struct CountedTransaction {
    transaction: Transaction,
    calls: Arc<AtomicU32>,
}

impl CountedTransaction {
    /// One for every kind of store that has transactions of workflows.
    pub fn for_each_store(answer: fn() -> Result<Vec<u8>, Error>) -> Vec<CountedTransaction> {
        // Without a store that has them there are none.
        _ = answer;
        vec![
            #[cfg(feature = "sqlite")]
            CountedTransaction::new(answer, |run| {
                crate::commit::TransactionBody::Sqlite(Arc::new(move |_| run()))
            }),
            #[cfg(feature = "postgres")]
            CountedTransaction::new(answer, |run| {
                crate::commit::TransactionBody::Postgres(Arc::new(move |_| {
                    Box::pin(std::future::ready(run()))
                }))
            }),
        ]
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn new(
        answer: fn() -> Result<Vec<u8>, Error>,
        body: impl FnOnce(
            Box<dyn Fn() -> Result<Vec<u8>, Error> + Send + Sync>,
        ) -> crate::commit::TransactionBody,
    ) -> CountedTransaction {
        use std::time::Duration;

        use crate::{
            commit::TransactionLimits,
            history::{Entry, EntryKind, EntryStatus},
        };

        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let body = body(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            answer()
        }));
        let at = Timestamp::from_millis(1_800_000_000_000);
        let entry = Entry {
            kind: EntryKind::Transaction,
            status: EntryStatus::Completed,
            number: None,
            born: 0,
            compensable: false,
            attempts: 1,
            deaths: 0,
            created_at: at,
            started_at: None,
            completed_at: Some(at),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(Vec::new()),
        };
        let limits =
            TransactionLimits { body: Duration::from_secs(60), batch: Duration::from_secs(60) };
        let (key, prefix) = (b"pay".to_vec(), crate::history::encode_payload_prefix(&entry));
        let transaction = Transaction::new(key, prefix, "pay".to_owned(), body, limits);
        CountedTransaction { transaction, calls }
    }

    /// As a commit has it.
    pub fn transaction(&self) -> Transaction {
        self.transaction.clone()
    }

    /// How it has ended; `None` if the store had no time for it.
    pub fn take_answer(&self) -> Option<Result<Vec<u8>, Error>> {
        self.transaction.take_answer()
    }

    /// How often it was run.
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// A new file whose writer does not wait for the disk.
///
/// # Errors
///
/// As [`SqliteStore::create`].
#[cfg(feature = "sqlite")]
pub fn unsynced_sqlite(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::create_unsynced(path)
}

/// An empty store in a schema of this database that no other test has, until it is dropped. Its
/// leases go by the caller's clock.
///
/// # Errors
///
/// As [`PostgresStore::open`].
#[cfg(feature = "postgres")]
pub fn lent_postgres(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::lent(url)
}

/// As [`lent_postgres`], through a pooler of transactions before the same server.
///
/// # Errors
///
/// As [`PostgresStore::open`].
#[cfg(feature = "postgres")]
pub fn lent_through_pooler(url: &str, pooler: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::lent_through_pooler(url, pooler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::{Entry, EntryKind, EntryValue, encode_entry},
        location::keys,
        time::Timestamp,
    };

    /// A listen ran out of time, its run failed, and a message for it came before the run was retried. The
    /// retry sets the entry of the listen aside. The simulation took this copy for the end of a wait over
    /// a message that is there.
    #[test]
    fn an_entry_that_is_set_aside_is_no_new_timeout() {
        let entry = Entry {
            kind: EntryKind::Listen,
            status: EntryStatus::TimedOut,
            number: Some(1),
            born: 0,
            compensable: false,
            attempts: 0,
            deaths: 0,
            created_at: Timestamp::default(),
            started_at: None,
            completed_at: Some(Timestamp::default()),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::None,
        };
        let (key, value) = (vec![0x15, 2, 2, b'a', 0], encode_entry(&entry));
        let aside = keys::set_aside_key(2, &key);
        assert_eq!(timed_out_at(&Put { key, value: value.clone() }), Some(("a".to_owned(), true)));
        assert_eq!(timed_out_at(&Put { key: aside, value }), None);
    }
}
