//! Shows that the simulated store does not lie: what a life has done to it is done to a SQLite file and to
//! a PostgreSQL schema, too, and all answers and tables are compared.
//!
//! It is done after the life, outside of the simulation: real stores have threads and sockets.

use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::OnceLock,
};

use everstep::{
    store::{MemoryStore, Store},
    testing::internal,
};
use everstep_conformance::{Change, compare_changes};

use crate::oracle::{Promise, Violation};

/// After how many changes everything that can be read is compared.
const READ_EVERY: usize = 50;

/// How often a comparison is made that had to wait too long for PostgreSQL: on a loaded machine that
/// happens, and says nothing about answers. Every other error counts.
const TRIES: usize = 5;

/// The words of the PostgreSQL store about such a wait: for a connection, and for an answer.
const TOO_LATE: [&str; 2] = ["no connection within", "no answer after"];

fn is_too_late(text: &str) -> bool {
    TOO_LATE.iter().any(|words| text.contains(words))
}

/// What differs between the stores after these changes.
pub(crate) fn compare(changes: &[Change]) -> Option<Violation> {
    let differs = repeated(|| match on_all(changes) {
        Ok(compared) => compared,
        Err(error) => Err(format!("there are no stores to compare: {error:?}")),
    });
    differs.err().map(|what| Violation { promise: Promise::StoresAgree, what })
}

/// Makes a comparison as a whole until PostgreSQL was never too late in it, or it was tried too often. A
/// read that fails panics, so that may be said by a panic, too.
fn repeated(compare: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let mut differs = String::new();
    for _ in 0..TRIES {
        differs = match catch_unwind(AssertUnwindSafe(&compare)) {
            Ok(compared) => match compared {
                Ok(()) => return Ok(()),
                Err(differs) => differs,
            },
            Err(panic) => match panic.downcast::<String>() {
                Ok(text) if is_too_late(&text) => *text,
                Ok(text) => resume_unwind(text),
                Err(panic) => resume_unwind(panic),
            },
        };
        if !is_too_late(&differs) {
            break;
        }
    }
    Err(differs)
}

/// The database that stores are compared in: one for this process and all that it starts.
pub(crate) fn database_url() -> Result<&'static str, Box<dyn Error>> {
    static URL: OnceLock<String> = OnceLock::new();
    if let Some(url) = URL.get() {
        return Ok(url);
    }
    let url = everstep_pg::database_url()?;
    Ok(URL.get_or_init(|| url))
}

fn on_all(changes: &[Change]) -> Result<Result<(), String>, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = internal::unsynced_sqlite(&directory.path().join("life.db"))?;
    let database = internal::lent_postgres(database_url()?)?;
    let memory = MemoryStore::new();
    let stores: [(&str, &dyn Store); 3] =
        [("memory", &memory), ("SQLite", &file), ("PostgreSQL", &database)];
    Ok(compare_changes(&stores, changes, READ_EVERY))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What becomes of a comparison whose first tries end like this, and how often it is tried.
    fn tried(fails: impl Fn(usize) -> Result<(), String>) -> (Option<Result<(), String>>, usize) {
        let tries = Cell::new(0);
        let repeated = || {
            repeated(|| {
                tries.set(tries.get() + 1);
                fails(tries.get())
            })
        };
        (catch_unwind(AssertUnwindSafe(repeated)).ok(), tries.get())
    }

    #[test]
    fn a_comparison_for_which_postgres_is_too_late_is_repeated_and_no_other() {
        let missing = || "load: no connection within 5s".to_owned();
        // Seen on a machine with twenty builds under way: PostgreSQL had not answered after a second, and
        // that was taken for a difference between the stores.
        for late in [missing(), "PostgreSQL fails: no answer after 1.0 s".to_owned()] {
            let second = |no| if no == 1 { Err(late.clone()) } else { Ok(()) };
            assert_eq!(tried(second), (Some(Ok(())), 2));
        }
        let panics_first = |no| if no == 1 { panic!("{}", missing()) } else { Ok(()) };
        assert_eq!(tried(panics_first), (Some(Ok(())), 2));
        assert_eq!(tried(|_| panic!("{}", missing())), (Some(Err(missing())), TRIES));
        assert_eq!(tried(|_| Err("differs".to_owned())), (Some(Err("differs".to_owned())), 1));
        assert_eq!(tried(|no| panic!("another mistake, the {no}.")), (None, 1));
        assert_eq!(tried(|_| panic!("another mistake")), (None, 1));
    }
}
