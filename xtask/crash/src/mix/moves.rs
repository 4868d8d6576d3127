//! Transactions: rows of the user's own table are there once for each that completed, and a run is
//! started with the order it is for, or neither is there.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use everstep::{
    Client, EngineBuilder, Outcome, RunId, Tx,
    prelude::*,
    rusqlite::{Connection, TransactionBehavior, params},
};

use super::{Outside, pause};
use crate::{Problem, bodies::Trace, place::Place, random};

/// The places that a run writes a row for.
const PLACES: [&str; 5] = ["0", "1", "2", "left", "right"];

/// A run that has ended.
pub(crate) struct Ended {
    n: u64,
    run: RunId,
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(moves)
}

/// Writes a row and gives how many there are now, unless it fails by chance after it has written.
fn write(run: RunId, place: &'static str) -> impl Fn(&Tx<'_>) -> Result<i64> + Send + Sync {
    move |tx| {
        let row = params![run.to_string(), place];
        tx.execute("INSERT INTO crash_moves VALUES (?1, ?2)", row)?;
        if random::any().is_multiple_of(4) {
            return Err(Error::msg("by chance"));
        }
        let sql = "SELECT count(*) FROM crash_moves WHERE run = ?1 AND place = ?2";
        Ok(tx.query_row(sql, row, |row| row.get(0))?)
    }
}

#[workflow]
pub(crate) async fn moves(ctx: Ctx, _n: u64) -> Result<Vec<i64>> {
    let (run, trace) = (ctx.run_id(), Trace::new(&ctx));
    let retry = Retry::fixed(50, Duration::from_millis(2));
    let mut rows = Vec::new();
    for place in &PLACES[..3] {
        let moved = ctx.transaction("move", write(run, place)).retry(retry);
        rows.push(moved.await?);
        trace.run(&ctx, "work").await?;
    }
    let (left, right) = ctx
        .join(
            "both",
            (
                branch("left", async |ctx| {
                    let moved = ctx.transaction("move", write(run, "left"));
                    moved.retry(retry).await
                }),
                branch("right", async |ctx| {
                    trace.run(&ctx, "before").await?;
                    let moved = ctx.transaction("move", write(run, "right"));
                    moved.retry(retry).await
                }),
            ),
        )
        .await?;
    rows.extend([left, right]);
    // What fails for good leaves nothing behind.
    let failed = ctx
        .transaction("wrong", move |tx| -> Result<()> {
            let params = params![run.to_string()];
            tx.execute("INSERT INTO crash_moves VALUES (?1, 'wrong')", params)?;
            Err(Error::fatal("on purpose"))
        })
        .outcome()
        .await?;
    if !matches!(failed, Outcome::Failed { .. }) {
        return Err(Error::fatal("what fails for good did not fail"));
    }
    trace.run(&ctx, "last").await?;
    Ok(rows)
}

fn connect(place: &Place) -> Result<Connection, Problem> {
    let Place::File(path) = place else {
        return Err("a server is no file".into());
    };
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

/// Makes the tables.
pub(super) async fn prepare(outside: &Outside) -> Result<(), Problem> {
    let place = outside.place.clone();
    let tables = "CREATE TABLE IF NOT EXISTS crash_moves (run TEXT, place TEXT);
                  CREATE TABLE IF NOT EXISTS crash_orders (n INTEGER, run TEXT);";
    tokio::task::spawn_blocking(move || Ok(connect(&place)?.execute_batch(tables)?)).await?
}

/// Starts a run in a transaction with its order. Some are given up before they are committed.
fn order(client: &Client, place: &Place, n: u64) -> Result<RunHandle<Vec<i64>>, Problem> {
    let mut connection = connect(place)?;
    loop {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let start = client.start(moves, n).key(format!("moves-{n}"));
        let run = start.within(&tx)?;
        let order = params![n as i64, run.id().to_string()];
        tx.execute("INSERT INTO crash_orders VALUES (?1, ?2)", order)?;
        if random::any().is_multiple_of(3) {
            tx.rollback()?;
            continue;
        }
        tx.commit()?;
        run.wake();
        return Ok(run);
    }
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("moves", part);
    while !outside.stop.get() {
        let n = outside.number();
        let (client, place) = (outside.client.clone(), outside.place.clone());
        let ordered = tokio::task::spawn_blocking(move || order(&client, &place, n)).await;
        let run = match ordered {
            Ok(Ok(run)) => run,
            // Another writer has held the file for long; the next order is another one.
            Ok(Err(problem)) => {
                eprintln!("order {n} was not made: {problem}");
                continue;
            }
            Err(error) => return outside.wrong(format!("order {n}: {error}")),
        };
        outside.live.borrow_mut().insert(run.id(), "moves");
        let Some(rows) = outside.result(&run).await else {
            continue;
        };
        if rows.iter().any(|count| *count != 1) {
            let what = format!("run {} saw {rows:?} rows", run.id());
            outside.broken("transactions_twice", what);
        }
        outside.moves.borrow_mut().push(Ended { n, run: run.id() });
        pause(&random, 0, 50).await;
    }
}

pub(super) async fn check(outside: &Outside) -> Result<(), Problem> {
    let connection = connect(&outside.place)?;
    let mut rows: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut read = connection.prepare("SELECT run, place FROM crash_moves")?;
    for row in read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        *rows.entry(row?).or_default() += 1;
    }
    let mut orders: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    let mut read = connection.prepare("SELECT n, run FROM crash_orders")?;
    for row in read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (n, run) = row?;
        orders.entry(n).or_default().push(run);
    }
    for ((run, place), count) in &rows {
        outside.count("transactions", *count);
        if *count > 1 || place == "wrong" {
            let what = format!("run {run} has {count} rows for `{place}`");
            outside.broken("transactions_twice", what);
        }
    }
    for Ended { n, run } in outside.moves.take() {
        let run = run.to_string();
        for place in PLACES {
            if !rows.contains_key(&(run.clone(), place.to_owned())) {
                let what = format!("run {run} has no row for `{place}`");
                outside.broken("transactions_lost", what);
            }
        }
        if orders
            .remove(&(n as i64))
            .is_none_or(|runs| runs != [run.clone()])
        {
            outside.broken("transactions_lost", format!("run {run} has no order"));
        }
    }
    let started = outside.client.count().workflow("moves").await?;
    let ordered: i64 =
        connection.query_row("SELECT count(*) FROM crash_orders", [], |r| r.get(0))?;
    if started != ordered as u64 {
        let what = format!("{ordered} orders were committed, and {started} runs started");
        outside.broken("transactions_lost", what);
    }
    Ok(())
}
