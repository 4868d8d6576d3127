//! OpenTelemetry: the spans of this process sent to a collector by OTLP, over HTTP.
//!
//! ```no_run
//! use everstep::{Engine, telemetry::otel};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let exporting = otel::Otlp::new("shop").start()?;
//! let engine = Engine::open("shop.db").start().await?;
//! // ..
//! engine.shutdown().await;
//! exporting.shutdown()?;
//! # Ok(()) }
//! ```
//!
//! A run is in the trace of whoever starts it, as [`telemetry`](crate::telemetry) says under Traces: the
//! context travels with it through the store, as a W3C `traceparent`. An `everstep.run` span is sent when
//! the run leaves memory, and a step when it has ended; of a process that dies, the spans that were open
//! are lost.
//!
//! Without [`Otlp::to`], the variables that OpenTelemetry has for it say where to:
//! `OTEL_EXPORTER_OTLP_ENDPOINT` (`http://localhost:4318` if it is not set, either), and with it
//! `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`
//! and the `OTEL_BSP_` ones.

#[allow(clippy::disallowed_methods, reason = "no simulation exports telemetry")]
mod http;

use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator,
    trace::{TraceContextExt, TracerProvider},
};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, layer::SubscriberExt, registry::LookupSpan};

use super::{Propagator, TraceContext, set_propagator};
use crate::store::Cause;

/// Where spans are sent, and as whose.
#[derive(Clone, Debug)]
pub struct Otlp {
    service: String,
    endpoint: Option<String>,
    attributes: Vec<KeyValue>,
}

/// Why spans are not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtelError {
    /// What sends them cannot be made from what was said.
    #[error(
        "the OTLP exporter cannot be made; look at the endpoint, and at the variables whose names \
         begin with `OTEL_`"
    )]
    Exporter(#[source] Cause),
    /// The process has a subscriber of `tracing` already.
    #[error(
        "this process has a subscriber of `tracing` already; put what `Otlp::layer` gives into that \
         one, or start to export before it is set"
    )]
    HasSubscriber,
    /// The collector has not taken them.
    #[error("the last spans could not be sent; look whether the collector can be reached")]
    Unsent(#[source] Cause),
}

impl Otlp {
    /// Spans of a service of this name, unless `OTEL_SERVICE_NAME` gives another.
    pub fn new(service: impl Into<String>) -> Otlp {
        Otlp { service: service.into(), endpoint: None, attributes: Vec::new() }
    }

    /// Sends them to the collector at this address, such as `http://localhost:4318`: to the path
    /// `/v1/traces` below it. With `https` it must have a certificate that the system trusts.
    pub fn to(mut self, endpoint: impl Into<String>) -> Otlp {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Says something more about the service with every span, such as `deployment.environment.name`.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Otlp {
        let value: String = value.into();
        self.attributes.push(KeyValue::new(name.into(), value));
        self
    }

    /// Begins to send all spans of this process of level `INFO` and above. The process must have no
    /// subscriber of `tracing` yet; one that has is given a [`layer`](Otlp::layer).
    ///
    /// # Errors
    ///
    /// [`OtelError::HasSubscriber`], or that the exporter cannot be made. Whether the collector can be
    /// reached is not asked: it may come later.
    pub fn start(self) -> Result<Exporting, OtelError> {
        let (layer, exporting) = self.layer()?;
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| OtelError::HasSubscriber)?;
        Ok(exporting)
    }

    /// What sends spans of level `INFO` and above, as a layer for a subscriber of your own. From now on
    /// runs are in the trace of their starter ([`set_propagator`]).
    ///
    /// # Errors
    ///
    /// If the exporter cannot be made.
    pub fn layer<S>(self) -> Result<(impl Layer<S> + Send + Sync + use<S>, Exporting), OtelError>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let unmade = |error| OtelError::Exporter(Box::new(error));
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(http::Post::default());
        if let Some(endpoint) = &self.endpoint {
            let endpoint = endpoint.trim_end_matches('/');
            exporter = exporter.with_endpoint(format!("{endpoint}/v1/traces"));
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(self.resource())
            .with_batch_exporter(exporter.build().map_err(unmade)?)
            .build();
        // Where in the library's code a span is made, and on which of its threads, is of no use.
        let layer = tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_tracer(provider.tracer("everstep"))
            .with_filter(LevelFilter::INFO);
        set_propagator(W3c::default());
        let provider = Some(provider);
        Ok((layer, Exporting { provider }))
    }

    fn resource(self) -> Resource {
        // It says what the variables say.
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty()) {
            resource = resource.with_service_name(self.service);
        }
        resource.with_attributes(self.attributes).build()
    }
}

/// Spans are sent for as long as this is kept; what is left is sent when it is dropped.
#[must_use = "no span is sent after this is dropped"]
pub struct Exporting {
    provider: Option<SdkTracerProvider>,
}

impl Exporting {
    /// Sends the spans that have ended until now. It blocks until they are with the collector.
    ///
    /// # Errors
    ///
    /// [`OtelError::Unsent`].
    pub fn flush(&self) -> Result<(), OtelError> {
        let provider = self.provider.as_ref();
        let flushed = provider.map_or(Ok(()), SdkTracerProvider::force_flush);
        flushed.map_err(|error| OtelError::Unsent(Box::new(error)))
    }

    /// Sends what is left, and nothing after it. It blocks for a few seconds at most. To be called after
    /// [`Engine::shutdown`](crate::Engine::shutdown), which ends the spans of all runs.
    ///
    /// # Errors
    ///
    /// [`OtelError::Unsent`].
    pub fn shutdown(mut self) -> Result<(), OtelError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), OtelError> {
        let ended = self.provider.take().map(|provider| provider.shutdown());
        let ended = ended.unwrap_or(Ok(()));
        ended.map_err(|error| OtelError::Unsent(Box::new(error)))
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "spans are lost");
        }
    }
}

impl std::fmt::Debug for Exporting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporting").finish_non_exhaustive()
    }
}

/// The context of OpenTelemetry's spans, in the form of the W3C.
#[derive(Default)]
struct W3c(TraceContextPropagator);

/// The two headers.
type Headers = std::collections::HashMap<String, String>;

impl Propagator for W3c {
    fn current(&self) -> Option<TraceContext> {
        let mut context = Span::current().context();
        if !context.span().span_context().is_valid() {
            // No span of `tracing`, or one that is not exported: below one of OpenTelemetry's own.
            context = Context::current();
        }
        let mut headers = Headers::new();
        self.0.inject_context(&context, &mut headers);
        let state = headers.get("tracestate").map_or("", String::as_str);
        TraceContext::new(headers.get("traceparent")?, state)
    }

    fn adopt(&self, span: &Span, context: &TraceContext) {
        let headers: Headers = [
            ("traceparent".to_owned(), context.traceparent().to_owned()),
            ("tracestate".to_owned(), context.tracestate().to_owned()),
        ]
        .into();
        let parent = self.0.extract_with_context(&Context::new(), &headers);
        // It fails where the subscriber of this thread exports nothing, and then there is nothing to do.
        _ = span.set_parent(parent);
    }
}
