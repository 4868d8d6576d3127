//! A proxy in front of a real server.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use everstep_pg::{Instance, Proxy, Session, TripCounter, Which};

/// Far longer than anything takes.
const LIMIT: Duration = Duration::from_secs(60);

/// One for all tests of this process.
fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| Instance::start_new().unwrap())
}

fn open(proxy: &Proxy, name: &str) -> Session {
    Session::open(proxy.address(), "postgres", "postgres", name).unwrap()
}

/// An empty table, and a question for how many rows it has.
struct Table(&'static str);

impl Table {
    fn new(name: &'static str) -> Self {
        let made = format!("CREATE TABLE {name} (n int)");
        instance().session().unwrap().query(&made).unwrap();
        Table(name)
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES (1)", self.0)
    }

    /// Asked past the proxy.
    fn rows(&self) -> String {
        let count = format!("SELECT count(*) FROM {}", self.0);
        instance().session().unwrap().value(&count).unwrap()
    }

    fn until_rows(&self, wanted: &str) {
        let begun = Instant::now();
        while self.rows() != wanted {
            assert!(begun.elapsed() < LIMIT, "it still has {}", self.rows());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn held_request_arrives_when_it_is_released_and_others_pass() {
    let proxy = Proxy::start_before(instance().address()).unwrap();
    let table = Table::new("held_request");
    let [mut held, mut free] = ["runner-1/lane", "runner-2/lane"].map(|name| open(&proxy, name));
    let which = Which::NameStarts("runner-1/".into());
    proxy.hold(which.clone());
    held.send(&table.insert()).unwrap();
    assert!(proxy.wait_until_held(LIMIT, &which));
    free.query(&table.insert()).unwrap();
    assert_eq!(table.rows(), "1");
    let connections = proxy.connections();
    let names = connections.iter().map(|one| one.application_name.as_deref());
    assert_eq!(names.collect::<Vec<_>>(), [Some("runner-1/lane"), Some("runner-2/lane")]);
    assert_eq!(connections[0].requests_held, table.insert().len() + 6);
    proxy.release(&which);
    held.receive().unwrap();
    assert_eq!(table.rows(), "2");
}

#[test]
fn request_of_a_client_that_is_gone_still_arrives() {
    let proxy = Proxy::start_before(instance().address()).unwrap();
    let table = Table::new("client_gone");
    for cut in [false, true] {
        let mut client = open(&proxy, "gone");
        proxy.hold(Which::All);
        client.send(&table.insert()).unwrap();
        assert!(proxy.wait_until_held(LIMIT, &Which::All));
        if cut {
            proxy.cut_client(&Which::All);
            assert!(client.receive().is_err());
        }
        drop(client);
        let before = table.rows();
        assert_eq!(before, if cut { "1" } else { "0" });
        proxy.release_all();
        table.until_rows(if cut { "2" } else { "1" });
    }
}

#[test]
fn held_reply_leaves_the_client_in_doubt_about_what_was_done() {
    let proxy = Proxy::start_before(instance().address()).unwrap();
    let table = Table::new("held_reply");
    let mut client = open(&proxy, "doubt");
    proxy.hold_replies(Which::Number(0));
    client.send(&table.insert()).unwrap();
    assert!(proxy.wait_until(LIMIT, |all| all[0].replies_held > 0));
    assert_eq!(table.rows(), "1");
    proxy.cut(&Which::Number(0));
    assert!(client.receive().is_err());
    assert!(proxy.wait_until(LIMIT, |all| !all[0].open));
}

#[test]
fn held_request_that_is_cut_never_arrives() {
    let proxy = Proxy::start_before(instance().address()).unwrap();
    let table = Table::new("cut_request");
    let mut client = open(&proxy, "lost");
    let which = Which::Named("lost".into());
    proxy.hold(which.clone());
    client.send(&table.insert()).unwrap();
    assert!(proxy.wait_until_held(LIMIT, &which));
    proxy.cut(&which);
    proxy.release(&which);
    assert!(client.receive().is_err());
    // The server has ended it as well, so nothing can come any more.
    let mut direct = instance().session().unwrap();
    let there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lost'";
    while direct.value(there).unwrap() != "0" {
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(table.rows(), "0");
}

#[test]
fn refused_client_can_connect_when_clients_are_accepted_again() {
    let proxy = Proxy::start_before(instance().address()).unwrap();
    let mut before = open(&proxy, "before");
    proxy.refuse();
    assert!(Session::open(proxy.address(), "postgres", "postgres", "no").is_err());
    assert_eq!(before.value("SELECT 1").unwrap(), "1");
    proxy.accept();
    assert_eq!(open(&proxy, "after").value("SELECT 2").unwrap(), "2");
    assert_eq!(proxy.connections().len(), 2);
}

/// A client sends the number of the round over and over, which goes up after the proxy has said
/// that it holds. The server must not see it before the proxy is told to release.
#[test]
fn nothing_passes_once_it_is_held_and_nothing_is_lost_or_mixed_up() {
    const ROUNDS: u8 = 100;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start_before(server.local_addr().unwrap()).unwrap();
    let (round, allowed) = (AtomicU8::new(0), AtomicU8::new(0));
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut client = TcpStream::connect(proxy.address()).unwrap();
            let mut sent = 0_u64;
            while round.load(SeqCst) < ROUNDS {
                client.write_all(&[round.load(SeqCst)]).unwrap();
                sent += 1;
            }
            client.shutdown(std::net::Shutdown::Write).unwrap();
            sent
        });
        let receiving = scope.spawn(|| {
            let (stream, _) = server.accept().unwrap();
            let (mut received, mut last) = (0_u64, 0);
            for byte in std::io::BufReader::new(stream).bytes() {
                let byte = byte.unwrap();
                assert!(byte <= allowed.load(SeqCst), "{byte} has passed");
                assert!(byte >= last, "{byte} came after {last}");
                (received, last) = (received + 1, byte);
            }
            received
        });
        for number in 1..=ROUNDS {
            proxy.hold(Which::All);
            round.store(number, SeqCst);
            if number < ROUNDS {
                assert!(proxy.wait_until_held(LIMIT, &Which::All));
            }
            allowed.store(number, SeqCst);
            proxy.release_all();
        }
        (sending.join().unwrap(), receiving.join().unwrap())
    });
    assert_eq!(sent, received);
}

#[test]
fn round_trips_of_a_real_server_are_counted() {
    let counter = TripCounter::start_before(instance().address()).unwrap();
    let counts = || (counter.trips(), counter.requests());
    let mut session = Session::open(counter.address(), "postgres", "postgres", "counted").unwrap();
    assert_eq!(counts(), (1, 1), "the start of a connection");
    session.query("SELECT 1").unwrap();
    session.query("SELECT 2; SELECT 3").unwrap();
    assert_eq!(counts(), (3, 3));
    // Larger than a chunk in both directions.
    let long = "x".repeat(300_000);
    assert_eq!(session.value(&format!("SELECT '{long}'")).unwrap(), long);
    assert_eq!(counts(), (4, 4));
    // The first has no answer before the second was sent.
    let mut holder = instance().session().unwrap();
    holder.query("SELECT pg_advisory_lock(1)").unwrap();
    session.send("SELECT pg_advisory_lock(1)").unwrap();
    session.send("SELECT 5").unwrap();
    let begun = Instant::now();
    while counter.requests() < 6 {
        assert!(begun.elapsed() < LIMIT, "it has counted {:?}", counts());
        thread::sleep(Duration::from_millis(2));
    }
    holder.query("SELECT pg_advisory_unlock(1)").unwrap();
    session.receive().unwrap();
    session.receive().unwrap();
    assert_eq!(counts(), (5, 6));
}

#[cfg(target_os = "linux")]
#[test]
fn processor_time_of_a_server_grows_with_its_work() {
    let before = instance().cpu_time();
    let mut session = instance().session().unwrap();
    session.query("SELECT count(*) FROM generate_series(1, 300000)").unwrap();
    assert!(instance().cpu_time() > before);
}
