//! Retention: how long runs that have ended are kept.

use std::time::Duration;

use crate::commit::RunStatus;

/// How long runs that have ended are kept, by how they ended. What is not said is kept for ever.
///
/// Set it for all workflows of an engine with [`Settings::retention`](crate::Settings::retention),
/// and for one workflow with [`WorkflowOptions::retain`](crate::WorkflowOptions::retain) or
/// `#[workflow(retain = ..)]`, which then counts alone. An engine deletes only runs of workflows
/// that are registered with it, a few hundred at a time, and within a minute or so of their time.
///
/// ```
/// use everstep::{Retention, prelude::*};
///
/// #[workflow(retain = Retention::new().completed(days(7)).cancelled(days(1)))]
/// async fn import(ctx: Ctx, _: ()) -> Result<()> {
///     ctx.step("read", async || Ok(())).await
/// }
///
/// let engine = Engine::in_memory()
///     .settings(|settings| settings.retention = Retention::new().completed(days(90)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    completed: Option<Duration>,
    failed: Option<Duration>,
    cancelled: Option<Duration>,
}

impl Retention {
    /// Everything is kept for ever.
    pub const fn new() -> Retention {
        Retention { completed: None, failed: None, cancelled: None }
    }

    /// Completed runs are kept for this long after their end.
    pub const fn completed(mut self, kept: Duration) -> Retention {
        self.completed = Some(kept);
        self
    }

    /// Failed runs are kept for this long after their end.
    pub const fn failed(mut self, kept: Duration) -> Retention {
        self.failed = Some(kept);
        self
    }

    /// Cancelled runs are kept for this long after their end.
    pub const fn cancelled(mut self, kept: Duration) -> Retention {
        self.cancelled = Some(kept);
        self
    }

    /// All runs are kept for this long after their end.
    pub const fn all(self, kept: Duration) -> Retention {
        self.completed(kept).failed(kept).cancelled(kept)
    }

    /// What is not kept for ever, and how long it is kept.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (RunStatus, Duration)> {
        let all = [
            (RunStatus::Completed, self.completed),
            (RunStatus::Failed, self.failed),
            (RunStatus::Cancelled, self.cancelled),
        ];
        all.into_iter().filter_map(|(status, kept)| Some((status, kept?)))
    }
}
