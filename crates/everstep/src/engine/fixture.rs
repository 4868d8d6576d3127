//! What unit tests of an engine's threads need: what the threads share, without the threads.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use super::shared::Shared;
use crate::{
    commit::{
        Batch, Commit, Delivery, Fence, NewRun, OnEnd, Outcome, Patch, Put, RunStatus, Target,
        Write,
    },
    ctx::Ctx,
    registry::Registry,
    run::Definition,
    run_id::{RunId, RunIds, ShardId},
    settings::Settings,
    store::{MemoryStore, NewRunner, ShardSet, Store, StoreError},
    testing::CrashingStore,
    time::{Clock, SystemClock, Uptime},
    workflow::WorkflowOptions,
};

pub(super) type TestStore = CrashingStore<MemoryStore>;

/// What the threads of an engine with one thread share. It is in the store by [`enter`].
pub(super) fn shared() -> (Arc<TestStore>, Arc<Shared>) {
    shared_with(|_| {})
}

pub(super) fn shared_with(change: impl FnOnce(&mut Settings)) -> (Arc<TestStore>, Arc<Shared>) {
    shared_running(change, |_: Ctx, (): ()| async { Ok(()) })
}

/// The same with this code for the runs of [`start`].
pub(super) fn shared_running<F, R>(
    change: impl FnOnce(&mut Settings),
    code: F,
) -> (Arc<TestStore>, Arc<Shared>)
where
    F: Fn(Ctx, ()) -> R + Send + Sync + 'static,
    R: Future<Output = crate::error::Result<()>> + 'static,
{
    let store = Arc::new(CrashingStore::counting(MemoryStore::new()));
    let mut registry = Registry::default();
    let definition = Definition::new("w", 1, WorkflowOptions::new(), code);
    registry.insert(definition).expect("its name is good");
    let shared = shared_on(store.clone(), registry, change);
    (store, shared)
}

/// As [`shared`], on any store and with any workflows.
pub(super) fn shared_on(
    store: Arc<dyn Store>,
    registry: Registry,
    change: impl FnOnce(&mut Settings),
) -> Arc<Shared> {
    let mut settings = Settings {
        store_retry: Duration::from_millis(1),
        lease: Duration::from_secs(3_600),
        heartbeat: Some(Duration::from_secs(3)),
        ..Settings::default()
    };
    change(&mut settings);
    let shared = Shared::new(
        Arc::new(settings),
        store.clone(),
        Arc::new(registry),
        Arc::new(SystemClock),
        1,
        Some(Uuid::from_u128(1)),
    );
    shared.set_secret(store.secret().expect("secret"));
    Arc::new(shared)
}

/// Enters the runner, again if it was before.
pub(super) fn enter(shared: &Shared) -> Fence {
    let me = shared.me.expect("it is a runner");
    let fence = shared.store.register_runner(&shared.as_runner(me));
    let fence = fence.expect("register_runner");
    shared.set_lease(fence, Uptime::now() + shared.settings.lease);
    fence
}

/// Enters a runner without an engine, which takes all shards that are free.
pub(super) fn enter_raw(store: &TestStore, id: u128) -> Fence {
    enter_raw_for(store, id, "default").0
}

/// The same with a runner that serves this pool; also gives what it has taken of the default pool.
pub(super) fn enter_raw_for(store: &TestStore, id: u128, pool: &str) -> (Fence, ShardSet) {
    let now = SystemClock.now();
    let lease = Duration::from_secs(3_600);
    let mut new = NewRunner::new(Uuid::from_u128(id), "raw", now, lease);
    new.pools = vec![pool.to_owned()];
    let fence = store.register_runner(&new).expect("register_runner");
    let all = ShardSet::of_default_pool();
    let held = store.take_shards(fence, now, &all, &[]);
    (fence, held.expect("take_shards").expect("its fence holds"))
}

fn one(store: &TestStore, fence: Fence, write: Write) -> Outcome {
    let batch = Batch { fence: Some(fence), now: SystemClock.now(), writes: vec![write] };
    let mut applied = store.commit(&batch).expect("commit");
    applied.outcomes.remove(0)
}

/// A run in the memory of the runner with this fence.
pub(super) fn start(store: &TestStore, fence: Fence) -> RunId {
    create(store, fence, draw(), 1, true)
}

/// The same, in this shard of the default pool.
pub(super) fn start_in(store: &TestStore, fence: Fence, shard: ShardId) -> RunId {
    let id = draw().with_shard_index(shard.index());
    create(store, fence, id, 1, true)
}

/// A run that nobody has code for.
pub(super) fn start_unserved(store: &TestStore, fence: Fence) -> RunId {
    create(store, fence, draw(), 2, false)
}

fn draw() -> RunId {
    RunIds::new(crate::seam::random()).next(SystemClock.now())
}

fn create(store: &TestStore, fence: Fence, id: RunId, version: u32, claim: bool) -> RunId {
    let new = NewRun {
        id,
        workflow: "w".into(),
        version,
        key: None,
        pool: "default".into(),
        available_at: None,
        deadline_at: None,
        tags: Vec::new(),
        trace: None,
        input: crate::codec::payload::to_vec(&()).expect("nothing can be encoded"),
        parent: None,
        claim,
    };
    match one(store, fence, Write::Start(Box::new(new))) {
        Outcome::Started(started) => assert_eq!(started.claimed, claim),
        other => panic!("it was not started: {other:?}"),
    }
    id
}

/// A commit with the entry of this number.
pub(super) fn step(run: RunId, number: u64) -> Commit {
    Commit {
        run: run.no(),
        generation: 1,
        inbox_seq: None,
        results_only: false,
        last_number: number,
        numbers: 1,
        deletes: Vec::new(),
        puts: vec![Put { key: number.to_be_bytes().to_vec(), value: vec![7; 20] }],
        consumed: Vec::new(),
        state: Vec::new(),
        effects: Vec::new(),
        patch: Patch::Keep,
    }
}

/// A message to the run.
pub(super) fn send(store: &TestStore, fence: Fence, run: RunId) {
    let delivery = Delivery {
        target: Target::Id(run),
        name: "go".to_owned(),
        body: Vec::new(),
        dedupe: None,
        request: None,
        inbox_max: 10,
        on_end: OnEnd::Error,
    };
    let outcome = one(store, fence, Write::Deliver(Box::new(delivery)));
    assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
}

/// Ends a run.
pub(super) fn finish(store: &TestStore, fence: Fence, run: RunId) {
    let patch = Patch::Finish { status: RunStatus::Completed, output: None, error: None };
    let commit = Commit { patch, ..step(run, 1) };
    let outcome = one(store, fence, Write::Commit(Box::new(commit)));
    assert!(matches!(outcome, Outcome::Committed(_)));
}

/// The error of a database that will be back.
pub(super) fn away() -> StoreError {
    StoreError::Io { store: "the test's store".to_owned(), source: "it is away".into() }
}

/// The error of a commit that may have been made.
pub(super) fn unknown() -> StoreError {
    StoreError::UnknownOutcome {
        store: "the test's store".to_owned(),
        source: "it did not say".into(),
    }
}
