//! A run as it is stored: its row, and everything else that belongs to it.

use std::sync::Arc;

use super::{InboxRow, Put, RunStatus};
use crate::{
    run_id::{RunId, ShardId},
    time::Timestamp,
};

/// A run as it is stored, without its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: RunId,
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The version it was started with.
    pub version: u32,
    /// Its key, if it was started with one.
    pub key: Option<String>,
    /// Its home pool: the one whose runners may own it.
    pub pool: Arc<str>,
    /// Its shard: of its home pool, or of the overflow pool that it was handed over to.
    pub shard: ShardId,
    /// What it is doing.
    pub status: RunStatus,
    /// How its rollback will end, while it is rolling back, or paused in it.
    pub ending: Option<RunStatus>,
    /// Which of its lives this is, from 1.
    pub generation: u32,
    /// When it is due. Absent while it is in its owner's memory, and while nothing but a message
    /// can move it. Not after the instant at which its id was made if it is due at once.
    pub available_at: Option<Timestamp>,
    /// When it fails if it has not ended by then.
    pub deadline_at: Option<Timestamp>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When the row last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How often it has been tried as a whole, the current one included.
    pub attempts: u32,
    /// How often its owner was lost since it last made progress.
    pub recoveries: u32,
    /// How many messages were ever delivered to it.
    pub inbox_seq: u64,
    /// Whether a cancel was requested, and whether with rollback.
    pub cancel_requested: Option<CancelRequest>,
    /// Its highest sequence number, as far as the row knows it: a lower bound while the run is in
    /// its owner's memory, and until the next commit of a run that others have paused there or that
    /// is tried again.
    pub last_number: u64,
    /// What it waits for, or why it is paused, in words.
    pub waiting: Option<String>,
    /// What it can be found by.
    pub tags: Vec<(String, String)>,
    /// The trace that it belongs to, as [`NewRun::trace`](super::NewRun::trace) has it; absent after an import.
    pub trace: Option<String>,
    /// The run that started it, if one did.
    pub parent: Option<RunId>,
    /// The input, as a payload.
    pub input: Vec<u8>,
    /// The output, as a payload.
    pub output: Option<Vec<u8>>,
    /// The encoded failure.
    pub error: Option<Vec<u8>>,
    /// When it goes on at the earliest once it is resumed, if it is paused and had a time.
    pub resume_at: Option<Timestamp>,
}

impl RunRow {
    /// The time that it waits for, if that has not come. One that is due at once waits for none, though
    /// the clock by which its id was made is ahead.
    pub(crate) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        let made_at = RunId::started_at(self.id.no());
        self.available_at.filter(|at| *at > now.max(made_at))
    }

    /// Whether it is due.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.available_at.is_some() && self.waits_until(now).is_none()
    }

    /// Since when it is due, or when it will be: a row that says "at once" does so since it was written.
    pub(crate) fn due_since(&self) -> Option<Timestamp> {
        self.available_at.map(|at| at.max(self.updated_at))
    }
}

/// A cancel that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelRequest {
    /// Whether what the run has done is compensated.
    pub rollback: bool,
}

/// A run with everything an owner needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedRun {
    /// The row.
    pub row: RunRow,
    /// All entries of the current generation, in key order.
    pub history: Vec<Put>,
    /// All unread messages, in order.
    pub inbox: Vec<InboxRow>,
    /// The names of its streams, in order.
    pub streams: Vec<String>,
}
