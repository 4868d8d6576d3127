//! Reads from the store on threads that may block, so that no engine thread and no caller does.

use std::{
    collections::VecDeque,
    ops::ControlFlow::{Break, Continue},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::activity::Activity;
use crate::{
    seam::{self, Monitor, Process},
    store::Store,
};

type Job = Box<dyn FnOnce(&dyn Store) + Send>;

/// A few threads that read. They come when there is work, and all but one go when there has been none for
/// a while: when no thread can be started, the one that is there reads everything, and no engine thread
/// has to. All go at once when nobody can ask any more, since they keep the store open.
pub(crate) struct Reader(Arc<Desk>);

/// What the threads share.
struct Desk {
    store: Arc<dyn Store>,
    activity: Arc<Activity>,
    process: Process,
    state: Monitor<State>,
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
            process: Process::current(),
            state: Monitor::default(),
        })))
    }

    /// Runs a job on one of the threads.
    pub(crate) fn spawn(self: &Arc<Self>, job: impl FnOnce(&dyn Store) + Send + 'static) {
        let desk = &self.0;
        desk.activity.begin(1);
        let mut state = desk.state.lock();
        state.jobs.push_back(Box::new(job));
        // One that was told of an earlier job may still count as idle.
        if state.idle >= state.jobs.len() || state.threads == THREADS_MAX {
            drop(state);
            desk.state.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let of_thread = Arc::clone(desk);
        let spawned = desk.process.spawn("everstep-read", move || of_thread.work());
        if let Err(error) = spawned {
            tracing::error!(%error, "a thread that reads the store cannot be started");
            desk.state.lock().threads -= 1;
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
        self.0.state.change(|state| state.closed = true);
    }
}

impl Desk {
    /// No thread could be started for what was asked last: the others will come to it. Without any,
    /// it is read in place, as an engine never does: it has one from its start.
    fn do_without_thread(&self) {
        loop {
            let mut state = self.state.lock();
            if state.threads > 0 {
                drop(state);
                return self.state.notify_one();
            }
            let Some(job) = state.jobs.pop_front() else {
                return;
            };
            drop(state);
            self.read(job);
        }
    }

    /// Does a job. One that panics has told whoever asked, or drops the way to it.
    fn read(&self, job: Job) {
        seam::point("read");
        let job = std::panic::AssertUnwindSafe(|| job(&*self.store));
        // The hook has told of the panic.
        _ = std::panic::catch_unwind(job);
        self.activity.end(1);
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            self.read(job);
        }
    }

    /// The next job; none if the thread is to go.
    fn next(&self) -> Option<Job> {
        let mut idle_since = None;
        self.state.wait("reads", |state| {
            let idle = idle_since.take().map(seam::elapsed);
            state.idle -= usize::from(idle.is_some());
            if let Some(job) = state.jobs.pop_front() {
                return Break(Some(job));
            }
            let is_enough = idle.is_some_and(|idle| idle >= IDLE_LIMIT) && state.threads > 1;
            if state.closed || is_enough {
                state.threads -= 1;
                return Break(None);
            }
            state.idle += 1;
            idle_since = Some(seam::now());
            Continue(seam::after(IDLE_LIMIT))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

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

    /// Each read that panicked took its thread along, and the thread was never replaced: after four of
    /// them nothing was read any more.
    #[tokio::test]
    async fn reads_that_panic_do_not_use_up_the_threads() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let reader = Reader::new(store, Arc::default());
        for _ in 0..2 * THREADS_MAX {
            let read: Option<()> = reader.read(|_| panic!("a mistake")).await;
            assert!(read.is_none());
        }
        assert!(reader.read(|store| store.pools().is_ok()).await.unwrap());
    }
}
