//! Wake-ups between processes: `NOTIFY` after a commit, on a connection of its own.
//!
//! A notification is a hint that may be lost. It is never sent inside a batch: that would make every
//! commit of the database wait for the one before it. Those that queue up while one is on its way
//! become one.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, mpsc, oneshot};
use uuid::Uuid;

use super::{
    conn::{Route, block, runtime},
    dial::Line,
    error::Trouble,
    lock,
    locks::fnv,
};
use crate::{run_id::RunNo, store::WakeFn};

/// More runs than this are sent as "look for yourself": a payload has room for 8 000 bytes.
const RUNS_MAX: usize = 400;

/// How long an answer may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the answer of a call waits for the notifications that were sent before it.
const WAITED_FOR: Duration = Duration::from_secs(1);

/// How long to wait before the listening connection is made again.
const AGAIN: Duration = Duration::from_millis(500);

/// Sends wake-ups, and hands those of others to the listeners of this store.
pub(super) struct Wakes {
    /// Tells this store's notifications from those of others.
    me: Uuid,
    channel: String,
    route: Arc<Route>,
    listeners: Mutex<Vec<(Uuid, WakeFn)>>,
    /// Whether there may be somebody else to be told.
    has_others: AtomicBool,
    outbox: Mutex<Option<Outbox>>,
    /// [`WAITED_FOR`]; tests change it.
    pub(super) waited_for: Duration,
    is_listening: AtomicBool,
    /// Told when the store is gone, so that its connection goes with it.
    ended: Arc<Notify>,
}

/// The queue of the task that sends notifications.
struct Outbox {
    sender: mpsc::UnboundedSender<Item>,
    /// How many notifications were queued, and how many of them were sent or given up.
    queued: u64,
    done: Arc<AtomicU64>,
}

enum Item {
    Runs(Vec<RunNo>),
    /// To be told when the notifications before it were sent or given up.
    Mark(oneshot::Sender<()>),
}

/// Ends the calls of a listener.
pub(super) struct Listening {
    wakes: Arc<Wakes>,
    runner: Uuid,
}

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&self.wakes.listeners).retain(|(id, _)| *id != self.runner);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.ended.notify_one();
    }
}

impl Wakes {
    pub(super) fn new(route: &Arc<Route>) -> Wakes {
        let schema = fnv(route.schema.bytes());
        Wakes {
            me: crate::seam::random_uuid(),
            channel: format!("everstep_{schema:016x}"),
            route: Arc::clone(route),
            listeners: Mutex::default(),
            has_others: AtomicBool::new(true),
            outbox: Mutex::default(),
            waited_for: WAITED_FOR,
            is_listening: AtomicBool::new(false),
            ended: Arc::default(),
        }
    }

    /// Whether anybody listens in another process, as the list of runners says.
    pub(super) fn set_has_others(&self, has_others: bool) {
        self.has_others.store(has_others, Ordering::Relaxed);
    }

    /// Whether this runner listens here, and is told without the database.
    pub(super) fn is_here(&self, runner: Uuid) -> bool {
        lock(&self.listeners).iter().any(|(id, _)| *id == runner)
    }

    pub(super) fn listen(
        self: &Arc<Wakes>,
        runner: Uuid,
        wake: WakeFn,
    ) -> Result<Listening, Trouble> {
        // A pooler would hand the session, and our wake-ups with it, to somebody else.
        if !self.route.pooled && !self.is_listening.swap(true, Ordering::Relaxed) {
            // Before anything is asked for: from then on nothing is missed.
            let weak = Arc::downgrade(self);
            let of_task = weak.clone();
            let first = match block(async move { open(&of_task).await })? {
                Ok(line) => line,
                Err(error) => {
                    tracing::warn!(%error, "no listening connection to PostgreSQL; trying again");
                    None
                }
            };
            runtime()?.spawn(listen(weak, Arc::clone(&self.ended), first));
        }
        lock(&self.listeners).push((runner, wake));
        Ok(Listening { wakes: Arc::clone(self), runner })
    }

    /// Tells all others, here and elsewhere.
    pub(super) fn send(&self, me: Option<Uuid>, runs: &[RunNo]) {
        self.tell(me, runs);
        if !self.has_others.load(Ordering::Relaxed) {
            return;
        }
        let mut outbox = lock(&self.outbox);
        if outbox.is_none() {
            let Ok(runtime) = runtime() else { return };
            let (sender, receiver) = mpsc::unbounded_channel();
            let done = Arc::new(AtomicU64::new(0));
            runtime.spawn(notify(
                Arc::clone(&self.route),
                self.channel.clone(),
                self.me,
                receiver,
                Arc::clone(&done),
            ));
            let queued = 0;
            *outbox = Some(Outbox { sender, queued, done });
        }
        if let Some(outbox) = &mut *outbox {
            outbox.queued += 1;
            // The task ends with this store.
            let _ = outbox.sender.send(Item::Runs(runs.to_vec()));
        }
    }

    /// Calls `then` once all notifications that were queued before were sent or given up: at once if
    /// there is none, and after [`WAITED_FOR`] at the latest.
    pub(super) fn after(&self, then: Box<dyn FnOnce() + Send>) {
        let outbox = lock(&self.outbox);
        let under_way =
            outbox.as_ref().filter(|outbox| outbox.queued > outbox.done.load(Ordering::Acquire));
        let (Some(outbox), Ok(runtime)) = (under_way, runtime()) else {
            drop(outbox);
            return then();
        };
        let (mark, reached) = oneshot::channel();
        let _ = outbox.sender.send(Item::Mark(mark));
        let limit = self.waited_for;
        runtime.spawn(async move {
            // A hint that takes longer is found by the slow poll.
            let _ = tokio::time::timeout(limit, reached).await;
            then();
        });
    }

    /// Calls the listeners of this store.
    fn tell(&self, except: Option<Uuid>, runs: &[RunNo]) {
        let wakes: Vec<WakeFn> = lock(&self.listeners)
            .iter()
            .filter(|(id, _)| Some(*id) != except)
            .map(|(_, wake)| Arc::clone(wake))
            .collect();
        for wake in wakes {
            wake(runs);
        }
    }

    fn heard(&self, payload: &str) {
        let Some((sender, runs)) = payload.split_once(':') else {
            return self.tell(None, &[]);
        };
        if sender == self.me.simple().to_string() {
            return;
        }
        let runs = runs.split(',').filter(|run| !run.is_empty());
        let runs: Option<Vec<RunNo>> = runs
            // As it is written: without a sign.
            .map(|run| u64::from_str_radix(run, 16).ok())
            .map(|run| run.map(|run| RunNo(run as i64)))
            .collect();
        self.tell(None, &runs.unwrap_or_default());
    }
}

/// Makes a connection that listens; none if the store is gone.
async fn open(wakes: &Weak<Wakes>) -> Result<Option<Line>, Trouble> {
    let Some((route, channel)) =
        wakes.upgrade().map(|it| (Arc::clone(&it.route), it.channel.clone()))
    else {
        return Ok(None);
    };
    let of_connection = wakes.clone();
    let heard = Arc::new(move |payload: &str| {
        if let Some(wakes) = of_connection.upgrade() {
            wakes.heard(payload);
        }
    });
    let line = route.servers.connect(Some(heard), None).await?;
    let listen = format!("LISTEN {channel}");
    within(&line, line.client.batch_execute(&listen)).await?;
    Ok(Some(line))
}

/// Waits for an answer, and hangs up if it does not come.
async fn within<T>(
    line: &Line,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => {
            line.cut();
            Err(Trouble::Lost(format!("no answer after {PATIENCE:?}")))
        }
    }
}

/// Keeps a connection that listens for as long as the store lives.
async fn listen(wakes: Weak<Wakes>, ended: Arc<Notify>, first: Option<Line>) {
    let mut line = first;
    loop {
        if let Some(line) = &line {
            while !line.is_closed() {
                if wakes.strong_count() == 0 {
                    return;
                }
                // The permit of a call that came before is kept.
                _ = tokio::time::timeout(AGAIN, ended.notified()).await;
            }
            tracing::warn!("the listening connection to PostgreSQL was lost; making it again");
        }
        line = match open(&wakes).await {
            Ok(Some(line)) => {
                tracing::info!("wake-ups from other processes are listened to again");
                // What was sent in the meantime is lost.
                if let Some(wakes) = wakes.upgrade() {
                    wakes.tell(None, &[]);
                }
                Some(line)
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "no listening connection to PostgreSQL; trying again");
                tokio::time::sleep(AGAIN).await;
                None
            }
        };
    }
}

/// Sends what queues up, as one notification at a time.
async fn notify(
    route: Arc<Route>,
    channel: String,
    me: Uuid,
    mut receiver: mpsc::UnboundedReceiver<Item>,
    done: Arc<AtomicU64>,
) {
    let mut line: Option<Line> = None;
    while let Some(first) = receiver.recv().await {
        let mut items = 0;
        let mut look_for_yourself = false;
        let mut runs: BTreeSet<RunNo> = BTreeSet::new();
        let mut marks = Vec::new();
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Item::Runs(more) => {
                    items += 1;
                    look_for_yourself |= more.is_empty();
                    runs.extend(more);
                }
                Item::Mark(mark) => marks.push(mark),
            }
            next = receiver.try_recv().ok();
        }
        let list = if look_for_yourself || runs.len() > RUNS_MAX {
            String::new()
        } else {
            let runs: Vec<String> = runs.iter().map(|run| format!("{:x}", run.0)).collect();
            runs.join(",")
        };
        let sent = async {
            if items == 0 {
                return Ok(());
            }
            if line.as_ref().is_none_or(Line::is_closed) {
                line = Some(route.servers.connect(None, None).await?);
            }
            if let Some(line) = &line {
                let payload = format!("{}:{list}", me.simple());
                // Both are made of letters, digits, `_`, `:` and `,` alone. A hint need not be on the
                // server's disk before it is told.
                let sql = format!(
                    "SELECT set_config('synchronous_commit', 'off', true), \
                     pg_notify('{channel}', '{payload}')"
                );
                within(line, line.client.simple_query(&sql)).await?;
            }
            Ok::<_, Trouble>(())
        };
        if let Err(error) = sent.await {
            // A hint: those who were meant find their runs by the slow poll.
            tracing::debug!(%error, "a wake-up could not be sent");
            line = None;
        }
        done.fetch_add(items, Ordering::Release);
        for mark in marks {
            // Whoever waits for it may have given up.
            let _ = mark.send(());
        }
    }
}
