//! The rows of queues, as a batch reads and writes them.
//!
//! What is decided about an item is decided under the lock of its queue. An item never changes its
//! queue, and its number is never another's, so which lock that is can be asked for without it.
//! Whether anybody waits for an item is said under that lock, too; that somebody waits no more,
//! under the lock of its run.

use std::collections::{HashMap, HashSet};

use super::{
    Sql,
    batch::Applier,
    error::Trouble,
    locks::{Lock, Named},
    session::{Bulk, Op, Session},
    value::{Param, PgRow, Value, params},
};
use crate::{
    commit::ItemId,
    store::{
        rows::{
            HOLDERS, ItemHead, ItemNews, ItemWait, Of, QueueTables, ReadyItem, Waiter, WaitsOf,
        },
        sql::{
            InSql, SqlTables,
            ahead::Rows,
            queues::{HEAD, WAIT, first_time, head, in_state, numbers, ready_items, wait},
        },
        *,
    },
    time::Timestamp,
};

static INSERT_ITEM: Bulk = Bulk::over_arrays(
    "everstep_queue_items",
    1,
    "INSERT INTO everstep_queue_items (no, queue, state, rank, at, attempts, keep_ms, dedupe, \
          created_at, payload, trace) SELECT no, queue, state, rank, at, 0, keep_ms, dedupe, now, \
          payload, trace FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], \
          $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::bytea[], $10::text[]) \
          AS new (no, queue, state, rank, at, keep_ms, dedupe, now, payload, trace)",
);

static WRITE_ITEM: Bulk = Bulk::over_arrays(
    "everstep_queue_items",
    1,
    "UPDATE everstep_queue_items SET state = new.state, at = new.at, claim = new.claim, \
          attempts = new.attempts, answer = new.answer FROM unnest($1::bigint[], $2::bigint[], \
          $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[]) \
          AS new (no, state, at, claim, attempts, answer) WHERE everstep_queue_items.no = new.no",
);

/// Of its own, so that a later write without an error does not take the place of one that has one.
static WRITE_ERROR: Bulk = Bulk::over_arrays(
    "everstep_queue_items",
    1,
    "UPDATE everstep_queue_items SET error = new.error FROM unnest($1::bigint[], $2::bytea[]) \
          AS new (no, error) WHERE everstep_queue_items.no = new.no",
);

static FREE_DEDUPE: Bulk = Bulk::over_arrays(
    "everstep_queue_items",
    1,
    "UPDATE everstep_queue_items SET dedupe = NULL WHERE no = ANY ($1) AND dedupe IS NOT NULL",
);

static DELETE_ITEM: Bulk = Bulk::over_arrays(
    "everstep_queue_items",
    1,
    "DELETE FROM everstep_queue_items WHERE no = ANY ($1)",
);

static PUT_WAIT: Bulk = Bulk::over_arrays(
    "everstep_queue_waits",
    3,
    "INSERT INTO everstep_queue_waits (run, generation, key, item, cancels) \
          SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], \
          $5::bigint[]) ON CONFLICT (run, generation, key) \
          DO UPDATE SET item = excluded.item, cancels = excluded.cancels",
);

static DELETE_WAIT: Bulk = Bulk::over_arrays(
    "everstep_queue_waits",
    3,
    "DELETE FROM everstep_queue_waits USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) \
          AS gone (r, g, k) WHERE run = r AND generation = g AND key = k",
);

/// What a batch knows of queues: read and written under their locks, so it stays true.
#[derive(Default)]
pub(super) struct Known {
    /// Items that the batch names, until they are read: all together.
    named: Vec<ItemId>,
    /// Queues and dedupe keys that the batch names, until they are read.
    named_dedupes: Vec<(String, String)>,
    items: Rows<ItemId, ItemHead>,
    dedupes: Rows<(String, String), ItemId>,
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
    list: Vec<ItemWait>,
    /// Whether a run among them is not locked, so that it may have given up waiting since.
    uncertain: bool,
}

/// Read together with what was asked for.
enum Ahead {
    Timed { queue: String, until: Timestamp, limit: usize, of: Vec<(ItemState, Vec<ItemHead>)> },
    FirstClaimed { queue: String, at: Option<Timestamp> },
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
            placeless.remove(&row.get(0)?);
        }
        self.queues.placeless.extend(placeless);
        self.know_waits(&asked, answers.get(1).into_iter().flatten())
    }

    /// Notes who waits for these items.
    fn know_waits<'r>(
        &mut self,
        items: &[ItemId],
        rows: impl Iterator<Item = &'r PgRow>,
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
    fn waits_for(&mut self, item: ItemId) -> Result<Vec<ItemWait>, Trouble> {
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
        let sql = format!("SELECT {WAIT} FROM everstep_queue_waits WHERE item = $1");
        let mut waits = self.session.rows(sql.clone(), params![item], wait)?;
        if waits.iter().any(|wait| !self.is_head_known(wait.waiter.run)) {
            for wait in &waits {
                self.row_of(wait.waiter.run)?;
            }
            waits = self.session.rows(sql, params![item], wait)?;
        }
        Ok(waits)
    }

    /// Removes the waits for an item, and gives them in order.
    fn take_waits_for(&mut self, item: ItemId) -> Result<Vec<ItemWait>, Trouble> {
        let mut waits = self.waits_for(item)?;
        waits.sort_by(|a, b| a.waiter.cmp(&b.waiter));
        for wait in &waits {
            let Waiter { run, generation, key } = &wait.waiter;
            self.session.put(&DELETE_WAIT, params![run, generation, key]);
        }
        self.queues.waits.insert(item, Waits::default());
        Ok(waits)
    }

    /// Locks the runs that wait for items, as far as they are free, and reads their waits again:
    /// until then, they could give up waiting.
    fn lock_waiters(&mut self) -> Result<(), Trouble> {
        let (mut items, mut runs) = (Vec::new(), Vec::new());
        for (item, waits) in self.queues.waits.iter().filter(|(_, waits)| waits.uncertain) {
            items.push(*item);
            runs.extend(waits.list.iter().map(|wait| wait.waiter.run));
        }
        let sql = format!("SELECT {WAIT} FROM everstep_queue_waits WHERE item = ANY ($1)");
        let again = Op::new(sql, params![numbers(&items)]);
        let rows = self.lock_heads_and_ask(&runs, again)?;
        self.know_waits(&items, rows.iter())
    }

    /// Locks the queues of these items, which have places.
    pub(super) fn lock_holders<'w>(
        &mut self,
        holders: impl Iterator<Item = &'w Waiter>,
    ) -> Result<(), Trouble> {
        self.queues.named.extend(holders.filter_map(Waiter::item));
        self.know_items()
    }

    /// Whether an item is known to have no place under a limit.
    pub(super) fn is_placeless(&self, of: &Waiter) -> bool {
        of.item().is_some_and(|item| self.queues.placeless.contains(&item))
    }

    /// An item gets a place.
    pub(super) fn gets_place(&mut self, of: &Waiter) {
        if let Some(item) = of.item() {
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
        let (queues, keys) = asked.iter().cloned().map(|(q, k)| (Some(q), Some(k))).unzip();
        let sql = "SELECT queue, dedupe, no FROM everstep_queue_items JOIN unnest($1::text[], $2::text[]) \
                   AS asked (q, k) ON queue = q AND dedupe = k";
        let (queues, keys) = (Value::Texts(queues), Value::Texts(keys));
        let params = params![queues, keys];
        let found =
            self.session.rows(sql, params, |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))?;
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
    let sql = "SELECT convert_from(operation, 'UTF8')::bigint FROM everstep_limit_places \
               WHERE run = $1 AND generation = 0 AND operation = ANY ($2)";
    let holders = vec![Value::Int(Some(HOLDERS.0)), Value::Blobs(holders.collect())];
    vec![
        Op::new(
            format!("SELECT {HEAD} FROM everstep_queue_items WHERE no = ANY ($1)"),
            params![numbers],
        ),
        Op::new(
            format!("SELECT {WAIT} FROM everstep_queue_waits WHERE item = ANY ($1)"),
            params![numbers],
        ),
        Op::keeping(sql, holders),
    ]
}

fn read_heads(answers: &[Vec<PgRow>]) -> Result<Vec<ItemHead>, Trouble> {
    answers.first().into_iter().flatten().map(|row| Ok(head(row)?)).collect()
}

impl QueueTables for InSql<Applier<'_>> {
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
                let sql = "SELECT nextval(pg_get_serial_sequence('everstep_queue_items', 'no'))";
                let drawn = self.session.row(sql, &[], |row| row.get(0))?;
                drawn.ok_or_else(|| Trouble::value("no", "no row"))?
            }
        };
        let item = ItemId(number);
        let (state, rank, keep) = (state.code(), -i64::from(new.priority), new.keep.as_millis());
        let row = params![
            item,
            new.queue,
            state,
            rank,
            at,
            keep,
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
        let sql = "SELECT answer FROM everstep_queue_items WHERE no = $1";
        let answer = self.session.row(sql, params![item], |row| row.get(0))?;
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
        let state = head.state.code();
        let row = params![head.id, state, head.at, head.claim, head.attempts, news.answer];
        self.session.put(&WRITE_ITEM, row);
        if let Some(error) = news.error {
            self.session.put(&WRITE_ERROR, params![head.id, error]);
        }
        self.queues.ahead = None;
        self.queues.items.insert(head.id, Some(head.clone()));
        Ok(())
    }

    fn free_dedupe(&mut self, item: ItemId) -> Result<(), Trouble> {
        self.session.put(&FREE_DEDUPE, params![item]);
        self.forget_dedupe(item);
        Ok(())
    }

    fn delete_item(&mut self, item: ItemId) -> Result<(), Trouble> {
        self.session.put(&DELETE_ITEM, params![item]);
        self.forget_dedupe(item);
        self.queues.ahead = None;
        self.queues.items.insert(item, None);
        Ok(())
    }

    fn ready_items(&mut self, queue: &str, limit: usize) -> Result<Vec<ReadyItem>, Trouble> {
        self.lock(Lock::queue(queue))?;
        ready_items(self.session, queue, limit)
    }

    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ItemHead>, Trouble> {
        self.lock(Lock::queue(queue))?;
        if let Some(Ahead::Timed { queue: of_queue, until: of_until, limit: of_limit, of }) =
            &mut self.queues.ahead
            && (of_queue.as_str(), *of_until, *of_limit) == (queue, until, limit)
            && let Some(place) = of.iter().position(|(of_state, _)| *of_state == state)
        {
            return Ok(of.swap_remove(place).1);
        }
        let asked = |state: ItemState| {
            let state = in_state::<Session<'_>>(state);
            let sql = format!(
                "SELECT {HEAD} FROM everstep_queue_items WHERE queue = $1 AND {state} AND at <= $2 \
                 ORDER BY at, no LIMIT $3"
            );
            let params = params![queue, until, limit];
            Op::new(sql, params)
        };
        // Whoever asks for one of them asks for all: one round trip.
        let mut states = vec![ItemState::Delayed, ItemState::Claimed, ItemState::Done];
        states.retain(|other| *other != state);
        states.insert(0, state);
        let answers = self.session.queries(states.iter().copied().map(asked).collect())?;
        let mut of = Vec::new();
        for (state, rows) in states.into_iter().zip(&answers) {
            of.push((state, rows.iter().map(|row| head(row)).collect::<Result<Vec<_>, _>>()?));
        }
        let (_, items) = of.swap_remove(0);
        let queue = queue.to_owned();
        self.queues.ahead = Some(Ahead::Timed { queue, until, limit, of });
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
            first_time::<Session<'_>>(state),
            first_time::<Session<'_>>(ItemState::Claimed)
        );
        let found = self.session.row(sql, params![queue], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (first, at) = found.unwrap_or_default();
        let queue = queue.to_owned();
        self.queues.ahead = Some(Ahead::FirstClaimed { queue, at });
        Ok(first)
    }

    fn put_wait(&mut self, wait: &ItemWait) -> Result<(), Trouble> {
        let Waiter { run, generation, key } = &wait.waiter;
        let row = params![run, generation, key, wait.item, wait.cancels];
        self.session.put(&PUT_WAIT, row);
        self.queues.waits.remove(&wait.item);
        Ok(())
    }

    fn take_waits(&mut self, of: WaitsOf<'_>) -> Result<Vec<ItemWait>, Trouble> {
        let (condition, params): (_, &[Param<'_>]) = match &of {
            WaitsOf::Item(item) => return self.take_waits_for(*item),
            WaitsOf::Of(Of::Run(run)) => ("run = $1", params![*run]),
            WaitsOf::Of(Of::Operation(Waiter { run, generation, key })) => {
                ("run = $1 AND generation = $2 AND key = $3", params![*run, *generation, *key])
            }
        };
        let sql = format!("DELETE FROM everstep_queue_waits WHERE {condition} RETURNING {WAIT}");
        let mut taken = self.session.rows(sql, params, wait)?;
        for wait in &taken {
            self.queues.waits.remove(&wait.item);
        }
        // What a statement gives back comes in no promised order.
        taken.sort_by(|a, b| a.waiter.cmp(&b.waiter));
        Ok(taken)
    }

    fn is_waited_for(&mut self, item: ItemId) -> Result<bool, Trouble> {
        // Under its lock: who begins to wait for an item must find it as it was left.
        self.know_item(item)?;
        if let Some(waits) = self.queues.waits.get(&item) {
            return Ok(!waits.list.is_empty());
        }
        let sql = "SELECT 1 FROM everstep_queue_waits WHERE item = $1 LIMIT 1";
        self.session.exists(sql, params![item])
    }
}
