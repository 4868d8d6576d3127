//! The rows of deferreds in SQL.

use rusqlite::{Connection, OptionalExtension, params};

use super::{batch::Applier, columns, error::bad_value};
use crate::{
    run_id::RunNo,
    store::rules::{
        deferreds::{DeferredTables, Place, SettledRow},
        tables::Waiter,
    },
    token::Secret,
};

/// The secret of the file.
pub(super) fn secret(conn: &Connection) -> rusqlite::Result<Secret> {
    let sql = "SELECT value FROM everstep_secrets WHERE name = 'tokens'";
    let bytes: Vec<u8> = conn.query_row(sql, [], |row| row.get(0))?;
    let length = bytes.len() as i64;
    let bytes = bytes.try_into();
    bytes
        .map(Secret::new)
        .map_err(|_| bad_value("the length of a secret", length))
}

impl DeferredTables for Applier<'_> {
    fn settled(&mut self, of: &Place) -> rusqlite::Result<Option<SettledRow>> {
        let sql = "SELECT body, at FROM everstep_deferreds WHERE run = ?1 AND generation = ?2 AND tag = ?3";
        let mut statement = self.conn.prepare_cached(sql)?;
        let found = statement.query_row(params![of.run.0, of.generation, of.tag], |row| {
            Ok(SettledRow {
                body: row.get(0)?,
                at: columns::time(row, 1)?,
            })
        });
        found.optional()
    }

    fn put_settled(&mut self, of: &Place, row: &SettledRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO everstep_deferreds (run, generation, tag, body, at) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let (run, at) = (of.run.0, row.at.as_millis());
        self.execute(sql, params![run, of.generation, of.tag, row.body, at])
            .map(drop)
    }

    fn add_deferred_wait(&mut self, of: &Place, key: &[u8]) -> rusqlite::Result<()> {
        let sql = "INSERT OR IGNORE INTO everstep_deferred_waits (run, generation, tag, key) \
                   VALUES (?1, ?2, ?3, ?4)";
        self.execute(sql, params![of.run.0, of.generation, of.tag, key])
            .map(drop)
    }

    fn take_deferred_waits(&mut self, of: &Place) -> rusqlite::Result<Vec<Vec<u8>>> {
        let sql = "DELETE FROM everstep_deferred_waits WHERE run = ?1 AND generation = ?2 AND tag = ?3 \
                   RETURNING key";
        let mut statement = self.conn.prepare_cached(sql)?;
        let keys = statement.query_map(params![of.run.0, of.generation, of.tag], |row| row.get(0));
        let mut keys = keys?.collect::<rusqlite::Result<Vec<Vec<u8>>>>()?;
        // What a statement gives back comes in no promised order.
        keys.sort();
        Ok(keys)
    }

    fn remove_deferred_wait(&mut self, waiter: &Waiter) -> rusqlite::Result<()> {
        let sql =
            "DELETE FROM everstep_deferred_waits WHERE run = ?1 AND generation = ?2 AND key = ?3";
        let params = params![waiter.run.0, waiter.generation, waiter.key];
        self.execute(sql, params).map(drop)
    }

    fn remove_deferred_waits(&mut self, run: RunNo) -> rusqlite::Result<()> {
        self.execute(
            "DELETE FROM everstep_deferred_waits WHERE run = ?1",
            [run.0],
        )
        .map(drop)
    }

    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_deferreds WHERE run = ?1 AND generation < ?2";
        self.execute(sql, params![run.0, generation]).map(drop)
    }
}
