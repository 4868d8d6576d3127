//! A view of an engine for those who watch it: probes, scrapes, dashboards.

use std::sync::Arc;

use super::EngineMetrics;
use crate::{engine::Shared, store::StoreError};

/// Watches an engine without keeping it running. Cheap to clone; see [`Engine::monitor`](crate::Engine::monitor).
#[derive(Clone)]
pub struct EngineMonitor {
    shared: Arc<Shared>,
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
    pub(crate) fn new(shared: Arc<Shared>) -> EngineMonitor {
        EngineMonitor { shared }
    }

    /// The numbers of the engine since its start: see [`Engine::metrics`](crate::Engine::metrics).
    pub fn metrics(&self) -> EngineMetrics {
        let shared = &self.shared;
        let shards = shared.owned().len() as u64;
        shared.metrics.read(shards, shared.counters.read())
    }

    /// Whether the engine takes up runs at this moment.
    ///
    /// # Errors
    ///
    /// If it does not, with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        if let Some(error) = self.shared.stopped() {
            return Err(NotReady::Stopped(error));
        }
        if self.shared.closing() || self.shared.leaving() {
            return Err(NotReady::Closing);
        }
        if !self.shared.lease_lasts() {
            return Err(NotReady::NoLease);
        }
        Ok(())
    }
}

impl std::fmt::Debug for EngineMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineMonitor").finish_non_exhaustive()
    }
}
