//! Time: the instants that are stored, and the clock that everything asks.
//!
//! Nothing else in the engine asks the system for the time. Tests move a clock of their own, and
//! what is stored is always a [`Timestamp`], never a monotonic instant.

use std::{
    fmt,
    ops::{Add, Sub},
    str::FromStr,
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::seam;

/// An instant in milliseconds since the Unix epoch, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant that lies `ms` milliseconds after the Unix epoch.
    pub const fn from_millis(ms: i64) -> Timestamp {
        Timestamp(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The instant that prints as this text; `None` for every other text.
    pub(crate) fn parse(text: &str) -> Option<Timestamp> {
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hours, minutes, seconds) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        // Years from March on, so that the leap day is the last one (Hinnant's `days_from_civil`).
        let (year, shifted_month) =
            if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let days = 365 * year + leap_days + (153 * shifted_month + 2) / 5 + day - 1 - 719_468;
        let seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
        let parsed = Timestamp(seconds * 1_000 + number(20, 23)?);
        // Whatever else is wrong with the text does not come back.
        (parsed.to_string() == text).then_some(parsed)
    }
}

/// A text that is not an instant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an instant; write it as RFC 3339 has it: `2026-11-15T20:47:00Z`, \
     `2026-11-15T20:47:00.250+01:00`"
)]
pub struct ParseTimestampError {
    text: String,
}

/// RFC 3339: a date, a time to the second or finer, and `Z` or the distance from it. What is finer than
/// a millisecond is cut off.
impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Timestamp, ParseTimestampError> {
        parse_rfc3339(text).ok_or_else(|| ParseTimestampError { text: text.to_owned() })
    }
}

fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let (date_time, rest) = text.split_at_checked(19)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|digit: char| !digit.is_ascii_digit())?;
            (Some(&rest[..end]).filter(|it| !it.is_empty())?, &rest[end..])
        }
        None => ("", rest),
    };
    let ms: String = fraction.chars().chain("000".chars()).take(3).collect();
    // Whatever else is wrong with the date and the time does not come back.
    let mut upper = date_time.to_ascii_uppercase();
    if upper.as_bytes().get(10) == Some(&b' ') {
        upper.replace_range(10..11, "T");
    }
    let local = Timestamp::parse(&format!("{upper}.{ms}Z"))?;
    let ahead_minutes = match zone {
        "Z" | "z" => 0,
        _ => {
            let (sign, digits) = match zone.split_at_checked(1)? {
                ("+", digits) => (1, digits),
                ("-", digits) => (-1, digits),
                _ => return None,
            };
            let (hours, minutes) = digits.split_once(':')?;
            let number = |text: &str, end: i64| {
                let is_two = text.len() == 2 && text.bytes().all(|it| it.is_ascii_digit());
                text.parse().ok().filter(|it: &i64| is_two && *it < end)
            };
            sign * (number(hours, 24)? * 60 + number(minutes, 60)?)
        }
    };
    Some(Timestamp(local.0 - ahead_minutes * 60_000))
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Saturates: an instant past the end of time is the end of time, which never comes.
    fn add(self, delay: Duration) -> Timestamp {
        // A fraction of a millisecond is rounded up, so that no timer fires early.
        let ms = delay.as_nanos().div_ceil(1_000_000);
        Timestamp(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, delay: Duration) -> Timestamp {
        let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.saturating_sub(ms))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => {
                Timestamp(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX))
            }
        }
    }
}

/// RFC 3339 in UTC with milliseconds: `2026-11-15T20:47:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        let (year, month, day) = civil_from_days(days);
        let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60, ms % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    }
}

/// The Gregorian date of a day counted from 1970-01-01, by eras of 400 years.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Years are counted from 1 March, so that a leap day is the last day of its year.
    let z = days.saturating_add(719_468);
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Where the engine gets the time from.
///
/// Implement it to put an engine on a clock of your own; [`crate::testing`] has one that jumps to
/// the next timer by itself.
pub trait Clock: Send + Sync + 'static {
    /// The time now. May jump, as a system clock does: a jump that lasts for some seconds is followed,
    /// ahead and back, and a shorter one has no effect.
    fn now(&self) -> Timestamp;

    /// This clock as one that the engine moves, if it is one.
    #[doc(hidden)]
    fn as_virtual(&self) -> Option<&dyn MovedByEngine> {
        None
    }
}

/// A clock that stands still until the engine moves it to the next timer, which the engine does
/// whenever it has nothing else to do.
#[doc(hidden)]
pub trait MovedByEngine {
    /// Called by the engine's timer thread, again and again, while it has nothing else to do: waits
    /// until nothing goes on, then jumps to what comes next.
    fn advance_when_quiet(&self, activity: &dyn Underway, outlook: &dyn Fn() -> Outlook);
}

/// What goes on in an engine, as a clock that the engine moves sees it.
#[doc(hidden)]
pub trait Underway {
    /// Whether nothing goes on.
    fn is_quiet(&self) -> bool;
    /// How many things have begun so far: if this number has changed, something went on meanwhile.
    fn begun(&self) -> u64;
    /// How many bodies are running.
    fn bodies(&self) -> i64;
    /// Waits until nothing goes on, at most for this long.
    fn wait_quiet(&self, limit: Duration);
}

/// What comes next in an engine, as its timer thread sees it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// The timer thread itself has something to do at once.
    pub busy: bool,
    /// The next timer.
    pub next: Option<Timestamp>,
    /// Whether somebody waits for a result or a reply.
    pub watched: bool,
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        seam::wall().into()
    }
}

/// A moment by the monotonic clock that goes on while the machine is suspended: for leases, which
/// others go by in the meantime. [`Instant`] stands still then, on Linux and on macOS. Nobody sets this
/// clock, so it does not matter what the calendar shows.
///
/// The standard library has no such clock. On systems other than Unix this is [`Instant`], which counts
/// a suspend on Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uptime(Duration);

impl Uptime {
    pub(crate) fn now() -> Uptime {
        let now = Uptime(seam::uptime());
        #[cfg(test)]
        let now = now + tests::SUSPENDED.get();
        now
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub(crate) fn since(self, earlier: Uptime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Nanoseconds since a moment that is the same for this process.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Add<Duration> for Uptime {
    type Output = Uptime;

    fn add(self, passed: Duration) -> Uptime {
        Uptime(self.0.saturating_add(passed))
    }
}

/// How long this machine has been suspended since the first call.
pub(crate) fn suspended() -> Duration {
    static FIRST: OnceLock<(Uptime, Instant)> = OnceLock::new();
    if seam::is_simulated() {
        return Duration::ZERO;
    }
    let (first, at) = FIRST.get_or_init(|| (Uptime::now(), seam::now()));
    Uptime::now().since(*first).saturating_sub(seam::elapsed(*at))
}

/// `n` seconds.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// `n` minutes.
pub const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(60))
}

/// `n` hours.
pub const fn hours(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(3_600))
}

/// `n` days of 24 hours.
pub const fn days(n: u64) -> Duration {
    Duration::from_secs(n.saturating_mul(86_400))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How long the machine has been suspended, as far as this thread can tell.
        pub(crate) static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    #[test]
    fn a_suspend_counts_in_the_uptime_only() {
        let (before, suspended_before) = (Uptime::now(), suspended());
        SUSPENDED.set(Duration::from_secs(3_600));
        let passed = Uptime::now().since(before);
        assert!(passed >= Duration::from_secs(3_600));
        let slept = suspended().saturating_sub(suspended_before);
        assert!(slept > Duration::from_secs(3_500), "{slept:?}");
    }

    #[test]
    fn timestamps_print_as_rfc_3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_763_239_620_123, "2025-11-15T20:47:00.123Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(ms).to_string(), text);
            assert_eq!(Timestamp::parse(text), Some(Timestamp::from_millis(ms)));
        }
        for text in
            ["", "2026-02-30T00:00:00.000Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.0 0Z"]
        {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn adding_rounds_up_and_saturates() {
        let t = Timestamp::from_millis(5);
        assert_eq!((t + Duration::from_micros(1)).as_millis(), 6);
        assert_eq!((t + Duration::MAX).as_millis(), i64::MAX);
    }

    #[test]
    fn an_instant_is_read_as_rfc_3339_has_it() {
        let ms = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_millis);
        assert_eq!(ms("1970-01-01T00:00:01Z"), Some(1_000));
        assert_eq!(ms("1970-01-01t00:00:01.25z"), Some(1_250));
        assert_eq!(ms("1970-01-01 00:00:01.987654Z"), Some(1_987));
        assert_eq!(ms("1970-01-01T01:30:00+01:30"), Some(0));
        assert_eq!(ms("1969-12-31T23:00:00-01:00"), Some(0));
        for wrong in [
            "",
            "now",
            "1970-01-01",
            "1970-01-01T00:00:01",
            "1970-13-01T00:00:01Z",
            "1970-02-30T00:00:01Z",
            "1970-01-01T25:00:01Z",
            "1970-01-01T00:00:01.Z",
            "1970-01-01T00:00:01+1:00",
            "1970-01-01T00:00:01+01:60",
            "1970-01-01T00:00:01+-1:00",
            "1970-01-01T00:00:01ZZ",
            "ä970-01-01T00:00:01Z",
        ] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }
}

/// An instant, or how long after now.
#[derive(Clone, Copy)]
pub(crate) enum When {
    After(Duration),
    At(Timestamp),
}

impl When {
    pub(crate) fn from(self, now: Timestamp) -> Timestamp {
        match self {
            When::After(delay) => now + delay,
            When::At(at) => at,
        }
    }
}
