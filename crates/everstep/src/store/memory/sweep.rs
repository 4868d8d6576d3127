//! The sweep of what deletes have left, and the runs that retention deletes, in memory.

use super::*;

impl Data {
    /// Everything else was removed at once.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.graves.clear();
        self.tombstones.retain(|_, tombstone| !tombstone.is_over(now));
    }

    pub(super) fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Vec<(RunId, Timestamp)> {
        let of_workflow = self.runs.values().filter(|run| {
            *run.row.workflow == *workflow && run.head.status == status && status.is_terminal()
        });
        let mut ended: Vec<_> = of_workflow
            .filter_map(|run| Some((run.head.id, run.row.finished_at.filter(|at| *at < before)?)))
            .collect();
        ended.sort_by_key(|(id, at)| (*at, id.no()));
        ended.truncate(limit);
        ended
    }
}
