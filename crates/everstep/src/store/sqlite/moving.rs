//! The file as what is moved away from: see [`crate::moving`] for the order of things.
//!
//! Always true:
//! - A table `everstep_move` is made by the first attempt to move and holds a row for each. The file
//!   is in charge of its runs until one of them says when it was moved.
//! - From then on every table of ours refuses to be written, by this program and by older ones.

use std::{path::Path, time::SystemTime};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params, types::ValueRef};
use uuid::Uuid;

use super::{
    SqliteOptions, SqliteStore,
    file::File,
    moved::{MOVED, has_marks, moved},
};
use crate::{
    store::{
        Store, StoreError,
        moving::{Cells, Column, Kind, Numbers, Page, Table},
        sql::value::BadValue,
    },
    time::Timestamp,
};

/// What lives with the process that had the file open, and begins anew elsewhere. The last epoch is
/// a sequence there.
const LEFT_BEHIND: [&str; 3] = ["everstep_runners", "everstep_shards", "everstep_epochs"];

/// What a store says of itself: its format, and whether it was moved.
const MARKS: [&str; 2] = ["everstep_format", "everstep_move"];

/// A page is full with this many rows or bytes.
const PAGE_ROWS: usize = 2_000;
const PAGE_BYTES: usize = 4 << 20;

/// A file that is to be moved, with a connection that takes its lock.
pub(crate) struct Source {
    file: File,
    conn: Connection,
}

/// A runner that holds the file.
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) until: Timestamp,
}

impl Source {
    /// Opens the file, in the format of this program; or as it is, if it was moved.
    pub(crate) fn open(path: &Path) -> Result<Source, StoreError> {
        match SqliteStore::open(path) {
            Ok(store) => store.migrate()?,
            Err(StoreError::Moved { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = File::new(path, SqliteOptions::default());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = file.connect(flags)?;
        Ok(Source { file, conn })
    }

    pub(crate) fn name(&self) -> String {
        self.file.name()
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        self.file.error(error)
    }

    /// Takes the write lock of the file: until [`close`](Source::close), or until this is dropped,
    /// nobody else can write.
    pub(crate) fn lock(&self) -> Result<(), StoreError> {
        let take = || self.conn.execute_batch("BEGIN IMMEDIATE");
        self.file.retry_busy(take)
    }

    /// The runner that has the file, if there is one. Ask with the lock held.
    pub(crate) fn holder(&self) -> Result<Option<Holder>, StoreError> {
        // The machine's own time: there is no engine here whose clock could be asked.
        let now = Timestamp::from(SystemTime::now()).as_millis();
        let read = || -> rusqlite::Result<Vec<(String, i64, Option<String>)>> {
            let sql =
                "SELECT name, lease_until, address FROM everstep_runners WHERE lease_until > ?1";
            let mut statement = self.conn.prepare(sql)?;
            let rows =
                statement.query_map([now], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        };
        let runners = read().map_err(|error| self.error(error))?;
        let alive = runners.into_iter().find(|(_, _, address)| match address {
            #[cfg(unix)]
            Some(address) => !super::wake::is_deserted(self.file.path(), address),
            _ => true,
        });
        Ok(alive.map(|(name, until, _)| Holder { name, until: Timestamp::from_millis(until) }))
    }

    /// Which attempt has moved it, and where to.
    pub(crate) fn moved(&self) -> Result<Option<(Uuid, String)>, StoreError> {
        moved(&self.conn).map_err(|error| self.error(error))
    }

    /// Notes an attempt, durably, before anything of it is elsewhere: so what it leaves behind can
    /// be told from what others have put there.
    pub(crate) fn note(&self, attempt: Uuid, to: &str) -> Result<(), StoreError> {
        self.lock()?;
        let write = || -> rusqlite::Result<()> {
            self.conn.execute_batch(
                "CREATE TABLE IF NOT EXISTS everstep_move ( \
                 id BLOB NOT NULL PRIMARY KEY, target TEXT NOT NULL, begun_at INTEGER NOT NULL, \
                 moved_at INTEGER) WITHOUT ROWID",
            )?;
            let now = Timestamp::from(SystemTime::now()).as_millis();
            let sql = "INSERT INTO everstep_move (id, target, begun_at) VALUES (?1, ?2, ?3)";
            self.conn.execute(sql, params![attempt.as_bytes(), to, now])?;
            self.conn.execute_batch("COMMIT")
        };
        write().map_err(|error| {
            drop(self.conn.execute_batch("ROLLBACK"));
            self.error(error)
        })
    }

    /// Whether this is one of the attempts to move this file.
    pub(crate) fn has_tried(&self, attempt: Uuid) -> Result<bool, StoreError> {
        let read = || -> rusqlite::Result<bool> {
            if !has_marks(&self.conn)? {
                return Ok(false);
            }
            let sql = "SELECT 1 FROM everstep_move WHERE id = ?1";
            self.conn.prepare(sql)?.exists([attempt.as_bytes()])
        };
        read().map_err(|error| self.error(error))
    }

    /// What is to be moved, in the order of names.
    pub(crate) fn tables(&self) -> Result<Vec<Table>, StoreError> {
        let read = || -> rusqlite::Result<Vec<Table>> {
            let names = self.names()?;
            let meant = names.into_iter().filter(|name| !LEFT_BEHIND.contains(&name.as_str()));
            meant.map(|name| self.table(name)).collect()
        };
        read().map_err(|error| self.error(error))
    }

    /// The tables of ours, and nobody else's.
    fn names(&self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
        let mut statement = self.conn.prepare(sql)?;
        let names = statement.query_map([], |row| row.get::<_, String>(0))?;
        let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
        let is_ours = |name: &String| super::transact::is_ours(name) && !MARKS.contains(&&**name);
        Ok(names.into_iter().filter(is_ours).collect())
    }

    fn table(&self, name: String) -> rusqlite::Result<Table> {
        let mut statement = self.conn.prepare("SELECT name, type FROM pragma_table_info(?1)")?;
        let columns = statement.query_map([&name], |row| {
            let (name, kind): (String, String) = (row.get(0)?, row.get(1)?);
            let kind = match kind.as_str() {
                "INTEGER" => Kind::Int,
                "TEXT" => Kind::Text,
                "BLOB" => Kind::Bytes,
                other => return Err(BadValue::new("type", other).into()),
            };
            Ok(Column { name, kind })
        })?;
        let columns = columns.collect::<rusqlite::Result<Vec<_>>>()?;
        let count = format!("SELECT count(*) FROM {}", quoted(&name));
        let rows: i64 = self.conn.query_row(&count, [], |row| row.get(0))?;
        Ok(Table { name, columns, rows: rows as u64 })
    }

    /// Reads a table from its beginning to its end, a page at a time.
    pub(crate) fn read<E: From<StoreError>>(
        &self,
        table: &Table,
        mut put: impl FnMut(Page) -> Result<(), E>,
    ) -> Result<(), E> {
        let columns: Vec<String> = table.columns.iter().map(|it| quoted(&it.name)).collect();
        let sql = format!("SELECT {} FROM {}", columns.join(", "), quoted(&table.name));
        let failed = |error| E::from(self.error(error));
        let mut statement = self.conn.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let mut page = Page::of(table);
        let mut bytes = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            for (place, (cells, column)) in page.columns.iter_mut().zip(&table.columns).enumerate()
            {
                let value = row.get_ref(place).map_err(failed)?;
                bytes += push(cells, value).ok_or_else(|| {
                    let name = format!("{}.{}", table.name, column.name);
                    failed(BadValue::new("of a table that is moved", name).into())
                })?;
            }
            page.rows += 1;
            if page.rows == PAGE_ROWS || bytes >= PAGE_BYTES {
                put(std::mem::replace(&mut page, Page::of(table)))?;
                bytes = 0;
            }
        }
        if page.rows > 0 {
            put(page)?;
        }
        Ok(())
    }

    /// The greatest numbers that were ever given out.
    pub(crate) fn numbers(&self) -> Result<Numbers, StoreError> {
        let given = |table: &str| -> rusqlite::Result<i64> {
            let sql = "SELECT seq FROM sqlite_sequence WHERE name = ?1";
            let last = self.conn.query_row(sql, [table], |row| row.get(0));
            Ok(last.optional()?.unwrap_or(0))
        };
        let read = || -> rusqlite::Result<Numbers> {
            let epoch =
                self.conn.query_row("SELECT last FROM everstep_epochs", [], |row| row.get(0))?;
            Ok(Numbers {
                queue_items: given("everstep_queue_items")?,
                dead_letters: given("everstep_dead_letters")?,
                audit: given("everstep_audit")?,
                epoch,
            })
        };
        read().map_err(|error| self.error(error))
    }

    /// Ends the charge of this file for its runs, durably, and gives the lock back.
    pub(crate) fn close(&self, attempt: Uuid, to: &str) -> Result<(), StoreError> {
        let text = format!("{MOVED}{to}").replace('\'', "''");
        let write = || -> rusqlite::Result<()> {
            // An owner that was only stopped finds that it is none any more.
            self.conn
                .execute_batch("DELETE FROM everstep_shards; DELETE FROM everstep_runners;")?;
            for table in self.names()? {
                for act in ["INSERT", "UPDATE", "DELETE"] {
                    self.conn.execute_batch(&format!(
                        "CREATE TRIGGER {} BEFORE {act} ON {} BEGIN \
                         SELECT RAISE(ABORT, '{text}'); END",
                        quoted(&format!("everstep_moved_{table}_{act}")),
                        quoted(&table),
                    ))?;
                }
            }
            let now = Timestamp::from(SystemTime::now()).as_millis();
            let sql = "UPDATE everstep_move SET moved_at = ?2 WHERE id = ?1";
            self.conn.execute(sql, params![attempt.as_bytes(), now])?;
            self.conn.execute_batch("COMMIT")
        };
        write().map_err(|error| {
            drop(self.conn.execute_batch("ROLLBACK"));
            self.error(error)
        })
    }
}

/// Adds a cell and gives its size; `None` if it is of another kind than its column.
fn push(cells: &mut Cells, value: ValueRef<'_>) -> Option<usize> {
    let bytes = match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
        _ => 8,
    };
    match (cells, value) {
        (Cells::Ints(cells), ValueRef::Integer(number)) => cells.push(Some(number)),
        (Cells::Ints(cells), ValueRef::Null) => cells.push(None),
        (Cells::Texts(cells), ValueRef::Text(text)) => {
            cells.push(Some(std::str::from_utf8(text).ok()?.to_owned()));
        }
        (Cells::Texts(cells), ValueRef::Null) => cells.push(None),
        (Cells::Blobs(cells), ValueRef::Blob(blob)) => cells.push(Some(blob.to_vec())),
        (Cells::Blobs(cells), ValueRef::Null) => cells.push(None),
        _ => return None,
    }
    Some(bytes)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
