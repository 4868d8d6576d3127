//! An engine thread, one event after another.

mod emitting;
mod ending;
mod leaving;
mod numbers;
mod put_away;

use std::sync::OnceLock;

use super::*;
use crate::{
    commit::Fence,
    ctx::Ctx,
    engine::{
        fixture::{self, TestStore},
        shared::NO_LEASE,
    },
    seam::Channel,
    store::Store,
    time::{Underway as _, Uptime},
};

struct Bench {
    store: Arc<TestStore>,
    shared: Arc<Shared>,
    worker: Worker,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(fixture::shared())
    }

    fn of((store, shared): (Arc<TestStore>, Arc<Shared>)) -> Bench {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // A test that holds this one up decides when blocking bodies begin.
        let runtime = runtime.max_blocking_threads(1).build();
        let runtime = runtime.expect("a runtime");
        let reader = Reader::new(store.clone(), shared.activity.clone());
        let worker = Worker::new(
            0,
            shared.clone(),
            reader,
            Arc::default(),
            runtime.handle().clone(),
            Arc::default(),
        );
        Bench { store, shared, worker, runtime }
    }

    /// Begins a lease with all shards.
    fn begin(&self) -> Fence {
        begin(&self.shared)
    }

    /// Takes a new run in, without driving it.
    fn take_in(&mut self, fence: Fence) -> (RunId, u32) {
        let run = fixture::start(&self.store, fence);
        self.recover(run);
        let loaded = self.next_read();
        self.worker.handle(loaded);
        (run, self.worker.by_no[&run.no()])
    }

    /// Waits for the blocking bodies that were handed to the runtime: there is one thread for all.
    fn let_blocking_bodies_run(&self) {
        let behind = self.runtime.spawn_blocking(|| ());
        self.runtime.block_on(behind).expect("it ends");
    }

    /// Handles what comes until the next event of this kind, and that too.
    fn handle_until(&mut self, is_awaited: impl Fn(&Event) -> bool) {
        let until = Instant::now() + std::time::Duration::from_secs(60);
        while Instant::now() < until {
            for event in self.shared.threads[0].take() {
                let is_last = is_awaited(&event);
                self.worker.handle(event);
                if is_last {
                    return;
                }
            }
            std::thread::yield_now();
        }
        panic!("the event does not come");
    }

    /// The next read of a run that has ended, which the thread has not heard of yet.
    fn next_read(&self) -> Event {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::time::Instant::now() < until {
            let events = self.shared.threads[0].take();
            let read =
                |event: &Event| matches!(event, Event::Loaded { .. } | Event::Reconsidered(..));
            if let Some(loaded) = events.into_iter().find(read) {
                return loaded;
            }
            std::thread::yield_now();
        }
        panic!("nothing is read");
    }

    fn due(&self, run: RunId) -> DueRun {
        let target = crate::commit::Target::Id(run);
        let row = self.store.run(&target).expect("run").expect("it is there");
        hand_over::due_run(&row)
    }

    fn recover(&mut self, run: RunId) {
        let due = self.due(run);
        self.worker.handle(Event::Recovered(vec![due]));
    }

    fn epoch_of(&self, run: RunId) -> Option<u64> {
        let slot = *self.worker.by_no.get(&run.no())?;
        self.worker.tasks[slot as usize].as_ref().map(|it| it.epoch)
    }
}

/// Begins a lease with all shards.
fn begin(shared: &Shared) -> Fence {
    let fence = fixture::enter(shared);
    let all = ShardSet::of_default_pool();
    let held = shared.store.take_shards(fence, shared.now(), &all, &[]);
    assert_eq!(held.expect("take_shards"), Some(all.clone()));
    assert!(shared.set_owned_if(fence, &all));
    fence
}

#[test]
fn a_read_from_before_the_shards_were_lost_is_not_taken_in() {
    let mut bench = Bench::new();
    let old = bench.begin();
    let run = fixture::start(&bench.store, old);
    bench.recover(run);
    let stale = bench.next_read();
    bench.shared.lose_if(old);
    let new = bench.begin();
    bench.worker.handle(Event::Lost);
    bench.recover(run);
    bench.worker.handle(stale);
    assert_eq!(bench.epoch_of(run), None);
    let current = bench.next_read();
    bench.worker.handle(current);
    assert_eq!(bench.epoch_of(run), Some(new.epoch));
}

impl Bench {
    /// Whether the thread has this run, reads it, or will.
    fn knows(&self, run: RunId) -> bool {
        let (worker, no) = (&self.worker, run.no());
        let is_suspect = worker.suspects.iter().any(|(run, _)| *run == no);
        let is_held = worker.held.contains(&no) || is_suspect;
        worker.by_no.contains_key(&no) || worker.loading.contains_key(&no) || is_held
    }
}

/// A run was being read when the lease was lost. The next lease took it up, which was skipped because
/// of that read; then the news of the loss dropped the read, and nothing read the run again before
/// the next takeover.
#[test]
fn a_run_that_was_being_read_when_its_lease_was_lost_is_read_again() {
    let mut bench = Bench::new();
    let old = bench.begin();
    let run = fixture::start(&bench.store, old);
    bench.recover(run);
    let stale = bench.next_read();
    bench.shared.lose_if(old);
    let new = bench.begin();
    bench.recover(run);
    bench.worker.handle(Event::Lost);
    assert!(bench.knows(run));
    bench.worker.handle(stale);
    assert_eq!(bench.epoch_of(run), None);
    let current = bench.next_read();
    bench.worker.handle(current);
    assert_eq!(bench.epoch_of(run), Some(new.epoch));
}

/// The runs of the next lease waited for the places of the old one. The news of the loss dropped both.
#[test]
fn runs_that_wait_for_room_are_not_forgotten_when_news_of_a_lost_lease_come_late() {
    let mut bench = Bench::of(fixture::shared_with(|settings| settings.max_live_runs = 1));
    let old = bench.begin();
    let (first, _) = bench.take_in(old);
    let others = [(); 3].map(|()| fixture::start(&bench.store, old));
    let [waiting, suspect, paused] = others;
    bench.shared.lose_if(old);
    bench.begin();
    bench.recover(first);
    bench.recover(waiting);
    bench.worker.suspects.push_back((suspect.no(), 1));
    bench.worker.handle(Event::Reconsider(vec![paused.no()]));
    bench.worker.handle(Event::Lost);
    assert_eq!(bench.epoch_of(first), None);
    for run in [first, waiting, suspect] {
        assert!(bench.knows(run));
    }
    assert_eq!(bench.worker.to_reconsider, [paused.no()]);
    // With the shards gone, all of it is somebody else's.
    bench.shared.lose_if(bench.shared.fence().expect("a lease"));
    bench.worker.handle(Event::Lost);
    assert!([first, waiting, suspect].iter().all(|run| !bench.knows(*run)));
    assert_eq!(bench.shared.moving.load(Ordering::SeqCst), 0);
}

/// A paused run was being read for the old lease when the next one asked for it: the old answer was
/// taken for the new one.
#[test]
fn a_paused_run_is_tried_with_what_was_read_under_the_lease_that_asks() {
    let mut bench = Bench::new();
    let old = bench.begin();
    let run = fixture::start(&bench.store, old);
    bench.worker.handle(Event::Reconsider(vec![run.no()]));
    let stale = bench.next_read();
    bench.shared.lose_if(old);
    bench.worker.handle(Event::Lost);
    bench.begin();
    bench.worker.handle(Event::Reconsider(vec![run.no()]));
    bench.worker.handle(stale);
    assert_eq!(bench.worker.to_reconsider, [run.no()]);
    let read = bench.next_read();
    bench.worker.handle(read);
    assert!(bench.worker.to_reconsider.is_empty());
}

/// A run without code anywhere was noted under the old lease, and the note was refused as stale. The
/// next lease found it noted already.
#[test]
fn a_run_without_code_is_noted_again_under_the_next_lease() {
    let mut bench = Bench::new();
    let old = bench.begin();
    let run = fixture::start_unserved(&bench.store, old);
    let due = bench.due(run);
    bench.worker.due(due.clone(), false);
    bench.handle_until(|event| matches!(event, Event::Unserved(..)));
    bench.shared.lose_if(old);
    let new = bench.begin();
    bench.worker.due(due, false);
    bench.worker.handle(Event::Lost);
    bench.handle_until(|event| matches!(event, Event::Loaded { .. }));
    bench.handle_until(|event| matches!(event, Event::Unserved(..)));
    assert_eq!(new.epoch, bench.shared.epoch());
    committer::commit(&bench.shared, std::mem::take(&mut bench.worker.out));
    let loaded = bench.store.load(run.no()).expect("load");
    let waiting = loaded.expect("it is there").row.waiting;
    assert!(waiting.is_some_and(|waiting| waiting.contains("version 2")));
}

/// Shards were being given back when the lease was lost. They came back with the next one, and its
/// runs were dropped for the sake of the old one: nobody waited for them, and nobody read them again.
#[test]
fn runs_of_the_next_lease_do_not_leave_because_the_old_one_gave_their_shards_back() {
    for is_lost in [true, false] {
        let mut bench = Bench::new();
        let old = bench.begin();
        bench.take_in(old);
        let freed = Channel::default();
        bench.worker.handle(Event::Release(Release {
            shards: ShardSet::of_default_pool(),
            number: 1,
            epoch: old.epoch,
            forced: true,
            told: freed.clone(),
        }));
        if is_lost {
            bench.shared.lose_if(old);
            bench.begin();
        }
        let (run, _) = bench.take_in(bench.shared.fence().expect("a lease"));
        bench.worker.finish_waits();
        assert_eq!(bench.knows(run), is_lost);
        assert_eq!(freed.receive(Instant::now(), "freed").is_some(), !is_lost);
    }
}

#[test]
fn a_read_from_before_a_shard_has_left_and_come_back_is_made_again() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    bench.recover(run);
    let stale = bench.next_read();
    assert!(bench.shared.set_owned_if(fence, &ShardSet::EMPTY));
    assert!(bench.shared.set_owned_if(fence, &ShardSet::of_default_pool()));
    bench.worker.handle(stale);
    assert_eq!(bench.epoch_of(run), None);
    let current = bench.next_read();
    bench.worker.handle(current);
    assert_eq!(bench.epoch_of(run), Some(fence.epoch));
}

/// A shard that was about to leave stays. What leaves it for another pool does not stay with it.
#[test]
fn a_run_that_leaves_for_its_home_starts_no_body_though_its_shard_stays() {
    for is_leaving in [true, false] {
        let mut bench = Bench::new();
        let fence = bench.begin();
        let run = fixture::start(&bench.store, fence);
        bench.recover(run);
        let loaded = bench.next_read();
        bench.worker.handle(loaded);
        let slot = bench.worker.by_no[&run.no()];
        if is_leaving {
            bench.worker.leave_for_home(slot);
        }
        let task = bench.worker.tasks[slot as usize].as_mut();
        task.expect("it is in memory").run.drain(false);
        bench.worker.keep(&ShardSet::of_default_pool());
        let task = bench.worker.tasks[slot as usize].as_ref();
        let is_draining = task.expect("it is in memory").run.is_draining();
        assert_eq!(is_draining, is_leaving);
    }
}

#[test]
fn a_run_in_memory_is_not_driven_under_the_next_lease() {
    let mut bench = Bench::new();
    let old = bench.begin();
    let run = fixture::start(&bench.store, old);
    bench.recover(run);
    let loaded = bench.next_read();
    bench.worker.handle(loaded);
    let slot = bench.worker.by_no[&run.no()];
    bench.shared.lose_if(old);
    assert!(!bench.shared.is_current(old.epoch) && bench.shared.epoch() == NO_LEASE);
    bench.begin();
    bench.worker.drive(slot);
    assert!(bench.worker.by_no.is_empty() && bench.worker.out.is_empty());
}

/// The batch that started it was told around after the lease had been lost, and another begun.
#[test]
fn a_run_that_was_claimed_under_an_old_lease_is_left_to_who_takes_it_up() {
    for is_late in [false, true] {
        let mut bench = Bench::new();
        let old = bench.begin();
        if is_late {
            bench.shared.lose_if(old);
            bench.begin();
        }
        let ids = RunIds::new(1);
        let new = crate::commit::NewRun {
            id: ids.next(bench.shared.now()),
            workflow: "w".into(),
            version: 1,
            key: None,
            pool: "default".into(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            trace: None,
            input: Vec::new(),
            parent: None,
            claim: true,
        };
        assert!(bench.shared.reserve());
        let (at, epoch) = (bench.shared.now(), old.epoch);
        let new = Box::new(new);
        bench.worker.handle(Event::Started { new, at, epoch });
        assert_eq!(bench.worker.by_no.is_empty(), is_late);
        let moving = bench.shared.moving.load(Ordering::Acquire);
        assert_eq!(moving, usize::from(!is_late));
    }
}

#[test]
fn a_hand_over_is_remembered_until_the_store_has_answered() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    let due = DueRun { pool: "gpu".into(), ..bench.due(run) };
    bench.worker.due(due, false);
    assert!(bench.worker.unserved.contains_key(&run.no()));
    bench.store.fail_next("commit", fixture::unknown);
    committer::commit(&bench.shared, std::mem::take(&mut bench.worker.out));
    let events = bench.shared.threads[0].take();
    let told = |event: &Event| matches!(event, Event::Settled(_, Settled::Unknown));
    assert!(events.iter().any(told));
    for event in events {
        bench.worker.handle(event);
    }
    assert!(bench.worker.unserved.contains_key(&run.no()));
    // It is read again. As far as the store knows it belongs here.
    let loaded = bench.next_read();
    bench.worker.handle(loaded);
    assert_eq!(bench.epoch_of(run), Some(fence.epoch));
    let events = [Settled::Rejected, Settled::Answered];
    let left = events.map(|how| {
        bench.worker.handle(Event::Settled(run.no(), how));
        bench.worker.unserved.len()
    });
    assert_eq!(left, [1, 0]);
}

/// A run said never what it waits for if the store failed once, or a message came, while that was
/// looked up and written.
#[test]
fn a_run_without_code_says_so_whatever_comes_in_between() {
    let trouble: [fn(&Bench, RunId, Fence); 3] = [
        |bench, _, _| bench.store.fail_next("run", fixture::away),
        |bench, _, _| bench.store.fail_next("commit", fixture::unknown),
        |bench, run, fence| fixture::send(&bench.store, fence, run),
    ];
    for (at, make_trouble) in trouble.into_iter().enumerate() {
        let mut bench = Bench::new();
        let fence = bench.begin();
        let run = fixture::start_unserved(&bench.store, fence);
        let due = bench.due(run);
        if at == 0 {
            make_trouble(&bench, run, fence);
        }
        bench.worker.due(due, false);
        let until = Instant::now() + std::time::Duration::from_secs(60);
        let mut is_made = at == 0;
        loop {
            let loaded = bench.store.load(run.no()).expect("load");
            if let Some(waiting) = loaded.expect("it is there").row.waiting {
                assert!(waiting.contains("version 2"), "{waiting}");
                break;
            }
            assert!(Instant::now() < until, "it is not told after trouble {at}");
            bench.worker.env.now.set(bench.shared.now());
            for event in bench.shared.threads[0].take() {
                bench.worker.handle(event);
            }
            let writes = std::mem::take(&mut bench.worker.out);
            if !writes.is_empty() {
                if !std::mem::replace(&mut is_made, true) {
                    make_trouble(&bench, run, fence);
                }
                committer::commit(&bench.shared, writes);
            }
            std::thread::yield_now();
        }
    }
}

/// A suspect waited for a place to move in. It got its pass, found no place and gave the pass back, which
/// woke its thread: that tried again at once, for as long as there was no place.
#[test]
fn a_suspect_that_waits_for_a_place_does_not_keep_its_thread_busy() {
    let code = |_: Ctx, ()| async { Ok(()) };
    let crowded = fixture::shared_running(|settings| settings.max_live_runs = 1, code);
    let mut bench = Bench::of(crowded);
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    assert!(bench.shared.reserve());
    bench.worker.suspects.push_back((run.no(), 0));
    bench.shared.threads[0].take();
    bench.worker.admit_held();
    assert_eq!(bench.shared.threads[0].take().len(), 0);
    bench.shared.release();
    assert_eq!(bench.shared.threads[0].take().len(), 1, "it is told of the place");
    bench.worker.admit_held();
    assert!(bench.worker.suspects.is_empty() && bench.worker.loading.contains_key(&run.no()));
}

/// An engine that has stopped looked again and again at a run that it could not write about.
#[test]
fn a_stopped_engine_does_not_look_again() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start_unserved(&bench.store, fence);
    let due = bench.due(run);
    bench.worker.due(due, false);
    bench.shared.stop(StoreError::Closed { store: "the test's store".to_owned() });
    bench.worker.handle(Event::Settled(run.no(), Settled::Unknown));
    assert!(bench.worker.loading.is_empty());
    assert!(bench.worker.held.is_empty());
}

/// A note and a hand-over were on their way; the answer to the first was taken for that to the second.
#[test]
fn the_answer_to_a_note_does_not_forget_a_hand_over() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start_unserved(&bench.store, fence);
    let due = bench.due(run);
    bench.worker.due(due.clone(), false);
    let until = Instant::now() + std::time::Duration::from_secs(60);
    while bench.worker.out.is_empty() {
        assert!(Instant::now() < until, "it is not noted");
        for event in bench.shared.threads[0].take() {
            bench.worker.handle(event);
        }
        std::thread::yield_now();
    }
    let elsewhere = DueRun { pool: "gpu".into(), ..due };
    bench.worker.due(elsewhere, false);
    let events = [Settled::Answered, Settled::Rejected, Settled::Answered];
    let left = events.map(|how| {
        bench.worker.handle(Event::Settled(run.no(), how));
        bench.worker.unserved.len()
    });
    assert_eq!(left, [1, 1, 0]);
}

/// The commit that pauses a run whose other commits the store does not take.
#[test]
fn a_run_is_read_again_when_it_is_not_known_whether_it_was_paused() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    bench.recover(run);
    let loaded = bench.next_read();
    bench.worker.handle(loaded);
    let slot = bench.worker.by_no[&run.no()];
    let token = bench.worker.tasks[slot as usize].as_ref().map(|it| it.token);
    bench.worker.handle(Event::Acks(vec![Ack {
        slot,
        run: token.expect("it is in memory"),
        answer: Answer::Rejected(Arc::new(fixture::unknown())),
    }]));
    assert!(bench.worker.by_no.is_empty());
    bench.store.fail_next("commit", fixture::unknown);
    committer::commit(&bench.shared, std::mem::take(&mut bench.worker.out));
    for event in bench.shared.threads[0].take() {
        bench.worker.handle(event);
    }
    let loaded = bench.next_read();
    bench.worker.handle(loaded);
    assert_eq!(bench.epoch_of(run), Some(fence.epoch));
}

#[test]
fn a_paused_run_that_cannot_be_read_is_read_again() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    bench.store.fail_next("load", fixture::away);
    bench.worker.handle(Event::Reconsider(vec![run.no()]));
    let failed = bench.next_read();
    assert!(matches!(failed, Event::Reconsidered(_, Err(_))));
    bench.worker.handle(failed);
    assert_eq!(bench.worker.to_reconsider, [run.no()]);
    let read = bench.next_read();
    assert!(matches!(read, Event::Reconsidered(_, Ok(Some(_)))));
    bench.worker.handle(read);
    assert!(bench.worker.to_reconsider.is_empty());
}

/// What the code of a run and its test share.
#[derive(Clone, Default)]
struct Scene {
    shared: Arc<OnceLock<Arc<Shared>>>,
    started: Arc<AtomicBool>,
}

impl Scene {
    /// The lease is lost, and the process registers again.
    fn lose_and_register(&self) {
        let shared = self.shared.get().expect("the engine is there");
        shared.lose_if(shared.fence().expect("a lease"));
        begin(shared);
    }

    fn body(&self) -> crate::error::Result<()> {
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    fn has_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }
}

/// The kinds of bodies that a run can have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Step,
    Ephemeral,
    Blocking,
    Spawned,
}

/// Comes to a body of this kind right after `before` in the same poll.
async fn come_to(
    ctx: Ctx,
    kind: Kind,
    scene: Scene,
    before: fn(&Scene),
) -> crate::error::Result<()> {
    before(&scene);
    match kind {
        Kind::Step => ctx.step("it", async || scene.body()).await,
        Kind::Ephemeral => ctx.step("it", async || scene.body()).ephemeral().await,
        Kind::Blocking => ctx.blocking("it", move |_| scene.body()).await,
        Kind::Spawned => {
            let body = move |_| {
                let scene = scene.clone();
                async move { scene.body() }
            };
            ctx.spawn("it", body).await
        }
    }
}

/// A process was stopped inside slow workflow code. Another took the run over and completed the
/// step; the first came back, registered again, and its old poll started the body of the step, since
/// its new lease lasted.
#[test]
fn a_body_does_not_start_under_another_lease_than_its_run_was_read_with() {
    let kinds = [Kind::Step, Kind::Ephemeral, Kind::Blocking, Kind::Spawned];
    for (kind, is_broken) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let scene = Scene::default();
        let in_code = scene.clone();
        let sabotage = is_broken.then_some(crate::Sabotage::ForeignEpoch);
        let mut bench = Bench::of(fixture::shared_running(
            |settings| settings.sabotage = sabotage,
            move |ctx, ()| come_to(ctx, kind, in_code.clone(), Scene::lose_and_register),
        ));
        _ = scene.shared.set(bench.shared.clone());
        let old = bench.begin();
        let (run, slot) = bench.take_in(old);
        bench.worker.drive(slot);
        bench.let_blocking_bodies_run();
        match kind {
            // A thread of the pool may take it before or after its run is dropped, which gives it up.
            Kind::Blocking if is_broken => {}
            // The task of a spawned body is aborted with its run, before the runtime polls it.
            Kind::Spawned => assert!(!scene.has_started()),
            _ => assert_eq!(scene.has_started(), is_broken, "{kind:?}"),
        }
        assert!(bench.worker.out.is_empty(), "nothing of it can be written");
        if !is_broken {
            // It is not left behind: its shard has come back, so it is read again.
            bench.handle_until(|event| matches!(event, Event::Loaded { .. }));
            assert_eq!(bench.epoch_of(run), Some(bench.shared.epoch()));
        }
    }
}

/// Between the look at the lease on the engine thread and the first instruction on another thread
/// any time may pass: the pool for blocking bodies may be full.
#[test]
fn a_blocking_body_that_waited_for_a_thread_starts_only_under_the_lease_of_its_run() {
    for is_lost in [true, false] {
        let scene = Scene::default();
        let in_code = scene.clone();
        let mut bench = Bench::of(fixture::shared_running(
            |_| {},
            move |ctx, ()| come_to(ctx, Kind::Blocking, in_code.clone(), |_| {}),
        ));
        _ = scene.shared.set(bench.shared.clone());
        let old = bench.begin();
        let (run, slot) = bench.take_in(old);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let first = bench.runtime.spawn_blocking(move || wait.recv());
        bench.worker.drive(slot);
        if is_lost {
            scene.lose_and_register();
        } else {
            bench.shared.prolong(old, Uptime::now());
        }
        go.send(()).expect("the first one waits");
        _ = bench.runtime.block_on(first);
        bench.let_blocking_bodies_run();
        if !is_lost {
            bench.handle_until(|event| matches!(event, Event::Body { .. }));
        }
        bench.worker.drive(slot);
        assert!(!scene.has_started());
        if is_lost {
            bench.handle_until(|event| matches!(event, Event::Loaded { .. }));
            assert_eq!(bench.epoch_of(run), Some(bench.shared.epoch()));
            continue;
        }
        // The heartbeat was only late: the same body starts as soon as the lease lasts again.
        bench.shared.prolong(old, Uptime::now() + bench.shared.settings.lease);
        bench.worker.start_stalled();
        bench.worker.drive(slot);
        bench.let_blocking_bodies_run();
        assert!(scene.has_started());
    }
}

/// On a loaded machine a heartbeat was late, and the runs of the engine waited for it. A virtual clock found
/// no event under way, and told a test that nothing would ever move again.
#[test]
fn runs_that_wait_for_the_lease_count_as_activity() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    bench.take_in(fence);
    bench.shared.prolong(fence, Uptime::now());
    let runtime = bench.runtime.handle().clone();
    let _inside = runtime.enter();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let begun = bench.shared.activity.begun();
    assert!(bench.worker.turn(&mut cx).is_pending());
    assert!(bench.worker.counts_rest);
    assert_eq!(bench.shared.activity.begun(), begun + 1);
    bench.shared.prolong(fence, Uptime::now() + bench.shared.settings.lease);
    assert!(bench.worker.turn(&mut cx).is_pending());
    assert!(!bench.worker.counts_rest);
}

/// The thread that found the lease lost was held up before it told the engine threads. Meanwhile the
/// process had registered again and taken its runs up; the event dropped them, and nobody read them
/// again.
#[test]
fn news_of_a_lost_lease_that_come_late_leave_the_runs_of_the_next_lease_in_memory() {
    let mut bench = Bench::new();
    let old = bench.begin();
    bench.shared.lose_if(old);
    let new = bench.begin();
    let (run, _) = bench.take_in(new);
    bench.worker.handle(Event::Lost);
    assert_eq!(bench.epoch_of(run), Some(new.epoch));
    bench.shared.lose_if(new);
    bench.worker.handle(Event::Lost);
    assert_eq!(bench.epoch_of(run), None);
}

/// A store panicked while it read a run. The thread that had asked waited for that read for ever, and
/// nobody else looked for the run.
#[test]
fn a_read_that_panics_stops_the_engine() {
    let reads: [fn(&mut Worker, RunId); 3] = [
        |worker, run| worker.load(run.no()),
        |worker, run| worker.look(run.no()),
        |worker, run| worker.reconsider(vec![run.no()]),
    ];
    for (read, method) in reads.into_iter().zip(["load", "run", "load"]) {
        let mut bench = Bench::new();
        let fence = bench.begin();
        let run = match method {
            "run" => bench.take_in(fence).0,
            _ => fixture::start(&bench.store, fence),
        };
        let failing = || panic!("the store has a mistake");
        bench.store.fail_next(method, failing);
        read(&mut bench.worker, run);
        bench.handle_until(|event| matches!(event, Event::Forget));
        assert!(bench.shared.stopped().is_some());
    }
}
