//! What the random batches are made of: everything that a store can be asked to write, and all of it is
//! taken now and then.
//!
//! A comparison of stores shows nothing about a write that is never drawn, or always refused. A new
//! kind of write does not compile here before it has a name, and is missing before it is drawn.

use std::collections::BTreeSet;

use super::*;

/// All kinds of writes, of effects and of patches. What has a place of its own in the differential test
/// is not among them: [`Write::Sweep`], and what runners do.
const KINDS: &[&str] = &[
    "start",
    "deliver",
    "cancel",
    "pause",
    "resume",
    "reopen",
    "resolve",
    "publish",
    "tend events",
    "replay a letter",
    "drop letters",
    "emission",
    "import",
    "delete",
    "tag from outside",
    "fork",
    "hand over",
    "enqueue from outside",
    "claim",
    "extend",
    "settle as done",
    "settle for a retry",
    "settle as failed",
    "release an item",
    "revoke",
    "cancel an item",
    "replay an item",
    "drop an item",
    "put a schedule",
    "pause a schedule",
    "resume a schedule",
    "delete a schedule",
    "tick",
    "queued tick",
    "trigger",
    "effect: send",
    "effect: reply",
    "effect: publish",
    "effect: subscribe",
    "effect: took",
    "effect: await a deferred",
    "effect: look at a deferred",
    "effect: start an awaited child",
    "effect: start a child that is not awaited",
    "effect: watch",
    "effect: emit",
    "effect: tag",
    "effect: acquire",
    "effect: release",
    "effect: abandon an event",
    "effect: abandon a deferred",
    "effect: abandon the end of a run",
    "effect: abandon a queue result",
    "effect: abandon a limit",
    "effect: enqueue and wait",
    "effect: enqueue and go on",
    "several effects",
    "patch: keep",
    "patch: run",
    "patch: park",
    "patch: try again",
    "patch: roll back",
    "patch: pause",
    "patch: continue",
    "patch: complete",
    "patch: fail",
    "patch: end as cancelled",
];

/// What a write is, by its name on the list.
fn kinds(write: &Write) -> Vec<&'static str> {
    let kind = match write {
        Write::Start(_) => "start",
        Write::Deliver(_) => "deliver",
        Write::Control(_, Control::Cancel { .. }) => "cancel",
        Write::Control(_, Control::Pause) => "pause",
        Write::Control(_, Control::Resume) => "resume",
        Write::Reopen(_) => "reopen",
        Write::Resolve(_) => "resolve",
        Write::Commit(commit) => return of_commit(commit),
        Write::Queue(write) => of_queue(write),
        Write::Publish(_) => "publish",
        Write::TendEvents { .. } => "tend events",
        Write::Letter(write) => match **write {
            LetterWrite::Replay { .. } => "replay a letter",
            LetterWrite::Drop(_) => "drop letters",
        },
        Write::Sweep(_) => "sweep",
        Write::Emit(_) => "emission",
        Write::Schedule(write) => of_schedule(write),
        Write::Import(_) => "import",
        Write::Delete(_) => "delete",
        Write::Tag(_) => "tag from outside",
        Write::Fork(_) => "fork",
        Write::HandOver(_) => "hand over",
        Write::Rehome(_) => "rehome",
        // There is nothing to be mended: the tests of the doctor break something first.
        Write::Mend(_) => return Vec::new(),
    };
    vec![kind]
}

fn of_queue(write: &QueueWrite) -> &'static str {
    match write {
        QueueWrite::Enqueue(_) => "enqueue from outside",
        QueueWrite::Claim(_) => "claim",
        QueueWrite::Extend(_) => "extend",
        QueueWrite::Settle(settle) => match settle.settlement {
            Settlement::Done(_) => "settle as done",
            Settlement::Retry { .. } => "settle for a retry",
            Settlement::Failed(_) => "settle as failed",
            Settlement::Release => "release an item",
        },
        QueueWrite::Revoke => "revoke",
        QueueWrite::Control(_, ItemControl::Cancel) => "cancel an item",
        QueueWrite::Control(_, ItemControl::Replay) => "replay an item",
        QueueWrite::Control(_, ItemControl::Drop) => "drop an item",
    }
}

fn of_schedule(write: &ScheduleWrite) -> &'static str {
    match write {
        ScheduleWrite::Put(_) => "put a schedule",
        ScheduleWrite::Pause { .. } => "pause a schedule",
        ScheduleWrite::Resume { .. } => "resume a schedule",
        ScheduleWrite::Delete { .. } => "delete a schedule",
        ScheduleWrite::Fire(fire) => match fire.cause {
            FireCause::Tick { .. } => "tick",
            FireCause::Queued { .. } => "queued tick",
            FireCause::Trigger { .. } => "trigger",
        },
    }
}

fn of_commit(commit: &Commit) -> Vec<&'static str> {
    let mut kinds: Vec<_> = commit.effects.iter().map(of_effect).collect();
    if kinds.len() > 1 {
        kinds.push("several effects");
    }
    kinds.push(match &commit.patch {
        Patch::Keep => "patch: keep",
        Patch::Run { .. } => "patch: run",
        Patch::Park { status, .. } if *status == RunStatus::Pending => "patch: try again",
        Patch::Park { .. } => "patch: park",
        Patch::RollBack { .. } => "patch: roll back",
        Patch::Pause { .. } => "patch: pause",
        Patch::Continue { .. } => "patch: continue",
        Patch::Finish { status, .. } => match status {
            RunStatus::Completed => "patch: complete",
            RunStatus::Failed => "patch: fail",
            _ => "patch: end as cancelled",
        },
    });
    kinds
}

fn of_effect(effect: &Effect) -> &'static str {
    match effect {
        Effect::Send { .. } => "effect: send",
        Effect::Reply { .. } => "effect: reply",
        Effect::Publish { .. } => "effect: publish",
        Effect::Subscribe(_) => "effect: subscribe",
        Effect::Took { .. } => "effect: took",
        Effect::AwaitDeferred(wait) if wait.looks => "effect: look at a deferred",
        Effect::AwaitDeferred(_) => "effect: await a deferred",
        Effect::StartChild(child) if child.awaited => "effect: start an awaited child",
        Effect::StartChild(_) => "effect: start a child that is not awaited",
        Effect::Watch { .. } => "effect: watch",
        Effect::Emit(_) => "effect: emit",
        // A store in memory has none to compare with; see the checks in `transactions`.
        Effect::Transaction(_) => "effect: transaction",
        Effect::Tag { .. } => "effect: tag",
        Effect::Acquire(_) => "effect: acquire",
        Effect::Release { .. } => "effect: release",
        Effect::Abandon { kind, .. } => match kind {
            // Nothing is registered for a message.
            InboxKind::Message => "effect: abandon a message",
            InboxKind::Event => "effect: abandon an event",
            InboxKind::Deferred => "effect: abandon a deferred",
            InboxKind::RunEnded => "effect: abandon the end of a run",
            InboxKind::QueueResult => "effect: abandon a queue result",
            InboxKind::LimitGrant => "effect: abandon a limit",
            other => panic!("{other:?} has no name here"),
        },
        Effect::Enqueue { then, .. } => match then {
            AfterEnqueue::Wait { .. } => "effect: enqueue and wait",
            AfterEnqueue::Record(_) => "effect: enqueue and go on",
        },
    }
}

/// Whether a write has changed something.
fn was_taken(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Started(started) => !started.attached,
        Outcome::Delivered(delivered) => delivered.receipt == Receipt::Delivered,
        Outcome::Controlled(controlled) => matches!(controlled, Controlled::Done { .. }),
        Outcome::Settled(settled) => *settled == Settled::First,
        Outcome::Committed(_) | Outcome::Emitted | Outcome::Published(_) | Outcome::Swept(_) => {
            true
        }
        Outcome::Refused(_) => false,
        Outcome::Queue(done) => match done {
            QueueDone::Enqueued(enqueued) => !enqueued.attached,
            QueueDone::Claimed(claimed) => !claimed.items.is_empty(),
            QueueDone::Extended(extended) => extended.contains(&true),
            QueueDone::Settled(settled) => *settled,
            QueueDone::Revoked => true,
            QueueDone::Controlled(controlled) => *controlled == ItemControlled::Done,
        },
        Outcome::Scheduled(scheduled) => match scheduled {
            ScheduleOutcome::Created | ScheduleOutcome::Replaced | ScheduleOutcome::Done => true,
            ScheduleOutcome::Fired(fired) => matches!(fired, Fired::Started(_)),
            ScheduleOutcome::Unchanged
            | ScheduleOutcome::Already
            | ScheduleOutcome::Stale
            | ScheduleOutcome::Unknown => false,
        },
        Outcome::Imported(imported) => matches!(imported, Imported::Done { .. }),
        Outcome::Deleted(deleted) => matches!(deleted, Deleted::Done { .. }),
        Outcome::Tended(tended) => tended.done > 0,
        Outcome::Mended(rows) => *rows > 0,
        Outcome::Letter(done) => match done {
            LetterDone::Delivered(delivered) => delivered.receipt == Receipt::Delivered,
            LetterDone::Published(_) => true,
            LetterDone::Dropped(count) => *count > 0,
            LetterDone::Unknown => false,
        },
    }
}

#[test]
fn every_kind_of_write_is_drawn_and_taken() {
    let mut taken = BTreeSet::new();
    for seed in 0..100 {
        let store = MemoryStore::new();
        let fence = register(&store, "first", START);
        let shards = ShardSet::of_default_pool();
        store.take_shards(fence, START, &shards, &[]).expect("take_shards");
        let mut random = Random::new(seed);
        for no in 0..150 {
            let batch = random.batch(&store, fence, at(no));
            let outcomes = store.commit(&batch).expect("commit").outcomes;
            let writes = batch.writes.iter().zip(&outcomes);
            let writes = writes.filter(|(_, outcome)| was_taken(outcome));
            taken.extend(writes.flat_map(|(write, _)| kinds(write)));
        }
    }
    let wanted: BTreeSet<&str> = KINDS.iter().copied().collect();
    let missing: Vec<_> = wanted.difference(&taken).collect();
    assert!(missing.is_empty(), "never drawn, or never taken: {missing:?}");
    let unknown: Vec<_> = taken.difference(&wanted).collect();
    assert!(unknown.is_empty(), "not on the list: {unknown:?}");
}
