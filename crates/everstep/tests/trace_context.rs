//! The trace of whoever starts a run: kept with the run, and handed on to its children and to the items
//! that it puts into queues. With a tracing system that is made up here.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "sqlite")]

mod scenario;

use std::{
    collections::HashMap,
    path::Path,
    sync::{LazyLock, Mutex},
};

use everstep::{
    Queue,
    prelude::*,
    telemetry::{Propagator, TraceContext, set_propagator},
};
use scenario::until_info;
use tracing::{Instrument, Span, Subscriber, span::Id};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

/// A span that was put into a trace: its name, its number, and the context that it was given.
#[derive(Clone, Debug)]
struct Adopted {
    name: &'static str,
    number: u64,
    context: String,
}

/// Which span is in which trace, by id. The numbers are those of the spans in their contexts.
#[derive(Default)]
struct Known {
    last: u64,
    spans: HashMap<u64, (u64, String)>,
    adopted: Vec<Adopted>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(|| {
    let subscriber = tracing_subscriber::registry().with(Forget);
    tracing::subscriber::set_global_default(subscriber).unwrap();
    assert!(set_propagator(Fake), "it is the first");
    assert!(!set_propagator(Fake), "the first stays");
    Mutex::default()
});

/// A span that has ended is in no trace any more: another may get its id.
struct Forget;

impl<S: Subscriber> Layer<S> for Forget {
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        KNOWN.lock().unwrap().spans.remove(&id.into_u64());
    }
}

struct Fake;

fn id(span: &Span) -> Option<u64> {
    Some(span.id()?.into_u64())
}

impl Known {
    fn put(&mut self, span: &Span, trace: &str) -> u64 {
        self.last += 1;
        self.spans.insert(id(span).unwrap(), (self.last, trace.to_owned()));
        self.last
    }
}

impl Propagator for Fake {
    fn current(&self) -> Option<TraceContext> {
        let span = id(&Span::current())?;
        let known = KNOWN.lock().unwrap();
        let (number, trace) = known.spans.get(&span)?;
        let context = TraceContext::new(&format!("00-{trace}-{number:016x}-01"), "from=here");
        Some(context.unwrap())
    }

    fn adopt(&self, span: &Span, context: &TraceContext) {
        assert_eq!(context.tracestate(), "from=here");
        let trace = context.traceparent().split('-').nth(1).unwrap();
        let mut known = KNOWN.lock().unwrap();
        let number = known.put(span, trace);
        known.adopted.push(Adopted {
            name: span.metadata().unwrap().name(),
            number,
            context: context.traceparent().to_owned(),
        });
    }
}

/// A span in a trace of its own, and the context of what is started in it.
fn request(trace: u128) -> (Span, String) {
    let span = tracing::info_span!("request");
    let trace = format!("{trace:032x}");
    let number = KNOWN.lock().unwrap().put(&span, &trace);
    (span, format!("00-{trace}-{number:016x}-01"))
}

/// What was adopted in a trace, in order.
fn adopted_in(trace: u128) -> Vec<Adopted> {
    let known = KNOWN.lock().unwrap();
    let trace = format!("-{trace:032x}-");
    let adopted = known.adopted.iter();
    adopted.filter(|it| it.context.contains(&trace)).cloned().collect()
}

const LENGTHS: Queue<String, usize> = Queue::new("lengths");

#[workflow]
async fn kid(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.step("double", async move || Ok(2 * n)).await
}

#[workflow]
async fn parent(ctx: Ctx, n: u32) -> Result<u32> {
    let doubled = ctx.child(kid, n).await?;
    let length = ctx.enqueue(LENGTHS, &"abc".to_owned()).await?;
    ctx.listen::<()>("go on").await?;
    Ok(doubled + length as u32)
}

async fn engine_on(file: &Path) -> Engine {
    _ = &*KNOWN;
    let engine = Engine::open(file).register(kid).register(parent).start().await.unwrap();
    let measure = async |_, text: String| Ok(text.len());
    engine.work(LENGTHS, 1, measure).unwrap();
    engine
}

async fn started_in(engine: &Engine, span: &Span) -> RunHandle<u32> {
    let client = engine.client();
    let start = async { client.start(parent, 4).tag("colour", "red").await };
    let run = start.instrument(span.clone()).await.unwrap();
    until_info(&run, "the run to wait for its message", |info| {
        let waiting = info.waiting.as_deref();
        waiting.is_some_and(|words| words.contains("go on"))
    })
    .await;
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_its_children_and_its_items_are_in_the_trace_of_the_starter() {
    const TRACE: u128 = 0xa1;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = engine_on(&file).await;
    let (span, of_starter) = request(TRACE);
    let run = started_in(&engine, &span).await;
    let client = engine.client();
    let put = async { client.enqueue(LENGTHS, &"ab".to_owned()).await };
    let item = put.instrument(span.clone()).await.unwrap();
    assert_eq!(item.result().await.unwrap(), 2);
    let first = adopted_in(TRACE);
    let (run_id, tags) = (run.id(), run.info().await.unwrap().tags);
    assert_eq!(tags, [("colour".to_owned(), "red".to_owned())]);
    engine.shutdown().await;

    let engine = engine_on(&file).await;
    let run = engine.client().run::<u32>(run_id);
    run.send("go on", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 11);
    engine.shutdown().await;

    let run = &first[0];
    assert_eq!((run.name, &run.context), ("everstep.run", &of_starter));
    let of_run = format!("00-{TRACE:032x}-{:016x}-01", run.number);
    let told = |name, context: &str| {
        let told = |it: &&Adopted| it.name == name && it.context == context;
        first.iter().filter(told).count()
    };
    assert_eq!(told("everstep.run", &of_run), 1, "its child: {first:#?}");
    assert_eq!(told("everstep.item", &of_run), 1, "its item: {first:#?}");
    assert_eq!(told("everstep.item", &of_starter), 1, "the starter's item");
    let all = adopted_in(TRACE);
    let (_, later) = all.split_at(first.len());
    assert!(!later.is_empty(), "it came back in another engine");
    for again in later {
        assert_eq!((again.name, &again.context), ("everstep.run", &of_starter));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_started_outside_of_a_trace_is_in_none() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine_on(&dir.path().join("app.db")).await;
    let (span, _) = request(0xb1);
    // Beside a span, and below one that is in no trace.
    let client = engine.client();
    client.start(kid, 1).await.unwrap().result().await.unwrap();
    let start = async { client.start(kid, 2).await };
    let unknown = tracing::info_span!("of another system");
    let run = start.instrument(unknown).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 4);
    engine.shutdown().await;
    drop(span);
    assert!(adopted_in(0xb1).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_context_in_the_store_is_ignored() {
    const TRACE: u128 = 0xc1;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = engine_on(&file).await;
    let run = started_in(&engine, &request(TRACE).0).await;
    engine.shutdown().await;
    let before = adopted_in(TRACE).len();
    assert!(before >= 3, "the run, its child and its item");
    {
        let conn = everstep::rusqlite::Connection::open(&file).unwrap();
        let malformed = format!("00-{TRACE:032x}-{:016x}-zz", 1);
        let sql = "UPDATE everstep_runs SET trace = ?1";
        assert_eq!(conn.execute(sql, [malformed]).unwrap(), 2);
    }
    let engine = engine_on(&file).await;
    let run = engine.client().run::<u32>(run.id());
    run.send("go on", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 11);
    engine.shutdown().await;
    assert_eq!(adopted_in(TRACE).len(), before, "nothing was adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_in_the_trace_of_who_forks() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine_on(&dir.path().join("app.db")).await;
    let run = started_in(&engine, &request(0xd1).0).await;
    let (span, of_forker) = request(0xd2);
    let fork = async { run.fork().start().await };
    let fork = fork.instrument(span).await.unwrap();
    for run in [&run, &fork] {
        run.send("go on", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 11);
    }
    engine.shutdown().await;
    // It begins anew, so it has a child and an item of its own.
    let adopted = adopted_in(0xd2);
    let fork = &adopted[0];
    assert_eq!((fork.name, &fork.context), ("everstep.run", &of_forker));
    let of_fork = format!("00-{:032x}-{:016x}-01", 0xd2, fork.number);
    let below = adopted.iter().filter(|it| it.context == of_fork);
    assert_eq!(below.count(), 2, "{adopted:#?}");
}
