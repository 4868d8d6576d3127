//! A view of an engine for those who watch it: probes, scrapes, dashboards.

use std::sync::Arc;

use super::EngineMetrics;
use crate::store::StoreError;

/// Watches an engine without keeping it running. Cheap to clone; see [`Engine::monitor`](crate::Engine::monitor).
#[derive(Clone)]
pub struct EngineMonitor {
    engine: Arc<dyn Watched>,
}

/// An engine, as a monitor asks it.
pub(crate) trait Watched: Send + Sync {
    fn metrics(&self) -> EngineMetrics;

    fn ready(&self) -> Result<(), NotReady>;
}

/// Why an engine does not take up runs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It shuts down, or has.
    #[error("the engine shuts down")]
    Closing,
    /// It has stopped by itself.
    #[error("the engine has stopped by itself; start the process again")]
    Stopped(#[source] Arc<StoreError>),
    /// Its lease is over: others may have its runs.
    #[error("the engine has no lease; it waits for the store, and takes its runs up again then")]
    NoLease,
}

impl EngineMonitor {
    pub(crate) fn new(engine: Arc<dyn Watched>) -> EngineMonitor {
        EngineMonitor { engine }
    }

    /// The numbers of the engine since its start: see [`Engine::metrics`](crate::Engine::metrics).
    pub fn metrics(&self) -> EngineMetrics {
        self.engine.metrics()
    }

    /// Whether the engine takes up runs at this moment.
    ///
    /// # Errors
    ///
    /// If it does not, with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        self.engine.ready()
    }
}

impl std::fmt::Debug for EngineMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineMonitor").finish_non_exhaustive()
    }
}
