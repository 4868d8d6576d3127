//! The keeper: one thread for the store work that has a time of its own and belongs to no run.
//!
//! What it does are [`Chore`]s. Each is a plain function that does what is due and says when to
//! come back; it also comes when it is poked, and now and then for safety, since a hint from another
//! process may be lost. Chores run one after another and never hold a lock of the engine. What they
//! write goes through the committer like everybody's writes.
//!
//! Always true: a chore that is due or poked counts as something that goes on, from before it is
//! taken up until it has said when to come back. So a virtual clock never passes it over.

use std::{
    collections::BTreeMap,
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    audit, retention, schedules,
    shared::{Answering, Shared},
};
use crate::{
    commit::{Outcome, Write},
    run_id::RunNo,
    seam::{self, Leaf, Monitor},
    store::{Reaction, StoreError},
    time::Timestamp,
};

/// Something that the keeper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// The rest of the waiters of a broadcast are told, and events whose time is over removed.
    Events,
    /// Removes the histories of generations that are over.
    Generations,
    /// Deals with the ticks of schedules.
    Schedules,
    /// Deletes runs that were kept for as long as they should.
    Retention,
    /// Removes what deleted runs have left.
    Sweep,
    /// Takes the places of items whose workers are lost.
    Places,
    /// Removes entries of the audit log that were kept for as long as they should.
    Audit,
}

impl Chore {
    fn complaint(self) -> &'static str {
        match self {
            Chore::Events => "events cannot be tended to",
            Chore::Generations => "old generations cannot be removed",
            Chore::Schedules => "schedules cannot be looked at",
            Chore::Retention => "runs that were kept long enough cannot be deleted",
            Chore::Sweep => "what deleted runs have left cannot be removed",
            Chore::Places => "the places of lost workers cannot be taken",
            Chore::Audit => "old entries of the audit log cannot be removed",
        }
    }
}

/// Does what is due, and says when to come back; not by itself if absent.
type Work = fn(&Shared, Timestamp) -> Result<Option<Timestamp>, Arc<StoreError>>;

/// All chores.
const CHORES: [(Chore, Work); 7] = [
    (Chore::Events, super::events::tend),
    (Chore::Generations, sweep),
    (Chore::Schedules, schedules::deal_with_ticks),
    (Chore::Retention, retention::delete_expired),
    (Chore::Sweep, retention::sweep),
    (Chore::Places, super::workers::take_lost_places),
    (Chore::Audit, audit::delete_expired),
];

/// How many entries are removed at a time, so that nobody waits for long behind it.
const SWEEP_SLICE: u32 = 1_000;

fn sweep(shared: &Shared, now: Timestamp) -> Result<Option<Timestamp>, Arc<StoreError>> {
    if !shared.store.has_old_generations().map_err(Arc::new)? {
        return Ok(None);
    }
    let outcome = write(shared, Write::Sweep(SWEEP_SLICE))?;
    Ok((outcome == Outcome::Swept(true)).then_some(now))
}

/// What the thread waits on.
#[derive(Default)]
pub(crate) struct Keeper {
    state: Monitor<State>,
    /// The runs whose end somebody is to be poked for.
    watched: Leaf<BTreeMap<RunNo, Chore>>,
    /// Whether there are any: asked at the end of every run.
    watches: AtomicBool,
}

#[derive(Default)]
struct State {
    plans: [Plan; CHORES.len()],
    /// Where to look first for the next chore: behind the last one.
    turn: usize,
    closed: bool,
}

impl State {
    fn poke_all(&mut self) {
        self.plans.iter_mut().for_each(|plan| plan.poked = true);
    }

    /// Takes up the next chore that is due, by its place in the list. All take turns: one that is
    /// poked again and again, as by busy processes elsewhere, keeps no other waiting.
    fn take_due(&mut self, now: Timestamp) -> Option<usize> {
        let all = self.plans.len();
        let mut places = (0..all).map(|step| (self.turn + step) % all);
        let due = places.find(|place| self.plans[*place].is_due(now))?;
        self.plans[due] = Plan::default();
        self.turn = due + 1;
        Some(due)
    }
}

/// When a chore is to be done next.
#[derive(Clone, Copy, Default)]
struct Plan {
    poked: bool,
    at: Option<Timestamp>,
}

impl Plan {
    fn is_due(self, now: Timestamp) -> bool {
        self.poked || self.at.is_some_and(|at| at <= now)
    }
}

/// How long a chore that the store has refused waits before it tries again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Keeper {
    /// Do this chore now.
    pub(crate) fn poke(&self, chore: Chore) {
        self.state.change(|state| {
            for (plan, (other, _)) in state.plans.iter_mut().zip(CHORES) {
                plan.poked |= other == chore;
            }
        });
    }

    /// Do all chores now: something has happened elsewhere.
    pub(crate) fn poke_all(&self) {
        self.state.change(State::poke_all);
    }

    /// From now on this chore is poked when one of these runs ends in this process, and not for
    /// those that it has named before.
    pub(crate) fn watch(&self, chore: Chore, runs: impl Iterator<Item = RunNo>) {
        let mut watched = self.watched.lock();
        watched.retain(|_, other| *other != chore);
        watched.extend(runs.map(|run| (run, chore)));
        self.watches.store(!watched.is_empty(), Ordering::Release);
    }

    /// This run has ended.
    pub(crate) fn ended(&self, run: RunNo) {
        if !self.watches.load(Ordering::Acquire) {
            return;
        }
        let chore = self.watched.lock().remove(&run);
        if let Some(chore) = chore {
            self.poke(chore);
        }
    }

    /// Whether no chore is to go on.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// No chore is begun any more.
    pub(crate) fn close(&self) {
        self.state.change(|state| state.closed = true);
    }

    /// When a chore comes next, and whether one is to be done at once: for a virtual clock.
    pub(crate) fn outlook(&self, now: Timestamp) -> (Option<Timestamp>, bool) {
        let state = self.state.lock();
        if state.closed {
            return (None, false);
        }
        let next = state.plans.iter().filter_map(|plan| plan.at).min();
        (next, state.plans.iter().any(|plan| plan.is_due(now)))
    }

    /// Wakes the thread if its time has come: it cannot see a virtual clock jump.
    pub(crate) fn wake_if_due(&self, now: Timestamp) {
        if self.outlook(now).1 {
            self.state.notify();
        }
    }
}

/// The thread, until it is closed. Begins with every chore.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut safety = seam::now() + shared.settings.safety_poll;
    while let Some(chore) = wait(shared, &mut safety) {
        let (name, work) = CHORES[chore];
        // A store that has stopped the engine is not asked any more.
        let next = match shared.stopped() {
            Some(_) => None,
            None => come_back(shared, name, work(shared, shared.now())),
        };
        shared.keeper.state.lock().plans[chore].at = next;
        shared.activity.end(1);
    }
}

/// When a chore that ended like this comes back.
fn come_back(
    shared: &Shared,
    chore: Chore,
    done: Result<Option<Timestamp>, Arc<StoreError>>,
) -> Option<Timestamp> {
    match done {
        Ok(next) => next,
        Err(error) if shared.closing() || error.reaction() == Reaction::Stop => {
            tracing::error!(%error, ?chore, "a chore cannot be done");
            None
        }
        Err(error) => {
            shared.complain(&error, chore.complaint());
            Some(shared.now() + RETRY_AFTER)
        }
    }
}

/// Waits for the next chore that is due, by its place in the list; `None` when it is closed. What
/// this gives counts as going on.
fn wait(shared: &Shared, safety: &mut Instant) -> Option<usize> {
    shared.keeper.state.wait("chores", |state| {
        if state.closed {
            return Break(None);
        }
        if seam::now() >= *safety {
            *safety = seam::now() + shared.settings.safety_poll;
            state.poke_all();
        }
        let now = shared.now();
        if let Some(due) = state.take_due(now) {
            shared.activity.begin(1);
            return Break(Some(due));
        }
        let next = state.plans.iter().filter_map(|plan| plan.at).min();
        // Whoever moves a virtual clock wakes this.
        let next = next.filter(|_| shared.clock.as_virtual().is_none());
        let next = next.and_then(|at| seam::after(at.since(now)));
        Continue(Some(next.map_or(*safety, |next| next.min(*safety))))
    })
}

/// Hands a write of a chore to the committer, and waits until it is durable.
pub(crate) fn write(shared: &Shared, write: Write) -> Result<Outcome, Arc<StoreError>> {
    answered(shared, shared.hand_in(write))
}

fn answered(shared: &Shared, answer: Answering) -> Result<Outcome, Arc<StoreError>> {
    seam::block_on(answer, "answer to a chore").unwrap_or_else(|_| {
        let store = shared.store.describe();
        Err(Arc::new(StoreError::Closed { store }))
    })
}

/// Hands writes of a chore to the committer, and waits until they are durable. One answer for each,
/// in order.
pub(crate) fn write_all(
    shared: &Shared,
    writes: impl Iterator<Item = Write>,
) -> Result<Vec<Outcome>, Arc<StoreError>> {
    let answers = shared.hand_in_all(writes).into_iter();
    answers.map(|answer| answered(shared, answer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of schedules came minutes late when several processes were busy with queues. Each
    /// wake-up pokes every chore, and the first in the list was always taken: while the wake-ups
    /// came faster than the first two could be done, no other was ever done.
    #[test]
    fn a_chore_that_is_poked_all_the_time_keeps_no_other_waiting() {
        let keeper = Keeper::default();
        let now = Timestamp::from_millis(1);
        let mut done = Vec::new();
        for _ in 0..CHORES.len() {
            keeper.poke_all();
            done.extend(keeper.state.lock().take_due(now).map(|chore| CHORES[chore].0));
        }
        assert_eq!(done, CHORES.map(|(chore, _)| chore));
    }
}
