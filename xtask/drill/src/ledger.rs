//! The ledger: a file in which every process says what it does, and what can be read from it.
//!
//! Each line is one write at the end of the file, so lines of several processes do not mix, a kill
//! leaves whole lines, and their order is the order in which things happened.
//!
//! Always true of it, or it is noted as a violation:
//! - A body runs in the program of the version that its run was started with.
//! - No body runs once a later one of its run has begun, or its run is known to have ended: by then
//!   its completion was recorded.
//! - Only what a killed process has begun is begun again. (One that has lost its lease to a pause may
//!   repeat what it had begun, too.)

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use everstep::{EngineCounters, RunId, Step};

use crate::{Problem, runner::Maker};

/// The ledger, to be written to.
#[derive(Clone)]
pub struct Ledger(Arc<File>);

impl Ledger {
    /// Opens it, or makes it.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn open(path: &Path) -> io::Result<Ledger> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Ledger(Arc::new(file)))
    }

    fn write(&self, line: &str) -> io::Result<()> {
        (&*self.0).write_all(line.as_bytes())
    }

    /// A body begins.
    pub(crate) fn began(&self, step: &Step, place: u32, maker: &Maker) -> io::Result<()> {
        let (process, run) = (std::process::id(), step.run_id());
        let Maker { program, run: version, started } = maker;
        self.write(&format!("began\t{process}\t{run}\t{place}\t{program}\t{version}\t{started}\n"))
    }

    /// A body ends.
    pub(crate) fn ended(&self, step: &Step, place: u32) -> io::Result<()> {
        let (process, run) = (std::process::id(), step.run_id());
        self.write(&format!("ended\t{process}\t{run}\t{place}\n"))
    }

    /// What the engine of this process has lived through so far.
    pub(crate) fn counters(&self, counters: &EngineCounters) -> io::Result<()> {
        let process = std::process::id();
        let (handed_over, takeovers) = (counters.handed_over, counters.takeovers);
        let (fenced, refused) = (counters.self_fenced, counters.stale_commits_refused);
        self.write(&format!(
            "counters\t{process}\t{handed_over}\t{takeovers}\t{fenced}\t{refused}\n"
        ))
    }

    /// The client has got the result of a run.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finished(&self, run: RunId) -> io::Result<()> {
        self.write(&format!("finished\t{run}\n"))
    }

    /// A process is about to be killed.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn killed(&self, process: u32) -> io::Result<()> {
        self.write(&format!("killed\t{process}\n"))
    }
}

/// What stands in a ledger.
#[derive(Debug, Default)]
pub struct Account {
    /// Bodies that have begun.
    pub bodies: u64,
    /// Bodies that were begun again, after a kill or a lost lease.
    pub repeated: u64,
    /// Bodies in a program that has not the version of their run.
    pub wrong_version: u64,
    /// Bodies that ran although their completion was recorded.
    pub run_again: u64,
    /// Bodies that were begun again although nobody was killed.
    pub repeated_unkilled: u64,
    /// What the engines have counted, of all processes.
    pub counted: Counted,
    /// What was not as it should be, in words.
    pub violations: Vec<String>,
}

/// What engines have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Runs handed over to another pool.
    pub handed_over: u64,
    /// Runners whose shards were taken.
    pub takeovers: u64,
    /// Leases that were over.
    pub self_fenced: u64,
    /// Commits that came too late.
    pub stale_commits_refused: u64,
}

/// A run, as far as the ledger tells.
#[derive(Default)]
struct Seen {
    /// The last place that was begun, and by whom.
    last: Option<(u32, u32)>,
    finished: bool,
}

impl Account {
    /// Reads a ledger.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a line is none of its lines.
    pub fn read(path: &Path) -> Result<Account, Problem> {
        Account::of(&std::fs::read_to_string(path)?)
    }

    fn of(text: &str) -> Result<Account, Problem> {
        let mut account = Account::default();
        let mut runs: BTreeMap<&str, Seen> = BTreeMap::new();
        let mut killed = BTreeSet::new();
        let mut counted: BTreeMap<u32, Counted> = BTreeMap::new();
        for line in text.lines() {
            let bad = || format!("`{line}` is no line of a ledger");
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["began", process, run, place, program, version, started] => {
                    let body = Body {
                        line,
                        process: process.parse()?,
                        place: place.parse()?,
                        versions: [program.parse()?, version.parse()?, started.parse()?],
                    };
                    account.begin(&body, runs.entry(run).or_default(), &killed);
                }
                ["ended", ..] => {}
                ["finished", run] => runs.entry(run).or_default().finished = true,
                ["killed", process] => {
                    killed.insert(process.parse()?);
                }
                ["counters", process, handed_over, takeovers, fenced, refused] => {
                    let counts = Counted {
                        handed_over: handed_over.parse()?,
                        takeovers: takeovers.parse()?,
                        self_fenced: fenced.parse()?,
                        stale_commits_refused: refused.parse()?,
                    };
                    counted.insert(process.parse()?, counts);
                }
                _ => return Err(bad().into()),
            }
        }
        for counts in counted.values() {
            let sum = &mut account.counted;
            sum.handed_over += counts.handed_over;
            sum.takeovers += counts.takeovers;
            sum.self_fenced += counts.self_fenced;
            sum.stale_commits_refused += counts.stale_commits_refused;
        }
        Ok(account)
    }

    fn begin(&mut self, body: &Body<'_>, run: &mut Seen, killed: &BTreeSet<u32>) {
        self.bodies += 1;
        let [program, version, started] = body.versions;
        if program != version || version != started {
            self.wrong_version += 1;
            self.violation("a body ran in the wrong program", body);
        }
        if run.finished || run.last.is_some_and(|(place, _)| place > body.place) {
            self.run_again += 1;
            self.violation("a body ran again after its completion", body);
        } else if let Some((place, process)) = run.last
            && place == body.place
        {
            self.repeated += 1;
            if !killed.contains(&process) {
                self.repeated_unkilled += 1;
                let what = format!("a body of process {process}, which was not killed, ran again");
                self.violation(&what, body);
            }
        }
        run.last = Some((body.place, body.process));
    }

    fn violation(&mut self, what: &str, body: &Body<'_>) {
        let line = body.line.replace('\t', " ");
        self.violations.push(format!("{what}: {line}"));
    }
}

struct Body<'a> {
    line: &'a str,
    process: u32,
    place: u32,
    /// Of the program, of the run, and of its start.
    versions: [u32; 3],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a ledger of these lines says: bodies, repeated, wrong, run again, repeated unkilled.
    #[track_caller]
    fn check(lines: &[&str], expected: [u64; 5]) {
        let text = lines.join("\n").replace(' ', "\t");
        let account = Account::of(&text).unwrap();
        let found = [
            account.bodies,
            account.repeated,
            account.wrong_version,
            account.run_again,
            account.repeated_unkilled,
        ];
        assert_eq!(found, expected, "{:?}", account.violations);
    }

    #[test]
    fn a_body_in_the_wrong_program_is_found() {
        check(&["began 7 a 0 1 1 1", "began 8 b 0 2 2 2"], [2, 0, 0, 0, 0]);
        check(&["began 7 a 0 2 1 1"], [1, 0, 1, 0, 0]);
        check(&["began 7 a 0 2 2 1"], [1, 0, 1, 0, 0]);
    }

    #[test]
    fn a_body_that_ran_after_a_later_one_had_begun_is_found() {
        let lines = ["began 7 a 0 1 1 1", "began 7 a 1 1 1 1", "killed 7"];
        check(&[&lines[..], &["began 8 a 1 1 1 1"]].concat(), [3, 1, 0, 0, 0]);
        check(&[&lines[..], &["began 8 a 0 1 1 1"]].concat(), [3, 0, 0, 1, 0]);
    }

    #[test]
    fn a_body_that_ran_after_the_end_of_its_run_is_found() {
        let lines = ["began 7 a 0 1 1 1", "finished a", "killed 7"];
        check(&[&lines[..], &["began 8 a 0 1 1 1"]].concat(), [2, 0, 0, 1, 0]);
    }

    #[test]
    fn only_what_a_killed_process_has_begun_may_be_begun_again() {
        check(&["began 7 a 0 1 1 1", "killed 9", "began 8 a 0 1 1 1"], [2, 1, 0, 0, 1]);
    }

    #[test]
    fn the_last_counters_of_each_process_are_added_up() {
        let text = "counters 7 1 0 0 0\ncounters 7 3 1 0 0\ncounters 8 2 0 1 5";
        let account = Account::of(&text.replace(' ', "\t")).unwrap();
        let expected =
            Counted { handed_over: 5, takeovers: 1, self_fenced: 1, stale_commits_refused: 5 };
        assert_eq!(account.counted, expected);
        assert!(Account::of("began 1 2").is_err());
    }
}
