//! Pages of runs, newest first: what [`rules::listing`](crate::store::rules::listing) asks for.
//!
//! In PostgreSQL, the runs that an index leads to are a query of its own ([`Sql::apart`]): otherwise the
//! planner, which is asked for the newest, would walk all runs in their order. And so is what is looked
//! up for a run: it would be read as a whole instead.

use super::{
    Sql, columns,
    filter::Condition,
    overview::{self, ENDED},
    value::{BadValue, Row, Value, borrowed, params},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        Filter, RunRow,
        rules::listing::{self, By},
    },
};

pub(crate) fn list<S: Sql>(
    sql: &S,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<RunRow>, S::Error> {
    let listing = Listing { sql, filter, columns: columns::RUN_ROW, read: columns::run_row };
    listing::page(&listing, filter, after, limit)
}

pub(crate) fn find<S: Sql>(
    sql: &S,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<RunId>, S::Error> {
    let listing = Listing { sql, filter, columns: "id", read: |row| row.get(0) };
    listing::page(&listing, filter, after, limit)
}

struct Listing<'s, S, T> {
    sql: &'s S,
    filter: &'s Filter,
    columns: &'static str,
    read: fn(&dyn Row) -> Result<T, BadValue>,
}

/// By number, whatever else SQLite may think of.
fn runs_by_number<S: Sql>() -> &'static str {
    S::pick("everstep_runs NOT INDEXED", "everstep_runs")
}

impl<S: Sql, T> Listing<'_, S, T> {
    /// Those that meet the filter and this, newest first.
    fn select(&self, mut condition: Condition, limit: usize) -> Result<Vec<T>, S::Error> {
        let limit = condition.param(limit);
        let text = format!(
            "SELECT {} FROM {} WHERE {} ORDER BY no DESC LIMIT {limit}",
            self.columns,
            runs_by_number::<S>(),
            condition.text(),
        );
        self.sql.rows(text, &borrowed(&condition.params), self.read)
    }
}

impl<S: Sql, T> listing::Listing for Listing<'_, S, T> {
    type Row = T;
    type Error = S::Error;

    fn walk(&self, from: RunNo, before: RunNo, limit: usize) -> Result<Vec<T>, S::Error> {
        let mut condition = Condition::of::<S>(self.filter);
        condition.require("no >=", Some(from));
        condition.require("no <", Some(before));
        self.select(condition, limit)
    }

    fn nth_before(&self, before: RunNo, n: usize) -> Result<Option<RunNo>, S::Error> {
        let text = format!(
            "SELECT no FROM {} WHERE no < ?1 ORDER BY no DESC LIMIT 1 OFFSET ?2",
            runs_by_number::<S>()
        );
        self.sql.row(text, params![before, n - 1], |row| row.get(0))
    }

    fn candidates(&self, by: By, before: RunNo, limit: usize) -> Result<Vec<RunNo>, S::Error> {
        let mut condition = Condition::default();
        let (found, order) = match by {
            By::Number => return Ok(Vec::new()),
            // In the order of the index of tags.
            By::Tag => {
                (with_tags::<S>(&mut condition, self.filter), "name DESC, value DESC, no DESC")
            }
            By::Key => (condition.by_key(self.sql, self.filter)?, "no DESC"),
            By::Status => (by_status(self.sql, &mut condition, self.filter)?, "no DESC"),
        };
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let (before, limit) = (condition.param(before), condition.param(limit));
        let text = format!(
            "SELECT no FROM ({found}) AS met WHERE no < {before} ORDER BY {order} LIMIT {limit}"
        );
        self.sql.rows(text, &borrowed(&condition.params), |row| row.get(0))
    }

    fn matching(&self, of: &[RunNo], limit: usize) -> Result<Vec<T>, S::Error> {
        let mut condition = Condition::of::<S>(self.filter);
        let of = condition.param(Value::ints(of.iter().map(|no| no.0)));
        condition.terms.push(format!("no {}", S::is_any(&of)));
        self.select(condition, limit)
    }
}

/// The runs with the first tag that have all others, too.
fn with_tags<S: Sql>(condition: &mut Condition, filter: &Filter) -> String {
    let mut terms = Vec::new();
    for (place, (name, value)) in filter.tags.iter().enumerate() {
        let (name, value) = (condition.param(name), condition.param(value));
        terms.push(match place {
            0 => format!("name = {name} AND value = {value}"),
            _ => format!(
                "EXISTS (SELECT 1 FROM everstep_tags AS other WHERE other.name = {name} \
                 AND other.value = {value} AND other.run = everstep_tags.run{})",
                S::apart()
            ),
        });
    }
    let terms = terms.join(" AND ");
    format!("SELECT name, value, run AS no FROM everstep_tags WHERE {terms}")
}

/// The runs of these statuses and this workflow that have ended in this time. Empty if there are none.
fn by_status<S: Sql>(
    sql: &S,
    condition: &mut Condition,
    filter: &Filter,
) -> Result<String, S::Error> {
    let codes = |of: &[u8]| {
        let wanted = of.iter().filter(|code| {
            let mut statuses = filter.statuses.iter();
            filter.statuses.is_empty() || statuses.any(|status| status.code() == **code)
        });
        let wanted: Vec<String> = wanted.map(u8::to_string).collect();
        wanted.join(", ")
    };
    let mut queries = Vec::new();
    let ended = codes(&ENDED.map(|status| status.code()));
    if !ended.is_empty() {
        let workflows = overview::workflows_of(sql, filter)?;
        let workflows = condition.param(Value::texts(workflows));
        let mut terms = format!("status IN ({ended}) AND finished_at IS NOT NULL");
        for (sign, at) in [(">=", filter.finished_from), ("<", filter.finished_before)] {
            if let Some(at) = at {
                terms = format!("{terms} AND finished_at {sign} {}", condition.param(at));
            }
        }
        let index = "everstep_runs_finished";
        queries.push(overview::of_workflows::<S>(&workflows, "no", "everstep_runs", index, &terms));
    }
    if filter.finished_from.is_none() && filter.finished_before.is_none() {
        for (index, of, part) in overview::LIVE {
            let codes = codes(of);
            if codes.is_empty() {
                continue;
            }
            let mut terms = format!("{part} AND status IN ({codes})");
            if let Some(workflow) = &filter.workflow {
                // Only then is the row itself looked at.
                terms = format!("{terms} AND workflow = {}", condition.param(workflow));
            }
            let index = S::indexed_by(index);
            let live = format!("SELECT no FROM everstep_runs{index} WHERE {terms}");
            queries.push(S::pick("@", "(@ OFFSET 0)").replace('@', &live));
        }
    }
    Ok(queries.join(" UNION ALL "))
}
