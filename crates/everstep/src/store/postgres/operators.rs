//! The audit log and the tokens of the HTTP API in SQL.

use super::{
    columns,
    error::Trouble,
    session::Session,
    value::{Row, params},
};
use crate::{
    store::{ApiTokenRow, AuditRow, NewAudit},
    time::Timestamp,
};

pub(super) fn begin_audit(session: &Session<'_>, new: &NewAudit) -> Result<u64, Trouble> {
    let sql = "INSERT INTO everstep_audit (at, who, action, target, detail) VALUES ($1, $2, $3, $4, $5) \
               RETURNING no";
    let at = new.at.as_millis();
    let params = params![at, new.who, new.action, new.target, new.detail];
    let no = session.row(sql, params, |row| columns::number(row, 0))?;
    no.ok_or_else(|| Trouble::value("no", "no number came back"))
}

pub(super) fn end_audit(session: &Session<'_>, no: u64, outcome: &str) -> Result<bool, Trouble> {
    let sql = "UPDATE everstep_audit SET outcome = $2 WHERE no = $1 AND outcome IS NULL";
    Ok(session.execute_now(sql, params![columns::limit(no), outcome])? > 0)
}

pub(super) fn audits(
    session: &Session<'_>,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<AuditRow>, Trouble> {
    let sql = "SELECT no, at, who, action, target, detail, outcome FROM everstep_audit WHERE no < $1 \
               ORDER BY no DESC LIMIT $2";
    let before = before.map_or(i64::MAX, columns::limit);
    session.rows(sql, params![before, columns::limit(limit)], audit)
}

fn audit(row: &Row) -> Result<AuditRow, Trouble> {
    Ok(AuditRow {
        no: columns::number(row, 0)?,
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

pub(super) fn oldest_audit(session: &Session<'_>) -> Result<Option<Timestamp>, Trouble> {
    let sql = "SELECT at FROM everstep_audit ORDER BY at LIMIT 1";
    session.row(sql, Vec::new(), |row| columns::time(row, 0))
}

pub(super) fn delete_audits(
    session: &Session<'_>,
    before: Timestamp,
    limit: usize,
) -> Result<(), Trouble> {
    // Several engines do this; none waits for another.
    let sql = "DELETE FROM everstep_audit WHERE no IN (SELECT no FROM everstep_audit WHERE at < $1 \
               ORDER BY at, no LIMIT $2 FOR UPDATE SKIP LOCKED)";
    session.execute(sql, params![before.as_millis(), columns::limit(limit)]);
    Ok(())
}

pub(super) fn add_api_token(session: &Session<'_>, token: &ApiTokenRow) -> Result<bool, Trouble> {
    let sql = "INSERT INTO everstep_api_tokens (name, role, hash, created_at, last_used_at) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    let params = params![
        token.name,
        token.role.as_str(),
        token.hash.to_vec(),
        token.created_at.as_millis(),
        token.last_used_at.map(Timestamp::as_millis),
    ];
    Ok(session.execute_now(sql, params)? > 0)
}

pub(super) fn remove_api_token(session: &Session<'_>, name: &str) -> Result<bool, Trouble> {
    let sql = "DELETE FROM everstep_api_tokens WHERE name = $1";
    Ok(session.execute_now(sql, params![name])? > 0)
}

pub(super) fn note_api_token_used(session: &Session<'_>, name: &str, at: Timestamp) {
    let sql = "UPDATE everstep_api_tokens SET last_used_at = $2 \
               WHERE name = $1 AND (last_used_at IS NULL OR last_used_at < $2)";
    session.execute(sql, params![name, at.as_millis()]);
}

pub(super) fn api_tokens(session: &Session<'_>) -> Result<Vec<ApiTokenRow>, Trouble> {
    let sql =
        "SELECT name, role, hash, created_at, last_used_at FROM everstep_api_tokens ORDER BY name";
    session.rows(sql, Vec::new(), |row| {
        let role: String = row.get(1)?;
        Ok(ApiTokenRow {
            name: row.get(0)?,
            role: role
                .parse()
                .map_err(|error| Trouble::value("role", error))?,
            hash: row
                .get::<Vec<u8>>(2)?
                .try_into()
                .map_err(|_| Trouble::value("hash", "not 32 bytes"))?,
            created_at: columns::time(row, 3)?,
            last_used_at: columns::optional_time(row, 4)?,
        })
    })
}
