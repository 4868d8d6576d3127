//! The client: everything that can be done to runs from outside.
//!
//! A client in the process of an engine shares its committer, so that starts and messages travel
//! in the same batches as the engine's own commits, and is told of ends without asking. A client
//! without an engine ([`Client::open`]) has a committer of its own, tells the owners what it has
//! done, and asks the store for what it waits for: one query per round, however many wait.

use std::{
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    codec::{
        DecodeError,
        hook::{Codec, Codecs},
        payload,
    },
    commit::{
        Control, ControlRefusal, Controlled, Delivery, NewRun, Outcome, Receipt, Refusal,
        RunStatus, Target, Write,
    },
    ctx::send::ToTarget,
    engine::{self, Pending, Poller, Reader, Reply, Shared},
    error::Failure,
    event::IfFinished,
    name::{NameError, check_name, check_pool},
    pool::DEFAULT_POOL,
    registry::Registry,
    run_id::RunId,
    settings::{Settings, SettingsError},
    store::{Answer, Finished, RunRow, Store, StoreError},
    telemetry::{EngineMonitor, trace},
    time::{Clock, SystemClock, Timestamp},
    workflow::WorkflowRef,
};

mod audit;
#[cfg(feature = "sqlite")]
mod backup;
mod bulk;
mod children;
mod cluster;
mod deferred;
mod delete;
mod doctor;
mod events;
mod fork;
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
mod short_id;
mod stream;
mod tag;
mod tokens;
pub(crate) mod transfer;
mod view;
mod why;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod within;

pub use audit::{Audit, AuditEntry, AuditNew, AuditPage};
#[cfg(feature = "sqlite")]
pub use backup::{BackedUp, Backup, BackupError, BackupProgress, Restore, restore};
pub use bulk::{Bulk, BulkError, BulkReport};
pub use children::Children;
pub use cluster::{Cluster, PoolInfo, RunnerInfo};
pub use deferred::{Resolved, Resolver, Settle};
pub use delete::DeleteRun;
pub use doctor::{Checked, Doctor, DoctorReport, Finding, RepairError, Repaired, Severity};
pub use events::{PublishEvent, PublishedEvent};
pub use fork::ForkRun;
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
pub use short_id::{ParseShortIdError, ShortId};
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

/// Why something could not be done to a run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The store could not.
    #[error("the store cannot be used")]
    Store(#[source] Arc<StoreError>),
    /// There is no such run.
    #[error("there is no run {run}; it may have been deleted, or belongs to another store")]
    UnknownRun {
        /// What was asked for.
        run: String,
    },
    /// No run was found whose id begins or ends with these digits.
    #[error(
        "there is no run whose id begins or ends with `{digits}`{}",
        match .searched {
            Some(searched) => format!(
                " among the newest {searched} runs; give the whole id, or the first 20 digits, of an \
                 older one"
            ),
            None => "; it may have been deleted, or belongs to another store".to_owned(),
        }
    )]
    UnknownShortId {
        /// The digits.
        digits: String,
        /// How many runs were searched, if there are more.
        searched: Option<usize>,
    },
    /// Several runs have an id that begins or ends with these digits.
    #[error(
        "`{digits}` is ambiguous; give more digits of one of these runs: {}",
        .runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    AmbiguousId {
        /// The digits.
        digits: String,
        /// The runs, newest first, at most ten.
        runs: Vec<RunId>,
    },
    /// The run has ended.
    #[error("run {run} has ended ({status}) and takes nothing more")]
    Finished {
        /// The run.
        run: String,
        /// How, if that is known.
        status: String,
    },
    /// The inbox of the run is full.
    #[error(
        "run {run} has {limit} unread messages, and that is the limit; let it read some first, \
             or raise `inbox_messages_max`"
    )]
    InboxFull {
        /// The run.
        run: String,
        /// The limit.
        limit: u64,
    },
    /// A payload is too large.
    #[error(
        "{what} has {actual} bytes, and the limit for a payload is {limit}; store it elsewhere \
             and pass on where it is, or raise `payload_bytes_max`"
    )]
    TooLarge {
        /// What it is.
        what: String,
        /// Its size.
        actual: usize,
        /// The limit.
        limit: usize,
    },
    /// A name cannot be used.
    #[error("{what} cannot be used: {problem}")]
    Name {
        /// What it is the name of.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A value could not be encoded.
    #[error("{what} cannot be encoded: {problem}")]
    Encode {
        /// What it is.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A stored value could not be decoded.
    #[error("{what} cannot be decoded: {problem}; use the types that it was written with")]
    Decode {
        /// What it is.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A stored value was written with a codec that is not here, or that cannot decode it.
    #[error(
        "{what} cannot be decoded: {problem}; give the client the codec and the keys that it was \
             written with"
    )]
    Sealed {
        /// What it is.
        what: String,
        /// What is missing.
        problem: String,
    },
    /// The run ended before it replied.
    #[error("run {run} ended without a reply")]
    NoReply {
        /// The run.
        run: String,
    },
    /// The run is not in a state for this.
    #[error("run {run} is {status} and cannot be {act}: {hint}")]
    WrongStatus {
        /// The run.
        run: String,
        /// Its status.
        status: RunStatus,
        /// What was asked for.
        act: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// There is no such item in any queue.
    #[error(
        "there is no queue item {item}; it may have ended (a result is kept only for as long as its \
             queue says), or belongs to another store"
    )]
    UnknownItem {
        /// What was asked for.
        item: crate::commit::ItemId,
    },
    /// A number or a time of a worker with which it cannot work.
    #[error("a worker cannot be set up")]
    Settings(#[from] SettingsError),
    /// A worker needs a tokio runtime for its handlers.
    #[error("there is no tokio runtime here for a worker's handlers; call `work` inside of one")]
    NoRuntime,
    /// A text is not a token.
    #[error("this is not a token: it must be given as the run has handed it out, letter by letter")]
    MalformedToken,
    /// A token was not made by this store.
    #[error(
        "this token was not made by this store, or was changed since; use it with the database of \
             the run that handed it out"
    )]
    ForeignToken,
    /// A token is of an earlier generation of its run.
    #[error(
        "this token is of generation {generation} of run {run}, which has gone on as generation \
             {current}; ask that one for a new token"
    )]
    OldToken {
        /// The run.
        run: String,
        /// The generation that handed the token out.
        generation: u32,
        /// The generation that the run is in.
        current: u32,
    },
    /// There is a token of this name.
    #[error("there is a token `{name}` already; revoke it first, or give another name")]
    TokenTaken {
        /// The name.
        name: String,
    },
    /// There is no such schedule.
    #[error("there is no schedule `{schedule}`; it may have been deleted")]
    UnknownSchedule {
        /// Its name.
        schedule: String,
    },
    /// A schedule cannot be as it is asked for.
    #[error("schedule `{schedule}`: {problem}")]
    Schedule {
        /// Its name.
        schedule: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A run cannot be imported beside one that is there.
    #[error("run {run} cannot be imported: {what} is taken in this store; nothing was changed")]
    Taken {
        /// The run.
        run: String,
        /// What of it.
        what: String,
    },
    /// The run that was started with this key has ended and was deleted, and the key is kept for
    /// a while, so that a start that comes late does not do everything once more.
    #[error(
        "the key `{key}` of workflow `{workflow}` was used by run {run}, which has ended and was \
             deleted on {deleted_at}; use another key, or wait until {kept_until}"
    )]
    KeyUsed {
        /// The workflow.
        workflow: String,
        /// The key.
        key: String,
        /// The run that had it.
        run: RunId,
        /// When that was deleted.
        deleted_at: Timestamp,
        /// From when on the key can be used again.
        kept_until: Timestamp,
    },
    /// A run cannot be forked like this.
    #[error("run {run} cannot be forked: {problem}")]
    Fork {
        /// The run.
        run: RunId,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The run has too many tags.
    #[error("run {run} has {limit} tags, and that is the limit; remove some first")]
    TagsFull {
        /// The run.
        run: RunId,
        /// The limit.
        limit: usize,
    },
    /// The engine or the client is shutting down.
    #[error("the client is closed: its engine has shut down")]
    Closed,
}

/// Why a run has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It failed.
    #[error("run {run} failed: {}", .failure.full())]
    Failed {
        /// The run.
        run: RunId,
        /// Why.
        failure: Box<Failure>,
    },
    /// It was cancelled.
    #[error("run {run} was cancelled")]
    Cancelled {
        /// The run.
        run: RunId,
    },
    /// It could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl RunError {
    /// The failure, if the run failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            RunError::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

impl From<Arc<StoreError>> for ClientError {
    fn from(error: Arc<StoreError>) -> ClientError {
        match &*error {
            StoreError::Closed { .. } => ClientError::Closed,
            _ => ClientError::Store(error),
        }
    }
}

impl From<StoreError> for ClientError {
    fn from(error: StoreError) -> ClientError {
        ClientError::from(Arc::new(error))
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The committer of a client without an engine.
struct OwnCommitter(Arc<Shared>);

impl Drop for OwnCommitter {
    fn drop(&mut self) {
        self.0.begin_closing();
        self.0.queue.close();
        // The process may end now, and with it a wake-up that was not sent: `RunHandle::wake` does not
        // wait for its own. The store bounds the wait.
        let (sent, is_sent) = mpsc::channel();
        let store = &self.0.store;
        store.after_wakes(Box::new(move || _ = sent.send(())));
        _ = is_sent.recv();
    }
}

impl Client {
    pub(crate) fn of_engine(shared: Arc<Shared>, reader: Arc<Reader>) -> Client {
        Client {
            codecs: shared.settings.codecs.clone(),
            shared,
            reader,
            _own: None,
        }
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
        let (sender, opened) = oneshot::channel();
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
        let settings = Settings {
            sabotage,
            ..Settings::default()
        };
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
        spawn_thread("everstep-commit", move || {
            engine::committer_thread(&committing)
        })?;
        let reader = Reader::new(store, shared.activity.clone());
        let own = Arc::new(OwnCommitter(shared.clone()));
        Ok(Client {
            shared,
            reader,
            codecs: Codecs::default(),
            _own: Some(own),
        })
    }

    /// The store that it is on, in words.
    pub fn store_name(&self) -> String {
        self.shared.store.describe()
    }

    /// Starts a run. Set what else is to be said, then await it.
    pub fn start<W: WorkflowRef>(&self, workflow: W, input: W::Input) -> Start<W::Output> {
        let key = workflow.default_key(&input);
        let input = encode(&input, "the input", self);
        self.start_encoded(workflow.name(), workflow.version(), input, key)
    }

    /// Starts a run of a workflow that is only known by name: JSON in, JSON out.
    ///
    /// The version is the newest that is registered in this process, or 1.
    pub fn start_json(&self, workflow: &str, input: &Json) -> Start<Json> {
        let bytes = payload::from_json(input);
        let version = self
            .shared
            .registry
            .newest(workflow)
            .map_or(1, |newest| newest.version);
        let input = check_size(bytes, "the input", self);
        self.start_encoded(workflow, version, input, None)
    }

    fn start_encoded<O>(
        &self,
        workflow: &str,
        version: u32,
        input: Result<Vec<u8>, ClientError>,
        key: Option<String>,
    ) -> Start<O> {
        Start {
            client: self.clone(),
            workflow: workflow.to_owned(),
            version,
            input,
            key,
            begin: Begin::Now,
            deadline: None,
            tags: Vec::new(),
            pool: None,
            output: PhantomData,
        }
    }

    /// The run with this id or key; `None` if there is none.
    ///
    /// Its result is JSON; [`get_typed`](Client::get_typed) has the workflow's own types.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn get(&self, target: impl ToTarget) -> Result<Option<RunHandle<Json>>, ClientError> {
        let target = target.to_target();
        let row = self.read(move |store| store.run(&target)).await?;
        Ok(row.map(|row| self.handle(row.id, None)))
    }

    /// The run of this workflow with this key or id; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the store cannot be read, or the run is of another workflow.
    pub async fn get_typed<W: WorkflowRef>(
        &self,
        workflow: W,
        target: impl ToTarget,
    ) -> Result<Option<RunHandle<W::Output>>, ClientError> {
        let target = target.to_target();
        let row = self.read(move |store| store.run(&target)).await?;
        match row {
            Some(row) if *row.workflow != *workflow.name() => Err(ClientError::Name {
                what: format!("the workflow `{}`", workflow.name()),
                problem: format!("run {} is of `{}`", row.id, row.workflow),
            }),
            row => Ok(row.map(|row| self.handle(row.id, None))),
        }
    }

    /// A handle to a run by its id, without looking whether it is there.
    pub fn run<O: DeserializeOwned>(&self, id: RunId) -> RunHandle<O> {
        self.handle(id, None)
    }

    fn handle<O>(&self, id: RunId, started: Option<EndReceiver>) -> RunHandle<O> {
        RunHandle {
            client: self.clone(),
            id,
            attached: false,
            input_differs: false,
            started: Arc::new(Mutex::new(started)),
            output: PhantomData,
        }
    }

    /// Sends a message to a run. Set what else is to be said, then await it.
    pub fn send<T: Serialize>(&self, to: impl ToTarget, name: &str, body: &T) -> SendMessage {
        let body =
            encode(body, "the message", self).and_then(|body| self.seal(body, "the message"));
        SendMessage {
            client: self.clone(),
            target: to.to_target(),
            name: name.to_owned(),
            body,
            dedupe: None,
            if_finished: IfFinished::Error,
        }
    }

    /// Sends a message to a run and waits for its reply.
    ///
    /// # Errors
    ///
    /// As [`send`](Client::send), and if the run ends without a reply.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        to: impl ToTarget,
        name: &str,
        body: &T,
    ) -> Result<R, ClientError> {
        let body = encode(body, "the request", self)?;
        let bytes = self.request_bytes(to.to_target(), name, body).await?;
        self.decode(&bytes, None, || format!("the reply to `{name}`"))
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
        self.codecs
            .read(bytes, run)
            .map_err(|error| unreadable(what(), &error))
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

    async fn request_bytes(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ClientError> {
        let body = self.seal(body, "the request")?;
        let request = crate::seam::random_uuid();
        let text = describe(&target);
        let run = match &target {
            Target::Id(id) => *id,
            Target::Key { .. } => {
                let target = target.clone();
                let row = self.read(move |store| store.run(&target)).await?;
                row.ok_or_else(|| ClientError::UnknownRun { run: text.clone() })?
                    .id
            }
        };
        let answer = self.shared.hub.await_answer(run, request);
        let sent = self
            .deliver(
                Target::Id(run),
                name,
                body,
                None,
                Some(request),
                IfFinished::Error,
            )
            .await;
        if let Err(error) = sent {
            self.shared.hub.forget_request(request);
            return Err(error);
        }
        self.shared.hub.request_delivered(request);
        self.watch(run);
        match answer.await.map_err(|_| ClientError::Closed)?? {
            Answer::Reply(bytes) => Ok(bytes),
            Answer::RunEnded | Answer::Unknown => Err(ClientError::NoReply { run: text }),
        }
    }

    async fn deliver(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
        dedupe: Option<String>,
        request: Option<Uuid>,
        if_finished: IfFinished,
    ) -> Result<Sent, ClientError> {
        let text = describe(&target);
        let delivery = self.delivery(target, name, body, dedupe, request, if_finished)?;
        let limit = delivery.inbox_max;
        let Outcome::Delivered(delivered) = self.write(Write::Deliver(Box::new(delivery))).await?
        else {
            return Err(ClientError::Closed);
        };
        match delivered.receipt {
            Receipt::Delivered => Ok(Sent::Delivered),
            Receipt::Duplicate => Ok(Sent::Duplicate),
            Receipt::DeadLettered => Ok(Sent::DeadLettered),
            Receipt::Published => Ok(Sent::Published),
            Receipt::Unknown => Err(ClientError::UnknownRun { run: text }),
            Receipt::Finished => {
                let status = match delivered.run {
                    Some(run) => self.status_text(run).await,
                    None => "ended".to_owned(),
                };
                Err(ClientError::Finished { run: text, status })
            }
            Receipt::Full => Err(ClientError::InboxFull { run: text, limit }),
        }
    }

    fn delivery(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
        dedupe: Option<String>,
        request: Option<Uuid>,
        if_finished: IfFinished,
    ) -> Result<Delivery, ClientError> {
        named("the message's name", name)?;
        if let Some(key) = &dedupe {
            named("the dedupe key", key)?;
        }
        if let IfFinished::Publish(event) = &if_finished {
            named("the event's name", event)?;
        }
        Ok(Delivery {
            target,
            name: name.to_owned(),
            body,
            dedupe,
            request,
            inbox_max: self.shared.settings.inbox_messages_max,
            on_end: if_finished.on_end(&self.shared.settings),
        })
    }

    async fn status_text(&self, run: RunId) -> String {
        let row = self.read(move |store| store.run(&Target::Id(run))).await;
        row.ok()
            .flatten()
            .map_or_else(|| "ended".to_owned(), |row| row.status.to_string())
    }

    async fn control(&self, run: RunId, control: Control) -> Result<Controlled, ClientError> {
        match self.write(Write::Control(Target::Id(run), control)).await? {
            Outcome::Controlled(Controlled::Unknown) => Err(ClientError::UnknownRun {
                run: run.to_string(),
            }),
            Outcome::Controlled(controlled) => Ok(controlled),
            _ => Err(ClientError::Closed),
        }
    }

    /// Whether the run was started with another input than this, as far as it can be read.
    async fn has_other_input(&self, run: RunId, plain: &[u8]) -> Result<bool, ClientError> {
        let row = self.read(move |store| store.run(&Target::Id(run))).await?;
        let row = row.ok_or_else(|| ClientError::UnknownRun {
            run: run.to_string(),
        })?;
        let opened = self.codecs.open(&row.input, None);
        opened
            .map(|input| *input != *plain)
            .map_err(|error| unreadable(format!("the input of run {run}"), &error))
    }

    /// Hands a write to the committer and waits until it is durable.
    async fn write(&self, write: Write) -> Result<Outcome, ClientError> {
        if let Some(error) = self.shared.stopped() {
            return Err(error.into());
        }
        if self.shared.closing() {
            return Err(ClientError::Closed);
        }
        let (sender, receiver) = oneshot::channel();
        let pending = Pending::new(write, Reply::Caller(sender));
        self.shared.queue.push(&self.shared, pending);
        receiver
            .await
            .map_err(|_| ClientError::Closed)?
            .map_err(ClientError::from)
    }

    /// Hands writes to the committer together and waits until they are durable. One answer for
    /// each, in order.
    async fn write_all(&self, writes: Vec<Write>) -> Result<Vec<Outcome>, ClientError> {
        if let Some(error) = self.shared.stopped() {
            return Err(error.into());
        }
        if self.shared.closing() {
            return Err(ClientError::Closed);
        }
        let mut answers = Vec::with_capacity(writes.len());
        let pending = writes.into_iter().map(|write| {
            let (sender, answer) = oneshot::channel();
            answers.push(answer);
            let reply = Reply::Caller(sender);
            Pending::new(write, reply)
        });
        let mut pending = pending.collect();
        self.shared.queue.push_all(&self.shared, &mut pending);
        let mut outcomes = Vec::with_capacity(answers.len());
        for answer in answers {
            outcomes.push(answer.await.map_err(|_| ClientError::Closed)??);
        }
        Ok(outcomes)
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

    async fn finished(
        &self,
        run: RunId,
        started: &Mutex<Option<EndReceiver>>,
    ) -> Result<Finished, ClientError> {
        let listening = started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let ended = match listening {
            // Its end is told, unless it has moved to another pool.
            Some(ended) => {
                self.watch(run);
                ended
            }
            // Asked for together with all others that are waited for here.
            None if self.shared.threads.is_empty() => {
                let ended = self.shared.hub.await_end(run);
                if let Some(error) = self.shared.stopped() {
                    return Err(error.into());
                }
                if self.shared.closing() {
                    return Err(ClientError::Closed);
                }
                Poller::ask_soon(&self.shared);
                ended
            }
            None => {
                let ended = self.shared.hub.await_end(run);
                let no = run.no();
                let found = self.read(move |store| store.finished(&[no])).await?;
                if let Some((_, finished)) = found.into_iter().next() {
                    drop(ended);
                    self.shared.hub.forget_gone(run);
                    let run = run.to_string();
                    return finished.ok_or(ClientError::UnknownRun { run });
                }
                // Asked after the waiter was registered: it is either told of the end of the
                // engine, or finds it here.
                if let Some(error) = self.shared.stopped() {
                    return Err(error.into());
                }
                if self.shared.closing() {
                    return Err(ClientError::Closed);
                }
                self.watch(run);
                ended
            }
        };
        match ended.await {
            Ok(finished) => finished.map_err(ClientError::from),
            // Whoever knew of it has forgotten it: it was deleted, or nobody is there any more.
            Err(_) if self.shared.closing() => Err(ClientError::Closed),
            Err(_) => {
                let no = run.no();
                let found = self.read(move |store| store.finished(&[no])).await?;
                let run = run.to_string();
                match found.into_iter().next() {
                    Some((_, finished)) => finished.ok_or(ClientError::UnknownRun { run }),
                    None => Err(ClientError::Closed),
                }
            }
        }
    }
}

/// The end of a run that was just started here: it was listened for before the run could begin.
type EndReceiver = oneshot::Receiver<Result<Finished, Arc<StoreError>>>;

/// A message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the inbox of the run.
    Delivered,
    /// An equal one was delivered before; nothing was done.
    Duplicate,
    /// The run has ended, and it is a dead letter: see [`SendMessage::if_finished`].
    DeadLettered,
    /// The run has ended, and it was published as an event: see [`SendMessage::if_finished`].
    Published,
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

fn named(what: &str, name: &str) -> Result<(), ClientError> {
    check_name(name).map_err(|problem: NameError| ClientError::Name {
        what: what.to_owned(),
        problem: problem.to_string(),
    })
}

/// What to say if a start was refused because of its key.
fn key_used(workflow: &str, key: Option<&str>, refusal: &Refusal) -> Option<ClientError> {
    let &Refusal::KeyUsed {
        run,
        deleted_at,
        kept_until,
    } = refusal
    else {
        return None;
    };
    Some(ClientError::KeyUsed {
        workflow: workflow.to_owned(),
        key: key.unwrap_or_default().to_owned(),
        run,
        deleted_at,
        kept_until,
    })
}

/// Encodes a value, within the limit. It is not sealed yet.
fn encode<T: Serialize>(value: &T, what: &str, client: &Client) -> Result<Vec<u8>, ClientError> {
    let bytes = payload::to_vec(value).map_err(|error| ClientError::Encode {
        what: what.to_owned(),
        problem: error.to_string(),
    })?;
    check_size(bytes, what, client)
}

fn check_size(bytes: Vec<u8>, what: &str, client: &Client) -> Result<Vec<u8>, ClientError> {
    let limit = client.shared.settings.payload_bytes_max;
    if bytes.len() > limit {
        return Err(ClientError::TooLarge {
            what: what.to_owned(),
            actual: bytes.len(),
            limit,
        });
    }
    Ok(bytes)
}

/// A run to be started. Await it.
#[must_use = "nothing is started unless it is awaited"]
pub struct Start<O> {
    client: Client,
    workflow: String,
    version: u32,
    input: Result<Vec<u8>, ClientError>,
    key: Option<String>,
    begin: Begin,
    deadline: Option<Deadline>,
    tags: Vec<(String, String)>,
    pool: Option<String>,
    output: PhantomData<fn() -> O>,
}

#[derive(Clone, Copy)]
enum Begin {
    Now,
    At(Timestamp),
    After(Duration),
}

#[derive(Clone, Copy)]
enum Deadline {
    At(Timestamp),
    After(Duration),
}

impl<O> Start<O> {
    /// Unique per workflow: a second start with it attaches to the first run.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The version of the workflow, if another than the reference says.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// It begins at this instant.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.begin = Begin::At(at);
        self
    }

    /// It begins after this long.
    pub fn after(mut self, delay: Duration) -> Self {
        self.begin = Begin::After(delay);
        self
    }

    /// It fails if it has not ended by this instant.
    pub fn deadline(mut self, at: Timestamp) -> Self {
        self.deadline = Some(Deadline::At(at));
        self
    }

    /// It fails if it has not ended after this long.
    pub fn deadline_after(mut self, limit: Duration) -> Self {
        self.deadline = Some(Deadline::After(limit));
        self
    }

    /// The pool whose runners run it, if another than its workflow says. A process that does not
    /// have the workflow's code takes `default` if this is not said.
    pub fn pool(mut self, pool: impl Into<String>) -> Self {
        self.pool = Some(pool.into());
        self
    }

    /// Something it can be found by.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((name.into(), value.into()));
        self
    }

    /// Several tags.
    pub fn tags<N: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.tags.extend(
            tags.into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        self
    }

    /// Checks what was said, and what the workflow's definition adds to it.
    fn plan(self) -> Result<Plan, ClientError> {
        named("the workflow's name", &self.workflow)?;
        if let Some(key) = &self.key {
            named("the key", key)?;
        }
        if let Some(pool) = &self.pool {
            check_pool(pool).map_err(|problem| ClientError::Name {
                what: "the pool".to_owned(),
                problem: problem.to_string(),
            })?;
        }
        for (name, value) in &self.tags {
            named("a tag's name", name)?;
            named("a tag's value", value)?;
        }
        let client = self.client;
        // Kept where a codec may have written the same input in other bytes.
        let mut plain = None;
        let mut input = self.input?;
        if !client.codecs.is_empty() {
            plain = Some(input.clone());
            input = client.seal(input, "the input")?;
        }
        let shared = &client.shared;
        let definition = shared.registry.find(&self.workflow, self.version).cloned();
        let options = definition.as_ref().map(|definition| &definition.options);
        let mut tags = self.tags;
        for (name, value) in options.map_or(&[][..], |options| &options.labels) {
            if !tags.iter().any(|(other, _)| other == name) {
                tags.push((name.clone(), value.clone()));
            }
        }
        let limit = options
            .and_then(|options| options.deadline)
            .map(Deadline::After);
        let deadline = self.deadline.or(limit);
        let pool = match (self.pool, options) {
            (Some(pool), _) => Arc::from(pool),
            (None, Some(options)) => options.pool.clone(),
            (None, None) => Arc::from(DEFAULT_POOL),
        };
        let name = definition.as_ref().map_or_else(
            || Arc::from(self.workflow.as_str()),
            |definition| definition.name.clone(),
        );
        Ok(Plan {
            workflow: name,
            version: self.version,
            key: self.key,
            pool,
            begin: self.begin,
            deadline,
            tags,
            trace: trace::current(),
            input,
            plain,
            is_known: definition.is_some(),
            client,
        })
    }

    async fn send(self) -> Result<RunHandle<O>, ClientError> {
        self.client.learn_time().await?;
        let plan = self.plan()?;
        let client = &plan.client;
        let shared = &client.shared;
        loop {
            let mut new = plan.new_run();
            let (id, claim) = (new.id, plan.claims(&new));
            new.claim = claim;
            // Listened for before it can end.
            let ended = claim.then(|| shared.hub.await_end_of_new(id));
            match client.write(Write::Start(Box::new(new))).await? {
                Outcome::Started(started) => {
                    let ended = ended.filter(|_| started.claimed);
                    if ended.is_some() {
                        shared.hub.started(id);
                    }
                    if !started.claimed && claim {
                        shared.hub.forget_gone(id);
                    }
                    let mut handle = client.handle(started.id, ended);
                    handle.attached = started.attached;
                    handle.input_differs = match &plan.plain {
                        Some(plain) if started.input_differs => {
                            client.has_other_input(started.id, plain).await?
                        }
                        _ => started.input_differs,
                    };
                    return Ok(handle);
                }
                Outcome::Refused(refusal) => {
                    if claim {
                        shared.hub.forget_gone(id);
                    }
                    // Otherwise another process has made a run with the same number, and the next
                    // id is free.
                    if let Some(error) = key_used(&plan.workflow, plan.key.as_deref(), &refusal) {
                        return Err(error);
                    }
                }
                _ => return Err(ClientError::Closed),
            }
        }
    }
}

/// A run that is to be started, with everything that is the same however often it is tried.
struct Plan {
    client: Client,
    workflow: Arc<str>,
    version: u32,
    key: Option<String>,
    pool: Arc<str>,
    begin: Begin,
    deadline: Option<Deadline>,
    tags: Vec<(String, String)>,
    trace: Option<String>,
    input: Vec<u8>,
    /// The input before a codec has sealed it.
    plain: Option<Vec<u8>>,
    /// Whether this process has the code.
    is_known: bool,
}

impl Plan {
    /// The run, under a new id, and not claimed.
    fn new_run(&self) -> NewRun {
        let shared = &self.client.shared;
        let now = shared.now();
        let begin = match self.begin {
            Begin::Now => None,
            Begin::At(at) => Some(at),
            Begin::After(delay) => Some(now + delay),
        };
        let deadline_at = self.deadline.map(|deadline| match deadline {
            Deadline::At(at) => at,
            Deadline::After(limit) => begin.unwrap_or(now) + limit,
        });
        NewRun {
            id: match begin {
                None => shared.new_id(now, &self.workflow, self.version, &self.pool),
                // Whoever owns its shard by then runs it.
                Some(_) => shared.ids.next(now),
            },
            workflow: self.workflow.clone(),
            version: self.version,
            key: self.key.clone(),
            pool: self.pool.clone(),
            available_at: begin,
            deadline_at,
            tags: self.tags.clone(),
            trace: self.trace.clone(),
            input: self.input.clone(),
            parent: None,
            claim: false,
        }
    }

    /// Whether this process takes it into memory at once; if so, a place in memory is taken.
    fn claims(&self, new: &NewRun) -> bool {
        let shared = &self.client.shared;
        new.available_at.is_none()
            && self.is_known
            && shared.owned.home(new.id, &new.pool).is_some()
            && shared.reserve()
    }
}

impl<O: 'static> IntoFuture for Start<O> {
    type Output = Result<RunHandle<O>, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A message to be sent. Await it.
#[must_use = "nothing is sent unless it is awaited"]
pub struct SendMessage {
    client: Client,
    target: Target,
    name: String,
    body: Result<Vec<u8>, ClientError>,
    dedupe: Option<String>,
    if_finished: IfFinished,
}

impl SendMessage {
    /// A second message to the same run with an equal key is not delivered, and says so.
    pub fn dedupe(mut self, key: impl Into<String>) -> Self {
        self.dedupe = Some(key.into());
        self
    }

    /// What becomes of it if the run has ended, or ends before it has read it: an error, if this
    /// is not said.
    pub fn if_finished(mut self, policy: IfFinished) -> Self {
        self.if_finished = policy;
        self
    }
}

impl IntoFuture for SendMessage {
    type Output = Result<Sent, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let body = self.body?;
            self.client
                .deliver(
                    self.target,
                    &self.name,
                    body,
                    self.dedupe,
                    None,
                    self.if_finished,
                )
                .await
        })
    }
}

/// A run, from outside. Cheap to clone.
pub struct RunHandle<O = Json> {
    client: Client,
    id: RunId,
    attached: bool,
    input_differs: bool,
    started: Arc<Mutex<Option<EndReceiver>>>,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        RunHandle {
            client: self.client.clone(),
            id: self.id,
            attached: self.attached,
            input_differs: self.input_differs,
            started: self.started.clone(),
            output: PhantomData,
        }
    }
}

impl<O> std::fmt::Debug for RunHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunHandle({})", self.id)
    }
}

impl<O> RunHandle<O> {
    #[cfg(feature = "testing")]
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Whether the start found a run with the same key, instead of making one.
    pub fn attached(&self) -> bool {
        self.attached
    }

    /// Whether the run that was found has another input than the one that was given.
    pub fn input_differs(&self) -> bool {
        self.input_differs
    }

    /// Sends a message to the run. Set what else is to be said, then await it.
    pub fn send<T: Serialize>(&self, name: &str, body: &T) -> SendMessage {
        self.client.send(self.id, name, body)
    }

    /// Sends a message to the run and waits for its reply.
    ///
    /// # Errors
    ///
    /// If the run has ended, or ends without a reply.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        body: &T,
    ) -> Result<R, ClientError> {
        self.client.request(self.id, name, body).await
    }

    /// As [`request`](RunHandle::request): JSON in, JSON out.
    ///
    /// # Errors
    ///
    /// As [`request`](RunHandle::request).
    pub async fn request_json(&self, name: &str, body: &Json) -> Result<Json, ClientError> {
        let body = check_size(payload::from_json(body), "the request", &self.client)?;
        let bytes = self
            .client
            .request_bytes(Target::Id(self.id), name, body)
            .await?;
        let what = || format!("the reply to `{name}`");
        self.client.decode_json(&bytes, None, what)
    }

    /// Cancels the run: await it, or say [`with_rollback`](Cancel::with_rollback) first.
    pub fn cancel(&self) -> Cancel {
        Cancel {
            client: self.client.clone(),
            run: self.id,
            rollback: false,
        }
    }

    /// Pauses the run: `true` if it was paused now, `false` if it was paused before. What its bodies in
    /// flight give is still recorded. A delayed start, or a run that waits for its next attempt, keeps
    /// its time.
    ///
    /// # Errors
    ///
    /// If it has ended, or is being cancelled.
    pub async fn pause(&self) -> Result<bool, ClientError> {
        let controlled = self.client.control(self.id, Control::Pause).await?;
        match refused(self.id, &controlled) {
            Some(error) => Err(error),
            None => Ok(matches!(controlled, Controlled::Done { .. })),
        }
    }

    /// Lets a paused run go on.
    ///
    /// # Errors
    ///
    /// If it is not paused.
    pub async fn resume(&self) -> Result<(), ClientError> {
        match self.client.control(self.id, Control::Resume).await? {
            Controlled::Already { status, .. } | Controlled::Finished { status, .. } => {
                Err(ClientError::WrongStatus {
                    run: self.id.to_string(),
                    status,
                    act: "resumed",
                    hint: "only a paused run can be resumed; a failed one can be retried",
                })
            }
            _ => Ok(()),
        }
    }

    /// What the run is doing.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn status(&self) -> Result<RunStatus, ClientError> {
        Ok(self.row().await?.status)
    }

    /// Everything about the run but its history.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn info(&self) -> Result<RunInfo, ClientError> {
        Ok(RunInfo::new(self.row().await?, &self.client.codecs))
    }

    async fn row(&self) -> Result<RunRow, ClientError> {
        let id = self.id;
        let row = self
            .client
            .read(move |store| store.run(&Target::Id(id)))
            .await?;
        row.ok_or_else(|| ClientError::UnknownRun {
            run: id.to_string(),
        })
    }

    /// A value that the run has set with `ctx.set_state`; `None` if it has not.
    ///
    /// # Errors
    ///
    /// If there is no such run, or the value is of another type.
    pub async fn state<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        let Some((_, bytes)) = all.into_iter().find(|(other, _)| other == key) else {
            self.row().await?;
            return Ok(None);
        };
        let what = || format!("the state `{key}` of run {}", self.id);
        let value = self.client.decode(&bytes, Some(self.id), what)?;
        Ok(Some(value))
    }

    /// All values that the run has set, as JSON.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn state_json(&self) -> Result<serde_json::Map<String, Json>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        if all.is_empty() {
            self.row().await?;
        }
        all.into_iter()
            .map(|(key, bytes)| {
                let what = || format!("the state `{key}`");
                let value = self.client.decode_json(&bytes, Some(self.id), what)?;
                Ok((key, value))
            })
            .collect()
    }

    /// The result as JSON, once the run has ended.
    ///
    /// # Errors
    ///
    /// If the run failed or was cancelled.
    pub async fn result_json(&self) -> Result<Json, RunError> {
        let finished = self.client.finished(self.id, &self.started).await?;
        let bytes = self.output(finished)?;
        let what = || format!("the output of run {}", self.id);
        Ok(self.client.decode_json(&bytes, Some(self.id), what)?)
    }

    fn payload_reader(&self) -> view::PayloadReader<'_> {
        view::PayloadReader {
            codecs: &self.client.codecs,
            run: self.id,
        }
    }

    fn output(&self, finished: Finished) -> Result<Vec<u8>, RunError> {
        match finished.status {
            RunStatus::Completed => Ok(finished.output.unwrap_or_default()),
            RunStatus::Cancelled => Err(RunError::Cancelled { run: self.id }),
            _ => {
                let failure = match finished.error {
                    Some(bytes) => self.payload_reader().failure(&bytes),
                    None => Failure::unreadable("no error was stored"),
                };
                Err(RunError::Failed {
                    run: self.id,
                    failure: Box::new(failure),
                })
            }
        }
    }
}

impl<O: DeserializeOwned> RunHandle<O> {
    /// What the run gives, once it has ended.
    ///
    /// # Errors
    ///
    /// If the run failed or was cancelled, or its output is of another type.
    pub async fn result(&self) -> Result<O, RunError> {
        let finished = self.client.finished(self.id, &self.started).await?;
        self.decode(finished)
    }

    /// What the run gave, if it has ended; `None` while it is live.
    ///
    /// # Errors
    ///
    /// As [`result`](RunHandle::result).
    pub async fn poll(&self) -> Result<Option<O>, RunError> {
        let no = self.id.no();
        let found = self.client.read(move |store| store.finished(&[no])).await?;
        match found.into_iter().next() {
            None => Ok(None),
            Some((_, None)) => Err(RunError::Client(ClientError::UnknownRun {
                run: self.id.to_string(),
            })),
            Some((_, Some(finished))) => self.decode(finished).map(Some),
        }
    }

    fn decode(&self, finished: Finished) -> Result<O, RunError> {
        let bytes = self.output(finished)?;
        let what = || format!("the output of run {}", self.id);
        Ok(self.client.decode(&bytes, Some(self.id), what)?)
    }
}

fn unreadable(what: String, error: &DecodeError) -> ClientError {
    let problem = error.to_string();
    match error {
        DecodeError::NoCodec { .. } | DecodeError::Codec { .. } => {
            ClientError::Sealed { what, problem }
        }
        _ => ClientError::Decode { what, problem },
    }
}

/// Why a run could not be paused or cancelled.
fn refused(run: RunId, controlled: &Controlled) -> Option<ClientError> {
    let (status, act, hint) = match controlled {
        Controlled::Finished { status, .. } => (*status, "paused", "it has ended"),
        Controlled::Refused { status, reason, .. } => match reason {
            ControlRefusal::BeingCancelled => {
                (*status, "paused", "it is being cancelled; wait for its end")
            }
            ControlRefusal::RollbackPaused { .. } => (
                *status,
                "cancelled",
                "its end is decided and its rollback is paused; mend what holds it up (`info` \
                 says what), then resume it: it ends when the rollback is done",
            ),
        },
        Controlled::Done { .. } | Controlled::Already { .. } | Controlled::Unknown => return None,
    };
    Some(ClientError::WrongStatus {
        run: run.to_string(),
        status,
        act,
        hint,
    })
}

/// A cancel. Await it: `true` if it was requested now, `false` if the run has ended, its end is
/// decided (it is rolling back), or a cancel was requested before. A run whose rollback is paused
/// gives an error: it needs to be resumed.
#[must_use = "nothing is cancelled unless it is awaited"]
pub struct Cancel {
    client: Client,
    run: RunId,
    rollback: bool,
}

impl Cancel {
    /// What the run has done is compensated first.
    pub fn with_rollback(mut self) -> Self {
        self.rollback = true;
        self
    }

    /// Cancels the run, with an error where awaiting the `Cancel` gives `false`: for commands and APIs,
    /// whose callers must be told that nothing was done.
    ///
    /// # Errors
    ///
    /// [`ClientError::WrongStatus`] with the status of the run if it has ended, its end is decided, or a
    /// cancel was requested before; and what the plain cancel gives.
    pub async fn strict(self) -> Result<(), ClientError> {
        let run = self.run.to_string();
        let (status, hint) = match self.send().await? {
            Controlled::Finished { status, .. } => (status, "it has ended; nothing was done"),
            Controlled::Already { status, .. } => match status {
                RunStatus::RollingBack => (
                    status,
                    "its end is decided and it is rolling back already; wait for its end",
                ),
                _ => (
                    status,
                    "a cancel was requested before; nothing more was done, wait for its end",
                ),
            },
            _ => return Ok(()),
        };
        Err(ClientError::WrongStatus {
            run,
            status,
            act: "cancelled",
            hint,
        })
    }

    async fn send(self) -> Result<Controlled, ClientError> {
        let control = Control::Cancel {
            rollback: self.rollback,
        };
        let controlled = self.client.control(self.run, control).await?;
        if let Controlled::Refused { .. } = controlled
            && let Some(error) = refused(self.run, &controlled)
        {
            return Err(error);
        }
        Ok(controlled)
    }
}

impl IntoFuture for Cancel {
    type Output = Result<bool, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(matches!(self.send().await?, Controlled::Done { .. })) })
    }
}
