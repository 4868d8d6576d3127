//! Many items through a few workers, for benchmarks and tests.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;

use crate::{
    client::ClientError,
    engine::{Engine, Job, StartError},
    queue::Queue,
    store::Store,
};

/// What [`queue_load`] has measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueLoad {
    /// How long it took to put all items in.
    pub enqueued_in: Duration,
    /// How long the workers took for all of them, after that.
    pub worked_in: Duration,
    /// How many attempts there were, by item.
    pub attempts: Vec<u64>,
}

/// Why a load could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueLoadError {
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The queue could not be used.
    #[error(transparent)]
    Client(#[from] ClientError),
}

const LOAD: Queue<u64, u64> = Queue::new("load").keep(Duration::ZERO);

/// Puts `items` items into a queue on this store, lets `workers` workers with this concurrency each
/// work on them, and waits until all are done.
///
/// # Errors
///
/// If the store cannot be used.
pub async fn queue_load(
    store: Arc<dyn Store>,
    items: u64,
    workers: usize,
    concurrency: usize,
) -> Result<QueueLoad, QueueLoadError> {
    let engine = Engine::on(store).start().await?;
    let client = engine.client();
    let begun = Instant::now();
    // Some hundred callers at once, as a busy service has.
    let callers = (0..items).step_by(500).map(|first| {
        let client = &client;
        async move {
            let all = (first..items.min(first + 500)).map(|n| client.enqueue(LOAD, &n));
            try_join_all(all.map(IntoFuture::into_future)).await
        }
    });
    try_join_all(callers).await?;
    let enqueued_in = begun.elapsed();
    let attempts = Arc::new(Mutex::new(vec![0; usize::try_from(items).unwrap_or(0)]));
    let left = Arc::new(AtomicU64::new(items));
    let done = Arc::new(tokio::sync::Notify::new());
    let begun = Instant::now();
    for _ in 0..workers {
        let (attempts, left, done) = (attempts.clone(), left.clone(), done.clone());
        engine.work(LOAD, concurrency, move |_: Job, n: u64| {
            let index = usize::try_from(n).unwrap_or(0);
            attempts.lock().unwrap_or_else(PoisonError::into_inner)[index] += 1;
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                done.notify_one();
            }
            async move { Ok(n) }
        })?;
    }
    done.notified().await;
    // The last results are durable once the queue is empty.
    while client.queue_stats(LOAD.name()).await? != crate::commit::QueueStats::default() {
        tokio::task::yield_now().await;
    }
    let worked_in = begun.elapsed();
    engine.shutdown().await;
    let attempts = attempts.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(QueueLoad { enqueued_in, worked_in, attempts })
}
