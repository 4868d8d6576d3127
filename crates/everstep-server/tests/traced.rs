//! The trace of a request, and what is started by it.
#![allow(clippy::unwrap_used)]

use std::sync::{LazyLock, Mutex};

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use everstep::{
    Engine, RunId,
    prelude::*,
    telemetry::{Propagator, TraceContext, set_propagator},
};
use everstep_server::Server;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tracing::Span;

/// The spans that were put into a trace, by name.
static ADOPTED: LazyLock<Mutex<Vec<(&str, TraceContext)>>> = LazyLock::new(Mutex::default);

/// A tracing system in which every span is the one of whoever sent the request.
struct Theirs;

impl Propagator for Theirs {
    fn current(&self) -> Option<TraceContext> {
        let name = Span::current().metadata()?.name();
        let adopted = ADOPTED.lock().unwrap();
        let (_, context) = adopted.iter().rfind(|(other, _)| *other == name)?;
        Some(context.clone())
    }

    fn adopt(&self, span: &Span, context: &TraceContext) {
        let name = span.metadata().unwrap().name();
        ADOPTED.lock().unwrap().push((name, context.clone()));
    }
}

#[workflow]
async fn double(ctx: Ctx, n: u32) -> everstep::Result<u32> {
    ctx.step("work", async move || Ok(2 * n)).await
}

/// Starts a run by HTTP, and waits for its end.
async fn run(engine: &Engine, traceparent: Option<&str>) {
    let app = Server::new(engine.client()).router();
    let mut request = Request::post("/api/v1/runs")
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(traceparent) = traceparent {
        request = request.header("traceparent", traceparent).header("tracestate", "their=1");
    }
    let body = r#"{"workflow": "double", "input": 4}"#;
    let request = request.body(Body::from(body)).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let started: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let id: RunId = started["id"].as_str().unwrap().parse().unwrap();
    let run = engine.client().run::<u32>(id);
    assert_eq!(run.result().await.unwrap(), 8);
}

#[tokio::test]
async fn a_run_that_is_started_over_http_is_in_the_trace_of_the_request() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap();
    assert!(set_propagator(Theirs));
    let engine = Engine::in_memory().register(double).start().await.unwrap();
    run(&engine, None).await;
    run(&engine, Some("nonsense")).await;
    assert_eq!(*ADOPTED.lock().unwrap(), []);
    run(&engine, Some(PARENT)).await;
    engine.shutdown().await;
    let context = TraceContext::new(PARENT, "their=1").unwrap();
    let adopted = ADOPTED.lock().unwrap();
    assert_eq!(adopted[0], ("everstep.request", context.clone()));
    assert_eq!(adopted[1], ("everstep.run", context));
}
