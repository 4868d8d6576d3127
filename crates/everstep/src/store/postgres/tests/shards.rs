//! Shards that move while batches are under way.

use std::{sync::mpsc, thread};

use super::*;

/// Long enough for a statement to come back that nothing holds up.
const SOON: Duration = Duration::from_millis(300);

/// A child was never run: the batch that started it had claimed it for its runner, which gave the
/// shard back at that moment. The next owner had looked for runs to take up before the batch was
/// made. Now shards are given back after the batches under way.
#[test]
fn shards_are_given_back_after_the_batches_under_way() {
    let store = Arc::new(fresh());
    store.migrate().expect("migrate");
    let now = Timestamp::from_millis(1_000);
    let fence = register(&store, now);
    let shards: ShardSet = [ShardId(7)].into_iter().collect();
    let taken = store.take_shards(fence, now, &shards, &[]).expect("take");
    assert_eq!(taken, Some(shards.clone()));

    // Every batch looks at runs, after its fence.
    let blocker = store.take().expect("a connection");
    let process = blocker.run(vec![Op::new("SELECT pg_backend_pid()::bigint", Vec::new())]);
    let process: i64 = process.expect("its number")[0].rows[0].get(0).expect("one");
    let lock = "BEGIN; LOCK TABLE everstep_runs IN ACCESS EXCLUSIVE MODE".to_owned();
    blocker.batch(lock).expect("lock");
    let batch = Batch {
        fence: Some(fence),
        now,
        writes: Vec::new(),
    };
    let committing = Arc::clone(&store);
    let committing = thread::spawn(move || committing.commit(&batch).map(drop));
    while !is_waited_for(&store, process) {
        thread::sleep(Duration::from_millis(5));
    }

    let (told, given_back) = mpsc::channel();
    let giving = Arc::clone(&store);
    let giving = thread::spawn(move || told.send(giving.release_shards(fence, &shards)));
    let early = given_back.recv_timeout(SOON);
    assert!(early.is_err(), "given back under a batch: {early:?}");
    blocker.batch("ROLLBACK".to_owned()).expect("unlock");
    committing.join().expect("no panic").expect("committed");
    given_back.recv().expect("an answer").expect("given back");
    giving.join().expect("no panic").expect("it was heard");
    assert!(store.runners().expect("runners")[0].shards.is_empty());
}

/// The same with a batch of another store, which asks the database for the shards of its runner.
#[test]
fn shards_are_given_back_after_the_batches_of_other_stores() {
    let store = fresh();
    store.migrate().expect("migrate");
    let now = Timestamp::from_millis(1_000);
    let fence = register(&store, now);
    let other = store.take().expect("a connection");
    let fenced = "BEGIN; SELECT 1 FROM everstep_runners FOR KEY SHARE".to_owned();
    other.batch(fenced).expect("the fence");
    let shards: ShardSet = [ShardId(7)].into_iter().collect();
    let (told, given_back) = mpsc::channel();
    thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || told.send(store.release_shards(fence, &shards)));
        let early = given_back.recv_timeout(SOON);
        assert!(early.is_err(), "given back under a batch: {early:?}");
        other.batch("COMMIT".to_owned()).expect("commit");
        given_back.recv().expect("an answer").expect("given back");
    });
}

fn register(store: &PostgresStore, now: Timestamp) -> Fence {
    let runner = NewRunner {
        id: Uuid::from_u128(1),
        name: "first".to_owned(),
        now,
        lease: Duration::from_secs(10),
        workflows: Vec::new(),
        pools: vec!["default".to_owned()],
        weight: 1,
    };
    store.register_runner(&runner).expect("register")
}

/// Whether somebody waits for a lock of this server process.
fn is_waited_for(store: &PostgresStore, process: i64) -> bool {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)::bigint[])";
    let waits = store.read(|session| session.exists(sql, params![process]));
    waits.expect("a read")
}
