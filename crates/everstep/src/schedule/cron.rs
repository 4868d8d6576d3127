//! The ticks of a cron expression in a time zone.
//!
//! Twice a year clocks are changed. A tick at a fixed time of day comes once on such a day: if
//! clocks go forward over it, right after the gap; if they go back over it, the first time. A tick
//! of a field with `*` or a step follows the clock: it does not come in a gap, and comes in both
//! passes of an hour that is there twice.

use std::str::FromStr;

use croner::Cron;
use jiff::tz::TimeZone;

use crate::time::Timestamp;

pub(crate) struct CronTicks {
    cron: Cron,
    zone: TimeZone,
}

impl CronTicks {
    pub(super) fn new(expression: &str, zone: &str) -> Result<CronTicks, String> {
        let cron = Cron::from_str(expression)
            .map_err(|error| format!("`{expression}` is no cron expression: {error}"))?;
        let zone = TimeZone::get(zone).map_err(|_| {
            format!("`{zone}` is no time zone; give its IANA name, such as `Europe/Berlin`")
        })?;
        Ok(CronTicks { cron, zone })
    }

    pub(super) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        // Ticks are whole seconds, so the first after this second is the first after `at`.
        let second = jiff::Timestamp::from_second(at.as_millis().div_euclid(1_000)).ok()?;
        let start = second.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&start, false).ok()?;
        let next = Timestamp::from_millis(next.timestamp().as_millisecond());
        // Whatever is found: time goes on.
        (next > at).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("an instant")
    }

    /// The first ticks after an instant, as text.
    fn ticks(expression: &str, zone: &str, after: &str, n: usize) -> Vec<String> {
        let cron = CronTicks::new(expression, zone).expect("an expression");
        let mut next = at(after);
        let mut found = Vec::new();
        for _ in 0..n {
            next = cron.next_after(next).expect("a tick");
            found.push(next.to_string());
        }
        found
    }

    #[test]
    fn a_time_of_day_follows_the_clock_of_its_zone() {
        let found = ticks("0 3 * * *", "Europe/Berlin", "2026-03-27T12:00:00.000Z", 3);
        assert_eq!(
            found,
            [
                "2026-03-28T02:00:00.000Z",
                "2026-03-29T01:00:00.000Z",
                "2026-03-30T01:00:00.000Z"
            ]
        );
    }

    #[test]
    fn a_time_of_day_in_the_gap_comes_once_right_after_it() {
        // On 29 March 2026 Berlin goes from 02:00 to 03:00, at 01:00 UTC.
        let found = ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00.000Z", 3);
        assert_eq!(
            found,
            [
                "2026-03-28T01:30:00.000Z",
                "2026-03-29T01:00:00.000Z",
                "2026-03-30T00:30:00.000Z"
            ]
        );
    }

    #[test]
    fn a_time_of_day_that_is_there_twice_comes_once_the_first_time() {
        // On 25 October 2026 Berlin goes from 03:00 back to 02:00, at 01:00 UTC.
        let found = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00.000Z", 2);
        assert_eq!(
            found,
            ["2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]
        );
    }

    #[test]
    fn a_step_comes_every_time_through_both_changes_of_clocks() {
        let spring = ticks(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:15:00.000Z",
            4,
        );
        assert_eq!(
            spring,
            [
                "2026-03-29T00:30:00.000Z",
                "2026-03-29T01:00:00.000Z",
                "2026-03-29T01:30:00.000Z",
                "2026-03-29T02:00:00.000Z"
            ]
        );
        let autumn = ticks(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T00:15:00.000Z",
            4,
        );
        assert_eq!(
            autumn,
            [
                "2026-10-25T00:30:00.000Z",
                "2026-10-25T01:00:00.000Z",
                "2026-10-25T01:30:00.000Z",
                "2026-10-25T02:00:00.000Z"
            ]
        );
    }

    #[test]
    fn seconds_and_names_are_understood() {
        let found = ticks("15 0 9 * JAN MON", "UTC", "2026-01-01T00:00:00.000Z", 1);
        assert_eq!(found, ["2026-01-05T09:00:15.000Z"]);
    }

    #[test]
    fn a_tick_is_after_a_fraction_of_its_second() {
        let found = ticks("* * * * * *", "UTC", "2026-01-01T00:00:00.500Z", 1);
        assert_eq!(found, ["2026-01-01T00:00:01.000Z"]);
    }

    #[test]
    fn time_zones_are_there_without_the_data_of_the_system() {
        let zone = jiff::tz::TimeZoneDatabase::bundled().get("Europe/Berlin");
        assert!(zone.is_ok(), "{zone:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |expression, zone| CronTicks::new(expression, zone).err().expect("an error");
        assert!(error("0 25 * * *", "UTC").contains("`0 25 * * *` is no cron expression"));
        assert!(error("0 3 * * *", "Berlin").contains("`Berlin` is no time zone"));
    }

    #[test]
    fn a_day_that_never_comes_has_no_tick() {
        let cron = CronTicks::new("0 0 30 2 *", "UTC").expect("it reads well");
        assert_eq!(cron.next_after(at("2026-01-01T00:00:00.000Z")), None);
    }
}
