//! The methods of [`Store`](crate::store::Store) that both SQL stores have to the letter.

/// Methods for an `impl Store`, of a store that has `read` and `write`, which give a
/// [`Sql`](super::Sql), and the modules `due`, `stats` and `doctor` for what is its own.
macro_rules! shared_methods {
    () => {
        fn secret(&self) -> Result<Secret, StoreError> {
            self.read(|session| sql::deferreds::secret(session))
        }

        fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> {
            self.read(|session| sql::reads::run(session, target))
        }

        fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> {
            self.read(|session| sql::reads::load(session, run))
        }

        fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError> {
            self.read(|session| sql::reads::live_children(session, parent))
        }

        fn unread(
            &self,
            run: RunNo,
            after: u64,
            limit: usize,
        ) -> Result<Vec<InboxRow>, StoreError> {
            self.read(|session| sql::overview::unread(session, run, after, limit))
        }

        fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError> {
            self.read(|session| sql::columns::inbox_after(session, run, after))
        }

        fn due(
            &self,
            now: Timestamp,
            shards: &ShardSet,
            after: Option<(Timestamp, RunNo)>,
            limit: usize,
        ) -> Result<Due, StoreError> {
            self.read(|session| due::due(session, now, shards, after, limit))
        }

        fn live(
            &self,
            shards: &ShardSet,
            after: Option<RunNo>,
            limit: usize,
        ) -> Result<Vec<DueRun>, StoreError> {
            self.read(|session| sql::reads::live(session, shards, after, limit))
        }

        fn paused(
            &self,
            shards: &ShardSet,
            after: Option<RunNo>,
            limit: usize,
        ) -> Result<Vec<PausedRun>, StoreError> {
            self.read(|session| sql::reads::paused(session, shards, after, limit))
        }

        fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError> {
            self.read(|session| sql::reads::census(session, now, shards))
        }

        fn list(
            &self,
            filter: &Filter,
            after: Option<RunNo>,
            limit: usize,
        ) -> Result<Vec<RunRow>, StoreError> {
            self.read(|session| sql::listing::list(session, filter, after, limit))
        }

        fn find(
            &self,
            filter: &Filter,
            after: Option<RunNo>,
            limit: usize,
        ) -> Result<Vec<RunId>, StoreError> {
            self.read(|session| sql::listing::find(session, filter, after, limit))
        }

        fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
            self.read(|session| sql::overview::count(session, filter))
        }

        fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError> {
            self.read(|session| sql::overview::count_by_status(session, filter))
        }

        fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError> {
            self.read(|session| stats::stats(session, range))
        }

        fn horizon(&self) -> Result<Option<Timestamp>, StoreError> {
            self.read(|session| sql::overview::horizon(session))
        }

        fn raise_horizon(&self, to: Timestamp) -> Result<(), StoreError> {
            self.write(|session| sql::overview::raise_horizon(session, to))
        }

        fn queues(
            &self,
            after: Option<&str>,
            limit: usize,
            most: u64,
        ) -> Result<Vec<QueueRow>, StoreError> {
            self.read(|session| sql::overview::queues(session, after, limit, most))
        }

        fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError> {
            self.read(|session| sql::overview::tally(session))
        }

        fn finished_before(
            &self,
            workflow: &str,
            status: RunStatus,
            before: Timestamp,
            limit: usize,
        ) -> Result<Vec<(RunId, Timestamp)>, StoreError> {
            self.read(|session| {
                sql::sweep::finished_before(session, workflow, status, before, limit)
            })
        }

        fn history(
            &self,
            run: RunNo,
            after: Option<&[u8]>,
            limit: usize,
        ) -> Result<Vec<Put>, StoreError> {
            self.read(|session| sql::reads::history(session, run, after, limit))
        }

        fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
            self.read(|session| sql::reads::state(session, run))
        }

        fn stream(
            &self,
            run: RunNo,
            stream: &str,
            from: u64,
            limit: usize,
        ) -> Result<Option<StreamPage>, StoreError> {
            self.read(|session| sql::streams::page(session, run, stream, from, limit))
        }

        fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError> {
            self.read(|session| sql::streams::extents(session, run))
        }

        fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError> {
            self.read(|session| sql::streams::grown(session, asked))
        }

        fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError> {
            self.read(|session| sql::reads::finished(session, runs))
        }

        fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError> {
            self.read(|session| sql::reads::answers(session, requests))
        }

        fn dead_letters(
            &self,
            filter: &LetterFilter,
            after: u64,
            limit: usize,
        ) -> Result<Vec<DeadLetter>, StoreError> {
            self.read(|session| sql::letters::list(session, filter, after, limit))
        }

        fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError> {
            self.read(|session| sql::events::event_row(session, name))
        }

        fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError> {
            self.read(|session| sql::events::to_tend(session, now))
        }

        fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError> {
            self.read(|session| sql::queues::item(session, item))
        }

        fn queue_items(
            &self,
            queue: &str,
            state: Option<ItemState>,
            after: Option<ItemId>,
            limit: usize,
        ) -> Result<Vec<ItemRow>, StoreError> {
            self.read(|session| sql::queues::list(session, queue, state, after, limit))
        }

        fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError> {
            self.read(|session| sql::queues::stats(session, queue))
        }

        fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError> {
            self.read(|session| sql::queues::outlook(session, queue, now))
        }

        fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError> {
            self.read(|session| sql::queues::first_place_lost(session))
        }

        fn queue_ended(
            &self,
            items: &[ItemId],
        ) -> Result<Vec<(ItemId, Option<Vec<u8>>)>, StoreError> {
            self.read(|session| sql::queues::ended(session, items))
        }

        fn has_old_generations(&self) -> Result<bool, StoreError> {
            self.read(|session| sql::reads::has_old_generations(session))
        }

        fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError> {
            self.read(|session| sql::schedules::read_one(session, name))
        }

        fn schedules(
            &self,
            after: Option<&str>,
            limit: usize,
        ) -> Result<Vec<ScheduleRow>, StoreError> {
            self.read(|session| sql::schedules::read_all(session, after, limit))
        }

        fn due_schedules(
            &self,
            now: Timestamp,
            after: Option<(Timestamp, &str)>,
            limit: usize,
        ) -> Result<DueSchedules, StoreError> {
            self.read(|session| sql::schedules::read_due(session, now, after, limit))
        }

        fn queued_schedules(
            &self,
            after: Option<&str>,
            limit: usize,
        ) -> Result<Vec<ScheduleRow>, StoreError> {
            self.read(|session| sql::schedules::read_queued(session, after, limit))
        }

        fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError> {
            self.read(|session| sql::limits::places(session, run))
        }

        fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError> {
            self.read(|session| sql::limits::list(session, name, limit))
        }

        fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> {
            self.write(|session| sql::operators::begin_audit(session, begun))
        }

        fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> {
            self.write(|session| sql::operators::end_audit(session, no, outcome))
        }

        fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
            self.read(|session| sql::operators::audits(session, before, limit))
        }

        fn delete_audits(
            &self,
            before: Timestamp,
            limit: usize,
        ) -> Result<Option<Timestamp>, StoreError> {
            let oldest = self.read(|session| sql::operators::oldest_audit(session))?;
            if oldest.is_none_or(|oldest| oldest >= before) {
                return Ok(oldest);
            }
            self.write(|session| sql::operators::delete_audits(session, before, limit))
        }

        fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> {
            self.write(|session| sql::operators::add_api_token(session, token))
        }

        fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
            self.write(|session| sql::operators::remove_api_token(session, name))
        }

        fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> {
            self.write(|session| sql::operators::note_api_token_used(session, name, at))
        }

        fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> {
            self.read(|session| sql::operators::api_tokens(session))
        }

        fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
            self.read(|session| sql::doctor::examine(session, ask, doctor::place))
        }

        fn counters(&self) -> StoreCounters {
            StoreCounters {
                batches: self.counters.batches.load(Ordering::Relaxed),
                writes: self.counters.writes.load(Ordering::Relaxed),
                rows: self.counters.rows.load(Ordering::Relaxed),
                reads: self.counters.reads.load(Ordering::Relaxed),
            }
        }
    };
}
pub(crate) use shared_methods;
