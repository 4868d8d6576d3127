//! Bodies at the end of a lease, and of their engine.

use std::{
    sync::{Mutex, atomic::AtomicUsize, mpsc},
    time::Duration,
};

use super::*;
use crate::{
    codec::payload,
    commit::NewRun,
    ctx::{Ctx, step::Step},
    engine::lease::Ending,
    error::Error,
};

/// What a body has done, as others see it.
#[derive(Clone, Default)]
struct Traces {
    began: Arc<AtomicUsize>,
    /// How often it was polled, which stands for its effects outside.
    effects: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
}

fn count(cell: &AtomicUsize) -> usize {
    cell.load(Ordering::SeqCst)
}

struct Inside(Traces);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Traces {
    fn begin(&self) -> Inside {
        self.began.fetch_add(1, Ordering::SeqCst);
        Inside(self.clone())
    }

    /// A body that never ends, and has an effect in each poll.
    async fn forever(self) -> crate::Result<()> {
        let _inside = self.begin();
        loop {
            self.effects.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }

    /// A body that has one effect, and waits for ever.
    async fn waits(self) -> crate::Result<()> {
        let _inside = self.begin();
        self.effects.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    /// A body that gives up when it is told.
    async fn gives_up(self, step: Step) -> crate::Result<()> {
        let _inside = self.begin();
        step.cancellation().cancelled().await;
        self.told.fetch_add(1, Ordering::SeqCst);
        Err(Error::fatal("it was told to stop"))
    }
}

/// The grace of these tests: long, so that a slow machine does not reach its end.
const GRACE: Duration = Duration::from_secs(600);

/// A thread with one run of this code, driven once under a lease.
fn bench<F, R>(code: F) -> (Bench, Fence, u32)
where
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = crate::Result<()>> + 'static,
{
    let change = |settings: &mut crate::settings::Settings| settings.stop_grace = GRACE;
    let shared = fixture::shared_running(change, move |ctx, (): ()| code(ctx));
    let mut bench = Bench::of(shared);
    let fence = bench.begin();
    let id = RunIds::new(1).next(bench.shared.now());
    let new = NewRun {
        id,
        workflow: "w".into(),
        version: 1,
        key: None,
        pool: "default".into(),
        available_at: None,
        deadline_at: None,
        tags: Vec::new(),
        trace: None,
        input: payload::to_vec(&()).expect("nothing"),
        parent: None,
        claim: true,
    };
    assert!(bench.shared.reserve());
    let (new, at, epoch) = (Box::new(new), bench.shared.now(), fence.epoch);
    bench.worker.handle(Event::Started { new, at, epoch });
    let slot = bench.worker.by_no[&id.no()];
    bench.handle_all();
    (bench, fence, slot)
}

impl Bench {
    /// Handles the events that have come.
    fn handle_all(&mut self) {
        let runtime = self.runtime.handle().clone();
        let _entered = runtime.enter();
        for event in self.shared.threads[0].take() {
            self.worker.handle(event);
        }
        while let Some(slot) = self.worker.ready.pop_front() {
            self.worker.drive(slot);
        }
    }

    /// Lets the tasks of the runtime go on.
    fn run_tasks(&self) {
        self.runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
    }

    fn bodies(&self, slot: u32) -> usize {
        let task = self.worker.tasks[slot as usize].as_ref();
        task.expect("it is in memory").run.bodies()
    }

    /// The life under which its bodies emit.
    fn life(&self, slot: u32) -> u32 {
        let task = self.worker.tasks[slot as usize].as_ref();
        task.expect("it is in memory").run.core.life()
    }

    /// The lease is over now, and nobody was told.
    fn end_lease(&self, fence: Fence) {
        self.shared.prolong(fence, Uptime::now());
        assert!(!self.shared.lease_lasts());
    }

    /// The lease lasts again.
    fn renew(&mut self, fence: Fence) {
        let until = Uptime::now() + self.shared.settings.lease;
        self.shared.prolong(fence, until);
        self.worker.start_stalled();
        self.handle_all();
    }
}

#[test]
fn an_async_body_is_dropped_when_its_lease_ends_and_starts_again_when_it_is_renewed() {
    let traces = Traces::default();
    let body = traces.clone();
    let (mut bench, fence, slot) = bench(move |ctx| {
        let body = body.clone();
        async move { ctx.step("body", async || body.clone().waits().await).await }
    });
    assert_eq!((count(&traces.began), bench.bodies(slot)), (1, 1));
    let life = bench.life(slot);
    assert_eq!(bench.life(slot), life);
    bench.end_lease(fence);
    Ending::default().look(&bench.shared);
    bench.handle_all();
    assert_eq!((count(&traces.dropped), bench.bodies(slot)), (1, 0));
    assert_eq!(count(&traces.began), 1, "no body starts without a lease");
    bench.renew(fence);
    assert_eq!((count(&traces.began), bench.bodies(slot)), (2, 1));
    // The attempt is the same: readers of its stream see by the life that the first was abandoned.
    assert_ne!(bench.life(slot), life);
}

/// A process that was stopped past its lease: its engine thread polls before anything else.
#[test]
fn an_async_body_is_not_polled_after_its_lease() {
    let traces = Traces::default();
    let body = traces.clone();
    let (mut bench, fence, slot) = bench(move |ctx| {
        let body = body.clone();
        async move { ctx.step("body", async || body.clone().forever().await).await }
    });
    bench.run_tasks();
    bench.handle_all();
    let effects = count(&traces.effects);
    assert!(effects > 0);
    bench.end_lease(fence);
    let core = bench.worker.tasks[slot as usize].as_ref().expect("a task");
    core.run.core.wake_bodies();
    bench.worker.drive(slot);
    assert_eq!(count(&traces.effects), effects);
    assert_eq!((count(&traces.dropped), bench.bodies(slot)), (1, 0));
}

/// A `ctx.spawn` body went on for ten effects beside the new owner, after its process was stopped
/// past its lease and went on: only the engine thread looked at the clock.
#[test]
fn a_spawned_body_is_not_polled_after_its_lease() {
    for is_lost in [false, true] {
        let traces = Traces::default();
        let body = traces.clone();
        let (mut bench, fence, slot) = bench(move |ctx| {
            let body = body.clone();
            async move { ctx.spawn("body", move |_| body.clone().forever()).await }
        });
        bench.run_tasks();
        let effects = count(&traces.effects);
        assert!(effects > 0);
        if is_lost {
            // Another lease lasts, and nobody has told the body.
            bench.shared.threads[0].bodies.forget();
            bench.shared.lose_if(fence);
            bench.begin();
        } else {
            bench.end_lease(fence);
        }
        bench.run_tasks();
        assert_eq!(count(&traces.effects), effects);
        assert_eq!(count(&traces.dropped), 1);
        if !is_lost {
            bench.handle_all();
            assert_eq!((count(&traces.began), bench.bodies(slot)), (1, 0));
            bench.renew(fence);
            bench.run_tasks();
            assert_eq!((count(&traces.began), bench.bodies(slot)), (2, 1));
        }
    }
}

#[test]
fn a_spawned_body_that_waits_is_aborted_though_its_engine_thread_is_blocked() {
    let traces = Traces::default();
    let body = traces.clone();
    let (bench, fence, _) = bench(move |ctx| {
        let body = body.clone();
        async move { ctx.spawn("body", move |_| body.clone().waits()).await }
    });
    bench.run_tasks();
    assert_eq!((count(&traces.began), count(&traces.dropped)), (1, 0));
    bench.end_lease(fence);
    Ending::default().look(&bench.shared);
    bench.run_tasks();
    assert_eq!(count(&traces.dropped), 1, "the engine thread has done nothing");
}

#[test]
fn a_blocking_body_is_told_that_its_lease_ends_and_its_result_is_discarded() {
    let traces = Traces::default();
    let (end, ends) = mpsc::channel::<()>();
    let (body, ends) = (traces.clone(), Arc::new(Mutex::new(ends)));
    let (mut bench, fence, slot) = bench(move |ctx| {
        let (body, ends) = (body.clone(), ends.clone());
        async move {
            let blocks = move |step: Step| {
                let _inside = body.begin();
                while !step.cancellation().is_cancelled() {
                    std::thread::yield_now();
                }
                body.told.fetch_add(1, Ordering::SeqCst);
                let ends = ends.lock().unwrap_or_else(|lock| lock.into_inner());
                _ = ends.recv();
                Ok(())
            };
            ctx.blocking("body", blocks).await
        }
    });
    // A body whose lease ends before its thread has begun is refused.
    while count(&traces.began) == 0 {
        std::thread::yield_now();
    }
    bench.end_lease(fence);
    Ending::default().look(&bench.shared);
    bench.handle_all();
    assert_eq!(bench.bodies(slot), 0);
    drop(end);
    while count(&traces.dropped) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(count(&traces.told), 1);
    bench.run_tasks();
    bench.handle_all();
    assert!(bench.worker.out.is_empty(), "nothing is written");
    assert_eq!((count(&traces.began), bench.bodies(slot)), (1, 0));
}

/// The thread that found a lease lost, or about to end, was held up before it stopped the bodies. By
/// then they were those of a lease that lasted, and began again without need.
#[test]
fn bodies_of_a_lease_that_lasts_go_on_when_news_of_an_earlier_end_come_late() {
    let stops: [fn(&Shared); 2] = [Shared::drop_lost_runs, Shared::stop_bodies];
    for (spawned, stop) in
        [false, true].into_iter().flat_map(|spawned| stops.map(|stop| (spawned, stop)))
    {
        let traces = Traces::default();
        let body = traces.clone();
        let (mut bench, fence, slot) = bench(move |ctx| {
            let body = body.clone();
            async move {
                let waits = body.clone();
                match spawned {
                    true => ctx.spawn("body", move |_| body.clone().waits()).await,
                    false => ctx.step_with("body", async |_| waits.clone().waits().await).await,
                }
            }
        });
        bench.run_tasks();
        let let_go_on = |bench: &mut Bench| {
            bench.run_tasks();
            bench.handle_all();
            bench.run_tasks();
        };
        stop(&bench.shared);
        let_go_on(&mut bench);
        assert_eq!((count(&traces.began), count(&traces.dropped)), (1, 0));
        assert_eq!(bench.bodies(slot), 1);
        bench.shared.lose_if(fence);
        let_go_on(&mut bench);
        assert_eq!((count(&traces.began), count(&traces.dropped)), (1, 1));
    }
}

#[test]
fn bodies_are_told_a_grace_before_they_must_stop_and_giving_up_is_no_attempt() {
    for spawned in [false, true] {
        let traces = Traces::default();
        let body = traces.clone();
        let (mut bench, fence, slot) = bench(move |ctx| {
            let body = body.clone();
            async move {
                let gives_up = body.clone();
                match spawned {
                    true => ctx.spawn("body", move |it| body.clone().gives_up(it)).await,
                    false => {
                        let step =
                            ctx.step_with("body", async |it| gives_up.clone().gives_up(it).await);
                        step.retry(crate::Retry::never()).await
                    }
                }
            }
        });
        bench.run_tasks();
        bench.handle_all();
        let mut ending = Ending::default();
        // Not yet.
        let margin = bench.shared.settings.lease_margin();
        let in_time = |left: Duration| Uptime::now() + margin + left;
        bench.shared.prolong(fence, in_time(GRACE * 2));
        assert!(ending.look(&bench.shared) <= GRACE);
        bench.run_tasks();
        assert_eq!(count(&traces.told), 0);
        bench.shared.prolong(fence, in_time(GRACE / 2));
        ending.look(&bench.shared);
        bench.run_tasks();
        bench.handle_all();
        bench.run_tasks();
        assert_eq!(count(&traces.told), 1, "{spawned}");
        // A body that began now would be dropped without having been told: that end is told already.
        assert_eq!((count(&traces.began), count(&traces.dropped)), (1, 1));
        assert_eq!(bench.bodies(slot), 0);
        assert!(bench.worker.out.is_empty(), "no failure is recorded");
        bench.shared.threads[0].take();
        bench.renew(fence);
        bench.run_tasks();
        assert_eq!((count(&traces.began), bench.bodies(slot)), (2, 1));
        // It was told, and the lease is renewed: the next end is another.
        assert!(ending.look(&bench.shared) > GRACE);
    }
}

/// The renewal that lets bodies begin again wakes the threads that hold them.
#[test]
fn a_thread_is_woken_when_a_lease_that_was_about_to_end_is_renewed() {
    let (bench, fence, _) = bench(|_| async { Ok(()) });
    let margin = bench.shared.settings.lease_margin();
    let until = Uptime::now() + margin + GRACE / 2;
    bench.shared.prolong(fence, until);
    bench.shared.threads[0].take();
    let until = Uptime::now() + bench.shared.settings.lease;
    bench.shared.prolong(fence, until);
    assert!(matches!(bench.shared.threads[0].take()[..], [Event::Timer]));
}

/// A store died while a body was polled. The body returned an error after its token was stopped, so it
/// had given up, and it began once more at once: nobody had told its thread yet that all is over.
#[test]
fn a_body_that_gives_up_because_its_engine_ends_does_not_begin_again() {
    let ends: [fn(&Shared); 3] = [
        |shared| {
            shared.stop(StoreError::Closed { store: "the test's store".to_owned() });
        },
        // As the drop of an engine does.
        Shared::drop_runs,
        // As a shutdown does.
        |shared| {
            shared.begin_leaving();
            shared.tell_bodies();
        },
    ];
    for end in ends {
        let traces = Traces::default();
        let ending: Arc<Mutex<Option<Arc<Shared>>>> = Arc::default();
        let (body, told) = (traces.clone(), ending.clone());
        let (mut bench, _, slot) = bench(move |ctx| {
            let (body, told) = (body.clone(), told.clone());
            async move {
                let attempt = async |step: Step| {
                    let _inside = body.begin();
                    poll_fn(|_| match told.lock().expect("lock").take() {
                        Some(shared) => {
                            end(&shared);
                            Poll::Ready(())
                        }
                        None => Poll::Pending,
                    })
                    .await;
                    assert!(step.cancellation().is_cancelled());
                    Err::<(), _>(Error::msg("it was told to stop"))
                };
                ctx.step_with("body", attempt).await
            }
        });
        assert_eq!((count(&traces.began), bench.bodies(slot)), (1, 1));
        *ending.lock().expect("lock") = Some(bench.shared.clone());
        let task = bench.worker.tasks[slot as usize].as_ref();
        task.expect("it is in memory").run.core.wake_bodies();
        bench.worker.drive(slot);
        bench.worker.start_stalled();
        bench.handle_all();
        assert_eq!((count(&traces.began), count(&traces.dropped)), (1, 1));
        assert!(bench.worker.out.is_empty(), "no failure is recorded");
    }
}
