//! An engine thread, one event after another.

mod put_away;

use super::*;
use crate::{
    commit::Fence,
    engine::{
        fixture::{self, TestStore},
        shared::NO_LEASE,
    },
    store::Store,
};

struct Bench {
    store: Arc<TestStore>,
    shared: Arc<Shared>,
    worker: Worker,
    _runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new() -> Bench {
        let (store, shared) = fixture::shared();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
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
        Bench {
            store,
            shared,
            worker,
            _runtime: runtime,
        }
    }

    /// Begins a lease with all shards.
    fn begin(&self) -> Fence {
        let fence = fixture::enter(&self.shared);
        let all = ShardSet::of_default_pool();
        let held = self.store.take_shards(fence, self.shared.now(), &all, &[]);
        assert_eq!(held.expect("take_shards"), Some(all.clone()));
        assert!(self.shared.set_owned_if(fence, &all));
        fence
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

#[test]
fn a_read_from_before_a_shard_has_left_and_come_back_is_made_again() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start(&bench.store, fence);
    bench.recover(run);
    let stale = bench.next_read();
    assert!(bench.shared.set_owned_if(fence, &ShardSet::EMPTY));
    assert!(
        bench
            .shared
            .set_owned_if(fence, &ShardSet::of_default_pool())
    );
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
    let due = DueRun {
        pool: "gpu".into(),
        ..bench.due(run)
    };
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

/// An engine that has stopped looked again and again at a run that it could not write about.
#[test]
fn a_stopped_engine_does_not_look_again() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = fixture::start_unserved(&bench.store, fence);
    let due = bench.due(run);
    bench.worker.due(due, false);
    bench.shared.stop(StoreError::Closed {
        store: "the test's store".to_owned(),
    });
    bench
        .worker
        .handle(Event::Settled(run.no(), Settled::Unknown));
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
    let elsewhere = DueRun {
        pool: "gpu".into(),
        ..due
    };
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
    let token = bench.worker.tasks[slot as usize]
        .as_ref()
        .map(|it| it.token);
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
