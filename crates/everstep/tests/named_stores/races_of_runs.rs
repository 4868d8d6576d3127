//! Runs that meet each other, a timer or a cancel, in every order.
//!
//! Another process (here: whoever meddles with the store) does one thing just before the n-th write
//! of an engine, for every n, and at last when the engine has nothing left to do. So each thing
//! comes before and after everything that it can race with: parking, a timeout, the end.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use everstep::{
    Clock, Close, RunStatus,
    prelude::*,
    rusqlite::Connection,
    store::{
        Batch, Commit, Control, Controlled, Delivery, Fence, MemoryStore, Outcome as Answer, Patch,
        Receipt, SqliteStore, Store, Target, Write,
    },
    testing::{CrashingStore, Ledger, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");
/// A workflow that the engine has no code for: its runs end when the other process says so.
const OTHER: Workflow<u32, u32> = Workflow::new("other");
/// A workflow that the engine has code for.
const OWN: Workflow<u32, u32> = Workflow::new("own");

/// What the other process does; `false` if there is nothing to do it to.
type Meddle = Arc<dyn Fn(&Other<'_>) -> bool + Send + Sync>;

/// How it went with one meddling.
struct Went {
    /// Just before which write it was done; none if the engine had nothing left to do.
    before: Option<u64>,
    /// Whether there was something to do it to.
    done: bool,
    result: Result<Json, String>,
    status: RunStatus,
    /// How many messages nobody read.
    letters: usize,
    ledger: Ledger,
    /// The other runs: their status, and whether a cancel was requested.
    others: Vec<(RunStatus, bool)>,
}

impl Went {
    fn output(&self) -> Json {
        match &self.result {
            Ok(output) => output.clone(),
            other => panic!("before write {:?}: {other:?}", self.before),
        }
    }
}

/// Another process.
struct Other<'a> {
    store: &'a dyn Store,
    now: Timestamp,
}

impl Other<'_> {
    fn write(&self, write: Write) -> Answer {
        // The runner of the engine stands for that of the other process.
        let runner = &self.store.runners().unwrap()[0];
        let fence = Fence { runner: runner.id, epoch: runner.epoch };
        let batch = Batch { fence: Some(fence), now: self.now, writes: vec![write] };
        let applied = self.store.commit(&batch).unwrap();
        self.store.wake_others(None, &[]);
        applied.outcomes.into_iter().next().unwrap()
    }

    /// Ends the run of `other` with this key, with a number below 24; as cancelled if that was
    /// requested.
    fn end(&self, name: &str, output: u8) -> bool {
        let row = self.store.run(&key("other", name)).unwrap();
        let Some(row) = row.filter(|row| !row.status.is_terminal()) else {
            return false;
        };
        let status = match row.cancel_requested {
            None => RunStatus::Completed,
            Some(_) => RunStatus::Cancelled,
        };
        // A small number is one byte of CBOR.
        let output = row.cancel_requested.is_none().then(|| vec![output]);
        let error = None;
        let commit = Commit {
            run: row.id.no(),
            generation: row.generation,
            inbox_seq: None,
            results_only: false,
            last_number: row.last_number,
            numbers: 0,
            deletes: Vec::new(),
            puts: Vec::new(),
            consumed: Vec::new(),
            state: Vec::new(),
            effects: Vec::new(),
            patch: Patch::Finish { status, output, error },
        };
        let answer = self.write(Write::Commit(Box::new(commit)));
        assert!(matches!(answer, Answer::Committed(_)), "{answer:?}");
        true
    }

    /// Sends the message `word` to the run.
    fn send(&self, body: u8) -> bool {
        let delivery = Delivery {
            target: key("run", "k"),
            name: "word".to_owned(),
            body: vec![body],
            dedupe: None,
            request: None,
            inbox_max: 100,
            on_end: Default::default(),
        };
        match self.write(Write::Deliver(Box::new(delivery))) {
            Answer::Delivered(delivered) => delivered.receipt == Receipt::Delivered,
            answer => panic!("{answer:?}"),
        }
    }

    fn cancel(&self, rollback: bool) -> bool {
        let control = Control::Cancel { rollback };
        match self.write(Write::Control(key("run", "k"), control)) {
            Answer::Controlled(controlled) => matches!(controlled, Controlled::Done { .. }),
            answer => panic!("{answer:?}"),
        }
    }
}

fn key(workflow: &str, key: &str) -> Target {
    Target::Key { workflow: workflow.to_owned(), key: key.to_owned() }
}

/// Meddles with one run at every point in turn, in memory and on a file, and looks at each.
async fn everywhere<R>(
    code: impl Fn(Ctx, u32) -> R + Send + Sync + Clone + 'static,
    meddle: impl Fn(&Other<'_>) -> bool + Send + Sync + 'static,
    mut check: impl FnMut(&Went),
) where
    R: Future<Output = Result<Json>> + 'static,
{
    let meddle: Meddle = Arc::new(meddle);
    for on_file in [false, true] {
        let mut orders = 0;
        // The first two are the engine's own.
        for n in 3.. {
            let went = if on_file {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("runs.db");
                let store = SqliteStore::create(&path).unwrap();
                let went = once(store, n, code.clone(), meddle.clone()).await;
                nothing_is_left(&Connection::open(&path).unwrap());
                went
            } else {
                once(MemoryStore::new(), n, code.clone(), meddle.clone()).await
            };
            check(&went);
            if went.before.is_none() {
                break;
            }
            orders += usize::from(went.done);
        }
        assert!(orders > 0, "nothing was done before any write");
    }
}

/// No run that has ended waits, is waited for, is a child, or has an answer that nobody took.
fn nothing_is_left(file: &Connection) {
    let ended = "SELECT no FROM everstep_runs WHERE status IN (5, 6, 7)";
    for rows in [
        format!("everstep_watchers WHERE waiter IN ({ended}) OR run IN ({ended})"),
        format!("everstep_children WHERE run IN ({ended})"),
        format!("everstep_inbox WHERE run IN ({ended})"),
    ] {
        let sql = format!("SELECT count(*) FROM {rows}");
        let left: u32 = file.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{rows}");
    }
}

async fn once<R, S: Store>(
    store: S,
    n: u64,
    code: impl Fn(Ctx, u32) -> R + Send + Sync + 'static,
    meddle: Meddle,
) -> Went
where
    R: Future<Output = Result<Json>> + 'static,
{
    let clock = VirtualClock::new();
    let ledger = Ledger::new();
    let done = Arc::new(AtomicBool::new(false));
    let store = CrashingStore::counting(store).meddle_before(n, {
        let (clock, meddle, done) = (clock.clone(), meddle.clone(), done.clone());
        move |store| {
            let now = clock.now();
            done.store(meddle(&Other { store, now }), Ordering::SeqCst);
        }
    });
    let store = Arc::new(store);
    let engine = Engine::on(store.clone())
        .clock(clock.clone())
        .settings(|settings| settings.threads = 1)
        .provide(ledger.clone())
        .register_fn(RUN, code)
        .register_fn(OWN, own)
        .start()
        .await
        .unwrap();
    let held = clock.hold();
    let client = engine.client();
    let run = client.start(RUN, 1).key("k").await.unwrap();
    drop(held);
    let ended = ended_or_stuck(&clock, &run).await;
    let before = (store.writes() >= n).then_some(n);
    let result = match ended {
        Some(result) => result,
        // The engine has nothing left to do: now the other process has. What that does is heard of
        // in a while, which the clock does not know, so there may be nothing more to do for now.
        None => {
            let to_end = scenario::until("the end of the run", async || {
                let now = clock.now();
                let store = store.inner();
                meddle(&Other { store, now });
                ended_or_stuck(&clock, &run).await
            });
            let ended = tokio::time::timeout(scenario::LIMIT, to_end).await;
            ended.unwrap_or_else(|_| panic!("before write {before:?}: it never ends"))
        }
    };
    drop(clock.quiet().await);
    let status = run.status().await.unwrap();
    let result = result.map_err(|error| error.to_string());
    let letters = client.dead_letters().await.unwrap().letters.len();
    let mut others = Vec::new();
    for workflow in ["own", "other"] {
        for info in client.list().workflow(workflow).await.unwrap().runs {
            let row = store.run(&Target::Id(info.id)).unwrap().unwrap();
            others.push((row.status, row.cancel_requested.is_some()));
        }
    }
    engine.shutdown().await;
    Went { before, done: done.load(Ordering::SeqCst), result, status, letters, ledger, others }
}

async fn ended_or_stuck(
    clock: &Arc<VirtualClock>,
    run: &RunHandle<Json>,
) -> Option<Result<Json, everstep::RunError>> {
    tokio::select! {
        biased;
        result = run.result() => Some(result),
        _ = clock.stuck() => None,
    }
}

/// A child that notes its step and its rollback.
async fn own(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.step_with("work", async |step: Step| {
        step.get::<Ledger>().ran("own");
        Ok(())
    })
    .rollback(async |undo, ()| {
        undo.get::<Ledger>().ran("undo own");
        Ok(())
    })
    .await?;
    ctx.sleep("nap", hours(1)).await?;
    Ok(n + 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_ends_while_its_parent_parks_is_heard() {
    everywhere(
        |ctx, _| async move {
            let child = ctx.child(OTHER, 1).key("c").await?;
            ctx.sleep("nap", hours(1)).await?;
            Ok(json!(child))
        },
        |other| other.end("c", 7),
        |went| assert_eq!(went.output(), json!(7), "before write {:?}", went.before),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_and_a_timer_at_one_instant_have_one_winner() {
    let mut winners = Vec::new();
    everywhere(
        |ctx, _| async move {
            let arms = (ctx.child(OTHER, 1).key("c"), ctx.sleep("late", hours(1)));
            let first = ctx.race("first", arms).await?;
            ctx.sleep("nap", hours(1)).await?;
            Ok(match first {
                First2::A(child) => json!(child),
                First2::B(_) => json!("late"),
            })
        },
        |other| other.end("c", 7),
        |went| {
            let output = went.output();
            assert!([json!(7), json!("late")].contains(&output), "{output}");
            let [(_, cancelled)] = went.others[..] else {
                panic!("{:?}", went.others);
            };
            // A child that has ended was told, or its parent has given it up before.
            if output == "late" {
                assert!(cancelled || went.done, "before write {:?}", went.before);
            } else {
                assert!(!cancelled, "before write {:?}", went.before);
            }
            if !winners.contains(&output) {
                winners.push(output);
            }
        },
    )
    .await;
    assert_eq!(winners.len(), 2, "{winners:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_while_its_end_begins_to_be_waited_for_is_heard() {
    everywhere(
        |ctx, _| async move {
            let id = ctx.child(OTHER, 1).key("c").detach().await?;
            ctx.step("between", async || Ok(())).await?;
            let ending = ctx.finished(id).await?;
            let by_key = ctx.finished(("other", "c")).timeout(hours(1)).await?;
            Ok(json!([ending.output::<u32>()?, by_key.is_some()]))
        },
        |other| other.end("c", 7),
        |went| {
            let before = went.before;
            assert_eq!(went.output(), json!([7, true]), "before write {before:?}");
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_one_generation_does_not_reach_the_next() {
    everywhere(
        |ctx, _| async move {
            if ctx.generation() == 1 {
                let child = ctx.child(OTHER, 1).key("c").close(Close::Leave);
                let arms = (child, ctx.sleep("late", hours(1)));
                ctx.race("first", arms).await?;
                // Still waited for when the run continues, at the place where the next one waits.
                let mut open = std::pin::pin!(ctx.finished(("other", "c")));
                everstep::select! {
                    _ = &mut open => {},
                    nap = ctx.sleep("nap", hours(1)) => drop(nap?),
                }
                return ctx.continue_as(2).await;
            }
            let child = ctx.child(OTHER, 1).key("d");
            let arms = (child, ctx.sleep("late", hours(1)));
            let first = ctx.race("first", arms).await?;
            let open = ctx.finished(("other", "d")).await?;
            let first = matches!(first, First2::A(9));
            Ok(json!([first, open.status == RunStatus::Completed]))
        },
        |other| other.end("c", 7) || other.end("d", 9),
        |went| {
            // `d` is given up after an hour, and then cancelled, unless it has ended by then.
            let output = went.output();
            let known = [json!([false, false]), json!([true, true])];
            assert!(known.contains(&output), "before {:?}: {output}", went.before);
        },
    )
    .await;
}

/// A run was lost when another process pointed to it while it continued. The look at its row found the
/// next generation before the answer to the commit had come, so the run was dropped from memory;
/// the answer, which reads it anew, then found nobody, and nothing in the store says that such a run
/// is due.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_overtakes_the_answer_to_a_commit_does_not_lose_the_run() {
    const BUSY: Workflow<(), ()> = Workflow::new("busy");
    let store = CrashingStore::counting(MemoryStore::new()).meddle_after(|store: &MemoryStore| {
        let row = store.run(&key("run", "k")).unwrap();
        let continued = row.filter(|row| row.generation == 2);
        if let Some(row) = &continued {
            store.wake_others(None, &[row.id.no()]);
            // Time for the look. It may come too late, and then it finds nothing strange.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        continued.is_some()
    });
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let engine = Engine::on(Arc::new(store))
        .settings(|settings| settings.threads = 1)
        .register_fn(BUSY, move |ctx, ()| {
            let gate = gate.clone();
            async move {
                let body = async || {
                    _ = gate.clone().wait_for(|open| *open).await;
                    Ok(())
                };
                ctx.step("work", body).await
            }
        })
        .register_fn(RUN, |ctx, n: u32| async move {
            if ctx.generation() == 1 {
                return ctx.continue_as(n + 1).await;
            }
            ctx.step("last", async || Ok(json!(n))).await
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    // With others in memory, the engine thread does not commit by itself but goes on meanwhile.
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(client.start(BUSY, ()).await.unwrap());
    }
    let run = client.start(RUN, 1).key("k").await.unwrap();
    let result = tokio::time::timeout(scenario::LIMIT, run.result()).await;
    assert_eq!(result.expect("the run goes on").unwrap(), json!(2));
    go_on.send_replace(true);
    for other in others {
        other.result().await.unwrap();
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_while_a_run_completes_is_read_or_a_dead_letter() {
    everywhere(
        |ctx, _| async move {
            ctx.step("work", async || Ok(())).await?;
            let heard: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            ctx.step("after", async || Ok(())).await?;
            Ok(json!(heard))
        },
        |other| other.send(7),
        |went| {
            let heard = usize::from(went.output() == json!(7));
            let sent = usize::from(went.done);
            assert_eq!(heard + went.letters, sent, "before write {:?}", went.before);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrives_while_a_run_continues_is_read_by_the_next_generation() {
    everywhere(
        |ctx, _| async move {
            if ctx.generation() == 1 {
                let mut open = std::pin::pin!(ctx.listen::<u32>("another").timeout(hours(1)));
                everstep::select! {
                    heard = &mut open => assert_eq!(heard?, None),
                    nap = ctx.sleep("nap", hours(1)) => drop(nap?),
                }
                return ctx.continue_as(2).await;
            }
            let heard: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
            Ok(json!(heard))
        },
        |other| other.send(7),
        |went| {
            let heard = usize::from(went.output() == json!(7));
            let sent = usize::from(went.done);
            assert_eq!(heard + went.letters, sent, "before write {:?}", went.before);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_any_moment_is_honest_and_reaches_the_child() {
    for rollback in [false, true] {
        let mut ends = Vec::new();
        everywhere(
            |ctx, _| async move {
                // The child and the timer end at the same instant.
                let arms = (ctx.child(OWN, 1), ctx.sleep("late", hours(1)));
                ctx.join("both", arms).await?;
                ctx.sleep("nap", hours(1)).await?;
                ctx.step("last", async || Ok(())).await?;
                Ok(json!("done"))
            },
            move |other| other.cancel(rollback),
            |went| {
                let before = went.before;
                let cancelled = went.status == RunStatus::Cancelled;
                assert_eq!(went.done, cancelled, "before write {before:?}");
                if !cancelled {
                    assert_eq!(went.output(), json!("done"));
                }
                for (status, cancelled) in &went.others {
                    assert!(status.is_terminal(), "before write {before:?}");
                    assert!(*cancelled || *status == RunStatus::Completed);
                    if *status == RunStatus::Cancelled {
                        let undone = went.ledger.count("undo own");
                        let done = rollback && went.ledger.count("own") > 0;
                        assert_eq!(undone, usize::from(done), "before write {before:?}");
                    }
                    if !ends.contains(&(*status, went.status)) {
                        ends.push((*status, went.status));
                    }
                }
            },
        )
        .await;
        let (completed, cancelled) = (RunStatus::Completed, RunStatus::Cancelled);
        for end in [(cancelled, cancelled), (completed, cancelled), (completed, completed)] {
            assert!(ends.contains(&end), "{end:?} is not among {ends:?}");
        }
    }
}
