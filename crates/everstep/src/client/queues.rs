//! Queues from outside: items put in and waited for, workers, and what operators look at.

use std::{future::Future, marker::PhantomData, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::{Client, ClientError, encode, encode_json, error::unreadable, named};
use crate::{
    codec::{Value, hook::Codecs, payload},
    commit::{
        ItemControl, ItemControlled, ItemId, ItemRow, ItemState, NewItem, Outcome, QueueDone,
        QueueStats, QueueWrite, Write,
        answer::{self, Answered},
    },
    engine::{Answering, Job, Poller, Shared, Spec, Station, Workers, handler},
    error::{Failure, Result as UserResult, decode_failure},
    queue::{KEEP_DEFAULT, Queue},
    telemetry::trace,
    time::Timestamp,
};

/// Why an item has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemError {
    /// Every attempt failed, or one for good.
    #[error("queue item {item} failed after {} attempts: {}", .failure.attempts, .failure.full())]
    Failed {
        /// The item.
        item: ItemId,
        /// Why.
        failure: Box<Failure>,
    },
    /// It was cancelled before a worker took it.
    #[error("queue item {item} was cancelled")]
    Cancelled {
        /// The item.
        item: ItemId,
    },
    /// It could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl Client {
    /// Puts an item into a work queue. Set what else is to be said, then await it.
    ///
    /// ```
    /// # use everstep::{prelude::*, Queue};
    /// const MAILS: Queue<String, ()> = Queue::new("mails");
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::in_memory().start().await?;
    /// engine.work(MAILS, 2, async |job, to: String| {
    ///     println!("to {to}, attempt {}, {}", job.attempt(), job.idempotency_key());
    ///     Ok(())
    /// })?;
    /// let mail = engine.client().enqueue(MAILS, &"ada@example.org".to_owned()).priority(1).await?;
    /// mail.result().await?;
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn enqueue<I: Value, O: Value>(&self, queue: Queue<I, O>, input: &I) -> EnqueueItem<O> {
        let payload = encode(input, "the item", self);
        self.enqueue_encoded(queue.name(), payload, queue.kept_for())
    }

    /// Puts an item into a queue that is only known by name: JSON in, JSON out.
    pub fn enqueue_json(&self, queue: &str, input: &Json) -> EnqueueItem<Json> {
        let payload = encode_json(input, "the item", self);
        self.enqueue_encoded(queue, payload, KEEP_DEFAULT)
    }

    fn enqueue_encoded<O>(
        &self,
        queue: &str,
        payload: Result<Vec<u8>, ClientError>,
        keep: Duration,
    ) -> EnqueueItem<O> {
        let payload = payload.and_then(|payload| self.seal(payload, "the item"));
        EnqueueItem {
            client: self.clone(),
            item: payload.map(|payload| NewItem {
                queue: queue.to_owned(),
                payload,
                priority: 0,
                available_at: None,
                dedupe: None,
                keep,
                trace: None,
            }),
            delay: None,
            output: PhantomData,
        }
    }

    /// A handle to an item by its id, without looking whether it is there.
    pub fn queue_item<O>(&self, item: ItemId) -> ItemHandle<O> {
        ItemHandle { client: self.clone(), item, attached: false, output: PhantomData }
    }

    /// Works on the items of a queue, up to `concurrency` at once, on this runtime, until the worker
    /// is [stopped](Worker::stop) or the engine of this process shuts down. A client
    /// without an engine ([`Client::open`]) can work too.
    ///
    /// An item is worked on at least once: a worker that dies, or gives no sign of life for as long
    /// as the queue's visibility, loses its items to others. Give outside systems
    /// [`Job::idempotency_key`].
    ///
    /// # Errors
    ///
    /// If there is no tokio runtime here, or the queue's name cannot be used.
    pub fn work<I, O, F, R>(
        &self,
        queue: Queue<I, O>,
        concurrency: usize,
        code: F,
    ) -> Result<Worker, ClientError>
    where
        I: Value,
        O: Value,
        F: Fn(Job, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + Send + 'static,
    {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ClientError::NoRuntime)?;
        self.work_on(queue, concurrency, handler(code), runtime)
    }

    pub(crate) fn work_on<I, O>(
        &self,
        queue: Queue<I, O>,
        concurrency: usize,
        handler: crate::engine::Handler,
        runtime: tokio::runtime::Handle,
    ) -> Result<Worker, ClientError> {
        named("the queue's name", queue.name())?;
        if let Some(limit) = queue.limited_by() {
            named("the limit's name", limit.name())?;
        }
        let spec = Spec::new(queue, concurrency, handler)?;
        let keeps = self.own();
        let station = Workers::open(&self.shared, spec, runtime, self.codecs.clone(), keeps)
            .ok_or(ClientError::Closed)?;
        Ok(Worker { shared: self.shared.clone(), station })
    }

    /// How a queue stands: how many items are in which state, and since when the oldest waits.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn queue_stats(&self, queue: &str) -> Result<QueueStats, ClientError> {
        let queue = queue.to_owned();
        self.read(move |store| store.queue_stats(&queue)).await
    }

    /// Items of a queue by number, after the given one, at most `limit`; in one state, or in any.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn queue_items(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemInfo>, ClientError> {
        let queue = queue.to_owned();
        let rows = self.read(move |store| store.queue_items(&queue, state, after, limit)).await?;
        let rows = rows.into_iter();
        Ok(rows.map(|row| ItemInfo::new(row, &self.codecs)).collect())
    }

    /// The dead letters of a queue by number: items that failed for good without a workflow that was
    /// told. They stay until they are [replayed](ItemHandle::replay) or
    /// [dropped](ItemHandle::drop_dead).
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn queue_dead_letters(
        &self,
        queue: &str,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemInfo>, ClientError> {
        self.queue_items(queue, Some(ItemState::Dead), after, limit).await
    }

    async fn write_queue(&self, write: QueueWrite) -> Result<QueueDone, ClientError> {
        self.ask(Write::Queue(Box::new(write))).await
    }

    async fn item_answer(&self, item: ItemId) -> Result<Vec<u8>, ClientError> {
        let unknown = || ClientError::UnknownItem { item };
        let ended = self.shared.hub.await_item(item);
        let found = self.read(move |store| store.queue_ended(&[item])).await?.pop();
        if let Some((_, answer)) = found {
            return answer.ok_or_else(unknown);
        }
        // Asked after the waiter was registered: it is either told of the end of the engine, or
        // finds it here.
        self.check_open()?;
        Poller::ensure(&self.shared);
        let answer = ended.await.map_err(|_| ClientError::Closed)??;
        answer.ok_or_else(unknown)
    }
}

/// An item to be put into a queue. Await it.
#[must_use = "nothing is put in unless it is awaited"]
pub struct EnqueueItem<O> {
    client: Client,
    item: Result<NewItem, ClientError>,
    delay: Option<Duration>,
    output: PhantomData<fn() -> O>,
}

impl<O> EnqueueItem<O> {
    fn set(mut self, change: impl FnOnce(&mut NewItem)) -> Self {
        if let Ok(item) = &mut self.item {
            change(item);
        }
        self
    }

    /// Items of a higher priority are taken first; 0 if this is not said.
    pub fn priority(self, priority: i32) -> Self {
        self.set(|item| item.priority = priority)
    }

    /// No worker takes it before this long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// No worker takes it before this instant.
    pub fn at(self, at: Timestamp) -> Self {
        self.set(|item| item.available_at = Some(at))
    }

    /// If an item of the queue has an equal key, attaches to that one instead of putting in another:
    /// one that has not ended, or whose result is still kept.
    pub fn dedupe(self, key: impl Into<String>) -> Self {
        self.set(|item| item.dedupe = Some(key.into()))
    }

    /// How long the result is kept for the handle, if another time than the queue says.
    pub fn keep(self, keep: Duration) -> Self {
        self.set(|item| item.keep = keep)
    }

    async fn send(self) -> Result<ItemHandle<O>, ClientError> {
        let mut item = self.item?;
        named("the queue's name", &item.queue)?;
        if let Some(key) = &item.dedupe {
            named("the dedupe key", key)?;
        }
        if let Some(delay) = self.delay {
            self.client.learn_time().await?;
            item.available_at = Some(self.client.shared.now() + delay);
        }
        item.trace = trace::current();
        match self.client.write_queue(QueueWrite::Enqueue(item)).await? {
            QueueDone::Enqueued(enqueued) => {
                let mut handle = self.client.queue_item(enqueued.item);
                handle.attached = enqueued.attached;
                Ok(handle)
            }
            _ => Err(ClientError::Closed),
        }
    }
}

awaited!([O: 'static] EnqueueItem<O>, send => Result<ItemHandle<O>, ClientError>);

/// An item of a queue, from outside. Cheap to clone.
pub struct ItemHandle<O = Json> {
    client: Client,
    item: ItemId,
    attached: bool,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for ItemHandle<O> {
    fn clone(&self) -> Self {
        ItemHandle {
            client: self.client.clone(),
            item: self.item,
            attached: self.attached,
            output: PhantomData,
        }
    }
}

impl<O> std::fmt::Debug for ItemHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ItemHandle({})", self.item)
    }
}

impl<O> ItemHandle<O> {
    /// The id of the item.
    pub fn id(&self) -> ItemId {
        self.item
    }

    /// Whether an item with the same dedupe key was found, instead of putting in another.
    pub fn attached(&self) -> bool {
        self.attached
    }

    /// Everything about the item.
    ///
    /// # Errors
    ///
    /// If there is no such item: its result is kept only for as long as its queue says.
    pub async fn info(&self) -> Result<ItemInfo, ClientError> {
        let item = self.item;
        let row = self.client.read(move |store| store.queue_item(item)).await?;
        row.map(|row| ItemInfo::new(row, &self.client.codecs))
            .ok_or(ClientError::UnknownItem { item })
    }

    /// What the item is doing.
    ///
    /// # Errors
    ///
    /// As [`info`](ItemHandle::info).
    pub async fn status(&self) -> Result<ItemState, ClientError> {
        Ok(self.info().await?.state)
    }

    async fn control(&self, control: ItemControl) -> Result<ItemControlled, ClientError> {
        let write = QueueWrite::Control(self.item, control);
        match self.client.write_queue(write).await? {
            QueueDone::Controlled(ItemControlled::Unknown) => {
                Err(ClientError::UnknownItem { item: self.item })
            }
            QueueDone::Controlled(controlled) => Ok(controlled),
            _ => Err(ClientError::Closed),
        }
    }

    /// Takes the item out of its queue; `false` if a worker has it, or it has ended. A workflow that
    /// waits for it gets an error.
    ///
    /// # Errors
    ///
    /// If there is no such item.
    pub async fn cancel(&self) -> Result<bool, ClientError> {
        Ok(self.control(ItemControl::Cancel).await? == ItemControlled::Done)
    }

    /// Puts a dead letter back into its queue, with all its attempts before it; `false` if it is
    /// none.
    ///
    /// # Errors
    ///
    /// If there is no such item.
    pub async fn replay(&self) -> Result<bool, ClientError> {
        Ok(self.control(ItemControl::Replay).await? == ItemControlled::Done)
    }

    /// Removes a dead letter; `false` if it is none.
    ///
    /// # Errors
    ///
    /// If there is no such item.
    pub async fn drop_dead(&self) -> Result<bool, ClientError> {
        Ok(self.control(ItemControl::Drop).await? == ItemControlled::Done)
    }

    async fn value(&self) -> Result<Vec<u8>, ItemError> {
        let item = self.item;
        let bytes = self.client.item_answer(item).await?;
        let decoded = answer::decode(&bytes).map_err(|error| ClientError::Decode {
            what: format!("the result of queue item {item}"),
            problem: error.to_string(),
        })?;
        match decoded {
            Answered::Value(payload) => Ok(payload),
            Answered::Failure(mut failure) => {
                let what = format!("the error of queue item {item}");
                let opened = failure.open_details(&self.client.codecs);
                opened.map_err(|error| unreadable(what, &error))?;
                Err(ItemError::Failed { item, failure })
            }
            Answered::Cancelled => Err(ItemError::Cancelled { item }),
            Answered::Unknown | Answered::Rejected(_) => {
                Err(ItemError::Client(ClientError::UnknownItem { item }))
            }
        }
    }

    /// The result as JSON, once there is one.
    ///
    /// # Errors
    ///
    /// As [`result`](ItemHandle::result).
    pub async fn result_json(&self) -> Result<Json, ItemError> {
        let bytes = self.value().await?;
        let what = || format!("the result of queue item {}", self.item);
        Ok(self.client.decode_json(&bytes, None, what)?)
    }
}

impl<O: DeserializeOwned> ItemHandle<O> {
    /// What the worker gives, once it has.
    ///
    /// # Errors
    ///
    /// If the item failed for good or was cancelled, or its result is no longer kept.
    pub async fn result(&self) -> Result<O, ItemError> {
        let bytes = self.value().await?;
        let what = || format!("the result of queue item {}", self.item);
        Ok(self.client.decode(&bytes, None, what)?)
    }
}

/// An item of a queue, as clients see it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ItemInfo {
    /// Its id.
    pub id: ItemId,
    /// The queue.
    pub queue: String,
    /// What it is doing.
    pub state: ItemState,
    /// Since when it can be worked on, when it can be, until when its worker has it without a sign
    /// of life, until when its result is kept, or when it became a dead letter: as its state says.
    pub at: Timestamp,
    /// The higher, the earlier.
    pub priority: i32,
    /// How many attempts were begun.
    pub attempts: u32,
    /// The key under which no other item is put in.
    pub dedupe: Option<String>,
    /// When it was put in.
    pub created_at: Timestamp,
    /// The input, as JSON.
    pub input: Option<Json>,
    /// The error of its last failed attempt.
    pub error: Option<Failure>,
}

impl ItemInfo {
    fn new(row: ItemRow, codecs: &Codecs) -> ItemInfo {
        let error = row.error.map(|bytes| {
            let opened = decode_failure(&bytes).and_then(|mut failure| {
                failure.open_details(codecs)?;
                Ok(failure)
            });
            opened.unwrap_or_else(|error| Failure::unreadable(&error.to_string()))
        });
        let input = codecs.open(&row.payload, None);
        let input = input.and_then(|bytes| payload::to_json(&bytes)).ok();
        ItemInfo {
            id: row.id,
            queue: row.queue,
            state: row.state,
            at: row.at,
            priority: row.priority,
            attempts: row.attempts,
            dedupe: row.dedupe,
            created_at: row.created_at,
            input,
            error,
        }
    }
}

/// A worker that was set up with `work`. Dropping it changes nothing: it works on.
pub struct Worker {
    shared: Arc<Shared>,
    station: Arc<Station>,
}

impl Worker {
    /// The name of its queue.
    pub fn queue(&self) -> &str {
        self.station.queue()
    }

    /// Stops in good order: takes no more items, tells its handlers to stop
    /// ([`Job::cancellation`]), waits for them up to `shutdown_limit`, and gives back what is left,
    /// so that others can have it at once. An attempt that ends with an error after this does not
    /// count.
    ///
    /// A handler that blocks its thread cannot be dropped. It is waited for a few seconds longer; then
    /// others get its item when the visibility of the queue has passed, and the attempt counts.
    pub async fn stop(self) {
        let limit = self.shared.settings.shutdown_limit;
        self.stop_within(limit).await;
    }

    /// As [`stop`](Worker::stop), with another limit.
    pub async fn stop_within(self, limit: Duration) {
        _ = self.station.stop(&self.shared, limit).await;
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({})", self.queue())
    }
}

impl Job {
    /// Says that the handler is alive, and whether the item is still its own. The worker does so by
    /// itself; ask before something that must not be done twice.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn heartbeat(&self) -> Result<bool, ClientError> {
        kept(self.ask_to_keep(None)).await
    }

    /// Keeps the item for at least this long from now, even without a sign of life; whether it is
    /// still the worker's own.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn extend(&self, by: std::time::Duration) -> Result<bool, ClientError> {
        kept(self.ask_to_keep(Some(by))).await
    }
}

async fn kept(answer: Answering) -> Result<bool, ClientError> {
    let done = answer.await.map_err(|_| ClientError::Closed)??;
    Ok(matches!(done, Outcome::Queue(QueueDone::Extended(held)) if held == [true]))
}
