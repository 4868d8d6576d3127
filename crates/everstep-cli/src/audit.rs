//! `audit`: who has changed what.

use clap::Args;
use everstep::{AuditEntry, Client};
use serde_json::{Value as Json, json};

use crate::{
    output::{Shown, Table, Watch, dim, is_json, short, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// How many entries at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
    /// Those before this number.
    #[arg(long, value_name = "NO")]
    before: Option<u64>,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) async fn run(client: &Client, said: Audit) -> Outcome {
    said.watch.run(async || list(client, &said).await).await
}

async fn list(client: &Client, said: &Audit) -> Result<Shown, Trouble> {
    let mut entries = Vec::new();
    let mut next = said.before;
    while entries.len() < said.limit {
        let left = said.limit - entries.len();
        let page = client.audit().list(next, left).await?;
        entries.extend(page.entries);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    if is_json() {
        let entries: Vec<Json> = entries.iter().map(json).collect();
        let mut shown = json!({"entries": entries});
        if let Some(next) = next {
            shown["next"] = json!(next);
        }
        return Ok(Shown::Json(shown));
    }
    let mut table = Table::new(["NO", "WHEN", "WHO", "DID", "TO", "OUTCOME", "DETAIL"]);
    for entry in entries {
        let outcome = entry.outcome.unwrap_or_else(|| "not known".to_owned());
        table.row([
            entry.no.to_string().into(),
            dim(when(entry.at)),
            entry.who.into(),
            entry.action.into(),
            entry.target.into(),
            outcome.into(),
            short(&entry.detail, 80).into(),
        ]);
    }
    Ok(Shown::Text(table.text("nothing was changed")))
}

fn json(entry: &AuditEntry) -> Json {
    let mut json = json!({
        "no": entry.no, "at": entry.at.to_string(), "who": entry.who, "action": entry.action,
        "target": entry.target, "detail": entry.detail,
    });
    if let Some(outcome) = &entry.outcome {
        json["outcome"] = json!(outcome);
    }
    json
}
