//! The document of the server, with the names of what was seeded offered wherever one is asked for.
//! What the document says of answers stays as it is.

use serde_json::{Value as Json, json};

use crate::seed::Seeded;

/// The document with names in it.
pub(crate) fn offering(mut document: Json, seeded: &Seeded) -> Json {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, verbs) in paths {
        for (_, operation) in verbs.as_object_mut().into_iter().flatten() {
            offer_parameters(operation, seeded);
        }
    }
    offer_fields(&mut document["components"]["schemas"], seeded);
    document
}

fn offer_parameters(operation: &mut Json, seeded: &Seeded) {
    let name = operation["operationId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let parameters = operation["parameters"].as_array_mut().into_iter().flatten();
    for parameter in parameters {
        let place = parameter["in"].as_str().unwrap_or_default();
        let offered = match (
            name.as_str(),
            place,
            parameter["name"].as_str().unwrap_or_default(),
        ) {
            ("delete_run", "path", "run") => json!(seeded.ended),
            ("retry_run", "path", "run") => json!(seeded.failed),
            ("resume_run", "path", "run") => json!(seeded.paused),
            ("cancel_run" | "pause_run" | "send_message", "path", "run") => json!(seeded.live),
            ("ask_run", "path", "run") => json!(seeded.oracles),
            ("settle_deferred", "path", "run") => json!(seeded.waiting),
            (_, "path", "run") => json!(seeded.kept),
            ("revoke_token", "path", "token") => json!(seeded.token_names),
            (_, "path", "token") => json!(seeded.tokens),
            (_, _, "workflow") => json!(seed_workflows()),
            (_, "path", "key") => json!(["k0", "k1"]),
            (_, "path", "stream") => json!(["said"]),
            (_, "path", "name") => json!(["customer"]),
            (_, "path", "event") => json!(["paid"]),
            (_, "path", "schedule") => json!(seeded.schedules),
            (_, "path", "queue") => json!(["mails"]),
            (_, "path", "item") => json!(seeded.items),
            (_, "path", "no") => json!(seeded.letters),
            (_, "query", "status") => json!(["completed", "failed,cancelled"]),
            (_, "query", "tag") => {
                let many =
                    json!({"type": "array", "items": {"enum": ["customer:ada", "customer:bob"]}});
                parameter["schema"] = many;
                continue;
            }
            (_, "query", "from" | "to" | "created_from" | "created_before") => {
                json!(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00.5Z"])
            }
            _ => continue,
        };
        offer(&mut parameter["schema"], &offered);
    }
}

/// What is asked for, or one of these.
fn offer(schema: &mut Json, offered: &Json) {
    let whole = schema.take();
    // Twice, so that what is there is asked for more often than what is not.
    *schema = json!({"anyOf": [{"enum": offered}, {"enum": offered}, whole]});
}

fn seed_workflows() -> [&'static str; 3] {
    ["greet", "oracle", "secretive"]
}

fn offer_fields(schemas: &mut Json, seeded: &Seeded) {
    let times = json!(["2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z"]);
    for (shape, field, offered) in [
        ("StartRun", "workflow", json!(seed_workflows())),
        ("PutSchedule", "workflow", json!(["greet"])),
        ("PutSchedule", "cron", json!(["0 3 * * *", "*/5 * * * *"])),
        ("PutSchedule", "time_zone", json!(["UTC", "Europe/Berlin"])),
        ("Backfill", "from", times.clone()),
        ("Backfill", "to", times),
        ("MessageShape", "name", json!(["note", "question"])),
        ("RequestShape", "name", json!(["question"])),
        ("SettleShape", "location", json!(["review"])),
        ("ReplayShape", "to", json!(seeded.live)),
        ("ReplayShape", "event", json!(["paid"])),
        ("ForkShape", "from", json!(["charge"])),
    ] {
        let schema = &mut schemas[shape]["properties"][field];
        if !schema.is_null() {
            offer(schema, &offered);
        }
    }
    // Whoever guesses is let in no more for a while, and whoever changes everything leaves nothing.
    schemas["Login"]["properties"]["token"] = json!({"enum": [crate::TOKEN]});
    schemas["BulkShape"]["properties"]["filter"] = json!({
        "type": "object", "required": ["key_prefix"], "additionalProperties": false,
        "properties": {"key_prefix": {"enum": ["many-"]}, "version": {"type": "integer", "minimum": 0, "maximum": 9}},
    });
}
