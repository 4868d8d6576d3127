//! The format of a store: which tables it has, and whether this program can use them.
//!
//! A SQL store keeps its format in `everstep_format`, a table with one row: the version, and the
//! fingerprint of the statements that lead from nothing to that version. A released version never
//! changes, so neither does its fingerprint. Format 1 is not released yet and may change in place: a
//! store that was made with other statements is refused, because nothing leads from one unreleased
//! schema to the next.

use sha2::{Digest, Sha256};

use crate::store::{Cause, StoreError};

/// The format that a store was found to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) version: u32,
    pub(crate) fingerprint: String,
}

/// The statements that lead from each format to the next. The first one makes format 1 in an empty
/// store. Released statements are never changed, only added to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats<'a>(pub(crate) &'a [&'a str]);

impl Formats<'_> {
    /// The version that the last statements lead to.
    pub(crate) const fn latest(&self) -> u32 {
        self.0.len() as u32
    }

    /// The first 16 hexadecimal digits of a hash over all statements up to `version`. Comments and
    /// white space do not count.
    pub(crate) fn fingerprint(&self, version: u32) -> String {
        let mut hash = Sha256::new();
        for statements in self.0.iter().take(version as usize) {
            for line in statements.lines() {
                let code = line.split("--").next().unwrap_or_default();
                for word in code.split_whitespace() {
                    hash.update(word);
                    hash.update(b" ");
                }
            }
            hash.update(b"\0");
        }
        let digest = hash.finalize();
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The version of a store, or why this program cannot use it: 0 if nothing was found.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooNew`] if a later program has written it, [`StoreError::OtherSchema`] if its
    /// tables were made with other statements.
    pub(crate) fn check(&self, found: Option<Found>, store: &str) -> Result<u32, StoreError> {
        let Some(Found { version, fingerprint }) = found else {
            return Ok(0);
        };
        if version > self.latest() {
            return Err(StoreError::TooNew {
                store: store.to_owned(),
                found: version,
                known: self.latest(),
            });
        }
        let known = self.fingerprint(version);
        if fingerprint != known {
            return Err(StoreError::OtherSchema {
                store: store.to_owned(),
                found: fingerprint,
                known,
            });
        }
        Ok(version)
    }

    /// Refuses a store that must be migrated first.
    ///
    /// # Errors
    ///
    /// [`StoreError::CannotOpen`] if `version` is not the latest one.
    pub(crate) fn require_latest(&self, version: u32, store: &str) -> Result<(), StoreError> {
        let latest = self.latest();
        let source: Cause = match version {
            _ if version == latest => return Ok(()),
            0 => "it has no tables of everstep; start an engine on it, or migrate it, first".into(),
            old => format!("it has format {old} and must be migrated to {latest} first").into(),
        };
        let store = store.to_owned();
        Err(StoreError::CannotOpen { store, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "CREATE TABLE a (b INTEGER);";
    const TWO: &str = "ALTER TABLE a ADD COLUMN c INTEGER;";

    fn found(version: u32, fingerprint: &str) -> Option<Found> {
        let fingerprint = fingerprint.to_owned();
        Some(Found { version, fingerprint })
    }

    #[test]
    fn comments_and_white_space_do_not_change_a_fingerprint() {
        let other = "-- A table.\nCREATE  TABLE a (b\n INTEGER); -- the end";
        let [a, b] = [ONE, other].map(|sql| Formats(&[sql]).fingerprint(1));
        assert_eq!(a, b);
        assert_eq!(a.len(), 16);
    }

    #[test]
    fn other_statements_have_another_fingerprint() {
        let formats = Formats(&[ONE, TWO]);
        assert_ne!(formats.fingerprint(1), formats.fingerprint(2));
        assert_ne!(formats.fingerprint(1), Formats(&[TWO]).fingerprint(1));
        // The version that a statement belongs to counts, too.
        let joined = format!("{ONE}\n{TWO}");
        assert_ne!(formats.fingerprint(2), Formats(&[&joined]).fingerprint(1));
    }

    #[test]
    fn a_store_is_used_only_with_the_statements_that_made_it() {
        let formats = Formats(&[ONE, TWO]);
        let known = formats.fingerprint(1);
        assert_eq!(formats.check(None, "s").expect("nothing"), 0);
        assert_eq!(formats.check(found(1, &known), "s").expect("format 1"), 1);
        let error = formats.check(found(2, &known), "SQLite file `a.db`");
        let error = error.expect_err("made with other statements").to_string();
        assert!(error.contains(&known) && error.contains("a.db"), "{error}");
        let error = formats.check(found(3, &known), "s").expect_err("too new");
        assert!(matches!(error, StoreError::TooNew { found: 3, known: 2, .. }));
    }
}
