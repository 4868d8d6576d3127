//! Deletes runs that have been kept for as long as they should, and sweeps up after all deletes.
//!
//! Both are done in slices: a few hundred deletes in one batch with whatever else is written, or a
//! few thousand rows in a transaction of their own, and then others have their turn.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{keeper, shared::Shared};
use crate::{
    commit::{Delete, RunStatus, Target, Write},
    retention::Retention,
    store::StoreError,
    time::Timestamp,
};

/// How many runs are deleted in one slice.
const RUNS_MAX: usize = 200;

/// How many rows are swept in one slice: a few milliseconds.
const ROWS_MAX: usize = 2_000;

/// What others have between two slices.
const BREATH: Duration = Duration::from_millis(5);

/// Runs are not deleted one by one: those whose time comes within this are deleted together.
const ROUND: Duration = Duration::from_secs(60);

/// Deletes what is old enough, and says when more is.
pub(crate) fn delete_expired(
    shared: &Shared,
    now: Timestamp,
) -> Result<Option<Timestamp>, Arc<StoreError>> {
    // The keeper also comes for safety: the store is asked only when something can be due.
    let due = shared.retention_due.load(Ordering::Acquire);
    if now.as_millis() < due {
        return Ok((due != i64::MAX).then(|| Timestamp::from_millis(due)));
    }
    let mut next: Option<Timestamp> = None;
    for (workflow, retention) in retentions(shared) {
        for (status, kept) in retention.limits() {
            let again = delete_some(shared, &workflow, status, kept, now)?;
            next = Some(next.map_or(again, |next| next.min(again)));
        }
    }
    let due = next.map_or(i64::MAX, Timestamp::as_millis);
    shared.retention_due.store(due, Ordering::Release);
    Ok(next)
}

/// The workflows that are registered here, each with what counts for it: the newest version's.
fn retentions(shared: &Shared) -> BTreeMap<Arc<str>, Retention> {
    let names = shared.registry.all().map(|definition| &definition.name);
    let newest = names.filter_map(|name| shared.registry.newest(name));
    let retention = newest.map(|definition| {
        let own = definition.options.retain;
        let retention = own.unwrap_or(shared.settings.retention);
        (definition.name.clone(), retention)
    });
    retention.collect()
}

/// One slice. When the next one is to be made.
fn delete_some(
    shared: &Shared,
    workflow: &str,
    status: RunStatus,
    kept: Duration,
    now: Timestamp,
) -> Result<Timestamp, Arc<StoreError>> {
    // Up to and including those that ended exactly so long ago.
    let before = now - kept + Duration::from_millis(1);
    let find = |before, limit| {
        let found = shared.store.finished_before(workflow, status, before, limit);
        found.map_err(Arc::new)
    };
    let old = find(before, RUNS_MAX)?;
    let full = old.len() == RUNS_MAX;
    if let Some((_, ended)) = old.iter().max_by_key(|(_, ended)| *ended) {
        // Before the deletes: after a crash in between, charts show less than they could, and nothing
        // that is false.
        raise_horizon(shared, *ended, kept)?;
        let key_kept_until = Some(now + shared.settings.key_tombstone);
        let deletes = old.into_iter().map(|(run, _)| {
            Write::Delete(Box::new(Delete {
                target: Target::Id(run),
                finished_before: Some(before),
                key_kept_until,
            }))
        });
        let deleted = keeper::write_all(shared, deletes)?;
        tracing::debug!(workflow, %status, runs = deleted.len(), "runs were kept long enough");
    }
    if full {
        return Ok(now + BREATH);
    }
    let oldest = find(Timestamp::from_millis(i64::MAX), 1)?;
    // Whatever ends from now on has its time after this.
    let due = oldest.first().map_or(now, |(_, ended)| *ended) + kept;
    Ok(due.max(now + round_of(kept)))
}

/// Notes that runs which ended up to this instant are deleted. It is noted in steps of a round, so that
/// few writes are needed: the horizon is up to a round too late, and never too early.
fn raise_horizon(shared: &Shared, ended: Timestamp, kept: Duration) -> Result<(), Arc<StoreError>> {
    let step = round_of(kept).as_millis() as i64;
    let to = Timestamp::from_millis((ended.as_millis() / step + 1) * step);
    let known = shared.store.horizon().map_err(Arc::new)?;
    if known.is_none_or(|known| known < to) {
        shared.store.raise_horizon(to).map_err(Arc::new)?;
    }
    Ok(())
}

/// How often runs that are kept for this long are deleted.
fn round_of(kept: Duration) -> Duration {
    ROUND.min(kept / 10).max(BREATH)
}

/// Removes a slice of what deletes have left.
pub(crate) fn sweep(shared: &Shared, now: Timestamp) -> Result<Option<Timestamp>, Arc<StoreError>> {
    let more = shared.store.sweep(now, ROWS_MAX).map_err(Arc::new)?;
    Ok(more.then(|| now + BREATH))
}
