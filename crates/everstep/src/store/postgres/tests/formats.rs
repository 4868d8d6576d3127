//! Schemas of older formats.

use super::*;

#[test]
fn a_schema_of_format_2_gets_an_audit_log_and_tokens() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    let conn = store.take().expect("a connection");
    let older = &schema::MIGRATIONS[..2];
    schema::migrate(&conn, &store.route.schema, &store.name, older).expect("format 2");
    store.give_back(conn);
    let error = store.audits(None, 9).expect_err("it is too old");
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    store.migrate().expect("migrate");
    let begun = NewAudit {
        at: Timestamp::from_millis(5),
        who: "ada".to_owned(),
        action: "cancel".to_owned(),
        target: "run".to_owned(),
        detail: String::new(),
    };
    let no = store.begin_audit(&begun).expect("begin");
    let outcome = None;
    let row = AuditRow { no, begun, outcome };
    assert_eq!(store.audits(None, 9).expect("audits"), [row]);
    assert_eq!(store.api_tokens().expect("api_tokens"), []);
    testing::ran_on("PostgreSQL");
}
