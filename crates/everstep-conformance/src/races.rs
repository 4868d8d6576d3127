//! Writes that several threads make at the same moment: the store gives the answers of some order in which
//! they were made one after another.
//!
//! Clients, workers and former owners write at any time, from other threads and other processes. Each check
//! lets its threads begin together, several times, and then compares what every thread was told with what
//! is stored. Which thread wins is open.

use std::{
    panic::resume_unwind,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
};

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    of_two_last_commits_at_once_one_counts,
    commits_beside_a_takeover_are_stored_or_fenced,
    of_registrations_at_once_the_highest_epoch_holds,
    shards_that_are_taken_at_once_have_one_holder,
    starts_of_one_key_at_once_make_one_run,
    deliveries_at_once_are_numbered_without_gaps,
    deliveries_of_one_dedupe_key_at_once_deliver_one,
    a_delivery_beside_a_park_is_not_missed,
    of_values_for_one_deferred_at_once_one_is_the_first,
    items_that_are_claimed_at_once_have_one_worker,
    a_place_that_is_asked_for_at_once_is_given_once,
];

/// How many threads write at once.
const THREADS: usize = 4;

/// How often each race is run.
const ROUNDS: usize = 10;

/// Calls `act` on several threads, with the index of the thread, and gives the answers in that order.
fn at_once<T: Send>(act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let begin = Barrier::new(THREADS);
    thread::scope(|scope| {
        let (begin, act) = (&begin, &act);
        let threads: Vec<_> = (0..THREADS)
            .map(|no| {
                scope.spawn(move || {
                    begin.wait();
                    act(no)
                })
            })
            .collect();
        let answers = threads.into_iter().map(thread::ScopedJoinHandle::join);
        answers.map(|answer| answer.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

impl World {
    /// Makes one write. A store may answer that it is busy: then nothing has happened, and the write is
    /// made again.
    fn race(&self, fence: Option<Fence>, ms: i64, write: Write) -> Outcome {
        let batch = Batch { fence, now: at(ms), writes: vec![write] };
        loop {
            match self.store.commit(&batch) {
                Ok(applied) => break applied.outcomes.into_iter().next().expect("one outcome"),
                Err(StoreError::Busy { .. }) => thread::yield_now(),
                Err(error) => panic!("a write beside others fails: {error}"),
            }
        }
    }

    fn race_commit(&self, commit: Commit) -> Outcome {
        self.race(Some(self.fence), 1, Write::Commit(Box::new(commit)))
    }

    fn race_delivery(&self, delivery: Delivery) -> Delivered {
        match self.race(None, 2, Write::Deliver(Box::new(delivery))) {
            Outcome::Delivered(delivered) => delivered,
            other => panic!("a delivery was answered with {other:?}"),
        }
    }
}

/// The one of these outcomes that is a success; the others must be as `lost`.
fn winner(outcomes: &[Outcome], lost: &Outcome) -> usize {
    let won: Vec<_> = (0..outcomes.len()).filter(|no| outcomes[*no] != *lost).collect();
    let &[winner] = &won[..] else { panic!("one wins, and not {won:?} of {outcomes:?}") };
    winner
}

fn of_two_last_commits_at_once_one_counts(world: &World) {
    for _ in 0..ROUNDS {
        let id = world.running();
        let outcomes = at_once(|no| {
            let (status, output) = (RunStatus::Completed, Some(vec![no as u8]));
            let patch = Patch::Finish { status, output, error: None };
            world.race_commit(Commit { puts: vec![put([no as u8], "")], patch, ..commit(id) })
        });
        let winner = winner(&outcomes, &Outcome::Refused(Refusal::Gone)) as u8;
        assert_eq!(outcomes[usize::from(winner)], Outcome::Committed(Vec::new()));
        assert_eq!(world.row(id).output, Some(vec![winner]));
        assert_eq!(world.keys(id), [vec![winner]]);
    }
}

/// The history has exactly the entries whose commits were confirmed, and no commit that begins after the
/// takeover is.
fn commits_beside_a_takeover_are_stored_or_fenced(world: &World) {
    let id = world.running();
    let is_taken = AtomicBool::new(false);
    let stored = at_once(|no| {
        let mut stored = Vec::new();
        if no == 0 {
            take_over(world, &ShardSet::of_default_pool());
            is_taken.store(true, Ordering::SeqCst);
            return stored;
        }
        for go in 0_u32.. {
            let key = [&[no as u8][..], &go.to_be_bytes()].concat();
            let begins_late = is_taken.load(Ordering::SeqCst);
            match world.race_commit(Commit { puts: vec![put(&key, "")], ..commit(id) }) {
                Outcome::Committed(_) if !begins_late => stored.push(key),
                Outcome::Refused(Refusal::Fenced) => break,
                other => panic!("a commit beside a takeover was answered with {other:?}"),
            }
        }
        stored
    });
    assert_eq!(world.keys(id), stored.concat());
}

fn of_registrations_at_once_the_highest_epoch_holds(world: &World) {
    for _ in 0..ROUNDS {
        let me = Uuid::from_name("returns");
        let mut fences = at_once(|_| register_as(&*world.store, me, "returns", START));
        fences.sort_unstable_by_key(|fence| fence.epoch);
        let holds = |fence: &Fence| world.store.heartbeat(*fence, START, LEASE).expect("heartbeat");
        let holding = fences.iter().map(holds);
        assert!(holding.eq((1..=THREADS).map(|no| no == THREADS)), "{fences:?}");
        fences.dedup();
        assert_eq!(fences.len(), THREADS, "an epoch is given once");
    }
}

fn shards_that_are_taken_at_once_have_one_holder(world: &World) {
    let all = ShardSet::of_default_pool();
    world.store.release_shards(world.fence, &all).expect("release");
    let held = at_once(|no| {
        let fence = register(&*world.store, &no.to_string(), START);
        let held = world.store.take_shards(fence, START, &all, &[]).expect("take_shards");
        (fence.runner, held.expect("its own fence holds"))
    });
    let runners = world.store.runners().expect("runners");
    for (runner, held) in &held {
        let row = runners.iter().find(|row| row.id == *runner).expect("its row");
        assert_eq!(row.shards, *held, "it was told what its row says");
    }
    for shard in all.iter() {
        let holders = held.iter().filter(|(_, held)| held.contains(shard)).count();
        assert_eq!(holders, 1, "{shard:?}");
    }
}

fn starts_of_one_key_at_once_make_one_run(world: &World) {
    for round in 0..ROUNDS {
        let key = round.to_string();
        let started = at_once(|no| {
            let new = NewRun { input: vec![no as u8], ..keyed(world, &key) };
            match world.race(Some(world.fence), 0, Write::Start(Box::new(new))) {
                Outcome::Started(started) => started,
                other => panic!("a start was answered with {other:?}"),
            }
        });
        let first: Vec<_> = (0..THREADS).filter(|no| !started[*no].attached).collect();
        let &[first] = &first[..] else { panic!("one makes the run, and not {started:?}") };
        for (no, started) in started.iter().enumerate() {
            assert_eq!(started.input_differs, no != first, "{started:?}");
        }
        let run = world.row(started[first].id);
        assert_eq!((run.key, run.input), (Some(key), vec![first as u8]));
        assert!(started.iter().all(|started| started.id == run.id), "{started:?}");
    }
    let count = world.store.count(&Filter::default()).expect("count");
    assert_eq!(count, ROUNDS as u64);
}

fn deliveries_at_once_are_numbered_without_gaps(world: &World) {
    let id = world.parked(None);
    let seqs = at_once(|no| {
        let deliver = |go| {
            let body = vec![no as u8, go];
            let delivered = world.race_delivery(Delivery { body, inbox_max: 1_000, ..message(id) });
            assert_eq!((delivered.receipt, delivered.run), (Receipt::Delivered, Some(id)));
            delivered.seq.expect("a place")
        };
        (0..ROUNDS as u8).map(deliver).collect::<Vec<_>>()
    });
    let inbox = world.store.inbox(id.no(), 0).expect("inbox");
    let last = (THREADS * ROUNDS) as u64;
    assert!(inbox.iter().map(|row| row.seq).eq(1..=last), "{inbox:?}");
    assert_eq!(world.row(id).inbox_seq, last);
    for (no, seqs) in seqs.iter().enumerate() {
        assert!(seqs.is_sorted(), "the messages of a sender stay in order: {seqs:?}");
        for (go, seq) in seqs.iter().enumerate() {
            let row = &inbox[*seq as usize - 1];
            assert_eq!(row.body, [no as u8, go as u8], "a sender was told its place");
        }
    }
}

fn deliveries_of_one_dedupe_key_at_once_deliver_one(world: &World) {
    let id = world.parked(None);
    for round in 0..ROUNDS {
        let receipts = at_once(|_| {
            let dedupe = Some(round.to_string());
            world.race_delivery(Delivery { dedupe, ..message(id) }).receipt
        });
        let count = |receipt| receipts.iter().filter(|it| **it == receipt).count();
        let counts = (count(Receipt::Delivered), count(Receipt::Duplicate));
        assert_eq!(counts, (1, THREADS - 1), "{receipts:?}");
        assert_eq!(world.row(id).inbox_seq, round as u64 + 1);
    }
}

fn a_delivery_beside_a_park_is_not_missed(world: &World) {
    for _ in 0..ROUNDS {
        let id = world.running();
        let parked = at_once(|no| {
            if no > 0 {
                world.race_delivery(message(id));
                return None;
            }
            let patch = park(None);
            Some(world.race_commit(Commit { inbox_seq: Some(0), patch, ..commit(id) }))
        });
        let row = world.row(id);
        match &parked[0] {
            Some(Outcome::Committed(_)) => {
                let is_due = (row.status, row.available_at);
                assert_eq!(is_due, (RunStatus::Sleeping, Some(AT_ONCE)));
            }
            Some(Outcome::Refused(Refusal::InboxMoved { rows, seq })) => {
                assert!(rows.iter().map(|row| row.seq).eq(1..=*seq), "{rows:?}, up to {seq}");
                assert_eq!((row.status, *seq > 0), (RunStatus::Running, true));
            }
            other => panic!("a park beside deliveries was answered with {other:?}"),
        }
        assert_eq!(world.seqs(id), [1, 2, 3]);
    }
}

fn of_values_for_one_deferred_at_once_one_is_the_first(world: &World) {
    let (tag, key) = ([7; 16], b"gate".to_vec());
    for round in 0..ROUNDS {
        let id = world.running();
        // With a waiter and without.
        if round % 2 == 0 {
            let wait = DeferredWait { key: key.clone(), tag, looks: false };
            let (effects, patch) = (vec![Effect::AwaitDeferred(wait)], park(None));
            world.accept(Commit { effects, patch, ..commit(id) });
        }
        let settled = at_once(|no| {
            let value = Resolution { run: id, generation: None, tag, body: vec![no as u8] };
            world.race(None, 4, Write::Resolve(Box::new(value)))
        });
        let winner = winner(&settled, &Outcome::Settled(Settled::Already { at: at(4) }));
        assert_eq!(settled[winner], Outcome::Settled(Settled::First));
        if round % 2 == 0 {
            let inbox = world.store.inbox(id.no(), 0).expect("inbox");
            let bodies: Vec<_> = inbox.into_iter().map(|row| row.body).collect();
            assert_eq!(bodies, [[winner as u8]]);
        }
    }
}

fn items_that_are_claimed_at_once_have_one_worker(world: &World) {
    let queue = || "thumbs".to_owned();
    let items = THREADS * ROUNDS;
    for no in 0..items {
        let item = queues::item(no as u8);
        world.one(0, Write::Queue(Box::new(QueueWrite::Enqueue(item))));
    }
    let claimed = at_once(|no| {
        let mut mine = Vec::new();
        loop {
            let wanted = ClaimItems {
                queue: queue(),
                claim: Uuid::from_u128(no as u128),
                max: 2,
                attempts_max: 3,
                visibility: LEASE,
                limit: None,
            };
            let claim = Write::Queue(Box::new(QueueWrite::Claim(wanted)));
            match world.race(Some(world.fence), 1, claim) {
                Outcome::Queue(QueueDone::Claimed(claimed)) if claimed.items.is_empty() => {
                    return mine;
                }
                Outcome::Queue(QueueDone::Claimed(claimed)) => {
                    mine.extend(claimed.items.into_iter().map(|item| item.payload[0]));
                }
                other => panic!("a claim was answered with {other:?}"),
            }
        }
    });
    let mut all = claimed.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..items as u8), "each item goes to one worker: {claimed:?}");
}

fn a_place_that_is_asked_for_at_once_is_given_once(world: &World) {
    let rule = LimitRule { concurrency: Some(1), rate: None };
    let granted = |id: RunId| {
        let rows = world.store.inbox(id.no(), 0).expect("inbox");
        rows.iter().any(|row| row.kind == InboxKind::LimitGrant)
    };
    for round in 0..ROUNDS {
        let runs: Vec<_> = (0..THREADS).map(|_| world.running()).collect();
        at_once(|no| {
            let acquire = Acquire {
                limit: "stripe".to_owned(),
                limit_key: round.to_string(),
                rule,
                holds: true,
                key: vec![1],
            };
            let effects = vec![Effect::Acquire(Box::new(acquire))];
            world.race_commit(Commit { effects, ..commit(runs[no]) })
        });
        // The place goes from one run to the next until each has had it.
        let mut waiting = runs;
        while !waiting.is_empty() {
            let holders: Vec<_> = waiting.iter().copied().filter(|id| granted(*id)).collect();
            let &[holder] = &holders[..] else { panic!("one has the place: {holders:?}") };
            world.finish(holder);
            waiting.retain(|id| *id != holder);
        }
    }
}
