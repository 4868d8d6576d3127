//! Threads, and the process that they belong to.

use std::thread::JoinHandle;

use super::if_simulated;
#[cfg(any(test, feature = "testing"))]
use super::sim;

/// Where threads are started: this process, or one of those that a simulation has.
#[derive(Clone)]
pub(crate) enum Process {
    Real,
    #[cfg(any(test, feature = "testing"))]
    Simulated(sim::SimProcess),
}

impl Process {
    /// The process of the calling thread.
    pub(crate) fn current() -> Process {
        if_simulated!(|here| Process::Simulated(here.process()));
        Process::Real
    }

    /// Starts a thread.
    pub(crate) fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Thread> {
        match self {
            Process::Real => {
                let thread = std::thread::Builder::new().name(name.to_owned());
                thread.spawn(work).map(Thread::Real)
            }
            #[cfg(any(test, feature = "testing"))]
            Process::Simulated(process) => Ok(Thread::Simulated(process.spawn(name, work))),
        }
    }
}

/// A thread that was started.
pub(crate) enum Thread {
    Real(JoinHandle<()>),
    #[cfg(any(test, feature = "testing"))]
    Simulated(sim::SimThread),
}

impl Thread {
    /// Whether its work has ended.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Thread::Real(thread) => thread.is_finished(),
            #[cfg(any(test, feature = "testing"))]
            Thread::Simulated(thread) => thread.is_finished(),
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Thread::Real(thread) => thread.thread().name(),
            #[cfg(any(test, feature = "testing"))]
            Thread::Simulated(thread) => Some(thread.name()),
        }
    }

    /// Gives back what a thread that has ended still takes.
    pub(crate) fn reap(self) {
        match self {
            Thread::Real(thread) => _ = thread.join(),
            #[cfg(any(test, feature = "testing"))]
            Thread::Simulated(_) => {}
        }
    }
}
