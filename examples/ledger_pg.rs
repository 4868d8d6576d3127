//! Money that is moved exactly once, in PostgreSQL: transfers between accounts in tables of the
//! program's own, beside those of everstep.
//!
//! ```text
//! cargo run --release --features postgres --example ledger_pg -- postgres://app@localhost/bank
//! ```
//!
//! Kill it at any point and start it again, as often as you like, or start it several times at once on
//! several machines: no cent is lost, and none is made. Each start makes 300 transfers and ends with a
//! look at the sums. Runs are in the schema `everstep`, accounts and transfers in tables of the same
//! database.

use everstep::{
    prelude::*,
    tokio_postgres::{self, NoTls},
};
use serde::{Deserialize, Serialize};

const ACCOUNTS: i64 = 10;
const CENTS_EACH: i64 = 1_000;
const TRANSFERS: i64 = 300;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Transfer {
    number: i64,
    from: i64,
    to: i64,
    cents: i64,
}

/// Takes the money, waits a moment, and books it: two transactions, and the money is in neither
/// account in between.
#[workflow]
async fn transfer(ctx: Ctx, order: Transfer) -> Result<()> {
    let Transfer { number, from, to, cents } = order;
    // What this writes and the record that it was done are committed together. If the program is
    // killed right before that, neither has happened; right after it, both have.
    ctx.pg_transaction("take", async move |tx| {
        let sql = "UPDATE bank_accounts SET cents = cents - $2 WHERE id = $1";
        tx.execute(sql, &[&from, &cents]).await?;
        let sql = "INSERT INTO bank_underway VALUES ($1, $2)";
        tx.execute(sql, &[&number, &cents]).await?;
        Ok(())
    })
    .await?;
    ctx.sleep("clearing", std::time::Duration::from_millis(20)).await?;
    ctx.pg_transaction("book", async move |tx| {
        let sql = "UPDATE bank_accounts SET cents = cents + $2 WHERE id = $1";
        tx.execute(sql, &[&to, &cents]).await?;
        let sql = "DELETE FROM bank_underway WHERE number = $1";
        tx.execute(sql, &[&number]).await?;
        // Not `ON CONFLICT DO NOTHING`: this would fail if it were done twice.
        let sql = "INSERT INTO bank_done VALUES ($1)";
        tx.execute(sql, &[&number]).await?;
        Ok(())
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(url) = std::env::args().nth(1) else {
        return Err("say where: ledger_pg postgres://app@localhost/bank".into());
    };
    let engine = Engine::open(&url)
        // A process that is killed is replaced after this; the heartbeat follows from it.
        .settings(|s| s.lease = seconds(2))
        .register(transfer)
        .start()
        .await?;
    let client = engine.client();
    println!("kill me and start me again: no cent is lost, and none is made");

    // Any connection to the same database will do; these tables are the program's own.
    let (mut user, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let tx = user.transaction().await?;
    // Several may start at once.
    tx.batch_execute("SELECT pg_advisory_xact_lock(20261116)").await?;
    tx.batch_execute(
        "CREATE TABLE IF NOT EXISTS bank_accounts (id bigint PRIMARY KEY, cents bigint NOT NULL);
         CREATE TABLE IF NOT EXISTS bank_underway (number bigint PRIMARY KEY, cents bigint);
         CREATE TABLE IF NOT EXISTS bank_done (number bigint PRIMARY KEY);",
    )
    .await?;
    for account in 0..ACCOUNTS {
        let sql = "INSERT INTO bank_accounts VALUES ($1, $2) ON CONFLICT DO NOTHING";
        tx.execute(sql, &[&account, &CENTS_EACH]).await?;
    }
    let sql = "SELECT count(*) FROM bank_done";
    let done: i64 = tx.query_one(sql, &[]).await?.try_get(0)?;
    tx.commit().await?;

    let first = done - done % TRANSFERS;
    let numbers: Vec<i64> = (first..first + TRANSFERS).collect();
    for batch in numbers.chunks(30) {
        // The runs of a batch are started in one transaction of our own: all of them, or none.
        let tx = user.transaction().await?;
        let mut runs = Vec::new();
        for number in batch {
            let input = Transfer {
                number: *number,
                from: number * 7 % ACCOUNTS,
                to: (number * 3 + 1) % ACCOUNTS,
                cents: number % 90 + 10,
            };
            let start = client.start(transfer, input);
            let start = start.key(format!("transfer-{number}"));
            runs.push(start.within(&tx).await?);
        }
        tx.commit().await?;
        for run in &runs {
            run.wake();
        }
        for run in &runs {
            run.result().await?;
        }
        println!("{} transfers are booked", batch[batch.len() - 1] + 1);
    }

    // In one statement, so that nobody else's transfers come in between.
    let sql = "SELECT (SELECT sum(cents)::bigint FROM bank_accounts), \
               (SELECT coalesce(sum(cents), 0)::bigint FROM bank_underway), \
               (SELECT count(*) FROM bank_done)";
    let row = user.query_one(sql, &[]).await?;
    let (sum, underway, done): (i64, i64, i64) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    println!("{done} transfers, {sum} cents in all accounts, {underway} under way");
    engine.shutdown().await;
    if sum + underway != ACCOUNTS * CENTS_EACH || done < first + TRANSFERS {
        return Err("a cent was lost or made".into());
    }
    Ok(())
}
