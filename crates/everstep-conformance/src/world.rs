//! What every check begins with: a store with one runner, and the writes that are made in it.

use super::*;

pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub(super) const LEASE: Duration = Duration::from_secs(10);

/// The `available_at` of a run that is due at once: the instant at which its id was made.
pub(super) const AT_ONCE: Timestamp = START;

pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(START.as_millis() + ms)
}

/// A store with one runner that holds every shard.
pub(super) struct World {
    pub(super) store: Arc<dyn Store>,
    pub(super) ids: RunIds,
    pub(super) fence: Fence,
}

impl World {
    pub(super) fn new(store: Arc<dyn Store>) -> World {
        let fence = register(&*store, "first", START);
        let held = store
            .take_shards(fence, START, &ShardSet::of_default_pool(), &[])
            .expect("take_shards");
        assert_eq!(held, Some(ShardSet::of_default_pool()), "a fresh store's shards are free");
        World { store, ids: RunIds::new(11), fence }
    }

    pub(super) fn new_run(&self) -> NewRun {
        NewRun {
            id: self.ids.next(START),
            workflow: "checkout".into(),
            version: 1,
            key: None,
            pool: "default".into(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            trace: None,
            input: b"input".to_vec(),
            parent: None,
            claim: true,
        }
    }

    pub(super) fn batch(&self, ms: i64, writes: Vec<Write>) -> Vec<Outcome> {
        let batch = Batch { fence: Some(self.fence), now: at(ms), writes };
        let wanted = batch.writes.len();
        let outcomes = self.store.commit(&batch).expect("commit").outcomes;
        assert_eq!(outcomes.len(), wanted, "one outcome for each write");
        outcomes
    }

    pub(super) fn one(&self, ms: i64, write: Write) -> Outcome {
        self.batch(ms, vec![write]).pop().expect("one outcome")
    }

    pub(super) fn start(&self, new: NewRun) -> Started {
        match self.one(0, Write::Start(Box::new(new))) {
            Outcome::Started(started) => started,
            other => panic!("a start was answered with {other:?}"),
        }
    }

    /// A run in its owner's memory.
    pub(super) fn running(&self) -> RunId {
        let started = self.start(self.new_run());
        assert!(started.claimed);
        started.id
    }

    /// A run that waits.
    pub(super) fn parked(&self, available_at: Option<Timestamp>) -> RunId {
        let id = self.running();
        let patch = park(available_at);
        self.accept(Commit { inbox_seq: Some(0), patch, ..commit(id) });
        id
    }

    pub(super) fn finish(&self, id: RunId) {
        self.accept(Commit { patch: finish(RunStatus::Completed), ..commit(id) });
    }

    pub(super) fn commit(&self, commit: Commit) -> Outcome {
        self.one(1, Write::Commit(Box::new(commit)))
    }

    pub(super) fn accept(&self, commit: Commit) -> Vec<Delivered> {
        match self.commit(commit) {
            Outcome::Committed(done) => {
                let sent = done.into_iter().filter_map(|done| match done {
                    EffectDone::Sent(delivered) => Some(delivered),
                    _ => None,
                });
                sent.collect()
            }
            other => panic!("a commit was answered with {other:?}"),
        }
    }

    pub(super) fn refuse(&self, commit: Commit) -> Refusal {
        match self.commit(commit) {
            Outcome::Refused(refusal) => refusal,
            other => panic!("a commit was answered with {other:?}"),
        }
    }

    pub(super) fn deliver(&self, delivery: Delivery) -> Delivered {
        match self.one(2, Write::Deliver(Box::new(delivery))) {
            Outcome::Delivered(delivered) => delivered,
            other => panic!("a delivery was answered with {other:?}"),
        }
    }

    pub(super) fn control(&self, id: RunId, control: Control) -> Controlled {
        match self.one(3, Write::Control(Target::Id(id), control)) {
            Outcome::Controlled(controlled) => controlled,
            other => panic!("a control was answered with {other:?}"),
        }
    }

    pub(super) fn row(&self, id: RunId) -> RunRow {
        self.store.run(&Target::Id(id)).expect("run").expect("the run exists")
    }

    pub(super) fn keys(&self, id: RunId) -> Vec<Vec<u8>> {
        let entries = self.store.history(id.no(), None, usize::MAX).expect("history");
        entries.into_iter().map(|put| put.key).collect()
    }

    pub(super) fn seqs(&self, id: RunId) -> Vec<u64> {
        self.store.inbox(id.no(), 0).expect("inbox").into_iter().map(|row| row.seq).collect()
    }

    pub(super) fn due(&self, ms: i64) -> Vec<RunId> {
        let due = self.store.due(at(ms), &ShardSet::of_default_pool(), None, 1_000).expect("due");
        due.runs.into_iter().map(|run| run.id).collect()
    }

    pub(super) fn letters(&self, run: Option<RunId>) -> Vec<DeadLetter> {
        self.store
            .dead_letters(&LetterFilter { run: run.map(RunId::no), name: None }, 0, 1_000)
            .expect("dead_letters")
    }
}

pub(super) fn register(store: &dyn Store, name: &str, now: Timestamp) -> Fence {
    register_as(store, Uuid::from_name(name), name, now)
}

pub(super) fn register_as(store: &dyn Store, id: Uuid, name: &str, now: Timestamp) -> Fence {
    let runner = NewRunner { workflows: vec![serves()], ..NewRunner::new(id, name, now, LEASE) };
    store.register_runner(&runner).expect("register_runner")
}

pub(super) fn serves() -> Serves {
    Serves {
        workflow: "checkout".to_owned(),
        version: 2,
        accepts: 1..=2,
        pool: "default".to_owned(),
    }
}

/// Ids of runners and requests that are made from a name.
pub(super) trait FromName {
    fn from_name(name: &str) -> Uuid;
}

impl FromName for Uuid {
    fn from_name(name: &str) -> Uuid {
        let high = u128::from(internal::hash(1, name.as_bytes()));
        Uuid::from_u128(high << 64 | u128::from(internal::hash(2, name.as_bytes())))
    }
}

pub(super) fn commit(id: RunId) -> Commit {
    Commit {
        run: id.no(),
        generation: 1,
        inbox_seq: None,
        results_only: false,
        last_number: 0,
        numbers: 0,
        deletes: Vec::new(),
        puts: Vec::new(),
        consumed: Vec::new(),
        state: Vec::new(),
        effects: Vec::new(),
        patch: Patch::Keep,
    }
}

pub(super) fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Put {
    Put { key: key.as_ref().to_vec(), value: value.as_ref().to_vec() }
}

pub(super) fn range(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> KeyRange {
    KeyRange { start: start.as_ref().to_vec(), end: end.as_ref().to_vec() }
}

pub(super) fn park(available_at: Option<Timestamp>) -> Patch {
    let (status, waiting) = (RunStatus::Sleeping, "approval".to_owned());
    Patch::Park { status, available_at, waiting, attempts: 1 }
}

pub(super) fn finish(status: RunStatus) -> Patch {
    Patch::Finish { status, output: Some(b"output".to_vec()), error: None }
}

pub(super) fn roll_back() -> Patch {
    Patch::RollBack { ending: RunStatus::Cancelled, error: None }
}

pub(super) fn pause() -> Patch {
    Patch::Pause { reason: "the code differs".to_owned() }
}

pub(super) fn message(id: RunId) -> Delivery {
    Delivery {
        target: Target::Id(id),
        name: "approval".to_owned(),
        body: b"yes".to_vec(),
        dedupe: None,
        request: None,
        inbox_max: 10,
        on_end: OnEnd::Error,
    }
}

pub(super) fn send(id: RunId, key: &str) -> Effect {
    Effect::Send { delivery: message(id), key: key.into(), receipt: b"sent".to_vec() }
}

pub(super) fn delivered(id: RunId, seq: u64) -> Delivered {
    Delivered { receipt: Receipt::Delivered, run: Some(id), seq: Some(seq) }
}

pub(super) fn keyed(world: &World, key: &str) -> NewRun {
    NewRun { key: Some(key.to_owned()), ..world.new_run() }
}

/// Another runner, at a time when the first one's lease is over.
pub(super) fn take_over(world: &World, wanted: &ShardSet) -> (Fence, ShardSet) {
    let now = START + LEASE;
    let fence = register(&*world.store, "second", now);
    let held = world.store.take_shards(fence, now, wanted, &[]).expect("take_shards");
    (fence, held.expect("its own fence holds"))
}
