//! Runs as files: exported, replayed against code in a test, imported into another store.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use everstep::{
    RunStatus,
    prelude::*,
    store::{SqliteStore, Store},
    testing::{self, VirtualClock},
};
use scenario::{until, until_paused, until_status};

/// A run of [`checkout`] that was exported by the first version that could: it must be read, and
/// fit, forever. `UPDATE_FIXTURES=1` writes it where there is none.
const GOLDEN: &[u8] = include_bytes!("../fixtures/checkout_1.run");

#[workflow(name = "checkout")]
async fn checkout(ctx: Ctx, item: String) -> Result<String> {
    ctx.set_state("item", &item)?;
    ctx.step("reserve", async || Ok(7_u32)).rollback(async |_, _| Ok(())).await?;
    ctx.sleep("settle", hours(1)).await?;
    let paid: u32 = ctx.listen("paid").await?;
    ctx.listen::<()>("shipped").await?;
    Ok(format!("{item} for {paid}"))
}

/// The checkout with another name for its first step.
mod renamed {
    use everstep::prelude::*;

    #[workflow(name = "checkout")]
    pub(crate) async fn checkout(ctx: Ctx, item: String) -> Result<String> {
        ctx.step("hold", async || Ok(7_u32)).await?;
        Ok(item)
    }
}

async fn until_sleeping<O>(run: &RunHandle<O>, waiting: &str) {
    until(waiting, async || {
        let info = run.info().await.unwrap();
        let at_rest = info.status == RunStatus::Sleeping;
        (at_rest && info.waiting.as_deref() == Some(waiting)).then_some(())
    })
    .await;
}

/// A run that waits for `shipped`, with an unread message of another name.
async fn exported(store: Arc<dyn Store>) -> (RunHandle<String>, Vec<u8>, Engine) {
    let engine = Engine::on(store).clock(VirtualClock::new());
    let engine = engine.register(checkout).start().await.unwrap();
    let start = engine.client().start(checkout, "teapot".to_owned());
    let run = start.key("order-7").tag("team", "tea").await.unwrap();
    run.send("later", &"unread").await.unwrap();
    run.send("paid", &4_200_u32).await.unwrap();
    until_sleeping(&run, "message for `shipped`").await;
    let file = run.export().await.unwrap();
    (run, file, engine)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_is_replayed_without_an_engine() {
    let (run, file, engine) = exported(testing::store()).await;
    let replayed = testing::replay(&file).against(checkout).unwrap();
    assert_eq!((replayed.run, replayed.version), (run.id(), 1));
    assert_eq!(replayed.status, RunStatus::Sleeping);
    assert_eq!(replayed.completions, 3, "reserve, settle, paid");
    assert_eq!(replayed.open, ["shipped"]);
    assert!(!replayed.ended);
    // A run that has ended is replayed to its end.
    run.send("shipped", &()).await.unwrap();
    run.result().await.unwrap();
    let ended = run.export().await.unwrap();
    let replayed = testing::replay(ended).against(checkout).unwrap();
    assert_eq!((replayed.completions, replayed.ended), (4, true));
    assert!(replayed.open.is_empty());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_against_code_that_differs_says_what_the_pause_would_say() {
    let store: Arc<dyn Store> = testing::store();
    let (run, file, engine) = exported(store.clone()).await;
    let error = testing::replay(&file).against(renamed::checkout).unwrap_err();
    engine.shutdown().await;
    let engine = Engine::on(store).register(renamed::checkout);
    let engine = engine.start().await.unwrap();
    let run = engine.client().run::<String>(run.id());
    run.send("shipped", &()).await.unwrap();
    let reason = until_paused(&run).await;
    assert!(reason.contains("`reserve`") && reason.contains("`hold`"), "{reason}");
    assert_eq!(error.to_string(), format!("run {} would be paused: {reason}", run.id()));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_and_was_rolled_back_is_replayed_up_to_its_error() {
    const FAILS: Workflow<bool, ()> = Workflow::new("fails");
    let code = |ctx: Ctx, own: bool| async move {
        for name in ["a", "b"] {
            ctx.step(name, async || Ok(())).rollback(async |_, ()| Ok(())).await?;
        }
        if own {
            return Err(Error::rollback("of its own"));
        }
        ctx.step("c", async || Err(Error::fatal("of a step"))).await
    };
    let engine = testing::engine().register_fn(FAILS, code).start().await;
    let engine = engine.unwrap();
    for own in [true, false] {
        let run = engine.client().start(FAILS, own).await.unwrap();
        assert!(run.result().await.is_err());
        let file = run.export().await.unwrap();
        let replayed = testing::replay(&file).against_fn(FAILS, code).unwrap();
        assert_eq!(replayed.status, RunStatus::Failed);
        assert_eq!(replayed.completions, if own { 2 } else { 3 });
        assert!(replayed.ended);
        let other = |ctx: Ctx, _| async move { ctx.step("b", async || Ok(())).await };
        let error = testing::replay(&file).against_fn(FAILS, other).unwrap_err();
        assert!(error.to_string().contains("`b` was made after"), "{error}");
    }
    engine.shutdown().await;
}

/// A file holds what is about the run as a whole beside the entries of its history: the origins of its
/// failure, and a mark of what its code has emitted. The import took these for damaged entries, so a run
/// that had emitted an item, or had failed in a step, could be exported and not imported.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_emitted_or_failed_in_a_step_is_imported() {
    const EMITS: Workflow<bool, u32> = Workflow::new("emits");
    let code = |ctx: Ctx, fails: bool| async move {
        ctx.emit("progress", &1_u32)?;
        ctx.step("a", async || Ok(())).await?;
        ctx.emit("progress", &2_u32)?;
        match fails {
            true => ctx.step("b", async || Err(Error::fatal("of a step"))).await,
            false => Ok(7),
        }
    };
    let engine = testing::engine().register_fn(EMITS, code).start().await.unwrap();
    let other = Engine::on(testing::store()).register_fn(EMITS, code).start().await.unwrap();
    for fails in [false, true] {
        let run = engine.client().start(EMITS, fails).await.unwrap();
        let ended = run.result().await;
        let file = run.export().await.unwrap();
        let imported = other.client().import(&file).await.unwrap();
        assert_eq!(imported.id(), run.id());
        let imported = other.client().run::<u32>(run.id());
        assert_eq!(imported.result().await.ok(), ended.ok());
        assert_eq!(imported.status().await.unwrap(), run.status().await.unwrap());
    }
    engine.shutdown().await;
    other.shutdown().await;
}

/// The rollback of a loser was taken for one at the end of the run if nothing was taken after it, so the
/// replay stood still there, and the code behind the race was not tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_with_the_rollback_of_a_loser_is_replayed_to_its_end() {
    const RACES: Workflow<(), usize> = Workflow::new("races");
    let code = |ctx: Ctx, ()| async move {
        let loser = async |ctx: Ctx| {
            ctx.step("book", async || Ok(())).rollback(async |_, ()| Ok(())).await?;
            ctx.sleep("late", hours(1)).await?;
            Ok(())
        };
        let winner = async |ctx: Ctx| {
            ctx.sleep("soon", minutes(1)).await?;
            Ok(())
        };
        let won = ctx.race("race", [branch("loser", loser), branch("winner", winner)]).await?;
        Ok(won.index)
    };
    let engine = testing::engine().register_fn(RACES, code).start().await.unwrap();
    let run = engine.client().start(RACES, ()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    let file = run.export().await.unwrap();
    let replayed = testing::replay(file).against_fn(RACES, code).unwrap();
    assert_eq!((replayed.completions, replayed.ended), (3, true), "{:?}", replayed.open);
    engine.shutdown().await;
}

/// A retry sets the rollbacks of the attempt before aside, with their numbers. These were taken for
/// numbers of the code, so that the rollbacks of the next attempt seemed to be completions that the
/// code does not take.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_and_was_rolled_back_twice_is_replayed_up_to_its_last_error() {
    const FAILS: Workflow<(), ()> = Workflow::new("fails");
    let code = |ctx: Ctx, ()| async move {
        for name in ["a", "b", "c"] {
            ctx.step(name, async || Ok(())).rollback(async |_, ()| Ok(())).await?;
        }
        ctx.step("d", async || Err(Error::fatal("of a step"))).await
    };
    let engine = testing::engine().register_fn(FAILS, code).start().await;
    let engine = engine.unwrap();
    let run = engine.client().start(FAILS, ()).await.unwrap();
    assert!(run.result().await.is_err());
    run.retry().await.unwrap();
    assert!(run.result().await.is_err());
    let file = run.export().await.unwrap();
    let replayed = testing::replay(&file).against_fn(FAILS, code).unwrap();
    assert_eq!((replayed.status, replayed.completions), (RunStatus::Failed, 4));
    engine.shutdown().await;
}

/// A run that was cancelled has no failure with the number of its end, so the rollback of a loser was taken
/// for one at its end, too, and what the code had made behind the race for something it does not make.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cancelled_behind_the_rollback_of_a_loser_is_replayed_up_to_its_wait() {
    const WAITS: Workflow<(), ()> = Workflow::new("waits");
    let code = |ctx: Ctx, ()| async move {
        let loser = async |ctx: Ctx| {
            ctx.step("book", async || Ok(())).rollback(async |_, ()| Ok(())).await?;
            ctx.sleep("late", hours(1)).await?;
            Ok(())
        };
        let winner = async |ctx: Ctx| {
            ctx.sleep("soon", minutes(1)).await?;
            Ok(())
        };
        ctx.race("race", [branch("loser", loser), branch("winner", winner)]).await?;
        ctx.listen::<()>("end").await
    };
    let engine = testing::engine().register_fn(WAITS, code).start().await.unwrap();
    let run = engine.client().start(WAITS, ()).await.unwrap();
    until_sleeping(&run, "message for `end`").await;
    assert!(run.cancel().await.unwrap());
    until_status(&run, RunStatus::Cancelled).await;
    let file = run.export().await.unwrap();
    let replayed = testing::replay(file).against_fn(WAITS, code).unwrap();
    assert_eq!((replayed.completions, replayed.ended), (3, false));
    assert_eq!(replayed.open, ["end"]);
    engine.shutdown().await;
}

/// A run that fails by an error of its own code recorded no number of its end, so the rollback of a loser was
/// taken for one at its end if nothing was recorded after it. The replay stood still there, and what the
/// code does behind the race was not tried.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_behind_the_rollback_of_a_loser_is_replayed_to_its_error() {
    const FAILS: Workflow<(), ()> = Workflow::new("fails-behind");
    let code = |ctx: Ctx, ()| async move {
        let loser = async |ctx: Ctx| {
            ctx.step("book", async || Ok(())).rollback(async |_, ()| Ok(())).await?;
            ctx.sleep("late", hours(1)).await?;
            Ok(())
        };
        let winner = async |ctx: Ctx| {
            let pay = ctx.step("pay", async || Ok(())).rollback(async |_, ()| Ok(()));
            pay.await?;
            ctx.sleep("soon", minutes(1)).await?;
            Ok(())
        };
        ctx.race("race", [branch("loser", loser), branch("winner", winner)]).await?;
        Err(Error::fatal("of the code"))
    };
    let engine = testing::engine().register_fn(FAILS, code).start().await.unwrap();
    let run = engine.client().start(FAILS, ()).await.unwrap();
    assert!(run.result().await.is_err());
    let file = run.export().await.unwrap();
    let replayed = testing::replay(file).against_fn(FAILS, code).unwrap();
    // Both steps, the sleep and the rollback of the loser. That of the winner was at the end.
    assert_eq!((replayed.completions, replayed.ended), (4, true), "{:?}", replayed.open);
    let refused = run.retry().await.unwrap_err();
    assert!(refused.to_string().contains("made by the workflow's own code"), "{refused}");
    engine.shutdown().await;
}

#[test]
fn a_replay_against_another_workflow_or_version_is_refused() {
    const OTHER: Workflow<String, String> = Workflow::new("other");
    const LATER: Workflow<String, String> = Workflow::new("checkout").version(2);
    let code = |_, item| async move { Ok(item) };
    let error = testing::replay(GOLDEN).against_fn(OTHER, code).unwrap_err();
    assert!(error.to_string().contains("is of `checkout` version 1"));
    let error = testing::replay(GOLDEN).against_fn(LATER, code).unwrap_err();
    assert!(error.to_string().ends_with("serves versions 2 only"));
}

#[test]
fn a_file_of_the_first_format_is_read_and_fits() {
    let replayed = testing::replay(GOLDEN).against(checkout).unwrap();
    assert_eq!(replayed.run.to_string(), "019b76da-a800-75ca-a311-9e283536d6fe");
    assert_eq!(replayed.completions, 3);
    assert_eq!(replayed.open, ["shipped"]);
}

#[test]
fn a_damaged_file_is_an_error() {
    for end in 0..GOLDEN.len() {
        let cut = testing::replay(&GOLDEN[..end]).against(checkout);
        assert!(cut.is_err(), "{end} bytes of it");
    }
    let mut later = GOLDEN.to_vec();
    later[12] = 9;
    let error = testing::replay(later).against(checkout).unwrap_err();
    assert!(error.to_string().contains("format version 9"), "{error}");
    let error = testing::replay("hello").against(checkout).unwrap_err();
    assert!(error.to_string().contains("not a run"), "{error}");
}

async fn goes_on_elsewhere(from: Arc<dyn Store>, to: Arc<dyn Store>) {
    let (run, file, engine) = exported(from).await;
    let before = run.info().await.unwrap();
    let history = run.history().await.unwrap();
    engine.shutdown().await;

    let engine = Engine::on(to).clock(VirtualClock::new()).register(checkout);
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let moved = client.import(&file).await.unwrap();
    assert_eq!(moved.id(), run.id());
    let after = moved.info().await.unwrap();
    let mut same = after.clone();
    same.updated_at = before.updated_at;
    assert_eq!(same, before);
    assert_eq!(moved.history().await.unwrap(), history);
    let item: Option<String> = moved.state("item").await.unwrap();
    assert_eq!(item.as_deref(), Some("teapot"));
    assert_eq!(client.list().tag("team", "tea").await.unwrap().runs.len(), 1);
    // Exported again, it is the same file but for the time of its row.
    let replayed = testing::replay(moved.export().await.unwrap()).against(checkout);
    assert_eq!(replayed.unwrap().completions, 3);

    let error = client.import(&file).await.unwrap_err();
    assert!(error.to_string().contains("its id is taken"), "{error}");
    assert_eq!(client.count().await.unwrap(), 1);

    let again = client.start(checkout, "teapot".to_owned()).key("order-7");
    let again = again.await.unwrap();
    assert!(again.attached() && !again.input_differs());
    again.send("shipped", &()).await.unwrap();
    assert_eq!(again.result().await.unwrap(), "teapot for 4200");
    let letters = client.dead_letters().run(run.id()).await.unwrap().letters;
    assert_eq!(letters.len(), 1, "the unread message came along");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_run_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name| -> Arc<dyn Store> {
        Arc::new(SqliteStore::create(folder.path().join(name)).unwrap())
    };
    let memory = || -> Arc<dyn Store> { testing::store() };
    goes_on_elsewhere(memory(), file("a.db")).await;
    goes_on_elsewhere(file("b.db"), memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_key_is_taken_is_not_imported() {
    let (_, file, engine) = exported(testing::store()).await;
    engine.shutdown().await;
    let engine = testing::engine().register(checkout).start().await.unwrap();
    let client = engine.client();
    let start = client.start(checkout, "cup".to_owned()).key("order-7");
    let taken = start.await.unwrap();
    let error = client.import(&file).await.unwrap_err().to_string();
    assert!(error.contains(&format!("`order-7`, by run {}", taken.id())), "{error}");
    assert_eq!(client.count().await.unwrap(), 1);
    let error = client.import(b"something else").await.unwrap_err();
    assert!(error.to_string().contains("the file cannot be decoded"), "{error}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_exported_in_a_body_does_that_body_again() {
    const WORK: Workflow<(), u32> = Workflow::new("work");
    let calls = Arc::new(AtomicU32::new(0));
    let gate = Arc::new(tokio::sync::Notify::new());
    let code = |open: bool| {
        let (calls, gate) = (calls.clone(), gate.clone());
        testing::engine().register_fn(WORK, move |ctx: Ctx, ()| {
            let (calls, gate) = (calls.clone(), gate.clone());
            async move {
                ctx.step("one", async || Ok(())).await?;
                ctx.step("two", async || {
                    let call = calls.fetch_add(1, Ordering::SeqCst);
                    if !open {
                        gate.notified().await;
                    }
                    Ok(call)
                })
                .await
            }
        })
    };
    let first = code(false).settings(|s| s.shutdown_limit = std::time::Duration::ZERO);
    let first = first.start().await.unwrap();
    let run = first.client().start(WORK, ()).await.unwrap();
    until("the body", async || (calls.load(Ordering::SeqCst) == 1).then_some(())).await;
    let file = run.export().await.unwrap();
    first.shutdown().await;
    let second = code(true).start().await.unwrap();
    let moved = second.client().import(&file).await.unwrap();
    let moved = second.client().run::<u32>(moved.id());
    assert_eq!(moved.result().await.unwrap(), 1);
    until_status(&moved, RunStatus::Completed).await;
    second.shutdown().await;
}

/// Writes the golden file. It is never to be written again, so it refuses to.
#[tokio::test(flavor = "multi_thread")]
async fn the_golden_file_is_written_once() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/checkout_1.run");
    let there = std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
    if there || std::env::var_os("UPDATE_FIXTURES").is_none() {
        assert!(there, "set UPDATE_FIXTURES=1 to write {path}");
        return;
    }
    let (_, file, engine) = exported(testing::store()).await;
    std::fs::write(path, file).unwrap();
    engine.shutdown().await;
}

/// Everything that can be done to a file by cutting it off, and much that can be by changing a byte.
fn damaged(file: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let cut = (0..file.len()).map(move |len| file[..len].to_vec());
    let changed = (0..file.len()).flat_map(move |at| {
        [0x00, 0x01, 0x7F, 0x80, 0xFF, file[at] ^ 1].map(|byte| {
            let mut bytes = file.to_vec();
            bytes[at] = byte;
            bytes
        })
    });
    let longer = (1..4).map(move |more| [file, &vec![0; more]].concat());
    cut.chain(changed).chain(longer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_imported_whole_or_not_at_all() {
    let (_run, file, engine) = exported(Arc::new(everstep::store::MemoryStore::new())).await;
    engine.shutdown().await;
    let new_store = || Arc::new(everstep::store::MemoryStore::new());
    let (mut store, mut taken, mut refused) = (new_store(), 0, 0);
    let mut client = Client::on(store.clone()).unwrap();
    for bytes in damaged(&file) {
        match client.import(&bytes).await {
            Ok(run) => {
                taken += 1;
                // It is as the file says, and can be given back.
                let again = run.export().await.unwrap();
                store = new_store();
                client = Client::on(store.clone()).unwrap();
                client.import(&again).await.unwrap();
                store = new_store();
                client = Client::on(store.clone()).unwrap();
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
                let left = store.list(&everstep::Filter::default(), None, 10).unwrap();
                assert!(left.is_empty(), "{error}: {left:?}");
            }
        }
    }
    assert!(taken > 100 && refused > 1_000, "{taken} {refused}");
}

/// Counts that the bytes do not back reserve no memory, and rows that a store would choke on do not reach
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_file_is_refused_with_a_reason() {
    let (_run, file, engine) = exported(Arc::new(everstep::store::MemoryStore::new())).await;
    engine.shutdown().await;
    let client = Client::on(Arc::new(everstep::store::MemoryStore::new())).unwrap();
    let end = file.len();
    // The list of values at the end of the file has one: its count is made as large as can be.
    let state = file.windows(4).rposition(|bytes| bytes == b"item").unwrap() - 2;
    let mut huge = file[..state].to_vec();
    huge.extend([0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]);
    // The same value twice.
    let mut twice = file[..state].to_vec();
    twice.push(2);
    twice.extend([&file[state + 1..end], &file[state + 1..end]].concat());
    // An escape sequence for the terminal of whoever lists runs.
    let mut hidden = file.clone();
    let name = file.windows(8).position(|bytes| bytes == b"checkout").unwrap();
    hidden[name] = 0x1B;
    // A value of 100 000 lists, each in the one before: it was found when somebody read it.
    let mut nested = file[..state + 6].to_vec();
    nested.extend([0xA1, 0x8D, 0x06]);
    nested.extend([0x81; 100_000]);
    nested.push(0xF6);
    // An envelope of a codec that ends before it says which.
    let mut sealed = file[..state + 6].to_vec();
    sealed.extend([2, 0xFF, 1]);
    for (bytes, reason) in [
        (huge, "end too early"),
        (twice, "twice"),
        (hidden, "control"),
        (nested, "too deeply nested"),
        (sealed, "cannot be read"),
    ] {
        let error = client.import(&bytes).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    client.import(&file).await.unwrap();
}
