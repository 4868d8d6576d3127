//! `tokens`: who may use the HTTP API.

use clap::{Args, Subcommand};
use everstep::{Client, Role, TokenInfo};
use serde_json::{Value as Json, json};

use crate::{
    Exit,
    audit::Change,
    output::{Shown, Table, confirm, dim, is_json, note, plain, say, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Tokens {
    /// List tokens; what was handed out is not among it.
    List,
    /// Make a token and print it, once.
    Create(Create),
    /// Take a token back: from now on it allows nothing.
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Its name: who or what has it.
    name: String,
    /// What it allows: `read`, `operate` or `admin`.
    #[arg(long, default_value = "read")]
    role: Role,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// Its name.
    name: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(client: &Client, command: Tokens) -> Outcome {
    let tokens = client.tokens();
    match command {
        Tokens::List => list(tokens.list().await?).print(),
        Tokens::Create(Create { name, role }) => {
            let change = Change::new("create_token", &name).detail(role.to_string());
            let created = change.made(client, async || Ok(tokens.create(name, role).await?));
            let (info, secret) = created.await?;
            let mut json = json(&info);
            json["token"] = json!(secret.as_str());
            note("keep it safe: it is shown only now");
            say(json, secret.as_str());
        }
        Tokens::Revoke(Revoke { name, yes }) => {
            confirm(&format!("Take the token `{name}` back?"), yes)?;
            let change = Change::new("revoke_token", &name);
            let revoked = change.made(client, async || {
                if tokens.revoke(&name).await? {
                    return Ok(());
                }
                let text = format!("there is no token `{}`; it may be revoked", plain(&name));
                Err(Trouble::new(Exit::NotFound, text))
            });
            revoked.await?;
            say(json!({"revoked": name}), "it allows nothing any more");
        }
    }
    Ok(Exit::Done)
}

fn json(token: &TokenInfo) -> Json {
    let mut json = json!({
        "name": token.name, "role": token.role.to_string(),
        "created_at": token.created_at.to_string(),
    });
    if let Some(at) = token.last_used_at {
        json["last_used_at"] = json!(at.to_string());
    }
    json
}

fn list(tokens: Vec<TokenInfo>) -> Shown {
    if is_json() {
        let tokens: Vec<Json> = tokens.iter().map(json).collect();
        return Shown::Json(json!({"tokens": tokens}));
    }
    let mut table = Table::new(["NAME", "ROLE", "MADE", "LAST USED"]);
    for token in tokens {
        table.row([
            token.name.into(),
            token.role.to_string().into(),
            dim(when(token.created_at)),
            token.last_used_at.map(when).unwrap_or_default().into(),
        ]);
    }
    Shown::Text(table.text("no tokens"))
}
