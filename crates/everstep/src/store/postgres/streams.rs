//! Streams in SQL: [`streams`] decides, this writes and reads.
//!
//! Whoever appends has the run's row locked, so where a stream ends is read once in a batch.

use std::collections::HashMap;

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    session::{Bulk, Op, Session},
    value::{Row, Value, params},
};
use crate::{
    run_id::RunNo,
    store::{
        rules::streams::{self, StreamTables},
        *,
    },
};

static APPEND: Bulk = Bulk {
    table: "everstep_streams",
    sql: "INSERT INTO everstep_streams (run, stream, pos, at, generation, step, attempt, life, body) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], \
          $5::bigint[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bytea[])",
    unique: 3,
};

/// Under a name of its own, so that it does not part the items of a batch: it may come after any of
/// them, since it never reaches the newest.
static REMOVE_BEFORE: Bulk = Bulk {
    table: "streams, their oldest items",
    sql: "DELETE FROM everstep_streams USING unnest($1::bigint[], $2::text[], $3::bigint[]) \
          AS gone (r, s, p) WHERE run = r AND stream = s AND pos < p",
    unique: 2,
};

/// Where streams end, for those that a batch appends to.
#[derive(Default)]
pub(super) struct Tails(HashMap<RunNo, HashMap<String, Tail>>);

#[derive(Clone, Copy, Default)]
struct Tail {
    last: Option<u64>,
    /// Everything before this is gone.
    first: u64,
}

impl Tails {
    /// Asks for the ends of these.
    pub(super) fn op<'n>(named: impl Iterator<Item = &'n (RunNo, String)>) -> Op {
        let (runs, names) = named
            .map(|(run, name)| (Some(run.0), Some(name.clone())))
            .unzip();
        let sql = "SELECT r, s, (SELECT pos FROM everstep_streams WHERE run = r AND stream = s \
                   ORDER BY pos DESC LIMIT 1) FROM unnest($1::bigint[], $2::text[]) \
                   AS asked (r, s)";
        Op::new(sql, vec![Value::Ints(runs), Value::Texts(names)])
    }

    /// Remembers the answer to that.
    pub(super) fn add(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for row in rows {
            let (run, last) = (RunNo(row.get(0)?), columns::optional_number(row, 2)?);
            let first = 0;
            let tails = self.0.entry(run).or_default();
            tails.insert(row.get(1)?, Tail { last, first });
        }
        Ok(())
    }

    fn get_mut(&mut self, run: RunNo, stream: &str) -> Option<&mut Tail> {
        self.0.get_mut(&run)?.get_mut(stream)
    }
}

impl StreamTables for Applier<'_> {
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, Trouble> {
        if let Some(tail) = self.ahead.tails.get_mut(run, stream) {
            return Ok(tail.last);
        }
        // Not named at the beginning.
        let op = Tails::op([(run, stream.to_owned())].iter());
        self.read_ahead(vec![(op, |applier, rows| applier.ahead.tails.add(rows))])?;
        let tails = &mut self.ahead.tails;
        Ok(tails.get_mut(run, stream).and_then(|tail| tail.last))
    }

    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
    ) -> Result<(), Trouble> {
        let by = row.by.as_ref();
        let values = params![
            run.0,
            stream,
            row.pos as i64,
            row.at.as_millis(),
            row.generation,
            by.map(|by| &by.step),
            by.map(|by| by.attempt),
            by.map(|by| by.life as i64),
            row.body,
        ];
        self.session.put(&APPEND, values);
        if let Some(tail) = self.ahead.tails.get_mut(run, stream) {
            tail.last = Some(row.pos);
        }
        Ok(())
    }

    fn trim_stream(&mut self, run: RunNo, stream: &str, pos: u64) -> Result<(), Trouble> {
        let mut first = pos;
        if let Some(tail) = self.ahead.tails.get_mut(run, stream) {
            // A later one, which takes the place of an earlier one, may keep more.
            tail.first = tail.first.max(pos);
            first = tail.first;
        }
        let row = params![run.0, stream, columns::limit(first)];
        self.session.put(&REMOVE_BEFORE, row);
        Ok(())
    }
}

pub(super) fn page(
    session: &Session<'_>,
    run: RunNo,
    stream: &str,
    from: u64,
    limit: usize,
) -> Result<Option<StreamPage>, Trouble> {
    // One statement, so that all of it is of one instant. The rows before the last one that fits
    // into a page have no more bytes than a page may have.
    let sql = "WITH items AS (SELECT * FROM (SELECT pos, at, generation, step, attempt, life, \
               body, sum(length(body)) OVER (ORDER BY pos) - length(body) AS bytes_before \
               FROM (SELECT * FROM everstep_streams WHERE run = $1 AND stream = $2 AND pos >= $3 \
               ORDER BY pos LIMIT $4) AS asked) AS summed WHERE bytes_before <= $5) \
               SELECT items.pos, items.at, items.generation, step, items.attempt, life, body, \
               status, (SELECT min(pos) FROM everstep_streams WHERE run = $1 AND stream = $2), \
               (SELECT max(pos) FROM everstep_streams WHERE run = $1 AND stream = $2) \
               FROM everstep_runs LEFT JOIN items ON true WHERE no = $1 ORDER BY items.pos";
    let params = params![
        run.0,
        stream,
        columns::limit(from),
        columns::limit(limit),
        columns::limit(streams::PAGE_BYTES_MAX),
    ];
    let mut about = None;
    let rows = session.rows(sql, params, |row| {
        let first = columns::optional_number(row, 8)?;
        let last = columns::optional_number(row, 9)?;
        about = Some((columns::status(row, 7)?, first, last));
        let is_item = row.get::<Option<i64>>(0)?.is_some();
        is_item.then(|| stream_row(row)).transpose()
    })?;
    let Some((status, first, last)) = about else {
        return Ok(None);
    };
    let next = last.map_or(0, |last| last + 1);
    let items = rows.into_iter().flatten().map(Ok::<_, Trouble>);
    Ok(Some(StreamPage {
        status,
        first: first.unwrap_or(next),
        next,
        items: streams::page(items, limit)?,
    }))
}

fn stream_row(row: &Row) -> Result<StreamRow, Trouble> {
    let by = match row.get::<Option<Vec<u8>>>(3)? {
        None => None,
        Some(step) => Some(EmittedBy {
            step,
            attempt: row.get(4)?,
            life: columns::number(row, 5)?,
        }),
    };
    Ok(StreamRow {
        pos: columns::number(row, 0)?,
        at: columns::time(row, 1)?,
        generation: row.get(2)?,
        by,
        body: row.get(6)?,
    })
}

/// The names of a run's streams. Jumps from one to the next, however long they are.
pub(super) const NAMES: &str = "WITH RECURSIVE names (name) AS ( \
        (SELECT stream FROM everstep_streams WHERE run = $1 ORDER BY stream LIMIT 1) \
        UNION ALL \
        SELECT (SELECT stream FROM everstep_streams WHERE run = $1 AND stream > name \
        ORDER BY stream LIMIT 1) FROM names WHERE name IS NOT NULL) \
        SELECT name FROM names WHERE name IS NOT NULL ORDER BY name";

pub(super) fn extents(session: &Session<'_>, run: RunNo) -> Result<Vec<StreamExtent>, Trouble> {
    // What a deleted run has left is not shown any more.
    let sql = format!(
        "SELECT name, \
         (SELECT pos FROM everstep_streams WHERE run = $1 AND stream = name ORDER BY pos LIMIT 1), \
         (SELECT pos FROM everstep_streams WHERE run = $1 AND stream = name ORDER BY pos DESC LIMIT 1) \
         FROM ({NAMES}) AS names WHERE EXISTS (SELECT 1 FROM everstep_runs WHERE no = $1) \
         ORDER BY name"
    );
    session.rows(sql, params![run.0], |row| {
        let next = columns::optional_number(row, 2)?.map_or(0, |last| last + 1);
        Ok(StreamExtent {
            stream: row.get(0)?,
            first: columns::optional_number(row, 1)?.unwrap_or(next),
            next,
        })
    })
}

pub(super) fn grown(
    session: &Session<'_>,
    asked: &[(RunNo, String, u64)],
) -> Result<Vec<usize>, Trouble> {
    let (mut runs, mut names, mut from) = (Vec::new(), Vec::new(), Vec::new());
    for (run, stream, pos) in asked {
        runs.push(Some(run.0));
        names.push(Some(stream.clone()));
        from.push(Some(columns::limit(*pos)));
    }
    let sql = "SELECT place - 1 FROM unnest($1::bigint[], $2::text[], $3::bigint[]) \
               WITH ORDINALITY AS asked (r, s, p, place) WHERE EXISTS (SELECT 1 FROM everstep_streams \
               WHERE run = r AND stream = s AND pos >= p) \
               AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = r) ORDER BY place";
    let params = vec![Value::Ints(runs), Value::Texts(names), Value::Ints(from)];
    session.rows(sql, params, |row| Ok(columns::number(row, 0)? as usize))
}
