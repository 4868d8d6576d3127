//! Spans as OpenTelemetry traces, against a collector in this process that takes OTLP over HTTP.
#![allow(clippy::unwrap_used)]
#![cfg(all(feature = "otel", feature = "sqlite"))]

mod scenario;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use everstep::{
    Queue, RunId,
    prelude::*,
    telemetry::{
        TraceContext,
        otel::{OtelError, Otlp},
    },
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1,
};
use prost::Message;
use scenario::until_info;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

type Fields = BTreeMap<String, String>;

/// A span as the collector has got it.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    trace: String,
    id: String,
    /// Empty at the root of a trace.
    parent: String,
    state: String,
    fields: Fields,
    service: Fields,
}

/// A collector: what it was sent, whole requests at a time.
struct Collector {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let taken = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                take(stream.unwrap(), |request| taken.lock().unwrap().push(request));
            }
        });
        Collector { address, requests }
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|it| &it.resource_spans);
        let spans = resources.flat_map(|of| {
            let service = fields(&of.resource.as_ref().unwrap().attributes);
            let spans = of.scope_spans.iter().flat_map(|scope| &scope.spans);
            spans.map(move |span| read(span, service.clone()))
        });
        spans.collect()
    }
}

/// Reads one request, and answers as a collector that has taken everything once it has.
fn take(mut stream: TcpStream, keep: impl FnOnce(ExportTraceServiceRequest)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_lowercase()),
        }
    }
    assert_eq!(lines[0], "post /v1/traces http/1.1");
    let header = |name: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name} is missing in {lines:?}"))
    };
    assert_eq!(header("content-type: "), "application/x-protobuf");
    assert!(header("host: ").starts_with("127.0.0.1:"));
    let mut body = vec![0; header("content-length: ").parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    keep(ExportTraceServiceRequest::decode(body.as_slice()).unwrap());
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
}

fn read(span: &v1::Span, service: Fields) -> Span {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Span {
        name: span.name.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        state: span.trace_state.clone(),
        fields: fields(&span.attributes),
        service,
    }
}

fn fields(attributes: &[KeyValue]) -> Fields {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|it| it.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        other => panic!("{other:?}"),
    };
    let pairs = attributes.iter();
    pairs.map(|it| (it.key.clone(), text(&it.value))).collect()
}

const PARCELS: Queue<u32, u32> = Queue::new("parcels");

#[workflow]
async fn price(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.step("look up", async move || Ok(2 * n)).await
}

#[workflow(version = 3)]
async fn order(ctx: Ctx, n: u32) -> Result<u32> {
    let tries = std::sync::atomic::AtomicU32::new(0);
    ctx.step("charge", async || {
        if tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return Err(Error::msg("the bank is closed"));
        }
        Ok(())
    })
    .retry(Retry::fixed(2, std::time::Duration::ZERO))
    .await?;
    let due = ctx.child(price, n).await?;
    let parcels = ctx.enqueue(PARCELS, &n).await?;
    ctx.listen::<()>("paid").await?;
    ctx.step("ship", async || Ok(())).await?;
    Ok(due + parcels)
}

async fn engine_on(file: &Path) -> Engine {
    let engine = Engine::open(file).register(price).register(order).start().await.unwrap();
    let pack = async |_, n: u32| {
        tracing::info_span!("pack").in_scope(|| ());
        Ok(n)
    };
    engine.work(PARCELS, 1, pack).unwrap();
    engine
}

/// One order, with an engine that goes before it is paid and another that ends it.
async fn order_over_a_restart(file: &Path) -> RunId {
    let engine = engine_on(file).await;
    let client = engine.client();
    let request = tracing::info_span!("request");
    // As an HTTP server does it with the headers of a request.
    let theirs = TraceContext::new(&format!("00-{TRACE}-{THEIRS}-01"), "shop=7").unwrap();
    theirs.adopt(&request);
    let start = async {
        let item = client.enqueue(PARCELS, &9).await.unwrap();
        assert_eq!(item.result().await.unwrap(), 9);
        client.start(order, 4).key("order 1").await.unwrap()
    };
    let run = start.instrument(request).await;
    until_info(&run, "the order to be unpaid", |info| {
        let waiting = info.waiting.as_deref();
        waiting.is_some_and(|words| words.contains("paid"))
    })
    .await;
    // Nobody's: it has a trace of its own.
    client.start(price, 1).await.unwrap().result().await.unwrap();
    engine.shutdown().await;

    let engine = engine_on(file).await;
    let run = engine.client().run::<u32>(run.id());
    run.send("paid", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 12);
    engine.shutdown().await;
    run.id()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const THEIRS: &str = "00f067aa0ba902b7";

/// The one among these with this name and these fields.
#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str, wanted: &[(&str, &str)]) -> &'a Span {
    let found: Vec<&Span> = all(spans, name, wanted);
    assert_eq!(found.len(), 1, "`{name}` with {wanted:?} among {spans:#?}");
    found[0]
}

fn all<'a>(spans: &'a [Span], name: &str, wanted: &[(&str, &str)]) -> Vec<&'a Span> {
    let has = |span: &Span| {
        let mut wanted = wanted.iter();
        wanted.all(|(name, value)| span.fields.get(*name).is_some_and(|it| it == value))
    };
    let named = spans.iter().filter(|span| span.name == name);
    named.filter(|span| has(span)).collect()
}

#[test]
fn spans_that_no_collector_takes_are_lost_and_said_to_be() {
    // Nobody listens at a port that was just given back.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let away = Otlp::new("shop").to(format!("http://{address}"));
    let (layer, exporting) = away.layer().unwrap();
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, || tracing::info_span!("lost").in_scope(|| ()));
    let error = exporting.flush().unwrap_err();
    assert!(matches!(error, OtelError::Unsent(_)), "{error:?}");

    let nowhere = Otlp::new("shop").to("no address");
    let refused = nowhere.layer::<tracing_subscriber::Registry>();
    assert!(matches!(refused.err(), Some(OtelError::Exporter(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_its_steps_children_and_items_are_one_trace_also_over_a_restart() {
    let collector = Collector::start();
    let exporting = Otlp::new("shop")
        .to(format!("http://{}/", collector.address))
        .attribute("deployment.environment.name", "tests")
        .start()
        .unwrap();
    let again = Otlp::new("again").start();
    assert!(matches!(again, Err(OtelError::HasSubscriber)), "{again:?}");
    let dir = tempfile::tempdir().unwrap();
    let run = order_over_a_restart(&dir.path().join("shop.db")).await;
    let run = run.to_string();
    exporting.shutdown().unwrap();
    let spans = collector.spans();

    for span in &spans {
        assert_eq!(span.service["service.name"], "shop");
        assert_eq!(span.service["deployment.environment.name"], "tests");
    }
    let request = one(&spans, "request", &[]);
    assert_eq!((&*request.trace, &*request.parent), (TRACE, THEIRS));

    // The run, in its two lives or more: each is a child of the request.
    let lives = all(&spans, "everstep.run", &[("run", &run)]);
    let of_run = |field: &str| lives.iter().map(|it| &*it.fields[field]).collect::<Vec<_>>();
    assert!(lives.len() >= 2, "{lives:#?}");
    for life in &lives {
        assert_eq!((&*life.trace, &life.parent), (TRACE, &request.id));
        assert_eq!(life.state, "shop=7");
        let told = ["workflow", "version", "key", "generation", "attempt"];
        let told = told.map(|field| &*life.fields[field]);
        assert_eq!(told, ["order", "3", "order 1", "1", "1"]);
    }
    assert_eq!(of_run("replayed").iter().filter(|it| **it == "0").count(), 1);
    let ended = one(&spans, "everstep.run", &[("run", &run), ("status", "completed")]);
    assert_ne!(ended.fields["replayed"], "0");
    let ids: BTreeSet<&str> = lives.iter().map(|life| &*life.id).collect();
    assert_eq!(ids.len(), lives.len());

    // Its steps: below the life that has made them.
    let step = |name: &str, attempt: &str| {
        let wanted = [("run", &*run), ("step", name), ("attempt", attempt)];
        let span = one(&spans, "everstep.step", &wanted);
        assert_eq!((&*span.trace, &*span.fields["kind"]), (TRACE, "step"));
        assert!(ids.contains(&*span.parent), "{span:#?}");
        assert!(span.fields["duration_ms"].parse::<f64>().unwrap() >= 0.0);
        span
    };
    assert_eq!(step("charge", "1").fields["outcome"], "retried");
    let charged = step("charge", "2");
    assert_eq!(charged.fields["outcome"], "completed");
    let shipped = step("ship", "1");
    assert_eq!(shipped.parent, ended.id);
    assert_ne!(shipped.parent, charged.parent, "the engine was another");

    // Its child: below the run, in the same trace.
    let of_child = [("workflow", "price"), ("status", "completed")];
    let (child, alone): (Vec<_>, Vec<_>) =
        all(&spans, "everstep.run", &of_child).into_iter().partition(|span| span.trace == TRACE);
    let (child, alone) = (child[0], alone[0]);
    assert!(ids.contains(&*child.parent), "{child:#?}");
    let looked_up = |of: &Span| {
        let wanted = [("run", &*of.fields["run"]), ("step", "look up")];
        let step = one(&spans, "everstep.step", &wanted);
        assert_eq!((&step.trace, &step.parent), (&of.trace, &of.id));
    };
    looked_up(child);

    // The item that it has put into a queue, and that of the request.
    let items = all(&spans, "everstep.item", &[("queue", "parcels"), ("attempt", "1")]);
    assert_eq!(items.len(), 2);
    for item in &items {
        assert_eq!((&*item.trace, &*item.fields["outcome"]), (TRACE, "completed"));
        let packed = |span: &&&Span| span.parent == item.id && span.trace == TRACE;
        assert_eq!(all(&spans, "pack", &[]).iter().filter(packed).count(), 1);
    }
    let of_request = items.iter().filter(|it| it.parent == request.id);
    assert_eq!(of_request.count(), 1);
    let of_run = items.iter().filter(|it| ids.contains(&*it.parent));
    assert_eq!(of_run.count(), 1);

    // What nobody has started in a trace is the root of its own.
    assert_eq!((&*alone.parent, &*alone.state), ("", ""));
    looked_up(alone);
}
