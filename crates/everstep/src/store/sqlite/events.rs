//! Events in SQL: [`crate::store::rules::events`] decides, this reads and writes rows.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{batch::Applier, columns};
use crate::{
    commit::{Deliver, EventRow, InboxRow},
    run_id::RunNo,
    store::rules::{
        events::{EventName, EventTables, EventWaiter, StoredEvent},
        tables::Waiter,
    },
    time::Timestamp,
};

type Result<T> = rusqlite::Result<T>;

/// The columns that [`event`] reads.
const EVENT: &str = "seq, key, body, published_at, expires_at, one, given_to, told";

/// The columns that [`waiter`] reads.
const WAITER: &str = "name, no, matching, run, generation, wait, after, floor, given";

fn event(row: &Row<'_>) -> Result<StoredEvent> {
    Ok(StoredEvent {
        seq: number(row, 0)?,
        key: row.get(1)?,
        body: row.get(2)?,
        published_at: columns::time(row, 3)?,
        expires_at: columns::time(row, 4)?,
        deliver: if row.get(5)? {
            Deliver::One
        } else {
            Deliver::Broadcast
        },
        given_to: optional_number(row, 6)?,
        told: optional_number(row, 7)?,
    })
}

fn waiter(row: &Row<'_>) -> Result<EventWaiter> {
    Ok(EventWaiter {
        name: row.get(0)?,
        no: number(row, 1)?,
        matching: row.get(2)?,
        waiter: Waiter {
            run: RunNo(row.get(3)?),
            generation: row.get(4)?,
            key: row.get(5)?,
        },
        after: number(row, 6)?,
        floor: number(row, 7)?,
        given: optional_number(row, 8)?,
    })
}

fn number(row: &Row<'_>, column: usize) -> Result<u64> {
    row.get::<_, i64>(column).map(|number| number as u64)
}

fn optional_number(row: &Row<'_>, column: usize) -> Result<Option<u64>> {
    let number = row.get::<_, Option<i64>>(column)?;
    Ok(number.map(|number| number as u64))
}

/// A number as SQL takes it.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Applier<'_> {
    fn one_row<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row(params, read).optional()
    }

    fn all_rows<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_map(params, read)?.collect()
    }
}

impl EventTables for Applier<'_> {
    fn event_name(&mut self, name: &str) -> Result<Option<EventName>> {
        let sql =
            "SELECT last_seq, last_waiter, kept, dropped FROM everstep_event_names WHERE name = ?1";
        self.one_row(sql, [name], |row| {
            Ok(EventName {
                last_seq: number(row, 0)?,
                last_waiter: number(row, 1)?,
                kept: number(row, 2)?,
                dropped: number(row, 3)?,
            })
        })
    }

    fn write_event_name(&mut self, name: &str, row: &EventName) -> Result<()> {
        let statement = "INSERT OR REPLACE INTO everstep_event_names VALUES (?1, ?2, ?3, ?4, ?5)";
        let (last_seq, last_waiter) = (sql(row.last_seq), sql(row.last_waiter));
        let (kept, dropped) = (sql(row.kept), sql(row.dropped));
        let params = params![name, last_seq, last_waiter, kept, dropped];
        self.execute(statement, params).map(drop)
    }

    fn insert_event(&mut self, name: &str, event: &StoredEvent) -> Result<()> {
        let statement = "INSERT INTO everstep_events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let params = params![
            name,
            sql(event.seq),
            event.key,
            event.body,
            event.published_at.as_millis(),
            event.expires_at.as_millis(),
            event.deliver == Deliver::One,
            event.given_to.map(sql),
            event.told.map(sql),
        ];
        self.execute(statement, params).map(drop)
    }

    fn stored_event(&mut self, name: &str, seq: u64) -> Result<Option<StoredEvent>> {
        let statement = format!("SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND seq = ?2");
        self.one_row(&statement, params![name, sql(seq)], event)
    }

    fn write_event(&mut self, name: &str, event: &StoredEvent) -> Result<()> {
        let statement =
            "UPDATE everstep_events SET given_to = ?3, told = ?4 WHERE name = ?1 AND seq = ?2";
        let (given_to, told) = (event.given_to.map(sql), event.told.map(sql));
        self.execute(statement, params![name, sql(event.seq), given_to, told])
            .map(drop)
    }

    fn delete_event(&mut self, name: &str, seq: u64) -> Result<()> {
        let statement = "DELETE FROM everstep_events WHERE name = ?1 AND seq = ?2";
        self.execute(statement, params![name, sql(seq)]).map(drop)
    }

    fn first_event(
        &mut self,
        name: &str,
        matching: Option<&str>,
        deliver: Deliver,
        after: u64,
    ) -> Result<Option<StoredEvent>> {
        // Each has an index of its own, or the primary key.
        let of_delivery = match deliver {
            Deliver::One => "one = 1 AND given_to IS NULL",
            Deliver::Broadcast => "one = 0",
        };
        let of_key = match matching {
            Some(_) => "key = ?2",
            None => "?2 IS NULL",
        };
        let statement = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND {of_key} AND {of_delivery} \
             AND seq > ?3 AND expires_at > ?4 ORDER BY seq LIMIT 1"
        );
        self.one_row(
            &statement,
            params![name, matching, sql(after), self.now],
            event,
        )
    }

    fn last_event_before(&mut self, name: &str, at: Timestamp) -> Result<u64> {
        let statement = "SELECT seq FROM everstep_events WHERE name = ?1 AND published_at < ?2 \
                         ORDER BY seq DESC LIMIT 1";
        let found = self.one_row(statement, params![name, at.as_millis()], |row| {
            number(row, 0)
        })?;
        Ok(found.unwrap_or(0))
    }

    fn oldest_kept(&mut self, name: &str) -> Result<Option<StoredEvent>> {
        let statement = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND given_to IS NULL AND told IS NULL \
             ORDER BY seq LIMIT 1"
        );
        self.one_row(&statement, [name], event)
    }

    fn expired_events(&mut self, limit: usize) -> Result<Vec<(String, u64)>> {
        let statement = "SELECT name, seq FROM everstep_events WHERE given_to IS NULL AND told IS NULL \
                         AND expires_at <= ?1 ORDER BY expires_at, name, seq LIMIT ?2";
        self.all_rows(statement, params![self.now, columns::limit(limit)], |row| {
            Ok((row.get(0)?, number(row, 1)?))
        })
    }

    fn spreading(&mut self, name: Option<&str>) -> Result<Option<(String, u64)>> {
        let of_name = match name {
            Some(_) => "name = ?1",
            None => "?1 IS NULL",
        };
        let statement = format!(
            "SELECT name, seq FROM everstep_events INDEXED BY everstep_events_spreading \
             WHERE told IS NOT NULL AND {of_name} ORDER BY name, seq LIMIT 1"
        );
        self.one_row(&statement, [name], |row| Ok((row.get(0)?, number(row, 1)?)))
    }

    fn insert_waiter(&mut self, waiter: &EventWaiter) -> Result<()> {
        let statement = format!(
            "INSERT INTO everstep_event_waiters ({WAITER}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        );
        let params = params![
            waiter.name,
            sql(waiter.no),
            waiter.matching,
            waiter.waiter.run.0,
            waiter.waiter.generation,
            waiter.waiter.key,
            sql(waiter.after),
            sql(waiter.floor),
            waiter.given.map(sql),
        ];
        self.execute(&statement, params).map(drop)
    }

    fn waiters(
        &mut self,
        name: &str,
        matching: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventWaiter>> {
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE name = ?1 AND matching IS ?2 \
             AND given IS NULL AND no > ?3 ORDER BY no LIMIT ?4"
        );
        let params = params![name, matching, sql(after), columns::limit(limit)];
        self.all_rows(&statement, params, waiter)
    }

    fn waiter_of(&mut self, of: &Waiter) -> Result<Option<EventWaiter>> {
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE run = ?1 AND generation = ?2 AND wait = ?3"
        );
        self.one_row(&statement, params![of.run.0, of.generation, of.key], waiter)
    }

    fn waiters_of_run(&mut self, run: RunNo) -> Result<Vec<EventWaiter>> {
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE run = ?1 ORDER BY run, generation, wait"
        );
        self.all_rows(&statement, [run.0], waiter)
    }

    fn write_given(&mut self, waiter: &EventWaiter, seq: u64) -> Result<()> {
        let statement = "UPDATE everstep_event_waiters SET given = ?3 WHERE name = ?1 AND no = ?2";
        self.execute(statement, params![waiter.name, sql(waiter.no), sql(seq)])
            .map(drop)
    }

    fn delete_waiter(&mut self, waiter: &EventWaiter) -> Result<()> {
        let statement = "DELETE FROM everstep_event_waiters WHERE name = ?1 AND no = ?2";
        self.execute(statement, params![waiter.name, sql(waiter.no)])
            .map(drop)
    }

    fn cursor(&mut self, run: RunNo, name: &str, matching: Option<&str>) -> Result<u64> {
        let statement = "SELECT seq FROM everstep_event_cursors \
                         WHERE run = ?1 AND name = ?2 AND matching = ?3";
        let params = params![run.0, name, matching.unwrap_or_default()];
        let found = self.one_row(statement, params, |row| number(row, 0))?;
        Ok(found.unwrap_or(0))
    }

    fn write_cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
        seq: u64,
    ) -> Result<()> {
        let statement = "INSERT OR REPLACE INTO everstep_event_cursors VALUES (?1, ?2, ?3, ?4)";
        // A key is never empty.
        let params = params![run.0, name, matching.unwrap_or_default(), sql(seq)];
        self.execute(statement, params).map(drop)
    }

    fn delete_cursors(&mut self, run: RunNo) -> Result<()> {
        self.execute("DELETE FROM everstep_event_cursors WHERE run = ?1", [run.0])
            .map(drop)
    }

    fn event_dedupe(&mut self, name: &str, key: &str) -> Result<Option<Timestamp>> {
        let statement = "SELECT until FROM everstep_event_dedupes WHERE name = ?1 AND key = ?2";
        self.one_row(statement, [name, key], |row| columns::time(row, 0))
    }

    fn write_event_dedupe(&mut self, name: &str, key: &str, until: Timestamp) -> Result<()> {
        let statement = "INSERT OR REPLACE INTO everstep_event_dedupes VALUES (?1, ?2, ?3)";
        self.execute(statement, params![name, key, until.as_millis()])
            .map(drop)
    }

    fn delete_event_dedupes(&mut self, limit: usize) -> Result<usize> {
        let statement = "DELETE FROM everstep_event_dedupes WHERE (name, key) IN \
                         (SELECT name, key FROM everstep_event_dedupes WHERE until <= ?1 LIMIT ?2)";
        self.execute(statement, params![self.now, columns::limit(limit)])
    }

    fn take_fallbacks(&mut self, run: RunNo) -> Result<Vec<InboxRow>> {
        let statement = format!(
            "DELETE FROM everstep_inbox WHERE run = ?1 AND on_end IS NOT NULL RETURNING {}",
            columns::INBOX_ROW
        );
        let mut rows = self.all_rows(&statement, [run.0], columns::inbox_row)?;
        rows.sort_by_key(|row| row.seq);
        Ok(rows)
    }
}

pub(crate) fn event_row(conn: &Connection, name: &str) -> Result<Option<EventRow>> {
    let statement = "SELECT last_seq, kept, dropped, (SELECT count(*) FROM everstep_event_waiters \
                     WHERE everstep_event_waiters.name = everstep_event_names.name AND given IS NULL) \
                     FROM everstep_event_names WHERE name = ?1";
    let mut statement = conn.prepare_cached(statement)?;
    let row = statement.query_row([name], |row| {
        Ok(EventRow {
            name: name.to_owned(),
            published: number(row, 0)?,
            kept: number(row, 1)?,
            dropped: number(row, 2)?,
            waiting: number(row, 3)?,
        })
    });
    row.optional()
}

pub(crate) fn to_tend(conn: &Connection, now: Timestamp) -> Result<bool> {
    // Each is answered by its index.
    let statement = "SELECT EXISTS (SELECT 1 FROM everstep_events WHERE told IS NOT NULL) \
                     OR EXISTS (SELECT 1 FROM everstep_events WHERE given_to IS NULL AND told IS NULL \
                                AND expires_at <= ?1) \
                     OR EXISTS (SELECT 1 FROM everstep_event_dedupes WHERE until <= ?1)";
    let mut statement = conn.prepare_cached(statement)?;
    statement.query_row([now.as_millis()], |row| row.get(0))
}
