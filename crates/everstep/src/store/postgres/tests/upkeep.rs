//! What a store keeps for itself does not grow without end.

use super::*;

#[test]
fn the_lane_of_a_connection_that_was_lost_long_ago_is_swept() {
    let store = fresh();
    let old = now_ms() - 2 * DEAD_LANE_KEPT.as_millis() as i64;
    let lanes = |store: &PostgresStore| {
        store.read(|session| {
            let sql = "SELECT count(*) FROM everstep_lanes WHERE seen_at = $1";
            session.row(sql, params![old], |row| row.get::<i64>(0))
        })
    };
    store
        .write(|session| {
            let sql = "INSERT INTO everstep_lanes (id, epoch, last, seen_at) VALUES ($1, 1, 7, $2)";
            session.execute(sql, params![Uuid::from_u128(77), old]);
            Ok(())
        })
        .expect("a lane");
    assert_eq!(lanes(&store).expect("count"), Some(1));
    // There is nothing else to sweep.
    let now = Timestamp::from_millis(now_ms());
    assert!(!store.sweep(now, 10).expect("sweep"));
    assert_eq!(lanes(&store).expect("count"), Some(0));
    testing::ran_on("PostgreSQL");
}

#[test]
fn a_connection_keeps_no_more_statements_than_it_needs() {
    let store = fresh();
    for no in 0..1_000 {
        let answer = store.read(|session| {
            session.row(format!("SELECT {no}::bigint"), &[], |row| row.get::<i64>(0))
        });
        assert_eq!(answer.expect("answer"), Some(no));
    }
    let sql = "SELECT count(*) FROM pg_prepared_statements";
    let kept = store.read(|session| session.row(sql, &[], |row| row.get::<i64>(0)));
    let kept = kept.expect("count").expect("a row");
    assert!((1..500).contains(&kept), "{kept} statements are kept");
    testing::ran_on("PostgreSQL");
}

#[test]
fn the_time_is_the_one_of_the_database_since_it_was_last_asked() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    // It is the same machine's.
    let off = |store: &PostgresStore| store.time().expect("a time").as_millis() - now_ms();
    assert!(off(&store).abs() < 5_000, "{}", off(&store));
    assert!(!store.time_is_old());
    // A clock that was set is followed, ahead and back.
    for ahead in [300_000, -300_000] {
        let asked = conn::Asked::now();
        store.note_time(Some(asked.answered(now_ms() + ahead)));
        let off = off(&store) - ahead;
        assert!(off.abs() < 5_000, "{ahead}: {off}");
    }
    // A test goes by a clock of its own.
    assert_eq!(fresh().time(), None);
    testing::ran_on("PostgreSQL");
}

/// A client without an engine asked when it connected, and never again.
#[test]
fn the_time_is_asked_for_again_when_the_last_answer_is_old() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let store = PostgresStore::open(&url).expect("open");
    store.migrate().expect("migrate");
    let asked = conn::Asked::ago(Duration::from_secs(60));
    store.note_time(Some(asked.answered(now_ms() + 3_600_000)));
    assert!(store.time_is_old());
    store.ask_time().expect("ask");
    assert!(!store.time_is_old());
    let off = store.time().expect("a time").as_millis() - now_ms();
    assert!(off.abs() < 5_000, "{off}");
    testing::ran_on("PostgreSQL");
}

#[test]
fn a_time_that_goes_back_by_less_than_answers_are_wrong_by_stands_still() {
    let mut first = conn::Asked::now().answered(1_000_000);
    let began = first.now();
    let mut second = conn::Asked::now().answered(999_500).after(Some(first));
    assert!(second.now() >= began);
    let mut third = conn::Asked::now().answered(990_000).after(Some(second));
    assert!(third.now() < began);
}

#[test]
fn a_name_that_the_server_would_change_is_refused() {
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    for schema in ["s".repeat(64), "pg_mine".to_owned(), String::new()] {
        let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
        let opened = PostgresStore::open_with(&url, options);
        assert!(matches!(opened, Err(StoreError::CannotOpen { .. })), "{schema}: {opened:?}");
    }
    testing::ran_on("PostgreSQL");
}

/// A heartbeat that had to wait for a lock put all clocks wrong by half of the wait.
#[test]
fn the_time_in_an_answer_that_was_long_under_way_is_not_believed() {
    let quick = conn::Asked::now();
    assert!(quick.answered_if_quick(now_ms()).is_some());
    let slow = conn::Asked::ago(Duration::from_secs(4));
    assert!(slow.answered_if_quick(now_ms()).is_none());
}
