//! Schedules: when their ticks are. Plain functions, without a store and without a clock.
//!
//! A schedule has ticks, and every tick starts one run. Which ticks there are follows from its
//! [`ScheduleSpec`] alone; which of them are due, which come too late and what comes next follows
//! from the last one that was dealt with ([`due`]). What becomes of a due tick is decided inside of
//! the transaction that starts its run (`store/rules/schedules.rs`).
//!
//! Always true: the ticks of a schedule are instants in ascending order, so each is named by its
//! instant, and so is its run ([`run_key`]).

use std::{fmt, time::Duration};

use crate::time::Timestamp;

#[cfg(feature = "cron")]
mod cron;

/// The tag that names the schedule of a run.
pub(crate) const TAG: &str = "everstep.schedule";

/// How many ticks may wait with [`Overlap::Queue`]. Those beyond are skipped.
pub(crate) const QUEUE_MAX: usize = 100;

/// A tick is never started at its very instant, so it is not called missed before it is this late.
const CATCH_UP_MIN: Duration = Duration::from_secs(10);

/// How many ticks are counted as missed in one go.
#[cfg(feature = "cron")]
const MISSED_MAX: u64 = 20_000;

/// When the ticks of a schedule are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleSpec {
    /// By a cron expression.
    Cron {
        /// Minute, hour, day of month, month, day of week; seconds may stand before them.
        expression: String,
        /// The IANA name of the time zone whose clocks it means.
        time_zone: String,
    },
    /// At a fixed interval, counted from when the schedule was made.
    Every(Duration),
}

listed! {
    /// What becomes of a tick while the last run of its schedule has not ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Overlap {
        /// It starts no run, and is counted as skipped.
        #[default]
        Skip = 0 as "skip",
        /// It waits until that run has ended, behind the ticks that wait already. A hundred may wait;
        /// those beyond are skipped.
        Queue = 1 as "queue",
        /// It starts its run beside that one.
        Allow = 2 as "allow",
        /// That run is cancelled, without rollback, and the tick starts its own.
        CancelOld = 3 as "cancel_old",
    }
}

/// As it is stored: `every 60000`, `cron Europe/Berlin 0 3 * * *`.
impl fmt::Display for ScheduleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleSpec::Every(interval) => write!(f, "every {}", whole_ms(*interval)),
            ScheduleSpec::Cron { expression, time_zone } => {
                write!(f, "cron {time_zone} {expression}")
            }
        }
    }
}

impl ScheduleSpec {
    /// The one that is stored as this text.
    pub(crate) fn from_text(text: &str) -> Option<ScheduleSpec> {
        match text.split_once(' ')? {
            ("every", ms) => {
                let ms = ms.parse().ok()?;
                Some(ScheduleSpec::Every(Duration::from_millis(ms)))
            }
            ("cron", rest) => {
                let (time_zone, expression) = rest.split_once(' ')?;
                Some(ScheduleSpec::Cron {
                    expression: expression.to_owned(),
                    time_zone: time_zone.to_owned(),
                })
            }
            _ => None,
        }
    }
}

/// Rounded up, as everywhere.
fn whole_ms(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A [`ScheduleSpec`] that was understood.
pub(crate) enum Ticks {
    Every {
        anchor: i64,
        ms: i64,
    },
    #[cfg(feature = "cron")]
    Cron(Box<cron::CronTicks>),
}

impl Ticks {
    /// Reads a spec; or says what is wrong with it, in words.
    pub(crate) fn new(spec: &ScheduleSpec, anchor: Timestamp) -> Result<Ticks, String> {
        match spec {
            ScheduleSpec::Every(Duration::ZERO) => {
                Err("an interval must be longer than nothing".to_owned())
            }
            ScheduleSpec::Every(interval) => Ok(Ticks::Every {
                anchor: anchor.as_millis(),
                ms: i64::try_from(whole_ms(*interval)).unwrap_or(i64::MAX),
            }),
            #[cfg(feature = "cron")]
            ScheduleSpec::Cron { expression, time_zone } => {
                let cron = cron::CronTicks::new(expression, time_zone)?;
                Ok(Ticks::Cron(Box::new(cron)))
            }
            #[cfg(not(feature = "cron"))]
            ScheduleSpec::Cron { .. } => {
                Err("this program was built without the feature `cron`".to_owned())
            }
        }
    }

    /// Reads what is stored.
    pub(crate) fn from_text(text: &str, anchor: Timestamp) -> Result<Ticks, String> {
        let spec = ScheduleSpec::from_text(text);
        let spec = spec.ok_or_else(|| format!("`{text}` is no schedule that is known here"))?;
        Ticks::new(&spec, anchor)
    }

    /// The first tick after this instant; absent if there is none.
    pub(crate) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Ticks::Every { anchor, ms } => {
                let passed = at.as_millis().checked_sub(*anchor)?.max(0) / ms;
                let next = (passed + 1).checked_mul(*ms)?.checked_add(*anchor)?;
                Some(Timestamp::from_millis(next))
            }
            #[cfg(feature = "cron")]
            Ticks::Cron(cron) => cron.next_after(at),
        }
    }

    /// Passes over ticks that lie before `end`, from the tick `at` on, but not over too many at
    /// once: how many, and the first that was not passed over.
    fn pass_over(&self, at: Timestamp, end: Timestamp) -> (u64, Option<Timestamp>) {
        if at >= end {
            return (0, Some(at));
        }
        match self {
            Ticks::Every { ms, .. } => {
                let passed = (end.as_millis() - at.as_millis() - 1) / ms + 1;
                let next = passed.checked_mul(*ms);
                let next = next.and_then(|by| at.as_millis().checked_add(by));
                (passed as u64, next.map(Timestamp::from_millis))
            }
            #[cfg(feature = "cron")]
            Ticks::Cron(cron) => {
                let (mut passed, mut next) = (0, Some(at));
                while let Some(at) = next.filter(|at| *at < end && passed < MISSED_MAX) {
                    passed += 1;
                    next = cron.next_after(at);
                }
                (passed, next)
            }
        }
    }
}

/// What is to be done about a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// How many ticks came too late.
    pub(crate) missed: u64,
    /// The tick that is due.
    pub(crate) tick: Option<Timestamp>,
    /// The tick after that.
    pub(crate) next: Option<Timestamp>,
}

/// What is to be done about a schedule whose next tick is `next_at`, if it is `now`. One tick at a
/// time, so that each is decided about by itself.
pub(crate) fn due(ticks: &Ticks, next_at: Timestamp, now: Timestamp, catch_up: Duration) -> Due {
    let oldest = now - catch_up.max(CATCH_UP_MIN);
    let (missed, next) = ticks.pass_over(next_at, oldest);
    match next {
        Some(at) if at <= now && at >= oldest => {
            Due { missed, tick: Some(at), next: ticks.next_after(at) }
        }
        next => Due { missed, tick: None, next },
    }
}

/// The key of the run of a tick: there cannot be two of it.
pub(crate) fn run_key(schedule: &str, tick: Timestamp) -> String {
    format!("schedule/{schedule}/{tick}")
}

/// The tick that has started the run with this key and these tags, if one has.
pub(crate) fn tick_of(key: Option<&str>, tags: &[(String, String)]) -> Option<Timestamp> {
    let (_, schedule) = tags.iter().find(|(name, _)| name == TAG)?;
    let rest = key?.strip_prefix("schedule/")?.strip_prefix(schedule)?;
    let tick = rest.strip_prefix('/')?.split('/').next()?;
    Timestamp::parse(tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    const MINUTE: i64 = 60_000;

    fn minutely() -> Ticks {
        Ticks::new(&ScheduleSpec::Every(Duration::from_secs(60)), at(5)).expect("an interval")
    }

    #[test]
    fn an_interval_counts_from_its_beginning() {
        let ticks = minutely();
        for (after, next) in [
            (-1_000, MINUTE + 5),
            (5, MINUTE + 5),
            (MINUTE + 4, MINUTE + 5),
            (MINUTE + 5, 2 * MINUTE + 5),
        ] {
            assert_eq!(ticks.next_after(at(after)), Some(at(next)), "after {after}");
        }
    }

    #[test]
    fn an_interval_of_nothing_is_refused_and_one_without_end_never_ends() {
        assert!(Ticks::new(&ScheduleSpec::Every(Duration::ZERO), at(0)).is_err());
        let ticks = Ticks::new(&ScheduleSpec::Every(Duration::MAX), at(5)).expect("an interval");
        assert_eq!(ticks.next_after(at(5)), None);
    }

    #[test]
    fn ticks_that_are_late_are_due_one_by_one_and_those_too_late_are_missed() {
        let ticks = minutely();
        let (first, now) = (at(MINUTE + 5), at(10 * MINUTE));
        let due_at = |next_at, catch_up| due(&ticks, next_at, now, Duration::from_secs(catch_up));
        let expected = Due { missed: 0, tick: Some(first), next: Some(at(2 * MINUTE + 5)) };
        assert_eq!(due_at(first, 3_600), expected);
        let expected =
            Due { missed: 6, tick: Some(at(7 * MINUTE + 5)), next: Some(at(8 * MINUTE + 5)) };
        assert_eq!(due_at(first, 180), expected);
        let expected = Due { missed: 9, tick: None, next: Some(at(10 * MINUTE + 5)) };
        assert_eq!(due_at(first, 0), expected);
    }

    #[test]
    fn a_tick_at_its_instant_is_due_and_one_to_come_is_not() {
        let ticks = minutely();
        let first = at(MINUTE + 5);
        assert_eq!(due(&ticks, first, first, Duration::ZERO).tick, Some(first));
        let early = due(&ticks, first, at(MINUTE + 4), Duration::ZERO);
        let expected = Due { missed: 0, tick: None, next: Some(first) };
        assert_eq!(early, expected);
    }

    #[test]
    fn specs_come_back_from_their_text() {
        let cron = ScheduleSpec::Cron {
            expression: "0 3 * * MON".to_owned(),
            time_zone: "Europe/Berlin".to_owned(),
        };
        let every = ScheduleSpec::Every(Duration::from_secs(90));
        for (spec, text) in [(cron, "cron Europe/Berlin 0 3 * * MON"), (every, "every 90000")] {
            assert_eq!(spec.to_string(), text);
            assert_eq!(ScheduleSpec::from_text(text), Some(spec));
        }
        assert_eq!(ScheduleSpec::from_text("hourly"), None);
    }

    #[test]
    fn a_run_knows_its_tick_by_key_and_tag() {
        let tick = at(1_767_322_800_000);
        let tags = |name: &str| vec![(TAG.to_owned(), name.to_owned())];
        let key = run_key("reports/nightly", tick);
        assert_eq!(key, "schedule/reports/nightly/2026-01-02T03:00:00.000Z");
        let nightly = tags("reports/nightly");
        assert_eq!(tick_of(Some(&key), &nightly), Some(tick));
        assert_eq!(tick_of(Some(&format!("{key}/abc")), &nightly), Some(tick));
        assert_eq!(tick_of(Some(&key), &tags("reports")), None);
        assert_eq!(tick_of(Some(&key), &[]), None);
        assert_eq!(tick_of(None, &nightly), None);
    }

    #[test]
    fn overlaps_keep_their_codes() {
        for (code, overlap) in
            [(0, Overlap::Skip), (1, Overlap::Queue), (2, Overlap::Allow), (3, Overlap::CancelOld)]
        {
            assert_eq!(overlap.code(), code);
            assert_eq!(Overlap::from_code(code), Some(overlap));
        }
        assert_eq!(Overlap::from_code(4), None);
    }
}
