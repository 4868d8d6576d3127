//! Schemas of older formats.

use super::*;
use crate::run_id::RunIds;

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

#[test]
fn runs_and_items_of_format_2_are_in_no_trace() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    let conn = store.take().expect("a connection");
    let older = &schema::MIGRATIONS[..2];
    schema::migrate(&conn, &store.route.schema, &store.name, older).expect("format 2");
    let now = Timestamp::from_millis(5);
    let id = RunIds::new(3).next(now);
    let (no, bytes) = (id.no().0, id.as_uuid().simple());
    let rows = format!(
        "INSERT INTO runs (no, id, workflow, version, pool, shard, status, generation, created_at, \
         updated_at, attempts, recoveries, inbox_seq, input) \
         VALUES ({no}, '\\x{bytes}', 'checkout', 1, 'default', 0, 3, 1, 5, 5, 1, 0, 0, '\\x01'); \
         INSERT INTO queue_items (queue, state, rank, at, attempts, keep_ms, created_at, payload) \
         VALUES ('thumbs', 0, 0, 5, 0, 0, 5, '\\x02')"
    );
    conn.batch(rows).expect("rows of format 2");
    store.give_back(conn);
    store.migrate().expect("migrate");
    let row = store.run(&Target::Id(id)).expect("run").expect("the run");
    assert_eq!((row.input, row.trace), (vec![1], None));
    let wanted = ClaimItems {
        queue: "thumbs".to_owned(),
        claim: Uuid::from_u128(1),
        max: 9,
        attempts_max: 1,
        visibility: Duration::from_secs(1),
        limit: None,
    };
    let write = Write::Queue(Box::new(QueueWrite::Claim(wanted)));
    let (fence, writes) = (None, vec![write]);
    let applied = store.commit(&Batch { fence, now, writes }).expect("commit");
    let [Outcome::Queue(QueueDone::Claimed(claimed))] = &applied.outcomes[..] else {
        panic!("{:?}", applied.outcomes);
    };
    let items = claimed.items.iter();
    let items: Vec<_> = items.map(|item| (&*item.payload, &item.trace)).collect();
    assert_eq!(items, [(&[2][..], &None)]);
    testing::ran_on("PostgreSQL");
}
