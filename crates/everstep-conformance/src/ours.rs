//! The stores of `everstep` keep the contract: in memory, on a file, in a database, through a pooler,
//! and with an owner and a client of their own.

use std::{
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use everstep::{
    store::{MemoryStore, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore},
    testing::{
        internal, ran_on,
        vfs::{Fault, FaultVfs},
    },
};
use everstep_pg::{Instance, Pgbouncer, Session, fresh_schema};
use tempfile::TempDir;

use super::{OwnerAndClient, *};

/// An empty schema, whose leases go by the caller's clock.
fn in_database() -> PostgresStore {
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    internal::lent_postgres(&url).expect("a schema for a test")
}

/// Files in a directory that is removed with this.
struct Files {
    directory: TempDir,
    made: AtomicU64,
}

impl Files {
    fn new() -> Files {
        Files {
            directory: tempfile::tempdir().expect("a directory for a test"),
            made: AtomicU64::new(0),
        }
    }

    /// The path of the next file.
    fn next(&self) -> PathBuf {
        let no = self.made.fetch_add(1, Ordering::Relaxed);
        self.directory.path().join(format!("{no}.db"))
    }
}

#[test]
fn memory_store_keeps_the_contract() {
    run_all(|| Arc::new(MemoryStore::new()));
    ran_on("memory");
}

#[test]
fn sqlite_store_keeps_the_contract() {
    let files = Files::new();
    run_all(|| Arc::new(SqliteStore::create(files.next()).expect("create")));
    ran_on("SQLite");
}

#[test]
fn sqlite_store_answers_as_the_store_in_memory_does() {
    let files = Files::new();
    for seed in 0..12 {
        let store = SqliteStore::create(files.next()).expect("create");
        compare(&MemoryStore::new(), &store, seed);
    }
    ran_on("memory");
    ran_on("SQLite");
}

#[test]
fn an_owner_and_a_client_of_one_file_keep_the_contract() {
    let files = Files::new();
    run_all(|| {
        let path = files.next();
        let owner = SqliteStore::create(&path).expect("create");
        Arc::new(OwnerAndClient {
            owner,
            client: SqliteStore::open(&path).expect("open"),
            shares_runner: true,
        })
    });
    ran_on("SQLite");
}

#[test]
fn postgres_store_keeps_the_contract() {
    run_all(|| Arc::new(in_database()));
    ran_on("PostgreSQL");
}

#[test]
fn postgres_store_answers_as_the_store_in_memory_does() {
    // One long one; many short ones are in the differential test.
    compare(&MemoryStore::new(), &in_database(), 1);
    ran_on("PostgreSQL");
}

#[test]
fn an_owner_and_a_client_of_one_database_keep_the_contract() {
    run_all(|| {
        let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
        let open = || {
            let mut options = PostgresOptions::default();
            options.database_time = false;
            PostgresStore::open_with(&url, options).expect("open")
        };
        open().migrate().expect("migrate");
        Arc::new(OwnerAndClient { owner: open(), client: open(), shares_runner: false })
    });
    ran_on("PostgreSQL");
}

/// A pooler may hand each transaction to another session.
struct Pooled(Pgbouncer);

/// One server for all poolers and for the schemas that fail. No test here cuts its power.
fn server() -> &'static Instance {
    static SERVER: OnceLock<Instance> = OnceLock::new();
    SERVER.get_or_init(|| {
        Instance::start_with("fsync = off\n").unwrap_or_else(|error| panic!("{error}"))
    })
}

impl Pooled {
    fn start() -> Pooled {
        Pooled(Pgbouncer::start_before(server()).expect("a pooler"))
    }

    /// An empty schema that no other test has.
    fn store(&self) -> PostgresStore {
        let pooler = self.0.url_for("postgres");
        internal::lent_through_pooler(&server().url(), &pooler).expect("a schema for a test")
    }
}

#[test]
fn the_contract_is_kept_through_a_pooler_of_transactions() {
    let pooled = Pooled::start();
    run_all(|| Arc::new(pooled.store()));
    ran_on("PostgreSQL");
}

#[test]
fn answers_through_a_pooler_are_those_of_the_store_in_memory() {
    let pooled = Pooled::start();
    compare(&MemoryStore::new(), &pooled.store(), 11);
    ran_on("PostgreSQL");
}

/// A file on a disk that can fail.
struct DiskFile {
    path: PathBuf,
    disk: FaultVfs,
}

impl Place for DiskFile {
    fn open(&self) -> Arc<dyn Store> {
        let mut options = SqliteOptions::default();
        (options.create, options.vfs) = (true, Some(self.disk.name().to_owned()));
        Arc::new(SqliteStore::open_with(&self.path, options).expect("open"))
    }
}

impl FaultyPlace for DiskFile {
    fn fail_write(&self, nth: u64) {
        self.disk.fail_write(nth, Fault::Io);
    }

    fn heal(&self) {
        self.disk.heal();
    }
}

#[test]
fn a_file_keeps_what_was_confirmed_and_nothing_of_a_batch_that_failed() {
    let files = Files::new();
    let make = || DiskFile { path: files.next(), disk: FaultVfs::register() };
    run_reopened(make);
    run_failing(make);
    ran_on("SQLite");
}

/// A schema whose tables count the statements that write to them, and refuse one of them.
struct Schema {
    url: String,
    name: String,
    session: Mutex<Session>,
}

impl Schema {
    /// The number of the statement that is refused.
    const REFUSED: u64 = 1_000_000;

    fn new() -> Schema {
        let name = fresh_schema();
        let url = format!("{}?schema={name}", server().url());
        let session = Mutex::new(server().session().expect("a session"));
        let schema = Schema { url, name, session };
        schema.open().migrate().expect("migrate");
        let (name, refused) = (&schema.name, Schema::REFUSED);
        // A sequence goes on counting when a transaction is rolled back.
        schema.ask(&format!(
            "CREATE SEQUENCE {name}.test_writes;
             CREATE FUNCTION {name}.test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('{name}.test_writes') = {refused} THEN
                     RAISE EXCEPTION 'a fault of the test' USING ERRCODE = 'io_error';
                 END IF;
                 RETURN NULL;
             END $$;
             DO $$ DECLARE name text; BEGIN
                 FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{name}' LOOP
                     EXECUTE format('CREATE TRIGGER test_refuse AFTER INSERT OR UPDATE OR DELETE
                         ON {name}.%I EXECUTE FUNCTION {name}.test_refuse()', name);
                 END LOOP;
             END $$;"
        ));
        schema
    }

    fn ask(&self, sql: &str) {
        let mut session = self.session.lock().expect("no question panics");
        session.query(sql).expect("the server answers");
    }

    /// The number of the statement that was made last.
    fn set_count(&self, count: u64) {
        self.ask(&format!("SELECT setval('{}.test_writes', {count})", self.name));
    }
}

impl Place for Schema {
    fn open(&self) -> Arc<dyn Store> {
        let mut options = PostgresOptions::default();
        options.database_time = false;
        Arc::new(PostgresStore::open_with(&self.url, options).expect("open"))
    }
}

impl FaultyPlace for Schema {
    fn fail_write(&self, nth: u64) {
        self.set_count(Schema::REFUSED - nth);
    }

    fn heal(&self) {
        self.set_count(Schema::REFUSED);
    }
}

#[test]
fn a_database_keeps_what_was_confirmed_and_nothing_of_a_batch_that_failed() {
    run_reopened(Schema::new);
    run_failing(Schema::new);
    ran_on("PostgreSQL");
}
