//! Who follows a stream in this process, and how much of what bodies emit may be under way.
//!
//! A follower reads the store by itself, page by page; what it gets from here is only that there is
//! something to read. So nothing is kept for one that is slow.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    hash::FastMap,
    run_id::{RunId, RunNo},
    seam::{Leaf, LeafGuard},
};

/// How many bytes of what bodies emit may be queued.
pub(crate) struct Emitting {
    room: Arc<Semaphore>,
    bytes: u32,
}

/// Room for one item, until it is durable.
pub(crate) struct Room(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl Emitting {
    pub(crate) fn new(bytes: usize) -> Emitting {
        let bytes = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX).min(1 << 28);
        Emitting { room: Arc::new(Semaphore::new(bytes as usize)), bytes }
    }

    /// Waits for room for so many bytes, in order of arrival. An item that is larger than all of it
    /// waits for all of it.
    pub(crate) async fn take(&self, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes);
        let room = self.room.clone().acquire_many_owned(bytes).await;
        // It is never closed.
        room.ok().map(Room)
    }
}

/// One who follows a stream, or a value, of a run.
pub(crate) struct Follower {
    pub(crate) run: RunId,
    pub(crate) what: Followed,
    news: Notify,
    /// Whether it has read all there was and waits: only then is the store asked for it.
    waiting: AtomicBool,
}

/// What is followed.
pub(crate) enum Followed {
    Stream {
        name: String,
        /// The position that is read next.
        next: AtomicU64,
    },
    State {
        key: String,
        /// What was read last.
        seen: Leaf<Option<Vec<u8>>>,
    },
}

impl Follower {
    /// Waits for something new. `watch` is called once it is known to wait.
    pub(crate) async fn wait(&self, watch: impl FnOnce()) {
        self.waiting.store(true, Ordering::Release);
        // Also when the wait is given up.
        let _waiting = Waiting(&self.waiting);
        watch();
        self.news.notified().await;
    }

    /// There is something to read, or the run has ended, or this engine has.
    pub(crate) fn notify(&self) {
        self.news.notify_one();
    }
}

/// Ends a wait when dropped.
struct Waiting<'a>(&'a AtomicBool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The followers of one process.
#[derive(Default)]
pub(crate) struct Followers {
    by_run: Leaf<FastMap<RunNo, Vec<Weak<Follower>>>>,
    /// How many there are, so that a commit need not lock when there is none.
    count: AtomicUsize,
}

impl Followers {
    fn lock(&self) -> LeafGuard<'_, FastMap<RunNo, Vec<Weak<Follower>>>> {
        self.by_run.lock()
    }

    /// Registers a follower. Read the store after this, not before.
    pub(crate) fn follow(&self, run: RunId, what: Followed) -> Arc<Follower> {
        let follower =
            Arc::new(Follower { run, what, news: Notify::new(), waiting: AtomicBool::new(false) });
        let mut by_run = self.lock();
        self.count.fetch_add(1, Ordering::AcqRel);
        by_run.entry(run.no()).or_default().push(Arc::downgrade(&follower));
        follower
    }

    /// Forgets one that is gone.
    pub(crate) fn forget(&self, run: RunId) {
        let mut by_run = self.lock();
        if let Some(list) = by_run.get_mut(&run.no()) {
            let before = list.len();
            list.retain(|follower| follower.strong_count() > 0);
            self.count.fetch_sub(before - list.len(), Ordering::AcqRel);
            if list.is_empty() {
                by_run.remove(&run.no());
            }
        }
    }

    /// Something has been committed for this run.
    pub(crate) fn notify(&self, run: RunNo) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for follower in self.lock().get(&run).into_iter().flatten() {
            if let Some(follower) = follower.upgrade() {
                follower.notify();
            }
        }
    }

    pub(crate) fn notify_all(&self) {
        for follower in self.lock().values().flatten() {
            if let Some(follower) = follower.upgrade() {
                follower.notify();
            }
        }
    }

    /// Those that have read all there was.
    pub(crate) fn waiting(&self) -> Vec<Arc<Follower>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let by_run = self.lock();
        let all = by_run.values().flatten().filter_map(Weak::upgrade);
        all.filter(|follower| follower.waiting.load(Ordering::Acquire)).collect()
    }
}
