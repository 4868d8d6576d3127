//! Stores around another one: such a store implements one method, [`Around::around`], which every
//! call goes through, and all methods of [`Store`] follow from it.
//!
//! A new method of [`Store`] is added here, and no store of a test or of the simulation changes.

use std::time::Duration;

use uuid::Uuid;

#[cfg(feature = "postgres")]
use crate::store::BoxFuture;
use crate::{
    commit::ItemId,
    run_id::{RunId, RunNo},
    store::{
        Answer, ApiTokenRow, Applied, Ask, AuditRow, Batch, Census, DeadLetter, Due, DueRun,
        DueSchedules, EndedItem, EventRow, Facts, Fence, Filter, Finished, Gone, InboxRow, ItemRow,
        ItemState, LetterFilter, LimitPlace, LimitRow, LoadedRun, NewAudit, NewRunner, PausedRun,
        PoolRow, Put, QueueOutlook, QueueRow, QueueStats, RunRow, RunStatus, RunnerRow,
        ScheduleRow, Secret, ShardSet, StatsRange, StatsRow, StatusCounts, Store, StoreCounters,
        StoreError, StreamExtent, StreamPage, Target, WakeFn, WakeGuard, WorkflowCount,
    },
    time::Timestamp,
};

/// A call of a store, with the arguments of those calls that decide what becomes of runs.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// Changes nothing.
    Read(&'static str),
    /// Changes rows that no run depends on, or brings the format up to date.
    Upkeep(&'static str),
    /// [`Store::commit`].
    Commit(&'a Batch),
    /// [`Store::register_runner`].
    Register(&'a NewRunner),
    /// [`Store::heartbeat`].
    Heartbeat(Fence, Timestamp, Duration),
    /// [`Store::take_shards`].
    Take(Fence, Timestamp, &'a ShardSet, &'a [Gone]),
    /// [`Store::release_shards`].
    Release(Fence, &'a ShardSet),
    /// [`Store::deregister_runner`].
    Deregister(Fence),
}

impl Call<'_> {
    /// The name of the method.
    pub fn method(&self) -> &'static str {
        match self {
            Call::Read(method) | Call::Upkeep(method) => method,
            Call::Commit(_) => "commit",
            Call::Register(_) => "register_runner",
            Call::Heartbeat(..) => "heartbeat",
            Call::Take(..) => "take_shards",
            Call::Release(..) => "release_shards",
            Call::Deregister(_) => "deregister_runner",
        }
    }
}

/// A call that decides what becomes of runs, with all that it takes to make it again in another store.
#[derive(Clone, Debug)]
pub enum Change {
    /// [`Store::commit`].
    Commit(Batch),
    /// [`Store::register_runner`].
    Register(NewRunner),
    /// [`Store::heartbeat`].
    Heartbeat(Fence, Timestamp, Duration),
    /// [`Store::take_shards`].
    Take(Fence, Timestamp, ShardSet, Vec<Gone>),
    /// [`Store::release_shards`].
    Release(Fence, ShardSet),
    /// [`Store::deregister_runner`].
    Deregister(Fence),
}

/// A store around another one. The methods with a default are those of [`Store`] that such a store may
/// want to answer itself.
pub trait Around: Send + Sync + 'static {
    /// The store inside.
    type Inner: Store;

    /// The store inside.
    fn inner(&self) -> &Self::Inner;

    /// Makes a call, or does not, and gives its answer, or another one.
    fn around<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&Self::Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError>;

    /// The time by which leases go, when the caller's clock shows this.
    fn lease_time(&self, now: Timestamp) -> Timestamp {
        now
    }

    /// See [`Store::commit`].
    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.around(Call::Commit(batch), |store| store.commit(batch))
    }

    /// See [`Store::is_local`].
    fn is_local(&self) -> bool {
        self.inner().is_local()
    }

    /// See [`Store::lanes_max`].
    fn lanes_max(&self) -> usize {
        self.inner().lanes_max()
    }

    /// See [`Store::time`].
    fn time(&self) -> Option<Timestamp> {
        self.inner().time()
    }

    /// See [`Store::time_is_old`].
    fn time_is_old(&self) -> bool {
        self.inner().time_is_old()
    }

    /// See [`Store::runner_is_dead`].
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        self.inner().runner_is_dead(runner)
    }

    /// See [`Store::wake_others`].
    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        self.inner().wake_others(me, runs);
    }

    /// See [`Store::on_wake`].
    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        self.around(Call::Read("on_wake"), |store| store.on_wake(me, wake))
    }

    /// See [`Store::counters`].
    fn counters(&self) -> StoreCounters {
        self.inner().counters()
    }
}

impl<A: Around> Store for A {
    fn describe(&self) -> String {
        self.inner().describe()
    }

    fn is_local(&self) -> bool {
        Around::is_local(self)
    }

    fn lanes_max(&self) -> usize {
        Around::lanes_max(self)
    }

    fn time(&self) -> Option<Timestamp> {
        Around::time(self)
    }

    fn time_is_old(&self) -> bool {
        Around::time_is_old(self)
    }

    fn ask_time(&self) -> Result<(), StoreError> {
        self.around(Call::Read("ask_time"), Store::ask_time)
    }

    fn migrate(&self) -> Result<(), StoreError> {
        self.around(Call::Upkeep("migrate"), Store::migrate)
    }

    fn secret(&self) -> Result<Secret, StoreError> {
        self.around(Call::Read("secret"), Store::secret)
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        Around::commit(self, batch)
    }

    #[cfg(feature = "sqlite")]
    fn commit_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        batch: &Batch,
    ) -> Result<Applied, StoreError> {
        // No change yet: it is made, or not, when the caller commits.
        self.around(Call::Read("commit_in"), |store| store.commit_in(tx, batch))
    }

    #[cfg(feature = "postgres")]
    fn commit_in_pg<'a>(
        &'a self,
        tx: &'a tokio_postgres::Transaction<'_>,
        batch: Batch,
    ) -> BoxFuture<'a, Result<Applied, StoreError>> {
        match self.around(Call::Read("commit_in_pg"), |_| Ok(())) {
            Ok(()) => self.inner().commit_in_pg(tx, batch),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        self.around(Call::Register(runner), |store| {
            let now = self.lease_time(runner.now);
            store.register_runner(&NewRunner { now, ..runner.clone() })
        })
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        self.around(Call::Heartbeat(fence, now, lease), |store| {
            store.heartbeat(fence, self.lease_time(now), lease)
        })
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Result<Option<ShardSet>, StoreError> {
        self.around(Call::Take(fence, now, wanted, gone), |store| {
            store.take_shards(fence, self.lease_time(now), wanted, gone)
        })
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        self.around(Call::Release(fence, shards), |store| store.release_shards(fence, shards))
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        self.around(Call::Deregister(fence), |store| store.deregister_runner(fence))
    }

    fn runner_is_dead(&self, runner: Uuid) -> bool {
        Around::runner_is_dead(self, runner)
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        Around::wake_others(self, me, runs);
    }

    fn after_wakes(&self, then: Box<dyn FnOnce() + Send>) {
        self.inner().after_wakes(then);
    }

    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        Around::on_wake(self, me, wake)
    }

    fn counters(&self) -> StoreCounters {
        Around::counters(self)
    }

    fn copy_to(
        &self,
        to: &std::path::Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, StoreError> {
        self.around(Call::Read("copy_to"), |store| store.copy_to(to, progress))
    }

    fn raise_horizon(&self, to: Timestamp) -> Result<(), StoreError> {
        self.around(Call::Upkeep("raise_horizon"), |store| store.raise_horizon(to))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> {
        self.around(Call::Upkeep("sweep"), |store| store.sweep(now, limit))
    }

    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> {
        self.around(Call::Read("run"), |store| store.run(target))
    }

    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> {
        self.around(Call::Read("load"), |store| store.load(run))
    }

    fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError> {
        self.around(Call::Read("inbox"), |store| store.inbox(run, after))
    }

    fn due(
        &self,
        now: Timestamp,
        shards: &ShardSet,
        after: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Due, StoreError> {
        self.around(Call::Read("due"), |store| store.due(now, shards, after, limit))
    }

    fn live(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<DueRun>, StoreError> {
        self.around(Call::Read("live"), |store| store.live(shards, after, limit))
    }

    fn paused(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<PausedRun>, StoreError> {
        self.around(Call::Read("paused"), |store| store.paused(shards, after, limit))
    }

    fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError> {
        self.around(Call::Read("census"), |store| store.census(now, shards))
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.around(Call::Read("list"), |store| store.list(filter, after, limit))
    }

    fn find(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        self.around(Call::Read("find"), |store| store.find(filter, after, limit))
    }

    fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<(RunId, Timestamp)>, StoreError> {
        self.around(Call::Read("finished_before"), |store| {
            store.finished_before(workflow, status, before, limit)
        })
    }

    fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.around(Call::Read("count"), |store| store.count(filter))
    }

    fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError> {
        self.around(Call::Read("count_by_status"), |store| store.count_by_status(filter))
    }

    fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError> {
        self.around(Call::Read("stats"), |store| store.stats(range))
    }

    fn horizon(&self) -> Result<Option<Timestamp>, StoreError> {
        self.around(Call::Read("horizon"), |store| store.horizon())
    }

    fn queues(
        &self,
        after: Option<&str>,
        limit: usize,
        most: u64,
    ) -> Result<Vec<QueueRow>, StoreError> {
        self.around(Call::Read("queues"), |store| store.queues(after, limit, most))
    }

    fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError> {
        self.around(Call::Read("children"), |store| store.children(parent))
    }

    fn unread(&self, run: RunNo, after: u64, limit: usize) -> Result<Vec<InboxRow>, StoreError> {
        self.around(Call::Read("unread"), |store| store.unread(run, after, limit))
    }

    fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError> {
        self.around(Call::Read("tally"), |store| store.tally())
    }

    fn history(
        &self,
        run: RunNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Put>, StoreError> {
        self.around(Call::Read("history"), |store| store.history(run, after, limit))
    }

    fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.around(Call::Read("state"), |store| store.state(run))
    }

    fn stream(
        &self,
        run: RunNo,
        stream: &str,
        from: u64,
        limit: usize,
    ) -> Result<Option<StreamPage>, StoreError> {
        self.around(Call::Read("stream"), |store| store.stream(run, stream, from, limit))
    }

    fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError> {
        self.around(Call::Read("streams"), |store| store.streams(run))
    }

    fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError> {
        self.around(Call::Read("streams_grown"), |store| store.streams_grown(asked))
    }

    fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError> {
        self.around(Call::Read("finished"), |store| store.finished(runs))
    }

    fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError> {
        self.around(Call::Read("answers"), |store| store.answers(requests))
    }

    fn dead_letters(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.around(Call::Read("dead_letters"), |store| store.dead_letters(filter, after, limit))
    }

    fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError> {
        self.around(Call::Read("event"), |store| store.event(name))
    }

    fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError> {
        self.around(Call::Read("events_to_tend"), |store| store.events_to_tend(now))
    }

    fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError> {
        self.around(Call::Read("queue_item"), |store| store.queue_item(item))
    }

    fn queue_items(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.around(Call::Read("queue_items"), |store| {
            store.queue_items(queue, state, after, limit)
        })
    }

    fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError> {
        self.around(Call::Read("queue_stats"), |store| store.queue_stats(queue))
    }

    fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError> {
        self.around(Call::Read("queue_outlook"), |store| store.queue_outlook(queue, now))
    }

    fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError> {
        self.around(Call::Read("first_place_lost"), |store| store.first_place_lost())
    }

    fn queue_ended(&self, items: &[ItemId]) -> Result<Vec<EndedItem>, StoreError> {
        self.around(Call::Read("queue_ended"), |store| store.queue_ended(items))
    }

    fn has_old_generations(&self) -> Result<bool, StoreError> {
        self.around(Call::Read("has_old_generations"), |store| store.has_old_generations())
    }

    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError> {
        self.around(Call::Read("schedule"), |store| store.schedule(name))
    }

    fn schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError> {
        self.around(Call::Read("schedules"), |store| store.schedules(after, limit))
    }

    fn due_schedules(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<DueSchedules, StoreError> {
        self.around(Call::Read("due_schedules"), |store| store.due_schedules(now, after, limit))
    }

    fn queued_schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleRow>, StoreError> {
        self.around(Call::Read("queued_schedules"), |store| store.queued_schedules(after, limit))
    }

    fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError> {
        self.around(Call::Read("limit_places"), |store| store.limit_places(run))
    }

    fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError> {
        self.around(Call::Read("limits"), |store| store.limits(name, limit))
    }

    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> {
        self.around(Call::Upkeep("begin_audit"), |store| store.begin_audit(begun))
    }

    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> {
        self.around(Call::Upkeep("end_audit"), |store| store.end_audit(no, outcome))
    }

    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.around(Call::Read("audits"), |store| store.audits(before, limit))
    }

    fn delete_audits(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.around(Call::Upkeep("delete_audits"), |store| store.delete_audits(before, limit))
    }

    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> {
        self.around(Call::Upkeep("add_api_token"), |store| store.add_api_token(token))
    }

    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
        self.around(Call::Upkeep("remove_api_token"), |store| store.remove_api_token(name))
    }

    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> {
        self.around(Call::Upkeep("note_api_token_used"), |store| {
            store.note_api_token_used(name, at)
        })
    }

    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> {
        self.around(Call::Read("api_tokens"), Store::api_tokens)
    }

    fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
        self.around(Call::Read("examine"), |store| store.examine(ask))
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.around(Call::Read("pools"), Store::pools)
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        self.around(Call::Read("runners"), Store::runners)
    }
}
