//! The format of a schema: what it is, and how it comes to have it.

use uuid::Uuid;

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
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("format_1.sql"),
    include_str!("format_2.sql"),
    include_str!("format_3.sql"),
];

/// The format that this program reads and writes.
pub(super) const FORMAT: u32 = MIGRATIONS.len() as u32;

/// Reads the format of a schema; 0 if there is nothing in it.
///
/// # Errors
///
/// [`StoreError::HalfMoved`] if it was filled by a move that has not come to its end: the runs in it
/// are those of another store as long as nobody says otherwise.
pub(super) fn inspect(conn: &Conn, schema: &str, store: &str) -> Result<u32, StoreError> {
    let (found, is_moved_to) = look(conn, schema, store)?;
    if is_moved_to
        && let Some(mark) = mark(conn, schema).map_err(|it| it.into_store_error(store))?
        && !mark.is_done
    {
        return Err(StoreError::HalfMoved {
            store: store.to_owned(),
            from: mark.source,
        });
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
    let sql = format!(
        "SELECT id, source, ended_at IS NOT NULL FROM {}.everstep_move",
        quoted(schema)
    );
    let answers = conn.run(vec![Op::new(sql, Vec::new())])?;
    let first = answers.first().and_then(|answer| answer.rows.first());
    let Some(row) = first else { return Ok(None) };
    Ok(Some(Mark {
        id: Uuid::from_bytes(row.get(0)?),
        source: row.get(1)?,
        is_done: row.get(2)?,
    }))
}

/// The format of a schema, and whether a move was ever made to it.
pub(super) fn look(conn: &Conn, schema: &str, store: &str) -> Result<(u32, bool), StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
    // Not the information schema: it hides what this role has no rights on.
    let sql = "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace \
               WHERE nspname = $1 AND relkind IN ('r', 'p', 'v', 'm', 'f') \
               ORDER BY relname = 'everstep_format' DESC, relname = 'everstep_move' DESC, \
               relname LIMIT 2";
    let answers = conn
        .run(vec![Op::new(sql, params![schema])])
        .map_err(error)?;
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
    Ok((found, tables.iter().any(|table| table == "everstep_move")))
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
    begin(conn, schema).map_err(error)?;
    // Another process may have done it while this one waited for the lock.
    let migrated = inspect(conn, schema, store)
        .and_then(|found| migrate_in_transaction(conn, schema, store, found, migrations));
    let end = if migrated.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = conn.run(vec![Op::new(end, Vec::new())]).map_err(error);
    migrated.and(ended.map(drop))
}

/// Begins a transaction that may change the tables.
pub(super) fn begin(conn: &Conn, schema: &str) -> Result<(), Trouble> {
    let number = fnv(format!("everstep migration {schema}").bytes()) as i64;
    let ops = vec![
        Op::new(BEGIN, Vec::new()),
        Op::new("SELECT pg_advisory_xact_lock($1)", params![number]),
    ];
    conn.run(ops).map(drop)
}

/// Leads from the format that was found to the last one, and leaves the schema in the search path of
/// the transaction.
pub(super) fn migrate_in_transaction(
    conn: &Conn,
    schema: &str,
    store: &str,
    found: u32,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let error = |trouble: Trouble| trouble.into_store_error(store);
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
    conn.batch(format!("SET LOCAL search_path TO {name}, pg_temp"))
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
