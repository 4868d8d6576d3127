//! A transaction of a connection as [`crate::store::sql`] sees it. Statements are kept prepared.

use std::{borrow::Cow, cell::Cell};

use rusqlite::{
    CachedStatement, Connection, ToSql,
    types::{ToSqlOutput, ValueRef},
};

use crate::store::sql::{
    Query, Sql, Text,
    bulk::Bulk,
    columns::to_json,
    value::{BadValue, Datum, Param, Row},
};

pub(super) struct Session<'c> {
    pub(super) conn: &'c Connection,
    rows: Cell<u64>,
}

impl<'c> Session<'c> {
    pub(super) fn new(conn: &'c Connection) -> Session<'c> {
        let rows = Cell::new(0);
        Session { conn, rows }
    }

    /// How many rows were changed so far.
    pub(super) fn rows_changed(&self) -> u64 {
        self.rows.get()
    }

    /// Rows were changed by a statement of the caller's own.
    pub(super) fn count_rows(&self, rows: usize) {
        self.rows.set(self.rows.get() + rows as u64);
    }

    fn bound(&self, sql: &str, params: &[Param<'_>]) -> rusqlite::Result<CachedStatement<'c>> {
        debug_assert!(!sql.contains('$'), "SQLite numbers `$2` by where it comes first: {sql}");
        let mut statement = self.conn.prepare_cached(sql)?;
        // A text of this dialect may leave the last parameters of the shared call out.
        let count = statement.parameter_count();
        let missing = rusqlite::Error::InvalidParameterCount(params.len(), count);
        let params = params.get(..count).ok_or(missing)?;
        for (place, value) in (1..).zip(params) {
            statement.raw_bind_parameter(place, value)?;
        }
        Ok(statement)
    }
}

impl Sql for Session<'_> {
    type Error = rusqlite::Error;

    const HAS_OTHERS: bool = false;

    fn pick<'t>(sqlite: &'t str, _: &'t str) -> &'t str {
        sqlite
    }

    fn execute(&self, sql: impl Text, params: &[Param<'_>]) -> rusqlite::Result<()> {
        self.execute_now(sql, params).map(drop)
    }

    fn execute_now(&self, sql: impl Text, params: &[Param<'_>]) -> rusqlite::Result<usize> {
        let rows = self.bound(&sql.into(), params)?.raw_execute()?;
        self.count_rows(rows);
        Ok(rows)
    }

    fn put(&self, bulk: &'static Bulk, row: &[Param<'_>]) -> rusqlite::Result<()> {
        self.execute(bulk.one(), row)
    }

    fn ask(&self, queries: Vec<Query<'_>>) -> rusqlite::Result<()> {
        for mut query in queries {
            let mut statement = self.bound(&query.sql, query.params)?;
            let mut rows = statement.raw_query();
            while let Some(row) = rows.next()? {
                if (query.take)(row)?.is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Row for rusqlite::Row<'_> {
    fn datum(&self, column: usize) -> Result<Datum<'_>, BadValue> {
        let bad = |found: &dyn std::fmt::Display| BadValue::new(&self.name(column), found);
        Ok(match self.get_ref(column).map_err(|error| bad(&error))? {
            ValueRef::Null => Datum::Null,
            ValueRef::Integer(number) => Datum::Int(number),
            ValueRef::Real(number) => return Err(bad(&number)),
            ValueRef::Text(text) => {
                let text = std::str::from_utf8(text).map_err(|error| bad(&error))?;
                Datum::Text(Cow::Borrowed(text))
            }
            ValueRef::Blob(bytes) => Datum::Bytes(bytes),
        })
    }

    fn width(&self) -> usize {
        self.as_ref().column_count()
    }

    fn name(&self, column: usize) -> String {
        let name = self.as_ref().column_name(column);
        name.unwrap_or("?").to_owned()
    }
}

/// Lists are JSON for `json_each`; bytes in them are written as `hex` writes them.
impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let hex = |bytes: &Vec<u8>| -> String {
            bytes.iter().map(|byte| format!("{byte:02X}")).collect()
        };
        let value = match *self {
            Param::Int(value) => value.map_or(ValueRef::Null, ValueRef::Integer),
            Param::Text(value) => value.map_or(ValueRef::Null, |it| ValueRef::Text(it.as_bytes())),
            Param::Bytes(value) => value.map_or(ValueRef::Null, ValueRef::Blob),
            Param::Numbers(list) => return Ok(to_json(&list).into()),
            Param::Ints(list) => return Ok(to_json(&list).into()),
            Param::Texts(list) => return Ok(to_json(&list).into()),
            Param::Blobs(list) => {
                let list: Vec<_> = list.iter().map(|it| it.as_ref().map(hex)).collect();
                return Ok(to_json(&list).into());
            }
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

impl From<BadValue> for rusqlite::Error {
    fn from(bad: BadValue) -> rusqlite::Error {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Null, Box::new(bad))
    }
}
