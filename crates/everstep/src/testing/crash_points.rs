//! How many crash points were tried, for each primitive and store: what `cargo xtask test` prints.
//!
//! A test of ours that says what it is [`of`](CrashTest::of) is made on every store there is (on
//! PostgreSQL when [`Chosen`] says so, and then nowhere else), and writes a line for each primitive and
//! store into the file that [`POINTS_FILE`] names, if it names one: the primitive, the store, how many
//! points were tried and how many there are, with tabs between.

use std::{fs::OpenOptions, io::Write};

#[cfg(feature = "postgres")]
use super::choice::Choice;
use super::{
    chosen::Chosen,
    crash_everywhere::{CrashReport, CrashTest},
};

/// The variable that names the file.
const POINTS_FILE: &str = "EVERSTEP_CRASH_POINTS";

/// At how many writes a test dies on PostgreSQL, before and after each: a point takes some tenths of a
/// second there.
#[cfg(feature = "postgres")]
const WRITES_ON_POSTGRES: u64 = 8;

/// Where a test was made, as the table calls it.
#[derive(Clone, Copy)]
pub(super) enum Where {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "sqlite")]
    PowerCuts,
    #[cfg(feature = "postgres")]
    Postgres,
}

impl Where {
    fn name(self) -> &'static str {
        match self {
            Where::Memory => "memory",
            #[cfg(feature = "sqlite")]
            Where::Sqlite => "SQLite",
            #[cfg(feature = "sqlite")]
            Where::PowerCuts => "power cuts",
            #[cfg(feature = "postgres")]
            Where::Postgres => "PostgreSQL",
        }
    }

    /// The store below, as the count of tests calls it.
    fn store(self) -> &'static str {
        match self {
            Where::Memory => "memory",
            #[cfg(feature = "sqlite")]
            Where::Sqlite | Where::PowerCuts => "SQLite",
            #[cfg(feature = "postgres")]
            Where::Postgres => "PostgreSQL",
        }
    }
}

impl CrashReport {
    /// Whether there were more points than this.
    ///
    /// In the passes on a file and in a database a test of ours crashes once at a time, and in a
    /// database at some points only. There the question is whether there would be more points than
    /// this with as many crashes as it asks for, at all of them; and what was chosen must have been
    /// tried, but for a few points at the end that a life may not have.
    #[doc(hidden)]
    pub fn has_more_than(&self, points: u64) -> bool {
        if Chosen::from_env() == Chosen::Memory {
            return self.points > points;
        }
        let chosen = self.points + self.unreached;
        let all_chosen = match self.choice {
            None => chosen >= self.possible,
            Some(choice) => chosen >= self.possible.min(2 * choice.most),
        };
        // A few at the end may not be reached.
        let most_reached = self.points > 3 * self.unreached;
        all_chosen && most_reached && self.possible.saturating_pow(self.crashes) > points
    }
}

impl CrashTest {
    /// What this is a test of, for the count of crash points. Such a test is made in memory and
    /// then, with one crash at a time, on a file; on PostgreSQL when the tests are made there.
    #[doc(hidden)]
    pub fn of(mut self, primitives: &'static [&'static str]) -> CrashTest {
        self.primitives = primitives;
        self
    }

    /// Makes the test on the stores that it is for; gives the report of the first.
    pub(super) async fn on_each_store(self) -> CrashReport {
        let crashes = self.crashes as u32;
        let report = self.on_chosen().reported().await;
        CrashReport { crashes, ..report }
    }

    async fn reported(self) -> CrashReport {
        let test = self;
        #[cfg(feature = "sqlite")]
        if test.power_cuts {
            let report = super::power_cut::report(&test).await;
            return test.noted(Where::PowerCuts, report);
        }
        let report = test.report_of_writes().await;
        #[cfg(feature = "sqlite")]
        if test.on_file {
            return test.noted(Where::Sqlite, report);
        }
        #[cfg(feature = "postgres")]
        if test.on_postgres.is_some() {
            return test.noted(Where::Postgres, report);
        }
        let report = test.noted(Where::Memory, report);
        #[cfg(feature = "sqlite")]
        if !test.primitives.is_empty() && report.differences.is_empty() {
            return test.also_on_file(report).await;
        }
        report
    }

    /// On the store that tests are made on, unless this one has said where it is made.
    fn on_chosen(self) -> CrashTest {
        #[cfg(feature = "sqlite")]
        if self.power_cuts || self.on_file {
            return self;
        }
        match Chosen::from_env() {
            Chosen::Memory => self,
            #[cfg(feature = "sqlite")]
            Chosen::Sqlite => self.on_file().crashes(1),
            #[cfg(feature = "postgres")]
            Chosen::Postgres(url) => {
                let mut test = self.on_postgres(url).crashes(1);
                test.choice = Some(Choice::at_most(WRITES_ON_POSTGRES));
                test
            }
        }
    }

    #[cfg(feature = "sqlite")]
    async fn also_on_file(mut self, in_memory: CrashReport) -> CrashReport {
        (self.on_file, self.crashes) = (true, 1);
        let on_file = self.report_of_writes().await;
        let mut on_file = self.noted(Where::Sqlite, on_file);
        for difference in &mut on_file.differences {
            difference.at = format!("on a file, {}", difference.at);
        }
        CrashReport { differences: on_file.differences, ..in_memory }
    }

    fn noted(&self, stores: Where, report: CrashReport) -> CrashReport {
        super::ran_on(stores.store());
        if let Some(path) = std::env::var_os(POINTS_FILE) {
            let (store, tried) = (stores.name(), report.points);
            let all = match report.choice {
                Some(_) => report.possible.max(tried),
                None => tried,
            };
            let lines: String = self
                .primitives
                .iter()
                .map(|primitive| format!("{primitive}\t{store}\t{tried}\t{all}\n"))
                .collect();
            // One write, so that the lines of test programs that run at once do not mix.
            let written = OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .and_then(|mut file| file.write_all(lines.as_bytes()));
            if let Err(error) = written {
                panic!("the crash points cannot be noted in {path:?}: {error}");
            }
        }
        report
    }
}
