//! What operators look at: the children of a run, its unread messages, all queues, counts by status
//! and charts.
#![allow(clippy::unwrap_used)]

use crate::scenario;
use crate::stores;

use everstep::{
    Client, EntryKind, Filter, InboxKind, Queue, RunId, RunStatus, prelude::*,
    testing::VirtualClock,
};
use scenario::{until, until_status};
use stores::{Place, on_each_store};

const PARENT: Workflow<u32, u32> = Workflow::new("parent");
const CHILD: Workflow<u32, u32> = Workflow::new("child");
const MAILS: Queue<u32, ()> = Queue::new("mails");
const THUMBS: Queue<u32, ()> = Queue::new("thumbs");

/// Starts two children that it awaits and one that it does not, and waits for `go`.
async fn parent(ctx: Ctx, n: u32) -> Result<u32> {
    let first = ctx.child(CHILD, n).await?;
    let second = ctx.child(CHILD, n + 1).key("second").await?;
    ctx.child(CHILD, 1_000).detach().await?;
    ctx.listen::<()>("go").await?;
    Ok(first + second)
}

/// Waits for `go` from 1 000 on, and fails from 100 on.
async fn child(ctx: Ctx, n: u32) -> Result<u32> {
    if n >= 1_000 {
        ctx.listen::<()>("go").await?;
    } else if n >= 100 {
        return Err(Error::fatal("too large"));
    }
    Ok(n)
}

async fn engine(place: &Place) -> Engine {
    let engine = place.engine().clock(VirtualClock::new());
    let engine = engine.register_fn(PARENT, parent).register_fn(CHILD, child);
    engine.start().await.unwrap()
}

async fn until_waiting<O>(run: &RunHandle<O>) {
    until_status(run, RunStatus::Sleeping).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_children_of_a_run_are_listed_newest_first() {
    on_each_store(async |place| {
        let engine = engine(place).await;
        let client = engine.client();
        // One that is there before with the key of the second: it is nobody's child.
        let other = client.start(CHILD, 8).key("second").await.unwrap();
        other.result().await.unwrap();
        let run = client.start(PARENT, 7).await.unwrap();
        until("it to wait for `go`", async || {
            let waiting = run.info().await.unwrap().waiting.unwrap_or_default();
            waiting.contains("`go`").then_some(())
        })
        .await;
        let all = run.children().await.unwrap();
        assert_eq!(all.next, None);
        let inputs: Vec<_> = all.runs.iter().map(|run| run.input.clone()).collect();
        assert_eq!(inputs, [1_000, 7]);
        assert!(all.runs.iter().all(|kid| kid.parent == Some(run.id())));
        let statuses: Vec<_> = all.runs.iter().map(|run| run.status).collect();
        assert_eq!(statuses[1], RunStatus::Completed);
        let page = run.children().limit(1).await.unwrap();
        assert_eq!((page.runs.len(), page.runs[0].id), (1, all.runs[0].id));
        let rest = run.children().after(page.next.unwrap()).await.unwrap();
        assert_eq!((rest.runs.len(), rest.runs[0].id), (1, all.runs[1].id));
        // The history names them, and the one that it has attached to.
        let history = run.history().await.unwrap();
        let children: Vec<RunId> = history
            .iter()
            .filter(|entry| entry.kind == EntryKind::Child)
            .filter_map(|entry| entry.child)
            .collect();
        assert_eq!(children.len(), 3);
        for id in [all.runs[0].id, all.runs[1].id, other.id()] {
            assert!(children.contains(&id));
        }
        // They are still known when all have ended.
        client.run::<u32>(all.runs[0].id).send("go", &()).await.unwrap();
        run.send("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 15);
        client.run::<u32>(all.runs[0].id).result().await.unwrap();
        assert_eq!(run.children().await.unwrap().runs.len(), 2);
        let nobody = client.run::<()>(other.id());
        assert!(nobody.children().await.unwrap().runs.is_empty());
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_messages_can_be_looked_at_and_are_read_all_the_same() {
    on_each_store(async |place| {
        let engine = engine(place).await;
        let run = engine.client().start(CHILD, 1_000).await.unwrap();
        until_waiting(&run).await;
        run.send("later", &"first").await.unwrap();
        run.send("later", &2).await.unwrap();
        for _ in 0..2 {
            let unread = run.inbox(10).await.unwrap();
            let seqs: Vec<u64> = unread.iter().map(|message| message.seq).collect();
            assert_eq!(seqs, [1, 2]);
            assert_eq!(unread[0].body, Some("first".into()));
            assert_eq!(unread[1].body, Some(2.into()));
            assert_eq!((&*unread[0].name, unread[0].kind), ("later", InboxKind::Message));
            assert_eq!((unread[0].is_request, &unread[0].location), (false, &None));
        }
        assert_eq!(run.inbox(1).await.unwrap().len(), 1);
        assert!(run.inbox(0).await.unwrap().is_empty());
        run.send("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 1_000);
        assert!(run.inbox(10).await.unwrap().is_empty());
        let unknown =
            engine.client().run::<()>("019a8a3c-0000-7000-8000-000000000000".parse().unwrap());
        assert!(unknown.inbox(10).await.is_err());
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_queues_are_listed_with_their_counts() {
    on_each_store(async |place| {
        let engine = engine(place).await;
        let client: Client = engine.client();
        assert!(client.queues().await.unwrap().is_empty());
        for n in 0..3 {
            client.enqueue(THUMBS, &n).await.unwrap();
        }
        client.enqueue(MAILS, &1).delay(hours(1)).await.unwrap();
        let queues = client.queues().await.unwrap();
        let names: Vec<&str> = queues.iter().map(|queue| &*queue.name).collect();
        assert_eq!(names, ["mails", "thumbs"]);
        let numbers = |queue: &everstep::QueueInfo| {
            let counts = [queue.ready, queue.delayed, queue.claimed, queue.done, queue.dead];
            assert!(counts.iter().all(|count| !count.or_more));
            counts.map(|count| count.number)
        };
        assert_eq!(numbers(&queues[0]), [0, 1, 0, 0, 0]);
        assert_eq!(numbers(&queues[1]), [3, 0, 0, 0, 0]);
        assert_eq!(queues[0].oldest_ready, None);
        assert!(queues[1].oldest_ready.is_some());
        assert_eq!(queues[1].ready.to_string(), "3");
        // One fails for good.
        let worker = client
            .work(THUMBS, 1, async |_, n: u32| match n {
                0 => Err(Error::fatal("it cannot be done")),
                _ => Ok(()),
            })
            .unwrap();
        let dead = until("all to be worked on", async || {
            let queues = client.queues().await.unwrap();
            let thumbs = queues.into_iter().find(|queue| queue.name == "thumbs")?;
            (thumbs.dead.number == 1 && thumbs.done.number == 2).then_some(thumbs)
        })
        .await;
        assert_eq!(numbers(&dead), [0, 0, 0, 2, 1]);
        worker.stop().await;
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_counted_by_status_and_shown_over_time() {
    on_each_store(async |place| {
        let engine = engine(place).await;
        let client = engine.client();
        let first = client.start(CHILD, 1).await.unwrap();
        first.result().await.unwrap();
        assert!(client.start(CHILD, 100).await.unwrap().result().await.is_err());
        let waits = client.start(CHILD, 1_000).await.unwrap();
        until_waiting(&waits).await;
        let counts = client.count_by_status(Filter::new()).await.unwrap();
        let of = |status| counts.of(status);
        assert_eq!((of(RunStatus::Completed), of(RunStatus::Failed)), (1, 1));
        assert_eq!((of(RunStatus::Sleeping), counts.total()), (1, 3));
        let none = Filter::new().workflow("parent");
        assert_eq!(client.count_by_status(none).await.unwrap().total(), 0);
        let failed = Filter::new().status(RunStatus::Failed);
        assert_eq!(client.count_by_status(failed).await.unwrap().total(), 1);
        let one = Filter::new().id(first.id());
        assert_eq!(client.count_by_status(one.clone()).await.unwrap().total(), 1);
        assert_eq!(client.list().filter(one).await.unwrap().runs[0].id, first.id());

        let from = first.info().await.unwrap().created_at - seconds(30);
        let (to, part) = (from + minutes(10), minutes(1));
        let stats = client.stats(from, to, part).await.unwrap();
        assert_eq!((stats.len(), stats[0].at), (10, from));
        let sum = |number: fn(&everstep::StatsBucket) -> u64| stats.iter().map(number).sum::<u64>();
        assert_eq!((sum(|it| it.started), sum(|it| it.completed)), (3, 1));
        assert_eq!((sum(|it| it.failed), sum(|it| it.cancelled)), (1, 0));
        let measured = stats.iter().filter(|it| it.p50.is_some() && it.p95.is_some());
        assert_eq!(measured.count(), 1);
        for (from, to, part) in [
            (to, from, part),
            (from, to, std::time::Duration::ZERO),
            (from, from + hours(4), minutes(1)),
        ] {
            let error = client.stats(from, to, part).await.unwrap_err();
            assert!(error.to_string().contains("at most 200 parts"), "{error}");
        }
        engine.shutdown().await;
    })
    .await;
}
