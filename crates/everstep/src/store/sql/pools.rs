//! The rows of pools.

use super::{
    Sql,
    value::{BadValue, params, read},
};
use crate::pool::{PoolNo, PoolRow};

/// The number of the pool with this name, which is made if there is none. Two that make one at the
/// same moment meet in the table: the second begins again and finds it.
pub(crate) fn pool_no<S: Sql>(sql: &S, name: &str) -> Result<PoolNo, S::Error> {
    let text = "SELECT no FROM everstep_pools WHERE name = ?1";
    if let Some(no) = sql.row(text, params![name], |row| row.get(0))? {
        return Ok(no);
    }
    let text = "INSERT INTO everstep_pools (no, name) SELECT max(no) + 1, ?1 FROM everstep_pools \
                RETURNING no";
    let made = sql.row(text, params![name], |row| row.get(0))?;
    made.ok_or_else(|| BadValue::new("pools", "nothing").into())
}

pub(crate) fn list<S: Sql>(sql: &S) -> Result<Vec<PoolRow>, S::Error> {
    let text = "SELECT no, name FROM everstep_pools ORDER BY no";
    sql.rows(text, &[], |row| Ok(read!(row => PoolRow { no, name })))
}
