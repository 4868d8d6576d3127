//! The audit log, and the tokens of the API.

use everstep::{AuditEntry, Role, TokenInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;

/// A page of the audit log, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AuditList {
    /// The entries.
    pub(crate) entries: Vec<AuditShape>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// Something that somebody has changed, or has tried to.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AuditShape {
    /// Its number.
    pub(crate) no: u64,
    /// When it was begun.
    pub(crate) at: Time,
    /// The name of the token; `local` without one.
    pub(crate) who: String,
    /// What was done: the name of the operation.
    pub(crate) action: String,
    /// What it was done to; may be empty.
    pub(crate) target: String,
    /// What else there is to say, and what has come of it; may be empty.
    pub(crate) detail: String,
    /// `done`, the word for what was wrong, or `unknown` if its end was never noted.
    pub(crate) outcome: String,
}

impl From<AuditEntry> for AuditShape {
    fn from(entry: AuditEntry) -> AuditShape {
        let outcome = entry.outcome.unwrap_or_else(|| "unknown".to_owned());
        // What has come of it is noted after it: the run that was started, how many were changed.
        let (outcome, more) = match outcome.split_once(": ") {
            Some(("done", more)) => ("done".to_owned(), more),
            _ => (outcome, ""),
        };
        let between = match entry.detail.is_empty() || more.is_empty() {
            true => "",
            false => "; ",
        };
        AuditShape {
            no: entry.no,
            at: entry.at.into(),
            who: entry.who,
            action: entry.action,
            target: entry.target,
            detail: format!("{}{between}{more}", entry.detail),
            outcome,
        }
    }
}

/// The tokens of the store.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenList {
    /// By name.
    pub(crate) tokens: Vec<TokenShape>,
}

/// A token, without what was handed out.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenShape {
    /// Its name.
    pub(crate) name: String,
    /// What it allows.
    pub(crate) role: RoleShape,
    /// When it was made.
    pub(crate) created_at: Time,
    /// When it was last used, to within a minute or so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_used_at: Option<Time>,
}

impl From<TokenInfo> for TokenShape {
    fn from(info: TokenInfo) -> TokenShape {
        TokenShape {
            name: info.name,
            role: info.role.into(),
            created_at: info.created_at.into(),
            last_used_at: info.last_used_at.map(Time),
        }
    }
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoleShape {
    Read,
    Operate,
    Admin,
}

impl From<Role> for RoleShape {
    fn from(role: Role) -> RoleShape {
        match role {
            Role::Read => RoleShape::Read,
            Role::Operate => RoleShape::Operate,
            Role::Admin => RoleShape::Admin,
        }
    }
}

impl From<RoleShape> for Role {
    fn from(role: RoleShape) -> Role {
        match role {
            RoleShape::Read => Role::Read,
            RoleShape::Operate => Role::Operate,
            RoleShape::Admin => Role::Admin,
        }
    }
}

/// A token to be made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MakeToken {
    /// Its name, by which it is revoked and by which the audit log knows whoever has it.
    #[schemars(length(min = 1))]
    pub(crate) name: String,
    /// What it allows.
    pub(crate) role: RoleShape,
}

/// A token that was made.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NewToken {
    #[serde(flatten)]
    pub(crate) info: TokenShape,
    /// What is to be handed out. It cannot be had again.
    pub(crate) token: String,
}
