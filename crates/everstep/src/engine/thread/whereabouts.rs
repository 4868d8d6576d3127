//! Where a run is, as its engine thread sees it: for a drill that has found a run which stands still.

use std::fmt::Write as _;

use super::Worker;
use crate::{run_id::RunId, seam};

impl Worker {
    /// Everything that this thread knows of a run, for people.
    pub(super) fn whereabouts(&self, run: RunId) -> String {
        let no = run.no();
        let mut text = format!(
            "epoch {}, era {}, may own it: {}",
            self.shared.epoch(),
            self.shared.owned.era(),
            self.shared.owned.may_have(run),
        );
        // Writing to a text cannot fail.
        let mut say = |what: std::fmt::Arguments<'_>| _ = write!(text, "; {what}");
        let slot = self.by_no.get(&no);
        if let Some(task) = slot.and_then(|slot| self.tasks[*slot as usize].as_ref()) {
            let busy = task.busy_since.map(seam::elapsed);
            say(format_args!(
                "in memory: token {}, epoch {}, shard {:?}, its shard is owned: {}, queued: {}, in flight: {}, \
                 bodies {} (busy for {busy:?}), armed {:?}, hot: {}, leaving {:?}, come back: {}",
                task.token,
                task.epoch,
                task.shard,
                self.shared.owns(task.shard),
                task.queued,
                task.run.in_flight(),
                task.bodies,
                task.armed,
                task.hot.is_some(),
                task.leaving,
                task.come_back,
            ));
            say(format_args!("{}", task.run.core.whereabouts()));
        }
        if let Some(loading) = self.loading.get(&no) {
            let (ticket, era, epoch) = (loading.ticket, loading.era, loading.epoch);
            say(format_args!("is read: ticket {ticket}, era {era}, epoch {epoch}"));
        }
        let places = [
            ("is held", self.held.contains(&no)),
            ("is a suspect", self.suspects.iter().any(|(suspect, _)| *suspect == no)),
            ("is unserved", self.unserved.contains_key(&no)),
            ("is tried again", self.to_reconsider.contains(&no)),
        ];
        for (place, _) in places.iter().filter(|(_, is_there)| *is_there) {
            say(format_args!("{place}"));
        }
        let (moving, room) = (self.moving, self.shared.room());
        let (releasing, draining) = (self.releasing.len(), self.draining.is_some());
        say(format_args!(
            "the thread: {moving} moving, room for {room}, {} ready, {releasing} releases, drains: {draining}",
            self.ready.len(),
        ));
        text
    }
}
