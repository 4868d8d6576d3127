//! Who has changed what: written into the store before it is done, and again when it is known what
//! became of it.

use std::net::IpAddr;

use everstep::{AuditNew, Client};
use serde_json::Value as Json;

use crate::{
    problem::{Kind, Problem},
    security::Who,
};

/// What is written of the body of a request: all of it, for operations whose bodies hold no payload.
const TOLD_WHOLE: &[&str] = &[
    "backfill_schedule",
    "cancel_run",
    "change_runs",
    "create_token",
    "move_run",
    "replay_dead_letter",
    "tag_run",
];

/// The audit log.
pub(crate) struct Audit {
    client: Client,
}

/// A change that was begun.
pub(crate) struct Begun(u64);

impl Audit {
    pub(crate) fn new(client: Client) -> Audit {
        Audit { client }
    }

    /// Notes that something is about to be done. What cannot be noted is not done.
    pub(crate) async fn begin(
        &self,
        who: &Who,
        action: &str,
        target: String,
        detail: String,
    ) -> Result<Begun, Problem> {
        let name = who.name.as_deref().unwrap_or("local");
        let new = AuditNew::new(name, action).target(target).detail(detail);
        match self.client.audit().begin(new).await {
            Ok(no) => Ok(Begun(no)),
            Err(error) => {
                tracing::warn!(%error, action, "a change cannot be noted, and is not made");
                let detail = "the change cannot be written into the audit log, and was not made";
                Err(Problem::new(Kind::Unavailable, detail))
            }
        }
    }

    /// Notes what became of it.
    pub(crate) async fn end(&self, begun: Begun, outcome: &str) {
        if let Err(error) = self.client.audit().end(begun.0, outcome).await {
            tracing::warn!(%error, no = begun.0, outcome, "what became of a change cannot be noted");
        }
    }

    /// Notes that somebody has tried to log in.
    pub(crate) async fn note_login(&self, name: Option<&str>, from: Option<IpAddr>, outcome: &str) {
        let new = AuditNew::new(name.unwrap_or("unknown"), "log_in");
        let new = new.target(from.map_or_else(String::new, |from| from.to_string()));
        match self.client.audit().begin(new).await {
            Ok(no) => self.end(Begun(no), outcome).await,
            Err(error) => tracing::warn!(%error, "a login cannot be noted"),
        }
    }
}

/// What else there is to say about a request: nothing of payloads.
pub(crate) fn detail(action: &str, query: Option<&str>, body: &[u8]) -> String {
    let said = || serde_json::from_slice::<Json>(body).ok();
    match action {
        "start_run" => {
            let workflow = said().and_then(|it| it["workflow"].as_str().map(str::to_owned));
            workflow.unwrap_or_default()
        }
        action if TOLD_WHOLE.contains(&action) => {
            said().map_or_else(String::new, |it| it.to_string())
        }
        _ => query.unwrap_or_default().to_owned(),
    }
}

/// Whether it only asks what a change would be made to.
pub(crate) fn is_dry_run(action: &str, body: &[u8]) -> bool {
    // A body that names the field twice is refused by the operation, whichever of them is seen here.
    action == "change_runs"
        && serde_json::from_slice::<Json>(body).is_ok_and(|said| said["dry_run"] == true)
}

/// What a change is made to: the names in its path. Whoever has the token of a deferred may settle it,
/// so that of a token only a part of its hash is written.
pub(crate) fn target(action: &str, template: &str, path: &str) -> String {
    let names = names(template, path);
    match action {
        "resolve_token" | "reject_token" => {
            let hash = crate::security::hash(&names);
            let short: String = hash[..6].iter().map(|it| format!("{it:02x}")).collect();
            format!("token sha256:{short}")
        }
        _ => names,
    }
}

fn names(template: &str, path: &str) -> String {
    let skipped = path.split('/').count().saturating_sub(template.split('/').count());
    let parts = template.split('/').zip(path.split('/').skip(skipped));
    let names = parts.filter(|(name, _)| name.starts_with('{'));
    names.map(|(_, part)| plain(part)).collect::<Vec<_>>().join("/")
}

/// A part of a path without its escapes.
fn plain(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let code = escaped.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        bytes.push(code.unwrap_or(*first));
        rest = &after[if code.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_what_stands_for_the_names_in_a_path() {
        for (template, path, wanted) in [
            ("/runs/{run}/cancel", "/api/v1/runs/abc/cancel", "abc"),
            ("/runs/{run}/tags/{name}", "/api/v1/runs/abc/tags/a%2Fb%20c", "abc/a/b c"),
            ("/runs", "/api/v1/runs", ""),
            ("/events/{event}", "/api/v1/events/50%", "50%"),
        ] {
            assert_eq!(target("x", template, path), wanted);
        }
        let token =
            target("resolve_token", "/tokens/{token}/resolve", "/api/v1/tokens/secret/resolve");
        assert_eq!(token, "token sha256:2bb80d537b1d");
    }

    #[test]
    fn only_a_bulk_change_can_be_a_dry_run() {
        assert!(is_dry_run("change_runs", br#"{"dry_run": true}"#));
        assert!(!is_dry_run("change_runs", br#"{"dry_run": false}"#));
        assert!(!is_dry_run("change_runs", b"{}"));
        assert!(!is_dry_run("change_runs", b""));
        assert!(!is_dry_run("start_run", br#"{"dry_run": true}"#));
    }

    #[test]
    fn a_payload_is_never_written() {
        let start = br#"{"workflow": "pay", "input": {"card": "4111"}}"#;
        assert_eq!(detail("start_run", None, start), "pay");
        assert_eq!(detail("send_message", None, br#"{"name": "x", "body": 1}"#), "");
        assert_eq!(detail("delete_run", Some("forget_key=true"), b""), "forget_key=true");
        let bulk = br#"{"action": "delete", "filter": {"workflow": "a"}}"#;
        assert!(detail("change_runs", None, bulk).contains("delete"));
    }
}
