//! `serve`: the HTTP API and the dashboard.

use std::path::PathBuf;

use clap::Args;
use everstep::Client;
use everstep_server::{Role, Server, Token};

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
    #[arg(long, value_name = "FILE", env = "EVERSTEP_TOKENS")]
    tokens: Option<PathBuf>,
    /// A name under which the server is reached; may be said several times.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// What is not shown of payloads: `**.password`; may be said several times.
    #[arg(long, value_name = "PATTERN")]
    redact: Vec<String>,
}

pub(crate) async fn run(client: Client, said: Serve) -> Outcome {
    let mut server = Server::new(client);
    if let Some(path) = &said.tokens {
        for token in read_tokens(path)? {
            server = server.token(token);
        }
    }
    for host in said.host {
        server = server.host(host);
    }
    let server = server.redact(said.redact).map_err(Trouble::of)?;
    let listening = server.listen(&said.listen).await.map_err(Trouble::of)?;
    output::note(&format!("http://{}", listening.address()));
    listening.run(until_signal()).await.map_err(Trouble::of)?;
    Ok(Exit::Done)
}

/// Ends with the first signal that asks for it.
pub(crate) async fn until_signal() {
    if let Err(error) = everstep::shutdown_signal().await {
        output::note(&format!("signals cannot be waited for: {error}"));
        std::future::pending::<()>().await;
    }
}

fn read_tokens(path: &PathBuf) -> Result<Vec<Token>, Trouble> {
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
