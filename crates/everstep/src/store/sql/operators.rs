//! The audit log and the tokens of the HTTP API.

use super::{
    Sql,
    value::{BadValue, Row, params, read},
};
use crate::{
    store::{ApiTokenRow, AuditRow, NewAudit},
    time::Timestamp,
};

pub(crate) fn begin_audit<S: Sql>(sql: &S, new: &NewAudit) -> Result<u64, S::Error> {
    let text = "INSERT INTO everstep_audit (at, who, action, target, detail) \
                VALUES (?1, ?2, ?3, ?4, ?5) RETURNING no";
    let params = params![new.at, new.who, new.action, new.target, new.detail];
    let no = sql.row(text, params, |row| row.get(0))?;
    no.ok_or_else(|| BadValue::new("no", "no number came back").into())
}

pub(crate) fn end_audit<S: Sql>(sql: &S, no: u64, outcome: &str) -> Result<bool, S::Error> {
    let text = "UPDATE everstep_audit SET outcome = ?2 WHERE no = ?1 AND outcome IS NULL";
    Ok(sql.execute_now(text, params![no, outcome])? > 0)
}

pub(crate) fn audits<S: Sql>(
    sql: &S,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<AuditRow>, S::Error> {
    let text = "SELECT no, at, who, action, target, detail, outcome FROM everstep_audit \
                WHERE no < ?1 ORDER BY no DESC LIMIT ?2";
    sql.rows(text, params![before.unwrap_or(u64::MAX), limit], audit)
}

fn audit(row: &dyn Row) -> Result<AuditRow, BadValue> {
    Ok(AuditRow {
        no: row.get(0)?,
        begun: read!(row, 1 => NewAudit { at, who, action, target, detail }),
        outcome: row.get(6)?,
    })
}

pub(crate) fn oldest_audit<S: Sql>(sql: &S) -> Result<Option<Timestamp>, S::Error> {
    let text = "SELECT at FROM everstep_audit ORDER BY at LIMIT 1";
    sql.row(text, &[], |row| row.get(0))
}

/// Deletes entries from before this; when the oldest that is left was made.
pub(crate) fn delete_audits<S: Sql>(
    sql: &S,
    before: Timestamp,
    limit: usize,
) -> Result<Option<Timestamp>, S::Error> {
    // Several engines do this; none waits for another.
    let text = format!(
        "DELETE FROM everstep_audit WHERE no IN (SELECT no FROM everstep_audit WHERE at < ?1 \
         ORDER BY at, no LIMIT ?2{})",
        S::skip_locked()
    );
    sql.execute(text, params![before, limit])?;
    oldest_audit(sql)
}

pub(crate) fn add_api_token<S: Sql>(sql: &S, token: &ApiTokenRow) -> Result<bool, S::Error> {
    let text = "INSERT INTO everstep_api_tokens (name, role, hash, created_at, last_used_at) \
                VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    let role = token.role.as_str();
    let params = params![token.name, role, token.hash, token.created_at, token.last_used_at];
    Ok(sql.execute_now(text, params)? > 0)
}

pub(crate) fn remove_api_token<S: Sql>(sql: &S, name: &str) -> Result<bool, S::Error> {
    let text = "DELETE FROM everstep_api_tokens WHERE name = ?1";
    Ok(sql.execute_now(text, params![name])? > 0)
}

pub(crate) fn note_api_token_used<S: Sql>(
    sql: &S,
    name: &str,
    at: Timestamp,
) -> Result<(), S::Error> {
    let text = "UPDATE everstep_api_tokens SET last_used_at = ?2 \
                WHERE name = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)";
    sql.execute(text, params![name, at])
}

pub(crate) fn api_tokens<S: Sql>(sql: &S) -> Result<Vec<ApiTokenRow>, S::Error> {
    let text =
        "SELECT name, role, hash, created_at, last_used_at FROM everstep_api_tokens ORDER BY name";
    sql.rows(text, &[], |row| {
        Ok(read!(row => ApiTokenRow { name, role, hash, created_at, last_used_at }))
    })
}
