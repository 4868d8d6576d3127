//! What can be set on an engine, each with a default.

use std::time::Duration;

use crate::{
    codec::hook::Codecs, pool::DEFAULT_POOL, retention::Retention, retry::Retry, run_id::SHARDS,
    sabotage::Sabotage,
};

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
    /// Lease duration: how long a runner owns its shards without a heartbeat. At least 100 ms, and
    /// at least twice the heartbeat.
    pub lease: Duration,
    /// Interval between heartbeats, each of which renews the lease; three tenths of `lease` if
    /// absent, so that a lease outlives two lost heartbeats.
    pub heartbeat: Option<Duration>,
    /// How often the store is asked for due runs even if nothing points to one.
    pub safety_poll: Duration,
    /// How long a shutdown waits for bodies that are in flight.
    pub shutdown_limit: Duration,
    /// How long a body may go on after its token has fired ([`Step::cancellation`](crate::Step)),
    /// before it is dropped: on a cancel of its run, at the deadline of its run, and after its timeout.
    /// Before the end of a lease it is no more than a fifth of `lease`. 1 second by default; with zero
    /// bodies are dropped at once. Every operation that has a body waits for this at most, so a cancel
    /// and the end at a deadline may take as long.
    pub stop_grace: Duration,
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
    #[cfg(feature = "sabotage")]
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

impl Settings {
    /// Whether this promise is broken on purpose.
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// No promise can be broken on purpose without the feature `sabotage`.
    #[cfg(not(feature = "sabotage"))]
    pub(crate) const fn breaks(&self, _: Sabotage) -> bool {
        false
    }
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
            heartbeat: None,
            safety_poll: Duration::from_secs(5),
            shutdown_limit: Duration::from_secs(30),
            stop_grace: Duration::from_secs(1),
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
            #[cfg(feature = "sabotage")]
            sabotage: None,
        }
    }
}

/// The shortest lease: below it a commit that waits for the disk looks like a dead process.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// The longest of the times that are counted from the start of the machine, about 100 years: later
/// instants cannot be represented.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The shortest time after which something is done again.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// A setting, or two together, with which an engine or an operation cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The value is below the smallest that works.
    #[error("`{setting}` is {value}, and must be at least {min}")]
    TooSmall {
        /// The name of the setting.
        setting: &'static str,
        /// The given value.
        value: String,
        /// The smallest value that works.
        min: String,
    },
    /// The value is above the largest that works.
    #[error("`{setting}` is {value}, and must be at most {max}")]
    TooLarge {
        /// The name of the setting.
        setting: &'static str,
        /// The given value.
        value: String,
        /// The largest value that works.
        max: String,
    },
    /// The lease can end between two heartbeats of a healthy process.
    #[error(
        "`lease` is {lease:?} and `heartbeat` is {heartbeat:?}; the lease must be at least twice the \
         heartbeat, or other processes take the runs of a healthy one: set only `lease`, and the \
         heartbeat follows from it"
    )]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
        /// The heartbeat.
        heartbeat: Duration,
    },
}

impl SettingsError {
    /// Refuses a count of 0.
    pub(crate) fn check_count(setting: &'static str, value: u64) -> Result<(), SettingsError> {
        if value > 0 {
            return Ok(());
        }
        Err(SettingsError::TooSmall { setting, value: value.to_string(), min: "1".to_owned() })
    }

    /// Refuses a policy that allows no attempt at all.
    pub(crate) fn check_retry(retry: &Retry) -> Result<(), SettingsError> {
        SettingsError::check_count("attempts", retry.attempts().into())
    }

    /// Refuses a time that is shorter than `min`, or so long that nobody can mean it: sums and multiples
    /// of it must not overflow.
    pub(crate) fn check_bounded(
        setting: &'static str,
        value: Duration,
        min: Duration,
    ) -> Result<(), SettingsError> {
        SettingsError::check_time(setting, value, min)?;
        if value <= TIME_MAX {
            return Ok(());
        }
        Err(SettingsError::TooLarge {
            setting,
            value: format!("{value:?}"),
            max: format!("{TIME_MAX:?}"),
        })
    }

    /// Refuses a time that is shorter than `min`.
    pub(crate) fn check_time(
        setting: &'static str,
        value: Duration,
        min: Duration,
    ) -> Result<(), SettingsError> {
        if value >= min {
            return Ok(());
        }
        Err(SettingsError::TooSmall {
            setting,
            value: format!("{value:?}"),
            min: format!("{min:?}"),
        })
    }
}

impl Settings {
    /// Interval between heartbeats: as set, or as it follows from the lease.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease / 10 * 3)
    }

    /// How long before the end of a lease bodies stop. Neither the clock of this process nor its
    /// scheduling is exact, and the bodies of the next owner must find none of these.
    pub(crate) fn lease_margin(&self) -> Duration {
        self.lease / 10
    }

    /// How long a body is told before that.
    pub(crate) fn lease_grace(&self) -> Duration {
        self.stop_grace.min(self.lease / 5)
    }

    /// Refuses settings with which no engine can work.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        self.check_counts()?;
        self.check_times()?;
        let (lease, heartbeat) = (self.lease, self.heartbeat());
        if heartbeat.saturating_mul(2) > lease {
            return Err(SettingsError::LeaseTooShort { lease, heartbeat });
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), SettingsError> {
        for (setting, value) in [
            ("max_live_runs", self.max_live_runs as u64),
            ("pools", self.pools.len() as u64),
            ("payload_bytes_max", self.payload_bytes_max as u64),
            ("history_entries_max", self.history_entries_max),
            ("inbox_messages_max", self.inbox_messages_max),
            ("stream_items_max", self.stream_items_max),
            ("streams_max", self.streams_max as u64),
            ("emit_bytes_max", self.emit_bytes_max as u64),
            ("kept_rollbacks_max", self.kept_rollbacks_max as u64),
            ("batch_commits_max", self.batch_commits_max as u64),
            ("batch_bytes_max", self.batch_bytes_max as u64),
            ("default_retry", self.default_retry.attempts().into()),
            ("default_rollback_retry", self.default_rollback_retry.attempts().into()),
        ] {
            SettingsError::check_count(setting, value)?;
        }
        // A run belongs to the thread of its shard, so more threads would have nothing to do.
        if self.threads > SHARDS as usize {
            return Err(SettingsError::TooLarge {
                setting: "threads",
                value: self.threads.to_string(),
                max: SHARDS.to_string(),
            });
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), SettingsError> {
        let heartbeat = self.heartbeat();
        for (setting, value, min) in [
            ("lease", self.lease, LEASE_MIN),
            ("heartbeat", heartbeat, INTERVAL_MIN),
            ("safety_poll", self.safety_poll, INTERVAL_MIN),
            ("store_retry", self.store_retry, INTERVAL_MIN),
            ("shutdown_limit", self.shutdown_limit, Duration::ZERO),
            ("timer_resolution", self.timer_resolution, Duration::ZERO),
        ] {
            SettingsError::check_bounded(setting, value, min)?;
        }
        let step_timeout = self.default_step_timeout.unwrap_or(INTERVAL_MIN);
        for (setting, value) in [
            ("transaction_time_max", self.transaction_time_max),
            ("blocked_after", self.blocked_after),
            ("default_step_timeout", step_timeout),
        ] {
            SettingsError::check_time(setting, value, INTERVAL_MIN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        let refused = settings.check().expect_err("the settings cannot work");
        refused.to_string()
    }

    #[test]
    fn the_heartbeat_follows_from_the_lease_unless_it_is_set() {
        let mut settings = Settings::default();
        let seconds = Duration::from_secs;
        assert_eq!((settings.lease, settings.heartbeat()), (seconds(10), seconds(3)));
        settings.lease = seconds(2);
        assert_eq!(settings.heartbeat(), Duration::from_millis(600));
        assert_eq!(settings.check(), Ok(()));
        settings.heartbeat = Some(seconds(1));
        assert_eq!(settings.heartbeat(), seconds(1));
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn what_is_refused_is_named_with_both_values() {
        let text = refusal(|it| {
            (it.lease, it.heartbeat) = (Duration::from_secs(2), Some(Duration::from_secs(3)));
        });
        assert!(text.contains("`lease` is 2s and `heartbeat` is 3s"), "{text}");
        let text = refusal(|it| it.lease = Duration::from_millis(3));
        assert_eq!(text, "`lease` is 3ms, and must be at least 100ms");
        let text = refusal(|it| it.heartbeat = Some(Duration::ZERO));
        assert_eq!(text, "`heartbeat` is 0ns, and must be at least 1ms");
        let text = refusal(|it| it.max_live_runs = 0);
        assert_eq!(text, "`max_live_runs` is 0, and must be at least 1");
        let text = refusal(|it| it.threads = 1_000);
        assert_eq!(text, "`threads` is 1000, and must be at most 256");
        let text = refusal(|it| it.default_retry = Retry::exponential(0));
        assert_eq!(text, "`default_retry` is 0, and must be at least 1");
        let changes: [fn(&mut Settings); 3] = [
            |it| it.lease = Duration::MAX,
            |it| it.heartbeat = Some(Duration::MAX),
            |it| it.timer_resolution = Duration::MAX,
        ];
        for change in changes {
            let text = refusal(change);
            assert!(text.contains(&format!("{TIME_MAX:?}")), "{text}");
        }
        let text = refusal(|it| it.pools.clear());
        assert!(text.contains("`pools` is 0"), "{text}");
        let text = refusal(|it| it.shutdown_limit = Duration::MAX);
        assert!(text.starts_with("`shutdown_limit` is 18446744073709551615.999999999s"));
    }

    #[test]
    fn no_limit_and_no_interval_may_be_zero() {
        let changes: [fn(&mut Settings); 15] = [
            |it| it.lease = Duration::ZERO,
            |it| it.safety_poll = Duration::ZERO,
            |it| it.store_retry = Duration::ZERO,
            |it| it.transaction_time_max = Duration::ZERO,
            |it| it.blocked_after = Duration::ZERO,
            |it| it.default_step_timeout = Some(Duration::ZERO),
            |it| it.payload_bytes_max = 0,
            |it| it.history_entries_max = 0,
            |it| it.inbox_messages_max = 0,
            |it| it.stream_items_max = 0,
            |it| it.streams_max = 0,
            |it| it.emit_bytes_max = 0,
            |it| it.kept_rollbacks_max = 0,
            |it| it.batch_commits_max = 0,
            |it| it.batch_bytes_max = 0,
        ];
        for change in changes {
            assert!(refusal(change).contains("must be at least"));
        }
        // These mean something: one thread per core, nothing kept in memory, no wait for bodies.
        let mut settings = Settings::default();
        (settings.threads, settings.hot_bytes) = (0, 0);
        settings.shutdown_limit = Duration::ZERO;
        assert_eq!(settings.check(), Ok(()));
    }
}
