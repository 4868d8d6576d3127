//! Redaction: what is not to be seen of payloads by people who operate, but do not own, the data.
//!
//! A pattern is a path of names from the outside in, `*` for any one name and `**` for any number of
//! them: `**.password`, `card.number`, `**.customer.*`. What it leads to is replaced as a whole. Lists
//! are looked through. A text that is not JSON is left out as a whole where anything is redacted: it
//! could say anything.

use serde_json::Value as Json;

use crate::problem::{Kind, Problem};

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

    /// Refuses a payload in which what was redacted has come back: whoever has read it here and sends
    /// it again would put the mark in the place of the secret.
    pub(crate) fn check_sent(&self, what: &str, value: &Json) -> Result<(), Problem> {
        let patterns: Vec<&[Part]> = self.patterns.iter().map(Vec::as_slice).collect();
        let Some(path) = returned(value, &patterns) else {
            return Ok(());
        };
        let detail = format!(
            "{what} has `{REDACTED}` at `{path}`, where something is redacted; send what is really \
             meant, or leave {what} out if it is to stay as it is"
        );
        Err(Problem::new(Kind::Unprocessable, detail))
    }

    /// A text that a user's code has made.
    pub(crate) fn text(&self, text: String) -> String {
        if self.patterns.is_empty() { text } else { REDACTED.to_owned() }
    }
}

fn redact(value: &mut Json, patterns: &[&[Part]]) {
    match value {
        Json::Object(fields) => {
            for (name, field) in fields {
                let within = inside(patterns, name);
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

/// Where a payload has the mark in the place of something that would be redacted.
fn returned(value: &Json, patterns: &[&[Part]]) -> Option<String> {
    match value {
        Json::Object(fields) => fields.iter().find_map(|(name, field)| {
            let within = inside(patterns, name);
            if within.iter().any(|rest| rest.is_empty()) {
                return (field == REDACTED).then(|| name.clone());
            }
            let rest = returned(field, &within)?;
            Some(format!("{name}.{rest}"))
        }),
        Json::Array(items) => items.iter().find_map(|item| returned(item, patterns)),
        _ => None,
    }
}

/// What is left of patterns inside of the field with this name.
fn inside<'p>(patterns: &[&'p [Part]], name: &str) -> Vec<&'p [Part]> {
    let (name, mut within) = (name.to_lowercase(), Vec::new());
    for pattern in patterns {
        step(pattern, &name, &mut within);
    }
    within
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
        assert_eq!(redacted(&["*"], value), json!({"a": REDACTED, "e": REDACTED}));
    }

    #[test]
    fn what_was_redacted_and_comes_back_is_found_where_it_would_be_redacted_again() {
        let some = Redaction::new(["**.password"]).expect("pattern");
        let sent = |value: Json| some.check_sent("`input`", &value);
        assert!(sent(json!({"password": "x", "note": REDACTED})).is_ok());
        assert!(sent(json!({"a": [{"Password": REDACTED}]})).is_err());
        let problem = sent(json!({"a": {"password": REDACTED}})).expect_err("it came back");
        let said = serde_json::to_string(&problem).expect("JSON");
        assert!(said.contains("a.password"), "{said}");
        let none = Redaction::default();
        assert!(none.check_sent("x", &json!({"password": REDACTED})).is_ok());
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
