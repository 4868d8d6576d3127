//! The format of a schema: what it is, and how it comes to have it.

use super::{
    conn::{BEGIN, Conn, quoted},
    error::Trouble,
    locks::fnv,
    session::{Op, Port},
    value::params,
};
use crate::store::{Cause, StoreError};

/// What leads from each format to the next: the first one makes format 1 of an empty schema. Entries
/// are never changed once released, only added.
pub(super) const MIGRATIONS: &[&str] = &[include_str!("format_1.sql")];

/// The format that this program reads and writes.
pub(super) const FORMAT: u32 = MIGRATIONS.len() as u32;

/// Reads the format of a schema; 0 if there is nothing in it.
pub(super) fn inspect(conn: &Conn, schema: &str, store: &str) -> Result<u32, StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
    let sql = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = $1 \
               ORDER BY table_name = 'everstep_format' DESC, table_name LIMIT 1";
    let answers = conn
        .run(vec![Op::new(sql, params![schema])])
        .map_err(error)?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    let table: Option<String> = first.map(|row| row.get(0)).transpose().map_err(error)?;
    match table.as_deref() {
        None => return Ok(0),
        Some("everstep_format") => {}
        Some(other) => {
            return Err(StoreError::Foreign {
                store: store.to_owned(),
                what: format!("it has a table `{other}`; give a schema of its own"),
            });
        }
    }
    let sql = format!("SELECT version FROM {}.everstep_format", quoted(schema));
    let answers = conn.run(vec![Op::new(sql, Vec::new())]).map_err(error)?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    let found: Option<u32> = first.map(|row| row.get(0)).transpose().map_err(error)?;
    let (found, known) = (found.unwrap_or(0), FORMAT);
    if found > known {
        let store = store.to_owned();
        return Err(StoreError::TooNew {
            store,
            found,
            known,
        });
    }
    Ok(found)
}

/// Refuses a schema that has to be migrated first.
pub(super) fn require_current(format: u32, store: &str) -> Result<(), StoreError> {
    let source: Cause = match format {
        FORMAT => return Ok(()),
        0 => "it is empty; start an engine on it, or migrate it, first".into(),
        old => format!("it has format {old} and must be migrated to {FORMAT} first").into(),
    };
    let store = store.to_owned();
    Err(StoreError::CannotOpen { store, source })
}

/// Brings the schema to the format that `migrations` lead to. One at a time, under an advisory lock.
pub(super) fn migrate(
    conn: &Conn,
    schema: &str,
    store: &str,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let known = migrations.len() as u32;
    if inspect(conn, schema, store)? == known {
        return Ok(());
    }
    let error = |trouble: Trouble| trouble.into_store_error(store);
    let number = fnv(format!("everstep migration {schema}").bytes()) as i64;
    conn.run(vec![
        Op::new(BEGIN, Vec::new()),
        Op::new("SELECT pg_advisory_xact_lock($1)", params![number]),
    ])
    .map_err(error)?;
    let migrated = migrate_in_transaction(conn, schema, store, migrations);
    let end = if migrated.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = conn.run(vec![Op::new(end, Vec::new())]).map_err(error);
    migrated.and(ended.map(drop))
}

fn migrate_in_transaction(
    conn: &Conn,
    schema: &str,
    store: &str,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
    // Another process may have done it while this one waited for the lock.
    let found = inspect(conn, schema, store)?;
    let known = migrations.len() as u32;
    let name = quoted(schema);
    if found == 0 {
        let sql = "SELECT 1 FROM information_schema.schemata WHERE schema_name = $1";
        let there = conn
            .run(vec![Op::new(sql, params![schema])])
            .map_err(error)?;
        if there.iter().all(|answer| answer.rows.is_empty()) {
            conn.batch(format!("CREATE SCHEMA {name}")).map_err(error)?;
        }
        conn.batch(format!(
            "CREATE TABLE {name}.everstep_format (version bigint NOT NULL); \
             INSERT INTO {name}.everstep_format VALUES (0)"
        ))
        .map_err(error)?;
    } else if found < known
        && let Some(runner) = live_runner(conn, &name).map_err(error)?
    {
        return Err(StoreError::InUse {
            store: store.to_owned(),
            found,
            known,
            runner,
        });
    }
    conn.batch(format!("SET LOCAL search_path TO {name}"))
        .map_err(error)?;
    for migration in migrations.iter().skip(found as usize) {
        conn.batch((*migration).to_owned()).map_err(error)?;
    }
    let sql = "UPDATE everstep_format SET version = $1";
    let ops = vec![Op::new(sql, params![known])];
    conn.run(ops).map(drop).map_err(error)
}

/// A runner whose lease is not over. Every runner of an older format is of another version.
fn live_runner(conn: &Conn, schema: &str) -> Result<Option<String>, Trouble> {
    let sql = format!(
        "SELECT name FROM {schema}.runners \
         WHERE lease_until > extract(epoch FROM clock_timestamp()) * 1000 LIMIT 1"
    );
    let answers = conn.run(vec![Op::new(sql, Vec::new())])?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    first.map(|row| row.get(0)).transpose()
}
