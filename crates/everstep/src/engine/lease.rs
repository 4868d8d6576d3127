//! The lease: how a runner says that it is alive, and which shards it owns.
//!
//! Each runner computes for itself which shards it should have, by rendezvous hashing over the
//! runners that are alive. It takes what is free, and gives back what it should not have
//! ([`super::leaving`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow::{Break, Continue},
    sync::Arc,
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::{
    assign::assigned,
    leaving::Leaving,
    mailbox::{Event, Mailbox},
    poller::{self, Poller},
    shared::Shared,
};
use crate::{
    commit::Fence,
    run::is_mended_by_deploy,
    sabotage::Sabotage,
    seam::{self, Monitor},
    store::{Gone, RunnerRow, ShardSet, StoreError},
    time::{Timestamp, Uptime},
};

/// Stops the heartbeat, or hurries it.
#[derive(Default)]
pub(crate) struct Stop(Monitor<Told>);

#[derive(Clone, Copy, Default)]
struct Told {
    stopped: bool,
    /// Shards may be free, or of a pool that was not there before.
    poked: bool,
    /// The store has refused what an owner alone may write, under the lease that is current.
    doubted: bool,
    /// The start has taken its shards: until then it alone looks who has which.
    started: bool,
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.0.change(|told| told.stopped = true);
    }

    /// From now on the shards are kept as they should be.
    pub(crate) fn begin(&self) {
        self.0.lock().started = true;
    }

    /// Asks for a look at who has which shards.
    pub(crate) fn poke(&self) {
        self.0.change(|told| told.poked = true);
    }

    /// Asks whether the lease lasts and which shards are under it, and for a look at all their runs:
    /// the store has refused the commit of one, which is in nobody's memory since.
    pub(crate) fn doubt(&self) {
        self.0.change(|told| (told.poked, told.doubted) = (true, true));
    }

    /// Waits for this long; whether it was stopped.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let until = seam::after(limit);
        self.wait_while("end of the lease", until, |told| !told.stopped).stopped
    }

    /// Waits until `beat`, or, if it is poked, until `hurried`.
    fn wait_for_beat(&self, beat: Instant, hurried: Instant) -> Told {
        let is_calm = |told: &Told| !told.stopped && !told.poked;
        let told = self.wait_while("beat", Some(beat), is_calm);
        if told.poked && !told.stopped {
            let until = Some(hurried.min(beat));
            self.wait_while("hurried beat", until, |told| !told.stopped);
        }
        let mut told = self.0.lock();
        let now = *told;
        (told.poked, told.doubted) = (false, false);
        now
    }

    fn wait_while(
        &self,
        label: &'static str,
        until: Option<Instant>,
        goes_on: impl Fn(&Told) -> bool,
    ) -> Told {
        self.0.wait(label, |told| {
            let is_over = until.is_some_and(|until| seam::now() >= until);
            match goes_on(told) && !is_over {
                true => Continue(until),
                false => Break(*told),
            }
        })
    }
}

/// Says that the runner is alive, again and again, and keeps its shards as they should be.
pub(crate) fn run(shared: &Arc<Shared>, stop: &Stop) {
    let heartbeat = shared.settings.heartbeat();
    let mut leaving = Leaving::default();
    let mut next = seam::now() + heartbeat;
    let mut balanced = seam::now();
    let (mut poked, mut doubted) = (false, false);
    loop {
        // However often it is poked, it looks no more often than twice in a beat.
        let told = stop.wait_for_beat(next, balanced + heartbeat / 2);
        if told.stopped || shared.stopped().is_some() {
            // An engine that has stopped runs nothing: others may when the lease is over.
            return;
        }
        (poked, doubted) = (poked || told.poked, doubted || told.doubted);
        if seam::now() >= next || doubted {
            next = seam::now() + heartbeat;
            if !beat(shared, &mut leaving) {
                continue;
            }
            take_up_rest(shared, &mut leaving.unread);
        }
        if !told.started {
            continue;
        }
        if is_time_to_look(shared, balanced) || poked || doubted {
            balanced = seam::now();
            let is_known = look_around(shared, &mut leaving, doubted);
            // What has failed is tried at the next beat.
            (poked, doubted) = (!is_known, doubted && !is_known);
        }
    }
}

/// Whether it is time to look for others. An idle engine asks little, so it looks at every second beat. If
/// its heartbeat is long for its lease, it looks at each: a takeover must not take more than two leases.
fn is_time_to_look(shared: &Shared, last: Instant) -> bool {
    let (lease, heartbeat) = (shared.settings.lease, shared.settings.heartbeat());
    let every = (heartbeat * 2).min(lease / 10 * 6);
    // A beat comes a little early or late.
    seam::now() + heartbeat / 2 >= last + every
}

/// Takes up the runs of shards that have come here, as far as that is not done. What fails is tried
/// again at the next beat: most runs in memory are in no list of the store but this one, and their
/// shard may never move again.
fn take_up_rest(shared: &Shared, unread: &mut ShardSet) {
    // Those that have left since are another's.
    *unread = unread.iter().filter(|shard| shared.owns(*shard)).collect();
    if unread.is_empty() {
        return;
    }
    match take_up(shared, unread) {
        Ok(()) => *unread = ShardSet::EMPTY,
        Err(error) => shared.complain(&error, "the runs of new shards cannot be taken up"),
    }
}

/// Prolongs the lease. Whether there is one.
fn beat(shared: &Arc<Shared>, leaving: &mut Leaving) -> bool {
    let Some(fence) = shared.fence() else {
        *leaving = Leaving::default();
        if shared.stopped().is_none() {
            register_again(shared);
        }
        return false;
    };
    let begun = Uptime::now();
    match shared.store.heartbeat(fence, shared.now(), shared.settings.lease) {
        Ok(true) => shared.prolong(fence, begun + shared.settings.lease),
        Ok(false) => {
            shared.lose_if(fence);
            return false;
        }
        // Nothing that this runner writes would be found.
        Err(error @ StoreError::Displaced { .. }) => {
            shared.stop(error);
            return false;
        }
        Err(error) => {
            shared.complain(&error, "the heartbeat failed");
            return false;
        }
    }
    if let Err(error) = leaving.release(shared, fence, Duration::ZERO) {
        shared.complain(&error, "shards cannot be given back");
    }
    true
}

/// Looks who else is alive, and takes and gives back shards accordingly. The runs of all shards are
/// looked for if that is in doubt. Whether the store has said which are ours.
fn look_around(shared: &Arc<Shared>, leaving: &mut Leaving, doubted: bool) -> bool {
    let Some(fence) = shared.fence().filter(|_| !shared.leaving()) else {
        return true;
    };
    let balanced = balance(shared, fence, leaving);
    let is_known = balanced.is_ok();
    match balanced {
        Ok(new) => new.iter().for_each(|shard| leaving.unread.insert(shard)),
        Err(error) => shared.complain(&error, "shards cannot be balanced"),
    }
    if doubted && is_known {
        leaving.unread = shared.owned();
    }
    take_up_rest(shared, &mut leaving.unread);
    if shared.owned.is_partial() {
        // They may have moved away from under somebody who waits.
        Poller::ensure(shared);
    }
    is_known
}

/// A runner that has lost its shards starts over, with nothing in memory.
fn register_again(shared: &Shared) {
    let Some(me) = shared.me else { return };
    let runner = shared.as_runner(me);
    let begun = Uptime::now();
    // Nothing that was taken in before may be there when the shards come back.
    shared.drop_lost_runs();
    match shared.store.register_runner(&runner) {
        Ok(fence) => {
            shared.set_lease(fence, begun + shared.settings.lease);
            shared.store.wake_others(Some(me), &[]);
        }
        // There is nothing to come back for.
        Err(error @ (StoreError::Moved { .. } | StoreError::Displaced { .. })) => {
            shared.stop(error);
        }
        Err(error) => shared.complain(&error, "the runner cannot register again"),
    }
}

/// The runners, as one of them sees them.
struct Seen<'a> {
    alive: Vec<&'a RunnerRow>,
    /// They hold shards, and their lease is over, or they are known to be gone.
    gone: Vec<&'a RunnerRow>,
    /// Those that are gone whatever the time is: their process has ended, or they were silent for a lease.
    ///
    /// One that was gone when it was read may have prolonged its lease since, as a process does that
    /// was stopped and goes on. Whether it still is gone is for the transaction to say that takes its
    /// shards: if they were taken from under a lease that lasts, both would start bodies.
    known: Vec<Gone>,
}

impl<'a> Seen<'a> {
    fn of(
        runners: &'a [RunnerRow],
        me: Uuid,
        now: Timestamp,
        is_known_gone: impl Fn(Uuid) -> bool,
    ) -> Seen<'a> {
        let mut seen = Seen { alive: Vec::new(), gone: Vec::new(), known: Vec::new() };
        for runner in runners {
            let is_known = runner.id != me && is_known_gone(runner.id);
            if runner.id == me || (runner.lease_until > now && !is_known) {
                seen.alive.push(runner);
            } else if !runner.shards.is_empty() {
                seen.gone.push(runner);
                seen.known.extend(is_known.then(|| runner.as_gone()));
            }
        }
        seen
    }
}

/// When the leases of other runners end, by the monotonic clock of this process.
///
/// Where the store has no clock of its own, a lease is written by the clock of its runner and read by the
/// clock of another, and one of them may be wrong: a runner whose lease lasts would be taken over from, or
/// a stopped one kept its shards for as long as its clock was ahead. So where the calendars do not agree, a
/// lease is over when this process has not seen it prolonged for as long as it lasts.
#[derive(Default)]
pub(crate) struct Beats(BTreeMap<Uuid, Beat>);

struct Beat {
    epoch: u64,
    lease_until: Timestamp,
    /// The lease cannot be over before this.
    lasts_until: Instant,
}

/// Whose leases are over, as far as clocks can tell.
struct Judged {
    /// The latest time, up to now, at which no lease is over that may last.
    as_of: Timestamp,
    /// Those that were silent for a lease.
    silent: BTreeSet<Uuid>,
}

impl Beats {
    fn judge(&mut self, shared: &Shared, runners: &[RunnerRow], me: Uuid) -> Judged {
        let now = shared.now();
        let goes_by_calendar = shared.store.time().is_some()
            || shared.clock.as_virtual().is_some()
            || shared.settings.breaks(Sabotage::BelieveClock);
        if goes_by_calendar {
            return Judged { as_of: now, silent: BTreeSet::new() };
        }
        let others = runners.iter().filter(|runner| runner.id != me);
        self.look(others, now, seam::now())
    }

    fn look<'a>(
        &mut self,
        runners: impl Iterator<Item = &'a RunnerRow>,
        now: Timestamp,
        at: Instant,
    ) -> Judged {
        let mut before = std::mem::take(&mut self.0);
        let (mut as_of, mut silent) = (now, BTreeSet::new());
        for runner in runners {
            let RunnerRow { id, epoch, lease_until, lease, .. } = *runner;
            let known = before.remove(&id);
            let known = known.filter(|it| (it.epoch, it.lease_until) == (epoch, lease_until));
            let beat = known.unwrap_or_else(|| {
                // What it was prolonged to says how long it lasts only if both clocks agree.
                let left = lease_until.since(now);
                let is_plausible = !left.is_zero() && left <= lease;
                let lasts_until = at + if is_plausible { left } else { lease };
                Beat { epoch, lease_until, lasts_until }
            });
            if at < beat.lasts_until {
                as_of = as_of.min(lease_until - Duration::from_millis(1));
            } else {
                silent.insert(id);
            }
            self.0.insert(id, beat);
        }
        Judged { as_of, silent }
    }
}

/// Takes and gives back shards until the runner has those it should have; gives the new ones,
/// whose runs are to be taken up.
pub(crate) fn balance(
    shared: &Shared,
    fence: Fence,
    leaving: &mut Leaving,
) -> Result<ShardSet, StoreError> {
    let runners = shared.store.runners()?;
    let own = |row: &&RunnerRow| (row.id, row.epoch) == (fence.runner, fence.epoch);
    let Some(own) = runners.iter().find(own) else {
        shared.lose_if(fence);
        return Ok(ShardSet::EMPTY);
    };
    if !leaving.compare(shared, fence, &own.shards) {
        return Ok(ShardSet::EMPTY);
    }
    let Judged { as_of, silent } = leaving.beats.judge(shared, &runners, fence.runner);
    let is_known_gone = |runner| silent.contains(&runner) || shared.store.runner_is_dead(runner);
    let Seen { alive, gone, mut known } = Seen::of(&runners, fence.runner, as_of, is_known_gone);
    let pools = shared.store.pools()?;
    let vacant = leaving.vacant.look(shared, &alive, &pools)?;
    shared.owned.set_pools(&pools, &vacant);
    let wanted = assigned(fence.runner, &alive, &pools, &vacant);
    let peers = alive.iter().map(|runner| (*runner).clone()).collect();
    if shared.peers.set(peers) {
        for thread in &shared.threads {
            thread.push(Event::Peers);
        }
    }
    leaving.take_back(shared, fence, &wanted);
    let owned = shared.owned();
    leaving.give_back(shared, fence, &owned, &wanted)?;
    let missing = wanted.iter().any(|shard| !shared.owns(shard));
    if missing || !gone.is_empty() {
        if shared.settings.breaks(Sabotage::NoSecondLook) {
            let mut rows = shared.store.runners()?;
            rows.retain(|row| gone.iter().any(|it| it.id == row.id));
            known = rows.iter().map(RunnerRow::as_gone).collect();
        }
        match shared.store.take_shards(fence, as_of, &wanted, &known)? {
            Some(held) => {
                let kept: ShardSet = held.iter().filter(|shard| !leaving.has(*shard)).collect();
                let new: ShardSet = kept.iter().filter(|shard| !owned.contains(*shard)).collect();
                if !shared.set_owned_if(fence, &kept) {
                    return Ok(ShardSet::EMPTY);
                }
                let seen = runners.iter().filter(|runner| runner.id != fence.runner);
                for runner in seen.filter(|it| was_ousted(it, &new, &known, shared.now())) {
                    tracing::info!(
                        runner = runner.name,
                        "shards of a runner that is gone are taken"
                    );
                    shared.counters.takeover();
                }
                return Ok(new);
            }
            None => shared.lose_if(fence),
        }
    }
    Ok(ShardSet::EMPTY)
}

/// Whether these new shards were taken from this runner, which had not given them back.
///
/// Its lease may have been over only for the transaction that took them, which goes by the store's
/// own time and comes after who is alive was read.
fn was_ousted(runner: &RunnerRow, new: &ShardSet, known: &[Gone], now: Timestamp) -> bool {
    let is_gone = runner.lease_until <= now || known.contains(&runner.as_gone());
    is_gone && new.iter().any(|shard| runner.shards.contains(shard))
}

/// How many runs of a new shard are read at a time.
const PAGE: usize = 1_000;

/// Takes up the runs of shards that were somebody else's, or nobody's.
///
/// May be done again: what is in memory already is left alone.
pub(crate) fn take_up(shared: &Shared, shards: &ShardSet) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = shared.store.live(shards, after, PAGE)?;
        after = page.last().map(|run| run.id.no());
        let full = page.len() == PAGE;
        let runs = page.into_iter().map(|run| (run.id, run));
        if !shared.settings.breaks(Sabotage::OrphanRuns) {
            shared.tell_owners(runs, Event::Recovered);
        }
        if !full {
            shared.due.poke(false);
            poller::ask_about(shared, shards)?;
            return reconsider(shared, shards);
        }
    }
}

/// Has the paused runs of new shards tried that the code of this process may mend.
fn reconsider(shared: &Shared, shards: &ShardSet) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = shared.store.paused(shards, after, PAGE)?;
        after = page.last().map(|run| run.id.no());
        let full = page.len() == PAGE;
        let runs = page.iter().filter(|run| {
            let mendable = run.reason.as_deref().is_some_and(is_mended_by_deploy);
            mendable && shared.registry.find(&run.workflow, run.version).is_some()
        });
        let runs = runs.map(|run| (run.id, run.id.no()));
        shared.tell_owners(runs, Event::Reconsider);
        if !full {
            return Ok(());
        }
    }
}

/// Looks at the engine threads and at the end of the lease, without any call to the store.
pub(crate) fn watch(shared: &Arc<Shared>, stop: &Stop) {
    let mut seen: Vec<(u64, Instant, bool)> =
        shared.threads.iter().map(|_| (0, seam::now(), false)).collect();
    let mut ending = Ending::default();
    let step = (shared.settings.blocked_after / 4).min(shared.settings.lease / 10);
    let step = step.max(Duration::from_millis(10));
    while !stop.wait(step.min(ending.look(shared))) && shared.stopped().is_none() {
        for (thread, seen) in shared.threads.iter().zip(&mut seen) {
            name_blocked(shared, thread, seen);
        }
    }
}

/// Which ends of the lease the bodies were told of.
#[derive(Default)]
pub(super) struct Ending {
    told: Option<u64>,
    stopped: Option<u64>,
}

impl Ending {
    /// Tells bodies that the lease ends soon, and ends them before it does: the heartbeat may hang in
    /// the store, and engine threads may be blocked. Gives how long there is nothing to do.
    pub(super) fn look(&mut self, shared: &Shared) -> Duration {
        let Some((left, end)) = shared.bodies_end_in() else {
            return Duration::MAX;
        };
        let grace = shared.settings.lease_grace();
        if left > grace {
            return left - grace;
        }
        if self.told.replace(end) != Some(end) {
            tracing::warn!(?left, "the lease of this runner is not renewed; bodies are told");
            shared.tell_bodies();
        }
        if left.is_zero() && self.stopped.replace(end) != Some(end) {
            tracing::warn!("the lease of this runner is about to end; bodies are dropped");
            shared.stop_bodies();
        }
        match left.is_zero() {
            true => Duration::MAX,
            false => left,
        }
    }
}

/// Names the body that blocks an engine thread, while it does. `seen` is the turn that the thread was
/// in, since when, and whether that was said.
fn name_blocked(shared: &Shared, thread: &Mailbox, seen: &mut (u64, Instant, bool)) {
    let turn = thread.turn.load(std::sync::atomic::Ordering::Acquire);
    if turn != seen.0 {
        *seen = (turn, seam::now(), false);
        return;
    }
    let working = turn % 2 == 1;
    if !working || seen.2 || seam::elapsed(seen.1) < shared.settings.blocked_after {
        return;
    }
    seen.2 = true;
    let Some(polling) = thread.polling.lock().clone() else {
        return;
    };
    *thread.blocked.lock() = Some((turn, polling.clone()));
    let step = polling.step.map(|key| crate::location::keys::describe(&key));
    tracing::warn!(
        run = %polling.run,
        workflow = &*polling.workflow,
        step = step.as_deref().unwrap_or("(the workflow's own code)"),
        blocked_for = ?seam::elapsed(seen.1),
        "a body blocks its engine thread; use `ctx.blocking` for work that blocks"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::fixture,
        store::{MemoryStore, NewRunner, Store},
    };

    /// An engine whose file was deleted or moved went on, and its `/readyz` said that all was well.
    #[test]
    fn a_file_that_is_no_longer_in_its_place_stops_the_engine_at_the_next_heartbeat() {
        let (store, shared) = fixture::shared();
        fixture::enter(&shared);
        store.fail_next("heartbeat", || StoreError::Displaced {
            store: "SQLite file `app.db`".to_owned(),
            what: "was moved away".to_owned(),
        });
        assert!(!beat(&shared, &mut Leaving::default()));
        let stopped = shared.stopped().expect("the engine has stopped");
        assert!(matches!(*stopped, StoreError::Displaced { .. }));
        let monitor = crate::telemetry::EngineMonitor::new(shared.clone());
        let ready = monitor.ready().expect_err("it is not ready");
        assert!(matches!(ready, crate::telemetry::NotReady::Stopped(_)));
    }

    /// A lease that was over between the look and the taking was not counted as a takeover.
    #[test]
    fn a_lease_that_ends_while_shards_are_taken_is_taken_over() {
        let (store, shared) = fixture::shared();
        fixture::enter_raw(&store, 9);
        let runner = store.runners().expect("runners").remove(0);
        let (some, until) = (ShardSet::of_default_pool(), runner.lease_until);
        let before = shared.now();
        assert!(before < until);
        assert!(!was_ousted(&runner, &some, &[], before), "it gave them back");
        assert!(was_ousted(&runner, &some, &[], until));
        assert!(was_ousted(&runner, &some, &[runner.as_gone()], before));
        assert!(!was_ousted(&runner, &ShardSet::EMPTY, &[], until));
    }

    /// A database that was restarted while shards were taken: their runs were never looked for again.
    #[test]
    fn runs_that_could_not_be_taken_up_are_taken_up_later() {
        for method in ["live", "paused", "finished"] {
            let (store, shared) = fixture::shared();
            let first = fixture::enter_raw(&store, 9);
            let run = fixture::start(&store, first);
            let ended = fixture::start(&store, first);
            fixture::finish(&store, first, ended);
            store.deregister_runner(first).expect("deregister");
            fixture::enter(&shared);
            let mut waiting = shared.hub.await_end(ended);
            store.fail_next(method, fixture::away);
            let mut leaving = Leaving::default();
            assert!(look_around(&shared, &mut leaving, false));
            assert_eq!(shared.owned(), ShardSet::of_default_pool());
            assert_eq!(leaving.unread, shared.owned(), "{method}");
            let before = shared.threads[0].take();
            if method == "live" {
                let recovered = |event: &Event| matches!(event, Event::Recovered(_));
                assert!(!before.iter().any(recovered));
            }
            take_up_rest(&shared, &mut leaving.unread);
            assert!(leaving.unread.is_empty(), "{method}");
            let recovered = shared.threads[0].take().into_iter().any(|event| {
                matches!(event, Event::Recovered(runs) if runs.iter().any(|it| it.id == run))
            });
            assert!(recovered, "{method}");
            assert!(waiting.try_recv().is_ok(), "{method}");
            // Nothing is left to be done.
            take_up_rest(&shared, &mut leaving.unread);
            assert!(shared.threads[0].take().is_empty());
        }
    }

    #[test]
    fn shards_that_have_left_again_are_not_taken_up() {
        let (store, shared) = fixture::shared();
        let fence = fixture::enter(&shared);
        let mut unread = ShardSet::of_default_pool();
        assert!(shared.set_owned_if(fence, &ShardSet::EMPTY));
        store.fail_next("live", || unreachable!("nobody asks"));
        take_up_rest(&shared, &mut unread);
        assert!(unread.is_empty());
    }

    /// Before its start was over, an engine balanced on two threads, each with its own idea of what
    /// was being given back.
    #[test]
    fn nobody_else_looks_around_before_the_start_has_taken_its_shards() {
        let (_, shared) = fixture::shared_with(|settings| {
            settings.heartbeat = Some(Duration::from_millis(2));
        });
        fixture::enter(&shared);
        let stop = Arc::new(Stop::default());
        stop.poke();
        let (lease, told) = (shared.clone(), stop.clone());
        let thread = std::thread::spawn(move || run(&lease, &told));
        std::thread::sleep(Duration::from_millis(50));
        assert!(shared.owned().is_empty());
        stop.begin();
        let until = Instant::now() + Duration::from_secs(60);
        while shared.owned().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!shared.owned().is_empty());
        stop.stop();
        thread.join().expect("it ends");
    }

    const LEASE: Duration = Duration::from_secs(1);

    /// On a file that three processes shared, one whose clock was an hour ahead took the shards of the
    /// others, whose leases lasted, and both started bodies.
    #[test]
    fn a_lease_that_is_prolonged_is_not_over_by_a_wrong_clock() {
        let begun = Instant::now();
        let mut beats = Beats::default();
        let mut seen = |lease_until: i64, now: i64, passed_ms: u64| {
            let store = MemoryStore::new();
            let new = NewRunner::new(Uuid::from_u128(1), "host/1", at(lease_until), LEASE);
            store.register_runner(&new).expect("register");
            let mut runners = store.runners().expect("runners");
            runners[0].lease_until = at(lease_until);
            let instant = begun + Duration::from_millis(passed_ms);
            let judged = beats.look(runners.iter(), at(now), instant);
            let is_over = lease_until <= judged.as_of.as_millis();
            is_over || judged.silent.contains(&runners[0].id)
        };
        const HOUR: i64 = 3_600_000;
        // Clocks that agree: it is over when its time is over, and not later.
        assert!(!seen(1_000, 500, 500));
        assert!(!seen(1_000, 999, 999));
        assert!(seen(1_000, 1_000, 1_000));
        // Ours jumps ahead, or its jumps back: it goes on to be prolonged.
        assert!(!seen(2_500, HOUR + 1_600, 1_600));
        assert!(!seen(3_000, HOUR + 2_100, 2_100));
        assert!(!seen(3_500 - HOUR, 2_600, 2_600));
        // It is prolonged no more.
        assert!(!seen(3_500 - HOUR, 3_500, 3_500));
        assert!(seen(3_500 - HOUR, 3_600, 3_600));
    }

    /// A process on a file that three shared was stopped while its clock showed another hour. The end of
    /// its lease in its row was an hour ahead, and for that hour nobody took its shards. What it holds is
    /// taken once others have not seen it beat for the length of *its* lease; the lease in its row ends
    /// then, so that nobody takes it for alive and leaves shards to it.
    #[test]
    fn a_stopped_runner_whose_clock_was_ahead_is_taken_over_after_a_lease() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let all = ShardSet::of_default_pool();
        let store = MemoryStore::new();
        let register = |no: u128, now: Timestamp, lease: Duration| {
            let new = NewRunner::new(Uuid::from_u128(no), "host/1", now, lease);
            store.register_runner(&new).expect("register")
        };
        let stopped = register(1, at(0), 2 * LEASE);
        let held = store.take_shards(stopped, at(0), &all, &[]).expect("take_shards");
        assert_eq!(held, Some(all.clone()));
        store.heartbeat(stopped, at(0) + HOUR, 2 * LEASE).expect("heartbeat");
        let other = register(2, at(0), LEASE);
        let (begun, mut beats) = (Instant::now(), Beats::default());
        let mut take = |passed_ms: u64, goes_on: bool| {
            let runners = store.runners().expect("runners");
            let others = runners.iter().filter(|row| row.id != other.runner);
            let now = at(passed_ms as i64);
            let judged = beats.look(others, now, begun + Duration::from_millis(passed_ms));
            let is_silent = |id| judged.silent.contains(&id);
            let seen = Seen::of(&runners, other.runner, judged.as_of, is_silent);
            if goes_on {
                let beat = store.heartbeat(stopped, now + HOUR, 2 * LEASE);
                assert!(beat.expect("heartbeat"));
            }
            let held = store.take_shards(other, judged.as_of, &all, &seen.known);
            held.expect("take_shards").expect("its fence holds")
        };
        assert!(take(0, false).is_empty());
        assert!(take(1_999, false).is_empty());
        // It goes on between the look and the taking.
        assert!(take(2_000, true).is_empty());
        assert!(take(2_500, false).is_empty());
        assert!(take(4_499, false).is_empty());
        assert_eq!(take(4_500, false), all);
        let row = store.runners().expect("runners").remove(0);
        assert_eq!((row.id, row.lease_until), (stopped.runner, at(4_500)));
        assert!(
            !store.heartbeat(stopped, at(4_501), LEASE).expect("heartbeat"),
            "its epoch is raised"
        );
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Two processes started the same body. One had been stopped for longer than its lease and went
    /// on; it prolonged its lease, and then its shards were taken by one that had read before that
    /// its lease was over.
    #[test]
    fn a_lease_that_was_prolonged_after_it_was_read_is_not_taken_over() {
        let store = MemoryStore::new();
        let register = |no: u128, now: Timestamp| {
            let new = NewRunner::new(Uuid::from_u128(no), "host/1", now, LEASE);
            store.register_runner(&new).expect("register")
        };
        let all = ShardSet::of_default_pool();
        let stopped = register(1, at(0));
        let take = |fence, now, gone: &[Gone]| {
            let held = store.take_shards(fence, now, &all, gone);
            held.expect("take_shards").expect("its fence holds")
        };
        assert_eq!(take(stopped, at(0), &[]), all);
        let other = register(2, at(2_000));
        let runners = store.runners().expect("runners");
        let seen = Seen::of(&runners, other.runner, at(2_000), |_| false);
        let ids = |rows: &[&RunnerRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(&seen.alive), [other.runner]);
        assert_eq!(ids(&seen.gone), [stopped.runner]);
        let goes_on = store.heartbeat(stopped, at(2_001), LEASE);
        assert!(goes_on.expect("heartbeat"));
        assert!(take(other, at(2_002), &seen.known).is_empty());
        // When nobody prolongs it, they are taken; at once if its process is known to have ended.
        let runners = store.runners().expect("runners");
        let seen = Seen::of(&runners, other.runner, at(2_003), |id| id == stopped.runner);
        assert_eq!(seen.known, [runners[0].as_gone()]);
        assert_eq!(take(other, at(2_003), &seen.known), all);
    }
}
