//! Reading what a run gives out while it goes on: streams, page by page or as they grow, and
//! values as they change.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::{Client, ClientError, RunHandle, named};
use crate::{
    commit::EmittedBy,
    engine::{Followed, Follower},
    location::keys,
    run_id::RunId,
    seam::Leaf,
    store::{self, StreamRow},
    time::Timestamp,
};

/// An item of a stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StreamItem<T> {
    /// Its place in the stream: 0, 1, 2, .. over the whole life of the run, never given twice.
    pub position: u64,
    /// When it became durable.
    pub at: Timestamp,
    /// Which of the run's lives gave it, from 1.
    pub generation: u32,
    /// The body that gave it; absent if the workflow's own code did, with
    /// [`Ctx::emit`](crate::Ctx::emit).
    pub by: Option<EmittedFrom>,
    /// The body that gave it is at it again: items with an equal location and generation that this
    /// reader gave before come from an attempt that was abandoned, because it failed, ran out of
    /// time, or died with its process. They stay in the stream. Set on the first item of the new
    /// attempt; always `false` in a page.
    pub restarted: bool,
    /// How many items before this one were dropped, because the stream has a bound, before this
    /// reader came to them.
    pub missed: u64,
    /// The item.
    pub value: T,
}

/// The body that gave an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EmittedFrom {
    /// The step.
    pub location: String,
    /// Which attempt of it, from 1.
    pub attempt: u32,
    /// Tells a body from one that ran again after its process died, which has the same attempt: no
    /// other has this number. Which came later is told by the positions of their items.
    pub life: u64,
}

impl From<EmittedBy> for EmittedFrom {
    fn from(by: EmittedBy) -> EmittedFrom {
        EmittedFrom { location: keys::describe(&by.step), attempt: by.attempt, life: by.life }
    }
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StreamPage<T> {
    /// The items, in order.
    pub items: Vec<StreamItem<T>>,
    /// The oldest position that is kept. If it is after the one that was asked for, what is in
    /// between was dropped.
    pub first: u64,
    /// Where to go on.
    pub next: u64,
    /// The position that the next item of the stream will get: equal to `next` if this page has the
    /// newest item.
    pub end: u64,
}

/// A stream of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// The oldest position that is kept.
    pub first: u64,
    /// The position that the next item will get.
    pub end: u64,
}

/// How many items a page has at most.
const PAGE_MAX: usize = 1_000;

/// How many items a reader takes at a time.
const READ_AHEAD: usize = 256;

impl<O> RunHandle<O> {
    /// Follows a stream of the run: gives what is there, then what comes, until the run has ended.
    ///
    /// It need not exist yet. In the process that owns the run an item is given right after the
    /// commit that makes it durable; in another one it is asked for, five times a second or more
    /// often.
    ///
    /// ```
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn count(ctx: Ctx, to: u32) -> Result<()> {
    ///     ctx.step_with("count", async |step| {
    ///         for n in 1..=to {
    ///             step.emit("numbers", &n).await?;
    ///         }
    ///         Ok(())
    ///     })
    ///     .await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::in_memory().register(count).start().await?;
    /// let run = engine.client().start(count, 3).await?;
    /// let mut numbers = run.stream::<u32>("numbers").from(1);
    /// let mut seen = Vec::new();
    /// while let Some(item) = numbers.next().await? {
    ///     seen.push(item.value);
    /// }
    /// assert_eq!(seen, [2, 3]);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn stream<T: DeserializeOwned>(&self, name: &str) -> StreamReader<T> {
        self.reader(name, decode)
    }

    /// As [`stream`](RunHandle::stream), with items as JSON.
    pub fn stream_json(&self, name: &str) -> StreamReader<Json> {
        self.reader(name, decode_json)
    }

    fn reader<T>(&self, name: &str, decode: Decode<T>) -> StreamReader<T> {
        StreamReader {
            client: self.client.clone(),
            run: self.id,
            name: name.to_owned(),
            decode,
            next: 0,
            missed: 0,
            read: VecDeque::new(),
            seen: BTreeMap::new(),
            following: None,
        }
    }

    /// A part of a stream: items from a position on, at most `limit` and at most 1 000. Does not
    /// wait.
    ///
    /// # Errors
    ///
    /// If there is no such run, or an item is of another type.
    pub async fn stream_page<T: DeserializeOwned>(
        &self,
        name: &str,
        from: u64,
        limit: usize,
    ) -> Result<StreamPage<T>, ClientError> {
        self.page(name, from, limit, decode).await
    }

    /// As [`stream_page`](RunHandle::stream_page), with items as JSON.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn stream_page_json(
        &self,
        name: &str,
        from: u64,
        limit: usize,
    ) -> Result<StreamPage<Json>, ClientError> {
        self.page(name, from, limit, decode_json).await
    }

    async fn page<T>(
        &self,
        name: &str,
        from: u64,
        limit: usize,
        decode: Decode<T>,
    ) -> Result<StreamPage<T>, ClientError> {
        let page = read_page(&self.client, self.id, name, from, limit.min(PAGE_MAX)).await?;
        let next = page.items.last().map_or(from, |row| row.pos + 1);
        let item = |row| to_item(&self.client, self.id, name, row, decode);
        Ok(StreamPage {
            items: page.items.into_iter().map(item).collect::<Result<_, _>>()?,
            first: page.first,
            next,
            end: page.next,
        })
    }

    /// The streams that the run has, by name.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn streams(&self) -> Result<Vec<StreamInfo>, ClientError> {
        let no = self.id.no();
        self.row().await?;
        let streams = self.client.read(move |store| store.streams(no)).await?;
        let info = |extent: store::StreamExtent| StreamInfo {
            name: extent.stream,
            first: extent.first,
            end: extent.next,
        };
        Ok(streams.into_iter().map(info).collect())
    }

    /// Follows a value that the run sets with [`Ctx::set_state`](crate::Ctx::set_state): gives
    /// what it is, then what it becomes, until the run has ended.
    ///
    /// It gives the latest value, so one that was set for a moment only may not be seen; for all of
    /// them use a stream.
    ///
    /// ```
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn work(ctx: Ctx, _: ()) -> Result<()> {
    ///     ctx.set_state("phase", &"asking")?;
    ///     let _: u32 = ctx.listen("answer").await?;
    ///     ctx.set_state("phase", &"done")
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::in_memory().register(work).start().await?;
    /// let run = engine.client().start(work, ()).await?;
    /// let mut phase = run.watch_state::<String>("phase");
    /// assert_eq!(phase.next().await?.as_deref(), Some("asking"));
    /// run.send("answer", &42).await?;
    /// assert_eq!(phase.next().await?.as_deref(), Some("done"));
    /// assert_eq!(phase.next().await?, None);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn watch_state<T: DeserializeOwned>(&self, key: &str) -> StateWatch<T> {
        StateWatch {
            client: self.client.clone(),
            run: self.id,
            key: key.to_owned(),
            decode,
            following: None,
        }
    }
}

type Decode<T> = fn(&Client, RunId, &[u8], &dyn Fn() -> String) -> Result<T, ClientError>;

fn decode<T: DeserializeOwned>(
    client: &Client,
    run: RunId,
    bytes: &[u8],
    what: &dyn Fn() -> String,
) -> Result<T, ClientError> {
    client.decode(bytes, Some(run), what)
}

fn decode_json(
    client: &Client,
    run: RunId,
    bytes: &[u8],
    what: &dyn Fn() -> String,
) -> Result<Json, ClientError> {
    client.decode_json(bytes, Some(run), what)
}

async fn read_page(
    client: &Client,
    run: RunId,
    name: &str,
    from: u64,
    limit: usize,
) -> Result<store::StreamPage, ClientError> {
    named("the stream's name", name)?;
    let (no, name) = (run.no(), name.to_owned());
    let page = client.read(move |store| store.stream(no, &name, from, limit)).await?;
    page.ok_or_else(|| ClientError::unknown_run(run))
}

fn to_item<T>(
    client: &Client,
    run: RunId,
    name: &str,
    row: StreamRow,
    decode: Decode<T>,
) -> Result<StreamItem<T>, ClientError> {
    let position = row.pos;
    let what = || format!("item {position} of the stream `{name}` of run {run}");
    Ok(StreamItem {
        position,
        at: row.at,
        generation: row.generation,
        by: row.by.map(EmittedFrom::from),
        restarted: false,
        missed: 0,
        value: decode(client, run, &row.body, &what)?,
    })
}

/// Follows a stream. See [`RunHandle::stream`].
#[must_use = "nothing is read unless `next` is awaited"]
pub struct StreamReader<T> {
    client: Client,
    run: RunId,
    name: String,
    decode: Decode<T>,
    /// The position after the last item that was given.
    next: u64,
    /// How many items before `next` were dropped since the last item that was given.
    missed: u64,
    /// What was read and not yet given.
    read: VecDeque<StreamRow>,
    /// The body that last gave an item of each step, by generation and key.
    seen: BTreeMap<(u32, Vec<u8>), (u32, u64)>,
    following: Option<Arc<Follower>>,
}

impl<T> StreamReader<T> {
    /// Begins at this position, instead of at the oldest item that is kept.
    pub fn from(mut self, position: u64) -> StreamReader<T> {
        self.next = position;
        self.read.clear();
        self
    }

    /// The position after the last item that was given: another reader goes on
    /// [`from`](StreamReader::from) here.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The next item; `None` once the run has ended and all is read. Waits if there is none yet.
    ///
    /// It may be dropped while it waits, and called again: nothing is lost.
    ///
    /// # Errors
    ///
    /// If there is no such run (any more), if the store cannot be read, if the engine of this
    /// process shuts down, or if the item is of another type; then the next call goes on behind it.
    pub async fn next(&mut self) -> Result<Option<StreamItem<T>>, ClientError> {
        loop {
            if let Some(row) = self.read.pop_front() {
                return self.give(row).map(Some);
            }
            // Registered before it is read: what comes in between is not missed.
            let follower = self.follower();
            let page = read_page(&self.client, self.run, &self.name, self.next, READ_AHEAD).await?;
            self.skip_dropped(page.first);
            if !page.items.is_empty() {
                self.read = page.items.into();
                continue;
            }
            if page.status.is_terminal() {
                return Ok(None);
            }
            if let Followed::Stream { next, .. } = &follower.what {
                next.store(self.next, Ordering::Release);
            }
            wait(&self.client, &follower).await?;
        }
    }

    fn follower(&mut self) -> Arc<Follower> {
        let (client, run, name) = (&self.client, self.run, &self.name);
        let follow = || {
            let name = name.clone();
            let next = AtomicU64::new(0);
            let followers = &client.shared.hub.followers;
            followers.follow(run, Followed::Stream { name, next })
        };
        self.following.get_or_insert_with(follow).clone()
    }

    fn skip_dropped(&mut self, first: u64) {
        if first > self.next {
            self.missed += first - self.next;
            self.next = first;
        }
    }

    fn give(&mut self, row: StreamRow) -> Result<StreamItem<T>, ClientError> {
        self.next = row.pos + 1;
        let missed = std::mem::take(&mut self.missed);
        let restarted = row.by.as_ref().is_some_and(|by| {
            let step = (row.generation, by.step.clone());
            let body = (by.attempt, by.life);
            let before = self.seen.insert(step, body);
            before.is_some_and(|before| before != body)
        });
        let mut item = to_item(&self.client, self.run, &self.name, row, self.decode)?;
        (item.missed, item.restarted) = (missed, restarted);
        Ok(item)
    }
}

impl<T> Drop for StreamReader<T> {
    fn drop(&mut self) {
        unfollow(&self.client, self.run, &mut self.following);
    }
}

impl<T> std::fmt::Debug for StreamReader<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, next) = (&self.name, self.next);
        write!(f, "StreamReader(`{name}` of {} from {next})", self.run)
    }
}

/// Waits until there is something to read, or the run or this engine has ended.
async fn wait(client: &Client, follower: &Follower) -> Result<(), ClientError> {
    client.check_open()?;
    follower.wait(|| client.watch(follower.run)).await;
    Ok(())
}

fn unfollow(client: &Client, run: RunId, following: &mut Option<Arc<Follower>>) {
    if following.take().is_some() {
        client.shared.hub.followers.forget(run);
    }
}

/// Follows a value. See [`RunHandle::watch_state`].
#[must_use = "nothing is read unless `next` is awaited"]
pub struct StateWatch<T> {
    client: Client,
    run: RunId,
    key: String,
    decode: Decode<T>,
    following: Option<Arc<Follower>>,
}

impl<T> StateWatch<T> {
    /// The value, when it is another than the one that was given before; `None` once the run has
    /// ended and the last value was given.
    ///
    /// It may be dropped while it waits, and called again.
    ///
    /// # Errors
    ///
    /// As [`StreamReader::next`].
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            let follower = self.follower();
            let Followed::State { seen, .. } = &follower.what else {
                return Ok(None);
            };
            let (no, key) = (self.run.no(), self.key.clone());
            let (ended, value) = self
                .client
                .read(move |store| {
                    // In this order: what an ended run has set is there.
                    let ended = store.finished(&[no])?.into_iter().next();
                    let state = store.state(no)?;
                    Ok((ended, state.into_iter().find(|(other, _)| *other == key)))
                })
                .await?;
            let value = value.map(|(_, value)| value);
            if let Some((_, None)) = ended {
                return Err(ClientError::unknown_run(self.run));
            }
            let before = {
                let mut seen = seen.lock();
                std::mem::replace(&mut *seen, value.clone())
            };
            if let Some(value) = value.filter(|value| before.as_ref() != Some(value)) {
                let (key, run) = (&self.key, self.run);
                let what = || format!("the state `{key}` of run {run}");
                return (self.decode)(&self.client, self.run, &value, &what).map(Some);
            }
            if ended.is_some() {
                return Ok(None);
            }
            wait(&self.client, &follower).await?;
        }
    }

    fn follower(&mut self) -> Arc<Follower> {
        let (client, run, key) = (&self.client, self.run, &self.key);
        let follow = || {
            let (key, seen) = (key.clone(), Leaf::default());
            let followers = &client.shared.hub.followers;
            followers.follow(run, Followed::State { key, seen })
        };
        self.following.get_or_insert_with(follow).clone()
    }
}

impl<T> Drop for StateWatch<T> {
    fn drop(&mut self) {
        unfollow(&self.client, self.run, &mut self.following);
    }
}

impl<T> std::fmt::Debug for StateWatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateWatch(`{}` of {})", self.key, self.run)
    }
}
