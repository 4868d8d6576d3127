//! Children and those who wait for the end of a run, in SQL.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{batch::Applier, columns, error::bad_value};
use crate::{
    commit::Close,
    run_id::{RunId, RunNo},
    store::{
        Finished,
        rules::{
            children::{ChildRow, ChildTables},
            tables::Waiter,
        },
    },
};

/// The children of a run that have not ended.
pub(crate) fn live_children(conn: &Connection, parent: RunNo) -> rusqlite::Result<Vec<RunId>> {
    let sql = "SELECT everstep_runs.id FROM everstep_children JOIN everstep_runs ON everstep_runs.no = everstep_children.run \
               WHERE everstep_children.parent = ?1 ORDER BY everstep_children.run";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([parent.0], |row| columns::run_id(row, 0))?;
    rows.collect()
}

impl ChildTables for Applier<'_> {
    fn ended(&mut self, run: RunNo) -> rusqlite::Result<Option<Finished>> {
        let sql = "SELECT id, workflow, status, output, error FROM everstep_runs \
                   WHERE no = ?1 AND status IN (5, 6, 7)";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row([run.0], columns::finished).optional()
    }

    fn add_watcher(&mut self, run: RunNo, waiter: &Waiter) -> rusqlite::Result<()> {
        let sql = "INSERT OR IGNORE INTO everstep_watchers (run, waiter, generation, key) \
                   VALUES (?1, ?2, ?3, ?4)";
        let Waiter {
            run: by,
            generation,
            key,
        } = waiter;
        self.execute(sql, params![run.0, by.0, generation, key])
            .map(drop)
    }

    fn take_watchers(&mut self, run: RunNo) -> rusqlite::Result<Vec<Waiter>> {
        let sql = "SELECT waiter, generation, key FROM everstep_watchers WHERE run = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let rows = statement.query_map([run.0], |row| waiter(row, 0))?;
        let waiters = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        self.execute("DELETE FROM everstep_watchers WHERE run = ?1", [run.0])?;
        Ok(waiters)
    }

    fn remove_watches(&mut self, waiter: &Waiter) -> rusqlite::Result<()> {
        let sql =
            "DELETE FROM everstep_watchers WHERE waiter = ?1 AND generation = ?2 AND key = ?3";
        let Waiter {
            run,
            generation,
            key,
        } = waiter;
        self.execute(sql, params![run.0, generation, key]).map(drop)
    }

    fn remove_watches_of_run(&mut self, run: RunNo) -> rusqlite::Result<()> {
        self.execute("DELETE FROM everstep_watchers WHERE waiter = ?1", [run.0])
            .map(drop)
    }

    fn put_child(&mut self, child: &ChildRow) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO everstep_children (run, parent, generation, key, close, awaited) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let Waiter {
            run: parent,
            generation,
            key,
        } = &child.parent;
        let close = child.close.code();
        self.execute(
            sql,
            params![child.run.0, parent.0, generation, key, close, child.awaited],
        )
        .map(drop)
    }

    fn children(&mut self, parent: RunNo) -> rusqlite::Result<Vec<ChildRow>> {
        let sql = "SELECT run, parent, generation, key, close, awaited FROM everstep_children \
                   WHERE parent = ?1 ORDER BY run";
        let mut statement = self.conn.prepare_cached(sql)?;
        let rows = statement.query_map([parent.0], |row| {
            let close: u8 = row.get(4)?;
            Ok(ChildRow {
                run: row.get(0).map(RunNo)?,
                parent: waiter(row, 1)?,
                close: Close::from_code(close).ok_or_else(|| bad_value("close", close))?,
                awaited: row.get(5)?,
            })
        })?;
        rows.collect()
    }

    fn remove_child(&mut self, run: RunNo) -> rusqlite::Result<()> {
        self.execute("DELETE FROM everstep_children WHERE run = ?1", [run.0])
            .map(drop)
    }
}

/// An operation that waits: its run, generation and key.
fn waiter(row: &Row<'_>, column: usize) -> rusqlite::Result<Waiter> {
    Ok(Waiter {
        run: row.get(column).map(RunNo)?,
        generation: row.get(column + 1)?,
        key: row.get(column + 2)?,
    })
}
