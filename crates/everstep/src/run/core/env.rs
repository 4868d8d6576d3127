//! What is the same for all runs of an engine thread, and what a run asks of its owner through it.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    run::owner::{Owner, Permit},
    run_id::{RunId, RunIds},
    services::Services,
    settings::Settings,
    time::Timestamp,
    token::Secret,
};

/// What is the same for all runs of an engine thread.
pub(crate) struct Env {
    pub(crate) settings: Arc<Settings>,
    pub(crate) services: Arc<Services>,
    /// Where blocking and spawned bodies run; none in tests that drive a run by hand.
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    /// Set once the runtime has begun to shut down.
    pub(crate) runtime_gone: Arc<AtomicBool>,
    pub(crate) now: Cell<Timestamp>,
    /// The owner; none where a run is tried, or driven by hand.
    pub(crate) owner: Option<Arc<dyn Owner>>,
    /// Where ids come from without an owner.
    pub(crate) ids: RunIds,
    /// The epoch of the lease under which the run that is polled was taken into memory.
    pub(crate) epoch: Cell<u64>,
    /// How many children the run that is polled has started in this poll.
    pub(crate) children: Cell<usize>,
    /// A body did not start because the lease was about to end, or another one, or the engine shuts
    /// down.
    pub(crate) stalled: Cell<bool>,
    /// What tokens are made with.
    pub(crate) secret: Secret,
}

/// How many of the children that a run starts at a time are placed in this process. The others are
/// spread over all processes, which may have more cores together.
const CHILDREN_HERE: usize = 64;

impl Env {
    /// Whether a body of the run that is polled may start. If not, [`stalled`](Env::stalled) is
    /// set.
    pub(super) fn may_start(&self) -> bool {
        let epoch = self.epoch.get();
        let owner = self.owner.as_ref();
        let may_start = owner.is_none_or(|it| it.lets_bodies_start(epoch));
        if !may_start {
            self.stalled.set(true);
        }
        may_start
    }

    /// For a body of the run that is polled which runs on another thread, perhaps later.
    pub(crate) fn permit(&self) -> Permit {
        let lease = self.owner.clone().map(|owner| (owner, self.epoch.get()));
        Permit { lease }
    }

    /// Whether the body of the run that is polled may be polled: not after its lease.
    pub(crate) fn may_go_on(&self) -> bool {
        let epoch = self.epoch.get();
        let owner = self.owner.as_ref();
        owner.is_none_or(|it| it.lets_bodies_run(epoch))
    }

    /// An id for a run that is started by one of these.
    pub(crate) fn new_run_id(&self, workflow: &str, version: u32, pool: &str) -> RunId {
        let now = self.now.get();
        let Some(owner) = &self.owner else {
            return self.ids.next(now);
        };
        let children = self.children.get();
        self.children.set(children + 1);
        if children < CHILDREN_HERE {
            owner.new_run_id(now, workflow, version, pool)
        } else {
            owner.any_run_id(now)
        }
    }

    /// Names the body that is about to be polled.
    pub(crate) fn name_body(&self, key: &[u8]) {
        if let Some(owner) = &self.owner {
            owner.name_body(key);
        }
    }

    /// Whether the runtime under a body that failed or panicked is shutting down: then its sockets
    /// and timers fail and its tasks are cancelled, though nothing was tried.
    pub(crate) fn runtime_is_gone(&self) -> bool {
        if !self.runtime_gone.load(Ordering::Acquire) && self.refuses_tasks() {
            self.runtime_gone.store(true, Ordering::Release);
        }
        self.runtime_gone.load(Ordering::Acquire)
    }

    /// A runtime that has begun to shut down cancels a new task before `spawn` returns. It does so
    /// before it cancels any other task or stops its drivers, so a body cannot fail before that.
    fn refuses_tasks(&self) -> bool {
        let Some(runtime) = &self.runtime else {
            return false;
        };
        #[allow(
            clippy::disallowed_methods,
            reason = "the task does nothing: whether the runtime takes it is all that counts"
        )]
        let probe = runtime.spawn(std::future::pending::<()>());
        let refused = probe.is_finished();
        probe.abort();
        refused
    }
}
