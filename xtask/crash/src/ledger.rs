//! The ledger, read: which bodies ran, in which order, and whether they may have.
//!
//! A step is known to be durable from the moment at which a body starts that was made after its
//! result was taken, and from the moment at which its completed entry was read from the store. A
//! start after that is a step that runs again after its completion.
//!
//! A run has moved on when a body has started in a later life of it. A start in an earlier life is one
//! by an owner that has lost the run. A process that does not fence itself may begin a life of a run that
//! it has lost, while the owner goes on in an earlier one; such a life is a later one only when the
//! store has accepted its results.
//!
//! One such start cannot be prevented: a process that is stopped between the check of its lease and
//! the first instruction of the body does the latter when it goes on. So the first line that a thread
//! writes after its process went on may be such a start; it is counted apart
//! ([`frozen_starts`](Ledger::frozen_starts)). A second one by the same thread is a violation, and so
//! is one after any other line: slow code and slow bodies write lines all the time.

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
    pub(crate) after_lease: u64,
    pub(crate) frozen_starts: u64,
    completed: HashSet<(String, String)>,
    durable: HashSet<(String, String)>,
    digests: HashMap<(String, String), String>,
    lives: HashMap<String, Lives>,
    /// The steps that were rolled back, by run, in the order in which that began.
    undone: HashMap<String, Vec<String>>,
    /// What was noted, by kind, in the order of the file.
    notes: HashMap<String, Vec<Vec<String>>>,
    /// Bodies that have started and not ended, and the process that each is in.
    open: HashMap<(String, String), String>,
    /// The bodies that have ended well, in order: the process, the run and the step.
    ended: Vec<Ended>,
    /// Processes that do not fence themselves.
    unfenced: HashSet<String>,
    /// Processes that went on after a stop, and the threads of each that have written since.
    went_on: HashMap<String, HashSet<String>>,
    /// How many bodies and rollbacks processes without a fence of their own have started again after
    /// their completion, or after the run had moved on.
    pub(crate) stale_bodies: u64,
    pub(crate) examples: Vec<String>,
}

/// A body that has ended well.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) process: u32,
    pub(crate) run: String,
    pub(crate) at: String,
}

/// The lives of one generation of a run.
#[derive(Default)]
struct Lives {
    /// In the order in which they began.
    numbers: Vec<String>,
    /// The last of them in which a body has started, and the process that it was in.
    moved_on: Option<(usize, String)>,
    /// The past in which each body started.
    starts: Vec<Start>,
    /// The pasts of the last life that came to its end.
    pasts: Option<(usize, HashSet<String>)>,
}

struct Start {
    life: usize,
    at: String,
    past: String,
    firm: bool,
}

impl Lives {
    /// The number of a life that is not known is later than all others.
    fn index(&mut self, life: &str) -> usize {
        match self.numbers.iter().position(|known| known == life) {
            Some(index) => index,
            None => {
                self.numbers.push(life.to_owned());
                self.numbers.len() - 1
            }
        }
    }

    /// Whether a body of this life starts although a later one has started a body. The start of a
    /// process that does not fence itself counts only if its life owns the run for certain.
    fn start(&mut self, start: &Started<'_>, is_unfenced: bool) -> bool {
        let life = self.index(start.life);
        let is_late = self.moved_on.as_ref().is_some_and(|(last, _)| *last > life);
        if !is_late && (!is_unfenced || self.has_committed(life, start.steps)) {
            self.moved_on = Some((life, start.process.to_owned()));
        }
        let (at, past) = (start.at.to_owned(), start.past.to_owned());
        self.starts.push(Start { life, at, past, firm: start.firm });
        is_late
    }

    /// Whether the store has accepted a commit of this life: one of the results that its code has taken
    /// is of a body that this life has started. The result of an ephemeral step says nothing, since the
    /// code takes it without a commit.
    fn has_committed(&self, life: usize, steps: &str) -> bool {
        let mut own = self.starts.iter().filter(|it| it.life == life && it.firm);
        own.any(|it| steps.split(' ').any(|step| step == it.at))
    }

    fn end(&mut self, life: &str, pasts: &str) {
        let index = self.index(life);
        if self.pasts.as_ref().is_none_or(|(last, _)| *last <= index) {
            let pasts = pasts.split(' ').map(str::to_owned);
            self.pasts = Some((index, pasts.collect()));
        }
    }
}

/// A line of the ledger that says that a body starts.
struct Started<'a> {
    process: &'a str,
    run: &'a str,
    life: &'a str,
    at: &'a str,
    attempt: &'a str,
    firm: bool,
    digest: &'a str,
    past: &'a str,
    steps: &'a str,
    /// Nothing else was written by its thread since its process went on.
    is_first: bool,
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
        self.went_on.remove(&process);
        self.open.len() < before
    }

    /// This process was stopped, everything that it wrote was read, and it is about to go on.
    pub(crate) fn goes_on(&mut self, process: u32) {
        self.went_on.insert(process.to_string(), HashSet::new());
    }

    /// Whether a body is in flight in this process, at the end of what was read.
    pub(crate) fn has_open(&self, process: u32) -> bool {
        let process = process.to_string();
        self.open.values().any(|own| *own == process)
    }

    /// Whether a process other than this one was the last to start a body of a run.
    pub(crate) fn has_moved_on(&self, run: &str, process: u32) -> bool {
        let moved_on = self.lives.get(run).and_then(|it| it.moved_on.as_ref());
        moved_on.is_some_and(|(_, by)| *by != process.to_string())
    }

    /// The bodies that have ended well, in order.
    pub(crate) fn ended(&self) -> &[Ended] {
        &self.ended
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

    /// How many bodies started in a past that is not one of the code's last life: it was lost with a
    /// process. Names the first few. Asked for runs whose code has come to its end.
    pub(crate) fn started_on_lost_state(&self) -> (u64, Vec<String>) {
        let (mut count, mut examples) = (0, Vec::new());
        for (run, lives) in &self.lives {
            let Some((_, pasts)) = &lives.pasts else {
                continue;
            };
            for Start { at, .. } in lives.starts.iter().filter(|it| !pasts.contains(&it.past)) {
                count += 1;
                if examples.len() < 5 {
                    examples.push(format!(
                        "promise 1 is broken: run {run}: `{at}` started in a state that was lost: \
                         what the code had taken by then was not durable"
                    ));
                }
            }
        }
        (count, examples)
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
        let [kind, process, thread, ref fields @ ..] = fields[..] else {
            return self.example(format!("the ledger has a line that is none: `{line}`"));
        };
        let went_on = self.went_on.get_mut(process);
        let is_first = went_on.is_some_and(|threads| threads.insert(thread.to_owned()));
        match (kind, fields) {
            ("S", &[run, life, at, attempt, kind, digest, past, steps]) => {
                self.started(&Started {
                    process,
                    run,
                    life,
                    at,
                    attempt,
                    firm: kind == "firm",
                    digest,
                    past,
                    steps,
                    is_first,
                });
                let step = (run.to_owned(), at.to_owned());
                self.open.insert(step, process.to_owned());
            }
            ("E", &[run, at, _, how]) => {
                let step = (run.to_owned(), at.to_owned());
                if self.open.get(&step).is_some_and(|own| own == process) {
                    self.open.remove(&step);
                }
                if how == "ok" {
                    self.ended.push(Ended {
                        process: process.parse().unwrap_or_default(),
                        run: run.to_owned(),
                        at: at.to_owned(),
                    });
                    self.completed.insert(step);
                }
            }
            ("L", &[run, life]) => {
                _ = self.lives.entry(run.to_owned()).or_default().index(life);
            }
            ("F", &[run, life, pasts]) => {
                let lives = self.lives.entry(run.to_owned()).or_default();
                lives.end(life, pasts);
            }
            ("U", &[run, at, _]) => self.undo_started(process, is_first, run, at),
            ("V", _) => {}
            ("N", [kind, fields @ ..]) => self.note(kind, fields),
            _ => self.example(format!("the ledger has a line that is none: `{line}`")),
        }
    }

    fn started(&mut self, start: &Started<'_>) {
        self.bodies_run += 1;
        let Started { process, run, at, attempt, is_first, .. } = *start;
        let step = (run.to_owned(), at.to_owned());
        let lives = self.lives.entry(run.to_owned()).or_default();
        let is_late = lives.start(start, self.unfenced.contains(process));
        let is_again = self.durable.contains(&step);
        if (is_again || is_late) && !self.is_excused(process, is_first) {
            if is_again {
                self.run_again += 1;
                self.example(format!(
                    "promise 1 is broken: run {run}: `{at}` was started again (attempt {attempt}, \
                     process {process}) after its completion was durable"
                ));
            }
            if is_late {
                self.after_lease += 1;
                self.example(format!(
                    "promise 3 is broken: run {run}: process {process} started `{at}` after another \
                     owner of the run had started a body"
                ));
            }
        }
        let digest = start.digest;
        let first = self.digests.entry(step).or_insert_with(|| digest.to_owned());
        if first != digest {
            self.order_differs += 1;
            self.example(format!(
                "promise 6 is broken: run {run}: `{at}` was started with another past than before"
            ));
        }
        if start.firm {
            let seen = start.steps.split(' ').filter(|seen| !seen.is_empty());
            let seen = seen.map(|seen| (run.to_owned(), seen.to_owned()));
            self.durable.extend(seen);
        }
    }

    /// Rollbacks run one after another, so the start of one says that those before it are done.
    fn undo_started(&mut self, process: &str, is_first: bool, run: &str, at: &str) {
        let undone = self.undone.entry(run.to_owned()).or_default();
        match undone.iter().position(|other| other == at) {
            None => undone.push(at.to_owned()),
            Some(place) if place + 1 == undone.len() => {}
            Some(_) if self.is_excused(process, is_first) => {}
            Some(_) => {
                self.run_again += 1;
                self.example(format!(
                    "promise 1 is broken: run {run}: the rollback of `{at}` was started again after \
                     its completion was durable"
                ));
            }
        }
    }

    /// Whether a start that comes too late is none that the process could have known of. Counts it.
    fn is_excused(&mut self, process: &str, is_first: bool) -> bool {
        if self.unfenced.contains(process) {
            self.stale_bodies += 1;
            return true;
        }
        self.frozen_starts += u64::from(is_first);
        is_first
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

    /// A body starts in the first thread of a process.
    fn start(process: u32, life: &str, at: &str, past: &str, steps: &str) -> String {
        format!("S\t{process}\t0\trun\t{life}\t{at}\t1\tfirm\t{at}\t{past}\t{steps}")
    }

    /// A process that has started `a` and `b` is stopped; another goes on with the run, and `b` and
    /// `c` are done when the first goes on.
    fn taken_over() -> Ledger {
        let mut ledger = read(&[
            "L\t1\t0\trun\tx",
            &start(1, "x", "a", "0", ""),
            &start(1, "x", "b", "1", "a"),
            "L\t2\t0\trun\ty",
            &start(2, "y", "b", "1", "a"),
            &start(2, "y", "c", "2", "a b"),
        ]);
        assert!(ledger.has_moved_on("run", 1) && !ledger.has_moved_on("run", 2));
        ledger.goes_on(1);
        ledger
    }

    #[test]
    fn start_by_an_owner_that_has_lost_the_run_is_found() {
        let mut ledger = taken_over();
        ledger.line("N\t1\t0\tslow\tcode");
        ledger.line(&start(1, "x", "d", "2", "a b"));
        assert_eq!((ledger.after_lease, ledger.run_again), (1, 0));
        ledger.line(&start(1, "x", "b", "1", "a"));
        assert_eq!((ledger.after_lease, ledger.run_again), (2, 1));
        assert_eq!(ledger.frozen_starts, 0);
    }

    #[test]
    fn start_that_was_frozen_with_its_thread_is_counted_apart_and_the_next_one_is_found() {
        let mut ledger = taken_over();
        ledger.line(&start(1, "x", "b", "1", "a"));
        assert_eq!((ledger.frozen_starts, ledger.run_again), (1, 0));
        ledger.line(&start(1, "x", "b", "1", "a"));
        assert_eq!((ledger.frozen_starts, ledger.run_again), (1, 1));
        // The other thread of the process may have been frozen, too.
        let other = start(1, "x", "b", "1", "a").replacen("\t0\t", "\t1\t", 1);
        ledger.line(&other);
        assert_eq!((ledger.frozen_starts, ledger.run_again), (2, 1));
        ledger.line(&other);
        assert_eq!((ledger.frozen_starts, ledger.run_again), (2, 2));
    }

    #[test]
    fn owner_that_has_got_the_run_back_may_start_bodies() {
        let mut ledger = taken_over();
        ledger.line("L\t1\t0\trun\tz");
        ledger.line(&start(1, "z", "d", "3", "a b c"));
        assert_eq!((ledger.after_lease, ledger.frozen_starts), (0, 0));
        // Now it is the other one that has lost it.
        ledger.line(&start(2, "y", "d", "3", "a b c"));
        assert_eq!(ledger.after_lease, 1);
    }

    #[test]
    fn body_that_started_in_a_past_that_is_not_in_the_last_life_is_found() {
        let lost = |past: &str| {
            let mut ledger = read(&[&start(1, "x", "charge", past, "")]);
            // What is last is said of the last life, whoever writes later.
            ledger.line("L\t2\t0\trun\ty");
            ledger.line("F\t2\t0\trun\ty\t00 11 22");
            ledger.line("F\t1\t0\trun\tx\t00 33");
            ledger.started_on_lost_state().0
        };
        assert_eq!(lost("11"), 0);
        assert_eq!(lost("33"), 1);
        let unknown = read(&[&start(1, "x", "charge", "33", "")]);
        assert_eq!(unknown.started_on_lost_state().0, 0);
    }

    #[test]
    fn body_that_runs_again_before_anybody_built_on_it_is_no_violation() {
        let mut ledger = read(&[
            &start(1, "x", "a", "0", ""),
            "E\t1\t0\trun\ta\t1\tok",
            &start(1, "x", "a", "0", ""),
        ]);
        assert_eq!((ledger.run_again, ledger.bodies_run), (0, 2));
        assert!(!ledger.killed(2));
        assert!(ledger.killed(1));
        assert!(!ledger.killed(1));
    }

    #[test]
    fn body_that_was_dropped_is_not_under_way_any_more() {
        let mut ledger = read(&[&start(1, "x", "a", "0", "")]);
        assert!(ledger.has_open(1) && !ledger.has_open(2));
        ledger.line("E\t1\t0\trun\ta\t1\tdropped");
        assert!(!ledger.has_open(1));
        assert_eq!((ledger.steps_completed(), ledger.ended().len()), (0, 0));
        assert!(!ledger.killed(1));
    }

    #[test]
    fn body_that_a_process_without_a_fence_of_its_own_starts_again_is_counted_apart() {
        let mut ledger = read(&[&start(1, "x", "a", "0", ""), &start(1, "x", "b", "1", "a")]);
        ledger.unfenced(1);
        ledger.line(&start(1, "x", "a", "0", ""));
        assert_eq!((ledger.run_again, ledger.stale_bodies), (0, 1));
        ledger.line(&start(2, "x", "a", "0", ""));
        assert_eq!((ledger.run_again, ledger.stale_bodies), (1, 1));
    }

    #[test]
    fn life_in_a_process_without_a_fence_of_its_own_is_later_only_when_its_results_are_stored() {
        let mut ledger = read(&[&start(1, "x", "a", "0", "")]);
        ledger.unfenced(2);
        // It has lost the run and begins its body all the same; the owner goes on.
        ledger.line("L\t2\t0\trun\ty");
        ledger.line(&start(2, "y", "a", "0", ""));
        ledger.line(&start(1, "x", "b", "1", "a"));
        assert_eq!((ledger.after_lease, ledger.run_again), (0, 0));
        // Its next life owns the run.
        ledger.line("L\t2\t0\trun\tz");
        ledger.line(&start(2, "z", "c", "2", "a b"));
        ledger.line(&start(2, "z", "d", "3", "a b c"));
        ledger.line(&start(1, "x", "c", "2", "a b"));
        assert_eq!((ledger.after_lease, ledger.run_again), (1, 1));
    }

    /// A process without a fence of its own ran two ephemeral bodies of a run that it had lost. The next
    /// bodies of the owner were counted as started after its lease.
    #[test]
    fn result_of_an_ephemeral_body_does_not_make_a_life_later() {
        let ephemeral = |line: String| line.replace("firm", "ephemeral");
        let mut ledger = read(&[&start(1, "x", "a", "0", "")]);
        ledger.unfenced(2);
        ledger.line("L\t2\t0\trun\ty");
        ledger.line(&ephemeral(start(2, "y", "b", "1", "a")));
        ledger.line(&ephemeral(start(2, "y", "c", "2", "a b")));
        ledger.line(&start(1, "x", "d", "1", "a"));
        assert_eq!((ledger.after_lease, ledger.run_again), (0, 0));
    }

    #[test]
    fn line_that_is_not_whole_yet_is_read_later_and_one_that_was_torn_is_not_read() {
        let path = std::env::temp_dir().join(format!("crash-ledger-{}", std::process::id()));
        let mut ledger = Ledger::default();
        fs::write(&path, "\nN\t1\t0\tkind\tone\t;\n\nN\t1\t0\tki").expect("a file can be written");
        ledger.read_on(&path).expect("it can be read");
        assert_eq!(ledger.notes("kind").len(), 1);
        let more = "\nN\t1\t0\tkind\tone\t;\n\nN\t1\t0\tkind\ttwo\t;\n\nN\t1\t0\tkind\tto\nN\t1\t0\tkind\tthree\t;\n";
        fs::write(&path, more).expect("a file can be written");
        ledger.read_on(&path).expect("it can be read");
        assert_eq!(ledger.notes("kind"), [["one"], ["two"], ["three"]]);
        assert!(ledger.examples.is_empty());
        fs::remove_file(&path).expect("the file is there");
    }

    #[test]
    fn body_that_runs_again_after_another_has_built_on_it_is_one() {
        let ledger = read(&[
            &start(1, "x", "a", "0", ""),
            &start(1, "x", "b", "1", "a"),
            &start(1, "x", "a", "0", ""),
        ]);
        assert_eq!(ledger.run_again, 1);
    }

    #[test]
    fn ephemeral_body_says_nothing_about_what_is_durable() {
        let ephemeral = |line: String| line.replace("firm", "ephemeral");
        let ledger = read(&[
            &ephemeral(start(1, "x", "a", "0", "")),
            &ephemeral(start(1, "x", "b", "1", "a")),
            &ephemeral(start(1, "x", "a", "0", "")),
        ]);
        assert_eq!(ledger.run_again, 0);
    }

    #[test]
    fn another_past_is_found() {
        let other = start(1, "x", "a", "0", "").replace("firm\ta", "firm\tb");
        let ledger = read(&[&start(1, "x", "a", "0", ""), &other]);
        assert_eq!(ledger.order_differs, 1);
    }

    #[test]
    fn rollback_that_runs_again_after_the_next_is_found() {
        let undo = |at: &str| format!("U\t1\t0\trun\t{at}\t1");
        let ledger = read(&[&undo("b"), &undo("b"), &undo("a")]);
        assert_eq!(ledger.run_again, 0);
        let ledger = read(&[&undo("b"), &undo("a"), &undo("b")]);
        assert_eq!(ledger.run_again, 1);
    }
}
