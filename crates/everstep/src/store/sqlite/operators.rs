//! The audit log and the tokens of the HTTP API in SQL.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{columns, error::bad_value};
use crate::{
    store::{ApiTokenRow, AuditRow, NewAudit},
    time::Timestamp,
};

pub(super) fn begin_audit(conn: &Connection, new: &NewAudit) -> rusqlite::Result<u64> {
    let sql =
        "INSERT INTO everstep_audit (at, who, action, target, detail) VALUES (?1, ?2, ?3, ?4, ?5)";
    let at = new.at.as_millis();
    let params = params![at, new.who, new.action, new.target, new.detail];
    conn.prepare_cached(sql)?.execute(params)?;
    Ok(conn.last_insert_rowid() as u64)
}

pub(super) fn end_audit(conn: &Connection, no: u64, outcome: &str) -> rusqlite::Result<bool> {
    let sql = "UPDATE everstep_audit SET outcome = ?2 WHERE no = ?1 AND outcome IS NULL";
    let changed = conn
        .prepare_cached(sql)?
        .execute(params![no as i64, outcome])?;
    Ok(changed > 0)
}

pub(super) fn audits(
    conn: &Connection,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<AuditRow>> {
    let sql = "SELECT no, at, who, action, target, detail, outcome FROM everstep_audit WHERE no < ?1 \
               ORDER BY no DESC LIMIT ?2";
    let before = before.map_or(i64::MAX, |no| i64::try_from(no).unwrap_or(i64::MAX));
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, columns::limit(limit)], audit)?;
    rows.collect()
}

fn audit(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        no: row.get::<_, i64>(0)? as u64,
        begun: NewAudit {
            at: columns::time(row, 1)?,
            who: row.get(2)?,
            action: row.get(3)?,
            target: row.get(4)?,
            detail: row.get(5)?,
        },
        outcome: row.get(6)?,
    })
}

pub(super) fn oldest_audit(conn: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT at FROM everstep_audit ORDER BY at LIMIT 1";
    let mut statement = conn.prepare_cached(sql)?;
    statement
        .query_row([], |row| columns::time(row, 0))
        .optional()
}

pub(super) fn delete_audits(
    conn: &Connection,
    before: Timestamp,
    limit: usize,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM everstep_audit WHERE no IN \
               (SELECT no FROM everstep_audit WHERE at < ?1 ORDER BY at, no LIMIT ?2)";
    let params = params![before.as_millis(), columns::limit(limit)];
    conn.prepare_cached(sql)?.execute(params).map(drop)
}

pub(super) fn add_api_token(conn: &Connection, token: &ApiTokenRow) -> rusqlite::Result<bool> {
    let sql = "INSERT OR IGNORE INTO everstep_api_tokens (name, role, hash, created_at, last_used_at) \
               VALUES (?1, ?2, ?3, ?4, ?5)";
    let params = params![
        token.name,
        token.role.as_str(),
        token.hash,
        token.created_at.as_millis(),
        token.last_used_at.map(Timestamp::as_millis),
    ];
    Ok(conn.prepare_cached(sql)?.execute(params)? > 0)
}

pub(super) fn remove_api_token(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM everstep_api_tokens WHERE name = ?1";
    Ok(conn.prepare_cached(sql)?.execute([name])? > 0)
}

pub(super) fn note_api_token_used(
    conn: &Connection,
    name: &str,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "UPDATE everstep_api_tokens SET last_used_at = ?2 \
               WHERE name = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)";
    let params = params![name, at.as_millis()];
    conn.prepare_cached(sql)?.execute(params).map(drop)
}

pub(super) fn api_tokens(conn: &Connection) -> rusqlite::Result<Vec<ApiTokenRow>> {
    let sql =
        "SELECT name, role, hash, created_at, last_used_at FROM everstep_api_tokens ORDER BY name";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let role: String = row.get(1)?;
        Ok(ApiTokenRow {
            name: row.get(0)?,
            role: role.parse().map_err(|_| bad_value("role", role))?,
            hash: row.get(2)?,
            created_at: columns::time(row, 3)?,
            last_used_at: columns::optional_time(row, 4)?,
        })
    })?;
    rows.collect()
}
