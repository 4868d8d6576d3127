//! How many tests were made on each store, and the database for those on PostgreSQL.
//!
//! Tests append lines to a file (see `crates/everstep/src/testing/ran_on.rs`); this reads them once
//! all tests have passed. A store without a test is a failure: a test is never skipped because its
//! store is not there.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use everstep_pg::{DATABASE_URL, Instance};

use crate::Failure;

/// The variable that names the file.
pub(crate) const STORES_FILE: &str = "EVERSTEP_STORES_TESTED";

/// The stores as tests call them, with the feature that they are behind.
const STORES: [(&str, Option<&str>); 3] =
    [("memory", None), ("SQLite", Some("sqlite")), ("PostgreSQL", Some("postgres"))];

/// A database that tests may use.
pub(crate) enum Database {
    /// Somebody has one.
    Given(String),
    /// It is stopped and removed with this.
    Started(Box<Instance>),
}

impl Database {
    /// The one that is given in the environment, or a new one.
    pub(crate) fn find_or_start() -> Result<Self, Failure> {
        if let Ok(url) = env::var(DATABASE_URL)
            && !url.is_empty()
        {
            println!("    PostgreSQL as {DATABASE_URL} says");
            return Ok(Database::Given(url));
        }
        let instance = Instance::start_new().map_err(|error| {
            let why = everstep_pg::shown(&error);
            Failure::Found(format!(
                "there is no PostgreSQL to test on: {why}\n\
                 say in {DATABASE_URL} which database tests may use, if there is one elsewhere"
            ))
        })?;
        println!("    PostgreSQL at {}", instance.url());
        Ok(Database::Started(Box::new(instance)))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Database::Given(url) => url.clone(),
            Database::Started(instance) => instance.url(),
        }
    }
}

/// Makes an empty file for the lines in this directory.
pub(crate) fn begin(directory: &Path) -> Result<PathBuf, Failure> {
    let file = directory.join("stores-tested.tsv");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&file, ""))
        .map_err(|error| Failure::Found(format!("{}: {error}", file.display())))?;
    Ok(file)
}

/// Prints how many tests were made on each store, and fails if there were none on one that the
/// library has a feature for.
pub(crate) fn check(file: &Path, features: &[&str]) -> Result<(), Failure> {
    let lines = fs::read_to_string(file)
        .map_err(|error| Failure::Found(format!("{}: {error}", file.display())))?;
    let counts = counts(&lines)?;
    println!("\ntests on each store");
    for ((store, _), count) in STORES.iter().zip(counts) {
        println!("{store:<18} | {count:>8}");
    }
    match missing(counts, features) {
        None => Ok(()),
        Some(store) => Err(Failure::Found(format!(
            "no test was made on {store}; one that is made on a store says so with \
             `testing::ran_on(\"{store}\")`"
        ))),
    }
}

/// How many different tests, for each of the stores.
fn counts(lines: &str) -> Result<[usize; 3], Failure> {
    let tests: BTreeSet<&str> = lines.lines().collect();
    let mut counts = [0; 3];
    for line in tests {
        let mut parts = line.split('\t');
        let store = parts.next().unwrap_or_default();
        let known = STORES.iter().position(|(name, _)| *name == store);
        let (Some(store), Some(_), Some(_), None) =
            (known, parts.next(), parts.next(), parts.next())
        else {
            let message = format!("`{line}` is not the store and the name of a test");
            return Err(Failure::Found(message));
        };
        counts[store] += 1;
    }
    Ok(counts)
}

fn missing(counts: [usize; 3], features: &[&str]) -> Option<&'static str> {
    let wanted = |feature: &Option<&str>| feature.is_none_or(|name| features.contains(&name));
    let mut stores = STORES.iter().zip(counts);
    let missing = stores.find(|((_, feature), count)| wanted(feature) && *count == 0);
    missing.map(|((store, _), _)| *store)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "memory\tkit-1\ta\nSQLite\tkit-1\ta\nmemory\tkit-1\ta\nmemory\tkit-2\ta\n";

    #[test]
    fn a_test_counts_once_for_each_store() {
        assert_eq!(counts(LINES).unwrap(), [2, 1, 0]);
        assert!(counts("memory\tkit-1").is_err());
        assert!(counts("Oracle\tkit-1\ta").is_err());
    }

    #[test]
    fn a_store_without_a_test_is_missing_if_there_is_a_feature_for_it() {
        assert_eq!(missing([1, 1, 0], &["sqlite", "postgres"]), Some("PostgreSQL"));
        assert_eq!(missing([1, 1, 0], &["sqlite"]), None);
        assert_eq!(missing([1, 0, 1], &["sqlite", "postgres"]), Some("SQLite"));
        assert_eq!(missing([0, 1, 1], &[]), Some("memory"));
        assert_eq!(missing([1, 1, 1], &["sqlite", "postgres"]), None);
    }
}
