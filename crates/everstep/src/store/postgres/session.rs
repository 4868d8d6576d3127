//! A transaction as the rules see it: statements in order, rows back.
//!
//! Nothing is sent before an answer is needed. Until then statements queue up, and those that say
//! the same about several rows become one statement over arrays; they go out together with the
//! query that is waited for, or with the commit: one round trip for all of them. So what is read
//! always shows what was written.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
};

use super::{
    error::Trouble,
    known::Revision,
    value::{Param, PgRow, Value},
};
pub(super) use crate::store::sql::bulk::Bulk;
use crate::{
    commit::Transaction,
    hash::{FastMap, FastSet},
    run_id::RunNo,
    store::sql::{Query, Sql, Text},
};

/// One statement on its way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) sql: Cow<'static, str>,
    pub(super) params: Vec<Value>,
}

impl Op {
    pub(super) fn new(sql: impl Text, params: &[Param<'_>]) -> Op {
        Op::keeping(sql, params.iter().copied().map(Value::from).collect())
    }

    /// A statement with parameters that are its own already.
    pub(super) fn keeping(sql: impl Text, params: Vec<Value>) -> Op {
        let sql = sql.into();
        Op { sql, params }
    }
}

/// What came back for one.
pub(super) struct Answer {
    pub(super) rows: Vec<PgRow>,
    pub(super) affected: u64,
}

/// Where statements go.
pub(super) trait Port {
    /// Sends these at once, in order, and waits for all answers. The first error counts; what
    /// comes after it has had no effect.
    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, Trouble>;

    /// Runs the body of a user's transaction in this one; what became of it is in `transaction`.
    fn call(&self, transaction: &Transaction) -> Result<(), Trouble> {
        transaction.refuse(super::SQLITE_BODY);
        Ok(())
    }
}

/// A transaction under way.
pub(super) struct Session<'a> {
    port: &'a dyn Port,
    queue: RefCell<Queue>,
    rows: Cell<u64>,
    trips: Cell<u64>,
    /// Where in the queue the mark of the lane is.
    mark: Cell<Option<usize>>,
    transaction: Cell<Option<Revision>>,
    /// The runs whose rows were written by statements over arrays.
    runs: RefCell<FastSet<RunNo>>,
}

#[derive(Default)]
struct Queue {
    ops: Vec<Queued>,
    /// For each row of a table, the last statement that is about it.
    last: FastMap<(&'static str, i64), usize>,
    /// Statements before this one take no more rows.
    barrier: usize,
}

enum Queued {
    One(Op),
    Many(Many),
}

struct Many {
    bulk: &'static Bulk,
    columns: Vec<Value>,
    rows: usize,
    /// Where each row is. Not made before a second row with the same first column comes: most
    /// batches have none.
    places: Option<FastMap<Vec<u8>, usize>>,
}

impl<'a> Session<'a> {
    pub(super) fn new(port: &'a dyn Port) -> Session<'a> {
        Session {
            port,
            queue: RefCell::default(),
            rows: Cell::new(0),
            trips: Cell::new(0),
            mark: Cell::new(None),
            transaction: Cell::new(None),
            runs: RefCell::default(),
        }
    }

    /// How many round trips there were so far.
    pub(super) fn trips(&self) -> u64 {
        self.trips.get()
    }

    /// The number of this transaction, once its mark is made.
    pub(super) fn transaction(&self) -> Option<Revision> {
        self.transaction.get()
    }

    /// Whether a statement over arrays has written the row of this run.
    pub(super) fn has_written(&self, run: RunNo) -> bool {
        self.runs.borrow().contains(&run)
    }

    /// Queues the mark of the lane, which says what number the transaction has.
    pub(super) fn mark(&self, mark: Op) {
        self.mark.set(Some(self.queue.borrow().ops.len()));
        self.push(mark);
    }

    /// How many rows were changed so far.
    pub(super) fn rows_changed(&self) -> u64 {
        self.rows.get()
    }

    /// Queues a statement. What it does is seen by everything that is asked afterwards.
    pub(super) fn execute(&self, sql: impl Text, params: &[Param<'_>]) {
        self.push(Op::new(sql, params));
    }

    /// As [`execute`](Session::execute).
    pub(super) fn push(&self, op: Op) {
        let mut queue = self.queue.borrow_mut();
        queue.ops.push(Queued::One(op));
        queue.barrier = queue.ops.len();
    }

    /// Keeps what is queued apart from what comes: no row of it joins a statement from before.
    pub(super) fn barrier(&self) {
        let mut queue = self.queue.borrow_mut();
        queue.barrier = queue.ops.len();
    }

    /// Queues a row of a statement over arrays.
    pub(super) fn put(&self, bulk: &'static Bulk, row: &[Param<'_>]) {
        if bulk.table == "everstep_runs"
            && let Some(Param::Int(Some(run))) = row.first()
        {
            self.runs.borrow_mut().insert(RunNo(*run));
        }
        self.queue.borrow_mut().put(bulk, row);
    }

    /// The answers to several queries, in one round trip.
    pub(super) fn queries(&self, ops: Vec<Op>) -> Result<Vec<Vec<PgRow>>, Trouble> {
        let answers = self.run(ops)?;
        Ok(answers.into_iter().map(|answer| answer.rows).collect())
    }

    /// Sends what is queued, and these.
    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, Trouble> {
        let queued = std::mem::take(&mut *self.queue.borrow_mut());
        let before = queued.ops.len();
        let mut all: Vec<Op> = queued.ops.into_iter().map(Queued::into_op).collect();
        all.extend(ops);
        if all.is_empty() {
            return Ok(Vec::new());
        }
        self.trips.set(self.trips.get() + 1);
        let mut answers = self.port.run(all)?;
        if let Some(mark) = self.mark.take()
            && let Some(row) = answers.get(mark).and_then(|it| it.rows.first())
        {
            self.transaction.set(Some(Revision::new(row.get(1)?)));
        }
        let asked = answers.split_off(before.min(answers.len()));
        let changed: u64 = answers.iter().map(|answer| answer.affected).sum();
        self.rows.set(self.rows.get() + changed);
        Ok(asked)
    }

    /// Sends what is queued.
    pub(super) fn flush(&self) -> Result<(), Trouble> {
        self.run(Vec::new()).map(drop)
    }

    /// Runs the body of a user's transaction; what was written before is there for it.
    pub(super) fn call(&self, transaction: &Transaction) -> Result<(), Trouble> {
        self.flush()?;
        self.port.call(transaction)
    }

    /// Sends what is queued and then this, which ends the transaction.
    pub(super) fn finish(&self, sql: &'static str) -> Result<(), Trouble> {
        self.run(vec![Op::new(sql, &[])]).map(drop)
    }
}

impl Sql for Session<'_> {
    type Error = Trouble;

    const HAS_OTHERS: bool = true;

    fn pick<'t>(_: &'t str, postgres: &'t str) -> &'t str {
        postgres
    }

    fn execute(&self, sql: impl Text, params: &[Param<'_>]) -> Result<(), Trouble> {
        Session::execute(self, sql, params);
        Ok(())
    }

    fn execute_now(&self, sql: impl Text, params: &[Param<'_>]) -> Result<usize, Trouble> {
        let mut answers = self.run(vec![Op::new(sql, params)])?;
        let affected = answers.pop().map_or(0, |answer| answer.affected);
        Ok(usize::try_from(affected).unwrap_or(usize::MAX))
    }

    fn put(&self, bulk: &'static Bulk, row: &[Param<'_>]) -> Result<(), Trouble> {
        Session::put(self, bulk, row);
        Ok(())
    }

    fn barrier(&self) {
        Session::barrier(self);
    }

    fn ask(&self, queries: Vec<Query<'_>>) -> Result<(), Trouble> {
        let (ops, takes): (Vec<Op>, Vec<_>) = queries
            .into_iter()
            .map(|Query { sql, params, take }| (Op::new(sql, params), take))
            .unzip();
        for (answer, mut take) in self.run(ops)?.iter().zip(takes) {
            for row in &answer.rows {
                if take(row)?.is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Queue {
    fn put(&mut self, bulk: &'static Bulk, row: &[Param<'_>]) {
        let first = match row.first() {
            Some(Param::Int(Some(number))) => *number,
            _ => 0,
        };
        let about = (bulk.table, first);
        let last = self.last.get(&about).copied();
        let not_before = last.unwrap_or(0).max(self.barrier);
        let place = self.ops.iter().enumerate().skip(not_before).find_map(|(place, op)| {
            let Queued::Many(many) = op else { return None };
            std::ptr::eq(many.bulk, bulk).then_some(place)
        });
        let place = place.unwrap_or_else(|| {
            self.ops.push(Queued::Many(Many { bulk, columns: Vec::new(), rows: 0, places: None }));
            self.ops.len() - 1
        });
        if let Some(Queued::Many(many)) = self.ops.get_mut(place) {
            many.put(row, last == Some(place));
        }
        if last != Some(place) {
            self.last.insert(about, place);
        }
    }
}

impl Many {
    /// Adds a row. `is_known` says whether there is one with the same first column.
    fn put(&mut self, row: &[Param<'_>], is_known: bool) {
        let next = self.rows;
        let unique = self.bulk.unique;
        if is_known && unique > 0 && self.places.is_none() {
            let columns = &self.columns[..unique.min(self.columns.len())];
            let places = (0..next).map(|row| (name_at(columns, row), row));
            self.places = Some(places.collect());
        }
        let place = match &mut self.places {
            Some(places) => {
                let name = name_of(&row[..unique.min(row.len())]);
                *places.entry(name).or_insert(next)
            }
            None => next,
        };
        if next == 0 {
            self.columns = row.iter().map(|value| Value::from(*value).into_column()).collect();
        } else {
            for (column, value) in self.columns.iter_mut().zip(row) {
                column.set(place, Value::from(*value));
            }
        }
        if place == next {
            self.rows += 1;
        }
    }

    /// Rows that are named by a number are sent in its order, which is the order of locks: two who
    /// insert or change the same ones do not wait for each other.
    fn into_op(mut self) -> Op {
        if self.bulk.unique == 1
            && let Some(Value::Ints(numbers)) = self.columns.first()
            && !numbers.is_sorted()
        {
            let mut order: Vec<usize> = (0..numbers.len()).collect();
            order.sort_by_key(|row| numbers[*row]);
            self.columns.iter_mut().for_each(|it| it.reorder(&order));
        }
        Op::keeping(self.bulk.many(), self.columns)
    }
}

/// The columns that name a row, as bytes.
fn name_of(values: &[Param<'_>]) -> Vec<u8> {
    let mut name = Vec::new();
    for value in values {
        match value {
            Param::Int(Some(number)) => add_to_name(&mut name, &number.to_be_bytes()),
            Param::Text(Some(text)) => add_to_name(&mut name, text.as_bytes()),
            Param::Bytes(Some(bytes)) => add_to_name(&mut name, bytes),
            _ => add_to_name(&mut name, &[]),
        }
    }
    name
}

/// As [`name_of`], of a row that is in columns.
fn name_at(columns: &[Value], row: usize) -> Vec<u8> {
    let mut name = Vec::new();
    for column in columns {
        match column {
            Value::Ints(column) => match column.get(row) {
                Some(Some(number)) => add_to_name(&mut name, &number.to_be_bytes()),
                _ => add_to_name(&mut name, &[]),
            },
            Value::Texts(column) => {
                let text = column.get(row).and_then(Option::as_deref);
                add_to_name(&mut name, text.unwrap_or_default().as_bytes());
            }
            Value::Blobs(column) => {
                let bytes = column.get(row).and_then(Option::as_deref);
                add_to_name(&mut name, bytes.unwrap_or_default());
            }
            _ => add_to_name(&mut name, &[]),
        }
    }
    name
}

fn add_to_name(name: &mut Vec<u8>, bytes: &[u8]) {
    name.extend((bytes.len() as u64).to_be_bytes());
    name.extend(bytes);
}

impl Queued {
    fn into_op(self) -> Op {
        match self {
            Queued::One(op) => op,
            Queued::Many(many) => many.into_op(),
        }
    }
}
