//! An owner of one run without threads: the store is real, time and the order of events are the
//! test's.
//!
//! What becomes durable does so by [`Store::commit`], so a crash is simple: the run is dropped,
//! and what the store has is loaded.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    future::Future,
    rc::Rc,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use super::{hands, sabotage};
use crate::{
    codec::{Value, payload},
    commit::{
        Batch, Commit, Delivery, Fence, InboxRow, LoadedRun, NewRun, Outcome, Refusal, RunRow,
        RunStatus, Target, Write,
    },
    ctx::Ctx,
    error::Result,
    history::{Entry, EntryKind, EntryStatus, OpId, decode_entry},
    location::keys,
    run::{
        Definition, Next, Run, RunSeed, Stage,
        core::{Core, Env, Phase},
        flush::CommitKind,
        wakers::WakeSink,
    },
    run_id::RunId,
    services::Services,
    settings::Settings,
    store::{MemoryStore, NewRunner, PoolNo, ShardSet, Store},
    time::Timestamp,
    workflow::WorkflowOptions,
};

/// Where time begins.
pub(super) const BEGINNING: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// Collects the wakes of bodies.
#[derive(Default)]
struct Sink(Mutex<Vec<OpId>>);

impl WakeSink for Sink {
    fn body_woken(&self, _: u32, _: u64, op: OpId) {
        self.0.lock().unwrap().push(op);
    }

    fn foreign_wake(&self, _: u32, _: u64) {}
}

/// What a crash leaves, and what a replay of it has to show.
pub(super) struct Point {
    pub(super) store: MemoryStore,
    pub(super) now: Timestamp,
    pub(super) view: View,
    /// Whether the store has something that the run did not know when it made its last commit.
    pub(super) news: bool,
    done: HashSet<String>,
}

/// What the code has seen, and what it has open, when a commit was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct View {
    pub(super) log: Vec<(u64, String)>,
    loops: HashMap<String, u64>,
    pub(super) open: Vec<String>,
    /// The last message that the run knew of.
    inbox: u64,
    now: Option<Timestamp>,
}

impl View {
    /// What was seen, without the iterations that a replay jumps over.
    ///
    /// An iteration that is not run again does not take its turn among the branches that are
    /// polled. So, if there are loops, the order of what is seen between two completions counts
    /// for nothing.
    pub(super) fn since(&self, other: &View) -> Vec<(u64, String)> {
        let past = |line: &str| {
            other.loops.iter().any(|(tag, at)| {
                let rest = line.strip_prefix(tag.as_str());
                let rest = rest.and_then(|rest| rest.strip_prefix(".r"));
                let digits = rest.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
                let n = digits.flatten().and_then(|n| n.parse::<u64>().ok());
                n.is_some_and(|n| n < *at)
            })
        };
        let lines = self.log.iter().filter(|(_, line)| !past(line));
        let mut lines: Vec<_> = lines.cloned().collect();
        if !other.loops.is_empty() {
            lines.sort();
        }
        lines
    }
}

/// How a run has left its owner's hands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Gone {
    Finished(RunStatus),
    Paused(String),
}

pub(super) struct Owner {
    pub(super) store: MemoryStore,
    fence: Fence,
    pub(super) id: RunId,
    definition: Arc<Definition>,
    pub(super) env: Rc<Env>,
    sink: Arc<Sink>,
    pub(super) run: Option<Run>,
    sent: Option<(Commit, CommitKind, View)>,
    /// Messages that are stored, and of which the run has not been told.
    untold: Vec<InboxRow>,
    /// The commits of the run that were made, its start included.
    pub(super) commits: Vec<Commit>,
    pub(super) gone: Option<Gone>,
    /// The number of the last forward completion when the rollbacks began.
    pub(super) rolled_back_at: Option<u64>,
    points: Option<Vec<Point>>,
    durable: View,
    token: u64,
}

/// A workflow for tests; its input is nothing.
pub(super) fn workflow<O, F, R>(function: F) -> Arc<Definition>
where
    O: Value,
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O>> + 'static,
{
    workflow_with(WorkflowOptions::new(), function)
}

pub(super) fn workflow_with<O, F, R>(options: WorkflowOptions, function: F) -> Arc<Definition>
where
    O: Value,
    F: Fn(Ctx) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O>> + 'static,
{
    Arc::new(Definition::new("w", 1, options, move |ctx, (): ()| function(ctx)))
}

fn env(now: Timestamp) -> Rc<Env> {
    Rc::new(Env {
        settings: Arc::new(Settings { sabotage: sabotage::active(), ..Settings::default() }),
        services: Arc::new(Services::default()),
        runtime: None,
        runtime_gone: Arc::new(AtomicBool::new(false)),
        now: Cell::new(now),
        owner: None,
        ids: crate::run_id::RunIds::new(1),
        epoch: Cell::new(0),
        children: Cell::new(0),
        stalled: Cell::new(false),
        secret: crate::store::Secret::new([1; 32]),
    })
}

impl Owner {
    /// A new run, claimed and not yet driven.
    pub(super) fn start(definition: Arc<Definition>) -> Owner {
        hands::reset();
        let store = MemoryStore::new();
        let id: RunId = "019b7000-0000-7000-8000-000000000001".parse().unwrap();
        let runner = NewRunner::new(
            uuid::Uuid::from_u128(1),
            "test",
            BEGINNING,
            Duration::from_secs(1 << 40),
        );
        let fence = store.register_runner(&runner).unwrap();
        let shards: ShardSet = [id.shard_in(PoolNo::DEFAULT)].into_iter().collect();
        store.take_shards(fence, BEGINNING, &shards, &[]).unwrap();
        let new = NewRun {
            id,
            workflow: definition.name.clone(),
            version: 1,
            key: None,
            pool: definition.options.pool.clone(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            trace: None,
            input: payload::to_vec(&()).unwrap(),
            parent: None,
            claim: true,
        };
        let mut owner = Owner {
            store,
            fence,
            id,
            definition,
            env: env(BEGINNING),
            sink: Arc::default(),
            run: None,
            sent: None,
            untold: Vec::new(),
            commits: Vec::new(),
            gone: None,
            rolled_back_at: None,
            points: None,
            durable: View::default(),
            token: 1,
        };
        owner.write(Write::Start(Box::new(new.clone())));
        owner.put_in(RunSeed::claimed(new, BEGINNING));
        owner
    }

    /// Whoever takes the run up after a crash at this point.
    pub(super) fn after(point: &Point, definition: Arc<Definition>, like: &Owner) -> Owner {
        hands::reset();
        hands::set_done(point.done.clone());
        let mut owner = Owner {
            store: point.store.fork(),
            fence: like.fence,
            id: like.id,
            definition,
            env: env(point.now),
            sink: Arc::default(),
            run: None,
            sent: None,
            untold: Vec::new(),
            commits: Vec::new(),
            gone: None,
            rolled_back_at: None,
            points: None,
            durable: point.view.clone(),
            token: 1,
        };
        owner.reload();
        owner
    }

    /// The same run, taken up from what is stored now.
    pub(super) fn load(like: &Owner, definition: Arc<Definition>) -> Owner {
        let point = Point {
            store: like.store.fork(),
            now: like.env.now.get(),
            view: View::default(),
            news: true,
            done: HashSet::new(),
        };
        Owner::after(&point, definition, like)
    }

    /// Notes every crash point from now on.
    pub(super) fn record(&mut self) {
        self.points = Some(Vec::new());
        self.note_point(true);
    }

    pub(super) fn take_points(&mut self) -> Vec<Point> {
        self.points.take().unwrap_or_default()
    }

    fn note_point(&mut self, news: bool) {
        if self.points.is_none() {
            return;
        }
        let point = Point {
            store: self.store.fork(),
            now: self.durable.now.unwrap_or(BEGINNING),
            view: self.durable.clone(),
            news: news || self.row().inbox_seq != self.durable.inbox,
            done: hands::done(),
        };
        if let Some(points) = &mut self.points {
            points.push(point);
        }
    }

    pub(super) fn write(&self, write: Write) -> Outcome {
        let batch = Batch { fence: Some(self.fence), now: self.env.now.get(), writes: vec![write] };
        self.store.commit(&batch).unwrap().outcomes.remove(0)
    }

    fn put_in(&mut self, seed: RunSeed) {
        self.token += 1;
        self.run = None;
        self.sent = None;
        self.sink = Arc::default();
        let run = Run::new(
            seed,
            self.definition.clone(),
            self.env.clone(),
            self.sink.clone(),
            self.token,
        );
        run.core.root.set_slot(0);
        hands::new_process(run.flush.stored_number);
        self.run = Some(run);
    }

    pub(super) fn loaded(&self) -> LoadedRun {
        self.store.load(self.id.no()).unwrap().expect("the run is stored")
    }

    pub(super) fn row(&self) -> RunRow {
        let row = self.store.run(&Target::Id(self.id)).unwrap();
        row.expect("the run is stored")
    }

    /// The stored entries by what people call their places.
    pub(super) fn entries(&self) -> Vec<(String, Entry)> {
        let all = self.loaded().history.into_iter();
        let entries = all.filter(|put| !keys::is_of_run(&put.key));
        let decoded = entries.map(|put| {
            let entry = decode_entry(&put.value).expect("a stored entry");
            (keys::describe(&put.key), entry)
        });
        decoded.collect()
    }

    pub(super) fn entry(&self, place: &str) -> Option<Entry> {
        let found = self.entries().into_iter().find(|(at, _)| at == place);
        found.map(|(_, entry)| entry)
    }

    /// Crashes, if it is in memory, and takes up what is stored.
    pub(super) fn reload(&mut self) {
        let loaded = self.loaded();
        let again = loaded.history.iter().any(|put| put.key == keys::failure_origins());
        self.untold.clear();
        self.put_in(RunSeed::from(loaded));
        if again && self.is_forward() {
            self.keep_done();
        }
    }

    /// Crashes, and takes up what is stored once the deadline of the run has passed.
    pub(super) fn reload_past_deadline(&mut self) {
        let mut loaded = self.loaded();
        loaded.row.deadline_at = Some(self.env.now.get());
        self.put_in(RunSeed::from(loaded));
    }

    /// A retry of the run has made some steps fresh: those may start again, the others may not.
    fn keep_done(&mut self) {
        let kept: HashSet<String> = {
            let st = self.run().core.state.borrow();
            let ended = st.history.iter().filter(|(_, slot)| slot.entry.status.is_terminal());
            ended.map(|(key, _)| Core::location(key)).collect()
        };
        let mut done = hands::done();
        done.retain(|place| kept.contains(place));
        hands::set_done(done);
    }

    /// Goes on with other code, from what is stored.
    pub(super) fn deploy(&mut self, definition: Arc<Definition>) {
        self.definition = definition;
        if self.row().status == RunStatus::Paused {
            let target = Target::Id(self.id);
            self.write(Write::Control(target, crate::commit::Control::Resume));
        }
        self.gone = None;
        self.reload();
    }

    pub(super) fn run(&mut self) -> &mut Run {
        self.run.as_mut().expect("the run is in memory")
    }

    /// The code runs as far as it goes; a commit that it needs is made ready.
    pub(super) fn drive(&mut self) {
        let Some(run) = &mut self.run else { return };
        for op in std::mem::take(&mut *self.sink.0.lock().unwrap()) {
            run.core.body_woken(op);
        }
        run.drive();
        if self.sent.is_none()
            && let Some(sent) = run.next_commit()
        {
            let view = self.view();
            self.sent = Some((sent.commit, sent.kind, view));
        }
    }

    /// What the code has seen and has open now.
    pub(super) fn view(&self) -> View {
        let (log, loops) = hands::seen();
        let mut open = Vec::new();
        if let Some(run) = &self.run {
            let st = run.core.state.borrow();
            let ops = st.ops.iter().filter(|(_, op)| op.phase != Phase::Taken);
            open.extend(ops.map(|(_, op)| Core::location(&op.key)));
            open.sort();
        }
        let inbox = self.run.as_ref().map_or(0, Run::inbox_seen);
        View { log, loops, open, inbox, now: Some(self.env.now.get()) }
    }

    pub(super) fn in_flight(&self) -> bool {
        self.sent.is_some()
    }

    /// The commit in flight is made, or refused.
    pub(super) fn ack(&mut self) {
        let Some((commit, kind, view)) = self.sent.take() else {
            return;
        };
        let outcome = self.write(Write::Commit(Box::new(commit.clone())));
        let Some(run) = &mut self.run else { return };
        let next = match outcome {
            Outcome::Committed(delivered) => {
                let released_after = note_durable(&commit);
                self.commits.push(commit);
                self.durable = view;
                let next = run.committed(&delivered);
                if kind == CommitKind::RollBack {
                    self.rolled_back_at = self.commits.last().map(|commit| commit.last_number);
                }
                self.left(kind);
                // A timeout is committed first and released after.
                let news = kind == CommitKind::Again || released_after;
                self.note_point(news);
                next
            }
            Outcome::Refused(refusal @ Refusal::InboxMoved { .. }) => run.refused(refusal, commit),
            other => panic!("a commit of the run was answered with {other:?}"),
        };
        match next {
            Next::Drive => {}
            Next::Reload => self.reload(),
            Next::Drop if kind == CommitKind::Again => {
                let at = self.row().available_at.expect("a run that is tried again is due");
                self.set_now(at);
                self.reload();
            }
            Next::Drop => self.run = None,
        }
    }

    fn left(&mut self, kind: CommitKind) {
        match kind {
            CommitKind::Finish(status) => self.gone = Some(Gone::Finished(status)),
            CommitKind::Pause => {
                let why = self.row().waiting.unwrap_or_default();
                self.gone = Some(Gone::Paused(why));
            }
            _ => {}
        }
    }

    /// Drives and commits until only the outside can move the run.
    pub(super) fn settle(&mut self) {
        loop {
            self.drive();
            if self.sent.is_none() {
                return;
            }
            self.ack();
        }
    }

    /// Lets the body at this place end, and settles.
    pub(super) fn finish(&mut self, place: &str) {
        let held = hands::held();
        let found = held.iter().find(|(_, at)| at == place);
        let Some((id, _)) = found else {
            panic!("no body is in flight at `{place}`, but at {held:?}");
        };
        hands::let_go(*id);
        self.settle();
    }

    /// Lets every body end, again and again, until none is left; fires timers if `timers`.
    pub(super) fn finish_all(&mut self) {
        self.settle();
        while self.gone.is_none() {
            if let Some((id, _)) = hands::held().first() {
                hands::let_go(*id);
            } else if !self.fire_next_timer() {
                return;
            }
            self.settle();
        }
    }

    pub(super) fn set_now(&mut self, now: Timestamp) {
        self.env.now.set(now.max(self.env.now.get()));
    }

    /// Time moves to the next timer.
    pub(super) fn fire_next_timer(&mut self) -> bool {
        let next = self.run.as_ref().and_then(Run::next_timer);
        if let Some(at) = next {
            self.set_now(at);
        }
        next.is_some()
    }

    /// Stores a message. The run is told with [`tell`](Owner::tell).
    pub(super) fn deliver(&mut self, name: &str, body: &str) {
        let delivery = Delivery {
            target: Target::Id(self.id),
            name: name.into(),
            body: payload::to_vec(&body).unwrap(),
            dedupe: None,
            request: None,
            inbox_max: 10_000,
            on_end: crate::commit::OnEnd::Error,
        };
        let outcome = self.write(Write::Deliver(Box::new(delivery)));
        let Outcome::Delivered(delivered) = outcome else {
            panic!("a delivery was answered with {outcome:?}");
        };
        let seq = delivered.seq.expect("the message has a place");
        let rows = self.store.inbox(self.id.no(), seq - 1).unwrap();
        self.untold.extend(rows);
        self.note_point(true);
    }

    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Tells the run of the messages that are stored.
    pub(super) fn tell(&mut self) {
        let rows = std::mem::take(&mut self.untold);
        if let Some(run) = &mut self.run {
            run.deliver(rows);
        }
    }

    pub(super) fn send(&mut self, name: &str, body: &str) {
        self.deliver(name, body);
        self.tell();
        self.settle();
    }

    pub(super) fn listens(&self) -> bool {
        self.run.as_ref().is_some_and(|run| {
            let st = run.core.state.borrow();

            st.ops.iter().any(|(_, op)| matches!(op.phase, Phase::Listening { .. }))
        })
    }

    /// Wakes an open operation for nothing.
    pub(super) fn disturb(&mut self, pick: usize) {
        let Some(run) = &self.run else { return };
        let ops: Vec<OpId> = run.core.state.borrow().ops.iter().map(|(id, _)| id).collect();
        if !ops.is_empty() {
            run.core.wake(ops[pick % ops.len()]);
        }
    }

    /// Whether workflow code is what the run is about now.
    pub(super) fn is_forward(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.stage == Stage::Forward)
    }

    pub(super) fn paused(&self) -> &str {
        match &self.gone {
            Some(Gone::Paused(why)) => why,
            other => panic!("the run should be paused, but is {other:?}"),
        }
    }

    pub(super) fn output<T: serde::de::DeserializeOwned>(&self) -> T {
        let row = self.row();
        assert_eq!(row.status, RunStatus::Completed, "{:?}", row.waiting);
        payload::from_slice(&row.output.expect("an output")).expect("the output decodes")
    }
}

/// Notes what has become durable; whether something in it is released only after that.
fn note_durable(commit: &Commit) -> bool {
    hands::set_durable_number(commit.last_number);
    let mut released_after = false;
    for put in &commit.puts {
        if keys::is_of_run(&put.key) || put.key.starts_with(keys::SET_ASIDE) {
            continue;
        }
        let entry = decode_entry(&put.value).expect("an entry");
        let has_body = matches!(entry.kind, EntryKind::Step | EntryKind::Rollback);
        if has_body && entry.status.is_terminal() {
            hands::note_done(keys::describe(&put.key));
        }
        released_after |= entry.kind == EntryKind::Listen
            && entry.status == EntryStatus::TimedOut
            && entry.number.is_none();
    }
    released_after
}
