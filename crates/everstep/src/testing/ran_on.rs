//! Which tests were made on which store: what `cargo xtask test` counts.
//!
//! A test of ours that was made on a store appends a line to the file that [`STORES_FILE`] names, if
//! it names one: the store, the test program and the test, with tabs between. Lines that are the same
//! count once.

use std::{fs::OpenOptions, io::Write, thread};

/// The variable that names the file.
const STORES_FILE: &str = "EVERSTEP_STORES_TESTED";

/// Notes that the test on this thread was made on a store: `memory`, `SQLite` or `PostgreSQL`.
///
/// # Panics
///
/// If there is a file to note it in, and it cannot be written.
#[doc(hidden)]
pub fn ran_on(store: &str) {
    let Some(path) = std::env::var_os(STORES_FILE) else {
        return;
    };
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // The test harness gives a thread the name of its test.
    let thread = thread::current();
    let line = format!("{store}\t{program}\t{}\n", thread.name().unwrap_or("?"));
    // One write, so that the lines of tests that run at once do not mix.
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("the store of a test cannot be noted in {path:?}: {error}");
    }
}
