//! The rows of deferreds in SQL. All of them belong to a run, and are read and written under its row.

use super::{batch::Applier, columns, error::Trouble, session::Session, value::params};
use crate::{
    run_id::RunNo,
    store::rules::{
        deferreds::{DeferredTables, Place, SettledRow},
        tables::Waiter,
    },
    token::Secret,
};

/// The secret of the schema.
pub(super) fn secret(session: &Session<'_>) -> Result<Secret, Trouble> {
    let sql = "SELECT value FROM everstep_secrets WHERE name = 'tokens'";
    let found = session.row(sql, Vec::new(), |row| row.get::<Vec<u8>>(0))?;
    let bytes = found.ok_or_else(|| Trouble::value("secrets", "no secret for tokens"))?;
    let length = bytes.len();
    let bytes = bytes.try_into();
    bytes
        .map(Secret::new)
        .map_err(|_| Trouble::value("the length of a secret", length))
}

impl DeferredTables for Applier<'_> {
    fn settled(&mut self, of: &Place) -> Result<Option<SettledRow>, Trouble> {
        let sql = "SELECT body, at FROM everstep_deferreds WHERE run = $1 AND generation = $2 AND tag = $3";
        let params = params![of.run.0, of.generation, of.tag];
        self.session.row(sql, params, |row| {
            Ok(SettledRow {
                body: row.get(0)?,
                at: columns::time(row, 1)?,
            })
        })
    }

    fn put_settled(&mut self, of: &Place, row: &SettledRow) -> Result<(), Trouble> {
        let sql = "INSERT INTO everstep_deferreds (run, generation, tag, body, at) \
                   VALUES ($1, $2, $3, $4, $5)";
        let (run, at) = (of.run.0, row.at.as_millis());
        self.execute(sql, params![run, of.generation, of.tag, row.body, at]);
        Ok(())
    }

    fn add_deferred_wait(&mut self, of: &Place, key: &[u8]) -> Result<(), Trouble> {
        let sql = "INSERT INTO everstep_deferred_waits (run, generation, tag, key) \
                   VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
        self.execute(sql, params![of.run.0, of.generation, of.tag, key]);
        Ok(())
    }

    fn take_deferred_waits(&mut self, of: &Place) -> Result<Vec<Vec<u8>>, Trouble> {
        let sql = "WITH taken AS (DELETE FROM everstep_deferred_waits \
                   WHERE run = $1 AND generation = $2 AND tag = $3 RETURNING key) \
                   SELECT key FROM taken ORDER BY key";
        let params = params![of.run.0, of.generation, of.tag];
        self.session.rows(sql, params, |row| row.get(0))
    }

    fn remove_deferred_wait(&mut self, waiter: &Waiter) -> Result<(), Trouble> {
        let sql =
            "DELETE FROM everstep_deferred_waits WHERE run = $1 AND generation = $2 AND key = $3";
        self.execute(sql, params![waiter.run.0, waiter.generation, waiter.key]);
        Ok(())
    }

    fn remove_deferred_waits(&mut self, run: RunNo) -> Result<(), Trouble> {
        self.execute(
            "DELETE FROM everstep_deferred_waits WHERE run = $1",
            params![run.0],
        );
        Ok(())
    }

    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> Result<(), Trouble> {
        let sql = "DELETE FROM everstep_deferreds WHERE run = $1 AND generation < $2";
        self.execute(sql, params![run.0, generation]);
        Ok(())
    }
}
