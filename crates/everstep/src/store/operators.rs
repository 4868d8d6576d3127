//! What is kept for those who operate a store: who has done what to it, and who may.

use std::{fmt, str::FromStr};

use crate::time::Timestamp;

/// Something that somebody is about to do, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAudit {
    /// When it is begun.
    pub at: Timestamp,
    /// Who does it.
    pub who: String,
    /// What is done, in a word or two.
    pub action: String,
    /// What it is done to.
    pub target: String,
    /// What else there is to say.
    pub detail: String,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number. Numbers rise and are never used again.
    pub no: u64,
    /// What was begun.
    pub begun: NewAudit,
    /// What became of it; absent if its end was never noted.
    pub outcome: Option<String>,
}

/// A token of the HTTP API as it is stored: what was handed out follows from nothing in it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiTokenRow {
    /// Its name, which no other has.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// The SHA-256 of what was handed out.
    pub hash: [u8; 32],
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to within a minute or so.
    pub last_used_at: Option<Timestamp>,
}

impl fmt::Debug for ApiTokenRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiTokenRow")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

listed! {
    /// What somebody may do over the HTTP API. Each role may do what those before it may.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Role {
        /// See everything but the audit log.
        Read as "read",
        /// Change single runs, start them, send to them, tend schedules and queues.
        Operate as "operate",
        /// Everything: delete, change many runs at once, move runs, read the audit log, make tokens.
        Admin as "admin",
    }
}

/// A text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no role `{0}`; give `read`, `operate` or `admin`")]
pub struct ParseRoleError(String);

impl FromStr for Role {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Role, ParseRoleError> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| ParseRoleError(text.to_owned()))
    }
}
