//! The rows of streams.
//!
//! Whoever appends has the run's row locked, so where a stream ends is read once in a batch.

use std::{collections::HashMap, ops::ControlFlow};

use super::{
    InSql, Query, Sql, SqlTables,
    bulk::Bulk,
    value::{BadValue, Row, Value, borrowed, params},
};
use crate::{
    run_id::RunNo,
    store::{
        EmittedBy, StreamExtent, StreamPage, StreamRow,
        rows::{PAGE_BYTES_MAX, StreamTables, fits_page},
    },
};

static APPEND: Bulk = Bulk::insert(
    "everstep_streams",
    3,
    "run bigint, stream text, pos bigint, at bigint, generation bigint, step bytea, \
     attempt bigint, life bigint, body bytea",
);

/// Under a name of its own, so that it does not part the items of a batch: it may come after any of
/// them, since it never reaches the newest.
static REMOVE_BEFORE: Bulk = Bulk::written(
    "streams, their oldest items",
    2,
    "DELETE FROM everstep_streams WHERE run = ?1 AND stream = ?2 AND pos < ?3",
    "DELETE FROM everstep_streams USING unnest(?1::bigint[], ?2::text[], ?3::bigint[]) \
     AS gone (r, s, p) WHERE run = r AND stream = s AND pos < p",
);

/// Where streams end, for those that a batch appends to.
#[derive(Default)]
pub(crate) struct Tails(HashMap<RunNo, HashMap<String, Tail>>);

#[derive(Clone, Copy, Default)]
struct Tail {
    last: Option<u64>,
    /// Everything before this is gone.
    first: u64,
}

impl Tails {
    /// Remembers the newest position of a stream.
    pub(crate) fn add(&mut self, run: RunNo, stream: String, last: Option<u64>) {
        let tails = self.0.entry(run).or_default();
        tails.insert(stream, Tail { last, first: 0 });
    }

    fn get_mut(&mut self, run: RunNo, stream: &str) -> Option<&mut Tail> {
        self.0.get_mut(&run)?.get_mut(stream)
    }
}

impl<T: SqlTables> StreamTables for InSql<T> {
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, T::Error> {
        if let Some(tail) = self.ahead().tails.get_mut(run, stream) {
            return Ok(tail.last);
        }
        let sql = "SELECT pos FROM everstep_streams WHERE run = ?1 AND stream = ?2 \
                   ORDER BY pos DESC LIMIT 1";
        let last = self.sql().row(sql, params![run, stream], |row| row.get(0))?;
        self.ahead().tails.add(run, stream.to_owned(), last);
        Ok(last)
    }

    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
        first_kept: u64,
    ) -> Result<(), T::Error> {
        let by = row.by.as_ref();
        let (step, attempt) = (by.map(|by| &by.step), by.map(|by| by.attempt));
        let life = by.map(|by| by.life as i64);
        let values =
            params![run, stream, row.pos, row.at, row.generation, step, attempt, life, row.body,];
        self.sql().put(&APPEND, values)?;
        let mut first = first_kept;
        if let Some(tail) = self.ahead().tails.get_mut(run, stream) {
            tail.last = Some(row.pos);
            // A later one, which takes the place of an earlier one, may keep more.
            tail.first = tail.first.max(first);
            first = tail.first;
        }
        if first_kept == 0 {
            return Ok(());
        }
        self.sql().put(&REMOVE_BEFORE, params![run, stream, first])
    }
}

/// The first and the last position of a stream, each found by its end of the index.
fn edges(run: &str, stream: &str) -> String {
    let edge = |order: &str| {
        format!(
            "(SELECT pos FROM everstep_streams WHERE run = {run} AND stream = {stream} \
             ORDER BY pos {order} LIMIT 1)"
        )
    };
    format!("{}, {}", edge("ASC"), edge("DESC"))
}

/// Where a stream begins and what comes next, from what [`edges`] has found.
fn extent(row: &dyn Row, column: usize) -> Result<(u64, u64), BadValue> {
    let (first, last): (Option<u64>, Option<u64>) = (row.get(column)?, row.get(column + 1)?);
    let next = last.map_or(0, |last| last + 1);
    Ok((first.unwrap_or(next), next))
}

pub(crate) fn page<S: Sql>(
    sql: &S,
    run: RunNo,
    stream: &str,
    from: u64,
    limit: usize,
) -> Result<Option<StreamPage>, S::Error> {
    let about = format!("SELECT status, {} FROM everstep_runs WHERE no = ?1", edges("?1", "?2"));
    // SQLite gives one row after another. PostgreSQL sends all, so it leaves out what comes behind the
    // row that fills the page.
    let items = S::pick(
        "SELECT pos, at, generation, step, attempt, life, body FROM everstep_streams \
         WHERE run = ?1 AND stream = ?2 AND pos >= ?3 ORDER BY pos LIMIT ?4",
        "SELECT pos, at, generation, step, attempt, life, body FROM (SELECT *, \
         sum(length(body)) OVER (ORDER BY pos) - length(body) AS bytes_before \
         FROM (SELECT * FROM everstep_streams WHERE run = ?1 AND stream = ?2 AND pos >= ?3 \
         ORDER BY pos LIMIT ?4) AS asked) AS summed WHERE bytes_before <= ?5 ORDER BY pos",
    );
    let mut page = None;
    let (mut found, mut bytes) = (Vec::new(), 0);
    sql.ask(vec![
        Query::first(about, params![run, stream], &mut page, |row| {
            let (first, next) = extent(row, 1)?;
            Ok(StreamPage { status: row.get(0)?, first, next, items: Vec::new() })
        }),
        Query::new(items, params![run, stream, from, limit, PAGE_BYTES_MAX], |row| {
            let row = stream_row(row)?;
            if !fits_page(&found, &mut bytes, &row) {
                return Ok(ControlFlow::Break(()));
            }
            found.push(row);
            Ok(ControlFlow::Continue(()))
        }),
    ])?;
    Ok(page.map(|page| StreamPage { items: found, ..page }))
}

fn stream_row(row: &dyn Row) -> Result<StreamRow, BadValue> {
    let by = match row.get::<Option<Vec<u8>>>(3)? {
        None => None,
        Some(step) => Some(EmittedBy { step, attempt: row.get(4)?, life: row.get(5)? }),
    };
    Ok(StreamRow {
        pos: row.get(0)?,
        at: row.get(1)?,
        generation: row.get(2)?,
        by,
        body: row.get(6)?,
    })
}

/// The names of a run's streams. Jumps from one to the next, however long they are.
pub(crate) const NAMES: &str = "WITH RECURSIVE names (name) AS ( \
        SELECT (SELECT stream FROM everstep_streams WHERE run = ?1 ORDER BY stream LIMIT 1) \
        UNION ALL \
        SELECT (SELECT stream FROM everstep_streams WHERE run = ?1 AND stream > name \
        ORDER BY stream LIMIT 1) FROM names WHERE name IS NOT NULL) \
        SELECT name FROM names WHERE name IS NOT NULL ORDER BY name";

pub(crate) fn extents<S: Sql>(sql: &S, run: RunNo) -> Result<Vec<StreamExtent>, S::Error> {
    // What a deleted run has left is not shown any more.
    let text = format!(
        "SELECT name, {} FROM ({NAMES}) AS names \
         WHERE EXISTS (SELECT 1 FROM everstep_runs WHERE no = ?1) ORDER BY name",
        edges("?1", "name")
    );
    sql.rows(text, params![run], |row| {
        let (first, next) = extent(row, 1)?;
        Ok(StreamExtent { stream: row.get(0)?, first, next })
    })
}

/// Which of these streams have an item at this position or after it.
pub(crate) fn grown<S: Sql>(
    sql: &S,
    asked: &[(RunNo, String, u64)],
) -> Result<Vec<usize>, S::Error> {
    let places = S::pick(
        "(SELECT key AS place, value AS r, ?2 ->> key AS s, ?3 ->> key AS p FROM json_each(?1))",
        "(SELECT place - 1 AS place, r, s, p FROM unnest(?1::bigint[], ?2::text[], ?3::bigint[]) \
         WITH ORDINALITY AS lists (r, s, p, place))",
    );
    let text = format!(
        "SELECT place FROM {places} AS asked WHERE EXISTS (SELECT 1 FROM everstep_streams \
         WHERE run = r AND stream = s AND pos >= p) \
         AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = r) ORDER BY place"
    );
    let froms = asked.iter().map(|(_, _, from)| i64::try_from(*from));
    let lists = [
        Value::ints(asked.iter().map(|(run, ..)| run.0)),
        Value::texts(asked.iter().map(|(_, stream, _)| stream.clone())),
        Value::ints(froms.map(|from| from.unwrap_or(i64::MAX))),
    ];
    sql.rows(text, &borrowed(&lists), |row| row.get(0))
}
