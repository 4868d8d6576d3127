//! What an engine says before it starts.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use everstep::{Engine, Workflow, store::MemoryStore};

const FIRST: Workflow<(), ()> = Workflow::new("greet");
const SECOND: Workflow<(), ()> = Workflow::new("greet").version(2);
const OTHER: Workflow<(), ()> = Workflow::new("adieu");

#[test]
fn each_workflow_is_named_with_its_newest_version() {
    let engine = Engine::in_memory()
        .register_fn(FIRST, async |_, ()| Ok(()))
        .register_fn(SECOND, async |_, ()| Ok(()))
        .register_fn(OTHER, async |_, ()| Ok(()));
    let named = [("adieu".to_owned(), 1), ("greet".to_owned(), 2)];
    assert_eq!(engine.workflows(), named);
}

#[tokio::test]
async fn client_is_on_the_store_that_the_engine_will_have() {
    let store = Arc::new(MemoryStore::new());
    let builder = Engine::on(store).register_fn(FIRST, async |_, ()| Ok(()));
    let client = builder.client().await.unwrap();
    let run = client.start(FIRST, ()).await.unwrap();
    let engine = builder.start().await.unwrap();
    let found = engine.client().run::<()>(run.id());
    found.result().await.unwrap();
    engine.shutdown().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn engine_is_put_elsewhere_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("app.db");
    let engine = Engine::in_memory().at(&place).start().await.unwrap();
    engine.shutdown().await;
    assert!(place.exists());
}
