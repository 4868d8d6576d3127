//! Payloads through a codec: nothing of them is stored in plain, keys are rotated under running
//! work, and what cannot be read waits for its key.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use everstep::{
    Codec, CodecError, EngineBuilder, Outcome, PayloadContext, RunStatus,
    prelude::*,
    store::{Filter, SqliteStore, Store},
    testing::{self, CrashTest, Ledger, VirtualClock},
};
use scenario::{until, until_paused};
use serde::{Deserialize, Serialize};

/// A toy that does what a real cipher does: other bytes each time, a key that must be known, and a
/// sum that is wrong for another run. Format: the key's id, a nonce, a sum, what is left.
#[derive(Clone, Default)]
struct Xor {
    keys: Arc<Mutex<BTreeMap<u8, u8>>>,
    nonce: Arc<AtomicU8>,
    broken: Arc<AtomicBool>,
    /// Writes with the first key.
    old: bool,
}

impl Xor {
    /// With these keys, by id; the last one is written with.
    fn with(ids: &[u8]) -> Xor {
        let xor = Xor::default();
        let keys = ids.iter().map(|id| (*id, id.wrapping_mul(37) | 0x80));
        xor.keys.lock().unwrap().extend(keys);
        xor
    }
}

fn sum(payload: &[u8], about: &PayloadContext) -> u8 {
    let run = about.run.map(|run| run.as_uuid().into_bytes());
    let all = payload.iter().chain(run.iter().flatten());
    all.fold(7, |sum: u8, byte| sum.rotate_left(1) ^ byte)
}

impl Codec for Xor {
    fn id(&self) -> &str {
        "xor"
    }

    fn encode(&self, payload: Vec<u8>, about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        if self.broken.load(Ordering::SeqCst) {
            return Err("the vault is closed".into());
        }
        let keys = self.keys.lock().unwrap();
        let key = match self.old {
            true => keys.first_key_value(),
            false => keys.last_key_value(),
        };
        let (id, key) = key.ok_or("there is no key")?;
        let nonce = self.nonce.fetch_add(1, Ordering::SeqCst);
        let mut sealed = vec![*id, nonce, sum(&payload, about)];
        sealed.extend(payload.iter().map(|byte| byte ^ key ^ (nonce & 0x3F)));
        Ok(sealed)
    }

    fn decode(&self, bytes: &[u8], about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        let [id, nonce, expected, sealed @ ..] = bytes else {
            return Err("it is too short".into());
        };
        let keys = self.keys.lock().unwrap();
        let key = keys.get(id).ok_or_else(|| format!("key {id} is not here"))?;
        let open = |byte: &u8| byte ^ key ^ (nonce & 0x3F);
        let payload: Vec<u8> = sealed.iter().map(open).collect();
        if sum(&payload, about) != *expected {
            return Err("it belongs to another run".into());
        }
        Ok(payload)
    }
}

const SECRET: &str = "s3cret";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Card {
    number: String,
}

fn card(number: u32) -> Card {
    Card { number: format!("{SECRET}-{number}") }
}

const PAY: Workflow<Card, Card> = Workflow::new("pay");
const OTHER: Workflow<(), Card> = Workflow::new("other");

/// Everything that has a payload.
async fn pay(ctx: Ctx, given: Card) -> Result<Card> {
    ctx.set_state("card", &given)?;
    let kept: Card = ctx
        .step("keep", async || Ok(card(2)))
        .rollback(async |_, kept| match kept == card(2) {
            true => Ok(()),
            false => Err(Error::fatal("another card")),
        })
        .await?;
    let question = ctx.receive::<Card>("question").await?;
    question.reply(&question.body)?;
    let failed =
        ctx.step("fail", async || Err::<(), _>(Error::fatal("declined").with_details(&card(3))));
    let Outcome::Failed { failure, .. } = failed.outcome().await? else {
        return Err(Error::fatal("it should fail"));
    };
    let details: Card = failure.details().unwrap();
    let looped = ctx
        .repeat("loop", card(4), async |ctx, state: Card| {
            let more: Card = ctx.listen("more").await?;
            Ok(match more == card(0) {
                true => ControlFlow::Break(state),
                false => ControlFlow::Continue(more),
            })
        })
        .await?;
    if looped == card(9) {
        return Err(Error::rollback("refused").with_details(&looped));
    }
    ctx.step("check", async || match (&kept, &details) {
        (kept, details) if *kept == card(2) && *details == card(3) => Ok(()),
        _ => Err(Error::fatal("it was changed")),
    })
    .await?;
    Ok(looped)
}

fn on(store: &Arc<dyn Store>) -> EngineBuilder {
    Engine::on(store.clone()).clock(VirtualClock::new()).register_fn(PAY, pay)
}

/// Everything that is stored, as bytes.
fn stored(store: &dyn Store) -> Vec<u8> {
    let mut all = Vec::new();
    for row in store.list(&Filter::default(), None, 1_000).unwrap() {
        let loaded = store.load(row.id.no()).unwrap().unwrap();
        all.extend(loaded.row.input);
        all.extend(loaded.row.output.unwrap_or_default());
        all.extend(loaded.row.error.unwrap_or_default());
        all.extend(loaded.history.into_iter().flat_map(|put| put.value));
        all.extend(loaded.inbox.into_iter().flat_map(|row| row.body));
        let state = store.state(row.id.no()).unwrap();
        all.extend(state.into_iter().flat_map(|(_, value)| value));
    }
    let letters = store.dead_letters(&Default::default(), 0, 1_000).unwrap();
    all.extend(letters.into_iter().flat_map(|letter| letter.body));
    all
}

fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

async fn until_waiting<O>(run: &RunHandle<O>, waiting: &str) {
    until(waiting, async || {
        let info = run.info().await.unwrap();
        let sleeping = info.status == RunStatus::Sleeping;
        (sleeping && info.waiting.as_deref() == Some(waiting)).then_some(())
    })
    .await;
}

/// Runs two orders through everything, one to its output and one to its rollback.
async fn all_of_it(client: &Client) {
    for last in [5, 9] {
        let start = client.start(PAY, card(1)).key(format!("order-{last}"));
        let run = start.await.unwrap();
        let reply: Card = run.request("question", &card(7)).await.unwrap();
        assert_eq!(reply, card(7));
        run.send("unread", &card(8)).await.unwrap();
        for n in [6, last, 0] {
            let send = run.send("more", &card(n));
            send.dedupe(format!("{n}")).await.unwrap();
        }
        match last {
            5 => assert_eq!(run.result().await.unwrap(), card(5)),
            _ => {
                let error = run.result().await.unwrap_err();
                let failure = error.failure().unwrap();
                assert_eq!(failure.details::<Card>(), Some(card(9)));
            }
        }
        // What people see is in plain.
        let info = run.info().await.unwrap();
        assert_eq!(info.input["number"], "s3cret-1");
        let state: Option<Card> = run.state("card").await.unwrap();
        assert_eq!(state, Some(card(1)));
        assert_eq!(run.state_json().await.unwrap()["card"]["number"], "s3cret-1");
        let history = run.history().await.unwrap();
        let at = |name: &str| history.iter().find(|e| e.location == name).unwrap();
        assert_eq!(at("keep").value.as_ref().unwrap()["number"], "s3cret-2");
        let failure = at("fail").failure.as_ref().unwrap();
        assert_eq!(failure.details::<Card>(), Some(card(3)));
        let letters = client.dead_letters().run(run.id()).await.unwrap().letters;
        assert!(letters.iter().any(|letter| has_secret(letter.body.to_string().as_bytes())));
        // The same input is the same, whatever its bytes are.
        let again = client.start(PAY, card(1)).key(format!("order-{last}"));
        let again = again.await.unwrap();
        assert!(again.attached() && !again.input_differs());
        let other = client.start(PAY, card(2)).key(format!("order-{last}"));
        assert!(other.await.unwrap().input_differs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_payload_is_stored_in_plain() {
    let store: Arc<dyn Store> = testing::store();
    let engine = on(&store).codec(Xor::with(&[1])).start().await.unwrap();
    all_of_it(&engine.client()).await;
    engine.shutdown().await;
    assert!(!has_secret(&stored(&*store)));
    // The search finds it where there is no codec.
    let store: Arc<dyn Store> = testing::store();
    let engine = on(&store).start().await.unwrap();
    all_of_it(&engine.client()).await;
    engine.shutdown().await;
    assert!(has_secret(&stored(&*store)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_holds_no_payload_and_a_client_of_its_own_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::create(&path).unwrap());
    let engine = on(&store).codec(Xor::with(&[1])).start().await.unwrap();
    let client = Client::open(&path).await.unwrap().codec(Xor::with(&[1]));
    all_of_it(&client).await;
    // One without the codec is told which one it needs.
    let without = Client::open(&path).await.unwrap();
    let run = without.get_typed(PAY, ("pay", "order-5")).await.unwrap();
    let error = run.unwrap().result().await.unwrap_err().to_string();
    assert!(
        error.contains("codec `xor`, which this process does not have; give the client the codec"),
        "{error}"
    );
    drop((client, without));
    engine.shutdown().await;
    drop(store);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        assert!(!has_secret(&bytes));
    }
}

/// Starts an order with one engine, and leaves it at its first message.
async fn parked(engine: EngineBuilder) -> everstep::RunId {
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(PAY, card(1)).await.unwrap();
    until_waiting(&run, "message for `question`").await;
    engine.shutdown().await;
    run.id()
}

/// Takes a parked order to its end.
async fn goes_on(engine: EngineBuilder, id: everstep::RunId) {
    let engine = engine.start().await.unwrap();
    let run = engine.client().run::<Card>(id);
    let _: Card = run.request("question", &card(7)).await.unwrap();
    run.send("more", &card(6)).await.unwrap();
    run.send("more", &card(0)).await.unwrap();
    assert_eq!(run.result().await.unwrap(), card(6));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_codec_is_switched_on_under_running_work() {
    let store: Arc<dyn Store> = testing::store();
    let id = parked(on(&store)).await;
    goes_on(on(&store).codec(Xor::with(&[1])), id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_rotated_under_running_work() {
    let store: Arc<dyn Store> = testing::store();
    let id = parked(on(&store).codec(Xor::with(&[1]))).await;
    let both = Xor::with(&[1, 2]);
    goes_on(on(&store).codec(both), id).await;
    let output = store.load(id.no()).unwrap().unwrap().row.output.unwrap();
    assert_eq!(output[..8], *b"\xFF\x01\x00\x03xor\x02", "with the new key");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_codec_takes_the_place_of_another() {
    struct Reverse;
    impl Codec for Reverse {
        fn id(&self) -> &str {
            "reverse"
        }
        fn encode(&self, bytes: Vec<u8>, _: &PayloadContext) -> Result<Vec<u8>, CodecError> {
            Ok(bytes.into_iter().rev().collect())
        }
        fn decode(&self, bytes: &[u8], _: &PayloadContext) -> Result<Vec<u8>, CodecError> {
            Ok(bytes.iter().rev().copied().collect())
        }
    }
    let store: Arc<dyn Store> = testing::store();
    let id = parked(on(&store).codec(Xor::with(&[1]))).await;
    goes_on(on(&store).codec(Xor::with(&[1])).codec(Reverse), id).await;
    let output = store.load(id.no()).unwrap().unwrap().row.output.unwrap();
    assert!(output.starts_with(b"\xFF\x01\x00\x07reverse"));
}

/// Goes on without what is needed: the order is paused for this reason, keeps its history, and
/// goes on by itself with an engine that has it.
async fn waits_for_it(without: impl Fn(EngineBuilder) -> EngineBuilder, reason: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::create(folder.path().join("runs.db")).unwrap();
    let stores: [Arc<dyn Store>; 2] = [testing::store(), Arc::new(file)];
    for store in stores {
        let id = parked(on(&store).codec(Xor::with(&[1]))).await;
        let history = store.load(id.no()).unwrap().unwrap().history;
        let engine = without(on(&store)).start().await.unwrap();
        let run = engine.client().run::<Card>(id);
        run.send("wake", &()).await.unwrap();
        let paused = until_paused(&run).await;
        assert_eq!(paused, reason);
        engine.shutdown().await;
        let loaded = store.load(id.no()).unwrap().unwrap();
        assert_eq!(loaded.history, history, "nothing is lost");
        goes_on(on(&store).codec(Xor::with(&[1])), id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_its_codec_waits_for_it() {
    let reason = "its input cannot be decoded: it was written with codec `xor`, which this process \
                  does not have; start an engine with the codec and the keys that it was written \
                  with";
    waits_for_it(|engine| engine, reason).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_its_key_waits_for_it() {
    let reason = "its input cannot be decoded: codec `xor` cannot decode it: key 1 is not here; \
                  start an engine with the codec and the keys that it was written with";
    waits_for_it(|engine| engine.codec(Xor::with(&[2])), reason).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_whose_key_is_gone_pauses_the_run_and_names_the_step() {
    let store: Arc<dyn Store> = testing::store();
    // The client goes by real time, and what it starts is due by then: a clock that would have to move
    // on first does not while somebody keeps asking.
    let on = |store: &Arc<dyn Store>| {
        let now = everstep::Clock::now(&everstep::SystemClock) + everstep::hours(1);
        on(store).clock(VirtualClock::at(now))
    };
    // The input is plain, the result of the step is not.
    let client = Client::on(store.clone()).unwrap();
    let id = client.start(PAY, card(1)).await.unwrap().id();
    drop(client);
    let engine = on(&store).codec(Xor::with(&[1])).start().await.unwrap();
    until_waiting(&engine.client().run::<Card>(id), "message for `question`").await;
    engine.shutdown().await;
    let engine = on(&store).codec(Xor::with(&[3])).start().await.unwrap();
    let run = engine.client().run::<Card>(id);
    run.send("wake", &()).await.unwrap();
    let reason = until_paused(&run).await;
    let expected = "the result of `keep` cannot be decoded: codec `xor` cannot decode it: key 1";
    assert!(reason.starts_with(expected), "{reason}");
    let error = run.state::<Card>("card").await.unwrap_err().to_string();
    assert!(error.contains("key 1 is not here"), "{error}");
    let seen = &run.history().await.unwrap()[0];
    let shown = seen.value.as_ref().unwrap().to_string();
    assert!(shown.contains("key 1 is not here"), "{shown}");
    engine.shutdown().await;
    goes_on(on(&store).codec(Xor::with(&[1, 3])), id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_encode_fails_attempts_and_pauses_workflows() {
    let store: Arc<dyn Store> = testing::store();
    let xor = Xor::with(&[1]);
    let broken = xor.broken.clone();
    let (breaks, mends) = (broken.clone(), broken.clone());
    let tries = Arc::new(AtomicU8::new(0));
    let counted = tries.clone();
    let code = move |ctx: Ctx, ()| {
        let (breaks, mends, tries) = (breaks.clone(), mends.clone(), counted.clone());
        async move {
            // The first attempt has its result lost, the second has not.
            ctx.step("try", async || {
                breaks.store(tries.fetch_add(1, Ordering::SeqCst) == 0, Ordering::SeqCst);
                Ok(card(1))
            })
            .retry(Retry::exponential(3))
            .await?;
            ctx.step("break", async || {
                mends.store(false, Ordering::SeqCst);
                Ok(())
            })
            .await?;
            ctx.listen::<()>("go").await?;
            ctx.set_state("card", &card(2))?;
            Ok(card(3))
        }
    };
    let engine = Engine::on(store.clone()).clock(VirtualClock::new());
    let engine = engine.codec(xor.clone()).register_fn(OTHER, code.clone());
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(OTHER, ()).await.unwrap();
    until_waiting(&run, "message for `go`").await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    let history = run.history().await.unwrap();
    let tried = history.iter().find(|e| e.location == "try").unwrap();
    assert!(tried.errors[0].message.contains("the vault is closed"));

    run.send("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), card(3));
    let run = engine.client().start(OTHER, ()).await.unwrap();
    until_waiting(&run, "message for `go`").await;
    let go = engine.client().send(run.id(), "go", &());
    broken.store(true, Ordering::SeqCst);
    let error = run.send("other", &card(1)).await.unwrap_err().to_string();
    assert!(error.contains("the vault is closed"), "{error}");
    go.await.unwrap();
    let reason = until_paused(&run).await;
    assert_eq!(
        reason,
        "the state `card` cannot be encoded: codec `xor` cannot encode it: the vault is closed; \
         start an engine whose codec can"
    );
    broken.store(false, Ordering::SeqCst);
    engine.shutdown().await;
    let engine = Engine::on(store).clock(VirtualClock::new());
    let engine = engine.codec(xor).register_fn(OTHER, code).start().await;
    let engine = engine.unwrap();
    let run = engine.client().run::<Card>(run.id());
    assert_eq!(run.result().await.unwrap(), card(3));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_stays_sealed_and_is_replayed_with_its_codec() {
    let engine = testing::engine().codec(Xor::with(&[1])).register_fn(PAY, pay);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(PAY, card(1)).await.unwrap();
    until_waiting(&run, "message for `question`").await;
    let file = run.export().await.unwrap();
    assert!(!has_secret(&file));
    let error = testing::replay(&file).against_fn(PAY, pay).unwrap_err();
    assert!(error.to_string().contains("codec `xor`"), "{error}");
    let replay = testing::replay(&file).codec(Xor::with(&[1]));
    assert_eq!(replay.against_fn(PAY, pay).unwrap().open, ["question"]);
    engine.shutdown().await;
}

async fn crashing(ctx: Ctx, n: u32) -> Result<Card> {
    ctx.set_state("card", &card(n))?;
    let kept: Card = ctx
        .step_with("keep", async |step: Step| {
            step.get::<Ledger>().ran("keep");
            Ok(card(2))
        })
        .await?;
    let more: Card = ctx.listen("more").await?;
    let looped = ctx
        .repeat("loop", card(0), async |ctx, state: Card| {
            ctx.step_with("again", async |step: Step| {
                step.get::<Ledger>().ran(step.location());
                Ok(())
            })
            .await?;
            Ok(match state == card(2) {
                true => ControlFlow::Break(state),
                false => ControlFlow::Continue(card(if state == card(0) { 1 } else { 2 })),
            })
        })
        .await?;
    match (kept == card(2), looped == card(2)) {
        (true, true) => Ok(more),
        _ => Err(Error::fatal("it was changed")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_changes_nothing_with_a_codec_and_rotated_keys() {
    const RUN: Workflow<u32, Card> = Workflow::new("crashing");
    let starts = Arc::new(AtomicU8::new(0));
    let report = CrashTest::new(RUN, 7)
        .engine(move |builder| {
            // Every second engine writes with another key, and all know both.
            let mut xor = Xor::with(&[1, 2]);
            xor.old = starts.fetch_add(1, Ordering::SeqCst) % 2 == 1;
            builder.codec(xor).register_fn(RUN, crashing)
        })
        .send("more", &card(5))
        .crashes(2)
        .await;
    assert!(report.has_more_than(100), "{report}");
    let output = report.expected.output.unwrap();
    assert_eq!(output["number"], "s3cret-5");
}

const FAMILY: Workflow<(u32, Card), Card> = Workflow::new("family");
const CHILD: Workflow<Card, Card> = Workflow::new("child");

/// Two generations, with streams and children, one of which fails.
async fn family(ctx: Ctx, (generation, given): (u32, Card)) -> Result<Card> {
    ctx.emit("log", &given)?;
    ctx.step_with("write", async |step: Step| step.emit("log", &card(2)).await).await?;
    let child = ctx.child(CHILD, given).await?;
    if generation == 1 {
        return ctx.continue_as((2, child)).await;
    }
    let failed = ctx.child(CHILD, card(13)).outcome().await?;
    let failure = failed.err().and_then(|error| error.failure);
    match failure.and_then(|failure| failure.details::<Card>()) {
        Some(details) if details == card(13) => Ok(child),
        other => Err(Error::fatal(format!("its details are {other:?}"))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_streams_and_generations_are_sealed_too() {
    let store: Arc<dyn Store> = testing::store();
    let engine = Engine::on(store.clone()).clock(VirtualClock::new());
    let engine = engine.codec(Xor::with(&[1])).register_fn(FAMILY, family);
    let engine = engine.register_fn(CHILD, |_, given: Card| async move {
        match given == card(13) {
            true => Err(Error::fatal("declined").with_details(&given)),
            false => Ok(given),
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(FAMILY, (1, card(1))).await.unwrap();
    assert_eq!(run.result().await.unwrap(), card(1));
    let page = run.stream_page::<Card>("log", 0, 10).await.unwrap();
    let mut items: Vec<String> = page.items.into_iter().map(|i| i.value.number).collect();
    items.sort();
    assert_eq!(items, ["s3cret-1", "s3cret-1", "s3cret-2", "s3cret-2"]);
    engine.shutdown().await;
    assert!(!has_secret(&stored(&*store)));
    let rows = store.stream(run.id().no(), "log", 0, 10).unwrap().unwrap();
    assert!(!rows.items.iter().any(|row| has_secret(&row.body)));
}
