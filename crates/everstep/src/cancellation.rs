//! Tells a body that it should stop.
//!
//! A token goes through up to three states, and never back:
//!
//! 1. *Fired*: the body should stop. It is still polled, for the grace of the cause.
//! 2. *Seen*: the body has asked after that. An error that it returns now says that it gave up, not
//!    that its attempt failed.
//! 3. *Stopped*: the body is not polled again, and its result is discarded.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::seam::Abort;

/// Fires when a body should stop. Cheap to clone, and may go to other threads.
///
/// | cause | when it fires | how long the body may go on | its result |
/// | --- | --- | --- | --- |
/// | shutdown | when the shutdown begins | [`shutdown_limit`](crate::Settings::shutdown_limit) | recorded |
/// | cancel of the run | when its owner knows | [`stop_grace`](crate::Settings::stop_grace) | recorded, so that its rollback finds it |
/// | deadline of the run | when it has passed | `stop_grace` | recorded, so that its rollback finds it |
/// | timeout of the step | when its time is over | `stop_grace` | discarded: the attempt has timed out |
/// | lost lease | `stop_grace` before the body must stop, which is before the lease ends | `stop_grace`, at most a fifth of the lease | recorded, unless the lease ends first |
/// | lost `select!` or race | when the future is dropped | not at all: only a blocking body goes on | discarded |
///
/// An error that a body returns after it has seen the token counts as no attempt (except after its
/// timeout): the body has given up, and runs again when the run goes on. That is never in an engine that
/// shuts down, and after the end of a lease was announced only once the lease is renewed.
#[derive(Clone, Debug)]
pub struct Cancellation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    /// The body has asked after it was cancelled.
    seen: AtomicBool,
    /// The body is not polled again.
    stopped: AtomicBool,
    /// The task of a body that was spawned.
    task: OnceLock<Abort>,
    beaten: AtomicBool,
    timeout: Option<Duration>,
    wakers: Mutex<Vec<Waker>>,
}

impl Cancellation {
    pub(crate) fn new(timeout: Option<Duration>) -> Cancellation {
        let inner = Inner {
            cancelled: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            task: OnceLock::new(),
            beaten: AtomicBool::new(false),
            timeout,
            wakers: Mutex::default(),
        };
        Cancellation { inner: Arc::new(inner) }
    }

    /// Whether the body should stop.
    pub fn is_cancelled(&self) -> bool {
        let cancelled = self.inner.cancelled.load(Ordering::Acquire);
        if cancelled {
            self.inner.seen.store(true, Ordering::Release);
        }
        cancelled
    }

    /// Waits until the body should stop.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        Cancelled(self.clone())
    }

    /// Whether the body knows that it should stop.
    pub(crate) fn is_seen(&self) -> bool {
        self.inner.seen.load(Ordering::Acquire)
    }

    /// The body runs as this task, which ends when the body is stopped.
    pub(crate) fn set_task(&self, task: Abort) {
        let task = self.inner.task.get_or_init(|| task);
        // A stop that came before has found no task.
        if self.is_stopped() {
            task.abort();
        }
    }

    /// From now on the body is not polled, and its result is discarded. Any thread may call this: a
    /// spawned task is aborted though its engine thread is blocked.
    pub(crate) fn stop(&self) {
        self.inner.stopped.store(true, Ordering::SeqCst);
        self.cancel();
        if let Some(task) = self.inner.task.get() {
            task.abort();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::Release);
        let wakers = {
            let mut wakers = self.inner.wakers.lock().unwrap_or_else(|e| e.into_inner());
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn beat(&self) {
        if self.inner.timeout.is_some() {
            self.inner.beaten.store(true, Ordering::Release);
        }
    }

    /// Whether there was a heartbeat since this was last asked.
    pub(crate) fn take_beat(&self) -> bool {
        self.inner.beaten.swap(false, Ordering::AcqRel)
    }
}

struct Cancelled(Cancellation);

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The waker is put in before the flag is read, so that a cancel in between is not missed.
        let mut wakers = self.0.inner.wakers.lock().unwrap_or_else(|e| e.into_inner());
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        drop(wakers);
        if self.0.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }
}
