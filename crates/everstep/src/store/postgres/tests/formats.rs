//! Schemas of other formats.

use super::*;
use crate::store::format::Formats;

/// As for a file of SQLite: from the first release on, every later version opens what every released
/// one has written. The machinery for that is tried with a format that no release has.
#[test]
fn a_schema_of_format_1_is_migrated_to_a_made_up_format_2() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    let frozen =
        Formats(&[include_str!("../../../../tests/fixtures/frozen_format_1_postgres.sql")]);
    let made_up = [
        frozen.0[0],
        "ALTER TABLE everstep_runs ADD COLUMN colour text; \
         UPDATE everstep_runs SET colour = 'blue' WHERE key IS NOT NULL",
    ];
    let made_up = Formats(&made_up);
    let conn = store.take().expect("a connection");
    let (schema, name) = (&store.route.schema, &store.name);
    schema::migrate(&conn, schema, name, frozen).expect("format 1");
    conn.batch(
        "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, \
         generation, created_at, updated_at, attempts, recoveries, inbox_seq, input) \
         VALUES (1, '', 'checkout', 1, 'order-1', 'default', 0, 5, 1, 0, 0, 1, 0, 0, ''), \
         (2, '', 'checkout', 1, NULL, 'default', 0, 5, 1, 0, 0, 1, 0, 0, '')"
            .to_owned(),
    )
    .expect("runs of format 1");
    schema::migrate(&conn, schema, name, made_up).expect("format 2");
    let found = schema::inspect(&conn, schema, name, made_up).expect("format 2");
    assert_eq!(found, 2);
    let sql = "SELECT count(*) FROM everstep_runs WHERE colour = 'blue'";
    let answers = conn.run(vec![session::Op::new(sql, &[])]);
    let count: i64 = answers.expect("count")[0].rows[0].get(0).expect("a number");
    assert_eq!(count, 1);
    let error = schema::migrate(&conn, schema, name, frozen).expect_err("too new");
    assert!(matches!(error, StoreError::TooNew { .. }), "{error}");
    store.give_back(conn);
    testing::ran_on("PostgreSQL");
}

#[test]
fn a_schema_with_another_fingerprint_is_refused() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    store.migrate().expect("migrate");
    let conn = store.take().expect("a connection");
    let sql = "UPDATE everstep_format SET fingerprint = 'cafe'";
    conn.batch(sql.to_owned()).expect("another schema");
    let error = PostgresStore::open(&url).expect_err("another schema");
    assert!(matches!(error, StoreError::OtherSchema { .. }), "{error:?}");
    assert!(error.to_string().contains("cafe"), "{error}");
    let sql = "ALTER TABLE everstep_format DROP COLUMN fingerprint";
    conn.batch(sql.to_owned()).expect("an older schema");
    let error = PostgresStore::open(&url).expect_err("an older schema");
    assert!(matches!(error, StoreError::OtherSchema { .. }), "{error:?}");
    store.give_back(conn);
    testing::ran_on("PostgreSQL");
}
