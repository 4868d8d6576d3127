//! What the doctor mends by the rules of others, so that nobody is passed over: a place that becomes
//! free, or an event that comes back, goes to whoever waits for it, in the same transaction.

use super::{
    events::{self, EventTables},
    limits::{self, LimitTables},
    tables::Waiter,
};
use crate::{commit::Cell, run_id::RunNo, store::doctor::Remedy};

/// Locks what a row is about, in a store with several writers: whether the row is broken is judged
/// after this.
pub(crate) fn lock<T: EventTables + LimitTables>(
    tables: &mut T,
    remedy: Remedy,
    row: &[Cell],
) -> Result<(), T::Error> {
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

/// Mends a row that is broken; whether anything was changed.
pub(crate) fn mend<T: EventTables + LimitTables>(
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
