//! A real server: started, stopped, killed, followed.

#![allow(clippy::unwrap_used)]

use std::{
    cell::RefCell,
    path::Path,
    process::{Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use everstep_pg::{Error, Instance, Pgbouncer, Session, Settings, Shutdown, url_of_all};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// One for the tests of this process that leave it as it is.
fn shared() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| Instance::start_new().unwrap())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn until_answer(instance: &Instance, question: &str, answer: &str) {
    let session = RefCell::new(instance.session().unwrap());
    until(&format!("`{question}` gives {answer}"), || {
        session.borrow_mut().value(question).unwrap() == answer
    });
}

fn make_table(instance: &Instance) {
    let made = instance.session().unwrap().query("CREATE TABLE t (n int)");
    made.unwrap();
}

fn insert(instance: &Instance, n: u32) -> Result<(), Error> {
    let inserted = instance.session()?.query(&format!("INSERT INTO t VALUES ({n})"));
    inserted.map(drop)
}

fn rows(instance: &Instance) -> String {
    let mut session = instance.session().unwrap();
    let rows = session.value("SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM t");
    rows.unwrap()
}

#[test]
fn confirmed_rows_survive_every_way_of_stopping_and_the_port_stays() {
    let instance = Instance::start_new().unwrap();
    let url = instance.url();
    make_table(&instance);
    insert(&instance, 1).unwrap();
    instance.restart_immediate().unwrap();
    insert(&instance, 2).unwrap();
    instance.stop(Shutdown::Fast).unwrap();
    assert!(instance.session().is_err());
    instance.start().unwrap();
    insert(&instance, 3).unwrap();
    // One that is in the middle of something does not keep the others from ending.
    let mut open = instance.session().unwrap();
    open.query("BEGIN; INSERT INTO t VALUES (9)").unwrap();
    let busy = busy(&instance);
    instance.kill9().unwrap();
    assert!(instance.session().is_err());
    assert!(open.query("COMMIT").is_err());
    let left = Path::new("/proc").join(busy.process().to_string());
    assert!(std::fs::read_link(left.join("cwd")).is_err());
    instance.start().unwrap();
    assert_eq!(rows(&instance), "1 2 3");
    assert_eq!(instance.url(), url);
}

/// A session that asks for nothing which would show its backend the end of the postmaster.
fn busy(instance: &Instance) -> Session {
    let mut busy = instance.session().unwrap();
    busy.send("SELECT count(*) FROM generate_series(1, 100000000000)").unwrap();
    let pid = busy.process();
    let active =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'");
    until_answer(instance, &active, "1");
    busy
}

#[test]
fn settings_are_on_and_one_that_is_off_is_seen() {
    let settings = shared().settings().unwrap();
    assert_eq!(settings.to_string(), "fsync=on synchronous_commit=on full_page_writes=on");
    settings.check().unwrap();
    let mut session = shared().session().unwrap();
    session.query("SET synchronous_commit = off").unwrap();
    let settings = Settings::of(&mut session).unwrap();
    assert_eq!(settings.to_string(), "fsync=on synchronous_commit=off full_page_writes=on");
    let error = settings.check().unwrap_err().to_string();
    assert!(error.contains("`synchronous_commit`"), "{error}");
}

#[test]
fn databases_are_made_once_and_the_server_is_not_root() {
    let instance = shared();
    let url = instance.create_database("a \"b").unwrap();
    assert!(url.ends_with("/a \"b"), "{url}");
    let error = instance.create_database("a \"b").unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "42P04"), "{error}");
    let status = Path::new("/proc").join(instance.session().unwrap().process().to_string());
    if let Ok(status) = std::fs::read_to_string(status.join("status")) {
        let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert_ne!(uid.split_whitespace().nth(1), Some("0"), "{uid}");
    }
}

#[test]
fn failed_start_shows_the_log() {
    let instance = Instance::start_new().unwrap();
    instance.stop(Shutdown::Fast).unwrap();
    std::fs::write(instance.data().join("postgresql.conf"), "no_such_setting = 1\n").unwrap();
    let error = instance.start().unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[test]
fn standby_has_all_that_was_confirmed_and_takes_over() {
    let primary = Instance::start_new().unwrap();
    make_table(&primary);
    let standby = primary.standby().unwrap();
    assert!(primary.is_primary().unwrap());
    assert!(!standby.is_primary().unwrap());
    primary.settings().unwrap().check().unwrap();
    commit_waits_for(&standby, &primary);
    for n in 2..20 {
        insert(&primary, n).unwrap();
    }
    let before = rows(&primary);
    primary.kill9().unwrap();
    standby.promote().unwrap();
    assert!(standby.is_primary().unwrap());
    assert_eq!(rows(&standby), before);
    // It waits for no standby of its own.
    insert(&standby, 20).unwrap();
    let url = url_of_all(&[&primary, &standby], "d");
    let [one, two] = [&primary, &standby].map(|instance| instance.address());
    assert_eq!(url, format!("postgres://postgres@{one},{two}/d?target_session_attrs=read-write"));
}

/// The very first commit after the standby was made waits for it.
fn commit_waits_for(standby: &Instance, primary: &Instance) {
    standby.stop(Shutdown::Immediate).unwrap();
    let (sender, confirmed) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| sender.send(insert(primary, 1)).unwrap());
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        until_answer(primary, waiting, "1");
        assert!(confirmed.try_recv().is_err());
        standby.start().unwrap();
        confirmed.recv_timeout(LIMIT).unwrap().unwrap();
    });
    assert_eq!(rows(primary), "1");
}

#[test]
fn pgbouncer_shares_one_server_connection_between_transactions() {
    let pooler = Pgbouncer::start_before(shared()).unwrap();
    let [mut one, mut two] = ["one", "two"].map(|name| pooler.session(name).unwrap());
    let pid = "SELECT pg_backend_pid()";
    // One after the other they use the same one, which two connections of their own never would.
    assert_eq!(one.value(pid).unwrap(), two.value(pid).unwrap());
    one.query("BEGIN").unwrap();
    assert_ne!(one.value(pid).unwrap(), two.value(pid).unwrap());
    one.query("COMMIT").unwrap();
}

/// Tells the test below where the server of a process is that is killed.
const CHILD: &str = "EVERSTEP_PG_TEST_CHILD";

#[test]
fn server_of_a_process_that_was_killed_is_stopped_and_removed() {
    if std::env::var_os(CHILD).is_some() {
        let instance = Instance::start_new().unwrap();
        let _pooler = Pgbouncer::start_before(&instance).unwrap();
        println!("\nat {} {}", instance.address(), instance.data().display());
        loop {
            thread::park();
        }
    }
    let test = "server_of_a_process_that_was_killed_is_stopped_and_removed";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("at "));
    child.kill().unwrap();
    child.wait().unwrap();
    let line = line.unwrap();
    let (address, data) = line.strip_prefix("at ").unwrap().split_once(' ').unwrap();
    let directory = Path::new(data).parent().unwrap();
    until("the directory is removed", || !directory.exists());
    until("nobody listens", || std::net::TcpStream::connect(address).is_err());
}
