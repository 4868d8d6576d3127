//! What a batch locks before it decides about those who wait for the end of a run.

use super::{Sql, batch::Applier, columns, error::Trouble, session::Op, value::params};
use crate::{
    run_id::RunNo,
    store::{rows::Waiter, sql::SqlTables},
};

/// Who waits for the end of these runs.
pub(super) fn watchers(runs: Vec<i64>) -> Op {
    let sql = "SELECT run, waiter, generation, key FROM everstep_watchers WHERE run = ANY ($1)";
    Op::new(sql, params![runs])
}

impl Applier<'_> {
    /// Those who wait for the end of a run. Until they are locked, they could give up waiting.
    pub(super) fn lock_watchers(
        &mut self,
        run: RunNo,
        waiters: Vec<Waiter>,
    ) -> Result<Vec<Waiter>, Trouble> {
        let mut runs: Vec<RunNo> = waiters.iter().map(|waiter| waiter.run).collect();
        runs.retain(|run| !self.is_head_known(*run));
        if runs.is_empty() {
            return Ok(waiters);
        }
        let sql = "SELECT waiter, generation, key FROM everstep_watchers WHERE run = $1";
        let again = Op::new(sql, params![run]);
        let rows = self.lock_heads_and_ask(&runs, again)?;
        if runs.iter().all(|run| self.is_head_known(*run)) {
            let waiters = rows.iter().map(|row| Ok(columns::waiter(row, 0)?));
            return waiters.collect();
        }
        for run in runs {
            self.row_of(run)?;
        }
        self.session.rows(sql, params![run], |row| columns::waiter(row, 0))
    }
}
