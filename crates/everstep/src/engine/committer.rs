//! The committer: gathers the writes of many runs into one transaction.
//!
//! Natural batching: a batch is what queued while the last one was made durable; there is no
//! timer. What the engine does when the store cannot is decided by [`StoreError::reaction`] and
//! done here.

use std::{
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    claims, lanes,
    mailbox::{Event, Mailbox},
    shared::Shared,
    streams::Room,
    workers,
};
use crate::{
    commit::{Applied, Batch, Commit, Fence, Outcome, QueueWrite, Refusal, Settlement, Write},
    ctx::emit::RunStreams,
    run_id::RunNo,
    sabotage::Sabotage,
    seam::{self, Lock, Monitor},
    store::{Reaction, StoreError},
    time::Uptime,
};

/// A write, and who wants to know what became of it.
pub(crate) struct Pending {
    pub(crate) write: Write,
    pub(crate) sender: Sender,
}

impl Pending {
    /// A write that anybody may make.
    pub(crate) fn new(write: Write, reply: Reply) -> Pending {
        Pending::under(NO_EPOCH, write, reply)
    }

    /// A write of the owner of a run, which had it under the lease with this epoch.
    pub(crate) fn under(epoch: u64, write: Write, reply: Reply) -> Pending {
        let sender = Sender { reply, epoch, streams: None };
        Pending { write, sender }
    }

    /// The same, of a run that may have emitted items: it is not made once one of them may be missing.
    pub(crate) fn with(mut self, streams: Option<Arc<RunStreams>>) -> Pending {
        self.sender.streams = streams;
        self
    }
}

/// Where a write comes from.
pub(crate) struct Sender {
    pub(crate) reply: Reply,
    /// The epoch of the lease under which its run was taken into memory, if the write depends on
    /// that: it is never sent under another. What was done under a lease that was lost is not
    /// current, though the shard may have come back since.
    epoch: u64,
    /// The streams of the run, if its bodies may have emitted items before this write was queued.
    streams: Option<Arc<RunStreams>>,
}

/// Of a write that depends on no lease.
const NO_EPOCH: u64 = 0;

impl Sender {
    fn is_stale(&self, fence: Option<Fence>) -> bool {
        self.epoch != NO_EPOCH && fence.is_none_or(|fence| fence.epoch != self.epoch)
    }

    /// Whether an item that its run has emitted before it may be missing.
    fn has_lost_items(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.has_lost())
    }
}

/// Who wants to know what became of a write.
pub(crate) enum Reply {
    /// A run in the memory of an engine thread.
    Run { thread: usize, slot: u32, run: u64 },
    /// An engine thread that does not have the run in memory, and must see to it that the write is
    /// made: the store does not count the run as due.
    Owner { thread: usize, run: RunNo },
    /// A caller that waits.
    Caller(oneshot::Sender<Result<Outcome, Arc<StoreError>>>),
    /// A body that emits. Its room is given back, and the owner of its run is told if the item may be
    /// missing.
    Emitter {
        owner: Arc<Mailbox>,
        run: RunNo,
        #[expect(dead_code, reason = "held for its drop")]
        room: Room,
    },
}

/// What became of the commit of a run in memory.
pub(crate) struct Ack {
    pub(crate) slot: u32,
    pub(crate) run: u64,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    /// The store has answered. A commit that was refused comes back.
    Outcome(Outcome, Option<Box<Commit>>),
    /// The store cannot take this commit, whatever is around it.
    Rejected(Arc<StoreError>),
    /// It is not known whether it was made.
    Unknown,
}

/// What became of a write about a run that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The store has answered.
    Answered,
    /// It was refused, since a message had arrived in between.
    Overtaken,
    /// It is not known whether it was made.
    Unknown,
    /// The store cannot take it.
    Rejected,
}

/// The queue in front of the committer.
#[derive(Default)]
pub(crate) struct CommitQueue {
    list: Monitor<Vec<Pending>>,
    /// Nobody takes from the list any more. Changed only while the list is locked.
    ended: AtomicBool,
    /// The committer has taken writes and not yet committed them all. Set while the list is
    /// locked: whoever finds the list empty and this not set has nothing in front of it.
    in_hand: AtomicBool,
    closed: AtomicBool,
    /// Held by the thread that commits, across its calls of the store.
    committing: Lock,
    /// For benchmarks: how many batches, and how many writes were in them.
    #[cfg(feature = "testing")]
    pub(crate) batches: std::sync::atomic::AtomicU64,
    #[cfg(feature = "testing")]
    pub(crate) batch_sizes: seam::Leaf<Option<Vec<u32>>>,
}

impl CommitQueue {
    /// Appends these, in order. After the end of the committer they are dropped, and with them
    /// whoever waits for an answer.
    pub(crate) fn push_all(&self, shared: &Shared, pending: &mut Vec<Pending>) {
        if pending.is_empty() {
            return;
        }
        if shared.settings.breaks(Sabotage::NotifyBefore) {
            self.list.notify();
            seam::point("notified");
        }
        let mut list = self.list.lock();
        if self.ended.load(Ordering::Acquire) {
            drop(list);
            return pending.clear();
        }
        shared.activity.begin(pending.len());
        let was_empty = list.is_empty();
        list.append(pending);
        drop(list);
        if was_empty && !shared.settings.breaks(Sabotage::NotifyBefore) {
            self.list.notify();
        }
    }

    pub(crate) fn push(&self, shared: &Shared, pending: Pending) {
        self.push_all(shared, &mut vec![pending]);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.list.notify();
    }

    /// Everything that is queued, for a test that is the committer.
    #[cfg(test)]
    pub(crate) fn take_queued(&self) -> Vec<Pending> {
        std::mem::take(&mut *self.list.lock())
    }

    /// Everything that is queued, nothing if it is `until` before there is something; `None` once it is
    /// closed and empty.
    fn take(&self, until: Option<Instant>) -> Option<Vec<Pending>> {
        self.list.wait("writes", |list| {
            if !list.is_empty() {
                self.in_hand.store(true, Ordering::Release);
                return Break(Some(std::mem::take(list)));
            }
            if self.closed.load(Ordering::Acquire) {
                self.ended.store(true, Ordering::Release);
                return Break(None);
            }
            match until.is_some_and(|until| seam::now() >= until) {
                true => Break(Some(Vec::new())),
                false => Continue(until),
            }
        })
    }
}

/// The thread that commits, until the queue is closed and empty.
pub(crate) fn run(shared: &Shared) {
    while let Some(mut queued) = shared.queue.take(shared.next_look_at_clock()) {
        while !queued.is_empty() {
            let _committing = shared.queue.committing.lock("committing");
            seam::point("batch");
            let rest = queued.split_off(batch_len(shared, &queued));
            let batch = std::mem::replace(&mut queued, rest);
            lanes::commit(shared, batch);
        }
        shared.queue.in_hand.store(false, Ordering::Release);
    }
    shared.stop_failed_writes();
}

/// How many of these make one batch, within the limits.
fn batch_len(shared: &Shared, queued: &[Pending]) -> usize {
    let mut bytes = 0;
    for (n, pending) in queued.iter().enumerate() {
        bytes += size_of_write(&pending.write);
        let full =
            n == shared.settings.batch_commits_max || bytes > shared.settings.batch_bytes_max;
        if full && n > 0 {
            return n;
        }
    }
    queued.len()
}

fn size_of_write(write: &Write) -> usize {
    match write {
        Write::Start(new) => 128 + new.input.len(),
        Write::Deliver(delivery) => 64 + delivery.body.len(),
        Write::Control(..) => 64,
        Write::Reopen(_) => 256,
        Write::Queue(write) => match &**write {
            QueueWrite::Enqueue(new) => 128 + new.payload.len(),
            QueueWrite::Settle(settle) => match &settle.settlement {
                Settlement::Done(bytes) | Settlement::Failed(bytes) => 64 + bytes.len(),
                Settlement::Retry { error, .. } => 64 + error.len(),
                Settlement::Release => 64,
            },
            // What it takes is not known yet.
            QueueWrite::Claim(wanted) => 256 * (1 + wanted.max),
            QueueWrite::Extend(claims) => 64 * (1 + claims.len()),
            QueueWrite::Control(..) | QueueWrite::Revoke => 64,
        },
        Write::Publish(publication) => 256 + publication.body.len(),
        // What it writes is bounded by itself.
        Write::TendEvents { limit } => 256 * limit,
        Write::Letter(_) => 256,
        Write::Resolve(resolution) => 64 + resolution.body.len(),
        Write::Sweep(_) => 64,
        Write::Emit(emission) => {
            let items = emission.items.iter();
            items.map(|item| 128 + item.body.len()).sum()
        }
        Write::Schedule(write) => super::schedules::size_of_write(write),
        Write::Import(run) => {
            let puts = run.history.iter();
            let puts = puts.map(|put| put.key.len() + put.value.len());
            512 + run.row.input.len() + puts.sum::<usize>()
        }
        Write::Delete(_) => 1_024,
        Write::Tag(_) => 128,
        Write::HandOver(_) | Write::Rehome(_) | Write::Mend(_) => 128,
        Write::Fork(fork) => {
            let entries = fork.history.iter();
            let puts = entries.map(|put| put.key.len() + put.value.len());
            128 + fork.new.input.len() + puts.sum::<usize>()
        }
        Write::Commit(commit) => {
            let puts = commit.puts.iter().map(|put| put.key.len() + put.value.len()).sum::<usize>();
            64 + puts
        }
    }
}

/// Commits these in place, if nobody else is committing: for an engine thread that has nothing
/// else to do, since to hand them over costs about as much as half a sync. What cannot be committed
/// here stays in the list.
pub(crate) fn commit_here(shared: &Shared, pending: &mut Vec<Pending>) {
    let Some(_committing) = shared.queue.committing.try_lock() else {
        return;
    };
    // Nothing may overtake what was queued before it: the items of a body come before its result.
    let is_first = {
        let list = shared.queue.list.lock();
        list.is_empty() && !shared.queue.in_hand.load(Ordering::Acquire)
    };
    if !is_first || shared.stopped().is_some() {
        return;
    }
    shared.activity.begin(pending.len());
    let (batch, senders) = to_batch(shared, std::mem::take(pending));
    let (batch, senders) = refuse_stale(shared, batch, senders);
    if senders.is_empty() {
        return;
    }
    match store_commit(shared, &batch) {
        Ok(applied) => committed(shared, batch, senders, applied),
        Err(error) if error.reaction() == Reaction::Retry => {
            // To wait is the committer's business.
            shared.activity.end(batch.writes.len());
            *pending = from_batch(batch, senders);
        }
        Err(error) => {
            if let Some((batch, senders)) = react(shared, error, batch, senders, 0) {
                commit(shared, from_batch(batch, senders));
            }
        }
    }
}

/// Makes one batch durable, however long that takes, and tells everybody.
pub(super) fn commit(shared: &Shared, pending: Vec<Pending>) {
    let (mut batch, mut senders) = to_batch(shared, pending);
    for tries in 1.. {
        if let Some(error) = shared.stopped() {
            return dispatch_error(shared, batch, senders, &error);
        }
        batch.fence = shared.fence_for_commit();
        if shared.threads.is_empty() && shared.store.time_is_old() {
            // No heartbeat asks for a client. If this fails, the batch will say the same.
            _ = shared.store.ask_time();
        }
        batch.now = shared.now();
        // Again each time: the lease may have been lost, and another begun, since the last one.
        (batch, senders) = refuse_stale(shared, batch, senders);
        if senders.is_empty() {
            return;
        }
        match store_commit(shared, &batch) {
            Ok(applied) => return committed(shared, batch, senders, applied),
            Err(error) => match react(shared, error, batch, senders, tries) {
                Some(again) => (batch, senders) = again,
                None => return,
            },
        }
    }
}

/// Has the store make a batch durable, and notes how long that took.
///
/// A store that answers with another number of outcomes than it was given writes has not said which
/// of them were made: without an answer a run would be in flight for ever.
pub(super) fn store_commit(shared: &Shared, batch: &Batch) -> Result<Applied, StoreError> {
    let begun = seam::now();
    let applied = shared.store.commit(batch)?;
    shared.metrics.batch_took(seam::elapsed(begun));
    let (writes, outcomes) = (batch.writes.len(), applied.outcomes.len());
    if outcomes != writes {
        let store = shared.store.describe();
        let source = format!("it was given {writes} writes and has answered {outcomes}").into();
        return Err(StoreError::UnknownOutcome { store, source });
    }
    Ok(applied)
}

pub(super) fn to_batch(shared: &Shared, mut pending: Vec<Pending>) -> (Batch, Vec<Sender>) {
    workers::claim_last(shared, &mut pending);
    let parts = pending.into_iter().map(|pending| (pending.write, pending.sender));
    let (mut writes, senders): (Vec<_>, Vec<_>) = parts.unzip();
    claims::take(shared, &mut writes);
    let (fence, now) = (shared.fence_for_commit(), shared.now());
    (Batch { fence, now, writes }, senders)
}

pub(super) fn from_batch(batch: Batch, senders: Vec<Sender>) -> Vec<Pending> {
    let parts = batch.writes.into_iter().zip(senders);
    parts.map(|(write, sender)| Pending { write, sender }).collect()
}

/// Refuses what must not be written any more: what was done under another lease than the one that the
/// batch is sent under, and what a run has done after an item that may be missing. Gives the rest, of
/// which nothing may be left.
pub(super) fn refuse_stale(
    shared: &Shared,
    batch: Batch,
    senders: Vec<Sender>,
) -> (Batch, Vec<Sender>) {
    let (batch, senders) = give_up_lost(shared, batch, senders);
    let fence = batch.fence;
    let is_sound = !senders.iter().any(|sender| sender.is_stale(fence));
    if is_sound || shared.settings.breaks(Sabotage::NoFence) {
        return (batch, senders);
    }
    let (refused, stale, batch, senders) = part(batch, senders, |sender| sender.is_stale(fence));
    let outcomes = stale.iter().map(|_| Outcome::Refused(Refusal::Fenced));
    let applied = Applied { outcomes: outcomes.collect(), notices: Vec::new() };
    super::dispatch::dispatch(shared, refused, stale, applied);
    (batch, senders)
}

/// Does not make what a run has done after an item that may be missing; gives the rest. The run is read
/// again, as after a commit whose outcome is not known.
fn give_up_lost(shared: &Shared, batch: Batch, senders: Vec<Sender>) -> (Batch, Vec<Sender>) {
    if !senders.iter().any(Sender::has_lost_items) {
        return (batch, senders);
    }
    let (given_up, lost, batch, senders) = part(batch, senders, Sender::has_lost_items);
    let source = "an item that the run has emitted before may be missing".into();
    let error = StoreError::UnknownOutcome { store: shared.store.describe(), source };
    dispatch_error(shared, given_up, lost, &Arc::new(error));
    (batch, senders)
}

/// Takes the writes of some senders out of a batch; gives those, and then the rest.
fn part(
    mut batch: Batch,
    senders: Vec<Sender>,
    is_meant: impl Fn(&Sender) -> bool,
) -> (Batch, Vec<Sender>, Batch, Vec<Sender>) {
    let writes = std::mem::take(&mut batch.writes);
    let parts = writes.into_iter().zip(senders);
    let (taken, rest): (Vec<_>, Vec<_>) = parts.partition(|(_, sender)| is_meant(sender));
    let (writes, taken) = taken.into_iter().unzip();
    let out = Batch { fence: None, now: batch.now, writes };
    let (writes, rest) = rest.into_iter().unzip();
    batch.writes = writes;
    (out, taken, batch, rest)
}

pub(super) fn committed(shared: &Shared, batch: Batch, senders: Vec<Sender>, applied: Applied) {
    note_batch(shared, batch.writes.len());
    super::dispatch::dispatch(shared, batch, senders, applied);
}

/// Does what [`StoreError::reaction`] says; gives the batch back if it is to be tried again.
pub(super) fn react(
    shared: &Shared,
    error: StoreError,
    batch: Batch,
    senders: Vec<Sender>,
    tries: u32,
) -> Option<(Batch, Vec<Sender>)> {
    match error.reaction() {
        Reaction::Retry => {
            report_retry(&error, tries);
            // Each try may take its time, too: a host that is gone without a word says nothing.
            let is_enough = tries > 20 || shared.closing_for() > CLOSING_LIMIT;
            if shared.closing() && is_enough {
                shared.stop(error);
            } else {
                seam::sleep(retry_delay(shared, tries), "commit again");
            }
            return Some((batch, senders));
        }
        Reaction::Bisect if batch.writes.len() > 1 => bisect(shared, batch, senders),
        Reaction::Bisect => {
            tracing::error!(%error, "a write cannot be made");
            dispatch_error(shared, batch, senders, &Arc::new(error));
        }
        Reaction::Reload if shared.settings.breaks(Sabotage::ResendUnknown) => {
            return Some((batch, senders));
        }
        Reaction::Reload => {
            tracing::warn!(%error, "the outcome of a commit is not known");
            dispatch_error(shared, batch, senders, &Arc::new(error));
        }
        Reaction::Stop => {
            shared.stop(error);
            return Some((batch, senders));
        }
    }
    None
}

fn note_batch(shared: &Shared, writes: usize) {
    shared.metrics.batch_made(writes);
    #[cfg(feature = "testing")]
    shared.queue.batches.fetch_add(1, Ordering::Relaxed);
    #[cfg(feature = "testing")]
    if let Some(sizes) = shared.queue.batch_sizes.lock().as_mut() {
        sizes.push(u32::try_from(writes).unwrap_or(u32::MAX));
    }
}

/// The first failure is told at once, later ones now and then.
fn report_retry(error: &StoreError, tries: u32) {
    if tries.is_power_of_two() {
        let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(%error, cause, tries, "a commit is tried again");
    }
}

fn retry_delay(shared: &Shared, tries: u32) -> Duration {
    let doubled = shared.settings.store_retry.saturating_mul(1 << tries.min(6));
    doubled.min(Duration::from_secs(1))
}

/// Each half alone, to find the write that cannot be made.
fn bisect(shared: &Shared, batch: Batch, senders: Vec<Sender>) {
    let mut first = from_batch(batch, senders);
    let second = first.split_off(first.len() / 2);
    commit(shared, first);
    commit(shared, second);
}

/// Nothing of the batch is known to have happened: everybody is told so.
fn dispatch_error(shared: &Shared, batch: Batch, senders: Vec<Sender>, error: &Arc<StoreError>) {
    for sender in senders {
        let error = error.clone();
        match sender.reply {
            Reply::Caller(caller) => _ = caller.send(Err(error)),
            Reply::Run { thread, slot, run } => {
                let answer = match error.reaction() {
                    Reaction::Bisect => Answer::Rejected(error),
                    _ if shared.settings.breaks(Sabotage::UnknownIsDone) => {
                        Answer::Outcome(Outcome::Committed(Vec::new()), None)
                    }
                    _ => Answer::Unknown,
                };
                shared.threads[thread].push(Event::Acks(vec![Ack { slot, run, answer }]));
            }
            Reply::Owner { thread, run } => {
                let how = match error.reaction() {
                    Reaction::Bisect => Settled::Rejected,
                    _ => Settled::Unknown,
                };
                shared.threads[thread].push(Event::Settled(run, how));
            }
            Reply::Emitter { .. } if shared.settings.breaks(Sabotage::DropItems) => {}
            Reply::Emitter { owner, run, .. } => {
                // Before the next batch is begun: the result of the body may be in it.
                if let Some(streams) = &sender.streams {
                    streams.lose();
                }
                owner.push(Event::ItemLost { run, error });
            }
        }
    }
    let writes = batch.writes.len();
    claims::lost(shared, batch, error);
    shared.activity.end(writes);
}

/// How long a store that is away is waited for once the engine is to end.
const CLOSING_LIMIT: Duration = Duration::from_secs(10);

/// How much of a lease must be left for a batch to be sent under it.
pub(crate) fn lease_margin(lease: Duration) -> Duration {
    lease / 5
}

/// Whether the lease lasts long enough for one more batch.
pub(crate) fn lease_holds(valid_until: Uptime, lease: Duration) -> bool {
    Uptime::now() + lease_margin(lease) < valid_until
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        engine::fixture,
        store::{ShardSet, Store},
    };

    fn outcomes(shared: &Shared) -> Vec<Outcome> {
        let acks = shared.threads[0].take().into_iter().filter_map(|event| {
            let Event::Acks(acks) = event else {
                return None;
            };
            Some(acks)
        });
        let outcomes = acks.flatten().map(|ack| match ack.answer {
            Answer::Outcome(outcome, _) => outcome,
            _ => panic!("the store has answered"),
        });
        outcomes.collect()
    }

    fn begin_anew(shared: &Shared, old: Fence) -> Fence {
        shared.lose_if(old);
        let new = fixture::enter(shared);
        let all = ShardSet::of_default_pool();
        let held = shared.store.take_shards(new, shared.now(), &all, &[]);
        assert_eq!(held.expect("take_shards"), Some(all));
        new
    }

    /// Between the lease that was lost and the one that was begun, another owner may have gone on
    /// with the run; the number of its last entry is not in its row, so the store cannot tell.
    #[test]
    fn a_commit_from_before_a_lost_lease_is_not_made_under_the_next_one() {
        let (store, shared) = fixture::shared();
        let old = begin_anew(&shared, fixture::enter(&shared));
        let run = fixture::start(&store, old);
        let reply = || Reply::Run { thread: 0, slot: 0, run: 1 };
        let pending = |fence: Fence| {
            let write = Write::Commit(Box::new(fixture::step(run, 1)));
            Pending::under(fence.epoch, write, reply())
        };
        let new = begin_anew(&shared, old);
        commit(&shared, vec![pending(old)]);
        let fenced = vec![Outcome::Refused(Refusal::Fenced)];
        assert_eq!(outcomes(&shared), fenced);
        commit_here(&shared, &mut vec![pending(old)]);
        assert_eq!(outcomes(&shared), fenced);
        lanes::commit(&shared, vec![pending(old)]);
        assert_eq!(outcomes(&shared), fenced);
        assert!(store.history(run.no(), None, 9).expect("history").is_empty());
        // Lost between two tries, with another write beside it that depends on nobody.
        let (again, told) = (shared.clone(), Arc::new(Mutex::new(None)));
        let tell = told.clone();
        store.fail_next("commit", move || {
            *tell.lock().expect("lock") = Some(begin_anew(&again, new));
            fixture::away()
        });
        let control = Write::TendEvents { limit: 1 };
        commit(&shared, vec![pending(new), Pending::new(control, reply())]);
        let answers = outcomes(&shared);
        assert_eq!(answers[..1], fenced);
        assert!(matches!(answers[1..], [Outcome::Tended(_)]));
        assert!(store.history(run.no(), None, 9).expect("history").is_empty());
        let newest = told.lock().expect("lock").expect("it was called");
        commit(&shared, vec![pending(newest)]);
        assert!(matches!(outcomes(&shared)[..], [Outcome::Committed(_)]));
    }

    /// The writes without an outcome were dropped with whoever waited for it. Their runs were in flight
    /// for ever.
    #[test]
    fn a_batch_that_is_not_answered_in_full_is_one_whose_outcome_is_not_known() {
        type Make = fn(&Shared, Vec<Pending>);
        let here: Make = |shared, mut pending| commit_here(shared, &mut pending);
        for (make, kept) in [(commit as Make, 1), (commit as Make, 0), (here, 1)] {
            let (store, shared) = fixture::shared();
            let fence = begin_anew(&shared, fixture::enter(&shared));
            let run = fixture::start(&store, fence);
            let write = Write::Commit(Box::new(fixture::step(run, 1)));
            let (thread, slot) = (0, 0);
            let reply = Reply::Run { thread, slot, run: 1 };
            let (caller, mut answer) = oneshot::channel();
            let control = Write::TendEvents { limit: 1 };
            store.shorten_next_answer(kept);
            make(
                &shared,
                vec![
                    Pending::new(control, Reply::Caller(caller)),
                    Pending::under(fence.epoch, write, reply),
                ],
            );
            let told = shared.threads[0].take().into_iter().any(|event| {
                let Event::Acks(acks) = event else {
                    return false;
                };
                matches!(acks[..], [Ack { answer: Answer::Unknown, .. }])
            });
            assert!(told);
            let answer = answer.try_recv().expect("it is answered");
            let error = answer.expect_err("nobody knows");
            assert!(matches!(*error, StoreError::UnknownOutcome { .. }));
        }
    }
}
