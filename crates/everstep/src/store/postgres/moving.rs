//! A schema as what is moved to: see [`crate::moving`] for the order of things.
//!
//! Always true: everything that is copied comes in one transaction, with the tables themselves and a
//! mark. Before it there is nothing here, and after it the schema is refused to engines and clients
//! until the mark says that it is in charge.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    PostgresOptions,
    conn::{Conn, Limits, Route, quoted},
    error::Trouble,
    now_ms, schema,
    session::{Answer, Op, Port},
    url,
    value::{Param, Value, params},
};
use crate::store::{
    StoreError,
    moving::{Cells, Kind, Numbers, Page, Table},
};

/// A schema that is to be filled, and the connection that fills it.
pub(crate) struct Destination {
    name: String,
    route: Arc<Route>,
    conn: Conn,
}

/// What a schema has in it.
pub(crate) enum Found {
    /// No table.
    Nothing,
    /// What a move has put there.
    Moved {
        id: Uuid,
        /// Whether it is in charge.
        is_done: bool,
    },
    /// Runs of its own, or room for them.
    Tables,
}

impl Destination {
    pub(crate) fn open(url: &str) -> Result<Destination, StoreError> {
        let url::Parsed { servers, options, name } = url::parse(url, PostgresOptions::default())?;
        let route = Arc::new(Route {
            servers,
            schema: options.schema,
            pooled: options.pooled,
            patience: options.patience,
            synced: true,
        });
        let limits = Limits {
            // Between two statements the file is read.
            idle: Duration::from_secs(30),
            ..Limits::new(route.patience, None)
        };
        let conn = Conn::open(&route, limits).map_err(|trouble| trouble.into_store_error(&name))?;
        Ok(Destination { name, route, conn })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn error(&self, trouble: Trouble) -> StoreError {
        trouble.into_store_error(&self.name)
    }

    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, StoreError> {
        self.conn.run(ops).map_err(|trouble| self.error(trouble))
    }

    /// Looks into the schema.
    pub(crate) fn look(&self) -> Result<Found, StoreError> {
        let schema = &self.route.schema;
        match schema::look(&self.conn, schema, &self.name, schema::FORMATS)? {
            (0, false) => return Ok(Found::Nothing),
            (_, false) => return Ok(Found::Tables),
            (_, true) => {}
        }
        let mark = schema::mark(&self.conn, schema).map_err(|trouble| self.error(trouble))?;
        Ok(match mark {
            None => Found::Tables,
            Some(mark) => Found::Moved { id: mark.id, is_done: mark.is_done },
        })
    }

    /// Begins to fill the schema: its tables are there from then on, and nothing is in them. What
    /// was found must still be there: nobody else may have come in between.
    pub(crate) fn begin(&self, meant: impl Fn(&Found) -> bool) -> Result<bool, StoreError> {
        let error = |trouble| self.error(trouble);
        let schema = &self.route.schema;
        schema::begin(&self.conn, schema).map_err(error)?;
        if !meant(&self.look()?) {
            return Ok(false);
        }
        let (found, _) = schema::look(&self.conn, schema, &self.name, schema::FORMATS)?;
        let formats = schema::FORMATS;
        schema::migrate_in_transaction(&self.conn, schema, &self.name, found, formats)?;
        let tables: Vec<String> = self
            .tables()?
            .into_iter()
            .filter(|table| table != "everstep_format")
            .map(|table| quoted(&table))
            .collect();
        // The secret and the first pool come with the rest. The server is patient with a file that
        // takes long to read.
        let empty = format!(
            "SET LOCAL idle_in_transaction_session_timeout = '10min'; \
             TRUNCATE {} RESTART IDENTITY",
            tables.join(", ")
        );
        self.conn.batch(empty).map_err(error)?;
        self.conn
            .batch(
                "CREATE TABLE IF NOT EXISTS everstep_move ( \
                 id bytea NOT NULL PRIMARY KEY, source text NOT NULL, begun_at bigint NOT NULL, \
                 ended_at bigint)"
                    .to_owned(),
            )
            .map_err(error)?;
        Ok(true)
    }

    fn tables(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT table_name::text FROM information_schema.tables \
                   WHERE table_schema = $1 AND table_type = 'BASE TABLE' ORDER BY table_name";
        self.texts(sql, params![self.route.schema])
    }

    fn texts(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<String>, StoreError> {
        let answers = self.run(vec![Op::new(sql, params)])?;
        let rows = answers.into_iter().next().map_or(Vec::new(), |it| it.rows);
        let texts: Result<_, Trouble> = rows.iter().map(|row| row.get(0)).collect();
        texts.map_err(|trouble| self.error(trouble))
    }

    /// Why rows of this table cannot come here as they are, if so.
    pub(crate) fn differs(&self, table: &Table) -> Result<Option<String>, StoreError> {
        let sql = "SELECT column_name || ' ' || data_type FROM information_schema.columns \
                   WHERE table_schema = $1 AND table_name = $2";
        let here = self.texts(sql, params![self.route.schema, table.name])?;
        let here: BTreeSet<String> = here.into_iter().collect();
        let there = table.columns.iter().map(|column| {
            let kind = match column.kind {
                Kind::Int => "bigint",
                Kind::Text => "text",
                Kind::Bytes => "bytea",
            };
            format!("{} {kind}", column.name)
        });
        let there: BTreeSet<String> = there.collect();
        let odd: Vec<&str> = here.symmetric_difference(&there).map(String::as_str).collect();
        Ok((!odd.is_empty()).then(|| odd.join(", ")))
    }

    /// Adds rows, and gives how many there were.
    pub(crate) fn put(&self, table: &Table, page: Page) -> Result<u64, StoreError> {
        let columns: Vec<String> = table.columns.iter().map(|it| quoted(&it.name)).collect();
        let columns = columns.join(", ");
        let mut arrays = Vec::new();
        let mut values = Vec::new();
        for (place, cells) in page.columns.into_iter().enumerate() {
            let (value, array) = match cells {
                Cells::Ints(cells) => (Value::Ints(cells), "bigint[]"),
                Cells::Texts(cells) => (Value::Texts(cells), "text[]"),
                Cells::Blobs(cells) => (Value::Blobs(cells), "bytea[]"),
            };
            arrays.push(format!("${}::{array}", place + 1));
            values.push(value);
        }
        let sql = format!(
            "INSERT INTO {} ({columns}) SELECT * FROM unnest({})",
            quoted(&table.name),
            arrays.join(", ")
        );
        let answers = self.run(vec![Op::keeping(sql, values)])?;
        Ok(answers.first().map_or(0, |answer| answer.affected))
    }

    /// Numbers that are given out from now on come after these.
    pub(crate) fn set_numbers(&self, numbers: &Numbers) -> Result<(), StoreError> {
        let set = |sql: &'static str, last: i64| {
            // A sequence has no way to say that it has given out 0; it begins with 1.
            Op::new(sql, params![last.max(1), last > 0])
        };
        let ops = vec![
            set(
                "SELECT setval(pg_get_serial_sequence('everstep_queue_items', 'no'), $1, $2 = 1)",
                numbers.queue_items,
            ),
            set(
                "SELECT setval(pg_get_serial_sequence('everstep_dead_letters', 'no'), $1, $2 = 1)",
                numbers.dead_letters,
            ),
            set(
                "SELECT setval(pg_get_serial_sequence('everstep_audit', 'no'), $1, $2 = 1)",
                numbers.audit,
            ),
            set("SELECT setval('everstep_epochs', $1, $2 = 1)", numbers.epoch),
        ];
        self.run(ops).map(drop)
    }

    /// Tells the planner what is in the tables: it takes them for empty.
    pub(crate) fn analyze(&self, tables: &[Table]) -> Result<(), StoreError> {
        let names: Vec<String> = tables.iter().map(|it| quoted(&it.name)).collect();
        let analyzed = self.conn.batch(format!("ANALYZE {}", names.join(", ")));
        analyzed.map_err(|trouble| self.error(trouble))
    }

    /// Everything is here: it becomes durable, and is not in charge yet.
    pub(crate) fn commit(&self, attempt: Uuid, from: &str) -> Result<(), StoreError> {
        let sql = "INSERT INTO everstep_move (id, source, begun_at) VALUES ($1, $2, $3)";
        let ops = vec![Op::new(sql, params![attempt, from, now_ms()]), Op::new("COMMIT", &[])];
        self.run(ops).map(drop)
    }

    /// Puts this schema in charge of the runs in it.
    pub(crate) fn take_charge(&self, attempt: Uuid) -> Result<(), StoreError> {
        let sql = format!(
            "UPDATE {}.everstep_move SET ended_at = $2 WHERE id = $1",
            quoted(&self.route.schema)
        );
        let ops = vec![
            Op::new("BEGIN", &[]),
            Op::new(sql, params![attempt, now_ms()]),
            Op::new("COMMIT", &[]),
        ];
        self.run(ops).map(drop)
    }
}
