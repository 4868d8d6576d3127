//! Children and those who wait for the end of a run, in memory.

use super::{
    rows::{ChildRow, ChildTables, Of, Waiter},
    *,
};

/// The rows.
#[derive(Clone, Default)]
pub(super) struct Children {
    pub(super) watchers: BTreeSet<(RunNo, Waiter)>,
    children: BTreeMap<RunNo, ChildRow>,
}

impl Data {
    pub(super) fn live_children(&self, parent: RunNo) -> Vec<RunId> {
        let all = self.children.children.values();
        let of_parent = all.filter(|child| child.parent.run == parent);
        let runs = of_parent.filter_map(|child| self.runs.get(&child.run));
        runs.map(|run| run.head.id).collect()
    }
}

impl ChildTables for Data {
    fn ended(&mut self, run: RunNo) -> Result<Option<Finished>, Infallible> {
        let run = self.runs.get(&run);
        let ended = run.filter(|run| run.head.status.is_terminal());
        Ok(ended.map(|run| run.finished()))
    }

    fn add_watcher(&mut self, run: RunNo, waiter: &Waiter) -> Result<(), Infallible> {
        self.children.watchers.insert((run, waiter.clone()));
        Ok(())
    }

    fn take_watchers(&mut self, run: RunNo) -> Result<Vec<Waiter>, Infallible> {
        let watchers = &mut self.children.watchers;
        let first = (run, Waiter::first_of(RunNo(i64::MIN)));
        let of_run = watchers.range(first..).take_while(|(watched, _)| *watched == run);
        let taken: Vec<(RunNo, Waiter)> = of_run.cloned().collect();
        for watcher in &taken {
            watchers.remove(watcher);
        }
        Ok(taken.into_iter().map(|(_, waiter)| waiter).collect())
    }

    fn remove_watches(&mut self, of: Of<'_>) -> Result<(), Infallible> {
        self.children.watchers.retain(|(_, waiter)| !of.includes(waiter));
        Ok(())
    }

    fn put_child(&mut self, child: &ChildRow) -> Result<(), Infallible> {
        self.children.children.insert(child.run, child.clone());
        Ok(())
    }

    fn children(&mut self, parent: RunNo) -> Result<Vec<ChildRow>, Infallible> {
        let all = self.children.children.values();
        let of_parent = all.filter(|child| child.parent.run == parent);
        Ok(of_parent.cloned().collect())
    }

    fn remove_child(&mut self, run: RunNo) -> Result<(), Infallible> {
        self.children.children.remove(&run);
        Ok(())
    }
}
