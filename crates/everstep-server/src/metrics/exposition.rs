//! The text format of Prometheus, written by hand: it is four rules.

use std::fmt::Write;

use everstep::telemetry::Histogram;

/// What a family of samples is.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The text so far.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
    /// The family that samples are written for.
    name: &'static str,
}

impl Exposition {
    /// From here on samples are of this family. Each is begun once.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // To write to a text cannot fail.
        _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
    }

    /// A family of one sample that only grows.
    pub(super) fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help);
        self.sample(&[], value as f64);
    }

    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        for (bound, count) in histogram.cumulative() {
            let bound = match bound.is_finite() {
                true => bound.to_string(),
                false => "+Inf".to_owned(),
            };
            self.line("_bucket", labels, Some(&bound), count as f64);
        }
        self.line("_sum", labels, None, histogram.sum);
        self.line("_count", labels, None, histogram.count() as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let labels = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut opened = false;
        for (name, value) in labels {
            self.text.push(if opened { ',' } else { '{' });
            opened = true;
            _ = write!(self.text, "{name}=\"");
            for letter in value.chars() {
                match letter {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if opened {
            self.text.push('}');
        }
        _ = writeln!(self.text, " {value}");
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_bounds_are_plain_numbers() {
        let mut out = Exposition::default();
        out.family("a", Kind::Gauge, "What it is.");
        out.sample(&[("w", "x\\y\"z\nü")], 0.5);
        out.sample(&[], 1e9);
        assert_eq!(
            out.finish(),
            "# HELP a What it is.\n# TYPE a gauge\na{w=\"x\\\\y\\\"z\\nü\"} 0.5\na 1000000000\n"
        );
    }
}
