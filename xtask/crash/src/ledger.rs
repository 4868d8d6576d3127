//! The ledger, read: which bodies ran, in which order, and whether they may have.
//!
//! A step is known to be durable from the moment at which a body starts that was made after its
//! result was taken, and from the moment at which its completed entry was read from the store. A
//! start after that is a step that runs again after its completion.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{self, Read, Seek},
    path::Path,
};

use crate::bodies::END;

/// What is counted, and the first example of each thing that must not be.
#[derive(Default)]
pub(crate) struct Ledger {
    /// How far the file was read, in bytes.
    read: u64,
    pub(crate) bodies_run: u64,
    pub(crate) run_again: u64,
    pub(crate) order_differs: u64,
    completed: HashSet<(String, String)>,
    durable: HashSet<(String, String)>,
    digests: HashMap<(String, String), String>,
    /// The steps that were rolled back, by run, in the order in which that began.
    undone: HashMap<String, Vec<String>>,
    /// What was noted, by kind, in the order of the file.
    notes: HashMap<String, Vec<Vec<String>>>,
    /// Bodies that have started and not ended, and the process that each is in.
    open: HashMap<(String, String), String>,
    /// Processes that do not fence themselves.
    unfenced: HashSet<String>,
    /// How many bodies and rollbacks such processes have started again after their completion.
    pub(crate) stale_bodies: u64,
    pub(crate) examples: Vec<String>,
}

impl Ledger {
    pub(crate) fn steps_completed(&self) -> usize {
        self.completed.len()
    }

    /// This process is gone; whether a body was in flight in it, at the end of what was read.
    pub(crate) fn killed(&mut self, process: u32) -> bool {
        let (process, before) = (process.to_string(), self.open.len());
        self.open.retain(|_, own| *own != process);
        self.unfenced.remove(&process);
        self.open.len() < before
    }

    /// Whether a body is in flight in this process, at the end of what was read.
    pub(crate) fn has_open(&self, process: u32) -> bool {
        let process = process.to_string();
        self.open.values().any(|own| *own == process)
    }

    /// This process does not look whether its lease is over, so it may start bodies that others have
    /// completed: only the store keeps what they give from counting.
    pub(crate) fn unfenced(&mut self, process: u32) {
        self.unfenced.insert(process.to_string());
    }

    /// The store has the completed entry of this step.
    pub(crate) fn stored(&mut self, run: &str, at: &str) {
        self.durable.insert((run.to_owned(), at.to_owned()));
    }

    /// The steps of a run that were rolled back, in order.
    pub(crate) fn undone(&self, run: &str) -> &[String] {
        self.undone.get(run).map_or(&[], Vec::as_slice)
    }

    /// The notes of this kind, in order.
    pub(crate) fn notes(&self, kind: &str) -> &[Vec<String>] {
        self.notes.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Notes something beside what the bodies write.
    pub(crate) fn note(&mut self, kind: &str, fields: &[&str]) {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        self.notes.entry(kind.to_owned()).or_default().push(fields);
    }

    /// Reads what was written since the last time: whole lines, since others may be writing.
    pub(crate) fn read_on(&mut self, path: &Path) -> io::Result<()> {
        let mut file = fs::File::open(path)?;
        file.seek(io::SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        text.truncate(end.map_or(0, |end| end + 1));
        let news = String::from_utf8_lossy(&text).into_owned();
        self.read += text.len() as u64;
        // One without its end was torn by the kill of its process, which has done nothing since.
        let whole = news.lines().filter_map(|line| line.strip_suffix(END));
        whole.for_each(|line| self.line(line));
        Ok(())
    }

    fn line(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["S", process, run, at, attempt, kind, digest, steps] => {
                let step = (run.to_owned(), at.to_owned());
                self.started(process, &step, attempt, kind == "firm", digest, steps);
                self.open.insert(step, process.to_owned());
            }
            ["E", process, run, at, _, how] => {
                let step = (run.to_owned(), at.to_owned());
                if self.open.get(&step).is_some_and(|own| own == process) {
                    self.open.remove(&step);
                }
                if how == "ok" {
                    self.completed.insert(step);
                }
            }
            ["U", process, run, at, _] => self.undo_started(process, run, at),
            ["V", ..] => {}
            ["N", kind, ref fields @ ..] => self.note(kind, fields),
            _ => self.example(format!("the ledger has a line that is none: `{line}`")),
        }
    }

    fn started(
        &mut self,
        process: &str,
        step: &(String, String),
        attempt: &str,
        firm: bool,
        digest: &str,
        steps: &str,
    ) {
        self.bodies_run += 1;
        let (run, at) = step;
        if self.durable.contains(step) {
            self.started_again(process, format!(
                "promise 1 is broken: run {run}: `{at}` was started again (attempt {attempt}) after \
                 its completion was durable"
            ));
        }
        let first = self
            .digests
            .entry(step.clone())
            .or_insert_with(|| digest.to_owned());
        if first != digest {
            self.order_differs += 1;
            self.example(format!(
                "promise 6 is broken: run {run}: `{at}` was started with another past than before"
            ));
        }
        if firm {
            let seen = steps.split(' ').filter(|seen| !seen.is_empty());
            let seen = seen.map(|seen| (run.to_owned(), seen.to_owned()));
            self.durable.extend(seen);
        }
    }

    /// Rollbacks run one after another, so the start of one says that those before it are done.
    fn undo_started(&mut self, process: &str, run: &str, at: &str) {
        let undone = self.undone.entry(run.to_owned()).or_default();
        match undone.iter().position(|other| other == at) {
            None => undone.push(at.to_owned()),
            Some(place) if place + 1 == undone.len() => {}
            Some(_) => {
                self.started_again(process, format!(
                    "promise 1 is broken: run {run}: the rollback of `{at}` was started again after \
                     its completion was durable"
                ));
            }
        }
    }

    fn started_again(&mut self, process: &str, what: String) {
        if self.unfenced.contains(process) {
            self.stale_bodies += 1;
            return;
        }
        self.run_again += 1;
        self.example(what);
    }

    /// Keeps the first few.
    pub(crate) fn example(&mut self, what: String) {
        if self.examples.len() < 10 {
            self.examples.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        lines.iter().for_each(|line| ledger.line(line));
        ledger
    }

    #[test]
    fn body_that_runs_again_before_anybody_built_on_it_is_no_violation() {
        let mut ledger = read(&[
            "S\t1\trun\ta\t1\tfirm\t00\t",
            "E\t1\trun\ta\t1\tok",
            "S\t1\trun\ta\t1\tfirm\t00\t",
        ]);
        assert_eq!((ledger.run_again, ledger.bodies_run), (0, 2));
        assert!(!ledger.killed(2));
        assert!(ledger.killed(1));
        assert!(!ledger.killed(1));
    }

    #[test]
    fn body_that_was_dropped_is_not_under_way_any_more() {
        let mut ledger = read(&["S\t1\trun\ta\t1\tfirm\t00\t"]);
        assert!(ledger.has_open(1) && !ledger.has_open(2));
        ledger.line("E\t1\trun\ta\t1\tdropped");
        assert!(!ledger.has_open(1));
        assert_eq!(ledger.steps_completed(), 0);
        assert!(!ledger.killed(1));
    }

    #[test]
    fn body_that_a_process_without_a_fence_of_its_own_starts_again_is_counted_apart() {
        let durable = [
            "S\t1\trun\ta\t1\tfirm\t00\t",
            "S\t1\trun\tb\t1\tfirm\t11\ta",
        ];
        let again = "S\t1\trun\ta\t1\tfirm\t00\t";
        let mut ledger = read(&durable);
        ledger.unfenced(1);
        ledger.line(again);
        assert_eq!((ledger.run_again, ledger.stale_bodies), (0, 1));
        ledger.line(&again.replacen('1', "2", 1));
        assert_eq!((ledger.run_again, ledger.stale_bodies), (1, 1));
    }

    #[test]
    fn line_that_is_not_whole_yet_is_read_later_and_one_that_was_torn_is_not_read() {
        let path = std::env::temp_dir().join(format!("crash-ledger-{}", std::process::id()));
        let mut ledger = Ledger::default();
        fs::write(&path, "\nN\tkind\tone\t;\n\nN\tki").expect("a file can be written");
        ledger.read_on(&path).expect("it can be read");
        assert_eq!(ledger.notes("kind").len(), 1);
        let more = "\nN\tkind\tone\t;\n\nN\tkind\ttwo\t;\n\nN\tkind\tto\nN\tkind\tthree\t;\n";
        fs::write(&path, more).expect("a file can be written");
        ledger.read_on(&path).expect("it can be read");
        assert_eq!(ledger.notes("kind"), [["one"], ["two"], ["three"]]);
        assert!(ledger.examples.is_empty());
        fs::remove_file(&path).expect("the file is there");
    }

    #[test]
    fn body_that_runs_again_after_another_has_built_on_it_is_one() {
        let ledger = read(&[
            "S\t1\trun\ta\t1\tfirm\t00\t",
            "S\t1\trun\tb\t1\tfirm\t11\ta",
            "S\t1\trun\ta\t1\tfirm\t00\t",
        ]);
        assert_eq!(ledger.run_again, 1);
    }

    #[test]
    fn ephemeral_body_says_nothing_about_what_is_durable() {
        let ledger = read(&[
            "S\t1\trun\ta\t1\tephemeral\t00\t",
            "S\t1\trun\tb\t1\tephemeral\t11\ta",
            "S\t1\trun\ta\t1\tephemeral\t00\t",
        ]);
        assert_eq!(ledger.run_again, 0);
    }

    #[test]
    fn another_past_is_found() {
        let ledger = read(&["S\t1\trun\ta\t1\tfirm\t00\t", "S\t1\trun\ta\t1\tfirm\t22\t"]);
        assert_eq!(ledger.order_differs, 1);
    }

    #[test]
    fn rollback_that_runs_again_after_the_next_is_found() {
        let ledger = read(&["U\t1\trun\tb\t1", "U\t1\trun\tb\t1", "U\t1\trun\ta\t1"]);
        assert_eq!(ledger.run_again, 0);
        let ledger = read(&["U\t1\trun\tb\t1", "U\t1\trun\ta\t1", "U\t1\trun\tb\t1"]);
        assert_eq!(ledger.run_again, 1);
    }
}
