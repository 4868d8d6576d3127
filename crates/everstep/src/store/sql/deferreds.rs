//! The rows of deferreds. They belong to a run, and are read and written under its row.

use super::{
    InSql, Sql, SqlTables,
    value::{BadValue, params, read},
};
use crate::{
    run_id::RunNo,
    store::rows::{DeferredId, DeferredTables, Of, SettledRow, Waiter},
    token::Secret,
};

/// The secret of the store.
pub(crate) fn secret<S: Sql>(sql: &S) -> Result<Secret, S::Error> {
    let text = "SELECT value FROM everstep_secrets WHERE name = 'tokens'";
    let found = sql.row(text, &[], |row| row.get(0).map(Secret::new))?;
    found.ok_or_else(|| BadValue::new("secrets", "no secret for tokens").into())
}

impl<T: SqlTables> DeferredTables for InSql<T> {
    fn settled(&mut self, of: &DeferredId) -> Result<Option<SettledRow>, T::Error> {
        let sql = "SELECT body, at FROM everstep_deferreds \
                   WHERE run = ?1 AND generation = ?2 AND tag = ?3";
        let params = params![of.run, of.generation, of.tag];
        self.sql().row(sql, params, |row| Ok(read!(row => SettledRow { body, at })))
    }

    fn put_settled(&mut self, of: &DeferredId, row: &SettledRow) -> Result<(), T::Error> {
        let sql = "INSERT INTO everstep_deferreds (run, generation, tag, body, at) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let params = params![of.run, of.generation, of.tag, row.body, row.at];
        self.sql().execute(sql, params)
    }

    fn add_deferred_wait(&mut self, of: &DeferredId, key: &[u8]) -> Result<(), T::Error> {
        let sql = "INSERT INTO everstep_deferred_waits (run, generation, tag, key) \
                   VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
        self.sql().execute(sql, params![of.run, of.generation, of.tag, key])
    }

    fn take_deferred_waits(&mut self, of: &DeferredId) -> Result<Vec<Vec<u8>>, T::Error> {
        let sql = "DELETE FROM everstep_deferred_waits \
                   WHERE run = ?1 AND generation = ?2 AND tag = ?3 RETURNING key";
        let params = params![of.run, of.generation, of.tag];
        let mut keys: Vec<Vec<u8>> = self.sql().rows(sql, params, |row| row.get(0))?;
        // What a statement gives back comes in no promised order.
        keys.sort();
        Ok(keys)
    }

    fn remove_deferred_waits(&mut self, of: Of<'_>) -> Result<(), T::Error> {
        match of {
            Of::Operation(Waiter { run, generation, key }) => {
                let sql = "DELETE FROM everstep_deferred_waits \
                           WHERE run = ?1 AND generation = ?2 AND key = ?3";
                self.sql().execute(sql, params![run, generation, key])
            }
            Of::Run(run) => {
                let sql = "DELETE FROM everstep_deferred_waits WHERE run = ?1";
                self.sql().execute(sql, params![run])
            }
        }
    }

    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> Result<(), T::Error> {
        let sql = "DELETE FROM everstep_deferreds WHERE run = ?1 AND generation < ?2";
        self.sql().execute(sql, params![run, generation])
    }
}
