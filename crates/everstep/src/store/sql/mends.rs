//! What the doctor mends: see [`crate::store::doctor`] for the rules.
//!
//! What others wait for is mended by the rules that they wait by, so that nobody is passed over: a
//! place that becomes free, or an event that comes back, goes to whoever waits for it, in the same
//! transaction.

use std::borrow::Cow;

use super::{
    InSql, Sql, SqlTables,
    doctor::{item, values},
    value::params,
};
use crate::{
    commit::{Cell, Mend},
    run_id::RunNo,
    store::{
        doctor::{RULES, Remedy, Rule, sql as texts},
        rows::{EventTables, LimitTables, Waiter},
        rules::{events, limits},
    },
};

/// Mends something, if it is still broken; how many rows were changed. What it is about was locked at
/// the beginning of the batch, or is locked here, so nothing is counted while it changes.
pub(crate) fn apply<T: SqlTables>(tables: &mut InSql<T>, mend: &Mend) -> Result<u64, T::Error> {
    let int = |number: i64| Cell::Int(number);
    match mend {
        Mend::Row { rule, row } => mend_row(tables, &RULES[*rule], row),
        Mend::RemoveEntry { run, key, value } => {
            let bytes = |bytes: &Vec<u8>| Cell::Bytes(bytes.clone());
            let row = [int(run.0), bytes(key), bytes(value)];
            execute(tables, Some(*run), texts::REMOVE_ENTRY.into(), &row)
        }
        Mend::ForgetNumber { run, last_number } => {
            let row = [int(run.0), int(*last_number)];
            execute(tables, Some(*run), texts::FORGET_NUMBER.into(), &row)
        }
        Mend::Shard { run, from, to } => {
            let row = [int(run.0), int(*from), int(*to)];
            execute(tables, Some(*run), texts::SHARD.into(), &row)
        }
    }
}

/// Changes the row of this run or something else. Nothing that was remembered of rows is believed
/// afterwards.
fn execute<T: SqlTables>(
    tables: &mut InSql<T>,
    run: Option<RunNo>,
    sql: Cow<'static, str>,
    row: &[Cell],
) -> Result<u64, T::Error> {
    tables.forget(run);
    let changed = tables.sql().execute_now(sql, &values(row))?;
    Ok(changed as u64)
}

fn mend_row<T: SqlTables>(
    tables: &mut InSql<T>,
    rule: &Rule,
    row: &[Cell],
) -> Result<u64, T::Error> {
    if let Some(sql) = texts::mend(rule, item::<T::Sql>()) {
        let run = match (rule.table, row) {
            ("everstep_runs", [Cell::Int(no), ..]) => Some(RunNo(*no)),
            _ => None,
        };
        return execute(tables, run, sql.into(), row);
    }
    lock(tables, rule.remedy, row)?;
    if !tables.sql().exists(texts::is_broken(rule, item::<T::Sql>()), &values(row))? {
        return Ok(0);
    }
    mend_by_rules(tables, rule.remedy, row).map(u64::from)
}

/// Locks what a row is about, in a store with several writers: whether the row is broken is judged
/// after this.
fn lock<T: SqlTables>(tables: &mut InSql<T>, remedy: Remedy, row: &[Cell]) -> Result<(), T::Error> {
    match (remedy, row) {
        (Remedy::TakeBack, [Cell::Text(name), ..]) => tables.event_name(name).map(drop),
        (Remedy::Recount, [Cell::Text(name), Cell::Text(key)]) => tables.limit(name, key).map(drop),
        (Remedy::Vacate, row) => {
            let Some(of) = waiter(row) else {
                return Ok(());
            };
            match limits::place_of(tables, &of)? {
                Some(place) => tables.limit(&place.limit, &place.limit_key).map(drop),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Mends a row that is broken by the rules of others; whether anything was changed.
fn mend_by_rules<T: SqlTables>(
    tables: &mut InSql<T>,
    remedy: Remedy,
    row: &[Cell],
) -> Result<bool, T::Error> {
    match (remedy, row) {
        (Remedy::TakeBack, [Cell::Text(name), Cell::Int(seq)]) => {
            events::take_back(tables, name, *seq as u64)
        }
        (Remedy::Recount, [Cell::Text(name), Cell::Text(key)]) => recount(tables, name, key),
        (Remedy::Vacate, row) => match waiter(row) {
            Some(of) => vacate(tables, &of),
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

/// Removes a place that nobody uses, and lets in the operations that wait for it; `false` if there is
/// no such place.
fn vacate<T: SqlTables>(tables: &mut InSql<T>, of: &Waiter) -> Result<bool, T::Error> {
    let Some(place) = limits::place_of(tables, of)? else {
        return Ok(false);
    };
    tables.remove_place(of)?;
    recount(tables, &place.limit, &place.limit_key)?;
    Ok(true)
}

/// Counts the places anew, and lets in the operations that there is room for; `false` if there is no
/// such limit.
fn recount<T: SqlTables>(tables: &mut InSql<T>, name: &str, key: &str) -> Result<bool, T::Error> {
    let Some(mut row) = tables.limit(name, key)? else {
        return Ok(false);
    };
    let sql = "SELECT count(*) FILTER (WHERE given = 1), count(*) FILTER (WHERE given = 0) \
               FROM everstep_limit_places WHERE name = ?1 AND key = ?2";
    let counts = tables.sql().row(sql, params![name, key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    (row.held, row.waiting) = counts.unwrap_or_default();
    limits::move_line(tables, row)?;
    Ok(true)
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
