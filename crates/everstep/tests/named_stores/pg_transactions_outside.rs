//! Starts and messages as part of the user's own transaction in PostgreSQL, and transactions from
//! outside: many at once, a process that is killed.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)]

use crate::pg_shop;
use crate::scenario;

use std::{sync::Arc, time::Duration};

use everstep::{
    ClientError, EngineBuilder, RunStatus, Sent,
    prelude::*,
    tokio_postgres::{self, IsolationLevel},
};
use pg_shop::{Shop, add, connect};
use scenario::{until, until_status};

const SHIP: Workflow<u32, u32> = Workflow::new("ship");
const PAY: Workflow<u32, u32> = Workflow::new("pay");
const SUM: Workflow<u32, u32> = Workflow::new("sum");

fn builder(shop: &Shop) -> EngineBuilder {
    let shop = shop.clone();
    Engine::open(&shop.url)
        .settings(|s| s.lease = Duration::from_secs(2))
        .register_fn(SHIP, |ctx, order| async move {
            let parcel: u32 = ctx.listen("packed").await?;
            Ok(order + parcel)
        })
        .register_fn(PAY, move |ctx: Ctx, n: u32| {
            let shop = shop.clone();
            async move {
                for _ in 0..3 {
                    let shop = shop.clone();
                    ctx.pg_transaction("pay", async move |tx| {
                        let sql = format!("INSERT INTO {} VALUES ($1)", shop.table("paid"));
                        tx.execute(&sql, &[&i64::from(n)]).await?;
                        Ok(())
                    })
                    .await?;
                }
                Ok(n)
            }
        })
        .register_fn(SUM, |ctx, count| async move {
            let mut sum = 0;
            for _ in 0..count {
                sum += ctx.listen::<u32>("number").await?;
            }
            Ok(sum)
        })
}

async fn paid(shop: &Shop, user: &tokio_postgres::Client) -> u32 {
    let sql = format!("SELECT count(*) FROM {}", shop.table("paid"));
    let count: i64 = user.query_one(&sql, &[]).await.unwrap().get(0);
    u32::try_from(count).unwrap()
}

async fn search_path(tx: &tokio_postgres::Transaction<'_>) -> String {
    tx.query_one("SHOW search_path", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_started_in_a_transaction_is_there_when_that_is_committed() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let mut user = shop.connect().await;
    let tx = user.transaction().await.unwrap();
    let path = search_path(&tx).await;
    add(&tx, &shop, "order").await.unwrap();
    let run = client.start_in(&tx, SHIP, 40).await.unwrap();
    assert!(!run.attached());
    let sent = client.send_in(&tx, run.id(), "packed", &2).await.unwrap();
    assert_eq!(sent, Sent::Delivered);
    assert_eq!(search_path(&tx).await, path, "it is the user's again");
    let unseen = client.get(run.id()).await.unwrap();
    assert!(unseen.is_none(), "nobody sees it before the commit");
    tx.commit().await.unwrap();
    run.wake();
    assert_eq!(run.result().await.unwrap(), 42);
    assert_eq!(shop.log().await, ["order"]);
    engine.shutdown().await;
}

/// With `off` the commit of the user's transaction did not wait for the disk: a run whose start was
/// confirmed was lost with the power.
#[tokio::test(flavor = "multi_thread")]
async fn the_commit_of_a_transaction_that_starts_a_run_waits_for_the_disk() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let mut user = shop.connect().await;
    for level in ["off", "local", "remote_apply"] {
        let tx = user.transaction().await.unwrap();
        tx.batch_execute(&format!("SET LOCAL synchronous_commit TO {level}")).await.unwrap();
        client.start_in(&tx, SHIP, 1).await.unwrap();
        let now: String = tx.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
        let wanted = if level == "remote_apply" { level } else { "on" };
        assert_eq!(now, wanted);
        tx.rollback().await.unwrap();
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_rolled_back_leaves_nothing() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let waiting = client.start(SHIP, 1).key("waiting").await.unwrap();
    until_status(&waiting, RunStatus::Sleeping).await;
    let mut user = shop.connect().await;
    let tx = user.transaction().await.unwrap();
    let gone = client.start(SHIP, 1).key("order-1").within(&tx);
    let gone = gone.await.unwrap();
    client.send_in(&tx, waiting.id(), "packed", &1).await.unwrap();
    tx.rollback().await.unwrap();
    gone.wake();
    assert!(client.get(gone.id()).await.unwrap().is_none());
    assert_eq!(waiting.info().await.unwrap().status, RunStatus::Sleeping);
    // The key is free, and the number of the message is given again.
    let run = client.start(SHIP, 5).key("order-1").await.unwrap();
    assert!(!run.attached());
    for run in [&run, &waiting] {
        run.send("packed", &10).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), 15);
    assert_eq!(waiting.result().await.unwrap(), 11);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_dedupes_and_receipts_are_as_honest_as_elsewhere() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let first = client.start(SHIP, 1).key("order-1").await.unwrap();
    let ended = client.start(SUM, 0).await.unwrap();
    ended.result().await.unwrap();
    let mut user = shop.connect().await;
    let tx = user.transaction().await.unwrap();
    let start = |key: &str| client.start(SHIP, 2).key(key).within(&tx);
    let again = start("order-1").await.unwrap();
    assert!(again.attached() && again.input_differs());
    assert_eq!(again.id(), first.id());
    let new = start("order-2").await.unwrap();
    let twice = start("order-2").await.unwrap();
    assert_eq!((new.id(), twice.attached()), (twice.id(), true));
    let send = || client.send(first.id(), "packed", &1).dedupe("once");
    assert_eq!(send().within(&tx).await.unwrap(), Sent::Delivered);
    assert_eq!(send().within(&tx).await.unwrap(), Sent::Duplicate);
    let error = client.send_in(&tx, ended.id(), "packed", &1).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ClientError::Finished { .. }), "{error}");
    let nobody = client.send_in(&tx, ("ship", "nobody"), "packed", &1);
    let error = nobody.await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownRun { .. }), "{error}");
    tx.commit().await.unwrap();
    first.wake();
    assert_eq!(send().await.unwrap(), Sent::Duplicate);
    assert_eq!(first.result().await.unwrap(), 2);
    new.send("packed", &1).await.unwrap();
    assert_eq!(new.result().await.unwrap(), 3);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_elsewhere_or_sees_too_little_is_refused_and_goes_on() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let mut user = shop.connect().await;

    let other = shop.table("other");
    user.batch_execute(&format!("CREATE DATABASE {other}")).await.unwrap();
    let url = everstep_pg::database_url().unwrap();
    let (server, options) = url.split_once('?').unwrap_or((&url, ""));
    let (server, _) = server.rsplit_once('/').unwrap();
    let elsewhere = connect(&format!("{server}/{other}?{options}")).await;
    {
        let mut elsewhere = elsewhere;
        let tx = elsewhere.transaction().await.unwrap();
        let error = client.start_in(&tx, SHIP, 1).await.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(&format!("`{other}`")), "{cause}");
        tx.query_one("SELECT 1", &[]).await.unwrap();
        tx.commit().await.unwrap();
    }
    let gone = format!("DROP DATABASE {other} WITH (FORCE)");
    user.batch_execute(&gone).await.unwrap();

    let strict = user.build_transaction().isolation_level(IsolationLevel::Serializable);
    let tx = strict.start().await.unwrap();
    let error = client.start_in(&tx, SHIP, 1).await.unwrap_err();
    let cause = causes(&error);
    assert!(cause.contains("read committed"), "{cause}");
    add(&tx, &shop, "it goes on").await.unwrap();
    tx.commit().await.unwrap();

    let memory = everstep::testing::engine().start().await.unwrap();
    let tx = user.transaction().await.unwrap();
    let error = memory.client().start_in(&tx, SHIP, 1).await.unwrap_err();
    assert!(matches!(error, ClientError::Store(_)), "{error}");
    add(&tx, &shop, "it goes on").await.unwrap();
    tx.commit().await.unwrap();
    memory.shutdown().await;
    assert_eq!(shop.log().await.len(), 2);
    assert_eq!(client.count().await.unwrap(), 0);
    engine.shutdown().await;
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// A future that is dropped while it waits for the server must not leave half of a batch, or the
/// search path of everstep, in the transaction of the user.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_given_up_half_way_is_taken_back() {
    let shop = Shop::new().await;
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let mut user = shop.connect().await;
    let tx = user.transaction().await.unwrap();
    let path = search_path(&tx).await;
    let mut given_up = 0;
    for polls in 1..200 {
        let mut start = client.start_in(&tx, SHIP, 1);
        let mut left = polls;
        let polled = std::future::poll_fn(|cx| match start.as_mut().poll(cx) {
            std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
            std::task::Poll::Pending => {
                left -= 1;
                match left {
                    0 => std::task::Poll::Ready(false),
                    _ => std::task::Poll::Pending,
                }
            }
        });
        if polled.await {
            break;
        }
        given_up += 1;
        drop(start);
        assert_eq!(search_path(&tx).await, path, "after {polls} polls");
    }
    assert!(given_up > 3, "{given_up}");
    assert_eq!(search_path(&tx).await, path);
    add(&tx, &shop, "it goes on").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.log().await, ["it goes on"]);
    assert_eq!(client.count().await.unwrap(), 1, "only the last is started");
    engine.shutdown().await;
}

/// In both orders: the server ends one of two transactions that wait for each other, and whoever is
/// told so makes it again.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_many_transactions_at_once_to_runs_that_are_at_work_all_arrive() {
    const USERS: u32 = 4;
    const ROUNDS: u32 = 6;
    let shop = Arc::new(Shop::new().await);
    let engine = builder(&shop).start().await.unwrap();
    let client = engine.client();
    let expected = USERS * ROUNDS;
    let runs =
        [client.start(SUM, expected).await.unwrap(), client.start(SUM, expected).await.unwrap()];
    let ids = [runs[0].id(), runs[1].id()];
    let users = (0..USERS).map(|n| {
        let (shop, client) = (shop.clone(), client.clone());
        tokio::spawn(async move {
            let mut user = shop.connect().await;
            let sql = "SET deadlock_timeout TO '20ms'";
            user.batch_execute(sql).await.unwrap();
            for round in 0..ROUNDS {
                let mut order = ids;
                if (n + round) % 2 == 0 {
                    order.reverse();
                }
                loop {
                    let tx = user.transaction().await.unwrap();
                    let first = client.send_in(&tx, order[0], "number", &1).await;
                    let second = client.send_in(&tx, order[1], "number", &1).await;
                    match first.and(second) {
                        Ok(_) => break tx.commit().await.unwrap(),
                        Err(error) => {
                            let text = causes(&error);
                            assert!(text.contains("roll yours back"), "{text}");
                            tx.rollback().await.unwrap();
                        }
                    }
                }
            }
        })
    });
    for user in futures::future::join_all(users).await {
        user.unwrap();
    }
    for run in &runs {
        run.wake();
        assert_eq!(run.result().await.unwrap(), expected);
    }
    engine.shutdown().await;
}

const CHILD: &str = "EVERSTEP_TEST_KILLED_PROCESS";

/// The second process is killed while it pays; the next goes on with its runs.
#[cfg(unix)]
#[test]
fn a_process_that_is_killed_while_it_pays_has_paid_once() {
    let name = "a_process_that_is_killed_while_it_pays_has_paid_once";
    if let Ok(place) = std::env::var(CHILD) {
        return scenario::runtime().block_on(async move {
            let (database, schema) = place.split_once(' ').unwrap();
            let shop = Shop::at(database.to_owned(), schema.to_owned());
            let engine = builder(&shop).start().await.unwrap();
            for n in 0..400 {
                let key = format!("order-{n}");
                engine.client().start(PAY, n).key(key).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
    }
    scenario::runtime().block_on(async {
        let shop = Shop::new().await;
        let user = shop.connect().await;
        let sql = format!("CREATE TABLE {} (n bigint)", shop.table("paid"));
        user.batch_execute(&sql).await.unwrap();
        // Makes the tables.
        builder(&shop).start().await.unwrap().shutdown().await;
        for kill in 1..=4u32 {
            let mut child = scenario::second_process(module_path!(), name, CHILD, &shop.place());
            let enough = paid(&shop, &user).await + 30 * kill;
            until("some payments", async || (paid(&shop, &user).await >= enough).then_some(()))
                .await;
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let engine = builder(&shop).start().await.unwrap();
        let client = engine.client();
        let started = client.count().await.unwrap();
        until("all runs to end", async || {
            let done = client.count().status(RunStatus::Completed).await.unwrap();
            (done == started).then_some(())
        })
        .await;
        assert!(started > 0);
        assert_eq!(u64::from(paid(&shop, &user).await), 3 * started);
        let sql = format!(
            "SELECT count(*) FROM (SELECT n FROM {} GROUP BY n HAVING count(*) <> 3) AS wrong",
            shop.table("paid")
        );
        let wrong: i64 = user.query_one(&sql, &[]).await.unwrap().get(0);
        assert_eq!(wrong, 0);
        println!("4 kills, {started} runs, each has paid three times");
        engine.shutdown().await;
    });
}
