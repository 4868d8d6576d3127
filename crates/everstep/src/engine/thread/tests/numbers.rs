//! What is written about runs that are not in memory: the row says afterwards what the highest number
//! of the history is, or that it does not know.
//!
//! The row of a run that moves, that was resumed, or that was imported has only a lower bound. A commit
//! that took this bound for the number left a row behind that `doctor` complains about, and a run that
//! slept with such a row could never commit again: each commit was refused as one with a gap.

use super::*;
use crate::{
    client::transfer::run_file,
    commit::{Batch, Imported, ImportedRun, InboxKind, Put, Target, answer},
    history::{Entry, EntryKind, EntryStatus, EntryValue, encode_entry},
    location::keys,
    store::{Ask, Facts},
};

/// The highest number of [`history`].
const HIGHEST: u64 = 3;

/// Completed steps with the numbers from 1 on.
fn history() -> Vec<Put> {
    let step = |number: u64| {
        let mut key = keys::HISTORY.to_vec();
        keys::push_name(&mut key, &format!("step {number}"), 1);
        let at = Timestamp::from_millis(1_763_239_620_123);
        let entry = Entry {
            kind: EntryKind::Step,
            status: EntryStatus::Completed,
            number: Some(number),
            born: number - 1,
            compensable: false,
            attempts: 1,
            deaths: 0,
            created_at: at,
            started_at: Some(at),
            completed_at: Some(at),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(vec![0xF6]),
        };
        Put { key, value: encode_entry(&entry) }
    };
    (1..=HIGHEST).map(step).collect()
}

impl Bench {
    fn write(&self, fence: Fence, write: Write) -> Outcome {
        let batch = Batch { fence: Some(fence), now: self.shared.now(), writes: vec![write] };
        let mut applied = self.store.commit(&batch).expect("commit");
        applied.outcomes.remove(0)
    }

    /// A run of another store, which nobody has code for.
    fn foreign(&self, fence: Fence) -> ImportedRun {
        let template = fixture::start_unserved(&self.store, fence);
        let row = self.row(template);
        let id = RunIds::new(crate::seam::random()).next(self.shared.now());
        let row = RunRow { id, last_number: HIGHEST, ..row };
        let (inbox, state) = (Vec::new(), Vec::new());
        ImportedRun { row, history: history(), inbox, state }
    }

    /// Imports such a run: its row does not know the highest number.
    fn import(&self, fence: Fence, change: impl FnOnce(&mut ImportedRun)) -> RunId {
        let mut run = self.foreign(fence);
        change(&mut run);
        let id = run.row.id;
        let outcome = self.write(fence, Write::Import(Box::new(run)));
        assert!(matches!(outcome, Outcome::Imported(Imported::Done { .. })), "{outcome:?}");
        id
    }

    /// Handles events, and commits what comes of them, until that is so.
    fn work_until(&mut self, what: &str, is_so: impl Fn(&Bench) -> bool) {
        let until = Instant::now() + std::time::Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < until, "this does not happen: {what}");
            self.worker.env.now.set(self.shared.now());
            for event in self.shared.threads[0].take() {
                self.worker.handle(event);
            }
            self.worker.admit_held();
            while let Some(slot) = self.worker.ready.pop_front() {
                self.worker.drive(slot);
            }
            let sent = std::mem::take(&mut self.worker.out);
            if !sent.is_empty() {
                committer::commit(&self.shared, sent);
            }
            std::thread::yield_now();
        }
    }

    fn row(&self, run: RunId) -> RunRow {
        self.store.run(&Target::Id(run)).expect("run").expect("it is there")
    }

    /// The highest number by the row; none if it does not know.
    fn number_of(&self, run: RunId) -> Option<i64> {
        match self.store.examine(&Ask::Run(run.no())).expect("examine") {
            Facts::Run(Some(facts)) => facts.last_number,
            _ => panic!("it is there"),
        }
    }
}

#[test]
fn a_run_that_is_cancelled_without_its_code_keeps_its_highest_number() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = bench.import(fence, |_| {});
    let cancel = Control::Cancel { rollback: false };
    let outcome = bench.write(fence, Write::Control(Target::Id(run), cancel));
    assert!(matches!(outcome, Outcome::Controlled(_)), "{outcome:?}");
    bench.recover(run);
    bench.work_until("its end", |bench| bench.row(run).status == RunStatus::Cancelled);
    assert_eq!(bench.number_of(run), Some(HIGHEST as i64));
}

#[test]
fn a_paused_run_that_gives_its_place_back_keeps_its_highest_number() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let grant = InboxRow {
        on_end: None,
        seq: 1,
        kind: InboxKind::LimitGrant,
        name: "one".to_owned(),
        body: answer::turn(bench.shared.now()),
        wait: Some(vec![1]),
        request: None,
        sent_at: bench.shared.now(),
    };
    let run = bench.import(fence, |run| {
        (run.row.status, run.row.inbox_seq) = (RunStatus::Paused, 1);
        run.inbox.push(grant);
    });
    bench.worker.handle(Event::Control(run.no(), Control::Pause));
    let loaded = bench.next_read();
    bench.worker.handle(loaded);
    assert_eq!(bench.worker.out.len(), 1, "it gives its place back");
    committer::commit(&bench.shared, std::mem::take(&mut bench.worker.out));
    assert_eq!(bench.number_of(run), Some(HIGHEST as i64));
}

#[test]
fn a_run_that_says_that_its_code_is_missing_keeps_its_highest_number() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = bench.import(fence, |run| {
        run.row.status = RunStatus::Sleeping;
        run.row.available_at = Some(run.row.created_at);
    });
    let due = bench.due(run);
    bench.worker.due(due, false);
    bench.work_until("a note", |bench| bench.row(run).waiting.is_some());
    assert_eq!(bench.number_of(run), Some(HIGHEST as i64));
}

#[test]
fn a_run_with_an_entry_that_cannot_be_read_is_paused_with_its_highest_number() {
    let mut bench = Bench::new();
    let fence = bench.begin();
    let run = bench.import(fence, |run| {
        run.row.version = 1;
        run.history[0].value = vec![0xFF; 4];
    });
    bench.recover(run);
    bench.work_until("its pause", |bench| bench.row(run).status == RunStatus::Paused);
    assert_eq!(bench.number_of(run), Some(HIGHEST as i64));
}

/// `doctor` repairs a row with a wrong number by forgetting it. In the file of such a run it is 0.
#[test]
fn a_run_that_has_ended_is_imported_with_its_highest_number() {
    let bench = Bench::new();
    let fence = bench.begin();
    let mut run = bench.foreign(fence);
    (run.row.status, run.row.last_number) = (RunStatus::Completed, 0);
    run.row.available_at = None;
    let id = run.row.id;
    let file = run_file::encode_run(&run);
    let client = crate::Client::on(bench.store.clone()).expect("a client");
    bench.runtime.block_on(client.import(file)).expect("import");
    assert_eq!(bench.number_of(id), Some(HIGHEST as i64));
}
