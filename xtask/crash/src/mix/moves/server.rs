//! The tables on the server of the store, beside its schema.

use everstep::{
    Client, RunId,
    prelude::*,
    tokio_postgres::{self, NoTls},
};
use everstep_pg::Instance;

use super::{Tables, WRONG, key, moves};
use crate::{Problem, random};

/// The name of the workflow.
pub(super) const NAME: &str = "server_moves";

/// Writes a row and gives how many there are now, unless it fails by chance after it has written.
async fn write(tx: &tokio_postgres::Transaction<'_>, run: RunId, place: &str) -> Result<i64> {
    let run = run.to_string();
    let sql = "INSERT INTO crash_moves VALUES ($1, $2)";
    tx.execute(sql, &[&run, &place]).await?;
    if place == WRONG {
        return Err(Error::fatal("on purpose"));
    }
    if random::any().is_multiple_of(4) {
        return Err(Error::msg("by chance"));
    }
    let sql = "SELECT count(*) FROM crash_moves WHERE run = $1 AND place = $2";
    Ok(tx.query_one(sql, &[&run, &place]).await?.try_get(0)?)
}

#[workflow]
pub(crate) async fn server_moves(ctx: Ctx, n: u64) -> Result<Vec<i64>> {
    let run = ctx.run_id();
    let move_to =
        |ctx: &Ctx, place| ctx.pg_transaction("move", async move |tx| write(tx, run, place).await);
    moves(ctx, n, move_to).await
}

pub(super) async fn prepare(server: &Instance) -> Result<(), Problem> {
    let tables = "CREATE TABLE crash_moves (run text, place text); \
                  CREATE INDEX ON crash_moves (run); \
                  CREATE TABLE crash_orders (n bigint, run text); \
                  CREATE INDEX ON crash_orders (n)";
    Ok(connect(server).await?.batch_execute(tables).await?)
}

async fn connect(server: &Instance) -> Result<tokio_postgres::Client, Problem> {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    // It ends with its client; what goes wrong, the client is told.
    tokio::spawn(connection);
    Ok(client)
}

/// An order whose outcome is not known is looked for: only the crash of the server leaves one, and
/// after that nothing of it is on its way any more.
pub(super) async fn order(
    client: &Client,
    server: &Instance,
    n: u64,
) -> Result<RunHandle<Vec<i64>>, Problem> {
    loop {
        match place(client, server, n).await {
            Ok(Some(run)) => return Ok(run),
            Ok(None) => {}
            Err(problem) => {
                eprintln!("ordering again: {problem}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// One go; nothing if it was rolled back on purpose.
async fn place(
    client: &Client,
    server: &Instance,
    n: u64,
) -> Result<Option<RunHandle<Vec<i64>>>, Problem> {
    let mut own = connect(server).await?;
    let tx = own.transaction().await?;
    let sql = "SELECT run FROM crash_orders WHERE n = $1";
    if let Some(row) = tx.query_opt(sql, &[&(n as i64)]).await? {
        let run: RunId = row.try_get::<_, String>(0)?.parse()?;
        return Ok(Some(client.run(run)));
    }
    let run = client.start(server_moves, n).key(key(n)).within(&tx).await?;
    client.send_in(&tx, run.id(), "packed", &n).await?;
    let sql = "INSERT INTO crash_orders VALUES ($1, $2)";
    let id = run.id().to_string();
    tx.execute(sql, &[&(n as i64), &id]).await?;
    if random::any().is_multiple_of(3) {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    run.wake();
    Ok(Some(run))
}

pub(super) fn read(server: &Instance) -> Result<Tables, Problem> {
    let mut session = server.session()?;
    let mut tables = Tables::default();
    let pair = |row: Vec<Option<String>>| -> Result<(String, String), Problem> {
        match &row[..] {
            [Some(first), Some(second)] => Ok((first.clone(), second.clone())),
            _ => Err("a row of ours has no value".into()),
        }
    };
    for row in session.query("SELECT run, place FROM crash_moves")? {
        let (run, place) = pair(row)?;
        tables.row(run, place);
    }
    for row in session.query("SELECT n, run FROM crash_orders")? {
        let (n, run) = pair(row)?;
        tables.order(n.parse()?, run);
    }
    Ok(tables)
}
