//! Runs.

use everstep::{BulkReport, Failure, FailureKind, Filter, RunId, RunInfo, RunPage, RunStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value as Json;

use super::{Tag, Time, tags};
use crate::redact::Redaction;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Pending,
    Running,
    Sleeping,
    RollingBack,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl From<RunStatus> for Status {
    fn from(status: RunStatus) -> Status {
        match status {
            RunStatus::Pending => Status::Pending,
            RunStatus::Running => Status::Running,
            RunStatus::Sleeping => Status::Sleeping,
            RunStatus::RollingBack => Status::RollingBack,
            RunStatus::Paused => Status::Paused,
            RunStatus::Completed => Status::Completed,
            RunStatus::Failed => Status::Failed,
            // There are no others in this version.
            _ => Status::Cancelled,
        }
    }
}

/// Why a run or a step failed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct FailureShape {
    /// What kind of failure.
    pub(crate) kind: String,
    /// In words.
    pub(crate) message: String,
    /// What caused it, the nearest first.
    pub(crate) causes: Vec<String>,
    /// The step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) location: Option<String>,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// What the code has attached to the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Json>,
}

/// The word for a kind of failure.
fn failure_kind(kind: FailureKind) -> String {
    match kind {
        FailureKind::TimedOut => "timed_out".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

impl FailureShape {
    pub(crate) fn new(failure: Failure, redaction: &Redaction) -> FailureShape {
        FailureShape {
            kind: failure_kind(failure.kind),
            details: failure.details_json().map(|it| redaction.json(it)),
            message: redaction.text(failure.message),
            causes: failure.causes.into_iter().map(|cause| redaction.text(cause)).collect(),
            location: failure.location.map(|location| location.to_string()),
            attempts: failure.attempts,
        }
    }
}

/// A run in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RunSummary {
    /// Its id.
    pub(crate) id: String,
    /// The workflow's name.
    pub(crate) workflow: String,
    /// The version it was started with.
    pub(crate) version: u32,
    /// Its key, if it was started with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// What it is doing.
    pub(crate) status: Status,
    /// What it waits for, or why it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<String>,
    /// When it was started.
    pub(crate) created_at: Time,
    /// When its row last changed.
    pub(crate) updated_at: Time,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<Time>,
    /// When it is due, if it waits for a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available_at: Option<Time>,
    /// When it fails if it has not ended by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_at: Option<Time>,
    /// The tick that started it, if a schedule did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduled_at: Option<Time>,
    /// How often it has been tried as a whole.
    pub(crate) attempts: u32,
    /// How often its owner was lost since it last made progress.
    pub(crate) recoveries: u32,
    /// Whether a cancel was requested.
    pub(crate) cancel_requested: bool,
    /// Which of its lives this is, from 1.
    pub(crate) generation: u32,
    /// The run that started it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// The pool whose runners run it.
    pub(crate) pool: String,
    /// What it can be found by.
    pub(crate) tags: Vec<Tag>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<FailureShape>,
}

/// A run with what it was given and what it gave.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RunDetail {
    #[serde(flatten)]
    pub(crate) summary: RunSummary,
    /// What it was started with.
    pub(crate) input: Json,
    /// What it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Json>,
}

impl RunDetail {
    pub(crate) fn new(info: RunInfo, redaction: &Redaction) -> RunDetail {
        RunDetail {
            input: redaction.json(info.input),
            output: info.output.map(|output| redaction.json(output)),
            summary: RunSummary {
                id: info.id.to_string(),
                workflow: info.workflow,
                version: info.version,
                key: info.key,
                status: info.status.into(),
                waiting: info.waiting.map(|text| redaction.text(text)),
                created_at: info.created_at.into(),
                updated_at: info.updated_at.into(),
                finished_at: info.finished_at.map(Time),
                available_at: info.available_at.map(Time),
                deadline_at: info.deadline_at.map(Time),
                scheduled_at: info.scheduled_at.map(Time),
                attempts: info.attempts,
                recoveries: info.recoveries,
                cancel_requested: info.cancel_requested,
                generation: info.generation,
                parent: info.parent.map(|parent| parent.to_string()),
                pool: info.pool,
                tags: tags(info.tags),
                failure: info.failure.map(|failure| FailureShape::new(failure, redaction)),
            },
        }
    }
}

/// A page of runs, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunList {
    /// The runs.
    pub(crate) runs: Vec<RunSummary>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl RunList {
    pub(crate) fn new(page: RunPage, redaction: &Redaction) -> RunList {
        RunList::of(page.runs, page.next, redaction)
    }

    pub(crate) fn of(runs: Vec<RunInfo>, next: Option<RunId>, redaction: &Redaction) -> RunList {
        let summary = |info| RunDetail::new(info, redaction).summary;
        RunList {
            runs: runs.into_iter().map(summary).collect(),
            next: next.map(|run| run.to_string()),
        }
    }
}

/// Which runs are meant.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunFilter {
    /// One or more statuses, separated by commas.
    #[serde(deserialize_with = "statuses")]
    #[schemars(with = "Option<String>", regex(pattern = r"^[a-z_]+(,[a-z_]+)*$"))]
    pub(crate) status: Vec<RunStatus>,
    /// The workflow's name.
    pub(crate) workflow: Option<String>,
    /// The version of the workflow.
    pub(crate) version: Option<u32>,
    /// What the key begins with.
    pub(crate) key_prefix: Option<String>,
    /// A tag as `name:value`; all that are said must be there.
    pub(crate) tag: Vec<String>,
    /// Started at this time or later.
    pub(crate) created_from: Option<Time>,
    /// Started before this time.
    pub(crate) created_before: Option<Time>,
    /// Ended at this time or later.
    pub(crate) finished_from: Option<Time>,
    /// Ended before this time.
    pub(crate) finished_before: Option<Time>,
    /// A run id, the beginning of a key, a tag as `name:value`, or at least 8 digits of the beginning
    /// or the end of a run id. The end is looked for among the newest 100 000 runs.
    pub(crate) q: Option<String>,
}

/// `RunFilter` with a page, as a query.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunQuery {
    /// One or more statuses, separated by commas.
    #[serde(deserialize_with = "statuses")]
    #[schemars(with = "Option<String>", regex(pattern = r"^[a-z_]+(,[a-z_]+)*$"))]
    pub(crate) status: Vec<RunStatus>,
    /// The workflow's name.
    pub(crate) workflow: Option<String>,
    /// The version of the workflow.
    pub(crate) version: Option<u32>,
    /// What the key begins with.
    pub(crate) key_prefix: Option<String>,
    /// A tag as `name:value`; all that are said must be there.
    pub(crate) tag: Vec<String>,
    /// Started at this time or later.
    pub(crate) created_from: Option<Time>,
    /// Started before this time.
    pub(crate) created_before: Option<Time>,
    /// Ended at this time or later.
    pub(crate) finished_from: Option<Time>,
    /// Ended before this time.
    pub(crate) finished_before: Option<Time>,
    /// These runs, separated by commas, at most 100; without any other filter.
    pub(crate) ids: Option<String>,
    /// A run id, the beginning of a key, a tag as `name:value`, or at least 8 digits of the beginning
    /// or the end of a run id. The end is looked for among the newest 100 000 runs.
    pub(crate) q: Option<String>,
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

impl RunFilter {
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let is_said = [
            self.workflow.is_some(),
            self.version.is_some(),
            self.key_prefix.is_some(),
            self.created_from.is_some(),
            self.created_before.is_some(),
            self.finished_from.is_some(),
            self.finished_before.is_some(),
            self.q.is_some(),
        ];
        self.status.is_empty() && self.tag.is_empty() && !is_said.contains(&true)
    }
}

impl RunQuery {
    pub(crate) fn filter(&self) -> RunFilter {
        RunFilter {
            status: self.status.clone(),
            workflow: self.workflow.clone(),
            version: self.version,
            key_prefix: self.key_prefix.clone(),
            tag: self.tag.clone(),
            created_from: self.created_from,
            created_before: self.created_before,
            finished_from: self.finished_from,
            finished_before: self.finished_before,
            q: self.q.clone(),
        }
    }
}

impl TryFrom<RunFilter> for Filter {
    type Error = String;

    fn try_from(mut said: RunFilter) -> Result<Filter, String> {
        let mut filter = Filter::new();
        let sought = said.q.take().unwrap_or_default();
        let sought = sought.trim();
        if let Ok(run) = sought.parse() {
            filter = filter.id(run);
        } else if let Some((name, value)) = sought.split_once(':')
            && !name.is_empty()
            && !value.is_empty()
        {
            filter = filter.tag(name, value);
        } else if !sought.is_empty() {
            if said.key_prefix.is_some() {
                return Err("say either `key_prefix` or the beginning of a key as `q`".to_owned());
            }
            said.key_prefix = Some(sought.to_owned());
        }
        for status in said.status {
            filter = filter.status(status);
        }
        for tag in said.tag {
            let (name, value) = tag
                .split_once(':')
                .ok_or_else(|| format!("the tag `{tag}` is not of the form `name:value`"))?;
            filter = filter.tag(name, value);
        }
        if let Some(workflow) = said.workflow {
            filter = filter.workflow(workflow);
        }
        if let Some(version) = said.version {
            filter = filter.version(version);
        }
        if let Some(prefix) = said.key_prefix {
            filter = filter.key_prefix(prefix);
        }
        if let Some(Time(at)) = said.created_from {
            filter = filter.created_from(at);
        }
        if let Some(Time(at)) = said.created_before {
            filter = filter.created_before(at);
        }
        if let Some(Time(at)) = said.finished_from {
            filter = filter.finished_from(at);
        }
        if let Some(Time(at)) = said.finished_before {
            filter = filter.finished_before(at);
        }
        Ok(filter)
    }
}

fn statuses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RunStatus>, D::Error> {
    let text = String::deserialize(from)?;
    let words = text.split(',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(de::Error::custom)).collect()
}

/// How many runs there are of each status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Counts {
    pub(crate) counts: ByStatus,
    /// All of them.
    pub(crate) total: u64,
}

/// A number for each status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ByStatus {
    pub(crate) pending: u64,
    pub(crate) running: u64,
    pub(crate) sleeping: u64,
    pub(crate) rolling_back: u64,
    pub(crate) paused: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
}

impl ByStatus {
    pub(crate) fn of(&mut self, status: RunStatus) -> &mut u64 {
        match status {
            RunStatus::Pending => &mut self.pending,
            RunStatus::Running => &mut self.running,
            RunStatus::Sleeping => &mut self.sleeping,
            RunStatus::RollingBack => &mut self.rolling_back,
            RunStatus::Paused => &mut self.paused,
            RunStatus::Completed => &mut self.completed,
            RunStatus::Failed => &mut self.failed,
            _ => &mut self.cancelled,
        }
    }
}

/// A run to be started.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartRun {
    /// The workflow's name.
    pub(crate) workflow: String,
    /// What it is given; nothing is `null`.
    #[serde(default)]
    pub(crate) input: Json,
    /// A name of its own: a second start with it finds the first run.
    pub(crate) key: Option<String>,
    /// The version of the workflow; the newest that a runner has if it is not said.
    pub(crate) version: Option<u32>,
    /// When it begins.
    pub(crate) at: Option<Time>,
    /// After how long it begins.
    pub(crate) delay_ms: Option<u64>,
    /// When it fails if it has not ended by then.
    pub(crate) deadline_at: Option<Time>,
    /// The runners that run it.
    pub(crate) pool: Option<String>,
    /// What it can be found by.
    #[serde(default)]
    pub(crate) tags: Vec<Tag>,
}

/// A run that was started, or found under its key.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Started {
    /// Its id.
    pub(crate) id: String,
    /// Whether it was there already.
    pub(crate) attached: bool,
    /// Whether it was started with another input than this one.
    pub(crate) input_differs: bool,
}

/// How a run is cancelled.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CancelRun {
    /// Whether what it has done is undone.
    pub(crate) rollback: bool,
}

/// How a run is forked.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ForkShape {
    /// The step from which on it is made anew; all of it if it is not said.
    pub(crate) from: Option<String>,
    /// Another input.
    pub(crate) input: Option<Json>,
    /// What steps are taken to have given.
    pub(crate) results: Vec<StepResult>,
    /// The key of the new run.
    pub(crate) key: Option<String>,
    /// Its version.
    pub(crate) version: Option<u32>,
    /// Its tags.
    pub(crate) tags: Vec<Tag>,
}

/// What a step is taken to have given.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepResult {
    /// The step.
    pub(crate) location: String,
    /// What it gave.
    pub(crate) value: Json,
}

/// A new run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NewRun {
    /// Its id.
    pub(crate) id: String,
}

impl From<RunId> for NewRun {
    fn from(id: RunId) -> NewRun {
        NewRun { id: id.to_string() }
    }
}

/// How a run ended, or that it has not.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunResult {
    /// What it is doing.
    pub(crate) status: Status,
    /// What it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Json>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<FailureShape>,
}

/// Something to be done to many runs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkShape {
    /// Which ones.
    pub(crate) filter: RunFilter,
    /// What.
    pub(crate) action: BulkAction,
    /// How many at most: 5 000 if it is not said, and no more than that.
    #[schemars(range(min = 1, max = 5_000))]
    pub(crate) limit: Option<u64>,
    /// Where to go on: `next` of the answer before.
    pub(crate) cursor: Option<String>,
    /// Only count them.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// What can be done to many runs.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BulkAction {
    Cancel,
    CancelWithRollback,
    Pause,
    Resume,
    Retry,
    Delete,
}

/// What became of them.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct BulkDone {
    /// How many met the filter.
    pub(crate) met: u64,
    /// To how many it was done.
    pub(crate) done: u64,
    /// How many were so already.
    pub(crate) already: u64,
    /// How many had ended.
    pub(crate) finished: u64,
    /// How many refused it.
    pub(crate) refused: u64,
    /// How many were gone.
    pub(crate) gone: u64,
    /// Why some refused.
    pub(crate) reasons: Vec<BulkReason>,
    /// The `cursor` to go on with, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl BulkDone {
    /// The numbers, for the audit log and for a problem.
    pub(crate) fn in_words(&self) -> String {
        let all = [
            (self.met, "met"),
            (self.done, "done"),
            (self.already, "so already"),
            (self.finished, "had ended"),
            (self.refused, "refused"),
            (self.gone, "gone"),
        ];
        let said = all.iter().enumerate();
        let said = said.filter(|(at, (count, _))| *at < 2 || *count > 0);
        let said = said.map(|(_, (count, word))| format!("{count} {word}"));
        said.collect::<Vec<_>>().join(", ")
    }
}

/// Why a run refused.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BulkReason {
    /// The run.
    pub(crate) run: String,
    /// Why.
    pub(crate) reason: String,
}

impl From<BulkReport> for BulkDone {
    fn from(report: BulkReport) -> BulkDone {
        let reasons = report
            .reasons
            .into_iter()
            .map(|(run, reason)| BulkReason { run: run.to_string(), reason });
        BulkDone {
            met: report.met,
            done: report.done,
            already: report.already,
            finished: report.finished,
            refused: report.refused,
            gone: report.gone,
            reasons: reasons.collect(),
            next: report.next.map(|run| run.to_string()),
        }
    }
}
