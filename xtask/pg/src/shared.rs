//! What a test connects to: one server for each test process, one schema for each test.

use std::{env, sync::OnceLock};

use crate::{Error, Instance, directory::unique, error::shown};

/// The variable that names a database for tests, for when there is one already.
/// `cargo xtask test` sets it to that of an instance it has started.
pub const DATABASE_URL: &str = "EVERSTEP_TEST_DATABASE_URL";

/// The database for the tests of this process: the one that [`DATABASE_URL`] names, or else that
/// of an instance that is started now and ends with the process.
///
/// # Errors
///
/// If there is no PostgreSQL and none may be installed. A test fails then; it is not skipped.
pub fn database_url() -> Result<String, Error> {
    if let Ok(url) = env::var(DATABASE_URL)
        && !url.is_empty()
    {
        return Ok(url);
    }
    // It is never dropped; the process that watches over it stops and removes it.
    static INSTANCE: OnceLock<Result<Instance, String>> = OnceLock::new();
    match INSTANCE.get_or_init(|| Instance::start_new().map_err(|error| shown(&error))) {
        Ok(instance) => Ok(instance.url()),
        Err(error) => Err(Error::failed(
            format!("{error}\nor say in {DATABASE_URL} which database tests may use"),
            "",
        )),
    }
}

/// The URL of a schema of a test's own in [`database_url`], as Everstep's URLs name one. The schema is
/// made by whoever opens it.
///
/// # Errors
///
/// As for [`database_url`].
pub fn fresh_url() -> Result<String, Error> {
    Ok(with_schema(&database_url()?, &fresh_schema()))
}

fn with_schema(url: &str, schema: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}schema={schema}")
}

/// The name of a schema that no other test has, on any machine that uses the same database.
pub fn fresh_schema() -> String {
    format!("everstep_test_{}", unique())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_is_added_to_what_a_url_says_already() {
        assert_eq!(with_schema("postgres://a/b", "s"), "postgres://a/b?schema=s");
        let with_mode = with_schema("postgres://a/b?sslmode=require", "s");
        assert_eq!(with_mode, "postgres://a/b?sslmode=require&schema=s");
    }

    #[test]
    fn schemas_differ() {
        assert_ne!(fresh_schema(), fresh_schema());
    }
}
