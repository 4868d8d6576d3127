//! The format of a schema: what it is, and how it comes to have it.

use uuid::Uuid;

use super::{
    conn::{BEGIN, Conn, quoted},
    error::Trouble,
    locks::fnv,
    session::{Op, Port},
    value::params,
};
use crate::store::{
    StoreError,
    format::{Formats, Found},
};

/// The formats of the PostgreSQL store.
pub(super) const FORMATS: Formats<'static> = Formats(&[include_str!("format_1.sql")]);

/// Reads the format of a schema; 0 if there is nothing in it.
///
/// # Errors
///
/// [`StoreError::HalfMoved`] if it was filled by a move that has not come to its end: the runs in it
/// are those of another store as long as nobody says otherwise.
pub(super) fn inspect(
    conn: &Conn,
    schema: &str,
    store: &str,
    formats: Formats<'_>,
) -> Result<u32, StoreError> {
    let (found, is_moved_to) = look(conn, schema, store, formats)?;
    if is_moved_to
        && let Some(mark) = mark(conn, schema).map_err(|it| it.into_store_error(store))?
        && !mark.is_done
    {
        return Err(StoreError::HalfMoved { store: store.to_owned(), from: mark.source });
    }
    Ok(found)
}

/// What a move to this schema has left in it.
pub(super) struct Mark {
    /// Which attempt.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "for who moves"))]
    pub(super) id: Uuid,
    pub(super) source: String,
    /// Whether the schema is in charge of the runs in it.
    pub(super) is_done: bool,
}

pub(super) fn mark(conn: &Conn, schema: &str) -> Result<Option<Mark>, Trouble> {
    let sql =
        format!("SELECT id, source, ended_at IS NOT NULL FROM {}.everstep_move", quoted(schema));
    let answers = conn.run(vec![Op::new(sql, &[])])?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    let Some(row) = first else { return Ok(None) };
    Ok(Some(Mark { id: row.get(0)?, source: row.get(1)?, is_done: row.get(2)? }))
}

/// The format of a schema, and whether a move was ever made to it.
pub(super) fn look(
    conn: &Conn,
    schema: &str,
    store: &str,
    formats: Formats<'_>,
) -> Result<(u32, bool), StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
    // Not the information schema: it hides what this role has no rights on.
    let sql = "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace \
               WHERE nspname = $1 AND relkind IN ('r', 'p', 'v', 'm', 'f') \
               ORDER BY relname = 'everstep_format' DESC, relname = 'everstep_move' DESC, \
               relname LIMIT 2";
    let answers = conn.run(vec![Op::new(sql, params![schema])]).map_err(error)?;
    let rows = answers.first().map_or(&[][..], |answer| &answer.rows);
    let tables: Result<Vec<String>, Trouble> = rows.iter().map(|row| row.get(0)).collect();
    let tables = tables.map_err(error)?;
    match tables.first().map(String::as_str) {
        None => return Ok((0, false)),
        Some("everstep_format") => {}
        Some(other) => {
            return Err(StoreError::Foreign {
                store: store.to_owned(),
                what: format!("it has a table `{other}`; give a schema of its own"),
            });
        }
    }
    let found = read(conn, schema).map_err(error)?;
    let version = formats.check(found, store)?;
    Ok((version, tables.iter().any(|table| table == "everstep_move")))
}

fn read(conn: &Conn, schema: &str) -> Result<Option<Found>, Trouble> {
    // A schema from before format 1 had no fingerprint.
    let sql = format!(
        "SELECT version, to_jsonb(it) ->> 'fingerprint' FROM {}.everstep_format AS it",
        quoted(schema)
    );
    let answers = conn.run(vec![Op::new(sql, &[])])?;
    let Some(row) = answers.first().and_then(|answer| answer.rows.first()) else {
        return Ok(None);
    };
    let fingerprint: Option<String> = row.get(1)?;
    Ok(Some(Found {
        version: row.get(0)?,
        fingerprint: fingerprint.unwrap_or_else(|| "none".to_owned()),
    }))
}

/// Brings the schema to the latest of these formats. One at a time, under an advisory lock.
pub(super) fn migrate(
    conn: &Conn,
    schema: &str,
    store: &str,
    formats: Formats<'_>,
) -> Result<(), StoreError> {
    if inspect(conn, schema, store, formats)? == formats.latest() {
        return Ok(());
    }
    let error = |trouble: Trouble| trouble.into_store_error(store);
    begin(conn, schema).map_err(error)?;
    // Another process may have done it while this one waited for the lock.
    let migrated = inspect(conn, schema, store, formats)
        .and_then(|found| migrate_in_transaction(conn, schema, store, found, formats));
    let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = conn.run(vec![Op::new(end, &[])]).map_err(error);
    migrated.and(ended.map(drop))
}

/// Begins a transaction that may change the tables.
pub(super) fn begin(conn: &Conn, schema: &str) -> Result<(), Trouble> {
    let number = fnv(format!("everstep migration {schema}").bytes()) as i64;
    let ops =
        vec![Op::new(BEGIN, &[]), Op::new("SELECT pg_advisory_xact_lock($1)", params![number])];
    conn.run(ops).map(drop)
}

/// Leads from the format that was found to the last one, and leaves the schema in the search path of
/// the transaction.
pub(super) fn migrate_in_transaction(
    conn: &Conn,
    schema: &str,
    store: &str,
    found: u32,
    formats: Formats<'_>,
) -> Result<(), StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
    let known = formats.latest();
    let name = quoted(schema);
    if found == 0 {
        let sql = "SELECT 1 FROM information_schema.schemata WHERE schema_name = $1";
        let there = conn.run(vec![Op::new(sql, params![schema])]).map_err(error)?;
        if there.iter().all(|answer| answer.rows.is_empty()) {
            conn.batch(format!("CREATE SCHEMA {name}")).map_err(error)?;
        }
        conn.batch(format!(
            "CREATE TABLE {name}.everstep_format (version bigint NOT NULL, fingerprint text NOT NULL); \
             INSERT INTO {name}.everstep_format VALUES (0, '')"
        ))
        .map_err(error)?;
    } else if found < known
        && let Some(runner) = live_runner(conn, &name).map_err(error)?
    {
        return Err(StoreError::InUse { store: store.to_owned(), found, known, runner });
    }
    conn.batch(format!("SET LOCAL search_path TO {name}, pg_temp")).map_err(error)?;
    for statements in formats.0.iter().skip(found as usize) {
        conn.batch((*statements).to_owned()).map_err(error)?;
    }
    let sql = "UPDATE everstep_format SET version = $1, fingerprint = $2";
    let ops = vec![Op::new(sql, params![known, formats.fingerprint(known)])];
    conn.run(ops).map(drop).map_err(error)
}

/// A runner whose lease is not over. Every runner of an older format is of another version.
fn live_runner(conn: &Conn, schema: &str) -> Result<Option<String>, Trouble> {
    let sql = format!(
        "SELECT name FROM {schema}.everstep_runners \
         WHERE lease_until > extract(epoch FROM clock_timestamp()) * 1000 LIMIT 1"
    );
    let answers = conn.run(vec![Op::new(sql, &[])])?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    first.map(|row| row.get(0)).transpose()
}
