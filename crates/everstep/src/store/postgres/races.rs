//! Several stores on one schema, as processes have them: what they know of each other's rows.

use std::{
    collections::BTreeMap,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
};

use super::*;
use crate::{run_id::RunIds, testing};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const LEASE: Duration = Duration::from_secs(3_600);

/// So many stores of one empty schema, whose leases go by the caller's clock.
fn stores<const N: usize>() -> [PostgresStore; N] {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let open = || {
        let options = PostgresOptions { database_time: false, ..PostgresOptions::default() };
        PostgresStore::open_with(&url, options).expect("open")
    };
    open().migrate().expect("migrate");
    std::array::from_fn(|_| open())
}

fn register(store: &PostgresStore, id: u128) -> Fence {
    let runner = NewRunner::new(Uuid::from_u128(id), format!("host/{id}"), NOW, LEASE);
    let fence = store.register_runner(&runner).expect("register_runner");
    let all = ShardSet::of_default_pool();
    store.take_shards(fence, NOW, &all, &[]).expect("take_shards");
    fence
}

fn start(id: RunId) -> Write {
    Write::Start(Box::new(NewRun {
        id,
        workflow: "checkout".into(),
        version: 1,
        key: None,
        pool: "default".into(),
        available_at: None,
        deadline_at: None,
        tags: Vec::new(),
        trace: None,
        input: vec![1],
        parent: None,
        claim: true,
    }))
}

/// The step with this number.
fn step(id: RunId, number: u64) -> Write {
    Write::Commit(Box::new(Commit {
        run: id.no(),
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
    }))
}

fn deliver(id: RunId, body: u64) -> Write {
    Write::Deliver(Box::new(Delivery {
        target: Target::Id(id),
        name: "more".to_owned(),
        body: body.to_be_bytes().to_vec(),
        dedupe: None,
        request: None,
        inbox_max: 1_000_000,
        on_end: OnEnd::Error,
    }))
}

fn batch(fence: Option<Fence>, writes: Vec<Write>) -> Batch {
    let now = NOW;
    Batch { fence, now, writes }
}

/// What became of a batch, and how many round trips it took.
fn commit(store: &PostgresStore, fence: Option<Fence>, writes: Vec<Write>) -> (Vec<Outcome>, u64) {
    let trips = || store.counters.trips.load(Ordering::Relaxed);
    let before = trips();
    let applied = store.commit(&batch(fence, writes)).expect("commit");
    (applied.outcomes, trips() - before)
}

fn all_committed(outcomes: &[Outcome]) -> bool {
    let committed = |outcome: &Outcome| matches!(outcome, Outcome::Committed(_));
    !outcomes.is_empty() && outcomes.iter().all(committed)
}

#[test]
fn a_batch_about_runs_in_memory_is_one_round_trip() {
    let [store] = stores();
    let fence = Some(register(&store, 1));
    let ids = RunIds::new(1);
    let runs: Vec<RunId> = (0..20).map(|_| ids.next(NOW)).collect();
    let starts = || runs.iter().map(|id| start(*id)).collect::<Vec<_>>();
    // The first batch of a fence finds nothing.
    commit(&store, fence, vec![start(ids.next(NOW))]);
    let (_, trips) = commit(&store, fence, starts());
    assert_eq!(trips, 1, "starts");
    for number in 1..=3 {
        let steps = runs.iter().map(|id| step(*id, number)).collect();
        let (outcomes, trips) = commit(&store, fence, steps);
        assert!(all_committed(&outcomes), "{outcomes:?}");
        assert_eq!(trips, 1, "steps {number}");
    }
    // A start and an end beside steps; the row that the end has written is not needed again.
    let mut mixed = vec![start(ids.next(NOW)), step(runs[1], 4)];
    let Write::Commit(mut end) = step(runs[0], 4) else {
        unreachable!("a step is a commit");
    };
    end.patch = Patch::Finish { status: RunStatus::Completed, output: Some(vec![1]), error: None };
    mixed.push(Write::Commit(end));
    let (outcomes, trips) = commit(&store, fence, mixed);
    assert_eq!(trips, 1, "{outcomes:?}");
    // The same number again is refused as ever.
    let (outcomes, trips) = commit(&store, fence, vec![step(runs[1], 4)]);
    assert!(!all_committed(&outcomes), "{outcomes:?}");
    assert_eq!(trips, 1);
    // What the client sends goes to a row that is known, too.
    let (_, trips) = commit(&store, fence, vec![deliver(runs[1], 1)]);
    assert_eq!(trips, 1);
    let (_, trips) = commit(&store, fence, vec![step(runs[1], 5)]);
    assert_eq!(trips, 1);
    // A second start of a run that is there attaches.
    let (outcomes, _) = commit(&store, fence, starts());
    for outcome in outcomes {
        assert!(matches!(outcome, Outcome::Started(started) if started.attached));
    }
    testing::ran_on("PostgreSQL");
}

#[test]
fn a_row_that_another_process_has_changed_is_read_again() {
    let [owner, client] = stores();
    let fence = Some(register(&owner, 1));
    let ids = RunIds::new(2);
    let run = ids.next(NOW);
    commit(&owner, fence, vec![start(run)]);
    assert!(all_committed(&commit(&owner, fence, vec![step(run, 1)]).0));
    commit(&client, None, vec![deliver(run, 1)]);
    // The owner has not seen the message, and is told so although it has sent only once.
    let Write::Commit(mut park) = step(run, 2) else {
        unreachable!("a step is a commit");
    };
    park.inbox_seq = Some(0);
    let (outcomes, trips) = commit(&owner, fence, vec![Write::Commit(park)]);
    assert!(
        matches!(&outcomes[..], [Outcome::Refused(Refusal::InboxMoved { rows, .. })] if rows.len() == 1),
        "{outcomes:?}"
    );
    assert!(trips > 1, "{trips}");
    // A cancel from elsewhere is not overlooked either.
    let cancel = Control::Cancel { rollback: false };
    let cancel = Write::Control(Target::Id(run), cancel);
    commit(&owner, fence, vec![step(run, 2)]);
    commit(&owner, fence, vec![step(run, 3)]);
    commit(&client, None, vec![cancel]);
    let (outcomes, _) = commit(&owner, fence, vec![step(run, 4)]);
    assert!(
        matches!(outcomes[..], [Outcome::Refused(Refusal::CancelRequested { .. })]),
        "{outcomes:?}"
    );
    testing::ran_on("PostgreSQL");
}

#[test]
fn an_owner_that_was_ousted_is_refused_whatever_it_remembers() {
    let [old, new] = stores();
    let fence = Some(register(&old, 1));
    let run = RunIds::new(3).next(NOW);
    commit(&old, fence, vec![start(run)]);
    assert!(all_committed(&commit(&old, fence, vec![step(run, 1)]).0));
    let later = NOW + 2 * LEASE;
    let runner = NewRunner::new(Uuid::from_u128(2), "host/2", later, LEASE);
    let successor = new.register_runner(&runner).expect("register_runner");
    let rows = new.runners().expect("runners");
    let gone: Vec<_> = rows.iter().map(RunnerRow::as_gone).collect();
    let taken = new.take_shards(successor, later, &ShardSet::of_default_pool(), &gone);
    assert!(taken.expect("take_shards").is_some());
    let (outcomes, _) = commit(&old, fence, vec![step(run, 2)]);
    assert!(matches!(outcomes[..], [Outcome::Refused(Refusal::Fenced)]), "{outcomes:?}");
    assert!(all_committed(&commit(&new, Some(successor), vec![step(run, 2)]).0));
    testing::ran_on("PostgreSQL");
}

/// An owner makes steps of all runs, one number after another, parks them and takes them up again,
/// while two clients send messages to random ones of them in batches of their own. Nobody meets a deadlock, every message has its place
/// in its inbox without a gap, and every number was given once.
#[test]
fn stores_that_write_to_the_same_runs_at_once_lose_nothing() {
    const RUNS: u64 = 40;
    const ROUNDS: u64 = 60;
    let [owner, first, second] = stores();
    let fence = Some(register(&owner, 1));
    let ids = RunIds::new(4);
    let runs: Vec<RunId> = (0..RUNS).map(|_| ids.next(NOW)).collect();
    commit(&owner, fence, runs.iter().map(|id| start(*id)).collect());
    let (together, sent) = (Barrier::new(3), AtomicU64::new(0));
    let next = |seed: &mut u64| {
        *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::random::mix(*seed)
    };
    let send = |store: &PostgresStore, mut seed: u64| {
        together.wait();
        for _ in 0..ROUNDS {
            let size = 1 + next(&mut seed) % 12;
            let mut writes = Vec::new();
            for _ in 0..size {
                let run = runs[(next(&mut seed) % RUNS) as usize];
                writes.push(deliver(run, sent.fetch_add(1, Ordering::Relaxed)));
            }
            for outcome in commit(store, None, writes).0 {
                assert!(
                    matches!(&outcome, Outcome::Delivered(it) if it.receipt == Receipt::Delivered),
                    "{outcome:?}"
                );
            }
        }
    };
    let made: BTreeMap<RunId, u64> = std::thread::scope(|scope| {
        scope.spawn(|| send(&first, 5));
        scope.spawn(|| send(&second, 6));
        together.wait();
        let (mut seed, mut made) = (7, BTreeMap::new());
        for _ in 0..ROUNDS {
            let mut writes = Vec::new();
            for id in &runs {
                if next(&mut seed) % 3 > 0 {
                    let number = made.entry(*id).or_insert(0);
                    *number += 1;
                    let Write::Commit(mut step) = step(*id, *number) else {
                        unreachable!("a step is a commit");
                    };
                    step.patch = match next(&mut seed) % 8 {
                        // Writes the whole row: an old one would bring back old places.
                        0 => Patch::Park {
                            status: RunStatus::Sleeping,
                            available_at: None,
                            waiting: "more".to_owned(),
                            attempts: 1,
                        },
                        1..4 => Patch::Run { inbox_seq: 0 },
                        _ => Patch::Keep,
                    };
                    writes.push(Write::Commit(step));
                }
            }
            // Not in the order of their numbers: that is the store's business.
            let middle = writes.len() / 2;
            writes.rotate_left(middle);
            let (outcomes, _) = commit(&owner, fence, writes);
            assert!(all_committed(&outcomes), "{outcomes:?}");
        }
        made
    });
    let mut bodies = Vec::new();
    for id in &runs {
        let loaded = owner.load(id.no()).expect("load").expect("it is there");
        let number = made.get(id).copied().unwrap_or(0);
        let keys: Vec<Vec<u8>> = loaded.history.iter().map(|put| put.key.clone()).collect();
        let wanted: Vec<Vec<u8>> = (1..=number).map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(keys, wanted, "run {id}");
        let inbox = first.inbox(id.no(), 0).expect("inbox");
        let places: Vec<u64> = inbox.iter().map(|row| row.seq).collect();
        let wanted: Vec<u64> = (1..=inbox.len() as u64).collect();
        assert_eq!(places, wanted, "run {id}");
        let row = first.run(&Target::Id(*id)).expect("run").expect("there");
        assert_eq!(row.inbox_seq, inbox.len() as u64, "run {id}");
        bodies.extend(inbox.into_iter().map(|row| row.body));
    }
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len() as u64, sent.load(Ordering::Relaxed));
    testing::ran_on("PostgreSQL");
}

/// One store makes batches of one runner in two lanes at once, each with its own runs, which send to
/// those of the other lane. No number is forgotten, and no entry is taken for another.
#[test]
fn lanes_of_one_store_do_not_mislead_each_other() {
    const ROUNDS: u64 = 60;
    let [store] = stores();
    let fence = Some(register(&store, 1));
    let ids = RunIds::new(8);
    let runs: Vec<RunId> = (0..20).map(|_| ids.next(NOW)).collect();
    commit(&store, fence, runs.iter().map(|id| start(*id)).collect());
    let lane = |mine: &[RunId], others: &[RunId]| {
        for number in 1..=ROUNDS {
            let mut writes: Vec<Write> = mine.iter().map(|id| step(*id, number)).collect();
            let other = others[number as usize % others.len()];
            writes.push(deliver(other, number));
            let (outcomes, _) = commit(&store, fence, writes);
            assert!(all_committed(&outcomes[..mine.len()]), "{outcomes:?}");
        }
    };
    let (left, right) = runs.split_at(10);
    std::thread::scope(|scope| {
        scope.spawn(|| lane(left, right));
        lane(right, left);
    });
    for id in &runs {
        let loaded = store.load(id.no()).expect("load").expect("it is there");
        assert_eq!(loaded.history.len() as u64, ROUNDS, "run {id}");
        let places: Vec<u64> = loaded.inbox.iter().map(|row| row.seq).collect();
        let wanted: Vec<u64> = (1..=places.len() as u64).collect();
        assert_eq!(places, wanted, "run {id}");
    }
    testing::ran_on("PostgreSQL");
}

#[test]
fn what_was_known_of_a_run_is_forgotten_with_its_shard() {
    let [one, other] = stores();
    let all = ShardSet::of_default_pool();
    let ids = RunIds::new(1);
    let run = ids.next(NOW);
    let first = register(&one, 1);
    commit(&one, Some(first), vec![start(run)]);
    let (outcomes, _) = commit(&one, Some(first), vec![step(run, 1)]);
    assert!(all_committed(&outcomes), "{outcomes:?}");
    one.release_shards(first, &all).expect("release");

    let second = register(&other, 2);
    for number in 2..=4 {
        let (outcomes, _) = commit(&other, Some(second), vec![step(run, number)]);
        assert!(all_committed(&outcomes), "{outcomes:?}");
    }
    other.release_shards(second, &all).expect("release");

    // It has the shard again under the same fence. What it remembers is three steps old.
    one.take_shards(first, NOW, &all, &[]).expect("take_shards");
    let (outcomes, _) = commit(&one, Some(first), vec![step(run, 5)]);
    assert!(all_committed(&outcomes), "{outcomes:?}");
    assert!(lock(&one.known).has(run.no()));
    one.release_shards(first, &all).expect("release");
    assert!(!lock(&one.known).has(run.no()));
}

/// A batch whose outcome was not found out in time may have landed all the same. The number that was
/// known from before refused every later step of the run then, and its body ran again each time.
#[test]
fn what_was_known_of_a_run_is_forgotten_when_its_batch_has_failed() {
    let [store, other] = stores();
    let fence = register(&store, 1);
    let run = RunIds::new(1).next(NOW);
    commit(&store, Some(fence), vec![start(run)]);
    commit(&store, Some(fence), vec![step(run, 1)]);
    assert!(lock(&store.known).has(run.no()));
    let hidden = |from: &str, to: &str| {
        other.write(|session| {
            session.execute(format!("ALTER TABLE {from} RENAME TO {to}"), &[]);
            Ok(())
        })
    };
    hidden("everstep_history", "hidden").expect("rename");
    let failed = store.commit(&batch(Some(fence), vec![step(run, 2)]));
    assert!(failed.is_err(), "{failed:?}");
    assert!(!lock(&store.known).has(run.no()));
    hidden("hidden", "everstep_history").expect("rename");
    // As if it had landed.
    let (outcomes, _) = commit(&other, Some(fence), vec![step(run, 2)]);
    assert!(all_committed(&outcomes), "{outcomes:?}");
    let (outcomes, _) = commit(&store, Some(fence), vec![step(run, 3)]);
    assert!(all_committed(&outcomes), "{outcomes:?}");
    testing::ran_on("PostgreSQL");
}

/// The number is in no row, so whoever else pauses the run does not know it, and says so.
#[test]
fn the_last_number_of_a_run_is_kept_when_its_owner_pauses_it() {
    let [store, other] = stores();
    let fence = Some(register(&store, 1));
    let ids = RunIds::new(1);
    let known = |paused_by: &PostgresStore, fence_of_pause| {
        let run = ids.next(NOW);
        commit(&store, fence, vec![start(run)]);
        commit(&store, fence, vec![step(run, 1)]);
        commit(&store, fence, vec![step(run, 2)]);
        let pause = Write::Control(Target::Id(run), Control::Pause);
        commit(paused_by, fence_of_pause, vec![pause]);
        match store.examine(&Ask::Run(run.no())).expect("examine") {
            Facts::Run(Some(facts)) => facts.last_number,
            other => panic!("a question about a run was answered with {other:?}"),
        }
    };
    assert_eq!(known(&store, fence), Some(2));
    assert_eq!(known(&store, None), None);
    assert_eq!(known(&other, None), None);
    testing::ran_on("PostgreSQL");
}

/// The new server has the row of the runner, too. That it is another is known only once there is a
/// connection to it.
#[test]
fn the_first_batch_after_a_failover_is_refused() {
    let [store] = stores();
    let fence = Some(register(&store, 1));
    let id = RunIds::new(1).next(NOW);
    commit(&store, fence, vec![start(id)]);
    assert!(all_committed(&commit(&store, fence, vec![step(id, 1)]).0));
    // As if all that was before had been on another server.
    if let Some(identity) = lock(&store.identity).as_mut() {
        identity.timeline.push_str(" of another");
    }
    store.drop_idle();
    let (outcomes, _) = commit(&store, fence, vec![step(id, 2)]);
    assert!(matches!(outcomes[..], [Outcome::Refused(Refusal::Fenced)]), "{outcomes:?}");
    let fence = Some(register(&store, 1));
    assert!(all_committed(&commit(&store, fence, vec![step(id, 2)]).0));
}
