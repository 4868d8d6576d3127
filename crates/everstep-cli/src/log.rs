//! What an engine has to say: to standard error, and with the feature `otel` as spans to a collector.

use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::Command;
#[cfg(feature = "otel")]
use crate::output;

/// Kept for as long as anything may be said.
pub(crate) struct Log {
    #[cfg(feature = "otel")]
    exporting: Option<everstep::telemetry::otel::Exporting>,
}

impl Log {
    /// `EVERSTEP_LOG` says how much goes to standard error. Where the environment names a collector,
    /// spans of commands that run for long go there, as those of a service of this name.
    pub(crate) fn start(command: &Command, name: &str) -> Log {
        // Much of what the demo shows fails on purpose.
        let unless_said = match command {
            Command::Demo(_) => "error",
            _ => "warn",
        };
        let filter = EnvFilter::try_from_env("EVERSTEP_LOG");
        let filter = filter.unwrap_or_else(|_| EnvFilter::new(unless_said));
        let written =
            tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter);
        let subscriber = tracing_subscriber::registry().with(written);
        // A program of one's own may have set up its own before: then nothing is set up here.
        #[cfg(feature = "otel")]
        if is_long(command) && names_collector() {
            return match everstep::telemetry::otel::Otlp::new(name).layer() {
                Ok((layer, exporting)) => {
                    let is_ours = subscriber.with(layer).try_init().is_ok();
                    Log { exporting: is_ours.then_some(exporting) }
                }
                Err(error) => {
                    output::note(&format!("warning: no spans are exported: {error}"));
                    _ = subscriber.try_init();
                    Log { exporting: None }
                }
            };
        }
        #[cfg(not(feature = "otel"))]
        let _ = name;
        _ = subscriber.try_init();
        Log {
            #[cfg(feature = "otel")]
            exporting: None,
        }
    }

    /// Nothing is said any more. Sends the spans that are left.
    pub(crate) fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(Err(error)) = self.exporting.map(|exporting| exporting.shutdown()) {
            output::note(&format!("warning: {error}"));
        }
    }
}

/// Whether engines or servers run in it, rather than one question that is asked.
#[cfg(feature = "otel")]
fn is_long(command: &Command) -> bool {
    matches!(command, Command::Demo(_) | Command::Serve(_) | Command::Worker(_))
}

#[cfg(feature = "otel")]
fn names_collector() -> bool {
    let names = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    let is_said = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    names.into_iter().any(is_said)
}
