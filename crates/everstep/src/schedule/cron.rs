//! The ticks of a cron expression in a time zone.
//!
//! [`expression`] says which seconds an expression means; this file, when the clock of a zone shows them.
//! Twice a year clocks are changed. A tick at a fixed time of day comes once on such a day: if
//! clocks go forward over it, right after the gap; if they go back over it, the first time. Where the
//! seconds, the minutes or the hours have a `*` or a step, ticks follow the clock: none comes in a gap,
//! and they come in both passes of an hour that is there twice.

use jiff::{
    SignedDuration,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

use self::expression::Expression;
use crate::time::Timestamp;

mod expression;

const SECOND: SignedDuration = SignedDuration::from_secs(1);

pub(crate) struct CronTicks {
    expression: Expression,
    zone: TimeZone,
}

impl CronTicks {
    pub(super) fn new(expression: &str, zone: &str) -> Result<CronTicks, String> {
        let expression = Expression::read(expression)
            .map_err(|error| format!("`{expression}` is no cron expression: {error}"))?;
        let zone = TimeZone::get(zone).map_err(|_| {
            format!("`{zone}` is no time zone; give its IANA name, such as `Europe/Berlin`")
        })?;
        Ok(CronTicks { expression, zone })
    }

    pub(super) fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        // Ticks are whole seconds, so the first after this second is the first after `at`.
        let second = jiff::Timestamp::from_second(at.as_millis().div_euclid(1_000)).ok()?;
        let next = self.tick_after(second)?;
        Some(Timestamp::from_millis(next.as_millisecond()))
    }

    /// The first tick after this second.
    fn tick_after(&self, at: jiff::Timestamp) -> Option<jiff::Timestamp> {
        match self.expression.follows_clock() {
            true => self.by_the_clock_after(at),
            false => self.at_fixed_time_after(at),
        }
    }

    /// Between two changes of clocks the clock goes on with time, so that each stretch is searched by
    /// what its clock shows.
    fn by_the_clock_after(&self, at: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut begin = at.checked_add(SECOND).ok()?;
        loop {
            let offset = self.zone.to_offset(begin);
            let shown = self.expression.first_from(offset.to_datetime(begin))?;
            let tick = offset.to_timestamp(shown).ok()?;
            match self.zone.following(begin).next() {
                Some(change) if tick >= change.timestamp() => begin = change.timestamp(),
                _ => return Some(tick),
            }
        }
    }

    /// A later time of day never comes before an earlier one, so the first that comes after `at` is
    /// looked for from what the clock shows now.
    fn at_fixed_time_after(&self, at: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut from = self.zone.to_datetime(at);
        loop {
            let shown = self.expression.first_from(from)?;
            let tick = self.instant_of(shown)?;
            if tick > at {
                return Some(tick);
            }
            from = shown.checked_add(SECOND).ok()?;
        }
    }

    /// When the clock shows this: the first time, if it does so twice; right after the gap, if it never
    /// does.
    fn instant_of(&self, shown: DateTime) -> Option<jiff::Timestamp> {
        match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(shown).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(shown).ok(),
            AmbiguousOffset::Gap { before, .. } => {
                // By the clock of before, the gap has begun by then.
                let within = before.to_timestamp(shown).ok()?.checked_add(SECOND).ok()?;
                Some(self.zone.preceding(within).next()?.timestamp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

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
            ["2026-03-28T02:00:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T01:00:00.000Z"]
        );
    }

    #[test]
    fn a_time_of_day_in_the_gap_comes_once_right_after_it() {
        // On 29 March 2026 Berlin goes from 02:00 to 03:00, at 01:00 UTC.
        let found = ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00.000Z", 3);
        assert_eq!(
            found,
            ["2026-03-28T01:30:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]
        );
    }

    #[test]
    fn a_time_of_day_that_is_there_twice_comes_once_the_first_time() {
        // On 25 October 2026 Berlin goes from 03:00 back to 02:00, at 01:00 UTC.
        let found = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00.000Z", 2);
        assert_eq!(found, ["2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]);
    }

    #[test]
    fn a_step_comes_every_time_through_both_changes_of_clocks() {
        let spring = ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:15:00.000Z", 4);
        assert_eq!(
            spring,
            [
                "2026-03-29T00:30:00.000Z",
                "2026-03-29T01:00:00.000Z",
                "2026-03-29T01:30:00.000Z",
                "2026-03-29T02:00:00.000Z"
            ]
        );
        let autumn = ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:15:00.000Z", 4);
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

    #[test]
    fn each_time_of_a_list_comes_once_when_clocks_change() {
        let list = "30 2,14 * * *";
        let spring = ticks(list, "Europe/Berlin", "2026-03-28T20:00:00.000Z", 2);
        assert_eq!(spring, ["2026-03-29T01:00:00.000Z", "2026-03-29T12:30:00.000Z"]);
        let autumn = ticks(list, "Europe/Berlin", "2026-10-24T20:00:00.000Z", 2);
        assert_eq!(autumn, ["2026-10-25T00:30:00.000Z", "2026-10-25T13:30:00.000Z"]);
    }

    #[test]
    fn days_are_counted_from_the_ends_of_their_month() {
        let day = |expression: &str, after: &str| {
            ticks(expression, "UTC", &format!("{after}T00:00:00.000Z"), 1)[0][..10].to_owned()
        };
        for (expression, after, expected) in [
            ("0 9 L * *", "2028-02-01", "2028-02-29"),
            // 15 August 2026 is a Saturday, 1 August too, 15 November a Sunday, 31 May too.
            ("0 9 15W * *", "2026-08-01", "2026-08-14"),
            ("0 9 1W * *", "2026-07-31", "2026-08-03"),
            ("0 9 15W * *", "2026-11-01", "2026-11-16"),
            ("0 9 31W * *", "2026-05-01", "2026-05-29"),
            ("0 9 LW * *", "2026-05-01", "2026-05-29"),
            ("0 9 * * FRI#3", "2026-05-01", "2026-05-15"),
            ("0 9 * * 5L", "2026-05-01", "2026-05-29"),
            ("0 9 * * fri#L", "2026-05-01", "2026-05-29"),
            ("0 9 * * 1#5", "2026-04-01", "2026-06-29"),
            ("0 9 * * 7", "2026-05-01", "2026-05-03"),
            ("0 9 * * mon-fri#2", "2026-05-01", "2026-05-08"),
            ("0 9 L,LW * *", "2026-05-01", "2026-05-29"),
            ("0 9 L,LW * *", "2026-05-30", "2026-05-31"),
            // One of the two is enough, if neither is `*` and there is no `+`.
            ("0 9 13 * FRI", "2026-05-02", "2026-05-08"),
            ("0 9 13 * +FRI", "2026-05-02", "2026-11-13"),
            ("0 9 ? * FRI", "2026-05-02", "2026-05-08"),
            // 2100 has no leap day.
            ("0 9 29 2 *", "2097-01-01", "2104-02-29"),
            ("@yearly", "2026-05-01", "2027-01-01"),
            ("@Weekly", "2026-05-01", "2026-05-03"),
        ] {
            assert_eq!(day(expression, after), expected, "{expression}");
        }
    }

    #[test]
    fn each_mistake_is_named_with_what_is_allowed() {
        for (expression, why) in [
            ("", "it has 0 fields; write 5 (minute, hour,"),
            ("* * * *", "it has 4 fields; write 5 (minute, hour,"),
            ("0 0 0 1 1 * 2027", "it has 7 fields; write 5 (minute, hour,"),
            ("@reboot", "no short form that is known; write `@yearly`"),
            ("60 * * * *", "the minute `60` is not known; write 0 to 59"),
            ("+5 * * * *", "the minute `+5` is not known; write 0 to 59"),
            ("5, * * * *", "the minute has a comma with nothing"),
            ("* 9- * * *", "the hour `9-` is not known; write 0 to 23"),
            ("* 9-5 * * *", "the hour `9-5` ends before it begins"),
            ("* * * * 5-0", "the day of the week `5-0` ends before it begins"),
            ("*/0 * * * *", "the step `0` of the minute is not from 1 to 59"),
            ("* */24 * * *", "the step `24` of the hour is not from 1 to 23"),
            ("5/20 * * * *", "has a step without a range; write `5-59` before it"),
            ("* * 0 * *", "the day of the month `0` is not known; write 1 to 31, a day"),
            ("* * 5L * *", "the day of the month `5L` is not known; write 1 to 31, a day"),
            ("* * 32W * *", "the day of the month `32W` is not known; write 1 to 31, a day"),
            ("* * * JUNE *", "the month `JUNE` is not known; write 1 to 12 or JAN to DEC"),
            ("* * * * 5#6", "the day of the week `5#6` is not known; write 0 to 7 or SUN to SAT"),
            ("* * * * L", "the day of the week `L` is not known; write 0 to 7 or SUN to SAT"),
        ] {
            let error = CronTicks::new(expression, "UTC").err().expect(expression);
            assert!(error.contains(why), "{error}");
        }
    }

    /// The days of the week by their numbers, from Sunday.
    fn weekdays(field: &str) -> Vec<i8> {
        let found = ticks(&format!("0 0 * * {field}"), "UTC", "2026-05-02T23:00:00.000Z", 7);
        let weekday = |tick: &String| {
            let date: jiff::civil::Date = tick[..10].parse().expect("a date");
            date.weekday().to_sunday_zero_offset()
        };
        found.iter().map(weekday).collect()
    }

    #[test]
    fn a_range_that_ends_with_sunday_ends_a_week() {
        assert_eq!(weekdays("SAT-SUN"), [0, 6, 0, 6, 0, 6, 0]);
        assert_eq!(weekdays("6-7"), weekdays("SAT-SUN"));
        for sunday in ["SUN-SUN", "0-0", "7-7", "7-SUN", "*/7"] {
            assert_eq!(weekdays(sunday), [0; 7], "{sunday}");
        }
    }

    /// 29 February is a Sunday in 2088 and then not before 2128, since 2100 is no leap year.
    #[test]
    fn the_rarest_day_is_found() {
        for rarest in ["0 9 29 2 +SUN", "0 9 * 2 SUN#5", "* 9 29 2 +7"] {
            let found = ticks(rarest, "Europe/Berlin", "2088-03-01T00:00:00.000Z", 1);
            assert_eq!(found[0][..13], *"2128-02-29T08", "{rarest}");
        }
        for never in ["0 9 28 2 +MON#5", "* * 31 4,6 *", "0 9 30W 2 *"] {
            let cron = CronTicks::new(never, "Europe/Berlin").expect("it reads well");
            assert_eq!(cron.next_after(at("2088-03-01T00:00:00.000Z")), None);
        }
    }

    /// A field made of one to three of these parts.
    fn field(parts: &'static [&'static str]) -> impl Strategy<Value = String> {
        let part = proptest::sample::select(parts);
        proptest::collection::vec(part, 1..=3).prop_map(|parts| parts.join(","))
    }

    fn expressions() -> impl Strategy<Value = String> {
        let day = field(&["1", "15", "L", "LW", "15W", "1W", "28-31", "*/7"]);
        let weekday = field(&["MON", "0", "6-7", "TUE-FRI/2", "5#3", "1#5", "SUN#L", "3L"]);
        (
            prop_oneof![Just("*".to_owned()), field(&["0", "30", "59", "*/7", "10-20"])],
            prop_oneof![Just("*".to_owned()), field(&["0", "1", "2", "3", "1-3", "*/5", "23"])],
            prop_oneof![4 => Just("*".to_owned()), 1 => day],
            prop_oneof![
                4 => Just("*".to_owned()),
                1 => field(&["3", "4", "10", "OCT-DEC", "1-12/2"]),
            ],
            prop_oneof![4 => Just("*".to_owned()), 1 => weekday],
        )
            .prop_map(|(minute, hour, day, month, weekday)| {
                format!("{minute} {hour} {day} {month} {weekday}")
            })
    }

    /// Days at whose ends or in which clocks are changed, by one hour or by half of one.
    const ZONES: [(&str, &str); 6] = [
        ("UTC", "2026-03-28T00:00:00.000Z"),
        ("Europe/Berlin", "2026-03-28T09:00:00.000Z"),
        ("Europe/Berlin", "2026-10-24T09:00:00.000Z"),
        ("Australia/Lord_Howe", "2026-04-04T02:00:00.000Z"),
        ("Australia/Lord_Howe", "2026-10-03T02:00:00.000Z"),
        // It has no 30 December 2011.
        ("Pacific/Apia", "2011-12-29T00:00:00.000Z"),
    ];

    /// All ticks within so many minutes, found by looking at each minute that a clock can show.
    fn by_minutes(cron: &CronTicks, from: Timestamp, minutes: i64) -> Vec<Timestamp> {
        let at = |minute: i64| {
            let ms = from.as_millis() + minute * 60_000;
            jiff::Timestamp::from_millisecond(ms).expect("an instant")
        };
        let mut found = BTreeSet::new();
        if cron.expression.follows_clock() {
            for tick in (1..=minutes).map(at) {
                if cron.expression.has(cron.zone.to_datetime(tick)) {
                    found.insert(tick);
                }
            }
        } else {
            // What a clock shows is at most a day and a half apart from UTC.
            let first = TimeZone::UTC.to_datetime(at(-2_160));
            for minute in 0..minutes + 4_320 {
                let shown = first + SignedDuration::from_mins(minute);
                if !cron.expression.has(shown) {
                    continue;
                }
                // The first minute at which the clock shows this or more.
                let tick = (-2_160..minutes + 2_160)
                    .map(at)
                    .find(|tick| cron.zone.to_datetime(*tick) >= shown);
                found.extend(tick.filter(|tick| (at(1)..=at(minutes)).contains(tick)));
            }
        }
        let as_ours = |tick: jiff::Timestamp| Timestamp::from_millis(tick.as_millisecond());
        found.into_iter().map(as_ours).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn ticks_are_those_that_a_look_at_each_minute_finds(
            expression in expressions(),
            zone in 0..ZONES.len(),
            later in 0..1_440_i64,
        ) {
            let (zone, from) = ZONES[zone];
            let from = Timestamp::from_millis(at(from).as_millis() + later * 60_000);
            let cron = CronTicks::new(&expression, zone).expect("an expression");
            let minutes = 2 * 1_440;
            let mut found = Vec::new();
            let mut next = from;
            let end = from.as_millis() + minutes * 60_000;
            while let Some(tick) = cron.next_after(next).filter(|tick| tick.as_millis() <= end) {
                found.push(tick);
                next = tick;
            }
            prop_assert_eq!(found, by_minutes(&cron, from, minutes));
        }
    }
}
