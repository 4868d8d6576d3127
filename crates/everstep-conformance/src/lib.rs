//! The contract of [`everstep::store`] as a suite of checks that every store must pass.
//!
//! Each check stands for a sentence of the documentation of [`everstep::store`] or of the types in
//! it, and gets a fresh store. A store of your own passes when [`run_all`] returns, and when
//! [`compare`] finds that it answers as the store in memory does:
//!
//! ```
//! use std::sync::Arc;
//!
//! use everstep::store::MemoryStore;
//!
//! everstep_conformance::run_all(|| Arc::new(MemoryStore::new()));
//! everstep_conformance::compare(&MemoryStore::new(), &MemoryStore::new(), 1);
//! ```
//!
//! Such a store is least work over [`everstep::store::rows`]: it implements reads and writes of rows, and
//! the library applies batches over them. The test `own_store` of this crate is an example.
//!
//! Where several processes share a store, [`OwnerAndClient`] puts two of them behind one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use uuid::Uuid;

mod limits;

use self::limits::*;
use everstep::{
    ItemId, RunId, RunNo, ShardId, Timestamp,
    store::*,
    testing::internal::{self, RunIds},
};

type Check = fn(&World);

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as Check)),*] };
}

mod children;
mod clocks;
mod control;
mod deferreds;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod drawn;
mod events;
mod import;
mod listing;
mod numbers;
mod operators;
#[cfg(test)]
mod ours;
mod overview;
mod owner_and_client;
mod pools;
mod queues;
mod rehome;
mod schedules;
mod side_by_side;
mod streams;
mod tally;
mod traces;
mod transactions;

pub use owner_and_client::OwnerAndClient;
use side_by_side::Names;
pub use side_by_side::{Change, compare_changes};

/// The checks of all files.
fn all_checks() -> impl Iterator<Item = &'static (&'static str, Check)> {
    let checks = CHECKS.iter();
    let checks = checks.chain(control::CHECKS).chain(deferreds::CHECKS);
    checks
        .chain(children::CHECKS)
        .chain(clocks::CHECKS)
        .chain(listing::CHECKS)
        .chain(operators::CHECKS)
        .chain(pools::CHECKS)
        .chain(overview::CHECKS)
        .chain(rehome::CHECKS)
        .chain(schedules::CHECKS)
        .chain(streams::CHECKS)
        .chain(tally::CHECKS)
        .chain(traces::CHECKS)
        .chain(numbers::CHECKS)
        .chain(queues::CHECKS)
        .chain(queues::limited::CHECKS)
        .chain(events::CHECKS)
        .chain(transactions::CHECKS)
}

use import::{
    a_deleted_run_comes_back_by_an_import, an_import_beside_its_id_or_key_changes_nothing,
    an_imported_run_has_everything_it_had, an_imported_run_that_was_in_memory_is_due,
    paused_runs_are_paged_by_number,
};

/// Runs every check on a fresh, empty store from `make`, several at a time.
///
/// # Panics
///
/// With the names of the checks that fail, and what was wrong.
pub fn run_all(make: impl Fn() -> Arc<dyn Store> + Sync) {
    let checks = Mutex::new(all_checks());
    let failures = Mutex::new(Vec::new());
    let locked = "no check panics while it holds this";
    thread::scope(|scope| {
        // They wait for their store most of the time.
        for _ in 0..CHECKS_AT_ONCE {
            scope.spawn(|| {
                while let Some((name, check)) = {
                    let mut checks = checks.lock().expect(locked);
                    checks.next()
                } {
                    if let Err(text) = run_one(&make, *check) {
                        let failure = format!("store conformance, `{name}`: {text}");
                        failures.lock().expect(locked).push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect(locked);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// How many checks are made at the same time.
const CHECKS_AT_ONCE: usize = 6;

fn run_one(make: &impl Fn() -> Arc<dyn Store>, check: Check) -> Result<(), String> {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let store = make();
        store.migrate().map_err(|error| error.to_string())?;
        check(&World::new(store));
        Ok(())
    }));
    checked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("it panicked").to_owned())
    })
}

/// How many batches two stores are compared with.
const BATCHES: i64 = 150;

/// Gives both stores the same random batches, and compares every answer and, after each batch,
/// everything that can be read.
///
/// # Panics
///
/// With the seed and the number of the batch at which the two differ.
pub fn compare(model: &dyn Store, store: &dyn Store, seed: u64) {
    let mut random = Random::new(seed);
    let fences = [model, store].map(|store| {
        store.migrate().expect("migrate");
        let runner = NewRunner {
            pools: vec!["default".to_owned(), "gpu".to_owned()],
            ..NewRunner::new(Uuid::from_name("first"), "first", START, LEASE)
        };
        let fence = store.register_runner(&runner).expect("register_runner");
        let shards = ShardSet::of_pools([PoolNo(0), PoolNo(1)]);
        store.take_shards(fence, START, &shards, &[]).expect("take_shards");
        fence
    });
    assert_eq!(fences[0], fences[1], "seed {seed}");
    for no in 0..BATCHES {
        let batch = random.batch(model, fences[0], at(no));
        let wanted = model.commit(&batch).expect("commit");
        let got = store.commit(&batch).expect("commit");
        assert_eq!(got, wanted, "seed {seed}, batch {no}: {batch:#?}");
        random.open_numbers.after(model, &batch, &wanted.outcomes);
        if random.one_in(10) {
            for store in [model, store] {
                while store.sweep(at(no), 5).expect("sweep") {}
            }
        }
        let (wanted, got) = (random.read(model, at(no)), random.read(store, at(no)));
        assert!(
            got == wanted,
            "seed {seed}, batch {no}: {got:#?}\nis not {wanted:#?}\nafter {batch:#?}"
        );
    }
}

/// Makes batches that often fit what is stored, and often do not.
struct Random {
    seed: u64,
    /// What is decided by these instead of by the seed, until they are used up.
    tape: Option<std::vec::IntoIter<u16>>,
    ids: RunIds,
    runs: Vec<RunId>,
    /// The keys of operations that were made to wait for an event.
    subscribed: Vec<Vec<u8>>,
    open_numbers: numbers::OpenNumbers,
    names: Names,
}

/// The queues, and the one that most is about first.
const QUEUES: [&str; 2] = ["thumbs", "mails"];

/// How many ids requests have here.
const REQUESTS: u64 = 30;

/// Everything that can be read.
#[derive(Debug, PartialEq)]
struct Readings {
    loaded: Vec<Option<LoadedRun>>,
    states: Vec<Vec<(String, Vec<u8>)>>,
    due: Due,
    live: Vec<DueRun>,
    paused: Vec<PausedRun>,
    census: Census,
    failed: Vec<RunRow>,
    finished: Vec<(RunNo, Option<Finished>)>,
    dead_letters: Vec<DeadLetter>,
    queues: Vec<QueueReadings>,
    items: Vec<Option<ItemRow>>,
    events: Vec<Option<EventRow>>,
    to_tend: bool,
    streams: Vec<Vec<(StreamExtent, Option<StreamPage>)>>,
    schedules: Vec<ScheduleRow>,
    due_schedules: DueSchedules,
    queued_schedules: Vec<ScheduleRow>,
    limits: Vec<LimitRow>,
    places: Vec<Vec<LimitPlace>>,
    first_place_lost: Option<Timestamp>,
    pools: Vec<PoolRow>,
    runners: Vec<RunnerRow>,
    answers: Vec<(Uuid, Answer)>,
    ended: Vec<(ItemId, Option<Vec<u8>>)>,
    found: Vec<RunId>,
    tagged: u64,
    over: Vec<(RunId, Timestamp)>,
    unread: Vec<Vec<InboxRow>>,
    pages: Vec<Vec<Put>>,
    listed: Vec<Vec<RunRow>>,
    grown: Vec<usize>,
    letters: Vec<DeadLetter>,
    schedule: Option<ScheduleRow>,
    keyed: Vec<Option<RunRow>>,
}

/// What can be read about one queue.
#[derive(Debug, PartialEq)]
struct QueueReadings {
    items: Vec<ItemRow>,
    claimed: Vec<ItemRow>,
    stats: QueueStats,
    outlook: QueueOutlook,
}

impl QueueReadings {
    fn of(store: &dyn Store, queue: &str, now: Timestamp) -> QueueReadings {
        let after = Some(ItemId(3));
        QueueReadings {
            items: store.queue_items(queue, None, None, 1_000).expect("queue_items"),
            claimed: store
                .queue_items(queue, Some(ItemState::Claimed), after, 3)
                .expect("queue_items"),
            stats: store.queue_stats(queue).expect("queue_stats"),
            outlook: store.queue_outlook(queue, now).expect("queue_outlook"),
        }
    }
}

impl Random {
    fn new(seed: u64) -> Random {
        Random {
            seed,
            tape: None,
            ids: RunIds::new(seed),
            runs: Vec::new(),
            subscribed: Vec::new(),
            open_numbers: numbers::OpenNumbers::default(),
            names: Names::drawn(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        if let Some(tape) = &mut self.tape {
            return tape.next().map_or(0, |choice| u64::from(choice) % bound);
        }
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        internal::mix(self.seed) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        // With nothing left to decide by, what is rare does not happen.
        self.below(bound) == if self.tape.is_some() { bound - 1 } else { 0 }
    }

    fn run(&mut self) -> RunId {
        let no = self.below(self.runs.len() as u64 + 1) as usize;
        self.runs.get(no).copied().unwrap_or_else(|| self.ids.next(START))
    }

    fn batch(&mut self, model: &dyn Store, fence: Fence, now: Timestamp) -> Batch {
        let mut committed = Vec::new();
        let mut writes = Vec::new();
        for _ in 0..self.below(6) {
            let id = self.run();
            let write = match self.below(20) {
                16.. => Write::Queue(Box::new(self.queue_write(model, now))),
                12 => match self.end_of_tick(model, &committed, now) {
                    Some(commit) => {
                        committed.push(commit.0);
                        Write::Commit(Box::new(commit.1))
                    }
                    None => Write::Schedule(Box::new(self.schedule_write(model, now))),
                },
                0 | 1 => Write::Start(Box::new(self.start(now))),
                2 | 3 => Write::Deliver(Box::new(self.delivery(id))),
                4 => Write::Control(self.target(id), self.control()),
                5 => Write::Reopen(Box::new(self.reopening(model, id))),
                6 if self.one_in(2) => self.event_write(id),
                6 => Write::Emit(Box::new(self.emission(id))),
                13 if self.one_in(4) => Write::Import(Box::new(self.import(now))),
                13 => Write::Tag(Box::new(self.tagging(id))),
                14 if self.one_in(2) => Write::Fork(Box::new(self.fork(now))),
                14 => Write::Delete(Box::new(self.deletion(id, now))),
                15 if self.one_in(2) => Write::HandOver(Box::new(self.hand_over(id))),
                15 => Write::Resolve(Box::new(self.resolution(id))),
                // At most one commit per run.
                _ if committed.contains(&id) => continue,
                _ => {
                    committed.push(id);
                    Write::Commit(Box::new(self.commit(model, id, now)))
                }
            };
            writes.push(write);
        }
        let fence = if self.one_in(30) { None } else { Some(fence) };
        let batch = Batch { fence, now, writes };
        let has_one_runner = self.tape.is_none();
        self.open_numbers.before(model, &batch, has_one_runner);
        batch
    }

    fn queue(&mut self) -> String {
        QUEUES[usize::from(self.one_in(4))].to_owned()
    }

    fn new_item(&mut self, now: Timestamp) -> NewItem {
        let delay = Duration::from_millis(self.below(20));
        let (queue, payload) = (self.queue(), self.below(256) as u8);
        NewItem {
            queue,
            payload: vec![payload],
            priority: self.below(3) as i32 - 1,
            available_at: self.one_in(3).then(|| now + delay),
            dedupe: self.one_in(3).then(|| self.below(4).to_string()),
            keep: Duration::from_millis(10 * self.below(3)),
            trace: trace_of(u64::from(payload)),
        }
    }

    fn queue_write(&mut self, model: &dyn Store, now: Timestamp) -> QueueWrite {
        let queue = self.queue();
        let items = model.queue_items(&queue, None, None, 100);
        let items = items.expect("queue_items");
        let item = match items.get(self.below(items.len() as u64 + 1) as usize) {
            Some(item) => item.id,
            None => ItemId(1 + self.below(60)),
        };
        let claim = Uuid::from_u128(u128::from(self.below(2)));
        let later = now + Duration::from_millis(self.below(30));
        if self.one_in(12) {
            return QueueWrite::Revoke;
        }
        match self.below(8) {
            0 | 1 => QueueWrite::Enqueue(self.new_item(now)),
            2 | 3 => QueueWrite::Claim(ClaimItems {
                queue,
                claim,
                max: self.below(4) as usize,
                attempts_max: 2,
                visibility: Duration::from_millis(20),
                limit: self.one_in(2).then(|| self.claim_limit()),
            }),
            4 => QueueWrite::Extend(vec![Extend { item, claim, until: later }]),
            5 => {
                let controls = [ItemControl::Cancel, ItemControl::Replay, ItemControl::Drop];
                QueueWrite::Control(item, controls[self.below(3) as usize])
            }
            _ => QueueWrite::Settle(Settle {
                item,
                claim,
                settlement: match self.below(4) {
                    0 => Settlement::Done(vec![1]),
                    1 => Settlement::Retry { at: later, error: vec![2] },
                    2 => Settlement::Failed(vec![3]),
                    _ => Settlement::Release,
                },
            }),
        }
    }

    fn target(&mut self, id: RunId) -> Target {
        if self.one_in(3) {
            let key = self.below(4).to_string();
            Target::Key { workflow: "checkout".to_owned(), key }
        } else {
            Target::Id(id)
        }
    }

    fn start(&mut self, now: Timestamp) -> NewRun {
        let id = if self.one_in(10) { self.run() } else { self.ids.next(now) };
        // The runs that most is about: later ones take the place of earlier ones now and then.
        match self.below(24) as usize {
            _ if self.runs.len() < 12 => self.runs.push(id),
            place @ ..12 => self.runs[place] = id,
            _ => {}
        }
        let delay = Duration::from_millis(self.below(50));
        NewRun {
            id,
            workflow: "checkout".into(),
            version: 1,
            key: self.one_in(3).then(|| self.below(4).to_string()),
            pool: if self.one_in(5) { "gpu" } else { "default" }.into(),
            available_at: self.one_in(4).then(|| now + delay),
            deadline_at: self.one_in(6).then(|| now + 10 * delay),
            tags: if self.one_in(6) {
                vec![("1".to_owned(), self.below(2).to_string())]
            } else {
                Vec::new()
            },
            trace: trace_of(id.no().0.unsigned_abs()),
            input: vec![self.below(2) as u8],
            parent: None,
            claim: !self.one_in(3),
        }
    }

    fn delivery(&mut self, id: RunId) -> Delivery {
        let on_end = match self.below(4) {
            0 => OnEnd::DeadLetter,
            1 => OnEnd::Publish(Box::new(events::fallback("e0"))),
            _ => OnEnd::Error,
        };
        Delivery {
            on_end,
            target: self.target(id),
            body: vec![self.below(256) as u8],
            dedupe: self.one_in(2).then(|| self.below(5).to_string()),
            request: self.one_in(4).then(|| Uuid::from_u128(u128::from(self.below(REQUESTS)))),
            inbox_max: 1 + self.below(6),
            ..message(id)
        }
    }

    fn resolution(&mut self, id: RunId) -> Resolution {
        Resolution {
            run: id,
            generation: self.one_in(2).then(|| 1 + self.below(2) as u32),
            tag: [self.below(3) as u8; 16],
            body: vec![self.below(256) as u8],
        }
    }

    fn tagging(&mut self, id: RunId) -> Tagging {
        Tagging {
            target: self.target(id),
            name: self.below(3).to_string(),
            value: (!self.one_in(3)).then(|| self.below(2).to_string()),
        }
    }

    fn fork(&mut self, now: Timestamp) -> Fork {
        Fork {
            new: self.start(now),
            history: vec![put([1, self.below(3) as u8], [7])],
            last_number: self.below(4),
            state: vec![("forked".to_owned(), vec![2])],
        }
    }

    fn deletion(&mut self, id: RunId, now: Timestamp) -> Delete {
        let later = now + Duration::from_millis(self.below(20));
        Delete {
            target: self.target(id),
            finished_before: self.one_in(3).then_some(now),
            key_kept_until: self.one_in(2).then_some(later),
        }
    }

    fn control(&mut self) -> Control {
        match self.below(5) {
            0 => Control::Cancel { rollback: self.one_in(2) },
            1 | 2 => Control::Pause,
            _ => Control::Resume,
        }
    }

    fn row(model: &dyn Store, id: RunId) -> Option<RunRow> {
        model.run(&Target::Id(id)).expect("run")
    }

    /// To where the runner has shards, or to where nobody has.
    fn hand_over(&mut self, id: RunId) -> HandOver {
        let pools = ["default", "gpu", "gpu", "default", "default@checkout/1"];
        HandOver { run: id.no(), pool: pools[self.below(5) as usize].into() }
    }

    fn reopening(&mut self, model: &dyn Store, id: RunId) -> Reopen {
        let row = Random::row(model, id);
        Reopen {
            run: id.no(),
            status: row.as_ref().map_or(RunStatus::Failed, |row| row.status),
            attempts: row.map_or(1, |row| row.attempts) + u32::from(self.one_in(4)),
            puts: vec![self.put()],
            deletes: vec![self.range()],
        }
    }

    fn put(&mut self) -> Put {
        put([self.below(8) as u8, self.below(3) as u8], [self.below(256) as u8])
    }

    fn range(&mut self) -> KeyRange {
        range([self.below(8) as u8], [self.below(9) as u8, self.below(2) as u8])
    }

    fn commit(&mut self, model: &dyn Store, id: RunId, now: Timestamp) -> Commit {
        let row = Random::row(model, id);
        let is_running = row.as_ref().is_some_and(|row| row.status == RunStatus::Running);
        let (base, inbox_seq, generation) =
            row.map_or((0, 0, 1), |row| (row.last_number, row.inbox_seq, row.generation));
        // With several runners it is open how exactly a store knows the last number of a run in its
        // owner's memory, or of one that was paused there, and so whether it sees that one is left
        // out.
        let is_paused_open = self.open_numbers.is_open(id.no());
        let is_open = (is_running && self.tape.is_some()) || is_paused_open;
        let leaves_out = self.one_in(12) && !is_open;
        let base = base + u64::from(leaves_out);
        // A commit without numbers writes the row only where the last one was unknown.
        let numbers = self.below(3).max(u64::from(is_paused_open));
        let results_only = self.one_in(4);
        let is_stale = self.one_in(6);
        let seen = inbox_seq.saturating_sub(u64::from(is_stale));
        Commit {
            run: id.no(),
            generation: generation + u32::from(self.one_in(20)),
            inbox_seq: self.one_in(2).then_some(seen),
            results_only,
            last_number: base + numbers,
            numbers,
            deletes: if self.one_in(4) { vec![self.range()] } else { Vec::new() },
            puts: (0..self.below(4)).map(|_| self.put()).collect(),
            consumed: if self.one_in(3) { vec![1 + self.below(8)] } else { Vec::new() },
            state: if self.one_in(5) { vec![("s".to_owned(), vec![1])] } else { Vec::new() },
            effects: self.effects(now),
            patch: if results_only { Patch::Keep } else { self.patch(seen, now) },
        }
    }

    /// A few, each of an operation of its own, as an owner has them.
    fn effects(&mut self, now: Timestamp) -> Vec<Effect> {
        let count = match self.below(8) {
            0..6 => 1,
            more => more - 4,
        };
        let mut effects: Vec<Effect> = Vec::new();
        for _ in 0..count {
            let Some(effect) = self.effect(now) else {
                continue;
            };
            let key = operation(&effect);
            if key.is_none() || effects.iter().all(|before| operation(before) != key) {
                effects.push(effect);
            }
        }
        effects
    }

    fn effect(&mut self, now: Timestamp) -> Option<Effect> {
        let receiver = self.run();
        match self.below(23) {
            19 => Some(Effect::StartChild(Box::new(self.child(now)))),
            20 => Some(Effect::Watch {
                target: self.target(receiver),
                key: vec![12, self.below(3) as u8],
                entry: vec![1],
            }),
            21 => Some(Effect::Abandon {
                kind: InboxKind::RunEnded,
                key: vec![12, self.below(3) as u8],
            }),
            10 | 11 => Some(Effect::AwaitDeferred(DeferredWait {
                key: vec![9, self.below(4) as u8],
                tag: [self.below(3) as u8; 16],
                looks: self.one_in(4),
            })),
            12 => Some(Effect::Abandon {
                kind: InboxKind::Deferred,
                key: vec![9, self.below(4) as u8],
            }),
            3 => Some(Effect::Tag {
                name: self.below(3).to_string(),
                value: (!self.one_in(3)).then(|| self.below(2).to_string()),
            }),
            0 | 1 => Some(Effect::Send {
                delivery: self.delivery(receiver),
                key: vec![9, self.below(3) as u8],
                receipt: vec![1],
            }),
            4 | 5 => Some(self.event_effect()),
            2 => Some(Effect::Reply {
                request: Uuid::from_u128(u128::from(self.below(REQUESTS))),
                body: vec![self.below(256) as u8],
            }),
            6 => Some(Effect::Emit(Box::new(self.emit()))),
            7 => Some(Effect::Enqueue {
                item: self.new_item(now),
                key: vec![10, self.below(2) as u8],
                then: AfterEnqueue::Wait { leave: self.one_in(3) },
            }),
            8 => Some(Effect::Enqueue {
                item: self.new_item(now),
                key: vec![11, self.below(2) as u8],
                then: AfterEnqueue::Record(vec![1]),
            }),
            9 => Some(Effect::Abandon {
                kind: InboxKind::QueueResult,
                key: vec![10, self.below(2) as u8],
            }),
            13 | 15 => Some(self.acquire()),
            22 => Some(Effect::Abandon {
                kind: InboxKind::LimitGrant,
                key: vec![self.below(3) as u8],
            }),
            14 => Some(Effect::Release { key: vec![self.below(3) as u8] }),
            _ => None,
        }
    }

    fn child(&mut self, now: Timestamp) -> StartChild {
        StartChild {
            new: self.start(now),
            key: vec![12, self.below(3) as u8],
            entry: vec![1],
            awaited: !self.one_in(3),
            close: if self.one_in(2) { Close::Cancel } else { Close::Leave },
        }
    }

    /// A run from elsewhere, as a start would have made it.
    fn import(&mut self, now: Timestamp) -> ImportedRun {
        let new = self.start(now);
        let status = match self.below(4) {
            0 => RunStatus::Sleeping,
            1 => RunStatus::Paused,
            2 => RunStatus::Completed,
            _ => RunStatus::Running,
        };
        let terminal = status.is_terminal();
        ImportedRun {
            row: RunRow {
                id: new.id,
                workflow: new.workflow,
                version: new.version,
                key: new.key,
                shard: new.id.shard_in(PoolNo::DEFAULT),
                pool: new.pool,
                status,
                ending: None,
                generation: 1 + self.below(2) as u32,
                available_at: new.available_at.filter(|_| status == RunStatus::Sleeping),
                deadline_at: None,
                created_at: now,
                updated_at: now,
                finished_at: terminal.then_some(now),
                attempts: 1,
                recoveries: 0,
                inbox_seq: 1,
                cancel_requested: None,
                last_number: self.below(3),
                waiting: None,
                tags: Vec::new(),
                trace: new.trace,
                parent: None,
                resume_at: None,
                input: new.input,
                output: terminal.then(|| vec![2]),
                error: None,
            },
            history: vec![self.put()],
            inbox: vec![InboxRow {
                on_end: None,
                seq: 1,
                kind: InboxKind::Message,
                name: "hello".to_owned(),
                body: vec![3],
                wait: None,
                request: None,
                sent_at: now,
            }],
            state: vec![("s".to_owned(), vec![9])],
        }
    }

    fn claim_limit(&mut self) -> ClaimLimit {
        let Effect::Acquire(acquire) = self.acquire() else {
            unreachable!("it is one");
        };
        ClaimLimit { limit: acquire.limit, limit_key: acquire.limit_key, rule: acquire.rule }
    }

    fn acquire(&mut self) -> Effect {
        let rate = LimitRate {
            count: 1 + self.below(3) as u32,
            per_ms: 20,
            burst: 1 + self.below(2) as u32,
        };
        Effect::Acquire(Box::new(Acquire {
            limit: "limit".to_owned(),
            limit_key: self.below(4).to_string(),
            rule: LimitRule {
                concurrency: self.one_in(2).then_some(1 + self.below(2) as u32),
                rate: self.one_in(2).then_some(rate),
            },
            holds: !self.one_in(4),
            key: vec![self.below(3) as u8],
        }))
    }

    fn patch(&mut self, inbox_seq: u64, now: Timestamp) -> Patch {
        let later = now + Duration::from_millis(self.below(40));
        match self.below(13) {
            0..=2 => Patch::Keep,
            12 => Patch::Continue {
                workflow: "checkout".into(),
                version: 1 + self.below(2) as u32,
                pool: if self.one_in(4) { "gpu" } else { "default" }.into(),
                input: vec![self.below(2) as u8],
            },
            3..=5 => Patch::Run { inbox_seq },
            6 | 7 => park(self.one_in(2).then_some(later)),
            8 => Patch::Park {
                status: RunStatus::Pending,
                available_at: Some(later),
                waiting: "its next attempt".to_owned(),
                attempts: 2,
            },
            9 if self.one_in(2) => Patch::RollBack { ending: RunStatus::Cancelled, error: None },
            9 => roll_back(),
            10 => pause(),
            _ => match self.below(3) {
                0 => finish(RunStatus::Failed),
                1 => finish(RunStatus::Cancelled),
                _ => finish(RunStatus::Completed),
            },
        }
    }

    /// One for each way to choose runs.
    fn filters(&self, now: Timestamp) -> [Filter; 6] {
        let earlier = now - Duration::from_millis(20);
        let all = Filter::default;
        [
            Filter {
                statuses: vec![RunStatus::Running, RunStatus::Sleeping, RunStatus::Completed],
                workflow: Some("checkout".to_owned()),
                ..all()
            },
            Filter { tags: vec![("1".to_owned(), "0".to_owned())], ..all() },
            Filter { created_from: Some(earlier), created_before: Some(now), ..all() },
            Filter { version: Some(2), ..all() },
            Filter { key_prefix: Some("x/".to_owned()), ..all() },
            Filter { finished_from: Some(earlier), finished_before: Some(now), ..all() },
        ]
    }

    fn list(&self, store: &dyn Store, filter: &Filter) -> Vec<RunRow> {
        let rows = store.list(filter, None, 5).expect("list").into_iter();
        rows.map(|row| self.open_numbers.comparable(store, row)).collect()
    }

    fn read(&self, store: &dyn Store, now: Timestamp) -> Readings {
        let nos = self.runs.iter().map(|id| id.no()).collect::<Vec<_>>();
        let failed = Filter { statuses: vec![RunStatus::Failed], ..Filter::default() };
        let tagged = Filter { tags: vec![("1".to_owned(), "1".to_owned())], ..Filter::default() };
        let requests: Vec<Uuid> = self.names.requests.iter().copied().collect();
        let items: Vec<_> = (1..60).map(ItemId).collect();
        let loaded = nos.iter().map(|no| {
            let run = store.load(*no).expect("load");
            run.map(|run| LoadedRun { row: self.open_numbers.comparable(store, run.row), ..run })
        });
        let grown: Vec<_> = nos
            .iter()
            .flat_map(|no| [(*no, "a".to_owned(), 1), (*no, "b".to_owned(), 0)])
            .collect();
        let hello = LetterFilter { name: Some("hello".to_owned()), ..LetterFilter::default() };
        // Everything, or one pool.
        let pools: Vec<PoolNo> = match now.as_millis() % 4 {
            3 => (0..3).map(PoolNo).collect(),
            pool => vec![PoolNo(pool as u32)],
        };
        let shards = ShardSet::of_pools(pools);
        Readings {
            loaded: loaded.collect(),
            states: nos.iter().map(|no| store.state(*no).expect("state")).collect(),
            due: store.due(now, &shards, None, 100).expect("due"),
            live: store.live(&shards, None, 100).expect("live"),
            paused: store.paused(&shards, None, 100).expect("paused"),
            census: store.census(now, &shards).expect("census"),
            pools: store.pools().expect("pools"),
            failed: store.list(&failed, None, 100).expect("list"),
            finished: store.finished(&nos).expect("finished"),
            dead_letters: store
                .dead_letters(&LetterFilter::default(), 0, 1_000)
                .expect("dead_letters"),
            queues: (self.names.queues.iter())
                .map(|queue| QueueReadings::of(store, queue, now))
                .collect(),
            items: items
                .iter()
                .step_by(7)
                .map(|item| store.queue_item(*item).expect("queue_item"))
                .collect(),
            events: (self.names.events.iter())
                .map(|name| store.event(name).expect("event"))
                .collect(),
            to_tend: store.events_to_tend(now).expect("events_to_tend"),
            streams: nos.iter().map(|no| streams::read(store, *no)).collect(),
            schedules: store.schedules(None, 100).expect("schedules"),
            due_schedules: store.due_schedules(now, None, 100).expect("due_schedules"),
            queued_schedules: store.queued_schedules(None, 100).expect("queued_schedules"),
            limits: store.limits(None, 100).expect("limits"),
            places: nos.iter().map(|no| store.limit_places(*no).expect("limit_places")).collect(),
            first_place_lost: store.first_place_lost().expect("first_place_lost"),
            runners: store.runners().expect("runners"),
            answers: store.answers(&requests).expect("answers"),
            ended: store.queue_ended(&items).expect("queue_ended"),
            found: store.find(&Filter::default(), None, 100).expect("find"),
            tagged: store.count(&tagged).expect("count"),
            over: store
                .finished_before("checkout", RunStatus::Failed, now, 100)
                .expect("finished_before"),
            unread: nos.iter().map(|no| store.inbox(*no, 1).expect("inbox")).collect(),
            pages: nos
                .iter()
                .map(|no| store.history(*no, Some(&[1]), 2).expect("history"))
                .collect(),
            listed: self.filters(now).iter().map(|filter| self.list(store, filter)).collect(),
            grown: store.streams_grown(&grown).expect("streams_grown"),
            letters: store.dead_letters(&hello, 2, 3).expect("dead_letters"),
            schedule: store.schedule("x").expect("schedule"),
            keyed: (0..4)
                .map(|key| store.run(&of_key(key)).expect("run"))
                .map(|row| row.map(|row| self.open_numbers.comparable(store, row)))
                .collect(),
        }
    }
}

/// The trace of every third, which says which one it is.
fn trace_of(n: u64) -> Option<String> {
    n.is_multiple_of(3).then(|| format!("trace {n}"))
}

fn of_key(key: u64) -> Target {
    Target::Key { workflow: "checkout".to_owned(), key: key.to_string() }
}

/// The key of the operation that an effect is about, if it is about one.
fn operation(effect: &Effect) -> Option<&[u8]> {
    match effect {
        Effect::Send { key, .. }
        | Effect::Publish { key, .. }
        | Effect::Took { key }
        | Effect::Watch { key, .. }
        | Effect::Release { key }
        | Effect::Abandon { key, .. }
        | Effect::Enqueue { key, .. } => Some(key),
        Effect::Subscribe(subscription) => Some(&subscription.key),
        Effect::AwaitDeferred(wait) => Some(&wait.key),
        Effect::StartChild(child) => Some(&child.key),
        Effect::Acquire(acquire) => Some(&acquire.key),
        Effect::Reply { .. } | Effect::Emit(_) | Effect::Transaction(_) | Effect::Tag { .. } => {
            None
        }
    }
}

const CHECKS: &[(&str, Check)] = checks![
    migrating_twice_changes_nothing,
    a_start_makes_a_pending_run_that_is_due_now,
    a_delayed_start_is_due_at_its_time,
    a_claimed_start_is_running_and_not_due,
    a_start_without_fence_or_shard_is_not_claimed,
    a_delayed_start_is_never_claimed,
    a_second_start_of_a_key_attaches_and_compares_the_input,
    two_starts_of_one_key_in_one_batch_make_one_run,
    keys_are_unique_per_workflow_only,
    a_start_with_a_used_id_attaches_and_with_a_used_number_is_refused,
    every_field_of_a_start_is_kept,
    a_target_is_found_by_id_and_by_key_only,
    entries_come_back_in_byte_order,
    a_put_replaces_what_was_there,
    a_range_removes_exactly_its_keys,
    deletes_come_before_puts,
    history_is_paged_by_key,
    histories_do_not_mix,
    big_values_survive,
    a_refused_commit_changes_nothing_and_the_rest_stands,
    an_unknown_run_is_gone,
    another_generation_is_gone,
    a_finished_run_is_gone,
    numbers_must_follow,
    a_run_tried_again_as_a_whole_may_go_back_in_numbers,
    the_last_number_is_exact_when_parked,
    a_batch_without_fence_commits_nothing_but_other_writes_stand,
    a_batch_under_a_raised_epoch_commits_nothing,
    a_runner_that_registers_again_commits_nothing_for_shards_it_lost,
    a_takeover_frees_all_shards_and_counts_recoveries,
    a_live_holder_keeps_its_shards,
    a_holder_that_is_gone_is_taken_over_unless_it_has_prolonged_its_lease,
    released_shards_belong_to_nobody,
    a_shard_that_was_given_back_counts_no_recovery,
    a_runner_that_deregisters_frees_everything,
    a_runner_that_returns_gets_a_fresh_epoch,
    a_heartbeat_prolongs_the_lease,
    parking_clears_the_recoveries,
    running_clears_the_due_time_and_the_recoveries,
    running_keeps_the_due_time_if_a_message_was_not_seen,
    delivery_after_parking_makes_the_run_due,
    delivery_before_parking_refuses_it_with_the_messages,
    a_refusal_says_how_far_an_inbox_without_rows_goes,
    delivery_and_parking_in_one_batch_make_the_run_due,
    deliveries_of_one_batch_get_consecutive_places,
    a_delivery_to_a_run_started_in_the_same_batch_arrives,
    a_delivery_does_not_hurry_a_delayed_start,
    a_delivery_does_not_wake_a_paused_run,
    a_delivery_makes_a_running_run_due,
    a_consumed_message_is_gone_and_the_others_stay,
    the_inbox_is_read_after_a_place,
    a_message_with_a_used_dedupe_key_is_a_duplicate,
    an_inbox_has_a_bound,
    a_message_to_nobody_or_to_a_finished_run_is_not_delivered,
    an_effect_delivers_and_writes_its_receipt,
    an_undeliverable_effect_is_a_dead_letter_and_never_refuses,
    a_run_can_send_to_itself,
    a_refused_commit_sends_nothing,
    unread_messages_of_a_finished_run_are_dead_letters,
    dead_letters_are_listed_in_order_of_arrival,
    the_first_reply_wins,
    a_finished_run_answers_its_open_requests,
    a_reply_in_the_last_commit_counts,
    cancel_refuses_movement_and_takes_results,
    a_cancel_can_be_carried_out,
    a_cancel_makes_every_row_due,
    a_second_cancel_and_a_cancel_of_a_finished_run_say_so,
    a_cancel_in_the_batch_of_the_last_commit_finds_it_finished,
    cancel_refuses_nothing_once_the_end_is_decided,
    pause_refuses_movement_and_takes_results,
    resume_makes_a_paused_run_due_again,
    a_run_paused_in_its_rollback_resumes_in_it,
    a_run_being_cancelled_cannot_be_paused,
    every_patch_sets_what_it_says,
    state_is_kept_by_key_and_survives_the_end,
    a_finished_run_can_be_reopened,
    a_reopening_that_does_not_fit_is_refused,
    due_runs_are_paged_in_order,
    due_runs_are_of_the_given_shards,
    the_next_due_time_is_after_now,
    live_runs_are_paged_by_number,
    the_census_counts_what_waits,
    lists_are_newest_first_and_paged,
    filters_must_all_hold,
    finished_names_the_ended_and_the_missing,
    loading_gives_row_history_and_inbox,
    an_empty_batch_is_fine,
    a_large_batch_is_applied_as_a_whole,
    others_are_woken_and_the_waker_is_not,
    a_dropped_guard_is_not_called,
    counters_count,
    an_imported_run_has_everything_it_had,
    an_imported_run_that_was_in_memory_is_due,
    an_import_beside_its_id_or_key_changes_nothing,
    a_deleted_run_comes_back_by_an_import,
    paused_runs_are_paged_by_number,
    a_place_that_is_free_is_given_at_once,
    a_place_that_is_given_back_is_the_next_ones_in_the_same_batch,
    places_are_given_in_the_order_of_asking,
    asking_again_changes_nothing,
    a_run_that_is_over_or_put_away_holds_nothing,
    a_paused_run_is_passed_over,
    a_run_that_was_resumed_keeps_its_places_and_is_not_put_away,
    an_abandoned_wait_for_a_limit_gives_its_place_back,
    another_rule_counts_from_the_next_asking,
    turns_by_the_rate_are_given_away_in_order,
    turns_follow_a_clock_that_was_set_back,
];

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const LEASE: Duration = Duration::from_secs(10);

/// What a run has as its time that is due at once: the instant at which its id was made.
const AT_ONCE: Timestamp = START;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(START.as_millis() + ms)
}

/// A store with one runner that holds every shard.
struct World {
    store: Arc<dyn Store>,
    ids: RunIds,
    fence: Fence,
}

impl World {
    fn new(store: Arc<dyn Store>) -> World {
        let fence = register(&*store, "first", START);
        let held = store
            .take_shards(fence, START, &ShardSet::of_default_pool(), &[])
            .expect("take_shards");
        assert_eq!(held, Some(ShardSet::of_default_pool()), "a fresh store's shards are free");
        World { store, ids: RunIds::new(11), fence }
    }

    fn new_run(&self) -> NewRun {
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

    fn batch(&self, ms: i64, writes: Vec<Write>) -> Vec<Outcome> {
        let batch = Batch { fence: Some(self.fence), now: at(ms), writes };
        let wanted = batch.writes.len();
        let outcomes = self.store.commit(&batch).expect("commit").outcomes;
        assert_eq!(outcomes.len(), wanted, "one outcome for each write");
        outcomes
    }

    fn one(&self, ms: i64, write: Write) -> Outcome {
        self.batch(ms, vec![write]).pop().expect("one outcome")
    }

    fn start(&self, new: NewRun) -> Started {
        match self.one(0, Write::Start(Box::new(new))) {
            Outcome::Started(started) => started,
            other => panic!("a start was answered with {other:?}"),
        }
    }

    /// A run in its owner's memory.
    fn running(&self) -> RunId {
        let started = self.start(self.new_run());
        assert!(started.claimed);
        started.id
    }

    /// A run that waits.
    fn parked(&self, available_at: Option<Timestamp>) -> RunId {
        let id = self.running();
        let patch = park(available_at);
        self.accept(Commit { inbox_seq: Some(0), patch, ..commit(id) });
        id
    }

    fn finish(&self, id: RunId) {
        self.accept(Commit { patch: finish(RunStatus::Completed), ..commit(id) });
    }

    fn commit(&self, commit: Commit) -> Outcome {
        self.one(1, Write::Commit(Box::new(commit)))
    }

    fn accept(&self, commit: Commit) -> Vec<Delivered> {
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

    fn refuse(&self, commit: Commit) -> Refusal {
        match self.commit(commit) {
            Outcome::Refused(refusal) => refusal,
            other => panic!("a commit was answered with {other:?}"),
        }
    }

    fn deliver(&self, delivery: Delivery) -> Delivered {
        match self.one(2, Write::Deliver(Box::new(delivery))) {
            Outcome::Delivered(delivered) => delivered,
            other => panic!("a delivery was answered with {other:?}"),
        }
    }

    fn control(&self, id: RunId, control: Control) -> Controlled {
        match self.one(3, Write::Control(Target::Id(id), control)) {
            Outcome::Controlled(controlled) => controlled,
            other => panic!("a control was answered with {other:?}"),
        }
    }

    fn row(&self, id: RunId) -> RunRow {
        self.store.run(&Target::Id(id)).expect("run").expect("the run exists")
    }

    fn keys(&self, id: RunId) -> Vec<Vec<u8>> {
        let entries = self.store.history(id.no(), None, usize::MAX).expect("history");
        entries.into_iter().map(|put| put.key).collect()
    }

    fn seqs(&self, id: RunId) -> Vec<u64> {
        self.store.inbox(id.no(), 0).expect("inbox").into_iter().map(|row| row.seq).collect()
    }

    fn due(&self, ms: i64) -> Vec<RunId> {
        let due = self.store.due(at(ms), &ShardSet::of_default_pool(), None, 1_000).expect("due");
        due.runs.into_iter().map(|run| run.id).collect()
    }

    fn letters(&self, run: Option<RunId>) -> Vec<DeadLetter> {
        self.store
            .dead_letters(&LetterFilter { run: run.map(RunId::no), name: None }, 0, 1_000)
            .expect("dead_letters")
    }
}

fn register(store: &dyn Store, name: &str, now: Timestamp) -> Fence {
    register_as(store, Uuid::from_name(name), name, now)
}

fn register_as(store: &dyn Store, id: Uuid, name: &str, now: Timestamp) -> Fence {
    let runner = NewRunner { workflows: vec![serves()], ..NewRunner::new(id, name, now, LEASE) };
    store.register_runner(&runner).expect("register_runner")
}

fn serves() -> Serves {
    Serves {
        workflow: "checkout".to_owned(),
        version: 2,
        accepts: 1..=2,
        pool: "default".to_owned(),
    }
}

/// Ids of runners and requests that are made from a name.
trait FromName {
    fn from_name(name: &str) -> Uuid;
}

impl FromName for Uuid {
    fn from_name(name: &str) -> Uuid {
        let high = u128::from(internal::hash(1, name.as_bytes()));
        Uuid::from_u128(high << 64 | u128::from(internal::hash(2, name.as_bytes())))
    }
}

fn commit(id: RunId) -> Commit {
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

fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Put {
    Put { key: key.as_ref().to_vec(), value: value.as_ref().to_vec() }
}

fn range(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> KeyRange {
    KeyRange { start: start.as_ref().to_vec(), end: end.as_ref().to_vec() }
}

fn park(available_at: Option<Timestamp>) -> Patch {
    let (status, waiting) = (RunStatus::Sleeping, "approval".to_owned());
    Patch::Park { status, available_at, waiting, attempts: 1 }
}

fn finish(status: RunStatus) -> Patch {
    Patch::Finish { status, output: Some(b"output".to_vec()), error: None }
}

fn roll_back() -> Patch {
    Patch::RollBack { ending: RunStatus::Cancelled, error: None }
}

fn pause() -> Patch {
    Patch::Pause { reason: "the code differs".to_owned() }
}

fn message(id: RunId) -> Delivery {
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

fn send(id: RunId, key: &str) -> Effect {
    Effect::Send { delivery: message(id), key: key.into(), receipt: b"sent".to_vec() }
}

fn delivered(id: RunId, seq: u64) -> Delivered {
    Delivered { receipt: Receipt::Delivered, run: Some(id), seq: Some(seq) }
}

fn migrating_twice_changes_nothing(world: &World) {
    let id = world.running();
    world.store.migrate().expect("migrate");
    assert_eq!(world.row(id).status, RunStatus::Running);
}

fn a_start_makes_a_pending_run_that_is_due_now(world: &World) {
    let started = world.start(NewRun { claim: false, ..world.new_run() });
    assert_eq!((started.attached, started.claimed), (false, false));
    assert_eq!(started.available_at, Some(START));
    let row = world.row(started.id);
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(START)));
    assert_eq!((row.generation, row.attempts, row.recoveries), (1, 1, 0));
    assert_eq!(world.due(0), [started.id]);
}

fn a_delayed_start_is_due_at_its_time(world: &World) {
    let new = NewRun { claim: false, available_at: Some(at(500)), ..world.new_run() };
    let started = world.start(new);
    assert_eq!(started.available_at, Some(at(500)));
    assert!(world.due(499).is_empty());
    assert_eq!(world.due(500), [started.id]);
}

fn a_claimed_start_is_running_and_not_due(world: &World) {
    let started = world.start(world.new_run());
    assert_eq!((started.claimed, started.available_at), (true, None));
    let row = world.row(started.id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, None));
    assert!(world.due(1_000).is_empty());
}

fn a_start_without_fence_or_shard_is_not_claimed(world: &World) {
    let stranger = register(&*world.store, "stranger", START);
    let stale = Fence { epoch: world.fence.epoch + 100, ..world.fence };
    for fence in [None, Some(stale), Some(stranger)] {
        let writes = vec![Write::Start(Box::new(world.new_run()))];
        let outcomes =
            world.store.commit(&Batch { fence, now: START, writes }).expect("commit").outcomes;
        let [Outcome::Started(started)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        assert_eq!((started.claimed, started.available_at), (false, Some(START)), "{fence:?}");
        assert_eq!(world.row(started.id).status, RunStatus::Pending);
    }
}

fn a_delayed_start_is_never_claimed(world: &World) {
    let started = world.start(NewRun { available_at: Some(at(500)), ..world.new_run() });
    assert!(!started.claimed);
    assert_eq!(world.row(started.id).status, RunStatus::Pending);
}

fn keyed(world: &World, key: &str) -> NewRun {
    NewRun { key: Some(key.to_owned()), ..world.new_run() }
}

fn a_second_start_of_a_key_attaches_and_compares_the_input(world: &World) {
    let first = world.start(keyed(world, "order-1"));
    let same = world.start(keyed(world, "order-1"));
    assert_eq!((same.id, same.attached, same.input_differs), (first.id, true, false));
    assert_eq!((same.claimed, same.available_at), (false, None));
    let other = world.start(NewRun { input: b"other".to_vec(), ..keyed(world, "order-1") });
    assert_eq!((other.id, other.attached, other.input_differs), (first.id, true, true));
    // The key stays when the run has ended.
    world.finish(first.id);
    assert!(world.start(keyed(world, "order-1")).attached);
    assert_eq!(world.store.count(&Filter::default()).expect("count"), 1);
}

fn two_starts_of_one_key_in_one_batch_make_one_run(world: &World) {
    let (first, second) = (keyed(world, "order-1"), keyed(world, "order-1"));
    let id = first.id;
    let writes = vec![Write::Start(Box::new(first)), Write::Start(Box::new(second))];
    let outcomes = world.batch(0, writes);
    let [Outcome::Started(first), Outcome::Started(second)] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert_eq!((first.id, first.attached), (id, false));
    assert_eq!((second.id, second.attached, second.claimed), (id, true, false));
    assert_eq!(world.store.count(&Filter::default()).expect("count"), 1);
}

fn keys_are_unique_per_workflow_only(world: &World) {
    let first = world.start(keyed(world, "order-1"));
    let second = world.start(NewRun { workflow: "refund".into(), ..keyed(world, "order-1") });
    let third = world.start(keyed(world, "order-2"));
    assert!(!first.attached && !second.attached && !third.attached);
}

fn a_start_with_a_used_id_attaches_and_with_a_used_number_is_refused(world: &World) {
    let new = world.new_run();
    world.start(new.clone());
    assert!(world.start(new.clone()).attached);
    let twin = Uuid::from_u128(new.id.as_uuid().as_u128() ^ 1);
    let twin = RunId::from_uuid(twin).expect("still of version 7");
    assert_eq!(twin.no(), new.id.no());
    let refused = world.one(0, Write::Start(Box::new(NewRun { id: twin, ..world.new_run() })));
    assert_eq!(refused, Outcome::Refused(Refusal::Gone));
    assert_eq!(world.store.run(&Target::Id(twin)).expect("run"), None);
}

fn every_field_of_a_start_is_kept(world: &World) {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let new = NewRun {
        workflow: "bestätigen".into(),
        version: 7,
        key: Some("ключ\0'\"".to_owned()),
        pool: "gpu".into(),
        deadline_at: Some(at(9_000)),
        tags: vec![tag("zeta", "1"), tag("alpha", "ü"), tag("alpha", "2")],
        input: vec![0, 255, 0, 1],
        ..world.new_run()
    };
    world.start(new.clone());
    let row = world.row(new.id);
    assert_eq!((row.id, row.workflow, row.version), (new.id, new.workflow, 7));
    assert_eq!((row.key, row.pool, row.shard), (new.key, new.pool, new.id.shard_in(PoolNo(1))));
    assert_eq!((row.deadline_at, row.tags, row.input), (new.deadline_at, new.tags, new.input));
    assert_eq!((row.created_at, row.updated_at, row.finished_at), (START, START, None));
    assert_eq!((row.output, row.error, row.waiting), (None, None, None));
    assert_eq!((row.ending, row.cancel_requested), (None, None));
    assert_eq!((row.inbox_seq, row.last_number), (0, 0));
}

fn a_target_is_found_by_id_and_by_key_only(world: &World) {
    let id = world.start(keyed(world, "order-1")).id;
    let by_key = |workflow: &str, key: &str| {
        let target = Target::Key { workflow: workflow.to_owned(), key: key.to_owned() };
        world.store.run(&target).expect("run").map(|row| row.id)
    };
    assert_eq!(by_key("checkout", "order-1"), Some(id));
    assert_eq!(by_key("checkout", "order-2"), None);
    assert_eq!(by_key("refund", "order-1"), None);
    let unknown = Target::Id(world.ids.next(START));
    assert_eq!(world.store.run(&unknown).expect("run"), None);
}

fn entries_come_back_in_byte_order(world: &World) {
    let id = world.running();
    let keys: [&[u8]; 8] = [b"\xff", b"b", b"a\0", b"a", b"", b"\0", b"a\xff", b"\x7f\x80"];
    let puts = keys.iter().map(|key| put(key, key)).collect();
    world.accept(Commit { puts, ..commit(id) });
    let mut sorted = keys.map(<[u8]>::to_vec).to_vec();
    sorted.sort();
    assert_eq!(world.keys(id), sorted);
}

fn a_put_replaces_what_was_there(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("a", "1"), put("a", "2")], ..commit(id) });
    world.accept(Commit { puts: vec![put("a", "3")], ..commit(id) });
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a", "3")]);
}

fn a_range_removes_exactly_its_keys(world: &World) {
    let id = world.running();
    let keys: [&[u8]; 9] =
        [b"a", b"b", b"b\0", b"b\0\0", b"b\x01", b"b\xff", b"b\xff\xff", b"c", b"\xff"];
    let puts = keys.iter().map(|key| put(key, "")).collect();
    world.accept(Commit { puts, ..commit(id) });
    let deletes = vec![range(b"b\0", b"b\xff"), range("x", "a"), range("c", "c")];
    world.accept(Commit { deletes, ..commit(id) });
    let left: [&[u8]; 6] = [b"a", b"b", b"b\xff", b"b\xff\xff", b"c", b"\xff"];
    assert_eq!(world.keys(id), left);
    world.accept(Commit { deletes: vec![range("", b"\xff")], ..commit(id) });
    assert_eq!(world.keys(id), [b"\xff"]);
}

fn deletes_come_before_puts(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("a1", "old"), put("a2", "old")], ..commit(id) });
    let (deletes, puts) = (vec![range("a", "b")], vec![put("a1", "new")]);
    world.accept(Commit { deletes, puts, ..commit(id) });
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a1", "new")]);
}

fn history_is_paged_by_key(world: &World) {
    let id = world.running();
    let puts = (0..25u8).map(|i| put([i], [i])).collect::<Vec<_>>();
    world.accept(Commit { puts: puts.clone(), ..commit(id) });
    let (mut read, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = world.store.history(id.no(), after.as_deref(), 10).expect("history");
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        read.extend(page);
    }
    assert_eq!(read, puts);
    assert!(world.store.history(id.no(), None, 0).expect("history").is_empty());
}

fn histories_do_not_mix(world: &World) {
    let (first, second) = (world.running(), world.running());
    world.accept(Commit { puts: vec![put("a", "first")], ..commit(first) });
    world.accept(Commit { puts: vec![put("a", "second"), put("b", "")], ..commit(second) });
    world.accept(Commit { deletes: vec![range("", "z")], ..commit(second) });
    assert_eq!(world.keys(first), [b"a"]);
    assert!(world.keys(second).is_empty());
}

fn big_values_survive(world: &World) {
    let id = world.running();
    let value = (0..3_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>();
    world.accept(Commit { puts: vec![put("big", &value)], ..commit(id) });
    assert!(world.store.history(id.no(), None, 1).expect("history")[0].value == value);
}

fn a_refused_commit_changes_nothing_and_the_rest_stands(world: &World) {
    let (first, second, third) = (world.running(), world.running(), world.running());
    let before = world.row(second);
    let refused = Commit {
        generation: 2,
        puts: vec![put("a", "")],
        state: vec![("s".to_owned(), Vec::new())],
        effects: vec![send(first, "send")],
        patch: finish(RunStatus::Completed),
        ..commit(second)
    };
    let fine = |id| Commit { puts: vec![put("a", "")], ..commit(id) };
    let writes = [fine(first), refused, fine(third)].map(|c| Write::Commit(Box::new(c)));
    let outcomes = world.batch(1, writes.to_vec());
    assert_eq!(outcomes[0], Outcome::Committed(Vec::new()));
    assert_eq!(outcomes[1], Outcome::Refused(Refusal::Gone));
    assert_eq!(outcomes[2], Outcome::Committed(Vec::new()));
    assert_eq!(world.row(second), before);
    assert!(world.keys(second).is_empty() && world.seqs(first).is_empty());
    assert!(world.store.state(second.no()).expect("state").is_empty());
    assert_eq!((world.keys(first).len(), world.keys(third).len()), (1, 1));
}

fn an_unknown_run_is_gone(world: &World) {
    let unknown = world.ids.next(START);
    assert_eq!(world.refuse(commit(unknown)), Refusal::Gone);
    assert_eq!(world.store.load(unknown.no()).expect("load"), None);
    assert!(world.store.inbox(unknown.no(), 0).expect("inbox").is_empty());
}

fn another_generation_is_gone(world: &World) {
    let id = world.running();
    assert_eq!(world.refuse(Commit { generation: 0, ..commit(id) }), Refusal::Gone);
    assert_eq!(world.refuse(Commit { generation: 2, ..commit(id) }), Refusal::Gone);
    world.accept(commit(id));
}

fn a_finished_run_is_gone(world: &World) {
    for status in [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled] {
        let id = world.running();
        world.accept(Commit { patch: finish(status), ..commit(id) });
        assert_eq!(world.refuse(commit(id)), Refusal::Gone);
        assert_eq!(world.refuse(Commit { results_only: true, ..commit(id) }), Refusal::Gone);
    }
}

fn numbers_must_follow(world: &World) {
    let id = world.running();
    let numbered = |last_number, numbers| Commit { last_number, numbers, ..commit(id) };
    let run = |c| Commit { patch: Patch::Run { inbox_seq: 0 }, ..c };
    world.accept(run(numbered(2, 2)));
    assert_eq!(world.refuse(numbered(4, 1)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(2, 2)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(1, 2)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(1, 0)), Refusal::Gap { stored: 2 });
    world.accept(numbered(2, 0));
    world.accept(numbered(3, 1));
    assert_eq!(world.refuse(numbered(3, 1)), Refusal::Gap { stored: 3 });
    world.accept(run(numbered(5, 2)));
    assert_eq!(world.row(id).last_number, 5);
}

fn a_run_tried_again_as_a_whole_may_go_back_in_numbers(world: &World) {
    let id = world.running();
    world.accept(Commit { last_number: 5, numbers: 5, puts: vec![put("a", "")], ..commit(id) });
    let patch = Patch::Park {
        status: RunStatus::Pending,
        available_at: Some(at(100)),
        waiting: "its next attempt".to_owned(),
        attempts: 2,
    };
    world.accept(Commit { last_number: 5, patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.attempts), (RunStatus::Pending, 2));
    // To which number it goes back is known to the owner, who reads the entries.
    world.accept(Commit {
        last_number: 3,
        numbers: 1,
        deletes: vec![range("a", "b")],
        ..commit(id)
    });
}

fn the_last_number_is_exact_when_parked(world: &World) {
    let id = world.running();
    world.accept(Commit { last_number: 3, numbers: 3, ..commit(id) });
    assert!(world.row(id).last_number <= 3);
    world.accept(Commit { last_number: 4, numbers: 1, patch: park(None), ..commit(id) });
    assert_eq!(world.row(id).last_number, 4);
    world.accept(Commit { last_number: 5, numbers: 1, ..commit(id) });
    assert_eq!(world.row(id).last_number, 5);
    world.control(id, Control::Pause);
    let results = Commit { last_number: 6, numbers: 1, results_only: true, ..commit(id) };
    world.accept(results);
    assert_eq!(world.row(id).last_number, 6);
}

fn a_batch_without_fence_commits_nothing_but_other_writes_stand(world: &World) {
    let (id, other) = (world.running(), world.parked(None));
    let stale = Fence { epoch: world.fence.epoch + 1, ..world.fence };
    let unknown = Fence { runner: Uuid::from_name("unknown"), ..world.fence };
    for (i, fence) in [None, Some(stale), Some(unknown)].into_iter().enumerate() {
        let commit = Commit { puts: vec![put("a", "")], ..commit(id) };
        let writes = vec![
            Write::Commit(Box::new(commit)),
            Write::Deliver(Box::new(message(other))),
            Write::Start(Box::new(world.new_run())),
        ];
        let batch = Batch { fence, now: START, writes };
        let outcomes = world.store.commit(&batch).expect("commit").outcomes;
        assert_eq!(outcomes[0], Outcome::Refused(Refusal::Fenced));
        assert_eq!(outcomes[1], Outcome::Delivered(delivered(other, i as u64 + 1)));
        assert!(matches!(&outcomes[2], Outcome::Started(s) if !s.claimed));
    }
    assert!(world.keys(id).is_empty());
}

/// Another runner, at a time when the first one's lease is over.
fn take_over(world: &World, wanted: &ShardSet) -> (Fence, ShardSet) {
    let now = START + LEASE;
    let fence = register(&*world.store, "second", now);
    let held = world.store.take_shards(fence, now, wanted, &[]).expect("take_shards");
    (fence, held.expect("its own fence holds"))
}

fn a_runner_that_registers_again_commits_nothing_for_shards_it_lost(world: &World) {
    let id = world.running();
    world.accept(commit(id));
    let now = START;
    let again = NewRunner::new(world.fence.runner, "again", now, LEASE);
    let fence = world.store.register_runner(&again).expect("register");
    let batch = |fence| Batch {
        fence: Some(fence),
        now,
        writes: vec![Write::Commit(Box::new(commit(id)))],
    };
    let outcomes = world.store.commit(&batch(fence)).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Refused(Refusal::Fenced)]);
    let held = world.store.take_shards(fence, now, &ShardSet::of_default_pool(), &[]);
    assert_eq!(held.expect("take"), Some(ShardSet::of_default_pool()));
    let outcomes = world.store.commit(&batch(fence)).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Committed(Vec::new())]);
}

fn a_batch_under_a_raised_epoch_commits_nothing(world: &World) {
    let id = world.running();
    world.accept(commit(id));
    let (second, held) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(held, ShardSet::of_default_pool());
    let stale = Commit { puts: vec![put("a", "stale")], ..commit(id) };
    assert_eq!(world.refuse(stale), Refusal::Fenced);
    assert!(world.keys(id).is_empty());
    let writes = vec![Write::Commit(Box::new(commit(id)))];
    let batch = Batch { fence: Some(second), now: at(20_000), writes };
    let outcomes = world.store.commit(&batch).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Committed(Vec::new())]);
    let now = at(20_000);
    assert!(!world.store.heartbeat(world.fence, now, LEASE).expect("heartbeat"));
    assert_eq!(
        world.store.take_shards(world.fence, now, &ShardSet::of_default_pool(), &[]).expect("take"),
        None
    );
    world.store.release_shards(world.fence, &ShardSet::of_default_pool()).expect("release");
    world.store.deregister_runner(world.fence).expect("deregister");
    assert!(world.store.heartbeat(second, now, LEASE).expect("heartbeat"));
    let held = world.store.take_shards(second, now, &ShardSet::EMPTY, &[]).expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
}

fn a_takeover_frees_all_shards_and_counts_recoveries(world: &World) {
    let (running, parked) = (world.running(), world.parked(None));
    let other = loop {
        let id = world.running();
        if id.shard_in(PoolNo::DEFAULT) != running.shard_in(PoolNo::DEFAULT) {
            break id;
        }
    };
    world.accept(Commit { patch: roll_back(), ..commit(other) });
    let wanted = [running.shard_in(PoolNo::DEFAULT)].into_iter().collect::<ShardSet>();
    let (second, held) = take_over(world, &wanted);
    assert_eq!(held, wanted);
    assert_eq!(world.row(running).recoveries, 1);
    assert_eq!(world.row(parked).recoveries, 0);
    assert_eq!(world.row(other).recoveries, 1, "its owner is lost, whoever takes its shard");
    let runners = world.store.runners().expect("runners");
    let held_by = |name| runners.iter().find(|row| row.name == name).map(|row| row.shards.clone());
    assert_eq!(held_by("first"), Some(ShardSet::EMPTY));
    assert_eq!(held_by("second"), Some(wanted));
    let held = world
        .store
        .take_shards(second, at(11_000), &ShardSet::of_default_pool(), &[])
        .expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
    assert_eq!((world.row(running).recoveries, world.row(other).recoveries), (1, 1));
}

fn a_live_holder_keeps_its_shards(world: &World) {
    let last_ms = START + LEASE - Duration::from_millis(1);
    let second = register(&*world.store, "second", last_ms);
    let held =
        world.store.take_shards(second, last_ms, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(ShardSet::EMPTY));
    assert!(world.store.heartbeat(world.fence, last_ms, LEASE).expect("heartbeat"));
}

/// A store need not know the time: a runner whose lease is written by a clock that is hours ahead is known to
/// be gone by who has watched it.
fn a_holder_that_is_gone_is_taken_over_unless_it_has_prolonged_its_lease(world: &World) {
    let (hours, all) = (Duration::from_secs(7_200), ShardSet::of_default_pool());
    assert!(world.store.heartbeat(world.fence, START + hours, LEASE).expect("heartbeat"));
    let row = || {
        let mut rows = world.store.runners().expect("runners");
        rows.retain(|row| row.id == world.fence.runner);
        rows.remove(0)
    };
    assert_eq!(row().lease, LEASE);
    let gone = [row().as_gone()];
    assert_eq!(gone[0].lease_until, START + hours + LEASE);
    let second = register(&*world.store, "second", START);
    let later = START + hours + Duration::from_millis(1);
    assert!(world.store.heartbeat(world.fence, later, LEASE).expect("heartbeat"));
    let held = world.store.take_shards(second, START, &all, &gone).expect("take");
    assert_eq!(held, Some(ShardSet::EMPTY));
    let gone = [row().as_gone()];
    let held = world.store.take_shards(second, START, &all, &gone).expect("take");
    assert_eq!(held, Some(all));
    assert_eq!(row().lease_until, START, "its lease is over for everybody");
    assert!(!world.store.heartbeat(world.fence, later, LEASE).expect("heartbeat"));
}

fn released_shards_belong_to_nobody(world: &World) {
    let released = (0..10).map(ShardId).collect::<ShardSet>();
    world.store.release_shards(world.fence, &released).expect("release");
    let second = register(&*world.store, "second", START);
    let held =
        world.store.take_shards(second, START, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(released.clone()));
    // Its fence still holds, for the shards it has kept.
    let id = loop {
        let id = world.start(world.new_run()).id;
        if !released.contains(id.shard_in(PoolNo::DEFAULT)) {
            break id;
        }
    };
    world.accept(commit(id));
}

fn a_shard_that_was_given_back_counts_no_recovery(world: &World) {
    let (id, all) = (world.running(), ShardSet::of_default_pool());
    let given_back = world.store.release_shards(world.fence, &all);
    given_back.expect("release");
    let second = register(&*world.store, "second", START);
    let take = |fence| world.store.take_shards(fence, START, &all, &[]);
    assert_eq!(take(second).expect("take"), Some(all.clone()));
    assert_eq!(world.row(id).recoveries, 0);
    let signed_off = world.store.deregister_runner(second);
    signed_off.expect("deregister");
    assert_eq!(take(world.fence).expect("take"), Some(all.clone()));
    assert_eq!(world.row(id).recoveries, 0);
}

fn a_runner_that_deregisters_frees_everything(world: &World) {
    let id = world.running();
    world.store.deregister_runner(world.fence).expect("deregister");
    assert!(world.store.runners().expect("runners").is_empty());
    assert_eq!(world.refuse(commit(id)), Refusal::Fenced);
    let second = register(&*world.store, "second", START);
    let held =
        world.store.take_shards(second, START, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
}

fn a_runner_that_returns_gets_a_fresh_epoch(world: &World) {
    let id = world.running();
    let again = register_as(&*world.store, world.fence.runner, "first", at(1));
    assert!(again.epoch > world.fence.epoch);
    assert_eq!(world.refuse(commit(id)), Refusal::Fenced);
    let runners = world.store.runners().expect("runners");
    assert_eq!((runners.len(), runners[0].shards.len()), (1, 0));
    world.store.deregister_runner(again).expect("deregister");
    let third = register_as(&*world.store, world.fence.runner, "first", at(2));
    assert!(third.epoch > again.epoch, "an epoch is not used twice");
}

fn a_heartbeat_prolongs_the_lease(world: &World) {
    assert!(world.store.heartbeat(world.fence, at(5_000), LEASE).expect("heartbeat"));
    let runners = world.store.runners().expect("runners");
    assert_eq!(runners[0].lease_until, at(5_000) + LEASE);
    assert_eq!((runners[0].id, runners[0].epoch), (world.fence.runner, world.fence.epoch));
    let (_, held) = take_over(world, &ShardSet::of_default_pool());
    assert!(held.is_empty());
}

fn parking_clears_the_recoveries(world: &World) {
    let id = world.running();
    let (second, _) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(world.row(id).recoveries, 1);
    let parked = Commit { patch: park(None), ..commit(id) };
    let batch = Batch {
        fence: Some(second),
        now: at(20_000),
        writes: vec![Write::Commit(Box::new(parked))],
    };
    world.store.commit(&batch).expect("commit");
    assert_eq!(world.row(id).recoveries, 0);
}

fn running_clears_the_due_time_and_the_recoveries(world: &World) {
    let id = world.running();
    let (second, _) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(world.row(id).recoveries, 1);
    let writes = vec![
        Write::Commit(Box::new(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) })),
        Write::Deliver(Box::new(message(id))),
    ];
    let batch = Batch { fence: Some(second), now: at(20_000), writes };
    world.store.commit(&batch).expect("commit");
    assert_eq!(world.row(id).recoveries, 0);
    assert_eq!(world.row(id).available_at, Some(AT_ONCE));
    let run = Commit { patch: Patch::Run { inbox_seq: 1 }, ..commit(id) };
    let writes = vec![Write::Commit(Box::new(run))];
    world.store.commit(&Batch { fence: Some(second), now: at(20_001), writes }).expect("commit");
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, None));
}

fn running_keeps_the_due_time_if_a_message_was_not_seen(world: &World) {
    let id = world.parked(None);
    world.deliver(message(id));
    let run = |inbox_seq| Commit { patch: Patch::Run { inbox_seq }, ..commit(id) };
    world.accept(run(0));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, Some(AT_ONCE)));
    assert_eq!((row.waiting, world.due(2)), (None, vec![id]));
    world.accept(run(1));
    assert_eq!(world.row(id).available_at, None);
}

fn delivery_after_parking_makes_the_run_due(world: &World) {
    for available_at in [None, Some(at(90_000))] {
        let id = world.parked(available_at);
        assert_eq!(world.deliver(message(id)), delivered(id, 1));
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
        assert_eq!(row.inbox_seq, 1);
        assert!(world.due(2).contains(&id));
    }
}

fn delivery_before_parking_refuses_it_with_the_messages(world: &World) {
    let id = world.running();
    for body in ["one", "two", "three"] {
        world.deliver(Delivery { body: body.into(), ..message(id) });
    }
    let before = world.row(id);
    let parking = Commit { inbox_seq: Some(1), patch: park(None), ..commit(id) };
    let Refusal::InboxMoved { rows, seq } = world.refuse(parking) else { panic!("parked") };
    assert_eq!(seq, 3);
    let unseen = rows.into_iter().map(|row| (row.seq, row.body)).collect::<Vec<_>>();
    assert_eq!(unseen, [(2, b"two".to_vec()), (3, b"three".to_vec())]);
    assert_eq!(world.row(id), before);
    let seen = Commit { inbox_seq: Some(3), patch: park(Some(at(70))), ..commit(id) };
    world.accept(seen);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(at(70))));
}

/// Its owner has not heard of a message that is gone: it must be told how far the inbox goes.
fn a_refusal_says_how_far_an_inbox_without_rows_goes(world: &World) {
    let id = world.running();
    world.deliver(message(id));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    let parking = |seq| Commit { inbox_seq: Some(seq), patch: park(None), ..commit(id) };
    let refusal = world.refuse(parking(0));
    assert_eq!(refusal, Refusal::InboxMoved { rows: Vec::new(), seq: 1 });
    world.accept(parking(1));
}

fn delivery_and_parking_in_one_batch_make_the_run_due(world: &World) {
    for parks_first in [true, false] {
        let id = world.running();
        let parking = Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) };
        let parking = Write::Commit(Box::new(parking));
        let delivery = Write::Deliver(Box::new(message(id)));
        let writes = if parks_first { vec![parking, delivery] } else { vec![delivery, parking] };
        world.batch(5, writes);
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
        assert_eq!(world.seqs(id), [1]);
    }
}

fn deliveries_of_one_batch_get_consecutive_places(world: &World) {
    let (id, other) = (world.parked(None), world.running());
    let deliver =
        |body: &str| Write::Deliver(Box::new(Delivery { body: body.into(), ..message(id) }));
    let sending = Commit { effects: vec![send(id, "k1"), send(id, "k2")], ..commit(other) };
    let writes = vec![deliver("one"), Write::Commit(Box::new(sending)), deliver("four")];
    let outcomes = world.batch(5, writes);
    assert_eq!(outcomes[0], Outcome::Delivered(delivered(id, 1)));
    assert_eq!(
        outcomes[1],
        Outcome::Committed(vec![
            EffectDone::Sent(delivered(id, 2)),
            EffectDone::Sent(delivered(id, 3))
        ])
    );
    assert_eq!(outcomes[2], Outcome::Delivered(delivered(id, 4)));
    let inbox = world.store.inbox(id.no(), 0).expect("inbox");
    let bodies = inbox.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>();
    assert_eq!(bodies, [&b"one"[..], b"yes", b"yes", b"four"]);
    assert_eq!(world.deliver(message(id)), delivered(id, 5));
    assert_eq!(world.row(id).inbox_seq, 5);
}

fn a_delivery_to_a_run_started_in_the_same_batch_arrives(world: &World) {
    for claim in [true, false] {
        let key = if claim { "order-1" } else { "order-2" };
        let new = NewRun { claim, ..keyed(world, key) };
        let id = new.id;
        let target = Target::Key { workflow: "checkout".to_owned(), key: key.to_owned() };
        let by_key = Delivery { target, ..message(id) };
        let writes = vec![
            Write::Start(Box::new(new)),
            Write::Deliver(Box::new(by_key)),
            Write::Deliver(Box::new(message(id))),
        ];
        let outcomes = world.batch(5, writes);
        assert_eq!(outcomes[1], Outcome::Delivered(delivered(id, 1)));
        assert_eq!(outcomes[2], Outcome::Delivered(delivered(id, 2)));
        assert_eq!(world.row(id).available_at, Some(AT_ONCE));
        // What the owner believes about its new run is no longer true.
        let parking = Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) };
        assert!(
            matches!(world.refuse(parking), Refusal::InboxMoved { rows, .. } if rows.len() == 2)
        );
    }
}

fn a_delivery_does_not_hurry_a_delayed_start(world: &World) {
    let new = NewRun { claim: false, available_at: Some(at(500)), ..world.new_run() };
    let id = world.start(new).id;
    assert_eq!(world.deliver(message(id)), delivered(id, 1));
    assert_eq!(world.row(id).available_at, Some(at(500)));
}

fn a_delivery_does_not_wake_a_paused_run(world: &World) {
    let (by_request, by_owner) = (world.parked(None), world.running());
    world.control(by_request, Control::Pause);
    world.accept(Commit { patch: pause(), ..commit(by_owner) });
    for id in [by_request, by_owner] {
        assert_eq!(world.deliver(message(id)), delivered(id, 1));
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Paused, None));
    }
    assert!(world.due(90_000).is_empty());
}

fn a_delivery_makes_a_running_run_due(world: &World) {
    let id = world.running();
    world.deliver(message(id));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, Some(AT_ONCE)));
    // The owner's commits that do not look at the inbox go on.
    world.accept(Commit { puts: vec![put("a", "")], ..commit(id) });
    assert_eq!(world.due(2), [id]);
}

fn a_consumed_message_is_gone_and_the_others_stay(world: &World) {
    let id = world.running();
    for _ in 0..4 {
        world.deliver(message(id));
    }
    world.accept(Commit { consumed: vec![3, 1, 99], ..commit(id) });
    assert_eq!(world.seqs(id), [2, 4]);
    assert_eq!(world.deliver(message(id)), delivered(id, 5));
}

fn the_inbox_is_read_after_a_place(world: &World) {
    let (id, request) = (world.running(), Uuid::from_name("request"));
    world.deliver(message(id));
    world.deliver(Delivery { request: Some(request), ..message(id) });
    let rows = world.store.inbox(id.no(), 1).expect("inbox");
    let row = InboxRow {
        kind: InboxKind::Message,
        wait: None,
        seq: 2,
        name: "approval".to_owned(),
        body: b"yes".to_vec(),
        request: Some(request),
        sent_at: at(2),
        on_end: None,
    };
    assert_eq!(rows, [row]);
    assert!(world.store.inbox(id.no(), 2).expect("inbox").is_empty());
}

fn a_message_with_a_used_dedupe_key_is_a_duplicate(world: &World) {
    let (id, other) = (world.running(), world.running());
    let keyed = |id, key: &str| Delivery { dedupe: Some(key.to_owned()), ..message(id) };
    let duplicate = Delivered { receipt: Receipt::Duplicate, run: Some(id), seq: None };
    assert_eq!(world.deliver(keyed(id, "a")), delivered(id, 1));
    assert_eq!(world.deliver(keyed(id, "a")), duplicate);
    assert_eq!(world.deliver(keyed(id, "b")), delivered(id, 2));
    assert_eq!(world.deliver(keyed(other, "a")), delivered(other, 1));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    assert_eq!(world.deliver(keyed(id, "a")), duplicate, "also after the first was read");
    assert_eq!(world.row(id).inbox_seq, 2);
    let twice = [keyed(id, "c"), keyed(id, "c")].map(|d| Write::Deliver(Box::new(d)));
    let outcomes = world.batch(5, twice.to_vec());
    assert_eq!(outcomes[0], Outcome::Delivered(delivered(id, 3)));
    assert_eq!(outcomes[1], Outcome::Delivered(duplicate.clone()));
    // It was delivered, so its sender is not told of a failure.
    world.finish(id);
    assert_eq!(world.deliver(keyed(id, "a")), duplicate);
}

fn an_inbox_has_a_bound(world: &World) {
    let id = world.running();
    let bounded = || Delivery {
        inbox_max: 2,
        dedupe: Some(world.ids.next(START).to_string()),
        ..message(id)
    };
    let full = Delivered { receipt: Receipt::Full, run: Some(id), seq: None };
    assert_eq!(world.deliver(bounded()), delivered(id, 1));
    assert_eq!(world.deliver(bounded()), delivered(id, 2));
    let refused = bounded();
    assert_eq!(world.deliver(refused.clone()), full);
    assert_eq!((world.row(id).inbox_seq, world.letters(None).len()), (2, 0));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    assert_eq!(world.deliver(refused), delivered(id, 3), "it was not delivered before");
    assert_eq!(world.deliver(bounded()), full);
}

fn a_message_to_nobody_or_to_a_finished_run_is_not_delivered(world: &World) {
    let unknown = world.deliver(message(world.ids.next(START)));
    assert_eq!(unknown, Delivered { receipt: Receipt::Unknown, run: None, seq: None });
    let id = world.running();
    world.finish(id);
    let finished = Delivered { receipt: Receipt::Finished, run: Some(id), seq: None };
    assert_eq!(world.deliver(message(id)), finished);
    assert!(world.letters(None).is_empty(), "a client is told and keeps its message");
    assert_eq!((world.row(id).inbox_seq, world.seqs(id).len()), (0, 0));
}

fn an_effect_delivers_and_writes_its_receipt(world: &World) {
    let (sender, receiver) = (world.running(), world.parked(None));
    let sending = Commit { effects: vec![send(receiver, "send")], ..commit(sender) };
    assert_eq!(world.accept(sending), [delivered(receiver, 1)]);
    let history = world.store.history(sender.no(), None, 10).expect("history");
    assert_eq!(history, [put("send", b"sent\0")]);
    assert_eq!(world.row(receiver).available_at, Some(AT_ONCE));
}

fn an_undeliverable_effect_is_a_dead_letter_and_never_refuses(world: &World) {
    let (sender, ended, full) = (world.running(), world.running(), world.running());
    world.finish(ended);
    let bounded = |id| Delivery { inbox_max: 0, ..message(id) };
    let to_full =
        Effect::Send { delivery: bounded(full), key: b"full".to_vec(), receipt: Vec::new() };
    let effects = vec![send(world.ids.next(START), "unknown"), send(ended, "ended"), to_full];
    let answers = world.accept(Commit { effects, ..commit(sender) });
    let receipts = answers.iter().map(|answer| answer.receipt).collect::<Vec<_>>();
    assert_eq!(receipts, [Receipt::Unknown, Receipt::Finished, Receipt::Full]);
    let history = world.store.history(sender.no(), None, 10).expect("history");
    assert_eq!(
        history,
        [put("ended", b"sent\x03"), put("full", b"\x04"), put("unknown", b"sent\x02")]
    );
    let letters = world.letters(None);
    let runs = letters.iter().map(|letter| letter.run).collect::<Vec<_>>();
    assert_eq!(runs, [None, Some(ended.no()), Some(full.no())]);
    assert!(letters.iter().all(|letter| letter.body == b"yes" && letter.at == at(1)));
}

fn a_run_can_send_to_itself(world: &World) {
    let id = world.running();
    let sending = Commit {
        effects: vec![send(id, "send")],
        inbox_seq: Some(0),
        patch: park(None),
        ..commit(id)
    };
    assert_eq!(world.accept(sending), [delivered(id, 1)]);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
}

fn a_refused_commit_sends_nothing(world: &World) {
    let (sender, receiver) = (world.running(), world.parked(None));
    world.control(sender, Control::Cancel { rollback: true });
    for results_only in [false, true] {
        let effects = vec![send(receiver, "send")];
        let refusal = world.refuse(Commit { results_only, effects, ..commit(sender) });
        assert_eq!(refusal, Refusal::CancelRequested { rollback: true });
    }
    assert!(world.seqs(receiver).is_empty() && world.keys(sender).is_empty());
}

fn unread_messages_of_a_finished_run_are_dead_letters(world: &World) {
    let id = world.running();
    for body in ["one", "two", "three"] {
        world.deliver(Delivery { body: body.into(), ..message(id) });
    }
    let patch = finish(RunStatus::Completed);
    world.accept(Commit { consumed: vec![2], patch, ..commit(id) });
    assert!(world.seqs(id).is_empty());
    let letters = world.letters(Some(id));
    let bodies = letters.iter().map(|letter| letter.body.as_slice()).collect::<Vec<_>>();
    assert_eq!(bodies, [&b"one"[..], b"three"]);
    assert!(letters.iter().all(|letter| letter.name == "approval" && !letter.reason.is_empty()));
}

fn dead_letters_are_listed_in_order_of_arrival(world: &World) {
    let (first, second) = (world.running(), world.running());
    for id in [first, second, first] {
        world.deliver(message(id));
    }
    world.finish(second);
    world.finish(first);
    let letters = world.letters(None);
    let runs = letters.iter().map(|letter| letter.run).collect::<Vec<_>>();
    assert_eq!(runs, [Some(second.no()), Some(first.no()), Some(first.no())]);
    assert!(letters.is_sorted_by(|a, b| a.no < b.no));
    assert_eq!(world.letters(Some(second)).len(), 1);
    assert_eq!(
        world.store.dead_letters(&LetterFilter::default(), 0, 2).expect("dead_letters").len(),
        2
    );
}

fn request(world: &World, id: RunId, name: &str) -> Uuid {
    let request = Uuid::from_name(name);
    let receipt = world.deliver(Delivery { request: Some(request), ..message(id) }).receipt;
    assert_eq!(receipt, Receipt::Delivered);
    request
}

fn reply(request: Uuid, body: &str) -> Effect {
    Effect::Reply { request, body: body.into() }
}

fn the_first_reply_wins(world: &World) {
    let id = world.running();
    let (first, second) = (request(world, id, "first"), request(world, id, "second"));
    let unknown = Uuid::from_name("unknown");
    let answers = || world.store.answers(&[second, unknown, first]).expect("answers");
    assert_eq!(answers(), [(unknown, Answer::Unknown)]);
    let effects = vec![reply(first, "one"), reply(first, "two"), reply(unknown, "lost")];
    world.accept(Commit { effects, ..commit(id) });
    world.accept(Commit { effects: vec![reply(first, "three")], ..commit(id) });
    let mut answered = answers();
    answered.sort_by_key(|(id, _)| *id != first);
    assert_eq!(answered[0], (first, Answer::Reply(b"one".to_vec())));
    assert_eq!(answered[1..], [(unknown, Answer::Unknown)]);
}

fn a_finished_run_answers_its_open_requests(world: &World) {
    let (id, other) = (world.running(), world.running());
    let (open, answered) = (request(world, id, "open"), request(world, id, "answered"));
    let elsewhere = request(world, other, "elsewhere");
    world.accept(Commit { effects: vec![reply(answered, "yes")], ..commit(id) });
    world.finish(id);
    let mut answers = world.store.answers(&[open, answered, elsewhere]).expect("answers");
    answers.sort_by_key(|(id, _)| *id != open);
    let yes = Answer::Reply(b"yes".to_vec());
    assert_eq!(answers, [(open, Answer::RunEnded), (answered, yes)]);
}

fn a_reply_in_the_last_commit_counts(world: &World) {
    let id = world.running();
    let request = request(world, id, "request");
    let (effects, patch) = (vec![reply(request, "bye")], finish(RunStatus::Completed));
    world.accept(Commit { effects, patch, ..commit(id) });
    let answers = world.store.answers(&[request]).expect("answers");
    assert_eq!(answers, [(request, Answer::Reply(b"bye".to_vec()))]);
}

/// Every patch that moves a run forward.
fn movements() -> Vec<Patch> {
    vec![
        Patch::Keep,
        Patch::Run { inbox_seq: 0 },
        park(None),
        finish(RunStatus::Completed),
        finish(RunStatus::Failed),
        Patch::RollBack { ending: RunStatus::Failed, error: None },
    ]
}

fn cancel_refuses_movement_and_takes_results(world: &World) {
    for rollback in [true, false] {
        let id = world.running();
        let done = world.control(id, Control::Cancel { rollback });
        assert_eq!(done, Controlled::Done { run: id });
        for patch in movements() {
            let commit = Commit { puts: vec![put("a", "")], patch, ..commit(id) };
            assert_eq!(world.refuse(commit), Refusal::CancelRequested { rollback });
        }
        assert!(world.keys(id).is_empty());
        let results = Commit { results_only: true, puts: vec![put("a", "")], ..commit(id) };
        world.accept(results);
        let row = world.row(id);
        assert_eq!(row.cancel_requested, Some(CancelRequest { rollback }));
        assert_eq!((row.status, world.keys(id).len()), (RunStatus::Running, 1));
    }
}

fn a_cancel_can_be_carried_out(world: &World) {
    for patch in [roll_back(), finish(RunStatus::Cancelled), pause()] {
        for is_paused in [false, true] {
            let id = world.running();
            if is_paused {
                world.control(id, Control::Pause);
            }
            world.control(id, Control::Cancel { rollback: true });
            world.accept(Commit { patch: patch.clone(), ..commit(id) });
            assert_eq!(world.row(id).available_at, None);
        }
    }
}

fn a_cancel_makes_every_row_due(world: &World) {
    let delayed = NewRun { claim: false, available_at: Some(at(90_000)), ..world.new_run() };
    let paused = world.parked(None);
    world.control(paused, Control::Pause);
    let (running, parked) = (world.running(), world.parked(Some(at(80_000))));
    for id in [world.start(delayed).id, paused, running, parked] {
        let status = world.row(id).status;
        world.control(id, Control::Cancel { rollback: true });
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (status, Some(AT_ONCE)), "{status}");
    }
    assert_eq!(world.due(3).len(), 4);
}

fn a_second_cancel_and_a_cancel_of_a_finished_run_say_so(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    let again = world.control(id, Control::Cancel { rollback: false });
    assert_eq!(again, Controlled::Already { run: id, status: RunStatus::Running });
    assert_eq!(world.row(id).cancel_requested, Some(CancelRequest { rollback: true }));
    world.accept(Commit { patch: finish(RunStatus::Cancelled), ..commit(id) });
    for control in [Control::Cancel { rollback: true }, Control::Pause, Control::Resume] {
        let finished = Controlled::Finished { run: id, status: RunStatus::Cancelled };
        assert_eq!(world.control(id, control), finished);
    }
    let unknown = world.ids.next(START);
    assert_eq!(world.control(unknown, Control::Cancel { rollback: true }), Controlled::Unknown);
}

fn a_cancel_in_the_batch_of_the_last_commit_finds_it_finished(world: &World) {
    for cancels_first in [true, false] {
        let id = world.running();
        let last = Commit { patch: finish(RunStatus::Completed), ..commit(id) };
        let last = Write::Commit(Box::new(last));
        let cancel = Write::Control(Target::Id(id), Control::Cancel { rollback: true });
        let writes = if cancels_first { vec![cancel, last] } else { vec![last, cancel] };
        let outcomes = world.batch(5, writes);
        let finished = Controlled::Finished { run: id, status: RunStatus::Completed };
        assert!(outcomes.contains(&Outcome::Controlled(finished)), "{outcomes:?}");
        assert_eq!(world.row(id).cancel_requested, None);
    }
}

fn cancel_refuses_nothing_once_the_end_is_decided(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    for patch in [Patch::Keep, Patch::Run { inbox_seq: 0 }, park(Some(at(50)))] {
        let puts = vec![put("compensation", "")];
        world.accept(Commit { puts, patch, ..commit(id) });
        assert_eq!(world.row(id).ending, Some(RunStatus::Cancelled));
    }
    world.accept(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) });
    assert_eq!(world.row(id).status, RunStatus::RollingBack);
    world.accept(Commit { patch: finish(RunStatus::Cancelled), ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending), (RunStatus::Cancelled, None));
}

fn pause_refuses_movement_and_takes_results(world: &World) {
    let id = world.running();
    assert_eq!(world.control(id, Control::Pause), Controlled::Done { run: id });
    for patch in movements().into_iter().chain([roll_back(), pause()]) {
        assert_eq!(world.refuse(Commit { patch, ..commit(id) }), Refusal::Paused);
    }
    world.accept(Commit { results_only: true, puts: vec![put("a", "")], ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Paused, None));
    assert_eq!(row.waiting.as_deref(), Some("paused by request"));
    let again = world.control(id, Control::Pause);
    assert_eq!(again, Controlled::Already { run: id, status: RunStatus::Paused });
}

fn resume_makes_a_paused_run_due_again(world: &World) {
    let id = world.parked(Some(at(90_000)));
    let not_paused = Controlled::Already { run: id, status: RunStatus::Sleeping };
    assert_eq!(world.control(id, Control::Resume), not_paused);
    world.control(id, Control::Pause);
    assert!(world.due(100_000).is_empty());
    assert_eq!(world.control(id, Control::Resume), Controlled::Done { run: id });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(AT_ONCE)));
    assert_eq!((row.waiting, world.due(3)), (None, vec![id]));
    world.accept(commit(id));
}

fn a_run_paused_in_its_rollback_resumes_in_it(world: &World) {
    let id = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    world.control(id, Control::Pause);
    assert_eq!(world.row(id).ending, Some(RunStatus::Cancelled));
    world.control(id, Control::Resume);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::RollingBack, Some(AT_ONCE)));
}

fn a_run_being_cancelled_cannot_be_paused(world: &World) {
    let id = world.running();
    world.control(id, Control::Cancel { rollback: true });
    let refused = Controlled::Refused {
        run: id,
        status: RunStatus::Running,
        reason: ControlRefusal::BeingCancelled,
    };
    assert_eq!(world.control(id, Control::Pause), refused);
    assert_eq!(world.row(id).status, RunStatus::Running);
}

fn every_patch_sets_what_it_says(world: &World) {
    let id = world.parked(Some(at(40)));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(at(40))));
    assert_eq!((row.waiting.as_deref(), row.updated_at), (Some("approval"), at(1)));
    world.accept(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at, row.waiting), (RunStatus::Running, None, None));
    world.accept(Commit { patch: pause(), ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.waiting.as_deref()), (RunStatus::Paused, Some("the code differs")));
    world.control(id, Control::Resume);
    let error = Some(b"failure".to_vec());
    let patch = Patch::RollBack { ending: RunStatus::Failed, error: error.clone() };
    world.accept(Commit { patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending), (RunStatus::RollingBack, Some(RunStatus::Failed)));
    assert_eq!((row.available_at, &row.error, row.finished_at), (None, &error, None));
    let patch = Patch::Finish { status: RunStatus::Failed, output: None, error: error.clone() };
    world.accept(Commit { patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending, row.waiting), (RunStatus::Failed, None, None));
    assert_eq!((row.finished_at, row.output, row.error), (Some(at(1)), None, error));
}

fn state_is_kept_by_key_and_survives_the_end(world: &World) {
    let id = world.running();
    let value = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
    world.accept(Commit { state: vec![value("b", "1"), value("a", "2")], ..commit(id) });
    world.accept(Commit { state: vec![value("b", "3"), value("c", "")], ..commit(id) });
    world.finish(id);
    let state = world.store.state(id.no()).expect("state");
    assert_eq!(state, [value("a", "2"), value("b", "3"), value("c", "")]);
}

fn reopening(id: RunId) -> Reopen {
    Reopen {
        run: id.no(),
        status: RunStatus::Failed,
        attempts: 1,
        puts: vec![put("b", "new")],
        deletes: vec![range("b", "d")],
    }
}

fn failed(world: &World) -> RunId {
    let id = world.running();
    let puts = vec![put("a", "1"), put("b", "2"), put("c", "3")];
    world.control(id, Control::Cancel { rollback: true });
    world.accept(Commit { patch: roll_back(), puts, last_number: 3, numbers: 3, ..commit(id) });
    let error = Some(b"failure".to_vec());
    let patch = Patch::Finish { status: RunStatus::Failed, output: None, error };
    world.accept(Commit { patch, last_number: 3, ..commit(id) });
    id
}

fn a_finished_run_can_be_reopened(world: &World) {
    let id = failed(world);
    let outcome = world.one(9, Write::Reopen(Box::new(reopening(id))));
    assert_eq!(outcome, Outcome::Committed(Vec::new()));
    let row = world.row(id);
    assert_eq!((row.status, row.attempts, row.generation), (RunStatus::Pending, 2, 1));
    assert_eq!((row.available_at, row.finished_at), (Some(AT_ONCE), None));
    assert_eq!((row.error, row.output, row.ending), (None, None, None));
    assert_eq!((row.cancel_requested, row.waiting), (None, None));
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a", "1"), put("b", "new")]);
    assert_eq!(world.due(9), [id]);
    // How many numbers are left is known to the owner alone.
    let run = Patch::Run { inbox_seq: 0 };
    world.accept(Commit { last_number: 2, numbers: 1, patch: run, ..commit(id) });
    assert_eq!(world.row(id).last_number, 2);
}

fn a_reopening_that_does_not_fit_is_refused(world: &World) {
    let (id, live) = (failed(world), world.running());
    let before = world.store.load(id.no()).expect("load");
    let wrong = [
        Reopen { attempts: 2, ..reopening(id) },
        Reopen { status: RunStatus::Completed, ..reopening(id) },
        Reopen { status: RunStatus::Running, ..reopening(live) },
        reopening(world.ids.next(START)),
    ];
    for reopen in wrong {
        let outcome = world.one(9, Write::Reopen(Box::new(reopen)));
        assert_eq!(outcome, Outcome::Refused(Refusal::Gone));
    }
    assert_eq!(world.store.load(id.no()).expect("load"), before);
}

fn due_runs_are_paged_in_order(world: &World) {
    let times = [30, 10, 20, 10, 30, 10, 99];
    let mut ids = times.map(|ms| (at(ms), world.parked(Some(at(ms)))));
    ids.sort_by_key(|(at, id)| (*at, id.no()));
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let due = world.store.due(at(30), &ShardSet::of_default_pool(), after, 2).expect("due");
        assert!(due.runs.len() <= 2);
        assert_eq!(due.next_at, Some(at(99)));
        let Some(last) = due.runs.last() else { break };
        after = Some((last.available_at.expect("it is due"), last.id.no()));
        read.extend(due.runs.into_iter().map(|run| run.id));
    }
    assert_eq!(read, ids[..6].iter().map(|(_, id)| *id).collect::<Vec<_>>());
    let run = &world.store.due(at(30), &ShardSet::of_default_pool(), None, 1).expect("due").runs[0];
    assert_eq!((&*run.workflow, run.version), ("checkout", 1));
    assert_eq!((run.status, run.shard), (RunStatus::Sleeping, run.id.shard_in(PoolNo::DEFAULT)));
    let past = Some((at(31), RunNo(0)));
    let due = world.store.due(at(30), &ShardSet::of_default_pool(), past, 10).expect("due");
    assert!(due.runs.is_empty());
}

fn due_runs_are_of_the_given_shards(world: &World) {
    let ids = (0..60).map(|i| world.parked(Some(at(i)))).collect::<Vec<_>>();
    let shards = ids[..20].iter().map(|id| id.shard_in(PoolNo::DEFAULT)).collect::<ShardSet>();
    let wanted = ids.iter().filter(|id| shards.contains(id.shard_in(PoolNo::DEFAULT))).copied();
    let due = world.store.due(at(60), &shards, None, 1_000).expect("due");
    assert!(due.runs.iter().map(|run| run.id).eq(wanted));
    let (mut read, mut after) = (0, None);
    while let Some(last) = {
        let due = world.store.due(at(60), &shards, after, 3).expect("due");
        read += due.runs.len();
        due.runs.last().cloned()
    } {
        after = Some((last.available_at.expect("it is due"), last.id.no()));
    }
    assert_eq!(read, due.runs.len());
    let due = world.store.due(at(60), &ShardSet::EMPTY, None, 1_000).expect("due");
    assert_eq!(due, Due::default());
    let due = world.store.due(at(-1), &shards, None, 10).expect("due");
    assert_eq!((due.runs.len(), due.next_at), (0, Some(START)));
}

fn the_next_due_time_is_after_now(world: &World) {
    let next_at =
        |ms| world.store.due(at(ms), &ShardSet::of_default_pool(), None, 0).expect("due").next_at;
    assert_eq!(next_at(0), None);
    world.parked(Some(at(50)));
    world.parked(None);
    assert_eq!((next_at(49), next_at(50)), (Some(at(50)), None));
}

fn live_runs_are_paged_by_number(world: &World) {
    let rolling = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(rolling) });
    let (running, messaged) = (world.running(), world.running());
    world.deliver(message(messaged));
    world.parked(None);
    world.finish(world.running());
    world.control(world.running(), Control::Pause);
    world.start(NewRun { claim: false, ..world.new_run() });
    let ids = |after, limit| {
        let live = world.store.live(&ShardSet::of_default_pool(), after, limit).expect("live");
        live.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 10), [rolling, running, messaged]);
    assert_eq!(ids(None, 2), [rolling, running]);
    assert_eq!(ids(Some(running.no()), 2), [messaged]);
    let mut others = ShardSet::of_default_pool();
    others.remove(running.shard_in(PoolNo::DEFAULT));
    let live = world.store.live(&others, None, 10).expect("live");
    assert!(live.iter().all(|run| run.id != running) && live.len() < 3);
    let status = world.store.live(&ShardSet::of_default_pool(), None, 1).expect("live")[0].status;
    assert_eq!(status, RunStatus::RollingBack);
}

fn the_census_counts_what_waits(world: &World) {
    world.parked(Some(at(500)));
    world.parked(Some(at(501)));
    world.start(NewRun { claim: false, available_at: Some(at(900)), ..world.new_run() });
    world.start(NewRun { claim: false, ..world.new_run() });
    world.parked(None);
    world.control(world.parked(None), Control::Pause);
    world.running();
    world.deliver(message(world.running()));
    world.finish(world.running());
    let census = world.store.census(at(500), &ShardSet::of_default_pool()).expect("census");
    assert_eq!(census, Census { timers: 2, due: 2, waiting: 1, paused: 1 });
    let nothing = world.store.census(at(500), &ShardSet::EMPTY).expect("census");
    assert_eq!(nothing, Census::default());
}

fn lists_are_newest_first_and_paged(world: &World) {
    let mut ids = (0..7).map(|_| world.running()).collect::<Vec<_>>();
    ids.reverse();
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let page = world.store.list(&Filter::default(), after, 3).expect("list");
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        after = Some(last.id.no());
        read.extend(page.iter().map(|row| row.id));
    }
    assert_eq!(read, ids);
    let first = &world.store.list(&Filter::default(), None, 1).expect("list")[0];
    assert_eq!(*first, world.row(ids[0]));
}

fn filters_must_all_hold(world: &World) {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let start = |workflow: &str, tags: &[(String, String)], ms| {
        let new = NewRun { workflow: workflow.into(), tags: tags.to_vec(), ..world.new_run() };
        let id = new.id;
        world.batch(ms, vec![Write::Start(Box::new(new))]);
        id
    };
    let (blue, large) = (tag("colour", "blue"), tag("size", "large"));
    let a = start("checkout", &[blue.clone(), large.clone()], 10);
    let b = start("refund", std::slice::from_ref(&blue), 20);
    let c = start("checkout", &[tag("colour", "red"), tag("size", "blue")], 30);
    world.accept(Commit { patch: finish(RunStatus::Failed), ..commit(c) });
    let found = |filter: Filter| {
        let rows = world.store.list(&filter, None, 100).expect("list");
        assert_eq!(world.store.count(&filter).expect("count"), rows.len() as u64);
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let any = Filter::default;
    assert_eq!(found(any()), [c, b, a]);
    assert_eq!(found(Filter { workflow: Some("checkout".to_owned()), ..any() }), [c, a]);
    assert_eq!(found(Filter { tags: vec![blue.clone()], ..any() }), [b, a]);
    assert_eq!(found(Filter { tags: vec![blue.clone(), large], ..any() }), [a]);
    assert_eq!(found(Filter { statuses: vec![RunStatus::Failed], ..any() }), [c]);
    let statuses = vec![RunStatus::Failed, RunStatus::Running];
    assert_eq!(found(Filter { statuses: statuses.clone(), ..any() }), [c, b, a]);
    assert_eq!(found(Filter { created_from: Some(at(20)), ..any() }), [c, b]);
    assert_eq!(found(Filter { created_before: Some(at(20)), ..any() }), [a]);
    let all = Filter {
        statuses,
        workflow: Some("refund".to_owned()),
        tags: vec![blue],
        created_from: Some(at(20)),
        created_before: Some(at(21)),
        ..any()
    };
    assert_eq!(found(all.clone()), [b]);
    assert!(found(Filter { workflow: Some("checkout".to_owned()), ..all }).is_empty());
}

fn finished_names_the_ended_and_the_missing(world: &World) {
    let (live, done, missing) = (world.running(), world.running(), world.ids.next(START));
    world.finish(done);
    let asked = [missing.no(), live.no(), done.no()];
    let ended = world.store.finished(&asked).expect("finished");
    assert_eq!(ended.len(), 2);
    let of = |id: RunId| ended.iter().find(|(no, _)| *no == id.no()).map(|(_, how)| how);
    assert_eq!(of(missing), Some(&None));
    let how = of(done).cloned().flatten().expect("it has ended");
    assert_eq!(how.status, RunStatus::Completed);
    assert_eq!((how.output, how.error), (Some(b"output".to_vec()), None));
    assert!(world.store.finished(&[]).expect("finished").is_empty());
}

fn loading_gives_row_history_and_inbox(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("b", "2"), put("a", "1")], ..commit(id) });
    world.deliver(message(id));
    world.deliver(message(id));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    let loaded = world.store.load(id.no()).expect("load").expect("the run exists");
    assert_eq!(loaded.row, world.row(id));
    assert_eq!(loaded.history, [put("a", "1"), put("b", "2")]);
    assert_eq!(loaded.inbox, world.store.inbox(id.no(), 0).expect("inbox"));
    assert_eq!(loaded.inbox.len(), 1);
}

fn an_empty_batch_is_fine(world: &World) {
    assert!(world.batch(0, Vec::new()).is_empty());
    let nobody = Batch { fence: None, now: START, writes: Vec::new() };
    assert!(world.store.commit(&nobody).expect("commit").outcomes.is_empty());
}

fn a_large_batch_is_applied_as_a_whole(world: &World) {
    let new = (0..2_000).map(|_| world.new_run()).collect::<Vec<_>>();
    let ids = new.iter().map(|new| new.id).collect::<Vec<_>>();
    world.batch(0, new.into_iter().map(|new| Write::Start(Box::new(new))).collect());
    let step = |id: &RunId| {
        let puts = vec![put("step", id.to_string())];
        Write::Commit(Box::new(Commit { puts, last_number: 1, numbers: 1, ..commit(*id) }))
    };
    world.batch(1, ids.iter().map(step).collect());
    let last = |id: &RunId| {
        let patch = finish(RunStatus::Completed);
        Write::Commit(Box::new(Commit { last_number: 1, patch, ..commit(*id) }))
    };
    world.batch(2, ids.iter().map(last).collect());
    let completed = Filter { statuses: vec![RunStatus::Completed], ..Filter::default() };
    assert_eq!(world.store.count(&completed).expect("count"), 2_000);
    let nos = ids.iter().map(|id| id.no()).collect::<Vec<_>>();
    assert_eq!(world.store.finished(&nos).expect("finished").len(), 2_000);
    let history = world.store.history(nos[1_999], None, 10).expect("history");
    assert_eq!(history, [put("step", ids[1_999].to_string())]);
}

/// Long enough for a wake-up on a busy machine; short, where none should come.
const SOON: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_millis(50);

fn listen(world: &World, me: Uuid) -> (WakeGuard, mpsc::Receiver<Vec<RunNo>>) {
    let (sender, receiver) = mpsc::channel();
    let wake: WakeFn = Arc::new(move |runs| drop(sender.send(runs.to_vec())));
    (world.store.on_wake(me, wake).expect("on_wake"), receiver)
}

fn others_are_woken_and_the_waker_is_not(world: &World) {
    let second = register(&*world.store, "second", START);
    let (_first_guard, first) = listen(world, world.fence.runner);
    let (_second_guard, second_calls) = listen(world, second.runner);
    let runs = [RunNo(3), RunNo(i64::MAX)];
    world.store.wake_others(Some(world.fence.runner), &runs);
    assert_eq!(second_calls.recv_timeout(SOON), Ok(runs.to_vec()));
    assert!(first.recv_timeout(NEVER).is_err());
    world.store.wake_others(None, &[]);
    assert_eq!(first.recv_timeout(SOON), Ok(Vec::new()));
    assert_eq!(second_calls.recv_timeout(SOON), Ok(Vec::new()));
}

fn a_dropped_guard_is_not_called(world: &World) {
    let (guard, calls) = listen(world, world.fence.runner);
    drop(guard);
    world.store.wake_others(None, &[RunNo(1)]);
    assert!(calls.recv_timeout(NEVER).is_err());
}

fn counters_count(world: &World) {
    let before = world.store.counters();
    let id = world.running();
    world.accept(Commit { puts: vec![put("a", "")], ..commit(id) });
    world.row(id);
    let after = world.store.counters();
    // A store need not count, but if it does, it counts these.
    if after != StoreCounters::default() {
        assert_eq!(after.batches - before.batches, 2);
        assert_eq!(after.writes - before.writes, 2);
        assert!(after.rows >= before.rows + 2 && after.reads > before.reads);
    }
}
