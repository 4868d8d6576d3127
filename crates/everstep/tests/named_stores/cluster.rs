//! Several engines on one store: who runs what as they come, go, die and differ in what they know.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use everstep::{
    Client, Cluster, EngineBuilder, RunStatus, StartError, Timestamp, WorkflowOptions,
    prelude::*,
    store::{MemoryStore, NewRunner, RunnerRow, ShardSet, SqliteStore, Store, StoreError},
    testing::CrashingStore,
};
use scenario::{until, until_status};

const ORDER: Workflow<u32, u32> = Workflow::new("order");
const RENDER: Workflow<u32, String> = Workflow::new("render");

/// Which engine has run what, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn stores() -> Vec<(Arc<dyn Store>, tempfile::TempDir)> {
    let dir = || tempfile::tempdir().unwrap();
    let file = dir();
    let sqlite = SqliteStore::create(file.path().join("app.db")).unwrap();
    vec![(Arc::new(MemoryStore::new()), dir()), (Arc::new(sqlite), file)]
}

fn quick(builder: EngineBuilder) -> EngineBuilder {
    builder.settings(|settings| {
        settings.heartbeat = Some(Duration::from_millis(20));
        settings.lease = Duration::from_millis(500);
        settings.safety_poll = Duration::from_millis(200);
        settings.threads = 2;
    })
}

/// An engine with this version of `order`: it waits for a message, and then says who it is.
fn order(store: &Arc<dyn Store>, version: u32, name: &'static str, log: &Log) -> EngineBuilder {
    order_accepting(store, version, version, name, log)
}

fn order_accepting(
    store: &Arc<dyn Store>,
    first: u32,
    version: u32,
    name: &'static str,
    log: &Log,
) -> EngineBuilder {
    let log = log.clone();
    let options = WorkflowOptions::new().accepts(first..=version);
    let workflow = ORDER.version(version);
    quick(Engine::on(store.clone())).register_fn_with(workflow, options, move |ctx, n| {
        let log = log.clone();
        async move {
            let log = &log;
            let note = async |what: &str| {
                let line = format!("{name} {what} {n}");
                log.lock().unwrap().push(line);
                Ok(())
            };
            ctx.step("begin", async || note("begins").await).await?;
            let add: u32 = ctx.listen("add").await?;
            ctx.step("end", async || note("ends").await).await?;
            Ok(n + add)
        }
    })
}

/// A client without an engine, whose runs are in shards of anybody.
fn anywhere(store: &Arc<dyn Store>) -> Client {
    Client::on(store.clone()).unwrap()
}

/// Waits until the cluster is like this.
async fn until_cluster(client: &Client, what: &str, is: impl Fn(&Cluster) -> bool) {
    until(what, async || {
        let cluster = client.cluster().await.unwrap();
        is(&cluster).then_some(())
    })
    .await;
}

/// How many shards of the default pool each live runner has, from few to many.
fn shares(cluster: &Cluster) -> Vec<usize> {
    let live = cluster.runners.iter().filter(|runner| runner.alive);
    let mut shares: Vec<usize> = live.map(|runner| runner.shards).collect();
    shares.sort_unstable();
    shares
}

fn entries(log: &Log, what: &str) -> usize {
    let log = log.lock().unwrap();
    log.iter().filter(|line| line.contains(what)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_shared_on_joining_and_free_at_once_on_leaving() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let first = order(&store, 1, "a", &log).start().await.unwrap();
        let client = anywhere(&store);
        assert_eq!(shares(&client.cluster().await.unwrap()), [256]);
        let second = order(&store, 1, "b", &log).start().await.unwrap();
        let is_shared = |cluster: &Cluster| {
            let shares = shares(cluster);
            shares.len() == 2 && shares[0] > 60 && shares.iter().sum::<usize>() == 256
        };
        until_cluster(&client, "two shares", is_shared).await;
        let mut runs = Vec::new();
        for n in 0..20 {
            runs.push(client.start(ORDER, n).await.unwrap());
        }
        for run in &runs {
            until_status(run, RunStatus::Sleeping).await;
        }
        assert!(entries(&log, "a begins") > 0 && entries(&log, "b begins") > 0);
        second.shutdown().await;
        until_cluster(&client, "one share", |cluster| shares(cluster) == [256]).await;
        for (n, run) in runs.iter().enumerate() {
            run.send("add", &1_u32).await.unwrap();
            assert_eq!(run.result().await.unwrap(), n as u32 + 1);
        }
        assert_eq!(entries(&log, "begins"), 20, "no body ran twice");
        assert_eq!(entries(&log, "a ends"), 20);
        // It signed off: nothing had to be taken from it.
        assert_eq!(first.counters().takeovers, 0);
        assert_eq!(first.counters().stale_commits_refused, 0);
        first.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_an_engine_that_died_go_on_elsewhere() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let first = order(&store, 1, "a", &log).start().await.unwrap();
        let client = anywhere(&store);
        let second = order(&store, 1, "b", &log).start().await.unwrap();
        until_cluster(&client, "two shares", |cluster| {
            shares(cluster).len() == 2 && shares(cluster)[0] > 60
        })
        .await;
        let mut runs = Vec::new();
        for n in 0..20 {
            runs.push(client.start(ORDER, n).await.unwrap());
        }
        for run in &runs {
            until_status(run, RunStatus::Sleeping).await;
        }
        let of_second = entries(&log, "b begins");
        assert!(of_second > 0);
        // No word to anybody: its lease ends, or its silence is noticed.
        drop(second);
        for (n, run) in runs.iter().enumerate() {
            run.send("add", &1_u32).await.unwrap();
            assert_eq!(run.result().await.unwrap(), n as u32 + 1);
        }
        assert_eq!(entries(&log, "a ends"), 20);
        assert_eq!(first.counters().takeovers, 1);
        first.shutdown().await;
    }
}

/// Half of what an engine started was another's, which had to find it and read it: two engines did less
/// than one.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_an_engine_starts_and_their_children_stay_with_it() {
    const FAMILY: Workflow<u32, Vec<String>> = Workflow::new("family");
    const MEMBER: Workflow<u32, String> = Workflow::new("member");
    fn family(store: &Arc<dyn Store>, name: &'static str) -> EngineBuilder {
        quick(Engine::on(store.clone()))
            .settings(|settings| settings.lease = Duration::from_secs(60))
            .register_fn(FAMILY, move |ctx, n| async move {
                let child = ctx.child(MEMBER, n).await?;
                let keyed = ctx.child(MEMBER, n).key(format!("child of {n}"));
                Ok(vec![name.to_owned(), child, keyed.await?])
            })
            .register_fn(MEMBER, move |_, _| async move { Ok(name.to_owned()) })
    }
    for (store, _dir) in stores() {
        let first = family(&store, "a").start().await.unwrap();
        let second = family(&store, "b").start().await.unwrap();
        until_cluster(&first.client(), "two shares", |cluster| {
            let shares = shares(cluster);
            shares.len() == 2 && shares[0] > 60 && shares.iter().sum::<usize>() == 256
        })
        .await;
        for (engine, name) in [(&first, "a"), (&second, "b")] {
            let client = engine.client();
            // It knows of its shards a moment after the store does.
            until("it to know its shards", async || {
                let run = client.start(FAMILY, 1_000).await.unwrap();
                (run.result().await.unwrap()[..2] == [name; 2]).then_some(())
            })
            .await;
            for n in 0..10 {
                let run = client.start(FAMILY, n);
                let run = match n % 2 {
                    0 => run,
                    _ => run.key(format!("{name} {n}")),
                };
                let run = run.await.unwrap();
                assert_eq!(run.result().await.unwrap()[..2], [name; 2]);
            }
        }
        // A child with a key may be there already, wherever that is.
        let keyed = first.client().start(FAMILY, 3).await.unwrap();
        assert_eq!(keyed.result().await.unwrap(), ["a"; 3]);
        first.shutdown().await;
        second.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_as_the_weights() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let log = Log::default();
    let light = order(&store, 1, "a", &log).start().await.unwrap();
    let heavy = order(&store, 1, "b", &log).weight(7).start().await.unwrap();
    let is_shared = |cluster: &Cluster| {
        let shares = shares(cluster);
        // 32 and 224 on average.
        shares.iter().sum::<usize>() == 256 && shares.len() == 2 && (10..60).contains(&shares[0])
    };
    until_cluster(&light.client(), "shares as the weights", is_shared).await;
    let cluster = light.client().cluster().await.unwrap();
    let heaviest = cluster.runners.iter().max_by_key(|runner| runner.shards);
    assert_eq!(heaviest.unwrap().weight, 7);
    light.shutdown().await;
    heavy.shutdown().await;
}

/// An engine with `render`, whose runs are of pool `gpu`.
fn render(store: &Arc<dyn Store>, name: &'static str, pools: &[&str]) -> EngineBuilder {
    let options = WorkflowOptions::new().pool("gpu");
    quick(Engine::on(store.clone()))
        .register_fn_with(RENDER, options, move |ctx, n| async move {
            ctx.step("render", async || Ok(())).await?;
            Ok(format!("{n} by {name}"))
        })
        .pools(pools.iter().copied())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_pool_are_run_by_the_runners_that_serve_it() {
    for (store, _dir) in stores() {
        let web = render(&store, "web", &["default"]).start().await.unwrap();
        let client = web.client();
        let run = client.start(RENDER, 0).await.unwrap();
        let info = run.info().await.unwrap();
        assert_eq!(info.status, RunStatus::Pending, "nobody serves its pool yet");
        let why = format!("{:?}", run.why().await.unwrap());
        assert!(why.contains("no live runner serves its pool `gpu`"), "{why}");
        let gpu = render(&store, "gpu", &["gpu"]).start().await.unwrap();
        assert_eq!(run.result().await.unwrap(), "0 by gpu");
        let at_start = client.start(RENDER, 1).pool("default").await.unwrap();
        assert_eq!(at_start.result().await.unwrap(), "1 by web");
        for n in 2..10 {
            let run = client.start(RENDER, n).await.unwrap();
            assert_eq!(run.result().await.unwrap(), format!("{n} by gpu"));
        }
        let cluster = client.cluster().await.unwrap();
        let pools: Vec<_> = cluster.pools.iter().map(|p| (&*p.name, p.owned)).collect();
        assert_eq!(pools, [("default", 256), ("gpu", 256)]);
        web.shutdown().await;
        gpu.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_cannot_be_named_like_an_overflow_pool() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let error = render(&store, "x", &["a@b"]).start().await.err().unwrap();
    assert!(matches!(error, StartError::Pool(_)), "{error}");
    let engine = render(&store, "x", &["default"]).start().await.unwrap();
    let start = engine.client().start(RENDER, 1).pool("a@b");
    let error = start.await.err().unwrap().to_string();
    assert!(error.contains("a@b"), "{error}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_pinned_to_a_version_finish_on_it_during_a_deploy() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let old = order(&store, 1, "old", &log).start().await.unwrap();
        let mut first = Vec::new();
        for n in 0..20 {
            first.push(old.client().start(ORDER, n).await.unwrap());
        }
        for run in &first {
            until_status(run, RunStatus::Sleeping).await;
        }
        let new = order(&store, 2, "new", &log).start().await.unwrap();
        let client = anywhere(&store);
        let is_shared = |cluster: &Cluster| {
            let shares = shares(cluster);
            shares.len() == 2 && shares[0] > 60
        };
        until_cluster(&client, "two shares", is_shared).await;
        // Whoever owns their shard: half of each version is on the wrong side at first.
        let mut second = Vec::new();
        for n in 100..120 {
            second.push(client.start(ORDER.version(2), n).await.unwrap());
        }
        for run in first.iter().chain(&second) {
            client.send(run.id(), "add", &1_u32).await.unwrap();
        }
        for (n, run) in first.iter().enumerate() {
            let run = client.run::<u32>(run.id());
            assert_eq!(run.result().await.unwrap(), n as u32 + 1);
        }
        for (n, run) in (100..).zip(&second) {
            assert_eq!(run.result().await.unwrap(), n + 1);
        }
        let log = log.lock().unwrap().clone();
        let by = |who: &str, is_old: bool| {
            let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
            let mine = log.iter().filter(|line| line.starts_with(who));
            mine.filter(|line| (number(line) < 100) == is_old).count()
        };
        assert_eq!([by("old", true), by("new", false)], [40, 40], "{log:?}");
        assert_eq!([by("old", false), by("new", true)], [0, 0], "{log:?}");
        let handed = old.counters().handed_over + new.counters().handed_over;
        assert!(handed > 0);
        let cluster = client.cluster().await.unwrap();
        let names: Vec<&str> = cluster.pools.iter().map(|pool| &*pool.name).collect();
        assert!(names.contains(&"default@order/1") && names.contains(&"default@order/2"));
        old.shutdown().await;
        new.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_a_version_that_nobody_has_and_goes_on_when_somebody_comes() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let engines = [
            order(&store, 1, "one", &log).start().await.unwrap(),
            order(&store, 2, "two", &log).start().await.unwrap(),
        ];
        let client = engines[0].client();
        let run = client.start(ORDER.version(3), 5).await.unwrap();
        let waiting = "a runner with workflow `order` version 3; started runners serve 1, 2";
        until("the reason", async || {
            let info = run.info().await.unwrap();
            (info.waiting.as_deref() == Some(waiting)).then_some(())
        })
        .await;
        let why = format!("{:?}", run.why().await.unwrap());
        let named = "no live runner knows workflow `order` version 3; started runners serve 1, 2";
        assert!(why.contains(named), "{why}");
        let third = order(&store, 3, "three", &log).start().await.unwrap();
        run.send("add", &1_u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 6);
        assert_eq!(*log.lock().unwrap(), ["three begins 5", "three ends 5"]);
        third.shutdown().await;
        for engine in engines {
            engine.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_an_overflow_pool_wait_until_somebody_accepts_them_again() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let old = order(&store, 1, "old", &log).start().await.unwrap();
        let new = order(&store, 2, "new", &log).start().await.unwrap();
        let client = new.client();
        let is_shared = |cluster: &Cluster| shares(cluster).len() == 2 && shares(cluster)[0] > 60;
        until_cluster(&client, "two shares", is_shared).await;
        let mut runs = Vec::new();
        for n in 0..20 {
            runs.push(client.start(ORDER, n).await.unwrap());
        }
        for run in &runs {
            until_status(run, RunStatus::Sleeping).await;
        }
        assert_eq!(entries(&log, "old begins"), 20);
        old.shutdown().await;
        for run in &runs {
            run.send("add", &1_u32).await.unwrap();
        }
        // Those that were handed over are in a pool of which nobody is left; the others are at home
        // and nobody there has their code.
        for run in &runs {
            until("the reason", async || {
                let why = format!("{:?}", run.why().await.unwrap());
                let named = "no live runner knows workflow `order` version 1; \
                             started runners serve 2";
                why.contains(named).then_some(())
            })
            .await;
        }
        let next = order_accepting(&store, 1, 3, "next", &log);
        let next = next.start().await.unwrap();
        for (n, run) in runs.iter().enumerate() {
            assert_eq!(run.result().await.unwrap(), n as u32 + 1);
        }
        assert_eq!(entries(&log, "next ends"), 20);
        assert_eq!(entries(&log, "begins"), 20);
        next.shutdown().await;
        new.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_continues_in_another_pool_moves_there() {
    const ON_GPU: Workflow<u32, String> = Workflow::new("on_gpu");
    fn both(store: &Arc<dyn Store>, name: &'static str, pool: &str) -> EngineBuilder {
        let options = WorkflowOptions::new().pool("gpu");
        quick(Engine::on(store.clone()))
            .register_fn(RENDER, |ctx, n| async move {
                ctx.step("prepare", async || Ok(())).await?;
                ctx.continue_with(ON_GPU, n).await
            })
            .register_fn_with(ON_GPU, options, move |ctx, n| async move {
                ctx.step("render", async || Ok(())).await?;
                Ok(format!("{n} by {name}"))
            })
            .pools([pool])
    }
    for (store, _dir) in stores() {
        let web = both(&store, "web", "default").start().await.unwrap();
        let gpu = both(&store, "gpu", "gpu").start().await.unwrap();
        for n in 0..5 {
            let run = web.client().start(RENDER, n).await.unwrap();
            assert_eq!(run.result().await.unwrap(), format!("{n} by gpu"));
        }
        web.shutdown().await;
        gpu.shutdown().await;
    }
}

/// Takes everything from everybody, as a runner that believes them to be dead.
fn take_everything(store: &Arc<dyn Store>) {
    let now = Timestamp::from(std::time::SystemTime::now());
    let id = uuid::Uuid::from_u128(77);
    let runner = NewRunner::new(id, "usurper", now, Duration::from_secs(60));
    let victims: Vec<_> = store.runners().unwrap().iter().map(RunnerRow::as_gone).collect();
    let fence = store.register_runner(&runner).unwrap();
    let shards = ShardSet::of_default_pool();
    let held = store.take_shards(fence, now, &shards, &victims).unwrap();
    assert_eq!(held, Some(shards));
}

/// Stores whose first heartbeat is not answered before the sender is dropped: the lease of an engine
/// on it ends, and only a commit asks for it again.
fn drowsy_stores() -> Vec<(Arc<dyn Store>, tempfile::TempDir, mpsc::Sender<()>)> {
    fn drowsy<S: Store + 'static>(store: S) -> (Arc<dyn Store>, mpsc::Sender<()>) {
        let store = CrashingStore::counting(store);
        let (answer, unanswered) = mpsc::channel::<()>();
        store.fail_next("heartbeat", move || {
            _ = unanswered.recv();
            let store = "a store that did not answer".to_owned();
            StoreError::Closed { store }
        });
        (Arc::new(store), answer)
    }
    let (dir, file) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sqlite = SqliteStore::create(file.path().join("app.db")).unwrap();
    let (memory, sqlite) = (drowsy(MemoryStore::new()), drowsy(sqlite));
    vec![(memory.0, dir, memory.1), (sqlite.0, file, sqlite.1)]
}

fn with_short_lease(builder: EngineBuilder) -> EngineBuilder {
    builder.settings(|settings| settings.lease = Duration::from_millis(200))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_lease_is_over_asks_before_it_writes() {
    for (store, _dir, _answer) in drowsy_stores() {
        let log = Log::default();
        let engine = with_short_lease(order(&store, 1, "a", &log));
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(ORDER, 1).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        take_everything(&store);
        let client = engine.client();
        client.send(run.id(), "add", &1_u32).await.unwrap();
        until("the loss to be noticed", async || (engine.counters().self_fenced > 0).then_some(()))
            .await;
        let counters = engine.counters();
        assert_eq!(counters.stale_commits_refused, 0, "it wrote nothing");
        assert_eq!(entries(&log, "ends"), 0, "it began no body");
        drop(engine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_refuses_an_owner_that_does_not_look_at_its_clock() {
    for (store, _dir, _answer) in drowsy_stores() {
        let log = Log::default();
        let engine = with_short_lease(order(&store, 1, "a", &log)).without_self_fencing();
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(ORDER, 1).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        take_everything(&store);
        let client = engine.client();
        client.send(run.id(), "add", &1_u32).await.unwrap();
        until("a commit to be refused", async || {
            (engine.counters().stale_commits_refused > 0).then_some(())
        })
        .await;
        assert_eq!(engine.counters().self_fenced, 0);
        let row = store.run(&everstep::store::Target::Id(run.id())).unwrap();
        assert_eq!(row.unwrap().status, RunStatus::Sleeping, "nothing was changed");
        drop(engine);
    }
}

/// An engine with this version of `pair`, and the first version of `order`: it waits for the end of
/// the order with the key `one`, and for a message.
fn pair(store: &Arc<dyn Store>, version: u32, log: &Log) -> EngineBuilder {
    const PAIR: Workflow<(), u32> = Workflow::new("pair");
    order(store, 1, "it", log).register_fn(PAIR.version(version), |ctx, ()| async move {
        let (ended, added) =
            ctx.join("both", (ctx.finished(("order", "one")), ctx.listen::<u32>("add"))).await?;
        Ok(added + ended.output::<u32>()?.unwrap_or_default())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_version_is_missing_for_a_while_keeps_what_it_waits_for() {
    for (store, _dir) in stores() {
        let log = Log::default();
        let old = pair(&store, 1, &log).start().await.unwrap();
        let client = old.client();
        let one = client.start(ORDER, 5).key("one").await.unwrap();
        let both = Workflow::<(), u32>::new("pair");
        let both = client.start(both, ()).await.unwrap();
        until_status(&one, RunStatus::Sleeping).await;
        until_status(&both, RunStatus::Sleeping).await;
        let (one, both) = (one.id(), both.id());
        old.shutdown().await;
        let new = pair(&store, 2, &log).start().await.unwrap();
        let client = new.client();
        let (one, both) = (client.run::<u32>(one), client.run::<u32>(both));
        both.send("add", &1_u32).await.unwrap();
        until("the reason", async || {
            let waiting = both.info().await.unwrap().waiting;
            let named = "a runner with workflow `pair` version 1";
            waiting.is_some_and(|it| it.starts_with(named)).then_some(())
        })
        .await;
        // It ends while nobody has the code of the one that waits for it.
        one.send("add", &2_u32).await.unwrap();
        until_status(&one, RunStatus::Completed).await;
        let old = pair(&store, 1, &log).start().await.unwrap();
        until_status(&both, RunStatus::Completed).await;
        old.shutdown().await;
        new.shutdown().await;
    }
}
