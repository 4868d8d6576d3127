//! A schema for a test's engine, and tables of the user's own beside it.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

use everstep::{
    Result,
    store::{PostgresOptions, PostgresStore},
    tokio_postgres::{Client, NoTls, Transaction},
};

#[derive(Clone)]
pub(crate) struct Shop {
    /// Of the engine's schema.
    pub(crate) url: String,
    database: String,
    name: String,
}

impl Shop {
    pub(crate) async fn new() -> Shop {
        let (database, name) = tokio::task::spawn_blocking(|| {
            let database = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
            (database, everstep_pg::fresh_schema())
        })
        .await
        .unwrap();
        let shop = Shop::at(database, name);
        let (log, rows) = (shop.table("log"), shop.table("rows"));
        let (items, parts) = (shop.table("items"), shop.table("parts"));
        let sql = format!(
            "CREATE TABLE {log} (n bigint PRIMARY KEY, what text NOT NULL);
             CREATE TABLE {rows} (n int PRIMARY KEY); INSERT INTO {rows} VALUES (1), (2);
             CREATE TABLE {items} (n int PRIMARY KEY);
             CREATE TABLE {parts} (n int REFERENCES {items} DEFERRABLE INITIALLY DEFERRED);"
        );
        shop.connect().await.batch_execute(&sql).await.unwrap();
        shop
    }

    /// The shop that another process has made.
    pub(crate) fn at(database: String, name: String) -> Shop {
        let sign = if database.contains('?') { '&' } else { '?' };
        Shop { url: format!("{database}{sign}schema={name}"), database, name }
    }

    /// What [`at`](Self::at) needs.
    pub(crate) fn place(&self) -> String {
        format!("{} {}", self.database, self.name)
    }

    /// A store whose leases go by the clock of the test.
    pub(crate) fn store(&self) -> PostgresStore {
        let mut options = PostgresOptions::default();
        options.database_time = false;
        PostgresStore::open_with(&self.url, options).unwrap()
    }

    /// A table of the user's, where the search path of the role finds it.
    pub(crate) fn table(&self, name: &str) -> String {
        format!("{}_{name}", self.name)
    }

    /// A connection of the user's own.
    pub(crate) async fn connect(&self) -> Client {
        connect(&self.database).await
    }

    pub(crate) async fn log(&self) -> Vec<String> {
        let sql = format!("SELECT what FROM {} ORDER BY n", self.table("log"));
        let rows = self.connect().await.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = everstep::tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Adds a row to the user's table; gives its number, which is one more than the last.
pub(crate) async fn add(tx: &Transaction<'_>, shop: &Shop, what: &str) -> Result<i64> {
    let log = shop.table("log");
    let sql =
        format!("INSERT INTO {log} SELECT coalesce(max(n), 0) + 1, $1 FROM {log} RETURNING n");
    Ok(tx.query_one(&sql, &[&what]).await?.try_get(0)?)
}
