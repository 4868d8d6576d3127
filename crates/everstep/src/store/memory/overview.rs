//! What people look at from above, in memory.

use super::{
    queues::Queues,
    rows::{Durations, duration_ms},
    *,
};

impl Queues {
    pub(super) fn overview(&self, after: Option<&str>, limit: usize, most: u64) -> Vec<QueueRow> {
        let names: BTreeSet<&str> = self.names().collect();
        let names = names.into_iter().filter(|name| after.is_none_or(|it| *name > it));
        let rows = names.take(limit).map(|name| {
            let mut stats = self.stats(name);
            let counts = [
                &mut stats.ready,
                &mut stats.delayed,
                &mut stats.claimed,
                &mut stats.done,
                &mut stats.dead,
            ];
            counts.into_iter().for_each(|it| *it = (*it).min(most));
            let name = name.to_owned();
            QueueRow { name, stats }
        });
        rows.collect()
    }
}

impl Data {
    pub(super) fn count_by_status(&self, filter: &Filter) -> StatusCounts {
        let mut counts = StatusCounts::default();
        let runs = self.runs.values().filter(|run| run.matches(filter));
        runs.for_each(|run| counts.add(run.head.status, 1));
        counts
    }

    pub(super) fn stats(&self, range: &StatsRange) -> Vec<StatsRow> {
        let mut rows = vec![StatsRow::default(); range.len()];
        let mut durations = vec![Durations::default(); range.len()];
        for run in self.runs.values() {
            let no = run.head.id.no();
            if let Some(index) = range.index_of(RunId::started_at(no)) {
                rows[index].started += 1;
            }
            let ended = run.row.finished_at.and_then(|at| Some((range.index_of(at)?, at)));
            let Some((index, at)) = ended else { continue };
            rows[index].count(run.head.status, 1);
            if run.head.status == RunStatus::Completed {
                durations[index].add(duration_ms(no, at));
            }
        }
        for (row, durations) in rows.iter_mut().zip(durations) {
            durations.tell(row);
        }
        rows
    }
}
