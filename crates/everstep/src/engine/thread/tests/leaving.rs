//! Shards that are given back, taken and compared with the store, by the thread that keeps the lease
//! beside an engine thread that is driven by hand: no run is left in nobody's memory.
//!
//! In a simulation, so that heartbeats take no time.

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::{
    engine::lease,
    pool::PoolNo,
    seam::{Process, sim},
    settings::Settings,
};

const HEARTBEAT: Duration = Duration::from_secs(3);

/// As long as a test waits for what must happen: many heartbeats, in virtual time.
const LONG: Duration = Duration::from_secs(300);

/// Has a simulation of this play; it must succeed.
fn play(play: impl FnOnce() + Send + 'static) {
    let report = sim::simulate(1, sim::Config::default(), play);
    assert_eq!(report.failure, None);
}

/// A runner that is to have all shards of the default pool.
fn wanted() -> Bench {
    Bench::of(fixture::shared_running(|_| {}, one_step))
}

/// A runner that is to have no shard of the default pool: it serves another.
fn unwanted() -> Bench {
    let serve_other = |settings: &mut Settings| settings.pools = vec!["other".to_owned()];
    Bench::of(fixture::shared_running(serve_other, one_step))
}

async fn one_step(ctx: Ctx, (): ()) -> crate::error::Result<()> {
    ctx.step("it", async || Ok(())).await
}

impl Bench {
    /// Starts the thread that keeps the lease.
    fn keep_lease(&self) {
        let shared = self.shared.clone();
        let keep = move || lease::run(&shared, &shared.lease_stop);
        let thread = Process::current().spawn("lease", keep);
        thread.expect("a simulation always has threads");
        self.shared.lease_stop.begin();
    }

    /// Lets the engine thread handle what comes until this is so; whether it ever is.
    fn becomes(&mut self, is_so: impl Fn(&Bench) -> bool) -> bool {
        let until = seam::now() + LONG;
        while seam::now() < until {
            for event in self.shared.threads[0].take() {
                self.worker.handle(event);
            }
            self.worker.admit_held();
            self.worker.finish_waits();
            if is_so(self) {
                return true;
            }
            seam::sleep(HEARTBEAT / 100, "a turn");
        }
        false
    }

    /// Takes a new run of this shard in, and drives it to its commit.
    fn drive_to_commit(&mut self, fence: Fence, shard: ShardId) -> RunId {
        let run = fixture::start_in(&self.store, fence, shard);
        self.recover(run);
        assert!(self.becomes(|bench| bench.epoch_of(run).is_some()));
        self.worker.drive(self.worker.by_no[&run.no()]);
        assert!(!self.worker.out.is_empty());
        run
    }

    /// Makes the commits that were held up.
    fn commit(&mut self) {
        committer::commit(&self.shared, std::mem::take(&mut self.worker.out));
    }

    /// The shards of the default pool that the store gives this runner.
    fn stored(&self) -> ShardSet {
        let runners = self.store.runners().expect("runners");
        let own = runners.into_iter().find(|it| Some(it.id) == self.shared.me);
        let shards = own.map(|it| it.shards).unwrap_or_default();
        let of_default = |shard: &ShardId| shard.pool() == PoolNo::DEFAULT;
        shards.iter().filter(of_default).collect()
    }
}

fn some_shard() -> ShardId {
    ShardId::new(PoolNo::DEFAULT, 7)
}

/// A commit was not answered for many seconds while its shard was given back. The shard was taken back
/// as stuck and given back again at once, over and over, so the other runs of it were in nobody's
/// memory for as long.
#[test]
fn a_shard_that_a_commit_holds_up_is_served_meanwhile() {
    play(|| {
        let mut bench = unwanted();
        let (fence, shard) = (bench.begin(), some_shard());
        let first = bench.drive_to_commit(fence, shard);
        bench.keep_lease();
        let is_freed = |bench: &Bench| bench.stored().len() == 1;
        assert!(bench.becomes(is_freed), "the others are given back");
        // It was claimed by a batch that was under way when the shard began to leave.
        let second = fixture::start_in(&bench.store, fence, shard);
        assert!(bench.becomes(|bench| bench.knows(second)));
        // It stays, however long that takes.
        for _ in 0..20 {
            seam::sleep(HEARTBEAT, "no answer");
            assert!(bench.becomes(|bench| bench.shared.owns(shard)));
            assert!(bench.knows(first) && bench.knows(second));
        }
        bench.commit();
        assert!(bench.becomes(|bench| !bench.knows(first)));
        bench.worker.drive(bench.worker.by_no[&second.no()]);
        bench.commit();
        assert!(bench.becomes(|bench| bench.stored().is_empty()));
        bench.shared.lease_stop.stop();
    });
}

/// Shards were given back, and the answer to that was lost. They were wanted again, and their runner
/// took them for its own without asking: another had them by then.
#[test]
fn a_shard_whose_release_was_made_after_all_is_not_taken_for_our_own() {
    play(|| {
        let mut bench = wanted();
        bench.begin();
        let all = bench.stored();
        // It is to have some of them.
        let peer = fixture::enter_raw(&bench.store, 9);
        // Who does not listen is taken for dead.
        let listen = |id| bench.store.on_wake(Uuid::from_u128(id), Arc::new(|_: &[RunNo]| {}));
        let _listening = [9, 10].map(|id| listen(id).expect("on_wake"));
        for _ in 0..100 {
            bench.store.lose_next("release_shards", fixture::unknown);
        }
        bench.keep_lease();
        assert!(bench.becomes(|bench| bench.stored().len() < all.len()));
        let taken = fixture::enter_raw_for(&bench.store, 10, "gpu");
        bench.store.deregister_runner(peer).expect("deregister");
        assert!(!taken.1.is_empty());
        let until = seam::now() + HEARTBEAT * 10;
        assert!(bench.becomes(|_| seam::now() > until));
        assert!(taken.1.iter().all(|shard| !bench.shared.owns(shard)));
        assert_eq!(bench.shared.owned(), bench.stored());
        bench.shared.lease_stop.stop();
    });
}

/// The answer to taking shards was lost, and they were not wanted any more when it could be asked
/// again: the store gave them to a runner that did not know of them, for as long as it lived.
#[test]
fn a_shard_that_the_store_gives_a_runner_without_its_knowledge_is_given_back() {
    play(|| {
        let mut bench = unwanted();
        let fence = fixture::enter(&bench.shared);
        bench.keep_lease();
        assert!(bench.becomes(|bench| !bench.shared.owned().is_empty()));
        let all = ShardSet::of_default_pool();
        let held = bench.store.take_shards(fence, bench.shared.now(), &all, &[]);
        assert!(held.expect("take_shards").is_some());
        assert_eq!(bench.stored(), all);
        assert!(bench.becomes(|bench| bench.stored().is_empty()));
        assert_eq!(bench.shared.fence(), Some(fence), "its lease goes on");
        bench.shared.lease_stop.stop();
    });
}

/// The other way round: a runner that takes a shard for its own that the store gives to nobody starts
/// over, since nothing that it writes about the shard is made, and nobody else takes it up.
#[test]
fn a_runner_that_the_store_has_taken_a_shard_from_starts_over() {
    play(|| {
        let mut bench = wanted();
        let (fence, shard) = (bench.begin(), some_shard());
        let run = fixture::start_in(&bench.store, fence, shard);
        bench.recover(run);
        assert!(bench.becomes(|bench| bench.epoch_of(run) == Some(fence.epoch)));
        bench.keep_lease();
        let one: ShardSet = [shard].into_iter().collect();
        bench.store.release_shards(fence, &one).expect("release");
        let is_read_again = |bench: &Bench| {
            let epoch = bench.epoch_of(run);
            epoch.is_some() && epoch != Some(fence.epoch)
        };
        assert!(bench.becomes(is_read_again));
        assert_eq!(bench.stored(), ShardSet::of_default_pool());
        bench.shared.lease_stop.stop();
    });
}

/// The commit of a run was refused since its shard was not this runner's in the store. When it was
/// again, under the same lease, nobody read the run: it was in no list of what is due.
#[test]
fn a_run_whose_commit_was_refused_is_read_again_if_its_shard_is_here() {
    for is_in_memory in [true, false] {
        play(move || {
            let mut bench = wanted();
            let (fence, shard) = (bench.begin(), some_shard());
            let run = bench.drive_to_commit(fence, shard);
            if !is_in_memory {
                // The commit that pauses it, of which nobody knows but the thread.
                let slot = bench.worker.by_no[&run.no()];
                let token = bench.worker.tasks[slot as usize].as_ref();
                let token = token.expect("it is in memory").token;
                bench.worker.out.clear();
                bench.worker.handle(Event::Acks(vec![Ack {
                    slot,
                    run: token,
                    answer: Answer::Rejected(Arc::new(fixture::unknown())),
                }]));
            }
            let one: ShardSet = [shard].into_iter().collect();
            bench.store.release_shards(fence, &one).expect("release");
            bench.commit();
            assert!(bench.becomes(|bench| !bench.knows(run)));
            let held = bench.store.take_shards(fence, bench.shared.now(), &one, &[]);
            assert_eq!(held.expect("take_shards"), Some(bench.shared.owned()));
            bench.keep_lease();
            assert!(bench.becomes(|bench| bench.epoch_of(run) == Some(fence.epoch)));
            bench.shared.lease_stop.stop();
        });
    }
}
