//! What is around runs: schedules, queues, limits, dead letters, events, the cluster.

use std::time::Duration;

use everstep::{
    Cluster, DeadLetterInfo, EventRow, ItemInfo, ItemState, LimitInfo, Overlap, PublishedEvent,
    QueueStats, ScheduleInfo, ScheduleSpec, Target,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{
    Tag, Time, as_millis,
    run::{FailureShape, Status},
    tags,
};
use crate::redact::Redaction;

/// Who is asking, and what they may do.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Session {
    /// The name of the token; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// `read`, `operate` or `admin`; absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// Whether a token is needed here.
    pub(crate) login_required: bool,
    /// What changes must be sent with as `x-everstep-csrf`, if they are sent with a cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) csrf: Option<String>,
    /// The store.
    pub(crate) store: String,
    /// The version of this server.
    pub(crate) version: &'static str,
}

/// A token to log in with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The token.
    pub(crate) token: String,
}

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
            Some(ScheduleSpec::Cron {
                expression,
                time_zone,
            }) => (Some(expression), Some(time_zone), None),
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
pub(crate) struct PutSchedule {
    /// What it starts.
    pub(crate) workflow: String,
    /// With which input; nothing is `null`.
    #[serde(default)]
    pub(crate) input: Json,
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

/// Which ticks are made up for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Backfill {
    /// The first.
    pub(crate) from: Time,
    /// The one after the last.
    pub(crate) to: Time,
}

/// Whether something has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Changed {
    /// Whether it was otherwise before.
    pub(crate) changed: bool,
}

/// What a tick or some ticks have started.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ticked {
    /// The run, if one was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// In words.
    pub(crate) outcome: String,
}

/// A queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueShape {
    /// Its name.
    pub(crate) name: String,
    /// Items that can be claimed.
    pub(crate) ready: u64,
    /// Items whose time has not come.
    pub(crate) delayed: u64,
    /// Items that a worker has.
    pub(crate) claimed: u64,
    /// Items that are done and kept.
    pub(crate) done: u64,
    /// Items that were given up.
    pub(crate) dead: u64,
    /// Since when the oldest ready item is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_ready: Option<Time>,
}

impl QueueShape {
    pub(crate) fn new(name: String, stats: QueueStats) -> QueueShape {
        QueueShape {
            name,
            ready: stats.ready,
            delayed: stats.delayed,
            claimed: stats.claimed,
            done: stats.done,
            dead: stats.dead,
            oldest_ready: stats.oldest_ready.map(Time),
        }
    }
}

/// What an item of a queue is doing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStateShape {
    Ready,
    Delayed,
    Claimed,
    Done,
    Dead,
}

impl From<ItemState> for ItemStateShape {
    fn from(state: ItemState) -> ItemStateShape {
        match state {
            ItemState::Ready => ItemStateShape::Ready,
            ItemState::Delayed => ItemStateShape::Delayed,
            ItemState::Claimed => ItemStateShape::Claimed,
            ItemState::Done => ItemStateShape::Done,
            // There are no others in this version.
            _ => ItemStateShape::Dead,
        }
    }
}

impl From<ItemStateShape> for ItemState {
    fn from(state: ItemStateShape) -> ItemState {
        match state {
            ItemStateShape::Ready => ItemState::Ready,
            ItemStateShape::Delayed => ItemState::Delayed,
            ItemStateShape::Claimed => ItemState::Claimed,
            ItemStateShape::Done => ItemState::Done,
            ItemStateShape::Dead => ItemState::Dead,
        }
    }
}

/// An item of a queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueItem {
    /// Its id.
    pub(crate) id: String,
    /// The queue.
    pub(crate) queue: String,
    /// What it is doing.
    pub(crate) state: ItemStateShape,
    /// Since when, or until when if it is delayed.
    pub(crate) at: Time,
    /// The higher, the sooner.
    pub(crate) priority: i32,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// What no other item of the queue has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedupe: Option<String>,
    /// When it was put there.
    pub(crate) created_at: Time,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Json>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<FailureShape>,
}

impl QueueItem {
    pub(crate) fn new(info: ItemInfo, redaction: &Redaction) -> QueueItem {
        QueueItem {
            id: info.id.to_string(),
            queue: info.queue,
            state: info.state.into(),
            at: info.at.into(),
            priority: info.priority,
            attempts: info.attempts,
            dedupe: info.dedupe,
            created_at: info.created_at.into(),
            input: info.input.map(|input| redaction.json(input)),
            error: info.error.map(|it| FailureShape::new(it, redaction)),
        }
    }
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueItems {
    /// In their order.
    pub(crate) items: Vec<QueueItem>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// Which items.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ItemQuery {
    /// Those in this state.
    pub(crate) state: Option<ItemStateShape>,
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// An item to be put into a queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutItem {
    /// What it is about; nothing is `null`.
    #[serde(default)]
    pub(crate) input: Json,
    /// The higher, the sooner.
    pub(crate) priority: Option<i32>,
    /// After how long it can be claimed.
    pub(crate) delay_ms: Option<u64>,
    /// What no other item of the queue has.
    pub(crate) dedupe: Option<String>,
}

/// An item that was put, or found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemPut {
    /// Its id.
    pub(crate) id: String,
    /// Whether it was there already.
    pub(crate) attached: bool,
}

/// The limits that are in use.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LimitList {
    /// By name and key.
    pub(crate) limits: Vec<LimitShape>,
}

/// A limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LimitShape {
    /// Its name.
    pub(crate) name: String,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// How many places it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u32>,
    /// How many turns in which time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<Rate>,
    /// How many places are taken.
    pub(crate) in_use: u64,
    /// How many wait for one.
    pub(crate) waiting: u64,
    /// When the next turn is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_free: Option<Time>,
}

/// So many in such a time.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rate {
    /// So many.
    pub(crate) count: u32,
    /// In such a time.
    pub(crate) per_ms: u64,
}

impl From<LimitInfo> for LimitShape {
    fn from(info: LimitInfo) -> LimitShape {
        let rate = |(count, per): (u32, Duration)| Rate {
            count,
            per_ms: as_millis(per),
        };
        LimitShape {
            name: info.name,
            key: info.key,
            concurrency: info.concurrency,
            rate: info.rate.map(rate),
            in_use: info.in_use,
            waiting: info.waiting,
            next_free: info.next_free.map(Time),
        }
    }
}

/// Messages that nobody could be given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LetterList {
    /// In the order in which they came.
    pub(crate) letters: Vec<Letter>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A message that nobody could be given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Letter {
    /// Its number.
    pub(crate) no: u64,
    /// The run that it was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// How that run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
    /// Whom it was addressed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Its name.
    pub(crate) name: String,
    /// What it says.
    pub(crate) body: Json,
    /// Why nobody has it.
    pub(crate) reason: String,
    /// When it came.
    pub(crate) at: Time,
}

impl Letter {
    pub(crate) fn new(info: DeadLetterInfo, redaction: &Redaction) -> Letter {
        Letter {
            no: info.no,
            run: info.run.map(|run| run.to_string()),
            status: info.status.map(Status::from),
            target: info.target.map(|target| match target {
                Target::Id(run) => run.to_string(),
                Target::Key { workflow, key } => format!("{workflow}/{key}"),
            }),
            name: info.name,
            body: redaction.json(info.body),
            reason: redaction.text(info.reason),
            at: info.at.into(),
        }
    }
}

/// Which dead letters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LetterQuery {
    /// Those for this run.
    pub(crate) run: Option<String>,
    /// Those with this name.
    pub(crate) name: Option<String>,
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// Whom a dead letter is given to; to whom it was addressed if nothing is said.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReplayShape {
    /// To this run.
    pub(crate) to: Option<String>,
    /// Or to all who wait for this event.
    pub(crate) event: Option<String>,
}

/// An event to be published.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishShape {
    /// What it says; nothing is `null`.
    #[serde(default)]
    pub(crate) body: Json,
    /// Who waits for this key, or for any, gets it.
    pub(crate) key: Option<String>,
    /// A second event with the same one is not published.
    pub(crate) dedupe: Option<String>,
    /// How long it is kept for those who wait later.
    pub(crate) retain_ms: Option<u64>,
}

/// What became of an event.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PublishedShape {
    /// Whether an equal one was published before, and nothing was done.
    pub(crate) duplicate: bool,
    /// How many were told by now.
    pub(crate) told: u64,
    /// Whether there are more, who are told right after.
    pub(crate) spreading: bool,
    /// Whether it is kept for those who wait later.
    pub(crate) kept: bool,
}

impl From<PublishedEvent> for PublishedShape {
    fn from(published: PublishedEvent) -> PublishedShape {
        match published {
            PublishedEvent::Published {
                told,
                spreading,
                kept,
                ..
            } => PublishedShape {
                duplicate: false,
                told,
                spreading,
                kept,
            },
            _ => PublishedShape {
                duplicate: true,
                told: 0,
                spreading: false,
                kept: false,
            },
        }
    }
}

/// An event by its name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EventShape {
    /// Its name.
    pub(crate) name: String,
    /// How many were published.
    pub(crate) published: u64,
    /// How many are kept.
    pub(crate) kept: u64,
    /// How many were dropped.
    pub(crate) dropped: u64,
    /// How many wait for one.
    pub(crate) waiting: u64,
}

impl From<EventRow> for EventShape {
    fn from(row: EventRow) -> EventShape {
        EventShape {
            name: row.name,
            published: row.published,
            kept: row.kept,
            dropped: row.dropped,
            waiting: row.waiting,
        }
    }
}

/// The processes that run things, and how they share the work.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClusterShape {
    /// The processes.
    pub(crate) runners: Vec<Runner>,
    /// The pools.
    pub(crate) pools: Vec<Pool>,
}

/// A process that runs things.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Runner {
    /// Its id.
    pub(crate) id: String,
    /// Its name: where it is.
    pub(crate) name: String,
    /// Whether its lease lasts.
    pub(crate) alive: bool,
    /// Until when.
    pub(crate) lease_until: Time,
    /// The pools that it serves.
    pub(crate) pools: Vec<String>,
    /// How much it takes beside others.
    pub(crate) weight: u32,
    /// What it has the code for.
    pub(crate) workflows: Vec<Served>,
    /// How many shards it has.
    pub(crate) shards: usize,
}

/// A workflow that a runner has the code for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Served {
    /// Its name.
    pub(crate) name: String,
    /// The version of the code.
    pub(crate) version: u32,
    /// The first version of runs that it may run.
    pub(crate) from: u32,
    /// The last one.
    pub(crate) to: u32,
}

/// A pool.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Pool {
    /// Its name.
    pub(crate) name: String,
    /// How many of its shards somebody has.
    pub(crate) owned: usize,
    /// How many there are.
    pub(crate) of: u32,
}

impl From<Cluster> for ClusterShape {
    fn from(cluster: Cluster) -> ClusterShape {
        let runners = cluster.runners.into_iter().map(|runner| Runner {
            id: runner.id.to_string(),
            name: runner.name,
            alive: runner.alive,
            lease_until: runner.lease_until.into(),
            pools: runner.pools,
            weight: runner.weight,
            workflows: runner
                .workflows
                .into_iter()
                .map(|served| Served {
                    name: served.workflow,
                    version: served.version,
                    from: *served.accepts.start(),
                    to: *served.accepts.end(),
                })
                .collect(),
            shards: runner.shards,
        });
        let pools = cluster.pools.into_iter().map(|pool| Pool {
            name: pool.name,
            owned: pool.owned,
            of: everstep::SHARDS.into(),
        });
        ClusterShape {
            runners: runners.collect(),
            pools: pools.collect(),
        }
    }
}

/// The workflows that can be started.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkflowList {
    /// By name.
    pub(crate) workflows: Vec<WorkflowShape>,
}

/// A workflow that some runner has the code for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WorkflowShape {
    /// Its name.
    pub(crate) name: String,
    /// The versions of the code, the newest last.
    pub(crate) versions: Vec<u32>,
    /// How many runners have it.
    pub(crate) runners: usize,
}
