//! A batch, applied: the one order in which every store makes the writes of a batch.
//!
//! A batch is applied in two passes. First all commits, each checked against its row as it was before
//! the batch (a batch has at most one commit per run, and a commit changes only its own run), and
//! what bodies emit. Then everything else in the order of the batch: starts, deliveries, values of
//! deferreds, controls, reopenings, and the effects of a commit at the place of that commit. So a
//! control sees the commits of its batch and its answer is honest, and a delivery finds a row that
//! was parked.
//!
//! [`rules`] decides; the tables hold rows. A store implements [`Tables`] over its transaction, and
//! makes no decision itself.
//!
//! On the path of a step this is the end: a commit that only adds entries writes each of them, and
//! touches no other table.

use crate::{
    hash::FastSet,
    run_id::RunNo,
    store::{
        Applied, Batch, Commit, Effect, EffectDone, Emission, Outcome, Patch, Refusal, Write,
        rows::{Head, NextGeneration, Recoveries, RunChange, Tables},
        rules::{
            self, Verdict, deferreds, effects, events, letters, pools, queues, runs, schedules,
            streams,
        },
    },
};

/// Applies a batch within one transaction of the store: see [the row layer](crate::store::rows).
///
/// Gives the outcome of each write, in order, and the notices. Nothing is durable before the store
/// commits its transaction.
///
/// # Errors
///
/// The first error of `tables`. The store must roll back what was written.
pub fn apply<T: Tables>(tables: &mut T, batch: &Batch) -> Result<Applied, T::Error> {
    let is_fence_held = match batch.fence {
        Some(fence) => tables.hold_fence(fence)?,
        None => false,
    };
    tables.prepare(batch)?;
    let mut applier = Applier { tables, is_fence_held, closing: FastSet::default() };
    let mut outcomes = Vec::with_capacity(batch.writes.len());
    for write in &batch.writes {
        outcomes.push(applier.first_pass(write)?);
    }
    for (write, outcome) in batch.writes.iter().zip(&mut outcomes) {
        if let Some(done) = applier.second_pass(write, outcome)? {
            *outcome = done;
        }
    }
    let notices = std::mem::take(tables.notices());
    Ok(Applied { outcomes, notices })
}

struct Applier<'a, T> {
    tables: &'a mut T,
    is_fence_held: bool,
    /// Runs with links whose code is over by a commit of this batch.
    closing: FastSet<RunNo>,
}

impl<T: Tables> Applier<'_, T> {
    fn first_pass(&mut self, write: &Write) -> Result<Outcome, T::Error> {
        match write {
            Write::Commit(_) | Write::Emit(_) if !self.is_fence_held => {
                Ok(Outcome::Refused(Refusal::Fenced))
            }
            Write::Commit(commit) => self.commit(commit),
            Write::Emit(emission) => self.emission(emission),
            // Its turn comes after all commits.
            _ => Ok(Outcome::Refused(Refusal::Gone)),
        }
    }

    /// The outcome, unless it is the one of the first pass.
    fn second_pass(&mut self, write: &Write, first: &Outcome) -> Result<Option<Outcome>, T::Error> {
        let tables = &mut *self.tables;
        Ok(Some(match write {
            Write::Commit(commit) => match first {
                Outcome::Committed(_) if self.has_effects(commit) => {
                    Outcome::Committed(self.effects(commit)?)
                }
                _ => return Ok(None),
            },
            Write::Emit(_) => return Ok(None),
            Write::Start(new) => runs::start(tables, new)?,
            Write::Deliver(delivery) => Outcome::Delivered(letters::deliver(tables, delivery)?),
            Write::Control(target, control) => {
                Outcome::Controlled(runs::control(tables, target, *control)?)
            }
            Write::Reopen(reopen) => runs::reopen(tables, reopen)?,
            Write::Queue(write) => Outcome::Queue(queues::write(tables, write)?),
            Write::Publish(publication) => {
                Outcome::Published(events::publish(tables, publication)?)
            }
            Write::TendEvents { limit } => Outcome::Tended(events::tend(tables, *limit)?),
            Write::Letter(write) => Outcome::Letter(letters::apply(tables, write)?),
            Write::Resolve(resolution) => Outcome::Settled(deferreds::settle(tables, resolution)?),
            Write::Sweep(limit) => Outcome::Swept(tables.sweep_generations(*limit)?),
            Write::Schedule(write) => Outcome::Scheduled(schedules::apply(tables, write)?),
            Write::Import(run) => runs::import(tables, run)?,
            Write::Delete(delete) => Outcome::Deleted(rules::delete(tables, delete)?),
            Write::Tag(tagging) => rules::tag(tables, tagging)?,
            Write::Fork(fork) => runs::fork(tables, fork)?,
            Write::HandOver(what) => pools::hand_over(tables, what)?,
            Write::Rehome(what) => pools::rehome(tables, what)?,
            Write::Mend(mend) => Outcome::Mended(tables.mend(mend)?),
        }))
    }

    fn commit(&mut self, commit: &Commit) -> Result<Outcome, T::Error> {
        let tables = &mut *self.tables;
        let head = tables.head(commit.run)?;
        // A runner that lost its shards and registered again has a fence that holds, and may still
        // have commits from before.
        if let Some(head) = &head
            && !tables.owns(head.shard)?
        {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        let before = match (rules::check(head.as_ref(), commit), head) {
            (Verdict::Accept, Some(head)) => head,
            (Verdict::InboxMoved { seen, seq }, _) => {
                let rows = tables.inbox_after(commit.run, seen)?;
                return Ok(Outcome::Refused(Refusal::InboxMoved { rows, seq }));
            }
            (Verdict::Refuse(refusal), _) => return Ok(Outcome::Refused(refusal)),
            (Verdict::Accept, None) => return Ok(Outcome::Refused(Refusal::Gone)),
        };
        tables.own(commit.run);
        if before.links != 0 && effects::has_sequel(commit) {
            self.closing.insert(commit.run);
        }
        tables.write_entries(commit.run, before.generation, &commit.deletes, &commit.puts)?;
        self.write_extras(commit)?;
        self.write_patch(&before, commit)?;
        Ok(Outcome::Committed(Vec::new()))
    }

    /// Makes the writes that most commits have none of.
    fn write_extras(&mut self, commit: &Commit) -> Result<(), T::Error> {
        let tables = &mut *self.tables;
        if !commit.consumed.is_empty() {
            tables.consume(commit.run, &commit.consumed)?;
        }
        if !commit.state.is_empty() {
            tables.write_state(commit.run, &commit.state)?;
        }
        for effect in &commit.effects {
            match effect {
                Effect::Tag { name, value } => {
                    rules::write_tag(tables, commit.run, name, value.as_deref())?;
                }
                Effect::Reply { request, body } => tables.reply_if_open(*request, body)?,
                Effect::Emit(emit) => {
                    streams::append(tables, commit.run, commit.generation, emit)?;
                }
                // Their turn comes after all commits.
                _ => {}
            }
        }
        Ok(())
    }

    fn write_patch(&mut self, before: &Head, commit: &Commit) -> Result<(), T::Error> {
        let tables = &mut *self.tables;
        let mut head = *before;
        rules::apply(&mut head, commit, tables.now());
        let change = match &commit.patch {
            _ if !rules::writes_row(before, commit) => RunChange::Nothing,
            Patch::Keep if commit.numbers == 0 => RunChange::Learned,
            Patch::Keep => RunChange::Number,
            Patch::Run { .. } => RunChange::Moving,
            Patch::Park { waiting, .. } => {
                RunChange::Status { waiting: Some(waiting), recoveries: Recoveries::Cleared }
            }
            Patch::Pause { reason } => {
                RunChange::Status { waiting: Some(reason), recoveries: Recoveries::Kept }
            }
            Patch::RollBack { error, .. } => RunChange::RollBack { error: error.as_deref() },
            Patch::Continue { workflow, version, pool, input } => {
                RunChange::Continue(NextGeneration { workflow, version: *version, pool, input })
            }
            Patch::Finish { output, error, .. } => RunChange::Finish {
                was_due: before.available_at.is_some(),
                output: output.as_deref(),
                error: error.as_deref(),
            },
        };
        tables.write_run(&head, change)?;
        // A run that was never sent anything has nothing unread, and nobody waits for a reply.
        if let (RunChange::Finish { .. }, 1..) = (change, head.inbox_seq) {
            tables.end_inbox(head.id, rules::LEFT_UNREAD)?;
        }
        Ok(())
    }

    /// Appends what a body gives out while it runs.
    fn emission(&mut self, emission: &Emission) -> Result<Outcome, T::Error> {
        let tables = &mut *self.tables;
        let head = tables.head(emission.run)?;
        if let Some(refusal) = streams::refuse_emission(head.as_ref(), emission) {
            return Ok(Outcome::Refused(refusal));
        }
        if let Some(head) = head
            && !tables.owns(head.shard)?
        {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        for emit in &emission.items {
            streams::append(tables, emission.run, emission.generation, emit)?;
        }
        Ok(Outcome::Emitted)
    }

    fn has_effects(&self, commit: &Commit) -> bool {
        !commit.effects.is_empty()
            || commit.results_only
            || (!self.closing.is_empty() && self.closing.contains(&commit.run))
    }

    /// Carries out what a commit does to others, in order; last what is left to do if its code is
    /// over.
    fn effects(&mut self, commit: &Commit) -> Result<Vec<EffectDone>, T::Error> {
        let tables = &mut *self.tables;
        for transaction in rules::transactions(commit) {
            tables.call(transaction)?;
            if let Some(entry) = transaction.written() {
                tables.write_entries(commit.run, commit.generation, &[], &[entry])?;
            }
        }
        let mut done = Vec::new();
        for effect in &commit.effects {
            done.extend(effects::apply(tables, commit, effect)?);
        }
        if effects::has_sequel(commit)
            && let Some(head) = tables.head(commit.run)?
        {
            done.extend(effects::follow_up(tables, &head, commit)?);
        }
        Ok(done)
    }
}
