//! Runs that are paused and resumed by others while they stand in line for a limit, or wait for an event,
//! a deferred, a child or a queue item: whatever their owner hears of it, and when, they are in its memory
//! or have a row that somebody will wake.

use super::*;
use crate::{
    commit::{
        Acquire, Batch, ClaimItems, Delivery, Effect, LimitRule, NewRun, OnEnd, Outcome, QueueDone,
        QueueWrite, Refusal, Settle, Settlement, Target,
    },
    ctx::Ctx,
    deferred::Deferred,
    limit::Limit,
    queue::Queue,
    registry::Registry,
    run::Definition,
    sabotage::Sabotage,
    store::MemoryStore,
    workflow::{Workflow, WorkflowOptions},
};

const ONE: Limit = Limit::new("one").concurrency(1);
const NEWS: crate::event::Event<()> = crate::event::Event::new("news");
const HOPE: Deferred<()> = Deferred::new("hope");
const TASKS: Queue<(), ()> = Queue::new("tasks");
const CHILD: Workflow<(), ()> = Workflow::new("child");
const RULE: LimitRule = LimitRule { concurrency: Some(1), rate: None };

/// One engine thread on a store, driven by hand, with a run that is in line for the limit `one`.
struct Line {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    worker: Worker,
    fence: Fence,
    ids: RunIds,
    /// The run that has the place.
    holder: RunId,
    /// The run that waits for it.
    run: RunId,
    /// Lets the body of `slow` end.
    slow: Arc<tokio::sync::watch::Sender<bool>>,
    runtime: tokio::runtime::Runtime,
}

impl Line {
    /// The code of the run: a step under the limit, alone or beside a slow one without a limit.
    fn registry(slow: &Arc<tokio::sync::watch::Sender<bool>>) -> Registry {
        let mut registry = Registry::default();
        let alone =
            |ctx: Ctx, (): ()| async move { ctx.step("s0", async || Ok(())).limit(ONE).await };
        let slow = slow.clone();
        let branches = move |ctx: Ctx, (): ()| {
            let slow = slow.clone();
            async move {
                let limited = ctx.step("s0", async || Ok(())).limit(ONE);
                let other = ctx.step("slow", async || {
                    let mut slow = slow.subscribe();
                    slow.wait_for(|ended| *ended).await?;
                    Ok(())
                });
                let (limited, other) = futures_util::future::join(limited, other).await;
                limited?;
                other
            }
        };
        let options = WorkflowOptions::new;
        let parent = |ctx: Ctx, (): ()| async move { ctx.child(CHILD, ()).await };
        let puts = |ctx: Ctx, (): ()| async move { ctx.enqueue(TASKS, &()).await };
        for definition in [
            Definition::new("event", 1, options(), |ctx: Ctx, (): ()| {
                ctx.event(NEWS).into_future()
            }),
            Definition::new("child", 1, options(), |ctx: Ctx, (): ()| {
                ctx.event(NEWS).into_future()
            }),
            Definition::new("deferred", 1, options(), |ctx: Ctx, (): ()| {
                ctx.deferred(HOPE).into_future()
            }),
            Definition::new("parent", 1, options(), parent),
            Definition::new("puts", 1, options(), puts),
            Definition::new("alone", 1, options(), alone),
            Definition::new("branches", 1, options(), branches),
            Definition::new("holder", 1, options(), |_: Ctx, (): ()| async { Ok(()) }),
        ] {
            registry.insert(definition).expect("its name is good");
        }
        registry
    }

    /// Calls `test` with a line on each store that this was built with.
    fn on_each_store(workflow: &str, sabotage: Option<Sabotage>, test: impl Fn(Line)) {
        let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::new())];
        #[cfg(feature = "sqlite")]
        let directory = tempfile::tempdir().expect("a directory");
        #[cfg(feature = "sqlite")]
        stores.push({
            let path = directory.path().join("app.db");
            Arc::new(crate::store::SqliteStore::create(path).expect("create"))
        });
        #[cfg(feature = "postgres")]
        stores.push({
            let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
            Arc::new(crate::store::PostgresStore::open(&url).expect("open"))
        });
        for store in stores {
            test(Line::new(store, workflow, sabotage));
        }
    }

    fn new(store: Arc<dyn Store>, workflow: &str, sabotage: Option<Sabotage>) -> Line {
        store.migrate().expect("migrate");
        let slow = Arc::new(tokio::sync::watch::Sender::new(false));
        let change = |settings: &mut crate::settings::Settings| settings.sabotage = sabotage;
        let shared = fixture::shared_on(store.clone(), Line::registry(&slow), change);
        let fence = fixture::enter(&shared);
        let all = ShardSet::of_default_pool();
        let held = store.take_shards(fence, shared.now(), &all, &[]);
        assert_eq!(held.expect("take_shards"), Some(all.clone()));
        assert!(shared.set_owned_if(fence, &all));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let worker = Worker::new(
            0,
            shared.clone(),
            Reader::new(store.clone(), shared.activity.clone()),
            Arc::default(),
            runtime.handle().clone(),
            Arc::default(),
        );
        let ids = RunIds::new(crate::seam::random());
        let mut line = Line {
            holder: ids.next(shared.now()),
            run: ids.next(shared.now()),
            store,
            shared,
            worker,
            fence,
            ids,
            slow,
            runtime,
        };
        let (holder, run) = (line.holder, line.run);
        line.hold(holder);
        line.start(run, workflow);
        line.worker.held.push_back(run.no());
        line.worker.admit_held();
        line.until("the run to be read", |line| line.in_memory());
        line
    }

    /// A write of somebody that this process does not hear of.
    fn write(&self, write: Write) -> Outcome {
        let batch = Batch { fence: Some(self.fence), now: self.shared.now(), writes: vec![write] };
        let mut applied = self.store.commit(&batch).expect("commit");
        applied.outcomes.remove(0)
    }

    fn control(&self, control: Control) {
        let outcome = self.write(Write::Control(Target::Id(self.run), control));
        assert!(matches!(outcome, Outcome::Controlled(_)), "{outcome:?}");
    }

    fn start(&self, id: RunId, workflow: &str) {
        let new = NewRun {
            id,
            workflow: workflow.into(),
            version: 1,
            key: None,
            pool: "default".into(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            trace: None,
            // Nothing, in CBOR.
            input: vec![0xF6],
            parent: None,
            claim: true,
        };
        let outcome = self.write(Write::Start(Box::new(new)));
        assert!(matches!(outcome, Outcome::Started(_)), "{outcome:?}");
    }

    /// A run that has the place, or stands in line for it.
    fn hold(&self, id: RunId) {
        self.start(id, "holder");
        let acquire = Effect::Acquire(Box::new(Acquire {
            limit: "one".to_owned(),
            limit_key: String::new(),
            rule: RULE,
            holds: true,
            key: vec![1],
        }));
        let commit =
            Commit { effects: vec![acquire], ..Commit::of_row(&self.row(id), Patch::Keep) };
        let outcome = self.write(Write::Commit(Box::new(commit)));
        assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    }

    /// Ends a run that has the place; who is let in is told.
    fn end(&mut self, id: RunId) {
        let patch = Patch::Finish { status: RunStatus::Completed, output: None, error: None };
        let write = Write::Commit(Box::new(Commit::of_row(&self.row(id), patch)));
        let reply = Reply::Owner { thread: 0, run: id.no() };
        let pending = Pending::under(self.fence.epoch, write, reply);
        committer::commit(&self.shared, vec![pending]);
    }

    fn row(&self, id: RunId) -> RunRow {
        let row = self.store.run(&Target::Id(id)).expect("run");
        row.expect("it is there")
    }

    /// How many have a place, and how many wait for one.
    fn places(&self) -> (u64, u64) {
        let limits = self.store.limits(Some("one"), 10).expect("limits");
        limits.first().map_or((0, 0), |row| (row.held, row.waiting))
    }

    fn in_memory(&self) -> bool {
        self.worker.by_no.contains_key(&self.run.no())
    }

    /// What has happened since is handled, up to what a run sends.
    fn handle(&mut self) {
        self.worker.env.now.set(self.shared.now());
        for event in self.shared.threads[0].take() {
            self.worker.handle(event);
        }
        self.worker.admit_held();
        while let Some(slot) = self.worker.ready.pop_front() {
            self.worker.drive(slot);
        }
    }

    /// What the thread has sent is committed and answered.
    fn commit(&mut self) {
        let sent = std::mem::take(&mut self.worker.out);
        if !sent.is_empty() {
            committer::commit(&self.shared, sent);
        }
        self.handle();
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Line) -> bool) {
        let until = Instant::now() + std::time::Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < until, "{} waits for {what}", self.store.describe());
            self.commit();
            std::thread::yield_now();
        }
    }

    /// As [`until`](Line::until), with a look for due runs in between.
    fn until_found(&mut self, what: &str, is_so: impl Fn(&Line) -> bool) {
        let until = Instant::now() + std::time::Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < until, "{} waits for {what}", self.store.describe());
            self.find_due();
            self.commit();
            std::thread::yield_now();
        }
    }

    /// A message that nothing in the run listens for.
    fn send(&self) {
        let delivery = Delivery {
            target: Target::Id(self.run),
            name: "unheard".to_owned(),
            body: Vec::new(),
            dedupe: None,
            request: None,
            inbox_max: 10,
            on_end: OnEnd::Error,
        };
        let outcome = self.write(Write::Deliver(Box::new(delivery)));
        assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
    }

    /// Lets the run look at its row, and learn what it has found.
    fn look(&mut self) {
        let looked = self.held_look();
        self.worker.handle(looked);
        self.handle();
    }

    /// Lets the run look at its row, and holds the answer back.
    fn held_look(&mut self) -> Event {
        self.worker.handle(Event::Look(self.run.no()));
        let until = Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let events = self.shared.threads[0].take();
            let (mut looked, others): (Vec<_>, Vec<_>) =
                events.into_iter().partition(|event| matches!(event, Event::Looked { .. }));
            others.into_iter().for_each(|event| self.worker.handle(event));
            if let Some(looked) = looked.pop() {
                return looked;
            }
            assert!(Instant::now() < until, "nothing is looked at");
            std::thread::yield_now();
        }
    }

    /// The owner looks at the paused run; it is resumed; the commit that was on its way (it parks, and
    /// asks for its place) lands on the live row; then the owner learns what it has looked at.
    fn pause_and_resume_around_a_commit(&mut self) {
        self.handle();
        assert_eq!(self.worker.out.len(), 1, "it parks, and asks for a place");
        self.control(Control::Pause);
        let looked = self.held_look();
        self.control(Control::Resume);
        self.commit();
        assert_eq!(self.places(), (1, 1));
        self.worker.handle(looked);
        self.handle();
        assert_eq!(self.worker.out.len(), 1, "it says what its bodies gave");
        self.commit();
    }
}

/// 8 of 480 runs hung for ever: the answer to the look put a run away that was live again, its place in
/// line was given away with that, and nobody read it again.
#[test]
fn a_run_in_line_that_is_resumed_before_its_owner_puts_it_away_goes_on() {
    Line::on_each_store("alone", None, |mut line| {
        line.pause_and_resume_around_a_commit();
        assert_eq!(line.places(), (1, 1), "it still stands in line");
        line.until("the run to be read again", Line::in_memory);
        let holder = line.holder;
        line.end(holder);
        line.until("the end of the run", |line| line.row(line.run).status == RunStatus::Completed);
        assert_eq!(line.places(), (0, 0));
    });
}

/// What the mend of the above mends, and what `cargo xtask crash --sabotage give-place-away` must find.
#[test]
fn sabotage_gives_the_place_of_a_live_run_away() {
    let sabotage = Some(Sabotage::GivePlaceAway);
    Line::on_each_store("alone", sabotage, |mut line| {
        line.pause_and_resume_around_a_commit();
        line.commit();
        let row = line.row(line.run);
        assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, None));
        assert_eq!(line.places(), (1, 0), "it stands in no line");
        assert!(!line.in_memory() && line.worker.loading.is_empty());
    });
}

/// A run that is paused is passed over in line. One that moved on beside its wait, and was resumed
/// before its owner heard of the pause, waited for ever for a place that it did not ask for again.
#[test]
fn a_run_that_was_passed_over_unheard_asks_for_its_place_again() {
    // A message has touched its row before, so that what the row says is not known.
    for (looks, is_sent_to) in [(false, false), (true, false), (true, true)] {
        Line::on_each_store("branches", None, |mut line| {
            line.until("a place in line", |line| line.places() == (1, 1));
            // Its entries and its row are written.
            line.until("it to be quiet", |line| line.worker.out.is_empty());
            if is_sent_to {
                line.send();
                line.look();
            }
            line.control(Control::Pause);
            let (first, second) = (line.holder, line.ids.next(line.shared.now()));
            line.end(first);
            line.hold(second);
            assert_eq!(line.places(), (1, 0), "it was passed over");
            line.control(Control::Resume);
            if looks {
                // While its other body still runs.
                line.look();
            } else {
                line.slow.send_replace(true);
            }
            line.until("a place in line again", |line| line.places() == (1, 1));
            line.slow.send_replace(true);
            line.end(second);
            line.until("the end of the run", |line| {
                line.row(line.run).status == RunStatus::Completed
            });
        });
    }
}

/// A commit is refused as `Gone` also when the run has begun anew: then its row says that it is in the
/// memory of its owner, and nobody else reads it.
#[test]
fn a_run_whose_commit_finds_another_generation_is_read_again() {
    Line::on_each_store("alone", None, |mut line| {
        line.handle();
        let slot = line.worker.by_no[&line.run.no()];
        let task = line.worker.tasks[slot as usize].as_ref();
        let run = task.expect("it is in memory").token;
        let Some(Write::Commit(commit)) = line.worker.out.pop().map(|it| it.write) else {
            panic!("it has sent a commit");
        };
        let answer = Answer::Outcome(Outcome::Refused(Refusal::Gone), Some(commit));
        let ack = Ack { slot, run, answer };
        line.worker.handle(Event::Acks(vec![ack]));
        assert!(!line.in_memory());
        line.until("the run to be read again", Line::in_memory);
    });
}

/// A run was paused in nobody's memory while it had a place under a limit, and its owner gave the place
/// back in a write whose outcome was not known. The write was not made, nobody looked at the run again,
/// and others waited for the place until somebody resumed the run.
#[test]
fn a_place_whose_return_has_an_unknown_outcome_is_given_back() {
    for is_made in [false, true] {
        let store = Arc::new(crate::testing::CrashingStore::counting(MemoryStore::new()));
        let mut line = Line::new(store.clone(), "alone", None);
        line.until("a place in line", |line| line.places() == (1, 1));
        line.until("it to be quiet", |line| line.worker.out.is_empty());
        assert_eq!(line.worker.make_cold(line.run.no()), crate::engine::mailbox::Leaves::Now);
        let patch = Patch::Finish { status: RunStatus::Completed, output: None, error: None };
        let ended = Commit::of_row(&line.row(line.holder), patch);
        assert!(matches!(line.write(Write::Commit(Box::new(ended))), Outcome::Committed(_)));
        line.control(Control::Pause);
        assert_eq!(line.places(), (1, 0), "it keeps the place that it was given");
        line.worker.handle(Event::Control(line.run.no(), Control::Pause));
        let until = Instant::now() + std::time::Duration::from_secs(20);
        while line.worker.out.is_empty() && Instant::now() < until {
            line.handle();
        }
        assert_eq!(line.worker.out.len(), 1, "it gives the place back");
        match is_made {
            true => store.lose_next("commit", fixture::unknown),
            false => store.fail_next("commit", fixture::unknown),
        }
        line.until("the place to be free", |line| line.places() == (0, 0));
        assert_eq!(line.row(line.run).status, RunStatus::Paused);
        line.control(Control::Resume);
        line.worker.handle(Event::Control(line.run.no(), Control::Resume));
        line.until("the end of the run", |line| line.row(line.run).status == RunStatus::Completed);
    }
}

/// A run that no code fitted was paused, and a deploy brought the code that fits. The engine resumed the
/// run in a write whose outcome was not known. It was not made, and the run stayed paused until the next
/// takeover of its shard.
#[test]
fn a_run_whose_resume_by_new_code_has_an_unknown_outcome_is_resumed() {
    for is_made in [false, true] {
        let store = Arc::new(crate::testing::CrashingStore::counting(MemoryStore::new()));
        let mut line = Line::new(store.clone(), "alone", None);
        let holder = line.holder;
        line.end(holder);
        let run = line.ids.next(line.shared.now());
        line.start(run, "holder");
        let reason = crate::run::Halt::NeverQuiet.to_string();
        let paused = Commit::of_row(&line.row(run), Patch::Pause { reason });
        assert!(matches!(line.write(Write::Commit(Box::new(paused))), Outcome::Committed(_)));
        line.until("the first run to end", |line| {
            line.row(line.run).status == RunStatus::Completed
        });
        line.worker.handle(Event::Reconsider(vec![run.no()]));
        let until = Instant::now() + std::time::Duration::from_secs(20);
        while line.worker.out.is_empty() && Instant::now() < until {
            line.handle();
        }
        match is_made {
            true => store.lose_next("commit", fixture::unknown),
            false => store.fail_next("commit", fixture::unknown),
        }
        line.until("the end of the run", |line| line.row(run).status == RunStatus::Completed);
    }
}

/// When somebody else pauses and resumes a run that begins to wait, and when what it waits for comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The owner looks at the paused run and learns what it saw after the resume and its own commit.
    StaleLook,
    /// The same, and the answer to the wait comes before the owner learns what it saw.
    AnswerBeforeStaleLook,
    /// The commit that begins the wait finds the run paused.
    CommitOnPaused,
    /// The answer comes while the run is paused, and the owner has heard of the pause.
    AnswerWhilePaused,
    /// The same, and the owner has heard of nothing.
    AnswerUnheard,
}

const ORDERS: [Order; 5] = [
    Order::StaleLook,
    Order::AnswerBeforeStaleLook,
    Order::CommitOnPaused,
    Order::AnswerWhilePaused,
    Order::AnswerUnheard,
];

impl Line {
    /// What another process does that has no engine.
    fn client(&self) -> crate::Client {
        crate::Client::on(self.store.clone()).expect("a client")
    }

    /// What the run waits for comes, from another process.
    fn answer(&self) {
        let (client, run) = (self.client(), self.run);
        match &*self.row(run).workflow {
            "event" | "parent" => {
                let published = self.runtime.block_on(client.publish(NEWS, &()).into_future());
                published.expect("publish");
            }
            "deferred" => {
                let resolved = client.run::<()>(run).deferred(HOPE).resolve(&());
                self.runtime.block_on(resolved.into_future()).expect("resolve");
            }
            "puts" => self.work(),
            other => unreachable!("`{other}` waits for nothing"),
        }
    }

    /// A worker in another process takes the item and is done with it.
    fn work(&self) {
        let claim = uuid::Uuid::from_u128(5);
        let wanted = ClaimItems {
            queue: "tasks".to_owned(),
            claim,
            max: 1,
            attempts_max: 3,
            visibility: std::time::Duration::from_secs(60),
            limit: None,
        };
        let claimed = self.write(Write::Queue(Box::new(QueueWrite::Claim(wanted))));
        let Outcome::Queue(QueueDone::Claimed(claimed)) = claimed else {
            panic!("{claimed:?}");
        };
        let [item] = &claimed.items[..] else { panic!("{claimed:?}") };
        let settlement = Settlement::Done(vec![0xF6]);
        let settle = Settle { item: item.item, claim, settlement };
        let settled = self.write(Write::Queue(Box::new(QueueWrite::Settle(settle))));
        assert_eq!(settled, Outcome::Queue(QueueDone::Settled(true)));
    }

    /// The look for due runs that each engine makes now and then, whatever hints were lost.
    fn find_due(&mut self) {
        let (now, all) = (self.shared.now(), ShardSet::of_default_pool());
        let due = self.store.due(now, &all, None, 100).expect("due");
        self.worker.handle(Event::Due { runs: due.runs, look: true });
    }

    /// Pauses and resumes the run around the commit with which it begins to wait.
    fn pause_and_resume(&mut self, order: Order) {
        self.handle();
        assert_eq!(self.worker.out.len(), 1, "it begins to wait");
        match order {
            Order::StaleLook | Order::AnswerBeforeStaleLook => {
                self.control(Control::Pause);
                let looked = self.held_look();
                self.control(Control::Resume);
                self.commit();
                if order == Order::AnswerBeforeStaleLook {
                    self.commit();
                    self.answer();
                }
                self.worker.handle(looked);
                self.handle();
            }
            Order::CommitOnPaused => {
                self.control(Control::Pause);
                self.commit();
                self.control(Control::Resume);
            }
            Order::AnswerWhilePaused => {
                self.commit();
                self.control(Control::Pause);
                self.look();
                self.commit();
                self.answer();
                self.control(Control::Resume);
            }
            Order::AnswerUnheard => {
                self.commit();
                self.control(Control::Pause);
                self.answer();
                self.control(Control::Resume);
            }
        }
    }

    /// Whether somebody waits for the answer in the store, so that it can be given.
    fn is_awaited(&self) -> bool {
        let row = self.row(self.run);
        row.status == RunStatus::Sleeping && row.waiting.is_some()
    }
}

/// A run in line for a limit that was paused and resumed while its owner committed hung for ever. The same
/// is done to each other wait for something that somebody else gives.
#[test]
fn a_run_that_is_paused_and_resumed_as_it_begins_to_wait_hears_of_what_it_waits_for() {
    for workflow in ["event", "deferred", "parent", "puts"] {
        for order in ORDERS {
            let test = |mut line: Line| {
                line.pause_and_resume(order);
                let what = format!("`{workflow}` after {order:?}");
                if matches!(order, Order::StaleLook | Order::CommitOnPaused) {
                    line.until(&format!("{what} to wait"), |line| {
                        line.is_awaited() && line.worker.out.is_empty()
                    });
                    line.answer();
                }
                line.until_found(&format!("the end of {what}"), |line| {
                    line.row(line.run).status == RunStatus::Completed
                });
            };
            match order {
                Order::StaleLook => Line::on_each_store(workflow, None, test),
                _ => test(Line::new(Arc::new(MemoryStore::new()), workflow, None)),
            }
        }
    }
}
