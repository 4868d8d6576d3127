//! The audit log and the tokens of the HTTP API, as a server uses them.
#![allow(clippy::unwrap_used)]

use crate::stores;

use everstep::{
    AuditNew, Client, ClientError, Role, minutes, seconds,
    testing::{self, VirtualClock},
};
use stores::on_each_store;

#[tokio::test]
async fn what_is_done_is_in_the_audit_log_with_and_without_an_outcome() {
    on_each_store(async |place| {
        let engine = place.engine().clock(VirtualClock::new()).start().await.unwrap();
        let audit = engine.client().audit();
        let cancel = AuditNew::new("ada", "cancel").target("run-1").detail("{}");
        let first = audit.begin(cancel).await.unwrap();
        let second = audit.begin(AuditNew::new("bob", "bulk")).await.unwrap();
        assert!(audit.end(first, "done").await.unwrap());
        assert!(!audit.end(first, "failed").await.unwrap(), "it has ended");
        let page = audit.list(None, 1).await.unwrap();
        assert_eq!(page.entries[0].who, "bob");
        assert_eq!(page.entries[0].outcome, None, "its end was not noted");
        let rest = audit.list(page.next, 1).await.unwrap();
        let entry = &rest.entries[0];
        assert_eq!((entry.no, &*entry.action, &*entry.target), (first, "cancel", "run-1"));
        assert_eq!(entry.outcome.as_deref(), Some("done"));
        assert_eq!(rest.next, None);
        assert!(second > first);
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_token_is_known_by_its_secret_alone_until_it_is_revoked() {
    on_each_store(async |place| {
        let clock = VirtualClock::new();
        let engine = place.engine().clock(clock.clone()).start().await.unwrap();
        let tokens = engine.client().tokens();
        let (info, secret) = tokens.create("ci", Role::Operate).await.unwrap();
        let (_, other) = tokens.create("boss", Role::Admin).await.unwrap();
        assert_eq!(info.last_used_at, None);
        let names: Vec<String> =
            tokens.list().await.unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["boss", "ci"]);
        let known = tokens.check(secret.as_str()).await.unwrap().unwrap();
        assert_eq!((&*known.name, known.role), ("ci", Role::Operate));
        let boss = tokens.check(other.as_str()).await.unwrap().unwrap();
        assert_eq!((&*boss.name, boss.role), ("boss", Role::Admin));
        for wrong in ["", "ci", "evs_", &secret.as_str()[..20]] {
            assert_eq!(tokens.check(wrong).await.unwrap(), None, "{wrong}");
        }
        let taken = tokens.create("ci", Role::Admin).await.unwrap_err();
        assert!(matches!(taken, ClientError::TokenTaken { .. }), "{taken:?}");
        assert!(tokens.revoke("ci").await.unwrap());
        assert!(!tokens.revoke("ci").await.unwrap());
        assert_eq!(tokens.check(secret.as_str()).await.unwrap(), None);
        assert!(tokens.check(other.as_str()).await.unwrap().is_some());
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn a_use_of_a_token_is_noted_once_a_minute() {
    on_each_store(async |place| {
        let clock = VirtualClock::new();
        let engine = place.engine().clock(clock.clone()).start().await.unwrap();
        let tokens = engine.client().tokens();
        let (_, secret) = tokens.create("ci", Role::Read).await.unwrap();
        let used = async || {
            tokens.check(secret.as_str()).await.unwrap().unwrap();
            tokens.list().await.unwrap()[0].last_used_at.unwrap()
        };
        let first = used().await;
        clock.advance(seconds(59));
        assert_eq!(used().await, first);
        clock.advance(minutes(1));
        assert!(used().await > first);
        engine.shutdown().await;
    })
    .await;
}

#[cfg(all(feature = "sqlite", feature = "postgres"))]
#[tokio::test]
async fn a_move_to_postgresql_takes_the_audit_log_and_the_tokens_along() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.db");
    let engine = everstep::Engine::open(&file).start().await.unwrap();
    let client = engine.client();
    let first = client.audit().begin(AuditNew::new("ada", "cancel")).await.unwrap();
    let last = client.audit().begin(AuditNew::new("ada", "pause")).await.unwrap();
    client.audit().end(first, "done").await.unwrap();
    let (_, secret) = client.tokens().create("ci", Role::Operate).await.unwrap();
    let before = client.audit().list(None, 9).await.unwrap().entries;
    engine.shutdown().await;
    drop(client);
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    everstep::migrate(&file, &url).await.unwrap();
    let client = Client::open(&url).await.unwrap();
    assert_eq!(client.audit().list(None, 9).await.unwrap().entries, before);
    let known = client.tokens().check(secret.as_str()).await.unwrap().unwrap();
    assert_eq!((&*known.name, known.role), ("ci", Role::Operate));
    // Numbers go on where they were.
    let next = client.audit().begin(AuditNew::new("bob", "resume")).await.unwrap();
    assert_eq!(next, last + 1);
    testing::ran_on("SQLite");
    testing::ran_on("PostgreSQL");
}
