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
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    codec::{self, payload},
    commit::{
        Control, Controlled, Delivery, NewRun, Outcome, Receipt, Reopen, RunStatus, Target, Write,
    },
    ctx::send::ToTarget,
    engine::{self, Pending, Poller, Reader, Reply, Settings, Shared},
    error::Failure,
    history::keys,
    run_id::RunId,
    store::{Answer, DeadLetter, Filter, Finished, RunRow, Store, StoreError},
    time::{SystemClock, Timestamp},
    workflow::{DEFAULT_POOL, NameError, Registry, WorkflowRef, check_name},
};

mod limits;
mod view;

pub use limits::LimitInfo;
pub use view::{HistoryEntry, RunInfo, RunPage};

/// Starts runs and talks to them. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    reader: Arc<Reader>,
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
    /// The run has ended.
    #[error("run {run} has ended ({status}) and takes no more messages")]
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
    }
}

impl Client {
    pub(crate) fn of_engine(shared: Arc<Shared>, reader: Arc<Reader>) -> Client {
        Client {
            shared,
            reader,
            _own: None,
        }
    }

    /// A client without an engine, on a SQLite file that an engine has made.
    ///
    /// # Errors
    ///
    /// If the file is not there or is no everstep database.
    #[cfg(feature = "sqlite")]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<Client, ClientError> {
        let path = path.as_ref().to_owned();
        let (sender, opened) = oneshot::channel();
        let open = move || _ = sender.send(crate::store::SqliteStore::open(&path));
        spawn_thread("everstep-open", open)?;
        let store = opened.await.map_err(|_| ClientError::Closed)??;
        Client::on(Arc::new(store))
    }

    /// A client without an engine, on any store.
    ///
    /// # Errors
    ///
    /// If its thread cannot be started.
    pub fn on(store: Arc<dyn Store>) -> Result<Client, ClientError> {
        let shared = Arc::new(Shared::new(
            Arc::new(Settings::default()),
            store.clone(),
            Arc::new(Registry::default()),
            Arc::new(SystemClock),
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
            _own: Some(own),
        })
    }

    /// Starts a run. Set what else is to be said, then await it.
    pub fn start<W: WorkflowRef>(&self, workflow: W, input: W::Input) -> Start<W::Output> {
        let key = workflow.default_key(&input);
        let input = encode(&input, "the input", &self.shared);
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
        let input = check_size(bytes, "the input", &self.shared);
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

    /// Runs, newest first. Set filters, then await it.
    pub fn list(&self) -> List {
        List {
            client: self.clone(),
            filter: Filter::default(),
            after: None,
            limit: 100,
        }
    }

    /// How many runs there are. Set filters, then await it.
    pub fn count(&self) -> Count {
        Count {
            client: self.clone(),
            filter: Filter::default(),
        }
    }

    /// Sends a message to a run. Set what else is to be said, then await it.
    pub fn send<T: Serialize>(&self, to: impl ToTarget, name: &str, body: &T) -> SendMessage {
        let body = encode(body, "the message", &self.shared);
        SendMessage {
            client: self.clone(),
            target: to.to_target(),
            name: name.to_owned(),
            body,
            dedupe: None,
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
        let body = encode(body, "the request", &self.shared)?;
        let bytes = self.request_bytes(to.to_target(), name, body).await?;
        payload::from_slice(&bytes).map_err(|error| ClientError::Decode {
            what: format!("the reply to `{name}`"),
            problem: error.to_string(),
        })
    }

    async fn request_bytes(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ClientError> {
        let request = Uuid::from_u64_pair(crate::random::entropy(), crate::random::entropy());
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
            .deliver(Target::Id(run), name, body, None, Some(request))
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

    /// Messages that no run will read, oldest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn dead_letters(
        &self,
        run: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, ClientError> {
        self.read(move |store| store.dead_letters(run.map(RunId::no), limit))
            .await
    }

    async fn deliver(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
        dedupe: Option<String>,
        request: Option<Uuid>,
    ) -> Result<Sent, ClientError> {
        named("the message's name", name)?;
        if let Some(key) = &dedupe {
            named("the dedupe key", key)?;
        }
        let (text, limit) = (describe(&target), self.shared.settings.inbox_messages_max);
        let delivery = Delivery {
            target,
            name: name.to_owned(),
            body,
            dedupe,
            request,
            inbox_max: limit,
        };
        let Outcome::Delivered(delivered) = self.write(Write::Deliver(Box::new(delivery))).await?
        else {
            return Err(ClientError::Closed);
        };
        match delivered.receipt {
            Receipt::Delivered => Ok(Sent::Delivered),
            Receipt::Duplicate => Ok(Sent::Duplicate),
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

    /// Hands a write to the committer and waits until it is durable.
    async fn write(&self, write: Write) -> Result<Outcome, ClientError> {
        if let Some(error) = self.shared.stopped() {
            return Err(error.into());
        }
        if self.shared.closing() {
            return Err(ClientError::Closed);
        }
        let (sender, receiver) = oneshot::channel();
        self.shared.queue.push(
            &self.shared,
            Pending {
                write,
                reply: Reply::Caller(sender),
            },
        );
        receiver
            .await
            .map_err(|_| ClientError::Closed)?
            .map_err(ClientError::from)
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let read = self.reader.read(job).await.ok_or(ClientError::Closed)?;
        read.map_err(ClientError::from)
    }

    /// Sees to it that the waiters for this run are fed, if no engine here owns it.
    fn watch(&self, run: RunId) {
        if self.shared.threads.is_empty() || !self.shared.owns(run.shard()) {
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
            // Its end is told: the store need not be asked.
            Some(ended) => ended,
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
        ended
            .await
            .map_err(|_| ClientError::Closed)?
            .map_err(ClientError::from)
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
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work);
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

fn encode<T: Serialize>(value: &T, what: &str, shared: &Shared) -> Result<Vec<u8>, ClientError> {
    let bytes = payload::to_vec(value).map_err(|error| ClientError::Encode {
        what: what.to_owned(),
        problem: error.to_string(),
    })?;
    check_size(bytes, what, shared)
}

fn check_size(bytes: Vec<u8>, what: &str, shared: &Shared) -> Result<Vec<u8>, ClientError> {
    let limit = shared.settings.payload_bytes_max;
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

    async fn send(self) -> Result<RunHandle<O>, ClientError> {
        named("the workflow's name", &self.workflow)?;
        if let Some(key) = &self.key {
            named("the key", key)?;
        }
        for (name, value) in &self.tags {
            named("a tag's name", name)?;
            named("a tag's value", value)?;
        }
        let input = self.input?;
        let client = self.client;
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
        let pool = options.map_or_else(|| Arc::from(DEFAULT_POOL), |options| options.pool.clone());
        let name = definition.as_ref().map_or_else(
            || Arc::from(self.workflow.as_str()),
            |definition| definition.name.clone(),
        );
        loop {
            let now = shared.now();
            let id = shared.ids.next(now);
            let begin = match self.begin {
                Begin::Now => None,
                Begin::At(at) => Some(at),
                Begin::After(delay) => Some(now + delay),
            };
            let deadline_at = deadline.map(|deadline| match deadline {
                Deadline::At(at) => at,
                Deadline::After(limit) => begin.unwrap_or(now) + limit,
            });
            let claim = begin.is_none()
                && definition.is_some()
                && shared.owns(id.shard())
                && shared.reserve();
            let new = NewRun {
                id,
                workflow: name.clone(),
                version: self.version,
                key: self.key.clone(),
                pool: pool.clone(),
                available_at: begin,
                deadline_at,
                tags: tags.clone(),
                input: input.clone(),
                parent: None,
                claim,
            };
            // Listened for before it can end.
            let ended = claim.then(|| shared.hub.await_end(id));
            match client.write(Write::Start(Box::new(new))).await? {
                Outcome::Started(started) => {
                    let ended = ended.filter(|_| started.claimed);
                    if !started.claimed && claim {
                        shared.hub.forget_gone(id);
                    }
                    let mut handle = client.handle(started.id, ended);
                    handle.attached = started.attached;
                    handle.input_differs = started.input_differs;
                    return Ok(handle);
                }
                // Another process has made a run with the same number: the next id is free.
                Outcome::Refused(_) => {}
                _ => return Err(ClientError::Closed),
            }
        }
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
}

impl SendMessage {
    /// A second message to the same run with an equal key is not delivered, and says so.
    pub fn dedupe(mut self, key: impl Into<String>) -> Self {
        self.dedupe = Some(key.into());
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
                .deliver(self.target, &self.name, body, self.dedupe, None)
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
        let body = check_size(payload::from_json(body), "the request", &self.client.shared)?;
        let bytes = self
            .client
            .request_bytes(Target::Id(self.id), name, body)
            .await?;
        json(&bytes, || format!("the reply to `{name}`"))
    }

    /// Cancels the run: await it, or say [`with_rollback`](Cancel::with_rollback) first.
    pub fn cancel(&self) -> Cancel {
        Cancel {
            client: self.client.clone(),
            run: self.id,
            rollback: false,
        }
    }

    /// Pauses the run. What its bodies in flight give is still recorded.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub async fn pause(&self) -> Result<(), ClientError> {
        match self.client.control(self.id, Control::Pause).await? {
            Controlled::Finished { status, .. } => Err(ClientError::WrongStatus {
                run: self.id.to_string(),
                status,
                act: "paused",
                hint: "it has ended",
            }),
            _ => Ok(()),
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

    /// Tries a failed run again: only what its error came from is made fresh, and what was rolled
    /// back; completed steps before that stand.
    ///
    /// # Errors
    ///
    /// If it has not failed, or failed by an error that workflow code made itself: trying that
    /// again would only make it again.
    pub async fn retry(&self) -> Result<(), ClientError> {
        let (id, no) = (self.id, self.id.no());
        let found = self
            .client
            .read(move |store| {
                let row = store.run(&Target::Id(id))?;
                // The list of origins is the last key of a history.
                let origins = keys::failure_origins();
                let before = [origins[0], origins[1] - 1, 0xFF];
                let last = store.history(no, Some(&before), 1)?;
                Ok((row, last.first().is_some_and(|put| put.key == origins)))
            })
            .await?;
        let (Some(row), has_origins) = found else {
            return Err(ClientError::UnknownRun {
                run: id.to_string(),
            });
        };
        let wrong = |hint| ClientError::WrongStatus {
            run: id.to_string(),
            status: row.status,
            act: "retried",
            hint,
        };
        if row.status != RunStatus::Failed {
            return Err(wrong("only a failed run can be retried"));
        }
        if !has_origins {
            return Err(wrong(
                "its error was made by the workflow's own code, so it would be made again; deploy \
                 code that does not, and start a new run",
            ));
        }
        let reopen = Reopen {
            run: no,
            status: RunStatus::Failed,
            attempts: row.attempts,
            puts: Vec::new(),
            deletes: Vec::new(),
            available_at: self.client.shared.now(),
        };
        match self.client.write(Write::Reopen(Box::new(reopen))).await? {
            Outcome::Committed(_) => Ok(()),
            _ => Err(wrong(
                "something else has happened to it meanwhile; look at it again",
            )),
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
        Ok(RunInfo::from(self.row().await?))
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
    /// If it is of another type.
    pub async fn state<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        let Some((_, bytes)) = all.into_iter().find(|(other, _)| other == key) else {
            return Ok(None);
        };
        payload::from_slice(&bytes)
            .map(Some)
            .map_err(|error| ClientError::Decode {
                what: format!("the state `{key}` of run {}", self.id),
                problem: error.to_string(),
            })
    }

    /// All values that the run has set, as JSON.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn state_json(&self) -> Result<serde_json::Map<String, Json>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        all.into_iter()
            .map(|(key, bytes)| {
                let value = json(&bytes, || format!("the state `{key}`"))?;
                Ok((key, value))
            })
            .collect()
    }

    /// What the run has done, in the order of its locations.
    ///
    /// # Errors
    ///
    /// If there is no such run, or an entry cannot be decoded.
    pub async fn history(&self) -> Result<Vec<HistoryEntry>, ClientError> {
        let no = self.id.no();
        self.row().await?;
        let puts = self
            .client
            .read(move |store| {
                let mut all = Vec::new();
                loop {
                    let after = all.last().map(|put: &crate::commit::Put| put.key.clone());
                    let page = store.history(no, after.as_deref(), 10_000)?;
                    let full = page.len() == 10_000;
                    all.extend(page);
                    if !full {
                        return Ok(all);
                    }
                }
            })
            .await?;
        view::entries(self.id, puts)
    }

    /// The result as JSON, once the run has ended.
    ///
    /// # Errors
    ///
    /// If the run failed or was cancelled.
    pub async fn result_json(&self) -> Result<Json, RunError> {
        let finished = self.client.finished(self.id, &self.started).await?;
        let bytes = self.output(finished)?;
        Ok(json(&bytes, || format!("the output of run {}", self.id))?)
    }

    fn output(&self, finished: Finished) -> Result<Vec<u8>, RunError> {
        match finished.status {
            RunStatus::Completed => Ok(finished.output.unwrap_or_default()),
            RunStatus::Cancelled => Err(RunError::Cancelled { run: self.id }),
            _ => {
                let decoded = finished.error.as_deref().map(codec::decode_failure);
                let failure = match decoded {
                    Some(Ok(failure)) => failure,
                    Some(Err(error)) => Failure::unreadable(&error.to_string()),
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
        payload::from_slice(&bytes).map_err(|error| {
            RunError::Client(ClientError::Decode {
                what: format!("the output of run {}", self.id),
                problem: error.to_string(),
            })
        })
    }
}

fn json(bytes: &[u8], what: impl FnOnce() -> String) -> Result<Json, ClientError> {
    payload::to_json(bytes).map_err(|error| ClientError::Decode {
        what: what(),
        problem: error.to_string(),
    })
}

/// A cancel. Await it: `true` if it was requested now, `false` if the run has ended or a cancel
/// was requested before.
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
}

impl IntoFuture for Cancel {
    type Output = Result<bool, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let control = Control::Cancel {
                rollback: self.rollback,
            };
            let controlled = self.client.control(self.run, control).await?;
            Ok(matches!(controlled, Controlled::Done { .. }))
        })
    }
}

macro_rules! filters {
    ($($builder:ident),+) => {$(
        impl $builder {
            /// Only runs in this status; call it again for more.
            pub fn status(mut self, status: RunStatus) -> Self {
                self.filter.statuses.push(status);
                self
            }

            /// Only runs of this workflow.
            pub fn workflow(mut self, name: impl Into<String>) -> Self {
                self.filter.workflow = Some(name.into());
                self
            }

            /// Only runs with this tag; call it again for more, and all must be there.
            pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self.filter.tags.push((name.into(), value.into()));
                self
            }

            /// Only runs that were started at or after this instant.
            pub fn created_from(mut self, at: Timestamp) -> Self {
                self.filter.created_from = Some(at);
                self
            }

            /// Only runs that were started before this instant.
            pub fn created_before(mut self, at: Timestamp) -> Self {
                self.filter.created_before = Some(at);
                self
            }
        }
    )+};
}

filters!(List, Count);

/// A list of runs. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct List {
    client: Client,
    filter: Filter,
    after: Option<RunId>,
    limit: usize,
}

impl List {
    /// How many runs a page has at most; 100 if this is not said, 1 000 at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, 1_000);
        self
    }

    /// Goes on after the last run of another page: see [`RunPage::next`].
    pub fn after(mut self, cursor: RunId) -> Self {
        self.after = Some(cursor);
        self
    }
}

impl IntoFuture for List {
    type Output = Result<RunPage, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let List {
                client,
                filter,
                after,
                limit,
            } = self;
            let after = after.map(RunId::no);
            // One more than asked for shows whether there is another page.
            let rows = client
                .read(move |store| store.list(&filter, after, limit + 1))
                .await?;
            Ok(RunPage::new(rows, limit))
        })
    }
}

/// A number of runs. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct Count {
    client: Client,
    filter: Filter,
}

impl IntoFuture for Count {
    type Output = Result<u64, ClientError>;
    type IntoFuture = Boxed<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Count { client, filter } = self;
            client.read(move |store| store.count(&filter)).await
        })
    }
}
