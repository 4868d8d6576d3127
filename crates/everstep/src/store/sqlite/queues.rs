//! The items of queues in SQL: rows for [`rules::queues`], and what
//! clients read.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{batch::Applier, columns, error::bad_value};
use crate::{
    commit::ItemId,
    run_id::RunNo,
    store::{
        rules::{
            queues::{HOLDERS, ItemHead, ItemNews, QueueTables, ReadyItem, Wait},
            tables::Waiter,
        },
        *,
    },
    time::Timestamp,
};

/// The columns that [`head`] reads.
const HEAD: &str = "no, queue, state, at, claim, attempts, keep_ms, created_at";

/// The columns that [`item_row`] reads.
const ROW: &str =
    "no, queue, state, at, rank, attempts, dedupe, created_at, payload, error, answer";

fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<ItemState> {
    let code: u8 = row.get(column)?;
    ItemState::from_code(code).ok_or_else(|| bad_value("state", code))
}

fn item_id(row: &Row<'_>, column: usize) -> rusqlite::Result<ItemId> {
    Ok(ItemId(row.get::<_, i64>(column)? as u64))
}

fn head(row: &Row<'_>) -> rusqlite::Result<ItemHead> {
    Ok(ItemHead {
        id: item_id(row, 0)?,
        queue: row.get(1)?,
        state: state(row, 2)?,
        at: columns::time(row, 3)?,
        claim: row.get::<_, Option<[u8; 16]>>(4)?.map(Uuid::from_bytes),
        attempts: row.get(5)?,
        keep: Duration::from_millis(row.get::<_, i64>(6)? as u64),
        created_at: columns::time(row, 7)?,
    })
}

fn item_row(row: &Row<'_>) -> rusqlite::Result<ItemRow> {
    let rank: i64 = row.get(4)?;
    Ok(ItemRow {
        id: item_id(row, 0)?,
        queue: row.get(1)?,
        state: state(row, 2)?,
        at: columns::time(row, 3)?,
        priority: i32::try_from(-rank).map_err(|_| bad_value("rank", rank))?,
        attempts: row.get(5)?,
        dedupe: row.get(6)?,
        created_at: columns::time(row, 7)?,
        payload: row.get(8)?,
        error: row.get(9)?,
        answer: row.get(10)?,
    })
}

/// The condition for this state, as a text that shows SQLite which partial index holds its rows: the
/// index's own condition must stand in the query word for word.
pub(super) const fn in_state(state: ItemState) -> &'static str {
    match state {
        ItemState::Ready => "state = 0",
        ItemState::Delayed => "state = 1 AND state IN (1, 2, 3)",
        ItemState::Claimed => "state = 2 AND state IN (1, 2, 3)",
        ItemState::Done => "state = 3 AND state IN (1, 2, 3)",
        ItemState::Dead => "state = 4",
    }
}

/// The number as SQL takes it. Numbers are given out by SQLite, which has signed ones.
fn no(item: ItemId) -> i64 {
    i64::try_from(item.0).unwrap_or(i64::MAX)
}

pub(crate) fn item(conn: &Connection, item: ItemId) -> rusqlite::Result<Option<ItemRow>> {
    let sql = format!("SELECT {ROW} FROM queue_items WHERE no = ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    statement.query_row([no(item)], item_row).optional()
}

pub(crate) fn list(
    conn: &Connection,
    queue: &str,
    state: Option<ItemState>,
    after: Option<ItemId>,
    limit: usize,
) -> rusqlite::Result<Vec<ItemRow>> {
    let after = after.map_or(-1, no);
    let state = state.map_or_else(String::new, |state| format!("AND {}", in_state(state)));
    let sql = format!(
        "SELECT {ROW} FROM queue_items WHERE queue = ?1 {state} AND no > ?2 ORDER BY no LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![queue, after, columns::limit(limit)], item_row)?;
    rows.collect()
}

pub(crate) fn stats(conn: &Connection, queue: &str) -> rusqlite::Result<QueueStats> {
    let count = |state: ItemState| -> rusqlite::Result<u64> {
        let sql = format!(
            "SELECT count(*) FROM queue_items WHERE queue = ?1 AND {}",
            in_state(state)
        );
        let mut statement = conn.prepare_cached(&sql)?;
        Ok(statement.query_row([queue], |row| row.get::<_, i64>(0))? as u64)
    };
    let sql = "SELECT min(at) FROM queue_items WHERE queue = ?1 AND state = 0";
    let mut oldest = conn.prepare_cached(sql)?;
    Ok(QueueStats {
        ready: count(ItemState::Ready)?,
        delayed: count(ItemState::Delayed)?,
        claimed: count(ItemState::Claimed)?,
        done: count(ItemState::Done)?,
        dead: count(ItemState::Dead)?,
        oldest_ready: oldest.query_row([queue], |row| columns::optional_time(row, 0))?,
    })
}

pub(crate) fn outlook(
    conn: &Connection,
    queue: &str,
    now: Timestamp,
) -> rusqlite::Result<QueueOutlook> {
    let sql = "SELECT 1 FROM queue_items WHERE queue = ?1 AND state = 0 LIMIT 1";
    let is_ready = conn.prepare_cached(sql)?.exists([queue])?;
    let delayed = first_time(conn, queue, ItemState::Delayed)?;
    let claimed = first_time(conn, queue, ItemState::Claimed)?;
    let next_at = [delayed, claimed].into_iter().flatten().min();
    let ready = is_ready || next_at.is_some_and(|at| at <= now);
    Ok(QueueOutlook { ready, next_at })
}

pub(crate) fn first_place_lost(conn: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT min(item.at) FROM limit_places AS place JOIN queue_items AS item \
               ON item.no = CAST(CAST(place.operation AS TEXT) AS INTEGER) WHERE place.run = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    statement.query_row([HOLDERS.0], |row| columns::optional_time(row, 0))
}

fn first_time(
    conn: &Connection,
    queue: &str,
    state: ItemState,
) -> rusqlite::Result<Option<Timestamp>> {
    let sql = format!(
        "SELECT at FROM queue_items INDEXED BY queue_timed WHERE queue = ?1 AND {} \
         ORDER BY at LIMIT 1",
        in_state(state)
    );
    let mut statement = conn.prepare_cached(&sql)?;
    statement
        .query_row([queue], |row| columns::time(row, 0))
        .optional()
}

pub(crate) fn ended(
    conn: &Connection,
    items: &[ItemId],
) -> rusqlite::Result<Vec<(ItemId, Option<Vec<u8>>)>> {
    let sql = "SELECT answer FROM queue_items WHERE no = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let mut ended = Vec::new();
    for item in items {
        let found = statement.query_row([no(*item)], |row| row.get::<_, Option<Vec<u8>>>(0));
        match found.optional()? {
            None => ended.push((*item, None)),
            Some(Some(answer)) => ended.push((*item, Some(answer))),
            Some(None) => {}
        }
    }
    Ok(ended)
}

impl QueueTables for Applier<'_> {
    fn insert_item(
        &mut self,
        new: &NewItem,
        state: ItemState,
        at: Timestamp,
    ) -> rusqlite::Result<ItemId> {
        let sql = "INSERT INTO queue_items \
                   (queue, state, rank, at, attempts, keep_ms, dedupe, created_at, payload, \
                   trace) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9)";
        let (rank, keep) = (
            -i64::from(new.priority),
            columns::limit(new.keep.as_millis()),
        );
        let at = at.as_millis();
        self.execute(
            sql,
            params![
                new.queue,
                state.code(),
                rank,
                at,
                keep,
                new.dedupe,
                self.now,
                new.payload,
                new.trace,
            ],
        )?;
        Ok(ItemId(self.conn.last_insert_rowid() as u64))
    }

    fn item(&mut self, item: ItemId) -> rusqlite::Result<Option<ItemHead>> {
        let sql = format!("SELECT {HEAD} FROM queue_items WHERE no = ?1");
        let mut statement = self.conn.prepare_cached(&sql)?;
        statement.query_row([no(item)], head).optional()
    }

    fn item_answer(&mut self, item: ItemId) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT answer FROM queue_items WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let answer = statement.query_row([no(item)], |row| row.get(0));
        answer.optional().map(Option::flatten)
    }

    fn item_by_dedupe(&mut self, queue: &str, key: &str) -> rusqlite::Result<Option<ItemId>> {
        let sql = "SELECT no FROM queue_items WHERE queue = ?1 AND dedupe = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement
            .query_row([queue, key], |row| item_id(row, 0))
            .optional()
    }

    fn write_item(&mut self, head: &ItemHead, news: ItemNews<'_>) -> rusqlite::Result<()> {
        let sql = "UPDATE queue_items SET state = ?2, at = ?3, claim = ?4, attempts = ?5, \
                   error = coalesce(?6, error), answer = ?7 WHERE no = ?1";
        let claim = head.claim.as_ref().map(Uuid::as_bytes);
        let (no, state, at) = (no(head.id), head.state.code(), head.at.as_millis());
        self.execute(
            sql,
            params![no, state, at, claim, head.attempts, news.error, news.answer],
        )
        .map(drop)
    }

    fn free_dedupe(&mut self, item: ItemId) -> rusqlite::Result<()> {
        let sql = "UPDATE queue_items SET dedupe = NULL WHERE no = ?1 AND dedupe IS NOT NULL";
        self.execute(sql, [no(item)]).map(drop)
    }

    fn delete_item(&mut self, item: ItemId) -> rusqlite::Result<()> {
        self.execute("DELETE FROM queue_items WHERE no = ?1", [no(item)])
            .map(drop)
    }

    fn ready_items(&mut self, queue: &str, limit: usize) -> rusqlite::Result<Vec<ReadyItem>> {
        let sql = format!(
            "SELECT {HEAD}, payload, trace FROM queue_items INDEXED BY queue_ready \
             WHERE queue = ?1 AND state = 0 ORDER BY rank, at, no LIMIT ?2"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map(params![queue, columns::limit(limit)], |row| {
            Ok(ReadyItem {
                head: head(row)?,
                payload: row.get(8)?,
                trace: row.get(9)?,
            })
        })?;
        rows.collect()
    }

    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> rusqlite::Result<Vec<ItemHead>> {
        let sql = format!(
            "SELECT {HEAD} FROM queue_items INDEXED BY queue_timed \
             WHERE queue = ?1 AND {} AND at <= ?2 ORDER BY at, no LIMIT ?3",
            in_state(state)
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let params = params![queue, until.as_millis(), columns::limit(limit)];
        statement.query_map(params, head)?.collect()
    }

    fn first_time(&mut self, queue: &str, state: ItemState) -> rusqlite::Result<Option<Timestamp>> {
        first_time(self.conn, queue, state)
    }

    fn put_wait(&mut self, wait: &Wait) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO queue_waits (run, generation, key, item, cancels) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let Waiter {
            run,
            generation,
            key,
        } = &wait.waiter;
        self.execute(
            sql,
            params![run.0, generation, key, no(wait.item), wait.cancels],
        )
        .map(drop)
    }

    fn take_wait(&mut self, waiter: &Waiter) -> rusqlite::Result<Option<Wait>> {
        let sql = "DELETE FROM queue_waits WHERE run = ?1 AND generation = ?2 AND key = ?3 \
                   RETURNING run, generation, key, item, cancels";
        let mut statement = self.conn.prepare_cached(sql)?;
        let params = params![waiter.run.0, waiter.generation, waiter.key];
        statement.query_row(params, wait).optional()
    }

    fn take_waits_for(&mut self, item: ItemId) -> rusqlite::Result<Vec<Wait>> {
        if !self.is_waited_for(item)? {
            return Ok(Vec::new());
        }
        let sql = "SELECT run, generation, key, item, cancels FROM queue_waits WHERE item = ?1 \
                   ORDER BY run, generation, key";
        let mut statement = self.conn.prepare_cached(sql)?;
        let waits = statement.query_map([no(item)], wait)?;
        let waits = waits.collect::<rusqlite::Result<Vec<_>>>()?;
        self.execute("DELETE FROM queue_waits WHERE item = ?1", [no(item)])?;
        Ok(waits)
    }

    fn is_waited_for(&mut self, item: ItemId) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM queue_waits WHERE item = ?1";
        self.conn.prepare_cached(sql)?.exists([no(item)])
    }

    fn waits_of_run(&mut self, run: RunNo) -> rusqlite::Result<Vec<Waiter>> {
        let sql = "SELECT run, generation, key FROM queue_waits WHERE run = ?1 \
                   ORDER BY generation, key";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_map([run.0], waiter)?.collect()
    }
}

fn waiter(row: &Row<'_>) -> rusqlite::Result<Waiter> {
    Ok(Waiter {
        run: RunNo(row.get(0)?),
        generation: row.get(1)?,
        key: row.get(2)?,
    })
}

fn wait(row: &Row<'_>) -> rusqlite::Result<Wait> {
    Ok(Wait {
        waiter: waiter(row)?,
        item: item_id(row, 3)?,
        cancels: row.get(4)?,
    })
}
