//! Paused runs that the code of this process may mend.
//!
//! A run that was paused because its code did not fit goes on when code comes that does. Each
//! engine tries the ones it finds when it takes their shards, without writing anything
//! ([`trial`]); those that fit are resumed, and all others stay as they are, with their reason.

use super::{Pending, Reply, Worker};
use crate::{
    commit::{Control, RunStatus, Target, Write},
    run::{
        is_mended_by_deploy,
        trial::{self, Verdict},
    },
    run_id::RunNo,
    store::{LoadedRun, Reaction, RunRow, StoreError},
};

impl Worker {
    /// Tries these, one after another: a replay may take long, and others want to move.
    pub(super) fn reconsider(&mut self, runs: Vec<RunNo>) {
        let idle = self.to_reconsider.is_empty();
        self.to_reconsider.extend(runs);
        if idle {
            self.read_next();
        }
    }

    fn read_next(&self) {
        let Some(run) = self.to_reconsider.front().copied() else {
            return;
        };
        let mailbox = self.mailbox.clone();
        let pause = self.shared.settings.store_retry * 2;
        self.ask(move |store| {
            let loaded = store.load(run).map(|loaded| loaded.map(Box::new));
            if loaded.is_err() {
                // The thread that asked will ask again at once.
                crate::seam::sleep(pause, "read again");
            }
            mailbox.push(super::Event::Reconsidered(run, loaded));
        });
    }

    pub(super) fn reconsidered(
        &mut self,
        run: RunNo,
        loaded: Result<Option<Box<LoadedRun>>, StoreError>,
    ) {
        if self.to_reconsider.front() != Some(&run) {
            // The shards were lost since it was read.
            return;
        }
        self.to_reconsider.pop_front();
        match loaded {
            Ok(Some(loaded)) => self.try_again(*loaded),
            Ok(None) => {}
            Err(error) if error.reaction() == Reaction::Retry && self.draining.is_none() => {
                self.shared.complain(&error, "a paused run cannot be read");
                self.to_reconsider.push_back(run);
            }
            Err(error) => {
                tracing::warn!(%error, "a paused run cannot be read; resume it by hand");
            }
        }
        self.read_next();
    }

    fn try_again(&mut self, loaded: LoadedRun) {
        let RunRow { id, shard, .. } = loaded.row;
        let reason = loaded.row.waiting.clone().unwrap_or_default();
        let still = loaded.row.status == RunStatus::Paused && is_mended_by_deploy(&reason);
        if !still || !self.shared.owns(shard) || self.draining.is_some() {
            return;
        }
        let row = &loaded.row;
        let Some(code) = self.shared.registry.find(&row.workflow, row.version) else {
            return;
        };
        match trial::try_run(loaded, code.clone(), self.env.clone()) {
            Verdict::Fits(_) => {
                tracing::info!(run = %id, reason, "the run fits the code again and goes on");
                let write = Write::Control(Target::Id(id), Control::Resume);
                let (thread, run) = (self.index, id.no());
                self.out.push(Pending::new(write, Reply::Owner { thread, run }));
            }
            Verdict::Differs(now) => {
                tracing::warn!(run = %id, reason = now, "the run stays paused");
            }
        }
    }
}
