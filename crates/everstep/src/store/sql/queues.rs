//! The rows of queues: how they are read, and what clients ask about them. How a batch reads and writes
//! them is each store's own.

use std::collections::HashMap;

use super::{
    Sql, columns, overview,
    value::{BadValue, Row, Value, params, read},
};
use crate::{
    commit::{EndedItem, ItemId, ItemRow, ItemState, QueueOutlook, QueueStats},
    store::rows::{HOLDERS, ItemHead, ItemWait, ReadyItem},
    time::Timestamp,
};

/// The columns that [`head`] reads.
pub(crate) const HEAD: &str = "no, queue, state, at, claim, attempts, keep_ms, created_at";

/// The columns that [`wait`] reads.
pub(crate) const WAIT: &str = "run, generation, key, item, cancels";

/// The columns that [`item_row`] reads.
const ROW: &str =
    "no, queue, state, at, -rank, attempts, dedupe, created_at, payload, error, answer";

pub(crate) fn head(row: &dyn Row) -> Result<ItemHead, BadValue> {
    Ok(read!(row => ItemHead { id, queue, state, at, claim, attempts, keep, created_at }))
}

fn item_row(row: &dyn Row) -> Result<ItemRow, BadValue> {
    Ok(read!(row => ItemRow {
        id, queue, state, at, priority, attempts, dedupe, created_at, payload, error, answer
    }))
}

pub(crate) fn wait(row: &dyn Row) -> Result<ItemWait, BadValue> {
    Ok(ItemWait { waiter: columns::waiter(row, 0)?, item: row.get(3)?, cancels: row.get(4)? })
}

/// The condition for this state, as a text: a parameter would hide which partial index holds its rows.
/// To SQLite the index's own condition must be said word for word.
pub(crate) fn in_state<S: Sql>(state: ItemState) -> &'static str {
    match state {
        ItemState::Ready => "state = 0",
        ItemState::Delayed => S::pick("state = 1 AND state IN (1, 2, 3)", "state = 1"),
        ItemState::Claimed => S::pick("state = 2 AND state IN (1, 2, 3)", "state = 2"),
        ItemState::Done => S::pick("state = 3 AND state IN (1, 2, 3)", "state = 3"),
        ItemState::Dead => "state = 4",
    }
}

pub(crate) fn item<S: Sql>(sql: &S, item: ItemId) -> Result<Option<ItemRow>, S::Error> {
    let text = format!("SELECT {ROW} FROM everstep_queue_items WHERE no = ?1");
    sql.row(text, params![item], item_row)
}

pub(crate) fn list<S: Sql>(
    sql: &S,
    queue: &str,
    state: Option<ItemState>,
    after: Option<ItemId>,
    limit: usize,
) -> Result<Vec<ItemRow>, S::Error> {
    let state = state.map_or_else(String::new, |state| format!("AND {}", in_state::<S>(state)));
    let text = format!(
        "SELECT {ROW} FROM everstep_queue_items WHERE queue = ?1 {state} AND no > ?2 \
         ORDER BY no LIMIT ?3"
    );
    let after = after.map_or(-1i64, |item| i64::try_from(item.0).unwrap_or(i64::MAX));
    sql.rows(text, params![queue, after, limit], item_row)
}

pub(crate) fn stats<S: Sql>(sql: &S, queue: &str) -> Result<QueueStats, S::Error> {
    overview::stats_up_to(sql, queue, u64::MAX)
}

pub(crate) fn outlook<S: Sql>(
    sql: &S,
    queue: &str,
    now: Timestamp,
) -> Result<QueueOutlook, S::Error> {
    let text = format!(
        "SELECT EXISTS (SELECT 1 FROM everstep_queue_items WHERE queue = ?1 AND state = 0), {}, {}",
        first_time::<S>(ItemState::Delayed),
        first_time::<S>(ItemState::Claimed),
    );
    let found = sql.row(text, params![queue], |row| {
        let times: [Option<Timestamp>; 2] = [row.get(1)?, row.get(2)?];
        Ok((row.get::<bool>(0)?, times))
    })?;
    let (is_ready, times) = found.unwrap_or_default();
    let next_at = times.into_iter().flatten().min();
    let ready = is_ready || next_at.is_some_and(|at| at <= now);
    Ok(QueueOutlook { ready, next_at })
}

/// The earliest time of an item in this state of the queue that is the first parameter.
pub(crate) fn first_time<S: Sql>(state: ItemState) -> String {
    format!(
        "(SELECT at FROM everstep_queue_items{} WHERE queue = ?1 AND {} ORDER BY at LIMIT 1)",
        S::indexed_by("everstep_queue_timed"),
        in_state::<S>(state),
    )
}

pub(crate) fn first_place_lost<S: Sql>(sql: &S) -> Result<Option<Timestamp>, S::Error> {
    let text = format!(
        "SELECT min(item.at) FROM everstep_limit_places AS t \
         JOIN everstep_queue_items AS item ON item.no = {} WHERE t.run = ?1",
        super::doctor::item::<S>()
    );
    let found = sql.row(text, params![HOLDERS], |row| row.get(0))?;
    Ok(found.flatten())
}

pub(crate) fn ended<S: Sql>(sql: &S, items: &[ItemId]) -> Result<Vec<EndedItem>, S::Error> {
    let text = format!("SELECT no, answer FROM everstep_queue_items WHERE no {}", S::is_any("?1"));
    let found = sql.rows(text, params![numbers(items)], |row| {
        Ok((row.get(0)?, row.get::<Option<Vec<u8>>>(1)?))
    })?;
    let found: HashMap<ItemId, _> = found.into_iter().collect();
    let mut ended = Vec::new();
    for item in items {
        match found.get(item) {
            None => ended.push((*item, None)),
            Some(Some(answer)) => ended.push((*item, Some(answer.clone()))),
            Some(None) => {}
        }
    }
    Ok(ended)
}

pub(crate) fn numbers(items: &[ItemId]) -> Value {
    Value::ints(items.iter().map(|item| i64::try_from(item.0).unwrap_or(i64::MAX)))
}

/// The items of a queue that are ready, the first to be taken first.
pub(crate) fn ready_items<S: Sql>(
    sql: &S,
    queue: &str,
    limit: usize,
) -> Result<Vec<ReadyItem>, S::Error> {
    let text = format!(
        "SELECT {HEAD}, payload, trace FROM everstep_queue_items{} WHERE queue = ?1 AND state = 0 \
         ORDER BY rank, at, no LIMIT ?2",
        S::indexed_by("everstep_queue_ready")
    );
    sql.rows(text, params![queue, limit], |row| {
        Ok(ReadyItem { head: head(row)?, payload: row.get(8)?, trace: row.get(9)? })
    })
}
