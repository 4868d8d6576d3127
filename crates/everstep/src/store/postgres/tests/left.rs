//! What a deleted run has left in the tables, against the schema as it is.

use std::collections::BTreeMap;

use super::*;
use crate::{run_id::RunIds, store::rules::sweep::LEFT_BY_RUNS};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Cleared by the delete itself, or what it leaves; empty once a run has ended; swept by the chore for
/// old generations.
const CLEARED: [&str; 8] = [
    "everstep_event_waiters",
    "everstep_queue_waits",
    "everstep_keys",
    "everstep_tags",
    "everstep_graves",
    "everstep_watchers",
    "everstep_children",
    "everstep_old_generations",
];

/// The rows of a query that gives texts.
fn texts<const N: usize>(store: &PostgresStore, sql: &str) -> Vec<[String; N]> {
    let conn = store.take().expect("a connection");
    let answers = conn.run(vec![Op::new(sql.to_owned(), &[])]).expect("an answer");
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    let text = |row: &value::PgRow, column| row.get(column).expect("a text");
    rows.map(|row| std::array::from_fn(|column| text(row, column))).collect()
}

#[test]
fn every_table_that_names_a_run_is_swept() {
    let names = texts::<1>(
        &fresh(),
        "SELECT table_name::text FROM information_schema.columns \
         JOIN information_schema.tables USING (table_schema, table_name) \
         WHERE table_schema = current_schema() AND column_name = 'run' \
         AND table_type = 'BASE TABLE' ORDER BY 1",
    );
    assert!(names.len() > CLEARED.len(), "{names:?}");
    for [name] in &names {
        let swept = LEFT_BY_RUNS.iter().any(|(table, _)| table == name);
        assert!(
            swept || CLEARED.contains(&name.as_str()),
            "what a deleted run leaves in `{name}` is not swept: add it to LEFT_BY_RUNS"
        );
    }
    for (table, _) in LEFT_BY_RUNS {
        assert!(names.iter().any(|[name]| name == table), "no `{table}`");
    }
}

/// The sweep names rows by them: with other columns it would remove too much, or go over the whole
/// table for each row.
#[test]
fn rows_are_swept_by_the_primary_keys_of_their_tables() {
    let keys = texts::<2>(
        &fresh(),
        "SELECT key.table_name::text, string_agg(key.column_name::text, ', ' ORDER BY ordinal_position) \
         FROM information_schema.key_column_usage AS key \
         JOIN information_schema.table_constraints AS its USING (constraint_schema, constraint_name) \
         WHERE its.constraint_type = 'PRIMARY KEY' AND constraint_schema = current_schema() \
         GROUP BY key.table_name",
    );
    let keys: BTreeMap<String, String> =
        keys.into_iter().map(|[table, key]| (table, key)).collect();
    for (table, row) in LEFT_BY_RUNS {
        assert_eq!(keys.get(*table).map(String::as_str), Some(*row), "`{table}`");
    }
}

#[test]
fn a_sweep_removes_every_row_of_a_deleted_run_and_no_other() {
    let store = fresh();
    let ids = RunIds::new(5);
    let runs = [ids.next(NOW), ids.next(NOW)];
    for id in runs {
        fill(&store, id);
    }
    let delete =
        Delete { target: Target::Id(runs[0]), finished_before: None, key_kept_until: None };
    commit(&store, Write::Delete(Box::new(delete)));
    let mut slices = 1;
    while store.sweep(NOW, 4).expect("sweep") {
        slices += 1;
    }
    assert!(slices > 5, "{slices}");
    for (table, _) in LEFT_BY_RUNS {
        let counts = runs.map(|id| {
            let no = id.no().0;
            let sql = format!("SELECT count(*)::text FROM {table} WHERE run = {no}");
            texts::<1>(&store, &sql)[0][0].clone()
        });
        assert_eq!(counts, ["0", "5"], "`{table}`");
    }
    testing::ran_on("PostgreSQL");
}

fn commit(store: &PostgresStore, write: Write) {
    let batch = Batch { fence: None, now: NOW, writes: vec![write] };
    store.commit(&batch).expect("commit");
}

/// An ended run, with five rows in every table.
fn fill(store: &PostgresStore, id: RunId) {
    let new = NewRun {
        id,
        workflow: "checkout".into(),
        version: 1,
        key: None,
        pool: "default".into(),
        available_at: None,
        deadline_at: None,
        tags: Vec::new(),
        trace: None,
        input: Vec::new(),
        parent: None,
        claim: false,
    };
    commit(store, Write::Start(Box::new(new)));
    let no = id.no().0;
    let mut rows =
        format!("UPDATE everstep_runs SET status = 5, available_at = NULL WHERE no = {no};");
    for n in 0..5 {
        rows += &format!(
            "INSERT INTO everstep_history VALUES ({no}, 1, '\\x0{n}', '');
             INSERT INTO everstep_inbox (run, seq, name, body, sent_at) VALUES ({no}, {n}, '', '', 0);
             INSERT INTO everstep_dedupes VALUES ({no}, '{n}');
             INSERT INTO everstep_requests (id, run, state)
             VALUES (sha256(gen_random_uuid()::text::bytea), {no}, 1);
             INSERT INTO everstep_state VALUES ({no}, '{n}', '');
             INSERT INTO everstep_deferreds (run, generation, tag, body, at) VALUES ({no}, 1, '\\x0{n}', '', 0);
             INSERT INTO everstep_deferred_waits (run, generation, tag, key) VALUES ({no}, 1, '\\x0{n}', '');
             INSERT INTO everstep_limit_places VALUES ({no}, 1, '\\x0{n}', '', '', 0, 0);
             INSERT INTO everstep_event_cursors VALUES ({no}, '{n}', '', 0);
             INSERT INTO everstep_streams (run, stream, pos, at, generation, body)
             VALUES ({no}, '', {n}, 0, 1, '');
             INSERT INTO everstep_dead_letters (run, name, body, reason, at) VALUES ({no}, '', '', '', 0);"
        );
    }
    let conn = store.take().expect("a connection");
    conn.batch(rows).expect("five rows of each");
}
