//! Schemas for tests: made once, lent to one test at a time, and emptied before each.
//!
//! To make a schema takes longer than most tests. So they are kept: in this process until the next
//! test asks for one, in the database until the next process does. Which process has one is said by an
//! advisory lock on its name, which ends with the process.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    Conn, PostgresOptions, PostgresStore, Store, StoreError, Trouble, lock,
    locks::fnv,
    schema,
    session::{Op, Port},
    value::params,
    wake::Wakes,
};

/// A schema that one test has. It goes back when the last store on it is dropped.
pub(super) struct Lent(Option<Schema>);

struct Schema {
    url: String,
    /// What the stores on it are made after; its connections are theirs.
    first: PostgresStore,
    /// What empties it.
    emptying: String,
    /// The session with the lock on its name.
    _holder: Conn,
}

/// The number of the next one to be tried. Those before it are this process's, or another's.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Those that nobody has at the moment.
static FREE: Mutex<Vec<Schema>> = Mutex::new(Vec::new());

impl Drop for Lent {
    fn drop(&mut self) {
        // After a panic nobody knows who still writes to it.
        if let Some(schema) = self.0.take()
            && !std::thread::panicking()
        {
            lock(&FREE).push(schema);
        }
    }
}

impl PostgresStore {
    /// An empty store for a test, in a schema of the database of this URL that no other test has.
    /// Leases go by the caller's clock, the secret is known, and a crash of the server loses the last
    /// commits.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::open`] and [`Store::migrate`].
    pub(crate) fn lent(url: &str) -> Result<PostgresStore, StoreError> {
        let schema = match Schema::that_is_free(url) {
            Some(schema) => schema,
            None => Schema::find_or_make(url)?,
        };
        schema.empty()?;
        let lent = Arc::new(Lent(Some(schema)));
        let first = lent.0.as_ref().map(|schema| &schema.first);
        let store = first.map(PostgresStore::reborn);
        let mut store = store.expect("it is taken only when it is dropped");
        store.lent = Some(lent);
        Ok(store)
    }

    /// As [`lent`](Self::lent), with a secret that no other store has, as outside of tests.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn lent_with_own_secret(url: &str) -> Result<PostgresStore, StoreError> {
        let store = PostgresStore::lent(url)?;
        let conn = store.take()?;
        let draw = "UPDATE everstep_secrets SET value = sha256(gen_random_uuid()::text::bytea) \
                    WHERE name = 'tokens'";
        conn.batch(draw.to_owned()).map_err(|trouble| store.error(trouble))?;
        store.give_back(conn);
        Ok(store)
    }

    /// As [`lent`](Self::lent), through a pooler of transactions before the same server.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn lent_through_pooler(
        url: &str,
        pooler: &str,
    ) -> Result<PostgresStore, StoreError> {
        // Who has a schema is said by a lock of a session, and a pooler has none to offer.
        let lent = PostgresStore::lent(url)?;
        let options = PostgresOptions {
            pooled: true,
            listen_url: Some(url.to_owned()),
            ..lent.options.clone()
        };
        let mut store = PostgresStore::open_with(pooler, options)?;
        store.lent = lent.lent.clone();
        Ok(store)
    }

    /// The store as another process would open it: with nothing in memory but the connections.
    pub(crate) fn reborn(&self) -> PostgresStore {
        PostgresStore {
            name: self.name.clone(),
            route: Arc::clone(&self.route),
            options: self.options.clone(),
            idle: Arc::clone(&self.idle),
            is_current: AtomicBool::new(self.is_current.load(Ordering::Relaxed)),
            unsettled: Mutex::default(),
            held: Mutex::default(),
            identity: Mutex::new(lock(&self.identity).clone()),
            life: Default::default(),
            lease_ms: Default::default(),
            homes: Mutex::default(),
            away: Mutex::default(),
            time: Mutex::new(*lock(&self.time)),
            giving: Default::default(),
            known: Mutex::default(),
            spare_items: Mutex::default(),
            counters: Default::default(),
            wakes: Arc::new(Wakes::new(&self.route)),
            schema_number: self.schema_number,
            lent: self.lent.clone(),
            system: self.system.clone(),
            database: self.database.clone(),
        }
    }
}

/// So many are made without a thought; then it is waited for a while whether one comes back. Each has
/// a few connections, and those of a store that has died go only when its threads have noticed.
const ENOUGH: usize = 100;
const PATIENCE: Duration = Duration::from_secs(1);

impl Schema {
    /// One that was given back.
    fn that_is_free(url: &str) -> Option<Schema> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut free = lock(&FREE);
            if let Some(place) = free.iter().position(|schema| schema.url == url) {
                return Some(free.swap_remove(place));
            }
            drop(free);
            if NEXT.load(Ordering::Relaxed) < ENOUGH || Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The first that no process has.
    fn find_or_make(url: &str) -> Result<Schema, StoreError> {
        // What other versions of this program have left is of no use.
        let format = schema::FORMATS.fingerprint(schema::FORMATS.latest());
        loop {
            let no = NEXT.fetch_add(1, Ordering::Relaxed);
            let options = PostgresOptions {
                schema: format!("everstep_kit_{format}_{no}"),
                database_time: false,
                // Many tests at once, each with a few schemas, share one server.
                kept_connections: 2,
                ..PostgresOptions::default()
            };
            let number = fnv(options.schema.bytes()) as i64;
            // A commit that waits for the disk takes most of the time of a test.
            let first = PostgresStore::open_synced(url, options, false)?;
            let holder = first.take()?;
            let is_ours = try_lock(&holder, number).map_err(|trouble| first.error(trouble))?;
            if is_ours {
                first.migrate()?;
                let emptying = emptying(&holder).map_err(|trouble| first.error(trouble))?;
                let url = url.to_owned();
                return Ok(Schema { url, first, emptying, _holder: holder });
            }
        }
    }

    /// Removes everything, as if it had just been made.
    fn empty(&self) -> Result<(), StoreError> {
        let conn = self.first.take()?;
        conn.batch(self.emptying.clone()).map_err(|trouble| self.first.error(trouble))?;
        self.first.give_back(conn);
        Ok(())
    }
}

/// What empties a schema. Many small deletes are quicker than a truncation, which makes new files; the
/// catalog is asked once, since in a database that is used for long that takes long.
fn emptying(conn: &Conn) -> Result<String, Trouble> {
    // Lanes are those of connections that are still in use.
    let sql = "SELECT format('DELETE FROM %I;', tablename) FROM pg_tables \
               WHERE schemaname = current_schema() \
               AND tablename NOT IN ('everstep_format', 'everstep_lanes', 'everstep_pools', 'everstep_secrets') \
               UNION ALL SELECT format('SELECT setval(%L, %s, false);', \
               format('%I.%I', schemaname, sequencename), start_value) \
               FROM pg_sequences WHERE schemaname = current_schema()";
    let mut emptying = "DELETE FROM everstep_pools WHERE no <> 0; \
                        DELETE FROM everstep_secrets WHERE name <> 'tokens'; \
                        UPDATE everstep_secrets SET value = sha256('known to every test');"
        .to_owned();
    for answer in conn.run(vec![Op::new(sql, &[])])? {
        for row in answer.rows {
            emptying += &row.get::<String>(0)?;
        }
    }
    Ok(emptying)
}

fn try_lock(conn: &Conn, number: i64) -> Result<bool, Trouble> {
    let sql = "SELECT 1 WHERE pg_try_advisory_lock($1)";
    let answers = conn.run(vec![Op::new(sql, params![number])])?;
    Ok(answers.iter().any(|answer| !answer.rows.is_empty()))
}
