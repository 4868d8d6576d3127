//! `audit`: who has changed what; and the notes of what the commands here change.
//!
//! Actions are called as the operations of the HTTP API are, so that one search finds both. Nothing of
//! payloads is written.

use clap::Args;
use everstep::{AuditEntry, AuditNew, Client};
use serde_json::{Value as Json, json};

use crate::{
    Exit,
    output::{self, Shown, Table, Watch, dim, is_json, short, when},
    trouble::{Outcome, Trouble},
};

/// Something that is about to be changed.
pub(crate) struct Change(AuditNew);

impl Change {
    pub(crate) fn new(action: &str, target: impl ToString) -> Change {
        Change(AuditNew::new(who(), action).target(target))
    }

    /// What else there is to say.
    pub(crate) fn detail(self, detail: impl Into<String>) -> Change {
        Change(self.0.detail(detail))
    }

    /// Makes it, noted before and with its outcome afterwards. What cannot be noted is not done.
    pub(crate) async fn made<T>(
        self,
        client: &Client,
        act: impl AsyncFnOnce() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.made_with(client, |_| Exit::Done, act).await
    }

    /// The same for something of whose outcome there is more to tell.
    pub(crate) async fn made_with<T>(
        self,
        client: &Client,
        exit: impl FnOnce(&T) -> Exit,
        act: impl AsyncFnOnce() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let audit = client.audit();
        let no = audit
            .begin(self.0)
            .await
            .map_err(|error| Trouble::from(error).hint("nothing was changed"))?;
        let done = act().await;
        let exit = match &done {
            Ok(done) => exit(done),
            Err(trouble) => trouble.exit(),
        };
        if let Err(error) = audit.end(no, exit.word()).await {
            output::note(&format!("what became of it is not in the audit log: {error}"));
        }
        done
    }
}

/// Who calls this: `cli:` and the user's name as the environment has it. It is for people who ask
/// themselves who it was, and no proof: whoever can open the store can write anything into it.
pub(crate) fn who() -> String {
    let said = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
    let named = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(said);
    format!("cli:{}", named.unwrap_or_else(user_number))
}

/// The user where the environment has no name, as in a container.
#[cfg(target_os = "linux")]
fn user_number() -> String {
    use std::os::unix::fs::MetadataExt as _;
    let own = std::fs::metadata("/proc/self");
    own.map_or_else(|_| "unknown".to_owned(), |own| format!("uid-{}", own.uid()))
}

#[cfg(not(target_os = "linux"))]
fn user_number() -> String {
    "unknown".to_owned()
}

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
    Ok(Shown::Text(table.text("no changes are noted")))
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
