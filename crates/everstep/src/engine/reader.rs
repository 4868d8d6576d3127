//! Reads from the store on threads that may block, so that no engine thread and no caller does.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::activity::Activity;
use crate::store::Store;

type Job = Box<dyn FnOnce(&dyn Store) + Send>;

/// A few threads that read. They come when there is work, and go when there has been none.
pub(crate) struct Reader {
    store: Arc<dyn Store>,
    activity: Arc<Activity>,
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

const THREADS_MAX: usize = 4;
const IDLE_LIMIT: Duration = Duration::from_secs(10);

impl Reader {
    pub(crate) fn new(store: Arc<dyn Store>, activity: Arc<Activity>) -> Arc<Reader> {
        Arc::new(Reader {
            store,
            activity,
            state: Mutex::default(),
            filled: Condvar::new(),
        })
    }

    /// Runs a job on one of the threads.
    pub(crate) fn spawn(self: &Arc<Self>, job: impl FnOnce(&dyn Store) + Send + 'static) {
        self.activity.begin(1);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(Box::new(job));
        // One that was told of an earlier job may still count as idle.
        if state.idle >= state.jobs.len() || state.threads == THREADS_MAX {
            drop(state);
            self.filled.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let reader = self.clone();
        let spawned = thread::Builder::new()
            .name("everstep-read".to_owned())
            .spawn(move || reader.work());
        if let Err(error) = spawned {
            tracing::error!(%error, "a thread cannot be started; reading in place");
            self.work();
        }
    }

    /// Runs a job and gives its result; `None` if its thread died.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&dyn Store) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.spawn(move |store| _ = sender.send(job(store)));
        receiver.await.ok()
    }

    fn work(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job(&*self.store);
                self.activity.end(1);
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let waited = self.filled.wait_timeout(state, IDLE_LIMIT);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
