//! Everything that can be read from a store, as one value to compare.

use super::*;

/// Everything that can be read.
#[derive(Debug, PartialEq)]
pub(super) struct Readings {
    pub(super) loaded: Vec<Option<LoadedRun>>,
    pub(super) states: Vec<Vec<(String, Vec<u8>)>>,
    pub(super) due: Due,
    pub(super) live: Vec<DueRun>,
    pub(super) paused: Vec<PausedRun>,
    pub(super) census: Census,
    pub(super) failed: Vec<RunRow>,
    pub(super) finished: Vec<(RunNo, Option<Finished>)>,
    pub(super) dead_letters: Vec<DeadLetter>,
    pub(super) queues: Vec<QueueReadings>,
    pub(super) items: Vec<Option<ItemRow>>,
    pub(super) events: Vec<Option<EventRow>>,
    pub(super) to_tend: bool,
    pub(super) streams: Vec<Vec<(StreamExtent, Option<StreamPage>)>>,
    pub(super) schedules: Vec<ScheduleRow>,
    pub(super) due_schedules: DueSchedules,
    pub(super) queued_schedules: Vec<ScheduleRow>,
    pub(super) limits: Vec<LimitRow>,
    pub(super) places: Vec<Vec<LimitPlace>>,
    pub(super) first_place_lost: Option<Timestamp>,
    pub(super) pools: Vec<PoolRow>,
    pub(super) runners: Vec<RunnerRow>,
    pub(super) answers: Vec<(Uuid, Answer)>,
    pub(super) ended: Vec<(ItemId, Option<Vec<u8>>)>,
    pub(super) found: Vec<RunId>,
    pub(super) tagged: u64,
    pub(super) over: Vec<(RunId, Timestamp)>,
    pub(super) unread: Vec<Vec<InboxRow>>,
    pub(super) pages: Vec<Vec<Put>>,
    pub(super) listed: Vec<Vec<RunRow>>,
    pub(super) grown: Vec<usize>,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) schedule: Option<ScheduleRow>,
    pub(super) keyed: Vec<Option<RunRow>>,
}

/// Everything that the store says about one queue.
#[derive(Debug, PartialEq)]
pub(super) struct QueueReadings {
    pub(super) items: Vec<ItemRow>,
    pub(super) claimed: Vec<ItemRow>,
    pub(super) stats: QueueStats,
    pub(super) outlook: QueueOutlook,
}

impl QueueReadings {
    pub(super) fn of(store: &dyn Store, queue: &str, now: Timestamp) -> QueueReadings {
        let after = Some(ItemId(3));
        QueueReadings {
            items: store.queue_items(queue, None, None, 1_000).expect("queue_items"),
            claimed: store
                .queue_items(queue, Some(ItemState::Claimed), after, 3)
                .expect("queue_items"),
            stats: store.queue_stats(queue).expect("queue_stats"),
            outlook: store.queue_outlook(queue, now).expect("queue_outlook"),
        }
    }
}

impl Random {
    /// One for each way to choose runs.
    pub(super) fn filters(&self, now: Timestamp) -> [Filter; 6] {
        let earlier = now - Duration::from_millis(20);
        let all = Filter::default;
        [
            Filter {
                statuses: vec![RunStatus::Running, RunStatus::Sleeping, RunStatus::Completed],
                workflow: Some("checkout".to_owned()),
                ..all()
            },
            Filter { tags: vec![("1".to_owned(), "0".to_owned())], ..all() },
            Filter { created_from: Some(earlier), created_before: Some(now), ..all() },
            Filter { version: Some(2), ..all() },
            Filter { key_prefix: Some("x/".to_owned()), ..all() },
            Filter { finished_from: Some(earlier), finished_before: Some(now), ..all() },
        ]
    }

    pub(super) fn list(&self, store: &dyn Store, filter: &Filter) -> Vec<RunRow> {
        let rows = store.list(filter, None, 5).expect("list").into_iter();
        rows.map(|row| self.open_numbers.comparable(store, row)).collect()
    }

    pub(super) fn read(&self, store: &dyn Store, now: Timestamp) -> Readings {
        let nos = self.runs.iter().map(|id| id.no()).collect::<Vec<_>>();
        let failed = Filter { statuses: vec![RunStatus::Failed], ..Filter::default() };
        let tagged = Filter { tags: vec![("1".to_owned(), "1".to_owned())], ..Filter::default() };
        let requests: Vec<Uuid> = self.names.requests.iter().copied().collect();
        let items: Vec<_> = (1..60).map(ItemId).collect();
        let loaded = nos.iter().map(|no| {
            let run = store.load(*no).expect("load");
            run.map(|run| LoadedRun { row: self.open_numbers.comparable(store, run.row), ..run })
        });
        let grown: Vec<_> = nos
            .iter()
            .flat_map(|no| [(*no, "a".to_owned(), 1), (*no, "b".to_owned(), 0)])
            .collect();
        let hello = LetterFilter { name: Some("hello".to_owned()), ..LetterFilter::default() };
        // Everything, or one pool.
        let pools: Vec<PoolNo> = match now.as_millis() % 4 {
            3 => (0..3).map(PoolNo).collect(),
            pool => vec![PoolNo(pool as u32)],
        };
        let shards = ShardSet::of_pools(pools);
        Readings {
            loaded: loaded.collect(),
            states: nos.iter().map(|no| store.state(*no).expect("state")).collect(),
            due: store.due(now, &shards, None, 100).expect("due"),
            live: store.live(&shards, None, 100).expect("live"),
            paused: store.paused(&shards, None, 100).expect("paused"),
            census: store.census(now, &shards).expect("census"),
            pools: store.pools().expect("pools"),
            failed: store.list(&failed, None, 100).expect("list"),
            finished: store.finished(&nos).expect("finished"),
            dead_letters: store
                .dead_letters(&LetterFilter::default(), 0, 1_000)
                .expect("dead_letters"),
            queues: (self.names.queues.iter())
                .map(|queue| QueueReadings::of(store, queue, now))
                .collect(),
            items: items
                .iter()
                .step_by(7)
                .map(|item| store.queue_item(*item).expect("queue_item"))
                .collect(),
            events: (self.names.events.iter())
                .map(|name| store.event(name).expect("event"))
                .collect(),
            to_tend: store.events_to_tend(now).expect("events_to_tend"),
            streams: nos.iter().map(|no| streams::read(store, *no)).collect(),
            schedules: store.schedules(None, 100).expect("schedules"),
            due_schedules: store.due_schedules(now, None, 100).expect("due_schedules"),
            queued_schedules: store.queued_schedules(None, 100).expect("queued_schedules"),
            limits: store.limits(None, 100).expect("limits"),
            places: nos.iter().map(|no| store.limit_places(*no).expect("limit_places")).collect(),
            first_place_lost: store.first_place_lost().expect("first_place_lost"),
            runners: store.runners().expect("runners"),
            answers: store.answers(&requests).expect("answers"),
            ended: store.queue_ended(&items).expect("queue_ended"),
            found: store.find(&Filter::default(), None, 100).expect("find"),
            tagged: store.count(&tagged).expect("count"),
            over: store
                .finished_before("checkout", RunStatus::Failed, now, 100)
                .expect("finished_before"),
            unread: nos.iter().map(|no| store.inbox(*no, 1).expect("inbox")).collect(),
            pages: nos
                .iter()
                .map(|no| store.history(*no, Some(&[1]), 2).expect("history"))
                .collect(),
            listed: self.filters(now).iter().map(|filter| self.list(store, filter)).collect(),
            grown: store.streams_grown(&grown).expect("streams_grown"),
            letters: store.dead_letters(&hello, 2, 3).expect("dead_letters"),
            schedule: store.schedule("x").expect("schedule"),
            keyed: (0..4)
                .map(|key| store.run(&of_key(key)).expect("run"))
                .map(|row| row.map(|row| self.open_numbers.comparable(store, row)))
                .collect(),
        }
    }
}
