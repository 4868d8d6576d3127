//! What is written about schedules, and how they are stored.

use std::{sync::Arc, time::Duration};

use super::{NewRun, Started};
use crate::{run_id::RunId, schedule::Overlap, time::Timestamp};

/// A schedule as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRow {
    /// Its name.
    pub name: String,
    /// Rises with every change from outside, so that what was decided before it is not done after.
    pub revision: u64,
    /// The workflow that it starts.
    pub workflow: Arc<str>,
    /// The workflow's version.
    pub version: u32,
    /// The input of every run, as a payload.
    pub input: Vec<u8>,
    /// The tags of every run.
    pub tags: Vec<(String, String)>,
    /// When its ticks are, as text. A store does not read it.
    pub spec: String,
    /// Where intervals are counted from.
    pub anchor: Timestamp,
    /// What becomes of a tick while the last run has not ended.
    pub overlap: Overlap,
    /// How late a tick may be and still start its run.
    pub catch_up: Duration,
    /// Whether it has no ticks for now.
    pub paused: bool,
    /// The next tick; absent if there is none any more.
    pub next_at: Option<Timestamp>,
    /// Ticks that wait for the end of the last run, in order.
    pub queue: Vec<QueuedTick>,
    /// The last tick that started a run.
    pub last_tick: Option<Timestamp>,
    /// That run.
    pub last_run: Option<RunId>,
    /// How many ticks have started a run.
    pub started: u64,
    /// How many started none, because the last run had not ended.
    pub skipped: u64,
    /// How many started none, because they came too late.
    pub missed: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed from outside.
    pub updated_at: Timestamp,
}

/// A tick that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedTick {
    /// Its instant.
    pub at: Timestamp,
    /// Whether somebody has asked for it: there may be several at one instant.
    pub is_trigger: bool,
}

/// Schedules that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// The schedules, by their next tick and name.
    pub rows: Vec<ScheduleRow>,
    /// When the next one is due that is not due yet.
    pub next_at: Option<Timestamp>,
}

/// What can be done to schedules.
#[derive(Clone, Debug)]
pub enum ScheduleWrite {
    /// Makes or replaces one. Answered by `Created`, `Replaced` or `Unchanged`.
    Put(NewSchedule),
    /// It has no ticks any more. Answered by `Done`, `Already` or `Unknown`.
    Pause {
        /// Its name.
        name: String,
    },
    /// It has ticks again. Answered by `Done`, `Already`, `Stale` or `Unknown`.
    Resume {
        /// Its name.
        name: String,
        /// Refused unless the schedule has this revision: the next tick follows from it.
        revision: u64,
        /// The next tick. Those in between are passed over.
        next_at: Option<Timestamp>,
    },
    /// Removes it. Its runs stay. Answered by `Done` or `Unknown`.
    Delete {
        /// Its name.
        name: String,
    },
    /// Deals with a tick. Answered by `Fired`, `Stale` or `Unknown`.
    Fire(Fire),
}

/// A schedule to be made, or to take the place of the one with its name.
#[derive(Clone, Debug)]
pub struct NewSchedule {
    /// Its name.
    pub name: String,
    /// The workflow that it starts.
    pub workflow: Arc<str>,
    /// The workflow's version.
    pub version: u32,
    /// The input of every run, as a payload.
    pub input: Vec<u8>,
    /// The tags of every run.
    pub tags: Vec<(String, String)>,
    /// When its ticks are. One that is replaced by another with the same ticks keeps its next one,
    /// and where it counts from.
    pub spec: String,
    /// Where intervals are counted from.
    pub anchor: Timestamp,
    /// The first tick.
    pub first_at: Option<Timestamp>,
    /// What becomes of a tick while the last run has not ended.
    pub overlap: Overlap,
    /// How late a tick may be and still start its run.
    pub catch_up: Duration,
    /// Whether a new one begins without ticks. One that is replaced stays as it is.
    pub paused: bool,
}

/// A tick that is dealt with.
#[derive(Clone, Debug)]
pub struct Fire {
    /// The schedule.
    pub name: String,
    /// Refused unless the schedule has this revision: the run was made from it.
    pub revision: u64,
    /// Which tick it is.
    pub cause: FireCause,
    /// The run to be started. Absent if there are only missed ticks to be counted.
    pub run: Option<Box<NewRun>>,
}

/// Which tick is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FireCause {
    /// The next one.
    Tick {
        /// Refused unless this is still the next tick: then somebody else has dealt with it.
        next_at: Timestamp,
        /// How many ticks before `tick` came too late.
        missed: u64,
        /// The tick, unless all came too late.
        tick: Option<Timestamp>,
        /// The tick after it.
        then: Option<Timestamp>,
    },
    /// The first of those that wait. Refused unless it is that, and the last run has ended.
    Queued {
        /// The tick.
        tick: QueuedTick,
    },
    /// One that somebody has asked for.
    Trigger {
        /// Its instant.
        tick: Timestamp,
    },
}

/// What became of a [`ScheduleWrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleOutcome {
    /// It was made.
    Created,
    /// It took the place of another.
    Replaced,
    /// It was there like this.
    Unchanged,
    /// Done.
    Done,
    /// It was so already.
    Already,
    /// The schedule is no longer as the caller has seen it, or the run's number is taken; nothing
    /// was changed.
    Stale,
    /// There is no such schedule.
    Unknown,
    /// The tick was dealt with.
    Fired(Fired),
}

/// What became of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// Its run was started.
    Started(Started),
    /// It started none, because this run has not ended.
    Skipped {
        /// The run.
        by: Option<RunId>,
    },
    /// It waits.
    Queued,
    /// There was no tick, only missed ones.
    Missed,
}
