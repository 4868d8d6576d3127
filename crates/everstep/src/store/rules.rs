//! The rules of the store's contract as plain functions: what a write does to the row of a run.
//!
//! All stores decide with these, so they cannot come to differ. Here is
//! no storage: a [`Head`] goes in, a decision comes out, and the store writes it down.
//!
//! The order of these decisions within a batch is in [`crate::store::apply`], the rows that they read
//! and write are in [`crate::store::rows`].

pub(crate) mod children;
pub(crate) mod deferreds;
pub(crate) mod effects;
pub(crate) mod events;
pub(crate) mod letters;
pub(crate) mod limits;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod listing;
pub(crate) mod overview;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod runs;
pub(crate) mod streams;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod sweep;
pub(crate) mod tables;

use crate::{
    pool::PoolNo,
    run_id::RunId,
    store::{
        CancelRequest, Commit, Control, ControlRefusal, Controlled, Delivery, Effect, InboxKind,
        InboxRow, OnEnd, Patch, Receipt, Refusal, Reopen, RunRow, RunStatus, Transaction,
        rows::Head,
    },
    time::Timestamp,
};

pub(crate) mod control;
pub(crate) mod schedules;

pub(crate) use control::*;

/// The instant at which the id of a run was made, in SQL: [`RunId::started_at`] of its number.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const MADE_AT: &str = "(no >> 20)";

/// Why a run that was paused from outside waits.
pub(crate) const PAUSED_BY_REQUEST: &str = "paused by request";
/// Why the unread messages of a run that ended are dead letters.
pub(crate) const LEFT_UNREAD: &str = "the run ended before it was read";

/// Whether a commit may be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Refuse(Refusal),
    /// To be refused with the messages after this one.
    InboxMoved {
        seen: u64,
        /// The last one that there was.
        seq: u64,
    },
}

/// Decides about a commit of an owner whose fence holds.
pub(crate) fn check(head: Option<&Head>, commit: &Commit) -> Verdict {
    let Some(head) = head else {
        return Verdict::Refuse(Refusal::Gone);
    };
    if head.generation != commit.generation || head.status.is_terminal() {
        return Verdict::Refuse(Refusal::Gone);
    }
    if let Some(refusal) = check_movement(head, commit) {
        return Verdict::Refuse(refusal);
    }
    if !numbers_follow(head, commit) {
        return Verdict::Refuse(Refusal::Gap { stored: head.last_number });
    }
    match commit.inbox_seq {
        Some(seen) if seen != head.inbox_seq => Verdict::InboxMoved { seen, seq: head.inbox_seq },
        _ => Verdict::Accept,
    }
}

/// A cancel or a pause from outside refuses every forward movement, never results.
fn check_movement(head: &Head, commit: &Commit) -> Option<Refusal> {
    if commit.results_only && commit.patch == Patch::Keep && commit.effects.is_empty() {
        return None;
    }
    if let Some(CancelRequest { rollback }) = head.cancel {
        // This is how the owner carries the cancel out, from a paused row too. A run that rolls back
        // because it has failed has not heard of the cancel.
        let carries_out = matches!(
            commit.patch,
            Patch::RollBack { ending: RunStatus::Cancelled, .. }
                | Patch::Finish { status: RunStatus::Cancelled, .. }
        );
        // A rollback may come to a halt; a plain cancel needs nothing that could be missing.
        let halts = rollback && matches!(commit.patch, Patch::Pause { .. });
        if carries_out || halts {
            return None;
        }
        // Once the end is decided, there is nothing left to be cancelled.
        if head.ending.is_none() {
            return Some(Refusal::CancelRequested { rollback });
        }
    }
    (head.status == RunStatus::Paused).then_some(Refusal::Paused)
}

fn numbers_follow(head: &Head, commit: &Commit) -> bool {
    let Some(base) = commit.last_number.checked_sub(commit.numbers) else {
        return false;
    };
    if head.last_number_exact { base == head.last_number } else { base >= head.last_number }
}

/// Makes the change of an accepted commit.
pub(crate) fn apply(head: &mut Head, commit: &Commit, now: Timestamp) {
    (head.last_number, head.last_number_exact) = (commit.last_number, true);
    match &commit.patch {
        Patch::Keep => {}
        Patch::Run { inbox_seq } => {
            head.status = moving(head);
            if *inbox_seq == head.inbox_seq {
                head.available_at = None;
            }
        }
        Patch::Park { status, available_at, attempts, .. } => {
            head.status = *status;
            head.available_at = available_at.map(|at| due_at(head.id, at, now));
            head.attempts = *attempts;
            if *status == RunStatus::Pending {
                forget_number(head);
            }
        }
        Patch::RollBack { ending, .. } => {
            (head.status, head.ending) = (RunStatus::RollingBack, Some(*ending));
            head.available_at = None;
        }
        Patch::Pause { .. } => (head.status, head.available_at) = (RunStatus::Paused, None),
        Patch::Finish { status, .. } => {
            (head.status, head.ending, head.available_at) = (*status, None, None);
        }
        Patch::Continue { .. } => {
            head.generation += 1;
            (head.status, head.available_at, head.attempts) = (RunStatus::Running, None, 1);
            head.last_number = 0;
        }
    }
}

/// What a run is that moves.
fn moving(head: &Head) -> RunStatus {
    if head.ending.is_some() { RunStatus::RollingBack } else { RunStatus::Running }
}

/// Whether a commit has to write the row. `last_number` must be exact unless the row is `Running`.
pub(crate) fn writes_row(before: &Head, commit: &Commit) -> bool {
    let learns_number = commit.numbers > 0 || !before.last_number_exact;
    commit.patch != Patch::Keep || (before.status != RunStatus::Running && learns_number)
}

/// Why a message cannot be taken, given how many are unread; none if it can.
pub(crate) fn refuse_message(head: &Head, unread: u64, delivery: &Delivery) -> Option<Receipt> {
    if head.status.is_terminal() {
        Some(Receipt::Finished)
    } else if unread >= delivery.inbox_max {
        Some(Receipt::Full)
    } else {
        None
    }
}

/// The row of a message that was sent.
pub(crate) fn message(delivery: &Delivery, seq: u64, sent_at: Timestamp) -> InboxRow {
    InboxRow {
        seq,
        kind: InboxKind::Message,
        name: delivery.name.clone(),
        body: delivery.body.clone(),
        wait: None,
        request: delivery.request,
        sent_at,
        on_end: match &delivery.on_end {
            OnEnd::Publish(fallback) => Some(fallback.clone()),
            OnEnd::Error | OnEnd::DeadLetter => None,
        },
    }
}

/// Gives the next message its place, and makes the run due if a message can move it.
pub(crate) fn deliver(head: &mut Head, now: Timestamp) -> u64 {
    head.inbox_seq += 1;
    let wakes = match head.status {
        // A delayed start, or a run that waits to be tried again, keeps its time.
        RunStatus::Pending => head.available_at.is_none(),
        RunStatus::Running | RunStatus::Sleeping => true,
        // A rollback reads no messages, and a paused run waits for something else.
        RunStatus::RollingBack | RunStatus::Paused => false,
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled => false,
    };
    if wakes {
        make_due(head, now);
    }
    head.inbox_seq
}

fn make_due(head: &mut Head, now: Timestamp) {
    let at = due_at(head.id, now, now);
    head.available_at = Some(head.available_at.map_or(at, |before| before.min(at)));
}

/// The `available_at` of a run that is to be due at `at`, where the clock of the writer shows `now`.
///
/// A time that has come stands for "at once", and that must hold by the clock of every reader, though
/// the writer's may be ahead. So it is stored as the instant at which the id of the run was made, if
/// that is earlier. A run whose id is from the future is found by its number (see
/// [`Store::due`](crate::store::Store::due)). So `available_at` is after the id exactly if the run waits
/// for a time.
///
/// Of those that are due at once, the oldest runs come first. A value in the order of the wake-ups would
/// have to be read from a clock.
pub(crate) fn due_at(id: RunId, at: Timestamp, now: Timestamp) -> Timestamp {
    match at > now {
        true => at,
        false => at.min(RunId::started_at(id.no())),
    }
}

/// The words for a dead letter.
pub(crate) fn undeliverable(receipt: Receipt) -> &'static str {
    match receipt {
        Receipt::Unknown => "there is no such run",
        Receipt::Finished => "the run had ended",
        Receipt::Full => "the inbox was full",
        Receipt::Delivered | Receipt::Duplicate => "it was delivered",
        Receipt::DeadLettered | Receipt::Published => "its sender has said what becomes of it",
    }
}

/// Whether a message that a workflow has sent becomes a dead letter.
pub(crate) fn is_dead_letter(receipt: Receipt) -> bool {
    matches!(receipt, Receipt::Unknown | Receipt::Finished | Receipt::Full)
}

/// Carries out what is asked from outside, or says why not.
pub(crate) fn control(head: &mut Head, control: Control, now: Timestamp) -> Controlled {
    let (run, status) = (head.id, head.status);
    if status.is_terminal() {
        return Controlled::Finished { run, status };
    }
    let paused = status == RunStatus::Paused;
    let refused = match (control, head.ending) {
        (Control::Cancel { .. }, Some(ending)) if paused => {
            Some(ControlRefusal::RollbackPaused { ending })
        }
        // A run that is being cancelled is not held up by a pause.
        (Control::Pause, _) if !paused && head.cancel.is_some() => {
            Some(ControlRefusal::BeingCancelled)
        }
        _ => None,
    };
    if let Some(reason) = refused {
        return Controlled::Refused { run, status, reason };
    }
    let already = match control {
        // Once its end is decided there is nothing left to be cancelled.
        Control::Cancel { .. } => head.cancel.is_some() || head.ending.is_some(),
        Control::Pause => paused,
        Control::Resume => !paused,
    };
    if already {
        return Controlled::Already { run, status };
    }
    match control {
        Control::Cancel { rollback } => {
            head.cancel = Some(CancelRequest { rollback });
            make_due(head, now);
        }
        Control::Pause => {
            let waits = status == RunStatus::Pending;
            let made_at = RunId::started_at(head.id.no());
            head.resume_at = head.available_at.filter(|at| waits && *at > made_at);
            (head.status, head.available_at) = (RunStatus::Paused, None);
        }
        Control::Resume => {
            head.status = match head.ending {
                Some(_) => RunStatus::RollingBack,
                None => RunStatus::Pending,
            };
            head.available_at = head.resume_at.take();
            if head.available_at.is_none() {
                make_due(head, now);
            }
            forget_number(head);
        }
    }
    Controlled::Done { run }
}

/// A run that is tried again goes back to an earlier number; to which is in the entries, which
/// only the owner can read.
fn forget_number(head: &mut Head) {
    (head.last_number, head.last_number_exact) = (0, false);
}

/// Makes a finished run live again; `false` if it is not as the caller believes.
pub(crate) fn reopen(head: &mut Head, reopen: &Reopen, now: Timestamp) -> bool {
    if !head.status.is_terminal()
        || head.status != reopen.status
        || head.attempts != reopen.attempts
    {
        return false;
    }
    head.status = RunStatus::Pending;
    head.attempts += 1;
    make_due(head, now);
    (head.ending, head.cancel) = (None, None);
    forget_number(head);
    true
}

/// A run from another store, as it enters this one: what was in its owner's memory is in nobody's
/// now, and due. Its home pool has the number here that is given.
pub(crate) fn import(row: &RunRow, pool: PoolNo, now: Timestamp) -> Head {
    let mut head = Head {
        id: row.id,
        shard: row.id.shard_in(pool),
        status: row.status,
        ending: row.ending,
        generation: row.generation,
        available_at: row.available_at,
        attempts: row.attempts,
        inbox_seq: row.inbox_seq,
        cancel: row.cancel_requested,
        last_number: row.last_number,
        last_number_exact: row.status != RunStatus::Running,
        // What it has elsewhere is in the other store.
        links: 0,
        resume_at: row.resume_at,
    };
    match row.status {
        RunStatus::Running => {
            head.status = RunStatus::Pending;
            make_due(&mut head, now);
        }
        RunStatus::Pending if row.available_at.is_none() => make_due(&mut head, now),
        RunStatus::RollingBack => make_due(&mut head, now),
        _ => {}
    }
    if !head.status.is_terminal() {
        forget_number(&mut head);
    }
    head
}

/// The transactions of a commit, in order.
pub(crate) fn transactions(commit: &Commit) -> impl Iterator<Item = &Transaction> {
    commit.effects.iter().filter_map(|effect| match effect {
        Effect::Transaction(transaction) => Some(transaction),
        _ => None,
    })
}
