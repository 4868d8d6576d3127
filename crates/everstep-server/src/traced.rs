//! The trace of a request: what it starts is in the trace of whoever has sent it.

use axum::{extract::Request, http::HeaderMap, middleware::Next, response::Response};
use everstep::telemetry::TraceContext;
use tracing::Instrument;

/// Gives a request with a W3C `traceparent` a span in that trace. Others have none, since probes and
/// pages that look every few seconds are of no interest.
pub(crate) async fn traced(request: Request, next: Next) -> Response {
    let Some(context) = context(request.headers()) else {
        return next.run(request).await;
    };
    let span = tracing::info_span!(
        target: "everstep",
        parent: None,
        "everstep.request",
        method = request.method().as_str(),
        path = request.uri().path(),
    );
    context.adopt(&span);
    next.run(request).instrument(span).await
}

fn context(headers: &HeaderMap) -> Option<TraceContext> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let state = header("tracestate").unwrap_or_default();
    TraceContext::new(header("traceparent")?, state)
}
