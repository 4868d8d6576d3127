//! Transactions: rows of the user's own table are there once for each that completed, and a run is
//! started and sent a message with the order it is for, or none of them is there.
//!
//! What is the same in a file and on a server is here; how the tables are written to is in [`mod@file`]
//! and [`server`].

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use everstep::{EngineBuilder, Outcome, RunId, StepCall, prelude::*};

use super::{Outside, pause};
use crate::{Problem, bodies::Trace, place::Place};

mod file;
mod server;

/// The places that a run writes a row for.
const PLACES: [&str; 5] = ["0", "1", "2", "left", "right"];

/// The place of a transaction that fails for good.
const WRONG: &str = "wrong";

/// A run that has ended.
pub(crate) struct Ended {
    n: u64,
    run: RunId,
}

/// What the user's tables hold.
#[derive(Default)]
struct Tables {
    /// How many rows there are, by run and place.
    rows: BTreeMap<(String, String), u64>,
    /// The runs of each order.
    orders: BTreeMap<i64, Vec<String>>,
}

impl Tables {
    fn row(&mut self, run: String, place: String) {
        *self.rows.entry((run, place)).or_default() += 1;
    }

    fn order(&mut self, n: i64, run: String) {
        self.orders.entry(n).or_default().push(run);
    }
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(file::file_moves).register(server::server_moves)
}

/// The workflow, with the steps that write a row; the one of [`WRONG`] fails for good after it has
/// written. The result is how many rows each has seen at its place.
async fn moves(
    ctx: Ctx,
    n: u64,
    write: impl Fn(&Ctx, &'static str) -> StepCall<'static, i64>,
) -> Result<Vec<i64>> {
    let trace = Trace::new(&ctx);
    // It came with the order.
    let packed: u64 = ctx.listen("packed").await?;
    if packed != n {
        return Err(Error::fatal(format!("{packed} was packed, not {n}")));
    }
    let retry = Retry::fixed(50, Duration::from_millis(2));
    let mut rows = Vec::new();
    for place in &PLACES[..3] {
        rows.push(write(&ctx, place).retry(retry).await?);
        trace.run(&ctx, "work").await?;
    }
    let (left, right) = ctx
        .join(
            "both",
            (
                branch("left", async |ctx| write(&ctx, "left").retry(retry).await),
                branch("right", async |ctx| {
                    trace.run(&ctx, "before").await?;
                    write(&ctx, "right").retry(retry).await
                }),
            ),
        )
        .await?;
    rows.extend([left, right]);
    let failed = write(&ctx, WRONG).outcome().await?;
    if !matches!(failed, Outcome::Failed { .. }) {
        return Err(Error::fatal("what fails for good did not fail"));
    }
    trace.run(&ctx, "last").await?;
    trace.end(&ctx)?;
    Ok(rows)
}

/// Makes the tables.
pub(super) async fn prepare(outside: &Outside) -> Result<(), Problem> {
    match &outside.place {
        Place::File(path) => file::prepare(path.clone()).await,
        Place::Server(server) => server::prepare(server).await,
    }
}

/// Starts a run in a transaction with its order, and sends it the message that it waits for. Some
/// are given up before they are committed.
async fn order(outside: &Outside, n: u64) -> Result<RunHandle<Vec<i64>>, Problem> {
    match &outside.place {
        Place::File(path) => file::order(outside.client.clone(), path.clone(), n).await,
        Place::Server(server) => server::order(&outside.client, server, n).await,
    }
}

fn key(n: u64) -> String {
    format!("moves-{n}")
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("moves", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = match order(&outside, n).await {
            Ok(run) => run,
            // Another writer has held the file for long; the next order is another one.
            Err(problem) => {
                eprintln!("order {n} was not made: {problem}");
                pause(&random, 50, 150).await;
                continue;
            }
        };
        outside.messages.set(outside.messages.get() + 1);
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
    let (tables, workflow) = match &outside.place {
        Place::File(path) => (file::read(path)?, file::NAME),
        Place::Server(server) => (server::read(server)?, server::NAME),
    };
    let started = outside.client.count().workflow(workflow).await?;
    compare(outside, tables, started);
    Ok(())
}

/// Compares what the tables hold with what has ended, and with how many runs were started.
fn compare(outside: &Outside, tables: Tables, started: u64) {
    let Tables { rows, mut orders } = tables;
    for ((run, place), count) in &rows {
        outside.count("transactions", *count);
        if *count > 1 || place == WRONG {
            let what = format!("run {run} has {count} rows for `{place}`");
            outside.broken("transactions_twice", what);
        }
    }
    let ordered: usize = orders.values().map(Vec::len).sum();
    if started != ordered as u64 {
        let what = format!("{ordered} orders were committed, and {started} runs started");
        outside.broken("transactions_lost", what);
    }
    for Ended { n, run } in outside.moves.take() {
        let run = run.to_string();
        for place in PLACES {
            if !rows.contains_key(&(run.clone(), place.to_owned())) {
                let what = format!("run {run} has no row for `{place}`");
                outside.broken("transactions_lost", what);
            }
        }
        let runs = orders.remove(&(n as i64)).unwrap_or_default();
        if runs != [run.clone()] {
            let what = format!("the order of run {run} has the runs {runs:?}");
            outside.broken("transactions_lost", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests, *};

    /// One run with its order, that has ended, and rows at these places.
    fn counted(places: &[&str], orders: &[i64]) -> (u64, u64) {
        let outside = tests::outside();
        let run: RunId = "019a0000-0000-7000-8000-000000000001".parse().expect("an id");
        outside.moves.borrow_mut().push(Ended { n: 7, run });
        let mut tables = Tables::default();
        for place in places {
            tables.row(run.to_string(), (*place).to_owned());
        }
        for n in orders {
            tables.order(*n, run.to_string());
        }
        compare(&outside, tables, 1);
        let counted = |name| outside.counted(name);
        (counted("transactions_lost"), counted("transactions_twice"))
    }

    #[test]
    fn row_that_is_missing_or_there_twice_is_found() {
        assert_eq!(counted(&PLACES, &[7]), (0, 0));
        assert_eq!(counted(&PLACES[1..], &[7]), (1, 0));
        let twice = [&PLACES[..], &["left"]].concat();
        assert_eq!(counted(&twice, &[7]), (0, 1));
        let wrong = [&PLACES[..], &[WRONG]].concat();
        assert_eq!(counted(&wrong, &[7]), (0, 1));
    }

    #[test]
    fn order_without_its_run_is_found_and_so_is_a_run_without_its_order() {
        assert_eq!(counted(&PLACES, &[]), (2, 0));
        assert_eq!(counted(&PLACES, &[7, 8]), (1, 0));
        assert_eq!(counted(&PLACES, &[7, 7]), (2, 0));
    }
}
