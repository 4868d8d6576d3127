//! After a batch is durable: tells the runs, the callers, the waiters and other processes.

use std::sync::Arc;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    claims,
    committer::{Ack, Answer, Reply, Sender, Settled},
    keeper::Chore,
    mailbox::Event,
    shared::{NO_LEASE, Shared},
    workers,
};
use crate::{
    commit::{
        AfterEnqueue, Applied, Batch, Commit, Control, Controlled, Deleted, Delivered, Delivery,
        Effect, EffectDone, Imported, LetterDone, NewRun, Notice, Outcome, Patch, Published,
        Refusal, Write,
    },
    run_id::{RunId, RunNo},
    store::{Finished, StoreError},
    time::Timestamp,
};

/// What is gathered while one batch is told around.
struct Round<'a> {
    shared: &'a Shared,
    now: Timestamp,
    /// The lease that the batch was made under, if there was one.
    epoch: u64,
    acks: Vec<Vec<Ack>>,
    /// What each engine thread is told, in one go.
    events: Vec<Vec<Event>>,
    elsewhere: Vec<RunNo>,
    /// Callers with their answers, told last: a process may end as soon as it has its answer, and
    /// with it a wake-up that was not sent.
    callers: Vec<(Caller, Outcome)>,
    /// Whether a queue has got an item.
    queues: bool,
    /// Whether a run was handed over to a pool that may be new to everybody.
    new_pool: bool,
    /// Whether what only the owner of a run may write was refused.
    fenced: bool,
    /// The claims of workers in this batch, which come last in it.
    claims: Vec<Uuid>,
}

type Caller = oneshot::Sender<Result<Outcome, Arc<StoreError>>>;

pub(super) fn dispatch(shared: &Shared, mut batch: Batch, senders: Vec<Sender>, applied: Applied) {
    let Applied { outcomes, notices } = applied;
    let n = batch.writes.len();
    // Of a store that does not, nothing comes here: see `committer::store_commit`.
    assert_eq!(n, outcomes.len(), "every write is answered");
    let mut round = Round {
        shared,
        now: batch.now,
        epoch: batch.fence.map_or(NO_LEASE, |fence| fence.epoch),
        acks: shared.threads.iter().map(|_| Vec::new()).collect(),
        events: shared.threads.iter().map(|_| Vec::new()).collect(),
        elsewhere: Vec::new(),
        callers: Vec::new(),
        queues: false,
        new_pool: false,
        fenced: false,
        claims: workers::claims_in(batch.writes.iter()),
    };
    let (claimed, notices): (Vec<_>, Vec<_>) =
        notices.into_iter().partition(|notice| matches!(notice, Notice::Claimed(_)));
    let (queues, notices): (Vec<_>, Vec<_>) =
        notices.into_iter().partition(|notice| matches!(notice, Notice::Queue { .. }));
    // Places that were taken for runs which are in nobody's memory now.
    for _ in claimed.len()..claims::count(&mut batch.writes) {
        shared.release();
    }
    // Before anything else can be told about them.
    for notice in claimed {
        round.notice(notice);
    }
    // Before the claims of this batch are answered: after that nobody knows what they have seen.
    for notice in queues {
        round.notice(notice);
    }
    for ((write, sender), outcome) in batch.writes.into_iter().zip(senders).zip(outcomes) {
        round.tell(write, sender.reply, outcome);
    }
    for notice in notices {
        round.notice(notice);
    }
    let news = round.events.into_iter().zip(round.acks);
    for (mailbox, (mut events, acks)) in shared.threads.iter().zip(news) {
        if !acks.is_empty() {
            events.push(Event::Acks(acks));
        }
        mailbox.push_all(events);
    }
    // After the threads were told: they have dropped the runs when these are looked for.
    if round.fenced && round.epoch != NO_LEASE && round.epoch == shared.epoch() {
        shared.lease_stop.doubt();
    }
    shared.wake_others(&round.elsewhere);
    if round.new_pool {
        shared.lease_stop.poke();
    }
    if round.queues || round.new_pool {
        // Workers of other processes are not known by their queues: all look for themselves.
        shared.store.wake_others(shared.me, &[]);
    }
    let callers = round.callers;
    let answer = move || {
        for (caller, outcome) in callers {
            _ = caller.send(Ok(outcome));
        }
    };
    match shared.me {
        // The process of an engine does not end before the engine has shut down.
        Some(_) => answer(),
        None => shared.store.after_wakes(Box::new(answer)),
    }
    shared.activity.end(n);
}

impl Round<'_> {
    fn tell(&mut self, mut write: Write, reply: Reply, outcome: Outcome) {
        let mut back = None;
        if let Outcome::Refused(_) = outcome {
            claims::forget(&mut write);
        }
        match (write, &outcome) {
            (Write::Start(new), Outcome::Started(started)) => {
                if new.claim && !started.claimed {
                    // The place in memory that was taken for it.
                    self.shared.release();
                }
                if started.claimed {
                    self.started(new);
                } else if !started.attached {
                    self.due(started.id, started.available_at);
                }
            }
            (Write::Deliver(delivery), Outcome::Delivered(delivered)) => {
                self.delivered(&delivery, delivered);
            }
            (Write::Control(_, control), Outcome::Controlled(Controlled::Done { run })) => {
                self.controlled(*run, control);
            }
            (Write::Reopen(reopen), Outcome::Committed(_)) => {
                self.shared.due.note(self.now);
                self.elsewhere.push(reopen.run);
            }
            (Write::Import(run), Outcome::Imported(Imported::Done { available_at: Some(at) })) => {
                self.due(run.row.id, Some(*at))
            }
            (Write::Commit(commit), Outcome::Committed(delivered)) => {
                self.committed(*commit, delivered);
            }
            (Write::Fork(_), Outcome::Started(started)) if !started.attached => {
                self.due(started.id, started.available_at);
            }
            (Write::Delete(_), Outcome::Deleted(Deleted::Done { run })) => {
                // Who waits for the end of a run that another process owned has not heard of it.
                self.shared.hub.gone(run.no());
                self.shared.keeper.poke(Chore::Sweep);
            }
            (Write::Publish(publication), Outcome::Published(published)) => {
                self.published(&publication.name, published);
            }
            (Write::Letter(_), Outcome::Letter(LetterDone::Published(published))) => {
                self.published("a dead letter", published);
            }
            (Write::Start(new), _) if new.claim => self.shared.release(),
            (Write::Schedule(write), Outcome::Scheduled(scheduled)) => {
                super::schedules::tell(self.shared, &write, scheduled);
            }
            (Write::Commit(commit), Outcome::Refused(refusal)) => {
                if *refusal == Refusal::Fenced {
                    self.shared.counters.stale_commit_refused();
                }
                back = Some(commit);
            }
            (Write::Emit(_), Outcome::Refused(Refusal::Fenced)) => {
                self.shared.counters.stale_commit_refused();
            }
            // Whom it concerns is in the notices.
            (Write::HandOver(what), Outcome::Committed(_)) => {
                self.shared.counters.handed_over();
                self.new_pool |= !self.shared.owned.knows(&what.pool);
            }
            (Write::Rehome(what), Outcome::Controlled(Controlled::Done { run })) => {
                self.new_pool |= !self.shared.owned.knows(&what.pool);
                if self.may_own(*run) {
                    self.tell_owner(*run, Event::Rehomed(run.no()));
                }
            }
            (Write::Emit(emission), Outcome::Emitted) => {
                self.shared.hub.followers.notify(emission.run);
            }
            _ => {}
        }
        let is_owners = matches!(reply, Reply::Run { .. } | Reply::Owner { .. });
        self.fenced |= is_owners && outcome == Outcome::Refused(Refusal::Fenced);
        match reply {
            Reply::Run { thread, slot, run } => {
                let answer = Answer::Outcome(outcome, back);
                self.acks[thread].push(Ack { slot, run, answer });
            }
            Reply::Owner { thread, run } => {
                let how = match outcome {
                    Outcome::Refused(Refusal::InboxMoved { .. }) => Settled::Overtaken,
                    _ => Settled::Answered,
                };
                self.events[thread].push(Event::Settled(run, how));
            }
            Reply::Caller(caller) => self.callers.push((caller, outcome)),
            Reply::Emitter { .. } => {}
        }
    }

    /// A run was created, and is in the hands of this process.
    fn started(&mut self, new: Box<NewRun>) {
        let (id, at, epoch) = (new.id, self.now, self.epoch);
        self.tell_owner(id, Event::Started { new, at, epoch });
    }

    /// Tells the engine thread that has the run, if it is here.
    fn tell_owner(&mut self, run: RunId, event: Event) {
        let new = &mut self.events[self.shared.thread_of(run.shard_index())];
        new.push(event);
    }

    /// Whether the run may be ours. Others are told unless it surely is.
    fn may_own(&mut self, run: RunId) -> bool {
        let owned = &self.shared.owned;
        let may_own = !self.shared.threads.is_empty() && owned.may_have(run);
        if !may_own || !owned.surely_has(run) {
            self.elsewhere.push(run.no());
        }
        may_own
    }

    /// A run that is due at this time, and in nobody's memory.
    fn due(&mut self, run: RunId, at: Option<Timestamp>) {
        if self.may_own(run) {
            self.shared.due.note(at.unwrap_or(self.now));
        }
    }

    fn delivered(&mut self, delivery: &Delivery, delivered: &Delivered) {
        let (Some(run), Some(seq)) = (delivered.run, delivered.seq) else {
            return;
        };
        if delivered.receipt != crate::commit::Receipt::Delivered {
            return;
        }
        if self.may_own(run) {
            let row = crate::store::rules::message(delivery, seq, self.now);
            self.tell_owner(run, Event::Message(run.no(), Box::new(row)));
        }
    }

    /// An event is published; those who were told are in the notices.
    fn published(&mut self, name: &str, published: &Published) {
        if published.spreading {
            self.shared.keeper.poke(Chore::Events);
        }
        if published.dropped > 0 {
            tracing::warn!(
                event = name,
                dropped = published.dropped,
                "more events are kept than the limit allows; the oldest were dropped"
            );
        }
    }

    fn controlled(&mut self, run: RunId, control: Control) {
        if self.may_own(run) {
            self.tell_owner(run, Event::Control(run.no(), control));
        }
    }

    /// Something that happened to somebody who is not named in an outcome.
    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Inbox { run, row } => {
                if self.may_own(run) {
                    self.tell_owner(run, Event::Message(run.no(), row));
                }
            }
            Notice::Control { run, control } => self.controlled(run, control),
            Notice::Claimed(new) => self.started(new),
            Notice::Due { run, at } => self.due(run, Some(at)),
            Notice::Queue { queue } => {
                self.queues = true;
                self.shared.workers.poke(self.shared, &queue, &self.claims);
            }
            Notice::ItemEnded { item, answer } => self.shared.hub.item_ended(item, Some(answer)),
        }
    }

    /// A commit of one of our runs is durable: what it did to others, and whether it was its end.
    fn committed(&mut self, commit: Commit, done: &[EffectDone]) {
        let is_emitted = |effect| matches!(effect, &Effect::Emit(_));
        if !commit.state.is_empty() || commit.effects.iter().any(is_emitted) {
            self.shared.hub.followers.notify(commit.run);
        }
        let mut receipts = done.iter();
        for effect in &commit.effects {
            match effect {
                Effect::Enqueue { then: AfterEnqueue::Record(_), .. } => _ = receipts.next(),
                Effect::Enqueue { .. } => {}
                Effect::Send { delivery, .. } => {
                    if let Some(EffectDone::Sent(receipt)) = receipts.next() {
                        self.delivered(delivery, receipt);
                    }
                }
                Effect::Tag { .. } => {}
                Effect::Publish { publication, .. } => {
                    if let Some(EffectDone::Published(published)) = receipts.next() {
                        self.published(&publication.name, published);
                    }
                }
                Effect::Reply { request, body } => {
                    let answer = crate::store::Answer::Reply(body.clone());
                    self.shared.hub.answered(*request, answer);
                }
                Effect::StartChild(start) if !start.awaited => _ = receipts.next(),
                Effect::StartChild(_)
                | Effect::Watch { .. }
                | Effect::Emit(_)
                | Effect::AwaitDeferred(_)
                | Effect::Transaction(_)
                | Effect::Subscribe(_)
                | Effect::Took { .. }
                | Effect::Acquire(_)
                | Effect::Release { .. }
                | Effect::Abandon { .. } => {}
            }
        }
        if let Patch::Park {
            status: crate::commit::RunStatus::Pending,
            available_at: Some(at),
            ..
        } = commit.patch
        {
            // It leaves memory until it is tried again.
            self.shared.due.note(at);
        }
        if let Patch::Continue { .. } = commit.patch {
            self.shared.keeper.poke(Chore::Generations);
        }
        if let Patch::Finish { status, output, error } = commit.patch {
            self.shared.keeper.ended(commit.run);
            self.shared.hub.ended(commit.run, || Finished { status, output, error });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        engine::{
            committer::{self, Pending},
            fixture,
        },
        store::Store,
    };

    /// A client that ended as soon as its start was answered took the wake-up along, and the run
    /// began up to two seconds late.
    #[test]
    fn others_are_woken_before_a_caller_is_answered() {
        let (store, shared) = fixture::shared();
        let fence = fixture::enter_raw(&store, 9);
        let run = fixture::start_unserved(&store, fence);
        let (woken, answered) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
        let note = woken.clone();
        let (asked, early) = (answered.clone(), Arc::new(Mutex::new(None)));
        let was_early = early.clone();
        let wake = move |runs: &[RunNo]| {
            *note.lock().expect("lock") = Some(runs.to_vec());
            let mut receiver = asked.lock().expect("lock");
            let receiver: &mut Option<oneshot::Receiver<_>> = &mut receiver;
            let receiver = receiver.as_mut().expect("a receiver");
            *was_early.lock().expect("lock") = Some(receiver.try_recv().is_ok());
        };
        let guard = store.on_wake(Uuid::from_u128(77), Arc::new(wake));
        let reply = {
            let (sender, receiver) = oneshot::channel();
            *answered.lock().expect("lock") = Some(receiver);
            Reply::Caller(sender)
        };
        let write = Write::Control(crate::commit::Target::Id(run), Control::Pause);
        committer::commit(&shared, vec![Pending::new(write, reply)]);
        assert_eq!(*woken.lock().expect("lock"), Some(vec![run.no()]));
        assert_eq!(*early.lock().expect("lock"), Some(false));
        let answer = answered.lock().expect("lock").as_mut().map(|it| it.try_recv());
        assert!(matches!(answer, Some(Ok(Ok(Outcome::Controlled(_))))), "{answer:?}");
        drop(guard);
    }
}
