//! Checks JSON against the schemas of the document: the part of JSON Schema that the document uses.
//! A keyword that is not known here fails the check, so that nothing is passed over.

use serde_json::Value as Json;

/// Keywords that say nothing about what is valid.
const REMARKS: &[&str] = &["title", "description", "default", "examples", "$comment"];

pub(crate) struct Schemas<'d> {
    pub(crate) document: &'d Json,
}

impl Schemas<'_> {
    /// Why a value does not meet a schema; nothing if it does.
    pub(crate) fn check(&self, schema: &Json, value: &Json) -> Result<(), String> {
        let rules = match schema {
            Json::Bool(true) => return Ok(()),
            Json::Bool(false) => return Err(format!("{value} is not allowed")),
            Json::Object(rules) => rules,
            other => return Err(format!("{other} is no schema")),
        };
        for (rule, said) in rules {
            self.rule(schema, rule, said, value)?;
        }
        Ok(())
    }

    fn rule(&self, schema: &Json, rule: &str, said: &Json, value: &Json) -> Result<(), String> {
        let wrong = || Err(format!("{value} does not meet `{rule}`: {said}"));
        let list = || said.as_array().map(Vec::as_slice).unwrap_or_default();
        let met =
            |schemas: &[Json]| schemas.iter().filter(|it| self.check(it, value).is_ok()).count();
        let number = value.as_f64();
        let is_met = match rule {
            "$ref" => return self.check(self.resolve(said.as_str().unwrap_or_default())?, value),
            "type" => match said {
                Json::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                kind => is_of(kind, value),
            },
            "enum" => list().contains(value),
            "const" => said == value,
            "anyOf" => met(list()) > 0,
            "oneOf" => met(list()) == 1,
            "allOf" => met(list()) == list().len(),
            "minimum" => number.is_none_or(|it| it >= said.as_f64().unwrap_or(f64::MAX)),
            "maximum" => number.is_none_or(|it| it <= said.as_f64().unwrap_or(f64::MIN)),
            "minLength" => {
                let length = value.as_str().map(|it| it.chars().count() as u64);
                length.is_none_or(|length| length >= said.as_u64().unwrap_or(u64::MAX))
            }
            "format" => match (said.as_str(), value.as_str()) {
                (Some("date-time"), Some(text)) => text.parse::<everstep::Timestamp>().is_ok(),
                (Some("uuid"), Some(text)) => text.parse::<everstep::RunId>().is_ok(),
                (Some("date-time" | "uuid"), None) => true,
                (Some(number), _) => number.starts_with("uint") || number.starts_with("int"),
                (None, _) => false,
            },
            "required" => {
                let fields = value.as_object();
                let has = |name: &Json| {
                    fields.is_none_or(|it| it.contains_key(name.as_str().unwrap_or_default()))
                };
                list().iter().all(has)
            }
            "properties" => {
                for (name, schema) in said.as_object().into_iter().flatten() {
                    if let Some(field) = value.get(name) {
                        self.check(schema, field).map_err(|why| format!("`{name}`: {why}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(name).is_none() {
                        self.check(said, field).map_err(|why| format!("`{name}`: {why}"))?;
                    }
                }
                true
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    self.check(said, item)?;
                }
                true
            }
            remark if REMARKS.contains(&remark) => true,
            unknown => {
                return Err(format!("the keyword `{unknown}` is not known to the checker"));
            }
        };
        if is_met { Ok(()) } else { wrong() }
    }

    /// What a reference leads to.
    pub(crate) fn resolve(&self, reference: &str) -> Result<&Json, String> {
        let pointer = reference.strip_prefix('#').unwrap_or("?");
        let found = self.document.pointer(pointer);
        found.ok_or_else(|| format!("`{reference}` leads nowhere"))
    }
}

fn is_of(kind: &Json, value: &Json) -> bool {
    match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

#[test]
fn what_does_not_meet_a_schema_is_said_and_where() {
    use serde_json::json;
    let document = json!({"components": {"schemas": {"Name": {"type": "string", "minLength": 2}}}});
    let schemas = Schemas { document: &document };
    let schema = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": {"$ref": "#/components/schemas/Name"}, "n": {"type": ["integer", "null"]}},
    });
    assert_eq!(schemas.check(&schema, &json!({"name": "ab", "n": null})), Ok(()));
    for (wrong, word) in [
        (json!({"name": "a"}), "minLength"),
        (json!({"n": 1}), "required"),
        (json!({"name": "ab", "n": 1.5}), "`n`"),
        (json!({"name": "ab", "x": 1}), "`x`"),
        (json!(7), "type"),
    ] {
        let why = schemas.check(&schema, &wrong).unwrap_err();
        assert!(why.contains(word), "{wrong}: {why}");
    }
    assert!(schemas.check(&json!({"$ref": "#/nowhere"}), &json!(1)).is_err());
    assert!(schemas.check(&json!({"multipleOf": 2}), &json!(1)).is_err());
}
