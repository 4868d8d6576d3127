//! Schedules.

use everstep::{Overlap, ScheduleInfo, ScheduleSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::{Tag, Time, as_millis, tags};
use crate::redact::Redaction;

/// A schedule.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScheduleShape {
    /// Its name.
    pub(crate) name: String,
    /// What it starts.
    pub(crate) workflow: String,
    /// In which version.
    pub(crate) version: u32,
    /// With which input.
    pub(crate) input: Json,
    /// With which tags.
    pub(crate) tags: Vec<Tag>,
    /// The cron expression of its ticks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cron: Option<String>,
    /// The time zone of the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_zone: Option<String>,
    /// The interval of its ticks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) every_ms: Option<u64>,
    /// What becomes of a tick while the last run has not ended.
    pub(crate) overlap: OverlapShape,
    /// How late a tick may be made up for.
    pub(crate) catch_up_ms: u64,
    /// Whether it rests.
    pub(crate) paused: bool,
    /// The next tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_at: Option<Time>,
    /// The next five ticks.
    pub(crate) upcoming: Vec<Time>,
    /// Ticks that wait for a run to end.
    pub(crate) queued: Vec<Time>,
    /// The last tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_tick: Option<Time>,
    /// The run that it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_run: Option<String>,
    /// How many ticks have started a run.
    pub(crate) started: u64,
    /// How many were skipped.
    pub(crate) skipped: u64,
    /// How many came too late.
    pub(crate) missed: u64,
    /// When it was made.
    pub(crate) created_at: Time,
    /// When it was last changed.
    pub(crate) updated_at: Time,
}

impl ScheduleShape {
    pub(crate) fn new(info: ScheduleInfo, redaction: &Redaction) -> ScheduleShape {
        let upcoming = info.upcoming(5).into_iter().map(Time).collect();
        let (cron, time_zone, every) = match info.spec {
            Some(ScheduleSpec::Cron { expression, time_zone }) => {
                (Some(expression), Some(time_zone), None)
            }
            Some(ScheduleSpec::Every(every)) => (None, None, Some(every)),
            _ => (None, None, None),
        };
        ScheduleShape {
            name: info.name,
            workflow: info.workflow,
            version: info.version,
            input: redaction.json(info.input),
            tags: tags(info.tags),
            cron,
            time_zone,
            every_ms: every.map(as_millis),
            overlap: info.overlap.into(),
            catch_up_ms: as_millis(info.catch_up),
            paused: info.paused,
            next_at: info.next_at.map(Time),
            upcoming,
            queued: info.queued.into_iter().map(Time).collect(),
            last_tick: info.last_tick.map(Time),
            last_run: info.last_run.map(|run| run.to_string()),
            started: info.started,
            skipped: info.skipped,
            missed: info.missed,
            created_at: info.created_at.into(),
            updated_at: info.updated_at.into(),
        }
    }
}

/// What becomes of a tick while the last run of its schedule has not ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OverlapShape {
    Skip,
    Queue,
    Allow,
    CancelOld,
}

impl From<Overlap> for OverlapShape {
    fn from(overlap: Overlap) -> OverlapShape {
        match overlap {
            Overlap::Queue => OverlapShape::Queue,
            Overlap::Allow => OverlapShape::Allow,
            Overlap::CancelOld => OverlapShape::CancelOld,
            _ => OverlapShape::Skip,
        }
    }
}

impl From<OverlapShape> for Overlap {
    fn from(overlap: OverlapShape) -> Overlap {
        match overlap {
            OverlapShape::Skip => Overlap::Skip,
            OverlapShape::Queue => Overlap::Queue,
            OverlapShape::Allow => Overlap::Allow,
            OverlapShape::CancelOld => Overlap::CancelOld,
        }
    }
}

/// A page of schedules.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScheduleList {
    /// By name.
    pub(crate) schedules: Vec<ScheduleShape>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A schedule as it is to be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["cron"]}, {"required": ["every_ms"]}]))]
pub(crate) struct PutSchedule {
    /// What it starts.
    pub(crate) workflow: String,
    /// With which input. If it is not said, a schedule that is there keeps its own, and a new one has
    /// `null`.
    #[serde(default, deserialize_with = "said")]
    pub(crate) input: Option<Json>,
    /// The cron expression of its ticks; or `every_ms`.
    pub(crate) cron: Option<String>,
    /// The IANA name of the time zone of the expression, UTC if it is not said.
    pub(crate) time_zone: Option<String>,
    /// The interval of its ticks; or `cron`.
    #[schemars(range(min = 1))]
    pub(crate) every_ms: Option<u64>,
    /// What becomes of a tick while the last run has not ended.
    pub(crate) overlap: Option<OverlapShape>,
    /// How late a tick may be made up for.
    pub(crate) catch_up_ms: Option<u64>,
    /// Whether it rests at first.
    #[serde(default)]
    pub(crate) paused: bool,
    /// The version of the workflow.
    pub(crate) version: Option<u32>,
    /// The tags of its runs.
    #[serde(default)]
    pub(crate) tags: Vec<Tag>,
}

/// A value that was said, even if it is `null`.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

/// Which ticks are made up for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Backfill {
    /// The first.
    pub(crate) from: Time,
    /// The one after the last.
    pub(crate) to: Time,
}

/// What a tick has started.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ticked {
    /// The run, if one was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// The run that has not ended, if none was started because of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped_by: Option<String>,
    /// In words.
    pub(crate) outcome: &'static str,
}

/// What the ticks of a time have started.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Backfilled {
    /// How many runs were started.
    pub(crate) started: u64,
    /// How many ticks had a run already.
    pub(crate) present: u64,
}
