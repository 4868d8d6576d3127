//! Tokens: the right to settle one deferred of one run, as text that cannot be guessed.
//!
//! A token is made without a write, and is the same on every replay: it follows from the secret of
//! the store, the run, its generation and the location of the deferred. Whoever has the store can
//! tell a token of its own from any other text, without knowing the location.
//!
//! ```text
//! tag    the first 16 bytes of HMAC-SHA256(secret, "everstep deferred" ‖ run ‖ key)
//! seal   the first 8 bytes of HMAC-SHA256(secret, "everstep token" ‖ all before it)
//! token  base64url of: version u8 = 1 ‖ run 16 bytes ‖ generation u32 (big endian) ‖ tag ‖ seal
//! ```
//!
//! Always true: neither a secret nor a token is ever printed by `Debug`, in an error or in a log.

use std::fmt;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::run_id::RunId;

/// What tokens are made with. Every store has one of its own, made once and kept for good.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

/// The right to resolve or reject one deferred of one run: hand it to whoever may do so.
///
/// It is text of letters, digits, `-` and `_` ([`as_str`](Token::as_str)), and can be a part of any
/// payload. It is a secret: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

/// Which deferred of a run is meant, without saying where it is.
pub(crate) type Tag = [u8; 16];

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) tag: Tag,
}

/// Why a text is no token of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenProblem {
    /// It does not look like a token.
    Malformed,
    /// It looks like one, but this store has not made it.
    Foreign,
}

const VERSION: u8 = 1;
const SEAL: usize = 8;
/// The length before the seal.
const SEALED: usize = 1 + 16 + 4 + 16;

impl Secret {
    /// The secret with these bytes, which must be random.
    pub const fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// A secret for a store that lives no longer than its process.
    pub fn of_this_process() -> Secret {
        let mut bytes = [0; 32];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&crate::seam::random().to_le_bytes());
        }
        Secret(bytes)
    }

    fn mac(&self, purpose: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of HMAC may have any length");
        mac.update(purpose.as_bytes());
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Which deferred of this run stands at this key.
    pub(crate) fn tag(&self, run: RunId, key: &[u8]) -> Tag {
        let mac = self.mac("everstep deferred", &[run.as_uuid().as_bytes(), key]);
        first(&mac.finalize().into_bytes())
    }

    /// The token that says this.
    pub(crate) fn token(&self, claims: &Claims) -> Token {
        let mut bytes = Vec::with_capacity(SEALED + SEAL);
        bytes.push(VERSION);
        bytes.extend_from_slice(claims.run.as_uuid().as_bytes());
        bytes.extend_from_slice(&claims.generation.to_be_bytes());
        bytes.extend_from_slice(&claims.tag);
        let seal = self.mac("everstep token", &[&bytes]).finalize();
        bytes.extend_from_slice(&first::<SEAL>(&seal.into_bytes()));
        Token(to_base64(&bytes))
    }

    /// What this token says, if it was made with this secret.
    pub(crate) fn read(&self, token: &str) -> Result<Claims, TokenProblem> {
        let bytes = from_base64(token.trim()).ok_or(TokenProblem::Malformed)?;
        if bytes.len() != SEALED + SEAL || bytes[0] != VERSION {
            return Err(TokenProblem::Malformed);
        }
        let (sealed, seal) = bytes.split_at(SEALED);
        // Takes as long for any seal, so that one cannot be found byte by byte.
        self.mac("everstep token", &[sealed])
            .verify_truncated_left(seal)
            .map_err(|_| TokenProblem::Foreign)?;
        let run = RunId::from_uuid(Uuid::from_bytes(first(&sealed[1..])));
        Ok(Claims {
            run: run.ok_or(TokenProblem::Foreign)?,
            generation: u32::from_be_bytes(first(&sealed[17..])),
            tag: first(&sealed[21..]),
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Token {
    /// The token of a deferred that could not be made: nobody takes it.
    pub(crate) fn none() -> Token {
        Token(String::new())
    }

    /// The text, to be handed on.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, to be handed on.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl AsRef<str> for Token {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(text: String) -> Token {
        Token(text)
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Token {
        Token(text.to_owned())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The first bytes, of which there are enough.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Base64 with the alphabet for URLs. A token has a multiple of three bytes, so nothing is padded.
fn to_base64(bytes: &[u8]) -> String {
    debug_assert_eq!(bytes.len() % 3, 0, "nothing is padded");
    let letter = |bits: u32| char::from(ALPHABET[(bits & 63) as usize]);
    let mut text = String::with_capacity(bytes.len() / 3 * 4);
    for three in bytes.chunks_exact(3) {
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        text.extend([18, 12, 6, 0].map(|shift| letter(bits >> shift)));
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks_exact(4) {
        let mut bits = 0;
        for letter in four {
            let value = ALPHABET.iter().position(|other| other == letter)?;
            bits = bits << 6 | value as u32;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret::new([7; 32]);

    fn claims() -> Claims {
        let run = "019b7000-0000-7000-8000-000000000001".parse().expect("an id");
        let tag = SECRET.tag(run, &[0x15, 2, 2, b'g', 0]);
        Claims { run, generation: 3, tag }
    }

    #[test]
    fn tokens_never_change() {
        let token = SECRET.token(&claims());
        assert_eq!(token.as_str(), "AQGbcAAAAHAAgAAAAAAAAAEAAAADvjiFrzNH4vpbpY5eUyH-9l8kTNglQPXY");
        assert_eq!(SECRET.read(token.as_str()), Ok(claims()));
    }

    #[test]
    fn a_token_with_one_changed_letter_is_none() {
        let token = SECRET.token(&claims()).into_string();
        for at in 0..token.len() {
            for letter in ALPHABET.iter().copied().chain(*b"+/= ") {
                let mut changed = token.clone().into_bytes();
                if std::mem::replace(&mut changed[at], letter) == letter {
                    continue;
                }
                let changed = String::from_utf8(changed).expect("letters");
                assert!(SECRET.read(&changed).is_err(), "{changed}");
            }
        }
    }

    #[test]
    fn a_token_is_told_from_other_text_and_from_that_of_another_store() {
        let other = Secret::new([8; 32]).token(&claims());
        assert_eq!(SECRET.read(other.as_str()), Err(TokenProblem::Foreign));
        for text in ["", "AAAA", "no token", "ä", &"A".repeat(60), &"_".repeat(64)] {
            assert_eq!(SECRET.read(text), Err(TokenProblem::Malformed), "{text}");
        }
    }

    #[test]
    fn other_runs_and_places_have_other_tags() {
        let other = "019b7000-0000-7000-8000-000000000002".parse().expect("an id");
        let tag = claims().tag;
        assert_ne!(SECRET.tag(other, &[0x15, 2, 2, b'g', 0]), tag);
        assert_ne!(SECRET.tag(claims().run, &[0x15, 2, 2, b'h', 0]), tag);
        assert_ne!(Secret::new([8; 32]).tag(claims().run, &[0x15, 2, 2, b'g', 0]), tag);
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = SECRET.token(&claims());
        assert_eq!(format!("{token:?} {SECRET:?}"), "Token(..) Secret(..)");
    }
}
