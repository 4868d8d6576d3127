//! Stores that are closed and opened again, and transactions that fail half-way.
//!
//! Random batches are made in the store and in a model, as [`compare`] makes them, and everything that can
//! be read is compared with what was confirmed. Items of queues and dead letters have numbers that a store
//! may skip, so they have checks of their own.

use super::*;

/// A place that keeps what stores have confirmed there, and outlives them: a file, a schema of a database.
///
/// A store whose data ends with it, such as [`MemoryStore`], has no place. [`run_all`] is all that it can be
/// asked for:
///
/// ```compile_fail
/// use everstep::store::MemoryStore;
///
/// everstep_conformance::run_reopened(|| MemoryStore::new());
/// ```
pub trait Place: 'static {
    /// Opens the store of this place, as a process does that begins. The place is empty the first time.
    ///
    /// The suite drops every store of a place before it opens the place again.
    fn open(&self) -> Arc<dyn Store>;
}

/// A [`Place`] whose database can be told to fail: by a layer under it, as
/// `everstep::testing::vfs::FaultVfs` is one for SQLite, or by a trigger in it.
pub trait FaultyPlace: Place {
    /// Makes the `nth` write of the database from now on fail, from 1, and none after it. A write is what the
    /// place can count: a page that is written, a statement that is carried out.
    fn fail_write(&self, nth: u64);

    /// Takes back a failure that has not happened yet.
    fn heal(&self);
}

/// How many batches are made in a place, fewer than [`compare`] makes: half of them are written twice or
/// into a store that is opened for them.
const BATCHES: usize = 60;

const CHECKS: &[(&str, Check<dyn Place>)] = checks![
    everything_that_was_confirmed_is_there_and_nothing_else,
    items_and_dead_letters_are_kept,
    an_epoch_is_not_given_again,
    what_belongs_to_no_run_is_kept,
];

const FAILING_CHECKS: &[(&str, Check<dyn FaultyPlace>)] =
    checks![a_batch_whose_transaction_fails_changes_nothing, what_is_numbered_goes_with_its_batch];

/// Closes a store and opens it again between its writes: everything that it has confirmed must be there,
/// and nothing else. Every check gets a fresh, empty place from `make`.
///
/// ```
/// use std::{path::PathBuf, sync::Arc};
///
/// use everstep::store::{SqliteStore, Store};
/// use everstep_conformance::Place;
///
/// struct File(PathBuf);
///
/// impl Place for File {
///     fn open(&self) -> Arc<dyn Store> {
///         Arc::new(SqliteStore::create(&self.0).expect("the file opens"))
///     }
/// }
///
/// let directory = tempfile::tempdir()?;
/// let made = std::sync::atomic::AtomicU32::new(0);
/// everstep_conformance::run_reopened(|| {
///     let no = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///     File(directory.path().join(format!("{no}.db")))
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// As [`run_all`].
pub fn run_reopened<P: Place>(make: impl Fn() -> P + Sync) {
    run_checks(CHECKS, |check| check(&make()));
}

/// Lets the database fail while batches are written: a batch that fails must change nothing, neither in
/// the database nor in what the store remembers of its rows. Every check gets a fresh, empty place from
/// `make`.
///
/// # Panics
///
/// As [`run_all`], and if no batch has failed.
pub fn run_failing<P: FaultyPlace>(make: impl Fn() -> P + Sync) {
    run_checks(FAILING_CHECKS, |check| check(&make()));
}

fn open(place: &dyn Place) -> Arc<dyn Store> {
    let store = place.open();
    store.migrate().expect("migrate");
    store
}

fn everything_that_was_confirmed_is_there_and_nothing_else(place: &dyn Place) {
    let model = MemoryStore::new();
    let mut comparison = Comparison::begin(&model, &*open(place), 3).forgets();
    for _ in 0..BATCHES / 5 {
        let store = open(place);
        comparison.read(&*store, "opening the store again");
        for _ in 0..5 {
            let batch = next_batch(&mut comparison, &model);
            comparison.make(&*store, &batch);
        }
    }
}

fn items_and_dead_letters_are_kept(place: &dyn Place) {
    let world = World::new(open(place));
    let enqueue = |no| Write::Queue(Box::new(QueueWrite::Enqueue(queues::item(no))));
    let claim = |max| ClaimItems {
        queue: "thumbs".to_owned(),
        claim: Uuid::from_u128(1),
        max,
        attempts_max: 1,
        visibility: LEASE,
        limit: None,
    };
    world.batch(1, (0..4).map(enqueue).collect());
    let done = world.one(2, Write::Queue(Box::new(QueueWrite::Claim(claim(3)))));
    let Outcome::Queue(QueueDone::Claimed(claimed)) = done else { panic!("{done:?}") };
    let settle = |no: usize, settlement| {
        let (item, claim) = (claimed.items[no].item, Uuid::from_u128(1));
        Write::Queue(Box::new(QueueWrite::Settle(Settle { item, claim, settlement })))
    };
    world.batch(
        3,
        vec![settle(0, Settlement::Done(vec![1])), settle(1, Settlement::Failed(vec![2]))],
    );
    let id = world.running();
    world.deliver(message(id));
    world.finish(id);
    let read = |store: &dyn Store| {
        let letters = store.dead_letters(&LetterFilter::default(), 0, 9).expect("dead_letters");
        assert_eq!(letters.len(), 1);
        (QueueReadings::of(store, "thumbs", at(4)), letters)
    };
    let before = read(&*world.store);
    drop(world);
    let store = open(place);
    assert_eq!(read(&*store), before);
    let batch = Batch { fence: None, now: at(5), writes: vec![enqueue(9)] };
    let outcomes = store.commit(&batch).expect("commit").outcomes;
    let [Outcome::Queue(QueueDone::Enqueued(new))] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(before.0.items.iter().all(|item| item.id < new.item), "a number is not given again");
}

fn an_epoch_is_not_given_again(place: &dyn Place) {
    let register = || register(&*open(place), "first", START);
    let (first, second) = (register(), register());
    assert!(second.epoch > first.epoch, "an epoch is not given again");
    let store = open(place);
    let holds = [first, second].map(|fence| store.heartbeat(fence, START, LEASE));
    assert_eq!(holds.map(|holds| holds.expect("heartbeat")), [false, true]);
}

fn what_belongs_to_no_run_is_kept(place: &dyn Place) {
    let entry = |who: &str| NewAudit {
        at: at(1),
        who: who.to_owned(),
        action: "cancel".to_owned(),
        target: String::new(),
        detail: String::new(),
    };
    let token = ApiTokenRow {
        name: "ci".to_owned(),
        role: Role::Operate,
        hash: [1; 32],
        created_at: at(1),
        last_used_at: None,
    };
    let store = open(place);
    let secret = store.secret().expect("secret");
    let first = store.begin_audit(&entry("ada")).expect("begin_audit");
    assert!(store.end_audit(first, "done").expect("end_audit"));
    assert!(store.add_api_token(&token).expect("add_api_token"));
    store.raise_horizon(at(5)).expect("raise_horizon");
    let (audits, horizon) = (store.audits(None, 9), store.horizon());
    let (audits, horizon) = (audits.expect("audits"), horizon.expect("horizon"));
    drop(store);
    let store = open(place);
    assert_eq!(store.secret().expect("secret"), secret);
    assert_eq!(store.audits(None, 9).expect("audits"), audits);
    assert_eq!(store.api_tokens().expect("api_tokens"), [token]);
    assert_eq!(store.horizon().expect("horizon"), horizon);
    assert!(store.begin_audit(&entry("bob")).expect("begin_audit") > first);
}

/// How many writes of the database there may be before the one that fails. Many batches have fewer, and are
/// made as a whole.
const WRITES_BEFORE: u64 = 6;

fn a_batch_whose_transaction_fails_changes_nothing(place: &dyn FaultyPlace) {
    let model = MemoryStore::new();
    let mut store = place.open();
    let mut comparison = Comparison::begin(&model, &*store, 5).forgets();
    let mut failed = 0;
    for _ in 0..BATCHES {
        let batch = next_batch(&mut comparison, &model);
        place.fail_write(1 + comparison.random.below(WRITES_BEFORE));
        let answer = store.commit(&batch);
        place.heal();
        let answer = match answer {
            Ok(applied) => Some(applied),
            Err(error) => {
                failed += 1;
                if comparison.random.one_in(4) {
                    drop(store);
                    store = place.open();
                }
                let is_unknown = matches!(error, StoreError::UnknownOutcome { .. });
                if is_unknown && !comparison.is_same(&*store) {
                    None
                } else {
                    comparison.read(&*store, &format!("`{error}` was the answer to {batch:#?}"));
                    // The store remembers nothing of it either.
                    Some(store.commit(&batch).expect("the database has been healed"))
                }
            }
        };
        comparison.made(&*store, &batch, answer.as_ref());
    }
    assert!(failed > 0, "no write of the database has failed");
}

/// The next batch of those that draw no number: a store may skip numbers, and then they are not those of
/// the model.
fn next_batch(comparison: &mut Comparison<'_>, model: &MemoryStore) -> Batch {
    loop {
        let batch = comparison.batch();
        if !draws_numbers(model, &batch) {
            break batch;
        }
    }
}

/// Whether the batch puts an item into a queue or makes a dead letter.
fn draws_numbers(model: &MemoryStore, batch: &Batch) -> bool {
    let after = model.fork();
    after.commit(batch).expect("commit");
    let letters = |store: &MemoryStore| {
        let letters = store.dead_letters(&LetterFilter::default(), 0, usize::MAX);
        letters.expect("dead_letters").into_iter().map(|letter| letter.no).max()
    };
    next_item(&after) != next_item(model) || letters(&after) > letters(model)
}

/// The number that the next item of a queue gets.
fn next_item(model: &MemoryStore) -> ItemId {
    let enqueue = Write::Queue(Box::new(QueueWrite::Enqueue(queues::item(0))));
    let batch = Batch { fence: None, now: START, writes: vec![enqueue] };
    match &model.fork().commit(&batch).expect("commit").outcomes[..] {
        [Outcome::Queue(QueueDone::Enqueued(enqueued))] => enqueued.item,
        other => panic!("an item was answered with {other:?}"),
    }
}

fn what_is_numbered_goes_with_its_batch(place: &dyn FaultyPlace) {
    let world = World::new(open(place));
    let id = world.running();
    let unknown = world.ids.next(START);
    let enqueue = Write::Queue(Box::new(QueueWrite::Enqueue(queues::item(1))));
    let effects = vec![send(unknown, "nobody"), send(id, "itself")];
    let writes = vec![Write::Commit(Box::new(Commit { effects, ..commit(id) })), enqueue];
    let batch = Batch { fence: Some(world.fence), now: at(1), writes };
    let stored = || {
        let items = world.store.queue_items("thumbs", None, None, 9).expect("queue_items");
        (items.len(), world.letters(None).len(), world.seqs(id), world.keys(id))
    };
    let before = stored();
    for nth in 1.. {
        place.fail_write(nth);
        let answer = world.store.commit(&batch);
        place.heal();
        if answer.is_ok() {
            assert!(nth > 1, "no write of the database has failed");
            let keys = [b"itself".to_vec(), b"nobody".to_vec()].to_vec();
            assert_eq!(stored(), (1, 1, vec![1], keys));
            break;
        }
        assert_eq!(stored(), before, "{answer:?}");
    }
}
