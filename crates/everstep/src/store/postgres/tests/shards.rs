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

    let (blocker, process) = block_batches(&store);
    let committing = Arc::clone(&store);
    let committing = thread::spawn(move || committing.commit(&empty(fence, now)).map(drop));
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
    let other = begin_batch(&store);
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

/// A connection was dead, and a batch of it was under way at the server. The thread that keeps the
/// lease waited for that batch to give shards back, for as long as any answer may take: it sent no
/// heartbeat meanwhile, and all commits of the process waited behind it.
#[test]
fn a_release_that_has_to_wait_gives_way_to_commits() {
    let store = fresh();
    store.migrate().expect("migrate");
    let now = Timestamp::from_millis(1_000);
    let fence = register_for(&store, now, Duration::from_secs(1));
    let shards: ShardSet = [ShardId(7)].into_iter().collect();
    let taken = store.take_shards(fence, now, &shards, &[]).expect("take");
    assert_eq!(taken, Some(shards.clone()));
    let other = begin_batch(&store);
    let released = store.release_shards(fence, &shards);
    assert!(matches!(released, Err(StoreError::Busy { .. })), "{released:?}");
    store.commit(&empty(fence, now)).expect("committed");
    let taken = store.take_shards(fence, now, &shards, &[]);
    assert_eq!(taken.expect("take"), Some(shards.clone()), "nothing was done");
    other.batch("COMMIT".to_owned()).expect("commit");
    store.release_shards(fence, &shards).expect("given back");
    assert!(store.runners().expect("runners")[0].shards.is_empty());
}

/// The other way round: a commit that takes long holds up the release of shards, and not the thread
/// that releases them, which keeps the lease.
#[test]
fn a_commit_that_takes_long_does_not_hold_up_the_thread_that_releases_shards() {
    let store = Arc::new(fresh());
    store.migrate().expect("migrate");
    let now = Timestamp::from_millis(1_000);
    let fence = register_for(&store, now, Duration::from_secs(1));
    let shards: ShardSet = [ShardId(7)].into_iter().collect();
    let (blocker, process) = block_batches(&store);
    let committing = Arc::clone(&store);
    let committing = thread::spawn(move || committing.commit(&empty(fence, now)).map(drop));
    while !is_waited_for(&store, process) {
        thread::sleep(Duration::from_millis(5));
    }
    let released = store.release_shards(fence, &shards);
    assert!(matches!(released, Err(StoreError::Busy { .. })), "{released:?}");
    blocker.batch("ROLLBACK".to_owned()).expect("unlock");
    committing.join().expect("no panic").expect("committed");
    store.release_shards(fence, &shards).expect("given back");
}

/// A runner that takes over locks its own row, and waits for the batches of the one that is gone. Its
/// own commits waited with it.
#[test]
fn a_takeover_that_has_to_wait_gives_way_to_commits() {
    let store = fresh();
    store.migrate().expect("migrate");
    let (now, lease) = (Timestamp::from_millis(1_000), Duration::from_secs(1));
    let later = now + 2 * lease;
    let shards: ShardSet = [ShardId(7)].into_iter().collect();
    let gone = NewRunner::new(Uuid::from_u128(9), "gone", now, lease);
    let gone = store.register_runner(&gone).expect("register");
    store.take_shards(gone, now, &shards, &[]).expect("take");
    let fence = register_for(&store, later, lease);
    let other = begin_batch(&store);
    let taken = store.take_shards(fence, later, &shards, &[]);
    assert!(matches!(taken, Err(StoreError::Busy { .. })), "{taken:?}");
    store.commit(&empty(fence, later)).expect("committed");
    other.batch("COMMIT".to_owned()).expect("commit");
    let taken = store.take_shards(fence, later, &shards, &[]);
    assert_eq!(taken.expect("take"), Some(shards));
}

fn empty(fence: Fence, now: Timestamp) -> Batch {
    Batch { fence: Some(fence), now, writes: Vec::new() }
}

/// What the server ends after half a lease, as long as its client says nothing.
const NOT_IDLE: &str = "SET idle_in_transaction_session_timeout = 0";

/// A batch that is under way at the server, whoever has sent it: it holds the fences of all runners.
fn begin_batch(store: &PostgresStore) -> Conn {
    let conn = store.take().expect("a connection");
    let fence = "SELECT 1 FROM everstep_runners FOR KEY SHARE";
    let begun = conn.batch(format!("{NOT_IDLE}; BEGIN; {fence}"));
    begun.expect("the fence");
    conn
}

/// Holds up every batch after its fence, since each looks at runs. Gives the connection that does so,
/// and its process at the server.
fn block_batches(store: &PostgresStore) -> (Conn, i64) {
    let blocker = store.take().expect("a connection");
    let process = blocker.run(vec![Op::new("SELECT pg_backend_pid()::bigint", &[])]);
    let process: i64 = process.expect("its number")[0].rows[0].get(0).expect("one");
    let lock = "LOCK TABLE everstep_runs IN ACCESS EXCLUSIVE MODE";
    let locked = blocker.batch(format!("{NOT_IDLE}; BEGIN; {lock}"));
    locked.expect("lock");
    (blocker, process)
}

fn register(store: &PostgresStore, now: Timestamp) -> Fence {
    register_for(store, now, Duration::from_secs(10))
}

fn register_for(store: &PostgresStore, now: Timestamp, lease: Duration) -> Fence {
    let runner = NewRunner::new(Uuid::from_u128(1), "first", now, lease);
    store.register_runner(&runner).expect("register")
}

/// Whether somebody waits for a lock of this server process.
fn is_waited_for(store: &PostgresStore, process: i64) -> bool {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)::bigint[])";
    let waits = store.read(|session| session.exists(sql, params![process]));
    waits.expect("a read")
}
