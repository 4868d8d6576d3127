//! One measurement as one line of JSON, its fields in the order in which they were given.

use std::{fmt::Write as _, sync::OnceLock, time::Duration};

/// The store that is measured, said once before the first line.
pub(crate) static STORE: OnceLock<&str> = OnceLock::new();

/// A line under construction.
#[must_use = "a line must be printed"]
pub(crate) struct Line(String);

impl Line {
    /// A line about `n` things that took this long.
    pub(crate) fn new(bench: &str, n: u64, time: Duration) -> Line {
        let seconds = time.as_secs_f64();
        let store = STORE.get().unwrap_or(&"sqlite");
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
}
