//! Children and those who wait for the end of a run, in SQL.
//!
//! A row of a child changes under the lock of the child. Whoever begins to wait for the end of a run
//! does so under the lock of that run; whoever waits no more, under its own.

use std::collections::{HashMap, hash_map::Entry};

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    session::{Bulk, Op},
    value::{Row, params},
};
use crate::{
    commit::Close,
    run_id::RunNo,
    store::{
        Finished,
        rules::{
            children::{ChildRow, ChildTables},
            tables::{Tables, Waiter},
        },
    },
};

static ADD_WATCHER: Bulk = Bulk {
    table: "everstep_watchers",
    sql: "INSERT INTO everstep_watchers (run, waiter, generation, key) \
          SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) \
          ON CONFLICT DO NOTHING",
    unique: 4,
};

static REMOVE_WATCHER: Bulk = Bulk {
    table: "everstep_watchers",
    sql: "DELETE FROM everstep_watchers USING unnest($1::bigint[], $2::bigint[], $3::bigint[], \
          $4::bytea[]) AS gone (r, w, g, k) \
          WHERE run = r AND waiter = w AND generation = g AND key = k",
    unique: 4,
};

/// In the order of those who wait; see [`Applier::order_watches`].
static REMOVE_WATCHES: Bulk = Bulk {
    table: "watchers, by who waits",
    sql: "DELETE FROM everstep_watchers USING unnest($1::bigint[], $2::bigint[], $3::bytea[]) \
          AS gone (w, g, k) WHERE waiter = w AND generation = g AND key = k",
    unique: 3,
};

static REMOVE_WATCHES_OF_RUN: Bulk = Bulk {
    table: "watchers, by who waits",
    sql: "DELETE FROM everstep_watchers WHERE waiter = ANY ($1)",
    unique: 1,
};

static PUT_CHILD: Bulk = Bulk {
    table: "everstep_children",
    sql: "INSERT INTO everstep_children (run, parent, generation, key, close, awaited) \
          SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], \
          $5::bigint[], $6::bigint[]) ON CONFLICT (run) DO UPDATE SET \
          parent = excluded.parent, generation = excluded.generation, key = excluded.key, \
          close = excluded.close, awaited = excluded.awaited",
    unique: 1,
};

static REMOVE_CHILD: Bulk = Bulk {
    table: "everstep_children",
    sql: "DELETE FROM everstep_children WHERE run = ANY ($1)",
    unique: 1,
};

/// Who waits for the end of these runs.
pub(super) fn watchers(runs: Vec<i64>) -> Op {
    let sql = "SELECT run, waiter, generation, key FROM everstep_watchers WHERE run = ANY ($1)";
    Op::new(sql, params![runs])
}

const CHILD: &str = "run, parent, generation, key, close, awaited";

/// How many children are locked together, before it is known which of them matter.
const LOCKED_AHEAD_MAX: usize = 500;

/// What a batch knows of the families of its runs.
#[derive(Default)]
pub(super) struct Families {
    /// What the batch has last done about the waits of a run.
    watches: HashMap<RunNo, Watches>,
    /// How runs have ended by commits of this batch.
    pub(super) endings: HashMap<RunNo, Finished>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watches {
    Added,
    Removed,
}

impl Applier<'_> {
    /// Keeps what is added for a waiter apart from what is removed for it: the two are sorted by
    /// different runs, and would otherwise change places.
    fn order_watches(&mut self, waiter: RunNo, what: Watches) {
        match self.families.watches.entry(waiter) {
            Entry::Occupied(mut last) if *last.get() != what => {
                last.insert(what);
                self.session.barrier();
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(none) => {
                none.insert(what);
            }
        }
    }
}

impl ChildTables for Applier<'_> {
    fn ended(&mut self, run: RunNo) -> Result<Option<Finished>, Trouble> {
        // Locked: it may be about to end.
        let is_over = self
            .head(run)?
            .is_some_and(|head| head.status.is_terminal());
        if !is_over {
            return Ok(None);
        }
        if let Some(finished) = self.families.endings.get(&run) {
            return Ok(Some(finished.clone()));
        }
        let sql = format!(
            "SELECT {} FROM everstep_runs WHERE no = $1",
            columns::FINISHED
        );
        self.session.row(sql, params![run.0], columns::finished)
    }

    fn add_watcher(&mut self, run: RunNo, waiter: &Waiter) -> Result<(), Trouble> {
        self.order_watches(waiter.run, Watches::Added);
        self.session.put(&ADD_WATCHER, watcher(run, waiter));
        self.ahead.forget_watchers(run);
        Ok(())
    }

    fn take_watchers(&mut self, run: RunNo) -> Result<Vec<Waiter>, Trouble> {
        if let Some(waiters) = self.ahead.take_watchers(run) {
            for waiter in &waiters {
                self.session.put(&REMOVE_WATCHER, watcher(run, waiter));
            }
            return Ok(waiters);
        }
        let sql = "SELECT waiter, generation, key FROM everstep_watchers WHERE run = $1";
        let read = |row: &Row| waiter(row, 0);
        let mut waiters = self.session.rows(sql, params![run.0], read)?;
        let mut runs: Vec<RunNo> = waiters.iter().map(|waiter| waiter.run).collect();
        runs.retain(|run| !self.is_head_known(*run));
        if !runs.is_empty() {
            // Until they are locked, they could give up waiting.
            let again = Op::new(sql, params![run.0]);
            let rows = self.lock_heads_and_ask(&runs, again)?;
            let is_certain = runs.iter().all(|run| self.is_head_known(*run));
            if is_certain {
                waiters = rows.iter().map(read).collect::<Result<_, _>>()?;
            } else {
                for run in runs {
                    self.head(run)?;
                }
                waiters = self.session.rows(sql, params![run.0], read)?;
            }
        }
        for waiter in &waiters {
            self.session.put(&REMOVE_WATCHER, watcher(run, waiter));
        }
        Ok(waiters)
    }

    fn remove_watches(&mut self, waiter: &Waiter) -> Result<(), Trouble> {
        self.order_watches(waiter.run, Watches::Removed);
        self.ahead.forget_watches(waiter.run);
        let Waiter {
            run,
            generation,
            key,
        } = waiter;
        self.session
            .put(&REMOVE_WATCHES, params![run.0, *generation, *key]);
        Ok(())
    }

    fn remove_watches_of_run(&mut self, run: RunNo) -> Result<(), Trouble> {
        self.order_watches(run, Watches::Removed);
        self.ahead.forget_watches(run);
        self.session.put(&REMOVE_WATCHES_OF_RUN, params![run.0]);
        Ok(())
    }

    fn put_child(&mut self, child: &ChildRow) -> Result<(), Trouble> {
        // It may have ended since it was read, and then there is no row of it.
        let is_live = self
            .head(child.run)?
            .is_some_and(|head| !head.status.is_terminal());
        if !is_live {
            return Ok(());
        }
        let Waiter {
            run: parent,
            generation,
            key,
        } = &child.parent;
        let (run, close, awaited) = (child.run.0, child.close.code(), child.awaited);
        let row = params![run, parent.0, *generation, *key, close, awaited];
        self.session.put(&PUT_CHILD, row);
        Ok(())
    }

    fn children(&mut self, parent: RunNo) -> Result<Vec<ChildRow>, Trouble> {
        let sql = format!("SELECT {CHILD} FROM everstep_children WHERE parent = $1 ORDER BY run");
        let children = self.session.rows(sql, params![parent.0], |row| {
            let close: u8 = row.get(4)?;
            Ok(ChildRow {
                run: row.get(0).map(RunNo)?,
                parent: waiter(row, 1)?,
                close: Close::from_code(close).ok_or_else(|| Trouble::value("close", close))?,
                awaited: row.get(5)?,
            })
        })?;
        let runs = children.iter().map(|child| child.run);
        let runs: Vec<RunNo> = runs.take(LOCKED_AHEAD_MAX).collect();
        self.lock_heads(&runs)?;
        Ok(children)
    }

    fn remove_child(&mut self, run: RunNo) -> Result<(), Trouble> {
        self.session.put(&REMOVE_CHILD, params![run.0]);
        Ok(())
    }
}

/// The row that says who waits for the end of a run.
fn watcher(run: RunNo, waiter: &Waiter) -> Vec<super::value::Value> {
    let Waiter {
        run: by,
        generation,
        key,
    } = waiter;
    params![run.0, by.0, *generation, *key]
}

/// An operation that waits: its run, generation and key.
pub(super) fn waiter(row: &Row, column: usize) -> Result<Waiter, Trouble> {
    Ok(Waiter {
        run: row.get(column).map(RunNo)?,
        generation: row.get(column + 1)?,
        key: row.get(column + 2)?,
    })
}
