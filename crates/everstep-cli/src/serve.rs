//! `serve`: the HTTP API and the dashboard.

use std::{
    io::ErrorKind,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use everstep::Client;
use everstep_server::{Listening, Role, Server, Token};
use serde_json::json;

use crate::{
    Exit, output,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7878")]
    listen: String,
    /// A file with one token in each line, as `role name token`; roles are read, operate and admin.
    /// Instead of the token there may be its hash, as `sha256:..`.
    #[arg(long, value_name = "FILE", env = "EVERSTEP_TOKENS", hide_env_values = true)]
    tokens: Option<PathBuf>,
    /// A name under which the server is reached; may be said several times.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// What is not shown of payloads: `**.password`; may be said several times.
    #[arg(long, value_name = "PATTERN")]
    redact: Vec<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Limits of the server, and the proxies in front of it.
#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct Limits {
    /// The address or network of a reverse proxy whose `X-Forwarded-For` or `Forwarded` names the
    /// client, such as 10.0.0.0/8; can be repeated.
    #[arg(long, value_name = "ADDRESS")]
    trusted_proxy: Vec<String>,
    /// Maximum number of connections [default: 800].
    #[arg(long, value_name = "N")]
    connections: Option<NonZeroUsize>,
    /// Maximum number of connections from one address [default: 400].
    #[arg(long, value_name = "N")]
    connections_per_peer: Option<NonZeroUsize>,
    /// Maximum number of requests that one token has under way [default: 200].
    #[arg(long, value_name = "N")]
    requests_per_token: Option<NonZeroUsize>,
    /// Maximum number of event streams that one token has open [default: 100].
    #[arg(long, value_name = "N")]
    streams_per_token: Option<NonZeroUsize>,
    /// Maximum number of event streams that one address has open [default: 200].
    #[arg(long, value_name = "N")]
    streams_per_peer: Option<NonZeroUsize>,
}

impl Limits {
    pub(crate) fn apply(self, mut server: Server) -> Result<Server, Trouble> {
        let limits = [
            (self.connections, Server::connection_limit as fn(Server, usize) -> Server),
            (self.connections_per_peer, Server::connections_per_peer),
            (self.requests_per_token, Server::requests_per_token),
            (self.streams_per_token, Server::streams_per_token),
            (self.streams_per_peer, Server::streams_per_peer),
        ];
        for (limit, set) in limits {
            if let Some(limit) = limit {
                server = set(server, limit.get());
            }
        }
        server
            .trusted_proxies(self.trusted_proxy)
            .map_err(|error| Trouble::usage(format!("`--trusted-proxy`: {error}")))
    }
}

pub(crate) async fn run(client: Client, said: Serve) -> Outcome {
    let server = server(client, said.tokens.as_deref(), said.host, said.redact).await?;
    let server = said.limits.apply(server)?;
    until_signal(server, &said.listen).await
}

/// A server of what this client sees.
pub(crate) async fn server(
    client: Client,
    tokens: Option<&Path>,
    hosts: Vec<String>,
    redact: Vec<String>,
) -> Result<Server, Trouble> {
    if !hosts.is_empty() && tokens.is_none() && client.tokens().list().await?.is_empty() {
        let text = "a name is for those on other machines, and nobody needs a token; leave out \
                    `--host`, or add a token with `--tokens` or `tokens create`";
        return Err(Trouble::new(Exit::Conflict, text));
    }
    let mut server = with_tokens(Server::new(client), tokens)?;
    for host in hosts {
        server = server.host(host);
    }
    server.redact(redact).map_err(|error| Trouble::usage(error.to_string()))
}

fn with_tokens(mut server: Server, file: Option<&Path>) -> Result<Server, Trouble> {
    if let Some(file) = file {
        for token in read_tokens(file)? {
            server = server.token(token);
        }
    }
    Ok(server)
}

/// Serves until a signal comes. The address is printed as soon as it can be asked.
pub(crate) async fn until_signal(server: Server, address: &str) -> Outcome {
    let listening = listen(server, address).await?;
    // Before anybody is told: whoever reads the address may send one at once.
    let end = signal();
    let address = format!("http://{}", listening.address());
    let text = format!("the API and the dashboard are at {address}");
    output::said(json!({"address": address}), &text).print_one_of_many();
    until(listening, end).await
}

/// How long those who are being answered may take when it ends.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// Answers until `end` is there; then those who follow something live are cut off after a while.
pub(crate) async fn until(listening: Listening, end: impl Future<Output = ()>) -> Outcome {
    let (ending, ended) = tokio::sync::oneshot::channel::<()>();
    let mut serving = tokio::spawn(listening.run(async { _ = ended.await }));
    let served = tokio::select! {
        served = &mut serving => Some(served),
        () = end => None,
    };
    let served = match served {
        Some(served) => served,
        None => {
            drop(ending);
            match tokio::time::timeout(LAST_ANSWERS, &mut serving).await {
                Ok(served) => served,
                Err(_) => {
                    serving.abort();
                    return Ok(Exit::Done);
                }
            }
        }
    };
    served.map_err(Trouble::of)?.map_err(Trouble::of)?;
    Ok(Exit::Done)
}

pub(crate) async fn listen(server: Server, address: &str) -> Result<Listening, Trouble> {
    server.listen(address).await.map_err(|error| {
        let (exit, hint) = match error.kind() {
            // It is not the system that refuses, but the server.
            ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
                (Exit::Conflict, "; `tokens create` makes one, `--tokens` reads them from a file")
            }
            ErrorKind::PermissionDenied => (Exit::Conflict, ""),
            ErrorKind::AddrInUse => {
                (Exit::Conflict, "; say another one, port 0 is any that is free")
            }
            _ => (Exit::Usage, "; write it as `127.0.0.1:7878`"),
        };
        Trouble::new(exit, format!("cannot listen at {address}: {error}{hint}"))
    })
}

/// Ends with the first signal from this call on that asks for it.
pub(crate) fn signal() -> impl Future<Output = ()> {
    let signal = everstep::shutdown_signal();
    async {
        if let Err(error) = signal.await {
            output::note(&format!("signals cannot be waited for: {error}"));
            std::future::pending::<()>().await;
        }
    }
}

fn read_tokens(path: &Path) -> Result<Vec<Token>, Trouble> {
    let wrong = |text: String| Trouble::new(Exit::Usage, format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut tokens = Vec::new();
    for (no, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = parse_token(line).map_err(|text| wrong(format!("line {}: {text}", no + 1)))?;
        tokens.push(token);
    }
    if tokens.is_empty() {
        return Err(wrong("there is no token in it".to_owned()));
    }
    Ok(tokens)
}

fn parse_token(line: &str) -> Result<Token, String> {
    let mut words = line.split_whitespace();
    let (Some(role), Some(name), Some(token), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("write `role name token`".to_owned());
    };
    let role = role.parse::<Role>().map_err(|error| error.to_string())?;
    if let Some(hash) = token.strip_prefix("sha256:") {
        let hash = parse_hash(hash).ok_or("a hash is 64 hexadecimal digits")?;
        return Ok(Token::hashed(name, role, hash));
    }
    if token.len() < 20 {
        return Err("a token has at least 20 characters; make it of random bytes".to_owned());
    }
    Ok(Token::new(name, role, token))
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_for_others_is_refused_where_nobody_needs_a_token() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let store = std::sync::Arc::new(everstep::store::MemoryStore::new());
            let client = Client::on(store).expect("a client");
            let hosts = vec!["ops.example".to_owned()];
            let named = || server(client.clone(), None, hosts.clone(), Vec::new());
            let trouble = named().await.expect_err("nobody needs a token");
            let said = format!("{trouble:?}");
            assert!(said.contains("--host"), "{said}");
            let local = server(client.clone(), None, Vec::new(), Vec::new()).await;
            assert!(local.is_ok());
            let made = client.tokens().create("ada", Role::Read).await;
            made.expect("a token");
            assert!(named().await.is_ok());
        });
    }

    #[test]
    fn a_line_of_a_token_file_is_a_role_a_name_and_a_token() {
        let long = "0123456789abcdef0123";
        let token = parse_token(&format!("admin ada {long}")).expect("a token");
        assert_eq!(token, Token::new("ada", Role::Admin, long));
        assert!(parse_token("admin ada short").is_err());
        assert!(parse_token(&format!("boss ada {long}")).is_err());
        assert!(parse_token("admin ada").is_err());
        let hash = format!("read bob sha256:{}", "0f".repeat(32));
        let hashed = Token::hashed("bob", Role::Read, [15; 32]);
        assert_eq!(parse_token(&hash), Ok(hashed));
        assert!(parse_token("read bob sha256:xyz").is_err());
    }
}
