//! The client: everything that can be done to runs from outside.
//!
//! A client in the process of an engine shares its committer, so that starts and messages travel
//! in the same batches as the engine's own commits, and is told of ends without asking. A client
//! without an engine ([`Client::open`]) has a committer of its own, tells the owners what it has
//! done, and asks the store for what it waits for: one query per round, however many wait.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use crate::{
    codec::{
        hook::{Codec, Codecs},
        payload,
    },
    commit::Target,
    engine::{self, Poller, Reader, Shared},
    name::{NameError, check_name},
    registry::Registry,
    run_id::RunId,
    seam,
    settings::Settings,
    store::{Store, StoreError},
    telemetry::EngineMonitor,
    time::{Clock, SystemClock},
};

/// A builder that is awaited: this method does what the builder was told.
macro_rules! awaited {
    ([$($bounds:tt)*] $builder:ty, $method:ident => $output:ty) => {
        impl<$($bounds)*> std::future::IntoFuture for $builder {
            type Output = $output;
            type IntoFuture = $crate::client::Boxed<'static, $output>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.$method())
            }
        }
    };
}

mod audit;
#[cfg(feature = "sqlite")]
mod backup;
mod bulk;
mod children;
mod cluster;
mod deferred;
mod delete;
mod doctor;
mod error;
mod events;
mod fork;
mod handle;
mod history;
mod inbox;
mod letters;
mod limits;
mod list;
mod of_engine;
mod overview;
mod placing;
mod queues;
mod retry;
mod schedules;
mod send;
mod short_id;
mod start;
mod stream;
mod tag;
mod tokens;
pub(crate) mod transfer;
mod view;
mod why;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod within;
mod write;

pub use audit::{Audit, AuditEntry, AuditNew, AuditPage};
#[cfg(feature = "sqlite")]
pub use backup::{BackedUp, Backup, BackupError, BackupProgress, Restore, restore};
pub use bulk::{Bulk, BulkError, BulkReport};
pub use children::Children;
pub use cluster::{Cluster, PoolInfo, RunnerInfo};
pub use deferred::{Resolved, Resolver, Settle};
pub use delete::DeleteRun;
pub use doctor::{Checked, Doctor, DoctorReport, Finding, RepairError, Repaired, Severity};
use error::unreadable;
pub use error::{ClientError, RunError};
pub use events::{PublishEvent, PublishedEvent};
pub use fork::ForkRun;
pub use handle::{Cancel, RunHandle};
pub use history::{HistoryPage, ReadHistory};
pub use inbox::UnreadMessage;
pub use letters::{
    DeadLetterInfo, DeadLetterPage, DeadLetters, ReplayLetter, Replayed, ReplayedAll,
};
pub use limits::LimitInfo;
pub use list::{Count, List};
pub use overview::{QueueInfo, StatsBucket, Tally};
pub use placing::{Evicted, Moved};
pub use queues::{EnqueueItem, ItemError, ItemHandle, ItemInfo, Worker};
pub use schedules::{
    Backfilled, Schedule, ScheduleHandle, ScheduleInfo, SchedulePage, Schedules, Triggered,
};
pub use send::{SendMessage, Sent};
pub use short_id::{ParseShortIdError, ShortId};
pub use start::Start;
pub use stream::{EmittedFrom, StateWatch, StreamInfo, StreamItem, StreamPage, StreamReader};
pub use tokens::{TokenInfo, TokenSecret, Tokens};
pub use view::{HistoryEntry, RunInfo, RunPage};
pub use why::{Because, WaitsFor, Why};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use within::InTransaction;

/// Starts runs and talks to them. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    reader: Arc<Reader>,
    codecs: Codecs,
    /// Ends the committer of a client without an engine, with the last clone.
    _own: Option<Arc<OwnCommitter>>,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long a client that ends waits for its wake-ups to be sent. A store takes about a second at most.
const WAKES_SENT: Duration = Duration::from_secs(5);

/// The committer of a client without an engine.
struct OwnCommitter(Arc<Shared>);

impl Drop for OwnCommitter {
    fn drop(&mut self) {
        self.0.begin_closing();
        self.0.queue.close();
        // The process may end now, and with it a wake-up that was not sent: `RunHandle::wake` does not
        // wait for its own.
        let is_sent = seam::Channel::default();
        let sent = is_sent.clone();
        self.0.store.after_wakes(Box::new(move || sent.send(())));
        _ = is_sent.receive(seam::now() + WAKES_SENT, "wake-ups of a client that ends");
    }
}

impl Client {
    pub(crate) fn of_engine(shared: Arc<Shared>, reader: Arc<Reader>) -> Client {
        Client { codecs: shared.settings.codecs.clone(), shared, reader, _own: None }
    }

    /// The engine that this client belongs to; none of a client that was opened by itself.
    pub fn engine(&self) -> Option<EngineMonitor> {
        let has_engine = !self.shared.threads.is_empty();
        has_engine.then(|| EngineMonitor::new(self.shared.clone()))
    }

    /// Compresses or encrypts what is stored of the values of users, as the engine on the same store
    /// does ([`EngineBuilder::codec`](crate::EngineBuilder::codec)). With several, the last one
    /// writes and all of them read. A client of an engine has the engine's.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec) -> Client {
        self.codecs.push(Arc::new(codec));
        self
    }

    /// Reads and writes payloads as an engine with these does.
    pub(crate) fn use_codecs(&mut self, codecs: Codecs) {
        self.codecs = codecs;
    }

    /// A client without an engine, on a SQLite file or a PostgreSQL database (`postgres://..`) that an
    /// engine has made.
    ///
    /// # Errors
    ///
    /// If it is not there, cannot be reached, or is no everstep database.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn open(place: impl AsRef<std::path::Path>) -> Result<Client, ClientError> {
        let place = place.as_ref().to_owned();
        let (sender, opened) = tokio::sync::oneshot::channel();
        let open = move || _ = sender.send(crate::store::open(&place, false));
        spawn_thread("everstep-open", open)?;
        let store = opened.await.map_err(|_| ClientError::Closed)??;
        Client::on(store)
    }

    /// What must be kept while anybody works in the name of this client.
    fn own(&self) -> Option<Arc<dyn std::any::Any + Send + Sync>> {
        let own = self._own.clone()?;
        Some(own)
    }

    /// A client without an engine, on any store.
    ///
    /// # Errors
    ///
    /// If its thread cannot be started.
    pub fn on(store: Arc<dyn Store>) -> Result<Client, ClientError> {
        Client::with(store, Arc::new(SystemClock), Settings::default())
    }

    /// As [`on`](Client::on), on another clock.
    ///
    /// # Errors
    ///
    /// As [`on`](Client::on).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn on_clock(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Client, ClientError> {
        Client::with(store, clock, Settings::default())
    }

    /// As [`on`](Client::on), on another clock, and with something broken on purpose.
    ///
    /// # Errors
    ///
    /// As [`on`](Client::on).
    #[cfg(feature = "sabotage")]
    #[doc(hidden)]
    pub fn sabotaged(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        sabotage: Option<crate::Sabotage>,
    ) -> Result<Client, ClientError> {
        let settings = Settings { sabotage, ..Settings::default() };
        Client::with(store, clock, settings)
    }

    fn with(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Client, ClientError> {
        let shared = Arc::new(Shared::new(
            Arc::new(settings),
            store.clone(),
            Arc::new(Registry::default()),
            clock,
            0,
            None,
        ));
        let committing = shared.clone();
        spawn_thread("everstep-commit", move || engine::committer_thread(&committing))?;
        let reader = Reader::new(store, shared.activity.clone());
        let own = Arc::new(OwnCommitter(shared.clone()));
        Ok(Client { shared, reader, codecs: Codecs::default(), _own: Some(own) })
    }

    /// The store that it is on, in words.
    pub fn store_name(&self) -> String {
        self.shared.store.describe()
    }

    /// Seals a payload that goes to others.
    fn seal(&self, payload: Vec<u8>, what: &str) -> Result<Vec<u8>, ClientError> {
        let sealed = self.codecs.seal(payload, None);
        sealed.map_err(|error| ClientError::Encode {
            what: what.to_owned(),
            problem: error.to_string(),
        })
    }

    /// The value of a stored payload. `run` is the run that it was found with, if it may be that
    /// run's alone.
    fn decode<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        run: Option<RunId>,
        what: impl FnOnce() -> String,
    ) -> Result<T, ClientError> {
        self.codecs.read(bytes, run).map_err(|error| unreadable(what(), &error))
    }

    /// As [`decode`](Client::decode), for callers without the type.
    fn decode_json(
        &self,
        bytes: &[u8],
        run: Option<RunId>,
        what: impl FnOnce() -> String,
    ) -> Result<Json, ClientError> {
        let opened = self.codecs.open(bytes, run);
        opened
            .and_then(|bytes| payload::to_json(&bytes))
            .map_err(|error| unreadable(what(), &error))
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let read = self.reader.read(|store| {
            if store.time_is_old() {
                // Whatever is read is compared with the time, and the next write goes by it.
                store.ask_time()?;
            }
            job(store)
        });
        let read = read.await.ok_or(ClientError::Closed)?;
        read.map_err(ClientError::from)
    }

    /// Asks the store for its time, if it was last asked long ago. To be called before a time is
    /// computed that is stored.
    pub(crate) async fn learn_time(&self) -> Result<(), ClientError> {
        if self.shared.store.time_is_old() {
            self.read(|_| Ok(())).await?;
        }
        Ok(())
    }

    /// Sees to it that the waiters for this run are fed, if no engine here owns it.
    fn watch(&self, run: RunId) {
        if self.shared.threads.is_empty() || !self.shared.owned.surely_has(run) {
            Poller::ensure(&self.shared);
        }
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
    let spawned = crate::seam::Process::current().spawn(name, work);
    spawned.map(|_| ()).map_err(|_| ClientError::Closed)
}

fn describe(target: &Target) -> String {
    match target {
        Target::Id(id) => id.to_string(),
        Target::Key { workflow, key } => format!("`{key}` of workflow `{workflow}`"),
    }
}

/// A page of the rows that were read, and the cursor for the next one if there is one. One row more than
/// the limit is read for that.
fn page<T, C>(mut rows: Vec<T>, limit: usize, cursor: impl FnOnce(&T) -> C) -> (Vec<T>, Option<C>) {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(cursor);
    (rows, next)
}

fn named(what: &str, name: &str) -> Result<(), ClientError> {
    check_name(name).map_err(|problem: NameError| ClientError::Name {
        what: what.to_owned(),
        problem: problem.to_string(),
    })
}

fn check_tags(tags: &[(String, String)]) -> Result<(), ClientError> {
    for (name, value) in tags {
        named("a tag's name", name)?;
        named("a tag's value", value)?;
    }
    Ok(())
}

/// Encodes a value, within the limit. It is not sealed yet.
fn encode<T: Serialize>(value: &T, what: &str, client: &Client) -> Result<Vec<u8>, ClientError> {
    let bytes = payload::to_vec(value).map_err(|error| ClientError::Encode {
        what: what.to_owned(),
        problem: error.to_string(),
    })?;
    check_size(bytes, what, client)
}

/// As [`encode`], for callers without the type.
fn encode_json(value: &Json, what: &str, client: &Client) -> Result<Vec<u8>, ClientError> {
    check_size(payload::from_json(value), what, client)
}

fn check_size(bytes: Vec<u8>, what: &str, client: &Client) -> Result<Vec<u8>, ClientError> {
    let limit = client.shared.settings.payload_bytes_max;
    if bytes.len() > limit {
        return Err(ClientError::TooLarge { what: what.to_owned(), actual: bytes.len(), limit });
    }
    Ok(bytes)
}
