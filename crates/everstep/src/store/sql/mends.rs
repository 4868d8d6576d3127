//! What the doctor mends by the rules of others, so that nobody is passed over: a place that becomes
//! free, or an event that comes back, goes to whoever waits for it, in the same transaction.

use std::borrow::Cow;

use super::{
    events::{self, EventTables},
    limits::{self, LimitTables},
    tables::Waiter,
};
use crate::{
    commit::{Cell, Mend},
    run_id::RunNo,
    store::doctor::{RULES, Remedy, Rule, sql},
};

/// What the doctor asks of the tables of a store, within one batch.
pub(crate) trait MendTables: EventTables + LimitTables {
    /// SQL for the number of the queue item that has a place `t`.
    fn item() -> &'static str;

    /// Makes a change of the doctor to the row of this run or to something else; how many rows were
    /// changed. Nothing that was remembered of them is believed afterwards.
    fn mend_by(
        &mut self,
        run: Option<RunNo>,
        sql: Cow<'static, str>,
        params: &[Cell],
    ) -> Result<u64, Self::Error>;

    /// Whether this query has a row.
    fn is_so(&mut self, sql: String, params: &[Cell]) -> Result<bool, Self::Error>;
}

/// Mends something, if it is still broken; how many rows were changed. What it is about was locked at
/// the beginning of the batch, or is locked here, so nothing is counted while it changes.
pub(crate) fn apply<T: MendTables>(tables: &mut T, mend: &Mend) -> Result<u64, T::Error> {
    let int = |number: i64| Cell::Int(number);
    match mend {
        Mend::Row { rule, row } => mend_row(tables, &RULES[*rule], row),
        Mend::RemoveEntry { run, key, value } => {
            let bytes = |bytes: &Vec<u8>| Cell::Bytes(bytes.clone());
            let params = [int(run.0), bytes(key), bytes(value)];
            tables.mend_by(Some(*run), sql::REMOVE_ENTRY.into(), &params)
        }
        Mend::ForgetNumber { run, last_number } => {
            let params = [int(run.0), int(*last_number)];
            tables.mend_by(Some(*run), sql::FORGET_NUMBER.into(), &params)
        }
        Mend::Shard { run, from, to } => {
            let params = [int(run.0), int(*from), int(*to)];
            tables.mend_by(Some(*run), sql::SHARD.into(), &params)
        }
    }
}

fn mend_row<T: MendTables>(tables: &mut T, rule: &Rule, row: &[Cell]) -> Result<u64, T::Error> {
    if let Some(sql) = sql::mend(rule, T::item()) {
        let run = match (rule.table, row) {
            ("everstep_runs", [Cell::Int(no), ..]) => Some(RunNo(*no)),
            _ => None,
        };
        return tables.mend_by(run, sql.into(), row);
    }
    lock(tables, rule.remedy, row)?;
    if !tables.is_so(sql::is_broken(rule, T::item()), row)? {
        return Ok(0);
    }
    mend_by_rules(tables, rule.remedy, row).map(u64::from)
}

/// Locks what a row is about, in a store with several writers: whether the row is broken is judged
/// after this.
fn lock<T: MendTables>(tables: &mut T, remedy: Remedy, row: &[Cell]) -> Result<(), T::Error> {
    match (remedy, row) {
        (Remedy::TakeBack, [Cell::Text(name), ..]) => tables.event_name(name).map(drop),
        (Remedy::Recount, [Cell::Text(name), Cell::Text(key)]) => tables.limit(name, key).map(drop),
        (Remedy::Vacate, row) => {
            let Some(of) = waiter(row) else {
                return Ok(());
            };
            match tables.place(&of)? {
                Some(place) => tables.limit(&place.limit, &place.limit_key).map(drop),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Mends a row that is broken by the rules of others; whether anything was changed.
fn mend_by_rules<T: MendTables>(
    tables: &mut T,
    remedy: Remedy,
    row: &[Cell],
) -> Result<bool, T::Error> {
    match (remedy, row) {
        (Remedy::TakeBack, [Cell::Text(name), Cell::Int(seq)]) => {
            events::take_back(tables, name, *seq as u64)
        }
        (Remedy::Recount, [Cell::Text(name), Cell::Text(key)]) => {
            limits::recount(tables, name, key)
        }
        (Remedy::Vacate, row) => match waiter(row) {
            Some(of) => limits::vacate(tables, &of),
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

/// Whose place it is.
fn waiter(row: &[Cell]) -> Option<Waiter> {
    let [Cell::Int(run), Cell::Int(generation), Cell::Bytes(key)] = row else {
        return None;
    };
    Some(Waiter {
        run: RunNo(*run),
        generation: u32::try_from(*generation).ok()?,
        key: key.clone(),
    })
}
