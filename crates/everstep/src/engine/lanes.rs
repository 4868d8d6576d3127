//! Lanes: a large batch is made in parts, each a transaction of its own, all at the same time.
//!
//! A second lane is opened when a batch has more than [`LANE_COMMITS`] writes, and one more for each
//! as many again, up to [`Store::lanes_max`](crate::store::Store::lanes_max): with few, one
//! transaction is quicker than two. All writes about a run are in one part, in their order. All parts
//! are durable, or known not to be, before the next batch is begun, so nothing overtakes what was
//! queued before it; and they are answered together, as one batch is.

use super::{
    committer::{self, Pending, Sender},
    shared::Shared,
};
use crate::{
    commit::{Applied, Batch, Target, Write},
    run_id::RunNo,
    seam,
    store::StoreError,
};

/// How many writes a lane has before there is another.
const LANE_COMMITS: usize = 500;

/// Makes one batch durable, in as many lanes as it is worth.
pub(super) fn commit(shared: &Shared, pending: Vec<Pending>) {
    let lanes = lanes_for(pending.len(), shared.store.lanes_max());
    let is_about_runs = || pending.iter().all(|it| run_of(&it.write).is_some());
    if lanes == 1 || shared.stopped().is_some() || !is_about_runs() {
        return committer::commit(shared, pending);
    }
    let (batch, senders) = committer::to_batch(shared, pending);
    let (batch, senders) = committer::refuse_stale(shared, batch, senders);
    let parts = split(batch, senders, lanes);
    let results = commit_all(shared, &parts);
    let (mut made, mut failed) = (Part::default(), Vec::new());
    let mut all = Applied::default();
    for (part, result) in parts.into_iter().zip(results) {
        match result {
            Ok(applied) => {
                made.batch.fence = part.batch.fence;
                made.batch.now = part.batch.now;
                made.batch.writes.extend(part.batch.writes);
                made.senders.extend(part.senders);
                all.outcomes.extend(applied.outcomes);
                all.notices.extend(applied.notices);
            }
            Err(error) => failed.push((part, error)),
        }
    }
    if !made.senders.is_empty() {
        committer::committed(shared, made.batch, made.senders, all);
    }
    for (part, error) in failed {
        let again = committer::react(shared, error, part.batch, part.senders, 1);
        if let Some((batch, senders)) = again {
            committer::commit(shared, committer::from_batch(batch, senders));
        }
    }
}

/// How many lanes so many writes are worth.
pub(super) fn lanes_for(writes: usize, lanes_max: usize) -> usize {
    writes.div_ceil(LANE_COMMITS).clamp(1, lanes_max.max(1))
}

/// The run that a write is about, if it is about one and nothing that runs share.
fn run_of(write: &Write) -> Option<RunNo> {
    match write {
        // What it does to others is decided beside them.
        Write::Commit(commit) if commit.effects.is_empty() => Some(commit.run),
        Write::Start(new) if new.key.is_none() => Some(new.id.no()),
        Write::Emit(emission) => Some(emission.run),
        Write::Deliver(delivery) => match &delivery.target {
            Target::Id(id) => Some(id.no()),
            Target::Key { .. } => None,
        },
        _ => None,
    }
}

#[derive(Default)]
struct Part {
    batch: Batch,
    senders: Vec<Sender>,
}

fn split(batch: Batch, senders: Vec<Sender>, lanes: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = (0..lanes).map(|_| Part::default()).collect();
    for (write, sender) in batch.writes.into_iter().zip(senders) {
        let run = run_of(&write).map_or(0, |run| run.0.unsigned_abs() as usize);
        let part = &mut parts[run % lanes];
        part.batch.writes.push(write);
        part.senders.push(sender);
    }
    parts.retain(|part| !part.senders.is_empty());
    for part in &mut parts {
        (part.batch.fence, part.batch.now) = (batch.fence, batch.now);
    }
    parts
}

/// The first part here, the others on threads of their own.
#[allow(clippy::disallowed_methods, reason = "a simulation does not come to the threads")]
fn commit_all(shared: &Shared, parts: &[Part]) -> Vec<Result<Applied, StoreError>> {
    if seam::is_simulated() {
        // One after another: threads of a scope are joined outside of the seam.
        let parts = parts.iter();
        return parts.map(|part| committer::store_commit(shared, &part.batch)).collect();
    }
    std::thread::scope(|scope| {
        let others = parts.iter().skip(1);
        let others: Vec<_> = others
            .map(|part| scope.spawn(|| committer::store_commit(shared, &part.batch)))
            .collect();
        let first = parts.iter().take(1);
        let mut results: Vec<_> =
            first.map(|part| committer::store_commit(shared, &part.batch)).collect();
        for other in others {
            let result = other.join();
            results.push(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::committer::Reply;

    #[test]
    fn a_lane_is_opened_when_a_batch_is_large_enough() {
        assert_eq!(lanes_for(1, 4), 1);
        assert_eq!(lanes_for(LANE_COMMITS, 4), 1);
        assert_eq!(lanes_for(LANE_COMMITS + 1, 4), 2);
        assert_eq!(lanes_for(100 * LANE_COMMITS, 4), 4);
        assert_eq!(lanes_for(100 * LANE_COMMITS, 1), 1);
    }

    #[test]
    fn what_is_about_a_run_stays_in_one_lane_in_its_order() {
        let ids = crate::run_id::RunIds::new(1);
        let now = crate::time::Timestamp::from_millis(1_800_000_000_000);
        let runs: Vec<_> = (0..50).map(|_| ids.next(now)).collect();
        let emission = |no: usize| {
            let (run, body) = (runs[no % 50].no(), no as u64);
            Write::Deliver(Box::new(crate::commit::Delivery {
                target: Target::Id(runs[no % 50]),
                name: run.0.to_string(),
                body: body.to_be_bytes().to_vec(),
                dedupe: None,
                request: None,
                inbox_max: 9,
                on_end: crate::commit::OnEnd::Error,
            }))
        };
        let batch = Batch { fence: None, now, writes: (0..500).map(emission).collect() };
        let sender = |_| {
            let reply = Reply::Owner { thread: 0, run: runs[0].no() };
            let pending = Pending::new(Write::TendEvents { limit: 1 }, reply);
            pending.sender
        };
        let senders = (0..500).map(sender).collect();
        let parts = split(batch, senders, 3);
        assert_eq!(parts.len(), 3);
        let mut seen = std::collections::HashMap::new();
        for (lane, part) in parts.iter().enumerate() {
            for write in &part.batch.writes {
                let Write::Deliver(delivery) = write else {
                    unreachable!("there are only deliveries");
                };
                let last = seen.insert(delivery.name.clone(), (lane, delivery.body.clone()));
                if let Some((last_lane, last_body)) = last {
                    assert_eq!(last_lane, lane);
                    assert!(last_body < delivery.body);
                }
            }
        }
        assert_eq!(seen.len(), 50);
    }
}
