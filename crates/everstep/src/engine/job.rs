//! One attempt at an item of a queue: what its handler is given, and what its end means.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use uuid::Uuid;

use super::shared::{Answering, Shared};
use crate::{
    cancellation::Cancellation,
    codec::{Value, hook::Codecs, payload},
    commit::{ClaimedItem, Extend, ItemId, QueueWrite, Settlement, Write},
    error::{Error, Failure, FailureKind, Result, encode_failure},
    panics, random,
    retry::Retry,
    seam::Leaf,
    time::Timestamp,
};

/// The code of a worker: a payload goes in, a payload comes out.
pub(crate) type Handler = Arc<dyn Fn(Job, Vec<u8>) -> Handling + Send + Sync>;
pub(crate) type Handling = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// Makes a typed function into the code of a worker.
pub(crate) fn handler<I, O, F, R>(code: F) -> Handler
where
    I: Value,
    O: Value,
    F: Fn(Job, I) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O>> + Send + 'static,
{
    let code = Arc::new(code);
    Arc::new(move |job: Job, bytes: Vec<u8>| -> Handling {
        let code = code.clone();
        Box::pin(async move {
            let handling = {
                let input = job.inner.codecs.read::<I>(&bytes, None).map_err(|error| {
                    Error::fatal(format!(
                        "the input of item {} of queue `{}` cannot be decoded: {error}; replay it \
                         once the worker has the types that it was written with",
                        job.item(),
                        job.queue()
                    ))
                })?;
                code(job, input)
            };
            let output = handling.await?;
            payload::to_vec(&output).map_err(Error::fatal)
        })
    })
}

/// One attempt at an item of a queue, as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct Job {
    inner: Arc<JobInner>,
}

struct JobInner {
    shared: Arc<Shared>,
    queue: Arc<str>,
    item: ItemId,
    claim: Uuid,
    attempt: u32,
    created_at: Timestamp,
    visibility: Duration,
    cancellation: Cancellation,
    idempotency_key: String,
    codecs: Codecs,
    kept: Kept,
}

/// For how long a handler has asked to keep its item, if it has: when it asked, and how long from then.
/// The heartbeats of its worker do not shorten that.
#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Leaf<Option<(Timestamp, Duration)>>>);

impl Kept {
    fn ask(&self, now: Timestamp, by: Duration) {
        if self.left(now) < by {
            *self.0.lock() = Some((now, by));
        }
    }

    /// How long that is from now on. Never longer than it has asked for, though the clock was set back.
    fn left(&self, now: Timestamp) -> Duration {
        let asked = *self.0.lock();
        asked.map_or(Duration::ZERO, |(at, by)| by.saturating_sub(now.since(at)))
    }

    /// Until when the store is to keep the item for its worker.
    pub(super) fn until(&self, now: Timestamp, visibility: Duration) -> Timestamp {
        now + visibility.max(self.left(now))
    }
}

impl Job {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Arc<str>,
        claim: Uuid,
        visibility: Duration,
        item: &ClaimedItem,
        codecs: Codecs,
    ) -> Job {
        let idempotency_key = format!("{queue}/{}-{}", item.item, item.created_at.as_millis());
        Job {
            inner: Arc::new(JobInner {
                shared,
                queue,
                item: item.item,
                claim,
                attempt: item.attempt,
                created_at: item.created_at,
                visibility,
                cancellation: Cancellation::new(None),
                idempotency_key,
                codecs,
                kept: Kept::default(),
            }),
        }
    }

    pub(super) fn kept(&self) -> &Kept {
        &self.inner.kept
    }

    /// The item.
    pub fn item(&self) -> ItemId {
        self.inner.item
    }

    /// The name of the queue.
    pub fn queue(&self) -> &str {
        &self.inner.queue
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// When the item was put in.
    pub fn created_at(&self) -> Timestamp {
        self.inner.created_at
    }

    /// A text that is the same for every attempt at this item and for no other item: give it to
    /// outside systems, so that they do once what is asked of them twice.
    pub fn idempotency_key(&self) -> &str {
        &self.inner.idempotency_key
    }

    /// Fires when the handler should stop: its item was given to another worker, or this one shuts
    /// down. In the first case the handler is dropped at its next await, since the other worker has
    /// begun; the token is for what the handler has started elsewhere, on threads for instance. In the
    /// second case the handler may end by itself until the limit of the shutdown. Then it is dropped at
    /// its next await, and its item given back; a handler that does not await within a few seconds more
    /// keeps its item until the visibility has passed, and the attempt counts.
    pub fn cancellation(&self) -> &Cancellation {
        &self.inner.cancellation
    }

    /// Asks for the item for so long from now, or for its visibility: see [`QueueDone::Extended`](crate::commit::QueueDone::Extended).
    pub(crate) fn ask_to_keep(&self, by: Option<Duration>) -> Answering {
        let JobInner { shared, item, claim, visibility, kept, .. } = &*self.inner;
        let (item, claim, now) = (*item, *claim, shared.now());
        if let Some(by) = by {
            kept.ask(now, by);
        }
        let until = kept.until(now, *visibility);
        write(shared, QueueWrite::Extend(vec![Extend { item, claim, until }]))
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Job({} of `{}`, attempt {})",
            self.inner.item, self.inner.queue, self.inner.attempt
        )
    }
}

/// Hands a write about a queue to the committer.
pub(crate) fn write(shared: &Shared, write: QueueWrite) -> Answering {
    shared.hand_in(Write::Queue(Box::new(write)))
}

/// Runs the code; a panic is an error like any other.
pub(crate) async fn attempt(code: &Handler, job: Job, payload: Vec<u8>) -> Result<Vec<u8>> {
    let code = code.clone();
    let handling = async move { code(job, payload).await };
    match std::panic::AssertUnwindSafe(handling).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            let text = panics::describe(&*panic);
            Err(Error::attempt_failed(Failure::new(FailureKind::Panic, text)))
        }
    }
}

/// What the end of an attempt means for its item.
pub(crate) fn settlement(
    result: Result<Vec<u8>>,
    item: &ClaimedItem,
    policy: &Retry,
    now: Timestamp,
    bytes_max: usize,
    codecs: &Codecs,
) -> Settlement {
    let (attempt, item) = (item.attempt, item.item);
    let error = match result {
        Ok(bytes) if bytes.len() <= bytes_max => match codecs.seal(bytes, None) {
            Ok(sealed) => return Settlement::Done(sealed),
            // Another worker may have the key.
            Err(error) => Error::msg(format!("the result cannot be encoded: {error}")),
        },
        Ok(bytes) => {
            let text = format!(
                "the result has {} bytes, and the limit for a payload is {bytes_max}; store it \
                 elsewhere and return where it is, or raise `payload_bytes_max`",
                bytes.len()
            );
            Error::recorded(Failure::new(FailureKind::Limit, text), Vec::new())
        }
        Err(error) => error,
    };
    let seed = random::hash(item.0, b"queue");
    let next = policy.next_attempt(attempt, error.advice(), now, None, seed);
    let mut failure = error.into_failure();
    failure.attempts = attempt;
    failure.seal_details(codecs);
    match next {
        Some(at) => Settlement::Retry { at, error: encode_failure(&failure) },
        None => {
            if !matches!(
                failure.kind,
                FailureKind::Fatal | FailureKind::Rollback | FailureKind::Limit
            ) {
                failure.kind = FailureKind::Exhausted;
            }
            Settlement::Failed(encode_failure(&failure))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::decode_failure;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn settle(result: Result<Vec<u8>>, attempt: u32) -> Settlement {
        let policy = Retry::fixed(3, Duration::from_millis(50));
        let item = ClaimedItem {
            item: ItemId(7),
            attempt,
            payload: Vec::new(),
            trace: None,
            created_at: NOW,
            until: NOW,
        };
        settlement(result, &item, &policy, NOW, 4, &Codecs::default())
    }

    fn failed(settlement: Settlement) -> Failure {
        match settlement {
            Settlement::Failed(bytes) => decode_failure(&bytes).expect("its own bytes"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failed_attempt_is_made_again_until_all_are_used_up() {
        let Settlement::Retry { at, error } = settle(Err(Error::msg("no")), 2) else {
            panic!("there is a third attempt");
        };
        assert_eq!(at, Timestamp::from_millis(1_050));
        let error = decode_failure(&error).expect("its own bytes");
        assert_eq!((error.kind, error.attempts), (FailureKind::Error, 2));
        let last = failed(settle(Err(Error::msg("no").with_details(&7u8)), 3));
        assert_eq!((last.kind, last.attempts), (FailureKind::Exhausted, 3));
        assert_eq!(last.details::<u8>(), Some(7));
    }

    #[test]
    fn a_fatal_error_and_a_result_that_is_too_large_are_final() {
        let fatal = failed(settle(Err(Error::fatal("no")), 1));
        assert_eq!((fatal.kind, fatal.attempts), (FailureKind::Fatal, 1));
        assert_eq!(settle(Ok(vec![1; 4]), 1), Settlement::Done(vec![1; 4]));
        assert_eq!(failed(settle(Ok(vec![1; 5]), 1)).kind, FailureKind::Limit);
    }
}
