//! The tokens of the HTTP API: who may use it.
//!
//! Always true: the store has only hashes. What was handed out is shown once, by
//! [`Tokens::create`], and never printed by `Debug`, in an error or in a log.

use std::{fmt, time::Duration};

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Client, ClientError, named};
use crate::{
    store::{ApiTokenRow, Role},
    time::Timestamp,
};

/// What a token begins with, so that people and scanners for secrets know it when they see one.
const PREFIX: &str = "evs_";

/// A use is noted if the last one that was noted is this long ago: a request costs no write.
const USE_NOTED_AFTER: Duration = Duration::from_secs(60);

impl Client {
    /// The tokens of the HTTP API of this store.
    ///
    /// ```
    /// # use everstep::{Role, prelude::*};
    /// # async fn show(client: Client) -> Result<(), everstep::ClientError> {
    /// let (token, secret) = client.tokens().create("dashboard", Role::Operate).await?;
    /// println!("{} may {}: {}", token.name, token.role, secret.as_str());
    /// # Ok(()) }
    /// ```
    pub fn tokens(&self) -> Tokens {
        Tokens { client: self.clone() }
    }
}

/// The tokens of the HTTP API: see [`Client::tokens`].
#[derive(Clone)]
pub struct Tokens {
    client: Client,
}

/// A token, for people: everything but what was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenInfo {
    /// Its name.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to within a minute or so.
    pub last_used_at: Option<Timestamp>,
}

/// A token as it is handed out: 256 random bits as text. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// The text, to be shown once.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, to be shown once.
    pub fn into_string(self) -> String {
        self.0
    }

    /// A new one.
    fn draw() -> Result<TokenSecret, ClientError> {
        let mut bytes = [0; 32];
        crate::seam::fill_random(&mut bytes).map_err(|error| ClientError::Encode {
            what: "a token".to_owned(),
            problem: format!("the system gives no random numbers: {error}"),
        })?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(TokenSecret(format!("{PREFIX}{digits}")))
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

impl Tokens {
    /// Makes a token with this name. What is to be handed out comes back beside it, and cannot be
    /// had again.
    ///
    /// # Errors
    ///
    /// [`ClientError::TokenTaken`] if there is one of this name, [`ClientError::Name`] if it cannot
    /// be a name.
    pub async fn create(
        &self,
        name: impl Into<String>,
        role: Role,
    ) -> Result<(TokenInfo, TokenSecret), ClientError> {
        let name = name.into();
        named("the token's name", &name)?;
        let secret = TokenSecret::draw()?;
        let row = ApiTokenRow {
            name: name.clone(),
            role,
            hash: hash(secret.as_str()),
            created_at: self.client.shared.now(),
            last_used_at: None,
        };
        let info = TokenInfo::new(&row);
        let added = self.client.read(move |store| store.add_api_token(&row));
        match added.await? {
            true => Ok((info, secret)),
            false => Err(ClientError::TokenTaken { name }),
        }
    }

    /// All tokens, by name.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn list(&self) -> Result<Vec<TokenInfo>, ClientError> {
        let rows = self.client.read(|store| store.api_tokens()).await?;
        Ok(rows.iter().map(TokenInfo::new).collect())
    }

    /// From now on this token allows nothing; `false` if there is none of this name.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn revoke(&self, name: impl Into<String>) -> Result<bool, ClientError> {
        let name = name.into();
        let removed = self.client.read(move |store| store.remove_api_token(&name));
        removed.await
    }

    /// The token that was handed out as this text; none if there is no such token, or no more. Takes
    /// as long for any text, so that one cannot be found letter by letter.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn check(&self, secret: &str) -> Result<Option<TokenInfo>, ClientError> {
        let given = hash(secret);
        let rows = self.client.read(|store| store.api_tokens()).await?;
        let Some(mut info) = find(&rows, &given).map(TokenInfo::new) else {
            return Ok(None);
        };
        let now = self.client.shared.now();
        if info.last_used_at.is_none_or(|at| now.since(at) >= USE_NOTED_AFTER) {
            let name = info.name.clone();
            let noted = self.client.read(move |store| store.note_api_token_used(&name, now));
            match noted.await {
                Ok(()) => info.last_used_at = Some(now),
                // Whoever has the token may go on: this is for people to look at.
                Err(error) => {
                    tracing::debug!(%error, token = info.name, "its use cannot be noted");
                }
            }
        }
        Ok(Some(info))
    }
}

impl TokenInfo {
    fn new(row: &ApiTokenRow) -> TokenInfo {
        TokenInfo {
            name: row.name.clone(),
            role: row.role,
            created_at: row.created_at,
            last_used_at: row.last_used_at,
        }
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// The row with this hash. Every row is compared as a whole, whichever it is.
fn find<'a>(rows: &'a [ApiTokenRow], given: &[u8; 32]) -> Option<&'a ApiTokenRow> {
    let mut place = u64::MAX;
    for (no, row) in rows.iter().enumerate() {
        let is_it = row.hash.ct_eq(given);
        place.conditional_assign(&(no as u64), is_it);
    }
    usize::try_from(place).ok().and_then(|no| rows.get(no))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_whose_hash_it_is_is_found_and_no_other() {
        let row = |name: &str| ApiTokenRow {
            name: name.to_owned(),
            role: Role::Read,
            hash: hash(name),
            created_at: Timestamp::from_millis(0),
            last_used_at: None,
        };
        let rows = [row("a"), row("b"), row("c")];
        let found = |given: &str| find(&rows, &hash(given)).map(|row| row.name.as_str());
        assert_eq!(
            [found("a"), found("b"), found("c"), found("d")],
            [Some("a"), Some("b"), Some("c"), None]
        );
        assert!(find(&[], &hash("a")).is_none());
    }

    #[test]
    fn a_secret_has_256_bits_and_is_not_printed() {
        let one = TokenSecret::draw().expect("random numbers");
        let other = TokenSecret::draw().expect("random numbers");
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), PREFIX.len() + 64);
        assert_eq!(format!("{one:?}"), "TokenSecret(..)");
    }
}
