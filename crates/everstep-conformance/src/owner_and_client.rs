//! Two stores in one place, as two processes have them: an owner that commits, and a client.

use super::*;

/// Two stores of the same place behind one: what an owner does goes to one of them, what clients do to the
/// other.
pub struct OwnerAndClient<S> {
    /// The store of the process that owns the runs.
    pub owner: S,
    /// The store of another process.
    pub client: S,
    /// Whether the client may speak for the owner's runner: write with its fence, wake others in its
    /// name. Where a store remembers what its runner has done, every runner is one store's, as it
    /// is one process's.
    pub shares_runner: bool,
}

impl<S: Store> OwnerAndClient<S> {
    /// Whether a batch has to be the owner's.
    fn is_owners(&self, batch: &Batch) -> bool {
        batch.writes.iter().any(|write| match write {
            Write::Commit(_) | Write::Emit(_) => true,
            Write::Deliver(_)
            | Write::Control(..)
            | Write::Resolve(_)
            | Write::Publish(_)
            | Write::Tag(_)
            | Write::Rehome(_)
            | Write::Letter(_) => false,
            _ => !self.shares_runner,
        })
    }
}

#[rustfmt::skip] // One line for each method that only passes its arguments on.
impl<S: Store> Store for OwnerAndClient<S> {
    fn describe(&self) -> String { self.owner.describe() }
    fn is_local(&self) -> bool { self.owner.is_local() }
    fn time(&self) -> Option<Timestamp> { self.owner.time() }
    fn time_is_old(&self) -> bool { self.owner.time_is_old() }
    fn ask_time(&self) -> Result<(), StoreError> { self.owner.ask_time() }
    fn migrate(&self) -> Result<(), StoreError> { self.client.migrate() }
    fn secret(&self) -> Result<Secret, StoreError> { self.client.secret() }
    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        if self.is_owners(batch) {
            self.owner.commit(batch)
        } else {
            let fence = batch.fence.filter(|_| self.shares_runner);
            self.client.commit(&Batch { fence, now: batch.now, writes: batch.writes.clone() })
        }
    }
    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> { self.client.run(target) }
    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> { self.owner.load(run) }
    fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError> { self.owner.inbox(run, after) }
    fn due(&self, now: Timestamp, shards: &ShardSet, after: Option<(Timestamp, RunNo)>, limit: usize) -> Result<Due, StoreError> { self.owner.due(now, shards, after, limit) }
    fn live(&self, shards: &ShardSet, after: Option<RunNo>, limit: usize) -> Result<Vec<DueRun>, StoreError> { self.owner.live(shards, after, limit) }
    fn paused(&self, shards: &ShardSet, after: Option<RunNo>, limit: usize) -> Result<Vec<PausedRun>, StoreError> { self.owner.paused(shards, after, limit) }
    fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError> { self.owner.census(now, shards) }
    fn list(&self, filter: &Filter, after: Option<RunNo>, limit: usize) -> Result<Vec<RunRow>, StoreError> { self.client.list(filter, after, limit) }
    fn count(&self, filter: &Filter) -> Result<u64, StoreError> { self.client.count(filter) }
    fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError> { self.client.count_by_status(filter) }
    fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError> { self.client.stats(range) }
    fn queues(&self, after: Option<&str>, limit: usize, most: u64) -> Result<Vec<QueueRow>, StoreError> { self.client.queues(after, limit, most) }
    fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError> { self.client.children(parent) }
    fn unread(&self, run: RunNo, after: u64, limit: usize) -> Result<Vec<InboxRow>, StoreError> { self.client.unread(run, after, limit) }
    fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError> { self.client.tally() }
    fn find(&self, filter: &Filter, after: Option<RunNo>, limit: usize) -> Result<Vec<RunId>, StoreError> { self.client.find(filter, after, limit) }
    fn finished_before(&self, workflow: &str, status: RunStatus, before: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, StoreError> { self.owner.finished_before(workflow, status, before, limit) }
    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> { self.owner.sweep(now, limit) }
    fn history(&self, run: RunNo, after: Option<&[u8]>, limit: usize) -> Result<Vec<Put>, StoreError> { self.client.history(run, after, limit) }
    fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError> { self.client.state(run) }
    fn stream(&self, run: RunNo, stream: &str, from: u64, limit: usize) -> Result<Option<StreamPage>, StoreError> { self.client.stream(run, stream, from, limit) }
    fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError> { self.client.streams(run) }
    fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError> { self.client.streams_grown(asked) }
    fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError> { self.client.finished(runs) }
    fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError> { self.client.answers(requests) }
    fn dead_letters(&self, filter: &LetterFilter, after: u64, limit: usize) -> Result<Vec<DeadLetter>, StoreError> { self.client.dead_letters(filter, after, limit) }
    fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError> { self.client.event(name) }
    fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError> { self.client.events_to_tend(now) }
    fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError> { self.owner.queue_item(item) }
    fn queue_items(&self, queue: &str, state: Option<ItemState>, after: Option<ItemId>, limit: usize) -> Result<Vec<ItemRow>, StoreError> { self.client.queue_items(queue, state, after, limit) }
    fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError> { self.owner.queue_stats(queue) }
    fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError> { self.client.queue_outlook(queue, now) }
    fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError> { self.client.first_place_lost() }
    fn queue_ended(&self, items: &[ItemId]) -> Result<Vec<(ItemId, Option<Vec<u8>>)>, StoreError> { self.owner.queue_ended(items) }
    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError> { self.client.schedule(name) }
    fn schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError> { self.client.schedules(after, limit) }
    fn due_schedules(&self, now: Timestamp, after: Option<(Timestamp, &str)>, limit: usize) -> Result<DueSchedules, StoreError> { self.owner.due_schedules(now, after, limit) }
    fn queued_schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError> { self.owner.queued_schedules(after, limit) }
    fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError> { self.client.limit_places(run) }
    fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError> { self.client.limits(name, limit) }
    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> { self.client.begin_audit(begun) }
    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> { self.owner.end_audit(no, outcome) }
    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> { self.client.audits(before, limit) }
    fn delete_audits(&self, before: Timestamp, limit: usize) -> Result<Option<Timestamp>, StoreError> { self.owner.delete_audits(before, limit) }
    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> { self.client.add_api_token(token) }
    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> { self.client.remove_api_token(name) }
    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> { self.owner.note_api_token_used(name, at) }
    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> { self.owner.api_tokens() }
    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> { self.client.register_runner(runner) }
    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> { self.owner.heartbeat(fence, now, lease) }
    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> { self.client.pools() }
    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> { self.owner.runners() }
    fn take_shards(&self, fence: Fence, now: Timestamp, wanted: &ShardSet, dead: &[Uuid]) -> Result<Option<ShardSet>, StoreError> { self.client.take_shards(fence, now, wanted, dead) }
    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> { self.owner.release_shards(fence, shards) }
    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> { self.owner.deregister_runner(fence) }
    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) { if self.shares_runner { self.client.wake_others(me, runs) } else { self.owner.wake_others(me, runs) } }
    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> { self.owner.on_wake(me, wake) }
    fn lanes_max(&self) -> usize { self.owner.lanes_max() }
}
