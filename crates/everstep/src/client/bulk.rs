//! The same thing done to many runs.

use super::{Client, ClientError, delete, handle::refused, retry};
use crate::{
    commit::{Control, Controlled, Deleted, Outcome, Target, Write},
    run_id::RunId,
    store::Filter,
};

/// How many runs are dealt with at a time: enough to share a transaction, few enough to let others
/// in between.
const PAGE: usize = 200;

/// How many reasons a report keeps.
const REASONS_KEPT: usize = 100;

impl Client {
    /// Does the same thing to all runs that match. Say what: nothing happens before.
    ///
    /// Runs are dealt with from the newest to the oldest, a few hundred at a time; those that are
    /// started meanwhile are not met. Every act can be repeated without harm, so after an error or
    /// a crash the same call finishes the work.
    ///
    /// ```
    /// use everstep::{Filter, RunStatus, prelude::*, testing};
    ///
    /// # #[workflow]
    /// # async fn nap(ctx: Ctx, _: ()) -> Result<()> { ctx.listen::<()>("wake").await }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(nap).start().await?;
    /// # let client = engine.client();
    /// # for _ in 0..3 { client.start(nap, ()).tag("tenant", "acme").await?; }
    /// let naps = Filter::new().workflow("nap").tag("tenant", "acme");
    /// assert_eq!(client.bulk(naps.clone()).count().await?, 3);
    /// let report = client.bulk(naps).cancel().await?;
    /// assert_eq!(report.done, 3);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn bulk(&self, filter: Filter) -> Bulk {
        let runs = Runs { client: self.clone(), filter, limit: u64::MAX, after: None };
        Bulk { runs, progress: None }
    }
}

/// Many runs, and what is to be done to them.
#[must_use = "nothing is done before an act is chosen"]
pub struct Bulk {
    runs: Runs,
    progress: Option<Progress>,
}

/// Which runs are meant. It is apart from who is told of the progress, so that an act can be awaited
/// anywhere.
struct Runs {
    client: Client,
    filter: Filter,
    limit: u64,
    after: Option<RunId>,
}

type Progress = Box<dyn FnMut(&BulkReport) + Send>;

/// What became of many runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkReport {
    /// How many runs were met.
    pub met: u64,
    /// To how many it was done.
    pub done: u64,
    /// How many were so already.
    pub already: u64,
    /// How many had ended.
    pub finished: u64,
    /// To how many it could not be done.
    pub refused: u64,
    /// How many were deleted by somebody else meanwhile.
    pub gone: u64,
    /// Why it could not be done: the first hundred.
    pub reasons: Vec<(RunId, String)>,
    /// The last run that was met, if there may be more: give it to [`Bulk::after`] to go on.
    pub next: Option<RunId>,
}

/// An act on many runs that stopped half-way.
#[derive(Clone, Debug, thiserror::Error)]
#[error("stopped after {} runs; go on with `.after(..)`, or do it again", .report.met)]
pub struct BulkError {
    /// What was done until then.
    pub report: Box<BulkReport>,
    /// Why it stopped.
    #[source]
    pub source: ClientError,
}

#[derive(Clone, Copy)]
enum Act {
    Control(Control),
    Retry,
    Delete,
}

impl Bulk {
    /// Only so many runs.
    pub fn limit(mut self, runs: u64) -> Self {
        self.runs.limit = runs;
        self
    }

    /// Goes on after this run: see [`BulkReport::next`].
    pub fn after(mut self, run: RunId) -> Self {
        self.runs.after = Some(run);
        self
    }

    /// Is called with what was done so far, after every few hundred runs.
    pub fn on_progress(mut self, progress: impl FnMut(&BulkReport) + Send + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// How many runs match: what an act would meet, if nothing changes. The limit and the place to
    /// go on from do not count here.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn count(self) -> Result<u64, ClientError> {
        let Runs { client, filter, .. } = self.runs;
        client.read(move |store| store.count(&filter)).await
    }

    /// Cancels them.
    ///
    /// # Errors
    ///
    /// If the store cannot; what was done until then is in the error.
    pub async fn cancel(self) -> Result<BulkReport, BulkError> {
        let rollback = false;
        self.act(Act::Control(Control::Cancel { rollback })).await
    }

    /// Cancels them; what they have done is compensated first.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Bulk::cancel).
    pub async fn cancel_with_rollback(self) -> Result<BulkReport, BulkError> {
        let rollback = true;
        self.act(Act::Control(Control::Cancel { rollback })).await
    }

    /// Pauses them.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Bulk::cancel).
    pub async fn pause(self) -> Result<BulkReport, BulkError> {
        self.act(Act::Control(Control::Pause)).await
    }

    /// Lets those that are paused go on.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Bulk::cancel).
    pub async fn resume(self) -> Result<BulkReport, BulkError> {
        self.act(Act::Control(Control::Resume)).await
    }

    /// Tries those that have failed again.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Bulk::cancel).
    pub async fn retry(self) -> Result<BulkReport, BulkError> {
        self.act(Act::Retry).await
    }

    /// Deletes those that have ended; see [`RunHandle::delete`](crate::RunHandle::delete).
    ///
    /// # Errors
    ///
    /// As [`cancel`](Bulk::cancel).
    pub async fn delete(self) -> Result<BulkReport, BulkError> {
        self.act(Act::Delete).await
    }

    async fn act(self, act: Act) -> Result<BulkReport, BulkError> {
        let Bulk { runs, mut progress } = self;
        let mut report = BulkReport { next: runs.after, ..BulkReport::default() };
        loop {
            match runs.page(act, &mut report).await {
                Ok(more) => {
                    if let Some(progress) = &mut progress {
                        progress(&report);
                    }
                    if !more {
                        return Ok(report);
                    }
                }
                Err(source) => {
                    let report = Box::new(report);
                    return Err(BulkError { report, source });
                }
            }
        }
    }
}

impl Runs {
    /// Deals with the next runs; whether there may be more.
    async fn page(&self, act: Act, report: &mut BulkReport) -> Result<bool, ClientError> {
        let left = self.limit.saturating_sub(report.met);
        let size = usize::try_from(left).map_or(PAGE, |left| left.min(PAGE));
        if size == 0 {
            return Ok(false);
        }
        let (filter, after) = (self.filter.clone(), report.next.map(RunId::no));
        let runs = self.client.read(move |store| store.find(&filter, after, size)).await?;
        let Some(last) = runs.last().copied() else {
            report.next = None;
            return Ok(false);
        };
        let full = runs.len() == size;
        // Only what is known to have been dealt with is reported.
        let mut page = report.clone();
        match act {
            Act::Control(control) => self.control(&runs, control, &mut page).await?,
            Act::Retry => self.retry_page(&runs, &mut page).await?,
            Act::Delete => self.delete_page(&runs, &mut page).await?,
        }
        page.met += runs.len() as u64;
        page.next = full.then_some(last);
        *report = page;
        Ok(full)
    }

    async fn control(
        &self,
        runs: &[RunId],
        control: Control,
        report: &mut BulkReport,
    ) -> Result<(), ClientError> {
        let writes = runs.iter().map(|run| Write::Control(Target::Id(*run), control));
        let outcomes = self.client.write_all(writes.collect()).await?;
        for (run, outcome) in runs.iter().zip(outcomes) {
            match outcome {
                Outcome::Controlled(Controlled::Done { .. }) => report.done += 1,
                Outcome::Controlled(Controlled::Already { .. }) => report.already += 1,
                Outcome::Controlled(Controlled::Finished { .. }) => report.finished += 1,
                Outcome::Controlled(Controlled::Unknown) => report.gone += 1,
                Outcome::Controlled(other) => {
                    let reason = refused(*run, &other).map(|error| error.to_string());
                    report.refuse(*run, reason.unwrap_or_default());
                }
                _ => return Err(ClientError::Closed),
            }
        }
        Ok(())
    }

    async fn retry_page(&self, runs: &[RunId], report: &mut BulkReport) -> Result<(), ClientError> {
        let asked = runs.to_vec();
        let found = self
            .client
            .read(move |store| {
                let plans = asked.iter().map(|run| retry::reopening(store, *run));
                plans.collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let mut rows = Vec::new();
        let mut writes = Vec::new();
        for (run, plan) in runs.iter().zip(found) {
            match plan {
                Ok((row, reopen)) => {
                    rows.push(row);
                    writes.push(Write::Reopen(Box::new(reopen)));
                }
                Err(ClientError::UnknownRun { .. }) => report.gone += 1,
                Err(error) => report.refuse(*run, error.to_string()),
            }
        }
        let outcomes = self.client.write_all(writes).await?;
        for (row, outcome) in rows.iter().zip(outcomes) {
            match outcome {
                Outcome::Committed(_) => report.done += 1,
                _ => {
                    let error = retry::wrong(row, retry::MEANWHILE);
                    report.refuse(row.id, error.to_string());
                }
            }
        }
        Ok(())
    }

    async fn delete_page(
        &self,
        runs: &[RunId],
        report: &mut BulkReport,
    ) -> Result<(), ClientError> {
        let writes = runs.iter().map(|run| self.client.deletion(*run, false));
        let outcomes = self.client.write_all(writes.collect()).await?;
        for (run, outcome) in runs.iter().zip(outcomes) {
            match outcome {
                Outcome::Deleted(Deleted::Done { .. }) => report.done += 1,
                Outcome::Deleted(Deleted::Live { status, .. }) => {
                    let error = ClientError::WrongStatus {
                        run: run.to_string(),
                        status,
                        act: "deleted",
                        hint: delete::LIVE,
                    };
                    report.refuse(*run, error.to_string());
                }
                Outcome::Deleted(_) => report.gone += 1,
                _ => return Err(ClientError::Closed),
            }
        }
        Ok(())
    }
}

impl BulkReport {
    fn refuse(&mut self, run: RunId, reason: String) {
        self.refused += 1;
        if self.reasons.len() < REASONS_KEPT {
            self.reasons.push((run, reason));
        }
    }
}
