//! One measurement as one line of JSON, its fields in the order in which they were given.

use std::{
    fmt::Write as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The store that is measured.
static STORE: Mutex<&str> = Mutex::new("sqlite");

/// Names the store of the lines from here on.
pub(crate) fn set_store(name: &'static str) {
    *STORE.lock().unwrap_or_else(PoisonError::into_inner) = name;
}

/// A line under construction.
#[must_use = "a line must be printed"]
pub(crate) struct Line(String);

impl Line {
    /// A line about `n` things that took this long.
    pub(crate) fn new(bench: &str, n: u64, time: Duration) -> Line {
        let seconds = time.as_secs_f64();
        let store = *STORE.lock().unwrap_or_else(PoisonError::into_inner);
        Line(format!("{{\"bench\":\"{bench}\",\"store\":\"{store}\""))
            .count("n", n)
            .number("seconds", seconds)
            .number("per_second", n as f64 / seconds)
    }

    /// What the bare loop reaches, and how much of that this is.
    pub(crate) fn raw(self, here_per_second: f64, raw_per_second: f64) -> Line {
        self.number("raw_per_second", raw_per_second)
            .number("ratio", here_per_second / raw_per_second)
    }

    /// The middle and the slow end of how long each took.
    pub(crate) fn times(self, times: &mut [Duration]) -> Line {
        times.sort_unstable();
        let at = |part: usize| match times.len() {
            0 => 0.0,
            n => times[(n * part / 100).min(n - 1)].as_secs_f64() * 1e3,
        };
        self.number("p50_ms", at(50)).number("p99_ms", at(99))
    }

    pub(crate) fn count(mut self, name: &str, value: u64) -> Line {
        _ = write!(self.0, ",\"{name}\":{value}");
        self
    }

    /// A word, which needs no escaping.
    pub(crate) fn text(mut self, name: &str, value: &str) -> Line {
        _ = write!(self.0, ",\"{name}\":\"{value}\"");
        self
    }

    /// Numbers by name.
    pub(crate) fn object(mut self, name: &str, values: &[(String, f64)]) -> Line {
        let inside = values
            .iter()
            .fold(Line(String::new()), |line, (name, value)| line.number(name, *value));
        _ = write!(self.0, ",\"{name}\":{{{}}}", inside.0.trim_start_matches(','));
        self
    }

    /// Four significant digits: more would be noise.
    pub(crate) fn number(mut self, name: &str, value: f64) -> Line {
        let digits = match value.abs() {
            0.0 => 0,
            size => (3 - size.log10().floor() as i32).clamp(0, 9) as usize,
        };
        _ = write!(self.0, ",\"{name}\":{value:.digits$}");
        self
    }

    pub(crate) fn print(self) {
        println!("{}}}", self.0);
    }
}

/// The middle one of several measurements.
pub(crate) fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_json_with_four_digits() {
        let line = Line::new("x", 3, Duration::from_millis(1_500)).number("tiny", 0.000_123_44);
        let text = format!("{}}}", line.0);
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("a line of JSON");
        assert_eq!(parsed["per_second"], 2.0);
        assert_eq!(parsed["tiny"], 0.000_123_4);
    }

    #[test]
    fn object_is_a_field_with_numbers() {
        let values = [("a".to_owned(), 1.0), ("b".to_owned(), 2.5)];
        let line = Line::new("x", 1, Duration::from_secs(1)).text("load", "y");
        let text = format!("{}}}", line.object("each", &values).object("none", &[]).0);
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("a line of JSON");
        assert_eq!(parsed["each"]["b"], 2.5);
        assert_eq!((&parsed["load"], parsed["none"].is_object()), (&"y".into(), true));
    }
}
