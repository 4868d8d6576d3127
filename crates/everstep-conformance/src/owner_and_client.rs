//! Two stores in one place, as two processes have them: an owner that commits, and a client.

use everstep::testing::around::{Around, Call};

use super::*;

/// Two stores of the same place behind one: what an owner does goes to one of them, what clients do to the
/// other.
pub struct OwnerAndClient<S> {
    /// The store of the process that owns the runs.
    pub owner: S,
    /// The store of another process.
    pub client: S,
    /// Whether the client may speak for the owner's runner: write with its fence, wake others in its
    /// name. Where a store remembers what its runner has done, every runner is one store's, as it
    /// is one process's.
    pub shares_runner: bool,
}

impl<S: Store> OwnerAndClient<S> {
    /// Whether a batch has to be the owner's.
    fn is_owners(&self, batch: &Batch) -> bool {
        batch.writes.iter().any(|write| match write {
            Write::Commit(_) | Write::Emit(_) => true,
            Write::Deliver(_)
            | Write::Control(..)
            | Write::Resolve(_)
            | Write::Publish(_)
            | Write::Tag(_)
            | Write::Rehome(_)
            | Write::Letter(_) => false,
            _ => !self.shares_runner,
        })
    }
}

/// What else the owner does, besides its batches.
const OWNERS: &[&str] = &[
    "api_tokens",
    "ask_time",
    "census",
    "delete_audits",
    "deregister_runner",
    "due",
    "due_schedules",
    "end_audit",
    "finished_before",
    "heartbeat",
    "inbox",
    "live",
    "load",
    "note_api_token_used",
    "on_wake",
    "paused",
    "queue_ended",
    "queue_item",
    "queue_stats",
    "queued_schedules",
    "release_shards",
    "runners",
    "sweep",
    "commit_in",
    "commit_in_pg",
];

impl<S: Store> Around for OwnerAndClient<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.owner
    }

    fn around<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&S) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match OWNERS.contains(&call.method()) {
            true => make(&self.owner),
            false => make(&self.client),
        }
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        if self.is_owners(batch) {
            return self.owner.commit(batch);
        }
        let fence = batch.fence.filter(|_| self.shares_runner);
        self.client.commit(&Batch { fence, now: batch.now, writes: batch.writes.clone() })
    }

    fn counters(&self) -> StoreCounters {
        let (owner, client) = (self.owner.counters(), self.client.counters());
        StoreCounters {
            batches: owner.batches + client.batches,
            writes: owner.writes + client.writes,
            rows: owner.rows + client.rows,
            reads: owner.reads + client.reads,
        }
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        match self.shares_runner {
            true => self.client.wake_others(me, runs),
            false => self.owner.wake_others(me, runs),
        }
    }
}
