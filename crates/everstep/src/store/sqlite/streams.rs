//! Streams in SQL: [`streams`] decides, this writes and reads.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{batch::Applier, columns};
use crate::{
    run_id::RunNo,
    store::{
        rules::streams::{self, StreamTables},
        *,
    },
};

impl StreamTables for Applier<'_> {
    fn stream_end(&mut self, run: RunNo, stream: &str) -> rusqlite::Result<Option<u64>> {
        edge(self.conn, run, stream, "DESC")
    }

    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO everstep_streams (run, stream, pos, at, generation, step, attempt, life, \
                   body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let by = row.by.as_ref();
        let params = params![
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
        self.execute(sql, params).map(drop)
    }

    fn trim_stream(&mut self, run: RunNo, stream: &str, pos: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_streams WHERE run = ?1 AND stream = ?2 AND pos < ?3";
        self.execute(sql, params![run.0, stream, pos as i64])
            .map(drop)
    }
}

/// The first or the last position of a stream.
fn edge(conn: &Connection, run: RunNo, stream: &str, order: &str) -> rusqlite::Result<Option<u64>> {
    let sql = format!(
        "SELECT pos FROM everstep_streams WHERE run = ?1 AND stream = ?2 ORDER BY pos {order} LIMIT 1"
    );
    conn.prepare_cached(&sql)?
        .query_row(params![run.0, stream], |row| row.get::<_, i64>(0))
        .optional()
        .map(|pos| pos.map(|pos| pos as u64))
}

pub(super) fn page(
    conn: &Connection,
    run: RunNo,
    stream: &str,
    from: u64,
    limit: usize,
) -> rusqlite::Result<Option<StreamPage>> {
    let sql = "SELECT status FROM everstep_runs WHERE no = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let status = statement.query_row([run.0], |row| columns::status(row, 0));
    let Some(status) = status.optional()? else {
        return Ok(None);
    };
    let next = edge(conn, run, stream, "DESC")?.map_or(0, |last| last + 1);
    let first = edge(conn, run, stream, "ASC")?.unwrap_or(next);
    let sql = "SELECT pos, at, generation, step, attempt, life, body FROM everstep_streams \
               WHERE run = ?1 AND stream = ?2 AND pos >= ?3 ORDER BY pos";
    let mut statement = conn.prepare_cached(sql)?;
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![run.0, stream, from], stream_row)?;
    Ok(Some(StreamPage {
        status,
        first,
        next,
        items: streams::page(rows, limit)?,
    }))
}

fn stream_row(row: &Row<'_>) -> rusqlite::Result<StreamRow> {
    let by = match row.get::<_, Option<Vec<u8>>>(3)? {
        None => None,
        Some(step) => Some(EmittedBy {
            step,
            attempt: row.get(4)?,
            life: row.get::<_, i64>(5)? as u64,
        }),
    };
    Ok(StreamRow {
        pos: row.get::<_, i64>(0)? as u64,
        at: columns::time(row, 1)?,
        generation: row.get(2)?,
        by,
        body: row.get(6)?,
    })
}

/// The names of a run's streams. Jumps from one to the next, however long they are.
pub(super) fn names(conn: &Connection, run: RunNo) -> rusqlite::Result<Vec<String>> {
    let sql = "WITH RECURSIVE names (name) AS ( \
                   SELECT min(stream) FROM everstep_streams WHERE run = ?1 \
                   UNION ALL \
                   SELECT (SELECT min(stream) FROM everstep_streams WHERE run = ?1 AND stream > name) \
                   FROM names WHERE name IS NOT NULL) \
               SELECT name FROM names WHERE name IS NOT NULL";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([run.0], |row| row.get(0))?;
    rows.collect()
}

pub(super) fn extents(conn: &Connection, run: RunNo) -> rusqlite::Result<Vec<StreamExtent>> {
    // What a deleted run has left is not shown any more.
    let sql = "SELECT 1 FROM everstep_runs WHERE no = ?1";
    if !conn.prepare_cached(sql)?.exists([run.0])? {
        return Ok(Vec::new());
    }
    let extent = |stream: String| {
        let next = edge(conn, run, &stream, "DESC")?.map_or(0, |last| last + 1);
        let first = edge(conn, run, &stream, "ASC")?.unwrap_or(next);
        Ok(StreamExtent {
            stream,
            first,
            next,
        })
    };
    names(conn, run)?.into_iter().map(extent).collect()
}

pub(super) fn grown(
    conn: &Connection,
    asked: &[(RunNo, String, u64)],
) -> rusqlite::Result<Vec<usize>> {
    let asked = asked
        .iter()
        .map(|(run, stream, from)| (run.0, stream, i64::try_from(*from).unwrap_or(i64::MAX)))
        .collect::<Vec<_>>();
    let sql = "SELECT key FROM json_each(?1) WHERE EXISTS (SELECT 1 FROM everstep_streams \
               WHERE run = value ->> 0 AND stream = value ->> 1 AND pos >= value ->> 2) \
               AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = value ->> 0)";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([columns::to_json(&asked)], |row| {
        Ok(row.get::<_, i64>(0)? as usize)
    })?;
    rows.collect()
}
