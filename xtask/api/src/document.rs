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
            offer_body(operation);
        }
    }
    offer_fields(&mut document["components"]["schemas"], seeded);
    document
}

fn offer_parameters(operation: &mut Json, seeded: &Seeded) {
    let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
    // To index it would make one where there is none.
    let parameters = operation.get_mut("parameters");
    let parameters = parameters.and_then(Json::as_array_mut);
    let nobody = json!("0198c0de-0000-7000-8000-000000000000");
    for parameter in parameters.into_iter().flatten() {
        let place = parameter["in"].as_str().unwrap_or_default();
        let offered = match (name.as_str(), place, parameter["name"].as_str().unwrap_or_default()) {
            ("delete_run", "path", "run") => json!(seeded.ended),
            ("retry_run", "path", "run") => json!(seeded.failed),
            ("resume_run", "path", "run") => json!(seeded.paused),
            ("cancel_run", "path", "run") => json!(seeded.live),
            ("pause_run", "path", "run") => json!(seeded.pausable),
            ("ask_run" | "send_message" | "move_run", "path", "run") => json!(seeded.oracles),
            ("settle_deferred", "path", "run") => json!(seeded.waiting),
            (_, "path", "run") => json!(seeded.kept),
            ("revoke_token", "path", "token") => json!(seeded.token_names),
            ("reject_token", "path", "token") => json!(seeded.rejectable),
            (_, "path", "token") => json!(seeded.tokens),
            (_, _, "workflow") => json!(seed_workflows()),
            (_, "path", "key") => json!(["k0", "k1"]),
            (_, "path", "stream") => json!(["said"]),
            (_, "path", "name") => json!(["customer"]),
            (_, "path", "event") => json!(["paid"]),
            (_, "path", "schedule") => json!(seeded.schedules),
            (_, "path", "queue") => json!(["mails"]),
            (_, "path", "item") => json!(seeded.items),
            ("drop_dead_letter", "path", "no") => json!(seeded.dropped),
            (_, "path", "no") => json!(seeded.letters),
            (_, "query", "status") => json!(["completed", "failed,cancelled"]),
            (_, "header", "idempotency-key") => {
                // One that was used for something else is refused, and few are tried if all may be.
                parameter["schema"] = json!({"type": "string", "pattern": "^[0-9a-f]{12}$"});
                continue;
            }
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
        match (place, offered.as_array()) {
            // A run id that is made up is hardly ever one that could be.
            ("path", Some(ids)) if parameter["name"] == "run" => {
                let known = ids.iter().chain([&nobody]).collect::<Vec<_>>();
                parameter["schema"] = json!({"enum": known});
                parameter["example"] = ids.first().cloned().unwrap_or_default();
            }
            (_, ids) => {
                if let Some(first) = ids.and_then(|ids| ids.first()).filter(|_| place == "path") {
                    parameter["example"] = first.clone();
                }
                offer(&mut parameter["schema"], &offered);
            }
        }
    }
}

/// A body with which the operation succeeds, for those that hardly one that is made up fits.
fn offer_body(operation: &mut Json) {
    let example = match operation["operationId"].as_str().unwrap_or_default() {
        "ask_run" => json!({"name": "question", "body": "why?"}),
        "settle_deferred" => json!({"location": "review", "value": "good"}),
        "put_schedule" => json!({"workflow": "greet", "cron": "0 3 * * *"}),
        "start_run" => json!({"workflow": "greet", "input": "you"}),
        "send_message" => json!({"name": "note"}),
        "move_run" => json!({"pool": "elsewhere"}),
        "replay_dead_letter" => json!({"event": "paid"}),
        _ => return,
    };
    operation["requestBody"]["content"]["application/json"]["example"] = example;
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
        ("ReplayShape", "to", json!(seeded.oracles)),
        ("MoveRun", "pool", json!(["default", "elsewhere"])),
        ("ForkShape", "from", json!(["charge"])),
    ] {
        let schema = &mut schemas[shape]["properties"][field];
        assert!(!schema.is_null(), "{shape} has no field `{field}`");
        offer(schema, &offered);
    }
    // Whoever guesses is let in no more for a while, and whoever changes everything leaves nothing.
    schemas["Login"]["properties"]["token"] = json!({"enum": [crate::TOKEN]});
    schemas["BulkShape"]["properties"]["filter"] = json!({
        "type": "object", "required": ["key_prefix"], "additionalProperties": false,
        "properties": {"key_prefix": {"enum": ["many-"]}, "version": {"type": "integer", "minimum": 0, "maximum": 9}},
    });
}
