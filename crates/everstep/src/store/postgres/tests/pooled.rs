//! A pooler in between, which may hand each transaction to another session: the whole contract is kept.

use everstep_pg::Pgbouncer;

use super::{away::server, *};

/// Through this pooler, an empty schema that no other test has.
fn pooled(pooler: &Pgbouncer) -> PostgresStore {
    // Who has a schema is said by a lock of a session, and a pooler has none to offer.
    let lent = PostgresStore::lent(&server().url()).expect("a schema for a test");
    let options = PostgresOptions {
        pooled: true,
        listen_url: Some(server().url()),
        ..lent.options.clone()
    };
    let url = pooler.url_for("postgres");
    let mut store = PostgresStore::open_with(&url, options).expect("open through the pooler");
    store.lent = lent.lent.clone();
    store
}

#[test]
fn the_contract_is_kept_through_a_pooler_of_transactions() {
    let pooler = Pgbouncer::start_before(server()).expect("a pooler");
    store_conformance::run_all(|| Arc::new(pooled(&pooler)));
    testing::ran_on("PostgreSQL");
}

#[test]
fn answers_through_a_pooler_are_those_of_the_store_in_memory() {
    let pooler = Pgbouncer::start_before(server()).expect("a pooler");
    store_conformance::compare(&MemoryStore::new(), &pooled(&pooler), 11);
    testing::ran_on("PostgreSQL");
}
