//! The items of queues in SQL: rows for [`rules::queues`], and what
//! clients read.
//!
//! What is decided about an item is decided under the lock of its queue. An item never changes its
//! queue, and its number is never another's, so which lock that is can be asked for without it.
//! Whether anybody waits for an item is said under that lock, too; that somebody waits no more,
//! under the lock of its run.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use uuid::Uuid;

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    locks::{Lock, Named},
    session::{Bulk, Op, Session},
    value::{Row, Value, params},
};
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

/// The columns that [`wait`] reads.
const WAIT: &str = "run, generation, key, item, cancels";

static INSERT_ITEM: Bulk = Bulk {
    table: "queue_items",
    sql: "INSERT INTO queue_items (no, queue, state, rank, at, attempts, keep_ms, dedupe, \
          created_at, payload, trace) SELECT no, queue, state, rank, at, 0, keep_ms, dedupe, now, \
          payload, trace FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], \
          $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::bytea[], $10::text[]) \
          AS new (no, queue, state, rank, at, keep_ms, dedupe, now, payload, trace)",
    unique: 1,
};

static WRITE_ITEM: Bulk = Bulk {
    table: "queue_items",
    sql: "UPDATE queue_items SET state = new.state, at = new.at, claim = new.claim, \
          attempts = new.attempts, answer = new.answer FROM unnest($1::bigint[], $2::bigint[], \
          $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[]) \
          AS new (no, state, at, claim, attempts, answer) WHERE queue_items.no = new.no",
    unique: 1,
};

/// Of its own, so that a later write without an error does not take the place of one that has one.
static WRITE_ERROR: Bulk = Bulk {
    table: "queue_items",
    sql: "UPDATE queue_items SET error = new.error FROM unnest($1::bigint[], $2::bytea[]) \
          AS new (no, error) WHERE queue_items.no = new.no",
    unique: 1,
};

static FREE_DEDUPE: Bulk = Bulk {
    table: "queue_items",
    sql: "UPDATE queue_items SET dedupe = NULL WHERE no = ANY ($1) AND dedupe IS NOT NULL",
    unique: 1,
};

static DELETE_ITEM: Bulk = Bulk {
    table: "queue_items",
    sql: "DELETE FROM queue_items WHERE no = ANY ($1)",
    unique: 1,
};

static PUT_WAIT: Bulk = Bulk {
    table: "queue_waits",
    sql: "INSERT INTO queue_waits (run, generation, key, item, cancels) \
          SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], \
          $5::bigint[]) ON CONFLICT (run, generation, key) \
          DO UPDATE SET item = excluded.item, cancels = excluded.cancels",
    unique: 3,
};

static DELETE_WAIT: Bulk = Bulk {
    table: "queue_waits",
    sql: "DELETE FROM queue_waits USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) \
          AS gone (r, g, k) WHERE run = r AND generation = g AND key = k",
    unique: 3,
};

/// What a batch knows of queues: read and written under their locks, so it stays true.
#[derive(Default)]
pub(super) struct Known {
    /// Items that the batch names, until they are read: all together.
    named: Vec<ItemId>,
    /// Queues and dedupe keys that the batch names, until they are read.
    named_dedupes: Vec<(String, String)>,
    items: HashMap<ItemId, Option<ItemHead>>,
    dedupes: HashMap<(String, String), Option<ItemId>>,
    waits: HashMap<ItemId, Waits>,
    /// Items that have no places under limits.
    placeless: HashSet<ItemId>,
    /// What the rules will ask for next, until an item is written.
    ahead: Option<Ahead>,
}

impl Known {
    pub(super) fn new(named: &Named) -> Known {
        Known {
            named: named.queue_items.iter().copied().collect(),
            named_dedupes: named.dedupes.iter().cloned().collect(),
            ..Known::default()
        }
    }
}

/// Those who wait for an item.
#[derive(Default)]
struct Waits {
    list: Vec<Wait>,
    /// Whether a run among them is not locked, so that it may have given up waiting since.
    uncertain: bool,
}

/// Read together with what was asked for.
enum Ahead {
    Timed {
        queue: String,
        until: Timestamp,
        limit: usize,
        of: Vec<(ItemState, Vec<ItemHead>)>,
    },
    FirstClaimed {
        queue: String,
        at: Option<Timestamp>,
    },
}

fn state(row: &Row, column: usize) -> Result<ItemState, Trouble> {
    let code: u8 = row.get(column)?;
    ItemState::from_code(code).ok_or_else(|| Trouble::value("state", code))
}

fn item_id(row: &Row, column: usize) -> Result<ItemId, Trouble> {
    columns::number(row, column).map(ItemId)
}

fn head(row: &Row) -> Result<ItemHead, Trouble> {
    Ok(ItemHead {
        id: item_id(row, 0)?,
        queue: row.get(1)?,
        state: state(row, 2)?,
        at: columns::time(row, 3)?,
        claim: row.get::<Option<[u8; 16]>>(4)?.map(Uuid::from_bytes),
        attempts: row.get(5)?,
        keep: Duration::from_millis(columns::number(row, 6)?),
        created_at: columns::time(row, 7)?,
    })
}

fn item_row(row: &Row) -> Result<ItemRow, Trouble> {
    let rank: i64 = row.get(4)?;
    Ok(ItemRow {
        id: item_id(row, 0)?,
        queue: row.get(1)?,
        state: state(row, 2)?,
        at: columns::time(row, 3)?,
        priority: i32::try_from(-rank).map_err(|_| Trouble::value("rank", rank))?,
        attempts: row.get(5)?,
        dedupe: row.get(6)?,
        created_at: columns::time(row, 7)?,
        payload: row.get(8)?,
        error: row.get(9)?,
        answer: row.get(10)?,
    })
}

fn waiter(row: &Row) -> Result<Waiter, Trouble> {
    Ok(Waiter {
        run: RunNo(row.get(0)?),
        generation: row.get(1)?,
        key: row.get(2)?,
    })
}

fn wait(row: &Row) -> Result<Wait, Trouble> {
    Ok(Wait {
        waiter: waiter(row)?,
        item: item_id(row, 3)?,
        cancels: row.get(4)?,
    })
}

/// The condition for this state, as a text: a parameter would hide from the planner which partial
/// index holds its rows.
pub(super) const fn in_state(state: ItemState) -> &'static str {
    match state {
        ItemState::Ready => "state = 0",
        ItemState::Delayed => "state = 1",
        ItemState::Claimed => "state = 2",
        ItemState::Done => "state = 3",
        ItemState::Dead => "state = 4",
    }
}

/// The number as SQL takes it. Numbers are given out by PostgreSQL, which has signed ones.
fn no(item: ItemId) -> i64 {
    columns::limit(item.0)
}

pub(super) fn item(session: &Session<'_>, item: ItemId) -> Result<Option<ItemRow>, Trouble> {
    let sql = format!("SELECT {ROW} FROM queue_items WHERE no = $1");
    session.row(sql, params![no(item)], item_row)
}

pub(super) fn list(
    session: &Session<'_>,
    queue: &str,
    state: Option<ItemState>,
    after: Option<ItemId>,
    limit: usize,
) -> Result<Vec<ItemRow>, Trouble> {
    let after = after.map_or(-1, no);
    let state = state.map_or_else(String::new, |state| format!("AND {}", in_state(state)));
    let sql = format!(
        "SELECT {ROW} FROM queue_items WHERE queue = $1 {state} AND no > $2 ORDER BY no LIMIT $3"
    );
    session.rows(sql, params![queue, after, columns::limit(limit)], item_row)
}

pub(super) fn stats(session: &Session<'_>, queue: &str) -> Result<QueueStats, Trouble> {
    let count = |state: ItemState| {
        let state = in_state(state);
        format!("(SELECT count(*) FROM queue_items WHERE queue = $1 AND {state})")
    };
    let sql = format!(
        "SELECT {}, {}, {}, {}, {}, \
         (SELECT min(at) FROM queue_items WHERE queue = $1 AND state = 0)",
        count(ItemState::Ready),
        count(ItemState::Delayed),
        count(ItemState::Claimed),
        count(ItemState::Done),
        count(ItemState::Dead),
    );
    let stats = session.row(sql, params![queue], |row| {
        Ok(QueueStats {
            ready: columns::number(row, 0)?,
            delayed: columns::number(row, 1)?,
            claimed: columns::number(row, 2)?,
            done: columns::number(row, 3)?,
            dead: columns::number(row, 4)?,
            oldest_ready: columns::optional_time(row, 5)?,
        })
    })?;
    stats.ok_or_else(|| Trouble::value("count", "no row"))
}

pub(super) fn outlook(
    session: &Session<'_>,
    queue: &str,
    now: Timestamp,
) -> Result<QueueOutlook, Trouble> {
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM queue_items WHERE queue = $1 AND state = 0), {}, {}",
        first_time_of(ItemState::Delayed),
        first_time_of(ItemState::Claimed),
    );
    let found = session.row(sql, params![queue], |row| {
        let times = (
            columns::optional_time(row, 1)?,
            columns::optional_time(row, 2)?,
        );
        Ok((row.get::<bool>(0)?, times))
    })?;
    let (is_ready, (delayed, claimed)) = found.unwrap_or_default();
    let next_at = [delayed, claimed].into_iter().flatten().min();
    let ready = is_ready || next_at.is_some_and(|at| at <= now);
    Ok(QueueOutlook { ready, next_at })
}

/// The earliest time of an item in this state of the queue that is the first parameter.
fn first_time_of(state: ItemState) -> String {
    let state = in_state(state);
    format!("(SELECT at FROM queue_items WHERE queue = $1 AND {state} ORDER BY at LIMIT 1)")
}

pub(super) fn first_place_lost(session: &Session<'_>) -> Result<Option<Timestamp>, Trouble> {
    let sql = "SELECT min(item.at) FROM limit_places AS place JOIN queue_items AS item \
               ON item.no = convert_from(place.operation, 'UTF8')::bigint WHERE place.run = $1";
    let found = session.row(sql, params![HOLDERS.0], |row| {
        columns::optional_time(row, 0)
    })?;
    Ok(found.flatten())
}

pub(super) fn ended(session: &Session<'_>, items: &[ItemId]) -> Result<Vec<EndedItem>, Trouble> {
    let sql = "SELECT no, answer FROM queue_items WHERE no = ANY ($1)";
    let found = session.rows(sql, params![numbers(items)], |row| {
        Ok((item_id(row, 0)?, row.get::<Option<Vec<u8>>>(1)?))
    })?;
    let found: HashMap<_, _> = found.into_iter().collect();
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

fn numbers(items: &[ItemId]) -> Vec<i64> {
    items.iter().map(|item| no(*item)).collect()
}

impl Applier<'_> {
    /// Reads an item under the lock of its queue, and with it all others that the batch names:
    /// whether they are there, who waits for them, and which are under a limit.
    fn know_item(&mut self, item: ItemId) -> Result<(), Trouble> {
        if self.queues.items.contains_key(&item) {
            return Ok(());
        }
        self.queues.named.push(item);
        self.know_items()
    }

    fn know_items(&mut self) -> Result<(), Trouble> {
        let mut asked = std::mem::take(&mut self.queues.named);
        asked.retain(|item| !self.queues.items.contains_key(item));
        asked.sort_unstable();
        asked.dedup();
        if asked.is_empty() {
            return Ok(());
        }
        let mut answers = self.session.queries(about_items(&asked))?;
        let mut heads = read_heads(&answers)?;
        let locks = heads.iter().map(|head| Lock::queue(&head.queue));
        let locks: Vec<Lock> = locks.filter(|lock| !self.is_locked(*lock)).collect();
        if !locks.is_empty() {
            // It may have been otherwise before.
            answers = self.lock_and_ask(&locks, about_items(&asked))?;
            heads = read_heads(&answers)?;
        }
        for item in &asked {
            self.queues.items.insert(*item, None);
        }
        for head in heads {
            self.queues.items.insert(head.id, Some(head));
        }
        let mut placeless: HashSet<ItemId> = asked.iter().copied().collect();
        for row in answers.get(2).into_iter().flatten() {
            placeless.remove(&item_id(row, 0)?);
        }
        self.queues.placeless.extend(placeless);
        self.know_waits(&asked, answers.get(1).into_iter().flatten())
    }

    /// Notes who waits for these items.
    fn know_waits<'r>(
        &mut self,
        items: &[ItemId],
        rows: impl Iterator<Item = &'r Row>,
    ) -> Result<(), Trouble> {
        for item in items {
            self.queues.waits.insert(*item, Waits::default());
        }
        for row in rows {
            let wait = wait(row)?;
            let is_certain = self.is_head_known(wait.waiter.run);
            let waits = self.queues.waits.entry(wait.item).or_default();
            waits.uncertain |= !is_certain;
            waits.list.push(wait);
        }
        Ok(())
    }

    /// Those who wait for an item, with their runs locked. They are forgotten.
    fn waits_for(&mut self, item: ItemId) -> Result<Vec<Wait>, Trouble> {
        self.know_item(item)?;
        if let Some(waits) = self.queues.waits.remove(&item) {
            if !waits.uncertain {
                return Ok(waits.list);
            }
            // Whoever tells of one item is likely to tell of the others.
            self.queues.waits.insert(item, waits);
            self.lock_waiters()?;
        }
        if let Some(waits) = self.queues.waits.remove(&item)
            && !waits.uncertain
        {
            return Ok(waits.list);
        }
        let sql = format!("SELECT {WAIT} FROM queue_waits WHERE item = $1");
        let mut waits = self.session.rows(sql.clone(), params![no(item)], wait)?;
        if waits
            .iter()
            .any(|wait| !self.is_head_known(wait.waiter.run))
        {
            for wait in &waits {
                self.head(wait.waiter.run)?;
            }
            waits = self.session.rows(sql, params![no(item)], wait)?;
        }
        Ok(waits)
    }

    /// Locks the runs that wait for items, as far as they are free, and reads their waits again:
    /// until then, they could give up waiting.
    fn lock_waiters(&mut self) -> Result<(), Trouble> {
        let (mut items, mut runs) = (Vec::new(), Vec::new());
        for (item, waits) in self
            .queues
            .waits
            .iter()
            .filter(|(_, waits)| waits.uncertain)
        {
            items.push(*item);
            runs.extend(waits.list.iter().map(|wait| wait.waiter.run));
        }
        let sql = format!("SELECT {WAIT} FROM queue_waits WHERE item = ANY ($1)");
        let again = Op::new(sql, params![numbers(&items)]);
        let rows = self.lock_heads_and_ask(&runs, again)?;
        self.know_waits(&items, rows.iter())
    }

    /// Locks the queues of these items, which have places.
    pub(super) fn lock_holders<'w>(
        &mut self,
        holders: impl Iterator<Item = &'w Waiter>,
    ) -> Result<(), Trouble> {
        self.queues
            .named
            .extend(holders.filter_map(rules::queues::item_of));
        self.know_items()
    }

    /// Whether an item is known to have no place under a limit.
    pub(super) fn is_placeless(&self, of: &Waiter) -> bool {
        of.run == HOLDERS
            && rules::queues::item_of(of).is_some_and(|item| self.queues.placeless.contains(&item))
    }

    /// An item gets a place.
    pub(super) fn gets_place(&mut self, of: &Waiter) {
        if of.run == HOLDERS
            && let Some(item) = rules::queues::item_of(of)
        {
            self.queues.placeless.remove(&item);
        }
    }

    /// Reads who has a dedupe key, and with it all others that the batch names.
    fn know_dedupe(&mut self, name: &(String, String)) -> Result<(), Trouble> {
        let mut asked = std::mem::take(&mut self.queues.named_dedupes);
        asked.retain(|other| {
            other != name
                && self.is_locked(Lock::queue(&other.0))
                && !self.queues.dedupes.contains_key(other)
        });
        asked.push(name.clone());
        let (queues, keys) = asked
            .iter()
            .cloned()
            .map(|(q, k)| (Some(q), Some(k)))
            .unzip();
        let sql = "SELECT queue, dedupe, no FROM queue_items JOIN unnest($1::text[], $2::text[]) \
                   AS asked (q, k) ON queue = q AND dedupe = k";
        let params = vec![Value::Texts(queues), Value::Texts(keys)];
        let found = self.session.rows(sql, params, |row| {
            Ok(((row.get(0)?, row.get(1)?), item_id(row, 2)?))
        })?;
        for name in asked {
            self.queues.dedupes.insert(name, None);
        }
        for (name, item) in found {
            // They are looked at next.
            self.queues.named.push(item);
            self.queues.dedupes.insert(name, Some(item));
        }
        Ok(())
    }

    /// The key of this item is free now. It must be so before another item has it.
    fn forget_dedupe(&mut self, item: ItemId) {
        let before = self.queues.dedupes.len();
        self.queues.dedupes.retain(|_, of| *of != Some(item));
        if self.queues.dedupes.len() < before {
            self.session.barrier();
        }
    }
}

/// Heads of items, who waits for them, and which have places.
fn about_items(items: &[ItemId]) -> Vec<Op> {
    let numbers = numbers(items);
    let holders = items.iter().map(|item| Some(item.to_string().into_bytes()));
    let sql = "SELECT convert_from(operation, 'UTF8')::bigint FROM limit_places \
               WHERE run = $1 AND generation = 0 AND operation = ANY ($2)";
    let holders = vec![Value::Int(Some(HOLDERS.0)), Value::Blobs(holders.collect())];
    vec![
        Op::new(
            format!("SELECT {HEAD} FROM queue_items WHERE no = ANY ($1)"),
            params![numbers],
        ),
        Op::new(
            format!("SELECT {WAIT} FROM queue_waits WHERE item = ANY ($1)"),
            params![numbers],
        ),
        Op::new(sql, holders),
    ]
}

fn read_heads(answers: &[Vec<Row>]) -> Result<Vec<ItemHead>, Trouble> {
    answers.first().into_iter().flatten().map(head).collect()
}

impl QueueTables for Applier<'_> {
    fn insert_item(
        &mut self,
        new: &NewItem,
        state: ItemState,
        at: Timestamp,
    ) -> Result<ItemId, Trouble> {
        self.lock(Lock::queue(&new.queue))?;
        let number = match self.item_numbers.pop() {
            Some(number) => number,
            None => {
                let sql = "SELECT nextval(pg_get_serial_sequence('queue_items', 'no'))";
                let drawn = self
                    .session
                    .row(sql, Vec::new(), |row| columns::number(row, 0))?;
                drawn.ok_or_else(|| Trouble::value("no", "no row"))?
            }
        };
        let item = ItemId(number);
        let row = params![
            no(item),
            new.queue,
            state.code(),
            -i64::from(new.priority),
            at.as_millis(),
            columns::limit(new.keep.as_millis()),
            new.dedupe,
            self.now,
            new.payload,
            new.trace,
        ];
        self.session.put(&INSERT_ITEM, row);
        self.queues.ahead = None;
        if let Some(key) = &new.dedupe {
            let name = (new.queue.clone(), key.clone());
            self.queues.dedupes.insert(name, Some(item));
        }
        Ok(item)
    }

    fn item(&mut self, item: ItemId) -> Result<Option<ItemHead>, Trouble> {
        self.know_item(item)?;
        Ok(self.queues.items.get(&item).cloned().flatten())
    }

    fn item_answer(&mut self, item: ItemId) -> Result<Option<Vec<u8>>, Trouble> {
        self.know_item(item)?;
        let sql = "SELECT answer FROM queue_items WHERE no = $1";
        let answer = self.session.row(sql, params![no(item)], |row| row.get(0))?;
        Ok(answer.flatten())
    }

    fn item_by_dedupe(&mut self, queue: &str, key: &str) -> Result<Option<ItemId>, Trouble> {
        self.lock(Lock::queue(queue))?;
        let name = (queue.to_owned(), key.to_owned());
        if !self.queues.dedupes.contains_key(&name) {
            self.know_dedupe(&name)?;
        }
        Ok(self.queues.dedupes.get(&name).copied().flatten())
    }

    fn write_item(&mut self, head: &ItemHead, news: ItemNews<'_>) -> Result<(), Trouble> {
        let row = params![
            no(head.id),
            head.state.code(),
            head.at.as_millis(),
            head.claim.map(Uuid::into_bytes),
            head.attempts,
            news.answer,
        ];
        self.session.put(&WRITE_ITEM, row);
        if let Some(error) = news.error {
            self.session.put(&WRITE_ERROR, params![no(head.id), error]);
        }
        self.queues.ahead = None;
        self.queues.items.insert(head.id, Some(head.clone()));
        Ok(())
    }

    fn free_dedupe(&mut self, item: ItemId) -> Result<(), Trouble> {
        self.session.put(&FREE_DEDUPE, params![no(item)]);
        self.forget_dedupe(item);
        Ok(())
    }

    fn delete_item(&mut self, item: ItemId) -> Result<(), Trouble> {
        self.session.put(&DELETE_ITEM, params![no(item)]);
        self.forget_dedupe(item);
        self.queues.ahead = None;
        self.queues.items.insert(item, None);
        Ok(())
    }

    fn ready_items(&mut self, queue: &str, limit: usize) -> Result<Vec<ReadyItem>, Trouble> {
        self.lock(Lock::queue(queue))?;
        let sql = format!(
            "SELECT {HEAD}, payload, trace FROM queue_items WHERE queue = $1 AND state = 0 \
             ORDER BY rank, at, no LIMIT $2"
        );
        self.session
            .rows(sql, params![queue, columns::limit(limit)], |row| {
                Ok(ReadyItem {
                    head: head(row)?,
                    payload: row.get(8)?,
                    trace: row.get(9)?,
                })
            })
    }

    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ItemHead>, Trouble> {
        self.lock(Lock::queue(queue))?;
        if let Some(Ahead::Timed {
            queue: of_queue,
            until: of_until,
            limit: of_limit,
            of,
        }) = &mut self.queues.ahead
            && (of_queue.as_str(), *of_until, *of_limit) == (queue, until, limit)
            && let Some(place) = of.iter().position(|(of_state, _)| *of_state == state)
        {
            return Ok(of.swap_remove(place).1);
        }
        let asked = |state: ItemState| {
            let state = in_state(state);
            let sql = format!(
                "SELECT {HEAD} FROM queue_items WHERE queue = $1 AND {state} AND at <= $2 \
                 ORDER BY at, no LIMIT $3"
            );
            let params = params![queue, until.as_millis(), columns::limit(limit)];
            Op::new(sql, params)
        };
        // Whoever asks for one of them asks for all: one round trip.
        let mut states = vec![ItemState::Delayed, ItemState::Claimed, ItemState::Done];
        states.retain(|other| *other != state);
        states.insert(0, state);
        let answers = self
            .session
            .queries(states.iter().copied().map(asked).collect())?;
        let mut of = Vec::new();
        for (state, rows) in states.into_iter().zip(&answers) {
            of.push((state, rows.iter().map(head).collect::<Result<Vec<_>, _>>()?));
        }
        let (_, items) = of.swap_remove(0);
        let queue = queue.to_owned();
        self.queues.ahead = Some(Ahead::Timed {
            queue,
            until,
            limit,
            of,
        });
        Ok(items)
    }

    fn first_time(&mut self, queue: &str, state: ItemState) -> Result<Option<Timestamp>, Trouble> {
        if let Some(Ahead::FirstClaimed { queue: of, at }) = &self.queues.ahead
            && of == queue
            && state == ItemState::Claimed
        {
            return Ok(*at);
        }
        let sql = format!(
            "SELECT {}, {}",
            first_time_of(state),
            first_time_of(ItemState::Claimed)
        );
        let found = self.session.row(sql, params![queue], |row| {
            Ok((
                columns::optional_time(row, 0)?,
                columns::optional_time(row, 1)?,
            ))
        })?;
        let (first, at) = found.unwrap_or_default();
        let queue = queue.to_owned();
        self.queues.ahead = Some(Ahead::FirstClaimed { queue, at });
        Ok(first)
    }

    fn put_wait(&mut self, wait: &Wait) -> Result<(), Trouble> {
        let Waiter {
            run,
            generation,
            key,
        } = &wait.waiter;
        let row = params![run.0, *generation, *key, no(wait.item), wait.cancels];
        self.session.put(&PUT_WAIT, row);
        self.queues.waits.remove(&wait.item);
        Ok(())
    }

    fn take_wait(&mut self, waiter: &Waiter) -> Result<Option<Wait>, Trouble> {
        let sql = format!(
            "DELETE FROM queue_waits WHERE run = $1 AND generation = $2 AND key = $3 \
             RETURNING {WAIT}"
        );
        let params = params![waiter.run.0, waiter.generation, waiter.key];
        let taken = self.session.row(sql, params, wait)?;
        if let Some(taken) = &taken {
            self.queues.waits.remove(&taken.item);
        }
        Ok(taken)
    }

    fn take_waits_for(&mut self, item: ItemId) -> Result<Vec<Wait>, Trouble> {
        let mut waits = self.waits_for(item)?;
        waits.sort_by(|a, b| a.waiter.cmp(&b.waiter));
        for wait in &waits {
            let Waiter {
                run,
                generation,
                key,
            } = &wait.waiter;
            self.session
                .put(&DELETE_WAIT, params![run.0, *generation, *key]);
        }
        self.queues.waits.insert(item, Waits::default());
        Ok(waits)
    }

    fn is_waited_for(&mut self, item: ItemId) -> Result<bool, Trouble> {
        // Under its lock: who begins to wait for an item must find it as it was left.
        self.know_item(item)?;
        if let Some(waits) = self.queues.waits.get(&item) {
            return Ok(!waits.list.is_empty());
        }
        let sql = "SELECT 1 FROM queue_waits WHERE item = $1 LIMIT 1";
        self.session.exists(sql, params![no(item)])
    }

    fn waits_of_run(&mut self, run: RunNo) -> Result<Vec<Waiter>, Trouble> {
        let sql = "SELECT run, generation, key FROM queue_waits WHERE run = $1 \
                   ORDER BY generation, key";
        self.session.rows(sql, params![run.0], waiter)
    }
}
