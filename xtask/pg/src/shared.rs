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

/// The name of a schema that no other test has, on any machine that uses the same database.
pub fn fresh_schema() -> String {
    format!("everstep_test_{}", unique())
}
