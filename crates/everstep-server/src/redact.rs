//! Redaction: what is not to be seen of payloads by people who operate, but do not own, the data.
//!
//! A pattern is a path of names from the outside in, `*` for any one name and `**` for any number of
//! them: `**.password`, `card.number`, `**.customer.*`. What it leads to is replaced as a whole. Lists
//! are looked through. A text that is not JSON is left out as a whole where anything is redacted: it
//! could say anything.

use serde_json::Value as Json;

/// What stands where something was.
pub(crate) const REDACTED: &str = "[redacted]";

/// A pattern that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the pattern `{0}` has an empty part; write names with dots between them, `*` or `**`")]
pub struct BadPattern(String);

/// What is redacted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redaction {
    patterns: Vec<Vec<Part>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Name(String),
    One,
    Any,
}

impl Redaction {
    pub(crate) fn new<P: AsRef<str>>(
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Redaction, BadPattern> {
        let mut all = Vec::new();
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let parts = pattern.split('.').map(|part| match part {
                "" => Err(BadPattern(pattern.to_owned())),
                "*" => Ok(Part::One),
                "**" => Ok(Part::Any),
                name => Ok(Part::Name(name.to_lowercase())),
            });
            all.push(parts.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Redaction { patterns: all })
    }

    /// A payload without what is redacted.
    pub(crate) fn json(&self, mut value: Json) -> Json {
        if !self.patterns.is_empty() {
            let patterns: Vec<&[Part]> = self.patterns.iter().map(Vec::as_slice).collect();
            redact(&mut value, &patterns);
        }
        value
    }

    /// A text that a user's code has made.
    pub(crate) fn text(&self, text: String) -> String {
        if self.patterns.is_empty() {
            text
        } else {
            REDACTED.to_owned()
        }
    }
}

fn redact(value: &mut Json, patterns: &[&[Part]]) {
    match value {
        Json::Object(fields) => {
            for (name, field) in fields {
                let name = name.to_lowercase();
                let mut within = Vec::new();
                for pattern in patterns {
                    step(pattern, &name, &mut within);
                }
                if within.iter().any(|rest| rest.is_empty()) {
                    *field = Json::from(REDACTED);
                } else {
                    redact(field, &within);
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| redact(item, patterns)),
        _ => {}
    }
}

/// What is left of a pattern inside of the field with this name.
fn step<'p>(pattern: &'p [Part], name: &str, within: &mut Vec<&'p [Part]>) {
    match pattern {
        [Part::Any, rest @ ..] => {
            within.push(pattern);
            if rest.is_empty() {
                within.push(rest);
            }
            step(rest, name, within);
        }
        [Part::One, rest @ ..] => within.push(rest),
        [Part::Name(wanted), rest @ ..] if wanted == name => within.push(rest),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(patterns: &[&str], value: Json) -> Json {
        Redaction::new(patterns).expect("patterns").json(value)
    }

    #[test]
    fn what_a_pattern_leads_to_is_replaced_wherever_it_is() {
        let value = json!({
            "card": {"number": "4111", "holder": "A"},
            "orders": [{"Password": "x", "id": 1}, {"deep": {"password": {"a": 1}}}],
        });
        assert_eq!(
            redacted(&["card.number", "**.password"], value),
            json!({
                "card": {"number": REDACTED, "holder": "A"},
                "orders": [{"Password": REDACTED, "id": 1}, {"deep": {"password": REDACTED}}],
            })
        );
    }

    #[test]
    fn a_star_is_one_name_and_not_two() {
        let value = json!({"a": {"b": {"c": 1}, "d": 2}, "e": 3});
        assert_eq!(
            redacted(&["a.*.c"], value.clone()),
            json!({"a": {"b": {"c": REDACTED}, "d": 2}, "e": 3})
        );
        assert_eq!(
            redacted(&["*"], value),
            json!({"a": REDACTED, "e": REDACTED})
        );
    }

    #[test]
    fn texts_could_say_anything_and_are_left_out_where_something_is_redacted() {
        let some = Redaction::new(["**.password"]).expect("pattern");
        assert_eq!(some.text("the password is x".to_owned()), REDACTED);
        assert_eq!(Redaction::default().text("x".to_owned()), "x");
    }

    #[test]
    fn an_empty_part_is_no_pattern() {
        assert!(Redaction::new(["a..b"]).is_err());
        assert!(Redaction::new([""]).is_err());
    }
}
