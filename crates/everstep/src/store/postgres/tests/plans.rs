//! How the server goes about the statements of a batch.

use super::*;
use crate::store::postgres::session::{Bulk, Port};

/// The name and the text over arrays of each bulk statement in the sources.
fn bulks() -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    for directory in ["/src/store/postgres", "/src/store/sql"] {
        let directory = format!("{}{directory}", env!("CARGO_MANIFEST_DIR"));
        for file in std::fs::read_dir(directory).expect("the sources are there") {
            let path = file.expect("a file").path();
            if path.is_file() && path.extension().is_some_and(|it| it == "rs") {
                let source = std::fs::read_to_string(path).expect("a source");
                let (source, _) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
                all.extend(bulks_of(source));
            }
        }
    }
    all
}

fn bulks_of(source: &str) -> Vec<(String, &'static str)> {
    let parts: Vec<&str> = source.split(": Bulk = Bulk::").collect();
    let bulks = parts.windows(2).map(|pair| {
        let name = pair[0].rsplit(' ').next().unwrap_or_default();
        let (call, _) = pair[1].split_once(");\n").expect("the call ends");
        let (kind, arguments) = call.split_once('(').expect("a call");
        // Every other part is a text; behind the first is a number.
        let parts: Vec<&str> = arguments.split('"').collect();
        let mut texts = parts.iter().skip(1).step_by(2).map(|text| {
            let text: String = text.split("\\\n").map(str::trim_start).collect();
            &*text.leak()
        });
        let table = texts.next().expect("a table");
        let columns = texts.next().expect("columns or a text");
        let unique = parts[2].trim_matches([',', ' ', '\n']);
        let unique = unique.parse().expect("a number");
        let bulk = match kind {
            "insert" => Bulk::insert(table, unique, columns),
            "insert_new" => Bulk::insert_new(table, unique, columns),
            "put" => Bulk::put(table, unique, columns),
            "update" => Bulk::update(table, unique, columns),
            "delete" => Bulk::delete(table, unique, columns),
            "over_arrays" => Bulk::over_arrays(table, unique, columns),
            "written" => Bulk::written(table, unique, columns, texts.next().expect("a text")),
            other => panic!("`{other}` is no kind of bulk statement"),
        };
        let bulk: &'static Bulk = Box::leak(Box::new(bulk));
        (name.to_owned(), bulk.many())
    });
    bulks.collect()
}

/// What in a plan grows with a table, or with the square of the batch.
fn unbounded(plan: &[String]) -> Vec<&str> {
    const SCANS: [&str; 3] = ["Index Scan", "Index Only Scan", "Bitmap Index Scan"];
    let mut found = Vec::new();
    for (no, line) in plan.iter().enumerate() {
        // What is said about a node stands behind it, before the next one.
        let said = plan[no + 1..].iter().take_while(|it| !it.contains("->"));
        let is_bounded = said.into_iter().any(|it| it.contains("Index Cond:"));
        let is_scan = SCANS.iter().any(|scan| line.contains(scan));
        let compares_all = line.contains("Seq Scan") || line.contains("Join Filter:");
        if compares_all || (is_scan && !is_bounded) {
            found.push(line.trim());
        }
    }
    found
}

/// When a run ended, the inbox of all runs was read: the planner joined the whole table with the array
/// of the batch.
#[test]
fn every_bulk_statement_reads_only_rows_of_its_batch() {
    let store = fresh();
    let conn = store.take().expect("a connection");
    let execute = |sql: String| conn.batch(sql).expect("it is accepted");
    execute("SET plan_cache_mode = force_generic_plan".to_owned());
    // The server may have looked at the empty tables meanwhile, and would then plan for empty ones. To
    // truncate them makes it forget that, and the locks keep it from looking again.
    let truncate = "BEGIN; DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(tablename), ', ') \
                    FROM pg_tables WHERE schemaname = current_schema()); END $$";
    execute(truncate.to_owned());
    let bulks = bulks();
    assert!(bulks.len() > 30, "{} statements", bulks.len());
    let mut wrong = Vec::new();
    for (name, sql) in bulks {
        let sql = conn::numbered(sql);
        let params = (1..99).rev().find(|no| sql.contains(&format!("${no}")));
        let nulls = vec!["NULL"; params.unwrap_or(0)].join(", ");
        execute(format!("PREPARE it AS {sql}"));
        let explain = format!("EXPLAIN (COSTS OFF) EXECUTE it ({nulls})");
        let answers = conn.run(vec![Op::new(explain, &[])]);
        let answers = answers.unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = answers[0].rows.iter().map(|row| row.get::<String>(0));
        let plan: Vec<String> = lines.collect::<Result<_, _>>().expect("a plan");
        if !unbounded(&plan).is_empty() {
            wrong.push(format!("{name}: {sql}\n{}\n", plan.join("\n")));
        }
        execute("DEALLOCATE it".to_owned());
    }
    execute("ROLLBACK".to_owned());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    testing::ran_on("PostgreSQL");
}

/// A plan from when a table was empty was kept while the table grew, until the server looked at it.
#[test]
fn statements_are_planned_anew_after_a_while() {
    let store = fresh();
    let is_discarded = |conn: &Conn| lock_statements(conn).contains_key(conn::DISCARD_PLANS);
    let mut conn = store.take().expect("a connection");
    conn.planned = Instant::now();
    conn.statements = Arc::default();
    conn.refresh_plans().expect("it is too early");
    assert!(!is_discarded(&conn));
    conn.planned =
        Instant::now().checked_sub(conn::PLANS_KEPT).expect("the machine has run for longer");
    conn.refresh_plans().expect("the plans are discarded");
    assert!(is_discarded(&conn) && conn.planned.elapsed() < conn::PLANS_KEPT);
    testing::ran_on("PostgreSQL");
}

fn lock_statements(conn: &Conn) -> MutexGuard<'_, HashMap<String, tokio_postgres::Statement>> {
    lock(&conn.statements)
}

#[test]
fn parameters_of_shared_statements_are_numbered_and_quoted_names_stay() {
    let shared = "SELECT ?1, ?12 FROM \"a?1\"\"?2\".runs WHERE name = ?2 COLLATE \"C\"";
    let sent = "SELECT $1, $12 FROM \"a?1\"\"?2\".runs WHERE name = $2 COLLATE \"C\"";
    assert_eq!(conn::numbered(shared), sent);
    assert_eq!(conn::numbered("SELECT $1"), "SELECT $1");
}
