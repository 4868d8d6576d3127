//! Work on a runtime: futures that are spawned and calls that block.

use std::{
    any::Any,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

#[cfg(any(test, feature = "testing"))]
use futures_util::{
    FutureExt,
    future::{AbortHandle, Abortable},
};
use tokio::runtime::Handle;
#[cfg(any(test, feature = "testing"))]
use tokio::sync::oneshot;

use super::Process;

/// Starts a future on the runtime. In a simulation it is an activity of this process.
pub(crate) fn spawn_task<T: Send + 'static>(
    process: &Process,
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Task<T> {
    match process {
        Process::Real => Task::Real(runtime.spawn(work)),
        #[cfg(any(test, feature = "testing"))]
        Process::Simulated(_) => {
            let (abort, registration) = AbortHandle::new_pair();
            let (sender, ended) = oneshot::channel();
            let runtime = runtime.clone();
            let work =
                Abortable::new(std::panic::AssertUnwindSafe(work).catch_unwind(), registration);
            let spawned = process.spawn("task", move || {
                // An aborted task drops the sender.
                if let Ok(result) = super::block_on_in(&runtime, work, "task") {
                    _ = sender.send(result);
                }
            });
            spawned.expect("a simulation always has threads");
            Task::Simulated(ended, abort)
        }
    }
}

/// Starts work that blocks, on a thread of the runtime that may. In a simulation it is an activity of
/// the calling thread's process.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> Task<T> {
    match Process::current() {
        Process::Real => Task::Real(runtime.spawn_blocking(work)),
        #[cfg(any(test, feature = "testing"))]
        process @ Process::Simulated(_) => {
            let work = async move {
                super::point("blocking work");
                work()
            };
            spawn_task(&process, runtime, work)
        }
    }
}

/// Work that was started, and its result.
pub(crate) enum Task<T> {
    Real(tokio::task::JoinHandle<T>),
    #[cfg(any(test, feature = "testing"))]
    Simulated(oneshot::Receiver<std::thread::Result<T>>, AbortHandle),
}

/// Why work has no result.
pub(crate) enum NotEnded {
    Panicked(Box<dyn Any + Send>),
    /// It was aborted, or went down with its runtime.
    Cancelled,
}

impl<T> Task<T> {
    pub(crate) fn abort_handle(&self) -> Abort {
        match self {
            Task::Real(task) => Abort::Real(task.abort_handle()),
            #[cfg(any(test, feature = "testing"))]
            Task::Simulated(_, abort) => Abort::Simulated(abort.clone()),
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, NotEnded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Task::Real(task) => Pin::new(task).poll(cx).map(|ended| {
                ended.map_err(|error| match error.try_into_panic() {
                    Ok(panic) => NotEnded::Panicked(panic),
                    Err(_) => NotEnded::Cancelled,
                })
            }),
            #[cfg(any(test, feature = "testing"))]
            Task::Simulated(ended, _) => Pin::new(ended).poll(cx).map(|ended| match ended {
                Ok(result) => result.map_err(NotEnded::Panicked),
                Err(_) => Err(NotEnded::Cancelled),
            }),
        }
    }
}

/// Ends work at its next await.
#[derive(Clone, Debug)]
pub(crate) enum Abort {
    Real(tokio::task::AbortHandle),
    #[cfg(any(test, feature = "testing"))]
    Simulated(AbortHandle),
}

impl Abort {
    pub(crate) fn abort(&self) {
        match self {
            Abort::Real(task) => task.abort(),
            #[cfg(any(test, feature = "testing"))]
            Abort::Simulated(task) => task.abort(),
        }
    }
}
