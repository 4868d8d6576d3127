//! The rows of queues, as a batch reads and writes them.

use super::{batch::Applier, session::Session};
use crate::{
    commit::ItemId,
    store::{
        rows::{ItemHead, ItemNews, ItemWait, Of, QueueTables, ReadyItem, Waiter, WaitsOf},
        sql::{
            InSql, Sql,
            queues::{HEAD, WAIT, first_time, head, in_state, ready_items, wait},
            value::{Param, params},
        },
        *,
    },
    time::Timestamp,
};

impl QueueTables for InSql<Applier<'_>> {
    fn insert_item(
        &mut self,
        new: &NewItem,
        state: ItemState,
        at: Timestamp,
    ) -> rusqlite::Result<ItemId> {
        let sql = "INSERT INTO everstep_queue_items \
                   (queue, state, rank, at, attempts, keep_ms, dedupe, created_at, payload, \
                   trace) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9)";
        let (state, rank, keep) = (state.code(), -i64::from(new.priority), new.keep.as_millis());
        let params = params![
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
        self.session.execute(sql, params)?;
        Ok(ItemId(self.conn.last_insert_rowid() as u64))
    }

    fn item(&mut self, item: ItemId) -> rusqlite::Result<Option<ItemHead>> {
        let sql = format!("SELECT {HEAD} FROM everstep_queue_items WHERE no = ?1");
        self.session.row(sql, params![item], head)
    }

    fn item_answer(&mut self, item: ItemId) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT answer FROM everstep_queue_items WHERE no = ?1";
        let answer = self.session.row(sql, params![item], |row| row.get(0))?;
        Ok(answer.flatten())
    }

    fn item_by_dedupe(&mut self, queue: &str, key: &str) -> rusqlite::Result<Option<ItemId>> {
        let sql = "SELECT no FROM everstep_queue_items WHERE queue = ?1 AND dedupe = ?2";
        self.session.row(sql, params![queue, key], |row| row.get(0))
    }

    fn write_item(&mut self, head: &ItemHead, news: ItemNews<'_>) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_queue_items SET state = ?2, at = ?3, claim = ?4, attempts = ?5, \
                   error = coalesce(?6, error), answer = ?7 WHERE no = ?1";
        let state = head.state.code();
        let params =
            params![head.id, state, head.at, head.claim, head.attempts, news.error, news.answer,];
        self.session.execute(sql, params)
    }

    fn free_dedupe(&mut self, item: ItemId) -> rusqlite::Result<()> {
        let sql =
            "UPDATE everstep_queue_items SET dedupe = NULL WHERE no = ?1 AND dedupe IS NOT NULL";
        self.session.execute(sql, params![item])
    }

    fn delete_item(&mut self, item: ItemId) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_queue_items WHERE no = ?1";
        self.session.execute(sql, params![item])
    }

    fn ready_items(&mut self, queue: &str, limit: usize) -> rusqlite::Result<Vec<ReadyItem>> {
        ready_items(&self.session, queue, limit)
    }

    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> rusqlite::Result<Vec<ItemHead>> {
        let sql = format!(
            "SELECT {HEAD} FROM everstep_queue_items INDEXED BY everstep_queue_timed \
             WHERE queue = ?1 AND {} AND at <= ?2 ORDER BY at, no LIMIT ?3",
            in_state::<Session<'_>>(state)
        );
        self.session.rows(sql, params![queue, until, limit], head)
    }

    fn first_time(&mut self, queue: &str, state: ItemState) -> rusqlite::Result<Option<Timestamp>> {
        let sql = format!("SELECT {}", first_time::<Session<'_>>(state));
        let found = self.session.row(sql, params![queue], |row| row.get(0))?;
        Ok(found.flatten())
    }

    fn put_wait(&mut self, wait: &ItemWait) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO everstep_queue_waits (run, generation, key, item, cancels) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let Waiter { run, generation, key } = &wait.waiter;
        let params = params![run, generation, key, wait.item, wait.cancels];
        self.session.execute(sql, params)
    }

    fn take_waits(&mut self, of: WaitsOf<'_>) -> rusqlite::Result<Vec<ItemWait>> {
        let (condition, params): (_, &[Param<'_>]) = match &of {
            WaitsOf::Item(item) if !self.is_waited_for(*item)? => return Ok(Vec::new()),
            WaitsOf::Item(item) => ("item = ?1", params![*item]),
            WaitsOf::Of(Of::Run(run)) => ("run = ?1", params![*run]),
            WaitsOf::Of(Of::Operation(Waiter { run, generation, key })) => {
                ("run = ?1 AND generation = ?2 AND key = ?3", params![*run, *generation, *key])
            }
        };
        let sql = format!("DELETE FROM everstep_queue_waits WHERE {condition} RETURNING {WAIT}");
        let mut waits = self.session.rows(sql, params, wait)?;
        // What a statement gives back comes in no promised order.
        waits.sort_by(|a, b| a.waiter.cmp(&b.waiter));
        Ok(waits)
    }

    fn is_waited_for(&mut self, item: ItemId) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM everstep_queue_waits WHERE item = ?1";
        self.session.exists(sql, params![item])
    }
}
