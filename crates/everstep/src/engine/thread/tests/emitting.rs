//! Items that a body emits, and of which nobody knows whether they were written.
//!
//! The committer dropped such an item, and wrote the result of the body in a later batch. The step was
//! recorded, and the stream lacked an item for good.

use std::{sync::atomic::AtomicUsize, time::Duration};

use super::*;
use crate::{
    codec::payload,
    commit::Target,
    engine::lanes,
    store::{StoreError, StreamRow},
};

const WORDS: [&str; 3] = ["to", "be", "sure"];

/// A thread with one run, whose body has emitted all words and has ended. The items are queued, and
/// the commit with the result is about to be.
struct Emitted {
    bench: Bench,
    run: RunId,
    /// How often the body has begun.
    bodies: Arc<AtomicUsize>,
}

impl Emitted {
    fn new() -> Emitted {
        let bodies = Arc::new(AtomicUsize::new(0));
        let counted = bodies.clone();
        let code = move |ctx: Ctx, (): ()| {
            let bodies = counted.clone();
            async move {
                let body = ctx.step_with("speak", async |step| {
                    bodies.fetch_add(1, Ordering::SeqCst);
                    for word in WORDS {
                        step.emit("words", word).await?;
                    }
                    Ok(())
                });
                body.await
            }
        };
        let mut bench = Bench::of(fixture::shared_running(|_| {}, code));
        let fence = bench.begin();
        let (run, slot) = bench.take_in(fence);
        bench.worker.ready.clear();
        bench.worker.drive(slot);
        Emitted { bench, run, bodies }
    }

    fn items(&self) -> Vec<StreamRow> {
        let page = self.bench.store.stream(self.run.no(), "words", 0, 99);
        page.expect("stream").expect("the run").items
    }

    fn status(&self) -> RunStatus {
        let row = self.bench.store.run(&Target::Id(self.run));
        row.expect("run").expect("it is there").status
    }

    fn is_recorded(&self) -> bool {
        let entries = self.bench.store.history(self.run.no(), None, 9);
        !entries.expect("history").is_empty()
    }

    /// Goes on until the run has this status.
    fn work_until(&mut self, status: RunStatus) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.status() != status {
            assert!(Instant::now() < until, "it stays {:?}", self.status());
            let Bench { shared, worker, .. } = &mut self.bench;
            for event in shared.threads[0].take() {
                worker.handle(event);
            }
            worker.admit_held();
            while let Some(slot) = worker.ready.pop_front() {
                worker.drive(slot);
            }
            let mut sent = shared.queue.take_queued();
            sent.append(&mut worker.out);
            if !sent.is_empty() {
                committer::commit(shared, sent);
            }
            std::thread::yield_now();
        }
    }
}

/// How a batch is made durable.
type Make = fn(&Shared, Vec<Pending>);

#[test]
fn a_body_whose_items_may_be_missing_runs_again_and_emits_all_of_them() {
    let here: Make = |shared, mut pending| committer::commit_here(shared, &mut pending);
    for (make, has_landed) in [
        (committer::commit as Make, false),
        (committer::commit, true),
        (here, false),
        (lanes::commit, false),
    ] {
        let mut it = Emitted::new();
        let (items, results) =
            (it.bench.shared.queue.take_queued(), std::mem::take(&mut it.bench.worker.out));
        assert_eq!((items.len(), results.len()), (WORDS.len(), 1));
        match has_landed {
            true => it.bench.store.lose_next("commit", fixture::unknown),
            false => it.bench.store.fail_next("commit", fixture::unknown),
        }
        committer::commit(&it.bench.shared, items);
        // The result is in the next batch, and its thread has heard of nothing yet.
        make(&it.bench.shared, results);
        assert!(!it.is_recorded(), "it is recorded, with {:?}", it.items());
        it.work_until(RunStatus::Completed);
        assert_eq!(it.bodies.load(Ordering::SeqCst), 2);
        let items = it.items();
        let life = |item: &StreamRow| item.by.as_ref().map(|by| by.life);
        let last = items.last().and_then(life);
        let of_last = items.iter().filter(|item| life(item) == last);
        let words: Vec<String> =
            of_last.map(|item| payload::from_slice(&item.body).expect("a word")).collect();
        assert_eq!(words, WORDS);
        assert_eq!(items.len(), if has_landed { 2 * WORDS.len() } else { WORDS.len() });
    }
}

/// Part of the items is in one batch, and part in the next.
#[test]
fn items_that_come_after_one_that_may_be_missing_are_not_written() {
    let mut it = Emitted::new();
    let mut items = it.bench.shared.queue.take_queued();
    let rest = items.split_off(1);
    it.bench.store.fail_next("commit", fixture::unknown);
    committer::commit(&it.bench.shared, items);
    committer::commit(&it.bench.shared, rest);
    assert_eq!(it.items(), []);
    it.work_until(RunStatus::Completed);
    assert_eq!(it.items().len(), WORDS.len());
    assert_eq!(it.bodies.load(Ordering::SeqCst), 2);
}

#[test]
fn a_run_whose_item_the_store_cannot_take_is_paused_and_its_result_is_not_recorded() {
    let mut it = Emitted::new();
    let reject = || StoreError::Rejected {
        store: "the test's store".to_owned(),
        source: "it is too large".into(),
    };
    // The batch, the half of it with the first item, and that item alone.
    for _ in 0..3 {
        it.bench.store.fail_next("commit", reject);
    }
    let mut sent = it.bench.shared.queue.take_queued();
    sent.append(&mut it.bench.worker.out);
    assert_eq!(sent.len(), WORDS.len() + 1);
    committer::commit(&it.bench.shared, sent);
    assert!(!it.is_recorded(), "it is recorded, with {:?}", it.items());
    it.work_until(RunStatus::Paused);
    let row = it.bench.store.run(&Target::Id(it.run)).expect("run").expect("it is there");
    let reason = row.waiting.expect("a reason");
    assert!(reason.contains("it is too large"), "{reason}");
    assert!(!it.is_recorded());
}
