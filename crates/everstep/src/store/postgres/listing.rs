//! Pages of runs, newest first: what [`rules::listing`] asks for, in SQL.
//!
//! Where an index is to be read, the runs that it leads to are a query of its own (`OFFSET 0`):
//! otherwise the planner, which is asked for the newest, would walk all runs in their order. And so is
//! what is looked up for a run: it would be read as a whole instead.

use super::{
    columns,
    error::Trouble,
    overview::{self, ENDED},
    reads::{self, Condition},
    session::Session,
    value::{Row, Value, params},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        Filter, RunRow,
        rules::{
            self,
            listing::{self, By},
        },
    },
};

pub(super) fn list(
    session: &Session<'_>,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<RunRow>, Trouble> {
    let listing = Listing {
        session,
        filter,
        columns: columns::RUN_ROW,
        read: columns::run_row,
    };
    listing::page(&listing, filter, after, limit)
}

pub(super) fn find(
    session: &Session<'_>,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<RunId>, Trouble> {
    let listing = Listing {
        session,
        filter,
        columns: "id",
        read: |row| columns::run_id(row, 0),
    };
    listing::page(&listing, filter, after, limit)
}

struct Listing<'s, 'c, T> {
    session: &'s Session<'c>,
    filter: &'s Filter,
    columns: &'static str,
    read: fn(&Row) -> Result<T, Trouble>,
}

impl<T> Listing<'_, '_, T> {
    /// Those that meet the filter and this, newest first.
    fn select(&self, mut condition: Condition, limit: usize) -> Result<Vec<T>, Trouble> {
        let limit = condition.param(Value::Int(Some(columns::limit(limit))));
        let terms = condition.terms.join(" AND ");
        let sql = format!(
            "SELECT {} FROM everstep_runs WHERE {terms} ORDER BY no DESC LIMIT {limit}",
            self.columns
        );
        self.session.rows(sql, condition.params, self.read)
    }
}

impl<T> listing::Listing for Listing<'_, '_, T> {
    type Row = T;
    type Error = Trouble;

    fn walk(&self, from: RunNo, before: RunNo, limit: usize) -> Result<Vec<T>, Trouble> {
        let mut condition = reads::condition(self.filter);
        for (term, no) in [("no >=", from), ("no <", before)] {
            let no = condition.param(Value::Int(Some(no.0)));
            condition.terms.push(format!("{term} {no}"));
        }
        self.select(condition, limit)
    }

    fn nth_before(&self, before: RunNo, n: usize) -> Result<Option<RunNo>, Trouble> {
        let sql = "SELECT no FROM everstep_runs WHERE no < $1 ORDER BY no DESC LIMIT 1 OFFSET $2";
        let params = params![before.0, columns::limit(n) - 1];
        self.session.row(sql, params, |row| row.get(0).map(RunNo))
    }

    fn candidates(&self, by: By, before: RunNo, limit: usize) -> Result<Vec<RunNo>, Trouble> {
        let (sql, mut condition) = match by {
            By::Number => return Ok(Vec::new()),
            By::Tag => return self.with_tag(before, limit),
            By::Key => by_key(self.session, self.filter)?,
            By::Status => by_status(self.session, self.filter)?,
        };
        let before = condition.param(Value::Int(Some(before.0)));
        let limit = condition.param(Value::Int(Some(columns::limit(limit))));
        let sql = format!(
            "SELECT no FROM ({sql}) AS met WHERE no < {before} ORDER BY no DESC LIMIT {limit}"
        );
        let read = |row: &Row| row.get(0).map(RunNo);
        self.session.rows(sql, condition.params, read)
    }

    fn matching(&self, of: &[RunNo], limit: usize) -> Result<Vec<T>, Trouble> {
        let mut condition = reads::condition(self.filter);
        let of = of.iter().map(|no| Some(no.0)).collect();
        let of = condition.param(Value::Ints(of));
        condition.terms.push(format!("no = ANY ({of})"));
        self.select(condition, limit)
    }
}

impl<T> Listing<'_, '_, T> {
    /// The runs with the first tag that have all others, too, in the order of the index of tags.
    fn with_tag(&self, before: RunNo, limit: usize) -> Result<Vec<RunNo>, Trouble> {
        let mut condition = Condition::default();
        for (place, (name, value)) in self.filter.tags.iter().enumerate() {
            let (name, value) = (condition.text(name), condition.text(value));
            condition.terms.push(match place {
                0 => format!("name = {name} AND value = {value}"),
                _ => format!(
                    "EXISTS (SELECT 1 FROM everstep_tags AS other WHERE other.name = {name} \
                     AND other.value = {value} AND other.run = everstep_tags.run OFFSET 0)"
                ),
            });
        }
        let before = condition.param(Value::Int(Some(before.0)));
        let limit = condition.param(Value::Int(Some(columns::limit(limit))));
        let terms = condition.terms.join(" AND ");
        let sql = format!(
            "SELECT run FROM everstep_tags WHERE {terms} AND run < {before} \
             ORDER BY name DESC, value DESC, run DESC LIMIT {limit}"
        );
        let read = |row: &Row| row.get(0).map(RunNo);
        self.session.rows(sql, condition.params, read)
    }
}

/// The runs whose keys begin so. There are keys of one workflow after those of another.
pub(super) fn by_key(
    session: &Session<'_>,
    filter: &Filter,
) -> Result<(String, Condition), Trouble> {
    let workflows = match &filter.workflow {
        Some(workflow) => vec![Some(workflow.clone())],
        None => overview::names(session, "everstep_keys", "TRUE")?,
    };
    let mut condition = Condition::default();
    let workflows = condition.param(Value::Texts(workflows));
    let prefix = filter.key_prefix.as_deref().unwrap_or_default();
    let from = condition.text(prefix);
    let mut range = format!("everstep_keys.key >= {from}");
    if let Some(end) = rules::prefix_end(prefix) {
        let end = condition.text(&end);
        range = format!("{range} AND everstep_keys.key < {end}");
    }
    let sql = format!(
        "SELECT found.run AS no FROM unnest({workflows}::text[]) AS asked (workflow) \
         CROSS JOIN LATERAL (SELECT run FROM everstep_keys WHERE everstep_keys.workflow = asked.workflow \
         AND {range} OFFSET 0) AS found"
    );
    Ok((sql, condition))
}

/// The runs of these statuses and this workflow that have ended in this time.
fn by_status(session: &Session<'_>, filter: &Filter) -> Result<(String, Condition), Trouble> {
    let codes = |of: &[u8]| {
        let wanted = of.iter().filter(|code| {
            let mut statuses = filter.statuses.iter();
            filter.statuses.is_empty() || statuses.any(|status| status.code() == **code)
        });
        let wanted: Vec<String> = wanted.map(u8::to_string).collect();
        wanted.join(", ")
    };
    let mut condition = Condition::default();
    let mut queries = vec!["SELECT 0::bigint AS no WHERE FALSE".to_owned()];
    let ended = codes(&ENDED.map(|status| status.code()));
    if !ended.is_empty() {
        let workflows = match &filter.workflow {
            Some(workflow) => vec![Some(workflow.clone())],
            None => overview::workflows(session)?,
        };
        let workflows = condition.param(Value::Texts(workflows));
        let mut range = String::new();
        let times = [(">=", filter.finished_from), ("<", filter.finished_before)];
        for (sign, at) in times {
            if let Some(at) = at {
                let at = condition.param(Value::Int(Some(at.as_millis())));
                range = format!("{range} AND finished_at {sign} {at}");
            }
        }
        queries.push(format!(
            "SELECT found.no FROM unnest({workflows}::text[]) AS asked (workflow) \
             CROSS JOIN LATERAL (SELECT no FROM everstep_runs WHERE workflow = asked.workflow \
             AND status IN ({ended}) AND finished_at IS NOT NULL{range} OFFSET 0) AS found"
        ));
    }
    if filter.finished_from.is_none() && filter.finished_before.is_none() {
        for (of, part) in overview::LIVE {
            let codes = codes(of);
            if codes.is_empty() {
                continue;
            }
            let mut terms = format!("{part} AND status IN ({codes})");
            if let Some(workflow) = &filter.workflow {
                let workflow = condition.text(workflow);
                terms = format!("{terms} AND workflow = {workflow}");
            }
            queries.push(format!(
                "(SELECT no FROM everstep_runs WHERE {terms} OFFSET 0)"
            ));
        }
    }
    Ok((queries.join(" UNION ALL "), condition))
}
