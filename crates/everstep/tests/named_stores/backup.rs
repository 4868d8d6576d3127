//! A SQLite file is backed up while it is in use, and restored.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use everstep::{
    BackupError, BackupProgress, RunStatus, prelude::*, rusqlite, store::StoreError,
    testing::Ledger,
};

#[workflow]
async fn order(ctx: Ctx, amount: u32) -> Result<u32> {
    let charged = ctx
        .step_with("charge", async |step: Step| {
            step.get::<Ledger>().ran(step.location());
            Ok(amount)
        })
        .await?;
    let tip: u32 = ctx.listen("tip").await?;
    ctx.step_with("book", async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(charged + tip)
    })
    .await
}

#[workflow]
async fn load(ctx: Ctx, n: u32) -> Result<u32> {
    let one = ctx.step("one", async || Ok(n)).await?;
    ctx.step("two", async || Ok(one + 1)).await
}

async fn engine(path: &Path, ledger: &Ledger) -> Engine {
    let engine = Engine::open(path).provide(ledger.clone());
    let started = engine.register(order).register(load).start().await;
    started.unwrap()
}

/// What is in the directory, but for what SQLite keeps beside a file that is in use.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_kept = |name: &String| !(name.ends_with(".db-wal") || name.ends_with(".db-shm"));
    let mut names: Vec<String> = names.filter(is_kept).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_made_under_load_goes_on_without_running_completed_steps_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let ledger = Ledger::new();
    let first = engine(&at("app.db"), &ledger).await;
    let client = first.client();
    let mut orders = Vec::new();
    for amount in 0..20 {
        orders.push(client.start(order, amount).await.unwrap());
    }
    for run in &orders {
        // Its first step is recorded when it waits for the message.
        while run.info().await.unwrap().waiting.is_none() {
            tokio::task::yield_now().await;
        }
    }
    let (more, stop) = (client.clone(), Arc::new(AtomicBool::new(false)));
    let (stopped, started) = (stop.clone(), Arc::new(AtomicU32::new(0)));
    let counted = started.clone();
    let busy = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            let n = counted.fetch_add(1, Ordering::Relaxed);
            more.start(load, n).await.unwrap().result().await.unwrap();
        }
    });
    while started.load(Ordering::Relaxed) < 10 {
        tokio::task::yield_now().await;
    }
    let pages = Arc::new(AtomicU32::new(0));
    let seen = pages.clone();
    let backup = client
        .backup(at("copy.db"))
        .progress(move |now: BackupProgress| {
            assert!(now.copied <= now.total);
            seen.store(now.copied as u32, Ordering::Relaxed);
        })
        .await
        .unwrap();
    assert!(backup.is_sound(), "{backup:?}");
    assert!(pages.load(Ordering::Relaxed) > 0);
    assert_eq!(backup.bytes, std::fs::metadata(at("copy.db")).unwrap().len());
    // The writer was not held up: the load went on, and what came after is not in the copy.
    let before = started.load(Ordering::Relaxed);
    while started.load(Ordering::Relaxed) < before + 5 {
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    busy.await.unwrap();
    let late = client.start(order, 99).await.unwrap().id();
    first.shutdown().await;

    let restored = everstep::restore(at("copy.db"), at("restored.db")).await.unwrap();
    assert!(restored.is_sound(), "{restored:?}");
    let ledger = Ledger::new();
    let second = engine(&at("restored.db"), &ledger).await;
    let client = second.client();
    assert!(client.get(late).await.unwrap().is_none());
    for (amount, run) in orders.iter().enumerate() {
        let run = client.get_typed(order, run.id()).await.unwrap().unwrap();
        run.send("tip", &1000u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 1000 + amount as u32);
    }
    assert_eq!((ledger.count("charge"), ledger.count("book")), (0, 20));
    // What the load had begun goes on, too.
    let all = client.count().workflow("load").await.unwrap();
    let ended = || client.count().workflow("load").status(RunStatus::Completed);
    while ended().await.unwrap() < all {
        tokio::task::yield_now().await;
    }
    assert!(client.doctor().await.unwrap().findings.is_empty());
    second.shutdown().await;
    assert_eq!(names(dir.path()), ["app.db", "copy.db", "restored.db"]);
}

/// The runner of the file was alive when it was copied. An engine on the copy waited for the end of
/// its lease, and woke it through its socket.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_on_a_copy_does_not_wait_for_the_runners_of_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("app.db"), dir.path().join("copy.db"));
    let first = engine(&path, &Ledger::new()).await;
    let run = first.client().start(order, 1).await.unwrap();
    first.client().backup(&copy).await.unwrap();
    let second = engine(&copy, &Ledger::new()).await;
    assert_eq!(second.client().cluster().await.unwrap().runners.len(), 1);
    let same = second.client().get_typed(order, run.id()).await.unwrap().unwrap();
    same.send("tip", &2u32).await.unwrap();
    assert_eq!(same.result().await.unwrap(), 3);
    run.send("tip", &5u32).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 6);
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_overwritten_and_nothing_half_made_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let one = engine(&at("app.db"), &Ledger::new()).await;
    let client = one.client();
    client.backup(at("copy.db")).await.unwrap();
    let exists = |error: BackupError, name: &str| match error {
        BackupError::Exists { path } => assert_eq!(path, at(name)),
        other => panic!("{other}"),
    };
    exists(client.backup(at("copy.db")).await.unwrap_err(), "copy.db");
    exists(client.backup(at("app.db")).await.unwrap_err(), "app.db");
    // The file is in use: it is no backup.
    let error = everstep::restore(at("app.db"), at("other.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::InUse { .. }), "{error}");
    let error = client.backup(at("nowhere/copy.db")).await.unwrap_err();
    assert!(
        matches!(&error, BackupError::File { path, .. } if *path == at("nowhere/copy.db")),
        "{error}"
    );
    one.shutdown().await;
    exists(everstep::restore(at("copy.db"), at("app.db")).await.unwrap_err(), "app.db");
    // A log that is left over would be applied to the restored file.
    for suffix in ["-wal", "-shm", "-journal"] {
        let left: PathBuf = at(&format!("new.db{suffix}"));
        std::fs::write(&left, b"left over").unwrap();
        let error = everstep::restore(at("copy.db"), at("new.db")).await.unwrap_err();
        exists(error, &format!("new.db{suffix}"));
        std::fs::remove_file(left).unwrap();
    }
    // Neither what is no database of ours nor what is damaged gets a name.
    std::fs::write(at("notes.txt"), b"not a database, but long enough to be taken for one")
        .unwrap();
    let error = everstep::restore(at("notes.txt"), at("new.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::Foreign { .. })), "{error}");
    // An empty file, which a copy leaves that was broken off, was restored as a database without runs.
    std::fs::write(at("empty.db"), b"").unwrap();
    let error = everstep::restore(at("empty.db"), at("new.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::Foreign { .. })), "{error}");
    std::fs::remove_file(at("empty.db")).unwrap();
    let error = everstep::restore(dir.path(), at("new.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::File { act: "read", .. }), "{error}");
    let mut bytes = std::fs::read(at("copy.db")).unwrap();
    let len = bytes.len();
    bytes[8_192..len.min(80_000)].fill(0x5A);
    std::fs::write(at("damaged.db"), bytes).unwrap();
    let error = everstep::restore(at("damaged.db"), at("new.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::Store(StoreError::Corrupt { .. })), "{error}");
    let left = ["app.db", "copy.db", "damaged.db", "notes.txt"];
    assert_eq!(names(dir.path()), left);
}

/// A backup of a file that only its owner could read was open to everybody.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_the_mode_of_its_original() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    let first = engine(&at("app.db"), &Ledger::new()).await;
    for (name, wanted) in [("a.db", 0o600), ("b.db", 0o660), ("c.db", 0o644)] {
        fs::set_permissions(at("app.db"), fs::Permissions::from_mode(wanted)).unwrap();
        let client = first.client();
        let partial = at(name);
        let backup = client.backup(at(name)).progress(move |_| {
            let copies = fs::read_dir(partial.parent().unwrap()).unwrap();
            let copies = copies.map(|entry| entry.unwrap().path());
            for copy in copies.filter(|path| path.to_string_lossy().contains("-partial-")) {
                let mode = fs::metadata(copy).unwrap().permissions().mode();
                assert_eq!(mode & 0o777 & !wanted, 0, "nobody else reads it meanwhile");
            }
        });
        backup.await.unwrap();
        assert_eq!(mode(name), wanted);
    }
    first.shutdown().await;
    // A backup that nobody is to change makes a file that its owner can work on.
    fs::set_permissions(at("a.db"), fs::Permissions::from_mode(0o400)).unwrap();
    everstep::restore(at("a.db"), at("restored.db")).await.unwrap();
    assert_eq!(mode("restored.db"), 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_has_the_tables_of_the_user_with_their_row_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("app.db"), dir.path().join("copy.db"));
    let one = engine(&path, &Ledger::new()).await;
    let sql = "CREATE TABLE shop (what TEXT); INSERT INTO shop (rowid, what) VALUES (7, 'tea'), (9, 'cup')";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    one.client().backup(&copy).await.unwrap();
    one.shutdown().await;
    let conn = rusqlite::Connection::open(&copy).unwrap();
    let row = conn.query_row("SELECT max(rowid), what FROM shop", [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    });
    assert_eq!(row.unwrap(), (9, "cup".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_no_file_says_how_it_is_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let one = Engine::in_memory().start().await.unwrap();
    let error = one.client().backup(dir.path().join("copy.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("pg_dump"), "{error}");
    one.shutdown().await;
    assert!(names(dir.path()).is_empty());
}
