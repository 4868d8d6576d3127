//! The doctor: whether everything in a store is as it must be.
//!
//! What must be true of single rows is a table of rules in [`crate::store::doctor`]; what takes
//! decoding (a run and its history) is in [`runs`]. The doctor reads a page at a time and holds
//! nothing up. What it finds it looks at a second time, so that nothing is reported that was only on
//! its way.

use std::{sync::Arc, time::Duration};

use super::{Client, ClientError};
use crate::{
    codec::hook::Codecs,
    commit::{Cell, ScheduleRow},
    run_id::{RunId, RunNo},
    schedule::Ticks,
    seam,
    store::{
        Store, StoreError,
        doctor::{Ask, Check, Facts, FoundRow, PlaceFact, RULES, Remedy, Rule},
    },
    time::Timestamp,
};

mod repair;
mod runs;

pub use repair::{RepairError, Repaired};

/// How many rows are looked at in one read, and how many runs.
const PAGE_ROWS: usize = 5_000;
const PAGE_RUNS: usize = 100;

/// How many findings there are at most of one rule, and of what is found in runs: where there are
/// more, these are enough to begin with. (A page that is begun is finished.)
const FINDINGS_MAX: usize = 1_000;

/// How long is waited before the second look.
const SECOND_LOOK: Duration = Duration::from_millis(250);

impl Client {
    /// Looks whether everything in the store is as it must be. Await it.
    ///
    /// It may be called at any time: it reads in small pages, changes nothing, and reports only what
    /// is still so when it looks a second time. What can be mended safely is mended by
    /// [`repair`](Client::repair).
    ///
    /// - Each live run has a reason to wake: a time, a wait that is registered, or an owner.
    /// - No row belongs to a run that is not there, or to a wait that is over.
    /// - Numbers follow each other: of entries, messages, generations, events.
    /// - Runs are in shards of pools that exist, and shards are held by runners that exist.
    /// - What is stored can be read: all live runs, and those that ended last (see
    ///   [`ended_runs`](Doctor::ended_runs)). What a [codec](crate::Codec) has sealed that this
    ///   client does not have is passed over.
    /// - Limits count the places under them, and schedules have a next tick.
    /// - SQLite finds no fault in the file. On PostgreSQL: where there are standbys, one of them is
    ///   synchronous.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::in_memory().start().await?;
    /// # let client = engine.client();
    /// let report = client.doctor().await?;
    /// for finding in &report.findings {
    ///     println!("{} {}: {}", finding.severity, finding.check, finding.what);
    /// }
    /// if report.findings.iter().any(|finding| finding.repairable) {
    ///     client.repair(&report, "before-repair.jsonl").await?;
    /// }
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn doctor(&self) -> Doctor {
        Doctor { client: self.clone(), ended_runs: 10_000 }
    }
}

/// A look at everything in a store. Await it.
#[must_use = "nothing is looked at unless it is awaited"]
pub struct Doctor {
    client: Client,
    ended_runs: usize,
}

/// What the doctor has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DoctorReport {
    /// What is wrong, in the order in which it is mended.
    pub findings: Vec<Finding>,
    /// How much was looked at.
    pub checked: Checked,
    /// Whether there is more of something than is listed: look again after a repair.
    pub has_more: bool,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub check: Check,
    /// How bad it is.
    pub severity: Severity,
    /// The run that it is about, if it is about one that is there.
    pub run: Option<RunId>,
    /// What is wrong, and what to do if it cannot be mended here, in plain words.
    pub what: String,
    /// Whether [`Client::repair`] mends it.
    pub repairable: bool,
    pub(super) cure: Cure,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing goes wrong because of it now.
    Warning,
    /// Something does not go on, is lost, or is in danger.
    Error,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Rows of tables, each once for every rule about it.
    pub rows: u64,
    /// Runs.
    pub runs: u64,
    /// Entries of their histories.
    pub entries: u64,
    /// Schedules.
    pub schedules: u64,
    /// Runs that are in nobody's memory and should be, since no live runner holds their shard: they
    /// go on when one does.
    pub without_owner: u64,
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    None,
    /// What the rule says.
    Row {
        rule: usize,
        row: Vec<Cell>,
    },
    /// The run is paused, these entries (keys and values) are removed, and it is resumed: it is then
    /// loaded anew.
    LoadAnew {
        run: RunId,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    ForgetNumber {
        run: RunNo,
        last_number: i64,
    },
    Shard {
        run: RunNo,
        from: i64,
        to: i64,
    },
    /// The schedule is paused and resumed.
    Schedule(String),
}

impl Finding {
    fn new(check: Check, severity: Severity, what: String, cure: Cure) -> Finding {
        Finding { check, severity, run: None, what, repairable: cure != Cure::None, cure }
    }

    fn about(mut self, run: Option<RunId>) -> Finding {
        self.run = run;
        self
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

impl Doctor {
    /// How many runs that have ended are looked into, the newest first: 10 000 if this is not said.
    /// Their rows are looked at in any case.
    pub fn ended_runs(mut self, max: usize) -> Doctor {
        self.ended_runs = max;
        self
    }

    /// A simulation has no timers of a runtime: there a thread that reads waits.
    #[allow(clippy::disallowed_methods, reason = "a simulation does not come to the timer")]
    async fn wait_to_look_again(&self) -> Result<(), ClientError> {
        if !seam::is_simulated() {
            tokio::time::sleep(SECOND_LOOK).await;
            return Ok(());
        }
        let wait = |_: &dyn Store| {
            seam::sleep(SECOND_LOOK, "second look");
            Ok(())
        };
        self.client.read(wait).await
    }

    async fn look(self) -> Result<DoctorReport, ClientError> {
        let mut report =
            DoctorReport { findings: Vec::new(), checked: Checked::default(), has_more: false };
        let facts = self.client.read(|store| store.examine(&Ask::Place)).await?;
        if let Facts::Place(facts) = facts {
            report.findings.extend(facts.into_iter().map(of_place));
        }
        // These do not pass by themselves.
        let certain = report.findings.len();
        for rule in 0..RULES.len() {
            self.look_at_rows(rule, &mut report).await?;
        }
        self.look_at_runs(true, usize::MAX, &mut report).await?;
        self.look_at_runs(false, self.ended_runs, &mut report).await?;
        self.look_at_schedules(&mut report).await?;
        if report.findings.len() > certain {
            self.wait_to_look_again().await?;
            let seen = report.findings.split_off(certain);
            for finding in seen {
                if self.client.is_still_so(&finding).await? {
                    report.findings.push(finding);
                }
            }
        }
        Ok(report)
    }

    async fn look_at_rows(
        &self,
        rule: usize,
        report: &mut DoctorReport,
    ) -> Result<(), ClientError> {
        let mut after = None;
        let mut count = 0;
        loop {
            let limit = PAGE_ROWS;
            let ask = Ask::Rows { rule, after, limit };
            let Facts::Rows { found, looked, next } =
                self.client.read(move |store| store.examine(&ask)).await?
            else {
                return Ok(());
            };
            report.checked.rows += looked;
            count += found.len();
            let findings = found.into_iter().map(|row| of_row(rule, row));
            report.findings.extend(findings);
            after = next;
            if after.is_none() {
                return Ok(());
            }
            if count >= FINDINGS_MAX {
                report.has_more = true;
                return Ok(());
            }
        }
    }

    async fn look_at_runs(
        &self,
        live: bool,
        max: usize,
        report: &mut DoctorReport,
    ) -> Result<(), ClientError> {
        let mut after = None;
        let mut left = max;
        let mut count = 0;
        while left > 0 {
            let codecs = self.client.codecs.clone();
            let now = self.client.shared.now();
            let limit = PAGE_RUNS.min(left);
            let page = self.client.read(move |store| {
                let ask = Ask::Runs { live, after, limit };
                let Facts::Runs(runs) = store.examine(&ask)? else {
                    return Ok(None);
                };
                runs::look_at_page(store, &codecs, runs, now).map(Some)
            });
            let Some(page) = page.await? else {
                return Ok(());
            };
            let Some(last) = page.last else {
                return Ok(());
            };
            (after, left) = (Some(last), left - page.runs.min(left));
            report.checked.runs += page.runs as u64;
            report.checked.entries += page.entries;
            report.checked.without_owner += page.without_owner;
            count += page.findings.len();
            report.findings.extend(page.findings);
            if count >= FINDINGS_MAX {
                report.has_more = true;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn look_at_schedules(&self, report: &mut DoctorReport) -> Result<(), ClientError> {
        let mut after: Option<String> = None;
        loop {
            let from = after.take();
            let page =
                self.client.read(move |store| store.schedules(from.as_deref(), PAGE_RUNS)).await;
            let page = match page {
                Ok(page) => page,
                Err(ClientError::Store(error)) if is_unreadable(&error) => {
                    let what = format!("a schedule cannot be read: {error}; delete it");
                    let finding = Finding::new(Check::Formats, Severity::Error, what, Cure::None);
                    report.findings.push(finding);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = Some(last.name.clone());
            let now = self.client.shared.now();
            report.checked.schedules += page.len() as u64;
            let findings = page.iter().filter_map(|row| of_schedule(row, now));
            report.findings.extend(findings);
        }
    }
}

impl Client {
    /// The second look, at one finding.
    async fn is_still_so(&self, finding: &Finding) -> Result<bool, ClientError> {
        let codecs = self.codecs.clone();
        let now = self.shared.now();
        let finding = finding.clone();
        self.read(move |store| is_still_so(store, &codecs, &finding, now)).await
    }
}

awaited!([] Doctor, look => Result<DoctorReport, ClientError>);

fn is_unreadable(error: &Arc<StoreError>) -> bool {
    matches!(
        **error,
        StoreError::Corrupt { .. } | StoreError::Rejected { .. } | StoreError::Io { .. }
    )
}

/// The second look.
fn is_still_so(
    store: &dyn Store,
    codecs: &Codecs,
    finding: &Finding,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if let Some((rule, row)) = row_of(finding) {
        let ask = Ask::Row { rule, row };
        return Ok(matches!(store.examine(&ask)?, Facts::Broken(true)));
    }
    if let Cure::Schedule(name) = &finding.cure {
        let row = store.schedule(name)?;
        return Ok(row.is_some_and(|row| of_schedule(&row, now).is_some()));
    }
    match finding.run {
        Some(run) => {
            let page = runs::look_at_page(store, codecs, vec![run.no()], now)?;
            Ok(page.findings.contains(finding))
        }
        None => Ok(true),
    }
}

/// The rule and the row of a finding about a row.
fn row_of(finding: &Finding) -> Option<(usize, Vec<Cell>)> {
    match &finding.cure {
        Cure::Row { rule, row } => Some((*rule, row.clone())),
        _ => None,
    }
}

fn of_place(fact: PlaceFact) -> Finding {
    let check = match fact.replication {
        true => Check::Replication,
        false => Check::Integrity,
    };
    let severity = match fact.is_error {
        true => Severity::Error,
        false => Severity::Warning,
    };
    Finding::new(check, severity, fact.what, Cure::None)
}

fn of_row(rule: usize, found: FoundRow) -> Finding {
    let of = &RULES[rule];
    let FoundRow { row, run, id } = found;
    let what = in_words(of, &row, run, id);
    let severity = match of.check {
        // What is left over is in nobody's way, but for what leads others astray.
        Check::Orphans
            if !matches!(
                of.table,
                "everstep_graves" | "everstep_keys" | "everstep_runs" | "everstep_requests"
            ) =>
        {
            Severity::Warning
        }
        _ => Severity::Error,
    };
    let mut finding = Finding::new(of.check, severity, what, Cure::Row { rule, row });
    finding.repairable = !matches!(of.remedy, Remedy::None);
    finding.about(id)
}

fn in_words(rule: &Rule, row: &[Cell], run: Option<i64>, id: Option<RunId>) -> String {
    let run = match (id, run) {
        (Some(id), _) => format!("run {id}"),
        (None, Some(no)) => format!("run number {no}"),
        (None, None) => "no run".to_owned(),
    };
    let mut what = rule.what.replace("{run}", &run);
    for (cell, place) in row.iter().zip(1..) {
        let text = match cell {
            Cell::Int(number) => number.to_string(),
            Cell::Text(text) => text.clone(),
            Cell::Bytes(_) => continue,
        };
        what = what.replace(&format!("{{{place}}}"), &text);
    }
    what
}

fn of_schedule(row: &ScheduleRow, now: Timestamp) -> Option<Finding> {
    let name = &row.name;
    let ticks = match Ticks::from_text(&row.spec, row.anchor) {
        Ok(ticks) => ticks,
        Err(problem) => {
            let what = format!("schedule `{name}` cannot be read: {problem}; put it in once more");
            return Some(Finding::new(Check::Formats, Severity::Error, what, Cure::None));
        }
    };
    let has_ticks = ticks.next_after(now).is_some();
    let is_stuck = !row.paused && row.next_at.is_none() && has_ticks;
    is_stuck.then(|| {
        let what =
            format!("schedule `{name}` is not paused and has no next tick: it starts nothing");
        let cure = Cure::Schedule(name.clone());
        Finding::new(Check::Schedules, Severity::Error, what, cure)
    })
}
