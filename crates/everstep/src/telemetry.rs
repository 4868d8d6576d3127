//! What an engine tells about itself: spans while it works, and numbers when it is asked.
//!
//! # Spans
//!
//! Made with [`tracing`] at level `INFO` with target `everstep`. Their names and fields are stable.
//! What your code logs inside of a body, and the spans that it opens there, are below the span of the
//! step; what workflow code logs between its steps is below that of the run (and is logged again when
//! the run is replayed). Without a subscriber that wants them nothing is made.
//!
//! `everstep.run`: a run, for as long as it is in the memory of this process. A run that leaves memory
//! and comes back has another span each time.
//!
//! | field | what it is |
//! | --- | --- |
//! | `run` | the id |
//! | `workflow`, `version` | the code |
//! | `key` | the key that it was started with; absent without one |
//! | `generation` | how often it has begun anew under its id, from 1 |
//! | `attempt` | how often it was tried as a whole, from 1 |
//! | `recovered` | how often it was taken over from a process that died, since it last moved |
//! | `replayed` | how many entries of its history it began with; 0 for a new run |
//! | `status` | how it has ended, in the word of [`RunStatus`](crate::RunStatus); absent if it only left memory |
//!
//! `everstep.step`: one attempt at a body, from its start to its end.
//!
//! | field | what it is |
//! | --- | --- |
//! | `run`, `workflow` | the run |
//! | `step` | the location of the step, as [`Step::location`](crate::Step::location) gives it |
//! | `kind` | `step`, `rollback` or `transaction` |
//! | `attempt` | which attempt it is, from 1 |
//! | `outcome` | `completed`, `retried` (it failed and is made again), `failed`, `exhausted`, `timed_out`, or `dropped` (a lost race, a cancel, a shutdown) |
//! | `duration_ms` | how long it took |
//!
//! `everstep.item`: one attempt at an item of a queue.
//!
//! | field | what it is |
//! | --- | --- |
//! | `queue`, `item` | the item |
//! | `attempt` | which attempt it is, from 1 |
//! | `outcome` | `completed`, `retried`, `failed`, or `released` (the worker was stopped) |
//! | `duration_ms` | how long it took |
//!
//! # Traces
//!
//! Where a tracing system has been named with [`set_propagator`], the trace of whoever starts a run is
//! kept with the run: its spans are in that trace, in whatever process and however much later it goes
//! on, and so are those of the runs that it starts and of the items that it puts into queues. The same
//! holds for a client that puts an item into a queue. A tick of a schedule has no starter, so its run is
//! a trace of its own, as is one that is started outside of any; the run of a fork, a trigger or a
//! backfill is in the trace of who asked for it. What continues as new stays in its trace. The file that
//! a run is exported to does not say which trace it was in.
//!
//! With the feature `otel` that system is OpenTelemetry: `otel::Otlp` sends the spans to a collector. The
//! HTTP API gives a request with the header `traceparent` a span `everstep.request` (`method`, `path`) in
//! that trace; a server of your own does the same with [`TraceContext::adopt`].
//!
//! # Numbers
//!
//! [`Engine::metrics`](crate::Engine::metrics) gives all of them at once, as [`EngineMetrics`].

mod histogram;
mod metrics;
mod monitor;
#[cfg(feature = "otel")]
pub mod otel;
mod spans;
pub(crate) mod trace;

use std::sync::Arc;

use crate::run_id::RunId;

pub use histogram::Histogram;
pub use metrics::{AttemptOutcome, EngineCounters, EngineMetrics, WorkflowMetrics};
pub(crate) use metrics::{Metrics, ThreadCells, WorkflowCells};
pub(crate) use monitor::Watched;
pub use monitor::{EngineMonitor, NotReady};
pub(crate) use spans::{ItemSpan, Watch};
pub use trace::{Propagator, TraceContext, set_propagator};

/// What is told about one run while it is in memory.
pub(crate) struct RunTelemetry {
    pub(crate) run: RunId,
    pub(crate) workflow: Arc<str>,
    pub(crate) span: tracing::Span,
    pub(crate) cells: Arc<WorkflowCells>,
}
