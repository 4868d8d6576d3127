//! Pages of runs, newest first: what [`rules::listing`] asks for, in SQL.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};

use super::{
    columns,
    overview::{self, ENDED},
    reads::{self, Params},
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

pub(crate) fn list(
    conn: &Connection,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> rusqlite::Result<Vec<RunRow>> {
    let listing = Listing {
        conn,
        filter,
        columns: columns::RUN_ROW,
        read: columns::run_row,
    };
    listing::page(&listing, filter, after, limit)
}

pub(crate) fn find(
    conn: &Connection,
    filter: &Filter,
    after: Option<RunNo>,
    limit: usize,
) -> rusqlite::Result<Vec<RunId>> {
    let listing = Listing {
        conn,
        filter,
        columns: "id",
        read: |row| columns::run_id(row, 0),
    };
    listing::page(&listing, filter, after, limit)
}

struct Listing<'c, T> {
    conn: &'c Connection,
    filter: &'c Filter,
    columns: &'static str,
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
}

impl<T> listing::Listing for Listing<'_, T> {
    type Row = T;
    type Error = rusqlite::Error;

    fn walk(&self, from: RunNo, before: RunNo, limit: usize) -> rusqlite::Result<Vec<T>> {
        let (condition, mut params) = reads::condition(self.filter);
        // By number, whatever else the planner may think of.
        let sql = format!(
            "SELECT {} FROM everstep_runs NOT INDEXED WHERE {condition} AND no >= ? AND no < ? \
             ORDER BY no DESC LIMIT ?",
            self.columns
        );
        params.extend([from.0, before.0, columns::limit(limit)].map(boxed));
        let mut statement = self.conn.prepare(&sql)?;
        let rows = statement.query_map(params_from_iter(params), self.read)?;
        rows.collect()
    }

    fn nth_before(&self, before: RunNo, n: usize) -> rusqlite::Result<Option<RunNo>> {
        let sql = "SELECT no FROM everstep_runs NOT INDEXED WHERE no < ?1 ORDER BY no DESC \
                   LIMIT 1 OFFSET ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        let params = params![before.0, columns::limit(n) - 1];
        let found = statement.query_row(params, |row| row.get(0).map(RunNo));
        found.optional()
    }

    fn candidates(&self, by: By, before: RunNo, limit: usize) -> rusqlite::Result<Vec<RunNo>> {
        let queries = match by {
            By::Number => Vec::new(),
            By::Tag => vec![by_tag(self.filter)],
            By::Key => vec![by_key(self.conn, self.filter)?],
            By::Status => by_status(self.conn, self.filter)?,
        };
        let mut found = Vec::new();
        for (sql, mut params) in queries {
            let sql = format!("{sql} AND no < ? ORDER BY no DESC LIMIT ?");
            params.extend([before.0, columns::limit(limit)].map(boxed));
            let mut statement = self.conn.prepare(&sql)?;
            let rows = statement.query_map(params_from_iter(params), |row| row.get(0).map(RunNo));
            found.extend(rows?.collect::<rusqlite::Result<Vec<RunNo>>>()?);
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.truncate(limit);
        Ok(found)
    }

    fn matching(&self, of: &[RunNo], limit: usize) -> rusqlite::Result<Vec<T>> {
        let (condition, params) = reads::condition(self.filter);
        let sql = format!(
            "SELECT {} FROM everstep_runs WHERE no = ? AND {condition}",
            self.columns
        );
        let mut statement = self.conn.prepare(&sql)?;
        let mut found = Vec::new();
        for no in of {
            if found.len() == limit {
                break;
            }
            let params = params_from_iter(
                std::iter::once(&no.0 as &dyn ToSql).chain(params.iter().map(|param| &**param)),
            );
            found.extend(statement.query_row(params, self.read).optional()?);
        }
        Ok(found)
    }
}

fn boxed(number: i64) -> Box<dyn ToSql> {
    Box::new(number)
}

/// The runs with the first tag that have all others, too, in the order of the table of tags.
fn by_tag(filter: &Filter) -> (String, Params) {
    let mut sql = "SELECT run AS no FROM everstep_tags WHERE name = ? AND value = ?".to_owned();
    let mut params = Params::new();
    for (place, (name, value)) in filter.tags.iter().enumerate() {
        if place > 0 {
            sql.push_str(
                " AND EXISTS (SELECT 1 FROM everstep_tags AS other WHERE other.name = ? \
                 AND other.value = ? AND other.run = everstep_tags.run)",
            );
        }
        params.push(Box::new(name.clone()));
        params.push(Box::new(value.clone()));
    }
    (sql, params)
}

/// The runs whose keys begin so. There are keys of one workflow after those of another.
pub(super) fn by_key(conn: &Connection, filter: &Filter) -> rusqlite::Result<(String, Params)> {
    let prefix = filter.key_prefix.clone().unwrap_or_default();
    let workflows = match &filter.workflow {
        Some(workflow) => vec![workflow.clone()],
        None => workflows_with_keys(conn)?,
    };
    let end = rules::prefix_end(&prefix);
    let mut sql = "SELECT run AS no FROM json_each(?) AS asked CROSS JOIN everstep_keys \
                   ON everstep_keys.workflow = asked.value WHERE everstep_keys.key >= ?"
        .to_owned();
    let mut params: Params = vec![Box::new(columns::to_json(&workflows)), Box::new(prefix)];
    if let Some(end) = end {
        sql.push_str(" AND everstep_keys.key < ?");
        params.push(Box::new(end));
    }
    Ok((sql, params))
}

/// The workflows of which a run has a key: one look into the table for each.
fn workflows_with_keys(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT workflow FROM everstep_keys WHERE workflow > ?1 ORDER BY workflow LIMIT 1";
    overview::names(conn, sql)
}

/// The runs of these statuses and this workflow that have ended in this time.
fn by_status(conn: &Connection, filter: &Filter) -> rusqlite::Result<Vec<(String, Params)>> {
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
        let workflows = match &filter.workflow {
            Some(workflow) => vec![workflow.clone()],
            None => overview::workflows(conn)?,
        };
        let mut sql = format!(
            "SELECT no FROM json_each(?) AS asked CROSS JOIN everstep_runs INDEXED BY everstep_runs_finished \
             ON everstep_runs.workflow = asked.value AND everstep_runs.status IN ({ended}) \
             WHERE finished_at IS NOT NULL"
        );
        let mut params: Params = vec![Box::new(columns::to_json(&workflows))];
        let times = [
            (" AND finished_at >= ?", filter.finished_from),
            (" AND finished_at < ?", filter.finished_before),
        ];
        for (term, at) in times {
            if let Some(at) = at {
                sql.push_str(term);
                params.push(Box::new(at.as_millis()));
            }
        }
        queries.push((sql, params));
    }
    if filter.finished_from.is_some() || filter.finished_before.is_some() {
        return Ok(queries);
    }
    for (index, of, condition) in overview::LIVE {
        let codes = codes(of);
        if codes.is_empty() {
            continue;
        }
        let mut sql = format!(
            "SELECT no FROM everstep_runs INDEXED BY {index} WHERE {condition} AND status IN ({codes})"
        );
        let mut params = Params::new();
        if let Some(workflow) = &filter.workflow {
            // Only then is the row itself looked at.
            sql.push_str(" AND workflow = ?");
            params.push(Box::new(workflow.clone()));
        }
        queries.push((sql, params));
    }
    Ok(queries)
}
