//! Money that is moved exactly once: transfers between accounts in tables of the program's own.
//!
//! ```text
//! cargo run --release --example ledger
//! ```
//!
//! Kill it at any point and start it again, as often as you like: it goes on with the transfers
//! that are left, and ends with a look at the sums. The next start makes 600 more. Accounts,
//! transfers and runs are all in `ledger.db`.

use everstep::{
    prelude::*,
    rusqlite::{Connection, TransactionBehavior::Immediate, params},
};
use serde::{Deserialize, Serialize};

const ACCOUNTS: u32 = 10;
const CENTS_EACH: i64 = 1_000;
const TRANSFERS: u32 = 600;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Transfer {
    number: u32,
    from: u32,
    to: u32,
    cents: i64,
}

/// Takes the money, waits a moment, and books it: two transactions, and the money is in neither
/// account in between.
#[workflow]
async fn transfer(ctx: Ctx, order: Transfer) -> Result<()> {
    let Transfer { number, from, to, cents } = order;
    // What this writes and the record that it was done are committed together. If the program is
    // killed right before that, neither has happened; right after it, both have.
    ctx.transaction("take", move |tx| {
        let sql = "UPDATE bank_accounts SET cents = cents - ?2 WHERE id = ?1";
        tx.execute(sql, params![from, cents])?;
        tx.execute("INSERT INTO bank_underway VALUES (?1, ?2)", params![number, cents])?;
        Ok(())
    })
    .await?;
    ctx.sleep("clearing", std::time::Duration::from_millis(20)).await?;
    ctx.transaction("book", move |tx| {
        let sql = "UPDATE bank_accounts SET cents = cents + ?2 WHERE id = ?1";
        tx.execute(sql, params![to, cents])?;
        tx.execute("DELETE FROM bank_underway WHERE number = ?1", [number])?;
        // Not `OR IGNORE`: this would fail if it were done twice.
        tx.execute("INSERT INTO bank_done VALUES (?1)", [number])?;
        Ok(())
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("ledger.db").register(transfer).start().await?;
    let client = engine.client();
    println!("kill me and start me again: no cent is lost, and none is made");

    // Any connection to the same file will do; these tables are the program's own.
    let mut conn = Connection::open("ledger.db")?;
    conn.busy_timeout(seconds(5))?;
    let tx = conn.transaction_with_behavior(Immediate)?;
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS bank_accounts (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
         CREATE TABLE IF NOT EXISTS bank_underway (number INTEGER PRIMARY KEY, cents INTEGER);
         CREATE TABLE IF NOT EXISTS bank_done (number INTEGER PRIMARY KEY);",
    )?;
    for account in 0..ACCOUNTS {
        let sql = "INSERT OR IGNORE INTO bank_accounts VALUES (?1, ?2)";
        tx.execute(sql, params![account, CENTS_EACH])?;
    }
    let done: u32 = tx.query_row("SELECT count(*) FROM bank_done", [], |row| row.get(0))?;
    tx.commit()?;

    let first = done - done % TRANSFERS;
    let numbers: Vec<u32> = (first..first + TRANSFERS).collect();
    for batch in numbers.chunks(30) {
        // The runs of a batch are started in one transaction of our own: all of them, or none.
        let tx = conn.transaction_with_behavior(Immediate)?;
        let mut runs = Vec::new();
        for number in batch {
            let (from, to) = (number * 7 % ACCOUNTS, (number * 3 + 1) % ACCOUNTS);
            let cents = i64::from(number % 90) + 10;
            let input = Transfer { number: *number, from, to, cents };
            let start = client.start(transfer, input);
            runs.push(start.key(format!("transfer-{number}")).within(&tx)?);
        }
        tx.commit()?;
        for run in &runs {
            run.wake();
        }
        for run in &runs {
            run.result().await?;
        }
        println!("{} transfers are booked", batch[batch.len() - 1] + 1);
    }

    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let sum = number("SELECT sum(cents) FROM bank_accounts")?;
    let underway = number("SELECT count(*) FROM bank_underway")?;
    let done = number("SELECT count(*) FROM bank_done")?;
    println!("{done} transfers, {underway} under way, {sum} cents in all accounts");
    engine.shutdown().await;
    let expected = (i64::from(first + TRANSFERS), 0, i64::from(ACCOUNTS) * CENTS_EACH);
    if (done, underway, sum) != expected {
        return Err(format!("it should be {expected:?}").into());
    }
    Ok(())
}
