//! Several requests that work in one folder, one at a time, and survive `kill -9` at any point.
//!
//! ```text
//! cargo run --release --example workspace_lock
//! cargo run --release --example workspace_lock -- --die-after 5   # dies after its 5th body
//! cargo run --release --example workspace_lock                    # goes on where that one was
//! ```
//!
//! Three requests want the same workspace. One gets it; the others wait in line, without a thread,
//! until the one before them hands the lock over. What they did is in `workspace/trace`.
//!
//! `EVERSTEP_DB` names another file than `workspace_lock.db`, or a database, in which any number of these
//! programs may be at work at once. One that dies is replaced by the others once its lease is over:
//!
//! ```text
//! export EVERSTEP_DB=postgres://postgres@localhost/postgres
//! cargo run --release --features postgres --example workspace_lock -- --die-after 5 &
//! cargo run --release --features postgres --example workspace_lock
//! ```

#[path = "workspace_lock/flow.rs"]
mod flow;
#[path = "workspace_lock/lock.rs"]
mod lock;

use std::{
    env, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

#[cfg(feature = "postgres")]
use everstep::store::PostgresStore;
use everstep::{
    prelude::*,
    store::{SqliteStore, Store, StoreError},
};
use flow::{Boundary, Request, summarize};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let die_after = match arguments.as_slice() {
        [] => usize::MAX,
        [flag, n] if flag == "--die-after" => n.parse()?,
        _ => return Err("say nothing, or `--die-after` and a number".into()),
    };
    fs::create_dir_all("workspace")?;
    fs::write("workspace/a.txt", "the quick brown fox\n")?;
    fs::write("workspace/b.txt", "jumps over\nthe lazy dog\n")?;

    let place = env::var("EVERSTEP_DB").unwrap_or_else(|_| "workspace_lock.db".to_owned());
    let store = open(&place)?;
    store.migrate()?;
    // Bodies hand the lock over with a client of their own, as a lock manager elsewhere would.
    let client = Client::on(store.clone())?;
    let engine = Engine::on(store)
        .provide(client)
        .provide(dying_after(die_after))
        .register(summarize)
        .start()
        .await?;

    // Once all requests are done, the next start makes new ones.
    let ended = engine.client().count().workflow("summarize");
    let ended = ended.status(everstep::RunStatus::Completed).await?;
    let mut runs = Vec::new();
    for n in 1..=3 {
        let request = Request {
            workspace: "workspace".to_owned(),
            request: format!("request-{}", ended / 3 * 3 + n),
        };
        runs.push(engine.client().start(summarize, request).await?);
    }
    for run in &runs {
        println!("{}", run.result().await?.summary);
    }
    print!("{}", fs::read_to_string(Path::new("workspace/trace"))?);
    engine.shutdown().await;
    Ok(())
}

/// A database, if it is a URL, and otherwise a file.
fn open(place: &str) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(feature = "postgres")]
    if place.starts_with("postgres") {
        return Ok(Arc::new(PostgresStore::open(place)?));
    }
    Ok(Arc::new(SqliteStore::create(place)?))
}

/// Kills this process at the end of its n-th body, before the result of that is recorded.
fn dying_after(n: usize) -> Boundary {
    let bodies = AtomicUsize::new(0);
    Boundary(Box::new(move |step| {
        println!("  {} of {}", step.location(), step.run_id());
        if bodies.fetch_add(1, Ordering::SeqCst) + 1 == n {
            std::process::abort();
        }
        Box::pin(async {})
    }))
}
