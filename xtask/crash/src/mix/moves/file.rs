//! The tables in the file of the store.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use everstep::{
    Client, RunId, Tx,
    prelude::*,
    rusqlite::{Connection, TransactionBehavior, params},
};

use super::{Tables, WRONG, key, moves};
use crate::{Problem, random};

/// The name of the workflow.
pub(super) const NAME: &str = "file_moves";

/// Writes a row and gives how many there are now, unless it fails by chance after it has written.
fn write(run: RunId, place: &'static str) -> impl Fn(&Tx<'_>) -> Result<i64> + Send + Sync {
    move |tx| {
        let row = params![run.to_string(), place];
        tx.execute("INSERT INTO crash_moves VALUES (?1, ?2)", row)?;
        if place == WRONG {
            return Err(Error::fatal("on purpose"));
        }
        if random::any().is_multiple_of(4) {
            return Err(Error::msg("by chance"));
        }
        let sql = "SELECT count(*) FROM crash_moves WHERE run = ?1 AND place = ?2";
        Ok(tx.query_row(sql, row, |row| row.get(0))?)
    }
}

#[workflow]
pub(crate) async fn file_moves(ctx: Ctx, n: u64) -> Result<Vec<i64>> {
    let run = ctx.run_id();
    let move_to = |ctx: &Ctx, place| ctx.transaction("move", write(run, place));
    moves(ctx, n, move_to).await
}

fn connect(path: &Path) -> Result<Connection, Problem> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    Ok(connection)
}

pub(super) async fn prepare(path: PathBuf) -> Result<(), Problem> {
    let tables = "CREATE TABLE IF NOT EXISTS crash_moves (run TEXT, place TEXT);
                  CREATE TABLE IF NOT EXISTS crash_orders (n INTEGER, run TEXT);";
    tokio::task::spawn_blocking(move || Ok(connect(&path)?.execute_batch(tables)?)).await?
}

pub(super) async fn order(
    client: Client,
    path: PathBuf,
    n: u64,
) -> Result<RunHandle<Vec<i64>>, Problem> {
    tokio::task::spawn_blocking(move || order_now(&client, &path, n)).await?
}

fn order_now(client: &Client, path: &Path, n: u64) -> Result<RunHandle<Vec<i64>>, Problem> {
    let mut connection = connect(path)?;
    loop {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let run = client.start(file_moves, n).key(key(n)).within(&tx)?;
        client.send_in(&tx, run.id(), "packed", &n)?;
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

pub(super) fn read(path: &Path) -> Result<Tables, Problem> {
    let connection = connect(path)?;
    let mut tables = Tables::default();
    let mut read = connection.prepare("SELECT run, place FROM crash_moves")?;
    for row in read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (run, place) = row?;
        tables.row(run, place);
    }
    let mut read = connection.prepare("SELECT n, run FROM crash_orders")?;
    for row in read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (n, run) = row?;
        tables.order(n, run);
    }
    Ok(tables)
}
