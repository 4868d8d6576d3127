//! Tells a body that it should stop.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Fires when a body should stop. Cheap to clone, and may go to other threads.
#[derive(Clone, Debug)]
pub struct Cancellation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    beaten: AtomicBool,
    timeout: Option<Duration>,
    wakers: Mutex<Vec<Waker>>,
}

impl Cancellation {
    pub(crate) fn new(timeout: Option<Duration>) -> Cancellation {
        let inner = Inner {
            cancelled: AtomicBool::new(false),
            beaten: AtomicBool::new(false),
            timeout,
            wakers: Mutex::default(),
        };
        Cancellation {
            inner: Arc::new(inner),
        }
    }

    /// Whether the body should stop.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the body should stop.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        Cancelled(self.clone())
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
        let mut wakers = self
            .0
            .inner
            .wakers
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        drop(wakers);
        if self.0.is_cancelled() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
