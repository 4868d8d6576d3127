//! The spans, whose names and fields [`crate::telemetry`] promises.

use std::time::{Duration, Instant};

use tracing::{Span, field::Empty, span::Entered};

use super::{RunTelemetry, trace};
use crate::{
    commit::ClaimedItem,
    history::{EntryKind, EntryStatus},
    location::keys,
};

/// An attempt at a body that is under way. One that is dropped without an end was given up.
pub(crate) struct Watch {
    begun: Instant,
    /// Only where somebody listens.
    span: Option<Box<Span>>,
}

impl Watch {
    pub(crate) fn begin(told: &RunTelemetry, key: &[u8], kind: EntryKind, attempt: u32) -> Watch {
        let span = tracing::info_span!(
            target: "everstep",
            parent: &told.span,
            "everstep.step",
            run = %told.run,
            workflow = &*told.workflow,
            step = keys::describe(key),
            kind = kind_word(kind),
            attempt,
            outcome = Empty,
            duration_ms = Empty,
        );
        Watch {
            // Between the check of the lease and the body.
            begun: crate::seam::instant(),
            span: (!span.is_disabled()).then(|| Box::new(span)),
        }
    }

    /// Until the guard is dropped, what is logged is below the span.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        Some(self.span.as_ref()?.enter())
    }

    /// The span, if there is one.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn span(&self) -> Option<&Span> {
        self.span.as_deref()
    }

    /// The attempt has ended, and its entry says this.
    pub(crate) fn end(mut self, told: &RunTelemetry, status: EntryStatus) {
        let took = crate::seam::elapsed(self.begun);
        told.cells.attempt_ended(status, took);
        if let Some(span) = self.span.take() {
            record(&span, outcome_word(status), took);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            record(&span, "dropped", crate::seam::elapsed(self.begun));
        }
    }
}

fn record(span: &Span, outcome: &str, took: Duration) {
    span.record("outcome", outcome);
    span.record("duration_ms", took.as_secs_f64() * 1_000.0);
}

fn kind_word(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Rollback => "rollback",
        EntryKind::Transaction => "transaction",
        _ => "step",
    }
}

fn outcome_word(status: EntryStatus) -> &'static str {
    match status {
        EntryStatus::Completed => "completed",
        EntryStatus::Waiting => "retried",
        EntryStatus::Exhausted => "exhausted",
        EntryStatus::TimedOut => "timed_out",
        _ => "failed",
    }
}

/// The span of an attempt at an item of a queue.
pub(crate) struct ItemSpan {
    span: Span,
    begun: Instant,
}

impl ItemSpan {
    pub(crate) fn begin(queue: &str, item: &ClaimedItem) -> ItemSpan {
        let span = tracing::info_span!(
            target: "everstep",
            parent: None,
            "everstep.item",
            queue,
            item = item.item.0,
            attempt = item.attempt,
            outcome = Empty,
            duration_ms = Empty,
        );
        trace::adopt_stored(&span, item.trace.as_deref());
        let begun = crate::seam::instant();
        ItemSpan { span, begun }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn end(self, outcome: &str) {
        record(&self.span, outcome, crate::seam::elapsed(self.begun));
    }
}
