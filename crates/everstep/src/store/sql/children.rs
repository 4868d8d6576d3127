//! The rows of children and of those who wait for the end of a run.
//!
//! A row of a child changes under the lock of the child. Whoever begins to wait for the end of a run
//! does so under the lock of that run; whoever waits no more, under its own.

use super::{
    InSql, Sql, SqlTables,
    bulk::Bulk,
    columns,
    value::{Param, params},
};
use crate::{
    run_id::RunNo,
    store::{
        Finished,
        rows::{ChildRow, ChildTables, Of, RunTables, Waiter},
    },
};

static ADD_WATCHER: Bulk = Bulk::insert_new(
    "everstep_watchers",
    4,
    "run bigint, waiter bigint, generation bigint, key bytea",
);

static REMOVE_WATCHER: Bulk =
    Bulk::delete("everstep_watchers", 4, "run bigint, waiter bigint, generation bigint, key bytea");

/// In the order of those who wait; see [`order_watches`].
static REMOVE_WATCHES: Bulk = Bulk::written(
    "watchers, by who waits",
    3,
    "DELETE FROM everstep_watchers WHERE waiter = ?1 AND generation = ?2 AND key = ?3",
    "DELETE FROM everstep_watchers USING unnest(?1::bigint[], ?2::bigint[], ?3::bytea[]) \
     AS gone (w, g, k) WHERE waiter = w AND generation = g AND key = k",
);

static REMOVE_WATCHES_OF_RUN: Bulk = Bulk::written(
    "watchers, by who waits",
    1,
    "DELETE FROM everstep_watchers WHERE waiter = ?1",
    "DELETE FROM everstep_watchers WHERE waiter = ANY (?1)",
);

static PUT_CHILD: Bulk = Bulk::put(
    "everstep_children",
    1,
    "run bigint, parent bigint, generation bigint, key bytea, close bigint, awaited bigint",
);

static REMOVE_CHILD: Bulk = Bulk::delete("everstep_children", 1, "run bigint");

/// How many children are locked together, before it is known which of them matter.
const LOCKED_AHEAD_MAX: usize = 500;

/// What a batch has last done about the waits of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watches {
    Added,
    Removed,
}

/// Keeps what is added for a waiter apart from what is removed for it: the two are sorted by
/// different runs, and would otherwise change places.
fn order_watches<T: SqlTables>(tables: &mut InSql<T>, waiter: RunNo, what: Watches) {
    let before = tables.ahead().watches.insert(waiter, what);
    if before.is_some_and(|before| before != what) {
        tables.sql().barrier();
    }
}

/// The row that says who waits for the end of a run.
fn watcher<'w>(run: &'w RunNo, waiter: &'w Waiter) -> [Param<'w>; 4] {
    *params![*run, waiter.run, waiter.generation, waiter.key]
}

impl<T: SqlTables> ChildTables for InSql<T> {
    fn ended(&mut self, run: RunNo) -> Result<Option<Finished>, T::Error> {
        // Locked: it may be about to end.
        let is_over = self.head(run)?.is_some_and(|head| head.status.is_terminal());
        if !is_over {
            return Ok(None);
        }
        if let Some(finished) = self.ahead().endings.get(&run) {
            return Ok(Some(finished.clone()));
        }
        let sql = format!("SELECT {} FROM everstep_runs WHERE no = ?1", columns::FINISHED);
        self.sql().row(sql, params![run], columns::finished)
    }

    fn add_watcher(&mut self, run: RunNo, waiter: &Waiter) -> Result<(), T::Error> {
        order_watches(self, waiter.run, Watches::Added);
        self.sql().put(&ADD_WATCHER, &watcher(&run, waiter))?;
        self.ahead().forget_watchers(run);
        Ok(())
    }

    fn take_watchers(&mut self, run: RunNo) -> Result<Vec<Waiter>, T::Error> {
        let waiters = match self.ahead().take_watchers(run) {
            Some(waiters) => waiters,
            None => {
                let sql = "SELECT waiter, generation, key FROM everstep_watchers WHERE run = ?1";
                let read = |row: &dyn super::value::Row| columns::waiter(row, 0);
                let waiters = self.sql().rows(sql, params![run], read)?;
                self.lock_watchers(run, waiters)?
            }
        };
        for waiter in &waiters {
            self.sql().put(&REMOVE_WATCHER, &watcher(&run, waiter))?;
        }
        Ok(waiters)
    }

    fn remove_watches(&mut self, of: Of<'_>) -> Result<(), T::Error> {
        order_watches(self, of.run(), Watches::Removed);
        self.ahead().forget_watches(of.run());
        match of {
            Of::Operation(Waiter { run, generation, key }) => {
                self.sql().put(&REMOVE_WATCHES, params![run, generation, key])
            }
            Of::Run(run) => self.sql().put(&REMOVE_WATCHES_OF_RUN, params![run]),
        }
    }

    fn put_child(&mut self, child: &ChildRow) -> Result<(), T::Error> {
        let Waiter { run: parent, generation, key } = &child.parent;
        let (close, awaited) = (child.close.code(), child.awaited);
        let row = params![child.run, parent, generation, key, close, awaited];
        self.sql().put(&PUT_CHILD, row)
    }

    fn children(&mut self, parent: RunNo) -> Result<Vec<ChildRow>, T::Error> {
        let sql = "SELECT run, parent, generation, key, close, awaited FROM everstep_children \
                   WHERE parent = ?1 ORDER BY run";
        let children = self.sql().rows(sql, params![parent], |row| {
            Ok(ChildRow {
                run: row.get(0)?,
                parent: columns::waiter(row, 1)?,
                close: row.get(4)?,
                awaited: row.get(5)?,
            })
        })?;
        let runs = children.iter().map(|child| child.run);
        let runs: Vec<RunNo> = runs.take(LOCKED_AHEAD_MAX).collect();
        self.lock_runs(&runs)?;
        Ok(children)
    }

    fn remove_child(&mut self, run: RunNo) -> Result<(), T::Error> {
        self.sql().put(&REMOVE_CHILD, params![run])
    }
}
