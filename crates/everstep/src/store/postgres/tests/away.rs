//! The database goes away, in every way that a network and a server have.

use std::{
    net::TcpListener,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicUsize},
        mpsc,
    },
    thread,
};

use everstep_pg::{Instance, Proxy, Session as Direct, Shutdown, Which, fresh_schema, url_of_all};

use super::*;

/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server for the tests that leave it running.
pub(super) fn server() -> &'static Instance {
    static SERVER: OnceLock<Instance> = OnceLock::new();
    SERVER.get_or_init(|| Instance::start_new().unwrap_or_else(|error| panic!("{error}")))
}

/// A store whose network can be told what to do, with a table of its own.
struct World {
    proxy: Proxy,
    store: PostgresStore,
    schema: String,
    direct: Direct,
}

impl World {
    fn new() -> World {
        World::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut PostgresOptions)) -> World {
        let proxy = Proxy::start_before(server().address()).unwrap();
        let schema = fresh_schema();
        let mut options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
        change(&mut options);
        let store = PostgresStore::open_with(&proxy.url_for("postgres"), options).unwrap();
        store.migrate().unwrap();
        let mut direct = server().session().unwrap();
        let make = format!(
            "SET search_path TO {schema}; CREATE TABLE noted (what text NOT NULL); \
             CREATE TABLE pair (name text PRIMARY KEY); INSERT INTO pair VALUES ('a'), ('b')"
        );
        direct.query(&make).unwrap();
        World { proxy, store, schema, direct }
    }

    /// Notes something in one round trip; how often it was tried.
    fn note(&self, what: &'static str) -> Result<u32, StoreError> {
        let mut goes = 0;
        self.store.transact(|session, _| {
            goes += 1;
            session.execute("INSERT INTO noted VALUES ($1)", params![what.to_owned()]);
            Ok(())
        })?;
        Ok(goes)
    }

    fn noted(&mut self, what: &str) -> String {
        let sql = format!("SELECT count(*) FROM noted WHERE what = '{what}'");
        self.direct.value(&sql).unwrap()
    }

    /// The connections that are open now.
    fn open(&self) -> Vec<usize> {
        let all = self.proxy.connections();
        let open = all.iter().filter(|it| it.open);
        open.map(|it| it.number).collect()
    }

    fn settled(&self) -> u64 {
        self.store.unknown_outcomes_settled()
    }
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The process at the server that waits for a lock.
fn waits_for_lock(observer: &mut Direct, process: u32) -> bool {
    let sql = format!("SELECT count(*) FROM pg_locks WHERE pid = {process} AND NOT granted");
    observer.value(&sql).unwrap() == "1"
}

#[test]
fn a_connection_that_is_lost_while_idle_is_replaced() {
    let mut world = World::new();
    world.note("before").unwrap();
    for lost in ["one", "two", "three"] {
        world.proxy.cut(&Which::All);
        world.note(lost).unwrap();
        world.proxy.cut(&Which::All);
        assert!(world.store.runners().unwrap().is_empty());
        assert_eq!(world.noted(lost), "1");
    }
}

#[test]
fn a_connection_that_is_lost_before_the_commit_is_replaced() {
    let mut world = World::new();
    for again in [true, false] {
        let mut goes = 0;
        let what = if again { "read" } else { "commit" };
        let World { store, proxy, .. } = &world;
        let done = store.transact(|session, _| {
            goes += 1;
            session.execute("INSERT INTO noted VALUES ($1)", params![what]);
            session.exists("SELECT 1", &[])?;
            if goes == 1 {
                proxy.cut(&Which::All);
                if again {
                    session.exists("SELECT 2", &[])?;
                }
            }
            Ok(())
        });
        done.unwrap();
        assert_eq!((goes, world.noted(what)), (2, "1".to_owned()));
    }
    // Only the second had a commit on its way.
    assert_eq!(world.settled(), 1);
}

#[test]
fn a_commit_that_has_not_landed_is_made_again_once() {
    let mut world = World::new();
    world.note("before").unwrap();
    let held: Vec<Which> = world.open().into_iter().map(Which::Number).collect();
    held.iter().for_each(|it| world.proxy.hold(it.clone()));
    thread::scope(|scope| {
        let noting = scope.spawn(|| world.note("it").unwrap());
        let waits = |connections: &[everstep_pg::Connection]| {
            connections.iter().any(|it| it.requests_held > 0)
        };
        assert!(world.proxy.wait_until(PATIENCE, waits));
        world.proxy.cut(&Which::All);
        assert_eq!(noting.join().unwrap(), 2);
    });
    assert_eq!((world.noted("it").as_str(), world.settled()), ("1", 1));
}

#[test]
fn a_commit_that_has_landed_is_acknowledged_and_not_made_again() {
    let mut world = World::new();
    world.note("before").unwrap();
    let held: Vec<Which> = world.open().into_iter().map(Which::Number).collect();
    let World { proxy, direct, store, .. } = &mut world;
    let (proxy, store) = (&*proxy, &*store);
    held.iter().for_each(|it| proxy.hold_replies(it.clone()));
    let mut look = || direct.value("SELECT count(*) FROM noted WHERE what = 'it'");
    thread::scope(|scope| {
        let noting = scope.spawn(|| {
            let mut goes = 0;
            let done = store.transact(|session, _| {
                goes += 1;
                // As in `note`: it was prepared before, so that it takes one round trip.
                session.execute("INSERT INTO noted VALUES ($1)", params!["it"]);
                Ok(())
            });
            done.map(|()| goes).unwrap()
        });
        until("it has landed", || look().unwrap() == "1");
        proxy.cut(&Which::All);
        assert_eq!(noting.join().unwrap(), 1);
    });
    assert_eq!((world.noted("it").as_str(), world.settled()), ("1", 1));
}

/// A batch that was on its way for so long that its outcome was looked for, and that arrives after
/// all: behind a pooler nobody may end the session that it comes by.
#[test]
fn a_batch_that_arrives_after_it_was_settled_is_refused() {
    let mut world = World::with(|options| options.pooled = true);
    world.note("before").unwrap();
    let held: Vec<Which> = world.open().into_iter().map(Which::Number).collect();
    held.iter().for_each(|it| world.proxy.hold(it.clone()));
    thread::scope(|scope| {
        let noting = scope.spawn(|| world.note("it").unwrap());
        let waits = |connections: &[everstep_pg::Connection]| {
            connections.iter().any(|it| it.requests_held > 0)
        };
        assert!(world.proxy.wait_until(PATIENCE, waits));
        held.iter().for_each(|it| world.proxy.cut_client(it));
        assert_eq!(noting.join().unwrap(), 2);
    });
    assert_eq!(world.noted("it"), "1");
    let refusals = "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' \
                    AND application_name = 'everstep'";
    world.proxy.release_all();
    let arrived = |connections: &[everstep_pg::Connection]| {
        let of_old = connections.iter().filter(|it| held.contains(&Which::Number(it.number)));
        of_old.into_iter().all(|it| !it.open)
    };
    assert!(world.proxy.wait_until(PATIENCE, arrived));
    until("it was looked at", || world.direct.value(refusals).unwrap() == "0");
    assert_eq!((world.noted("it").as_str(), world.settled()), ("1", 1));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_after_its_patience() {
    let world = World::with(|options| options.patience = Duration::from_millis(300));
    world.note("before").unwrap();
    world.proxy.hold_replies(Which::All);
    let begun = Instant::now();
    let error = world.store.runners().unwrap_err();
    assert_eq!(error.reaction(), Reaction::Retry);
    // Twice its patience and once the limit of a connection, not once more for each round trip.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    world.proxy.release_all();
    world.store.runners().unwrap();
}

#[test]
fn a_deadlock_is_made_again() {
    let mut world = World::new();
    let mut observer = server().session().unwrap();
    let other = &mut world.direct;
    let lock = |name: &str| format!("SELECT FROM pair WHERE name = '{name}' FOR UPDATE");
    // So that we are the one who is chosen.
    other.query("SET deadlock_timeout = '1h'; BEGIN").unwrap();
    other.query(&lock("b")).unwrap();
    let process = other.process();
    let mut goes = 0;
    let store = &world.store;
    store
        .transact(|session, _| {
            goes += 1;
            if goes == 2 {
                other.receive().unwrap();
                other.query("COMMIT").unwrap();
            }
            session.exists(lock("a"), &[])?;
            if goes == 1 {
                other.send(&lock("a")).unwrap();
                until("the other waits", || waits_for_lock(&mut observer, process));
            }
            session.exists(lock("b"), &[])?;
            session.execute("INSERT INTO noted VALUES ('it')", &[]);
            Ok(())
        })
        .unwrap();
    assert_eq!((goes, world.noted("it")), (2, "1".to_owned()));
}

#[test]
fn a_serialization_failure_is_made_again_and_not_for_ever() {
    let mut world = World::new();
    let fail = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$";
    for (failures, is_done) in [(3, true), (u32::MAX, false)] {
        let mut goes = 0;
        let done = world.store.transact(|session, _| {
            goes += 1;
            session.execute("INSERT INTO noted VALUES ('it')", &[]);
            if goes <= failures {
                session.execute_now(fail, &[])?;
            }
            Ok(())
        });
        match done {
            Ok(()) => assert_eq!((is_done, goes), (true, 4)),
            Err(error) => {
                assert_eq!((is_done, goes), (false, GOES));
                assert_eq!(error.reaction(), Reaction::Retry);
            }
        }
    }
    assert_eq!(world.noted("it"), "1");
}

#[test]
fn batches_are_read_committed_whatever_the_role_says() {
    let world = World::new();
    let mut direct = server().session().unwrap();
    let schema = &world.schema;
    let sql = format!(
        "CREATE ROLE {schema} LOGIN SUPERUSER; \
         ALTER ROLE {schema} SET default_transaction_isolation = 'serializable'; \
         ALTER ROLE {schema} SET synchronous_commit = 'off'; \
         ALTER ROLE {schema} SET statement_timeout = '1h'"
    );
    direct.query(&sql).unwrap();
    for pooled in ["false", "true"] {
        let address = server().address();
        let url = format!("postgres://{schema}@{address}/postgres?schema={schema}&pooled={pooled}");
        let store = PostgresStore::open(&url).unwrap();
        let said = store.write(|session| {
            let sql = "SELECT current_setting('transaction_isolation') || ' ' \
                       || current_setting('synchronous_commit') || ' ' \
                       || current_setting('statement_timeout')";
            session.row(sql, &[], |row| row.get::<String>(0))
        });
        assert_eq!(said.unwrap().as_deref(), Some("read committed on 0"));
    }
}

#[test]
fn no_room_for_another_connection_is_waited_for() {
    let mut world = World::new();
    let schema = world.schema.clone();
    let sql = format!(
        "CREATE ROLE {schema} LOGIN CONNECTION LIMIT 2; \
         GRANT ALL ON SCHEMA {schema} TO {schema}; \
         GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {schema}"
    );
    world.direct.query(&sql).unwrap();
    let address = server().address();
    let url = format!("postgres://{schema}@{address}/postgres?schema={schema}");
    let store = PostgresStore::open(&url).unwrap();
    store.drop_idle();
    let others = || Direct::open(address, &schema, "postgres", "other");
    let mut all = Vec::new();
    until("the others have every place", || {
        all.extend(others().ok());
        all.len() == 2
    });
    let error = store.runners().unwrap_err();
    assert_eq!(error.reaction(), Reaction::Retry, "{error:?}");
    let text = format!("{error:?}");
    assert!(text.contains("53300"), "{text}");
    drop(all);
    until("there is room again", || store.runners().is_ok());
}

/// A connection that was kept for more than a day has no lane any more.
#[test]
fn a_lane_that_was_swept_is_replaced() {
    let mut world = World::new();
    world.note("before").unwrap();
    world.direct.query("DELETE FROM everstep_lanes").unwrap();
    world.note("it").unwrap();
    assert_eq!(world.noted("it"), "1");
}

/// As behind a pooler that nobody has told us of, or after a table has changed.
#[test]
fn statements_that_are_gone_are_prepared_again() {
    let mut world = World::new();
    world.note("before").unwrap();
    // Whatever the session knows by name is gone, the commit behind it among that: it is made again
    // on a session that has no names yet, and what that knew is gone when it is given back.
    let forget = |session: &Session<'_>| session.execute_now("DEALLOCATE ALL", &[]);
    world.store.read(forget).unwrap();
    world.store.runners().unwrap();
    world.store.read(forget).unwrap();
    world.note("it").unwrap();
    assert_eq!(world.noted("it"), "1");
}

#[test]
fn a_crash_of_the_server_loses_nothing_that_was_answered() {
    let server = Instance::start_new().unwrap();
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server.url());
    let store = PostgresStore::open(&url).unwrap();
    store.migrate().unwrap();
    let mut direct = server.session().unwrap();
    let table = format!("{schema}.noted");
    direct.query(&format!("CREATE TABLE {table} (no bigint)")).unwrap();
    let answered = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let is_noted = |no: i64| {
        let sql = format!("SELECT count(*) FROM {table} WHERE no = {no}");
        let mut said = None;
        until("it can be asked", || {
            said = server.session().ok().and_then(|mut session| session.value(&sql).ok());
            said.is_some()
        });
        said.as_deref() == Some("1")
    };
    thread::scope(|scope| {
        for worker in 0..3i64 {
            let (store, answered, is_over) = (&store, &answered, &is_over);
            let is_noted = &is_noted;
            scope.spawn(move || {
                let mut no = worker;
                while !is_over.load(Ordering::Relaxed) {
                    let noted = store.transact(|session, _| {
                        session.execute("INSERT INTO noted VALUES ($1)", params![no]);
                        Ok(())
                    });
                    match noted {
                        Ok(()) => {
                            no += 3;
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        // On a loaded machine a restart can take longer than a commit is looked for.
                        Err(error) if error.reaction() == Reaction::Reload => {
                            if is_noted(no) {
                                no += 3;
                                answered.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        Err(error) => {
                            assert_eq!(error.reaction(), Reaction::Retry, "{error:?}");
                            thread::sleep(Duration::from_millis(5));
                        }
                    }
                }
            });
        }
        let goes_on = || {
            let before = answered.load(Ordering::Relaxed);
            until("it goes on", || answered.load(Ordering::Relaxed) > before + 50);
        };
        goes_on();
        for _ in 0..3 {
            server.stop(Shutdown::Immediate).unwrap();
            // Who has a commit on its way looks for it, and who has not is told.
            until("it is noticed", || store.runners().is_err());
            server.start().unwrap();
            goes_on();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let sql = format!("SELECT count(*) || ' ' || count(DISTINCT no) FROM {table}");
    let said = server.session().unwrap().value(&sql).unwrap();
    let answered = answered.load(Ordering::Relaxed);
    assert_eq!(said, format!("{answered} {answered}"));
}

#[test]
fn a_server_that_is_gone_without_a_word_does_not_keep_us_from_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let reached = AtomicU32::new(0);
    let address = silent.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut kept = Vec::new();
            // The last one comes from the test itself.
            while let Ok((stream, from)) = silent.accept() {
                reached.fetch_add(1, Ordering::Relaxed);
                kept.push((stream, from));
                if kept.len() == 2 {
                    return;
                }
            }
        });
        let schema = fresh_schema();
        let url = format!(
            "postgres://postgres@{address},{}/postgres?schema={schema}&connect_timeout=1",
            server().address()
        );
        let store = PostgresStore::open(&url).unwrap();
        store.migrate().unwrap();
        assert_eq!(reached.load(Ordering::Relaxed), 1);
        // The one that was reached last comes first from now on.
        store.drop_idle();
        store.runners().unwrap();
        assert_eq!(reached.load(Ordering::Relaxed), 1);
        std::net::TcpStream::connect(address).unwrap();
    });
}

#[test]
fn a_failover_makes_runners_register_again() {
    let primary = Instance::start_new().unwrap();
    let standby = primary.standby().unwrap();
    let schema = fresh_schema();
    let alone = format!("{}?schema={schema}", standby.url());
    let error = PostgresStore::open(&alone).unwrap_err();
    assert_eq!(error.reaction(), Reaction::Retry);
    let text = format!("{error:?}");
    assert!(text.contains("standby"), "{text}");
    // Whichever comes first in the URL.
    let url = format!("{}&schema={schema}", url_of_all(&[&standby, &primary], "postgres"));
    let store = PostgresStore::open(&url).unwrap();
    store.migrate().unwrap();
    let now = Timestamp::from(SystemTime::now());
    let lease = Duration::from_secs(60);
    let me = NewRunner::new(Uuid::from_u128(7), "me", now, lease);
    let fence = store.register_runner(&me).unwrap();
    assert!(store.heartbeat(fence, now, lease).unwrap());
    primary.kill9().unwrap();
    let error = store.heartbeat(fence, now, lease).unwrap_err();
    assert_eq!(error.reaction(), Reaction::Retry, "{error:?}");
    standby.promote().unwrap();
    // What it had confirmed is there, and still nothing in memory is to be relied on.
    assert_eq!(store.runners().unwrap().len(), 1);
    assert!(!store.heartbeat(fence, now, lease).unwrap());
    let again = store.register_runner(&me).unwrap();
    assert_ne!(fence, again);
    assert!(store.heartbeat(again, now, lease).unwrap());
    assert!(!store.heartbeat(fence, now, lease).unwrap());
}

#[test]
fn listeners_are_woken_when_their_connection_was_lost() {
    let world = World::new();
    let (me, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let (sender, woken) = mpsc::channel();
    let wake: WakeFn = Arc::new(move |runs: &[RunNo]| _ = sender.send(runs.to_vec()));
    let _listening = world.store.on_wake(me, wake).unwrap();
    let options = PostgresOptions { schema: world.schema.clone(), ..PostgresOptions::default() };
    let elsewhere = PostgresStore::open_with(&server().url(), options).unwrap();
    elsewhere.wake_others(Some(other), &[RunNo(5)]);
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(vec![RunNo(5)]));
    world.proxy.cut(&Which::All);
    // They look for themselves, once.
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(vec![]));
    elsewhere.wake_others(Some(other), &[RunNo(6)]);
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(vec![RunNo(6)]));
    // Nobody is registered, so that there is nobody to be told; then there is somebody.
    assert!(elsewhere.runners().unwrap().is_empty());
    elsewhere.wake_others(Some(other), &[RunNo(7)]);
    let now = Timestamp::from(SystemTime::now());
    let runner = NewRunner::new(me, "me", now, Duration::from_secs(60));
    world.store.register_runner(&runner).unwrap();
    elsewhere.runners().unwrap();
    elsewhere.wake_others(Some(other), &[RunNo(8)]);
    assert_eq!(woken.recv_timeout(PATIENCE), Ok(vec![RunNo(8)]));
}

/// The name of the connections that wake-ups are sent on.
const WAKING: &str = "waking";

/// A world whose wake-ups have connections of their own, which wait for as long as they must.
fn world_with_named_wakes(waited_for: Duration) -> World {
    let mut world = World::new();
    let url =
        format!("{}?application_name={WAKING}&connect_timeout=60", world.proxy.url_for("postgres"));
    let options = PostgresOptions {
        schema: world.schema.clone(),
        listen_url: Some(url),
        ..PostgresOptions::default()
    };
    let url = world.proxy.url_for("postgres");
    world.store = PostgresStore::open_with(&url, options).unwrap();
    let wakes = Arc::get_mut(&mut world.store.wakes).unwrap();
    wakes.waited_for = waited_for;
    world
}

/// A client that ended as soon as its start was answered took the notification along, and the run began
/// when its owner next looked by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_answered_after_its_notification_was_sent() {
    let World { proxy, store, .. } = world_with_named_wakes(PATIENCE);
    let client = crate::Client::on(Arc::new(store)).unwrap();
    let waking = Which::Named(WAKING.to_owned());
    proxy.hold(waking.clone());
    let starting = client.start_json("ship", &serde_json::json!(7));
    let starting = tokio::spawn(starting.into_future());
    let proxy = tokio::task::spawn_blocking(move || {
        let is_held = proxy.wait_until_held(PATIENCE, &Which::Named(WAKING.to_owned()));
        assert!(is_held, "the notification is under way");
        proxy
    });
    let proxy = proxy.await.unwrap();
    assert!(!starting.is_finished(), "it was answered too early");
    proxy.release(&waking);
    starting.await.unwrap().unwrap();
}

/// `RunHandle::wake` does not wait: the client does, before it is gone.
#[test]
fn a_client_that_is_dropped_waits_for_its_notification() {
    let World { proxy, store, .. } = world_with_named_wakes(PATIENCE);
    let store = Arc::new(store);
    let client = crate::Client::on(Arc::clone(&store) as Arc<dyn Store>).unwrap();
    let waking = Which::Named(WAKING.to_owned());
    proxy.hold(waking.clone());
    store.wake_others(None, &[RunNo(1)]);
    let dropping = thread::spawn(move || drop(client));
    assert!(proxy.wait_until_held(PATIENCE, &waking));
    assert!(!dropping.is_finished(), "it has not waited");
    proxy.release(&waking);
    dropping.join().unwrap();
}

#[test]
fn a_notification_that_cannot_be_sent_is_waited_for_only_so_long() {
    let World { proxy, store, .. } = world_with_named_wakes(Duration::from_millis(10));
    let (called, is_called) = mpsc::channel();
    let then = move |n: u32| -> Box<dyn FnOnce() + Send> {
        let called = called.clone();
        Box::new(move || _ = called.send(n))
    };
    // Nothing is under way.
    store.after_wakes(then(1));
    assert_eq!(is_called.try_recv(), Ok(1));
    proxy.hold(Which::Named(WAKING.to_owned()));
    store.wake_others(None, &[RunNo(1)]);
    store.after_wakes(then(2));
    assert_eq!(is_called.recv_timeout(PATIENCE), Ok(2));
    // Neither is what comes later.
    store.wake_others(None, &[RunNo(2)]);
    store.after_wakes(then(3));
    assert_eq!(is_called.recv_timeout(PATIENCE), Ok(3));
}

/// The table in ARCHITECTURE.md.
#[test]
fn each_code_of_the_server_has_its_reaction() {
    let world = World::new();
    for (codes, reaction) in [
        ("40001 40P01 55P03 72000 23505", Reaction::Retry),
        ("53100 53200 53300 53400 57014 57P01 57P03", Reaction::Retry),
        ("08006 08P01 25006 25P03 26000 42P05 58030 XX000", Reaction::Retry),
        ("EV001 EV002 EV003", Reaction::Retry),
        ("22021 23514 54000 0A000 42601 P0001", Reaction::Bisect),
        ("XX001 XX002 42501 28P01 3D000 42P01 42703 42883", Reaction::Stop),
    ] {
        for code in codes.split(' ') {
            let raise = format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$");
            let done = world.store.write(|session| session.execute_now(raise.clone(), &[]));
            let error = done.unwrap_err();
            assert_eq!(error.reaction(), reaction, "{code}: {error:?}");
        }
    }
    // None of it has done any harm.
    world.note("it").unwrap();
}

/// A runner whose lease is long, with all shards.
fn owner(store: &PostgresStore, id: u128, lease: Duration) -> Fence {
    let runner = NewRunner::new(Uuid::from_u128(id), "owner", NOW, lease);
    let fence = store.register_runner(&runner).unwrap();
    let all = ShardSet::of_default_pool();
    store.take_shards(fence, NOW, &all, &[]).unwrap();
    fence
}

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Goes by the time that it is told, and gives an answer up before the server gives up a session of 30 s.
fn caller_time(options: &mut PostgresOptions) {
    options.database_time = false;
    options.patience = Duration::from_secs(5);
}

impl World {
    /// Another process on the same schema, with a network of its own.
    fn elsewhere(&self) -> PostgresStore {
        let mut options =
            PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::default() };
        caller_time(&mut options);
        PostgresStore::open_with(&server().url(), options).unwrap()
    }
}

/// An owner whose network hung between two statements of its heartbeat kept the lock on its row for
/// 30 s, and nobody could take its shards.
#[test]
fn a_heartbeat_that_is_not_answered_holds_up_no_takeover() {
    let world = World::with(caller_time);
    let lease = Duration::from_secs(600);
    let owner = owner(&world.store, 1, lease);
    // Its statements are prepared.
    assert!(world.store.heartbeat(owner, NOW, lease).unwrap());
    let elsewhere = world.elsewhere();
    let taker = NewRunner::new(Uuid::from_u128(2), "taker", NOW + lease * 2, lease);
    let taker = elsewhere.register_runner(&taker).unwrap();
    world.proxy.hold_replies(Which::All);
    thread::scope(|scope| {
        let beating = scope.spawn(|| world.store.heartbeat(owner, NOW, lease));
        let answered = |connections: &[everstep_pg::Connection]| {
            connections.iter().any(|it| it.replies_held > 0)
        };
        assert!(world.proxy.wait_until(PATIENCE, answered));
        let all = ShardSet::of_default_pool();
        let taken = elsewhere.take_shards(taker, NOW + lease * 2, &all, &[]);
        assert_eq!(taken.unwrap(), Some(all));
        world.proxy.release_all();
        // It was answered before its shards were taken.
        beating.join().unwrap().unwrap();
    });
    assert!(!world.store.heartbeat(owner, NOW, lease).unwrap());
}

/// With a lease below 3 s, a kept connection that was dead had a whole second for its answer, and the
/// lease was over when the heartbeat was sent on another one.
#[test]
fn a_dead_connection_does_not_cost_a_short_lease() {
    for lease_ms in [1_000, 1_500, 2_900, 10_000, 60_000] {
        let lease = Duration::from_millis(lease_ms);
        let limits = Limits::new(Duration::from_secs(20), None).for_lease(Some(lease));
        // The longest interval between heartbeats that is allowed.
        let left = lease - lease / 2 - limits.answer_if_kept;
        assert!(left >= lease / 4, "{left:?} of {lease:?}");
    }
    let world = World::with(caller_time);
    let lease = Duration::from_secs(1);
    let owner = owner(&world.store, 1, lease);
    // On a busy machine a new connection may take long; the old one took a second each time.
    let is_in_time = (0..20).any(|_| {
        assert!(world.store.heartbeat(owner, NOW, lease).unwrap());
        world.open().iter().for_each(|it| world.proxy.hold(Which::Number(*it)));
        let begun = Instant::now();
        let is_alive = world.store.heartbeat(owner, NOW, lease);
        let took = begun.elapsed();
        world.proxy.release_all();
        assert!(is_alive.unwrap());
        took < lease
    });
    assert!(is_in_time);
}

/// An owner that hung in the middle of a batch kept its locks for 30 s, whatever its lease was.
#[test]
fn a_takeover_from_a_hung_owner_ends_within_two_leases() {
    for pooled in [false, true] {
        let world = World::with(|options| {
            caller_time(options);
            options.pooled = pooled;
        });
        let lease = Duration::from_secs(5);
        let owner = owner(&world.store, 1, lease);
        let elsewhere = world.elsewhere();
        let later = NOW + lease * 2;
        let taker = NewRunner::new(Uuid::from_u128(2), "taker", later, lease);
        let taker = elsewhere.register_runner(&taker).unwrap();
        let (told, is_locked) = mpsc::channel();
        thread::scope(|scope| {
            let World { store, proxy, .. } = &world;
            let hanging = scope.spawn(move || {
                let mut goes = 0;
                // As a batch does: it takes its fence, and asks more later.
                store.transact(|session, _| {
                    goes += 1;
                    let sql =
                        "SELECT 1 FROM everstep_runners WHERE id = $1 AND epoch = $2 FOR KEY SHARE";
                    session.exists(sql, params![owner.runner, owner.epoch as i64])?;
                    if goes == 1 {
                        proxy.hold(Which::All);
                        told.send(()).unwrap();
                    }
                    session.exists("SELECT 1", &[]).map(drop)
                })
            });
            is_locked.recv().unwrap();
            let begun = Instant::now();
            let all = ShardSet::of_default_pool();
            // It does not wait for as long in one go: meanwhile it sends no heartbeat.
            let taken = loop {
                match elsewhere.take_shards(taker, later, &all, &[]) {
                    Err(StoreError::Busy { .. }) => {}
                    taken => break taken,
                }
            };
            let took = begun.elapsed();
            assert_eq!(taken.unwrap(), Some(all));
            assert!(took < 2 * lease, "{took:?}");
            proxy.release_all();
            // Its session is gone, and it was not let in again.
            if let Err(error) = hanging.join().unwrap() {
                assert_eq!(error.reaction(), Reaction::Retry, "{error:?}");
            }
        });
    }
}

#[test]
fn a_session_is_given_up_after_half_a_lease_of_silence() {
    let world = World::new();
    let limit = || {
        let sql = "SELECT current_setting('idle_in_transaction_session_timeout')";
        let said = world.store.read(|session| session.row(sql, &[], |row| row.get::<String>(0)));
        said.unwrap().unwrap()
    };
    // As for the usual lease, while there is none.
    assert_eq!(limit(), "5s");
    for (lease, wanted) in [(60_u32, "30s"), (2, "1s"), (8, "1s")] {
        owner(&world.store, lease.into(), Duration::from_secs(lease.into()));
        // The connection that was kept is told.
        assert_eq!(limit(), wanted);
    }
    assert_eq!(world.open().len(), 1, "it is the same connection");
}
