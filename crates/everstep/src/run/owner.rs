//! The owner of a run, as the run sees it.
//!
//! A run hands its commits to its owner and takes events from it; the owner calls for both. What a run
//! asks of its own accord, in the middle of a poll, is this trait. The engine implements it in
//! `engine/host.rs`. A run that is tried, or driven by hand in a test, has no owner.

use std::{future::Future, pin::Pin, sync::Arc};

use crate::{
    cancellation::Cancellation, commit::Emission, ctx::emit::RunStreams, run_id::RunId,
    time::Timestamp, workflow::WorkflowOptions,
};

/// The owner of a run: an engine thread. Called on any thread on which a body runs.
pub(crate) trait Owner: Send + Sync {
    /// Whether a body may start of a run that was read under the lease with this epoch. Asked right
    /// before each body.
    fn lets_bodies_start(&self, epoch: u64) -> bool;

    /// Whether bodies may go on of a run that was read under the lease with this epoch. Asked right
    /// before each further poll of a body.
    fn lets_bodies_run(&self, epoch: u64) -> bool;

    /// An id for a run that begins now: for a shard of this process if that serves its workflow and has
    /// room for it.
    fn new_run_id(&self, now: Timestamp, workflow: &str, version: u32, pool: &str) -> RunId;

    /// An id for a run that begins now, in whatever process.
    fn any_run_id(&self, now: Timestamp) -> RunId;

    /// The pool of new runs of this workflow.
    fn home_of(&self, workflow: &str, version: u32) -> Arc<str>;

    /// The newest version of this workflow whose code is here.
    fn newest_version(&self, workflow: &str) -> Option<u32>;

    /// The options of the code for this workflow and version, if it is here.
    fn options_of(&self, workflow: &str, version: u32) -> Option<&WorkflowOptions>;

    /// Names the body that is about to be polled, for the watchdog.
    fn name_body(&self, key: &[u8]);

    /// Keeps the token of a body that begins, to fire it when the body must stop; its run was read under
    /// the lease with this epoch. Gives the place that [`body_ended`](Owner::body_ended) names.
    fn body_began(&self, epoch: u64, token: &Cancellation) -> usize;

    /// Forgets the token at this place.
    fn body_ended(&self, place: usize);

    /// Waits for room for so many bytes, and queues what a body has emitted, to be written under the
    /// lease with this epoch. Says in `streams` if it may be missing.
    fn emit<'a>(
        &'a self,
        epoch: u64,
        emission: Emission,
        bytes: usize,
        streams: &'a Arc<RunStreams>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// Says on any thread whether the bodies of a run may run: see [`Owner::lets_bodies_run`].
#[derive(Clone)]
pub(crate) struct Permit {
    /// The owner, and the epoch with which it has read the run; none if the run has no owner.
    pub(super) lease: Option<(Arc<dyn Owner>, u64)>,
}

impl Permit {
    /// The permit of a run without an owner.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Permit {
        Permit { lease: None }
    }

    pub(crate) fn allows(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|(owner, epoch)| owner.lets_bodies_run(*epoch))
    }
}

/// Keeps the token of a body with the owner while the body is in flight.
pub(crate) struct InFlight {
    owner: Arc<dyn Owner>,
    place: usize,
}

impl InFlight {
    pub(crate) fn enter(owner: &Arc<dyn Owner>, epoch: u64, token: &Cancellation) -> InFlight {
        InFlight { place: owner.body_began(epoch, token), owner: owner.clone() }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.owner.body_ended(self.place);
    }
}
