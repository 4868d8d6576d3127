//! `doctor`: whether everything in a store is as it must be.

use std::path::PathBuf;

use clap::Args;
use everstep::{Client, DoctorReport, Finding, RepairError, Repaired, Severity};
use serde_json::{Value as Json, json};

use crate::{
    Exit,
    args::now,
    audit::Change,
    output::{self, Shown, Table, confirm, is_json, many},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
#[command(after_help = "Ends with 1 if something is wrong that is not mended.")]
pub(crate) struct Doctor {
    /// Mend what is safe to mend, after a backup of the rows.
    #[arg(long)]
    repair: bool,
    /// The file of the backup, which must not exist; one in this directory if it is not said.
    #[arg(long, value_name = "FILE", requires = "repair")]
    backup: Option<PathBuf>,
    /// How many runs that have ended are looked into, the newest first.
    #[arg(long, value_name = "RUNS", default_value_t = 10_000)]
    ended_runs: usize,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(client: &Client, said: Doctor) -> Outcome {
    let report = client.doctor().ended_runs(said.ended_runs).await?;
    let mendable = report.findings.iter().filter(|it| it.repairable).count() as u64;
    if !said.repair || mendable == 0 {
        shown(&report, None).print();
        return Ok(exit(report.findings.is_empty()));
    }
    let findings = many(mendable, "finding");
    confirm(&format!("Mend {findings}?"), said.yes)?;
    let backup = said.backup.unwrap_or_else(|| {
        let at = now().as_millis();
        PathBuf::from(format!("everstep-before-repair-{at}.jsonl"))
    });
    let file = backup.display().to_string();
    let change = Change::new("repair", "").detail(format!("{findings}, backup {file}"));
    let repaired = change.made(client, async || {
        let repaired = client.repair(&report, backup).await;
        repaired.map_err(|error| match error {
            RepairError::Client(error) => error.into(),
            other => Trouble::of(other),
        })
    });
    let (repaired, backup) = (repaired.await?, file);
    shown(&report, Some((&repaired, &backup))).print();
    Ok(exit(repaired.left.is_empty()))
}

fn exit(is_well: bool) -> Exit {
    match is_well {
        true => Exit::Done,
        false => Exit::Failed,
    }
}

fn shown(report: &DoctorReport, repaired: Option<(&Repaired, &str)>) -> Shown {
    if is_json() {
        return Shown::Json(as_json(report, repaired));
    }
    let mut text = String::new();
    if !report.findings.is_empty() {
        let mut table = Table::new(["SEVERITY", "CHECK", "MENDABLE", "WHAT"]);
        for finding in &report.findings {
            let severity = match finding.severity {
                Severity::Error => output::alarm(finding.severity.to_string()),
                _ => finding.severity.to_string().into(),
            };
            let mendable = if finding.repairable { "yes" } else { "no" };
            table.row([
                severity,
                finding.check.to_string().into(),
                mendable.into(),
                finding.what.clone().into(),
            ]);
        }
        text += &table.text("");
    }
    if report.has_more {
        text += "there is more than is listed; look again after a repair\n";
    }
    let checked = &report.checked;
    let found = match report.findings.len() {
        0 => "all is well".to_owned(),
        more => many(more as u64, "finding"),
    };
    text += &format!(
        "{found}; looked at {} with {} entries, {} and the rows of all tables\n",
        many(checked.runs, "run"),
        checked.entries,
        many(checked.schedules, "schedule")
    );
    if checked.without_owner > 0 {
        let runs = many(checked.without_owner, "run");
        text += &format!("{runs} without a runner: none that is alive holds the shard\n");
    }
    if let Some((repaired, backup)) = repaired {
        text += &format!(
            "{} mended, {} left; {} saved in {backup}\n",
            repaired.mended.len(),
            repaired.left.len(),
            many(repaired.saved as u64, "row")
        );
    }
    Shown::Text(text)
}

fn as_json(report: &DoctorReport, repaired: Option<(&Repaired, &str)>) -> Json {
    let list = |all: &[Finding]| -> Vec<Json> { all.iter().map(finding).collect() };
    let checked = &report.checked;
    let mut json = json!({
        "findings": list(&report.findings),
        "has_more": report.has_more,
        "checked": {
            "rows": checked.rows, "runs": checked.runs, "entries": checked.entries,
            "schedules": checked.schedules, "without_owner": checked.without_owner,
        },
    });
    if let Some((repaired, backup)) = repaired {
        json["repaired"] = json!({
            "mended": list(&repaired.mended), "left": list(&repaired.left),
            "saved_rows": repaired.saved, "backup": backup,
        });
    }
    json
}

fn finding(it: &Finding) -> Json {
    let mut json = json!({
        "check": it.check.to_string(), "severity": it.severity.to_string(), "what": it.what,
        "repairable": it.repairable,
    });
    if let Some(run) = it.run {
        json["run"] = json!(run.to_string());
    }
    json
}
