//! Who is asking.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who is asking, and what they may do.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Session {
    /// The name of the token; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// `read`, `operate` or `admin`; absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// Whether a token is needed here.
    pub(crate) login_required: bool,
    /// What changes must be sent with as `x-everstep-csrf`, if they are sent with a cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) csrf: Option<String>,
    /// What they may do: `start`, `send`, `cancel` and so on.
    pub(crate) can: Vec<&'static str>,
    /// The store; empty if nobody is logged in.
    pub(crate) store: String,
    /// The version of this server.
    pub(crate) version: &'static str,
}

/// A token to log in with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The token.
    pub(crate) token: String,
}
