//! What can be set on an engine, each with a default.

use std::time::Duration;

use crate::{codec::hook::Codecs, retention::Retention, retry::Retry, workflow::DEFAULT_POOL};

/// How an engine works. Every field has a default that suits one process on one machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How many engine threads poll workflows; one per core if 0.
    pub threads: usize,
    /// How many runs may move in memory at the same time: never more. At the bound, due runs stay
    /// pending, oldest first. Parked runs do not count, and wait for a place when they wake.
    pub max_live_runs: usize,
    /// How many bytes of parked runs are kept in memory, so that waking them costs no replay.
    pub hot_bytes: usize,
    /// How often a step is tried that does not say so itself.
    pub default_retry: Retry,
    /// How often a rollback is tried that does not say so itself.
    pub default_rollback_retry: Retry,
    /// How long an attempt may take that does not say so itself; as long as it likes if absent.
    pub default_step_timeout: Option<Duration>,
    /// How long the body of a `ctx.transaction` may take, 1 second by default: nothing else is
    /// written meanwhile, not even the heartbeat, so no more than a quarter of `lease` counts. Those
    /// of one batch take about twice this long together at most; the rest wait for the next batch.
    pub transaction_time_max: Duration,
    /// How long to wait before a store that is busy or full is tried again.
    pub store_retry: Duration,
    /// How exact timers are: those that end within this time of each other are woken together, so a
    /// run may be woken this much later than it asked for.
    pub timer_resolution: Duration,
    /// How long an event is kept for those who wait later, if it does not say so itself.
    pub event_retain: Duration,
    /// How many events of one name are kept, if they do not say so themselves; then the oldest is
    /// dropped.
    pub event_max_pending: u64,
    /// The pools whose runs this runner may own: see [`EngineBuilder::pools`](crate::EngineBuilder::pools).
    pub pools: Vec<String>,
    /// How many shards this runner has against others of its pools: one with 2 gets twice as many
    /// as one with 1. From 1 to 64.
    pub weight: u32,
    /// How long a runner owns its shards without a heartbeat.
    pub lease: Duration,
    /// How often a runner says that it is alive.
    pub heartbeat: Duration,
    /// How often the store is asked for due runs even if nothing points to one.
    pub safety_poll: Duration,
    /// How long a shutdown waits for bodies that are in flight.
    pub shutdown_limit: Duration,
    /// How long an engine thread may be held up by one body before that body is named.
    pub blocked_after: Duration,
    /// The largest payload: an input, a result, a message, a state.
    pub payload_bytes_max: usize,
    /// The longest history of a run.
    pub history_entries_max: u64,
    /// How many unread messages a run may have.
    pub inbox_messages_max: u64,
    /// How many items a stream of a run keeps; the oldest are dropped, and readers are told.
    pub stream_items_max: u64,
    /// How many streams a run may have.
    pub streams_max: usize,
    /// How many bytes of what bodies emit may wait to be made durable; a body that emits more
    /// waits.
    pub emit_bytes_max: usize,
    /// How many steps with rollbacks a run may keep.
    pub kept_rollbacks_max: usize,
    /// How many commits are made durable together at most.
    pub batch_commits_max: usize,
    /// How many bytes are made durable together at most.
    pub batch_bytes_max: usize,
    /// How long runs that have ended are kept, unless their workflow says something else: for ever.
    pub retention: Retention,
    /// How long entries of the audit log are kept: 365 days.
    pub audit_kept: Duration,
    /// How long the key of a deleted run is kept: a start with it is refused meanwhile, so that one
    /// that comes late does not do everything once more. 7 days.
    pub key_tombstone: Duration,
    /// The seed of everything random that is not stored; from the system if absent.
    pub seed: Option<u64>,
    /// What payloads are sealed and opened with.
    pub(crate) codecs: Codecs,
    /// What is broken on purpose, for the tests that must notice.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

/// A promise that an engine breaks on purpose, so that the tests of it can be tested.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Bodies start before what they build on is durable.
    NoBarrier,
    /// A runner goes on writing after it has lost its shards.
    NoFence,
    /// A message that was taken stays in the inbox.
    DoubleConsume,
    /// A runner does not look at its own clock: only the store refuses what it writes after its
    /// lease has ended.
    NoSelfFencing,
    /// A run that was paused gives its places under limits away and leaves memory, though it was
    /// resumed meanwhile.
    GivePlaceAway,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            threads: 0,
            max_live_runs: 20_000,
            hot_bytes: 256 << 20,
            default_retry: Retry::DEFAULT,
            default_rollback_retry: Retry::exponential(10),
            default_step_timeout: None,
            transaction_time_max: Duration::from_secs(1),
            store_retry: Duration::from_millis(50),
            timer_resolution: Duration::from_millis(10),
            event_retain: Duration::from_secs(7 * 86_400),
            event_max_pending: 10_000,
            pools: vec![DEFAULT_POOL.to_owned()],
            weight: 1,
            lease: Duration::from_secs(10),
            heartbeat: Duration::from_secs(3),
            safety_poll: Duration::from_secs(5),
            shutdown_limit: Duration::from_secs(30),
            blocked_after: Duration::from_secs(1),
            payload_bytes_max: 2 << 20,
            history_entries_max: 1_000_000,
            inbox_messages_max: 10_000,
            stream_items_max: 10_000,
            streams_max: 100,
            emit_bytes_max: 8 << 20,
            kept_rollbacks_max: 10_000,
            batch_commits_max: 2_000,
            batch_bytes_max: 8 << 20,
            retention: Retention::new(),
            audit_kept: Duration::from_secs(365 * 86_400),
            key_tombstone: Duration::from_secs(7 * 86_400),
            seed: None,
            codecs: Codecs::default(),
            sabotage: None,
        }
    }
}
