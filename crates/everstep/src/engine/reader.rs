//! Reads from the store on threads that may block, so that no engine thread and no caller does.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::activity::Activity;
use crate::store::Store;

type Job = Box<dyn FnOnce(&dyn Store) + Send>;

/// A few threads that read. They come when there is work, and all but one go when there has been none for
/// a while: when no thread can be started, the one that is there reads everything, and no engine thread
/// has to. All go at once when nobody can ask any more, since they keep the store open.
pub(crate) struct Reader(Arc<Desk>);

/// What the threads share.
struct Desk {
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
    /// Nobody can ask any more.
    closed: bool,
}

const THREADS_MAX: usize = 4;
const IDLE_LIMIT: Duration = Duration::from_secs(10);

impl Reader {
    pub(crate) fn new(store: Arc<dyn Store>, activity: Arc<Activity>) -> Arc<Reader> {
        Arc::new(Reader(Arc::new(Desk {
            store,
            activity,
            state: Mutex::default(),
            filled: Condvar::new(),
        })))
    }

    /// Runs a job on one of the threads.
    pub(crate) fn spawn(self: &Arc<Self>, job: impl FnOnce(&dyn Store) + Send + 'static) {
        let desk = &self.0;
        desk.activity.begin(1);
        let mut state = desk.lock();
        state.jobs.push_back(Box::new(job));
        // One that was told of an earlier job may still count as idle.
        if state.idle >= state.jobs.len() || state.threads == THREADS_MAX {
            drop(state);
            desk.filled.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let of_thread = Arc::clone(desk);
        let spawned = thread::Builder::new()
            .name("everstep-read".to_owned())
            .spawn(move || of_thread.work());
        if let Err(error) = spawned {
            tracing::error!(%error, "a thread that reads the store cannot be started");
            desk.lock().threads -= 1;
            desk.do_without_thread();
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
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.filled.notify_all();
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No thread could be started for what was asked last: the others will come to it. Without any,
    /// it is read in place, as an engine never does: it has one from its start.
    fn do_without_thread(&self) {
        loop {
            let mut state = self.lock();
            if state.threads > 0 {
                drop(state);
                return self.filled.notify_one();
            }
            let Some(job) = state.jobs.pop_front() else {
                return;
            };
            drop(state);
            self.read(job);
        }
    }

    fn read(&self, job: Job) {
        job(&*self.store);
        self.activity.end(1);
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.read(job);
                state = self.lock();
                continue;
            }
            if state.closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let waited = self.filled.wait_timeout(state, IDLE_LIMIT);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::store::MemoryStore;

    /// A file stayed open for ten seconds after the engine on it had been shut down.
    #[tokio::test]
    async fn nothing_keeps_the_store_open_once_nobody_can_ask() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let weak = Arc::downgrade(&store);
        let reader = Reader::new(store, Arc::default());
        assert!(reader.read(|store| store.pools().is_ok()).await.unwrap());
        let asked = Instant::now();
        drop(reader);
        while weak.upgrade().is_some() {
            assert!(asked.elapsed() < IDLE_LIMIT / 2, "the store is still open");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
