//! Spans and numbers: what an engine tells about its runs, and under which names.
//!
//! One subscriber records for all tests of this file; each looks only at its own run.
#![allow(clippy::unwrap_used)]

mod scenario;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex},
};

use everstep::{
    RunId, RunStatus,
    prelude::*,
    telemetry::AttemptOutcome,
    testing::{self, VirtualClock},
};
use scenario::until;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::{LookupSpan, SpanRef},
};

type Fields = BTreeMap<String, String>;

/// A span or an event that was recorded.
#[derive(Clone, Debug)]
struct Told {
    name: &'static str,
    fields: Fields,
    parent: Option<u64>,
    closed: bool,
}

/// What was told so far; a span by its number, which no other has.
#[derive(Default)]
struct Records {
    spans: BTreeMap<u64, Told>,
    events: Vec<Told>,
}

/// The number of a span, kept with it: the ids of a subscriber are used again.
#[derive(Clone, Copy)]
struct No(u64);

static RECORDS: LazyLock<Arc<Mutex<Records>>> = LazyLock::new(|| {
    let records = Arc::<Mutex<Records>>::default();
    let layer = Recorder(records.clone());
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).unwrap();
    records
});

struct Recorder(Arc<Mutex<Records>>);

struct Texts<'f>(&'f mut Fields);

impl Visit for Texts<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Texts(&mut fields));
        let span = ctx.span(id).unwrap();
        let told = Told {
            name: attributes.metadata().name(),
            fields,
            parent: span.parent().and_then(|parent| number(&parent)),
            closed: false,
        };
        let mut records = self.0.lock().unwrap();
        let no = records.spans.len() as u64;
        records.spans.insert(no, told);
        span.extensions_mut().insert(No(no));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let no = number(&ctx.span(id).unwrap()).unwrap();
        let mut records = self.0.lock().unwrap();
        let told = records.spans.get_mut(&no).unwrap();
        values.record(&mut Texts(&mut told.fields));
    }

    fn on_event(&self, event: &tracing::Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Texts(&mut fields));
        let told = Told {
            name: "event",
            fields,
            parent: ctx.event_span(event).and_then(|span| number(&span)),
            closed: true,
        };
        self.0.lock().unwrap().events.push(told);
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let no = number(&ctx.span(&id).unwrap()).unwrap();
        let mut records = self.0.lock().unwrap();
        records.spans.get_mut(&no).unwrap().closed = true;
    }
}

fn number<'l, S: LookupSpan<'l>>(span: &SpanRef<'l, S>) -> Option<u64> {
    Some(span.extensions().get::<No>()?.0)
}

impl Records {
    /// The spans of a run with this name, in the order in which they were begun.
    fn of(&self, name: &str, run: RunId) -> Vec<(u64, Told)> {
        let run = run.to_string();
        let all = self.spans.iter();
        let of_run = all.filter(|(_, told)| told.name == name && told.fields["run"] == run);
        of_run.map(|(id, told)| (*id, told.clone())).collect()
    }

    /// What the event with this message is below.
    fn above(&self, message: &str) -> &Told {
        let mut events = self.events.iter();
        let event =
            events.find(|event| event.fields.get("message").is_some_and(|it| it == message));
        let parent = event.unwrap_or_else(|| panic!("{message}")).parent;
        &self.spans[&parent.unwrap_or_else(|| panic!("{message} is below nothing"))]
    }
}

#[workflow]
async fn shop(ctx: Ctx, tag: String) -> Result<u32> {
    tracing::info!("{tag}: between");
    let mut n = 0u32;
    n += ctx
        .step_with("pay", async |step| {
            tracing::info!("{tag}: pay {}", step.attempt());
            let span = tracing::info_span!("mine", run = %step.run_id());
            let _mine = span.enter();
            match step.attempt() {
                1 => Err(Error::msg("not yet")),
                n => Ok(n),
            }
        })
        .retry(Retry::fixed(3, seconds(5)))
        .await?;
    let text = tag.clone();
    n += ctx
        .blocking("block", move |_| {
            tracing::info!("{text}: block");
            Ok(1u32)
        })
        .await?;
    let text = tag.clone();
    n += ctx
        .spawn("spawn", move |_| {
            let text = text.clone();
            async move {
                tokio::task::yield_now().await;
                tracing::info!("{text}: spawn");
                Ok(1u32)
            }
        })
        .await?;
    let text = tag.clone();
    n += ctx
        .transaction("write", move |_| {
            tracing::info!("{text}: write");
            Ok(1u32)
        })
        .await?;
    Ok(n)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_and_its_attempts_are_spans_and_what_bodies_log_is_below_them() {
    let records = RECORDS.clone();
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::open(directory.path().join("app.db"))
        .clock(VirtualClock::new())
        .register(shop)
        .start()
        .await
        .unwrap();
    let run = engine.client().start(shop, "shop".to_owned()).key("k-1");
    let run = run.await.unwrap();
    assert_eq!(run.result().await.unwrap(), 5);
    let id = run.id();
    engine.shutdown().await;

    let records = records.lock().unwrap();
    let runs = records.of("everstep.run", id);
    let [(run_span, told)] = &runs[..] else {
        panic!("{runs:?}");
    };
    assert!(told.closed && told.parent.is_none());
    let text = id.to_string();
    let expected = [
        ("attempt", "1"),
        ("generation", "1"),
        ("key", "k-1"),
        ("recovered", "0"),
        ("replayed", "0"),
        ("run", &*text),
        ("status", "completed"),
        ("version", "1"),
        ("workflow", "shop"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(told.fields, Fields::from(expected));

    let steps = records.of("everstep.step", id);
    let seen = steps.iter().map(|(_, told)| {
        assert_eq!(told.parent, Some(*run_span));
        assert!(told.closed, "{told:?}");
        assert_eq!(told.fields["workflow"], "shop");
        assert!(told.fields["duration_ms"].parse::<f64>().unwrap() >= 0.0);
        let field = |name: &str| told.fields[name].as_str();
        (field("step"), field("kind"), field("attempt"), field("outcome"))
    });
    let mut seen: Vec<_> = seen.collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            ("block", "step", "1", "completed"),
            ("pay", "step", "1", "retried"),
            ("pay", "step", "2", "completed"),
            ("spawn", "step", "1", "completed"),
            ("write", "transaction", "1", "completed"),
        ]
    );

    assert_eq!(records.above("shop: between").name, "everstep.run");
    for (message, step) in [
        ("shop: pay 1", "pay"),
        ("shop: pay 2", "pay"),
        ("shop: block", "block"),
        ("shop: spawn", "spawn"),
        ("shop: write", "write"),
    ] {
        assert_eq!(records.above(message).fields["step"], step, "{message}");
    }
    let mine = records.of("mine", id);
    assert_eq!(mine.len(), 2);
    for (_, told) in mine {
        assert_eq!(records.spans[&told.parent.unwrap()].name, "everstep.step");
    }
}

#[workflow]
async fn raced(ctx: Ctx, _: ()) -> Result<()> {
    everstep::select! {
        never = ctx.step("never", async || std::future::pending::<Result<()>>().await) => never,
        nap = ctx.sleep("nap", seconds(1)) => nap.map(|_| ()),
    }
}

#[workflow]
async fn doomed(ctx: Ctx, _: ()) -> Result<()> {
    ctx.step("slow", async || std::future::pending::<Result<()>>().await)
        .timeout(seconds(2))
        .outcome()
        .await?;
    ctx.step("undone", async || Ok(())).rollback(async |_, ()| Ok(())).await?;
    ctx.step("no", async || Err::<(), _>(Error::fatal("no"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_an_attempt_has_its_word() {
    let records = RECORDS.clone();
    let engine = Engine::on(testing::store())
        .clock(VirtualClock::new())
        .register(raced)
        .register(doomed)
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let first = client.start(raced, ()).await.unwrap();
    first.result().await.unwrap();
    let second = client.start(doomed, ()).await.unwrap();
    second.result().await.unwrap_err();
    let is_over = async || Some(engine.metrics()).filter(|m| m.runs_moving + m.runs_hot == 0);
    let metrics = until("both to leave memory", is_over).await;
    engine.shutdown().await;

    let records = records.lock().unwrap();
    let outcomes = |run: RunId| {
        let steps = records.of("everstep.step", run).into_iter();
        let words = steps.map(|(_, mut told)| {
            let mut take = |name| told.fields.remove(name).unwrap();
            (take("step"), take("kind"), take("outcome"))
        });
        let mut words: Vec<_> = words.collect();
        words.sort_unstable();
        words
    };
    let words = |list: &[(&str, &str, &str)]| {
        let owned = list.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into()));
        owned.collect::<Vec<(String, String, String)>>()
    };
    assert_eq!(outcomes(first.id()), words(&[("never", "step", "dropped")]));
    let ends = outcomes(second.id());
    let rollback = ends.iter().find(|end| end.1 == "rollback").unwrap();
    assert_eq!(rollback.2, "completed");
    let steps: Vec<_> = ends.iter().filter(|end| end.1 == "step").cloned().collect();
    assert_eq!(
        steps,
        words(&[
            ("no", "step", "failed"),
            ("slow", "step", "timed_out"),
            ("undone", "step", "completed"),
        ])
    );
    let (_, told) = &records.of("everstep.run", second.id())[0];
    assert_eq!(told.fields["status"], "failed");

    let numbers = &metrics.workflows["doomed"];
    let attempts = |outcome: AttemptOutcome| numbers.attempts[&outcome];
    assert_eq!(attempts(AttemptOutcome::Completed), 2, "the step and its rollback");
    assert_eq!(attempts(AttemptOutcome::Failed), 1);
    assert_eq!(attempts(AttemptOutcome::TimedOut), 1);
    assert_eq!(attempts(AttemptOutcome::Retried), 0);
    assert_eq!(numbers.step_seconds.count(), 4);
}

const LENGTH: Queue<String, u32> = Queue::new("lengths").attempts(2);

#[workflow]
async fn measured(ctx: Ctx, word: String) -> Result<u32> {
    ctx.enqueue(LENGTH, &word).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_at_an_item_is_a_span() {
    let records = RECORDS.clone();
    let engine = Engine::on(testing::store())
        .clock(VirtualClock::new())
        .register(measured)
        .start()
        .await
        .unwrap();
    let work = async |job: Job, word: String| {
        tracing::info!("item: attempt {}", job.attempt());
        match job.attempt() {
            1 => Err(Error::msg("not yet")),
            _ => Ok(word.len() as u32),
        }
    };
    engine.work(LENGTH, 1, work).unwrap();
    let run = engine.client().start(measured, "seven".to_owned());
    assert_eq!(run.await.unwrap().result().await.unwrap(), 5);
    engine.shutdown().await;

    let records = records.lock().unwrap();
    for (message, outcome) in [("item: attempt 1", "retried"), ("item: attempt 2", "completed")] {
        let told = records.above(message);
        assert_eq!(told.name, "everstep.item");
        assert_eq!(told.fields["queue"], "lengths");
        assert_eq!(told.fields["outcome"], outcome);
        assert!(told.fields.contains_key("duration_ms"), "{told:?}");
    }
}

#[workflow]
async fn patient(ctx: Ctx, _: ()) -> Result<u32> {
    ctx.sleep("nap", hours(1)).await?;
    ctx.listen("number").await
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_move_as_runs_are_made() {
    _ = &*RECORDS;
    let clock = VirtualClock::new();
    let builder = Engine::on(testing::store()).clock(clock.clone());
    let engine = builder.register(patient).start().await.unwrap();
    let before = engine.metrics();
    assert_eq!(before.workflows.get("patient"), None);
    assert!(before.shards > 0, "it owns all of them");

    let hold = clock.hold();
    let run = engine.client().start(patient, ()).await.unwrap();
    let is_parked = async || Some(engine.metrics()).filter(|metrics| metrics.runs_hot == 1);
    let parked = until("it to be parked", is_parked).await;
    assert_eq!(parked.runs_moving, 0);
    assert!(parked.hot_bytes > 0);

    run.send("number", &7u32).await.unwrap();
    drop(hold);
    assert_eq!(run.result().await.unwrap(), 7);
    let is_gone = async || Some(engine.metrics()).filter(|m| m.runs_moving + m.runs_hot == 0);
    let after = until("it to leave memory", is_gone).await;
    let ended = &after.workflows["patient"].ended;
    assert_eq!(ended[&RunStatus::Completed], 1);
    assert_eq!(ended[&RunStatus::Failed], 0);
    assert!(after.timer_lag_seconds.count() > parked.timer_lag_seconds.count());
    assert_eq!(after.inbox_lag_seconds.count(), 1);
    assert!(
        after.inbox_lag_seconds.sum >= 3_599.0,
        "it was sent before the nap ended: {:?}",
        after.inbox_lag_seconds
    );
    assert!(after.batch_seconds.count() > before.batch_seconds.count());
    assert!(after.batch_writes.sum >= after.batch_writes.count() as f64);
    engine.shutdown().await;
}
