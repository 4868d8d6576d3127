//! Who has changed what. Each line goes to the log of the process under the target `everstep::audit`.

use std::net::IpAddr;

use axum::http::StatusCode;

use crate::security::Who;

/// Where changes are written down.
#[derive(Debug, Default)]
pub(crate) struct Audit;

impl Audit {
    /// Notes a change, or that it was not made.
    pub(crate) fn note(&self, who: &Who, action: &str, target: &str, status: StatusCode) {
        let name = who.name.as_deref().unwrap_or("local");
        tracing::info!(
            target: "everstep::audit",
            who = name,
            role = who.role.word(),
            action,
            on = target,
            status = status.as_u16(),
            "a change was asked for"
        );
    }

    /// Notes that somebody has tried to log in.
    pub(crate) fn note_login(&self, name: Option<&str>, from: Option<IpAddr>, status: StatusCode) {
        tracing::info!(
            target: "everstep::audit",
            who = name.unwrap_or("unknown"),
            from = from.map(tracing::field::display),
            action = "log_in",
            status = status.as_u16(),
            "somebody has tried to log in"
        );
    }
}
