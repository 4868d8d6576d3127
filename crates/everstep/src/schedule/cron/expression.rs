//! A cron expression: which seconds of which days it names.
//!
//! Five fields (minute, hour, day of the month, month, day of the week), or six with seconds before them.
//! A field is a list of parts with commas: a value, a range `a-b`, or `*` for all values; a range and `*`
//! may have a step `/n`. Months and days of the week have names, in any case. Beside these:
//!
//! - in the day of the month `L` is the last day, `15W` the weekday (Monday to Friday) of the same month
//!   that is nearest to the 15th, and `LW` the last weekday;
//! - in the day of the week `5#3` is the third Friday of the month, `5#L` or `5L` the last one, and
//!   `MON-FRI#1` the first of each; 0 and 7 are both Sunday;
//! - in these two fields `?` is `*`.
//!
//! A day must match both the day of the month and the day of the week if one of these fields is `*` or
//! the second begins with `+`; otherwise one of the two is enough.

use jiff::civil::{Date, DateTime, Time};

/// An expression that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    seconds: Values,
    minutes: Values,
    hours: Values,
    days: Days,
    months: Values,
    weekdays: Weekdays,
    /// Whether a day must match the day of the month and the day of the week.
    both: bool,
}

/// A set of numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Values {
    bits: u64,
    /// Whether a part of the field was `*` or had a step.
    follows_clock: bool,
}

/// The day of the month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Days {
    values: Values,
    /// The days whose nearest weekday is meant.
    nearest: Values,
    last: bool,
    last_weekday: bool,
}

/// The day of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weekdays {
    /// From 0, Sunday, to 6.
    values: Values,
    /// The first (1) to fifth ones of a month, and the last one ([`LAST`]), for each day of the week.
    nth: [Values; 7],
}

/// The place of the last one of a month among its days of one name.
const LAST: u8 = 6;

/// How many years are searched. Every form of a month is back after 40 years at most: so long it takes
/// around a year like 2100, which has no leap day, until 29 February is on the same day of the week.
const YEARS: i16 = 41;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// What a field may say.
struct Field {
    name: &'static str,
    from: u8,
    to: u8,
    /// The names of its values, the first of which is `from`.
    names: &'static [&'static str],
    /// What a value may be, for those who wrote something else.
    allowed: &'static str,
}

const SECOND: Field = Field::new("second", 0, 59, &[], "0 to 59");
const MINUTE: Field = Field::new("minute", 0, 59, &[], "0 to 59");
const HOUR: Field = Field::new("hour", 0, 23, &[], "0 to 23");
const DAY: Field =
    Field::new("day of the month", 1, 31, &[], "1 to 31, a day with `W`, `L` or `LW`");
const MONTH: Field = Field::new("month", 1, 12, &MONTHS, "1 to 12 or JAN to DEC");
const WEEKDAY: Field = Field::new(
    "day of the week",
    0,
    7,
    &WEEKDAYS,
    "0 to 7 or SUN to SAT, with `#1` to `#5` or `L` behind it for those of a month",
);

impl Field {
    const fn new(
        name: &'static str,
        from: u8,
        to: u8,
        names: &'static [&'static str],
        allowed: &'static str,
    ) -> Field {
        Field { name, from, to, names, allowed }
    }

    /// Says that a part of the field is not understood.
    fn refused(&self, part: &str) -> String {
        let Field { name, allowed, .. } = self;
        match part {
            "" => format!("the {name} has a comma with nothing before or behind it"),
            _ => format!("the {name} `{part}` is not known; write {allowed}"),
        }
    }

    fn value(&self, text: &str) -> Option<u8> {
        let mut named = self.names.iter().zip(self.from..);
        if let Some((_, value)) = named.find(|(name, _)| **name == text) {
            return Some(value);
        }
        let value = number(text)?;
        (self.from..=self.to).contains(&value).then_some(value)
    }

    /// One part of a list: a value or a range, or `*`, perhaps with a step.
    fn part(&self, part: &str) -> Result<Values, String> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step)?)),
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.from, self.to),
            Some((first, last)) => self.range(first, last)?,
            None => {
                let value = self.value(range).ok_or_else(|| self.refused(part))?;
                if step.is_some() {
                    let Field { name, to, .. } = self;
                    return Err(format!(
                        "the {name} `{part}` has a step without a range; write `{value}-{to}` before it"
                    ));
                }
                (value, value)
            }
        };
        let mut values =
            Values { follows_clock: range == "*" || step.is_some(), ..Values::default() };
        for value in (first..=last).step_by(step.unwrap_or(1)) {
            values.insert(value);
        }
        Ok(values)
    }

    fn range(&self, first: &str, last: &str) -> Result<(u8, u8), String> {
        let of = |text| self.value(text);
        let (Some(from), Some(to)) = (of(first), of(last)) else {
            return Err(self.refused(&format!("{first}-{last}")));
        };
        let to = match last {
            // `FRI-SUN` ends a week.
            "SUN" if from > 0 => WEEKDAY.to,
            _ => to,
        };
        if from > to {
            let name = self.name;
            return Err(format!("the {name} `{first}-{last}` ends before it begins"));
        }
        Ok((from, to))
    }

    fn step(&self, text: &str) -> Result<usize, String> {
        let step = number(text).filter(|step| (1..=self.to).contains(step));
        step.map(usize::from).ok_or_else(|| {
            let Field { name, to, .. } = self;
            format!("the step `{text}` of the {name} is not from 1 to {to}")
        })
    }

    fn values(&self, text: &str) -> Result<Values, String> {
        let mut values = Values::default();
        for part in text.split(',') {
            values.add(self.part(part)?);
        }
        Ok(values)
    }
}

/// A number without a sign.
fn number(text: &str) -> Option<u8> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

impl Values {
    fn insert(&mut self, value: u8) {
        self.bits |= 1 << value;
    }

    fn add(&mut self, more: Values) {
        self.bits |= more.bits;
        self.follows_clock |= more.follows_clock;
    }

    fn has(self, value: i8) -> bool {
        self.bits & (1 << value) != 0
    }

    /// The first value that is not below this one.
    fn from(self, value: i8) -> Option<i8> {
        let left = self.bits.checked_shr(u32::from(value.unsigned_abs()))?;
        (left != 0).then(|| value + left.trailing_zeros() as i8)
    }
}

impl Days {
    fn read(text: &str) -> Result<Days, String> {
        let mut days = Days::default();
        for part in text.split(',') {
            match (part, part.strip_suffix('W')) {
                ("L", _) => days.last = true,
                ("LW", _) => days.last_weekday = true,
                (_, Some(day)) => {
                    let day = DAY.value(day).ok_or_else(|| DAY.refused(part))?;
                    days.nearest.insert(day);
                }
                _ => days.values.add(DAY.part(part)?),
            }
        }
        Ok(days)
    }

    fn has(&self, date: Date) -> bool {
        let last = date.days_in_month();
        self.values.has(date.day())
            || self.last && date.day() == last
            || self.last_weekday && date.day() == nearest_weekday(date, last)
            || is_weekday(date)
                && (1..=last)
                    .filter(|day| self.nearest.has(*day))
                    .any(|day| date.day() == nearest_weekday(date, day))
    }
}

/// Whether it is one from Monday to Friday.
fn is_weekday(date: Date) -> bool {
    date.weekday().to_monday_one_offset() <= 5
}

/// The day from Monday to Friday that is nearest to a day of this month, in this month.
fn nearest_weekday(month: Date, day: i8) -> i8 {
    let last = month.days_in_month();
    let weekday = |day: i8| {
        let first = month.first_of_month().weekday().to_monday_zero_offset();
        (first + day - 1) % 7
    };
    match weekday(day) {
        5 if day > 1 => day - 1,
        5 => day + 2,
        6 if day < last => day + 1,
        6 => day - 2,
        _ => day,
    }
}

impl Weekdays {
    fn read(text: &str) -> Result<Weekdays, String> {
        let mut weekdays = Weekdays::default();
        for part in text.split(',') {
            let (days, nth) = match (part.split_once('#'), part.strip_suffix('L')) {
                (Some((days, "L")), _) | (None, Some(days)) => (days, LAST),
                (Some((days, nth)), _) => {
                    let nth = number(nth).filter(|nth| (1..=5).contains(nth));
                    (days, nth.ok_or_else(|| WEEKDAY.refused(part))?)
                }
                (None, None) => {
                    weekdays.values.add(WEEKDAY.part(part)?);
                    continue;
                }
            };
            let days = WEEKDAY.part(days).map_err(|_| WEEKDAY.refused(part))?;
            for day in (0..=7).filter(|day| days.has(*day)) {
                weekdays.nth[day as usize % 7].insert(nth);
            }
        }
        // 7 is Sunday, as 0 is.
        if weekdays.values.has(7) {
            weekdays.values.insert(0);
        }
        Ok(weekdays)
    }

    fn has(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let nth = self.nth[usize::from(weekday.unsigned_abs())];
        self.values.has(weekday)
            || nth.has((date.day() - 1) / 7 + 1)
            || nth.has(LAST as i8) && date.day() + 7 > date.days_in_month()
    }
}

impl Expression {
    pub(super) fn read(text: &str) -> Result<Expression, String> {
        let text = text.trim().to_ascii_uppercase();
        let text = match &*text {
            "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
            "@MONTHLY" => "0 0 1 * *",
            "@WEEKLY" => "0 0 * * SUN",
            "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
            "@HOURLY" => "0 * * * *",
            other if other.starts_with('@') => {
                let known = "`@yearly`, `@monthly`, `@weekly`, `@daily` or `@hourly`";
                return Err(format!("it is no short form that is known; write {known}"));
            }
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let (second, fields) = match fields[..] {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
            [second, minute, hour, day, month, weekday] => {
                (second, [minute, hour, day, month, weekday])
            }
            _ => {
                return Err(format!(
                    "it has {} fields; write 5 (minute, hour, day of the month, month, day of the week), \
                     or 6 with the second before them",
                    fields.len()
                ));
            }
        };
        let [minute, hour, day, month, weekday] = fields;
        let (day, weekday) = (day.replace('?', "*"), weekday.replace('?', "*"));
        let (both, weekday) = match weekday.strip_prefix('+') {
            Some(weekday) => (true, weekday),
            None => (day == "*" || weekday == "*", &*weekday),
        };
        Ok(Expression {
            seconds: SECOND.values(second)?,
            minutes: MINUTE.values(minute)?,
            hours: HOUR.values(hour)?,
            days: Days::read(&day)?,
            months: MONTH.values(month)?,
            weekdays: Weekdays::read(weekday)?,
            both,
        })
    }

    /// Whether its ticks follow the clock through a change of clocks; otherwise they are at fixed times
    /// of the day.
    pub(super) fn follows_clock(&self) -> bool {
        let fields = [self.seconds, self.minutes, self.hours];
        fields.iter().any(|field| field.follows_clock)
    }

    /// The first second that matches, from this one on; absent if there is none.
    pub(super) fn first_from(&self, from: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        if self.has_day(date)
            && let Some(time) = self.time_from(from.time())
        {
            return Some(date.to_datetime(time));
        }
        let midnight = self.time_from(Time::midnight())?;
        let last_year = from.year().saturating_add(YEARS);
        loop {
            date = match self.months.has(date.month()) {
                true => date.tomorrow().ok()?,
                false => date.last_of_month().tomorrow().ok()?,
            };
            if date.year() > last_year {
                return None;
            }
            if self.has_day(date) {
                return Some(date.to_datetime(midnight));
            }
        }
    }

    fn has_day(&self, date: Date) -> bool {
        if !self.months.has(date.month()) {
            return false;
        }
        let (day, weekday) = (self.days.has(date), self.weekdays.has(date));
        match self.both {
            true => day && weekday,
            false => day || weekday,
        }
    }

    /// The first time of a day that matches, from this one on.
    fn time_from(&self, from: Time) -> Option<Time> {
        let first = |values: Values| values.from(0);
        let at = |hour, minute, second| Some(Time::constant(hour, minute, second, 0));
        let hour = self.hours.from(from.hour())?;
        if hour == from.hour() {
            if let Some(minute) = self.minutes.from(from.minute()) {
                if minute > from.minute() {
                    return at(hour, minute, first(self.seconds)?);
                }
                if let Some(second) = self.seconds.from(from.second()) {
                    return at(hour, minute, second);
                }
                if let Some(minute) = self.minutes.from(minute + 1) {
                    return at(hour, minute, first(self.seconds)?);
                }
            }
            let hour = self.hours.from(hour + 1)?;
            return at(hour, first(self.minutes)?, first(self.seconds)?);
        }
        at(hour, first(self.minutes)?, first(self.seconds)?)
    }

    /// Whether this second matches.
    #[cfg(test)]
    pub(super) fn has(&self, at: DateTime) -> bool {
        self.has_day(at.date())
            && self.hours.has(at.hour())
            && self.minutes.has(at.minute())
            && self.seconds.has(at.second())
    }
}
