//! What the doctor asks of a file, and what mends it: see [`crate::store::doctor`] for the rules.

use rusqlite::{
    Connection, OptionalExtension, Row, ToSql, params, params_from_iter,
    types::{ToSqlOutput, Value, ValueRef},
};
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::{batch::Applier, columns};
use crate::{
    commit::{Cell, Mend},
    run_id::{RunId, RunNo},
    store::{
        InboxKind, RunStatus,
        doctor::{Ask, CellKind, Facts, FoundRow, PlaceFact, RULES, Rule, RunFacts, sql},
        rules::mends,
    },
};

/// The number of the queue item that has a place.
const ITEM: &str = "CAST(CAST(t.operation AS TEXT) AS INTEGER)";

pub(super) fn examine(conn: &Connection, ask: &Ask) -> rusqlite::Result<Facts> {
    match ask {
        Ask::Place => place(conn).map(Facts::Place),
        Ask::Rows { rule, after, limit } => rows(conn, &RULES[*rule], after.as_deref(), *limit),
        Ask::Row { rule, row } => {
            let sql = own(sql::is_broken(&RULES[*rule], ITEM));
            let is_broken = conn.prepare_cached(&sql)?.exists(params_from_iter(row))?;
            Ok(Facts::Broken(is_broken))
        }
        Ask::Saved { rule, row } => {
            let rule = &RULES[*rule];
            let sql = own(sql::whole(rule, "t.*"));
            saved(conn, rule.table, &sql, row).map(Facts::Saved)
        }
        Ask::Entry { run, key } => {
            let sql = "SELECT * FROM history WHERE run = ?1 AND key = ?2";
            let row = [Cell::Int(run.0), Cell::Bytes(key.clone())];
            saved(conn, "history", sql, &row).map(Facts::Saved)
        }
        Ask::Runs { live, after, limit } => {
            let (condition, order, first) = match live {
                true => ("no > ?1 AND status < 5", "ASC", i64::MIN),
                false => ("no < ?1 AND status > 4", "DESC", i64::MAX),
            };
            let sql = format!("SELECT no FROM runs WHERE {condition} ORDER BY no {order} LIMIT ?2");
            let after = after.map_or(first, |run| run.0);
            let mut statement = conn.prepare_cached(&sql)?;
            let found = statement.query_map(params![after, columns::limit(*limit)], |row| {
                row.get(0).map(RunNo)
            })?;
            found.collect::<rusqlite::Result<_>>().map(Facts::Runs)
        }
        Ask::Run(run) => run_facts(conn, *run).map(|facts| Facts::Run(facts.map(Box::new))),
    }
}

/// SQLite's own notation of parameters.
fn own(sql: String) -> String {
    sql.replace('$', "?")
}

/// What SQLite itself says about the file.
fn place(conn: &Connection) -> rusqlite::Result<Vec<PlaceFact>> {
    let mut facts = Vec::new();
    let mut say = |is_error, what: String| {
        facts.push(PlaceFact {
            replication: false,
            is_error,
            what,
        });
    };
    let mut statement = conn.prepare("PRAGMA quick_check(20)")?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    for line in said {
        let line = line?;
        if line != "ok" {
            let what = format!("the file is damaged: {line}; restore it from a backup");
            say(true, what);
        }
    }
    let mut statement = conn.prepare("SELECT DISTINCT \"table\" FROM pragma_foreign_key_check")?;
    let tables = statement.query_map([], |row| row.get::<_, String>(0))?;
    for table in tables {
        let table = table?;
        let what = format!(
            "rows of your table `{table}` refer to rows that do not exist; mend them, everstep \
             does not touch them"
        );
        say(false, what);
    }
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        let what = format!(
            "the journal mode of the file is `{mode}`, and readers and writers hold each other \
             up; stop all processes and run `PRAGMA journal_mode = WAL` on it"
        );
        say(true, what);
    }
    let sql = "SELECT 1 FROM secrets WHERE name = 'tokens' AND length(value) = 32";
    if !conn.prepare(sql)?.exists([])? {
        let what = "the secret that tokens of deferreds are made with is lost; restore the table \
                    `secrets` from a backup, or no token that was handed out can be used";
        say(true, what.to_owned());
    }
    Ok(facts)
}

fn rows(
    conn: &Connection,
    rule: &Rule,
    after: Option<&[Cell]>,
    limit: usize,
) -> rusqlite::Result<Facts> {
    let has_after = after.is_some();
    let after = after.unwrap_or_default();
    let sql = own(sql::page(rule, has_after, limit, ITEM));
    let width = rule.key.len();
    let mut statement = conn.prepare_cached(&sql)?;
    let found = statement.query_map(params_from_iter(after), |row| {
        let id: Option<Vec<u8>> = row.get(width + 1)?;
        Ok(FoundRow {
            row: key(row, rule)?,
            run: row.get(width)?,
            id: id.and_then(|bytes| run_id(&bytes)),
        })
    })?;
    let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let sql = own(sql::page_end(rule, has_after, limit));
    let mut statement = conn.prepare_cached(&sql)?;
    let next = statement
        .query_row(params_from_iter(after), |row| key(row, rule))
        .optional()?;
    let looked = match next {
        Some(_) => limit as u64,
        None => {
            let sql = own(sql::page_rows(rule, has_after, limit));
            let count: i64 = conn.query_row(&sql, params_from_iter(after), |row| row.get(0))?;
            count as u64
        }
    };
    Ok(Facts::Rows {
        found,
        looked,
        next,
    })
}

fn key(row: &Row<'_>, rule: &Rule) -> rusqlite::Result<Vec<Cell>> {
    let cells = rule.key.iter().enumerate().map(|(place, (_, kind))| {
        Ok(match kind {
            CellKind::Int => Cell::Int(row.get(place)?),
            CellKind::Text => Cell::Text(row.get(place)?),
            CellKind::Bytes => Cell::Bytes(row.get(place)?),
        })
    });
    cells.collect()
}

fn run_id(bytes: &[u8]) -> Option<RunId> {
    Uuid::from_slice(bytes).ok().and_then(RunId::from_uuid)
}

/// Rows as JSON, one line each; bytes as PostgreSQL writes them.
fn saved(conn: &Connection, table: &str, sql: &str, row: &[Cell]) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare(sql)?;
    let name = |place| statement.column_name(place).map(str::to_owned);
    let names: Vec<String> = (0..statement.column_count())
        .map(name)
        .collect::<rusqlite::Result<_>>()?;
    let lines = statement.query_map(params_from_iter(row), |row| {
        let mut columns = Map::new();
        for (place, name) in names.iter().enumerate() {
            let value = match row.get_ref(place)? {
                ValueRef::Null => Json::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                ValueRef::Blob(bytes) => hex(bytes).into(),
            };
            columns.insert(name.clone(), value);
        }
        let mut line = Map::new();
        line.insert("table".to_owned(), table.into());
        line.insert("row".to_owned(), Json::Object(columns));
        Ok(Json::Object(line).to_string())
    })?;
    lines.collect()
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    format!("\\x{}", digits.collect::<String>())
}

fn run_facts(conn: &Connection, run: RunNo) -> rusqlite::Result<Option<RunFacts>> {
    let sql = "SELECT id, shard, status, ending IS NOT NULL, generation, available_at, updated_at, \
               inbox_seq, last_number, waiting, input, output, error FROM runs WHERE no = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let facts = statement.query_row([run.0], |row| {
        let id: Vec<u8> = row.get(0)?;
        let status: i64 = row.get(2)?;
        Ok(RunFacts {
            no: run,
            id: run_id(&id).filter(|id| id.no() == run),
            shard: row.get(1)?,
            status: u8::try_from(status).ok().and_then(RunStatus::from_code),
            is_ending: row.get(3)?,
            generation: row.get(4)?,
            available_at: row.get(5)?,
            updated_at: row.get(6)?,
            inbox_seq: row.get(7)?,
            last_number: row.get(8)?,
            waiting: row.get(9)?,
            input: row.get(10)?,
            output: row.get(11)?,
            error: row.get(12)?,
            registered: Vec::new(),
        })
    });
    let Some(mut facts) = facts.optional()? else {
        return Ok(None);
    };
    if facts.status.is_none_or(RunStatus::is_terminal) {
        return Ok(Some(facts));
    }
    let sql = "SELECT 1, wait FROM event_waiters WHERE run = ?1 AND generation = ?2 \
               UNION ALL SELECT 2, key FROM deferred_waits WHERE run = ?1 AND generation = ?2 \
               UNION ALL SELECT 3, key FROM watchers WHERE waiter = ?1 AND generation = ?2 \
               UNION ALL SELECT 4, key FROM queue_waits WHERE run = ?1 AND generation = ?2 \
               UNION ALL SELECT 5, operation FROM limit_places WHERE run = ?1 AND generation = ?2 \
               UNION ALL SELECT kind, wait FROM inbox WHERE run = ?1 AND wait IS NOT NULL";
    let mut statement = conn.prepare_cached(sql)?;
    let registered = statement.query_map(params![run.0, facts.generation], |row| {
        Ok((row.get::<_, u8>(0)?, row.get::<_, Vec<u8>>(1)?))
    })?;
    for registered in registered {
        let (kind, key) = registered?;
        let kind = InboxKind::from_code(kind);
        facts.registered.extend(kind.map(|kind| (kind, key)));
    }
    Ok(Some(facts))
}

impl Applier<'_> {
    /// Mends something, if it is still so; how many rows were changed.
    pub(super) fn mend(&mut self, mend: &Mend) -> rusqlite::Result<u64> {
        // The writer must not go by what the rows were.
        (self.memory.shards, self.memory.swept) = (None, None);
        let changed = match mend {
            Mend::Row { rule, row } => return self.mend_row(&RULES[*rule], row),
            Mend::RemoveEntry { run, key, value } => {
                self.memory.forget(*run);
                let sql = own(sql::REMOVE_ENTRY.to_owned());
                self.execute(&sql, params![run.0, key, value])?
            }
            Mend::ForgetNumber { run, last_number } => {
                self.memory.forget(*run);
                let sql = own(sql::FORGET_NUMBER.to_owned());
                self.execute(&sql, params![run.0, last_number])?
            }
            Mend::Shard { run, from, to } => {
                self.memory.forget(*run);
                let sql = own(sql::SHARD.to_owned());
                self.execute(&sql, params![run.0, from, to])?
            }
        };
        Ok(changed as u64)
    }

    fn mend_row(&mut self, rule: &Rule, row: &[Cell]) -> rusqlite::Result<u64> {
        if let Some(sql) = sql::mend(rule, self.now, ITEM) {
            if let ("runs", Some(Cell::Int(no))) = (rule.table, row.first()) {
                self.memory.forget(RunNo(*no));
            }
            let changed = self.execute(&own(sql), params_from_iter(row))?;
            return Ok(changed as u64);
        }
        mends::lock(self, rule.remedy, row)?;
        let broken = own(sql::is_broken(rule, ITEM));
        let mut statement = self.conn.prepare_cached(&broken)?;
        if !statement.exists(params_from_iter(row))? {
            return Ok(0);
        }
        mends::mend(self, rule.remedy, row).map(u64::from)
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Cell::Int(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Cell::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
